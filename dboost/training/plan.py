"""Frozen records of a fit: what it is asked for (`FitRequest`), and what it learns before the first tree (`FitPlan`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dboost.data.binning import Binning
from dboost.data.frame import is_path
from dboost.errors import InputTypeError, ParameterError
from dboost.metrics.metric import Metric
from dboost.model import model_file as storage
from dboost.model.ensemble import Ensemble
from dboost.params import DEFAULT_ROUNDS, Parameters
from dboost.schema import Level
from dboost.session.build_spec import BuildSpec
from dboost.session.memory_budget import Budget, check_proposal
from dboost.session.reference_sample import ReferenceSample
from dboost.session.row_selection import HELD_OUT
from dboost.session.target import Target
from dboost.session.transport import NamedSet
from dboost.session.warm_start import COLD_START, WarmStart
from dboost.shards.bin_layout import plan_layout
from dboost.shards.shard_spec import ShardSpec
from dboost.training.bite_count import with_bite_count
from dboost.training.callbacks import Callback, EarlyStopping
from dboost.training.checkpoint import Checkpoint
from dboost.training.constraints import directions_of, groups_of
from dboost.training.initial_score import TargetStats
from dboost.training.precision import growth_policy_of, max_weight_of, precision_of
from dboost.training.shrinkage import with_damped_steps
from dboost.training.validation_split import MakeValidationPlan
from dboost.trees.bin_proposal import bins_of
from dboost.trees.feature_sampling import feature_constraints_of
from dboost.trees.nodes import ANY_ORDER, GrowthPolicy
from dboost.trees.tree_task import FeatureConstraints


@dataclass(frozen=True, eq=False)
class FitRequest:
    """What a fit is asked for, before any data are read."""

    parameters: Parameters
    n_threads: int
    eval_sets: tuple[NamedSet, ...] = ()
    eval_metric: Any = None
    #: Columns of target, weight and offset by name (or anything else), which tables of evaluation sets have too.
    columns: tuple[Any, Any, Any] = (None, None, None)
    callbacks: tuple[Callback, ...] = ()
    progress: bool | None = None
    make_validation_plan: MakeValidationPlan | None = None
    warm_start: WarmStart = COLD_START
    checkpoint: Checkpoint | None = None
    source_name: str | None = None
    classes: tuple[Level, ...] | None = None  # all classes that may ever occur; default: those in the target
    budget: Budget | None = None  # what the fit may add to the memory of each process

    def __post_init__(self) -> None:
        _check_early_stopping(self)
        if self.parameters.arcbites is not None and self.warm_start.model is not None and not self.warm_start.is_new_source:
            # The model does not tell which bite comes next, and what has been cut back.
            raise ParameterError("arcbites do not go together with a warm start: leave one of them out")
        check_proposal(self.budget, self.parameters)

    def named_columns(self) -> list[NamedSet]:
        """The evaluation sets, with the training table's columns where a set is a table."""
        return list(_with_columns(self.eval_sets, *self.columns))


@dataclass(frozen=True, eq=False)
class RowsDescription:
    """What the plan needs to know of the rows."""

    n_rows: int  # to train on
    most_rows: int  # in the process that has most
    weighted: bool  # False when all weights are 1
    named: bool  # whether the features' names are the user's
    reference: ReferenceSample | None


