"""The plugin in the scheduler's process: puts questions to all workers, merges their answers, picks the splits.

It knows nothing of a fit but its sessions, one on each worker that holds rows of it. A call comes from the client, fans out
to sessions, and ends in one of four ways: all answers; an error that a worker met; the sessions that were *lost*; or because
the fit was cancelled. Recovery is the client's business, which keeps the source of every partition.

**Nothing waits for ever.** A worker that dies is noticed by its connection, or by Dask telling `remove_worker`. One that is
stopped, or cut off, keeps its connections and says nothing: after `dboost.liveness_timeout` (10 s) without an answer it is
pinged, and if it does not answer that within the same time, it is removed from the cluster (its nanny, if there is one, starts
it anew). A worker that is merely slow answers pings, because its work does not run on its event loop. Only workers that a fit
waits for are pinged: the cluster may have others, which are no concern of this fit.

Merging and searching run in a thread, unless they take no longer than a change of threads: the scheduler's loop is everybody's.

Calls from the scheduler to workers: how they end, and how several are waited for.

A call ends with a result, with an error that the worker met, or because somebody is lost: whoever called, or another worker
that it needed. Several calls are waited for with one future and one timer, however many they are: a round takes a few
milliseconds, and there are a thousand of them in a fit.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from distributed import Scheduler
from distributed.core import Status
from distributed.diagnostics.plugin import SchedulerPlugin

from dboost.config import liveness_timeout
from dboost.distributed.feature_exchange import choose_owners
from dboost.distributed.messages import (
    CANCELLED,
    FAILED,
    LOST,
    NAME,
    OK,
    READING,
    SILENT,
    STALE,
    UNKNOWN,
    FitCancelled,
    LostWorkers,
    Timing,
    pack,
)
from dboost.distributed.monitoring.dashboard import show
from dboost.distributed.monitoring.prometheus import publish
from dboost.distributed.monitoring.status import FitRegistry
from dboost.distributed.plugin_factory import WorkerPluginFactory
from dboost.session.memory_trim import keep_freed_memory
from dboost.session.protocol import FeatureOwner, Session, SessionRef, pack_round, session_refs, unpack
from dboost.trees.grower import RoundHistograms, RoundRequest, RoundResult, grow_tree
from dboost.trees.split_finder import SplitFinder, merge_best_splits
from dboost.trees.tree_task import GrownTree, TreeTask
from dboost.version import __version__

#: What is merged and searched in about a millisecond, the price of two changes of threads.
_LIGHT_BYTES, _LIGHT_PAIRS = 512 * 1024, 8
#: Seconds between two questions to a worker whose plugin has not started yet.
_STARTING = 0.05


class Reducer(SchedulerPlugin):
    """Drives the rounds of all fits."""

    name = NAME
    idempotent = True

    async def start(self, scheduler: Scheduler) -> None:
        # Two clients may begin their first fits at the same time. Dask keeps the plugin whose start ends first: the second one
        # must not take the handlers over, or calls would go to one reducer and news of lost workers to the other.
        first = getattr(scheduler.handlers.get("dboost_open"), "__self__", None)
        if first is not None:
            await first.started.wait()
            if "dboost_open" not in scheduler.handlers:
                raise RuntimeError("another client has registered dboost at the same time, and that failed")
            return
        keep_freed_memory()
        self.started = asyncio.Event()
        self._scheduler = scheduler
        self._fits: dict[str, Fit] = {}
        self._chores: set[asyncio.Task[Any]] = set()
        #: Versions of dboost by Dask's names of worker processes.
        self._versions: dict[str, str | None] = {}
        self._n_rounds = 0  # of all fits: by its number, what belongs to an abandoned round is recognised
        self.board = FitRegistry()
        self._meters = publish(self.board)
        show(self.board, getattr(scheduler, "http_application", None))
        getattr(scheduler, "stream_handlers", {})["dboost-tell"] = self.tell
        scheduler.handlers.update(
            {
                "dboost_open": self.open_fit,
                "dboost_workers": self.usable_workers,
                "dboost_ask": self.ask,
                "dboost_grow": self.grow,
                "dboost_move": self.move,
                "dboost_abandon": self.abandon,
                "dboost_discard": self.discard,
                "dboost_sweep": self.sweep,
                "dboost_end": self.end_fit,
            }
        )
        # Dask waits for every worker here. One that is stopped, or dies just now, must not hold the others up: workers that
        # have not started the plugin when a fit begins are asked again by `_hello`.
        try:
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                plugin = scheduler.register_worker_plugin(None, pack(WorkerPluginFactory()), name=NAME, idempotent=False)
                await asyncio.wait_for(plugin, liveness_timeout())
        except BaseException:
            del scheduler.handlers["dboost_open"]  # the next client begins anew
            raise
        finally:
            self.started.set()

    # What the client calls.

    async def open_fit(self, fit: str, client_id: str) -> dict[str, Any]:
        """Begin a fit; what the workers say to hello (their version of dboost, or None)."""
        self._fits[fit] = Fit(client_id)
        self._scheduler.idle_since = None
        self._scheduler.log_event(NAME, {"action": "began", "fit": fit})
        return {"status": OK, "version": __version__, "hellos": await self._hellos()}

    async def usable_workers(self, fit: str) -> dict[str, Any]:
        """What the workers that there are now say to hello; those that were asked before are not asked again."""
        return {"status": OK, "hellos": await self._hellos(known=True)}

    async def ask(self, fit: str, sessions: Sequence[Any], method: str, arguments: Any) -> dict[str, Any]:
        """Call a method of sessions. arguments : the same bytes for all, or bytes for each."""
        return await self._outcome(self._ask(fit, session_refs(sessions), method, arguments))

    async def move(self, fit: str, batch: str, plan: bytes, moves: dict[str, Any], lost: Sequence[str] = ()) -> dict[str, Any]:
        """Have workers take partitions over. moves : {new owner: (partition, old owner) pairs}; lost : see `ShardHolder`."""
        return await self._outcome(self._move(fit, batch, plan, moves, list(lost)))

    async def grow(self, fit: str, sessions: Sequence[Any], order: bytes) -> dict[str, Any]:
        """Grow one tree. order : packed (TreeTask, Layout, n_rows, width, rows of each session)."""
        return await self._outcome(self._grow(fit, session_refs(sessions), order))

    async def abandon(self, fit: str, sessions: Sequence[Any]) -> dict[str, Any]:
        """Have sessions dropped that the client has given up; nothing is waited for, for most of them are gone anyway."""
        for worker, session in session_refs(sessions):
            if worker in self._scheduler.workers:
                self._later(self._drop(worker, fit, session))
        return {"status": OK}

    async def discard(self, fit: str, batch: str) -> dict[str, Any]:
        """Have all workers forget a batch that came to nothing."""
        for worker in list(self._scheduler.workers):
            self._later(self._discard(worker, fit, batch))
        return {"status": OK}

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
        """Remove workers that this fit waits for and that are stopped or cut off, so that Dask gives their tasks to others.

        Which workers are left, and of those that are paused the bytes they use and their limit.
        """
        self._scheduler.idle_since = None
        await self._sweep(sorted(self._awaited(fit)))
        workers = self._scheduler.workers
        paused = {
            address: (int(state.metrics.get("memory", 0)), int(state.memory_limit or 0))
            for address, state in workers.items()
            if state.status == Status.paused
        }
        return {"status": OK, "workers": list(workers), "paused": paused}

    def _awaited(self, fit: str) -> set[str]:
        """Workers that hold sessions of a fit, read its partitions, or make or hold what these are read from."""
        known = self._fits.get(fit)
        found = set() if known is None else {worker for worker in known.workers if worker in self._scheduler.workers}
        begins = f"{READING}{fit}"
        due = [task for task in self._scheduler.tasks.values() if str(task.key).startswith(begins)]
        seen = set(due)
        while due:
            task = due.pop()
            if task.processing_on is not None:
                found.add(task.processing_on.address)
            found |= {state.address for state in task.who_has or ()}
            if task.state != "memory":
                upstream = set(task.dependencies) - seen
                seen |= upstream
                due += upstream
        return found

    # How it is done.

    async def _outcome(self, work: Any) -> dict[str, Any]:
        try:
            return {"status": OK, **await work}
        except LostWorkers as lost:
            return {"status": LOST, "sessions": lost.sessions}
        except WorkerFailed as failed:
            return {"status": FAILED, "worker": failed.address, "error": failed.error}
        except FitCancelled:
            return {"status": CANCELLED}

    async def _ask(self, name: str, refs: Sequence[SessionRef], method: str, arguments: Any) -> dict[str, Any]:
        number = self._next_round()
        each = isinstance(arguments, list | tuple)
        packed = dict(zip(refs, arguments, strict=True)) if each else dict.fromkeys(refs, arguments)

        def call(ref: SessionRef) -> Any:
            line = self._scheduler.rpc(ref.worker)
            return line.dboost_call(fit=name, session=ref.session, number=number, method=method, arguments=packed[ref])

        results = await self._fan_out(name, refs, call)
        return {"results": [results[ref] for ref in refs], "workers": self._identities()}

    async def _move(self, name: str, batch: str, plan: bytes, moves: dict[str, Any], lost: list[str]) -> dict[str, Any]:
        def call(ref: SessionRef) -> Any:
            line = self._scheduler.rpc(ref.worker)
            return line.dboost_take(fit=name, batch=batch, plan=plan, moves=moves[ref.worker], lost=lost)

        if name in self._fits:  # givers are waited for as well
            self._fits[name].workers.update(worker for pairs in moves.values() for _, (worker, _) in pairs)
        takers = [SessionRef(worker, "") for worker in moves]  # the session of one that has read nothing yet is made now
        results = await self._fan_out(name, takers, call)
        return {"results": [results[ref] for ref in takers], "workers": self._identities()}

    def _identities(self) -> list[tuple[str, str]]:
        """Address and Dask's own name of every worker process: one that is restarted at the same address has another name."""
        return [(address, str(state.server_id)) for address, state in self._scheduler.workers.items()]

    async def _fan_out(
        self, name: str, refs: Sequence[SessionRef], call: Callable[[SessionRef], Any]
    ) -> dict[SessionRef, bytes]:
        """The packed results of sessions. call : makes the call to one of them."""
        fit = self._fits.get(name)
        if fit is None:
            raise FitCancelled
        fit.workers.update(ref.worker for ref in refs)
        self._scheduler.idle_since = None
        gone = [ref for ref in refs if ref.worker not in self._scheduler.workers]
        if gone:
            raise LostWorkers(gone)
        calls: dict[SessionRef, asyncio.Future[bytes]] = {ref: asyncio.ensure_future(result_of(ref, call(ref))) for ref in refs}
        try:
            await self._wait(name, fit, calls)
            return {ref: call.result() for ref, call in calls.items()}
        finally:
            for waiting in calls.values():
                abandon(waiting)

    async def _wait(self, name: str, fit: Fit, calls: dict[SessionRef, asyncio.Future[bytes]]) -> None:
        """Until all calls are answered; raises when that will not be."""
        while True:
            pending = {ref: call for ref, call in calls.items() if not call.done()}
            silent = bool(pending) and await wait_for_replies(fit, list(pending.values()))
            if fit.cancelled:
                raise FitCancelled
            lost = [ref for ref in calls if ref.worker not in self._scheduler.workers]
            lost += [ref for call in calls.values() for ref in lost_by(call) if ref not in lost]
            if lost:
                raise LostWorkers(lost)
            for call in calls.values():
                if call.done():
                    call.result()
            if not pending:
                return
            if silent:
                asked = [ref for ref, call in pending.items() if not call.done()]
                hung = set(await self._sweep([ref.worker for ref in asked]))
                # A worker that was restarted at the same address answers, and knows nothing of the call.
                unknown = [ref for ref in asked if ref.session and ref.worker not in hung and not await self._has(name, ref)]
                lost = [ref for ref in asked if ref.worker in hung] + unknown
                if lost:
                    raise LostWorkers(lost)

    async def _sweep(self, addresses: Sequence[str]) -> list[str]:
        """Ping workers and remove those that do not answer."""
        answers = await asyncio.gather(*map(self._hello, addresses))
        hung = [address for address, answer in zip(addresses, answers, strict=True) if answer == SILENT]
        for address in hung:
            await self._remove(address)
        return hung

    async def _hellos(self, known: bool = False) -> dict[str, str | None]:
        """What all workers say to hello. known : whether to repeat what the same processes have said before."""
        identities = self._identities()
        here = {identity for _, identity in identities}
        self._versions = {identity: version for identity, version in self._versions.items() if identity in here}
        due = [(address, identity) for address, identity in identities if not (known and identity in self._versions)]
        hellos = await asyncio.gather(*(self._hello(address) for address, _ in due))
        found = dict(zip(due, hellos, strict=True))
        self._versions |= {identity: version for (_, identity), version in found.items() if version != SILENT}
        return {address: self._versions.get(identity, SILENT) for address, identity in identities}

    async def _hello(self, address: str) -> str | None:
        """A worker's version of dboost, None where it has none, SILENT where nothing is heard of it."""

        async def asked() -> str | None:
            deadline = time.monotonic() + liveness_timeout() / 2
            while True:
                reply = await self._scheduler.rpc(address).dboost_hello()
                if reply is not None:
                    return reply.get("version")
                if time.monotonic() > deadline:
                    return None
                await asyncio.sleep(_STARTING)  # a worker that has just come is known before it has started its plugins

        with contextlib.suppress(OSError, asyncio.TimeoutError):
            return await asyncio.wait_for(asked(), liveness_timeout())
        return SILENT

    async def _has(self, name: str, ref: SessionRef) -> bool:
        """Whether a worker has a session; no answer says nothing."""
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            line = self._scheduler.rpc(ref.worker)
            reply = await asyncio.wait_for(line.dboost_has(fit=name, session=ref.session), liveness_timeout())
            return reply is not None and bool(reply.get("has"))
        return True

    async def _drop(self, address: str, name: str, session: str | None = None) -> None:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._scheduler.rpc(address).dboost_drop(fit=name, session=session), liveness_timeout())

    async def _discard(self, address: str, name: str, batch: str) -> None:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._scheduler.rpc(address).dboost_discard(fit=name, batch=batch), liveness_timeout())

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

    async def _grow(self, name: str, refs: list[SessionRef], order: bytes) -> dict[str, Any]:
        task, layout, n_rows, width, rows_of = unpack(order)
        owners = choose_owners(refs, task, layout, width)
        fit = self._fits.get(name)
        grower = grow_tree(task, layout, n_rows, width)
        searcher = SplitFinder(task, layout, after=None if fit is None else fit.searcher)
        if fit is not None:
            fit.searcher = searcher
        question, begin, timing = next(grower), task, Timing()

        def advance(results: dict[SessionRef, bytes]) -> tuple[RoundRequest | GrownTree, float, float]:
            """Merge, search and decide; the next question or the tree, the slowest worker's seconds, and ours."""
            began = time.perf_counter()
            told = [unpack(result) for result in results.values()]
            if begin is not None:
                check_rows({ref: n for ref, (*_, n, _) in zip(results, told, strict=True)}, rows_of)
            merged = RoundHistograms.total([answer for answer, *_ in told if answer is not None])
            if owners:
                parts = [found for _, found, *_ in told if found is not None]
                found = merge_best_splits(parts) if parts else []
            else:
                found = searcher.find_best_splits(question.pairs, merged.histograms)
            try:
                following: Any = grower.send(RoundResult(found, merged.n_rows, merged.leaf_sums))
            except StopIteration as end:
                following = end.value
            return following, max(seconds for *_, seconds in told), time.perf_counter() - began

        while True:
            began = time.perf_counter()
            results = await self._fan_out(name, refs, self._round(name, refs, begin, question, owners))
            n_bytes = sum(map(len, results.values()))
            # A tree's first round may have to compile, or load, what it needs.
            light = begin is None and n_bytes <= _LIGHT_BYTES and len(question.pairs) <= _LIGHT_PAIRS
            following, compute, reducing = advance(results) if light else await asyncio.to_thread(advance, results)
            elapsed = time.perf_counter() - began
            timing += Timing(1, compute, reducing, elapsed - compute - reducing, n_bytes)
            if isinstance(following, GrownTree):
                event = {"action": "tree", "fit": name, "workers": len(refs), "leaves": following.n_leaves}
                self._scheduler.log_event(NAME, event | {"owners": len(owners)} | asdict(timing))
                return {"tree": pack((following.copy(), timing))}
            question, begin = following, None

    def _next_round(self) -> int:
        self._n_rounds += 1
        return self._n_rounds

    def _round(
        self, name: str, refs: list[SessionRef], task: TreeTask | None, question: RoundRequest, owners: list[FeatureOwner]
    ) -> Callable[[SessionRef], Any]:
        """The call that puts a question to a session."""
        number = self._next_round()

        def put(ref: SessionRef) -> Any:
            line, whom = self._scheduler.rpc(ref.worker), {"fit": name, "session": ref.session, "number": number}
            if owners:
                return line.dboost_exchange(**whom, n_senders=len(refs), arguments=packed)
            return line.dboost_call(**whom, method=Session.answer.__name__, arguments=packed)

        packed = pack_round((task, question, owners) if owners else (task, question))
        return put


