"""Model interpretation works with every loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dboost
from dboost import Booster
from dboost.losses import BUILT_IN
from tests.helpers.fits import FEATURES, mixed_frame

LOSSES = [loss.name for loss in BUILT_IN]
CLASSES = {"log_loss", "exponential", "half_brier_score"}
#: What a loss needs besides its name.
NEEDED: dict[str, dict[str, Any]] = {
    "quantile": {"quantile": 0.7}, "expectile": {"expectile": 0.7}, "half_brier_score": {"boosting": "forest"}
}  # fmt: skip
#: Losses whose raw score is the logarithm of the prediction.
LOG_LINK = {"poisson", "gamma", "tweedie"}


def fitted(loss: str) -> tuple[Any, Booster, str]:
    frame = mixed_frame(300)
    target = "late" if loss in CLASSES else "y"
    if loss in LOG_LINK:
        frame["y"] = np.exp(frame["y"] / 2)
    settings = NEEDED.get(loss, {})
    return frame, dboost.fit(frame[[*FEATURES, target]], target, loss=loss, max_iter=8, min_samples_leaf=5, **settings), target


@pytest.mark.fast_cells(3)
@pytest.mark.parametrize("loss", LOSSES)
def test_values_add_up_and_dependences_are_means_of_predictions(loss: str) -> None:
    frame, booster, target = fitted(loss)
    values = np.asarray(booster.shap_values(frame))
    raw = booster.predict(frame, raw_score=True).to_numpy()
    assert np.abs(values.sum(axis=1) + booster.expected_value - raw).max() < 1e-9
    assert booster.importance().iloc[0] == 100
    dependence = booster.partial_dependence(frame, "x", grid=[0.5], scale="prediction")
    if loss == "normal":
        dependence = dependence[dependence["output"] == "loc"]
    found = dependence["value"].item()
    changed = frame.assign(x=0.5)
    predicted = booster.predict_proba(changed)[1] if target == "late" else booster.predict(changed)
    assert found == pytest.approx(predicted.mean())
    worst = booster.importance("permutation", data=frame, target=target, n_repeats=1)
    assert worst.attrs["score"] == pytest.approx(
        booster.loss.value(frame[target].to_numpy(np.float64), np.atleast_2d(raw.T)).mean(), rel=1e-6
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss", ["poisson", *(pytest.param(name, marks=pytest.mark.slow) for name in ("quantile", "exponential"))]
)
def test_pictures_and_the_report_know_the_scale(loss: str) -> None:
    pytest.importorskip("matplotlib")
    from dboost.inspection.report.page import ReportContext, page

    frame, booster, target = fitted(loss)
    label = booster.plot_partial_dependence("x").get_ylabel().replace("\n", " ")
    expected = {"quantile": "prediction", "poisson": "raw score (logarithm of the prediction)", "exponential": "raw score of 1"}
    assert label == expected[loss]
    html = page(ReportContext(booster, frame, target))
    assert ("Residuals" if target == "y" else "Calibration") in html and loss in html
