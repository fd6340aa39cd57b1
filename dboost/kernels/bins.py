"""From values to bin codes, from bin codes to tiles, and from fine bins to proposed bins.

The bin code of a value is the number of edges below it, so bin b holds the values in (edge[b-1], edge[b]] and a split after bin
b is the test ``value <= edge[b]``. Eight branch-free bisection steps find the code among at most 254 edges, padded with
infinity; up to three edges, as of one-hot columns, are simply counted.

Columns of float32 are compared with edges rounded down to float32, which gives the same codes: for a float32 x, ``x > edge``
and ``x > largest float32 <= edge`` are the same test.

**Proposed bins** follow from the Hessians of a feature's fine bins (see `rows.bin_proposal`). `quantile_fine_bins` is the
rule: the same that proposes the bins of a whole table (`data.columns.binning`), in one pass over the fine bins. All
masses are integers in float64, so the result does not depend on the order of additions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dboost.kernels import inlined, internal, kernel
from dboost.kernels.records import record
from dboost.kernels.rows import ROUNDER
from dboost.kernels.splits import FEATURE, SPLIT_BIN, search_bounded, search_numeric

U = np.uint64

#: Edges are padded to this many.
PADDED_EDGES = 255


@inlined
def _code(x, edges):
    """Return the code of a value, the number of edges below it."""
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
    """Return the code of a value if there are at most three edges: the fourth one is infinite."""
    return U(x > edges[0]) + U(x > edges[1]) + U(x > edges[2])


@kernel
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


@kernel
def encode_matrix(values, edges, n_bins, codes, at, first, last):
    """Write the codes of rows first…last-1 of a matrix, by blocks of rows that stay in cache.

    values : float32[n, p] or float64[n, p]; edges : the same dtype [p, 255]; n_bins : int64[p]; codes : uint8[p, ...], row i
    of the matrix gets those at position at + i. Return row * p + column of an infinite value, or -1.
    """
    infinite = I(-1)
    p = values.shape[1]
    for start in range(first, last, 256):
        stop = start + 256 if start + 256 < last else last
        for j in range(p):
            column, edge, missing = codes[j], edges[j], np.uint8(n_bins[j])
            few = edge[3] == np.inf
            for i in range(start, stop):
                x = values[i, j]
                code = _code_of_few(x, edge) if few else _code(x, edge)
                column[at + i] = np.uint8(code) if x == x else missing
                if abs(x) == np.inf and infinite < 0:
                    infinite = i * p + j
    return infinite


@kernel
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


I = np.int64  # noqa: E741


@record
class ProposalBuffers(NamedTuple):
    """Buffers for the search of one node's bins."""

    last: np.ndarray  # int64[most]: the last fine bin of each bin
    histogram: np.ndarray  # float64[n_channels, most + 1]: the bins' sums


@internal
def _light_share(mass, most, total):
    """Return how many bins the fine bins share that are not heavy, the mass of these, and the mass above which one is heavy.

    Each heavy fine bin lowers the others' share, so more may become heavy.
    """
    n_heavy, bound = 0, np.inf
    while True:
        n_light = most - 2 * n_heavy
        share = total / max(n_light, 1)
        more, more_mass = 0, 0.0
        for fine_bin in range(mass.size):
            if 2.0 * share < mass[fine_bin] <= bound:
                more += 1
                more_mass += mass[fine_bin]
        if n_light <= 2 or more == 0 or 2 * (n_heavy + more) > most - 2:
            return n_light, total, bound
        n_heavy += more
        total -= more_mass
        bound = 2.0 * share


