"""Workers die, hang, leave and join; clients are lost; the model is the same, or the error names the cause.

The processes are real and are killed with signals. Most tests share one cluster, whose dead workers are replaced.
"""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster
from distributed.security import Security

import dboost
from tests.helpers.clusters import (
    ROOT,
    SABOTAGE,
    Processes,
    a_table,
    after,
    allow_no_failures,
    at,
    held_fits,
    held_rows,
    impatient,
    scheduler_plugin,
)

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
    """Three workers that have imported dboost."""
    shared.ensure_workers(3)
    dboost.fit(lazily(), "z", client=shared.client, **OPTIONS | {"max_iter": 1})
    return shared


def lazily(seconds: float = 0.0, n_partitions: int = 6) -> dd.DataFrame:
    def slowly(frame: pd.DataFrame) -> pd.DataFrame:
        time.sleep(seconds)
        return frame

    lazy = dd.from_pandas(FRAME, npartitions=n_partitions)
    return lazy.map_partitions(slowly, meta=lazy._meta) if seconds else lazy


@pytest.mark.parametrize(
    "delay",
    [
        pytest.param(0.0, id="between trees", marks=pytest.mark.slow),
        pytest.param(0.004, id="in a round"),
        pytest.param(0.015, id="later", marks=pytest.mark.slow),
    ],
)
def test_a_worker_is_killed_while_training(cluster: Processes, expected: str, delay: float) -> None:
    victim = cluster.any_pid()
    kill = at(5, lambda: after(delay, lambda: os.kill(victim, signal.SIGKILL)))
    booster = dboost.fit(lazily(), "z", client=cluster.client, callbacks=kill, **OPTIONS)
    assert booster.sha256 == expected
    assert len(cluster.client.nthreads()) == 2


def test_a_lost_worker_is_reported(cluster: Processes, expected: str, caplog: pytest.LogCaptureFixture) -> None:
    pids = cluster.pids()
    victim = min(pids)
    kill = at(5, lambda: os.kill(pids[victim], signal.SIGKILL))
    held = {"held": dd.from_pandas(FRAME.iloc[:600], npartitions=3)}
    booster = dboost.fit(lazily(), "z", client=cluster.client, callbacks=kill, eval_set=held, **OPTIONS)
    lost = booster.history.attrs["lost_workers"]
    assert lost == pickle.loads(pickle.dumps(booster)).history.attrs["lost_workers"]
    ((worker, n_partitions, n_rows),) = [(one["worker"], one["partitions"], one["rows"]) for one in lost]
    assert worker == victim and n_partitions >= 1 and 0 < n_rows < len(FRAME)
    first, last = [record.getMessage() for record in caplog.records if record.name == "dboost"]
    assert first.startswith(f"worker {victim} was lost after iteration {lost[0]['iteration']}: other workers read its ")
    assert f"of the training data ({n_rows:,} rows) again" in first and lost[0]["iteration"] in (4, 5)
    assert last == "1 worker was lost during the fit, and the result is the same as without the loss"
    without = dboost.fit(lazily(), "z", client=cluster.client, **OPTIONS)
    assert without.sha256 == expected and not without.history.attrs


def test_a_fit_that_ends_while_a_new_worker_reads_says_nothing_of_it(
    cluster: Processes, caplog: pytest.LogCaptureFixture
) -> None:
    """The client is closed at once; the tasks of the new worker are cancelled, which is no failure."""
    began = [0.0]

    def replace(now: dboost.Iteration) -> bool:
        if now.iteration == 3:
            os.kill(cluster.any_pid(), signal.SIGKILL)
        elif now.iteration == 5:
            cluster.add_worker()
            cluster.client.wait_for_workers(3, timeout=60)
            began[0] = time.monotonic()
        time.sleep(0.05)
        return began[0] > 0 and time.monotonic() - began[0] > 1.5

    with Client(cluster.address, set_as_default=False) as other:
        dboost.fit(lazily(3.0), "z", client=other, callbacks=replace, **OPTIONS | {"max_iter": 500})
    time.sleep(0.5)
    messages = [record.getMessage() for record in caplog.records if record.name == "dboost"]
    assert len(messages) == 2 and all("was lost" in message for message in messages)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["an evaluation set", "a continued model", "truth values", "a leaf refit"])
