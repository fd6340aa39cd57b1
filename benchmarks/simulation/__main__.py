"""Simulate clusters of several sizes and print where the seconds go; see the package.

With ``--page docs/scaling.md`` the table after the comment ``% table: N features`` of that page is replaced: a row for each
number of workers, which stand for hosts, with the parts of the seconds for the first number of rows, and the seconds for the
others.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from benchmarks.page import two_digits
from benchmarks.simulation.cluster import Simulated, fit
from benchmarks.simulation.costs import Costs, measure
from benchmarks.simulation.network import Network
from dboost.params import make_parameters

#: Least number of real rows of each worker, and most real columns: each of them stands for several columns of a wider table.
ROWS_EACH = 100
MOST_COLUMNS = 200
COLUMNS = ("workers", "rows", "s a tree", "computing", "deciding", "messages", "rounds", "owners", "groups", "MiB a tree")


def frame(n_workers: int, n_features: int, n_rows: int = 20_000) -> Any:
    """Return rows for each worker, one partition each, with signal at every depth."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((n_rows, n_features), dtype=np.float32)
    score = X[:, 0] * X[:, 1] + np.sin(2 * X[:, 2]) + np.abs(X[:, 3]) + 0.3 * X[:, 4:12].sum(axis=1)
    table = pd.DataFrame(X, columns=[f"x{j}" for j in range(n_features)])
    return dd.from_pandas(table.assign(y=(score + rng.standard_normal(n_rows) > 0.7).astype(np.int64)), npartitions=n_workers)


def simulate(
    n_workers: int, n_rows: float, n_features: int, trees: int, network: Network, costs: Costs, n_real: int = 20_000
) -> dict[str, float]:
    """Return the columns of a row of the table. n_real : number of real rows."""
    real = min(n_features, MOST_COLUMNS)
    simulated = Simulated(n_workers, network, costs, columns=n_features / real)
    try:
        data = frame(n_workers, real, n_real)
        parameters = make_parameters({"max_iter": trees + 1, "loss": "log_loss", "min_samples_leaf": 1})
        fit(simulated, data, "y", parameters, n_rows=n_rows)
        grown = [event for event in simulated.events if event["action"] == "tree"][1:]
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
            "groups": max(event["groups"] for event in grown),
            "MiB a tree": sum(event["n_bytes"] for event in grown) / trees / 2**20,
        }
    finally:
        simulated.close()
        gc.collect()


def page_with(text: str, n_features: int, found: Sequence[dict[str, float]]) -> str:
    """Return the text of a page with a table of these results."""
    rows = list(dict.fromkeys(one["rows"] for one in found))
    seconds = {(one["workers"], one["rows"]): one for one in found}
    others = [f"{n:.0e} rows".replace("e+", " × 10^").replace("^0", "^") for n in rows[1:]]
    table = [
        ["hosts", "total", "computing", "merging and split selection in the scheduler", "messages and hosts' sums"],
        ["---"] * 5,
    ]
    table[0] += ["owners", "groups", *others]
    table[1] += ["---"] * (2 + len(others))
    for n_workers in dict.fromkeys(one["workers"] for one in found):
        one = seconds[n_workers, rows[0]]
        parts = [two_digits(one[column]) for column in ("s a tree", "computing", "deciding", "messages")]
        numbers = [f"{one[column]:.0f}" for column in ("owners", "groups")]
        table.append([f"{n_workers:.0f}", *parts, *numbers, *(two_digits(seconds[n_workers, n]["s a tree"]) for n in rows[1:])])
    lines = text.splitlines()
    first = lines.index(f"% table: {n_features} features") + 1
    last = next(i for i in range(first, len(lines) + 1) if i == len(lines) or not lines[i].startswith("|"))
    lines[first:last] = [
        "|" + "|".join(cells) + "|" if cells[0] == "---" else "| " + " | ".join(cells) + " |" for cells in table
    ]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> list[dict[str, float]]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation", description="Simulate a cluster of any size.")
    parser.add_argument("--workers", default="2,4,16,64,256,1000", help="separated by commas")
    parser.add_argument("--rows", default="1e8,1e11", help="separated by commas")
    parser.add_argument("--features", type=int, default=28)
    parser.add_argument("--trees", type=int, default=2)
    parser.add_argument("--gigabit", type=float, default=10.0, help="of each host's link")
    parser.add_argument("--latency-ms", type=float, default=0.1)
    parser.add_argument("--page", type=Path, metavar="FILE.md", help="write the table there, too")
    parser.add_argument("--quick", action="store_true", help="a small cluster, to see that everything runs")
    options = parser.parse_args(argv)
    if options.quick:
        options.workers, options.rows = "2,9", "1e8"
    network = Network(bandwidth=options.gigabit * 1e9 / 8, latency=options.latency_ms / 1000)
    real = min(options.features, MOST_COLUMNS)
    costs = measure(20_000 if options.quick else 11_200_000 // real, real)
    simulate(2, 1e6, options.features, 1, network, costs)  # loads the kernels, which is not charged
    console = Console(width=130)
    table = Table(title=f"{options.features} features, 31 leaves, {options.gigabit:g} Gbit/s, {options.latency_ms:g} ms")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    found = []
    workers = [int(n) for n in options.workers.split(",")]
    n_real = max(ROWS_EACH * max(workers), 20_000)  # the same table for all numbers of workers, so that the trees are the same
    for rows in map(float, options.rows.split(",")):
        for n_workers in workers:
            found.append(simulate(n_workers, rows, options.features, options.trees, network, costs, n_real))
            console.print(" ".join(f"{name} {value:.4g}" for name, value in found[-1].items()))
            table.add_row(*(f"{found[-1][column]:.4g}" for column in COLUMNS))
    console.print(table)
    if options.page:
        text = page_with(options.page.read_text(encoding="utf-8"), options.features, found)
        options.page.write_text(text, encoding="utf-8")
    return found


if __name__ == "__main__":
    main()
