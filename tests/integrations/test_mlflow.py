"""MLflow: what `autolog` logs of fits in this process and on a cluster, and models that MLflow stores, loads and serves."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dboost
from tests.helpers.clusters import threads_cluster

mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed (dboost[mlflow]); it pins other versions of pyarrow")

from dboost.integrations import mlflow as integration  # noqa: E402
from dboost.training.fit import OBSERVERS  # noqa: E402

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(RNG.normal(size=(600, 2)), columns=["a", "b"])
FRAME["town"] = RNG.choice(["Gent", "Bern", "Oslo"], 600)
FRAME["floor"] = pd.Categorical(RNG.integers(0, 3, 600))
FRAME["new"] = RNG.random(600) < 0.5
FRAME["y"] = FRAME["a"] + FRAME["town"].eq("Gent") + 0.1 * RNG.normal(size=600)
FRAME["kind"] = np.where(FRAME["y"] > 1, "high", np.where(FRAME["y"] > 0, "middle", "low"))
FRAME.loc[::9, "a"] = np.nan
FEATURES = ["a", "b", "town", "floor", "new"]
OPTIONS: dict[str, Any] = {"features": FEATURES, "max_iter": 6, "max_leaf_nodes": 5, "progress": False}


@pytest.fixture(scope="module", autouse=True)
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A store of its own for these tests."""
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path_factory.mktemp('store') / 'mlflow.db'}")
    yield
    mlflow.set_tracking_uri(before)


