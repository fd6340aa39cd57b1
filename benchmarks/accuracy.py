"""Accuracy on real tables: hflights, adult, california, covtype; several random splits; the same settings for every library.

Each seed gives one split that all libraries share, so the libraries are compared in pairs: the table reports the mean and the
standard deviation over seeds, and the mean of (library − dboost) with its standard error. A difference of less than two or
three standard errors is not significant. The tables are those of `tests/helpers/real_data.py`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.engines import ENGINES, USUAL, Settings
from benchmarks.race import scores
from tests.helpers.real_data import FOLDER, RealTable, load

TABLES = ("hflights", "adult", "california", "covtype")
#: Left out because scikit-learn allows at most 255 categories, and hflights has 3310 aircraft.
TOO_MANY_LEVELS = {"hflights": ["TailNum"]}


def measure(table: RealTable, seeds: Sequence[int], settings: Settings, engines: Sequence[str]) -> dict[str, dict]:
    """Return the scores on the test rows: engine → name of the score → array over seeds."""
    found: dict[str, dict[str, list[float]]] = {engine: {} for engine in engines}
    for seed in seeds:
        train, test = table.split(seed)
        for engine in engines:
            fit = ENGINES[engine](train.X, train.y.to_numpy(), settings)
            raw = np.asarray(fit.raw_score(test.X), np.float64)
            for name, score in scores(test.y.to_numpy(), raw, settings.loss, settings.n_classes).items():
                found[engine].setdefault(name, []).append(score)
            print(f"{table.name} seed {seed} {engine}", file=sys.stderr, flush=True)
    return {engine: {name: np.array(values) for name, values in by.items()} for engine, by in found.items()}


def draw(name: str, found: dict[str, dict]) -> Table:
    first = next(iter(found))
    drawn = Table()
    drawn.add_column(name)
    for score in found[first]:
        drawn.add_column(score, justify="right", no_wrap=True)
        drawn.add_column(f"− {first}", justify="right", no_wrap=True)
    for engine, by in found.items():
        cells = []
        for score, values in by.items():
            scale = ".5f" if values.mean() < 10 else ".1f"
            spread = values.std(ddof=1) if len(values) > 1 else np.nan
            cells.append(f"{values.mean():{scale}} ± {spread:{scale}}")
            difference = values - found[first][score]
            error = difference.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.nan
            cells.append("" if engine == first else f"{difference.mean():+{scale}} ± {error:{scale}}")
        drawn.add_row(engine, *cells)
    return drawn


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description="Compare accuracy.")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=list(USUAL))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(argv)
    if not FOLDER.exists():
        parser.exit(2, "the real tables are not beside the checkout (../shared/data)\n")
    seeds = range(options.seeds)
    console = Console(width=140)
    console.print("mean ± standard deviation over random splits 80 to 20; differences in pairs: mean ± standard error")
    for name in options.tables:
        table = load(name)
        table = replace(table, X=table.X.drop(columns=TOO_MANY_LEVELS.get(name, [])))
        kind = ("log_loss", table.y.nunique()) if table.is_classification else ("squared_error", 0)
        settings = Settings(*kind, trees=options.trees, threads=options.threads)
        found = measure(table, seeds, settings, options.engines)
        console.print(f"{name}: {len(table.X):,} × {table.X.shape[1]}, {len(seeds)} splits, {options.trees} trees")
        console.print(draw(name, found))


if __name__ == "__main__":
    main()
