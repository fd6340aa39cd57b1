"""From values to bin codes, and from bin codes to tiles.

The bin code of a value is the number of edges below it, so bin b holds the values in (edge[b-1], edge[b]] and a split after bin
b is the test ``value <= edge[b]``. Eight branch-free bisection steps find the code among at most 254 edges, padded with
infinity; up to three edges, as of one-hot columns, are simply counted.

Columns of float32 are compared with edges rounded down to float32, which gives the same codes: for a float32 x, ``x > edge``
and ``x > largest float32 <= edge`` are the same test.
"""

from __future__ import annotations

import numpy as np

from dboost.kernels import inlined, uncounted

U = np.uint64

#: Edges are padded to this many.
PADDED_EDGES = 255


@inlined
def _code(x, edges):
    p = U(0)
    p += U(128) if x > edges[p + U(127)] else U(0)
    p += U(64) if x > edges[p + U(63)] else U(0)
    p += U(32) if x > edges[p + U(31)] else U(0)
    p += U(16) if x > edges[p + U(15)] else U(0)
    p += U(8) if x > edges[p + U(7)] else U(0)
    p += U(4) if x > edges[p + U(3)] else U(0)
    p += U(2) if x > edges[p + U(1)] else U(0)
    p += U(1) if x > edges[p] else U(0)
    return p


@inlined
def _code_of_few(x, edges):
    """Return the same code where the fourth edge is infinite."""
    return U(x > edges[0]) + U(x > edges[1]) + U(x > edges[2])


@uncounted
def encode_column(values, edges, n_bins, codes):
    """Write the codes of one column. Return the position of the first infinite value, or -1.

    values : float32[n] or float64[n]; edges : the same dtype [255], ascending, padded with infinity;
    codes : uint8[n], missing values become n_bins.
    """
    infinite = -1
    missing, few = np.uint8(n_bins), edges[3] == np.inf
    for i in range(values.size):
        x = values[i]
        code = _code_of_few(x, edges) if few else _code(x, edges)
        codes[i] = np.uint8(code) if x == x else missing
        if abs(x) == np.inf and infinite < 0:
            infinite = i
    return infinite


@uncounted
def encode_matrix(values, edges, n_bins, codes, first, last):
    """Write the codes of rows first…last-1 of a matrix, by blocks of rows that stay in cache.

    values : float32[n, p] or float64[n, p]; edges : the same dtype [p, 255]; n_bins : int64[p]; codes : uint8[p, n].
    Return row * p + column of an infinite value, or -1.
    """
    infinite = -1
    p = values.shape[1]
    for start in range(first, last, 256):
        stop = start + 256 if start + 256 < last else last
        for j in range(p):
            column, edge, missing = codes[j], edges[j], np.uint8(n_bins[j])
            few = edge[3] == np.inf
            for i in range(start, stop):
                x = values[i, j]
                code = _code_of_few(x, edge) if few else _code(x, edge)
                column[i] = np.uint8(code) if x == x else missing
                if abs(x) == np.inf and infinite < 0:
                    infinite = i * p + j
    return infinite


@uncounted
def fill_tiles(codes, layout, code_row, first, last, tiles):
    """Copy codes (uint8[n_narrow, n_rows]) of rows first…last-1 into tiles (uint8[n_tiles, n_rows, width]).

    Features that share a column add up to a joint code. code_row : int64[n_features], the feature's row in `codes`.
    """
    for start in range(first, last, 512):
        stop = start + 512 if start + 512 < last else last
        for column in range(layout.n_tiled):
            tile = tiles[column // 32]
            at = column % 32
            begin, end = layout.first[column], layout.first[column + 1]
            source = codes[code_row[layout.features[begin]]]
            for i in range(start, stop):
                tile[i, at] = source[i]
            for k in range(begin + 1, end):
                feature = layout.features[k]
                source = codes[code_row[feature]]
                stride = np.uint8(layout.stride[feature])
                for i in range(start, stop):
                    tile[i, at] += np.uint8(source[i] * stride)