def test_rows_that_move_after_they_were_read_again_have_not_changed(cluster: Processes, case: str) -> None:
    """The worker with all rows is killed; another one reads them again, and a third may get them."""
    few, names = FRAME.assign(e=FRAME["e"].where(FRAME["e"].isin(["a", "b"]))), ["a", "b", "c", "e"]
    options, data = OPTIONS | {"random_state": 3}, FRAME
    if case == "an evaluation set":
        data, options["eval_set"] = few, {"held": FRAME.iloc[:1500]}
    elif case == "a continued model":
        options["start_from"] = dboost.fit(few, "z", **OPTIONS | {"max_iter": 3})
    elif case == "truth values":
        data = FRAME.assign(e=(FRAME["e"] < "e").astype("category"))
        options["eval_set"] = {"held": data.iloc[:1500].assign(e=data["e"].astype(int).astype("category"))}
    else:
        model = dboost.fit(few, "z", **OPTIONS)
        expected = model.refit_leaves(FRAME, "z").sha256
        slow = lazily(0.2)
        kill = after(0.5, lambda: os.kill(cluster.any_pid(), signal.SIGKILL))
        assert model.refit_leaves(slow[[*names, "z"]], "z", client=cluster.client).sha256 == expected
        kill.join()
        return
    expected = dboost.fit(data, "z", **options).sha256
    if "eval_set" in options:
        options["eval_set"] = {"held": dd.from_pandas(options["eval_set"]["held"], npartitions=3)}
    for iteration in (3, 9):
        cluster.ensure_workers(3)

        def kill_the_owner() -> None:
            rows = cluster.client.run(held_rows)
            os.kill(cluster.pids()[max(rows, key=lambda worker: rows[worker])], signal.SIGKILL)

        lazy = dd.from_pandas(data, npartitions=6)
        booster = dboost.fit(lazy, "z", client=cluster.client, callbacks=at(iteration, kill_the_owner), **options)
        assert booster.sha256 == expected


@pytest.mark.slow
def test_a_worker_is_killed_while_loading(cluster: Processes, expected: str) -> None:
    victim = cluster.any_pid()
    after(0.5, lambda: os.kill(victim, signal.SIGKILL))
    assert dboost.fit(lazily(0.4), "z", client=cluster.client, **OPTIONS).sha256 == expected


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_stopped_worker_is_given_up(cluster: Processes, expected: str) -> None:
    victim = cluster.any_pid()
    stop = at(5, lambda: os.kill(victim, signal.SIGSTOP))
    with cluster.impatient():
        assert dboost.fit(lazily(), "z", client=cluster.client, callbacks=stop, **OPTIONS).sha256 == expected
    events = [event for _, event in cluster.client.get_events("dboost")]
    assert any(event["action"] == "removed" for event in events), "it is not Dask that gives it up, after five minutes"
    os.kill(victim, signal.SIGKILL)


@pytest.mark.slow
def test_a_worker_stopped_while_loading_is_given_up(cluster: Processes, expected: str) -> None:
    victim = cluster.any_pid()
    after(0.3, lambda: os.kill(victim, signal.SIGSTOP))
    with cluster.impatient():
        assert dboost.fit(lazily(0.3), "z", client=cluster.client, **OPTIONS).sha256 == expected
    os.kill(victim, signal.SIGKILL)


@pytest.mark.slow
def test_a_worker_is_retired(cluster: Processes, expected: str) -> None:
    address = next(iter(cluster.pids()))
    retire = at(5, lambda: cluster.client.retire_workers([address]))
    assert dboost.fit(lazily(), "z", client=cluster.client, callbacks=retire, **OPTIONS).sha256 == expected


@pytest.mark.slow
def test_all_workers_die_and_another_one_comes(cluster: Processes, expected: str) -> None:
    def disaster() -> None:
        for pid in cluster.pids().values():
            os.kill(pid, signal.SIGKILL)
        after(1.0, cluster.add_worker)

    assert dboost.fit(lazily(), "z", client=cluster.client, callbacks=at(5, disaster), **OPTIONS).sha256 == expected


@pytest.mark.slow
def test_a_worker_that_joins_is_given_rows(cluster: Processes, expected: str) -> None:
    before: dict[str, int] = {}
    latest: dict[str, int] = {}

    def watch(now: dboost.Iteration) -> None:
        if now.iteration == 3:
            before.update(cluster.client.run(held_rows))
            cluster.add_worker()
            cluster.client.wait_for_workers(4, timeout=60)
        if now.iteration > 3:
            time.sleep(0.1)
            latest.update(cluster.client.run(held_rows))

    booster = dboost.fit(lazily(n_partitions=12), "z", client=cluster.client, callbacks=watch, **OPTIONS)
    assert booster.sha256 == expected
    (newcomer,) = set(latest) - set(before)
    assert sum(before.values()) == sum(latest.values()) == len(FRAME)
    assert latest[newcomer] > len(FRAME) / 8
    cluster.client.retire_workers([newcomer])


