"""Records of one tree: its task, the nodes while it grows, and the values of its leaves.

**Nodes and growth policy** of a growing tree. Nodes are numbered as they are created: the root is 0, the k-th split makes nodes
2k+1 (left) and 2k+2 (right). A leaf stores its best split and the gain of that split; `select_leaf` picks the leaf to split.
These functions are the whole growth policy. `tree_growth.grow_tree` calls them one round at a time, and
`whole_tree_kernel.grow_whole_tree` inside one compiled call for each tree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dboost.kernels import internal, kernel
from dboost.kernels.histograms import Packing, rows_in_32_bits
from dboost.kernels.records import record
from dboost.kernels.splits import (
    FEATURE,
    LEFT_G,
    LEFT_H,
    LEFT_N,
    SCORE,
    SPLIT_SIZE,
    SplitParams,
    bounded_score,
    bounded_step,
    side_score,
)
from dboost.losses.base import Leaves
from dboost.params import Parameters
from dboost.rows.bin_proposal import BinMerge
from dboost.rows.row_sample import RowSubset, Sample

I = np.int64  # noqa: E741

BEST_FIRST, DEPTH_WISE, ANY_ORDER = 0, 1, 2
_UNLIMITED_DEPTH = 1 << 30


@record
class GrowthPolicy(NamedTuple):
    """The limits of a tree and the order in which its leaves are split."""

    max_leaves: int
    max_depth: int
    order: int  # BEST_FIRST, DEPTH_WISE, or ANY_ORDER when nothing but max_depth limits the tree

    @classmethod
    def of(cls, parameters: Parameters, n_rows: int) -> GrowthPolicy:
        """Return the growth policy; without `max_leaf_nodes`, depth and number of rows bound the number of leaves."""
        depth = parameters.max_depth or _UNLIMITED_DEPTH
        by_depth = 1 << min(depth, 40)
        by_rows = max(n_rows // parameters.min_samples_leaf, 1)
        leaves = min(parameters.max_leaf_nodes or by_depth, by_depth, by_rows)
        if parameters.max_leaf_nodes is None or parameters.max_leaf_nodes >= min(by_depth, by_rows):
            return cls(leaves, depth, ANY_ORDER)
        return cls(leaves, depth, BEST_FIRST if parameters.growth == "best_first" else DEPTH_WISE)


@record
class NodeArrays(NamedTuple):
    """Arrays over the node numbers of a growing tree. The first five are the rows of one array."""

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
    integers = np.zeros((5, n), np.int64)
    integers[[0, 3]] = -1  # feature and child
    feature, split_bin, missing_left, child, depth = integers
    gain, total, best = np.full(n, -1.0), np.zeros((n, 5)), np.zeros((n, SPLIT_SIZE))
    return NodeArrays(feature, split_bin, missing_left, child, depth, gain, total, best)


@internal
def init_root(nodes, total):
    """Start a tree with the root's sums. total : float64[3]."""
    nodes.feature[0] = -1
    nodes.child[0] = -1
    nodes.depth[0] = 0
    nodes.gain[0] = -1.0
    for k in range(3):
        nodes.total[0, k] = total[k]
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
def may_be_split(total, limits):
    """Return whether both sides of a split can have enough Hessian and rows. total : as in `NodeArrays.total`."""
    min_hessian = limits.min_hessian if limits.min_hessian > 1.0 else 1.0
    return total[1] >= 2.0 * min_hessian and (limits.count_channel < 0 or total[2] >= 2.0 * limits.min_rows)


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


