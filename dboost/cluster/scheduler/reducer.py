"""The reducer, a scheduler plugin: calls the workers' sessions, merges their histograms, picks the splits.

The reducer knows only the sessions of a fit, one on each worker with rows. The client calls the reducer, and the reducer calls
the sessions. A call ends in one of four ways: with the results of all sessions, with the error of a worker, with a list of
*lost* sessions, or because the fit was cancelled. The client, which has the source of every partition, recovers from losses.

**Liveness.** Dask reports dead workers by broken connections or `remove_worker`. A worker that was stopped or disconnected
keeps its connections but does not reply. After `dboost.patience` (default 10 s) without a reply the reducer pings it;
if it does not answer within the same time, the reducer removes it from the cluster, and its nanny, if any, restarts it. A slow
worker answers pings, because calls do not run on its event loop. The reducer pings only workers that a fit waits for.

**Latency.** A fit has thousands of rounds. Each fit has a thread, which answers the client on a line, calls the sessions on
lines (`fit_calls`), merges their histograms and picks the splits (`reducer_rounds`), so the scheduler's event loop
serves all clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, ClassVar

from distributed import Scheduler
from distributed.core import Status
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.scheduler import TaskState

from dboost.cluster.monitoring.dashboard import registry_of
from dboost.cluster.monitoring.prometheus_metrics import publish
from dboost.cluster.scheduler.fit_calls import FitCalls, FitGuard
from dboost.cluster.scheduler.reducer_rounds import ReducerRounds
from dboost.cluster.transport.event_loop import run_on
from dboost.cluster.transport.feature_exchange import choose_exchange
from dboost.cluster.transport.line import Line, accept_line
from dboost.cluster.transport.line_calls import open_lines
from dboost.cluster.transport.messages import (
    CANCELLED,
    FAILED,
    LOST,
    NAME,
    OK,
    READING,
    SILENT,
    FitCancelled,
    LostWorkers,
    SessionRef,
    Timing,
    WorkerFailed,
    WorkerVersion,
    pack,
    pack_error,
    pack_round,
    session_refs,
    unpack,
)
from dboost.cluster.transport.session_tree import Branch, answers_of, for_all, for_each, tree_of
from dboost.cluster.worker.plugin_factory import WorkerPluginFactory
from dboost.config import fan_in, liveness_timeout, worker_timeout
from dboost.session.memory import keep_freed_memory
from dboost.trees.tree_rounds import GrowOrder
from dboost.version import __version__

#: Seconds between two pings of a worker whose plugin has not started yet, or whose tasks of an ended fit still run.
_PING_INTERVAL = 0.05


def dask_setup(scheduler: Scheduler) -> None:
    """Show the page of fits before the first fit, in a scheduler with ``--preload dboost.cluster.scheduler.reducer``."""
    registry_of(scheduler)


class Reducer(SchedulerPlugin):
    """Runs fits in the scheduler: their lines, calls and lost workers. Rounds are in `reducer_rounds`."""

    name = NAME
    idempotent = True

    async def start(self, scheduler: Scheduler) -> None:
        # Two clients may start their first fits at the same time. Dask keeps the plugin whose start ends first. The second one
        # must not replace the handlers: calls would go to one reducer and notices of lost workers to the other.
        first = getattr(scheduler.handlers.get("dboost_open"), "__self__", None)
        if first is not None:
            await first.started.wait()
            if "dboost_open" not in scheduler.handlers:
                raise RuntimeError("another client has registered dboost at the same time, and that failed")
            return
        keep_freed_memory()
        self.started = asyncio.Event()
        self._scheduler = scheduler
        self._loop = asyncio.get_running_loop()
        self._fits: dict[str, RunningFit] = {}  # by id
        self._background_tasks: set[asyncio.Task[Any]] = set()
        #: Replies to pings, by Dask's names of worker processes.
        self._versions: dict[str, WorkerVersion] = {}
        self._numbers = itertools.count(1)  # of calls of all fits; a lower number identifies messages of abandoned calls
        self.registry = registry_of(scheduler)
        scheduler.adaptive_target = self.adaptive_target  # type: ignore[method-assign]
        self._unpublish = publish(self.registry)
        getattr(scheduler, "stream_handlers", {}).update(
            {"dboost-log": self.record_event, "dboost-discard": self.discard, "dboost-end": self.end_later}
        )
        scheduler.handlers.update(
            {
                "dboost_open": self.open_fit,
                "dboost_workers": self.usable_workers,
                "dboost_need": self.need_workers,
                "dboost_line": self.line,
                "adaptive_target": self.adaptive_target,
                "dboost_sessions": self.sessions,
                "dboost_abandon": self.abandon,
                "dboost_remove_unresponsive": self.remove_unresponsive,
                "dboost_end": self.end_fit,
            }
        )
        # Dask waits for every worker here. A worker that hangs or dies must not block the others; `_ping` waits for workers
        # that have not started the plugin yet.
        try:
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                plugin = scheduler.register_worker_plugin(None, pack(WorkerPluginFactory()), name=NAME, idempotent=False)
                await asyncio.wait_for(plugin, liveness_timeout())
        except BaseException:
            del scheduler.handlers["dboost_open"]  # the next client installs the plugin again
            raise
        finally:
            self.started.set()

    # Calls of the client.

    async def open_fit(self, fit: str, client_id: str) -> dict[str, Any]:
        """Start a fit; return the name of this host, and what `usable_workers` does."""
        guard = FitGuard(
            lambda worker: worker in self._scheduler.workers,
            lambda: fit not in self._fits,
            partial(self._lost_among, fit),
            self._loop,
        )
        self._fits[fit] = RunningFit(client_id, FitCalls(guard, self._numbers))
        self._scheduler.idle_since = None
        self._scheduler.log_event(NAME, {"action": "began", "fit": fit})
        return {"version": __version__, "host": socket.gethostname(), **await self.usable_workers(fit)}

    async def usable_workers(self, fit: str) -> dict[str, Any]:
        """Return the current workers, see `_records`, and the number of fits."""
        return {"status": OK, "workers": await self._records(), "fits": len(self._fits)}

    async def need_workers(self, fit: str, n_workers: int) -> dict[str, Any]:
        """Record how many workers a fit needs, see `adaptive_target`."""
        if fit in self._fits:
            self._fits[fit].n_workers_needed = n_workers
        return {"status": OK}

    async def sessions(self, fit: str, workers: Sequence[str], lost: Sequence[str]) -> dict[str, Any]:
        """Return the sessions of workers, which the fit waits for from now on; a worker without one makes it.

        lost : names of lost sessions.
        """
        try:
            self._use(self._fit(fit), [SessionRef(worker, "") for worker in workers])
            names = await asyncio.gather(*(self._session_of(fit, worker, lost) for worker in workers))
            silent = [worker for worker, name in zip(workers, names, strict=True) if name is None]
            if silent:
                await self._remove_unresponsive(silent)
                raise LostWorkers([SessionRef(worker, "") for worker in silent])
        except Exception as error:
            return _reply_of(error)
        return {"status": OK, "sessions": list(zip(workers, names, strict=True))}

    async def line(self, comm: Any, fit: str) -> Any:
        """Open a line to the client: the thread of the fit answers its calls in `LINE_CALLS` there."""
        if fit not in self._fits:
            return {"status": CANCELLED}

        def use(line: Line) -> None:
            running = self._fits.get(fit)
            if running is None:
                line.close()
                return
            running.client_line = line
            running.thread.submit(self._serve_client, fit, line)

        await accept_line(comm, use)
        return Status.dont_reply

    def _serve_client(self, fit: str, line: Line) -> None:
        """Answer the calls of the client on a line, in the thread of the fit, until either end closes it."""
        try:
            while True:
                message = line.receive()
                line.send(message.number, 0, pack_round(self.answer(fit, *message.unpack())))
        except OSError:
            pass  # the client has gone, or the fit has ended
        finally:
            line.close()

    def answer(self, fit: str, call: str, *arguments: Any) -> dict[str, Any]:
        """Answer a call of the client, in the thread of the fit. call : see `LINE_CALLS`."""
        try:
            return {"status": OK, **self.LINE_CALLS[call](self, fit, *arguments)}
        except Exception as error:
            return _reply_of(error)

    def ask(self, fit: str, refs: Sequence[SessionRef], method: str, arguments: Any) -> dict[str, Any]:
        """Call a method of sessions. arguments : packed; bytes for all sessions, or a list of bytes."""
        running, branches = self._called(fit, refs)
        is_for_all = isinstance(arguments, bytes | memoryview)
        packed = for_all(branches, arguments) if is_for_all else for_each(branches, arguments)
        results: dict[SessionRef, bytes] = {}
        running.calls.begin(method, packed)(lambda ref, message: results.update(answers_of(ref, message, branches)))
        reply = {"results": [results[ref] for ref in refs], "workers": self._identities()}
        lost = [running.lost_readers.popleft() for _ in range(len(running.lost_readers))]
        return reply | {"lost_readers": lost} if lost else reply

    def grow(self, fit: str, refs: Sequence[SessionRef], order: bytes) -> dict[str, Any]:
        """Grow trees. order : packed `GrowOrder` and number of rows of each session."""
        asked: GrowOrder
        asked, rows_of = unpack(order)
        running, branches = self._called(fit, refs)
        exchange = choose_exchange(refs, asked.tasks[0], asked.layout, asked.n_leaves_per_round)
        grown, timing = running.rounds.grow(running.calls, branches, asked, rows_of, exchange)
        how = {
            "action": "tree",
            "fit": fit,
            "workers": len(refs),
            "owners": 0 if exchange is None else exchange.n_slices,
            "groups": 0 if exchange is None else exchange.n_groups,
            "branches": len(branches),
        }
        for k, tree in enumerate(grown):  # the first one has the times of all
            event = {**how, "leaves": tree.n_leaves, **asdict(Timing() if k else timing)}
            self._loop.call_soon_threadsafe(self._scheduler.log_event, NAME, event)
        return {"trees": pack_round((grown, timing))}

    #: The calls of the client on its line; all others are messages of Dask.
    LINE_CALLS: ClassVar[dict[str, Callable[..., dict[str, Any]]]] = {"dboost_ask": ask, "dboost_grow": grow}

    async def abandon(self, fit: str, sessions: Sequence[Any]) -> dict[str, Any]:
        """Release lost sessions, without waiting: most of them are gone."""
        if fit in self._fits:  # the client waits for this call, so none is running
            self._fits[fit].calls.release(session_refs(sessions))
        for worker, session in session_refs(sessions):
            if worker in self._scheduler.workers:
                self._run_in_background(self._release(worker, fit, session))
        return {"status": OK}

    def discard(self, client: str, fit: str, batch: str, workers: Sequence[str] | None) -> None:
        """Release a batch on workers that are still there; default None: on all."""
        for worker in self._scheduler.workers if workers is None else self._scheduler.workers.keys() & set(workers):
            self._run_in_background(self._discard(worker, fit, batch))

    def record_event(self, client: str, event: Any) -> None:
        """Log an event that a client sends."""
        self._scheduler.log_event(NAME, event)

    def end_later(self, client: str, fit: str) -> None:
        """End a fit whose client did not wait for an answer, see `end_fit`."""
        self._run_in_background(self.end_fit(fit, "interrupted"))

    async def end_fit(self, fit: str, outcome: str = "client left") -> dict[str, Any]:
        """Release a fit here and on all workers; a running call is cancelled. Tasks of the fit that write have then ended."""
        running = self._fits.pop(fit, None)
        if running is not None:
            running.end()
            self._scheduler.log_event(NAME, {"action": "ended", "fit": fit, "outcome": outcome})
        await asyncio.gather(*(self._release(address, fit) for address in list(self._scheduler.workers)))
        return {"status": OK}

    # Calls of Dask.

    def log_event(self, topic: str, msg: Any) -> None:
        if topic == NAME:
            self.registry.see(msg, time.time())
        elif topic == "all" and isinstance(msg, dict) and msg.get("action") == "remove-worker":
            self._note_lost_reader(msg["worker"], {*msg["processing-tasks"], *msg["lost-computed-tasks"]})

    def _note_lost_reader(self, worker: str, keys: set[Any]) -> None:
        """Note how many partitions Dask reads again elsewhere; calls notice the loss of workers that a fit has called before.

        keys : of the tasks that a lost worker ran, or whose results only it had.
        """
        fits = {f"{READING}{fit}": running for fit, running in self._fits.items() if worker not in running.workers}
        if not fits:
            return
        tasks = {task for key in keys if (task := self._scheduler.tasks.get(key)) is not None}
        seen, left = set(tasks), list(tasks)
        while left:
            later = set(left.pop().dependents) - seen
            seen |= later
            left += later
        again = [str(task.key) for task in seen if task in tasks or task.state != "memory"]
        for prefix, running in fits.items():
            n_partitions = sum(key.startswith(prefix) for key in again)
            if n_partitions:
                running.lost_readers.append((worker, n_partitions))

    async def close(self) -> None:
        fits, self._fits = self._fits, {}
        for running in fits.values():
            running.end()
        self._unpublish()

    def remove_worker(self, scheduler: Scheduler, worker: str, **kwargs: Any) -> None:
        for fit, running in self._fits.items():
            if worker in running.workers:
                self._scheduler.log_event(NAME, {"action": "lost", "fit": fit, "worker": worker})
                running.workers = running.workers - {worker}
                running.calls.guard.wake()

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        for fit, running in list(self._fits.items()):
            if running.client == client:
                self._run_in_background(self.end_fit(fit))

    def adaptive_target(self, target_duration: Any = None) -> int:
        """Return how many workers an adaptive cluster should have: as Dask's tasks need, or more if a fit needs more.

        Dask counts tasks, and sees none between the trees of a fit. Its adaptive clusters (in this process, by messages or by
        HTTP) ask the scheduler for this number.
        """
        needed = max((running.n_workers_needed for running in self._fits.values()), default=0)
        return max(Scheduler.adaptive_target(self._scheduler, target_duration), needed)

    def valid_workers_downscaling(self, scheduler: Scheduler, workers: list[Any]) -> list[Any]:
        """Keep workers with rows, and workers that read them, when a cluster scales down."""
        in_use = set().union(*(running.workers for running in self._fits.values()))
        return [worker for worker in workers if worker.address not in in_use and not any(map(_is_read, worker.has_what))]

    async def remove_unresponsive(self, fit: str) -> dict[str, Any]:
        """Remove unresponsive workers that this fit waits for, so that Dask runs their tasks elsewhere.

        Move its tasks from paused workers, where Dask leaves them for as long as these are paused, to others that may run them.
        Return the remaining workers, for paused ones the bytes in use and the limit, whether all of its tasks wait for paused
        workers, and for tasks that read or supply its partitions and that no worker may run, which workers or resources they
        are restricted to.
        """
        self._scheduler.idle_since = None
        awaited, waiting, unrunnable = self._awaited(fit)
        await self._remove_unresponsive(sorted(awaited))
        workers = self._scheduler.workers
        paused = {
            address: (int(state.metrics.get("memory", 0)), int(state.memory_limit or 0))
            for address, state in workers.items()
            if state.status == Status.paused
        }
        places = [(task, task.processing_on) for task in waiting if task.processing_on is not None]
        can_go_on = any(place.address not in paused or task in place.executing for task, place in places)
        is_stuck = not can_go_on and (bool(waiting) or not workers.keys() - paused.keys())
        self._move_from(paused, waiting)
        return {"status": OK, "workers": list(workers), "paused": paused, "stuck": is_stuck, "unrunnable": unrunnable}

    def _move_from(self, paused: Mapping[str, Any], waiting: Sequence[TaskState]) -> None:
        """Ask paused workers for tasks that they have not begun, for running ones.

        Dask's work stealing asks, and moves a task when the worker answers that it has not begun it. Of itself it takes tasks
        from running workers only. Where it is switched off, tasks stay.
        """
        stealing = self._scheduler.extensions.get("stealing")
        planned: Counter[str] = Counter()
        for task in waiting:
            worker = task.processing_on
            if stealing is None or worker is None or worker.address not in paused:
                continue
            allowed = None if task.loose_restrictions else self._scheduler.valid_workers(task)
            others = self._scheduler.running if allowed is None else self._scheduler.running & allowed
            if others:
                target = min(others, key=lambda state: (len(state.processing) + planned[state.address], state.address))
                planned[target.address] += 1
                stealing.move_task_request(task, worker, target)

    def _awaited(self, fit: str) -> tuple[set[str], list[TaskState], dict[str, str]]:
        """Return the workers that have sessions of a fit, read its partitions, or compute or hold their inputs.

        Also return the tasks of these that are on a worker or wait for paused ones, and those that no worker may run, with
        their restrictions.
        """
        waiting: list[TaskState] = []
        unrunnable: dict[str, str] = {}
        running = self._fits.get(fit)
        workers = set() if running is None else {worker for worker in running.workers if worker in self._scheduler.workers}
        prefix = f"{READING}{fit}"
        tasks = [task for task in self._scheduler.tasks.values() if str(task.key).startswith(prefix)]
        seen = set(tasks)
        while tasks:
            task = tasks.pop()
            if task.processing_on is not None:
                waiting.append(task)
                workers.add(task.processing_on.address)
            if task.state == "no-worker" and self._is_paused(task.worker_restrictions):
                waiting.append(task)
            elif task.state == "no-worker":
                allowed = [
                    *(task.worker_restrictions or ()),
                    *(task.host_restrictions or ()),
                    *(task.resource_restrictions or ()),
                ]
                unrunnable[str(task.key)] = ", ".join(sorted(map(str, allowed)))
            workers |= {state.address for state in task.who_has or ()}
            if task.state != "memory":
                upstream = set(task.dependencies) - seen
                seen |= upstream
                tasks += upstream
        return workers, waiting, unrunnable

    def _is_paused(self, addresses: Iterable[str] | None) -> bool:
        """Return whether one of some workers is paused."""
        states = map(self._scheduler.workers.get, addresses or ())
        return any(state is not None and state.status == Status.paused for state in states)

    # Implementation.

    def _identities(self) -> list[tuple[str, str]]:
        """Return address and Dask's server id of every worker process; a worker restarted at the same address has a new id."""
        return [(address, str(state.server_id)) for address, state in list(self._scheduler.workers.items())]

    async def _lost_among(self, fit: str, silent: Sequence[SessionRef]) -> list[SessionRef]:
        """Remove workers that do not answer pings; return the lost sessions among those that have not answered."""
        hung = set(await self._remove_unresponsive([ref.worker for ref in silent]))
        # A worker that was restarted at the same address answers pings, but has no such session.
        unknown = [ref for ref in silent if ref.worker not in hung and not await self._has(fit, ref)]
        return [ref for ref in silent if ref.worker in hung] + unknown

    async def _remove_unresponsive(self, addresses: Sequence[str]) -> list[str]:
        """Ping workers, remove those that do not answer, and return their addresses."""
        answers = await asyncio.gather(*map(self._ping, addresses))
        hung = [address for address, (version, *_) in zip(addresses, answers, strict=True) if version == SILENT]
        for address in hung:
            await self._remove(address)
        return hung

    async def _records(self) -> dict[str, tuple[Any, ...]]:
        """Return the fields of each worker's `WorkerRecord`; only new workers are pinged."""
        versions = await self._ping_new()
        states = self._scheduler.workers
        return {
            address: (
                *version,
                str(state.name),
                dict(state.resources),
                state.nthreads,
                state.memory_limit,
                state.status is Status.running,
            )
            for address, version in versions.items()
            if (state := states.get(address)) is not None  # it may have left meanwhile
        }

    async def _ping_new(self) -> dict[str, WorkerVersion]:
        """Return the replies of all workers to pings; ping those whose replies are not known."""
        identities = self._identities()
        present = {identity for _, identity in identities}
        self._versions = {identity: version for identity, version in self._versions.items() if identity in present}
        to_ping = [(address, identity) for address, identity in identities if identity not in self._versions]
        versions = await asyncio.gather(*(self._ping(address) for address, _ in to_ping))
        replies = dict(zip(to_ping, versions, strict=True))
        self._versions |= {identity: version for (_, identity), version in replies.items() if version[0] != SILENT}
        return {address: self._versions.get(identity, (SILENT, None, None, None)) for address, identity in identities}

    async def _ping(self, address: str) -> WorkerVersion:
        """Return a worker's reply; SILENT without an answer, or if it does not start in time.

        A new worker has no handler until Dask has installed the plugin there, and then answers that it is starting while it
        imports dboost, which takes seconds on a busy machine or from a slow disk.
        """
        began = time.monotonic()
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            while True:
                reply = await asyncio.wait_for(self._scheduler.rpc(address).dboost_ping(), liveness_timeout())
                if reply is not None and not reply.get("starting"):
                    return reply.get("version"), reply.get("reason"), reply.get("host"), reply.get("processors")
                if time.monotonic() - began > (liveness_timeout() / 2 if reply is None else worker_timeout()):
                    break
                await asyncio.sleep(_PING_INTERVAL)
        return SILENT, None, None, None

    async def _session_of(self, fit: str, address: str, lost: Sequence[str]) -> str | None:
        """Return the name of a worker's session; None without an answer."""
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            rpc = self._scheduler.rpc(address)
            reply = await asyncio.wait_for(rpc.dboost_session(fit=fit, lost=lost), liveness_timeout())
            return None if reply is None else reply.get("session")
        return None

    async def _has(self, fit: str, ref: SessionRef) -> bool:
        """Return whether a worker has a session; True without an answer."""
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            rpc = self._scheduler.rpc(ref.worker)
            reply = await asyncio.wait_for(rpc.dboost_has(fit=fit, session=ref.session), liveness_timeout())
            return reply is not None and bool(reply.get("has"))
        return True

    async def _release(self, address: str, fit: str, session: str | None = None) -> None:
        """Release a session, or (None) a fit on a worker.

        Its tasks have ended then, unless the worker does not answer, or one of them takes longer than `dboost.worker-timeout`,
        such as on a disk that hangs.
        """
        deadline = time.monotonic() + worker_timeout()
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            while time.monotonic() < deadline:
                release = self._scheduler.rpc(address).dboost_release(fit=fit, session=session)
                reply = await asyncio.wait_for(release, liveness_timeout())
                if reply is None or not reply.get("running"):
                    return
                await asyncio.sleep(_PING_INTERVAL)

    async def _discard(self, address: str, fit: str, batch: str) -> None:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._scheduler.rpc(address).dboost_discard(fit=fit, batch=batch), liveness_timeout())

    async def _remove(self, address: str) -> None:
        """Remove a worker that does not answer; its nanny restarts it."""
        state = self._scheduler.workers.get(address)
        if state is None:
            return
        nanny = state.nanny
        self._scheduler.log_event(NAME, {"action": "removed", "worker": address, "reason": "did not answer"})
        await self._scheduler.remove_worker(address, stimulus_id=f"{NAME}-hung-{time.time()}", close=False)
        if nanny is not None:
            self._run_in_background(self._restart(nanny))

    async def _restart(self, nanny: str) -> None:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._scheduler.rpc(nanny).restart(timeout=30, reason=f"{NAME}-hung"), 60)

    def _run_in_background(self, work: Any) -> None:
        chore = asyncio.ensure_future(work)
        self._background_tasks.add(chore)
        chore.add_done_callback(self._background_tasks.discard)

    def _called(self, fit: str, refs: Sequence[SessionRef]) -> tuple[RunningFit, tuple[Branch, ...]]:
        """Return a fit, and the tree of sessions that it calls; open the lines that are missing.

        Raises
        ------
        LostWorkers
        """
        running = self._fit(fit)
        self._use(running, refs)
        branches = tree_of(tuple(refs), fan_in())
        missing = running.calls.missing(branch.ref for branch in branches)
        if missing:
            opening = open_lines("the scheduler", fit, missing, self._scheduler.connection_args)
            running.calls.add(run_on(self._loop, opening))
        return running, branches

    def _fit(self, fit: str) -> RunningFit:
        running = self._fits.get(fit)
        if running is None:
            raise FitCancelled
        return running

    def _use(self, running: RunningFit, refs: Sequence[SessionRef]) -> None:
        """Record that a fit calls these sessions; raise LostWorkers if some of their workers have left the cluster."""
        running.workers = running.workers.union(ref.worker for ref in refs)
        self._scheduler.idle_since = None
        absent = [ref for ref in refs if ref.worker not in self._scheduler.workers]
        if absent:
            raise LostWorkers(absent)


