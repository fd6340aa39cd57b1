"""Where raw scores start, and the units of exact sums: a conversation with whoever holds the rows.

`target_stats` never sees a row. It asks: ``ask(function, *arguments)`` calls ``function(y, weight, offset, *arguments)`` for
each part of the training rows, wherever it lies, and returns the list of answers. Answers merge exactly (largest values,
sums of integers), so what follows from them does not depend on how the rows are divided. The first round tells sizes,
from which the units of exact sums follow; the second one sums.

For most losses the mean of the target tells where they are least. With offsets, or for a loss of the user's own, the place
is searched for by the exact sums of the rows' first and second derivatives: a round for each step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from dboost.errors import DataError, ParameterError
from dboost.kernels.quantile_keys import count_digits, next_keys
from dboost.losses import Huber, Loss, is_custom, register
from dboost.losses.classification import SoftmaxLogLoss
from dboost.losses.custom_loss import check_derivatives
from dboost.metrics.exact_sum import ExactSum, merged_float, total, unit_for
from dboost.metrics.quantiles import exact_level, find_quantiles, find_size, rank_unit
from dboost.training.leaf_values import minimize_convex

_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)

#: ``ask(function, *arguments)``: what ``function(y, weight, offset, *arguments)`` says of each part of the rows.
Ask = Callable[..., list[Any]]


@dataclass(frozen=True, eq=False)
class TargetStats:
    """What is known of the training target before the first tree.

    Attributes
    ----------
    baseline : float64[n_outputs]
        Raw scores that minimise the loss as constants.
    loss : Loss
        With what it has found out about the rows.
    total_weight, heaviest : float
        Of all rows, and of the heaviest.
    magnitude, spread : float
        About how large a row's loss can be, and how far a target is from the mean at most.
    loss_unit : float
        Unit of exact sums of the weighted loss.
    integer_weights : bool
        Whether all weights are whole numbers, so that a row of weight n stands for n rows.
    unexplained : float or None
        Of a model that is continued: its loss on these rows as a share of the best constant's. 0 when it predicts all, 1 when
        it knows no more than a constant, above 1 when it is wrong; infinite when the best constant predicts all.
    too_large : str
        What is to blame where the first gradients are infinite.
    """

    baseline: np.ndarray
    loss: Loss
    total_weight: float
    max_weight: float
    magnitude: float
    spread: float
    loss_unit: float
    integer_weights: bool
    unexplained: float | None = None
    too_large: str = "targets"


@dataclass(frozen=True)
class Sizes:
    """How many rows there are, and how large what they hold: merged by sums, minima and maxima.

    n_counted : where weights are whole numbers, the number of rows that they stand for.
    """

    n_rows: int
    max_weight: float
    lowest: float
    highest: float
    has_offset: bool
    is_whole: bool
    n_counted: float

    def merge(self, other: Sizes) -> Sizes:
        return Sizes(
            self.n_rows + other.n_rows,
            max(self.max_weight, other.max_weight),
            min(self.lowest, other.lowest),
            max(self.highest, other.highest),
            self.has_offset or other.has_offset,
            self.is_whole and other.is_whole,
            self.n_counted + other.n_counted,
        )


def in_one_part(y: np.ndarray, weight: np.ndarray | None, offset: np.ndarray | None) -> Ask:
    """The conversation with rows that lie here: float64[n] each, weight and offset also None."""
    return lambda function, *arguments: [function(y, weight, offset, *arguments)]


def target_stats(loss: Loss, ask: Ask, *, continues: bool = False) -> TargetStats:
    """From the targets, weights and offsets of all training rows.

    continues : whether a model exists already; the offsets are then its raw scores (looked at for a single output only), the
    baseline, which nobody will ask for, is zero, and targets that would not make a model of their own are legal.

    Raises
    ------
    DataError
        When no score is best for these targets.
    ParameterError
        When the derivatives of a user's loss are wrong.
    """
    if is_custom(loss):
        wrong = [complaint for complaint in ask(_checked, loss) if complaint is not None]
        if wrong:
            raise ParameterError(wrong[0])
        register(loss)
    sizes = reduce(Sizes.merge, ask(_sizes))
    # Whole weights repeat rows: sums and their units are those of the rows so many times.
    n, max_weight = (int(sizes.n_counted), 1.0) if sizes.is_whole else (sizes.n_rows, sizes.max_weight)
    weight_unit = unit_for(max_weight, n)
    mean, classes = 0.0, np.empty(0)
    magnitude: float | None
    if isinstance(loss, SoftmaxLogLoss):
        # The same offset on the scores of all classes changes no probability.
        shares = [reduce(ExactSum.merge, of_class) for of_class in zip(*ask(_shares, loss.n_outputs, weight_unit), strict=True)]
        weights = reduce(ExactSum.merge, shares).finish()
        classes = np.array([share.finish() for share in shares]) / weights
        baseline = np.zeros(loss.n_outputs) if continues else loss.best_constants(_possible(classes, weights))
        spread, magnitude = 1.0, loss.magnitude(0.0, 0.0)
    else:
        target_unit = unit_for(max(abs(sizes.lowest), abs(sizes.highest)) * max_weight, n)
        answers = ask(_sums, target_unit, weight_unit, sizes.is_whole)
        of_targets, of_weights = (reduce(ExactSum.merge, of) for of in zip(*answers, strict=True))
        weights = of_weights.finish()
        mean = of_targets.finish() / weights
        if not math.isfinite(mean):
            raise DataError("the targets (or their weights) are so large that their sum is infinite; scale them down")
        if loss.target_range == "non-negative" and not mean > 0 and not continues:
            raise DataError(f"loss={loss.name!r} requires non-negative y and sum(y) > 0: all targets are 0")
        best = 0.0 if continues else _best(loss, ask, mean, weights, sizes.has_offset, rank_unit(max_weight, n))
        if isinstance(loss, Huber):
            loss = loss.with_delta(_delta(ask, loss, best, rank_unit(max_weight, n)))
        baseline = np.array([best])
        spread, magnitude = max(mean - sizes.lowest, sizes.highest - mean), None
        if not sizes.has_offset:
            magnitude = loss.magnitude(mean, spread)
        if magnitude is None:
            largest = ask(_largest, loss, best)
            magnitude, spread = (max(of) for of in zip(*largest, strict=True))
            # A sum of nothing but zeros needs a unit all the same.
            magnitude, spread = max(magnitude, 1e-200), max(spread, 1e-200)
            if continues:  # a score may be good for all rows, for now
                magnitude = max(magnitude, loss.magnitude(mean, spread) or 0.0)
    loss_unit = unit_for(magnitude * max_weight, n, spare_bits=10)
    unexplained = _unexplained(loss, ask, mean, classes, rank_unit(max_weight, n)) if continues else None
    too_large = _too_large(loss, mean, sizes, continues)
    return TargetStats(
        baseline, loss, weights, sizes.max_weight, magnitude, spread, loss_unit, sizes.is_whole, unexplained, too_large
    )


def _too_large(loss: Loss, mean: float, sizes: Sizes, continues: bool) -> str:
    """What is to blame where the first gradients are infinite: targets and weights, if these alone would make them so."""
    steepest = 1.0
    if not loss.is_classification:
        y = np.array([sizes.lowest, sizes.highest])
        with np.errstate(all="ignore"):
            at = np.nan_to_num(loss.link(np.array([mean, mean])), posinf=0.0, neginf=0.0)
            steepest = float(np.abs(loss.gradient(y, at)).max())
    if not steepest <= _LARGEST_FLOAT32:
        return "targets"
    if not steepest * sizes.max_weight <= _LARGEST_FLOAT32 or not (sizes.has_offset or continues):
        return "weights" if steepest <= 1.0 else "targets times the weights" if sizes.max_weight > 1.0 else "targets"
    beside = " or weights" if sizes.max_weight > 1.0 else ""
    return f"scores of the model to continue (or offsets{beside})" if continues else f"offsets{beside}"


def _unexplained(loss: Loss, ask: Ask, mean: float, classes: np.ndarray, unit: float) -> float:
    """See `TargetStats`. mean : of the target; classes : float64[n_outputs], their shares; unit : of ranks."""

    def alone(function: Callable[..., Any], *arguments: Any) -> list[Any]:
        return ask(_without_offset, function, *arguments)

    with np.errstate(divide="ignore"):
        if isinstance(loss, SoftmaxLogLoss):
            best = np.log(np.maximum(classes, 1e-300))
        else:
            if loss.is_classification and not 0 < mean < 1:
                return math.inf
            best = np.array([_best(loss, alone, mean, 1.0, False, unit)])
    of_model = merged_float(ask(_total_loss, loss, np.zeros(loss.n_outputs)))
    if not np.isfinite(best).all():
        return math.inf
    of_constant = merged_float(alone(_total_loss, loss, best))
    return of_model / of_constant if of_constant > 0 else math.inf


def _without_offset(
    y: np.ndarray, weight: np.ndarray | None, offset: np.ndarray | None, function: Callable[..., Any], *arguments: Any
) -> Any:
    return function(y, weight, None, *arguments)


def _total_loss(y: np.ndarray, weight: np.ndarray | None, offset: np.ndarray | None, loss: Loss, at: np.ndarray) -> int | None:
    """The exact sum of the weighted losses, `at` (float64[n_outputs]) beyond the offsets."""
    raw = np.repeat(at[:, None], len(y), axis=1)
    if offset is not None:
        raw += offset
    with np.errstate(all="ignore"):
        losses = loss.value(y, raw[0] if len(at) == 1 else raw.T)
    return total(losses if weight is None else losses * weight)


def _possible(shares: np.ndarray, weights: float) -> np.ndarray:
    """The classes' shares of the weight; if one is known of but has not occurred yet, with a row of each added (Laplace)."""
    return shares if shares.all() else (shares * weights + 1.0) / (weights + len(shares))


