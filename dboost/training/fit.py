"""One fit in this process, from an open table to an ensemble."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dboost.binning import Binning
from dboost.engine.in_process import InProcessEngine
from dboost.errors import ParameterError
from dboost.kernels.histograms import Layout
from dboost.model.ensemble import Ensemble
from dboost.params import Parameters
from dboost.shard.layout import plan_layout
from dboost.shard.loading import encode_table, in_ranges, kept_rows, propose_binning
from dboost.shard.shard import Shard
from dboost.sources import Table, open_table
from dboost.statistics.exact import ExactSum, unit_for
from dboost.statistics.metrics import find_metrics
from dboost.training.held_out import HeldOut, named_sets
from dboost.training.monitor import Callback, EarlyStopping, Progress
from dboost.training.target import Target, encode_like, read_target
from dboost.training.trainer import Training, precision_of, rule_of


class FitInterrupted(KeyboardInterrupt):
    """^C during a fit. `ensemble` is the model as far as it came, `iterations` how many iterations that is."""

    def __init__(self, message: str, ensemble: Ensemble | None, iterations: int) -> None:
        super().__init__(message)
        self.ensemble = ensemble
        self.iterations = iterations


@dataclass
class Fitted:
    """What a fit gives: the model, the history's records, and seconds by phase ("load", "bin", "train")."""

    ensemble: Ensemble
    history: list[dict[str, Any]]
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
) -> Fitted:
    """Load, bin and train.

    open_training : opens the training table; target_name, weight_name : columns by name, which evaluation frames have too.
    """
    if parameters.early_stopping_rounds is not None and eval_set is None:
        raise ParameterError("early_stopping_rounds needs an eval_set to judge by")
    clock = _Clock()
    with open_training() as table:
        target = read_target(table, parameters.loss)
        parameters = replace(parameters, loss=target.loss.name)
        metrics = find_metrics(eval_metric, target.loss)
        clock.lap("load")
        kept = kept_rows(table.weight)
        binning = propose_binning(
            table, kept, max_bins=parameters.max_bins, seed=parameters.random_state, n_threads=n_threads
        )
        layout = plan_layout(binning.n_bins, binning.is_categorical)
        codes = encode_table(table, binning, layout, kept, n_threads)
        named = table.named
    y = target.values if kept is None else target.values[kept]
    weight = table.weight if kept is None or table.weight is None else table.weight[kept]
    if weight is not None and (weight == 1.0).all():
        weight = None  # the same as none at all, and faster
    del table
    start = _start(target, y, weight)
    constant = target.loss.constant_hessian and weight is None
    rule = rule_of(parameters, len(y))
    shard = Shard(
        codes, layout, y, weight, np.full(len(y), start.baseline), constant_hessian=constant, max_leaves=rule.max_leaves
    )
    in_ranges(shard.fill_tiles, len(y), n_threads)
    clock.lap("bin")
    engine = InProcessEngine(
        shard,
        target.loss.terms(),
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
        metrics=metrics,
        callbacks=callbacks,
    )
    empty = Ensemble(
        features=binning.features,
        named=named,
        loss=target.loss.to_dict(),
        classes=target.classes,
        classes_dtype=target.classes_dtype,
        baseline=np.array([start.baseline]),
        edges=binning.edges,
        parameters=parameters.to_dict(),
    )

    def assemble() -> Ensemble:
        return _assemble(empty, training, len(y))

    bar = Progress(progress, parameters.max_iter)
    try:
        training.held_out = [
            _hold_out(name, data, *(columns), target, binning, layout, start, n_threads, engine)
            for name, data, columns in _eval_columns(eval_set, target_name, weight_name)
        ]
        if parameters.early_stopping_rounds is not None:
            last, metric = training.held_out[-1], metrics[-1]
            training.early_stopping = EarlyStopping(
                f"{last.name}_{metric.name}", parameters.early_stopping_rounds, larger_is_better=metric.larger_is_better
            )
        clock.lap("load")
        training.run(assemble, bar)
    except KeyboardInterrupt as stopped:
        done = len(training.history)
        raise FitInterrupted(
            f"interrupted after {done} of {parameters.max_iter} iterations", assemble() if done else None, done
        ) from stopped
    finally:
        bar.close()
        engine.close()
    clock.lap("train")
    return Fitted(assemble(), training.history, clock.seconds)


