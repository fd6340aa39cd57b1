"""How much worse a model gets when it is told nonsense about one feature (Breiman, 2001).

The values of a feature are permuted over all rows, the other features stay, and a metric is taken again: the loss
itself, if no other is named. What the metric loses, on average over some permutations, is the feature's importance.
Unlike the sums over splits it is measured on rows that the model may not have seen, and a feature that does harm comes
out negative.

The permutation is one of the whole table, a function of the seed, the feature and the repetition; metrics are exact
sums over chunks. So neither the partitioning of the data nor the number of threads changes a bit of the answer. The
table is kept as chunks (in a file, when there are many), and one column at a time is held whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

import numpy as np

from dboost import losses
from dboost._lazy_import import pd
from dboost.data import ReadOptions, Table, open_table
from dboost.errors import ParameterError
from dboost.inspection.importance import ranked
from dboost.metrics.metric import LossMagnitude, Metric, ScoredRows, find_metrics
from dboost.model.ensemble import Ensemble
from dboost.model.forest import FlatEnsemble
from dboost.session.target import Target, encode_like
from dboost.session.warm_start import row_matrices


def permutation_importance(
    ensemble: Ensemble,
    data: Any,
    target: Any,
    *,
    sample_weight: Any = None,
    metric: str | None = None,
    n_repeats: int = 5,
    random_state: int = 0,
    n_threads: int | None = None,
) -> pd.Series:
    """Mean loss of a metric when a feature's values are permuted, relative to the largest (100).

    Parameters
    ----------
    ensemble : Ensemble
    data, target, sample_weight : as in `dboost.fit`
        Best rows that were not trained on.
    metric : str, optional
        One of the names that go with the loss; default: the loss.
    n_repeats : int >= 1
    random_state : int >= 0
    n_threads : int, optional

    Returns
    -------
    Series of float64 by feature
        Largest first; negative where the metric got better. ``attrs``: the metric, its value on the data as they are
        (``score``), and what 100 stands for (``unit``).

    Raises
    ------
    ParameterError
        Unknown metric, or no repetitions.
    DataError
        As in `dboost.fit`; and when the target holds a class that the model does not know.
    """
    if not isinstance(n_repeats, int) or n_repeats < 1:
        raise ParameterError(f"n_repeats={n_repeats!r} must be an integer of at least 1")
    if not isinstance(random_state, int) or random_state < 0:
        raise ParameterError(f"random_state={random_state!r} must be an integer of at least 0")
    loss = losses.from_dict(ensemble.loss)
    judge = find_metrics(metric, loss)[0]
    used = sorted({int(j) for tree in ensemble.trees for j in tree.feature[tree.feature >= 0]})
    options = ReadOptions(n_threads)
    with open_table(data, target, sample_weight=sample_weight, like=ensemble.features, options=options) as table:
        y = encode_like(table, Target(loss, np.empty(0), ensemble.classes, ensemble.classes_dtype))
        trial = _Trial(ensemble, table, y, judge, n_threads)
        score = trial.score()
        worse = np.zeros(len(ensemble.features))
        for j in used:
            column = np.concatenate([block[:, j] for block in row_matrices(table, None)])
            for repeat in range(n_repeats):
                order = np.random.default_rng([random_state, j, repeat]).permutation(len(column))
                worse[j] += trial.score(j, column[order]) - score
    worse *= (-1.0 if judge.larger_is_better else 1.0) / n_repeats
    series = ranked(worse, [feature.name for feature in ensemble.features], "permutation")
    series.attrs |= {"metric": judge.name, "score": score}
    return series


class _Trial:
    """The metric of a model on a table, with one column replaced or none."""

    def __init__(self, ensemble: Ensemble, table: Table, y: np.ndarray, judge: Metric, n_threads: int | None) -> None:
        self._flat, self._table, self._y, self._judge, self._n_threads = FlatEnsemble(ensemble), table, y, judge, n_threads
        self._loss = losses.from_dict(ensemble.loss)
        self._size = LossMagnitude(1.0, 1.0, 1.0, table.n_rows)
        # How large things are on the data as they are; sums leave room for numbers a thousand times larger.
        seen = list(self._rows(None, None))
        largest_loss = max(float(np.abs(self._loss.value(rows.target, rows.raw)).max(initial=0.0)) for rows in seen)
        largest_error = max((float(np.abs(y - y.mean()).max(initial=0.0)), 1.0 if self._loss.is_classification else 0.0))
        max_weight = 1.0 if table.weight is None else float(table.weight.max())
        self._size = LossMagnitude(largest_loss, largest_error, max_weight, table.n_rows)

    def score(self, feature: int | None = None, values: np.ndarray | None = None) -> float:
        parts = [self._judge.chunk(rows) for rows in self._rows(feature, values)]
        return self._judge.finish(reduce(self._judge.merge, parts))

    def _rows(self, feature: int | None, values: np.ndarray | None) -> Iterator[ScoredRows]:
        start = 0
        for block in row_matrices(self._table, None):
            rows = slice(start, start + len(block))
            start += len(block)
            if not len(block):
                continue
            if feature is not None and values is not None:
                block = block.astype(np.result_type(block, values))
                block[:, feature] = values[rows]
            raw = self._flat.raw_scores(block, n_threads=self._n_threads)
            weight = None if self._table.weight is None else self._table.weight[rows]
            yield ScoredRows(self._y[rows], raw if raw.shape[1] > 1 else raw[:, 0], weight, self._loss, self._size, block)
