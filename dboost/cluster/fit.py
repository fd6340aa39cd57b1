"""One fit on a cluster, from the user's data to an ensemble.

The same steps as in one process (`training/fit.py`), each of them a conversation with the workers; the boosting loop is the
very same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from distributed import Client

from dboost.cluster.bulletin import Bulletin
from dboost.cluster.connection import Connection
from dboost.cluster.engine import ClusterEngine, ClusterHeldOut
from dboost.cluster.loading import check, portray, propose, starts_of, unite_features, unite_target
from dboost.cluster.recipe import Recipe
from dboost.cluster.source import Source
from dboost.cluster.supervision import supervised
from dboost.cluster.table import ClusterTable
from dboost.errors import DataError, InputTypeError
from dboost.growth.proposal import cells_of
from dboost.model.ensemble import Ensemble
from dboost.params import Parameters
from dboost.schema import Level
from dboost.sources.frame import is_lazy, is_path
from dboost.statistics.metrics import Metric, Size, find_metrics
from dboost.training.bitten import settle_bites
from dboost.training.boost import (
    Clock,
    Fitted,
    Prepared,
    asked,
    boost,
    check_bites,
    check_watched,
    checked,
    reading,
    stopping_rule,
    with_columns,
)
from dboost.training.budget import Budget, check_proposal
from dboost.training.checkpoint import Checkpoint
from dboost.training.held_out import Judge, Yardstick, named_sets, tell_judged_in_files
from dboost.training.monitor import Callback
from dboost.training.origin import NOTHING, Origin
from dboost.training.replay import check_continues
from dboost.training.start import start_of
from dboost.training.supervision import Supervise
from dboost.training.target import continued, target_for, target_of

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
    supervise: Supervise | None = None,
    origin: Origin = NOTHING,
    checkpoint: Checkpoint | None = None,
    source_name: str | None = None,
    classes: tuple[Level, ...] | None = None,
    budget: Budget | None = None,
) -> Fitted:
    """Load, bin and train where the partitions lie.

    Parameters
    ----------
    client : distributed.Client
    data, target, sample_weight, offset, features, categorical_features, eval_set, eval_metric, callbacks, progress
        As in `dboost.fit`.
    parameters : Parameters
    n_threads : int
        Threads of this process, for what is done here.
    supervise, origin, checkpoint, source_name, classes
        As in `fit_table`.
    budget : Budget, optional
        What the fit may add to the memory of each worker. Rows that do not fit are streamed from its local directory.
    """
    sets = list(named_sets(eval_set))
    callbacks = checked(callbacks)
    check_watched(parameters, sets)
    check_bites(parameters, origin)
    check_proposal(budget, parameters)
    clock = Clock()
    so_far: list[Callable[[], Ensemble]] = []
    with Connection(client) as connection:
        with reading():
            source = Source(
                data,
                target,
                sample_weight=sample_weight,
                offset=offset,
                features=features,
                categorical_features=categorical_features,
                **origin.like,
                n_parts=max(sum(client.nthreads().values()), 1),
                budget=budget,
            )
            table = ClusterTable(connection, _TRAINING, source)
            table.load()
            check(table)
            known = unite_features(source.plan, table.surveys)
            table.settle(known)
            begun, origin = origin, origin.widened(known)
            if origin.is_new_source and origin.model is not None:
                learned = target_of(origin.model, parameters)
                continued(lambda: table.encode_target(learned))
            else:
                learned = unite_target(table.surveys, parameters) if classes is None else target_for(classes, parameters)
                table.encode_target(learned)
            clock.lap("load")

            parameters = parameters.with_loss(learned.loss.name)
            metrics = find_metrics(eval_metric, learned.loss)
            if origin.model is not None:
                check_continues(origin.model, known, learned)
            plan, judged, unit_weights = supervised(table, learned, parameters, sets, supervise, lambda: so_far[0]())
            metrics += [metric for metric in plan.metrics if metric.name not in {one.name for one in metrics}]
            stopping = stopping_rule(parameters, plan.early_stopping, sets, metrics)
            if checkpoint is not None:
                wishes = asked(parameters, begun, sets, metrics, stopping)
                origin = checkpoint.resume(origin, known, learned, parameters, wishes)
            if origin.keeps_bins:
                binning = origin.binning(known)
            else:
                binning = propose(
                    table,
                    known,
                    max_bins=cells_of(parameters),
                    seed=parameters.random_state,
                    n_threads=n_threads,
                    exact=parameters.split_proposal == "exact",
                )
            if origin.is_new_source:
                table.build("begin", lambda: (origin,))

            def ask(function: Callable[..., Any], *arguments: Any) -> list[Any]:
                return [answer for of_worker in table.ask("ask_rows", function, arguments) for answer in of_worker]

            prepared = Prepared(
                parameters,
                learned,
                source.named,
                binning,
                start_of(learned.loss, ask, continues=origin.is_new_source),
                sum(table.n_kept.values()),
                not unit_weights,
                metrics,
                stopping,
                origin,
                checkpoint,
                source_name,
                portray(table, len(known), parameters.random_state),
            )
            settle_bites(prepared, budget, max(table.rows_of_sessions().values()))
            arcbites = prepared.parameters.arcbites
            recipe = Recipe(
                features=known,
                binning=binning,
                layout=prepared.layout,
                bin_layout=prepared.bin_layout,
                target=prepared.target,
                baseline=prepared.baseline,
                origin=origin,
                weighted=prepared.weighted,
                whole_weights=prepared.heaviest is not None,
                constant_hessian=prepared.constant_hessian,
                max_leaves=prepared.rule.max_leaves,
                by_weight=prepared.by_weight,
                n_planes=prepared.n_planes,
                coarse=prepared.start.loss_unit,
                starts=starts_of(table.n_kept),
                budget=budget,
                n_bites=None if arcbites is None else arcbites.n_parts,
                seed=parameters.random_state,
                may_stream=parameters.split_proposal == "global",
            )
            terms = prepared.target.loss.terms()
            engine = ClusterEngine(
                connection, table, prepared.bin_layout, prepared.keeps_cells, prepared.n_rows, terms, n_threads
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
        bulletin = Bulletin(connection, table)
        bulletin.begin(parameters.loss, prepared.n_rows, len(known))
        callbacks = (*callbacks, bulletin)
        return boost(prepared, engine, held_out, callbacks=callbacks, progress=progress, clock=clock, so_far=so_far)


def _tell_of_files(table: ClusterTable, budget: Budget | None, how: str) -> bool:
    """Whether rows are in files; that they are, and how, is logged."""
    n_rows = sum(table.ask("in_files"))
    if n_rows:
        limit = "what Dask lets their workers have" if budget is None else f"memory_limit={budget}"
        _log.info("%d rows do not fit %s and are %s files", n_rows, limit, how)
    return n_rows > 0


def _hold_out_chosen(table: ClusterTable, judged: dict[str, tuple[int, float]], prepared: Prepared, recipe: Recipe) -> None:
    """Judge rows that were chosen from the training data."""
    for name, (n_rows, heaviest) in judged.items():
        size = Size(prepared.start.magnitude, prepared.start.spread, heaviest, n_rows)
        table.build("hold_out_chosen", partial(_same, (name, recipe, size)))
    if judged and sum(table.ask("judged_in_files")):
        tell_judged_in_files(" and ".join(judged))


def _same(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return arguments


def _hold_out(
    engine: ClusterEngine,
    prepared: Prepared,
    recipe: Recipe,
    sets: Sequence[tuple[str, Any, Any, Any, Any]],
    chosen: dict[str, tuple[int, float]],
    n_threads: int,
) -> list[Judge]:
    """A judge for each evaluation set: on the workers for Dask collections and paths, here for data in memory.

    chosen : sets of rows that were chosen from the training data, with their numbers of rows and largest weights.
    """
    start = prepared.start
    yardstick = Yardstick(
        recipe.target,
        recipe.binning,
        recipe.layout,
        recipe.baseline,
        start.magnitude,
        start.spread,
        recipe.origin,
        with_block=_wants_block(prepared.metrics),
        n_threads=n_threads,
    )
    remote = {name: n_rows for name, (n_rows, _) in chosen.items()}
    judges: dict[str, Judge] = {}
    for name, data, *columns in sets:
        if not (is_lazy(data) or is_path(data)):
            judges[name] = yardstick.data(name, data, *columns)(engine.team)
            continue
        try:
            remote[name] = _load_held_out(engine, prepared, recipe, name, data, *columns)
        except (DataError, InputTypeError) as error:
            raise type(error)(f"evaluation set {name!r}: {error}") from error
    if remote:
        judges |= {one.name: one for one in ClusterHeldOut(engine, remote).sets()}
    return [judges[name] for name in (*chosen, *(name for name, *_ in sets))]


def _load_held_out(
    engine: ClusterEngine, prepared: Prepared, recipe: Recipe, name: str, data: Any, target: Any, weight: Any, offset: Any
) -> int:
    """Have the workers hold an evaluation set; how many rows of positive weight it has."""
    source = Source(data, target, sample_weight=weight, offset=offset, like=recipe.features, budget=recipe.budget)
    table = ClusterTable(engine.connection, f"evaluation set {name!r}", source)
    table.load()
    check(table)
    table.settle(recipe.features)
    table.encode_target(recipe.target)
    n = sum(table.n_kept.values())
    start = prepared.start
    size = Size(start.magnitude, start.spread, max(survey.heaviest for survey in table.surveys), n)
    with_block = _wants_block(prepared.metrics)
    table.build("hold_out", lambda: (name, recipe, size, with_block))
    engine.watch(table)
    if sum(table.ask("judged_in_files")):
        tell_judged_in_files(name)
    return n


def _wants_block(metrics: Sequence[Metric]) -> bool:
    return any(metric.wants_block for metric in metrics)
