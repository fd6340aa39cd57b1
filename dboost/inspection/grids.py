"""Grids: the values of a feature at which partial dependence is computed.

Without data, the grid follows the model's split points, which are quantiles of the training rows, or half-way between
neighbouring values if there were few of these. The middle between two split points represents the values of that bin, so codes
like 1, 2, …, 7 are met exactly; of many bins some are chosen, evenly by rank. With data, the grid consists of the values
themselves if there are few, else of values between the first and the last percent: half of them evenly spaced by rows, half
evenly by distinct values. A categorical feature has all its levels, or with data the most frequent ones. Rows of weight 0 are
ignored, and deciles are weighted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from numbers import Integral
from typing import Any

import numpy as np

from dboost.errors import ParameterError
from dboost.inspection.row_functions import Block
from dboost.model.ensemble import Ensemble
from dboost.schema import Feature


@dataclass(frozen=True, eq=False)
class Axis:
    """The grid of one feature."""

    feature: Feature
    #: Position of the feature in the model.
    position: int
    #: float64[n], ascending for numeric features, codes for categorical ones; NaN means missing.
    values: np.ndarray
    #: float64[9], of a numeric feature if there are data.
    deciles: np.ndarray | None = None

    @property
    def shown(self) -> np.ndarray:
        """The values in the user's terms: levels instead of codes, None where missing."""
        if self.feature.categories is None:
            return self.values
        shown = np.empty(len(self.values), object)
        shown[:] = [None if np.isnan(code) else self.feature.categories[int(code)] for code in self.values]
        return shown


def axes(ensemble: Ensemble, positions: list[int], grid: Any, rows: Block | None) -> list[Axis]:
    """Return the grid of each feature.

    Parameters
    ----------
    ensemble : Ensemble
    positions : list of int
    grid : int, sequence, or mapping of names to sequences
        Largest number of points, or the values themselves.
    rows : Block or None
        A sample of the data.

    Raises
    ------
    ParameterError
        Naming the feature whose grid is not usable.
    """
    given = _given(ensemble, positions, grid)
    n_points = int(grid) if isinstance(grid, Integral) else 50 if len(positions) == 1 else 20
    if n_points < 1:
        raise ParameterError(f"grid={grid!r} must have at least one point")
    if rows is not None and rows.weight is not None:
        rows = rows[rows.weight > 0]
    found = []
    for j in positions:
        feature = ensemble.features[j]
        column, deciles = None, None
        if rows is not None:
            present = rows[~np.isnan(rows.block[:, j])]
            column = present.block[:, j].astype(np.float64)
            if len(column) and feature.categories is None:
                deciles = _deciles(column, present.weight)
        if j in given:
            values = _as_codes(feature, given[j])
        elif feature.categories is not None:
            values = _levels(len(feature.categories), column, n_points)
        elif column is not None and len(column):
            values = _of_rows(column, n_points)
        else:
            values = _of_bins(_split_points(ensemble, j), n_points)
        found.append(Axis(feature, j, values, deciles))
    return found


def points(on: list[Axis]) -> np.ndarray:
    """Return all combinations of the axes' values, the last axis fastest: float64[n, n_axes]."""
    return np.array(list(product(*(axis.values for axis in on))), np.float64).reshape(-1, len(on))


def _deciles(column: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    shares = np.arange(1, 10) / 10
    if weight is None:
        return np.quantile(column, shares)
    return np.quantile(column, shares, weights=weight, method="inverted_cdf")


def _given(ensemble: Ensemble, positions: list[int], grid: Any) -> dict[int, Any]:
    """Values that the user chose, by position of the feature."""
    if grid is None or isinstance(grid, Integral):
        return {}
    if isinstance(grid, Mapping):
        by_name = {ensemble.features[j].name: j for j in positions}
        strange = [name for name in grid if name not in by_name]
        if strange:
            raise ParameterError(f"grid names {strange[0]!r}, which is none of the features asked for")
        return {by_name[name]: values for name, values in grid.items()}
    lists = [grid] if len(positions) == 1 else list(grid)
    if len(lists) != len(positions):
        raise ParameterError(f"grid has {len(lists)} lists of values for {len(positions)} features")
    return dict(zip(positions, lists, strict=True))


def _as_codes(feature: Feature, values: Any) -> np.ndarray:
    values = list(values)
    if not values:
        raise ParameterError(f"the grid of {feature.name!r} has no values")
    if feature.categories is None:
        try:
            return np.array(values, np.float64)
        except (TypeError, ValueError):
            raise ParameterError(f"the grid of {feature.name!r} holds something that is no number") from None
    codes = {level: float(code) for code, level in enumerate(feature.categories)}
    strange = [value for value in values if not _is_missing(value) and value not in codes]
    if strange:
        raise ParameterError(f"the grid of {feature.name!r} holds {strange[0]!r}, which is none of its levels")
    return np.array([np.nan if _is_missing(value) else codes[value] for value in values])


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)


def _levels(n_levels: int, codes: np.ndarray | None, n_points: int) -> np.ndarray:
    if codes is None or n_levels <= n_points:
        return np.arange(n_levels, dtype=np.float64)
    counts = np.bincount(codes.astype(np.int64), minlength=n_levels)
    return np.sort(np.argsort(-counts, kind="stable")[:n_points]).astype(np.float64)


def _of_rows(column: np.ndarray, n_points: int) -> np.ndarray:
    distinct = np.unique(column)
    if len(distinct) <= n_points:
        return distinct
    # Half of the points follow the rows and half the distinct values, so that one frequent value does not fill the grid.
    low, high = np.quantile(column, (0.01, 0.99), method="nearest")
    between = distinct[(distinct >= low) & (distinct <= high)]
    n_values = n_points // 2
    of_rows = np.quantile(column, np.linspace(0.01, 0.99, n_points - n_values), method="nearest")
    of_values = between[np.round(np.linspace(0, len(between) - 1, n_values + 2)[1:-1]).astype(np.int64)]
    return np.unique(np.concatenate([of_rows, of_values]))


def _of_bins(cuts: np.ndarray, n_points: int) -> np.ndarray:
    if not len(cuts):
        return np.zeros(1)
    gaps = np.diff(cuts) / 2
    first, last = (gaps[0], gaps[-1]) if len(gaps) else (0.5, 0.5)
    middles = np.concatenate([[cuts[0] - first], cuts[:-1] + gaps, [cuts[-1] + last]])
    wanted = np.unique(np.round(np.linspace(0, len(middles) - 1, n_points)).astype(np.int64))
    return np.unique(middles[wanted])


def _split_points(ensemble: Ensemble, j: int) -> np.ndarray:
    """Candidate split points of a feature, or the thresholds in the trees if the model does not hold candidates."""
    edges = ensemble.edges[j] if j < len(ensemble.edges) else None
    if edges is None:
        edges = np.concatenate([np.empty(0), *(tree.threshold[tree.feature == j] for tree in ensemble.trees)])
    return np.unique(edges[np.isfinite(edges)])
