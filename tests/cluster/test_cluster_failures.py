"""Clusters whose parts fail in ways of their own: workers that cannot take part, start slowly, lose rows or give other ones,
clients and schedulers that do not fit.

The processes are real. Faults at any call of a fit are in `test_faults`.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, Future
from distributed.core import Status

import dboost
from dboost.cluster.client.connection import Connection
from dboost.cluster.partitions import read_tasks
from dboost.cluster.scheduler.reducer import Reducer
from dboost.cluster.transport.messages import FAILED, unpack_error
from dboost.cluster.worker import worker_plugin
from tests.helpers.clusters import (
    ROOT,
    SABOTAGE,
    Processes,
    a_table,
    allow_no_failures,
    at,
    held_fits,
    held_rows,
    impatient,
    scheduler_plugin,
    threads_cluster,
    until,
)
from tests.helpers.faults import Fault, Faults, nothing_is_held
from tests.helpers.on_workers import Squares
from tests.helpers.tune import Tune

FRAME = a_table(4000, seed=1)[["a", "b", "c", "e", "w", "z"]]
OPTIONS: dict[str, Any] = {"max_iter": 15, "progress": False, "max_leaf_nodes": 8}


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


@pytest.mark.parametrize("loss", [{}, {"loss": "quantile", "quantile": 0.4}], ids=["", "two passes an iteration"])
def test_a_lost_worker_is_reported(cluster: Processes, loss: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    options = OPTIONS | loss
    expected = dboost.fit(FRAME, "z", **options).sha256
    pids = cluster.pids()
    victim = min(pids)
    kill = at(5, lambda: os.kill(pids[victim], signal.SIGKILL))
    held = {"held": dd.from_pandas(FRAME.iloc[:600], npartitions=3)}
    booster = dboost.fit(lazily(), "z", client=cluster.client, callbacks=kill, eval_set=held, **options)
    lost = booster.history.attrs["lost_workers"]
    assert lost == pickle.loads(pickle.dumps(booster)).history.attrs["lost_workers"]
    ((worker, n_partitions, n_rows),) = [(one["worker"], one["partitions"], one["rows"]) for one in lost]
    assert worker == victim and n_partitions >= 1 and 0 < n_rows < len(FRAME)
    first, last = [record.getMessage() for record in caplog.records if record.name == "dboost"]
    assert first.startswith(f"worker {victim} was lost after iteration {lost[0]['iteration']}: other workers read its ")
    assert f"of the training data ({n_rows:,} rows) again" in first and lost[0]["iteration"] in (4, 5)
    assert last == "1 worker was lost during the fit, and the result is the same as without the loss"
    without = dboost.fit(lazily(), "z", client=cluster.client, **options)
    assert without.sha256 == expected and "lost_workers" not in without.history.attrs


def test_a_worker_that_is_lost_while_it_reads_is_reported(
    cluster: Processes, expected: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    pids = cluster.pids()

    def killed_once(frame: pd.DataFrame) -> pd.DataFrame:
        try:
            (tmp_path / "dead").touch(exist_ok=False)
        except FileExistsError:
            return frame
        (tmp_path / "dead").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
        return frame

    rows = dd.from_pandas(FRAME, npartitions=6)
    rows = rows.map_partitions(killed_once, meta=rows._meta)
    booster = dboost.fit(rows, "z", client=cluster.client, **OPTIONS)
    assert booster.sha256 == expected
    (lost,) = booster.history.attrs["lost_workers"]
    assert pids[lost["worker"]] == int((tmp_path / "dead").read_text())
    assert lost["iteration"] is None and lost["rows"] is None and lost["partitions"] >= 1
    first, last = [record.getMessage() for record in caplog.records if record.name == "dboost"]
    partitions = f"{lost['partitions']} partition{'s' if lost['partitions'] > 1 else ''}"
    assert first == f"worker {lost['worker']} was lost while data were loaded: other workers read its {partitions} again"
    assert last == "1 worker was lost during the fit, and the result is the same as without the loss"


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Connection]:
    """Return the connection of the running fit."""
    found: list[Connection] = []
    begin = Connection.__init__

    def noted(self: Connection, *arguments: Any) -> None:
        begin(self, *arguments)
        found.append(self)

    monkeypatch.setattr(Connection, "__init__", noted)
    return lambda: found[-1]


def lazily(n_partitions: int = 6, seconds: float = 0.0) -> dd.DataFrame:
    def slowly(frame: pd.DataFrame) -> pd.DataFrame:
        time.sleep(seconds)
        return frame

    lazy = dd.from_pandas(FRAME, npartitions=n_partitions)
    return lazy.map_partitions(slowly, meta=lazy._meta) if seconds else lazy


@pytest.mark.slow
def test_tasks_are_submitted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the worker leaves that is to read all partitions: the end of the former tasks does not concern the later ones."""
    receipts, keys = read_tasks._receipts, []

    def every_other_time(connection: Connection, waiting: dict[Future, int], *others: Any) -> Any:
        keys.append({future.key for future in waiting})
        if len(keys) % 2:
            raise read_tasks._SubmitAgain
        return receipts(connection, waiting, *others)

    monkeypatch.setattr(read_tasks, "_receipts", every_other_time)
    rows = FRAME[["a", "b", "z"]]
    with threads_cluster(2, 1) as client:
        for _ in range(8):
            dboost.fit(rows, "z", client=client, max_iter=1, progress=False)
    assert len(keys) == 16
    assert len(set.union(*keys)) == sum(map(len, keys))


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
    before = set(cluster.pids())
    worker = cluster.sabotaged_worker(sabotage)
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
        until(lambda: len(cluster.client.nthreads()) == len(before))


