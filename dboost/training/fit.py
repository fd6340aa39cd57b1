"""One fit in this process, from an open table to an ensemble.

From data to an engine that is ready to boost: rows in memory, rows in files, or rows that were binned before.

All three ask the same things in the same order: which loss is meant, where features are cut, where scores start; and all three
end in a `FitPlan` record, an engine, and what it takes to judge held-out rows. They differ in what is in memory meanwhile.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dboost.data import Table
from dboost.errors import ParameterError
from dboost.metrics.metric import find_metrics
from dboost.model.ensemble import Ensemble
from dboost.params import Parameters
from dboost.schema import Feature, Level
from dboost.session.arcbites_engine import ArcbitesEngine
from dboost.session.evaluation import EvalSet, EvalSetBuilder, named_sets
from dboost.session.fused_engine import FusedEngine
from dboost.session.memory_budget import Budget, MemoryReservation, check_proposal, check_rows_in_memory
from dboost.session.reference_sample import draw_reference_sample
from dboost.session.streamed_engine import StreamedEngine
from dboost.session.target import Target, TargetScan, merge_target_scans_to_target, read_target, target_for, target_of
from dboost.session.thread_team import Team
from dboost.session.warm_start import COLD_START, WarmStart, add_trees, check_continues, starting_scores
from dboost.shards.encode import encode_table, in_ranges, kept_rows, propose_binning
from dboost.shards.shard import Shard
from dboost.storage.spool import PrivateDirectory
from dboost.training.arcbites import bites_in_files, bites_in_memory, set_bite_count
from dboost.training.callbacks import Callback
from dboost.training.checkpoint import Checkpoint
from dboost.training.initial_score import in_one_part, target_stats
from dboost.training.plan import (
    Clock,
    FitPlan,
    FitResult,
    boost,
    check_bites,
    check_early_stopping,
    checked_callbacks,
    interruptible_reading,
    requested,
    stopping_rule,
    with_columns,
)
from dboost.training.prepared_dataset import (
    PreparedDataset,
    PreparedTargets,
    TableScan,
    blocks_around,
    propose_within,
    scan_table,
    shard_of,
    shard_spec_of,
    write_binned,
)
from dboost.training.validation_split import (
    MakeValidationPlan,
    TargetsInFiles,
    TargetsInMemory,
    ValidationPlan,
    choose_rows,
    eval_sets_of_chosen,
    needs_test_set,
)
from dboost.trees.bin_proposal import fine_bins_of

_log = logging.getLogger("dboost")


def available_threads(wanted: int | None) -> int:
    """Threads to use: what is asked for, else the processors this process may run on."""
    if wanted is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if isinstance(wanted, bool) or not isinstance(wanted, int | np.integer) or wanted < 1:
        raise ParameterError(f"n_threads={wanted!r} must be a positive integer or None")
    return int(wanted)


def fit_table(
    open_training: Callable[[], Table],
    parameters: Parameters,
    *,
    target_name: Any,
    weight_name: Any,
    offset_name: Any = None,
    eval_set: Any = None,
    eval_metric: Any = None,
    n_threads: int,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    make_validation_plan: MakeValidationPlan | None = None,
    warm_start: WarmStart = COLD_START,
    checkpoint: Checkpoint | None = None,
    source_name: str | None = None,
    classes: tuple[Level, ...] | None = None,
    budget: Budget | None = None,
) -> FitResult:
    """Load, bin and train.

    Parameters
    ----------
    open_training : callable
        Opens the training table; where a model of other data is continued, with its features.
    parameters : Parameters
    target_name, weight_name, offset_name : str or anything else
        Columns by name, which evaluation frames have too.
    eval_set, eval_metric, n_threads, callbacks, progress
        As in `dboost.fit`.
    make_validation_plan : callable, optional
        See `Supervision`.
    warm_start : Origin
        Where the fit begins.
    checkpoint : Checkpoint, optional
        Where it is written down, and perhaps has been.
    source_name : str, optional
        What the data are called in `Booster.sources`.
    classes : tuple of levels, optional
        All classes that there will ever be; default: those in the target.
    budget : Budget, optional
        What the fit may add to the process's memory. Rows that do not fit are streamed from files; the model is the same.
    """
    callbacks = checked_callbacks(callbacks)
    wanted = FitRequest(
        parameters,
        list(named_sets(eval_set)),
        eval_metric,
        n_threads,
        make_validation_plan=make_validation_plan,
        warm_start=warm_start,
        checkpoint=checkpoint,
        source_name=source_name,
        classes=classes,
        budget=budget,
    )
    check_early_stopping(parameters, wanted.sets)
    check_bites(parameters, warm_start)
    check_proposal(budget, parameters)
    columns = (target_name, weight_name, offset_name)
    with interruptible_reading(), open_training() as table:
        census = None if budget is None else scan_table(table)
        if census is None or fits_memory(table, census, wanted):
            table.gather_roles()
            loaded = load_into_memory(table, wanted)
        else:
            loaded = load_into_files(table, census, wanted)
            how = "streamed from" if parameters.arcbites is None else "divided into bites in"
            _log.info("%d rows do not fit memory_limit=%s and are %s files", loaded.engine.n_rows, budget, how)
    del table
    return _boost_loaded(loaded, wanted, columns, callbacks, progress)


def fit_binned(
    data: PreparedDataset,
    parameters: Parameters,
    *,
    columns: tuple[Any, Any, Any],
    eval_set: Any = None,
    eval_metric: Any = None,
    n_threads: int,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    warm_start: WarmStart = COLD_START,
    checkpoint: Checkpoint | None = None,
    source_name: str | None = None,
    budget: Budget | None = None,
) -> FitResult:
    """Train on data that were binned before; parameters as of `fit_table`, columns : names of target, weight and offset."""
    callbacks = checked_callbacks(callbacks)
    wanted = FitRequest(
        parameters, list(named_sets(eval_set)), eval_metric, n_threads,
        warm_start=warm_start, checkpoint=checkpoint, source_name=source_name, budget=budget,
    )  # fmt: skip
    check_early_stopping(parameters, wanted.sets)
    check_bites(parameters, warm_start)
    if parameters.split_proposal != "global":
        raise ParameterError(
            f"split_proposal={parameters.split_proposal!r} wants to see the values, but these data were binned before"
        )
    try:
        loaded = load_binned(data, wanted)
    except BaseException:
        data.close()
        raise
    return _boost_loaded(loaded, wanted, columns, callbacks, progress)


def _boost_loaded(
    loaded: LoadedData, wanted: FitRequest, columns: tuple[Any, Any, Any], callbacks: Sequence[Callback], progress: bool | None
) -> FitResult:
    """Load the evaluation sets, and boost."""
    wanted.clock.lap("bin")
    engine = loaded.engine
    try:
        with interruptible_reading():
            sets = with_columns(wanted.sets, *columns)
            judged = [*loaded.judged, *(loaded.eval_set_builder.data(*one) for one in sets)]
    except BaseException:
        engine.close()
        raise
    wanted.clock.lap("load")
    eval_sets = [hold_out(engine.team) for hold_out in judged]
    return boost(
        loaded.prepared,
        engine,
        eval_sets,
        callbacks=callbacks,
        progress=progress,
        clock=wanted.clock,
        ensemble_so_far=wanted.ensemble_so_far,
    )


@dataclass(eq=False)
class FitRequest:
    """What a fit is asked for; see `fit_table`."""

    parameters: Parameters
    sets: Sequence[tuple[str, Any, Any, Any, Any]]
    eval_metric: Any
    n_threads: int
    make_validation_plan: MakeValidationPlan | None = None
    warm_start: WarmStart = COLD_START
    checkpoint: Checkpoint | None = None
    source_name: str | None = None
    classes: tuple[Level, ...] | None = None
    budget: Budget | None = None
    clock: Clock = field(default_factory=Clock)
    ensemble_so_far: list[Callable[[], Ensemble]] = field(default_factory=list)


@dataclass(eq=False)
class LoadedData:
    """An engine and what goes with it; held-out rows still wait for the engine's team."""

    prepared: FitPlan
    engine: FusedEngine | StreamedEngine | ArcbitesEngine
    eval_set_builder: EvalSetBuilder
    judged: list[Callable[[Team], EvalSet]] = field(default_factory=list)


