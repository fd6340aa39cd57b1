"""What a session is told before it builds shards: frozen records, equal for all sessions of a fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dboost.data.binning import Binning
from dboost.kernels.histograms import BinLayout
from dboost.metrics.metric import LossMagnitude
from dboost.session.memory_budget import Budget
from dboost.session.target import Target
from dboost.session.warm_start import WarmStart
from dboost.shards.apply_trees import TreeDelta
from dboost.shards.shard_spec import ShardSpec


@dataclass(frozen=True, eq=False)
class BuildSpec:
    """How a session turns its rows into shards and evaluation sets. The same record for all sessions."""

    shard: ShardSpec
    binning: Binning
    target: Target  # loss and classes; holds no rows
    baseline: np.ndarray  # float64[n_outputs]
    warm_start: WarmStart  # the model whose trees the scores begin with
    magnitude: float  # about how large the loss of a row can be, see `training.initial_score.TargetStats`
    spread: float  # about how large the error of a prediction can be
    #: Global id of each partition's first row among all rows of positive weight.
    starts: dict[int, int]
    budget: Budget | None  # what the fit may add to the memory of each process
    n_bites: int | None  # number of arcbites (or of their parts), None without arcbites
    n_together: int  # how many parts form an arcbite
    seed: int  # of the division into arcbites
    #: Whether rows may go to files without a `memory_limit`: not where trees propose their own bins.
    may_stream: bool

    @property
    def layout(self) -> BinLayout:
        return self.shard.layout

    def loss_magnitude(self, max_weight: float, n_rows: int) -> LossMagnitude:
        """What metrics need to know of `n_rows` rows for their exact sums."""
        return LossMagnitude(self.magnitude, self.spread, max_weight, n_rows)

    def are_of(self, rows: np.ndarray, partitions: Sequence[int]) -> np.ndarray:
        """Which rows (int64[n], global ids) belong to these partitions: bool[n]."""
        numbers = np.array(sorted(self.starts), np.int64)
        starts = np.array([self.starts[number] for number in numbers.tolist()], np.int64)
        # Several partitions start at the same id if some are empty; the last of them holds the row.
        return np.isin(numbers[np.searchsorted(starts, rows, "right") - 1], np.array(partitions, np.int64))


@dataclass(frozen=True)
class BiteVisit:
    """A visit to an arcbite."""

    number: int
    bite: tuple[int, ...]  # the parts that the bite consists of
    n_kept: int  # iterations of this fit that the model had when the visit began


@dataclass(frozen=True, eq=False)
class ReplayState:
    """What shards that are built late have missed."""

    applied: int = -1  # number of the last call of `advance`, from 0; -1 before the first
    iterations: tuple[tuple[TreeDelta, ...], ...] = ()  # complete ones
    pending: tuple[TreeDelta, ...] = ()  # trees of the current iteration, whose values are not in the scores yet
    terms: tuple = ()  # the loss's record for kernels at present
    turn: BiteVisit | None = None  # the arcbite that is trained on
