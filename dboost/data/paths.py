"""Parquet and CSV files, Delta Lake and Apache Iceberg tables as a lazy Dask frame.

For Parquet see `data.parquet`, for the files of a path `data.files`. CSV files are divided into blocks of whole lines here,
because Dask determines the dtypes by a sample of the first file and fails if a later block differs. A column is text if it
contains anything but numbers and truth values, and numeric otherwise, so the features do not depend on the blocks. Columns that
are text in the sample are read as text in every block, also if a block contains only digits. If a block contains text in a
column that has numbers in another block, all files are read again: once to find the columns that are text in any block
(`open_with_text`), and then with these as text. As in Dask, a line break inside quotes must not fall on a block boundary.

**Tables with versions** (Delta Lake, Apache Iceberg) have one partition per data file or part of one. Which files and rows
belong to a table is stated by its metadata, not by its folder, which also has files of older versions and rows that were
deleted. The metadata are read once, when the frame is made. This fixes the version: partitions that are read later, or again
after a worker was lost, have the same rows even if the table has changed. Files are read in the natural order of their paths,
as those of a folder, so the order of the rows depends on the table's files alone.

* **Delta** (`deltalake`): the client reads the log. Partition values become columns, files without a column of the schema have
  missing values there, and rows in deletion vectors are left out. Large files are read by row groups. The files themselves are
  opened by fsspec, so workers do not need `deltalake`, and credentials of files come from the environment. Tables with mapped
  columns, and those that need an unknown feature of the protocol, are refused.
* **Iceberg** (`pyiceberg`): each file is one partition, read on the worker by pyiceberg itself, which handles schema evolution,
  partition values, delete files and the row filter of a scan. Files with equality deletes are refused by pyiceberg.

Columns keep their Arrow types.
"""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Collection, Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import unquote

import dask.dataframe as dd
import fsspec
import numpy as np
from dask.utils import natural_sort_key
from fsspec.utils import read_block

from dboost._lazy_import import is_a, pa, pd
from dboost.data.files import (
    CSV,
    DELTA_LOG,
    ICEBERG,
    PARQUET,
    DataFile,
    existing_files,
    items_of,
    reading,
    shown_path,
    unchanged,
)
from dboost.data.parquet import ParquetPart, open_parquet, parts_of, read_footers, read_part
from dboost.data.partition import is_table_format
from dboost.errors import DataError, MissingExtraError, shown
from dboost.schema import TEXT, Feature

#: Files of at most this size are one partition, whose footer need not be read beforehand.
SMALL_BYTES = 16 * 2**20
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


def open_table_format(data: Any, most_bytes: int | None = None) -> dd.DataFrame:
    """Return a lazy frame of a `deltalake.DeltaTable`, or of a table or scan of pyiceberg.

    most_bytes : target size of a partition; default 128 MiB.

    Raises
    ------
    DataError
        If the table cannot be read correctly, or has no data files; if a file of Iceberg is too large for the
        memory limit.
    """
    return _of_delta(data, most_bytes) if is_a(data, "deltalake", "DeltaTable") else _of_iceberg(data, most_bytes)


