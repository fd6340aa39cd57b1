"""Metrics of a ranking: `ndcg`, `ndcg@k`, `map` and `map@k`.

All rows of an evaluation set are one query: rows are ranked by their prediction, from the highest down, and the target of a row
is its relevance. Both metrics are averaged over all orders of rows with equal predictions, so they depend on neither the order
of the rows nor their partitioning.

**NDCG.** With the targets y as gains, as in `sklearn.metrics.ndcg_score`::

    DCG@k = sum of  E[y at position i] / log2(i + 1)  over the positions i = 1 … min(k, n)
    NDCG@k = DCG@k / DCG@k of the rows in the order of their targets;  0 if all targets are 0

E[…] is the mean target of the rows that are tied at this position.

**MAP.** Of one query, that is average precision, as in XGBoost and LightGBM. Relevant are rows with a target above 0::

    AP@k = sum of  P(i) [the row at position i is relevant]  over i = 1 … min(k, n)  /  min(k, number of relevant rows)
    P(i) = number of relevant rows at the positions 1 … i  /  i

and 1 if no row is relevant. Without k it is over all positions. Let a position be the j-th one of a group of t tied rows, of
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
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from dboost.errors import DataError, ParameterError
from dboost.metrics.metric import MetricReduction, ScoredRows, prediction_of

#: Names of the metrics, with and without @k.
NAMES = ("ndcg", "map")
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
    of_ndcg = kind == "ndcg"
    chunk, finish = partial(_chunk, k, of_ndcg, classes), partial(_finish, name, k, _ndcg if of_ndcg else _map)
    return MetricReduction(name, True, chunk, partial(_merge, k), finish)


def _chunk(k: int, of_ndcg: bool, classes: bool, rows: ScoredRows) -> _Ranking:
    # The raw score ranks two classes: probabilities near 1 are equal after rounding.
    score, target, weight = rows.raw if classes else prediction_of(rows), rows.target, rows.weight
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
            f"eval_metric {name!r}: targets are relevances and must not be negative, but one is {ranking.least_target:g}"
        )
    least, largest = ranking.weights
    if least < largest:
        raise ParameterError(
            f"eval_metric {name!r} ranks all rows of an evaluation set, whose weights must therefore be equal, but they are "
            f"between {least:g} and {largest:g}: give the evaluation set without weights, or choose another metric"
        )
    return compute(ranking, k) if len(ranking.by_score.key) else math.nan


def _ndcg(ranking: _Ranking, k: int) -> float:
    ideal = _dcg(ranking.by_target, k)
    return _dcg(ranking.by_score, k) / ideal if ideal > 0 else 0.0


def _dcg(top: _Top, k: int) -> float:
    n_rows, gain = top.by_key()
    last = n_rows.cumsum()
    discounts = np.append(0.0, np.cumsum(1.0 / np.log2(np.arange(2, min(k, last[-1]) + 2))))
    return float((gain / n_rows * np.diff(discounts[np.minimum(np.append(0, last), k)])).sum())


def _map(ranking: _Ranking, k: int) -> float:
    if not ranking.n_relevant:
        return 1.0
    tied, relevant = ranking.by_score.by_key()
    last = tied.cumsum()
    position = np.arange(1, min(k, last[-1]) + 1)
    group = np.searchsorted(last, position)
    before, t, r = (relevant.cumsum() - relevant)[group], tied[group], relevant[group]
    j = position - (last - tied)[group]
    hits = before + 1.0 + (j - 1) * (r - 1) / np.maximum(t - 1, 1)
    return float((r / t * hits / position).sum() / min(k, ranking.n_relevant))
