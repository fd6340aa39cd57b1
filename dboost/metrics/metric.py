"""Metrics on evaluation sets, with scikit-learn's names.

A metric is a reduction of three functions: `chunk` turns the rows of a shard into a small exact statistic, `merge` adds two of
them, `finish` computes the metric. Merging is exact and associative, so a metric, and with it early stopping, is a function of
the rows and not of their partitioning. Means are exact sums; the area under the ROC curve merges counts per distinct score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dboost.errors import ParameterError
from dboost.losses import Exponential, Gamma, LogLoss, Loss, Poisson, Quantile, Tweedie
from dboost.metrics.exact_sum import ExactSum, unit_for


@dataclass(frozen=True)
class LossMagnitude:
    """Bounds of the summed values: the same for all parts of an evaluation set, so that their exact sums can be merged.

    loss, error : about the largest loss of a row, and the largest distance of its target from the prediction; weight : the
    largest weight; n_rows : of all parts.
    """

    loss: float
    error: float
    weight: float
    n_rows: int

    def unit(self, largest: float) -> float:
        """Return the unit of an exact sum of weighted numbers of about that size."""
        return unit_for(largest * self.weight, self.n_rows, spare_bits=10)

    @property
    def weight_unit(self) -> float:
        return unit_for(self.weight, self.n_rows)


@dataclass(frozen=True)
class ScoredRows:
    """Evaluation rows as a metric gets them.

    target, weight (or None) : float64[n]; raw : float64[n] or float64[n, n_outputs]; loss : the loss of the fit; block : the
    rows as a matrix, for metrics with `wants_block`.
    """

    target: np.ndarray
    raw: np.ndarray
    weight: np.ndarray | None
    loss: Loss
    size: LossMagnitude
    block: np.ndarray | None = None


@dataclass(frozen=True)
class Metric:
    """A named metric. `larger_is_better` decides what early stopping counts as an improvement.

    `wants_block` : the metric needs `ScoredRows.block`.
    """

    name: str
    larger_is_better: bool
    chunk: Callable[[ScoredRows], Any]
    merge: Callable[[Any, Any], Any]
    finish: Callable[[Any], float]
    wants_block: bool = False


def _mean_of(
    name: str,
    per_row: Callable[[ScoredRows], np.ndarray],
    largest: Callable[[LossMagnitude], float],
    *,
    larger: bool = False,
    after: Callable[[float], float] | None = None,
) -> Metric:
    """Return the metric "weighted mean of a number per row", which is about `largest` at most; NaN where the mean overflows."""

    def chunk(rows: ScoredRows) -> tuple[ExactSum, ExactSum]:
        size = rows.size
        with np.errstate(over="ignore", invalid="ignore"):
            values, unit = per_row(rows), size.unit(largest(size))
            if rows.weight is None:
                return ExactSum.of(values, unit), ExactSum(1.0, len(values))
            return ExactSum.of(values * rows.weight, unit), ExactSum.of(rows.weight, size.weight_unit)

    def merge(a: tuple[ExactSum, ExactSum], b: tuple[ExactSum, ExactSum]) -> tuple[ExactSum, ExactSum]:
        return a[0].merge(b[0]), a[1].merge(b[1])

    def finish(total: tuple[ExactSum, ExactSum]) -> float:
        mean = total[0].finish() / total[1].finish()
        return mean if after is None else after(mean)

    return Metric(name, larger, chunk, merge, finish)


def _auc_chunk(rows: ScoredRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the distinct scores, ascending, with the weight of each class at each."""
    # Weights as integers: their sums are exact.
    weight = np.ones(len(rows.raw)) if rows.weight is None else np.rint(rows.weight * rows.size.weight_unit)
    return _by_score(rows.raw, weight * (rows.target == 0), weight * (rows.target == 1))


