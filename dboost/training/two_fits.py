"""Two fits of one call: the first one holds rows out and finds the number of iterations, the second one trains on all rows.

The number of iterations that is best depends on the learning rate almost as 1 / rate (J. Friedman, "Greedy function
approximation", 2001, section 5), and grows with the number of rows. So ``max_iter="auto"`` searches at a high rate: of n
iterations at rate a, found on a part p of the rows, follow n · a / b / p at rate b on all of them. ``refit=True`` with a number
of iterations has the same rate and as many iterations as early stopping has kept.

The rows are read and binned once (`input_data.TableInput.for_two_fits`). The second fit has nothing of the first but its number
of iterations: its trees are those of `dboost.fit` with this number and rate.
"""

from __future__ import annotations

import logging
import math
import numbers
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from dboost.display import counted, number
from dboost.errors import ParameterError
from dboost.training.auto_iterations import MOST_ITERATIONS
from dboost.training.bag import Fit, fit_bag
from dboost.training.callbacks import Callback, Iteration
from dboost.training.fit import FitResult, Watch
from dboost.training.progress import BOOSTING, SEARCHING
from dboost.training.request import FitRequest
from dboost.training.validation_rows import ValidationPlan

_log = logging.getLogger("dboost")


def check_refit(refit: Any, request: FitRequest, *, stops: bool) -> None:
    """Raise a ParameterError if a fit cannot be repeated with the number of iterations that it kept.

    stops : whether it may stop early.
    """
    if refit is not None and not isinstance(refit, bool):
        raise ParameterError(f"refit={refit!r:.60} must be True or False")
    if not refit:
        return
    if not stops:
        raise ParameterError('refit=True needs early stopping, which finds the number of iterations: give max_iter="auto"')
    for name, value in (
        ("checkpoint", request.checkpoint),
        ("time_limit", request.time_limit),
        ("arcbites", request.parameters.arcbites),
    ):
        if value is not None:
            raise ParameterError(f"refit=True does not go together with {name}: leave one of them out")


class Rows(Protocol):
    """The rows of a call (`input_data`)."""

    def for_two_fits(self, request: FitRequest) -> AbstractContextManager[Fit]:
        """Return a context with the function that trains on the rows."""


def fit_twice(
    rows: Rows,
    request: FitRequest,
    *,
    rate: float | None = None,
    fraction: float = 0.0,
    bag: int = 1,
    first_callbacks: Sequence[Callback] = (),
    stops: Callable[[], bool] = lambda: True,
) -> FitResult:
    """Return the model of a second fit: on all rows, with the number of iterations that the first one has found.

    The history is that of the first fit, whose validation rows have decided; its observers see the result of the second.
    Callbacks see both, with NaN for the metrics that the second one does not have.

    Parameters
    ----------
    rows : Rows
    request : FitRequest
        Of the first fit.
    rate : float, optional
        Learning rate of the second fit, which has more iterations: see the module. Default: the rates of the first fit, and
        its number of iterations.
    fraction : float or int, default 0
        Share or number of the rows that the first fit does not train on.
    bag : int, default 1
        Number of fits on all rows, which are averaged.
    first_callbacks : sequence of callable
        Called in the first fit only.
    stops : callable
        Whether the first fit could stop early, once it has ended; otherwise its model is the result.
    """
    watch, progress = Watch(), request.progress
    try:
        began = time.perf_counter()
        with rows.for_two_fits(request) as fit:
            seconds = time.perf_counter() - began
            callbacks = (*request.callbacks, *first_callbacks)
            first = fit(replace(request, callbacks=callbacks, watch=watch, progress=progress.part(SEARCHING)))
            n = first.ensemble.n_iterations - request.warm_start.n_earlier
            if n < 1 or not stops():  # the model that was continued is the best
                return first
            watch.result = None
            max_iter = n
            if rate is not None:
                ratio = first.n_rows / (first.n_rows + fraction) if isinstance(fraction, numbers.Integral) else 1 - fraction
                max_iter = max(round(n * request.parameters.learning_rate / rate / ratio), 1)
                max_iter = min(max_iter, MOST_ITERATIONS)
            repeated = _second_request(request, first, max_iter, rate)
            times = "" if bag == 1 else f", {bag} times"
            message = f"the search has kept {counted(n, 'iteration')}: training {max_iter:,} with all rows{times}"
            _log.info(message)
            progress.write(message)
            second = fit_bag(lambda each: fit(replace(each, watch=watch, progress=progress.part(BOOSTING))), repeated, bag)
            watch.result = result = _of_both(request, first, second, n)
            result.timings["load"] += seconds
            return result
    finally:
        progress.close()
        watch.end()


