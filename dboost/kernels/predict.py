"""From rows to leaves: two algorithms for prediction.

Traversing a tree is slow on a modern processor: every step waits for the one before, and the next child is unpredictable.
A small tree is therefore not traversed (`predict_quickscorer`): *all* of its conditions are applied to every row, 64 rows at a
time, in vector instructions that do not wait for each other. Each row has a mask with one bit per leaf, all set at first. A
condition that sends the row right clears the bits of the leaves under its left child. Conditions off the row's path clear some
bits too, but never that of the leaf where the path ends, and the path itself has cleared all bits to the left of it. So **the
leaf is the lowest bit still set**, whatever the order of the conditions (QuickScorer: Lucchese et al., SIGIR 2015).

A mask has 32 bits. A tree with more leaves is divided into *pages* of 32 consecutive leaves, each with the conditions that can
clear any of their bits. The first page that keeps a bit holds the leaf.

The number of conditions grows with the leaves, the length of a path hardly does, so with some hundreds of leaves traversal is
faster (`predict_traversal`): 64 rows in lockstep, level by level, without a jump. A row that has reached a leaf stays there.

Rows are processed in blocks of 64, copied so that the values of a feature are adjacent; a block stays in the cache while all
trees are applied to it. Values are summed tree by tree, in float64, so neither blocks nor threads change a bit.

A categorical value is converted to its code once per block; missing values and unknown codes become the number of categories.
In pages, all conditions on one categorical feature are a single *lookup*: a table holds the bits that each code leaves set. In
a traversal, a node's *set* is a bit mask of the codes that go left.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dboost.kernels import internal, uncounted
from dboost.kernels.simd import LANES, keep_where_left, note_leaves, pick

U32 = np.uint32
MINUS_INFINITY = np.float32(-np.inf)


class QuickScorerForest(NamedTuple):
    """Trees in the form that `predict_quickscorer` reads.

    Attributes
    ----------
    columns : int64[n_used]
        Columns of the matrix that any condition tests, numeric ones first. The values of ``columns[j]`` start at 64 j in a
        block.
    n_levels : uint32[n_categorical]
        Numbers of categories of the categorical columns; the codes of the i-th start at 64 i.
    trees : (first_page, last_page, first_value) [n_trees]
        Pages, the one with the last leaves first; position of the first leaf's value.
    pages : (first_leaf, begin, missing_left, end, first_lookup, last_lookup) [n_pages]
        Leaf of bit 0; the first numeric condition, the first one that sends missing values left, the end of the numeric
        conditions; the lookups.
    conditions : (threshold, start, keep) [n_conditions]
        Largest value that goes left; position of the values in the block; bits that stay set for rows that go right.
    lookups : (start, table) [n_lookups]
        Position of the codes, and of the table for them.
    tables : uint32[...]
        For each code, and for missing values after the last one: the bits that stay set.
    values : float64[n_leaves]
    """

    columns: np.ndarray
    n_levels: np.ndarray
    trees: np.ndarray
    pages: np.ndarray
    conditions: np.ndarray
    lookups: np.ndarray
    tables: np.ndarray
    values: np.ndarray


QUICKSCORER_TREE = np.dtype([("first_page", np.int64), ("last_page", np.int64), ("first_value", np.int64)])
PAGE = np.dtype([(name, U32) for name in ("first_leaf", "begin", "missing_left", "end", "first_lookup", "last_lookup")])
LOOKUP = np.dtype([("start", U32), ("table", U32)])


def condition(precision: npt.DTypeLike) -> np.dtype:
    """Return the record type of `QuickScorerForest.conditions` for matrices of a float type."""
    return np.dtype([("threshold", precision), ("start", U32), ("keep", U32)], align=True)


class TraversalForest(NamedTuple):
    """Trees in the form that `predict_traversal` reads.

    Attributes
    ----------
    columns, n_levels
        As in `QuickScorerForest`, but a block holds each numeric column twice: as it is from 128 j on, and from 128 j + 64 on
        with -infinity for missing values, for the conditions that send these left.
    trees : (root, depth, has_sets, first_value) [n_trees]
        Number of the root; largest number of steps of any row; whether any condition is categorical.
    nodes : (threshold, start, right, leaf) [n_nodes]
        Threshold and start as in `QuickScorerForest`; right child (the left one is the next node); number of the leaf within
        its tree. A leaf's threshold is NaN and its right child the leaf itself.
    node_sets : (start, word) [n_nodes]
        Position of the codes of a categorical condition (with a threshold of NaN), and of its set. Other nodes have the set at
        0, which is empty.
    sets : uint32[...]
        Bits of the codes that go left; the bit after the last code is for missing values.
    values : float64[n_leaves]
    """

    columns: np.ndarray
    n_levels: np.ndarray
    trees: np.ndarray
    nodes: np.ndarray
    node_sets: np.ndarray
    sets: np.ndarray
    values: np.ndarray


TRAVERSAL_TREE = np.dtype([("root", np.int64), ("depth", np.int64), ("has_sets", np.int64), ("first_value", np.int64)])
NODE_SET = np.dtype([("start", U32), ("word", U32)])


def node(precision: npt.DTypeLike) -> np.dtype:
    """Return the record type of `TraversalForest.nodes` for matrices of a float type."""
    return np.dtype([("threshold", precision), ("start", U32), ("right", U32), ("leaf", U32)], align=True)


def scratch_for(
    columns: np.ndarray, n_levels: np.ndarray, precision: npt.DTypeLike
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return scratch for one call of `predict_quickscorer` or `predict_traversal`: a block's values, its codes, two numbers per
    row."""
    # Nodes without a numeric condition read the first values, so there must be some.
    n_bytes = max(1, columns.size - n_levels.size) * 2 * LANES * np.dtype(precision).itemsize
    memory = np.empty(n_bytes + 64, np.uint8)
    at = -memory.ctypes.data % 64  # vectors that straddle two cache lines take twice as long to load
    block = memory[at : at + n_bytes].view(precision)
    return block, np.empty(n_levels.size * LANES, U32), np.empty((2, LANES), U32)


