"""Partial dependence: how predictions depend on one or two features.

Four ways to reduce a function of all features to a function of x_z, the features of interest (equations of Friedman, 2001):

*Weighted traversal* (section 8.2; no data). Go down a tree from the root; at a split on a feature of z follow the value, at
any other split go both ways, weighted by the fractions of training rows. The weighted sum of the leaf values is the tree's
dependence on x_z.

*Average* (51)–(53). Replace x_z in every row of the data by a value, predict, and take the mean over the rows: the
*partial dependence*. If the features of z are independent of the others, it equals the traversal.

*Individual* (50). The same without the mean: one curve per row (ICE curves), which show whether rows agree.

*Conditional* (56). The mean prediction of the rows that *have* the value, or one nearest to it. It includes the effect of
features that are correlated with x_z.

Means are quotients of exact sums over rows (`dboost.metrics.exact_sum`), the same for any partitioning. With sample weights
they are weighted means: a row of weight 2 equals the row twice, rows of weight 0 are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import combinations, pairwise
from typing import Any

import numpy as np

from dboost import losses
from dboost._lazy_import import pd
from dboost.errors import DataError, ParameterError
from dboost.inspection.grids import Axis, axes, points
from dboost.inspection.row_functions import Block, at_least_one, over_blocks, sample
from dboost.inspection.tree_paths import Path, edge_answers, paths_of
from dboost.metrics.exact_sum import TOTAL_BITS, total
from dboost.model.ensemble import Ensemble
from dboost.model.forest import FlatEnsemble

KINDS = ("average", "individual", "conditional")
SCALES = ("raw", "prediction")
#: Number of rows that grids and deciles are computed from.
SAMPLE_ROWS = 100_000
#: Columns of the result that are not features.
TAKEN = ("value", "class", "row", "count")


def partial_dependence(
    ensemble: Ensemble,
    features: Any,
    data: Any = None,
    *,
    kind: str = "average",
    grid: Any = None,
    scale: str = "raw",
    centred: bool = False,
    max_rows: int = 1000,
    sample_weight: Any = None,
    n_threads: int | None = None,
) -> pd.DataFrame:
    """Return partial dependence; `Booster.partial_dependence` documents it."""
    chosen = ensemble.feature_positions(features, at_most=2)
    for name, value, choices in (("kind", kind, KINDS), ("scale", scale, SCALES)):
        if value not in choices:
            raise ParameterError(f"{name}={value!r} must be one of {', '.join(map(repr, choices))}")
    if data is None and kind != "average":
        raise ParameterError(f"kind={kind!r} needs rows: pass data=…")
    max_rows = at_least_one("max_rows", max_rows)
    if sample_weight is not None and (data is None or kind == "individual"):
        why = "there are no rows: pass data=…" if data is None else "individual curves are each of one row"
        raise ParameterError(f"sample_weight has nothing to weigh: {why}")
    rows = None if data is None else sample(data, ensemble, SAMPLE_ROWS, sample_weight)[1]
    on = axes(ensemble, chosen, grid, rows)
    at, finish = points(on), Finish(ensemble, scale)
    numbers: np.ndarray | None = None
    counts: np.ndarray | None = None
    if data is None:
        matrix = np.full((len(at), len(ensemble.features)), np.nan)
        matrix[:, chosen] = at
        values = finish(Traversal(ensemble)(chosen, matrix))[None]
    elif kind == "individual":
        numbers, block = sample(data, ensemble, max_rows)
        curves = PredictReplaced(ensemble, chosen, at, finish, n_threads)
        values = np.stack([curves.values(block.block, point) for point in range(len(at))], axis=1)
    else:
        function: Any = PredictReplaced(ensemble, chosen, at, finish, n_threads)
        if kind == "conditional":
            function = PredictGrouped(ensemble, on, len(at), finish, n_threads)
        values, counts = _means(over_blocks(data, ensemble, function, sample_weight))
    if centred:
        values = values - np.nanmean(values, axis=1, keepdims=True)
    frame = _tidy(ensemble, on, values, numbers, counts if kind == "conditional" else None)
    deciles = {axis.feature.name: axis.deciles.tolist() for axis in on if axis.deciles is not None}
    shown = [column for column in frame.columns if column not in TAKEN]
    frame.attrs = {"kind": kind, "scale": scale, "centred": centred, "deciles": deciles, "features": shown}
    return frame


class Traversal:
    """Weighted traversal of the trees: a function of some features, averaged over the training rows in the others.

    Parameters
    ----------
    ensemble : Ensemble
    """

    def __init__(self, ensemble: Ensemble) -> None:
        self._ensemble = ensemble

    @cached_property
    def _paths(self) -> list[list[Path]]:
        return [list(paths_of(tree, by="count")) for tree in self._ensemble.trees]

    @property
    def pairs(self) -> set[frozenset[int]]:
        """Pairs of features that occur together on a path."""
        return {
            frozenset(pair)
            for paths in self._paths
            for features in {tuple(path.features.tolist()) for path in paths}
            for pair in combinations(features, 2)
        }

    def __call__(self, targets: list[int], matrix: np.ndarray) -> np.ndarray:
        """Return raw scores that use only the target features of the rows.

        Parameters
        ----------
        targets : list of int
        matrix : float32 or float64 [n, n_features]
            Other columns are ignored.

        Returns
        -------
        float64[n, n_outputs]
        """
        scores = np.tile(np.asarray(self._ensemble.baseline, np.float64), (len(matrix), 1))
        for t, (tree, paths) in enumerate(zip(self._ensemble.trees, self._paths, strict=True)):
            answers = edge_answers(tree, matrix, self._ensemble, targets)
            of_tree = np.zeros(len(matrix))
            for path in paths:
                known = np.isin(path.features, targets)
                weight = path.value * path.shares[~known].prod()
                of_tree += weight * answers[:, path.edges[known]].all(axis=1)
            scores[:, t % self._ensemble.n_outputs] += of_tree
        return scores


class Finish:
    """Transform of raw scores [n, n_outputs] to the requested scale, in the same shape."""

    def __init__(self, ensemble: Ensemble, scale: str) -> None:
        self._loss = None if scale == "raw" else losses.from_dict(ensemble.loss)

    def __call__(self, raw: np.ndarray) -> np.ndarray:
        if self._loss is None:
            return raw
        return self._loss.inverse_link(raw) if raw.shape[1] > 1 else self._loss.inverse_link(raw[:, 0])[:, None]


#: For each point: exact sums by output, the exact sum of the weights, and the number of rows.
Totals = list[tuple[list[int | None], int | None, int]]


class PredictReplaced:
    """Sums of the predictions of rows with the target features replaced by each grid point."""

    def __init__(self, ensemble: Ensemble, targets: list[int], at: np.ndarray, finish: Finish, n_threads: int | None) -> None:
        self._flat, self._targets, self._at = FlatEnsemble(ensemble), targets, at
        self._finish, self._n_threads = finish, n_threads

    def values(self, block: np.ndarray, point: int) -> np.ndarray:
        """float64[n, n_outputs]"""
        changed = block.astype(np.float64)
        changed[:, self._targets] = self._at[point]
        return self._finish(self._flat.raw_scores(changed, n_threads=self._n_threads))

    def __call__(self, part: int, rows: Block) -> Totals:
        return [_totals(self.values(rows.block, point), rows.weight) for point in range(len(self._at))]


class PredictGrouped:
    """Sums of the predictions of rows, grouped by the grid point nearest to the rows' own values."""

    def __init__(self, ensemble: Ensemble, on: list[Axis], n_points: int, finish: Finish, n_threads: int | None) -> None:
        self._flat, self._on, self._n_points = FlatEnsemble(ensemble), on, n_points
        self._finish, self._n_threads = finish, n_threads

    def __call__(self, part: int, rows: Block) -> Totals:
        block = rows.block
        cell = np.zeros(len(block), np.int64)
        for axis in self._on:
            nearest = _nearest(axis, block[:, axis.position].astype(np.float64))
            cell = np.where((cell < 0) | (nearest < 0), -1, cell * len(axis.values) + nearest)
        values = self._finish(self._flat.raw_scores(block, n_threads=self._n_threads))
        order = np.argsort(cell, kind="stable")
        borders = np.searchsorted(cell[order], np.arange(self._n_points + 1))
        groups = [order[a:b] for a, b in pairwise(borders)]
        return [_totals(values[group], None if rows.weight is None else rows.weight[group]) for group in groups]


