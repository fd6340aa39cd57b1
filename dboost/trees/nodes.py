"""Node arrays and growth policy: what is known of every node of a growing tree, and which leaf is split next.

Nodes are numbered as they are created: the root is 0, the k-th split makes nodes 2k+1 (left) and 2k+2 (right). A leaf stores
its best split and the gain of that split; `select_leaf` picks the leaf to split. These functions are the whole growth policy.
The generator in `grower.py` calls them one round at a time, the fused grower calls them inside one compiled call per tree.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dboost.kernels import internal
from dboost.kernels.splits import (
    FEATURE,
    LEFT_G,
    LEFT_H,
    LEFT_N,
    SCORE,
    SPLIT_SIZE,
    bounded_score,
    bounded_step,
    side_score,
)

I = np.int64  # noqa: E741

BEST_FIRST, DEPTH_WISE, ANY_ORDER = 0, 1, 2


class GrowthPolicy(NamedTuple):
    """The limits of a tree and the order in which its leaves are split."""

    max_leaves: int
    max_depth: int
    order: int  # BEST_FIRST, DEPTH_WISE, or ANY_ORDER when nothing but max_depth limits the tree


class NodeArrays(NamedTuple):
    """Arrays over the node numbers of a growing tree."""

    feature: np.ndarray  # int64: split feature, -1 in a leaf
    split_bin: np.ndarray  # int64: last bin that goes left (categorical splits: see kernels.splits)
    missing_left: np.ndarray  # int64
    child: np.ndarray  # int64: left child (the right one follows), -1 in a leaf
    depth: np.ndarray  # int64
    gain: np.ndarray  # float64: score gained by the best split; negative when no split is worth a leaf
    total: np.ndarray  # float64[:, 5]: G, H, N, and the lowest and highest step that the constraints allow
    best: np.ndarray  # float64[:, SPLIT_SIZE]: the best split found


def new_node_arrays(max_leaves: int) -> NodeArrays:
    """Return arrays for a tree of at most `max_leaves` leaves."""
    n = 2 * max_leaves - 1
    return NodeArrays(
        feature=np.full(n, -1, np.int64),
        split_bin=np.zeros(n, np.int64),
        missing_left=np.zeros(n, np.int64),
        child=np.full(n, -1, np.int64),
        depth=np.zeros(n, np.int64),
        gain=np.full(n, -1.0),
        total=np.zeros((n, 5)),
        best=np.zeros((n, SPLIT_SIZE)),
    )


@internal
def init_root(nodes, g, h, n):
    """Start a tree with the root's sums."""
    nodes.feature[0] = -1
    nodes.child[0] = -1
    nodes.depth[0] = 0
    nodes.gain[0] = -1.0
    nodes.total[0, 0] = g
    nodes.total[0, 1] = h
    nodes.total[0, 2] = n
    nodes.total[0, 3], nodes.total[0, 4] = -np.inf, np.inf


@internal
def set_best_split(nodes, node, best, limits):
    """Store a leaf's best split, and its gain if the split is worth a leaf."""
    for k in range(SPLIT_SIZE):
        nodes.best[node, k] = best[k]
    nodes.gain[node] = gain_of(nodes.total[node], best, limits)


@internal
def gain_of(total, best, limits):
    """Return the gain of a leaf's best split, or -1 if it is not worth a leaf. total : as in `NodeArrays.total`."""
    parent = side_score(total[0], total[1], limits.l2, limits.l1, limits.max_step)
    if limits.is_bounded != 0:
        parent = bounded_score(total[0], total[1], limits, limits.l2, total[3], total[4])
    gained = best[SCORE] - parent
    # A gain within rounding error of zero counts as no gain: a split of rows of equal gradient is useless.
    least = limits.threshold if limits.threshold > 1e-12 * abs(parent) else 1e-12 * abs(parent)
    return gained if gained > least else -1.0


@internal
def select_leaf(nodes, n_nodes, policy):
    """Return the leaf to split next, or -1."""
    chosen = -1
    if policy.order == ANY_ORDER:
        # The newest leaf, and of two new siblings the smaller one: then few histograms are stored at a time (at most the
        # logarithm of the sum of Hessians).
        for node in range(n_nodes - 1, -1, -1):
            if nodes.gain[node] > 0.0 and nodes.depth[node] < policy.max_depth:
                sibling = node - 1
                if node & 1 == 0 and node > 0 and nodes.gain[sibling] > 0.0:
                    if nodes.total[sibling, 1] < nodes.total[node, 1]:
                        return sibling
                return node
        return chosen
    for node in range(n_nodes):
        if nodes.gain[node] <= 0.0 or nodes.depth[node] >= policy.max_depth:
            continue
        if chosen < 0:
            chosen = node
        elif policy.order == DEPTH_WISE and nodes.depth[node] != nodes.depth[chosen]:
            if nodes.depth[node] < nodes.depth[chosen]:
                chosen = node
        elif nodes.gain[node] > nodes.gain[chosen]:
            chosen = node
    return chosen


@internal
def apply_split(nodes, node, n_nodes, limits, direction):
    """Split a leaf by its best split; its children are nodes n_nodes and n_nodes + 1. direction : see `child_stats`."""
    best = nodes.best[node]
    left, right = n_nodes, n_nodes + 1
    nodes.feature[node] = I(best[1])
    nodes.split_bin[node] = I(best[2])
    nodes.missing_left[node] = I(best[3])
    nodes.child[node] = left
    nodes.gain[node] = -nodes.gain[node]  # still known, but no longer a candidate
    for child in (left, right):
        nodes.feature[child] = -1
        nodes.child[child] = -1
        nodes.depth[child] = nodes.depth[node] + 1
        nodes.gain[child] = -1.0
    child_stats(nodes.total[node], best, limits, direction, nodes.total[left], nodes.total[right])


@internal
def child_stats(total, best, limits, direction, left, right):
    """Compute the sums of both children and the bounds of their steps (all float64[5], as in `NodeArrays.total`).

    direction : int8[n_features] or None. If the split feature is constrained, both children are bounded by the midpoint of
    their steps, and their descendants inherit the bound: so no later split can violate the constraint.
    """
    left[0], left[1], left[2] = best[LEFT_G], best[LEFT_H], best[LEFT_N]
    for k in range(3):
        right[k] = total[k] - left[k]
    left[3], left[4] = total[3], total[4]
    right[3], right[4] = total[3], total[4]
    if direction is not None:
        way = direction[I(best[FEATURE])]
        if way != 0:
            middle = bounded_step(left[0], left[1], limits, limits.l2, total[3], total[4])
            middle = 0.5 * (middle + bounded_step(right[0], right[1], limits, limits.l2, total[3], total[4]))
            if way > 0:
                left[4] = right[3] = middle
            else:
                left[3] = right[4] = middle
