"""The request and the plan of a fit, and the decisions of a plan that follow from parameters and statistics of the rows.

A `FitRequest` holds the user's settings. Before the first tree, `make_plan` makes a `FitPlan` from it and the statistics of the
rows: growth policy, precision of histograms, number of arcbites, constraints by feature number, learning parameters.

**Number of arcbites.** Without `n_bites`, a memory limit determines it: the largest bite and the memory for training on it must
fit the limit. Bites are random subsets of the rows, so their size is taken as mean + 5 standard deviations. The number affects
the model, so it must not depend on the number of threads; it is one of the model's parameters.

**Damped steps.** A model that is continued is trained on the new data only. With full steps it would lose what it learned from
the old data, the faster the smaller the new data are; and where its predictions are confident and wrong, Hessians are close to
zero and Newton steps are very large. So, unless the user asks for full steps, two rules reduce them:

* *Prior.* λ of the leaf value -G / (H + λ) is at least `PRIOR`, as if the old predictions rested on that many rows. So leaves
  with few new rows, or with rows of small Hessians, have small steps.
* *Unexplained loss.* The learning rate is multiplied by u² / 2, at least `LEAST` and at most 1. u is the ratio of the model's
  loss on the new data to that of the best constant. The factor is small for a model that predicts the new data well, 1/2 for a
  model no better than a constant, and 1 if u ≥ √2. Data of a single class (u infinite) get `LEAST`.

**Validation rows** and class weights that are chosen from the training data. `dboost.fit` takes evaluation sets from the user.
The scikit-learn estimators split off validation rows and compute class weights themselves: they pass a function that receives
the number of rows of each class and returns a `ValidationPlan`. Rows are selected by a hash of their ids (see
`session.row_samples`), so the selection does not depend on the partitions.

Arcbites with early stopping but without an evaluation set get an independent test set: a tenth of the rows, at most about
200,000. A warning informs the user.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import combinations
from typing import Any

import numpy as np

from dboost.data import ReadOptions
from dboost.data.columns.binning import MAX_FINE_BINS, Binning
from dboost.data.columns.labels import Names
from dboost.data.tables.eval_tables import eval_tables
from dboost.data.tables.reading import GivenTable
from dboost.display import number
from dboost.errors import DataError, InputTypeError, ParameterError, warn
from dboost.kernels.histograms import PAIR, TRIPLE, WEIGHED, Packing
from dboost.kernels.threads import available_threads
from dboost.losses import BaseLoss
from dboost.metrics.metric import MetricReduction
from dboost.metrics.named import ALIASES, names_of
from dboost.model import model_file
from dboost.model.ensemble import Ensemble
from dboost.params import (
    DEFAULT_BITES,
    DEFAULT_ROUNDS,
    FOREST,
    GBDT,
    ArcBites,
    EarlyStopping,
    Parameters,
    is_of_groups,
    make_parameters,
)
from dboost.rows.row_sample import HOLD_OUT, derive_seed
from dboost.rows.shard_spec import ShardSpec, plan_layout
from dboost.schema import Feature, Level
from dboost.session.fit_records import BuildSpec, Chosen
from dboost.session.memory import Budget, TreeNeeds, check_proposal, format_bytes, histogram_bytes, resident_bytes
from dboost.session.reference_sample import ReferenceSample, damped_steps
from dboost.session.row_samples import (
    HELD_OUT,
    TRAIN,
    DigitRequest,
    Draw,
    DrawnRows,
    FoldRows,
    RowAssignment,
    find_bounds,
    whole_groups,
)
from dboost.session.target import Target
from dboost.session.warm_start import COLD_START, WarmStart, checked_source_name
from dboost.training.binned_data import DatasetDescription
from dboost.training.callbacks import Callback, LearningRates, Progress, RecordOf, StoppingRule, schedule_of
from dboost.training.checkpoint import Checkpoint, checkpoint_in
from dboost.training.history import NOT_SCORES, OUT_OF_BAG
from dboost.training.target_stats import Sizes, TargetStats
from dboost.trees.bin_proposal import FINE_BINS_PER_BIN
from dboost.trees.tree_task import ANY_ORDER, BEST_FIRST, DEPTH_WISE, FeatureConstraints, GrowthPolicy


@dataclass(frozen=True, eq=False)
class ValidationPlan:
    """Class weights, validation rows, additional metrics and early stopping of a fit."""

    class_weight: np.ndarray | None = None  # float64[n_classes], factors of the row weights
    held_out: Draw | None = None  # rows of the evaluation set "validation", excluded from training
    watched: Draw | None = None  # training rows that also form the evaluation set "train"
    metrics: tuple[MetricReduction, ...] = ()  # evaluated in addition to those of `eval_metric`
    early_stopping: StoppingRule | None = None
    fold: FoldRows | None = None  # instead of `held_out`: these rows are given, and others may be left out

    @property
    def n_held_out(self) -> int:
        """Number of rows that are not trained on."""
        if self.fold is not None:
            return len(self.fold.uses) - int(np.count_nonzero(self.fold.uses == TRAIN))
        return sum(self.held_out.sizes) if self.held_out is not None else 0

    def assign(
        self, counts: Sequence[int], ask: Callable[[DigitRequest], np.ndarray] | None, test_share: DrawnRows | None = None
    ) -> RowAssignment:
        """Select the rows.

        counts, ask : see `find_bounds`, ask is None to draw whole groups; test_share : rows to hold out if `held_out` is None.
        """
        if ask is None:
            held_out = test_share if self.held_out is None else whole_groups(self.held_out, counts)
            watched = None if self.watched is None else whole_groups(self.watched, counts, self.held_out)
            return RowAssignment(self.class_weight, held_out, watched, self.fold)
        held_out = test_share if self.held_out is None else find_bounds(self.held_out, counts, ask)
        watched = None
        if self.watched is not None:
            remaining = counts
            if self.held_out is not None:
                remaining = [n - n_held_out for n, n_held_out in zip(counts, self.held_out.sizes, strict=True)]
            watched = find_bounds(self.watched, remaining, ask, held_out)
        return RowAssignment(self.class_weight, held_out, watched, self.fold)


#: Called with the number of rows of positive weight (of each class, or one number for regression), the target (without rows),
#: and a function that returns the ensemble grown so far.
MakeValidationPlan = Callable[[Sequence[int], Target, Callable[[], Ensemble]], ValidationPlan]


#: Fraction of the rows that is held out, and the approximate upper limit of their number.
TEST_SHARE, MOST_TEST_ROWS = 0.1, 200_000


def needs_test_set(parameters: Parameters, plan: ValidationPlan, sets: Sequence[Any]) -> bool:
    """Whether arcbites need a test set and the user has given none."""
    arcbites = parameters.arcbites
    is_watched = arcbites is not None and arcbites.is_watched
    return is_watched and not sets and plan.early_stopping is None and plan.held_out is None


def draws_rows(parameters: Parameters) -> bool:
    """Whether trees grow from samples of rows."""
    return parameters.subsample < 1 or parameters.arcbites is not None


def check_boosting(model: Ensemble, parameters: Parameters) -> None:
    """Raise a ParameterError if a forest is to be continued with boosting, or a boosted model with a forest."""
    if model.averages != parameters.is_forest:
        kind, boosting = ("a forest", FOREST) if model.averages else ("a boosted model", GBDT)
        raise ParameterError(f"the model to continue is {kind}: give boosting={boosting!r}")


def has_out_of_bag(parameters: Parameters) -> bool:
    """Whether the history has metrics of the predictions of training rows by the trees that did not draw them."""
    return parameters.is_forest and parameters.subsample < 1


def check_group(parameters: Parameters) -> None:
    """Raise a ParameterError if nothing in a fit depends on groups of rows."""
    if not draws_rows(parameters) and not is_of_groups(parameters.loss):
        raise ParameterError(
            "group has no effect on this fit, because no rows are drawn: give subsample or arcbites too, or give group to "
            "dboost.cv or dboost.prepare"
        )


def check_loss_of_groups(request: FitRequest, parameters: Parameters, loss: BaseLoss, roles: Sequence[str]) -> None:
    """Raise an error if rows have no groups, which the loss needs, or if losses of single rows would be needed.

    roles : of the training rows.
    """
    role = loss.targets.groups
    if role not in roles:
        raise DataError(f"loss={loss.name!r} compares the rows of a group, but the rows have none: give {role}=")
    uses = {
        "an offset": "offset" in roles,
        "a model to continue": request.warm_start.model is not None,
        "evaluation sets": bool(request.eval_sets) or request.make_validation_plan is not None,
        "folds": request.fold is not None,
        "arcbites": parameters.arcbites is not None,
        "step='line_search'": parameters.step == "line_search",
    }
    for use, is_used in uses.items():
        if is_used:
            raise ParameterError(f"loss={loss.name!r} depends on whole groups of rows, and does not go together with {use}")


def held_out_rows_of(n_rows: int, seed: int) -> DrawnRows:
    """Return the selection of the rows to hold out among `n_rows` rows of positive weight."""
    fraction = min(TEST_SHARE, MOST_TEST_ROWS / n_rows)
    return DrawnRows(derive_seed(seed, HOLD_OUT), (int(fraction * 2.0**64),))


def check_whole_groups(n_held_out: int, n_rows: int) -> None:
    """Raise a ParameterError if the groups are so few that none is held out, or that none is left to train on."""
    if not 0 < n_held_out < n_rows:
        raise ParameterError(
            f"the groups are too few to hold some of them out for validation: {n_held_out} of {n_rows} rows would be; give "
            "another validation_fraction or random_state, or an eval_set"
        )


def warn_held_out(n_held_out: int, n_rows: int) -> None:
    """Warn that rows are held out.

    Raises
    ------
    ParameterError
        When no row is held out, or no row is left to train on.
    """
    if not 0 < n_held_out < n_rows:
        raise ParameterError(
            f"arcbites need an evaluation set that ends their visits, and of {n_rows} rows none can be held out: give an "
            "eval_set, or trees_per_visit"
        )
    warn(f"no eval_set was given that ends the visits of bites: {n_held_out} of the {n_rows} rows are held out, not trained on")


def fine_bins_of(parameters: Parameters) -> int:
    """Return the largest number of fine bins of a numeric feature, see `trees.bin_proposal`."""
    return {
        "global": parameters.max_bins,
        "tree": MAX_FINE_BINS,
        "node": FINE_BINS_PER_BIN * parameters.max_bins,
        "exact": MAX_FINE_BINS,
    }[parameters.split_proposal]


_UNLIMITED_DEPTH = 1 << 30


def growth_policy_of(parameters: Parameters, n_rows: int) -> GrowthPolicy:
    """Return the growth policy; without `max_leaf_nodes`, depth and number of rows bound the number of leaves."""
    depth = parameters.max_depth or _UNLIMITED_DEPTH
    by_depth = 1 << min(depth, 40)
    by_rows = max(n_rows // parameters.min_samples_leaf, 1)
    leaves = min(parameters.max_leaf_nodes or by_depth, by_depth, by_rows)
    if parameters.max_leaf_nodes is None or parameters.max_leaf_nodes >= min(by_depth, by_rows):
        return GrowthPolicy(leaves, depth, ANY_ORDER)
    return GrowthPolicy(leaves, depth, BEST_FIRST if parameters.growth == "best_first" else DEPTH_WISE)


def tree_needs(parameters: Parameters, n_threads: int) -> TreeNeeds:
    """Return what decides the histograms of a fit on enough rows."""
    leaves = growth_policy_of(parameters, 1 << 62).max_leaves
    return TreeNeeds(leaves, parameters.min_samples_leaf, parameters.max_bins, n_threads)


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


#: Number of threads that is assumed for the memory of histograms, so that the number of bites does not depend on it.
_THREADS = 4


def with_bite_count(arcbites: ArcBites, spec: ShardSpec, budget: Budget | None, n_rows: int, most_rows: int) -> ArcBites:
    """Return the arcbites with `n_bites` set.

    The default is the number for a single process with the same memory limit. On a cluster larger bites would fit, but the
    model would depend on the number of workers, and a single remaining worker could not continue. A given `n_bites` is checked
    against the process with most rows.

    most_rows : number of rows of the process that has most.

    Raises
    ------
    ParameterError
        When there are more bites than rows, or the bites (of any number, if none is given) do not fit the memory limit.
    """
    n_bites = arcbites.n_bites
    if n_bites is None:
        n_bites = min(DEFAULT_BITES, n_rows) if budget is None else _bites_within(budget, spec, n_rows)
    elif budget is not None:
        _check_fits(budget, spec, most_rows, n_bites)
    if n_bites * arcbites.parts > n_rows:
        parts = "" if arcbites.parts == 1 else f" of {arcbites.parts} parts each"
        raise ParameterError(f"arcbites: n_bites={n_bites}{parts} is more than the {n_rows} rows that there are to train on")
    return replace(arcbites, n_bites=n_bites)


def _bites_within(budget: Budget, spec: ShardSpec, n_rows: int) -> int:
    available = _bytes_for_bite(budget, spec)
    n_bites = 1
    while bite_bytes(spec, n_rows, n_bites) > available:
        if n_bites >= n_rows // 2:
            raise ParameterError(
                f"memory_limit of {format_bytes(budget.limit)} is too small for trees of {spec.max_leaves} leaves over "
                f"{len(spec.layout.n_bins)} features, however small the bites"
            )
        n_bites += max(n_bites // 50, 1)
    return n_bites


def _bytes_for_bite(budget: Budget, spec: ShardSpec) -> int:
    """Return the bytes available to a bite."""
    return budget.limit - budget.retained - histogram_bytes(spec, _THREADS)


def _check_fits(budget: Budget, spec: ShardSpec, n_rows: int, n_bites: int) -> None:
    """Raise ParameterError if bites of the given number do not fit the memory limit."""
    needed, available = bite_bytes(spec, n_rows, n_bites), _bytes_for_bite(budget, spec)
    if needed > available:
        raise ParameterError(
            f"arcbites: with n_bites={n_bites} the {n_rows} rows of one process make bites that take {format_bytes(needed)}, "
            f"but memory_limit of {format_bytes(budget.limit)} leaves {format_bytes(max(available, 0))} for one: let there be "
            f"{_bites_within(budget, spec, n_rows)} of them, or leave n_bites out"
        )


def bite_bytes(spec: ShardSpec, n_rows: int, n_bites: int) -> int:
    """Return the bytes of the largest of `n_bites` bites of `n_rows` rows during training."""
    mean = n_rows / n_bites
    largest = min(n_rows, math.ceil(mean + 5 * math.sqrt(mean)))
    return resident_bytes(spec, largest) + 8 * largest


def directions_of(parameters: Parameters, features: Sequence[Feature], loss: BaseLoss) -> np.ndarray | None:
    """Return `monotonic_cst` as int8[n_features]; None without constraints.

    Raises
    ------
    ParameterError
        For unknown names, a wrong number of values, values other than -1, 0, 1, categorical features, and more than two
        classes.
    """
    constraints = parameters.monotonic_cst
    if constraints is None:
        return None
    names = [feature.name for feature in features]
    if isinstance(constraints, dict):
        unknown = sorted(str(name) for name in constraints if name not in names)
        if unknown:
            shown = unknown[:5] + ["..."] * (len(unknown) > 5)
            near = Names.of(names).hint(unknown[0]).removeprefix("; ")
            raise ParameterError(
                f"monotonic_cst contains {len(unknown)} unexpected feature names: {shown}. {near[:1].upper()}{near[1:]}"
            )
        values = [constraints.get(name, 0) for name in names]
    else:
        values = list(constraints)
        if len(values) != len(names):
            raise ParameterError(
                f"monotonic_cst has shape ({len(values)},) but the input data have {len(names)} features: give one value each"
            )
    for name, value, feature in zip(names, values, features, strict=True):
        if value not in (-1, 0, 1):
            if isinstance(constraints, dict):
                raise ParameterError(f"monotonic_cst[{name!r}] must be either -1, 0 or 1. Got {value!r}.")
            raise ParameterError(f"monotonic_cst must be an array-like of -1, 0 or 1. Observed values: {values}.")
        if value and feature.is_categorical:
            raise ParameterError(f"Categorical features cannot have monotonic constraints: remove that of {name!r}")
    if not any(values):
        return None
    if not any(leaves.is_monotonic for leaves in loss.leaves):
        raise ParameterError(
            "monotonic constraints are not supported for multiclass classification: the probabilities cannot all rise"
        )
    return np.array(values, np.int8)


def groups_of(parameters: Parameters, features: Sequence[Feature]) -> list[list[int]] | None:
    """Return `interaction_cst` as lists of feature numbers, unlisted features in one more group; None without constraints.

    Raises
    ------
    ParameterError
        For unknown names and numbers.
    """
    constraints = parameters.interaction_cst
    if constraints is None:
        return None
    everything = range(len(features))
    if constraints == "no_interactions":
        return [[feature] for feature in everything]
    if constraints == "pairwise":
        return [list(pair) for pair in combinations(everything, 2)] or [[0]]
    names = {feature.name: number for number, feature in enumerate(features)}
    groups = [[_number(item, names) for item in group] for group in constraints]
    rest = sorted(set(everything) - {feature for group in groups for feature in group})
    return groups + ([rest] if rest else [])


def _number(item: Any, names: dict[str, int]) -> int:
    if isinstance(item, int) and not isinstance(item, bool):
        if 0 <= item < len(names):
            return item
    elif str(item) in names:
        return names[str(item)]
    raise ParameterError(
        f"Interaction constraints must consist of integer indices in [0, n_features - 1] = [0, {len(names) - 1}], specifying "
        f"the position of features, or of their names; interaction_cst contains {item!r}"
    )


#: Lower limit of λ, in the units of Hessian sums (rows, for losses with Hessian 1).
PRIOR = 30.0
#: Lower limit of the factor of the learning rate.
LEAST = 0.1


def with_damped_steps(parameters: Parameters, unexplained: float) -> Parameters:
    """Return the parameters with damped steps. unexplained : see `training.target_stats.TargetStats`."""
    factor = LEAST if not math.isfinite(unexplained) else min(max(min(max(unexplained, 0.0), 2.0) ** 2 / 2, LEAST), 1.0)
    return replace(
        parameters,
        learning_rate=parameters.learning_rate * factor,
        l2_regularization=max(parameters.l2_regularization, PRIOR),
    )


@dataclass(frozen=True, eq=False)
class Fold:
    """A fold of a cross-validation."""

    rows: FoldRows
    pooled: RecordOf  # returns the record by which all folds are stopped early, instead of the fold's own
    past: tuple[dict[str, Any], ...] = ()  # records of the iterations of the model that is continued, if one is
    n_growing: int = 1  # trees of all folds that grow at the same time in this process
    #: Held while rows are loaded in this process, so that few folds load at the same time.
    loading: AbstractContextManager[Any] = field(default_factory=nullcontext)


@dataclass(frozen=True, eq=False)
class FitRequest:
    """The user's settings of a fit, before any data are read."""

    parameters: Parameters
    n_threads: int
    eval_sets: tuple[GivenTable, ...] = ()
    eval_metric: Any = None
    #: Roles of the training table as the user gave them, by name.
    roles: Mapping[str, Any] = field(default_factory=dict)
    callbacks: tuple[Callback, ...] = ()
    progress: Progress = field(default_factory=partial(Progress, False))
    make_validation_plan: MakeValidationPlan | None = None
    #: Share or number of the rows that `make_validation_plan` holds out for `dboost.fit`; None if it does not.
    validation_fraction: float | int | None = None
    warm_start: WarmStart = COLD_START
    checkpoint: Checkpoint | None = None
    source_name: str | None = None
    classes: tuple[Level, ...] | None = None  # all possible classes; default: those in the target
    budget: Budget | None = None  # memory that the fit may use in each process
    early_stopping: EarlyStopping | None = None  # beside `Parameters.early_stopping_rounds`, which are its rounds
    learning_rates: LearningRates | None = None  # of the iterations; default: `Parameters.learning_rate`
    workers: Any = None  # the workers of a cluster that may take part, see `cluster.client.worker_choice`
    keep_summary: bool = True  # whether the model contains counts, categories without use and a summary of the rows
    time_limit: float | None = None  # seconds from `began` after which no iteration begins
    fold: Fold | None = None  # the fold of a cross-validation that is fitted
    binned: DatasetDescription | None = None  # of rows that are binned already
    n_at_once: int = 1  # number of fits that run at the same time, of which this is one
    began: float = field(default_factory=time.perf_counter)

    @classmethod
    def of(
        cls,
        learning: dict[str, Any],
        *,
        n_threads: int | None = None,
        eval_set: Any = None,
        callbacks: Any = (),
        early_stopping: EarlyStopping | None = None,
        memory_limit: Any = None,
        time_limit: Any = None,
        checkpoint: Any = None,
        checkpoint_every: Any = 10,
        **settings: Any,
    ) -> FitRequest:
        """Return the request for keywords of `dboost.fit`, which it checks.

        Parameters
        ----------
        learning : dict
            Parameters of learning, by their canonical names.
        n_threads, eval_set, callbacks, early_stopping, memory_limit, time_limit, checkpoint, checkpoint_every
            As in `dboost.fit`.
        **settings
            Other fields; ``progress`` as in `dboost.fit`, default False.
        """
        learning = learning | rounds_of_rule(early_stopping, learning)
        learning_rates = schedule_of(learning)
        parameters, threads = make_parameters(learning), available_threads(n_threads)
        if memory_limit is not None:
            settings["budget"] = Budget.of(memory_limit, tree_needs(parameters, threads))
        if checkpoint is not None or not isinstance(checkpoint_every, int) or checkpoint_every != 10:  # 10.0 is an error
            settings["checkpoint"] = checkpoint_in(checkpoint, checkpoint_every)
        return cls(
            parameters,
            threads,
            eval_sets=() if eval_set is None else eval_tables(eval_set, settings["roles"]),
            callbacks=checked_callbacks(callbacks),
            early_stopping=early_stopping,
            learning_rates=learning_rates,
            time_limit=parse_time_limit(time_limit),
            progress=Progress(settings.pop("progress", False)),
            **settings,
        )

    @property
    def reading(self) -> ReadOptions:
        """How a table is read in this process."""
        options = ReadOptions(self.n_threads) if self.budget is None else self.budget.reading
        return replace(options, count=self.progress.count)

    def __post_init__(self) -> None:
        _check_early_stopping(self)
        checked_source_name(self.source_name)
        if self.eval_sets or self.eval_metric is not None:
            sets = [*([] if self.validation_fraction is None else [HELD_OUT]), *(eval_set.name for eval_set in self.eval_sets)]
            check_columns(sets, names_of(self.eval_metric, self.parameters.loss_name))
        if not isinstance(self.keep_summary, bool):
            raise ParameterError(f"keep_summary={self.keep_summary!r} must be True or False")
        if self.parameters.arcbites is not None and self.warm_start.model is not None and not self.warm_start.is_new_source:
            # The model does not contain the next bite and the iterations that were cut back.
            raise ParameterError("arcbites do not go together with a warm start: leave one of them out")
        if self.budget is not None:
            check_proposal(self.parameters)
        if self.parameters.is_forest and self.learning_rates is not None:
            raise ParameterError("learning_rate is for boosting: the trees of a forest are averaged, leave it out")


