"""Learning rates that change from iteration to iteration: by a schedule, or set by a callback."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from dboost.errors import ParameterError


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
    given = parameters.get("learning_rate")
    if isinstance(given, np.ndarray):
        given = given.tolist()
    if isinstance(given, str) or not (callable(given) or isinstance(given, Sequence)):
        return None
    schedule = LearningRates(given if callable(given) else tuple(given))
    n_iterations = parameters.get("max_iter", 100)
    if isinstance(schedule.given, tuple) and isinstance(n_iterations, int) and len(schedule.given) < max(n_iterations, 1):
        raise ParameterError(f"learning_rate has {len(schedule.given)} values for max_iter={n_iterations}")
    parameters["learning_rate"] = schedule.at(0)
    return schedule