def _is_read(task: Any) -> bool:
    """Whether a task that a worker has done was to read a partition: its receipt stays until all are read."""
    return str(task.key).startswith(READING)


@dataclass
class Fit:
    """A fit under way, as far as the scheduler knows it. workers : all that were ever asked, and are still there."""

    client: str
    workers: set[str] = field(default_factory=set)
    cancelled: bool = False
    #: Those who wait for answers. They wake when all are there, or one is bad, or something happened; or because nothing did.
    turns: set[asyncio.Future[bool]] = field(default_factory=set)
    #: That of the last tree.
    searcher: SplitFinder | None = None

    def look_up(self) -> None:
        """Have whoever waits for answers see what has happened."""
        for ended in self.turns:
            _wake(ended)


class WorkerFailed(Exception):
    """A worker met an error. error : packed."""

    def __init__(self, address: str, error: bytes) -> None:
        super().__init__(address)
        self.address, self.error = address, error


async def result_of(ref: SessionRef, call: Any) -> bytes:
    """A worker's packed result, or what happened instead."""
    try:
        reply = await call
    except OSError as error:  # the connection broke, perhaps before Dask notices that the worker is gone
        raise LostWorkers([ref]) from error
    if reply is None or reply["status"] in (UNKNOWN, STALE):
        raise LostWorkers([ref])
    if reply["status"] == LOST:  # it could not reach another one
        raise LostWorkers(session_refs(reply["sessions"]))
    if reply["status"] == FAILED:
        raise WorkerFailed(ref.worker, reply["error"])
    return reply["result"]


