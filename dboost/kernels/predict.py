"""From rows to leaves: two algorithms for prediction, and two for rows of bin codes.

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

**Rows of bin codes** are routed to leaves when a tree was grown on some of the training rows only.

*Small trees: masks.* A row has one bit for each leaf, numbered from left to right. Every split that sends the row to the right
clears the bits of the leaves on its left; the lowest bit that is left is the row's leaf (Lucchese et al., "QuickScorer", 2015).
Splits are applied one after the other to a block of rows. The bits of a row are four bytes in four *bit planes*, because codes
are bytes too: a comparison and an "and" of neighbouring bytes are done for 32 rows at a time by processors with 256-bit
vectors, and a split touches only the bit planes in which it has leaves to clear, mostly one.

*Large trees: tables.* A row is routed by table look-ups alone: the next node for each node and code is computed beforehand, and
a leaf leads back to itself for every code, so that all rows take the same number of steps and no step has an unpredictable
branch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dboost.kernels import internal, kernel
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
    values : float64[n_leaves, width]
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
    values : float64[n_leaves, width]
    """

    columns: np.ndarray
    n_levels: np.ndarray
    trees: np.ndarray
    nodes: np.ndarray
    node_sets: np.ndarray
    sets: np.ndarray
    values: np.ndarray


@kernel
def clear_left_leaves(begin, end, keep, missing_left, first_code, codes, tables):
    """Clear, for the codes that each of some categorical splits sends right, the bits of the leaves under its left child.

    begin, end : int64[n_splits], the entries of the split's feature in `tables`, the last of which is for missing values;
    keep : int64[n_splits], the bits that stay set; missing_left : bool[n_splits]; first_code : int64[n_splits + 1], where the
    split's codes begin in `codes` (int32[...]): those that go left, ascending; tables : as in `QuickScorerForest`.
    """
    for k in range(begin.size):
        at, last, kept = first_code[k], first_code[k + 1], U32(keep[k])
        for entry in range(begin[k], end[k]):
            if at < last and codes[at] == entry - begin[k]:
                at += 1
            elif entry < end[k] - 1 or not missing_left[k]:
                tables[entry] &= kept


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


@kernel
def predict_quickscorer(forest, matrix, rows, tree_range, scores, leaves, scratch):
    """Find the leaves of some rows in some trees by applying all conditions.

    Parameters
    ----------
    forest : QuickScorerForest
    matrix : float32 or float64 [n, p], C-contiguous
    rows, tree_range : (first, last)
        The last one is not included.
    scores : float64[n, n_outputs]
        The leaves' values are added to it in the order of the trees; those of tree t to the outputs from t * width modulo
        n_outputs on.
    leaves : int32[n, n_trees or 0]
        Receives the numbers of the leaves, unless it has no columns.
    scratch : (block, codes, lanes)
        See `scratch_for`.
    """
    columns, n_levels = forest.columns, forest.n_levels
    trees, pages, conditions = forest.trees, forest.pages, forest.conditions
    lookups, tables, values = forest.lookups, forest.tables, forest.values
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


@kernel
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
    first = t * values.shape[1] % scores.shape[1]
    for k in range(values.shape[1]):
        for r in range(n_rows):
            scores[row + r, first + k] += values[first_value + leaf[r], k]
    if leaves.shape[1]:
        for r in range(n_rows):
            leaves[row + r, column] = leaf[r]


@kernel
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
    first, width, n_outputs = columns.size - n_levels.size, values.shape[1], scores.shape[1]
    for row in range(matrix.shape[0]):
        output = tree_range[0] * width % n_outputs
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
            leaf = tree.first_value + nodes[at].leaf
            scores[row, output] += values[leaf, 0]
            for k in range(1, width):
                scores[row, output + k] += values[leaf, k]
            output = output + width if output + width < n_outputs else 0


I = np.int64  # noqa: E741
U8 = np.uint8

#: Bit planes: bytes of a mask.
N_PLANES = 4
#: Number of leaves for which a mask has bits.
MASK_LEAVES = 8 * N_PLANES
#: The record of a split: see `label_by_masks`.
STEP, AFTER, N_RIGHT, IS_TABLE, N_STEPS = range(5)
#: Rows that are labelled together.
BLOCK = 2048


class MaskSplits(NamedTuple):
    """The splits of a tree, in the form that `label_by_masks` reads."""

    #: int64[N_STEPS, MASK_LEAVES]: of each split, its row of codes, the first code that goes right, and how many consecutive
    #: codes do; or that a table decides.
    steps: np.ndarray
    tables: np.ndarray  # uint8[MASK_LEAVES, 256]: 0 (left) or 255 (right)
    struck: np.ndarray  # uint8[MASK_LEAVES, N_PLANES]: the bits of the leaves on the left


def new_mask_splits() -> MaskSplits:
    """Return uninitialised arrays for a tree of at most `MASK_LEAVES` leaves."""
    return MaskSplits(
        steps=np.empty((N_STEPS, MASK_LEAVES), np.int64),
        tables=np.empty((MASK_LEAVES, 256), np.uint8),
        struck=np.empty((MASK_LEAVES, N_PLANES), np.uint8),
    )


