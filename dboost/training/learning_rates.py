"""The learning rate of each iteration: constant, by a schedule, or as a callback sets it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from dboost.errors import ParameterError
from dboost.training.callbacks import Iteration


@dataclass(frozen=True)
class LearningRates:
    """A schedule. rates : a function of the number of the iteration, from 0; or one rate for each iteration."""

    rates: Callable[[int], float] | tuple[float, ...]

    def at(self, k: int) -> float:
        """Return the learning rate of the fit's iteration k, from 0.

        Raises
        ------
        ParameterError
            If it is no positive number.
        """
        rate = self.rates[k] if isinstance(self.rates, tuple) else self.rates(k)
        return checked_rate(rate, f"learning_rate of iteration {k}")


def checked_rate(rate: Any, name: str) -> float:
    """Return a learning rate as float; raise a ParameterError that names it if it is no positive number."""
    if isinstance(rate, bool) or not isinstance(rate, Real) or not 0 < float(rate) < math.inf:
        raise ParameterError(f"{name} is {rate!r:.60}, which is not a number greater than 0")
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
    if isinstance(schedule.rates, tuple) and isinstance(n_iterations, int) and len(schedule.rates) < max(n_iterations, 1):
        raise ParameterError(f"learning_rate has {len(schedule.rates)} values for max_iter={n_iterations}")
    parameters["learning_rate"] = schedule.at(0)
    return schedule


class Rates:
    """The learning rates of a fit.

    Parameters
    ----------
    schedule : LearningRates, optional
    constant : float
        The rate without a schedule, as it is damped.
    damping : float
        Factor of the rates of the schedule.
    n_earlier : int
        Number of iterations before the first one that the schedule counts.
    has_checkpoint : bool
        Whether a callback may set no rate, which a resumed fit would not know.

    Attributes
    ----------
    rate : float
        Of the next iteration, unless a schedule changes it.
    """

    def __init__(
        self, schedule: LearningRates | None, constant: float, damping: float, n_earlier: int, *, has_checkpoint: bool
    ) -> None:
        self._schedule, self._constant, self._damping, self._n_earlier = schedule, constant, damping, n_earlier
        self._has_checkpoint, self.rate, self._is_set_by_callback = has_checkpoint, constant, False

    @property
    def are_noted(self) -> bool:
        """Whether the history has them, because they may differ."""
        return self._schedule is not None or self._is_set_by_callback

    def planned(self, iteration: int) -> float:
        """Return the rate of an iteration before the fit was resumed, which no callback has set."""
        return self._constant if self._schedule is None else self._scheduled(self._schedule, iteration)

    def begin(self, iteration: int) -> float:
        """Return the rate of an iteration: by the schedule, unless a callback has set it."""
        if self._schedule is not None and not self._is_set_by_callback:
            self.rate = self._scheduled(self._schedule, iteration)
        return self.rate

    def _scheduled(self, schedule: LearningRates, iteration: int) -> float:
        """Return the rate of an iteration by the schedule, damped as those of all trees.

        The schedule counts the iterations of a fit; a warm start on the same data belongs to the fit that it continues.
        """
        return schedule.at(iteration - 1 - self._n_earlier) * self._damping

    def check(self, past: Sequence[dict[str, Any]], refusal: str) -> None:
        """Raise a ParameterError if earlier iterations had other learning rates than the schedule."""
        schedule = self._schedule
        for record in past:
            if record.get("learning_rate") != (None if schedule is None else self._scheduled(schedule, record["iteration"])):
                raise ParameterError(f"{refusal}: iteration {record['iteration']} had another learning_rate")

    def follow(self, now: Iteration, history: list[dict[str, Any]]) -> None:
        """Use the learning rate that a callback may have set.

        Raises
        ------
        ParameterError
            If it is no positive number; with a checkpoint, from which a resumed fit could not tell it.
        """
        if now.learning_rate == self.rate:
            return
        if self._has_checkpoint:
            raise ParameterError(
                "a callback has set learning_rate, which a checkpoint does not keep: give learning_rate=function"
            )
        if not self._is_set_by_callback:
            for record in history:  # without a schedule, those so far have the rate of the fit
                record.setdefault("learning_rate", self.rate)
        self._is_set_by_callback = True
        self.rate = checked_rate(now.learning_rate, f"learning_rate that a callback has set in iteration {now.iteration}")
