"""The rounds of trees over all sessions of a fit: merge the histograms, pick the splits, ask for the next ones.

`trees.grower.grow_tree` decides what to ask. Here its requests are sent to the sessions, their histograms are added up as they
arrive, and the best splits of the sums are returned to the grower. The trees of an iteration (one for each output) share
rounds: a message carries the requests of all of them. All of it runs in the thread of the fit, so it costs the event loop of
the scheduler nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dboost.distributed.line import Message
from dboost.distributed.messages import LostWorkers, Timing
from dboost.distributed.worker_calls import WorkerCalls
from dboost.kernels import kernel
from dboost.kernels.histograms import BinLayout
from dboost.session.protocol import FeatureOwner, FeatureSearch, Session, SessionRef, pack_round
from dboost.trees.grower import Round, RoundHistograms, RoundResult, grow_tree
from dboost.trees.split_finder import BestSplits, SplitFinder, merge_best_splits
from dboost.trees.tree_task import GrownTree, TreeTask


@dataclass(frozen=True)
class GrowOrder:
    """The client's order to grow trees.

    tasks : of different outputs.
    n_rows : number of training rows over all sessions.
    n_leaves_per_round : leaves that a round splits in each tree.
    rows_of : number of rows of each session, by the client's records.
    """

    tasks: tuple[TreeTask, ...]
    layout: BinLayout
    n_rows: int
    n_leaves_per_round: int
    rows_of: Mapping[SessionRef, int]


class TreeRounds:
    """Grows the trees of a fit. Keeps the memory of histograms from one tree to the next."""

    def __init__(self) -> None:
        self._split_finders: list[SplitFinder] = []
        self._sums = np.empty(0)

    def grow(
        self, calls: WorkerCalls, refs: Sequence[SessionRef], order: GrowOrder, owners: Sequence[FeatureOwner]
    ) -> tuple[list[GrownTree], Timing]:
        """Grow the trees of an order, in the order of its tasks.

        owners : sessions that search ranges of features; empty if the histograms are gathered here.

        Raises
        ------
        LostWorkers, WorkerFailed, FitCancelled
        """
        tasks, layout = order.tasks, order.layout
        growers = {task.output: grow_tree(task, layout, order.n_rows, order.n_leaves_per_round) for task in tasks}
        finders = self._new_finders(order)
        rounds: dict[int, Round] = {output: next(grower) for output, grower in growers.items()}
        new_tasks, grown, timing = tasks, dict[int, GrownTree](), Timing()  # new tasks are sent with the first request
        while rounds:
            began = time.perf_counter()
            requests = {output: request for output, (request, _) in rounds.items()}
            sums = RoundSums(self._buffers_for(rounds, tasks[0], layout))
            before = calls.n_bytes
            if owners:
                search = FeatureSearch(
                    new_tasks, {output: pairs for output, (_, pairs) in rounds.items() if pairs}, tuple(owners)
                )
                method, packed = Session.histogram_slices.__name__, pack_round((requests, search))
                answers = calls.call(method, dict.fromkeys(refs, packed), sums.add_best)
            else:
                method, packed = Session.round_histograms.__name__, pack_round((new_tasks, requests))
                answers = calls.call(method, dict.fromkeys(refs, packed), sums.add)
            if new_tasks:
                check_rows({ref: n for ref, (n, _) in answers.items()}, order.rows_of)
                new_tasks = ()
            replied = time.perf_counter()
            for output, (_, pairs) in list(rounds.items()):
                of_tree = sums.trees[output]
                best = sums.best.get(output, [])
                if not owners:
                    best = finders[output].find_best_splits(pairs, of_tree.histograms)
                try:
                    rounds[output] = growers[output].send(RoundResult(best, of_tree.n_rows, of_tree.leaf_sums))
                except StopIteration as end:
                    grown[output] = end.value.copy()
                    del rounds[output]
            reducing = sums.seconds + time.perf_counter() - replied
            compute = max(seconds for _, seconds in answers.values())
            elapsed = time.perf_counter() - began
            timing += Timing(1, compute, reducing, elapsed - compute - reducing, calls.n_bytes - before)
        return [grown[task.output] for task in tasks], timing

    def _new_finders(self, order: GrowOrder) -> dict[int, SplitFinder]:
        """Return a split finder for each tree, with the memory of earlier ones."""
        free: list[SplitFinder | None] = [*self._split_finders, *[None] * len(order.tasks)]
        self._split_finders = [
            SplitFinder(task, order.layout, after=earlier, n_rows=order.n_rows)
            for task, earlier in zip(order.tasks, free, strict=False)
        ]
        return {task.output: finder for task, finder in zip(order.tasks, self._split_finders, strict=True)}

    def _buffers_for(self, rounds: Mapping[int, Round], task: TreeTask, layout: BinLayout) -> dict[int, np.ndarray]:
        """Return arrays for the sums of a round by output: float64[n_nodes, n_channels, n_buckets]."""
        of_node = 3 if task.limits.count_channel == 2 else 2, int(layout.offset[-1])
        n_nodes = {output: len(request.nodes) for output, (request, _) in rounds.items()}
        size = sum(n_nodes.values()) * of_node[0] * of_node[1]
        if size > self._sums.size:
            self._sums = np.empty(max(size, 2 * self._sums.size))
        sums = self._sums[:size].reshape(-1, *of_node)
        ends = np.cumsum([0, *n_nodes.values()]).tolist()
        return {output: sums[ends[k] : ends[k + 1]] for k, output in enumerate(n_nodes)}


class TreeSums:
    """The sums of a round's answers for one tree. buffer : for the histograms."""

    def __init__(self, buffer: np.ndarray) -> None:
        self.histograms = buffer
        self.n_rows = np.zeros((0, 2), np.int64)
        self.leaf_sums: np.ndarray | None = None
        self._is_empty = True

    def add(self, answer: RoundHistograms) -> None:
        """Add an answer of a session; its arrays may be views of a buffer that the next message reuses."""
        if answer.histograms.size:
            _add_up(answer.histograms.ravel(), self.histograms.ravel(), self._is_empty)
        self.n_rows = answer.n_rows.copy() if self._is_empty else self.n_rows + answer.n_rows
        if answer.leaf_sums is not None:
            self.leaf_sums = answer.leaf_sums.copy() if self.leaf_sums is None else self.leaf_sums + answer.leaf_sums
        self._is_empty = False


class RoundSums:
    """The sums of a round's answers. buffers : for the histograms of each tree, by output."""

    def __init__(self, buffers: Mapping[int, np.ndarray]) -> None:
        self.trees = {output: TreeSums(buffer) for output, buffer in buffers.items()}
        self.best: dict[int, BestSplits] = {}
        self.seconds = 0.0

    def add(self, message: Message) -> tuple[int, float]:
        """Add an answer of `Session.round_histograms`; return the session's number of training rows, and its seconds."""
        began = time.perf_counter()
        answers, n_rows, seconds = message.unpack()
        self._add(answers)
        self.seconds += time.perf_counter() - began
        return n_rows, seconds

    def add_best(self, message: Message) -> tuple[int, float]:
        """Add an answer of the exchange among feature owners; see `add`."""
        began = time.perf_counter()
        answers, found, n_rows, seconds = message.unpack()
        self._add(answers)
        for output, best in found.items():
            self.best[output] = merge_best_splits([self.best[output], best]) if output in self.best else best
        self.seconds += time.perf_counter() - began
        return n_rows, seconds

    def _add(self, answers: Mapping[int, RoundHistograms]) -> None:
        for output, answer in answers.items():
            self.trees[output].add(answer)


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
