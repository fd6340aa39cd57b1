"""Boosting on one arcbite after another (see `dboost.ArcBites`).

During a visit to a bite the sessions add the missing trees to the raw scores of the bite's rows, computes gradients with the
bite's own scale, and grows trees as in any fit. The visit ends after `trees_per_visit` trees, or when the independent test set
has not improved for `early_stopping_rounds` trees. In the second case the combined model is *cut back* to its best iteration:
the loop drops the later trees from the model, from the scores of the test set, and from the scores of the bite, which are
restored from a copy made at the start of the visit. So all visits build one model, and each tree in it improved the loss on
rows that no tree was trained on. A visit without improvement appears in the history only.

An iteration's number is its position in the model. Numbers are used again after a cut; the last record of a number in the
history describes the model's iteration. `max_iter` counts all iterations, also those that were cut back.

A checkpoint is written at the start of a visit, when no iteration of the model can be cut back any more. The rest of the fit
follows from the model, the visited bites and the history. A resumed fit repeats the visit that was interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from dboost.exact import merged_float, total
from dboost.losses.gradient_stats import GradientStats
from dboost.params import ADAPTIVE, CYCLIC, ArcBites
from dboost.rows.row_sample import VISITS, derive_seed
from dboost.rows.shard import Shard
from dboost.rows.statistics import Statistic
from dboost.session.arcbite_rows import bite_sizes
from dboost.session.fit_records import BiteVisit
from dboost.training.checkpoint import merged_fingerprint
from dboost.training.loop import BoostingLoop, Visit


def arcbite_visits(loop: BoostingLoop, arcbites: ArcBites) -> Iterator[Visit]:
    """Yield the visits to one bite after another, each to be completed before the next one; see `loop.all_rows`."""
    return _Arcbites(loop, arcbites).visits()


class _Arcbites:
    def __init__(self, loop: BoostingLoop, arcbites: ArcBites) -> None:
        self._loop = loop
        self._arcbites = arcbites
        self._sessions = loop.sessions
        self._n_visits, self._has_visited, self._n_calls = 0, False, 0
        self._past: dict[str, Any] = {}

    def visits(self) -> Iterator[Visit]:
        loop, arcbites, stopping = self._loop, self._arcbites, self._loop.early_stopping
        seed = loop.parameters.random_state
        has_rows = bite_sizes(seed, arcbites.n_parts, loop.sessions.n_rows) if loop.plan.bites is None else loop.plan.bites
        self._parts = np.flatnonzero(has_rows).tolist()
        # Bites of several parts are composed anew in each cycle; a bite of one part may have no rows.
        bites = self._parts if arcbites.parts == 1 else list(range(-(-len(self._parts) // arcbites.parts)))
        resumed = None if loop.checkpoint is None else loop.checkpoint.visits
        visited: list[int] = []
        in_vain = 0  # visits since the last one that improved the model
        if resumed is not None and loop.checkpoint is not None:
            visited, in_vain, self._n_visits = resumed["bites"], resumed["in_vain"], len(resumed["bites"])
            loop.history = list(loop.checkpoint.history)
        if loop.checkpoint is not None:
            loop.code_sums = self._code_sums(self._parts)
        for bite in order_of_visits(arcbites, bites, seed, self._losses, visited):
            began, n_before_visit = time.perf_counter(), loop.n_done
            self._past = {"bites": visited, "in_vain": in_vain}
            visited = [*visited, bite]
            gradients, n_left = self._enter(bite), self._n_left
            visit = Visit(gradients, min(n_left, arcbites.trees_per_visit or n_left), began)
            yield visit
            is_ended = visit.is_ended
            if stopping is not None and arcbites.is_watched:
                self._cut_back()
            elif stopping is not None:
                is_ended = is_ended or stopping.has_waited(loop.n_done)
            in_vain = 0 if loop.n_done > n_before_visit else in_vain + 1
            if is_ended or in_vain == len(bites) or not self._n_left:
                break

    @property
    def _n_left(self) -> int:
        """Number of iterations that may still be grown."""
        loop = self._loop
        return loop.parameters.max_iter - len(loop.history)

    def _enter(self, bite: int) -> GradientStats:
        """Start a visit to a bite; return the gradient statistics of its rows."""
        loop = self._loop
        self._n_visits += 1
        loop.visit_columns = {"bite": bite, "visit": self._n_visits}
        self._select_rows(self._parts_of(bite))
        if not self._has_visited:
            self._has_visited = True
            loop.trees.set_mark()
            stats = loop.begin()
        else:
            stats = loop.leaf_estimator.add_leaf_values(loop.zero_values, loop.n_done)
            if loop.checkpoint is not None:
                loop.checkpoint.note_visit(
                    loop.history, loop.n_done, loop.finished, self._past, loop.scores.now(stats, loop.n_done)
                )
        if self._n_visits > 1:
            loop.begin_visit(self._n_visits, loop.n_done)
        return stats

    def _parts_of(self, bite: int) -> Sequence[int]:
        """Return the parts of a bite at the current visit."""
        n, arcbites = self._arcbites.parts, self._arcbites
        if n == 1:
            return [bite]
        n_bites = -(-len(self._parts) // n)
        cycle, seed = (self._n_visits - 1) // n_bites, self._loop.parameters.random_state
        mixed_up = sorted(self._parts, key=lambda part: derive_seed(seed, VISITS, cycle, arcbites.n_parts + part))
        return mixed_up[bite * n : (bite + 1) * n]

    def _code_sums(self, parts: Sequence[int]) -> list[int]:
        """Return the sums of `checkpoint.merged_fingerprint` over all bites."""
        totals = []
        for part in parts:
            self._select_rows([part])
            totals.append(merged_fingerprint(self._sessions, self._loop.plan.shard))
        return [sum(of_all) % 2**64 for of_all in zip(*totals, strict=True)]

    def _cut_back(self) -> None:
        """Drop the trees after the best iteration."""
        loop = self._loop
        assert loop.early_stopping is not None
        best = max(loop.early_stopping.best_iteration, loop.n_before)
        if best < loop.n_done:
            loop.n_complete = best - loop.n_before
            loop.trees.cut_back(loop.n_complete)

    def _select_rows(self, bite: Sequence[int]) -> None:
        loop = self._loop
        self._sessions.visit(BiteVisit(self._n_calls, tuple(bite), loop.n_complete))
        self._n_calls += 1
        loop.scores.total_weight = merged_float(self._sessions.statistics(weight_of))

    def _losses(self, bites: Sequence[int]) -> dict[int, float]:
        """Return the current mean loss of each bite's rows."""
        loop, losses = self._loop, {}
        for bite in bites:
            self._select_rows([bite])
            losses[bite] = loop.scores.loss_of(loop.leaf_estimator.add_leaf_values(loop.zero_values), loop.n_done)
        return losses


