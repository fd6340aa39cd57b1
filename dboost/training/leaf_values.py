"""Leaf values of a grown tree: constants that minimize the loss. The parameter ``step`` selects the method:

* ``"leaf"`` (TreeBoost): each leaf gets its own constant, by the `Leaves.statistic` of the loss. Newton steps use the exact
  leaf sums of the grown tree; with ``criterion="gradient"`` (least squares) the Hessian sums are requested separately.
  Quantiles of the residuals take about four, at most ten calls over all rows for all leaves together (`exact`); a clipped step
  (Huber's) takes one more.
* ``"line_search"`` (Friedman 2001, Algorithm 1): the least-squares tree is multiplied by the factor that minimizes the loss,
  the root of an exact sum over the rows, with one call per step of the search.
* ``"constant"``: the least-squares tree is added unchanged.

**Rows.** Leaf values depend on the rows of the tree's sample only (``subsample``, ``influence_trimming``), with every method;
the scores of all rows are updated. The `BaseLoss.statistic`, such as Huber's δ, depends on all rows. It belongs to the scores
after the last trees, so each iteration with it takes a second pass over the rows.

With ``influence_trimming`` the rows with the smallest influence, which together have a given fraction of the total influence,
are excluded from growing a tree and from its leaf values. Two more calls find the threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import groupby
from typing import Any

import numpy as np

from dboost.exact import (
    Window,
    exact_level,
    find_cut,
    find_quantiles,
    merged_float,
    rank_unit,
    ranks_of,
    unit_for,
)
from dboost.kernels.quantile_keys import N_DIGITS
from dboost.losses import BaseLoss
from dboost.losses.base import AllRows
from dboost.losses.gradient_stats import GradientStats
from dboost.losses.projection import ProjectedTerms
from dboost.losses.terms import LossTerms
from dboost.params import Parameters
from dboost.rows.row_sample import RowSubset
from dboost.rows.statistics import (
    Statistic,
    gradient_products,
    influence_digits,
    leaf_buckets,
    leaf_clipped,
    leaf_digits,
    leaf_keys,
    leaf_next,
    line_slopes,
    loss_hessian_sums,
    of_parts,
    output_totals,
)
from dboost.session.backend import Backend
from dboost.training.directions import Directions
from dboost.training.minimize import minimize_convex
from dboost.trees.tree_task import StepLimits, bounded, leaf_values, newton_steps

#: Products of gradients may be larger than their bound by so many bits, see `LeafEstimator`.
_SPARE_BITS = 10
#: Relative error of the multiplier at which a line search ends.
_LINE_TOLERANCE = 1e-10


class LeafEstimator:
    """Estimates the leaf values of one fit.

    Parameters
    ----------
    backend : Backend
    loss : BaseLoss
    parameters : Parameters
    n_counted : int
        Number of rows; with integer weights the sum of the weights.
    max_weight : float
        The largest weight; 1 with integer weights.
    directions : Directions, optional
        Of trees of all outputs. Default: each output has a tree.
    spreads : sequence of float, optional
        The largest distance of a target from the mean, of each output, in units of raw scores: the first quantiles of residuals
        are looked for within it. Default: anywhere.
    """

    def __init__(
        self,
        backend: Backend,
        loss: BaseLoss,
        parameters: Parameters,
        n_counted: int,
        max_weight: float,
        directions: Directions | None = None,
        spreads: Sequence[float] = (),
    ) -> None:
        self._backend, self._directions = backend, directions
        self._loss = loss
        self._parameters = parameters
        self._rank_unit = rank_unit(max_weight, n_counted)
        self._rows = AllRows(lambda part, merge, *rest: self._merged(of_parts(merge), part, *rest), n_counted, max_weight)
        self._statistic: Any = None  # `BaseLoss.statistic` after the last trees
        self._terms = loss.pass_terms()
        self._limits = [StepLimits.of([leaves]) for leaves in loss.leaves]
        #: The smallest and the largest leaf quantile of each output, of its last tree that has two different ones; at first a
        #: third of the spread.
        self._reach = {output: (-spread / 3, spread / 3) for output, spread in enumerate(spreads)}
        self._max_gradient, self._max_hessian = np.zeros((2, loss.n_outputs))
        self._influence = np.zeros((loss.n_outputs, N_DIGITS), np.int64)  # see `GradientStats`
        self._influence_terms: LossTerms | None = None
        if parameters.influence_trimming is not None:
            self._influence_terms = replace(self._terms, counts_influence=True)

    def use(self, parameters: Parameters) -> None:
        """Use other parameters from the next tree on; the influence trimming is the same."""
        self._parameters = parameters

    def advance(self, values: np.ndarray, n_done: int = 0) -> GradientStats:
        """Add the leaf values of the last trees (float64[n_outputs, n_leaves]) to the scores; compute the gradients.

        n_done : number of iterations in the scores then.
        """
        directions = self._directions
        direction = None if directions is None else directions.drawn(n_done + 1)
        stats = self._backend.advance(values, self._along(direction, self._influence_terms or self._terms))
        if self._loss.statistic is not None:
            self._statistic = self._loss.statistic.of(self._rows, self._statistic)
            self._terms = self._loss.pass_terms(self._statistic)
            stats = self._backend.advance(np.zeros_like(values), self._along(direction, self._terms))
        if directions is not None and stats.max_split is not None and directions.is_refined(n_done + 1):
            direction = directions.refined(self._gradient_products(stats.max_gradient, float(stats.max_split[0])))
            if direction is not None:
                terms = ProjectedTerms(self._terms, direction, directions.of_classes, keeps_gradients=True)
                along = self._backend.advance(np.zeros_like(values), terms)
                stats = stats._replace(max_split=along.max_split, noise=along.noise)
        self._max_gradient, self._max_hessian = stats.max_gradient, stats.max_hessian
        if stats.influence is not None:
            self._influence = stats.influence
        return stats

    def _along(self, direction: np.ndarray | None, terms: LossTerms) -> LossTerms:
        """Return the terms of the loss, with the direction of the next tree if it has one."""
        if self._directions is None or direction is None:
            return terms
        of_classes, counts = self._directions.of_classes, terms.counts_influence
        return ProjectedTerms(terms, direction, of_classes, counts_influence=counts)

    def _gradient_products(self, max_gradient: np.ndarray, max_projected: float) -> np.ndarray:
        """Return Σ_i w_i g_i (g_i · c) for the direction c that the gradients are projected on: float64[n_outputs].

        max_gradient, max_projected : the largest gradient of each output, and the largest projection.
        """
        # Gradients include the weights. Of rows of small weights, products that are larger than the bound are clipped.
        bounds = max_gradient * (max_projected / self._rows.max_weight)
        units = np.array([unit_for(bound, self._rows.n_rows, spare_bits=_SPARE_BITS) for bound in bounds.tolist()])
        return self._merged(gradient_products, units, 2.0**_SPARE_BITS * bounds * units) / units

    def output_sums(self, n_leaves: int, subset: RowSubset) -> np.ndarray:
        """Return the sums of gradients and second derivatives of all outputs by leaf of the tree grown last, by the rows of its
        sample: float64[n_outputs, n_leaves, 2]."""
        n = self._rows.n_rows
        largest = zip(self._max_gradient.tolist(), self._max_hessian.tolist(), strict=True)
        units = np.array([(unit_for(g, n), unit_for(h, n)) for g, h in largest])
        return self._merged(output_totals, subset, n_leaves, units) / units[:, None, :]

    def values_of_outputs(self, sums: np.ndarray, subset: RowSubset) -> np.ndarray:
        """Return the leaf values of a tree of all outputs: float64[n_outputs, n_leaves]. sums : those of `output_sums`."""
        values, parameters = np.empty(sums.shape[:2]), self._parameters
        for statistic, alike in groupby(range(len(sums)), lambda output: self._loss.leaves[output].statistic):
            numbers = [*alike]
            outputs = range(numbers[0], numbers[-1] + 1)
            rows = slice(outputs.start, outputs.stop)
            limits = StepLimits.of(self._loss.leaves[rows])
            if statistic == "newton":
                values[rows] = leaf_values(sums[rows], parameters, limits)
            else:
                values[rows] = bounded(self._residual_steps(sums.shape[1], subset, outputs), parameters, limits)
        return values

    def values(self, leaf_sums: np.ndarray, subset: RowSubset) -> np.ndarray:
        """Return the leaf values of the tree grown last, by the rows of its sample: float64[n_leaves].

        leaf_sums : exact sums of gradients and Hessians, in the loss's units: float64[n_leaves, 2].
        """
        parameters, leaves, limits = self._parameters, self._loss.leaves[subset.output], self._limits[subset.output]
        if parameters.step == "leaf":
            if leaves.statistic == "newton":
                return leaf_values(self._newton_sums(leaf_sums, subset)[None], parameters, limits)[0]
            alone = range(subset.output, subset.output + 1)
            return bounded(self._residual_steps(len(leaf_sums), subset, alone), parameters, limits)[0]
        factors = limits.step_factor if parameters.criterion == "newton" else np.ones(1)
        steps = newton_steps(leaf_sums[None], parameters, factors)
        if parameters.step == "line_search":
            # The multiplier has no bound if the tree separates all classes; the loss's longest step limits it.
            most = leaves.longest_step / (parameters.learning_rate * max(float(np.abs(steps).max()), 1e-300))
            steps = steps * min(self._multiplier(steps[0] * leaves.score_unit, subset), most)
        return bounded(steps, parameters, limits)[0]

    def least_influence(self, output: int) -> int:
        """Return the smallest influence of a row that is not trimmed from an output's next tree, as the bits of a float32."""
        fraction = self._parameters.influence_trimming
        if fraction is None or not self._max_hessian[output] > 0:
            return 0
        return find_cut(
            self._influence[output],
            lambda *digits: self._merged(influence_digits, output, *digits),
            exact_level(fraction),
        )

    def _merged(self, statistic: Statistic, *arguments: Any) -> Any:
        """Return a statistic of all training rows."""
        return statistic.merged(self._backend.statistics(statistic, *arguments))

    def _newton_sums(self, leaf_sums: np.ndarray, subset: RowSubset) -> np.ndarray:
        """Return sums of gradients and second derivatives: float64[n_leaves, 2]. leaf_sums : those that the tree grew by."""
        if self._parameters.criterion == "newton" or self._loss.constant_hessian:
            return leaf_sums
        unit = unit_for(float(self._max_hessian[subset.output]), self._rows.n_rows)
        sums = self._merged(loss_hessian_sums, subset, len(leaf_sums), unit)
        return np.column_stack([leaf_sums[:, 0], sums / unit])

    def _residual_steps(self, n_leaves: int, subset: RowSubset, outputs: range) -> np.ndarray:
        """Return quantiles of the leaves' residuals for some outputs, or clipped steps from these:
        float64[len(outputs), n_leaves]."""
        leaves = self._loss.leaves[outputs.start : outputs.stop]
        levels = [exact_level(of_output.level) for of_output in leaves]
        steps = self._residual_quantiles(levels, outputs, n_leaves, subset)
        if leaves[0].statistic == "clipped":
            max_weight, n_rows = self._rows.max_weight, self._rows.n_rows
            bounds = [self._loss.statistic_of(output, self._statistic) for output in outputs]
            units = np.array([unit_for(bound * max_weight, n_rows) for bound in bounds])
            weight_unit = unit_for(max_weight, n_rows)
            sums = self._merged(leaf_clipped, subset, outputs, steps.ravel(), np.array(bounds), units, weight_unit)
            clipped, weights = sums.reshape(len(outputs), n_leaves, 2).T
            # A leaf without rows of the sample (or with weights that round to zero) has the value 0.
            mean = np.divide(clipped / units, weights / weight_unit, out=np.zeros_like(clipped), where=weights > 0)
            steps = steps + mean.T
        return steps

    def _residual_quantiles(self, levels: list[Fraction], outputs: range, n_leaves: int, subset: RowSubset) -> np.ndarray:
        """Return the quantiles of the leaves' residuals for the level of each output: float64[len(outputs), n_leaves]."""
        near, n_groups = None, len(outputs) * n_leaves
        last = [self._reach[output] for output in outputs if output in self._reach]
        if len(last) == len(outputs):
            least, largest = np.transpose(last)
            near = Window(
                np.repeat(2 * least - largest, n_leaves),
                np.repeat(2 * largest - least, n_leaves),
                lambda buckets: self._merged(leaf_buckets, subset, outputs, self._rank_unit, buckets),
                lambda *buckets: self._merged(leaf_keys, subset, outputs, self._rank_unit, *buckets),
                self._rows.n_rows * len(outputs),
            )
        quantiles = find_quantiles(
            lambda *digits: self._merged(leaf_digits, subset, outputs, self._rank_unit, *digits),
            lambda keys: self._merged(leaf_next, subset, outputs, keys),
            ranks_of(levels, n_leaves),
            n_groups,
            near,
        ).reshape(len(outputs), n_leaves)
        for output, steps in zip(outputs, quantiles, strict=True):
            if steps.max() > steps.min():
                self._reach[output] = float(steps.min()), float(steps.max())
        return quantiles

    def _multiplier(self, steps: np.ndarray, subset: RowSubset) -> float:
        """Return ρ = argmin Σ w L(y, F + ρ h(x)) for a tree h with the leaf values `steps`."""
        loss = self._loss.with_statistic(self._statistic)

        def slopes(at: float) -> tuple[float, float]:
            derivatives = self._backend.statistics(line_slopes, subset, loss, steps, at)
            slope, curvature = map(merged_float, zip(*derivatives, strict=True))
            return slope, curvature

        return minimize_convex(slopes, 0.0, _LINE_TOLERANCE)
