"""A loss of groups, as a built-in loss would be written: the logistic loss of pairs within groups.

For two rows of a group with y_i > y_j the loss is log(1 + e^-(F_i - F_j)), divided by the number of rows of the group; half of
it is the loss of either row.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dboost import losses
from dboost.kernels.exp_log import exp64, log64
from dboost.losses.base import BaseLoss, Start, Targets
from dboost.losses.gradient_pass import block_terms, overloads


class PairTerms(NamedTuple):
    """The loss has no parameters."""

    unused: float = 0.0


@overloads(block_terms, PairTerms)
def _pair_terms(loss, y, raw, gradient, hessian, value, scratch):
    n = raw.size
    for i in range(n):
        g = h = v = 0.0
        for j in range(n):
            if y[i] != y[j]:
                sign = 1.0 if y[i] > y[j] else -1.0
                e = exp64(-sign * (raw[i] - raw[j]))
                p = e / (1.0 + e)
                g -= sign * p
                h += p * (1.0 - p)
                v += 0.5 * log64(1.0 + e)
        gradient[i], hessian[i], value[i] = np.float32(g / n), np.float32(h / n), v / n


def _zero(means: np.ndarray) -> np.ndarray:
    return np.zeros(1)


def _log_2(mean: float, spread: float) -> float:
    return math.log(2)


class Pairs(BaseLoss):
    """See the module."""

    name = "pairs"
    targets = Targets(groups="group")
    start = Start(constants=_zero, magnitude=_log_2)

    def terms(self) -> PairTerms:
        return PairTerms()


def register() -> None:
    """Make the loss one of the built-in ones of this process; also called on workers."""
    if Pairs not in losses.BUILT_IN:
        losses.BUILT_IN = (*losses.BUILT_IN, Pairs)


def mean_loss(y: np.ndarray, raw: np.ndarray, group: np.ndarray) -> float:
    """Return the loss of all rows, divided by their number."""
    higher = (group[:, None] == group) & (y[:, None] > y)
    losses_of_pairs = np.log1p(np.exp(raw - raw[:, None])) * higher
    sizes = (group[:, None] == group).sum(axis=1)
    return float((losses_of_pairs.sum(axis=1) / sizes).sum() / len(y))
