"""Clusters that shrink, grow or end by themselves: a fit has no tasks between its trees, and is not taken for idleness."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import dask.dataframe as dd
import pytest
from distributed import Client

import dboost
from tests.clusters import a_table, held_rows, threads_cluster

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
    """Which workers a cluster that wants to shrink to nothing may close."""
    return dask_scheduler.workers_to_close(n=len(dask_scheduler.workers), attribute="address")


def has_been_idle(dask_scheduler: Any = None) -> None:
    """As if nobody had wanted anything of the scheduler for an hour."""
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
    # When the fit is over nothing is held back.
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
    assert list(client.scheduler_info(n_workers=-1)["workers"]) == [home]


def test_a_scheduler_that_ends_when_idle_does_not_end_in_a_fit(client: Client, expected: str) -> None:
    seen: list[float] = []

    def look(now: dboost.Iteration) -> None:
        seen.append(client.run_on_scheduler(idle_seconds))
        client.run_on_scheduler(has_been_idle)

    lazy = dd.from_pandas(FRAME, npartitions=6)
    assert dboost.fit(lazy, "z", client=client, callbacks=look, **OPTIONS).sha256 == expected
    assert len(seen) == OPTIONS["max_iter"]
    assert max(seen[1:]) < AN_HOUR, "every question that is put to the workers is a sign of life"
    # Afterwards it is as idle as it says.
    client.run_on_scheduler(has_been_idle)
    assert client.run_on_scheduler(idle_seconds) >= AN_HOUR
