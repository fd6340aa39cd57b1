"""The client's calls to the reducer, as functions that return the results or raise an exception."""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import count
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

from distributed import Client, Future

from dboost.cluster.client.attempts import N_REPORTED_LOSSES, Attempts
from dboost.cluster.client.client_loss import ClientLost, SchedulerWatch, address_of, lost_client, reporting_loss, unreachable
from dboost.cluster.client.dask_clients import seceded
from dboost.cluster.client.worker_choice import KnownWorkers, WorkerChoice, WorkerRecord
from dboost.cluster.scheduler.reducer import Reducer
from dboost.cluster.transport.line import Line, open_line
from dboost.cluster.transport.messages import (
    CANCELLED,
    FAILED,
    LOST,
    OK,
    UNKNOWN,
    AfterSteps,
    LostWorkers,
    SessionRef,
    Step,
    Timing,
    pack,
    pack_round,
    session_refs,
    unpack,
    unpack_error,
)
from dboost.config import liveness_timeout, worker_timeout
from dboost.display import counted
from dboost.errors import DBoostError, is_out_of_descriptors, out_of_descriptors
from dboost.rows.block_file import StorageError
from dboost.training.progress import Progress
from dboost.trees.fit_trees import GrownTree
from dboost.trees.tree_rounds import GrowOrder
from dboost.version import __version__

#: Seconds between two looks for a usable worker.
_POLL = 0.25
#: Seconds for which the records of workers are recent, see `Connection.refresh_workers`.
_RECENT = 1.0
#: By client the scheduler in which it has installed the reducer.
_installed: WeakKeyDictionary[Client, str] = WeakKeyDictionary()
_numbers = count()
_log = logging.getLogger("dboost")


