"""Several quantiles of one target: each is that of a fit of its own, and predictions never cross."""

from __future__ import annotations

import json
import math
from copy import copy
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import mean_pinball_loss

import dboost
from dboost import DataError, ParameterError
from dboost.cli import main
from dboost.losses import Quantile, Quantiles, from_dict
from dboost.model import model_file
from tests.helpers.examples import examples

LEVELS = [0.05, 0.5, 0.95]
NINE = [k / 10 for k in range(1, 10)]


def made(n: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(n, 4)), columns=list("abcd"))
    frame["y"] = frame["a"] * frame["b"] + rng.normal(size=n) * np.exp(0.7 * frame["c"])
    frame["w"] = rng.integers(1, 4, n) * 1.0
    return frame


FRAME, HELD_OUT = made(1200), made(600, 1)
X, Y = FRAME[list("abcd")], FRAME["y"]


def fit(levels: Any = LEVELS, **options: Any) -> dboost.Booster:
    return dboost.fit(X, Y, loss="quantile", quantile=levels, **{"max_iter": 12} | options)


@pytest.fixture(scope="module")
def model() -> dboost.Booster:
    return fit()


@pytest.mark.fast_cells(2)
@pytest.mark.parametrize(
    "options",
    [{}, {"sample_weight": FRAME["w"].to_numpy(), "subsample": 0.7}, {"offset": FRAME["a"].to_numpy()}, {"max_depth": 3}],
)
def test_each_level_is_that_of_a_fit_of_its_own(options: dict[str, Any]) -> None:
    raw = fit(**options).predict(X, raw_score=True)
    assert list(raw.columns) == ["0.05", "0.5", "0.95"]
    for level, name in zip(LEVELS, raw.columns, strict=True):
        np.testing.assert_array_equal(raw[name], fit(level, **options).predict(X, raw_score=True))


def test_predictions_are_sorted_scores_and_never_cross() -> None:
    """100,000 predictions of nine levels."""
    booster = dboost.fit(made(3000, 2), "y", features=list("abcd"), loss="quantile", quantile=NINE, max_iter=25)
    rows = made(100_000, 3)
    predicted, raw = booster.predict(rows), booster.predict(rows, raw_score=True)
    assert list(predicted.columns) == [repr(level) for level in NINE]
    assert (np.diff(predicted, axis=1) >= 0).all() and (np.diff(raw, axis=1) < 0).any(), "scores cross"
    np.testing.assert_array_equal(predicted, np.sort(raw, axis=1))


@given(st.lists(st.tuples(*[st.floats(-1e3, 1e3)] * 4), min_size=1, max_size=20))
@examples(100, deadline=None)
def test_sorting_never_raises_the_loss(rows: list[tuple[float, ...]]) -> None:
    y, *raw = np.array(rows).T
    loss = Quantiles(LEVELS)
    scores = np.stack(raw)
    one_by_one = np.mean([Quantile(level).value(y, score[None]) for level, score in zip(LEVELS, scores, strict=True)], axis=0)
    np.testing.assert_allclose(loss.value(y, scores), one_by_one)
    assert (loss.value(y, loss.link.ordered(scores)) <= loss.value(y, scores) + 1e-9).all()


def test_metrics_are_those_of_the_predictions() -> None:
    booster = dboost.fit(
        FRAME, "y", features=list("abcd"), loss="quantile", quantile=NINE, max_iter=15, sample_weight="w", eval_set=HELD_OUT,
        eval_metric=["mean_pinball_loss", "quantile", "mean_pinball_loss of 0.9"],
    )  # fmt: skip
    predicted = booster.predict(HELD_OUT)
    of_levels = [
        mean_pinball_loss(HELD_OUT["y"], predicted[repr(level)], alpha=level, sample_weight=HELD_OUT["w"]) for level in NINE
    ]
    last = booster.history.iloc[-1]
    assert last["eval_mean_pinball_loss"] == pytest.approx(np.mean(of_levels), rel=1e-9)
    assert last["eval_quantile"] == pytest.approx(np.mean(of_levels), rel=1e-9)
    assert last["eval_mean_pinball_loss of 0.9"] == pytest.approx(of_levels[-1], rel=1e-9)
    stopped = dboost.fit(
        FRAME, "y", features=list("abcd"), loss="quantile", quantile=NINE, max_iter=200, learning_rate=0.5, eval_set=HELD_OUT,
        early_stopping_rounds=5,
    )  # fmt: skip
    assert stopped.best_iteration is not None and stopped.best_iteration < 200