@dataclass(frozen=True, eq=False)
class FitPlan:
    """What was learned from the rows before the first tree, and what follows from it. Made by `make_plan`."""

    request: FitRequest
    parameters: Parameters  # with the loss's own name and the number of arcbites
    learning: Parameters  # what trees are grown with: the parameters, with damped steps where a model is continued
    target: Target  # with the loss as it knows the rows
    named: bool  # whether the features' names are the user's
    binning: Binning
    stats: TargetStats
    n_rows: int  # rows to train on
    max_weight: int | None  # the largest weight where all weights are integers, see `loop.max_weight_of`
    shard: ShardSpec
    policy: GrowthPolicy
    constraints: FeatureConstraints | None
    direction: np.ndarray | None  # int8[n_features], see `trees.tree_task.TreeTask`
    metrics: tuple[Metric, ...]
    stopping: EarlyStopping | None
    warm_start: WarmStart
    reference: ReferenceSample | None  # rows of which the model keeps a summary

    @property
    def notes(self) -> dict[str, Any]:
        """What the record of the source holds besides counts and parameters."""
        notes: dict[str, Any] = {"label": self.request.source_name}
        if self.warm_start.is_new_source:
            share = self.stats.unexplained
            notes["unexplained_loss"] = share if share is not None and math.isfinite(share) else None
            notes["steps"] = {name: getattr(self.learning, name) for name in ("learning_rate", "l2_regularization")}
        return notes

    @property
    def baseline(self) -> np.ndarray:
        """The first raw scores: float64[n_outputs]."""
        return self.stats.baseline if self.warm_start.model is None else self.warm_start.model.baseline

    @property
    def needs_values(self) -> bool:
        """Whether a metric needs the raw values of the rows of evaluation sets."""
        return any(metric.wants_block for metric in self.metrics)

    @property
    def empty(self) -> Ensemble:
        """The ensemble before its first tree."""
        target = self.target
        return Ensemble(
            features=self.binning.features,
            named=self.named,
            loss=target.loss.to_dict(),
            classes=target.classes,
            classes_dtype=target.classes_dtype,
            baseline=self.baseline,
            # Fine bins may be very many; the thresholds that are used are in the trees.
            edges=self.binning.edges if self.parameters.split_proposal == "global" else (),
            parameters=self.parameters.to_dict(),
        )

    def build_spec(self, starts: dict[int, int]) -> BuildSpec:
        """How sessions build shards and evaluation sets. starts : see `BuildSpec`."""
        arcbites = self.parameters.arcbites
        return BuildSpec(
            shard=self.shard,
            binning=self.binning,
            target=self.target,
            baseline=self.baseline,
            warm_start=self.warm_start,
            magnitude=self.stats.magnitude,
            spread=self.stats.spread,
            starts=starts,
            budget=self.request.budget,
            n_bites=None if arcbites is None else arcbites.n_parts,
            n_together=1 if arcbites is None else arcbites.parts,
            seed=self.parameters.random_state,
            may_stream=self.parameters.split_proposal == "global",
        )


def make_plan(
    request: FitRequest,
    parameters: Parameters,
    target: Target,
    binning: Binning,
    stats: TargetStats,
    rows: RowsDescription,
    judged_by: tuple[Sequence[Metric], EarlyStopping | None],
    warm_start: WarmStart,
) -> FitPlan:
    """The plan of a fit.

    Parameters
    ----------
    parameters : Parameters
        With the loss's own name.
    target, binning, stats, warm_start
        What was learned from the rows.
    rows : RowsDescription
    judged_by : tuple
        Metrics and the rule of early stopping.
    """
    loss = stats.loss
    layout = plan_layout(binning.n_bins, binning.is_categorical)
    bin_layout = plan_layout(bins_of(parameters, layout.n_bins, binning.is_categorical), binning.is_categorical)
    learning = parameters
    if warm_start.damps and stats.unexplained is not None:
        learning = with_damped_steps(parameters, stats.unexplained)
    # Trees grow with weights in the place of Hessians, and the Hessians are needed as well.
    weights_as_hessian = parameters.criterion == "gradient" and not loss.constant_hessian
    max_weight = max_weight_of(stats, parameters, loss.constant_hessian or weights_as_hessian)
    constant_hessian = (loss.constant_hessian or weights_as_hessian) and max_weight is not None
    policy = growth_policy_of(parameters, rows.n_rows)
    shard = ShardSpec(
        layout=layout,
        bin_layout=bin_layout,
        n_outputs=loss.n_outputs,
        weighted=rows.weighted,
        integer_weights=max_weight is not None,
        constant_hessian=constant_hessian,
        weights_as_hessian=weights_as_hessian,
        max_leaves=policy.max_leaves,
        n_channels=precision_of(parameters, constant_hessian, max_weight or 1).n_channels,
        loss_unit=stats.loss_unit,
        speculates=policy.order != ANY_ORDER,
    )
    arcbites = with_bite_count(parameters.arcbites, shard, request.budget, rows.n_rows, rows.most_rows)
    groups = groups_of(parameters, binning.features)
    return FitPlan(
        request=request,
        parameters=replace(parameters, arcbites=arcbites),
        learning=replace(learning, arcbites=arcbites),
        target=replace(target, loss=loss),
        named=rows.named,
        binning=binning,
        stats=stats,
        n_rows=rows.n_rows,
        max_weight=max_weight,
        shard=shard,
        policy=policy,
        constraints=feature_constraints_of(parameters.max_features, groups, len(binning.features)),
        direction=directions_of(parameters, binning.features, loss),
        metrics=tuple(judged_by[0]),
        stopping=judged_by[1],
        warm_start=warm_start,
        reference=rows.reference,
    )


