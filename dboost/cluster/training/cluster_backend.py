"""The backend of a fit on a cluster: calls of the workers' sessions, and recovery when workers are lost.

Who has which partition, and who reads it again, is known to the `PartitionedTable` of each table of the fit: the training data,
and evaluation sets that the workers read. Rows that leave the workers are samples: those that propose the split points, and the
reference sample (and what some metrics need, see `docs/method/promises.md`).

The boosting loop runs in the client. In each iteration it calls *grow*, which grows the trees of all outputs, and *advance*,
which adds their leaf values to the scores; some losses and metrics ask for more. Each is one call to the reducer, which calls
the workers, or one for each round of growing trees. When workers are lost during a call, other workers read their partitions
again, apply the trees grown so far (`ReplayState`), and the call is repeated. Calls are idempotent: a session that has already
answered repeats its answer. So the loss of a worker does not change the model.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, reduce
from typing import Any, TypeVar, TypeVarTuple

import numpy as np

from dboost.cluster.client.connection import Connection
from dboost.cluster.partitions.joined_workers import JoinedWorkers
from dboost.cluster.partitions.partitioned_table import PartitionedTable, with_recovery
from dboost.cluster.partitions.read_tasks import TRAINING_DATA, ReadTasks
from dboost.cluster.partitions.table_features import load_partitions
from dboost.cluster.scheduler.reducer_rounds import check_rows
from dboost.cluster.training.fit_events import FitEvents
from dboost.cluster.transport.messages import LostWorkers, Timing
from dboost.config import metric_rows, session_per_host
from dboost.data.kinds.table_kinds import in_parts
from dboost.data.tables.eval_tables import named_in_messages
from dboost.data.tables.reading import GivenTable
from dboost.display import counted
from dboost.errors import DBoostError, ParameterError
from dboost.kernels.threads import Team, is_small
from dboost.losses.gradient_stats import GradientStats
from dboost.losses.terms import LossTerms
from dboost.metrics.metric import MetricReduction
from dboost.rows.statistics import Statistic
from dboost.schema import Feature
from dboost.session.backend import log_rows_in_files
from dboost.session.evaluation_rows import SessionEvalSets, log_streamed_eval_set
from dboost.session.fit_records import Advance, BuildSpec, Chosen, ReplayState, SelectedRows
from dboost.session.memory import trees_in_rounds
from dboost.session.session import Session
from dboost.session.table_rows import TableRows
from dboost.session.target import TargetScan
from dboost.trees.fit_trees import GrownTree, TreesSoFar
from dboost.trees.tree_rounds import GrowOrder
from dboost.trees.tree_task import TreeTask

Answer = TypeVar("Answer")
Given = TypeVarTuple("Given")
_log = logging.getLogger("dboost")

#: Largest number of leaves that a round opens.
_MOST_PER_ROUND = 512


class ClusterBackend:
    """Implements `session.backend.Backend` by the sessions of all workers with rows of a fit.

    Parameters
    ----------
    connection : Connection
    make_tasks : callable
        Makes the tasks that read the training data.
    n_threads : int
        Threads of this process, for evaluation sets in its memory.
    name : str
        Of the training data, in messages.
    n_at_once : int
        Number of fits that run at the same time.

    Attributes
    ----------
    training : PartitionedTable
        The training data; once they are loaded.
    """

    is_one_process = False
    training: PartitionedTable
    unit_weights: bool
    spec: BuildSpec
    trees: TreesSoFar

    def __init__(
        self,
        connection: Connection,
        make_tasks: Callable[[], ReadTasks],
        n_threads: int,
        name: str = TRAINING_DATA,
        n_at_once: int = 1,
    ) -> None:
        self.connection, self._make_tasks, self._n_threads, self._name = connection, make_tasks, n_threads, name
        self._n_at_once = n_at_once
        self.eval_names: list[str] = []
        self._tables: list[PartitionedTable] = []
        self._timing = Timing()
        self._bytes_read = 0
        self._has_eval_files = False  # whether rows that were chosen for evaluation sets are in files
        self._eval_rows: dict[str, int] = {}  # of the evaluation sets on the workers
        self._n_trees_sent = 0  # trees that the evaluation sets on the workers have received
        #: What rows that are read again have to replay, beside the trees.
        self._advanced: Advance | None = None
        self._refit_values: list[np.ndarray] = []
        self._refit_iteration = -1
        self._selected: SelectedRows | None = None
        self._joined: JoinedWorkers | None = None
        #: Whether a round may be a pass over files; then a round opens as many leaves as the tree may have.
        self.streams = False
        self.trees_per_pass = 1  # trees that may grow in the same passes over files

    @cached_property
    def team(self) -> Team:
        """The threads of this process."""
        return Team(self._n_threads)

    # The table.

    def load(self) -> tuple[Feature, ...]:
        self.training = PartitionedTable(self.connection, self._name, self._make_tasks(), n_at_once=self._n_at_once)
        self._tables = [self.training]
        features = load_partitions(self.training)
        self.set_trained(self.training.n_kept, all(stats.unit_weights for stats in self.training.partition_stats))
        return features

    @property
    def named(self) -> bool:
        return self.training.source.named

    @property
    def roles(self) -> tuple[str, ...]:
        return self.training.source.roles

    @property
    def n_kept(self) -> dict[int, int]:
        return self.training.n_kept

    def target_scans(self) -> list[TargetScan]:
        return [stats.target for stats in self.training.partition_stats if stats.target is not None]

    def ask(self, question: Callable[[TableRows, *Given], Answer], *arguments: *Given) -> list[Answer]:
        return self.training.ask(question, *arguments)

    def change(self, step: Callable[[TableRows, *Given], None], *arguments: *Given) -> None:
        self.training.change(step, *arguments)

    def complete(self) -> None:
        self.training.complete()

    def set_trained(self, n_kept: dict[int, int], unit_weights: bool) -> None:
        self.unit_weights = unit_weights
        self.training.number(n_kept)

    def propose(self, seed: int, columns: tuple[int, int], max_bins: int) -> list[np.ndarray]:
        return self.training.propose(seed, columns, max_bins)

    @property
    def most_rows(self) -> int:
        return max(self.training.rows_of_sessions().values())

    # Training.

    @property
    def n_rows(self) -> int:
        return sum(self.n_kept.values())

    def build(self, spec: BuildSpec, chosen: Chosen, trees: TreesSoFar) -> None:
        """Sessions of a host may hand their rows over to one of them, see `cluster.worker.host_trainers`."""
        training = self.training
        self.spec = spec = replace(spec, id_ranges=training.id_ranges)
        self.trees = trees
        # A round that is a pass over files opens as many leaves as the tree may have.
        session_spec = replace(spec, n_growing=None, leaves_per_pass=spec.shard_spec.max_leaves)
        self._hold_out(chosen, session_spec)
        training.n_outputs = spec.shard_spec.trees_per_iteration
        n_readers = len(training.rows_of_sessions())
        if self._is_handed_over(spec):
            training.host_spec = spec

        def arguments() -> tuple[BuildSpec, ReplayState]:
            return session_spec, self.past()

        places = training.build(Session.build, arguments)
        if training.host_spec is not None:
            self._report_trainers(n_readers)
        if spec.may_stream:
            n_in_files = sum(place.in_files for place in places)
            if n_in_files:
                log_rows_in_files(n_in_files, spec)
            self.streams = n_in_files > 0 and spec.n_parts is None
            self.trees_per_pass = min(place.trees_per_pass for place in places)
            n_held = min(place.most_in_memory for place in places)
            if self.streams and n_held:
                # Workers whose memory holds all rows; they get partitions when they join (see `cluster.partitions.rebalance`).
                self.connection.need_workers(-(-self.n_rows // n_held))

    def _report_trainers(self, n_readers: int) -> None:
        """Say how many of the workers that have read rows train on them, if some have handed theirs over."""
        n_trainers = len(self.training.rows_of_sessions())
        if n_trainers < n_readers:
            why = "they share a host" if n_trainers == 1 else "the others share a host with one of them"
            verb = "trains" if n_trainers == 1 else "train"
            message = f"{n_trainers} of {counted(n_readers, 'worker')} {verb}: {why} (dboost.session-per-host)"
            _log.info(message)
            self.connection.progress.write(message)

    def _hold_out(self, chosen: Chosen, spec: BuildSpec) -> None:
        in_files: list[int] = []
        for name, (n_rows, max_weight) in chosen.items():
            arguments = name, spec, spec.loss_magnitude(max_weight, n_rows), spec.needs_values, True
            in_files = self.training.build(Session.add_eval_rows, lambda arguments=arguments: arguments)  # type: ignore[misc]
        self._has_eval_files = sum(in_files) > 0
        if self._has_eval_files:  # of all chosen sets so far
            log_streamed_eval_set(" and ".join(chosen))

    def _is_handed_over(self, spec: BuildSpec) -> bool:
        """Return whether the sessions of a host hand their rows over to one of them, see `cluster.worker.host_trainers`."""
        is_possible = spec.budget is None and spec.n_parts is None and spec.refit_model is None and not self._has_eval_files
        n_rows, n_features = sum(self.training.lengths.values()), len(spec.binning.features)
        has_worker = self.training.single_worker(self.connection.workers.n_threads) is not None and is_small(n_rows, n_features)
        return session_per_host() and is_possible and self._n_at_once == 1 and not has_worker

    def load_eval_sets(self, chosen: Chosen, sets: Sequence[GivenTable]) -> None:
        """Load Dask collections, files and streams on the workers, tables in memory in this process."""
        self.eval_names = [*chosen, *(table.name for table in sets)]
        self._eval_rows = {name: n_rows for name, (n_rows, _) in chosen.items()}
        for table in sets:
            if in_parts(table.data):
                with named_in_messages(table.name):
                    self._eval_rows[table.name] = self._load_eval_set(table)
            else:
                self._eval_sets.add_table(table, self.spec, None, with_block=self.spec.needs_values)

    def _load_eval_set(self, source: GivenTable) -> int:
        """Load an evaluation set on the workers; return its number of rows of positive weight."""
        name, spec = source.name, self.spec
        tasks = ReadTasks.of(source, like=spec.binning.features, budget=spec.budget)
        table = PartitionedTable(self.connection, f"evaluation set {name!r}", tasks)
        load_partitions(table)
        table.change(TableRows.encode_targets, spec.target)
        n = sum(table.n_kept.values())
        size = spec.loss_magnitude(max(stats.max_weight for stats in table.partition_stats), n)
        n_in_files = sum(table.build(Session.add_eval_rows, lambda: (name, spec, size, spec.needs_values, False)))
        self._tables.append(table)
        if n_in_files:
            log_streamed_eval_set(name)
        return n

    def observers(self, loss_name: str, n_features: int) -> list[Callable[[Any], Any]]:
        events = FitEvents(self.connection, self.training)
        events.begin(loss_name, self.n_rows, n_features)
        return [events]

    def past(self) -> ReplayState:
        """Return the state that shards built now have to replay."""
        trees, pending = self.trees.iterations(), self.trees.since(self.trees.n_applied)
        trained = tuple(trees), tuple(pending), self._selected
        return ReplayState(self._advanced, *trained, tuple(self._refit_values), self._refit_iteration)

    @property
    def _n_advanced(self) -> int:
        """Number of calls of `advance` so far."""
        return 0 if self._advanced is None else self._advanced.number + 1

    def select(self, parts: Sequence[int]) -> None:
        """Sessions receive the iterations that are new since the last selection."""
        n_known = 0 if self._selected is None else self._selected.n_iterations
        self.trees.apply()
        # Before the call: partitions that are read again during it train on the selected rows already.
        self._selected = selected = SelectedRows(tuple(parts), self._n_advanced, self.trees.n_iterations)

        def ask_from(first: int) -> bool:
            sent = selected, self.trees.iterations(first), first
            return all(self.connection.ask(self.training.sessions, Session.select, *sent).values())

        with_recovery(self._tables, "select", lambda: ask_from(n_known) or ask_from(0))

    def advance(self, values: np.ndarray, terms: LossTerms) -> GradientStats:
        """Workers that have joined receive rows after it."""
        number = self._n_advanced
        began = time.perf_counter()

        def ask() -> list[Any]:
            answers = self.connection.ask(self.training.sessions, Session.advance_to, number, values, terms)
            try:
                check_rows({ref: n_rows for ref, (*_, n_rows) in answers.items()}, self.training.rows_of_sessions())
            except LostWorkers as lost:
                self.connection.abandon(lost.sessions)
                raise
            return list(answers.values())

        answers = with_recovery(self._tables, "advance", ask)
        self.connection.attempts.reset(f"iteration {number}")
        self.connection.iteration = self.connection.iteration or 0  # loading is over; `FitEvents` counts
        self.trees.apply()
        if self._refit_iteration == len(self._refit_values):
            self._refit_values.append(values)
        self._advanced = Advance(number, terms)
        if self._joined is None:
            self._joined = JoinedWorkers(self.connection, self.training)
        self._joined.update()
        compute = max(seconds for _, seconds, *_ in answers)
        self._bytes_read += sum(n_bytes for *_, n_bytes, _ in answers)
        self._timing += Timing(1, compute, 0.0, time.perf_counter() - began - compute)
        return reduce(GradientStats.merge, (stats for stats, *_ in answers if stats is not None))

    def grow(self, tasks: Sequence[TreeTask]) -> Iterator[GrownTree]:
        """Several trees share rounds if the memory suffices."""
        together = self._trees_together(tasks)
        for first in range(0, len(tasks), together):
            yield from self._grow(tuple(tasks[first : first + together]))

    def _grow(self, tasks: tuple[TreeTask, ...]) -> list[GrownTree]:
        max_leaves = tasks[0].policy.max_leaves
        n_in_flight = rounds_in_flight(self.connection, [ref.worker for ref in self.training.sessions])
        # A round that is a pass over files opens as many leaves as possible, and none is under way at the same time.
        how = (max_leaves, 1) if self.streams else (leaves_per_round(max_leaves), n_in_flight)
        spec = self.spec.shard_spec
        order = GrowOrder(tasks, spec.tree_layout, spec.is_identity_bin_map, self.n_rows, *how)

        def ask() -> tuple[list[GrownTree], Timing]:
            return self.connection.grow(self.training.sessions, order, self.training.rows_of_sessions())

        trees, timing = with_recovery(self._tables, "grow", ask)
        self._timing += timing
        return [self.trees.add(tree) for tree in trees]

    def _trees_together(self, tasks: Sequence[TreeTask]) -> int:
        """Return how many trees may grow at the same time.

        Trees with bins of their own grow alone, because a shard has one set of bins. Trees over files need histograms in the
        sessions, too.
        """
        if any(task.bin_merge is not None for task in tasks):
            return 1
        n_rows = 0 if self.streams else self.most_rows
        most = trees_in_rounds(self.spec.shard_spec, self.spec.budget, n_rows, tasks[0].policy.max_leaves)
        if self.streams:
            most = min(most, self.trees_per_pass)
        n_groups = -(-len(tasks) // most)
        return -(-len(tasks) // n_groups)

    def assign_leaves(self, iteration: int) -> None:
        self._refit_iteration = iteration  # before the call: partitions that are read again during it are assigned, too
        with_recovery(
            self._tables, "assign_leaves", lambda: self.connection.ask(self.training.sessions, Session.assign_leaves, iteration)
        )

    def statistics(self, statistic: Statistic, *arguments: Any) -> list[Any]:
        """Return one result for each range of rows, or for each session."""
        answers = with_recovery(
            self._tables,
            "statistics",
            lambda: self.connection.ask(self.training.sessions, Session.statistics, statistic, *arguments),
        )
        return [answer for worker_answers in answers.values() for answer in worker_answers]

    @cached_property
    def _eval_sets(self) -> SessionEvalSets:
        """The evaluation sets of this process."""
        return SessionEvalSets(self.team)

    def evaluate(self, metrics: Sequence[MetricReduction]) -> dict[str, float]:
        """The sets on the workers are evaluated together, with one call, which sends them the trees since the last one."""
        trees, scores = self.trees, dict[str, float]()
        if len(self._eval_rows) < len(self.eval_names):
            scores |= self._eval_sets.evaluate(trees.trees, metrics, trees.mark, trees.n_cuts)
        if self._eval_rows:
            scores |= self._evaluate_on_workers(metrics)
        columns = (column for name in self.eval_names for metric in metrics for column in metric.columns(name))
        return {column: scores[column] for column in columns}

    def _evaluate_on_workers(self, metrics: Sequence[MetricReduction]) -> dict[str, float]:
        for metric in metrics:
            self._check_rows_wanted(metric)
        specs = [metric.on_workers for metric in metrics]
        wanted, trees = {name: specs for name in self._eval_rows}, self.trees
        # Sessions that have read their partitions later get all trees.
        n_known = self._n_trees_sent if trees.mark < 0 else min(self._n_trees_sent, trees.mark)

        def ask(first: int) -> list[Any]:
            sessions = sorted({ref for table in self._tables for ref in table.sessions})
            sent = trees.since(first), wanted, trees.mark, trees.n_cuts
            return list(self.connection.ask(sessions, Session.evaluate, first, *sent).values())

        def ask_all() -> list[Any]:
            answers = ask(n_known)
            return ask(0) if any(answer is None for answer in answers) else answers

        answers = with_recovery(self._tables, "evaluate", ask_all)
        self._n_trees_sent = len(trees)
        scores: dict[str, float] = {}
        for name, n_rows in self._eval_rows.items():
            results = [answer[name] for answer in answers]
            n_found = sum(n for n, _ in results)
            if n_found != n_rows:
                raise DBoostError(f"workers hold {n_found} of the {n_rows} rows of evaluation set {name!r}")
            chunks = [chunk for _, chunks_of_worker in results for chunk in chunks_of_worker]
            for k, metric in enumerate(metrics):
                scores |= metric.values(name, reduce(metric.merge, (chunk[k] for chunk in chunks)))
        return scores

    def _check_rows_wanted(self, metric: MetricReduction) -> None:
        """Raise a ParameterError if a metric wants more rows of an evaluation set than may come to the client."""
        largest = max(self._eval_rows.values())
        if metric.wants_rows and largest > metric_rows():
            raise ParameterError(
                f"eval_metric {metric.name!r} is a function of all rows of an evaluation set, and {largest} rows are more than "
                f"dboost.metric-rows={metric_rows()} in Dask's configuration: raise it, or use dboost.metrics.Metric, which is "
                "merged over the workers"
            )

    def report(self) -> dict[str, float]:
        """Return seconds since the last report (slowest worker's computation, reducer, waiting for messages), bytes read
        and the number of workers with rows."""
        spent, self._timing = self._timing, Timing()
        report = {"seconds_compute": spent.compute, "seconds_reduce": spent.reduce, "seconds_wait": spent.wait}
        n_bytes, self._bytes_read = self._bytes_read, 0
        return report | {"bytes_read": n_bytes, "workers": len(self.training.sessions)}

    def release(self) -> None:
        """Do nothing: the end of the fit releases the rows on the workers (`Connection`)."""

    def close(self) -> None:
        if "team" in vars(self):
            self.team.close()


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
