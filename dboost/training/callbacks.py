"""Callbacks, early stopping, schedules of the learning rate, and the progress of a fit."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

from dboost.display import counted, duration, metric_name, number
from dboost.errors import ParameterError
from dboost.model.ensemble import Ensemble

if TYPE_CHECKING:
    from dboost.training.progress import Display


@dataclass(frozen=True)
class LearningRates:
    """A schedule. given : a function of the number of the iteration, from 0; or one rate for each iteration."""

    given: Callable[[int], float] | tuple[float, ...]

    def at(self, k: int) -> float:
        """Return the learning rate of the fit's iteration k, from 0.

        Raises
        ------
        ParameterError
            If it is no positive number.
        """
        rate = self.given[k] if isinstance(self.given, tuple) else self.given(k)
        return checked_rate(rate, f"learning_rate of iteration {k}")


def checked_rate(rate: Any, what: str) -> float:
    """Return a learning rate as float; raise a ParameterError that names it if it is no positive number."""
    if isinstance(rate, bool) or not isinstance(rate, Real) or not 0 < float(rate) < math.inf:
        raise ParameterError(f"{what} is {rate!r:.60}, which is not a number greater than 0")
    return float(rate)


def schedule_of(parameters: dict[str, Any]) -> LearningRates | None:
    """Return the schedule that ``learning_rate=`` gives, and put its first rate in its place; None if it is no schedule.

    Raises
    ------
    ParameterError
        If a sequence is shorter than `max_iter`, or the first rate is no positive number.
    """
    rate: Any = parameters.get("learning_rate")
    if hasattr(rate, "tolist"):  # an array, a Series or an Index
        rate = rate.tolist()
    if isinstance(rate, str) or not (callable(rate) or isinstance(rate, Sequence)):
        return None
    schedule = LearningRates(rate if callable(rate) else tuple(rate))
    n_iterations = parameters.get("max_iter", 100)
    if isinstance(schedule.given, tuple) and isinstance(n_iterations, int) and len(schedule.given) < max(n_iterations, 1):
        raise ParameterError(f"learning_rate has {len(schedule.given)} values for max_iter={n_iterations}")
    parameters["learning_rate"] = schedule.at(0)
    return schedule


@dataclass(slots=True)  # so that assigning to an unknown attribute is an error
class Iteration:
    """Argument of callbacks, which are called after each iteration.

    A callback may set `learning_rate`: the following iterations use it, until a callback sets another one.
    """

    iteration: int  # from 1
    n_iterations: int  # number of the last iteration of the fit
    record: dict[str, Any]  # the iteration's row of `Booster.history`
    model: Callable[[], Ensemble]  # assembles and returns the `Ensemble` with the trees grown so far
    learning_rate: float  # of this iteration


#: A callback may return True to stop the fit after this iteration.
Callback = Callable[[Iteration], Any]


#: Returns a record in place of that of an iteration.
RecordOf = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class StoppingRule:
    """Tracks the best iteration by one metric, and stops the fit after `rounds` iterations without improvement.

    Only a change larger than `tolerance` counts as an improvement. The best iteration is the one with the best value regardless
    of the tolerance: the earliest of equal ones, with `keep_latest` the latest. A value that is NaN or infinite is undefined,
    and no improvement. As long as there was no other value, no iteration counts, and the last one is the best.

    pooled : returns the record to judge by instead of that of an iteration, such as the mean over the folds of a
    cross-validation.
    """

    def __init__(
        self,
        column: str,
        rounds: int,
        *,
        larger_is_better: bool,
        tolerance: float = 0.0,
        keep_latest: bool = False,
        pooled: RecordOf | None = None,
    ) -> None:
        self.column = column
        self.rounds = rounds
        self.best_iteration = 0
        self._sign = 1.0 if larger_is_better else -1.0
        self._tolerance = tolerance
        self._keep_latest = keep_latest
        self._pooled = pooled
        self._best = -float("inf")
        self._threshold = -float("inf")
        self._last_improvement = 0

    @property
    def rule(self) -> list[Any]:
        """The settings, by which a checkpoint compares two rules."""
        return [self.column, self.rounds, self._sign > 0, self._tolerance, self._keep_latest]

    def with_rounds(self, rounds: int) -> StoppingRule:
        """Return a copy of the rule with another number of iterations to wait."""
        rule = copy.copy(self)
        rule.rounds = rounds
        return rule

    def should_stop(self, iteration: int, record: Mapping[str, Any]) -> bool:
        value = self._sign * (record if self._pooled is None else self._pooled(record))[self.column]
        is_defined = math.isfinite(value)
        if not (is_defined or self.has_begun):
            self.best_iteration = iteration
            return False
        if is_defined and (value > self._best or (self._keep_latest and value == self._best)):
            self.best_iteration, self._best = iteration, value
        if is_defined and value > self._threshold + self._tolerance:
            self._last_improvement, self._threshold = iteration, value
        return self.has_waited(iteration)

    @property
    def has_begun(self) -> bool:
        """Whether there has been a value that is defined."""
        return self._best > -math.inf

    def has_waited(self, iteration: int) -> bool:
        """Whether the last improvement is at least `rounds` iterations ago."""
        return self._last_improvement > 0 and iteration - self._last_improvement >= self.rounds

    def restart_waiting(self, iteration: int) -> None:
        """Count iterations without improvement from this one on; the best value so far is kept."""
        self._last_improvement = iteration

    def resume(self, model: Ensemble) -> None:
        """Process the iterations of a continued model, if it was fitted with early stopping."""
        if model.best_iteration is not None:
            for iteration, value in enumerate(model.metrics.get(self.column, ())[: model.n_iterations], 1):
                self.should_stop(iteration, {self.column: value})


class Progress:
    """Shows the phases and iterations of a fit.

    Parameters
    ----------
    wanted : bool or None
        None: a bar on a terminal (stderr) and in a notebook, else no output. True: lines elsewhere, too.
    """

    def __init__(self, wanted: bool | None) -> None:
        self._wanted, self._unit = wanted, ""
        self._display: Display | None = None
        self._is_open, self._is_boosting = False, False
        self._n_iterations, self._first, self._first_ended = 0, 0, 0.0
        self._n_rows_grown, self._seconds = 0, 0.0

    def phase(self, name: str) -> None:
        """Show a phase before the first iteration."""
        self._open()
        if self._display is not None:
            self._display.begin(name)

    def count(self, n_done: int, n_total: int, unit: str) -> None:
        """Show how much of the phase is done; no effect while boosting, when rows of new workers are read."""
        if self._display is not None and not self._is_boosting:
            self._display.update(n_done, n_total, unit, "", "")

    def write(self, text: str) -> None:
        """Show a line beside the bar."""
        if self._display is not None:
            self._display.write(text)

    def begin(self, n_iterations: int, unit: str = "iteration") -> None:
        """Show that boosting has begun. n_iterations : number of the last iteration; unit : what is counted."""
        self.phase("boosting")
        self._is_boosting, self._n_iterations, self._unit = True, n_iterations, unit

    def show(self, record: dict[str, Any], scores: Sequence[str], seconds: float) -> None:
        """Show an iteration.

        seconds : duration of the iteration alone; with arcbites ``record["seconds"]`` may include loading one.
        """
        iteration, now = record["iteration"], time.monotonic()
        if not self._first_ended:  # kernels are compiled in the first one
            self._first, self._first_ended = iteration, now
        else:
            self._n_rows_grown += record["rows_kept"]
            self._seconds += seconds
        if self._display is None:
            return
        left = ""
        if iteration > self._first:
            each = (now - self._first_ended) / (iteration - self._first)
            left = f"{duration(each * (self._n_iterations - iteration))} left"
        self._display.update(iteration, self._n_iterations, self._unit, left, self._note(record, scores))

    def close(self) -> None:
        if self._display is not None:
            self._display.close()
            self._display = None

    def _open(self) -> None:
        if self._is_open or self._wanted is False:
            return
        from dboost.training.progress import open_display

        self._is_open = True
        self._display = open_display(bool(self._wanted))

    def _note(self, record: dict[str, Any], scores: Sequence[str]) -> str:
        """Current metrics, rows per second from the second iteration on, and on a cluster the number of workers with rows."""
        parts = [f"{metric_name(name)} {number(record[name], 5)}" for name in scores]
        if self._seconds > 0:
            parts.append(f"{self._n_rows_grown / self._seconds:,.0f} rows/s")
        if "workers" in record:
            parts.append(counted(record["workers"], "worker"))
        return ", ".join(parts)
