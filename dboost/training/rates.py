"""The learning rate of each iteration: constant, by a schedule, or as a callback sets it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dboost.errors import ParameterError
from dboost.training.callbacks import Iteration, LearningRates, checked_rate
from dboost.training.plan import FitPlan


class Rates:
    """The learning rates of a fit.

    Attributes
    ----------
    rate : float
        Of the next iteration, unless a schedule changes it.
    """

    def __init__(self, plan: FitPlan) -> None:
        self._plan, self.rate, self._is_set_by_callback = plan, plan.learning.learning_rate, False

    @property
    def are_noted(self) -> bool:
        """Whether the history has them, because they may differ."""
        return self._plan.request.learning_rates is not None or self._is_set_by_callback

    def planned(self, iteration: int) -> float:
        """Return the rate of an iteration before the fit was resumed, which no callback has set."""
        rates = self._plan.request.learning_rates
        return self._plan.learning.learning_rate if rates is None else self._scheduled(rates, iteration)

    def begin(self, iteration: int) -> float:
        """Return the rate of an iteration: by the schedule, unless a callback has set it."""
        rates = self._plan.request.learning_rates
        if rates is not None and not self._is_set_by_callback:
            self.rate = self._scheduled(rates, iteration)
        return self.rate

    def _scheduled(self, rates: LearningRates, iteration: int) -> float:
        """Return the rate of an iteration by the schedule, damped as those of all trees.

        The schedule counts the iterations of a fit; a warm start on the same data belongs to the fit that it continues.
        """
        damping = self._plan.learning.learning_rate / self._plan.parameters.learning_rate
        first = self._plan.warm_start.n_earlier if self._plan.warm_start.is_new_source else 0
        return rates.at(iteration - 1 - first) * damping

    def check(self, past: Sequence[dict[str, Any]], refusal: str) -> None:
        """Raise a ParameterError if earlier iterations had other learning rates than the schedule."""
        rates = self._plan.request.learning_rates
        for record in past:
            if record.get("learning_rate") != (None if rates is None else self._scheduled(rates, record["iteration"])):
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
        if self._plan.request.checkpoint is not None:
            raise ParameterError(
                "a callback has set learning_rate, which a checkpoint does not keep: give learning_rate=function"
            )
        if not self._is_set_by_callback:
            for record in history:  # without a schedule, those so far have the rate of the fit
                record.setdefault("learning_rate", self.rate)
        self._is_set_by_callback = True
        self.rate = checked_rate(now.learning_rate, f"learning_rate that a callback has set in iteration {now.iteration}")
