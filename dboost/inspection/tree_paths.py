"""Root-to-leaf paths of trees, in the layout of the Shapley kernels (see `dboost.kernels.shap`).

The splits of a path on one feature become one element. For an unknown feature, an element has the fraction z of rows that
follow the path: either of the training rows (the product of the fractions at the splits on the feature, by sums of Hessians:
"path-dependent"), or of the rows of a background table ("interventional"). A single background row follows an edge or does
not, so z is 0 or 1; rows with equal decisions along a path are merged into one path with the corresponding fraction of the
leaf's value, so the work grows with the number of distinct decisions, not with the number of background rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dboost.errors import ParameterError
from dboost.kernels import shap as kernels
from dboost.kernels.shap import Paths
from dboost.model.ensemble import Ensemble, Tree


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


def check_counts(ensemble: Ensemble, what: str, instead: str) -> None:
    """Raise ParameterError if the model has no counts. what : needs them; instead : what the user may do."""
    if not has_counts(ensemble):
        raise ParameterError(
            f"{what} weights branches by their training rows, but the model was trained with keep_summary=False and contains "
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


def paths_of(tree: Tree, by: str = "cover") -> Iterator[Path]:
    """Yield the paths to the leaves, from left to right."""
    number, share = split_numbers(tree), shares(tree, by)
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


def lay_out_paths(ensemble: Ensemble, first_tree: int, last_tree: int, background: np.ndarray | None = None) -> Paths:
    """Return the paths of some trees of an ensemble.

    background : float32 or float64 [n, n_features], optional; makes the fractions interventional.
    """
    trees = ensemble.trees[first_tree:last_tree]
    used = np.unique(np.concatenate([np.empty(0, np.int64), *(tree.feature[tree.feature >= 0] for tree in trees)]))
    index_of = {int(column): i for i, column in enumerate(used)}
    levels = [ensemble.features[column].categories for column in used]
    n_levels = np.array([-1 if of_column is None else len(of_column) for of_column in levels], np.int64)
    splits: list[tuple[float, int, bool, int, int]] = []
    sets = [np.zeros(1, np.uint32)]
    n_words = 1
    records: list[tuple[int, int, int, int]] = []
    paths: list[tuple[int, int, int, float]] = []
    edges, columns, z = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0)]
    n_elements, longest = 0, 1
    for tree in trees:
        first_split, first_path = len(splits), len(paths)
        above = _edges_above(tree)
        for node in np.flatnonzero(tree.feature >= 0):
            column = index_of[int(tree.feature[node])]
            word = 0
            if n_levels[column] >= 0:
                word = n_words
                sets.append(_left_words(tree, int(node), int(n_levels[column])))
                n_words += len(sets[-1])
            splits.append((tree.threshold[node], column, tree.missing_left[node], word, above[node]))
        answers = None if background is None else edge_answers(tree, background, ensemble)
        for path in paths_of(tree):
            m = len(path.features)
            if not m:
                continue
            n_points = (m + 1) // 2
            longest = max(longest, n_points)
            of_path = np.array([index_of[int(j)] for j in path.features])
            for value, of_elements in _versions(path, answers):
                paths.append((n_elements, n_elements + m, n_points * (n_points - 1) // 2, value))
                edges.append(path.edges)
                columns.append(of_path)
                z.append(of_elements)
                n_elements += m
        records.append((first_split, len(splits), first_path, len(paths)))
    elements = np.empty(n_elements, kernels.ELEMENT)
    elements["edge"], elements["place"], elements["share"] = np.concatenate(edges), np.concatenate(columns), np.concatenate(z)
    return Paths(
        used.astype(np.int64),
        n_levels,
        np.array(records, kernels.TREE),
        np.array(splits, kernels.SPLIT),
        np.array(paths, kernels.PATH),
        elements,
        np.concatenate(sets),
        _points(longest),
        2 * max((tree.n_leaves - 1 for tree in trees), default=0),
    )


def _versions(path: Path, answers: np.ndarray | None) -> Iterator[tuple[float, np.ndarray]]:
    """Values and fractions of a path: those of the training rows, or one version per distinct decisions of background rows."""
    if answers is None:
        yield path.value, path.shares
        return
    decisions, counts = np.unique(answers[:, path.edges], axis=0, return_counts=True)
    for decision, count in zip(decisions, counts, strict=True):
        yield path.value * count / len(answers), decision.astype(np.float64)


def _edges_above(tree: Tree) -> np.ndarray:
    """For each split, the last edge on its path that is on the same feature, or -1: int64[n_nodes]."""
    above, number = np.full(tree.n_nodes, -1, np.int64), split_numbers(tree)
    pending: list[tuple[int, dict[int, int]]] = [(0, {})]
    while pending:
        node, last = pending.pop()
        feature = int(tree.feature[node])
        if feature < 0:
            continue
        above[node] = last.get(feature, -1)
        for child, side in ((int(tree.right[node]), 1), (int(tree.left[node]), 0)):
            pending.append((child, last | {feature: int(2 * number[node] + side)}))
    return above


def edge_answers(tree: Tree, matrix: np.ndarray, ensemble: Ensemble, features: list[int] | None = None) -> np.ndarray:
    """Return whether rows follow each edge and those above it on the same feature: bool[n, n_edges].

    features : only edges on these are computed (the others are True). Default: all.
    """
    above, split = _edges_above(tree), np.flatnonzero(tree.feature >= 0)
    answers = np.ones((len(matrix), 2 * len(split)), np.bool_)
    for i, node in enumerate(split):
        if features is not None and tree.feature[node] not in features:
            continue
        left = goes_left(tree, int(node), matrix[:, tree.feature[node]], ensemble)
        before = answers[:, above[node]] if above[node] >= 0 else np.True_
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
        here = slice(n * (n - 1) // 2, n * (n + 1) // 2)
        points["t"][here], points["weight"][here] = (t + 1) / 2, weight / 2
    return points
