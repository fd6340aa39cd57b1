"""One fit in this process, from an open table to an ensemble."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from dboost.engine.in_process import InProcessEngine
from dboost.engine.streamed import StreamedEngine
from dboost.errors import ParameterError
from dboost.model.ensemble import Ensemble
from dboost.params import Parameters
from dboost.shard.loading import encode_table, in_ranges, kept_rows, propose_binning
from dboost.shard.shard import Shard
from dboost.sources import Table
from dboost.statistics.metrics import find_metrics
from dboost.training.boost import Clock, Fitted, Prepared, boost, checked, reading, stopping_rule, with_columns
from dboost.training.budget import Budget, in_words
from dboost.training.held_out import Yardstick, flat_scores, named_sets
from dboost.training.monitor import Callback
from dboost.training.replay import check_continues, raw_scores
from dboost.training.start import in_one_part, start_of
from dboost.training.streamed import propose_within, stream_table, traits_of
from dboost.training.supervision import HELD_OUT, WATCHED, Supervise, Supervision
from dboost.training.target import read_target

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
    supervise: Supervise | None = None,
    start_from: Ensemble | None = None,
    budget: Budget | None = None,
) -> Fitted:
    """Load, bin and train.

    Parameters
    ----------
    open_training : callable
        Opens the training table.
    parameters : Parameters
    target_name, weight_name, offset_name : str or anything else
        Columns by name, which evaluation frames have too.
    eval_set, eval_metric, n_threads, callbacks, progress
        As in `dboost.fit`.
    supervise : callable, optional
        See `Supervision`.
    start_from : Ensemble, optional
        A model of the same data. Training goes on where it ended, until `max_iter` iterations in total; with the
        parameters that it had the result is, to the last bit, that of a single fit.
    budget : Budget, optional
        What the fit may add to the process's memory. Rows that do not fit are streamed from files; the model is the same.
    """
    sets = list(named_sets(eval_set))
    callbacks = checked(callbacks)
    if parameters.early_stopping_rounds is not None and not sets:
        raise ParameterError("early_stopping_rounds needs an eval_set to judge by")
    clock = Clock()
    so_far: list[Callable[[], Ensemble]] = []
    with reading(), open_training() as table:
        target = read_target(table, parameters)
        loss = target.loss
        parameters = parameters.with_loss(loss.name)
        if start_from is not None:
            check_continues(start_from, table.features, target)
        plan = Supervision(table.weight) if supervise is None else supervise(table, target, lambda: so_far[0]())
        metrics = find_metrics(eval_metric, loss)
        stopping = plan.early_stopping or stopping_rule(parameters, sets, metrics)
        metrics += [metric for metric in plan.metrics if metric.name not in {known.name for known in metrics}]
        table.weight = plan.weight
        kept = _training_rows(plan, table.n_rows)
        clock.lap("load")

        proposing = propose_binning if budget is None else partial(propose_within, budget=budget)
        binning = proposing(table, kept, max_bins=parameters.max_bins, seed=parameters.random_state, n_threads=n_threads)
        y = target.values if kept is None else target.values[kept]
        weight = table.weight if kept is None or table.weight is None else table.weight[kept]
        if weight is not None and (weight == 1.0).all():
            weight = None  # the same as none at all, and faster
        offset = table.offset if kept is None or table.offset is None else table.offset[kept]
        start = start_of(loss, in_one_part(y, weight, offset))
        prepared = Prepared(
            parameters, target, table.named, binning, start, len(y), weight is not None, metrics, stopping, start_from
        )
        layout, baseline = prepared.layout, prepared.baseline
        target, loss = prepared.target, start.loss
        engine: InProcessEngine | StreamedEngine
        if budget is None or budget.holds_rows(traits_of(prepared), len(y), n_threads):
            _log.info("%d rows are trained on in memory", len(y))
            shard = _in_memory(table, prepared, kept, y, weight, offset, start_from, n_threads)
            engine = InProcessEngine(
                shard,
                loss.terms(),
                rule=prepared.rule,
                n_planes=prepared.n_planes,
                coarse=start.loss_unit,
                n_threads=n_threads,
            )
        else:
            _log.info("%d rows do not fit memory_limit=%s and are streamed from files", len(y), in_words(budget.limit))
            engine = stream_table(
                table, prepared, kept, y, weight, offset, start_from=start_from, n_threads=n_threads, budget=budget
            )
        yardstick = Yardstick(
            target,
            binning,
            layout,
            baseline,
            start.magnitude,
            start.spread,
            start_from,
            with_block=any(metric.wants_block for metric in metrics),
            n_threads=n_threads,
        )
        judged = [
            yardstick.rows(name, table, target.values, rows)
            for name, rows in ((HELD_OUT, plan.held_out), (WATCHED, plan.watched))
            if rows is not None
        ]
    del table, y, weight, offset
    clock.lap("bin")
    try:
        with reading():
            judged += [yardstick.data(*one) for one in with_columns(sets, target_name, weight_name, offset_name)]
    except BaseException:
        engine.close()
        raise
    clock.lap("load")

    held_out = [hold_out(engine.team) for hold_out in judged]
    return boost(prepared, engine, held_out, callbacks=callbacks, progress=progress, clock=clock, so_far=so_far)


def _in_memory(
    table: Table,
    prepared: Prepared,
    kept: np.ndarray | None,
    y: np.ndarray,
    weight: np.ndarray | None,
    offset: np.ndarray | None,
    start_from: Ensemble | None,
    n_threads: int,
) -> Shard:
    """The rows of a table, or those kept, as one shard; y, weight and offset are of these rows."""
    codes = encode_table(table, prepared.binning, prepared.layout, kept, n_threads)
    raw = flat_scores(prepared.baseline, len(y)) if start_from is None else raw_scores(start_from, table, kept, n_threads)
    if offset is not None:
        raw += offset
    shard = Shard(
        codes,
        prepared.layout,
        y,
        weight,
        raw,
        constant_hessian=prepared.constant_hessian,
        max_leaves=prepared.rule.max_leaves,
        whole_weights=prepared.heaviest is not None,
        by_weight=prepared.by_weight,
    )
    in_ranges(shard.fill_tiles, len(y), n_threads)
    return shard


def _training_rows(plan: Supervision, n_rows: int) -> np.ndarray | None:
    """Numbers of the rows to train on (int64), or None when that is all of them."""
    kept = kept_rows(plan.weight)
    if plan.held_out is None:
        return kept
    trained = np.ones(n_rows, bool) if plan.weight is None else plan.weight > 0
    trained[plan.held_out] = False
    return np.flatnonzero(trained)
