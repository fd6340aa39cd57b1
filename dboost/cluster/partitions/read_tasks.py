"""The user's data as Dask tasks that read one partition each.

Dask schedules the tasks: a task depends on its source partition, runs on a worker that has it (or on a free one), stores the
partition in the worker's session, and returns a receipt. The worker that ran the task owns the partition. The client keeps the
lazy graph, so that another worker can read the partitions of a lost one again.

A row group of a Parquet file that exceeds its share of a memory limit is several partitions, and one task reads them in order:
it decodes the row group once. Rebalancing moves the partitions to other workers, which do not read the file then.

Data in the client's memory are split into partitions, which are sent with their tasks.
"""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from typing import Any, Self

import numpy as np
from distributed import Client, Future, get_worker

from dboost._lazy_import import is_a, pa
from dboost.cluster.client.client_loss import lost_client
from dboost.cluster.client.connection import Connection
from dboost.cluster.transport.messages import READING, SessionRef, pack, unpack
from dboost.cluster.worker.worker_plugin import task_session
from dboost.config import liveness_timeout, without_graph_warning, worker_timeout
from dboost.data.columns.chunk import is_masked
from dboost.data.columns.read_plan import ReadPlan
from dboost.data.columns.sparse import is_sparse_matrix
from dboost.data.kinds.frame import Frame
from dboost.data.kinds.partition import check_columns
from dboost.data.kinds.table_kinds import as_frame, is_dask, library
from dboost.data.sources import Parts, ReadCount
from dboost.data.sources.stored_stream import StoredStream, stored
from dboost.data.tables.dask_collections import in_place, roles_in
from dboost.data.tables.reading import GivenTable, Reading, plan_reading
from dboost.errors import DataError, DBoostError, ParameterError, is_out_of_descriptors, out_of_descriptors
from dboost.session.memory import Budget, format_bytes
from dboost.tuning import adopt, for_workers, tuning
from dboost.version import __version__

#: Dask priority of read tasks, above that of the user's tasks.
_PRIORITY = 10
#: Name of the table of a fit, which errors do not repeat.
TRAINING_DATA = "training data"
#: Largest plan, in bytes, that is part of every task; a larger one gets a task of its own.
_MAX_PLAN_BYTES = 32 * 1024
#: How often tasks are submitted if unusable workers join.
_MAX_SUBMISSIONS = 10
_submissions = count()


@dataclass(frozen=True)
class Receipt:
    """The result of a read task."""

    number: int
    n_rows: int
    ref: SessionRef


@dataclass(frozen=True, eq=False)
class PartitionTasks:
    """The tasks that supply the partitions of a table, without reading them."""

    graph: dict[Any, Any]
    #: For each partition the key or task of the tuple of its table and of the roles that are separate collections.
    bundles: list[Any]
    #: Names of these roles.
    filled: tuple[str, ...] = ()
    #: Number of rows, if it is known before they are read.
    n_rows: int | None = None
    #: Roles that the user gave as arrays of all rows, by name.
    whole: Mapping[str, Any] = field(default_factory=dict)
    #: Bytes of the partitions in their files; None if they are unknown.
    sizes: Mapping[int, int] | None = None
    #: The partitions in files, if neighbours may have something in common.
    parts: Parts | None = None
    #: The partitions of a stream, unless it is small.
    stored: StoredStream | None = None
    #: The Dask collection with all its columns, if some are selected.
    unselected: Any = None


def tasks_of(reading: Reading, n_partitions: int = 1) -> PartitionTasks:
    """Return the tasks that supply the rows of a reading; n_partitions : number of partitions for data in memory."""
    if reading.read_as == "files":
        files = reading.rows
        tasks = _tasks_of_collection(files.lazy(), reading)
        runs = files.read_in_order is not None and not tasks.filled  # a task reads a partition with its roles
        return replace(tasks, sizes=files.sizes, parts=files if runs else None)
    if reading.read_as == "dask":
        return _tasks_of_collection(reading.rows, reading)
    if reading.read_as == "stream":
        return _tasks_of_stream(reading, n_partitions)
    assert reading.frame is not None
    return _tasks_of_frame(reading.rows, reading.frame, reading, n_partitions)


