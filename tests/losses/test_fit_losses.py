"""Whole fits with every loss: leaves by formula, other libraries, offsets, weights, partitions, invalid targets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics as reference
from sklearn.ensemble import HistGradientBoostingRegressor

import dboost
from dboost import DBoostClassifier, DBoostRegressor
from dboost.losses import by_name
from tests.helpers.loss_fits import OPTIONS, SIGNAL, TARGET, N, X, fit

EVERY = pytest.mark.parametrize("name", TARGET)
#: Losses whose leaf values are Newton steps.
NEWTON = pytest.mark.parametrize("name", ["log_loss", "exponential", "poisson", "gamma", "tweedie", "squared_error"])


@NEWTON
@pytest.mark.parametrize("offset", [False, True])
def test_the_first_leaves_follow_the_formula(name: str, offset: bool) -> None:
    """Σ w r / (Σ w h + λ) at the best constant, times the learning rate; λ is multiplied by a mean weight below 1."""
    rng = np.random.default_rng(1)
    side = rng.random(N) < 0.4
    y, w, loss = TARGET[name], rng.random(N) + 0.4, by_name(name)
    start = rng.normal(size=N) / 3 if offset else np.zeros(N)
    booster = dboost.fit(
        side[:, None].astype(float), y, sample_weight=w, offset=start if offset else None, loss=name, max_iter=1,
        learning_rate=0.3, l2_regularization=2.0,
    )  # fmt: skip
    raw = (booster.ensemble.baseline[0] + start)[None]
    # At the best constant the gradient is zero.
    assert (w * loss.gradient(y, raw)).sum() == pytest.approx(0, abs=1e-9 * N)
    step = booster.predict(side[:, None].astype(float), raw_score=True) - booster.ensemble.baseline[0]
    penalty = 2.0 * w.mean()
    for rows in (side, ~side):
        gradient, hessian = ((w * derivative(y, raw))[0, rows].sum() for derivative in (loss.gradient, loss.hessian))
        assert np.ptp(step[rows]) == 0
        assert step[rows][0] == pytest.approx(-0.3 * gradient / (hessian + penalty), rel=1e-4, abs=1e-9)


@pytest.mark.fast_cells(5)
@EVERY
def test_training_loss_is_that_of_the_predictions_and_falls(name: str) -> None:
    booster = fit(name, max_iter=30, eval_set=(X, TARGET[name]))
    raw = booster.predict(X, raw_score=True)
    assert booster.history["train_loss"].iloc[-1] == pytest.approx(booster.loss.value(TARGET[name], raw[None]).mean(), rel=1e-6)
    assert booster.history[f"eval_{name}"].iloc[-1] == pytest.approx(booster.history["train_loss"].iloc[-1], rel=1e-5)
    assert (np.diff(booster.history["train_loss"]) < 0).all()


@pytest.mark.fast_cells(6)
@EVERY
@pytest.mark.parametrize("criterion", ["newton", "gradient"])
def test_a_row_of_weight_n_is_n_rows(name: str, criterion: str) -> None:
    weight = np.random.default_rng(6).integers(0, 4, N)
    common: dict[str, Any] = {
        "loss": name, "max_iter": 5, "min_samples_leaf": 1, "max_leaf_nodes": 8, "criterion": criterion,
        **OPTIONS.get(name, {}),
    }  # fmt: skip
    weighted = dboost.fit(X, TARGET[name], sample_weight=weight, **common)
    repeated = dboost.fit(np.repeat(X, weight, axis=0), np.repeat(TARGET[name], weight), **common)
    assert weighted.predict(X, raw_score=True) == pytest.approx(repeated.predict(X, raw_score=True), abs=1e-7)


@pytest.mark.fast_cells(1)
@pytest.mark.parametrize(("name", "metric"), [("poisson", "mean_poisson_deviance"), ("gamma", "mean_gamma_deviance")])
def test_beside_scikit_learn(name: str, metric: str) -> None:
    """The same greedy trees: predictions agree closely, although bins and rounding differ."""
    half, y = N // 2, TARGET[name]
    settings = {"max_iter": 40, "max_leaf_nodes": 8, "min_samples_leaf": 20, "l2_regularization": 1.0}
    peer = HistGradientBoostingRegressor(loss=name, early_stopping=False, **settings).fit(X[:half], y[:half])
    ours = DBoostRegressor(loss=name, early_stopping=False, min_hessian=1e-3, **settings).fit(
        X[:half], y[:half], eval_set=(X[half:], y[half:])
    )
    score = getattr(reference, metric)
    theirs, mine = score(y[half:], peer.predict(X[half:])), score(y[half:], ours.predict(X[half:]))
    assert mine == pytest.approx(theirs, rel=0.02)
    assert np.corrcoef(np.log(peer.predict(X)), np.log(ours.predict(X)))[0, 1] > 0.995


@pytest.mark.parametrize("name", ["poisson", "gamma", "tweedie"])
def test_beside_lightgbm_and_xgboost(name: str) -> None:
    lightgbm, xgboost = pytest.importorskip("lightgbm"), pytest.importorskip("xgboost")
    half, y = N // 2, TARGET[name]
    ours = fit_half(name)
    theirs = lightgbm.LGBMRegressor(
        objective=name, n_estimators=40, num_leaves=8, min_child_samples=20, reg_lambda=1.0, min_child_weight=1.0,
        tweedie_variance_power=1.5, poisson_max_delta_step=1e-12, verbose=-1, n_jobs=1,
    ).fit(X[:half], y[:half])  # fmt: skip
    objective = {"poisson": "count:poisson"}.get(name, f"reg:{name}")
    others = xgboost.XGBRegressor(
        objective=objective, n_estimators=40, max_leaves=8, max_depth=0, grow_policy="lossguide", reg_lambda=1.0,
        learning_rate=0.1, max_delta_step=0.0, n_jobs=1,
        **({"tweedie_variance_power": 1.5} if name == "tweedie" else {}),
    ).fit(X[:half], y[:half])  # fmt: skip
    loss = by_name(name)
    mine, *peers = (
        loss.value(y[half:], np.log(model.predict(X[half:]).astype(float))[None]).mean() for model in (ours, theirs, others)
    )
    assert mine < 1.03 * min(peers)


def fit_half(name: str) -> dboost.Booster:
    half = N // 2
    return dboost.fit(X[:half], TARGET[name][:half], loss=name, max_iter=40, max_leaf_nodes=8, n_threads=1)


def test_an_offset_that_is_the_same_for_all_rows_moves_the_first_score_only() -> None:
    for name in TARGET:
        plain, moved = fit(name, max_iter=5), fit(name, max_iter=5, offset=np.full(N, 1.25))
        assert moved.ensemble.baseline[0] == pytest.approx(plain.ensemble.baseline[0] - 1.25, abs=1e-9)
        raw = moved.predict(X, raw_score=True) + 1.25
        assert raw == pytest.approx(plain.predict(X, raw_score=True), abs=1e-5)


def test_exposure() -> None:
    """Counts over different time spans: with the log of the span as offset, the model learns the rate."""
    rng = np.random.default_rng(4)
    frame = pd.DataFrame(X, columns=list("abcd"))
    span = rng.uniform(0.1, 10, N)
    frame["log_span"] = np.log(span)
    frame["count"] = rng.poisson(np.exp(SIGNAL) * span)
    booster = dboost.fit(frame, "count", loss="poisson", offset="log_span", max_iter=60, eval_set=frame)
    assert "log_span" not in booster.feature_names_in_
    rate = booster.predict(frame, offset=False)
    assert np.corrcoef(np.log(rate), SIGNAL)[0, 1] > 0.9
    value = booster.loss.value(frame["count"].to_numpy(float), (np.log(rate) + np.log(span)).to_numpy()[None]).mean()
    assert booster.history["eval_poisson"].iloc[-1] == pytest.approx(value, rel=1e-9)
    assert booster.history["train_loss"].iloc[-1] == pytest.approx(value, rel=1e-6)


def test_an_offset_of_several_classes_changes_nothing() -> None:
    y = np.digitize(SIGNAL, [-0.5, 0.5])
    plain = dboost.fit(X, y, loss="log_loss", max_iter=2)
    with pytest.warns(UserWarning, match="offset has no effect on a model of 3 classes"):
        moved = dboost.fit(X, y, loss="log_loss", max_iter=2, offset=np.linspace(-3, 3, N))
    assert plain.predict_proba(X) == pytest.approx(moved.predict_proba(X), abs=1e-6)


def test_evaluation_sets_with_offsets() -> None:
    offset = np.linspace(-1, 1, N)
    y = TARGET["poisson"]
    booster = fit("poisson", offset=offset, eval_set=(X, y, None, offset))
    assert booster.history["eval_poisson"].to_numpy() == pytest.approx(booster.history["train_loss"].to_numpy(), rel=1e-6)
    with pytest.raises(dboost.ParameterError, match="evaluation set 'eval' has no offsets, but the training data have"):
        fit("poisson", offset=offset, eval_set=(X, y))


@pytest.mark.parametrize(
    ("name", "y", "complaint"),
    [
        ("gamma", [1.0, 2.0, 0.0], r"loss='gamma' requires strictly positive y: the target is 0 in row 2"),
        ("poisson", [1.0, -2.0, 0.0], r"loss='poisson' requires non-negative y and sum\(y\) > 0: the target is -2 in row 1"),
        ("tweedie", [-1e-9, 2.0, 0.0], r"loss='tweedie' requires non-negative y and sum\(y\) > 0"),
        ("poisson", [0.0, 0.0, 0.0], r"loss='poisson' requires non-negative y and sum\(y\) > 0: all targets are 0"),
        ("exponential", [0, 1, 2], "supported by loss='exponential', which is for two classes, but the target has 3"),
        ("exponential", [1, 1, 1], "one class only"),
        ("poisson", ["a", "b", "a"], "loss 'poisson' needs a numeric target"),
    ],
)
def test_targets_that_are_refused(name: str, y: list[Any], complaint: str) -> None:
    with pytest.raises(dboost.DataError, match=complaint):
        dboost.fit(np.arange(3.0)[:, None], y, loss=name)
    estimator = DBoostClassifier if name == "exponential" else DBoostRegressor
    with pytest.raises(ValueError, match=complaint):
        estimator(loss=name).fit(np.arange(3.0)[:, None], y)


def test_a_row_of_weight_zero_may_hold_anything() -> None:
    y, weight = TARGET["gamma"].copy(), np.ones(N)
    y[7], weight[7] = -1.0, 0.0
    assert dboost.fit(X, y, loss="gamma", sample_weight=weight, max_iter=1).n_iter_ == 1


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"loss": "tweedie", "tweedie_power": 2.0}, "tweedie_power=2.0 must be a number greater than 1 and less than 2"),
        ({"loss": "tweedie", "tweedie_power": "1.5"}, "tweedie_power='1.5' must be a number"),
        ({"loss": "poisson", "tweedie_power": 1.2}, "tweedie_power=1.2 is for loss='tweedie', not for loss='poisson'"),
    ],
)
def test_parameters_that_are_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(dboost.ParameterError, match=complaint):
        dboost.fit(X, TARGET["poisson"], **settings)


def test_the_exponential_loss_tells_probabilities() -> None:
    booster = fit("exponential", max_iter=50, eval_set=(X, TARGET["exponential"]), eval_metric=["log_loss", "accuracy"])
    p = booster.predict_proba(X)
    assert p[:, 1] == pytest.approx(1 / (1 + np.exp(-2 * booster.predict(X, raw_score=True))))
    assert booster.history["eval_log_loss"].iloc[-1] == pytest.approx(reference.log_loss(TARGET["exponential"], p))
    beside = fit("log_loss", max_iter=50).predict_proba(X)
    assert np.corrcoef(p[:, 1], beside[:, 1])[0, 1] > 0.98


@pytest.mark.parametrize(
    ("name", "metric", "arguments"),
    [
        ("poisson", "mean_poisson_deviance", {}),
        ("gamma", "mean_gamma_deviance", {}),
        ("gamma", "mean_poisson_deviance", {}),
        ("tweedie", "mean_tweedie_deviance", {"power": 1.5}),
        ("quantile", "mean_pinball_loss", {"alpha": 0.7}),
    ],
)
def test_deviances_are_those_of_scikit_learn(name: str, metric: str, arguments: dict[str, float]) -> None:
    weight = np.random.default_rng(5).random(N)
    booster = fit(name, eval_set=(X, TARGET[name], weight), eval_metric=[metric, "mean_absolute_error"])
    expected = getattr(reference, metric)(TARGET[name], booster.predict(X), sample_weight=weight, **arguments)
    assert booster.history[f"eval_{metric}"].iloc[-1] == pytest.approx(expected, rel=1e-9)


def test_steps_are_bounded_where_the_raw_score_is_a_logarithm() -> None:
    """One count of a million among zeros: a Newton step from the mean would overflow the exponential."""
    y = np.zeros(N)
    y[:40] = 1e6
    side = (y > 0)[:, None].astype(float)
    booster = dboost.fit(side, y + 1e-2, loss="gamma", max_iter=300, l2_regularization=0.0, min_hessian=0.0)
    assert np.isfinite(booster.history["train_loss"]).all()
    assert np.abs(np.concatenate([tree.value for tree in booster.ensemble.trees])).max() <= 4.0
    assert booster.predict(side)[:40] == pytest.approx(np.full(40, 1e6), rel=0.01)
    assert booster.predict(side)[40:] == pytest.approx(np.full(N - 40, 1e-2), rel=0.01)


@pytest.mark.fast_cells(6)
@pytest.mark.parametrize("subsample", [1e-9, 1e-3])
@pytest.mark.parametrize("loss", [*TARGET, "classes"])
def test_iterations_that_no_row_takes_part_in_change_nothing(loss: str, subsample: float) -> None:
    y = np.digitize(SIGNAL, [-0.5, 0.5]) if loss == "classes" else TARGET[loss]
    options = OPTIONS.get(loss, {})
    name = "log_loss" if loss == "classes" else loss
    for step in ("leaf", "line_search", "constant"):
        booster = dboost.fit(X, y, loss=name, subsample=subsample, step=step, max_iter=8, min_samples_leaf=1, **options)
        scores = np.asarray(booster.predict(X, raw_score=True)).reshape(N, -1)
        assert np.isfinite(scores).all()
        idle = booster.history["rows_kept"] == 0
        if subsample == 1e-9:
            assert idle.all()
            np.testing.assert_array_equal(scores, np.repeat(booster.ensemble.baseline[None], N, axis=0))
        else:
            assert idle.any() and not idle.all()
            before = booster.history["train_loss"].shift()
            unchanged = idle & before.notna()
            np.testing.assert_array_equal(booster.history["train_loss"][unchanged], before[unchanged])


@pytest.mark.parametrize("level", [0.05, 0.5, 0.9])
def test_expectiles_balance_the_errors(level: float) -> None:
    """In a leaf, and in all rows before the first tree, the errors below are the share τ of all errors."""
    booster = fit("expectile", expectile=level, max_iter=1, learning_rate=1.0, min_samples_leaf=50)
    y = TARGET["expectile"]
    for value in np.unique(booster.predict(X)):
        # One Newton step from the constant of all rows is not the minimum yet.
        assert y.min() < value < y.max()
    constant = booster.predict(X, iteration_range=(0, 0))[0]
    errors = y - constant
    assert -errors[errors < 0].sum() == pytest.approx(level * np.abs(errors).sum(), rel=1e-9)
    many = fit("expectile", expectile=level, max_iter=60, learning_rate=0.3)
    errors = y - many.predict(X)
    assert -errors[errors < 0].sum() == pytest.approx(level * np.abs(errors).sum(), rel=0.02)


def test_the_middle_expectile_is_the_mean() -> None:
    """Up to the rounding of sums: a constant Hessian leaves more bits for the gradients, so that equal splits may differ."""
    y, weight = TARGET["expectile"], np.random.default_rng(0).random(N)
    for options in ({}, {"sample_weight": weight}, {"offset": X[:, 0]}):
        expectile, squared = (
            dboost.fit(X, y, loss=loss, max_iter=20, **how, **options)
            for loss, how in (("expectile", {"expectile": 0.5}), ("squared_error", {}))
        )
        assert expectile.ensemble.baseline == pytest.approx(squared.ensemble.baseline, rel=1e-12)
        assert expectile.history["train_loss"].to_numpy() == pytest.approx(squared.history["train_loss"], rel=0.02)
        if "sample_weight" in options:
            np.testing.assert_allclose(expectile.predict(X), squared.predict(X), rtol=1e-9)