def open_delta_folder(path: str, most_bytes: int | None = None) -> dd.DataFrame:
    """Return a lazy frame of the current version of the Delta table in a folder; see `open_table_format`.

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
        table = DeltaTable(path)
    except Exception as error:
        raise DataError(f"cannot read the Delta table {shown(path)}: {shown(str(error).splitlines()[0])}") from error
    return _of_delta(table, most_bytes)


def open_iceberg_metadata(path: str, most_bytes: int | None = None) -> dd.DataFrame:
    """Return a lazy frame of an Iceberg table by its metadata file (``….metadata.json``); see `open_table_format`.

    Raises
    ------
    MissingExtraError
        If pyiceberg is not installed.
    """
    try:
        from pyiceberg.table import StaticTable
    except ImportError as error:
        raise _missing(path, "the metadata of an Iceberg table", "pyiceberg", "iceberg") from error
    return _of_iceberg(StaticTable.from_metadata(path), most_bytes)


def _missing(path: str, what: str, library: str, extra: str) -> MissingExtraError:
    return MissingExtraError(
        f"{shown(path)} is {what}, and {library} is not installed; it comes with the extra: pip install 'dboost[{extra}]'"
    )


def name_of(data: Any) -> str:
    """Return the name of a table or scan, for messages."""
    if is_a(data, "deltalake", "DeltaTable"):
        return shown(data.table_uri)
    identifier = data.name() if hasattr(data, "name") else data.table_identifier
    return "the Iceberg table " + (".".join(identifier) if identifier else data.table_metadata.location)


def _as_pandas(table: Any) -> pd.DataFrame:
    return table.to_pandas(types_mapper=pd.ArrowDtype)


# Delta


def _of_delta(table: Any, most_bytes: int | None) -> dd.DataFrame:
    _check_delta(table)
    schema = pa.schema(table.schema().to_arrow())
    found = sorted(_delta_files(table, schema), key=lambda pair: natural_sort_key(pair[0].file.url))
    if not found:
        raise DataError(f"the Delta table {name_of(table)} has no rows")
    large = [part.file for part, size in found if most_bytes is not None or size > SMALL_BYTES]
    footers = dict(zip((file.url for file in large), read_footers(large, exact=most_bytes is not None), strict=True))
    parts = [
        one
        for part, _ in found
        for one in (parts_of(part, footers[part.file.url], most_bytes) if part.file.url in footers else [part])
    ]
    return dd.from_map(
        read_part,
        parts,
        names=schema.names,
        types=schema,
        meta=_as_pandas(schema.empty_table()),
        label="read-delta",
        enforce_metadata=False,
    )


def _check_delta(table: Any) -> None:
    """Raise a DataError for a table whose files do not have the rows and columns of its schema in a known way."""
    mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mode != "none":
        raise DataError(
            f"the Delta table {name_of(table)} maps column names (delta.columnMapping.mode={mode}), which dboost does not "
            "support: write it without, or pass its rows as a Dask or Arrow table"
        )
    unknown = set(table.protocol().reader_features or ()) - _DELTA_FEATURES
    if unknown:
        raise DataError(
            f"the Delta table {name_of(table)} needs features that dboost does not support: {', '.join(sorted(unknown))}"
        )


def _delta_files(table: Any, schema: pa.Schema) -> Iterator[tuple[ParquetPart, int]]:
    """Yield the files of the table's version with their bytes."""
    actions = pa.table(table.get_add_actions(flatten=True))
    uris = table.file_uris()
    names = [unquote(path) for path in actions["path"].to_pylist()]
    if len(uris) != len(names) or not all(uri.endswith(name) for uri, name in zip(uris, names, strict=True)):
        raise DataError(f"the files of the Delta table {name_of(table)} are not those of its log")
    # Of a URI the folder of the table is quoted, and the path in it is not.
    folders = [uri.removesuffix(name) for uri, name in zip(uris, names, strict=True)]
    deleted = _deleted_rows(table, [folder + path for folder, path in zip(folders, actions["path"].to_pylist(), strict=True)])
    constants = [name for name in actions.column_names if name.startswith(_PARTITION)]
    for i, (folder, name) in enumerate(zip(folders, names, strict=True)):
        of_file = {one.removeprefix(_PARTITION): actions[one][i].as_py() for one in constants}
        columns = {one: pa.array([value], schema.field(one).type) for one, value in of_file.items()}
        file = DataFile(unquote(folder) + name, None, "")  # by the protocol a file never changes
        yield ParquetPart(file, constants=columns, deleted=deleted.get(i)), actions["size_bytes"][i].as_py()


def _deleted_rows(table: Any, paths: list[str]) -> dict[int, np.ndarray]:
    """Return the positions of the rows in deletion vectors, by the number of the file. paths : quoted, as in the log."""
    numbers = {_plain(path): i for i, path in enumerate(paths)}
    found: dict[int, np.ndarray] = {}
    vectors = pa.RecordBatchReader.from_stream(table.deletion_vectors()).read_all()
    for path, kept in zip(vectors["filepath"].to_pylist(), vectors["selection_vector"], strict=True):
        number = numbers.get(_plain(path))
        if number is None or number in found:
            raise DataError(f"a deletion vector of the Delta table {name_of(table)} belongs to an unknown file: {shown(path)}")
        found[number] = np.flatnonzero(~kept.values.to_numpy(zero_copy_only=False))
    return found


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

    def __dask_tokenize__(self) -> Any:
        deletes = sorted(str(file.file_path) for file in self.task.delete_files)
        return self.task.file.file_path, deletes, repr(self.task.residual)


