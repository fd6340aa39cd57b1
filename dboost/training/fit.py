"""The steps of a fit: read → target → validation rows → bins → initial score → encode → boost → ensemble.

Every kind of fit runs through `fit`: in memory, streamed from files, with arcbites, on prepared data, on a cluster. The kinds
differ in the implementation of `training_rows.TrainingRows`, i.e. where the rows are and how they are stored, and in the engine
that it opens. All decisions follow from statistics that do not depend on the partitions.

`training.leaf_refit` has its own, shorter sequence of steps.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from dboost.data import Table
from dboost.errors import DBoostError, FitInterrupted, ParameterError
from dboost.metrics.metric import find_metrics
from dboost.model import model_file
from dboost.model.ensemble import Ensemble
from dboost.session.evaluation import EvalSet
from dboost.session.protocol import Engine
from dboost.session.reference_sample import warn_of_drift, with_summary
from dboost.session.transport import LocalTable
from dboost.session.warm_start import check_continues
from dboost.training.arcbites import run_arcbites
from dboost.training.build_model import assemble
from dboost.training.callbacks import Callback, EarlyStopping, Progress
from dboost.training.initial_score import target_stats
from dboost.training.loop import BoostingLoop
from dboost.training.plan import FitPlan, FitRequest, make_plan, requested, stopping_rule
from dboost.training.training_rows import SessionRows, TrainingRows


@dataclass
class FitResult:
    """The model and the history of a fit."""

    ensemble: Ensemble
    history: list[dict[str, Any]]  # one record per iteration of this fit
    before: dict[str, float] = field(default_factory=dict)  # losses and metrics before the first iteration
    early_stopping: EarlyStopping | None = None  # the rule, whether or not it stopped the fit
    timings: dict[str, float] = field(default_factory=dict)  # seconds by phase: "load", "bin", "train"


def fit(request: FitRequest, rows: TrainingRows) -> FitResult:
    """Train on rows, and close them."""
    clock, ensemble_so_far = Clock(), _EnsembleSoFar()
    try:
        with interruptible_reading():
            plan, engine, eval_sets = _prepare(request, rows, clock, ensemble_so_far)
        callbacks = (*request.callbacks, *rows.observers(plan))
        return _boost(plan, engine, eval_sets, callbacks, clock, ensemble_so_far)
    finally:
        rows.close()


def fit_table(request: FitRequest, open_training: Callable[[], Table]) -> FitResult:
    """Train in this process on the table that a function opens."""
    return fit(request, SessionRows(LocalTable(open_training, request.n_threads, request.budget), request))


def _prepare(
    request: FitRequest, rows: TrainingRows, clock: Clock, ensemble_so_far: _EnsembleSoFar
) -> tuple[FitPlan, Engine, list[EvalSet]]:
    """Read the data; return the plan, an engine with the encoded rows, and the evaluation sets."""
    features = rows.load()
    warm_start = request.warm_start.widened(features)
    target = rows.learn_target()
    if warm_start.model is not None:
        check_continues(warm_start.model, features, target)
    parameters = request.parameters.with_loss(target.loss.name)
    validation, chosen = rows.assign(target, ensemble_so_far)
    metrics = find_metrics(request.eval_metric, target.loss)
    stopping = stopping_rule(parameters, validation.early_stopping, request.eval_sets, metrics)
    metrics += [metric for metric in validation.metrics if metric.name not in {known.name for known in metrics}]
    if request.checkpoint is not None:
        settings = requested(parameters, request, metrics, stopping)
        warm_start = request.checkpoint.resume(warm_start, features, target, parameters, settings)
    clock.lap("load")

    binning = rows.propose_bins(warm_start, parameters)
    if warm_start.is_new_source:
        rows.compute_start_scores(warm_start)
    stats = target_stats(target.loss, rows.map_rows, continues=warm_start.is_new_source)
    description = rows.describe(parameters.random_state)
    plan = make_plan(request, parameters, target, binning, stats, description, (metrics, stopping), warm_start)
    model_file.check(plan.empty)  # now rather than after hours of training
    engine = rows.build(plan, chosen)
    clock.lap("bin")
    try:
        eval_sets = rows.eval_sets(plan, chosen, request.named_columns())
    except BaseException:
        engine.close()
        raise
    clock.lap("load")
    return plan, engine, eval_sets


def _boost(
    plan: FitPlan,
    engine: Engine,
    eval_sets: Sequence[EvalSet],
    callbacks: Sequence[Callback],
    clock: Clock,
    ensemble_so_far: _EnsembleSoFar,
) -> FitResult:
    """Run the boosting loop and assemble the model."""
    warm_start, stopping, checkpoint = plan.warm_start, plan.stopping, plan.request.checkpoint
    loop = BoostingLoop(plan, engine, eval_sets, callbacks)
    if stopping is not None and warm_start.model is not None and not (warm_start.is_new_source or warm_start.resumes):
        stopping.resume(warm_start.model)
    collect = partial(assemble, plan.empty, loop, plan.n_rows, warm_start, plan.notes)
    ensemble_so_far.assemble = partial(collect, whole=True)
    bar = Progress(plan.request.progress, loop.n_iterations)
    if warm_start.is_new_source and warm_start.model is not None and plan.reference is not None and not warm_start.resumes:
        warn_of_drift(warm_start.model, plan.reference, plan.parameters, plan.learning)
    try:
        if plan.parameters.arcbites is None:
            loop.run(collect, bar)
        else:
            run_arcbites(loop, plan.parameters.arcbites, collect, bar)
    except KeyboardInterrupt as stopped:
        n_done, kept = loop.n_done, ""
        if checkpoint is not None:
            kept = f"; the checkpoint in {checkpoint.path} holds {checkpoint.n_iterations} of this fit"
        model = with_summary(collect(), plan.reference) if n_done else None
        raise FitInterrupted(f"interrupted after {n_done} of {loop.n_iterations} iterations{kept}", model, n_done) from stopped
    finally:
        bar.close()
        engine.close()
    clock.lap("train")
    history = loop.history if checkpoint is None or plan.parameters.arcbites is not None else checkpoint.history
    ensemble = with_summary(collect(), plan.reference)
    # Check that the model can be loaded again once it has been saved.
    model_file.check(ensemble, n_known=0 if warm_start.model is None else len(warm_start.model.trees))
    return FitResult(ensemble, history, loop.before, stopping, clock.seconds)


def available_threads(wanted: int | None) -> int:
    """Return the given number of threads, by default the number of processors that this process may run on.

    Raises
    ------
    ParameterError
        For anything but a positive integer or None.
    """
    if wanted is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if isinstance(wanted, bool) or not isinstance(wanted, int | np.integer) or wanted < 1:
        raise ParameterError(f"n_threads={wanted!r} must be a positive integer or None")
    return int(wanted)


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
