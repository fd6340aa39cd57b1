"""One fit on a cluster, from the user's data to an ensemble.

The same steps as in one process (`training/fit.py`), each of them a conversation with the workers; the boosting loop is the
very same.

From surveys to what is learned about: features, target, bins, where scores start.

In one process these follow from looking at all rows. Here each worker says what it has seen, and what it says merges: levels
are united and then sorted, complaints are added up, the sample of rows depends on global row numbers only. So the outcome is
that of one process, to the bit.

Which rows are held out, and what classes weigh, decided here and carried out on the workers.

The client counts the rows of each class and says how many of each are held out; the workers count digits of the rows' hashes
until it is known which (see `session.row_selection`). So counts travel, but no target and no weight of a row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np
from distributed import Client

from dboost.data.binning import Binning, distinct_values, exact_binning
from dboost.data.categories import CategoryIndex
from dboost.data.frame import is_lazy, is_path
from dboost.data.read_plan import ReadPlan
from dboost.data.reader import disagree
from dboost.data.row_metadata import check_max_weight, label, raise_for_issues
from dboost.distributed.cluster_engine import ClusterEngine, ClusterEvalSets
from dboost.distributed.connection import Connection
from dboost.distributed.monitoring.events import FitEvents
from dboost.distributed.partitioned_table import PartitionedTable, WorkerPartitions
from dboost.distributed.read_tasks import ReadTasks
from dboost.errors import DataError, DBoostError, InputTypeError, ParameterError
from dboost.metrics.metric import LossMagnitude, Metric, find_metrics
from dboost.model.ensemble import Ensemble
from dboost.params import Parameters
from dboost.schema import Feature, Level
from dboost.session.evaluation import EvalSet, EvalSetBuilder, log_streamed_eval_set, named_sets
from dboost.session.memory_budget import Budget, check_proposal
from dboost.session.partition_loader import PartitionStats
from dboost.session.reference_sample import ReferenceSample
from dboost.session.row_selection import HELD_OUT, DigitRequest
from dboost.session.shard_spec import BuildSpec
from dboost.session.target import Target, continued, merge_target_scans_to_target, target_for, target_of
from dboost.session.warm_start import COLD_START, WarmStart, check_continues
from dboost.shards.encode import propose_from
from dboost.training.arcbites import set_bite_count
from dboost.training.callbacks import Callback
from dboost.training.checkpoint import Checkpoint
from dboost.training.initial_score import target_stats
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
from dboost.training.validation_split import MakeValidationPlan, ValidationPlan, needs_test_set, test_rows_of, warn_held_out
from dboost.trees.bin_proposal import fine_bins_of

_TRAINING = "training data"
_log = logging.getLogger("dboost")


def fit_on_cluster(
    client: Client,
    data: Any,
    target: Any,
    parameters: Parameters,
    *,
    sample_weight: Any = None,
    offset: Any = None,
    features: Sequence[str] | None = None,
    categorical_features: Any = "from_dtype",
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
    """Load, bin and train where the partitions lie.

    Parameters
    ----------
    client : distributed.Client
    data, target, sample_weight, offset, features, categorical_features, eval_set, eval_metric, callbacks, progress
        As in `dboost.fit`.
    parameters : Parameters
    n_threads : int
        Threads of this process, for what is done here.
    make_validation_plan, origin, checkpoint, source_name, classes
        As in `fit_table`.
    budget : Budget, optional
        What the fit may add to the memory of each worker. Rows that do not fit are streamed from its local directory.
    """
    sets = list(named_sets(eval_set))
    callbacks = checked_callbacks(callbacks)
    check_early_stopping(parameters, sets)
    check_bites(parameters, warm_start)
    check_proposal(budget, parameters)
    clock = Clock()
    ensemble_so_far: list[Callable[[], Ensemble]] = []
    with Connection(client) as connection:
        with interruptible_reading():
            source = ReadTasks(
                data,
                target,
                sample_weight=sample_weight,
                offset=offset,
                features=features,
                categorical_features=categorical_features,
                **warm_start.like,
                n_parts=max(sum(client.nthreads().values()), 1),
                budget=budget,
            )
            table = PartitionedTable(connection, _TRAINING, source)
            table.load()
            check_partitions(table)
            known = merge_features(source.plan, table.surveys)
            table.set_features(known)
            begun, warm_start = warm_start, warm_start.widened(known)
            if warm_start.is_new_source and warm_start.model is not None:
                learned = target_of(warm_start.model, parameters)
                continued(lambda: table.encode_target(learned))
            else:
                learned = merge_targets(table.surveys, parameters) if classes is None else target_for(classes, parameters)
                table.encode_target(learned)
            clock.lap("load")

            parameters = parameters.with_loss(learned.loss.name)
            metrics = find_metrics(eval_metric, learned.loss)
            if warm_start.model is not None:
                check_continues(warm_start.model, known, learned)
            plan, judged, unit_weights = assign_rows(
                table, learned, parameters, sets, make_validation_plan, lambda: ensemble_so_far[0]()
            )
            metrics += [metric for metric in plan.metrics if metric.name not in {one.name for one in metrics}]
            stopping = stopping_rule(parameters, plan.early_stopping, sets, metrics)
            if checkpoint is not None:
                wishes = requested(parameters, begun, sets, metrics, stopping)
                warm_start = checkpoint.resume(warm_start, known, learned, parameters, wishes)
            if warm_start.keeps_bins:
                binning = warm_start.binning(known)
            else:
                binning = propose(
                    table,
                    known,
                    max_bins=fine_bins_of(parameters),
                    seed=parameters.random_state,
                    n_threads=n_threads,
                    exact=parameters.split_proposal == "exact",
                )
            if warm_start.is_new_source:
                table.build("begin", lambda: (warm_start,))

            def ask(function: Callable[..., Any], *arguments: Any) -> list[Any]:
                return [answer for of_worker in table.ask("ask_rows", function, arguments) for answer in of_worker]

            prepared = FitPlan(
                parameters,
                learned,
                source.named,
                binning,
                target_stats(learned.loss, ask, continues=warm_start.is_new_source),
                sum(table.n_kept.values()),
                not unit_weights,
                metrics,
                stopping,
                warm_start,
                checkpoint,
                source_name,
                draw_reference_sample(table, len(known), parameters.random_state),
            )
            set_bite_count(prepared, budget, max(table.rows_of_sessions().values()))
            arcbites = prepared.parameters.arcbites
            recipe = BuildSpec(
                features=known,
                binning=binning,
                layout=prepared.layout,
                bin_layout=prepared.bin_layout,
                target=prepared.target,
                baseline=prepared.baseline,
                warm_start=warm_start,
                weighted=prepared.weighted,
                integer_weights=prepared.max_weight is not None,
                constant_hessian=prepared.constant_hessian,
                max_leaves=prepared.rule.max_leaves,
                weights_as_hessian=prepared.weights_as_hessian,
                n_channels=prepared.n_channels,
                loss_unit=prepared.start.loss_unit,
                starts=starts_of(table.n_kept),
                budget=budget,
                n_bites=None if arcbites is None else arcbites.n_parts,
                seed=parameters.random_state,
                may_stream=parameters.split_proposal == "global",
            )
            terms = prepared.target.loss.terms()
            engine = ClusterEngine(
                connection, table, prepared.bin_layout, prepared.is_identity_bin_map, prepared.n_rows, terms, n_threads
            )
            _hold_out_chosen(table, judged, prepared, recipe)
            table.build("build", lambda: (recipe, engine.past()))
            if recipe.may_stream:
                how = "streamed from" if arcbites is None else "divided into bites in"
                engine.streams = _tell_of_files(table, budget, how) and arcbites is None
            clock.lap("bin")
            held_out = _hold_out(
                engine, prepared, recipe, list(with_columns(sets, target, sample_weight, offset)), judged, n_threads
            )
            clock.lap("load")
        bulletin = FitEvents(connection, table)
        bulletin.begin(parameters.loss, prepared.n_rows, len(known))
        callbacks = (*callbacks, bulletin)
        return boost(
            prepared, engine, held_out, callbacks=callbacks, progress=progress, clock=clock, ensemble_so_far=ensemble_so_far
        )


def _tell_of_files(table: PartitionedTable, budget: Budget | None, how: str) -> bool:
    """Whether rows are in files; that they are, and how, is logged."""
    n_rows = sum(table.ask("in_files"))
    if n_rows:
        limit = "what Dask lets their workers have" if budget is None else f"memory_limit={budget}"
        _log.info("%d rows do not fit %s and are %s files", n_rows, limit, how)
    return n_rows > 0


def _hold_out_chosen(
    table: PartitionedTable, judged: dict[str, tuple[int, float]], prepared: FitPlan, recipe: BuildSpec
) -> None:
    """Judge rows that were chosen from the training data."""
    for name, (n_rows, max_weight) in judged.items():
        size = LossMagnitude(prepared.start.magnitude, prepared.start.spread, max_weight, n_rows)
        table.build("hold_out_chosen", partial(_as_is, (name, recipe, size)))
    if judged and sum(table.ask("judged_in_files")):
        log_streamed_eval_set(" and ".join(judged))


def _as_is(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return arguments


def _hold_out(
    engine: ClusterEngine,
    prepared: FitPlan,
    recipe: BuildSpec,
    sets: Sequence[tuple[str, Any, Any, Any, Any]],
    chosen: dict[str, tuple[int, float]],
    n_threads: int,
) -> list[EvalSet]:
    """A judge for each evaluation set: on the workers for Dask collections and paths, here for data in memory.

    chosen : sets of rows that were chosen from the training data, with their numbers of rows and largest weights.
    """
    start = prepared.start
    eval_set_builder = EvalSetBuilder(
        recipe.target,
        recipe.binning,
        recipe.layout,
        recipe.baseline,
        start.magnitude,
        start.spread,
        recipe.warm_start,
        with_block=_wants_block(prepared.metrics),
        n_threads=n_threads,
    )
    remote = {name: n_rows for name, (n_rows, _) in chosen.items()}
    judges: dict[str, EvalSet] = {}
    for name, data, *columns in sets:
        if not (is_lazy(data) or is_path(data)):
            judges[name] = eval_set_builder.data(name, data, *columns)(engine.team)
            continue
        try:
            remote[name] = _load_held_out(engine, prepared, recipe, name, data, *columns)
        except (DataError, InputTypeError) as error:
            raise type(error)(f"evaluation set {name!r}: {error}") from error
    if remote:
        judges |= {one.name: one for one in ClusterEvalSets(engine, remote).sets()}
    return [judges[name] for name in (*chosen, *(name for name, *_ in sets))]


def _load_held_out(
    engine: ClusterEngine, prepared: FitPlan, recipe: BuildSpec, name: str, data: Any, target: Any, weight: Any, offset: Any
) -> int:
    """Have the workers hold an evaluation set; how many rows of positive weight it has."""
    source = ReadTasks(data, target, sample_weight=weight, offset=offset, like=recipe.features, budget=recipe.budget)
    table = PartitionedTable(engine.connection, f"evaluation set {name!r}", source)
    table.load()
    check_partitions(table)
    table.set_features(recipe.features)
    table.encode_target(recipe.target)
    n = sum(table.n_kept.values())
    start = prepared.start
    size = LossMagnitude(start.magnitude, start.spread, max(survey.max_weight for survey in table.surveys), n)
    with_block = _wants_block(prepared.metrics)
    table.build("hold_out", lambda: (name, recipe, size, with_block))
    engine.watch(table)
    if sum(table.ask("judged_in_files")):
        log_streamed_eval_set(name)
    return n


def _wants_block(metrics: Sequence[Metric]) -> bool:
    return any(metric.wants_block for metric in metrics)


def check_partitions(table: PartitionedTable) -> None:
    """Refuse what the surveys complain about, and a table without rows."""
    surveys, plan = table.surveys, table.source.plan
    if not sum(table.lengths.values()):
        raise DataError(f"the data have no rows: all {table.source.n_parts} partitions are empty")
    raise_for_issues([complaint for survey in surveys for complaint in survey.complaints])
    check_max_weight(max(survey.max_weight for survey in surveys), label("sample_weight", plan.weight))


def merge_features(plan: ReadPlan, surveys: Sequence[PartitionStats]) -> tuple[Feature, ...]:
    """The features, with the levels of all partitions.

    Raises
    ------
    DataError
        Naming a column that holds numbers in one partition and categories in another, with both, or too many levels.
    """
    if plan.known is not None and plan.closed:
        return plan.known
    features = []
    known = plan.known or (None,) * len(plan.rules)
    for j, rule in enumerate(plan.rules):
        told = (survey.kinds[j] for survey in surveys)
        kinds = sorted({kind for kind in told if kind is not None}, key=lambda kind: kind[1])
        for kind in kinds[1:]:
            if kind[0] != kinds[0][0]:
                raise disagree(rule.name, kinds[0], kind)
        of_model = known[j]
        dictionary = CategoryIndex(
            rule.name, None if of_model is None else of_model.levels, extend_categories=plan.extend_categories
        )
        for survey in surveys:
            dictionary.translate(survey.levels[j])
        categorical = rule.categorical or len(dictionary)
        features.append(Feature(rule.name, dictionary.finish()[0] if categorical else None))
    return tuple(features)


def merge_targets(surveys: Sequence[PartitionStats], parameters: Parameters) -> Target:
    """The loss, and the classes of all partitions; holds no rows. See `session.target.merge_target_scans_to_target`."""
    return merge_target_scans_to_target([survey.target for survey in surveys if survey.target is not None], parameters)


def propose(
    table: PartitionedTable,
    features: tuple[Feature, ...],
    *,
    max_bins: int,
    seed: int,
    n_threads: int,
    exact: bool = False,
) -> Binning:
    """Split points from a sample of the rows, the only ones that ever leave their worker.

    Where every distinct value is to be a candidate, each worker tells the distinct values of each feature instead.
    """
    if exact:
        told = table.ask_each("distinct", lambda share: ())
        return exact_binning(features, [reduce(distinct_values, of_feature) for of_feature in zip(*told, strict=True)])
    n_kept = table.n_kept
    starts = starts_of(n_kept)
    n_rows = sum(n_kept.values())
    parts: dict[int, Any] = {}
    of_share = {i: starts[i] for i in starts}
    for answer in table.ask_each("sample", lambda share: ({i: of_share[i] for i in share.numbers}, n_rows, seed)):
        parts |= answer
    ordered = [parts[i] for i in sorted(parts)]
    weights = [weight for _, weight in ordered]
    weight = None if any(one is None for one in weights) else np.concatenate(weights)
    return propose_from(features, [columns for columns, _ in ordered], weight, max_bins, n_threads)


def draw_reference_sample(table: PartitionedTable, n_features: int, seed: int) -> ReferenceSample:
    """The portrait of the rows, which leave their workers for it: raw values and targets."""
    n_kept = table.n_kept
    starts, n_rows = starts_of(n_kept), sum(n_kept.values())
    parts: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for answer in table.ask_each("portray", lambda share: ({i: starts[i] for i in share.numbers}, n_rows, seed)):
        parts |= answer
    ordered = [parts[i] for i in sorted(parts)]
    if not ordered:
        return ReferenceSample(np.empty((0, n_features)), np.empty(0))
    return ReferenceSample(*(np.concatenate(of) for of in zip(*ordered, strict=True)))


def starts_of(n_kept: dict[int, int]) -> dict[int, int]:
    """Number of each partition's first row among all rows of positive weight."""
    return dict(zip(n_kept, np.concatenate(([0], np.cumsum(list(n_kept.values())))).tolist(), strict=False))


