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

from dboost.cluster.connection import Connection
from dboost.cluster.durations import patience, worker_timeout
from dboost.cluster.holder import here
from dboost.cluster.messages import READING, SessionRef, pack, unpack
from dboost.errors import DataError, DBoostError
from dboost.schema import Feature
from dboost.sources.bundle import in_place
from dboost.sources.frame import Frame, as_frame, is_lazy, is_path, library
from dboost.sources.partition import ROLES
from dboost.sources.plan import Plan, make_plan
from dboost.sources.table import separate_roles
from dboost.training.budget import Budget, in_words
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


class Source:
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
        grows: bool = False,
        n_parts: int = 1,
        budget: Budget | None = None,
    ) -> None:
        from dboost.sources import lazy  # for the client only

        self._budget = budget
        if target is None:
            raise DataError("training requires y to be passed, but the target y is None")
        if is_path(data):
            from dboost.sources.paths import open_path

            data = open_path(data, None if budget is None else budget.chunk)
        given = dict(zip(ROLES, (target, sample_weight, offset), strict=True))
        frame = None if is_lazy(data) else as_frame(data)
        names, self.named = lazy.layout(data) if frame is None else (frame.names, frame.named)
        self.plan = make_plan(
            names, self.named, roles=given, features=features, categorical_features=categorical_features, like=like, grows=grows
        )
        separate = separate_roles(self.plan, given)
        #: Target, weight and offset that were given for all rows at once, by role.
        self.whole = {role: values for role, values in separate.items() if not is_lazy(values)}
        aligned = {role: values for role, values in separate.items() if is_lazy(values)}
        if frame is not None:
            self.whole |= {role: lazy.compute(values) for role, values in aligned.items()}
            aligned = {}
            self._graph, self._bundles = _cut(data, frame, n_parts)
        else:
            if not self.named:
                data = lazy.whole_rows(data)
            elif self.plan.all_names is None:
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

    def packed(self, plan: Plan) -> bytes:
        """A plan as workers are told it."""
        return pack((plan, self._budget, bool(self.whole)))

    def read(
        self, connection: Connection, batch: str, numbers: Sequence[int], plan: Plan, workers: Sequence[str] | None = None
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
        self, connection: Connection, batch: str, numbers: Sequence[int], plan: Plan, wish: dict[str, Any]
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
        finally:
            connection.client.cancel(list(futures), reason="loading ended")


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
            future = done.get(timeout=patience())
        except queue.Empty:
            here = waited.more()
            if bound and not set(bound) & set(here):
                raise _Again from None
            continue
        waited = _Waited(connection)
        if future.status == "error":
            raise _failure(waiting[future], future.exception())
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
        """After another `dboost.patience` without news: the workers that there are.

        Raises
        ------
        DBoostError
            When there was no worker for `dboost.worker-timeout`, or all were paused at their memory limits.
        """
        here, paused = self._connection.sweep()
        if set(here) - set(paused):  # somebody can work
            self._seconds = 0.0
            return here
        self._seconds += patience()
        if self._seconds >= worker_timeout():
            seconds, lost = f"{worker_timeout():.0f} s", self._connection.attempts.summary()
            if not here:
                raise DBoostError(f"no worker has come for {seconds}: nobody can read the data{lost}")
            told = ", ".join(f"{worker} uses {in_words(used)} of {in_words(limit)}" for worker, (used, limit) in paused.items())
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
            return list(connection.client.sync(results, callback_timeout=patience()))
        except TimeoutError:
            waited.more()
        except Exception as error:
            failed = next((i for future, i in waiting.items() if future.status == "error"), None)
            if failed is None:
                raise
            raise _failure(failed, error) from error


def _failure(i: int, error: BaseException | None) -> DBoostError:
    if isinstance(error, DBoostError):
        return error
    if isinstance(error, KeyError):
        return DataError(f"partition {i}: there is no column {error}")
    wrapped = DBoostError(f"partition {i} could not be read: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def _given(value: Any) -> Any:
    return value


def _read_part(
    session: tuple[str, str, list[str]], batch: str, i: int, plan: bytes, filled: Sequence[bool], bundle: tuple[Any, ...]
) -> Receipt:
    """The loading task. session : arguments of `here`."""
    holding, ref = here(*session)
    how, budget, whole = unpack(plan)
    return Receipt(i, holding.take(batch, i, how, in_place(bundle, filled), budget, whole), ref)


def _cut(data: Any, frame: Frame, n_parts: int) -> tuple[dict[Any, Any], list[Any]]:
    """Tasks that hold the rows of a table in memory."""
    n = frame.n_rows
    n_parts = max(1, min(n_parts, n // _LEAST_ROWS))
    bounds = [n * k // n_parts for k in range(n_parts + 1)]
    pieces = [pack(_rows(data, frame, first, last)) for first, last in pairwise(bounds)]
    return {}, [(_unpacked, piece) for piece in pieces]


def _unpacked(piece: bytes) -> tuple[Any, ...]:
    return (unpack(piece),)


def _rows(data: Any, frame: Frame, first: int, last: int) -> Any:
    if frame.matrix is not None:
        return np.ascontiguousarray(frame.matrix[first:last])
    if library(data) == "pandas":
        return data.iloc[first:last]
    if library(data) == "polars" and hasattr(data, "collect"):
        data = data.collect()
    return data.slice(first, last - first)
