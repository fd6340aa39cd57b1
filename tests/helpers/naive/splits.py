"""The best split of a node, by trying every one.

Sums are Python integers. Only the score of a candidate is a float, computed in the order of operations that the kernel's
documentation states, so that ties are the same in both. `exact_score` does not round at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

from dboost.kernels.splits import SplitParams
from tests.helpers.naive.histograms import Histogram

Sums = tuple[int, int, int]


@dataclass(frozen=True)
class Candidate:
    """A split: the codes that go left (missing values apart if it is numeric), their sums, and the score of both sides."""

    score: float
    feature: int
    cut: int
    missing_left: bool
    left: range | frozenset[int]
    sums: Sums


def added(parts: Sequence[Sums]) -> Sums:
    return sum(p[0] for p in parts), sum(p[1] for p in parts), sum(p[2] for p in parts)


def minus(a: Sums, b: Sums) -> Sums:
    return a[0] - b[0], a[1] - b[1], a[2] - b[2]


def side_score(g: float, h: float, l2: float, l1: float, max_step: float) -> float:
    """Return the score of a side: for its bounded step, twice the reduction of the loss."""
    t = max(abs(g) - l1, 0.0)
    step = min(t / (h + l2), max_step) if h + l2 > 0 else 0.0
    return step * (2.0 * t - step * (h + l2))


def unbounded_score(left: Sums, right: Sums, l2: float, l1: float) -> float:
    """Both sides at once, over one denominator."""
    tl, tr = max(abs(float(left[0])) - l1, 0.0), max(abs(float(right[0])) - l1, 0.0)
    dl, dr = left[1] + l2, right[1] + l2
    return (tl * tl * dr + tr * tr * dl) / (dl * dr)


def exact_score(left: Sums, right: Sums, l2: float, l1: float, max_step: float) -> Fraction:
    """The same without rounding."""

    def side(sums: Sums) -> Fraction:
        t = max(abs(Fraction(sums[0])) - Fraction(l1), Fraction(0))
        d = Fraction(sums[1]) + Fraction(l2)
        step = t / d if max_step == math.inf else min(t / d, Fraction(max_step))
        return step * (2 * t - step * d)

    return side(left) + side(right)


def is_allowed(left: Sums, right: Sums, limits: SplitParams) -> bool:
    """Enough Hessian and enough rows on both sides."""
    enough = all(side[1] >= max(limits.min_hessian, 1) for side in (left, right))
    if limits.count_channel < 0:
        return enough
    rows = [side[limits.count_channel] for side in (left, right)]
    return enough and min(rows) >= limits.min_rows


def numeric_candidates(histogram: Histogram, feature: int, limits: SplitParams) -> Iterator[Candidate]:
    """Cuts from left to right, missing values on the right first, then on the left."""
    n_bins = len(histogram) - 1
    total, missing = added(histogram), histogram[n_bins]
    for missing_left in (False, True) if missing[1] > 0 else (False,):
        left = missing if missing_left else (0, 0, 0)
        # After the last bin a cut separates the missing values only.
        for cut in range(n_bins if missing[1] > 0 and not missing_left else n_bins - 1):
            left = added([left, histogram[cut]])
            right = minus(total, left)
            if not is_allowed(left, right, limits):
                continue
            if limits.max_step == math.inf:
                score = unbounded_score(left, right, limits.l2, limits.l1)
            else:
                score = sum(side_score(s[0], s[1], limits.l2, limits.l1, limits.max_step) for s in (left, right))
            yield Candidate(score, feature, cut, missing_left, range(cut + 1), left)


def least_support(histogram: Histogram, limits: SplitParams) -> float:
    """The smallest Hessian of a level that is not rare: all of the limit, or 2 % of the node if levels differ beyond noise."""
    most, share = limits.min_category_hessian, 0.02 * float(sum(h for _, h, _ in histogram))
    if share >= most or limits.noise == 0.0:
        return min(most, share)
    found = [(float(g), float(h)) for g, h, _ in histogram if h > 0]
    total = sum(h for _, h in found)
    mean = sum(g for g, _ in found) / total
    spread = sum((g - mean * h) * (g - mean * h) / h for g, h in found)
    excess = spread - (len(found) - 1) * limits.noise
    if excess <= 0.0:
        return most
    return min(most, max(share, 0.15 * limits.noise * (total - sum(h * h for _, h in found) / total) / excess))


def sorted_levels(histogram: Histogram, limits: SplitParams) -> list[int]:
    """Levels (and "missing") that may go left, by smoothed mean gradient; ties by code."""
    least = least_support(histogram, limits)
    usable = [c for c, (_, h, _) in enumerate(histogram) if h > 0 and h >= least]
    return sorted(usable, key=lambda c: (histogram[c][0] / (histogram[c][1] + limits.smoothing), c))


def categorical_candidates(histogram: Histogram, feature: int, limits: SplitParams) -> Iterator[Candidate]:
    """Prefixes of the sorted levels from the lower end, then from the upper one; the cut is the length, signed."""
    levels = sorted_levels(histogram, limits)
    for direction, ordered in ((1, levels), (-1, levels[::-1])):
        for length in range(1, min(len(levels), limits.max_categories) + 1):
            yield from _with_levels(histogram, feature, limits, ordered[:length], length * direction)


def subset_candidates(histogram: Histogram, feature: int, limits: SplitParams) -> Iterator[Candidate]:
    """Every way to send some of the usable levels left."""
    levels = sorted_levels(histogram, limits)
    for length in range(1, len(levels) + 1):
        for chosen in combinations(levels, length):
            yield from _with_levels(histogram, feature, limits, chosen, length)


def _with_levels(
    histogram: Histogram, feature: int, limits: SplitParams, levels: Sequence[int], cut: int
) -> Iterator[Candidate]:
    left = added([histogram[code] for code in levels])
    right = minus(added(histogram), left)
    if is_allowed(left, right, limits):
        l2 = limits.l2 + limits.category_l2
        score = side_score(left[0], left[1], l2, limits.l1, limits.max_step)
        score += side_score(right[0], right[1], l2, limits.l1, limits.max_step)
        yield Candidate(score, feature, cut, False, frozenset(levels), left)


def best(candidates: Iterator[Candidate]) -> Candidate | None:
    """The candidate of the highest score; the first of equals."""
    found = None
    for candidate in candidates:
        if found is None or candidate.score > found.score:
            found = candidate
    return found
