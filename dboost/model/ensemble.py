"""`Ensemble`: a trained model as plain data, and `Tree`: a regression tree as arrays.

The raw score of a row is ``baseline[k]`` plus the values of the leaves that the row reaches in the trees of output k. There is
one output for regression and two classes, and one per class for K > 2 classes; an iteration has one tree per output, in class
order. Ensembles and trees are immutable.

Nodes are numbered in depth-first order with the left child directly after its parent. The numbering depends on the shape of
the tree only, not on the order in which it was grown, and the leaves are 0, 1, 2, … from left to right.

A split sends a row left

* on a numeric feature, if ``value <= threshold``;
* on a categorical feature, if the row's level is one of `categories`;
* if the value is missing or an unknown level, as `missing_left` says.
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
    """A trained model: a function of data, parameters and seed, independent of the machine."""

    features: tuple[Feature, ...]
    #: False for a model trained on an array without column names; the features are then f0, f1, ….
    named: bool
    #: ``{"name": …}`` and the loss's parameters; `dboost.losses.from_dict` makes the loss.
    loss: dict[str, Any]
    #: Levels in the order of the columns of `predict_proba`; None for regression.
    classes: tuple[Level, ...] | None
    #: NumPy dtype of the classes (``"int64"``, ``"object"``, …), that of the target.
    classes_dtype: str | None
    #: float64[n_outputs], raw score before the first tree.
    baseline: np.ndarray
    #: Iteration by iteration, within an iteration in class order.
    trees: tuple[Tree, ...] = ()
    #: Candidate split points of each numeric feature, ascending; None for a categorical one.
    edges: tuple[np.ndarray | None, ...] = ()
    #: Parameters of the first fit that shape learning (JSON types only).
    parameters: dict[str, Any] = field(default_factory=dict)
    #: One record per fit: label, rows, first and last iteration, parameters, digest of schema and counts.
    sources: tuple[dict[str, Any], ...] = ()
    #: ``train_loss`` and ``<eval set>_<metric>`` per iteration, including iterations that early stopping dropped.
    metrics: dict[str, tuple[float, ...]] = field(default_factory=dict)
    #: Number of iterations that early stopping kept; None without it.
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
    """A regression tree; all arrays have one entry per node."""

    #: int32, index of the feature that the node splits on; -1 in a leaf.
    feature: np.ndarray
    #: float64, for numeric splits the largest value that goes left; NaN in leaves and categorical splits.
    threshold: np.ndarray
    #: For categorical splits int32, sorted codes of the categories that go left (indices into `Feature.categories`); else None.
    categories: tuple[np.ndarray | None, ...]
    #: bool, whether missing values and unknown levels go left; False in leaves.
    missing_left: np.ndarray
    #: int32, children; -1 in leaves.
    left: np.ndarray
    right: np.ndarray
    #: float64, loss reduction by the split in units of the loss summed over rows; 0 in leaves.
    gain: np.ndarray
    #: float64, sum of the rows' Hessians (sum of weights for a constant Hessian).
    cover: np.ndarray
    #: int64, number of training rows with positive weight.
    count: np.ndarray
    #: float64, the leaf's term of the raw score, learning rate included; internal nodes hold their value as a leaf.
    value: np.ndarray

    @property
    def n_nodes(self) -> int:
        return len(self.feature)

    @property
    def n_leaves(self) -> int:
        return int((self.feature < 0).sum())

    @property
    def depth(self) -> int:
        """Number of splits on the longest path; 0 for a single leaf."""
        level = np.zeros(self.n_nodes, np.int32)
        for node in np.flatnonzero(self.feature >= 0):
            level[self.left[node]] = level[self.right[node]] = level[node] + 1
        return int(level.max())
