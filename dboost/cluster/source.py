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
from dboost.cluster.messages import READING, pack, unpack
from dboost.errors import DataError, DBoostError
from dboost.schema import Feature
from dboost.sources.bundle import in_place
from dboost.sources.frame import Frame, as_frame, is_lazy, is_path, library
from dboost.sources.partition import ROLES
from dboost.sources.plan import Plan, make_plan
from dboost.sources.table import separate_roles
from dboost.training.budget import Budget

#: Loading tasks go before the tasks that the user queued earlier.
_PRIORITY = 10
#: Rows of a partition that is cut from data in memory, at least.
_LEAST_ROWS = 5_000
#: Bytes of a plan that goes with every task.
_LIGHT = 32 * 1024
#: Seconds between two events that tell how many partitions have been read.
_TELLING = 0.25


@dataclass(frozen=True)
class Receipt:
    """That a worker has read a partition."""

    number: int
    n_rows: int
    worker: str


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

            data = open_path(data)
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

        Raises
        ------
        DataError, DBoostError
            Naming the partition that could not be read, and why.
        """
        plan_key = f"dboost-plan-{connection.fit}-{batch}"
        keys = {i: f"{READING}{connection.fit}-{batch}-{i}" for i in numbers}
        graph = dict(self._graph)
        packed: Any = self.packed(plan)
        if len(packed) > _LIGHT:
            # One task for all; it draws them to where it ran, so a light plan goes with each.
            graph[plan_key], packed = (_given, packed), plan_key
        for i, key in keys.items():
            graph[key] = (_read_part, connection.fit, batch, i, packed, self._filled, self._bundles[i])
        # A worker may go at any time: a wish, never a condition.
        wish = {} if workers is None else {"workers": list(workers), "allow_other_workers": True}
        futures = connection.client.get(graph, list(keys.values()), sync=False, priority=_PRIORITY, **wish)
        try:
            news = _Reading(connection, batch.rpartition("/")[0], len(numbers))
            return _receipts(connection, dict(zip(futures, numbers, strict=True)), news)
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


def _receipts(connection: Connection, waiting: dict[Future, int], news: _Reading) -> list[Receipt]:
    """Wait for loading tasks. While nothing arrives, workers that do not answer are looked for: Dask would not miss them."""
    done: queue.SimpleQueue[Future] = queue.SimpleQueue()
    for future in waiting:
        future.add_done_callback(done.put)
    n_left, silent = len(waiting), 0.0
    while n_left:
        try:
            future = done.get(timeout=patience())
        except queue.Empty:
            silent = 0.0 if connection.sweep() else silent + patience()
            if silent >= worker_timeout():
                raise DBoostError(f"no worker has come for {worker_timeout():.0f} s: nobody can read the data") from None
            continue
        silent = 0.0
        if future.status == "error":
            raise _failure(waiting[future], future.exception())
        if future.cancelled():
            raise DBoostError(f"the task that reads partition {waiting[future]} was cancelled")
        n_left -= 1
        news.tell(len(waiting) - n_left)
    return list(connection.client.gather(list(waiting)))


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


def _read_part(fit: str, batch: str, i: int, plan: bytes, filled: Sequence[bool], bundle: tuple[Any, ...]) -> Receipt:
    """The loading task."""
    holding, address = here(fit)
    how, budget, whole = unpack(plan)
    return Receipt(i, holding.take(batch, i, how, in_place(bundle, filled), budget, whole), address)


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
