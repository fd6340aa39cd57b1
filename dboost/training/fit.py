"""The steps of a fit: read → target → validation rows → bins → initial score → encode → boost → model.

Every kind of fit runs through `train`: in memory, streamed from files, with arcbites, on prepared data, on a cluster. The kinds
differ in the `Backend` that has the rows, and in nothing else. All decisions follow from statistics that do not depend on the
partitions: sums of integers, minima, maxima and unions.

`training.leaf_refit` has its own, shorter sequence of steps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any, NamedTuple, Protocol

import numpy as np

from dboost.data.columns.binning import MAX_FINE_BINS, Binning, columns_at_once, distinct_values, exact_binning
from dboost.data.tables.eval_tables import named_in_messages
from dboost.display import counted
from dboost.errors import DBoostError, FitInterrupted, ParameterError, shown, warn
from dboost.losses import BaseLoss
from dboost.metrics.metric import MetricReduction
from dboost.metrics.named import find_metrics
from dboost.model import model_file
from dboost.model.ensemble import Ensemble, without_counts
from dboost.params import FOREST, GBDT, Parameters
from dboost.rows.bin_proposal import FINE_BINS_PER_BIN
from dboost.schema import Feature
from dboost.session.backend import Backend
from dboost.session.cut_groups import check_groups, group_runs
from dboost.session.fit_records import Chosen
from dboost.session.reference_sample import (
    ReferenceSample,
    reference_values,
    warn_of_damping,
    warn_of_drift,
    warn_of_ids,
    with_summary,
)
from dboost.session.row_assignment import assign_rows, class_counts, digit_counts
from dboost.session.row_samples import DigitRequest
from dboost.session.table_rows import TableRows
from dboost.session.target import Target, check_order_of_targets, choose_target, continued, target_for, target_of
from dboost.session.warm_start import WarmStart, check_continues
from dboost.training.arcbites import arcbite_visits
from dboost.training.binned_data import check_thresholds, refuse_other_proposals
from dboost.training.callbacks import Callback, Iteration, StoppingRule
from dboost.training.damped_steps import damping_message
from dboost.training.history import OUT_OF_BAG, check_columns
from dboost.training.loop import BoostingLoop, all_rows, assemble
from dboost.training.plan import FitPlan, RowsDescription, check_width, make_plan, requested, width_of
from dboost.training.request import FitRequest, check_loss_of_groups
from dboost.training.scores import stopping_rule, with_estimator_metrics
from dboost.training.split_limits import no_split_reason
from dboost.training.target_stats import Sizes, of_roles, sizes_of, target_stats
from dboost.training.validation_rows import ValidationPlan, check_whole_groups, held_out_rows_of, warn_held_out
from dboost.trees.fit_trees import TreesSoFar

_log = logging.getLogger("dboost")

#: From this many trees an iteration on, the log names the strategy of one tree.
_MANY_OUTPUTS = 8


@dataclass
class FitResult:
    """The model and the history of a fit."""

    ensemble: Ensemble
    history: list[dict[str, Any]]  # one record per iteration of this fit
    before: dict[str, float] = field(default_factory=dict)  # losses and metrics before the first iteration
    early_stopping: StoppingRule | None = None  # the rule, whether or not it stopped the fit
    whole: Ensemble | None = None  # of a fold: the model with the iterations after the best one
    timings: dict[str, float] = field(default_factory=dict)  # seconds by phase: "load", "bin", "train"
    no_split: str | None = None  # why no tree of this fit has a split, to warn of
    ended_by: str | None = None  # why the last iteration was the last
    n_rows: int = 0  # that were trained on
    lost_workers: list[dict[str, Any]] = field(default_factory=list)  # see `cluster.client.connection.Connection.losses`
    reference: ReferenceSample | None = None  # of the rows that were trained on


class FitObserver(Protocol):
    """Observes one call: called after each iteration, as a callback, and at the end. It must not raise."""

    def __call__(self, iteration: Iteration) -> Any:
        """See an iteration."""

    def end(self, result: FitResult | None) -> None:
        """See the result; None if the call failed."""


#: Functions that make the observers of every call of this process, from the plan of its first fit.
OBSERVERS: list[Callable[[FitPlan], FitObserver]] = []


class Watch:
    """The observers of a call. If it has two fits (`training.two_fits`), they see the iterations of the first one, and the
    result of the second one."""

    def __init__(self) -> None:
        self.result: FitResult | None = None
        self._observers: list[FitObserver] | None = None

    def begin(self, plan: FitPlan) -> list[FitObserver]:
        """Return the observers of a fit; none of a second one."""
        if self._observers is not None:
            return []
        self._observers = [make_observer(plan) for make_observer in OBSERVERS]
        return self._observers

    def end(self) -> None:
        """Tell the observers about the end."""
        for observer in self._observers or ():
            observer.end(self.result)


def train(request: FitRequest, backend: Backend) -> FitResult:
    """Train on the rows of a backend, and close it."""
    clock, model_so_far = Clock(), ModelSoFar()
    try:
        with request.checkpoint or nullcontext():
            with interruptible_reading(), nullcontext() if request.fold is None else request.fold.loading:
                plan = plan_fit(request, backend, clock, model_so_far)
                trees = TreesSoFar(plan.shard_spec.trees_per_iteration)
                encode(plan, backend, trees, clock)
            return boost(plan, backend, trees, clock, model_so_far)
    finally:
        request.progress.close()
        backend.close()


def plan_fit(request: FitRequest, backend: Backend, clock: Clock, model_so_far: ModelSoFar) -> FitPlan:
    """Read the rows, and decide everything that the trees depend on."""
    request.progress.phase("reading the data")
    features = load(request, backend)
    warm_start = request.warm_start.widened(features)
    target = learn_target(request, warm_start, features, backend)
    parameters = parameters_for(request, warm_start, features, target)
    if target.loss.targets.groups:
        check_loss_of_groups(request, parameters, target.loss, backend.roles)
        check_groups(backend.ask(group_runs), target.loss.name)
    held_out = hold_out(request, target, backend, model_so_far)
    scoring = choose_scoring(request, parameters, target, held_out)
    if request.checkpoint is not None:
        settings = requested(parameters, request, *scoring)
        warm_start = request.checkpoint.resume(warm_start, features, target, parameters, settings)
    clock.lap("load")

    request.progress.phase("binning")
    if warm_start.is_new_source:
        backend.change(TableRows.compute_start_scores, warm_start)
    description = describe(request, parameters, target, held_out.chosen, backend)  # often the first call of workers
    binning = propose_bins(request, parameters, warm_start, features, backend)
    ask = partial(of_roles, backend)
    stats = target_stats(target.loss, ask, continues=warm_start.is_new_source, sizes=description.sizes)
    plan = make_plan(request, parameters, target, binning, stats, description, scoring, warm_start, ask)
    model_file.check(plan.empty)  # now rather than after hours of training
    return plan


def encode(plan: FitPlan, backend: Backend, trees: TreesSoFar, clock: Clock) -> None:
    """Encode the rows, and load the evaluation sets."""
    request = plan.request
    backend.build(plan.build_spec, plan.chosen, trees)
    clock.lap("bin")
    if plan.has_eval_sets:
        request.progress.phase("reading evaluation sets")
        backend.load_eval_sets(plan.chosen, request.eval_sets)
        clock.lap("load")


def load(request: FitRequest, backend: Backend) -> tuple[Feature, ...]:
    """Read the rows; return the features."""
    model, binned = request.warm_start.model, request.binned
    if model is not None:
        check_boosting(model, request.parameters)
    if binned is not None:
        refuse_other_proposals(request.parameters, binned)
        if model is not None:
            check_thresholds(model, binned.binning)
    return backend.load()


def check_boosting(model: Ensemble, parameters: Parameters) -> None:
    """Raise a ParameterError if a forest is to be continued with boosting, or a boosted model with a forest."""
    if model.averages != parameters.is_forest:
        kind, boosting = ("a forest", FOREST) if model.averages else ("a boosted model", GBDT)
        raise ParameterError(f"the model to continue is {kind}: give boosting={boosting!r}")


def learn_target(request: FitRequest, warm_start: WarmStart, features: tuple[Feature, ...], backend: Backend) -> Target:
    """Choose loss and classes: of the model that is continued, as given, or by the targets; encode the targets."""
    model, parameters = warm_start.model, request.parameters
    if warm_start.is_new_source and model is not None:
        target = target_of(model, parameters)
    elif request.classes is not None:
        target = target_for(request.classes, parameters)
    else:
        target = choose_target(backend.target_scans(), parameters, request.roles.get("target"))
    encode_targets = partial(backend.change, TableRows.encode_targets, target)
    if warm_start.is_new_source:
        continued(encode_targets)
        continued(backend.complete)
    else:
        encode_targets()
    if model is not None:
        check_continues(model, features, target)
        target = replace(target, loss=target.loss.continued(model.loss))
        continued(lambda: check_order_of_targets(request.roles.get("target"), target.loss))
    for eval_set in request.eval_sets:
        with named_in_messages(eval_set.name):
            check_order_of_targets(eval_set.roles.get("target"), target.loss)
    if target.loss.link.are_probabilities and request.roles.get("offset") is not None:
        raise ParameterError("offset is added to raw scores, and those of a forest of classes are probabilities: leave it out")
    return target


def parameters_for(request: FitRequest, warm_start: WarmStart, features: tuple[Feature, ...], target: Target) -> Parameters:
    """Return the parameters, completed by what depends on loss and features."""
    parameters = request.parameters.with_loss(target.loss.name)
    parameters = parameters.with_features(len(features), is_classification=target.is_classification)
    if warm_start.model is not None:
        check_width(warm_start.model, parameters, target.loss)
    if target.loss.n_outputs >= _MANY_OUTPUTS and width_of(parameters, target.loss) == 1:
        _log.info(
            "each iteration grows %d trees; multi_strategy='multi_output_tree' grows one with as many values per leaf"
            " (try max_leaf_nodes=63, learning_rate=0.2)",
            target.loss.n_outputs,
        )
    return parameters


class HeldOut(NamedTuple):
    """The rows that are not trained on, and those that are watched."""

    validation: ValidationPlan
    chosen: Chosen  # number and largest weight of the rows of each evaluation set that is chosen from the training rows


def hold_out(request: FitRequest, target: Target, backend: Backend, model_so_far: Callable[[], Ensemble]) -> HeldOut:
    """Apply class weights; select the rows that are held out or watched."""
    validation, parameters = ValidationPlan(), request.parameters
    if request.fold is not None:
        validation = ValidationPlan(fold=request.fold.rows)
    elif request.make_validation_plan is None and not needs_test_set(parameters, validation, request.eval_sets):
        return HeldOut(validation, {})
    before, n_rows, n_classes = backend.n_kept, backend.n_rows, target.n_classes

    def count_digits(digits: DigitRequest) -> np.ndarray:
        return reduce(np.add, backend.ask(digit_counts, n_classes, digits))

    counts = [n_rows] if n_classes is None else reduce(np.add, backend.ask(class_counts, n_classes)).tolist()
    if request.make_validation_plan is not None:
        validation = request.make_validation_plan(counts, target, model_so_far)
        if not backend.is_one_process and any(metric.wants_block for metric in validation.metrics):
            raise ParameterError(
                "scoring with a scorer needs all rows in one process; on a cluster use scoring='loss', or eval_metric"
            )
    holds_out_test_set = needs_test_set(parameters, validation, request.eval_sets)
    test_rows = held_out_rows_of(n_rows, parameters.random_state) if holds_out_test_set else None
    has_groups = "group" in backend.roles
    assignment = validation.assign(counts, None if has_groups else count_digits, test_rows)
    backend.change(assign_rows, n_classes, assignment)

    trained = backend.ask(TableRows.row_counts)
    after = dict(sorted((i, n) for rows in trained for i, n in rows.n_kept.items()))
    n_held_out = n_rows - sum(after.values())
    if holds_out_test_set:
        warn_held_out(n_held_out, n_rows)
    elif has_groups and validation.held_out is not None:
        check_whole_groups(n_held_out, n_rows)
    elif after.keys() != before.keys() or n_held_out != validation.n_held_out:
        raise DBoostError(f"{n_held_out} of {n_rows} rows in {len(after)} of {len(before)} partitions were held out")
    backend.set_trained(after, all(rows.unit_weights for rows in trained))
    chosen: Chosen = {}
    for rows in trained:
        for name, (n, max_weight) in rows.chosen.items():
            n_so_far, max_so_far = chosen.get(name, (0, 0.0))
            chosen[name] = n_so_far + n, max(max_so_far, max_weight)
    return HeldOut(validation, dict(sorted(chosen.items(), reverse=True)))  # "validation", then "train"


def needs_test_set(parameters: Parameters, plan: ValidationPlan, sets: Sequence[Any]) -> bool:
    """Whether arcbites need a test set and the user has given none."""
    arcbites = parameters.arcbites
    is_watched = arcbites is not None and arcbites.is_watched
    return is_watched and not sets and plan.early_stopping is None and plan.held_out is None


def choose_scoring(
    request: FitRequest, parameters: Parameters, target: Target, held_out: HeldOut
) -> tuple[list[MetricReduction], StoppingRule | None]:
    """Return the metrics of evaluation sets, and the rule of early stopping."""
    has_eval_sets = bool(held_out.chosen or request.eval_sets)
    metrics: list[MetricReduction] = []
    is_scored = has_eval_sets or request.eval_metric is not None or parameters.is_forest
    if is_scored or request.checkpoint is not None:  # which stores their names
        metrics = find_metrics(request.eval_metric, target.loss)
    stopping = stopping_rule(parameters, held_out.validation.early_stopping, request, metrics)
    metrics = with_estimator_metrics(metrics, held_out.validation.metrics)
    if has_eval_sets:
        names = [*held_out.chosen, *(eval_set.name for eval_set in request.eval_sets)]
        names += [OUT_OF_BAG] if parameters.has_out_of_bag else []
        check_columns(names, [metric.name for metric in metrics])
    return metrics, stopping


def describe(request: FitRequest, parameters: Parameters, target: Target, chosen: Chosen, backend: Backend) -> RowsDescription:
    """Return the statistics of the rows that the plan depends on."""
    binned, loss = request.binned, target.loss
    reference: ReferenceSample | None
    if binned is None:
        sizes, reference = described(backend.ask(described_rows, loss, parameters.random_state), target)
    else:
        sizes = reduce(Sizes.merge, of_roles(backend, sizes_of, loss))  # first: it names a row of an invalid target
        reference = binned.reference(target)
    named = backend.named if binned is None else binned.named
    has_groups, weighted = "group" in backend.roles, not backend.unit_weights
    n_rows, most_rows = backend.n_rows, backend.most_rows
    return RowsDescription(n_rows, most_rows, weighted, named, reference, has_groups, sizes, chosen)


#: Values and targets of the rows of the reference sample by partition, and the sizes of the targets.
Described = tuple[dict[int, tuple[np.ndarray, np.ndarray]], list[Sizes]]


def described_rows(rows: TableRows, loss: BaseLoss, seed: int) -> Described:
    """Return what `describe` asks a session for, in one call."""
    return reference_values(rows, seed), rows.map_rows(sizes_of, (loss,))


def described(answers: Sequence[Described], target: Target) -> tuple[Sizes, ReferenceSample]:
    """Merge the answers of sessions to `described_rows`."""
    by_partition = {i: sample for samples, _ in answers for i, sample in samples.items()}
    sizes = reduce(Sizes.merge, [of_range for _, of_ranges in answers for of_range in of_ranges])
    if not by_partition:
        return sizes, ReferenceSample(np.empty((0, 0)), np.empty(0))
    values, targets = zip(*(by_partition[i] for i in sorted(by_partition)), strict=True)
    return sizes, ReferenceSample(np.concatenate(values), target.location(np.concatenate(targets, axis=-1)))


def propose_bins(
    request: FitRequest, parameters: Parameters, warm_start: WarmStart, features: tuple[Feature, ...], backend: Backend
) -> Binning:
    """Propose split points from a sample of the rows, with ``split_proposal="exact"`` from all distinct values."""
    if request.binned is not None:
        return request.binned.binning
    kept_binning = warm_start.kept_binning(features)
    if kept_binning is not None:
        return kept_binning
    if parameters.split_proposal == "exact":
        columns = zip(*backend.ask(TableRows.distinct_columns), strict=True)
        return exact_binning(features, [reduce(distinct_values, of_sessions) for of_sessions in columns])
    n_numeric = sum(not feature.is_categorical for feature in features)
    n_columns = max(columns_at_once(backend.n_rows, None if request.budget is None else request.budget.sampled), 1)
    edges: list[np.ndarray] = []
    for first in range(0, n_numeric, n_columns):  # the sampled values of so many columns fit into memory together
        columns_of_range = first, min(first + n_columns, n_numeric)
        edges += backend.propose(parameters.random_state, columns_of_range, fine_bins_of(parameters))
    numeric = iter(edges)
    return Binning(features, tuple(None if feature.is_categorical else next(numeric) for feature in features))


def fine_bins_of(parameters: Parameters) -> int:
    """Return the largest number of fine bins of a numeric feature, see `rows.bin_proposal`."""
    return {
        "global": parameters.max_bins,
        "tree": MAX_FINE_BINS,
        "node": FINE_BINS_PER_BIN * parameters.max_bins,
        "exact": MAX_FINE_BINS,
    }[parameters.split_proposal]


def boost(plan: FitPlan, backend: Backend, trees: TreesSoFar, clock: Clock, model_so_far: ModelSoFar) -> FitResult:
    """Grow the trees, and assemble the model."""
    request, n_features = plan.request, len(plan.binning.features)
    with observed(plan) as watch:
        callbacks: list[Callback] = [
            *request.callbacks,
            *backend.observers(plan.target.loss.name, n_features),
            *watch.begin(plan),
        ]
        loop = BoostingLoop(plan, backend, trees, callbacks)
        model_so_far.assemble = partial(assemble, loop, whole=True)
        announce(plan, loop.last_iteration)
        try:
            with interruptible(loop):
                arcbites = plan.parameters.arcbites
                for visit in all_rows(loop) if arcbites is None else arcbite_visits(loop, arcbites):
                    gradients = visit.gradients
                    while visit.goes_on:
                        gradients = loop.iterate(gradients, visit)
                unsplit = loop.gradients_without_split
                no_split = None if unsplit is None else no_split_reason(loop, unsplit)
        finally:
            request.progress.close()
            backend.release()
        clock.lap("train")
        watch.result = result = result_of(loop, no_split, clock)
    return result


@contextmanager
def observed(plan: FitPlan) -> Iterator[Watch]:
    """Tell observers about the end of the fit, also if it fails; those of two fits are told about the end of the second."""
    watch = plan.request.watch
    if watch is not None:
        yield watch
        return
    watch = Watch()
    try:
        yield watch
    finally:
        watch.end()


def announce(plan: FitPlan, last_iteration: int) -> None:
    """Begin the progress display and warn of ids; of a fit that was interrupted say where it resumes, and of a model that is
    continued on other data how steps are damped, and warn of drift."""
    warm_start, bar, checkpoint = plan.warm_start, plan.request.progress, plan.request.checkpoint
    bar.begin(last_iteration)
    if checkpoint is not None and warm_start.model is not None and warm_start.resumes:
        n_done = warm_start.model.n_iterations
        begins = f"resumes at iteration {n_done + 1:,}" if n_done < last_iteration else f"all {n_done:,} iterations are done"
        message = f"{begins}: {shown(checkpoint.path)} has {counted(checkpoint.n_iterations, 'iteration')} of this fit"
        _log.info(message)
        bar.write(message)
    if warm_start.model is None and plan.reference is not None:
        warn_of_ids(plan.binning.features, plan.reference)
    if warm_start.is_new_source and warm_start.model is not None and not warm_start.resumes:
        message = damping_message(plan.parameters, plan.learning, plan.stats.unexplained)
        if message:
            _log.info(message)
            bar.write(message)
        warn_of_damping(warm_start.model, plan.n_rows, plan.parameters, plan.learning)
        if plan.reference is not None:
            warn_of_drift(warm_start.model, plan.reference, plan.parameters, plan.learning)


@contextmanager
def interruptible(loop: BoostingLoop) -> Iterator[None]:
    """Turn ^C into a `FitInterrupted` with the model so far."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        n_done, kept, checkpoint = loop.n_done, "", loop.checkpoint
        if checkpoint is not None:
            kept = f"; the checkpoint in {checkpoint.path} holds {checkpoint.n_iterations} of this fit"
        model = _described(assemble(loop), loop.plan) if n_done else None
        message = f"interrupted after {n_done} of {loop.last_iteration} iterations{kept}"
        raise FitInterrupted(message, model, n_done) from stopped


