"""The time until the first iteration on a cluster, beside one process, and what the client receives until then.

    python -m benchmarks.loading [--rows 4000000] [--workers 2] [--rounds 3] [--forms array,frame,parquet] [--quick]

Scheduler and workers are processes with one thread each, and one process has as many threads as there are workers. Arrays and
frames are persisted, Parquet files are read by both. The two alternate. The table has the medians of the seconds before the
first iteration and the median ratio within a round; the processor seconds of all processes of the cluster until the end of the
first iteration, beside those of the one process; and the calls of the client, and the MiB that it received as their results.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client
from rich.console import Console
from rich.table import Table

import dboost
from benchmarks.real_workers import usage
from dboost.cluster.client.connection import Connection
from tests.helpers.clusters import Processes

OPTIONS: dict[str, Any] = {"max_iter": 2, "loss": "log_loss", "progress": False}
FORMS = ("array", "frame", "parquet")


def inputs(form: str, n_rows: int, n_parts: int, client: Client, folder: Path) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the data and the target of a fit on a cluster, and of one in this process."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_rows, 28), dtype=np.float32)
    y = (X[:, 0] * X[:, 1] + X[:, 2] + rng.standard_normal(n_rows) > 0).astype(np.int64)
    if form == "array":
        there = client.persist([da.from_array(X, chunks=(n_rows // n_parts, 28)), da.from_array(y, chunks=n_rows // n_parts)])
        client.compute([some.sum() for some in there], sync=True)
        return tuple(there), (X, y)
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(28)]).assign(y=y)
    if form == "frame":
        persisted = client.persist(dd.from_pandas(frame, npartitions=n_parts))
        client.compute(persisted["y"].sum(), sync=True)
        return (persisted, "y"), (frame, "y")
    for k in range(n_parts):
        frame[n_rows * k // n_parts : n_rows * (k + 1) // n_parts].to_parquet(folder / f"{k}.parquet")
    return (str(folder), "y"), (str(folder), "y")


def before_first(data: tuple[Any, ...], pids: Sequence[int], **options: Any) -> tuple[float, float]:
    """Return the seconds of a fit before its first iteration, and the processor seconds of processes until its end."""
    found: list[float] = []

    def look(now: dboost.Iteration) -> None:
        if now.iteration == 1:
            found.append(time.perf_counter() - began - float(now.record["seconds"]))
            found.append(sum(usage(pid).seconds for pid in pids) - used)

    used, began = sum(usage(pid).seconds for pid in pids), time.perf_counter()
    dboost.fit(*data, callbacks=[look], **options)
    return found[0], found[1]


def measure(form: str, n_rows: int, n_workers: int, rounds: int) -> dict[str, float]:
    """Return the columns of a row of the table."""
    replies: list[int] = []
    call = Connection._call

    def counting(self: Connection, operation: str, **arguments: Any) -> dict[str, Any]:
        reply = call(self, operation, **arguments)
        if operation != "dboost_grow":
            replies.append(sum(map(len, reply.get("results", ()))))
        return reply

    with (
        tempfile.TemporaryDirectory() as folder,
        Processes(n_workers, environment={"OMP_NUM_THREADS": "1"}) as cluster,
        patch.object(Connection, "_call", counting),
    ):
        client = cluster.client
        there, here = inputs(form, n_rows, 2 * n_workers, client, Path(folder))
        pids = [os.getpid(), client.run_on_scheduler(os.getpid), *cluster.pids().values()]
        pairs = []
        for _ in range(rounds + 1):  # the first one compiles
            replies.clear()
            pairs.append(
                (
                    before_first(there, pids, client=client, **OPTIONS),
                    before_first(here, pids[:1], n_threads=n_workers, **OPTIONS),
                )
            )
    pairs = pairs[1:]
    return {
        "cluster, s": statistics.median(one[0] for one, _ in pairs),
        "one process, s": statistics.median(one[0] for _, one in pairs),
        "ratio": statistics.median(one[0] / other[0] for one, other in pairs),
        "processors, s": statistics.median(one[1] for one, _ in pairs),
        "of one process, s": statistics.median(one[1] for _, one in pairs),
        "calls": len(replies),
        "MiB to the client": sum(replies) / 2**20,
    }


def main(argv: Sequence[str] | None = None) -> dict[str, dict[str, float]]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loading", description="The time until the first iteration.")
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--forms", default=",".join(FORMS), help="separated by commas")
    parser.add_argument("--quick", action="store_true", help="a small table, to see that everything runs")
    options = parser.parse_args(argv)
    if options.quick:
        options.rows, options.rounds = 100_000, 1
    found = {form: measure(form, options.rows, options.workers, options.rounds) for form in options.forms.split(",")}
    table = Table(title=f"{options.rows:,} × 28, {options.workers} workers of one thread, load {os.getloadavg()[0]:.1f}")
    for column in ("", *next(iter(found.values()))):
        table.add_column(column, justify="right")
    for form, columns in found.items():
        table.add_row(form, *(f"{value:.2f}" for value in columns.values()))
    Console(width=120).print(table)
    return found


if __name__ == "__main__":
    main()