@pytest.mark.slow
def test_a_worker_that_joins_and_does_not_answer_at_first_is_asked_again(cluster: Processes) -> None:
    latest: dict[str, int] = {}
    newcomers: set[str] = set()
    stopped: list[int] = []
    began: list[float] = []

    def watch(now: dboost.Iteration) -> bool:
        if now.iteration == 3:
            known = cluster.addresses()
            process = cluster.add_worker()
            cluster.wait_for(lambda: len(cluster.addresses()) == len(known) + 1)
            os.kill(process.pid, signal.SIGSTOP)
            stopped.append(process.pid)
            began.append(time.monotonic())
            newcomers.update(cluster.addresses() - known)
        elif now.iteration > 3 and stopped and time.monotonic() - began[0] > 4:
            os.kill(stopped.pop(), signal.SIGCONT)
        if now.iteration > 3:
            time.sleep(0.05)
            if not stopped:
                latest.update(cluster.client.run(held_rows))
        return any(latest.get(one) for one in newcomers) or (bool(began) and time.monotonic() - began[0] > 60)

    with cluster.impatient():
        dboost.fit(lazily(n_partitions=12), "z", client=cluster.client, callbacks=watch, **OPTIONS | {"max_iter": 3000})
    (newcomer,) = newcomers
    assert latest[newcomer] > len(FRAME) / 8 and sum(latest.values()) == len(FRAME)
    cluster.client.retire_workers([newcomer])


@pytest.mark.slow
def test_two_of_32_workers_are_killed() -> None:
    """Partitions of random lengths, some of them empty, on as many processes as a small rack has."""
    frame = a_table(20_000)[["a", "b", "c", "e", "z"]]
    cuts = np.sort(np.random.default_rng(5).integers(0, len(frame) + 1, 99))
    parts = [frame.iloc[a:b] for a, b in pairwise([0, *cuts.tolist(), len(frame)])]
    options = OPTIONS | {"max_iter": 5, "max_leaf_nodes": 31}
    with Processes(2) as cluster:
        for _ in range(30):
            cluster.add_worker()
        cluster.client.wait_for_workers(32, timeout=300)
        victims = random.sample(list(cluster.pids().values()), 2)
        kill = [at(3 + k, lambda pid=victim: os.kill(pid, signal.SIGKILL)) for k, victim in enumerate(victims)]
        data = dd.from_map(lambda k: parts[k], range(len(parts)), meta=frame.iloc[:0])
        booster = dboost.fit(data, "z", client=cluster.client, callbacks=kill, **options)
    assert booster.sha256 == dboost.fit(frame, "z", **options).sha256
    workers = booster.history["workers"]
    assert workers.iloc[0] > 24 and workers.iloc[-1] <= workers.iloc[0] - 2


def test_a_partition_that_kills_its_workers_is_named(cluster: Processes) -> None:
    def deadly(frame: pd.DataFrame, partition_info: Any = None) -> pd.DataFrame:
        if partition_info and partition_info["number"] == 1:
            os._exit(1)
        return frame

    lazy = dd.from_pandas(FRAME, npartitions=3)
    cluster.client.run_on_scheduler(allow_no_failures)
    with pytest.raises(dboost.DBoostError, match=r"partition 1 could not be read|cannot be read"):
        dboost.fit(lazy.map_partitions(deadly, meta=lazy._meta), "z", client=cluster.client, **OPTIONS)