@pytest.fixture(autouse=True)
def experiment(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    """An experiment of its own for each test, and no logging afterwards."""
    mlflow.create_experiment(request.node.name, artifact_location=(tmp_path / "artifacts").as_uri())
    mlflow.set_experiment(request.node.name)
    yield
    integration.autolog(disable=True)
    while mlflow.active_run():
        mlflow.end_run()


def runs() -> list[Any]:
    """Return the runs, oldest first."""
    return mlflow.search_runs(order_by=["attribute.start_time ASC", "attribute.run_id"], output_format="list")


def logged(run: Any, metric: str) -> dict[int, float]:
    return {point.step: point.value for point in mlflow.MlflowClient().get_metric_history(run.info.run_id, metric)}


def models_of(run: Any) -> list[Any]:
    return [each for each in mlflow.search_logged_models(output_format="list") if each.source_run_id == run.info.run_id]


def test_a_fit_is_logged_with_parameters_metrics_and_model(recwarn: pytest.WarningsRecorder) -> None:
    integration.autolog(extra_tags={"team": "risk"})
    sets = {"recent": FRAME[:200], "older": FRAME[200:300]}
    booster = dboost.fit(FRAME[300:], "y", eval_set=sets, eval_metric=["rmse"], early_stopping_rounds=3, **OPTIONS)
    (run,) = runs()
    assert mlflow.active_run() is None
    assert run.info.status == "FINISHED"
    assert run.data.tags["team"] == "risk"
    assert run.data.tags["mlflow.autologging"] == "dboost"
    parameters = run.data.params
    expected = {"loss": "squared_error", "max_iter": "6", "max_leaf_nodes": "5", "learning_rate": "0.1", "n_rows": "300"}
    assert {name: parameters[name] for name in expected} == expected
    for column in ("train_loss", "recent_rmse", "older_rmse"):
        assert logged(run, column) == dict(enumerate(booster.history[column], 1))
    assert run.data.metrics["best_iteration"] == booster.best_iteration
    (model,) = models_of(run)
    assert integration.load_model(model.model_uri) == booster
    assert not [str(warning.message) for warning in recwarn if "input example" in str(warning.message)]


def test_a_fit_on_a_cluster_is_logged_as_one_in_this_process() -> None:
    integration.autolog()
    with threads_cluster(2, 1) as client:
        booster = dboost.fit(dd.from_pandas(FRAME, npartitions=4), "y", client=client, **OPTIONS)
    dboost.fit(FRAME, "y", **OPTIONS)
    remote, here = runs()
    assert remote.data.params == here.data.params
    assert logged(remote, "train_loss") == logged(here, "train_loss") == dict(enumerate(booster.history["train_loss"], 1))
    assert [integration.load_model(models_of(run)[0].model_uri) for run in (remote, here)] == [booster, booster]


def test_estimators_are_logged_and_active_runs_are_kept() -> None:
    integration.autolog(log_models=False)
    with mlflow.start_run() as mine:
        model = dboost.DBoostClassifier(max_iter=3).fit(FRAME[FEATURES], FRAME["kind"])
        mlflow.log_param("of_the_user", 1)
        dboost.DBoostRegressor(max_iter=2, learning_rate=0.2).fit(FRAME[FEATURES], FRAME["y"])
        assert mlflow.active_run().info.run_id == mine.info.run_id
    dboost.fit(FRAME, "y", learning_rate=lambda k: 0.1 + 0.1 * k, **OPTIONS)
    first, second, third = sorted(runs(), key=lambda run: len(run.data.metrics) + 10 * (run.info.run_id == mine.info.run_id))[
        ::-1
    ]
    assert first.info.run_id == mine.info.run_id
    assert (first.data.params["loss"], first.data.params["of_the_user"], first.data.params["max_iter"]) == (
        "log_loss",
        "1",
        "3",
    )
    assert len(logged(first, "train_loss")) == model.n_iter_
    nested = next(run for run in (second, third) if "mlflow.parentRunId" in run.data.tags)
    alone = next(run for run in (second, third) if run is not nested)
    assert nested.data.tags["mlflow.parentRunId"] == mine.info.run_id
    assert nested.data.params["max_iter"] == "2"
    assert logged(alone, "learning_rate") == pytest.approx({k: 0.1 * k for k in range(1, 7)})
    assert [models_of(run) for run in runs()] == [[], [], []]


def test_a_failed_fit_is_a_failed_run_and_disabling_stops_the_logging() -> None:
    def stumble(iteration: dboost.Iteration) -> None:
        if iteration.iteration == 3:
            raise RuntimeError("no more")

    integration.autolog()
    with pytest.raises(RuntimeError, match="no more"):
        dboost.fit(FRAME, "y", callbacks=[stumble], **OPTIONS)
    (run,) = runs()
    assert run.info.status == "FAILED"
    assert list(logged(run, "train_loss")) == [1, 2]
    assert models_of(run) == []
    assert mlflow.active_run() is None
    integration.autolog()
    assert len(OBSERVERS) == 1
    integration.autolog(disable=True)
    dboost.fit(FRAME, "y", **OPTIONS)
    assert len(runs()) == 1
    with pytest.raises(dboost.ParameterError, match="registered_model_name='m' needs log_models=True"):
        integration.autolog(log_models=False, registered_model_name="m")


def test_errors_of_mlflow_do_not_end_a_fit(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError("the tracking server is down")

    expected = dboost.fit(FRAME, "y", **OPTIONS)
    integration.autolog()
    with caplog.at_level(logging.WARNING, "dboost"), monkeypatch.context() as patch:
        patch.setattr(mlflow.MlflowClient, "log_batch", unreachable)
        assert dboost.fit(FRAME, "y", **OPTIONS) == expected
    assert "MLflow does not log this fit any more: ConnectionError: the tracking server is down" in caplog.text
    with caplog.at_level(logging.WARNING, "dboost"), monkeypatch.context() as patch:
        patch.setattr(mlflow, "start_run", unreachable)
        assert dboost.fit(FRAME, "y", **OPTIONS) == expected
    assert mlflow.active_run() is None


def test_names_of_metrics_are_those_that_mlflow_accepts() -> None:
    def odd(y: Any, prediction: Any, weight: Any) -> float:
        return 1.0

    odd.__name__ = "top@10 (%)"
    integration.autolog(log_models=False)
    dboost.fit(FRAME, "y", eval_set=FRAME, eval_metric=odd, **OPTIONS)
    assert runs()[0].data.metrics["eval_top_at_10 ___"] == 1.0


@pytest.mark.parametrize("target", ["y", "kind", "new"])
def test_models_come_back_and_predict_as_pyfunc(target: str) -> None:
    rows = FRAME[FEATURES].drop(columns="new" if target == "new" else [])
    booster = dboost.fit(FRAME, target, **OPTIONS | {"features": list(rows.columns)})
    info = integration.log_model(booster, registered_model_name=f"model-{target}", metadata={"by": "tests"})
    for uri in (info.model_uri, f"models:/model-{target}/1"):
        assert integration.load_model(uri) == booster
    served = mlflow.pyfunc.load_model(info.model_uri)
    assert served.metadata.metadata == {"by": "tests"}
    assert served.metadata.signature == integration.signature_of(booster)
    np.testing.assert_array_equal(served.predict(rows), booster.predict(rows))
    raw = np.asarray(served.predict(rows, params={"method": "raw_score"}))
    np.testing.assert_array_equal(raw, np.asarray(booster.predict(rows, raw_score=True)))
    if target == "y":
        with pytest.raises(dboost.ParameterError, match="there are no probabilities"):
            served.predict(rows, params={"method": "predict_proba"})
    else:
        found = served.predict(rows, params={"method": "predict_proba"})
        assert found.columns.tolist() == [str(name) for name in booster.classes_]
        np.testing.assert_array_equal(found, booster.predict_proba(rows))
    with pytest.raises(dboost.ParameterError, match="method='guess' must be one of 'predict'"):
        served.predict(rows, params={"method": "guess"})
    with pytest.raises(mlflow.exceptions.MlflowException, match="town"):
        served.predict(rows.drop(columns="town"))


def test_columns_have_the_types_of_training_or_others_of_the_same_values() -> None:
    frame = pd.DataFrame({
        "count": RNG.integers(0, 50, 400),
        "big": RNG.integers(0, 2**40, 400),
        "flag": RNG.random(400) < 0.5,
        "price": RNG.random(400) * 3,
        "city": pd.Categorical(RNG.choice(["a", "b", "c"], 400)),
        "code": pd.Categorical(RNG.choice([3, 5, 9], 400)),
        "both": pd.Series(RNG.choice(["x", "y"], 400), dtype="object"),
        "short": RNG.integers(0, 9, 400).astype(np.int8),
    })  # fmt: skip
    y = frame["count"] + 9 * frame["price"] + 5 * frame["city"].eq("a") + frame["big"] / 2**38
    booster = dboost.fit(frame, y.to_numpy(), max_iter=5, progress=False)
    served = mlflow.pyfunc.load_model(integration.log_model(booster).model_uri)
    expected = booster.predict(frame)
    text = {"city": "object", "code": "int64"}
    for types in (
        {},
        text,
        text | {"count": "float64", "flag": "int64", "price": "float32"},
        {"count": "Int64", "big": "float64"},
    ):
        rows = frame.astype(types)
        np.testing.assert_array_equal(served.predict(rows), booster.predict(rows))
        if "price" not in types:
            np.testing.assert_array_equal(served.predict(rows), expected)
    gaps = frame.assign(count=frame["count"].mask(frame["flag"]), city=frame["city"].mask(frame["flag"]))
    np.testing.assert_array_equal(served.predict(gaps), booster.predict(gaps))
    with pytest.raises(mlflow.exceptions.MlflowException, match="price"):  # the type of a column with fractions is checked
        served.predict(frame.astype({"price": "object"}).assign(price="much"))
    with pytest.raises(dboost.DataError, match="'count'"):
        served.predict(frame.assign(count="many"))
    types = {column.name: str(column.type) for column in integration.signature_of(booster).inputs}
    assert types == dict.fromkeys(frame, "Any") | {"price": "DataType.double"}


def test_models_of_arrays_and_folders(tmp_path: Path) -> None:
    X = RNG.normal(size=(300, 3))
    model = dboost.DBoostRegressor(max_iter=3).fit(X, X[:, 0])
    integration.save_model(model, tmp_path / "saved", input_example=X[:2])
    assert integration.load_model(str(tmp_path / "saved")) == model.booster_
    np.testing.assert_array_equal(mlflow.pyfunc.load_model(str(tmp_path / "saved")).predict(X), model.predict(X))
    requirements = (tmp_path / "saved" / "requirements.txt").read_text()
    assert f"dboost=={dboost.__version__}" in requirements
    with pytest.raises(dboost.InputTypeError, match="must be a Booster or a fitted estimator of dboost, not dict"):
        integration.save_model({}, tmp_path / "other")  # type: ignore[arg-type]
    mlflow.pyfunc.save_model(tmp_path / "foreign", python_model=lambda model_input: model_input, pip_requirements=["mlflow"])
    with pytest.raises(dboost.ParameterError, match="is no model of dboost: its flavours are python_function"):
        integration.load_model(str(tmp_path / "foreign"))


def post(url: str, content: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(content).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


@pytest.mark.slow
def test_mlflow_serves_the_model_of_a_cluster_fit() -> None:
    """`mlflow models serve` in a process of its own answers with the booster's predictions."""
    integration.autolog()
    with threads_cluster(2, 1) as client:
        booster = dboost.fit(dd.from_pandas(FRAME, npartitions=4), "kind", client=client, **OPTIONS)
    (run,) = runs()
    (model,) = models_of(run)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", model.model_uri, "--env-manager", "local"]
    environment = os.environ | {"MLFLOW_TRACKING_URI": mlflow.get_tracking_uri()}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", "")])
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(dboost.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    server = subprocess.Popen(
        [*command, "-h", "127.0.0.1", "-p", str(port)], env=environment, start_new_session=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=5).close()
                break
            except OSError:
                assert server.poll() is None and time.monotonic() < deadline, server.stdout.read() if server.stdout else ""
                time.sleep(0.5)
        rows = FRAME[FEATURES].head(9)
        split = json.loads(rows.to_json(orient="split", index=False))
        url = f"http://127.0.0.1:{port}/invocations"
        answer = post(url, {"dataframe_split": split})
        assert [one if isinstance(one, str) else one["prediction"] for one in answer["predictions"]] == booster.predict(
            FRAME.head(9)
        ).tolist()
        answer = post(url, {"dataframe_split": split, "params": {"method": "predict_proba"}})
        found = pd.DataFrame(answer["predictions"])[[str(name) for name in booster.ensemble.classes or ()]]
        np.testing.assert_allclose(found, booster.predict_proba(FRAME.head(9)), rtol=1e-12)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.communicate(timeout=60)
