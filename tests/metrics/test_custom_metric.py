"""Metrics of users' own: `dboost.metrics.Metric`, and functions of all rows, in one process and on a cluster."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pytest
from distributed import Client
from sklearn import metrics as reference

import dboost
from dboost.metrics import Metric
from tests.helpers.clusters import Processes, a_table

FRAME = a_table(900).drop(columns="w")
TRAIN, HELD = FRAME[:600], FRAME[600:]
OPTIONS: dict[str, Any] = {"max_iter": 5, "max_leaf_nodes": 7, "progress": False}


def only(target: str, frame: Any) -> Any:
    return frame.drop(columns=[name for name in ("y", "z", "t") if name != target])


def mean_gap(y: np.ndarray, prediction: np.ndarray, weight: np.ndarray | None) -> float:
    if prediction.ndim == 2:
        prediction = prediction[np.arange(len(y)), y.astype(int)]
        y = np.ones(len(y))
    return float(np.average(np.abs(y - prediction), weights=weight))


LARGEST = Metric("largest", lambda y, p, w: float(np.abs(y - p).max()), max, float)
COUNTED = Metric("right", lambda y, p, w: np.array([((p > 0.5) == y).sum(), len(y)]), np.add, lambda s: s[0] / s[1], True)


@pytest.mark.parametrize("target", ["y", "z", "t"])
def test_a_function_of_all_rows(target: str) -> None:
    train, held = only(target, TRAIN), only(target, HELD)
    here = dboost.fit(train, target, eval_set={"held": held}, eval_metric=[mean_gap], **OPTIONS)
    last = here.history["held_mean_gap"].iloc[-1]
    if target == "y":
        assert last == pytest.approx(reference.mean_absolute_error(held["y"], here.predict(held)), rel=1e-12)
    elif target == "z":
        assert last == pytest.approx(np.abs(held["z"] - here.predict_proba(held).iloc[:, 1]).mean(), rel=1e-12)
    else:
        codes = np.searchsorted(here.classes_, held["t"])
        assert last == pytest.approx(1 - here.predict_proba(held).to_numpy()[np.arange(len(codes)), codes].mean(), rel=1e-12)


class OfTheClient:
    """A function that cannot leave its process."""

    __name__ = "largest_gap"

    def __call__(self, y: np.ndarray, prediction: np.ndarray, weight: np.ndarray | None) -> float:
        return float(np.abs(y - prediction).max())

    def __reduce__(self) -> Any:
        raise TypeError("a function of the client does not travel")


@pytest.mark.fast_cells(1)
@pytest.mark.parametrize("values", [0, 10**9])  # many workers, and one for a small table
def test_a_function_of_all_rows_stays_in_the_client(client: Client, values: int) -> None:
    train, held = only("y", TRAIN), only("y", HELD)
    options = OPTIONS | {"eval_metric": [OfTheClient(), "r2"], "max_iter": 2}
    here = dboost.fit(train, "y", eval_set=held, **options)
    with dask.config.set({"dboost.single-worker-values": values}):
        there = dboost.fit(
            dd.from_pandas(train, npartitions=4), "y", client=client, eval_set=dd.from_pandas(held, npartitions=2), **options
        )
        assert there == here and list(there.history["eval_largest_gap"]) == list(here.history["eval_largest_gap"])
        found = dboost.cv(dboost.prepare(dd.from_pandas(train, npartitions=4), "y", client=client), folds=2, **options)
    assert found.best_score == dboost.cv(train, "y", folds=2, **options).best_score


@pytest.mark.slow
def test_a_function_of_a_module_that_workers_do_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gaps_of_the_client.py").write_text(
        "import numpy as np\n\ndef median_gap(y, prediction, weight):\n    return float(np.median(np.abs(y - prediction)))\n"
        "def largest(y, prediction, weight):\n    return float(np.abs(y - prediction).max())\n"
    )
    train, held = only("y", TRAIN), only("y", HELD)
    with Processes(1) as cluster:
        monkeypatch.syspath_prepend(str(tmp_path))
        module = importlib.import_module("gaps_of_the_client")
        options = OPTIONS | {"max_iter": 2, "eval_metric": module.median_gap}
        there = dboost.fit(
            dd.from_pandas(train, npartitions=2),
            "y",
            client=cluster.client,
            eval_set=dd.from_pandas(held, npartitions=2),
            **options,
        )
        merged = options | {"eval_metric": Metric("largest", module.largest, max, float)}
        with pytest.raises(dboost.DBoostError, match=r"worker \S+ cannot import gaps_of_the_client: .*client\.upload_file"):
            dboost.fit(
                dd.from_pandas(train, npartitions=2),
                "y",
                client=cluster.client,
                eval_set=dd.from_pandas(held, npartitions=2),
                **merged,
            )
    assert there == dboost.fit(train, "y", eval_set=held, **options)


def test_weights_reach_the_function() -> None:
    weight = np.linspace(0.5, 2.0, len(HELD))
    train, held = only("y", TRAIN), only("y", HELD)
    X, y = held.drop(columns="y"), held["y"]
    booster = dboost.fit(train, "y", eval_set=(X, y, weight), eval_metric=mean_gap, **OPTIONS)
    expected = reference.mean_absolute_error(y, booster.predict(X), sample_weight=weight)
    assert booster.history["eval_mean_gap"].iloc[-1] == pytest.approx(expected, rel=1e-12)


def test_a_metric_is_merged_and_stops_the_fit() -> None:
    train, held = only("z", TRAIN), only("z", HELD)
    options = OPTIONS | {"eval_metric": ["logloss", LARGEST, COUNTED], "early_stopping_rounds": 2, "max_iter": 60}
    here = dboost.fit(train, "z", eval_set=held, **options)
    right = here.history["eval_right"]
    assert here.best_iteration == right.idxmax() + 1
    assert len(right) < 60
    accuracy = reference.accuracy_score(held["z"], here.predict(held))
    assert right.max() == pytest.approx(accuracy)


def test_a_function_says_which_way_is_better() -> None:
    def agreement(y: np.ndarray, p: np.ndarray, weight: np.ndarray | None) -> float:
        return float(((p > 0.5) == y).mean())

    agreement.greater_is_better = True  # type: ignore[attr-defined]
    options = OPTIONS | {"early_stopping_rounds": 3, "max_iter": 40}
    train, held = only("z", TRAIN), only("z", HELD)
    booster = dboost.fit(train, "z", eval_set=held, eval_metric=agreement, **options)
    assert booster.best_iteration == booster.history["eval_agreement"].idxmax() + 1


FUNCTIONS: list[tuple[Any, str]] = [  # each is the mean absolute error
    (reference.mean_absolute_error, "mean_absolute_error"),
    (Metric(mean_gap, greater_is_better=False), "mean_gap"),
    (Metric("gap", mean_gap, greater_is_better=False), "gap"),
    (Metric("gap", lambda y, p: np.abs(y - p).mean(), greater_is_better=False), "gap"),
    (Metric("gap", reference.mean_absolute_error), "gap"),
]


@pytest.mark.parametrize(("metric", "name"), FUNCTIONS)
def test_functions_of_all_rows(client: Client, metric: Any, name: str) -> None:
    """Functions of sklearn.metrics, with or without weights and under a name, know which way is better; also on a cluster."""
    train, held = only("y", TRAIN), only("y", HELD)
    options = OPTIONS | {"eval_metric": metric, "early_stopping_rounds": 2}
    here = dboost.fit(train, "y", eval_set=held, **options)
    expected = reference.mean_absolute_error(held["y"], here.predict(held))
    assert here.history[f"eval_{name}"].iloc[here.n_iter_ - 1] == pytest.approx(expected, rel=1e-12)
    lazy = dd.from_pandas(train, npartitions=2)
    assert dboost.fit(lazy, "y", client=client, eval_set=dd.from_pandas(held, npartitions=2), **options) == here


def test_a_direction_that_is_not_known_is_asked_for() -> None:
    for metric, text in (
        (mean_gap, r"Metric\(mean_gap, greater"),
        (lambda y, p, w: 1.0, r"Metric\(\"name\", function, greater"),
    ):
        with pytest.raises(dboost.ParameterError, match=text):
            dboost.fit(only("y", TRAIN), "y", eval_set=only("y", HELD), eval_metric=metric, early_stopping_rounds=1, **OPTIONS)


def test_a_function_without_weights_refuses_them() -> None:
    held = only("y", HELD)
    with pytest.raises(dboost.ParameterError, match="'gap' takes no weights, and the evaluation set has some"):
        sets = (held.drop(columns="y"), held["y"], np.arange(len(held)) + 1.0)
        dboost.fit(only("y", TRAIN), "y", eval_set=sets, eval_metric=Metric("gap", lambda y, p: 1.0), **OPTIONS)


def test_too_many_rows_for_a_function_name_the_way_out(client: Client) -> None:
    data, held = dd.from_pandas(only("y", TRAIN), npartitions=2), dd.from_pandas(only("y", HELD), npartitions=2)
    with (
        dask.config.set({"dboost.metric-rows": 299}),
        pytest.raises(dboost.ParameterError, match=r"300 rows are more than dboost.metric-rows=299 .*dboost.metrics.Metric"),
    ):
        dboost.fit(data, "y", client=client, eval_set={"held": held}, eval_metric=mean_gap, **OPTIONS)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (lambda y, p, w: "good", "'lambda' returned 'good', which is not a number"),
        (lambda y, p, w: None, "returned None, which is not a number"),
        ([mean_gap, mean_gap], "two metrics are called 'mean_gap'"),
        (Metric, "does not go with loss 'squared_error'"),
        (
            lambda y: 1.0,
            r"'lambda' does not take the arguments of a metric, which is\n    def my_score\(y, prediction, weight\)",
        ),
        (reference.accuracy_score, r"refuses the predictions (?s:.*)\(y, prediction > 0.5, sample_weight=weight\)"),
        (reference.make_scorer(reference.r2_score), "is a scorer of scikit-learn, which calls an estimator"),
        ("RMSEE", r"'RMSEE' does not go with loss .*; did you mean 'rmse'\?"),
        ("neg_mean_squared_error", r"; did you mean 'mean_squared_error'\?"),
    ],
)
def test_what_is_no_metric_is_refused(metric: Any, message: str) -> None:
    with pytest.raises(dboost.ParameterError, match=message):
        dboost.fit(only("y", TRAIN), "y", eval_set=only("y", HELD), eval_metric=metric, **OPTIONS)


def test_metrics_without_an_evaluation_set_are_told() -> None:
    with pytest.warns(UserWarning, match="eval_metric has no effect without an eval_set"):
        dboost.fit(only("y", TRAIN), "y", eval_metric="rmse", **OPTIONS)


def test_a_metric_without_functions_is_refused() -> None:
    with pytest.raises(dboost.ParameterError, match="metric 'm': combine must be a function"):
        Metric("m", len, 3, float)  # type: ignore[arg-type]
    with pytest.raises(dboost.ParameterError, match="metric 'mean_gap': finish must be a function"):
        Metric(mean_gap, combine=max)
    with pytest.raises(dboost.ParameterError, match="metric 'm': partial must be a function"):
        Metric("m")
    with pytest.raises(dboost.ParameterError, match="name must be a text"):
        Metric("", len, max, float)


def loss(y: np.ndarray, prediction: np.ndarray, weight: np.ndarray | None) -> float:
    """Return a metric that becomes the column "train_loss" of an evaluation set "train"."""
    return -mean_gap(y, prediction, weight)


UNREAD = "a path that is not read"
RATE, COMPUTE = (Metric(name, lambda y, p, w: 1.0, max, float) for name in ("rate", "compute"))


@pytest.mark.parametrize(
    ("sets", "metrics", "message"),
    [
        (["train"], loss, "'loss' of evaluation set 'train' would be the column 'train_loss' of the history, which is a"),
        (["x", "learning"], ["r2", RATE], "metric 'rate' of evaluation set 'learning' would be the column 'learning_rate'"),
        (["seconds"], COMPUTE, "metric 'compute' of evaluation set 'seconds' would be the column 'seconds_compute'"),
        (
            ["a", "a_mean"],
            ["mean_squared_error", "squared_error"],
            "'squared_error' of evaluation set 'a_mean' .* 'a_mean_squared_error' .* is metric 'mean_squared_error' of .* 'a':",
        ),
        ([1, "1"], "r2", "names of evaluation sets must differ as text: 1, '1'"),
    ],
)
def test_columns_of_the_history_have_one_value_each(client: Client, sets: list[Any], metrics: Any, message: str) -> None:
    options = OPTIONS | {"eval_set": dict.fromkeys(sets, only("y", HELD)), "eval_metric": metrics}
    for where in ({}, {"client": client}):
        with pytest.raises(dboost.ParameterError, match=message):
            dboost.fit(UNREAD, "y", **where, **options)


def test_evaluation_sets_may_be_called_like_the_first_part_of_a_column() -> None:
    sets = dict.fromkeys(["train", "seconds", "a", "a_mean"], only("y", HELD))
    metrics = ["mean_squared_error", "mean_squared_error", "r2"]
    booster = dboost.fit(only("y", TRAIN), "y", eval_set=sets, eval_metric=metrics, **OPTIONS)
    for column in (f"{name}_{metric}" for name in sets for metric in metrics):
        assert booster.ensemble.metrics[column] == tuple(booster.history[column])
    assert booster.history["seconds_r2"].equals(booster.history["a_r2"])


def test_a_function_does_not_replace_the_score_of_an_estimator() -> None:
    X, y = only("y", TRAIN).drop(columns="y"), TRAIN["y"].abs()
    same = Metric("poisson", lambda y, p, w: -1.0, max, float)
    for settings, name in (
        ({"eval_metric": same, "loss": "poisson"}, "poisson"),
        ({"eval_metric": score, "scoring": "r2"}, "score"),
    ):
        model = dboost.DBoostRegressor(max_iter=2, early_stopping=True, **settings)
        with pytest.raises(dboost.ParameterError, match=f"a function is called '{name}', like the metric that the estimator"):
            model.fit(X, y, eval_set={"other": (X, y)})


def score(y: np.ndarray, prediction: np.ndarray, weight: np.ndarray | None) -> float:
    return -1.0


def test_no_metric_of_cv_is_called_like_the_training_loss(client: Client) -> None:
    metric = Metric("train_loss", lambda y, p, w: 1.0, max, float)
    for where in ({}, {"client": client}):
        with pytest.raises(dboost.ParameterError, match="a metric of cv may not be called 'train_loss'"):
            dboost.cv(UNREAD, "y", eval_metric=["r2", metric], **where, **OPTIONS)
