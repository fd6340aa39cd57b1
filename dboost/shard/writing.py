"""From a table to codes in pieces: slice by slice of its chunks, so that a slice and a piece are all the rows in memory.

The codes of a piece are made in columns, as everywhere, and go to files in tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from dboost.binning import Binning
from dboost.errors import DataError
from dboost.kernels.bins import fill_tiles
from dboost.kernels.histograms import Layout
from dboost.shard.layout import tile_shape
from dboost.shard.loading import Encoder, kept_rows
from dboost.shard.shard import Codes, empty_codes
from dboost.sources import CategoryColumn, Chunk, Column, Table

Roles = tuple[Column | None, np.ndarray | None, np.ndarray | None]


@dataclass(frozen=True, eq=False)
class Piece:
    """Some rows of positive weight, or some that were chosen.

    chunk : their raw values; roles : target, weight and offset; codes : valid until the next piece; number : of the chunk that
    they are from; rows : which of its rows they are.
    """

    chunk: Chunk
    roles: Roles
    codes: Codes
    number: int
    rows: slice | np.ndarray


def encoded_pieces(
    table: Table,
    binning: Binning,
    layout: Layout,
    n_threads: int,
    piece_rows: int,
    *,
    allow_infinite: bool = False,
    chosen: np.ndarray | None = None,
) -> Iterator[Piece]:
    """The rows of positive weight, or those of these numbers (int64, ascending), in pieces of at most `piece_rows` rows.

    Raises
    ------
    DataError
        When a numeric feature holds an infinite value (unless allowed), naming column and row.
    """
    codes = empty_codes(layout, piece_rows)
    start = 0
    with ThreadPoolExecutor(n_threads) as pool:
        encoder = Encoder(binning, codes, pool, n_threads)
        for i, length in enumerate(table.lengths):
            if not length:
                continue
            roles = table.roles(i)
            if chosen is None:
                kept = kept_rows(roles[1])
            else:
                kept = chosen[slice(*np.searchsorted(chosen, (start, start + length)))] - start
            for begin, some, chunk in table.slices(i, kept):
                n = chunk.n_rows if some is None else len(some)
                for first in range(0, n, piece_rows):
                    last = min(first + piece_rows, n)
                    local: slice | np.ndarray = slice(first, last) if some is None else some[first:last]
                    rows = slice(begin + first, begin + last) if some is None else some[first:last] + begin
                    piece = some_rows(chunk, local)
                    infinite = encoder.encode(piece, None, 0)
                    if infinite is not None and not allow_infinite:
                        row, feature = infinite
                        where = table.row_name(start + int(np.arange(length)[rows][row]))
                        raise DataError(f"column {binning.features[feature].name!r} holds an infinite value ({where})")
                    own: Any = tuple(_of(role, rows) for role in roles)
                    yield Piece(piece, own, codes.part(slice(0, last - first)), i, rows)
            start += length


def some_rows(chunk: Chunk, rows: slice | np.ndarray) -> Chunk:
    """Some rows of a chunk; of consecutive ones views."""
    matrix = None if chunk.matrix is None else chunk.matrix[rows]
    columns = tuple(matrix.T) if matrix is not None else tuple(_of(column, rows) for column in chunk.columns)
    return Chunk(len(np.arange(chunk.n_rows)[rows]), columns, matrix=matrix)  # type: ignore[arg-type]


def _of(column: Column | None, rows: slice | np.ndarray) -> Column | None:
    if isinstance(column, CategoryColumn):
        return CategoryColumn(column.codes[rows], column.levels)
    return None if column is None else column[rows]


def tiles_of(codes: Codes, layout: Layout) -> np.ndarray:
    """Codes in the order of the histogram kernel: uint64[n_tiles, n_rows, words]."""
    tiles = np.zeros(tile_shape(layout, codes.n_rows), np.uint64)
    fill_tiles(codes.narrow, layout, codes.row_of, 0, codes.n_rows, tiles.view(np.uint8))
    return tiles


def codes_of(tiles: np.ndarray, wide: np.ndarray | None, layout: Layout, codes: Codes) -> None:
    """The other way round: write the codes of some rows, by columns, from tiles (uint64[n_tiles, n_rows, words])."""
    as_bytes = tiles.view(np.uint8)
    for column in range(layout.n_tiled):
        joint = as_bytes[column // 32, :, column % 32]
        for k in range(int(layout.first[column]), int(layout.first[column + 1])):
            feature = int(layout.features[k])
            n_codes, stride = int(layout.n_bins[feature]) + 1, int(layout.stride[feature])
            alone = stride == 1 and int(layout.repeats[feature]) == 1
            codes.of(feature)[:] = joint if alone else joint // stride % n_codes
    if wide is not None:
        codes.wide[...] = wide
