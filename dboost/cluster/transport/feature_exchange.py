"""Reduce-scatter of wide histograms by feature, in two stages among the workers.

For wide tables the histograms of all workers are too large for one process to receive. So they are divided into *slices*, each
of a range of features, and sessions form groups (`SliceExchange`):

1. In a group every session sends slice k to the k-th session, which adds up the slices that it receives.
2. The sums of slice k of all groups are sent to its *owner*, the k-th session of one of the groups.

An owner finds the best splits of its features. These are the session's answer to the reducer's call, which reaches all sessions
as every call does (`rpc`). Owners keep the histograms of leaves for the next round.

Every session sends and receives its histograms about once, in a number of messages that grows with the square root of the
number of workers. Up to `config.fan_in` workers form one group, whose sums need no second stage. Sums of integers are exact in
any order, so the model does not depend on the groups.

Whether slices are exchanged, and how many there are, depends on the bytes H of a worker's histograms in a round. They are
added up on the way to the scheduler's process if that process and those on the way to it together receive less than
`config.gather_bytes`: H from each of at most `config.fan_in` workers on each level of the tree. Else there is one slice for
each `config.owner_bytes` of W·H over W workers, but no more than a group has sessions.

Slices travel on lines (`Peers`), or as messages of Dask where the reducer's calls do. They have no replies. If a slice does not
arrive, because a worker was lost, those that wait for it give up when the reducer, which notices the loss, sends the next call.
A relay also watches the sessions below it while it waits, because the reducer cannot see that one of them has failed.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dboost.cluster.transport.line import Line, Pieces
from dboost.cluster.transport.messages import FitCancelled, LostWorkers
from dboost.cluster.transport.rpc import SLICE
from dboost.config import fan_in, gather_bytes, liveness_timeout, owner_bytes
from dboost.kernels.histograms import BinLayout
from dboost.session.fit_records import SessionRef, SliceExchange
from dboost.trees.tree_task import TreeTask

#: Seconds between two checks whether a session that waits for slices must give up.
_GUARD_CHECK = 0.05


def choose_exchange(
    refs: Sequence[SessionRef], task: TreeTask, layout: BinLayout, n_leaves_per_round: int
) -> SliceExchange | None:
    """Return how sessions exchange slices of histograms; None if these are added up on the way to the scheduler's process."""
    n, n_features = len(refs), len(layout.n_bins)
    n_channels = 3 if task.limits.count_channel == 2 else 2
    of_worker = n_leaves_per_round * n_channels * int(layout.offset[-1]) * 4
    if n == 1 or count_levels(n, fan_in()) * min(n, fan_in()) * of_worker < gather_bytes():
        return None
    n_groups = count_groups(n, fan_in())
    n_slices = min(-(-n * of_worker // owner_bytes()), n // n_groups, n_features)
    # Ranges with similar numbers of buckets.
    targets = layout.offset[-1] * np.arange(1, n_slices) / n_slices
    inner = np.clip(np.searchsorted(layout.offset, targets), 1, n_features - 1)
    return SliceExchange(tuple(refs), n_groups, tuple(sorted({0, *inner.tolist(), n_features})))


def count_levels(n: int, fan_in: int) -> int:
    """Return the number of levels of the tree of `n` sessions, see `rpc.tree_of`."""
    levels, most = 1, fan_in
    while most < n:
        levels, most = levels + 1, (most + 1) * fan_in
    return levels


def count_groups(n: int, fan_in: int) -> int:
    """Return the number of groups of `n` sessions.

    A message takes either end about as long in both stages, so groups would have sqrt(n) sessions. Larger ones send fewer bytes
    in the second stage: in groups of c sqrt(n) sessions an owner receives 1 / c² of a session's histograms. With the default
    fan-in of 8 that is a quarter.
    """
    return 1 if n <= fan_in else math.ceil(n / math.ceil(math.sqrt(n * fan_in / 2)))


class Peers:
    """The lines on which a session sends slices to those of other workers. open_lines : as for `rpc.Relay`."""

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
