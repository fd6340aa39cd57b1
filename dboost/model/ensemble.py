"""`Ensemble`: a trained model as data; `Tree`: a regression tree as arrays; models derived from a model; predictions.

The raw score of a row is ``baseline[k]`` plus the values of the leaves that the row reaches in the trees of output k. There is
one output for regression and two classes, and one per class for K > 2 classes. A tree has `width` values per leaf: 1, and an
iteration has one tree per output, in class order; or one for each output, and an iteration is one tree. Code that is not hot
reads an `expanded` model, whose trees have one value per leaf. Ensembles and trees are immutable.

The raw score of a random forest is ``baseline[k]`` plus the *mean* of these values over the iterations that predict, so a part
of a forest is a forest. Code that needs a sum of trees reads a `summed` model.

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

**Prediction.** `FlatEnsemble` has the trees in the layout of the prediction kernels (`dboost.kernels.predict`). The layout for
a float dtype is made at the first prediction from a matrix of that dtype; rows are divided among threads. A row's score is
``((baseline + value) + value) + …`` in float64, in the order of the trees, as in training.

Thresholds are float64. For a float32 value x, ``x <= t`` is equivalent to ``x <= t'`` where t' is the largest float32 that is
not above t; so a float32 matrix is compared in float32 and reaches the same leaves as in float64.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dboost._lazy_import import pd
from dboost.data.columns.binning import round_down
from dboost.data.columns.chunk import float_dtype, plain_blocks
from dboost.data.columns.labels import Names
from dboost.data.kinds.predictor import FeatureBlocks
from dboost.errors import ParameterError
from dboost.kernels import predict as kernels
from dboost.kernels.predict import QuickScorerForest, TraversalForest, predict_quickscorer, predict_traversal, scratch_for
from dboost.kernels.simd import LANES
from dboost.kernels.threads import available_threads
from dboost.model.margins import Calibration
from dboost.model.outputs import Outputs, outputs_of
from dboost.schema import Feature, Level
from dboost.tuning import tuning

Range = tuple[int, int]


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
    #: ``train_loss`` and ``<eval set>_<metric>`` per iteration, including iterations that early stopping dropped; of a model
    #: with a `search` those of the search.
    metrics: dict[str, tuple[float, ...]] = field(default_factory=dict)
    #: Number of iterations that early stopping kept; None without it. Of a model with a `search` those of the search.
    best_iteration: int | None = None
    #: Number of values per leaf: 1 (a tree for each output) or n_outputs (a tree for all outputs).
    width: int = 1
    #: Margins of the intervals of predictions; None before `Booster.calibrate`.
    calibration: Calibration | None = None
    #: Whether the values of the trees are averaged, as in a random forest, not added up.
    averages: bool = False
    #: Name of the target's column; None if values were given. The file has it, but it is no part of the model, which has the
    #: same digest whether its target was named or given.
    target_name: str | None = None

    @property
    def n_outputs(self) -> int:
        return len(self.baseline)

    @property
    def n_iterations(self) -> int:
        return len(self.trees) // self.trees_per_iteration

    @property
    def search(self) -> dict[str, Any] | None:
        """The fit with held-out rows that has found the number of iterations; None if the iterations are its own.

        ``iterations`` that it kept, its ``learning_rate`` (None if it had several) and ``rows``, and ``train_loss``, that of
        the model.
        """
        return self.sources[-1].get("search") if self.sources else None

    @property
    def own_metrics(self) -> dict[str, tuple[float, ...]]:
        """The metrics, if they are those of the model's iterations."""
        return self.metrics if self.search is None else {}

    @property
    def trees_per_iteration(self) -> int:
        return self.n_outputs // self.width

    def trees_in(self, iterations: Range | None = None) -> Range:
        """Return the first and the last + 1 tree of iterations, given in the same way. Default: of all."""
        first, last = iterations or (0, self.n_iterations)
        return first * self.trees_per_iteration, last * self.trees_per_iteration

    def outputs_of(self, tree: int) -> slice:
        """Return the outputs that a tree adds to, by its number."""
        first = tree * self.width % self.n_outputs
        return slice(first, first + self.width)

    def expanded(self) -> Ensemble:
        """Return the model with a tree for each output, among which the gain of a tree of several outputs is divided."""
        if self.width == 1:
            return self
        trees = [
            replace(tree, value=np.ascontiguousarray(tree.value[:, k]), gain=tree.gain / self.width)
            for tree in self.trees
            for k in range(self.width)
        ]
        return replace(self, trees=tuple(trees), width=1)

    def summed(self) -> Ensemble:
        """Return the model as a sum of trees: of a forest of T iterations the trees with values divided by T."""
        if not self.averages:
            return self
        trees = tuple(replace(tree, value=tree.value / self.n_iterations) for tree in self.trees)
        return replace(self, trees=trees, averages=False)

    @property
    def offset(self) -> str | bool | None:
        """The column that raw scores of the last source's rows started at; True if values were given; None without offsets."""
        offset: str | bool | None = self.sources[-1].get("offset") if self.sources else None
        return offset

    @property
    def outputs(self) -> Outputs:
        """What the raw scores stand for."""
        return outputs_of(self.n_outputs, self.loss, self.classes, self.classes_dtype)

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
        names = Names(feature.name for feature in self.features)
        items: Sequence[Any] = [wanted] if names.is_label(wanted) else list(wanted)
        positions = [_feature_position(item, names) for item in items]
        if not positions:
            raise ParameterError("name at least one feature")
        if at_most is not None and len(positions) > at_most:
            raise ParameterError(f"{len(positions)} features were given, at most {at_most} are possible")
        twice = [item for i, item in enumerate(items) if positions[i] in positions[:i]]
        if twice:
            raise ParameterError(f"feature {twice[0]!r} is given twice")
        return positions


