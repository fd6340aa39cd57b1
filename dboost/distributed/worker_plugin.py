"""The plugin on every worker: keeps a `WorkerSession` for each fit, and answers the reducer's calls.

A call comes over Dask's own connections, to the handler that `setup` registers. It runs in a thread of ours, because work on
the event loop would make the worker look dead; the threads of Dask's executor belong to tasks.

A holding is one *session*: it has a name of its own, every call says which session it is meant for, and a call for another one
is answered with `UNKNOWN`. So a worker that was restarted, or whose session the client has given up (a connection that broke
is reason enough), is never taken for the one that held the rows.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from distributed import Worker, get_worker
from distributed.diagnostics.plugin import WorkerPlugin

from dboost.distributed.feature_exchange import Inbox
from dboost.distributed.messages import FAILED, LOST, NAME, OK, STALE, UNKNOWN, pack
from dboost.distributed.monitoring.prometheus import WorkMeter, publish
from dboost.distributed.partition_mover import PartitionMover
from dboost.session.memory_budget import Budget
from dboost.session.memory_trim import keep_freed_memory, trim_memory
from dboost.session.protocol import SESSION_METHODS, MissingPartitions, Session, SessionRef, pack_round, unpack
from dboost.session.worker_session import WorkerSession
from dboost.storage.spool import remove_stale, temporary_root
from dboost.version import __version__

#: Fits whose calls may run on a worker at the same time.
_FITS_AT_A_TIME = 16
#: Calls whose answers hold nothing of the user's.
_OF_ROUNDS = frozenset(method.__name__ for method in (Session.answer, Session.answer_in_slices, Session.search_slices))
#: Calls after which memory of raw values is free.
_FREES_MEMORY = frozenset(method.__name__ for method in (Session.survey, Session.build, Session.hold_out))
#: Of a worker's memory limit, where Dask is told to do nothing before it pauses the worker.
_SHARE = 0.6
#: Of a worker's memory limit, what a fit may take where other things have taken all.
_LEAST_SHARE = 1 / 16


class DBoostWorkerPlugin(WorkerPlugin):
    """Holds this worker's shards of all fits."""

    name = NAME

    def setup(self, worker: Worker) -> None:
        keep_freed_memory()
        self._worker = worker
        self._holdings: dict[str, WorkerSession] = {}
        self._ended: set[str] = set()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_FITS_AT_A_TIME, "dboost-calls")
        self._inbox = Inbox()
        self._moving = PartitionMover(worker, self, self._pool)
        self.meter = WorkMeter()
        self._unpublish = publish(self.meter)
        worker.handlers.update(
            {
                "dboost_hello": self.hello,
                "dboost_has": self.has,
                "dboost_call": self.call,
                "dboost_exchange": self.exchange,
                "dboost_slice": self.slice,
                "dboost_drop": self.drop,
                "dboost_discard": self.discard,
            }
        )

    def teardown(self, worker: Worker) -> None:
        for fit in list(self._holdings):
            self.drop(fit)
        self._pool.shutdown(wait=False)
        self._unpublish()

    def hello(self) -> dict[str, str]:
        """That dboost is here, and which."""
        return {"status": OK, "version": __version__}

    def has(self, fit: str, session: str) -> dict[str, Any]:
        """Whether this is one of our sessions."""
        return {"status": OK, "has": self.known(fit, session) is not None}

    def holding(self, fit: str, lost: Collection[str] = ()) -> WorkerSession:
        """Our session of a fit; made when it is first asked for. lost : sessions that the client has given up."""
        with self._lock:
            if fit in self._ended:
                raise RuntimeError("this fit has ended")
            known = self._holdings.get(fit)
            if known is not None and known.session in lost:
                self._pool.submit(_close, self._holdings.pop(fit))
            if fit not in self._holdings:
                worker = self._worker
                folder = Path(worker.local_directory)
                # A worker that was killed here may have left files, which neither a fit in memory nor the client would remove.
                for root in {folder, temporary_root()}:
                    remove_stale(root)
                self._holdings[fit] = WorkerSession(worker.state.nthreads, folder, _spare(worker))
            return self._holdings[fit]

    def known(self, fit: str, session: str | None = None) -> WorkerSession | None:
        """Our session of a fit, if there is one, and if it is the one that is meant."""
        found = self._holdings.get(fit)
        return None if found is None or session not in (None, found.session) else found

    async def call(self, fit: str, session: str, number: int, method: str, arguments: bytes) -> dict[str, Any]:
        """Call a method of a session.

        number : of the round, ascending. A call of a round that was given up may arrive after those of the next one; it is
        not carried out any more.
        """
        if self.known(fit, session) is None:
            return {"status": UNKNOWN}
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._call, fit, session, number, method, arguments)

    async def exchange(self, fit: str, session: str, number: int, n_senders: int, arguments: bytes) -> dict[str, Any]:
        """Answer a question, the histograms to their owners, and what was found in ours to the reducer.

        n_senders : how many sessions take part.
        """
        self._inbox.begin(fit, number)
        reply = await self.call(fit, session, number, Session.answer_in_slices.__name__, arguments)
        if reply["status"] != OK:
            return reply
        here = SessionRef(self._worker.address, session)
        answer, slices, n_rows, seconds = unpack(reply["result"])
        owners = list(slices)
        sent = await asyncio.gather(*(self._send(owner, here, fit, number, slices[owner]) for owner in owners))
        gone = [owner for owner, arrived in zip(owners, sent, strict=True) if not arrived]
        if gone:
            return {"status": LOST, "sessions": gone}
        found = None
        if here in slices:
            parts = await self._inbox.all_of(fit, number, n_senders)
            reply = await self.call(fit, session, number, Session.search_slices.__name__, pack_round((here, arguments, parts)))
            if reply["status"] != OK:
                return reply
            found, more = unpack(reply["result"])
            seconds += more
        return {"status": OK, "result": pack_round((answer, found, n_rows, seconds))}

    async def _send(self, owner: SessionRef, here: SessionRef, fit: str, number: int, content: bytes) -> bool:
        if owner == here:
            self._inbox.put(fit, number, here.session, content)
            return True
        try:
            message = {"fit": fit, "session": owner.session, "number": number, "sender": here.session, "content": content}
            reply = await self._worker.rpc(owner.worker).dboost_slice(**message)
        except OSError:
            return False
        return reply is not None and reply["status"] == OK

    def slice(self, fit: str, session: str, number: int, sender: str, content: bytes) -> dict[str, str]:
        """Take in another worker's slice of our features. sender : its session."""
        if self.known(fit, session) is None:
            return {"status": UNKNOWN}
        self._inbox.put(fit, number, sender, content)
        self.meter.received(len(content))
        return {"status": OK}

    def _call(self, fit: str, session: str, number: int, method: str, arguments: bytes) -> dict[str, Any]:
        holding = self.known(fit, session)
        if holding is None:
            return {"status": UNKNOWN}
        try:
            with holding.lock:
                if number < holding.latest:
                    return {"status": STALE}
                holding.latest = number
                began = time.perf_counter()
                if method not in SESSION_METHODS:
                    raise RuntimeError(f"a session has no method {method!r}")
                answer = getattr(holding, method)(*unpack(arguments))
                if method in _FREES_MEMORY:
                    trim_memory()
                result = pack_round(answer) if method in _OF_ROUNDS else pack(answer)
                with self._lock:
                    if self.known(fit, session) is not None:  # a fit that ended meanwhile would be counted for ever
                        self.meter.note(fit, method, began, len(arguments), len(result), holding.n_rows)
                return {"status": OK, "result": result}
        except MissingPartitions:
            return {"status": UNKNOWN}
        except Exception as error:  # whatever it is belongs to the user, who is elsewhere
            if self.known(fit, session) is None:
                return {"status": UNKNOWN}
            return {"status": FAILED, "error": pack_error(error)}

    def drop(self, fit: str, session: str | None = None) -> dict[str, str]:
        """Forget a session that was given up, or (None) a fit: its loading tasks that are still to run will fail."""
        with self._lock:
            if session is None:
                self._ended.add(fit)
            elif self.known(fit, session) is None:
                return {"status": OK}
            holding = self._holdings.pop(fit, None)
            self.meter.forget(fit)
        self._inbox.drop(fit)
        if holding is not None:
            # A call under way ends by itself; its files and arrays go then.
            self._pool.submit(_close, holding)
        return {"status": OK}

    def discard(self, fit: str, batch: str) -> dict[str, str]:
        """Forget a batch that came to nothing."""
        holding = self.known(fit)
        if holding is not None:
            self._pool.submit(_discard, holding, batch)
        return {"status": OK}