@uncounted
def predict_quickscorer(forest, matrix, rows, tree_range, scores, leaves, scratch):
    """Find the leaves of some rows in some trees by applying all conditions.

    Parameters
    ----------
    forest : QuickScorerForest
    matrix : float32 or float64 [n, p], C-contiguous
    rows, tree_range : (first, last)
        The last one is not included.
    scores : float64[n, n_outputs]
        The leaves' values are added to it in the order of the trees; tree t belongs to output t modulo n_outputs.
    leaves : int32[n, n_trees or 0]
        Receives the numbers of the leaves, unless it has no columns.
    scratch : (block, codes, lanes)
        See `scratch_for`.
    """
    columns, n_levels, trees, pages = forest.columns, forest.n_levels, forest.trees, forest.pages
    conditions, lookups, tables, values = forest.conditions, forest.lookups, forest.tables, forest.values
    block, codes, lanes = scratch
    n_numeric = columns.size - n_levels.size
    masks, leaf = lanes[0], lanes[1]
    for i in range(codes.size):
        codes[i] = 0
    for row in range(rows[0], rows[1], LANES):
        # In the last block some lanes hold old values: they are computed as well and their results are not used.
        n_rows = rows[1] - row if rows[1] - row < LANES else LANES
        for r in range(n_rows):
            for j in range(n_numeric):
                block[j * LANES + r] = matrix[row + r, columns[j]]
        _load_codes(matrix, row, n_rows, columns, n_levels, codes)
        for t in range(tree_range[0], tree_range[1]):
            tree = trees[t]
            for p in range(tree.first_page, tree.last_page):
                page = pages[p]
                keep_where_left(conditions, page.begin, page.missing_left, page.end, block, masks)
                for i in range(page.first_lookup, page.last_lookup):
                    start, table = lookups[i].start, lookups[i].table
                    for r in range(LANES):
                        masks[r] &= tables[table + codes[start + U32(r)]]
                note_leaves(masks, page.first_leaf, leaf)
            _hand_over(leaf, values, tree.first_value, row, n_rows, t, t - tree_range[0], scores, leaves)


