"""Statistics of the training target: the initial score of a model, and the units of exact sums.

`target_stats` works with statistics of the training rows only. ``ask(function, *arguments)`` calls
``function(rows, *arguments)`` for each row subset, in this process or on workers, and returns the list of results. The results
are merged exactly (maxima, sums of integers), so the statistics do not depend on the partitions. Four steps follow one another:

1. `TargetSums`: sizes, which determine the units of exact sums, and the weighted means of the targets.
2. `Baseline`: the constant raw scores of least loss, and the loss with what it learns from them (`BaseLoss.learned`). Most
   losses compute them from the mean of the target. With offsets, or for a custom loss, Newton's method finds them from exact
   sums of the rows' first and second derivatives, with one call per step.
3. `Units`: how large losses and targets are at the baseline, and the units that follow.
4. Of a model that is continued, its loss on these rows and that of the best constant.

A loss of independent outputs has statistics of each output, from which those of all together follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import numpy as np

from dboost.errors import DataError, ParameterError, warn
from dboost.exact import ExactSum, merged_float, total, unit_for
from dboost.losses import BaseLoss
from dboost.losses.base import AllRows, InitialRows, PartOfRows, SumUnits, target_column
from dboost.params import Parameters
from dboost.session.backend import Backend
from dboost.session.table_rows import TableRows
from dboost.session.target import EncodedRoles
from dboost.training.minimize import minimize_convex

_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)

#: ``ask(function, *arguments)`` returns ``function(rows, *arguments)`` of each row subset (`EncodedRoles`).
Ask = Callable[..., list[Any]]


@dataclass(frozen=True, eq=False)
class TargetStats:
    """Statistics of the training target, known before the first tree."""

    baseline: np.ndarray  # float64[n_outputs], the constant raw scores of least loss
    loss: BaseLoss  # with its parameters that depend on the rows, see `BaseLoss.learned`
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
    parts: tuple[TargetStats, ...] = ()  # of `BaseLoss.parts`

    @property
    def magnitudes(self) -> tuple[tuple[float, float], ...]:
        """Magnitude and spread of each of the `parts`."""
        return tuple((stats.magnitude, stats.spread) for stats in self.parts or (self,))

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
    scaled = {name: getattr(parameters, name) for name in (*_WEIGHED, *_SCALED)}
    scaled |= {name: scaled[name] * stats.mean_weight for name in _WEIGHED}
    if stats.unit != 1.0:
        for name, power in _SCALED.items():
            for _ in range(power if scaled[name] else 0):
                scaled[name] = min(max(scaled[name] / stats.unit, 1e-300), 1e300)
    return replace(parameters, **scaled)


def _unit_of(loss: BaseLoss, spread: float, largest: float, max_weight: float) -> float:
    """Return the unit of the targets: 1 where float32 has room for gradients from the first to the last iteration.

    Only squared error and Huber loss need another one: their gradients are differences between target and score. Multiplying
    these by a power of two multiplies all sums and leaf values by it, without rounding. The largest target is finite in the
    unit, also if all targets are equal and their spread is next to nothing.
    """
    if not loss.start.scales or not 0 < spread < math.inf:
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
    parts: tuple[Sizes, ...] = ()  # of the targets of `BaseLoss.parts`

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
            tuple(map(Sizes.merge, self.parts, other.parts)),
        )


@dataclass(frozen=True, eq=False)
class TargetSums:
    """Sizes of the rows, and weighted means of their targets."""

    sizes: Sizes
    #: A row of integer weight n counts as n rows of weight 1 in sums and their units.
    n_rows: int
    max_weight: float
    means: np.ndarray  # of `Start.sums`
    total_weight: float

    @property
    def mean(self) -> float:
        """The mean target."""
        return float(self.means[0])

    @property
    def mean_weight(self) -> float:
        """The mean weight for `in_units_of`: weights of mean 1, such as those of balanced classes, may round to less."""
        mean = self.total_weight / self.sizes.n_positive
        return mean if mean < 1.0 - 2.0**-20 else 1.0

    @property
    def counted(self) -> tuple[int, float]:
        """Number of rows and largest weight, as of `AllRows`."""
        return self.n_rows, self.max_weight

    @property
    def largest(self) -> float:
        """The magnitude of the largest target."""
        return max(abs(self.sizes.lowest), abs(self.sizes.highest))


@dataclass(frozen=True, eq=False)
class Baseline:
    """The initial score."""

    scores: np.ndarray  # float64[n_outputs], the constant raw scores of least loss; 0 if a model is continued
    loss: BaseLoss  # with what it learns from them


@dataclass(frozen=True, eq=False)
class Units:
    """Magnitudes at the initial score, and the units of sums."""

    magnitude: float  # approximate upper bound of a row's loss
    spread: float  # largest distance of a target from the mean
    unit: float  # of targets and raw scores while trees are grown
    loss_unit: float  # of exact sums of the weighted loss


def of_roles(backend: Backend, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return ``function(roles, *arguments)`` of ranges that together are all rows of positive weight (`EncodedRoles`)."""
    return [answer for answers in backend.ask(TableRows.map_rows, function, arguments) for answer in answers]


