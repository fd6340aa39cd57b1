"""A loss defined by the user: it trains like a built-in loss, is validated, and is found again by its name."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest

import dboost
from dboost import DBoostClassifier, DBoostRegressor
from dboost.losses import Loss, Start, register
from dboost.losses import custom as custom_loss
from tests.helpers.combinations import Logistic

rng = np.random.default_rng(0)
N = 1200
X = rng.normal(size=(N, 3))
SIGNAL = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] * (X[:, 2] > 0)
Y = SIGNAL + rng.standard_t(3, N) / 3
COUNTS = rng.poisson(np.exp(SIGNAL)).astype(float)
LATE = (rng.random(N) < 1 / (1 + np.exp(-2 * SIGNAL))).astype(float)


class LogCosh(Loss):
    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return self.scale * np.log(np.cosh((raw - y) / self.scale))

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return np.tanh((raw - y) / self.scale)

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return (1 - np.tanh((raw - y) / self.scale) ** 2) / self.scale


class OwnPoisson(Loss):
    name = "my_counts"

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return np.exp(raw) - y * raw

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return np.exp(raw) - y

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return np.exp(raw)

    def link(self, prediction: np.ndarray) -> np.ndarray:
        return np.log(prediction)

    def inverse_link(self, raw: np.ndarray) -> np.ndarray:
        return np.exp(raw)


def test_it_is_minimised() -> None:
    booster = dboost.fit(X, Y, loss=LogCosh(0.5), max_iter=40, eval_set=(X, Y), eval_metric=["LogCosh", "mean_absolute_error"])
    history = booster.history
    assert (np.diff(history["train_loss"]) < 0).all()
    assert history["train_loss"].iloc[-1] == pytest.approx(LogCosh(0.5).value(Y, booster.predict(X)).mean(), rel=1e-6)
    assert history["eval_LogCosh"].iloc[-1] == pytest.approx(history["train_loss"].iloc[-1])
    assert booster.ensemble.loss == {"name": "LogCosh", "scale": 0.5}
    # At the best constant the gradient is zero.
    assert LogCosh(0.5).gradient(Y, np.full(N, booster.ensemble.baseline[0])).sum() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
def test_it_learns_what_a_built_in_one_does(weighted: bool) -> None:
    weight = np.random.default_rng(1).random(N) + 0.5 if weighted else None
    for mine, theirs, y in ((OwnPoisson(), "poisson", COUNTS), (Logistic(), "log_loss", LATE)):
        common: dict[str, Any] = {"sample_weight": weight, "max_iter": 8, "max_leaf_nodes": 6, "offset": 0.2 * X[:, 0]}
        own_model, built_in = (dboost.fit(X, y, loss=loss, **common) for loss in (mine, theirs))
        assert own_model.ensemble.baseline == pytest.approx(built_in.ensemble.baseline, abs=1e-9)
        assert own_model.predict(X, raw_score=True) == pytest.approx(built_in.predict(X, raw_score=True), abs=1e-4)
    assert own_model.predict_proba(X) == pytest.approx(built_in.predict_proba(X), abs=1e-4)


def test_a_loaded_model_says_what_is_missing(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    booster = dboost.fit(X, COUNTS, loss=OwnPoisson(), max_iter=2)
    booster.save(tmp_path / "model.json")
    assert np.array_equal(dboost.load(tmp_path / "model.json").predict(X), booster.predict(X))
    monkeypatch.setattr(custom_loss, "_KNOWN", {})
    loaded = dboost.load(tmp_path / "model.json")
    assert np.array_equal(loaded.predict(X, raw_score=True), booster.predict(X, raw_score=True))
    with pytest.raises(dboost.ParameterError, match="loss 'my_counts', which is not known here: call"):
        loaded.predict(X)
    assert np.array_equal(dboost.load(tmp_path / "model.json", loss=OwnPoisson()).predict(X), booster.predict(X))
    with pytest.raises(dboost.ParameterError, match="was trained with loss 'my_counts', not 'LogCosh'"):
        dboost.load(tmp_path / "model.json", loss=LogCosh())
    again = pickle.loads(pickle.dumps(booster))
    assert np.array_equal(again.predict(X), booster.predict(X)), "a pickle brings its loss along"
    register(OwnPoisson)
    assert np.array_equal(dboost.load(tmp_path / "model.json").predict(X), booster.predict(X))
    with pytest.raises(dboost.ParameterError, match=r"is a subclass of dboost\.losses\.Loss, which dict is not"):
        register({})  # type: ignore[arg-type]


def test_attributes_come_back(tmp_path: Any) -> None:
    class Scaled(LogCosh):
        def inverse_link(self, raw: np.ndarray) -> np.ndarray:
            return raw * self.scale

        def link(self, prediction: np.ndarray) -> np.ndarray:
            return np.asarray(prediction) / self.scale

    booster = dboost.fit(X, Y, loss=Scaled(4.0), max_iter=2)
    booster.save(tmp_path / "model.json")
    assert np.array_equal(dboost.load(tmp_path / "model.json").predict(X), 4.0 * booster.predict(X, raw_score=True))


class Wrong(LogCosh):
    exact_hessian: ClassVar[bool] = True


class WrongGradient(Wrong):
    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return y - raw


class WrongSide(Wrong):
    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return np.where(y > raw, super().gradient(y, raw), 0.0)


class WrongHessian(Wrong):
    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return np.ones_like(raw)


class WrongShape(Wrong):
    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return np.ones((len(raw), 1))


class WrongLink(Wrong):
    def inverse_link(self, raw: np.ndarray) -> np.ndarray:
        return np.exp(raw)


class WrongType(Wrong):
    """Returns something else than float64 numbers from one method."""

    def __init__(self, what: str, convert: Callable[[np.ndarray], Any]) -> None:
        super().__init__()
        self._what, self._convert = what, convert

    def __getattribute__(self, name: str) -> Any:
        method = super().__getattribute__(name)
        if name not in ("value", "gradient", "hessian", "link", "inverse_link") or name != self._what:
            return method
        return lambda *arguments: self._convert(np.asarray(method(*arguments)))


class WithoutName(LogCosh):
    name: ClassVar[Any] = None


class Negative(Wrong):
    exact_hessian = False

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return -np.ones_like(raw)


class Vain(Wrong):
    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        raw -= y
        return np.tanh(raw)


@pytest.mark.parametrize(
    ("loss", "complaint"),
    [
        (WrongGradient(), "gradient of loss 'WrongGradient' is not the derivative of its value by the raw score: for y="),
        (WrongSide(), "gradient of loss 'WrongSide' is not the derivative of its value"),
        (WrongHessian(), "hessian of loss 'WrongHessian' is not the derivative of its gradient"),
        (WrongShape(), r"hessian of loss 'WrongShape' returned shape \(200, 1\) for 200 rows, not \(200,\)"),
        (
            WrongType("gradient", lambda found: found + 1j),
            "gradient of loss 'WrongType' returned values of type complex128: an array",
        ),
        (WrongType("value", lambda found: ["a"] * len(found)), "value of loss 'WrongType' returned values of type <U1"),
        (
            WrongType("hessian", lambda found: np.full(len(found), None)),
            "hessian of loss 'WrongType' returned values of type obj",
        ),
        (WrongType("link", str), "link of loss 'WrongType' returned values of type <U"),
        (WrongType("inverse_link", str), "link of loss 'WrongType' returned values of type <U"),
        (
            WrongType("gradient", lambda found: found.astype(np.float32)),
            r"quotient .*; its gradient is float32: compute in float64",
        ),
        (WithoutName(), "the name of the loss WithoutName is None: it must be text"),
        (WrongLink(), "link and inverse_link of loss 'WrongLink' are not inverse"),
        (Negative(), "hessian of loss 'Negative' is -1 for y=.* must not be below 0"),
    ],
)
def test_mistakes_are_noticed_on_first_use(loss: Loss, complaint: str) -> None:
    with pytest.raises(dboost.ParameterError, match=complaint):
        dboost.fit(X, Y, loss=loss)


@pytest.mark.parametrize("convert", [list, pd.Series])
def test_derivatives_may_be_lists_and_series(convert: Callable[[np.ndarray], Any]) -> None:
    class Listed(LogCosh):
        name: ClassVar[str] = "log_cosh_listed"

        def gradient(self, y: np.ndarray, raw: np.ndarray) -> Any:
            return convert(super().gradient(y, raw))

    listed, plain = (dboost.fit(X, Y, loss=loss, max_iter=3) for loss in (Listed(), LogCosh()))
    np.testing.assert_array_equal(listed.predict(X), plain.predict(X))


class Charbonnier(Loss):
    """sqrt(1 + u²) - 1, whose curvature is concentrated within 1 of the target."""

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return np.hypot(1.0, raw - y) - 1.0

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return (raw - y) / np.hypot(1.0, raw - y)

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return 1 / np.hypot(1.0, raw - y) ** 3


class WrongCharbonnier(Charbonnier):
    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return 2 / np.hypot(1.0, raw - y) ** 3


@pytest.mark.parametrize("scale", [1e-100, 1.0, 1e9, 1e12, 1e100, 1e305])
@pytest.mark.filterwarnings("error", "ignore:no tree has a split")  # far from its minimum this loss has no curvature
def test_a_right_loss_is_believed_wherever_targets_are(scale: float) -> None:
    target = np.abs(Y) * scale
    assert custom_loss.check_derivatives(Charbonnier(), target) is None
    if scale <= 1e12:
        wrong = custom_loss.check_derivatives(WrongCharbonnier(), target)
        assert wrong is not None and wrong.startswith("hessian of loss 'WrongCharbonnier' is not the derivative")
    if scale <= 1e9:
        booster = dboost.fit(X, target + scale, loss=Charbonnier(), max_iter=2)
        assert np.isfinite(booster.predict(X)).all()


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e5])
def test_a_right_loss_that_overflows_far_from_the_target_is_believed(scale: float) -> None:
    """cosh is infinite from 711 on: such a row says nothing of the derivative, and nothing of those of the other rows."""
    target = (SIGNAL + 3) * scale
    dboost.fit(X, target, loss=LogCosh(), max_iter=1, min_hessian=0.0)
    with pytest.raises(dboost.ParameterError, match="gradient of loss 'WrongGradient' is not the derivative"):
        dboost.fit(X, target, loss=WrongGradient(), max_iter=1)


def test_losses_beyond_their_unit_do_not_warn() -> None:
    """Offsets far from the targets give losses up to 1e305."""
    offset = np.where(np.arange(N) % 2, 1e305, 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        booster = dboost.fit(X, Y, loss=Charbonnier(), offset=offset, max_iter=1, sample_weight=np.geomspace(1e-6, 1e6, N))
    assert np.isfinite(booster.predict(X)).all()


def test_a_method_cannot_write_into_the_training_rows() -> None:
    with pytest.raises(ValueError, match="read-only"):
        dboost.fit(X, Y, loss=Vain())


def test_a_stand_in_for_the_hessian_is_allowed_if_it_says_so() -> None:
    class Absolute(Loss):
        exact_hessian = False

        def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
            return np.abs(y - raw)

        def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
            return np.sign(raw - y)

        def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
            return np.ones_like(raw)

    booster = dboost.fit(X, Y, loss=Absolute(), max_iter=60)
    assert booster.ensemble.baseline[0] == pytest.approx(np.median(Y), abs=0.02)
    assert booster.history["train_loss"].iloc[-1] < 0.8 * np.abs(Y - np.median(Y)).mean()


def test_the_first_score_of_a_loss_that_knows_it_is_not_searched() -> None:
    class Known(OwnPoisson):
        name = "known_start"
        start = Start(constants=lambda means: np.log(means) + 1.0)  # not the best one, so that it differs from that of a search

    booster = dboost.fit(X, COUNTS, loss=Known(), max_iter=1)
    assert booster.ensemble.baseline[0] == pytest.approx(np.log(COUNTS.mean()) + 1.0, rel=1e-14)


@pytest.mark.parametrize("name", ["best_constant", "best_constants", "target_columns"])
def test_what_became_a_record_is_told(name: str) -> None:
    old = type("Old", (LogCosh,), {name: None})
    with pytest.raises(
        dboost.ParameterError, match=f"loss 'Old' has {name}, which is part of a record now: (start|targets) = "
    ):
        dboost.fit(X, Y, loss=old())


def test_what_is_no_loss() -> None:
    class Called(LogCosh):
        name = "poisson"

    class Complicated(LogCosh):
        def __init__(self) -> None:
            super().__init__()
            self.table = np.zeros(3)

    for loss, complaint in (
        (LogCosh, r"loss is the class LogCosh: give an instance, LogCosh\(\)"),
        (Called(), "a loss of your own must not be called 'poisson'"),
        (Complicated(), "loss 'Complicated' cannot be stored in a model: its attribute 'table' is a ndarray"),
        (3, "loss=3 must be one of 'auto', .* or a dboost.losses.Loss of your own"),
    ):
        with pytest.raises(dboost.ParameterError, match=complaint):
            dboost.fit(X, Y, loss=loss)


def test_estimators_take_it() -> None:
    classifier = DBoostClassifier(loss=Logistic(), max_iter=3, random_state=0).fit(X, LATE.astype(int))
    assert classifier.predict_proba(X)[:, 1] == pytest.approx(
        dboost.fit(X, LATE.astype(int), loss=Logistic(), max_iter=3).predict_proba(X)[:, 1]
    )
    for estimator, loss, y in ((DBoostRegressor, Logistic(), LATE), (DBoostClassifier, OwnPoisson(), COUNTS)):
        with pytest.raises(dboost.ParameterError):
            estimator(loss=loss).fit(X, y)