def test_losses_of_files(model: dboost.Booster) -> None:
    assert repr(model) == "<Booster: quantile, 3 quantiles, 12 iterations, 4 features>"
    assert isinstance(from_dict(model.loss.to_dict()), Quantiles)
    content = json.loads(b"{" + model_file._content(model.ensemble))
    swapped = content["loss"] | {"losses": content["loss"]["losses"][::-1]}
    other = dboost.Booster(model_file.parse_ensemble(content | {"loss": swapped}))
    assert not isinstance(other.loss, Quantiles)
    np.testing.assert_array_equal(other.predict(X), other.predict(X, raw_score=True))  # it has no order to restore


def test_continued_refitted_and_shortened_models(model: dboost.Booster) -> None:
    longer = dboost.fit(X, Y, max_iter=3, start_from=model, continue_steps="full")
    assert longer.n_iter_ == 15 and isinstance(longer.loss, Quantiles) and longer.loss.levels == tuple(LEVELS)
    again = model.refit_leaves(X, Y)
    np.testing.assert_allclose(again.predict(X), model.predict(X), rtol=1e-9)
    assert (np.diff(model[:5].predict(X), axis=1) >= 0).all()
    with pytest.raises(dboost.DataError, match="was trained with loss 'quantile'"):
        dboost.fit(X, Y, max_iter=1, start_from=model, loss="quantile", quantile=[0.1, 0.9])


def test_conformalized_quantiles(model: dboost.Booster) -> None:
    found, test = copy(model).calibrate(HELD_OUT, "y", coverage=0.9), made(5000, 4)
    quantiles = model.predict(HELD_OUT)
    scores = np.maximum(quantiles["0.05"] - HELD_OUT["y"], HELD_OUT["y"] - quantiles["0.95"])
    assert found.calibration is not None and found.calibration.margin == np.sort(scores)[int(np.ceil(601 * 0.9)) - 1]
    bounds, outer = found.predict_interval(test), model.predict(test)
    np.testing.assert_array_equal(bounds["upper"], outer["0.95"] + found.calibration.margin)
    inside = (bounds["lower"] <= test["y"]) & (test["y"] <= bounds["upper"])
    assert inside.mean() == pytest.approx(0.9, abs=0.03)
    width = bounds["upper"] - bounds["lower"]
    assert width[test["c"] > 1].mean() > 1.5 * width[test["c"] < -1].mean(), "intervals follow the spread"
    narrow = fit([0.01, 0.99], max_iter=3).calibrate(HELD_OUT, "y", coverage=0.05)
    assert narrow.calibration is not None and narrow.calibration.margin < 0
    lower, upper = narrow.predict_interval(test).to_numpy().T
    assert (lower <= upper).all()


def test_cross_validation_and_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = dboost.cv(FRAME, "y", features=list("abcd"), loss="quantile", quantile=LEVELS, folds=3, max_iter=5)
    assert result.predictions.shape == (len(FRAME), 3) and (np.diff(result.predictions, axis=1) >= 0).all()
    found = result.calibrate(fit(max_iter=5)).calibration
    assert found is not None and found.rows == len(FRAME)
    FRAME.drop(columns="w").to_parquet("rows.parquet")
    settings = ["--set", "loss=quantile", "--set", "quantile=[0.05, 0.5, 0.95]", "--set", "max_iter=12"]
    assert main(["cv", "rows.parquet", "--target", "y", "--folds", "3", "--predictions", "held-out.csv", *settings]) == 0
    assert list(pd.read_csv("held-out.csv").columns) == ["0.05", "0.5", "0.95"]


