"""The metrics that dboost knows by name: scikit-learn's names, and the short ones of XGBoost and LightGBM.

Means are exact sums. What counts classes (F1, balanced accuracy) is computed from exact sums of weights by true and predicted
class, the areas under curves from those by distinct score, R² from sums without rounding.

**Undefined metrics.** A metric is NaN on rows for which no prediction can change it, because it says nothing about a model then
and early stopping could not choose by it: the area under the ROC curve, average precision, NDCG and MAP if every order of the
rows is equally good (rows of one class, equal targets, no or only relevant rows), F1 of two classes without a row of the second
one, and R² of equal targets. Scikit-learn returns 0 or 1 for some of these. A mean that overflows is NaN, too.

**Metrics of a ranking** (`ndcg`, `ndcg@k`, `map` and `map@k`). All rows of an evaluation set are one query: rows are ranked by
their prediction, from the highest down, and the target of a row is its relevance. Both metrics are averaged over all orders of
rows with equal predictions, so they depend on neither the order of the rows nor their partitioning.

**NDCG.** With the targets y as gains, as in `sklearn.metrics.ndcg_score`::

    DCG@k = sum of  E[y at position i] / log2(i + 1)  over the positions i = 1 … min(k, n)
    NDCG@k = DCG@k / DCG@k of the rows in the order of their targets

E[…] is the mean target of the rows that are tied at this position.

**MAP.** Of one query, that is average precision, as in XGBoost and LightGBM. Relevant are rows with a target above 0::

    AP@k = sum of  P(i) [the row at position i is relevant]  over i = 1 … min(k, n)  /  min(k, number of relevant rows)
    P(i) = number of relevant rows at the positions 1 … i  /  i

Without k it is over all positions. Let a position be the j-th one of a group of t tied rows, of
which r are relevant, after R relevant rows. The expectation of its term is
``r / t * (R + 1 + (j - 1) (r - 1) / (t - 1)) / i`` (McSherry and Najork 2008).

A part of the rows is reduced to its distinct predictions, down to that of the k-th row, with the number of rows at each and the
exact sum of their targets: at most k predictions are sent, however many rows are tied. Sums of float64 targets are kept as
integers by exponent, so merging is exact.

References
----------
Järvelin, K. and Kekäläinen, J. (2002). Cumulated gain-based evaluation of IR techniques. ACM TOIS 20(4).
McSherry, F. and Najork, M. (2008). Computing information retrieval performance measures efficiently in the presence of tied
scores. ECIR 2008.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from difflib import get_close_matches
from fractions import Fraction
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np

from dboost.display import is_half_square, number
from dboost.errors import DataError, ParameterError
from dboost.exact import ExactSum, total
from dboost.losses import BaseLoss, Gamma, Poisson
from dboost.metrics.metric import LossMagnitude, Metric, MetricReduction, ScoredRows, of_function, prediction_of

#: Names of the metrics, with and without @k.
_RANKING = ("ndcg", "map")
#: k of a metric without one.
_ALL = sys.maxsize


class _Top(NamedTuple):
    """The rows of the k largest keys, and all others that equal the last of these, by key and exponent of the summed values.

    key : float64[m], descending; exponent : int64[m], ascending for each key; sums : int64[m, 3], the number of rows and the
    sums of the upper and lower halves of the mantissas.
    """

    key: np.ndarray
    exponent: np.ndarray
    sums: np.ndarray

    @classmethod
    def of(cls, key: np.ndarray, values: np.ndarray, k: int) -> _Top:
        """Return the top rows of a part with the sums of some values ≥ 0."""
        if 0 < k < len(key):
            top = key >= np.partition(key, len(key) - k)[len(key) - k]
            key, values = key[top], values[top]
        mantissa, exponent = np.frexp(values)
        whole = (mantissa * 2.0**53).astype(np.int64)
        sums = np.column_stack((np.ones_like(whole), whole >> 27, whole & (2**27 - 1)))
        return cls._grouped(key, exponent.astype(np.int64), sums, k)

    @classmethod
    def _grouped(cls, key: np.ndarray, exponent: np.ndarray, sums: np.ndarray, k: int) -> _Top:
        if not len(key):
            return cls(key, exponent, sums)
        order = np.lexsort((exponent, -key))
        key, exponent = key[order], exponent[order]
        first = np.flatnonzero(np.append(True, (key[1:] != key[:-1]) | (exponent[1:] != exponent[:-1])))
        key, exponent, sums = key[first], exponent[first], np.add.reduceat(sums[order], first, axis=0)
        kth = np.searchsorted(sums[:, 0].cumsum(), k)
        if kth < len(key):
            top = key >= key[kth]
            key, exponent, sums = key[top], exponent[top], sums[top]
        return cls(key, exponent, sums)

    def merge(self, other: _Top, k: int) -> _Top:
        key, exponent, sums = (np.concatenate(pair) for pair in zip(self, other, strict=True))
        return self._grouped(key, exponent, sums, k)

    def by_key(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of rows and the sum of the values at each distinct key, from the largest down."""
        first = np.flatnonzero(np.append(True, self.key[1:] != self.key[:-1]))
        n_rows, upper, lower = self.sums.T
        values = np.ldexp(upper * 2.0**27 + lower, self.exponent - 53)
        return np.add.reduceat(n_rows, first), np.add.reduceat(values, first)


