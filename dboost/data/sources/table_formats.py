"""Delta Lake and Apache Iceberg tables as sources.

A table has one partition per data file or part of one. Which files and rows belong to a table is stated by its metadata, not by
its folder, which also has files of older versions and rows that were deleted. The metadata are read once, when the frame is
made. This fixes the version: partitions that are read later, or again after a worker was lost, have the same rows even if the
table has changed.

**Order** (`table_versions`). Files of a Delta table are read in the order in which they were added: by the version that added a
file first, and within a version as its log lists them. Files whose version has no log any more come first, by the time of their
last change and their names. Files of an Iceberg table are read by the sequence number of the snapshot that added them, and
within a snapshot as its manifests list them. So rows that were appended one after the other are in this order.

* **Delta** (`deltalake`): the client reads the log. Partition values become columns, files without a column of the schema have
  missing values there, and rows in deletion vectors are left out. Large files are read by row groups. The files themselves are
  opened by fsspec, so workers do not need `deltalake`, and credentials of files come from the environment. Tables with mapped
  columns, and those that need an unknown feature of the protocol, are refused.
* **Iceberg** (`pyiceberg`): large Parquet files are read by row groups, through pyiceberg's file system, if they have the
  columns of the table under their names (`_has_fields`), no delete files, and the scan has no row filter. All other files are
  one partition each, read by pyiceberg itself, which handles schema evolution, partition values, delete files and row filters.
  Files with equality deletes are refused by pyiceberg. A filter leaves out files by the extremes in the manifests.

Columns keep their Arrow types.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any
from urllib.parse import unquote

import numpy as np

from dboost._lazy_import import is_a, pa, pd
from dboost.data.sources import Parts
from dboost.data.sources.files import DataFile, reading, table_name
from dboost.data.sources.parquet import ParquetPart, parts_of_files, read_footers, read_in_order, read_part
from dboost.data.sources.row_filter import Extremes, RowFilter
from dboost.data.sources.table_versions import AddedFiles, at_version, delta_order, iceberg_order, is_delta
from dboost.errors import DataError, MissingExtraError, shown
from dboost.tuning import tuning

#: Maximum size of a file of Iceberg as a multiple of the memory for the columns of a partition: the whole memory limit.
LARGEST = 4
#: What names of partition columns begin with in the log.
_PARTITION = "partition."
#: Features of the Delta protocol that concern only the log, or that reading by the table's schema respects.
_DELTA_FEATURES = {
    "checkpointProtection",
    "columnMapping",  # refused if the table uses it
    "deletionVectors",
    "timestampNtz",
    "typeWidening",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}


def open_table_format(data: Any, most_bytes: int | None = None, row_filter: RowFilter | None = None) -> Parts:
    """Return the rows of a `deltalake.DeltaTable`, of a table or scan of pyiceberg, or of files that were added to one.

    most_bytes : target size of a partition; default 128 MiB. row_filter : files and row groups without rows that it keeps are
    left out.

    Raises
    ------
    DataError
        If the table cannot be read correctly, or has no data files; if a file of Iceberg is too large for the
        memory limit.
    """
    if is_delta(data.table if isinstance(data, AddedFiles) else data):
        return _of_delta(data, most_bytes, row_filter)
    return _of_iceberg(data, most_bytes, row_filter)


def load_delta_folder(path: str) -> Any:
    """Return the `DeltaTable` in a folder, at its current version.

    Raises
    ------
    MissingExtraError
        If deltalake is not installed.
    """
    try:
        from deltalake import DeltaTable
    except ImportError as error:
        raise _missing(path, "a Delta table", "deltalake", "delta") from error
    try:
        return DeltaTable(path)
    except Exception as error:
        raise DataError(f"cannot read the Delta table {shown(path)}: {shown(str(error).splitlines()[0])}") from error


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
        raise _missing(path, "the metadata of an Iceberg table", "pyiceberg", "iceberg") from error
    return StaticTable.from_metadata(path)


def _missing(path: str, kind: str, library: str, extra: str) -> MissingExtraError:
    return MissingExtraError(
        f"{shown(path)} is {kind}, and {library} is not installed; it comes with the extra: pip install 'dboost[{extra}]'"
    )


def _as_pandas(table: Any) -> pd.DataFrame:
    return table.to_pandas(types_mapper=pd.ArrowDtype)


# Delta


def _of_delta(data: Any, most_bytes: int | None, row_filter: RowFilter | None) -> Parts:
    table = at_version(data.table, data.version) if isinstance(data, AddedFiles) else data
    _check_delta(table)
    schema = pa.schema(table.schema().to_arrow())
    files = _added_delta_files(data, schema) if isinstance(data, AddedFiles) else _delta_files(table, schema)
    filters = [] if row_filter is None else [row_filter]
    whole = [most_bytes is None and not filters and size <= tuning().small_file_bytes for _, size in files]
    cut = iter(
        parts_of_files(
            [part for (part, _), is_one in zip(files, whole, strict=True) if not is_one], schema, most_bytes, filters
        )
    )
    parts = [
        part_of_file
        for (part, _), is_one in zip(files, whole, strict=True)
        for part_of_file in ([part] if is_one else next(cut))
    ]
    in_order = None if most_bytes is None else partial(read_in_order, names=schema.names, types=schema, most_bytes=most_bytes)
    return Parts(
        _as_pandas(schema.empty_table()), parts, partial(read_part, names=schema.names, types=schema), "read-delta", in_order
    )


def _check_delta(table: Any) -> None:
    """Raise a DataError for a table whose files do not have the rows and columns of its schema in a known way."""
    mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mode != "none":
        raise DataError(
            f"the Delta table {table_name(table)} maps column names (delta.columnMapping.mode={mode}), which dboost does not "
            "support: write it without, or pass its rows as a Dask or Arrow table"
        )
    unknown = set(table.protocol().reader_features or ()) - _DELTA_FEATURES
    if unknown:
        raise DataError(
            f"the Delta table {table_name(table)} needs features that dboost does not support: {', '.join(sorted(unknown))}"
        )


def _delta_files(table: Any, schema: pa.Schema) -> list[tuple[ParquetPart, int]]:
    """Return the files of the table's version with their bytes, in the order in which they were added."""
    parts, order = _delta_parts(table, schema), delta_order(table)
    return [parts[name] for name in sorted(parts, key=order.__getitem__)]


