"""The boosting loop, and the ensemble that is assembled from its trees.

    advance:  add the last trees to the raw scores; compute gradients, Hessians and loss   (engine)
    evaluate: metrics of the evaluation sets, history, callbacks, early stopping           (here)
    grow:     histograms → splits → leaves → exact leaf sums                               (engine)
    values:   leaf values by the loss                                                      (`LeafEstimator`)

*Advance* finishes a tree and prepares the next one in one pass over the rows, so the training loss of an iteration is known
before the next one starts. With K outputs an iteration has K trees, grown from the gradients of the same pass. The loop is the
same for every loss, and wherever the rows are.

`assemble` makes an `Ensemble` of the trees grown so far, with a record of the data and parameters of each source.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from dboost.errors import DataError, DBoostError, ParameterError, warn
from dboost.exact import EXACT_SUM, FINE, unit_for
from dboost.metrics.metric import LossMagnitude
from dboost.metrics.named import find_metrics
from dboost.model.ensemble import Ensemble, Tree
from dboost.session.evaluation import SessionEvalSets
from dboost.session.target import Target
from dboost.session.warm_start import WarmStart
from dboost.shards.apply_trees import TreeDelta
from dboost.shards.statistics import fine_bin_hessians
from dboost.shards.tree_means import metric_chunks
from dboost.training.callbacks import Callback, Iteration, Progress, checked_rate
from dboost.training.checkpoint import describe_data, merged_fingerprint
from dboost.training.directions import Directions
from dboost.training.engine import Engine
from dboost.training.finished_trees import TreeSnapshot, finished_trees
from dboost.training.history import OUT_OF_BAG, appended, metrics_of, of_model
from dboost.training.leaf_values import LeafEstimator, in_units_of
from dboost.training.plan import FitPlan, has_out_of_bag
from dboost.trees.bin_proposal import BinMerge
from dboost.trees.tree_task import (
    FEATURES,
    GradientStats,
    GrownTree,
    Sample,
    TreeRoutes,
    TreeTask,
    derive_seed,
    follow_sums,
    split_params_of,
    within_bounds,
)

#: Returns the ensemble with the trees grown so far.
Assemble = Callable[[], Ensemble]


class IterationEnd(NamedTuple):
    """What the loop knows after an iteration."""

    stats: GradientStats  # of the scores with the new trees
    has_waited: bool  # whether early stopping stops the fit, or the visit to an arcbite
    is_ended: bool  # whether a callback or the time limit ends the fit


class BoostingLoop:
    """A running fit and its results.

    Parameters
    ----------
    plan : FitPlan
    engine : Engine
    eval_sets : SessionEvalSets or None
    callbacks : sequence of callable

    Attributes
    ----------
    n_before : int
        Number of iterations in the raw scores that the loop starts with.
    n_iterations : int
        The number of the last iteration to grow.
    snapshots : list of TreeSnapshot
        Trees of this fit, without those of the model that it continues.
    n_complete : int
        Number of complete iterations of this fit.
    valued : list of TreeDelta or None
        The same trees with splits as bin codes; with arcbites only.
    visit_columns : dict
        Columns that arcbites add to each record of the history.
    before : dict
        Losses and metrics before the first iteration.
    code_sums : list of int or None
        With arcbites: the sums over all bites by which a checkpoint recognizes the data.
    history : list of dict
        One record per iteration.
    """

    def __init__(
        self, plan: FitPlan, engine: Engine, eval_sets: SessionEvalSets | None = None, callbacks: Sequence[Callback] = ()
    ) -> None:
        self.plan, self.engine, self.eval_sets = plan, engine, eval_sets
        self.binning, self.target_stats, self.unit = plan.binning, plan.stats, plan.stats.unit
        self.loss = plan.target.loss.in_unit(self.unit)
        self.parameters = in_units_of(plan.learning, plan.stats)
        self.warm_start, self.metrics, self.early_stopping = plan.warm_start, plan.metrics, plan.stopping
        self.callbacks, self.checkpoint, self.empty = callbacks, plan.request.checkpoint, plan.empty
        self.n_before = plan.warm_start.n_before
        self.n_iterations = plan.warm_start.last_iteration(plan.learning.max_iter)
        self.snapshots: list[TreeSnapshot] = []
        self.n_complete = 0
        self.valued: list[TreeDelta] | None = None
        self.visit_columns: dict[str, int] = {}
        self.before: dict[str, float] = {}
        self.code_sums: list[int] | None = None
        self.history: list[dict[str, Any]] = []
        self.stats: GradientStats | None = None
        self._has_split = False
        self._ended_by: str | None = None
        if plan.max_weight is None:
            counted = engine.n_rows, self.target_stats.max_weight
        else:
            counted = int(self.target_stats.total_weight), 1.0
        directions = None
        if plan.shard.width > 1:
            seed, of_forest = plan.learning.random_state, plan.parameters.is_forest
            of_classes, scales = self.loss.has_classes, plan.output_scales
            directions = Directions(self.loss.n_outputs, of_classes, seed, scales, of_forest=of_forest)
        self.leaf_estimator = LeafEstimator(
            engine.advance, engine.map_shards, self.loss, self.parameters, *counted, directions, plan.stats.spreads
        )
        self.total_weight = self.target_stats.total_weight
        self.rate = plan.learning.learning_rate
        self._is_set_by_callback = False
        self.zero_values = np.zeros((self.loss.n_outputs, 1))  # leaf values that change no score
        self.shown = [*self._named] or ["train_loss"]
        self._has_warned = plan.request.fold is not None  # `folds.FoldScores` warns once for all folds

    @property
    def _named(self) -> dict[str, tuple[str, str]]:
        """Evaluation set and metric of each column of metrics."""
        names = [] if self.eval_sets is None else self.eval_sets.names
        return {f"{name}_{metric.name}": (name, metric.name) for name in names for metric in self.metrics}

    @property
    def n_done(self) -> int:
        """The number of the last complete iteration."""
        return self.n_before + self.n_complete

    def trees(self, first: int, last: int) -> tuple[Tree, ...]:
        """Return the trees of iterations first + 1, …, last, all of them of this fit."""
        first_tree, last_tree = self.empty.trees_in((first - self.n_before, last - self.n_before))
        return self.finished(self.snapshots[first_tree:last_tree])

    def finished(self, snapshots: Sequence[TreeSnapshot]) -> tuple[Tree, ...]:
        """Return the finished trees, in units of the targets."""
        trees = finished_trees(snapshots, self.binning, self.parameters, self.loss)
        if self.unit == 1.0:
            return tuple(trees)
        # Of targets beyond 1e±135 gains are beyond floats: then they have the right ratios only.
        squared = min(max(self.unit, 2.0**-450), 2.0**450) ** 2
        return tuple(replace(tree, value=tree.value * self.unit, gain=tree.gain * squared) for tree in trees)

    def run(self, assemble: Assemble, progress: Progress) -> None:
        """Boost until the last iteration, or until early stopping or a callback stops the fit.

        assemble : returns the `Ensemble` grown so far, for callbacks.
        """
        stats = self.begin()
        self.engine.report()  # discard the times before the first iteration
        is_over = self.early_stopping is not None and self.early_stopping.has_waited(self.n_before)
        while not is_over and self.n_done < self.n_iterations:
            end = self.iterate(stats, assemble, progress)
            stats, is_over = end.stats, end.has_waited or end.is_ended
        if self.checkpoint is not None:
            self.checkpoint.write(self.history, self.n_done, self.trees)

    def _resume(self, current: dict[str, float]) -> dict[str, float]:
        """Return losses and metrics before the fit's first iteration; early stopping processes the earlier history.

        This is the history of the checkpoint, or of the fold that is continued.
        """
        checkpoint, stopping, fold = self.checkpoint, self.early_stopping, self.plan.request.fold
        before: dict[str, float] = current
        past: list[dict[str, Any]] = []
        if checkpoint is not None:
            before, past = checkpoint.begin(self._data(), self.empty, current), checkpoint.history
            self._check_rates(past, "the checkpoint belongs to another fit")
        elif fold is not None and fold.past:
            past = [*fold.past]
            self._check_rates(past, "start_from is the result of another cross-validation")
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
                    visit = self.begin_visit(record["visit"], record["iteration"] - 1)
                stopping.should_stop(record["iteration"], record)
        return before

    def _data(self) -> dict[str, Any]:
        """Return the identity of the data for the checkpoint."""
        sums = merged_fingerprint(self.engine, self.plan.shard) if self.code_sums is None else self.code_sums
        arcbites = self.parameters.arcbites
        return describe_data(self.binning, self.loss, self.engine.n_rows, None if arcbites is None else arcbites.n_bites, sums)

    def begin_visit(self, visit: int, n_done: int) -> int:
        """Restart the waiting time of early stopping at a visit to an arcbite; return the visit's number."""
        arcbites = self.parameters.arcbites
        if self.early_stopping is not None and arcbites is not None and arcbites.is_watched:
            self.early_stopping.restart_waiting(n_done)
        return visit

    def begin(self) -> GradientStats:
        """Compute the first gradients, and losses and metrics before the first iteration."""
        stats = self.leaf_estimator.add_leaf_values(self.zero_values, self.n_done)
        self.before = self._resume(self.state_of(stats))
        return stats

    def state_of(self, stats: GradientStats) -> dict[str, float]:
        """Return the metrics, and the loss of the current training rows."""
        return self._evaluate() | self._train_scores(stats, self.n_done)

    def iterate(self, stats: GradientStats, assemble: Assemble, progress: Progress, began: float | None = None) -> IterationEnd:
        """Run one iteration. began : start time in seconds (`time.perf_counter`), default now."""
        grows_from = time.perf_counter()
        began = grows_from if began is None else began
        iteration, n_iterations = self.n_done + 1, self.n_iterations
        n_sampled: list[int] = []
        self._set_rate(iteration)
        tasks = self._tasks(stats, iteration)
        values = []
        for task, grown in zip(tasks, self.engine.grow(tasks), strict=True):
            n_sampled.append(int(grown.n_rows[0]))
            values.append(self._add_tree(task, grown, iteration))
        record: dict[str, Any] = {
            "iteration": iteration,
            **self.visit_columns,
            "seconds": 0.0,
            "rows_kept": round(sum(n_sampled) / len(n_sampled)),
            "bytes_read": 0,
        }
        record |= self._evaluate()
        stats = self.stats = self.leaf_estimator.add_leaf_values(in_rows(values), iteration)
        measured = self.engine.report()
        record |= self._train_scores(stats, iteration)
        if self.plan.request.learning_rates is not None or self._is_set_by_callback:
            record["learning_rate"] = self.rate
        record |= measured
        ended = time.perf_counter()
        record["seconds"] = ended - began
        self.history.append(record)
        self.n_complete += 1
        progress.show(record, self.shown, ended - grows_from)
        has_waited = self.early_stopping is not None and self.early_stopping.should_stop(iteration, record)
        self._check_defined(iteration, record)
        now = Iteration(iteration, n_iterations, record, assemble, self.rate)
        for callback in self.callbacks:
            if callback(now):
                self._ended_by = "a callback"
        self._use_rate_of(now)
        limit = self.plan.request.time_limit
        if limit is not None and time.perf_counter() - self.plan.request.began + record["seconds"] > limit:
            self._ended_by = "time_limit"  # the next iteration is expected to take as long as this one
        if self.checkpoint is not None and self.valued is None:  # with arcbites it is written between visits
            self.checkpoint.note(self.history, self.n_done, self.trees)
        return IterationEnd(stats, has_waited, self._ended_by is not None)

    @property
    def ended_by(self) -> str | None:
        """Why no further iteration follows; None with arcbites whose visits are over."""
        stopping = self.early_stopping
        if self._ended_by is None and stopping is not None and stopping.has_waited(self.n_done):
            return f"early stopping: {stopping.column} was best in iteration {stopping.best_iteration} of {self.n_done}"
        return self._ended_by or ("max_iter" if self.parameters.arcbites is None else None)

    def _check_defined(self, iteration: int, record: dict[str, Any]) -> None:
        """Warn once if the metric of early stopping is undefined; raise a DataError if arcbites depend on it.

        The metric before the first iteration is not checked: a correlation, say, is undefined only as long as predictions are
        constant.
        """
        stopping, arcbites = self.early_stopping, self.parameters.arcbites
        if self._has_warned or stopping is None or math.isfinite(record[stopping.column]):
            return
        self._has_warned = True
        what = stopping.column
        if what in self._named:
            of, metric = self._named[what]
            what = f"metric {metric!r} of evaluation set {of!r}"
        what = f"{what} is {record[stopping.column]} in iteration {iteration}"
        if arcbites is not None and arcbites.is_watched and not stopping.has_begun:
            raise DataError(f"{what}, so it does not tell arcbites when to leave a bite: {_OTHER_METRIC}")
        if stopping.has_begun:
            warn(f"{what}, which early stopping counts as no improvement: {_OTHER_METRIC}")
        else:
            warn(f"{what}, and early stopping does not begin as long as it is undefined: {_OTHER_METRIC}")

    def _set_rate(self, iteration: int) -> None:
        """Set the learning rate of an iteration by the schedule, unless a callback has set it."""
        if self.plan.request.learning_rates is not None and not self._is_set_by_callback:
            self._use_rate(self._scheduled(iteration))

    def _scheduled(self, iteration: int) -> float:
        """Return the rate of an iteration by the schedule, damped as those of all trees.

        The schedule counts the iterations of a fit; a warm start on the same data belongs to the fit that it continues.
        """
        rates = self.plan.request.learning_rates
        assert rates is not None
        damping = self.plan.learning.learning_rate / self.plan.parameters.learning_rate
        first = self.warm_start.n_earlier if self.warm_start.is_new_source else 0
        return rates.at(iteration - 1 - first) * damping

    def _check_rates(self, past: Sequence[dict[str, Any]], refusal: str) -> None:
        """Raise a ParameterError if earlier iterations had other learning rates than the schedule."""
        has_schedule = self.plan.request.learning_rates is not None
        for record in past:
            if record.get("learning_rate") != (self._scheduled(record["iteration"]) if has_schedule else None):
                raise ParameterError(f"{refusal}: iteration {record['iteration']} had another learning_rate")

    def _use_rate_of(self, now: Iteration) -> None:
        """Use the learning rate that a callback may have set.

        Raises
        ------
        ParameterError
            If it is no positive number; with a checkpoint, from which a resumed fit could not tell it.
        """
        if now.learning_rate == self.rate:
            return
        if self.checkpoint is not None:
            raise ParameterError(
                "a callback has set learning_rate, which a checkpoint does not keep: give learning_rate=function"
            )
        if not self._is_set_by_callback:
            for record in self.history:  # without a schedule, those so far have the rate of the fit
                record.setdefault("learning_rate", self.rate)
        self._is_set_by_callback = True
        self._use_rate(checked_rate(now.learning_rate, f"learning_rate that a callback has set in iteration {now.iteration}"))

    def _use_rate(self, rate: float) -> None:
        if rate != self.rate:
            self.rate = rate
            self.parameters = replace(self.parameters, learning_rate=rate)
            self.leaf_estimator.use(self.parameters)

    def _add_tree(self, task: TreeTask, grown: GrownTree, iteration: int) -> np.ndarray:
        """Add one tree to the model and the evaluation sets; return its leaf values."""
        sums = None
        if self.plan.shard.width == 1:
            values = self.leaf_estimator.values(grown, task.row_subset)
        else:
            sums = self.leaf_estimator.output_sums(grown.n_leaves, task.row_subset)
            values = self.leaf_estimator.values_of_outputs(sums, task.row_subset)
        if task.direction is not None:
            unit = self.parameters.learning_rate * task.scales[1] / task.scales[0]
            within_bounds(values, grown, unit * self.loss.of_output(task.output).score_unit)
        if not np.isfinite(values).all():  # gradients of the absolute error are finite at any score
            raise _diverged(iteration)
        is_categorical = self.plan.shard.layout.is_categorical
        self._has_split |= grown.n_nodes > 1
        self.snapshots.append(TreeSnapshot.of(grown, is_categorical, values, task, self.rate, sums))
        if self.valued is not None:
            self.valued.append(TreeDelta(TreeRoutes.of(grown, is_categorical), values, task.output))
        if self.eval_sets is not None:
            self.eval_sets.add_tree(grown, values * self.unit, task.output)
        return values

    @property
    def lacks_splits(self) -> bool:
        """Whether this fit has grown trees, also before it was resumed, and none of them has a split."""
        if self._has_split or self.stats is None:
            return False
        model, first = self.warm_start.model, self.warm_start.n_earlier * self.empty.trees_per_iteration
        return model is None or all(tree.n_leaves == 1 for tree in model.trees[first:])

    def has_gradients(self, above: float) -> bool:
        """Whether a gradient is larger than a bound; the model fits the rows exactly if all are zero."""
        assert self.stats is not None
        return bool((self.stats.max_gradient > above).any())

    def next_tasks(self) -> list[TreeTask]:
        """Return the tasks of the trees that would be grown next."""
        assert self.stats is not None
        return self._tasks(self.stats, self.n_done + 1)

    def _tasks(self, stats: GradientStats, iteration: int) -> list[TreeTask]:
        tasks = [self._task(stats, iteration, output) for output in range(self.plan.shard.n_trees)]
        return tasks if self.parameters.split_proposal == "global" else [self._with_bins(task) for task in tasks]

    def _with_bins(self, task: TreeTask) -> TreeTask:
        """Propose bins for the tree, or request them for each node, depending on `split_proposal`."""
        proposal = self.parameters.split_proposal
        if proposal == "node":
            return replace(task, node_bins=self.parameters.max_bins)
        fine_layout, bin_layout = self.plan.shard.layout, self.plan.shard.bin_layout
        if proposal != "tree" or (fine_layout.n_bins == bin_layout.n_bins).all():
            return task
        masses = self.engine.map_shards(fine_bin_hessians, task.row_subset, float(task.scales[1]))
        return replace(task, bin_merge=BinMerge.propose(fine_bin_hessians.merged(masses), fine_layout, bin_layout))

    def _evaluate(self) -> dict[str, float]:
        return {} if self.eval_sets is None else self.eval_sets.evaluate(list(self.metrics))

    def _train_scores(self, stats: GradientStats, iteration: int) -> dict[str, float]:
        """Return the mean loss of the training rows; of a forest also metrics of their out-of-bag predictions."""
        if not self.parameters.is_forest or iteration == self.warm_start.n_of_other_rows:  # no tree of these rows
            return {"train_loss": self.loss_of(stats, iteration)}
        plan = self.plan
        metrics = [metric for metric in self.metrics if not (metric.wants_block or metric.wants_rows)]
        metrics += find_metrics(None, plan.target.loss)
        if plan.request.eval_metric is None:
            metrics = [*find_metrics(_score_of(plan.target), plan.target.loss), *metrics]
        by_name = {metric.name: metric for metric in metrics}
        size = LossMagnitude.of(self.target_stats.magnitudes, self.target_stats.max_weight, plan.n_rows)
        specs = [metric.on_workers for metric in by_name.values()]
        results = self.engine.map_shards(metric_chunks, specs, plan.target.loss, size, self.unit)
        found = {column: math.nan for metric in by_name.values() for column in metric.columns(OUT_OF_BAG)}
        if any(n for n, _ in results):
            for metric, *chunks in zip(by_name.values(), *(chunks for n, chunks in results if n), strict=True):
                found |= metric.values(OUT_OF_BAG, reduce(metric.merge, chunks))
        of_loss = {"train_loss": found[f"{OUT_OF_BAG}_{plan.target.loss.name}"]}
        return found | of_loss if has_out_of_bag(self.parameters) else of_loss

    def loss_of(self, stats: GradientStats, iteration: int) -> float:
        """Return the mean loss of the current training rows."""
        largest = stats.max_gradient, stats.max_hessian, 0.0 if stats.max_split is None else stats.max_split
        if not all(np.isfinite(of).all() for of in largest):
            if iteration == self.warm_start.n_earlier:
                raise DBoostError(
                    f"the {self.target_stats.too_large} are so large that gradients are infinite; scale them down"
                )
            raise _diverged(iteration)
        # Losses that overflow are clipped row by row; sums of many of them are not exact and would depend on threads.
        coarse = min(max(stats.coarse_loss, -EXACT_SUM), EXACT_SUM)
        loss = (coarse + stats.fine_loss / FINE) / self.target_stats.loss_unit / self.total_weight
        return loss * self.unit * self.unit / max(len(self.loss.parts), 1)

    def _task(self, stats: GradientStats, iteration: int, output: int) -> TreeTask:
        precision, parameters = self.plan.precision, self.parameters
        packing = precision.packing
        max_gradient, max_hessian = float(stats.max_gradient[output]), float(stats.max_hessian[output])
        if stats.max_split is not None:
            max_gradient, max_hessian = stats.max_split.tolist()
        if parameters.criterion == "gradient":
            max_hessian = self.target_stats.max_weight  # trees are grown with weights in place of Hessians
        scale_g = _scale(packing.max_gradient, max_gradient)
        scale_h = 1.0 if self.plan.shard.constant_hessian else _scale(packing.max_hessian, max_hessian)
        n = self.engine.n_rows if self.plan.max_weight is None else int(self.target_stats.total_weight)
        exact_h = 1.0 if self.plan.shard.constant_hessian else unit_for(max_hessian, n)
        scales = np.array([scale_g, scale_h, unit_for(max_gradient, n), exact_h])
        loss = self.loss.of_output(output)
        direction = self.plan.direction if loss.is_monotonic else None
        max_step = parameters.max_delta_step if stats.max_split is None and follow_sums(parameters, loss) else None
        split_params = split_params_of(
            parameters,
            precision.count_channel,
            scales,
            None if max_step is None else max_step / loss.step_factor,
            is_bounded=direction is not None,
            noise=0.0 if stats.noise is None else stats.noise[output].ratio,
        )
        allowed = np.ones(len(self.binning.features), np.uint8)
        sample = Sample.of(parameters.subsample, parameters.random_state, iteration)
        constraints = self.plan.constraints
        if constraints is not None:
            constraints = constraints._replace(
                seed=np.array([derive_seed(parameters.random_state, FEATURES, iteration, output)], np.uint64)
            )
        least_influence = self.leaf_estimator.least_influence(output)
        return TreeTask(
            split_params,
            packing,
            self.plan.policy,
            scales,
            allowed,
            output,
            sample,
            least_influence,
            constraints,
            direction,
        )


