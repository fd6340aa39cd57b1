"""Reduce-scatter of wide histograms by feature, in two stages among the workers.

For wide tables the histograms of all workers are too large for one process to receive. So they are divided into *slices*, each
of a range of features, and sessions form groups (`SliceExchange`):

1. In a group every session sends slice k to the k-th session, which adds up the slices that it receives.
2. The sums of slice k of all groups are sent to its *owner*, the k-th session of one of the groups.

An owner finds the best splits of its features. These are the session's answer to the reducer's call, which reaches all sessions
as every call does (`line_calls`). Owners keep the histograms of leaves for the next round.

Every session sends and receives its histograms about once, in a number of messages that grows with the square root of the
number of workers. Up to `config.fan_in` workers form one group, whose sums need no second stage. Sums of integers are exact in
any order, so the model does not depend on the groups.

Whether slices are exchanged, and how many there are, depends on the bytes H of a worker's histograms in a round. They are
added up on the way to the scheduler's process if that process and those on the way to it together receive less than
`config.gather_bytes`: H from each of at most `config.fan_in` workers on each level of the tree. Else there is one slice for
each `config.owner_bytes` of W·H over W workers, but no more than a group has sessions. With 16 simulated hosts and 1,000
features, a tree takes 2.0 times as long without slices for 2 million rows, and 1.3 to 1.5 times for 10 million.

The reducer chooses an exchange (`choose_exchange`), and sends a `SliceRound` with the requests of each round. On a worker,
`FeatureOwner.answer_round` is all that a session does for it. Slices travel as `peer_messages`.
"""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dboost.cluster.transport.line import Pieces
from dboost.cluster.transport.messages import OK, SessionRef, pack_round, unpack
from dboost.cluster.transport.peer_messages import JointCall
from dboost.config import fan_in, gather_bytes, owner_bytes
from dboost.kernels.histograms import BinLayout
from dboost.kernels.splits import FEATURE, SCORE
from dboost.session.partition_batch import MissingPartitions
from dboost.session.session import Session
from dboost.trees.split_finder import BestSplits, SiblingPair, SplitFinder
from dboost.trees.tree_growth import RoundHistograms, RoundRequest
from dboost.trees.tree_task import TreeTask


