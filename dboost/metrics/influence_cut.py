"""Influence trimming: leave rows out of a tree that together would hardly change it (section 4.5.1 of Friedman 2001).

Rows are ordered by their influence, and the least influential ones are left out, as many as have at most the share α of the
total influence. Nothing is sorted: the influence of the first row that is kept is a quantile of the influences, weighted by
themselves, and is determined by the digits of its bits. The pass over the rows that computes the influences also adds them up
by the first digit (`GradientStats.influence`): exponent and three bits more. Two passes follow over the bits of the few rows
that have the digit found, ten bits in each; for rows in memory these are mostly known already (`shards.rows_near_cut`). Rows
of equal influence are kept or left out together, so that the choice does not depend on their order.

Sums are exact. Numbers with the same exponent E are multiples of one power of two, so what is added up is their 24-bit
significands, as 64-bit integers (enough for 2**36 rows), and ``sum · 2**E`` are Python integers. (A number below the normal
ones, 2**-126, counts as if its exponent were smaller still: at most as much as that.)
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from dboost.kernels.quantile_keys import FIRST_SHIFT

#: Bits of the first digit below the exponent.
_BELOW_EXPONENT = 3
#: (bits below the digit, width) of the three digits: a non-negative float32 has 31 bits.
_DIGITS = ((FIRST_SHIFT, _BELOW_EXPONENT), (10, 10), (0, 10))


def find_cut(first: np.ndarray, count: Callable[[int, int, int], np.ndarray], share: Fraction) -> int:
    """Return the smallest influence that is kept, as the bits of a float32; 0 when all rows are kept.

    Parameters
    ----------
    first : int64[N_DIGITS]
        Sums of significands of all rows, by the first digit.
    count : callable
        Given the digits found so far, the number of bits below the next one and its width, return these sums for all rows that
        share the digits, by their next digit: int64[N_DIGITS].
    share : Fraction
        α, between 0 and 1, both excluded.
    """
    by_exponent = first.reshape(-1, 1 << _BELOW_EXPONENT)
    of_exponent = by_exponent.sum(axis=1)
    found = np.flatnonzero(of_exponent)
    sums = [weight << exponent for exponent, weight in zip(found.tolist(), of_exponent[found].tolist(), strict=True)]
    left = share.numerator * sum(sums) // share.denominator
    for exponent, weight in zip(found.tolist(), sums, strict=True):  # noqa: B007
        if weight > left:
            break
        left -= weight
    else:  # there are no rows
        return 0
    prefix, left, sums_of = exponent, left >> exponent, by_exponent[exponent]
    for shift, width in _DIGITS:
        reached = (sums_of if shift == FIRST_SHIFT else count(prefix, shift, width)).cumsum()
        digit = int(reached.searchsorted(left, "right"))
        left -= int(reached[digit - 1]) if digit else 0
        prefix = prefix << width | digit
    return prefix
