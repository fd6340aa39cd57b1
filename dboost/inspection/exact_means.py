"""Means that come out the same however the rows are divided: every sum is exact.

A float64 is an integer of 53 bits times a power of two. Numbers are added up in groups of the same power, the upper and
the lower half of their bits apart, so that float64 adds integers and nothing is rounded; the groups then meet in one of
Python's integers of any length. No bound on the numbers has to be known beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

import numpy as np

_HALF = 27
#: Every float64 is an integer multiple of 2 ** -_SCALE.
_SCALE = 1074 + 53 + _HALF
#: Rows whose upper halves (26 bits) cannot leave the 53 bits of a float64.
_STRETCH = 1 << 25


def exact_sum(values: np.ndarray) -> int | None:
    """Sum of finite float64[n] in units of 2 ** -1154; None when a value is not finite."""
    if not np.isfinite(values).all():
        return None
    total = 0
    for start in range(0, len(values), _STRETCH):
        mantissa, exponent = np.frexp(values[start : start + _STRETCH])
        whole = np.ldexp(mantissa, 53)
        upper = np.floor(np.ldexp(whole, -_HALF))
        lower = whole - np.ldexp(upper, _HALF)
        lowest = int(exponent.min())
        group = exponent - lowest
        for power, (a, b) in enumerate(zip(np.bincount(group, upper), np.bincount(group, lower), strict=True)):
            if a or b:
                total += ((int(a) << _HALF) + int(b)) << (power + lowest - 53 + _SCALE)
    return total


def total(parts: Iterable[int | None]) -> int | None:
    """The sum of exact sums."""
    found = list(parts)
    return None if None in found else sum(part for part in found if part is not None)


def whole(n: int) -> int:
    """A whole number as an exact sum."""
    return n << _SCALE


def mean(total: int | None, amount: int | None) -> float:
    """The quotient of two exact sums, rounded once; NaN over nothing and for sums that are not finite."""
    return float("nan") if total is None or not amount else float(Fraction(total, amount))
