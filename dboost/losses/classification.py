"""Losses of classification: log loss of two and of K classes, and exponential loss; decisions of lowest expected cost.

**Log loss of two classes** (`LogLoss`), with F the log odds of the second class: L = log(1 + e^F) - y F (L2_TreeBoost,
Algorithm 5). The paper writes y in {-1, 1} and F as half the log odds; F here is 2 F there, and the leaf values agree.

With e = exp(-|F|), the probability p = 1 / (1 + e) or e / (1 + e), its Hessian p (1 - p) = e / (1 + e)² and the loss
max(F, 0) - y F + log(1 + e) are accurate for scores of any size.

**Log loss of K classes** (`SoftmaxLogLoss`), with F_k the log odds of class k up to a constant: L = log Σ_k e^(F_k) - F_y
(LK_TreeBoost, Algorithm 6).

An iteration has K trees, all grown from the same probabilities p = softmax(F): gradient p_k - [y = k], Hessian p_k (1 - p_k).
The diagonal overstates the curvature, since all K scores move at once; (32) in the paper corrects this by the factor
(K - 1) / K of the leaf values, which is `step_factor` here.

All terms are relative to the row's largest score m: with e_k = exp(F_k - m), so that one of them is 1, and
``rest`` = Σ e_k - 1, summed without that 1, the probabilities are e_k / (1 + rest), their complements
(rest + (1 - e_k)) / (1 + rest), and the loss is m - F_y + log(1 + rest): accurate for scores of any size and for probabilities
arbitrarily close to 0 or 1.

**Exponential loss** of two classes (`Exponential`), that of AdaBoost: L = exp(-s F) with s = -1 for the first class and 1 for
the second. Its minimiser is half the log odds, so the probability of the second class is σ(2 F). Gradient -s e^(-s F) and
Hessian e^(-s F) differ in sign only: a leaf's Newton step is the difference of the classes' weights, divided by their sum. The
exponent is clipped to the range of `exp32`.
"""

from __future__ import annotations

import math
from collections import namedtuple
from functools import partial
from typing import Any

import numpy as np

from dboost._lazy_import import is_a
from dboost.errors import ParameterError
from dboost.exact import ExactSum
from dboost.kernels import kernel
from dboost.kernels.exp_log import exp, exp32, exp64, log, log1p32, log64
from dboost.losses.base import BaseLoss, Leaves, Link, Start, SumUnits, Targets, of_mean
from dboost.losses.gradient_pass import block_terms, output_terms, overloads

LogLossTerms = namedtuple("LogLossTerms", "unused", defaults=(0.0,))


@overloads(block_terms, LogLossTerms)
def _log_loss_terms(loss, y, raw, gradient, hessian, value, scratch):
    one, zero, two = np.float32(1), np.float32(0), np.float32(2)
    # The outputs serve as float32 copies of the inputs, so that the long loop has one width of number.
    for i in range(raw.size):
        gradient[i] = np.float32(raw[i])
    for i in range(raw.size):
        hessian[i] = np.float32(y[i])
    for i in range(raw.size):
        score, label = gradient[i], hessian[i]
        e = exp32(-abs(score))
        inverse = one / (one + e)
        scratch[i] = (score if score > zero else zero) - label * score + log1p32(e)
        # p for the first class, -(1 - p) for the second: not computed as a difference, which rounds to 0 too early.
        side = one - two * label
        gradient[i] = side * (inverse if side * score >= zero else e * inverse)
        hessian[i] = e * inverse * inverse
    for i in range(raw.size):
        value[i] = scratch[i]


@kernel
def _log_losses(y, raw, values):
    """Set the losses of rows in float64; evaluation sets sum them up after every iteration."""
    for i in range(values.size):
        score = raw[i]
        e = exp64(-abs(score))
        # log(1 + e) of the rounded sum, and what rounding took away from e.
        one_and_e = 1.0 + e
        log_sum = log64(one_and_e) + (e - (one_and_e - 1.0)) / one_and_e
        values[i] = (score if score > 0.0 else 0.0) - y[i] * score + log_sum


def _logit(prediction: np.ndarray) -> np.ndarray:
    """Return log(p / (1 - p))."""
    p = np.asarray(prediction, np.float64)
    rest = 1.0 - p
    # What rounding took away from p when it was subtracted.
    lost = np.divide(p - (1.0 - rest), rest, out=np.zeros(p.shape), where=rest > 0)
    return log(p) - log(rest) + lost


def _sigmoid(raw: np.ndarray) -> np.ndarray:
    e = exp(-np.abs(raw))
    return np.where(raw >= 0, 1.0, e) / (1.0 + e)


def _log_odds(mean: float) -> float:
    mean = min(max(mean, 1e-300), 1.0 - 2.0**-53)  # a class whose weight is almost zero
    return math.log(mean) - math.log1p(-mean)


