"""Calls of the sessions on the workers of a cluster, and recovery when workers are lost.

The boosting loop runs in the client and makes two calls per tree and iteration: *grow* grows a tree, *advance* adds the leaf
values to the scores. Each is one call to the reducer, which calls the workers. When workers are lost during a call, other
workers read their partitions again, apply the trees grown so far (`ReplayState`), and the call is repeated. Calls are
idempotent: a session that has already answered repeats its answer. So the loss of a worker does not change the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from typing import Any

import numpy as np

from dboost.distributed.connection import Connection
from dboost.distributed.joined_workers import JoinedWorkers
from dboost.distributed.messages import LostWorkers, Timing
from dboost.distributed.partitioned_table import PartitionedTable
from dboost.distributed.session_rounds import check_rows
from dboost.session.calls import BiteVisit, BuildSpec, ReplayState
from dboost.session.session import Session
from dboost.session.thread_team import Team
from dboost.shards.apply_trees import TreeDelta
from dboost.shards.shard_grower import BYTES_PER_ROW
from dboost.shards.statistics import Statistic
from dboost.trees.tree_rounds import GrowOrder
from dboost.trees.tree_task import GradientStats, GrownTree, TreeRoutes, TreeTask

#: Bytes that trees which grow at the same time may use in a process, if the fit has no `memory_limit`.
_TREE_BYTES = 128 * 2**20
#: Largest number of leaves that a round opens.
_MOST_PER_ROUND = 512


class ClusterCalls:
    """Calls the sessions of all workers with training rows; implements `session.calls.Calls`.

    Parameters
    ----------
    connection : Connection
    training : PartitionedTable
    spec : BuildSpec
    n_rows : int
        Number of training rows.
    n_threads : int
        Threads of the client, for evaluation sets in its memory.
    """

    def __init__(
        self, connection: Connection, training: PartitionedTable, spec: BuildSpec, n_rows: int, n_threads: int
    ) -> None:
        self.team = Team(n_threads)
        self._timing = Timing()
        self._n_rows = n_rows
        self._connection = connection
        self._training = training
        self._tables = [training]
        self.layout = spec.shard.bin_layout
        #: Whether the bins that trees are grown with are the fine bins that finished trees refer to, for each feature.
        self._is_identity_bin_map = spec.shard.layout.n_bins == self.layout.n_bins
        self._terms: tuple = ()
        self._tree_bytes = _TREE_BYTES if spec.budget is None else spec.budget.limit // 16
        self._iterations: list[tuple[TreeDelta, ...]] = []
        self._pending: list[TreeDelta] = []
        self._given_values: list[np.ndarray] = []
        self._given_iteration = -1
        self._applied = -1
        self._visit: BiteVisit | None = None
        self._joined: JoinedWorkers | None = None
        #: Whether a round may be a pass over files; then a round opens as many leaves as the tree may have.
        self.streams = False
        self.trees_per_pass = 1  # trees that may grow in the same passes over files
        self._bytes_read = 0

    def past(self) -> ReplayState:
        """Return the state that shards built now have to replay."""
        trained = tuple(self._iterations), tuple(self._pending), self._terms, self._visit
        return ReplayState(self._applied, *trained, tuple(self._given_values), self._given_iteration)

    def watch(self, table: PartitionedTable) -> None:
        """Also repair this table when workers are lost."""
        self._tables.append(table)

    def switch_bite(self, visit: BiteVisit, iterations: Sequence[Sequence[TreeDelta]], applied: int) -> None:
        """See `Calls`. Sessions receive the iterations that are new since the last visit."""
        n_known = 0 if self._visit is None else self._visit.n_kept
        # Set the state before the call: partitions that are read again during it replay the new visit.
        self._iterations, self._pending, self._visit = [tuple(trees) for trees in iterations], [], visit

        def ask() -> None:
            sessions, missing = self._training.sessions, self._iterations[n_known:]
            known = self._connection.ask(sessions, Session.switch_bite, visit, n_known, missing, applied)
            if not all(known.values()):
                self._connection.ask(sessions, Session.switch_bite, visit, 0, self._iterations, applied)

        self._with_recovery("visit", ask)

    def update_scores(self, number: int, values: np.ndarray, terms: tuple) -> GradientStats:
        """See `Calls`. Workers that have joined receive rows after it."""
        began = time.perf_counter()

        def ask() -> list[Any]:
            answers = self._connection.ask(self._training.sessions, Session.update_scores, number, values, terms)
            try:
                check_rows({ref: n_rows for ref, (*_, n_rows) in answers.items()}, self._training.rows_of_sessions())
            except LostWorkers as lost:
                self._connection.abandon(lost.sessions)
                raise
            return list(answers.values())

        answers = self._with_recovery("advance", ask)
        self._connection.attempts.reset(f"iteration {number}")
        self._connection.iteration = number
        if self._pending:
            of_trees = values if len(values) == len(self._pending) else [values]
            self._iterations.append(
                tuple(TreeDelta(tree.routes, of, tree.output) for tree, of in zip(self._pending, of_trees, strict=True))
            )
        self._pending = []
        if self._given_iteration == len(self._given_values):
            self._given_values.append(values)
        self._applied, self._terms = number, terms
        if self._joined is None:
            self._joined = JoinedWorkers(self._connection, self._training)
        self._joined.update()
        compute = max(seconds for _, seconds, *_ in answers)
        self._bytes_read += sum(n_bytes for *_, n_bytes, _ in answers)
        self._timing += Timing(1, compute, 0.0, time.perf_counter() - began - compute)
        return reduce(GradientStats.merge, (stats for stats, *_ in answers if stats is not None))

    def grow_trees(self, tasks: Sequence[TreeTask]) -> Iterator[GrownTree]:
        """See `Calls`. Several trees share rounds if the memory suffices."""
        together = self._trees_together(tasks)
        for first in range(0, len(tasks), together):
            yield from self._grow(tuple(tasks[first : first + together]))

    def _grow(self, tasks: tuple[TreeTask, ...]) -> list[GrownTree]:
        max_leaves = tasks[0].policy.max_leaves
        n_in_flight = rounds_in_flight(self._connection, [ref.worker for ref in self._training.sessions])
        # A round that is a pass over files opens as many leaves as possible, and none is under way at the same time.
        how = (max_leaves, 1) if self.streams else (leaves_per_round(max_leaves), n_in_flight)
        order = GrowOrder(tasks, self.layout, self._is_identity_bin_map, self._n_rows, *how)

        def ask() -> tuple[list[GrownTree], Timing]:
            return self._connection.grow_trees(self._training.sessions, order, self._training.rows_of_sessions())

        trees, timing = self._with_recovery("grow", ask)
        self._timing += timing
        for task, grown in zip(tasks, trees, strict=True):
            routes = TreeRoutes.of(grown, self.layout.is_categorical)
            self._pending.append(TreeDelta(routes, np.zeros(grown.n_leaves), task.output))
        return trees

    def _trees_together(self, tasks: Sequence[TreeTask]) -> int:
        """Return how many trees may grow at the same time.

        Each needs records of the rows in the sessions, and histograms in the scheduler's process. Trees with bins of their own
        grow alone, because a shard has one set of bins. Trees over files need no records, but histograms in the sessions.
        """
        if any(task.bin_merge is not None for task in tasks):
            return 1
        of_rows = 0 if self.streams else BYTES_PER_ROW * max(self._training.rows_of_sessions().values())
        of_histograms = 16 * int(self.layout.offset[-1]) * 2 * tasks[0].policy.max_leaves
        most = max(self._tree_bytes // max(of_rows, of_histograms), 1)
        if self.streams:
            most = min(most, self.trees_per_pass)
        n_groups = -(-len(tasks) // most)
        return -(-len(tasks) // n_groups)

    def assign_leaves(self, iteration: int) -> None:
        """See `Calls`."""
        self._given_iteration = iteration  # before the call: partitions that are read again during it are assigned, too
        self._with_recovery(
            "assign_leaves", lambda: self._connection.ask(self._training.sessions, Session.assign_leaves, iteration)
        )

    def shard_statistics(self, statistic: Statistic, arguments: tuple[Any, ...]) -> list[Any]:
        """Return one result for each shard."""
        answers = self._with_recovery(
            "map_shards", lambda: self._connection.ask(self._training.sessions, Session.shard_statistics, statistic, arguments)
        )
        return [answer for of_worker in answers.values() for answer in of_worker]

    def evaluate(
        self, trees: Sequence[TreeDelta], n_known: int, metrics: dict[str, list[Any]], mark: int, n_cuts: int
    ) -> list[dict[str, Any]]:
        """Return number and metric statistics of the rows of evaluation sets after these trees, from each worker with some.

        n_known : number of trees that were sent before; sessions that read their partitions later get all of them.
        mark, n_cuts : see `WorkerSession.evaluate`.
        """

        def ask() -> list[Any]:
            sessions = sorted({ref for table in self._tables for ref in table.sessions})
            answers = list(
                self._connection.ask(sessions, Session.evaluate, n_known, trees[n_known:], metrics, mark, n_cuts).values()
            )
            if any(answer is None for answer in answers):
                answers = list(self._connection.ask(sessions, Session.evaluate, 0, trees, metrics, mark, n_cuts).values())
            return answers

        return self._with_recovery("evaluate", ask)

    def report(self) -> dict[str, float]:
        """Return seconds since the last report (slowest worker's computation, reducer, waiting for messages), bytes read
        and the number of workers with rows."""
        spent, self._timing = self._timing, Timing()
        report = {"seconds_compute": spent.compute, "seconds_reduce": spent.reduce, "seconds_wait": spent.wait}
        n_bytes, self._bytes_read = self._bytes_read, 0
        return report | {"bytes_read": n_bytes, "workers": len(self._training.sessions)}

    def close(self) -> None:
        self.team.close()

    def _with_recovery(self, name: str, call: Callable[[], Any]) -> Any:
        """Repeat a call until it completes without the loss of a worker. name : of the call, for error messages."""
        while True:
            for table in self._tables:
                table.repair()
            try:
                return call()
            except LostWorkers as lost:
                for table in self._tables:
                    table.drop_workers(lost.sessions)
                self._connection.attempts.note(name, lost)


def rounds_in_flight(connection: Connection, workers: Iterable[str]) -> int:
    """Return how many rounds may be under way at the same time, given the addresses of the workers.

    With two, the scheduler's process searches the histograms of one while workers compute those of the other. Where it shares
    the processors with workers, that saves nothing, and the additional messages cost processor time. Hosts are compared by
    name: one host may have several addresses, such as 127.0.0.1.
    """
    return 1 if connection.shares_host(workers) else 2


def leaves_per_round(max_leaves: int) -> int:
    """Return the number of leaves opened per round: a tree of 31 leaves takes about ten rounds, with few unused leaves.

    The deep trees of forests, which may have as many leaves as rows, take more rounds: each leaf has a histogram.
    """
    return max(6, min(max_leaves // 8, _MOST_PER_ROUND))
