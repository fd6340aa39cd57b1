"""Delta and Iceberg tables as sources, and the rows that were added between two versions of one.

A table has one partition per data file or part of one. Which files and rows belong to a table is stated by its metadata, not by
its folder, which also has files of older versions and rows that were deleted. The metadata are read once, when the frame is
made. This fixes the version: partitions that are read later, or again after a worker was lost, have the same rows even if the
table has changed. Files are in the order in which they were added, so rows that were appended one after the other are in this
order. Columns keep their Arrow types. `DeltaAdapter` and `IcebergAdapter` return files, columns and commits.

A version is the number of a Delta version, or the id of an Iceberg snapshot. `added_since` follows the commits after a version:

* Files that a commit adds with new rows are new. If a later commit rewrites new files only, what it writes is new instead.
* A commit that removes rows which were there before, or changes them, raises a `ChangedRowsError`: a model that has learned the
  old rows cannot forget them. So does a history that does not lead back to the old version, because its log is gone, or because
  the table was set back.
* A commit that only rewrites rows (``optimize``, an Iceberg ``replace``) changes nothing. New files that it has replaced are
  read as they were, from the version before it; this fails if they were removed since (``vacuum``, expired snapshots).

So every row is in exactly one of the batches of a sequence of versions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from dboost._lazy_import import is_a
from dboost.data.sources import Parts
from dboost.data.sources.added_files import AddedFiles, ChangedRowsError
from dboost.data.sources.delta_tables import DeltaAdapter
from dboost.data.sources.files import reading, table_name
from dboost.data.sources.iceberg_tables import IcebergAdapter
from dboost.data.sources.row_filter import RowFilter
from dboost.errors import DataError, shown


def adapter_of(table: Any) -> DeltaAdapter | IcebergAdapter:
    """Return the adapter of a `deltalake.DeltaTable`, or of a table or scan of pyiceberg."""
    return DeltaAdapter(table) if is_a(table, "deltalake", "DeltaTable") else IcebergAdapter(table)


def open_table(data: Any, most_bytes: int | None = None, row_filter: RowFilter | None = None) -> Parts:
    """Return the rows of a `deltalake.DeltaTable`, of a table or scan of pyiceberg, or of files that were added to one.

    most_bytes : target size of a partition; default 128 MiB. row_filter : files and row groups without rows that it keeps are
    left out.

    Raises
    ------
    DataError
        If the table cannot be read correctly, or has no data files; if a file of Iceberg is too large for the
        memory limit.
    """
    added = data if isinstance(data, AddedFiles) else None
    return adapter_of(data if added is None else added.table).parts(added, most_bytes, row_filter)


def has_versions(data: Any) -> bool:
    """Return whether `data` is a `deltalake.DeltaTable` or a table of pyiceberg, whose versions can be compared."""
    return is_a(data, "deltalake", "DeltaTable") or is_a(data, "pyiceberg.table", "Table")


def added_since(table: Any, since: int | None, until: int | None = None) -> AddedFiles:
    """Return the files with the rows that were added to a table after a version.

    Parameters
    ----------
    table : DeltaTable or table of pyiceberg
    since : int, optional
        Default: all rows are new.
    until : int, optional
        The version up to which; default: that of the table.

    Raises
    ------
    ChangedRowsError
        If rows of the version `since` were deleted or changed until then, or this is unknown.
    DataError
        If a version cannot be read.
    """
    adapter = adapter_of(table)
    until = adapter.version if until is None else until
    if until is None:
        raise DataError(f"{table_name(table)} has no rows")

    def name_of(version: int) -> str:
        return f"{adapter.version_word} {version} of {table_name(table)}"

    with reading(table):
        if since is None:
            return AddedFiles(table, until, files := adapter.files(until), dict.fromkeys(files, until))
        added: dict[str, int] = {}
        member_of: dict[str, int] = {}
        before = since
        for commit in adapter.commits(since, until):
            old = next((name for name in commit.removed if name not in added), None)
            if old is not None or commit.deletes_rows:
                change = f"removes {old}, or some of its rows" if old is not None else "deletes rows"
                raise ChangedRowsError(
                    f"rows of {name_of(since)} were deleted or changed since: {name_of(commit.version)} "
                    f"({commit.operation}) {change}"
                )
            for name in commit.removed:
                del added[name]
            for name in commit.rewritten:
                if name in added:
                    member_of.setdefault(name, before)
            added |= commit.added
            before = commit.version
        replaced = {name: version for name, version in member_of.items() if name in added}
        for name in replaced:
            if not adapter.exists(name):
                raise ChangedRowsError(
                    f"new rows of {table_name(table)} were rewritten into other files, and {shown(name)}, which had them, "
                    "is gone"
                )
        return AddedFiles(table, until, added, dict.fromkeys(added, until) | replaced)


def label(table: Any, version: int) -> str:
    """Return the name of a version of a table, as sources of a model have it."""
    return f"{adapter_of(table).kind} table {adapter_of(table).id}, version {version}"


def learned_version(table: Any, labels: Sequence[str | None]) -> int | None:
    """Return the version in the last of some labels (see `label`) that names the table; None if none does."""
    before = label(table, 0).rpartition(" ")[0]
    matches = [re.fullmatch(rf"{re.escape(before)} (\d+)", label) for label in labels if label is not None]
    return next((int(match[1]) for match in reversed(matches) if match), None)
