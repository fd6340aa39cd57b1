"""Losses whose leaf values are quantiles: absolute error, pinball loss, and Huber loss.

With u = y - F:

    absolute_error   |u|                                                  gradient -sign(u)      (LAD_TreeBoost, Algorithm 3)
    quantile(τ)      u (τ - 1[u < 0])                                     gradient 1[u < 0] - τ
    huber(α)         ½ u² if |u| <= δ, else δ (|u| - δ / 2)               gradient -clip(u, ±δ)   (M_TreeBoost, Algorithm 4)

Their second derivatives are zero or not useful, so trees are grown by least squares on the gradients (a Hessian of 1), and
leaves then get the value that minimises the loss itself: the median of u, its τ-quantile, or for huber one step from the
median, the mean of sign(u - ũ) min(δ, |u - ũ|) over the leaf's rows added to their median ũ, (33) in the paper.

Residuals below δ in size count by their size, those above by their sign only. δ is computed anew in each iteration, as the
α-quantile of |u| over all rows. Losses of different iterations would not be comparable if their δ differed; so the value of the
loss, and with it `train_loss` and the metric "huber", use the δ of the first iteration.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dboost.errors import DBoostError
from dboost.exact import FEW, Window, concatenated, exact_level, find_quantiles, find_size, rank_unit
from dboost.kernels import or_empty
from dboost.kernels.quantile_keys import (
    Buckets,
    Residuals,
    bucket_bounds,
    collect_buckets,
    count_buckets,
    count_digits,
    new_block_scratch,
    next_keys,
)
from dboost.losses.base import AllRows, BaseLoss, InitialRows, Leaves, Link, PartOfRows, RowStatistic, Start
from dboost.losses.gradient_pass import block_terms, overloads
from dboost.losses.terms import KernelTerms


class QuantileTerms(NamedTuple):
    """The loss of an error of 1, when the target is above the score and when it is below."""

    above: float
    below: float


class HuberTerms(NamedTuple):
    """δ for gradients, and for the value of the loss."""

    delta: float
    value_delta: float


@overloads(block_terms, QuantileTerms)
def _quantile_terms(loss, y, raw, gradient, hessian, value, scratch):
    above, below = loss.above, loss.below
    for i in range(raw.size):
        u = y[i] - raw[i]
        slope = -above if u > 0.0 else below
        gradient[i] = np.float32(slope if u != 0.0 else 0.0)
        value[i] = -slope * u
    for i in range(hessian.size):
        hessian[i] = np.float32(1)


@overloads(block_terms, HuberTerms)
def _huber_terms(loss, y, raw, gradient, hessian, value, scratch):
    delta, value_delta = loss.delta, loss.value_delta
    for i in range(raw.size):
        u = raw[i] - y[i]
        clipped = -delta if u < -delta else u
        gradient[i] = np.float32(delta if clipped > delta else clipped)
        size = abs(u)
        inner = size if size < value_delta else value_delta
        value[i] = inner * (size - 0.5 * inner)
    for i in range(hessian.size):
        hessian[i] = np.float32(1)


def residual_quantile(rows: AllRows, level: float) -> float:
    """Return the quantile of y - F over all rows."""
    unit = rank_unit(rows.max_weight, rows.n_rows)
    quantiles = find_quantiles(
        lambda *digits: rows.merged(residual_digits, np.add, False, unit, *digits),
        lambda keys: rows.merged(next_residuals, np.minimum, False, keys),
        exact_level(level),
        1,
    )
    return float(quantiles[0])


@dataclass(frozen=True)
class ResidualQuantile(RowStatistic):
    """The quantile of |y - F| over all rows; the smallest number that is not 0 if that is 0, else 1."""

    level: float
    expected: float | None = None  # about what it is, if that is known

    def of(self, rows: AllRows, before: float | None = None) -> float:
        unit = rank_unit(rows.max_weight, rows.n_rows)
        before = self.expected if before is None else before
        near = None
        if before is not None:
            near = Window(
                0.0,
                before * 2,
                lambda *buckets: rows.merged(_buckets, np.add, unit, *buckets),
                lambda *buckets: rows.merged(_keys, concatenated, unit, *buckets),
                rows.n_rows,
            )
        return find_size(
            exact_level(self.level),
            lambda *digits: rows.merged(residual_digits, np.add, True, unit, *digits),
            lambda keys: rows.merged(next_residuals, np.minimum, True, keys),
            near,
        )


def _residuals(rows: PartOfRows, are_sizes: bool) -> Residuals:
    """Return the residuals of the rows, or their absolute values, as one group."""
    ungrouped, all_rows, weight = or_empty(None, "uint8"), or_empty(None, "int64"), or_empty(rows.weight, "float64")
    target, column = rows.target.reshape(1, -1), np.zeros(1, np.int64)
    return Residuals(target, rows.raw[:1], column, weight, ungrouped, are_sizes, all_rows, 0, rows.target.size)


def residual_digits(rows: PartOfRows, are_sizes: bool, unit: float, prefix: np.ndarray, shift: np.uint64) -> np.ndarray:
    """Return the weights of the residuals by the next byte of their rank keys: int64[1, 256], see `quantile_keys`."""
    counts = np.zeros((1, 256), np.int64)
    count_digits(_residuals(rows, are_sizes), prefix, shift, unit, counts)
    return counts


def next_residuals(rows: PartOfRows, are_sizes: bool, keys: np.ndarray) -> np.ndarray:
    """Return the smallest rank key of a residual above this one: uint64[1]."""
    following = np.full(1, ~np.uint64(0))
    next_keys(_residuals(rows, are_sizes), keys, following)
    return following


def _buckets(rows: PartOfRows, unit: float, buckets: Buckets) -> np.ndarray:
    """Return the weights of the absolute residuals by bucket: int64[1, buckets.n], see `quantile_keys.count_buckets`."""
    counts = np.zeros((1, buckets.n), np.int64)
    count_buckets(_residuals(rows, True), buckets, unit, counts, new_block_scratch(counts.size))
    return counts


def _keys(rows: PartOfRows, unit: float, buckets: Buckets, wanted: np.ndarray) -> np.ndarray | None:
    """Return group 0, rank key and weight of the absolute residuals in the wanted buckets: uint64[n, 3], see `Window`."""
    keys = np.empty((FEW, 3), np.uint64)
    bounds, scratch = bucket_bounds(buckets, wanted), new_block_scratch()
    n = collect_buckets(_residuals(rows, True), buckets, wanted, *bounds, unit, keys, scratch)
    return keys[:n] if n <= FEW else None


def _start_at(level: float, rows: InitialRows) -> np.ndarray:
    return np.array([residual_quantile(rows.rows, level)])


class _Pinball(BaseLoss):
    """Pinball loss: `above` times the error if the target is above the score, `below` times if it is below."""

    leaves = (Leaves(statistic="quantile", constant_hessian=True),)
    exact_hessian = False
    above: float
    below: float

    @property
    def start(self) -> Start:  # type: ignore[override]
        return Start(of_rows=partial(_start_at, self.leaves[0].level))

    def terms(self) -> QuantileTerms:
        return QuantileTerms(self.above, self.below)

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        u = y - raw[0]
        return np.where(u > 0, self.above, -self.below) * u

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        u = y - raw
        return np.where(u > 0, -self.above, self.below) * (u != 0)


class AbsoluteError(_Pinball):
    """Absolute error; predictions estimate medians."""

    name = "absolute_error"
    above = below = 1.0


class Quantile(_Pinball):
    """Pinball loss; predictions estimate quantiles.

    Parameters
    ----------
    quantile : float
        The level τ, between 0 and 1, both excluded.
    """

    name = "quantile"
    link = Link(metrics=("mean_pinball_loss",))
    options: ClassVar[tuple[str, ...]] = ("quantile",)

    def __init__(self, quantile: float) -> None:
        self.level = quantile
        self.above, self.below = quantile, 1.0 - quantile
        self.leaves = (replace(self.leaves[0], level=quantile),)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "quantile": self.level}


class Huber(BaseLoss):
    """Squared error of small residuals, absolute error of large ones.

    Parameters
    ----------
    huber_alpha : float, default 0.9
        The share of rows α whose residuals count as small, between 0 and 1, both excluded.
    delta : float, optional
        The δ of the loss's value: that of the first iteration.
    """

    name = "huber"
    options: ClassVar[tuple[str, ...]] = ("huber_alpha",)
    learned: ClassVar[tuple[str, ...]] = ("delta",)
    start = Start(of_rows=partial(_start_at, 0.5), scales=True)
    leaves = (Leaves(statistic="clipped", constant_hessian=True),)
    exact_hessian = False

    def __init__(self, huber_alpha: float = 0.9, delta: float | None = None) -> None:
        self.alpha = huber_alpha
        self.statistic = ResidualQuantile(huber_alpha, delta)
        self._delta = delta

    @property
    def delta(self) -> float:
        """δ of the loss's value."""
        if self._delta is None:
            raise DBoostError("huber's delta is chosen by the training rows: it is not known before the first iteration")
        return self._delta

    def with_statistic(self, statistic: float) -> Huber:
        return Huber(self.alpha, statistic)

    def in_unit(self, unit: float) -> Huber:
        return Huber(self.alpha, self.delta / unit)

    def terms(self) -> HuberTerms:
        return HuberTerms(self.delta, self.delta)

    def pass_terms(self, statistic: float | None = None) -> KernelTerms:
        return KernelTerms(HuberTerms(self.delta if statistic is None else statistic, self.delta))

    def to_dict(self) -> dict[str, Any]:
        stored = {"name": self.name, "huber_alpha": self.alpha}
        return stored if self._delta is None else stored | {"delta": self._delta}

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        size = np.abs(y - raw[0])
        inner = np.minimum(size, self.delta)
        return inner * (size - 0.5 * inner)

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return np.clip(raw - y, -self.delta, self.delta)
