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
import copy
import queue
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any

import numpy as np
from distributed import Future, get_worker

from dboost._lazy_import import is_a, pa
from dboost.cluster.client.connection import Connection, lost_client, submit
from dboost.cluster.transport.messages import READING, pack
from dboost.cluster.worker.worker_plugin import here
from dboost.config import liveness_timeout, worker_timeout
from dboost.data.columns.chunk import is_masked
from dboost.data.columns.read_plan import ReadPlan, make_read_plan, used_columns
from dboost.data.columns.sparse import is_sparse_matrix
from dboost.data.kinds.frame import Frame
from dboost.data.kinds.partition import check_columns
from dboost.data.kinds.table_kinds import is_lazy, is_path, is_stream, library
from dboost.data.kinds.tables_in_memory import as_frame
from dboost.data.sources import Parts, ReadCount, stream_of
from dboost.data.sources.row_filter import RowFilter
from dboost.data.sources.stored_stream import StoredStream
from dboost.data.tables.dask_collections import in_place, roles_in
from dboost.data.tables.reading import check_no_values, given_roles, separate_roles
from dboost.errors import DataError, DBoostError, ParameterError, is_out_of_descriptors, out_of_descriptors
from dboost.schema import Feature
from dboost.session.fit_records import SessionRef, unpack
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