class Connection:
    """The connection of a fit to the cluster; use as a context manager.

    Parameters
    ----------
    client : distributed.Client
    choice : WorkerChoice, optional
        The workers that the fit may use. Default: all.

    Attributes
    ----------
    client : distributed.Client
    fit : str
        Unique name of the fit.
    number : int
        Number of the fit in this process.
    roster : list of (str, str)
        Address and identity of all worker processes of the cluster, as of the last reply.
    lost : set of SessionRef
        Lost sessions. They are never called again, even if their workers return: other sessions have read their rows, and no
        row may be counted twice.
    losses : list of dict
        The lost workers that had rows, in the order of their losses: "worker" (address), "iteration" (after which the worker
        was lost, None while data were loaded), "partitions" and "rows" (of the first table that had some; None if the worker
        was lost while it read them).
    iteration : int, optional
        The last complete iteration, None while data are loaded.
    progress : Progress
        Shows the partitions that have been read. Default: nothing.
    attempts : Attempts
    address : str
        Of the scheduler.
    has_ended : bool
    reading : set of Future
        The read tasks of all threads of the fit.
    workers : KnownWorkers
        As of the last call of `refresh_workers`.

    Raises
    ------
    DBoostError
        When the scheduler has no dboost, or another version of it, or cannot start it; or a worker that the user named, or all
        workers that the fit may use. It names the worker. Other such workers are left out with a warning.
    ClientLost
        When the client or its cluster is closed, also later, instead of the errors that follow from it.
    """

    def __init__(self, client: Client, choice: WorkerChoice | None = None) -> None:
        liveness_timeout(), worker_timeout()  # raise errors of the configuration now, not during recovery
        self.client, self._choice = client, choice or WorkerChoice()
        self.fit, self.number = uuid.uuid4().hex, next(_numbers)
        self.address = address_of(client)
        self._watch = SchedulerWatch(client, self.address)
        self.roster: list[tuple[str, str]] = []
        self.lost: set[SessionRef] = set()
        self.losses: list[dict[str, Any]] = []
        self._reported: set[SessionRef] = set()
        self.iteration: int | None = None
        self.progress = Progress(False)
        self.attempts = Attempts()
        self.workers = KnownWorkers.of({}, 1, self._choice)
        self._refreshed = -math.inf  # when the scheduler returned them
        self.has_ended = False
        self.reading: set[Future] = set()
        self._line: Line | None = None
        self._n_calls = 0
        self._released = ExitStack()
        with reporting_loss(client):
            self._open()

    def _open(self) -> None:
        """Install the reducer if it is not there, and open the fit."""
        scheduler: Any = getattr(self.client, "_scheduler_identity", {}).get("id")  # renewed when the client connects again
        if scheduler is None or _installed.get(self.client) != scheduler:
            self._install()
            _installed[self.client] = scheduler
        try:
            reply = self._call("dboost_open", client_id=self.client.id)
            if reply["version"] != __version__:
                raise DBoostError(f"the scheduler at {self.address} has dboost {reply['version']}, this process {__version__}")
            self._host = reply["host"]
            self._note_workers(reply)
            self.workers.check(self._choice)
        except BaseException:  # otherwise the scheduler would keep the fit
            self.end()
            raise

    def _install(self) -> None:
        """Install the reducer in the scheduler, unless another client has."""
        try:
            self.client.register_plugin(Reducer())
        except OSError as error:
            raise DBoostError(f"the scheduler at {self.address} cannot be reached: {error}") from error
        except Exception as error:
            raise DBoostError(
                f"the scheduler at {self.address} cannot run dboost {__version__}; is it installed there? {error}"
            ) from error

    def open_line(self) -> Line:
        """Return the line for calls of sessions; open it at the first call.

        Calls do so, too: this is for a thread that will wait for something else anyway.
        """
        if self._line is None:
            client, fit = self.client, self.fit

            async def opened() -> tuple[str, Line | None]:
                scheduler: Any = client.scheduler
                return await open_line(scheduler.address, {"op": "dboost_line", "fit": fit}, client.connection_args)

            try:
                status, self._line = self._run(opened)
            except OSError as error:
                raise self._unreachable(error) from error
            if self._line is None:
                self._check({"status": status})
                raise AssertionError("an accepted call has opened a line")
        return self._line

    def cancel(self, futures: Iterable[Future], reason: str) -> None:
        """Cancel tasks; do nothing if the client was closed, which cancels them."""
        with suppress(ClientLost):
            self._run(lambda: self.client.cancel(list(futures), asynchronous=True, reason=reason))

    def _unreachable(self, error: OSError) -> DBoostError:
        """Return the error to raise if a call does not reach the scheduler."""
        return lost_client(self.client, self.address) or unreachable(self.address, error)

    def _run(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run a coroutine on the client's event loop; ClientLost when the client is closed meanwhile."""
        with reporting_loss(self.client):
            return self._watch.run(work())

    @property
    def is_confined(self) -> bool:
        """Whether the user chose the workers of this fit."""
        return bool(self._choice)

    def refresh_workers(self, *, recent: bool = False) -> KnownWorkers:
        """Ask the scheduler for its workers, and return them.

        recent : whether the workers of a moment ago suffice if none was lost since, default False.
        """
        if not recent or time.monotonic() - self._refreshed > _RECENT:
            self._note_workers(self._call("dboost_workers"))
        return self.workers

    def shares_host(self, workers: Iterable[str]) -> bool:
        """Return whether the scheduler is on the host of one of these workers, as far as they are known."""
        records = self.workers.records
        return any(self._host == records[worker].host for worker in workers if worker in records)

    def _note_workers(self, reply: dict[str, Any]) -> None:
        records = {address: WorkerRecord(*fields) for address, fields in reply["workers"].items()}
        self.workers = KnownWorkers.of(records, max(reply["fits"], 1), self._choice)
        self._refreshed = time.monotonic()

    def need_workers(self, n_workers: int) -> None:
        """Have an adaptive cluster provide at least this many workers until the end of the fit, without waiting for them."""
        self._call("dboost_need", n_workers=n_workers)

    def wait_for_usable(self) -> list[str]:
        """Return the usable workers, as soon as there is one.

        Raises
        ------
        DBoostError
            When none came for `dboost.worker-timeout`.
        """
        deadline = time.monotonic() + worker_timeout()
        while True:
            workers = self.refresh_workers()
            if workers.usable:
                return workers.usable
            if time.monotonic() >= deadline:
                reasons = "; ".join(sorted(filter(None, workers.unusable.values()))[:N_REPORTED_LOSSES])
                among = f" of workers={self._choice}" if self._choice else ""
                raise DBoostError(
                    f"no worker{among} that can read the data has come for {worker_timeout():.0f} s"
                    f"{f' ({reasons})' if reasons else ''}{self.attempts.summary()}"
                )
            time.sleep(_POLL)

    def ask(self, refs: Sequence[SessionRef], method: Callable[..., Any], *arguments: Any) -> dict[SessionRef, Any]:
        """Call a method of these sessions with the same arguments; return the results.

        Raises
        ------
        LostWorkers
            When some of them are lost.
        DBoostError
            The error of a worker; other types of errors as a DBoostError that names the worker.
        """
        return self._ask(list(refs), method.__name__, pack(arguments))

    def ask_each(
        self,
        arguments: Mapping[SessionRef, tuple[Any, ...]],
        method: Callable[..., Any],
        before: Mapping[SessionRef, list[Step]] | None = None,
    ) -> dict[SessionRef, Any]:
        """Call a method of sessions with arguments for each; see `ask`. before : other calls of each session, made first."""
        steps = {} if before is None else before
        packed = [pack(AfterSteps(steps[ref], argument) if steps.get(ref) else argument) for ref, argument in arguments.items()]
        return self._ask(list(arguments), method.__name__, packed)

    def _ask(self, refs: list[SessionRef], method: str, packed: Any) -> dict[SessionRef, Any]:
        self._check_not_lost(refs)
        reply = self._call("dboost_ask", sessions=refs, method=method, arguments=packed)
        return dict(zip(refs, self._results(reply), strict=True))

    def move(self, batch: str, plan: bytes, moves: Mapping[str, Sequence[tuple[int, SessionRef]]]) -> dict[str, SessionRef]:
        """Move partitions that have been read to other workers; return the sessions that received them, by worker.

        moves : {new owner: (partition, old owner) pairs}.

        Raises
        ------
        LostWorkers
            When some of them are lost; some of the moves may have been made.
        """
        workers = sorted({*moves, *(giver.worker for pairs in moves.values() for _, giver in pairs)})
        reply = self._call("dboost_sessions", workers=workers, lost=self.lost_sessions)
        sessions = {ref.worker: ref for ref in session_refs(reply["sessions"])}
        takers = {sessions[worker]: pack((batch, pairs, plan)) for worker, pairs in moves.items()}
        self._ask(list(takers), "take_partitions", list(takers.values()))
        return sessions

    def grow(
        self, refs: Sequence[SessionRef], order: GrowOrder, rows_of: Mapping[SessionRef, int]
    ) -> tuple[list[GrownTree], Timing]:
        """Grow trees. rows_of : number of rows of each session. Raises like `ask`."""
        self._check_not_lost(refs)
        return unpack(self._call("dboost_grow", sessions=list(refs), order=pack_round((order, rows_of)))["trees"])

    def remove_unresponsive(self) -> tuple[list[str], dict[str, tuple[int, int]], bool, dict[str, str]]:
        """Remove unresponsive workers that this fit waits for, and move its tasks from paused ones to others.

        Return the addresses of the remaining workers, for paused ones the bytes in use and the limit, whether all tasks of the
        fit wait for paused workers, and for tasks that none may run their restrictions.
        """
        self._refreshed = -math.inf
        reply = self._call("dboost_remove_unresponsive")
        return list(reply["workers"]), dict(reply["paused"]), bool(reply["stuck"]), dict(reply["unrunnable"])

    def abandon(self, refs: Sequence[SessionRef]) -> None:
        """Mark sessions as lost, and have their workers release them if they still exist."""
        self.lost.update(refs)
        self._refreshed = -math.inf
        with suppress(DBoostError):  # not essential: a lost session is never called again
            self._call("dboost_abandon", sessions=list(refs))

    def report_loss(self, ref: SessionRef, table: str, n_partitions: int, n_rows: int) -> None:
        """Log a lost worker, once, and record it in `losses`. table : whose partitions other workers read again."""
        if ref in self._reported:
            return
        self._reported.add(ref)
        self._record_loss(ref.worker, n_partitions, n_rows, f" of the {table} ({counted(n_rows, 'row')})")

    def _record_loss(self, worker: str, n_partitions: int, n_rows: int | None = None, source: str = "") -> None:
        self.losses.append({"worker": worker, "iteration": self.iteration, "partitions": n_partitions, "rows": n_rows})
        when = "while data were loaded" if self.iteration is None else f"after iteration {self.iteration}"
        partitions = counted(n_partitions, "partition") + source
        _log.warning("worker %s was lost %s: other workers read its %s again", worker, when, partitions)

    def discard(self, batch: str, workers: Sequence[str] | None = None) -> None:
        """Have workers release a batch that no session trains on, without waiting. workers : default None, all of them."""
        with suppress(Exception):  # not essential: the end of the fit releases it
            self.client._send_to_scheduler({"op": "dboost-discard", "fit": self.fit, "batch": batch, "workers": workers})

    @property
    def lost_sessions(self) -> list[str]:
        """Names of the lost sessions, for workers that may still have one."""
        return sorted(ref.session for ref in self.lost)

    def _check_not_lost(self, refs: Sequence[SessionRef]) -> None:
        lost = [ref for ref in refs if ref in self.lost]
        if lost:
            raise LostWorkers(lost)

    def record_event(self, action: str, **fields: Any) -> None:
        """Send an event of this fit to the scheduler's log, without waiting; errors are ignored."""
        with suppress(Exception):
            event = {"action": action, "fit": self.fit, **fields}
            self.client._send_to_scheduler({"op": "dboost-log", "event": event})

    def end(self, outcome: str = "failed") -> None:
        """Release all resources of this fit on the cluster; a running call is cancelled."""
        self.has_ended = True  # first, so that a thread that reads for joined workers knows why its tasks fail
        self._watch.is_ending = True
        if self.reading:
            self.cancel(self.reading, reason="the fit has ended")
        if self._watch.is_silent:
            with suppress(Exception):  # when it goes on
                self.client._send_to_scheduler({"op": "dboost-end", "fit": self.fit})
        elif self.client.status == "running":
            with suppress(DBoostError):  # nothing to release if the scheduler is gone
                self._call("dboost_end", outcome=outcome)
        if self._line is not None:
            self._line.close()

    def __enter__(self) -> Connection:
        self._released.enter_context(reporting_loss(self.client))
        self._released.enter_context(seceded())  # also if the caller gave a client
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self.losses and kind is None:
            n_lost = counted(len(self.losses), "worker")
            verb = "was" if len(self.losses) == 1 else "were"
            _log.warning("%s %s lost during the fit, and the result is the same as without the loss", n_lost, verb)
        try:
            self.end("done" if kind is None else "interrupted" if issubclass(kind, KeyboardInterrupt) else "failed")
        finally:
            self._released.__exit__(kind, error, traceback)

    def _call_on_line(self, operation: str, arguments: tuple[Any, ...]) -> Any:
        line = self.open_line()
        self._n_calls += 1
        line.send(self._n_calls, 0, pack_round((operation, *arguments)))
        message = line.receive(liveness_timeout(), self._watch.note_wait)
        while message.number != self._n_calls:  # the reply to a call that was interrupted
            message = line.receive(liveness_timeout(), self._watch.note_wait)
        self._watch.is_silent = False
        return message.unpack()

    def _results(self, reply: dict[str, Any]) -> list[Any]:
        self.roster = [(address, identity) for address, identity in reply["workers"]]
        for worker, n_partitions in reply.get("lost_readers", ()):
            self._record_loss(worker, n_partitions)
        return [unpack(result) for result in reply["results"]]

    def _call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Call the reducer, on the line of the fit or by a message of Dask; see `_check`."""

        async def call() -> Any:
            scheduler: Any = self.client.scheduler
            remote: Callable[..., Any] = getattr(scheduler, operation)
            return await remote(fit=self.fit, **arguments)

        try:
            if operation in Reducer.LINE_CALLS:
                reply = self._call_on_line(operation, tuple(arguments.values()))
            else:
                reply = self._run(call)
        except OSError as error:
            raise self._unreachable(error) from error
        return self._check(reply)

    def _check(self, reply: dict[str, Any] | None) -> dict[str, Any]:
        """Return the reply of the reducer, or raise the error that it reports."""
        if reply is None or reply.get("status", UNKNOWN) == UNKNOWN:
            raise DBoostError("the scheduler no longer runs dboost: was it restarted?")
        if reply["status"] == LOST:
            lost = session_refs(reply["sessions"])
            self.abandon(lost)
            raise LostWorkers(lost)
        if reply["status"] == FAILED:
            failure = unpack_error(reply["error"])
            if isinstance(failure, StorageError) and reply["worker"]:
                raise StorageError(f"worker {reply['worker']}: {failure}") from failure
            if isinstance(failure, DBoostError):
                raise failure
            where = f"worker {reply['worker']}" if reply["worker"] else "the reducer"
            if is_out_of_descriptors(failure):
                raise out_of_descriptors(where, "take part in the fit") from failure
            if isinstance(failure, ModuleNotFoundError):
                raise DBoostError(
                    f"{where} cannot import {failure.name}: install it there, send its file with client.upload_file, or define "
                    "metrics and losses in the script itself"
                ) from failure
            raise DBoostError(f"{where} failed: {type(failure).__name__}: {failure}") from failure
        if reply["status"] == CANCELLED:
            raise DBoostError("the fit was cancelled")
        assert reply["status"] == OK
        return reply