def _of_iceberg(data: Any, most_bytes: int | None) -> dd.DataFrame:
    scan = data.scan() if is_a(data, "pyiceberg.table", "Table") else data
    if scan.limit is not None:
        raise DataError(f"the scan of {name_of(data)} has limit={scan.limit}, which dboost does not support: use a row filter")
    with reading(data):
        tasks = sorted(scan.plan_files(), key=lambda task: natural_sort_key(task.file.file_path))
        schema = scan.projection()
        if most_bytes is not None:
            for task in tasks:
                _check_size(scan.io, task.file, LARGEST * most_bytes)
    if not tasks:
        raise DataError(f"{name_of(data)} has no rows")
    return dd.from_map(
        read_iceberg_file,
        [_IcebergFile(task) for task in tasks],
        scan=_IcebergScan(scan.table_metadata, scan.io, schema, scan.row_filter, scan.case_sensitive),
        meta=_as_pandas(schema.as_arrow().empty_table()),
        label="read-iceberg",
        enforce_metadata=False,
    )


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
            f"({most / 2**20:.1f} MiB), and files of Iceberg tables are read as a whole: rewrite the table with a smaller "
            "write.target-file-size-bytes, or raise the limit"
        )


def read_iceberg_file(file: _IcebergFile, *, scan: _IcebergScan, columns: list[str] | None = None) -> pd.DataFrame:
    """Return the rows of a file that are neither deleted nor filtered out, with columns of the scan's schema (default: all)."""
    from pyiceberg.io.pyarrow import ArrowScan

    with reading(file.task.file.file_path):
        names = [field.name for field in scan.schema.fields] if columns is None else columns
        # pyiceberg counts no rows without columns.
        schema = scan.schema.select(*(names or [scan.schema.fields[0].name]))
        found = ArrowScan(scan.metadata, scan.io, schema, scan.row_filter, scan.case_sensitive).to_table([file.task])
        return _as_pandas(found.select(names)) if names else pd.DataFrame(index=range(len(found)))


_log = logging.getLogger("dboost")

#: Bytes of a CSV block.
BLOCK_BYTES = 32 * 2**20
#: Minimum bytes of a block if memory is limited; the reader converts larger partitions in slices anyway.
LEAST_BLOCK_BYTES = 2**20
#: Bytes that are read at once from a CSV file to find out how its lines end.
_PIECE_BYTES = 2**16
#: Maximum size of a file of Iceberg as a multiple of the memory for the columns of a partition: the whole memory limit.
LARGEST = 4
#: Rows of the first file that determine which columns are text.
SAMPLE_ROWS = 1000


def open_path(
    path: Any,
    like: Sequence[Feature] | None = None,
    most_bytes: int | None = None,
    columns: Collection[str] | None = None,
) -> dd.DataFrame:
    """Return a lazy frame of the rows of a file, folder, glob, URL, or list of files, in the order of the file names.

    Parameters
    ----------
    path : path, URL, or list of them
        Also the folder of a Delta table, the metadata file of an Iceberg table, a `DeltaTable`, a table or scan of pyiceberg.
    like : sequence of Feature, optional
        Features of a model. CSV columns that are text features are read as text, also if they contain only digits.
    most_bytes : int, optional
        Target size of a partition: larger row groups of Parquet files are divided, and blocks of CSV files are not longer (but
        at least `LEAST_BLOCK_BYTES`).
    columns : collection of str, optional
        Columns that are used. Parquet files may differ in other columns. Default: those of `like`, or all.

    Raises
    ------
    DataError
        If there is no file (which is also a FileNotFoundError), a folder has no data files, the files are neither Parquet nor
        CSV, or Parquet files differ in a column that is used. The message names the path.
    """
    with reading(path):
        table = _table_format(path, most_bytes)
        if table is not None:
            return table
        root, parquet, text = _classified(path)
        if parquet:
            return open_parquet(parquet, root, most_bytes, _used(columns, like), like)
        return _read_csv(text, _text_of(like), _block_bytes(most_bytes), _used(columns, like))


