"""From a table to blocks in files: chunk by chunk, piece by piece; no more rows are in memory than a chunk and a block have.

The codes of a piece are made in columns, as everywhere, and go to the files in tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from dboost.binning import Binning
from dboost.errors import DataError
from dboost.kernels.bins import fill_tiles
from dboost.kernels.histograms import Layout
from dboost.shard.blocks import Traits, Writer
from dboost.shard.layout import tile_shape
from dboost.shard.loading import Encoder
from dboost.shard.shard import Codes, empty_codes
from dboost.sources import CategoryColumn, Chunk, Table


@dataclass(frozen=True, eq=False)
class Piece:
    """Some consecutive rows of those that are kept.

    chunk : their raw values; first, last : their numbers among those kept; codes : theirs, valid until the next piece.
    """

    chunk: Chunk
    first: int
    last: int
    codes: Codes


def encoded_pieces(
    table: Table, binning: Binning, layout: Layout, kept: np.ndarray | None, n_threads: int, piece_rows: int
) -> Iterator[Piece]:
    """The rows of a table, or those kept (int64, ascending), in pieces of at most `piece_rows` rows.

    Raises
    ------
    DataError
        When a numeric feature holds an infinite value, naming column and row.
    """
    codes = empty_codes(layout, piece_rows)
    start = position = 0
    with ThreadPoolExecutor(n_threads) as pool:
        encoder = Encoder(binning, codes, pool, n_threads)
        for i, length in enumerate(table.lengths):
            low, high = (0, length) if kept is None else np.searchsorted(kept, (start, start + length)).tolist()
            chunk = table.chunk(i) if low < high else None
            for first in range(low, high, piece_rows):
                assert chunk is not None
                last = min(first + piece_rows, high)
                rows: slice | np.ndarray = slice(first, last) if kept is None else kept[first:last] - start
                piece = some_rows(chunk, rows)
                infinite = encoder.encode(piece, None, 0)
                if infinite is not None:
                    row, feature = infinite
                    where = table.row_name(start + (first + row if kept is None else int(kept[first + row]) - start))
                    raise DataError(f"column {binning.features[feature].name!r} holds an infinite value ({where})")
                yield Piece(piece, position, position + last - first, codes.part(slice(0, last - first)))
                position += last - first
            start += length


def some_rows(chunk: Chunk, rows: slice | np.ndarray) -> Chunk:
    """Some rows of a chunk; of consecutive ones views."""
    matrix = None if chunk.matrix is None else chunk.matrix[rows]
    if matrix is not None:
        columns: tuple = tuple(matrix.T)
    else:
        columns = tuple(
            CategoryColumn(column.codes[rows], column.levels) if isinstance(column, CategoryColumn) else column[rows]
            for column in chunk.columns
        )
    n_rows = len(columns[0]) if columns else len(np.arange(chunk.n_rows)[rows])
    return Chunk(n_rows, columns, matrix=matrix)


def tiles_of(codes: Codes, layout: Layout) -> np.ndarray:
    """Codes in the order of the histogram kernel: uint64[n_tiles, n_rows, words]."""
    tiles = np.zeros(tile_shape(layout, codes.n_rows), np.uint64)
    fill_tiles(codes.narrow, layout, codes.row_of, 0, codes.n_rows, tiles.view(np.uint8))
    return tiles


#: Raw scores of a piece to start from: float64[n] or float64[n_outputs, n]
Scores = Callable[[Piece], np.ndarray]


def write_piece(
    writer: Writer, traits: Traits, piece: Piece, y: np.ndarray, weight: np.ndarray | None, raw: np.ndarray
) -> None:
    """Add a piece to the files.

    y, weight : float64[n] (weight None where rows are not weighted); raw : float64[n] or float64[n_outputs, n].
    """
    n = piece.last - piece.first
    fields = {"tiles": tiles_of(piece.codes, traits.layout), "target": y, "raw": raw}
    if len(piece.codes.wide):
        fields["wide"] = piece.codes.wide
    if traits.weighted:
        assert weight is not None
        fields["weight"] = weight
        if traits.has_times:
            fields["times"] = weight.astype(np.uint8)
        if traits.by_weight and not traits.constant_hessian:
            fields["hessian"] = np.broadcast_to(weight.astype(np.float32), raw.shape)
    elif traits.by_weight and not traits.constant_hessian:
        raise AssertionError("without weights, weights in the place of Hessians are constant")
    writer.append(n, fields)
