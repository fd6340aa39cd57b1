"""How a row becomes numbers that models in other formats read.

**Categories.** Other formats know categories by whole numbers. Levels that are such numbers already (0, 1, 7, or truth
values) stand for themselves; all other levels (text, fractions) are given by their position in the feature's `levels`.
Missing values are NaN.

**Precision.** XGBoost and ONNX compare in float32. A float32 value stands for all float64 values that round to it; so a
threshold t becomes the float32 nearest to it, and a tie the lower one. Where x <= t, then also float32(x) <= float32(t),
so that rows at a threshold (which is often a value of the data) stay on their side. Where a model was trained on float32
values, each threshold is one of these or lies half-way between two, and every float32 row goes where it goes with us; else
rows between a threshold and the float32 next to it may not.
"""

from __future__ import annotations

import numpy as np

from dboost.model.ensemble import Ensemble
from dboost.model.tree import Tree
from dboost.schema import Feature

#: Whole numbers up to here are exact in float32, and XGBoost and treelite take them for categories.
MAX_NUMBER = 2**24 - 1


def numbers_of_levels(feature: Feature) -> np.ndarray:
    """The number that stands for each level of a categorical feature: int64[n_levels], all different."""
    levels = feature.levels or ()
    are_whole = all(not isinstance(level, str) and float(level).is_integer() and 0 <= level <= MAX_NUMBER for level in levels)
    if are_whole and len(set(levels)) == len(levels):
        return np.array([int(level) for level in levels], np.int64)
    return np.arange(len(levels), dtype=np.int64)


def as_numbers(block: np.ndarray, features: tuple[Feature, ...]) -> np.ndarray:
    """A block of `dboost.sources.feature_block`, with the numbers of levels instead of their codes."""
    numbers = {j: numbers_of_levels(feature) for j, feature in enumerate(features) if feature.is_categorical}
    changed = {j: of_levels for j, of_levels in numbers.items() if not np.array_equal(of_levels, np.arange(len(of_levels)))}
    if changed:
        block = block.copy()
    for j, of_levels in changed.items():
        codes = block[:, j]
        known = (codes >= 0) & (codes < len(of_levels))
        codes[known] = of_levels[codes[known].astype(np.int64)]
        codes[~known] = np.nan
    return block


def nearest_float32(thresholds: np.ndarray) -> np.ndarray:
    """The float32 nearest to each threshold; of two equally near the lower one (NaN stays NaN)."""
    thresholds = np.asarray(thresholds, np.float64)
    largest = np.finfo(np.float32).max
    with np.errstate(over="ignore", invalid="ignore"):
        # Beyond the range of float32, yet finite: infinity must go right.
        found = np.where(np.isposinf(thresholds), np.inf, np.minimum(thresholds, largest)).astype(np.float32)
        below = np.nextafter(found, np.float32(-np.inf))
        is_tie = (found > thresholds) & (thresholds - below.astype(np.float64) == found.astype(np.float64) - thresholds)
    return np.where(is_tie, below, found)


def away_from_missing(tree: Tree, node: int, feature: Feature) -> np.ndarray:
    """Numbers of the levels that a categorical split sends where missing values do not go: ascending int64.

    All else (missing values, levels never seen) then goes the other way, which is how we mean it.
    """
    goes_left = np.zeros(len(feature.levels or ()), bool)
    goes_left[tree.categories[node]] = True
    return np.sort(numbers_of_levels(feature)[goes_left != tree.missing_left[node]])


def with_baseline(ensemble: Ensemble) -> list[tuple[Tree | None, np.ndarray]]:
    """Each tree with its nodes' values, the first iteration's raised by the baseline; lone leaves if there is no iteration.

    For formats that have no place for it, or one of less precision.
    """
    if not ensemble.trees:
        return [(None, np.array([constant])) for constant in ensemble.baseline]
    raised = [tree.value + constant for tree, constant in zip(ensemble.trees, ensemble.baseline, strict=False)]
    return [(tree, raised[i] if i < len(raised) else tree.value) for i, tree in enumerate(ensemble.trees)]
