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

From rows to arcbites: how many, where they rest, and an engine that trains on one after the other.

Where the user does not say how many bites there are to be, a memory limit does: as many as it takes for one to fit, with
everything that training on it needs, and with five standard deviations to spare, for bites are drawn at random. This number
shapes the model, so it must not depend on the threads that happen to be there; it is part of the model's parameters.

Bites rest in memory where all rows fit, else in files, to which the binned data go block by block, once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from dboost.errors import ParameterError
from dboost.metrics.exact_sum import merged_float, total
from dboost.params import ADAPTIVE, CYCLIC, DEFAULT_BITES, ArcBites
from dboost.session.arcbites_engine import ArcbitesEngine
from dboost.session.memory_budget import Budget, format_bytes, histogram_bytes, resident_bytes
from dboost.session.protocol import BiteEngine
from dboost.shards.arcbite_rows import Bite, BiteBuild, BiteFiles, FileBite, InMemoryBite, bite_sizes, bites_of
from dboost.shards.block_store import ShardSpec
from dboost.shards.encode import codes_of
from dboost.shards.shard import BinnedColumns, Shard, empty_binned_columns
from dboost.storage.spool import PrivateDirectory
from dboost.training.callbacks import Progress
from dboost.training.checkpoint import merged_fingerprint
from dboost.training.loop import Assemble, BoostingLoop
from dboost.training.prepared_dataset import PreparedTargets, shard_spec_of
from dboost.trees.tree_task import VISITS, GradientStats, derive_seed

if TYPE_CHECKING:
    from dboost.training.plan import FitPlan


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
        training.place = {"bite": bite, "visit": self._n_visits}
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


#: The number of bites allows for the histograms of so many threads, however many there are.
_THREADS = 4


def set_bite_count(prepared: FitPlan, budget: Budget | None, most_rows: int | None = None) -> None:
    """Give the parameters of a fit with arcbites a number of bites.

    On a cluster it is the number of one process with the same limit, though the workers together could hold larger bites: so
    the model does not depend on how many they are, and each of them could go on alone. Who chooses the number may have more.

    most_rows : of the worker that has most; default: there is but this process.

    Raises
    ------
    ParameterError
        When there are more bites than rows, they do not fit the limit, or it is too small for any number of them.
    """
    arcbites, n_rows = prepared.parameters.arcbites, prepared.n_rows
    if arcbites is None:
        return
    n_bites = arcbites.n_bites
    if n_bites is None:
        n_bites = min(DEFAULT_BITES, n_rows) if budget is None else _bites_within(budget, shard_spec_of(prepared), n_rows)
    elif budget is not None:
        _check_fits(budget, shard_spec_of(prepared), n_rows if most_rows is None else most_rows, n_bites)
    if n_bites * arcbites.parts > n_rows:
        of = "" if arcbites.parts == 1 else f" of {arcbites.parts} parts each"
        raise ParameterError(f"arcbites: n_bites={n_bites}{of} is more than the {n_rows} rows that there are to train on")
    settled = replace(arcbites, n_bites=n_bites)
    prepared.parameters = replace(prepared.parameters, arcbites=settled)
    prepared.learning = replace(prepared.learning, arcbites=settled)


