"""Callbacks and early stopping."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dboost.display import as_read
from dboost.errors import ParameterError
from dboost.model.ensemble import Ensemble
from dboost.params import EarlyStopping
from dboost.params.peer_names import OF_ITERATIONS, unknown_attribute
from dboost.training.history import NOT_SCORES


class Record(dict[str, Any]):
    """A row of the history, which has the roots of squared errors by the names of `Booster.history`, too."""

    def __init__(self, row: Mapping[str, Any], loss: str) -> None:
        super().__init__(row)
        self._loss = loss

    def __missing__(self, name: str) -> Any:
        read = [as_read(column, value, self._loss) for column, value in self.items() if column not in NOT_SCORES]
        for shown, value in read:
            if shown == name:
                return value
        raise KeyError(f"{name!r}: the scores are {', '.join(repr(shown) for shown, _ in read)}")


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
    #: For each score in the record whether larger values are better; functions for which that is not known are left out.
    greater_is_better: Mapping[str, bool]

    def __getattr__(self, name: str) -> Any:
        raise unknown_attribute(self, name, hints=OF_ITERATIONS)


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
            for iteration, value in enumerate(model.own_metrics.get(self.column, ())[: model.n_iterations], 1):
                self.should_stop(iteration, {self.column: value})


def rounds_of_rule(rule: Any, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the parameter that a value of ``early_stopping=`` other than None stands for.

    Raises
    ------
    ParameterError
        If it is no `EarlyStopping`, or beside `early_stopping_rounds`.
    """
    if not isinstance(rule, EarlyStopping):
        raise ParameterError(
            f"early_stopping={rule!r:.60} must be a dboost.EarlyStopping, such as dboost.EarlyStopping(20); "
            "early_stopping_rounds takes a number"
        )
    if parameters.get("early_stopping_rounds") is not None:
        raise ParameterError("early_stopping and early_stopping_rounds are two rules to stop by: give one")
    return {"early_stopping_rounds": rule.rounds}
