"""The rounds of trees over all sessions of a fit: merge the histograms, pick the splits, ask for the next ones.

A session that has all rows grows whole trees by itself, so they take one message instead of the rounds.

`trees.grower.grow_tree` decides what to ask. Here its requests are sent to the sessions, their histograms are added up as they
arrive, and the best splits of the sums are returned to the grower. The trees of an iteration (one for each output) share
rounds: a message carries the requests of all of them. All of it runs in the thread of the fit, so it costs the event loop of
the scheduler nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from dboost.distributed.messages import LostWorkers, Timing
from dboost.distributed.worker_calls import Branch, RoundSums, WorkerCalls
from dboost.kernels.histograms import BinLayout
from dboost.session.protocol import FeatureSearch, Session, SessionRef, SliceExchange, pack_round, unpack
from dboost.trees.bin_proposal import in_fine_bins
from dboost.trees.grower import Round, RoundResult, grow_tree
from dboost.trees.split_finder import BestSplits, SiblingPair, SplitFinder, unpack_splits
from dboost.trees.tree_task import GrownTree, TreeTask


@dataclass(frozen=True)
class GrowOrder:
    """The client's order to grow trees.

    tasks : of different outputs.
    layout : of the bins that trees are grown with.
    is_identity_bin_map : bool[n_features], whether these are the fine bins that finished trees refer to.
    n_rows : number of training rows over all sessions.
    n_leaves_per_round : leaves that a round splits in each tree.
    rows_of : number of rows of each session, by the client's records.
    """

    tasks: tuple[TreeTask, ...]
    layout: BinLayout
    is_identity_bin_map: np.ndarray
    n_rows: int
    n_leaves_per_round: int
    rows_of: Mapping[SessionRef, int]


class TreeRounds:
    """Grows the trees of a fit. Keeps the memory of histograms from one tree to the next.

    Trees that share rounds are searched in parallel, because the workers wait meanwhile.
    """

    def __init__(self) -> None:
        self._split_finders: list[SplitFinder] = []
        self._threads: ThreadPoolExecutor | None = None
        #: What all sessions have received with an earlier tree.
        self._exchange: SliceExchange | None = None
        #: Sessions that have all rows, but as several shards.
        self._divided: set[SessionRef] = set()

    def grow_trees(
        self, calls: WorkerCalls, branches: Sequence[Branch], order: GrowOrder, exchange: SliceExchange | None
    ) -> tuple[list[GrownTree], Timing]:
        """Grow the trees of an order, in the order of its tasks; their splits refer to fine bins.

        branches : of the tree of all sessions (see `worker_calls`).
        exchange : how sessions add up slices of histograms and search them; None if the histograms are gathered here.

        Raises
        ------
        LostWorkers, WorkerFailed, FitCancelled
        """
        whole = self._grow_whole(calls, branches, order)
        if whole is not None:
            return whole
        tasks, layout = order.tasks, order.layout
        growers = {task.output: grow_tree(task, layout, order.n_rows, order.n_leaves_per_round) for task in tasks}
        finders = self._new_finders(order)
        rounds: dict[int, Round] = {output: next(grower) for output, grower in growers.items()}
        new_tasks, grown, timing = tasks, dict[int, GrownTree](), Timing()  # new tasks are sent with the first request
        new_exchange = None if exchange == self._exchange else exchange
        self._exchange = None
        while rounds:
            began = time.perf_counter()
            requests = {output: request for output, (request, _) in rounds.items()}
            pairs_of = {output: pairs for output, (_, pairs) in rounds.items()}
            sums = RoundSums()
            before = calls.n_bytes
            if exchange:
                pairs = {output: pairs for output, pairs in pairs_of.items() if pairs}
                search = FeatureSearch(pairs, new_tasks, new_exchange)
                method, packed = Session.histogram_slices.__name__, pack_round((requests, search))
            else:
                method, packed = Session.round_histograms.__name__, pack_round((new_tasks, requests))
            calls.call(method, dict.fromkeys(branches, packed), sums.add)
            if new_tasks:
                refs = [ref for branch in branches for ref in (branch.ref, *branch.below)]
                n_rows = [n for branch in branches for n in sums.rows[branch.ref]]
                check_rows(dict(zip(refs, n_rows, strict=True)), order.rows_of)
                new_tasks, new_exchange, self._exchange = (), None, exchange
            replied = time.perf_counter()
            found: Iterable[BestSplits]
            if exchange:
                found = [unpack_splits(sums.best.get(output, [])) for output in pairs_of]
            else:
                found = self._find_best_splits(finders, pairs_of, sums)
            for output, best in zip(pairs_of, found, strict=True):
                of_tree = sums.trees[output]
                try:
                    rounds[output] = growers[output].send(RoundResult(best, of_tree.n_rows, of_tree.leaf_sums))
                except StopIteration as end:
                    grown[output] = end.value.copy()
                    del rounds[output]
            reducing = sums.seconds + time.perf_counter() - replied
            waiting = time.perf_counter() - began - sums.compute - reducing
            timing += Timing(1, sums.compute, reducing, waiting, calls.n_bytes - before)
        for task in tasks:
            in_fine_bins(grown[task.output], task.bin_merge, order.is_identity_bin_map)
        return [grown[task.output] for task in tasks], timing

    def _grow_whole(
        self, calls: WorkerCalls, branches: Sequence[Branch], order: GrowOrder
    ) -> tuple[list[GrownTree], Timing] | None:
        """Have the only session grow the trees; None if there are several sessions, or it has several shards."""
        branch, *others = branches
        if others or branch.below or branch.ref in self._divided:
            return None
        began, before = time.perf_counter(), calls.n_bytes
        answers: list[Any] = []
        packed = pack_round((order.tasks,))
        calls.call(Session.grow_trees.__name__, {branch: packed}, lambda _, message: answers.append(bytes(message.content)))
        answer = unpack(answers[0])
        if answer is None:
            self._divided.add(branch.ref)
            return None
        trees, n_rows, seconds = answer
        check_rows({branch.ref: n_rows}, order.rows_of)
        waiting = time.perf_counter() - began - seconds
        return trees, Timing(1, seconds, 0.0, waiting, calls.n_bytes - before)

    def close(self) -> None:
        """Release the threads."""
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    def _find_best_splits(
        self, finders: Mapping[int, SplitFinder], pairs_of: Mapping[int, Sequence[SiblingPair]], sums: RoundSums
    ) -> Iterable[BestSplits]:
        """Return the best splits of the nodes of a round, tree by tree.

        The splits of the first trees are available while others are searched, so their growers can continue.
        """

        def search(output: int) -> BestSplits:
            return finders[output].find_best_splits(pairs_of[output], sums.trees[output].histograms)

        if len(pairs_of) == 1:
            return map(search, pairs_of)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(min(len(finders), os.cpu_count() or 1), "dboost-search")
        return self._threads.map(search, pairs_of)

    def _new_finders(self, order: GrowOrder) -> dict[int, SplitFinder]:
        """Return a split finder for each tree, with the memory of earlier ones."""
        free: list[SplitFinder | None] = [*self._split_finders, *[None] * len(order.tasks)]
        self._split_finders = [
            SplitFinder(task, order.layout, after=earlier, n_rows=order.n_rows)
            for task, earlier in zip(order.tasks, free, strict=False)
        ]
        return {task.output: finder for task, finder in zip(order.tasks, self._split_finders, strict=True)}


def check_rows(n_rows: Mapping[SessionRef, int], expected: Mapping[SessionRef, int]) -> None:
    """Raise `LostWorkers` for sessions whose number of rows differs from the client's records, or that have not answered.

    Losses are detected by the names of sessions; this is a second, independent check.
    """
    wrong = [ref for ref in {**n_rows, **expected} if n_rows.get(ref, 0) != expected.get(ref, 0)]
    if wrong:
        raise LostWorkers(wrong)