def _best(loss: Loss, ask: Ask, mean: float, weights: float, has_offset: bool, unit: float) -> float:
    """The constant that is best for all rows; weights : their total."""
    if loss.leaf_statistic != "newton":
        return _quantile(ask, loss.level, unit)
    if loss.is_classification:
        mean = float(_possible(np.array([mean, 1.0 - mean]), weights)[0])
    best = loss.best_constant(mean)
    if best is None or has_offset:
        best = minimize_convex(lambda at: _slopes(ask, loss, at), best or 0.0)
    return best


def _checked(y: np.ndarray, weight: np.ndarray | None, offset: np.ndarray | None, loss: Loss) -> str | None:
    return check_derivatives(loss, y) if len(y) else None


def _quantile(ask: Ask, level: float, unit: float) -> float:
    """The quantile of all targets, less their offsets."""
    found = find_quantiles(
        lambda *place: reduce(np.add, ask(_digits, 0.0, False, unit, *place)),
        lambda keys: reduce(np.minimum, ask(_next, 0.0, False, keys)),
        exact_level(level),
        1,
    )
    return float(found[0])


def _delta(ask: Ask, loss: Huber, best: float, unit: float) -> float:
    """Huber's first δ."""
    return find_size(
        exact_level(loss.alpha),
        lambda *place: reduce(np.add, ask(_digits, best, True, unit, *place)),
        lambda keys: reduce(np.minimum, ask(_next, best, True, keys)),
    )


