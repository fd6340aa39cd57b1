"""Sums of real numbers that do not depend on the order of additions.

Each number is divided into two integers, a coarse one in units of 1 / unit and a fine one in units of 1 / (unit * FINE). As
long as the total stays below 2**53, float64 adds integers exactly, so sums over any division of the rows agree to the last bit.
`unit_for` chooses the unit; the rounding error is below 2**-50 of the largest number for a million rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

#: Fine units per coarse unit.
FINE = 2.0**26


def unit_for(bound: float, n_rows: int, *, spare_bits: int = 0) -> float:
    """Return the power of two by which numbers up to `bound` may be multiplied so that the sum of `n_rows` integers is exact.

    `spare_bits` allows for numbers that are larger than `bound` by that many bits.
    """
    bits = 51 - math.ceil(math.log2(max(n_rows, 2))) - spare_bits
    if not bound > 0 or not math.isfinite(bound):
        return 2.0**bits
    exponent = math.frexp(bound)[1]
    return 2.0 ** min(max(bits - exponent, -1000), 1000)


@dataclass(frozen=True)
class ExactSum:
    """A sum as two exact integers in units of 1 / unit; `merge` is exact, associative and commutative."""

    unit: float
    loss_unit: float = 0.0
    fine: float = 0.0

    @classmethod
    def of(cls, values: np.ndarray, unit: float, times: np.ndarray | None = None) -> ExactSum:
        """Sum a float64 array (the chunk step); with `times` (integers) each value is added that many times."""
        scaled = values * unit
        whole = np.rint(scaled)
        fine = np.rint((scaled - whole) * FINE)
        if times is not None:
            whole, fine = whole * times, fine * times
        return cls(unit, float(whole.sum()), float(fine.sum()))

    def merge(self, other: ExactSum) -> ExactSum:
        assert self.unit == other.unit
        return ExactSum(self.unit, self.loss_unit + other.loss_unit, self.fine + other.fine)

    def finish(self) -> float:
        """Return the sum in the numbers' own units."""
        return (self.loss_unit + self.fine / FINE) / self.unit


#: Totals are multiples of 2**-TOTAL_BITS: the last bit of the smallest float64, with spare bits for its mantissa.
TOTAL_BITS = 1130
#: The sum of this many integers below 2**27 is exact in float64.
_VALUES_AT_A_TIME = 2**25


def total(values: np.ndarray) -> int | None:
    """Return the sum of float64 numbers of any size without rounding, as a multiple of 2**-TOTAL_BITS; None if one is not
    finite.

    Totals of parts are added as integers; `as_float` rounds the sum once. This is slower than `ExactSum`, but needs no bound of
    the numbers. Mantissas are divided into halves, which are added up exactly by exponent.
    """
    if not np.isfinite(values).all():
        return None
    result = 0
    for first in range(0, len(values), _VALUES_AT_A_TIME):
        mantissa, exponent = np.frexp(values[first : first + _VALUES_AT_A_TIME])
        whole = (mantissa * 2.0**53).astype(np.int64)
        lowest = int(exponent.min())
        shift_of = exponent - lowest
        for half, shift in ((whole >> 27, 27), (whole & (2**27 - 1), 0)):
            sums = np.bincount(shift_of, half)
            for k in np.flatnonzero(sums):
                result += int(sums[k]) << (lowest + int(k) - 53 + shift + TOTAL_BITS)
    return result


def as_float(total: int) -> float:
    """Return a total in the numbers' own units, correctly rounded."""
    try:
        return total / (1 << TOTAL_BITS)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def merged_float(totals: Iterable[int | None]) -> float:
    """Return the sum of the totals of all parts; NaN if one of them is not finite."""
    known = list(totals)
    return math.nan if any(one is None for one in known) else as_float(sum(one for one in known if one is not None))
