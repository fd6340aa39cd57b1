"""The plan of a fit: the decisions that follow from parameters and statistics of the rows, before the first tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

import numpy as np

from dboost.data.columns.binning import Binning
from dboost.errors import ParameterError
from dboost.kernels.histograms import PAIR, TRIPLE, WEIGHED, Packing
from dboost.losses import BaseLoss
from dboost.metrics.metric import MetricReduction
from dboost.model import model_file
from dboost.model.ensemble import Ensemble
from dboost.params import Parameters
from dboost.rows.shard_spec import ShardSpec, plan_layout
from dboost.session.bites import parts_with_rows
from dboost.session.fit_records import BuildSpec, Chosen
from dboost.session.reference_sample import ReferenceSample
from dboost.session.target import Target
from dboost.session.warm_start import WarmStart
from dboost.training.bite_count import with_bite_count
from dboost.training.callbacks import StoppingRule
from dboost.training.damped_steps import with_damped_steps
from dboost.training.feature_constraints import interaction_groups, monotonic_directions
from dboost.training.request import FitRequest
from dboost.training.target_stats import Ask, Sizes, TargetStats, output_scales
from dboost.trees.tree_task import ANY_ORDER, FeatureConstraints, GrowthPolicy


@dataclass(frozen=True)
class Precision:
    """Channels of histograms, and how their buckets are packed."""

    packing: Packing
    n_channels: int
    count_channel: int  # the channel with the number of rows, -1 without counts


def precision_of(parameters: Parameters, constant_hessian: bool, max_weight: int = 1) -> Precision:
    """Return the precision. Rows are counted only if `min_samples_leaf` > 1; constant Hessians of unit weights serve as counts.

    max_weight : with integer weights the largest one (default 1).
    """
    if parameters.min_samples_leaf <= 1:
        precision = Precision(PAIR, 2, -1)
    elif not constant_hessian:
        precision = Precision(TRIPLE, 3, 2)
    else:
        precision = Precision(PAIR, 2, 1) if max_weight == 1 else Precision(WEIGHED, 3, 2)
    return replace(precision, packing=precision.packing._replace(rows=precision.packing.rows // max_weight))


def max_weight_of(start: TargetStats, parameters: Parameters, constant_hessian: bool) -> int | None:
    """Return the largest weight if integer weights are exploited, else None.

    The larger the weights, the more often packed buckets must be flushed. When a flush would be due after fewer than 256 rows,
    the weights are treated as floats.
    """
    if not start.integer_weights or start.max_weight > 255:
        return None
    rows = precision_of(parameters, constant_hessian, int(start.max_weight)).packing.rows
    return int(start.max_weight) if rows >= 256 else None


@dataclass(frozen=True)
class TreeHessians:
    """What trees have as Hessians of the rows."""

    are_weights: bool  # weights in place of the loss's Hessians, which are kept for leaf values
    are_constant: bool  # the weights, which are integers
    max_weight: int | None  # the largest weight if integer weights are exploited, see `max_weight_of`

    @classmethod
    def of(cls, parameters: Parameters, stats: TargetStats) -> TreeHessians:
        is_constant = stats.loss.constant_hessian
        are_weights = parameters.criterion == "gradient" and not is_constant
        max_weight = max_weight_of(stats, parameters, is_constant or are_weights)
        return cls(are_weights, (is_constant or are_weights) and max_weight is not None, max_weight)


@dataclass(frozen=True, eq=False)
class RowsDescription:
    """Statistics of the rows that the plan depends on."""

    n_rows: int  # number of training rows
    most_rows: int  # number of rows of the process that has most
    weighted: bool  # False when all weights are 1
    named: bool  # whether the features' names are the user's
    reference: ReferenceSample | None
    has_groups: bool  # whether rows belong to groups
    sizes: Sizes  # of the targets
    chosen: Chosen  # the evaluation sets that are chosen from the training rows


@dataclass(frozen=True, eq=False)
class FitPlan:
    """All decisions of a fit before the first tree. Made by `make_plan`."""

    request: FitRequest
    parameters: Parameters  # with the loss's name and the number of arcbites
    learning: Parameters  # parameters of the trees: the same, with damped steps if a model is continued with them
    target: Target  # with the loss of `stats`; holds no rows
    named: bool  # whether the features' names are the user's
    binning: Binning
    stats: TargetStats
    n_rows: int  # number of training rows
    max_weight: int | None  # the largest weight if integer weights are exploited, see `max_weight_of`
    shard_spec: ShardSpec
    precision: Precision
    policy: GrowthPolicy
    constraints: FeatureConstraints | None
    direction: np.ndarray | None  # int8[n_features], see `trees.tree_task.TreeTask`
    metrics: tuple[MetricReduction, ...]
    stopping: StoppingRule | None
    warm_start: WarmStart
    reference: ReferenceSample | None  # rows that the model's summary of the data is computed from
    chosen: Chosen  # the evaluation sets that are chosen from the training rows
    output_scales: np.ndarray | None  # float64[n_outputs], see `training.directions`; None for classes, which have one unit
    parts_with_rows: np.ndarray | None  # bool[n_parts], see `session.bites`; None unless bites have whole groups

    @property
    def baseline(self) -> np.ndarray:
        """The initial raw scores: float64[n_outputs]."""
        return self.stats.baseline if self.warm_start.model is None else self.warm_start.model.baseline

    @property
    def has_eval_sets(self) -> bool:
        return bool(self.chosen or self.request.eval_sets)

    @cached_property
    def empty(self) -> Ensemble:
        """The ensemble without trees."""
        target, target_name = self.target, self.request.roles.get("target")
        return Ensemble(
            features=self.binning.features,
            named=self.named,
            loss=target.loss.to_dict(),
            classes=target.classes,
            classes_dtype=target.classes_dtype,
            baseline=self.baseline,
            # The number of fine bins can be very large; the trees contain the thresholds that are used.
            edges=self.binning.edges if self.parameters.split_proposal == "global" else (),
            parameters=self.parameters.to_dict(),
            width=self.shard_spec.width,
            averages=self.parameters.is_forest,
            target_name=target_name if isinstance(target_name, str) else None,
        )

    @cached_property
    def build_spec(self) -> BuildSpec:
        """What sessions encode rows and evaluation sets by."""
        arcbites = self.parameters.arcbites
        return BuildSpec(
            shard_spec=self.shard_spec,
            binning=self.binning,
            target=self.target,
            baseline=self.baseline,
            warm_start=self.warm_start,
            magnitudes=self.stats.magnitudes,
            budget=None if self.request.budget is None else replace(self.request.budget, trees=None),
            n_parts=None if arcbites is None else arcbites.n_parts,
            seed=self.parameters.random_state,
            may_stream=self.parameters.split_proposal == "global",
            n_growing=None if self.request.fold is None else self.request.fold.n_growing,
            unit=self.stats.unit,
            subsample=self.parameters.subsample,
            needs_values=any(metric.wants_block for metric in self.metrics),
        )


def make_plan(
    request: FitRequest,
    parameters: Parameters,
    target: Target,
    binning: Binning,
    stats: TargetStats,
    rows: RowsDescription,
    evaluation: tuple[Sequence[MetricReduction], StoppingRule | None],
    warm_start: WarmStart,
    ask: Ask,
) -> FitPlan:
    """Make the plan of a fit.

    Parameters
    ----------
    request : FitRequest
    parameters : Parameters
        With the loss's name.
    target, binning, stats, warm_start
        Statistics of the rows, and the model that is continued.
    rows : RowsDescription
    evaluation : tuple
        Metrics and the rule of early stopping.
    ask : Ask
        Asks the rows for what only some plans need.
    """
    loss, learning, features = stats.loss, parameters, binning.features
    if warm_start.damps and stats.unexplained is not None and not parameters.is_forest:
        learning = with_damped_steps(parameters, stats.unexplained)
    hessians = TreeHessians.of(parameters, stats)
    precision = precision_of(parameters, hessians.are_constant, hessians.max_weight or 1)
    policy = GrowthPolicy.of(parameters, rows.n_rows)
    shard_spec = make_shard_spec(request, parameters, binning, stats, rows, hessians, policy, precision.n_channels)
    with_rows = None
    if parameters.arcbites is not None:
        arcbites = with_bite_count(parameters.arcbites, shard_spec, request.budget, rows.n_rows, rows.most_rows)
        parameters, learning = replace(parameters, arcbites=arcbites), replace(learning, arcbites=arcbites)
        if shard_spec.has_draw_ids:
            with_rows = reduce(np.logical_or, ask(parts_with_rows, parameters.random_state, arcbites.n_parts))
    scales = None
    if shard_spec.width > 1 and (loss.parts or not loss.targets.are_classes):
        scales = output_scales(loss, ask, stats.baseline)
    monotonic, interaction = parameters.monotonic_cst, parameters.interaction_cst
    groups = None if interaction is None else interaction_groups(interaction, features)
    return FitPlan(
        request=request,
        parameters=parameters,
        learning=learning,
        target=replace(target, loss=loss),
        named=rows.named,
        binning=binning,
        stats=stats,
        n_rows=rows.n_rows,
        max_weight=hessians.max_weight,
        shard_spec=shard_spec,
        precision=precision,
        policy=policy,
        constraints=FeatureConstraints.of(parameters.max_features, groups, len(features)),
        direction=None if monotonic is None else monotonic_directions(monotonic, features, loss),
        metrics=tuple(evaluation[0]),
        stopping=evaluation[1],
        warm_start=warm_start,
        reference=rows.reference,
        chosen=rows.chosen,
        output_scales=scales,
        parts_with_rows=with_rows,
    )


def make_shard_spec(
    request: FitRequest,
    parameters: Parameters,
    binning: Binning,
    stats: TargetStats,
    rows: RowsDescription,
    hessians: TreeHessians,
    policy: GrowthPolicy,
    n_channels: int,
) -> ShardSpec:
    """Return the fields and the layout of the rows."""
    loss = stats.loss
    layout = plan_layout(binning.n_bins, binning.is_categorical)
    tree_layout = layout
    if parameters.split_proposal == "tree":  # from the fine bins; categories are never joined
        n_bins = np.where(binning.is_categorical, layout.n_bins, np.minimum(layout.n_bins, parameters.max_bins))
        tree_layout = plan_layout(n_bins, binning.is_categorical)
    return ShardSpec(
        layout=layout,
        tree_layout=tree_layout,
        n_outputs=loss.n_outputs,
        width=width_of(parameters, loss),
        n_targets=len(loss.targets.columns),
        columns=loss.targets.of_outputs,
        weighted=rows.weighted,
        integer_weights=hessians.max_weight is not None,
        constant_hessian=hessians.are_constant,
        weights_as_hessian=hessians.are_weights,
        steady_gradients=all(leaves.statistic == "quantile" for leaves in loss.leaves)
        and request.budget is None,  # needs bytes that no budget counts
        max_leaves=policy.max_leaves,
        n_channels=n_channels,
        loss_unit=stats.loss_unit,
        speculates=policy.order != ANY_ORDER,
        averages=parameters.is_forest,
        compacts_target=all(_is_compiled(part) for part in loss.parts or (loss,)),
        has_draw_ids=rows.has_groups and (parameters.draws_rows or bool(loss.targets.groups)),
        keeps_groups=bool(loss.targets.groups),
    )


def width_of(parameters: Parameters, loss: BaseLoss) -> int:
    """Return the number of values per leaf."""
    return loss.n_outputs if parameters.multi_strategy == "multi_output_tree" else 1


def check_width(model: Ensemble, parameters: Parameters, loss: BaseLoss) -> None:
    """Raise a ParameterError if the trees of a model that is continued have another number of values per leaf."""
    if model.width != width_of(parameters, loss):
        strategies = "one_output_per_tree", "multi_output_tree"
        of_model, strategy = strategies if model.width == 1 else strategies[::-1]
        raise ParameterError(
            f"multi_strategy={strategy!r}: the model to continue was trained with {of_model!r}, which all its trees have: "
            "leave multi_strategy out"
        )


def _is_compiled(loss: BaseLoss) -> bool:
    """Whether nothing but the compiled pass over the rows reads the targets of a loss in every iteration."""
    return loss.leaves[0].statistic == "newton" and loss.terms() is not None


def requested(
    parameters: Parameters, request: FitRequest, metrics: Sequence[MetricReduction], stopping: StoppingRule | None
) -> dict[str, Any]:
    """Return the settings of a fit that its checkpoint compares, by names that never change; `max_iter` may change."""
    warm_start = request.warm_start
    settings = {name: value for name, value in parameters.to_dict().items() if name != "max_iter"}
    if request.validation_fraction is not None:
        settings["validation_fraction"] = request.validation_fraction
    return settings | {
        "start_from": None if warm_start.model is None else model_file.digest(warm_start.model),
        "continue_bins": "kept" if warm_start.keeps_bins else "new",
        "continue_steps": "damped" if warm_start.damps else "full",
        "eval_set": [eval_set.name for eval_set in request.eval_sets],
        "eval_metric": [metric.name for metric in metrics],
        "early_stopping": None if stopping is None else stopping.rule,
    }