def _feature_position(item: Any, names: Names) -> int:
    if isinstance(item, int | np.integer) and not isinstance(item, bool) and 0 <= item < len(names):
        return int(item)
    name = names.find(item)
    if name is not None:
        return names.index(name)
    if isinstance(item, str):
        raise ParameterError(f"the model has no feature {item!r}{names.hint(item)}")
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
    #: float64, the leaf's term of the raw score, learning rate included; internal nodes hold their value as a leaf. With
    #: several values per leaf float64[n_nodes, width].
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
    """Return the model for features with more levels, which its trees treat as missing values.

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
    if n == model.n_iterations and model.search is not None:
        return model
    sources = tuple(
        source if source["last_iteration"] <= n else _shortened(source, n)
        for source in model.sources
        if source["first_iteration"] <= max(n, 1)  # the baseline is of the first one, and so are its offsets
    )
    return replace(
        model,
        trees=model.trees[slice(*model.trees_in((0, n)))],
        sources=sources,
        metrics={name: values[:n] for name, values in model.own_metrics.items()},
        best_iteration=model.best_iteration if model.best_iteration == n and model.search is None else None,
        calibration=model.calibration if n == model.n_iterations else None,
    )


def _shortened(source: dict[str, Any], last: int) -> dict[str, Any]:
    """Return a source's record with another last iteration."""
    rates = rates_of(source)[: last + 1 - source["first_iteration"]]
    return with_rates(without_search(without_scores(source)) | {"last_iteration": last}, rates)


def rates_of(source: dict[str, Any]) -> list[float]:
    """Return the learning rate of each iteration of a source."""
    n = source["last_iteration"] + 1 - source["first_iteration"]
    rates: list[float] = source.get("learning_rates", [_usual_rate(source)] * n)
    return rates


def with_rates(source: dict[str, Any], rates: Sequence[float]) -> dict[str, Any]:
    """Return a source's record with the learning rates of its iterations, which it contains only if they differ from that of
    its parameters."""
    record = {name: value for name, value in source.items() if name != "learning_rates"}
    return record if all(rate == _usual_rate(source) for rate in rates) else record | {"learning_rates": [*rates]}


