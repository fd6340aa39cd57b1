"""Two-class log loss with F the log odds of the second class: L = log(1 + e^F) - y F (L2_TreeBoost, Algorithm 5).

The paper writes y in {-1, 1} and F as half the log odds; F here is 2 F there, and the leaf values agree.

With e = exp(-|F|) the probability, p = 1 / (1 + e) or e / (1 + e), its Hessian p (1 - p) = e / (1 + e)² and the loss
max(F, 0) - y F + log(1 + e) come out accurate for scores of any size.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dboost.kernels.elementary import exp32, log1p32
from dboost.losses.base import Loss
from dboost.losses.passes import overloads_block_terms


class LogLossTerms(NamedTuple):
    """The loss has no parameters; counts_influence : see `Extremes.influence`."""

    counts_influence: bool = False


@overloads_block_terms
def _block_terms(loss, y, raw, gradient, hessian, value, scratch):
    if getattr(loss, "instance_class", None) is LogLossTerms:

        def terms(loss, y, raw, gradient, hessian, value, scratch):
            one, zero, two = np.float32(1), np.float32(0), np.float32(2)
            # The outputs serve as float32 copies of the inputs, so that the long loop is of one width.
            for i in range(raw.size):
                gradient[i] = np.float32(raw[i])
            for i in range(raw.size):
                hessian[i] = np.float32(y[i])
            for i in range(raw.size):
                score, label = gradient[i], hessian[i]
                e = exp32(-abs(score))
                inverse = one / (one + e)
                scratch[i] = (score if score > zero else zero) - label * score + log1p32(e)
                # p for the first class, -(1 - p) for the second, neither of them as a difference: that would be 0 too soon.
                side = one - two * label
                gradient[i] = side * (inverse if side * score >= zero else e * inverse)
                hessian[i] = e * inverse * inverse
            for i in range(raw.size):
                value[i] = scratch[i]

        return terms


class LogLoss(Loss):
    """Two-class log loss (binomial deviance)."""

    name = "log_loss"
    is_classification = True
    longest_step = 4.0
    response = "sigmoid"

    def terms(self) -> LogLossTerms:
        return LogLossTerms()

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return np.logaddexp(0.0, raw) - y * raw

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return self.inverse_link(raw) - y

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        p = self.inverse_link(raw)
        return p * (1 - p)

    def link(self, prediction: np.ndarray) -> np.ndarray:
        return np.log(prediction) - np.log1p(-np.asarray(prediction))

    def inverse_link(self, raw: np.ndarray) -> np.ndarray:
        e = np.exp(-np.abs(raw))
        return np.where(raw >= 0, 1.0, e) / (1.0 + e)

    def best_constant(self, mean: float) -> float:
        mean = min(max(mean, 1e-300), 1.0 - 2.0**-53)  # a class whose weight is next to nothing
        return float(np.log(mean) - np.log1p(-mean))

    def magnitude(self, mean: float, largest: float) -> float:
        return 64.0