@record
class FeatureConstraints(NamedTuple):
    """Interaction constraints and feature sampling of a tree, see `trees.split_finder`."""

    share: float  # of the features that a node may split by
    seed: np.ndarray  # uint64[1]
    first_member: np.ndarray  # int64[n_groups + 1]: where a group's features begin in `members`
    members: np.ndarray  # int64[...]
    first_group: np.ndarray  # int64[n_features + 1]: where a feature's groups begin in `groups`
    groups: np.ndarray  # int64[...]

    @classmethod
    def of(
        cls, share: float, groups: Sequence[Sequence[int]] | None, n_features: int, seed: int = 0
    ) -> FeatureConstraints | None:
        """Return the constraints of a tree's features; None when every node may split by all of them."""
        if share >= 1.0 and groups is None:
            return None
        members = [np.array(sorted(set(group)), np.int64) for group in groups or ()]
        group_of = np.repeat(np.arange(len(members)), [len(m) for m in members])
        flat = np.concatenate(members) if members else np.empty(0, np.int64)
        by_feature = np.argsort(flat, kind="stable")
        return cls(
            share=float(share),
            seed=np.array([seed], np.uint64),
            first_member=np.concatenate(([0], np.cumsum([len(m) for m in members]))).astype(np.int64),
            members=flat,
            first_group=np.searchsorted(flat[by_feature], np.arange(n_features + 1)).astype(np.int64),
            groups=group_of[by_feature].astype(np.int64),
        )


@dataclass(frozen=True, eq=False)
class TreeTask:
    """Everything that a grower needs to grow one tree."""

    limits: SplitParams
    packing: Packing
    policy: GrowthPolicy
    scales: np.ndarray  # float64[4]: multipliers of gradients and Hessians, for histograms and for exact leaf sums
    allowed: np.ndarray  # uint8[n_features]
    output: int = 0  # the output whose gradients and Hessians are used
    sample: Sample | None = None  # rows that take part, None for all
    least_influence: int = 0  # of rows that take part, as the bits of a float32
    constraints: FeatureConstraints | None = None  # of the features that nodes may split by, None for all features
    direction: np.ndarray | None = None  # int8[n_features]: 1 where scores may only rise, -1 where they may only fall
    bin_merge: BinMerge | None = None  # the tree's own bins, None where they are those of the whole fit
    node_bins: int | None = None  # number of bins proposed in each node, None where nodes use the bins of the tree

    @property
    def row_subset(self) -> RowSubset:
        """The rows that take part."""
        return RowSubset(self.sample, self.least_influence, self.output)

    @property
    def gain_unit(self) -> float:
        """½ unit_g² / unit_h, which converts gains of quantised sums to units of the loss."""
        return 0.5 * self.scales[1] / self.scales[0] ** 2

    def can_stay_packed(self, n_rows: int) -> bool:
        """Return whether histograms of numeric features may stay packed, whatever the gradients of so many rows are.

        This requires that the halves of a word cannot overflow.
        """
        return self.has_plain_gain and n_rows <= rows_in_32_bits(self.packing)

    def can_stay_packed_by(self, sizes: np.ndarray) -> bool:
        """Return whether histograms of numeric features may stay packed for rows with these sums (`kernels.rows.add_sizes`)."""
        below, above, hessians = sizes.tolist()
        return self.has_plain_gain and below >= -(2**31) and above < 2**31 and hessians < 2**32

    @property
    def has_plain_gain(self) -> bool:
        """Whether the gain of a split has no L1 penalty, step limit or bounds, and bins are those of the tree."""
        limits = self.limits
        return limits.l1 == 0.0 and limits.max_step == math.inf and limits.is_bounded == 0 and self.node_bins is None


def split_params_of(
    parameters: Parameters,
    count_channel: int,
    scales: np.ndarray,
    max_step: float | None = None,
    *,
    is_bounded: bool = False,
    noise: float = 0.0,
) -> SplitParams:
    """Return the split parameters in the units of a tree's quantised sums: G = unit_g * q_g and H = unit_h * q_h.

    ½ G² / (H + λ) in the units of the loss is ½ unit_g² / unit_h times the same expression in quantised sums with λ / unit_h.

    count_channel : see `SplitParams`; scales : see `TreeTask`; max_step : largest step of a leaf, None for no bound;
    is_bounded : whether features are constrained to be monotonic; noise : Σ g² / Σ h, see `SplitParams`.
    """
    gradient_unit, hessian_unit = 1.0 / float(scales[0]), 1.0 / float(scales[1])
    return SplitParams(
        l2=parameters.l2_regularization / hessian_unit,
        l1=parameters.l1_regularization / gradient_unit,
        max_step=math.inf if max_step is None else max_step * hessian_unit / gradient_unit,
        min_hessian=parameters.min_hessian / hessian_unit,
        min_rows=float(parameters.min_samples_leaf),
        count_channel=count_channel,
        threshold=2.0 * (parameters.leaf_penalty + parameters.min_gain) * hessian_unit / gradient_unit**2,
        smoothing=parameters.categorical_smoothing / hessian_unit,
        category_l2=parameters.categorical_l2 / hessian_unit,
        max_categories=parameters.max_category_group,
        min_category_hessian=parameters.min_category_hessian / hessian_unit,
        is_bounded=int(is_bounded),
        noise=noise * hessian_unit / gradient_unit**2,
    )