def target_stats(loss: BaseLoss, ask: Ask, *, continues: bool = False, sizes: Sizes | None = None) -> TargetStats:
    """Compute the statistics from targets, weights and offsets of all training rows.

    continues : whether a model is continued (default False). Then rows have start scores, the baseline is unused and zero, and
    targets that determine no initial score are allowed.
    sizes : merged from `sizes_of` all rows, default None: they are asked for.

    Raises
    ------
    DataError
        When no constant minimizes the loss of these targets.
    ParameterError
        When the derivatives of a custom loss are wrong.
    """
    sizes = sizes or reduce(Sizes.merge, ask(sizes_of, loss))
    if loss.parts:
        return _stats_of_parts(loss, ask, sizes, continues)
    return _stats_of_loss(loss, ask, sizes, continues)


def _stats_of_loss(loss: BaseLoss, ask: Ask, sizes: Sizes, continues: bool, start: np.ndarray | None = None) -> TargetStats:
    """Return the statistics of a loss without `BaseLoss.parts`. start : the initial score if it is known."""
    if loss.statistic is None:
        loss.verify(_rows_at(ask, loss, np.zeros(loss.n_outputs), *_counted(sizes)))
    sums = _sum_targets(loss, ask, sizes)
    _check_start(loss, sums, continues)
    baseline = _find_baseline(loss, ask, sums, continues, start)
    loss = baseline.loss
    units = _find_units(baseline, ask, sums, continues)
    losses = None
    if continues:
        in_unit = partial(ask, _in_unit, units.unit)
        losses = _losses(loss.in_unit(units.unit), in_unit, sums.means / units.unit, sums.counted)
        losses = loss.comparable(losses, sums.total_weight)
    return TargetStats(
        baseline=baseline.scores,
        loss=loss,
        total_weight=sums.total_weight,
        max_weight=sizes.max_weight,
        magnitude=units.magnitude,
        spread=units.spread,
        loss_unit=units.loss_unit,
        mean_weight=sums.mean_weight,
        unit=units.unit,
        integer_weights=sizes.is_whole,
        losses=losses,
        too_large=_too_large(loss, sums.mean, sizes, continues, units.unit),
    )


def _counted(sizes: Sizes) -> tuple[int, float]:
    """Return the number of rows and their largest weight, see `TargetSums`."""
    return (int(sizes.n_counted), 1.0) if sizes.is_whole else (sizes.n_rows, sizes.max_weight)


def _sum_targets(loss: BaseLoss, ask: Ask, sizes: Sizes) -> TargetSums:
    """Return the weighted means of the targets; a DataError if a sum is infinite."""
    n, max_weight = _counted(sizes)
    target_unit = unit_for(max(abs(sizes.lowest), abs(sizes.highest)) * max_weight, n)
    answers = ask(_sums, loss, SumUnits(target_unit, unit_for(max_weight, n), sizes.is_whole))
    *of_targets, of_weights = (reduce(ExactSum.merge, parts).finish() for parts in zip(*answers, strict=True))
    means = np.array(of_targets) / of_weights
    if not np.isfinite(means).all():
        raise DataError("the targets (or their weights) are so large that their sum is infinite; scale them down")
    return TargetSums(sizes, n, max_weight, means, of_weights)


