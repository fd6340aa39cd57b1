"""A trained model as plain data: features, trees, where the raw score starts, and how it came to be.

The raw score of a row is ``baseline[k] + sum of the values of the leaves it reaches in the trees of output k``. There are
K outputs: one for regression and two-class problems, one per class for K classes; an iteration adds K trees, in class
order. An ensemble is never changed: training extends it into a new one.

One regression tree as arrays.

Nodes are numbered in depth-first order, the left child directly after its parent (so the left child of node i is i + 1
whenever i is split). The numbering is a function of the tree's shape alone, not of the order in which its leaves were
opened, and the leaves read from left to right are 0, 1, 2, ….

A split sends a row left

* on a numeric feature, when ``value <= threshold``;
* on a categorical feature, when the row's level is one of `categories`;
* when the value is missing (or a level never seen), when `missing_left`.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dboost.errors import ParameterError
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

    @property
    def output_names(self) -> list[Any]:
        """Names of the outputs: the classes, of two classes the second one; [None] for regression."""
        if self.classes is None:
            return [None] * self.n_outputs
        return list(self.classes) if self.n_outputs > 1 else [self.classes[-1]]

    def feature_positions(self, wanted: Any, *, at_most: int | None = None) -> list[int]:
        """Return the positions of features that the user names.

        Parameters
        ----------
        wanted : str, int, or sequence of these
            Names or positions.
        at_most : int, optional
            Largest number of features. Default: no limit.

        Raises
        ------
        ParameterError
            For a feature that the model does not have, one that is given twice, no feature or too many.
        """
        items: Sequence[Any] = [wanted] if isinstance(wanted, str | int | np.integer) else list(wanted)
        found = [self._feature_position(item) for item in items]
        if not found:
            raise ParameterError("name at least one feature")
        if at_most is not None and len(found) > at_most:
            raise ParameterError(f"{len(found)} features were given, at most {at_most} are possible")
        twice = [item for i, item in enumerate(items) if found[i] in found[:i]]
        if twice:
            raise ParameterError(f"feature {twice[0]!r} is given twice")
        return found

    def _feature_position(self, item: Any) -> int:
        names = [feature.name for feature in self.features]
        if isinstance(item, str):
            if item in names:
                return names.index(item)
            near = difflib.get_close_matches(item, names, n=3)
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise ParameterError(f"the model has no feature {item!r}{hint}")
        if isinstance(item, int | np.integer) and not isinstance(item, bool) and 0 <= item < len(names):
            return int(item)
        raise ParameterError(f"feature {item!r} is neither a name nor a position between 0 and {len(names) - 1}")


@dataclass(frozen=True, eq=False)
class Tree:
    """A fitted tree.

    Attributes
    ----------
    feature : int32[n_nodes]
        Index of the feature that the node splits on, -1 in a leaf.
    threshold : float64[n_nodes]
        Numeric splits: the largest value that goes left. NaN in leaves and categorical splits.
    categories : tuple of (int32[...] or None)
        Categorical splits: sorted codes of the levels that go left (indices into the feature's `levels`); else None.
    missing_left : bool[n_nodes]
        Where missing values and unseen levels go. False in leaves.
    left, right : int32[n_nodes]
        Children, -1 in leaves.
    gain : float64[n_nodes]
        Loss reduction by the split (0 in leaves), in the units of the loss summed over rows.
    cover : float64[n_nodes]
        Sum of the rows' Hessians (sum of weights when the Hessian is constant).
    count : int64[n_nodes]
        Number of training rows (of positive weight).
    value : float64[n_nodes]
        What a row ending here adds to the raw score, learning rate included. Internal nodes hold what they would add as leaves.
    """

    feature: np.ndarray
    threshold: np.ndarray
    categories: tuple[np.ndarray | None, ...]
    missing_left: np.ndarray
    left: np.ndarray
    right: np.ndarray
    gain: np.ndarray
    cover: np.ndarray
    count: np.ndarray
    value: np.ndarray

    @property
    def n_nodes(self) -> int:
        return len(self.feature)

    @property
    def n_leaves(self) -> int:
        return int((self.feature < 0).sum())

    @property
    def depth(self) -> int:
        """Number of splits on the longest path (0 for a single leaf)."""
        level = np.zeros(self.n_nodes, np.int32)
        for node in np.flatnonzero(self.feature >= 0):
            level[self.left[node]] = level[self.right[node]] = level[node] + 1
        return int(level.max())