class StepLimits(NamedTuple):
    """The limits of the steps of several outputs, see `losses.base.Leaves`: float64[n_outputs] each."""

    step_factor: np.ndarray
    longest_step: np.ndarray
    score_unit: np.ndarray

    @classmethod
    def of(cls, outputs: Iterable[Leaves]) -> StepLimits:
        """Collect those of some outputs."""
        limits = [(leaves.step_factor, leaves.longest_step, leaves.score_unit) for leaves in outputs]
        return cls(*np.array(limits, np.float64).T.copy())


def leaf_values(sums: np.ndarray, parameters: Parameters, limits: StepLimits) -> np.ndarray:
    """Return what each leaf adds to the raw scores: -ν T_α(G) / (H + λ), bounded by the largest step.

    sums : as in `newton_steps`.
    """
    return bounded(newton_steps(sums, parameters, limits.step_factor), parameters, limits)


def newton_steps(sums: np.ndarray, parameters: Parameters, factors: np.ndarray) -> np.ndarray:
    """Return the Newton step of each leaf, -T_α(G) / (H + λ), times the factor of its output: float64[n_outputs, n].

    sums : float64[n_outputs, n, 2], exact sums of gradients and Hessians. Where H + λ is 0 the step is 0.
    """
    steps = np.empty(sums.shape[:2])
    _divide(thresholded(sums, parameters), parameters.l2_regularization, factors, steps)
    return steps


def thresholded(sums: np.ndarray, parameters: Parameters) -> np.ndarray:
    """Return sums of gradients and Hessians with T_α of the gradients."""
    if not parameters.l1_regularization:
        return sums
    size = np.maximum(np.abs(sums[..., 0]) - parameters.l1_regularization, 0.0)
    return np.stack((np.sign(sums[..., 0]) * size, sums[..., 1]), axis=-1)


def follow_sums(parameters: Parameters, leaves: Leaves) -> bool:
    """Return whether leaf values are Newton steps of the same sums that the tree was grown by."""
    by_sums = leaves.constant_hessian or parameters.criterion == "newton"
    return by_sums and parameters.step == "leaf" and leaves.statistic == "newton"


def bounded(steps: np.ndarray, parameters: Parameters, limits: StepLimits) -> np.ndarray:
    """Return the steps (float64[n_outputs, n]) times the learning rate, clipped to the largest step allowed, in units of raw
    scores. They may be infinite: the next pass over the rows reports scores that are not finite."""
    values, most = np.empty(steps.shape), parameters.max_delta_step
    _bound(steps, math.inf if most is None else most, parameters.learning_rate, limits.longest_step, limits.score_unit, values)
    return values


# A dozen calls of NumPy take a tenth of an iteration on a small table, so these are kernels.


@kernel
def _divide(sums, l2, factors, steps):
    """Compute `newton_steps` of sums whose gradients are thresholded. factors : float64[n_outputs]; steps : receives them."""
    for k in range(steps.shape[0]):
        for i in range(steps.shape[1]):
            hessian = sums[k, i, 1] + l2
            steps[k, i] = (-sums[k, i, 0] / hessian if hessian > 0.0 else 0.0) * factors[k]


@kernel
def _bound(steps, most, rate, longest, units, values):
    """Compute `bounded`. most : largest step before the rate; longest, units : float64[n_outputs]; values : receives them."""
    for k in range(steps.shape[0]):
        for i in range(steps.shape[1]):
            values[k, i] = _clipped(rate * _clipped(steps[k, i], most), longest[k]) * units[k]


@internal
def _clipped(step, most):
    """Return a step of at most this size; NaN stays NaN."""
    step = -most if step < -most else step
    return most if step > most else step
