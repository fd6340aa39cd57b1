"""What two rounds under way at the same time save on a cluster, and what a cluster costs beside one process.

    python -m benchmarks.overlap [--rows 1000000 100000] [--iterations 200] [--workers 2] [--kind binary|classes] [--link 1gbit]

The iterations of one fit have one round and two rounds under way in turns (`cluster_backend.rounds_in_flight`), so both see
the same load of the machine; trees do not depend on it. For each number of rounds: the median of the iterations' milliseconds,
the first decile (which other programs hardly disturb), the median of the ratios to the neighbouring iteration with one round,
the idle share of the workers (1 - computing / iteration), the processor time of all processes, and the ratio to an iteration in
one process with as many threads as there are workers.

Workers have one thread each. Without ``--link`` they share the processors with the scheduler, where dboost never uses two
rounds. With it each process has a network namespace of its own, as on hosts of their own, but still shares the processors.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import time
from collections.abc import Sequence
from functools import cache
from typing import Any
from unittest.mock import patch

import dask
import numpy as np
from rich.console import Console
from rich.table import Table

import dboost
from benchmarks import workloads
from benchmarks.cluster import cluster, fit_dboost, frame_of
from benchmarks.workloads import Workload
from dboost.cluster.training import cluster_backend

#: Iterations at the start that do not count.
N_SKIPPED = 4


def processor_ms(pids: Sequence[int]) -> float:
    """Return the milliseconds of processor time of all threads of some processes, also of those that have ended."""
    return 1000 * sum(map(time.clock_gettime, map(_processor_clock, pids)))


@cache
def _processor_clock(pid: int) -> int:
    clock = ctypes.c_int()
    error = ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock))
    if error:
        raise OSError(error, os.strerror(error))
    return clock.value


def measure(workload: Workload, n_workers: int, link: str | None) -> dict[int, dict[str, float]]:
    """Return the results by the number of rounds under way."""
    marks: list[float] = []
    keys = {"dboost.single-worker-values": 0, "dboost.session-per-host": False}
    with cluster(n_workers, link) as client, dask.config.set(keys):
        frame = frame_of(client, workload, 2 * n_workers)
        fit_dboost(client, frame, 2, {})
        pids = [os.getpid(), client.run_on_scheduler(os.getpid), *client.run(os.getpid).values()]

        def look(now: dboost.Iteration) -> None:
            marks.append(processor_ms(pids))

        with patch.object(cluster_backend, "rounds_in_flight", lambda connection, workers: 1 + len(marks) % 2):
            booster = fit_dboost(client, frame, workload.trees, {"callbacks": [look]})
    table = workloads.load(workload)
    options: dict[str, Any] = {"max_iter": workload.trees, "loss": "log_loss", "progress": False, "n_threads": n_workers}
    alone = 1000 * dboost.fit(table.X, table.y, **options).history["seconds"].iloc[N_SKIPPED:].median()
    history = booster.history
    n = (len(history) - N_SKIPPED) // 2 * 2
    kept = slice(N_SKIPPED, N_SKIPPED + n)  # the first of them has one round under way
    seconds, computing = (1000 * history[name].to_numpy()[kept] for name in ("seconds", "seconds_compute"))
    used = np.diff(marks, prepend=np.nan)[kept]
    found = {}
    for k in (0, 1):
        of_kind = seconds[k::2]
        found[k + 1] = {
            "iteration ms": float(np.median(of_kind)),
            "first decile ms": float(np.quantile(of_kind, 0.1)),
            "÷ one round": float(np.median(of_kind / seconds[::2])),
            "idle share": float(np.median(1 - computing[k::2] / of_kind)),
            "processor ms": float(np.median(used[k::2])),
            "÷ one process": float(np.median(of_kind)) / alone,
        }
    return found


def main(argv: Sequence[str] | None = None) -> dict[int, dict[int, dict[str, float]]]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overlap", description="Compare rounds in flight on a cluster.")
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 100_000])
    parser.add_argument("--features", type=int, default=28)
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kind", choices=["binary", *workloads.CUTS], default="binary", help="of the target")
    parser.add_argument("--link", metavar="1gbit", help="rate of the link of each process; default: the loopback device")
    parser.add_argument("--quick", action="store_true", help="a tiny table, to see that everything runs")
    options = parser.parse_args(argv)
    if options.quick:
        options.rows, options.features, options.iterations = [3000], 12, 10
    found = {}
    for n_rows in options.rows:
        workload = Workload("overlap", n_rows, options.features, options.kind, options.iterations)
        found[n_rows] = measure(workload, options.workers, options.link)
        table = Table(title=f"{n_rows:,} × {options.features} {options.kind}, {options.workers} workers of one thread")
        for column in ("rounds under way", *found[n_rows][1]):
            table.add_column(column, justify="right")
        for n_rounds, values in found[n_rows].items():
            table.add_row(str(n_rounds), *(f"{value:.2f}" for value in values.values()))
        Console(width=130).print(table)
    return found


if __name__ == "__main__":
    main()
