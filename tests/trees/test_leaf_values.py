"""Criterion and step: Algorithm 1, TreeBoost and LogitBoost from the same parts, compared with scikit-learn's exact trees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dboost
from dboost.losses import SoftmaxLogLoss, by_name

rng = np.random.default_rng(0)
N = 900
X = rng.integers(0, 40, size=(N, 3)).astype(float)
SIGNAL = np.sin(X[:, 0] / 6) + (X[:, 1] > 20) * X[:, 2] / 30
NUMBER = SIGNAL + rng.standard_t(3, N) / 4
TARGET: dict[str, np.ndarray] = {
    "squared_error": NUMBER,
    "absolute_error": NUMBER,
    "quantile": NUMBER,
    "huber": NUMBER,
    "poisson": rng.poisson(np.exp(SIGNAL)).astype(float),
    "gamma": rng.gamma(2, np.exp(SIGNAL)),
    "log_loss": (SIGNAL + rng.normal(size=N) / 2 > 0.6).astype(float),
    "exponential": (SIGNAL + rng.normal(size=N) / 2 > 0.6).astype(float),
    "three": np.digitize(SIGNAL + rng.normal(size=N) / 3, [0.2, 0.9]).astype(float),
}
PAPER: dict[str, Any] = {"criterion": "gradient", "l2_regularization": 0.0, "min_hessian": 0.0}


def fit(name: str, **settings: Any) -> dboost.Booster:
    options = {"quantile": 0.8} if name == "quantile" else {}
    loss = "log_loss" if name == "three" else name
    return dboost.fit(X, TARGET[name], **{"loss": loss, "max_iter": 3, "max_leaf_nodes": 6, **options, **settings})


def test_squares_have_one_criterion() -> None:
    for step in ("leaf", "constant"):
        newton, gradient = (fit("squared_error", criterion=criterion, step=step) for criterion in ("newton", "gradient"))
        assert np.array_equal(newton.predict(X), gradient.predict(X))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["log_loss", "exponential", "poisson", "gamma"])
def test_trees_of_gradients_are_those_of_a_regression_on_them(name: str, weighted: bool) -> None:
    """The first gradients are fitted by least squares; leaves are Newton steps nevertheless."""
    weight = np.random.default_rng(1).random(N) + 0.5 if weighted else None
    booster = fit(name, max_iter=1, sample_weight=weight, learning_rate=1.0, **PAPER)
    loss, baseline = by_name(name), np.full(N, booster.ensemble.baseline[0])
    residual = -loss.gradient(TARGET[name], baseline[None])[0]
    regression = dboost.fit(
        X, residual, loss="squared_error", sample_weight=weight, max_iter=1, max_leaf_nodes=6, l2_regularization=0.0,
        min_hessian=0.0, learning_rate=1.0,
    )  # fmt: skip
    leaf = booster.apply(X)[:, 0]
    assert np.array_equal(leaf, regression.apply(X)[:, 0])
    w = np.ones(N) if weight is None else weight
    hessian = loss.hessian(TARGET[name], baseline[None])[0]
    step = booster.predict(X, raw_score=True) - baseline
    for k in range(leaf.max() + 1):
        rows = leaf == k
        assert step[rows] == pytest.approx((w * residual)[rows].sum() / (w * hessian)[rows].sum(), rel=1e-5, abs=1e-7)


def test_trees_of_gradients_for_classes() -> None:
    booster = fit("three", max_iter=1, learning_rate=1.0, **PAPER)
    loss, y = SoftmaxLogLoss(3), TARGET["three"]
    baseline = np.tile(booster.ensemble.baseline, (N, 1))
    leaves = booster.apply(X)
    step = booster.predict(X, raw_score=True) - baseline
    for k in range(3):
        for leaf in range(leaves[:, k].max() + 1):
            rows = leaves[:, k] == leaf
            g, h = loss.gradient(y, baseline.T)[k, rows].sum(), loss.hessian(y, baseline.T)[k, rows].sum()
            assert step[rows, k] == pytest.approx(-2 / 3 * g / h, rel=1e-5)


@pytest.mark.parametrize("name", ["absolute_error", "huber", "poisson", "log_loss", "three"])
def test_a_constant_step_adds_the_tree_as_it_is(name: str) -> None:
    booster = fit(name, max_iter=1, step="constant", learning_rate=0.5, **PAPER)
    y, baseline = TARGET[name], booster.ensemble.baseline
    raw = np.tile(baseline, (N, 1)) if name == "three" else np.full(N, baseline[0])
    gradient = booster.loss.gradient(y, np.atleast_2d(raw.T))
    step, leaves = booster.predict(X, raw_score=True) - raw, booster.apply(X)
    for k in range(leaves.shape[1]):
        for leaf in range(leaves[:, k].max() + 1):
            rows = leaves[:, k] == leaf
            mean = gradient[k, rows].mean()
            assert (step[:, k] if name == "three" else step)[rows] == pytest.approx(-0.5 * mean, rel=1e-5, abs=1e-9)


@pytest.mark.fast_cells(5)
@pytest.mark.parametrize("criterion", ["newton", "gradient"])
@pytest.mark.parametrize("name", list(TARGET))
def test_a_line_search_finds_the_best_multiplier(name: str, criterion: str) -> None:
    common: dict[str, Any] = {"max_iter": 1, "learning_rate": 0.1, "criterion": criterion}
    constant, searched = (fit(name, step=step, **common) for step in ("constant", "line_search"))
    raw = np.tile(constant.ensemble.baseline, (N, 1)) if name == "three" else np.full(N, constant.ensemble.baseline[0])
    along, found = (10.0 * (model.predict(X, raw_score=True) - raw) for model in (constant, searched))
    for k in range(along.shape[1] if name == "three" else 1):
        direction, step = (of[:, k] if name == "three" else of for of in (along, found))
        multiplier = float(step @ direction / (direction @ direction))
        assert step == pytest.approx(multiplier * direction, rel=1e-9, abs=1e-9)

        def total(rho: float) -> float:
            moved = raw.copy()
            if name == "three":
                moved[:, k] += rho * direction  # noqa: B023
            else:
                moved += rho * direction  # noqa: B023
            return float(searched.loss.value(TARGET[name], np.atleast_2d(moved.T)).sum())

        assert multiplier > 0
        assert total(multiplier) <= min(total(multiplier * (1 + e)) for e in (-0.1, -1e-3, 1e-3, 0.1)) * (1 + 1e-12)


@pytest.mark.slow
def test_a_tree_that_separates_all_rows_is_not_multiplied_without_end() -> None:
    side = np.repeat([0.0, 1.0], 50)
    for criterion in ("newton", "gradient"):
        booster = dboost.fit(
            side[:, None], side, loss="log_loss", criterion=criterion, step="line_search", l2_regularization=0.0,
            min_hessian=0.0, max_iter=20, learning_rate=1.0,
        )  # fmt: skip
        assert np.isfinite(booster.history["train_loss"]).all()
        assert booster.ensemble.trees[0].value[1:].tolist() == [-4.0, 4.0]
