"""Influence trimming: how many rows are left out, what that saves, and what it costs.

    python -m benchmarks.trimming --rows 1000000 --trees 300

Two classes that are well separated by the features, the case for which trimming is meant: late in training most rows are
predicted with certainty. Reported are the share of rows that took part, processor time per tree (of all threads, averaged over
windows of trees), and the log loss on the evaluation set, of a fit without trimming and of one with α.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

import dboost


def make(n_rows: int, n_features: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Generate features (float32) and classes; a few rows in a hundred are on the wrong side."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_rows, n_features), dtype=np.float32)
    score = 2 * np.sin(2 * X[:, 0]) + 2 * X[:, 1] + X[:, 2] + X[:, 3] * X[:, 4]
    return X, (8 * score + rng.logistic(size=n_rows) > 0).astype(np.int8)


def measure(
    train: tuple, test: tuple, share: float | None, trees: int, threads: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return for each tree: processor seconds, share of rows, log loss on the evaluation set."""
    marks = []
    booster = dboost.fit(
        *train, loss="log_loss", max_iter=trees, influence_trimming=share, eval_set=test, n_threads=threads, progress=False,
        callbacks=[lambda event: marks.append(time.process_time())],
    )  # fmt: skip
    return (
        np.diff(marks, prepend=np.nan),
        booster.history.rows_kept.to_numpy() / len(train[1]),
        booster.history.eval_log_loss.to_numpy(),
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trimming", description="Measure influence trimming.")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--features", type=int, default=28)
    parser.add_argument("--trees", type=int, default=300)
    parser.add_argument("--share", type=float, default=0.1, help="α, the influence that may sit out")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(argv)
    train, test = make(options.rows, options.features, 0), make(max(options.rows // 50, 1000), options.features, 1)
    measure((train[0][:2000], train[1][:2000]), test, options.share, 2, options.threads)  # kernels are compiled
    plain, trimmed = (measure(train, test, share, options.trees, options.threads) for share in (None, options.share))
    drawn = Table(title=f"{options.rows:,} × {options.features}, α = {options.share}, {options.threads} threads")
    for column in ("trees", "rows kept", "ms a tree, all rows", "ms a tree, trimmed", "times faster", "log loss", "trimmed"):
        drawn.add_column(column, justify="right")
    for first in range(0, options.trees, max(options.trees // 6, 1)):
        some = slice(first, first + max(options.trees // 6, 1))
        seconds = [1000 * np.nanmean(of[0][some]) for of in (plain, trimmed)]
        drawn.add_row(
            f"{first + 1}…{min(some.stop, options.trees)}",
            f"{trimmed[1][some].mean():.1%}",
            *(f"{value:.1f}" for value in seconds),
            f"{seconds[0] / seconds[1]:.2f}",
            *(f"{of[2][some][-1]:.5f}" for of in (plain, trimmed)),
        )
    Console(width=120).print(drawn)


if __name__ == "__main__":
    main()
