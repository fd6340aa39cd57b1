"""A table of a fit as the coordinator uses it, and the transport for a single session in this process.

A `SessionTable` calls methods of `session.protocol.Session` in all sessions and returns their results; the coordinator
(`training.fit.SessionRows`) merges them. A fit in this process has one session, which `LocalTable` calls directly. On
a cluster the calls are messages to workers, which may be lost and replaced (`distributed.partitioned_table.PartitionedTable`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from dboost.data import Table
from dboost.schema import Feature
from dboost.session.engines import FusedEngine, Team, choose_threads, is_small
from dboost.session.evaluation import EvalRows, EvalSet, EvalSetBuilder, StreamedEvalSet, log_streamed_eval_set
from dboost.session.memory_budget import Budget
from dboost.session.partition_loader import is_unit, scan_targets
from dboost.session.protocol import BuildSpec, Engine, Session
from dboost.session.target import TargetScan
from dboost.session.worker_session import WorkerSession
from dboost.trees.nodes import GrowthPolicy

P = ParamSpec("P")
Result = TypeVar("Result")
#: Returns the arguments of a call, given the partitions of the session.
ByPartitions = Callable[[Sequence[int]], tuple[Any, ...]]
#: (name, data, target, weight, offset) of an evaluation set.
NamedSet = tuple[str, Any, Any, Any, Any]

_log = logging.getLogger("dboost")


class SessionTable(Protocol):
    """A table of a fit whose rows are in sessions."""

    @property
    def named(self) -> bool:
        """Whether the data have column names."""

    @property
    def n_kept(self) -> dict[int, int]:
        """Number of rows of positive weight of each partition, in order."""

    @property
    def unit_weights(self) -> bool:
        """Whether all weights are 1 (or 0)."""

    def load(self) -> tuple[Feature, ...]:
        """Read and validate the table, and return its features."""

    def target_scans(self) -> list[TargetScan]:
        """Return the target scans of all partitions."""

    def ask(self, method: Callable[Concatenate[Session, str, P], Result], *arguments: P.args, **none: P.kwargs) -> list[Result]:
        """Call a method in all sessions, and return its results."""

    def ask_each(self, method: Callable[..., Result], arguments: ByPartitions) -> list[Result]:
        """Do the same with arguments that depend on the partitions of the session."""

    def apply(self, method: Callable[..., None], arguments: ByPartitions) -> None:
        """Call a method in all sessions now, and in sessions that read partitions again later."""

    def note_assigned(self, n_kept: dict[int, int], unit_weights: bool) -> None:
        """Store the number of training rows of each partition, and whether all weights are 1."""

    def note_progress(self, what: str) -> None:
        """Record that the fit has advanced; this resets the count of attempts to replace lost sessions."""

    def most_rows(self) -> int:
        """Return the number of rows of positive weight in the session with the most rows."""

    def refuse_values(self, name: str) -> None:
        """Raise ParameterError if a metric that needs the raw values of all rows cannot be computed."""

    def open_engine(self, spec: BuildSpec, policy: GrowthPolicy) -> Engine:
        """Build the shards, and return the engine that trains on them."""

    def eval_sets(
        self, spec: BuildSpec, chosen: dict[str, tuple[int, float]], sets: Sequence[NamedSet], *, with_block: bool
    ) -> list[EvalSet]:
        """Return the evaluation sets: those of chosen rows (number and largest weight by name), then the given ones."""

    def hold_out_chosen(self, spec: BuildSpec, chosen: dict[str, tuple[int, float]], *, with_block: bool) -> None:
        """Build evaluation sets from the chosen rows; must be called before the shards are built."""

    def observers(self, loss_name: str, n_rows: int, n_features: int) -> list[Callable[[Any], Any]]:
        """Return callbacks that report the progress of the fit to the cluster."""

    def close(self) -> None:
        """Release threads, memory and files."""


class LocalTable:
    """A table in this process: one session, called directly.

    Parameters
    ----------
    open_table : callable
        Reads the table.
    n_threads : int
    budget : Budget or None
        Memory that the fit may add to this process.
    """

    _BATCH = "training data"

    def __init__(self, open_table: Callable[[], Table], n_threads: int, budget: Budget | None) -> None:
        self._open_table, self._n_threads, self._budget = open_table, n_threads, budget
        self._chosen: dict[str, EvalSet] = {}
        self._assigned: tuple[dict[int, int], bool] | None = None

    def load(self) -> tuple[Feature, ...]:
        table = self._table = self._open_table()
        n_threads = choose_threads(table.n_rows, len(table.features), self._n_threads)
        self._team = Team(n_threads, in_caller=is_small(table.n_rows, len(table.features)))
        self._session = WorkerSession(self._n_threads)
        self._session.adopt(self._BATCH, table)
        self._builder = EvalSetBuilder(self._team)
        return table.features

    @property
    def named(self) -> bool:
        return self._table.named

    @property
    def n_kept(self) -> dict[int, int]:
        if self._assigned is None:
            rows = self._session.rows_of(self._BATCH)
            self._assigned = {i: rows.kept_of(k) for k, i in enumerate(rows.table.numbers)}, self._has_unit_weights(rows.table)
        return self._assigned[0]

    @property
    def unit_weights(self) -> bool:
        assert self.n_kept is not None and self._assigned is not None
        return self._assigned[1]

    @staticmethod
    def _has_unit_weights(table: Table) -> bool:
        return all(is_unit(table, k) for k, n in enumerate(table.lengths) if n)

    def target_scans(self) -> list[TargetScan]:
        return scan_targets(self._table)

    def ask(self, method: Callable[Concatenate[Session, str, P], Result], *arguments: P.args, **none: P.kwargs) -> list[Result]:
        return [getattr(self._session, method.__name__)(self._BATCH, *arguments)]

    def ask_each(self, method: Callable[..., Result], arguments: ByPartitions) -> list[Result]:
        return [getattr(self._session, method.__name__)(self._BATCH, *arguments(self._table.numbers))]

    def apply(self, method: Callable[..., None], arguments: ByPartitions) -> None:
        self.ask_each(method, arguments)

    def note_assigned(self, n_kept: dict[int, int], unit_weights: bool) -> None:
        self._assigned = n_kept, unit_weights

    def note_progress(self, what: str) -> None:
        """Do nothing; the session of this process cannot be lost."""

    def most_rows(self) -> int:
        return sum(self.n_kept.values())

    def refuse_values(self, name: str) -> None:
        """Accept every metric: all rows are in this process."""

    def hold_out_chosen(self, spec: BuildSpec, chosen: dict[str, tuple[int, float]], *, with_block: bool) -> None:
        for name in chosen:
            rows, chosen_rows = self._session.take_chosen(self._BATCH, name)
            eval_rows = EvalRows(rows.table, rows.target_of, *chosen_rows)
            self._chosen[name] = found = self._builder.from_rows(name, eval_rows, spec, self._budget, with_block=with_block)
            if isinstance(found, StreamedEvalSet):
                log_streamed_eval_set(name)

    def open_engine(self, spec: BuildSpec, policy: GrowthPolicy) -> Engine:
        engine = self._session.open_engine(self._BATCH, spec, policy)
        if (
            not isinstance(engine, FusedEngine)
            and self._budget is not None
            and not self._budget.holds_rows(spec.shard, engine.n_rows, self._n_threads)
        ):
            how = "streamed from" if spec.n_bites is None else "divided into bites in"
            _log.info("%d rows do not fit memory_limit=%s and are %s files", engine.n_rows, self._budget, how)
        return engine

    def eval_sets(
        self, spec: BuildSpec, chosen: dict[str, tuple[int, float]], sets: Sequence[NamedSet], *, with_block: bool
    ) -> list[EvalSet]:
        found = [self._chosen[name] for name in chosen]
        for name, data, *columns in sets:
            of = (columns[0], columns[1], columns[2])
            found.append(self._builder.from_data(name, data, of, spec, self._budget, with_block=with_block))
        return found

    def observers(self, loss_name: str, n_rows: int, n_features: int) -> list[Callable[[Any], Any]]:
        return []

    def close(self) -> None:
        if hasattr(self, "_session"):
            self._session.close()
            self._team.close()
