"""Calls of sessions on lines (`cluster.transport.line`): a method of some sessions is called, and their answers are received.

A call ends in one of four ways: with all answers, with the error of a worker, with the lost sessions, or because the fit was
cancelled. The thread of a fit in the scheduler's process uses `LineCalls` (`cluster.scheduler.fit_calls`), and so do workers
that pass calls on (`relay`).

**Liveness.** The thread waits for all lines at once. A worker that dies closes its line, which is noticed at once. If nothing
arrives for the liveness timeout, a `Guard` decides whether the workers that have not answered are lost.

After a call that failed, the other workers still answer. The number of a message tells such answers from those of later calls.
The error of a row is raised when all have answered, so that it is that of the first row (`messages.Failures`); an error of
another kind, which may keep sessions waiting for each other, at once.

**Calls in flight.** A call may begin before the one before it has ended; workers answer them in turn. Answers of the later one
stay in the sockets until the earlier one has all of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from dboost.cluster.transport.line import Line, Message, open_line
from dboost.cluster.transport.messages import (
    FAILED,
    LOST,
    OK,
    STALE,
    UNKNOWN,
    Failures,
    LostWorkers,
    SessionRef,
    WorkerFailed,
    unpack,
)
from dboost.cluster.transport.session_tree import Arguments, Branch, buffers_of, refs_of
from dboost.config import liveness_timeout
from dboost.errors import is_out_of_descriptors, out_of_descriptors
from dboost.session.session import SESSION_METHODS, Remote

#: A round whose histograms sessions exchange, see `feature_exchange`. The message is a `SliceRound`.
EXCHANGE_ROUND = "exchange_round"
#: The methods of a session that messages may call, and the calls that it answers together with other sessions
#: (`DBoostWorkerPlugin._together`).
CALLS = SESSION_METHODS | {
    EXCHANGE_ROUND: Remote(is_summed=True),
    "hand_over": Remote(),
    "propose_splits": Remote(),
    "take_partitions": Remote(),
}
#: Numbers of calls and statuses in the headers of messages.
METHODS = sorted(CALLS)
STATUSES = [OK, FAILED, UNKNOWN, STALE, LOST]
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
        self._guard.check(refs_of(arguments))
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
            self._receive(number, pending, refs_of(branches), decode)
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
                    self._guard.check_silent(refs_of(pending.values()))
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


async def open_lines(
    process: str, fit: str, refs: Sequence[SessionRef], connection_args: dict[str, Any]
) -> dict[SessionRef, Line | BaseException]:
    """Return a line to each session, or the error. process : this one, for messages."""
    opening = (open_worker_line(process, fit, ref, connection_args) for ref in refs)
    return dict(zip(refs, await asyncio.gather(*opening, return_exceptions=True), strict=True))


async def open_worker_line(process: str, fit: str, ref: SessionRef, connection_args: dict[str, Any]) -> Line:
    """Return a line to a session; see `open_lines`.

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
            raise out_of_descriptors(process, f"connect to worker {ref.worker}") from error
        raise LostWorkers([ref]) from error
    if line is None:
        raise LostWorkers([ref])
    return line
