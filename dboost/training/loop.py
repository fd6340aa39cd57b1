"""The boosting loop, and the ensemble that is assembled from its trees.

    advance:  add the last trees to the raw scores; compute gradients, Hessians and loss   (backend)
    evaluate: metrics of the evaluation sets, history, callbacks, early stopping           (here)
    grow:     histograms → splits → leaves → exact leaf sums                               (backend)
    values:   leaf values by the loss                                                      (`LeafEstimator`)

*Advance* finishes a tree and prepares the next one in one pass over the rows, so the training loss of an iteration is known
before the next one starts. With K outputs an iteration has K trees, grown from the gradients of the same pass. The loop is the
same for every loss, and wherever the rows are.

`assemble` makes an `Ensemble` of the trees grown so far, with a record of the data and parameters of each source.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from dboost.display import as_read
from dboost.errors import DataError
from dboost.losses.gradient_stats import GradientStats
from dboost.model.ensemble import Ensemble, Tree, rates_of, with_rates
from dboost.session.backend import Backend
from dboost.session.warm_start import WarmStart
from dboost.training.callbacks import Callback, Iteration, Record
from dboost.training.checkpoint import describe_data, merged_fingerprint
from dboost.training.damped_steps import damping_notes
from dboost.training.directions import Directions
from dboost.training.history import appended, metrics_of, of_model
from dboost.training.leaf_values import LeafEstimator
from dboost.training.learning_rates import Rates
from dboost.training.plan import FitPlan
from dboost.training.scores import Scores, diverged
from dboost.training.target_stats import in_units_of
from dboost.training.tasks import Tasks
from dboost.trees.finished_trees import finished_trees
from dboost.trees.fit_trees import GrownTree, TreesSoFar
from dboost.trees.tree_task import TreeTask


@dataclass(eq=False)
class Visit:
    """Iterations on the same rows: all of them, or with arcbites those of a bite."""

    gradients: GradientStats  # at its start
    most_iterations: int
    began: float | None = None  # when its first iteration began (`time.perf_counter`); None for when it grows the first tree
    n_grown: int = 0  # iterations so far
    has_waited: bool = False  # whether early stopping ends the fit, or the visit to an arcbite
    is_ended: bool = False  # whether a callback or the time limit ends the fit

    @property
    def goes_on(self) -> bool:
        return self.n_grown < self.most_iterations and not (self.has_waited or self.is_ended)


class BoostingLoop:
    """A running fit and its results.

    Parameters
    ----------
    plan : FitPlan
    backend : Backend
    callbacks : sequence of callable

    Attributes
    ----------
    n_before : int
        Number of iterations in the raw scores that the loop starts with.
    last_iteration : int
        The number of the last iteration to grow.
    trees : TreesSoFar
    n_complete : int
        Number of complete iterations of this fit.
    visit_columns : dict
        Columns that arcbites add to each record of the history.
    before : dict
        Losses and metrics before the first iteration.
    code_sums : list of int or None
        With arcbites: the sums over all bites by which a checkpoint recognizes the data.
    history : list of dict
        One record per iteration.
    """

    def __init__(self, plan: FitPlan, backend: Backend, trees: TreesSoFar, callbacks: Sequence[Callback] = ()) -> None:
        self.plan, self.backend, self.trees = plan, backend, trees
        self.binning, self.target_stats, self.unit = plan.binning, plan.stats, plan.stats.unit
        self.loss = plan.target.loss.in_unit(self.unit)
        self.parameters = in_units_of(plan.learning, plan.stats)
        self.warm_start, self.metrics, self.early_stopping = plan.warm_start, plan.metrics, plan.stopping
        self.callbacks, self.checkpoint, self.empty = callbacks, plan.request.checkpoint, plan.empty
        self.n_before = plan.warm_start.n_before
        model, start = plan.warm_start.model, plan.warm_start
        if self.early_stopping is not None and model is not None and not (start.is_new_source or start.resumes):
            self.early_stopping.resume(model)
        self.last_iteration = plan.warm_start.last_iteration(plan.learning.max_iter)
        self.n_complete = 0
        self.visit_columns: dict[str, int] = {}
        self.before: dict[str, float] = {}
        self.code_sums: list[int] | None = None
        self.history: list[dict[str, Any]] = []
        self._gradients: GradientStats | None = None  # after the last iteration of this process
        self._has_split = False
        self._ended_by: str | None = None
        if plan.max_weight is None:
            counted = backend.n_rows, self.target_stats.max_weight
        else:
            counted = int(self.target_stats.total_weight), 1.0
        directions = None
        if plan.shard_spec.width > 1:
            seed, of_forest = plan.learning.random_state, plan.parameters.is_forest
            of_classes, scales = self.loss.has_classes, plan.output_scales
            directions = Directions(self.loss.n_outputs, of_classes, seed, scales, of_forest=of_forest)
        self.leaf_estimator = LeafEstimator(backend, self.loss, self.parameters, *counted, directions, plan.stats.spreads)
        self.rates = Rates(
            plan.request.learning_rates,
            plan.learning.learning_rate,
            damping=plan.learning.learning_rate / plan.parameters.learning_rate,
            n_earlier=start.n_earlier if start.is_new_source else 0,
            has_checkpoint=self.checkpoint is not None,
        )
        self.scores = Scores(plan, backend)
        self.tasks = Tasks(plan, backend, self.leaf_estimator)
        self.zero_values = np.zeros((self.loss.n_outputs, 1))  # leaf values that change no score

    @property
    def n_done(self) -> int:
        """The number of the last complete iteration."""
        return self.n_before + self.n_complete

    def finished(self, first: int, last: int) -> tuple[Tree, ...]:
        """Return the finished trees of iterations first + 1, …, last, all of them of this fit, in units of the targets."""
        trees_of_fit = self.trees.of_iterations(first - self.n_before, last - self.n_before)
        trees = finished_trees(trees_of_fit, self.binning, self.parameters, self.loss)
        if self.unit == 1.0:
            return tuple(trees)
        # Of targets beyond 1e±135 gains are beyond floats: then they have the right ratios only.
        squared = min(max(self.unit, 2.0**-450), 2.0**450) ** 2
        return tuple(replace(tree, value=tree.value * self.unit, gain=tree.gain * squared) for tree in trees)

    def rates_until(self, last: int) -> list[float]:
        """Return the learning rates of the fit's iterations up to the last one, also of those before it was resumed."""
        n_earlier, k = self.warm_start.n_earlier, self.empty.trees_per_iteration
        rates = [self.rates.planned(iteration) for iteration in range(n_earlier + 1, self.n_before + 1)]
        rates += [tree.learning_rate for tree in self.trees.trees[::k]]
        return rates[: last - n_earlier]

    def _resume(self, current: dict[str, float]) -> dict[str, float]:
        """Return losses and metrics before the fit's first iteration; early stopping processes the earlier history.

        This is the history of the checkpoint, or of the fold that is continued.
        """
        checkpoint, stopping, fold = self.checkpoint, self.early_stopping, self.plan.request.fold
        before: dict[str, float] = current
        past: list[dict[str, Any]] = []
        if checkpoint is not None:
            before, past = checkpoint.begin(self._data(), self.empty, current), checkpoint.history
            self.rates.check(past, "the checkpoint belongs to another fit")
        elif fold is not None and fold.past:
            past = [*fold.past]
            self.rates.check(past, "start_from is the result of another cross-validation")
            for name, value in current.items():
                noted = past[-1].get(name)
                if value != noted and not (value != value and noted != noted):
                    raise DataError(
                        f"start_from is a result of other data: {name} was {noted!r} at its end and is {value!r} now"
                    )
        if stopping is not None:
            if self.warm_start.is_new_source and stopping.column in before:  # the best model may be the old one
                stopping.should_stop(self.warm_start.n_earlier, before)
            visit = 1
            for record in past:
                if record.get("visit", 1) > visit:
                    visit = record["visit"]
                    self.restart_waiting(record["iteration"] - 1)
                stopping.should_stop(record["iteration"], record)
        return before

    def _data(self) -> dict[str, Any]:
        """Return the identity of the data for the checkpoint."""
        sums = merged_fingerprint(self.backend, self.plan.shard_spec) if self.code_sums is None else self.code_sums
        arcbites = self.parameters.arcbites
        return describe_data(self.binning, self.loss, self.backend.n_rows, None if arcbites is None else arcbites.n_bites, sums)

    def restart_waiting(self, n_done: int) -> None:
        """Restart the waiting time of early stopping at a visit to an arcbite."""
        arcbites = self.parameters.arcbites
        if self.early_stopping is not None and arcbites is not None and arcbites.is_watched:
            self.early_stopping.restart_waiting(n_done)

    def cut_back(self, best_iteration: int) -> None:
        """Drop the trees after the best iteration, at the end of a visit to an arcbite."""
        best = max(best_iteration, self.n_before)
        if best < self.n_done:
            self.n_complete = best - self.n_before
            self.trees.cut_back(self.n_complete)

    def begin(self) -> GradientStats:
        """Compute the first gradients, and losses and metrics before the first iteration."""
        stats = self.leaf_estimator.advance(self.zero_values, self.n_done)
        self.before = self._resume(self.scores.now(stats, self.n_done))
        return stats

    def iterate(self, gradients: GradientStats, visit: Visit) -> GradientStats:
        """Run one iteration of a visit.

        gradients : statistics of those that trees are grown from; return those of the next iteration.
        """
        grows_from, iteration = time.perf_counter(), self.n_done + 1
        values, n_rows = self._grow(gradients, iteration)
        record: dict[str, Any] = {"iteration": iteration, **self.visit_columns}
        record |= {"seconds": 0.0, "rows_kept": n_rows, "bytes_read": 0}
        record |= self.scores.evaluate()
        gradients = self._gradients = self.leaf_estimator.advance(values, iteration)
        measured = self.backend.report()
        record |= self.scores.of_training(gradients, iteration)
        if self.rates.are_noted:
            record["learning_rate"] = self.rates.rate
        self._note(record | measured, visit, grows_from)
        return gradients

    def _grow(self, gradients: GradientStats, iteration: int) -> tuple[np.ndarray, int]:
        """Grow the trees of an iteration; return their leaf values, as `advance` needs them, and the mean of their rows."""
        self._use_rate(self.rates.begin(iteration))
        tasks = self.tasks.of(gradients, iteration)
        values, n_rows = [], []
        for task, tree in zip(tasks, self.backend.grow(tasks), strict=True):
            n_rows.append(tree.n_rows)
            values.append(self._set_values(task, tree, iteration))
        return in_rows(values), round(sum(n_rows) / len(n_rows))

    def _note(self, record: dict[str, Any], visit: Visit, grows_from: float) -> None:
        """Add a record to the history; tell early stopping, callbacks and the checkpoint. grows_from : start in seconds."""
        iteration, request, stopping = record["iteration"], self.plan.request, self.early_stopping
        ended = time.perf_counter()
        record["seconds"] = ended - (grows_from if visit.began is None else visit.began)
        self.history.append(record)
        self.n_complete += 1
        visit.n_grown, visit.began = visit.n_grown + 1, None
        scores = self.scores.shown(record) if request.progress.is_shown else {}
        request.progress.show(record, scores, ended - grows_from)
        visit.has_waited = stopping is not None and stopping.should_stop(iteration, record)
        if self.parameters.arcbites is not None and stopping is not None and stopping.best_iteration == iteration:
            self.trees.set_mark()
        self.scores.check_defined(iteration, record)
        model = partial(assemble, self)
        row = Record(record, self.plan.target.loss.name) if self.callbacks else record
        now = Iteration(iteration, self.last_iteration, row, model, self.rates.rate, self.scores.greater_is_better)
        for callback in self.callbacks:
            if callback(now):
                self._ended_by = "a callback"
        self.rates.follow(now, self.history)
        if request.time_limit is not None and time.perf_counter() - request.began + record["seconds"] > request.time_limit:
            self._ended_by = "time_limit"  # the next iteration is expected to take as long as this one
        if self.checkpoint is not None and self.parameters.arcbites is None:  # with arcbites it is written between visits
            self.checkpoint.note(self.history, self.n_done, self.finished)
        visit.is_ended = self._ended_by is not None

    @property
    def ended_by(self) -> str | None:
        """Why no further iteration follows; None with arcbites whose visits are over."""
        stopping = self.early_stopping
        if self._ended_by is None and stopping is not None and stopping.has_waited(self.n_done):
            column, _ = as_read(stopping.column, 0.0, self.plan.target.loss.name)
            return f"early stopping: {column} was best in iteration {stopping.best_iteration} of {self.n_done}"
        return self._ended_by or ("max_iter" if self.parameters.arcbites is None else None)

    def _use_rate(self, rate: float) -> None:
        if rate != self.parameters.learning_rate:
            self.parameters = replace(self.parameters, learning_rate=rate)
            self.leaf_estimator.use(self.parameters)

    def _set_values(self, task: TreeTask, tree: GrownTree, iteration: int) -> np.ndarray:
        """Compute the leaf values of a tree; return them."""
        sums = None
        if self.plan.shard_spec.width == 1:
            values = self.leaf_estimator.values(tree.leaf_sums, task.row_subset)
        else:
            sums = self.leaf_estimator.output_sums(tree.n_leaves, task.row_subset)
            values = self.leaf_estimator.values_of_outputs(sums, task.row_subset)
        if task.direction is not None:
            unit = self.parameters.learning_rate * task.scales[1] / task.scales[0]
            values = tree.within_bounds(values, unit * self.loss.leaves[task.output].score_unit)
        if not np.isfinite(values).all():  # gradients of the absolute error are finite at any score
            raise diverged(iteration)
        self._has_split |= tree.n_nodes > 1
        tree.complete(values, self.rates.rate, sums)
        return values

    @property
    def gradients_without_split(self) -> GradientStats | None:
        """The gradients after the last tree if this fit has grown trees, also before it was resumed, and none has a split."""
        model, first = self.warm_start.model, self.warm_start.n_earlier * self.empty.trees_per_iteration
        if self._has_split or (model is not None and any(tree.n_leaves > 1 for tree in model.trees[first:])):
            return None
        return self._gradients


