"""Accuracy of the libraries on real and generated tables, several random splits, at equal settings and at their own defaults.

    python -m benchmarks.accuracy --tables covtype elec2
    python -m benchmarks.accuracy --defaults
    python -m benchmarks.accuracy --defaults --rows 30000 --threads 1 --engines dboost-auto lightgbm-stopping catboost

Real tables are those of `tests/helpers/real_data.py`: each seed is a random split. Generated families are small tables of
`benchmarks/workloads.py`: each seed is a new table, with as many test rows as training rows. All libraries share the rows, so
they are compared in pairs: the report has the mean and the standard deviation over seeds, and the mean of (library − dboost)
with its standard error. A difference of less than two or three standard errors is not significant. The standard error over the
test rows, in pairs, is reported as well: it says whether the same rows decide between two models, also for a single split.
A line below each table compares dboost with the best other library. Seconds are those of the processor, of all threads of the
process: on a busy machine they mislead less than those of the clock.

Equal settings are those of `benchmarks.engines.Settings`; with `--defaults` each library has its own (scikit-learn's stop early
on large tables, XGBoost's learn three times as fast).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import workloads
from benchmarks.defaults import DBOOST, WITHOUT_TUNING, raw_score_without_tuning
from benchmarks.engines import ENGINES, USUAL, Settings, load_kernels
from benchmarks.race import losses_of_rows, scores
from benchmarks.workloads import Workload
from tests.helpers import real_data

REAL = ("hflights", "adult", "california", "covtype", "elec2")
#: Left out because scikit-learn allows at most 255 categories, and hflights has 3310 aircraft.
TOO_MANY_LEVELS = {"hflights": ["TailNum"]}


#: Generated families.
GENERATED = {
    "binary": Workload("binary", 50_000, 28, "binary", 0),
    "regression": Workload("regression", 50_000, 28, "regression", 0, loss="squared_error"),
    "missing": Workload("missing", 50_000, 28, "binary", 0, shape="missing"),
    "categories": Workload("categories", 50_000, 12, "binary", 0, shape="categories"),
    "classes": Workload("classes", 50_000, 28, "classes", 0),
}
TABLES = (*REAL, *GENERATED)
#: The loss, where it is not log loss.
LOSS = {"california": "squared_error", "regression": "squared_error"}

#: Name of the standard error over the test rows, which is no score.
ROWS = "± over rows"
#: Engine → name of a score → values; the last score is the loss.
Found = dict[str, dict[str, np.ndarray]]
#: Features and target to learn from, features and target of the test rows.
Rows = tuple[Any, np.ndarray, Any, np.ndarray]


def real_splits(name: str, seeds: Sequence[int], rows: int | None = None) -> Iterator[Rows]:
    """Yield a random split for each seed, of at most `rows` random rows."""
    table = real_data.load(name)
    table = replace(table, X=table.X.drop(columns=TOO_MANY_LEVELS.get(name, [])))
    for seed in seeds:
        chosen = table
        if rows is not None and rows < len(table.X):
            chosen = table.take(np.random.default_rng([seed, rows]).choice(len(table.X), rows, replace=False))
        train, test = chosen.split(seed)
        yield train.X, train.y.to_numpy(), test.X, test.y.to_numpy()


def generated_tables(family: Workload, seeds: Sequence[int]) -> Iterator[Rows]:
    """Yield a new table for each seed, with as many rows for the test."""
    for seed in seeds:
        rows = (workloads.generate(family, family.rows, 2 * seed + suffix) for suffix in (1, 2))
        (X, y), (X_test, y_test) = rows
        yield workloads.as_libraries_need(family, X), y, workloads.as_libraries_need(family, X_test), y_test


def measure(name: str, tables: Iterable[Rows], settings: Settings, engines: Sequence[str], by_defaults: bool) -> Found:
    """Return the scores on the test rows: engine → name of the score → one value for each of the tables.

    `CPU s` are the processor seconds of the fit; `ROWS` is the standard error, over the test rows, of the difference to the
    loss of the first engine.
    """
    found: dict[str, dict[str, list[float]]] = {engine: {} for engine in engines}
    for number, (X, y, X_test, y_test) in enumerate(tables):
        load_kernels(X, y, settings)
        first: np.ndarray | None = None
        for engine in engines:
            began = time.process_time()
            if by_defaults:
                raw_score = raw_score_without_tuning(engine, X, y, settings.n_classes, settings.threads)
            else:
                raw_score = ENGINES[engine](X, y, settings).raw_score
            found[engine].setdefault("CPU s", []).append(time.process_time() - began)
            raw = np.asarray(raw_score(X_test), np.float64)
            of_rows = losses_of_rows(y_test, raw, settings.loss, settings.n_classes)
            first = of_rows if first is None else first
            found[engine].setdefault(ROWS, []).append(error_over_rows(first, of_rows, settings.loss))
            for score, value in scores(y_test, raw, settings.loss, settings.n_classes).items():
                found[engine].setdefault(score, []).append(value)
            print(f"{name} {number + 1} {engine}", file=sys.stderr, flush=True)
    return {engine: {score: np.array(values) for score, values in by.items()} for engine, by in found.items()}


def error_over_rows(first: np.ndarray, other: np.ndarray, loss: str) -> float:
    """Return the standard error of the difference of two mean losses of the same rows, or of their roots (RMSE)."""
    error = float((other - first).std(ddof=1) / len(first) ** 0.5)
    if loss == "squared_error":  # a - b = (a² - b²) / (a + b)
        error /= float(first.mean() ** 0.5 + other.mean() ** 0.5)
    return error


def beside_first(found: Found) -> Iterator[str]:
    """Yield a line for each engine but the first: how its loss and its seconds compare, with the error over the test rows."""
    first = next(iter(found))
    score = list(found[first])[-1]
    for engine, by in found.items():
        if engine != first:
            more = (by[score] - found[first][score]).mean()
            error = np.sqrt((by[ROWS] ** 2).sum()) / len(by[ROWS])
            ratio = np.median(by["CPU s"] / found[first]["CPU s"])
            yield f"{engine} − {first}: {score} {more:+.5g} ± {error:.2g} over the test rows; {ratio:.2f} × the processor time"


def verdict(found: Found) -> str:
    """Say how far dboost is ahead of (+) or behind (−) the best other library, in the last of the scores."""
    mine = found["dboost"]
    score = list(mine)[-1]  # all of them are losses: less is better
    best = min((engine for engine in found if engine not in DBOOST), key=lambda engine: found[engine][score].mean())
    lead = found[best][score] - mine[score]
    error = lead.std(ddof=1) / len(lead) ** 0.5 if len(lead) > 1 else np.nan
    word = "ahead of" if lead.mean() > error else "behind" if lead.mean() < -error else "level with"
    return f"{score}: {word} {best}, the best of the others, by {lead.mean():+.3g} ± {error:.2g}"


def draw(name: str, found: Found) -> Table:
    first = next(iter(found))
    drawn = Table()
    drawn.add_column(name)
    shown = [score for score in found[first] if score != ROWS]
    for score in shown:
        drawn.add_column(score, justify="right", no_wrap=True)
        drawn.add_column(f"− {first}", justify="right", no_wrap=True)
    for engine, by in found.items():
        cells = []
        for score in shown:
            values = by[score]
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
    parser.add_argument("--engines", nargs="+", choices=[*ENGINES, *WITHOUT_TUNING], default=list(USUAL))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, help="at most so many rows of each real table, chosen at random")
    parser.add_argument("--trees", type=int, help="iterations of equal settings, 100 if not given")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--defaults", action="store_true", help="each library at its own defaults, instead of equal settings")
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="also write every score")
    options = parser.parse_args(argv)
    if options.defaults and options.trees is not None:
        parser.error("--trees is for equal settings: each library has its own number with --defaults")
    if not options.defaults and set(options.engines) & set(WITHOUT_TUNING):
        parser.error(f"{', '.join(WITHOUT_TUNING)} are compared with --defaults only")
    trees = 100 if options.trees is None else options.trees
    seeds = range(options.seeds)
    console = Console(width=140)
    report = {}
    console.print("mean ± standard deviation; differences in pairs: mean ± standard error")
    for name in options.tables:
        if name in REAL:
            if not real_data.FOLDER.exists():
                parser.exit(2, "the real tables are not beside the checkout (../shared/data)\n")
            tables, kind = real_splits(name, seeds, options.rows), "splits 80 to 20"
        else:
            tables, kind = generated_tables(GENERATED[name], seeds), "tables"
        first = next(tables)
        loss = LOSS.get(name, "log_loss")
        n_classes = len(np.unique(first[1])) if loss == "log_loss" else 0
        settings = Settings(loss, n_classes, trees=trees, threads=options.threads)
        found = measure(name, chain([first], tables), settings, options.engines, options.defaults)
        how = "own defaults" if options.defaults else f"{trees} trees"
        console.print(f"{name}: {len(first[1]) + len(first[3]):,} × {first[0].shape[1]}, {len(seeds)} {kind}, {how}")
        console.print(draw(name, found))
        if "dboost" in found and found.keys() - DBOOST.keys():
            console.print(verdict(found))
        for line in beside_first(found):
            console.print(line)
        report[name] = {engine: {score: values.tolist() for score, values in by.items()} for engine, by in found.items()}
        if options.output:
            options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