def _spare(worker: Worker) -> Budget | None:
    """What a worker may still take without being made to spill or to pause; None where nobody limits it.

    One that is close to that, or beyond it already, has a little all the same: rows have to be somewhere.
    """
    memory = worker.memory_manager
    if not memory.memory_limit:
        return None
    share = memory.memory_target_fraction or memory.memory_spill_fraction or _SHARE
    left = int(memory.memory_limit * share) - worker.monitor.get_process_memory()
    return Budget(max(left, int(memory.memory_limit * _LEAST_SHARE)))


def _close(holding: WorkerSession) -> None:
    with holding.lock:
        holding.close()


def _discard(holding: WorkerSession, batch: str) -> None:
    with holding.lock:
        holding.keep(batch, ())


def here(fit: str, version: str, lost: Collection[str]) -> tuple[WorkerSession, SessionRef]:
    """For tasks: this worker's session of a fit. version : of the client; lost : sessions that it has given up."""
    worker = get_worker()
    holder = worker.plugins.get(NAME)
    if not isinstance(holder, DBoostWorkerPlugin):
        raise RuntimeError(f"worker {worker.address} has no dboost")
    if version != __version__:
        raise RuntimeError(f"worker {worker.address} has dboost {__version__}, the client {version}")
    holding = holder.holding(fit, lost)
    return holding, SessionRef(worker.address, holding.session)


def pack_error(error: Exception) -> bytes:
    """An error, or at least its text where it cannot be pickled."""
    try:
        return pack(error)
    except Exception:
        return pack(RuntimeError(f"{type(error).__name__}: {error}"))
