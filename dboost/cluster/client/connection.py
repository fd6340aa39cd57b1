"""The client's calls to the reducer, as functions that return the results or raise an exception.

**Repeated losses of workers.** A call that loses a worker is repeated once the lost partitions have been read again. With
preemptible machines that may happen any number of times. But a call that itself kills its workers (a histogram that does not
fit the memory, a custom loss that crashes) would be repeated until no worker is left, and with nannies forever. So `Attempts`
counts losses, and the fit fails after `Tuning.losses_without_progress` of them. Progress is a complete iteration, or more
loaded partitions than ever before.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from itertools import count
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

import dask
from distributed import Client, Future, LocalCluster, get_worker, worker_client
from distributed.core import Status
from distributed.security import Security
from distributed.utils import LoopRunner
from distributed.worker import thread_state

from dboost.cluster.client.worker_choice import WorkerChoice, WorkerRecord
from dboost.cluster.scheduler.reducer import Reducer
from dboost.cluster.transport.line import Line, open_line
from dboost.cluster.transport.messages import (
    CANCELLED,
    FAILED,
    LOST,
    OK,
    ON_LINE,
    SILENT,
    UNKNOWN,
    AfterSteps,
    LostWorkers,
    Step,
    Timing,
    pack,
    unpack_error,
)
from dboost.cluster.transport.rpc import TAKE_PARTITIONS, run_on
from dboost.config import liveness_timeout, without_graph_warning, worker_timeout
from dboost.display import counted
from dboost.errors import DBoostError, InputTypeError, is_out_of_descriptors, out_of_descriptors, warn
from dboost.kernels.threads import usable_processors
from dboost.rows.block_file import StorageError
from dboost.session.fit_records import SessionRef, pack_round, session_refs, unpack
from dboost.training.progress import Progress
from dboost.trees.fit_trees import GrownTree
from dboost.trees.tree_rounds import GrowOrder
from dboost.tuning import tuning
from dboost.version import __version__

#: Seconds between two looks for a usable worker.
_POLL = 0.25
#: Seconds for which the records of workers are recent, see `Connection.usable`.
_RECENT = 1.0
#: By client the scheduler in which it has installed the reducer.
_installed: WeakKeyDictionary[Client, str] = WeakKeyDictionary()


@contextmanager
def current_client(requested: Any) -> Iterator[Client | None]:
    """Yield the given client, else that of the Dask task that calls, else the current one, else None.

    Raises
    ------
    InputTypeError
        For an asynchronous client, or an object that is not a client.
    ClientLost
        When the client or its cluster is closed, also in the meantime.
    """
    if requested is not None:
        with usable(checked(requested)):
            _wait_for_scheduler(requested)
            yield requested
        return
    if _in_task():
        with worker_client() as client:  # frees the worker's thread for other tasks, including those that read partitions
            yield client
        return
    if dask.config.get("scheduler", None) in (None, "dask.distributed", "distributed"):
        client = _default_client()
        with nullcontext() if client is None else usable(checked(client)):
            if client is not None:
                _wait_for_scheduler(client)
            yield client
        return
    yield None


def _wait_for_scheduler(client: Client) -> None:
    """Return when the scheduler answers; warn if that takes long. Calls that Dask makes for dboost wait without a word."""
    watch = SchedulerWatch(client, address_of(client))
    watch.run(watch.ping())


@contextmanager
def connected(scheduler: str | None, n_workers: int | None) -> Iterator[Client]:
    """Yield a client of a scheduler, or of a new local cluster; it is the current client until it is closed.

    Raises
    ------
    DBoostError
        When the scheduler cannot be reached.
    """
    if scheduler is not None:
        before = _default_client()
        try:
            client = Client(scheduler, timeout=tuning().connect_timeout)
        except (OSError, ValueError, TypeError, RuntimeError) as error:  # of these the last two by Dask's settings of TLS
            half_made = _default_client()  # Dask closes it after errors of the network only
            if half_made is not None and half_made is not before:
                half_made.close()
            raise DBoostError(f"the scheduler at {scheduler} cannot be reached: {_reason(scheduler, error)}") from error
        with client:
            yield client
        return
    n_threads = math.ceil(len(usable_processors()) / (n_workers or 1))  # as LocalCluster divides them
    with (
        LocalCluster(n_workers=n_workers, threads_per_worker=n_threads, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


def _default_client() -> Client | None:
    try:
        return Client.current()
    except ValueError:
        return None


def _reason(scheduler: str, error: Exception) -> str:
    """Return why a client has not connected. Dask names neither missing certificates nor missing files of them."""
    files = Security().get_tls_config_for_role("client")
    absent = [f"{key} = {file}" for key, file in files.items() if file and "\n" not in file and not os.path.exists(file)]
    if isinstance(error, FileNotFoundError) and absent:
        return f"there is no file of distributed.comm.tls in Dask's configuration at {', '.join(absent)}"
    if isinstance(error, TypeError) and scheduler.startswith("tls:"):
        return "TLS needs certificates: set distributed.comm.tls (ca-file, client.cert and client.key) in Dask's configuration"
    return str(error)


@contextmanager
def inside() -> Iterator[Client]:
    """Yield a client of a scheduler and two workers of one thread, all in this process and not reachable from outside."""
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None, silence_logs=logging.ERROR
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def checked(client: Any) -> Client:
    if not isinstance(client, Client):
        raise InputTypeError(f"client must be a distributed.Client, not {type(client).__name__}")
    if client.asynchronous:
        raise InputTypeError(
            "this client is asynchronous: await dboost.fit_async(…) instead of calling dboost.fit, or make another client with "
            "Client(address)"
        )
    return client


def seceded() -> AbstractContextManager[Any]:
    """Return a context in which the Dask task that calls frees its thread of the worker; it does nothing outside a task.

    For every wait for other tasks, such as those that read partitions: else tasks that wait may occupy all threads. May be
    nested.
    """
    return worker_client() if _in_task() and hasattr(thread_state, "start_time") else nullcontext()


def _in_task() -> bool:
    try:
        get_worker()
    except ValueError:
        return False
    return True


def version_error(address: str, record: WorkerRecord) -> DBoostError | None:
    """Return the error to raise if a worker cannot run this version of dboost; None for one that did not answer."""
    if record.version == SILENT:
        return None
    if record.reason is not None:
        return DBoostError(f"worker {address} cannot start dboost: {record.reason}")
    if record.version is None:
        return DBoostError(f"worker {address} has no dboost: install dboost {__version__} there")
    if record.version != __version__:
        return DBoostError(f"worker {address} has dboost {record.version}, this process {__version__}")
    return None


class ClientLost(DBoostError):
    """The client or its cluster was closed, or the connection to the scheduler was lost."""


def address_of(client: Client) -> str:
    """Return the address of a client's scheduler, also of a closed client."""
    if client.scheduler is not None:
        return str(client.scheduler.address)
    if client.cluster is not None:
        return str(client.cluster.scheduler_address)
    return str(client._start_arg)