@pytest.mark.slow
def test_two_fits_at_once_one_of_them_cancelled(cluster: Processes, expected: str) -> None:
    results: dict[str, Any] = {}

    def patient() -> None:
        results["patient"] = dboost.fit(lazily(), "z", client=cluster.client, **OPTIONS).sha256

    def enough(iteration: dboost.Iteration) -> None:
        if iteration.iteration == 8:
            raise KeyboardInterrupt

    def hasty() -> None:
        with Client(cluster.address, set_as_default=False) as other:
            try:
                dboost.fit(lazily(), "z", client=other, callbacks=enough, **OPTIONS)
            except KeyboardInterrupt as stopped:
                results["hasty"] = stopped

    threads = [threading.Thread(target=patient), threading.Thread(target=hasty)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert results["patient"] == expected
    assert isinstance(results["hasty"], dboost.FitInterrupted)
    assert results["hasty"].iterations == 8
    nothing_is_held(cluster)


def nothing_is_held(cluster: Processes) -> None:
    for _ in range(1200):
        held = cluster.client.run_on_scheduler(scheduler_plugin)["fits"] + sum(cluster.client.run(held_fits).values())
        if not held:
            return
        time.sleep(0.1)
    raise AssertionError(f"{held} fits are still held")


@pytest.mark.slow
def test_a_client_that_vanishes_is_cleaned_up_after(cluster: Processes, tmp_path: Path) -> None:
    script = tmp_path / "client.py"
    script.write_text(
        textwrap.dedent(f"""
        import os, signal, sys
        from distributed import Client
        import dboost
        from test_cluster_failures import OPTIONS, lazily
        def die(iteration):
            if iteration.iteration == 5:
                os.kill(os.getpid(), signal.SIGKILL)
        if __name__ == "__main__":
            dboost.fit(lazily(), "z", client=Client({cluster.address!r}), callbacks=die, **OPTIONS)
        """)
    )
    done = subprocess.run(
        [sys.executable, script],
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(Path(__file__).parent)))},
        timeout=120,
    )
    assert done.returncode == -signal.SIGKILL
    nothing_is_held(cluster)


#: What the client says of the workers of `SABOTAGE`.
COMPLAINTS = {
    "no dboost": "has no dboost: install",
    "another version": "has dboost 0.0.1, this process",
    "no library": "cannot start dboost: ModuleNotFoundError: import of numba halted",
    "a failing plugin": r"cannot start dboost: FileNotFoundError: .*'/nowhere/at/all'",
}


@pytest.mark.slow
@pytest.mark.parametrize("sabotage", SABOTAGE)
def test_a_worker_that_cannot_take_part_is_named(cluster: Processes, sabotage: str, expected: str) -> None:
    code = f"{SABOTAGE[sabotage]}; from distributed.cli.dask_worker import main; main()"
    before = set(cluster.pids())
    worker = subprocess.Popen(
        [sys.executable, "-c", code, cluster.address, "--no-nanny", "--no-dashboard"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        cluster.client.wait_for_workers(len(before) + 1, timeout=60)
        (address,) = set(cluster.client.nthreads()) - before
        complaint = f"worker {address} {COMPLAINTS[sabotage]}"
        with pytest.raises(dboost.DBoostError, match=complaint):
            dboost.fit(lazily(), "z", client=cluster.client, workers=[*before, address], **OPTIONS)
        with pytest.warns(UserWarning, match=f"{complaint}.*; the fit leaves this worker out"):
            assert dboost.fit(lazily(), "z", client=cluster.client, **OPTIONS).sha256 == expected
    finally:
        worker.kill()
        worker.wait()
        while len(cluster.client.nthreads()) > len(before):
            time.sleep(0.05)


#: A worker that takes seconds to import dboost, as from a slow disk.
SLOW_START = """
import sys, time
from distributed.cli.dask_worker import main

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "dboost.distributed.worker_plugin":
            time.sleep(10)

sys.meta_path.insert(0, Slow())
main()
"""


@pytest.mark.slow
def test_a_worker_that_starts_slowly_is_waited_for(cluster: Processes, expected: str) -> None:
    before = cluster.addresses()
    with impatient(cluster.client, "6s"):  # on a busy machine the new worker imports for seconds without answering
        worker = subprocess.Popen(
            [sys.executable, "-c", SLOW_START, cluster.address, "--no-nanny", "--no-dashboard"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            cluster.wait_for(lambda: len(cluster.addresses()) == len(before) + 1)
            (address,) = cluster.addresses() - before
            booster = dboost.fit(lazily(), "z", client=cluster.client, workers=address, **OPTIONS)
            assert booster.sha256 == expected
        finally:
            worker.kill()
            worker.wait()
            cluster.wait_for(lambda: cluster.addresses() == before)


@pytest.mark.slow
def test_the_scheduler_dies() -> None:
    with Processes(1) as processes:
        kill = at(5, lambda: processes.scheduler.kill())
        with pytest.raises(dboost.DBoostError, match="scheduler"):
            dboost.fit(lazily(), "z", client=processes.client, callbacks=kill, **OPTIONS)


@pytest.mark.slow
def test_over_encrypted_connections(expected: str) -> None:
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=False,
            protocol="tls",
            security=Security.temporary(),
            dashboard_address=":0",
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        assert client.scheduler_info()["address"].startswith("tls://")
        assert dboost.fit(lazily(), "z", client=client, **OPTIONS).sha256 == expected
