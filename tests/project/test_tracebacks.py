"""An error of dboost shows the user's code alone, at every public name; ``DBOOST_DEBUG`` shows all calls."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dboost
from dboost.cli import main
from dboost.losses import Loss
from dboost.metrics import Metric
from tests.helpers.shown_frames import PACKAGE, frames_of_dboost, shown_frames

FRAME = pd.DataFrame({"a": np.arange(60.0), "b": np.arange(60) % 3, "y": np.arange(60) % 2})
MODEL = dboost.fit(FRAME, "y", max_iter=2)
X = FRAME[["a", "b"]]
LAZY = dd.from_pandas(FRAME, npartitions=2).astype({"b": object})


class _Undefined(Loss):
    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return (y - raw) ** 2


class _Failing(_Undefined):
    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        raise ZeroDivisionError("in the user's code")


def _staged() -> None:
    list(MODEL.staged_predict(X[["a"]]))


def _fail(*_: object) -> float:
    raise ZeroDivisionError("in the user's code")


CALLS: dict[str, Callable[[], Any]] = {
    "fit": lambda: dboost.fit(FRAME, "z"),
    "fit, a keyword": lambda: dboost.fit(FRAME, "y", max_itr=1),
    "fit, a number": lambda: dboost.fit(FRAME, "y", max_iter=0),
    "fit, a loss without a gradient": lambda: dboost.fit(FRAME, "y", loss=_Undefined()),
    "fit, a type": lambda: dboost.fit(object(), "y"),
    "fit, a file": lambda: dboost.fit("nowhere/*.parquet", "y"),
    "fit_async": lambda: asyncio.run(dboost.fit_async(FRAME, "z")),
    "continue_on": lambda: list(dboost.continue_on([FRAME], "z")),
    "cv": lambda: dboost.cv(FRAME, "z"),
    "prepare": lambda: dboost.prepare(FRAME, "z"),
    "plan": lambda: dboost.plan(0, 1),
    "load": lambda: dboost.load("nowhere.json"),
    "from_xgboost": lambda: dboost.from_xgboost(object()),
    "from_lightgbm": lambda: dboost.from_lightgbm(object()),
    "Dataset": lambda: dboost.Dataset("nowhere"),
    "ArcBites": lambda: dboost.ArcBites(n_bites=0),
    "EarlyStopping": lambda: dboost.EarlyStopping(0),
    "Metric": lambda: Metric("", None, None, None),  # type: ignore[arg-type]
    "an estimator's parameter": lambda: dboost.DBoostRegressor(max_iter=0).fit(X, FRAME["y"]),
    "an estimator's keyword": lambda: dboost.DBoostRegressor(max_itr=1),
    "an estimator's target": lambda: dboost.DBoostClassifier(max_iter=1).fit(X, [1.0]),
    "predict": lambda: MODEL.predict(X[["a"]]),
    "predict, a keyword": lambda: MODEL.predict(X, number=1),
    "staged_predict": _staged,
    "predictor": lambda: MODEL.predictor()({"a": 1.0}),
    "model[…]": lambda: MODEL[5:],
    "save": lambda: MODEL.save("nowhere/model.json"),
    "shap_values": lambda: MODEL.shap_values(X[["a"]]),
    "plot_importance": lambda: MODEL.plot_importance(kind="size"),
    "report": lambda: MODEL.report("nowhere/report.html"),
    "drift": lambda: MODEL.drift(X[["a"]]),
    "predict, lazy": lambda: MODEL.predict(LAZY.assign(b="text")).compute(scheduler="synchronous"),
    "predict, lazy array": lambda: MODEL.predict(da.ones((4, 2), chunks=2)[:, :1]).compute(scheduler="synchronous"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_mistake_shows_no_frame_of_dboost(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DBOOST_DEBUG", raising=False)
    with pytest.raises((dboost.DBoostError, TypeError)) as caught, dask.config.set(scheduler="synchronous"):
        CALLS[name]()
    assert isinstance(caught.value, dboost.DBoostError)
    assert frames_of_dboost(caught.value) == []
    monkeypatch.setenv("DBOOST_DEBUG", "1")
    with pytest.raises(dboost.DBoostError) as caught:
        CALLS[name]()
    assert frames_of_dboost(caught.value)


@pytest.mark.parametrize(
    "keywords",
    [{"loss": _Failing()}, {"eval_set": FRAME, "eval_metric": _fail}, {"callbacks": [_fail]}, {"learning_rate": _fail}],
)
def test_code_of_the_user_stays(keywords: dict[str, Any]) -> None:
    """What a loss, a metric or a callback raises is shown from its own first line on."""
    with pytest.raises((dboost.DBoostError, ZeroDivisionError), match="in the user's code") as caught:
        dboost.fit(FRAME, "y", max_iter=1, **keywords)
    assert any(
        frame.filename == __file__ and "raise ZeroDivisionError" in str(frame.line) for frame in shown_frames(caught.value)
    )
    assert frames_of_dboost(caught.value) == []


def test_an_error_that_was_there_before_stays() -> None:
    try:
        np.linalg.inv(np.zeros((2, 2)))
    except np.linalg.LinAlgError as before:
        n_frames = len(shown_frames(before))
        with pytest.raises(dboost.DataError) as caught:
            dboost.fit(FRAME, "z")
        assert caught.value.__context__ is before
        assert len(shown_frames(before)) == n_frames


def test_bugs_keep_their_frames() -> None:
    model = dboost.fit(FRAME, "y", max_iter=1)
    del model.ensemble
    with pytest.raises(AttributeError) as caught:
        model.predict(FRAME)
    assert frames_of_dboost(caught.value)


@pytest.mark.parametrize("debug", [False, True])
def test_a_command(debug: bool, tmp_path: Path) -> None:
    FRAME.to_parquet(tmp_path / "rows.parquet")
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed):
        status = main(["train", str(tmp_path / "rows.parquet"), "--target", "z", "--output", "m.json", *["--debug"] * debug])
    assert status == 2
    assert (printed.getvalue().count(str(PACKAGE)) > 2) is debug