def open_with_text(
    path: Any,
    like: Sequence[Feature] | None = None,
    most_bytes: int | None = None,
    n_threads: int | None = None,
    columns: Collection[str] | None = None,
) -> dd.DataFrame | None:
    """Return what `open_path` does, with all columns of CSV files as text that contain text in any block; None for others.

    Reads all files once.

    Parameters
    ----------
    path, like, most_bytes, columns : as in `open_path`
    n_threads : int, optional
        Default: as `concurrent.futures` selects it.
    """
    with reading(path):
        text = [] if is_table_format(path) or _table_path(path) else _classified(path)[2]
        if not text:
            return None
        blocks = list(_blocks(text, _block_bytes(most_bytes)))
        with ThreadPoolExecutor(n_threads) as threads:
            found = set[str]().union(*threads.map(_text_columns, blocks))
        _log.info(
            "columns of %s that contain text, and are read as text everywhere: %s", shown_path(path), ", ".join(sorted(found))
        )
        return _read_csv(text, found | _text_of(like), _block_bytes(most_bytes), _used(columns, like))


def _used(columns: Collection[str] | None, like: Sequence[Feature] | None) -> Collection[str] | None:
    """Return the columns that are used, as far as they are known."""
    return [one.name for one in like] if columns is None and like is not None else columns


def _table_format(path: Any, most_bytes: int | None) -> dd.DataFrame | None:
    """Return the frame of a Delta or Iceberg table; None if the path is none."""
    if is_table_format(path):
        return open_table_format(path, most_bytes)
    found = _table_path(path)
    if found is None:
        return None
    is_iceberg = found.endswith(ICEBERG)
    return (open_iceberg_metadata if is_iceberg else open_delta_folder)(found, most_bytes)


def _table_path(path: Any) -> str | None:
    """Return a path that is the folder of a Delta table, or the metadata file of an Iceberg table; else None."""
    items = items_of(path)
    if len(items) != 1:
        return None
    fs, root = fsspec.url_to_fs(items[0])
    return items[0] if root.endswith(ICEBERG) or fs.isdir(f"{root.rstrip('/')}/{DELTA_LOG}") else None


def _classified(path: Any) -> tuple[str, list[DataFile], list[DataFile]]:
    """Return the root (see `existing_files`), the Parquet and the CSV files of a path; one of the two lists is empty."""
    root, found = existing_files(path)
    parquet = [file for file in found if file.url.lower().endswith(PARQUET)]
    text = [file for file in found if file.url.lower().endswith(CSV)]
    if parquet and text:
        raise DataError(f"{shown_path(path)} holds both Parquet and CSV files: name one kind")
    if not (parquet or text):
        raise DataError(f"{shown_path(path)} is neither Parquet nor CSV: its name must end in .parquet, .csv or .csv.gz")
    return root, parquet, text


def _text_of(like: Sequence[Feature] | None) -> set[str]:
    """Return the names of a model's text features."""
    return {one.name for one in like or () if one.legal_kinds == (TEXT,)}


def _block_bytes(most_bytes: int | None) -> int:
    return BLOCK_BYTES if most_bytes is None else min(BLOCK_BYTES, max(most_bytes, LEAST_BLOCK_BYTES))


def _read_csv(
    files: list[DataFile], as_text: Container[str], block_bytes: int, columns: Collection[str] | None
) -> dd.DataFrame:
    """Return the frame of CSV files. columns : those that are used, None for all; others may occur more than once."""
    with unchanged(files[0]):
        with fsspec.open(files[0].url, "rb", compression="infer") as stream:
            names = next(csv.reader(io.StringIO(_header(stream).decode("utf-8-sig").strip("\r\n"), newline="")), [])
        repeated = [name for k, name in enumerate(names) if name and name in names[:k]]
        wrong = [name for name in repeated if columns is None or name in columns]
        if wrong:  # pandas would rename them
            raise DataError(f"{shown(files[0].url)} has several columns named {wrong[0]!r}")
        with fsspec.open(files[0].url, "rb", compression="infer") as stream:
            sample = _parse(stream, [], n_rows=SAMPLE_ROWS)
    sample = sample[[name for name in sample if name not in repeated and (not repeated or name in names)]]
    text = [name for name in sample if name in as_text or _is_text(sample[name])]
    sample = sample.astype(dict.fromkeys(text, "str"))
    blocks = list(_blocks(files, block_bytes))
    return dd.from_map(
        read_csv_block,
        [block[0] for block in blocks],
        [block[1] for block in blocks],
        [block[2] for block in blocks],
        text=text,
        meta=sample.iloc[:0],
        label="read-csv",
        enforce_metadata=False,
    )


def _blocks(files: Sequence[DataFile], block_bytes: int) -> Iterator[tuple[DataFile, int, int | None]]:
    """Yield file, start and length of each block."""
    return ((file, start, length) for file in files for start, length in _cut(file, block_bytes))