#: A worker that takes seconds to import dboost, as from a slow disk.
SLOW_START = """
import sys, time
from distributed.cli.dask_worker import main

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "dboost.cluster.worker.worker_plugin":
            time.sleep(10)

sys.meta_path.insert(0, Slow())
main()
"""


@pytest.mark.slow
def test_a_worker_that_starts_slowly_is_waited_for(cluster: Processes, expected: str) -> None:
    before = cluster.addresses()
    with impatient(cluster.client, "6s"):  # on a busy machine the new worker imports for seconds without answering
        worker = cluster.worker_of(SLOW_START)
        try:
            until(lambda: len(cluster.addresses()) == len(before) + 1)
            (address,) = cluster.addresses() - before
            booster = dboost.fit(lazily(), "z", client=cluster.client, workers=address, **OPTIONS)
            assert booster.sha256 == expected
        finally:
            worker.kill()
            worker.wait()
            until(lambda: cluster.addresses() == before)


@pytest.mark.slow
def test_a_worker_is_lost_while_weights_are_attached(cluster: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Target and weights are arrays in the client, which it sends to other workers again."""
    role = "sample_weight"
    arrays = {"target": FRAME["z"].to_numpy(), role: FRAME["w"].to_numpy()}
    features = FRAME[["a", "b", "c"]]
    alone = dboost.fit(features, **arrays, **OPTIONS)
    seen: list[str] = []
    ask_each = Connection.ask_each

    def lossy(
        self: Connection, arguments: dict[Any, tuple[Any, ...]], method: Any, before: dict[Any, list[Any]] | None = None
    ) -> Any:
        first = next(iter(before.values())) if before else []
        if ("attach", role) in [(name, given[1]) for name, given in first] and not seen:
            victim = next(iter(arguments)).worker
            seen.append(victim)
            os.kill(cluster.pids()[victim], signal.SIGKILL)
            until(lambda: victim not in cluster.addresses())
        return ask_each(self, arguments, method, before)

    monkeypatch.setattr(Connection, "ask_each", lossy)
    table = dd.from_pandas(features, npartitions=6)
    booster = dboost.fit(table, client=cluster.client, **arrays, **OPTIONS)
    assert seen and booster.sha256 == alone.sha256


@pytest.mark.slow
def test_two_clients_that_register_at_the_same_time_share_one_reducer() -> None:
    async def race(dask_scheduler: Any = None) -> list[bool]:
        register = dask_scheduler.register_scheduler_plugin
        await asyncio.gather(*(register(Reducer(), idempotent=True) for _ in range(3)))
        reducer = dask_scheduler.plugins["dboost"]
        return [dask_scheduler.handlers[f"dboost_{name}"].__self__ is reducer for name in ("open", "line", "sessions", "end")]

    with Processes(2) as processes:
        assert all(processes.client.run_on_scheduler(race))
        fits: list[str] = []

        def fit() -> None:
            with Client(processes.address, set_as_default=False) as client:
                fits.append(dboost.fit(lazily(), "z", client=client, **OPTIONS).sha256)

        threads = [threading.Thread(target=fit) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert len(fits) == 2 and len(set(fits)) == 1
        assert processes.client.run_on_scheduler(scheduler_plugin)["fits"] == 0
        until(lambda: not any(processes.client.run(held_fits).values()))


def call_other_method(dask_worker: Any = None) -> tuple[str, str]:
    """For `Client.run`: the answer to a message that names a method of the session which is not in the protocol."""
    plugin = dask_worker.plugins["dboost"]
    ((fit, session),) = plugin._sessions.items()
    status, answer = plugin._execute(fit, session.id, session.latest, "close", ())
    return status, str(unpack_error(answer))


def test_a_message_calls_only_methods_of_the_protocol() -> None:
    answers: list[tuple[str, str]] = []
    with threads_cluster(1, 1) as client:
        look = at(3, lambda: answers.extend(client.run(call_other_method).values()))
        model = dboost.fit(lazily(), "z", client=client, callbacks=look, **OPTIONS)
    assert answers == [(FAILED, "a session has no method 'close'")]
    assert model.sha256 == dboost.fit(FRAME, "z", **OPTIONS).sha256


@pytest.mark.slow
def test_a_step_that_ends_its_workers_every_time_is_given_up(tune: Tune) -> None:
    class Deadly(Squares):
        """Ends the process of the worker that computes its gradients, once the raw scores of the rows differ."""

        def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
            if np.abs(raw - raw[:1]).max() > 0 and os.environ.get("DEADLY"):
                os._exit(1)
            return super().gradient(y, raw)

    tune(losses_without_progress=2)
    with Processes(2, nanny=True, environment={"DEADLY": "yes"}) as processes:
        with pytest.raises(dboost.DBoostError, match=r"workers were lost 2 times .*tcp://127.* in 'map_rows'"):
            table = dd.from_pandas(a_table(4000)[["b", "c", "y"]], npartitions=6)
            dboost.fit(table, "y", loss=Deadly(), client=processes.client, **OPTIONS)
        until(lambda: not any(processes.client.run(held_fits).values()))


@pytest.mark.slow
def test_a_table_that_never_has_more_partitions_ready_is_given_up(cluster: Processes, tune: Tune) -> None:
    tune(losses_without_progress=3)
    message = "workers were lost 3 times since more partitions of the training data than before were ready"
    faults = [Fault("given up", "scan_partitions", k) for k in range(12)]
    with Faults(cluster, faults), pytest.raises(dboost.DBoostError, match=message):
        dboost.fit(lazily(), "z", client=cluster.client, **OPTIONS)


@pytest.mark.parametrize("what", [pytest.param("rows", marks=pytest.mark.slow), "values"])
def test_a_source_that_gives_other_rows_the_second_time_is_refused(cluster: Processes, what: str, tmp_path: Path) -> None:
    def unstable(frame: pd.DataFrame, partition_info: Any = None) -> pd.DataFrame:
        number = (partition_info or {"number": -1})["number"]
        read = tmp_path / f"{number}-{time.time_ns()}"
        n_before = len(list(tmp_path.glob(f"{number}-*")))
        read.touch()
        if not n_before:
            return frame
        return frame.iloc[:-1] if what == "rows" else frame.assign(b=frame["b"].to_numpy()[::-1])

    lazy = dd.from_pandas(FRAME, npartitions=6)
    table = lazy.map_partitions(unstable, meta=lazy._meta)
    kill = at(5, lambda: os.kill(next(iter(cluster.pids().values())), signal.SIGKILL))
    difference = "rows where it had" if what == "rows" else "other values"
    with pytest.raises(dboost.DataError, match=rf"partition \d of the training data was read again .*{difference}"):
        dboost.fit(table, "z", client=cluster.client, callbacks=kill, **OPTIONS)


@pytest.mark.slow
def test_workers_that_are_all_paused_are_named() -> None:
    def pause(dask_worker: Any = None) -> None:
        dask_worker.status = Status.paused

    environment = {"DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE": "False"}
    impatient = {"dboost.patience": "1s", "dboost.worker-timeout": "3s"}
    with Processes(2, environment=environment) as processes, dask.config.set(impatient):
        processes.client.run(pause)
        with pytest.raises(dboost.DBoostError, match=r"all workers have been paused .*tcp://127.* uses .* of "):
            dboost.fit(lazily(), "z", client=processes.client, **OPTIONS)


@pytest.mark.slow
@pytest.mark.parametrize("others", ["may read", "may not read", "cannot take over tasks"])
def test_tasks_of_a_worker_that_stays_paused_go_to_others(expected: str, others: str) -> None:
    """Dask leaves the tasks in the queue of a paused worker there, and steals none of them, even if others are idle."""

    def pause(dask_worker: Any = None) -> None:
        dask_worker.status = Status.paused

    def slow(frame: pd.DataFrame) -> pd.DataFrame:
        time.sleep(0.2)
        return frame

    impatient = {"dboost.patience": "1s", "dboost.worker-timeout": "3s", "dboost.single-worker-values": 0}
    environment = {
        "DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE": "False",
        "DASK_DISTRIBUTED__SCHEDULER__WORK_STEALING": str(others != "cannot take over tasks"),
    }
    lazy = dd.from_pandas(FRAME, npartitions=12)
    table = lazy.map_partitions(slow, meta=lazy._meta)
    with Processes(2, environment=environment) as processes, dask.config.set(impatient), ThreadPoolExecutor() as pool:
        victim = min(processes.addresses())
        workers = [victim] if others == "may not read" else None
        fit = pool.submit(dboost.fit, table, "z", client=processes.client, workers=workers, **OPTIONS)
        until(lambda: len(processes.client.processing()[victim]) > 1)
        processes.client.run(pause, workers=[victim])
        if others == "may read":
            assert fit.result(60).sha256 == expected
            return
        with pytest.raises(dboost.DBoostError, match=rf"the workers that may .* paused .*{victim} uses .* of "):
            fit.result(60)


def test_a_worker_above_its_share_of_memory_has_a_limit_all_the_same() -> None:
    def spare(used: int) -> Any:
        memory = SimpleNamespace(memory_limit=1600, memory_target_fraction=0.6, memory_spill_fraction=0.7)
        return worker_plugin._spare(
            SimpleNamespace(memory_manager=memory, monitor=SimpleNamespace(get_process_memory=lambda: used))
        )

    assert spare(160).limit == 800
    assert spare(2000).limit == spare(960).limit == 100


@pytest.mark.slow
def test_a_worker_of_no_concern_is_not_removed(cluster: Processes, connection: Callable[[], Connection]) -> None:
    """The worker does not respond because another client's task blocks it; it holds no rows of the fit."""
    left: list[set[str]] = []

    def look() -> None:
        idle = next(address for address, n in cluster.client.run(held_rows).items() if not n)
        pid = cluster.pids()[idle]
        os.kill(pid, signal.SIGSTOP)
        connection().remove_unresponsive()
        left.append(cluster.addresses())
        os.kill(pid, signal.SIGCONT)

    before = cluster.addresses()
    with impatient(cluster.client):
        dboost.fit(lazily(1), "z", client=cluster.client, callbacks=at(3, look), **OPTIONS)
    assert left == [before]


def test_a_scheduler_of_another_version_keeps_nothing(cluster: Processes) -> None:
    def change(version: str, dask_scheduler: Any = None) -> str:
        from dboost.cluster.scheduler import reducer

        before, reducer.__version__ = reducer.__version__, version
        return before

    version = cluster.client.run_on_scheduler(change, "0.0.1")
    try:
        with pytest.raises(dboost.DBoostError, match=r"has dboost 0\.0\.1"):
            dboost.fit(lazily(), "z", client=cluster.client, **OPTIONS)
        assert cluster.client.run_on_scheduler(scheduler_plugin)["fits"] == 0
    finally:
        cluster.client.run_on_scheduler(change, version)


@pytest.mark.slow
def test_a_stopped_worker_does_not_hold_up_the_first_fit(expected: str) -> None:
    with Processes(2, environment={"DASK_DBOOST__PATIENCE": "3s"}) as processes:
        pid = next(iter(processes.pids().values()))
        os.kill(pid, signal.SIGSTOP)
        assert dboost.fit(lazily(), "z", client=processes.client, **OPTIONS).sha256 == expected
