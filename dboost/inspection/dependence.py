"""Partial dependence: how predictions depend on one or two features, and interactions between features.

Four ways to reduce a function of all features to a function of x_z, the features of interest (equations of Friedman, 2001):

*Weighted traversal* (section 8.2; no data). Go down a tree from the root; at a split on a feature of z follow the value, at
any other split go both ways, weighted by the fractions of training rows. The weighted sum of the leaf values is the tree's
dependence on x_z.

*Average* (51)–(53). Replace x_z in every row of the data by a value, predict, and take the mean over the rows: the
*partial dependence*. If the features of z are independent of the others, it equals the traversal.

*Individual* (50). The same without the mean: one curve per row (ICE curves), which show whether rows agree.

*Conditional* (56). The mean prediction of the rows that *have* the value, or one nearest to it. It includes the effect of
features that are correlated with x_z.

Means are quotients of exact sums over rows (`dboost.exact`), the same for any partitioning. With sample weights
they are weighted means: a row of weight 2 equals the row twice, rows of weight 0 are ignored.

**Grids.** Without data, the values of a feature follow the model's split points, which are quantiles of the training rows, or
half-way between neighbouring values if there were few of these. The middle between two split points represents the values of
that bin, so codes like 1, 2, …, 7 are met exactly; of many bins some are chosen, evenly by rank. With data, the grid consists
of the values themselves if there are few, else of values between the first and the last percent: half of them evenly spaced by
rows, half evenly by distinct values. A categorical feature has all its levels, or with data the most frequent ones. Rows of
weight 0 are ignored, and deciles are weighted.

**Interactions.** If F(x) = F_z(x_z) + F_rest(x_rest), the features of z and the rest do not interact, and partial dependence
recovers the two terms (54); if F is their product, it recovers them up to a factor (55). So the correlation, over the rows, of
F with the sum and with the product of the two dependences measures how additive or multiplicative F is (section 8.1).

Friedman's H compares variances instead of correlating: for two features,

    H² = Σ_i [ F_jk(x_ij, x_ik) - F_j(x_ij) - F_k(x_ik) ]² / Σ_i F_jk(x_ij, x_ik)²,      all F centered over the rows.

Here dependences are computed by weighted traversal of the trees, which needs one pass over the rows instead of one per row.
With sample weights, means and sums are weighted: centered values are multiplied by the square roots of the weights, so that a
product of two of them contains the weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations, pairwise, product
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from dboost._lazy_import import pd
from dboost.data.columns.labels import Names
from dboost.data.kinds.table_kinds import is_stream
from dboost.errors import DataError, InputTypeError, ParameterError
from dboost.exact import TOTAL_BITS, total
from dboost.inspection.importance import importance
from dboost.inspection.row_functions import (
    NO_ROLES,
    Block,
    Key,
    ScoringRoles,
    over_blocks,
    rows_with_roles,
    sample,
)
from dboost.inspection.shapley import check_counts, goes_left, shares
from dboost.model.data_summary import LevelDistribution
from dboost.model.ensemble import Ensemble, FlatEnsemble, Tree
from dboost.model.outputs import Outputs
from dboost.params import Choice, Integer
from dboost.schema import Feature
from dboost.session.reference_sample import summary_of


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
    #: Rows of each value of a categorical feature, float64[n], if they are known; all zero otherwise.
    counts: np.ndarray | None = None
    #: Whether the user chose the values.
    is_chosen: bool = False

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
        A sample of the data, with the columns of these features only.

    Raises
    ------
    ParameterError
        Naming the feature whose grid is not usable.
    """
    grid_values = _given(ensemble, positions, grid)
    n_points = int(grid) if isinstance(grid, Integral) else 50 if len(positions) == 1 else 20
    if n_points < 1:
        raise ParameterError(f"grid={grid!r} must have at least one point")
    if rows is not None and rows.weight is not None:
        rows = rows[rows.weight > 0]
    result = []
    for i, j in enumerate(positions):
        feature = ensemble.features[j]
        column, deciles, counts = None, None, None
        if rows is not None:
            present = rows[~np.isnan(rows.block[:, i])]
            column = present.block[:, i].astype(np.float64)
            if len(column) and feature.categories is None:
                deciles = _deciles(column, present.weight)
        if j in grid_values:
            values = _as_codes(feature, grid_values[j])
        elif feature.categories is not None:
            values = _levels(len(feature.categories), column, n_points)
        elif column is not None and len(column):
            values = _of_rows(column, n_points)
        else:
            values = _of_bins(_split_points(ensemble, j), n_points)
        if feature.categories is not None:
            counts = _counts(ensemble, j, values, column)
        result.append(Axis(feature, j, values, deciles, counts, j in grid_values))
    return result


