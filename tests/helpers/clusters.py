"""Clusters for the tests: of threads in this process, and of processes that tests can kill."""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import os
import random
import resource
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster, Scheduler
from distributed.security import Security

from tests.helpers.leftovers import check_nothing_left, fits_of, held_on, nothing_left_on, sessions_of

ROOT = Path(__file__).parent.parent.parent
#: On a busy machine a worker that imports or compiles looks as if it were stopped. Tests that stop workers set a shorter
#: timeout once theirs have imported and compiled (`impatient`). PYTHONPATH lets workers import the tests' functions.
ENVIRONMENT = {"DASK_DBOOST__PATIENCE": "30s", "DASK_DBOOST__WORKER_TIMEOUT": "60s", "PYTHONPATH": str(ROOT)}


@contextlib.contextmanager
def threads_cluster(
    n_workers: int = 3, threads_per_worker: int = 2, *, protocol: str = "inproc", dashboard: str | None = ":0"
) -> Iterator[Client]:
    """A cluster with scheduler and workers in this process, which are connected by a protocol."""
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "10s"}),
        LocalCluster(
            n_workers=n_workers,
            threads_per_worker=threads_per_worker,
            processes=False,
            protocol=f"{protocol}://",
            security=Security.temporary() if protocol in ("tls", "wss") else None,
            dashboard_address=dashboard,
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
        nothing_left_on(client),
    ):
        yield client


def lines_cluster(n_workers: int = 3, protocol: str = "tcp") -> contextlib.AbstractContextManager[Client]:
    """A cluster whose workers have one thread each and call each other on lines."""
    return threads_cluster(n_workers, 1, protocol=protocol, dashboard=None)


#: The environment variable with the name of the host that a worker reports.
HOST = "TESTS_HOST"
#: Processes of clusters are forked from one that has imported what all of them need. It starts with the first of them.
_PROCESSES = multiprocessing.get_context("forkserver")
_PRELOADED = [
    "distributed.cli.dask_scheduler", "distributed.cli.dask_worker", "dask.dataframe", "dboost.cluster.worker.worker_plugin",
    "dboost.cluster.scheduler.reducer", "dboost.training.fit", "numba.np.arrayobj", "tests.helpers.clusters",
]  # fmt: skip
_PROCESSES.set_forkserver_preload(_PRELOADED)


def preload(*modules: str) -> None:
    """Have processes of clusters forked from one that has imported these modules, too; before the first of them starts."""
    _PROCESSES.set_forkserver_preload([*_PRELOADED, *modules])


def _become(command: str, arguments: tuple[str, ...], environment: dict[str, str]) -> None:
    """Run a command of Dask in this process, without output."""
    os.environ.clear()
    os.environ.update(environment)
    if HOST in environment:
        socket.gethostname = lambda: environment[HOST]
    dask.config.refresh()
    for output in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    sys.argv = [command, *arguments]
    runpy.run_module(f"distributed.cli.{command}", run_name="__main__", alter_sys=True)