@dataclass(frozen=True)
class _Start:
    """Where the raw score starts, and the units of exact sums."""

    baseline: float
    total_weight: float
    magnitude: float
    loss_unit: float


def _start(target: Target, y: np.ndarray, weight: np.ndarray | None) -> _Start:
    n = len(y)
    unit = unit_for(float(np.abs(y).max()) * (1.0 if weight is None else float(weight.max())), n)
    if weight is None:
        total = float(n)
        mean = ExactSum.of(y, unit).finish() / total
        heaviest = 1.0
    else:
        heaviest = float(weight.max())
        total = ExactSum.of(weight, unit_for(heaviest, n)).finish()
        mean = ExactSum.of(y * weight, unit).finish() / total
    magnitude = target.loss.magnitude(mean, float(np.abs(y - mean).max()))
    return _Start(target.loss.best_constant(mean), total, magnitude, unit_for(magnitude * heaviest, n, spare_bits=10))


def _eval_columns(eval_set: Any, target_name: Any, weight_name: Any) -> Any:
    for name, data, target, weight in named_sets(eval_set):
        if target is None:
            if not isinstance(target_name, str):
                raise ParameterError(
                    f"evaluation set {name!r} is a table without a target: give (X, y), or name the target column in fit"
                )
            target = target_name
            weight = weight_name if isinstance(weight_name, str) and weight is None else weight
        yield name, data, (target, weight)


def _hold_out(
    name: str,
    data: Any,
    target_column: Any,
    weight_column: Any,
    target: Target,
    binning: Binning,
    layout: Layout,
    start: _Start,
    n_threads: int,
    engine: InProcessEngine,
) -> HeldOut:
    with open_table(
        data, target_column, sample_weight=weight_column, like=binning.features, n_threads=n_threads
    ) as table:
        y = encode_like(table, target, f"evaluation set {name!r}")
        kept = kept_rows(table.weight)
        codes = encode_table(table, binning, layout, kept, n_threads, allow_infinite=True)
        weight = table.weight
    if kept is not None and weight is not None:
        y, weight = y[kept], weight[kept]
    raw = np.full(len(y), start.baseline)
    return HeldOut(name, codes, layout, y, weight, raw, target.loss, start.magnitude, engine.team)


def _assemble(empty: Ensemble, training: Training, n_rows: int) -> Ensemble:
    """The ensemble so far; with early stopping only up to the best iteration."""
    best = training.early_stopping.best_iteration if training.early_stopping is not None else None
    kept = training.harvest if best is None else training.harvest[:best]
    metrics: dict[str, tuple[float, ...]] = {}
    if training.history:
        for name in training.history[0]:
            if name not in ("iteration", "seconds", "rows_kept", "bytes_read"):
                metrics[name] = tuple(record[name] for record in training.history)
    source = {
        "label": None,
        "rows": n_rows,
        "first_iteration": 1,
        "last_iteration": len(kept),
        "parameters": empty.parameters,
        "data_digest": _digest(empty, n_rows),
    }
    return replace(
        empty,
        trees=tuple(harvest.to_tree(training.binning, training.parameters) for harvest in kept),
        sources=(source,),
        metrics=metrics,
        best_iteration=best,
    )


def _digest(ensemble: Ensemble, n_rows: int) -> str:
    """Digest of the data's schema and counts: names, kinds, levels, rows."""
    schema = [[f.name, None if f.levels is None else [repr(level) for level in f.levels]] for f in ensemble.features]
    return hashlib.sha256(json.dumps([schema, n_rows]).encode()).hexdigest()


class _Clock:
    """Seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._last
        self._last = now
