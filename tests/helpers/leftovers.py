"""What a test may not leave: temporary files, threads and leases of dboost, and on clusters fits, sessions and keys.

The fixtures of `tests.conftest` ask it after each test and each module, `tests.helpers.clusters` before a cluster is closed.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `tests.conftest` imports this before it sets variables that Dask reads when it is imported
    from distributed import Client, Scheduler, Worker

#: Seconds in which what is about to end may end, on a busy machine, too; a test that leaves nothing waits for none of them.
_PATIENCE = 30.0
#: Threads that a worker keeps as long as it runs.
_OF_WORKERS = ("dboost-calls",)
#: The temporary folders that this process has made.
_FOLDERS: set[str] = set()


def watch_folders() -> None:
    """Note from now on which temporary folders of dboost this process makes."""
    make = tempfile.mkdtemp

    def making(*arguments: Any, **keywords: Any) -> str:
        path = make(*arguments, **keywords)
        if os.path.basename(path).startswith("dboost-"):
            _FOLDERS.add(path)
        return path

    tempfile.mkdtemp = making


def threads_of_workers() -> set[str]:
    """Return the threads that workers in this process keep."""
    return {f"thread {thread.name} {thread.ident}" for thread in threading.enumerate() if thread.name.startswith(_OF_WORKERS)}


def held_here() -> set[str]:
    """Return the temporary folders and the threads of fits in this process."""
    _FOLDERS.difference_update([path for path in _FOLDERS if not os.path.exists(path)])
    threads = {f"thread {thread.name} {thread.ident}" for thread in threading.enumerate() if thread.name.startswith("dboost")}
    return threads - threads_of_workers() | _FOLDERS


def leases(folder: Path | None) -> set[str]:
    """Return the leases of this process below a folder."""
    files = [] if folder is None else folder.rglob("*lease.json")
    return {str(file) for file in files if f'"process": {os.getpid()}' in file.read_text()}


def check_nothing_left(now: Callable[[], Set[str]], before: Set[str] = frozenset()) -> None:
    """Fail if something is held that was not held before, once what is about to end has ended."""
    deadline = time.monotonic() + _PATIENCE
    for attempt in itertools.count():
        held = now() - before
        if not held:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"this is left: {', '.join(sorted(held))}")
        # A caught error refers to what its functions had. It is young, and going through all objects takes up to a second.
        gc.collect(1 if attempt < 3 else 2)
        time.sleep(0.01 if attempt < 3 else 0.05)


def fits_of(dask_scheduler: Scheduler) -> list[str]:
    """Return the names of the fits that the scheduler knows."""
    plugin: Any = dask_scheduler.plugins.get("dboost")
    return [] if plugin is None else list(plugin._fits)


def sessions_of(dask_worker: Worker) -> list[Any]:
    """Return the sessions of a worker."""
    plugin: Any = dask_worker.plugins.get("dboost")
    return [] if plugin is None else list(plugin._sessions.values())


def _on_scheduler(dask_scheduler: Scheduler) -> set[str]:
    keys = {f"key {key}" for key in map(str, dask_scheduler.tasks) if "dboost-" in key}
    return keys | {f"fit {fit}" for fit in fits_of(dask_scheduler)}


def _on_worker(dask_worker: Worker) -> set[str]:
    return {f"session {number} on {dask_worker.address}" for number, _ in enumerate(sessions_of(dask_worker))}


def held_on(client: Client, *, workers: bool = True) -> set[str]:
    """Return the fits and keys that the scheduler holds, and the sessions of workers."""
    from dboost.cluster.training.cluster_dataset import ClusterRows

    sessions = client.run(_on_worker, on_error="ignore").values() if workers else ()
    held = client.run_on_scheduler(_on_scheduler).union(*sessions)
    keys = {name for name in held if name.startswith("key ")}
    # The test may still have a data set. `isinstance` would ask a proxy of an object that is gone for its class.
    if keys and any(issubclass(type(item), ClusterRows) and item.futures for item in gc.get_objects()):
        held -= keys
    return held


@contextlib.contextmanager
def nothing_left_on(client: Client) -> Iterator[None]:
    """Fail if fits of the block leave something on a cluster in this process."""
    yield
    if client.status == "running":
        check_nothing_left(lambda: held_on(client))