def _tasks_of_collection(data: Any, reading: Reading) -> PartitionTasks:
    """Return the tasks of a Dask collection, of which the columns are selected that are read."""
    from dboost.data.tables import dask_collections  # for the client only

    whole = {role: values for role, values in reading.separate.items() if not is_dask(values)}
    aligned = {role: values for role, values in reading.separate.items() if is_dask(values)}
    n_rows, unselected = dask_collections.known_length(data), None
    if not reading.named:
        data = dask_collections.whole_rows(data)
    elif reading.plan.all_names is None:
        unselected = data
        data = dask_collections.select(data, reading.plan.needed)
    graph, bundles = dask_collections.bundled(data, aligned)
    return PartitionTasks(graph, bundles, roles_in(aligned), n_rows, whole, unselected=unselected)


def _tasks_of_stream(reading: Reading, n_partitions: int) -> PartitionTasks:
    """Read a stream, and return the tasks that contain its rows; they are in files unless there are few."""
    rows = stored(replace(reading.rows, most_bytes=tuning().stored_partition_bytes), reading.plan.needed)
    if not isinstance(rows, StoredStream):
        return _tasks_of_frame(rows, as_frame(rows), reading, n_partitions)
    return PartitionTasks({}, [None] * len(rows), (), sum(rows.lengths), _values_of(reading.separate), stored=rows)


