"""Trees of a fit on a cluster, in the reducer: rounds as packed calls of all sessions.

`trees.tree_rounds` drives the rounds. Here its requests are packed and sent to the sessions, and their histograms are added up
as they arrive. All of it runs in the thread of the fit, so it costs the event loop of the scheduler nothing.

A session that has all rows grows whole trees by itself, so they take one message instead of the rounds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from dboost.distributed.messages import LostWorkers, Timing
from dboost.distributed.worker_calls import Branch, RoundSums, WorkerCalls
from dboost.session.protocol import FeatureSearch, SessionRef, SliceExchange, pack_round, unpack
from dboost.session.session_protocol import Session
from dboost.trees.grower import Round, RoundHistograms
from dboost.trees.split_finder import BestSplits, unpack_splits
from dboost.trees.tree_rounds import GrowOrder, TreeRounds
from dboost.trees.tree_task import GrownTree, TreeTask


class SessionRounds:
    """Grows the trees of a fit on sessions; implements `RoundCalls`. Stores what the sessions know from earlier trees."""

    def __init__(self) -> None:
        self._rounds = TreeRounds()
        #: What all sessions have received with an earlier tree.
        self._known_exchange: SliceExchange | None = None
        #: Sessions that have all rows, but as several shards.
        self._divided: set[SessionRef] = set()

    def grow_trees(
        self,
        calls: WorkerCalls,
        branches: Sequence[Branch],
        order: GrowOrder,
        rows_of: Mapping[SessionRef, int],
        exchange: SliceExchange | None,
    ) -> tuple[list[GrownTree], Timing]:
        """Grow the trees of an order, see `TreeRounds.grow_trees`.

        branches : of the tree of all sessions (see `worker_calls`).
        rows_of : number of rows of each session, by the client's records.
        exchange : how sessions add up slices of histograms and search them; None if the histograms are gathered here.

        Raises
        ------
        LostWorkers, WorkerFailed, FitCancelled
        """
        self._calls, self._branches, self._rows_of, self._exchange = calls, branches, rows_of, exchange
        whole = self._grow_whole(order.tasks)
        if whole is not None:
            return whole
        self._is_exchange_known, self._known_exchange = exchange == self._known_exchange, None
        self._timing, self._in_calls = Timing(), 0.0
        began = time.perf_counter()
        trees = [grown.copy() for grown in self._rounds.grow_trees(self, order)]
        return trees, self._timing + Timing(reduce=time.perf_counter() - began - self._in_calls)

    def run_round(
        self, tasks: Sequence[TreeTask], rounds: Mapping[int, Round]
    ) -> tuple[Mapping[int, RoundHistograms], Mapping[int, BestSplits] | None]:
        """See `RoundCalls`."""
        began, before = time.perf_counter(), self._calls.n_bytes
        requests = {output: request for output, (request, _) in rounds.items()}
        if self._exchange:
            pairs_of = {output: pairs for output, (_, pairs) in rounds.items() if pairs}
            search = FeatureSearch(pairs_of, tuple(tasks), None if self._is_exchange_known else self._exchange)
            method, packed = Session.histogram_slices.__name__, pack_round((requests, search))
        else:
            method, packed = Session.round_histograms.__name__, pack_round((tasks, requests))
        sums = RoundSums()
        self._calls.call(method, dict.fromkeys(self._branches, packed), sums.add)
        if tasks:
            refs = [ref for branch in self._branches for ref in (branch.ref, *branch.below)]
            n_rows = [n for branch in self._branches for n in sums.rows[branch.ref]]
            check_rows(dict(zip(refs, n_rows, strict=True)), self._rows_of)
            self._is_exchange_known, self._known_exchange = True, self._exchange
        seconds = time.perf_counter() - began
        self._in_calls += seconds
        waiting = seconds - sums.compute - sums.seconds
        self._timing += Timing(1, sums.compute, sums.seconds, waiting, self._calls.n_bytes - before)
        if not self._exchange:
            return sums.trees, None
        return sums.trees, {output: unpack_splits(sums.best.get(output, [])) for output in rounds}

    def _grow_whole(self, tasks: tuple[TreeTask, ...]) -> tuple[list[GrownTree], Timing] | None:
        """Have the only session grow the trees; None if there are several sessions, or it has several shards."""
        calls, (branch, *others) = self._calls, self._branches
        if others or branch.below or branch.ref in self._divided:
            return None
        began, before = time.perf_counter(), calls.n_bytes
        answers: list[Any] = []
        packed = pack_round((tasks,))
        calls.call(Session.grow_trees.__name__, {branch: packed}, lambda _, message: answers.append(bytes(message.content)))
        answer = unpack(answers[0])
        if answer is None:
            self._divided.add(branch.ref)
            return None
        trees, n_rows, seconds = answer
        check_rows({branch.ref: n_rows}, self._rows_of)
        waiting = time.perf_counter() - began - seconds
        return trees, Timing(1, seconds, 0.0, waiting, calls.n_bytes - before)

    def close(self) -> None:
        """Release the threads."""
        self._rounds.close()


def check_rows(n_rows: Mapping[SessionRef, int], expected: Mapping[SessionRef, int]) -> None:
    """Raise `LostWorkers` for sessions whose number of rows differs from the client's records, or that have not answered.

    Losses are detected by the names of sessions; this is a second, independent check.
    """
    wrong = [ref for ref in {**n_rows, **expected} if n_rows.get(ref, 0) != expected.get(ref, 0)]
    if wrong:
        raise LostWorkers(wrong)
