"""The steps of a fit: read → target → validation rows → bins → initial score → encode → boost → ensemble.

Every kind of fit runs through `fit`: in memory, streamed from files, with arcbites, on prepared data, on a cluster. The kinds
differ in the implementation of `TrainingRows`, i.e. where the rows are and how they are stored, and in the engine that it
opens. All decisions follow from statistics that do not depend on the partitions.

`SessionRows` implements `TrainingRows` for tables whose rows are in sessions, in this process (`LocalTable`) or on a cluster:
it calls all sessions and merges their statistics by sums of integers, minima, maxima and unions, so the result does not depend
on the partitions. `training.prepared_dataset.PreparedRows` implements it for prepared data sets.

`training.leaf_refit` has its own, shorter sequence of steps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial, reduce
from typing import Any, Protocol

import numpy as np

from dboost.data import Table
from dboost.data.binning import Binning, Sample, columns_at_once, distinct_values, exact_binning, propose_together
from dboost.data.eval_tables import EvalTable, named_in_messages
from dboost.errors import DBoostError, FitInterrupted, ParameterError, warn
from dboost.losses import Loss
from dboost.metrics.metric import MetricReduction
from dboost.metrics.named import find_metrics
from dboost.model import model_file
from dboost.model.ensemble import Ensemble, without_counts
from dboost.params import Parameters
from dboost.schema import Feature
from dboost.session.batch_rows import BatchRows
from dboost.session.calls import BuildSpec, Calls, Chosen, ReplayState
from dboost.session.evaluation import EvalRows, SessionEvalSets, log_streamed_eval_set
from dboost.session.reference_sample import ReferenceSample, reference_values, warn_of_drift, with_summary
from dboost.session.row_assignment import Numbered, assign_rows, class_counts, digit_counts
from dboost.session.row_samples import DigitRequest
from dboost.session.session import ByPartitions, Result, SessionTable
from dboost.session.target import (
    Target,
    TargetScan,
    check_order_of_targets,
    choose_target,
    continued,
    scan_targets,
    target_for,
    target_of,
)
from dboost.session.thread_team import team_for
from dboost.session.warm_start import WarmStart, check_continues
from dboost.session.worker_session import WorkerSession
from dboost.shards.arcbite_rows import bites_with_rows
from dboost.training.arcbites import run_arcbites
from dboost.training.callbacks import Callback
from dboost.training.direct_calls import DirectCalls, log_rows_in_files
from dboost.training.engine import Engine
from dboost.training.fit_result import OBSERVERS, FitResult
from dboost.training.history import OUT_OF_BAG
from dboost.training.leaf_values import Sizes, output_scales, sizes_of, target_stats
from dboost.training.loop import BoostingLoop, assemble
from dboost.training.plan import (
    FitPlan,
    FitRequest,
    RowsDescription,
    ValidationPlan,
    check_boosting,
    check_columns,
    check_whole_groups,
    check_width,
    fine_bins_of,
    has_out_of_bag,
    held_out_rows_of,
    make_plan,
    needs_test_set,
    requested,
    stopping_rule,
    warn_held_out,
    width_of,
    with_own_metrics,
)
from dboost.training.split_limits import why_no_split

_log = logging.getLogger("dboost")

#: From this many trees an iteration on, the log names the strategy of one tree.
_MANY_OUTPUTS = 8


def fit(request: FitRequest, rows: TrainingRows) -> FitResult:
    """Train on rows, and close them."""
    clock, ensemble_so_far = Clock(), _EnsembleSoFar()
    try:
        with request.checkpoint or nullcontext():
            with interruptible_reading(), nullcontext() if request.fold is None else request.fold.loading:
                plan, engine, eval_sets = _prepare(request, rows, clock, ensemble_so_far)
            observers = [make_observer(plan) for make_observer in OBSERVERS]
            callbacks: list[Callback] = [*request.callbacks, *rows.observers(plan), *observers]
            result = None
            try:
                result = _boost(plan, engine, eval_sets, callbacks, clock, ensemble_so_far)
            finally:
                for observer in observers:
                    observer.end(result)
            return result
    finally:
        request.progress.close()
        rows.close()


def fit_table(request: FitRequest, open_training: Callable[[], Table]) -> FitResult:
    """Train in this process on the table that a function opens."""
    return fit(request, SessionRows(LocalTable(open_training, request.n_threads), request))


def _prepare(
    request: FitRequest, rows: TrainingRows, clock: Clock, ensemble_so_far: _EnsembleSoFar
) -> tuple[FitPlan, Engine, SessionEvalSets | None]:
    """Read the data; return the plan, an engine with the encoded rows, and the evaluation sets."""
    progress = request.progress
    if request.warm_start.model is not None:
        check_boosting(request.warm_start.model, request.parameters)
    progress.phase("reading the data")
    features = rows.load()
    warm_start = request.warm_start
    if warm_start.model is not None:
        warm_start = warm_start.widened(features)
    target = rows.learn_target()
    if warm_start.model is not None:
        check_continues(warm_start.model, features, target)
        target = replace(target, loss=target.loss.continued(warm_start.model.loss))
        continued(lambda: check_order_of_targets(request.roles.get("target"), target.loss))
    for one in request.eval_sets:
        with named_in_messages(one.name):
            check_order_of_targets(one.table.roles.get("target"), target.loss)
    if target.loss.scores_are_probabilities and request.roles.get("offset") is not None:
        raise ParameterError("offset is added to raw scores, and those of a forest of classes are probabilities: leave it out")
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
    validation, chosen = rows.assign(target, ensemble_so_far)
    has_eval_sets = bool(chosen or request.eval_sets)
    metrics: list[MetricReduction] = []
    is_scored = has_eval_sets or request.eval_metric is not None or parameters.is_forest
    if is_scored or request.checkpoint is not None:  # which stores their names
        metrics = find_metrics(request.eval_metric, target.loss)
    stopping = stopping_rule(parameters, validation.early_stopping, request, metrics)
    metrics = with_own_metrics(metrics, validation.metrics)
    if has_eval_sets:
        names = [*chosen, *(one.name for one in request.eval_sets), *([OUT_OF_BAG] if has_out_of_bag(parameters) else [])]
        check_columns(names, [metric.name for metric in metrics])
    if request.checkpoint is not None:
        settings = requested(parameters, request, metrics, stopping)
        warm_start = request.checkpoint.resume(warm_start, features, target, parameters, settings)
    clock.lap("load")

    progress.phase("binning")
    if warm_start.is_new_source:
        rows.compute_start_scores(warm_start)
    description = rows.describe(parameters.random_state)  # the first call of workers, which makes all changes of rows so far
    binning = rows.propose_bins(warm_start, parameters)
    stats = target_stats(target.loss, rows.map_rows, continues=warm_start.is_new_source, sizes=description.sizes)
    plan = make_plan(request, parameters, target, binning, stats, description, (metrics, stopping), warm_start)
    if plan.shard.grouped and plan.parameters.arcbites is not None:
        seed, n_bites = plan.parameters.random_state, plan.parameters.arcbites.n_parts
        plan = replace(plan, bites=reduce(np.logical_or, rows.map_rows(bites_with_rows, seed, n_bites)))
    loss = plan.target.loss
    if plan.shard.width > 1 and (loss.parts or not loss.is_classification):  # targets have their own units, classes one
        plan = replace(plan, output_scales=output_scales(loss, rows.map_rows, stats.baseline))
    model_file.check(plan.empty)  # now rather than after hours of training
    engine = rows.build(plan, chosen)
    clock.lap("bin")
    eval_sets: SessionEvalSets | None = None
    if has_eval_sets:
        progress.phase("reading evaluation sets")
        try:
            eval_sets = rows.eval_sets(plan, chosen, request.eval_sets)
        except BaseException:
            engine.close()
            raise
        clock.lap("load")
    return plan, engine, eval_sets


def _boost(
    plan: FitPlan,
    engine: Engine,
    eval_sets: SessionEvalSets | None,
    callbacks: Sequence[Callback],
    clock: Clock,
    ensemble_so_far: _EnsembleSoFar,
) -> FitResult:
    """Run the boosting loop and assemble the model."""
    warm_start, stopping, checkpoint = plan.warm_start, plan.stopping, plan.request.checkpoint
    loop = BoostingLoop(plan, engine, eval_sets, callbacks)
    if stopping is not None and warm_start.model is not None and not (warm_start.is_new_source or warm_start.resumes):
        stopping.resume(warm_start.model)
    collect = partial(assemble, loop)
    ensemble_so_far.assemble = partial(collect, whole=True)
    bar = plan.request.progress
    bar.begin(loop.n_iterations)
    if warm_start.is_new_source and warm_start.model is not None and not warm_start.resumes:
        if plan.damping:
            _log.info(plan.damping)
            bar.write(plan.damping)
        if plan.reference is not None:
            warn_of_drift(warm_start.model, plan.reference, plan.parameters, plan.learning)
    try:
        if plan.parameters.arcbites is None:
            loop.run(collect, bar)
        else:
            run_arcbites(loop, plan.parameters.arcbites, collect, bar)
        no_split = why_no_split(loop) if loop.lacks_splits else None
    except KeyboardInterrupt as stopped:
        n_done, kept = loop.n_done, ""
        if checkpoint is not None:
            kept = f"; the checkpoint in {checkpoint.path} holds {checkpoint.n_iterations} of this fit"
        model = _described(collect(), plan) if n_done else None
        raise FitInterrupted(f"interrupted after {n_done} of {loop.n_iterations} iterations{kept}", model, n_done) from stopped
    finally:
        bar.close()
        engine.close()
    clock.lap("train")
    history = loop.history if checkpoint is None or plan.parameters.arcbites is not None else checkpoint.history
    ensemble, fold, whole = _described(collect(), plan), plan.request.fold, None
    if fold is not None:
        history = [*fold.past, *history]
        whole = ensemble if stopping is None else collect(whole=True)
    # Check that the model can be loaded again once it has been saved.
    model_file.check(ensemble, n_known=0 if warm_start.model is None else len(warm_start.model.trees))
    if no_split is not None and fold is None:  # `folds.fit_folds` warns once for all folds
        warn(no_split)
    return FitResult(ensemble, history, loop.before, stopping, whole, clock.seconds, no_split, loop.ended_by)


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


class _EnsembleSoFar:
    """Returns the ensemble with the trees grown so far, once the loop runs; for the scorers of estimators."""

    assemble: Callable[[], Ensemble] | None = None

    def __call__(self) -> Ensemble:
        if self.assemble is None:
            raise DBoostError("no tree has been grown yet")
        return self.assemble()


class TrainingRows(Protocol):
    """The rows of a fit, in this process, in files or on a cluster."""

    def load(self) -> tuple[Feature, ...]:
        """Read the rows and check them; return the features."""

    def learn_target(self) -> Target:
        """Choose loss and classes, and encode the target."""

    def assign(self, target: Target, ensemble_so_far: Callable[[], Ensemble]) -> tuple[ValidationPlan, Chosen]:
        """Apply class weights; select the rows that are held out or watched."""

    def propose_bins(self, warm_start: WarmStart, parameters: Parameters) -> Binning:
        """Propose the split points of numeric features."""

    def compute_start_scores(self, warm_start: WarmStart) -> None:
        """Compute the raw scores of the model that is continued."""

    def map_rows(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return ``function(roles, *arguments)`` of each row subset.

        The raw scores of a model that is continued replace the offset.
        """

    def describe(self, seed: int) -> RowsDescription:
        """Return the statistics that the plan depends on; seed : of the reference sample."""

    def build(self, plan: FitPlan, chosen: Chosen) -> Engine:
        """Encode the rows and open the engine that trains on them."""

    def eval_sets(self, plan: FitPlan, chosen: Chosen, sets: Sequence[EvalTable]) -> SessionEvalSets:
        """Return the evaluation sets, those chosen from the training rows first."""

    def observers(self, plan: FitPlan) -> list[Callback]:
        """Return callbacks that report the fit (on a cluster as events), called after those of the user."""

    def close(self) -> None:
        """Release all resources except the engine."""


