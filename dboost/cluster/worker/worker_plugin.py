"""The worker plugin: keeps a `Session` for each fit, and answers the reducer's calls.

Calls of sessions arrive on lines (`cluster.transport.line`), each of which has a thread; others over Dask's connections at the
handlers that `setup` registers. No work runs on the event loop, where it would make the worker look dead, nor in the threads of
Dask's executor, which are for tasks.

Each session has a unique name. Every call contains the name of its session; the plugin replies `UNKNOWN` if it has another one.
So a worker that was restarted, or whose session the client regards as lost (e.g. after a broken connection), is never mistaken
for the one that had the rows.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from distributed import Worker, get_worker
from distributed.core import Status
from distributed.diagnostics.plugin import WorkerPlugin

from dboost.cluster.monitoring.prometheus_metrics import WorkMeter, publish
from dboost.cluster.transport.event_loop import run_on
from dboost.cluster.transport.feature_exchange import FeatureOwner
from dboost.cluster.transport.line import Line, Message, Pieces, accept_line, packed
from dboost.cluster.transport.line_calls import CALLS, EXCHANGE_ROUND, METHODS, STATUSES, open_lines
from dboost.cluster.transport.messages import (
    FAILED,
    LOST,
    NAME,
    OK,
    STALE,
    UNKNOWN,
    AfterSteps,
    FitCancelled,
    LostWorkers,
    SessionRef,
    WorkerFailed,
    pack,
    pack_error,
    pack_round,
    unpack,
)
from dboost.cluster.transport.peer_messages import SLICE, Inbox, JointCall, Peers
from dboost.cluster.transport.relay import Relay
from dboost.cluster.transport.split_proposals import propose_splits
from dboost.cluster.worker.host_trainers import hand_over
from dboost.cluster.worker.partition_mover import PartitionMover
from dboost.data import Chunk
from dboost.files.spool import remove_stale, temporary_root
from dboost.kernels.threads import usable_processors
from dboost.session.memory import Budget, keep_freed_memory, trim_memory
from dboost.session.partition_batch import MissingPartitions
from dboost.session.session import SESSION_METHODS, Session
from dboost.trees.tree_growth import RoundHistograms
from dboost.tuning import tuning
from dboost.version import __version__

#: Seconds in which running calls may end when a worker closes. Dask's nanny kills it after 4 s.
_TEARDOWN_TIMEOUT = 3.0
#: Fraction of a worker's memory limit that may be used if Dask's configuration sets neither a target nor a spill threshold.
_MEMORY_FRACTION = 0.6
#: Fraction of a worker's memory limit that a fit may use in any case.
_MIN_MEMORY_FRACTION = 1 / 16


class DBoostWorkerPlugin(WorkerPlugin):
    """Holds this worker's sessions of all fits."""

    name = NAME

    def setup(self, worker: Worker) -> None:
        keep_freed_memory()
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._sessions: dict[str, Session] = {}
        self._ended: set[str] = set()
        #: Number of running tasks that the end of a fit waits for, see `running`.
        self._running: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(tuning().worker_threads, "dboost-calls")
        self._inbox = Inbox()
        #: Fit and session of each line on which calls arrive.
        self._lines: dict[Line, tuple[str, str]] = {}
        #: Lines on which sessions send slices of histograms, by fit and session.
        self._peers: dict[tuple[str, str], Peers] = {}
        #: Sessions that search features of exchanged histograms, by fit and session.
        self._owners: dict[tuple[str, str], FeatureOwner] = {}
        self.mover = PartitionMover(worker, self, self._pool)
        #: The calls that a session answers together with others.
        self._together: dict[str, Callable[[JointCall, bytes | memoryview], tuple[str, Any]]] = {
            EXCHANGE_ROUND: self._exchange_round,
            "hand_over": hand_over,
            "propose_splits": propose_splits,
            "take_partitions": self.mover.take_partitions,
        }
        self.meter = WorkMeter()
        self._unpublish = publish(self.meter)
        worker.handlers.update(
            {
                "dboost_ping": self.ping,
                "dboost_has": self.has,
                "dboost_session": self.session,
                "dboost_line": self.line,
                "dboost_release": self.release,
                "dboost_discard": self.discard,
            }
        )

    async def teardown(self, worker: Worker) -> None:
        """Release all fits; wait until their files are removed, because Dask then removes the directory that they are in."""
        for fit in list(self._sessions):
            self.release(fit)
        self._unpublish()
        closed = asyncio.Event()

        def close() -> None:
            self._pool.shutdown()
            with suppress(RuntimeError):  # the event loop has ended, because a call took too long
                self._loop.call_soon_threadsafe(closed.set)

        threading.Thread(target=close, name="dboost-close", daemon=True).start()
        with suppress(TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(closed.wait(), _TEARDOWN_TIMEOUT)

    def ping(self) -> dict[str, str]:
        """Return the version of dboost, the name of the host, and the processors, see `WorkerRecord`."""
        mask = sum(1 << processor for processor in usable_processors())
        return {"status": OK, "version": __version__, "host": socket.gethostname(), "processors": f"{mask:x}"}

    def has(self, fit: str, session: str) -> dict[str, Any]:
        """Return whether this worker has a session."""
        return {"status": OK, "has": self.known(fit, session) is not None}

    def session(self, fit: str, lost: Sequence[str]) -> dict[str, Any]:
        """Return the name of this worker's session of a fit; see `worker_session`."""
        return {"status": OK, "session": self.worker_session(fit, lost).id}

    def worker_session(self, fit: str, lost: Collection[str] = ()) -> Session:
        """Return this worker's session of a fit; create it at the first call. lost : names of lost sessions."""
        with self._lock:
            if fit in self._ended:
                raise RuntimeError("this fit has ended")
            known = self._sessions.get(fit)
            if known is not None and known.id in lost:
                self._pool.submit(_close, self._sessions.pop(fit))
            if fit not in self._sessions:
                worker = self._worker
                folder = Path(worker.local_directory)
                # Remove files of a worker that was killed; a fit in memory and the client would not remove them.
                for root in {folder, temporary_root()}:
                    remove_stale(root)
                self._sessions[fit] = Session(worker.state.nthreads, folder, _spare(worker))
            return self._sessions[fit]

    def known(self, fit: str, session: str | None = None) -> Session | None:
        """Return this worker's session of a fit; None if there is none, or if its name is not `session`."""
        known_session = self._sessions.get(fit)
        return None if known_session is None or session not in (None, known_session.id) else known_session

    def _send_slices(self, fit: str, ref: SessionRef, number: int, stage: int, slices: dict[SessionRef, Pieces]) -> None:
        """Send slices to other sessions.

        Raises
        ------
        LostWorkers
            When other workers cannot be reached.
        """
        if ref in slices:
            self.slice(fit, ref.session, number, stage, ref.session, slices.pop(ref))
        self._peers_of(fit, ref.session).send(number, pack_round((stage, ref.session)), slices)

    def _peers_of(self, fit: str, session: str) -> Peers:
        with self._lock:
            if self.known(fit, session) is None:
                raise FitCancelled
            key = fit, session
            if key not in self._peers:
                self._peers[key] = Peers(partial(self._open_lines, fit))
            return self._peers[key]

    def slice(self, fit: str, session: str, number: int, stage: int, sender: str, content: Pieces) -> None:
        """Receive a slice. sender : its session."""
        if self.known(fit, session) is not None:
            self._inbox.put(fit, number, stage, sender, content)
            self.meter.received(sum(map(len, content)))

    async def line(self, comm: Any, fit: str, session: str) -> Any:
        """Open a line to a session, whose calls a thread answers."""
        if self.known(fit, session) is None:
            return {"status": UNKNOWN}

        def use(line: Line) -> None:
            self._lines[line] = fit, session
            relay = Relay(line, SessionRef(self._worker.address, session), partial(self._open_lines, fit))
            threading.Thread(target=self._serve_line, args=(line, relay, fit, session), name="dboost-line", daemon=True).start()

        await accept_line(comm, use)
        return Status.dont_reply

    def _serve_line(self, line: Line, relay: Relay, fit: str, session: str) -> None:
        """Answer the calls on a line until either end closes it."""
        try:
            while True:
                message = relay.receive()
                if message.kind == SLICE:
                    stage, sender = unpack(message.content)
                    line.give_up_memory()
                    self.slice(fit, session, message.number, stage, sender, message.buffers)
                else:
                    line.send(message.number, *self.answer(relay, fit, session, message))
                del message  # it may be large, and the next one may not come soon
        except OSError:
            pass  # the reducer notices it, too
        finally:
            del self._lines[line]
            relay.close()

    def answer(self, relay: Relay, fit: str, session: str, message: Message) -> tuple[int, bytes, list[memoryview]]:
        """Answer a call on a line: together with other sessions (`_together`), or by the method of the session of that name.

        Return number of the status, content and buffers.
        """
        method = METHODS[message.kind]
        call = SessionCall(self, fit, SessionRef(self._worker.address, session), message.number, relay)
        together = self._together.get(method)
        execute = partial(call.execute, method) if together is None else partial(together, call)
        execute = partial(execute, message.content)
        is_relayed = bool(message.buffers)
        status, answer = relay.call(message, execute) if is_relayed else execute()
        is_packed = not is_relayed and (status != OK or not CALLS[method].is_summed)
        return STATUSES.index(status), *((answer, []) if is_packed else packed(answer))

    def _open_lines(self, fit: str, refs: Sequence[SessionRef]) -> dict[SessionRef, Line | BaseException]:
        """Open lines to sessions of other workers; called by threads of lines."""
        worker = self._worker
        return run_on(self._loop, open_lines(f"worker {worker.address}", fit, refs, worker.connection_args))

    def _exchange_round(self, call: JointCall, arguments: bytes | memoryview) -> tuple[str, Any]:
        """Answer a round whose histograms sessions exchange."""
        with self._lock:
            if self.known(call.fit, call.ref.session) is None:
                return UNKNOWN, b""
            owner = self._owners.setdefault((call.fit, call.ref.session), FeatureOwner(call.ref))
        return owner.answer_round(call, arguments)

    def _execute(
        self,
        fit: str,
        session: str,
        number: int,
        method: str | Callable[..., Any],
        arguments: bytes | memoryview | tuple[Any, ...],
    ) -> tuple[str, Any]:
        """Call a method of a session, or a function with the session; return the status, and the packed answer or error.

        Answers of functions, and those that are added up, are not packed. arguments : packed, or a tuple.
        """
        worker_session = self.known(fit, session)
        if worker_session is None:
            return UNKNOWN, b""
        try:
            with worker_session.lock:
                if number < worker_session.latest:
                    return STALE, b""
                worker_session.latest = number
                started = time.perf_counter()
                unpacked = arguments if isinstance(arguments, tuple) else unpack(arguments)
                if isinstance(unpacked, AfterSteps):
                    for step, step_arguments in unpacked.steps:
                        _method_of(worker_session, step)(*step_arguments)
                    unpacked = unpacked.arguments
                if callable(method):
                    name, answer = method.__name__, method(worker_session, *unpacked)
                else:
                    name, answer = method, _method_of(worker_session, method)(*unpacked)
                    remote = SESSION_METHODS[method]
                    if remote.frees_memory:
                        trim_memory()
                    if not remote.is_summed:
                        answer = pack(answer) if remote.has_objects else pack_round(answer)
                with self._lock:
                    if self.known(fit, session) is not None:  # metrics of a fit that has ended meanwhile would never be removed
                        n_received = 0 if isinstance(arguments, tuple) else len(arguments)  # `slice` has counted slices
                        self.meter.note(fit, name, started, n_received, bytes_of(answer), worker_session.n_rows)
                return OK, answer
        except MissingPartitions:
            return UNKNOWN, b""
        except BaseException as error:  # any error is raised in the client; SystemExit would end the worker
            if self.known(fit, session) is None:
                return UNKNOWN, b""
            return FAILED, pack_error(error)

    @contextmanager
    def running(self, fit: str) -> Iterator[None]:
        """Within the context, the end of the fit waits for this task.

        Raises
        ------
        RuntimeError
            If the fit has ended.
        """
        with self._lock:
            if fit in self._ended:
                raise RuntimeError("this fit has ended")
            self._running[fit] += 1
        try:
            yield
        finally:
            with self._lock:
                self._running[fit] -= 1
                if not self._running[fit]:
                    del self._running[fit]

    def release(self, fit: str, session: str | None = None) -> dict[str, Any]:
        """Release a lost session, or (None) a fit, whose remaining read tasks then fail; return how many tasks still run."""
        with self._lock:
            if session is None:
                self._ended.add(fit)
            elif self.known(fit, session) is None:
                return {"status": OK}
            worker_session = self._sessions.pop(fit, None)
            self.meter.forget(fit)
            peers = [self._peers.pop(key) for key in list(self._peers) if key[0] == fit and session in (None, key[1])]
            for key in [key for key in self._owners if key[0] == fit and session in (None, key[1])]:
                del self._owners[key]
        self._inbox.drop(fit)
        for peer in peers:
            self._pool.submit(peer.close)
        for line, (line_fit, name) in list(self._lines.items()):
            if line_fit == fit and session in (None, name):
                line.shut_down()
        if worker_session is not None:
            # Closing waits for the end of a running call.
            self._pool.submit(_close, worker_session)
        return {"status": OK, "running": self._running[fit]}

    def discard(self, fit: str, batch: str) -> dict[str, str]:
        """Release an abandoned batch."""
        worker_session = self.known(fit)
        if worker_session is not None:
            self._pool.submit(_discard, worker_session, batch)
        return {"status": OK}


@dataclass(eq=False)
class SessionCall:
    """A call that has arrived on a line; implements `JointCall`."""

    plugin: DBoostWorkerPlugin
    fit: str
    ref: SessionRef
    number: int
    relay: Relay

    def execute(self, method: str | Callable[..., Any], arguments: bytes | memoryview | tuple[Any, ...]) -> tuple[str, Any]:
        return self.plugin._execute(self.fit, self.ref.session, self.number, method, arguments)

    def swap(self, stage: int, messages: dict[SessionRef, Pieces], n_wanted: int) -> tuple[str, Any]:
        plugin, inbox = self.plugin, self.plugin._inbox
        if stage == 0:
            inbox.begin(self.fit, self.number)
        try:
            plugin._send_slices(self.fit, self.ref, self.number, stage, messages)
            if not n_wanted:
                return OK, []
            check = partial(self.relay.check_others, self.number)
            return OK, inbox.all_of(self.fit, self.number, stage, n_wanted, check)
        except FitCancelled:
            return STALE, b""
        except LostWorkers as lost:
            return LOST, pack_round(lost.sessions)
        except WorkerFailed:
            raise  # of a session below the relay
        except Exception as error:  # any error is raised in the client
            return FAILED, pack_error(error)


def _spare(worker: Worker) -> Budget | None:
    """Return the memory that a worker can use before Dask spills or pauses; None without a memory limit.

    It is at least `_MIN_MEMORY_FRACTION` of the limit, because the rows need some memory in any case.
    """
    memory = worker.memory_manager
    if not memory.memory_limit:
        return None
    fraction = memory.memory_target_fraction or memory.memory_spill_fraction or _MEMORY_FRACTION
    left = int(memory.memory_limit * fraction) - worker.monitor.get_process_memory()
    return Budget(max(left, int(memory.memory_limit * _MIN_MEMORY_FRACTION)))


def bytes_of(answer: Any) -> int:
    """Return the number of bytes of a packed answer, or of the arrays of an answer that is not packed."""
    if isinstance(answer, bytes):
        return len(answer)
    if isinstance(answer, tuple | list):
        return sum(map(bytes_of, answer))
    if isinstance(answer, dict):
        return sum(map(bytes_of, answer.values()))
    if isinstance(answer, RoundHistograms):
        return answer.histograms.nbytes + answer.n_rows.nbytes + answer.leaf_sums.nbytes
    return 0


def _method_of(worker_session: Session, name: str) -> Any:
    if name not in SESSION_METHODS:
        raise RuntimeError(f"a session has no method {name!r}")
    return getattr(worker_session, name)


def _close(worker_session: Session) -> None:
    with worker_session.lock:
        worker_session.close()


def _discard(worker_session: Session, batch: str) -> None:
    with worker_session.lock:
        worker_session.keep_only(batch, ())
        trim_memory()


def task_session(fit: str, version: str, lost: Collection[str]) -> tuple[Session, SessionRef]:
    """Return this worker's session of a fit; called in tasks. version : of the client; lost : names of lost sessions."""
    worker, plugin = get_worker(), _plugin()
    if version != __version__:
        raise RuntimeError(f"worker {worker.address} has dboost {__version__}, the client {version}")
    worker_session = plugin.worker_session(fit, lost)
    return worker_session, SessionRef(worker.address, worker_session.id)


def slices_of(owner: SessionRef, fit: str, batch: str, partition: int) -> list[Chunk] | None:
    """Return the slices of a partition that a session of any worker has read; None if it is gone. Called in tasks."""
    return _plugin().mover.slices(owner, fit, batch, partition)


def running(fit: str) -> AbstractContextManager[None]:
    """Return a context for a task that writes where others read; see `DBoostWorkerPlugin.running`."""
    return _plugin().running(fit)


def _plugin() -> DBoostWorkerPlugin:
    """Return the plugin of this worker; called in tasks."""
    worker = get_worker()
    plugin = worker.plugins.get(NAME)
    if not isinstance(plugin, DBoostWorkerPlugin):
        raise RuntimeError(f"worker {worker.address} has no dboost")
    return plugin