def _added_delta_files(added: AddedFiles, schema: pa.Schema) -> list[tuple[ParquetPart, int]]:
    parts: dict[str, tuple[ParquetPart, int]] = {}
    for version in set(added.member_of.values()):
        table = at_version(added.table, version)
        _check_delta(table)
        parts |= {name: part for name, part in _delta_parts(table, schema).items() if added.member_of.get(name) == version}
    return [parts[name] for name in added.files]


def _delta_parts(table: Any, schema: pa.Schema) -> dict[str, tuple[ParquetPart, int]]:
    """Return the files of the table's version with their bytes, by name."""
    actions = pa.table(table.get_add_actions(flatten=True))
    uris = table.file_uris()
    names = [unquote(path) for path in actions["path"].to_pylist()]
    if len(uris) != len(names) or not all(uri.endswith(name) for uri, name in zip(uris, names, strict=True)):
        raise DataError(f"the files of the Delta table {table_name(table)} are not those of its log")
    # Of a URI the folder of the table is quoted, and the path in it is not.
    folders = [uri.removesuffix(name) for uri, name in zip(uris, names, strict=True)]
    deleted = _deleted_rows(table, [folder + path for folder, path in zip(folders, actions["path"].to_pylist(), strict=True)])
    constants = [name for name in actions.column_names if name.startswith(_PARTITION)]
    parts: dict[str, tuple[ParquetPart, int]] = {}
    for i, (folder, name) in enumerate(zip(folders, names, strict=True)):
        of_file = {name.removeprefix(_PARTITION): actions[name][i].as_py() for name in constants}
        columns = {name: pa.array([value], schema.field(name).type) for name, value in of_file.items()}
        file = DataFile(unquote(folder) + name, None, "")  # by the protocol a file never changes
        size = actions["size_bytes"][i].as_py()
        parts[name] = (ParquetPart(file, constants=columns, deleted=deleted.get(i), n_bytes=size), size)
    return parts


def _deleted_rows(table: Any, paths: list[str]) -> dict[int, np.ndarray]:
    """Return the positions of the rows in deletion vectors, by the number of the file. paths : quoted, as in the log."""
    numbers = {_plain(path): i for i, path in enumerate(paths)}
    rows_of: dict[int, np.ndarray] = {}
    vectors = pa.RecordBatchReader.from_stream(table.deletion_vectors()).read_all()
    for path, kept in zip(vectors["filepath"].to_pylist(), vectors["selection_vector"], strict=True):
        number = numbers.get(_plain(path))
        if number is None or number in rows_of:
            raise DataError(
                f"a deletion vector of the Delta table {table_name(table)} belongs to an unknown file: {shown(path)}"
            )
        rows_of[number] = np.flatnonzero(~kept.values.to_numpy(zero_copy_only=False))
    return rows_of


