"""The leaf that every row reaches in a tree: for trees that were grown by some of the rows only.

A row walks down by table look-ups alone: which way a node sends each code is written out beforehand, and a leaf sends every
code back to itself, so that all rows take the same number of steps and no step has a branch to be guessed wrong.
"""

from __future__ import annotations

import numpy as np

from dboost.kernels import kernel

I = np.int64  # noqa: E741


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
