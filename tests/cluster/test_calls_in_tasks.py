"""Calls inside Dask tasks end, also if there are more of them than the worker has threads."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster, get_client, wait

import dboost

FOLDS = {"max_iter": 3, "folds": 3}
CALLS: dict[str, Callable[[str, dboost.Booster], Any]] = {
    "fit": lambda folder, model: dboost.fit(f"{folder}/*.parquet", "y", max_iter=3),
    "fit with a client": lambda folder, model: dboost.fit(lazy(folder), "y", max_iter=3, client=get_client()),
    "fit of a frame with a client": lambda folder, model: dboost.fit(
        lazy(folder).compute(), "y", max_iter=3, client=get_client()
    ),
    "fit of rows that it prepares": lambda folder, model: dboost.fit(dboost.prepare(lazy(folder), "y"), max_iter=3),
    "cv of a path": lambda folder, model: dboost.cv(f"{folder}/*.parquet", "y", **FOLDS),
    "cv of a Dask frame": lambda folder, model: dboost.cv(lazy(folder), "y", **FOLDS),
    "cv of a frame": lambda folder, model: dboost.cv(lazy(folder).compute(), "y", **FOLDS),
    "cv with a client": lambda folder, model: dboost.cv(lazy(folder), "y", **FOLDS, client=get_client()),
    "cv with early stopping": lambda folder, model: dboost.cv(f"{folder}/*.parquet", "y", **FOLDS, early_stopping_rounds=2),
    "cv of prepared files": lambda folder, model: dboost.cv(f"{folder}/prepared", **FOLDS),
    "cv of files that workers prepared": lambda folder, model: dboost.cv(dboost.Dataset(f"{folder}/shared"), **FOLDS),
    "cv of published rows": lambda folder, model: dboost.cv(dboost.Dataset.published("rows"), **FOLDS),
    "fit of published rows": lambda folder, model: dboost.fit(dboost.Dataset.published("rows"), max_iter=3),
    "prepare": lambda folder, model: dboost.prepare(f"{folder}/*.parquet", "y").close(),
    "predict": lambda folder, model: model.predict(lazy(folder)).compute(),
    "calibrate": lambda folder, model: model.calibrate(lazy(folder), "y", coverage=0.8),
    "refit_leaves": lambda folder, model: model.refit_leaves(lazy(folder), "y"),
    "importance": lambda folder, model: model.importance("permutation", lazy(folder), "y"),
    "partial_dependence": lambda folder, model: model.partial_dependence(lazy(folder), "x"),
    "drift": lambda folder, model: model.drift(lazy(folder)),
    "report": lambda folder, model: model.report(f"{folder}/{uuid.uuid4()}.html", f"{folder}/*.parquet", "y"),
    "estimator": lambda folder, model: dboost.DBoostRegressor(max_iter=3).fit(lazy(folder)[["x", "z"]], lazy(folder)["y"]),
}


def lazy(folder: str) -> Any:
    return dd.read_parquet(sorted(str(file) for file in Path(folder).glob("*.parquet")))


def in_task(call: Callable[[str, dboost.Booster], Any], folder: str, model: dboost.Booster, number: int) -> int:
    call(folder, model)
    return number


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("rows")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=300), "z": rng.normal(size=300)})
    frame["y"] = frame["x"] * frame["z"]
    for part in range(3):
        frame.iloc[part::3].to_parquet(root / f"{part}.parquet")
    dboost.prepare(frame, "y", path=root / "prepared")
    return os.fspath(root)


@pytest.fixture(scope="module")
def model(folder: str) -> dboost.Booster:
    return dboost.fit(lazy(folder).compute(), "y", max_iter=3)


@pytest.fixture(scope="module")
def client(folder: str) -> Iterator[Client]:
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        dboost.prepare(f"{folder}/*.parquet", "y", path=f"{folder}/shared", client=client).close()
        data = dboost.prepare(f"{folder}/*.parquet", "y", publish="rows")
        yield client
        data.unpublish()


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "report")) for name in CALLS])
def test_three_tasks_on_two_threads_end(name: str, client: Client, folder: str, model: dboost.Booster) -> None:
    tasks = [client.submit(in_task, CALLS[name], folder, model, number, pure=False) for number in range(3)]
    try:
        wait(tasks, timeout=120)  # an endless wait otherwise
        assert client.gather(tasks) == [0, 1, 2]
    finally:
        client.cancel(tasks)