def lost_client(client: Client, address: str) -> DBoostError | None:
    """Return the error to raise if a client cannot be used any more; None if it can. address : of its scheduler."""
    if client.cluster is not None and client.cluster.status in (Status.closing, Status.closed):
        return ClientLost(f"the cluster at {address} is closed: start another one, and give a client of it")
    if client.status in ("closing", "closed"):
        return ClientLost(
            f"the client of {address} is closed, by close() or by Dask because its scheduler ended: give another one, such as "
            f"distributed.Client({address!r})"
        )
    if _was_forked(client):
        return ClientLost(
            f"the client of {address} cannot be used in this process, which was forked from the one that made it (or the "
            "thread of its event loop has ended): make a client here, start processes by spawn instead of fork, or compute "
            'without a cluster in dask.config.set(scheduler="threads")'
        )
    if client.status == "connecting":
        return unreachable(address, None)
    return None


def _was_forked(client: Client) -> bool:
    """Return whether no thread of this process runs a client's event loop: a forked process has none of the other's threads."""
    loop: Any = client.loop
    _, runner = (0, None) if loop is None else LoopRunner._all_loops.get(loop, (0, None))
    thread = getattr(getattr(runner, "_loop_thread", None), "_thread", None)
    return isinstance(thread, threading.Thread) and not thread.is_alive()


def unreachable(address: str, error: BaseException | None) -> DBoostError:
    """Return the error to raise if a call does not reach the scheduler."""
    if is_out_of_descriptors(error):
        return out_of_descriptors("this process", f"call the scheduler at {address}")
    why = "" if error is None else f" ({error})"
    return ClientLost(
        f"the connection to the scheduler at {address} was lost{why}: start it again, and repeat the call with a new client; "
        "with checkpoint= a fit continues"
    )


