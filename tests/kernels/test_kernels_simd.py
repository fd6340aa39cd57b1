"""Slices without tests of their bounds, compared with those of NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from dboost.kernels.simd import row_span, span


@njit
def parts(values, matrix, row, first, last):
    """Return sums of both slices weighted by position, their sizes, and change them by one element each."""
    one, two = span(values, first, last), row_span(matrix, row, first, last)
    sums = 0.0, 0.0
    for i in range(one.size):
        sums = sums[0] + (i + 1) * one[i], sums[1] + (i + 1) * two[i]
    if one.size:
        one[0], two[-1] = 77, 88
    return sums[0], sums[1], one.size, two.size


@pytest.mark.parametrize("layout", ["contiguous", "columns of a wider matrix", "every other column", "transposed"])
@pytest.mark.parametrize("dtype", ["uint8", "int64", "float32"])
def test_spans_are_slices(layout: str, dtype: str) -> None:
    numbers = np.arange(200).astype(dtype)
    matrix = {
        "contiguous": numbers[:50].reshape(5, 10),
        "columns of a wider matrix": numbers[:100].reshape(5, 20)[:, 3:13],
        "every other column": numbers[:100].reshape(5, 20)[:, ::2],
        "transposed": numbers[:50].reshape(10, 5).T,
    }[layout]
    values = numbers[100:110] if layout == "contiguous" else numbers[100:120][::2]
    for row, first, last in ((0, 0, 10), (4, 2, 7), (2, 9, 10), (3, 4, 4), (1, 0, 0), (4, 10, 10)):
        expected = []
        for part in (values[first:last], matrix[row, first:last]):
            expected.append(float((part * np.arange(1.0, part.size + 1)).sum()))
        others, before = np.ones_like(matrix, bool), matrix.copy()
        assert parts(values, matrix, row, first, last) == (*expected, last - first, last - first)
        if last > first:
            assert values[first] == 77
            assert matrix[row, last - 1] == 88
            others[row, last - 1] = False
        assert (matrix[others] == before[others]).all()