def test_estimator() -> None:
    estimator = dboost.DBoostRegressor(loss="quantile", quantile=LEVELS, max_iter=1).fit(X, Y)
    with pytest.raises(ParameterError, match="score is of one prediction per row, and the model has 3 quantiles"):
        estimator.score(X, Y)


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ([0.9, 0.1], "in ascending order, each once"),
        ([0.5, 0.5], "in ascending order, each once"),
        ([0.5], "at least two"),
        ([], "at least two"),
        ([0.1, None], "in ascending order"),
        ([0.0, 0.5], "greater than 0 and less than 1"),
        (["a", 0.5], "must be a number"),
    ],
)
def test_invalid_levels(levels: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        fit(levels)


def test_what_there_is_not(model: dboost.Booster) -> None:
    for export in (lambda: model.to_onnx("x.onnx"), model.to_treelite):
        with pytest.raises(ParameterError, match=r"sorts the scores of several quantiles, which .* does not: fit one level"):
            export()
    with pytest.raises(ParameterError, match="the model predicts 3 numbers for each row"):
        model.plot_residuals(HELD_OUT, "y")
    with pytest.raises(ParameterError, match="one of several targets"):
        dboost.fit(X, np.column_stack([Y, Y]), loss="quantile", quantile=LEVELS)


@pytest.mark.parametrize("options", [{}, {"sample_weight": FRAME["w"].to_numpy()}])
def test_leaf_values_of_one_tree_are_quantiles_of_the_residuals(options: dict[str, Any]) -> None:
    """With one tree for all levels: compared with sorted residuals, rows of weight 2 twice."""
    booster = fit(NINE, multi_strategy="multi_output_tree", max_iter=2, max_leaf_nodes=6, learning_rate=1.0, **options)
    assert booster.ensemble.width == 9 and len(booster.ensemble.trees) == 2
    weight = options.get("sample_weight", np.ones(len(Y))).astype(int)
    for iteration in range(2):
        before = np.asarray(booster.predict(X, raw_score=True, iteration_range=(0, iteration)))
        leaf = booster.apply(X).iloc[:, iteration].to_numpy()
        values = booster.ensemble.trees[iteration].value[booster.ensemble.trees[iteration].feature < 0]
        for at in np.unique(leaf):
            residuals = np.repeat(Y.to_numpy()[leaf == at, None] - before[leaf == at], weight[leaf == at], axis=0)
            for k, level in enumerate(NINE):
                ordered, share = np.sort(residuals[:, k]), Fraction(repr(level)) * len(residuals)
                rank = math.ceil(share)
                expected = (ordered[rank - 1] + ordered[rank]) / 2 if share == rank else ordered[rank - 1]
                assert values[at, k] == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_one_tree_for_all_levels() -> None:
    options: dict[str, Any] = {"loss": "quantile", "quantile": NINE, "max_iter": 8, "multi_strategy": "multi_output_tree"}
    model = dboost.fit(X.assign(y=Y), "y", **options)
    np.testing.assert_allclose(model.refit_leaves(X, Y).predict(X), model.predict(X), rtol=1e-12)
    longer = dboost.fit(X.assign(y=Y), "y", max_iter=2, start_from=model)
    assert longer.ensemble.width == 9 and (np.diff(longer.predict(X), axis=1) >= 0).all()


@pytest.mark.slow
def test_report(model: dboost.Booster, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    model.report(tmp_path / "report.html", HELD_OUT, "y")  # has no residuals
    assert "3 quantiles" in (tmp_path / "report.html").read_text()


def test_a_model_of_other_losses_is_named_by_what_a_user_gives() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(100, 2)), rng.normal(size=(100, 2))
    few = {"max_iter": 1, "progress": False}
    quantiles = dboost.fit(X, y[:, 0], loss="quantile", quantile=[0.1, 0.5], **few)
    told = r"trained with loss 'quantile' \(quantile=\[0.1, 0.5\]\), not loss "
    with pytest.raises(DataError, match=told + r"'quantile' \(quantile=\[0.1, 0.9\]\)$"):
        dboost.fit(X, y[:, 0], start_from=quantiles, loss="quantile", quantile=[0.1, 0.9], **few)
    with pytest.raises(DataError, match=told + r"'huber' \(huber_alpha=0.9\)$"):
        dboost.fit(X, y[:, 0], start_from=quantiles, loss="huber", **few)
    both = dboost.fit(X, y, loss=["squared_error", "huber"], **few)
    with pytest.raises(
        DataError, match=r"loss 'squared_error' and loss 'huber' \(huber_alpha=0.9\) for '0', '1', not loss 'absolute"
    ):
        dboost.fit(X, y, start_from=both, loss="absolute_error", **few)