@kernel
def prepare_masks(nodes, left_codes, layout, code_row, below, leaves, splits):
    """Write a tree's splits in the form that `label_by_masks` reads. Return their number, or -1 when a code has two bytes.

    nodes : `trees.fit_trees.TreeNodes`; left_codes : uint8[n_nodes, n_codes]; layout : BinLayout; code_row :
    int64[n_features]; below, leaves : int64[n_nodes], scratch: the first leaf below each node, and their number; splits :
    MaskSplits, receives the splits.
    """
    child, feature, split_bin, missing_left = nodes.child, nodes.feature, nodes.split_bin, nodes.missing_left
    leaf_of, n = nodes.leaf_of, nodes.child.size
    n_bins, is_categorical = layout.n_bins, layout.is_categorical
    steps, tables, struck = splits.steps, splits.tables, splits.struck
    # Children come after their parents.
    for node in range(n - 1, -1, -1):
        left = child[node]
        below[node] = leaf_of[node] if left < 0 else below[left]
        leaves[node] = 1 if left < 0 else leaves[left] + leaves[left + 1]
    s = 0
    for node in range(n):
        left = child[node]
        if left < 0:
            continue
        f = feature[node]
        if code_row[f] < 0:
            return -1
        # A split after the last bin sends all values left.
        after = min(split_bin[node] + 1, n_bins[f])
        is_table = is_categorical[f] != 0
        steps[STEP, s] = code_row[f]
        steps[AFTER, s] = after
        steps[N_RIGHT, s] = n_bins[f] + (0 if missing_left[node] != 0 else 1) - after
        steps[IS_TABLE, s] = is_table
        if is_table:
            for code in range(n_bins[f]):
                tables[s, code] = 0 if left_codes[node, code] != 0 else 255
            tables[s, n_bins[f]] = 0 if missing_left[node] != 0 else 255
        bits = ((I(1) << leaves[left]) - I(1)) << below[node]
        for p in range(N_PLANES):
            struck[s, p] = (bits >> I(8 * p)) & I(255)
        s += 1
    return s


@kernel
def label_by_masks(codes, splits, n_splits, first, last, scratch, leaf):
    """Write the leaf that each of rows first…last-1 reaches, in a tree of at most `MASK_LEAVES` leaves.

    codes : uint8[n_narrow, n]; splits : MaskSplits; scratch : uint8[N_PLANES + 1, BLOCK]; leaf : uint8 or int32[n].
    """
    steps, tables, struck = splits.steps, splits.tables, splits.struck
    for start in range(first, last, BLOCK):
        n = BLOCK if start + BLOCK < last else last - start
        for p in range(N_PLANES):
            plane = scratch[p, :n]
            for i in range(n):
                plane[i] = U8(255)
        right = scratch[N_PLANES, :n]
        for s in range(n_splits):
            code = codes[steps[STEP, s], start : start + n]
            is_table = steps[IS_TABLE, s] != 0
            after, n_right = U8(steps[AFTER, s]), U8(steps[N_RIGHT, s])
            if is_table:
                table = tables[s]
                for i in range(n):
                    right[i] = table[code[i]]
            for p in range(N_PLANES):
                if struck[s, p] == 0:
                    continue
                plane, stay = scratch[p, :n], U8(~struck[s, p])
                # All bits or none by arithmetic: for an "if" the compiler emits an unpredictable jump per row.
                # One comparison: codes below `after` wrap around and are large.
                if is_table:
                    for i in range(n):
                        plane[i] &= ~right[i] | stay
                else:
                    for i in range(n):
                        plane[i] &= (U8(U8(code[i] - after) < n_right) - U8(1)) | stay
        # The first bit plane that is not zero, then its lowest bit, by bisection: all in bytes.
        lowest_plane = scratch[N_PLANES - 1, :n]
        for i in range(n):
            right[i] = U8(8 * N_PLANES - 8)
        for p in range(N_PLANES - 2, -1, -1):
            plane, base = scratch[p, :n], U8(8 * p)
            for i in range(n):
                is_set = U8(0) - U8(plane[i] != 0)
                lowest_plane[i] = (plane[i] & is_set) | (lowest_plane[i] & ~is_set)
                right[i] = (base & is_set) | (right[i] & ~is_set)
        for i in range(n):
            lowest = U8(lowest_plane[i] & (U8(0) - lowest_plane[i]))
            half, quarter, eighth = lowest & U8(0xF0), lowest & U8(0xCC), lowest & U8(0xAA)
            right[i] += U8(half != 0) * U8(4) + U8(quarter != 0) * U8(2) + U8(eighth != 0)
        out = leaf[start : start + n]
        for i in range(n):
            out[i] = right[i]


@kernel
def label_by_tables(codes, step, follows, label, depth, first, last, leaf):
    """Write the label of the leaf that each of rows first…last-1 reaches.

    codes : uint8[n_narrow, n]; step : int64[n_nodes], the row of `codes` that a node tests (any in leaves);
    follows : uint8 or int32[n_nodes, 256], the next node for each code, for leaves the leaf itself; label : int32[n_nodes];
    depth : steps from the root to the deepest leaf; leaf : uint8 or int32[n].
    """
    quarter = (last - first) >> 2
    # Four rows at a time: while one waits for memory, others compute.
    for i in range(first, first + quarter):
        j, k, m = i + quarter, i + 2 * quarter, i + 3 * quarter
        a = b = c = d = I(0)
        for _ in range(depth):
            a = I(follows[a, codes[step[a], i]])
            b = I(follows[b, codes[step[b], j]])
            c = I(follows[c, codes[step[c], k]])
            d = I(follows[d, codes[step[d], m]])
        leaf[i], leaf[j], leaf[k], leaf[m] = label[a], label[b], label[c], label[d]
    for i in range(first + 4 * quarter, last):
        a = I(0)
        for _ in range(depth):
            a = I(follows[a, codes[step[a], i]])
        leaf[i] = label[a]
