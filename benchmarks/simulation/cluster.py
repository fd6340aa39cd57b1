"""Scheduler, workers and client as objects in one process, around the real plugins and the real client code.

A worker reads its partition as a loading task would, and keeps its few rows in a `DBoostWorkerPlugin` of its own. Its work on
them is real; the simulated time of that work is computed for the many rows for which they stand. Merging and decisions in the
scheduler and in relays are real too, and take their measured time. Calls on lines (`SimulatedCalls`) and Dask's messages travel
on the same simulated network.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import dask
from distributed import Client
from distributed.core import Status

from benchmarks.simulation.clock import CountedLoop, run_on
from benchmarks.simulation.costs import Costs
from benchmarks.simulation.network import Host, Line, Network, Wire
from dboost.cluster.client.connection import Connection
from dboost.cluster.partitions.read_tasks import ReadTasks, Receipt
from dboost.cluster.scheduler import fit_calls, reducer
from dboost.cluster.scheduler.fit_calls import FitGuard
from dboost.cluster.training.cluster_fit import fit_on_cluster, n_partitions_of
from dboost.cluster.transport import relay as relays
from dboost.cluster.transport.feature_exchange import FeatureOwner, SliceRound, count_groups
from dboost.cluster.transport.line import Message, Pieces
from dboost.cluster.transport.line_calls import METHODS, Decode, LineCalls
from dboost.cluster.transport.messages import SessionRef, unpack
from dboost.cluster.transport.peer_messages import Inbox
from dboost.cluster.transport.relay import Relay
from dboost.cluster.transport.session_tree import Arguments, Branch, buffers_of
from dboost.cluster.worker import partition_mover
from dboost.cluster.worker.worker_plugin import DBoostWorkerPlugin
from dboost.config import fan_in, gather_bytes, owner_bytes
from dboost.data.columns.read_plan import ReadPlan
from dboost.data.tables import dask_collections
from dboost.data.tables.reading import GivenTable
from dboost.kernels.histograms import PAIR
from dboost.session.session import Session
from dboost.training.fit import FitResult
from dboost.training.request import FitRequest

#: Bins of a feature.
_N_BINS = 255


class Worker:
    """The attributes of a Dask worker that a `DBoostWorkerPlugin` uses."""

    def __init__(self, address: str, simulated: Simulated) -> None:
        self.address = address
        self.handlers: dict[str, Any] = {}
        self.plugins: dict[str, Any] = {}
        self.state = SimpleNamespace(
            nthreads=1, nanny=None, server_id=address, name=address, resources={}, memory_limit=0, status=Status.running
        )  # fmt: skip
        self.local_directory = tempfile.gettempdir()  # the folder of streamed rows, if memory were limited
        self.memory_manager = SimpleNamespace(memory_limit=None)
        self._simulated = simulated
        self.holder = DBoostWorkerPlugin()
        simulated.run(self._set_up())
        self.holder._inbox = SimulatedInbox(simulated)
        peers = SimulatedPeers(simulated, address)
        self.holder._peers_of = lambda fit, session: peers  # type: ignore[assignment, method-assign, return-value]
        self.holder._execute = partial(self._execute, self.holder._execute)  # type: ignore[method-assign]
        self.line = object()  # the executor of calls on lines
        self._relays: dict[SessionRef, Relay] = {}
        self._lines: dict[SessionRef, SimulatedLine] = {}
        self._surplus = 0.0

    async def _set_up(self) -> None:
        self.holder.setup(self)  # type: ignore[arg-type]

    def _execute(self, execute: Any, fit: str, session: str, number: int, method: str, arguments: Any) -> Any:
        """Execute a call, and note its simulated seconds above the real ones."""
        name = method.__name__ if callable(method) else method
        began = time.thread_time()
        answer = execute(fit, session, number, method, arguments)
        took = time.thread_time() - began
        self._surplus += self._simulated.seconds_of(self.holder._sessions.get(fit), number, name, arguments, took) - took
        return answer

    def surplus(self) -> float:
        """Return the simulated seconds above the real ones since the last call."""
        surplus, self._surplus = self._surplus, 0.0
        return surplus

    def answer(self, ref: SessionRef, message: Message) -> tuple[int, bytes, list[memoryview]]:
        """Answer a call on a line."""
        self.line_of(ref).answered(message.number)
        return self.holder.answer(self._relays[ref], self._fit_of(ref), ref.session, message)

    def line_of(self, ref: SessionRef) -> SimulatedLine:
        """Return the line of a session's relay."""
        if ref not in self._relays:
            self._lines[ref] = SimulatedLine(self._simulated, self.address)
            self._relays[ref] = Relay(self._lines[ref], ref, lambda refs: {})  # type: ignore[arg-type]
        return self._lines[ref]

    def receive(self, ref: SessionRef, number: int, header: bytes, content: Pieces) -> None:
        """Receive a slice on a line."""
        self.holder.slice(self._fit_of(ref), ref.session, number, *unpack(header), content)

    def _fit_of(self, ref: SessionRef) -> str:
        (fit,) = (fit for fit, session in self.holder._sessions.items() if session.id == ref.session)
        return fit

    def rpc(self, address: str) -> Line:
        return self._simulated.line(self.address, address)