class _Ranking(NamedTuple):
    """The statistic of some rows.

    by_score : the top rows by prediction, with the sums of targets (NDCG) or of relevant rows (MAP); by_target : the top rows
    by target; n_relevant : of all rows; least_target : of all rows; weights : the least and the largest one.
    """

    by_score: _Top
    by_target: _Top
    n_relevant: int
    least_target: float
    weights: tuple[float, float]


def ranking_metric(name: str, *, classes: bool) -> MetricReduction:
    """Return the metric of the name, such as "ndcg@10".

    classes : whether the targets are two classes, of which the second one is relevant.

    Raises
    ------
    ParameterError
        When k is no positive integer.
    """
    kind, at, digits = name.partition("@")
    if at and not (digits.isascii() and digits.isdigit() and int(digits) > 0):
        raise ParameterError(f"eval_metric {name!r}: k in {kind}@k must be a positive integer, as in {kind}@10")
    k = int(digits) if at else _ALL
    is_ndcg = kind == "ndcg"
    chunk, finish = partial(_chunk, k, is_ndcg, classes), partial(_finish, name, k, _ndcg if is_ndcg else _map)
    return MetricReduction(name, True, chunk, partial(_merge, k), finish)


def _chunk(k: int, of_ndcg: bool, classes: bool, rows: ScoredRows) -> _Ranking:
    # The raw score ranks two classes: probabilities near 1 are equal after rounding.
    score, target, weight = rows.raw[0] if classes else prediction_of(rows), rows.target, rows.weight
    if weight is not None:
        counted = weight > 0
        score, target, weight = score[counted], target[counted], weight[counted]
    relevant = target > 0
    values = np.abs(target) if of_ndcg else relevant.astype(np.float64)
    nothing = np.empty(0)
    return _Ranking(
        _Top.of(score, values, k),
        _Top.of(values, values, k) if of_ndcg else _Top.of(nothing, nothing, k),
        int(np.count_nonzero(relevant)),
        float(target.min(initial=math.inf)),
        (1.0, 1.0) if weight is None else (float(weight.min(initial=math.inf)), float(weight.max(initial=0.0))),
    )


def _merge(k: int, a: _Ranking, b: _Ranking) -> _Ranking:
    return _Ranking(
        a.by_score.merge(b.by_score, k),
        a.by_target.merge(b.by_target, k),
        a.n_relevant + b.n_relevant,
        min(a.least_target, b.least_target),
        (min(a.weights[0], b.weights[0]), max(a.weights[1], b.weights[1])),
    )