def check_rows(told: Mapping[SessionRef, int], expected: Mapping[SessionRef, int]) -> None:
    """Raise `LostWorkers` for sessions that do not have the rows which the client knows them to have.

    Lost partitions are recognised by their sessions; this is a second check, which depends on nothing but the counts.
    """
    wrong = [ref for ref, n in told.items() if n != expected.get(ref, 0)]
    if wrong:
        raise LostWorkers(wrong)


async def wait_for_replies(fit: Fit, calls: Sequence[asyncio.Future[bytes]]) -> bool:
    """Until all these calls have ended well, or one badly, or something happens to the fit; whether nothing did."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[bool] = loop.create_future()
    fit.turns.add(ended)
    timer = loop.call_later(liveness_timeout(), _wake, ended, True)
    n_left = len(calls)

    def look(call: asyncio.Future[bytes]) -> None:
        nonlocal n_left
        n_left -= 1
        if n_left == 0 or call.cancelled() or call.exception() is not None:
            _wake(ended)

    for call in calls:
        call.add_done_callback(look)
    try:
        return await ended
    finally:
        fit.turns.discard(ended)
        timer.cancel()
        for call in calls:
            call.remove_done_callback(look)


def _wake(ended: asyncio.Future[bool], silent: bool = False) -> None:
    if not ended.done():
        ended.set_result(silent)


def lost_by(call: asyncio.Future[bytes]) -> list[SessionRef]:
    """The sessions that a call which has ended reports as lost."""
    error = None if not call.done() or call.cancelled() else call.exception()
    return error.sessions if isinstance(error, LostWorkers) else []


def abandon(future: asyncio.Future[Any]) -> None:
    """Wait for something no longer, and look at its error if it had one, so that asyncio does not complain."""
    future.cancel()
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
