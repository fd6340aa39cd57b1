"""Calls from the scheduler to workers: how they end, and how several are waited for.

A call ends with a result, with an error that the worker met, or because somebody is lost: whoever called, or another worker
that it needed. Several calls are waited for with one future and one timer, however many they are: a round takes a few
milliseconds, and there are a thousand of them in a fit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dboost.cluster.durations import patience
from dboost.cluster.messages import FAILED, LOST, STALE, UNKNOWN, LostWorkers, SessionRef, session_refs
from dboost.growth.search import Searcher


@dataclass
class Fit:
    """A fit under way, as far as the scheduler knows it. workers : all that were ever asked, and are still there."""

    client: str
    workers: set[str] = field(default_factory=set)
    cancelled: bool = False
    #: Those who wait for answers. They wake when all are there, or one is bad, or something happened; or because nothing did.
    turns: set[asyncio.Future[bool]] = field(default_factory=set)
    #: That of the last tree.
    searcher: Searcher | None = None

    def look_up(self) -> None:
        """Have whoever waits for answers see what has happened."""
        for ended in self.turns:
            _wake(ended)


class WorkerFailed(Exception):
    """A worker met an error. error : packed."""

    def __init__(self, address: str, error: bytes) -> None:
        super().__init__(address)
        self.address, self.error = address, error


async def result_of(ref: SessionRef, call: Any) -> bytes:
    """A worker's packed result, or what happened instead."""
    try:
        reply = await call
    except OSError as error:  # the connection broke, perhaps before Dask notices that the worker is gone
        raise LostWorkers([ref]) from error
    if reply is None or reply["status"] in (UNKNOWN, STALE):
        raise LostWorkers([ref])
    if reply["status"] == LOST:  # it could not reach another one
        raise LostWorkers(session_refs(reply["sessions"]))
    if reply["status"] == FAILED:
        raise WorkerFailed(ref.worker, reply["error"])
    return reply["result"]


def check_rows(told: Mapping[SessionRef, int], expected: Mapping[SessionRef, int]) -> None:
    """Raise `LostWorkers` for sessions that do not have the rows which the client knows them to have.

    Lost partitions are recognised by their sessions; this is a second check, which depends on nothing but the counts.
    """
    wrong = [ref for ref, n in told.items() if n != expected.get(ref, 0)]
    if wrong:
        raise LostWorkers(wrong)


async def turn(fit: Fit, calls: Sequence[asyncio.Future[bytes]]) -> bool:
    """Until all these calls have ended well, or one badly, or something happens to the fit; whether nothing did."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[bool] = loop.create_future()
    fit.turns.add(ended)
    timer = loop.call_later(patience(), _wake, ended, True)
    n_left = len(calls)

    def look(call: asyncio.Future[bytes]) -> None:
        nonlocal n_left
        n_left -= 1
        if n_left == 0 or call.cancelled() or call.exception() is not None:
            _wake(ended)

    for call in calls:
        call.add_done_callback(look)
    try:
        return await ended
    finally:
        fit.turns.discard(ended)
        timer.cancel()
        for call in calls:
            call.remove_done_callback(look)


def _wake(ended: asyncio.Future[bool], silent: bool = False) -> None:
    if not ended.done():
        ended.set_result(silent)


def lost_by(call: asyncio.Future[bytes]) -> list[SessionRef]:
    """The sessions that a call which has ended reports as lost."""
    error = None if not call.done() or call.cancelled() else call.exception()
    return error.sessions if isinstance(error, LostWorkers) else []


def abandon(future: asyncio.Future[Any]) -> None:
    """Wait for something no longer, and look at its error if it had one, so that asyncio does not complain."""
    future.cancel()
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
