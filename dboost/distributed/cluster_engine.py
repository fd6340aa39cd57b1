"""The `Engine` of a cluster, and its evaluation sets.

The boosting loop runs in the client and makes two calls per tree and iteration: *grow* grows a tree, *advance* adds the leaf
values to the scores. Each is one call to the reducer, which calls the workers. When workers are lost during a call, other
workers read their partitions again, apply the trees grown so far, and the call is repeated. Calls are idempotent: a session
that has already answered repeats its answer. So the loss of a worker does not change the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

import numpy as np

from dboost.config import metric_rows
from dboost.distributed.connection import Connection
from dboost.distributed.messages import LostWorkers, Timing
from dboost.distributed.partitioned_table import PartitionedTable
from dboost.distributed.rebalance import JoinedWorkers
from dboost.distributed.tree_rounds import GrowOrder, check_rows
from dboost.errors import DBoostError, ParameterError
from dboost.metrics.metric import MetricReduction
from dboost.session.engines import Team
from dboost.session.protocol import BiteVisit, BuildSpec, ReplayState, Session
from dboost.shards.apply_trees import TreeDelta
from dboost.shards.shard_grower import BYTES_PER_ROW
from dboost.trees.tree_task import GradientStats, GrownTree, TreeTask

#: Bytes that trees which grow at the same time may use in a process, if the fit has no `memory_limit`.
_TREE_BYTES = 128 * 2**20


class ClusterEngine:
    """Trains on the shards of all workers.

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
        self.timing = Timing()
        self.n_lost = 0
        self.n_rows = n_rows
        self.connection = connection
        self._training = training
        self._tables = [training]
        self._layout = spec.shard.bin_layout
        #: Whether the bins that trees are grown with are the fine bins that finished trees refer to, for each feature.
        self._is_identity_bin_map = spec.layout.n_bins == self._layout.n_bins
        self._terms = spec.target.loss.terms()
        self._tree_bytes = _TREE_BYTES if spec.budget is None else spec.budget.limit // 16
        self._iterations: list[tuple[TreeDelta, ...]] = []
        self._pending: list[TreeDelta] = []
        self._n_advanced = 0
        self._visit: BiteVisit | None = None
        self._joined: JoinedWorkers | None = None
        #: Whether a round may be a pass over files; then a round opens as many leaves as the tree may have.
        self.streams = False
        self._bytes_read = 0

    def past(self) -> ReplayState:
        """Return the state that shards built now have to replay."""
        return ReplayState(self._n_advanced - 1, tuple(self._iterations), tuple(self._pending), self._terms, self._visit)

    def watch(self, table: PartitionedTable) -> None:
        """Also repair this table when workers are lost."""
        self._tables.append(table)

    def visit(self, bite: Sequence[int], iterations: Sequence[Sequence[TreeDelta]]) -> None:
        """Train on the rows of this arcbite from now on, starting with the scores of a model of these iterations."""
        n_known = 0 if self._visit is None else self._visit.n_kept
        number = 0 if self._visit is None else self._visit.number + 1
        # Set the state before the call: partitions that are read again during it replay the new visit.
        self._iterations, self._pending = [tuple(trees) for trees in iterations], []
        self._visit = bite_visit = BiteVisit(number, tuple(bite), len(self._iterations))

        def ask() -> None:
            sessions, applied = self._training.sessions, self._n_advanced - 1
            known = self.connection.ask(sessions, Session.switch_bite, bite_visit, n_known, self._iterations[n_known:], applied)
            if not all(known.values()):
                self.connection.ask(sessions, Session.switch_bite, bite_visit, 0, self._iterations, applied)

        self._with_recovery("visit", ask)

    def advance(self, values: np.ndarray, terms: tuple | None = None) -> GradientStats:
        """Add the last trees' leaf values (float64[n_outputs, n_leaves]) to the scores; compute gradients and Hessians."""
        terms = self._terms if terms is None else terms
        began = time.perf_counter()

        def ask() -> list[Any]:
            answers = self.connection.ask(self._training.sessions, Session.update_scores, self._n_advanced, values, terms)
            try:
                check_rows({ref: n_rows for ref, (*_, n_rows) in answers.items()}, self._training.rows_of_sessions())
            except LostWorkers as lost:
                self.connection.abandon(lost.sessions)
                raise
            return list(answers.values())

        answers = self._with_recovery("advance", ask)
        self.connection.attempts.reset(f"iteration {self._n_advanced}")
        if self._pending:
            self._iterations.append(
                tuple(TreeDelta(tree.grown, row, tree.output) for tree, row in zip(self._pending, values, strict=True))
            )
        self._pending = []
        self._n_advanced += 1
        self._terms = terms
        if self._joined is None:
            self._joined = JoinedWorkers(self.connection, self._training)
        self._joined.update()
        compute = max(seconds for _, seconds, *_ in answers)
        self._bytes_read += sum(n_bytes for *_, n_bytes, _ in answers)
        self.timing += Timing(1, compute, 0.0, time.perf_counter() - began - compute)
        return reduce(GradientStats.merge, (stats for stats, *_ in answers if stats is not None))

    def grow(self, tasks: Sequence[TreeTask]) -> Iterator[GrownTree]:
        """Grow trees from the current gradients and Hessians; several of them share rounds if the memory suffices."""
        together = self._trees_together(tasks)
        for first in range(0, len(tasks), together):
            yield from self._grow(tuple(tasks[first : first + together]))

    def _grow(self, tasks: tuple[TreeTask, ...]) -> list[GrownTree]:
        max_leaves = tasks[0].policy.max_leaves
        n_leaves_per_round = max_leaves if self.streams else leaves_per_round(max_leaves)

        def ask() -> tuple[list[GrownTree], Timing]:
            order = GrowOrder(
                tasks, self._layout, self._is_identity_bin_map, self.n_rows, n_leaves_per_round,
                self._training.rows_of_sessions(),
            )  # fmt: skip
            return self.connection.grow_trees(self._training.sessions, order)

        trees, timing = self._with_recovery("grow", ask)
        self.timing += timing
        for task, grown in zip(tasks, trees, strict=True):
            self._pending.append(TreeDelta(grown, np.zeros(grown.n_leaves), task.output))
        return trees

    def _trees_together(self, tasks: Sequence[TreeTask]) -> int:
        """Return how many trees may grow at the same time.

        Each needs records of the rows in the sessions, and histograms in the scheduler's process. Trees with bins of their own
        grow alone, because a shard has one set of bins; so do trees over files, each of which has its own passes.
        """
        if self.streams or any(task.bin_merge is not None for task in tasks):
            return 1
        of_rows = BYTES_PER_ROW * max(self._training.rows_of_sessions().values())
        of_histograms = 16 * int(self._layout.offset[-1]) * 2 * tasks[0].policy.max_leaves
        most = max(self._tree_bytes // max(of_rows, of_histograms), 1)
        n_groups = -(-len(tasks) // most)
        return -(-len(tasks) // n_groups)

    def map_shards(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return one result for each shard."""
        answers = self._with_recovery(
            "map_shards", lambda: self.connection.ask(self._training.sessions, Session.shard_statistics, function, arguments)
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
                self.connection.ask(sessions, Session.evaluate, n_known, trees[n_known:], metrics, mark, n_cuts).values()
            )
            if any(answer is None for answer in answers):
                answers = list(self.connection.ask(sessions, Session.evaluate, 0, trees, metrics, mark, n_cuts).values())
            return answers

        return self._with_recovery("evaluate", ask)

    def report(self) -> dict[str, float]:
        """Return seconds since the last report (slowest worker's computation, reducer, waiting for messages), bytes read
        and the number of workers with rows."""
        spent, self.timing = self.timing, Timing()
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
                self.n_lost += len(lost.sessions)
                for table in self._tables:
                    table.drop_workers(lost.sessions)
                self.connection.attempts.note(name, lost)


class ClusterEvalSets:
    """Evaluation sets on the cluster, evaluated together with one call per iteration.

    Parameters
    ----------
    engine : ClusterEngine
    sizes : {name: number of rows}
    """

    def __init__(self, engine: ClusterEngine, sizes: dict[str, int]) -> None:
        self._engine = engine
        self._names, self._sizes = list(sizes), sizes
        self._trees: list[TreeDelta] = []
        self._n_sent = 0
        self._saved, self._n_cuts = -1, 0
        self._latest: dict[str, float] = {}

    def sets(self) -> list[ClusterEvalSet]:
        """Return the evaluation sets."""
        return [ClusterEvalSet(self, name, name == self._names[0]) for name in self._names]

    def add(self, tree: TreeDelta) -> None:
        self._trees.append(tree)

    def save_state(self) -> None:
        """Save the current number of trees for `rollback`; workers receive it with the next evaluation."""
        self._saved = len(self._trees)

    def rollback(self) -> None:
        """Drop the trees since `save_state`."""
        del self._trees[self._saved :]
        self._n_sent = min(self._n_sent, self._saved)
        self._n_cuts += 1

    def evaluate(self, name: str, metrics: Sequence[MetricReduction]) -> dict[str, float]:
        """Return the metrics of one set. The call for the first set evaluates all sets on the workers."""
        if name == self._names[0]:
            for metric in metrics:
                self._check_rows_wanted(metric)
            specs = [metric.spec for metric in metrics]
            wanted = {of_set: specs for of_set in self._names}
            answers = self._engine.evaluate(self._trees, self._n_sent, wanted, self._saved, self._n_cuts)
            self._n_sent = len(self._trees)
            self._latest = {}
            for of_set in self._names:
                results = [answer[of_set] for answer in answers]
                n_rows, chunks = (
                    sum(n for n, _ in results),
                    [chunk for _, chunks_of_worker in results for chunk in chunks_of_worker],
                )
                if n_rows != self._sizes[of_set]:
                    raise DBoostError(f"workers hold {n_rows} of the {self._sizes[of_set]} rows of evaluation set {of_set!r}")
                for k, metric in enumerate(metrics):
                    value = metric.finish(reduce(metric.merge, (chunk[k] for chunk in chunks)))
                    self._latest[f"{of_set}_{metric.name}"] = value
        return {f"{name}_{metric.name}": self._latest[f"{name}_{metric.name}"] for metric in metrics}

    def _check_rows_wanted(self, metric: MetricReduction) -> None:
        """Raise a ParameterError if a metric wants more rows of an evaluation set than may come to the client."""
        largest = max(self._sizes.values())
        if metric.wants_rows and largest > metric_rows():
            raise ParameterError(
                f"eval_metric {metric.name!r} is a function of all rows of an evaluation set, and {largest} rows are more than "
                f"dboost.metric-rows={metric_rows()} in Dask's configuration: raise it, or use dboost.metrics.Metric, which is "
                "merged over the workers"
            )


class ClusterEvalSet:
    """One evaluation set on the cluster; implements `session.evaluation.EvalSet`."""

    def __init__(self, together: ClusterEvalSets, name: str, is_first: bool) -> None:
        self.name = name
        self._together = together
        self._is_first = is_first

    def add(self, grown: GrownTree, values: np.ndarray, output: int = 0) -> None:
        """Add a tree; it is sent to the workers with the next evaluation."""
        if self._is_first:
            self._together.add(TreeDelta(grown.copy(), values, output))

    def evaluate(self, metrics: Sequence[MetricReduction]) -> dict[str, float]:
        """Return the current metrics."""
        return self._together.evaluate(self.name, metrics)

    def save_state(self) -> None:
        """Save the current state for `rollback`."""
        if self._is_first:
            self._together.save_state()

    def rollback(self) -> None:
        """Drop the trees since `save_state`."""
        if self._is_first:
            self._together.rollback()


def leaves_per_round(max_leaves: int) -> int:
    """Return the number of leaves opened per round: a tree of 31 leaves takes about ten rounds, with few unused leaves."""
    return max(6, max_leaves // 8)
