"""Where raw scores start, and the units of exact sums: a conversation with whoever holds the rows.

`start_of` never sees a row. It asks: ``ask(function, *arguments)`` calls ``function(y, weight, offset, *arguments)`` for
each part of the training rows, wherever it lies, and returns the list of answers. Answers merge exactly (largest values,
sums of integers), so what follows from them does not depend on how the rows are divided. The first round tells sizes,
from which the units of exact sums follow; the second one sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from dboost.losses import Loss
from dboost.losses.softmax import SoftmaxLogLoss
from dboost.statistics.exact import ExactSum, unit_for

#: ``ask(function, *arguments)``: what ``function(y, weight, offset, *arguments)`` says of each part of the rows.
Ask = Callable[..., list[Any]]


@dataclass(frozen=True, eq=False)
class Start:
    """What is known of the training target before the first tree.

    Attributes
    ----------
    baseline : float64[n_outputs]
        Raw scores that minimise the loss as constants.
    total_weight : float
    magnitude, spread : float
        About how large a row's loss can be, and how far a target is from the mean at most.
    loss_unit : float
        Unit of exact sums of the weighted loss.
    """

    baseline: np.ndarray
    total_weight: float
    magnitude: float
    spread: float
    loss_unit: float


@dataclass(frozen=True)
class Sizes:
    """How many rows there are, and how large what they hold: merged by sums, minima and maxima."""

    n_rows: int
    heaviest: float
    lowest: float
    highest: float

    def merge(self, other: Sizes) -> Sizes:
        return Sizes(
            self.n_rows + other.n_rows,
            max(self.heaviest, other.heaviest),
            min(self.lowest, other.lowest),
            max(self.highest, other.highest),
        )


def in_one_part(y: np.ndarray, weight: np.ndarray | None, offset: np.ndarray | None) -> Ask:
    """The conversation with rows that lie here: float64[n] each, weight and offset also None."""
    return lambda function, *arguments: [function(y, weight, offset, *arguments)]


def start_of(loss: Loss, ask: Ask) -> Start:
    """From the targets, weights and offsets of all training rows."""
    sizes = reduce(Sizes.merge, ask(_sizes))
    n, heaviest = sizes.n_rows, sizes.heaviest
    weight_unit = unit_for(heaviest, n)
    if isinstance(loss, SoftmaxLogLoss):
        shares = [reduce(ExactSum.merge, of_class) for of_class in zip(*ask(_shares, loss.n_outputs, weight_unit), strict=True)]
        weights = np.array([share.finish() for share in shares])
        total = reduce(ExactSum.merge, shares).finish()
        baseline = loss.best_constants(weights / total)
        spread, magnitude = 1.0, loss.magnitude(0.0, 0.0)
    else:
        target_unit = unit_for(max(abs(sizes.lowest), abs(sizes.highest)) * heaviest, n)
        targets, weights = (reduce(ExactSum.merge, of) for of in zip(*ask(_sums, target_unit, weight_unit), strict=True))
        total = weights.finish()
        mean = targets.finish() / total
        baseline = np.array([loss.best_constant(mean)])
        spread = max(mean - sizes.lowest, sizes.highest - mean)
        magnitude = loss.magnitude(mean, spread)
    return Start(baseline, total, magnitude, spread, unit_for(magnitude * heaviest, n, spare_bits=10))


def _sizes(y: np.ndarray, weight: np.ndarray | None, offset: np.ndarray | None) -> Sizes:
    if not len(y):
        return Sizes(0, 0.0, np.inf, -np.inf)
    return Sizes(len(y), 1.0 if weight is None else float(weight.max()), float(y.min()), float(y.max()))


def _sums(
    y: np.ndarray, weight: np.ndarray | None, offset: np.ndarray | None, target_unit: float, weight_unit: float
) -> tuple[ExactSum, ExactSum]:
    """Sums of the weighted target and of the weights."""
    if weight is None:
        return ExactSum.of(y, target_unit), ExactSum(weight_unit, float(len(y)) * weight_unit)
    return ExactSum.of(y * weight, target_unit), ExactSum.of(weight, weight_unit)


def _shares(
    y: np.ndarray, weight: np.ndarray | None, offset: np.ndarray | None, n_classes: int, weight_unit: float
) -> list[ExactSum]:
    """The weight of each class."""
    if weight is None:
        counts = np.bincount(y.astype(np.int64), minlength=n_classes)
        return [ExactSum(weight_unit, float(count) * weight_unit) for count in counts]
    return [ExactSum.of(weight[y == k], weight_unit) for k in range(n_classes)]
