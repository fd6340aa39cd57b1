"""Calls of the reducer to the sessions of a fit, on lines (`cluster.transport.line`).

`FitCalls` calls a method in some sessions, and returns their answers. The thread of a fit in the scheduler's process uses it,
not the event loop. A call ends in one of four ways: with all answers, with the error of a worker, with the lost sessions, or
because the fit was cancelled.

**Trees of sessions.** Beyond `dboost.fan-in` sessions, lines lead to some of them only, each of which passes a call on to
others, and answers for all of them: no process exchanges messages with more than that many others. A `Branch` is a session with
those below it. Workers that pass calls on use `LineCalls`, as `FitCalls` does.

**Liveness.** The thread waits for all lines at once. A worker that dies closes its line, which is noticed at once. If
nothing arrives for the liveness timeout, the workers that have not answered, and those below them, are pinged by Dask's
messages, and removed if they do not answer (`LivenessCheck`). `Fit.wake` interrupts the waiting when Dask reports a lost worker
or the fit is cancelled.

After a call that failed, the other workers still answer. The number of a message tells such answers from those of later calls.
The error of a row is raised when all have answered, so that it is that of the first row (`messages.Failures`); an error of
another kind, which may keep sessions waiting for each other, at once.

**Calls in flight.** A call may begin before the one before it has ended; workers answer them in turn. Answers of the later one
stay in the sockets until the earlier one has all of its own.

**Sums of answers** are exact, so the order in which answers arrive does not matter.

**Relays** are sessions that pass a call on to others, and answer for all of them. With many workers the process that calls them
all is what limits a round: it sends as many messages as there are workers, and receives the histograms of all of them. So the
sessions form a tree (`tree_of`) with at most `dboost.fan-in` branches at each session. A request travels down the tree. On the
way back, each session adds the histograms of those below to its own, so every process receives those of a few others only. Sums
of integers are exact in any order, so the model does not depend on the tree. Other calls are passed on in the same way, and
their answers are collected.

A request that is to be passed on has these buffers: the sessions below, whether it *follows* a call that is still under way,
and the arguments of each session below if sessions have arguments of their own. Answers have the same form on every level. A
relay passes a following request on as soon as it arrives, also while it waits for the answers of the call before, so that no
worker below it waits for the sums of that call.

A relay reports a closed line below it. Whether a silent worker is lost is decided by the reducer: it pings all workers of a
branch that does not answer, and repeats the call without the lost ones. A relay that still waits for one of them gives up, and
forgets the requests that follow, as soon as a request arrives that follows no call.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from dboost.cluster.transport.feature_exchange import PackedSplits, merge_splits
from dboost.cluster.transport.line import Line, Message, open_line
from dboost.cluster.transport.messages import (
    FAILED,
    LOST,
    OK,
    STALE,
    UNKNOWN,
    Failures,
    FitCancelled,
    LostWorkers,
    WorkerFailed,
    pack_error,
)
from dboost.config import liveness_timeout
from dboost.errors import is_out_of_descriptors, out_of_descriptors
from dboost.session.fit_records import SessionRef, pack_round, unpack
from dboost.session.session import SESSION_METHODS, Session
from dboost.trees.tree_growth import RoundHistograms


class RoundSums:
    """The sums of a round's answers.

    Attributes
    ----------
    trees : {output: RoundHistograms}
        Valid until the next round: they use the memory of an answer, which is that of a line or of a session.
    best : {output: PackedSplits}
        Merged over the owners of slices; empty if histograms are added up on the way.
    rows : {SessionRef: list of int}
        Numbers of training rows of a session and of those below it, in their order.
    compute : float
        Seconds of the slowest session.
    seconds : float
        Of adding up.
    """

    def __init__(self) -> None:
        self.trees: dict[int, RoundHistograms] = {}
        self.best: dict[int, PackedSplits] = {}
        self.rows: dict[SessionRef, list[int]] = {}
        self.compute = 0.0
        self.seconds = 0.0

    def add(self, ref: SessionRef, message: Message) -> None:
        """Add a packed answer, see `add_answer`."""
        began = time.perf_counter()
        self.add_answer(ref, *message.unpack())
        self.seconds += time.perf_counter() - began

    def add_answer(
        self,
        ref: SessionRef,
        answers: Mapping[int, RoundHistograms],
        n_rows: int | list[int],
        seconds: float,
        splits: Mapping[int, PackedSplits] = MappingProxyType({}),
    ) -> None:
        """Add an answer of `Session.round_histograms`, or the sum of several sessions' answers.

        answers : without histograms if their slices are exchanged (`feature_exchange`); then `splits` has the best splits of
        the features that a session searches. There are no answers without rows.
        """
        for output, answer in answers.items():
            self.trees[output] = self.trees[output].merge(answer) if output in self.trees else answer
        for output, best in splits.items():
            self.best[output] = merge_splits(self.best[output], best) if output in self.best else best
        self.rows[ref] = n_rows if isinstance(n_rows, list) else [n_rows]
        self.compute = max(self.compute, seconds)

    def merged(self, narrow: np.ndarray) -> dict[int, RoundHistograms]:
        """Return the histograms for sending. narrow : int32[...], with room for all of them (`RoundHistograms.compact`)."""
        merged: dict[int, RoundHistograms] = {}
        for output, tree in self.trees.items():
            merged[output] = tree.compact(narrow)
            narrow = narrow[tree.histograms.size :]
        return merged


Result = TypeVar("Result")

#: A round whose histograms sessions exchange, see `feature_exchange`. The message is a `SliceRound`.
EXCHANGE_ROUND = "exchange_round"
#: A session takes over partitions that others have read, see `cluster.worker.worker_plugin`.
TAKE_PARTITIONS = "take_partitions"
#: Numbers of methods and statuses in the headers of messages.
METHODS = sorted({*SESSION_METHODS, EXCHANGE_ROUND, TAKE_PARTITIONS})
STATUSES = [OK, FAILED, UNKNOWN, STALE, LOST]

#: Seconds between two checks whether the event loop still runs.
_LOOP_CHECK = 1.0

#: Given the sessions that have not answered for the liveness timeout, remove workers that do not answer pings; return the lost
#: sessions.
LivenessCheck = Callable[[Sequence[SessionRef]], Coroutine[Any, Any, list[SessionRef]]]


class Branch(NamedTuple):
    """A session, and those whose answers it collects. passed_on : the latter as sent to it, empty if there are none."""

    ref: SessionRef
    below: tuple[SessionRef, ...] = ()
    passed_on: bytes = b""

    def __hash__(self) -> int:
        return hash(self.ref)  # not of hundreds of sessions below


@lru_cache(maxsize=64)
def tree_of(refs: tuple[SessionRef, ...], fan_in: int) -> tuple[Branch, ...]:
    """Return at most `fan_in` branches with all of these sessions, each of which has branches in the same way.

    Sessions of one host are neighbours in the tree if their addresses are.
    """
    n_groups = min(fan_in, len(refs))
    bounds = [len(refs) * k // n_groups for k in range(n_groups + 1)] if refs else []
    groups = [(refs[a], refs[a + 1 : b]) for a, b in itertools.pairwise(bounds)]
    return tuple(Branch(first, rest, pack_round((rest, fan_in)) if rest else b"") for first, rest in groups)


#: Packed arguments for the sessions of a branch: for all of them, or for each, those of its own session first.
Arguments = Sequence[bytes | memoryview]
#: The second buffer of a request that is passed on: whether it follows a call that is still under way.
_FOLLOWS, _FOLLOWS_NONE = memoryview(b"follows"), memoryview(b"")


def buffers_of(branch: Branch, follows: bool, below: Arguments = ()) -> list[memoryview]:
    """Return the buffers of a request: none if it is not to be passed on. below : arguments of each session below."""
    if not branch.below:
        return []
    return [memoryview(branch.passed_on), _FOLLOWS if follows else _FOLLOWS_NONE, *(memoryview(packed) for packed in below)]


def for_all(branches: Iterable[Branch], packed: bytes | memoryview) -> dict[Branch, Arguments]:
    """Return packed arguments that all sessions of branches share."""
    return dict.fromkeys(branches, (packed,))


def for_each(branches: Iterable[Branch], arguments: Arguments) -> dict[Branch, Arguments]:
    """Divide arguments of each session among branches. arguments : in the order in which `tree_of` got the sessions."""
    left = iter(arguments)
    return {branch: [*itertools.islice(left, 1 + len(branch.below))] for branch in branches}


def _refs_of(branches: Iterable[Branch]) -> list[SessionRef]:
    return [ref for branch in branches for ref in (branch.ref, *branch.below)]


#: Receives the answer of a session, which it must copy.
Decode = Callable[[SessionRef, Message], None]


class Guard(Protocol):
    """Says when a call on lines must end early."""

    def fileno(self) -> int:
        """Readable when the waiting must be interrupted."""

    def clear(self) -> None:
        """Make it unreadable again."""

    def check(self, refs: Sequence[SessionRef]) -> None:
        """Raise FitCancelled if the call must end, LostWorkers if some of these sessions are gone."""

    def check_silent(self, refs: Sequence[SessionRef]) -> None:
        """Raise FitCancelled or LostWorkers if these sessions will not answer; called after the liveness timeout."""


class Waker:
    """Interrupts a thread that waits for lines."""

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)

    def fileno(self) -> int:
        return self._receiver.fileno()

    def wake(self) -> None:
        """Interrupt the waiting; called by any thread."""
        with contextlib.suppress(OSError):  # full, so the thread wakes up anyway; or closed
            self._sender.send(b"\0")

    def clear(self) -> None:
        with contextlib.suppress(OSError):
            while self._receiver.recv(4096):
                pass

    def close(self) -> None:
        self._receiver.close()
        self._sender.close()


class FitGuard:
    """Guards the calls of a fit in the scheduler.

    Parameters
    ----------
    is_present : callable
        Whether a worker is part of the cluster.
    is_cancelled : callable
        Whether the fit was cancelled.
    check : LivenessCheck
    loop : asyncio.AbstractEventLoop
        The event loop of the scheduler, which runs `check`.
    """

    def __init__(
        self,
        is_present: Callable[[str], bool],
        is_cancelled: Callable[[], bool],
        check: LivenessCheck,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._is_present, self._is_cancelled, self._check, self._loop = is_present, is_cancelled, check, loop
        self.waker = Waker()

    def fileno(self) -> int:
        return self.waker.fileno()

    def clear(self) -> None:
        self.waker.clear()

    def check(self, refs: Sequence[SessionRef]) -> None:
        if self._is_cancelled():
            raise FitCancelled
        lost = [ref for ref in refs if not self._is_present(ref.worker)]
        if lost:
            raise LostWorkers(lost)

    def check_silent(self, refs: Sequence[SessionRef]) -> None:
        lost = run_on(self._loop, self._check(refs))
        self.check(refs)
        if lost:
            raise LostWorkers(lost)


class LineCalls:
    """Calls on lines.

    Parameters
    ----------
    guard : Guard
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._lines: dict[SessionRef, Line] = {}
        self._selector = selectors.DefaultSelector()  # of the guard, and of the lines whose answers are awaited
        self._selector.register(guard, selectors.EVENT_READ, None)
        self._taken: dict[SessionRef, Message] = {}  # answers to the current call that `receive` has not returned
        self.n_bytes = 0

    def missing(self, refs: Iterable[SessionRef]) -> list[SessionRef]:
        """Return the sessions without a line."""
        return [ref for ref in refs if ref not in self._lines]

    def add(self, opened: Mapping[SessionRef, Line | BaseException]) -> None:
        """Add lines that were opened; raise the error of one that could not be opened."""
        self._lines |= {ref: line for ref, line in opened.items() if isinstance(line, Line)}
        for line in opened.values():
            if isinstance(line, BaseException):
                raise line

    def send(self, number: int, method: int, arguments: Mapping[Branch, Arguments], *, follows: bool = False) -> None:
        """Send the requests of a call.

        number : of the call, ascending; method : its index in `METHODS`; follows : whether the call before is still under way.

        Raises
        ------
        LostWorkers, FitCancelled
        """
        timeout = liveness_timeout()
        self._taken.clear()
        self._guard.check(_refs_of(arguments))
        lost = []
        for branch, (content, *below) in arguments.items():
            passed_on = buffers_of(branch, follows, below)
            try:
                self._lines[branch.ref].send(number, method, content, passed_on, timeout=timeout)
            except KeyError:
                lost.append(branch.ref)
            except OSError:
                self._drop(branch.ref)
                lost.append(branch.ref)
        if lost:
            raise LostWorkers(lost)

    def take(self, number: int, branches: Iterable[Branch]) -> None:
        """Take the answers of a call that have arrived, for `receive`; raise the error of a session that has failed."""
        for branch in branches:
            if branch.ref not in self._taken:
                message = self._poll_answer(branch.ref, number)
                if message is not None:
                    self._check_status(branch, message)
                    self._taken[branch.ref] = message
        lost = self.missing(branch.ref for branch in branches)
        if lost:
            raise LostWorkers(lost)

    def receive(self, number: int, branches: Iterable[Branch], decode: Decode) -> None:
        """Wait for the answers of a call.

        Raises
        ------
        LostWorkers, WorkerFailed, FitCancelled
        """
        pending = {branch.ref: branch for branch in branches}
        lost = self.missing(pending)
        if lost:
            raise LostWorkers(lost)
        for ref in pending:
            self._selector.register(self._lines[ref], selectors.EVENT_READ, ref)
        try:
            self._receive(number, pending, _refs_of(branches), decode)
        finally:
            for ref in pending:
                self._ignore(ref)

    def _receive(self, number: int, pending: dict[SessionRef, Branch], refs: Sequence[SessionRef], decode: Decode) -> None:
        """Wait for the answers of the pending branches. refs : of all branches."""
        failures = Failures()
        timeout = liveness_timeout()
        deadline = time.monotonic() + timeout
        while pending:
            ready = [ref for ref in pending if ref in self._taken or self._lines[ref].has_received]
            if not ready:
                ready = [key.data for key, _ in self._selector.select(max(deadline - time.monotonic(), 0.0))]
                if not ready and time.monotonic() >= deadline:
                    self._guard.check_silent(_refs_of(pending.values()))
                    deadline = time.monotonic() + timeout
                    continue
            deadline = time.monotonic() + timeout
            for ref in ready:
                if ref is None:
                    self._guard.clear()
                    self._guard.check(refs)
                    continue
                message = self._taken.pop(ref, None) or self._poll_answer(ref, number)
                if message is None:
                    continue
                self.n_bytes += len(message.content) + sum(map(len, message.buffers))
                self._ignore(ref)
                try:
                    self._check_status(pending.pop(ref), message)
                except WorkerFailed as failed:
                    failures.note(failed)
                    continue
                decode(ref, message)
            lost = self.missing(pending)
            if lost:
                raise LostWorkers(lost)
        failures.check()

    def _ignore(self, ref: SessionRef) -> None:
        """Stop waiting for a line."""
        if ref in self._lines:
            with contextlib.suppress(KeyError):  # it is not waited for
                self._selector.unregister(self._lines[ref])

    def _poll_answer(self, ref: SessionRef, number: int) -> Message | None:
        """Return the answer of a session, if it has arrived."""
        message = self._poll(ref)
        while message is not None and message.number < number:  # of an abandoned call
            message = self._poll(ref)
        return message

    def _poll(self, ref: SessionRef) -> Message | None:
        line = self._lines.get(ref)
        if line is None:
            return None
        try:
            return line.poll()
        except OSError:
            self._drop(ref)
            return None

    @staticmethod
    def _check_status(branch: Branch, message: Message) -> None:
        """Raise the error that a session reports, its own or that of one below it."""
        status = STATUSES[message.kind]
        if status in (UNKNOWN, STALE):
            raise LostWorkers([branch.ref])
        if status == LOST:
            raise LostWorkers(unpack(message.content))
        if status == FAILED:
            worker, error = unpack(message.content) if branch.below else (branch.ref.worker, bytes(message.content))
            raise WorkerFailed(worker, error)

    def _drop(self, ref: SessionRef) -> None:
        self._ignore(ref)
        self._lines.pop(ref).close()

    def release(self, refs: Iterable[SessionRef]) -> None:
        """Close the lines of lost sessions."""
        for ref in refs:
            if ref in self._lines:
                self._drop(ref)

    def close(self) -> None:
        """Close all lines; no call may be running."""
        self.release(list(self._lines))
        self._selector.close()