class Processes:
    """A scheduler and workers, each a process that a test can kill. Use as a context manager.

    hosts : names of hosts on which the workers report to be, in turns; by default they are on the host of the scheduler.
    """

    def __init__(
        self, n_workers: int, *, nanny: bool = False, environment: dict[str, str] | None = None, hosts: Sequence[str] = ()
    ) -> None:
        self.nanny = nanny
        self._hosts = itertools.cycle(hosts) if hosts else None
        self._environment = os.environ | ENVIRONMENT | (environment or {})
        self._processes: list[Any] = []
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "scheduler.json"
            options = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file))
            self.scheduler = self._start("dask_scheduler", *options)
            until(lambda: file.exists() and file.read_text().endswith("}"))
            self.address: str = json.loads(file.read_text())["address"]
        for _ in range(n_workers):
            self.add_worker()
        self.client = Client(self.address, set_as_default=False)
        self.client.wait_for_workers(n_workers, timeout=60)

    def add_worker(self, *arguments: str) -> Any:
        """Start one more worker, and return its process. arguments : of `dask worker`."""
        nanny = [] if self.nanny else ["--no-nanny"]
        host = {} if self._hosts is None else {HOST: next(self._hosts)}
        return self._start("dask_worker", self.address, "--nthreads", "1", "--no-dashboard", *nanny, *arguments, **host)

    def sabotaged_worker(self, sabotage: str) -> subprocess.Popen[bytes]:
        """Start a worker that cannot take part in fits, see `SABOTAGE`; the caller ends it."""
        return self.worker_of(f"{SABOTAGE[sabotage]}; from distributed.cli.dask_worker import main; main()")

    def worker_of(self, code: str) -> subprocess.Popen[bytes]:
        """Start a worker by code in a new interpreter; the caller ends it."""
        command = [sys.executable, "-c", code, self.address, "--no-nanny", "--no-dashboard"]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def ensure_workers(self, n_workers: int) -> None:
        """Replace workers that a test has killed."""
        for _ in range(n_workers - len(self.addresses())):
            self.add_worker()
        self.client.wait_for_workers(n_workers, timeout=60)

    def any_pid(self) -> int:
        """Return the process id of a random worker."""
        return random.choice(list(self.pids().values()))

    def addresses(self) -> set[str]:
        """Return the addresses of the workers that the scheduler knows."""
        return set(self.client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.workers)))

    def pids(self) -> dict[str, int]:
        """Return the process ids of the workers by address."""
        return self.client.run(os.getpid)

    def _start(self, command: str, *arguments: str, **variables: str) -> Any:
        # A nanny has a child process, which a daemon may not have.
        daemon = not (self.nanny and command == "dask_worker")
        process = _PROCESSES.Process(target=_become, args=(command, arguments, self._environment | variables), daemon=daemon)
        process.start()
        self._processes.append(process)
        return process

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, kind: object = None, *_: object) -> None:
        try:
            if kind is None and self.scheduler.is_alive() and self.client.status == "running":
                check_nothing_left(lambda: held_on(self.client, workers=False))
        finally:
            self._end()

    def _end(self) -> None:
        with contextlib.suppress(Exception):
            pids = list(self.pids().values()) if self.nanny and self.scheduler.is_alive() else []
        self.client.close(timeout=2)
        for process in reversed(self._processes):
            process.kill()
            process.join()
        for pid in pids if self.nanny else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


#: Code that makes a worker unable to take part in a fit.
SABOTAGE = {
    "no dboost": "import sys; sys.modules['dboost'] = None",
    "another version": "import dboost.version; dboost.version.__version__ = '0.0.1'",
    "no library": "import sys; sys.modules['numba'] = None",
    "a failing plugin": (
        "import dboost.cluster.worker.worker_plugin as plugin; plugin.keep_freed_memory = lambda: open('/nowhere/at/all')"
    ),
}


@contextlib.contextmanager
def impatient(client: Client, patience: str = "1500ms") -> Iterator[None]:
    """Within the context, use a short liveness timeout: for tests that stop workers after all have imported and compiled."""

    def change(to: str) -> None:
        dask.config.set({"dboost.patience": to})

    client.run(change, patience)
    client.run_on_scheduler(change, patience)
    try:
        with dask.config.set({"dboost.patience": patience}):
            yield
    finally:
        client.run_on_scheduler(change, ENVIRONMENT["DASK_DBOOST__PATIENCE"])
        client.run(change, ENVIRONMENT["DASK_DBOOST__PATIENCE"], on_error="ignore")


def at(iterations: int | set[int], action: Callable[[], Any]) -> Callable[[Any], None]:
    """Return a callback of `dboost.fit` that performs an action once in each of these iterations."""
    left = {iterations} if isinstance(iterations, int) else set(iterations)

    def callback(now: Any) -> None:
        if now.iteration in left:
            left.remove(now.iteration)
            action()

    return callback