def _finish(name: str, k: int, compute: Callable[[_Ranking, int], float], ranking: _Ranking) -> float:
    if ranking.least_target < 0:
        raise DataError(
            f"eval_metric {name!r}: targets are relevances and must not be negative, but one is {number(ranking.least_target)}"
        )
    least, largest = ranking.weights
    if least < largest:
        raise ParameterError(
            f"eval_metric {name!r} ranks all rows of an evaluation set, whose weights must therefore be equal, but they are "
            f"between {number(least)} and {number(largest)}: give the evaluation set without weights, or choose another metric"
        )
    return compute(ranking, k) if len(ranking.by_score.key) else math.nan


def _ndcg(ranking: _Ranking, k: int) -> float:
    if ranking.by_target.key[0] == ranking.least_target:  # all targets are equal
        return math.nan
    return _dcg(ranking.by_score, k) / _dcg(ranking.by_target, k)


def _dcg(top: _Top, k: int) -> float:
    n_rows, gain = top.by_key()
    last = n_rows.cumsum()
    discounts = np.append(0.0, np.cumsum(1.0 / np.log2(np.arange(2, min(k, last[-1]) + 2))))
    return float((gain / n_rows * np.diff(discounts[np.minimum(np.append(0, last), k)])).sum())


def _map(ranking: _Ranking, k: int) -> float:
    if not ranking.n_relevant or ranking.least_target > 0:  # no row is relevant, or all are
        return math.nan
    tied, relevant = ranking.by_score.by_key()
    last = tied.cumsum()
    position = np.arange(1, min(k, last[-1]) + 1)
    group = np.searchsorted(last, position)
    before, t, r = (relevant.cumsum() - relevant)[group], tied[group], relevant[group]
    j = position - (last - tied)[group]
    hits = before + 1.0 + (j - 1) * (r - 1) / np.maximum(t - 1, 1)
    return float((r / t * hits / position).sum() / min(k, ranking.n_relevant))


#: Other names of metrics: short ones, and those of XGBoost, LightGBM, CatBoost and scikit-learn's functions.
ALIASES = {
    alias: name
    for name, aliases in {
        "root_mean_squared_error": "rmse l2_root RMSE",
        "mean_squared_error": "mse l2 regression_l2",
        "mean_absolute_error": "mae l1 regression_l1 MAE",
        "mean_absolute_percentage_error": "mape MAPE",
        "r2": "R2 r2_score",
        "log_loss": "logloss binary_logloss multi_logloss mlogloss Logloss MultiClass",
        "roc_auc": "auc AUC roc_auc_score",
        "average_precision": "aucpr average_precision_score",
        "zero_one_loss": "error binary_error multi_error merror",
        "accuracy": "acc Accuracy accuracy_score",
        "balanced_accuracy": "BalancedAccuracy balanced_accuracy_score",
        "brier_score": "brier_score_loss BrierScore",
        "f1": "F1 f1_score",
    }.items()
    for alias in aliases.split()
}


def _mean_of(
    name: str,
    per_row: Callable[[ScoredRows], np.ndarray],
    largest: Callable[[LossMagnitude], float],
    *,
    greater: bool = False,
    after: Callable[[float], float] | None = None,
) -> MetricReduction:
    """Return the metric "weighted mean of a number per row", which is about `largest` at most; NaN where the mean overflows."""

    def chunk(rows: ScoredRows) -> tuple[ExactSum, ExactSum]:
        return reduce(merge, map(of_piece, rows.pieces()))

    def of_piece(rows: ScoredRows) -> tuple[ExactSum, ExactSum]:
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

    return MetricReduction(name, greater, chunk, merge, finish)


# Means of numbers without a bound, and R²: sums without rounding.


def _weights(rows: ScoredRows) -> np.ndarray:
    return np.ones(len(rows.target)) if rows.weight is None else rows.weight


def _percentage_chunk(rows: ScoredRows) -> tuple[int | None, ...]:
    error = np.abs(prediction_of(rows) - rows.target) / np.maximum(np.abs(rows.target), np.finfo(np.float64).eps)
    return total(error * _weights(rows)), total(_weights(rows))


