"""Squared error, and deviances with a logarithmic link.

Squared error is ½ (y - F)²: gradient F - y, Hessian 1; the best constant and the leaf values are means (LS_Boost, Algorithm 2).
It is half the deviance of the normal distribution.

With a logarithmic link, the raw score F is the logarithm of the expected target, μ = e^F. Poisson, gamma and Tweedie
distributions have variances μ, μ² and μ^p with 1 < p < 2. Half their deviance is

    poisson    y log(y / μ) - (y - μ)                                        y >= 0
    gamma      y / μ - 1 - log(y / μ)                                        y > 0
    tweedie    y^(2-p) / ((1-p)(2-p)) - y μ^(1-p) / (1-p) + μ^(2-p) / (2-p)  y >= 0

which is zero where μ = y, and its derivative by F is (μ - y) μ^(1-p), with p = 1 for poisson and 2 for gamma. So the best
constant is the logarithm of the mean in all three cases; offsets (such as log exposure) are added to F.

The terms of a row are computed in float64: targets and expectations may differ by many orders of magnitude.
"""

from __future__ import annotations

import math
from collections import namedtuple
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dboost.kernels.exp_log import LARGEST, exp, exp64, log, log64
from dboost.losses.base import BaseLoss, Leaves, Link, Start, Targets, of_mean
from dboost.losses.gradient_pass import block_terms, overloads

SquaredErrorTerms = namedtuple("SquaredErrorTerms", "unused", defaults=(0.0,))


@overloads(block_terms, SquaredErrorTerms)
def _block_terms(loss, y, raw, gradient, hessian, value, scratch):
    for i in range(raw.size):
        difference = raw[i] - y[i]
        gradient[i] = np.float32(difference)
        value[i] = 0.5 * difference * difference
    for i in range(hessian.size):
        hessian[i] = np.float32(1)


class SquaredError(BaseLoss):
    """Squared error, halved so that its Hessian is 1."""

    name = "squared_error"
    record = SquaredErrorTerms
    start = Start(constants=lambda means: means, magnitude=lambda _, spread: max(0.5 * spread * spread, 1e-200), scales=True)
    leaves = (Leaves(constant_hessian=True),)

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return 0.5 * (y - raw[0]) ** 2

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return raw - y


PoissonTerms = namedtuple("PoissonTerms", "unused", defaults=(0.0,))
GammaTerms = namedtuple("GammaTerms", "unused", defaults=(0.0,))


class TweedieTerms(NamedTuple):
    """`power` is p."""

    power: float


@overloads(block_terms, PoissonTerms)
def _poisson_terms(loss, y, raw, gradient, hessian, value, scratch):
    for i in range(raw.size):
        mean = exp64(raw[i])
        gradient[i] = np.float32(mean - y[i])
        hessian[i] = np.float32(mean)
        constant = y[i] * (log64(y[i]) - raw[i]) - y[i]
        value[i] = mean + (constant if y[i] > 0.0 else 0.0)


@overloads(block_terms, GammaTerms)
def _gamma_terms(loss, y, raw, gradient, hessian, value, scratch):
    for i in range(raw.size):
        ratio = y[i] * exp64(-raw[i])
        gradient[i] = np.float32(1.0 - ratio)
        hessian[i] = np.float32(ratio)
        value[i] = ratio - 1.0 - (log64(y[i]) - raw[i])


@overloads(block_terms, TweedieTerms)
def _tweedie_terms(loss, y, raw, gradient, hessian, value, scratch):
    lower, upper = 1.0 - loss.power, 2.0 - loss.power
    for i in range(raw.size):
        pull = y[i] * exp64(lower * raw[i])  # y μ^(1-p)
        push = exp64(upper * raw[i])  # μ^(2-p)
        gradient[i] = np.float32(push - pull)
        hessian[i] = np.float32(upper * push - lower * pull)
        constant = exp64(upper * log64(y[i])) / (lower * upper)
        value[i] = push / upper - pull / lower + (constant if y[i] > 0.0 else 0.0)


def _exp(x: np.ndarray) -> np.ndarray:
    return exp(np.clip(x, -LARGEST, LARGEST))


def _log(y: np.ndarray) -> np.ndarray:
    """Return log(y), and 0 where y is 0 (it is multiplied by y)."""
    return log(np.where(y > 0, y, 1.0))


class _LogLink(BaseLoss):
    """The common part of the three losses."""

    start = Start(constants=of_mean(lambda mean: math.log(max(mean, 1e-300))))
    leaves = (Leaves(longest_step=4.0),)


def _log_link(*metrics: str) -> Link:
    return Link(to_raw=log, to_prediction=_exp, form="exp", metrics=metrics)


class Poisson(_LogLink):
    """Half the Poisson deviance, for counts y >= 0."""

    name = "poisson"
    record = PoissonTerms
    targets = Targets(valid="non-negative")
    link = _log_link("mean_poisson_deviance")

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return y * (_log(y) - raw[0]) - y + _exp(raw[0])

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return _exp(raw) - y

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return _exp(raw)


class Gamma(_LogLink):
    """Half the gamma deviance, for positive amounts y > 0."""

    name = "gamma"
    record = GammaTerms
    targets = Targets(valid="strictly positive")
    link = _log_link("mean_poisson_deviance", "mean_gamma_deviance")

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return y * _exp(-raw[0]) - 1.0 - (_log(y) - raw[0])

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return 1.0 - y * _exp(-raw)

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return y * _exp(-raw)


class Tweedie(_LogLink):
    """Half the Tweedie deviance, for amounts that are often zero, y >= 0, with variance μ^p.

    Parameters
    ----------
    tweedie_power : float, default 1.5
        p, between 1 (poisson) and 2 (gamma), both excluded.
    """

    name = "tweedie"
    options: ClassVar[tuple[str, ...]] = ("tweedie_power",)
    targets = Targets(valid="non-negative")
    link = _log_link("mean_poisson_deviance", "mean_tweedie_deviance")

    def __init__(self, tweedie_power: float = 1.5) -> None:
        self.power = tweedie_power

    def terms(self) -> TweedieTerms:
        return TweedieTerms(self.power)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "tweedie_power": self.power}

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        lower, upper = 1.0 - self.power, 2.0 - self.power
        constant = np.where(y > 0, _exp(upper * _log(y)), 0.0) / (lower * upper)  # of y ** upper
        return constant - y * _exp(lower * raw[0]) / lower + _exp(upper * raw[0]) / upper

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return _exp((2.0 - self.power) * raw) - y * _exp((1.0 - self.power) * raw)

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        lower, upper = 1.0 - self.power, 2.0 - self.power
        return upper * _exp(upper * raw) - lower * y * _exp(lower * raw)