def _nearest(axis: Axis, x: np.ndarray) -> np.ndarray:
    """Index of the axis's value nearest to each x, the lower one of two; -1 if there is none."""
    values = axis.values
    order = np.argsort(values, kind="stable")  # NaN comes last
    n_present = len(values) - int(np.isnan(values).sum())
    ordered = values[order[:n_present]]
    nearest = np.full(len(x), -1, np.int64)
    present = ~np.isnan(x)
    if axis.feature.categories is not None:
        at = np.searchsorted(ordered, x[present])
        found = np.append(ordered, np.nan)[at] == x[present]
        nearest[present] = np.where(found, np.append(order[:n_present], -1)[at], -1)
    elif n_present:
        nearest[present] = order[np.searchsorted((ordered[:-1] + ordered[1:]) / 2, x[present])]
    if n_present < len(values):
        nearest[~present] = order[n_present]
    return nearest


def _totals(values: np.ndarray, weight: np.ndarray | None) -> tuple[list[int | None], int | None, int]:
    n, n_outputs = values.shape
    if not n:
        return [0] * n_outputs, 0, 0
    if weight is None:
        return [total(column) for column in values.T], n << TOTAL_BITS, n
    return [total(column * weight) for column in values.T], total(weight), n


def _means(parts: list[Totals]) -> tuple[np.ndarray, np.ndarray]:
    """Means at each point, [1, n_points, n_outputs], and the numbers of rows, [n_points]."""
    if not any(amount for part in parts for _, amount, _ in part):
        raise DataError("inspect: no row has a weight above 0")
    means, counts = [], []
    for at_point in zip(*parts, strict=True):
        totals, amounts, numbers = zip(*at_point, strict=True)
        means.append([_mean(of_output, amounts) for of_output in zip(*totals, strict=True)])
        counts.append(sum(numbers))
    return np.array(means)[None], np.array(counts)


