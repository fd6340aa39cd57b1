"""Which rows this turn: boosting on one arcbite after another (see `dboost.ArcBites`).

A visit to a bite goes like this. The engine turns to the bite's rows and lets their scores take in the trees that they have
not seen; gradients follow, with the bite's own scale, and trees are grown as always. The visit ends after so many trees, or
when the independent test set has not improved for so many. In the latter case the combined model is *cut back* to the best
iteration so far: the trees after it are dropped, from the model, from the scores of the test set, and from those of the bite,
which has kept the scores that it was entered with. So all visits build one model, and each tree in it has been found useful
by rows that nobody was trained on. A visit whose trees help nothing leaves no trace but in the history.

Iterations are numbered by their place in the model. After a cut their numbers are used again, so in the history the last
record of a number is the one of the model. `max_iter` counts all that are grown.

A checkpoint is written when a visit begins: then the model is one that nothing will be cut back from, and what comes follows
from it, the bites visited so far and the history. A fit that resumes does that visit again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from dboost.metrics.exact_sum import merged_float, total
from dboost.params import ADAPTIVE, CYCLIC, ArcBites
from dboost.session.protocol import BiteEngine
from dboost.shards.arcbite_rows import bite_sizes
from dboost.shards.shard import Shard
from dboost.training.callbacks import Progress
from dboost.training.checkpoint import merged_fingerprint
from dboost.training.loop import Assemble, BoostingLoop
from dboost.trees.tree_task import VISITS, GradientStats, derive_seed

if TYPE_CHECKING:
    pass


def run_arcbites(training: BoostingLoop, arcbites: ArcBites, assemble: Assemble, progress: Progress) -> None:
    """Boost on bite after bite, as `BoostingLoop.run` does on all rows. The training's engine is one of bites."""
    _ArcbiteLoop(training, arcbites).run(assemble, progress)