class ReadTasks:
    """The tasks that read a table on the cluster.

    Parameters
    ----------
    data, target, features, categorical_features, like, extend_categories, row_filter, **roles
        As in `open_table`.
    n_parts : int, default 1
        Number of partitions for data in memory.
    budget : Budget or None
        Memory limit of each worker.
    """

    #: Bytes of the partitions in their files; None if they are unknown.
    _sizes: Mapping[int, int] | None = None
    #: The partitions of a stream, unless it is small.
    _stored: StoredStream | None = None
    #: The partitions in files, if neighbours may have something in common.
    _parts: Parts | None = None

    def __init__(
        self,
        data: Any,
        target: Any,
        *,
        features: Sequence[str] | None = None,
        categorical_features: Any = "from_dtype",
        like: tuple[Feature, ...] | None = None,
        extend_categories: bool = False,
        n_parts: int = 1,
        budget: Budget | None = None,
        row_filter: RowFilter | None = None,
        **roles: Any,
    ) -> None:
        from dboost.data.tables import dask_collections  # for the client only

        if hasattr(features, "__next__"):  # an iterator
            features = list(features or ())
        self._budget = budget
        self._unselected: Any = None
        self._graph: dict[Any, Any]
        self._bundles: list[Any]
        if target is None:
            raise DataError("training requires y to be passed, but the target y is None")
        given = given_roles(target, roles)
        #: Returns the tasks that read CSV files with all columns as text that contain text anywhere; None for other data.
        self.with_text: Callable[[], ReadTasks | None] = lambda: None
        from_files = False
        if is_path(data):
            from dboost.data.sources.paths import open_source, open_with_text

            path, most_bytes = data, None if budget is None else budget.chunk
            used = used_columns(features, like, given)
            source = open_source(path, like, most_bytes, used, row_filter)
            data, from_files, self._sizes = source.lazy(), True, source.sizes
            self._parts = source if source.read_in_order is not None else None

            def again() -> ReadTasks | None:
                source = open_with_text(path, like, most_bytes, columns=used, row_filter=row_filter)
                return None if source is None else ReadTasks(source.lazy(), target, **how)

            how: dict[str, Any] = {**roles, "features": features, "budget": budget}
            how |= {"categorical_features": categorical_features, "like": like, "extend_categories": extend_categories}
            self.with_text = again
        stream = None
        if is_stream(data):
            stream = stream_of(data, tuning().stored_partition_bytes, row_filter)
        elif not is_lazy(data):
            data = data if row_filter is None else row_filter.rows_of(data)
        frame = None if is_lazy(data) or stream is not None else as_frame(data)
        names: tuple[str, ...]
        if stream is not None:
            names, self.named = stream.names, True
        else:
            names, self.named = dask_collections.layout(data) if frame is None else (frame.names, frame.named)
        self.plan = make_read_plan(
            names,
            self.named,
            roles=given,
            features=features,
            categorical_features=categorical_features,
            like=like,
            extend_categories=extend_categories,
        )
        if budget is not None:
            budget.on_threads(1).check_width(len(self.plan.specs))
        separate = separate_roles(self.plan, given)
        if row_filter is not None:
            check_no_values(separate)
            if is_lazy(data) and not from_files:
                data = dask_collections.filtered(data, row_filter, self.plan.needed)
        #: Roles that the user gave as arrays of all rows, by name.
        self.whole = {role: values for role, values in separate.items() if not is_lazy(values)}
        aligned = {role: values for role, values in separate.items() if is_lazy(values)}
        if stream is not None:
            stored = StoredStream(stream, self.plan.needed)
            data = stored.table
            if data is None:
                self._stored = stored
            else:
                frame = as_frame(data)
        #: Number of rows, if it is known before they are read.
        self.n_rows: int | None
        if self._stored is not None:
            self.n_rows = sum(self._stored.lengths)
        else:
            self.n_rows = dask_collections.known_length(data) if frame is None else frame.n_rows
        if frame is not None or self._stored is not None:
            self.whole |= {role: dask_collections.compute(values) for role, values in aligned.items()}
            aligned = {}
        if self._stored is not None:
            self._graph, self._bundles = {}, [None] * len(self._stored)
        elif frame is not None:
            self._graph, self._bundles = _split_rows(_selected(data, frame, self.plan), frame, n_parts)
        else:
            if not self.named:
                data = dask_collections.whole_rows(data)
            elif self.plan.all_names is None:
                self._unselected = data
                data = dask_collections.select(data, self.plan.needed)
            self._graph, self._bundles = dask_collections.bundled(data, aligned)
        self._filled = roles_in(aligned)
        if aligned:  # a task reads a partition with its roles
            self._parts = None

    @property
    def n_parts(self) -> int:
        return len(self._bundles)

    @property
    def graph(self) -> dict[Any, Any]:
        """The graph of the partitions."""
        return dict(self._graph)

    @property
    def bundles(self) -> list[Any]:
        """For each partition the key or task of the tuple of its table and of the `filled` roles."""
        return [self._bundle(i) for i in range(self.n_parts)]

    def _bundle(self, i: int) -> Any:
        return self._bundles[i] if self._stored is None else (_unpacked, pack(self._stored[i]))

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the roles that the rows have."""
        return roles_in({*self.plan.roles, *self._filled, *self.whole})

    @property
    def filled(self) -> tuple[str, ...]:
        """The roles that are separate collections."""
        return self._filled

    @property
    def parts(self) -> Parts | None:
        """The partitions, if they are read from files within a memory limit, where neighbours may be read faster together."""
        return self._parts

    def over(self, graph: dict[Any, Any], bundles: list[Any]) -> ReadTasks:
        """Return tasks that read the same partitions from another graph."""
        found = copy.copy(self)
        found._graph, found._bundles, found._stored, found._parts = graph, bundles, None, None
        return found

    @property
    def is_persisted(self) -> bool:
        """Whether the partitions are persisted, i.e. the graph depends on data that are on the cluster already."""
        graph = self._graph
        needed = (key for task in graph.values() for key in getattr(task, "dependencies", ()))
        return any(isinstance(task, Future) for task in graph.values()) or any(key not in graph for key in needed)

    @property
    def is_lazy(self) -> bool:
        """Whether partitions have to be computed, or read from files."""
        of_client = self._stored is not None or all(
            isinstance(bundle, tuple) and bundle[0] is _unpacked for bundle in self._bundles
        )
        return not (of_client or self.is_persisted)

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
        numbers: Sequence[int],
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
            usable, unusable = connection.usable(recent=n_before == 0)
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
                left = numbers[len(receipts) :]
                for some in [left] if self._stored is None else self._stored.waves(left):
                    receipts += self._read(connection, batch, some, plan, restrictions, len(receipts), len(numbers))
                return receipts
            except _SubmitAgain:
                continue
            except DBoostError:
                if set(connection.usable()[1]) == set(unusable):
                    raise
                # An unusable worker has joined meanwhile and may have received a task.
        raise DBoostError(f"{_MAX_SUBMISSIONS} times new workers had no dboost {__version__}, so the data could not be read")

    def _read(
        self,
        connection: Connection,
        batch: str,
        numbers: Sequence[int],
        plan: ReadPlan,
        restrictions: dict[str, Any],
        n_before: int,
        n_all: int,
    ) -> list[Receipt]:
        """Read some of the `n_all` partitions of a batch, of which `n_before` have been read."""
        plan_key = f"dboost-plan-{connection.fit}-{batch}"
        runs = {run[0]: run for run in ([[i] for i in numbers] if self._parts is None else self._parts.runs(numbers))}
        # Tasks that are submitted again have other names: the client may learn late that the former ones are cancelled.
        submission = next(_submissions)
        keys = {i: f"{READING}{connection.fit}-{batch}-{submission}-{i}" for i in runs}
        graph = dict(self._graph)
        packed: Any = self.packed(plan)
        if len(packed) > _MAX_PLAN_BYTES:
            # One task holds the plan. Dask prefers to run the read tasks on its worker, so small plans are part of each task.
            graph[plan_key], packed = (_identity, packed), plan_key
        for i, key in keys.items():
            session = connection.fit, __version__, connection.lost_sessions
            if len(runs[i]) == 1:
                graph[key] = (_read_part, session, batch, i, packed, self._filled, self._is_in_memory(i), self._bundle(i))
            else:
                assert self._parts is not None
                graph[key] = (_read_run, session, batch, i, packed, pack(self._parts.only(runs[i])))
        futures = submit(connection.client, graph, list(keys.values()), priority=_PRIORITY, **restrictions)
        connection.reading.update(futures)
        try:
            connection.open_line()  # while the tasks run
            sizes = None if self._sizes is None else {i: self._sizes[i] for i in numbers}
            events = _ReadEvents(connection, batch.rpartition("/")[0], n_all, n_before, sizes, runs)
            bound = [] if restrictions.get("allow_other_workers", True) else restrictions["workers"]
            found = _receipts(connection, dict(zip(futures, runs, strict=True)), events, bound)
            return [one for some in found for one in (some if isinstance(some, list) else [some])]
        except _ReadFailed as unread:
            failure = self._failure(connection, batch.rpartition("/")[0], unread.number, unread.error)
            raise failure from (failure.__cause__ if failure is unread.error else unread.error)
        finally:
            connection.reading.difference_update(futures)
            connection.cancel(futures, reason="loading ended")

    def _is_in_memory(self, i: int) -> bool:
        """Return whether partition i of an array is persisted as it is, and not only what it is computed from."""
        key = self._bundles[i][1] if isinstance(self._bundles[i], tuple) and len(self._bundles[i]) > 1 else None
        return isinstance(key, Hashable) and isinstance(self._graph.get(key), Future)

    def _failure(self, connection: Connection, table: str, i: int, error: BaseException | None) -> DBoostError:
        """Return the error to raise for a partition that could not be read. table : the name of the table."""
        if isinstance(error, DBoostError):
            return error
        if isinstance(error, KeyError) and self._unselected is not None:
            # Dask's column selection or the user's code failed; check whether columns are missing.
            absent = self._check_columns_of(connection, i)
            if absent is not None:
                return absent
        of = "" if table == TRAINING_DATA else f" of the {table}"
        if is_out_of_descriptors(error):
            return out_of_descriptors("the worker", f"read partition {i}{of}")
        if isinstance(error, RuntimeError) and isinstance(error.__cause__, ImportError):  # Dask could not load its graph
            error = error.__cause__
        if isinstance(error, ModuleNotFoundError):
            return DBoostError(
                f"partition {i}{of} could not be read: the cluster cannot import {error.name or error}: install it on the "
                "workers and the scheduler, send its file with client.upload_file, or define its functions in the script itself"
            )
        return DBoostError(f"partition {i}{of} could not be read: {type(error).__name__}: {' '.join(str(error).split())}")

    def _check_columns_of(self, connection: Connection, i: int) -> DataError | None:
        """Read all columns of a partition; return the error if they do not match the plan."""
        from dboost.data.tables import dask_collections

        graph, bundles = dask_collections.bundled(self._unselected, {})
        key = f"dboost-columns-{connection.fit}-{i}"
        graph[key] = (_check_part, i, pack(self.plan), bundles[i])
        futures = submit(connection.client, graph, [key], priority=_PRIORITY)
        try:
            found = futures[0].exception(timeout=worker_timeout())
        except TimeoutError:
            return None
        finally:
            connection.cancel(futures, reason="the columns are known")
        return found if isinstance(found, DataError) else None


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


def finished(
    connection: Connection, futures: Sequence[Future], what: str, bound: Sequence[str] = (), *, at_once: bool = False
) -> list[Any]:
    """Return the results of one task for each partition.

    what : name of the partitions; bound : the workers to which the tasks are restricted, empty without restriction; at_once :
    whether the failure of a partition is raised without waiting for earlier ones.

    Raises
    ------
    DBoostError
        Naming the partition whose task failed, or if the workers have left.
    """
    waiting = dict(zip(futures, range(len(futures)), strict=True))
    try:
        return _receipts(connection, waiting, _ReadEvents(connection, what, len(futures)), bound, at_once)
    except _ReadFailed as failed:
        if isinstance(failed.error, DBoostError):
            raise failed.error from failed.error.__cause__
        name = type(failed.error).__name__
        raise DBoostError(f"partition {failed.number} failed: {name}: {failed.error}") from failed.error
    except _SubmitAgain:
        raise DBoostError(f"the workers that may compute the {what} have left") from None
    finally:
        connection.cancel(futures, reason=f"the {what} are complete, or one failed")


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
            later = [one for one, i in pending.items() if i > number]
            connection.cancel(later, reason=f"partition {number} failed")
            for one in later:
                del pending[one]
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
        here, paused, is_stuck, unrunnable = self._connection.remove_unresponsive()
        if self._bound and not set(self._bound) & set(here):
            raise _SubmitAgain
        if not is_stuck and not unrunnable:  # a worker can run tasks
            self._seconds = 0.0
            return
        self._seconds += liveness_timeout()
        if self._seconds >= worker_timeout():
            seconds, lost = f"{worker_timeout():.0f} s", self._connection.attempts.summary()
            if here and unrunnable:
                key, allowed = min(unrunnable.items())
                where = allowed or "workers that are not there"
                raise DBoostError(
                    f"for {seconds} no worker may run {len(unrunnable)} of the tasks that supply the data, such as {key!r}, "
                    f"which is restricted to {where}{lost}: persist the data, or prepare the data set, again"
                )
            if not here:
                raise DBoostError(f"no worker has come for {seconds}, so the data cannot be read{lost}")
            which = "the workers that may read the data" if set(here) - set(paused) else "all workers"
            usage = ", ".join(
                f"{worker} uses {format_bytes(used)}" + (f" of {format_bytes(limit)}" if limit else "")
                for worker, (used, limit) in paused.items()
            )
            raise DBoostError(
                f"for {seconds} {which} have been paused by Dask because they are short of memory ({usage}), and paused "
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
    """Run a read task. session : arguments of `here`."""
    try:
        worker_session, ref = here(*session)
    except OSError as error:
        if is_out_of_descriptors(error):
            raise out_of_descriptors(f"worker {get_worker().address}", f"read partition {i}") from error
        raise
    how, budget, whole, sizes = unpack(plan)
    adopt(sizes)
    partitions = worker_session.open_batch(batch, how, budget, whole)
    n_rows = partitions.take(i, in_place(bundle, filled), is_persisted and budget is None)
    return Receipt(i, n_rows, ref)


def _read_run(session: tuple[str, str, list[str]], batch: str, first: int, plan: bytes, parts: bytes) -> list[Receipt]:
    """Run a task that reads consecutive partitions. first : number of the first one; parts : a pickled `Parts` of these."""
    worker_session, ref = here(*session)
    how, budget, whole, sizes = unpack(plan)
    adopt(sizes)
    partitions, source = worker_session.open_batch(batch, how, budget, whole), unpack(parts)
    receipts = []
    with partitions.decoding:
        for i, partition in enumerate(source.partitions(how.needed), first):
            receipts.append(Receipt(i, partitions.take(i, (partition, {})), ref))
            del partition
    return receipts


def _check_part(i: int, plan: bytes, bundle: tuple[Any, ...]) -> None:
    """Check the columns of a partition, in a task."""
    check_columns(i, bundle[0], unpack(plan))


def _split_rows(data: Any, frame: Frame, n_parts: int) -> tuple[dict[Any, Any], list[Any]]:
    """Return the graph and the bundles of tasks that contain the rows of a table in memory."""
    n = frame.n_rows
    n_parts = max(1, min(n_parts, n // tuning().least_partition_rows))
    bounds = [n * k // n_parts for k in range(n_parts + 1)]
    pieces = [pack(_rows(data, frame, first, last)) for first, last in pairwise(bounds)]
    return {}, [(_unpacked, packed_rows) for packed_rows in pieces]


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
