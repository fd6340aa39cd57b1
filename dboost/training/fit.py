"""One fit in this process, from an open table to an ensemble."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dboost.errors import ParameterError
from dboost.params import Parameters
from dboost.schema import Level
from dboost.sources import Table
from dboost.training.binned import BinnedData, take_census
from dboost.training.boost import Fitted, boost, check_bites, check_watched, checked, reading, with_columns
from dboost.training.budget import Budget, check_proposal
from dboost.training.checkpoint import Checkpoint
from dboost.training.held_out import named_sets
from dboost.training.loading import Loaded, Wanted, fits_memory, load_binned, load_into_files, load_into_memory
from dboost.training.monitor import Callback
from dboost.training.origin import NOTHING, Origin
from dboost.training.supervision import Supervise

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
    origin: Origin = NOTHING,
    checkpoint: Checkpoint | None = None,
    source_name: str | None = None,
    classes: tuple[Level, ...] | None = None,
    budget: Budget | None = None,
) -> Fitted:
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
    supervise : callable, optional
        See `Supervision`.
    origin : Origin
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
    callbacks = checked(callbacks)
    wanted = Wanted(
        parameters,
        list(named_sets(eval_set)),
        eval_metric,
        n_threads,
        supervise=supervise,
        origin=origin,
        checkpoint=checkpoint,
        source_name=source_name,
        classes=classes,
        budget=budget,
    )
    check_watched(parameters, wanted.sets)
    check_bites(parameters, origin)
    check_proposal(budget, parameters)
    columns = (target_name, weight_name, offset_name)
    with reading(), open_training() as table:
        census = None if budget is None else take_census(table)
        if census is None or fits_memory(table, census, wanted):
            table.gather_roles()
            loaded = load_into_memory(table, wanted)
        else:
            loaded = load_into_files(table, census, wanted)
            how = "streamed from" if parameters.arcbites is None else "divided into bites in"
            _log.info("%d rows do not fit memory_limit=%s and are %s files", loaded.engine.n_rows, budget, how)
    del table
    return _finish(loaded, wanted, columns, callbacks, progress)


def fit_binned(
    data: BinnedData,
    parameters: Parameters,
    *,
    columns: tuple[Any, Any, Any],
    eval_set: Any = None,
    eval_metric: Any = None,
    n_threads: int,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    origin: Origin = NOTHING,
    checkpoint: Checkpoint | None = None,
    source_name: str | None = None,
    budget: Budget | None = None,
) -> Fitted:
    """Train on data that were binned before; parameters as of `fit_table`, columns : names of target, weight and offset."""
    callbacks = checked(callbacks)
    wanted = Wanted(
        parameters, list(named_sets(eval_set)), eval_metric, n_threads,
        origin=origin, checkpoint=checkpoint, source_name=source_name, budget=budget,
    )  # fmt: skip
    check_watched(parameters, wanted.sets)
    check_bites(parameters, origin)
    if parameters.split_proposal != "global":
        raise ParameterError(
            f"split_proposal={parameters.split_proposal!r} wants to see the values, but these data were binned before"
        )
    try:
        loaded = load_binned(data, wanted)
    except BaseException:
        data.close()
        raise
    return _finish(loaded, wanted, columns, callbacks, progress)


def _finish(
    loaded: Loaded, wanted: Wanted, columns: tuple[Any, Any, Any], callbacks: Sequence[Callback], progress: bool | None
) -> Fitted:
    """Load the evaluation sets, and boost."""
    wanted.clock.lap("bin")
    engine = loaded.engine
    try:
        with reading():
            sets = with_columns(wanted.sets, *columns)
            judged = [*loaded.judged, *(loaded.yardstick.data(*one) for one in sets)]
    except BaseException:
        engine.close()
        raise
    wanted.clock.lap("load")
    held_out = [hold_out(engine.team) for hold_out in judged]
    return boost(
        loaded.prepared, engine, held_out, callbacks=callbacks, progress=progress, clock=wanted.clock, so_far=wanted.so_far
    )