def _usual_rate(source: dict[str, Any]) -> Any:
    """Return the rate of a source's trees by its parameters, after shrinkage; None of trees whose parameters are not known."""
    rate = (source.get("parameters", {}) | source.get("steps", {})).get("learning_rate")
    return rate / source["bag"] if "bag" in source else rate


def without_scores(source: dict[str, Any]) -> dict[str, Any]:
    """Return a source's record without the summary of scores, which belongs to the unedited model."""
    return source | {"summary": source["summary"] | {"scores": []}} if "summary" in source else source


def without_search(source: dict[str, Any]) -> dict[str, Any]:
    """Return a source's record without the `Ensemble.search`, of a model whose metrics are not those of the search."""
    return {name: value for name, value in source.items() if name != "search"}


def without_counts(model: Ensemble) -> Ensemble:
    """Return the model without values and counts of its training rows; `dboost.fit` documents it as ``keep_summary=False``.

    Its predictions are the same. The split candidates, the summaries, the numbers of rows, the sums of Hessians and the name of
    the target are removed, and the categories that no split distinguishes from unknown ones: those that no split lists, of
    features without a categorical split that sends missing values left (such a split sends its unlisted categories right).
    """
    used: dict[int, set[int]] = {}
    for tree in model.trees:
        for codes, feature, missing_left in zip(tree.categories, tree.feature.tolist(), tree.missing_left, strict=True):
            if codes is not None:
                n_levels = len(model.features[feature].categories or ())
                used.setdefault(feature, set()).update(range(n_levels) if missing_left else codes.tolist())
    features, renumbered = [], {}
    for j, feature in enumerate(model.features):
        if feature.categories is not None:
            kept = np.array(sorted(used.get(j, ())), np.int64)
            renumbered[j] = kept
            feature = replace(feature, categories=tuple(feature.categories[code] for code in kept))
        features.append(feature)

    def without(tree: Tree) -> Tree:
        categories = tuple(
            codes if codes is None else np.searchsorted(renumbered[feature], codes).astype(np.int32)
            for codes, feature in zip(tree.categories, tree.feature.tolist(), strict=True)
        )
        return replace(tree, categories=categories, cover=np.zeros_like(tree.cover), count=np.zeros_like(tree.count))

    hidden = {"rows": None, "data_digest": None}
    sources = tuple({k: v for k, v in source.items() if k != "summary"} | hidden for source in model.sources)
    if model.search is not None:
        sources = ({**sources[0], "search": model.search | {"rows": None}},)
    trees = tuple(map(without, model.trees))
    return replace(model, features=tuple(features), trees=trees, edges=(), sources=sources, target_name=None)


def drop_source(model: Ensemble, key: int | str) -> Ensemble:
    """Return the model without the trees of one source; `Booster.drop_source` documents it.

    Parameters
    ----------
    model : Ensemble
    key : int or str
        Number of the source (negative: from the end), or its label.

    Raises
    ------
    ParameterError
        For a source that does not exist, a label that is not unique, or the only source.
    """
    number = number_of(model, key)
    if len(model.sources) == 1:
        raise ParameterError("the only source of a model cannot be dropped")
    gone = model.sources[number]
    first, last = gone["first_iteration"] - 1, gone["last_iteration"]
    first_tree, last_tree = model.trees_in((first, last))
    later = [
        without_scores(source) | {name: source[name] - last + first for name in ("first_iteration", "last_iteration")}
        for source in model.sources[number + 1 :]
    ]
    # Metrics that were measured with the dropped trees are not valid.
    unknown = (math.nan,) * (model.n_iterations - last)
    sources = (*model.sources[:number], *later)
    return replace(
        model,
        trees=model.trees[:first_tree] + model.trees[last_tree:],
        sources=sources,
        parameters=sources[0]["parameters"],
        metrics={name: values[:first] + unknown for name, values in model.metrics.items()},
        best_iteration=None,
        calibration=None,
    )


