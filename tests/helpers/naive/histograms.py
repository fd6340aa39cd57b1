"""Histograms of Python integers, which neither overflow nor round."""

from __future__ import annotations

from collections.abc import Sequence

#: Of one feature: gradient, Hessian and number of rows by code; the last code is "missing".
Histogram = list[tuple[int, int, int]]


def histogram(
    codes: Sequence[int],
    n_codes: int,
    gradient: Sequence[int],
    hessian: Sequence[int],
    rows: Sequence[int],
    repeat_count: Sequence[int] | None = None,
) -> Histogram:
    """Sums over some rows by the code of one feature; a row may count several times, but is one row."""
    sums = [(0, 0, 0)] * n_codes
    for row in rows:
        g, h, n = sums[codes[row]]
        k = 1 if repeat_count is None else repeat_count[row]
        sums[codes[row]] = (g + k * gradient[row], h + k * hessian[row], n + 1)
    return sums
