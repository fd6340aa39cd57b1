"""One tree for all classes beside a tree for each class: time, and log loss on held-out rows, also of XGBoost.

    python -m benchmarks.multi_output --rows 50000 --classes 20 --iterations 100

Equal settings: 31 leaves, best first, learning rate 0.1, λ = 1. Fits alternate; the shortest of `--rounds` times is reported.
Time is that of the whole fit, binning included. Libraries that are not installed are left out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import dboost

STRATEGIES = ("one_output_per_tree", "multi_output_tree")
#: Returns seconds and the probabilities of the test rows after each of some numbers of iterations.
Fit = Callable[[str], tuple[float, list[np.ndarray]]]


def make(n_rows: int, n_features: int, n_classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Generate features and classes: the largest of `n_classes` noisy scores, which share six functions of the features."""
    rng, of_classes = np.random.default_rng(seed), np.random.default_rng(5)
    X = rng.standard_normal((n_rows, n_features))
    functions = [X[:, 0] * X[:, 1], np.sin(2 * X[:, 2]), np.abs(X[:, 3]), X[:, 4] > 0.5, X[:, 5], X[:, 6] * (X[:, 7] > 0)]
    scores = np.stack(functions, axis=1) @ of_classes.standard_normal((6, n_classes))
    return X, (scores + 0.5 * rng.standard_normal(scores.shape)).argmax(axis=1)


def dboost_fit(train: tuple, X: np.ndarray, marks: Sequence[int], threads: int) -> Fit:
    def fit(strategy: str) -> tuple[float, list[np.ndarray]]:
        began = time.perf_counter()
        booster = dboost.fit(
            *train, loss="log_loss", multi_strategy=strategy, max_iter=max(marks), min_samples_leaf=1, n_threads=threads
        )
        seconds = time.perf_counter() - began
        return seconds, [booster.truncate(mark).predict_proba(X) for mark in marks]

    return fit


def xgboost_fit(train: tuple, X: np.ndarray, marks: Sequence[int], threads: int) -> Fit:
    import xgboost

    def fit(strategy: str) -> tuple[float, list[np.ndarray]]:
        settings: dict[str, Any] = {
            "objective": "multi:softprob", "num_class": int(train[1].max()) + 1, "multi_strategy": strategy, "eta": 0.1,
            "max_leaves": 31, "max_depth": 0, "grow_policy": "lossguide", "tree_method": "hist", "max_bin": 255,
            "nthread": threads,
        }  # fmt: skip
        began = time.perf_counter()
        rows = xgboost.QuantileDMatrix(train[0], train[1], max_bin=255, nthread=threads)
        booster = xgboost.train(settings, rows, max(marks))
        seconds = time.perf_counter() - began
        return seconds, [booster.predict(xgboost.DMatrix(X), iteration_range=(0, mark)) for mark in marks]

    return fit


def log_loss(probabilities: np.ndarray, y: np.ndarray) -> float:
    return float(-np.log(np.maximum(probabilities[np.arange(len(y)), y], 1e-15)).mean())


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.multi_output", description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--features", type=int, default=28)
    parser.add_argument("--classes", type=int, default=20)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(argv)
    shape = options.features, options.classes
    train, (X, y) = make(options.rows, *shape, 1), make(20_000, *shape, 2)
    marks = sorted({max(options.iterations // part, 1) for part in (5, 2, 1)})
    fits = {"dboost": dboost_fit(train, X, marks, options.threads)}
    with suppress(ImportError):
        fits["XGBoost"] = xgboost_fit(train, X, marks, options.threads)
    for strategy in STRATEGIES:  # kernels are compiled
        dboost_fit((train[0][:500], train[1][:500]), X[:10], [1], options.threads)(strategy)
    seconds: dict[tuple[str, str], list[float]] = {}
    losses: dict[tuple[str, str], list[float]] = {}
    for _ in range(options.rounds):
        for name, fit in fits.items():
            for strategy in STRATEGIES:
                took, predicted = fit(strategy)
                seconds.setdefault((name, strategy), []).append(took)
                losses[name, strategy] = [log_loss(of, y) for of in predicted]
    drawn = Table(title=f"{options.rows:,} × {options.features}, {options.classes} classes, {options.threads} threads")
    for column in ("library", "multi_strategy", "seconds", "times as fast", *(f"log loss, {mark}" for mark in marks)):
        drawn.add_column(column, justify="right")
    slowest = min(seconds["dboost", STRATEGIES[0]])
    for (name, strategy), took in seconds.items():
        speed = f"{slowest / min(took):.2f}"
        drawn.add_row(name, strategy, f"{min(took):.2f}", speed, *(f"{loss:.4f}" for loss in losses[name, strategy]))
    Console(width=120).print(drawn)


if __name__ == "__main__":
    main()