def _is_read(task: Any) -> bool:
    """Whether a task reads a partition; its result is kept until all partitions are read."""
    return str(task.key).startswith(READING)


@dataclass(eq=False)
class RunningFit:
    """State of a running fit in the scheduler."""

    client: str
    calls: FitCalls
    workers: frozenset[str] = frozenset()  # all workers that the fit has called and that are still present
    #: Address and number of partitions of each worker that was lost before the fit had called it; the next reply to the client
    #: carries them.
    lost_readers: deque[tuple[str, int]] = field(default_factory=deque)
    n_workers_needed: int = 1  # at least; an adaptive cluster may have none when the fit begins
    rounds: ReducerRounds = field(default_factory=ReducerRounds)
    client_line: Line | None = None  # on which the client makes the calls in `Reducer.LINE_CALLS`
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "dboost-fit"))

    def end(self) -> None:
        """Cancel a running call, and release lines and thread after it."""
        self.calls.guard.wake()
        if self.client_line is not None:
            self.client_line.shut_down()
        self.thread.submit(self.calls.close)
        self.thread.submit(self.rounds.close)
        self.thread.shutdown(wait=False)


def _reply_of(error: Exception) -> dict[str, Any]:
    """Return the reply to a call that has failed."""
    if isinstance(error, LostWorkers):
        return {"status": LOST, "sessions": error.sessions}
    if isinstance(error, WorkerFailed):
        return {"status": FAILED, "worker": error.address, "error": error.error}
    if isinstance(error, FitCancelled):
        return {"status": CANCELLED}
    return {"status": FAILED, "worker": None, "error": pack_error(error)}