class FitCalls(LineCalls):
    """The lines of a fit in the scheduler. numbers : of calls, shared by all fits."""

    def __init__(self, guard: FitGuard, numbers: itertools.count[int]) -> None:
        super().__init__(guard)
        self._waker, self._numbers = guard.waker, numbers

    def begin(self, method: str, arguments: Mapping[Branch, Arguments], *, follows: bool = False) -> Callable[[Decode], None]:
        """Call a method of the sessions of each branch; return the function that waits for the answers.

        The function must be called before that of any later call. follows : whether the call before is still under way;
        otherwise sessions may give up a call that they have not answered.

        Raises
        ------
        LostWorkers, WorkerFailed, FitCancelled
            The returned function raises them, too.
        """
        number = next(self._numbers)
        self.send(number, METHODS.index(method), arguments, follows=follows)
        return partial(self.receive, number, arguments)

    def wake(self) -> None:
        """Interrupt a call, because a worker was lost or the fit was cancelled; called by any thread."""
        self._waker.wake()

    def close(self) -> None:
        super().close()
        self._waker.close()


def run_on(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Result], note_wait: Callable[[], None] | None = None
) -> Result:
    """Run a coroutine on an event loop from another thread, and return its result; FitCancelled when the loop has ended.

    note_wait : called after each `dboost.patience` without a result; an error that it raises ends the call.
    """
    future = asyncio.run_coroutine_threadsafe(work, loop)
    noted = time.monotonic()
    while True:
        try:
            return future.result(timeout=_LOOP_CHECK)
        except concurrent.futures.TimeoutError:
            if future.done():  # the coroutine itself has raised a TimeoutError
                raise
            if loop.is_closed() or not loop.is_running():
                raise FitCancelled from None
        if note_wait is not None and time.monotonic() - noted >= liveness_timeout():
            try:
                note_wait()
            except Exception:
                future.cancel()
                raise
            noted = time.monotonic()