def number_of(model: Ensemble, key: int | str) -> int:
    """Return the number of a source by its number (negative: from the end) or label; ParameterError if there is none."""
    labels = [source["label"] for source in model.sources]
    if isinstance(key, str):
        if labels.count(key) != 1:
            raise ParameterError(f"{labels.count(key)} sources of the model are called {key!r}; they are {labels}")
        return labels.index(key)
    try:
        number = operator.index(key)
    except TypeError:
        raise ParameterError(f"a source is a number or a label, not {key!r}") from None
    if not -len(labels) <= number < len(labels):
        raise ParameterError(f"there is no source {number}: the model has {len(labels)}")
    return number % len(labels)


def to_frame(ensemble: Ensemble) -> pd.DataFrame:
    """Return all nodes of all trees, tree by tree, in depth-first order; a tree of several outputs once for each output.

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
    ensemble = ensemble.expanded()
    trees = ensemble.trees
    sizes = np.array([tree.n_nodes for tree in trees], np.int64)
    tree_of_node = np.repeat(np.arange(len(trees)), sizes)
    classes = np.array([None] * ensemble.n_outputs, object)
    if ensemble.n_outputs > 1:
        classes[:] = ensemble.outputs.names
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
            ensemble.outputs.axis: classes[tree_of_node % ensemble.n_outputs],
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


def averaged(start: np.ndarray, sums: np.ndarray, n_trees: int | np.ndarray) -> np.ndarray:
    """Return the raw scores of a forest: the start scores plus the mean of the values of each output's trees.

    start, sums : float64, of one shape or such that NumPy broadcasts them; n_trees : number of trees in each sum.
    """
    return start + sums / np.maximum(n_trees, 1)


class FlatEnsemble:
    """Predicts with the trees of an ensemble; may be used by several threads at once.

    Parameters
    ----------
    ensemble : Ensemble
    """

    def __init__(self, ensemble: Ensemble) -> None:
        self._ensemble = ensemble
        self._forests: dict[np.dtype, QuickScorerForest | TraversalForest] = {}

    def raw_scores(self, matrix: np.ndarray, iterations: Range | None = None, n_threads: int | None = None) -> np.ndarray:
        """Return the raw scores of the rows of a matrix.

        Parameters
        ----------
        matrix : float32 or float64 [n, n_features]
            A block of `dboost.data.feature_block`: codes of the levels in categorical columns.
        iterations : (first, last), optional
            Only the trees of these iterations, without the last one. Default: all.
        n_threads : int, optional
            Default: all processors that this process may use.

        Returns
        -------
        float64[n, n_outputs]
        """
        first, last = iterations or (0, self._ensemble.n_iterations)
        scores = self._start_scores(len(matrix))
        self.add_to(scores, matrix, iterations, n_threads)
        return self._finished(scores, last - first)

    @property
    def averages(self) -> bool:
        """See `Ensemble.averages`."""
        return self._ensemble.averages

    def _start_scores(self, n_rows: int) -> np.ndarray:
        """Return what trees are added to: the baseline, or 0 if their values are averaged."""
        start = np.asarray(self._ensemble.baseline, np.float64)
        return np.tile(0.0 * start if self.averages else start, (n_rows, 1))

    def _finished(self, scores: np.ndarray, n_iterations: int) -> np.ndarray:
        """Return raw scores, given the start scores with the trees of so many iterations."""
        return averaged(self._ensemble.baseline, scores, n_iterations) if self.averages else scores

    def staged_raw_scores(self, blocks: FeatureBlocks, n_threads: int | None = None) -> Iterator[np.ndarray]:
        """Yield raw scores after one iteration, after two, …; each adds one iteration's trees to the previous scores.

        A block of a sparse table is made for some iterations at once, so that few blocks are made and few scores are kept.
        """
        n_iterations = self._ensemble.n_iterations
        scores = self._start_scores(len(blocks))
        together = max(1, tuning().staged_bytes // max(scores.nbytes, 1)) if blocks.are_of_sparse else 1
        for first in range(0, n_iterations, together):
            iterations = range(first, min(first + together, n_iterations))
            stages = np.empty((len(iterations), *scores.shape))
            for rows, block in blocks:
                for stage, iteration in zip(stages, iterations, strict=True):
                    self.add_to(scores[rows], block, (iteration, iteration + 1), n_threads)
                    stage[rows] = self._finished(scores[rows], iteration + 1)
            yield from stages

    def add_to(
        self, scores: np.ndarray, matrix: np.ndarray, iterations: Range | None = None, n_threads: int | None = None
    ) -> None:
        """Add the leaf values of some iterations to raw scores (float64[n, n_outputs]) in place."""
        self._run(matrix, iterations, n_threads, scores, np.empty((len(matrix), 0), np.int32))

    def leaves(self, matrix: np.ndarray, iterations: Range | None = None, n_threads: int | None = None) -> np.ndarray:
        """Return the leaf that each row reaches in each tree, numbered from left to right: int32[n, n_trees]."""
        first, last = self._ensemble.trees_in(iterations)
        leaves = np.empty((len(matrix), last - first), np.int32)
        self._run(matrix, iterations, n_threads, np.zeros((len(matrix), self._ensemble.n_outputs)), leaves)
        return leaves

    def _run(
        self,
        matrix: np.ndarray,
        iterations: Range | None,
        n_threads: int | None,
        scores: np.ndarray,
        leaves: np.ndarray,
    ) -> None:
        width = len(self._ensemble.features)
        if matrix.ndim != 2 or matrix.shape[1] != width:
            raise ValueError(f"expected a matrix of {width} columns, got one of shape {matrix.shape}")
        trees = self._ensemble.trees_in(iterations)
        if trees[0] == trees[1]:
            return
        dtype = float_dtype(matrix.dtype)
        forest = self._forest(dtype)
        kernel = predict_quickscorer if isinstance(forest, QuickScorerForest) else predict_traversal
        is_plain = matrix.dtype == dtype and matrix.flags.carray

        def work(start: int, stop: int) -> None:
            scratch = scratch_for(forest.columns, forest.n_levels, dtype)
            if is_plain:
                kernel(forest, matrix, (start, stop), trees, scores, leaves, scratch)
                return
            for rows, block in plain_blocks(matrix, start, stop):
                kernel(forest, block, (0, len(block)), trees, scores[rows], leaves[rows], scratch)

        share_out(work, len(matrix), trees[1] - trees[0], n_threads)

    def _forest(self, precision: np.dtype) -> QuickScorerForest | TraversalForest:
        # Two threads may both make the layout, with equal results.
        if precision not in self._forests:
            self._forests[precision] = lay_out_forest(self._ensemble.trees, self._ensemble.features, precision)
        return self._forests[precision]


def share_out(work: Callable[[int, int], None], n_rows: int, n_trees: int, n_threads: int | None) -> None:
    """Call ``work(start, stop)`` for ranges of rows, on several threads if that saves time."""
    worth = n_rows * n_trees // tuning().row_trees_per_thread
    n_threads = 1 if worth <= 1 and n_threads is None else min(available_threads(n_threads), worth)
    if n_threads <= 1:
        return work(0, n_rows)
    # Whole blocks, and more ranges than threads, so that a slow thread does not delay the others.
    length = -(-n_rows // (4 * n_threads * LANES)) * LANES
    starts = range(0, n_rows, length)
    with ThreadPoolExecutor(n_threads) as pool:
        for _ in pool.map(work, starts, [min(start + length, n_rows) for start in starts]):
            pass


#: Number of numeric conditions, and of categorical lookups, that take as long as one step of a traversal.
CONDITIONS_PER_STEP = 20
LOOKUPS_PER_STEP = 4

_PAGE = 32
_ALL = (1 << _PAGE) - 1


def lay_out_forest(
    trees: Sequence[Tree], features: tuple[Feature, ...], precision: np.dtype
) -> QuickScorerForest | TraversalForest:
    """Return the faster layout of the trees, for matrices of the given float dtype."""
    forest = _Forest(trees, features)
    if (forest.n_leaves > tuning().mask_leaves).any():
        return _walked(forest, precision)
    conditions = _PageConditions(forest)
    steps = conditions.is_numeric.sum() / CONDITIONS_PER_STEP + len(conditions.looked_up) / LOOKUPS_PER_STEP
    n_words = int((forest.n_levels[conditions.looked_up] + np.int64(1)).sum())
    if steps > forest.depth.sum() or n_words > tuning().mask_words:
        return _walked(forest, precision)
    return _paged(forest, conditions, precision)


def traversal_forest(trees: Sequence[Tree], features: tuple[Feature, ...]) -> TraversalForest:
    """Return the traversal layout of the trees for float64, which `dboost.kernels.predict.predict_rows` reads."""
    return _walked(_Forest(trees, features), np.dtype(np.float64))


class _Forest:
    """The nodes of all trees in concatenated arrays.

    Attributes
    ----------
    feature, threshold, missing_left, is_leaf : as in `Tree`, [n_nodes of all trees]
    leaf : int64[n_nodes]
        Number of the first leaf at or below a node, within its tree.
    right : int64[n_nodes]
        Right child among all nodes; in a leaf the leaf itself.
    tree : int64[n_nodes]
    n_leaves, depth, first_node, first_value : int64[n_trees]
    columns : int64[n_used]
        The features with splits, numeric ones first.
    n_numeric : int
        Number of numeric ones.
    n_levels : uint32[n_used - n_numeric]
    column_index : int64[n_nodes]
        Index of a split's feature in `columns`.
    values : float64[n_leaves of all trees, width]
    """

    def __init__(self, trees: Sequence[Tree], features: tuple[Feature, ...]) -> None:
        self._trees = trees
        none = np.empty(0)
        self.feature = np.concatenate([none, *(tree.feature for tree in trees)]).astype(np.int64)
        self.threshold = np.concatenate([none, *(tree.threshold for tree in trees)])
        self.missing_left = np.concatenate([none, *(tree.missing_left for tree in trees)]).astype(np.bool_)
        n_nodes = np.array([tree.n_nodes for tree in trees], np.int64)
        n = len(self.feature)
        self.tree = np.repeat(np.arange(len(trees)), n_nodes)
        self.first_node = np.cumsum(n_nodes) - n_nodes
        self.is_leaf = self.feature < 0
        self.n_leaves = np.bincount(self.tree[self.is_leaf], minlength=len(trees))
        self.first_value = np.cumsum(self.n_leaves) - self.n_leaves
        self.leaf: np.ndarray = np.cumsum(self.is_leaf) - self.is_leaf - self.first_value[self.tree]
        right = np.concatenate([none, *(tree.right for tree in trees)]).astype(np.int64)
        self.right = np.where(self.is_leaf, np.arange(n), right + self.first_node[self.tree])
        self.depth = self._depths()
        values = [tree.value.reshape(tree.n_nodes, -1) for tree in trees] or [np.empty((0, 1))]
        self.values = np.concatenate(values)[self.is_leaf]

        used = np.unique(self.feature[~self.is_leaf])
        is_categorical = np.array([features[column].is_categorical for column in used], np.bool_)
        self.columns = np.concatenate([used[~is_categorical], used[is_categorical]])
        self.n_numeric = int((~is_categorical).sum())
        levels = [features[column].categories or () for column in self.columns[self.n_numeric :]]
        self.n_levels = np.array([len(column_levels) for column_levels in levels], np.uint32)
        index_of = np.zeros(len(features), np.int64)
        index_of[self.columns] = np.arange(len(self.columns))
        self.column_index = np.where(self.is_leaf, 0, index_of[self.feature] if n else 0)

    def _depths(self) -> np.ndarray:
        """Number of splits on each tree's longest path, computed level by level for all trees."""
        depth = np.zeros(len(self.first_node), np.int64)
        at = self.first_node[~self.is_leaf[self.first_node]] if len(depth) else self.first_node
        level = 0
        while len(at):
            level += 1
            depth[self.tree[at]] = level
            below = np.concatenate((at + 1, self.right[at]))
            at = below[~self.is_leaf[below]]
        return depth

    def left_codes(self, nodes: np.ndarray) -> list[np.ndarray]:
        """Return the codes that each of some categorical splits sends left, without that of missing values."""
        number = self.tree[nodes]
        trees, places = number.tolist(), (nodes - self.first_node[number]).tolist()
        return [self._trees[tree].categories[at] for tree, at in zip(trees, places, strict=True)]


