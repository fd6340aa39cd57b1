"""A scikit-learn scorer as a metric of training.

A scorer asks an estimator for predictions, so it is handed a copy of the estimator as it is after the present iteration.
The copy need not predict: the raw scores of the rows that are judged are at hand, they grow with every tree. Only when a
scorer asks about other rows (a part of them, say) do the trees have to walk.

The rows appear as the model sees them: a matrix of floats, with categories as codes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from dboost.booster import Booster
from dboost.model.ensemble import Ensemble
from dboost.model.flat import FlatEnsemble
from dboost.statistics.metrics import Metric, Rows

#: Of the metric, in the history.
NAME = "score"


class _Present(Booster):
    """The model in training, for questions about one set of rows."""

    def __init__(self, ensemble: Ensemble, rows: Rows, whole: Callable[[], Ensemble]) -> None:
        super().__init__(ensemble)
        self._rows = rows
        self._whole = whole

    def _through(self, X: Any, answer: Any, iteration_range: Any, n_threads: int | None, offset: Any = None) -> Any:
        if X is self._rows.block:
            raw = self._rows.raw.reshape(len(self._rows.target), -1)
        else:
            raw = FlatEnsemble(self._whole()).raw_scores(np.asarray(X), n_threads=n_threads)
        return answer.finish(raw)


class _Scoring:
    def __init__(self, estimator: Any, scorer: Callable[..., float], whole: Callable[[], Ensemble]) -> None:
        self._estimator = estimator
        self._scorer = scorer
        self._whole = whole
        self._outline: Ensemble | None = None

    def __call__(self, rows: Rows) -> float:
        if self._outline is None:
            self._outline = self._whole().truncate(0)
        model = _Present(self._outline, rows, self._whole)
        estimator = copy.copy(self._estimator)
        vars(estimator).pop("feature_names_in_", None)  # a matrix has none
        estimator._take(model)
        y = rows.target if model.classes_ is None else model.classes_[rows.target.astype(np.int64)]
        weight = {} if rows.weight is None else {"sample_weight": rows.weight}
        return float(self._scorer(estimator, rows.block, y, **weight))


def scorer_metric(estimator: Any, scorer: Callable[..., float], whole: Callable[[], Ensemble]) -> Metric:
    """The metric "score".

    Parameters
    ----------
    estimator : DBoostRegressor or DBoostClassifier
    scorer : callable
        Called with an estimator, the rows, their targets, and `sample_weight` if there are weights; larger is better.
    whole : callable
        Returns the ensemble as far as it has come.
    """
    return Metric(NAME, True, _Scoring(estimator, scorer, whole), _cannot_merge, float, wants_block=True)


def _cannot_merge(one: float, other: float) -> float:
    raise TypeError("a scorer judges all rows at once: its scores of parts cannot be merged")
