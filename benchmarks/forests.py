"""Random forests beside those of scikit-learn on real tables: error on held-out rows, out-of-bag error and time.

    python -m benchmarks.forests --rows 12000 --trees 100

Both have their defaults, and as many trees. scikit-learn gets categories as numbers, and missing values as they are, since it
has no categorical splits. For numbers it tries all features in a node by default; the second row of such a table has a third of
them, as in ranger; dboost has half. Errors are squared errors relative to the variance of the target, or shares of wrong
classes, with the standard error of the difference. Tables are those of ``../shared/data``; others are skipped.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

import dboost
from tests.helpers.real_data import FOLDER, RealTable, load

TABLES = ("california", "adult", "hflights", "elec2", "covtype")


class Result(NamedTuple):
    """What a forest does on the rows that are held out."""

    losses: np.ndarray  # of each row: squared error, or 1 for a wrong class
    brier: float  # half the squared error of the probabilities; NaN for numbers
    seconds: float  # of processors, in the fit
    out_of_bag: float  # R² or accuracy


def _numbers(table: RealTable) -> np.ndarray:
    """Return the features as numbers; -1 for missing categories."""
    columns = [column.cat.codes if column.dtype == "category" else column for _, column in table.X.items()]
    return np.column_stack([np.asarray(column, np.float64) for column in columns])


def _result(table: RealTable, predicted: Any, probabilities: Any, seconds: float, out_of_bag: float) -> Result:
    y = table.y.to_numpy()
    if not table.is_classification:
        return Result((np.asarray(predicted) - y) ** 2, float("nan"), seconds, out_of_bag)
    # Classes are 0, 1, 2, …, all of which are in the training rows.
    error = np.asarray(probabilities) - (y[:, None] == np.arange(np.shape(probabilities)[1]))
    return Result((np.asarray(predicted) != y) * 1.0, float((error**2).sum(axis=1).mean() / 2), seconds, out_of_bag)


def dboost_forest(train: RealTable, test: RealTable, n_trees: int, **parameters: Any) -> Result:
    kind = dboost.DBoostClassifier if train.is_classification else dboost.DBoostRegressor
    model = kind(boosting="forest", max_iter=n_trees, n_jobs=1, random_state=0, **parameters)
    began = time.process_time()
    model.fit(train.X, train.y)
    seconds = time.process_time() - began
    probabilities = model.predict_proba(test.X) if train.is_classification else None
    return _result(test, model.predict(test.X), probabilities, seconds, model.oob_score_)


def scikit_learn_forest(train: RealTable, test: RealTable, n_trees: int, **parameters: Any) -> Result:
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    kind = RandomForestClassifier if train.is_classification else RandomForestRegressor
    model, rows = kind(n_trees, oob_score=True, n_jobs=1, random_state=0, **parameters), _numbers(test)
    began = time.process_time()
    model.fit(_numbers(train), train.y)
    seconds = time.process_time() - began
    probabilities = model.predict_proba(rows) if train.is_classification else None
    return _result(test, model.predict(rows), probabilities, seconds, model.oob_score_)


def split(table: RealTable, n_train: int, n_test: int) -> tuple[RealTable, RealTable]:
    """Return random rows to train on and others to predict."""
    order = np.random.default_rng(0).permutation(len(table.X))
    n_test = min(n_test, len(order) // 3)
    return table.take(order[n_test : n_test + n_train]), table.take(order[:n_test])


def compared(table: RealTable, n_train: int, n_test: int, n_trees: int) -> tuple[Result, Result]:
    """Return what both forests do; for numbers scikit-learn tries a third of the features in a node, which is better."""
    rows = split(table, n_train, n_test)
    third = {} if table.is_classification else {"max_features": 1 / 3}
    return dboost_forest(*rows, n_trees), scikit_learn_forest(*rows, n_trees, **third)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forests", description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=12_000)
    parser.add_argument("--test-rows", type=int, default=8_000)
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--tables", nargs="*", default=TABLES)
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    drawn = Table(title=f"random forests of {options.trees} trees, {options.rows:,} rows, one thread")
    for column in ("table", "library", "error", "± of the difference", "half Brier", "out of bag", "CPU seconds"):
        drawn.add_column(column, justify="right")
    for name in options.tables:
        if not (FOLDER / name / f"{name}.parquet").exists():
            continue
        train, test = split(load(name), options.rows, options.test_rows)
        dboost_forest(*split(load(name), 500, 100), 2)  # kernels are compiled
        forests = {"dboost": dboost_forest(train, test, options.trees)}
        forests["scikit-learn"] = scikit_learn_forest(train, test, options.trees)
        if not train.is_classification:
            forests["scikit-learn, a third"] = scikit_learn_forest(train, test, options.trees, max_features=1 / 3)
        scale = 1.0 if train.is_classification else float(test.y.var())
        for library, found in forests.items():
            difference = (found.losses - forests["dboost"].losses) / scale
            error = f"{difference.std() / np.sqrt(len(difference)):.4f}" if library != "dboost" else ""
            cells = f"{found.losses.mean() / scale:.4f}", error, f"{found.brier:.4f}", f"{found.out_of_bag:.4f}"
            drawn.add_row(name if library == "dboost" else "", library, *cells, f"{found.seconds:.1f}")
    Console(width=120).print(drawn)


if __name__ == "__main__":
    main()