@dataclass(frozen=True)
class SliceExchange:
    """Which sessions add up which slices of wide histograms."""

    refs: tuple[SessionRef, ...]  # all sessions, of which each group has the next ones
    n_groups: int
    #: Slice k has features bounds[k]…bounds[k + 1] - 1; there are at most as many slices as sessions in a group.
    bounds: tuple[int, ...]
    layout: BinLayout = field(compare=False)  # of all features; constant during a fit

    @property
    def n_slices(self) -> int:
        return len(self.bounds) - 1

    def group(self, number: int) -> tuple[SessionRef, ...]:
        """Return the sessions of a group; the k-th one adds up slice k of the group."""
        n = len(self.refs)
        return self.refs[n * number // self.n_groups : n * (number + 1) // self.n_groups]

    def place(self, ref: SessionRef) -> tuple[int, tuple[SessionRef, ...]]:
        """Return the position of a session in its group, and the group."""
        rank, n = self.refs.index(ref), len(self.refs)
        number = ((rank + 1) * self.n_groups - 1) // n
        return rank - n * number // self.n_groups, self.group(number)

    def owner(self, k: int) -> SessionRef:
        """Return the session that adds up slice k of all groups. Owners are divided among the groups."""
        return self.group(k % self.n_groups)[k]

    def buckets(self, k: int) -> slice:
        return slice(int(self.layout.offset[self.bounds[k]]), int(self.layout.offset[self.bounds[k + 1]]))


@dataclass(frozen=True, eq=False)
class SliceRound:
    """A round whose histograms are exchanged, as the reducer sends it to all sessions."""

    requests: dict[int, RoundRequest]  # by output
    pairs: dict[int, tuple[SiblingPair, ...]]  # what owners search, by output
    tasks: tuple[TreeTask, ...] = ()  # of the trees that start
    exchange: SliceExchange | None = None  # None: that of the round before


def choose_exchange(
    refs: Sequence[SessionRef], task: TreeTask, layout: BinLayout, n_leaves_per_round: int
) -> SliceExchange | None:
    """Return how sessions exchange slices of histograms; None if these are added up on the way to the scheduler's process."""
    n, n_features = len(refs), len(layout.n_bins)
    n_channels = 3 if task.limits.count_channel == 2 else 2
    worker_bytes = n_leaves_per_round * n_channels * int(layout.offset[-1]) * 4
    if n == 1 or count_levels(n, fan_in()) * min(n, fan_in()) * worker_bytes < gather_bytes():
        return None
    n_groups = count_groups(n, fan_in())
    n_slices = min(-(-n * worker_bytes // owner_bytes()), n // n_groups, n_features)
    # Ranges with similar numbers of buckets.
    targets = layout.offset[-1] * np.arange(1, n_slices) / n_slices
    inner = np.clip(np.searchsorted(layout.offset, targets), 1, n_features - 1)
    return SliceExchange(tuple(refs), n_groups, tuple(sorted({0, *inner.tolist(), n_features})), layout)


def count_levels(n: int, fan_in: int) -> int:
    """Return the number of levels of the tree of `n` sessions, see `session_tree.tree_of`."""
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


class FeatureOwner:
    """The part of a session in exchanges of slices. Keeps the histograms of its features between the rounds of a tree.

    Methods whose first parameter is a session are called by `JointCall.execute`, which leaves out those of abandoned rounds.
    """

    def __init__(self, ref: SessionRef) -> None:
        self._ref = ref
        self._exchange: SliceExchange | None = None
        self._split_finders: dict[int, SplitFinder] = {}  # by output

    def answer_round(self, call: JointCall, arguments: bytes | memoryview) -> tuple[str, Any]:
        """Return a status, and the answer of a round: row counts, and the best splits of the features that are owned."""
        message: SliceRound = unpack(arguments)
        status, answer = call.execute(self.cut_slices, (message,))
        if status != OK:
            return status, answer
        exchange, slices, (results, n_rows, seconds) = answer
        position, group = exchange.place(self._ref)
        # Each session sends to the next one of its group first, so that no link receives from all at the same time.
        first, n_wanted = (position, len(group)) if position < len(slices) else (0, 0)
        to_group: dict[SessionRef, Pieces] = {group[k]: [slices[k]] for k in (*range(first, len(slices)), *range(first))}
        status, answer = call.swap(0, to_group, n_wanted)
        if status == OK and answer and exchange.n_groups > 1:
            status, answer = call.execute(self.add_slices, ([content for (content,) in answer],))
            if status != OK:
                return status, answer
            packed_sums, took = answer
            seconds += took
            owner = exchange.owner(position)
            status, answer = call.swap(1, {owner: [packed_sums]}, exchange.n_groups if owner == self._ref else 0)
        best: dict[int, PackedSplits] = {}
        if status == OK and answer:
            status, answer = call.execute(self.search_slices, (exchange, message, position, [content for (content,) in answer]))
            if status == OK:
                best, took = answer
                seconds += took
        return (OK, (results, n_rows, seconds, best)) if status == OK else (status, answer)

    def cut_slices(self, session: Session, message: SliceRound) -> tuple[SliceExchange, list[bytes], RoundAnswer]:
        """Return the exchange, the packed slices of a round's histograms (none if it opens no nodes), and the other answers."""
        results, n_rows, seconds = session.round_histograms(message.tasks, message.requests)
        started = time.perf_counter()
        self._exchange = exchange = message.exchange or self._exchange
        if exchange is None:
            raise MissingPartitions
        slices: list[bytes] = []
        if any(len(request.nodes) for request in message.requests.values()):
            for k in range(exchange.n_slices):
                buckets = exchange.buckets(k)
                slices.append(pack_round({output: histograms.slice(buckets) for output, histograms in results.items()}))
        rest = {output: replace(sums, histograms=sums.histograms[:, :, :0]) for output, sums in results.items()}
        return exchange, slices, (rest, n_rows, seconds + time.perf_counter() - started)

    def add_slices(self, session: Session, slices: Sequence[bytes]) -> tuple[bytes, float]:
        """Return the packed sum of slices of the same features, and the seconds."""
        started = time.perf_counter()
        return pack_round(_sum_slices(slices)), time.perf_counter() - started

    def search_slices(
        self, session: Session, exchange: SliceExchange, message: SliceRound, k: int, slices: Sequence[bytes]
    ) -> tuple[dict[int, PackedSplits], float]:
        """Return the best splits of the features of slice `k` by output, and the seconds. slices : they are added up."""
        started = time.perf_counter()
        if message.tasks:
            first, last = exchange.bounds[k : k + 2]
            free: list[SplitFinder | None] = [*self._split_finders.values(), *[None] * len(message.tasks)]
            self._split_finders = {
                task.output: SplitFinder(task, exchange.layout, first, last, after=earlier)
                for task, earlier in zip(message.tasks, free, strict=False)
            }
        sums = _sum_slices(slices)
        splits = {
            output: pack_splits(self._split_finders[output].find_best_splits(pairs, sums[output].histograms))
            for output, pairs in message.pairs.items()
        }
        return splits, time.perf_counter() - started


def _sum_slices(slices: Sequence[bytes]) -> dict[int, RoundHistograms]:
    """Return the sums of packed slices by output; a session without rows has sent an empty one."""
    sums: dict[int, RoundHistograms] = {}
    for pieces in map(unpack, slices):
        for output, piece in pieces.items():
            sums[output] = sums[output].merge(piece) if output in sums else piece
    return sums


#: Splits as (score, minus the feature, the pickled split). Of the splits of two ranges of features the maximum is the better
#: one, of equal ones that of the lower feature. So they are merged without unpacking them.
PackedSplits = list[tuple[float, float, bytes]]
#: Histograms of a round by output, number of training rows, seconds: of `Session.round_histograms`.
RoundAnswer = tuple[dict[int, RoundHistograms], int, float]


def pack_splits(splits: BestSplits) -> PackedSplits:
    """Return the best splits that the owner of a range of features found, for sending."""
    return [(float(split.best[SCORE]), -float(split.best[FEATURE]), pickle.dumps(split, 5)) for split in splits]


def merge_splits(mine: PackedSplits, others: PackedSplits) -> PackedSplits:
    """Merge the best splits that the owners of two ranges of features found for the same nodes."""
    return list(map(max, mine, others))


def unpack_splits(splits: PackedSplits) -> BestSplits:
    return [pickle.loads(packed) for _, _, packed in splits]
