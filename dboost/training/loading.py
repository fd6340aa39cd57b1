"""From data to an engine that is ready to boost: rows in memory, rows in files, or rows that were binned before.

All three ask the same things in the same order: which loss is meant, where features are cut, where scores start; and all three
end in a `Prepared` record, an engine, and what it takes to judge held-out rows. They differ in what is in memory meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dboost.engine.bitten import BittenEngine
from dboost.engine.in_process import InProcessEngine
from dboost.engine.streamed import StreamedEngine
from dboost.engine.team import Team
from dboost.errors import ParameterError
from dboost.growth.proposal import cells_of
from dboost.model.ensemble import Ensemble
from dboost.params import Parameters
from dboost.schema import Feature, Level
from dboost.shard.loading import encode_table, in_ranges, kept_rows, propose_binning
from dboost.shard.shard import Shard
from dboost.sources import Table
from dboost.sources.spool import PrivateDirectory
from dboost.statistics.metrics import find_metrics
from dboost.training.binned import BinnedData, Census, propose_within, take_census, write_binned
from dboost.training.bitten import bites_in_files, bites_in_memory, settle_bites
from dboost.training.boost import Clock, Prepared, asked, stopping_rule
from dboost.training.budget import Allowance, Budget, check_rows_in_memory
from dboost.training.checkpoint import Checkpoint
from dboost.training.chosen_rows import TargetsInFiles, TargetsInMemory, choose_rows, judge_chosen
from dboost.training.held_out import Judge, Yardstick
from dboost.training.origin import NOTHING, Origin
from dboost.training.portrait import portray
from dboost.training.reopened import Answers, blocks_around, shard_of, traits_of
from dboost.training.replay import add_trees, check_continues, starting_scores
from dboost.training.start import in_one_part, start_of
from dboost.training.supervision import Supervise, Supervision
from dboost.training.target import Target, read_target, target_for, target_of
from dboost.training.target_survey import TargetSurvey, unite_targets
from dboost.training.test_share import needs_test_set


@dataclass(eq=False)
class Wanted:
    """What a fit is asked for; see `fit_table`."""

    parameters: Parameters
    sets: Sequence[tuple[str, Any, Any, Any, Any]]
    eval_metric: Any
    n_threads: int
    supervise: Supervise | None = None
    origin: Origin = NOTHING
    checkpoint: Checkpoint | None = None
    source_name: str | None = None
    classes: tuple[Level, ...] | None = None
    budget: Budget | None = None
    clock: Clock = field(default_factory=Clock)
    so_far: list[Callable[[], Ensemble]] = field(default_factory=list)


@dataclass(eq=False)
class Loaded:
    """An engine and what goes with it; held-out rows still wait for the engine's team."""

    prepared: Prepared
    engine: InProcessEngine | StreamedEngine | BittenEngine
    yardstick: Yardstick
    judged: list[Callable[[Team], Judge]] = field(default_factory=list)


