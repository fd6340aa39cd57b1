"""Normal distributions: the mean and the scale of each row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dboost
from dboost import DBoostRegressor, ParameterError
from dboost.cli import main
from dboost.losses import Normal
from tests.helpers import real_data

RNG = np.random.default_rng(7)
N = 2000
X = pd.DataFrame(RNG.normal(size=(N, 3)), columns=list("uvz"))
Y = (2 * X["u"] + np.exp(X["v"] / 2) * RNG.normal(size=N)).to_numpy()
W = RNG.integers(1, 4, N).astype(float)
FEW: dict[str, Any] = {"loss": "normal", "max_iter": 20, "max_leaf_nodes": 6, "progress": False, "n_threads": 1}
ONE_TREE = {"multi_strategy": "multi_output_tree"}
STRATEGIES = pytest.mark.parametrize("strategy", [{}, ONE_TREE], ids=["a tree per output", "one tree"])


def fit(y: Any = Y, data: Any = X, **options: Any) -> dboost.Booster:
    return dboost.fit(data, y, **FEW | options)


def scale_of(booster: dboost.Booster) -> float:
    """Return the scale of all rows, which is the unit of scales."""
    assert isinstance(booster.loss, Normal) and booster.loss.scale is not None
    return booster.loss.scale


def negative_log_likelihood(y: np.ndarray, distributions: pd.DataFrame) -> float:
    z = (y - distributions["loc"]) / distributions["scale"]
    return float((np.log(distributions["scale"]) + 0.5 * z**2 + 0.5 * np.log(2 * np.pi)).mean())


@STRATEGIES
def test_mean_and_scale_are_learned(strategy: dict[str, Any]) -> None:
    booster = fit(max_iter=60, **strategy)
    found = booster.predict_distribution(X)
    assert list(found) == ["loc", "scale"] and found.index.equals(X.index)
    assert np.array_equal(booster.predict(X), found["loc"])
    assert np.corrcoef(found["loc"], X["u"])[0, 1] > 0.95
    assert np.corrcoef(np.log(found["scale"]), X["v"])[0, 1] > 0.85
    assert booster.history["train_loss"].iloc[-1] == pytest.approx(negative_log_likelihood(Y, found), rel=1e-9)


def test_the_first_scores_are_those_of_all_rows() -> None:
    offset = RNG.normal(size=N)
    for weight, start, mean in ((None, None, Y.mean()), (W, offset, np.average(Y - offset, weights=W))):
        residual = Y - mean - (0.0 if start is None else start)
        booster = fit(sample_weight=weight, offset=start)
        scale = np.sqrt(np.average(residual**2, weights=weight))
        assert booster.ensemble.baseline == pytest.approx([mean, np.log(scale)], rel=1e-12)
        assert scale_of(booster) == pytest.approx(scale, rel=1e-12)


@STRATEGIES
def test_leaf_values_follow_the_formulas(strategy: dict[str, Any]) -> None:
    """The second iteration, since scales differ there, by its definition in NumPy."""
    booster = fit(max_iter=2, sample_weight=W, l2_regularization=0.5, learning_rate=0.3, **strategy)
    mean, s = booster.predict(X, raw_score=True, iteration_range=(0, 1)).to_numpy().T
    unit, leaves = scale_of(booster), np.asarray(booster.apply(X))
    z = (Y - mean) * np.exp(-s)
    assert np.ptp(s) > 0.1
    gradient, hessian = np.stack([-z, 1 - z**2]), np.stack([unit * np.exp(-s), 1 + z**2])
    for output, factor in ((0, unit), (1, 1.0)):
        t = 1 if strategy else 2 + output
        tree = booster.ensemble.trees[t]
        values = tree.value[tree.feature < 0].reshape(tree.n_leaves, -1)[:, output if strategy else 0]
        for leaf, value in enumerate(values):
            rows = leaves[:, t] == leaf
            step = -0.3 * (W * gradient[output])[rows].sum() / ((W * hessian[output])[rows].sum() + 0.5)
            assert value == pytest.approx(factor * step, rel=1e-4, abs=1e-7)


@STRATEGIES
@pytest.mark.parametrize("factor", [1000.0, 1e-30, 1e30, 1e300])
def test_targets_in_another_unit_have_the_same_model(factor: float, strategy: dict[str, Any]) -> None:
    options = strategy | {"min_hessian": 5.0, "max_delta_step": 0.7}
    one, other = fit(**options), fit(Y * factor, **options)
    expected, found = one.predict_distribution(X), other.predict_distribution(X) / factor
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
    shift = other.history["train_loss"] - np.log(factor)
    assert shift.to_numpy() == pytest.approx(one.history["train_loss"], abs=1e-6)


@pytest.mark.filterwarnings("ignore:no tree has a split")
@pytest.mark.parametrize("value", [5.0, -1e200, 0.0])
def test_equal_targets_have_a_scale(value: float) -> None:
    found = fit(np.full(N, value), max_iter=300).predict_distribution(X)
    assert found["loc"].to_numpy() == pytest.approx(np.full(N, value), abs=1e-12)
    scale = found["scale"].to_numpy()
    assert (scale > 0).all() and (scale <= 2.0**-52 * max(abs(value), 1.0)).all()
    assert scale == pytest.approx(np.full(N, 2.0**-72 * (abs(value) or 1.0)), rel=1e-9), "the lowest one"


def test_the_scale_has_a_floor_in_leaves_of_equal_targets() -> None:
    y = np.where(X["u"] > 0, 3.0, Y)
    booster = fit(y, max_iter=400, learning_rate=1.0)
    scale = booster.predict_distribution(X)["scale"].to_numpy()
    assert scale.min() == pytest.approx(scale_of(booster) * 2.0**-20, rel=1e-12)
    assert np.isfinite(booster.history["train_loss"]).all()


def test_offsets_are_those_of_the_mean() -> None:
    offset = pd.Series(RNG.normal(size=N) * 3)
    frame = X.assign(o=offset, y=Y + offset)
    booster = fit("y", frame, offset="o", features=list("uvz"))
    without = fit(Y)
    found = booster.predict_distribution(frame, offset="o")
    np.testing.assert_allclose(found["loc"] - offset, without.predict(X), atol=1e-5)
    np.testing.assert_allclose(found["scale"], without.predict_distribution(X)["scale"], rtol=1e-5)
    for output, predict in (("prediction", booster.predict), ("distribution", booster.predict_distribution)):
        row = booster.predictor(output)(X.iloc[0].to_numpy(), offset=2.0)
        assert np.array_equal(row, np.asarray(predict(X.iloc[:1], offset=[2.0]))[0])
    assert negative_log_likelihood(frame["y"].to_numpy(), found) == pytest.approx(booster.history["train_loss"].iloc[-1])


@pytest.mark.parametrize(
    ("loss", "more", "message"),
    [
        ("squared_error", [], "there are no distributions"),
        ("normal", ["--interval"], "are different predictions: use one of them"),
    ],
)
def test_what_the_command_line_refuses(
    loss: str, more: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(tmp_path / name) for name in ("model.json", "rows.parquet", "found.parquet")]
    fit(loss=loss).save(files[0])
    X.to_parquet(files[1])
    assert main(["predict", *files[:2], "--distribution", *more, "--output", files[2]]) != 0
    assert message in capsys.readouterr().err


def test_a_model_continued_with_other_rows_keeps_its_unit() -> None:
    first = fit(Y[:1000], X[:1000])
    second = fit(Y[1000:] * 3, X[1000:], start_from=first)
    assert scale_of(second) == scale_of(first)
    assert second.sources[1]["unexplained_loss"] > 1
    same = fit(Y[1000:], X[1000:], start_from=first).sources[1]["unexplained_loss"]
    found = first.predict_distribution(X[1000:])
    constant = np.log(Y[1000:].std()) + 0.5 + 0.5 * np.log(2 * np.pi)
    assert same == pytest.approx(np.exp(2 * (negative_log_likelihood(Y[1000:], found) - constant)), rel=1e-6) and same < 0.8
    refreshed = first.refit_leaves(X[1000:], Y[1000:] * 3)
    scales = [one.predict_distribution(X)["scale"].mean() for one in (first, second, refreshed)]
    assert scales[1] > 1.5 * scales[0] and scales[2] > 1.5 * scales[0]


def test_constraints_are_those_of_the_mean() -> None:
    y = (X["u"] + np.exp(-X["u"]) * RNG.normal(size=N)).to_numpy()
    booster = fit(y, max_iter=60, monotonic_cst={"u": 1})
    grid = pd.DataFrame({"u": np.linspace(-2, 2, 50), "v": 0.0, "z": 0.0})
    found = booster.predict_distribution(grid)
    assert (np.diff(found["loc"]) >= 0).all()
    assert found["scale"].iloc[0] > 2 * found["scale"].iloc[-1]


def test_metrics_are_those_of_the_mean_and_the_likelihood() -> None:
    booster = fit(eval_set=(X, Y), eval_metric=["normal", "rmse", "r2"])
    last = booster.history.iloc[-1]
    found = booster.predict_distribution(X)
    assert last["eval_normal"] == pytest.approx(negative_log_likelihood(Y, found), rel=1e-9)
    assert last["eval_rmse"] == pytest.approx(np.sqrt(((Y - found["loc"]) ** 2).mean()), rel=1e-9)
    assert fit(eval_set=(X, Y)).history["eval_normal"].iloc[-1] == last["eval_normal"]
    result = dboost.cv(X, Y, folds=3, **FEW)
    assert result.metric == "normal" and result.predictions.shape == (N,)


def test_intervals_are_as_wide_as_the_scales() -> None:
    half = N // 2
    booster = fit(Y[:half], X[:half], max_iter=60)
    booster.calibrate(X[half:], Y[half:], coverage=0.9)
    assert booster.calibration is not None
    found, interval = booster.predict_distribution(X), booster.predict_interval(X)
    scores = np.sort(np.abs(Y - found["loc"])[half:] / found["scale"][half:])
    assert booster.calibration.margin == scores[int(np.ceil(0.9 * (N - half + 1))) - 1]
    np.testing.assert_allclose(interval["lower"], found["loc"] - booster.calibration.margin * found["scale"], rtol=1e-15)
    np.testing.assert_allclose(interval["upper"], found["loc"] + booster.calibration.margin * found["scale"], rtol=1e-15)


def test_estimators() -> None:
    estimator = DBoostRegressor(loss="normal", max_iter=20, random_state=0).fit(X, Y)
    found = estimator.predict_distribution(X)
    assert isinstance(found, np.ndarray) and found.shape == (N, 2)
    assert np.array_equal(found[:, 0], estimator.predict(X))
    assert estimator.score(X, Y) > 0.5 and estimator.n_outputs_ == 1
    assert estimator.booster_.shap_values(X[:5]).shape == (5, 3, 2)


def test_dependence_of_the_scale_and_of_its_logarithm() -> None:
    booster = fit()
    points = pd.DataFrame({"u": X["u"], "v": -1.0, "z": X["z"]})
    means = {"raw": booster.predict(points, raw_score=True).mean(), "prediction": booster.predict_distribution(points).mean()}
    for scale, expected in means.items():
        found = booster.partial_dependence(X, "v", grid=[-1.0], scale=scale).set_index("output")["value"]
        assert list(found.index) == list(expected.index)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    surfaces = booster.plot_partial_dependence(X, ["u", "v"], scale="prediction")
    assert [axes.get_title("left") for axes in surfaces] == ["output loc", "output scale"]


def test_residuals_are_those_of_the_mean() -> None:
    booster = fit()
    axes = booster.plot_residuals(X, Y)
    drawn = np.concatenate([line.get_ydata() for line in axes.lines if line.get_marker() == "o"])
    assert np.array_equal(drawn, Y - booster.predict(X).to_numpy())
    assert axes.get_ylabel() == "target − prediction"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fit(loss="squared_error").predict_distribution(X), "no distributions: the model was trained with loss='squa"),
        (lambda: fit(boosting="forest"), "loss='normal' is for boosting: a forest averages means"),
        (lambda: fit(np.stack([Y, Y], axis=1)), "loss='normal' has several outputs or target columns"),
        (
            lambda: fit().to_xgboost_json("model.json"),
            "XGBoost has no models of loss='normal', which predict a mean and a scale",
        ),
        (lambda: fit(influence_trimming=0.1), "influence_trimming is for loss='log_loss', not for loss='normal'"),
        (lambda: dboost.DBoostClassifier(loss="normal").fit(X, Y > 0), "loss='normal': a classifier is trained with"),
        (lambda: fit().predict_proba(X), "there are no probabilities"),
    ],
)
def test_what_is_refused(call: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ParameterError, match=message):
        call()


@pytest.mark.slow
@pytest.mark.parametrize("table", ["california", "hflights"])
def test_real_tables(table: str) -> None:
    """On new rows the loss is below that of one scale for all, and 90 % intervals contain 85 to 95 % of the targets."""
    if table == "california":
        whole = real_data.load(table)
        data, y = whole.X, whole.y.to_numpy(np.float64)
    else:
        flights = pd.read_parquet(real_data.path(table))
        flights = flights[flights["ArrDelay"].notna()].sample(30_000, random_state=5)
        unknown = [name for name in real_data.AFTER_DEPARTURE if name != "DepDelay"]
        data, y = flights.drop(columns=[*unknown, "ArrDelay"]), flights["ArrDelay"].to_numpy(np.float64)
    order = np.random.default_rng(0).permutation(len(y))
    train, test = np.split(order, [3 * len(y) // 4])
    train, watched = np.split(train, [9 * len(train) // 10])
    options: dict[str, Any] = {"max_iter": 400, "max_leaf_nodes": 15, "progress": False, "early_stopping_rounds": 30}
    options["eval_set"] = (data.iloc[watched], y[watched])
    models = [dboost.fit(data.iloc[train], y[train], loss=loss, **options) for loss in ("squared_error", "normal")]
    residuals = [(y[rows] - models[0].predict(data.iloc[rows])).to_numpy() for rows in (watched, test)]
    scale = np.sqrt((residuals[0] ** 2).mean())
    one_scale = np.log(scale) + 0.5 * ((residuals[1] / scale) ** 2).mean() + 0.5 * np.log(2 * np.pi)
    found = models[1].predict_distribution(data.iloc[test])
    assert negative_log_likelihood(y[test], found) < one_scale - 0.02
    within = (np.abs(y[test] - found["loc"]) < 1.6449 * found["scale"]).mean()
    assert 0.85 < within < 0.95
