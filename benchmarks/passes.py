"""``python -m benchmarks.passes [--rows 2000000] [--classes 1 5] [--together 1 0] [--rate 200] [--threads 2]``

Bytes that a tree reads when its rows are in files, as a multiple of the binned values, and its seconds.

A table of normal float32 columns is generated (seed 0) in memory; the target is a number (``--classes 1``) or one of several
classes. A tenth of the blocks stays in memory, whatever the memory limit, so that tables of all sizes compare. ``--together``
is the number of trees of an iteration that grow in the same passes, 0 for as many as the limit allows. With ``--rate`` every
fit is repeated with reads limited to so many MB per second: the thread that reads a block then sleeps until a disk of this rate
would have delivered it. Other reads come from the system's cache.
"""

from __future__ import annotations

import argparse
import threading
import time
from typing import Any
from unittest.mock import patch

import numpy as np

import dboost
from dboost.rows.block_file import BlockFile
from dboost.rows.row_store import RowStore
from dboost.session import training_rows
from dboost.session.memory import Budget

#: Share of the blocks that stay in memory.
RESIDENT = 0.1


class Reads:
    """Counts the bytes of codes that are read, and delays reads; an object takes the place of `BlockFile.read`.

    rate : bytes per second; None for no limit.
    """

    def __init__(self, rate: float | None) -> None:
        self._read, self._rate, self._lock = BlockFile.read, rate, threading.Lock()
        self._free_at = 0.0  # when all bytes so far would have been read
        self.codes = 0  # size of the file of codes

    def __call__(self, file: BlockFile, *arguments: Any, **options: Any) -> int:
        n_bytes = self._read(file, *arguments, **options)
        if file.path.name == "codes":
            self.codes = file.stride * file.n_blocks
        if self._rate is not None:
            with self._lock:
                self._free_at = max(self._free_at, time.perf_counter()) + n_bytes / self._rate
                wait = self._free_at - time.perf_counter()
            time.sleep(max(wait, 0.0))
        return n_bytes

    def method(self) -> Any:
        """Return a function that is called as a method of `BlockFile`."""
        return lambda file, *arguments, **options: self(file, *arguments, **options)


def table(n_rows: int, n_columns: int, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a table and its target."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, n_columns)).astype(np.float32)
    if n_classes == 1:
        return X, X[:, 0] * X[:, 1] + np.sin(3 * X[:, 2]) + X[:, 3:10] @ np.linspace(1.0, 0.1, 7) + rng.normal(size=n_rows)
    scores = X[:, :n_classes] @ rng.normal(size=(n_classes, n_classes)) + rng.gumbel(size=(n_rows, n_classes))
    return X, scores.argmax(axis=1)


def fit(
    data: tuple[np.ndarray, np.ndarray], options: argparse.Namespace, n_classes: int, together: int, rate: float | None
) -> str:
    """Train on rows in files; return a line of the report."""
    reads = Reads(rate)
    ends: list[tuple[float, float]] = []

    def staying(store: RowStore, _spec: Any, _n_bytes: int, _width: int, n_threads: int) -> int:
        return max(round(RESIDENT * store.n_blocks / n_threads), 1)

    with (
        patch.object(Budget, "holds_rows", lambda *_: False),
        patch.object(training_rows, "blocks_that_stay", staying),
        patch.object(
            training_rows, "most_trees_per_pass", (lambda *_: together) if together else training_rows.most_trees_per_pass
        ),
        patch.object(BlockFile, "read", reads.method()),
    ):
        booster = dboost.fit(
            *data,
            loss="squared_error" if n_classes == 1 else "log_loss",
            max_iter=options.trees + 1,
            memory_limit=options.memory_limit,
            n_threads=options.threads,
            progress=False,
            callbacks=[lambda _: ends.append((time.perf_counter(), time.process_time()))],
        )
    n_bytes = float(np.median(booster.history["bytes_read"][1:])) / n_classes
    seconds, processor = (np.diff(np.array(ends), axis=0).min(axis=0) / n_classes).tolist()
    named = "all" if not together else str(min(together, n_classes))
    limited = "cached" if rate is None else f"{rate / 1e6:.0f} MB/s"
    return (
        f"{n_classes:8}{named:>10}{limited:>11}{n_bytes / reads.codes:12.2f}{n_bytes / 2**20:12.0f}{seconds:10.2f}"
        f"{processor:13.2f}  {booster.sha256[:12]}"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.passes", description=__doc__.split("\n")[2])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--classes", nargs="+", type=int, default=[1, 5], help="1 for a target of numbers")
    parser.add_argument("--together", nargs="+", type=int, default=[1, 0], help="trees in the same passes, 0 for all")
    parser.add_argument("--trees", type=int, default=3, help="iterations that are measured, after a first one")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rate", type=float, metavar="MB/s", help="also with reads limited to this rate")
    parser.add_argument("--memory-limit", default="2GiB", help="for histograms; resident rows are not counted")
    options = parser.parse_args(arguments)
    print(
        f"{options.rows} rows, {options.columns} columns, {options.threads} threads\n"
        f"{'classes':>8}{'together':>10}{'reads':>11}{'codes/tree':>12}{'MiB/tree':>12}{'s/tree':>10}{'processor s':>13}  model"
    )
    for n_classes in options.classes:
        data = table(options.rows, options.columns, n_classes)
        for rate in [None] if options.rate is None else [None, options.rate * 1e6]:
            for together in options.together if n_classes > 1 else [1]:
                print(fit(data, options, n_classes, together, rate), flush=True)


if __name__ == "__main__":
    main()