class Scheduler:
    """The attributes of a Dask scheduler that a `Reducer` uses."""

    address = "scheduler"

    def __init__(self, simulated: Simulated) -> None:
        self.handlers: dict[str, Any] = {}
        self.workers: dict[str, Any] = {address: worker.state for address, worker in simulated.workers.items()}
        self.idle_since: float | None = None
        self._simulated = simulated

    async def register_worker_plugin(self, *arguments: Any, **keywords: Any) -> None:
        """Do nothing: the workers have the plugin already."""

    def rpc(self, address: str) -> Line:
        return self._simulated.line(self.address, address)

    def log_event(self, topic: str, message: dict[str, Any]) -> None:
        self._simulated.events.append(message)


@dataclass(eq=False)
class Simulated:
    """A cluster of `n_workers` workers of one thread.

    Attributes
    ----------
    n_rows : float
        Of the simulated table.
    many, columns : float
        Number of rows for which each real row stands, and of columns for which each real column does.
    seconds : float
        Simulated time of growing trees and advancing, from the client's request to the result, without the first tree.
    computing : dict of int to float
        Of these, those of the slowest worker, by round.
    deciding : float
        Of these, merging and deciding in the scheduler's process.
    """

    n_workers: int
    network: Network
    costs: Costs
    n_rows: float = 0.0
    many: float = 1.0
    columns: float = 1.0
    workers: dict[str, Worker] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    computing: dict[int, float] = field(default_factory=dict)
    deciding: float = 0.0

    def __post_init__(self) -> None:
        self.loop = CountedLoop()
        self.loop.charge = self._charge
        self.loop.waits_for_loop = lambda executor: executor is not None
        self.wire = Wire(self.network)
        self._trains, self._n_grown = False, 0
        self._of_executor: dict[Any, Worker] = {}
        for k in range(self.n_workers):
            worker = Worker(f"worker-{k:04d}", self)
            self.workers[worker.address] = worker
            self._of_executor |= {worker.holder._pool: worker, worker.line: worker}
        self.scheduler = Scheduler(self)

    def line(self, sender: str, receiver: str) -> Line:
        handlers = self.scheduler.handlers if receiver == "scheduler" else self.workers[receiver].handlers
        return self.wire.rpc(self.host(sender), self.host(receiver), handlers)

    def host(self, address: str) -> Host:
        return self.wire.host(address)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in simulated time."""
        return self.loop.run_until_complete(work)

    def width(self, branch: Branch) -> float:
        """Return the factor of the bytes of a branch's histograms, whose real rows are too few to need wide numbers."""
        return self.columns * (2.0 if is_wide(self.n_rows_of(branch)) else 1.0)

    def scale_of_slices(self, stage: int) -> float:
        """Return the same of slices: of the rows of a worker, or in the second stage of a group of workers."""
        n_senders = count_groups(self.n_workers, fan_in()) if stage else self.n_workers
        return self.columns * (2.0 if is_wide(self.n_rows / n_senders) else 1.0)

    async def train(self, call: Coroutine[Any, Any, Any], grows: bool) -> Any:
        """Run a coroutine that counts as training, from the second tree on. grows : whether it grows trees."""
        if grows and self._n_grown < 2:  # the first tree opens lines and fills caches
            self.seconds = self.deciding = 0.0
            self.computing.clear()
        self._n_grown += grows
        began = self.loop.time()
        self._trains = True
        gc.disable()  # this process has the objects of all workers, so a collection would take long
        try:
            return await call
        finally:
            gc.enable()
            self._trains = False
            self.seconds += self.loop.time() - began

    def _charge(self, executor: Any, function: Any, arguments: tuple[Any, ...], took: float) -> float:
        worker = self._of_executor.get(executor)
        if worker is not None:
            return max(took + worker.surplus(), 0.0)
        self.deciding += took if self._trains else 0.0
        return took

    def seconds_of(self, holding: Session | None, number: int, method: str, arguments: Any, took: float) -> float:
        """Return the simulated seconds of a call, which took some real ones."""
        seconds = took if holding is None else self._of_rows(holding, method, arguments, took)
        if self._trains:
            self.computing[number] = max(self.computing.get(number, 0.0), seconds)
        return seconds

    def n_rows_of(self, branch: Branch) -> float:
        """Return how many rows a branch of sessions has."""
        held = (self.workers[ref.worker].holder._sessions.values() for ref in (branch.ref, *branch.below))
        return self.many * sum(session.n_rows for sessions in held for session in sessions)

    def _of_rows(self, holding: Session, method: str, arguments: Any, took: float) -> float:
        """Return the cost of a method for a worker with many rows and columns: what it took, and that of the other rows."""
        if method == Session.advance_to.__name__:
            return took + holding.n_rows * (self.many - 1.0) * self.costs.advance
        if method == Session.round_histograms.__name__:
            tasks, requests = unpack(arguments)
            return took + self._of_other_rows(holding, tasks, requests)
        if method == FeatureOwner.cut_slices.__name__:
            message: SliceRound = arguments[0]
            assert holding._spec is not None
            n_nodes = sum(len(request.nodes) for request in message.requests.values())
            n_bytes = 4 * n_nodes * holding._spec.shard_spec.n_channels * int(holding._spec.shard_spec.tree_layout.offset[-1])
            copied = (self.columns - 1.0) * n_bytes * self.costs.add
            return took + self._of_other_rows(holding, message.tasks, message.requests) + copied
        if method in (FeatureOwner.add_slices.__name__, FeatureOwner.search_slices.__name__):
            slices = arguments[-1]
            added = sum(map(len, slices)) * self.costs.add
            searched = len(slices[0]) * self.costs.search if method == FeatureOwner.search_slices.__name__ else 0.0
            return took + (self.columns - 1.0) * (added + searched)
        return took

    def _of_other_rows(self, holding: Session, tasks: Any, requests: Any) -> float:
        """Return the cost of a round beyond that of the real rows and columns."""
        return sum(
            self.costs.of_round(grower, bool(tasks), output, request, self.many, self.columns)
            - self.costs.of_round(grower, bool(tasks), output, request, 1.0)
            for rows in holding.trained
            for grower in rows.grower.by_thread
            for output, request in requests.items()
        )

    def close(self) -> None:
        for worker in self.workers.values():
            self.loop.run_until_complete(worker.holder.teardown(worker))  # type: ignore[arg-type]
        self.loop.close()


