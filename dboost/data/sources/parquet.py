"""Parquet files as a source.

Every file is one partition or several: consecutive row groups of about the target size, and with a memory limit also ranges of
rows of a row group that is larger. Each partition is read on its own, with the types of its file; the reader
(`data/tables/reader.py`) makes the columns of all partitions consistent. So files may differ in types that mean the same (text
and dictionaries, integers and floats), and only names and kinds are compared here, by the footers.

**Size.** The bytes of a row are estimated for decoded columns, because encoded ones may be much smaller. Text is read as
dictionaries, so it takes a code per row besides its distinct values.

**Ranges of rows.** One process that reads all of them decodes a row group once, batch by batch, all columns side by side, where
the pages of all columns fit in half of the memory limit. Otherwise (many columns; a worker that reads some ranges only) a range
is decoded column by column from the beginning of the row group, and the rows before it are dropped: the memory is that of the
range, of one page of a column and of its dictionary, and the decoding is repeated for each range. With a memory limit whole row
groups are read column by column too, because Arrow's allocator keeps what decoding frees, several times the bytes of a column,
until it is told to release it.

**Footers** are read when the files are listed, and with each partition. They contain the positions, sizes and extremes of all
columns, so a file that was replaced has another one, also on another host (see `data.sources.files`).

**Columns in the names of folders** (``day=3/part-0.parquet``) are categorical: integers if all their values are (of 32 bits),
otherwise text, as in pandas. They replace columns of the same name in the files. A file that is not in such a folder has
missing values.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from fsspec.implementations.local import LocalFileSystem

from dboost._lazy_import import pa, pd
from dboost.data.sources import Parts
from dboost.data.sources.files import DataFile, changed, folder_columns, unchanged
from dboost.data.sources.row_filter import Extremes, RowFilter
from dboost.errors import DataError, shown
from dboost.files.filesystem import filesystem_of
from dboost.schema import TEXT, Feature
from dboost.tuning import tuning

#: Bytes that are read at once: from the end of a file, and of a column if memory is limited.
_PIECE_BYTES = 2**16
#: Files whose footers are read at the same time.
_FOOTERS_AT_ONCE = 32
#: Bytes of a page of a column, as all writers limit them by default.
_PAGE_BYTES = 2**20
#: Most rows that are decoded at once of a range of rows.
_BATCH_ROWS = 2**16
#: Names of columns in which pandas stores an index without a name.
_INDEX_LEVEL = re.compile(r"__index_level_\d+__")
#: Decoded bytes of a value, by physical type.
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8, "FIXED_LEN_BYTE_ARRAY": 16}


@dataclass(frozen=True, eq=False)
class ParquetPart:
    """Some rows of a file, and what its columns need besides."""

    file: DataFile
    #: Digest of the footer; empty if it was not read before.
    footer: str = ""
    #: Columns that have the same value in all rows, as arrays of one value.
    constants: dict[str, pa.Array] = field(default_factory=dict)
    #: Row groups; None for all.
    row_groups: tuple[int, ...] | None = None
    #: First and last row, exclusive, of the only row group; None for all.
    rows: tuple[int, int] | None = None
    #: Positions of deleted rows among these, or None.
    deleted: np.ndarray | None = None
    #: Whether to use as little memory as possible.
    sparing: bool = False
    #: Opens the file if it is none of fsspec.
    filesystem: Any = None
    #: Bytes in the file of the columns that are used; None if unknown.
    n_bytes: int | None = None

    #: Whether the row group of a range of rows is decoded once if its ranges are read in order: its decoders fit in memory.
    is_decoded_once: bool = False

    @property
    def shared(self) -> Any:
        """What is decoded once for all ranges of its rows that are read in order: the row group; None if nothing is."""
        return (self.file.url, self.row_groups) if self.is_decoded_once else None


@dataclass(frozen=True, eq=False)
class Footer:
    """What the footer of a file says, as far as it is needed."""

    schema: pa.Schema
    digest: str
    #: Rows and decoded bytes of each row group.
    row_groups: tuple[tuple[int, int], ...]
    #: Extremes of columns in each row group, as far as filters use them.
    extremes: tuple[dict[str, Extremes], ...] = ()
    #: Bytes of each row group in the file.
    stored: tuple[int, ...] = ()
    #: Memory for decoding the columns of each row group side by side.
    decoders: tuple[int, ...] = ()

    @property
    def n_rows(self) -> int:
        return sum(n for n, _ in self.row_groups)

    @cached_property
    def columns(self) -> list[str]:
        """Names of the columns, without those of the index."""
        index = set(_index_columns(self.schema))
        return [name for name in self.schema.names if name not in index and not _INDEX_LEVEL.fullmatch(name)]


def open_parquet(
    files: Sequence[DataFile],
    root: str,
    most_bytes: int | None,
    columns: Collection[str] | None,
    like: Sequence[Feature] | None = None,
    row_filter: RowFilter | None = None,
) -> Parts:
    """Return the rows of files.

    Parameters
    ----------
    files : sequence of DataFile
    root : str
        URL of the folder below which names of folders are columns.
    most_bytes : int, optional
        Bytes of the columns of a partition if memory is limited.
    columns : collection of str, optional
        Columns that are used. They must be in all files with rows, or in none, and be text in all or in none. Default: all.
    like : sequence of Feature, optional
        Features of a model, whose kinds the columns in the names of folders get.
    row_filter : RowFilter, optional
        Row groups without rows that it keeps are left out.

    Raises
    ------
    DataError
        If the files differ in a column that is used, or a file has several of the same name.
    """
    footers = read_footers(files, columns, exact=most_bytes is not None, filters=[row_filter] if row_filter else [])
    pairs = list(zip(files, footers, strict=True))
    filled = [pair for pair in pairs if pair[1].n_rows] or pairs[:1]
    repeated = _repeated(filled, columns)
    constants = _constants(root, pairs, like)
    for pair in filled[1:]:
        _check_same_columns(filled[0], pair, set(constants[0]), columns)
    whole = [
        ParquetPart(file, footer.digest, file_constants)
        for (file, footer), file_constants in zip(pairs, constants, strict=True)
    ]
    _, footer = filled[0]
    all_names = dict.fromkeys([*footer.columns, *(name for file_constants in constants for name in file_constants)])
    names = [name for name in all_names if name not in repeated]
    first_constants = constants[pairs.index(filled[0])]
    # Arrow cannot select rows of a string_view.
    fields = [field.with_type(pa.string()) if _is_text(field.type) else field for field in footer.schema]
    empty = pa.schema(fields, footer.schema.metadata).empty_table()
    meta = _frame(empty, first_constants, names, _index_columns(footer.schema))
    fields = [
        *(field for field in fields if field.name not in first_constants),
        *(pa.field(name, first_constants[name].type) for name in first_constants),
    ]
    possible = _possible(whole, footers, pa.schema(fields), [row_filter] if row_filter else [])
    parts = [
        part
        for file, footer, file_constants in zip(whole, footers, possible, strict=True)
        for part in parts_of(file, footer, most_bytes, file_constants)
    ]
    in_order = None if most_bytes is None else partial(read_in_order, names=names, most_bytes=most_bytes)
    return Parts(meta, parts, partial(read_part, names=names), "read-parquet", in_order)


def _repeated(pairs: Sequence[tuple[DataFile, Footer]], columns: Collection[str] | None) -> set[str]:
    """Return the names that several columns of a file have; raise a DataError if one of them is used."""
    repeated = {name for _, footer in pairs for name in footer.columns if footer.columns.count(name) > 1}
    for file, footer in pairs:
        wrong = [name for name in repeated if footer.columns.count(name) > 1 and (columns is None or name in columns)]
        if wrong:
            raise DataError(f"{shown(file.url)} has several columns named {wrong[0]!r}")
    return repeated


def _constants(
    root: str, pairs: Sequence[tuple[DataFile, Footer]], like: Sequence[Feature] | None
) -> list[dict[str, pa.Array]]:
    """Return, for each file, the columns that the names of its folders contain, unless the file has the column itself."""
    in_folders = folder_columns(root, [file for file, _ in pairs])
    constants = _typed(in_folders, like)
    for (_, footer), folder_values, file_constants in zip(pairs, in_folders, constants, strict=True):
        for name in file_constants.keys() - folder_values.keys() & set(footer.columns):
            del file_constants[name]
    return constants


def _typed(texts: Sequence[dict[str, str | None]], like: Sequence[Feature] | None) -> list[dict[str, pa.Array]]:
    """Return the columns in the names of folders as arrays of one value: of the same type for all files."""
    typed: list[dict[str, pa.Array]] = [{} for _ in texts]
    known = {feature.name: feature for feature in like or ()}
    for name in dict.fromkeys(name for file_values in texts for name in file_values):
        values = pa.array([file_values.get(name) for file_values in texts], pa.string())
        feature = known.get(name)
        kinds = [] if feature is not None and TEXT in feature.legal_kinds else [pa.int32()]
        is_number = feature is not None and not feature.is_categorical
        for kind in [*kinds, pa.float64()] if is_number else kinds:
            with suppress(pa.ArrowInvalid):
                values = values.cast(kind)
                break
        values = values if is_number else values.dictionary_encode()
        for k, file_values in enumerate(typed):
            file_values[name] = pa.array([values[k].as_py()], values.type)
    return typed


def read_footers(
    files: Sequence[DataFile],
    columns: Collection[str] | None = None,
    *,
    exact: bool,
    filters: Sequence[RowFilter] = (),
    filesystem: Any = None,
) -> list[Footer]:
    """Read the footers of files.

    columns : those that count in the sizes of row groups, default all; exact : whether to estimate decoded sizes; filters :
    those that use extremes; filesystem : as in `ParquetPart`.
    """

    skipping = [
        row_filter for row_filter in filters if not row_filter.is_polars
    ]  # the others may name columns that are not in the files

    def read(file: DataFile) -> Footer:
        with unchanged(file), _opened(file, _PIECE_BYTES, filesystem) as stream:
            metadata, digest = _footer_of(stream)
        groups = [metadata.row_group(k) for k in range(metadata.num_row_groups)]
        sizes = [_decoded_bytes(group, columns) if exact else group.total_byte_size for group in groups]
        rows = [group.num_rows for group in groups]
        schema = metadata.schema.to_arrow_schema()
        used = {name for row_filter in skipping for name in row_filter.columns(schema.names)}
        extremes = tuple(_extremes(group, schema, used) for group in groups)
        stored = tuple(sum(column.total_compressed_size for column in _used_columns(group, columns)) for group in groups)
        decoders = tuple(_decoder_bytes(group, columns) if exact else 0 for group in groups)
        return Footer(schema, digest, tuple(zip(rows, sizes, strict=True)), extremes, stored, decoders)

    with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as threads:
        return list(threads.map(read, files))


def _used_columns(group: Any, names: Collection[str] | None) -> Iterator[Any]:
    """Yield the metadata of columns of a row group. names : None for all."""
    for k in range(group.num_columns):
        column = group.column(k)
        path = column.path_in_schema
        if names is None or path in names or path.partition(".")[0] in names:
            yield column


def _decoded_bytes(group: Any, columns: Collection[str] | None) -> int:
    n_bytes = 0
    for column in _used_columns(group, columns):
        width = _WIDTHS.get(column.physical_type)
        n_bytes += column.num_values * (width or 4) + (0 if width else column.total_uncompressed_size)
    return n_bytes


def _extremes(group: Any, schema: pa.Schema, names: Collection[str]) -> dict[str, Extremes]:
    """Return the extremes of some columns in a row group, as far as its statistics have them."""
    extremes = {}
    for k in range(group.num_columns if names else 0):
        column = group.column(k)
        name = column.path_in_schema
        if name not in names or not column.is_stats_set:
            continue
        known, kind = column.statistics, schema.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if pa.types.is_floating(kind) or pa.types.is_nested(kind):
            continue
        has_missing = not known.has_null_count or known.null_count > 0
        if known.has_min_max:
            with suppress(pa.ArrowException, TypeError, ValueError):
                extremes[name] = Extremes(pa.scalar(known.min, kind), pa.scalar(known.max, kind), has_missing)
        elif known.has_null_count and known.null_count == group.num_rows:
            extremes[name] = Extremes(None, None, True)
    return extremes


def _possible(
    parts: Sequence[ParquetPart], footers: Sequence[Footer], schema: pa.Schema, filters: Sequence[RowFilter]
) -> list[np.ndarray]:
    """Return for each file which of its row groups may have rows that the filters keep. schema : of the table."""
    may_match = [np.ones(len(footer.row_groups), bool) for footer in footers]
    fields = [field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field for field in schema]
    kinds = {field.name: field.type for field in fields}
    for row_filter in filters:
        used = set(row_filter.columns(schema.names))
        known = []
        for part, footer in zip(parts, footers, strict=True):
            fixed = {
                name: _fixed(values[0], kinds[name])
                for name, values in part.constants.items()
                if name in used and not pa.types.is_floating(kinds[name])
            }
            for of_group in footer.extremes:
                cast = {name: _cast(extremes, kinds[name]) for name, extremes in of_group.items() if name in kinds}
                known.append({name: extremes for name, extremes in cast.items() if extremes is not None} | fixed)
        kept = row_filter.possible(known, pa.schema(fields))
        for file_groups, matches in zip(
            may_match, np.split(kept, np.cumsum([len(footer.row_groups) for footer in footers])[:-1]), strict=True
        ):
            file_groups &= matches
    return may_match


def _fixed(value: Any, kind: pa.DataType) -> Extremes:
    """Return the extremes of a column that has one value."""
    scalar = value.cast(kind)
    return Extremes(scalar, scalar, False) if scalar.is_valid else Extremes(None, None, True)


def _cast(extremes: Extremes, kind: pa.DataType) -> Extremes | None:
    """Return extremes with the type that a column has in the table; None if there are none of it."""
    if extremes.least is None or extremes.least.type == kind:
        return extremes
    if pa.types.is_floating(kind):
        return None
    with suppress(pa.ArrowException):
        return Extremes(extremes.least.cast(kind), extremes.largest.cast(kind), extremes.has_missing)
    return None


def parts_of_files(parts: Sequence[Any], schema: pa.Schema, most_bytes: int | None, filters: Sequence[RowFilter]) -> list[Any]:
    """Return parts with those that are Parquet files divided into parts of about the target size.

    A file that is known to be small is one part, and its footer is not read if nothing depends on it.
    schema : of the table; most_bytes : as in `open_parquet`; filters : row groups without rows that they keep are left out.
    """
    most_undivided = tuning().small_file_bytes if most_bytes is None and not filters else -1
    whole = [
        part for part in parts if isinstance(part, ParquetPart) and (part.n_bytes is None or part.n_bytes > most_undivided)
    ]
    footers: list[Footer] = []
    for filesystem, group in groupby(whole, key=lambda part: part.filesystem):
        files = [part.file for part in group]
        footers += read_footers(files, exact=most_bytes is not None, filters=filters, filesystem=filesystem)
    possible = _possible(whole, footers, schema, filters) if whole else []
    cut = {
        id(part): list(parts_of(replace(part, footer=footer.digest), footer, most_bytes, file_groups))
        for part, footer, file_groups in zip(whole, footers, possible, strict=True)
    }
    return [piece for part in parts for piece in cut.get(id(part), [part])]


def parts_of(
    part: ParquetPart, footer: Footer, most_bytes: int | None, possible: np.ndarray | None = None
) -> Iterator[ParquetPart]:
    """Yield the parts of a file: consecutive row groups, or rows of one.

    part : all rows of the file, or some row groups; most_bytes : as in `open_parquet`; possible : row groups that are needed.
    """
    part = replace(part, sparing=most_bytes is not None)
    chosen = np.ones(len(footer.row_groups), bool) if possible is None else possible.copy()
    if part.row_groups is not None:
        chosen &= np.isin(np.arange(len(chosen)), part.row_groups)
    limit = tuning().partition_bytes if most_bytes is None else most_bytes
    groups: list[int] = []
    first = n_rows = n_bytes = 0
    for k, (n, size) in enumerate(footer.row_groups):
        if groups and (n_bytes + size > limit or not chosen[k]):
            yield _some(part, (first, first + n_rows), row_groups=tuple(groups), n_bytes=sum(footer.stored[i] for i in groups))
            groups, first, n_rows, n_bytes = [], first + n_rows, 0, 0
        if not chosen[k]:
            first += n
            continue
        if most_bytes is not None and size > most_bytes:
            # All but the last are of the same length, so that each is a batch of the decoder.
            length = -(-n // min(-(-size // most_bytes), n))
            for a, b in pairwise([*range(0, n, length), n]):
                n_stored = footer.stored[k] * (b - a) // n
                once = footer.decoders[k] <= 2 * most_bytes
                yield _some(part, (first + a, first + b), row_groups=(k,), rows=(a, b), n_bytes=n_stored, is_decoded_once=once)
            first += n
            continue
        groups.append(k)
        n_rows, n_bytes = n_rows + n, n_bytes + size
    if len(groups) == len(footer.row_groups):
        yield replace(part, row_groups=None, n_bytes=sum(footer.stored))
    elif groups:
        yield _some(part, (first, first + n_rows), row_groups=tuple(groups), n_bytes=sum(footer.stored[i] for i in groups))


def _some(part: ParquetPart, span: tuple[int, int], **changes: Any) -> ParquetPart:
    """Return a part of a file. span : its first and last row, exclusive, in the file."""
    deleted = part.deleted
    if deleted is not None:
        deleted = deleted[slice(*np.searchsorted(deleted, span))] - span[0]
    return replace(part, deleted=deleted, **changes)


def read_part(
    part: ParquetPart, *, names: Sequence[str], types: pa.Schema | None = None, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """Return the rows of a part.

    names : the columns of the table; types : their types, which those of the files are converted to, and columns that a file
    does not have are missing; None: as they are. columns : those to read, default all.
    """
    wanted = list(names if columns is None else columns)
    with _opened_parquet(part, types, wanted) as (file, stored, index):
        table = _rows_of(file, part, [*stored, *index])
    return _frame_of_part(part, table, types, wanted, index)


def read_in_order(
    parts: Sequence[ParquetPart],
    *,
    names: Sequence[str],
    types: pa.Schema | None = None,
    columns: Sequence[str] | None = None,
    most_bytes: int,
) -> Iterator[pd.DataFrame]:
    """Yield the rows of parts as `read_part` returns them, but decode a row group that is cut into ranges only once.

    Its columns are decoded side by side then. Where the decoders of all columns would take more than half of the memory limit,
    each range is read by itself. most_bytes : as in `open_parquet`.
    """
    wanted = list(names if columns is None else columns)
    for run in _runs_of(parts):
        if len(run) == 1:
            yield read_part(run[0], names=names, types=types, columns=wanted)
            continue
        with _opened_parquet(run[0], types, wanted) as (file, stored, index):
            groups, spans = list(run[0].row_groups or ()), [part.rows for part in run if part.rows is not None]
            if stored and _decoder_bytes(file.metadata.row_group(groups[0]), stored) <= 2 * most_bytes:
                tables = _ranges_of(file, groups, spans, stored, max(last - first for first, last in spans))
            else:
                tables = (_rows_of(file, part, [*stored, *index]) for part in run)
            for part, table in zip(run, tables, strict=True):
                yield _frame_of_part(part, table, types, wanted, index)
                del table


def _runs_of(parts: Sequence[ParquetPart]) -> Iterator[list[ParquetPart]]:
    """Yield the parts in order; consecutive ranges of a row group together."""
    run: list[ParquetPart] = []
    for part in parts:
        before = run[-1] if run else None
        if before is not None and not (
            (part.file.url, part.row_groups) == (before.file.url, before.row_groups)
            and part.rows is not None
            and before.rows is not None
            and part.rows[0] == before.rows[1]
        ):
            yield run
            run = []
        run.append(part)
    if run:
        yield run


@contextmanager
def _opened_parquet(
    part: ParquetPart, types: pa.Schema | None, wanted: Sequence[str]
) -> Iterator[tuple[Any, list[str], list[str]]]:
    """Open the file of a part; yields it, and the names of the wanted columns and of those of the index that it stores."""
    from pyarrow import parquet as pq

    with unchanged(part.file), _opened(part.file, filesystem=part.filesystem) as stream:
        metadata, digest = _footer_of(stream)
        if part.footer not in ("", digest):
            raise changed(part.file)
        schema = metadata.schema.to_arrow_schema()
        stored = [name for name in wanted if name not in part.constants and name in schema.names]
        index = [] if part.sparing or types is not None else _index_columns(schema)
        memory = {"pre_buffer": False, "buffer_size": _PIECE_BYTES} if part.sparing else {"pre_buffer": True}
        text = [field.name for field in schema if _is_text(field.type) and field.name not in index]
        with pq.ParquetFile(stream, metadata=metadata, read_dictionary=text, **memory) as file:
            yield file, stored, index


def _frame_of_part(
    part: ParquetPart, table: pa.Table, types: pa.Schema | None, wanted: Sequence[str], index: Sequence[str]
) -> pd.DataFrame:
    """Return the rows of a part as a frame. table : the columns that the file stores."""
    if types is not None:
        table = _as_declared(table, types, wanted)
    frame = _frame(
        table, part.constants, [name for name in wanted if name in part.constants or name in table.schema.names], index
    )
    if part.deleted is not None and len(part.deleted):
        frame = frame.drop(index=part.deleted).reset_index(drop=True)
    return frame


def _decoder_bytes(group: Any, columns: Collection[str] | None) -> int:
    """Return the memory for decoding columns of a row group side by side: pages and dictionaries. columns : None for all."""
    n_bytes = 0
    for column in _used_columns(group, columns):
        first = column.dictionary_page_offset if column.has_dictionary_page else None
        dictionary = 0 if first is None else max(column.data_page_offset - first, 0)
        n_bytes += min(column.total_uncompressed_size, 2 * _PAGE_BYTES + dictionary)
    return n_bytes


def _ranges_of(
    file: Any, groups: list[int], spans: Sequence[tuple[int, int]], columns: list[str], batch_rows: int
) -> Iterator[pa.Table]:
    """Yield columns of consecutive ranges of rows of row groups; of a range that is a batch of Arrow without a copy.

    spans : first and last row, exclusive, of each range; batch_rows : most rows that are decoded at once.
    """
    before = spans[0][0]
    batches = file.iter_batches(batch_rows, groups, columns, use_threads=False)
    rest: Any = None
    for first, last in spans:
        pieces: list[Any] = []
        missing, is_cut = last - first, rest is not None
        while missing:
            batch, rest = next(batches) if rest is None else rest, None
            if batch.num_rows <= before:
                before -= batch.num_rows
                continue
            if before or batch.num_rows - before > missing:
                batch, rest = batch.slice(before, missing), batch.slice(before + missing)
                before, is_cut = 0, True
            pieces.append(batch)
            missing -= batch.num_rows
        if is_cut or len(pieces) > 1:  # a copy: slices would keep whole batches
            arrays = [pa.concat_arrays([piece.column(name) for piece in pieces]) for name in columns]
        else:
            arrays = [pieces[0].column(name) for name in columns]
        del pieces, batch
        yield pa.table(arrays, names=columns, metadata=file.schema_arrow.metadata)
        del arrays
        pa.default_memory_pool().release_unused()


def _rows_of(file: Any, part: ParquetPart, columns: list[str]) -> pa.Table:
    """Return columns of the rows of a part; without columns a table that only has rows."""
    groups = list(range(file.num_row_groups) if part.row_groups is None else part.row_groups)
    n_rows = sum(file.metadata.row_group(k).num_rows for k in groups) if part.rows is None else part.rows[1] - part.rows[0]
    if not columns:
        return pa.table({"": pa.nulls(n_rows)})
    if not part.sparing:
        table = file.read_row_groups(groups, columns, use_threads=False).select(columns)
        whole, schema = table.columns, table.schema
        del table
        for j, column in enumerate(whole):  # now, because converting the frame would need a second copy of all columns
            if column.num_chunks > 1 and pa.types.is_primitive(column.type):
                whole[j] = pa.chunked_array([pa.concat_arrays(column.chunks)])
        pa.default_memory_pool().release_unused()
        return pa.table(whole, schema=schema)
    arrays = {}
    for name in columns:
        if part.rows is None:
            arrays[name] = file.read_row_groups(groups, [name], use_threads=False)[name]
        else:
            (table,) = _ranges_of(file, groups, [part.rows], [name], min(_BATCH_ROWS, n_rows))
            arrays[name] = table[name]
        pa.default_memory_pool().release_unused()  # what decoding has freed: several times the size of the column
    return pa.table(arrays, metadata=file.schema_arrow.metadata)


def _as_declared(table: pa.Table, types: pa.Schema, wanted: Sequence[str]) -> pa.Table:
    """Return columns with the types of a table's schema; text may be a dictionary."""
    declared = {}
    for name in wanted:
        kind = types.field(name).type
        if name not in table.schema.names:
            declared[name] = pa.nulls(table.num_rows, kind)
        else:
            declared[name] = table[name] if _is_text(kind) and _is_text(table[name].type) else table[name].cast(kind)
    return pa.table({"": pa.nulls(table.num_rows)} | declared)