def result_of(loop: BoostingLoop, no_split: str | None, clock: Clock) -> FitResult:
    """Assemble the model and its history. no_split : why no tree has a split."""
    plan, checkpoint, stopping = loop.plan, loop.checkpoint, loop.early_stopping
    model, fold, whole = _described(assemble(loop), plan), plan.request.fold, None
    history = loop.history if checkpoint is None or plan.parameters.arcbites is not None else checkpoint.history
    if fold is not None:
        history = [*fold.past, *history]
        whole = model if stopping is None else assemble(loop, whole=True)
    # Check that the model can be loaded again once it has been saved.
    continued_model = plan.warm_start.model
    model_file.check(model, n_known=0 if continued_model is None else len(continued_model.trees))
    if no_split is not None and fold is None:  # `folds.fit_folds` warns once for all folds
        warn(no_split)
    return FitResult(
        model,
        history,
        loop.before,
        stopping,
        whole,
        clock.seconds,
        no_split,
        loop.ended_by,
        plan.n_rows,
        reference=plan.reference,
    )


def _described(model: Ensemble, plan: FitPlan) -> Ensemble:
    """Return the model with a summary of the data, or without anything that describes them."""
    return with_summary(model, plan.reference) if plan.request.keep_summary else without_counts(model)


@contextmanager
def interruptible_reading() -> Iterator[None]:
    """Turn ^C while data are read into a `FitInterrupted`."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        raise FitInterrupted("interrupted while reading the data, before the first iteration", None, 0) from stopped


class Clock:
    """Measures seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._last
        self._last = now


class ModelSoFar:
    """Returns the ensemble with the trees grown so far, once the loop runs; for the scorers of estimators."""

    assemble: Callable[[], Ensemble] | None = None

    def __call__(self) -> Ensemble:
        if self.assemble is None:
            raise DBoostError("no tree has been grown yet")
        return self.assemble()
