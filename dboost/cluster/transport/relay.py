"""Relays: sessions that pass a call on to others, and answer for all of them.

With many workers the process that calls them all is what limits a round: it sends as many messages as there are workers, and
receives the histograms of all of them. So the sessions form a tree (`session_tree`). A request travels down the tree. On the
way back, each session adds the histograms of those below to its own, so every process receives those of a few others only. Sums
of integers are exact in any order, so the model does not depend on the tree. Other calls are passed on in the same way, and
their answers are collected.

A relay passes a following request on as soon as it arrives, also while it waits for the answers of the call before, so that no
worker below it waits for the sums of that call.

A relay reports a closed line below it. Whether a silent worker is lost is decided by the reducer: it pings all workers of a
branch that does not answer, and repeats the call without the lost ones. A relay that still waits for one of them gives up, and
forgets the requests that follow, as soon as a request arrives that follows no call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dboost.cluster.transport.feature_exchange import PackedSplits
from dboost.cluster.transport.line import Line, Message
from dboost.cluster.transport.line_calls import CALLS, METHODS, LineCalls
from dboost.cluster.transport.messages import (
    FAILED,
    LOST,
    OK,
    STALE,
    Failures,
    FitCancelled,
    LostWorkers,
    SessionRef,
    WorkerFailed,
    pack_error,
    unpack,
)
from dboost.cluster.transport.round_sums import RoundSums
from dboost.cluster.transport.session_tree import Branch, answers_of, follows, for_all, for_each, tree_of

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
        self._line, self._ref, self._open_lines = line, ref, open_lines
        self._calls = LineCalls(self)
        self._queue: deque[Message] = deque()  # requests that have arrived during a call
        self._is_closed = False
        self._number = self._last_passed_on = 0
        self._passed_on, self._branches = b"", tuple[Branch, ...]()
        self._is_sending = False
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
                self._fail(message, WorkerFailed(self._ref.worker, answer))
            if status != OK:
                return status, unpack(answer) if status == LOST else (self._ref.worker, answer)
            if CALLS[METHODS[message.kind]].is_summed:
                return OK, self._summed(message, answer)
            answers = {self._ref: answer}

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
            return FAILED, (self._ref.worker, pack_error(error))

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
        self._last_passed_on = message.number
        below = message.buffers[2:]
        arguments = for_each(self._branches, below) if below else for_all(self._branches, message.content)
        self._is_sending = True  # `send` calls `check`, which must not pass on the next request before this one
        try:
            self._calls.send(message.number, message.kind, arguments, follows=follows(message))
        finally:
            self._is_sending = False

    def _summed(self, message: Message, answer: Any) -> tuple[Any, list[int], float, dict[int, PackedSplits]]:
        """Add the answers of the branches to the own one."""
        sums = RoundSums()
        sums.add_answer(self._ref, *answer)
        self._calls.receive(message.number, self._branches, sums.add)
        size = sum(tree.histograms.size for tree in sums.trees.values())
        if size > self._narrow.size:
            self._narrow = np.empty(max(size, 2 * self._narrow.size), np.int32)
        rows = [n for ref in (self._ref, *(branch.ref for branch in self._branches)) for n in sums.rows[ref]]
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
        given_up = [k for k, message in enumerate(self._queue) if not follows(message)]
        for _ in range(given_up[-1] if given_up else 0):  # those that follow the call which is given up
            self._queue.popleft()
        if given_up or self._is_closed:
            raise FitCancelled
        for message in self._queue:
            is_known = message.buffers[0] == self._passed_on and not self._missing()
            if message.number > self._last_passed_on and is_known and not self._is_sending:
                self._pass_on(message)

    def check_silent(self, refs: Sequence[SessionRef]) -> None:
        """Wait on, because the reducer pings silent workers."""
