"""The leaf that every row reaches in a tree: for trees that were grown by some of the rows only.

*Small trees: by masks.* A row carries one bit for each leaf, numbered from left to right. Every split that sends the row to
the right strikes out the leaves on its left; what is left over first is the row's leaf (Lucchese et al., "QuickScorer", 2015).
Splits are taken one after the other for a block of rows, so each is a comparison of neighbouring bytes and an "and" of
neighbouring words, which every processor does for many rows at a time: a tenth of the time of walking.

*Large trees: by tables.* A row walks down by look-ups alone: which way a node sends each code is written out beforehand, and a
leaf sends every code back to itself, so that all rows take the same number of steps and no step has a branch to be guessed
wrong.
"""

from __future__ import annotations

import numpy as np

from dboost.kernels import kernel
from dboost.kernels.intrinsics import float64_to_bits

I = np.int64  # noqa: E741

#: Leaves that a mask has bits for (of 32, the highest is the sign).
MASK_LEAVES = 31
#: Rows that are labelled together.
BLOCK = 2048


@kernel
def label_by_masks(codes, step, cut, missing, way, tables, spared, label, first, last, masks, leaf):
    """leaf[i] = label of the leaf that row i reaches, for rows first…last-1 of a tree of at most `MASK_LEAVES` leaves.

    codes : uint8[n_narrow, n]; of each split, step : int64, which row of `codes` it looks at; cut : uint8, the last code that
    goes left; missing : uint8, the code of missing values; way : int64, 0 when these go right, 1 when they go left, 2 when
    a table says where codes go; tables : int32[n_splits, 256], -1 (left) or the split's `spared`; spared : int32, all bits
    but those of the leaves on the left; label : leaf's number by position from the left; masks : int32[BLOCK], scratch;
    leaf : uint8 or int32[n].
    """
    everything = np.int32(-1)
    for start in range(first, last, BLOCK):
        n = BLOCK if start + BLOCK < last else last - start
        mask = masks[:n]
        for i in range(n):
            mask[i] = everything
        for s in range(step.size):
            code = codes[step[s], start : start + n]
            keep, at, gone = spared[s], cut[s], missing[s]
            if way[s] == 0:
                for i in range(n):
                    mask[i] &= keep if code[i] > at else everything
            elif way[s] == 1:
                for i in range(n):
                    mask[i] &= keep if (code[i] > at) & (code[i] != gone) else everything
            else:
                table = tables[s]
                for i in range(n):
                    mask[i] &= table[code[i]]
        out = leaf[start : start + n]
        for i in range(n):
            # The lowest bit alone is a power of two, whose exponent stands in the bits of a float64.
            lowest = mask[i] & -mask[i]
            out[i] = label[(float64_to_bits(np.float64(lowest)) >> I(52)) - I(1023)]


@kernel
def label_by_tables(codes, step, follows, label, depth, first, last, leaf):
    """leaf[i] = label of the leaf that row i reaches, for rows first…last-1.

    codes : uint8[n_narrow, n]; step : int64[n_nodes], which row of `codes` a node looks at (any in leaves);
    follows : uint8 or int32[n_nodes, 256], the node that each code goes to, of leaves themselves; label : int64[n_nodes];
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
