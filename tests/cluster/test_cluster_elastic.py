"""Adaptive clusters that shrink, grow or close: between two trees a fit has no tasks, and must not count as idle."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import pandas as pd
import pytest
from distributed import Client, LocalCluster

import dboost
from dboost.cluster.transport.messages import READING, SessionRef, pack
from dboost.session.session import Session
from tests.helpers.clusters import (
    a_table,
    held_rows,
    session_names,
    threads_cluster,
    until,
    wait_for_file,
)
from tests.helpers.tune import Tune

FRAME = a_table(3000)[["a", "b", "e", "z"]]
OPTIONS: dict[str, Any] = {"max_iter": 8, "max_leaf_nodes": 6, "progress": False}
AN_HOUR = 3600.0


@pytest.fixture(scope="module")
def expected() -> str:
    return dboost.fit(FRAME, "z", **OPTIONS).sha256


@pytest.fixture
def client() -> Iterator[Client]:
    with threads_cluster(3, 1) as client:
        yield client


def could_close(dask_scheduler: Any = None) -> list[str]:
    """Return the workers that an adaptive cluster with a minimum of zero may close."""
    return dask_scheduler.workers_to_close(n=len(dask_scheduler.workers), attribute="address")


async def ask(fit: str, session: SessionRef, dask_scheduler: Any = None) -> None:
    """Call one session of a fit."""
    plugin = dask_scheduler.plugins["dboost"]
    await asyncio.to_thread(plugin.answer, fit, "dboost_ask", [session], Session.keep_only.__name__, pack(("none", ())))


def has_been_idle(dask_scheduler: Any = None) -> None:
    """Make the scheduler appear idle for an hour."""
    dask_scheduler.idle_since = time.time() - AN_HOUR


def idle_seconds(dask_scheduler: Any = None) -> float:
    return 0.0 if dask_scheduler.idle_since is None else time.time() - dask_scheduler.idle_since


def test_workers_with_rows_are_not_chosen_to_be_closed(client: Client, expected: str) -> None:
    chosen: list[list[str]] = []
    held: list[dict[str, int]] = []

    def look(now: dboost.Iteration) -> None:
        if now.iteration == 4:
            chosen.append(client.run_on_scheduler(could_close))
            held.append(client.run(held_rows))

    lazy = dd.from_pandas(FRAME, npartitions=6)
    assert dboost.fit(lazy, "z", client=client, callbacks=look, **OPTIONS).sha256 == expected
    assert len(held[0]) == 3 and all(held[0].values())
    assert chosen == [[]]
    # After the fit no worker is protected.
    assert len(client.run_on_scheduler(could_close)) == 3


def test_workers_without_rows_may_go(client: Client, expected: str) -> None:
    chosen: list[list[str]] = []
    held: list[dict[str, int]] = []

    def look(now: dboost.Iteration) -> None:
        if now.iteration == 4:
            chosen.append(client.run_on_scheduler(could_close))
            held.append(client.run(held_rows))
            client.retire_workers(chosen[0])

    one = dd.from_pandas(FRAME, npartitions=1)
    assert dboost.fit(one, "z", client=client, callbacks=look, **OPTIONS).sha256 == expected
    (home,) = (address for address, rows in held[0].items() if rows)
    assert sorted([*chosen[0], home]) == sorted(held[0])
    assert list(client.nthreads()) == [home]


def test_a_scheduler_that_ends_when_idle_does_not_end_in_a_fit(client: Client, expected: str) -> None:
    seen: list[float] = []

    def look(now: dboost.Iteration) -> None:
        seen.append(client.run_on_scheduler(idle_seconds))
        client.run_on_scheduler(has_been_idle)

    lazy = dd.from_pandas(FRAME, npartitions=6)
    assert dboost.fit(lazy, "z", client=client, callbacks=look, **OPTIONS).sha256 == expected
    assert len(seen) == OPTIONS["max_iter"]
    assert max(seen[1:]) < AN_HOUR, "every question that is put to the workers is a sign of life"
    # Afterwards the scheduler is as idle as it reports.
    client.run_on_scheduler(has_been_idle)
    assert client.run_on_scheduler(idle_seconds) >= AN_HOUR


@pytest.fixture
def adaptive() -> Iterator[Client]:
    """A cluster of one worker that adapts at short intervals."""
    often = {"interval": "50ms", "target-duration": "100ms", "wait-count": 2}
    with (
        dask.config.set({f"distributed.adaptive.{name}": value for name, value in often.items()}),
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def workers_needed(dask_scheduler: Any = None) -> int:
    """Return the number of workers that the running fit has requested."""
    (fit,) = dask_scheduler.plugins["dboost"]._fits.values()
    return fit.n_workers_needed


def n_workers(client: Client) -> int:
    return len(client.nthreads())


#: The cluster that grows while data are read.
GROWING: list[Client] = []


def nap(frame: pd.DataFrame) -> pd.DataFrame:
    """Read until there is another worker, however long the machine needs. (All workers are threads of this process.)"""
    until(lambda: n_workers(GROWING[-1]) > 1)
    time.sleep(0.2)
    return frame


def losses(client: Client) -> list[Any]:
    return [event for _, event in client.get_events("dboost") if event["action"] in ("lost", "removed")]


def test_a_cluster_grows_while_data_are_read_and_shrinks_after_the_fit(adaptive: Client, expected: str) -> None:
    slow = dd.from_pandas(FRAME, npartitions=12).map_partitions(nap, meta=FRAME.iloc[:0])
    GROWING.append(adaptive)
    adaptive.cluster.adapt(minimum=1, maximum=3)
    # Many times as long as the cluster waits before it closes workers without tasks.
    booster = dboost.fit(slow, "z", client=adaptive, callbacks=lambda now: time.sleep(0.1), **OPTIONS)
    assert booster.sha256 == expected
    workers = booster.history["workers"]
    assert workers[0] > 1 and (workers.diff().dropna() >= 0).all(), "none is taken from the fit"
    assert not losses(adaptive)
    until(lambda: n_workers(adaptive) == 1)


def test_a_cluster_without_workers_gets_one_for_a_fit(adaptive: Client, expected: str) -> None:
    adaptive.cluster.adapt(minimum=0, maximum=2)
    until(lambda: n_workers(adaptive) == 0)
    lazy = dd.from_pandas(FRAME, npartitions=4)
    booster = dboost.fit(lazy, "z", client=adaptive, callbacks=lambda now: time.sleep(0.1), **OPTIONS)
    assert booster.sha256 == expected
    assert not losses(adaptive)
    until(lambda: n_workers(adaptive) == 0)


@pytest.mark.slow
def test_a_cluster_grows_until_all_rows_are_in_memory(adaptive: Client, tune: Tune) -> None:
    tune(cached_file_bytes=0)
    rows = a_table(60_000)[["a", "b", "e", "z"]]
    lazy = adaptive.persist(dd.from_pandas(rows, npartitions=24))  # nothing is left to do for Dask
    adaptive.cluster.adapt(minimum=1, maximum=8, target_duration="1h")  # tasks want no further worker

    def look(now: dboost.Iteration) -> None:
        if now.iteration == 2:  # at the earliest then new workers receive partitions
            needed.append(adaptive.run_on_scheduler(workers_needed))
            until(lambda: n_workers(adaptive) == needed[0])
        time.sleep(0.1)

    needed: list[int] = []
    options = OPTIONS | {"max_iter": 60}  # partitions move between iterations, which take longer on a busy machine
    booster = dboost.fit(lazy, "z", client=adaptive, callbacks=look, memory_limit="2MiB", **options)
    assert booster.sha256 == dboost.fit(rows, "z", **options).sha256
    history = booster.history
    assert 2 < needed[0] < 8, "as many as the rows need, not as many as there can be"
    assert history["bytes_read"].iloc[0] > 0
    # The first worker's rows stay in files, most of whose blocks are now in its memory.
    assert history["bytes_read"].iloc[-1] < history["bytes_read"].iloc[0] / 5
    assert history["workers"].iloc[-1] == needed[0]
    assert not losses(adaptive)
    until(lambda: n_workers(adaptive) == 1)


def test_whoever_is_not_asked_at_the_moment_keeps_its_rows(client: Client, expected: str) -> None:
    chosen: list[list[str]] = []

    def look(now: dboost.Iteration) -> None:
        if now.iteration == 4:
            # Moving rows to a new worker sends calls to some workers only; the others must not count as idle meanwhile.
            fit = next(iter(client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.plugins["dboost"]._fits))))
            worker, (session, *_) = next((worker, names) for worker, names in client.run(session_names).items() if names)
            client.run_on_scheduler(ask, fit, SessionRef(worker, session))
            chosen.append(client.run_on_scheduler(could_close))

    lazy = dd.from_pandas(FRAME, npartitions=6)
    assert dboost.fit(lazy, "z", client=client, callbacks=look, **OPTIONS).sha256 == expected
    assert chosen == [[]]


def read_tasks(dask_scheduler: Any = None) -> list[str]:
    return [str(key) for key in dask_scheduler.tasks if str(key).startswith(READING)]


def test_a_worker_that_joins_stops_reading_at_the_end_of_the_fit(
    client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The client of the fit is closed at once. That tasks are cancelled is no failure."""
    wait_until = partial(wait_for_file, tmp_path / "may read")
    (tmp_path / "may read").touch()
    lazy = dd.from_pandas(FRAME, npartitions=8)
    slow = lazy.map_partitions(lambda part: wait_until(part) or part, meta=lazy._meta)

    def look(now: dboost.Iteration) -> bool:
        if now.iteration == 2:
            (tmp_path / "may read").unlink()
            (tmp_path / "may read.begun").unlink()
            client.cluster.scale(4)
            until(lambda: n_workers(client) == 4)
        time.sleep(0.02)
        return now.iteration > 2 and (tmp_path / "may read.begun").exists()

    try:
        with Client(client.cluster, set_as_default=False) as other:
            booster = dboost.fit(slow, "z", client=other, callbacks=look, **OPTIONS | {"max_iter": 2000})
        assert booster.n_iter_ < 2000
        until(lambda: not client.run_on_scheduler(read_tasks), 20)
        assert not [record for record in caplog.records if record.name == "dboost"]
    finally:
        (tmp_path / "may read").touch()
