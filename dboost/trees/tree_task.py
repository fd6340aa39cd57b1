"""What is asked of an engine for one tree, and what it answers: plain records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from dboost.kernels.histograms import Packing
from dboost.kernels.splits import SplitParams
from dboost.trees.nodes import GrowthPolicy, NodeArrays


@dataclass(frozen=True, eq=False)
class GradientStats:
    """What a pass over all rows tells before the next trees: exact, and the same for any division of the rows."""

    max_gradient: np.ndarray  # float64[n_outputs]
    max_hessian: np.ndarray  # float64[n_outputs]
    coarse_loss: float
    fine_loss: float
    #: Where wanted, sums of Hessians by the first digit of their bits: int64[n_outputs, N_DIGITS], see `metrics.trimming`.
    influence: np.ndarray | None = None

    def merge(self, other: GradientStats) -> GradientStats:
        """What the rows of both would tell: exact, associative and commutative."""
        return GradientStats(
            np.maximum(self.max_gradient, other.max_gradient),
            np.maximum(self.max_hessian, other.max_hessian),
            self.coarse_loss + other.coarse_loss,
            self.fine_loss + other.fine_loss,
            None if self.influence is None or other.influence is None else self.influence + other.influence,
        )


class Sample(NamedTuple):
    """Which rows take part in a tree: those whose hash of seed and global number is below `threshold` (of 2**64)."""

    seed: int
    threshold: int

    @classmethod
    def of(cls, share: float, seed: int, iteration: int) -> Sample | None:
        """A share of the rows, others in every iteration; None for all of them."""
        if share >= 1.0:
            return None
        return cls(derive_seed(seed, _ROWS, iteration), int(share * 2.0**64))


class FeatureConstraints(NamedTuple):
    """How the features that a node may split by are chosen, see `trees.feature_sampling`."""

    share: float  # of the features that are open to a node
    seed: np.ndarray  # uint64[1]
    first_member: np.ndarray  # int64[n_groups + 1]: where a group's features begin in `members`
    members: np.ndarray  # int64[...]
    first_group: np.ndarray  # int64[n_features + 1]: where a feature's groups begin in `groups`
    groups: np.ndarray  # int64[...]


#: What hashes are for, so that those for different purposes differ.
_ROWS, FEATURES, BITES, VISITS, HOLD_OUT, WATCH = 1, 2, 3, 4, 5, 6


def derive_seed(*numbers: int) -> int:
    """One 64-bit number from several (SplitMix64 over them)."""
    x = 0
    for number in numbers:
        x = (x + number + 0x9E3779B97F4A7C15) & _MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
        x ^= x >> 31
    return x


_MASK = (1 << 64) - 1


def hash_rows(seed: int, numbers: np.ndarray) -> np.ndarray:
    """Of a seed and each row's global number (int64[n]) a 64-bit hash: uint64[n], those of `kernels.rows.select_rows`."""
    x = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class RowSubset(NamedTuple):
    """Which rows take part in a tree: of a sample, those whose influence is not below a bound.

    sample : None for all rows; least_influence : bits of a float32, 0 for no bound; output : whose influence is meant.
    """

    sample: Sample | None
    least_influence: int
    output: int


@dataclass(frozen=True, eq=False)
class TreeTask:
    """Everything an engine needs to grow one tree."""

    limits: SplitParams
    packing: Packing
    policy: GrowthPolicy
    scales: np.ndarray  # float64[4]: multipliers of gradients and Hessians, for histograms and for exact leaf sums
    allowed: np.ndarray  # uint8[n_features]
    output: int = 0  # which output's gradients and Hessians
    sample: Sample | None = None  # rows that take part, None for all
    least_influence: int = 0  # of rows that take part, as the bits of a float32
    constraints: FeatureConstraints | None = None  # features that nodes may split by, None for all
    direction: np.ndarray | None = None  # int8[n_features]: 1 where scores may only rise with the feature, -1 only fall
    bin_merge: Any = None  # the tree's own bins (`trees.bin_proposal.Cells`), None where they are those of the whole fit
    node_bins: int | None = None  # how many bins are proposed in each node, None where nodes have those of the tree

    @property
    def row_subset(self) -> RowSubset:
        """The rows that take part."""
        return RowSubset(self.sample, self.least_influence, self.output)


class Leaves(Protocol):
    """What the values of a tree's leaves follow from."""

    @property
    def n_leaves(self) -> int: ...

    @property
    def leaf_sums(self) -> np.ndarray:
        """Exact sums of gradients and Hessians, in the loss's units: float64[n_leaves, 2]."""


@dataclass(frozen=True, eq=False)
class GrownTree:
    """A grown tree in growth order (see `growth.nodes`), its leaves numbered from left to right.

    Arrays may be the engine's own buffers: they are valid until the next tree.
    """

    nodes: NodeArrays
    n_nodes: int
    n_leaves: int
    n_rows: np.ndarray  # int64[n_nodes]
    leaf_of: np.ndarray  # int64[n_nodes]; meaningful for leaves
    leaf_sums: np.ndarray  # float64[n_leaves, 2]: exact sums of gradients and Hessians, in the loss's units
    left_codes: np.ndarray  # uint8[n_nodes, n_codes]: levels that go left, for categorical splits

    def copy(self) -> GrownTree:
        """A copy of its own, without the room for nodes that the tree has not."""
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