def _counts(ensemble: Ensemble, j: int, codes: np.ndarray, column: np.ndarray | None) -> np.ndarray:
    """Return how many rows of a column have each code, or how many training rows, as far as the model's summary tells."""
    known = np.zeros(len(ensemble.features[j].categories or ()))
    if column is not None:
        known += np.bincount(column.astype(np.int64), minlength=len(known))
    else:
        summary = summary_of(ensemble)
        distribution = None if summary is None else summary.features[j]
        if isinstance(distribution, LevelDistribution):
            known[distribution.codes] = distribution.counts[: len(distribution.codes)]
    return np.array([0.0 if np.isnan(code) else known[int(code)] for code in codes])


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
        raise ParameterError(f"the grid of {feature.name!r} holds {strange[0]!r}, which is none of its categories")
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
    quantiles = np.quantile(column, np.linspace(0.01, 0.99, n_points - n_values), method="nearest")
    chosen = between[np.round(np.linspace(0, len(between) - 1, n_values + 2)[1:-1]).astype(np.int64)]
    return np.unique(np.concatenate([quantiles, chosen]))


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


def in_order(data: Any, features: Any) -> tuple[Any, Any]:
    """Return data and features as they were given, or only features as (None, features).

    Raises
    ------
    InputTypeError
        If features come first and a table second, or a table comes alone.
    """
    if features is None:
        if data is None or not _are_features(data):
            raise InputTypeError("features are missing: give the data and then the features, or features=…")
        return None, data
    if not _are_features(features):
        raise InputTypeError("data come first and features second: (data, features)")
    return data, features


def _are_features(features: Any) -> bool:
    """Whether these can be names or positions of features."""
    if Names(()).is_label(features):
        return True
    is_list = not hasattr(features, "columns") and getattr(features, "ndim", 1) == 1 and isinstance(features, Iterable)
    return is_list and not is_stream(features)


KINDS = ("average", "individual", "conditional")
SCALES = ("raw", "prediction")
#: Number of rows that grids and deciles are computed from.
SAMPLE_ROWS = 100_000
#: Columns of the result that are not features.
TAKEN = ("value", "class", "row", "count")


def partial_dependence(
    ensemble: Ensemble,
    data: Any,
    features: Any,
    *,
    kind: str = "average",
    grid: Any = None,
    scale: str = "raw",
    centered: bool = False,
    max_rows: int = 1000,
    roles: ScoringRoles = NO_ROLES,
    n_threads: int | None = None,
) -> pd.DataFrame:
    """Return partial dependence; `Booster.partial_dependence` documents it."""
    chosen = ensemble.feature_positions(features, at_most=2)
    for name, value, choices in (("kind", kind, KINDS), ("scale", scale, SCALES)):
        Choice(*choices).checked(name, value)
    if data is None and kind != "average":
        raise ParameterError(f"kind={kind!r} needs rows: pass data=…")
    max_rows = Integer(1).checked("max_rows", max_rows)
    if roles.sample_weight is not None and (data is None or kind == "individual"):
        why = "there are no rows: pass data=…" if data is None else "individual curves are each of one row"
        raise ParameterError(f"sample_weight has nothing to weigh: {why}")
    if roles.offset is not None and data is None:
        raise ParameterError("offset belongs to rows, and there are none: pass data=…")
    data = rows_with_roles(data, ensemble, roles)
    rows = None if data is None else sample(data, ensemble, SAMPLE_ROWS, roles, chosen)[1]
    on = axes(ensemble, chosen, grid, rows)
    at, finish = points(on), partial(_finished, ensemble.outputs, scale == "prediction")
    numbers: np.ndarray | None = None
    counts: np.ndarray | None = None
    if data is None:
        matrix = np.full((len(at), len(ensemble.features)), np.nan)
        matrix[:, chosen] = at
        values = finish(Traversal(ensemble)(chosen, matrix), None)[None]
    elif kind == "individual":
        numbers, block = sample(data, ensemble, max_rows, roles)
        curves = PredictReplaced(ensemble, chosen, at, finish, n_threads)
        values = np.stack([curves.values(block, point) for point in range(len(at))], axis=1)
    else:
        function: Any = PredictReplaced(ensemble, chosen, at, finish, n_threads)
        if kind == "conditional":
            function = PredictGrouped(ensemble, on, len(at), finish, n_threads)
        values, counts = _means(over_blocks(data, ensemble, function, roles))
    if centered:
        values = values - np.nanmean(values, axis=1, keepdims=True)
    names = ensemble.outputs.names if scale == "raw" else ensemble.outputs.linked_names
    frame = _tidy(ensemble, names, on, values, numbers, counts if kind == "conditional" else None)
    deciles = {axis.feature.name: axis.deciles.tolist() for axis in on if axis.deciles is not None}
    shown = [column for column in frame.columns if column not in (*TAKEN, ensemble.outputs.axis)]
    categorical = [axis for axis in on if axis.counts is not None]
    frame.attrs = {
        "kind": kind, "scale": scale, "centered": centered, "deciles": deciles, "features": shown,
        "counts": {axis.feature.name: axis.counts.tolist() for axis in categorical if axis.counts is not None},
        "levels": {
            axis.feature.name: len(axis.values if axis.is_chosen else axis.feature.categories or ()) for axis in categorical
        },
    }  # fmt: skip
    return frame


