"""Workers with a memory limit keep their rows in files; the model is the same, also when workers die or come."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import pytest
from distributed import Client

import dboost
from dboost.shard import blocks
from dboost.training.budget import Budget
from tests.clusters import Processes, a_table, stream_everything, threads_cluster

FRAME = a_table(3000)
OPTIONS: dict[str, Any] = {"max_iter": 3, "progress": False, "max_leaf_nodes": 8, "features": ["a", "b", "c", "e"]}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with threads_cluster(2) as client:
        yield client


@pytest.fixture
def streaming(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in this process, until the end of the test."""
    monkeypatch.setattr(Budget, "holds_rows", lambda *_: False)
    monkeypatch.setattr(blocks, "BLOCK_ROWS", 128)


def lazily(n_partitions: int = 5) -> dd.DataFrame:
    return dd.from_pandas(FRAME, npartitions=n_partitions)


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("y", {"sample_weight": "w", "subsample": 0.7}),
        ("z", {"loss": "log_loss", "influence_trimming": 0.2}),
        ("t", {"criterion": "gradient", "sample_weight": "w", "max_iter": 2}),
        ("y", {"loss": "huber"}),
    ],
)
def test_the_model_is_that_of_rows_in_memory(client: Client, streaming: None, target: str, options: dict[str, Any]) -> None:
    settings = OPTIONS | options
    booster = dboost.fit(lazily(), target, client=client, memory_limit="64MiB", **settings)
    assert booster.sha256 == dboost.fit(FRAME, target, **settings).sha256
    assert (booster.history["bytes_read"] > 0).all()
    folders = [Path(folder) for folder in client.run(lambda dask_worker: dask_worker.local_directory).values()]
    assert all(folder.is_dir() for folder in folders)
    client.sync(client.scheduler.identity)  # what belongs to the fit is dropped by then
    left = [path for folder in folders for path in folder.glob("dboost-*")]
    assert left == [] or all(not any(path.glob("codes")) for path in left)


def test_rows_that_fit_stay_in_memory(client: Client) -> None:
    booster = dboost.fit(lazily(), "y", client=client, memory_limit="1GiB", **OPTIONS)
    assert booster.sha256 == dboost.fit(FRAME, "y", **OPTIONS).sha256
    assert (booster.history["bytes_read"] == 0).all()


def test_too_small_a_budget_is_an_error_of_the_users(client: Client, streaming: None) -> None:
    with pytest.raises(dboost.ParameterError, match=r"memory_limit of 20 KiB is too small for trees of 8 leaves"):
        dboost.fit(lazily(200), "y", client=client, memory_limit="20KiB", **OPTIONS)


def test_workers_die_and_come() -> None:
    """One that is killed: its rows are read again elsewhere; one that joins is given rows by the others."""
    options = OPTIONS | {"max_iter": 12}
    expected = dboost.fit(FRAME, "z", **options).sha256
    with Processes(2, environment={"DASK_DBOOST__PATIENCE": "20s"}) as processes:
        client = processes.client
        client.run(stream_everything)
        dboost.fit(lazily(), "z", client=client, memory_limit="64MiB", **OPTIONS | {"max_iter": 1})
        victim = next(iter(processes.pids().values()))

        def replace(now: dboost.Iteration) -> None:
            if now.iteration == 3:
                os.kill(victim, signal.SIGKILL)
                processes.add_worker()
                client.wait_for_workers(2, timeout=60)

        booster = dboost.fit(lazily(), "z", client=client, memory_limit="64MiB", callbacks=replace, **options)
        assert booster.sha256 == expected
        assert (booster.history["bytes_read"] > 0).all()
