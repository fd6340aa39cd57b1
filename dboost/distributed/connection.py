"""The client's end: calls to the reducer, as plain functions that return, or raise what happened.

How often a fit may lose workers without getting on.

A step that loses a worker is repeated, as soon as the lost rows have been read again. On machines that come and go that may
happen any number of times. But a step that *itself* ends its workers (a histogram that does not fit the memory, a loss of the
user's that crashes) would be repeated until no worker is left, and with nannies for ever. So losses are counted, and the count
starts again whenever the fit gets on: when an iteration is complete, or more partitions have been brought further than before.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import dask
from distributed import Client, LocalCluster, get_worker, worker_client

from dboost.config import liveness_timeout, worker_timeout
from dboost.distributed.messages import CANCELLED, FAILED, LOST, OK, SILENT, LostWorkers, Timing, pack
from dboost.distributed.reducer import Reducer
from dboost.errors import DBoostError, InputTypeError
from dboost.session.protocol import SessionRef, session_refs, unpack
from dboost.trees.tree_task import GrownTree
from dboost.version import __version__

#: How long to try to reach a scheduler.
CONNECT_TIMEOUT = "20s"


@contextmanager
def current_client(given: Any) -> Iterator[Client | None]:
    """The client that was given, else that of the task this runs in, else the current one, else None.

    Raises
    ------
    InputTypeError
        For an asynchronous client, or something that is none.
    """
    if given is not None:
        yield checked(given)
        return
    if _in_task():
        with worker_client() as client:  # leaves the worker's thread to other tasks, ours among them
            yield client
        return
    if dask.config.get("scheduler", None) in (None, "dask.distributed", "distributed"):
        try:
            client = Client.current(allow_global=True)
        except ValueError:
            client = None
        yield None if client is None else checked(client)
        return
    yield None


@contextmanager
def connected(scheduler: str | None, n_workers: int | None) -> Iterator[Client]:
    """A client of a scheduler, or of new workers on this machine; the current one as long as it is open.

    Raises
    ------
    DBoostError
        When the scheduler cannot be reached.
    """
    if scheduler is not None:
        try:
            client = Client(scheduler, timeout=CONNECT_TIMEOUT)
        except (OSError, ValueError) as error:
            raise DBoostError(f"the scheduler at {scheduler} cannot be reached: {error}") from error
        with client:
            yield client
        return
    n_threads = max((os.cpu_count() or 1) // (n_workers or 1), 1)
    with (
        LocalCluster(n_workers=n_workers, threads_per_worker=n_threads, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


@contextmanager
def inside() -> Iterator[Client]:
    """A client of a scheduler and one worker of one thread, all in this process, that nobody else can reach."""
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, silence_logs=logging.ERROR
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def checked(client: Any) -> Client:
    if not isinstance(client, Client):
        raise InputTypeError(f"client must be a distributed.Client, not {type(client).__name__}")
    if client.asynchronous:
        raise InputTypeError(
            "asynchronous clients are not supported: make one with Client(address), or call dboost.fit in a thread with a "
            "client of its own"
        )
    return client


def _in_task() -> bool:
    try:
        get_worker()
    except ValueError:
        return False
    return True


def check_version(address: str, version: str | None) -> None:
    """Refuse a worker that cannot take part.

    Raises
    ------
    DBoostError
    """
    if version is None:
        raise DBoostError(f"worker {address} has no dboost: install dboost {__version__} there")
    if version != __version__:
        raise DBoostError(f"worker {address} has dboost {version}, this process {__version__}")


class Connection:
    """A fit's line to the cluster; use as a context manager.

    Parameters
    ----------
    client : distributed.Client

    Attributes
    ----------
    client : distributed.Client
    fit : str
        A name for this fit that nobody else has.
    roster : list of (str, str)
        Address and identity of all worker processes of the cluster, as of the last answer.
    lost : set of SessionRef
        Sessions that were lost. They are never asked again, whatever becomes of their workers: the rows are held elsewhere by
        now, and nothing may be counted twice.
    attempts : Attempts

    Raises
    ------
    DBoostError
        When the scheduler or a worker has no dboost, or another version of it, naming it.
    """

    def __init__(self, client: Client) -> None:
        liveness_timeout(), worker_timeout()  # a wrong setting is an error now, not in the middle of trouble
        self.client = client
        self.fit = uuid.uuid4().hex
        where = client.scheduler.address if client.scheduler is not None else "?"
        try:
            client.register_plugin(Reducer())
        except Exception as error:
            if isinstance(error, OSError):
                raise DBoostError(f"the scheduler at {where} cannot be reached: {error}") from error
            raise DBoostError(
                f"the scheduler at {where} cannot run dboost {__version__}; is it installed there? {error}"
            ) from error
        self.roster: list[tuple[str, str]] = []
        self.lost: set[SessionRef] = set()
        self.attempts = Attempts()
        try:
            reply = self._call("dboost_open", client_id=client.id)
            if reply["version"] != __version__:
                raise DBoostError(f"the scheduler at {where} has dboost {reply['version']}, this process {__version__}")
            for address, version in reply["hellos"].items():
                if version != SILENT:
                    check_version(address, version)
        except BaseException:  # or the scheduler would keep a fit that never began
            self.end()
            raise

    def usable(self) -> tuple[list[str], dict[str, str]]:
        """Workers that can take part, and for those that cannot the reason; silent ones are among neither."""
        usable: list[str] = []
        others: dict[str, str] = {}
        for address, version in self._call("dboost_workers")["hellos"].items():
            try:
                if version != SILENT:
                    check_version(address, version)
                    usable.append(address)
            except DBoostError as error:
                others[address] = str(error)
        return usable, others

    def ask(self, refs: Sequence[SessionRef], method: Callable[..., Any], *arguments: Any) -> dict[SessionRef, Any]:
        """Call a method of these sessions with the same arguments; their results.

        Raises
        ------
        LostWorkers
            When some of them are lost.
        DBoostError
            What a worker raised; other errors as a DBoostError that names the worker.
        """
        return self._ask(list(refs), method.__name__, pack(arguments))

    def ask_each(self, arguments: dict[SessionRef, tuple[Any, ...]], method: Callable[..., Any]) -> dict[SessionRef, Any]:
        """The same, with arguments for each."""
        return self._ask(list(arguments), method.__name__, [pack(each) for each in arguments.values()])

    def _ask(self, refs: list[SessionRef], method: str, packed: Any) -> dict[SessionRef, Any]:
        self._check_not_lost(refs)
        reply = self._call("dboost_ask", sessions=refs, method=method, arguments=packed)
        return dict(zip(refs, self._results(reply), strict=True))

    def move(self, batch: str, plan: bytes, moves: dict[str, list[tuple[int, SessionRef]]]) -> list[SessionRef]:
        """Have workers take partitions over that others have read; the sessions that have them now.

        moves : {new owner: (partition, old owner) pairs}

        Raises
        ------
        LostWorkers
            When some of them are gone; how far the others came is not known then.
        """
        reply = self._call("dboost_move", batch=batch, plan=plan, moves=moves, lost=self.lost_sessions)
        return self._results(reply)

    def grow(self, refs: Sequence[SessionRef], order: bytes) -> tuple[GrownTree, Timing]:
        """Grow a tree. order : packed (TreeTask, Layout, n_rows, width, rows of each session). Raises like `ask`."""
        self._check_not_lost(refs)
        return unpack(self._call("dboost_grow", sessions=list(refs), order=order)["tree"])

    def sweep(self) -> tuple[list[str], dict[str, tuple[int, int]]]:
        """Have workers removed that this fit waits for and that are stopped or cut off.

        The addresses of the workers that are left; and of those that are paused the bytes they use and their limit.
        """
        reply = self._call("dboost_sweep")
        return list(reply["workers"]), dict(reply["paused"])

    def abandon(self, refs: Sequence[SessionRef]) -> None:
        """Give sessions up; their workers, if they are still there, are told to drop them."""
        self.lost.update(refs)
        with suppress(DBoostError):  # nothing depends on it: a lost session is never asked again
            self._call("dboost_abandon", sessions=list(refs))

    def discard(self, batch: str) -> None:
        """Have all workers forget a batch that came to nothing."""
        with suppress(DBoostError):
            self._call("dboost_discard", batch=batch)

    @property
    def lost_sessions(self) -> list[str]:
        """Names of the sessions that were given up, for workers that may still have one."""
        return sorted(ref.session for ref in self.lost)

    def _check_not_lost(self, refs: Sequence[SessionRef]) -> None:
        lost = [ref for ref in refs if ref in self.lost]
        if lost:
            raise LostWorkers(lost)

    def tell(self, action: str, **what: Any) -> None:
        """Have an event of this fit logged; nothing is waited for, and what cannot be told is not."""
        with suppress(Exception):
            event = {"action": action, "fit": self.fit, **what}
            self.client._send_to_scheduler({"op": "dboost-tell", "event": event})

    def end(self, outcome: str = "failed") -> None:
        """Free everything that the cluster holds of this fit; one that is under way is cancelled."""
        if self.client.status == "running":
            with suppress(DBoostError):  # a scheduler that is gone holds nothing any more
                self._call("dboost_end", outcome=outcome)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.end("done" if kind is None else "interrupted" if issubclass(kind, KeyboardInterrupt) else "failed")

    def _results(self, reply: dict[str, Any]) -> list[Any]:
        self.roster = [(address, identity) for address, identity in reply["workers"]]
        return [unpack(result) for result in reply["results"]]

    def _call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        async def call() -> Any:
            scheduler: Any = self.client.scheduler
            remote: Callable[..., Any] = getattr(scheduler, operation)
            return await remote(fit=self.fit, **arguments)

        try:
            reply = self.client.sync(call)
        except OSError as error:
            raise DBoostError(f"the connection to the scheduler was lost: {error}") from error
        if reply is None or "status" not in reply:
            raise DBoostError("the scheduler no longer runs dboost: was it restarted?")
        if reply["status"] == LOST:
            lost = session_refs(reply["sessions"])
            self.abandon(lost)
            raise LostWorkers(lost)
        if reply["status"] == FAILED:
            what = unpack(reply["error"])
            if isinstance(what, DBoostError):
                raise what
            raise DBoostError(f"worker {reply['worker']} failed: {type(what).__name__}: {what}") from what
        if reply["status"] == CANCELLED:
            raise DBoostError("the fit was cancelled")
        assert reply["status"] == OK
        return reply


#: Attempts in a row that may lose workers.
MOST_ATTEMPTS = 10
#: Losses that an error tells of.
_TOLD = 3


class Attempts:
    """Counts losses since the fit last got on."""

    def __init__(self) -> None:
        self._losses: list[tuple[str, str]] = []
        self._reached = "it began"

    def reset(self, reached: str) -> None:
        """The fit has got on. reached : what it has reached, as in "iteration 17"."""
        self._losses = []
        self._reached = reached

    def note(self, call: str, lost: LostWorkers) -> None:
        """Note that a call has lost workers.

        Raises
        ------
        DBoostError
            When that was once too often in a row, naming the calls and the workers.
        """
        self._losses.append((call, str(lost)))
        if len(self._losses) >= MOST_ATTEMPTS:
            raise DBoostError(
                f"workers were lost {len(self._losses)} times since {self._reached}{self.summary()}; giving up, "
                "see the workers' logs (too little memory, or a crash in a loss or in code that reads data?)"
            ) from lost

    def summary(self) -> str:
        """The latest losses, for messages that begin with something else; empty if there were none."""
        if not self._losses:
            return ""
        told = "; ".join(f"{workers} in {call!r}" for call, workers in self._losses[-_TOLD:])
        return f" (lost last: {told})"
