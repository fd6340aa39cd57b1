"""`Ensemble`: a trained model as data; `Tree`: a regression tree as arrays; models derived from a model; a table of nodes.

The raw score of a row is ``baseline[k]`` plus the values of the leaves that the row reaches in the trees of output k. There is
one output for regression and two classes, and one per class for K > 2 classes; an iteration has one tree per output, in class
order. Ensembles and trees are immutable.

Nodes are numbered in depth-first order with the left child directly after its parent. The numbering depends on the shape of
the tree only, not on the order in which it was grown, and the leaves are 0, 1, 2, … from left to right.

A split sends a row left

* on a numeric feature, if ``value <= threshold``;
* on a categorical feature, if the row's level is one of `categories`;
* if the value is missing or an unknown level, as `missing_left` says.

New data may have levels of a categorical feature that the model does not have. They are appended to the feature's levels, so
no code changes its meaning. Old trees treat new levels as missing: their codes are added to the side of missing values. A
widened model (`widen`) gives every row the same score as before.

A model is a sum of trees, so trees can be removed (`truncate`, `drop_source`). Later trees were fitted to the residuals of
earlier ones: without its last trees a model equals an earlier state of itself, without trees in the middle it equals none.
"""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dboost._lazy_import import pd
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
        return int(self.depths.max())

    @property
    def depths(self) -> np.ndarray:
        """Number of splits above each node: int64[n_nodes]."""
        depths = np.zeros(self.n_nodes, np.int64)
        for node in np.flatnonzero(self.feature >= 0):
            depths[[self.left[node], self.right[node]]] = depths[node] + 1
        return depths


def widen(model: Ensemble, features: tuple[Feature, ...]) -> Ensemble:
    """Return the same model for features with more levels.

    Parameters
    ----------
    model : Ensemble
    features : tuple of Feature
        The model's features, categorical ones with levels appended.
    """
    added: dict[int, np.ndarray] = {}
    for j, (old, new) in enumerate(zip(model.features, features, strict=True)):
        if old.categories is None or new.categories is None or len(new.categories) == len(old.categories):
            continue
        added[j] = np.arange(len(old.categories), len(new.categories), dtype=np.int32)
    if not added:
        return model
    return replace(model, features=features, trees=tuple(_widened(tree, added) for tree in model.trees))


def _widened(tree: Tree, added: dict[int, np.ndarray]) -> Tree:
    categories = tuple(
        codes if codes is None or not missing_left or feature not in added else np.concatenate([codes, added[feature]])
        for codes, feature, missing_left in zip(tree.categories, tree.feature.tolist(), tree.missing_left, strict=True)
    )
    return replace(tree, categories=categories)


def truncate(model: Ensemble, n_iterations: int) -> Ensemble:
    """Return the model as it was after its first iterations; `Booster.truncate` documents it.

    Raises
    ------
    ParameterError
        For a number of iterations that the model does not have.
    """
    try:
        n = operator.index(n_iterations)
    except TypeError:
        raise ParameterError(f"n_iterations={n_iterations!r} must be an integer") from None
    if not 0 <= n <= model.n_iterations:
        raise ParameterError(f"n_iterations={n}: the model has {model.n_iterations} iterations")
    sources = tuple(
        source if source["last_iteration"] <= n else without_scores(source) | {"last_iteration": n}
        for source in model.sources
        if source["first_iteration"] <= n
    )
    return replace(
        model,
        trees=model.trees[: n * model.n_outputs],
        sources=sources,
        metrics={name: values[:n] for name, values in model.metrics.items()},
        best_iteration=model.best_iteration if model.best_iteration == n else None,
    )


def without_scores(source: dict[str, Any]) -> dict[str, Any]:
    """Return a source's record without the summary of scores, which belongs to the unedited model."""
    return source | {"summary": source["summary"] | {"scores": []}} if "summary" in source else source


def without_counts(model: Ensemble) -> Ensemble:
    """Return the model without values and counts of its training rows; `dboost.fit` documents it as ``keep_summary=False``.

    Its predictions are the same. The split candidates, the summaries, the numbers of rows and the sums of Hessians are removed,
    and the categories that no split distinguishes from unknown ones: those that no split lists, of features without a
    categorical split that sends missing values left (such a split sends its unlisted categories right).
    """
    used: dict[int, set[int]] = {}
    for tree in model.trees:
        for codes, feature, missing_left in zip(tree.categories, tree.feature.tolist(), tree.missing_left, strict=True):
            if codes is not None:
                levels = model.features[feature].categories
                assert levels is not None
                used.setdefault(feature, set()).update(range(len(levels)) if missing_left else codes.tolist())
    features, renumbered = [], {}
    for j, one in enumerate(model.features):
        if one.categories is not None:
            kept = np.array(sorted(used.get(j, ())), np.int64)
            renumbered[j] = kept
            one = replace(one, categories=tuple(one.categories[code] for code in kept))
        features.append(one)

    def without(tree: Tree) -> Tree:
        categories = tuple(
            codes if codes is None else np.searchsorted(renumbered[feature], codes).astype(np.int32)
            for codes, feature in zip(tree.categories, tree.feature.tolist(), strict=True)
        )
        return replace(tree, categories=categories, cover=np.zeros_like(tree.cover), count=np.zeros_like(tree.count))

    hidden = {"rows": None, "data_digest": None}
    sources = tuple({k: v for k, v in source.items() if k != "summary"} | hidden for source in model.sources)
    return replace(model, features=tuple(features), trees=tuple(map(without, model.trees)), edges=(), sources=sources)


