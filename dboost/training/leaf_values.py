"""From a grown tree to what its leaves add to the scores, and from scores to the next gradients.

With ``step="leaf"`` (TreeBoost) every leaf gets a constant of its own, and the loss declares which. Newton steps come out of
the sums that growing the tree ends with; where trees are grown by least squares (``criterion="gradient"``), the second
derivatives are asked for. Quantiles of the residuals are found by asking all rows, in four rounds or so for all leaves together
and never more than ten (`metrics.quantiles`); Huber's step takes one more. Huber's δ is such a quantile too, of the sizes
of all residuals, and is chosen when the last trees are in the scores: so its iteration takes the pass over the rows twice.

**Which rows count.** Only those that take part in the tree (``subsample``, ``influence_trimming``) decide what its leaves are
worth, whatever the step: Newton sums, second derivatives, medians and quantiles, Huber's means, the slopes of a line search.
The scores of all rows then take it in. Two numbers are of all rows: the first score, and Huber's δ.

With ``influence_trimming`` the rows that all together would hardly move a tree sit it out, in growing it and in the values of
its leaves; which ones is found by two more rounds.

With ``step="line_search"`` (Algorithm 1) the tree stays what it was fitted to be, and is multiplied by the one number that
makes the loss smallest: the root of an exact sum over the rows, a round for each step of the search. With
``step="constant"`` it is added as it is.

The lowest point of a convex function of one number, from its slopes.

Newton's method with a belt and braces. The slope's sign says on which side of the point the minimum lies, so two bounds
close in on it; a Newton step that leaves them is replaced by the middle between them. While there is no bound on one side,
a step is no longer than a stride that grows fourfold: the curvature of an exponential far from its minimum suggests steps
of thousands. Where the function has a kink (no curvature at all), what remains is bisection.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from dboost.losses import Huber, LogLoss, Loss, SoftmaxLogLoss
from dboost.metrics.exact_sum import merged_float, unit_for
from dboost.metrics.influence_cut import find_cut
from dboost.metrics.quantiles import exact_level, find_quantiles, find_size, rank_unit
from dboost.params import Parameters
from dboost.session.protocol import Engine
from dboost.shards import statistics as line
from dboost.shards import statistics as residuals
from dboost.trees.finished_tree import bounded, leaf_values, newton_steps
from dboost.trees.tree_task import GradientStats, Leaves, RowSubset

#: Enough to bisect all floats between any two bounds.
_MOST_STEPS = 1100


def minimize_convex(slopes: Callable[[float], tuple[float, float]], start: float, tolerance: float = 0.0) -> float:
    """Where a convex function is least, to the last few bits.

    Parameters
    ----------
    slopes : callable
        Returns the first and the second derivative at a point. A first one that is NaN means too far from `start`.
    start : float
    tolerance : float
        The relative error that will do.

    Returns
    -------
    float
        A point beyond which nothing is gained. Where the function falls without end, a point far out.
    """
    low, high, stride, at, before = -math.inf, math.inf, 1.0, start, start
    for _ in range(_MOST_STEPS):
        slope, bend = slopes(at)
        if math.isnan(slope):
            slope = at - before
        if slope == 0.0:
            return at
        low, high = (low, at) if slope > 0 else (at, high)
        step = -slope / bend if bend > 0 and math.isfinite(slope) else -math.copysign(math.inf, slope)
        if abs(step) > stride:
            step = math.copysign(stride, step)
            stride *= 4.0
        following = at + step
        if abs(following - at) <= tolerance * abs(following) or abs(following) > 1e300:
            return following if following != at and abs(following) <= 1e300 and low < following < high else at
        if not low < following < high:
            following = low + (high - low) / 2
            if not low < following < high or high - low <= tolerance * abs(following):
                return at
        before, at = at, following
    return at


#: A line search ends when the multiplier is known this well.
_LINE_TOLERANCE = 1e-10


class LeafEstimator:
    """The steps of one fit.

    Parameters
    ----------
    engine : Engine
    loss : Loss
    parameters : Parameters
    n_counted : int
        Rows, or where weights are whole numbers the rows that they stand for.
    max_weight : float
        The largest weight, 1 where weights are whole numbers.
    """

    def __init__(self, engine: Engine, loss: Loss, parameters: Parameters, n_counted: int, max_weight: float) -> None:
        self._engine = engine
        self._loss = loss
        self._parameters = parameters
        self._n_counted = n_counted
        self._heaviest = max_weight
        self._rank_unit = rank_unit(max_weight, n_counted)
        self._delta = 0.0
        self._curvature = np.zeros(loss.n_outputs)
        self._influence: np.ndarray | None = None
        self._counting: tuple | None = None
        if parameters.influence_trimming is not None:
            assert isinstance(loss, LogLoss | SoftmaxLogLoss)
            self._counting = loss.terms()._replace(counts_influence=True)

    def advance(self, values: np.ndarray) -> GradientStats:
        """Let the scores take in the last trees (float64[n_outputs, n_leaves]); gradients and Hessians follow."""
        extremes = self._engine.advance(values, self._counting)
        if isinstance(self._loss, Huber):
            self._delta = find_size(
                exact_level(self._loss.alpha),
                lambda *place: reduce(np.add, self._engine.ask(residuals.size_digits, self._rank_unit, *place)),
                lambda keys: reduce(np.minimum, self._engine.ask(residuals.size_next, keys)),
                lambda *place: reduce(residuals.concatenated, self._engine.ask(residuals.size_keys, self._rank_unit, *place)),
                self._n_counted,
            )
            extremes = self._engine.advance(np.zeros_like(values), self._loss.terms_with(self._delta))
        self._curvature, self._influence = extremes.max_hessian, extremes.influence
        return extremes

    def values(self, grown: Leaves, part: RowSubset) -> np.ndarray:
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
        if share is None or not self._curvature[output] > 0:
            return 0
        assert self._influence is not None
        return find_cut(
            self._influence[output],
            lambda *place: reduce(np.add, self._engine.ask(residuals.influence_digits, output, *place)),
            exact_level(share),
        )

    def _newton_sums(self, grown: Leaves, part: RowSubset) -> np.ndarray:
        """Sums of gradients and second derivatives: float64[n_leaves, 2]."""
        if self._parameters.criterion == "newton" or self._loss.constant_hessian:
            return grown.leaf_sums
        unit = unit_for(float(self._curvature[part.output]), self._n_counted)
        sums = reduce(np.add, self._engine.ask(line.loss_hessian_sums, part, grown.n_leaves, unit))
        return np.column_stack([grown.leaf_sums[:, 0], sums / unit])

    def _residual_steps(self, grown: Leaves, part: RowSubset) -> np.ndarray:
        """Quantiles of the leaves' residuals, or Huber's step from their medians: float64[n_leaves]."""
        ask: Callable[..., list[Any]] = self._engine.ask
        steps = find_quantiles(
            lambda *place: reduce(np.add, ask(residuals.leaf_digits, part, grown.n_leaves, self._rank_unit, *place)),
            lambda keys: reduce(np.minimum, ask(residuals.leaf_next, part, keys)),
            exact_level(self._loss.level),
            grown.n_leaves,
            lambda *place: reduce(residuals.concatenated, ask(residuals.leaf_keys, part, self._rank_unit, *place)),
            self._n_counted,
        )
        if self._loss.leaf_statistic == "huber":
            unit, weight_unit = (unit_for(large * self._heaviest, self._n_counted) for large in (self._delta, 1.0))
            sums = reduce(np.add, ask(residuals.leaf_clipped, part, steps, self._delta, unit, weight_unit))
            # A leaf whose rows all sat the tree out (or weigh too little to count) has no residuals to go by: it adds nothing.
            steps = steps + np.divide(
                sums[:, 0] / unit, sums[:, 1] / weight_unit, out=np.zeros(len(sums)), where=sums[:, 1] > 0
            )
        return steps

    def _multiplier(self, steps: np.ndarray, part: RowSubset) -> float:
        """ρ = argmin Σ w L(y, F + ρ h(x)) for a tree h that says `steps` in its leaves."""
        loss = self._loss.with_delta(self._delta) if isinstance(self._loss, Huber) else self._loss

        def slopes(at: float) -> tuple[float, float]:
            told = self._engine.ask(line.line_slopes, part, loss, steps, at)
            slope, bend = map(merged_float, zip(*told, strict=True))
            return slope, bend

        return minimize_convex(slopes, 0.0, _LINE_TOLERANCE)