def _by_score(score: np.ndarray, zeros: np.ndarray, ones: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    distinct, at = np.unique(score, return_inverse=True)
    return distinct, np.bincount(at, zeros, len(distinct)), np.bincount(at, ones, len(distinct))


def _auc_merge(a: tuple[np.ndarray, ...], b: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    return _by_score(*(np.concatenate(pair) for pair in zip(a, b, strict=True)))


def _auc_finish(counts: tuple[np.ndarray, ...]) -> float:
    _, zeros, ones = counts
    below = np.cumsum(zeros) - zeros
    pairs = zeros.sum() * ones.sum()
    return float((ones * (below + 0.5 * zeros)).sum() / pairs) if pairs > 0 else float("nan")


def _prediction(rows: ScoredRows) -> np.ndarray:
    return rows.loss.inverse_link(rows.raw)


def _squared_error(rows: ScoredRows) -> np.ndarray:
    return (_prediction(rows) - rows.target) ** 2


def _one(size: LossMagnitude) -> float:
    return 1.0


def _accuracy(rows: ScoredRows) -> np.ndarray:
    return ((rows.raw > 0) == (rows.target == 1)).astype(np.float64)


def _accuracy_of_many(rows: ScoredRows) -> np.ndarray:
    return (rows.raw.argmax(axis=1) == rows.target).astype(np.float64)


def _log_loss(rows: ScoredRows) -> np.ndarray:
    """Return the log loss of exponential-loss scores, which are half the log odds."""
    return LogLoss().value(rows.target, 2.0 * rows.raw)


def _twice_the_loss(rows: ScoredRows) -> np.ndarray:
    return 2.0 * rows.loss.value(rows.target, rows.raw)


# Deviances, for losses whose raw score is the logarithm of the prediction too.
_POISSON = _mean_of("mean_poisson_deviance", lambda r: 2.0 * Poisson().value(r.target, r.raw), lambda size: size.loss)
_GAMMA = _mean_of("mean_gamma_deviance", lambda r: 2.0 * Gamma().value(r.target, r.raw), lambda size: size.loss)
_ANY = (
    _mean_of("mean_squared_error", _squared_error, lambda size: size.error * size.error),
    _mean_of("root_mean_squared_error", _squared_error, lambda size: size.error * size.error, after=math.sqrt),
    _mean_of("mean_absolute_error", lambda r: np.abs(_prediction(r) - r.target), lambda size: size.error),
)
_TWO_CLASSES = (
    _mean_of("accuracy", _accuracy, _one, larger=True),
    _mean_of("brier_score", _squared_error, _one),
    Metric("roc_auc", True, _auc_chunk, _auc_merge, _auc_finish),
)
#: Metrics of single losses, in addition to those of their kind.
_OF_LOSS: dict[type[Loss], tuple[Metric, ...]] = {
    Exponential: (_mean_of("log_loss", _log_loss, lambda size: size.loss),),
    Quantile: (_mean_of("mean_pinball_loss", lambda r: r.loss.value(r.target, r.raw), lambda size: size.loss),),
    Poisson: (_POISSON,),
    Gamma: (_POISSON, _GAMMA),
    Tweedie: (_POISSON, _mean_of("mean_tweedie_deviance", _twice_the_loss, lambda size: size.loss)),
}
_MANY_CLASSES = (_mean_of("accuracy", _accuracy_of_many, _one, larger=True),)


def find_metrics(wanted: Any, loss: Loss) -> list[Metric]:
    """Return metrics by name (one, several, or None for the loss itself).

    Raises
    ------
    ParameterError
        For unknown names; the message lists those that are valid for the loss.
    """
    own = _mean_of(loss.name, lambda r: r.loss.value(r.target, r.raw), lambda size: size.loss)
    others = _ANY if not loss.is_classification else _TWO_CLASSES if loss.n_outputs == 1 else _MANY_CLASSES
    known = {metric.name: metric for metric in (own, *_OF_LOSS.get(type(loss), ()), *others)}
    if isinstance(wanted, str) or not isinstance(wanted, Iterable):
        names = [loss.name if wanted is None else wanted]
    else:
        names = list(wanted)
    found = []
    for name in names:
        if not isinstance(name, str) or name not in known:
            raise ParameterError(f"eval_metric {name!r} does not go with loss {loss.name!r}; choose from {', '.join(known)}")
        found.append(known[name])
    return found
