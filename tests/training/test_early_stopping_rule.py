"""`dboost.EarlyStopping` and `time_limit`: when a fit ends."""

from __future__ import annotations

import contextlib
import time
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dboost
from dboost.losses import LogLoss, Loss, Poisson
from dboost.losses.classification import SoftmaxLogLoss
from dboost.metrics import Metric
from dboost.metrics.named import ALIASES, find_metrics

RNG = np.random.default_rng(3)
X = RNG.normal(size=(500, 4))
FRAME = pd.DataFrame(X, columns=list("abcd")).assign(y=(X[:, 0] + RNG.normal(size=500) > 0).astype(int))
TRAIN, ONE, TWO = FRAME[:300], FRAME[300:400], FRAME[400:]
OPTIONS: dict[str, Any] = {"max_iter": 200, "max_leaf_nodes": 6, "progress": False, "loss": "log_loss"}
SETS: dict[str, Any] = {"one": ONE, "two": TWO}


def fit(**options: Any) -> dboost.Booster:
    return dboost.fit(TRAIN, "y", **OPTIONS | {"eval_set": SETS, "eval_metric": ["auc", "logloss"]} | options)


def waits(values: np.ndarray, rounds: int, delta: float = 0.0) -> int:
    """Return the iteration (from 1) after which a rule for smaller values stops."""
    best, since = values[0], 0
    for k, value in enumerate(values[1:], 2):
        since = 0 if value < best - delta else since + 1
        best = min(best, value) if since == 0 else best
        if since == rounds:
            return k
    return len(values)


@pytest.mark.fast_cells(8)
@pytest.mark.parametrize("metric", [None, "auc", "logloss", "roc_auc", "log_loss"])
@pytest.mark.parametrize("eval_set", [None, "one", "two"])
@pytest.mark.parametrize("delta", [0.0, 0.003])
def test_the_rule_follows_one_metric_of_one_set(metric: str | None, eval_set: str | None, delta: float) -> None:
    all_of_it = fit(max_iter=60).history
    column = f"{eval_set or 'two'}_{'auc' if metric in ('auc', 'roc_auc') else 'logloss'}"
    sign = -1.0 if "auc" in column else 1.0
    values = sign * all_of_it[column].to_numpy()
    booster = fit(max_iter=60, early_stopping=dboost.EarlyStopping(4, metric, eval_set, delta))
    assert len(booster.history) == waits(values, 4, delta)
    assert booster.best_iteration == int(np.argmin(values[: len(booster.history)])) + 1 == booster.n_iter_


def test_the_last_metric_of_the_last_set_is_the_default() -> None:
    assert fit(early_stopping=dboost.EarlyStopping(5)).sha256 == fit(early_stopping_rounds=5).sha256


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"early_stopping": 5}, "early_stopping=5 must be a dboost.EarlyStopping"),
        ({"early_stopping": dboost.EarlyStopping(5), "early_stopping_rounds": 4}, "two rules to stop by"),
        ({"early_stopping": dboost.EarlyStopping(5, "f1")}, "'f1' is none of the fit's metrics, which are auc, logloss"),
        ({"early_stopping": dboost.EarlyStopping(5, eval_set="x")}, "there is no evaluation set 'x', but 'one', 'two'"),
        (
            {"early_stopping": dboost.EarlyStopping(5), "eval_set": None},
            "early_stopping_rounds needs an eval_set, or validation_fraction",
        ),
        ({"time_limit": "soon"}, "time_limit='soon' must be a positive number of seconds or a duration"),
        ({"time_limit": 0}, "time_limit=0 must be"),
        ({"time_limit": True}, "time_limit=True must be"),
    ],
)
def test_wrong_settings_are_refused(given: dict[str, Any], message: str) -> None:
    options = OPTIONS | {"eval_set": SETS, "eval_metric": ["auc", "logloss"]} | given
    with pytest.raises(dboost.ParameterError, match=message):
        dboost.fit(TRAIN, "y", **options)


