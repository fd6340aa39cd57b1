"""From a grown tree to what its leaves add to the scores, and from scores to the next gradients.

With ``step="leaf"`` (TreeBoost) every leaf gets a constant of its own, and the loss declares which. Newton steps come out of
the sums that growing the tree ends with; where trees are grown by least squares (``criterion="gradient"``), the second
derivatives are asked for. Quantiles of the residuals are found by asking all rows, in four rounds or so for all leaves together
and never more than ten (`statistics.quantiles`); Huber's step takes one more. Huber's δ is such a quantile too, of the sizes
of all residuals, and is chosen when the last trees are in the scores: so its iteration takes the pass over the rows twice.

**Which rows count.** Only those that take part in the tree (``subsample``, ``influence_trimming``) decide what its leaves are
worth, whatever the step: Newton sums, second derivatives, medians and quantiles, Huber's means, the slopes of a line search.
The scores of all rows then take it in. Two numbers are of all rows: the first score, and Huber's δ.

With ``influence_trimming`` the rows that all together would hardly move a tree sit it out, in growing it and in the values of
its leaves; which ones is found by three more rounds.

With ``step="line_search"`` (Algorithm 1) the tree stays what it was fitted to be, and is multiplied by the one number that
makes the loss smallest: the root of an exact sum over the rows, a round for each step of the search. With
``step="constant"`` it is added as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from dboost.engine.contract import Engine
from dboost.growth.finish import bounded, leaf_values, newton_steps
from dboost.growth.task import Extremes, Leaves, Part
from dboost.losses import Huber, Loss
from dboost.params import Parameters
from dboost.shard import line, residuals
from dboost.statistics.exact import merged_float, unit_for
from dboost.statistics.quantiles import exact_level, find_quantiles, find_size, rank_unit
from dboost.statistics.trimming import find_cut
from dboost.training.lowest import lowest_point

#: A line search ends when the multiplier is known this well.
_LINE_TOLERANCE = 1e-10


class Steps:
    """The steps of one fit.

    Parameters
    ----------
    engine : Engine
    loss : Loss
    parameters : Parameters
    n_counted : int
        Rows, or where weights are whole numbers the rows that they stand for.
    heaviest : float
        The largest weight, 1 where weights are whole numbers.
    """

    def __init__(self, engine: Engine, loss: Loss, parameters: Parameters, n_counted: int, heaviest: float) -> None:
        self._engine = engine
        self._loss = loss
        self._parameters = parameters
        self._n_counted = n_counted
        self._heaviest = heaviest
        self._rank_unit = rank_unit(heaviest, n_counted)
        self._delta = 0.0
        self._curvature = np.zeros(loss.n_outputs)

    def advance(self, values: np.ndarray) -> Extremes:
        """Let the scores take in the last trees (float64[n_outputs, n_leaves]); gradients and Hessians follow."""
        extremes = self._engine.advance(values)
        if isinstance(self._loss, Huber):
            self._delta = find_size(
                exact_level(self._loss.alpha),
                lambda *place: reduce(np.add, self._engine.ask(residuals.size_digits, self._rank_unit, *place)),
                lambda keys: reduce(np.minimum, self._engine.ask(residuals.size_next, keys)),
                lambda *place: reduce(residuals.joined, self._engine.ask(residuals.size_keys, self._rank_unit, *place)),
                self._n_counted,
            )
            extremes = self._engine.advance(np.zeros_like(values), self._loss.terms_with(self._delta))
        self._curvature = extremes.max_hessian
        return extremes

    def values(self, grown: Leaves, part: Part) -> np.ndarray:
        """What each leaf of the tree grown last adds to the scores, by the rows that took part: float64[n_leaves]."""
        parameters, loss = self._parameters, self._loss
        if parameters.step == "leaf":
            if loss.leaf_statistic != "newton":
                return bounded(self._residual_steps(grown, part), parameters, loss)
            return leaf_values(self._newton_sums(grown, part), parameters, loss)
        steps = newton_steps(grown.leaf_sums, parameters)
        if parameters.criterion == "newton":
            steps = steps * loss.step_factor
        if parameters.step == "line_search":
            # Where nothing bounds the multiplier (a tree that separates all classes), the longest step does.
            most = loss.longest_step / (parameters.learning_rate * max(float(np.abs(steps).max()), 1e-300))
            steps = steps * min(self._multiplier(steps, part), most)
        return bounded(steps, parameters, loss)

    def least_influence(self, output: int) -> int:
        """The influence of the first row that is not trimmed from an output's next tree, as the bits of a float32."""
        share = self._parameters.influence_trimming
        largest = float(self._curvature[output])
        if share is None or not largest > 0:
            return 0
        unit = rank_unit(largest, self._n_counted)
        return find_cut(
            lambda *place: reduce(np.add, self._engine.ask(residuals.influence_digits, output, unit, *place)),
            exact_level(share),
        )

    def _newton_sums(self, grown: Leaves, part: Part) -> np.ndarray:
        """Sums of gradients and second derivatives: float64[n_leaves, 2]."""
        if self._parameters.criterion == "newton" or self._loss.constant_hessian:
            return grown.leaf_sums
        unit = unit_for(float(self._curvature[part.output]), self._n_counted)
        sums = reduce(np.add, self._engine.ask(line.curvature_sums, part, grown.n_leaves, unit))
        return np.column_stack([grown.leaf_sums[:, 0], sums / unit])

    def _residual_steps(self, grown: Leaves, part: Part) -> np.ndarray:
        """Quantiles of the leaves' residuals, or Huber's step from their medians: float64[n_leaves]."""
        ask: Callable[..., list[Any]] = self._engine.ask
        steps = find_quantiles(
            lambda *place: reduce(np.add, ask(residuals.leaf_digits, part, grown.n_leaves, self._rank_unit, *place)),
            lambda keys: reduce(np.minimum, ask(residuals.leaf_next, part, keys)),
            exact_level(self._loss.level),
            grown.n_leaves,
            lambda *place: reduce(residuals.joined, ask(residuals.leaf_keys, part, self._rank_unit, *place)),
            self._n_counted,
        )
        if self._loss.leaf_statistic == "huber":
            unit, weight_unit = (unit_for(large * self._heaviest, self._n_counted) for large in (self._delta, 1.0))
            sums = reduce(np.add, ask(residuals.leaf_clipped, part, steps, self._delta, unit, weight_unit))
            # A leaf that no row reaches (of a model whose leaf values are estimated anew) has no mean.
            reached = sums[:, 1] > 0
            steps = steps + np.divide(sums[:, 0] / unit, sums[:, 1] / weight_unit, out=np.zeros(len(sums)), where=reached)
        return steps

    def _multiplier(self, steps: np.ndarray, part: Part) -> float:
        """ρ = argmin Σ w L(y, F + ρ h(x)) for a tree h that says `steps` in its leaves."""
        loss = self._loss.with_delta(self._delta) if isinstance(self._loss, Huber) else self._loss

        def slopes(at: float) -> tuple[float, float]:
            told = self._engine.ask(line.line_slopes, part, loss, steps, at)
            slope, bend = map(merged_float, zip(*told, strict=True))
            return slope, bend

        return lowest_point(slopes, 0.0, _LINE_TOLERANCE)
