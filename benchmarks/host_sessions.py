"""What one session for each host saves (`dboost.session-per-host`), beside one process.

    python -m benchmarks.host_sessions [--rows 1000000 100000] [--iterations 60] [--workers 2] [--rounds 3]

In every round the same persisted table is trained on in one process with as many threads as there are workers, on the workers
with a session each, and on the workers with one session for their host. Medians over the rounds of: the seconds of the whole
fit, those before the first iteration, the median and the shortest iteration, the mean processor time of an iteration in all
processes; and their ratios to one process within the same round. Linux adds up processor time at its clock's ticks of some
milliseconds, so iterations of tiny tables may have none, and no ratio.

All tables are divided among the workers (`dboost.single-worker-values: 0`), which have one thread each.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import dask
import numpy as np
from rich.console import Console
from rich.table import Table

import dboost
from benchmarks import workloads
from benchmarks.cluster import cluster, fit_dboost, frame_of
from benchmarks.overlap import processor_ms
from benchmarks.workloads import Workload

#: Iterations at the start that do not count.
N_SKIPPED = 4
WAYS = ("one process", "a session each", "one session")
MEASURES = ("whole s", "before s", "iteration ms", "shortest ms", "processor ms")


def measure(workload: Workload, n_workers: int, n_rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the measures of every round by way."""
    table = workloads.load(workload)
    found: dict[str, dict[str, list[float]]] = {way: {name: [] for name in MEASURES} for way in WAYS}
    with cluster(n_workers) as client:
        frame = frame_of(client, workload, 2 * n_workers)
        pids = [os.getpid(), client.run_on_scheduler(os.getpid), *client.run(os.getpid).values()]

        def train(way: str, trees: int, callbacks: list[Callable[[Any], None]]) -> Any:
            options: dict[str, Any] = {"callbacks": callbacks}
            if way == "one process":
                options |= {"max_iter": trees, "loss": "log_loss", "progress": False, "n_threads": n_workers}
                return dboost.fit(table.X, table.y, **options)
            keys = {"dboost.session-per-host": way == "one session", "dboost.single-worker-values": 0}
            with dask.config.set(keys):
                return fit_dboost(client, frame, trees, options)

        for way in WAYS:
            train(way, 2, [])
        for k in range(n_rounds):
            for way in WAYS if k % 2 == 0 else reversed(WAYS):
                marks: list[float] = []
                began = time.perf_counter()
                booster = train(way, workload.trees, [lambda now, marks=marks: marks.append(processor_ms(pids))])
                whole = time.perf_counter() - began
                seconds = booster.history["seconds"].to_numpy()
                kept = 1000 * seconds[N_SKIPPED:]
                used = float(np.diff(marks)[N_SKIPPED:].mean())
                values = (whole, whole - seconds.sum(), float(np.median(kept)), float(kept.min()), used)
                for name, value in zip(MEASURES, values, strict=True):
                    found[way][name].append(value)
    return found


def ratio(pairs: Iterable[tuple[float, float]]) -> str:
    """Return the median ratio of the pairs whose second number is above zero."""
    ratios = [a / b for a, b in pairs if b > 0]
    return f"{statistics.median(ratios):.2f}×" if ratios else "–"


def main(argv: Sequence[str] | None = None) -> dict[int, dict[str, dict[str, list[float]]]]:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.host_sessions", description="Compare sessions of workers on one host."
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 100_000])
    parser.add_argument("--features", type=int, default=28)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kind", choices=["binary", *workloads.CUTS], default="binary", help="of the target")
    parser.add_argument("--quick", action="store_true", help="a tiny table, to see that everything runs")
    options = parser.parse_args(argv)
    if options.quick:
        options.rows, options.features, options.iterations, options.rounds = [3000], 12, 10, 1
    found = {}
    for n_rows in options.rows:
        workload = Workload("host sessions", n_rows, options.features, options.kind, options.iterations)
        found[n_rows] = measure(workload, options.workers, options.rounds)
        title = f"{n_rows:,} × {options.features} {options.kind}, {options.iterations} iterations, {options.workers} workers"
        table = Table(title=title)
        for column in ("", *MEASURES):
            table.add_column(column, justify="right" if column else "left")
        alone = found[n_rows]["one process"]
        for way, measures in found[n_rows].items():
            table.add_row(way, *(f"{statistics.median(values):.2f}" for values in measures.values()))
            pairs = {name: zip(values, alone[name], strict=True) for name, values in measures.items()}
            if way != "one process":
                table.add_row("÷ one process", *(ratio(of) for of in pairs.values()))
        Console(width=110).print(table)
    return found


if __name__ == "__main__":
    main()