@contextmanager
def usable(client: Client) -> Iterator[None]:
    """Within the context, report that the client or its cluster was closed, instead of the errors that follow from it.

    Raises
    ------
    ClientLost
    """
    address = address_of(client)
    lost = lost_client(client, address)
    if lost is not None and client.status != "connecting":  # it may be connected again in time
        raise lost
    try:
        yield
    except (Exception, asyncio.CancelledError) as error:
        # Other errors of dboost name a cause of their own, in the data or the parameters.
        lost = lost_client(client, address) if type(error) is DBoostError or not isinstance(error, DBoostError) else None
        if lost is None:
            raise
        raise lost from error


class SchedulerWatch:
    """Warns of a scheduler that does not answer, although the connection is open: it is stopped, or the network is cut.

    A call waits until it answers: nothing else can end the call without losing the fit. A slow call is not silence, because
    the scheduler answers pings meanwhile.

    Parameters
    ----------
    client : distributed.Client
    address : str
        Of the scheduler.

    Attributes
    ----------
    is_silent : bool
        Whether the last ping had no answer.
    is_ending : bool
        Whether calls fail instead of waiting.
    """

    def __init__(self, client: Client, address: str) -> None:
        self._client, self._address = client, address
        self.is_silent = self.is_ending = False

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the client's event loop. `Client.sync` would wait forever if the client is closed meanwhile."""
        loop: Any = self._client.loop
        result = run_on(loop.asyncio_loop, work, self.note_wait)
        self.is_silent = False
        return result

    async def ping(self) -> None:
        scheduler: Any = self._client.scheduler
        await scheduler.echo(data="")

    def note_wait(self) -> None:
        """Ping the scheduler after `dboost.patience` without a reply to a call, and warn if it does not answer.

        Raises
        ------
        ClientLost
            If the client is closed; without an answer, if the fit is ending.
        """

        if self._client.status in ("closing", "closed"):
            raise lost_client(self._client, self._address) or unreachable(self._address, None)

        async def ping() -> None:
            await asyncio.wait_for(self.ping(), liveness_timeout())

        loop: Any = self._client.loop
        try:
            run_on(loop.asyncio_loop, ping())
            self.is_silent = False
        except TimeoutError as error:
            if self.is_ending:
                raise unreachable(self._address, error) from error
            if not self.is_silent:
                self.is_silent = True
                warn(
                    f"the scheduler at {self._address} has not answered for {2 * liveness_timeout():.0f} s: dboost waits until "
                    "it does; interrupt the call, close the client, or end the scheduler's process to stop waiting"
                )
        except OSError:
            pass  # the call itself fails


