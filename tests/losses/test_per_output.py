"""Losses of several targets: each output is the model of its target alone, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dboost
from dboost import Booster, DataError, ParameterError
from dboost.cli import main
from dboost.losses import PerOutput, by_name, from_dict
from dboost.model.ensemble import Tree
from tests.helpers.combinations import Smooth

RNG = np.random.default_rng(3)
N = 600
X = pd.DataFrame(RNG.normal(size=(N, 3)), columns=list("uvz"))
X.loc[::7, "v"] = np.nan
X["town"] = pd.Categorical(RNG.choice(["a", "b", "c"], N))
TARGETS = pd.DataFrame(
    {
        "price": X["u"] + (X["town"] == "b") + RNG.normal(size=N) / 4,
        "count": RNG.poisson(np.exp(X["z"])).astype(float),
        "far": 1e6 * (np.abs(X["u"]) - X["z"]),
    }
)
WEIGHTS = RNG.uniform(0.0, 2.0, N)
LABELS = pd.DataFrame({"up": X["u"] > 0, "many": TARGETS["count"] > 1})
OPTIONS: dict[str, Any] = {"max_iter": 5, "max_leaf_nodes": 8, "progress": False, "n_threads": 1}


def same_trees(trees: tuple[Tree, ...], others: tuple[Tree, ...]) -> None:
    assert len(trees) == len(others)
    for one, other in zip(trees, others, strict=True):
        for name in ("feature", "threshold", "missing_left", "gain", "cover", "count", "value"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


def assert_is_each_alone(several: Booster, alone: list[Booster]) -> None:
    k = len(alone)
    np.testing.assert_array_equal(several.ensemble.baseline, [one.ensemble.baseline[0] for one in alone])
    for output, one in enumerate(alone):
        same_trees(several.ensemble.trees[output::k], one.ensemble.trees)


#: Loss of each target, and further parameters.
FITS: dict[str, tuple[Any, dict[str, Any]]] = {
    "squared error": ("squared_error", {}),
    "medians": ("absolute_error", {"sample_weight": WEIGHTS}),
    "quantiles": ("quantile", {"quantile": 0.9, "subsample": 0.7}),
    "huber": ("huber", {"sample_weight": WEIGHTS}),
    "offset": ("squared_error", {"offset": X["z"].to_numpy()}),
    "line search": ("huber", {"step": "line_search"}),
    "least squares": (Smooth(), {"criterion": "gradient"}),
    "own loss": (Smooth(), {"sample_weight": WEIGHTS}),
    "several": (["squared_error", "poisson", "huber"], {"sample_weight": WEIGHTS}),
    "own and others": ([Smooth(), "tweedie", "absolute_error"], {"tweedie_power": 1.2, "sample_weight": WEIGHTS}),
}


@pytest.mark.fast_cells(4)
@pytest.mark.parametrize("name", FITS)
def test_each_target_is_trained_as_if_it_were_alone(name: str) -> None:
    loss, options = FITS[name]
    targets = TARGETS if isinstance(loss, list) else TARGETS[["price", "far" if isinstance(loss, str) else "count"]]
    several = dboost.fit(X, targets, loss=loss, **OPTIONS | options)
    alone = []
    for column, of_column in zip(targets, loss if isinstance(loss, list) else [loss] * targets.shape[1], strict=True):
        own = {key: value for key, value in options.items() if key != "tweedie_power" or of_column == "tweedie"}
        alone.append(dboost.fit(X, targets[column], loss=of_column, **OPTIONS | own))
    assert_is_each_alone(several, alone)
    found = several.predict(X)
    assert list(found) == list(targets)
    for column, one in zip(targets, alone, strict=True):
        np.testing.assert_array_equal(found[column], one.predict(X))
    np.testing.assert_array_equal(several.predict(X.assign(town=X["town"].cat.codes).to_numpy()[:0]).shape, (0, len(alone)))
    last = np.mean([one.history["train_loss"].iloc[-1] for one in alone])
    assert several.history["train_loss"].iloc[-1] == pytest.approx(last, rel=1e-12)


def test_labels() -> None:
    booster = dboost.fit(X, LABELS, **OPTIONS, influence_trimming=0.1)
    alone = [dboost.fit(X, LABELS[name], **OPTIONS, influence_trimming=0.1) for name in LABELS]
    assert_is_each_alone(booster, alone)
    assert (booster.outputs.kind, booster.classes_) == ("2 labels", None)
    probabilities = booster.predict_proba(X)
    for name, one in zip(LABELS, alone, strict=True):
        np.testing.assert_array_equal(probabilities[name], one.predict_proba(X).iloc[:, 1])
        np.testing.assert_array_equal(booster.predict(X)[name] == 1, one.predict(X))
    assert booster.predict(X).dtypes.tolist() == [np.dtype(np.int64)] * 2
    raw = booster.predict(X, raw_score=True)
    np.testing.assert_array_equal((raw > 0).to_numpy(), booster.predict(X).to_numpy() == 1)
    mixed = dboost.fit(X, LABELS.assign(price=TARGETS["price"]), loss=["log_loss", "log_loss", "huber"], **OPTIONS)
    assert mixed.predict(X).drop(columns="price").isin([0.0, 1.0]).to_numpy().all()
    with pytest.raises(ParameterError, match="there are no probabilities: the model predicts numbers"):
        mixed.predict_proba(X)


def test_auto_chooses_squared_error_or_labels(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="dboost"):
        assert dboost.fit(X, TARGETS, **OPTIONS).ensemble.loss["name"] == "squared_error"
        assert dboost.fit(X, LABELS.astype(int), **OPTIONS).ensemble.loss["name"] == "log_loss"
        assert dboost.fit(X, LABELS.assign(z=X["z"]), **OPTIONS).ensemble.loss["name"] == "squared_error"
    told = [one for one in caplog.messages if "loss='auto'" in one]
    assert told == [
        "loss='auto' is 'squared_error' for each of 3 targets, which hold numbers",
        "loss='auto' is 'log_loss' for each of 2 targets, which hold zeros and ones",
        "loss='auto' is 'squared_error' for each of 3 targets, which hold numbers",
    ]


def test_metrics_are_means_over_the_outputs() -> None:
    metrics = ["rmse", "r2", "mae of far"]
    booster = dboost.fit(X, TARGETS, eval_set={"test": (X, TARGETS)}, eval_metric=metrics, **OPTIONS)
    errors = booster.predict(X) - TARGETS
    last = booster.history.iloc[-1]
    rmse = np.sqrt((errors**2).mean())
    assert last["test_rmse"] == pytest.approx(rmse.mean(), rel=1e-12)
    for name in TARGETS:
        assert last[f"test_rmse of {name}"] == pytest.approx(rmse[name], rel=1e-12)
    assert last["test_mae of far"] == pytest.approx(errors["far"].abs().mean(), rel=1e-12)
    r2 = 1.0 - (errors**2).sum() / ((TARGETS - TARGETS.mean()) ** 2).sum()
    assert last["test_r2"] == pytest.approx(r2.mean(), rel=1e-10)


def test_own_metrics_get_all_outputs() -> None:
    def largest(y: np.ndarray, prediction: np.ndarray, weight: np.ndarray | None) -> float:
        assert y.shape == prediction.shape == (N, 3)
        return float(np.abs(y - prediction).max())

    of_parts = dboost.metrics.Metric("of_parts", lambda y, p, w: np.abs(y - p).max(axis=0), np.maximum, lambda m: m.max())
    largest.greater_is_better = False  # type: ignore[attr-defined]
    booster = dboost.fit(X, TARGETS, eval_set={"test": (X, TARGETS)}, eval_metric=[largest, of_parts], **OPTIONS)
    expected = (booster.predict(X) - TARGETS).abs().to_numpy().max()
    assert booster.history.iloc[-1][["test_largest", "test_of_parts"]].tolist() == pytest.approx([expected] * 2)


def test_early_stopping_by_one_output() -> None:
    stopping = dboost.EarlyStopping(1, metric="rmse of count")
    more: dict[str, Any] = {"eval_metric": ["rmse", "rmse of count"], "eval_set": (X[:50], TARGETS[:50])}
    booster = dboost.fit(X, TARGETS, early_stopping=stopping, **OPTIONS | {"max_iter": 200} | more)
    column = booster.history["eval_rmse of count"]
    assert booster.best_iteration == column.idxmin() + 1 < 200


def test_a_model_is_continued_on_other_rows() -> None:
    first = dboost.fit(X[:300], TARGETS[:300], **OPTIONS)
    alone = [dboost.fit(X[:300], TARGETS[name][:300], **OPTIONS, loss="squared_error") for name in TARGETS]
    options = OPTIONS | {"continue_steps": "full", "max_iter": 3}
    then = dboost.fit(X[300:], TARGETS[300:], start_from=first, **options)
    assert_is_each_alone(
        then,
        [dboost.fit(X[300:], TARGETS[name][300:], start_from=one, **options) for name, one in zip(TARGETS, alone, strict=True)],
    )
    damped = dboost.fit(X[300:], TARGETS[300:], start_from=first, **OPTIONS)
    assert 0 < damped.sources[-1]["unexplained_loss"] < 1
    refitted = first.refit_leaves(X[300:], TARGETS[300:])
    assert_is_each_alone(
        refitted, [one.refit_leaves(X[300:], TARGETS[name][300:]) for name, one in zip(TARGETS, alone, strict=True)]
    )


@pytest.mark.parametrize(
    ("targets", "loss", "message"),
    [
        (TARGETS, "log_loss", "loss='log_loss' requires zeros and ones .* in each of several targets: target 'price' is"),
        (TARGETS, ["squared_error", "poisson", "gamma"], "loss='gamma' requires strictly positive y: target 'far' is -"),
        (TARGETS.assign(count=np.inf), "squared_error", "requires finite targets: target 'count' is inf in row"),
        (TARGETS * [1, 0, 1], ["huber", "poisson", "huber"], "target 'count': loss='poisson' requires non-negative y and sum"),
        (TARGETS.mask(TARGETS["far"] < 0), "huber", "target contains NaN"),
    ],
)
def test_wrong_targets_are_named(targets: pd.DataFrame, loss: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        dboost.fit(X, targets, loss=loss, **OPTIONS)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (["huber", "poisson"], "loss is a list of 2 losses, but the target has 3 columns"),
        (["huber", "auto", "huber"], "name the loss of each target, 'auto' is for all together"),
        (["huber", "hubber", "huber"], "loss='hubber' must be one of .*; did you mean 'huber'"),
        ([], r"loss=\[\] is empty"),
    ],
)
def test_wrong_lists_of_losses_are_refused(loss: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        dboost.fit(X, TARGETS, loss=loss, **OPTIONS)
    with pytest.raises(ParameterError, match="loss is a list of 2 losses, but the target has one column"):
        dboost.fit(X, TARGETS["price"], loss=["huber", "huber"], **OPTIONS)


def test_targets_of_very_different_size_and_of_one_large_unit() -> None:
    for scales in ([1e60, 1e55, 1e58], [1e-60, 1e-62, 1e-60], [1e8, 1.0, 1e-8]):
        booster = dboost.fit(X, TARGETS * scales, loss="squared_error", **OPTIONS)
        expected = dboost.fit(X, TARGETS, loss="squared_error", **OPTIONS).predict(X) * scales
        np.testing.assert_allclose(booster.predict(X), expected, rtol=1e-6)


def test_the_loss_is_the_mean_of_its_outputs() -> None:
    loss = PerOutput([by_name("squared_error"), by_name("poisson")], ["a", "b"])
    y, raw = RNG.poisson(3.0, (2, 20)).astype(float), RNG.normal(size=(2, 20))
    parts = [part.value(y[k], raw[k : k + 1]) for k, part in enumerate(loss.parts)]
    np.testing.assert_allclose(loss.value(y, raw), np.mean(parts, axis=0))
    np.testing.assert_array_equal(loss.slopes(1, y, raw), (loss.gradient(y, raw)[1], loss.hessian(y, raw)[1]))
    prediction = loss.link.to_prediction(raw)
    np.testing.assert_array_equal(prediction, [raw[0], loss.parts[1].point(raw[1:])])
    np.testing.assert_allclose(loss.link.to_raw(prediction), raw)
    again = from_dict(loss.to_dict())
    assert again.to_dict() == loss.to_dict() and again.is_stored_as(loss.to_dict())
    assert not again.is_stored_as({"name": "squared_error"})


def test_the_command_line_takes_several_targets(tmp_path: Any) -> None:
    data, model, found = (str(tmp_path / name) for name in ("rows.parquet", "model.json", "found.csv"))
    frame = X.drop(columns="town").assign(**TARGETS)
    frame.loc[5, "count"] = np.nan
    frame.to_parquet(data)
    common = ["--target", "price,count", "--skip-missing-target", "--set", "max_iter=3", "--drop", "far", "--output", model]
    assert main(["train", data, *common]) == 0
    assert main(["predict", model, data, "--output", found]) == 0
    assert list(pd.read_csv(found)) == ["price", "count"]
    assert dboost.load(model).outputs.names == ["price", "count"]


def test_models_are_exported_if_predictions_are_raw_scores(tmp_path: Any) -> None:
    numbers = X.drop(columns="town")
    booster = dboost.fit(numbers, TARGETS, loss="huber", **OPTIONS)
    xgboost = pytest.importorskip("xgboost")
    booster.to_xgboost_json(tmp_path / "model.json")
    found = xgboost.Booster(model_file=tmp_path / "model.json").predict(xgboost.DMatrix(numbers))
    np.testing.assert_allclose(found, booster.predict(numbers), rtol=1e-4, atol=1e-3)
    mixed = dboost.fit(numbers, LABELS, loss=["log_loss", *["squared_error"] * (len(LABELS.columns) - 1)], **OPTIONS)
    with pytest.raises(ParameterError, match="if its predictions are raw scores, which those of log_loss, squared"):
        mixed.to_xgboost_json(tmp_path / "labels.json")


def test_targets_of_a_model_have_their_places() -> None:
    """Targets of the same names in another order would be those of other outputs."""
    numbers, names = X.drop(columns="town"), list(TARGETS)
    turned = TARGETS[names[::-1]]
    model = dboost.fit(numbers, TARGETS, **OPTIONS)
    table, message = (
        numbers.assign(**TARGETS),
        f"the columns of the target are {names[-1]!r}, .* but the model has {names[0]!r}",
    )
    calls: dict[str, Callable[[], Any]] = {
        "evaluation set": lambda: dboost.fit(numbers, TARGETS, eval_set=(numbers, turned), **OPTIONS),
        "do not continue the model: ": lambda: dboost.fit(numbers, turned, start_from=model, **OPTIONS),
        "do not continue": lambda: dboost.fit(dd.from_pandas(table, npartitions=2), names[::-1], start_from=model, **OPTIONS),
        "": lambda: model.refit_leaves(numbers, turned),
        "^": lambda: model.importance("permutation", table, names[::-1]),
    }
    for beginning, call in calls.items():
        with pytest.raises(DataError, match=f"{beginning}.*{message}"):
            call()
    renamed = TARGETS.set_axis([f"{name} of May" for name in names], axis=1)
    for target in (renamed, TARGETS.to_numpy()):
        assert dboost.fit(numbers, target, start_from=model, **OPTIONS).outputs.names == names
