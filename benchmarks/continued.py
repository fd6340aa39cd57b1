"""Incremental training on a stream: a static model, retraining on all data so far, LightGBM's `init_model`, and `start_from`.

hflights by month (January to June first) and elec2 in ten chunks (one first), rows in the order of time. After each chunk every
model predicts the next one, which it has not seen: log loss, and the processor seconds of all updates. Every first model has
100 trees, and so has each retrained one; a continuation adds 20. All parameters are the defaults, LightGBM's too, so that the
comparison is of what users get.

    python -m benchmarks.continued [--tables elec2 hflights] [--new-trees 20] [--threads 2]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

import dboost
from tests.helpers.real_data import FOLDER, RealTable, load, path

TABLES = ("elec2", "hflights")
FIRST_TREES = 100


def chunks_of(name: str) -> tuple[RealTable, list[np.ndarray], int]:
    """Return a table, the rows of its chunks, and the number of chunks for the first model."""
    if name == "elec2":
        frame = pd.read_parquet(path(name))
        table = RealTable(name, frame.drop(columns="class").astype(np.float64), frame["class"].astype(np.int64), True)
        return table, np.array_split(np.arange(len(frame)), 10), 1
    table = load(name)
    return table, [np.flatnonzero(table.X["Month"] == month) for month in range(1, 13)], 6


Score = Callable[[pd.DataFrame], np.ndarray]


def static(table: RealTable, seen: list[np.ndarray], n_first: int, options: argparse.Namespace) -> Iterator[Score]:
    """Keep the first model."""
    part = table.take(np.concatenate(seen[:n_first]))
    booster = dboost.fit(part.X, part.y, loss="log_loss", max_iter=FIRST_TREES, n_threads=options.threads, progress=False)
    for _ in seen[n_first - 1 :]:
        yield lambda X: booster.predict_proba(X).to_numpy()[:, 1]


def retrained(table: RealTable, seen: list[np.ndarray], n_first: int, options: argparse.Namespace) -> Iterator[Score]:
    """Train a new model on all rows, every time."""
    for last in range(n_first, len(seen) + 1):
        part = table.take(np.concatenate(seen[:last]))
        booster = dboost.fit(part.X, part.y, loss="log_loss", max_iter=FIRST_TREES, n_threads=options.threads, progress=False)
        yield lambda X, booster=booster: booster.predict_proba(X).to_numpy()[:, 1]


def continued(
    table: RealTable, seen: list[np.ndarray], n_first: int, options: argparse.Namespace, steps: str = "damped"
) -> Iterator[Score]:
    """Continue with dboost's start_from."""
    more: dict[str, Any] = {"max_iter": FIRST_TREES}
    for last in range(n_first, len(seen) + 1):
        part = table.take(np.concatenate(seen[:n_first]) if last == n_first else seen[last - 1])
        booster = dboost.fit(part.X, part.y, loss="log_loss", n_threads=options.threads, progress=False, **more)
        more = {"max_iter": options.new_trees, "start_from": booster, "continue_steps": steps}
        yield lambda X, booster=booster: booster.predict_proba(X).to_numpy()[:, 1]


def undamped(table: RealTable, seen: list[np.ndarray], n_first: int, options: argparse.Namespace) -> Iterator[Score]:
    """Continue with the steps of a first fit."""
    yield from continued(table, seen, n_first, options, "full")


def lightgbm(table: RealTable, seen: list[np.ndarray], n_first: int, options: argparse.Namespace) -> Iterator[Score]:
    """Continue with LightGBM's init_model."""
    import lightgbm as lgb

    model = None
    for last in range(n_first, len(seen) + 1):
        part = table.take(np.concatenate(seen[:n_first]) if last == n_first else seen[last - 1])
        settings = {"objective": "binary", "verbose": -1, "num_threads": options.threads, "seed": 0}
        rounds = FIRST_TREES if model is None else options.new_trees
        model = lgb.train(settings, lgb.Dataset(part.X, part.y, free_raw_data=False), rounds, init_model=model)
        yield lambda X, model=model: np.asarray(model.predict(X))


WAYS = {
    "static": static,
    "retrained": retrained,
    "continued": continued,
    "continued, full steps": undamped,
    "LightGBM init_model": lightgbm,
}


def measure(name: str, ways: Sequence[str], options: argparse.Namespace) -> dict[str, tuple[np.ndarray, float]]:
    """Return for each way the log loss on each next chunk, and the processor seconds of all updates."""
    table, chunks, n_first = chunks_of(name)
    found = {}
    for way in ways:
        losses, seconds = [], 0.0
        steps = WAYS[way](table, chunks[:-1], n_first, options)
        for following in chunks[n_first:]:
            began = time.process_time()
            score = next(steps)
            seconds += time.process_time() - began
            part = table.take(following)
            losses.append(log_loss(part.y.to_numpy(), score(part.X)))
        found[way] = np.array(losses), seconds
        print(name, way, np.round(losses, 4), f"{seconds:.1f} s", file=sys.stderr, flush=True)
    return found


def log_loss(y: np.ndarray, p: np.ndarray) -> float:
    p = np.clip(p, 1e-15, 1 - 1e-15)
    return float(-np.where(y == 1, np.log(p), np.log1p(-p)).mean())


def draw(name: str, found: dict[str, tuple[np.ndarray, float]]) -> Table:
    drawn = Table()
    for heading in (name, "log loss on the next chunk", "worst chunk", "against retrained", "seconds"):
        drawn.add_column(heading, justify="left" if heading == name else "right")
    base = found["retrained"][0].mean() if "retrained" in found else np.nan
    for way, (losses, seconds) in found.items():
        cells = f"{losses.mean():.4f}", f"{losses.max():.4f}", f"{losses.mean() / base - 1:+.1%}", f"{seconds:.1f}"
        drawn.add_row(way, *cells)
    return drawn


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.continued", description="Follow a stream.")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--new-trees", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(argv)
    if not FOLDER.exists():
        parser.exit(2, "the real tables are not beside the checkout (../shared/data)\n")
    console = Console(width=120)
    for name in options.tables:
        console.print(draw(name, measure(name, options.ways, options)))


if __name__ == "__main__":
    main()
