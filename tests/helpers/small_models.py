"""Small models for tests of model files, one of them written by hand, and a comparison of every bit."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from dboost.model.ensemble import Ensemble, Tree
from dboost.schema import Feature
from tests.helpers.forests import random_ensemble

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
