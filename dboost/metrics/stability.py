"""How far apart two samples are, by how many rows of each fall into the same groups.

Two numbers, from counts p of before and q of after, both as shares:

* The *population stability index*, the sum over groups of (q - p) ln(q / p), is the symmetric relative entropy. By an old habit
  of those who watch scores, below 0.1 nothing has happened, and from 0.25 on something has. Half a row is added to every group,
  so that one that is empty on one side is a large number, not an infinite one.
* The *distance*: for ordered groups the largest difference of the distribution functions at the groups' borders, which is
  Kolmogorov's and Smirnov's statistic seen through a grid; for categories half the sum of the absolute differences, the share
  of rows that would have to change their category.

Samples of the same population differ too. With n and N rows in g groups the index is then about (1/n + 1/N) times a χ² variable
of g - 1 degrees of freedom. `chance` tells what it exceeds once in a thousand times; only what lies above it is drift.
"""

from __future__ import annotations

import math

import numpy as np

#: Above what chance explains, an index of so much is worth a look …
MODERATE = 0.1
#: … and of so much says that a model meets other data than it has learned from.
STRONG = 0.25

#: Of the normal distribution, exceeded once in a thousand times.
_ONE_IN_A_THOUSAND = 3.0902323061678132


def stability_index(before: np.ndarray, after: np.ndarray) -> float:
    """The population stability index of two rows of counts (int64[g]); 0 where there is but one group, or no rows."""
    used = (before > 0) | (after > 0)
    before, after = before[used] + 0.5, after[used] + 0.5
    if len(before) < 2 or before.sum() == 0.5 * len(before) or after.sum() == 0.5 * len(after):
        return 0.0
    p, q = before / before.sum(), after / after.sum()
    return math.fsum((q - p) * np.log(q / p))


def chance(before: np.ndarray, after: np.ndarray) -> float:
    """What the index of two samples of one population exceeds once in a thousand times (χ² by Wilson and Hilferty)."""
    freedom = int(((before > 0) | (after > 0)).sum()) - 1
    n, n_before = int(after.sum()), int(before.sum())
    if freedom < 1 or not n or not n_before:
        return 0.0
    spread = 2.0 / (9.0 * freedom)
    quantile = freedom * (1.0 - spread + _ONE_IN_A_THOUSAND * math.sqrt(spread)) ** 3
    return quantile * (1.0 / n + 1.0 / n_before)


def distance(before: np.ndarray, after: np.ndarray, *, ordered: bool) -> float:
    """Kolmogorov's and Smirnov's distance of ordered groups (counts, int64[g]), half the sum of differences of others.

    NaN where one side has no rows.
    """
    if not before.sum() or not after.sum():
        return math.nan
    differences = after / after.sum() - before / before.sum()
    if ordered:
        return float(np.abs(np.cumsum(differences)).max())
    return math.fsum(np.abs(differences)) / 2


def verdict(excess: float) -> str:
    """In a word: "none", "moderate" or "strong". excess : the index beyond what chance explains."""
    return "strong" if excess >= STRONG else "moderate" if excess >= MODERATE else "none"