def _check_start(loss: BaseLoss, sums: TargetSums, continues: bool) -> None:
    """Raise an error for targets or offsets from which no initial score follows; warn of offsets without effect."""
    if continues:
        return
    if loss.targets.valid == "non-negative" and not sums.mean > 0:
        raise DataError(f"loss={loss.name!r} requires non-negative y and sum(y) > 0: all targets are 0")
    if sums.sizes.has_offset and loss.link.are_probabilities:
        raise ParameterError("offset is added to raw scores, and those of a forest of classes are probabilities: leave it out")
    if sums.sizes.has_offset and not loss.link.uses_offset:
        warn(
            f"offset has no effect on a model of {loss.n_outputs} classes: the same number is added to the scores of all "
            "classes of a row, which changes no probability"
        )


def _find_baseline(loss: BaseLoss, ask: Ask, sums: TargetSums, continues: bool, start: np.ndarray | None) -> Baseline:
    """Return the initial score, and the loss with what it learns from it. start : the score if it is known."""
    scores = np.zeros(loss.n_outputs)
    if start is not None:
        scores = start
    elif not continues:
        means = sums.means
        if loss.targets.are_classes:
            means = _smoothed(means, sums.total_weight / sums.mean_weight)
        has_offset = sums.sizes.has_offset and loss.link.uses_offset
        scores = _best_constants(loss, ask, means, has_offset, sums.counted)
    if not continues:
        loss = loss.started(scores)
    if loss.statistic is not None:
        rows = _rows_at(ask, loss, scores, *sums.counted)
        loss = loss.with_statistic(loss.statistic.of(rows))
        loss.verify(rows)
    return Baseline(scores, loss)


def _find_units(baseline: Baseline, ask: Ask, sums: TargetSums, continues: bool) -> Units:
    """Return magnitudes of losses and targets, from the targets or from the losses at the initial score, and their units."""
    loss, start, mean = baseline.loss, baseline.loss.start, sums.mean
    spread = start.spread
    if spread is None:
        spread = max(mean - sums.sizes.lowest, sums.sizes.highest - mean)
    magnitude = None
    if start.magnitude is not None and not ((sums.sizes.has_offset or continues) and loss.link.uses_offset):
        magnitude = start.magnitude(mean, spread)
    if magnitude is None:
        largest = ask(_largest_loss, loss, baseline.scores)
        magnitude, spread = (max(parts) for parts in zip(*largest, strict=True))
        magnitude, spread = max(magnitude, start.least_magnitude), max(spread, LEAST_SPREAD)
        if continues and start.magnitude is not None:  # all rows may have a small loss at first
            magnitude = max(magnitude, start.magnitude(mean, spread))
    unit = _unit_of(loss, spread, sums.largest, sums.max_weight)
    in_units = magnitude if unit == 1.0 else max(0.5 * (spread / unit) ** 2, 1e-200)
    return Units(magnitude, spread, unit, unit_for(in_units * sums.max_weight, sums.n_rows, spare_bits=10))


