"""Half the Brier score: squared error of the probabilities of classes, for random forests.

With F_k the probability of class k: L = ½ Σ_k (F_k - [y = k])². Its minimiser over some rows is the share of each class among
them, so a leaf has these shares as values, and a split that lowers the loss most is one that lowers the Gini impurity most: at
the minimum the sum over n rows is ½ n Σ_k p_k (1 - p_k). The mean of the trees' probabilities is a probability, so raw scores
are predictions (L. Breiman, J. Friedman, R. Olshen, C. Stone, "Classification and Regression Trees", 1984, section 4.3; G.
Brier, "Verification of forecasts expressed in terms of probability", 1950).

The start scores, from which the sums of gradients count, are rounded to 20 bits, and rounding errors beyond 0 and 1 are removed
from predictions.

Of two classes there is one score, the probability of the second one, and L = ½ (F - y)², which is squared error.
"""

from __future__ import annotations

from collections import namedtuple
from functools import partial

import numpy as np

from dboost.kernels.exp_log import log
from dboost.losses.base import BaseLoss, Leaves, Link, Start, Targets, both_classes
from dboost.losses.classification import LossOfClasses, class_weights
from dboost.losses.deviance import SquaredError
from dboost.losses.gradient_pass import output_terms, overloads

BrierTerms = namedtuple("BrierTerms", "unused", defaults=(0.0,))


@overloads(output_terms, BrierTerms)
def _brier_terms(loss, y, raw, gradient, hessian, first, value, scratch):
    n, last = y.size, first + y.size
    for i in range(n):
        value[i] = 0.0
    for k in range(len(raw)):
        score, g, h = raw[k, first:last], gradient[k, first:last], hessian[k, first:last]
        for i in range(n):
            difference = score[i] - (1.0 if y[i] == k else 0.0)
            g[i] = np.float32(difference)
            value[i] += 0.5 * difference * difference
        for i in range(h.size):
            h[i] = np.float32(1)


def _rounded(mean: np.ndarray) -> np.ndarray:
    """Return probabilities whose differences from 0 and 1 are exact in 32 bits: then leaf values are exact shares."""
    return np.rint(np.multiply(mean, 2.0**20)) * 2.0**-20


def _log(probability: np.ndarray) -> np.ndarray:
    """Return logarithms; as in scikit-learn a probability counts as at least 2**-52, since those of leaves are often 0."""
    return log(np.maximum(probability, 2.0**-52))


def _log_losses(y: np.ndarray, raw: np.ndarray) -> np.ndarray:
    return -_log(np.where(y == 1, raw[0], 1.0 - raw[0]))


def _log_losses_of_classes(y: np.ndarray, raw: np.ndarray) -> np.ndarray:
    return -_log(raw[y.astype(np.int64), np.arange(len(y))])


def _clipped(raw: np.ndarray) -> np.ndarray:
    """Return the probabilities of both classes."""
    return both_classes(np.clip(raw[:, 0], 0.0, 1.0))


def _normed(raw: np.ndarray) -> np.ndarray:
    """Return the probabilities of all classes."""
    probability = np.maximum(raw, 0.0)
    return probability / probability.sum(axis=1, keepdims=True)


class HalfBrier(SquaredError):
    """Half the Brier score of two classes; the raw score is the probability of the second one."""

    name = "half_brier_score"
    targets = Targets(are_classes=True)
    start = Start(constants=_rounded, magnitude=lambda *_: 1.0)
    link = Link(
        finish=_clipped,
        uses_offset=False,
        are_probabilities=True,
        even_score=0.5,
        metrics=("log_loss",),
        log_losses=_log_losses,
    )

    def for_classes(self, n_classes: int) -> BaseLoss:
        return BrierOfClasses(n_classes) if n_classes > 2 else self


class BrierOfClasses(LossOfClasses):
    """Half the Brier score of three or more classes; raw scores are their probabilities."""

    name = "half_brier_score"
    record = BrierTerms
    link = Link(
        finish=_normed, uses_offset=False, are_probabilities=True, metrics=("log_loss",), log_losses=_log_losses_of_classes
    )

    def __init__(self, n_classes: int) -> None:
        super().__init__(n_classes, Leaves(constant_hessian=True, is_monotonic=False))

    @property
    def start(self) -> Start:  # type: ignore[override]
        sums = partial(class_weights, n_classes=self.n_outputs)
        return Start(constants=_rounded, sums=sums, magnitude=lambda *_: 1.0, spread=1.0)

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        differences = self.gradient(y, raw)
        total = np.zeros(raw.shape[1])
        for of_class in differences:  # in the order of the compiled function
            total += 0.5 * of_class * of_class
        return total

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return raw - (y == np.arange(len(raw))[:, None])
