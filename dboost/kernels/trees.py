"""From rows to leaves: how a forest is asked.

Walking down a tree costs a processor dearly: every step waits for the one before, and nobody can guess which child comes
next. So a small tree is not walked at all; *all* of its questions are asked of every row, 64 rows at a time, in vector
instructions that wait for nothing. Each row has a mask with one bit per leaf, all set at first. A question that sends
the row right clears the bits of the leaves under its left child. Questions off the row's path clear some bits too, but
never that of the leaf where the path ends, and the path itself has cleared all that lie left of it. So **the leaf is
the lowest bit still set**, whatever the order of the questions. (The idea is that of QuickScorer: Lucchese et al., SIGIR
2015.)

A mask has 32 bits. A tree with more leaves is cut into *pages* of 32 consecutive leaves, each with the questions that
can clear any of their bits. The first page that keeps a bit holds the leaf.

The number of questions grows with the leaves, the length of a path hardly does, so beyond some hundreds of leaves a tree
is *walked* after all: 64 rows in lockstep, level by level, with arithmetic in place of branches. A row that has arrived
in a leaf steps on the spot.

Rows come in blocks of 64, copied so that the values of a feature lie side by side; a block stays in the cache while all
trees pass over it. Values are summed tree by tree, in float64, so neither blocks nor threads change a bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dboost.kernels import inlined, kernel
from dboost.kernels.lanes import LANES, keep_above, keep_above_or_missing, lowest_bit

ALL_LEAVES = np.uint32(0xFFFFFFFF)
BIT_OF_WORD = np.uint64(31)
WORD = np.uint64(5)


class Pages(NamedTuple):
    """Trees of which every question is asked.

    Attributes
    ----------
    of_tree : int64[n_trees + 1]
        Pages of tree t, the one with the last leaves first: ``of_tree[t]`` … ``of_tree[t + 1]``; none if it is walked.
    first_leaf : uint32[n_pages]
        Number (within its tree) of the leaf that bit 0 stands for.
    groups : int64[3 * n_pages + 1]
        Each page's questions in three groups: missing values go right; missing values go left; about categories.
    threshold : float32 or float64 [n_questions]
        Largest value that goes left; the limit of a set.
    start : int32[n_questions]
        Where the block holds the values in question.
    keep : uint32[n_questions]
        The bits that the answer "right" leaves set.
    set_start : int32[n_questions]
        First word of the set of categories that go left; -1 for numeric questions.
    """

    of_tree: np.ndarray
    first_leaf: np.ndarray
    groups: np.ndarray
    threshold: np.ndarray
    start: np.ndarray
    keep: np.ndarray
    set_start: np.ndarray


class Walks(NamedTuple):
    """Trees that are walked, node after node in depth-first order.

    Attributes
    ----------
    root, depth : int64[n_trees]
        First node of the tree and number of steps; both 0 for trees cut into pages.
    with_sets : bool[n_trees]
        Whether the tree has categorical questions.
    threshold, start, set_start :
        By node, as in `Pages`. NaN, 0 and -1 in leaves, so that every value steps "right".
    missing_left : bool[n_nodes]
    jump : int32[n_nodes]
        The left child is the next node, the right one is `jump` nodes further; -1 in leaves, which leads back to it.
    leaf : uint32[n_nodes]
        Number of the leaf within its tree.
    """

    root: np.ndarray
    depth: np.ndarray
    with_sets: np.ndarray
    threshold: np.ndarray
    start: np.ndarray
    set_start: np.ndarray
    missing_left: np.ndarray
    jump: np.ndarray
    leaf: np.ndarray


class Forest(NamedTuple):
    """Trees in the form that the kernels read; `dboost.model.flat` makes it.

    Attributes
    ----------
    columns : int64[n_used]
        Columns of the matrix that any question is about; a block holds only these.
    pages : Pages
    walks : Walks
    sets : uint32[...]
        A set with limit L has L + 1 bits: which codes below L go left, and at L where all others and missing values go.
    value : float64[n_leaves]
        Leaf by leaf, tree by tree.
    first_value : int64[n_trees]
    """

    columns: np.ndarray
    pages: Pages
    walks: Walks
    sets: np.ndarray
    value: np.ndarray
    first_value: np.ndarray


@kernel
def add_scores(forest, matrix, first_row, last_row, first_tree, last_tree, n_outputs, scores):
    """Add the leaf values of some trees to the raw scores of some rows, in the order of the trees.

    matrix : float32 or float64 [n, p], C-contiguous; scores : float64[n, n_outputs], tree t adds to t % n_outputs.
    """
    block = np.zeros(forest.columns.size * LANES, matrix.dtype)
    masks = np.empty(LANES, np.uint32)
    leaf = np.zeros(LANES, np.uint32)
    sums = np.zeros((n_outputs, LANES), np.float64)
    for row in range(first_row, last_row, LANES):
        n_rows = min(LANES, last_row - row)
        _load(matrix, row, n_rows, forest.columns, block)
        for r in range(n_rows):
            for k in range(n_outputs):
                sums[k, r] = scores[row + r, k]
        for tree in range(first_tree, last_tree):
            _find_leaves(forest, tree, block, masks, leaf)
            _add_values(forest.value, forest.first_value[tree], leaf, sums, tree % n_outputs)
        for r in range(n_rows):
            for k in range(n_outputs):
                scores[row + r, k] = sums[k, r]


@kernel
def store_leaves(forest, matrix, first_row, last_row, first_tree, last_tree, leaves):
    """Number of the leaf that each row reaches in each tree; leaves : int32[n, last_tree - first_tree]."""
    block = np.zeros(forest.columns.size * LANES, matrix.dtype)
    masks = np.empty(LANES, np.uint32)
    leaf = np.zeros(LANES, np.uint32)
    for row in range(first_row, last_row, LANES):
        n_rows = min(LANES, last_row - row)
        _load(matrix, row, n_rows, forest.columns, block)
        for tree in range(first_tree, last_tree):
            _find_leaves(forest, tree, block, masks, leaf)
            for r in range(n_rows):
                leaves[row + r, tree - first_tree] = leaf[r]


@kernel
def _load(matrix, row, n_rows, columns, block):
    for r in range(n_rows):
        for j in range(columns.size):
            block[j * LANES + r] = matrix[row + r, columns[j]]


@kernel
def _add_values(value, first_value, leaf, sums, k):
    for r in range(LANES):
        sums[k, r] += value[first_value + leaf[r]]


@kernel
def _find_leaves(forest, tree, block, masks, leaf):
    first, last = forest.pages.of_tree[tree], forest.pages.of_tree[tree + 1]
    for page in range(first, last):
        _ask(forest.pages, forest.sets, page, block, masks)
        first_leaf = forest.pages.first_leaf[page]
        for r in range(LANES):
            leaf[r] = first_leaf + lowest_bit(masks[r]) if masks[r] else leaf[r]
    if first == last:
        root, depth = forest.walks.root[tree], forest.walks.depth[tree]
        if forest.walks.with_sets[tree]:
            _walk_with_sets(forest.walks, forest.sets, root, depth, block, leaf)
        else:
            _walk(forest.walks, root, depth, block, leaf)


@kernel
def _ask(pages, sets, page, block, masks):
    """Put all questions of a page to all rows of a block."""
    for r in range(LANES):
        masks[r] = ALL_LEAVES
    for q in range(pages.groups[3 * page], pages.groups[3 * page + 1]):
        keep_above_or_missing(masks, pages.keep[q], block, pages.start[q], pages.threshold[q])
    for q in range(pages.groups[3 * page + 1], pages.groups[3 * page + 2]):
        keep_above(masks, pages.keep[q], block, pages.start[q], pages.threshold[q])
    for q in range(pages.groups[3 * page + 2], pages.groups[3 * page + 3]):
        for r in range(LANES):
            left = _in_set(sets, pages.set_start[q], pages.threshold[q], block[pages.start[q] + r])
            masks[r] = masks[r] if left else masks[r] & pages.keep[q]


@inlined
def _in_set(sets, start, limit, value):
    """1 when the set holds the code, else 0."""
    code = np.uint64(value if (value >= 0) & (value < limit) else limit)
    return (sets[start + np.int64(code >> WORD)] >> (code & BIT_OF_WORD)) & np.uint64(1)


@kernel
def _walk(walks, root, depth, block, leaf):
    for r in range(LANES):
        leaf[r] = root
    for _ in range(depth):
        for r in range(LANES):
            node = np.int64(leaf[r])
            value = block[walks.start[node] + r]
            left = (value <= walks.threshold[node]) | ((value != value) & walks.missing_left[node])
            leaf[r] = node + 1 + (walks.jump[node] & (np.int64(left) - 1))
    for r in range(LANES):
        leaf[r] = walks.leaf[leaf[r]]


@kernel
def _walk_with_sets(walks, sets, root, depth, block, leaf):
    for r in range(LANES):
        leaf[r] = root
    for _ in range(depth):
        for r in range(LANES):
            node = np.int64(leaf[r])
            value = block[walks.start[node] + r]
            if walks.set_start[node] >= 0:
                left = np.int64(_in_set(sets, walks.set_start[node], walks.threshold[node], value))
            else:
                at_most = value <= walks.threshold[node]
                left = np.int64(at_most | ((value != value) & walks.missing_left[node]))
            leaf[r] = node + 1 + (walks.jump[node] & (left - 1))
    for r in range(LANES):
        leaf[r] = walks.leaf[leaf[r]]