@pytest.mark.parametrize("wrong", [(0,), (True,), (2.5,), (3, 7), (3, None, 1), (3, None, None, -1.0), (3, None, None, "a")])
def test_a_wrong_rule_is_refused(wrong: tuple[Any, ...]) -> None:
    with pytest.raises(dboost.ParameterError, match="early_stopping: "):
        dboost.EarlyStopping(*wrong)


def test_a_fit_ends_in_time_with_the_model_so_far() -> None:
    fit(max_iter=2)  # kernels are compiled

    def dawdle(now: dboost.Iteration) -> None:
        time.sleep(0.05)

    booster = fit(callbacks=[dawdle], time_limit=1.0)
    assert 1 <= len(booster.history) < 200  # all of them would take ten seconds
    expected = fit(max_iter=len(booster.history))
    assert np.array_equal(booster.predict_proba(TWO), expected.predict_proba(TWO))


def test_a_limit_that_is_over_leaves_one_iteration_and_a_late_one_all() -> None:
    assert len(fit(time_limit="1ms").history) == 1
    assert len(fit(max_iter=3, time_limit="10min").history) == 3


# The direction of functions.


def gain(y: np.ndarray, prediction: np.ndarray, weight: Any) -> float:
    return -float(np.abs(y - prediction).mean())


def test_a_function_that_stops_a_fit_says_which_values_are_better() -> None:
    assert len(fit(eval_set=ONE, eval_metric=gain, max_iter=4).history) == 4
    message = r"eval_metric 'gain' is a function, .* not known: give dboost.metrics.Metric\(gain, greater_is_better=True\)"
    for rule in ({"early_stopping_rounds": 1}, {"early_stopping": dboost.EarlyStopping(1)}):
        with pytest.raises(dboost.ParameterError, match=message):
            fit(eval_set=ONE, eval_metric=gain, max_iter=4, **rule)
    with pytest.raises(dboost.ParameterError, match=message):
        dboost.cv(ONE, "y", folds=2, eval_metric=gain, max_iter=2)
    other = dboost.EarlyStopping(1, metric="logloss")
    assert len(fit(eval_set=ONE, eval_metric=["logloss", gain], max_iter=4, early_stopping=other).history)


@pytest.mark.parametrize(("name", "is_greater"), [("gain_score", True), ("gain_loss", False), ("gain_error", False)])
def test_names_of_functions_follow_the_rule_of_scikit_learn(name: str, is_greater: bool) -> None:
    def metric(y: np.ndarray, prediction: np.ndarray, weight: Any) -> float:
        return gain(y, prediction, weight) * (1 if is_greater else -1)

    metric.__name__ = name
    booster = fit(eval_set=ONE, eval_metric=metric, max_iter=10, early_stopping_rounds=2)
    assert booster.best_iteration > 2


# Undefined metrics.


def one_class(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["y"] == 1]


def sometimes_nan(y: np.ndarray, prediction: np.ndarray, weight: Any) -> float:
    return float("nan")


def infinite(y: np.ndarray, prediction: np.ndarray, weight: Any) -> float:
    return float("inf")


def correlation(y: np.ndarray, prediction: np.ndarray, weight: Any) -> float:
    """NaN of a constant, as in SciPy: here before the first split."""
    return float("nan") if np.ptp(prediction) == 0 else -float(np.corrcoef(y, prediction)[0, 1])


for smaller_is_better in (sometimes_nan, infinite, correlation):
    smaller_is_better.greater_is_better = False  # type: ignore[attr-defined]
largest = Metric("largest", lambda y, p, w: np.nan, max, float)


