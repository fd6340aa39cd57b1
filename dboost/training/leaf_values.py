"""Constants that minimize the loss: the initial score of a model, and the leaf values of a grown tree.

**Leaf estimation.** The parameter ``step`` selects the method:

* ``"leaf"`` (TreeBoost): each leaf gets its own constant, by the loss's `leaf_statistic`. Newton steps use the exact leaf sums
  of the grown tree; with ``criterion="gradient"`` (least squares) the Hessian sums are requested separately. Quantiles of the
  residuals take about four, at most ten calls over all rows for all leaves together (`exact`); a clipped step (Huber's) takes
  one more.
* ``"line_search"`` (Friedman 2001, Algorithm 1): the least-squares tree is multiplied by the factor that minimizes the loss,
  the root of an exact sum over the rows, with one call per step of the search.
* ``"constant"``: the least-squares tree is added unchanged.

**Rows.** Leaf values depend on the rows of the tree's sample only (``subsample``, ``influence_trimming``), with every method;
the scores of all rows are updated. Two things depend on all rows: the initial score, and the `Loss.statistic`, such as Huber's
δ. It belongs to the scores after the last trees, so each iteration with it takes a second pass over the rows.

With ``influence_trimming`` the rows with the smallest influence, which together have a given fraction of the total influence,
are excluded from growing a tree and from its leaf values. Two more calls find the threshold.

**Initial score** (baseline prediction) and the units of exact sums. `target_stats` works with statistics of the training rows
only. ``ask(function, *arguments)`` calls ``function(rows, *arguments)`` for each row subset, in this process or on workers, and
returns the list of results. The results are merged exactly (maxima, sums of integers), so the statistics do not depend on the
partitions. The first call returns sizes, which determine the units of exact sums; the second one returns the sums.

The loss computes the initial score (`Loss.start`), most losses from the mean of the target. With offsets, or for a custom loss,
Newton's method finds it from exact sums of the rows' first and second derivatives, with one call per step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial, reduce
from itertools import groupby
from typing import Any

import numpy as np

from dboost.data import RowRoles
from dboost.errors import DataError, ParameterError, warn
from dboost.exact import (
    ExactSum,
    Window,
    exact_level,
    find_cut,
    find_quantiles,
    merged_float,
    rank_unit,
    ranks_of,
    total,
    unit_for,
)
from dboost.losses import Loss, is_custom, register
from dboost.losses.base import AllRows, InitialRows, PartOfRows, SumUnits, check_derivatives, loss_scores, one_target
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
from dboost.session.sessions import Sessions
from dboost.training.directions import Directions
from dboost.training.minimize import minimize_convex
from dboost.trees.tree_task import Leaves, StepLimits, bounded, leaf_values, newton_steps

_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)

#: ``ask(function, *arguments)`` returns ``function(rows, *arguments)`` of each row subset (`RowRoles`, with encoded targets).
Ask = Callable[..., list[Any]]


@dataclass(frozen=True, eq=False)
class TargetStats:
    """Statistics of the training target, known before the first tree."""

    baseline: np.ndarray  # float64[n_outputs], the constant raw scores of least loss
    loss: Loss  # with its parameters that depend on the rows, see `Loss.learned`
    total_weight: float  # of all rows
    max_weight: float
    magnitude: float  # approximate upper bound of a row's loss
    spread: float  # largest distance of a target from the mean
    loss_unit: float  # unit of exact sums of the weighted loss
    mean_weight: float  # of the rows of positive weight, but at most 1, see `in_units_of`
    #: Unit of targets and raw scores while trees are grown, a power of two: gradients are float32, and targets may have any
    #: scale. `loss_unit` is of losses in its square; all other numbers here are in units of the targets.
    unit: float
    integer_weights: bool  # whether all weights are integers, so that a row of weight n counts as n rows
    #: Of a model that is continued: its loss on these rows, and that of the best constant; the latter is 0 if there is none.
    losses: tuple[float, float] | None = None
    too_large: str = "targets"  # the input that an error names if the first gradients are infinite
    parts: tuple[TargetStats, ...] = ()  # of `Loss.parts`

    @property
    def magnitudes(self) -> tuple[tuple[float, float], ...]:
        """Magnitude and spread of each of the `parts`."""
        return tuple((one.magnitude, one.spread) for one in self.parts or (self,))

    @property
    def spreads(self) -> tuple[float, ...]:
        """Spread of each of the `parts`, in the unit of raw scores while trees are grown."""
        return tuple(spread / self.unit for _, spread in self.magnitudes)

    @property
    def unexplained(self) -> float | None:
        """Of a model that is continued: the ratio of its loss on these rows to that of the best constant.

        0 for perfect predictions, 1 for a model no better than a constant, above 1 for a worse one; infinite if the best
        constant predicts all rows.
        """
        if self.losses is None:
            return None
        of_model, of_constant = self.losses
        return of_model / of_constant if of_constant > 0 else math.inf


#: `TargetStats.spread` is at least this where it is computed row by row, so that a sum of zeros has a unit.
LEAST_SPREAD = 1e-300
#: Parameters in units of Hessian sums, gradient sums or the loss, all of which are proportional to the weights.
_WEIGHED = (
    "min_hessian", "l2_regularization", "l1_regularization", "leaf_penalty", "min_gain", "categorical_smoothing",
    "categorical_l2", "min_category_hessian",
)  # fmt: skip
#: Those in other units of the target, with the power of the unit.
_SCALED = {"l1_regularization": 1, "leaf_penalty": 2, "min_gain": 2, "max_delta_step": 1}


def in_units_of(parameters: Parameters, stats: TargetStats) -> Parameters:
    """Return the parameters with limits and penalties for the mean weight of the rows, and for the unit of their targets.

    Limits are given for rows of weight 1. Weights that count rows are at least 1 and keep this meaning. Weights whose sum is
    less than the number of rows, such as 1/n each, cannot count them: they compare rows, and their scale must have no effect.
    The rule is continuous: at a mean of 1 both agree.
    """
    if stats.mean_weight == stats.unit == 1.0:
        return parameters
    found = {name: getattr(parameters, name) for name in (*_WEIGHED, *_SCALED)}
    found |= {name: found[name] * stats.mean_weight for name in _WEIGHED}
    if stats.unit != 1.0:
        for name, power in _SCALED.items():
            for _ in range(power if found[name] else 0):
                found[name] = min(max(found[name] / stats.unit, 1e-300), 1e300)
    return replace(parameters, **found)


def _mean_weight(total: float, n_positive: int) -> float:
    """Return the mean weight for `in_units_of`: weights of mean 1, such as those of balanced classes, may round to less."""
    mean = total / n_positive
    return mean if mean < 1.0 - 2.0**-20 else 1.0


def _unit_of(loss: Loss, spread: float, largest: float, max_weight: float) -> float:
    """Return the unit of the targets: 1 where float32 has room for gradients from the first to the last iteration.

    Only squared error and Huber loss need another one: their gradients are differences between target and score. Multiplying
    these by a power of two multiplies all sums and leaf values by it, without rounding. The largest target is finite in the
    unit, also if all targets are equal and their spread is next to nothing.
    """
    if not loss.scales_with_target or not 0 < spread < math.inf:
        return 1.0
    exponent = max(math.frexp(spread)[1] + math.frexp(max_weight)[1], math.frexp(largest)[1] - 900)
    return 1.0 if abs(exponent) <= 40 else 2.0 ** min(max(exponent, -1000), 1000)


@dataclass(frozen=True)
class Sizes:
    """Number of rows and ranges of their values; merged by sums, minima and maxima."""

    n_rows: int
    max_weight: float
    lowest: float  # smallest target
    highest: float  # largest target
    has_offset: bool
    is_whole: bool  # whether all weights are integers of at most 2**20
    n_counted: float  # sum of integer weights, i.e. the number of rows that they count as
    n_positive: int  # number of rows of positive weight
    parts: tuple[Sizes, ...] = ()  # of the targets of `Loss.parts`

    def merge(self, other: Sizes) -> Sizes:
        return Sizes(
            self.n_rows + other.n_rows,
            max(self.max_weight, other.max_weight),
            min(self.lowest, other.lowest),
            max(self.highest, other.highest),
            self.has_offset or other.has_offset,
            self.is_whole and other.is_whole,
            self.n_counted + other.n_counted,
            self.n_positive + other.n_positive,
            tuple(one.merge(another) for one, another in zip(self.parts, other.parts, strict=True)),
        )


def target_stats(
    loss: Loss, ask: Ask, *, continues: bool = False, sizes: Sizes | None = None, start: np.ndarray | None = None
) -> TargetStats:
    """Compute the statistics from targets, weights and offsets of all training rows.

    continues : whether a model is continued (default False). Then the offsets are its raw scores (used for a single output
    only), the baseline is unused and zero, and targets that determine no initial score are allowed.
    sizes : merged from `sizes_of` all rows, default None: they are asked for. start : the initial score, default None: it is
    computed.

    Raises
    ------
    DataError
        When no constant minimizes the loss of these targets.
    ParameterError
        When the derivatives of a custom loss are wrong.
    """
    if loss.parts:
        return _stats_of_parts(loss, ask, continues=continues, sizes=sizes or reduce(Sizes.merge, ask(sizes_of, loss)))
    if is_custom(loss) and loss.statistic is None:
        _check_derivatives(loss, ask)
    sizes = sizes or reduce(Sizes.merge, ask(sizes_of, loss))
    # A row of integer weight n counts as n rows of weight 1 in sums and their units.
    n, max_weight = (int(sizes.n_counted), 1.0) if sizes.is_whole else (sizes.n_rows, sizes.max_weight)
    target_unit = unit_for(max(abs(sizes.lowest), abs(sizes.highest)) * max_weight, n)
    answers = ask(_sums, loss, SumUnits(target_unit, unit_for(max_weight, n), sizes.is_whole))
    *of_targets, of_weights = (reduce(ExactSum.merge, of).finish() for of in zip(*answers, strict=True))
    mean_weight = _mean_weight(of_weights, sizes.n_positive)
    means = np.array(of_targets) / of_weights
    if not np.isfinite(means).all():
        raise DataError("the targets (or their weights) are so large that their sum is infinite; scale them down")
    if loss.target_range == "non-negative" and not means[0] > 0 and not continues:
        raise DataError(f"loss={loss.name!r} requires non-negative y and sum(y) > 0: all targets are 0")
    if sizes.has_offset and loss.scores_are_probabilities and not continues:
        raise ParameterError("offset is added to raw scores, and those of a forest of classes are probabilities: leave it out")
    has_offset = sizes.has_offset and loss.uses_offset
    if sizes.has_offset and not loss.uses_offset and not continues:
        warn(
            f"offset has no effect on a model of {loss.n_outputs} classes: the same number is added to the scores of all "
            "classes of a row, which changes no probability"
        )
    baseline = np.zeros(loss.n_outputs)
    if start is not None:
        baseline = start
    elif not continues:
        smoothed = _smoothed(means, of_weights / mean_weight) if loss.is_classification else means
        baseline = _best_constants(loss, ask, smoothed, has_offset, (n, max_weight))
    if not continues:
        loss = loss.started(baseline)
    if loss.statistic is not None:
        loss = loss.with_statistic(loss.statistic.of(_rows_at(ask, loss, baseline, n, max_weight)))
        if is_custom(loss):
            _check_derivatives(loss, ask)
    mean = float(means[0])
    spread = loss.target_spread(mean, sizes.lowest, sizes.highest)
    magnitude = None if has_offset else loss.magnitude(mean, spread)
    if magnitude is None:
        largest = ask(_largest_loss, loss, baseline)
        magnitude, spread = (max(of) for of in zip(*largest, strict=True))
        magnitude, spread = max(magnitude, loss.least_magnitude), max(spread, LEAST_SPREAD)
        if continues:  # all rows may have a small loss at first
            magnitude = max(magnitude, loss.magnitude(mean, spread) or 0.0)
    unit = _unit_of(loss, spread, max(abs(sizes.lowest), abs(sizes.highest)), max_weight)
    in_units = magnitude if unit == 1.0 else max(0.5 * (spread / unit) ** 2, 1e-200)
    loss_unit = unit_for(in_units * max_weight, n, spare_bits=10)
    losses = None
    if continues:
        losses = _losses(loss.in_unit(unit), partial(ask, _in_unit, unit), means / unit, (n, max_weight))
        losses = loss.comparable(losses, of_weights)
    too_large = _too_large(loss, mean, sizes, continues, unit)
    return TargetStats(
        baseline, loss, of_weights, sizes.max_weight, magnitude, spread, loss_unit, mean_weight, unit, sizes.is_whole,
        losses, too_large,
    )  # fmt: skip


def _stats_of_parts(loss: Loss, ask: Ask, *, continues: bool, sizes: Sizes) -> TargetStats:
    """Return the statistics of a loss with `Loss.parts`: of each of them, and what follows for all together."""
    found: list[TargetStats] = []
    n, max_weight = (int(sizes.n_counted), 1.0) if sizes.is_whole else (sizes.n_rows, sizes.max_weight)
    starts = None if continues else loss.starts(_rows_at(ask, loss, np.zeros(loss.n_outputs), n, max_weight))
    sums: list[Any] = []
    for output, (part, column, of_part) in enumerate(zip(loss.parts, loss.columns, sizes.parts, strict=True)):
        alone = partial(ask, _of_output, output, column)
        if starts is not None:  # all outputs are of one target
            alone = partial(_with_known_sums, alone, sums)
        try:
            start = None if starts is None else starts[output : output + 1]
            found.append(target_stats(part, alone, continues=continues, sizes=of_part, start=start))
        except DataError as error:
            raise DataError(f"target {loss.target_columns[column]!r}: {error}") from error
    first, loss = found[0], loss.with_parts([one.loss for one in found])
    # One unit for all targets, or none if it would make the gradients of some of them too small.
    unit = max(one.unit for one in found)
    if not loss.scales_with_target or unit > min(one.unit for one in found) * 2.0**40:
        unit = 1.0
    magnitude = sum(one.magnitude for one in found)
    in_units = magnitude if unit == 1.0 else max(0.5 * sum((one.spread / unit) ** 2 for one in found), 1e-200)
    losses = None
    if continues:
        of_parts = [np.array(one.losses) * (one.unit / unit) ** 2 for one in found]
        losses = float(sum(of_model for of_model, _ in of_parts)), float(sum(of_constant for _, of_constant in of_parts))
    return TargetStats(
        baseline=np.concatenate([one.baseline for one in found]),
        loss=loss,
        total_weight=first.total_weight,
        max_weight=first.max_weight,
        magnitude=magnitude,
        spread=max(one.spread for one in found),
        loss_unit=unit_for(in_units * max_weight, n, spare_bits=10),
        mean_weight=first.mean_weight,
        unit=unit,
        integer_weights=first.integer_weights,
        losses=losses,
        too_large=max(found, key=lambda one: one.magnitude).too_large,
        parts=tuple(found),
    )


def _with_known_sums(ask: Ask, known: list[Any], function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call `ask`, for sums only if they are not known. known : receives them."""
    if function is not _sums:
        return ask(function, *arguments)
    if not known:
        known += ask(function, *arguments)
    return known


