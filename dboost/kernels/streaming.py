"""One block of rows in one pass of a growing tree.

In a streamed shard rows are not gathered by node. A block is read, its rows are routed to the nodes that were split last, and
the rows of nodes that need a histogram are added to it, all while the block is in cache. Every row stores its node as a small
number, its *slot*: slot 0 is the root's, the left child of a split keeps its parent's slot, the right child gets a new one.

Histograms stay packed from block to block and are flushed when a field could overflow (`histograms.add_records`). Within a
block records are first grouped by slot, so that the buckets of one node at a time are in the fastest cache.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dboost.kernels import kernel
from dboost.kernels.histograms import HistogramRows, Histograms, add_records, flush
from dboost.kernels.rows import add_leaves, quantise

U = np.uint64
I = np.int64  # noqa: E741

#: Mask of the row number in a record.
ROW = U(0xFFFFFFFF)


class BlockRows(NamedTuple):
    """The rows of a block, for a pass of one tree."""

    codes: HistogramRows
    leaf: np.ndarray  # uint8 or int32[n_rows]: the rows' slots
    gradient: np.ndarray  # float32[n_rows]
    hessian: np.ndarray  # float32[n_rows], empty when it is 1 for all rows
    sampled: np.ndarray  # int64[n]: rows that take part in the tree, empty for all
    n: int  # number of rows that take part


class PairSums(NamedTuple):
    """The sibling pairs that need histograms, and the sums of their small children from block to block."""

    pair_of: np.ndarray  # int64[n_slots]: number of the pair of a slot, or -1
    packed: np.ndarray  # int64[n_pairs, n_words]: packed buckets
    histograms: Histograms  # float64[n_pairs, n_channels, n_buckets], by channel
    pending: np.ndarray  # int64[n_pairs], see `histograms.add_records`
    flushed: np.ndarray  # int64[n_pairs]
    cursors: np.ndarray  # uint64[3, n_slots], scratch: where the next record of a slot is written


@kernel
def route(tiles, wide, leaf, tile_of, column_of, follows):
    """Route rows to the children of their nodes.

    tiles : uint8[n_tiles, n, width]; wide : uint16[n_wide, n]; leaf : uint8 or int32[n], the rows' slots, updated; tile_of,
    column_of : int64[n_slots], the tile of a slot's split feature (-1 for a wide column) and its column there; follows : the
    same type as leaf [n_slots, n_codes], the slot to which each code leads (its own, where the node is not split).
    """
    if wide.shape[0] == 0:
        for i in range(leaf.size):
            slot = U(leaf[i])
            leaf[i] = follows[slot, tiles[U(tile_of[slot]), U(i), U(column_of[slot])]]
        return
    for i in range(leaf.size):
        slot = leaf[i]
        if tile_of[slot] >= 0:
            leaf[i] = follows[slot, tiles[tile_of[slot], i, column_of[slot]]]
        else:
            leaf[i] = follows[slot, wide[column_of[slot], i]]


@kernel
def sum_pairs(rows, scales, layout, packing, pairs, counts, records, scratch):
    """Count the rows of each slot, and add the rows of small children to their histograms.

    rows : BlockRows; scales : see `rows.quantise`; pairs : PairSums, updated; counts : int64[n_slots], added to; records :
    uint64[2, >= n], scratch; scratch : int64[n_codes].
    """
    codes, leaf, n = rows.codes, rows.leaf, rows.n
    pair_of, packed, histograms = pairs.pair_of, pairs.packed, pairs.histograms
    pending, flushed = pairs.pending, pairs.flushed
    ungrouped, grouped = records[0], records[1]
    n_slots = pair_of.size
    lower, upper, step = pairs.cursors[0], pairs.cursors[1], pairs.cursors[2]
    for slot in range(n_slots):
        lower[slot] = upper[slot] = step[slot] = U(0)
    quantise(rows.gradient, rows.hessian, rows.sampled, scales, 0, n, ungrouped)
    if n_slots == 1:
        # All records belong to the root: they need no grouping.
        counts[0] += n
        grouped, upper[0] = ungrouped, U(n)
    else:
        # The two halves of the block alternate: incrementing the same counter twice in a row would wait for the first store.
        half = U(n >> 1)
        for i in range(half):
            lower[leaf[ungrouped[i] & ROW]] += U(1)
            upper[leaf[ungrouped[i + half] & ROW]] += U(1)
        if n % 2 == 1:
            upper[leaf[ungrouped[n - 1] & ROW]] += U(1)
        # Records of nodes with a histogram are grouped; all others are written to the position behind them, one over the other.
        n_opened = U(0)
        for slot in range(n_slots):
            n_lower, n_of_slot = lower[slot], lower[slot] + upper[slot]
            counts[slot] += I(n_of_slot)
            if pair_of[slot] >= 0:
                lower[slot], upper[slot], step[slot] = n_opened, n_opened + n_lower, U(1)
                n_opened += n_of_slot
        for slot in range(n_slots):
            if step[slot] == 0:
                lower[slot] = upper[slot] = n_opened
        for i in range(half if n_opened > 0 else U(0)):
            lower_record, upper_record = ungrouped[i], ungrouped[i + half]
            slot, upper_slot = leaf[lower_record & ROW], leaf[upper_record & ROW]
            at, upper_at = lower[slot], upper[upper_slot]
            lower[slot], upper[upper_slot] = at + step[slot], upper_at + step[upper_slot]
            grouped[at], grouped[upper_at] = lower_record, upper_record
        if n % 2 == 1 and n_opened > 0:
            slot = leaf[ungrouped[n - 1] & ROW]
            grouped[upper[slot]] = ungrouped[n - 1]
            upper[slot] += step[slot]
    # The records of the next slot begin behind those of this slot's second half.
    first, columns = U(0), (I(0), I(layout.first.size - 1))
    for slot in range(n_slots):
        k, last = pair_of[slot], upper[slot]
        if k >= 0 and last > first:
            pending[k], flushed[k] = add_records(
                codes, grouped[I(first) : I(last)], layout, packing, columns, packed[k], histograms, k,
                (pending[k], flushed[k]), scratch,
            )  # fmt: skip
            first = last


@kernel
def finish_pairs(layout, packing, pairs, scratch):
    """Add the sums that are left in packed buckets to the histograms."""
    packed, histograms, flushed = pairs.packed, pairs.histograms, pairs.flushed
    for k in range(flushed.size):
        flush(layout, packing, (I(0), I(layout.first.size - 1)), I(0), packed[k], histograms, I(k), flushed[k] == 0, scratch)


@kernel
def finish_leaves(rows, scales, number_of, sums):
    """Replace slots by leaf numbers (number_of : as leaf [n_slots]), and add up exact sums by leaf (float64[n_leaves, 2])."""
    leaf, gradient, hessian, repeat_count = rows.leaf, rows.gradient, rows.hessian, rows.codes.repeat_count
    for i in range(leaf.size):
        leaf[i] = number_of[leaf[i]]
    add_leaves(leaf, gradient, hessian, repeat_count, rows.sampled, 0, rows.n, scales[2], scales[3], sums)