class _PageConditions:
    """The pairs of a split and a page of which the split can exclude leaves.

    The pages of a tree are stored from the last to the first.

    Attributes
    ----------
    page, node : int64[n]
        Number of the page, and the split.
    keep : int64[n]
        Mask of the page's leaves that remain possible if a row goes right: all but those under the left child.
    is_numeric : bool[n]
    n_pages, first_page : int64[n_trees]
    looked_up, lookup_page : int64[n_lookups]
        The categorical columns (counted from the first one) with splits on each page.
    """

    def __init__(self, forest: _Forest) -> None:
        split = np.flatnonzero(~forest.is_leaf)
        first, last = forest.leaf[split], forest.leaf[forest.right[split]]  # leaves under the left child
        first_page, last_page = first // _PAGE, (last - 1) // _PAGE
        n_conditions = last_page - first_page + 1
        repeat = np.repeat(np.arange(len(split)), n_conditions)
        page = first_page[repeat] + np.arange(len(repeat)) - np.repeat(np.cumsum(n_conditions) - n_conditions, n_conditions)
        low, high = np.clip((first[repeat] - page * _PAGE, last[repeat] - page * _PAGE), 0, _PAGE)
        self.keep = _ALL - ((1 << high) - (1 << low))
        self.node = split[repeat]
        self.n_pages = -(-forest.n_leaves // _PAGE)
        self.first_page = np.cumsum(self.n_pages) - self.n_pages
        tree = forest.tree[self.node]
        self.page = self.first_page[tree] + self.n_pages[tree] - 1 - page
        self.is_numeric = forest.column_index[self.node] < forest.n_numeric
        column = forest.column_index[self.node] - forest.n_numeric
        categorical, width = ~self.is_numeric, int(column.max(initial=0)) + 1
        self.lookup_page, self.looked_up = np.divmod(np.unique(self.page[categorical] * width + column[categorical]), width)


def _paged(forest: _Forest, conditions: _PageConditions, precision: np.dtype) -> QuickScorerForest:
    """The QuickScorer layout."""
    numbers = np.arange(int(conditions.n_pages.sum()) + 1)
    numeric = np.flatnonzero(conditions.is_numeric)
    node = conditions.node[numeric]
    numeric = numeric[np.lexsort((forest.missing_left[node], conditions.page[numeric]))]
    node, page = conditions.node[numeric], conditions.page[numeric]
    numeric_conditions = np.empty(len(numeric), kernels.condition(precision))
    numeric_conditions["threshold"] = round_down(forest.threshold[node], precision)
    numeric_conditions["start"] = forest.column_index[node] * LANES
    numeric_conditions["keep"] = conditions.keep[numeric]
    begin = np.searchsorted(page, numbers)

    pages = np.empty(len(numbers) - 1, kernels.PAGE)
    tree = np.repeat(np.arange(len(forest.n_leaves)), conditions.n_pages)
    pages["first_leaf"] = _PAGE * (conditions.first_page[tree] + conditions.n_pages[tree] - 1 - numbers[:-1])
    pages["begin"], pages["end"] = begin[:-1], begin[1:]
    pages["missing_left"] = begin[1:] - np.bincount(page[forest.missing_left[node]], minlength=len(numbers) - 1)
    first_lookup = np.searchsorted(conditions.lookup_page, numbers)
    pages["first_lookup"], pages["last_lookup"] = first_lookup[:-1], first_lookup[1:]

    lookups = np.empty(len(conditions.looked_up), kernels.LOOKUP)
    n_codes = forest.n_levels[conditions.looked_up] + np.int64(1)
    lookups["start"] = conditions.looked_up * LANES
    lookups["table"] = starts = np.cumsum(n_codes) - n_codes
    table = np.full(int(n_codes.sum()), _ALL, np.uint32)
    width = len(forest.n_levels) + 1
    key = conditions.lookup_page * width + conditions.looked_up
    categorical = np.flatnonzero(~conditions.is_numeric)
    split = conditions.node[categorical]
    lookup = np.searchsorted(key, conditions.page[categorical] * width + forest.column_index[split] - forest.n_numeric)
    codes = forest.left_codes(split)
    first_code = np.cumsum([0, *map(len, codes)])
    kernels.clear_left_leaves(
        starts[lookup], starts[lookup] + n_codes[lookup], conditions.keep[categorical], forest.missing_left[split], first_code,
        np.concatenate([np.empty(0, np.int32), *codes]), table,
    )  # fmt: skip

    trees = np.empty(len(forest.n_leaves), kernels.QUICKSCORER_TREE)
    trees["first_page"], trees["last_page"] = conditions.first_page, conditions.first_page + conditions.n_pages
    trees["first_value"] = forest.first_value
    return QuickScorerForest(forest.columns, forest.n_levels, trees, pages, numeric_conditions, lookups, table, forest.values)


def _walked(forest: _Forest, precision: np.dtype) -> TraversalForest:
    """The traversal layout."""
    categorical = np.flatnonzero((forest.column_index >= forest.n_numeric) & ~forest.is_leaf)
    nodes = np.empty(len(forest.feature), kernels.node(precision))
    nodes["threshold"] = round_down(forest.threshold, precision)
    nodes["start"] = (2 * forest.column_index + forest.missing_left) * LANES
    nodes["start"][categorical] = 0
    nodes["right"], nodes["leaf"] = forest.right, forest.leaf
    node_sets = np.zeros(len(nodes), kernels.NODE_SET)
    # The first set is empty, for nodes that are not categorical: it contains no code.
    sets = [np.zeros(max(forest.n_levels, default=0) // 32 + 1, np.uint32)]
    n_words = len(sets[0])
    columns = forest.column_index[categorical] - forest.n_numeric
    for at, column, codes in zip(categorical.tolist(), columns.tolist(), forest.left_codes(categorical), strict=True):
        node_sets[at] = column * LANES, n_words
        sets.append(_mask_words(codes, int(forest.n_levels[column]), forest.missing_left[at]))
        n_words += len(sets[-1])
    trees = np.empty(len(forest.n_leaves), kernels.TRAVERSAL_TREE)
    trees["root"], trees["depth"], trees["first_value"] = forest.first_node, forest.depth, forest.first_value
    trees["has_sets"] = np.bincount(forest.tree[categorical], minlength=len(trees)) > 0
    return TraversalForest(
        forest.columns, forest.n_levels, trees, nodes, node_sets, np.concatenate(sets), forest.values
    )  # fmt: skip


def _mask_words(codes: np.ndarray, n_levels: int, missing_left: bool) -> np.ndarray:
    """Return the codes that go left as bits of uint32 words, lowest bit first; missing values follow the levels."""
    bits = np.zeros(((n_levels + 1) // 32 + 1) * 32, np.bool_)
    bits[codes] = True
    bits[n_levels] = missing_left
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)
