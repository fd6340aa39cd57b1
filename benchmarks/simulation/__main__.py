"""Simulate clusters of several sizes and print where the seconds go; see the package."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Sequence
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from benchmarks.simulation.cluster import Simulated, fit
from benchmarks.simulation.costs import Costs, measure
from benchmarks.simulation.network import Network
from dboost.params import make_parameters

#: Real rows of each worker, and most real columns: each of them stands for several columns of a wider table.
ROWS_EACH = 100
MOST_COLUMNS = 200
COLUMNS = ("workers", "rows", "s a tree", "computing", "deciding", "messages", "rounds", "owners", "MiB a tree")


def frame(n_workers: int, n_features: int) -> Any:
    """Return a few rows for each worker, one partition each, with signal at every depth."""
    rng = np.random.default_rng(5)
    n_rows = max(n_workers * ROWS_EACH, 20_000)
    X = rng.standard_normal((n_rows, n_features), dtype=np.float32)
    score = X[:, 0] * X[:, 1] + np.sin(2 * X[:, 2]) + np.abs(X[:, 3]) + 0.3 * X[:, 4:12].sum(axis=1)
    table = pd.DataFrame(X, columns=[f"x{j}" for j in range(n_features)])
    return dd.from_pandas(table.assign(y=(score + rng.standard_normal(n_rows) > 0.7).astype(np.int64)), npartitions=n_workers)


def simulate(n_workers: int, n_rows: float, n_features: int, trees: int, network: Network, costs: Costs) -> dict[str, float]:
    """Return the columns of a row of the table."""
    real = min(n_features, MOST_COLUMNS)
    simulated = Simulated(n_workers, network, costs, columns=n_features / real)
    try:
        data = frame(n_workers, real)
        parameters = make_parameters({"max_iter": trees, "loss": "log_loss", "min_samples_leaf": 1})
        fit(simulated, data, "y", parameters, n_rows=n_rows)
        grown = [event for event in simulated.events if event["action"] == "tree"]
        seconds, computing = simulated.seconds, sum(simulated.computing.values())
        return {
            "workers": n_workers,
            "rows": n_rows,
            "s a tree": seconds / trees,
            "computing": computing / trees,
            "deciding": simulated.deciding / trees,
            "messages": max(seconds - computing - simulated.deciding, 0.0) / trees,
            "rounds": sum(event["n_rounds"] for event in grown) / trees + 1,
            "owners": max(event["owners"] for event in grown),
            "MiB a tree": sum(event["n_bytes"] for event in grown) / trees / 2**20,
        }
    finally:
        simulated.close()
        gc.collect()


def main(argv: Sequence[str] | None = None) -> list[dict[str, float]]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation", description="Simulate a cluster of any size.")
    parser.add_argument("--workers", default="2,4,16,64,256,1000", help="separated by commas")
    parser.add_argument("--rows", default="1e8,1e11", help="separated by commas")
    parser.add_argument("--features", type=int, default=28)
    parser.add_argument("--trees", type=int, default=2)
    parser.add_argument("--gigabit", type=float, default=10.0, help="of each host's link")
    parser.add_argument("--latency-ms", type=float, default=0.1)
    parser.add_argument("--quick", action="store_true", help="a small cluster, to see that everything runs")
    options = parser.parse_args(argv)
    if options.quick:
        options.workers, options.rows = "2,9", "1e8"
    network = Network(bandwidth=options.gigabit * 1e9 / 8, latency=options.latency_ms / 1000)
    real = min(options.features, MOST_COLUMNS)
    costs = measure(20_000 if options.quick else 11_200_000 // real, real)
    simulate(2, 1e6, options.features, 1, network, costs)  # loads the kernels, which is not charged
    console = Console()
    table = Table(title=f"{options.features} features, 31 leaves, {options.gigabit:g} Gbit/s, {options.latency_ms:g} ms")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    found = []
    for rows in map(float, options.rows.split(",")):
        for n_workers in map(int, options.workers.split(",")):
            found.append(simulate(n_workers, rows, options.features, options.trees, network, costs))
            console.print(" ".join(f"{name} {value:.4g}" for name, value in found[-1].items()))
            table.add_row(*(f"{found[-1][column]:.4g}" for column in COLUMNS))
    console.print(table)
    return found


if __name__ == "__main__":
    main()
