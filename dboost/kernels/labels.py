"""The leaf that every row reaches in a tree: for trees that were grown by some of the rows only.

*Small trees: by masks.* A row carries one bit for each leaf, numbered from left to right. Every split that sends the row to
the right strikes out the leaves on its left; what is left over first is the row's leaf (Lucchese et al., "QuickScorer", 2015).
Splits are taken one after the other for a block of rows. The bits of a row are four bytes in four *planes*, because codes are
bytes too: a comparison and an "and" of neighbouring bytes are done for 32 rows at a time by processors that have 256 bits,
and a split touches only the planes in which it has leaves to strike out, mostly one.

*Large trees: by tables.* A row walks down by look-ups alone: which way a node sends each code is written out beforehand, and a
leaf sends every code back to itself, so that all rows take the same number of steps and no step has a branch to be guessed
wrong.
"""

from __future__ import annotations

import numpy as np

from dboost.kernels import kernel
from dboost.kernels.intrinsics import float64_to_bits

I = np.int64  # noqa: E741
I32, U8 = np.int32, np.uint8

#: Bytes of a mask.
N_PLANES = 4
#: Leaves that a mask has bits for (of 32, the highest is the sign).
MASK_LEAVES = 8 * N_PLANES - 1
#: Rows that are labelled together.
BLOCK = 2048


@kernel
def label_by_masks(codes, step, cut, missing, way, tables, struck, first_plane, last_plane, label, first, last, scratch, leaf):
    """leaf[i] = label of the leaf that row i reaches, for rows first…last-1 of a tree of at most `MASK_LEAVES` leaves.

    codes : uint8[n_narrow, n]; of each split, step : int64, which row of `codes` it looks at; cut : uint8, the last code that
    goes left; missing : uint8, the code of missing values; way : int64, 0 when these go right, 1 when they go left, 2 when
    a table says where codes go; tables : uint8[n_splits, 256], 0 (left) or 255 (right); struck : uint8[n_splits, N_PLANES],
    the bits of the leaves on the left; first_plane, last_plane : int64, in which planes these are; label : int64, of the leaf
    at each position from the left, or None where leaves are numbered like that; scratch : uint8[N_PLANES + 1, BLOCK];
    leaf : uint8 or int32[n].
    """
    for start in range(first, last, BLOCK):
        n = BLOCK if start + BLOCK < last else last - start
        for p in range(N_PLANES):
            plane = scratch[p, :n]
            for i in range(n):
                plane[i] = U8(255)
        right = scratch[N_PLANES, :n]
        for s in range(step.size):
            code = codes[step[s], start : start + n]
            at, gone = cut[s], missing[s]
            # All bits or none by arithmetic: of an "if" the compiler makes a jump for each row, which nobody can guess.
            if way[s] == 0:
                for i in range(n):
                    right[i] = U8(0) - U8(code[i] > at)
            elif way[s] == 1:
                for i in range(n):
                    right[i] = U8(0) - (U8(code[i] > at) & U8(code[i] != gone))
            else:
                table = tables[s]
                for i in range(n):
                    right[i] = table[code[i]]
            for p in range(first_plane[s], last_plane[s]):
                plane, bits = scratch[p, :n], struck[s, p]
                for i in range(n):
                    plane[i] &= ~(right[i] & bits)
        out = leaf[start : start + n]
        a, b, c, d = scratch[0, :n], scratch[1, :n], scratch[2, :n], scratch[3, :n]
        # The lowest bit alone is a power of two, whose exponent stands in the bits of a float64.
        if label is None:
            for i in range(n):
                mask = I32(a[i]) | (I32(b[i]) << I32(8)) | (I32(c[i]) << I32(16)) | (I32(d[i]) << I32(24))
                out[i] = (float64_to_bits(np.float64(I32(mask & -mask))) >> I(52)) - I(1023)
        else:
            for i in range(n):
                mask = I32(a[i]) | (I32(b[i]) << I32(8)) | (I32(c[i]) << I32(16)) | (I32(d[i]) << I32(24))
                out[i] = label[(float64_to_bits(np.float64(I32(mask & -mask))) >> I(52)) - I(1023)]


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