def is_wide(n_rows: float) -> bool:
    """Return whether the sums of a bucket over this many rows, in bins of equal weight, need more than 32 bits."""
    return n_rows / _N_BINS * PAIR.max_hessian > 2**31


class SimulatedLine:
    """A line, as a relay sees it: the calls on it arrive through `Worker.answer`, and it looks at those that follow before."""

    has_received = False

    def __init__(self, simulated: Simulated, address: str) -> None:
        self.simulated, self.address = simulated, address
        self._arrived: list[Message] = []  # that `Worker.answer` has not got
        self._n_polled = 0
        self._waiting: asyncio.Future[None] | None = None

    def arrive(self, message: Message) -> None:
        """Receive a request; called on the loop."""
        self._arrived.append(message)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def answered(self, number: int) -> None:
        """Drop a request that is answered now."""
        assert self._arrived[0].number == number
        del self._arrived[0]
        self._n_polled = max(self._n_polled - 1, 0)

    def poll(self) -> Message | None:
        """Return the next request that has arrived."""
        if self._n_polled == len(self._arrived):
            return None
        self._n_polled += 1
        return self._arrived[self._n_polled - 1]

    def next_arrival(self) -> asyncio.Future[None]:
        """Return a future that is done when the next request arrives; called on the loop."""
        self._waiting = self.simulated.loop.create_future()
        if self._n_polled < len(self._arrived):
            self._waiting.set_result(None)
        return self._waiting

    def close(self) -> None:
        """Do nothing."""


class SimulatedInbox(Inbox):
    """Takes the place of `Inbox`: the loop runs while a thread waits."""

    def __init__(self, simulated: Simulated) -> None:
        super().__init__()
        self._simulated = simulated
        self._arrived: dict[tuple[str, int, int], asyncio.Future[None]] = {}

    def put(self, fit: str, number: int, stage: int, sender: str, content: Pieces) -> None:
        super().put(fit, number, stage, sender, content)
        arrived = self._arrived.get((fit, number, stage))
        if arrived is not None and not arrived.done():
            arrived.set_result(None)

    def all_of(self, fit: str, number: int, stage: int, n_senders: int, check: Any = None) -> list[Pieces]:
        key = fit, number, stage

        async def wait() -> None:
            while len(self._slices.get(key, ())) < n_senders:
                self._arrived[key] = self._simulated.loop.create_future()
                await self._arrived[key]

        run_on(self._simulated.loop, wait())
        self._arrived.pop(key, None)
        return super().all_of(fit, number, stage, n_senders)