def _score_of(target: Target) -> tuple[str, ...]:
    """Return the score of out-of-bag predictions beside their loss; none if some targets are numbers and some labels."""
    if any(part.is_classification for part in target.loss.parts) and not target.is_classification:
        return ()
    return ("accuracy",) if target.is_classification else ("r2",)


_OTHER_METRIC = "give another metric, or an evaluation set for which it is defined (with rows of every class, say)"


def _diverged(iteration: int) -> DBoostError:
    return DBoostError(
        f"training diverged in iteration {iteration}: scores are no longer finite; a smaller learning_rate, more "
        "l2_regularization or a max_delta_step will help"
    )


def in_rows(values: list[np.ndarray]) -> np.ndarray:
    """Return the leaf values of the trees of an iteration as float64[n_outputs, n_leaves], shorter rows padded with 0."""
    if len(values) == 1:
        return np.atleast_2d(values[0])
    rows = np.zeros((len(values), max(map(len, values))))
    for row, of_tree in zip(rows, values, strict=True):
        row[: len(of_tree)] = of_tree
    return rows


def _scale(largest: int, maximum: float) -> float:
    """Return the factor that maps `maximum` to the largest quantized value, rounded to float32."""
    return float(np.float32(largest / maximum)) if maximum > 1e-30 else 1.0