def _plain(url: str) -> str:
    return url.removeprefix("file://")


# Iceberg


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


def _of_iceberg(data: Any, most_bytes: int | None, row_filter: RowFilter | None) -> Parts:
    added = data if isinstance(data, AddedFiles) else None
    if added is not None:
        scan = at_version(added.table, added.version)
    else:
        scan = data.scan() if is_a(data, "pyiceberg.table", "Table") else data
    if scan.limit is not None:
        raise DataError(
            f"the scan of {table_name(data)} has limit={scan.limit}, which dboost does not support: use a row filter"
        )
    with reading(data):
        tasks = _iceberg_tasks(scan) if added is None else _added_iceberg_tasks(added)
        schema = scan.projection()
        types = schema.as_arrow()
        filters = [] if row_filter is None else [row_filter]
        for condition in filters:
            kept = condition.possible(
                [_extremes_of(task.file, schema, set(condition.columns(types.names))) for task in tasks], types
            )
            tasks = [task for task, is_kept in zip(tasks, kept, strict=True) if is_kept]
        parts = _iceberg_parts(tasks, scan, schema, most_bytes, filters)
    of_scan = _IcebergScan(scan.table_metadata, scan.io, schema, scan.row_filter, scan.case_sensitive)
    read = partial(_read_iceberg, scan=of_scan, types=types)
    in_order = None if most_bytes is None else partial(_read_iceberg_in_order, read=read, types=types, most_bytes=most_bytes)
    return Parts(_as_pandas(types.empty_table()), parts, read, "read-iceberg", in_order)


def _iceberg_parts(
    tasks: Sequence[Any], scan: Any, schema: Any, most_bytes: int | None, filters: Sequence[RowFilter]
) -> list[Any]:
    """Return the parts of files: row groups and ranges of rows, or whole files that pyiceberg reads."""
    from pyiceberg.expressions import AlwaysTrue

    of_partitions = {field.source_id for spec in scan.table_metadata.partition_specs for field in spec.fields}
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
    chosen = [k for k, footer in zip(whole, footers, strict=True) if _has_fields(footer.schema, schema, of_partitions)]
    cut = dict(zip(chosen, parts_of_files([whole[k] for k in chosen], types, most_bytes, filters), strict=True))
    parts: list[Any] = []
    for k, task in enumerate(tasks):
        if k not in cut and most_bytes is not None:
            _check_size(scan.io, task.file, LARGEST * most_bytes)
        parts += cut.get(k, [_IcebergFile(task)])
    return parts


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
    return read_iceberg_file(part, scan=scan, columns=columns)


def _read_iceberg_in_order(
    parts: Sequence[Any], *, read: Callable[..., pd.DataFrame], types: pa.Schema, columns: list[str], most_bytes: int
) -> Iterator[pd.DataFrame]:
    for by_groups, group in groupby(parts, key=lambda part: isinstance(part, ParquetPart)):
        if by_groups:
            yield from read_in_order(list(group), names=types.names, types=types, columns=columns, most_bytes=most_bytes)
        else:
            yield from (read(part, columns=columns) for part in group)


def _iceberg_tasks(scan: Any) -> list[Any]:
    """Return the files of a scan in the order in which they were added."""
    order = iceberg_order(scan)
    return sorted(scan.plan_files(), key=lambda task: order[task.file.file_path])


def _added_iceberg_tasks(added: AddedFiles) -> list[Any]:
    tasks = {
        task.file.file_path: task
        for version in set(added.member_of.values())
        for task in at_version(added.table, version).plan_files()
        if added.member_of.get(task.file.file_path) == version
    }
    return [tasks[name] for name in added.files]


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


def read_iceberg_file(file: _IcebergFile, *, scan: _IcebergScan, columns: list[str] | None = None) -> pd.DataFrame:
    """Return the rows of a file that are neither deleted nor filtered out, with columns of the scan's schema (default: all)."""
    from pyiceberg.io.pyarrow import ArrowScan

    with reading(file.task.file.file_path):
        names = [field.name for field in scan.schema.fields] if columns is None else columns
        # pyiceberg counts no rows without columns.
        schema = scan.schema.select(*(names or [scan.schema.fields[0].name]))
        arrow = ArrowScan(scan.metadata, scan.io, schema, scan.row_filter, scan.case_sensitive).to_table([file.task])
        return _as_pandas(arrow.select(names)) if names else pd.DataFrame(index=range(len(arrow)))
