"""Interaction constraints, feature sampling and monotonic constraints."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import lightgbm
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.ensemble import HistGradientBoostingRegressor

import dboost
from dboost import DBoostClassifier
from dboost.errors import ParameterError
from dboost.model.ensemble import Tree
from dboost.trees.split_finder import mark_children, mark_root, new_feature_paths
from dboost.trees.tree_task import FeatureConstraints
from tests.helpers.fits import FEATURES, mixed_frame
from tests.helpers.naive import bounded as naive
from tests.helpers.tune import Tune

FRAME = mixed_frame()


@pytest.fixture(autouse=True)
def several_threads_for_small_tables(tune: Tune) -> None:
    tune(small_cells=0)


def paths(tree: Tree) -> Iterator[tuple[int, ...]]:
    """Return the features on each path of a tree."""
    stack: list[tuple[int, tuple[int, ...]]] = [(0, ())]
    while stack:
        node, above = stack.pop()
        feature = int(tree.feature[node])
        if feature < 0:
            yield above
        else:
            stack += [(int(child), (*above, feature)) for child in (tree.left[node], tree.right[node])]


# One tree.


@given(
    n=st.integers(1, 12),
    share=st.sampled_from([0.01, 0.3, 0.5, 0.99, 1.0]),
    seed=st.integers(0, 2**64 - 1),
    sides=st.lists(st.integers(0, 1), max_size=4),
    data=st.data(),
)
def test_what_a_node_may_split_by(n: int, share: float, seed: int, sides: list[int], data: st.DataObject) -> None:
    """Step by step along a path, as the naive counterpart computes it from the whole path at once."""
    groups = data.draw(st.none() | st.lists(st.sets(st.integers(0, n - 1), min_size=1), min_size=1, max_size=5))
    constraints, allowed, way = FeatureConstraints.of(share, groups, n, seed), np.ones(n, np.uint8), []
    if constraints is None:
        return
    paths = new_feature_paths(constraints, 3)
    mark_root(constraints, allowed, paths)
    found = set(np.flatnonzero(paths.open[0]).tolist())
    assert found == naive.open_features(n, groups, share, seed, [])
    for side in sides:
        if not found:
            break
        feature = data.draw(st.sampled_from(sorted(found)))
        way.append((feature, side))
        mark_children(constraints, allowed, paths, feature)
        found = set(np.flatnonzero(paths.open[side]).tolist())
        assert found == naive.open_features(n, groups, share, seed, way)
        paths.path_hash[0], paths.active[0] = paths.path_hash[1 + side], paths.active[1 + side]


# Whole fits.


GROUPS = {
    "listed, the rest together": ([["x", "town"], [1, 2, "x"]], [{0, 4}, {1, 2, 0}, {3, 5, 6}]),
    "pairwise": ("pairwise", [set(pair) for pair in combinations(range(7), 2)]),
    "none": ("no_interactions", [{f} for f in range(7)]),
}


@pytest.mark.parametrize("kind", GROUPS)
def test_only_features_of_a_group_meet(kind: str) -> None:
    given, groups = GROUPS[kind]
    booster = dboost.fit(FRAME, "y", features=FEATURES, max_iter=30, min_samples_leaf=2, interaction_cst=given)
    met = [set(path) for tree in booster.ensemble.trees for path in paths(tree)]
    assert all(any(path <= group for group in groups) for path in met)
    assert max(map(len, met)) == max(map(len, groups)), "as many as may"
    free = dboost.fit(FRAME, "y", features=FEATURES, max_iter=30, min_samples_leaf=2)
    assert not all(any(set(p) <= g for g in groups) for tree in free.ensemble.trees for p in paths(tree))


def wave(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 3))
    X[rng.random(n) < 0.05, 2] = np.nan
    y = 2 * X[:, 0] + np.sin(6 * X[:, 0]) - X[:, 1] ** 3 - np.cos(5 * X[:, 1]) / 3 + np.nan_to_num(X[:, 2]) * X[:, 0]
    return X, y + rng.normal(size=n) / 3


@pytest.mark.fast_cells(3)
@pytest.mark.parametrize("loss", ["squared_error", "log_loss", "absolute_error", "poisson"])
@pytest.mark.parametrize("growth", ["best_first", "depth_wise"])
def test_predictions_are_monotonic(loss: str, growth: str) -> None:
    X, y = wave(1500, 0)
    target = {"log_loss": y > 0, "poisson": np.exp(y / 2)}.get(loss, y)
    booster = dboost.fit(
        X, target, loss=loss, max_iter=30, growth=growth, min_samples_leaf=3, monotonic_cst=[1, -1, 0], max_features=0.8
    )
    free = dboost.fit(X, target, loss=loss, max_iter=30, growth=growth, min_samples_leaf=3)
    steps = np.linspace(-1.2, 1.2, 300)
    falls = {"bound": 0, "free": 0}
    for row in X[:40]:
        for feature, way in ((0, 1), (1, -1)):
            ladder = np.repeat(row[None], len(steps), axis=0)
            ladder[:, feature] = steps
            for name, model in (("bound", booster), ("free", free)):
                falls[name] += int((np.diff(model.predict(ladder, raw_score=True)) * way < 0).sum())
    assert falls["bound"] == 0
    assert falls["free"] > 0


@pytest.mark.slow
def test_constrained_models_are_as_good_as_elsewhere() -> None:
    X, y = wave(4000, 1)
    test, truth = wave(4000, 2)
    common = {"learning_rate": 0.1, "max_leaf_nodes": 15, "min_samples_leaf": 20, "l2_regularization": 1.0}
    ours = dboost.fit(X, y, max_iter=60, monotonic_cst={"f0": 1, "f1": -1}, **common).predict(test)
    sklearn = HistGradientBoostingRegressor(max_iter=60, monotonic_cst=[1, -1, 0], early_stopping=False, **common).fit(X, y)
    parameters = {"num_leaves": 15, "min_data_in_leaf": 20, "lambda_l2": 1.0, "monotone_constraints": [1, -1, 0], "verbose": -1}
    light = lightgbm.train(parameters, lightgbm.Dataset(X, y), 60)
    errors = [float(np.mean((found - truth) ** 2)) for found in (ours, sklearn.predict(test), light.predict(test))]
    assert errors[0] <= 1.03 * min(errors[1:])


def test_several_classes_have_no_directions() -> None:
    X, _ = wave(500, 3)
    with pytest.raises(ParameterError, match="multiclass classification"):
        DBoostClassifier(monotonic_cst=[1, 0, 0]).fit(X, np.arange(500) % 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"monotonic_cst": {"x": 2}}, r"monotonic_cst\['x'\] must be either -1, 0 or 1. Got 2"),
        ({"monotonic_cst": {"y": 1}}, r"monotonic_cst contains 1 unexpected feature names: \['y'\]"),
        ({"monotonic_cst": [1, 0]}, r"monotonic_cst has shape \(2,\) but the input data have 7 features"),
        ({"monotonic_cst": {"town": 1}}, "Categorical features cannot have monotonic constraints: remove that of 'town'"),
        ({"monotonic_cst": "up"}, "monotonic_cst='up' must be a dict"),
        ({"monotonic_cst": {"x": 1}, "step": "line_search"}, "monotonic_cst needs step='leaf'"),
        ({"interaction_cst": [["x", "nowhere"]]}, "specifying the position of features, .* contains 'nowhere'"),
        ({"interaction_cst": [[0, 7]]}, r"\[0, n_features - 1\] = \[0, 6\], .* contains 7"),
        ({"interaction_cst": "some"}, "must be a sequence of tuples or lists .* not interaction_cst='some'"),
        ({"interaction_cst": [1, 2]}, r"must be a sequence of tuples or lists .* not interaction_cst=\[1, 2\]"),
    ],
)
def test_what_cannot_be_obeyed(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        dboost.fit(FRAME, "y", features=FEATURES, **options)