def assemble(loop: BoostingLoop, *, whole: bool = False) -> Ensemble:
    """Return the ensemble with the trees grown so far.

    whole : include the trees of an incomplete iteration and, with early stopping, those after the best iteration.
    """
    empty, n_rows, warm_start = loop.empty, loop.plan.n_rows, loop.warm_start
    stopping, model = loop.early_stopping, warm_start.model
    before, k = loop.n_before, empty.trees_per_iteration
    best = None if stopping is None else max(stopping.best_iteration, warm_start.n_earlier)
    snapshots = loop.snapshots
    trees = () if model is None else model.trees
    if not whole:
        # The last iteration may have been interrupted: then it is not in the history.
        n_kept = loop.n_done if best is None else best
        snapshots, trees = snapshots[: max(n_kept - before, 0) * k], trees[: n_kept * k]
    trees += loop.finished(snapshots)
    source = {
        "label": loop.plan.request.source_name,
        "rows": n_rows,
        "first_iteration": warm_start.n_earlier + 1,
        "last_iteration": len(trees) // k,
        "parameters": empty.parameters,
        "data_digest": _digest(empty, n_rows),
    }
    if warm_start.is_new_source:
        source |= loop.plan.damping_notes
    history, n_earlier = loop.history, before
    if loop.parameters.arcbites is not None:  # all of this fit's, also if it resumes
        history, n_earlier = of_model(history, loop.n_done if best is None else best), warm_start.n_earlier
    metrics = metrics_of(history)
    if model is None:
        return replace(empty, trees=trees, sources=(source,), metrics=metrics, best_iteration=best)
    sources = _with_source(model, source, warm_start)
    is_first = source["first_iteration"] == 1
    return replace(
        empty,
        trees=trees,
        parameters=empty.parameters if is_first else model.parameters,
        sources=sources,
        metrics=appended(model.metrics, n_earlier, metrics, len(history)),
        best_iteration=best,
    )