def order_of_visits(
    arcbites: ArcBites,
    bites: Sequence[int],
    seed: int,
    losses: Callable[[Sequence[int]], dict[int, float]],
    visited: Sequence[int] = (),
) -> Iterator[int]:
    """Yield the bites in the order of their visits.

    Parameters
    ----------
    arcbites : ArcBites
    bites : sequence of int
        Numbers of the bites that have rows.
    seed : int
    losses : callable
        Returns the current mean loss of each of the given bites; called in adaptive order only.
    visited : sequence of int
        Bites visited before the fit was resumed; they are skipped.
    """
    due = _due(arcbites, bites, seed, losses, visited)
    yield from islice(due, len(visited), None)


def _due(
    arcbites: ArcBites,
    bites: Sequence[int],
    seed: int,
    losses: Callable[[Sequence[int]], dict[int, float]],
    visited: Sequence[int],
) -> Iterator[int]:
    known = iter(visited)
    cycle, last = 0, -1
    while arcbites.visits is None or cycle < arcbites.visits:
        if arcbites.order == ADAPTIVE:
            for _ in bites:
                following = next(known, None)
                if following is None:
                    present = losses([bite for bite in bites if bite != last or len(bites) == 1])
                    following = max(present, key=lambda bite: (present[bite], -bite))
                last = following
                yield last
        elif arcbites.order == CYCLIC:
            yield from bites
        else:
            yield from sorted(bites, key=lambda bite: derive_seed(seed, VISITS, cycle, bite))
        cycle += 1


def _weight_of(shard: Shard, first: int, last: int) -> int | None:
    """Return the exact total weight of rows first…last-1."""
    return total(np.ones(last - first) if shard.weight is None else shard.weight[first:last])


weight_of = Statistic(_weight_of)
