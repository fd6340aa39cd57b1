"""Relays: sessions that pass a call on to others, and answer for all of them.

With many workers the process that calls them all is what limits a round: it sends as many messages as there are workers, and
receives the histograms of all of them. So the sessions form a tree (`worker_calls.tree_of`) with at most `dboost.fan-in`
branches at each session. A request travels down the tree. On the way back, each session adds the histograms of those below to
its own, so every process receives those of a few others only. Sums of integers are exact in any order, so the model does not
depend on the tree. Other calls are passed on in the same way, and their answers are collected.

A request that is to be passed on has the sessions below as its buffer. Answers have the same form on every level.

Relays do not decide that a worker is lost, because the reducer does: it pings all workers of a branch that does not answer, and
repeats the call without the lost ones. A relay that still waits for one of them gives up as soon as the next request arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dboost.distributed.line import Line, Message
from dboost.distributed.messages import FAILED, LOST, OK, STALE, FitCancelled, LostWorkers, WorkerFailed, pack_error
from dboost.distributed.round_sums import RoundSums, SumMemory
from dboost.distributed.worker_calls import METHODS, Branch, LineCalls, tree_of
from dboost.session.protocol import Session, SessionRef, unpack

#: Calls a method of the own session; returns status, and answer or error.
Execute = Callable[[], tuple[str, Any]]


class Relay:
    """One end of a line on a worker, and the lines to the sessions below.

    Parameters
    ----------
    line : Line
        From the reducer, or from another relay.
    here : SessionRef
        The session that answers on this line.
    open_lines : callable
        Opens lines to sessions; returns each, or the error.
    """

    def __init__(
        self,
        line: Line,
        here: SessionRef,
        open_lines: Callable[[Sequence[SessionRef]], Mapping[SessionRef, Line | BaseException]],
    ) -> None:
        self._line, self._here, self._open_lines = line, here, open_lines
        self._calls = LineCalls(self)
        self._next: Message | None = None
        self._is_closed = False
        self._passed_on, self._branches = b"", tuple[Branch, ...]()
        self._memory = SumMemory()
        self._narrow = np.empty(0, np.int32)

    def receive(self) -> Message:
        """Wait for the next request."""
        message, self._next = self._next, None
        return self._line.receive() if message is None else message

    def call(self, message: Message, execute: Execute) -> tuple[str, Any]:
        """Pass a request on, execute it here, and return the status and the common answer, or the error."""
        try:
            branches = self._branches_of(message)
            self._calls.send(message.number, message.kind, dict.fromkeys(branches, message.content))
            status, answer = execute()
            if status != OK:
                return status, (self._here.worker, answer)
            if METHODS[message.kind] == Session.round_histograms.__name__:
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

    def _branches_of(self, message: Message) -> tuple[Branch, ...]:
        """Return the branches below, with lines to them."""
        if message.buffers[0] != self._passed_on:
            self._passed_on = bytes(message.buffers[0])
            self._branches = tree_of(*unpack(self._passed_on))
        missing = self._calls.missing(branch.ref for branch in self._branches)
        if missing:
            opened = self._open_lines(missing)
            for ref, line in opened.items():
                if isinstance(line, Line):
                    self._calls.add(ref, line)
            for line in opened.values():
                if isinstance(line, BaseException):
                    raise line
        return self._branches

    def _summed(self, message: Message, answer: Any) -> tuple[Any, list[int], float]:
        """Add the answers of the branches to the own one."""
        histograms, n_rows, seconds = answer
        sums = RoundSums(self._memory)
        sums.add_answer(self._here, histograms, [n_rows], seconds)
        self._calls.receive(message.number, self._branches, sums.add)
        size = sum(tree.histograms.size for tree in sums.trees.values())
        if size > self._narrow.size:
            self._narrow = np.empty(max(size, 2 * self._narrow.size), np.int32)
        rows = [n for ref in (self._here, *(branch.ref for branch in self._branches)) for n in sums.rows[ref]]
        return sums.merged(self._narrow), rows, sums.compute

    def close(self) -> None:
        """Close all lines."""
        self._calls.close()
        self._line.close()

    # `Guard`: the reducer gives up a call by sending another one, or by closing the line.

    def fileno(self) -> int:
        return self._line.fileno()

    def clear(self) -> None:
        try:
            if self._next is None:
                self._next = self._line.poll()
        except OSError:
            self._is_closed = True

    def check(self, refs: Sequence[SessionRef]) -> None:
        if self._line.has_received:
            self.clear()
        if self._next is not None or self._is_closed:
            raise FitCancelled

    def check_silent(self, refs: Sequence[SessionRef]) -> None:
        """Wait on, because the reducer pings silent workers."""


def answers_of(ref: SessionRef, message: Message, branches: Sequence[Branch]) -> dict[SessionRef, bytes]:
    """Return the packed answers that a branch has sent, by session."""
    is_relay = any(branch.ref == ref and branch.below for branch in branches)
    return unpack(message.content) if is_relay else {ref: bytes(message.content)}
