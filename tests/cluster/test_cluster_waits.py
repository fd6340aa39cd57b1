"""Waits that end: fits in tasks, tasks that no worker may run, closed clients, workers that cannot store rows, odd errors."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster
from distributed.diskutils import WorkSpace

import dboost
from dboost.errors import DBoostError, FitInterrupted
from dboost.files import spool
from tests.helpers.clusters import Processes, after, at, held_fits, scheduler_plugin, threads_cluster, until
from tests.helpers.on_workers import Failing, slow, table


@pytest.fixture(scope="module")
def one() -> Iterator[Processes]:
    with Processes(1) as processes:
        yield processes


@pytest.mark.slow
def test_data_on_workers_that_have_gone() -> None:
    frame = dd.from_pandas(table(), npartitions=3)
    with Processes(2) as processes, dask.config.set({"dboost.worker-timeout": "3s", "dboost.patience": "1s"}):
        client = processes.client
        victim, *_ = processes.pids()
        kept = client.persist(frame, workers=[victim], allow_other_workers=False)
        data = dboost.prepare(frame, "y", client=client, workers=[victim])
        assert dboost.fit(data, max_iter=2).sha256 == dboost.fit(table(), "y", max_iter=2).sha256
        os.kill(processes.pids()[victim], signal.SIGKILL)
        until(lambda: victim not in processes.addresses())
        with pytest.raises(DBoostError, match=f"no worker may run 3 of the tasks .* restricted to {victim}"):
            dboost.fit(kept, "y", max_iter=2, client=client)
        with pytest.raises(DBoostError, match=victim):
            dboost.fit(data, max_iter=2)


@pytest.mark.parametrize("use", ["fit", "prepare"])
def test_a_client_that_is_closed_while_partitions_are_read(use: str) -> None:
    parts = [dask.delayed(slow)(20.0, table()) for _ in range(3)]
    frame = dd.from_delayed(parts, meta=table(0))
    with Processes(1) as processes:
        closing = threading.Timer(1.0, processes.client.close)
        closing.start()
        with pytest.raises(DBoostError, match=f"the client of {processes.address} is closed"):
            dboost.fit(frame, "y", client=processes.client) if use == "fit" else dboost.prepare(
                frame, "y", client=processes.client
            )
        closing.join()


def a_cluster() -> LocalCluster:
    return LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None)


@pytest.mark.parametrize("closed", ["client", "cluster"])
def test_clients_that_are_closed_before_or_during_a_call(closed: str, tmp_path: Path) -> None:
    rows, how = table(), {"max_iter": 2}
    rows.to_parquet(tmp_path / "rows.parquet")
    frame, booster = dd.from_pandas(rows, npartitions=3), dboost.fit(rows, "y", max_iter=2)
    with a_cluster() as cluster, Client(cluster, set_as_default=False) as client:
        data, other = (dboost.prepare(frame, "y", client=client, publish=name) for name in (None, "other"))
        message = f"the {'client of' if closed == 'client' else 'cluster at'} {cluster.scheduler_address} is closed"

        def close() -> None:
            client.close() if closed == "client" else cluster.close()

        with pytest.raises(DBoostError, match=message):
            dboost.fit(frame, "y", max_iter=5, client=client, callbacks=[at(2, close)])

        def with_the_current_client() -> None:
            with client.as_current():
                dboost.fit(frame, "y", **how)

        calls: list[Callable[[], Any]] = [
            lambda: dboost.fit(frame, "y", client=client, **how),
            lambda: dboost.fit(rows, "y", client=client, **how),
            lambda: dboost.fit(tmp_path / "rows.parquet", "y", client=client, **how),
            lambda: dboost.fit(data, **how),
            lambda: dboost.cv(data, folds=3, **how),
            lambda: dboost.cv(frame, "y", folds=3, client=client, **how),
            lambda: dboost.DBoostRegressor(client=client, **how).fit(frame[["a", "b"]], frame["y"]),
            lambda: dboost.prepare(rows, "y", client=client),
            lambda: dboost.Dataset.published("other", client),
            lambda: booster.refit_leaves(frame, "y", client=client),
            other.unpublish,
            with_the_current_client,
        ]
        for call in calls:
            with pytest.raises(DBoostError, match=message):
                call()


def in_a_fork(calls: list[Callable[[], Any]]) -> list[str]:
    """Make calls in a forked process; return their errors as text."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(120)
        try:
            said = []
            for call in calls:
                try:
                    call()
                    said.append("")
                except BaseException as error:
                    said.append(f"{type(error).__name__}: {error}")
            os.write(write, json.dumps(said).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        found = pipe.read()
    os.waitpid(pid, 0)
    return list(json.loads(found or '["no answer"]'))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("shared_loop", [False, True])
def test_a_client_in_a_forked_process(shared_loop: bool, tmp_path: Path) -> None:
    """No thread runs its event loop there, so every call would wait for ever."""
    rows = table()
    rows.to_parquet(tmp_path / "rows.parquet")
    frame, booster = dd.from_pandas(rows, npartitions=3), dboost.fit(rows, "y", max_iter=2)
    with a_cluster() as cluster, Client(cluster if shared_loop else cluster.scheduler_address) as client:
        calls: list[Callable[[], Any]] = [
            lambda: dboost.fit(frame, "y", client=client, max_iter=2),
            lambda: dboost.fit(tmp_path / "rows.parquet", "y", max_iter=2),  # on the current client
            lambda: dboost.prepare(rows, "y", client=client),
            lambda: dboost.cv(frame, "y", folds=3, max_iter=2),
            lambda: booster.calibrate(frame, "y"),
            lambda: booster.drift(frame),
            lambda: booster.partial_dependence(frame, "a"),
        ]
        for error in in_a_fork(calls):
            assert error.startswith(f"ClientLost: the client of {cluster.scheduler_address} cannot be used in this process")
        assert dboost.fit(frame, "y", max_iter=2) == booster  # the other process goes on


def test_a_client_that_is_closed_in_a_cross_validation() -> None:
    with (
        a_cluster() as cluster,
        Client(cluster, set_as_default=False) as client,
        pytest.raises(DBoostError, match=f"the cluster at {cluster.scheduler_address} is closed"),
    ):
        dboost.cv(table(), "y", folds=3, max_iter=5, client=client, callbacks=[at(2, cluster.close)])


def test_data_that_a_cluster_does_not_hold_any_more(tmp_path: Path) -> None:
    rows, how = table(), {"max_iter": 2}
    frame = dd.from_pandas(rows, npartitions=3)
    booster = dboost.fit(rows, "y", **how)
    with a_cluster() as cluster, Client(cluster, set_as_default=False) as client, threads_cluster(1, 1) as another:
        kept = client.persist(frame)
        array, target = client.persist(da.from_array(rows[["a", "b"]].to_numpy(), (50, 2))), client.persist(frame["y"])
        assert dboost.fit(kept, "y", client=client, **how).sha256 == booster.sha256
        with pytest.raises(DBoostError, match=f"the cluster at {another.scheduler.address} does not have the data"):
            dboost.fit(kept, "y", client=another, **how)
        files = dboost.prepare(frame, "y", tmp_path / "rows", client=client)
        data = dboost.prepare(frame, "y", client=client)
    calls: list[Callable[[], Any]] = [
        lambda: dboost.fit(kept, "y", **how),
        lambda: dboost.fit(array, rows["y"].to_numpy(), **how),
        lambda: dboost.fit(frame[["a", "b"]], target, **how),
        lambda: dboost.fit(rows, "y", eval_set=kept, **how),
        lambda: booster.predict(kept),
        lambda: booster.partial_dependence(kept, ["a"]),
    ]
    for call in calls:
        with pytest.raises(DBoostError, match="the data were persisted on a cluster that does not hold them any more"):
            call()
    assert dboost.fit(files, **how).sha256 == booster.sha256  # the files are there
    with pytest.raises(DBoostError, match=r"is closed"):
        dboost.fit(data, **how)


def test_the_files_of_a_fit_are_removed_before_the_directory_of_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    left, remove, purge = [], spool._remove_files, WorkSpace._purge_directory

    def slowly(folder: Path) -> None:
        time.sleep(0.5)  # a disk may be slow
        remove(folder)

    def purging(workspace: Any, folder: str) -> None:
        left.extend(Path(folder).glob("dboost-*"))
        purge(workspace, folder)

    monkeypatch.setattr(spool, "_remove_files", slowly)
    monkeypatch.setattr(WorkSpace, "_purge_directory", purging)
    rows = pd.concat([table(4000)] * 4)
    with dask.config.set({"dboost.single-worker-values": 0}), a_cluster() as cluster, Client(cluster) as client:
        frame = dd.from_pandas(rows, npartitions=4)
        history = dboost.fit(frame, "y", max_iter=2, max_leaf_nodes=4, memory_limit="500KiB", client=client).history
        assert history["bytes_read"].sum() > 0
    assert left == []


@pytest.mark.filterwarnings("error:Sending large graph")
def test_large_tables_in_memory_are_sent_without_a_warning_of_dask() -> None:
    rows, how = table(), {"max_iter": 2}
    features = rows[list("abcd")]
    small = dask.config.set({"distributed.admin.large-graph-warning-threshold": 1_000})
    with small, a_cluster() as cluster, Client(cluster, set_as_default=False) as client:
        boosters = [
            dboost.fit(rows, "y", client=client, **how),
            dboost.fit(features.to_numpy(), rows["y"].to_numpy(), client=client, **how),
            dboost.DBoostRegressor(client=client, **how).fit(features, rows["y"]).booster_,
            dboost.fit(dboost.prepare(rows, "y", client=client), **how),
            dboost.fit(dd.from_pandas(rows, npartitions=2), "y", client=client, **how),
        ]
        dboost.cv(rows, "y", folds=2, client=client, **how)
        boosters[0].refit_leaves(rows, "y", client=client)
        with client.as_current():
            boosters[0].partial_dependence(dd.from_pandas(rows, npartitions=2), ["a"])
        assert dask.config.get("distributed.admin.large-graph-warning-threshold") == 1_000
    for booster in boosters:
        np.testing.assert_array_equal(booster.predict(features), boosters[0].predict(features))


@pytest.mark.slow
def test_data_lost_by_a_restart(tmp_path: Path) -> None:
    frame = dd.from_pandas(table(), npartitions=3)
    with Processes(1, nanny=True) as processes:
        client = processes.client
        kept = client.persist(frame)
        data = dboost.prepare(frame, "y", client=client)
        files = dboost.prepare(frame, "y", tmp_path / "rows", client=client)
        booster = dboost.fit(kept, "y", max_iter=2, client=client)
        client.restart()
        with pytest.raises(DBoostError, match="persist them again"):
            dboost.fit(kept, "y", max_iter=2, client=client)
        with pytest.raises(DBoostError, match="prepare the data set, again"):
            dboost.fit(data, max_iter=2)
        assert dboost.fit(files, max_iter=2, client=client).sha256 == booster.sha256
        restarting = [at(3, client.restart)]
        assert dboost.fit(frame, "y", max_iter=5, client=client, callbacks=restarting).n_iter_ == 5


@pytest.mark.slow
def test_a_scheduler_that_is_stopped() -> None:
    frame, waits = dd.from_pandas(table(), npartitions=3), "the scheduler at tcp://.* has not answered for 2 s"
    expected = dboost.fit(table(), "y", max_iter=5).sha256
    with Processes(1) as processes:
        client, scheduler = processes.client, processes.scheduler
        dboost.fit(frame, "y", max_iter=1, client=client)

        def stop() -> None:
            os.kill(scheduler.pid, signal.SIGSTOP)
            after(3, lambda: os.kill(scheduler.pid, signal.SIGCONT))

        def stop_and(end: Callable[[], Any]) -> Callable[[], None]:
            def stopping() -> None:
                os.kill(scheduler.pid, signal.SIGSTOP)
                after(2.6, end)

            return stopping

        with dask.config.set({"dboost.patience": "1s"}):
            with pytest.warns(UserWarning, match=waits):
                found = dboost.fit(frame, "y", max_iter=5, client=client, callbacks=[at(2, stop)])
            assert found.sha256 == expected
            stop()
            with pytest.warns(UserWarning, match=waits):
                assert dboost.fit(frame, "y", max_iter=5, client=client).sha256 == expected
            interrupt = stop_and(lambda: os.kill(os.getpid(), signal.SIGINT))
            with pytest.warns(UserWarning, match=waits), pytest.raises(FitInterrupted):
                dboost.fit(frame, "y", max_iter=5, client=client, callbacks=[at(2, interrupt)])
            os.kill(scheduler.pid, signal.SIGCONT)
            until(lambda: client.run_on_scheduler(scheduler_plugin) == {"fits": 0})
            until(lambda: set(client.run(held_fits).values()) == {0})
            close = stop_and(lambda: client.close(timeout=1))
            with pytest.warns(UserWarning, match=waits), pytest.raises(DBoostError, match=r"the client of .* is closed"):
                dboost.fit(frame, "y", max_iter=5, client=client, callbacks=[at(2, close)])


@pytest.mark.slow
def test_a_scheduler_that_is_killed() -> None:
    frame = dd.from_pandas(table(), npartitions=3)
    # By default Dask tries to connect for half a minute.
    impatient = {"dboost.patience": "2s", "distributed.comm.timeouts.connect": "3s"}
    with dask.config.set(impatient), Processes(1) as processes:
        message = f"the connection to the scheduler at {processes.address} was lost|the client of {processes.address} is closed"
        with pytest.raises(DBoostError, match=message):
            killing = [at(2, processes.scheduler.kill)]
            dboost.fit(frame, "y", max_iter=50, client=processes.client, callbacks=killing)
        with pytest.raises(DBoostError, match=message):
            dboost.fit(frame, "y", max_iter=2, client=processes.client)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["calibrate", "drift", "plot_shap_summary"])
