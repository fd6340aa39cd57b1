"""Shapley values: how much each feature moved each prediction away from the expected one.

The values of a row add up to its raw score minus `expected_value`. There are two ways to replace a feature that is not yet
known:

- *path-dependent* (no background): by the training rows at each node, weighted by their Hessians. It needs no data and
  equals XGBoost's ``pred_contribs``.
- *interventional* (with a background): by the values of background rows, independent of the other features. It measures the
  effect of changing the feature, and is exactly 0 for a feature without splits.

Interaction values split a row's values further, into a symmetric matrix whose rows add up to the values: half of the pairwise
interactions off the diagonal, main effects on it. `dboost.kernels.shap` explains the method.

**Layouts.** The kernels read trees as edges or as root-to-leaf paths. The splits of a path on one feature become one element.
For an unknown feature, an element has the fraction z of rows that follow the path: either of the training rows (the product of
the fractions at the splits on the feature, by sums of Hessians: "path-dependent"), or of the rows of a background table
("interventional"). A single background row follows an edge or does not, so z is 0 or 1; rows with equal decisions along a path
are merged into one path with the corresponding fraction of the leaf's value, so the work grows with the number of distinct
decisions, not with the number of background rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from dboost.data import feature_block, predict_through
from dboost.data.columns.chunk import plain_blocks
from dboost.data.kinds.predictor import by_blocks
from dboost.data.kinds.table_kinds import in_parts, is_source, is_stream
from dboost.errors import MissingExtraError, ParameterError
from dboost.inspection.row_functions import call, lazy_pieces, on_partitions
from dboost.kernels import shap as kernels
from dboost.kernels.shap import Forest, attribute, attribute_paths, interact, interact_paths, new_scratch
from dboost.model.ensemble import Ensemble, FlatEnsemble, Tree, share_out
from dboost.schema import Feature


@dataclass(frozen=True, eq=False)
class Path:
    """The path to one leaf of a tree."""

    #: Value of the leaf.
    value: float
    #: int64[m], features with splits on the path, ascending.
    features: np.ndarray
    #: int64[m], the last edge on each feature: twice the split's number, plus 1 to the right.
    edges: np.ndarray
    #: float64[m], fraction of training rows that follow the path at the splits on each feature.
    shares: np.ndarray


def split_numbers(tree: Tree) -> np.ndarray:
    """Return the number of the split at each node, from 0 in node order: int64[n_nodes], undefined in leaves."""
    return np.cumsum(tree.feature >= 0) - 1


def has_counts(ensemble: Ensemble) -> bool:
    """Return whether counts of training rows are in the model, as opposed to a fit with ``keep_summary=False``."""
    if all(source.get("rows") is not None for source in ensemble.sources):
        return True
    return all(tree.n_nodes == 1 or tree.cover[0] > 0 or tree.count[0] > 0 for tree in ensemble.trees)


def check_counts(ensemble: Ensemble, method: str, instead: str) -> None:
    """Raise ParameterError if the model has no counts of training rows.

    method : the function that needs them, for the message; instead : what the user may do.
    """
    if not has_counts(ensemble):
        raise ParameterError(
            f"{method} weights branches by their training rows, but the model was trained with keep_summary=False and contains "
            f"no counts: {instead}"
        )


def shares(tree: Tree, by: str = "cover") -> np.ndarray:
    """Return the fraction of its parent's training rows in each node: float64[n_nodes], 1 at the root.

    by : "cover" (sums of Hessians) or "count". Where the children's sum is 0, counts are used, then 0.5.
    """
    share = np.ones(tree.n_nodes)
    split = np.flatnonzero(tree.feature >= 0)
    left, right = tree.left[split], tree.right[split]
    part = np.full(len(split), 0.5)
    for amount in (tree.count, tree.cover if by == "cover" else tree.count):
        both = (amount[left] + amount[right]).astype(np.float64)
        np.divide(amount[left], both, out=part, where=both > 0)
    share[left], share[right] = part, 1.0 - part
    return share


def paths_of(tree: Tree) -> Iterator[Path]:
    """Yield the paths to the leaves, from left to right."""
    number, share = split_numbers(tree), shares(tree)
    pending: list[tuple[int, dict[int, tuple[int, float]]]] = [(0, {})]
    while pending:
        node, elements = pending.pop()
        feature = int(tree.feature[node])
        if feature < 0:
            items = sorted(elements.items())
            yield Path(
                float(tree.value[node]),
                np.array([j for j, _ in items], np.int64),
                np.array([edge for _, (edge, _) in items], np.int64),
                np.array([z for _, (_, z) in items]),
            )
            continue
        z = elements[feature][1] if feature in elements else 1.0
        for child, edge in ((int(tree.right[node]), 2 * number[node] + 1), (int(tree.left[node]), 2 * number[node])):
            pending.append((child, elements | {feature: (int(edge), z * share[child])}))


def lay_out(ensemble: Ensemble, background: np.ndarray | None = None, *, pairs: bool = False) -> Forest:
    """Return the trees of an ensemble as the Shapley kernels read them.

    background : float32 or float64 [n, n_features], optional; makes the fractions interventional, for the kernels of paths.
    pairs : whether the kernel of interactions of edges will be used.
    """
    trees = ensemble.trees
    used = np.unique(np.concatenate([np.empty(0, np.int64), *(tree.feature[tree.feature >= 0] for tree in trees)]))
    levels = [ensemble.features[column].categories for column in used]
    n_levels = np.array([-1 if column_levels is None else len(column_levels) for column_levels in levels], np.int64)
    ends = np.cumsum([0, *((tree.feature >= 0).sum() for tree in trees)])
    splits, edges = np.zeros(ends[-1], kernels.SPLIT), np.zeros((ends[-1], 2), kernels.EDGE)
    sets, n_words = [np.zeros(1, np.uint32)], 1
    for tree, first in zip(trees, ends, strict=False):
        nodes = np.flatnonzero(tree.feature >= 0)
        children, share = np.stack([tree.left[nodes], tree.right[nodes]], axis=1), shares(tree)
        tree_splits, tree_edges = splits[first : first + len(nodes)], edges[first : first + len(nodes)]
        tree_splits["place"], tree_splits["into"] = np.searchsorted(used, tree.feature[nodes]), _edges_into_splits(tree)
        tree_splits["threshold"], tree_splits["missing_left"] = tree.threshold[nodes], tree.missing_left[nodes]
        tree_edges["fraction"] = share[children]
        tree_edges["value"] = np.where(tree.feature[children] < 0, tree.value[children], 1.0)
        for i in np.flatnonzero(n_levels[tree_splits["place"]] >= 0):
            tree_splits["word"][i] = n_words
            sets.append(_left_words(tree, int(nodes[i]), int(n_levels[tree_splits["place"][i]])))
            n_words += len(sets[-1])
    first_of = np.repeat(ends[:-1], np.diff(ends))
    links = _Links(splits["place"], splits["into"], first_of)
    edges = edges.reshape(-1)
    edges["share"] = links.products(edges["fraction"])
    n_edges = 2 * int(np.diff(ends).max(initial=0))
    above, into = links.above, splits["into"]
    at = 2 * first_of + above
    splits["above_share"] = np.where(above < 0, 1.0, edges["share"][np.maximum(at, 0)])
    splits["above"], splits["into"] = np.where(above < 0, n_edges, above), np.where(into < 0, n_edges, into)
    others = np.empty(0, kernels.OTHER)
    if pairs:
        others, splits["first_other"], splits["last_other"] = links.others(edges["share"])
    n_features = links.n_features()
    records = np.zeros(len(trees), kernels.TREE)
    records["first_split"], records["last_split"] = ends[:-1], ends[1:]
    n_points = np.array([n_features[a:b].max(initial=0) + 1 for a, b in pairwise(ends)], np.int64) // 2
    records["first_point"] = n_points * (n_points - 1) // 2
    records["last_point"] = records["first_point"] + n_points
    paths, elements = np.empty(0, kernels.PATH), np.empty(0, kernels.ELEMENT)
    if background is not None:
        paths, elements, records["first_path"], records["last_path"] = _lay_out_paths(ensemble, used, background)
    points = _points(int(n_points.max(initial=1)))
    return Forest(
        used.astype(np.int64), n_levels, records, splits, edges, others, paths, elements, np.concatenate(sets), points, n_edges
    )


class _Links:
    """For the splits of several trees, the edges above them; found for all splits at once, one level up after the other.

    Parameters
    ----------
    place : int64[n], the split's feature
    into : int64[n], the edge of the tree that leads to the split, or -1
    first : int64[n], the first split of its tree
    """

    def __init__(self, place: np.ndarray, into: np.ndarray, first: np.ndarray) -> None:
        self._place, self._into, self._first = place, into.copy(), first
        #: int64[n], the edge above on the same feature, or -1.
        self.above = np.full(len(place), -1, np.int64)
        for splits, at, parents in self._climb():
            is_same = (self.above[splits] < 0) & (place[parents] == place[splits])
            self.above[splits[is_same]] = at[is_same]

    def _climb(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield splits, an edge above each of them, and the split that it leaves; from the nearest edges to the root."""
        splits, at = np.flatnonzero(self._into >= 0), self._into[self._into >= 0]
        while len(splits):
            parents = self._first[splits] + at // 2
            yield splits, at, parents
            at = self._into[parents]
            splits, at = splits[at >= 0], at[at >= 0]

    def products(self, fraction: np.ndarray) -> np.ndarray:
        """Return the products of the edges' fractions along the edges above on the same feature: float64[2 n]."""
        product = fraction.copy()
        edges, at = np.arange(2 * len(self.above)), np.repeat(self.above, 2)
        while len(edges):
            edges, at = edges[at >= 0], at[at >= 0]
            above = 2 * self._first[edges // 2] + at
            product[edges] *= fraction[above]
            at = self.above[above // 2]
        return product

    def n_features(self) -> np.ndarray:
        """Return the number of features on the path down to each split, with that of the split: int64[n]."""
        is_new = (self.above < 0).astype(np.int64)
        counts = is_new.copy()
        for splits, _, parents in self._climb():
            counts[splits] += is_new[parents]
        return counts

    def others(self, share: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the last edges of the other features above the splits, and the range of those of each split."""
        lower = [self._place]
        parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        for splits, at, parents in self._climb():
            edge_place = self._place[parents]
            is_last = ~np.any([places[splits] == edge_place for places in lower], axis=0)
            parts.append((splits[is_last], at[is_last], parents[is_last]))
            seen = np.full(len(self._place), -1, np.int64)
            seen[splits] = edge_place
            lower.append(seen)
        n = len(self._place)
        if not parts:
            return np.empty(0, kernels.OTHER), np.zeros(n, np.int64), np.zeros(n, np.int64)
        splits, at, parents = (np.concatenate(part) for part in zip(*parts, strict=True))
        order = np.argsort(splits, kind="stable")
        splits, at, parents = splits[order], at[order], parents[order]
        records = np.empty(len(splits), kernels.OTHER)
        records["edge"], records["place"], records["share"] = at, self._place[parents], share[2 * parents + at % 2]
        return records, np.searchsorted(splits, np.arange(n)), np.searchsorted(splits, np.arange(n), "right")


def _lay_out_paths(
    ensemble: Ensemble, used: np.ndarray, background: np.ndarray
) -> tuple[np.ndarray, np.ndarray, list[int], list[int]]:
    """Return the paths of an ensemble, their elements, and the range of paths of each tree."""
    index_of = {int(column): i for i, column in enumerate(used)}
    paths: list[tuple[int, int, int, float]] = []
    edges, columns, z = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0)]
    n_elements, ends = 0, [0]
    for tree in ensemble.trees:
        answers = edge_answers(tree, background, ensemble)
        for path in paths_of(tree):
            m = len(path.features)
            if not m:
                continue
            n_points = (m + 1) // 2
            path_columns = np.array([index_of[int(j)] for j in path.features])
            for value, of_elements in _versions(path, answers):
                paths.append((n_elements, n_elements + m, n_points * (n_points - 1) // 2, value))
                edges.append(path.edges)
                columns.append(path_columns)
                z.append(of_elements)
                n_elements += m
        ends.append(len(paths))
    elements = np.empty(n_elements, kernels.ELEMENT)
    elements["edge"], elements["place"], elements["share"] = np.concatenate(edges), np.concatenate(columns), np.concatenate(z)
    return np.array(paths, kernels.PATH), elements, ends[:-1], ends[1:]


def _versions(path: Path, answers: np.ndarray) -> Iterator[tuple[float, np.ndarray]]:
    """Yield a part of the path's value, and its fractions, for each of the distinct decisions of background rows."""
    decisions, counts = np.unique(answers[:, path.edges], axis=0, return_counts=True)
    for decision, count in zip(decisions, counts, strict=True):
        yield path.value * count / len(answers), decision.astype(np.float64)


def _edges_into_splits(tree: Tree) -> np.ndarray:
    """Return the edge that leads to each split, -1 for the root: int64[n_splits]."""
    splits, into = np.flatnonzero(tree.feature >= 0), np.full(tree.n_nodes, -1, np.int64)
    into[tree.left[splits]], into[tree.right[splits]] = 2 * np.arange(len(splits)), 2 * np.arange(len(splits)) + 1
    return into[splits]


def edge_answers(tree: Tree, matrix: np.ndarray, ensemble: Ensemble) -> np.ndarray:
    """Return whether rows follow each edge and those above it on the same feature: bool[n, n_edges]."""
    split = np.flatnonzero(tree.feature >= 0)
    above = _Links(tree.feature[split], _edges_into_splits(tree), np.zeros(len(split), np.int64)).above
    answers = np.ones((len(matrix), 2 * len(split)), np.bool_)
    for i, node in enumerate(split):
        left = goes_left(tree, int(node), matrix[:, tree.feature[node]], ensemble)
        before = answers[:, above[i]] if above[i] >= 0 else np.True_
        answers[:, 2 * i], answers[:, 2 * i + 1] = left & before, ~left & before
    return answers


def goes_left(tree: Tree, node: int, x: np.ndarray, ensemble: Ensemble) -> np.ndarray:
    """Return whether values of a split's feature go left: bool[n]."""
    levels = ensemble.features[tree.feature[node]].categories
    if levels is None:
        return np.where(np.isnan(x), bool(tree.missing_left[node]), x <= tree.threshold[node])
    left = np.zeros(len(levels) + 1, np.bool_)
    left[tree.categories[node]] = True
    left[-1] = tree.missing_left[node]
    known = (x >= 0) & (x < len(levels))
    return left[np.where(known, x, len(levels)).astype(np.int64)]


def _left_words(tree: Tree, node: int, n_levels: int) -> np.ndarray:
    """Bit mask of the codes that go left; the last bit stands for missing values."""
    bits = np.zeros((n_levels // 32 + 1) * 32, np.bool_)
    bits[tree.categories[node]] = True
    bits[n_levels] = tree.missing_left[node]
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)


def _points(longest: int) -> np.ndarray:
    """Gauss–Legendre points and weights on (0, 1), for 1, 2, …, `longest` points one after another."""
    points = np.empty(longest * (longest + 1) // 2, kernels.POINT)
    for n in range(1, longest + 1):
        t, weight = np.polynomial.legendre.leggauss(n)
        at = slice(n * (n - 1) // 2, n * (n + 1) // 2)
        points["t"][at], points["weight"][at] = (t + 1) / 2, weight / 2
    return points


def expected_value(ensemble: Ensemble) -> np.ndarray:
    """Return the path-dependent raw score without any known feature: float64[n_outputs]."""
    check_counts(ensemble, "the expected value", "take the mean of predict(background, raw_score=True)")
    ensemble = ensemble.summed().expanded()
    expected = np.array(ensemble.baseline, np.float64)
    for t, tree in enumerate(ensemble.trees):
        expected[ensemble.outputs_of(t)] += sum(path.value * path.shares.prod() for path in paths_of(tree))
    return expected


class Shapley:
    """A function from rows to Shapley values.

    Parameters
    ----------
    ensemble : Ensemble
    background : float32 or float64 [n, n_features], optional
        Rows whose values replace unknown features. Default: the training rows at each node.
    interactions : bool
    n_threads : int, optional
    """

    def __init__(self, ensemble: Ensemble, background: np.ndarray | None, interactions: bool, n_threads: int | None) -> None:
        if background is None:
            check_counts(ensemble, "the path-dependent Shapley value", "give a background")
        self._ensemble, self._background, self._interactions = ensemble.summed().expanded(), background, interactions
        self._n_threads = n_threads

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_forest"}

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a row's values: (features,) or (features, features), and a last axis for several outputs."""
        p, k = len(self._ensemble.features), self._ensemble.n_outputs
        return (p,) * (2 if self._interactions else 1) + ((k,) if k > 1 else ())

    @cached_property
    def _forest(self) -> Forest:
        return lay_out(self._ensemble, self._background, pairs=self._interactions and self._background is None)

    def __call__(self, block: np.ndarray) -> np.ndarray:
        """Return the values of a block's rows: float64[n, *shape]."""
        values = self._run(attribute if self._background is None else attribute_paths, block, 1)
        if self._interactions:
            pairs = 0.5 * self._run(interact if self._background is None else interact_paths, block, 2)
            j = np.arange(pairs.shape[1])
            pairs[:, j, j] = values - pairs.sum(axis=2)
            values = pairs
        return values if self._ensemble.n_outputs > 1 else values[..., 0]

    def _run(self, kernel: Callable[..., None], matrix: np.ndarray, n_axes: int) -> np.ndarray:
        forest, k = self._forest, self._ensemble.n_outputs
        sums = np.zeros((len(matrix), *(len(forest.columns),) * n_axes, k))
        if not len(forest.columns):
            return np.zeros((len(matrix), *(len(self._ensemble.features),) * n_axes, k))

        def work(start: int, stop: int) -> None:
            for rows, block in plain_blocks(matrix, start, stop):
                kernel(forest, block, (0, len(block)), sums[rows], new_scratch(forest, prod(sums.shape[1:])))

        share_out(work, len(matrix), 20 * max(len(forest.paths), len(forest.splits)), self._n_threads)
        if len(forest.columns) == len(self._ensemble.features):
            return sums
        values = np.zeros((len(matrix), *(len(self._ensemble.features),) * n_axes, k))
        used: Any = (slice(None), *np.ix_(*(forest.columns,) * n_axes))
        values[used] = sums
        return values


def shap_values(ensemble: Ensemble, data: Any, background: Any, interactions: bool, n_threads: int | None) -> Any:
    """Return the Shapley values of a table of any kind; `Booster.shap_values` documents them.

    One value per feature comes as a frame for frames; everything else is an array with one more axis, lazy for Dask.
    """
    rows = None
    if background is not None:
        if in_parts(background):
            raise ParameterError("the background must be a table in memory: compute a sample of some hundred rows")
        rows = feature_block(background, ensemble.features, ensemble.named, subject="background")
        if not len(rows):
            raise ParameterError("the background has no rows")
    if n_threads is None and is_source(data):
        n_threads = 1
    function = Shapley(ensemble, rows, interactions, n_threads)
    if len(function.shape) == 1:
        names = [feature.name for feature in ensemble.features]
        return predict_through(data, function, features=ensemble.features, named=ensemble.named, names=names)
    if is_source(data):
        return _lazy_array(data, ensemble, function)
    if is_stream(data):
        values = partial(_values, function, ensemble.features, ensemble.named)
        parts = list(on_partitions(lambda batch, _: values(batch), data, ensemble))
        return np.concatenate(parts) if parts else np.empty((0, *function.shape))
    return by_blocks(lambda block, _: function(block), data, ensemble.features, ensemble.named)


def explanation(ensemble: Ensemble, data: Any, background: Any, interactions: bool, n_threads: int | None) -> Any:
    """Return the Shapley values of a table in memory as a `shap.Explanation`, for the plots of that library.

    Its `data` are numbers, with categories as codes; `display_data` has the categories.

    Raises
    ------
    MissingExtraError
        If shap is not installed.
    ParameterError
        For Dask collections, paths and streams.
    """
    try:
        import shap
    except ImportError as error:
        raise MissingExtraError("shap.Explanation needs the library shap: pip install shap") from error
    if in_parts(data):
        raise ParameterError("as_explanation=True needs rows in memory: compute them, or a sample of them")
    values = np.asarray(shap_values(ensemble, data, background, interactions, n_threads))
    block = np.asarray(feature_block(data, ensemble.features, ensemble.named), np.float64)
    if background is None:
        base = expected_value(ensemble)
    else:
        rows = feature_block(background, ensemble.features, ensemble.named, subject="background")
        base = FlatEnsemble(ensemble).raw_scores(rows).mean(axis=0)
    one_output = ensemble.n_outputs == 1
    return shap.Explanation(
        values=values,
        base_values=np.repeat(base[None, :], len(block), axis=0)[:, 0 if one_output else slice(None)],
        data=block,
        display_data=_displayed(block, ensemble) if any(feature.is_categorical for feature in ensemble.features) else None,
        feature_names=[feature.name for feature in ensemble.features],
        output_names=None if one_output else [str(name) for name in ensemble.outputs.names],
    )


def _displayed(block: np.ndarray, ensemble: Ensemble) -> np.ndarray:
    """Return a block with categories instead of codes, None for missing and unknown ones: object[n, n_features]."""
    shown = block.astype(object)
    for j, feature in enumerate(ensemble.features):
        if feature.categories is not None:
            levels = dict(enumerate(feature.categories))
            shown[:, j] = [levels.get(code) for code in block[:, j].tolist()]
    return shown


def _lazy_array(data: Any, ensemble: Ensemble, function: Shapley) -> Any:
    """A Dask array [n_rows, …] with the data's chunks (of unknown length if Dask does not know them)."""
    import dask
    import dask.array as da

    pieces, lengths = lazy_pieces(data, ensemble)
    task = dask.delayed(partial(_values, function, ensemble.features, ensemble.named), pure=False, traverse=False)
    parts = [
        da.from_delayed(dask.delayed(call)(task, piece), (length, *function.shape), np.float64)
        for piece, length in zip(pieces, lengths, strict=True)
    ]
    return da.concatenate(parts, allow_unknown_chunksizes=True)


def _values(function: Shapley, features: tuple[Feature, ...], named: bool, piece: Any) -> np.ndarray:
    return by_blocks(lambda block, _: function(block) if len(block) else np.empty((0, *function.shape)), piece, features, named)
