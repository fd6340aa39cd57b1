"""The leaf that every row reaches in a tree: for trees that were grown on some of the rows only.

*Small trees: masks.* A row has one bit for each leaf, numbered from left to right. Every split that sends the row to the right
clears the bits of the leaves on its left; the lowest bit that is left is the row's leaf (Lucchese et al., "QuickScorer", 2015).
Splits are applied one after the other to a block of rows. The bits of a row are four bytes in four *bit planes*, because codes
are bytes too: a comparison and an "and" of neighbouring bytes are done for 32 rows at a time by processors with 256-bit
vectors, and a split touches only the bit planes in which it has leaves to clear, mostly one.

*Large trees: tables.* A row is routed by table look-ups alone: the next node for each node and code is computed beforehand, and
a leaf leads back to itself for every code, so that all rows take the same number of steps and no step has an unpredictable
branch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dboost.kernels import kernel

I = np.int64  # noqa: E741
U8 = np.uint8

#: Bit planes: bytes of a mask.
N_PLANES = 4
#: Number of leaves for which a mask has bits.
MASK_LEAVES = 8 * N_PLANES
#: The record of a split: see `label_by_masks`.
STEP, AFTER, N_RIGHT, IS_TABLE, N_STEPS = range(5)
#: Rows that are labelled together.
BLOCK = 2048


class MaskSplits(NamedTuple):
    """The splits of a tree, in the form that `label_by_masks` reads."""

    #: int64[N_STEPS, MASK_LEAVES]: of each split, its row of codes, the first code that goes right, and how many consecutive
    #: codes do; or that a table decides.
    steps: np.ndarray
    tables: np.ndarray  # uint8[MASK_LEAVES, 256]: 0 (left) or 255 (right)
    struck: np.ndarray  # uint8[MASK_LEAVES, N_PLANES]: the bits of the leaves on the left


def new_mask_splits() -> MaskSplits:
    """Return uninitialised arrays for a tree of at most `MASK_LEAVES` leaves."""
    return MaskSplits(
        steps=np.empty((N_STEPS, MASK_LEAVES), np.int64),
        tables=np.empty((MASK_LEAVES, 256), np.uint8),
        struck=np.empty((MASK_LEAVES, N_PLANES), np.uint8),
    )


@kernel
def prepare_masks(nodes, n, leaf_of, left_codes, layout, code_row, below, leaves, splits):
    """Write a tree's splits in the form that `label_by_masks` reads. Return their number, or -1 when a code has two bytes.

    nodes : `trees.nodes.NodeArrays` of n nodes; leaf_of : int64[>= n], numbers of leaves from left to right; left_codes :
    uint8[>= n, n_codes]; layout : BinLayout; code_row : int64[n_features]; below, leaves : int64[n], scratch: the first leaf
    below each node, and their number; splits : MaskSplits, receives the splits.
    """
    child, feature, split_bin, missing_left = nodes.child, nodes.feature, nodes.split_bin, nodes.missing_left
    n_bins, is_categorical = layout.n_bins, layout.is_categorical
    steps, tables, struck = splits.steps, splits.tables, splits.struck
    # Children come after their parents.
    for node in range(n - 1, -1, -1):
        left = child[node]
        below[node] = leaf_of[node] if left < 0 else below[left]
        leaves[node] = 1 if left < 0 else leaves[left] + leaves[left + 1]
    s = 0
    for node in range(n):
        left = child[node]
        if left < 0:
            continue
        f = feature[node]
        if code_row[f] < 0:
            return -1
        # A split after the last bin sends all values left.
        after = min(split_bin[node] + 1, n_bins[f])
        is_table = is_categorical[f] != 0
        steps[STEP, s] = code_row[f]
        steps[AFTER, s] = after
        steps[N_RIGHT, s] = n_bins[f] + (0 if missing_left[node] != 0 else 1) - after
        steps[IS_TABLE, s] = is_table
        if is_table:
            for code in range(n_bins[f]):
                tables[s, code] = 0 if left_codes[node, code] != 0 else 255
            tables[s, n_bins[f]] = 0 if missing_left[node] != 0 else 255
        bits = ((I(1) << leaves[left]) - I(1)) << below[node]
        for p in range(N_PLANES):
            struck[s, p] = (bits >> I(8 * p)) & I(255)
        s += 1
    return s


@kernel
def label_by_masks(codes, splits, n_splits, first, last, scratch, leaf):
    """Write the leaf that each of rows first…last-1 reaches, in a tree of at most `MASK_LEAVES` leaves.

    codes : uint8[n_narrow, n]; splits : MaskSplits; scratch : uint8[N_PLANES + 1, BLOCK]; leaf : uint8 or int32[n].
    """
    steps, tables, struck = splits.steps, splits.tables, splits.struck
    for start in range(first, last, BLOCK):
        n = BLOCK if start + BLOCK < last else last - start
        for p in range(N_PLANES):
            plane = scratch[p, :n]
            for i in range(n):
                plane[i] = U8(255)
        right = scratch[N_PLANES, :n]
        for s in range(n_splits):
            code = codes[steps[STEP, s], start : start + n]
            is_table = steps[IS_TABLE, s] != 0
            after, n_right = U8(steps[AFTER, s]), U8(steps[N_RIGHT, s])
            if is_table:
                table = tables[s]
                for i in range(n):
                    right[i] = table[code[i]]
            for p in range(N_PLANES):
                if struck[s, p] == 0:
                    continue
                plane, stay = scratch[p, :n], U8(~struck[s, p])
                # All bits or none by arithmetic: for an "if" the compiler emits an unpredictable jump per row.
                # One comparison: codes below `after` wrap around and are large.
                if is_table:
                    for i in range(n):
                        plane[i] &= ~right[i] | stay
                else:
                    for i in range(n):
                        plane[i] &= (U8(U8(code[i] - after) < n_right) - U8(1)) | stay
        # The first bit plane that is not zero, then its lowest bit, by bisection: all in bytes.
        found = scratch[N_PLANES - 1, :n]
        for i in range(n):
            right[i] = U8(8 * N_PLANES - 8)
        for p in range(N_PLANES - 2, -1, -1):
            plane, base = scratch[p, :n], U8(8 * p)
            for i in range(n):
                some = U8(0) - U8(plane[i] != 0)
                found[i] = (plane[i] & some) | (found[i] & ~some)
                right[i] = (base & some) | (right[i] & ~some)
        for i in range(n):
            lowest = U8(found[i] & (U8(0) - found[i]))
            half, quarter, eighth = lowest & U8(0xF0), lowest & U8(0xCC), lowest & U8(0xAA)
            right[i] += U8(half != 0) * U8(4) + U8(quarter != 0) * U8(2) + U8(eighth != 0)
        out = leaf[start : start + n]
        for i in range(n):
            out[i] = right[i]


@kernel
def label_by_tables(codes, step, follows, label, depth, first, last, leaf):
    """Write the label of the leaf that each of rows first…last-1 reaches.

    codes : uint8[n_narrow, n]; step : int64[n_nodes], the row of `codes` that a node tests (any in leaves);
    follows : uint8 or int32[n_nodes, 256], the next node for each code, for leaves the leaf itself; label : int64[n_nodes];
    depth : steps from the root to the deepest leaf; leaf : uint8 or int32[n].
    """
    quarter = (last - first) >> 2
    # Four rows at a time: while one waits for memory, others compute.
    for i in range(first, first + quarter):
        j, k, m = i + quarter, i + 2 * quarter, i + 3 * quarter
        a = b = c = d = I(0)
        for _ in range(depth):
            a = I(follows[a, codes[step[a], i]])
            b = I(follows[b, codes[step[b], j]])
            c = I(follows[c, codes[step[c], k]])
            d = I(follows[d, codes[step[d], m]])
        leaf[i], leaf[j], leaf[k], leaf[m] = label[a], label[b], label[c], label[d]
    for i in range(first + 4 * quarter, last):
        a = I(0)
        for _ in range(depth):
            a = I(follows[a, codes[step[a], i]])
        leaf[i] = label[a]
