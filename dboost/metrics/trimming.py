"""Influence trimming: which rows may sit out a tree, because all of them together would hardly move it (section 4.5.1).

Rows are sorted by their influence, and as many of the least influential ones are left out as keep the sum of theirs at a share
α of the total. Nothing is sorted: the influence of the first row that stays is a quantile, of influences weighted by
themselves, and is found by the digits of its bits. The pass over the rows that works out the influences adds them up by the
first digit already (`GradientStats.influence`): exponent and three bits more. Two passes follow over the bits of the few rows that
have the digit found, ten bits in each; in memory these rows are mostly known already (`shards.near_influence`). Rows of equal
influence stay or go together, so that the choice does not depend on their order.

Sums are exact. Numbers with the same exponent E are multiples of one power of two, so what is added up is their 24-bit
significands, as integers of 64 bits (which hold those of 2**36 rows), and ``sum · 2**E`` are Python's own integers. (A number
below the normal ones, 2**-126, counts as if its exponent went on below: at most as much as that.)
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from dboost.kernels.quantile_keys import FIRST_SHIFT

#: Bits of the first digit that do not belong to the exponent.
_BELOW_EXPONENT = 3
#: Bits below these, those below the other two digits, and their own numbers: a float32 that is not negative has 31.
_DIGITS = ((FIRST_SHIFT, _BELOW_EXPONENT), (10, 10), (0, 10))


def find_cut(first: np.ndarray, count: Callable[[int, int, int], np.ndarray], share: Fraction) -> int:
    """The least influence that stays, as the bits of a float32; 0 when all rows stay.

    Parameters
    ----------
    first : int64[N_DIGITS]
        Sums of significands of all rows, by the first digit.
    count : callable
        Given the digits found so far, the bits below the next one and its own, the same of all rows that share them, by their
        next digit: int64[N_DIGITS].
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
    else:  # no rows at all
        return 0
    prefix, left, sums_of = exponent, left >> exponent, by_exponent[exponent]
    for shift, width in _DIGITS:
        reached = (sums_of if shift == FIRST_SHIFT else count(prefix, shift, width)).cumsum()
        digit = int(reached.searchsorted(left, "right"))
        left -= int(reached[digit - 1]) if digit else 0
        prefix = prefix << width | digit
    return prefix
