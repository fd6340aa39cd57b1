"""The engine contract, answered by a cluster.

The boosting loop runs in the client and asks for two things an iteration: *advance* (the last trees enter the scores) and
*grow* (a tree). Each is one call to the reducer, which talks to the workers. When workers were lost on the way, their rows
are loaded again by others and brought up to date by the trees grown so far, and the call is repeated: a call that was
answered by some workers already does nothing the second time, or the same again. So the model does not tell whether
anything happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from dboost.distributed.connection import Connection
from dboost.distributed.messages import LostWorkers, Timing, pack
from dboost.distributed.partitioned_table import PartitionedTable
from dboost.distributed.rebalance import JoinedWorkers
from dboost.distributed.reducer import check_rows
from dboost.errors import DBoostError
from dboost.metrics.metric import Metric
from dboost.session.protocol import BiteVisit, BuildSpec, ReplayState, Session
from dboost.session.thread_team import Team
from dboost.shards.apply_trees import TreeDelta
from dboost.trees.bin_proposal import in_fine_bins
from dboost.trees.tree_task import GradientStats, GrownTree, TreeTask


class ClusterEngine:
    """Trains on the shards of all workers.

    Parameters
    ----------
    connection : Connection
    training : PartitionedTable
    spec : BuildSpec
    n_rows : int
    n_threads : int
        For held-out rows in the client's memory.
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
        #: Of each feature, whether trees grow by the bins that finished trees refer to.
        self._is_identity_bin_map = spec.layout.n_bins == self._layout.n_bins
        self._terms = spec.target.loss.terms()
        self._iterations: list[tuple[TreeDelta, ...]] = []
        self._pending: list[TreeDelta] = []
        self._n_advanced = 0
        self._turn: BiteVisit | None = None
        self._newcomers: JoinedWorkers | None = None
        #: Whether a round may be a pass over files: then it opens as many leaves as the tree may have.
        self.streams = False
        self._bytes_read = 0

    def past(self) -> ReplayState:
        """What shards that are built now have missed."""
        return ReplayState(self._n_advanced - 1, tuple(self._iterations), tuple(self._pending), self._terms, self._turn)

    def watch(self, table: PartitionedTable) -> None:
        """Repair this table too when workers are lost."""
        self._tables.append(table)

    def visit(self, bite: Sequence[int], iterations: Sequence[Sequence[TreeDelta]]) -> None:
        """Train on the rows of this arcbite from now on, beginning with the scores of a model of these iterations."""
        n_known = 0 if self._turn is None else self._turn.n_kept
        number = 0 if self._turn is None else self._turn.number + 1
        # What late rows are told is the new turn already.
        self._iterations, self._pending = [tuple(trees) for trees in iterations], []
        self._turn = turn = BiteVisit(number, tuple(bite), len(self._iterations))

        def ask() -> None:
            sessions, applied = self._training.sessions, self._n_advanced - 1
            known = self.connection.ask(sessions, Session.visit, turn, n_known, self._iterations[n_known:], applied)
            if not all(known.values()):
                self.connection.ask(sessions, Session.visit, turn, 0, self._iterations, applied)

        self._with_recovery("visit", ask)

    def advance(self, values: np.ndarray, terms: tuple | None = None) -> GradientStats:
        """Add the last trees' leaf values (float64[n_outputs, n_leaves]) to the scores; gradients and Hessians follow."""
        terms = self._terms if terms is None else terms
        began = time.perf_counter()

        def ask() -> list[Any]:
            answers = self.connection.ask(self._training.sessions, Session.advance, self._n_advanced, values, terms)
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
        if self._newcomers is None:
            self._newcomers = JoinedWorkers(self.connection, self._training)
        self._newcomers.welcome()
        compute = max(seconds for _, seconds, *_ in answers)
        self._bytes_read += sum(n_bytes for *_, n_bytes, _ in answers)
        self.timing += Timing(1, compute, 0.0, time.perf_counter() - began - compute)
        return reduce(GradientStats.merge, (extremes for extremes, *_ in answers if extremes is not None))

    def grow(self, task: TreeTask) -> GrownTree:
        """Grow one tree from the present gradients and Hessians."""
        width = task.policy.max_leaves if self.streams else leaves_per_round(task.policy.max_leaves)

        def ask() -> tuple[GrownTree, Timing]:
            order = pack((task, self._layout, self.n_rows, width, self._training.rows_of_sessions()))
            return self.connection.grow(self._training.sessions, order)

        grown, timing = self._with_recovery("grow", ask)
        self.timing += timing
        in_fine_bins(grown, task.bin_merge, self._is_identity_bin_map)
        self._pending.append(TreeDelta(grown, np.zeros(grown.n_leaves), task.output))
        return grown

    def ask(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """One answer for each shard."""
        answers = self._with_recovery(
            "ask", lambda: self.connection.ask(self._training.sessions, Session.ask, function, arguments)
        )
        return [answer for of_worker in answers.values() for answer in of_worker]

    def judge(
        self, trees: Sequence[TreeDelta], n_known: int, metrics: dict[str, list[str]], mark: int, n_cuts: int
    ) -> list[dict[str, Any]]:
        """Number and statistics of held-out rows after all these trees, from every worker that has some.

        n_known : how many of the trees workers have been told already; rows that came late have not.
        mark, n_cuts : see `Holding.judge`.
        """

        def ask() -> list[Any]:
            sessions = sorted({ref for table in self._tables for ref in table.sessions})
            answers = list(
                self.connection.ask(sessions, Session.judge, n_known, trees[n_known:], metrics, mark, n_cuts).values()
            )
            if any(answer is None for answer in answers):
                answers = list(self.connection.ask(sessions, Session.judge, 0, trees, metrics, mark, n_cuts).values())
            return answers

        return self._with_recovery("judge", ask)

    def report(self) -> dict[str, float]:
        """Seconds since the last report: the slowest worker's own work, merging and deciding, and waiting (for messages);
        and how many workers hold rows."""
        spent, self.timing = self.timing, Timing()
        told = {"seconds_compute": spent.compute, "seconds_reduce": spent.reduce, "seconds_wait": spent.wait}
        n_bytes, self._bytes_read = self._bytes_read, 0
        return told | {"bytes_read": n_bytes, "workers": len(self._training.sessions)}

    def close(self) -> None:
        self.team.close()

    def _with_recovery(self, name: str, call: Callable[[], Any]) -> Any:
        """Repeat a call until no worker is lost meanwhile. name : for the error when that does not end well."""
        while True:
            for table in self._tables:
                table.repair()
            try:
                return call()
            except LostWorkers as lost:
                self.n_lost += len(lost.sessions)
                for table in self._tables:
                    table.forget(lost.sessions)
                self.connection.attempts.note(name, lost)


class ClusterEvalSets:
    """Evaluation sets on the cluster, judged together: one call an iteration, whatever their number.

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
        self._mark, self._n_cuts = -1, 0
        self._latest: dict[str, float] = {}

    def sets(self) -> list[ClusterEvalSet]:
        """One judge for each set."""
        return [ClusterEvalSet(self, name, name == self._names[0]) for name in self._names]

    def add(self, tree: TreeDelta) -> None:
        self._trees.append(tree)

    def save_state(self) -> None:
        """The trees so far are those to be cut back to; workers hear of it when they judge the next."""
        self._mark = len(self._trees)

    def rollback(self) -> None:
        """Forget the trees since the last mark."""
        del self._trees[self._mark :]
        self._n_sent = min(self._n_sent, self._mark)
        self._n_cuts += 1

    def judge(self, name: str, metrics: Sequence[Metric]) -> dict[str, float]:
        """The metrics of one set; the first set that is asked for asks the workers."""
        if name == self._names[0]:
            names = [metric.name for metric in metrics]
            wanted = dict.fromkeys(self._names, names)
            answers = self._engine.judge(self._trees, self._n_sent, wanted, self._mark, self._n_cuts)
            self._n_sent = len(self._trees)
            self._latest = {}
            for of_set in self._names:
                told = [answer[of_set] for answer in answers]
                n_rows, chunks = sum(n for n, _ in told), [chunk for _, some in told for chunk in some]
                if n_rows != self._sizes[of_set]:
                    raise DBoostError(f"workers hold {n_rows} of the {self._sizes[of_set]} rows of evaluation set {of_set!r}")
                for k, metric in enumerate(metrics):
                    value = metric.finish(reduce(metric.merge, (chunk[k] for chunk in chunks)))
                    self._latest[f"{of_set}_{metric.name}"] = value
        return {f"{name}_{metric.name}": self._latest[f"{name}_{metric.name}"] for metric in metrics}


class ClusterEvalSet:
    """One evaluation set on the cluster, as the trainer sees it."""

    def __init__(self, together: ClusterEvalSets, name: str, is_first: bool) -> None:
        self.name = name
        self._together = together
        self._is_first = is_first

    def add(self, grown: GrownTree, values: np.ndarray, output: int = 0) -> None:
        """Take in a grown tree; the rows follow when they are judged."""
        if self._is_first:
            self._together.add(TreeDelta(grown.copy(), values, output))

    def judge(self, metrics: Sequence[Metric]) -> dict[str, float]:
        """The metrics now."""
        return self._together.judge(self.name, metrics)

    def save_state(self) -> None:
        """Remember the present scores."""
        if self._is_first:
            self._together.save_state()

    def rollback(self) -> None:
        """Forget the trees since the last mark."""
        if self._is_first:
            self._together.rollback()


def leaves_per_round(max_leaves: int) -> int:
    """How many leaves to open at once: a tree of 31 leaves takes about ten rounds then, and few are opened for nothing."""
    return max(6, max_leaves // 8)
