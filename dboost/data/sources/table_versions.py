"""Versions of Delta and Iceberg tables: the order of their files, and the rows that were added between two versions.

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

import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from dboost._lazy_import import is_a, pa
from dboost.data.sources.files import DELTA_LOG, natural_key, reading, table_name
from dboost.errors import DataError, shown
from dboost.files.filesystem import filesystem_of

#: The log of a version of a Delta table, and how many are read at the same time.
_VERSION = re.compile(r"/(\d{20})\.json$")
_LOGS_AT_ONCE = 32


class ChangedRowsError(DataError):
    """Rows were deleted or changed since a version, or it is unknown whether they were."""


@dataclass(frozen=True, eq=False)
class AddedFiles:
    """The files of a table with the rows that were added after a version. They are data for every function, as the table is."""

    #: The `DeltaTable`, or pyiceberg's table, at the version up to which the files were added.
    table: Any
    #: That version.
    version: int
    #: Bytes by name, in the order of the rows: paths in a Delta table, URLs of an Iceberg table.
    files: dict[str, int]
    #: By name, a version in which the file belongs to the table.
    member_of: dict[str, int]


@dataclass(frozen=True)
class _Commit:
    """What one commit has done to the files of a table."""

    version: int
    operation: str
    #: Bytes of files with new or changed rows, by name.
    added: dict[str, int]
    #: Names of files whose rows were removed or changed.
    removed: Sequence[str]
    #: Names of files that were only rewritten.
    rewritten: Sequence[str]
    #: Deletes rows of files that stay.
    deletes_rows: bool = False


def is_delta(table: Any) -> bool:
    """Return whether a table is a `deltalake.DeltaTable`."""
    return is_a(table, "deltalake", "DeltaTable")


def has_versions(data: Any) -> bool:
    """Return whether `data` is a `deltalake.DeltaTable` or a table of pyiceberg, whose versions can be compared."""
    return is_delta(data) or is_a(data, "pyiceberg.table", "Table")


def table_id(table: Any) -> str:
    """Return the id that a table keeps in all its versions."""
    return str(table.metadata().id if is_delta(table) else table.metadata.table_uuid)


def location(table: Any) -> str:
    """Return the folder of a table, as its metadata have it."""
    return str(unquote(table.table_uri) if is_delta(table) else table.metadata.location).rstrip("/")


def version_of(table: Any) -> int | None:
    """Return the version of a table; None for an Iceberg table without snapshots."""
    if is_delta(table):
        return int(table.version())
    snapshot = table.current_snapshot()
    return None if snapshot is None else int(snapshot.snapshot_id)


def at_version(table: Any, version: int) -> Any:
    """Return a table as it was: a `DeltaTable`, or a scan of an Iceberg table.

    Raises
    ------
    DataError
        If the version is gone.
    """
    with reading(table):
        if not is_delta(table):
            if table.metadata.snapshot_by_id(version) is None:
                raise DataError(f"{table_name(table)} has no snapshot {version} any more")
            return table.scan(snapshot_id=version)
        if version == table.version():
            return table
        options = table._storage_options
        try:
            return type(table)(table.table_uri, version=version, storage_options=options)
        except Exception as error:  # deltalake has errors of its own
            raise DataError(f"version {version} of the Delta table {table_name(table)} cannot be read: {error}") from error


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
    until = version_of(table) if until is None else until
    if until is None:
        raise DataError(f"{table_name(table)} has no rows")
    with reading(table):
        if since is None:
            return AddedFiles(table, until, files := _files(table, until), dict.fromkeys(files, until))
        added: dict[str, int] = {}
        member_of: dict[str, int] = {}
        before = since
        for commit in (_delta_commits if is_delta(table) else _iceberg_commits)(table, since, until):
            old = next((name for name in commit.removed if name not in added), None)
            if old is not None or commit.deletes_rows:
                change = f"removes {old}, or some of its rows" if old is not None else "deletes rows"
                raise ChangedRowsError(
                    f"rows of {_name(table, since)} were deleted or changed since: {_name(table, commit.version)} "
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
            if not _exists(table, name):
                raise ChangedRowsError(
                    f"new rows of {table_name(table)} were rewritten into other files, and {shown(name)}, which had them, "
                    "is gone"
                )
        return AddedFiles(table, until, added, dict.fromkeys(added, until) | replaced)


def _exists(table: Any, name: str) -> bool:
    if not is_delta(table):
        return bool(table.io.new_input(name).exists())
    fs, path = filesystem_of(name if "://" in name else f"{location(table)}/{name}")
    return bool(fs.exists(path))


def _name(table: Any, version: int) -> str:
    return f"{'version' if is_delta(table) else 'snapshot'} {version} of {table_name(table)}"


def _files(table: Any, version: int) -> dict[str, int]:
    """Return the bytes of the files of a version by name, in order."""
    of_version = at_version(table, version)
    if is_delta(table):
        actions = pa.table(of_version.get_add_actions())
        names, sizes = map(unquote, actions["path"].to_pylist()), actions["size_bytes"].to_pylist()
        size_of, order = dict(zip(names, sizes, strict=True)), delta_order(of_version)
    else:
        size_of = {task.file.file_path: task.file.file_size_in_bytes for task in of_version.plan_files()}
        order = iceberg_order(of_version)
    return {name: size_of[name] for name in sorted(size_of, key=order.__getitem__)}


def delta_order(table: Any) -> dict[str, tuple[Any, ...]]:
    """Return what the files of a Delta table are sorted by: the version that added a file first, and its position in the log.

    The log of old versions may be gone: their files come first, by their times and names.
    """
    added: dict[str, tuple[int, int]] = {}
    for version, lines in _delta_logs(table):
        for k, line in enumerate(lines):
            add = json.loads(line).get("add") if b'"add"' in line else None
            if add is not None:
                added.setdefault(unquote(add["path"]), (version, k))
    actions = pa.table(table.get_add_actions())
    names, times = map(unquote, actions["path"].to_pylist()), actions["modification_time"].to_pylist()
    return {name: added.get(name) or (-1, time, natural_key(name)) for name, time in zip(names, times, strict=True)}


def iceberg_order(scan: Any) -> dict[str, tuple[int, int, int, int]]:
    """Return what the files of a scan are sorted by: the snapshot that added them, the manifest, and the position in it."""
    order: dict[str, tuple[int, int, int, int]] = {}
    snapshot = scan.snapshot()
    for k, manifest in enumerate(() if snapshot is None else snapshot.manifests(scan.io)):
        for j, entry in enumerate(manifest.fetch_manifest_entry(scan.io, discard_deleted=True)):
            by = scan.table_metadata.snapshot_by_id(entry.snapshot_id)  # tables of version 1 have no sequence numbers
            order[entry.data_file.file_path] = (entry.sequence_number or 0, 0 if by is None else by.timestamp_ms, k, j)
    return order


def _delta_logs(table: Any, after: int = -1) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the versions of a Delta table after one, and up to that of the table, that have a log, with the lines of it."""
    fs, folder = filesystem_of(f"{unquote(table.table_uri).rstrip('/')}/{DELTA_LOG}")
    fs.invalidate_cache()
    logs = {int(match[1]): path for path in fs.ls(folder, detail=False) if (match := _VERSION.search(path))}
    wanted = sorted(version for version in logs if after < version <= table.version())
    with ThreadPoolExecutor(_LOGS_AT_ONCE) as threads:
        contents = threads.map(lambda version: fs.cat_file(logs[version]), wanted)
        for version, content in zip(wanted, contents, strict=True):
            yield version, content.splitlines()


