"""What training asks of an engine. Whoever answers this can train: one process here, a cluster elsewhere."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from dboost.kernels.histograms import BinLayout
from dboost.shards.apply_trees import TreeDelta
from dboost.trees.tree_task import GradientStats, GrownTree, TreeTask

Statistic = TypeVar("Statistic")


class Engine(Protocol):
    """Holds the training rows, wherever they lie."""

    @property
    def n_rows(self) -> int:
        """Rows of positive weight."""

    def advance(self, values: np.ndarray, terms: tuple | None = None) -> GradientStats:
        """Add the leaf values of the last tree of each output to the scores; then gradients, Hessians and the loss.

        values : float64[n_outputs, n_leaves], rows of trees with fewer leaves filled up.
        terms : the loss's record from now on, where it is not the one before (None).
        """

    def ask(self, function: Callable[..., Statistic], *arguments: Any) -> list[Statistic]:
        """What ``function(shard, first, last, *arguments)`` says of ranges of rows that together are all training rows.

        The function is one of a module, so that it can be sent to where the rows are, and changes nothing: when a worker is
        lost, all are asked again. How the rows are divided is the engine's affair: what follows from the answers must not
        depend on it, so they are merged by sums of integers, minima or maxima.
        """

    def grow(self, task: TreeTask) -> GrownTree:
        """Grow a tree from the present gradients and Hessians of one output."""

    def report(self) -> dict[str, float]:
        """What this engine has to say of the time since it was last asked, for the history; not part of the model."""

    def close(self) -> None:
        """Let go of threads and buffers."""


class BiteEngine(Engine, Protocol):
    """Holds the training rows divided into arcbites (see `shards.arcbite_rows`); `n_rows` counts all of them."""

    def visit(self, bite: Sequence[int], iterations: Sequence[Sequence[TreeDelta]]) -> None:
        """Train on the rows of this bite from now on. Comes before everything else.

        bite : the parts that it is made of.
        iterations : those of the model as it is kept, with which the bite's scores begin.
        """


class SessionRef(NamedTuple):
    """Names what one worker process holds of one fit.

    An address is not enough: a worker that is restarted at the same address holds nothing, and has another session. Every call
    names the session that it is meant for, and a worker answers `UNKNOWN` when it has another one.
    """

    worker: str
    session: str


def session_refs(pairs: Sequence[Sequence[str]]) -> list[SessionRef]:
    """Sessions from what msgpack makes of them."""
    return [SessionRef(*pair) for pair in pairs]


class MissingPartitions(Exception):
    """A call speaks of a batch, or of partitions of it, that this session does not hold."""


@dataclass(frozen=True)
class FeatureOwner:
    """A session that searches features first…last-1."""

    ref: SessionRef
    first: int
    last: int

    def buckets(self, layout: BinLayout) -> slice:
        return slice(int(layout.offset[self.first]), int(layout.offset[self.last]))


def pack_round(message: Any) -> bytes:
    """Questions and answers, which hold nothing of the user's: a fit has thousands, and Dask's way looks through each."""
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


def unpack(message: bytes) -> Any:
    return pickle.loads(message)
