"""Vanishing Hessians: a class with one row in ten thousand, and classes that can be separated without error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import log_loss

import dboost
from tests.helpers.fits import rare_class_rows

N = 60_000
UNSAFE: dict[str, Any] = {"l2_regularization": 0.0, "min_hessian": 0.0}


@pytest.mark.fast_cells(2)
@pytest.mark.parametrize("settings", [{}, UNSAFE, UNSAFE | {"criterion": "gradient"}], ids=["safe", "newton", "gradient"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_class_of_one_row_in_ten_thousand(n_classes: int, settings: dict[str, Any]) -> None:
    X, y = rare_class_rows(n_classes, 0)
    held_out, truth = rare_class_rows(n_classes, 1)
    booster = dboost.fit(X, y, loss="log_loss", max_iter=40, max_leaf_nodes=15, **settings)
    shares = np.bincount(y) / N
    assert 3e-5 < shares[-1] < 3e-4
    without = log_loss(truth, np.tile(shares, (N, 1)), labels=range(n_classes))
    found = log_loss(truth, booster.predict_proba(held_out), labels=range(n_classes))
    # Without regularisation some rows are overfitted, which costs accuracy, but the loss stays bounded.
    assert found < (1.05 if not settings else 2.5) * without
    values = np.concatenate([tree.value for tree in booster.ensemble.trees])
    assert np.abs(values).max() <= 4.0
    assert (np.diff(booster.history["train_loss"]) < 1e-4 * without).all()


@pytest.mark.parametrize("loss", ["log_loss", "exponential"])
@pytest.mark.parametrize("criterion", ["newton", "gradient"])
def test_separable_classes_are_told_apart_ever_better(loss: str, criterion: str) -> None:
    """Gradients and Hessians shrink together, far below the resolution of a histogram."""
    X = np.linspace(-1, 1, 400)[:, None]
    y = (X[:, 0] > 0).astype(int)
    booster = dboost.fit(X, y, loss=loss, max_iter=300, learning_rate=0.3, criterion=criterion, **UNSAFE)
    history = booster.history["train_loss"].to_numpy()
    assert np.isfinite(history).all()
    assert (np.diff(history) <= 0).all()
    assert history[-1] < 1e-12
    # A step is about 1 before the learning rate: scores grow by steps of rows already fitted, without division by zero.
    assert np.abs(booster.predict(X, raw_score=True)).max() < 300 * 0.3 * 2.5
    assert (booster.predict(X) == y).all()


def test_three_separable_classes() -> None:
    X = np.repeat(np.linspace(-1, 1, 60), 10)[:, None]
    y = np.digitize(X[:, 0], [-0.3, 0.3])
    booster = dboost.fit(X, y, loss="log_loss", max_iter=200, learning_rate=0.3, **UNSAFE)
    assert np.isfinite(booster.history["train_loss"]).all()
    assert booster.history["train_loss"].iloc[-1] < 1e-9
    assert np.isfinite(booster.predict_proba(X)).all()