def _stats_of_parts(loss: BaseLoss, ask: Ask, sizes: Sizes, continues: bool) -> TargetStats:
    """Return the statistics of a loss with `BaseLoss.parts`: of each of them, and what follows for all together."""
    parts: list[TargetStats] = []
    n, max_weight = _counted(sizes)
    starts, columns = None, loss.targets.of_outputs
    if loss.start.of_rows is not None and not continues:  # of one target: all initial scores at once
        rows = _rows_at(ask, loss, np.zeros(loss.n_outputs), n, max_weight)
        starts = loss.start.of_rows(InitialRows(rows, np.empty(0), sizes.has_offset, partial(_searched, ask, loss)))
    sums: list[Any] = []
    for output, (part, column, of_part) in enumerate(zip(loss.parts, columns, sizes.parts, strict=True)):
        alone = partial(ask, _of_output, output, column)
        if starts is not None:
            alone = partial(_with_known_sums, alone, sums)
        try:
            start = None if starts is None else starts[output : output + 1]
            parts.append(_stats_of_loss(part, alone, of_part, continues, start))
        except DataError as error:
            raise DataError(f"target {loss.targets.columns[column]!r}: {error}") from error
    first, loss = parts[0], loss.with_parts([stats.loss for stats in parts])
    # One unit for all targets, or none if it would make the gradients of some of them too small.
    unit = max(stats.unit for stats in parts)
    if not loss.start.scales or unit > min(stats.unit for stats in parts) * 2.0**40:
        unit = 1.0
    magnitude = sum(stats.magnitude for stats in parts)
    in_units = magnitude if unit == 1.0 else max(0.5 * sum((stats.spread / unit) ** 2 for stats in parts), 1e-200)
    losses = None
    if continues:
        of_parts = [np.array(stats.losses) * (stats.unit / unit) ** 2 for stats in parts]
        losses = float(sum(of_model for of_model, _ in of_parts)), float(sum(of_constant for _, of_constant in of_parts))
    return TargetStats(
        baseline=np.concatenate([stats.baseline for stats in parts]),
        loss=loss,
        total_weight=first.total_weight,
        max_weight=first.max_weight,
        magnitude=magnitude,
        spread=max(stats.spread for stats in parts),
        loss_unit=unit_for(in_units * max_weight, n, spare_bits=10),
        mean_weight=first.mean_weight,
        unit=unit,
        integer_weights=first.integer_weights,
        losses=losses,
        too_large=max(parts, key=lambda stats: stats.magnitude).too_large,
        parts=tuple(parts),
    )