def load_into_memory(table: Table, wanted: Wanted) -> Loaded:
    """The rows of a table as one shard."""
    n_threads = wanted.n_threads
    target = read_target(table, wanted.parameters, _continued_model(wanted), wanted.classes)
    parameters = wanted.parameters.with_loss(target.loss.name)
    table = table.weighing(table.weight)  # the caller's keeps its own weights
    targets = TargetsInMemory(table, target)
    plan, chosen = choose_rows(table, targets, wanted.parameters, wanted.sets, wanted.supervise, lambda: wanted.so_far[0]())
    metrics, stopping = _judged_by(wanted, parameters, target, plan)
    origin = _begin(wanted, table.features, target, parameters, metrics, stopping)
    kept = kept_rows(table.weight)
    if parameters.arcbites is None:
        check_rows_in_memory(table.n_rows if kept is None else len(kept))
    if table.weight is not None and ((table.weight == 1.0) | (table.weight == 0.0)).all():
        table.weight = None  # the same as none at all, and faster
    wanted.clock.lap("load")

    if origin.keeps_bins:
        binning = origin.binning(table.features)
    else:
        binning = propose_binning(
            table,
            kept,
            max_bins=cells_of(parameters),
            seed=parameters.random_state,
            n_threads=n_threads,
            exact=parameters.split_proposal == "exact",
        )
    y = target.values if kept is None else target.values[kept]
    weight = table.weight if kept is None or table.weight is None else table.weight[kept]
    offset = table.offset if kept is None or table.offset is None else table.offset[kept]
    begun, offsets = None, offset
    if origin.is_new_source:
        begun = offsets = starting_scores(origin.baseline, origin, table, kept, n_threads, (0, origin.n_earlier))
    start = start_of(target.loss, in_one_part(y, weight, offsets), continues=origin.is_new_source)
    prepared = Prepared(
        parameters, target, table.named, binning, start, len(y), weight is not None, metrics, stopping, origin,
        wanted.checkpoint, wanted.source_name, portray(table, target.values, kept, parameters.random_state),
    )  # fmt: skip
    settle_bites(prepared, wanted.budget)
    codes = encode_table(table, binning, prepared.layout, kept, n_threads)
    if begun is None:
        raw = starting_scores(prepared.baseline, origin, table, kept, n_threads)
    else:
        raw = begun
        add_trees(raw, origin, table, kept, n_threads, (origin.n_earlier, origin.n_before))
    yardstick = _yardstick(prepared, wanted)
    judged = judge_chosen(yardstick, table, targets, chosen)
    if parameters.arcbites is not None:
        return Loaded(prepared, bites_in_memory(prepared, codes, y, weight, raw, n_threads), yardstick, judged)
    shard = Shard(
        codes,
        prepared.layout,
        y,
        weight,
        raw,
        bin_layout=prepared.bin_layout,
        constant_hessian=prepared.constant_hessian,
        max_leaves=prepared.rule.max_leaves,
        whole_weights=prepared.heaviest is not None,
        by_weight=prepared.by_weight,
    )
    in_ranges(shard.fill_tiles, len(y), n_threads)
    return Loaded(prepared, _in_process(shard, prepared, n_threads), yardstick, judged)


def load_into_files(table: Table, census: Census, wanted: Wanted) -> Loaded:
    """The rows of a table in temporary files, which go with the engine."""
    parameters, n_threads = wanted.parameters, wanted.n_threads
    learned = _target_of(census.target, wanted)
    if not table.keeps_roles_apart:
        table = table.weighing(table.weight)  # the caller's keeps its own weights
    folder = PrivateDirectory()
    with closing(TargetsInFiles(table, learned)) as targets:
        try:
            plan, chosen = choose_rows(table, targets, parameters, wanted.sets, wanted.supervise, lambda: wanted.so_far[0]())
            if plan.class_weight is not None or chosen:
                census = replace(take_census(table), target=census.target, levels=census.levels)
            wanted.clock.lap("load")
            parameters = parameters.with_loss(learned.loss.name)
            origin = _begin(wanted, table.features, learned, parameters, *_judged_by(wanted, parameters, learned, plan))
            if origin.keeps_bins:
                binning = origin.binning(table.features)
            else:
                binning = propose_within(
                    table, census.n_kept, max_bins=parameters.max_bins, seed=parameters.random_state,
                    n_threads=n_threads, budget=wanted.budget,
                )  # fmt: skip
            data = write_binned(
                table, census, binning, folder.path, origin=origin, seed=parameters.random_state, n_threads=n_threads
            )
            loaded = load_binned(data, wanted, plan, folder, origin)
        except BaseException:
            folder.close()
            raise
        loaded.judged += judge_chosen(loaded.yardstick, table, targets, chosen)
    return loaded