def load_into_memory(table: Table, wanted: FitRequest) -> LoadedData:
    """The rows of a table as one shard."""
    n_threads = wanted.n_threads
    target = read_target(table, wanted.parameters, _continued_model(wanted), wanted.classes)
    parameters = wanted.parameters.with_loss(target.loss.name)
    table = table.weighing(table.weight)  # the caller's keeps its own weights
    targets = TargetsInMemory(table, target)
    plan, chosen = choose_rows(
        table, targets, wanted.parameters, wanted.sets, wanted.make_validation_plan, lambda: wanted.ensemble_so_far[0]()
    )
    metrics, stopping = _judged_by(wanted, parameters, target, plan)
    warm_start = _begin(wanted, table.features, target, parameters, metrics, stopping)
    kept = kept_rows(table.weight)
    if parameters.arcbites is None:
        check_rows_in_memory(table.n_rows if kept is None else len(kept))
    if table.weight is not None and ((table.weight == 1.0) | (table.weight == 0.0)).all():
        table.weight = None  # the same as none at all, and faster
    wanted.clock.lap("load")

    if warm_start.keeps_bins:
        binning = warm_start.binning(table.features)
    else:
        binning = propose_binning(
            table,
            kept,
            max_bins=fine_bins_of(parameters),
            seed=parameters.random_state,
            n_threads=n_threads,
            exact=parameters.split_proposal == "exact",
        )
    y = target.values if kept is None else target.values[kept]
    weight = table.weight if kept is None or table.weight is None else table.weight[kept]
    offset = table.offset if kept is None or table.offset is None else table.offset[kept]
    begun, offsets = None, offset
    if warm_start.is_new_source:
        begun = offsets = starting_scores(warm_start.baseline, warm_start, table, kept, n_threads, (0, warm_start.n_earlier))
    start = target_stats(target.loss, in_one_part(y, weight, offsets), continues=warm_start.is_new_source)
    prepared = FitPlan(
        parameters, target, table.named, binning, start, len(y), weight is not None, metrics, stopping, warm_start,
        wanted.checkpoint, wanted.source_name, draw_reference_sample(table, target.values, kept, parameters.random_state),
    )  # fmt: skip
    set_bite_count(prepared, wanted.budget)
    codes = encode_table(table, binning, prepared.layout, kept, n_threads)
    if begun is None:
        raw = starting_scores(prepared.baseline, warm_start, table, kept, n_threads)
    else:
        raw = begun
        add_trees(raw, warm_start, table, kept, n_threads, (warm_start.n_earlier, warm_start.n_before))
    eval_set_builder = _eval_set_builder(prepared, wanted)
    judged = eval_sets_of_chosen(eval_set_builder, table, targets, chosen)
    if parameters.arcbites is not None:
        return LoadedData(prepared, bites_in_memory(prepared, codes, y, weight, raw, n_threads), eval_set_builder, judged)
    shard = Shard(
        codes,
        prepared.layout,
        y,
        weight,
        raw,
        bin_layout=prepared.bin_layout,
        constant_hessian=prepared.constant_hessian,
        max_leaves=prepared.rule.max_leaves,
        integer_weights=prepared.max_weight is not None,
        weights_as_hessian=prepared.weights_as_hessian,
    )
    in_ranges(shard.fill_tiles, len(y), n_threads)
    return LoadedData(prepared, _in_process(shard, prepared, n_threads), eval_set_builder, judged)


