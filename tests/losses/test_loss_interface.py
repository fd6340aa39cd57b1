"""What a loss may need, proved by losses outside the package: a statistic of all rows, and several target columns.

The conformance suite trains both at every place.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dboost
from dboost import DataError, ParameterError
from dboost.losses.custom import check_derivatives
from tests.helpers.fits import cut
from tests.helpers.outside_losses import Interval, PseudoHuber, intervals

RNG = np.random.default_rng(0)
N = 600
X = pd.DataFrame({"a": RNG.normal(size=N), "flag": np.arange(N) % 2})
CENTER = np.sin(2 * X["a"].to_numpy()) + X["flag"].to_numpy()
BOUNDS = intervals(RNG, N, CENTER)
FRAME = X.assign(lower=BOUNDS[0], upper=BOUNDS[1], y=CENTER + RNG.standard_t(2, N))
TARGETS = ["lower", "upper"]


@pytest.mark.parametrize(("loss", "y"), [(PseudoHuber(0.7), FRAME["y"].to_numpy()), (Interval(), BOUNDS)])
def test_the_derivatives_are_checked(loss: Any, y: np.ndarray) -> None:
    assert check_derivatives(loss, y) is None
    wrong = type("Wrong", (type(loss),), {"gradient": lambda self, y, raw: 1.01 * super(type(self), self).gradient(y, raw)})
    assert re.match("gradient of loss 'Wrong' is not the derivative of its value", check_derivatives(wrong(), y) or "")
    target: Any = "y" if y.ndim == 1 else TARGETS
    with pytest.raises(ParameterError, match="gradient of loss 'Wrong' is not the derivative of its value"):
        dboost.fit(FRAME, target, features=["a"], loss=wrong(), max_iter=1)


def test_gradients_follow_the_statistic_of_the_present_scores() -> None:
    """Two trees of two leaves by hand: the second one's gradients have the scale of the residuals after the first."""
    y, flag, weight = FRAME["y"].to_numpy(), FRAME["flag"].to_numpy(), RNG.uniform(0.5, 2.0, N)
    booster = dboost.fit(
        X[["flag"]], y, loss=PseudoHuber(), sample_weight=weight, max_iter=3, l2_regularization=2.0, min_hessian=0.0,
        max_leaf_nodes=2, min_samples_leaf=1,
    )  # fmt: skip
    scores, scales = np.full(N, booster.ensemble.baseline[0]), []
    in_units = min(1.0, weight.mean())
    for _ in range(3):
        scales.append(np.average(np.abs(y - scores), weights=weight))
        loss = PseudoHuber(scales[-1])
        gradient, hessian = loss.gradient(y, scores) * weight, loss.hessian(y, scores) * weight
        for side in (0, 1):
            rows = flag == side
            scores[rows] -= 0.1 * gradient[rows].sum() / (hessian[rows].sum() + 2.0 * in_units)
    assert np.asarray(booster.predict(X[["flag"]])) == pytest.approx(scores, rel=1e-6)
    assert len(set(scales)) == 3
    assert booster.ensemble.loss == {"name": "PseudoHuber", "scale": pytest.approx(scales[0], rel=1e-14)}


def test_the_constant_of_least_loss_of_two_targets() -> None:
    booster = dboost.fit(FRAME, TARGETS, features=["a"], loss=Interval(), max_iter=1)
    best = booster.ensemble.baseline[0]
    losses = [Interval().value(BOUNDS, np.full(N, best + step)).sum() for step in (-0.01, 0.0, 0.01)]
    assert losses[1] < min(losses[0], losses[2])


def test_two_targets_are_learned(tmp_path: Path) -> None:
    new = intervals(np.random.default_rng(1), N, CENTER)
    keywords: dict[str, Any] = {"features": ["a", "flag"], "max_iter": 40, "eval_set": X.assign(lower=new[0], upper=new[1])}
    booster = dboost.fit(FRAME, TARGETS, loss=Interval(), **keywords)
    constant = Interval().value(new, np.full(N, booster.ensemble.baseline[0])).mean()
    at_end = booster.history["eval_Interval"].iloc[-1]
    assert at_end == pytest.approx(Interval().value(new, booster.predict(X)).mean(), rel=1e-12)
    assert at_end < 0.97 * constant
    assert np.corrcoef(booster.predict(X), CENTER)[0, 1] > 0.7
    booster.save(tmp_path / "model.json")
    assert np.array_equal(dboost.load(tmp_path / "model.json").predict(X), booster.predict(X))


