"""Grown trees applied to encoded rows that did not take part in growing them.

Evaluation sets apply every tree as it is grown; rows that a worker received late, because another worker died or because the
worker has just joined, apply all trees at once. The trees are expressed in bin codes here, not in values, and their leaf values
are added in order: ``((baseline + v1) + v2) + …`` are the same sums as in training, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dboost.kernels.histograms import BinLayout
from dboost.kernels.predict import (
    BLOCK,
    MASK_LEAVES,
    N_PLANES,
    label_by_masks,
    label_by_tables,
    new_mask_splits,
    prepare_masks,
)
from dboost.kernels.records import record
from dboost.kernels.rows import ROUTED_TOGETHER, add_tree
from dboost.rows.shard import BinnedColumns
from dboost.trees.fit_trees import FitTree

#: Rows to which so many trees are applied before the next rows, if there are many.
_BLOCK, _TREES, _MANY_TREES = 16_384, 64, 8

#: From this many rows on, labelling them with leaves is faster than following each to its leaf: with masks, and with tables for
#: each leaf of the tree. Below, preparing the labelling takes longer.
_ROWS_OF_MASKS, _ROWS_OF_TABLES = 4096, 256


class ConsecutiveCodes(NamedTuple):
    """The codes of some rows among those of more rows."""

    codes: BinnedColumns
    first: int  # the first of these rows

    def part(self, n: int) -> BinnedColumns:
        """Return those of the first n rows: views."""
        return self.codes.part(slice(self.first, self.first + n))


@record
class RoutingScratch(NamedTuple):
    """Scratch of `kernels.rows.add_tree`."""

    records: np.ndarray  # uint64[2, n]: rows, sorted by the nodes of one level and of the next
    begin: np.ndarray  # int64[n_nodes]
    end: np.ndarray  # int64[n_nodes]
    goes_left: np.ndarray  # uint8[n_codes]

    @classmethod
    def of(cls, n_rows: int, n_nodes: int) -> RoutingScratch:
        """Return scratch for so many rows and nodes."""
        begin, end = np.empty((2, n_nodes), np.int64)
        return cls(np.empty((2, min(n_rows, ROUTED_TOGETHER)), np.uint64), begin, end, np.empty(1 << 16, np.uint8))


def add_grown_tree(
    codes: BinnedColumns,
    layout: BinLayout,
    tree: FitTree,
    values: np.ndarray,
    raw: np.ndarray,
    first: int,
    last: int,
    offset: int = 0,
) -> None:
    """Add leaf values to the raw scores of rows first…last-1, whose codes are in rows first + offset…last + offset - 1.

    values, raw : float64[n_leaves] and float64[n_rows], or of several outputs both with a first axis.
    """
    least = _ROWS_OF_MASKS if tree.n_leaves <= MASK_LEAVES else _ROWS_OF_TABLES * tree.n_leaves
    find = leaf_finder(codes, layout, tree) if last - first >= least else None
    begin, end = first + offset, last + offset
    if find is None and (values.ndim > 1 or offset):  # rows find their leaves once
        reached = np.zeros(end)
        add_grown_tree(codes, layout, tree, np.arange(tree.n_leaves, dtype=np.float64), reached, begin, end)
        raw[..., first:last] += values[..., reached[begin:end].astype(np.int64)]
        return
    if find is None:
        sets, scratch = (tree.sets.nodes, tree.sets.goes_left()), RoutingScratch.of(last - first, tree.n_nodes)
        add_tree(codes, layout, tree.nodes, sets, values, first, last, raw, scratch)
        return
    leaf: np.ndarray = np.empty(end, np.uint8 if tree.n_leaves <= 256 else np.int32)
    find(leaf, begin, end)
    for at in range(first, last, _BLOCK):
        to = min(at + _BLOCK, last)
        raw[..., at:to] += values.take(leaf[at + offset : to + offset], axis=-1)


def add_trees(
    codes: BinnedColumns,
    layout: BinLayout,
    trees: Sequence[FitTree],
    raw: np.ndarray,
    first: int,
    last: int,
    offset: int = 0,
    unit: float = 1.0,
) -> None:
    """Add trees to the raw scores (float64[n_outputs, n_rows]) of rows first…last-1; offset : see `add_grown_tree`.

    Many trees are added block by block, so that a block's codes and scores stay in the cache meanwhile. unit : factor of leaf
    values.
    """
    n_rows = _BLOCK if len(trees) >= _MANY_TREES else max(last - first, 1)
    for at in range(0, len(trees), _TREES):
        applied = [(tree, tree.leaf_values * unit, tree.scores_of(raw)) for tree in trees[at : at + _TREES]]
        for begin in range(first, last, n_rows):
            for tree, values, of_output in applied:
                add_grown_tree(codes, layout, tree, values, of_output, begin, min(begin + n_rows, last), offset)


def leaf_finder(codes: BinnedColumns, layout: BinLayout, tree: FitTree) -> Callable[[np.ndarray, int, int], None] | None:
    """Return a function that writes the leaves of rows first…last-1 into an array of leaf numbers.

    None if the tree tests codes of two bytes.
    """
    n, nodes, left_codes = tree.n_nodes, tree.nodes, tree.left_codes
    if tree.n_leaves <= MASK_LEAVES:
        mask_splits = new_mask_splits()
        below, leaves = np.empty((2, n), np.int64)
        n_splits = prepare_masks(nodes, left_codes, layout, codes.row_of, below, leaves, mask_splits)
        if n_splits >= 0:
            return lambda leaf, first, last: label_by_masks(
                codes.narrow, mask_splits, n_splits, first, last, np.empty((N_PLANES + 1, BLOCK), np.uint8), leaf
            )
    splits = np.flatnonzero(nodes.child >= 0)
    step = codes.row_of[np.maximum(nodes.feature, 0)]
    if (step[splits] < 0).any():
        return None
    # Bytes if there are few nodes: then the table fits the fastest cache.
    follows = np.repeat(np.arange(n, dtype=np.uint8 if n <= 256 else np.int32)[:, None], 256, axis=1)
    for node in splits:
        f, left = int(nodes.feature[node]), np.zeros(256, bool)
        n_bins = int(layout.n_bins[f])
        if layout.is_categorical[f]:
            left[:n_bins] = left_codes[node, :n_bins]
        else:
            left[: int(nodes.split_bin[node]) + 1] = True
        left[n_bins] = nodes.missing_left[node]
        follows[node] = nodes.child[node] + ~left
    depth = int(nodes.depth.max())
    return lambda leaf, first, last: label_by_tables(
        codes.narrow, np.maximum(step, 0), follows, nodes.leaf_of, depth, first, last, leaf
    )


def assign_leaves(codes: BinnedColumns, layout: BinLayout, tree: FitTree) -> Callable[[np.ndarray, int, int], None]:
    """Return a function that writes the leaves of rows first…last-1: `leaf_finder`, or a slower one for codes of two bytes."""

    def slowly(leaf: np.ndarray, first: int, last: int) -> None:
        reached, numbers = np.zeros(len(leaf)), np.arange(tree.n_leaves, dtype=np.float64)
        add_grown_tree(codes, layout, tree, numbers, reached, first, last)
        leaf[first:last] = reached[first:last]

    return leaf_finder(codes, layout, tree) or slowly


def leaves_of(codes: BinnedColumns, layout: BinLayout, tree: FitTree) -> np.ndarray:
    """Return the leaf of each row: float64[n_rows], integers."""
    reached = np.zeros(codes.n_rows)
    add_grown_tree(codes, layout, tree, np.arange(tree.n_leaves, dtype=np.float64), reached, 0, codes.n_rows)
    return reached