def assign_rows(
    table: PartitionedTable,
    target: Target,
    parameters: Parameters,
    sets: Any,
    make_validation_plan: MakeValidationPlan | None,
    ensemble_so_far: Callable[[], Ensemble],
) -> tuple[ValidationPlan, dict[str, tuple[int, float]], bool]:
    """Have the workers give rows the weights that they are trained with.

    Returns
    -------
    plan : ValidationPlan
    judged : {name: (int, float)}
        The evaluation sets that were chosen from the rows: how many these are, and their largest weight.
    unit_weights : bool
        Whether all weights to train with are 1.

    Raises
    ------
    ParameterError
        When the plan has a scorer, or there are too few rows to hold some out.
    DataError
        When a partition has another number of rows than it had before.
    """
    plan = ValidationPlan()
    if make_validation_plan is None and not needs_test_set(parameters, plan, sets):
        return plan, {}, all(survey.unit_weights for survey in table.surveys)
    before = table.n_kept
    starts, n_rows = starts_of(before), sum(before.values())
    n_classes = None if target.classes is None else len(target.classes)

    def numbered(share: WorkerPartitions) -> tuple[Any, ...]:
        return {i: (starts[i], before[i]) for i in share.numbers}, n_classes

    def added_up(method: str, *arguments: Any) -> np.ndarray:
        return reduce(np.add, table.ask_each(method, lambda share: (*numbered(share), *arguments)))

    def ask(digits: DigitRequest) -> np.ndarray:
        return added_up("digit_counts", digits)

    counts = [n_rows] if n_classes is None else added_up("class_counts").tolist()
    if make_validation_plan is not None:
        plan = make_validation_plan(counts, target, ensemble_so_far)
        _refuse_scorers(plan)
    is_alone = needs_test_set(parameters, plan, sets)
    assignment = plan.assign(counts, ask, test_rows_of(n_rows, parameters.random_state) if is_alone else None)
    table.assign_rows(lambda share: (*numbered(share), assignment))
    told = table.ask("trained_rows")
    after = dict(sorted((i, n) for each, *_ in told for i, n in each.items()))
    n_held_out = n_rows - sum(after.values())
    if is_alone:
        warn_held_out(n_held_out, n_rows)
    elif after.keys() != before.keys() or n_held_out != (sum(plan.held_out.sizes) if plan.held_out is not None else 0):
        raise DBoostError(f"{n_held_out} of {n_rows} rows in {len(after)} of {len(before)} partitions were held out")
    table.take_in(after)
    judged = {} if assignment.held_out is None else {HELD_OUT: (n_held_out, max(max_weight for _, max_weight, _ in told))}
    return plan, judged, all(is_unit for *_, is_unit in told)


def _refuse_scorers(plan: ValidationPlan) -> None:
    """Scorers of scikit-learn want the rows themselves."""
    for metric in plan.metrics:
        if metric.wants_block:
            raise ParameterError(
                "scoring with a scorer wants all rows in one place, which a cluster has not; use scoring='loss', or eval_metric"
            )
