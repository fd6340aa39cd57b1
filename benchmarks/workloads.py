"""The tables on which speed is measured: generated, so that they can have any size, and shaped like measured ones.

The features are normal; from 28 features on, some are skewed, some take three values and some are noisy products or sums of
others, as in particle physics. The target depends on a handful of them through products, waves, kinks and steps, plus a little
on all of the first 24, so that there is signal at every depth; the noise leaves an AUC of about 0.8.

Some workloads measure tables of another shape: one-hot columns, sorted rows, heavy ties, missing values, categorical columns,
several classes, losses with medians as leaf values; one measures the cost of counting the rows of leaves.

A table is generated once and kept under ``benchmarks/data`` as plain NumPy files.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dboost._lazy_import import pd  # not imported for training on arrays: its memory would be counted

FOLDER = Path(__file__).parent / "data"
BLOCK = 250_000
#: Where a score is cut into classes, by kind of target.
CUTS = {"classes": [-1.0, -0.3, 0.3, 1.0], "ten classes": [-1.5, -1.0, -0.6, -0.3, 0.0, 0.3, 0.6, 1.0, 1.5]}


@dataclass(frozen=True)
class Workload:
    """One race: a table and the shape of its trees (31 leaves best-first, or full levels down to depth 6).

    Attributes
    ----------
    kind : "binary", "regression", "classes" or "ten classes"
        The kind of target; "classes" has five.
    shape : "plain", "sorted", "ties", "missing", "one-hot" or "categories"
        The kind of features.
    loss : str
        dboost's name.
    min_rows : int
        Smallest number of rows of a leaf.
    """

    name: str
    rows: int
    features: int
    kind: str
    trees: int
    growth: str = "best_first"  # or "depth_wise"
    test_rows: int = 200_000
    shape: str = "plain"
    loss: str = "log_loss"
    min_rows: int = 1

    @property
    def n_classes(self) -> int:
        return len(CUTS[self.kind]) + 1 if self.kind in CUTS else 2 * (self.kind == "binary")

    @property
    def max_leaves(self) -> int:
        return 31 if self.growth == "best_first" else 64

    @property
    def max_depth(self) -> int | None:
        return None if self.growth == "best_first" else 6

    @property
    def n_trees(self) -> int:
        """Trees of all iterations: with several classes an iteration has one tree per class."""
        return self.trees * (self.n_classes if self.n_classes > 2 else 1)

    def quick(self) -> Workload:
        """Return the same race with a run time of about a second."""
        return replace(self, rows=self.rows // 200 + 2_000, features=min(self.features, 60), trees=5, test_rows=2_000)

    def __str__(self) -> str:
        shape = "31 leaves best-first" if self.growth == "best_first" else "depth 6"
        special = "" if self.shape == "plain" else f"{self.shape}, "
        shape += f" of {self.min_rows} rows" if self.min_rows > 1 else ""
        return f"{self.name}: {self.rows:,} × {self.features} {self.kind}, {special}{self.loss}, {shape}, {self.trees} trees"


#: The main workloads, and those of other shapes.
MAIN = (
    Workload("W1a", 1_000_000, 28, "binary", 100),
    Workload("W1b", 1_000_000, 28, "binary", 100, growth="depth_wise"),
    Workload("W2", 5_000_000, 28, "binary", 30),
    Workload("W3", 200_000, 500, "binary", 30),
    Workload("W4", 10_000, 10, "binary", 500, test_rows=50_000),
    Workload("W5", 1_000_000, 28, "regression", 100, loss="squared_error"),
)
OTHERS = (
    Workload("sorted", 1_000_000, 28, "binary", 50, shape="sorted"),
    Workload("ties", 1_000_000, 28, "binary", 50, shape="ties"),
    Workload("missing", 1_000_000, 28, "binary", 50, shape="missing"),
    Workload("categories", 500_000, 12, "binary", 50, shape="categories"),
    Workload("one-hot", 300_000, 300, "binary", 30, shape="one-hot"),
    Workload("2000 columns", 50_000, 2_000, "binary", 10, test_rows=10_000),
    Workload("leaves of 20", 10_000, 10, "binary", 500, test_rows=50_000, min_rows=20),
    Workload("classes", 300_000, 28, "classes", 20),
    Workload("absolute", 500_000, 28, "regression", 30, loss="absolute_error"),
    Workload("huber", 500_000, 28, "regression", 30, loss="huber"),
)
WORKLOADS = {workload.name: workload for workload in MAIN + OTHERS}


@dataclass(frozen=True, eq=False)
class Table:
    """float32 features (or a frame, if there are categories), and a target of class numbers or of real numbers."""

    X: np.ndarray | pd.DataFrame
    y: np.ndarray
    X_test: np.ndarray | pd.DataFrame
    y_test: np.ndarray


def folder_of(workload: Workload) -> Path:
    """Return the folder of the table of a workload; workloads with equal tables share it."""
    shape = "" if workload.shape == "plain" else f"-{workload.shape}"
    return FOLDER / f"{workload.rows}x{workload.features}-{workload.kind}-{workload.test_rows}{shape}"


def load(workload: Workload) -> Table:
    """Return the table of a workload; it is generated if it does not exist."""
    folder = folder_of(workload)
    if not folder.exists():
        FOLDER.mkdir(exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=FOLDER))
        try:
            _make(workload, draft)
            os.rename(draft, folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return Table(*(read(workload, name) for name in ("X", "y", "X_test", "y_test")))


def read(workload: Workload, name: str) -> np.ndarray | pd.DataFrame:
    """Return one array of an existing table, in the form that the libraries need."""
    array = np.load(folder_of(workload) / f"{name}.npy")
    return as_libraries_need(workload, array) if name.startswith("X") else array


def as_libraries_need(workload: Workload, array: np.ndarray) -> np.ndarray | pd.DataFrame:
    """Return features as they are, or as a frame where some are categories."""
    if workload.shape != "categories":
        return array
    columns = {f"x{j}": array[:, j] for j in range(array.shape[1])}
    for j, n_levels in enumerate(_levels(workload.features)):
        columns[f"x{j}"] = pd.Categorical.from_codes(array[:, j].astype(np.int32), categories=range(n_levels))
    return pd.DataFrame(columns)


def _levels(n_features: int) -> list[int]:
    """Return the numbers of categories of the first third of the columns. (scikit-learn allows at most 255.)"""
    return [(12, 60, 250, 250)[j % 4] for j in range(n_features // 3)]


def parts(rows: int, features: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the features and classes of a plain binary table, block by block, for tables larger than memory."""
    for part, rng in _blocks(rows, seed):
        X = _features(part.stop - part.start, features, rng)
        yield X, _target(_score(X), "binary", rng)


