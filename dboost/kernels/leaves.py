"""Exact sums by leaf, beside those that growing a tree ends with."""

from __future__ import annotations

import numpy as np

from dboost.kernels import kernel
from dboost.kernels.rows import ROUNDER64


@kernel
def sum_by_leaf(leaf, values, times, rows, first, last, unit, sums):
    """Add up a number of each row, by the leaf it is in, over rows first…last-1, or rows[first], …, rows[last-1].

    leaf : uint8 or int32[n]; values : float32[n]; times : uint8[n], how often a row counts, or None; unit : the power of two
    by which values are multiplied before they are rounded; sums : float64[n_leaves], integers, added to.
    """
    for at in range(first, last):
        i = np.int64(at) if rows is None else rows[at]
        whole = (np.float64(values[i]) * unit + ROUNDER64) - ROUNDER64
        if times is not None:
            whole *= times[i]
        sums[leaf[i]] += whole
