"""What training asks of an engine. Whoever answers this can train: one process here, a cluster elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from dboost.growth.task import Extremes, GrownTree, TreeTask
from dboost.shard.catch_up import ValuedTree

Told = TypeVar("Told")


class Engine(Protocol):
    """Holds the training rows, wherever they lie."""

    @property
    def n_rows(self) -> int:
        """Rows of positive weight."""

    def advance(self, values: np.ndarray, terms: tuple | None = None) -> Extremes:
        """Add the leaf values of the last tree of each output to the scores; then gradients, Hessians and the loss.

        values : float64[n_outputs, n_leaves], rows of trees with fewer leaves filled up.
        terms : the loss's record from now on, where it is not the one before (None).
        """

    def ask(self, function: Callable[..., Told], *arguments: Any) -> list[Told]:
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


class EngineOfBites(Engine, Protocol):
    """Holds the training rows divided into arcbites (see `shard.bites`); `n_rows` counts all of them."""

    def turn_to(self, bite: Sequence[int], iterations: Sequence[Sequence[ValuedTree]]) -> None:
        """Train on the rows of this bite from now on. Comes before everything else.

        bite : the parts that it is made of.
        iterations : those of the model as it is kept, with which the bite's scores begin.
        """
