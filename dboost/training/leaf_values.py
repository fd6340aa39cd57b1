"""Leaf values of a grown tree, and the gradients after it was added to the scores.

**Leaf estimation.** The parameter ``step`` selects the method:

* ``"leaf"`` (TreeBoost): each leaf gets its own constant, by the loss's `leaf_statistic`. Newton steps use the exact leaf sums
  of the grown tree; with ``criterion="gradient"`` (least squares) the Hessian sums are requested separately. Quantiles of the
  residuals take about four, at most ten calls over all rows for all leaves together (`metrics.quantiles`); Huber's step takes
  one more.
* ``"line_search"`` (Friedman 2001, Algorithm 1): the least-squares tree is multiplied by the factor that minimizes the loss,
  the root of an exact sum over the rows, with one call per step of the search.
* ``"constant"``: the least-squares tree is added unchanged.

**Rows.** Leaf values depend on the rows of the tree's sample only (``subsample``, ``influence_trimming``), with every method;
the scores of all rows are updated. Two numbers depend on all rows: the initial score, and Huber's δ. Huber's δ is a quantile of
all absolute residuals after the last trees, so each iteration with it takes a second pass over the rows.

With ``influence_trimming`` the rows with the smallest influence, which together have a given fraction of the total influence,
are excluded from growing a tree and from its leaf values. Two more calls find the threshold.

**Minimization.** `minimize_convex` is Newton's method with safeguards. The sign of the slope shows on which side of the point
the minimum lies, so two bounds enclose it; a Newton step beyond them is replaced by bisection. As long as one bound is missing,
the step is limited to a length that grows fourfold: the curvature of an exponential far from its minimum leads to steps in the
thousands. At a kink, where the curvature is zero, the method is bisection.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from dboost.losses import Huber, LogLoss, Loss, SoftmaxLogLoss
from dboost.metrics.exact_sum import merged_float, unit_for
from dboost.metrics.quantiles import exact_level, find_cut, find_quantiles, find_size, rank_unit
from dboost.params import Parameters
from dboost.shards import statistics
from dboost.trees.finished_tree import bounded, leaf_values, newton_steps
from dboost.trees.tree_task import GradientStats, Leaves, RowSubset

#: Enough to bisect all floats between any two bounds.
_MOST_STEPS = 1100


def minimize_convex(slopes: Callable[[float], tuple[float, float]], start: float, tolerance: float = 0.0) -> float:
    """Return the minimizer of a convex function of one number, accurate to the last few bits.

    Parameters
    ----------
    slopes : callable
        Returns the first and the second derivative at a point. A first derivative of NaN means too far from `start`.
    start : float
    tolerance : float, default 0
        Relative error at which the search may end.

    Returns
    -------
    float
        The minimizer; a large number if the function has no minimum.
    """
    low, high, stride, at, before = -math.inf, math.inf, 1.0, start, start
    for _ in range(_MOST_STEPS):
        slope, curvature = slopes(at)
        if math.isnan(slope):
            slope = at - before
        if slope == 0.0:
            return at
        low, high = (low, at) if slope > 0 else (at, high)
        step = -slope / curvature if curvature > 0 and math.isfinite(slope) else -math.copysign(math.inf, slope)
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


#: Relative error of the multiplier at which a line search ends.
_LINE_TOLERANCE = 1e-10


class LeafEstimator:
    """Estimates the leaf values of one fit.

    Parameters
    ----------
    advance, map_shards : callable
        Those of the engine; see `session.protocol.Engine`.
    loss : Loss
    parameters : Parameters
    n_counted : int
        Number of rows; with integer weights the sum of the weights.
    max_weight : float
        The largest weight; 1 with integer weights.
    """

    def __init__(
        self,
        advance: Callable[[np.ndarray, tuple | None], GradientStats],
        map_shards: Callable[..., list[Any]],
        loss: Loss,
        parameters: Parameters,
        n_counted: int,
        max_weight: float,
    ) -> None:
        self._advance, self._map_shards = advance, map_shards
        self._loss = loss
        self._parameters = parameters
        self._n_counted = n_counted
        self._max_weight = max_weight
        self._rank_unit = rank_unit(max_weight, n_counted)
        self._delta = 0.0
        self._max_hessian = np.zeros(loss.n_outputs)
        self._influence: np.ndarray | None = None
        self._influence_terms: tuple | None = None
        if parameters.influence_trimming is not None:
            assert isinstance(loss, LogLoss | SoftmaxLogLoss)
            self._influence_terms = loss.terms()._replace(counts_influence=True)

    def use(self, parameters: Parameters) -> None:
        """Use another learning rate from the next tree on."""
        self._parameters = parameters

    def add_leaf_values(self, values: np.ndarray) -> GradientStats:
        """Add the leaf values of the last trees (float64[n_outputs, n_leaves]) to the scores; compute the gradients."""
        stats = self._advance(values, self._influence_terms)
        if isinstance(self._loss, Huber):
            self._delta = find_size(
                exact_level(self._loss.alpha),
                lambda *digits: reduce(np.add, self._map_shards(statistics.size_digits, self._rank_unit, *digits)),
                lambda keys: reduce(np.minimum, self._map_shards(statistics.size_next, keys)),
                lambda *digits: reduce(
                    statistics.concatenated, self._map_shards(statistics.size_keys, self._rank_unit, *digits)
                ),
                self._n_counted,
            )
            stats = self._advance(np.zeros_like(values), self._loss.terms_with(self._delta))
        self._max_hessian, self._influence = stats.max_hessian, stats.influence
        return stats

    def values(self, grown: Leaves, subset: RowSubset) -> np.ndarray:
        """Return the leaf values of the tree grown last, by the rows of its sample: float64[n_leaves]."""
        parameters, loss = self._parameters, self._loss
        if parameters.step == "leaf":
            if loss.leaf_statistic != "newton":
                return bounded(self._residual_steps(grown, subset), parameters, loss)
            return leaf_values(self._newton_sums(grown, subset), parameters, loss)
        steps = newton_steps(grown.leaf_sums, parameters)
        if parameters.criterion == "newton":
            steps = steps * loss.step_factor
        if parameters.step == "line_search":
            # The multiplier has no bound if the tree separates all classes; the loss's longest step limits it.
            most = loss.longest_step / (parameters.learning_rate * max(float(np.abs(steps).max()), 1e-300))
            steps = steps * min(self._multiplier(steps, subset), most)
        return bounded(steps, parameters, loss)

    def least_influence(self, output: int) -> int:
        """Return the smallest influence of a row that is not trimmed from an output's next tree, as the bits of a float32."""
        fraction = self._parameters.influence_trimming
        if fraction is None or not self._max_hessian[output] > 0:
            return 0
        assert self._influence is not None
        return find_cut(
            self._influence[output],
            lambda *digits: reduce(np.add, self._map_shards(statistics.influence_digits, output, *digits)),
            exact_level(fraction),
        )

    def _newton_sums(self, grown: Leaves, subset: RowSubset) -> np.ndarray:
        """Return sums of gradients and second derivatives: float64[n_leaves, 2]."""
        if self._parameters.criterion == "newton" or self._loss.constant_hessian:
            return grown.leaf_sums
        unit = unit_for(float(self._max_hessian[subset.output]), self._n_counted)
        sums = reduce(np.add, self._map_shards(statistics.loss_hessian_sums, subset, grown.n_leaves, unit))
        return np.column_stack([grown.leaf_sums[:, 0], sums / unit])

    def _residual_steps(self, grown: Leaves, subset: RowSubset) -> np.ndarray:
        """Return quantiles of the leaves' residuals, or Huber's step from their medians: float64[n_leaves]."""
        map_shards = self._map_shards
        steps = find_quantiles(
            lambda *digits: reduce(
                np.add, map_shards(statistics.leaf_digits, subset, grown.n_leaves, self._rank_unit, *digits)
            ),
            lambda keys: reduce(np.minimum, map_shards(statistics.leaf_next, subset, keys)),
            exact_level(self._loss.level),
            grown.n_leaves,
            lambda *digits: reduce(statistics.concatenated, map_shards(statistics.leaf_keys, subset, self._rank_unit, *digits)),
            self._n_counted,
        )
        if self._loss.leaf_statistic == "huber":
            unit, weight_unit = (unit_for(large * self._max_weight, self._n_counted) for large in (self._delta, 1.0))
            sums = reduce(np.add, map_shards(statistics.leaf_clipped, subset, steps, self._delta, unit, weight_unit))
            # A leaf without rows of the sample (or with weights that round to zero) has the value 0.
            steps = steps + np.divide(
                sums[:, 0] / unit, sums[:, 1] / weight_unit, out=np.zeros(len(sums)), where=sums[:, 1] > 0
            )
        return steps

    def _multiplier(self, steps: np.ndarray, subset: RowSubset) -> float:
        """Return ρ = argmin Σ w L(y, F + ρ h(x)) for a tree h with the leaf values `steps`."""
        loss = self._loss.with_delta(self._delta) if isinstance(self._loss, Huber) else self._loss

        def slopes(at: float) -> tuple[float, float]:
            derivatives = self._map_shards(statistics.line_slopes, subset, loss, steps, at)
            slope, curvature = map(merged_float, zip(*derivatives, strict=True))
            return slope, curvature

        return minimize_convex(slopes, 0.0, _LINE_TOLERANCE)
