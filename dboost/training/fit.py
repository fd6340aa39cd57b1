"""One fit in this process, from an open table to an ensemble."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from dboost.engine.in_process import InProcessEngine
from dboost.errors import InputTypeError, ParameterError
from dboost.model.ensemble import Ensemble
from dboost.params import Parameters
from dboost.shard.layout import plan_layout
from dboost.shard.loading import encode_table, in_ranges, kept_rows, propose_binning
from dboost.shard.shard import Shard
from dboost.sources import Table
from dboost.statistics.metrics import Metric, find_metrics
from dboost.training.assembly import assemble
from dboost.training.held_out import Yardstick, flat_scores, named_sets
from dboost.training.monitor import Callback, EarlyStopping, Progress
from dboost.training.replay import check_continues, raw_scores
from dboost.training.start import in_one_part, start_of
from dboost.training.supervision import HELD_OUT, WATCHED, Supervise, Supervision
from dboost.training.target import read_target
from dboost.training.trainer import Training, precision_of, rule_of


class FitInterrupted(KeyboardInterrupt):
    """^C during a fit. `ensemble` is the model as far as it came, `iterations` how many iterations that is."""

    def __init__(self, message: str, ensemble: Ensemble | None, iterations: int) -> None:
        super().__init__(message)
        self.ensemble = ensemble
        self.iterations = iterations


@dataclass
class Fitted:
    """What a fit gives.

    Attributes
    ----------
    ensemble : Ensemble
    history : list of dict
        One record per iteration of this fit.
    before : dict
        Losses and metrics before the first of them.
    early_stopping : EarlyStopping or None
        The rule by which the fit was stopped, or could have been.
    timings : dict
        Seconds by phase: "load", "bin", "train".
    """

    ensemble: Ensemble
    history: list[dict[str, Any]]
    before: dict[str, float] = field(default_factory=dict)
    early_stopping: EarlyStopping | None = None
    timings: dict[str, float] = field(default_factory=dict)


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
    eval_set: Any = None,
    eval_metric: Any = None,
    n_threads: int,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    supervise: Supervise | None = None,
    start_from: Ensemble | None = None,
) -> Fitted:
    """Load, bin and train.

    Parameters
    ----------
    open_training : callable
        Opens the training table.
    parameters : Parameters
    target_name, weight_name : str or anything else
        Columns by name, which evaluation frames have too.
    eval_set, eval_metric, n_threads, callbacks, progress
        As in `dboost.fit`.
    supervise : callable, optional
        See `Supervision`.
    start_from : Ensemble, optional
        A model of the same data. Training goes on where it ended, until `max_iter` iterations in total; with the
        parameters that it had the result is, to the last bit, that of a single fit.
    """
    sets = list(named_sets(eval_set))
    callbacks = _checked(callbacks)
    if parameters.early_stopping_rounds is not None and not sets:
        raise ParameterError("early_stopping_rounds needs an eval_set to judge by")
    clock = _Clock()
    so_far: list[Callable[[], Ensemble]] = []
    with _reading(), open_training() as table:
        target = read_target(table, parameters.loss)
        loss = target.loss
        parameters = replace(parameters, loss=loss.name)
        if start_from is not None:
            check_continues(start_from, table, target)
        plan = Supervision(table.weight) if supervise is None else supervise(table, target, lambda: so_far[0]())
        metrics = find_metrics(eval_metric, loss)
        stopping = plan.early_stopping or _stopping_rule(parameters, sets, metrics)
        metrics += [metric for metric in plan.metrics if metric.name not in {known.name for known in metrics}]
        table.weight = plan.weight
        kept = _training_rows(plan, table.n_rows)
        clock.lap("load")

        binning = propose_binning(table, kept, max_bins=parameters.max_bins, seed=parameters.random_state, n_threads=n_threads)
        layout = plan_layout(binning.n_bins, binning.is_categorical)
        codes = encode_table(table, binning, layout, kept, n_threads)
        y = target.values if kept is None else target.values[kept]
        weight = table.weight if kept is None or table.weight is None else table.weight[kept]
        if weight is not None and (weight == 1.0).all():
            weight = None  # the same as none at all, and faster
        start = start_of(loss, in_one_part(y, weight, None))
        baseline = start.baseline if start_from is None else start_from.baseline
        raw = flat_scores(baseline, len(y)) if start_from is None else raw_scores(start_from, table, kept, n_threads)
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
        empty = Ensemble(
            features=binning.features,
            named=table.named,
            loss=loss.to_dict(),
            classes=target.classes,
            classes_dtype=target.classes_dtype,
            baseline=baseline,
            edges=binning.edges,
            parameters=parameters.to_dict(),
        )
    del table
    constant = loss.constant_hessian and weight is None
    rule = rule_of(parameters, len(y))
    shard = Shard(codes, layout, y, weight, raw, constant_hessian=constant, max_leaves=rule.max_leaves)
    in_ranges(shard.fill_tiles, len(y), n_threads)
    clock.lap("bin")
    with _reading():
        judged += [yardstick.data(*one) for one in _with_columns(sets, target_name, weight_name)]
    clock.lap("load")

    engine = InProcessEngine(
        shard,
        loss.terms(),
        rule=rule,
        n_planes=precision_of(parameters, constant).n_planes,
        coarse=start.loss_unit,
        n_threads=n_threads,
    )
    training = Training(
        engine=engine,
        binning=binning,
        parameters=parameters,
        constant_hessian=constant,
        total_weight=start.total_weight,
        coarse=start.loss_unit,
        rule=rule,
        held_out=[hold_out(engine.team) for hold_out in judged],
        metrics=metrics,
        early_stopping=stopping,
        callbacks=callbacks,
        n_outputs=loss.n_outputs,
        step_factor=loss.step_factor,
        n_before=0 if start_from is None else start_from.n_iterations,
    )
    if stopping is not None and start_from is not None:
        stopping.resume(start_from)
    collect = partial(assemble, empty, training, len(y), start_from)
    so_far.append(partial(collect, whole=True))
    bar = Progress(progress, parameters.max_iter)
    try:
        training.run(collect, bar)
    except KeyboardInterrupt as stopped:
        done = training.n_before + len(training.history)
        raise FitInterrupted(
            f"interrupted after {done} of {parameters.max_iter} iterations", collect() if done else None, done
        ) from stopped
    finally:
        bar.close()
        engine.close()
    clock.lap("train")
    return Fitted(collect(), training.history, training.before, stopping, clock.seconds)


def _training_rows(plan: Supervision, n_rows: int) -> np.ndarray | None:
    """Numbers of the rows to train on (int64), or None when that is all of them."""
    kept = kept_rows(plan.weight)
    if plan.held_out is None:
        return kept
    trained = np.ones(n_rows, bool) if plan.weight is None else plan.weight > 0
    trained[plan.held_out] = False
    return np.flatnonzero(trained)


def _stopping_rule(
    parameters: Parameters, sets: Sequence[tuple[str, Any, Any, Any]], metrics: Sequence[Metric]
) -> EarlyStopping | None:
    """By the last metric of the last evaluation set."""
    if parameters.early_stopping_rounds is None:
        return None
    column = f"{sets[-1][0]}_{metrics[-1].name}"
    return EarlyStopping(column, parameters.early_stopping_rounds, larger_is_better=metrics[-1].larger_is_better)


def _with_columns(sets: Sequence[tuple[str, Any, Any, Any]], target_name: Any, weight_name: Any) -> Any:
    """The same with the names of the columns that hold target and weight, where a set is a table."""
    for name, data, target, weight in sets:
        if target is None:
            if not isinstance(target_name, str):
                raise ParameterError(
                    f"evaluation set {name!r} is a table without a target: give (X, y), or name the target column in fit"
                )
            target = target_name
            weight = weight_name if isinstance(weight_name, str) and weight is None else weight
        yield name, data, target, weight


def _checked(callbacks: Any) -> tuple[Callback, ...]:
    """Callbacks as a tuple; a mistake is noticed before the first iteration, not after it."""
    found = (callbacks,) if callable(callbacks) else tuple(callbacks or ())
    for callback in found:
        if not callable(callback):
            raise InputTypeError(f"a callback must be a function of an Iteration, not {type(callback).__name__}")
    return found


@contextmanager
def _reading() -> Iterator[None]:
    """^C while data are read is a `FitInterrupted` as well."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        raise FitInterrupted("interrupted while reading the data, before the first iteration", None, 0) from stopped


class _Clock:
    """Seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._last
        self._last = now
