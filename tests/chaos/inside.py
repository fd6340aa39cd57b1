"""Code in the processes of the cluster (``--preload tests.chaos.inside``): signals from outside, and queries.

    SIGUSR1     print the stacks of all threads and of all tasks of the event loop
    SIGRTMIN+1  pause a worker as if its memory were nearly full
    SIGRTMIN+2  resume it

A worker writes ``ready-<pid>`` into the folder ``CHAOS_READY`` once it handles them: before, they would end it.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

PAUSE, RESUME = (signal.SIGRTMIN + 1, signal.SIGRTMIN + 2) if sys.platform == "linux" else (signal.SIGUSR2, signal.SIGWINCH)


def dask_setup(server: Any) -> None:
    """Called by Dask in the process of the scheduler and of every worker, before they connect to others."""
    import_all()
    signal.signal(signal.SIGUSR1, print_stacks)
    if hasattr(server, "memory_manager"):
        fraction = server.memory_manager.memory_pause_fraction
        signal.signal(PAUSE, lambda *_: _pause(server, 1e-9))
        signal.signal(RESUME, lambda *_: _pause(server, fraction))
        if os.environ.get("CHAOS_STREAM"):
            stream()
    else:
        _end_with(os.getppid())
    (Path(os.environ["CHAOS_READY"]) / f"ready-{os.getpid()}").touch()


def import_all() -> None:
    """On a busy machine an import takes seconds in which the event loop does not run, which these tests do not examine."""
    for name in (
        "dask.dataframe",
        "pyarrow.parquet",
        "dboost.distributed.worker_plugin",
        "dboost.distributed.reducer",
        "tests.chaos.fits",
    ):
        import_module(name)


def print_stacks(*_: Any) -> None:
    """Print the stacks of all threads, and of the tasks of the event loop."""
    print(f"=== stacks of process {os.getpid()} at {time.time():.3f}", file=sys.stderr)
    faulthandler.dump_traceback(sys.stderr)
    try:
        for task in asyncio.all_tasks():
            task.print_stack(limit=6, file=sys.stderr)
    except RuntimeError:  # no loop runs here
        pass
    print("=== end of stacks", file=sys.stderr, flush=True)


def _pause(worker: Any, fraction: Any) -> None:
    """With a tiny fraction any memory is too much."""
    from distributed.core import Status

    worker.memory_manager.memory_pause_fraction = fraction
    if not worker.memory_manager.memory_limit:  # then Dask does not watch its memory
        status = Status.paused if fraction and fraction < 1e-6 else Status.running
        worker.loop.add_callback(lambda: setattr(worker, "status", status))


def stream() -> None:
    """No memory limit is large enough for rows in memory: all are in files."""
    from dboost.session.memory import Budget
    from dboost.shards import shard_spec
    from tests.chaos.fits import BLOCK_ROWS

    Budget.holds_rows = lambda *_: False  # type: ignore[method-assign, assignment]
    Budget.retained = 0  # type: ignore[method-assign, assignment]
    shard_spec.BLOCK_ROWS = BLOCK_ROWS


def _end_with(parent: int) -> None:
    """End this process when its parent is gone; workers and clients end with the scheduler."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


# Queries, for `Client.run` and `Client.run_on_scheduler`.


def held(dask_worker: Any = None) -> dict[str, Any]:
    """Return what a worker holds of fits, by fit."""
    plugin = dask_worker.plugins.get("dboost")
    if plugin is None:
        return {}
    return {fit: sorted(map(str, holding._batches)) for fit, holding in plugin._sessions.items()}


def known(dask_scheduler: Any = None) -> dict[str, Any]:
    """Return what the scheduler knows of fits: those of the reducer, and tasks that read for them."""
    plugin = dask_scheduler.plugins.get("dboost")
    fits = [] if plugin is None else list(plugin._fits)
    tasks = [str(key) for key in dask_scheduler.tasks if str(key).startswith("dboost-")]
    return {"fits": fits, "tasks": tasks}