def _bites_within(budget: Budget, traits: ShardSpec, n_rows: int) -> int:
    room = _bytes_for_bite(budget, traits)
    n_bites = 1
    while bite_bytes(traits, n_rows, n_bites) > room:
        if n_bites >= n_rows // 2:
            raise ParameterError(
                f"memory_limit of {format_bytes(budget.limit)} is too small for trees of {traits.max_leaves} leaves over "
                f"{len(traits.layout.n_bins)} features, however small the bites"
            )
        n_bites += max(n_bites // 50, 1)
    return n_bites


def _bytes_for_bite(budget: Budget, traits: ShardSpec) -> int:
    """What a bite may take."""
    return budget.limit - budget.retained - histogram_bytes(traits, _THREADS)


def _check_fits(budget: Budget, traits: ShardSpec, n_rows: int, n_bites: int) -> None:
    """Refuse bites that the user has made too large."""
    wanted, room = bite_bytes(traits, n_rows, n_bites), _bytes_for_bite(budget, traits)
    if wanted > room:
        raise ParameterError(
            f"arcbites: with n_bites={n_bites} the {n_rows} rows of one place make bites that take {format_bytes(wanted)}, but "
            f"memory_limit of {format_bytes(budget.limit)} leaves {format_bytes(max(room, 0))} for one: let there be "
            f"{_bites_within(budget, traits, n_rows)} of them, or leave n_bites out"
        )


def bite_bytes(traits: ShardSpec, n_rows: int, n_bites: int) -> int:
    """What the largest of so many bites of so many rows takes while it is trained on."""
    mean = n_rows / n_bites
    largest = min(n_rows, math.ceil(mean + 5 * math.sqrt(mean)))
    return resident_bytes(traits, largest) + 8 * largest


def bites_in_memory(
    prepared: FitPlan, codes: BinnedColumns, y: np.ndarray, weight: np.ndarray | None, raw: np.ndarray, n_threads: int
) -> ArcbitesEngine:
    """Divide rows in memory."""
    n_bites, seed = _division(prepared)
    rows = InMemoryBite(codes, y, weight, raw, np.arange(len(y)))
    return _arcbites_engine(prepared, [bite for _, bite in rows.divided(seed, n_bites)], n_threads, int, None)


def bites_in_files(
    answers: PreparedTargets, prepared: FitPlan, folder: PrivateDirectory, n_threads: int, budget: Budget
) -> ArcbitesEngine:
    """Divide binned data, block by block, into files of their own, which go with the engine.

    Raises
    ------
    StorageError
        When the files cannot be written.
    """
    n_bites, seed = _division(prepared)
    data, layout = answers.data, prepared.layout
    sizes = bite_sizes(seed, n_bites, prepared.n_rows)
    n_outputs, filling = len(prepared.baseline), budget.limit // 4
    files = BiteFiles(folder.path, layout, n_outputs, prepared.weighted, sizes, filling_bytes=filling)

    def pieces() -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        buffer, first = data.codes.buffer(), 0
        for block, rows in enumerate(answers.starting(prepared)):
            n = len(rows["target"])
            data.codes.read(block, buffer)
            views, codes = data.codes.views(buffer, block), empty_binned_columns(layout, n)
            codes_of(views["tiles"], views.get("wide"), layout, codes)
            numbers = np.arange(first, first + n)
            fields = rows | {"narrow": codes.narrow, "numbers": numbers} | ({"wide": codes.wide} if len(codes.wide) else {})
            yield bites_of(seed, n_bites, numbers), fields
            first += n

    files.write(pieces())

    def release() -> None:
        files.close()
        folder.close()

    return _arcbites_engine(
        prepared, [FileBite(files, bite) for bite in range(n_bites)], n_threads, lambda: files.bytes_read, release
    )


def _division(prepared: FitPlan) -> tuple[int, int]:
    """How many parts of bites, and the seed by which rows are divided among them."""
    arcbites = prepared.parameters.arcbites
    assert arcbites is not None
    return arcbites.n_parts, prepared.parameters.random_state


def _arcbites_engine(
    prepared: FitPlan,
    bites: Sequence[Bite],
    n_threads: int,
    bytes_read: Callable[[], int],
    release: Callable[[], object] | None,
) -> ArcbitesEngine:
    arcbites = prepared.parameters.arcbites
    assert arcbites is not None
    return ArcbitesEngine(
        bites,
        BiteBuild(
            prepared.layout,
            prepared.bin_layout,
            constant_hessian=prepared.constant_hessian,
            max_leaves=prepared.rule.max_leaves,
            integer_weights=prepared.max_weight is not None,
            weights_as_hessian=prepared.weights_as_hessian,
        ),
        prepared.target.loss.terms(),
        rule=prepared.rule,
        n_channels=prepared.n_channels,
        loss_unit=prepared.start.loss_unit,
        n_threads=n_threads,
        n_together=arcbites.parts,
        bytes_read=bytes_read,
        release=release,
    )