def _percentage_finish(totals: tuple[int | None, ...]) -> float:
    error, weight = totals
    return math.nan if error is None or not weight else _ratio(error, weight)


def _r2_chunk(rows: ScoredRows) -> tuple[int | None, ...]:
    """Return the sums of w (y - p)², w, w y, and w y² without rounding of the last, which cancel if the mean is large."""
    weight, y = _weights(rows), rows.target
    residual = prediction_of(rows) - y
    weighted, rest = _product(weight, y)
    square, rest_of_square = _product(weighted, y)
    parts = total(square), total(rest_of_square), total(rest * y)
    squares = None if None in parts else sum(part for part in parts if part is not None)
    means = total(weighted), total(rest)
    mean = None if None in means else sum(part for part in means if part is not None)
    with np.errstate(over="ignore"):  # the metric is NaN then
        squared_residuals = total(weight * residual * residual)
    return squared_residuals, total(weight), mean, squares


def _r2_finish(totals: tuple[int | None, ...]) -> float:
    if any(total is None for total in totals) or not totals[1]:
        return math.nan
    errors, weight, sums, squares = (Fraction(total) for total in totals if total is not None)
    spread = squares - sums * sums / weight
    return float(1 - errors / spread) if spread > 0 else math.nan  # NaN if all targets are equal