def test_functions_of_rows_whose_scheduler_is_killed(name: str) -> None:
    def slowly(rows: pd.DataFrame) -> pd.DataFrame:
        time.sleep(0.5)
        return rows

    model = dboost.fit(table(), "y", max_iter=2)
    frame = dd.from_pandas(table(), npartitions=6).map_partitions(slowly, meta=table()[:0])
    calls: dict[str, Any] = {
        "calibrate": lambda: model.calibrate(frame, "y"),
        "drift": lambda: model.drift(frame, "y"),
        "plot_shap_summary": lambda: model.plot_shap_summary(frame),
    }
    impatient = {"dboost.patience": "2s", "distributed.comm.timeouts.connect": "3s"}
    with dask.config.set(impatient), Processes(1) as processes:
        killing = threading.Timer(1, processes.scheduler.kill)
        killing.start()
        with (
            processes.client.as_current(),
            dask.config.set(scheduler="distributed"),
            pytest.raises(DBoostError, match=rf"{processes.address} (was lost|is closed)"),
        ):
            calls[name]()
        killing.join()


@pytest.mark.fast_cells(1)
@pytest.mark.parametrize(("error", "told"), [("two arguments", "TwoArgumentsError: combined 1 2"), ("exit", "SystemExit: 3")])
def test_errors_that_cannot_be_raised_in_the_client(one: Processes, error: str, told: str) -> None:
    before = one.pids()
    with pytest.raises(DBoostError, match=f"worker tcp://.*{told}"):
        dboost.fit(dd.from_pandas(table(), npartitions=3), "y", loss=Failing(error), max_iter=2, client=one.client)
    assert one.pids() == before


@pytest.mark.slow
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
                until(lambda: len(processes.addresses()) == 3)

            frame = dd.from_pandas(rows, npartitions=8)
            slowly = [at(3, join), lambda now: time.sleep(0.3)]
            booster = dboost.fit(frame, "y", client=processes.client, callbacks=slowly, **how)
    finally:
        subprocess.run(["umount", "-l", str(full)], check=True)
    assert booster.sha256 == dboost.fit(rows, "y", max_iter=12).sha256
    assert re.search("workers that have joined get no rows: worker tcp://.*no room", caplog.text)
