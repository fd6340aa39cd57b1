"""Random ensembles, one written by hand, and rows with values equal to their thresholds, just above and just below."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from dboost.model.ensemble import Ensemble, Tree
from dboost.schema import Feature

#: Thresholds: some are not float32 values, some are beyond the range of float32, some are the extremes of float64.
POOL = np.array([-np.inf, -1e300, -2.5, -1e-320, -0.0, 0.0, 1e-50, 0.1, 1 / 3, 1.0, 16_777_217.0, 1e38, 1e300, np.inf])
LEVELS: tuple[tuple[object, ...], ...] = (("a", "b", "c"), tuple(range(100)), (False, True), (0.5, 1.5, 2.5, "one"))


def random_tree(
    rng: np.random.Generator, features: tuple[Feature, ...], n_leaves: int, lean: float = 0.5, width: int = 1
) -> Tree:
    """A tree grown by splitting random leaves; `lean` near 0 or 1 makes it a chain to the left or right."""
    children: dict[int, tuple[int, int]] = {}
    open_leaves = [0]
    for split in range(n_leaves - 1):
        at = -1 if rng.random() < abs(2 * lean - 1) else int(rng.integers(len(open_leaves)))
        parent, pair = open_leaves.pop(at), (2 * split + 1, 2 * split + 2)
        children[parent] = pair
        open_leaves += pair if lean >= 0.5 else pair[::-1]
    order: list[int] = []
    to_visit = [0]
    while to_visit:
        order.append(to_visit.pop())
        to_visit += reversed(children.get(order[-1], ()))
    place = {node: i for i, node in enumerate(order)}
    n = len(order)
    feature, threshold = np.full(n, -1, np.int32), np.full(n, np.nan)
    left, right = np.full(n, -1, np.int32), np.full(n, -1, np.int32)
    missing_left = np.zeros(n, np.bool_)
    categories: list[np.ndarray | None] = [None] * n
    for node, (one, other) in children.items():
        i = place[node]
        left[i], right[i] = place[one], place[other]
        feature[i] = rng.integers(len(features))
        missing_left[i] = rng.random() < 0.5
        levels = features[feature[i]].categories
        if levels is None:
            threshold[i] = rng.choice(POOL) if rng.random() < 0.7 else rng.normal()
        else:
            categories[i] = np.flatnonzero(rng.random(len(levels)) < 0.5).astype(np.int32)
    gain = np.where(feature < 0, 0.0, rng.exponential(size=n))
    cover, count = rng.exponential(size=n), rng.integers(1, 1000, n)
    value = rng.normal(size=n if width == 1 else (n, width))
    return Tree(feature, threshold, tuple(categories), missing_left, left, right, gain, cover, count, value)


def random_ensemble(
    seed: int,
    n_iterations: int = 3,
    n_leaves: int = 6,
    n_outputs: int = 1,
    with_categories: bool = True,
    lean: float = 0.5,
    is_wide: bool = False,
) -> Ensemble:
    """Return an ensemble of random trees over five features, two of them categorical if wanted.

    is_wide : whether a tree has a value for each output.
    """
    rng = np.random.default_rng(seed)
    features = tuple(
        Feature(f"x{j}", LEVELS[int(rng.integers(len(LEVELS)))] if with_categories and j in (1, 3) else None)  # type: ignore[arg-type]
        for j in range(5)
    )
    width = n_outputs if is_wide else 1
    trees = tuple(random_tree(rng, features, n_leaves, lean, width) for _ in range(n_iterations * n_outputs // width))
    edges = tuple(None if feature.is_categorical else np.unique(rng.normal(size=4)) for feature in features)
    return Ensemble(
        features=features,
        named=True,
        loss={"name": "squared_error"} if n_outputs == 1 else {"name": "log_loss", "n_classes": n_outputs},
        classes=None if n_outputs == 1 else tuple(f"class {k}" for k in range(n_outputs)),
        classes_dtype=None if n_outputs == 1 else "object",
        baseline=rng.normal(size=n_outputs),
        trees=trees,
        edges=edges,
        parameters={"learning_rate": 0.1, "max_leaf_nodes": n_leaves, "quantile": None},
        sources=({"label": "first", "rows": 1000, "first_iteration": 1, "last_iteration": n_iterations},),
        metrics={"train_loss": tuple(rng.exponential(size=n_iterations).tolist())},
        width=width,
    )


def random_rows(seed: int, ensemble: Ensemble, n_rows: int, precision: type = np.float64) -> np.ndarray:
    """Rows around the thresholds, with missing values, infinities and every code."""
    rng = np.random.default_rng(seed)
    rows = np.empty((n_rows, len(ensemble.features)), precision)
    thresholds = np.concatenate([POOL, *(tree.threshold[np.isfinite(tree.threshold)] for tree in ensemble.trees)])
    with np.errstate(over="ignore"):
        at = thresholds.astype(precision)
        around = np.concatenate([at, np.nextafter(at, precision(-np.inf)), np.nextafter(at, precision(np.inf))])
    for j, feature in enumerate(ensemble.features):
        rows[:, j] = (
            rng.choice(around, n_rows) if feature.categories is None else rng.integers(len(feature.categories), size=n_rows)
        )
    rows[rng.random(rows.shape) < 0.2] = np.nan
    return rows


SMALL = random_ensemble(1, n_iterations=2, n_leaves=4)


#: A category goes left to a leaf, or right to a split by a number.
SPLIT, LEAF = 2, 1
BY_HAND = Ensemble(
    features=(Feature("size"), Feature("town", ("Bonn", "Gent", "Lyon"))),
    named=True,
    loss={"name": "squared_error"},
    classes=None,
    classes_dtype=None,
    baseline=np.array([0.25]),
    trees=(
        Tree(
            feature=np.array([1, -1, 0, -1, -1], np.int32),
            threshold=np.array([np.nan, np.nan, 0.5, np.nan, np.nan]),
            categories=(np.array([0, 2], np.int32), None, None, None, None),
            missing_left=np.array([True, False, False, False, False]),
            left=np.array([1, -1, 3, -1, -1], np.int32),
            right=np.array([2, -1, 4, -1, -1], np.int32),
            gain=np.array([2.0, 0.0, 1.0, 0.0, 0.0]),
            cover=np.array([5.0, 2.0, 3.0, 1.0, 2.0]),
            count=np.array([5, 2, 3, 1, 2]),
            value=np.array([0.0, 1.0, -1.0, 0.5, -0.5]),
        ),
    ),
    edges=(np.array([0.5, 1.5]), None),
    metrics={"train_loss": (1.0,)},
    sources=({"label": None, "rows": 5, "first_iteration": 1, "last_iteration": 1},),
)


def same(a: Any, b: Any) -> bool:
    """Equal in value, type and, for numbers, in every bit."""
    if isinstance(a, Tree | Ensemble | Feature):
        return type(a) is type(b) and all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, tuple | list):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return set(a) == set(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    return type(a) is type(b) and (a == b or a != a)
