"""`dboost.EarlyStopping` and `time_limit`: when a fit ends."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dboost

RNG = np.random.default_rng(3)
X = RNG.normal(size=(500, 4))
FRAME = pd.DataFrame(X, columns=list("abcd")).assign(y=(X[:, 0] + RNG.normal(size=500) > 0).astype(int))
TRAIN, ONE, TWO = FRAME[:300], FRAME[300:400], FRAME[400:]
OPTIONS: dict[str, Any] = {"max_iter": 200, "max_leaf_nodes": 6, "progress": False, "loss": "log_loss"}
SETS: dict[str, Any] = {"one": ONE, "two": TWO}


def fit(**options: Any) -> dboost.Booster:
    return dboost.fit(TRAIN, "y", eval_set=SETS, eval_metric=["auc", "logloss"], **OPTIONS | options)


def waits(values: np.ndarray, rounds: int, delta: float = 0.0) -> int:
    """Return the iteration (from 1) after which a rule for smaller values stops."""
    best, since = values[0], 0
    for k, value in enumerate(values[1:], 2):
        since = 0 if value < best - delta else since + 1
        best = min(best, value) if since == 0 else best
        if since == rounds:
            return k
    return len(values)


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
        ({"early_stopping": dboost.EarlyStopping(5), "eval_set": None}, "early_stopping_rounds needs an eval_set"),
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
