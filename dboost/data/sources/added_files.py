"""The files with the rows that were added to a table after a version, and what commits have done to files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dboost.errors import DataError


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
class Commit:
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
