"""The time of the prediction of a single row, beside LightGBM, for the same trees.

    python -m benchmarks.latency

LightGBM trains a model, and dboost imports it (`dboost.from_lightgbm`), so both predict with the same trees: 100 with 31
leaves, 28 features. Every call predicts another row, a NumPy array of float64, on one thread. In a round each function predicts
the same rows, one by one, in turns; the table has the smallest microseconds per row of all rounds, and ratios to
`Booster.predictor`.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import dboost
from benchmarks.workloads import Workload, load

REGRESSION = Workload("latency", 100_000, 28, "regression", 100, test_rows=2_000, loss="squared_error")
TABLES = (REGRESSION, replace(REGRESSION, name="latency-binary", kind="binary", loss="log_loss"))


def functions(workload: Workload) -> tuple[np.ndarray, dict[str, Callable[[np.ndarray], Any]]]:
    """Train the trees; return the rows to predict, and the functions of one row by name, the prepared one first."""
    import lightgbm

    table = load(workload)
    objective = "regression" if workload.kind == "regression" else "binary"
    settings = {"objective": objective, "num_leaves": workload.max_leaves, "num_threads": 2, "verbose": -1}
    model = lightgbm.train(settings, lightgbm.Dataset(table.X, table.y, params={"verbose": -1}), workload.trees)
    booster = dboost.from_lightgbm(model)
    predict = booster.predict if booster.classes_ is None else booster.predict_proba
    predictor = booster.predictor("prediction" if booster.classes_ is None else "probability")
    return np.asarray(table.X_test, np.float64), {
        "dboost, predictor": predictor,
        "dboost, predict": lambda row: predict(row[None], n_threads=1)[0],
        "lightgbm, predict": lambda row: model.predict(row[None], num_threads=1)[0],
    }


def measure(rows: np.ndarray, asked: dict[str, Callable[[np.ndarray], Any]], rounds: int) -> dict[str, float]:
    """Return the smallest microseconds per row of each function."""
    best = dict.fromkeys(asked, float("inf"))
    for _ in range(rounds + 1):  # in the first round kernels are compiled or loaded
        for name, function in asked.items():
            start = time.perf_counter()
            for row in rows:
                function(row)
            best[name] = min(best[name], 1e6 * (time.perf_counter() - start) / len(rows))
    return best


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.latency", description="Compare predictions of single rows.")
    parser.add_argument("--rows", type=int, default=1_000, help="rows of a round")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="small tables and few trees, to see that everything runs")
    options = parser.parse_args(argv)
    drawn = Table(title=f"One row, load {os.getloadavg()[0]:.1f}")
    for column in ("model", "function", "µs", "×", "largest difference"):
        drawn.add_column(column, justify="left" if column in ("model", "function") else "right", no_wrap=True)
    for table in TABLES:
        workload = replace(table, rows=3_000, trees=5) if options.quick else table
        rows, asked = functions(workload)
        rows = rows[: options.rows]
        expected = np.array([np.ravel(asked["lightgbm, predict"](row))[-1] for row in rows[:100]])
        best = measure(rows, asked, options.rounds)
        for name, microseconds in best.items():
            found = np.array([np.ravel(asked[name](row))[-1] for row in rows[:100]])
            ratio, difference = microseconds / best["dboost, predictor"], np.abs(found - expected).max()
            drawn.add_row(workload.kind, name, f"{microseconds:.1f}", f"{ratio:.1f}", f"{difference:.0e}")
    Console(width=100).print(drawn)


if __name__ == "__main__":
    main()
