"""One tree for all classes or targets beside a tree for each: time, and loss on held-out rows, also of XGBoost.

    python -m benchmarks.multi_output --rows 50000 --outputs 20 --iterations 100 --tables classes,mixtures,unlike

Settings are equal (31 leaves, best first, learning rate 0.1, λ = 1); dboost is also measured with twice the leaves and twice
the learning rate, which suit one tree for all outputs better. Fits alternate; the shortest of `--rounds` processor times is
reported, that of the whole fit, binning included. Libraries that are not installed are left out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

import dboost

Rows = tuple[np.ndarray, np.ndarray]


class Settings(NamedTuple):
    """What the fits differ in."""

    multi_strategy: str
    max_leaf_nodes: int = 31
    learning_rate: float = 0.1


EACH, ONE = Settings("one_output_per_tree"), Settings("multi_output_tree")
OF_DBOOST = (EACH, ONE, *(settings._replace(max_leaf_nodes=63, learning_rate=0.2) for settings in (EACH, ONE)))
#: Returns the processor time, and the predictions of the test rows after each of some numbers of iterations.
Fit = Callable[[Settings], tuple[float, list[np.ndarray]]]


def make_classes(n_rows: int, n_features: int, n_classes: int, seed: int) -> Rows:
    """Generate features and classes: the largest of `n_classes` noisy scores, which share six functions of the features."""
    rng, of_classes = np.random.default_rng(seed), np.random.default_rng(5)
    X = rng.standard_normal((n_rows, n_features))
    functions = [X[:, 0] * X[:, 1], np.sin(2 * X[:, 2]), np.abs(X[:, 3]), X[:, 4] > 0.5, X[:, 5], X[:, 6] * (X[:, 7] > 0)]
    scores = np.stack(functions, axis=1) @ of_classes.standard_normal((6, n_classes))
    return X, (scores + 0.5 * rng.standard_normal(scores.shape)).argmax(axis=1)


def _functions(X: np.ndarray, n: int) -> np.ndarray:
    """Return n functions of four features each: float64[n_rows, n]."""
    a, b, c, d = (X[:, (np.arange(n) + j) % X.shape[1]] for j in range(4))
    return np.sin(a) + b * c + (d > 0.3)


def make_mixtures(n_rows: int, n_features: int, n_targets: int, seed: int) -> Rows:
    """Generate features and targets that are mixtures of five functions of the features, with noise of variance 1."""
    rng, of_targets = np.random.default_rng(seed), np.random.default_rng(5)
    X = rng.standard_normal((n_rows, n_features))
    return X, _functions(X, 5) @ of_targets.standard_normal((5, n_targets)) + rng.standard_normal((n_rows, n_targets))


def make_unlike(n_rows: int, n_features: int, n_targets: int, seed: int) -> Rows:
    """Generate features and targets, each of which is a function of its own, with noise of variance 1."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_rows, n_features))
    return X, _functions(X, n_targets) + rng.standard_normal((n_rows, n_targets))


TABLES = {"classes": make_classes, "mixtures": make_mixtures, "unlike": make_unlike}


def dboost_fit(train: Rows, X: np.ndarray, marks: Sequence[int], threads: int) -> Fit:
    loss = "log_loss" if train[1].ndim == 1 else "squared_error"

    def fit(settings: Settings) -> tuple[float, list[np.ndarray]]:
        began = time.process_time()
        booster = dboost.fit(
            *train, loss=loss, max_iter=max(marks), min_samples_leaf=1, n_threads=threads, progress=False, **settings._asdict()
        )
        seconds = time.process_time() - began
        models = map(booster.truncate, marks)
        return seconds, [np.asarray(of.predict_proba(X) if loss == "log_loss" else of.predict(X)) for of in models]

    return fit


def xgboost_fit(train: Rows, X: np.ndarray, marks: Sequence[int], threads: int) -> Fit:
    import xgboost

    of_classes = train[1].ndim == 1
    objective = {"objective": "multi:softprob", "num_class": int(train[1].max()) + 1} if of_classes else {}

    def fit(settings: Settings) -> tuple[float, list[np.ndarray]]:
        options: dict[str, Any] = objective | {
            "multi_strategy": settings.multi_strategy, "eta": settings.learning_rate, "max_leaves": settings.max_leaf_nodes,
            "max_depth": 0, "grow_policy": "lossguide", "tree_method": "hist", "max_bin": 255, "nthread": threads,
        }  # fmt: skip
        began = time.process_time()
        rows = xgboost.QuantileDMatrix(train[0], train[1], max_bin=255, nthread=threads)
        booster = xgboost.train(options, rows, max(marks))
        seconds = time.process_time() - began
        return seconds, [booster.predict(xgboost.DMatrix(X), iteration_range=(0, mark)) for mark in marks]

    return fit


def held_out_loss(predicted: np.ndarray, y: np.ndarray) -> float:
    """Return the log loss of probabilities, or the mean squared error of several targets."""
    if y.ndim == 2:
        return float(((predicted - y) ** 2).mean())
    return float(-np.log(np.maximum(predicted[np.arange(len(y)), y], 1e-15)).mean())


def measure(name: str, options: argparse.Namespace) -> Table:
    """Measure the fits of one table."""
    shape = options.features, options.outputs
    train, (X, y) = TABLES[name](options.rows, *shape, 1), TABLES[name](20_000, *shape, 2)
    marks = sorted({max(options.iterations // part, 1) for part in (5, 2, 1)})
    settings = {"dboost": OF_DBOOST, "XGBoost": (EACH, ONE)}
    fits = {"dboost": dboost_fit(train, X, marks, options.threads)}
    if not options.alone:
        with suppress(ImportError):
            fits["XGBoost"] = xgboost_fit(train, X, marks, options.threads)
    for one in (EACH, ONE):  # kernels are compiled
        dboost_fit((train[0][:500], train[1][:500]), X[:10], [2], options.threads)(one)
    seconds: dict[tuple[str, Settings], list[float]] = {}
    losses: dict[tuple[str, Settings], list[float]] = {}
    for _ in range(options.rounds):
        for library, fit in fits.items():
            for one in settings[library]:
                took, predicted = fit(one)
                seconds.setdefault((library, one), []).append(took)
                losses[library, one] = [held_out_loss(of, y) for of in predicted]
    drawn = Table(title=f"{options.rows:,} × {options.features}, {options.outputs} {name}, {options.threads} threads")
    of_marks = [f"{'log loss' if y.ndim == 1 else 'MSE'}, {mark}" for mark in marks]
    for column in ("library", "multi_strategy", "leaves", "rate", "seconds", "times as fast", *of_marks):
        drawn.add_column(column, justify="right")
    slowest = min(seconds["dboost", EACH])
    for (library, one), took in seconds.items():
        cells = one.multi_strategy, str(one.max_leaf_nodes), str(one.learning_rate), f"{min(took):.2f}"
        drawn.add_row(library, *cells, f"{slowest / min(took):.2f}", *(f"{loss:.4f}" for loss in losses[library, one]))
    return drawn


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.multi_output", description=__doc__.partition("\n")[0])
    parser.add_argument("--tables", default=",".join(TABLES), help="some of %(default)s")
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--features", type=int, default=28)
    parser.add_argument("--outputs", type=int, default=20)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--alone", action="store_true", help="without XGBoost, which takes most of the time")
    options = parser.parse_args(argv)
    for name in options.tables.split(","):
        Console(width=140).print(measure(name, options))


if __name__ == "__main__":
    main()