@pytest.mark.parametrize(
    ("eval_set", "metric", "message"),
    [
        ({"one": one_class(ONE)}, "auc", "metric 'auc' of evaluation set 'one' is nan in iteration 1"),
        ({"two": TWO, "one": one_class(ONE)}, ["logloss", "auc"], "metric 'auc' of evaluation set 'one' is nan"),
        (ONE, sometimes_nan, "metric 'sometimes_nan' of evaluation set 'eval' is nan"),
        (ONE, infinite, "metric 'infinite' of evaluation set 'eval' is inf"),
        (ONE, largest, "metric 'largest' of evaluation set 'eval' is nan"),
    ],
)
def test_an_undefined_metric_stops_no_fit_and_is_named(eval_set: Any, metric: Any, message: str) -> None:
    with pytest.warns(UserWarning, match=message) as caught:
        booster = fit(eval_set=eval_set, eval_metric=metric, max_iter=12, early_stopping_rounds=1)
    assert sum("early stopping" in str(one.message) for one in caught) == 1
    assert len(booster.history) == booster.n_iter_ == booster.best_iteration == 12
    expected = fit(max_iter=12)
    assert np.array_equal(booster.predict_proba(TWO), expected.predict_proba(TWO))


Y = {"log_loss": FRAME["y"], "classes": np.digitize(X[:, 0], [-0.5, 0.5]), "poisson": np.floor(np.exp(X[:, 0]))}
NAMES = sorted(
    {*ALIASES.values(), "log_loss", "poisson", "mean_poisson_deviance", "f1_macro", "ndcg", "ndcg@3", "map", "map@3"}
)


def metrics_of(loss: Loss) -> list[str]:
    """Return the names of the metrics of a loss."""
    valid = []
    for name in NAMES:
        with contextlib.suppress(dboost.ParameterError):
            valid.append(find_metrics(name, loss)[0].name)
    return valid


OF_LOSSES = {"log_loss": LogLoss(), "classes": SoftmaxLogLoss(3), "poisson": Poisson()}
CASES = [(kind, name) for kind, loss in OF_LOSSES.items() for name in metrics_of(loss)]


@pytest.mark.parametrize(("kind", "metric"), CASES)
@pytest.mark.parametrize("smallest", [True, False])
def test_a_metric_that_no_prediction_changes_is_undefined(kind: str, metric: str, smallest: bool) -> None:
    frame = FRAME.assign(y=Y[kind])
    of_one_target = frame[frame["y"] == (frame["y"].min() if smallest else frame["y"].max())]
    options = OPTIONS | {"max_iter": 8, "eval_set": of_one_target, "eval_metric": metric}
    options["loss"] = "poisson" if kind == "poisson" else "log_loss"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        booster = dboost.fit(frame, "y", early_stopping_rounds=1, **options)
    values = dboost.fit(frame, "y", **options).history[f"eval_{metric}"]
    messages = "".join(str(one.message) for one in caught)
    is_named = f"metric {metric!r} of evaluation set 'eval' is nan in iteration 1" in messages
    assert is_named == values.isna().all() == (values.nunique() < 2)
    assert booster.n_iter_ == 8 or not is_named


def test_early_stopping_begins_when_the_metric_is_defined() -> None:
    def late() -> Any:
        calls = iter(range(1000))

        def score(y: np.ndarray, prediction: np.ndarray, weight: Any) -> float:
            call = next(calls)  # 0 is before the first iteration
            return float("nan") if call < 5 else float(call)

        score.greater_is_better = False  # type: ignore[attr-defined]
        return score

    with pytest.warns(UserWarning, match="metric 'score' of evaluation set 'eval' is nan in iteration 1"):
        booster = fit(eval_set=ONE, eval_metric=late(), max_iter=30, early_stopping_rounds=3)
    assert (booster.best_iteration, len(booster.history)) == (5, 8)


