"""Splits with bounded steps and a direction, and the features that nodes may split by: naive implementations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dboost.kernels.splits import SplitParams
from tests.helpers.naive.histograms import Histogram
from tests.helpers.naive.rows import MASK
from tests.helpers.naive.splits import Candidate, Sums, added, is_allowed, minus


def step(sums: Sums, limits: SplitParams, low: float, high: float) -> float:
    """Return the step with the largest decrease of the loss among those that are allowed."""
    d = sums[1] + limits.l2
    size = min(max(abs(sums[0]) - limits.l1, 0.0) / d, limits.max_step)
    return min(max(-size if sums[0] > 0 else size, low), high)


def worth(sums: Sums, limits: SplitParams, low: float, high: float) -> float:
    """Return twice the decrease of the loss by that step."""
    w = step(sums, limits, low, high)
    return -w * (2.0 * sums[0] + (sums[1] + limits.l2) * w) - 2.0 * limits.l1 * abs(w)


def bounded_candidates(
    histogram: Histogram, feature: int, limits: SplitParams, way: int, low: float, high: float
) -> Iterator[Candidate]:
    """Splits from left to right, missing values on the right first; without those against the direction."""
    n_bins = len(histogram) - 1
    total, missing = added(histogram), histogram[n_bins]
    for missing_left in (False, True) if missing[1] > 0 else (False,):
        left = missing if missing_left else (0, 0, 0)
        for cut in range(n_bins if missing[1] > 0 and not missing_left else n_bins - 1):
            left = added([left, histogram[cut]])
            right = minus(total, left)
            if not is_allowed(left, right, limits):
                continue
            steps = [step(side, limits, low, high) for side in (left, right)]
            if (steps[1] - steps[0]) * way >= 0:
                score = worth(left, limits, low, high) + worth(right, limits, low, high)
                yield Candidate(score, feature, cut, missing_left, range(cut + 1), left)


def _mixed(x: int) -> int:
    x &= MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def open_features(
    n_features: int, groups: Sequence[set[int]] | None, share: float, seed: int, way: Sequence[tuple[int, int]]
) -> set[int]:
    """Return the features that a node may split by. way : (feature, 0 for left or 1 for right) of each split above it."""
    place = seed
    for _, side in way:
        place = _mixed(place + 0x9E3779B97F4A7C15 * (1 + side))
    above = {feature for feature, _ in way}
    found = set(range(n_features)) if groups is None else {f for group in groups if above <= group for f in group}
    if share >= 1:
        return found
    left, wanted, chosen = len(found), -int(-share * len(found) // 1), set()
    for feature in sorted(found):
        if (_mixed(place + (feature + 1) * 0xD1B54A32D192ED03) >> 11) * 2.0**-53 * left < wanted:
            chosen.add(feature)
            wanted -= 1
        left -= 1
    return chosen
