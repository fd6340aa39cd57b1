"""A table on the cluster: the partitions of each worker, and recovery when workers are lost.

A `WorkerPartitions` record describes the partitions that a worker has read in one batch. All of them go through the same
stages: read, statistics collected, features set (final category codes), target encoded, built (into shards or evaluation sets).
When workers are lost, other workers read their partitions again and run the stages that the rest has completed. So callers of
`ask` need not handle losses; the number of losses without progress is limited (`cluster.client.attempts.Attempts`).

Changes of the rows that return nothing are not calls of their own: they are sent with the next call of the sessions.

A partition that is read again must be unchanged: a different number of rows or a different fingerprint of its values is an
error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dboost.cluster.client.connection import Connection
from dboost.cluster.partitions.read_tasks import ReadTasks, Receipt, rows_alone
from dboost.cluster.partitions.rebalance import is_for_one_worker, is_held, plan_moves, values_held
from dboost.cluster.transport.messages import LostWorkers, SessionRef, Step
from dboost.cluster.transport.split_proposals import choose_owners, propose_splits
from dboost.cluster.worker.host_trainers import HostWorkers, Member, SessionPlace, hand_over, plan_hand_over, trainers_of_folds
from dboost.config import imbalance, session_per_host
from dboost.data.columns.read_plan import ReadPlan
from dboost.data.kinds.frame import some_values
from dboost.data.tables.row_metadata import MetadataRows
from dboost.display import counted
from dboost.errors import DataError, DBoostError
from dboost.schema import Feature
from dboost.session.encoded_rows import row_bytes
from dboost.session.fit_records import BuildSpec, RowIdRanges
from dboost.session.memory import Budget
from dboost.session.partition_batch import PartitionStats
from dboost.session.row_samples import PerRow
from dboost.session.session import Session
from dboost.session.table_rows import TableRows

Result = TypeVar("Result")

_log = logging.getLogger("dboost")


@dataclass(eq=False)
class WorkerPartitions:
    """Partitions of one batch in one worker's session."""

    batch: str
    ref: SessionRef
    partition_ids: tuple[int, ...]
    stats: list[PartitionStats] = field(default_factory=list)  # of the sessions that have read the partitions
    stage: int = 0  # number of stages that have been completed
    is_handed_over: bool = False  # whether the rows are those of a trainer, and it has received those of the others


class Stage(NamedTuple):
    """A call of each session that has partitions of a batch."""

    method: Callable[..., Any]
    arguments: Callable[[Sequence[int]], tuple[Any, ...]]  # that follow the batch, given the partitions
    note: Callable[[WorkerPartitions, Any], None] | None = None  # receives the results; None if there are none


