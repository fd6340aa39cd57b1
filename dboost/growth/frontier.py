"""The frontier: which leaf is opened next, and what is known of every node so far.

Nodes are numbered as they are created: the root is 0, the k-th split makes nodes 2k+1 (left) and 2k+2 (right). A leaf whose
best split is known and worthwhile carries it with its gain; `pick` says which one to split. These few functions are the
whole policy of growth. The generator in `grower.py` calls them one round at a time, the in-process engine from inside one
compiled call per tree.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dboost.kernels import internal
from dboost.kernels.bounded import bounded_score, bounded_step
from dboost.kernels.splits import FEATURE, LEFT_G, LEFT_H, LEFT_N, SCORE, SPLIT_SIZE, Limits, side_score

I = np.int64  # noqa: E741

BEST_FIRST, DEPTH_WISE, ANY_ORDER = 0, 1, 2


class Rule(NamedTuple):
    """When to stop and which leaf comes first."""

    max_leaves: int
    max_depth: int
    order: int  # BEST_FIRST, DEPTH_WISE, or ANY_ORDER when nothing but max_depth limits the tree


class Frontier(NamedTuple):
    """Everything known of a growing tree's nodes (arrays over node numbers)."""

    feature: np.ndarray  # int64: -1 while a leaf
    cut: np.ndarray  # int64: see kernels.splits
    missing_left: np.ndarray  # int64
    child: np.ndarray  # int64: left child (the right one follows), -1 in a leaf
    depth: np.ndarray  # int64
    gain: np.ndarray  # float64: score gained by the best split; negative when there is none worth making
    total: np.ndarray  # float64[:, 5]: G, H, N, and the lowest and highest step that constraints allow
    best: np.ndarray  # float64[:, SPLIT_SIZE]: the best split found


def new_frontier(max_leaves: int) -> Frontier:
    """Arrays for a tree of at most `max_leaves` leaves."""
    n = 2 * max_leaves - 1
    return Frontier(
        feature=np.full(n, -1, np.int64),
        cut=np.zeros(n, np.int64),
        missing_left=np.zeros(n, np.int64),
        child=np.full(n, -1, np.int64),
        depth=np.zeros(n, np.int64),
        gain=np.full(n, -1.0),
        total=np.zeros((n, 5)),
        best=np.zeros((n, SPLIT_SIZE)),
    )


@internal
def plant(frontier, g, h, n):
    """Begin a tree with its root's sums."""
    frontier.feature[0] = -1
    frontier.child[0] = -1
    frontier.depth[0] = 0
    frontier.gain[0] = -1.0
    frontier.total[0, 0] = g
    frontier.total[0, 1] = h
    frontier.total[0, 2] = n
    frontier.total[0, 3], frontier.total[0, 4] = -np.inf, np.inf


@internal
def note_best(frontier, node, best, limits):
    """Keep a leaf's best split, and its gain if that is worth a leaf."""
    for k in range(SPLIT_SIZE):
        frontier.best[node, k] = best[k]
    frontier.gain[node] = gain_of(frontier.total[node], best, limits)


@internal
def gain_of(total, best, limits):
    """What a leaf's best split gains, if that is worth a leaf; otherwise -1. total : as in `Frontier.total`."""
    parent = side_score(total[0], total[1], limits.l2, limits.l1, limits.max_step)
    if limits.is_bounded != 0:
        parent = bounded_score(total[0], total[1], limits, limits.l2, total[3], total[4])
    gained = best[SCORE] - parent
    # A gain within rounding of zero is none: splitting rows of equal gradient helps nobody.
    least = limits.threshold if limits.threshold > 1e-12 * abs(parent) else 1e-12 * abs(parent)
    return gained if gained > least else -1.0


@internal
def pick(frontier, n_nodes, rule):
    """The leaf to split next, or -1."""
    chosen = -1
    if rule.order == ANY_ORDER:
        # The newest leaf, and of two newborn siblings the smaller: then few histograms are open at a time (at most the
        # logarithm of the Hessian's sum).
        for node in range(n_nodes - 1, -1, -1):
            if frontier.gain[node] > 0.0 and frontier.depth[node] < rule.max_depth:
                sibling = node - 1
                if node & 1 == 0 and node > 0 and frontier.gain[sibling] > 0.0:
                    if frontier.total[sibling, 1] < frontier.total[node, 1]:
                        return sibling
                return node
        return chosen
    for node in range(n_nodes):
        if frontier.gain[node] <= 0.0 or frontier.depth[node] >= rule.max_depth:
            continue
        if chosen < 0:
            chosen = node
        elif rule.order == DEPTH_WISE and frontier.depth[node] != frontier.depth[chosen]:
            if frontier.depth[node] < frontier.depth[chosen]:
                chosen = node
        elif frontier.gain[node] > frontier.gain[chosen]:
            chosen = node
    return chosen


@internal
def divide(frontier, node, n_nodes, limits, direction):
    """Split a leaf by its best split; its children are nodes n_nodes and n_nodes + 1. direction : see `share`."""
    best = frontier.best[node]
    left, right = n_nodes, n_nodes + 1
    frontier.feature[node] = I(best[1])
    frontier.cut[node] = I(best[2])
    frontier.missing_left[node] = I(best[3])
    frontier.child[node] = left
    frontier.gain[node] = -frontier.gain[node]  # remembered, but no longer a candidate
    for child in (left, right):
        frontier.feature[child] = -1
        frontier.child[child] = -1
        frontier.depth[child] = frontier.depth[node] + 1
        frontier.gain[child] = -1.0
    share(frontier.total[node], best, limits, direction, frontier.total[left], frontier.total[right])


@internal
def share(total, best, limits, direction, left, right):
    """What each child has of its parent's sums, and how far its steps may go (all float64[5], as in `Frontier.total`).

    direction : int8[n_features] or None. Children of a split whose feature has one meet in the middle of their steps, which
    neither of them nor anything below may cross: so no later split can undo the order.
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


def limits_of(
    *,
    l2: float,
    l1: float,
    max_step: float,
    min_hessian: float,
    min_rows: float,
    count_plane: int,
    least_gain: float,
    smoothing: float,
    category_l2: float,
    max_categories: int,
    min_category_hessian: float,
    is_bounded: bool = False,
    gradient_unit: float,
    hessian_unit: float,
) -> Limits:
    """Limits in the units of one tree's quantised sums: G = unit_g * q_g and H = unit_h * q_h.

    ½ G² / (H + λ) in the units of the loss is ½ unit_g² / unit_h times the same expression in quantised sums with λ / unit_h.
    """
    return Limits(
        l2=l2 / hessian_unit,
        l1=l1 / gradient_unit,
        max_step=max_step * hessian_unit / gradient_unit,
        min_hessian=min_hessian / hessian_unit,
        min_rows=float(min_rows),
        count_plane=count_plane,
        threshold=2.0 * least_gain * hessian_unit / gradient_unit**2,
        smoothing=smoothing / hessian_unit,
        category_l2=category_l2 / hessian_unit,
        max_categories=max_categories,
        min_category_hessian=min_category_hessian / hessian_unit,
        is_bounded=int(is_bounded),
    )
