"""Trees laid out as the arrays that the prediction kernels read (see `dboost.kernels.trees`).

Thresholds are float64. For a float32 value x, ``x <= t`` is the same test as ``x <= t'`` where t' is the largest
float32 that is not above t; so a float32 matrix is compared in float32 and reaches the very leaves that it would
reach in float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dboost.kernels.lanes import LANES
from dboost.kernels.trees import PAGE, PAGED_TREE, WALKED_TREE, Paged, Walked, node, question
from dboost.model.tree import Tree
from dboost.schema import Feature

#: A forest is walked when it has more than this many questions for each step of a walk: that is what a step costs.
QUESTIONS_PER_STEP = 20

_PAGE = 32
_ALL = (1 << _PAGE) - 1


def lay_out(trees: Sequence[Tree], features: tuple[Feature, ...], precision: np.dtype) -> Paged | Walked:
    """Trees in the form that is faster to ask, for matrices of the given float type."""
    spans = [_left_leaves(tree) for tree in trees]
    n_questions = sum(int(((last - 1) // _PAGE - first // _PAGE + 1).sum()) for _, first, last in spans)
    if n_questions > QUESTIONS_PER_STEP * sum(tree.depth for tree in trees):
        return lay_out_walks(trees, features, precision)
    return lay_out_pages(trees, features, precision)


def lay_out_pages(trees: Sequence[Tree], features: tuple[Feature, ...], precision: np.dtype) -> Paged:
    """Trees as pages of 32 leaves, to be asked everything."""
    columns, sets = _used(trees), _Sets(features)
    records: list[tuple[int, int, int]] = []
    pages: list[tuple[int, ...]] = []
    questions: list[np.ndarray] = [np.empty(0, question(precision))]
    n_questions = n_values = 0
    for tree in trees:
        first_page = len(pages)
        split, first, last = _left_leaves(tree)
        asked = np.empty(len(split), question(precision))
        limit, asked["set"] = sets.add(tree, split)
        asked["threshold"] = _at_most(np.where(np.isnan(limit), tree.threshold[split], limit), precision)
        asked["start"] = np.searchsorted(columns, tree.feature[split]) * LANES
        group = np.where(np.isnan(limit), tree.missing_left[split], 2).astype(np.int64)
        for page in range((tree.n_leaves - 1) // _PAGE, -1, -1):
            low, high = np.clip((first - page * _PAGE, last - page * _PAGE), 0, _PAGE)
            asked["keep"] = _ALL - ((1 << high) - (1 << low))
            here = np.flatnonzero(high > low)
            here = here[np.argsort(group[here], kind="stable")]
            ends = n_questions + np.cumsum(np.bincount(group[here], minlength=3))
            pages.append((page * _PAGE, n_questions, *ends.tolist()))
            questions.append(asked[here])
            n_questions += len(here)
        records.append((first_page, len(pages), n_values))
        n_values += tree.n_leaves
    return Paged(
        columns,
        np.array(records, PAGED_TREE),
        np.array(pages, PAGE),
        np.concatenate(questions),
        sets.words(),
        _leaf_values(trees),
    )


def lay_out_walks(trees: Sequence[Tree], features: tuple[Feature, ...], precision: np.dtype) -> Walked:
    """Trees as nodes, to be walked down."""
    columns, sets = _used(trees), _Sets(features)
    records: list[tuple[int, int, bool, int]] = []
    nodes: list[np.ndarray] = [np.empty(0, node(precision))]
    node_sets: list[np.ndarray] = [np.empty(0, np.int32)]
    n_nodes = n_values = 0
    for tree in trees:
        is_leaf = tree.feature < 0
        limit, first_word = sets.add(tree, np.arange(tree.n_nodes))
        is_numeric = np.isnan(limit)
        walked = np.empty(tree.n_nodes, node(precision))
        walked["threshold"] = _at_most(np.where(is_numeric, tree.threshold, limit), precision)
        walked["threshold"][is_leaf] = np.nan
        column = np.where(is_leaf, 0, np.searchsorted(columns, tree.feature))
        walked["start"] = (2 * column + (is_numeric & tree.missing_left)) * LANES
        walked["right"] = n_nodes + np.where(is_leaf, np.arange(tree.n_nodes), tree.right)
        walked["leaf"] = np.cumsum(is_leaf) - is_leaf
        nodes.append(walked)
        node_sets.append(np.where(is_numeric, -1, first_word).astype(np.int32))
        records.append((n_nodes, tree.depth, not is_numeric.all(), n_values))
        n_nodes += tree.n_nodes
        n_values += tree.n_leaves
    return Walked(
        columns,
        np.array(records, WALKED_TREE),
        np.concatenate(nodes),
        np.concatenate(node_sets),
        sets.words(),
        _leaf_values(trees),
    )


def floor_to_float32(values: np.ndarray) -> np.ndarray:
    """The largest float32 that is not above each value (NaN stays NaN)."""
    with np.errstate(over="ignore"):
        rounded = np.asarray(values).astype(np.float32)
        return np.where(rounded > values, np.nextafter(rounded, np.float32(-np.inf)), rounded)


def _at_most(thresholds: np.ndarray, precision: np.dtype) -> np.ndarray:
    return floor_to_float32(thresholds) if precision == np.float32 else thresholds


def _used(trees: Sequence[Tree]) -> np.ndarray:
    """Features that any tree asks about (the first one if there is none, so that a block is never empty)."""
    used = np.unique(np.concatenate([np.empty(0, np.int64), *(tree.feature for tree in trees)]))
    return used[used >= 0] if used.size and used[-1] >= 0 else np.zeros(1, np.int64)


def _left_leaves(tree: Tree) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split nodes, and the range of leaves under the left child of each: those that the answer "right" excludes."""
    is_leaf = tree.feature < 0
    leaf: np.ndarray = np.cumsum(is_leaf) - is_leaf
    split = np.flatnonzero(~is_leaf)
    return split, leaf[split], leaf[tree.right[split]]


def _leaf_values(trees: Sequence[Tree]) -> np.ndarray:
    return np.concatenate([np.empty(0), *(tree.value[tree.feature < 0] for tree in trees)])


class _Sets:
    """The sets of categorical questions, collected while trees are laid out."""

    def __init__(self, features: tuple[Feature, ...]) -> None:
        self._n_levels = [len(feature.levels or ()) for feature in features]
        self._words: list[np.ndarray] = [np.empty(0, np.uint32)]
        self._n_words = 0

    def add(self, tree: Tree, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Limit (NaN where the question is numeric) and first word of the sets of some nodes."""
        limits, first_words = np.full(len(nodes), np.nan), np.zeros(len(nodes), np.uint32)
        for i, at in enumerate(nodes):
            codes = tree.categories[at]
            if codes is None:
                continue
            # Where missing values go right, codes above the last of the set need no bit: they go right as well.
            missing_left = bool(tree.missing_left[at])
            limit = self._n_levels[tree.feature[at]] if missing_left else max(codes, default=-1) + 1
            bits = np.zeros((limit // 32 + 1) * 32, np.uint8)
            bits[codes] = 1
            bits[limit] = missing_left
            limits[i], first_words[i] = limit, self._n_words
            self._words.append(np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32))
            self._n_words += len(self._words[-1])
        return limits, first_words

    def words(self) -> np.ndarray:
        return np.concatenate(self._words)