class LogLoss(BaseLoss):
    """Two-class log loss (binomial deviance)."""

    name = "log_loss"
    record = LogLossTerms
    targets = Targets(are_classes=True)
    start = Start(constants=of_mean(_log_odds), magnitude=lambda *_: 64.0)
    leaves = (Leaves(longest_step=4.0),)
    link = Link(to_raw=_logit, to_prediction=_sigmoid, form="sigmoid")
    can_trim = True

    def for_classes(self, n_classes: int) -> BaseLoss:
        return SoftmaxLogLoss(n_classes) if n_classes > 2 else self

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return log_losses(y, raw)

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return _sigmoid(raw) - y

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        p = _sigmoid(raw)
        return p * (1 - p)


def log_losses(y: np.ndarray, raw: np.ndarray) -> np.ndarray:
    """Return the log losses of two classes by their log odds, float64[1, n]: float64[n]."""
    score = np.asarray(raw[0], np.float64)
    values = np.empty(score.shape)
    y = y if y.shape == score.shape else np.broadcast_to(y, score.shape)
    _log_losses(y.astype(np.float64, copy=False), np.ascontiguousarray(score), values)
    return values


_LOG_2 = np.float32(math.log(2.0))


SoftmaxTerms = namedtuple("SoftmaxTerms", "unused", defaults=(0.0,))


@overloads(output_terms, SoftmaxTerms)
def _softmax_terms(loss, y, raw, gradient, hessian, first, value, scratch):
    one, zero = np.float32(1), np.float32(0)
    n_classes, n, last = len(raw), y.size, first + y.size
    top, rest, ties = value, scratch, hessian[0, first:last]
    score = raw[0, first:last]
    for i in range(n):
        top[i] = score[i]
    for k in range(1, n_classes):
        score = raw[k, first:last]
        for i in range(n):
            top[i] = score[i] if score[i] > top[i] else top[i]
    for i in range(n):
        rest[i] = zero
        ties[i] = -one
    for k in range(n_classes):
        score, e = raw[k, first:last], gradient[k, first:last]
        for i in range(n):
            e[i] = np.float32(score[i] - top[i])
        for i in range(n):
            # A score that rounds to the largest one counts as a tie, since its e is 1.
            is_top = e[i] == zero
            e[i] = exp32(e[i])
            rest[i] += zero if is_top else e[i]
            ties[i] += one if is_top else zero
    for i in range(n):
        rest[i] += ties[i]
    # The loss; gradients still hold e_k. log(1 + rest) is the logarithm of a number below 2 plus that of a power of 2.
    log_sum = ties  # the memory is free again
    for i in range(n):
        z = rest[i]
        log_sum[i] = zero
        for power, large in ((8, 256.0), (4, 16.0), (2, 4.0), (1, 2.0)):
            is_large = z + one >= np.float32(large)
            z = (z + one) * np.float32(1.0 / large) - one if is_large else z
            log_sum[i] += np.float32(power) * _LOG_2 if is_large else zero
        log_sum[i] += log1p32(z)
    for i in range(n):
        value[i] = top[i] - raw[np.int64(y[i]), first + i] + np.float64(log_sum[i])
    for k in range(n_classes):
        g, h = gradient[k, first:last], hessian[k, first:last]
        for i in range(n):
            inverse = one / (one + rest[i])
            p, q = g[i] * inverse, (rest[i] + (one - g[i])) * inverse
            g[i] = -q if y[i] == k else p
            h[i] = p * q


def class_weights(y: np.ndarray, weight: np.ndarray | None, units: SumUnits, n_classes: int) -> list[ExactSum]:
    """Return the weight of each class, see `Start.sums`."""
    if weight is None:
        counts = np.bincount(y.astype(np.int64), minlength=n_classes)
        return [ExactSum(units.weight, int(count * units.weight)) for count in counts]
    return [ExactSum.of(weight[y == k], units.weight) for k in range(n_classes)]


class LossOfClasses(BaseLoss):
    """A loss of three or more classes, which are numbered 0, 1, 2, …, with a raw score for each."""

    targets = Targets(are_classes=True)

    def __init__(self, n_classes: int, leaves: Leaves) -> None:
        self.leaves = (leaves,) * n_classes

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "n_classes": self.n_outputs}