def submit(client: Client, graph: dict[Any, Any], keys: list[Any], **options: Any) -> list[Future]:
    """Submit tasks, and return the futures of these keys. options : of `Client.get`.

    Rows in the client's memory are part of their tasks, so that Dask can send them again when a worker is lost; scattered ones
    would be lost with it. So Dask's warning of large graphs is not shown here: users cannot follow its advice.
    """
    with without_graph_warning():
        return list(client.get(graph, keys, sync=False, **options))


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
    n_threads : dict of str to int
        Threads of the usable workers, by address; as of the last call of `usable`.
    n_fits : int
        Number of fits on the cluster; as of the last call of `usable`.
    memory_limits : dict of str to int
        Bytes of the usable workers that are not paused, by address, 0 for no limit; as of the last call of `usable`.

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
        self.n_threads: dict[str, int] = {}
        self.n_fits = 1
        self.memory_limits: dict[str, int] = {}
        self._workers: dict[str, WorkerRecord] = {}
        self._seen = -math.inf  # when the scheduler returned these records
        self.has_ended = False
        self.reading: set[Future] = set()
        self._line: Line | None = None
        self._n_calls = 0
        self._released = ExitStack()
        with usable(client):
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
            self._check_workers(self._workers)
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

    def _check_workers(self, known: dict[str, WorkerRecord]) -> None:
        """Warn of workers that cannot be used; raise the error if the user named one, or if there are no others."""
        self._choice.check(known)
        errors: dict[str, DBoostError] = {}
        n_good = 0
        for address, record in known.items():
            if not self._choice.includes(address, record):
                continue
            error = version_error(address, record)
            if error is None:
                n_good += 1
            elif self._choice.is_named(address, record):
                raise error
            else:
                errors[address] = error
        if errors and not n_good:
            raise next(iter(errors.values()))
        for error in errors.values():
            warn(f"{error}; the fit leaves this worker out")

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
        with usable(self.client):
            return self._watch.run(work())

    @property
    def is_confined(self) -> bool:
        """Whether the user chose the workers of this fit."""
        return bool(self._choice)

    def usable(self, *, recent: bool = False) -> tuple[list[str], dict[str, str]]:
        """Return the usable workers, and for others the reason; workers that do not answer are in neither.

        The reason is empty for a worker that the user has not chosen. recent : whether the workers of a moment ago suffice
        if none was lost since, default False.
        """
        if not recent or time.monotonic() - self._seen > _RECENT:
            self._note_workers(self._call("dboost_workers"))
        usable: list[str] = []
        unusable: dict[str, str] = {}
        self.n_threads, self.memory_limits = {}, {}
        for address, record in self._workers.items():
            if not self._choice.includes(address, record):
                unusable[address] = ""
            elif (error := version_error(address, record)) is not None:
                unusable[address] = str(error)
            elif record.version != SILENT:
                usable.append(address)
                self.n_threads[address] = record.n_threads
                if record.is_running:
                    self.memory_limits[address] = record.memory_limit
        return usable, unusable

    def shares_host(self, workers: Iterable[str]) -> bool:
        """Return whether the scheduler is on the host of one of these workers, as far as they are known."""
        return any(self._host == self._workers[address].host for address in workers if address in self._workers)

    def host_of(self, worker: str) -> str | None:
        """Return the name of a worker's host; None for a worker that is not known."""
        record = self._workers.get(worker)
        return None if record is None else record.host

    def processors_of(self, worker: str) -> tuple[int, ...]:
        """Return the processors on which a worker's process may run; none for a worker that is not known."""
        record = self._workers.get(worker)
        mask = 0 if record is None or record.processors is None else int(record.processors, 16)
        return tuple(processor for processor in range(mask.bit_length()) if mask >> processor & 1)

    def _note_workers(self, reply: dict[str, Any]) -> None:
        self._workers = {address: WorkerRecord(*fields) for address, fields in reply["workers"].items()}
        self.n_fits = max(reply["fits"], 1)
        self._seen = time.monotonic()

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
            usable, unusable = self.usable()
            if usable:
                return usable
            if time.monotonic() >= deadline:
                reasons = "; ".join(sorted(filter(None, unusable.values()))[:_N_REPORTED_LOSSES])
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
        self._ask(list(takers), TAKE_PARTITIONS, list(takers.values()))
        return sessions

    def grow_trees(
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
        self._seen = -math.inf
        reply = self._call("dboost_remove_unresponsive")
        return list(reply["workers"]), dict(reply["paused"]), bool(reply["stuck"]), dict(reply["unrunnable"])

    def abandon(self, refs: Sequence[SessionRef]) -> None:
        """Mark sessions as lost, and have their workers release them if they still exist."""
        self.lost.update(refs)
        self._seen = -math.inf
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
        self._released.enter_context(usable(self.client))
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

    def _call_on_line(self, kind: int, arguments: tuple[Any, ...]) -> Any:
        line = self.open_line()
        self._n_calls += 1
        line.send(self._n_calls, kind, pack_round(arguments))
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
            if operation in ON_LINE:
                reply = self._call_on_line(ON_LINE.index(operation), tuple(arguments.values()))
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


#: Number of losses that an error message lists.
_N_REPORTED_LOSSES = 3


class Attempts:
    """Counts losses of workers since the last progress of the fit."""

    def __init__(self) -> None:
        self._losses: list[tuple[str, str]] = []
        self._milestone = "it began"

    def reset(self, milestone: str) -> None:
        """Reset the count after progress. milestone : for messages, e.g. "iteration 17"."""
        self._losses = []
        self._milestone = milestone

    def note(self, call: str, lost: LostWorkers) -> None:
        """Count a call that lost workers.

        Raises
        ------
        DBoostError
            At the `Tuning.losses_without_progress`-th loss, naming calls and workers.
        """
        self._losses.append((call, str(lost)))
        if len(self._losses) >= tuning().losses_without_progress:
            raise DBoostError(
                f"workers were lost {len(self._losses)} times since {self._milestone}{self.summary()}; giving up, "
                "see the workers' logs (too little memory, or a crash in a loss or in code that reads data?)"
            ) from lost

    def summary(self) -> str:
        """Return the latest losses in parentheses, to be appended to a message; empty without losses."""
        if not self._losses:
            return ""
        listed = "; ".join(f"{workers} in {call!r}" for call, workers in self._losses[-_N_REPORTED_LOSSES:])
        return f" (lost last: {listed})"