def _tasks_of_frame(data: Any, frame: Frame, reading: Reading, n_partitions: int) -> PartitionTasks:
    """Return the tasks that contain the rows of a table in memory."""
    whole = _values_of(reading.separate)
    n_partitions = max(1, min(n_partitions, frame.n_rows // tuning().least_partition_rows))
    bounds = [frame.n_rows * k // n_partitions for k in range(n_partitions + 1)]
    selected = _selected(data, frame, reading.plan)
    bundles = [(_unpacked, pack(_rows(selected, frame, first, last))) for first, last in pairwise(bounds)]
    return PartitionTasks({}, bundles, (), frame.n_rows, whole)


def _values_of(roles: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of roles in memory; Dask collections are computed."""
    from dboost.data.tables import dask_collections  # for the client only

    return {role: dask_collections.compute(values) if is_dask(values) else values for role, values in roles.items()}


class ReadTasks:
    """The tasks that read a table on the cluster.

    Parameters
    ----------
    reading : Reading
        What is read.
    tasks : PartitionTasks
        Where the partitions come from.
    budget : Budget, optional
        Memory limit of each worker.
    """

    def __init__(self, reading: Reading, tasks: PartitionTasks, budget: Budget | None = None) -> None:
        self.reading, self._tasks, self._budget = reading, tasks, budget

    @classmethod
    def of(cls, table: GivenTable, *, n_partitions: int = 1, budget: Budget | None = None, **model: Any) -> Self:
        """Return the tasks that read a table.

        n_partitions : number of partitions for data in memory; model : ``like``, ``extend_categories`` and ``client`` of
        `plan_reading`.
        """
        limits: dict[str, Any] = {}
        if budget is not None:
            limits = {"most_bytes": budget.chunk, "limit": budget.on_threads(1)}
        reading = plan_reading(table, **model, **limits)
        return cls(reading, tasks_of(reading, n_partitions), budget)

    def again(self, reading: Reading) -> ReadTasks:
        """Return the tasks that read the same files in another way."""
        return ReadTasks(reading, tasks_of(reading), self._budget)

    @property
    def plan(self) -> ReadPlan:
        return self.reading.plan

    @property
    def named(self) -> bool:
        """Whether the data have column names."""
        return self.reading.named

    @property
    def n_rows(self) -> int | None:
        """Number of rows, if it is known before they are read."""
        return self._tasks.n_rows

    @property
    def whole(self) -> Mapping[str, Any]:
        """Roles that the user gave as arrays of all rows, by name."""
        return self._tasks.whole

    @property
    def n_partitions(self) -> int:
        return len(self._tasks.bundles)

    @property
    def graph(self) -> dict[Any, Any]:
        """The graph of the partitions."""
        return dict(self._tasks.graph)

    @property
    def bundles(self) -> list[Any]:
        """For each partition the key or task of the tuple of its table and of the `filled` roles."""
        return [self._bundle(i) for i in range(self.n_partitions)]

    def _bundle(self, i: int) -> Any:
        stored = self._tasks.stored
        return self._tasks.bundles[i] if stored is None else (_unpacked, pack(stored[i]))

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the roles that the rows have."""
        return roles_in({*self.plan.roles, *self.filled, *self.whole})

    @property
    def filled(self) -> tuple[str, ...]:
        """The roles that are separate collections."""
        return self._tasks.filled

    @property
    def parts(self) -> Parts | None:
        """The partitions, if they are read from files within a memory limit, where neighbours may be read faster together."""
        return self._tasks.parts

    def over(self, graph: dict[Any, Any], bundles: list[Any]) -> ReadTasks:
        """Return tasks that read the same partitions from another graph."""
        tasks = replace(self._tasks, graph=graph, bundles=bundles, stored=None, parts=None)
        return ReadTasks(self.reading, tasks, self._budget)

    @property
    def is_persisted(self) -> bool:
        """Whether the partitions are persisted, i.e. the graph depends on data that are on the cluster already."""
        graph = self._tasks.graph
        needed = (key for task in graph.values() for key in getattr(task, "dependencies", ()))
        return any(isinstance(task, Future) for task in graph.values()) or any(key not in graph for key in needed)

    @property
    def is_lazy(self) -> bool:
        """Whether partitions have to be computed, or read from files."""
        is_read_by_client = self._tasks.stored is not None or all(
            isinstance(bundle, tuple) and bundle[0] is _unpacked for bundle in self._tasks.bundles
        )
        return not (is_read_by_client or self.is_persisted)

    @property
    def memory_limit(self) -> int:
        """The memory limit of each worker for this fit, in bytes; 0 if there is none."""
        return 0 if self._budget is None else self._budget.limit

    def packed(self, plan: ReadPlan) -> bytes:
        """Pickle a plan for the workers, with the `Tuning` of this process."""
        return pack((plan, self._budget, bool(self.whole), for_workers()))

    def read(
        self,
        connection: Connection,
        batch: str,
        partition_ids: Sequence[int],
        plan: ReadPlan,
        workers: Sequence[str] | None = None,
        preferred: str | None = None,
    ) -> list[Receipt]:
        """Read partitions into a batch, on the given workers while there are any of them, else on all.

        preferred : the worker that reads all partitions while it is there, unless idle workers take some of them over.

        Workers without dboost, or with another version, are excluded. If there are any, or the user chose workers, tasks are
        restricted to the usable ones.

        Raises
        ------
        DataError, DBoostError
            Naming the partition that could not be read, and the reason.
        """
        receipts: list[Receipt] = []
        for n_before in range(_MAX_SUBMISSIONS):
            known = connection.refresh_workers(recent=n_before == 0)
            usable, unusable = known.usable, known.unusable
            if not usable and (unusable or connection.is_confined):
                usable = connection.wait_for_usable()
            wanted = [address for address in workers or () if address in usable]
            if not wanted and (unusable or connection.is_confined):
                wanted = usable
            # A preference would not do: idle workers steal tasks from workers that are only preferred.
            restrictions: dict[str, Any] = {"workers": wanted, "allow_other_workers": False} if wanted else {}
            if preferred in usable and not wanted:
                restrictions = {"workers": [preferred], "allow_other_workers": True}
            try:
                left = partition_ids[len(receipts) :]
                for wave in [left] if self._tasks.stored is None else self._tasks.stored.waves(left):
                    receipts += self._read(connection, batch, wave, plan, restrictions, len(receipts), len(partition_ids))
                return receipts
            except _SubmitAgain:
                continue
            except DBoostError:
                if set(connection.refresh_workers().unusable) == set(unusable):
                    raise
                # An unusable worker has joined meanwhile and may have received a task.
        raise DBoostError(f"{_MAX_SUBMISSIONS} times new workers had no dboost {__version__}, so the data could not be read")

    def _read(
        self,
        connection: Connection,
        batch: str,
        partition_ids: Sequence[int],
        plan: ReadPlan,
        restrictions: dict[str, Any],
        n_before: int,
        n_all: int,
    ) -> list[Receipt]:
        """Read some of the `n_all` partitions of a batch, of which `n_before` have been read."""
        plan_key = f"dboost-plan-{connection.fit}-{batch}"
        runs = {run[0]: run for run in ([[i] for i in partition_ids] if self.parts is None else self.parts.runs(partition_ids))}
        # Tasks that are submitted again have other names: the client may learn late that the former ones are cancelled.
        submission = next(_submissions)
        keys = {i: f"{READING}{connection.fit}-{batch}-{submission}-{i}" for i in runs}
        graph = dict(self._tasks.graph)
        packed: Any = self.packed(plan)
        if len(packed) > _MAX_PLAN_BYTES:
            # One task holds the plan. Dask prefers to run the read tasks on its worker, so small plans are part of each task.
            graph[plan_key], packed = (_identity, packed), plan_key
        for i, key in keys.items():
            session = connection.fit, __version__, connection.lost_sessions
            if len(runs[i]) == 1:
                graph[key] = (_read_part, session, batch, i, packed, self.filled, self._is_in_memory(i), self._bundle(i))
            else:
                assert self.parts is not None
                graph[key] = (_read_run, session, batch, i, packed, pack(self.parts.only(runs[i])))
        futures = submit(connection.client, graph, list(keys.values()), priority=_PRIORITY, **restrictions)
        connection.reading.update(futures)
        try:
            connection.open_line()  # while the tasks run
            sizes = None if self._tasks.sizes is None else {i: self._tasks.sizes[i] for i in partition_ids}
            events = _ReadEvents(connection, batch.rpartition("/")[0], n_all, n_before, sizes, runs)
            bound = [] if restrictions.get("allow_other_workers", True) else restrictions["workers"]
            receipts = _receipts(connection, dict(zip(futures, runs, strict=True)), events, bound)
            return [receipt for received in receipts for receipt in (received if isinstance(received, list) else [received])]
        except _ReadFailed as unread:
            failure = self._failure(connection, batch.rpartition("/")[0], unread.number, unread.error)
            raise failure from (failure.__cause__ if failure is unread.error else unread.error)
        finally:
            connection.reading.difference_update(futures)
            connection.cancel(futures, reason="loading ended")

    def _is_in_memory(self, i: int) -> bool:
        """Return whether partition i of an array is persisted as it is, and not only what it is computed from."""
        bundle = self._tasks.bundles[i]
        key = bundle[1] if isinstance(bundle, tuple) and len(bundle) > 1 else None
        return isinstance(key, Hashable) and isinstance(self._tasks.graph.get(key), Future)

    def _failure(self, connection: Connection, table: str, i: int, error: BaseException | None) -> DBoostError:
        """Return the error to raise for a partition that could not be read. table : the name of the table."""
        if isinstance(error, DBoostError):
            return error
        if isinstance(error, KeyError) and self._tasks.unselected is not None:
            # Dask's column selection or the user's code failed; check whether columns are missing.
            absent = self._check_columns_of(connection, i)
            if absent is not None:
                return absent
        suffix = "" if table == TRAINING_DATA else f" of the {table}"
        if is_out_of_descriptors(error):
            return out_of_descriptors("the worker", f"read partition {i}{suffix}")
        if isinstance(error, RuntimeError) and isinstance(error.__cause__, ImportError):  # Dask could not load its graph
            error = error.__cause__
        if isinstance(error, ModuleNotFoundError):
            return DBoostError(
                f"partition {i}{suffix} could not be read: the cluster cannot import {error.name or error}: install it on the "
                "workers and the scheduler, send its file with client.upload_file, or define its functions in the script itself"
            )
        return DBoostError(f"partition {i}{suffix} could not be read: {type(error).__name__}: {' '.join(str(error).split())}")

    def _check_columns_of(self, connection: Connection, i: int) -> DataError | None:
        """Read all columns of a partition; return the error if they do not match the plan."""
        from dboost.data.tables import dask_collections

        graph, bundles = dask_collections.bundled(self._tasks.unselected, {})
        key = f"dboost-columns-{connection.fit}-{i}"
        graph[key] = (_check_part, i, pack(self.plan), bundles[i])
        futures = submit(connection.client, graph, [key], priority=_PRIORITY)
        try:
            exception = futures[0].exception(timeout=worker_timeout())
        except TimeoutError:
            return None
        finally:
            connection.cancel(futures, reason="the columns are known")
        return exception if isinstance(exception, DataError) else None


class _ReadFailed(Exception):
    """A partition could not be read."""

    def __init__(self, number: int, error: BaseException | None) -> None:
        super().__init__(number)
        self.number, self.error = number, error


class _ReadEvents:
    """Sends events with the number of partitions of a table that have been read.

    runs : the partitions of a task by the number of the first, if it reads several.
    """

    def __init__(
        self,
        connection: Connection,
        table: str,
        n_partitions: int,
        n_before: int = 0,
        sizes: Mapping[int, int] | None = None,
        runs: Mapping[int, list[int]] | None = None,
    ) -> None:
        self._connection, self._n_read, self._runs = connection, n_before, {} if runs is None else runs
        self._count = ReadCount(connection.progress.count, n_partitions, sizes, n_before)
        self._table: dict[str, Any] = {"table": table, "partitions": n_partitions}
        self._last_event = 0.0

    def record(self, number: int) -> None:
        """Note that the partitions of a task were read. number : of the first of them."""
        run = self._runs.get(number, [number])
        self._count.add(*run)
        self._n_read += len(run)
        now = time.monotonic()
        if now - self._last_event >= tuning().event_seconds or self._n_read == self._table["partitions"]:
            self._last_event = now
            self._connection.record_event("reading", read=self._n_read, **self._table)


def submit(client: Client, graph: dict[Any, Any], keys: list[Any], **options: Any) -> list[Future]:
    """Submit tasks, and return the futures of these keys. options : of `Client.get`.

    Rows in the client's memory are part of their tasks, so that Dask can send them again when a worker is lost; scattered ones
    would be lost with it. So Dask's warning of large graphs is not shown here: users cannot follow its advice.
    """
    with without_graph_warning():
        return list(client.get(graph, keys, sync=False, **options))


def finished(
    connection: Connection, futures: Sequence[Future], subject: str, bound: Sequence[str] = (), *, at_once: bool = False
) -> list[Any]:
    """Return the results of one task for each partition.

    subject : name of the partitions; bound : the workers to which the tasks are restricted, empty without restriction;
    at_once : whether the failure of a partition is raised without waiting for earlier ones.

    Raises
    ------
    DBoostError
        Naming the partition whose task failed, or if the workers have left.
    """
    waiting = dict(zip(futures, range(len(futures)), strict=True))
    try:
        return _receipts(connection, waiting, _ReadEvents(connection, subject, len(futures)), bound, at_once)
    except _ReadFailed as failed:
        if isinstance(failed.error, DBoostError):
            raise failed.error from failed.error.__cause__
        name = type(failed.error).__name__
        raise DBoostError(f"partition {failed.number} failed: {name}: {failed.error}") from failed.error
    except _SubmitAgain:
        raise DBoostError(f"the workers that may compute the {subject} have left") from None
    finally:
        connection.cancel(futures, reason=f"the {subject} are complete, or one failed")


class _SubmitAgain(Exception):
    """The tasks must be submitted again."""


def _receipts(
    connection: Connection, waiting: dict[Future, int], events: _ReadEvents, bound: Sequence[str], at_once: bool = False
) -> list[Receipt]:
    """Wait for read tasks and return their receipts. While none ends, remove unresponsive workers, which Dask does not detect.

    bound : the workers to which the tasks are restricted; empty without restriction.

    Raises
    ------
    _ReadFailed
        Of the first partition that fails, not of the one that fails first (unless `at_once`): when a task has failed, those of
        earlier partitions are waited for, and those of later ones are cancelled.
    """
    done: queue.SimpleQueue[Future] = queue.SimpleQueue()
    for future in waiting:
        future.add_done_callback(done.put)
    pending, wait = dict(waiting), _Wait(connection, bound)
    failed: _ReadFailed | None = None
    while pending:
        try:
            future = done.get(timeout=liveness_timeout())
        except queue.Empty:
            try:
                wait.more()
            except (DBoostError, _SubmitAgain):
                if failed is None:
                    raise
                raise failed from None
            continue
        number = pending.pop(future, None)
        if number is None:  # cancelled below
            continue
        wait = _Wait(connection, bound)
        if future.status == "error":
            failed = _ReadFailed(number, future.exception())
            if at_once or isinstance(failed.error, ParameterError):  # that concerns all partitions
                raise failed
            later = [future for future, i in pending.items() if i > number]
            connection.cancel(later, reason=f"partition {number} failed")
            for future in later:
                del pending[future]
        elif future.cancelled():
            raise _cancelled(connection, number, future)
        else:
            events.record(number)
    if failed is not None:
        raise failed
    return _gather(connection, waiting)


def _cancelled(connection: Connection, i: int, future: Future) -> DBoostError:
    """Return the error to raise if Dask has cancelled the task that reads a partition.

    It does so if the task depends on data that were lost and that no task can compute again.
    """
    lost = lost_client(connection.client, connection.address)
    if lost is not None:
        return lost
    try:
        future.result(timeout=liveness_timeout())
        why = "it is not known why"
    except (Exception, asyncio.CancelledError) as error:
        why = str(error)
    return DBoostError(
        f"partition {i} cannot be read, because the cluster at {connection.address} does not have the data that it is computed "
        "from: persisted and prepared data are lost when their client is restarted or closed, and are on no other cluster; "
        f"persist the data, or prepare the data set, again with this client ({why})"
    )


class _Wait:
    """The time without results of read tasks, and its possible causes.

    bound : the workers to which the tasks are restricted; empty without restriction.
    """

    def __init__(self, connection: Connection, bound: Sequence[str] = ()) -> None:
        self._connection, self._bound = connection, bound
        self._seconds = 0.0

    def more(self) -> None:
        """Note another `dboost.patience` without results.

        Raises
        ------
        _SubmitAgain
            When all workers to which the tasks are restricted have left.
        DBoostError
            When there was no worker for `dboost.worker-timeout`, or all that may run the tasks were paused at their memory
            limits, or none may run a task that the others wait for.
        """
        responsive, paused, is_stuck, unrunnable = self._connection.remove_unresponsive()
        if self._bound and not set(self._bound) & set(responsive):
            raise _SubmitAgain
        if not is_stuck and not unrunnable:  # a worker can run tasks
            self._seconds = 0.0
            return
        self._seconds += liveness_timeout()
        if self._seconds >= worker_timeout():
            seconds, lost = f"{worker_timeout():.0f} s", self._connection.attempts.summary()
            if responsive and unrunnable:
                key, allowed = min(unrunnable.items())
                where = allowed or "workers that are not there"
                raise DBoostError(
                    f"for {seconds} no worker may run {len(unrunnable)} of the tasks that supply the data, such as {key!r}, "
                    f"which is restricted to {where}{lost}: persist the data, or prepare the data set, again"
                )
            if not responsive:
                raise DBoostError(f"no worker has come for {seconds}, so the data cannot be read{lost}")
            subject = "the workers that may read the data" if set(responsive) - set(paused) else "all workers"
            usage = ", ".join(
                f"{worker} uses {format_bytes(used)}" + (f" of {format_bytes(limit)}" if limit else "")
                for worker, (used, limit) in paused.items()
            )
            raise DBoostError(
                f"for {seconds} {subject} have been paused by Dask because they are short of memory ({usage}), and paused "
                "workers read no data: free what else they hold, or add workers or memory"
            )


def _gather(connection: Connection, waiting: dict[Future, int]) -> list[Receipt]:
    """Return the results of completed tasks; Dask runs those of lost workers again."""

    async def results() -> Any:
        return await connection.client.gather(list(waiting), asynchronous=True)

    wait = _Wait(connection)
    while True:
        try:
            return list(connection.client.sync(results, callback_timeout=liveness_timeout()))
        except TimeoutError:
            wait.more()
        except Exception as error:
            failed = next((i for future, i in waiting.items() if future.status == "error"), None)
            cancelled = next((future for future in waiting if future.cancelled()), None)
            if cancelled is not None:
                raise _cancelled(connection, waiting[cancelled], cancelled) from error
            if failed is None:
                raise
            raise _ReadFailed(failed, error) from error


def _identity(value: Any) -> Any:
    return value


def _read_part(
    session: tuple[str, str, list[str]],
    batch: str,
    i: int,
    plan: bytes,
    filled: Sequence[str],
    is_persisted: bool,
    bundle: tuple[Any, ...],
) -> Receipt:
    """Run a read task. session : arguments of `task_session`."""
    try:
        worker_session, ref = task_session(*session)
    except OSError as error:
        if is_out_of_descriptors(error):
            raise out_of_descriptors(f"worker {get_worker().address}", f"read partition {i}") from error
        raise
    how, budget, whole, sizes = unpack(plan)
    adopt(sizes)
    partitions = worker_session.loading.open(batch, how, budget, whole, worker_session.n_threads)
    n_rows = partitions.read(i, in_place(bundle, filled), is_persisted and budget is None)
    return Receipt(i, n_rows, ref)


def _read_run(session: tuple[str, str, list[str]], batch: str, first: int, plan: bytes, parts: bytes) -> list[Receipt]:
    """Run a task that reads consecutive partitions. first : number of the first one; parts : a pickled `Parts` of these."""
    worker_session, ref = task_session(*session)
    how, budget, whole, sizes = unpack(plan)
    adopt(sizes)
    partitions, source = worker_session.loading.open(batch, how, budget, whole, worker_session.n_threads), unpack(parts)
    receipts = []
    with partitions.decoding:
        for i, partition in enumerate(source.partitions(how.needed), first):
            receipts.append(Receipt(i, partitions.read(i, (partition, {})), ref))
            del partition
    return receipts


def _check_part(i: int, plan: bytes, bundle: tuple[Any, ...]) -> None:
    """Check the columns of a partition, in a task."""
    check_columns(i, bundle[0], unpack(plan))


def _unpacked(packed_rows: bytes) -> tuple[Any, ...]:
    return (unpack(packed_rows),)


def _selected(data: Any, frame: Frame, plan: ReadPlan) -> Any:
    """Select the columns of a table in memory that are read."""
    if not frame.named or plan.all_names is not None:
        return data
    selected = [j for j, name in enumerate(frame.names) if name in set(plan.needed)]
    return data.iloc[:, selected] if hasattr(data, "iloc") else data.select([frame.names[j] for j in selected])


def _rows(data: Any, frame: Frame, first: int, last: int) -> Any:
    """Return rows of a table in memory, without references to other rows that would be pickled, too."""
    if frame.matrix is not None:
        part = frame.matrix[first:last]
        return part.copy() if is_masked(part) else np.ascontiguousarray(part)
    if is_sparse_matrix(data):
        return data.tocsr()[first:last]
    return rows_alone(data.iloc[first:last] if hasattr(data, "iloc") else data.slice(first, last - first))


def rows_alone(part: Any) -> Any:
    """Return rows for pickling: without pandas' index, and without the other rows of Arrow's buffers."""
    if hasattr(part, "iloc"):
        return part.set_axis(range(len(part)), axis=0)
    if library(part) != "pyarrow":
        return part
    if is_a(part, "pyarrow", "Table", "RecordBatch"):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, part.schema) as stream:
            stream.write(part)
        return pa.ipc.open_stream(sink.getvalue()).read_all()
    return rows_alone(pa.table([part], ["values"])).column(0)
