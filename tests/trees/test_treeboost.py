"""TreeBoost as published: the models of scikit-learn's exact implementation, and invariance to the scale of features.

scikit-learn's `GradientBoosting*` are Algorithms 2 to 6 of the paper with trees by exact least squares. With
``criterion="gradient"``, no regularisation and features of few values, dboost has the same candidate splits; only rounding
differs (gradients of 13 or 15 bits, residuals on a border), and which of two equal splits is chosen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor
from sklearn.metrics import r2_score

import dboost
from tests.helpers.loss_fits import OPTIONS, TARGET, X, fit

EVERY = pytest.mark.parametrize("name", TARGET)
PLAIN: dict[str, Any] = {"criterion": "gradient", "l2_regularization": 0.0, "min_hessian": 0.0, "n_threads": 1}

rng = np.random.default_rng(0)
GRID = rng.integers(0, 25, size=(1200, 4)).astype(np.float64)
SIGNAL = np.sin(GRID[:, 0] / 4) + GRID[:, 1] * GRID[:, 2] / 200
NUMBERS = SIGNAL + rng.standard_t(3, size=1200) / 3
CLASSES = np.digitize(SIGNAL + rng.logistic(size=1200) / 3, np.quantile(SIGNAL, (1 / 3, 2 / 3)))
TWO = (CLASSES > 0).astype(np.int64)
BESIDE: dict[str, tuple[np.ndarray, dict[str, Any], dict[str, Any]]] = {
    "LS": (NUMBERS, {"loss": "squared_error"}, {"loss": "squared_error"}),
    "LAD": (NUMBERS, {"loss": "absolute_error"}, {"loss": "absolute_error"}),
    "quantile": (NUMBERS, {"loss": "quantile", "quantile": 0.7}, {"loss": "quantile", "alpha": 0.7}),
    "M": (NUMBERS, {"loss": "huber", "huber_alpha": 0.9}, {"loss": "huber", "alpha": 0.9}),
    "L2": (TWO, {"loss": "log_loss"}, {"loss": "log_loss"}),
    "LK": (CLASSES, {"loss": "log_loss"}, {"loss": "log_loss"}),
    "exponential": (TWO, {"loss": "exponential"}, {"loss": "exponential"}),
}


@pytest.mark.fast_cells(3)
@pytest.mark.parametrize("name", BESIDE)
def test_scikit_learn_grows_the_same(name: str) -> None:
    y, ours, theirs = BESIDE[name]
    common: dict[str, Any] = {"learning_rate": 0.1, "max_leaf_nodes": 6, "min_samples_leaf": 20}
    peer = (GradientBoostingRegressor if y is NUMBERS else GradientBoostingClassifier)(
        n_estimators=15, max_depth=None, random_state=0, **theirs, **common
    ).fit(GRID, y)
    expected = peer.predict(GRID) if y is NUMBERS else peer.decision_function(GRID)
    found = dboost.fit(GRID, y, max_iter=15, **ours, **PLAIN, **common).predict(GRID, raw_score=True)
    if y is CLASSES:  # a constant added to the scores of all classes changes nothing
        expected, found = (scores - scores.mean(axis=1, keepdims=True) for scores in (expected, found))
    # Gradients of one size give many equal splits, and a quantile between two numbers is not unique.
    assert r2_score(expected, found) > (0.99 if name in ("LAD", "quantile") else 0.999)


@pytest.mark.fast_cells(4)
@EVERY
def test_a_monotone_transformation_of_features_changes_nothing(name: str) -> None:
    """Splits depend on ranks only, so on the training rows predictions are the same to the last bit."""
    stretched = np.column_stack([np.exp(X[:, 0]), X[:, 1] ** 3, np.arctan(X[:, 2]), 1e6 * X[:, 3] - 5.0])
    moved = dboost.fit(stretched, TARGET[name], loss=name, max_iter=10, n_threads=1, **OPTIONS.get(name, {}))
    assert np.array_equal(moved.predict(stretched, raw_score=True), fit(name).predict(X, raw_score=True))


@pytest.mark.parametrize("split_proposal", ["tree", "node", "exact"])
def test_nor_does_it_where_candidates_are_proposed_otherwise(split_proposal: str) -> None:
    options: dict[str, Any] = {"max_iter": 5, "split_proposal": split_proposal}
    stretched = np.exp(X)
    moved = dboost.fit(stretched, TARGET["log_loss"], loss="log_loss", n_threads=1, **options)
    assert np.array_equal(moved.predict(stretched), fit("log_loss", **options).predict(X))
