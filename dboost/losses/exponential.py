"""Exponential loss of two classes, that of AdaBoost: L = exp(-s F) with s = -1 for the first class and 1 for the second.

Its minimiser is half the log odds, so the probability of the second class is σ(2 F). Gradient -s e^(-s F) and Hessian
e^(-s F) differ in sign only: a leaf's Newton step is the difference of the classes' weights, divided by their sum.

Far on the wrong side a row's exponent is cut off at `exp32`'s largest.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dboost.kernels.elementary import exp32
from dboost.losses.base import Loss
from dboost.losses.passes import overloads_block_terms

_CUT_OFF = 87.0


class ExponentialTerms(NamedTuple):
    """The loss has no parameters."""

    unused: float = 0.0


@overloads_block_terms
def _block_terms(loss, y, raw, gradient, hessian, value, scratch):
    if getattr(loss, "instance_class", None) is ExponentialTerms:

        def terms(loss, y, raw, gradient, hessian, value, scratch):
            one, two = np.float32(1), np.float32(2)
            for i in range(raw.size):
                gradient[i] = np.float32(raw[i])
            for i in range(raw.size):
                hessian[i] = np.float32(y[i])
            for i in range(raw.size):
                sign = two * hessian[i] - one
                e = exp32(-sign * gradient[i])
                gradient[i] = -sign * e
                hessian[i] = e
            for i in range(raw.size):
                value[i] = hessian[i]

        return terms


class Exponential(Loss):
    """Exponential loss of two classes (AdaBoost's)."""

    name = "exponential"
    is_classification = True
    longest_step = 4.0
    response = "sigmoid"
    response_factor = 2.0

    def terms(self) -> ExponentialTerms:
        return ExponentialTerms()

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return np.exp(np.clip((1.0 - 2.0 * y) * raw, -_CUT_OFF, _CUT_OFF))

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return (1.0 - 2.0 * y) * self.value(y, raw)

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return self.value(y, raw)

    def link(self, prediction: np.ndarray) -> np.ndarray:
        return 0.5 * (np.log(prediction) - np.log1p(-np.asarray(prediction)))

    def inverse_link(self, raw: np.ndarray) -> np.ndarray:
        e = np.exp(-2.0 * np.abs(raw))
        return np.where(raw >= 0, 1.0, e) / (1.0 + e)

    def best_constant(self, mean: float) -> float:
        mean = min(max(mean, 1e-300), 1.0 - 2.0**-53)
        return float(0.5 * (np.log(mean) - np.log1p(-mean)))
