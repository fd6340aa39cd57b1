"""A write to a shared folder that fails on one worker: nothing is left there, although other workers still write."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client

import dboost
from dboost.cluster.training import cluster_dataset
from dboost.data.columns.chunk import BinnedPartition
from dboost.prepared import dataset_files
from dboost.prepared.dataset_files import PartFile
from dboost.rows.block_file import StorageError
from tests.helpers.clusters import Processes, impatient, until

ROWS = pd.DataFrame({"x": np.random.default_rng(0).normal(size=4000)}).assign(y=lambda frame: frame["x"] ** 2)
LAZY = dd.from_pandas(ROWS, npartitions=8, sort=False)


class Writes:
    """The write that begins first fails as soon as another worker writes, too; that one ends after the removal, if it may."""

    def __init__(self, patience: float = 2.0) -> None:
        self.patience, self.ended_first = patience, False
        self.begun, self.removed = threading.Event(), threading.Event()
        self.lock = threading.Lock()
        self.numbers: list[int] = []

    def write(self, root: str, version: str, partition: BinnedPartition, i: int) -> PartFile:
        with self.lock:
            self.numbers.append(i)
            is_first = len(self.numbers) == 1
        if is_first:
            assert self.begun.wait(60)
            raise StorageError(f"{root} is full")
        self.begun.set()
        self.ended_first = not self.removed.wait(self.patience)
        return dataset_files.write_part(root, version, partition, i)

    def remove(self, root: str, version: str) -> None:
        dataset_files.remove_version(root, version)
        self.removed.set()


CURRENT: Writes


def write_part(*arguments: Any) -> Any:
    return CURRENT.write(*arguments)


def test_slow_writes_of_other_workers_end_before_files_are_removed(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    global CURRENT
    CURRENT = Writes()
    monkeypatch.setattr(cluster_dataset, "write_part", write_part)
    monkeypatch.setattr(cluster_dataset, "remove_version", CURRENT.remove)
    with pytest.raises(StorageError, match="is full"):
        dboost.prepare(LAZY, "y", tmp_path / "data", client=client)
    assert os.listdir(tmp_path) == []
    assert len(CURRENT.numbers) < LAZY.npartitions  # those that waited for a thread never began
    time.sleep(0.5)
    assert os.listdir(tmp_path) == []


def test_a_write_that_hangs_is_not_waited_for_for_ever(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    global CURRENT
    CURRENT = Writes(patience=60.0)
    monkeypatch.setattr(cluster_dataset, "write_part", write_part)
    monkeypatch.setattr(cluster_dataset, "remove_version", CURRENT.remove)
    with dask.config.set({"dboost.worker-timeout": "1s"}), pytest.raises(StorageError, match="is full"):
        dboost.prepare(LAZY, "y", tmp_path / "data", client=client)
    assert not CURRENT.ended_first


def test_an_interrupted_write_is_waited_for(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """^C ends the client's waiting as a failed partition does."""
    global CURRENT
    CURRENT = Writes()
    CURRENT.numbers.append(-1)  # none fails
    monkeypatch.setattr(cluster_dataset, "write_part", write_part)
    monkeypatch.setattr(cluster_dataset, "remove_version", CURRENT.remove)

    def interrupted(*_: Any, **__: Any) -> Any:
        assert CURRENT.begun.wait(60)
        raise KeyboardInterrupt

    with dboost.prepare(LAZY, "y", client=client) as data:
        rows: Any = data._rows()
        monkeypatch.setattr(cluster_dataset, "finished", interrupted)
        (tmp_path / "data").mkdir()
        with pytest.raises(KeyboardInterrupt), dataset_files.preparing(str(tmp_path / "data"), by_workers=True) as lease:
            rows.write(str(tmp_path / "data"), lease)
    assert os.listdir(tmp_path / "data") == []
    time.sleep(0.5)
    assert os.listdir(tmp_path / "data") == []


def fail_or_wait(folder: Path, partition: BinnedPartition, i: int) -> None:
    """Wait for ever in the second of two partitions; fail in the first one when the worker of the second is stopped."""
    if not i:
        while not (folder / "stopped").exists():
            time.sleep(0.05)
        raise StorageError("the folder is full")
    (folder / "draft").write_text(str(os.getpid()))
    (folder / "draft").rename(folder / "begun")
    while True:
        time.sleep(0.05)


@pytest.mark.slow
def test_a_stopped_worker_is_not_waited_for(tmp_path: Path) -> None:
    def stop() -> None:
        until((tmp_path / "begun").exists)
        os.kill(int((tmp_path / "begun").read_text()), signal.SIGSTOP)
        (tmp_path / "stopped").touch()

    with Processes(2) as processes:
        rows = dd.from_pandas(ROWS, npartitions=2, sort=False)
        with dboost.prepare(rows, "y", client=processes.client) as data, impatient(processes.client):
            cluster: Any = data._rows()
            stopper = threading.Thread(target=stop)
            stopper.start()
            with pytest.raises(StorageError, match="the folder is full"):
                cluster._map(partial(fail_or_wait, tmp_path), [(0,), (1,)])
            stopper.join()
            os.kill(int((tmp_path / "begun").read_text()), signal.SIGKILL)
