"""From a table to bin codes: sample, propose bins, encode.

The raw values of each chunk are released before the next chunk is read. `encode_table` encodes a whole table into memory.
`encoded_pieces` encodes it slice by slice, so that one slice and one encoded block are all the rows in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from dboost.data import CategoryColumn, Chunk, Column, RowRoles, Table
from dboost.data.columns.binning import FEW, Binning, distinct_values, padded_edges
from dboost.data.columns.chunk import (
    BinnedPartition,
    CategoryIndex,
    DecodedColumns,
    MatrixColumns,
    float_dtype,
    native,
    plain,
    plain_blocks,
)
from dboost.data.columns.column import apply
from dboost.data.columns.roles import kept_rows, rows_of
from dboost.data.columns.sparse import SparseColumn
from dboost.errors import DataError
from dboost.kernels.bins import encode_column, encode_matrix
from dboost.kernels.histograms import BinLayout
from dboost.rows.shard import BinnedColumns, empty_binned_columns
from dboost.rows.shard_spec import NARROW_BINS, plan_layout
from dboost.schema import Feature

#: Tables with fewer rows are encoded by one thread.
_FEW_ROWS = 16_384
#: Bytes of a matrix that are transposed at a time.
_TRANSPOSED_BYTES = 1 << 17
#: Values that are looked up at a time.
_PIECE = 1 << 16


def distinct_of(table: Table, rows: np.ndarray) -> list[np.ndarray]:
    """Return the distinct values of the numeric columns in some rows (int64, ascending): float64[...] each."""
    known = [np.empty(0)] * sum(not feature.is_categorical for feature in table.features)
    for _, columns in sampled(table, rows):
        known = [distinct_values(column, before) for column, before in zip(columns, known, strict=True)]
    return known


def sampled(
    table: Table, rows: np.ndarray, numeric: Sequence[int] | None = None, n_threads: int = 1
) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Yield some rows (int64, ascending) of a table, chunk by chunk: the chunk's number and its numeric columns, or some of
    them."""
    if numeric is None:
        numeric = [j for j, feature in enumerate(table.features) if not feature.is_categorical]
    whole = len(rows) == table.n_rows
    start = 0
    for i, length in enumerate(table.lengths):
        low, high = np.searchsorted(rows, (start, start + length))
        if low < high:
            samples: list[list[np.ndarray]] = []
            for _, rows_of_chunk, chunk in table.slices(i, None if whole else rows[low:high] - start, numeric):
                local: Any = slice(None) if rows_of_chunk is None else rows_of_chunk
                if chunk.matrix is not None and not whole and 0 < len(numeric) == numeric[-1] + 1 - numeric[0]:
                    columns = _columns_of(chunk.matrix, local, slice(numeric[0], numeric[-1] + 1), n_threads)
                    samples.append(list(columns))
                else:
                    samples.append([chunk.columns[j][local] for j in numeric])  # type: ignore[index]
            yield i, samples[0] if len(samples) == 1 else [np.concatenate(column) for column in zip(*samples, strict=True)]
        start += length