def _mean(totals: Sequence[int | None], amounts: Sequence[int | None]) -> float:
    """Quotient of two exact sums, rounded once; NaN for no rows and for values that are not finite."""
    if None in totals or None in amounts or not any(amounts):
        return float("nan")
    return sum(filter(None, totals)) / sum(filter(None, amounts))


def _tidy(
    ensemble: Ensemble, on: list[Axis], values: np.ndarray, numbers: np.ndarray | None, counts: np.ndarray | None
) -> pd.DataFrame:
    """One row of the result per (row,) point and class. values : float64[n_rows or 1, n_points, n_outputs]."""
    n_rows, n_points, n_outputs = values.shape
    columns: dict[str, Any] = {}
    if numbers is not None:
        columns["row"] = np.repeat(numbers, n_points * n_outputs)
    inner = n_points
    for axis in on:
        name = axis.feature.name
        inner //= len(axis.values)
        of_point = np.tile(np.repeat(axis.shown, inner), n_points // (inner * len(axis.values)))
        columns[f"feature {name}" if name in TAKEN else name] = np.tile(np.repeat(of_point, n_outputs), n_rows)
    if n_outputs > 1:
        classes = np.empty(n_outputs, object)
        classes[:] = ensemble.output_names
        columns["class"] = np.tile(classes, n_rows * n_points)
    columns["value"] = values.ravel()
    if counts is not None:
        columns["count"] = np.repeat(counts, n_outputs)
    return pd.DataFrame(columns)
