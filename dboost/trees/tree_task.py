"""Records of one tree: what an engine needs to grow it, and the grown tree that it returns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from dboost.kernels.histograms import Packing
from dboost.kernels.splits import SplitParams
from dboost.params import Parameters
from dboost.trees.nodes import GrowthPolicy, NodeArrays


@dataclass(frozen=True, eq=False)
class GradientStats:
    """Gradient statistics of a pass over all rows: exact, and the same for any division of the rows."""

    max_gradient: np.ndarray  # float64[n_outputs]
    max_hessian: np.ndarray  # float64[n_outputs]
    coarse_loss: float
    fine_loss: float
    #: With influence trimming, Hessian sums by their first digit: int64[n_outputs, N_DIGITS], see `metrics.quantiles`.
    influence: np.ndarray | None = None

    def merge(self, other: GradientStats) -> GradientStats:
        """Return the statistics of the rows of both: exact, associative and commutative."""
        return GradientStats(
            np.maximum(self.max_gradient, other.max_gradient),
            np.maximum(self.max_hessian, other.max_hessian),
            self.coarse_loss + other.coarse_loss,
            self.fine_loss + other.fine_loss,
            None if self.influence is None or other.influence is None else self.influence + other.influence,
        )


class Sample(NamedTuple):
    """The rows sampled for a tree: those whose hash of the seed and the global row number is below `threshold` (of 2**64)."""

    seed: int
    threshold: int

    @classmethod
    def of(cls, share: float, seed: int, iteration: int) -> Sample | None:
        """Return a sample of a share of the rows, a different one in every iteration; None for all rows."""
        if share >= 1.0:
            return None
        return cls(derive_seed(seed, _ROWS, iteration), int(share * 2.0**64))


class FeatureConstraints(NamedTuple):
    """Interaction constraints and feature sampling of a tree, see `trees.feature_sampling`."""

    share: float  # of the features that a node may split by
    seed: np.ndarray  # uint64[1]
    first_member: np.ndarray  # int64[n_groups + 1]: where a group's features begin in `members`
    members: np.ndarray  # int64[...]
    first_group: np.ndarray  # int64[n_features + 1]: where a feature's groups begin in `groups`
    groups: np.ndarray  # int64[...]


#: Purposes of hashes: each has its own sequence of random numbers.
_ROWS, FEATURES, BITES, VISITS, HOLD_OUT, WATCH = 1, 2, 3, 4, 5, 6


def derive_seed(*numbers: int) -> int:
    """Hash several numbers to one of 64 bits (SplitMix64 over them)."""
    x = 0
    for number in numbers:
        x = (x + number + 0x9E3779B97F4A7C15) & _MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
        x ^= x >> 31
    return x


_MASK = (1 << 64) - 1


def hash_rows(seed: int, numbers: np.ndarray) -> np.ndarray:
    """Hash a seed and the global row numbers (int64[n]) to uint64[n]: the hashes of `kernels.rows.select_rows`."""
    x = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class RowSubset(NamedTuple):
    """The rows that take part in a tree: the sampled rows whose influence is not below a bound.

    sample : None for all rows; least_influence : bits of a float32, 0 for no bound; output : the output whose influence counts.
    """

    sample: Sample | None
    least_influence: int
    output: int


@dataclass(frozen=True, eq=False)
class TreeTask:
    """Everything that an engine needs to grow one tree."""

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
    bin_merge: Any = None  # the tree's own bins (`trees.bin_proposal.BinMerge`), None where they are those of the whole fit
    node_bins: int | None = None  # number of bins proposed in each node, None where nodes use the bins of the tree

    @property
    def row_subset(self) -> RowSubset:
        """The rows that take part."""
        return RowSubset(self.sample, self.least_influence, self.output)


def split_params_of(
    parameters: Parameters, count_channel: int, scales: np.ndarray, max_step: float | None = None, *, is_bounded: bool = False
) -> SplitParams:
    """Return the split parameters in the units of a tree's quantised sums: G = unit_g * q_g and H = unit_h * q_h.

    ½ G² / (H + λ) in the units of the loss is ½ unit_g² / unit_h times the same expression in quantised sums with λ / unit_h.

    count_channel : see `SplitParams`; scales : see `TreeTask`; max_step : largest step of a leaf, None for no bound;
    is_bounded : whether features are constrained to be monotonic.
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
    )


class Leaves(Protocol):
    """The leaf sums from which a tree's leaf values are computed."""

    @property
    def n_leaves(self) -> int: ...

    @property
    def leaf_sums(self) -> np.ndarray:
        """Exact sums of gradients and Hessians, in the loss's units: float64[n_leaves, 2]."""


@dataclass(frozen=True, eq=False)
class GrownTree:
    """A grown tree in growth order (see `trees.nodes`), its leaves numbered from left to right.

    Arrays may be the engine's own buffers: they are valid until the next tree.
    """

    nodes: NodeArrays
    n_nodes: int
    n_leaves: int
    n_rows: np.ndarray  # int64[n_nodes]
    leaf_of: np.ndarray  # int64[n_nodes]; meaningful for leaves
    leaf_sums: np.ndarray  # float64[n_leaves, 2]: exact sums of gradients and Hessians, in the loss's units
    left_codes: np.ndarray  # uint8[n_nodes, n_codes]: categories that go left, for categorical splits

    def copy(self) -> GrownTree:
        """Return a copy that owns its arrays, cut to the number of nodes."""
        n = self.n_nodes
        return GrownTree(
            NodeArrays(*(array[:n].copy() for array in self.nodes)),
            n,
            self.n_leaves,
            self.n_rows[:n].copy(),
            self.leaf_of[:n].copy(),
            self.leaf_sums.copy(),
            self.left_codes[:n].copy(),
        )
