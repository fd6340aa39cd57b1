"""A trained model as plain data: features, trees, where the raw score starts, and how it came to be.

The raw score of a row is ``baseline[k] + sum of the values of the leaves it reaches in the trees of output k``. There are
K outputs: one for regression and two-class problems, one per class for K classes; an iteration adds K trees, in class
order. An ensemble is never changed: training extends it into a new one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dboost.model.tree import Tree
from dboost.schema import Feature, Level


@dataclass(frozen=True, eq=False)
class Ensemble:
    """All that a model learned; a function of data, parameters and seed, with nothing of the machine in it.

    Attributes
    ----------
    features : tuple of Feature
    named : bool
        False when the model was trained on an array without column names (the features are then called f0, f1, …).
    loss : dict
        ``{"name": …}`` and the loss's own parameters; `dboost.losses.from_dict` gives it life.
    classes : tuple of levels, or None for regression
        In the order of the columns of `predict_proba`.
    classes_dtype : str or None
        NumPy dtype of the classes (``"int64"``, ``"object"``, …), so that predictions have the target's dtype.
    baseline : float64[n_outputs]
        Raw score before the first tree.
    trees : tuple of Tree
        Iteration by iteration, within one in class order.
    edges : tuple of (float64[...] or None)
        Numeric features: the proposed split points, ascending; None for categorical ones.
    parameters : dict
        Those of the first fit that shape learning (JSON types only).
    sources : tuple of dict
        One per fit: label, rows, first and last iteration, parameters, digest of schema and counts.
    metrics : dict of name -> tuple of float
        Per iteration: ``train_loss`` and ``<eval set>_<metric>``, also of iterations that early stopping dropped.
    best_iteration : int or None
        1-based number of iterations kept by early stopping; None without it.
    """

    features: tuple[Feature, ...]
    named: bool
    loss: dict[str, Any]
    classes: tuple[Level, ...] | None
    classes_dtype: str | None
    baseline: np.ndarray
    trees: tuple[Tree, ...] = ()
    edges: tuple[np.ndarray | None, ...] = ()
    parameters: dict[str, Any] = field(default_factory=dict)
    sources: tuple[dict[str, Any], ...] = ()
    metrics: dict[str, tuple[float, ...]] = field(default_factory=dict)
    best_iteration: int | None = None

    @property
    def n_outputs(self) -> int:
        return len(self.baseline)

    @property
    def n_iterations(self) -> int:
        return len(self.trees) // self.n_outputs

    def extend(self, trees: tuple[Tree, ...]) -> Ensemble:
        """The same model with one more iteration (one tree per output)."""
        return replace(self, trees=self.trees + tuple(trees))

    def truncate(self, n_iterations: int) -> Ensemble:
        """The same model with only the first iterations."""
        return replace(self, trees=self.trees[: n_iterations * self.n_outputs])
