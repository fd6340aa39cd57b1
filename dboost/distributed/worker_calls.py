"""Calls of the reducer to the sessions of a fit, on lines or by Dask's messages.

`WorkerCalls` is what a round needs: call a method in some sessions, and return their answers. `LineCalls` implements it on
lines (`distributed.line`), `MessageCalls` by Dask's messages, for connections whose socket cannot be taken out of the event
loop. Both are used by the thread of a fit in the scheduler's process, not by the event loop, and both end in one of four
ways: with all answers, with the error of a worker, with the lost sessions, or because the fit was cancelled.

**Liveness on lines.** The thread waits for all lines at once. A worker that dies closes its line, which is noticed at once. If
nothing arrives for the liveness timeout, the workers that have not answered are pinged by Dask's messages, and removed if they
do not answer (`LivenessCheck`). `Fit.wake` interrupts the waiting when Dask reports a lost worker or the fit is cancelled.

After a call that failed, the other workers still answer. The number of a message tells such answers from those of later calls.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import selectors
import socket
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from distributed.comm import connect

from dboost.config import liveness_timeout
from dboost.distributed.line import Line, Message, can_detach, detach
from dboost.distributed.messages import FAILED, OK, STALE, UNKNOWN, UNSUPPORTED, FitCancelled, LostWorkers, WorkerFailed
from dboost.session.protocol import SESSION_METHODS, SessionRef

Result = TypeVar("Result")

#: Numbers of methods and statuses in the headers of messages.
METHODS = sorted(SESSION_METHODS)
STATUSES = [OK, FAILED, UNKNOWN, STALE]

#: Seconds between two checks whether the event loop still runs.
_LOOP_CHECK = 1.0

#: Given the sessions that have not answered for the liveness timeout, remove workers that do not answer pings; return the lost
#: sessions.
LivenessCheck = Callable[[Sequence[SessionRef]], Coroutine[Any, Any, list[SessionRef]]]


class WorkerCalls(Protocol):
    """Call methods of sessions; used by the thread of a fit."""

    n_bytes: int  # of all answers so far

    def call(
        self, method: str, arguments: Mapping[SessionRef, bytes], decode: Callable[[Message], Any]
    ) -> dict[SessionRef, Any]:
        """Call a method with packed arguments for each session; return the decoded answers.

        Raises
        ------
        LostWorkers, WorkerFailed, FitCancelled
        """


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


class LineCalls:
    """The lines of a fit.

    Parameters
    ----------
    is_present : callable
        Whether a worker is part of the cluster.
    is_cancelled : callable
        Whether the fit was cancelled.
    check : LivenessCheck
    loop : asyncio.AbstractEventLoop
        The event loop of the scheduler, which runs `check`.
    numbers : iterator of int
        Numbers of calls, shared by all fits.
    """

    def __init__(
        self,
        is_present: Callable[[str], bool],
        is_cancelled: Callable[[], bool],
        check: LivenessCheck,
        loop: asyncio.AbstractEventLoop,
        numbers: itertools.count[int],
    ) -> None:
        self._is_present, self._is_cancelled, self._check, self._loop = is_present, is_cancelled, check, loop
        self._numbers = numbers
        self._lines: dict[SessionRef, Line] = {}
        self._selector = selectors.DefaultSelector()
        self._waker = Waker()
        self._selector.register(self._waker, selectors.EVENT_READ, None)
        self.n_bytes = 0

    def missing(self, refs: Sequence[SessionRef]) -> list[SessionRef]:
        """Return the sessions without a line."""
        return [ref for ref in refs if ref not in self._lines]

    def add(self, ref: SessionRef, line: Line) -> None:
        self._lines[ref] = line
        self._selector.register(line, selectors.EVENT_READ, ref)

    def wake(self) -> None:
        """Interrupt a call, because a worker was lost or the fit was cancelled; called by any thread."""
        self._waker.wake()

    def call(
        self, method: str, arguments: Mapping[SessionRef, bytes], decode: Callable[[Message], Any]
    ) -> dict[SessionRef, Any]:
        """See `WorkerCalls`."""
        number, kind, timeout = next(self._numbers), METHODS.index(method), liveness_timeout()
        self._raise_if_ended(arguments)
        lost = [ref for ref, packed in arguments.items() if not self._send(ref, number, kind, packed, timeout)]
        if lost:
            raise LostWorkers(lost)
        answers: dict[SessionRef, Any] = {}
        pending = dict.fromkeys(arguments)
        deadline = time.monotonic() + timeout
        while pending:
            ready = [ref for ref in pending if self._lines[ref].has_received]
            if not ready:
                ready = [key.data for key, _ in self._selector.select(max(deadline - time.monotonic(), 0.0))]
                if not ready and time.monotonic() >= deadline:
                    self._check_silent(list(pending))
                    deadline = time.monotonic() + timeout
                    continue
            deadline = time.monotonic() + timeout
            for ref in ready:
                if ref is None:
                    self._waker.clear()
                    self._raise_if_ended(arguments)
                    continue
                message = self._poll(ref)
                while message is not None and message.number < number:  # of an abandoned call
                    message = self._poll(ref)
                if message is None or ref not in pending:
                    continue
                self.n_bytes += len(message.content) + sum(map(len, message.buffers))
                answers[ref] = self._decoded(ref, message, decode)
                del pending[ref]
            if self._closed(pending):
                raise LostWorkers(self._closed(arguments))
        return answers

    def _send(self, ref: SessionRef, number: int, kind: int, packed: bytes, timeout: float) -> bool:
        try:
            self._lines[ref].send(number, kind, packed, timeout=timeout)
        except OSError:
            self._drop(ref)
            return False
        return True

    def _poll(self, ref: SessionRef) -> Message | None:
        line = self._lines.get(ref)
        if line is None:
            return None
        try:
            return line.poll()
        except OSError:
            self._drop(ref)
            return None

    def _closed(self, refs: Any) -> list[SessionRef]:
        return [ref for ref in refs if ref not in self._lines]

    def _decoded(self, ref: SessionRef, message: Message, decode: Callable[[Message], Any]) -> Any:
        status = STATUSES[message.kind]
        if status in (UNKNOWN, STALE):
            raise LostWorkers([ref])
        if status == FAILED:
            raise WorkerFailed(ref.worker, bytes(message.content))
        return decode(message)

    def _raise_if_ended(self, refs: Any) -> None:
        if self._is_cancelled():
            raise FitCancelled
        lost = [ref for ref in refs if ref not in self._lines or not self._is_present(ref.worker)]
        if lost:
            raise LostWorkers(lost)

    def _check_silent(self, refs: list[SessionRef]) -> None:
        lost = run_on(self._loop, self._check(refs))
        self._raise_if_ended(refs)
        if lost:
            raise LostWorkers(lost)

    def _drop(self, ref: SessionRef) -> None:
        line = self._lines.pop(ref)
        self._selector.unregister(line)
        line.close()

    def release(self, refs: Sequence[SessionRef]) -> None:
        """Close the lines of lost sessions."""
        for ref in refs:
            if ref in self._lines:
                self._drop(ref)

    def close(self) -> None:
        """Close all lines; no call may be running."""
        self.release(list(self._lines))
        self._selector.close()
        self._waker.close()


class MessageCalls:
    """Calls by Dask's messages. fan_out : calls a method in sessions on the event loop, and returns contents of answers."""

    def __init__(
        self,
        fan_out: Callable[[str, Mapping[SessionRef, bytes]], Coroutine[Any, Any, dict[SessionRef, bytes]]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._fan_out, self._loop = fan_out, loop
        self.n_bytes = 0

    def call(
        self, method: str, arguments: Mapping[SessionRef, bytes], decode: Callable[[Message], Any]
    ) -> dict[SessionRef, Any]:
        """See `WorkerCalls`."""
        contents = run_on(self._loop, self._fan_out(method, arguments))
        self.n_bytes += sum(map(len, contents.values()))
        return {ref: decode(Message(0, 0, memoryview(content), [])) for ref, content in contents.items()}


def run_on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine on an event loop from another thread, and return its result; FitCancelled when the loop has ended."""
    future = asyncio.run_coroutine_threadsafe(work, loop)
    while True:
        try:
            return future.result(timeout=_LOOP_CHECK)
        except concurrent.futures.TimeoutError:
            if future.done():  # the coroutine itself has raised a TimeoutError
                raise
            if loop.is_closed() or not loop.is_running():
                raise FitCancelled from None


async def open_line(address: str, request: dict[str, Any], connection_args: dict[str, Any]) -> tuple[str, Line | None]:
    """Ask a process for a line; return the status of its reply, and the line if the status is OK.

    Raises
    ------
    OSError
        When the process cannot be reached.
    """
    comm = await connect(address, timeout=liveness_timeout(), **connection_args)
    try:
        if not can_detach(comm):
            return UNSUPPORTED, None
        await comm.write(request)
        reply = await asyncio.wait_for(comm.read(), liveness_timeout())
        status = reply.get("status", UNKNOWN) if isinstance(reply, dict) else UNKNOWN
        return status, detach(comm) if status == OK else None
    finally:
        comm.abort()  # has no effect after `detach`


async def open_worker_line(fit: str, ref: SessionRef, connection_args: dict[str, Any]) -> Line | None:
    """Return a line to a session; None if the connection does not allow one.

    Raises
    ------
    LostWorkers
        When the worker cannot be reached, or no longer has the session.
    """
    request = {"op": "dboost_line", "fit": fit, "session": ref.session}
    try:
        status, line = await open_line(ref.worker, request, connection_args)
    except OSError as error:
        raise LostWorkers([ref]) from error
    if status not in (OK, UNSUPPORTED):
        raise LostWorkers([ref])
    return line


async def accept_line(comm: Any) -> Line | None:
    """Answer a call that opens a line, on the event loop of the worker; return None if the connection does not allow one."""
    if not can_detach(comm):
        return None
    await comm.write({"status": OK})
    deadline = time.monotonic() + liveness_timeout()
    while comm.stream is not None and comm.stream.writing():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{comm.peer_address} does not receive the reply that opens a line")
        await asyncio.sleep(0.001)
    return None if comm.stream is None else detach(comm)