def _text_columns(block: tuple[DataFile, int, int | None]) -> set[str]:
    """Return the columns of a block that contain text."""
    frame = read_csv_block(*block, text=[])
    return {name for name in frame if _is_text(frame[name])}


def _is_text(column: pd.Series) -> bool:
    return bool(pd.api.types.infer_dtype(column, skipna=True) == "string")


def _cut(file: DataFile, block_bytes: int) -> list[tuple[int, int | None]]:
    """Return start and length of each block of a file; one block if it is compressed or has no line feeds in the first one."""
    if not file.url.lower().endswith(".csv"):
        return [(0, None)]
    size = file.size or 0
    if size > block_bytes:
        fs, name = fsspec.url_to_fs(file.url)
        with fs.open(name, "rb") as stream:
            if not any(b"\n" in stream.read(_PIECE_BYTES) for _ in range(0, block_bytes, _PIECE_BYTES)):
                return [(0, None)]
    return [(start, block_bytes) for start in range(0, max(size, 1), block_bytes)]


def read_csv_block(
    file: DataFile, start: int, length: int | None, *, text: list[str], columns: list[str] | None = None
) -> pd.DataFrame:
    """Return the rows whose lines begin in ``[start, start + length)`` of a file, with the columns of its header."""
    with unchanged(file), fsspec.open(file.url, "rb", compression="infer") as stream:
        header = _header(stream) if start else b""
        block = read_block(stream, start, length, delimiter=b"\n")
        content = io.BytesIO(header + block)
        _check_first_row(content)
        frame = _parse(content, text)
        return frame if columns is None else frame[columns]


def _check_first_row(content: io.BytesIO) -> None:
    """Raise an error if the first row has more fields than the header: pandas would take the first fields for an index.

    It checks the other rows itself.
    """
    start = (_header(content) + _header(content)).decode("utf-8-sig", errors="replace")
    content.seek(0)
    with suppress(csv.Error):  # a field of more than 128 KiB
        first = list(islice(filter(None, csv.reader(io.StringIO(start, newline=""))), 2))
        if len(first) == 2 and len(first[1]) > len(first[0]):
            raise pd.errors.ParserError("there are rows with more fields than the header (a comma at the end of each row?)")


def _header(stream: Any) -> bytes:
    """Return the lines up to the end of the header; a name in quotes may contain line feeds."""
    header = b""
    for line in stream:
        header += line
        if header.strip() and header.count(b'"') % 2 == 0:
            break
    return header


def _parse(stream: Any, text: list[str], n_rows: int | None = None) -> pd.DataFrame:
    # With low_memory, pandas determines the type of a column by pieces, which need not agree. With `usecols`, it does not count
    # the fields of a row.
    frame = pd.read_csv(stream, dtype=dict.fromkeys(text, "str"), nrows=n_rows, low_memory=False)
    types = set(text)
    for name in frame:
        if name in types or pd.api.types.is_numeric_dtype(frame[name].dtype):
            continue
        numbers = _as_numbers(frame[name])
        if numbers is not None:
            frame[name] = numbers
    return frame


#: Truth values as pandas reads them, with their numbers.
_TRUTH_VALUES = {word: number for number, words in enumerate(("False FALSE false", "True TRUE true")) for word in words.split()}


def _as_numbers(column: pd.Series) -> pd.Series | None:
    """Return a column as float64 if it has only numbers and truth values; else None.

    Pandas reads truth values beside numbers as text, and beside missing values as objects; in blocks of their own they are
    numbers. It reads integers beyond 64 bits as objects.
    """
    if pd.api.types.infer_dtype(column, skipna=True) in ("boolean", "integer"):  # integers beyond 64 bits are objects
        return column.astype(np.float64)
    if not _is_text(column):
        return None
    distinct = column.dropna().unique().tolist()
    words = [word for word in distinct if word not in _TRUTH_VALUES]
    if any(pd.to_numeric(pd.Series(some, dtype=object), errors="coerce").isna().any() for some in (words[:100], words)):
        return None
    values: dict[Any, float] = dict(_TRUTH_VALUES)
    if words:  # read as in other blocks, to the last bit
        read = pd.read_csv(io.StringIO("\n".join(words)), header=None, low_memory=False)[0]
        values |= dict(zip(words, pd.to_numeric(read).astype(np.float64), strict=True))
    return column.map(values).astype(np.float64)
