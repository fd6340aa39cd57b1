"""Reduce-scatter of histograms by feature: each worker sends each *feature owner* its slice of the histograms.

For wide tables the histograms of all workers are too large for one process to receive. So some workers own a range of features
each. In a round every worker sends each owner the owner's slice of its histograms. An owner adds the slices, finds the best
splits of its features, and sends only these to the reducer. Owners keep the histograms of leaves for the next round.

The number of owners depends on the bytes H of a worker's histograms in a round: below `config.gather_bytes` over the workers
from which a process collects answers (`config.fan_in`) they are added up on the way to the scheduler's process, else there is
one owner for each `config.owner_bytes` of W·H over W workers. The slices of very many workers are so many messages that adding
up whole histograms on the way is faster again (`_seconds_of_slices`, `_seconds_of_relays`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import numpy as np

from dboost.config import fan_in, gather_bytes, owner_bytes
from dboost.kernels.histograms import BinLayout
from dboost.session.protocol import FeatureOwner, SessionRef
from dboost.trees.tree_task import TreeTask


def choose_owners(refs: Sequence[SessionRef], task: TreeTask, layout: BinLayout, n_leaves_per_round: int) -> list[FeatureOwner]:
    """Return the feature owners; empty if the scheduler's process gathers the histograms."""
    n_channels = 3 if task.limits.count_channel == 2 else 2
    of_worker = n_leaves_per_round * n_channels * int(layout.offset[-1]) * 4
    n_features = len(layout.n_bins)
    if min(len(refs), fan_in()) * of_worker < gather_bytes() or len(refs) == 1:
        return []
    n_owners = min(-(-len(refs) * of_worker // owner_bytes()), len(refs), n_features)
    is_large = len(refs) > fan_in() ** 2
    if is_large and _seconds_of_relays(len(refs), of_worker) < _seconds_of_slices(len(refs), n_owners, of_worker):
        return []
    # Ranges with similar numbers of buckets.
    targets = layout.offset[-1] * np.arange(1, n_owners) / n_owners
    inner = np.clip(np.searchsorted(layout.offset, targets), 1, n_features - 1)
    bounds = sorted({0, *inner.tolist(), n_features})
    return [FeatureOwner(ref, a, b) for ref, a, b in zip(refs, bounds[:-1], bounds[1:], strict=False)]


#: Estimates for a round, in seconds and bytes: of the links, of a message of Dask at either end, of one on a line, of adding up
#: and of searching a byte, and of the reducer's call of a worker.
_LATENCY, _BANDWIDTH = 1e-4, 1.25e9
_MESSAGE, _ON_LINE, _ADD, _SEARCH, _CALL = 3.6e-5, 3e-5, 3e-10, 4e-9, 1.1e-4


def _seconds_of_slices(n_workers: int, n_owners: int, n_bytes: int) -> float:
    """Return the estimated seconds of a round in which each worker sends slices of up to `n_bytes` to the owners."""
    usual = n_bytes / 2  # most rounds open fewer leaves
    return _CALL * n_workers + 2 * _MESSAGE * (n_workers + n_owners) + usual * (2 / _BANDWIDTH + n_workers / n_owners * _ADD)


def _seconds_of_relays(n_workers: int, n_bytes: int) -> float:
    """Return the estimated seconds of a round whose histograms are added up in a tree, and searched in one process."""
    usual = n_bytes / 2
    n_branches = min(n_workers, fan_in())
    n_levels = max(math.ceil(math.log(n_workers, n_branches) - 1e-9), 1)
    level = 2 * _LATENCY + n_branches * (2 * _ON_LINE + usual * (1 / _BANDWIDTH + _ADD))
    return n_levels * level + usual * _SEARCH


class Inbox:
    """Slices received by an owner, by fit and round. Used on the worker's event loop only."""

    def __init__(self) -> None:
        self._slices: dict[tuple[str, int], dict[str, bytes]] = {}
        self._waiting: dict[tuple[str, int], tuple[int, asyncio.Future[None]]] = {}

    def begin(self, fit: str, number: int) -> None:
        """Drop slices of earlier rounds, which were abandoned."""
        for key in [key for key in self._slices if key[0] == fit and key[1] < number]:
            del self._slices[key]
        for key in [key for key in self._waiting if key[0] == fit and key[1] < number]:
            self._waiting.pop(key)[1].cancel()

    def put(self, fit: str, number: int, sender: str, content: bytes) -> None:
        """Add a slice; it may arrive before this worker has started the round."""
        slices = self._slices.setdefault((fit, number), {})
        slices[sender] = content
        n_wanted, done = self._waiting.get((fit, number), (-1, None))
        if done is not None and len(slices) == n_wanted and not done.done():
            done.set_result(None)

    async def all_of(self, fit: str, number: int, n_senders: int) -> list[bytes]:
        """Return the slices of a round once all have arrived."""
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
        """Drop all slices of a fit."""
        self.begin(fit, 2**62)
