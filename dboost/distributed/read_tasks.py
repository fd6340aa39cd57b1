"""The user's data as loading tasks, one per partition.

Loading is Dask's own business: a task depends on its source partition, runs where that lies (or where there is room), hands
it to the worker's `Holding`, and returns a receipt. Ownership is where it ran. The lazy graph stays here, in the client, so
that the partitions of a worker that died can be read again, by another one.

Data in the client's memory are cut into partitions, which travel inside their tasks.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from distributed import Future

from dboost._lazy_import import is_a, pa
from dboost.config import liveness_timeout, worker_timeout
from dboost.data.dask_collections import in_place
from dboost.data.frame import Frame, as_frame, collected, is_lazy, is_path, library
from dboost.data.partition import ROLES, check_columns
from dboost.data.read_plan import ReadPlan, make_read_plan
from dboost.data.table import separate_roles
from dboost.distributed.connection import Connection
from dboost.distributed.messages import READING, pack
from dboost.distributed.worker_plugin import here
from dboost.errors import DataError, DBoostError
from dboost.schema import Feature
from dboost.session.memory_budget import Budget, format_bytes
from dboost.session.protocol import SessionRef, unpack
from dboost.version import __version__

#: Loading tasks go before the tasks that the user queued earlier.
_PRIORITY = 10
#: Rows of a partition that is cut from data in memory, at least.
_LEAST_ROWS = 5_000
#: Bytes of a plan that goes with every task.
_LIGHT = 32 * 1024
#: Times that tasks are submitted because workers have come that cannot run them.
_MOST_READINGS = 10
#: Seconds between two events that tell how many partitions have been read.
_TELLING = 0.25


@dataclass(frozen=True)
class Receipt:
    """That a worker has read a partition."""

    number: int
    n_rows: int
    ref: SessionRef


class ReadTasks:
    """A table to be read by the cluster.

    Parameters
    ----------
    data, target, sample_weight, offset, features, categorical_features, like, grows
        As in `open_table`.
    n_parts : int
        Partitions to cut data in memory into.
    """

    def __init__(
        self,
        data: Any,
        target: Any,
        *,
        sample_weight: Any = None,
        offset: Any = None,
        features: Sequence[str] | None = None,
        categorical_features: Any = "from_dtype",
        like: tuple[Feature, ...] | None = None,
        extend_categories: bool = False,
        n_parts: int = 1,
        budget: Budget | None = None,
    ) -> None:
        from dboost.data import dask_collections as lazy  # for the client only

        self._budget = budget
        self._unselected: Any = None
        if target is None:
            raise DataError("training requires y to be passed, but the target y is None")
        if is_path(data):
            from dboost.data.paths import open_path

            data = open_path(data, like, None if budget is None else budget.chunk)
        given = dict(zip(ROLES, (target, sample_weight, offset), strict=True))
        if not is_lazy(data):
            data = collected(data)  # once, not for each part
        frame = None if is_lazy(data) else as_frame(data)
        names, self.named = lazy.layout(data) if frame is None else (frame.names, frame.named)
        self.plan = make_read_plan(
            names,
            self.named,
            roles=given,
            features=features,
            categorical_features=categorical_features,
            like=like,
            extend_categories=extend_categories,
        )
        separate = separate_roles(self.plan, given)
        #: Target, weight and offset that were given for all rows at once, by role.
        self.whole = {role: values for role, values in separate.items() if not is_lazy(values)}
        aligned = {role: values for role, values in separate.items() if is_lazy(values)}
        if frame is not None:
            self.whole |= {role: lazy.compute(values) for role, values in aligned.items()}
            aligned = {}
            self._graph, self._bundles = _cut(_selected(data, frame, self.plan), frame, n_parts)
        else:
            if not self.named:
                data = lazy.whole_rows(data)
            elif self.plan.all_names is None:
                self._unselected = data
                data = lazy.select(data, self.plan.needed)
            target_, weight_, offset_ = (aligned.get(role) for role in ROLES)
            self._graph, self._bundles = lazy.bundled(data, (target_, weight_, offset_))
        self._filled = tuple(role in aligned for role in ROLES)

    @property
    def n_parts(self) -> int:
        return len(self._bundles)

    @property
    def is_persisted(self) -> bool:
        """Whether somebody has put partitions where they lie: what the graph needs is on the cluster already."""
        graph = self._graph
        needed = (key for task in graph.values() for key in getattr(task, "dependencies", ()))
        return any(isinstance(task, Future) for task in graph.values()) or any(key not in graph for key in needed)

    def packed(self, plan: ReadPlan) -> bytes:
        """A plan as workers are told it."""
        return pack((plan, self._budget, bool(self.whole)))

    def read(
        self, connection: Connection, batch: str, numbers: Sequence[int], plan: ReadPlan, workers: Sequence[str] | None = None
    ) -> list[Receipt]:
        """Have partitions read into a batch, by these workers if they can.

        Workers that have joined without dboost, or with another version, get none. Where there are such, tasks are bound to the
        others; where there are none, a wish is all that tasks carry: any worker may go at any time.

        Raises
        ------
        DataError, DBoostError
            Naming the partition that could not be read, and why.
        """
        for _ in range(_MOST_READINGS):
            usable, others = connection.usable()
            bound = {"workers": usable, "allow_other_workers": False} if others and usable else {}
            wish = bound or ({} if workers is None else {"workers": list(workers), "allow_other_workers": True})
            try:
                return self._read(connection, batch, numbers, plan, wish)
            except _Again:
                continue
            except DBoostError:
                if set(connection.usable()[1]) == set(others):
                    raise
                # A worker that cannot take part has come meanwhile, and may have been given a task.
        raise DBoostError(f"{_MOST_READINGS} times workers came that have no dboost {__version__}: nobody can read the data")

    def _read(
        self, connection: Connection, batch: str, numbers: Sequence[int], plan: ReadPlan, wish: dict[str, Any]
    ) -> list[Receipt]:
        plan_key = f"dboost-plan-{connection.fit}-{batch}"
        keys = {i: f"{READING}{connection.fit}-{batch}-{i}" for i in numbers}
        graph = dict(self._graph)
        packed: Any = self.packed(plan)
        if len(packed) > _LIGHT:
            # One task for all; it draws them to where it ran, so a light plan goes with each.
            graph[plan_key], packed = (_given, packed), plan_key
        for i, key in keys.items():
            session = connection.fit, __version__, connection.lost_sessions
            graph[key] = (_read_part, session, batch, i, packed, self._filled, self._bundles[i])
        futures = connection.client.get(graph, list(keys.values()), sync=False, priority=_PRIORITY, **wish)
        try:
            news = _Reading(connection, batch.rpartition("/")[0], len(numbers))
            bound = [] if wish.get("allow_other_workers", True) else list(wish["workers"])
            return _receipts(connection, dict(zip(futures, numbers, strict=True)), news, bound)
        except _Unread as unread:
            failure = self._failure(connection, unread.number, unread.error)
            raise failure from (failure.__cause__ if failure is unread.error else unread.error)
        finally:
            connection.client.cancel(list(futures), reason="loading ended")

    def _failure(self, connection: Connection, i: int, error: BaseException | None) -> DBoostError:
        """What to raise where a partition could not be read."""
        if isinstance(error, DBoostError):
            return error
        if isinstance(error, KeyError) and self._unselected is not None:
            # Dask's selection of columns may have failed, or code of the user's: the columns that are there tell.
            absent = self._look_again(connection, i)
            if absent is not None:
                return absent
        return DBoostError(f"partition {i} could not be read: {type(error).__name__}: {error}")

    def _look_again(self, connection: Connection, i: int) -> DataError | None:
        """What is wrong with the columns of a partition, all of which are read for it."""
        from dboost.data import dask_collections as lazy

        graph, bundles = lazy.bundled(self._unselected, (None, None, None))
        key = f"dboost-columns-{connection.fit}-{i}"
        graph[key] = (_check_part, i, pack(self.plan), bundles[i])
        futures = connection.client.get(graph, [key], sync=False, priority=_PRIORITY)
        try:
            found = futures[0].exception(timeout=worker_timeout())
        except TimeoutError:
            return None
        finally:
            connection.client.cancel(futures, reason="the columns are known")
        return found if isinstance(found, DataError) else None


class _Unread(Exception):
    """That a partition could not be read, and why."""

    def __init__(self, number: int, error: BaseException | None) -> None:
        super().__init__(number)
        self.number, self.error = number, error


class _Reading:
    """Tells how many partitions of a table have been read, now and then."""

    def __init__(self, connection: Connection, table: str, n_partitions: int) -> None:
        self._connection = connection
        self._what: dict[str, Any] = {"table": table, "partitions": n_partitions}
        self._told = 0.0

    def tell(self, n_read: int) -> None:
        now = time.monotonic()
        if now - self._told >= _TELLING or n_read == self._what["partitions"]:
            self._told = now
            self._connection.tell("reading", read=n_read, **self._what)


class _Again(Exception):
    """The tasks have to be submitted anew."""


def _receipts(connection: Connection, waiting: dict[Future, int], news: _Reading, bound: Sequence[str]) -> list[Receipt]:
    """Wait for loading tasks. While nothing arrives, workers that do not answer are looked for: Dask would not miss them.

    bound : the only workers that may run the tasks, if there is such a condition.
    """
    done: queue.SimpleQueue[Future] = queue.SimpleQueue()
    for future in waiting:
        future.add_done_callback(done.put)
    n_left, waited = len(waiting), _Waited(connection)
    while n_left:
        try:
            future = done.get(timeout=liveness_timeout())
        except queue.Empty:
            here = waited.more()
            if bound and not set(bound) & set(here):
                raise _Again from None
            continue
        waited = _Waited(connection)
        if future.status == "error":
            raise _Unread(waiting[future], future.exception())
        if future.cancelled():
            raise DBoostError(f"the task that reads partition {waiting[future]} was cancelled")
        n_left -= 1
        news.tell(len(waiting) - n_left)
    return _gathered(connection, waiting)


class _Waited:
    """How long nothing has been heard of loading tasks, and why that may be."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._seconds = 0.0

    def more(self) -> list[str]:
        """After another `dboost.liveness_timeout` without news: the workers that there are.

        Raises
        ------
        DBoostError
            When there was no worker for `dboost.worker-timeout`, or all were paused at their memory limits.
        """
        here, paused = self._connection.sweep()
        if set(here) - set(paused):  # a worker can run tasks
            self._seconds = 0.0
            return here
        self._seconds += liveness_timeout()
        if self._seconds >= worker_timeout():
            seconds, lost = f"{worker_timeout():.0f} s", self._connection.attempts.summary()
            if not here:
                raise DBoostError(f"no worker has come for {seconds}: nobody can read the data{lost}")
            told = ", ".join(
                f"{worker} uses {format_bytes(used)}" + (f" of {format_bytes(limit)}" if limit else "")
                for worker, (used, limit) in paused.items()
            )
            raise DBoostError(
                f"for {seconds} all workers have been paused by Dask because they are short of memory ({told}), and paused "
                "workers read no data: free what else they hold, or add workers or memory"
            )
        return here