def _with_source(model: Ensemble, source: dict[str, Any], warm_start: WarmStart) -> tuple[dict[str, Any], ...]:
    """Return the sources of a continued model; the last one is extended if data and parameters are unchanged."""
    if not model.sources or warm_start.is_new_source:
        return (*(one for one in model.sources if one["first_iteration"] <= warm_start.n_earlier), source)
    last = model.sources[-1]
    if warm_start.resumes or _without_length(last) == _without_length(source):
        source["first_iteration"] = last["first_iteration"]
        return (*model.sources[:-1], source)
    return (*model.sources, source)


def _without_length(source: dict[str, Any]) -> dict[str, Any]:
    """Return a source's record without the entries that depend on the number of iterations."""
    parameters = {name: value for name, value in source["parameters"].items() if name != "max_iter"}
    kept = {name: value for name, value in source.items() if name != "summary" and not name.endswith("_iteration")}
    return kept | {"parameters": parameters}


def _digest(ensemble: Ensemble, n_rows: int) -> str:
    """Return the SHA-256 digest of the data's schema and size: names, kinds, categories, number of rows."""
    schema = [[f.name, None if f.categories is None else [repr(level) for level in f.categories]] for f in ensemble.features]
    return hashlib.sha256(json.dumps([schema, n_rows]).encode()).hexdigest()