def test_a_metric_that_is_lost_counts_as_no_improvement() -> None:
    calls = iter(range(1000))

    def lost(y: np.ndarray, prediction: np.ndarray, weight: Any) -> float:
        call = next(calls)
        return float("nan") if call > 6 else -float(call)

    lost.greater_is_better = False  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match="metric 'lost' of evaluation set 'eval' is nan in iteration 7"):
        booster = fit(eval_set=ONE, eval_metric=lost, max_iter=30, early_stopping_rounds=3)
    assert (booster.best_iteration, len(booster.history)) == (6, 9)


def test_a_metric_that_only_constants_lack_is_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        booster = fit(eval_set=ONE, eval_metric=correlation, max_iter=30, early_stopping_rounds=3)
    assert 1 <= booster.best_iteration < 30 or len(booster.history) == 30


def test_a_metric_that_does_not_stop_the_fit_may_be_undefined() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rule = dboost.EarlyStopping(2, metric="logloss")
        booster = fit(eval_set=one_class(ONE), eval_metric=["auc", "logloss"], max_iter=5, early_stopping=rule)
    assert np.isnan(booster.history["eval_auc"]).all()


def test_a_continued_fit_with_an_undefined_metric_keeps_its_trees(tmp_path: Any) -> None:
    options: dict[str, Any] = {"eval_set": one_class(ONE), "eval_metric": "auc", "early_stopping_rounds": 2}
    with pytest.warns(UserWarning, match="metric 'auc'"):
        whole = fit(max_iter=10, **options)
        first = fit(max_iter=4, **options)
        fit(max_iter=4, checkpoint=tmp_path / "a", **options)
        resumed = fit(max_iter=10, checkpoint=tmp_path / "a", **options)
        on_new_rows = dboost.fit(ONE, "y", start_from=first, **OPTIONS | options | {"max_iter": 3, "eval_set": one_class(TWO)})
    assert resumed.sha256 == whole.sha256
    assert on_new_rows.n_iter_ == 7


def test_folds_of_one_class_stop_no_cross_validation() -> None:
    frame = FRAME.sort_values("y", ignore_index=True)
    part = np.arange(len(frame)) * 3 // len(frame)  # the first and the last hold one class
    options: dict[str, Any] = {"folds": part, "eval_metric": "auc", "max_iter": 6, "max_leaf_nodes": 4, "progress": False}
    with pytest.warns(UserWarning, match=r"metric 'validation_auc' is nan or infinite in iteration 1 in folds 0, 2") as caught:
        result = dboost.cv(frame, "y", early_stopping_rounds=1, **options)
    assert sum("validation_auc" in str(one.message) for one in caught) == 1
    assert result.best_iteration == 6 and all(booster.n_iter_ == 6 for booster in result.boosters)
    with pytest.warns(UserWarning, match="metric 'validation_auc'"):
        assert dboost.cv(frame, "y", **options).best_iteration == 6


def test_an_estimator_whose_score_is_undefined_is_fitted_to_the_end() -> None:
    def score(estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
        return float("nan")

    model = dboost.DBoostClassifier(max_iter=7, early_stopping=True, n_iter_no_change=1, scoring=score)
    with pytest.warns(UserWarning, match="metric 'score' of evaluation set 'validation' is nan"):
        model.fit(X, FRAME["y"])
    assert model.n_iter_ == 7
    model = dboost.DBoostClassifier(max_iter=7, early_stopping_rounds=1, eval_metric="auc")
    with pytest.warns(UserWarning, match="metric 'auc' of evaluation set .* is nan"):
        model.fit(X, FRAME["y"], eval_set=[(X[FRAME["y"] == 1], FRAME["y"][FRAME["y"] == 1])])
    assert model.n_iter_ == 7


def test_arcbites_cannot_go_on_without_a_metric() -> None:
    with pytest.raises(dboost.DataError, match=r"metric 'auc' of evaluation set 'eval' is nan in iteration 1, .* arcbites"):
        fit(eval_set=one_class(ONE), eval_metric="auc", arcbites={"n_bites": 3}, early_stopping_rounds=1)