def _make(workload: Workload, folder: Path) -> None:
    for suffix, rows, seed in (("", workload.rows, 1), ("_test", workload.test_rows, 2)):
        X, y = generate(workload, rows, seed)
        np.save(folder / f"X{suffix}.npy", X)
        np.save(folder / f"y{suffix}.npy", y)


def generate(workload: Workload, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return features and target of new rows (float32)."""
    X = np.empty((rows, workload.features), np.float32)
    y = np.empty(rows, np.float32)
    for part, rng in _blocks(rows, seed):
        X[part] = _features(part.stop - part.start, workload.features, rng)
        score = _reshape(X[part], workload, rng)
        y[part] = _target(score, workload.kind, rng)
    if workload.shape == "sorted":
        order = np.argsort(X[:, 0], kind="stable")
        X, y = X[order], y[order]
    return X, y


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


def _reshape(X: np.ndarray, workload: Workload, rng: np.random.Generator) -> np.ndarray:
    """Change the shape of features in place; return the score on which the target depends."""
    if workload.shape == "ties":
        X[:] = np.round(X * 2) / 2
    if workload.shape == "one-hot":  # groups of ten columns, one of which is 1
        score = _score(X)
        for first in range(0, X.shape[1], 10):
            group = X[:, first : first + 10]
            group[:] = np.eye(group.shape[1])[group.argmax(axis=1)]
        return score
    score = _score(X)
    if workload.shape == "missing":
        X[rng.random(X.shape, dtype=np.float32) < 0.05] = np.nan
    if workload.shape == "categories":
        for j, n_levels in enumerate(_levels(X.shape[1])):
            # A category is a quantile range of the normal distribution, but the categories are shuffled.
            cell = np.clip((X[:, j] + 3) / 6 * n_levels, 0, n_levels - 1).astype(np.int64)
            X[:, j] = np.random.default_rng(j).permutation(n_levels)[cell]
    return score


def _score(X: np.ndarray) -> np.ndarray:
    slopes = np.random.default_rng(11).normal(scale=0.15, size=min(X.shape[1], 24)).astype(np.float32)
    score = X[:, : len(slopes)] @ slopes
    score += X[:, 0] * X[:, 1] + 0.7 * np.sin(2 * X[:, 2]) + 0.6 * np.abs(X[:, 3]) - 0.5 * np.tanh(2 * X[:, 9])
    score += np.where(X[:, 4] > 0.5, -0.6 * X[:, 5], 0.2) + 0.4 * X[:, 6] * (X[:, 7] > 0) + 0.2 * X[:, 8] ** 2
    return score - 0.7  # about the mean of the added terms, so that the classes are balanced


def _target(score: np.ndarray, kind: str, rng: np.random.Generator) -> np.ndarray:
    if kind == "binary":
        return rng.random(len(score)) < 1 / (1 + np.exp(-score))
    noisy = score / 1.5 + 0.5 * rng.standard_normal(len(score), dtype=np.float32)
    return noisy if kind == "regression" else np.digitize(noisy, CUTS[kind])
