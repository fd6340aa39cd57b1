"""Influence trimming: which rows may sit out a tree, because all of them together would hardly move it (section 4.5.1).

Rows are sorted by their influence, and as many of the least influential ones are left out as keep the sum of theirs at a share
α of the total. Nothing is sorted: the influence of the first row that stays is a quantile, of influences weighted by
themselves, and is found in three passes like those of `statistics.quantiles`, by eleven bits at most in each. Rows of equal
influence stay or go together, so that the choice does not depend on their order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

#: A digit has as many values at most.
N_DIGITS = 2048
#: Bits below each digit, and its own: a float32 that is not negative has 31.
_DIGITS = ((20, 11), (10, 10), (0, 10))


def find_cut(count: Callable[[int, int, int], np.ndarray], share: Fraction) -> int:
    """The least influence that stays, as the bits of a float32; 0 when all rows stay.

    Parameters
    ----------
    count : callable
        Given the digits found so far, the bits below the next one and its own, the influence of all rows that share them,
        by their next digit: int64[N_DIGITS].
    share : Fraction
        α, between 0 and 1, both excluded.
    """
    prefix, below, most = 0, 0, 0
    for shift, width in _DIGITS:
        reached = below + count(prefix, shift, width).cumsum()
        if width == 11:
            most = math.floor(share * int(reached[-1]))
        digit = int((reached <= most).sum())
        if digit == N_DIGITS:  # no rows at all
            return 0
        below = int(reached[digit - 1]) if digit else below
        prefix = prefix << width | digit
    return prefix
