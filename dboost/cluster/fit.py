"""One fit on a cluster, from the user's data to an ensemble.

The same steps as in one process (`training/fit.py`), each of them a conversation with the workers; the boosting loop is the
very same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from distributed import Client

from dboost.cluster.connection import Connection
from dboost.cluster.engine import ClusterEngine, ClusterHeldOut
from dboost.cluster.loading import check, propose, unite_features, unite_target
from dboost.cluster.recipe import Recipe
from dboost.cluster.source import Source
from dboost.cluster.table import ClusterTable
from dboost.errors import DataError, InputTypeError, ParameterError
from dboost.model.ensemble import Ensemble
from dboost.params import Parameters
from dboost.sources.frame import is_lazy, is_path
from dboost.statistics.metrics import Metric, Size, find_metrics
from dboost.training.boost import Clock, Fitted, Prepared, boost, checked, reading, stopping_rule, with_columns
from dboost.training.held_out import Judge, Yardstick, named_sets
from dboost.training.monitor import Callback
from dboost.training.start import start_of

_TRAINING = "training data"


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
    """
    sets = list(named_sets(eval_set))
    callbacks = checked(callbacks)
    if parameters.early_stopping_rounds is not None and not sets:
        raise ParameterError("early_stopping_rounds needs an eval_set to judge by")
    clock = Clock()
    with Connection(client) as connection:
        with reading():
            source = Source(
                data,
                target,
                sample_weight=sample_weight,
                offset=offset,
                features=features,
                categorical_features=categorical_features,
                n_parts=max(sum(client.nthreads().values()), 1),
            )
            table = ClusterTable(connection, _TRAINING, source)
            table.load()
            check(table)
            known = unite_features(source.plan, table.surveys)
            table.settle(known)
            learned = unite_target(table.surveys, parameters)
            table.encode_target(learned)
            clock.lap("load")

            parameters = replace(parameters, loss=learned.loss.name)
            metrics = find_metrics(eval_metric, learned.loss)
            binning = propose(table, known, max_bins=parameters.max_bins, seed=parameters.random_state, n_threads=n_threads)

            def ask(function: Callable[..., Any], *arguments: Any) -> list[Any]:
                return [answer for answer in table.ask("ask_rows", function, arguments) if answer is not None]

            prepared = Prepared(
                parameters,
                learned,
                source.named,
                binning,
                start_of(learned.loss, ask),
                sum(table.n_kept.values()),
                not all(survey.unit_weights for survey in table.surveys),
                metrics,
                stopping_rule(parameters, sets, metrics),
                None,
            )
            recipe = Recipe(
                features=known,
                binning=binning,
                layout=prepared.layout,
                target=prepared.target,
                baseline=prepared.baseline,
                start_from=None,
                weighted=prepared.weighted,
                constant_hessian=prepared.constant_hessian,
                max_leaves=prepared.rule.max_leaves,
                n_planes=prepared.n_planes,
                coarse=prepared.start.loss_unit,
            )
            engine = ClusterEngine(connection, table, prepared.layout, prepared.n_rows, prepared.target.loss.terms(), n_threads)
            table.build("build", lambda: (recipe, engine.past()))
            clock.lap("bin")
            held_out = _hold_out(engine, prepared, recipe, list(with_columns(sets, target, sample_weight, offset)), n_threads)
            clock.lap("load")
        so_far: list[Callable[[], Ensemble]] = []
        return boost(prepared, engine, held_out, callbacks=callbacks, progress=progress, clock=clock, so_far=so_far)


def _hold_out(
    engine: ClusterEngine, prepared: Prepared, recipe: Recipe, sets: Sequence[tuple[str, Any, Any, Any, Any]], n_threads: int
) -> list[Judge]:
    """A judge for each evaluation set: on the workers for Dask collections and paths, here for data in memory."""
    start = prepared.start
    yardstick = Yardstick(
        recipe.target,
        recipe.binning,
        recipe.layout,
        recipe.baseline,
        start.magnitude,
        start.spread,
        recipe.start_from,
        with_block=_wants_block(prepared.metrics),
        n_threads=n_threads,
    )
    remote = [name for name, data, *_ in sets if is_lazy(data) or is_path(data)]
    judges: dict[str, Judge] = {}
    for name, data, *columns in sets:
        if name not in remote:
            judges[name] = yardstick.data(name, data, *columns)(engine.team)
            continue
        try:
            _load_held_out(engine, prepared, recipe, name, data, *columns)
        except (DataError, InputTypeError) as error:
            raise type(error)(f"evaluation set {name!r}: {error}") from error
    if remote:
        judges |= {one.name: one for one in ClusterHeldOut(engine, remote).sets()}
    return [judges[name] for name, *_ in sets]


def _load_held_out(
    engine: ClusterEngine, prepared: Prepared, recipe: Recipe, name: str, data: Any, target: Any, weight: Any, offset: Any
) -> None:
    source = Source(data, target, sample_weight=weight, offset=offset, like=recipe.features)
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


def _wants_block(metrics: Sequence[Metric]) -> bool:
    return any(metric.wants_block for metric in metrics)