def _gathered(connection: Connection, waiting: dict[Future, int]) -> list[Receipt]:
    """The results of tasks that are done; those whose worker is gone by now are computed again, by another one."""

    async def results() -> Any:
        return await connection.client.gather(list(waiting), asynchronous=True)

    waited = _Waited(connection)
    while True:
        try:
            return list(connection.client.sync(results, callback_timeout=liveness_timeout()))
        except TimeoutError:
            waited.more()
        except Exception as error:
            failed = next((i for future, i in waiting.items() if future.status == "error"), None)
            if failed is None:
                raise
            raise _Unread(failed, error) from error


def _given(value: Any) -> Any:
    return value


def _read_part(
    session: tuple[str, str, list[str]], batch: str, i: int, plan: bytes, filled: Sequence[bool], bundle: tuple[Any, ...]
) -> Receipt:
    """The loading task. session : arguments of `here`."""
    holding, ref = here(*session)
    how, budget, whole = unpack(plan)
    return Receipt(i, holding.take(batch, i, how, in_place(bundle, filled), budget, whole), ref)


def _check_part(i: int, plan: bytes, bundle: tuple[Any, ...]) -> None:
    """The task that looks at the columns of a partition."""
    check_columns(i, bundle[0], unpack(plan))


def _cut(data: Any, frame: Frame, n_parts: int) -> tuple[dict[Any, Any], list[Any]]:
    """Tasks that hold the rows of a table in memory."""
    n = frame.n_rows
    n_parts = max(1, min(n_parts, n // _LEAST_ROWS))
    bounds = [n * k // n_parts for k in range(n_parts + 1)]
    pieces = [pack(_rows(data, frame, first, last)) for first, last in pairwise(bounds)]
    return {}, [(_unpacked, piece) for piece in pieces]


def _unpacked(piece: bytes) -> tuple[Any, ...]:
    return (unpack(piece),)


def _selected(data: Any, frame: Frame, plan: ReadPlan) -> Any:
    """The columns of a table in memory that are read, where these are not all."""
    if not frame.named or plan.all_names is not None:
        return data
    places = [j for j, name in enumerate(frame.names) if name in set(plan.needed)]
    return data.iloc[:, places] if hasattr(data, "iloc") else data.select([frame.names[j] for j in places])


def _rows(data: Any, frame: Frame, first: int, last: int) -> Any:
    """Some rows of a table in memory, such that nothing else is pickled with them."""
    if frame.matrix is not None:
        part = frame.matrix[first:last]
        return part.copy() if is_a(part, "numpy.ma", "MaskedArray") else np.ascontiguousarray(part)
    return rows_alone(data.iloc[first:last] if hasattr(data, "iloc") else data.slice(first, last - first))


def rows_alone(part: Any) -> Any:
    """Some rows as they are to be pickled: without pandas' index, and without the rows around them in Arrow's buffers."""
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