def load_into_files(table: Table, census: TableScan, wanted: FitRequest) -> LoadedData:
    """The rows of a table in temporary files, which go with the engine."""
    parameters, n_threads = wanted.parameters, wanted.n_threads
    learned = _target_of(census.target, wanted)
    if not table.keeps_roles_apart:
        table = table.weighing(table.weight)  # the caller's keeps its own weights
    folder = PrivateDirectory()
    with closing(TargetsInFiles(table, learned)) as targets:
        try:
            plan, chosen = choose_rows(
                table, targets, parameters, wanted.sets, wanted.make_validation_plan, lambda: wanted.ensemble_so_far[0]()
            )
            if plan.class_weight is not None or chosen:
                census = replace(scan_table(table), target=census.target, levels=census.levels)
            wanted.clock.lap("load")
            parameters = parameters.with_loss(learned.loss.name)
            warm_start = _begin(wanted, table.features, learned, parameters, *_judged_by(wanted, parameters, learned, plan))
            if warm_start.keeps_bins:
                binning = warm_start.binning(table.features)
            else:
                binning = propose_within(
                    table, census.n_kept, max_bins=parameters.max_bins, seed=parameters.random_state,
                    n_threads=n_threads, budget=wanted.budget,
                )  # fmt: skip
            data = write_binned(
                table, census, binning, folder.path, warm_start=warm_start, seed=parameters.random_state, n_threads=n_threads
            )
            loaded = load_binned(data, wanted, plan, folder, warm_start)
        except BaseException:
            folder.close()
            raise
        loaded.judged += eval_sets_of_chosen(loaded.eval_set_builder, table, targets, chosen)
    return loaded