async def open_worker_line(here: str, fit: str, ref: SessionRef, connection_args: dict[str, Any]) -> Line:
    """Return a line to a session. here : this process, for messages.

    Raises
    ------
    LostWorkers
        When the worker cannot be reached, or no longer has the session.
    DBoostError
        When this process has too many open files.
    """
    request = {"op": "dboost_line", "fit": fit, "session": ref.session}
    try:
        _, line = await open_line(ref.worker, request, connection_args)
    except OSError as error:
        if is_out_of_descriptors(error):
            raise out_of_descriptors(here, f"connect to worker {ref.worker}") from error
        raise LostWorkers([ref]) from error
    if line is None:
        raise LostWorkers([ref])
    return line


#: Calls a method of the own session; returns status, and answer or error.
Execute = Callable[[], tuple[str, Any]]


class Relay:
    """One end of a line on a worker, and the lines to the sessions below.

    Parameters
    ----------
    line : Line
        From the reducer, or from another relay.
    ref : SessionRef
        The session that answers on this line.
    open_lines : callable
        Opens lines to sessions; returns each, or the error.
    """

    def __init__(
        self,
        line: Line,
        ref: SessionRef,
        open_lines: Callable[[Sequence[SessionRef]], Mapping[SessionRef, Line | BaseException]],
    ) -> None:
        self._line, self._here, self._open_lines = line, ref, open_lines
        self._calls = LineCalls(self)
        self._queue: deque[Message] = deque()  # requests that have arrived during a call
        self._is_closed = False
        self._number = self._last_passed_on = 0
        self._passed_on, self._branches = b"", tuple[Branch, ...]()
        self._narrow = np.empty(0, np.int32)

    def receive(self) -> Message:
        """Wait for the next request."""
        return self._queue.popleft() if self._queue else self._line.receive()

    def call(self, message: Message, execute: Execute) -> tuple[str, Any]:
        """Pass a request on, execute it here, and return the status and the common answer, or the error."""
        try:
            branches = self._branches_of(message)
            self._number = message.number
            if message.number > self._last_passed_on:
                self._pass_on(message)
            status, answer = execute()
            self.clear()
            self.check(())
            if status == FAILED:
                self._fail(message, WorkerFailed(self._here.worker, answer))
            if status != OK:
                return status, unpack(answer) if status == LOST else (self._here.worker, answer)
            if METHODS[message.kind] in (Session.round_histograms.__name__, EXCHANGE_ROUND):
                return OK, self._summed(message, answer)
            answers = {self._here: answer}

            def collect(ref: SessionRef, reply: Message) -> None:
                answers.update(answers_of(ref, reply, branches))

            self._calls.receive(message.number, branches, collect)
            return OK, answers
        except LostWorkers as lost:
            return LOST, lost.sessions
        except WorkerFailed as failed:
            return FAILED, (failed.address, failed.error)
        except FitCancelled:
            return STALE, b""
        except Exception as error:  # any error is raised in the client
            return FAILED, (self._here.worker, pack_error(error))

    def _fail(self, message: Message, failed: WorkerFailed) -> None:
        """Raise the error of the own session, or one of the sessions below; see `Failures`."""
        failures = Failures()
        failures.note(failed)
        try:
            self._calls.receive(message.number, self._branches, lambda ref, reply: None)
        except WorkerFailed as below:
            failures.note(below)
        failures.check()

    def _branches_of(self, message: Message) -> tuple[Branch, ...]:
        """Return the branches below, with lines to them."""
        if message.buffers[0] != self._passed_on:
            self._passed_on = bytes(message.buffers[0])
            self._branches = tree_of(*unpack(self._passed_on))
        missing = self._missing()
        if missing:
            self._calls.add(self._open_lines(missing))
        return self._branches

    def _missing(self) -> list[SessionRef]:
        return self._calls.missing(branch.ref for branch in self._branches)

    def _pass_on(self, message: Message) -> None:
        """Pass a request on to the branches."""
        self._last_passed_on = message.number  # first, since `send` calls `check`
        below = message.buffers[2:]
        arguments = for_each(self._branches, below) if below else for_all(self._branches, message.content)
        self._calls.send(message.number, message.kind, arguments, follows=_follows(message))

    def _summed(self, message: Message, answer: Any) -> tuple[Any, list[int], float, dict[int, PackedSplits]]:
        """Add the answers of the branches to the own one."""
        sums = RoundSums()
        sums.add_answer(self._here, *answer)
        self._calls.receive(message.number, self._branches, sums.add)
        size = sum(tree.histograms.size for tree in sums.trees.values())
        if size > self._narrow.size:
            self._narrow = np.empty(max(size, 2 * self._narrow.size), np.int32)
        rows = [n for ref in (self._here, *(branch.ref for branch in self._branches)) for n in sums.rows[ref]]
        return sums.merged(self._narrow), rows, sums.compute, sums.best

    def check_others(self, number: int) -> None:
        """Raise an error if the reducer has given up a call that is executed here, or if a session below has failed.

        Called by an exchange that waits for other sessions. It would wait for ever for those that have failed. number : of the
        call.
        """
        self.clear()
        self.check(())
        if number == self._number:  # otherwise it was not passed on
            self._calls.take(number, self._branches)

    def close(self) -> None:
        """Close all lines."""
        self._calls.close()
        self._line.close()

    # `Guard`: the reducer gives up a call by sending one that does not follow it, or by closing the line.

    def fileno(self) -> int:
        return self._line.fileno()

    def clear(self) -> None:
        try:
            while (message := self._line.poll()) is not None:
                buffers = [memoryview(bytes(buffer)) for buffer in message.buffers]
                self._queue.append(Message(message.number, message.kind, memoryview(bytes(message.content)), buffers))
        except OSError:
            self._is_closed = True

    def check(self, refs: Sequence[SessionRef]) -> None:
        if self._line.has_received:
            self.clear()
        given_up = [k for k, message in enumerate(self._queue) if not _follows(message)]
        for _ in range(given_up[-1] if given_up else 0):  # those that follow the call which is given up
            self._queue.popleft()
        if given_up or self._is_closed:
            raise FitCancelled
        for message in self._queue:
            is_known = message.buffers[0] == self._passed_on and not self._missing()
            if message.number > self._last_passed_on and is_known:
                self._pass_on(message)

    def check_silent(self, refs: Sequence[SessionRef]) -> None:
        """Wait on, because the reducer pings silent workers."""


def _follows(message: Message) -> bool:
    """Whether a request follows a call that is still under way."""
    return len(message.buffers) > 1 and len(message.buffers[1]) > 0


def answers_of(ref: SessionRef, message: Message, branches: Sequence[Branch]) -> dict[SessionRef, bytes]:
    """Return the packed answers that a branch has sent, by session."""
    is_relay = any(branch.ref == ref and branch.below for branch in branches)
    return unpack(message.content) if is_relay else {ref: bytes(message.content)}
