"""Squared error ½ (y - F)²: gradient F - y, Hessian 1; the best constant and the leaf values are means (LS_Boost, Algorithm
2)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dboost.losses.base import Loss
from dboost.losses.gradient_pass import overloads_block_terms


class SquaredErrorTerms(NamedTuple):
    """The loss has no parameters."""

    unused: float = 0.0


@overloads_block_terms
def _block_terms(loss, y, raw, gradient, hessian, value, scratch):
    if getattr(loss, "instance_class", None) is SquaredErrorTerms:

        def terms(loss, y, raw, gradient, hessian, value, scratch):
            for i in range(raw.size):
                difference = raw[i] - y[i]
                gradient[i] = np.float32(difference)
                value[i] = 0.5 * difference * difference
            if hessian is not None:
                for i in range(raw.size):
                    hessian[i] = np.float32(1)

        return terms


class SquaredError(Loss):
    """Squared error, halved so that its Hessian is 1."""

    name = "squared_error"
    constant_hessian = True

    def terms(self) -> SquaredErrorTerms:
        return SquaredErrorTerms()

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return 0.5 * (y - raw) ** 2

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return raw - y

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return np.ones_like(raw)

    def best_constant(self, mean: float) -> float:
        return mean

    def magnitude(self, mean: float, largest: float) -> float:
        return max(0.5 * largest * largest, 1e-200)
