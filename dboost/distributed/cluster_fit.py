"""Fit and leaf refit on a cluster: the table whose sessions are on the workers, and its evaluation sets.

The steps of a fit are those of `training.fit`. On a cluster, Dask tasks read the partitions, and the client merges the features
that the workers found in them. The workers also load evaluation sets that are Dask collections or files. Events report the fit
to the scheduler. Rows that leave the workers are samples: those that propose the split points, and the reference sample
(and what some metrics need, see `docs/method/promises.md`).

**Events** of a fit are logged by the client under Dask's topic "dboost", see `monitoring.py`. The client does not wait for
events: they travel with the next message to the scheduler, and failing to send one does not end the fit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import numpy as np
from distributed import Client

from dboost.config import metric_rows, session_per_host
from dboost.data.binning import Sample
from dboost.data.chunk import CategoryIndex
from dboost.data.eval_tables import EvalTable, named_in_messages
from dboost.data.partition import ReadPlan, is_stream
from dboost.data.row_metadata import check_max_weight, raise_for_issues
from dboost.data.table import disagree, mixes_kinds, warn_of_text
from dboost.distributed.cluster_calls import ClusterCalls
from dboost.distributed.connection import Connection
from dboost.distributed.monitoring import PHASES
from dboost.distributed.partitioned_table import PartitionedTable
from dboost.distributed.read_tasks import TRAINING_DATA, ReadTasks
from dboost.distributed.worker_choice import WorkerChoice
from dboost.errors import ColumnKindsError, DataError, DBoostError, ParameterError
from dboost.metrics.metric import MetricReduction
from dboost.model.ensemble import Ensemble
from dboost.schema import Feature
from dboost.session.batch_rows import BatchRows
from dboost.session.calls import (
    BuildSpec,
    Calls,
    Chosen,
    PartitionStats,
    ReplayState,
)
from dboost.session.evaluation import SessionEvalSets, log_streamed_eval_set
from dboost.session.session import ByPartitions, Result, Session
from dboost.session.target import TargetScan
from dboost.session.thread_team import is_small
from dboost.shards.apply_trees import TreeDelta
from dboost.training.callbacks import Iteration
from dboost.training.direct_calls import log_rows_in_files
from dboost.training.fit import SessionRows, TrainingRows, fit
from dboost.training.fit_result import FitResult
from dboost.training.leaf_refit import refit_leaves
from dboost.training.loop import metrics_of
from dboost.training.plan import FitRequest
from dboost.trees.tree_task import GrownTree, TreeRoutes


class FitEvents:
    """A callback that logs every iteration. table : the training data."""

    def __init__(self, connection: Connection, table: PartitionedTable) -> None:
        self._connection = connection
        self._table = table
        self._held: list[tuple[str, tuple[int, ...]]] = []

    def begin(self, loss: str, n_rows: int, n_features: int) -> None:
        """Log that loading has finished. loss : name of the loss."""
        self._connection.record_event("boosting", loss=loss, rows=n_rows, features=n_features)
        self._log_rows_of_workers()

    def __call__(self, now: Iteration) -> None:
        record = now.record
        scores = {name: float(value) for name, (value,) in metrics_of([record]).items()}
        phases = {phase: float(record[f"seconds_{phase}"]) for phase in PHASES}
        progress = {"iteration": now.iteration, "n_iterations": now.n_iterations, "rows": int(record["rows_kept"])}
        self._connection.record_event("iteration", **progress, seconds=float(record["seconds"]), scores=scores, **phases)
        self._log_rows_of_workers()

    def _log_rows_of_workers(self) -> None:
        """Log the number of rows of each worker if it has changed."""
        held = [(share.ref.worker, share.numbers) for share in self._table.worker_partitions]
        if held == self._held:
            return
        self._held = held
        n_kept = self._table.n_kept
        rows: dict[str, int] = {}
        for worker, numbers in held:
            rows[worker] = rows.get(worker, 0) + sum(n_kept.get(i, 0) for i in numbers)
        self._connection.record_event("holding", rows={worker: n for worker, n in sorted(rows.items()) if n})


class ClusterEvalSets(SessionEvalSets):
    """The evaluation sets of a fit on a cluster: some in this process, the others on the workers.

    The sets on the workers are evaluated together, with one call per iteration, which sends them the trees since the last one.

    Parameters
    ----------
    calls : ClusterCalls
    """

    def __init__(self, calls: ClusterCalls) -> None:
        super().__init__(calls.team)
        self._calls = calls
        self._sizes: dict[str, int] = {}  # rows of the sets on the workers
        self._trees: list[TreeDelta] = []
        self._n_sent = 0
        self._mark, self._n_cuts = -1, 0

    def add_on_workers(self, name: str, n_rows: int) -> None:
        """Add a set whose rows the workers have."""
        self.names.append(name)
        self._sizes[name] = n_rows

    def add_tree(self, grown: GrownTree, values: np.ndarray, output: int) -> None:
        super().add_tree(grown, values, output)
        if self._sizes:
            self._trees.append(TreeDelta(TreeRoutes.of(grown, self._calls.layout.is_categorical), values, output))

    def save_state(self) -> None:
        super().save_state()
        self._mark = len(self._trees)  # the workers receive it with the next evaluation

    def rollback(self) -> None:
        super().rollback()
        del self._trees[self._mark :]
        self._n_sent = min(self._n_sent, self._mark)
        self._n_cuts += 1

    def evaluate(self, metrics: Sequence[MetricReduction]) -> dict[str, float]:
        found = super().evaluate(metrics)
        if self._sizes:
            found |= self._evaluate_on_workers(metrics)
        columns = (column for name in self.names for metric in metrics for column in metric.columns(name))
        return {column: found[column] for column in columns}

    def _evaluate_on_workers(self, metrics: Sequence[MetricReduction]) -> dict[str, float]:
        for metric in metrics:
            self._check_rows_wanted(metric)
        specs = [metric.on_workers for metric in metrics]
        wanted = {name: specs for name in self._sizes}
        answers = self._calls.evaluate(self._trees, self._n_sent, wanted, self._mark, self._n_cuts)
        self._n_sent = len(self._trees)
        found: dict[str, float] = {}
        for name, n_rows in self._sizes.items():
            results = [answer[name] for answer in answers]
            n_found = sum(n for n, _ in results)
            if n_found != n_rows:
                raise DBoostError(f"workers hold {n_found} of the {n_rows} rows of evaluation set {name!r}")
            chunks = [chunk for _, chunks_of_worker in results for chunk in chunks_of_worker]
            for k, metric in enumerate(metrics):
                found |= metric.values(name, reduce(metric.merge, (chunk[k] for chunk in chunks)))
        return found

    def _check_rows_wanted(self, metric: MetricReduction) -> None:
        """Raise a ParameterError if a metric wants more rows of an evaluation set than may come to the client."""
        largest = max(self._sizes.values())
        if metric.wants_rows and largest > metric_rows():
            raise ParameterError(
                f"eval_metric {metric.name!r} is a function of all rows of an evaluation set, and {largest} rows are more than "
                f"dboost.metric-rows={metric_rows()} in Dask's configuration: raise it, or use dboost.metrics.Metric, which is "
                "merged over the workers"
            )


_log = logging.getLogger("dboost")


def fit_on_cluster(client: Client, request: FitRequest, make_tasks: Callable[[], ReadTasks]) -> FitResult:
    """Train on the workers of a cluster.

    Parameters
    ----------
    client : distributed.Client
    request : FitRequest
        Its `n_threads` applies to this process, its budget to each worker.
    make_tasks : callable
        Makes the tasks that read the training data.
    """
    with Connection(client, WorkerChoice.of(request.workers)) as connection:
        return fit_over(connection, request, SessionRows(ClusterTable(connection, make_tasks, request.n_threads), request))


def fit_over(connection: Connection, request: FitRequest, rows: TrainingRows) -> FitResult:
    """Train on rows of a cluster; the result has the lost workers."""
    connection.progress = request.progress
    result = fit(request, rows)
    result.lost_workers = connection.losses
    return result


def refit_on_cluster(client: Client, model: Ensemble, make_tasks: Callable[[], ReadTasks], **options: Any) -> Ensemble:
    """Estimate leaf values from a table that the workers read; options : of `training.leaf_refit.refit_leaves`."""
    with Connection(client) as connection:
        table = ClusterTable(connection, make_tasks, options["n_threads"], "data to estimate leaf values from")
        return refit_leaves(model, table, **options)


def n_parts_of(client: Client) -> int:
    """Return the number of partitions for data in memory: one for each thread of the cluster."""
    return max(sum(client.nthreads().values()), 1)


class ClusterTable:
    """The training table of a fit on a cluster.

    Parameters
    ----------
    connection : Connection
    make_tasks : callable
        Makes the tasks that read the table.
    n_threads : int
        Threads of this process.
    name : str
        The table's name in messages.
    n_at_once : int
        Number of fits that run at the same time.
    """

    def __init__(
        self,
        connection: Connection,
        make_tasks: Callable[[], ReadTasks],
        n_threads: int,
        name: str = TRAINING_DATA,
        n_at_once: int = 1,
    ) -> None:
        self._connection, self._make_tasks, self._n_threads, self._name = connection, make_tasks, n_threads, name
        self._n_at_once = n_at_once
        self._unit_weights: bool | None = None
        self._has_eval_files = False  # whether rows that were chosen for evaluation sets are in files

    def load(self) -> tuple[Feature, ...]:
        self.partitions = PartitionedTable(self._connection, self._name, self._make_tasks(), n_at_once=self._n_at_once)
        return load_partitions(self.partitions)

    @property
    def named(self) -> bool:
        return self.partitions.source.named

    @property
    def n_kept(self) -> dict[int, int]:
        return self.partitions.n_kept

    @property
    def roles(self) -> tuple[str, ...]:
        return self.partitions.source.roles

    @property
    def unit_weights(self) -> bool:
        if self._unit_weights is None:
            return all(stats.unit_weights for stats in self.partitions.partition_stats)
        return self._unit_weights

    def target_scans(self) -> list[TargetScan]:
        return [stats.target for stats in self.partitions.partition_stats if stats.target is not None]

    def read(self, function: ByPartitions[Result]) -> list[Result]:
        return self.partitions.read(function)

    def propose(self, draw: ByPartitions[Sample], n_columns: int, max_bins: int) -> list[np.ndarray]:
        return self.partitions.propose(draw, n_columns, max_bins)

    def apply(self, step: ByPartitions[None]) -> None:
        self.partitions.apply(step)

    def complete(self) -> None:
        self.partitions.complete()

    def note_assigned(self, n_kept: dict[int, int], unit_weights: bool) -> None:
        self.partitions.set_n_trained(n_kept)
        self._unit_weights = unit_weights

    def most_rows(self) -> int:
        return max(self.partitions.rows_of_sessions().values())

    def refuse_values(self, name: str) -> None:
        raise ParameterError(
            "scoring with a scorer needs all rows in one process; on a cluster use scoring='loss', or eval_metric"
        )

    def hold_out_chosen(self, spec: BuildSpec, chosen: Chosen, *, with_block: bool) -> None:
        in_files: list[int] = []
        spec = replace(spec, is_whole=self.partitions.is_whole, n_growing=None)
        for name, (n_rows, max_weight) in chosen.items():
            arguments = name, spec, spec.loss_magnitude(max_weight, n_rows), with_block, True
            in_files = self.partitions.build(Session.hold_out, lambda arguments=arguments: arguments)  # type: ignore[misc]
        self._has_eval_files = sum(in_files) > 0
        if self._has_eval_files:  # of all chosen sets so far
            log_streamed_eval_set(" and ".join(chosen))

    def open_calls(self, spec: BuildSpec) -> Calls:
        n_rows = sum(self.n_kept.values())
        self._calls = calls = ClusterCalls(self._connection, self.partitions, spec, n_rows, self._n_threads)
        self.partitions.n_outputs = spec.shard.n_trees
        if self._is_handed_over(spec):
            self.partitions.host_spec = spec

        def arguments() -> tuple[BuildSpec, ReplayState]:
            of_worker = replace(spec, is_whole=self.partitions.is_whole, n_growing=None)
            return replace(of_worker, leaves_per_pass=spec.shard.max_leaves), calls.past()

        places = self.partitions.build(Session.build, arguments)
        if spec.may_stream:
            n_in_files = sum(one.in_files for one in places)
            log_rows_in_files(n_in_files, spec)
            calls.streams = n_in_files > 0 and spec.n_bites is None
            calls.trees_per_pass = min(one.trees_per_pass for one in places)
            n_held = min(one.most_in_memory for one in places)
            if calls.streams and n_held:
                # Workers whose memory holds all rows; they get partitions when they join (see `rebalance`).
                self._connection.need_workers(-(-n_rows // n_held))
        return calls

    def _is_handed_over(self, spec: BuildSpec) -> bool:
        """Return whether the sessions of a host hand their rows over to one of them, see `host_sessions`."""
        is_possible = spec.budget is None and spec.n_bites is None and spec.given is None and not self._has_eval_files
        n_rows, n_features = sum(self.partitions.lengths.values()), len(spec.binning.features)
        has_worker = self.partitions.single_worker(self._connection.n_threads) is not None and is_small(n_rows, n_features)
        return session_per_host() and is_possible and self._n_at_once == 1 and not has_worker

    def eval_sets(self, spec: BuildSpec, chosen: Chosen, sets: Sequence[EvalTable], *, with_block: bool) -> SessionEvalSets:
        """Load the evaluation sets: Dask collections, files and streams on the workers, tables in memory in this process."""
        found = ClusterEvalSets(self._calls)
        for name, (n_rows, _) in chosen.items():
            found.add_on_workers(name, n_rows)
        for one in sets:
            if not (one.table.is_source or is_stream(one.table.data)):
                found.add_table(one, spec, None, with_block=with_block)
                continue
            with named_in_messages(one.name):
                found.add_on_workers(one.name, self._load_eval_set(spec, one, with_block))
        return found

    def _load_eval_set(self, spec: BuildSpec, given: EvalTable, with_block: bool) -> int:
        """Load an evaluation set on the workers; return its number of rows of positive weight."""
        name = given.name
        tasks = ReadTasks(given.table.data, **given.table.reading, like=spec.binning.features, budget=spec.budget)
        table = PartitionedTable(self._connection, f"evaluation set {name!r}", tasks)
        load_partitions(table)
        table.apply(lambda _: partial(BatchRows.encode, target=spec.target))
        n = sum(table.n_kept.values())
        size = spec.loss_magnitude(max(stats.max_weight for stats in table.partition_stats), n)
        n_in_files = sum(table.build(Session.hold_out, lambda: (name, spec, size, with_block, False)))
        self._calls.watch(table)
        if n_in_files:
            log_streamed_eval_set(name)
        return n

    def observers(self, loss_name: str, n_rows: int, n_features: int) -> list[Callable[[Any], Any]]:
        events = FitEvents(self._connection, self.partitions)
        events.begin(loss_name, n_rows, n_features)
        return [events]

    def close(self) -> None:
        """Do nothing: `Connection` ends the fit on the workers."""


def load_partitions(table: PartitionedTable) -> tuple[Feature, ...]:
    """Read a table, check it, and set the final codes of categories; return the features.

    Raises
    ------
    DataError
        For invalid values, and for a table without rows.
    """
    try:
        table.load()
        features = _checked_features(table)
        mixed = table.source.plan.known is None and mixes_kinds(features)
    except ColumnKindsError:
        again = table.source.with_text()
        if again is None:
            raise
    else:
        again = table.source.with_text() if mixed else None
    if again is not None:
        table.load_again(again)
        features = _checked_features(table)
    table.set_features(features)
    if table.source.plan.known is None:
        warn_of_text(features, table.source.named, _category_kinds(table.partition_stats, len(features)))
    return features


def _category_kinds(stats: Sequence[PartitionStats], n_features: int) -> list[dict[str, int]]:
    """Return for each feature the first partition with categories of each kind."""
    found: list[dict[str, int]] = [{} for _ in range(n_features)]
    for one in stats:
        for of_all, of_session in zip(found, one.category_kinds, strict=True):
            for kind, i in of_session.items():
                of_all[kind] = min(i, of_all.get(kind, i))
    return found


def _checked_features(table: PartitionedTable) -> tuple[Feature, ...]:
    """Return the features of a table that has been read; raise a DataError for invalid values."""
    stats, plan = table.partition_stats, table.source.plan
    if not sum(table.lengths.values()):
        raise DataError(f"the data have no rows: all {table.source.n_parts} partitions are empty")
    raise_for_issues([issue for one in stats for issue in one.complaints])
    check_max_weight(max(one.max_weight for one in stats), plan.label("sample_weight"))
    scans = [(one.target, min(one.n_kept)) for one in stats if one.target is not None]
    kinds = {scan.categories is not None: (scan.categories is not None, number) for scan, number in scans}
    if len(kinds) == 2:
        raise disagree(str(plan.roles.get("target", "target")), kinds[False], kinds[True])
    return merge_features(plan, stats)


def merge_features(plan: ReadPlan, stats: Sequence[PartitionStats]) -> tuple[Feature, ...]:
    """Return the features, with the categories of all partitions.

    Raises
    ------
    DataError
        For a column with numbers in one partition and categories in another, naming both, or with too many categories.
    """
    if plan.known is not None and plan.closed:
        return plan.known
    features = []
    known = plan.known or (None,) * len(plan.specs)
    for j, spec in enumerate(plan.specs):
        found = (one.kinds[j] for one in stats)
        kinds = sorted({kind for kind in found if kind is not None}, key=lambda kind: kind[1])
        for kind in kinds[1:]:
            if kind[0] != kinds[0][0]:
                raise disagree(spec.name, kinds[0], kind)
        of_model = known[j]
        index = CategoryIndex(
            spec.name, None if of_model is None else of_model.categories, extend_categories=plan.extend_categories
        )
        for one in stats:
            index.translate(one.categories[j])
        categorical = spec.categorical or len(index)
        features.append(Feature(spec.name, index.finish()[0] if categorical else None))
    return tuple(features)