def _second_request(request: FitRequest, first: FitResult, max_iter: int, rate: float | None) -> FitRequest:
    """Return the request of a fit on all rows."""
    make_plan, parameters = request.make_validation_plan, replace(request.parameters, max_iter=max_iter)
    rate = parameters.learning_rate if rate is None else rate
    parameters = replace(parameters, early_stopping_rounds=None, learning_rate=rate)

    def with_all_rows(*counts: Any) -> ValidationPlan:
        return ValidationPlan() if make_plan is None else ValidationPlan(make_plan(*counts).class_weight)

    return replace(
        request,
        parameters=parameters,
        callbacks=(partial(_add_undefined, [*first.ensemble.metrics]), *request.callbacks) if request.callbacks else (),
        early_stopping=None,
        make_validation_plan=None if make_plan is None else with_all_rows,
        validation_fraction=None,
    )


def _add_undefined(columns: Sequence[str], iteration: Iteration) -> None:
    """Add NaN to the record of an iteration for metrics of the first fit, which callbacks may read. No history has it."""
    for column in columns:
        iteration.record.setdefault(column, math.nan)


def _of_both(request: FitRequest, first: FitResult, second: FitResult, n: int) -> FitResult:
    """Return the result of a call: the second model, with the metrics of the first fit and a record of it.

    n : iterations that the first one has kept.
    """
    model, ended_by = second.ensemble, first.ended_by
    if request.warm_start.model is None:
        search, losses = _search_record(request, first, n), model.metrics.get("train_loss", ())
        loss = losses[-1] if losses and math.isfinite(losses[-1]) else None
        model = replace(model, sources=(model.sources[0] | {"search": search | {"train_loss": loss}},))
        ended_by = _ended_by(first, second, search)
    return replace(
        second,
        ensemble=replace(model, metrics=first.ensemble.metrics, best_iteration=first.ensemble.best_iteration),
        history=first.history,
        before=first.before,
        ended_by=ended_by,
        lost_workers=[*first.lost_workers, *second.lost_workers],
        timings={
            "load": first.timings["load"] + second.timings["load"],
            "bin": first.timings["bin"] + second.timings["bin"],
            "search": first.timings["train"],
            "train": second.timings["train"],
        },
    )


def _search_record(request: FitRequest, first: FitResult, n: int) -> dict[str, Any]:
    """Return the `Ensemble.search` without the loss of the model."""
    source = first.ensemble.sources[0]
    has_rates = request.learning_rates is not None or "learning_rates" in source
    rate = None if has_rates else request.parameters.learning_rate
    return {"iterations": n, "learning_rate": rate, "rows": source["rows"]}


def _ended_by(first: FitResult, second: FitResult, search: Mapping[str, Any]) -> str:
    """Return why the iterations of the model are as many as they are."""
    source, rate = second.ensemble.sources[0], search["learning_rate"]
    rates = "" if rate is None else f" at learning rate {number(rate)}"
    now = "" if rate is None else f" at {number(source['parameters']['learning_rate'])}"
    held_out = ""
    if search["rows"] is not None and source["rows"] > search["rows"]:
        held_out = f" with {source['rows'] - search['rows']:,} of {counted(source['rows'], 'row')} held out"
    stopped = "" if second.ended_by == "max_iter" else f", ended by {second.ended_by}"
    n, fits = source["last_iteration"], ""
    if "bag" in source:
        fits = f", the mean of {source['bag']} fits"
    return f"{first.ended_by}{rates}{held_out}; then {counted(n, 'iteration')}{now} with all rows{fits}{stopped}"