def test_values_beside_the_table_and_estimators() -> None:
    keywords: dict[str, Any] = {"loss": Interval(), "max_iter": 3}
    named = dboost.fit(FRAME, TARGETS, features=["a", "flag"], **keywords)
    assert dboost.fit(X, BOUNDS.T, **keywords).sha256 == named.sha256
    assert np.array_equal(dboost.DBoostRegressor(**keywords).fit(X, BOUNDS.T).predict(X), named.predict(X))


def test_models_of_two_targets_are_continued_refitted_and_compared() -> None:
    frame, keywords = FRAME.drop(columns="y"), {"loss": Interval(), "max_iter": 4, "progress": False}
    booster = dboost.fit(frame, TARGETS, **keywords)
    more = dboost.fit(frame, TARGETS, start_from=booster, **keywords)
    assert more.n_iter_ == 8
    assert Interval().value(BOUNDS, more.predict(X)).sum() < Interval().value(BOUNDS, booster.predict(X)).sum()
    shifted = frame.assign(lower=frame["lower"] + 3.0, upper=frame["upper"] + 3.0)
    refitted = booster.refit_leaves(shifted, TARGETS)
    assert refitted.predict(X).mean() > booster.predict(X).mean() + 0.5
    drift = booster.drift(shifted, TARGETS)
    assert drift.set_index("what").loc["target", "psi"] > 1.0
    assert booster.drift(frame, TARGETS).set_index("what").loc["target", "psi"] < 0.01


def test_cross_validation_of_two_targets() -> None:
    frame = FRAME.drop(columns="y")
    result = dboost.cv(frame, TARGETS, folds=3, loss=Interval(), max_iter=5)
    assert set(result.scores["metric"]) == {"Interval", "train_loss"}
    last = result.scores[(result.scores["iteration"] == 5) & (result.scores["metric"] == "Interval")]["value"].mean()
    assert Interval().value(BOUNDS, np.asarray(result.predictions)).mean() == pytest.approx(last, rel=1e-9)
    lazy = dboost.cv(cut(frame, [100, 100, 250]), TARGETS, folds=3, loss=Interval(), max_iter=5)
    pd.testing.assert_frame_equal(lazy.scores, result.scores)


#: Targets that a loss of two columns refuses, and why.
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: dboost.fit(FRAME, "y", loss=Interval()), "the target has 1 column, but loss='Interval' takes 2: lower, upper"),
    (
        lambda: dboost.fit(X, np.zeros((N, 3)), loss=Interval()),
        "the target has 3 columns, but loss='Interval' takes 2: lower, upper",
    ),
    (
        lambda: dboost.fit(FRAME, ["upper", "lower"], loss=Interval()),
        "loss='Interval' requires lower < upper: the target is inf, 0.341303 in row 0",
    ),
    (lambda: dboost.fit(FRAME, [*TARGETS, "y"], loss=Interval()), "the target has 3 columns, but loss='Interval' takes 2"),
    (
        lambda: dboost.fit(FRAME.assign(y=["a"] * N), "y", loss=Interval()),
        "the target has 1 column, but loss='Interval' takes 2",
    ),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_other_targets_are_refused(number: int) -> None:
    call, message = REFUSED[number]
    with pytest.raises(DataError, match=message):
        call()


def test_other_metrics_are_refused_with_several_targets() -> None:
    with pytest.raises(
        ParameterError, match="loss='Interval' has several target columns, so its only metric with a name is 'Interval'"
    ):
        dboost.fit(FRAME, TARGETS, loss=Interval(), eval_set=FRAME, eval_metric="rmse")
