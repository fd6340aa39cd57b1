"""The engine: what the boosting loop calls to grow trees and to advance scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dboost.session.calls import BiteVisit, Calls
from dboost.shards.apply_trees import TreeDelta
from dboost.shards.statistics import Statistic
from dboost.trees.tree_task import GradientStats, GrownTree, TreeTask


class Engine:
    """Trains on the rows of all sessions of a fit. Numbers the steps, so that a session can tell a repeated call.

    Parameters
    ----------
    calls : Calls
        Calls of the sessions; closed with the engine.
    n_rows : int
        Number of rows of positive weight; with arcbites, of all bites.
    loss_terms : NamedTuple
        The loss's record for kernels.
    """

    def __init__(self, calls: Calls, n_rows: int, loss_terms: tuple) -> None:
        self._calls, self._terms = calls, loss_terms
        self.n_rows = n_rows
        self._n_advanced = self._n_visits = 0

    def visit(self, bite: Sequence[int], iterations: Sequence[Sequence[TreeDelta]]) -> None:
        """Switch to the rows of a bite. With arcbites it must be called before any other method.

        bite : numbers of the stored parts that form the bite (`ArcBites.parts`).
        iterations : all iterations of the truncated model; the bite's scores include them.
        """
        visit = BiteVisit(self._n_visits, tuple(bite), len(iterations))
        self._n_visits += 1
        self._calls.switch_bite(visit, iterations, self._n_advanced - 1)

    def advance(self, values: np.ndarray, terms: tuple | None = None) -> GradientStats:
        """Add the leaf values of the last tree of each output to the scores, and recompute gradients, Hessians and the loss.

        values : float64[n_outputs, n_leaves], padded for trees with fewer leaves.
        terms : the loss's new record for kernels; None keeps the previous one.
        """
        self._terms = self._terms if terms is None else terms
        stats = self._calls.update_scores(self._n_advanced, values, self._terms)
        self._n_advanced += 1
        return stats

    def map_shards(self, statistic: Statistic, *arguments: Any) -> list[Any]:
        """Return the statistic of ranges of rows that together are all training rows.

        The sessions choose the ranges, and the merged result must not depend on them. On a cluster all calls are repeated when
        a worker is lost.
        """
        return self._calls.shard_statistics(statistic, arguments)

    def grow(self, tasks: Sequence[TreeTask]) -> Iterator[GrownTree]:
        """Grow a tree for each task, from the current gradients and Hessians of its output; each task has another output.

        A tree is valid until the next one is requested. Several trees may be grown together.
        """
        return self._calls.grow_trees(tasks)

    def assign_leaves(self, iteration: int) -> None:
        """Assign rows to the leaves of the trees of an iteration of `BuildSpec.given`, instead of growing trees."""
        self._calls.assign_leaves(iteration)

    def report(self) -> dict[str, float]:
        """Return statistics of the time since the last call (such as bytes read) for the history. The model has none."""
        return self._calls.report()

    def close(self) -> None:
        """Release threads and buffers."""
        self._calls.close()