def _frame(table: pa.Table, constants: dict[str, pa.Array], names: Sequence[str], index: Sequence[str]) -> pd.DataFrame:
    """Return columns of a table, and constant ones, as a frame of Arrow types with the index that pandas has stored."""
    zeros = np.zeros(table.num_rows, np.int64)
    arrays = {name: constants[name].take(zeros) if name in constants else table[name] for name in names}
    for name in _pandas_categoricals(table.schema).intersection(arrays).difference(constants):
        if not pa.types.is_dictionary(arrays[name].type):
            arrays[name] = arrays[name].dictionary_encode()
    frame = pa.table(arrays).to_pandas(types_mapper=pd.ArrowDtype) if arrays else pd.DataFrame(index=range(table.num_rows))
    if index:
        return frame.set_axis(table.select(index).to_pandas().index)
    for stored in _of_pandas(table.schema, "index_columns"):
        if isinstance(stored, dict) and len(range(stored["start"], stored["stop"], stored["step"])) == len(frame):
            frame.index = pd.RangeIndex(stored["start"], stored["stop"], stored["step"], name=stored["name"])
    return frame


def _of_pandas(schema: pa.Schema, key: str) -> list[Any]:
    """Return a list of what pandas has stored of a frame; empty if another library has written the file."""
    described = (schema.metadata or {}).get(b"pandas")
    return [] if described is None else json.loads(described).get(key, [])


