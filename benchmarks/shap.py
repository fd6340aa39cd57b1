"""Shapley values beside those of XGBoost and LightGBM, for the same trees.

    python -m benchmarks.shap

The other library trains a model, dboost imports it (`dboost.from_xgboost`, `dboost.from_lightgbm`), and both compute the values
of the same rows, alternately. So the ratios compare the method only, and the values can be compared with each other: they
differ by the rounding of XGBoost's float32, and LightGBM weighs branches that a row does not take by the number of training
rows where dboost and XGBoost use sums of Hessians, which are the same for squared error. Seconds are of a whole call, including
the preparation of the trees.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import dboost
from benchmarks.race import spread
from benchmarks.workloads import Workload, load

TABLE = Workload("shap", 100_000, 28, "regression", 100, test_rows=20_000, loss="squared_error")


@dataclass(frozen=True)
class Case:
    """Trees of one library, and the values to compute from them."""

    library: str
    leaves: int
    depth: int | None
    interactions: bool = False
    #: Slow cases use one row in this many.
    one_in: int = 1

    def __str__(self) -> str:
        shape = f"depth {self.depth}" if self.depth else f"{self.leaves} leaves"
        return f"{self.library}, {shape}" + (", interactions" if self.interactions else "")


CASES = (
    Case("xgboost", 64, 6),
    Case("xgboost", 31, None),
    Case("xgboost", 255, None, one_in=10),
    Case("lightgbm", 31, None),
    Case("xgboost", 64, 6, interactions=True, one_in=20),
)


@dataclass(frozen=True, eq=False)
class Question:
    """dboost's function and the other's, from a number of threads to values [n, features] or [n, features, features]."""

    rows: int
    ours: Callable[[int], np.ndarray]
    theirs: Callable[[int], np.ndarray]


def ask(case: Case, workload: Workload, rows: int, threads: int) -> Question:
    """Train a case's trees and return the functions that compute the values of some rows."""
    table = load(workload)
    X = table.X_test[: max(rows // case.one_in, 10)]
    train = {"xgboost": _xgboost, "lightgbm": _lightgbm}[case.library]
    booster, theirs = train(case, table.X, table.y, X, workload.trees, threads)

    def ours(threads: int) -> np.ndarray:
        return np.asarray(booster.shap_values(X, interactions=case.interactions, n_threads=threads))

    return Question(len(X), ours, theirs)


def _xgboost(case: Case, X: Any, y: Any, rows: Any, trees: int, threads: int) -> tuple[dboost.Booster, Callable]:
    import xgboost

    model = xgboost.train(
        {
            "max_depth": case.depth or 0, "max_leaves": 0 if case.depth else case.leaves,
            "grow_policy": "depthwise" if case.depth else "lossguide", "learning_rate": 0.1, "tree_method": "hist",
            "nthread": threads,
        },
        xgboost.DMatrix(X, y, nthread=threads),
        trees,
    )  # fmt: skip
    kind = {"pred_interactions": True} if case.interactions else {"pred_contribs": True}

    def theirs(threads: int) -> np.ndarray:
        model.set_param({"nthread": threads})
        found = model.predict(xgboost.DMatrix(rows, nthread=threads), **kind)
        return found[:, :-1, :-1] if case.interactions else found[:, :-1]

    return dboost.from_xgboost(model), theirs


def _lightgbm(case: Case, X: Any, y: Any, rows: Any, trees: int, threads: int) -> tuple[dboost.Booster, Callable]:
    import lightgbm

    settings = {"objective": "regression", "num_leaves": case.leaves, "num_threads": threads, "verbose": -1}
    model = lightgbm.train(settings, lightgbm.Dataset(X, y, params={"verbose": -1}), trees)

    def theirs(threads: int) -> np.ndarray:
        return model.predict(rows, pred_contrib=True, num_threads=threads)[:, :-1]

    return dboost.from_lightgbm(model), theirs


def measure(question: Question, threads: int, rounds: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the seconds of each round, of dboost and of the other library, and the largest difference, relative to the largest
    value."""
    ours, theirs = question.ours(threads), question.theirs(threads)
    difference = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for number in range(rounds):
        for mine in (True, False) if number % 2 == 0 else (False, True):
            start = time.perf_counter()
            (question.ours if mine else question.theirs)(threads)
            seconds[mine].append(time.perf_counter() - start)
    return np.array(seconds[True]), np.array(seconds[False]), difference


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shap", description="Compare Shapley values.")
    parser.add_argument("--rows", type=int, default=4_000, help="rows to explain (fewer where it takes long)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--quick", action="store_true", help="a small table and few trees, to see that everything runs")
    options = parser.parse_args(argv)
    workload = replace(TABLE, rows=3_000, trees=5, test_rows=options.rows) if options.quick else TABLE
    drawn = Table(title=f"Shapley values, {workload.trees} trees, {workload.features} features")
    for column in ("trees and question", "threads", "rows", "dboost rows/s", "theirs rows/s", "×", "difference"):
        drawn.add_column(column, justify="left" if column == "trees and question" else "right", no_wrap=True)
    for case in CASES:
        question = ask(case, workload, options.rows, max(options.threads))
        for threads in options.threads:
            ours, theirs, difference = measure(question, threads, options.rounds)
            speeds = [f"{question.rows / np.median(seconds):,.0f}" for seconds in (ours, theirs)]
            drawn.add_row(str(case), str(threads), str(question.rows), *speeds, spread(theirs / ours), f"{difference:.0e}")
            print(f"{case}, {threads} threads: done", file=sys.stderr, flush=True)
    Console(width=130).print(drawn)


if __name__ == "__main__":
    main()
