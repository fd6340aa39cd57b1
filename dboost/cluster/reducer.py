"""The plugin in the scheduler's process: puts questions to all workers, merges their answers, picks the splits.

It knows nothing of a fit but its workers. A call comes from the client, fans out to the workers that hold rows, and ends in
one of four ways: all answers; an error that a worker met; the names of workers that were *lost*; or because the fit was
cancelled. Recovery is the client's business, which keeps the source of every partition.

**Nothing waits for ever.** A worker that dies is noticed by its connection, or by Dask telling `remove_worker`. One that is
stopped, or cut off, keeps its connections and says nothing: after `dboost.patience` (10 s) without an answer it is pinged,
and if it does not answer that within the same time, it is removed from the cluster (its nanny, if there is one, starts it
anew). A worker that is merely slow answers pings, because its work does not run on its event loop.

Merging and searching run in a thread, unless they take no longer than a change of threads: the scheduler's loop is everybody's.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from distributed import Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin

from dboost.cluster import meters
from dboost.cluster.board import Board
from dboost.cluster.calls import Fit, WorkerFailed, abandon, lost_by, result_of, turn
from dboost.cluster.courier import Courier
from dboost.cluster.durations import patience
from dboost.cluster.exchange import Owner, choose_owners
from dboost.cluster.giving_back import keep_what_rounds_need
from dboost.cluster.messages import (
    CANCELLED,
    FAILED,
    LOST,
    NAME,
    OK,
    READING,
    SILENT,
    FitCancelled,
    LostWorkers,
    Timing,
    pack,
    pack_round,
    unpack,
)
from dboost.cluster.page import show
from dboost.growth.grower import Answer, Question, Reply, grow_tree
from dboost.growth.search import Searcher, merge_findings
from dboost.growth.task import GrownTree, TreeTask
from dboost.version import __version__

#: What is merged and searched in about a millisecond, the price of two changes of threads.
_LIGHT_BYTES, _LIGHT_OPENINGS = 512 * 1024, 8


class Reducer(SchedulerPlugin):
    """Drives the rounds of all fits."""

    name = NAME
    idempotent = True

    async def start(self, scheduler: Scheduler) -> None:
        keep_what_rounds_need()
        self._scheduler = scheduler
        self._fits: dict[str, Fit] = {}
        self._chores: set[asyncio.Task[Any]] = set()
        self._n_rounds = 0  # of all fits: by its number, what belongs to an abandoned round is recognised
        self.board = Board()
        self._meters = meters.publish(partial(meters.of_board, self.board))
        show(self.board, getattr(scheduler, "http_application", None))
        getattr(scheduler, "stream_handlers", {})["dboost-tell"] = self.tell
        scheduler.handlers.update(
            {
                "dboost_open": self.open_fit,
                "dboost_ask": self.ask,
                "dboost_grow": self.grow,
                "dboost_move": self.move,
                "dboost_sweep": self.sweep,
                "dboost_end": self.end_fit,
            }
        )
        await scheduler.register_worker_plugin(None, pack(Courier()), name=NAME, idempotent=False)

    # What the client calls.

    async def open_fit(self, fit: str, client_id: str) -> dict[str, Any]:
        """Begin a fit; which workers there are, and what they say to hello (their version of dboost, or None)."""
        self._fits[fit] = Fit(client_id)
        addresses = list(self._scheduler.workers)
        hellos = await asyncio.gather(*map(self._hello, addresses))
        self._scheduler.idle_since = None
        self._scheduler.log_event(NAME, {"action": "began", "fit": fit})
        return {"status": OK, "version": __version__, "workers": dict(zip(addresses, hellos, strict=True))}

    async def ask(self, fit: str, workers: Sequence[str], method: str, arguments: Any) -> dict[str, Any]:
        """Call a method on workers. arguments : the same bytes for all, or {address: bytes}."""
        return await self._outcome(self._ask(fit, workers, method, arguments))

    async def move(self, fit: str, batch: str, plan: bytes, moves: dict[str, Any]) -> dict[str, Any]:
        """Have workers take partitions over. moves : {new owner: (partition, old owner) pairs}"""
        return await self._outcome(self._move(fit, batch, plan, moves))

    async def grow(self, fit: str, workers: Sequence[str], order: bytes) -> dict[str, Any]:
        """Grow one tree. order : packed (TreeTask, Layout, n_rows, width)."""
        return await self._outcome(self._grow(fit, list(workers), order))

    def tell(self, client: str, event: Any) -> None:
        """Log what a client has to tell of its fit."""
        self._scheduler.log_event(NAME, event)

    async def end_fit(self, fit: str, outcome: str = "client left") -> dict[str, Any]:
        """Forget a fit, here and on all workers; one that is under way is cancelled."""
        known = self._fits.pop(fit, None)
        if known is not None:
            known.cancelled = True
            known.look_up()
            self._scheduler.log_event(NAME, {"action": "ended", "fit": fit, "outcome": outcome})
        await asyncio.gather(*(self._drop(address, fit) for address in list(self._scheduler.workers)))
        return {"status": OK}

    # What Dask calls.

    def log_event(self, topic: str, msg: Any) -> None:
        if topic == NAME:
            self.board.see(msg, time.time())

    async def close(self) -> None:
        self._meters()

    def remove_worker(self, scheduler: Scheduler, worker: str, **kwargs: Any) -> None:
        for name, fit in self._fits.items():
            if worker in fit.workers:
                self._scheduler.log_event(NAME, {"action": "lost", "fit": name, "worker": worker})
                fit.workers.discard(worker)
                fit.look_up()

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        for name, fit in list(self._fits.items()):
            if fit.client == client:
                self._later(self.end_fit(name))

    def valid_workers_downscaling(self, scheduler: Scheduler, workers: list[Any]) -> list[Any]:
        """A cluster that shrinks by itself leaves us the workers that hold rows, or are reading them."""
        in_use = set().union(*(fit.workers for fit in self._fits.values()))
        return [worker for worker in workers if worker.address not in in_use and not any(map(_is_read, worker.has_what))]

    async def sweep(self, fit: str) -> dict[str, Any]:
        """Remove workers that are stopped or cut off, so that Dask gives their tasks to others; which workers are left."""
        self._scheduler.idle_since = None
        await self._sweep(list(self._scheduler.workers))
        return {"status": OK, "workers": list(self._scheduler.workers)}

    # How it is done.

    async def _outcome(self, work: Any) -> dict[str, Any]:
        try:
            return {"status": OK, **await work}
        except LostWorkers as lost:
            return {"status": LOST, "workers": lost.addresses}
        except WorkerFailed as failed:
            return {"status": FAILED, "worker": failed.address, "error": failed.error}
        except FitCancelled:
            return {"status": CANCELLED}

    async def _ask(self, name: str, workers: Sequence[str], method: str, arguments: Any) -> dict[str, Any]:
        number = self._next_round()

        def call(address: str) -> Any:
            packed = arguments[address] if isinstance(arguments, dict) else arguments
            return self._scheduler.rpc(address).dboost_call(fit=name, number=number, method=method, arguments=packed)

        results = await self._fan_out(name, workers, call)
        return {"results": results, "workers": list(self._scheduler.workers)}

    async def _move(self, name: str, batch: str, plan: bytes, moves: dict[str, Any]) -> dict[str, Any]:
        def call(address: str) -> Any:
            return self._scheduler.rpc(address).dboost_take(fit=name, batch=batch, plan=plan, moves=moves[address])

        results = await self._fan_out(name, list(moves), call)
        return {"results": results, "workers": list(self._scheduler.workers)}

    async def _fan_out(self, name: str, workers: Sequence[str], call: Callable[[str], Any]) -> dict[str, bytes]:
        """The workers' packed results by address. call : makes the call to one of them."""
        fit = self._fits.get(name)
        if fit is None:
            raise FitCancelled
        fit.workers.update(workers)
        self._scheduler.idle_since = None
        gone = [address for address in workers if address not in self._scheduler.workers]
        if gone:
            raise LostWorkers(gone)
        calls: dict[str, asyncio.Future[bytes]] = {
            address: asyncio.ensure_future(result_of(address, call(address))) for address in workers
        }
        try:
            await self._wait(fit, calls)
            return {address: call.result() for address, call in calls.items()}
        finally:
            for waiting in calls.values():
                abandon(waiting)

    async def _wait(self, fit: Fit, calls: dict[str, asyncio.Future[bytes]]) -> None:
        """Until all calls are answered; raises when that will not be."""
        while True:
            pending = {address: call for address, call in calls.items() if not call.done()}
            silent = bool(pending) and await turn(fit, list(pending.values()))
            if fit.cancelled:
                raise FitCancelled
            lost = [a for a in calls if a not in self._scheduler.workers]
            lost += [a for call in calls.values() for a in lost_by(call) if a not in lost]
            if lost:
                raise LostWorkers(lost)
            for call in calls.values():
                if call.done():
                    call.result()
            if not pending:
                return
            if silent:
                hung = await self._sweep([address for address, call in pending.items() if not call.done()])
                if hung:
                    raise LostWorkers(hung)

    async def _sweep(self, addresses: Sequence[str]) -> list[str]:
        """Ping workers and remove those that do not answer."""
        answers = await asyncio.gather(*map(self._hello, addresses))
        hung = [address for address, answer in zip(addresses, answers, strict=True) if answer == SILENT]
        for address in hung:
            await self._remove(address)
        return hung

    async def _hello(self, address: str) -> str | None:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            reply = await asyncio.wait_for(self._scheduler.rpc(address).dboost_hello(), patience())
            return None if reply is None else reply.get("version")
        return SILENT

    async def _drop(self, address: str, name: str) -> None:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._scheduler.rpc(address).dboost_drop(fit=name), patience())

    async def _remove(self, address: str) -> None:
        """Remove a worker that does not answer; its nanny starts it anew."""
        state = self._scheduler.workers.get(address)
        if state is None:
            return
        nanny = state.nanny
        self._scheduler.log_event(NAME, {"action": "removed", "worker": address, "reason": "did not answer"})
        await self._scheduler.remove_worker(address, stimulus_id=f"{NAME}-hung-{time.time()}", close=False)
        if nanny is not None:
            self._later(self._restart(nanny))

    async def _restart(self, nanny: str) -> None:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._scheduler.rpc(nanny).restart(timeout=30, reason=f"{NAME}-hung"), 60)

    def _later(self, work: Any) -> None:
        chore = asyncio.ensure_future(work)
        self._chores.add(chore)
        chore.add_done_callback(self._chores.discard)

    async def _grow(self, name: str, workers: list[str], order: bytes) -> dict[str, Any]:
        task, layout, n_rows, width = unpack(order)
        owners = choose_owners(workers, task, layout, width)
        fit = self._fits.get(name)
        grower = grow_tree(task, layout, n_rows, width)
        searcher = Searcher(task, layout, after=None if fit is None else fit.searcher)
        if fit is not None:
            fit.searcher = searcher
        question, begin, timing = next(grower), task, Timing()

        def advance(results: dict[str, bytes]) -> tuple[Question | GrownTree, float, float]:
            """Merge, search and decide; the next question or the tree, the slowest worker's seconds, and ours."""
            began = time.perf_counter()
            told = [unpack(result) for result in results.values()]
            merged = Answer.total([answer for answer, *_ in told if answer is not None])
            if owners:
                parts = [found for _, found, _ in told if found is not None]
                found = merge_findings(parts) if parts else []
            else:
                found = searcher.look(question.openings, merged.planes)
            try:
                following: Any = grower.send(Reply(found, merged.n_rows, merged.leaf_sums))
            except StopIteration as end:
                following = end.value
            return following, max(seconds for *_, seconds in told), time.perf_counter() - began

        while True:
            began = time.perf_counter()
            results = await self._fan_out(name, workers, self._round(name, workers, begin, question, owners))
            n_bytes = sum(map(len, results.values()))
            # A tree's first round may have to compile, or load, what it needs.
            light = begin is None and n_bytes <= _LIGHT_BYTES and len(question.openings) <= _LIGHT_OPENINGS
            following, compute, reducing = advance(results) if light else await asyncio.to_thread(advance, results)
            elapsed = time.perf_counter() - began
            timing += Timing(1, compute, reducing, elapsed - compute - reducing, n_bytes)
            if isinstance(following, GrownTree):
                event = {"action": "tree", "fit": name, "workers": len(workers), "leaves": following.n_leaves}
                self._scheduler.log_event(NAME, event | {"owners": len(owners)} | asdict(timing))
                return {"tree": pack((following.copy(), timing))}
            question, begin = following, None

    def _next_round(self) -> int:
        self._n_rounds += 1
        return self._n_rounds

    def _round(
        self, name: str, workers: list[str], task: TreeTask | None, question: Question, owners: list[Owner]
    ) -> Callable[[str], Any]:
        """The call that puts a question to a worker."""
        rpc, number = self._scheduler.rpc, self._next_round()
        if not owners:
            packed = pack_round((task, question))
            return lambda address: rpc(address).dboost_call(fit=name, number=number, method="answer", arguments=packed)
        packed = pack_round((task, question, owners))
        return lambda address: rpc(address).dboost_exchange(fit=name, number=number, senders=workers, arguments=packed)


def _is_read(task: Any) -> bool:
    """Whether a task that a worker has done was to read a partition: its receipt stays until all are read."""
    return str(task.key).startswith(READING)
