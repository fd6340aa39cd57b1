"""Reduce-scatter of wide histograms by feature, in two stages among the workers.

For wide tables the histograms of all workers are too large for one process to receive. So they are divided into *slices*, each
of a range of features, and sessions form groups (`SliceExchange`):

1. In a group every session sends slice k to the k-th session, which adds up the slices that it receives.
2. The sums of slice k of all groups are sent to its *owner*, the k-th session of one of the groups.

An owner finds the best splits of its features. These are the session's answer to the reducer's call, which reaches all sessions
as every call does (`worker_calls`). Owners keep the histograms of leaves for the next round.

Every session sends and receives its histograms about once, in a number of messages that grows with the square root of the
number of workers. Up to `config.fan_in` workers form one group, whose sums need no second stage. Sums of integers are exact in
any order, so the model does not depend on the groups.

Whether slices are exchanged, and how many there are, depends on the bytes H of a worker's histograms in a round: below
`config.gather_bytes` over the workers from which a process collects answers (`config.fan_in`) they are added up on the way to
the scheduler's process. Else there is one slice for each `config.owner_bytes` of W·H over W workers, but no more than a group
has sessions.

Slices are messages of Dask without replies. If one does not arrive, because a worker was lost, those that wait for it give up
when the reducer, which notices the loss, sends the next call (`worker_calls.run_on`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import numpy as np

from dboost.config import fan_in, gather_bytes, owner_bytes
from dboost.kernels.histograms import BinLayout
from dboost.session.protocol import SessionRef, SliceExchange
from dboost.trees.tree_task import TreeTask


def choose_exchange(
    refs: Sequence[SessionRef], task: TreeTask, layout: BinLayout, n_leaves_per_round: int
) -> SliceExchange | None:
    """Return how sessions exchange slices of histograms; None if these are added up on the way to the scheduler's process."""
    n, n_features = len(refs), len(layout.n_bins)
    n_channels = 3 if task.limits.count_channel == 2 else 2
    of_worker = n_leaves_per_round * n_channels * int(layout.offset[-1]) * 4
    if min(n, fan_in()) * of_worker < gather_bytes() or n == 1:
        return None
    n_groups = count_groups(n, fan_in())
    n_slices = min(-(-n * of_worker // owner_bytes()), n // n_groups, n_features)
    # Ranges with similar numbers of buckets.
    targets = layout.offset[-1] * np.arange(1, n_slices) / n_slices
    inner = np.clip(np.searchsorted(layout.offset, targets), 1, n_features - 1)
    return SliceExchange(tuple(refs), n_groups, tuple(sorted({0, *inner.tolist(), n_features})))


def count_groups(n: int, fan_in: int) -> int:
    """Return the number of groups of `n` sessions.

    A message takes either end about as long in both stages, so groups would have sqrt(n) sessions. Larger ones send fewer bytes
    in the second stage: in groups of c sqrt(n) sessions an owner receives 1 / c² of a session's histograms. With the default
    fan-in of 8 that is a quarter.
    """
    return 1 if n <= fan_in else math.ceil(n / math.ceil(math.sqrt(n * fan_in / 2)))


class Inbox:
    """Received slices, by fit, number of the round, and stage. Used on the worker's event loop only."""

    def __init__(self) -> None:
        self._slices: dict[tuple[str, int, int], dict[str, bytes]] = {}
        self._waiting: dict[tuple[str, int, int], tuple[int, asyncio.Future[None]]] = {}

    def begin(self, fit: str, number: int) -> None:
        """Drop slices of earlier rounds, which were abandoned."""
        for key in [key for key in self._slices if key[0] == fit and key[1] < number]:
            del self._slices[key]
        for key in [key for key in self._waiting if key[0] == fit and key[1] < number]:
            self._waiting.pop(key)[1].cancel()

    def put(self, fit: str, number: int, stage: int, sender: str, content: bytes) -> None:
        """Add a slice; it may arrive before this worker has started the round."""
        slices = self._slices.setdefault((fit, number, stage), {})
        slices[sender] = content
        n_wanted, done = self._waiting.get((fit, number, stage), (-1, None))
        if done is not None and len(slices) == n_wanted and not done.done():
            done.set_result(None)

    async def all_of(self, fit: str, number: int, stage: int, n_senders: int) -> list[bytes]:
        """Return the slices of a stage once all have arrived."""
        key = fit, number, stage
        if len(self._slices.get(key, ())) < n_senders:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting[key] = n_senders, done
            try:
                await done
            finally:
                self._waiting.pop(key, None)
        return list(self._slices.pop(key).values())

    def drop(self, fit: str) -> None:
        """Drop all slices of a fit."""
        self.begin(fit, 2**62)