def _digits(
    y: np.ndarray, weight: np.ndarray | None, offset: np.ndarray | None, at: float, sizes: bool, unit: float, *place: Any
) -> np.ndarray:
    counts = np.zeros((1, 256), np.int64)
    count_digits(y, _moved(y, offset, at), weight, None, sizes, None, 0, len(y), *place, unit, counts)
    return counts


def _next(
    y: np.ndarray, weight: np.ndarray | None, offset: np.ndarray | None, at: float, sizes: bool, keys: np.ndarray
) -> np.ndarray:
    following = np.full(1, ~np.uint64(0))
    next_keys(y, _moved(y, offset, at), None, sizes, None, 0, len(y), keys, following)
    return following


def _slopes(ask: Ask, loss: Loss, at: float) -> tuple[float, float]:
    """First and second derivative of the weighted loss, as the raw score of all rows moves away from their offsets."""
    slope, bend = map(merged_float, zip(*ask(_derivatives, loss, at), strict=True))
    return slope, bend


def _derivatives(
    y: np.ndarray, weight: np.ndarray | None, offset: np.ndarray | None, loss: Loss, at: float
) -> tuple[int | None, int | None]:
    raw = _moved(y, offset, at)
    with np.errstate(over="ignore", invalid="ignore"):
        gradient, hessian = loss.gradient(y, raw), loss.hessian(y, raw)
        if weight is not None:
            gradient, hessian = gradient * weight, hessian * weight
    return total(gradient), total(hessian)


def _largest(y: np.ndarray, weight: np.ndarray | None, offset: np.ndarray | None, loss: Loss, at: float) -> tuple[float, float]:
    """The largest loss, and the largest distance from the prediction."""
    if not len(y):
        return 0.0, 0.0
    raw = _moved(y, offset, at)
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.abs(loss.value(y, raw)).max()), float(np.abs(loss.inverse_link(raw) - y).max())


def _moved(y: np.ndarray, offset: np.ndarray | None, at: float) -> np.ndarray:
    return np.full(len(y), at) if offset is None else offset + at


def _sizes(y: np.ndarray, weight: np.ndarray | None, offset: np.ndarray | None) -> Sizes:
    if not len(y):
        return Sizes(0, 0.0, np.inf, -np.inf, False, True, 0.0)
    has_offset = offset is not None
    if weight is None:
        return Sizes(len(y), 1.0, float(y.min()), float(y.max()), has_offset, True, float(len(y)))
    is_whole = bool((weight == np.rint(weight)).all() and weight.max() <= 2.0**20)
    n_counted = float(weight.sum()) if is_whole else 0.0
    return Sizes(len(y), float(weight.max()), float(y.min()), float(y.max()), has_offset, is_whole, n_counted)


def _sums(
    y: np.ndarray, weight: np.ndarray | None, offset: np.ndarray | None, target_unit: float, weight_unit: float, is_whole: bool
) -> tuple[ExactSum, ExactSum]:
    """Sums of the weighted target and of the weights."""
    if weight is None:
        return ExactSum.of(y, target_unit), ExactSum(weight_unit, float(len(y)) * weight_unit)
    with np.errstate(over="ignore", invalid="ignore"):  # refused by `target_stats`
        targets = ExactSum.of(y, target_unit, weight) if is_whole else ExactSum.of(y * weight, target_unit)
    return targets, ExactSum.of(weight, weight_unit)


def _shares(
    y: np.ndarray, weight: np.ndarray | None, offset: np.ndarray | None, n_classes: int, weight_unit: float
) -> list[ExactSum]:
    """The weight of each class."""
    if weight is None:
        counts = np.bincount(y.astype(np.int64), minlength=n_classes)
        return [ExactSum(weight_unit, float(count) * weight_unit) for count in counts]
    return [ExactSum.of(weight[y == k], weight_unit) for k in range(n_classes)]