def _columns_of(matrix: np.ndarray, rows: np.ndarray, columns_read: slice, n_threads: int) -> np.ndarray:
    """Return a range of columns of some rows of a matrix as contiguous arrays, transposed by blocks that stay in the cache."""
    wanted = matrix[:, columns_read]
    columns = np.empty((wanted.shape[1], len(rows)), native(matrix[:0]).dtype)
    n = max(_TRANSPOSED_BYTES // (wanted.shape[1] * matrix.itemsize), 1)
    # `take` is faster, but copies a matrix that is not contiguous, not aligned or of foreign byte order as a whole.
    takes = wanted.flags.c_contiguous and wanted.flags.aligned and wanted.dtype.isnative

    def transpose_rows(first: int, last: int) -> None:
        for start in range(first, last, n):
            piece = slice(start, min(start + n, last))
            columns[:, piece] = (np.take(wanted, rows[piece], axis=0) if takes else wanted[rows[piece]]).T

    def gather_rows(first: int, last: int) -> None:
        for column, values in zip(columns, wanted.T, strict=True):
            column[first:last] = values[rows[first:last]]

    by_columns = abs(matrix.strides[0]) < abs(matrix.strides[1])
    in_ranges(gather_rows if by_columns else transpose_rows, len(rows), n_threads)
    return columns


def encode_table(
    table: Table, binning: Binning, layout: BinLayout, kept: np.ndarray | None, n_threads: int, room: int = 0
) -> BinnedColumns:
    """Return the codes of all rows, or of the kept ones.

    room : number of rows that the arrays have room for at least; default only these.

    Raises
    ------
    DataError
        When a numeric feature holds an infinite value, naming column and row.
    """
    codes = empty_binned_columns(layout, max(table.n_rows if kept is None else len(kept), room))
    position = start = 0
    with ThreadPoolExecutor(n_threads) as pool:
        encoder = Encoder(binning, codes, pool, n_threads)
        for i, length in enumerate(table.lengths):
            rows = None
            if kept is not None:
                low, high = np.searchsorted(kept, (start, start + length))
                rows = kept[low:high] - start if high - low < length else None
            for first, rows_of_chunk, chunk in table.slices(i, rows) if length else ():
                infinite = encoder.encode(chunk, rows_of_chunk, position)
                if infinite is not None:
                    row, feature = infinite
                    where = table.place(start + first + row)
                    raise DataError(f"column {binning.features[feature].name!r} holds an infinite value ({where})").at(where)
                position += chunk.n_rows if rows_of_chunk is None else len(rows_of_chunk)
            start += length
    return codes


class Encoder:
    """Encodes one chunk after the other into the rows of `codes`."""

    def __init__(self, binning: Binning, codes: BinnedColumns, pool: ThreadPoolExecutor, n_threads: int) -> None:
        self._n_bins = binning.n_bins
        self._binning = binning
        self._narrow = [edge is not None and len(edge) < NARROW_BINS for edge in binning.edges]
        self._codes = codes
        self._pool = pool
        self._n_threads = n_threads
        self._edges = cache(partial(padded_edges, binning.edges))  # by dtype

    def encode(self, chunk: Chunk, rows: np.ndarray | None, position: int) -> tuple[int, int] | None:
        """Write codes from row `position` on; return (row in chunk, feature) of the first infinite value, or None."""
        matrix = chunk.matrix
        n = chunk.n_rows if rows is None else len(rows)
        if isinstance(chunk.columns, DecodedColumns):
            self._copy(chunk.columns, rows, slice(position, position + n))
            return None
        map_tasks = map if n * len(self._narrow) < FEW else self._pool.map
        if matrix is not None and all(self._narrow):
            infinite = self._encode_matrix(matrix, rows, position, map_tasks)
        else:
            tasks = ((feature, column, rows, slice(position, position + n)) for feature, column in enumerate(chunk.columns))
            results = map_tasks(self._encode_column, *zip(*tasks, strict=True))
            infinite = min((pair for pair in results if pair is not None), default=None)
        if infinite is not None and rows is not None:
            return int(rows[infinite[0]]), infinite[1]
        return infinite

    def _copy(self, columns: DecodedColumns, rows: np.ndarray | None, out: slice) -> None:
        """Copy the codes of rows that are binned already."""
        if columns.binning is not self._binning and not columns.binning.equals(self._binning):
            raise AssertionError("the rows are binned by other edges")

        def copy(feature: int) -> None:
            codes = columns.codes[feature]
            self._codes.of(feature)[out] = codes if rows is None else codes[rows]

        list(self._pool.map(copy, range(len(columns))))

    def _encode_matrix(
        self, matrix: np.ndarray, rows: np.ndarray | None, position: int, map_tasks: Callable[..., Any]
    ) -> tuple[int, int] | None:
        dtype, p = float_dtype(matrix.dtype), matrix.shape[1]
        edges, codes = self._edges(dtype), self._codes.narrow
        is_plain = rows is None and matrix.dtype == dtype and matrix.flags.carray

        def part(bounds: tuple[int, int]) -> int:
            if is_plain:
                return encode_matrix(matrix, edges, self._n_bins, codes, position, *bounds)
            for rows_of_block, block in plain_blocks(matrix, *bounds, rows):
                infinite = encode_matrix(block, edges, self._n_bins, codes, position + rows_of_block.start, 0, len(block))
                if infinite >= 0:
                    return rows_of_block.start * p + infinite
            return -1

        for position_of_infinity in map_tasks(part, _ranges(len(matrix) if rows is None else len(rows), self._n_threads)):
            if position_of_infinity >= 0:
                return divmod(position_of_infinity, p)
        return None

    def _encode_column(
        self, feature: int, column: np.ndarray | CategoryColumn, rows: np.ndarray | None, out: slice
    ) -> tuple[int, int] | None:
        """Encode a column in pieces, so that little memory is needed."""
        target = self._codes.of(feature)[out]
        if isinstance(column, CategoryColumn):
            local = column.codes if rows is None else column.codes[rows]
            target[:] = np.where(local < 0, self._n_bins[feature], local)
            return None
        encode = self._encode_piece if self._narrow[feature] else self._encode_wide_piece
        if isinstance(column, SparseColumn):
            return self._encode_sparse(feature, column if rows is None else column.some(rows), encode, target)
        for first in range(0, len(target), _PIECE):
            piece = slice(first, first + _PIECE)
            infinite = encode(feature, plain(column[piece if rows is None else rows[piece]]), target[piece])
            if infinite >= 0:
                return first + infinite, feature
        return None

    def _encode_sparse(
        self, feature: int, column: SparseColumn, encode: Callable[..., int], target: np.ndarray
    ) -> tuple[int, int] | None:
        """Write the code of the common value to all rows, and then those of the others."""
        codes = np.empty(len(column.values) + 1, target.dtype)
        infinite = encode(feature, plain(np.append(column.values, column.fill)), codes)
        target[:], target[column.rows] = codes[-1], codes[:-1]
        if infinite < 0:
            return None
        return int(column.rows[infinite]) if infinite < len(column.rows) else 0, feature

    def _encode_piece(self, feature: int, values: np.ndarray, target: np.ndarray) -> int:
        return encode_column(values, self._edges(values.dtype)[feature], self._n_bins[feature], target)

    def _encode_wide_piece(self, feature: int, values: np.ndarray, target: np.ndarray) -> int:
        """Encode numbers of a feature with more bins than a byte can hold."""
        edges = self._binning.edges[feature]
        assert edges is not None
        target[:] = np.where(np.isnan(values), self._n_bins[feature], np.searchsorted(edges, values, side="left"))
        infinite = np.flatnonzero(np.isinf(values))
        return int(infinite[0]) if len(infinite) else -1


def bin_chunk(chunk: Chunk, binning: Binning) -> tuple[BinnedPartition, Chunk, np.ndarray]:
    """Return the rows of positive weight of a chunk as bin codes, the chunk with codes of the features' categories, and the
    numbers of these rows.

    Raises
    ------
    DataError
        When a numeric feature holds an infinite value, naming column and row.
    """
    features, n = binning.features, chunk.n_rows
    matrix = None if any(feature.is_categorical for feature in features) else chunk.matrix
    known = Chunk(n, chunk.columns if matrix is not None else tuple(map(_of_feature, features, chunk.columns)), matrix=matrix)
    kept = kept_rows(chunk.roles.weight)
    rows = np.arange(n) if kept is None else kept
    codes = empty_binned_columns(plan_layout(binning.n_bins, binning.is_categorical), len(rows))
    with ThreadPoolExecutor(1) as pool:
        infinite = Encoder(binning, codes, pool, 1).encode(known, kept, 0)
    if infinite is not None:
        raise DataError(f"column {features[infinite[1]].name!r} holds an infinite value (row {infinite[0]})")
    return BinnedPartition(codes.columns(), chunk.roles.rows(rows)), known, rows


def _of_feature(feature: Feature, column: Column) -> Column:
    """Return a column of a chunk with the codes of a feature; a column of the other kind has missing values only."""
    is_category = isinstance(column, CategoryColumn)
    if feature.categories is None:
        return np.full(len(column), np.nan, np.float32) if is_category else column
    if not isinstance(column, CategoryColumn):
        return CategoryColumn(np.full(len(column), -1, np.int32), feature.categories)
    codes = CategoryIndex(feature.name, feature.categories).translate(column.categories)
    return CategoryColumn(apply(codes, column.codes), feature.categories)


def _ranges(n: int, n_ranges: int) -> Iterator[tuple[int, int]]:
    for k in range(n_ranges):
        if n * k // n_ranges < n * (k + 1) // n_ranges:
            yield n * k // n_ranges, n * (k + 1) // n_ranges


def in_ranges(work: Callable[[int, int], Any], n: int, n_threads: int) -> None:
    """Call work(first, last) for `n_threads` ranges at once, or for the whole range if there are few rows."""
    if n_threads == 1 or n < _FEW_ROWS:
        if n:
            work(0, n)
        return
    with ThreadPoolExecutor(n_threads) as pool:
        for done in [pool.submit(work, *bounds) for bounds in _ranges(n, n_threads)]:
            done.result()


@dataclass(frozen=True, eq=False)
class EncodedBlock:
    """Some encoded rows of positive weight, or some that were chosen.

    chunk : their raw values; roles : of the same rows; codes : valid until the next block; number : of the chunk of
    the table; rows : the rows of that chunk.
    """

    chunk: Chunk
    roles: RowRoles
    codes: BinnedColumns
    number: int
    rows: slice | np.ndarray


def encoded_pieces(
    table: Table,
    binning: Binning,
    layout: BinLayout,
    n_threads: int,
    piece_rows: int,
    *,
    allow_infinite: bool = False,
    chosen: np.ndarray | None = None,
) -> Iterator[EncodedBlock]:
    """Yield the rows of positive weight, or those of these numbers (int64, ascending), in blocks of at most `piece_rows` rows.

    Raises
    ------
    DataError
        When a numeric feature holds an infinite value (unless allowed), naming column and row.
    """
    codes = empty_binned_columns(layout, piece_rows)
    start = 0
    with ThreadPoolExecutor(n_threads) as pool:
        encoder = Encoder(binning, codes, pool, n_threads)
        for i, length in enumerate(table.lengths):
            if not length:
                continue
            roles = table.roles(i)
            if chosen is None:
                kept = kept_rows(roles.weight)
            else:
                kept = chosen[slice(*np.searchsorted(chosen, (start, start + length)))] - start
            for begin, rows_of_chunk, chunk in table.slices(i, kept):
                n = chunk.n_rows if rows_of_chunk is None else len(rows_of_chunk)
                for first in range(0, n, piece_rows):
                    last = min(first + piece_rows, n)
                    local: slice | np.ndarray = slice(first, last) if rows_of_chunk is None else rows_of_chunk[first:last]
                    rows = slice(begin + first, begin + last) if rows_of_chunk is None else rows_of_chunk[first:last] + begin
                    piece = some_rows(chunk, local)
                    infinite = encoder.encode(piece, None, 0)
                    if infinite is not None and not allow_infinite:
                        row, feature = infinite
                        where = table.place(start + int(np.arange(length)[rows][row]))
                        name = binning.features[feature].name
                        raise DataError(f"column {name!r} holds an infinite value ({where})").at(where)
                    yield EncodedBlock(piece, roles.rows(rows), codes.part(slice(0, last - first)), i, rows)
            start += length


def some_rows(chunk: Chunk, rows: slice | np.ndarray) -> Chunk:
    """Return some rows of a chunk; views if they are consecutive."""
    n_rows = len(np.arange(chunk.n_rows)[rows])
    if isinstance(chunk.columns, DecodedColumns):
        return Chunk(n_rows, chunk.columns.rows(rows))
    matrix = None if chunk.matrix is None else chunk.matrix[rows]
    if matrix is not None:
        return Chunk(n_rows, MatrixColumns(matrix), matrix=matrix)
    return Chunk(n_rows, tuple(rows_of(column, rows) for column in chunk.columns))