def _delta_commits(table: Any, since: int, until: int) -> Iterator[_Commit]:
    if until < since:
        raise ChangedRowsError(f"{table_name(table)} is at version {until} now, before version {since}")
    expected = since + 1
    for version, lines in _delta_logs(at_version(table, until), since):
        if version != expected:
            break
        expected += 1
        actions = [json.loads(line) for line in lines if line.strip()]
        adds = [action["add"] for action in actions if action.get("add")]
        removes = [action["remove"] for action in actions if action.get("remove")]
        information: dict[str, Any] = next((action["commitInfo"] for action in actions if action.get("commitInfo")), {})
        yield _Commit(
            version,
            str(information.get("operation", "unknown operation")),
            {unquote(add["path"]): int(add["size"]) for add in adds if add["dataChange"]},
            [unquote(remove["path"]) for remove in removes if remove["dataChange"]],
            [unquote(remove["path"]) for remove in removes if not remove["dataChange"]],
        )
    if expected <= until:
        raise ChangedRowsError(f"the log of {_name(table, expected)} is gone, so it is unknown whether rows were deleted")


def _iceberg_commits(table: Any, since: int, until: int) -> Iterator[_Commit]:
    from pyiceberg.manifest import DataFileContent, ManifestEntryStatus

    metadata, chain = table.metadata, []
    current: int | None = until
    while current is not None and current != since:
        snapshot = metadata.snapshot_by_id(current)
        if snapshot is None:
            break
        chain.append(snapshot)
        current = snapshot.parent_snapshot_id
    if current != since:
        raise ChangedRowsError(
            f"the history of {_name(table, until)} does not lead back to {since}, because snapshots have expired or the table "
            "was set back, so it is unknown whether rows were deleted"
        )
    for snapshot in reversed(chain):
        operation = "unknown operation" if snapshot.summary is None else snapshot.summary.operation.value
        added: dict[str, int] = {}
        removed, deletes_rows = [], False
        for manifest in snapshot.manifests(table.io):
            if manifest.added_snapshot_id != snapshot.snapshot_id:
                continue
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                if entry.snapshot_id != snapshot.snapshot_id or entry.status == ManifestEntryStatus.EXISTING:
                    continue
                file = entry.data_file
                if file.content != DataFileContent.DATA:
                    deletes_rows |= entry.status == ManifestEntryStatus.ADDED
                elif entry.status == ManifestEntryStatus.ADDED:
                    added[file.file_path] = file.file_size_in_bytes
                else:
                    removed.append(file.file_path)
        if operation == "replace":
            yield _Commit(snapshot.snapshot_id, operation, {}, [], removed)
        else:
            yield _Commit(snapshot.snapshot_id, operation, added, removed, [], deletes_rows)


def label(table: Any, version: int) -> str:
    """Return the name of a version of a table, as sources of a model have it."""
    return f"{'Delta' if is_delta(table) else 'Iceberg'} table {table_id(table)}, version {version}"


def learned_version(table: Any, labels: Sequence[str | None]) -> int | None:
    """Return the version in the last of some labels (see `label`) that names the table; None if none does."""
    before = label(table, 0).rpartition(" ")[0]
    matches = [re.fullmatch(rf"{re.escape(before)} (\d+)", label) for label in labels if label is not None]
    return next((int(match[1]) for match in reversed(matches) if match), None)