@internal
def quantile_fine_bins(mass, most, last):
    """Join fine bins to at most `most` bins of about equal mass; return how many bins there are.

    mass : float64[n_fine_bins], integers; last : int64[>= most], receives the last fine bin of each bin. Heavy fine bins, of
    more than two bins' mass, have a bin of their own, and the others divide the rest.
    """
    used, total, final = 0, 0.0, mass.size - 1
    for fine_bin in range(mass.size):
        if mass[fine_bin] > 0.0:
            used += 1
            total += mass[fine_bin]
            final = fine_bin
    if used <= most:
        n = 0
        for fine_bin in range(mass.size):
            if mass[fine_bin] > 0.0:
                last[n] = fine_bin
                n += 1
        if n == 0:
            last[0] = final
        return max(n, 1)

    n_light, total, bound = _light_share(mass, most, total)
    n, k, running = 0, 1, 0.0
    before, ended = -1, -1  # the fine bin before this one, and the last one that ends a bin
    for fine_bin in range(mass.size):
        if mass[fine_bin] <= 0.0:
            continue
        ends = False
        if mass[fine_bin] > bound:
            ends = True
            if before >= 0 and before != ended and n < most - 1:
                last[n] = ended = before
                n += 1
        else:
            running += mass[fine_bin]
            while k < n_light and running >= total * k / max(n_light, 1):
                ends = True
                k += 1
        # Nothing lies above the last fine bin: a bin that ends there ends one earlier.
        at = before if fine_bin == final else fine_bin
        if ends and at >= 0 and at != ended and n < most - 1:
            last[n] = ended = at
            n += 1
        before = fine_bin
    last[n] = final
    return n + 1


@kernel
def propose_fine_bins(mass, n_fine_bins, most, last):
    """Propose bins of some features; features with fewer fine bins than bins keep them.

    mass : float64[...], the fine bins of one feature after the other, each with one more for missing values; n_fine_bins :
    int64[n_features]; most : int64[n_features], largest number of bins; last : int64[n_features, >= most], receives the last
    fine bin of each bin, and in unused entries the feature's last fine bin.
    """
    at = 0
    for feature in range(n_fine_bins.size):
        n = n_fine_bins[feature]
        n_edges = quantile_fine_bins(mass[at : at + n], most[feature], last[feature])
        # Rows that did not take part may lie above all that did.
        for k in range(n_edges - 1, last.shape[1]):
            last[feature, k] = n - 1
        at += n + 1


@kernel
def add_masses(codes, hessian, repeat_count, rows, first, last, scale, mass):
    """Add up quantised Hessians by code, over rows first…last-1 or rows[first], …: rounded as in histograms (`rows.quantise`).

    codes : uint8[n] or uint16[n]; hessian : float32[n], empty for 1 each; repeat_count : uint8[n], empty for once; rows :
    int64[...], empty for all; mass : int64[n_codes], added to.
    """
    by = np.float32(scale)
    for at in range(first, last):
        i = rows[at] if rows.size > 0 else I(at)
        h = np.int32(1)
        if hessian.size > 0:
            h = np.int32((hessian[i] * by + ROUNDER) - ROUNDER)
            h = h if h > np.int32(1) else np.int32(1)
        whole = I(h)
        if repeat_count.size > 0:
            whole *= I(repeat_count[i])
        mass[codes[i]] += whole


@internal
def search_proposed(histogram, at, n_fine_bins, feature, direction, total, limits, buffers, scratch, best):
    """Improve `best` by the best split of a numeric feature between bins that are proposed from this node's own rows.

    histogram : the node's sums by fine bin; direction : int8[n_features] or None; buffers : ProposalBuffers. SPLIT_BIN is a
    fine bin, as everywhere.
    """
    most = buffers.histogram.shape[1] - 1
    n = quantile_fine_bins(histogram[1, at : at + n_fine_bins], most, buffers.last)
    for channel in range(histogram.shape[0]):
        fine_bin = 0
        for b in range(n):
            s = 0.0
            while fine_bin <= buffers.last[b]:
                s += histogram[channel, at + fine_bin]
                fine_bin += 1
            buffers.histogram[channel, b] = s
        buffers.histogram[channel, n] = histogram[channel, at + n_fine_bins]
    if direction is not None:
        search_bounded(buffers.histogram, 0, n, feature, direction[feature], total, limits, best)
    else:
        search_numeric(buffers.histogram, 0, n, feature, total, limits, scratch, best)
    if best[FEATURE] == feature:
        best[SPLIT_BIN] = buffers.last[I(best[SPLIT_BIN])]
