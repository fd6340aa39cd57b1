"""Model interpretation, plots and the report work with a model from every kind of fit or import."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dboost
from dboost import Booster
from tests.helpers.fits import FEATURES, mixed_frame

pytest.importorskip("matplotlib")
FRAME = mixed_frame(240)
SMALL: dict[str, Any] = {"max_iter": 4, "max_leaf_nodes": 5, "min_samples_leaf": 5, "progress": False}


class LogCosh(dboost.losses.Loss):
    """A custom loss."""

    name = "log_cosh"

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return np.log(np.cosh(raw - y))

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return np.tanh(raw - y)

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return 1 / np.cosh(raw - y) ** 2


def of(target: str) -> pd.DataFrame:
    return FRAME[[*FEATURES, target]]


def plain(folder: Path, target: str, **settings: Any) -> Booster:
    return dboost.fit(of(target), target, **SMALL, **settings)


def continued(folder: Path, target: str) -> Booster:
    first = dboost.fit(of(target)[:120], target, source_name="January <b>", **SMALL)
    return dboost.fit(of(target)[120:], target, start_from=first, source_name="February", **SMALL)


def watched(folder: Path, target: str) -> Booster:
    held_out = {"next year": of(target)[180:]}
    return dboost.fit(of(target)[:180], target, eval_set=held_out, early_stopping_rounds=2, **SMALL)


def imported(folder: Path, target: str) -> Booster:
    xgboost = pytest.importorskip("xgboost")
    numbers = FRAME[["x", "size", "age", "rooms"]]
    settings = {"max_leaves": 5, "nthread": 1, "objective": "reg:squarederror" if target == "y" else "binary:logistic"}
    return dboost.from_xgboost(xgboost.train(settings, xgboost.DMatrix(numbers, FRAME[target], nthread=1), 4))


def of_own(folder: Path, target: str) -> Booster:
    return plain(folder, target, loss=LogCosh())


def positive(folder: Path, target: str) -> Booster:
    return dboost.fit(of("late"), "late", loss="poisson", **SMALL)


MAKERS: list[tuple[Callable[..., Booster], str]] = [
    (continued, "grade"), (watched, "late"), (imported, "y"), (of_own, "y"), (positive, "late"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("maker", "target"), MAKERS)
def test_every_model_can_be_reported_and_drawn(
    maker: Callable[..., Booster], target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dboost.inspection.report import page
    from dboost.inspection.row_functions import ScoringRoles

    for few in ("N_DEPENDENCE", "N_CLASSES"):  # plots take most of the time
        monkeypatch.setattr(page, few, 1)
    booster = maker(tmp_path, target)
    html = page.page(page.ReportContext(booster, FRAME, target, ScoringRoles("w")))
    for said in ("How good it is", "How predictions depend on it", booster.sha256, booster.loss.name.replace("_", " ")):
        assert said in html
    assert "<b>dboost model</b>" in booster._repr_html_()
    assert ("Residuals" if booster.classes_ is None else "Calibration") in html
    if maker is continued:
        assert "January &lt;b&gt;" in html and "February" in html and "120 + 120 rows" in html
        assert "8 iterations, 7 features, 2 sources" in booster._repr_html_()
    raw = np.asarray(booster.predict(FRAME, raw_score=True)).reshape(len(FRAME), -1)
    values = np.asarray(booster.shap_values(FRAME)).reshape(len(FRAME), booster.n_features_in_, -1)
    assert np.abs(values.sum(axis=1) + booster.expected_value - raw).max() < 1e-6
    for axes in (
        booster.plot_waterfall(FRAME, 3),
        booster.plot_partial_dependence(FRAME, "rooms", "individual", max_rows=5, grid=4),
    ):
        assert np.ravel(axes)[0].get_title(loc="left")
