"""Losses that are defined outside the package, against the interface of `dboost.losses.custom`: one whose gradients depend on a
statistic of all rows, one of two target columns, and one of two outputs.

**PseudoHuber** s² (√(1 + (u / s)²) - 1) of u = F - y, where s is the mean of |u| over all rows after the last trees.

**Interval**: the negative logarithm of the probability of lower < Y < upper, for Y = F plus a logistic error. With σ the
logistic function, a = lower - F and b = upper - F, the probability is σ(b) - σ(a), and its negative logarithm
log(1 + e^a) + log(1 + e^-b) - log(1 - e^(a - b)), which is accurate for scores of any size. The gradient is
1 - σ(b) - σ(a), the Hessian σ'(b) + σ'(a) with σ' = σ (1 - σ). One of the bounds may be infinite: the value is censored.

**NormalOfUser**: the negative log density of a normal distribution up to a constant, with two outputs, its mean m and the
logarithm s of its scale: s + ½ z² with z = (y - m) e^-s. The gradients are -z e^-s and 1 - z², the Hessians e^-2s and 2 z².
"""

from __future__ import annotations

import numpy as np

from dboost.exact import as_float, total
from dboost.losses import Loss
from dboost.losses.base import AllRows, PartOfRows, RowStatistic, Targets


def _sums(rows: PartOfRows) -> tuple[int, int]:
    weight = np.ones(rows.target.size) if rows.weight is None else rows.weight
    size, count = total(np.abs(rows.target - rows.raw[0]) * weight), total(weight)
    assert size is not None and count is not None
    return size, count


def _added(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return one[0] + other[0], one[1] + other[1]


class MeanSize(RowStatistic):
    """The weighted mean of |y - F|."""

    def of(self, rows: AllRows, before: float | None = None) -> float:
        size, count = map(as_float, rows.merged(_sums, _added))
        return size / count


class PseudoHuber(Loss):
    """See the module."""

    statistic = MeanSize()
    learned = ("scale",)

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def with_statistic(self, statistic: float) -> PseudoHuber:
        return type(self)(statistic)

    def _root(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return np.sqrt(1.0 + ((raw - y) / self.scale) ** 2)

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return self.scale**2 * (self._root(y, raw) - 1.0)

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return (raw - y) / self._root(y, raw)

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return self._root(y, raw) ** -3.0


def _middle_of_bounds(y: np.ndarray) -> np.ndarray:
    lower, upper = y
    with np.errstate(invalid="ignore"):
        middle = (lower + upper) / 2.0
    bound = np.where(np.isfinite(lower), lower, np.where(np.isfinite(upper), upper, 0.0))
    return np.where(np.isfinite(middle), middle, bound)


class Interval(Loss):
    """See the module."""

    targets = Targets(
        columns=("lower", "upper"), valid="lower < upper", invalid=lambda y: ~(y[0] < y[1]), location=_middle_of_bounds
    )

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return _softplus(y[0] - raw) + _softplus(raw - y[1]) - np.log(-np.expm1(y[0] - y[1]))

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return 1.0 - _logistic(y[1] - raw) - _logistic(y[0] - raw)

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        p, q = _logistic(y[1] - raw), _logistic(y[0] - raw)
        return p * (1.0 - p) + q * (1.0 - q)


class NormalOfUser(Loss):
    """See the module."""

    n_outputs = 2
    output_names = ("mean", "log_scale")

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return raw[1] + 0.5 * ((y - raw[0]) * np.exp(-raw[1])) ** 2

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        z = (y - raw[0]) * np.exp(-raw[1])
        return np.stack([-z * np.exp(-raw[1]), 1.0 - z**2])

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        z = (y - raw[0]) * np.exp(-raw[1])
        return np.stack([np.exp(-2.0 * raw[1]), 2.0 * z**2])


def _logistic(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return 1.0 / (1.0 + np.exp(-x))


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def intervals(rng: np.random.Generator, n: int, center: np.ndarray | float = 0.0) -> np.ndarray:
    """Return bounds, float64[2, n], of numbers around a center; a fifth is censored on the left and another on the right."""
    middle = center + rng.logistic(size=n)
    lower, upper = middle - rng.uniform(0.2, 2.0, n), middle + rng.uniform(0.2, 2.0, n)
    censored = rng.integers(0, 5, n)
    return np.stack([np.where(censored == 0, -np.inf, lower), np.where(censored == 1, np.inf, upper)])
