"""Sending coded rows down a finished tree: for rows that did not take part in growing it (held-out sets, catching up)."""

from __future__ import annotations

import numpy as np

from dboost.kernels import kernel

U = np.uint64


@kernel
def add_tree(
    codes, wide_codes, code_row, feature, cut, missing_left, child, n_bins, left_codes, is_categorical, value, first, last, raw
):  # fmt: skip
    """raw[i] += value of the leaf that row i reaches, for rows first…last-1.

    codes : uint8[n_narrow, n]; wide_codes : uint16[n_wide, n]; the node arrays as in `growth.frontier.Frontier`;
    left_codes : uint8[n_nodes, n_codes], used by categorical splits; value : float64[n_nodes].
    """
    for i in range(first, last):
        node = 0
        while child[node] >= 0:
            f = feature[node]
            row = code_row[f]
            code = np.int64(codes[row, i]) if row >= 0 else np.int64(wide_codes[-1 - row, i])
            if code == n_bins[f]:
                left = missing_left[node] != 0
            elif is_categorical[f] != 0:
                left = left_codes[node, code] != 0
            else:
                left = code <= cut[node]
            node = child[node] + (0 if left else 1)
        raw[i] += value[node]