def _softmax(raw: np.ndarray) -> np.ndarray:
    """Return the probabilities of the classes: float64[n, n_classes]."""
    e = exp(raw - raw.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def _probabilities(raw: np.ndarray) -> np.ndarray:
    """Return the probabilities of the classes: float64[n_classes, n]."""
    return _softmax(raw.T).T


class SoftmaxLogLoss(LossOfClasses):
    """Log loss of three or more classes."""

    name = "log_loss"
    record = SoftmaxTerms
    link = Link(to_raw=log, to_prediction=_probabilities, finish=_softmax, form="softmax", uses_offset=False)
    can_trim = True
    has_classes = True

    def __init__(self, n_classes: int) -> None:
        factor = (n_classes - 1) / n_classes
        super().__init__(n_classes, Leaves(longest_step=4.0, step_factor=factor, is_monotonic=False))

    @property
    def start(self) -> Start:  # type: ignore[override]
        sums = partial(class_weights, n_classes=self.n_outputs)
        # There may be a class without rows.
        return Start(constants=lambda means: log(np.maximum(means, 1e-300)), sums=sums, magnitude=lambda *_: 64.0, spread=1.0)

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        raw = raw.T
        top = raw.max(axis=1)
        with np.errstate(under="ignore"):
            return top - raw[np.arange(len(raw)), y.astype(np.int64)] + log(exp(raw - top[:, None]).sum(axis=1))

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return (_softmax(raw.T) - (y[:, None] == np.arange(len(raw)))).T

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        p = _probabilities(raw)
        return p * (1 - p)


_CUT_OFF = 87.0


ExponentialTerms = namedtuple("ExponentialTerms", "unused", defaults=(0.0,))


@overloads(block_terms, ExponentialTerms)
def _exponential_terms(loss, y, raw, gradient, hessian, value, scratch):
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


def _half_logit(prediction: np.ndarray) -> np.ndarray:
    return 0.5 * _logit(prediction)


def _sigmoid_of_double(raw: np.ndarray) -> np.ndarray:
    e = exp(-2.0 * np.abs(raw))
    return np.where(raw >= 0, 1.0, e) / (1.0 + e)


def _log_losses_of_half(y: np.ndarray, raw: np.ndarray) -> np.ndarray:
    return log_losses(y, 2.0 * raw)


class Exponential(BaseLoss):
    """Exponential loss of two classes (that of AdaBoost)."""

    name = "exponential"
    record = ExponentialTerms
    targets = Targets(are_classes=True)
    start = Start(constants=of_mean(lambda mean: 0.5 * _log_odds(mean)))
    leaves = (Leaves(longest_step=4.0),)
    link = Link(
        to_raw=_half_logit,
        to_prediction=_sigmoid_of_double,
        form="sigmoid",
        factor=2.0,
        metrics=("log_loss",),
        log_losses=_log_losses_of_half,
    )

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return self.hessian(y, raw)[0]

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return (1.0 - 2.0 * y) * self.hessian(y, raw)

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return exp(np.clip((1.0 - 2.0 * y) * raw, -_CUT_OFF, _CUT_OFF))


def read_costs(costs: Any, classes: np.ndarray) -> np.ndarray:
    """Return a matrix of costs as float64[n_classes, n_classes].

    Parameters
    ----------
    costs : matrix of numbers, one row and column for each class
        A pandas frame whose rows and columns are labelled by all classes may have them in any order.
    classes : array [n_classes]

    Raises
    ------
    ParameterError
        When it is not a matrix of finite numbers, one row and column for each class.
    """
    n = len(classes)
    if is_a(costs, "pandas", "DataFrame"):
        labels, axes = set(classes.tolist()), (costs.index.tolist(), costs.columns.tolist())
        if all(len(axis) == n and set(axis) == labels for axis in axes):
            costs = costs.reindex(index=classes, columns=classes)
        elif costs.shape != (n, n):
            raise _costs_error(classes, f"the frame has shape {costs.shape}; in decide the rows come first: decide(X, costs)")
        elif any(axis != list(range(n)) for axis in axes):
            raise _costs_error(classes, f"a frame's rows and columns must be labelled by them, not {axes[0]} and {axes[1]}")
    try:
        matrix = np.asarray(costs, np.float64)
    except (TypeError, ValueError):
        problem = "some are not" if isinstance(costs, list | tuple | np.ndarray) else f"not a {type(costs).__name__}"
        raise _costs_error(classes, problem) from None
    if matrix.shape != (n, n):
        raise _costs_error(classes, f"the shape is {matrix.shape}")
    if not np.isfinite(matrix).all():
        raise _costs_error(classes, "some are not finite")
    return matrix


def _costs_error(classes: np.ndarray, reason: str) -> ParameterError:
    n, names = len(classes), ", ".join(map(repr, classes.tolist()[:5]))
    example = [[float(k != j) for j in range(n)] for k in range(n)] if n <= 3 else f"1 - numpy.eye({n})"
    return ParameterError(
        f"costs must be a matrix of numbers of shape {n, n}, with a row for each predicted class and a column for each true "
        f"class ({names}{', …' * (n > 5)}), for example {example}; {reason}"
    )


def cheapest(probabilities: np.ndarray, costs: np.ndarray) -> np.ndarray:
    """Return argmin over k of Σ_j costs[k, j] p_j for each row (int64[n]); of classes with equal cost, the first.

    probabilities : float64[n, n_classes]; costs : float64[n_classes, n_classes].
    """
    expected = np.zeros(probabilities.shape)
    for of_class, cost in zip(probabilities.T, costs.T, strict=True):  # BLAS may round differently on other processors
        expected += of_class[:, None] * cost
    return expected.argmin(axis=1)
