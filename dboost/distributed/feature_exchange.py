"""Reducing by feature among workers: each sends each *feature owner* its slice of the histograms.

For wide tables the histograms of all workers are too much for one process to take in. So some workers own a range of features
each. In a round every worker sends every owner the owner's slice of what it has added up; an owner adds the slices, searches
its features, and tells the reducer only the best split that it found. The histograms of a leaf stay with their owners from
one round to the next.

How many owners there are follows from the size of a round's histograms H over W workers: gathering in one place is fastest
while W·H is small, then an owner for every few MiB.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from dboost.config import gather_bytes, owner_bytes
from dboost.kernels.histograms import BinLayout
from dboost.session.protocol import FeatureOwner, SessionRef
from dboost.trees.tree_task import TreeTask


def choose_owners(refs: Sequence[SessionRef], task: TreeTask, layout: BinLayout, width: int) -> list[FeatureOwner]:
    """Who searches what; nobody where it is better to gather."""
    n_channels = 3 if task.limits.count_channel == 2 else 2
    n_bytes = len(refs) * width * n_channels * int(layout.offset[-1]) * 4
    n_features = len(layout.n_bins)
    if n_bytes < gather_bytes() or len(refs) == 1:
        return []
    n_owners = min(-(-n_bytes // owner_bytes()), len(refs), n_features)
    # Ranges of about as many buckets each.
    wanted = layout.offset[-1] * np.arange(1, n_owners) / n_owners
    inner = np.clip(np.searchsorted(layout.offset, wanted), 1, n_features - 1)
    bounds = sorted({0, *inner.tolist(), n_features})
    return [FeatureOwner(ref, a, b) for ref, a, b in zip(refs, bounds[:-1], bounds[1:], strict=False)]


class Inbox:
    """Slices that have arrived at an owner, by fit and round. Lives on the worker's event loop."""

    def __init__(self) -> None:
        self._slices: dict[tuple[str, int], dict[str, bytes]] = {}
        self._waiting: dict[tuple[str, int], tuple[int, asyncio.Future[None]]] = {}

    def begin(self, fit: str, number: int) -> None:
        """Forget what belongs to earlier rounds: they were given up."""
        for key in [key for key in self._slices if key[0] == fit and key[1] < number]:
            del self._slices[key]
        for key in [key for key in self._waiting if key[0] == fit and key[1] < number]:
            self._waiting.pop(key)[1].cancel()

    def put(self, fit: str, number: int, sender: str, content: bytes) -> None:
        """Take in a slice; it may come before this worker has begun the round."""
        slices = self._slices.setdefault((fit, number), {})
        slices[sender] = content
        n_wanted, done = self._waiting.get((fit, number), (-1, None))
        if done is not None and len(slices) == n_wanted and not done.done():
            done.set_result(None)

    async def all_of(self, fit: str, number: int, n_senders: int) -> list[bytes]:
        """The slices of a round, once they are there."""
        key = fit, number
        if len(self._slices.get(key, ())) < n_senders:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting[key] = n_senders, done
            try:
                await done
            finally:
                self._waiting.pop(key, None)
        return list(self._slices.pop(key).values())

    def drop(self, fit: str) -> None:
        """Forget a fit."""
        self.begin(fit, 2**62)