def requested(
    parameters: Parameters, request: FitRequest, metrics: Sequence[Metric], stopping: EarlyStopping | None
) -> dict[str, Any]:
    """What a fit was asked for, for its checkpoint, by names that stay. How many iterations that is may change."""
    warm_start = request.warm_start
    told = {name: value for name, value in parameters.to_dict().items() if name != "max_iter"}
    return told | {
        "start_from": None if warm_start.model is None else storage.digest(warm_start.model),
        "continue_bins": "kept" if warm_start.keeps_bins else "new",
        "continue_steps": "damped" if warm_start.damps else "full",
        "eval_set": [name for name, *_ in request.eval_sets],
        "eval_metric": [metric.name for metric in metrics],
        "early_stopping": None if stopping is None else stopping.rule,
    }


def stopping_rule(
    parameters: Parameters,
    given: EarlyStopping | None,
    sets: Sequence[tuple[str, Any, Any, Any, Any]],
    metrics: Sequence[Metric],
) -> EarlyStopping | None:
    """The rule that was given, or by the last metric of the last evaluation set (of the rows held out where there is none).

    Raises
    ------
    ParameterError
        When arcbites would be judged by the rows that are trained on, which are others all the time.
    """
    arcbites, rounds = parameters.arcbites, rounds_of(parameters)
    if given is None:
        if rounds is None:
            return None
        column = f"{sets[-1][0] if sets else HELD_OUT}_{metrics[-1].name}"
        return EarlyStopping(column, rounds, larger_is_better=metrics[-1].larger_is_better)
    if arcbites is not None and given.column == "train_loss":
        raise ParameterError("arcbites cannot be stopped by the training loss, which is always another bite's: hold rows out")
    if arcbites is not None and arcbites.early_stopping_rounds is not None:
        return given.waiting(arcbites.early_stopping_rounds)
    return given


def rounds_of(parameters: Parameters) -> int | None:
    """Iterations without improvement to wait for; None when nobody waits."""
    arcbites = parameters.arcbites
    if arcbites is None or not arcbites.is_watched:
        return parameters.early_stopping_rounds
    return arcbites.early_stopping_rounds or parameters.early_stopping_rounds or DEFAULT_ROUNDS


def _check_early_stopping(request: FitRequest) -> None:
    """Refuse to stop early where there is nothing to judge by, and nothing will be held out."""
    parameters = request.parameters
    holds_out = parameters.arcbites is not None and parameters.arcbites.is_watched
    if parameters.early_stopping_rounds is not None and not request.eval_sets and not holds_out:
        raise ParameterError("early_stopping_rounds needs an eval_set to judge by")


def _with_columns(
    sets: Sequence[tuple[str, Any, Any, Any, Any]], target_name: Any, weight_name: Any, offset_name: Any
) -> Iterator[tuple[str, Any, Any, Any, Any]]:
    """The same with the names of the columns that hold target, weight and offset, where a set is a table."""
    for name, data, target, weight, offset in sets:
        if target is None:
            if not isinstance(target_name, str):
                raise ParameterError(
                    f"evaluation set {name!r} is a table without a target: give (X, y), or name the target column in fit"
                )
            target = target_name
            weight = weight_name if isinstance(weight_name, str) and weight is None else weight
        if offset is None and offset_name is not None:
            if not (isinstance(offset_name, str) and (is_path(data) or hasattr(data, "columns"))):
                raise ParameterError(
                    f"evaluation set {name!r} has no offsets, but the training data have: give (X, y, weight, offset), with "
                    "None for no weight, or name a column of both in fit"
                )
            offset = offset_name
        yield name, data, target, weight, offset


def checked_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """Callbacks as a tuple; a mistake is noticed before the first iteration, not after it."""
    found = (callbacks,) if callable(callbacks) else tuple(callbacks or ())
    for callback in found:
        if not callable(callback):
            raise InputTypeError(f"a callback must be a function of an Iteration, not {type(callback).__name__}")
    return found
