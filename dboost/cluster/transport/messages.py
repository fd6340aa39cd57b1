"""Messages between the client (`cluster.client.connection`), the reducer (`cluster.scheduler.reducer`) and the worker plugin
(`cluster.worker.worker_plugin`).

Every message is a call: the name of a method and its arguments, pickled by dboost. So neither Dask's message format nor the
scheduler, which does not deserialize them, depends on the types of arguments. Every reply has a status, "OK" or the reason of
a failure; a process without the handler of a call replies None.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from distributed.protocol import pickle as dask_pickle

from dboost.errors import DBoostError

#: Name of both plugins, and prefix of all calls and log topics.
NAME = "dboost"
#: Prefix of the keys of tasks that read a partition.
READING = "dboost-read-"
OK, LOST, FAILED, UNKNOWN, STALE = "OK", "lost", "failed", "unknown", "stale"
CANCELLED, SILENT = "cancelled", "silent"

#: What a worker replies to a ping: its version of dboost (None if it cannot run dboost, SILENT without a reply), the reason
#: why it cannot run dboost (None if dboost is not installed there), and the name of its host and its processors if it can.
WorkerVersion = tuple[str | None, str | None, str | None, str | None]


class SessionRef(NamedTuple):
    """The name of a session: the state of one fit in one worker process.

    An address alone is ambiguous: a worker that is restarted at the same address has a new session without rows. Every call
    names its session, and a worker with another session replies `UNKNOWN`.
    """

    worker: str
    session: str


def session_refs(pairs: Sequence[Sequence[str]]) -> list[SessionRef]:
    """Return `SessionRef` objects from the lists to which msgpack converts them."""
    return [SessionRef(*pair) for pair in pairs]


def pack_round(message: Any) -> bytes:
    """Pickle a request or a reply of a round.

    These contain no objects of the user, so plain pickle suffices. A fit sends thousands of them, and Dask's serialization
    would traverse each.
    """
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


def unpack(message: bytes | memoryview) -> Any:
    """Return the object of a message, whichever function of this module packed it."""
    return pickle.loads(message)


class LostWorkers(Exception):
    """Sessions are lost: their workers are gone, or no longer have the session."""

    def __init__(self, sessions: Sequence[SessionRef]) -> None:
        super().__init__(", ".join(sorted({ref.worker for ref in sessions})))
        self.sessions = list(sessions)


class WorkerFailed(Exception):
    """A call failed on a worker. error : see `pack_error`."""

    def __init__(self, address: str, error: bytes) -> None:
        super().__init__(address)
        self.address, self.error = address, error

    @property
    def position(self) -> tuple[int, int] | None:
        """Partition and row that the error is about, if it is about one: then the call waits for no other session."""
        return unpack(self.error)[0]


class Failures:
    """What of the errors that the sessions of a call report is raised: that of the first row, in whatever order they arrive.

    An error of a row of the data is raised when all sessions have answered. Any other one is raised at once, because it may
    keep other sessions waiting for ever.
    """

    def __init__(self) -> None:
        self._first: WorkerFailed | None = None

    def note(self, failed: WorkerFailed) -> None:
        """Keep an error, or raise it."""
        position = failed.position
        if position is None:
            raise failed
        first = None if self._first is None else self._first.position
        if first is None or position < first:
            self._first = failed

    def check(self) -> None:
        """Raise the error of the first row, if there is any; called when all sessions have answered."""
        if self._first is not None:
            raise self._first


class FitCancelled(Exception):
    """The fit was cancelled."""


#: Name and arguments of a method of a session.
Step = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True)
class AfterSteps:
    """The arguments of a call, and other calls of the session that come before it, in the same message."""

    steps: list[Step]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Timing:
    """Times of some rounds."""

    n_rounds: int = 0
    compute: float = 0.0  # seconds of the slowest worker's computation
    reduce: float = 0.0  # seconds of merging histograms and picking splits
    wait: float = 0.0  # remaining seconds, mainly for messages
    n_bytes: int = 0  # of the replies

    def __add__(self, other: Timing) -> Timing:
        return Timing(
            self.n_rounds + other.n_rounds,
            self.compute + other.compute,
            self.reduce + other.reduce,
            self.wait + other.wait,
            self.n_bytes + other.n_bytes,
        )


def pack(message: Any) -> bytes:
    """Pickle a message; objects that the user defined in a script are pickled by value."""
    return dask_pickle.dumps(message)


def pack_error(error: BaseException) -> bytes:
    """Pickle the position of an error and the error, for `unpack_error`.

    A RuntimeError with its type and text takes the place of an error that cannot be pickled and unpickled, or would end a
    process.
    """
    try:
        if isinstance(error, Exception):
            packed = pack(error)
            unpack(packed)  # fails if the error's type is made by other arguments than it keeps
            return pack_round((error.position if isinstance(error, DBoostError) else None, packed))
    except Exception:
        pass
    return pack_round((None, pack(RuntimeError(f"{type(error).__name__}: {error}"))))


def unpack_error(packed: bytes) -> Any:
    """Return the error that `pack_error` pickled."""
    return unpack(unpack(packed)[1])