class SessionRows:
    """The rows of a table in sessions."""

    def __init__(self, table: SessionTable, request: FitRequest) -> None:
        self._table, self._request = table, request

    def load(self) -> tuple[Feature, ...]:
        self._features = self._table.load()
        return self._features

    def learn_target(self) -> Target:
        self._target = target = learn_target(self._request, self._table.target_scans)

        encode = partial(self._table.apply, lambda _: partial(BatchRows.encode, target=target))
        if self._request.warm_start.is_new_source:
            continued(encode)
            continued(self._table.complete)
        else:
            encode()
        return target

    def assign(self, target: Target, ensemble_so_far: Callable[[], Ensemble]) -> tuple[ValidationPlan, Chosen]:
        table, request, validation = self._table, self._request, ValidationPlan()
        parameters = request.parameters
        if request.fold is not None:
            validation = ValidationPlan(fold=request.fold.rows)
        elif request.make_validation_plan is None and not needs_test_set(parameters, validation, request.eval_sets):
            return validation, {}
        before = table.n_kept
        starts, n_rows = starts_of(before), sum(before.values())
        n_classes = target.n_classes

        def numbered(numbers: Sequence[int]) -> Numbered:
            return {i: (starts[i], before[i]) for i in numbers}

        def count_digits(digits: DigitRequest) -> np.ndarray:
            return reduce(
                np.add,
                table.read(
                    lambda numbers: partial(digit_counts, numbered=numbered(numbers), n_classes=n_classes, digits=digits)
                ),
            )

        counts = [n_rows]
        if n_classes is not None:
            found = table.read(lambda numbers: partial(class_counts, numbered=numbered(numbers), n_classes=n_classes))
            counts = reduce(np.add, found).tolist()
        if request.make_validation_plan is not None:
            validation = request.make_validation_plan(counts, target, ensemble_so_far)
            for metric in validation.metrics:
                if metric.wants_block:
                    table.refuse_values(metric.name)
        holds_out_test_set = needs_test_set(parameters, validation, request.eval_sets)
        test_rows = held_out_rows_of(n_rows, parameters.random_state) if holds_out_test_set else None
        has_groups = "group" in table.roles
        assignment = validation.assign(counts, None if has_groups else count_digits, test_rows)

        def assign(numbers: Sequence[int]) -> Callable[[BatchRows], None]:
            fold = assignment.fold
            of_session = fold if fold is None else fold.of_partitions([(starts[i], before[i]) for i in numbers])
            return partial(
                assign_rows, numbered=numbered(numbers), n_classes=n_classes, assignment=replace(assignment, fold=of_session)
            )

        table.apply(assign)
        trained = table.read(lambda _: BatchRows.trained_rows)
        after = dict(sorted((i, n) for one in trained for i, n in one.n_kept.items()))
        n_held_out = n_rows - sum(after.values())
        if holds_out_test_set:
            warn_held_out(n_held_out, n_rows)
        elif has_groups and validation.held_out is not None:
            check_whole_groups(n_held_out, n_rows)
        elif after.keys() != before.keys() or n_held_out != validation.n_held_out:
            raise DBoostError(f"{n_held_out} of {n_rows} rows in {len(after)} of {len(before)} partitions were held out")
        table.note_assigned(after, all(one.unit_weights for one in trained))
        chosen: Chosen = {}
        for one in trained:
            for name, (n, max_weight) in one.chosen.items():
                so_far = chosen.get(name, (0, 0.0))
                chosen[name] = so_far[0] + n, max(so_far[1], max_weight)
        return validation, dict(sorted(chosen.items(), reverse=True))  # "validation", then "train"

    def propose_bins(self, warm_start: WarmStart, parameters: Parameters) -> Binning:
        """Propose split points from a sample of the rows, with ``split_proposal="exact"`` from all distinct values."""
        table, features = self._table, self._features
        if warm_start.keeps_bins:
            return warm_start.binning(features)
        if parameters.split_proposal == "exact":
            found = table.read(lambda _: BatchRows.distinct_columns)
            return exact_binning(features, [reduce(distinct_values, of_feature) for of_feature in zip(*found, strict=True)])
        n_rows = self._numbering[1]
        n_numeric = sum(not feature.is_categorical for feature in features)
        seed, starts = parameters.random_state, self._numbering[0]
        edges: list[np.ndarray] = []
        for columns in self._column_ranges(n_numeric, n_rows):

            def draw(numbers: Sequence[int], columns: tuple[int, int] = columns) -> Callable[[BatchRows], Sample]:
                of = {i: starts[i] for i in numbers}
                return partial(BatchRows.proposal_sample, starts=of, n_rows=n_rows, seed=seed, columns=columns)

            edges += table.propose(draw, columns[1] - columns[0], fine_bins_of(parameters))
        numeric = iter(edges)
        return Binning(features, tuple(None if feature.is_categorical else next(numeric) for feature in features))

    def _column_ranges(self, n_numeric: int, n_rows: int) -> list[tuple[int, int]]:
        """Return ranges of numeric columns whose sampled values fit into memory together."""
        n_columns = columns_at_once(n_rows, None if self._request.budget is None else self._request.budget.sampled)
        return [(first, min(first + n_columns, n_numeric)) for first in range(0, n_numeric, max(n_columns, 1))]

    def compute_start_scores(self, warm_start: WarmStart) -> None:
        self._table.apply(lambda _: partial(BatchRows.compute_start_scores, warm_start=warm_start))

    def map_rows(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        found = self._table.read(lambda _: partial(BatchRows.map_rows, function=function, arguments=arguments))
        return [answer for of_session in found for answer in of_session]

    def describe(self, seed: int) -> RowsDescription:
        table, (starts, n_rows), loss = self._table, self._numbering, self._target.loss
        by_partition: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        sizes: list[Sizes] = []
        for of_reference, of_session in table.read(
            lambda numbers: partial(described_rows, loss=loss, starts={i: starts[i] for i in numbers}, n_rows=n_rows, seed=seed)
        ):
            by_partition |= of_reference
            sizes += of_session
        ordered = [by_partition[i] for i in sorted(by_partition)]
        sample = ReferenceSample(np.empty((0, len(self._features))), np.empty(0))
        if ordered:
            values, targets = zip(*ordered, strict=True)
            sample = ReferenceSample(np.concatenate(values), self._target.location(np.concatenate(targets, axis=-1)))
        has_groups = "group" in table.roles
        return RowsDescription(
            n_rows, table.most_rows(), not table.unit_weights, table.named, sample, has_groups, reduce(Sizes.merge, sizes)
        )

    def build(self, plan: FitPlan, chosen: Chosen) -> Engine:
        self._spec = plan.build_spec(self._numbering[0])
        if chosen:
            self._table.hold_out_chosen(self._spec, chosen, with_block=plan.needs_values)
        return Engine(self._table.open_calls(self._spec), plan.n_rows, self._spec.target.loss.terms())

    def eval_sets(self, plan: FitPlan, chosen: Chosen, sets: Sequence[EvalTable]) -> SessionEvalSets:
        return self._table.eval_sets(self._spec, chosen, sets, with_block=plan.needs_values)

    def observers(self, plan: FitPlan) -> list[Callback]:
        return self._table.observers(plan.target.loss.name, plan.n_rows, len(self._features))

    def close(self) -> None:
        self._table.close()

    @cached_property
    def _numbering(self) -> tuple[dict[int, int], int]:
        """The global id of each partition's first row of positive weight, and the number of such rows; fixed after `assign`."""
        n_kept = self._table.n_kept
        return starts_of(n_kept), sum(n_kept.values())


def described_rows(
    rows: BatchRows, loss: Loss, starts: dict[int, int], n_rows: int, seed: int
) -> tuple[dict[int, tuple[np.ndarray, np.ndarray]], list[Sizes]]:
    """Return what `SessionRows.describe` asks a session for, in one call: the reference sample and the sizes of the targets."""
    return reference_values(rows, starts, n_rows, seed), rows.map_rows(sizes_of, (loss,))


def learn_target(request: FitRequest, scans: Callable[[], list[TargetScan]]) -> Target:
    """Return loss and classes: of the model that is continued, as given, or by the targets. The result holds no rows."""
    warm_start, parameters = request.warm_start, request.parameters
    if warm_start.is_new_source and warm_start.model is not None:
        return target_of(warm_start.model, parameters)
    if request.classes is not None:
        return target_for(request.classes, parameters)
    return choose_target(scans(), parameters, request.roles.get("target"))


def starts_of(n_kept: dict[int, int]) -> dict[int, int]:
    """Return the global id of each partition's first row among all rows of positive weight."""
    return dict(zip(n_kept, np.concatenate(([0], np.cumsum(list(n_kept.values())))).tolist(), strict=False))


class LocalTable:
    """A table in this process: one session, called directly.

    Parameters
    ----------
    open_table : callable
        Reads the table.
    n_threads : int
    is_shared : bool, default False
        Whether other fits use the table, too; then the caller closes it, and its roles are in memory.
    """

    _BATCH = "training data"

    def __init__(self, open_table: Callable[[], Table], n_threads: int, *, is_shared: bool = False) -> None:
        self._open_table, self._n_threads, self._is_shared = open_table, n_threads, is_shared
        self._resources = ExitStack()  # released by `close`

    def load(self) -> tuple[Feature, ...]:
        table = self.table = self._open_table()
        team = team_for(table.n_rows, len(table.features), self._n_threads)
        self._session = WorkerSession(self._n_threads, team=team)
        self._resources.callback(self._session.close)
        self._session.adopt(self._BATCH, table, closes=not self._is_shared)
        self.named = table.named
        self.n_kept, _, self.unit_weights = self._session.rows_of(self._BATCH).trained_rows()
        return table.features

    @property
    def roles(self) -> tuple[str, ...]:
        return self.table.role_names

    def target_scans(self) -> list[TargetScan]:
        return scan_targets(self.table)

    def read(self, function: ByPartitions[Result]) -> list[Result]:
        return [self._session.read(self._BATCH, function(self.table.numbers))]

    def propose(self, draw: ByPartitions[Sample], n_columns: int, max_bins: int) -> list[np.ndarray]:
        return propose_together(self.read(draw), max_bins, self._n_threads)

    def apply(self, step: ByPartitions[None]) -> None:
        self._session.apply(self._BATCH, step(self.table.numbers))

    def complete(self) -> None:
        """Do nothing: changes are made at once."""

    def note_assigned(self, n_kept: dict[int, int], unit_weights: bool) -> None:
        self.n_kept, self.unit_weights = n_kept, unit_weights

    def most_rows(self) -> int:
        return sum(self.n_kept.values())

    def refuse_values(self, name: str) -> None:
        """Accept every metric: all rows are in this process."""

    def hold_out_chosen(self, spec: BuildSpec, chosen: Chosen, *, with_block: bool) -> None:
        for name in chosen:
            rows = self._session.rows_of(self._BATCH)
            assert rows.chosen is not None
            some = EvalRows(rows.table, rows.target_of, *rows.chosen.pop(name))
            shared = self._session.codes_held_out(rows, replace(spec, is_whole=True), some.rows)
            self._session.eval_sets.add(name, some, spec, spec.budget, with_block=with_block, shared=shared)
            if self._session.eval_sets.in_files(name=name):
                log_streamed_eval_set(name)

    def open_calls(self, spec: BuildSpec) -> Calls:
        places = self._session.build(self._BATCH, replace(spec, is_whole=True), ReplayState())
        log_rows_in_files(places.in_files, spec)
        return DirectCalls(self._session, spec)

    def eval_sets(self, spec: BuildSpec, chosen: Chosen, sets: Sequence[EvalTable], *, with_block: bool) -> SessionEvalSets:
        for one in sets:
            self._session.eval_sets.add_table(one, spec, spec.budget, with_block=with_block)
        return self._session.eval_sets

    def observers(self, loss_name: str, n_rows: int, n_features: int) -> list[Callable[[Any], Any]]:
        return []

    def close(self) -> None:
        self._resources.close()