@dataclass(frozen=True, eq=False)
class RowsDescription:
    """Statistics of the rows that the plan depends on."""

    n_rows: int  # number of training rows
    most_rows: int  # number of rows of the process that has most
    weighted: bool  # False when all weights are 1
    named: bool  # whether the features' names are the user's
    reference: ReferenceSample | None
    has_groups: bool = False  # whether rows belong to groups
    sizes: Sizes | None = None  # of the targets, if they are known already


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
    shard: ShardSpec
    precision: Precision
    policy: GrowthPolicy
    constraints: FeatureConstraints | None
    direction: np.ndarray | None  # int8[n_features], see `trees.tree_task.TreeTask`
    metrics: tuple[MetricReduction, ...]
    stopping: StoppingRule | None
    warm_start: WarmStart
    reference: ReferenceSample | None  # rows that the model's summary of the data is computed from
    output_scales: np.ndarray | None = None  # float64[n_outputs], see `training.directions`; None for classes
    parts_with_rows: np.ndarray | None = None  # bool[n_parts], see `session.bites`; None unless bites have whole groups
    chosen: Chosen = field(default_factory=dict)  # the evaluation sets that are chosen from the training rows

    @property
    def damping_notes(self) -> dict[str, Any]:
        """What the record of a source that continues a model says about the size of steps."""
        unexplained = self.stats.unexplained
        return {
            "unexplained_loss": unexplained if unexplained is not None and math.isfinite(unexplained) else None,
            "steps": {name: getattr(self.learning, name) for name in ("learning_rate", "l2_regularization")},
        }

    @property
    def damping(self) -> str:
        """How and why steps are damped, for the user; empty if they are not."""
        steps, unexplained = damped_steps(self.parameters, self.learning), self.stats.unexplained
        if not steps or unexplained is None:
            return ""
        left = (
            f"{number(100 * unexplained, 3)} % of the loss of a constant" if math.isfinite(unexplained) else "an unknown loss"
        )
        why = f"the model has learned from other rows before and leaves {left} on these"
        return f"{steps}, because {why}; continue_steps='full' uses full steps"

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
        target = self.target
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
            width=self.shard.width,
            averages=self.parameters.is_forest,
        )

    @cached_property
    def build_spec(self) -> BuildSpec:
        """What sessions encode rows and evaluation sets by."""
        arcbites = self.parameters.arcbites
        return BuildSpec(
            shard=self.shard,
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
    """
    loss = stats.loss
    layout = plan_layout(binning.n_bins, binning.is_categorical)
    bin_layout = layout
    if parameters.split_proposal == "tree":  # from the fine bins; categories are never joined
        n_bins = np.where(binning.is_categorical, layout.n_bins, np.minimum(layout.n_bins, parameters.max_bins))
        bin_layout = plan_layout(n_bins, binning.is_categorical)
    learning = parameters
    if warm_start.damps and stats.unexplained is not None and not parameters.is_forest:
        learning = with_damped_steps(parameters, stats.unexplained)
    # Trees grow with weights in place of Hessians; the Hessians are kept for leaf values.
    weights_as_hessian = parameters.criterion == "gradient" and not loss.constant_hessian
    max_weight = max_weight_of(stats, parameters, loss.constant_hessian or weights_as_hessian)
    constant_hessian = (loss.constant_hessian or weights_as_hessian) and max_weight is not None
    precision = precision_of(parameters, constant_hessian, max_weight or 1)
    policy = growth_policy_of(parameters, rows.n_rows)
    shard = ShardSpec(
        layout=layout,
        bin_layout=bin_layout,
        n_outputs=loss.n_outputs,
        width=width_of(parameters, loss),
        n_targets=len(loss.targets.columns),
        columns=loss.targets.of_outputs,
        weighted=rows.weighted,
        integer_weights=max_weight is not None,
        constant_hessian=constant_hessian,
        weights_as_hessian=weights_as_hessian,
        steady_gradients=all(leaves.statistic == "quantile" for leaves in loss.leaves)
        and request.budget is None,  # needs bytes that no budget counts
        max_leaves=policy.max_leaves,
        n_channels=precision.n_channels,
        loss_unit=stats.loss_unit,
        speculates=policy.order != ANY_ORDER,
        averages=parameters.is_forest,
        compacts_target=all(_is_compiled(part) for part in loss.parts or (loss,)),
        has_draw_ids=rows.has_groups and (draws_rows(parameters) or bool(loss.targets.groups)),
        keeps_groups=bool(loss.targets.groups),
    )
    if parameters.arcbites is not None:
        arcbites = with_bite_count(parameters.arcbites, shard, request.budget, rows.n_rows, rows.most_rows)
        parameters, learning = replace(parameters, arcbites=arcbites), replace(learning, arcbites=arcbites)
    groups = groups_of(parameters, binning.features)
    return FitPlan(
        request=request,
        parameters=parameters,
        learning=learning,
        target=replace(target, loss=loss),
        named=rows.named,
        binning=binning,
        stats=stats,
        n_rows=rows.n_rows,
        max_weight=max_weight,
        shard=shard,
        precision=precision,
        policy=policy,
        constraints=FeatureConstraints.of(parameters.max_features, groups, len(binning.features)),
        direction=directions_of(parameters, binning.features, loss),
        metrics=tuple(evaluation[0]),
        stopping=evaluation[1],
        warm_start=warm_start,
        reference=rows.reference,
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


def stopping_rule(
    parameters: Parameters,
    given: StoppingRule | None,
    request: FitRequest,
    metrics: Sequence[MetricReduction],
) -> StoppingRule | None:
    """Return the given rule, by default one for the last metric of the last evaluation set (else of the held-out rows).

    Raises
    ------
    ParameterError
        When arcbites would be stopped by the training loss, whose rows change with each visit; for an unknown metric or
        evaluation set.
    """
    arcbites, rounds = parameters.arcbites, rounds_of(parameters)
    if given is None:
        if rounds is None:
            return None
        asked = EarlyStopping(rounds) if request.early_stopping is None else request.early_stopping
        names = [OUT_OF_BAG] if has_out_of_bag(parameters) else []
        names += [eval_set.name for eval_set in request.eval_sets]
        if request.validation_fraction is not None or not names:
            names.append(HELD_OUT)
        eval_set = names[-1] if asked.eval_set is None else asked.eval_set
        if eval_set not in names:
            raise ParameterError(f"early_stopping: there is no evaluation set {eval_set!r}, but {', '.join(map(repr, names))}")
        known = {metric.name: metric for metric in metrics}
        by_name = known | {ALIASES.get(name, name): metric for name, metric in known.items()}
        metric = metrics[-1] if asked.metric is None else by_name.get(ALIASES.get(asked.metric, asked.metric))
        if metric is None:
            raise ParameterError(
                f"early_stopping: {asked.metric!r} is none of the fit's metrics, which are {', '.join(known)}: name it in "
                "eval_metric, too"
            )
        column = f"{eval_set}_{metric.name}"
        return StoppingRule(
            column,
            rounds,
            larger_is_better=metric.larger_is_better,
            tolerance=asked.min_delta,
            pooled=None if request.fold is None else request.fold.pooled,
        )
    if arcbites is not None and given.column == "train_loss":
        raise ParameterError("arcbites cannot be stopped by the training loss, which is always another bite's: hold rows out")
    if arcbites is not None and arcbites.early_stopping_rounds is not None:
        return given.with_rounds(arcbites.early_stopping_rounds)
    return given


def rounds_of_rule(rule: Any, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the parameter that a value of ``early_stopping=`` stands for.

    Raises
    ------
    ParameterError
        If it is no `EarlyStopping`, or beside `early_stopping_rounds`.
    """
    if rule is None:
        return {}
    if not isinstance(rule, EarlyStopping):
        raise ParameterError(f"early_stopping={rule!r:.60} must be a dboost.EarlyStopping, such as dboost.EarlyStopping(20)")
    if parameters.get("early_stopping_rounds") is not None:
        raise ParameterError("early_stopping and early_stopping_rounds are two rules to stop by: give one")
    return {"early_stopping_rounds": rule.rounds}


def parse_time_limit(given: Any) -> float | None:
    """Return a time limit in seconds.

    Raises
    ------
    ParameterError
        If it is neither a positive number nor a duration.
    """
    if given is None:
        return None
    seconds = given
    if isinstance(given, str):
        from dask.utils import parse_timedelta  # importing it takes time that most fits need not spend

        try:
            seconds = parse_timedelta(given.replace("min", "m") if given.strip().endswith("min") else given)
        except (KeyError, ValueError):
            seconds = None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise ParameterError(f'time_limit={given!r} must be a positive number of seconds or a duration, such as "10min"')
    return float(seconds)


def rounds_of(parameters: Parameters) -> int | None:
    """Return the number of iterations without improvement after which a fit stops; None without early stopping."""
    arcbites = parameters.arcbites
    if arcbites is None or not arcbites.is_watched:
        return parameters.early_stopping_rounds
    return arcbites.early_stopping_rounds or parameters.early_stopping_rounds or DEFAULT_ROUNDS


def _check_early_stopping(request: FitRequest) -> None:
    """Raise ParameterError for early stopping without an evaluation set and without held-out rows."""
    parameters = request.parameters
    holds_out = request.fold is not None or request.validation_fraction is not None
    holds_out = holds_out or (parameters.arcbites is not None and parameters.arcbites.is_watched) or has_out_of_bag(parameters)
    if parameters.early_stopping_rounds is not None and not request.eval_sets and not holds_out:
        raise ParameterError("early_stopping_rounds needs an eval_set, or validation_fraction")


def check_columns(eval_sets: Sequence[str], metrics: Sequence[str]) -> None:
    """Raise ParameterError if a metric of an evaluation set and other values have the same column in the history."""
    taken = dict.fromkeys((*NOT_SCORES, "train_loss"), "a column that every history may have")
    for name in eval_sets:
        for metric in dict.fromkeys(metrics):  # one metric may be given twice
            column, values = f"{name}_{metric}", f"metric {metric!r} of evaluation set {name!r}"
            if column in taken:
                raise ParameterError(
                    f"{values} would be the column {column!r} of the history, which is {taken[column]}: "
                    "give the evaluation set or the metric another name"
                )
            taken[column] = values


def with_own_metrics(metrics: Sequence[MetricReduction], own: Sequence[MetricReduction]) -> list[MetricReduction]:
    """Return the user's metrics, and those of an estimator that are not among them.

    Raises
    ------
    ParameterError
        If a function of the user has the name of a metric of the estimator.
    """
    known = {metric.name: metric for metric in metrics}
    for metric in own:
        if metric.name in known and known[metric.name].spec != metric.spec:
            raise ParameterError(
                f"eval_metric: a function is called {metric.name!r}, like the metric that the estimator computes: give it "
                "another name"
            )
    return [*metrics, *(metric for metric in own if metric.name not in known)]


def checked_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """Return callbacks as a tuple; none for None.

    Raises
    ------
    InputTypeError
        For a callback that is not callable.
    """
    if callbacks is None:
        return ()
    checked = (callbacks,) if callable(callbacks) or not np.iterable(callbacks) else tuple(callbacks)
    for callback in checked:
        if not callable(callback):
            raise InputTypeError(f"a callback must be a function of an Iteration, not {type(callback).__name__}")
    return checked
