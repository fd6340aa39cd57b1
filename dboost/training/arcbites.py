"""Boosting on one arcbite after another (see `dboost.ArcBites`).

A visit to a bite selects its rows (`Backend.select`), whose scores then include all trees. Trees are grown
as in any fit, with the scale of the bite's gradients. The visit ends after `trees_per_visit` trees, or when the independent
test set has not improved for `early_stopping_rounds` trees. In the second case the combined model is *cut back* to its best
iteration: the later trees are dropped from the model and from the scores of the test set; those of a bite include no tree of
its last visit. So all visits build one model, and each tree in it improved the loss on rows that no tree was trained on. A
visit without improvement appears in the history only.

An iteration's number is its position in the model. Numbers are used again after a cut; the last record of a number in the
history describes the model's iteration. `max_iter` counts all iterations, also those that were cut back.

A checkpoint is written at the start of a visit, when no iteration of the model can be cut back any more. The rest of the fit
follows from the model, the visited bites and the history. A resumed fit repeats the visit that was interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import numpy as np

from dboost.exact import merged_float, total
from dboost.params import ADAPTIVE, CYCLIC, ArcBites
from dboost.rows.row_sample import VISITS, derive_seed
from dboost.rows.shard import Shard
from dboost.rows.statistics import Statistic
from dboost.session.bites import part_sizes
from dboost.training.checkpoint import merged_fingerprint
from dboost.training.loop import BoostingLoop, Visit


def arcbite_visits(loop: BoostingLoop, arcbites: ArcBites) -> Iterator[Visit]:
    """Yield the visits to one bite after another, each to be completed before the next one; see `loop.all_rows`."""
    bites, checkpoint, stopping = _Bites(loop, arcbites), loop.checkpoint, loop.early_stopping
    visited: list[int] = []
    in_vain = 0  # visits since the last one that improved the model
    if checkpoint is not None:
        if checkpoint.visits is not None:
            visited, in_vain = checkpoint.visits["bites"], checkpoint.visits["in_vain"]
            loop.history = list(checkpoint.history)
        loop.code_sums = bites.code_sums()
    is_first = True
    for bite in order_of_visits(arcbites, bites.numbers, bites.seed, bites.losses, visited):
        began, n_before = time.perf_counter(), loop.n_done
        past = {"bites": visited, "in_vain": in_vain}
        visited = [*visited, bite]
        loop.visit_columns = {"bite": bite, "visit": len(visited)}
        bites.select(bites.parts_of(bite, len(visited)))
        if is_first:
            loop.trees.set_mark()
            gradients = loop.begin()
        else:
            gradients = loop.leaf_estimator.advance(loop.zero_values, loop.n_done)
            if checkpoint is not None:
                checkpoint.note_visit(loop.history, loop.n_done, loop.finished, past, loop.scores.now(gradients, loop.n_done))
        if len(visited) > 1:
            loop.restart_waiting(loop.n_done)
        is_first, n_left = False, _n_left(loop)
        visit = Visit(gradients, min(n_left, arcbites.trees_per_visit or n_left), began)
        yield visit
        is_ended = visit.is_ended
        if stopping is not None and arcbites.is_watched:
            loop.cut_back(stopping.best_iteration)
        elif stopping is not None:
            is_ended = is_ended or stopping.has_waited(loop.n_done)
        in_vain = 0 if loop.n_done > n_before else in_vain + 1
        if is_ended or in_vain == len(bites.numbers) or not _n_left(loop):
            break


def _n_left(loop: BoostingLoop) -> int:
    """Return the number of iterations that may still be grown."""
    return loop.parameters.max_iter - len(loop.history)


class _Bites:
    """The bites of a fit.

    Attributes
    ----------
    numbers : list of int
        Of the bites. A bite of one part has the number of the part, and is none if that has no rows; bites of several parts are
        composed anew in each cycle.
    """

    def __init__(self, loop: BoostingLoop, arcbites: ArcBites) -> None:
        self._loop, self._arcbites, self.seed = loop, arcbites, loop.parameters.random_state
        has_rows = loop.plan.parts_with_rows
        if has_rows is None:
            has_rows = part_sizes(self.seed, arcbites.n_parts, loop.backend.n_rows) > 0
        self._parts = np.flatnonzero(has_rows).tolist()
        self.numbers = self._parts if arcbites.parts == 1 else list(range(-(-len(self._parts) // arcbites.parts)))

    def parts_of(self, bite: int, visit: int) -> Sequence[int]:
        """Return the parts of a bite at a visit, counted from 1."""
        n, cycle = self._arcbites.parts, (visit - 1) // len(self.numbers)
        if n == 1:
            return [bite]
        mixed_up = sorted(self._parts, key=lambda part: derive_seed(self.seed, VISITS, cycle, self._arcbites.n_parts + part))
        return mixed_up[bite * n : (bite + 1) * n]

    def select(self, parts: Sequence[int]) -> None:
        """Train on these parts."""
        self._loop.backend.select(parts)
        self._loop.scores.total_weight = merged_float(self._loop.backend.statistics(weight_of))

    def code_sums(self) -> list[int]:
        """Return the sums of `checkpoint.merged_fingerprint` over all parts."""
        totals = []
        for part in self._parts:
            self.select([part])
            totals.append(merged_fingerprint(self._loop.backend, self._loop.plan.shard_spec))
        return [sum(of_all) % 2**64 for of_all in zip(*totals, strict=True)]

    def losses(self, bites: Sequence[int]) -> dict[int, float]:
        """Return the current mean loss of the rows of bites of one part."""
        loop, losses = self._loop, {}
        for bite in bites:
            self.select([bite])
            losses[bite] = loop.scores.loss_of(loop.leaf_estimator.advance(loop.zero_values), loop.n_done)
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
