"""The calls of a fit in the scheduler, and when one of them ends early.

If nothing arrives on the lines for the liveness timeout, the workers that have not answered, and those below them, are pinged
by Dask's messages, and removed if they do not answer (`LivenessCheck`). `FitGuard.wake` interrupts the waiting when Dask
reports a lost worker or the fit is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from dboost.cluster.transport.event_loop import run_on
from dboost.cluster.transport.line_calls import METHODS, Decode, LineCalls
from dboost.cluster.transport.messages import FitCancelled, LostWorkers, SessionRef
from dboost.cluster.transport.session_tree import Arguments, Branch

#: Given the sessions that have not answered for the liveness timeout, remove workers that do not answer pings; return the lost
#: sessions.
LivenessCheck = Callable[[Sequence[SessionRef]], Coroutine[Any, Any, list[SessionRef]]]


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
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)

    def fileno(self) -> int:
        return self._receiver.fileno()

    def wake(self) -> None:
        """Interrupt a call, because a worker was lost or the fit was cancelled; called by any thread."""
        with contextlib.suppress(OSError):  # full, so the thread wakes up anyway; or closed
            self._sender.send(b"\0")

    def clear(self) -> None:
        with contextlib.suppress(OSError):
            while self._receiver.recv(4096):
                pass

    def close(self) -> None:
        self._receiver.close()
        self._sender.close()

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


class FitCalls(LineCalls):
    """The lines of a fit in the scheduler. numbers : of calls, shared by all fits."""

    def __init__(self, guard: FitGuard, numbers: itertools.count[int]) -> None:
        super().__init__(guard)
        self.guard, self._numbers = guard, numbers

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

    def close(self) -> None:
        super().close()
        self.guard.close()
