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
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from dboost.data.binning import Binning
from dboost.errors import DBoostError
from dboost.kernels.histograms import PAIR, TRIPLE, WEIGHED, BinLayout, Packing
from dboost.losses import Loss
from dboost.metrics.exact_sum import FINE, unit_for
from dboost.metrics.metric import Metric
from dboost.model.ensemble import Ensemble, Tree
from dboost.params import Parameters
from dboost.session.evaluation import EvalSet
from dboost.session.protocol import Engine
from dboost.session.warm_start import WarmStart
from dboost.shards.apply_trees import TreeDelta
from dboost.shards.statistics import fine_bin_hessians
from dboost.training.callbacks import Callback, EarlyStopping, Iteration, Progress
from dboost.training.initial_score import TargetStats
from dboost.training.leaf_values import LeafEstimator
from dboost.trees.bin_proposal import BinMerge
from dboost.trees.finished_tree import TreeSnapshot, follow_sums, within_bounds
from dboost.trees.nodes import ANY_ORDER, BEST_FIRST, DEPTH_WISE, GrowthPolicy, split_params_of
from dboost.trees.tree_task import FEATURES, FeatureConstraints, GradientStats, Sample, TreeTask, derive_seed

if TYPE_CHECKING:
    from dboost.training.checkpoint import Checkpoint

_UNLIMITED_DEPTH = 1 << 30

#: Returns the ensemble so far.
Assemble = Callable[[], Ensemble]


def growth_policy_of(parameters: Parameters, n_rows: int) -> GrowthPolicy:
    """The rule of growth; without limits, the number of leaves is bounded by depth and rows."""
    depth = parameters.max_depth or _UNLIMITED_DEPTH
    by_depth = 1 << min(depth, 40)
    by_rows = max(n_rows // parameters.min_samples_leaf, 1)
    leaves = min(parameters.max_leaf_nodes or by_depth, by_depth, by_rows)
    if parameters.max_leaf_nodes is None or parameters.max_leaf_nodes >= min(by_depth, by_rows):
        return GrowthPolicy(leaves, depth, ANY_ORDER)
    return GrowthPolicy(leaves, depth, BEST_FIRST if parameters.growth == "best_first" else DEPTH_WISE)


@dataclass(frozen=True)
class Precision:
    """How many planes a histogram has, how its buckets are packed, and which plane counts rows."""

    packing: Packing
    n_channels: int
    count_channel: int


def precision_of(parameters: Parameters, constant_hessian: bool, max_weight: int = 1) -> Precision:
    """Counts are kept only when somebody looks at them, and not separately when Hessians are counts.

    max_weight : how often a row counts at most, where weights are whole numbers.
    """
    if parameters.min_samples_leaf <= 1:
        found = Precision(PAIR, 2, -1)
    elif not constant_hessian:
        found = Precision(TRIPLE, 3, 2)
    else:
        found = Precision(PAIR, 2, 1) if max_weight == 1 else Precision(WEIGHED, 3, 2)
    return replace(found, packing=found.packing._replace(rows=found.packing.rows // max_weight))


def max_weight_of(start: TargetStats, parameters: Parameters, constant_hessian: bool) -> int | None:
    """How often a row counts at most, when all weights are whole numbers; else None.

    Packed buckets are flushed the more often the heavier a row may be. Where that would cost more than adding up the rows,
    weights are treated like fractions.
    """
    if not start.integer_weights or start.max_weight > 255:
        return None
    rows = precision_of(parameters, constant_hessian, int(start.max_weight)).packing.rows
    return int(start.max_weight) if rows >= 256 else None


@dataclass
class BoostingLoop:
    """A fit under way, and what came of it.

    Attributes
    ----------
    max_weight : int or None
        How often a row counts at most, see `max_weight_of`.
    layouts : (Layout, Layout)
        Of the cells that trees speak of, and of the bins that they grow by, see `trees.bin_proposal`.
    choice, direction
        Constraints, see `trees.tree_task.TreeTask`.
    warm_start : Origin
        What the scores to start from hold already.
    empty : Ensemble or None
        The model without trees, for the checkpoint.
    checkpoint : Checkpoint or None
    snapshots : list of TreeSnapshot
        Trees so far, those before not included.
    n_complete : int
        Iterations whose trees these are, but for one under way.
    valued : list of TreeDelta or None
        The same trees in terms of codes, where somebody wants them.
    place : dict
        What every record of the history says besides: of arcbites, which one.
    before : dict
        Losses and metrics before the first iteration.
    code_sums : list of int or None
        Of arcbites: the sums over all of them by which a checkpoint knows the data.
    history : list of dict
        One record per iteration.
    """

    engine: Engine
    loss: Loss
    binning: Binning
    parameters: Parameters
    constant_hessian: bool
    start: TargetStats
    rule: GrowthPolicy
    layouts: tuple[BinLayout, BinLayout]
    max_weight: int | None = 1
    choice: FeatureConstraints | None = None
    direction: np.ndarray | None = None
    eval_sets: Sequence[EvalSet] = ()
    metrics: Sequence[Metric] = ()
    early_stopping: EarlyStopping | None = None
    callbacks: Sequence[Callback] = ()
    warm_start: WarmStart = field(default_factory=WarmStart)
    empty: Ensemble | None = None
    checkpoint: Checkpoint | None = None
    snapshots: list[TreeSnapshot] = field(default_factory=list)
    n_complete: int = 0
    valued: list[TreeDelta] | None = None
    place: dict[str, int] = field(default_factory=dict)
    before: dict[str, float] = field(default_factory=dict)
    code_sums: list[int] | None = None
    history: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        counted = (
            (self.engine.n_rows, self.start.max_weight) if self.max_weight is None else (int(self.start.total_weight), 1.0)
        )
        self.steps = LeafEstimator(self.engine, self.loss, self.parameters, *counted)
        self.precision = precision_of(self.parameters, self.constant_hessian, self.max_weight or 1)
        self.total_weight = self.start.total_weight
        self.nothing = np.zeros((self.loss.n_outputs, 1))  # leaf values that change no score
        self.shown = [f"{held.name}_{metric.name}" for held in self.eval_sets for metric in self.metrics] or ["train_loss"]

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
            assert self.empty is not None
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
            **self.place,
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
        values = self.steps.values(grown, task.part)
        if self.direction is not None:
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
        cells, bins = self.layouts
        if proposal != "tree" or (cells.n_bins == bins.n_bins).all():
            return task
        mass = reduce(np.add, self.engine.ask(fine_bin_hessians, task.part, float(task.scales[1])))
        return replace(task, cells=BinMerge.propose(mass, cells, bins))

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
        scale_h = 1.0 if self.constant_hessian else _scale(packing.max_hessian, max_hessian)
        n = self.engine.n_rows if self.max_weight is None else int(self.start.total_weight)
        exact_h = 1.0 if self.constant_hessian else unit_for(max_hessian, n)
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
            is_bounded=self.direction is not None,
            gradient_unit=1.0 / scale_g,
            hessian_unit=1.0 / scale_h,
        )
        allowed = np.ones(len(self.binning.features), np.uint8)
        sample = Sample.of(parameters.subsample, parameters.random_state, iteration)
        choice = self.choice
        if choice is not None:
            choice = choice._replace(
                seed=np.array([derive_seed(parameters.random_state, FEATURES, iteration, output)], np.uint64)
            )
        least = self.steps.least_influence(output)
        return TreeTask(limits, packing, self.rule, scales, allowed, output, sample, least, choice, self.direction)


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
