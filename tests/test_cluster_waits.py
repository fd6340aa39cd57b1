"""Waits that end: fits in tasks, tasks that no worker may run, closed clients, workers that cannot store rows, odd errors."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dboost
from dboost.errors import DBoostError
from tests.helpers.clusters import Processes, at
from tests.helpers.on_workers import (
    Failing,
    fit_of_a_frame,
    fit_of_a_table,
    fit_of_prepared_rows,
    fit_of_published_rows,
    slow,
    table,
)


@pytest.fixture(scope="module")
def one() -> Iterator[Processes]:
    with Processes(1) as processes:
        yield processes


@pytest.mark.parametrize("fit", [fit_of_a_frame, fit_of_a_table, fit_of_prepared_rows, fit_of_published_rows])
def test_a_fit_in_the_only_thread_of_the_only_worker(one: Processes, fit: Any) -> None:
    expected = dboost.fit(table(), "y", max_iter=2).sha256
    with dboost.prepare(
        dd.from_pandas(table(), npartitions=3), "y", client=one.client, publish="rows of waits"
    ) as data:  # read by one of the fits
        assert one.client.submit(fit, pure=False).result(timeout=120) == expected
        data.unpublish()


def test_data_on_workers_that_have_gone() -> None:
    frame = dd.from_pandas(table(), npartitions=3)
    with Processes(2) as processes, dask.config.set({"dboost.worker-timeout": "3s", "dboost.patience": "1s"}):
        client = processes.client
        victim, *_ = processes.pids()
        kept = client.persist(frame, workers=[victim], allow_other_workers=False)
        data = dboost.prepare(frame, "y", client=client, workers=[victim])
        assert dboost.fit(data, max_iter=2).sha256 == dboost.fit(table(), "y", max_iter=2).sha256
        os.kill(processes.pids()[victim], signal.SIGKILL)
        processes.wait_for(lambda: victim not in processes.addresses())
        with pytest.raises(DBoostError, match=f"no worker may run 3 of the tasks .* restricted to {victim}"):
            dboost.fit(kept, "y", max_iter=2, client=client)
        with pytest.raises(DBoostError, match=victim):
            dboost.fit(data, max_iter=2)


@pytest.mark.parametrize("use", ["fit", "prepare"])
def test_a_client_that_is_closed_while_partitions_are_read(use: str) -> None:
    parts = [dask.delayed(slow)(20.0, table()) for _ in range(3)]
    frame = dd.from_delayed(parts, meta=table(0))
    with Processes(1) as processes:
        closing = threading.Timer(3.0, processes.client.close)
        closing.start()
        with pytest.raises(DBoostError, match=r"client was closed|connection"):
            dboost.fit(frame, "y", client=processes.client) if use == "fit" else dboost.prepare(
                frame, "y", client=processes.client
            )
        closing.join()


@pytest.mark.parametrize(("error", "told"), [("two arguments", "TwoArgumentsError: combined 1 2"), ("exit", "SystemExit: 3")])
def test_errors_that_cannot_be_raised_in_the_client(one: Processes, error: str, told: str) -> None:
    before = one.pids()
    with pytest.raises(DBoostError, match=f"worker tcp://.*{told}"):
        dboost.fit(dd.from_pandas(table(), npartitions=3), "y", loss=Failing(error), max_iter=2, client=one.client)
    assert one.pids() == before


def test_a_worker_that_joins_and_has_no_room_for_its_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its file system has room for what Dask writes, but not for the codes of its rows."""
    full = tmp_path / "full"
    full.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=500k", "tmpfs", str(full)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system is not permitted")
    rows = pd.DataFrame(np.random.default_rng(0).normal(size=(150_000, 12)), columns=list("abcdefghijkl"))
    rows = rows.assign(y=rows["a"] + rows["b"])
    how: dict[str, Any] = {"max_iter": 12, "memory_limit": "2MiB"}
    try:
        with Processes(2) as processes, dask.config.set({"dboost.single-worker-values": 0}):

            def join() -> None:
                processes.add_worker("--local-directory", str(full))
                processes.wait_for(lambda: len(processes.addresses()) == 3)

            frame = dd.from_pandas(rows, npartitions=8)
            slowly = [at(3, join), lambda now: time.sleep(0.3)]
            booster = dboost.fit(frame, "y", client=processes.client, callbacks=slowly, **how)
    finally:
        subprocess.run(["umount", "-l", str(full)], check=True)
    assert booster.sha256 == dboost.fit(rows, "y", max_iter=12).sha256
    assert re.search("workers that have joined get no rows: worker tcp://.*no room", caplog.text)
