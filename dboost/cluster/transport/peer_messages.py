"""Messages that sessions of a fit send to each other: slices of histograms, sampled values, rows that are handed over.

They travel on lines between workers (`Peers`), and have no replies. The receiver waits for them in the `Inbox` of its worker.
If a message does not arrive, because a worker was lost, those that wait for it give up when the reducer, which notices the
loss, sends the next call. A relay also watches the sessions below it while it waits, because the reducer cannot see that one of
them has failed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dboost.cluster.transport.line import Line, Pieces
from dboost.cluster.transport.messages import FitCancelled, LostWorkers, SessionRef
from dboost.config import liveness_timeout

#: The kind of these messages on lines. Calls have the numbers of their methods (`line_calls.METHODS`).
SLICE = 255
#: Seconds between two checks whether a session that waits for messages must give up.
_GUARD_CHECK = 0.05


class JointCall(Protocol):
    """A call that a session answers together with other sessions of its fit."""

    fit: str
    ref: SessionRef  # the session

    def execute(self, method: str | Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[str, Any]:
        """Call a method of the session (by name), or a function of it; return a status, and the answer or an error.

        Only the answer of a method that is called by its name is packed.
        """

    def swap(self, stage: int, messages: dict[SessionRef, Pieces], n_wanted: int) -> tuple[str, Any]:
        """Send messages of a stage to other sessions; return a status, and as many of theirs as are wanted, or an error."""


class Peers:
    """The lines on which a session sends slices to those of other workers. open_lines : as for `relay.Relay`."""

    def __init__(self, open_lines: Callable[[Sequence[SessionRef]], Mapping[SessionRef, Line | BaseException]]) -> None:
        self._open_lines = open_lines
        self._lines: dict[SessionRef, Line] = {}
        self._lock = threading.Lock()  # a thread that has given up a round may still be sending

    def send(self, number: int, header: bytes, slices: Mapping[SessionRef, Pieces]) -> None:
        """Send slices. number : of the round; header : sent with each.

        Raises
        ------
        LostWorkers
            When other workers cannot be reached.
        """
        lost = []
        with self._lock:
            missing = [ref for ref in slices if ref not in self._lines]
            opened = self._open_lines(missing) if missing else {}
            self._lines |= {ref: line for ref, line in opened.items() if isinstance(line, Line)}
            for line in opened.values():
                if isinstance(line, BaseException):
                    raise line
            for ref, content in slices.items():
                try:
                    self._lines[ref].send(
                        number, SLICE, header, [memoryview(piece) for piece in content], timeout=liveness_timeout()
                    )
                except OSError:
                    self._lines.pop(ref).close()
                    lost.append(ref)
        if lost:
            raise LostWorkers(lost)

    def close(self) -> None:
        """Close all lines; a thread that is sending raises an error."""
        for line in list(self._lines.values()):
            line.shut_down()
        with self._lock:
            for line in self._lines.values():
                line.close()
            self._lines.clear()


Check = Callable[[], None]
#: Fit, number of the round, and stage.
_Key = tuple[str, int, int]


@dataclass(eq=False)
class _Wait:
    """A thread that waits for slices."""

    n_wanted: int
    is_over: bool = False


class Inbox:
    """Received slices of all fits on a worker. Methods may be called by any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._slices: dict[_Key, dict[str, Pieces]] = {}
        self._waits: dict[_Key, _Wait] = {}

    def begin(self, fit: str, number: int) -> None:
        """Drop slices of earlier rounds, which were abandoned, and end the waiting for them."""
        with self._changed:
            for key in [key for key in self._slices if key[0] == fit and key[1] < number]:
                del self._slices[key]
            for key, wait in self._waits.items():
                wait.is_over |= key[0] == fit and key[1] < number
            self._changed.notify_all()

    def put(self, fit: str, number: int, stage: int, sender: str, content: Pieces) -> None:
        """Add a slice; it may arrive before this worker has started the round."""
        key = fit, number, stage
        with self._changed:
            slices = self._slices.setdefault(key, {})
            slices[sender] = content
            if key in self._waits and len(slices) == self._waits[key].n_wanted:
                self._changed.notify_all()

    def all_of(self, fit: str, number: int, stage: int, n_senders: int, check: Check | None = None) -> list[Pieces]:
        """Wait until all slices of a stage have arrived, and return them. check : raises an error when they will not.

        Raises
        ------
        FitCancelled
            When the round has been abandoned.
        """
        key = fit, number, stage
        with self._changed:
            wait = self._waits[key] = _Wait(n_senders)
            try:
                while len(self._slices.get(key, ())) < n_senders:
                    is_silent = not self._changed.wait(_GUARD_CHECK)
                    if wait.is_over:
                        raise FitCancelled
                    if is_silent and check is not None:
                        check()
                return list(self._slices.pop(key).values())
            finally:
                del self._waits[key]

    def drop(self, fit: str) -> None:
        """Drop all slices of a fit."""
        self.begin(fit, 2**62)
