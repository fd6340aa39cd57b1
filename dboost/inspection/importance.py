"""Feature importance: from the splits of the trees, or by permutation.

**From the splits.** *Friedman's relative importance*, equations (44) and (45) of Friedman (2001): the squared importance of a
feature in one tree is the sum, over the splits on it, of the reduction of the squared error of the tree's response; over an
ensemble it is the mean over the trees. The reported value is its root,

    I_j = sqrt( 1/M  Σ_m  Σ_{splits t of tree m on j}  i_t² ).

The response is that of second-order boosting, -g/h with weight h, so i_t² is twice the gain of the split; for the squared
error that is w_l w_r / (w_l + w_r) (mean_l - mean_r)². With K classes each class has its own trees and importances I_jk (49);
a feature's importance is their mean over the classes.

*Gain* is the same sum without the root: the reduction of the loss by the splits (net of the leaf penalty). *Cover* is the sum
of the Hessians of the rows at the splits, *count* the number of splits.

**By permutation** (Breiman, 2001). The values of one feature are permuted over all rows and a metric is computed again; its
mean deterioration over some permutations is the feature's importance. It is measured on rows that the model need not have
seen, and is negative for a harmful feature. The permutation is a function of the seed, the feature and the repetition over the
whole table, and metrics are exact sums over chunks, so neither the partitioning nor the number of threads changes a bit. The
table is spooled in chunks; only one column at a time is held whole.

All importances are relative: the largest is 100, and ``attrs["unit"]`` is the value that 100 stands for.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

import numpy as np

from dboost import losses
from dboost._lazy_import import pd
from dboost.data import ReadOptions, Table, open_table
from dboost.data.columns.chunk import plain
from dboost.data.kinds.named_columns import with_named_targets
from dboost.errors import DataError, InputTypeError, ParameterError
from dboost.inspection.shapley import check_counts
from dboost.metrics.metric import LossMagnitude, MetricReduction, ScoredRows
from dboost.metrics.named import find_metrics
from dboost.model.ensemble import Ensemble, FlatEnsemble
from dboost.params import Integer
from dboost.session.target import Target, check_order_of_targets, encode_like
from dboost.session.warm_start import row_matrices

#: Kinds of importance that need no rows.
KINDS = ("friedman", "gain", "cover", "count")
#: Kinds of XGBoost and LightGBM, and ours.
_OF_PEERS = {"weight": "count", "split": "count", "total_gain": "gain", "total_cover": "cover"}


def importance(
    ensemble: Ensemble, kind: str = "friedman", per_class: bool = False, options: dict[str, Any] | None = None
) -> pd.Series | pd.DataFrame:
    """Return the relative importance of the features; `Booster.importance` documents it.

    options : arguments of `permutation_importance`.
    """
    options = dict(options or {})
    if isinstance(kind, int):
        raise InputTypeError(f"the kind comes first: plot_importance(max_features={kind}) draws so many features")
    if not isinstance(kind, str):
        raise InputTypeError('the kind comes first, then data and target: importance("permutation", data, target)')
    if kind == "permutation":
        if per_class:
            raise ParameterError("importance by permutation is that of the whole model: it has no per_class")
        if options.get("data") is None or options.get("target") is None:
            raise ParameterError('importance by permutation needs rows and target: importance("permutation", data, target)')
        return permutation_importance(ensemble, options.pop("data"), options.pop("target"), **options)
    if options:
        raise ParameterError(f"importance of kind {kind!r} takes no {next(iter(options))}")
    if kind not in KINDS:
        hint = f"; {kind!r} is called {_OF_PEERS[kind]!r} here" if kind in _OF_PEERS else ""
        hint = "; Shapley values are those of shap_values(X)" if str(kind).startswith("shap") else hint
        raise ParameterError(f"kind={kind!r} must be one of {', '.join(map(repr, KINDS))}, or 'permutation'{hint}")
    if per_class and ensemble.n_outputs == 1 and ensemble.outputs.labels is None:
        raise ParameterError("there is no importance per class: the model predicts numbers")
    if kind == "cover":
        check_counts(ensemble, "importance of kind 'cover'", "choose another kind")
    total = _totals(ensemble, kind)
    if kind == "friedman":
        total = np.sqrt(2.0 * np.maximum(total, 0.0) / max(1, ensemble.n_iterations))
    mean = total.mean(axis=1) if kind == "friedman" else total.sum(axis=1)
    names = [feature.name for feature in ensemble.features]
    if not per_class:
        return _ranked(mean, names, kind)
    order = np.argsort(-mean, kind="stable")
    table = pd.DataFrame(_relative(total), index=names, columns=ensemble.outputs.names).iloc[order]
    table.attrs = {"kind": kind, "unit": total.max(axis=0).tolist()}
    return table.rename_axis(index="feature", columns=ensemble.outputs.axis)


def _totals(ensemble: Ensemble, kind: str) -> np.ndarray:
    """Sums over the splits on each feature, divided among the outputs of a tree: float64[n_features, n_outputs]."""
    totals = np.zeros((len(ensemble.features), ensemble.n_outputs))
    for t, tree in enumerate(ensemble.trees):
        split = np.flatnonzero(tree.feature >= 0)
        amount = {"friedman": tree.gain, "gain": tree.gain, "cover": tree.cover, "count": None}[kind]
        split_amounts = np.ones(len(split)) if amount is None else amount[split]
        feature_totals = np.bincount(tree.feature[split], split_amounts, len(ensemble.features))
        totals[:, ensemble.outputs_of(t)] += feature_totals[:, None] / ensemble.width
    return totals


def _ranked(values: np.ndarray, names: list[str], kind: str) -> pd.Series:
    """Values by feature as a Series, largest first and scaled to 100."""
    order = np.argsort(-values, kind="stable")
    series = pd.Series(_relative(values[:, None])[:, 0], index=pd.Index(names, name="feature"), name="importance")
    series = series.iloc[order]
    series.attrs = {"kind": kind, "unit": float(values.max(initial=0.0))}
    return series


def _relative(values: np.ndarray) -> np.ndarray:
    """Columns in percent of their largest value; a column without a positive value is left as it is."""
    top = values.max(axis=0, initial=0.0)
    return np.where(top > 0, 100.0 * (values / np.where(top > 0, top, 1.0)), values)


def permutation_importance(
    ensemble: Ensemble,
    data: Any,
    target: Any,
    *,
    sample_weight: Any = None,
    offset: Any = None,
    metric: str | None = None,
    n_repeats: int = 5,
    random_state: int = 0,
    n_threads: int | None = None,
) -> pd.Series:
    """Return the mean deterioration of a metric when a feature's values are permuted, relative to the largest (100).

    Parameters
    ----------
    ensemble : Ensemble
    data, target, sample_weight, offset : as in `dboost.fit`
        Ideally held-out rows.
    metric : str, optional
        A metric that applies to the loss. Default: the loss.
    n_repeats : int, default 5
        Permutations of each feature, at least 1.
    random_state : int, default 0
        Seed of the permutations.
    n_threads : int, optional
        Default: all processors that this process may use.

    Returns
    -------
    Series of float64 by feature
        Largest first; negative where the metric improved. ``attrs``: the ``metric``, its value on the unchanged data
        (``score``), and the value that 100 stands for (``unit``).

    Raises
    ------
    ParameterError
        For an unknown metric, or fewer than one repetition.
    DataError
        As in `dboost.fit`; if the target holds an unknown class; if the metric is undefined on the rows.
    """
    n_repeats = Integer(1).checked("n_repeats", n_repeats)
    random_state = Integer(0).checked("random_state", random_state)
    loss = losses.from_dict(ensemble.loss)
    check_order_of_targets(with_named_targets(target, data), loss)
    scored_by = find_metrics(metric, loss)[0]
    used = sorted({int(j) for tree in ensemble.trees for j in tree.feature[tree.feature >= 0]})
    options = ReadOptions(n_threads)
    roles = {"sample_weight": sample_weight, "offset": offset}
    with open_table(data, target, **roles, like=ensemble.features, options=options) as table:
        y = encode_like(table, Target(loss, ensemble.classes, ensemble.classes_dtype))
        scorer = _Scorer(ensemble, table, y, scored_by, n_threads)
        score = _checked_score(scorer.score(), scored_by.name)
        worse = np.zeros(len(ensemble.features))
        for j in used:
            for values in scorer.permutations(j, n_repeats, random_state):
                worse[j] += scorer.score(j, values) - score
    worse *= (-1.0 if scored_by.larger_is_better else 1.0) / n_repeats
    series = _ranked(worse, [feature.name for feature in ensemble.features], "permutation")
    series.attrs |= {"metric": scored_by.name, "score": score}
    return series


def _checked_score(score: float, metric: str) -> float:
    """Return the score of unchanged rows; raise a DataError if it is undefined."""
    if not np.isfinite(score):
        raise DataError(
            f"importance by permutation: the metric {metric!r} of the rows is {score}, so it does not change: give another "
            "metric, or rows for which it is defined (of every class, or with targets that differ)"
        )
    return score


class _Scorer:
    """Computes the metric of a model on a table, with one column replaced or none."""

    def __init__(self, ensemble: Ensemble, table: Table, y: np.ndarray, metric: MetricReduction, n_threads: int | None) -> None:
        self._flat, self._table, self._y, self._metric, self._n_threads = FlatEnsemble(ensemble), table, y, metric, n_threads
        self._loss, self._outputs = losses.from_dict(ensemble.loss), ensemble.outputs
        self._size = LossMagnitude(1.0, 1.0, 1.0, table.n_rows)
        # Magnitudes on the unchanged data; the exact sums have spare bits for numbers a thousand times larger.
        magnitudes = []
        for output_rows in zip(*(rows.parts() for rows in self._rows(None, None)), strict=True):
            largest_loss = max(float(np.abs(rows.loss.value(rows.target, rows.raw)).max(initial=0.0)) for rows in output_rows)
            targets = np.concatenate([rows.target for rows in output_rows], axis=-1)
            largest_error = float(np.abs(targets - targets.mean()).max(initial=0.0))
            magnitudes.append((largest_loss, max(largest_error, 1.0 if output_rows[0].loss.targets.are_classes else 0.0)))
        max_weight = 1.0 if table.weight is None else float(table.weight.max())
        self._size = LossMagnitude.of(magnitudes, max_weight, table.n_rows)

    def score(self, feature: int | None = None, values: np.ndarray | None = None) -> float:
        parts = [self._metric.chunk(rows) for rows in self._rows(feature, values)]
        return self._metric.finish(reduce(self._metric.merge, parts))

    def permutations(self, feature: int, n: int, seed: int) -> Iterator[np.ndarray]:
        """Yield the values of a feature n times, each time in another order."""
        column = np.concatenate([block[:, feature] for block in row_matrices(self._table, None)])
        for repeat in range(n):
            yield column[np.random.default_rng([seed, feature, repeat]).permutation(len(column))]

    def _rows(self, feature: int | None, values: np.ndarray | None) -> Iterator[ScoredRows]:
        start = 0
        for block in map(plain, row_matrices(self._table, None)):
            rows = slice(start, start + len(block))
            start += len(block)
            if not len(block):
                continue
            if feature is not None and values is not None:
                block = block.astype(np.result_type(block, values))
                block[:, feature] = values[rows]
            offset = None if self._table.offset is None else self._table.offset[rows]
            raw = self._outputs.with_offset(self._flat.raw_scores(block, n_threads=self._n_threads), offset)
            weight = None if self._table.weight is None else self._table.weight[rows]
            yield ScoredRows(self._y[..., rows], raw.T, weight, self._loss, self._size, block)
