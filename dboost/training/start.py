"""Where raw scores start, and the units of exact sums."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dboost.losses import Loss
from dboost.losses.softmax import SoftmaxLogLoss
from dboost.statistics.exact import ExactSum, unit_for


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


def start_of(loss: Loss, y: np.ndarray, weight: np.ndarray | None) -> Start:
    """From the targets (float64[n]) and weights (float64[n] or None) of all training rows."""
    n = len(y)
    heaviest = 1.0 if weight is None else float(weight.max())
    total = float(n) if weight is None else ExactSum.of(weight, unit_for(heaviest, n)).finish()
    if isinstance(loss, SoftmaxLogLoss):
        baseline = loss.best_constants(_shares(y, weight, loss.n_outputs, unit_for(heaviest, n)) / total)
        spread, magnitude = 1.0, loss.magnitude(0.0, 0.0)
    else:
        unit = unit_for(float(np.abs(y).max()) * heaviest, n)
        mean = ExactSum.of(y if weight is None else y * weight, unit).finish() / total
        baseline = np.array([loss.best_constant(mean)])
        spread = float(np.abs(y - mean).max())
        magnitude = loss.magnitude(mean, spread)
    return Start(baseline, total, magnitude, spread, unit_for(magnitude * heaviest, n, spare_bits=10))


def _shares(y: np.ndarray, weight: np.ndarray | None, n_classes: int, unit: float) -> np.ndarray:
    """The exact weight of each class."""
    if weight is None:
        return np.bincount(y.astype(np.int64), minlength=n_classes).astype(np.float64)
    return np.array([ExactSum.of(weight[y == k], unit).finish() for k in range(n_classes)])