@uncounted
def predict_traversal(forest, matrix, rows, tree_range, scores, leaves, scratch):
    """Find the leaves of some rows in some trees (a `TraversalForest`) by traversal; parameters as of
    `predict_quickscorer`."""
    columns, n_levels, trees, nodes = forest.columns, forest.n_levels, forest.trees, forest.nodes
    node_sets, sets, values = forest.node_sets, forest.sets, forest.values
    block, codes, lanes = scratch
    n_numeric = columns.size - n_levels.size
    at = lanes[0]
    for i in range(codes.size):
        codes[i] = 0
    for row in range(rows[0], rows[1], LANES):
        n_rows = rows[1] - row if rows[1] - row < LANES else LANES
        for r in range(n_rows):
            for j in range(n_numeric):
                value = matrix[row + r, columns[j]]
                block[2 * j * LANES + r] = value
                block[(2 * j + 1) * LANES + r] = value if value == value else MINUS_INFINITY
        _load_codes(matrix, row, n_rows, columns, n_levels, codes)
        for t in range(tree_range[0], tree_range[1]):
            tree = trees[t]
            for r in range(LANES):
                at[r] = tree.root
            for _ in range(tree.depth):
                if tree.has_sets:
                    _step_with_sets(at, block, codes, nodes, node_sets, sets)
                else:
                    for r in range(LANES):
                        node = nodes[at[r]]
                        left = block[node.start + U32(r)] <= node.threshold
                        at[r] = pick(left, at[r] + U32(1), node.right)
            for r in range(LANES):
                at[r] = nodes[at[r]].leaf
            _hand_over(at, values, tree.first_value, row, n_rows, t, t - tree_range[0], scores, leaves)


@internal
def _load_codes(matrix, row, n_rows, columns, n_levels, codes):
    """Load the codes of the categorical columns, which are the last columns."""
    first = columns.size - n_levels.size
    for r in range(n_rows):
        for i in range(n_levels.size):
            value, limit = matrix[row + r, columns[first + i]], n_levels[i]
            codes[i * LANES + r] = U32(value if (value >= 0) & (value < limit) else limit)


@internal
def _step_with_sets(at, block, codes, nodes, node_sets, sets):
    """Take one step of a traversal whose conditions may be categorical: both tests are evaluated, one of them is always
    false."""
    for r in range(LANES):
        node, node_set = nodes[at[r]], node_sets[at[r]]
        code = codes[node_set.start + U32(r)]
        bit = (sets[node_set.word + (code >> U32(5))] >> (code & U32(31))) & U32(1)
        left = U32(block[node.start + U32(r)] <= node.threshold) | bit
        at[r] = pick(left != U32(0), at[r] + U32(1), node.right)


@internal
def _hand_over(leaf, values, first_value, row, n_rows, t, column, scores, leaves):
    """Add the values of the leaves to the scores, and store the leaf numbers if wanted."""
    k = t % scores.shape[1]
    for r in range(n_rows):
        scores[row + r, k] += values[first_value + leaf[r]]
    if leaves.shape[1]:
        for r in range(n_rows):
            leaves[row + r, column] = leaf[r]


@uncounted
def predict_rows(forest, matrix, tree_range, scores):
    """Add the leaf values of some trees (a `TraversalForest`) to the scores of a few rows, one row and one tree at a time.

    It skips what pays off for many rows only: copying them to blocks, and computing all 64 lanes of a block.

    Parameters
    ----------
    forest : TraversalForest
        For float64.
    matrix : float64[n, p], C-contiguous
    tree_range, scores
        As of `predict_quickscorer`.
    """
    columns, n_levels, trees, nodes = forest.columns, forest.n_levels, forest.trees, forest.nodes
    node_sets, sets, values = forest.node_sets, forest.sets, forest.values
    first = columns.size - n_levels.size
    for row in range(matrix.shape[0]):
        for t in range(tree_range[0], tree_range[1]):
            tree = trees[t]
            at = U32(tree.root)
            while nodes[at].right != at:  # a leaf is its own right child
                node = nodes[at]
                value = matrix[row, columns[node.start // U32(2 * LANES)]]
                left = (value <= node.threshold) | ((value != value) & (node.start // U32(LANES) % U32(2) == U32(1)))
                word = node_sets[at].word
                if word != U32(0):
                    i = node_sets[at].start // U32(LANES)
                    value, limit = matrix[row, columns[first + i]], n_levels[i]
                    code = U32(value if (value >= 0) & (value < limit) else limit)
                    left = (sets[word + (code >> U32(5))] >> (code & U32(31))) & U32(1) != U32(0)
                at = pick(left, at + U32(1), node.right)
            scores[row, t % scores.shape[1]] += values[tree.first_value + nodes[at].leaf]