def _of_output(rows: RowRoles, output: int, column: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function with the rows for the loss of one output alone."""
    return function(_alone(rows, output, column), *arguments)


def _alone(rows: RowRoles, output: int, column: int) -> RowRoles:
    offset = rows.offset  # or the raw scores of a model that is continued, float64[n_outputs, n]
    if offset is not None and offset.ndim == 2:
        offset = offset[output : output + 1]
    return replace(rows, target=one_target(rows.numbers, column), offset=offset)


def _in_unit(rows: RowRoles, unit: float, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function with targets and offsets in a unit."""
    if unit != 1.0:
        offset = None if rows.offset is None else rows.offset / unit
        rows = replace(rows, target=rows.numbers / unit, offset=offset)
    return function(rows, *arguments)


def _too_large(loss: Loss, mean: float, sizes: Sizes, continues: bool, unit: float) -> str:
    """Return the input to name if the first gradients are infinite: targets or weights if these alone are sufficient."""
    steepest = loss.steepest(mean, sizes.lowest, sizes.highest) / unit
    if not steepest <= _LARGEST_FLOAT32:
        return "targets"
    if not steepest * sizes.max_weight <= _LARGEST_FLOAT32 or not (sizes.has_offset or continues):
        return "weights" if steepest <= 1.0 else "targets times the weights" if sizes.max_weight > 1.0 else "targets"
    beside = " or weights" if sizes.max_weight > 1.0 else ""
    return f"scores of the model to continue (or offsets{beside})" if continues else f"offsets{beside}"


def _losses(loss: Loss, ask: Ask, means: np.ndarray, counted: tuple[int, float]) -> tuple[float, float]:
    """See `TargetStats`. means : as in `Loss.best_constants`; counted : as of `AllRows`."""

    def alone(function: Callable[..., Any], *arguments: Any) -> list[Any]:
        return ask(_without_offset, function, *arguments)

    of_model = merged_float(ask(_total_loss, loss, np.zeros(loss.n_outputs)))
    if loss.is_classification and not ((means > 0) & (means < 1)).any():  # one class only
        return of_model, 0.0
    with np.errstate(divide="ignore"):
        best = _best_constants(loss, alone, means, False, counted)
    return of_model, merged_float(alone(_total_loss, loss, best)) if np.isfinite(best).all() else 0.0


def _without_offset(rows: RowRoles, function: Callable[..., Any], *arguments: Any) -> Any:
    return function(replace(rows, offset=None), *arguments)


def _total_loss(rows: RowRoles, loss: Loss, at: np.ndarray) -> int | None:
    """Return the exact sum of the weighted losses with raw scores offset + `at` (float64[n_outputs])."""
    with np.errstate(all="ignore"):
        return total(_weighted(loss.value(rows.numbers, loss_scores(_raw_scores(rows, loss, at))), rows))


def _smoothed(means: np.ndarray, weights: float) -> np.ndarray:
    """Return the classes' fractions of the weight; if a class has no rows, with one row of each class added (Laplace).

    means : float64[n_outputs], as in `Loss.best_constants`; weights : total weight in units of that of one row.
    """
    fractions = means if len(means) > 1 else np.array([means[0], 1.0 - means[0]])
    return means if fractions.all() else (means * weights + 1.0) / (weights + len(fractions))


def _best_constants(loss: Loss, ask: Ask, means: np.ndarray, has_offset: bool, counted: tuple[int, float]) -> np.ndarray:
    """Return the raw scores of least loss over all rows, float64[n_outputs]; means : as in `Loss.best_constants`."""
    rows = _rows_at(ask, loss, np.zeros(loss.n_outputs), *counted)
    return loss.start(InitialRows(rows, means, has_offset, partial(_searched, ask, loss)))


#: How often the constants of several outputs are searched one after the other.
_MOST_CYCLES = 30


def _searched(ask: Ask, loss: Loss, start: np.ndarray) -> np.ndarray:
    """Return the constants of least loss, see `InitialRows.search`."""
    at = np.array(start, np.float64)

    def slopes(value: float, output: int) -> tuple[float, float]:
        return _slopes(ask, loss, np.where(np.arange(len(at)) == output, value, at), output)

    for _ in range(_MOST_CYCLES if len(at) > 1 else 1):
        before = at.copy()
        for k in range(len(at)):
            at[k] = minimize_convex(partial(slopes, output=k), float(at[k]))
        if (np.abs(at - before) <= 1e-10 * np.maximum(np.abs(at), 1.0)).all():
            break
    return at


def output_scales(loss: Loss, ask: Ask, baseline: np.ndarray) -> np.ndarray:
    """Return the reciprocals of the outputs' root mean square gradients at the initial scores, up to a common factor:
    float64[n_outputs]; 1 for an output whose gradients are all 0.

    baseline : as of `TargetStats`.
    """
    squares = np.array([merged_float(of) for of in zip(*ask(_gradient_squares, loss, baseline), strict=True)])
    known = np.isfinite(squares) & (squares > 0)
    largest = squares[known].max(initial=0.0)
    return np.array(
        [min(math.sqrt(largest / one), 1e30) if ok else 1.0 for one, ok in zip(squares.tolist(), known, strict=True)]
    )


def _gradient_squares(rows: RowRoles, loss: Loss, at: np.ndarray) -> list[int | None]:
    """Return Σ w g² of each output with raw scores offset + `at` (float64[n_outputs]), exactly; g as kernels compute it."""
    with np.errstate(all="ignore"):
        gradient = loss.gradient(rows.numbers, loss_scores(_raw_scores(rows, loss, at)))
        in_units = (of_output * loss.of_output(k).score_unit for k, of_output in enumerate(gradient))
        return [total(_weighted(of_output * of_output, rows)) for of_output in in_units]


def _check_derivatives(loss: Loss, ask: Ask) -> None:
    """Make a custom loss known; raise a ParameterError if its derivatives are wrong."""
    messages = [message for message in ask(_check_loss, loss) if message is not None]
    if messages:
        raise ParameterError(messages[0])
    register(loss)


def _check_loss(rows: RowRoles, loss: Loss) -> str | None:
    return check_derivatives(loss, rows.numbers) if rows.n_rows else None


def _rows_at(ask: Ask, loss: Loss, at: np.ndarray, n_rows: int, max_weight: float) -> AllRows:
    """Return all rows with the raw scores offset + `at` (float64[n_outputs])."""

    def merged(part: Callable[..., Any], merge: Callable[[Any, Any], Any], *arguments: Any) -> Any:
        return reduce(merge, ask(_of_part, loss, at, part, *arguments))

    return AllRows(merged, n_rows, max_weight)


def _of_part(rows: RowRoles, loss: Loss, at: np.ndarray, part: Callable[..., Any], *arguments: Any) -> Any:
    return part(PartOfRows(rows.numbers, _raw_scores(rows, loss, at), rows.weight), *arguments)


def _slopes(ask: Ask, loss: Loss, at: np.ndarray, output: int) -> tuple[float, float]:
    """Return first and second derivative of the total weighted loss with respect to the constant that is added to all offsets,
    of one output. at : float64[n_outputs], the constants."""
    slope, curvature = map(merged_float, zip(*ask(_derivatives, loss, at, output), strict=True))
    return slope, curvature


def _derivatives(rows: RowRoles, loss: Loss, at: np.ndarray, output: int) -> tuple[int | None, int | None]:
    with np.errstate(over="ignore", invalid="ignore"):
        gradient, hessian = loss.slopes(output, rows.numbers, _raw_scores(rows, loss, at))
        return total(_weighted(gradient, rows)), total(_weighted(hessian, rows))


def _largest_loss(rows: RowRoles, loss: Loss, at: np.ndarray) -> tuple[float, float]:
    """Return the largest loss, and the largest distance between target and prediction."""
    if not rows.n_rows:
        return 0.0, 0.0
    y, raw = rows.numbers, loss_scores(_raw_scores(rows, loss, at))
    with np.errstate(over="ignore", invalid="ignore"):
        largest = np.abs(loss.point(raw) - loss.target_location(y)).max()
        return float(np.abs(loss.value(y, raw)).max()), float(largest)


def _raw_scores(rows: RowRoles, loss: Loss, at: np.ndarray) -> np.ndarray:
    """Return offset + `at` (float64[n_outputs]), or the scores of the model that is continued + `at`: float64[n_outputs, n]."""
    raw = np.repeat(at[:, None], rows.n_rows, axis=1)
    if rows.offset is not None:
        raw[loss.offset_outputs if rows.offset.ndim == 1 else slice(None)] += rows.offset
    return raw


def _weighted(values: np.ndarray, rows: RowRoles) -> np.ndarray:
    return values if rows.weight is None else values * rows.weight


def sizes_of(rows: RowRoles, loss: Loss) -> Sizes:
    """Return the sizes of some rows."""
    parts = tuple(
        sizes_of(_alone(rows, output, column), part)
        for output, (part, column) in enumerate(zip(loss.parts, loss.columns, strict=True))
    )
    n = rows.n_rows
    if not n:
        return Sizes(0, 0.0, np.inf, -np.inf, False, True, 0.0, 0, parts)
    weight, has_offset = rows.weight, rows.offset is not None
    location = loss.target_location(rows.numbers)
    lowest, highest = float(location.min()), float(location.max())
    if weight is None:
        return Sizes(n, 1.0, lowest, highest, has_offset, True, float(n), n, parts)
    is_whole = bool((weight == np.rint(weight)).all() and weight.max() <= 2.0**20)
    n_counted = float(weight.sum()) if is_whole else 0.0
    n_positive = int(np.count_nonzero(weight))
    return Sizes(n, float(weight.max()), lowest, highest, has_offset, is_whole, n_counted, n_positive, parts)


def _sums(rows: RowRoles, loss: Loss, units: SumUnits) -> list[ExactSum]:
    """Return the sums of the loss, and then the total weight."""
    weight, n = rows.weight, rows.n_rows
    weights = ExactSum(units.weight, int(n * units.weight)) if weight is None else ExactSum.of(weight, units.weight)
    return [*loss.target_sums(rows.numbers, weight, units), weights]


#: Products of gradients may be larger than their bound by so many bits, see `LeafEstimator`.
_SPARE_BITS = 10
#: Relative error of the multiplier at which a line search ends.
_LINE_TOLERANCE = 1e-10


class LeafEstimator:
    """Estimates the leaf values of one fit.

    Parameters
    ----------
    sessions : Sessions
        Those of the sessions.
    loss : Loss
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
        sessions: Sessions,
        loss: Loss,
        parameters: Parameters,
        n_counted: int,
        max_weight: float,
        directions: Directions | None = None,
        spreads: Sequence[float] = (),
    ) -> None:
        self._sessions, self._directions = sessions, directions
        self._loss = loss
        self._parameters = parameters
        self._rank_unit = rank_unit(max_weight, n_counted)
        self._rows = AllRows(lambda part, merge, *rest: self._merged(of_parts(merge), part, *rest), n_counted, max_weight)
        self._statistic: Any = None  # `Loss.statistic` after the last trees
        self._terms = loss.pass_terms()
        #: The smallest and the largest leaf quantile of each output, of its last tree that has two different ones; at first a
        #: third of the spread.
        self._reach = {output: (-spread / 3, spread / 3) for output, spread in enumerate(spreads)}
        self._max_gradient, self._max_hessian = np.zeros((2, loss.n_outputs))
        self._influence: np.ndarray | None = None
        self._influence_terms: LossTerms | None = None
        if parameters.influence_trimming is not None:
            self._influence_terms = replace(self._terms, counts_influence=True)

    def use(self, parameters: Parameters) -> None:
        """Use other parameters from the next tree on; the influence trimming is the same."""
        self._parameters = parameters

    def add_leaf_values(self, values: np.ndarray, n_done: int = 0) -> GradientStats:
        """Add the leaf values of the last trees (float64[n_outputs, n_leaves]) to the scores; compute the gradients.

        n_done : number of iterations in the scores then.
        """
        directions = self._directions
        direction = None if directions is None else directions.drawn(n_done + 1)
        stats = self._sessions.advance(values, self._along(direction, self._influence_terms or self._terms))
        if self._loss.statistic is not None:
            self._statistic = self._loss.statistic.of(self._rows, self._statistic)
            self._terms = self._loss.pass_terms(self._statistic)
            stats = self._sessions.advance(np.zeros_like(values), self._along(direction, self._terms))
        if directions is not None and directions.is_refined(n_done + 1):
            direction = directions.refined(self._gradient_products(stats))
            if direction is not None:
                terms = ProjectedTerms(self._terms, direction, directions.of_classes, keeps_gradients=True)
                along = self._sessions.advance(np.zeros_like(values), terms)
                stats = replace(stats, max_split=along.max_split, noise=along.noise)
        self._max_gradient, self._max_hessian, self._influence = stats.max_gradient, stats.max_hessian, stats.influence
        return stats

    def _along(self, direction: np.ndarray | None, terms: LossTerms) -> LossTerms:
        """Return the record of the loss, with the direction of the next tree if it has one."""
        if self._directions is None or direction is None:
            return terms
        of_classes, counts = self._directions.of_classes, terms.counts_influence
        return ProjectedTerms(terms, direction, of_classes, counts_influence=counts)

    def _gradient_products(self, stats: GradientStats) -> np.ndarray:
        """Return Σ_i w_i g_i (g_i · c) for the direction c that the gradients are projected on: float64[n_outputs]."""
        assert stats.max_split is not None
        # Gradients include the weights. Of rows of small weights, products that are larger than the bound are clipped.
        bounds = stats.max_gradient * (float(stats.max_split[0]) / self._rows.max_weight)
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
        for (statistic, _), alike in groupby(range(len(sums)), self._kind_of_steps):
            found = [*alike]
            outputs = range(found[0], found[-1] + 1)
            limits, rows = StepLimits.of(map(self._loss.of_output, outputs)), slice(outputs.start, outputs.stop)
            if statistic == "newton":
                values[rows] = leaf_values(sums[rows], parameters, limits)
            else:
                values[rows] = bounded(self._residual_steps(sums.shape[1], subset, outputs), parameters, limits)
        return values

    def _kind_of_steps(self, output: int) -> tuple[str, bool]:
        """Return what the leaf values of an output are: those of adjacent outputs of one kind are computed together."""
        loss = self._loss.of_output(output)
        return loss.leaf_statistic, loss.has_clipped_step

    def values(self, grown: Leaves, subset: RowSubset) -> np.ndarray:
        """Return the leaf values of the tree grown last, by the rows of its sample: float64[n_leaves]."""
        parameters, loss = self._parameters, self._loss.of_output(subset.output)
        if parameters.step == "leaf":
            if loss.leaf_statistic != "newton":
                alone = range(subset.output, subset.output + 1)
                return bounded(self._residual_steps(grown.n_leaves, subset, alone)[0], parameters, loss)
            return leaf_values(self._newton_sums(grown, subset), parameters, loss)
        steps = newton_steps(grown.leaf_sums, parameters)
        if parameters.criterion == "newton":
            steps = steps * loss.step_factor
        if parameters.step == "line_search":
            # The multiplier has no bound if the tree separates all classes; the loss's longest step limits it.
            most = loss.longest_step / (parameters.learning_rate * max(float(np.abs(steps).max()), 1e-300))
            steps = steps * min(self._multiplier(steps * loss.score_unit, subset), most)
        return bounded(steps, parameters, loss)

    def least_influence(self, output: int) -> int:
        """Return the smallest influence of a row that is not trimmed from an output's next tree, as the bits of a float32."""
        fraction = self._parameters.influence_trimming
        if fraction is None or not self._max_hessian[output] > 0:
            return 0
        assert self._influence is not None
        return find_cut(
            self._influence[output],
            lambda *digits: self._merged(influence_digits, output, *digits),
            exact_level(fraction),
        )

    def _merged(self, statistic: Statistic, *arguments: Any) -> Any:
        """Return a statistic of all training rows."""
        return statistic.merged(self._sessions.statistics(statistic, *arguments))

    def _newton_sums(self, grown: Leaves, subset: RowSubset) -> np.ndarray:
        """Return sums of gradients and second derivatives: float64[n_leaves, 2]."""
        if self._parameters.criterion == "newton" or self._loss.constant_hessian:
            return grown.leaf_sums
        unit = unit_for(float(self._max_hessian[subset.output]), self._rows.n_rows)
        sums = self._merged(loss_hessian_sums, subset, grown.n_leaves, unit)
        return np.column_stack([grown.leaf_sums[:, 0], sums / unit])

    def _residual_steps(self, n_leaves: int, subset: RowSubset, outputs: range) -> np.ndarray:
        """Return quantiles of the leaves' residuals for some outputs, or clipped steps from these:
        float64[len(outputs), n_leaves]."""
        losses = list(map(self._loss.of_output, outputs))
        steps = self._residual_quantiles([exact_level(loss.level) for loss in losses], outputs, n_leaves, subset)
        if any(loss.has_clipped_step for loss in losses):
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
        found = find_quantiles(
            lambda *digits: self._merged(leaf_digits, subset, outputs, self._rank_unit, *digits),
            lambda keys: self._merged(leaf_next, subset, outputs, keys),
            ranks_of(levels, n_leaves),
            n_groups,
            near,
        ).reshape(len(outputs), n_leaves)
        for output, steps in zip(outputs, found, strict=True):
            if steps.max() > steps.min():
                self._reach[output] = float(steps.min()), float(steps.max())
        return found

    def _multiplier(self, steps: np.ndarray, subset: RowSubset) -> float:
        """Return ρ = argmin Σ w L(y, F + ρ h(x)) for a tree h with the leaf values `steps`."""
        loss = self._loss.with_statistic(self._statistic)

        def slopes(at: float) -> tuple[float, float]:
            derivatives = self._sessions.statistics(line_slopes, subset, loss, steps, at)
            slope, curvature = map(merged_float, zip(*derivatives, strict=True))
            return slope, curvature

        return minimize_convex(slopes, 0.0, _LINE_TOLERANCE)