def until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait until a condition holds; the deadline only prevents an endless wait."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition does not hold after {seconds:.0f} seconds"
        time.sleep(0.02)


def wait_for_file(file: Path, partition: Any) -> None:
    """A task on a partition that ends when there is a file; it says with another file that it has begun."""
    file.with_suffix(".begun").touch()
    while not file.exists():
        time.sleep(0.05)


def after(seconds: float, action: Callable[[], Any]) -> threading.Thread:
    """Perform an action after a delay, in a thread."""

    def wait() -> None:
        time.sleep(seconds)
        action()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def a_table(n_rows: int, seed: int = 0) -> pd.DataFrame:
    """Numbers with gaps, text, a weight, and three targets: y (a number), z (a truth value), t (three classes)."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(n_rows, 4))
    values[rng.random(values.shape) < 0.05] = np.nan
    frame = pd.DataFrame(values, columns=["a", "b", "c", "d"])
    frame["e"] = rng.choice(list("abcdefgh"), n_rows)
    frame["w"] = rng.integers(0, 4, n_rows).astype(np.float64)
    score = (
        np.nan_to_num(values[:, 0]) * 2
        + np.sin(3 * np.nan_to_num(values[:, 1]))
        + (frame["e"] == "a")
        + rng.normal(size=n_rows)
    )
    frame["y"] = score
    frame["z"] = score > 0
    frame["t"] = np.where(score > 1, "high", np.where(score < -1, "low", "middle"))
    return frame


def last_events(client: Client, action: str) -> list[dict[str, Any]]:
    """Return the events of one kind of the last fit."""
    events = [event for _, event in client.get_events("dboost")]
    last = [event["fit"] for event in events if event["action"] == "began"][-1]
    return [event for event in events if event["action"] == action and event["fit"] == last]


def scheduler_plugin(dask_scheduler: Scheduler | None = None) -> dict[str, int]:
    """For `Client.run_on_scheduler`: the number of fits that the reducer knows."""
    assert dask_scheduler is not None
    return {"fits": len(fits_of(dask_scheduler))}


def held_fits(dask_worker: Any = None) -> int:
    """For `Client.run`: the number of fits that have a session on the worker."""
    return len(sessions_of(dask_worker))


def allow_no_failures(dask_scheduler: Any = None) -> None:
    """For `Client.run_on_scheduler`: a task whose worker dies is not retried."""
    dask_scheduler.allowed_failures = 0


def held_rows(dask_worker: Any = None) -> int:
    """For `Client.run`: the number of rows that a worker trains on, in all its fits."""
    return sum(holding.n_rows for holding in sessions_of(dask_worker))


def rows_in_files(dask_worker: Any = None) -> int:
    """For `Client.run`: the number of these rows that are in files."""
    return sum(holding.row_places(batch).in_files for holding in sessions_of(dask_worker) for batch in holding._built)


def forget_rows(dask_worker: Any = None) -> None:
    """For `Client.run`: have the sessions of a worker lose a row group."""
    for holding in sessions_of(dask_worker):
        holding.trained = holding.trained[:-1]


def session_names(dask_worker: Any = None) -> list[str]:
    """For `Client.run`: the names of a worker's sessions."""
    return [holding.id for holding in sessions_of(dask_worker)]


_HELD: list[Any] = []


def hold_files(n_files: int, n_left: int | None = None) -> None:
    """Open files and keep them open, in this process or for `Client.run`; the process may then open `n_left` more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    _HELD.extend(open(os.devnull) for _ in range(n_files))  # noqa: SIM115
    if n_left is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_HELD[-1].fileno() + 1 + n_left, hard))


@contextlib.contextmanager
def few_descriptors(n_left: int) -> Iterator[None]:
    """Within the context, this process may open `n_left` files."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    hold_files(3, n_left)
    try:
        yield
    finally:
        release_files()
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


def release_files() -> None:
    """Close the files of `hold_files`."""
    while _HELD:
        _HELD.pop().close()
