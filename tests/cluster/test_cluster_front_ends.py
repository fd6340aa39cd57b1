"""Estimators and the command line on a cluster: the model equals that of one process."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from sklearn.base import clone

import dboost
from dboost import DBoostClassifier, DBoostRegressor
from dboost.cli import main
from tests.helpers.clusters import a_table
from tests.helpers.tune import Tune

FRAME = a_table(2500)
X = FRAME[["a", "b", "c", "e"]]


def test_an_estimator_with_a_client_travels_without_it(client: Client) -> None:
    model = DBoostRegressor(max_iter=3, client=client)
    assert clone(model).client is client
    values = FRAME[["a", "b"]].to_numpy()
    model.fit(da.from_array(values, chunks=(800, 2)), da.from_array(FRAME["y"].to_numpy(), chunks=800))
    copy = pickle.loads(pickle.dumps(model))
    assert copy.client is None
    assert np.array_equal(copy.predict(values), model.predict(values))


def test_a_scorer_wants_all_rows(client: Client) -> None:
    model = DBoostClassifier(max_iter=3, early_stopping=True, scoring="roc_auc", client=client)
    with pytest.raises(dboost.ParameterError, match="scoring='loss'"):
        model.fit(dd.from_pandas(X, npartitions=2), FRAME["z"])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    for i in range(4):
        FRAME[["a", "b", "e", "z"]].iloc[625 * i : 625 * (i + 1)].to_parquet(tmp_path / "data" / f"part-{i}.parquet")
    return tmp_path


@pytest.mark.slow
def test_train_and_predict_by_a_scheduler(client: Client, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where, address = str(data / "data"), client.scheduler.address
    options = ["--target", "z", "--set", "max_iter=4", "--quiet"]
    assert main(["train", where, *options, "--output", str(data / "here.json")]) == 0
    remote = ["--scheduler", address]
    assert main(["train", where, *options, *remote, "--output", str(data / "there.json")]) == 0
    assert (data / "here.json").read_bytes() == (data / "there.json").read_bytes()
    model = str(data / "here.json")
    assert main(["predict", model, where, "--proba", "--output", str(data / "here.parquet")]) == 0
    assert main(["predict", model, where, "--proba", *remote, "--output", str(data / "there.parquet")]) == 0
    pd.testing.assert_frame_equal(pd.read_parquet(data / "here.parquet"), pd.read_parquet(data / "there.parquet"))
    capsys.readouterr()


def test_a_scheduler_that_is_not_there(data: Path, capsys: pytest.CaptureFixture[str], tune: Tune) -> None:
    tune(connect_timeout="500ms")
    options = ["--target", "z", "--output", str(data / "model.json"), "--scheduler", "tcp://127.0.0.1:9"]
    assert main(["train", str(data / "data"), *options]) == 1
    assert "scheduler at tcp://127.0.0.1:9 cannot be reached" in capsys.readouterr().err
    assert not (data / "model.json").exists()


TLS = "distributed.comm.tls"


@pytest.mark.parametrize(
    ("scheduler", "settings", "reason"),
    [
        ("tls://127.0.0.1:9", {}, "TLS needs certificates: set distributed.comm.tls"),
        (
            "tls://127.0.0.1:9",
            {f"{TLS}.ca-file": "ca.pem", f"{TLS}.client.cert": "no.pem"},
            "at ca_file = ca.pem, cert = no.pem",
        ),
        ("tcp://127.0.0.1:9", {"distributed.comm.require-encryption": True}, "encryption required"),
        ("foo://127.0.0.1:9", {}, "unknown address scheme 'foo'"),
    ],
)
def test_settings_with_which_no_scheduler_is_reached(
    data: Path, capsys: pytest.CaptureFixture[str], scheduler: str, settings: dict[str, Any], reason: str
) -> None:
    with dask.config.set(settings):
        assert main(["train", str(data / "data"), "--target", "z", "--scheduler", scheduler]) == 1
    said = capsys.readouterr().err
    assert f"the scheduler at {scheduler} cannot be reached: " in said and reason in said and "Traceback" not in said
    with pytest.raises(ValueError, match="No clients found"):  # the half-made one is not the default of later calls
        Client.current()
    assert dask.config.get("scheduler", None) != "dask.distributed"


@pytest.mark.slow
def test_train_on_workers_of_its_own(data: Path) -> None:
    options = ["--target", "z", "--set", "max_iter=4", "--quiet"]
    assert main(["train", str(data / "data"), *options, "--output", str(data / "here.json")]) == 0
    assert main(["train", str(data / "data"), *options, "--workers", "2", "--output", str(data / "there.json")]) == 0
    assert (data / "here.json").read_bytes() == (data / "there.json").read_bytes()
