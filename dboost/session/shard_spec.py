"""What workers are told before they can build shards: plain records, the same for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dboost.data.binning import Binning
from dboost.kernels.histograms import BinLayout
from dboost.schema import Feature
from dboost.session.memory_budget import Budget
from dboost.session.target import Target
from dboost.session.warm_start import WarmStart
from dboost.shards.apply_trees import TreeDelta
from dboost.shards.arcbite_rows import BiteBuild
from dboost.shards.block_store import ShardSpec


@dataclass(frozen=True, eq=False)
class BuildSpec:
    """How rows become shards.

    Attributes
    ----------
    features : tuple of Feature
    binning : Binning
    layout, bin_layout : Layout
        Of the cells that rows are coded by, and of the bins that trees grow by.
    target : Target
        Loss and classes; holds no rows.
    baseline : float64[n_outputs]
    warm_start : Origin
        Whose trees the scores begin with.
    weighted : bool
        False when all weights are 1, which is the same as none at all.
    integer_weights : bool
        Whether a row counts as often as its weight says, see `Shard`.
    constant_hessian, by_weight : bool
        See `Shard`.
    max_leaves, n_planes : int
    loss_unit : float
        Unit of exact loss sums.
    starts : dict of int to int
        Number of each partition's first row among all rows that are trained on.
    budget : Budget or None
        What the fit may add to the memory of each worker.
    n_bites : int or None
        Into how many arcbites (or parts of such) the rows are divided, if at all.
    seed : int
        By which they are.
    may_stream : bool
        Whether rows may be in files though nobody has asked for a limit: not where trees choose their own bins.
    """

    features: tuple[Feature, ...]
    binning: Binning
    layout: BinLayout
    bin_layout: BinLayout
    target: Target
    baseline: np.ndarray
    warm_start: WarmStart
    weighted: bool
    integer_weights: bool
    constant_hessian: bool
    weights_as_hessian: bool
    max_leaves: int
    n_channels: int
    loss_unit: float
    starts: dict[int, int]
    n_bites: int | None
    seed: int
    budget: Budget | None = None
    may_stream: bool = True

    @property
    def traits(self) -> ShardSpec:
        """What shards of rows in files have to know."""
        return ShardSpec(
            layout=self.layout,
            n_outputs=len(self.baseline),
            weighted=self.weighted,
            integer_weights=self.integer_weights,
            constant_hessian=self.constant_hessian,
            weights_as_hessian=self.weights_as_hessian,
            max_leaves=self.max_leaves,
            n_channels=self.n_channels,
            loss_unit=self.loss_unit,
        )

    def are_of(self, rows: np.ndarray, partitions: Sequence[int]) -> np.ndarray:
        """Which rows (int64[n], numbers among all that are trained on) are of these partitions: bool[n]."""
        numbers = np.array(sorted(self.starts), np.int64)
        starts = np.array([self.starts[number] for number in numbers.tolist()], np.int64)
        # Empty partitions begin where the next one does, which is the last to begin there.
        return np.isin(numbers[np.searchsorted(starts, rows, "right") - 1], np.array(partitions, np.int64))

    @property
    def build(self) -> BiteBuild:
        return BiteBuild(
            self.layout, self.bin_layout, self.constant_hessian, self.max_leaves, self.integer_weights, self.weights_as_hessian
        )


@dataclass(frozen=True)
class BiteVisit:
    """A visit to an arcbite: its number, the parts that the bite is made of, and how many iterations of this fit the model has
    kept before it."""

    number: int
    bite: tuple[int, ...]
    n_kept: int


@dataclass(frozen=True, eq=False)
class ReplayState:
    """What new shards have missed.

    Attributes
    ----------
    applied : int
        Number of the last call of `advance`, from 0; -1 before the first.
    iterations : tuple of tuple of TreeDelta
        Complete ones.
    pending : tuple of TreeDelta
        Trees of the iteration under way, whose values are not in the scores yet.
    terms : NamedTuple
        The loss's record for kernels, as it is now.
    turn : Turn or None
        Which arcbite is trained on.
    """

    applied: int = -1
    iterations: tuple[tuple[TreeDelta, ...], ...] = ()
    pending: tuple[TreeDelta, ...] = ()
    terms: tuple = ()
    turn: BiteVisit | None = None
