"""Influence trimming: which rows may sit out a tree, because all of them together would hardly move it (section 4.5.1).

Rows are sorted by their influence, and as many of the least influential ones are left out as keep the sum of theirs at a share
α of the total. Nothing is sorted: the influence of the first row that stays is a quantile, of influences weighted by
themselves, and is found byte by byte in four passes like those of `statistics.quantiles`. Rows of equal influence stay or go
together, so that the choice does not depend on their order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np


def find_cut(count: Callable[[int, int], np.ndarray], share: Fraction) -> int:
    """The least influence that stays, as the bits of a float32; 0 when all rows stay.

    Parameters
    ----------
    count : callable
        Given the bytes found so far and the bits below the next one, the influence of all rows that share them, by their
        next byte: int64[256].
    share : Fraction
        α, between 0 and 1, both excluded.
    """
    prefix, below, most = 0, 0, 0
    for shift in (24, 16, 8, 0):
        reached = below + count(prefix, shift).cumsum()
        if shift == 24:
            most = math.floor(share * int(reached[-1]))
        byte = int((reached <= most).sum())
        if byte > 255:  # no rows at all
            return 0
        below = int(reached[byte - 1]) if byte else below
        prefix = prefix << 8 | byte
    return prefix
