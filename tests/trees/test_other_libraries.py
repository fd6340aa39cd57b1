"""The same trees as scikit-learn, XGBoost and LightGBM grow, where only rounding can differ.

Features have few distinct values, so that every library has the same candidate splits; the settings have the same meaning.
dboost sums gradients of 13 or 15 bits: sometimes, of two nearly equal splits the other one is chosen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import r2_score
from threadpoolctl import threadpool_limits

import dboost


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """On a busy machine, OpenMP's threads spend their time waiting for each other."""
    with threadpool_limits(1):
        yield


def rows(seed: int, missing: float, n: int = 3000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features of thirty values, a numeric target, and a class."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 30, size=(n, 6)).astype(np.float64)
    y = np.sin(X[:, 0] / 4) + X[:, 1] * X[:, 2] / 200 + (X[:, 3] > 15) * 0.7 + rng.normal(size=n) / 3
    X[rng.random(X.shape) < missing] = np.nan
    return X, y, (y > np.median(y)).astype(np.int64)


OURS: dict[str, Any] = {"learning_rate": 0.1, "max_leaf_nodes": 15, "min_samples_leaf": 20, "l2_regularization": 1.0}
MISSING = pytest.mark.parametrize("missing", [0.0, 0.2], ids=["complete", "missing values"])
#: Iterations, and the fraction of the predictions' variance that must agree.
AGREEMENT = pytest.mark.parametrize(("n_iterations", "least"), [(1, 0.999999), (20, 0.9999), (100, 0.995)])


def xgboost_predictions(X: np.ndarray, y: np.ndarray, test: np.ndarray, n_iterations: int, **settings: Any) -> np.ndarray:
    xgboost = pytest.importorskip("xgboost")
    common = {
        "tree_method": "hist", "grow_policy": "lossguide", "max_leaves": 15, "max_depth": 0, "eta": 0.1, "reg_lambda": 1,
        "base_score": float(y.mean()), "nthread": 1,
    }  # fmt: skip
    booster = xgboost.train(common | settings, xgboost.DMatrix(X, y), n_iterations)
    return booster.predict(xgboost.DMatrix(test), output_margin=True)


def lightgbm_predictions(X: np.ndarray, y: np.ndarray, test: np.ndarray, n_iterations: int, **settings: Any) -> np.ndarray:
    lightgbm = pytest.importorskip("lightgbm")
    common = {
        "num_leaves": 15, "learning_rate": 0.1, "lambda_l2": 1.0, "min_data_in_bin": 1, "num_threads": 1, "verbose": -1,
        "deterministic": True, "force_col_wise": True, "feature_pre_filter": False,
    }  # fmt: skip
    return lightgbm.train(common | settings, lightgbm.Dataset(X, y), n_iterations).predict(test, raw_score=True)


@pytest.mark.fast_cells(2)
@MISSING
@AGREEMENT
def test_regression(missing: float, n_iterations: int, least: float) -> None:
    (X, y, _), (test, _, _) = rows(0, missing), rows(1, missing)
    ours = dboost.fit(X, y, max_iter=n_iterations, min_hessian=0.0, **OURS).predict(test)
    theirs = {
        "scikit-learn": HistGradientBoostingRegressor(max_iter=n_iterations, early_stopping=False, **OURS)
        .fit(X, y)
        .predict(test),
        "XGBoost": xgboost_predictions(X, y, test, n_iterations, min_child_weight=20),
        "LightGBM": lightgbm_predictions(
            X, y, test, n_iterations, objective="l2", min_data_in_leaf=20, min_sum_hessian_in_leaf=0.0
        ),
    }
    agreement = {name: r2_score(predictions, ours) for name, predictions in theirs.items()}
    assert min(agreement.values()) > least, agreement


@pytest.mark.fast_cells(2)
@MISSING
@AGREEMENT
def test_two_classes(missing: float, n_iterations: int, least: float) -> None:
    (X, _, y), (test, _, _) = rows(0, missing), rows(1, missing)
    ours = dboost.fit(X, y, max_iter=n_iterations, min_hessian=1e-3, **OURS).predict(test, raw_score=True)
    agreement = {}
    scikit = HistGradientBoostingClassifier(max_iter=n_iterations, early_stopping=False, **OURS).fit(X, y)
    agreement["scikit-learn"] = r2_score(scikit.decision_function(test), ours)
    # XGBoost limits Hessians, not rows.
    ours = dboost.fit(X, y, max_iter=n_iterations, **(OURS | {"min_samples_leaf": 1})).predict(test, raw_score=True)
    xgboost = xgboost_predictions(X, y, test, n_iterations, objective="binary:logistic", min_child_weight=1)
    agreement["XGBoost"] = r2_score(xgboost, ours)
    assert min(agreement.values()) > least, agreement


@pytest.mark.parametrize("l2", [0.0, 30.0])
def test_weights(l2: float) -> None:
    (X, y, _), (test, _, _) = rows(0, 0.1), rows(1, 0.1)
    weight = np.random.default_rng(0).integers(1, 5, len(y)).astype(np.float64)
    settings = OURS | {"l2_regularization": l2, "max_iter": 20}
    ours = dboost.fit(X, y, sample_weight=weight, min_hessian=0.0, **settings).predict(test)
    theirs = HistGradientBoostingRegressor(early_stopping=False, **settings).fit(X, y, sample_weight=weight)
    assert r2_score(theirs.predict(test), ours) > 0.9999


def test_categories() -> None:
    """With scikit-learn's smoothing and its minimum of ten rows, and neither dboost's limit nor its penalty."""
    rng = np.random.default_rng(0)
    town = rng.integers(0, 12, size=(4000, 2)).astype(np.float64)
    effect = rng.normal(size=12)
    y = effect[town[:, 0].astype(int)] + effect[town[:, 1].astype(int)] ** 2 + rng.normal(size=4000) / 2
    town[rng.random(town.shape) < 0.1] = np.nan
    settings = OURS | {"max_leaf_nodes": 5, "max_iter": 20, "categorical_features": [0, 1]}
    ours = dboost.fit(
        town, y, min_hessian=0.0, categorical_smoothing=10.0, categorical_l2=0.0, min_category_hessian=10.0,
        max_category_group=1000, **settings,
    )  # fmt: skip
    theirs = HistGradientBoostingRegressor(early_stopping=False, **settings).fit(town, y)
    assert r2_score(theirs.predict(town), ours.predict(town)) > 0.9999


@pytest.mark.parametrize("max_depth", [2, 4])
def test_depth_without_a_limit_of_leaves(max_depth: int) -> None:
    (X, y, _), (test, _, _) = rows(0, 0.1), rows(1, 0.1)
    settings = OURS | {"max_leaf_nodes": None, "max_depth": max_depth, "max_iter": 20}
    ours = dboost.fit(X, y, min_hessian=0.0, **settings).predict(test)
    scikit = HistGradientBoostingRegressor(early_stopping=False, **settings).fit(X, y).predict(test)
    depth_wise = {"grow_policy": "depthwise", "max_depth": max_depth, "max_leaves": 0, "min_child_weight": 20}
    xgboost = xgboost_predictions(X, y, test, 20, **depth_wise)
    assert r2_score(scikit, ours) > 0.9999
    assert r2_score(xgboost, ours) > 0.9999


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"l1_regularization": 5.0}, {"reg_alpha": 5.0}),
        ({"leaf_penalty": 3.0}, {"gamma": 6.0}),
        ({"max_delta_step": 0.2}, {"max_delta_step": 0.2}),
    ],
    ids=["alpha", "gamma", "largest step"],
)
def test_regularisation_means_what_it_does_in_xgboost(ours: dict[str, float], theirs: dict[str, float]) -> None:
    """XGBoost's gains are twice the decrease of the loss, so its γ counts double."""
    (X, y, _), (test, _, _) = rows(0, 0.0), rows(1, 0.0)
    found = dboost.fit(X, y, max_iter=20, min_hessian=0.0, **(OURS | ours)).predict(test)
    expected = xgboost_predictions(X, y, test, 20, min_child_weight=20, **theirs)
    plain = xgboost_predictions(X, y, test, 20, min_child_weight=20)
    assert r2_score(expected, found) > 0.999
    assert np.abs(expected - plain).max() > 1e-3, "it is felt"
