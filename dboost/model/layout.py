"""Trees laid out as the arrays that the prediction kernels read (see `dboost.kernels.trees`).

Thresholds are float64. For a float32 value x, ``x <= t`` is the same test as ``x <= t'`` where t' is the largest float32
that is not above t; so a float32 matrix is compared in float32 and reaches the very leaves that it would reach in
float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dboost.kernels import trees as kernels
from dboost.kernels.lanes import LANES
from dboost.kernels.trees import Paged, Walked
from dboost.model.tree import Tree
from dboost.schema import Feature

#: So many numeric questions take as long as one step of a walk …
QUESTIONS_PER_STEP = 20
#: … and so many lookups as long as one step of a walk that may meet categories.
LOOKUPS_PER_STEP = 4
#: Trees of more leaves are walked, and so are forests whose tables would have more words.
MAX_LEAVES = 4_096
MAX_TABLE_WORDS = 1 << 24

_PAGE = 32
_ALL = (1 << _PAGE) - 1


def lay_out(trees: Sequence[Tree], features: tuple[Feature, ...], precision: np.dtype) -> Paged | Walked:
    """Trees in the form that is faster to ask, for matrices of the given float type."""
    if any(tree.n_leaves > MAX_LEAVES for tree in trees):
        return lay_out_walks(trees, features, precision)
    columns = _Columns(trees, features)
    steps, n_words = 0.0, 0
    for tree in trees:
        for _, asking, _ in _pages(tree):
            place = columns.place[tree.feature[asking]]
            looked_up = np.unique(place[place >= columns.n_numeric]) - columns.n_numeric
            steps += (place < columns.n_numeric).sum() / QUESTIONS_PER_STEP + len(looked_up) / LOOKUPS_PER_STEP
            n_words += int((columns.n_levels[looked_up] + np.int64(1)).sum())
    if steps > sum(tree.depth for tree in trees) or n_words > MAX_TABLE_WORDS:
        return lay_out_walks(trees, features, precision)
    return lay_out_pages(trees, features, precision)


def lay_out_pages(trees: Sequence[Tree], features: tuple[Feature, ...], precision: np.dtype) -> Paged:
    """Trees as pages of 32 leaves, to be asked everything."""
    columns = _Columns(trees, features)
    tree_records: list[tuple[int, int, int]] = []
    pages: list[tuple[int, ...]] = []
    questions = [np.empty(0, kernels.question(precision))]
    lookups: list[tuple[int, int]] = []
    tables = [np.empty(0, np.uint32)]
    n_questions = n_words = n_values = 0
    for tree in trees:
        tree_records.append((len(pages), len(pages) + -(-tree.n_leaves // _PAGE), n_values))
        n_values += tree.n_leaves
        for page, asking, keep in _pages(tree):
            place = columns.place[tree.feature[asking]]
            numeric = np.flatnonzero(place < columns.n_numeric)
            numeric = numeric[np.argsort(tree.missing_left[asking[numeric]], kind="stable")]
            asked = np.empty(len(numeric), kernels.question(precision))
            asked["threshold"] = _at_most(tree.threshold[asking[numeric]], precision)
            asked["start"] = place[numeric] * LANES
            asked["keep"] = keep[numeric]
            questions.append(asked)
            first_lookup = len(lookups)
            for column in np.unique(place[place >= columns.n_numeric]) - columns.n_numeric:
                table = np.full(columns.n_levels[column] + 1, _ALL, np.uint32)
                for i in np.flatnonzero(place - columns.n_numeric == column):
                    table[~_left_codes(tree, int(asking[i]), len(table))] &= np.uint32(keep[i])
                lookups.append((column * LANES, n_words))
                tables.append(table)
                n_words += len(table)
            end = n_questions + len(numeric)
            missing_left = end - int(tree.missing_left[asking[numeric]].sum())
            pages.append((page * _PAGE, n_questions, missing_left, end, first_lookup, len(lookups)))
            n_questions = end
    return Paged(
        columns.columns,
        columns.n_levels,
        np.array(tree_records, kernels.PAGED_TREE),
        np.array(pages, kernels.PAGE),
        np.concatenate(questions),
        np.array(lookups, kernels.LOOKUP),
        np.concatenate(tables),
        _leaf_values(trees),
    )


def lay_out_walks(trees: Sequence[Tree], features: tuple[Feature, ...], precision: np.dtype) -> Walked:
    """Trees as nodes, to be walked down."""
    columns = _Columns(trees, features)
    tree_records: list[tuple[int, int, bool, int]] = []
    nodes = [np.empty(0, kernels.node(precision))]
    node_sets = [np.empty(0, kernels.NODE_SET)]
    # First the empty set, for nodes that are not categorical: whatever code they ask it about, it is not there.
    sets = [np.zeros(max(columns.n_levels, default=0) // 32 + 1, np.uint32)]
    n_words, n_nodes, n_values = len(sets[0]), 0, 0
    for tree in trees:
        is_leaf = tree.feature < 0
        place = np.where(is_leaf, 0, columns.place[tree.feature])
        categorical = np.flatnonzero((place >= columns.n_numeric) & ~is_leaf)
        walked = np.empty(tree.n_nodes, kernels.node(precision))
        walked["threshold"] = _at_most(tree.threshold, precision)
        walked["start"] = (2 * place + tree.missing_left) * LANES
        walked["start"][categorical] = 0
        walked["right"] = n_nodes + np.where(is_leaf, np.arange(tree.n_nodes), tree.right)
        walked["leaf"] = np.cumsum(is_leaf) - is_leaf
        nodes.append(walked)
        of_node = np.zeros(tree.n_nodes, kernels.NODE_SET)
        for at in categorical:
            column = place[at] - columns.n_numeric
            of_node[at] = column * LANES, n_words
            sets.append(_words(_left_codes(tree, int(at), int(columns.n_levels[column]) + 1)))
            n_words += len(sets[-1])
        node_sets.append(of_node)
        tree_records.append((n_nodes, tree.depth, len(categorical) > 0, n_values))
        n_nodes += tree.n_nodes
        n_values += tree.n_leaves
    return Walked(
        columns.columns,
        columns.n_levels,
        np.array(tree_records, kernels.WALKED_TREE),
        np.concatenate(nodes),
        np.concatenate(node_sets),
        np.concatenate(sets),
        _leaf_values(trees),
    )


def floor_to_float32(values: np.ndarray) -> np.ndarray:
    """The largest float32 that is not above each value (NaN stays NaN)."""
    with np.errstate(over="ignore"):
        rounded = np.asarray(values).astype(np.float32)
        return np.where(rounded > values, np.nextafter(rounded, np.float32(-np.inf)), rounded)


def _at_most(thresholds: np.ndarray, precision: np.dtype) -> np.ndarray:
    return floor_to_float32(thresholds) if precision == np.float32 else thresholds


class _Columns:
    """The features that trees ask about, numeric ones first.

    Attributes
    ----------
    columns : int64[n_used]
    n_numeric : int
    n_levels : uint32[n_used - n_numeric]
    place : int64[n_features]
        Where a feature is among the columns.
    """

    def __init__(self, trees: Sequence[Tree], features: tuple[Feature, ...]) -> None:
        used = np.unique(np.concatenate([np.empty(0, np.int64), *(tree.feature for tree in trees)]))
        used = used[used >= 0]
        is_categorical = np.array([features[column].is_categorical for column in used], np.bool_)
        self.columns = np.concatenate([used[~is_categorical], used[is_categorical]])
        self.n_numeric = int((~is_categorical).sum())
        levels = [features[column].levels or () for column in self.columns[self.n_numeric :]]
        self.n_levels = np.array([len(of_column) for of_column in levels], np.uint32)
        self.place = np.zeros(len(features), np.int64)
        self.place[self.columns] = np.arange(len(self.columns))


def _pages(tree: Tree) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """The pages of a tree from the last to the first, with the nodes that can exclude leaves of it.

    Yields the page's number, the nodes, and which of its 32 bits the answer "right" leaves set for each of them: all but
    those of the leaves under the left child.
    """
    is_leaf = tree.feature < 0
    leaf: np.ndarray = np.cumsum(is_leaf) - is_leaf
    split = np.flatnonzero(~is_leaf)
    first, last = leaf[split], leaf[tree.right[split]]
    for page in range((tree.n_leaves - 1) // _PAGE, -1, -1):
        low, high = np.clip((first - page * _PAGE, last - page * _PAGE), 0, _PAGE)
        asking = np.flatnonzero(high > low)
        yield page, split[asking], (_ALL - ((1 << high) - (1 << low)))[asking]


def _left_codes(tree: Tree, at: int, n_codes: int) -> np.ndarray:
    """Which codes a categorical question sends left; the last one stands for missing values."""
    left = np.zeros(n_codes, np.bool_)
    left[tree.categories[at]] = True
    left[-1] = tree.missing_left[at]
    return left


def _words(bits: np.ndarray) -> np.ndarray:
    """Booleans as bits of uint32 words, the first in the lowest."""
    padded = np.zeros((len(bits) // 32 + 1) * 32, np.bool_)
    padded[: len(bits)] = bits
    return np.packbits(padded, bitorder="little").view("<u4").astype(np.uint32)


def _leaf_values(trees: Sequence[Tree]) -> np.ndarray:
    return np.concatenate([np.empty(0), *(tree.value[tree.feature < 0] for tree in trees)])
