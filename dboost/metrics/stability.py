"""Distance of two samples, from the number of rows of each in the same groups (drift monitoring).

Two measures, from counts p before and q after, both as shares:

* The *population stability index*, the sum over groups of (q - p) ln(q / p), is the symmetric relative entropy. By convention,
  below 0.1 there is no drift, and from 0.25 on it is strong. Half a row is added to every group, so that a group that is empty
  on one side contributes a large number, not an infinite one.
* The *distance*: for ordered groups the largest difference of the distribution functions at the groups' borders, which is the
  Kolmogorov-Smirnov statistic on a grid; for categories half the sum of the absolute differences, the share of rows that would
  have to change their category.

Samples of the same population differ too. With n and N rows in g groups the index is then about (1/n + 1/N) times a χ² variable
with g - 1 degrees of freedom. `chance` returns what it exceeds once in a thousand times; only the excess is drift.
"""

from __future__ import annotations

import math

import numpy as np

#: From this excess over chance on, drift is moderate …
MODERATE = 0.1
#: … and from this on it is strong: the data differ from the training data.
STRONG = 0.25

#: Quantile of the normal distribution that is exceeded once in a thousand times.
_ONE_IN_A_THOUSAND = 3.0902323061678132


def stability_index(before: np.ndarray, after: np.ndarray) -> float:
    """Return the population stability index of two count vectors (int64[g]); 0 for fewer than two groups, or no rows."""
    used = (before > 0) | (after > 0)
    before, after = before[used] + 0.5, after[used] + 0.5
    if len(before) < 2 or before.sum() == 0.5 * len(before) or after.sum() == 0.5 * len(after):
        return 0.0
    p, q = before / before.sum(), after / after.sum()
    return math.fsum((q - p) * np.log(q / p))


def chance(before: np.ndarray, after: np.ndarray) -> float:
    """Return what the index of two samples of one population exceeds once in a thousand times (χ² by Wilson and Hilferty)."""
    freedom = int(((before > 0) | (after > 0)).sum()) - 1
    n, n_before = int(after.sum()), int(before.sum())
    if freedom < 1 or not n or not n_before:
        return 0.0
    spread = 2.0 / (9.0 * freedom)
    quantile = freedom * (1.0 - spread + _ONE_IN_A_THOUSAND * math.sqrt(spread)) ** 3
    return quantile * (1.0 / n + 1.0 / n_before)


def distance(before: np.ndarray, after: np.ndarray, *, ordered: bool) -> float:
    """Return the Kolmogorov-Smirnov distance of ordered groups (counts, int64[g]), half the sum of absolute differences of
    others.

    NaN where one side has no rows.
    """
    if not before.sum() or not after.sum():
        return math.nan
    differences = after / after.sum() - before / before.sum()
    if ordered:
        return float(np.abs(np.cumsum(differences)).max())
    return math.fsum(np.abs(differences)) / 2


def verdict(excess: float) -> str:
    """Return "none", "moderate" or "strong". excess : the index minus what chance explains."""
    return "strong" if excess >= STRONG else "moderate" if excess >= MODERATE else "none"
