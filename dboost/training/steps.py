"""From a grown tree to what its leaves add to the scores, and from scores to the next gradients.

A loss declares what its leaf values are. Newton steps come out of the sums that growing the tree ends with. Quantiles of the
residuals are found by asking all rows, in nine rounds at most for all leaves together (`statistics.quantiles`); Huber's step
takes one more. Huber's δ is such a quantile too, of the sizes of all residuals, and is chosen when the last trees are in the
scores: so its iteration takes the pass over the rows twice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from dboost.engine.contract import Engine
from dboost.growth.finish import bounded, leaf_values
from dboost.growth.task import Extremes, GrownTree
from dboost.losses import Huber, Loss
from dboost.params import Parameters
from dboost.shard import residuals
from dboost.statistics.exact import unit_for
from dboost.statistics.quantiles import exact_level, find_quantiles, find_size, rank_unit


class Steps:
    """The steps of one fit.

    Parameters
    ----------
    engine : Engine
    loss : Loss
    parameters : Parameters
    heaviest : float
        The largest weight.
    """

    def __init__(self, engine: Engine, loss: Loss, parameters: Parameters, heaviest: float) -> None:
        self._engine = engine
        self._loss = loss
        self._parameters = parameters
        self._heaviest = heaviest
        self._rank_unit = rank_unit(heaviest, engine.n_rows)
        self._delta = 0.0

    def advance(self, values: np.ndarray) -> Extremes:
        """Let the scores take in the last trees (float64[n_outputs, n_leaves]); gradients and Hessians follow."""
        extremes = self._engine.advance(values)
        if isinstance(self._loss, Huber):
            self._delta = find_size(
                exact_level(self._loss.alpha),
                lambda *place: reduce(np.add, self._engine.ask(residuals.size_digits, self._rank_unit, *place)),
                lambda keys: reduce(np.minimum, self._engine.ask(residuals.size_next, keys)),
            )
            extremes = self._engine.advance(np.zeros_like(values), self._loss.terms_with(self._delta))
        return extremes

    def values(self, grown: GrownTree) -> np.ndarray:
        """What each leaf of the tree grown last adds to the scores: float64[n_leaves]."""
        if self._loss.leaf_statistic == "newton":
            return leaf_values(grown.leaf_sums, self._parameters, self._loss)
        ask: Callable[..., list[Any]] = self._engine.ask
        steps = find_quantiles(
            lambda *place: reduce(np.add, ask(residuals.leaf_digits, grown.n_leaves, self._rank_unit, *place)),
            lambda keys: reduce(np.minimum, ask(residuals.leaf_next, keys)),
            exact_level(self._loss.level),
            grown.n_leaves,
        )
        if self._loss.leaf_statistic == "huber":
            unit, weight_unit = (unit_for(large * self._heaviest, self._engine.n_rows) for large in (self._delta, 1.0))
            sums = sum(ask(residuals.leaf_clipped, steps, self._delta, unit, weight_unit))
            steps = steps + (sums[:, 0] / unit) / (sums[:, 1] / weight_unit)
        return bounded(steps, self._parameters, self._loss)
