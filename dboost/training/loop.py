"""The boosting loop.

    advance:  scores += last tree;  gradients, Hessians, loss            (engine)
    judge:    metrics on held-out rows, history, callbacks, stop?        (here)
    grow:     histograms → splits → leaves → exact leaf sums             (engine)
    values:   what the loss says leaves are worth                        (`steps`)

One pass over the rows both finishes a tree and prepares the next, so the loss after a tree is known when the next would
begin. With K outputs an iteration has K trees, all grown from the gradients of the same pass. The trainer knows neither
where the rows are nor which loss it is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from dboost.errors import DBoostError
from dboost.metrics.exact_sum import FINE, unit_for
from dboost.model.ensemble import Ensemble, Tree
from dboost.session.evaluation import EvalSet
from dboost.session.protocol import Engine
from dboost.shards.apply_trees import TreeDelta
from dboost.shards.statistics import fine_bin_hessians
from dboost.training.callbacks import Callback, Iteration, Progress
from dboost.training.leaf_values import LeafEstimator
from dboost.training.plan import precision_of
from dboost.trees.bin_proposal import BinMerge
from dboost.trees.finished_tree import TreeSnapshot, follow_sums, within_bounds
from dboost.trees.nodes import split_params_of
from dboost.trees.tree_task import FEATURES, GradientStats, Sample, TreeTask, derive_seed

if TYPE_CHECKING:
    from dboost.training.plan import FitPlan


#: Returns the ensemble so far.
Assemble = Callable[[], Ensemble]


class BoostingLoop:
    """A fit under way, and its results so far.

    Parameters
    ----------
    plan : FitPlan
    engine : Engine
    eval_sets : sequence of EvalSet
    callbacks : sequence of callable

    Attributes
    ----------
    snapshots : list of TreeSnapshot
        Trees grown so far, without those of the model that the fit started from.
    n_complete : int
        Iterations whose trees these are, without the current one.
    valued : list of TreeDelta or None
        The same trees in terms of bin codes, for arcbites.
    visit_columns : dict
        Columns of every record of the history that arcbites add.
    before : dict
        Losses and metrics before the first iteration.
    code_sums : list of int or None
        With arcbites: the sums over all bites by which a checkpoint recognizes the data.
    history : list of dict
        One record per iteration.
    """

    def __init__(
        self, plan: FitPlan, engine: Engine, eval_sets: Sequence[EvalSet] = (), callbacks: Sequence[Callback] = ()
    ) -> None:
        self.plan, self.engine, self.eval_sets = plan, engine, eval_sets
        self.parameters, self.loss, self.binning, self.start = plan.learning, plan.target.loss, plan.binning, plan.stats
        self.warm_start, self.metrics, self.early_stopping = plan.warm_start, plan.metrics, plan.stopping
        self.callbacks, self.checkpoint, self.empty = callbacks, plan.request.checkpoint, plan.empty
        self.snapshots: list[TreeSnapshot] = []
        self.n_complete = 0
        self.valued: list[TreeDelta] | None = None
        self.visit_columns: dict[str, int] = {}
        self.before: dict[str, float] = {}
        self.code_sums: list[int] | None = None
        self.history: list[dict[str, Any]] = []
        if plan.max_weight is None:
            counted = engine.n_rows, self.start.max_weight
        else:
            counted = int(self.start.total_weight), 1.0
        self.steps = LeafEstimator(engine, self.loss, self.parameters, *counted)
        self.precision = precision_of(self.parameters, plan.shard.constant_hessian, plan.max_weight or 1)
        self.total_weight = self.start.total_weight
        self.nothing = np.zeros((self.loss.n_outputs, 1))  # leaf values that change no score
        self.shown = [f"{held.name}_{metric.name}" for held in eval_sets for metric in self.metrics] or ["train_loss"]

    @property
    def n_before(self) -> int:
        """Iterations that the scores to start from hold already; the first one here is the next."""
        return self.warm_start.n_before

    @property
    def n_done(self) -> int:
        """The number of the last complete iteration."""
        return self.n_before + self.n_complete

    @property
    def n_iterations(self) -> int:
        """The number of the last iteration that is wanted."""
        return self.warm_start.last_iteration(self.parameters.max_iter)

    def trees(self, first: int, last: int) -> tuple[Tree, ...]:
        """The trees of iterations first + 1, …, last, which were grown here."""
        k, before = self.loss.n_outputs, self.n_before
        some = self.snapshots[(first - before) * k : (last - before) * k]
        return tuple(snapshots.to_tree(self.binning, self.parameters, self.loss) for snapshots in some)

    def run(self, assemble: Assemble, progress: Progress) -> None:
        """Boost until the last iteration, or until early stopping or a callback ends it.

        assemble : returns the `Ensemble` so far (for callbacks).
        """
        extremes = self.begin()
        self.engine.report()  # what came before the first iteration belongs to none
        is_over = self.early_stopping is not None and self.early_stopping.has_waited(self.n_before)
        while not is_over and self.n_done < self.n_iterations:
            extremes, has_waited, is_ended = self.iterate(extremes, assemble, progress)
            is_over = has_waited or is_ended
        if self.checkpoint is not None:
            self.checkpoint.write(self)

    def _begin(self, now: dict[str, float]) -> dict[str, float]:
        """What was measured before the fit's first iteration, which may be long ago; early stopping is told of all since."""
        checkpoint, stopping = self.checkpoint, self.early_stopping
        before: dict[str, float] = now
        past: list[dict[str, Any]] = []
        if checkpoint is not None:
            before, past = checkpoint.begin(self, self.empty, now), checkpoint.history
        if stopping is not None:
            if self.warm_start.is_new_source:  # to add nothing may be best
                stopping.should_stop(self.warm_start.n_earlier, before)
            visit = 1
            for record in past:
                if record.get("visit", 1) > visit:
                    visit = self.begin_visit(record["visit"], record["iteration"] - 1)
                stopping.should_stop(record["iteration"], record)
        return before

    def begin_visit(self, visit: int, n_done: int) -> int:
        """With arcbites: let early stopping wait anew from the beginning of another visit, whose number is returned."""
        arcbites = self.parameters.arcbites
        if self.early_stopping is not None and arcbites is not None and arcbites.is_watched:
            self.early_stopping.begin_anew(n_done)
        return visit

    def begin(self) -> GradientStats:
        """Work out the first gradients, and where losses and metrics start."""
        extremes = self.steps.advance(self.nothing)
        self.before = self._begin(self.state_of(extremes))
        return extremes

    def state_of(self, extremes: GradientStats) -> dict[str, float]:
        """Metrics, and the loss of the rows that are trained on at present."""
        return self._judge() | {"train_loss": self.loss_of(extremes, self.n_done)}

    def iterate(
        self, extremes: GradientStats, assemble: Assemble, progress: Progress, began: float | None = None
    ) -> tuple[GradientStats, bool, bool]:
        """One iteration, which began some time ago or begins now. Returns what the rows tell afterwards, whether early
        stopping has waited, and whether a callback wants the fit to end."""
        began = time.perf_counter() if began is None else began
        iteration, n_iterations = self.n_done + 1, self.n_iterations
        kept: list[int] = []
        values = [self._add_tree(extremes, iteration, output, kept) for output in range(self.loss.n_outputs)]
        record: dict[str, Any] = {
            "iteration": iteration,
            **self.visit_columns,
            "seconds": 0.0,
            "rows_kept": round(sum(kept) / len(kept)),
            "bytes_read": 0,
        }
        record |= self._judge()
        extremes = self.steps.advance(in_rows(values))
        record["train_loss"] = self.loss_of(extremes, iteration)
        record |= self.engine.report()
        record["seconds"] = time.perf_counter() - began
        self.history.append(record)
        self.n_complete += 1
        progress.show(record, self.shown)
        has_waited = self.early_stopping is not None and self.early_stopping.should_stop(iteration, record)
        is_ended = False
        for callback in self.callbacks:
            is_ended = bool(callback(Iteration(iteration, n_iterations, record, assemble))) or is_ended
        if self.checkpoint is not None and self.valued is None:  # that of arcbites is written between visits
            self.checkpoint.note(self)
        return extremes, has_waited, is_ended

    def _add_tree(self, extremes: GradientStats, iteration: int, output: int, kept: list[int]) -> np.ndarray:
        """Grow one output's next tree; returns its leaf values, and adds to `kept` how many rows took part."""
        task = self._with_bins(self._task(extremes, iteration, output))
        grown = self.engine.grow(task)
        kept.append(int(grown.n_rows[0]))
        values = self.steps.values(grown, task.row_subset)
        if self.plan.direction is not None:
            within_bounds(values, grown, self.parameters.learning_rate * task.scales[1] / task.scales[0])
        if not np.isfinite(values).all():  # gradients of the absolute error stay finite wherever the scores are
            raise _diverged(iteration)
        self.snapshots.append(TreeSnapshot.of(grown, values, _gain_unit(task)))
        if self.valued is not None:
            self.valued.append(TreeDelta(grown.copy(), values, output))
        for held in self.eval_sets:
            held.add(grown, values, output)
        return values

    def _with_bins(self, task: TreeTask) -> TreeTask:
        """Let the tree, or each of its nodes, have bins of its own, if that is wanted; see `trees.bin_proposal`."""
        proposal = self.parameters.split_proposal
        if proposal == "node":
            return replace(task, node_bins=self.parameters.max_bins)
        fine_bins, bins = self.plan.shard.layout, self.plan.shard.bin_layout
        if proposal != "tree" or (fine_bins.n_bins == bins.n_bins).all():
            return task
        mass = reduce(np.add, self.engine.ask(fine_bin_hessians, task.row_subset, float(task.scales[1])))
        return replace(task, bin_merge=BinMerge.propose(mass, fine_bins, bins))

    def _judge(self) -> dict[str, float]:
        metrics = list(self.metrics)
        return {column: value for held in self.eval_sets for column, value in held.judge(metrics).items()}

    def loss_of(self, extremes: GradientStats, iteration: int) -> float:
        """The mean loss of the rows that are trained on at present."""
        if not (np.isfinite(extremes.max_gradient).all() and np.isfinite(extremes.max_hessian).all()):
            if iteration == self.warm_start.n_earlier:
                raise DBoostError(f"the {self.start.too_large} are so large that gradients are infinite; scale them down")
            raise _diverged(iteration)
        return (extremes.coarse_loss + extremes.fine_loss / FINE) / self.start.loss_unit / self.total_weight

    def _task(self, extremes: GradientStats, iteration: int, output: int) -> TreeTask:
        precision, parameters = self.precision, self.parameters
        packing = precision.packing
        max_gradient, max_hessian = float(extremes.max_gradient[output]), float(extremes.max_hessian[output])
        if parameters.criterion == "gradient":
            max_hessian = self.start.max_weight  # trees are grown by weights
        scale_g = _scale(packing.max_gradient, max_gradient)
        scale_h = 1.0 if self.plan.shard.constant_hessian else _scale(packing.max_hessian, max_hessian)
        n = self.engine.n_rows if self.plan.max_weight is None else int(self.start.total_weight)
        exact_h = 1.0 if self.plan.shard.constant_hessian else unit_for(max_hessian, n)
        scales = np.array([scale_g, scale_h, unit_for(max_gradient, n), exact_h])
        max_step = parameters.max_delta_step if follow_sums(parameters, self.loss) else None
        limits = split_params_of(
            l2=parameters.l2_regularization,
            l1=parameters.l1_regularization,
            max_step=math.inf if max_step is None else max_step / self.loss.step_factor,
            min_hessian=parameters.min_hessian,
            min_rows=parameters.min_samples_leaf,
            count_channel=precision.count_channel,
            least_gain=parameters.leaf_penalty + parameters.min_gain,
            smoothing=parameters.categorical_smoothing,
            category_l2=parameters.categorical_l2,
            max_categories=parameters.max_category_group,
            min_category_hessian=parameters.min_category_hessian,
            is_bounded=self.plan.direction is not None,
            gradient_unit=1.0 / scale_g,
            hessian_unit=1.0 / scale_h,
        )
        allowed = np.ones(len(self.binning.features), np.uint8)
        sample = Sample.of(parameters.subsample, parameters.random_state, iteration)
        choice = self.plan.constraints
        if choice is not None:
            choice = choice._replace(
                seed=np.array([derive_seed(parameters.random_state, FEATURES, iteration, output)], np.uint64)
            )
        least = self.steps.least_influence(output)
        return TreeTask(limits, packing, self.plan.policy, scales, allowed, output, sample, least, choice, self.plan.direction)


def _diverged(iteration: int) -> DBoostError:
    return DBoostError(
        f"training diverged in iteration {iteration}: scores are no longer finite; a smaller learning_rate, more "
        "l2_regularization or a max_delta_step will help"
    )


def in_rows(values: list[np.ndarray]) -> np.ndarray:
    """Leaf values of one tree per output as float64[n_outputs, n_leaves], shorter rows filled up."""
    if len(values) == 1:
        return values[0][None]
    rows = np.zeros((len(values), max(map(len, values))))
    for row, of_tree in zip(rows, values, strict=True):
        row[: len(of_tree)] = of_tree
    return rows


def _scale(largest: int, maximum: float) -> float:
    """What brings `maximum` to the largest quantised value, as a float32 number."""
    return float(np.float32(largest / maximum)) if maximum > 1e-30 else 1.0


def _gain_unit(task: TreeTask) -> float:
    """½ unit_g² / unit_h: from scores of quantised sums to the loss's units."""
    return 0.5 * task.scales[1] / task.scales[0] ** 2