def _pandas_categoricals(schema: pa.Schema) -> set[str]:
    """Return the columns that were categorical in pandas; Parquet itself keeps that only for text."""
    return {column["field_name"] for column in _of_pandas(schema, "columns") if column["pandas_type"] == "categorical"}


def _index_columns(schema: pa.Schema) -> list[str]:
    """Return the names of the columns in which pandas has stored the index; a RangeIndex is no column."""
    return [name for name in _of_pandas(schema, "index_columns") if isinstance(name, str) and name in schema.names]


@contextmanager
def _opened(file: DataFile, piece_bytes: int | None = None, filesystem: Any = None) -> Iterator[Any]:
    """Open a file for Arrow. piece_bytes : how much of a file in a store is read at once; filesystem : see `ParquetPart`."""
    if filesystem is not None:
        with filesystem.open_input_file(file.url) as stream:
            yield stream
        return
    fs, name = filesystem_of(file.url)
    local = isinstance(fs, LocalFileSystem)
    options = {} if piece_bytes is None else {"block_size": piece_bytes}
    with pa.OSFile(name) if local else fs.open(name, "rb", **options) as stream:
        yield stream


def _footer_of(stream: Any) -> tuple[Any, str]:
    """Return the metadata of a Parquet file and a digest of its footer, with one request if it is small."""
    from pyarrow import parquet as pq

    size = stream.seek(0, 2)
    n_bytes = min(size, _PIECE_BYTES)
    stream.seek(size - n_bytes)
    tail = stream.read(n_bytes)
    length = int.from_bytes(tail[-8:-4], "little") + 8
    if n_bytes < length <= size:
        stream.seek(size - length)
        tail = stream.read(length)
    stream.seek(0)
    return pq.read_metadata(pa.BufferReader(tail)), hashlib.sha256(tail[-length:]).hexdigest()[:16]


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _check_same_columns(
    first: tuple[DataFile, Footer],
    other: tuple[DataFile, Footer],
    in_folders: Collection[str],
    columns: Collection[str] | None,
) -> None:
    """Raise a DataError if a column that is used is only in one of two files, or text in one and not in the other.

    in_folders : columns in the names of folders, which are not compared.
    """
    for (complete, mine), (lacking, theirs) in ((first, other), (other, first)):
        types = {column.name: column.type for column in theirs.schema}
        for column in mine.schema:
            name = column.name
            if name not in mine.columns or name in in_folders or (columns is not None and name not in columns):
                continue
            if name not in types:
                raise DataError(f"{shown(lacking.url)} has no column {name!r}, which {shown(complete.url)} has")
            if _is_text(column.type) and not _is_text(types[name]) and not pa.types.is_null(types[name]):
                raise DataError(f"column {name!r} holds text in {shown(complete.url)}, but not in {shown(lacking.url)}")