def load_binned(
    data: PreparedDataset,
    wanted: FitRequest,
    plan: ValidationPlan | None = None,
    folder: PrivateDirectory | None = None,
    warm_start: WarmStart = COLD_START,
) -> LoadedData:
    """Rows that were binned before: into memory, or with a budget that they do not fit, streamed from where they are.

    folder : for files of this fit; default: one is made when it is needed.
    """
    n_threads, budget = wanted.n_threads, wanted.budget
    is_prepared = plan is None  # by `dboost.prepare`, not by this fit
    if plan is None:
        plan = ValidationPlan()
        if needs_test_set(wanted.parameters, plan, wanted.sets):
            raise ParameterError("arcbites on prepared data need a test set to tell when to leave a bite: give an eval_set")
    target = _target_of(data.target, wanted)
    parameters = wanted.parameters.with_loss(target.loss.name)
    metrics, stopping = _judged_by(wanted, parameters, target, plan)
    missed = None
    if is_prepared:
        warm_start = _begin(wanted, data.binning.features, target, parameters, metrics, stopping)
        if warm_start.model is not None and warm_start.resumes:
            missed = warm_start.model, (warm_start.n_earlier, warm_start.n_before)
    answers = PreparedTargets(data, target, continues=warm_start.is_new_source, missed=missed)
    start = target_stats(target.loss, answers.ask, continues=warm_start.is_new_source)
    prepared = FitPlan(
        parameters, target, data.named, data.binning, start, data.n_rows, data.has("weight"), metrics, stopping, warm_start,
        wanted.checkpoint, wanted.source_name, answers.portrait,
    )  # fmt: skip
    set_bite_count(prepared, budget)
    traits = shard_spec_of(prepared)
    engine: FusedEngine | StreamedEngine | ArcbitesEngine
    if folder is None and (budget is None or budget.holds_rows(traits, data.n_rows, n_threads)):
        if parameters.arcbites is None:
            check_rows_in_memory(data.n_rows)
        shard = shard_of(answers, prepared)
        if parameters.arcbites is None:
            engine = _in_process(shard, prepared, n_threads)
        else:
            engine = bites_in_memory(prepared, shard.codes, shard.target, shard.weight, shard.raw, n_threads)
        data.close()
    elif parameters.arcbites is not None:
        assert budget is not None
        engine = _divided(answers, prepared, folder, n_threads, budget)
    else:
        assert budget is not None
        room = budget.histograms(traits, data.n_rows, n_threads)
        own = PrivateDirectory() if folder is None else folder
        try:
            blocks = blocks_around(answers, prepared, own.path)
            data.rows.close()
            engine = StreamedEngine(
                blocks, prepared.target.loss.terms(), n_threads=n_threads, histogram_bytes=room,
                staying_bytes=room - budget.reserve, release=own.close,
            )  # fmt: skip
        except BaseException:
            own.close()
            raise
    return LoadedData(prepared, engine, _eval_set_builder(prepared, wanted))


