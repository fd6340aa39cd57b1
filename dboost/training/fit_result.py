"""The result of a fit, and the observers to which every fit of this process shows its plan, its iterations and its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from dboost.model.ensemble import Ensemble
from dboost.training.callbacks import Iteration, StoppingRule
from dboost.training.plan import FitPlan


@dataclass
class FitResult:
    """The model and the history of a fit."""

    ensemble: Ensemble
    history: list[dict[str, Any]]  # one record per iteration of this fit
    before: dict[str, float] = field(default_factory=dict)  # losses and metrics before the first iteration
    early_stopping: StoppingRule | None = None  # the rule, whether or not it stopped the fit
    whole: Ensemble | None = None  # of a fold: the model with the iterations after the best one
    timings: dict[str, float] = field(default_factory=dict)  # seconds by phase: "load", "bin", "train"
    no_split: str | None = None  # why no tree of this fit has a split, to warn of
    ended_by: str | None = None  # why the last iteration was the last
    lost_workers: list[dict[str, Any]] = field(default_factory=list)  # see `cluster.client.connection.Connection.losses`


class FitObserver(Protocol):
    """Observes one fit: called after each iteration, as a callback, and at the end. It must not raise."""

    def __call__(self, iteration: Iteration) -> Any:
        """See an iteration."""

    def end(self, result: FitResult | None) -> None:
        """See the result; None if the fit failed."""


#: Functions that make the observers of every fit of this process, from its plan.
OBSERVERS: list[Callable[[FitPlan], FitObserver]] = []
