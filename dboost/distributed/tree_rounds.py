"""The rounds of a tree over all sessions of a fit: merge the histograms, pick the splits, ask for the next ones.

`trees.grower.grow_tree` decides what to ask. Here its requests are sent to the sessions, their histograms are added up as they
arrive, and the best splits of the sums are returned to the grower. All of it runs in the thread of the fit, so it costs the
event loop of the scheduler nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dboost.distributed.line import Message
from dboost.distributed.messages import LostWorkers, Timing
from dboost.distributed.worker_calls import WorkerCalls
from dboost.kernels import kernel
from dboost.kernels.histograms import BinLayout
from dboost.session.protocol import FeatureOwner, Session, SessionRef, pack_round
from dboost.trees.grower import RoundHistograms, RoundRequest, RoundResult, grow_tree
from dboost.trees.split_finder import BestSplits, SplitFinder, merge_best_splits
from dboost.trees.tree_task import GrownTree, TreeTask


class TreeRounds:
    """Grows the trees of a fit. Keeps the memory of histograms from one tree to the next."""

    def __init__(self) -> None:
        self._split_finder: SplitFinder | None = None
        self._sums = np.empty(0)

    def grow(
        self,
        calls: WorkerCalls,
        refs: Sequence[SessionRef],
        task: TreeTask,
        layout: BinLayout,
        n_rows: int,
        n_leaves_per_round: int,
        rows_of: Mapping[SessionRef, int],
        owners: Sequence[FeatureOwner],
    ) -> tuple[GrownTree, Timing]:
        """Grow one tree.

        rows_of : number of rows of each session, by the client's records.
        owners : sessions that search ranges of features; empty if the histograms are gathered here.

        Raises
        ------
        LostWorkers, WorkerFailed, FitCancelled
        """
        grower = grow_tree(task, layout, n_rows, n_leaves_per_round)
        self._split_finder = SplitFinder(task, layout, after=self._split_finder, n_rows=n_rows)
        request, timing = next(grower), Timing()
        new_task: TreeTask | None = task  # sent with the first request
        while True:
            began = time.perf_counter()
            sums = RoundSums(self._buffer_for(request, task, layout))
            method = Session.histogram_slices if owners else Session.round_histograms
            packed = pack_round((new_task, request, owners) if owners else (new_task, request))
            before = calls.n_bytes
            answers = calls.call(method.__name__, dict.fromkeys(refs, packed), sums.add_best if owners else sums.add)
            if new_task is not None:
                check_rows({ref: n for ref, (n, _) in answers.items()}, rows_of)
            replied = time.perf_counter()
            found = sums.best if owners else self._split_finder.find_best_splits(request.pairs, sums.histograms)
            try:
                request = grower.send(RoundResult(found, sums.n_rows, sums.leaf_sums))
                grown = None
            except StopIteration as end:
                grown = end.value
            reducing = sums.seconds + time.perf_counter() - replied
            compute = max(seconds for _, seconds in answers.values())
            elapsed = time.perf_counter() - began
            timing += Timing(1, compute, reducing, elapsed - compute - reducing, calls.n_bytes - before)
            if grown is not None:
                return grown.copy(), timing
            new_task = None

    def _buffer_for(self, request: RoundRequest, task: TreeTask, layout: BinLayout) -> np.ndarray:
        """Return an array for the sums of a round: float64[n_pairs, n_channels, n_buckets]."""
        shape = len(request.pairs), 3 if task.limits.count_channel == 2 else 2, int(layout.offset[-1])
        size = int(np.prod(shape))
        if size > self._sums.size:
            self._sums = np.empty(max(size, 2 * self._sums.size))
        return self._sums[:size].reshape(shape)


class RoundSums:
    """The sums of a round's answers. buffer : for the histograms."""

    def __init__(self, buffer: np.ndarray) -> None:
        self.histograms = buffer
        self.n_rows = np.zeros((0, 2), np.int64)
        self.leaf_sums: np.ndarray | None = None
        self.best: BestSplits = []
        self.seconds = 0.0
        self._n_added = 0

    def add(self, message: Message) -> tuple[int, float]:
        """Add an answer of `Session.round_histograms`; return the session's number of training rows, and its seconds."""
        answer, n_rows, seconds = message.unpack()
        if answer is not None:
            self._add(answer)
        return n_rows, seconds

    def add_best(self, message: Message) -> tuple[int, float]:
        """Add an answer of the exchange among feature owners; see `add`."""
        answer, found, n_rows, seconds = message.unpack()
        if answer is not None:
            self._add(answer)
        if found is not None:
            self.best = merge_best_splits([self.best, found]) if self.best else found
        return n_rows, seconds

    def _add(self, answer: RoundHistograms) -> None:
        began = time.perf_counter()
        is_first = self._n_added == 0
        if answer.histograms.size:
            _add_up(answer.histograms.ravel(), self.histograms.ravel(), is_first)
        self.n_rows = answer.n_rows.copy() if is_first else self.n_rows + answer.n_rows
        if answer.leaf_sums is not None:
            self.leaf_sums = answer.leaf_sums.copy() if self.leaf_sums is None else self.leaf_sums + answer.leaf_sums
        self._n_added += 1
        self.seconds += time.perf_counter() - began


def check_rows(n_rows: Mapping[SessionRef, int], expected: Mapping[SessionRef, int]) -> None:
    """Raise `LostWorkers` for sessions whose number of rows differs from the client's records.

    Losses are detected by the names of sessions; this is a second, independent check.
    """
    wrong = [ref for ref, n in n_rows.items() if n != expected.get(ref, 0)]
    if wrong:
        raise LostWorkers(wrong)


@kernel
def _add_up(part: Any, sums: Any, is_first: Any) -> None:
    """Add integers (int32 or float64) to float64 sums."""
    if is_first:
        for k in range(part.size):
            sums[k] = part[k]
    else:
        for k in range(part.size):
            sums[k] += part[k]
