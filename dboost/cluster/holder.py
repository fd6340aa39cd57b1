"""The plugin on every worker: keeps a `Holding` for each fit, and answers the reducer's calls.

A call comes over Dask's own connections, to the handler that `setup` registers. It runs in a thread of ours, because work on
the event loop would make the worker look dead; the threads of Dask's executor belong to tasks.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from distributed import Worker, get_worker
from distributed.diagnostics.plugin import WorkerPlugin

from dboost.cluster.exchange import Inbox
from dboost.cluster.giving_back import keep_what_rounds_need
from dboost.cluster.holding import Holding
from dboost.cluster.messages import FAILED, LOST, NAME, OK, STALE, UNKNOWN, pack, pack_round, unpack
from dboost.cluster.meters import WorkMeter, publish
from dboost.cluster.moving import Moving
from dboost.training.budget import Budget
from dboost.version import __version__

#: Fits whose calls may run on a worker at the same time.
_FITS_AT_A_TIME = 16
#: Calls whose answers hold nothing of the user's.
_OF_ROUNDS = frozenset({"answer", "answer_in_slices", "search_slices"})
#: Of a worker's memory limit, where Dask is told to do nothing before it pauses the worker.
_SHARE = 0.6


class ShardHolder(WorkerPlugin):
    """Holds this worker's shards of all fits."""

    name = NAME

    def setup(self, worker: Worker) -> None:
        keep_what_rounds_need()
        self._worker = worker
        self._holdings: dict[str, Holding] = {}
        self._ended: set[str] = set()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_FITS_AT_A_TIME, "dboost-calls")
        self._inbox = Inbox()
        self._moving = Moving(worker, self, self._pool)
        self.meter = WorkMeter()
        self._unpublish = publish(self.meter.figures)
        worker.handlers.update(
            {
                "dboost_hello": self.hello,
                "dboost_call": self.call,
                "dboost_exchange": self.exchange,
                "dboost_slice": self.slice,
                "dboost_drop": self.drop,
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

    def holding(self, fit: str) -> Holding:
        """What is held of a fit; made when it is first asked for."""
        with self._lock:
            if fit in self._ended:
                raise RuntimeError("this fit has ended")
            if fit not in self._holdings:
                worker = self._worker
                self._holdings[fit] = Holding(worker.state.nthreads, Path(worker.local_directory), _spare(worker))
            return self._holdings[fit]

    def known(self, fit: str) -> Holding | None:
        """What is held of a fit, if anything is."""
        return self._holdings.get(fit)

    async def call(self, fit: str, number: int, method: str, arguments: bytes) -> dict[str, Any]:
        """Call a method of a fit's holding.

        number : of the round, ascending. A call of a round that was given up may arrive after those of the next one; it is
        not carried out any more.
        """
        if fit not in self._holdings:
            return {"status": UNKNOWN}
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._call, fit, number, method, arguments)

    async def exchange(self, fit: str, number: int, senders: list[str], arguments: bytes) -> dict[str, Any]:
        """Answer a question, the histograms to their owners, and what was found in ours to the reducer.

        senders : all workers that take part.
        """
        self._inbox.begin(fit, number)
        reply = await self.call(fit, number, "answer_in_slices", arguments)
        if reply["status"] != OK:
            return reply
        answer, slices, seconds = unpack(reply["result"])
        owners = list(slices)
        sent = await asyncio.gather(*(self._send(owner, fit, number, slices[owner]) for owner in owners))
        gone = [owner for owner, arrived in zip(owners, sent, strict=True) if not arrived]
        if gone:
            return {"status": LOST, "workers": gone}
        found = None
        if self._worker.address in slices:
            parts = await self._inbox.all_of(fit, number, len(senders))
            reply = await self.call(fit, number, "search_slices", pack_round((self._worker.address, arguments, parts)))
            if reply["status"] != OK:
                return reply
            found, more = unpack(reply["result"])
            seconds += more
        return {"status": OK, "result": pack_round((answer, found, seconds))}

    async def _send(self, owner: str, fit: str, number: int, content: bytes) -> bool:
        if owner == self._worker.address:
            self._inbox.put(fit, number, owner, content)
            return True
        try:
            message = {"fit": fit, "number": number, "sender": self._worker.address, "content": content}
            reply = await self._worker.rpc(owner).dboost_slice(**message)
        except OSError:
            return False
        return reply is not None and reply["status"] == OK

    def slice(self, fit: str, number: int, sender: str, content: bytes) -> dict[str, str]:
        """Take in another worker's slice of our features."""
        self._inbox.put(fit, number, sender, content)
        self.meter.received(len(content))
        return {"status": OK}

    def _call(self, fit: str, number: int, method: str, arguments: bytes) -> dict[str, Any]:
        holding = self._holdings.get(fit)
        if holding is None:
            return {"status": UNKNOWN}
        try:
            with holding.lock:
                if number < holding.latest:
                    return {"status": STALE}
                holding.latest = number
                began = time.perf_counter()
                answer = getattr(holding, method)(*unpack(arguments))
                result = pack_round(answer) if method in _OF_ROUNDS else pack(answer)
                with self._lock:
                    if fit in self._holdings:  # a fit that ended meanwhile would be counted as under way for ever
                        self.meter.note(fit, method, began, len(arguments), len(result), holding.n_rows)
                return {"status": OK, "result": result}
        except Exception as error:  # whatever it is belongs to the user, who is elsewhere
            if fit not in self._holdings:
                return {"status": UNKNOWN}
            return {"status": FAILED, "error": pack_error(error)}

    def drop(self, fit: str) -> dict[str, str]:
        """Forget a fit. Its loading tasks that are still to run will fail."""
        with self._lock:
            self._ended.add(fit)
            holding = self._holdings.pop(fit, None)
            self.meter.forget(fit)
        self._inbox.drop(fit)
        if holding is not None:
            # A call under way ends by itself; its files and arrays go then.
            self._pool.submit(_close, holding)
        return {"status": OK}


def _spare(worker: Worker) -> Budget | None:
    """What a worker may still take without being made to spill or to pause; None where nobody limits it, or it has nothing."""
    memory = worker.memory_manager
    if not memory.memory_limit:
        return None
    share = memory.memory_target_fraction or memory.memory_spill_fraction or _SHARE
    left = int(memory.memory_limit * share) - worker.monitor.get_process_memory()
    return Budget(left) if left > 0 else None


def _close(holding: Holding) -> None:
    with holding.lock:
        holding.close()


def here(fit: str) -> tuple[Holding, str]:
    """For tasks: this worker's holding of a fit, and its address."""
    worker = get_worker()
    holder = worker.plugins.get(NAME)
    if not isinstance(holder, ShardHolder):
        raise RuntimeError(f"worker {worker.address} has no dboost")
    return holder.holding(fit), worker.address


def pack_error(error: Exception) -> bytes:
    """An error, or at least its text where it cannot be pickled."""
    try:
        return pack(error)
    except Exception:
        return pack(RuntimeError(f"{type(error).__name__}: {error}"))
