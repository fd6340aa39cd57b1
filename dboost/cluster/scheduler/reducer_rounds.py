"""Trees of a fit on a cluster, in the reducer: rounds as packed calls of all sessions.

`trees.tree_rounds` drives the rounds. Here its requests are packed and sent to the sessions, and their histograms are added up
as they arrive. All of it runs in the thread of the fit, so it costs the event loop of the scheduler nothing.

A session that has all rows grows whole trees by itself, so they take one message instead of the rounds.

**Rounds in flight.** Two rounds may be under way at the same time (`GrowOrder.n_in_flight`): the second request waits in the
socket of each worker; relays pass it on meanwhile. Sessions that exchange slices wait for each other: there, each round begins
when the one before has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from dboost.cluster.scheduler.fit_calls import FitCalls
from dboost.cluster.transport.feature_exchange import SliceExchange, SliceRound, unpack_splits
from dboost.cluster.transport.line_calls import EXCHANGE_ROUND, Decode
from dboost.cluster.transport.messages import LostWorkers, SessionRef, Timing, pack_round, unpack
from dboost.cluster.transport.round_sums import RoundSums
from dboost.cluster.transport.session_tree import Branch, for_all
from dboost.rows.shard_spec import MOST_OPENED
from dboost.session.session import Session
from dboost.trees.fit_trees import GrownTree
from dboost.trees.tree_growth import Round
from dboost.trees.tree_rounds import GrowOrder, RoundSumsAndSplits, TreeRounds
from dboost.trees.tree_task import TreeTask

#: Bytes of a request up to which a second round may be under way. The socket must hold the request while the worker, which
#: sends the answer to the first one, does not receive.
_MOST_QUEUED_BYTES = 64 * 1024


class ReducerRounds:
    """Grows the trees of a fit on sessions. Stores what the sessions know from earlier trees."""

    def __init__(self) -> None:
        self._rounds = TreeRounds()
        #: What all sessions have received with an earlier tree.
        self._known_exchange: SliceExchange | None = None
        #: Sessions that have all rows, but as several shards.
        self._divided: set[SessionRef] = set()

    def grow(
        self,
        calls: FitCalls,
        branches: Sequence[Branch],
        order: GrowOrder,
        rows_of: Mapping[SessionRef, int],
        exchange: SliceExchange | None,
    ) -> tuple[list[GrownTree], Timing]:
        """Grow the trees of an order, see `TreeRounds.grow`.

        branches : of the tree of all sessions (see `cluster.transport.session_tree`).
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
        self._n_under_way = 0
        began, before = time.perf_counter(), calls.n_bytes
        order = replace(order, n_in_flight=self._most_in_flight(order))
        trees = self._rounds.grow(self.begin_round, order)
        in_reducer = time.perf_counter() - began - self._in_calls
        waiting = max(self._in_calls - self._timing.compute - self._timing.reduce, 0.0)
        return trees, self._timing + Timing(reduce=in_reducer, wait=waiting, n_bytes=calls.n_bytes - before)

    def _most_in_flight(self, order: GrowOrder) -> int:
        """Return how many rounds of an order may be under way at the same time."""
        task, n_codes = order.tasks[0], int(order.layout.n_bins.max()) + 1
        split_bytes = order.n_leaves_per_round * (n_codes + 64)
        leaf_bytes = MOST_OPENED * task.policy.max_leaves * 16
        passed_on = max(len(branch.passed_on) for branch in self._branches)
        if self._exchange or len(order.tasks) * max(split_bytes, leaf_bytes) + passed_on > _MOST_QUEUED_BYTES:
            return 1
        return order.n_in_flight

    def begin_round(self, tasks: Sequence[TreeTask], rounds: Mapping[int, Round]) -> Callable[[], RoundSumsAndSplits]:
        """See `BeginRound`."""
        began = time.perf_counter()
        requests = {output: request for output, (request, _) in rounds.items()}
        if self._exchange:
            pairs_of = {output: pairs for output, (_, pairs) in rounds.items() if pairs}
            exchange = None if self._is_exchange_known else self._exchange
            method, packed = EXCHANGE_ROUND, pack_round(SliceRound(requests, pairs_of, tuple(tasks), exchange))
        else:
            method, packed = Session.round_histograms.__name__, pack_round((tasks, requests))
        wait = self._calls.begin(method, for_all(self._branches, packed), follows=self._n_under_way > 0)
        self._n_under_way += 1
        self._in_calls += time.perf_counter() - began
        return partial(self._end_round, wait, bool(tasks), list(rounds))

    def _end_round(self, wait: Callable[[Decode], None], is_first: bool, outputs: Sequence[int]) -> RoundSumsAndSplits:
        """Wait for the answers of a round. is_first : whether trees have begun with it."""
        began = time.perf_counter()
        sums = RoundSums()
        wait(sums.add)
        self._n_under_way -= 1
        if is_first:
            refs = [ref for branch in self._branches for ref in (branch.ref, *branch.below)]
            n_rows = [n for branch in self._branches for n in sums.rows[branch.ref]]
            check_rows(dict(zip(refs, n_rows, strict=True)), self._rows_of)
            self._is_exchange_known, self._known_exchange = True, self._exchange
        self._in_calls += time.perf_counter() - began
        self._timing += Timing(1, sums.compute, sums.seconds)
        if not self._exchange:
            return sums.trees, None
        return sums.trees, {output: unpack_splits(sums.best.get(output, [])) for output in outputs}

    def _grow_whole(self, tasks: tuple[TreeTask, ...]) -> tuple[list[GrownTree], Timing] | None:
        """Have the only session grow the trees; None if there are several sessions, or it has several shards."""
        calls, (branch, *others) = self._calls, self._branches
        if others or branch.below or branch.ref in self._divided:
            return None
        began, before = time.perf_counter(), calls.n_bytes
        answers: list[Any] = []
        packed = pack_round((tasks,))
        wait = calls.begin(Session.grow_whole_trees.__name__, {branch: (packed,)})
        wait(lambda _, message: answers.append(bytes(message.content)))
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