class SimulatedPeers:
    """Takes the place of `Peers`."""

    def __init__(self, simulated: Simulated, address: str) -> None:
        self._simulated, self._address = simulated, address
        self._sending: set[asyncio.Task[None]] = set()

    def send(self, number: int, header: bytes, slices: Mapping[SessionRef, Pieces]) -> None:
        async def start() -> None:
            for ref, content in slices.items():
                self._sending.add(task := asyncio.ensure_future(self._send(ref, number, header, content)))
                task.add_done_callback(self._sending.discard)

        run_on(self._simulated.loop, start())

    async def _send(self, ref: SessionRef, number: int, header: bytes, content: Pieces) -> None:
        simulated, costs = self._simulated, self._simulated.costs
        size = len(header) + sum(map(len, content)) * simulated.scale_of_slices(unpack(header)[0])
        here, there = simulated.host(self._address), simulated.host(ref.worker)
        await simulated.wire.send(here, there, size, costs.message + size * costs.byte)
        simulated.workers[ref.worker].receive(ref, number, header, content)


class SimulatedCalls:
    """Takes the place of `LineCalls`: lines of the simulated network, which never break."""

    def __init__(self, simulated: Simulated, address: str, relay: Relay | None = None) -> None:
        self._simulated, self._address, self._relay = simulated, address, relay
        self._calls: dict[tuple[int, SessionRef], asyncio.Future[tuple[int, bytes, list[memoryview]]]] = {}
        self._turns: dict[SessionRef, asyncio.Lock] = defaultdict(asyncio.Lock)  # a session answers calls one after the other
        self.n_bytes = 0

    def missing(self, refs: Iterable[SessionRef]) -> list[SessionRef]:
        return []

    def send(self, number: int, method: int, arguments: Mapping[Branch, Arguments], *, follows: bool = False) -> None:
        async def start() -> None:
            for branch, (content, *below) in arguments.items():
                message = Message(number, method, memoryview(bytes(content)), buffers_of(branch, follows, below))
                self._calls[number, branch.ref] = asyncio.ensure_future(self._call(branch, message))

        run_on(self._simulated.loop, start())

    async def _call(self, branch: Branch, message: Message) -> tuple[int, bytes, list[memoryview]]:
        simulated, costs = self._simulated, self._simulated.costs
        here, there = simulated.host(self._address), simulated.host(branch.ref.worker)
        worker = simulated.workers[branch.ref.worker]
        size = len(message.content) + sum(map(len, message.buffers))
        await simulated.wire.send(here, there, size, costs.message + size * costs.byte)
        worker.line_of(branch.ref).arrive(message)
        async with self._turns[branch.ref]:
            status, reply, sent = await simulated.loop.run_in_executor(worker.line, worker.answer, branch.ref, message)
            buffers = [memoryview(bytes(buffer)) for buffer in sent]  # the next answer reuses their memory
        size = len(reply) + int(sum(map(len, buffers)) * simulated.width(branch))
        await simulated.wire.send(there, here, size, costs.message + size * costs.byte)
        self.n_bytes += size
        return status, reply, buffers

    def receive(self, number: int, branches: Iterable[Branch], decode: Decode) -> None:
        pending = {branch.ref: branch for branch in branches}

        relay = self._relay

        async def some() -> list[SessionRef]:
            calls: list[asyncio.Future[Any]] = [self._calls[number, ref] for ref in pending]
            if relay is not None:
                calls.append(relay._line.next_arrival())  # type: ignore[attr-defined]
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            return [ref for ref in pending if self._calls[number, ref].done()]

        while pending:
            done = run_on(self._simulated.loop, some())
            if relay is not None:
                relay.clear()
                relay.check(())
            for ref in done:
                status, reply, buffers = self._calls.pop((number, ref)).result()
                message = Message(number, status, memoryview(reply), buffers)
                LineCalls._check_status(pending.pop(ref), message)
                decode(ref, message)

    def release(self, refs: Iterable[SessionRef]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class SimulatedFitCalls(SimulatedCalls):
    """Takes the place of `FitCalls`."""

    def __init__(self, simulated: Simulated, guard: FitGuard, numbers: itertools.count[int]) -> None:
        super().__init__(simulated, "scheduler")
        self.guard, self._numbers = guard, numbers

    def begin(self, method: str, arguments: Mapping[Branch, Arguments], *, follows: bool = False) -> Callable[[Decode], None]:
        number = next(self._numbers)
        self.send(number, METHODS.index(method), arguments, follows=follows)
        return partial(self.receive, number, arguments)


class _Client(Client):
    """The attributes of a Dask client that a fit uses."""

    loop = None  # type: ignore[assignment]  # calls run in the simulated loop

    def __init__(self, simulated: Simulated) -> None:
        self.simulated = simulated
        self.id = uuid.uuid4().hex
        self.status = "running"
        self.cluster = None
        self.scheduler = simulated.line("client", "scheduler")  # type: ignore[assignment]

    def __del__(self) -> None:
        """Do nothing: there is nothing to close."""

    def __repr__(self) -> str:
        return f"a client of {self.simulated.n_workers} simulated workers"

    def register_plugin(self, plugin: Any, *arguments: Any, **keywords: Any) -> None:  # type: ignore[override]
        self.simulated.run(plugin.start(self.simulated.scheduler))

        async def answer(fit: str, call: str, arguments: tuple[Any, ...]) -> Any:
            return await self.simulated.loop.run_in_executor(plugin._fits[fit].thread, plugin.answer, fit, call, *arguments)

        self.simulated.scheduler.handlers["answer"] = answer

    def _send_to_scheduler(self, msg: Any) -> None:
        """Do nothing."""

    def nthreads(self, workers: Any = None) -> dict[str, int]:
        return dict.fromkeys(self.simulated.workers, 1)

    def sync(self, func: Any, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        return self.simulated.run(func(*args, **kwargs))


def call_on_line(connection: Connection, call: str, arguments: tuple[Any, ...]) -> Any:
    """Take the place of `Connection._call_on_line`."""
    client = connection.client
    grows = call == "dboost_grow"
    asking = client.scheduler.answer(fit=connection.fit, call=call, arguments=arguments)  # type: ignore[union-attr]
    trains = grows or Session.advance_to.__name__ in arguments
    return client.sync(client.simulated.train, asking, grows) if trains else client.sync(lambda: asking)  # type: ignore[attr-defined]


class _Source(ReadTasks):
    """Partitions that are read without Dask's scheduler, the k-th by the k-th worker."""

    def read(
        self,
        connection: Connection,
        batch: str,
        numbers: Sequence[int],
        plan: ReadPlan,
        workers: Sequence[str] | None = None,
        preferred: str | None = None,
    ) -> list[Receipt]:
        simulated = connection.client.simulated  # type: ignore[attr-defined]
        addresses = sorted(simulated.workers)
        receipts = []
        for i in numbers:
            address = preferred or addresses[i % len(addresses)]
            (bundle,) = dask.get(self.graph | {"bundle": self.bundles[i]}, ["bundle"])
            holding = simulated.workers[address].holder.worker_session(connection.fit)
            partitions = holding.loading.open(batch, plan, None, False, holding.n_threads)
            n_rows = partitions.read(i, dask_collections.in_place(bundle, self.filled))
            receipts.append(Receipt(i, n_rows, SessionRef(address, holding.id)))
        return receipts


def fit(simulated: Simulated, data: Any, target: str, parameters: Any, *, n_rows: float) -> FitResult:
    """Train as if the data had `n_rows` rows; adds the seconds of training to `simulated`."""
    real = sum(map(len, data.partitions)) if hasattr(data, "partitions") else len(data)
    simulated.n_rows, simulated.many = n_rows, n_rows / real
    with (
        # The few real rows and columns stand for many.
        dask.config.set(
            {
                "dboost.single-worker-values": 0,
                "dboost.session-per-host": False,
                "dboost.gather-bytes": gather_bytes() / simulated.columns,
                "dboost.owner-bytes": owner_bytes() / simulated.columns,
            }
        ),
        patch.object(Connection, "open_line", lambda self: None),
        patch.object(Connection, "_call_on_line", call_on_line),
        patch.object(Connection, "_run", lambda self, work: self.client.sync(work)),
        patch.object(reducer, "FitCalls", lambda guard, numbers: SimulatedFitCalls(simulated, guard, numbers)),
        patch.object(relays, "LineCalls", lambda guard: SimulatedCalls(simulated, guard._line.address, guard)),
        patch.object(reducer, "run_on", run_on),
        patch.object(fit_calls, "run_on", run_on),
        patch.object(partition_mover, "run_on", run_on),
    ):
        request = FitRequest(parameters, 1, roles={"target": target})
        client = _Client(simulated)
        return fit_on_cluster(
            client, request, lambda: _Source.of(GivenTable(data, {"target": target}), n_partitions=n_partitions_of(client))
        )