@dataclass(eq=False)
class PartitionedTable:
    """One table of a fit."""

    connection: Connection
    name: str
    source: ReadTasks
    worker_partitions: list[WorkerPartitions] = field(default_factory=list)
    lengths: dict[int, int] = field(default_factory=dict)  # number of rows by partition
    #: Stages in order, the first `_n_stages_sent` of which have been sent; partitions that are read again run them, too.
    stages: list[Stage] = field(default_factory=list)
    fingerprints: dict[int, int] = field(default_factory=dict)  # of values, by partition
    n_outputs: int = 1  # trees of an iteration, once they are known
    n_at_once: int = 1  # fits that run at the same time
    #: What shards are built with, if sessions hand their rows over to one session of their host
    #: (`cluster.worker.host_trainers`).
    host_spec: BuildSpec | None = None
    id_ranges: RowIdRanges = field(default_factory=partial(RowIdRanges, {}, 0))  # once the rows are numbered
    _n_trained: dict[int, int] | None = None
    _known: tuple[Feature, ...] | None = None
    _n_batches: int = 0
    #: Number of stages that have been sent. The others are sent with the next call.
    _n_stages_sent: int = 0
    #: The largest progress of loading so far: sum of stages over partitions.
    _best_progress: int = 0
    #: Memory that sessions have for rows (`PartitionStats.spare`).
    _spare: dict[SessionRef, Budget | None] = field(default_factory=dict)
    #: Sessions that train on the rows of their hosts.
    _trainers: set[SessionRef] = field(default_factory=set)

    # Stages.

    def load(self) -> None:
        """Read all partitions and collect their statistics."""
        self.stages += [Stage(Session.attach, partial(self._rows_of_role, role)) for role in self.source.whole]
        self.stages.append(Stage(Session.scan_partitions, lambda partition_ids: (partition_ids,), self._note_stats))
        self.complete()

    def load_again(self, source: ReadTasks) -> None:
        """Read all partitions by other tasks, after `load`, also if that failed."""
        for number in range(1, self._n_batches + 1):
            self.connection.discard(f"{self.name}/{number}")
        self.source, self.worker_partitions, self.stages = source, [], []
        self.lengths, self.fingerprints = {}, {}
        self._best_progress = self._n_stages_sent = 0
        self.load()

    def set_features(self, features: tuple[Feature, ...]) -> None:
        """Set the features of the table, with the final codes of categories."""
        self._known = features
        self.stages.append(Stage(Session.set_features, lambda partition_ids: (features, self.source.named)))

    def change(self, step: Callable[..., None], *arguments: Any) -> None:
        """Change the rows in all sessions before their next call, and in those that read partitions again later."""
        ranges = self.id_ranges.ranges

        def of_session(partition_ids: Sequence[int]) -> tuple[Any, ...]:
            session_arguments = [
                argument.of_partitions([ranges[i] for i in partition_ids]) if isinstance(argument, PerRow) else argument
                for argument in arguments
            ]
            return step, tuple(session_arguments)

        self.stages.append(Stage(Session.change, of_session))

    def number(self, n_kept: dict[int, int]) -> None:
        """Number the rows, once they are read and again once rows have been held out. n_kept : training rows by partition."""
        self._n_trained, self.id_ranges = n_kept, RowIdRanges.of(n_kept)
        self.change(TableRows.set_row_ids, self.id_ranges)

    def complete(self) -> None:
        """Make the changes now that would be made with the next call."""
        self._n_stages_sent = len(self.stages)
        self.repair()

    def build(self, method: Callable[..., Result], arguments: Callable[[], tuple[Any, ...]]) -> list[Result]:
        """Build shards or evaluation sets, and return the results of the method in all sessions.

        arguments : returns the arguments; called again for partitions that are read later.
        """
        results: dict[WorkerPartitions, Result] = {}
        self.stages.append(Stage(method, lambda partition_ids: arguments(), results.__setitem__))
        self.complete()
        return [results[entry] for entry in self.worker_partitions]

    # State.

    @property
    def threads(self) -> dict[str, int]:
        """Threads of the workers that get rows, by address: of all usable ones, or of one of each host for folds."""
        n_threads = self.connection.workers.n_threads
        if self.n_at_once == 1 or self.source.memory_limit or not session_per_host():
            return n_threads
        n_rows, limits = self.source.n_rows or sum(self.lengths.values()), self.connection.workers.memory_limits
        n_held = values_held(n_rows, len(self.source.plan.specs), self.n_at_once)
        places = {
            worker: (self.connection.workers.host_of(worker), self.connection.workers.processors_of(worker))
            for worker in n_threads
        }

        def has_room(worker: str, share: float) -> bool:
            return worker in limits and is_held(int(n_held * share), limits[worker])

        return trainers_of_folds(n_threads, places, has_room, {entry.ref.worker for entry in self.worker_partitions})

    @property
    def sessions(self) -> list[SessionRef]:
        """Sessions that hold partitions with rows."""
        return sorted({entry.ref for entry in self.worker_partitions if any(self.lengths[i] for i in entry.partition_ids)})

    @property
    def partition_stats(self) -> list[PartitionStats]:
        """Statistics from all workers, in the order of their first partitions."""
        return [stats for entry in sorted(self.worker_partitions, key=lambda s: s.partition_ids) for stats in entry.stats]

    @property
    def n_kept(self) -> dict[int, int]:
        """Rows of positive weight of each partition, in order."""
        if self._n_trained is not None:
            return self._n_trained
        n_rows = {i: n for stats in self.partition_stats for i, n in stats.n_kept.items()}
        return dict(sorted(n_rows.items()))

    def rows_of_sessions(self, entries: Sequence[WorkerPartitions] | None = None) -> dict[SessionRef, int]:
        """Return the number of rows of positive weight of each session. entries : default None, all of them."""
        kept, n_rows = self.n_kept, dict[SessionRef, int]()
        for entry in self.worker_partitions if entries is None else entries:
            n_rows[entry.ref] = n_rows.get(entry.ref, 0) + sum(kept[i] for i in entry.partition_ids)
        return n_rows

    def where(self, row: int) -> str:
        """Return the position of a row of the whole table, for messages."""
        partition_ids = sorted(self.lengths)
        return str(MetadataRows(tuple(self.lengths[i] for i in partition_ids), True).place(row))

    def ask(self, question: Callable[..., Result], *arguments: Any) -> list[Result]:
        """Return the answers of all sessions, in no particular order."""
        asking = Stage(Session.ask, lambda _: (question, arguments))

        def ask() -> list[Result]:
            answers = self._call_each(self.worker_partitions, [*self.stages[self._n_stages_sent :], asking])
            return [answer for _, answer in answers]

        return self._call_all(question.__name__, ask)

    def propose(self, seed: int, columns: tuple[int, int], max_bins: int) -> list[np.ndarray]:
        """Return the split candidates of a range of the numeric columns, see `transport.split_proposals`."""
        # Changes are not sent with this call: a session whose change failed would keep others waiting for its values.
        self.complete()

        def ask() -> list[np.ndarray]:
            batches: dict[SessionRef, list[str]] = {}
            for entry in self.worker_partitions:
                batches.setdefault(entry.ref, []).append(entry.batch)
            order = choose_owners(sorted(batches), sum(self.n_kept.values()), columns[1] - columns[0], max_bins)
            draws = {ref: ((names, seed, columns), order) for ref, names in batches.items()}
            answers = self.connection.ask_each(draws, propose_splits)
            return [edges for owner in order.owners for edges in answers[owner]]

        return self._call_all(TableRows.proposal_sample.__name__, ask)

    def _call_all(self, name: str, ask: Callable[[], Result]) -> Result:
        """Return the result of calls of all sessions that make the changes not sent yet, too; see `with_recovery`."""
        answers = with_recovery([self], name, ask)
        self._n_stages_sent = len(self.stages)
        for entry in self.worker_partitions:
            entry.stage = self._n_stages_sent
        return answers

    # Loss and repair.

    def drop_workers(self, refs: Iterable[SessionRef]) -> None:
        """Remove the partitions of lost sessions, and report those that had some."""
        lost_refs = set(refs)
        for ref in sorted(lost_refs):
            partition_ids = [i for entry in self.worker_partitions if entry.ref == ref for i in entry.partition_ids]
            if partition_ids:
                self.connection.report_loss(ref, self.name, len(partition_ids), sum(self.lengths[i] for i in partition_ids))
        self.worker_partitions = [entry for entry in self.worker_partitions if entry.ref not in lost_refs]

    def repair(self) -> bool:
        """Read missing partitions and run their missing stages. Return whether there were any."""
        repaired = False
        while True:
            present = {i for entry in self.worker_partitions for i in entry.partition_ids}
            missing = [i for i in range(self.source.n_partitions) if i not in present]
            behind = [entry for entry in self.worker_partitions if entry.stage < self._n_stages_sent]
            if not missing and not behind:
                return repaired
            repaired = True
            try:
                if missing:
                    behind += self._read(missing)
                self._run_stages(behind)
            except LostWorkers as lost:
                self.drop_workers(lost.sessions)
                progress = sum(len(entry.partition_ids) * (1 + entry.stage) for entry in self.worker_partitions)
                if progress > self._best_progress:
                    self._best_progress = progress
                    self.connection.attempts.reset(f"more partitions of the {self.name} than before were ready")
                self.connection.attempts.note(f"loading the {self.name}", lost)

    def reassign(self, worker_partitions: list[WorkerPartitions]) -> None:
        """Move partitions to the workers that have read them again; the previous owners drop them.

        When workers are lost meanwhile, the move is abandoned, or the lost partitions are missing until the next `repair`. No
        row is counted twice.
        """
        try:
            self._run_stages(worker_partitions)
        except LostWorkers as lost:
            self.drop_workers(lost.sessions)
            self._keep_only([entry for entry in worker_partitions if entry.ref not in lost.sessions], set())
            return
        moved = {i for entry in worker_partitions for i in entry.partition_ids}
        givers = [entry for entry in self.worker_partitions if moved & set(entry.partition_ids)]
        self.worker_partitions += worker_partitions
        for giver in givers:
            self._keep_only([giver], set(giver.partition_ids) - moved)
        self.worker_partitions = [entry for entry in self.worker_partitions if entry.partition_ids]

    def _keep_only(self, givers: list[WorkerPartitions], partition_ids: set[int]) -> None:
        """Have workers drop all but these partitions."""
        for entry in givers:
            entry.partition_ids = tuple(sorted(partition_ids))
        while givers:
            try:
                self._call_each(givers, [Stage(Session.keep_only, lambda partition_ids: (partition_ids,))])
                return
            except LostWorkers as lost:  # their rows are gone, too
                self.drop_workers(lost.sessions)
                givers = [entry for entry in givers if entry.ref not in lost.sessions]

    def _run_stages(self, behind: list[WorkerPartitions]) -> None:
        """Run the missing stages. Those without results are sent with the next one."""
        while due := [entry for entry in behind if entry.partition_ids and entry.stage < self._n_stages_sent]:
            first = min(entry.stage for entry in due)
            due = [entry for entry in due if entry.stage == first]
            with_results = (k for k in range(first, self._n_stages_sent) if self.stages[k].note is not None)
            end = next(with_results, self._n_stages_sent - 1) + 1
            stages, note = self.stages[first:end], self.stages[end - 1].note
            if self.host_spec is not None and stages[-1].method is Session.build:
                due = self._hand_over(due, stages[:-1], self.host_spec)
                stages = [Stage(Session.accept, lambda partition_ids: (partition_ids,)), stages[-1]]
            for entry, result in self._call_each(due, stages, self._threads_of_folds() if first == 0 else {}):
                if note is not None:
                    note(entry, result)
            for entry in due:
                entry.stage = end

    def _threads_of_folds(self) -> dict[str, Step]:
        """Return for each worker the call that sets the threads of a session if fits at the same time share the worker."""
        if self.n_at_once == 1:
            return {}
        threads, steps = self.threads, dict[str, Step]()
        is_whole = len(threads) == 1 or self.single_worker(threads) is not None
        n_sharing = self.n_sharing(len(threads)) if is_whole else 1
        for worker, together in threads.items():
            n_threads = max(together // n_sharing, 1)
            steps[worker] = Session.use_threads.__name__, (n_threads, max(together // n_threads, 1))
        return steps

    # Rows of a host.

    def _hand_over(self, due: list[WorkerPartitions], before: Sequence[Stage], spec: BuildSpec) -> list[WorkerPartitions]:
        """Have sessions hand over rows that are about to be built, see `cluster.worker.host_trainers`; return the remaining
        entries.

        before : stages that are still missing. They are completed first: a session in which one failed would keep others
        waiting.
        """
        if before:
            self._call_each(due, before)
        for entry in due:
            entry.stage += len(before)
        self.connection.refresh_workers(recent=True)
        waiting = [entry for entry in due if not entry.is_handed_over]
        built = self.rows_of_sessions([entry for entry in self.worker_partitions if entry.stage == self._n_stages_sent])
        for batch in sorted({entry.batch for entry in waiting}):
            entries = {entry.ref: entry for entry in waiting if entry.batch == batch}
            workers = self._host_workers()
            plan = plan_hand_over(self._members(entries, spec, built, workers), workers, row_bytes(spec.shard_spec))
            if plan.orders:
                self.connection.ask_each({ref: (batch, spec, order) for ref, order in plan.orders.items()}, hand_over)
            due += self._move_entries(batch, entries, plan.trainers)
        self.worker_partitions = [entry for entry in self.worker_partitions if entry.partition_ids]
        return [entry for entry in due if entry.partition_ids]

    def _members(
        self,
        entries: Mapping[SessionRef, WorkerPartitions],
        spec: BuildSpec,
        built: Mapping[SessionRef, int],
        workers: HostWorkers,
    ) -> dict[SessionRef, Member]:
        """Return the sessions whose rows may be handed over, and trainers of their hosts that have read nothing of the batch.

        built : number of rows that are built in each session.
        """
        kept, members = self.n_kept, dict[SessionRef, Member]()

        def member(ref: SessionRef, partition_ids: Sequence[int], *, has_read: bool) -> Member:
            processors = self.connection.workers.processors_of(ref.worker)
            place = SessionPlace.of(self._spare[ref], spec.shard_spec, built.get(ref, 0), processors)
            n_rows, n_kept = sum(self.lengths[i] for i in partition_ids), sum(kept[i] for i in partition_ids)
            return Member(n_rows, workers.hosts.get(ref.worker), place, has_read, n_kept)

        for ref, entry in entries.items():
            members[ref] = member(ref, entry.partition_ids, has_read=True)
        hosts = {known.host for known in members.values()} - {None}
        for trainer in workers.trainers - set(entries):
            if workers.hosts.get(trainer.worker) in hosts:
                members[trainer] = member(trainer, (), has_read=False)
        return members

    def _host_workers(self) -> HostWorkers:
        """Return the usable workers by host."""
        known = self.connection.workers
        hosts = {worker: known.host_of(worker) for worker in known.usable}
        trainers = frozenset(self._trainers.intersection(self.sessions))
        return HostWorkers(known.n_threads, hosts, trainers, known.n_fits, self.connection.number)

    def _move_entries(
        self, batch: str, entries: dict[SessionRef, WorkerPartitions], trainers: Mapping[SessionRef, SessionRef]
    ) -> list[WorkerPartitions]:
        """Give trainers the partitions that were handed over to them; return the entries of trainers that had none."""
        self._trainers |= set(trainers.values())
        new = []
        for ref, trainer in trainers.items():
            if trainer not in entries:
                entries[trainer] = WorkerPartitions(batch, trainer, (), stage=entries[ref].stage)
                new.append(entries[trainer])
            entries[trainer].is_handed_over = True
        self.worker_partitions += new
        givers = [entries[ref] for ref, trainer in trainers.items() if ref != trainer]
        for giver in givers:
            taker = entries[trainers[giver.ref]]
            taker.partition_ids, taker.stats = (
                tuple(sorted((*taker.partition_ids, *giver.partition_ids))),
                [*taker.stats, *giver.stats],
            )
            giver.partition_ids = ()
        if givers:
            self.connection.discard(batch, [giver.ref.worker for giver in givers])
        return new

    def has_trainer_beside(self, worker: str) -> bool:
        """Return whether a session on the worker's host trains on the rows of this host."""
        host = self.connection.workers.host_of(worker)
        trainers = self._trainers.intersection(self.sessions)
        return host is not None and any(self.connection.workers.host_of(ref.worker) == host for ref in trainers)

    def _read(self, partition_ids: list[int]) -> list[WorkerPartitions]:
        batch = self.new_batch()
        self.connection.refresh_workers(recent=True)
        readers = None if self.threads == self.connection.workers.n_threads else [*self.threads]
        single = self._known_single_worker()
        if readers is not None and single is not None:
            readers = [single]
        receipts = self.source.read(self.connection, batch, partition_ids, self.plan(), readers, preferred=single)
        self.check_again(receipts)
        self.lengths |= {receipt.number: receipt.n_rows for receipt in receipts}
        by_session: dict[SessionRef, list[int]] = {}
        for i, ref in self._balance(batch, {receipt.number: receipt.ref for receipt in receipts}).items():
            by_session.setdefault(ref, []).append(i)
        worker_partitions = [WorkerPartitions(batch, ref, tuple(sorted(mine))) for ref, mine in by_session.items()]
        self.worker_partitions += worker_partitions
        if readers is not None:
            self._trainers |= {ref for ref in by_session if ref.worker in self.threads}
        return worker_partitions

    def check_again(self, receipts: Iterable[Receipt]) -> None:
        """Raise DataError for partitions whose number of rows has changed since they were first read."""
        for receipt in receipts:
            before = self.lengths.get(receipt.number, receipt.n_rows)
            if receipt.n_rows != before:
                raise self._source_changed(receipt.number, f"{receipt.n_rows} rows where it had {before}")

    def _source_changed(self, i: int, change: str) -> DataError:
        return DataError(
            f"partition {i} of the {self.name} was read again because workers have left or joined, and gave {change}: a source "
            "must give the same rows every time (no sample without a seed, no query without an order, no files that change)"
        )

    def _balance(self, batch: str, owners: dict[int, SessionRef]) -> dict[int, SessionRef]:
        """Move partitions of a new batch to balance the workers; return the session of each partition."""
        self.connection.refresh_workers(recent=True)
        n_threads = self.threads
        addresses = {i: ref.worker for i, ref in owners.items()}
        single = self.single_worker(n_threads)
        if single is not None:
            if len(n_threads) > 1:
                _log.info("%s: a small table, so worker %s gets all rows (dboost.single-worker-values)", self.name, single)
                if self._n_batches == 1:  # not when partitions are read again
                    where = f"one of {counted(len(n_threads), 'worker')} gets all rows (dboost.single-worker-values)"
                    self.connection.progress.write(f"the {self.name}: a small table, so {where}")
            moves = {i: single for i, worker in addresses.items() if worker != single}
        elif n_threads:
            held = self._held_rows(n_threads)
            moves = plan_moves(addresses, self.lengths, n_threads, held, imbalance(self.source.is_persisted))
        else:
            moves = {}
        calls: dict[str, list[tuple[int, SessionRef]]] = {}
        for i, taker in moves.items():
            calls.setdefault(taker, []).append((i, owners[i]))
        if not calls:
            return owners
        try:
            sessions = self.connection.move(batch, self.source.packed(self.plan()), calls)
        except LostWorkers:  # during the moves: the whole batch is read again, under another name
            self.connection.remove_unresponsive()  # an unresponsive worker must not receive the same partitions again
            self.connection.discard(batch)
            raise
        after = owners | {i: sessions[taker] for i, taker in moves.items()}
        # Owners that have given away all of their partitions would keep them until the fit ends.
        empty = {ref.worker for ref in owners.values()} - {ref.worker for ref in after.values()}
        if empty:
            self.connection.discard(batch, sorted(empty))
        return after

    def _held_rows(self, n_threads: Mapping[str, int]) -> dict[str, int]:
        """Return the rows of each worker; those of a trainer count for all workers of its host, whose threads it uses."""
        n_held = dict.fromkeys(n_threads, 0)
        for entry in self.worker_partitions:
            n_rows = sum(self.lengths[i] for i in entry.partition_ids)
            sharing = self.workers_of(entry.ref) & set(n_threads)
            together = sum(n_threads[worker] for worker in sharing)
            for worker in sharing:
                n_held[worker] += n_rows * n_threads[worker] // together
        return n_held

    def workers_of(self, ref: SessionRef) -> set[str]:
        """Return the usable workers that a session trains for: those of its host if it is a trainer, else its own."""
        if ref not in self._trainers:
            return {ref.worker}
        host = self.connection.workers.host_of(ref.worker)
        return {ref.worker} | {
            worker for worker in self.connection.workers.n_threads if self.connection.workers.host_of(worker) == host
        }

    def single_worker(self, n_threads: Mapping[str, int]) -> str | None:
        """Return the worker that gets all partitions of a small table (see `rebalance.is_for_one_worker`), else None.

        Fits take turns with the workers, so that fits at the same time have different ones. Once a worker has rows, it is this
        one. n_threads : of the usable workers.
        """
        return self._single_worker_for(sum(self.lengths.values()), n_threads)

    def _known_single_worker(self) -> str | None:
        """Return the worker that gets all partitions, if it is known before they are read that the table is small.

        Then they need not be moved. Partitions that have to be computed are computed on all workers, and moved.
        """
        if self.source.n_rows is None or self.source.is_lazy:
            return None
        self.connection.refresh_workers(recent=True)
        return self._single_worker_for(self.source.n_rows, self.threads)

    def _single_worker_for(self, n_rows: int, n_threads: Mapping[str, int]) -> str | None:
        """See `single_worker`."""
        limits, fit_limit = self.connection.workers.memory_limits, self.source.memory_limit
        n_values = n_rows * len(self.source.plan.specs)
        n_held = values_held(n_rows, len(self.source.plan.specs), self.n_sharing(len(n_threads)))
        fitting = sorted(
            worker
            for worker, n in n_threads.items()
            if worker in limits
            and (is_held(n_values, fit_limit) if fit_limit else is_held(n_held, limits[worker]))
            and is_for_one_worker(n_values, self.n_outputs, n, len(n_threads), self.n_at_once)
        )
        with_rows = {entry.ref.worker for entry in self.worker_partitions}
        candidates = [worker for worker in fitting if worker in with_rows] or fitting
        return candidates[self.connection.number % len(candidates)] if candidates else None

    def n_sharing(self, n_workers: int) -> int:
        """Return how many of the fits at the same time are on a worker, if each is on one of `n_workers`."""
        return -(-self.n_at_once // max(n_workers, 1))

    @property
    def has_single_worker(self) -> bool:
        """Whether one worker has the rows of a small table, and is to have them.

        With several outputs the work of an iteration may be worth more workers; these are known only after loading.
        """
        return len(self.sessions) == 1 and self.single_worker(self.threads) is not None

    @property
    def is_whole(self) -> bool:
        """Whether one session has all rows, and is to have them: those of a small table, or of the only host."""
        is_only_host = len(self.sessions) == 1 and all(map(self.has_trainer_beside, self.connection.workers.n_threads))
        return self.has_single_worker or is_only_host

    def new_batch(self) -> str:
        """Return a unique name for a batch of this fit."""
        self._n_batches += 1
        return f"{self.name}/{self._n_batches}"

    def plan(self) -> ReadPlan:
        """Return the plan for reading: the user's, once the features are set with their categories."""
        return (
            self.source.plan if self._known is None else replace(self.source.plan, known=self._known, extend_categories=False)
        )

    def _rows_of_role(self, role: str, partition_ids: Sequence[int]) -> tuple[str, dict[int, Any]]:
        """Return a role that the user gave as an array of all rows, and its values in some partitions."""
        values, known = self.source.whole[role], sorted(self.lengths)
        ends = dict(zip(known, np.cumsum([self.lengths[i] for i in known]).tolist(), strict=True))
        if len(values) != ends[known[-1]]:
            raise DataError(f"{role} has {len(values)} rows, the data have {ends[known[-1]]}")
        filled = [i for i in partition_ids if self.lengths[i]]
        return role, {i: rows_alone(some_values(values, ends[i] - self.lengths[i], ends[i])) for i in filled}

    def _note_stats(self, entry: WorkerPartitions, stats: PartitionStats) -> None:
        entry.stats = [stats]
        self._spare[entry.ref] = stats.spare
        for i, fingerprint in stats.fingerprints.items():
            if self.fingerprints.setdefault(i, fingerprint) != fingerprint:
                raise self._source_changed(i, "other values")

    def _call_each(
        self,
        worker_partitions: list[WorkerPartitions],
        stages: Sequence[Stage],
        arguments_by_worker: Mapping[str, Step] | None = None,
    ) -> list[tuple[WorkerPartitions, Any]]:
        """Make one call per batch, because a session may have partitions of several; return the results of the last stage.

        arguments_by_worker : a call that comes first, by the address of the worker.
        Of the errors of rows in several batches that of the first row is raised, see `cluster.transport.messages.Failures`.
        """
        *before, last = stages
        arguments_by_worker = {} if arguments_by_worker is None else arguments_by_worker
        results, first = [], None
        for batch in sorted({entry.batch for entry in worker_partitions}):
            entry_by_session = {entry.ref: entry for entry in worker_partitions if entry.batch == batch}
            calls = {ref: (batch, *last.arguments(entry.partition_ids)) for ref, entry in entry_by_session.items()}
            steps = {
                ref: [*([arguments_by_worker[ref.worker]] if ref.worker in arguments_by_worker else []), *_steps(before, entry)]
                for ref, entry in entry_by_session.items()
            }
            try:
                answers = self.connection.ask_each(calls, last.method, steps)
            except DBoostError as error:
                if error.position is None:
                    raise
                first = error if first is None else min(first, error, key=lambda failure: failure.position or ())
            else:
                results += [(entry_by_session[ref], answer) for ref, answer in answers.items()]
        if first is not None:
            raise first
        return results


def _steps(stages: Sequence[Stage], entry: WorkerPartitions) -> list[Step]:
    """Return the calls of stages in a session."""
    return [(stage.method.__name__, (entry.batch, *stage.arguments(entry.partition_ids))) for stage in stages]


def with_recovery(tables: Sequence[PartitionedTable], name: str, call: Callable[[], Result]) -> Result:
    """Repeat a call until it completes without the loss of a worker; lost partitions of these tables are read again before.

    name : of the call, for messages.
    """
    while True:
        for table in tables:
            table.repair()
        try:
            return call()
        except LostWorkers as lost:
            for table in tables:
                table.drop_workers(lost.sessions)
            tables[0].connection.attempts.note(name, lost)
