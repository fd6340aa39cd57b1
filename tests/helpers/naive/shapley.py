"""Shapley values by their definition: a sum over all subsets of the features."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations

from dboost.model.ensemble import Ensemble, Tree
from tests.helpers.naive import trees as naive


def expected_when_known(tree: Tree, row: Sequence[float], known: frozenset[int], by: str = "cover") -> float:
    """Return a tree's mean over its training rows; the row is followed where the split's feature is known."""

    def below(node: int) -> float:
        feature = int(tree.feature[node])
        if feature < 0:
            return float(tree.value[node])
        left, right = int(tree.left[node]), int(tree.right[node])
        if feature in known:
            return below(left if goes_left(tree, node, float(row[feature])) else right)
        amount = getattr(tree, by)
        share = amount[left] / (amount[left] + amount[right])
        return float(share * below(left) + (1 - share) * below(right))

    return below(0)


def goes_left(tree: Tree, node: int, value: float) -> bool:
    if math.isnan(value):
        return bool(tree.missing_left[node])
    if tree.categories[node] is not None:
        return int(value) in tree.categories[node].tolist()
    return value <= float(tree.threshold[node])


def path_dependent(ensemble: Ensemble, row: Sequence[float], output: int) -> Callable[[frozenset[int]], float]:
    """The game whose Shapley values are the path-dependent values."""
    trees = ensemble.trees[output :: ensemble.n_outputs]
    start = float(ensemble.baseline[output])
    return lambda known: start + sum(expected_when_known(tree, row, known) for tree in trees)


def interventional(
    ensemble: Ensemble, row: Sequence[float], output: int, background: Sequence[Sequence[float]]
) -> Callable[[frozenset[int]], float]:
    """Return the game in which unknown features have the values of a background row."""

    def play(known: frozenset[int]) -> float:
        mixed = [[row[j] if j in known else other[j] for j in range(len(row))] for other in background]
        return sum(scores[output] for scores in naive.raw_scores(ensemble, mixed)) / len(background)

    return play


def values(play: Callable[[frozenset[int]], float], n: int) -> list[float]:
    """Shapley values of a game of n players."""
    found = []
    for j in range(n):
        others = [i for i in range(n) if i != j]
        found.append(
            sum(
                math.factorial(size) * math.factorial(n - size - 1) / math.factorial(n)
                * (play(frozenset(subset) | {j}) - play(frozenset(subset)))
                for size in range(n)
                for subset in combinations(others, size)
            )
        )  # fmt: skip
    return found


def interactions(play: Callable[[frozenset[int]], float], n: int) -> list[list[float]]:
    """Return half of each pair's Shapley interaction index off the diagonal; the rest of a player's value on it."""
    matrix = [[0.0] * n for _ in range(n)]
    for i, j in combinations(range(n), 2):
        others = [k for k in range(n) if k not in (i, j)]
        total = 0.0
        for size in range(n - 1):
            weight = math.factorial(size) * math.factorial(n - size - 2) / math.factorial(n - 1)
            for subset in map(frozenset, combinations(others, size)):
                together = play(subset | {i, j}) - play(subset | {i}) - play(subset | {j}) + play(subset)
                total += weight * together
        matrix[i][j] = matrix[j][i] = total / 2
    for i, value in enumerate(values(play, n)):
        matrix[i][i] = value - sum(matrix[i])
    return matrix
