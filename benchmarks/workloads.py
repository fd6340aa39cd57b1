"""The tables that speed is measured on: made, so that they can have any size, and shaped like measured ones.

The features are normal; from 28 features on, some are skewed, some take three values and some are noisy products or
sums of others, as in particle physics. The target depends on a handful of them through products, waves, kinks and
steps, plus a little on all of the first 24, so that there is something to find at every depth; the noise leaves an AUC
of about 0.8.

A table is made once and kept under ``benchmarks/data`` as plain NumPy files.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent / "data"
BLOCK = 250_000


@dataclass(frozen=True)
class Workload:
    """One race: a table and how the trees grow (31 leaves best-first, or full levels down to depth 6)."""

    name: str
    rows: int
    features: int
    kind: str  # "binary" or "regression"
    trees: int
    growth: str = "best_first"  # or "depth_wise"
    test_rows: int = 200_000

    @property
    def is_binary(self) -> bool:
        return self.kind == "binary"

    @property
    def max_leaves(self) -> int:
        return 31 if self.growth == "best_first" else 64

    @property
    def max_depth(self) -> int | None:
        return None if self.growth == "best_first" else 6

    def quick(self) -> Workload:
        """The same race in a second."""
        return replace(self, rows=self.rows // 200 + 2_000, features=min(self.features, 60), trees=5, test_rows=2_000)

    def __str__(self) -> str:
        shape = "31 leaves best-first" if self.growth == "best_first" else "depth 6"
        return f"{self.name}: {self.rows:,} × {self.features} {self.kind}, {shape}, {self.trees} trees"


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("W1a", 1_000_000, 28, "binary", 100),
        Workload("W1b", 1_000_000, 28, "binary", 100, growth="depth_wise"),
        Workload("W2", 5_000_000, 28, "binary", 30),
        Workload("W3", 200_000, 500, "binary", 30),
        Workload("W4", 10_000, 10, "binary", 500, test_rows=50_000),
        Workload("W5", 1_000_000, 28, "regression", 100),
    )
}


@dataclass(frozen=True, eq=False)
class Table:
    """float32 features, and a target of zeros and ones or of real numbers."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def folder_of(workload: Workload) -> Path:
    """Where the table of a workload is kept; workloads of equal tables share it."""
    return FOLDER / f"{workload.rows}x{workload.features}-{workload.kind}-{workload.test_rows}"


def load(workload: Workload) -> Table:
    """The table of a workload, made now if it was not before."""
    folder = folder_of(workload)
    if not folder.exists():
        FOLDER.mkdir(exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=FOLDER))
        try:
            _make(workload, draft)
            os.rename(draft, folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return Table(**{name: np.load(folder / f"{name}.npy") for name in ("X", "y", "X_test", "y_test")})


def _make(workload: Workload, folder: Path) -> None:
    for suffix, rows, seed in (("", workload.rows, 1), ("_test", workload.test_rows, 2)):
        X = np.empty((rows, workload.features), np.float32)
        y = np.empty(rows, np.float32)
        for part, rng in _blocks(rows, seed):
            X[part] = _features(part.stop - part.start, workload.features, rng)
            y[part] = _target(X[part], workload.is_binary, rng)
        np.save(folder / f"X{suffix}.npy", X)
        np.save(folder / f"y{suffix}.npy", y)


def _blocks(rows: int, seed: int) -> Iterator[tuple[slice, np.random.Generator]]:
    for block, start in enumerate(range(0, rows, BLOCK)):
        yield slice(start, min(start + BLOCK, rows)), np.random.default_rng([seed, block])


def _features(rows: int, features: int, rng: np.random.Generator) -> np.ndarray:
    X = rng.standard_normal((rows, features), dtype=np.float32)
    if features >= 28:
        X[:, 12:20] = np.exp(X[:, 12:20] / 2)
        X[:, 20:24] = np.digitize(X[:, 20:24], [0.2, 1.0])
        X[:, 24] = 0.8 * X[:, 24] + X[:, 0] * X[:, 1]
        X[:, 25] = 0.3 * X[:, 25] + np.abs(X[:, 2] + X[:, 3])
        X[:, 26] += X[:, 6] * X[:, 7]
        X[:, 27] = X[:, 12] + X[:, 13]
    return X


def _target(X: np.ndarray, is_binary: bool, rng: np.random.Generator) -> np.ndarray:
    slopes = np.random.default_rng(11).normal(scale=0.15, size=min(X.shape[1], 24)).astype(np.float32)
    score = X[:, : len(slopes)] @ slopes
    score += X[:, 0] * X[:, 1] + 0.7 * np.sin(2 * X[:, 2]) + 0.6 * np.abs(X[:, 3]) - 0.5 * np.tanh(2 * X[:, 9])
    score += np.where(X[:, 4] > 0.5, -0.6 * X[:, 5], 0.2) + 0.4 * X[:, 6] * (X[:, 7] > 0) + 0.2 * X[:, 8] ** 2
    score -= 0.7  # about the mean of what was added, so that the classes are balanced
    if is_binary:
        return rng.random(len(X)) < 1 / (1 + np.exp(-score))
    return score / 1.5 + 0.5 * rng.standard_normal(len(X), dtype=np.float32)