def _with_known_sums(ask: Ask, known: list[Any], function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call `ask`, for sums only if they are not known. known : receives them."""
    if function is not _sums:
        return ask(function, *arguments)
    if not known:
        known += ask(function, *arguments)
    return known


def _of_output(rows: EncodedRoles, output: int, column: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function with the rows for the loss of one output alone."""
    return function(_alone(rows, output, column), *arguments)


def _alone(rows: EncodedRoles, output: int, column: int) -> EncodedRoles:
    start_scores = None if rows.start_scores is None else rows.start_scores[output : output + 1]
    return replace(rows, target=target_column(rows.numeric_target, column), start_scores=start_scores)


def _in_unit(rows: EncodedRoles, unit: float, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function with targets, offsets and start scores in a unit."""
    if unit != 1.0:
        offset = None if rows.offset is None else rows.offset / unit
        start_scores = None if rows.start_scores is None else rows.start_scores / unit
        rows = replace(rows, target=rows.numeric_target / unit, offset=offset, start_scores=start_scores)
    return function(rows, *arguments)


def _too_large(loss: BaseLoss, mean: float, sizes: Sizes, continues: bool, unit: float) -> str:
    """Return the input to name if the first gradients are infinite: targets or weights if these alone are sufficient."""
    steepest = _steepest(loss, mean, sizes) / unit
    if not steepest <= _LARGEST_FLOAT32:
        return "targets"
    if not steepest * sizes.max_weight <= _LARGEST_FLOAT32 or not (sizes.has_offset or continues):
        return "weights" if steepest <= 1.0 else "targets times the weights" if sizes.max_weight > 1.0 else "targets"
    beside = " or weights" if sizes.max_weight > 1.0 else ""
    return f"scores of the model to continue (or offsets{beside})" if continues else f"offsets{beside}"


def _steepest(loss: BaseLoss, mean: float, sizes: Sizes) -> float:
    """Return about the largest gradient at the best constant, if it depends on the size of the targets; else 1."""
    targets = loss.targets
    if targets.are_classes or targets.groups or len(targets.columns) > 1 or loss.n_outputs > 1:
        return 1.0
    with np.errstate(all="ignore"):
        scores = np.nan_to_num(loss.link.to_raw(np.array([[mean, mean]])), posinf=0.0, neginf=0.0)
        return float(np.abs(loss.gradient(np.array([sizes.lowest, sizes.highest]), scores)).max())


def _losses(loss: BaseLoss, ask: Ask, means: np.ndarray, counted: tuple[int, float]) -> tuple[float, float]:
    """See `TargetStats`. means : as of `Start.constants`; counted : as of `AllRows`."""

    def alone(function: Callable[..., Any], *arguments: Any) -> list[Any]:
        return ask(_without_scores, function, *arguments)

    of_model = merged_float(ask(_total_loss, loss, np.zeros(loss.n_outputs)))
    if loss.targets.are_classes and not ((means > 0) & (means < 1)).any():  # one class only
        return of_model, 0.0
    with np.errstate(divide="ignore"):
        best = _best_constants(loss, alone, means, False, counted)
    return of_model, merged_float(alone(_total_loss, loss, best)) if np.isfinite(best).all() else 0.0


def _without_scores(rows: EncodedRoles, function: Callable[..., Any], *arguments: Any) -> Any:
    return function(replace(rows, offset=None, start_scores=None), *arguments)


def _total_loss(rows: EncodedRoles, loss: BaseLoss, at: np.ndarray) -> int | None:
    """Return the exact sum of the weighted losses with raw scores offset + `at` (float64[n_outputs])."""
    with np.errstate(all="ignore"):
        return total(_weighted(loss.value(rows.numeric_target, _raw_scores(rows, loss, at)), rows))


def _smoothed(means: np.ndarray, weights: float) -> np.ndarray:
    """Return the classes' fractions of the weight; if a class has no rows, with one row of each class added (Laplace).

    means : float64[n_outputs], as of `Start.constants`; weights : total weight in units of that of one row.
    """
    fractions = means if len(means) > 1 else np.array([means[0], 1.0 - means[0]])
    return means if fractions.all() else (means * weights + 1.0) / (weights + len(fractions))


def _best_constants(loss: BaseLoss, ask: Ask, means: np.ndarray, has_offset: bool, counted: tuple[int, float]) -> np.ndarray:
    """Return the raw scores of least loss over all rows, float64[n_outputs]; means : as of `Start.constants`."""
    search = partial(_searched, ask, loss)
    if loss.start.of_rows is not None:
        rows = _rows_at(ask, loss, np.zeros(loss.n_outputs), *counted)
        return loss.start.of_rows(InitialRows(rows, means, has_offset, search))
    best = None if loss.start.constants is None else loss.start.constants(means)
    if best is None or has_offset:
        best = search(np.zeros(loss.n_outputs) if best is None else best)
    return best


#: How often the constants of several outputs are searched one after the other.
_MOST_CYCLES = 30


def _searched(ask: Ask, loss: BaseLoss, start: np.ndarray) -> np.ndarray:
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


def output_scales(loss: BaseLoss, ask: Ask, baseline: np.ndarray) -> np.ndarray:
    """Return the reciprocals of the outputs' root mean square gradients at the initial scores, up to a common factor:
    float64[n_outputs]; 1 for an output whose gradients are all 0.

    baseline : as of `TargetStats`.
    """
    squares = np.array([merged_float(parts) for parts in zip(*ask(_gradient_squares, loss, baseline), strict=True)])
    known = np.isfinite(squares) & (squares > 0)
    largest = float(squares[known].max(initial=0.0))
    return np.array(
        [
            min(math.sqrt(largest / square), 1e30) if is_known else 1.0
            for square, is_known in zip(squares.tolist(), known, strict=True)
        ]
    )


def _gradient_squares(rows: EncodedRoles, loss: BaseLoss, at: np.ndarray) -> list[int | None]:
    """Return Σ w g² of each output with raw scores offset + `at` (float64[n_outputs]), exactly; g as kernels compute it."""
    with np.errstate(all="ignore"):
        gradient = loss.gradient(rows.numeric_target, _raw_scores(rows, loss, at))
        in_units = (of_output * leaves.score_unit for of_output, leaves in zip(gradient, loss.leaves, strict=True))
        return [total(_weighted(of_output * of_output, rows)) for of_output in in_units]


def _rows_at(ask: Ask, loss: BaseLoss, at: np.ndarray, n_rows: int, max_weight: float) -> AllRows:
    """Return all rows with the raw scores offset + `at` (float64[n_outputs])."""

    def merged(part: Callable[..., Any], merge: Callable[[Any, Any], Any], *arguments: Any) -> Any:
        return reduce(merge, ask(_of_part, loss, at, part, *arguments))

    return AllRows(merged, n_rows, max_weight)


def _of_part(rows: EncodedRoles, loss: BaseLoss, at: np.ndarray, part: Callable[..., Any], *arguments: Any) -> Any:
    return part(PartOfRows(rows.numeric_target, _raw_scores(rows, loss, at), rows.weight), *arguments)


def _slopes(ask: Ask, loss: BaseLoss, at: np.ndarray, output: int) -> tuple[float, float]:
    """Return first and second derivative of the total weighted loss with respect to the constant that is added to all offsets,
    of one output. at : float64[n_outputs], the constants."""
    slope, curvature = map(merged_float, zip(*ask(_derivatives, loss, at, output), strict=True))
    return slope, curvature


def _derivatives(rows: EncodedRoles, loss: BaseLoss, at: np.ndarray, output: int) -> tuple[int | None, int | None]:
    with np.errstate(over="ignore", invalid="ignore"):
        gradient, hessian = loss.slopes(output, rows.numeric_target, _raw_scores(rows, loss, at))
        return total(_weighted(gradient, rows)), total(_weighted(hessian, rows))


def _largest_loss(rows: EncodedRoles, loss: BaseLoss, at: np.ndarray) -> tuple[float, float]:
    """Return the largest loss, and the largest distance between target and prediction."""
    if not rows.n_rows:
        return 0.0, 0.0
    y, raw = rows.numeric_target, _raw_scores(rows, loss, at)
    with np.errstate(over="ignore", invalid="ignore"):
        largest = np.abs(loss.point(raw) - loss.targets.locations(y)).max()
        return float(np.abs(loss.value(y, raw)).max()), float(largest)


def _raw_scores(rows: EncodedRoles, loss: BaseLoss, at: np.ndarray) -> np.ndarray:
    """Return start scores, or else the offset, + `at` (float64[n_outputs]): float64[n_outputs, n]."""
    raw = np.repeat(at[:, None], rows.n_rows, axis=1)
    if rows.start_scores is not None:
        raw += rows.start_scores
    elif rows.offset is not None:
        raw[loss.link.offset_outputs] += rows.offset
    return raw


def _weighted(values: np.ndarray, rows: EncodedRoles) -> np.ndarray:
    return values if rows.weight is None else values * rows.weight


def sizes_of(rows: EncodedRoles, loss: BaseLoss) -> Sizes:
    """Return the sizes of some rows."""
    parts = tuple(
        sizes_of(_alone(rows, output, column), part)
        for output, (part, column) in enumerate(zip(loss.parts, loss.targets.of_outputs, strict=True))
    )
    n = rows.n_rows
    if not n:
        return Sizes(0, 0.0, np.inf, -np.inf, False, True, 0.0, 0, parts)
    weight, has_offset = rows.weight, rows.offset is not None
    location = loss.targets.locations(rows.numeric_target)
    lowest, highest = float(location.min()), float(location.max())
    if weight is None:
        return Sizes(n, 1.0, lowest, highest, has_offset, True, float(n), n, parts)
    is_whole = bool((weight == np.rint(weight)).all() and weight.max() <= 2.0**20)
    n_counted = float(weight.sum()) if is_whole else 0.0
    n_positive = int(np.count_nonzero(weight))
    return Sizes(n, float(weight.max()), lowest, highest, has_offset, is_whole, n_counted, n_positive, parts)


def _sums(rows: EncodedRoles, loss: BaseLoss, units: SumUnits) -> list[ExactSum]:
    """Return the sums of the loss, and then the total weight."""
    weight, n = rows.weight, rows.n_rows
    weights = ExactSum(units.weight, int(n * units.weight)) if weight is None else ExactSum.of(weight, units.weight)
    of_targets = _weighted_sum if loss.start.sums is None else loss.start.sums
    return [*of_targets(loss.targets.locations(rows.numeric_target), weight, units), weights]


def _weighted_sum(y: np.ndarray, weight: np.ndarray | None, units: SumUnits) -> list[ExactSum]:
    """Return the weighted sum of the targets."""
    with np.errstate(over="ignore", invalid="ignore"):  # a fit raises an error for infinite sums
        if weight is None or units.is_whole:
            return [ExactSum.of(y, units.target, weight)]
        return [ExactSum.of(y * weight, units.target)]