def load_binned(
    data: BinnedData,
    wanted: Wanted,
    plan: Supervision | None = None,
    folder: PrivateDirectory | None = None,
    origin: Origin = NOTHING,
) -> Loaded:
    """Rows that were binned before: into memory, or with a budget that they do not fit, streamed from where they are.

    folder : for files of this fit; default: one is made when it is needed.
    """
    n_threads, budget = wanted.n_threads, wanted.budget
    is_prepared = plan is None  # by `dboost.prepare`, not by this fit
    if plan is None:
        plan = Supervision()
        if needs_test_set(wanted.parameters, plan, wanted.sets):
            raise ParameterError("arcbites on prepared data need a test set to tell when to leave a bite: give an eval_set")
    target = _target_of(data.target, wanted)
    parameters = wanted.parameters.with_loss(target.loss.name)
    metrics, stopping = _judged_by(wanted, parameters, target, plan)
    missed = None
    if is_prepared:
        origin = _begin(wanted, data.binning.features, target, parameters, metrics, stopping)
        if origin.model is not None and origin.resumes:
            missed = origin.model, (origin.n_earlier, origin.n_before)
    answers = Answers(data, target, continues=origin.is_new_source, missed=missed)
    start = start_of(target.loss, answers.ask, continues=origin.is_new_source)
    prepared = Prepared(
        parameters, target, data.named, data.binning, start, data.n_rows, data.has("weight"), metrics, stopping, origin,
        wanted.checkpoint, wanted.source_name, answers.portrait,
    )  # fmt: skip
    settle_bites(prepared, budget)
    traits = traits_of(prepared)
    engine: InProcessEngine | StreamedEngine | BittenEngine
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
    return Loaded(prepared, engine, _yardstick(prepared, wanted))


def _divided(
    answers: Answers, prepared: Prepared, folder: PrivateDirectory | None, n_threads: int, budget: Budget
) -> BittenEngine:
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


def fits_memory(table: Table, census: Census, wanted: Wanted) -> bool:
    """Whether the rows of a table fit the budget, by an estimate that knows little of the parameters."""
    budget = wanted.budget
    if budget is None:
        return True
    loss = _target_of(census.target, wanted).loss
    n_codes = [wanted.parameters.max_bins if f.levels is None else len(f.levels) for f in table.features]
    return budget.holds_table(census.n_rows, np.array(n_codes), loss.n_outputs, wanted.parameters, wanted.n_threads)


def _continued_model(wanted: Wanted) -> Any:
    """The model of other data that is continued, if there is one."""
    return wanted.origin.model if wanted.origin.is_new_source else None


def _target_of(survey: TargetSurvey, wanted: Wanted) -> Target:
    """What the target means; holds no rows."""
    model = _continued_model(wanted)
    if model is not None:
        return target_of(model, wanted.parameters)
    if wanted.classes is not None:
        return target_for(wanted.classes, wanted.parameters)
    return unite_targets([survey], wanted.parameters)


def _begin(
    wanted: Wanted, features: tuple[Feature, ...], target: Target, parameters: Parameters, metrics: Any, stopping: Any
) -> Origin:
    """Where the fit begins, now that it is known what the data hold."""
    origin = wanted.origin.widened(features)
    if origin.model is not None:
        check_continues(origin.model, features, target)
    if wanted.checkpoint is None:
        return origin
    wishes = asked(parameters, wanted.origin, wanted.sets, metrics, stopping)
    return wanted.checkpoint.resume(origin, features, target, parameters, wishes)


def _judged_by(wanted: Wanted, parameters: Parameters, target: Target, plan: Supervision) -> tuple[Any, Any]:
    """The metrics, and what stops early by them."""
    metrics = find_metrics(wanted.eval_metric, target.loss)
    stopping = stopping_rule(parameters, plan.early_stopping, wanted.sets, metrics)
    return metrics + [one for one in plan.metrics if one.name not in {known.name for known in metrics}], stopping


def _in_process(shard: Shard, prepared: Prepared, n_threads: int) -> InProcessEngine:
    return InProcessEngine(
        shard,
        prepared.target.loss.terms(),
        rule=prepared.rule,
        n_planes=prepared.n_planes,
        coarse=prepared.start.loss_unit,
        n_threads=n_threads,
    )


def _yardstick(prepared: Prepared, wanted: Wanted) -> Yardstick:
    return Yardstick(
        prepared.target,
        prepared.binning,
        prepared.layout,
        prepared.baseline,
        prepared.start.magnitude,
        prepared.start.spread,
        prepared.origin,
        with_block=any(metric.wants_block for metric in prepared.metrics),
        n_threads=wanted.n_threads,
        budget=wanted.budget,
        allowance=None if wanted.budget is None else Allowance(wanted.budget.retained),
    )
