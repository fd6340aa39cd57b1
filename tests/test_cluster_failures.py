"""Workers die, hang, leave and join; clients go away; the model is the same or the error says what happened.

The processes are real and are killed for real. Most tests share one cluster, whose dead workers are replaced.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import pandas as pd
import pytest
from distributed import Client, LocalCluster
from distributed.security import Security

import dboost
from tests.clusters import ROOT, Processes, a_table, after, allow_no_failures, held_fits, held_rows, scheduler_plugin

FRAME = a_table(4000)[["a", "b", "c", "e", "z"]]
OPTIONS: dict[str, Any] = {"max_iter": 25, "progress": False, "max_leaf_nodes": 8}


@pytest.fixture(scope="module")
def expected() -> str:
    return dboost.fit(FRAME, "z", **OPTIONS).sha256


@pytest.fixture(scope="module")
def shared() -> Iterator[Processes]:
    with Processes(3) as processes:
        yield processes


@pytest.fixture
def cluster(shared: Processes) -> Processes:
    """Three workers that have dboost loaded."""
    for _ in range(3 - len(shared.client.scheduler_info(n_workers=-1)["workers"])):
        shared.add_worker()
    shared.client.wait_for_workers(3, timeout=60)
    dboost.fit(lazily(), "z", client=shared.client, **OPTIONS | {"max_iter": 1})
    return shared


def lazily(seconds: float = 0.0, n_partitions: int = 6) -> dd.DataFrame:
    def slowly(frame: pd.DataFrame) -> pd.DataFrame:
        time.sleep(seconds)
        return frame

    lazy = dd.from_pandas(FRAME, npartitions=n_partitions)
    return lazy.map_partitions(slowly, meta=lazy._meta) if seconds else lazy


def at(iteration: int, action: Callable[[], Any]) -> Callable[[dboost.Iteration], None]:
    """A callback that does something once."""
    done = []

    def callback(now: dboost.Iteration) -> None:
        if now.iteration == iteration and not done:
            done.append(True)
            action()

    return callback


def somebody(cluster: Processes) -> int:
    return random.choice(list(cluster.pids().values()))


@pytest.mark.parametrize("delay", [0.0, 0.004, 0.015], ids=["between trees", "in a round", "later"])
def test_a_worker_is_killed_while_training(cluster: Processes, expected: str, delay: float) -> None:
    victim = somebody(cluster)
    kill = at(5, lambda: after(delay, lambda: os.kill(victim, signal.SIGKILL)))
    booster = dboost.fit(lazily(), "z", client=cluster.client, callbacks=kill, **OPTIONS)
    assert booster.sha256 == expected
    assert len(cluster.client.scheduler_info(n_workers=-1)["workers"]) == 2


def test_a_worker_is_killed_while_loading(cluster: Processes, expected: str) -> None:
    victim = somebody(cluster)
    after(0.5, lambda: os.kill(victim, signal.SIGKILL))
    assert dboost.fit(lazily(0.4), "z", client=cluster.client, **OPTIONS).sha256 == expected


def test_two_of_three_are_killed_and_held_out_rows_with_them(cluster: Processes) -> None:
    held = FRAME.iloc[:1000]
    options = OPTIONS | {"eval_metric": ["roc_auc", "log_loss"]}
    alone = dboost.fit(FRAME, "z", eval_set={"held": held}, **options)
    victims = list(cluster.pids().values())[:2]
    kill = [at(4, lambda: os.kill(victims[0], signal.SIGKILL)), at(9, lambda: os.kill(victims[1], signal.SIGKILL))]
    booster = dboost.fit(
        lazily(), "z", eval_set={"held": dd.from_pandas(held, npartitions=3)}, client=cluster.client, callbacks=kill, **options
    )
    assert booster.sha256 == alone.sha256


def test_a_stopped_worker_is_given_up(cluster: Processes, expected: str) -> None:
    victim = somebody(cluster)
    stop = at(5, lambda: os.kill(victim, signal.SIGSTOP))
    events = [event for _, event in cluster.client.get_events("dboost")]
    assert any(event["action"] == "removed" for event in events), "it is not Dask that gives it up, after five minutes"