def all_rows(loop: BoostingLoop) -> Iterator[Visit]:
    """Yield the only visit of a fit without arcbites; complete the checkpoint when it is over."""
    gradients = loop.begin()
    loop.backend.report()  # discard the times before the first iteration
    if loop.early_stopping is None or not loop.early_stopping.has_waited(loop.n_before):
        yield Visit(gradients, loop.last_iteration - loop.n_done)
    if loop.checkpoint is not None:
        loop.checkpoint.write(loop.history, loop.n_done, loop.finished)


def in_rows(values: list[np.ndarray]) -> np.ndarray:
    """Return the leaf values of the trees of an iteration as float64[n_outputs, n_leaves], shorter rows padded with 0."""
    if len(values) == 1:
        return values[0].reshape(-1, values[0].shape[-1])
    rows = np.zeros((len(values), max(map(len, values))))
    for row, of_tree in zip(rows, values, strict=True):
        row[: len(of_tree)] = of_tree
    return rows


def assemble(loop: BoostingLoop, *, whole: bool = False) -> Ensemble:
    """Return the ensemble with the trees grown so far.

    whole : include the trees of an incomplete iteration and, with early stopping, those after the best iteration.
    """
    empty, n_rows, warm_start = loop.empty, loop.plan.n_rows, loop.warm_start
    stopping, model = loop.early_stopping, warm_start.model
    before, k = loop.n_before, empty.trees_per_iteration
    best = None if stopping is None else max(stopping.best_iteration, warm_start.n_earlier)
    trees = () if model is None else model.trees
    n_kept = before + loop.trees.n_valued
    if not whole:
        # The last iteration may have been interrupted: then it is not in the history.
        n_kept = loop.n_done if best is None else best
        trees = trees[: n_kept * k]
    trees += loop.finished(before, max(n_kept, before))
    source = {
        "label": loop.plan.request.source_name,
        "rows": n_rows,
        "first_iteration": warm_start.n_earlier + 1,
        "last_iteration": len(trees) // k,
        "parameters": empty.parameters,
        "data_digest": _digest(empty, n_rows),
    }
    if "offset" in loop.backend.roles and len(empty.classes or ()) <= 2:  # of more classes it has no effect
        name = loop.plan.request.roles.get("offset")
        source["offset"] = name if isinstance(name, str) else True
    if warm_start.is_new_source:
        source |= damping_notes(loop.plan.learning, loop.target_stats.unexplained)
    source = with_rates(source, loop.rates_until(len(trees) // k))
    history, n_earlier = loop.history, before
    if loop.parameters.arcbites is not None:  # all of this fit's, also if it resumes
        history, n_earlier = of_model(history, loop.n_done if best is None else best), warm_start.n_earlier
    metrics = metrics_of(history)
    if model is None:
        return replace(empty, trees=trees, sources=(source,), metrics=metrics, best_iteration=best)
    sources = _with_source(model, source, warm_start)
    is_first = sources[-1]["first_iteration"] == 1
    return replace(
        empty,
        trees=trees,
        parameters=empty.parameters if is_first else model.parameters,
        sources=sources,
        metrics=appended(model.own_metrics, n_earlier, metrics, len(history)),
        best_iteration=best,
    )


def _with_source(model: Ensemble, source: dict[str, Any], warm_start: WarmStart) -> tuple[dict[str, Any], ...]:
    """Return the sources of a continued model; the last one is extended if data and parameters are unchanged."""
    if not model.sources or warm_start.is_new_source:
        return (*(earlier for earlier in model.sources if earlier["first_iteration"] <= warm_start.n_earlier), source)
    last = model.sources[-1]
    if warm_start.resumes or _without_length(last) == _without_length(source):
        rates = rates_of(last)[: source["first_iteration"] - last["first_iteration"]] + rates_of(source)
        source = with_rates(source | {"first_iteration": last["first_iteration"]}, rates)
        return (*model.sources[:-1], source)
    return (*model.sources, source)


def _without_length(source: dict[str, Any]) -> dict[str, Any]:
    """Return a source's record without the entries that depend on the number of iterations."""
    parameters = {name: value for name, value in source["parameters"].items() if name != "max_iter"}
    of_length = ("summary", "learning_rates", "first_iteration", "last_iteration")
    kept = {name: value for name, value in source.items() if name not in of_length}
    return kept | {"parameters": parameters}


def _digest(ensemble: Ensemble, n_rows: int) -> str:
    """Return the SHA-256 digest of the data's schema and size: names, kinds, categories, number of rows."""
    schema = [[f.name, None if f.categories is None else [repr(level) for level in f.categories]] for f in ensemble.features]
    return hashlib.sha256(json.dumps([schema, n_rows]).encode()).hexdigest()