def _product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rounded product and its rounding error (Dekker 1971)."""
    with np.errstate(over="ignore", invalid="ignore"):
        product = a * b
        (a1, a2), (b1, b2) = _halves(a), _halves(b)
        error = ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2
    return product, np.where(np.isfinite(error), error, 0.0)


def _halves(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    c = 134217729.0 * a  # 2**27 + 1
    high = c - (c - a)
    return high, a - high


def _add(a: tuple[int | None, ...], b: tuple[int | None, ...]) -> tuple[int | None, ...]:
    return tuple(None if x is None or y is None else x + y for x, y in zip(a, b, strict=True))


def _ratio(a: int, b: int) -> float:
    try:
        return a / b
    except OverflowError:
        return math.inf


# Classes.


def _class_weights(rows: ScoredRows) -> np.ndarray:
    """Return the weights as integers, whose sums are exact."""
    return np.ones(len(rows.target)) if rows.weight is None else np.rint(rows.weight * rows.size.weight_unit)


def _predicted_class(rows: ScoredRows) -> np.ndarray:
    if rows.loss.n_outputs > 1:
        return rows.raw.argmax(axis=0)
    return (rows.raw[0] > rows.loss.link.even_score).astype(np.int64)


def _confusion(rows: ScoredRows) -> np.ndarray:
    """Return the weights by true and predicted class: float64[K, K] of integers."""
    n_classes = max(2, rows.loss.n_outputs)
    cells = rows.target.astype(np.int64) * n_classes + _predicted_class(rows)
    return np.bincount(cells, _class_weights(rows), n_classes**2).reshape(n_classes, n_classes)


def _of_confusion(name: str, finish: Callable[[np.ndarray], float], *, greater: bool = True) -> MetricReduction:
    return MetricReduction(name, greater, _confusion, np.add, finish)


def _f1_by_class(confusion: np.ndarray) -> np.ndarray:
    """Return 2 TP / (2 TP + FP + FN) of each class, 0 where a class is neither true nor predicted."""
    right, both = np.diag(confusion), confusion.sum(axis=0) + confusion.sum(axis=1)
    return 2.0 * right / np.where(both > 0, both, 1.0)


def _f1(confusion: np.ndarray) -> float:
    """Return the F1 of the second of two classes."""
    return float(_f1_by_class(confusion)[1]) if confusion[1].any() else math.nan


def _f1_macro(confusion: np.ndarray) -> float:
    occurs = confusion.sum(axis=0) + confusion.sum(axis=1) > 0
    return float(_f1_by_class(confusion)[occurs].mean())


def _f1_weighted(confusion: np.ndarray) -> float:
    class_rows = confusion.sum(axis=1)
    return float((_f1_by_class(confusion) * class_rows).sum() / class_rows.sum())


def _balanced_accuracy(confusion: np.ndarray) -> float:
    """Return the mean recall of the classes that occur."""
    class_rows = confusion.sum(axis=1)
    occurs = class_rows > 0
    return float((np.diag(confusion)[occurs] / class_rows[occurs]).mean())


def _zero_one_loss(confusion: np.ndarray) -> float:
    return float(1.0 - np.trace(confusion) / confusion.sum())


# Areas under curves: distinct scores, ascending, with the weight of both classes at each.

_ByScore = tuple[np.ndarray, np.ndarray, np.ndarray]


def _scores(rows: ScoredRows) -> _ByScore:
    """Return the distinct scores of two classes."""
    weight = _class_weights(rows)
    return _by_score(rows.raw[0], weight * (rows.target == 0), weight * (rows.target == 1))


def _scores_of_classes(rows: ScoredRows) -> list[_ByScore]:
    """Return the distinct probabilities of each class, against all other classes."""
    weight, probability = _class_weights(rows), prediction_of(rows)
    return [
        _by_score(class_probability, weight * (rows.target != k), weight * (rows.target == k))
        for k, class_probability in enumerate(probability)
    ]


def _by_score(score: np.ndarray, zeros: np.ndarray, ones: np.ndarray) -> _ByScore:
    distinct, at = np.unique(score, return_inverse=True)
    return distinct, np.bincount(at, zeros, len(distinct)), np.bincount(at, ones, len(distinct))


def _merge_scores(a: _ByScore, b: _ByScore) -> _ByScore:
    return _by_score(*(np.concatenate(pair) for pair in zip(a, b, strict=True)))


def _merge_classes(a: list[_ByScore], b: list[_ByScore]) -> list[_ByScore]:
    return [_merge_scores(*pair) for pair in zip(a, b, strict=True)]


def _roc_auc(counts: _ByScore) -> float:
    _, zeros, ones = counts
    below = np.cumsum(zeros) - zeros
    pairs = zeros.sum() * ones.sum()
    return float((ones * (below + 0.5 * zeros)).sum() / pairs) if pairs > 0 else math.nan


def _roc_auc_of_classes(counts: list[_ByScore]) -> float:
    """Return the mean of the areas of each class against all others, weighted by class."""
    weights = np.array([ones.sum() for _, _, ones in counts])
    areas = np.array([_roc_auc(class_counts) for class_counts in counts])
    return float((areas * weights).sum() / weights.sum())


def _average_precision(counts: _ByScore) -> float:
    """Return the sum of precision times the increase of recall, from the highest score down."""
    _, zeros, ones = (part[::-1] for part in counts)
    n_ones = ones.sum()
    if not (n_ones > 0 and zeros.any()):
        return math.nan
    true, chosen = np.cumsum(ones), np.cumsum(zeros + ones)
    return float((true / np.where(chosen > 0, chosen, 1.0) * ones).sum() / n_ones)


# Numbers per row.


def _squared_error(rows: ScoredRows) -> np.ndarray:
    return (prediction_of(rows) - rows.target) ** 2


def _one(size: LossMagnitude) -> float:
    return 1.0


def _accuracy(rows: ScoredRows) -> np.ndarray:
    return (_predicted_class(rows) == rows.target).astype(np.float64)


def _log_loss(rows: ScoredRows) -> np.ndarray:
    """Return the log loss of the probabilities, of losses with another one."""
    log_losses = rows.loss.link.log_losses
    assert log_losses is not None
    return log_losses(rows.target, rows.raw)


def _twice_the_loss(rows: ScoredRows) -> np.ndarray:
    return 2.0 * rows.loss.value(rows.target, rows.raw)


_NUMBERS = (
    _mean_of("mean_squared_error", _squared_error, lambda size: size.error * size.error),
    _mean_of("root_mean_squared_error", _squared_error, lambda size: size.error * size.error, after=math.sqrt),
    _mean_of("mean_absolute_error", lambda r: np.abs(prediction_of(r) - r.target), lambda size: size.error),
    MetricReduction("mean_absolute_percentage_error", False, _percentage_chunk, _add, _percentage_finish),
    MetricReduction("r2", True, _r2_chunk, _add, _r2_finish),
)
_OF_CLASSES = (
    _of_confusion("balanced_accuracy", _balanced_accuracy),
    _of_confusion("zero_one_loss", _zero_one_loss, greater=False),
)
_TWO_CLASSES = (
    _mean_of("accuracy", _accuracy, _one, greater=True),
    _mean_of("brier_score", _squared_error, _one),
    MetricReduction("roc_auc", True, _scores, _merge_scores, _roc_auc),
    MetricReduction("average_precision", True, _scores, _merge_scores, _average_precision),
    _of_confusion("f1", _f1),
    *_OF_CLASSES,
)
_MANY_CLASSES = (
    _mean_of("accuracy", _accuracy, _one, greater=True),
    MetricReduction("roc_auc", True, _scores_of_classes, _merge_classes, _roc_auc_of_classes),
    _of_confusion("f1", _f1_macro),
    _of_confusion("f1_macro", _f1_macro),
    _of_confusion("f1_weighted", _f1_weighted),
    *_OF_CLASSES,
)
#: Metrics that losses declare as their `Link.metrics`, by name.
_OF_LOSSES = {
    metric.name: metric
    for metric in (
        _mean_of("log_loss", _log_loss, lambda size: size.loss),
        _mean_of("mean_pinball_loss", lambda r: r.loss.value(r.target, r.raw), lambda size: size.loss),
        # Deviances, for losses whose raw score is the logarithm of the prediction too.
        _mean_of("mean_poisson_deviance", lambda r: 2.0 * Poisson().value(r.target, r.raw), lambda size: size.loss),
        _mean_of("mean_gamma_deviance", lambda r: 2.0 * Gamma().value(r.target, r.raw), lambda size: size.loss),
        _mean_of("mean_tweedie_deviance", _twice_the_loss, lambda size: size.loss),
    )
}


def names_of(wanted: Any, loss_name: str) -> list[str]:
    """Return the names of metrics before the loss is known; none for an iterator, which `find_metrics` can read only once."""
    if isinstance(wanted, Iterator):
        return []
    return [
        str(spec.name) if isinstance(spec, Metric) else of_function(spec).name if callable(spec) else str(spec)
        for spec in _specs(wanted, loss_name)
    ]


def _specs(wanted: Any, loss_name: str) -> list[Any]:
    if wanted is None:
        return [loss_name]
    return [wanted] if isinstance(wanted, str) or not isinstance(wanted, Iterable) else list(wanted)


def _metric_of_outputs(spec: Any, loss: BaseLoss) -> MetricReduction:
    """Return the metric of a name for a loss with `BaseLoss.parts`: the mean of its values for all outputs.

    Its value for one output is the metric "<name> of <output>".
    """

    def of_part(name: Any, part: BaseLoss) -> MetricReduction:
        return find_metrics(part.name if name == loss.name else name, part)[0]

    if not isinstance(spec, str):
        return of_part(spec, loss.parts[0])
    name, separator, output = spec.partition(" of ")
    if separator:
        if output not in loss.link.output_names:
            names = ", ".join(map(repr, loss.link.output_names))
            raise ParameterError(f"eval_metric {spec!r}: there is no output {output!r}, but {names}")
        k = loss.link.output_names.index(output)
        metric = of_part(name, loss.parts[k])
        return replace(metric, name=spec, spec=spec, chunk=lambda rows: metric.chunk(rows.of_output(k)))
    each = [of_part(name, part) for part in loss.parts]

    def chunk(rows: ScoredRows) -> list[Any]:
        return [metric.chunk(part) for metric, part in zip(each, rows.parts(), strict=True)]

    def merge(a: list[Any], b: list[Any]) -> list[Any]:
        return [metric.merge(x, y) for metric, x, y in zip(each, a, b, strict=True)]

    def finish(chunks: list[Any]) -> float:
        return sum(metric.finish(part) for metric, part in zip(each, chunks, strict=True)) / len(each)

    outputs = tuple(zip(loss.link.output_names, each, strict=True))
    return MetricReduction(spec, each[0].greater_is_better, chunk, merge, finish, spec=spec, outputs=outputs)


def _metrics_of(loss: BaseLoss) -> dict[str, MetricReduction]:
    """Return the metrics of a loss by name, without those of a ranking."""
    mean_loss = _mean_of(loss.name, lambda r: r.loss.value(r.target, r.raw), lambda size: size.loss)
    others = _NUMBERS if not loss.targets.are_classes else _TWO_CLASSES if loss.n_outputs == 1 else _MANY_CLASSES
    return {metric.name: metric for metric in (mean_loss, *(_OF_LOSSES[name] for name in loss.link.metrics), *others)}


def _named(spec: Any, loss: BaseLoss, known: dict[str, MetricReduction]) -> MetricReduction:
    """Return the metric of a name. known : see `_metrics_of`."""
    ranked = () if loss.targets.are_classes and loss.n_outputs > 1 else _RANKING
    if isinstance(spec, str):
        has_one = loss.n_outputs == 1 or loss.targets.are_classes or loss.link.predicts_first
        if spec != loss.name and not (has_one and len(loss.targets.columns) == 1):
            several = "target columns" if len(loss.targets.columns) > 1 else "outputs"
            raise ParameterError(
                f"eval_metric: loss={loss.name!r} has several {several}, so its only metric with a name is {loss.name!r}: give "
                "a function of y, prediction and weight, or a dboost.metrics.Metric"
            )
        if ALIASES.get(spec, spec) in known:
            return replace(known[ALIASES.get(spec, spec)], name=spec, spec=spec)
        if spec.partition("@")[0] in ranked:
            return replace(ranking_metric(spec, classes=loss.targets.are_classes), spec=spec)
    choices = [*known, *ranked, *(f"{name}@k" for name in ranked)]
    aliases = (alias for alias, name in ALIASES.items() if name in known)
    near = get_close_matches(str(spec).lower(), [*choices, *aliases], n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ParameterError(
        f"eval_metric {spec!r} does not go with loss {loss.name!r}; choose from {', '.join(choices)}, or give a "
        f"function of y, prediction and weight, or a dboost.metrics.Metric{hint}"
    )


def find_metrics(wanted: Any, loss: BaseLoss) -> list[MetricReduction]:
    """Return metrics: names, `Metric` records or functions of the rows (one, several, or None for the loss itself).

    A metric keeps the name by which it is asked for, which may be an alias. If the loss has `BaseLoss.parts`, records and
    functions get targets and predictions of all outputs.

    Raises
    ------
    ParameterError
        For unknown names; the message lists those that are valid for the loss. For two metrics of one name.
    """
    known = {} if loss.parts else _metrics_of(loss)
    metrics: list[MetricReduction] = []
    for spec in _specs(wanted, loss.name):
        if isinstance(spec, Metric | MetricReduction):
            metrics.append(spec.reduction() if isinstance(spec, Metric) else spec)
        elif callable(spec) and not isinstance(spec, type):
            metrics.append(of_function(spec))
        else:
            metrics.append(_metric_of_outputs(spec, loss) if loss.parts else _named(spec, loss, known))
    names = [metric.name for metric in metrics]
    square = next((m.name for m in metrics if not isinstance(m.spec, str) and is_half_square(m.name, loss.name)), None)
    if square is not None:
        raise ParameterError(f"metric {square!r}: what ends in squared_error is shown by its root with this loss: rename it")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None and any(not isinstance(metric.spec, str) for metric in metrics if metric.name == twice):
        raise ParameterError(f"two metrics are called {twice!r}: give functions different names, or use dboost.metrics.Metric")
    return metrics