def drop_source(model: Ensemble, which: int | str) -> Ensemble:
    """Return the model without the trees of one source; `Booster.drop_source` documents it.

    Parameters
    ----------
    model : Ensemble
    which : int or str
        Number of the source (negative: from the end), or its label.

    Raises
    ------
    ParameterError
        For a source that does not exist, a label that is not unique, or the only source.
    """
    number = number_of(model, which)
    if len(model.sources) == 1:
        raise ParameterError("the only source of a model cannot be dropped")
    gone = model.sources[number]
    first, last = gone["first_iteration"] - 1, gone["last_iteration"]
    k, n = model.n_outputs, model.n_iterations
    later = [
        without_scores(source) | {name: source[name] - last + first for name in ("first_iteration", "last_iteration")}
        for source in model.sources[number + 1 :]
    ]
    # Metrics that were measured with the dropped trees are not valid.
    unknown = (math.nan,) * (n - last)
    sources = (*model.sources[:number], *later)
    return replace(
        model,
        trees=model.trees[: first * k] + model.trees[last * k :],
        sources=sources,
        parameters=sources[0]["parameters"],
        metrics={name: values[:first] + unknown for name, values in model.metrics.items()},
        best_iteration=None,
    )


def number_of(model: Ensemble, which: int | str) -> int:
    """Return the number of a source by its number (negative: from the end) or label; ParameterError if there is none."""
    labels = [source["label"] for source in model.sources]
    if isinstance(which, str):
        if labels.count(which) != 1:
            raise ParameterError(f"{labels.count(which)} sources of the model are called {which!r}; they are {labels}")
        return labels.index(which)
    try:
        number = operator.index(which)
    except TypeError:
        raise ParameterError(f"a source is a number or a label, not {which!r}") from None
    if not -len(labels) <= number < len(labels):
        raise ParameterError(f"there is no source {number}: the model has {len(labels)}")
    return number % len(labels)


def to_frame(ensemble: Ensemble) -> pd.DataFrame:
    """Return all nodes of all trees, tree by tree, in depth-first order.

    Parameters
    ----------
    ensemble : Ensemble

    Returns
    -------
    DataFrame with the columns

        - iteration : int, from 1, as in the history
        - class : class of the tree's output; missing with one tree per iteration
        - node : int, from 0 within each tree
        - depth : int, 0 at the root
        - feature : name of the feature of the split; missing in leaves
        - threshold : float, numeric splits: the largest value that goes left
        - categories : tuple, categorical splits: the levels that go left
        - missing_left : bool, whether missing values and unknown levels go left
        - left, right : int, the children's `node`; -1 in leaves
        - gain : float, reduction of the loss by the split
        - cover : float, sum of the rows' Hessians
        - count : int, number of training rows
        - value : float, term of the raw score of rows in this leaf
    """
    trees = ensemble.trees
    sizes = np.array([tree.n_nodes for tree in trees], np.int64)
    tree_of_node = np.repeat(np.arange(len(trees)), sizes)
    classes = np.array([None] * ensemble.n_outputs, object)
    if ensemble.n_outputs > 1 and ensemble.classes is not None:
        classes[:] = ensemble.classes
    names = np.array([*(feature.name for feature in ensemble.features), None], object)
    levels = [feature.categories for feature in ensemble.features]

    def joined(name: str, dtype: type) -> np.ndarray:
        return np.concatenate([np.empty(0, dtype), *(getattr(tree, name) for tree in trees)])

    categories = [
        None if codes is None else tuple((levels[feature] or ())[code] for code in codes)
        for tree in trees
        for feature, codes in zip(tree.feature.tolist(), tree.categories, strict=True)
    ]
    return pd.DataFrame(
        {
            "iteration": tree_of_node // ensemble.n_outputs + 1,
            "class": classes[tree_of_node % ensemble.n_outputs],
            "node": np.concatenate([np.empty(0, np.int64), *map(np.arange, sizes)]),
            "depth": np.concatenate([np.empty(0, np.int64), *(tree.depths for tree in trees)]),
            "feature": names[joined("feature", np.int64)].tolist(),
            "threshold": joined("threshold", np.float64),
            "categories": pd.Series(categories, dtype=object),
            "missing_left": joined("missing_left", np.bool_),
            "left": joined("left", np.int64),
            "right": joined("right", np.int64),
            "gain": joined("gain", np.float64),
            "cover": joined("cover", np.float64),
            "count": joined("count", np.int64),
            "value": joined("value", np.float64),
        }
    )
