"""Frozen records of a fit: what it is asked for (`FitRequest`), and what it learns before the first tree (`FitPlan`).

What follows from parameters and rows before the first tree: the policy of growth, and the precision of histograms.

How many arcbites there are, where the user does not say.

With a memory limit there are as many as it takes for one bite to fit the limit together with everything that training on it
needs, and with five standard deviations to spare, because bites are random subsets of the rows. The number shapes the model,
so it must not depend on the number of threads; it is one of the model's parameters.

From what the user says about features to what trees obey: directions and groups, by feature number.

Damped steps: how fast a model may learn from data that came later.

A model that is continued sees the new data only. With the steps of a first fit it forgets what it knew, the sooner the
smaller the new data are; and where it is sure of itself and wrong, Hessians vanish and Newton steps are huge. So, unless the
user asks for full steps, steps are damped, by two rules.

* *Evidence.* The old leaf values count as if they rested on observations of their own: λ of the leaf value -G / (H + λ) is at
  least `PRIOR`. Where a leaf holds few new rows, or rows that the model is already sure of, its step is small.
* *Need.* The learning rate is multiplied by u² / 2, but at least `LEAST` and at most 1, where u is the share of the loss that
  the model leaves unexplained (its loss on the new data over that of the best constant). A model that predicts well has
  little to learn and is moved little; one that is no better than a constant goes half as fast as a first fit, and one that
  is wrong at full speed. Data of one class tell nothing but how frequent it is now: they get the least.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from dboost.data.binning import Binning
from dboost.data.frame import is_path
from dboost.errors import InputTypeError, ParameterError
from dboost.kernels.histograms import PAIR, TRIPLE, WEIGHED, Packing
from dboost.losses import Loss
from dboost.metrics.metric import Metric
from dboost.model import model_file as storage
from dboost.model.ensemble import Ensemble
from dboost.params import DEFAULT_BITES, DEFAULT_ROUNDS, ArcBites, Parameters
from dboost.schema import Feature, Level
from dboost.session.memory_budget import Budget, check_proposal, format_bytes, histogram_bytes, resident_bytes
from dboost.session.protocol import BuildSpec
from dboost.session.reference_sample import ReferenceSample
from dboost.session.row_selection import HELD_OUT
from dboost.session.target import Target
from dboost.session.transport import NamedSet
from dboost.session.warm_start import COLD_START, WarmStart
from dboost.shards.bin_layout import plan_layout
from dboost.shards.shard_spec import ShardSpec
from dboost.training.callbacks import Callback, EarlyStopping
from dboost.training.checkpoint import Checkpoint
from dboost.training.initial_score import TargetStats
from dboost.training.validation_split import MakeValidationPlan
from dboost.trees.bin_proposal import bins_of
from dboost.trees.feature_sampling import feature_constraints_of
from dboost.trees.nodes import ANY_ORDER, BEST_FIRST, DEPTH_WISE, GrowthPolicy
from dboost.trees.tree_task import FeatureConstraints

_UNLIMITED_DEPTH = 1 << 30


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


#: The number of bites allows for the histograms of so many threads, however many there are.
_THREADS = 4


def with_bite_count(
    arcbites: ArcBites | None, spec: ShardSpec, budget: Budget | None, n_rows: int, most_rows: int
) -> ArcBites | None:
    """The same arcbites with a number of bites.

    On a cluster it is the number of one process with the same limit, though the workers together could hold larger bites: so
    the model does not depend on how many they are, and each of them could go on alone. Who chooses the number may have more.

    most_rows : rows of the process that has most.

    Raises
    ------
    ParameterError
        When there are more bites than rows, they do not fit the limit, or it is too small for any number of them.
    """
    if arcbites is None:
        return None
    n_bites = arcbites.n_bites
    if n_bites is None:
        n_bites = min(DEFAULT_BITES, n_rows) if budget is None else _bites_within(budget, spec, n_rows)
    elif budget is not None:
        _check_fits(budget, spec, most_rows, n_bites)
    if n_bites * arcbites.parts > n_rows:
        of = "" if arcbites.parts == 1 else f" of {arcbites.parts} parts each"
        raise ParameterError(f"arcbites: n_bites={n_bites}{of} is more than the {n_rows} rows that there are to train on")
    return replace(arcbites, n_bites=n_bites)


def _bites_within(budget: Budget, spec: ShardSpec, n_rows: int) -> int:
    room = _bytes_for_bite(budget, spec)
    n_bites = 1
    while bite_bytes(spec, n_rows, n_bites) > room:
        if n_bites >= n_rows // 2:
            raise ParameterError(
                f"memory_limit of {format_bytes(budget.limit)} is too small for trees of {spec.max_leaves} leaves over "
                f"{len(spec.layout.n_bins)} features, however small the bites"
            )
        n_bites += max(n_bites // 50, 1)
    return n_bites


def _bytes_for_bite(budget: Budget, spec: ShardSpec) -> int:
    """What a bite may take."""
    return budget.limit - budget.retained - histogram_bytes(spec, _THREADS)


def _check_fits(budget: Budget, spec: ShardSpec, n_rows: int, n_bites: int) -> None:
    """Refuse bites that the user has made too large."""
    wanted, room = bite_bytes(spec, n_rows, n_bites), _bytes_for_bite(budget, spec)
    if wanted > room:
        raise ParameterError(
            f"arcbites: with n_bites={n_bites} the {n_rows} rows of one place make bites that take {format_bytes(wanted)}, but "
            f"memory_limit of {format_bytes(budget.limit)} leaves {format_bytes(max(room, 0))} for one: let there be "
            f"{_bites_within(budget, spec, n_rows)} of them, or leave n_bites out"
        )


def bite_bytes(spec: ShardSpec, n_rows: int, n_bites: int) -> int:
    """What the largest of so many bites of so many rows takes while it is trained on."""
    mean = n_rows / n_bites
    largest = min(n_rows, math.ceil(mean + 5 * math.sqrt(mean)))
    return resident_bytes(spec, largest) + 8 * largest


def directions_of(parameters: Parameters, features: Sequence[Feature], loss: Loss) -> np.ndarray | None:
    """`monotonic_cst` as int8[n_features]; None when nothing is constrained.

    Raises
    ------
    ParameterError
        For unknown names, a wrong number of values, values other than -1, 0, 1, categorical features, and several classes.
    """
    given = parameters.monotonic_cst
    if given is None:
        return None
    names = [feature.name for feature in features]
    if isinstance(given, dict):
        unknown = [name for name in given if name not in names]
        if unknown:
            raise ParameterError(f"monotonic_cst names {unknown[0]!r}, which is no feature")
        values = [given.get(name, 0) for name in names]
    else:
        values = list(given)
        if len(values) != len(names):
            raise ParameterError(f"monotonic_cst has {len(values)} values, but there are {len(names)} features")
    for name, value, feature in zip(names, values, features, strict=True):
        if value not in (-1, 0, 1):
            raise ParameterError(f"monotonic_cst of {name!r} is {value!r}: it must be -1, 0 or 1")
        if value and feature.is_categorical:
            raise ParameterError(f"monotonic_cst of {name!r}: categorical features have no order to be monotonic in")
    if not any(values):
        return None
    if loss.n_outputs > 1:
        raise ParameterError("monotonic_cst is not supported for several classes: their probabilities cannot all rise")
    return np.array(values, np.int8)


def groups_of(parameters: Parameters, features: Sequence[Feature]) -> list[list[int]] | None:
    """`interaction_cst` as lists of feature numbers, those that were not listed in a group of their own; None for no limits.

    Raises
    ------
    ParameterError
        For unknown names and numbers.
    """
    given = parameters.interaction_cst
    if given is None:
        return None
    everything = range(len(features))
    if given == "no_interactions":
        return [[feature] for feature in everything]
    if given == "pairwise":
        return [list(pair) for pair in combinations(everything, 2)] or [[0]]
    names = {feature.name: number for number, feature in enumerate(features)}
    groups = [[_number(item, names) for item in group] for group in given]
    rest = sorted(set(everything) - {feature for group in groups for feature in group})
    return groups + ([rest] if rest else [])


def _number(item: Any, names: dict[str, int]) -> int:
    if isinstance(item, str) and item in names:
        return names[item]
    if isinstance(item, int) and 0 <= item < len(names):
        return item
    raise ParameterError(f"interaction_cst holds {item!r}, which is no feature (of {len(names)})")


#: λ at least, in the units of Hessian sums: rows, for losses whose Hessian is 1.
PRIOR = 30.0
#: What the learning rate is multiplied by at least.
LEAST = 0.1


def with_damped_steps(parameters: Parameters, unexplained: float) -> Parameters:
    """The parameters to learn with, where a model leaves this share of the loss unexplained (see
    `training.initial_score.Start`)."""
    share = LEAST if not math.isfinite(unexplained) else min(max(min(max(unexplained, 0.0), 2.0) ** 2 / 2, LEAST), 1.0)
    return replace(
        parameters,
        learning_rate=parameters.learning_rate * share,
        l2_regularization=max(parameters.l2_regularization, PRIOR),
    )


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