class Traversal:
    """Weighted traversal of the trees: a function of some features, averaged over the training rows in the others.

    Parameters
    ----------
    ensemble : Ensemble
    """

    def __init__(self, ensemble: Ensemble) -> None:
        check_counts(ensemble, "averaging over the training rows", "give data to partial_dependence")
        self._ensemble = ensemble.summed().expanded()

    @cached_property
    def _trees(self) -> list[_CountedTree]:
        return list(map(_CountedTree.of, self._ensemble.trees))

    @property
    def pairs(self) -> set[frozenset[int]]:
        """Pairs of features that occur together on a path."""
        return {pair for tree in self._trees for pair in tree.pairs()}

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
        is_target = np.zeros(len(self._ensemble.features), bool)
        is_target[targets] = True
        for t, tree in enumerate(self._trees):
            scores[:, self._ensemble.outputs_of(t)] += np.reshape(tree.dependence(is_target, matrix, self._ensemble), (-1, 1))
        return scores


#: Values of nodes, for each of some rows, that are in memory at a time.
_MOST_VALUES = 2**20


class _CountedTree(NamedTuple):
    """A tree whose branches are weighted by their training rows."""

    tree: Tree
    levels: list[np.ndarray]  # splits by their depth, the root first
    share: np.ndarray  # see `shapley.shares`
    mean: np.ndarray  # of the leaf values below each node

    @classmethod
    def of(cls, tree: Tree) -> _CountedTree:
        share, mean = shares(tree, by="count"), tree.value.astype(np.float64)
        depths = np.where(tree.feature >= 0, tree.depths, -1)
        levels = [np.flatnonzero(depths == depth) for depth in range(int(depths.max()) + 1)]
        for level in reversed(levels):
            mean[level] = sum(share[child[level]] * mean[child[level]] for child in (tree.left, tree.right))
        return cls(tree, levels, share, mean)

    def dependence(self, is_target: np.ndarray, matrix: np.ndarray, ensemble: Ensemble) -> np.ndarray | float:
        """Return the dependence of each row on the target features: float64[n], or a number without a split on them.

        is_target : bool[n_features]. Only splits on target features and those above them are visited.
        """
        tree = self.tree
        is_visited, visited = np.zeros(tree.n_nodes, bool), []
        for level in reversed(self.levels):
            is_visited[level] = is_target[tree.feature[level]] | is_visited[tree.left[level]] | is_visited[tree.right[level]]
            visited.append(level[is_visited[level]])
        if not is_visited[0]:
            return float(self.mean[0])
        curve, n_rows = np.empty(len(matrix)), max(_MOST_VALUES // tree.n_nodes, 1)
        for first in range(0, len(matrix), n_rows):
            block = matrix[first : first + n_rows]
            values = np.repeat(self.mean[:, None], len(block), axis=1)
            for level in visited:
                left, right = tree.left[level], tree.right[level]
                values[level] = self.share[left, None] * values[left] + self.share[right, None] * values[right]
                for node in level[is_target[tree.feature[level]]].tolist():
                    is_left = goes_left(tree, node, block[:, tree.feature[node]], ensemble)
                    values[node] = np.where(is_left, values[tree.left[node]], values[tree.right[node]])
            curve[first : first + n_rows] = values[0]
        return curve

    def pairs(self) -> set[frozenset[int]]:
        """Return the pairs of features that occur together on a path."""
        above: dict[int, frozenset[int]] = {0: frozenset()}
        allowed: set[frozenset[int]] = set()
        for node in (node for level in self.levels for node in level.tolist()):
            features, j = above.pop(node), int(self.tree.feature[node])
            if j not in features:
                allowed.update(frozenset((j, partner)) for partner in features)
                features |= {j}
            above[int(self.tree.left[node])] = above[int(self.tree.right[node])] = features
        return allowed


#: Converts raw scores (float64[n, n_outputs]) to the scale of the result, given the offsets of the rows (float64[n]) or None.
Finish = Callable[[np.ndarray, np.ndarray | None], np.ndarray]


def _finished(outputs: Outputs, linked: bool, raw: np.ndarray, offset: np.ndarray | None) -> np.ndarray:
    scores = outputs.with_offset(raw, offset)
    return outputs.linked(scores) if linked else scores


#: For each point: exact sums by output, the exact sum of the weights, and the number of rows.
Totals = list[tuple[list[int | None], int | None, int]]


class PredictReplaced:
    """Sums of the predictions of rows with the target features replaced by each grid point."""

    def __init__(self, ensemble: Ensemble, targets: list[int], at: np.ndarray, finish: Finish, n_threads: int | None) -> None:
        self._flat, self._targets, self._at = FlatEnsemble(ensemble), targets, at
        self._finish, self._n_threads = finish, n_threads

    def values(self, rows: Block, point: int) -> np.ndarray:
        """float64[n, n_outputs]"""
        changed = rows.block.astype(np.float64)
        changed[:, self._targets] = self._at[point]
        return self._finish(self._flat.raw_scores(changed, n_threads=self._n_threads), rows.offset)

    def __call__(self, key: Key, rows: Block) -> Totals:
        return [_totals(self.values(rows, point), rows.weight) for point in range(len(self._at))]


class PredictGrouped:
    """Sums of the predictions of rows, grouped by the grid point nearest to the rows' own values."""

    def __init__(self, ensemble: Ensemble, on: list[Axis], n_points: int, finish: Finish, n_threads: int | None) -> None:
        self._flat, self._on, self._n_points = FlatEnsemble(ensemble), on, n_points
        self._finish, self._n_threads = finish, n_threads

    def __call__(self, key: Key, rows: Block) -> Totals:
        block = rows.block
        cell = np.zeros(len(block), np.int64)
        for axis in self._on:
            nearest = _nearest(axis, block[:, axis.position].astype(np.float64))
            cell = np.where((cell < 0) | (nearest < 0), -1, cell * len(axis.values) + nearest)
        values = self._finish(self._flat.raw_scores(block, n_threads=self._n_threads), rows.offset)
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
        is_exact = np.append(ordered, np.nan)[at] == x[present]
        nearest[present] = np.where(is_exact, np.append(order[:n_present], -1)[at], -1)
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
        means.append([_mean(output_totals, amounts) for output_totals in zip(*totals, strict=True)])
        counts.append(sum(numbers))
    return np.array(means)[None], np.array(counts)


def _mean(totals: Sequence[int | None], amounts: Sequence[int | None]) -> float:
    """Quotient of two exact sums, rounded once; NaN for no rows and for values that are not finite."""
    if None in totals or None in amounts or not any(amounts):
        return float("nan")
    return sum(filter(None, totals)) / sum(filter(None, amounts))


def _tidy(
    ensemble: Ensemble, names: list[Any], on: list[Axis], values: np.ndarray, numbers: np.ndarray | None,
    counts: np.ndarray | None,
) -> pd.DataFrame:  # fmt: skip
    """One row of the result per (row,) point and output. names : of the outputs; values : float64[n_rows or 1, n_points,
    n_outputs]."""
    n_rows, n_points, n_outputs = values.shape
    taken = (*TAKEN, ensemble.outputs.axis)
    columns: dict[str, Any] = {}
    if numbers is not None:
        columns["row"] = np.repeat(numbers, n_points * n_outputs)
    inner = n_points
    for axis in on:
        name = axis.feature.name
        inner //= len(axis.values)
        point_values = np.tile(np.repeat(axis.shown, inner), n_points // (inner * len(axis.values)))
        columns[f"feature {name}" if name in taken else name] = np.tile(np.repeat(point_values, n_outputs), n_rows)
    if n_outputs > 1:
        classes = np.empty(n_outputs, object)
        classes[:] = names
        columns[ensemble.outputs.axis] = np.tile(classes, n_rows * n_points)
    columns["value"] = values.ravel()
    if counts is not None:
        columns["count"] = np.repeat(counts, n_outputs)
    return pd.DataFrame(columns)


#: Number of features whose pairs are computed by default.
MOST_IMPORTANT = 10


def additivity(ensemble: Ensemble, data: Any, features: Any, max_rows: int, weight: Any = None) -> pd.Series | pd.DataFrame:
    """Return the additivity of features; `Booster.additivity` documents it."""
    chosen = ensemble.feature_positions(features)
    rest = [j for j in range(len(ensemble.features)) if j not in chosen]
    if not rest:
        raise ParameterError("these are all features of the model: there is no rest that they could act apart from")
    block, weight = _rows(data, ensemble, max_rows, weight)
    raw, traverse = FlatEnsemble(ensemble).raw_scores(block), Traversal(ensemble)
    part, other_part = traverse(chosen, block), traverse(rest, block)
    table = {}
    for k, name in enumerate(ensemble.outputs.names):
        left_over = _centered(raw[:, k] - part[:, k] - other_part[:, k], weight)
        table[name] = {
            "additive": _correlation(raw[:, k], part[:, k] + other_part[:, k], weight),
            "multiplicative": _correlation(raw[:, k], part[:, k] * other_part[:, k], weight),
            "h": _root_share(left_over, _centered(raw[:, k], weight)),
        }
    frame = pd.DataFrame(table).rename_axis(columns=ensemble.outputs.axis)
    return frame if ensemble.n_outputs > 1 else frame.iloc[:, 0].rename("additivity")


def interaction_strength(
    ensemble: Ensemble, data: Any, features: Sequence[Any] | None, max_rows: int, weight: Any = None
) -> pd.DataFrame:
    """Return the H statistic of pairs; `Booster.interaction_strength` documents it."""
    if features is None:
        features = list(importance(ensemble).index[:MOST_IMPORTANT])
    chosen = ensemble.feature_positions(features)
    if len(chosen) < 2:
        raise ParameterError("interactions are between features: name at least two")
    block, weight = _rows(data, ensemble, max_rows, weight)
    traverse = Traversal(ensemble)
    alone = {j: _centered(traverse([j], block), weight) for j in chosen}
    on_one_path = traverse.pairs
    names, rows, axis = [feature.name for feature in ensemble.features], [], ensemble.outputs.axis
    for i, j in combinations(chosen, 2):
        # Features that share no path in any tree are additive, up to rounding.
        together = _centered(traverse([i, j], block), weight) if {i, j} in on_one_path else alone[i] + alone[j]
        left_over = together - alone[i] - alone[j] if {i, j} in on_one_path else np.zeros_like(together)
        for k, class_name in enumerate(ensemble.outputs.names):
            h = _root_share(left_over[:, k], together[:, k])
            rows.append({"feature_1": names[i], "feature_2": names[j], axis: class_name, "h": h})
    frame = pd.DataFrame(rows).sort_values("h", ascending=False, kind="stable", ignore_index=True)
    return frame if ensemble.n_outputs > 1 else frame.drop(columns=axis)


def _rows(data: Any, ensemble: Ensemble, max_rows: int, weight: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """A sample of the rows and their weights."""
    block = sample(data, ensemble, Integer(1).checked("max_rows", max_rows), ScoringRoles(weight))[1]
    if block.weight is not None and not block.weight.any():
        raise DataError("inspect: no selected row has a weight above 0")
    return block.block, block.weight


def _centered(values: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """Values [n] or [n, n_outputs] minus their mean, times the square roots of the weights."""
    if weight is None:
        return values - values.mean(axis=0)
    centered = values - np.average(values, axis=0, weights=weight)
    return centered * np.sqrt(weight).reshape(-1, *(1,) * (values.ndim - 1))


def _correlation(a: np.ndarray, b: np.ndarray, weight: np.ndarray | None) -> float:
    a, b = _centered(a, weight), _centered(b, weight)
    scale = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / scale) if scale > 0 else float("nan")


def _root_share(part: np.ndarray, whole: np.ndarray) -> float:
    total = float(whole @ whole)
    return float(np.sqrt(part @ part / total)) if total > 0 else float("nan")
