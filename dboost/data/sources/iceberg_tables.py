"""The adapter of Apache Iceberg tables (`pyiceberg`): files and their columns, versions, and commits; see `table_versions`.

Large Parquet files are read by row groups, through pyiceberg's file system, if they have the columns of the table under their
names (`_has_fields`), no delete files, and the scan has no row filter. All other files are one partition each, read by
pyiceberg itself, which handles schema evolution, partition values, delete files and row filters. Files with equality deletes
are refused by pyiceberg. A filter leaves out files by the extremes in the manifests.

Files are read by the sequence number of the snapshot that added them, and within a snapshot as its manifests list them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from dboost._lazy_import import is_a, pa, pd
from dboost.data.sources import Parts
from dboost.data.sources.added_files import AddedFiles, ChangedRowsError, Commit
from dboost.data.sources.files import DataFile, reading, table_name
from dboost.data.sources.parquet import ParquetPart, parts_of_files, read_footers, read_in_order, read_part
from dboost.data.sources.row_filter import Extremes, RowFilter
from dboost.errors import DataError, MissingExtraError, shown
from dboost.tuning import tuning

#: Maximum size of a file of Iceberg as a multiple of the memory for the columns of a partition: the whole memory limit.
LARGEST = 4


def load_iceberg_metadata(path: str) -> Any:
    """Return pyiceberg's table by a metadata file (``….metadata.json``).

    Raises
    ------
    MissingExtraError
        If pyiceberg is not installed.
    """
    try:
        from pyiceberg.table import StaticTable
    except ImportError as error:
        raise MissingExtraError(
            f"{shown(path)} is the metadata of an Iceberg table, and pyiceberg is not installed; it comes with the extra: "
            "pip install 'dboost[iceberg]'"
        ) from error
    return StaticTable.from_metadata(path)


class IcebergAdapter:
    """What `table_versions` needs of a table of pyiceberg, or of a scan of one; versions are ids of snapshots."""

    kind, version_word = "Iceberg", "snapshot"

    def __init__(self, table: Any) -> None:
        self._table = table

    @property
    def id(self) -> str:
        """The id that the table keeps in all its versions."""
        return str(self._table.metadata.table_uuid)

    @property
    def location(self) -> str:
        return str(self._table.metadata.location).rstrip("/")

    @property
    def version(self) -> int | None:
        """The current snapshot; None without one."""
        snapshot = self._table.current_snapshot()
        return None if snapshot is None else int(snapshot.snapshot_id)

    def at(self, version: int) -> Any:
        """Return a scan of the table as it was; DataError if the snapshot is gone."""
        with reading(self._table):
            if self._table.metadata.snapshot_by_id(version) is None:
                raise DataError(f"{table_name(self._table)} has no snapshot {version} any more")
            return self._table.scan(snapshot_id=version)

    def files(self, version: int) -> dict[str, int]:
        """Return the bytes of the files of a version by name, in order."""
        scan = self.at(version)
        size_of = {task.file.file_path: task.file.file_size_in_bytes for task in scan.plan_files()}
        order = _order(scan)
        return {name: size_of[name] for name in sorted(size_of, key=order.__getitem__)}

    def exists(self, name: str) -> bool:
        return bool(self._table.io.new_input(name).exists())

    def commits(self, since: int, until: int) -> Iterator[Commit]:
        """Yield what the commits after a version have done to the files."""
        table = self._table
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
                f"the history of snapshot {until} of {table_name(table)} does not lead back to {since}, because snapshots have "
                "expired or the table was set back, so it is unknown whether rows were deleted"
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
                yield Commit(snapshot.snapshot_id, operation, {}, [], removed)
            else:
                yield Commit(snapshot.snapshot_id, operation, added, removed, [], deletes_rows)

    def parts(self, added: AddedFiles | None, most_bytes: int | None, row_filter: RowFilter | None) -> Parts:
        """Return the rows of the table or scan, or of files that were added to it."""
        data = self._table
        if added is not None:
            scan = self.at(added.version)
        else:
            scan = data.scan() if is_a(data, "pyiceberg.table", "Table") else data
        if scan.limit is not None:
            raise DataError(
                f"the scan of {table_name(data)} has limit={scan.limit}, which dboost does not support: use a row filter"
            )
        with reading(data):
            if added is not None:
                tasks = self._added_tasks(added)
            else:
                order = _order(scan)
                tasks = sorted(scan.plan_files(), key=lambda task: order[task.file.file_path])
            schema = scan.projection()
            types = schema.as_arrow()
            if row_filter is not None:
                used = set(row_filter.columns(types.names))
                kept = row_filter.possible([_extremes_of(task.file, schema, used) for task in tasks], types)
                tasks = [task for task, is_kept in zip(tasks, kept, strict=True) if is_kept]
            parts = _iceberg_parts(tasks, scan, schema, most_bytes, [] if row_filter is None else [row_filter])
        plain_scan = _IcebergScan(scan.table_metadata, scan.io, schema, scan.row_filter, scan.case_sensitive)
        read = partial(_read_iceberg, scan=plain_scan, types=types)
        in_order = partial(_read_iceberg_in_order, read=read, types=types, most_bytes=most_bytes) if most_bytes else None
        return Parts(_as_pandas(types.empty_table()), parts, read, "read-iceberg", in_order)

    def _added_tasks(self, added: AddedFiles) -> list[Any]:
        tasks = {
            task.file.file_path: task
            for version in set(added.member_of.values())
            for task in self.at(version).plan_files()
            if added.member_of.get(task.file.file_path) == version
        }
        return [tasks[name] for name in added.files]


@dataclass(frozen=True, eq=False)
class _IcebergScan:
    """What a worker needs to read files of a scan."""

    metadata: Any
    io: Any
    schema: Any
    row_filter: Any
    case_sensitive: bool

    def __dask_tokenize__(self) -> Any:
        metadata = self.metadata
        return str(metadata.table_uuid), metadata.location, repr(self.schema), repr(self.row_filter), self.case_sensitive


@dataclass(frozen=True, eq=False)
class _IcebergFile:
    """A data file of a scan, with its delete files."""

    task: Any

    @property
    def n_bytes(self) -> int:
        return int(self.task.file.file_size_in_bytes)

    def __dask_tokenize__(self) -> Any:
        deletes = sorted(str(file.file_path) for file in self.task.delete_files)
        return self.task.file.file_path, deletes, repr(self.task.residual)


class _IcebergFiles:
    """The file system of an Iceberg table, as `ParquetPart.filesystem`."""

    def __init__(self, io: Any) -> None:
        self._io = io

    def open_input_file(self, url: str) -> Any:
        return self._io.new_input(url).open()

    def __dask_tokenize__(self) -> Any:
        return "files of an Iceberg table"


def _iceberg_parts(
    tasks: Sequence[Any], scan: Any, schema: Any, most_bytes: int | None, filters: Sequence[RowFilter]
) -> list[Any]:
    """Return the parts of files: row groups and ranges of rows, or whole files that pyiceberg reads."""
    from pyiceberg.expressions import AlwaysTrue

    partition_sources = {field.source_id for spec in scan.table_metadata.partition_specs for field in spec.fields}
    types, files = schema.as_arrow(), _IcebergFiles(scan.io)

    def may_be_cut(task: Any) -> bool:
        is_plain = str(task.file.file_format).upper().endswith("PARQUET") and not task.delete_files
        is_small = most_bytes is None and not filters and task.file.file_size_in_bytes <= tuning().small_file_bytes
        return is_plain and not is_small and isinstance(scan.row_filter, AlwaysTrue)

    whole = {
        k: ParquetPart(DataFile(task.file.file_path, None, ""), filesystem=files)
        for k, task in enumerate(tasks)
        if may_be_cut(task)
    }
    footers = read_footers([part.file for part in whole.values()], exact=False, filesystem=files)
    chosen = {k for k, footer in zip(whole, footers, strict=True) if _has_fields(footer.schema, schema, partition_sources)}
    parts: list[Any] = []
    for k, task in enumerate(tasks):
        if k not in chosen and most_bytes is not None:
            _check_size(scan.io, task.file, LARGEST * most_bytes)
        parts.append(whole[k] if k in chosen else _IcebergFile(task))
    return parts_of_files(parts, types, most_bytes, filters)


def _has_fields(stored: pa.Schema, schema: Any, of_partitions: Collection[int]) -> bool:
    """Return whether a file has the columns of a table under their names, or does not have them and they are missing.

    of_partitions : ids of the columns from which partition values follow.
    """
    ids = {field.name: int((field.metadata or {}).get(b"PARQUET:field_id", -1)) for field in stored}
    if -1 in ids.values():
        return False
    for field in schema.fields:
        if not field.field_type.is_primitive:
            return False
        if field.name in ids:
            if ids[field.name] != field.field_id:
                return False
        elif field.field_id in ids.values() or field.field_id in of_partitions or field.initial_default is not None:
            return False
    return True


def _extremes_of(file: Any, schema: Any, names: Collection[str]) -> dict[str, Extremes]:
    """Return the extremes of some columns in a file, as far as the manifest has them."""
    from pyiceberg.conversions import from_bytes

    extremes, types = {}, schema.as_arrow()
    for field in schema.fields:
        k, kind = field.field_id, types.field(field.name).type
        if field.name not in names or not field.field_type.is_primitive or pa.types.is_floating(kind):
            continue
        least, largest = ((bounds or {}).get(k) for bounds in (file.lower_bounds, file.upper_bounds))
        n_missing = (file.null_value_counts or {}).get(k)
        if least is not None and largest is not None:
            with suppress(pa.ArrowException, TypeError, ValueError):
                bounds = [pa.scalar(from_bytes(field.field_type, bound), kind) for bound in (least, largest)]
                extremes[field.name] = Extremes(bounds[0], bounds[1], n_missing != 0)
        elif n_missing is not None and n_missing == file.record_count:
            extremes[field.name] = Extremes(None, None, True)
    return extremes


def _read_iceberg(part: Any, *, scan: _IcebergScan, types: pa.Schema, columns: list[str] | None = None) -> pd.DataFrame:
    if isinstance(part, ParquetPart):
        return read_part(part, names=types.names, types=types, columns=columns)
    return _read_file(part, scan=scan, columns=columns)


def _read_iceberg_in_order(
    parts: Sequence[Any], *, read: Callable[..., pd.DataFrame], types: pa.Schema, columns: list[str], most_bytes: int
) -> Iterator[pd.DataFrame]:
    for by_groups, group in groupby(parts, key=lambda part: isinstance(part, ParquetPart)):
        if by_groups:
            yield from read_in_order(list(group), names=types.names, types=types, columns=columns, most_bytes=most_bytes)
        else:
            yield from (read(part, columns=columns) for part in group)


def _check_size(io: Any, file: Any, most: int) -> None:
    """Raise a DataError if a file is larger than `most` bytes."""
    from pyarrow import parquet as pq

    size = file.file_size_in_bytes
    if str(file.file_format).upper().endswith("PARQUET"):
        with io.new_input(file.file_path).open() as stream:
            footer = pq.read_metadata(stream)
        size = sum(footer.row_group(k).total_byte_size for k in range(footer.num_row_groups))
    if size > most:
        raise DataError(
            f"{shown(file.file_path)} has {size / 2**20:.1f} MiB, which is more than memory_limit allows "
            f"({most / 2**20:.1f} MiB), and it is read as a whole, because it has deleted rows, or the table has another "
            "schema now: rewrite the table with a smaller write.target-file-size-bytes, or raise the limit"
        )


def _read_file(file: _IcebergFile, *, scan: _IcebergScan, columns: list[str] | None = None) -> pd.DataFrame:
    """Return the rows of a file that are neither deleted nor filtered out, with columns of the scan's schema (default: all)."""
    from pyiceberg.io.pyarrow import ArrowScan

    with reading(file.task.file.file_path):
        names = [field.name for field in scan.schema.fields] if columns is None else columns
        # pyiceberg counts no rows without columns.
        schema = scan.schema.select(*(names or [scan.schema.fields[0].name]))
        arrow = ArrowScan(scan.metadata, scan.io, schema, scan.row_filter, scan.case_sensitive).to_table([file.task])
        return _as_pandas(arrow.select(names)) if names else pd.DataFrame(index=range(len(arrow)))


def _order(scan: Any) -> dict[str, tuple[int, int, int, int]]:
    """Return what the files of a scan are sorted by: the snapshot that added them, the manifest, and the position in it."""
    order: dict[str, tuple[int, int, int, int]] = {}
    snapshot = scan.snapshot()
    for k, manifest in enumerate(() if snapshot is None else snapshot.manifests(scan.io)):
        for j, entry in enumerate(manifest.fetch_manifest_entry(scan.io, discard_deleted=True)):
            by = scan.table_metadata.snapshot_by_id(entry.snapshot_id)  # tables of version 1 have no sequence numbers
            order[entry.data_file.file_path] = (entry.sequence_number or 0, 0 if by is None else by.timestamp_ms, k, j)
    return order


def _as_pandas(table: Any) -> pd.DataFrame:
    return table.to_pandas(types_mapper=pd.ArrowDtype)