class _ArcbiteLoop:
    def __init__(self, training: BoostingLoop, arcbites: ArcBites) -> None:
        self._training = training
        self._arcbites = arcbites
        self._engine: BiteEngine = training.engine  # type: ignore[assignment]
        self._n_visits, self._has_begun = 0, False
        self._past: dict[str, Any] = {}
        training.valued = []

    def run(self, assemble: Assemble, progress: Progress) -> None:
        training, arcbites, stopping = self._training, self._arcbites, self._training.early_stopping
        seed = training.parameters.random_state
        self._parts = np.flatnonzero(bite_sizes(seed, arcbites.n_parts, training.engine.n_rows)).tolist()
        # Bites of several parts are what they are for one cycle; of one part, some may have no rows.
        bites = self._parts if arcbites.parts == 1 else list(range(-(-len(self._parts) // arcbites.parts)))
        resumed = None if training.checkpoint is None else training.checkpoint.visits
        visited: list[int] = []
        in_vain = 0  # visits since the last that improved the model
        if resumed is not None and training.checkpoint is not None:
            visited, in_vain, self._n_visits = resumed["bites"], resumed["in_vain"], len(resumed["bites"])
            training.history = list(training.checkpoint.history)
        if training.checkpoint is not None:
            training.code_sums = self._code_sums(self._parts)
        for bite in order_of_visits(arcbites, bites, seed, self._losses, visited):
            began, at_first = time.perf_counter(), training.n_done
            self._past = {"bites": visited, "in_vain": in_vain}
            visited = [*visited, bite]
            is_ended = self._boost(self._enter(bite), began, assemble, progress)
            if stopping is not None and arcbites.is_watched:
                self._cut_back()
            elif stopping is not None:
                is_ended = is_ended or stopping.has_waited(training.n_done)
            in_vain = 0 if training.n_done > at_first else in_vain + 1
            if is_ended or in_vain == len(bites) or not self._n_left:
                break

    @property
    def _n_left(self) -> int:
        """Iterations that may still be grown."""
        training = self._training
        return training.parameters.max_iter - len(training.history)

    def _enter(self, bite: int) -> GradientStats:
        """Turn to a bite; gradients and Hessians of its rows."""
        training = self._training
        self._n_visits += 1
        training.visit_columns = {"bite": bite, "visit": self._n_visits}
        self._turn_to(self._made_of(bite))
        if not self._has_begun:
            self._has_begun = True
            for held in training.eval_sets:
                held.save_state()
            extremes = training.begin()
        else:
            extremes = training.steps.advance(training.nothing)
            if training.checkpoint is not None:
                training.checkpoint.note_visit(training, self._past, training.state_of(extremes))
        if self._n_visits > 1:
            training.begin_visit(self._n_visits, training.n_done)
        return extremes

    def _made_of(self, bite: int) -> Sequence[int]:
        """The parts of a bite at the present visit."""
        n, arcbites = self._arcbites.parts, self._arcbites
        if n == 1:
            return [bite]
        n_bites = -(-len(self._parts) // n)
        cycle, seed = (self._n_visits - 1) // n_bites, self._training.parameters.random_state
        mixed_up = sorted(self._parts, key=lambda part: derive_seed(seed, VISITS, cycle, arcbites.n_parts + part))
        return mixed_up[bite * n : (bite + 1) * n]

    def _code_sums(self, parts: Sequence[int]) -> list[int]:
        """What `checkpoint.merged_fingerprint` says of all bites."""
        n_features, totals = len(self._training.binning.features), []
        for part in parts:
            self._turn_to([part])
            totals.append(merged_fingerprint(self._engine, n_features))
        return [sum(of_all) % 2**64 for of_all in zip(*totals, strict=True)]

    def _boost(self, extremes: GradientStats, began: float, assemble: Assemble, progress: Progress) -> bool:
        """Grow trees on the present bite until it is to be left. Returns whether a callback wants the fit to end.

        began : when the visit did; its first iteration takes all the time since then.
        """
        training, n_left = self._training, self._n_left
        for _ in range(min(n_left, self._arcbites.trees_per_visit or n_left)):
            extremes, has_waited, is_ended = training.iterate(extremes, assemble, progress, began)
            began = time.perf_counter()
            if training.early_stopping is not None and training.early_stopping.best_iteration == training.n_done:
                for held in training.eval_sets:
                    held.save_state()
            if has_waited or is_ended:
                return is_ended
        return False

    def _cut_back(self) -> None:
        """Drop the trees after the best iteration."""
        training = self._training
        assert training.early_stopping is not None and training.valued is not None
        best = max(training.early_stopping.best_iteration, training.n_before)
        if best < training.n_done:
            training.n_complete = best - training.n_before
            for trees in (training.snapshots, training.valued):
                del trees[training.n_complete * training.loss.n_outputs :]
            for held in training.eval_sets:
                held.rollback()

    def _turn_to(self, bite: Sequence[int]) -> None:
        training, k = self._training, self._training.loss.n_outputs
        assert training.valued is not None
        self._engine.visit(bite, [tuple(training.valued[i : i + k]) for i in range(0, len(training.valued), k)])
        training.total_weight = merged_float(self._engine.ask(weight_of))

    def _losses(self, bites: Sequence[int]) -> dict[int, float]:
        """The mean loss of each bite's rows at present."""
        training, losses = self._training, {}
        for bite in bites:
            self._turn_to([bite])
            losses[bite] = training.loss_of(training.steps.advance(training.nothing), training.n_done)
        return losses


def order_of_visits(
    arcbites: ArcBites,
    bites: Sequence[int],
    seed: int,
    losses: Callable[[Sequence[int]], dict[int, float]],
    visited: Sequence[int] = (),
) -> Iterator[int]:
    """The bites in the order of their visits.

    Parameters
    ----------
    arcbites : ArcBites
    bites : sequence of int
        Those that have rows.
    seed : int
    losses : callable
        Tells the mean loss of each of some bites at present; asked in adaptive order only.
    visited : sequence of int
        The first of them, which have been visited before; the others are yielded.
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
                then = next(known, None)
                if then is None:
                    present = losses([bite for bite in bites if bite != last or len(bites) == 1])
                    then = max(present, key=lambda bite: (present[bite], -bite))
                last = then
                yield last
        elif arcbites.order == CYCLIC:
            yield from bites
        else:
            yield from sorted(bites, key=lambda bite: derive_seed(seed, VISITS, cycle, bite))
        cycle += 1


def weight_of(shard: Shard, first: int, last: int) -> int | None:
    """The weight of rows first…last-1, as an exact total."""
    return total(np.ones(last - first) if shard.weight is None else shard.weight[first:last])
