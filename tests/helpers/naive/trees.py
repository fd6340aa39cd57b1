"""Predictions of trees, one row and one node at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dboost.model.ensemble import Ensemble, Tree


def final_node(tree: Tree, row: Sequence[float]) -> int:
    """The node where a row ends; categorical features hold the level's code, NaN where missing or unknown."""
    node = 0
    while tree.feature[node] >= 0:
        value = float(row[tree.feature[node]])
        if math.isnan(value):
            goes_left = bool(tree.missing_left[node])
        elif tree.categories[node] is not None:
            goes_left = int(value) in tree.categories[node].tolist()
        else:
            goes_left = value <= float(tree.threshold[node])
        node = int(tree.left[node] if goes_left else tree.right[node])
    return node


def leaf_number(tree: Tree, row: Sequence[float]) -> int:
    """Number of the leaf where a row ends, counted from left to right."""
    from_left: list[int] = []
    to_visit = [0]
    while to_visit:
        node = to_visit.pop()
        if tree.feature[node] < 0:
            from_left.append(node)
        else:
            to_visit += [int(tree.right[node]), int(tree.left[node])]
    return from_left.index(final_node(tree, row))


def raw_scores(ensemble: Ensemble, rows: Sequence[Sequence[float]], n_iterations: int | None = None) -> list[list[float]]:
    """Baseline plus value after value, tree by tree."""
    n_outputs = len(ensemble.baseline)
    trees = ensemble.trees if n_iterations is None else ensemble.trees[: n_iterations * ensemble.trees_per_iteration]
    scores = []
    for row in rows:
        score = [float(baseline) for baseline in ensemble.baseline]
        for t, tree in enumerate(trees):
            values = np.atleast_1d(tree.value[final_node(tree, row)])
            for k, value in enumerate(values.tolist(), t * len(values)):
                score[k % n_outputs] += value
        scores.append(score)
    return scores