def _divided(
    answers: PreparedTargets, prepared: FitPlan, folder: PrivateDirectory | None, n_threads: int, budget: Budget
) -> ArcbitesEngine:
    """An engine for bites in files; binned data that are this fit's own are not needed any more."""
    data, own = answers.data, PrivateDirectory() if folder is None else folder
    try:
        engine = bites_in_files(answers, prepared, own, n_threads, budget)
    except BaseException:
        own.close()
        raise
    for file in (data.codes, data.rows):
        if folder is None:
            file.close()
        else:
            file.remove()
    return engine


def fits_memory(table: Table, census: TableScan, wanted: FitRequest) -> bool:
    """Whether the rows of a table fit the budget, by an estimate that knows little of the parameters."""
    budget = wanted.budget
    if budget is None:
        return True
    loss = _target_of(census.target, wanted).loss
    n_codes = [wanted.parameters.max_bins if f.levels is None else len(f.levels) for f in table.features]
    return budget.holds_table(census.n_rows, np.array(n_codes), loss.n_outputs, wanted.parameters, wanted.n_threads)


def _continued_model(wanted: FitRequest) -> Any:
    """The model of other data that is continued, if there is one."""
    return wanted.warm_start.model if wanted.warm_start.is_new_source else None


def _target_of(survey: TargetScan, wanted: FitRequest) -> Target:
    """What the target means; holds no rows."""
    model = _continued_model(wanted)
    if model is not None:
        return target_of(model, wanted.parameters)
    if wanted.classes is not None:
        return target_for(wanted.classes, wanted.parameters)
    return merge_target_scans_to_target([survey], wanted.parameters)


def _begin(
    wanted: FitRequest, features: tuple[Feature, ...], target: Target, parameters: Parameters, metrics: Any, stopping: Any
) -> WarmStart:
    """Where the fit begins, now that it is known what the data hold."""
    warm_start = wanted.warm_start.widened(features)
    if warm_start.model is not None:
        check_continues(warm_start.model, features, target)
    if wanted.checkpoint is None:
        return warm_start
    wishes = requested(parameters, wanted.warm_start, wanted.sets, metrics, stopping)
    return wanted.checkpoint.resume(warm_start, features, target, parameters, wishes)


def _judged_by(wanted: FitRequest, parameters: Parameters, target: Target, plan: ValidationPlan) -> tuple[Any, Any]:
    """The metrics, and what stops early by them."""
    metrics = find_metrics(wanted.eval_metric, target.loss)
    stopping = stopping_rule(parameters, plan.early_stopping, wanted.sets, metrics)
    return metrics + [one for one in plan.metrics if one.name not in {known.name for known in metrics}], stopping


def _in_process(shard: Shard, prepared: FitPlan, n_threads: int) -> FusedEngine:
    return FusedEngine(
        shard,
        prepared.target.loss.terms(),
        rule=prepared.rule,
        n_channels=prepared.n_channels,
        loss_unit=prepared.start.loss_unit,
        n_threads=n_threads,
    )


def _eval_set_builder(prepared: FitPlan, wanted: FitRequest) -> EvalSetBuilder:
    return EvalSetBuilder(
        prepared.target,
        prepared.binning,
        prepared.layout,
        prepared.baseline,
        prepared.start.magnitude,
        prepared.start.spread,
        prepared.warm_start,
        with_block=any(metric.wants_block for metric in prepared.metrics),
        n_threads=wanted.n_threads,
        budget=wanted.budget,
        allowance=None if wanted.budget is None else MemoryReservation(wanted.budget.retained),
    )
