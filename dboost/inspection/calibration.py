"""Conformal calibration: how wide intervals must be so that they contain the targets of a given share of new rows.

**Split conformal prediction** (Lei et al. 2018; for quantiles Romano, Patterson and Candès 2019, equations (5) to (7)). Rows
that the model has not been trained on have scores: how far the target is outside the prediction,

    E = |y - F|,  or for several quantiles  E = max(q_low - y, y - q_high),

which is negative inside. Those of normal distributions are |y - m| / σ, in units of the row's scale. Q is the k-th smallest
score, k = ⌈(n + 1) · coverage⌉. If a new row is exchangeable with these n rows, its score is equally likely to have each of the
n + 1 ranks, so it is at most Q with a probability of at least the coverage: its target is in [F - Q, F + Q], in
[q_low - Q, q_high + Q], or in [m - Q σ, m + Q σ]. This needs no assumption about the distribution or the model.

With `by` the same holds within each value of a column (Mondrian conformal prediction; Vovk, Gammerman and Shafer 2005, section
4.5).

**Weights.** Weights that count rows count them here: k is the rank among all rows, each as often as its weight, and the new row
has weight 1. If the mean weight is below 1, weights compare rows, and the new row has the mean weight; so their scale has no
effect.

**Exactness.** Scores stay where their rows are: in this process, or as partitions that Dask keeps on the workers. Only counts
are merged (`exact.find_quantiles`), so Q is the score of one of the rows, the same for any division of the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial, reduce
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from dboost.cluster.client.client import client_for
from dboost.data import CategoryColumn, Table, open_table
from dboost.data.columns.chunk import sort_key
from dboost.data.kinds.named_columns import column_named
from dboost.data.kinds.table_kinds import as_frame, is_dask, is_source
from dboost.display import number
from dboost.errors import DataError, DBoostError, InputTypeError, ParameterError, warn
from dboost.exact import exact_level, find_quantiles, rank_unit
from dboost.inspection.row_functions import call, lazy_pieces, rereadable_rows
from dboost.kernels import or_empty
from dboost.kernels.quantile_keys import Residuals, count_digits
from dboost.kernels.threads import available_threads
from dboost.model.ensemble import Ensemble, FlatEnsemble
from dboost.model.margins import Calibration, LevelColumn
from dboost.model.outputs import IntervalBase, Outputs
from dboost.schema import Feature, Level
from dboost.session.target import Target, encode_like
from dboost.session.warm_start import row_matrices

#: Largest number of values of `by`: each takes 2 KiB in every partition.
MOST_LEVELS = 4096
#: Results of partitions that are merged by one task.
_MERGED_AT_ONCE = 16


#: The warning for rows that the margins are too small for.
TRAINED_ON = (
    "these are the rows that the model was trained on: margins are too small for other rows then; calibrate with rows that "
    "were held out"
)


class RowScores(NamedTuple):
    """The scores of some rows of positive weight."""

    score: np.ndarray  # float64[n]
    weight: np.ndarray | None = None  # float64[n]; None for 1
    code: np.ndarray | None = None  # int64[n], position in `levels`, -1 for missing values; None without `by`
    levels: tuple[Level, ...] = ()
    loss: float = math.nan  # the sum of weight times loss; NaN if it is not known


class TrainingLoss(NamedTuple):
    """The loss at the end of a fit. Other rows with the same number and the same mean loss are the training rows."""

    n_rows: int
    loss: float

    @classmethod
    def of(cls, ensemble: Ensemble) -> TrainingLoss | None:
        """Return that of the last fit; None if the model has none."""
        n_rows, last = ensemble.sources[-1]["rows"] if ensemble.sources else None, ensemble.n_iterations
        losses = ensemble.own_metrics.get("train_loss", ())[:last]
        loss = losses[-1] if last and len(losses) == last else (ensemble.search or {}).get("train_loss")
        return None if n_rows is None or loss is None else cls(n_rows, loss)

    def is_of(self, sizes: ScoreSizes) -> bool:
        """Return whether rows are those of the fit."""
        mean = sizes.loss / max(sizes.weight, 1e-300)
        return sizes.n_rows == self.n_rows and math.isclose(mean, self.loss, rel_tol=1e-12)


@dataclass(frozen=True)
class ScoreSizes:
    """What units and ranks follow from; merged by sums, maxima and unions."""

    n_rows: int
    max_weight: float
    is_weighted: bool
    is_finite: bool
    levels: frozenset[Level]  # more than `MOST_LEVELS` are too many, whichever these are
    weight: float  # sum
    loss: float  # as of `RowScores`

    def merge(self, other: ScoreSizes) -> ScoreSizes:
        return ScoreSizes(
            self.n_rows + other.n_rows,
            max(self.max_weight, other.max_weight),
            self.is_weighted or other.is_weighted,
            self.is_finite and other.is_finite,
            _limited(self.levels | other.levels),
            self.weight + other.weight,
            self.loss + other.loss,
        )


def _limited(levels: frozenset[Level]) -> frozenset[Level]:
    return frozenset(islice(levels, MOST_LEVELS + 1))


#: ``merged(function, merge, *arguments)`` returns the merged results of ``function(rows, *arguments)`` for all `RowScores`.
Merged = Callable[..., Any]


@dataclass(frozen=True)
class GivenRows:
    """Rows to calibrate with, as `Booster.calibrate` documents them."""

    data: Any
    target: Any
    sample_weight: Any = None
    offset: Any = None

    @property
    def roles(self) -> dict[str, Any]:
        values = {"target": self.target, "sample_weight": self.sample_weight, "offset": self.offset}
        return {name: value for name, value in values.items() if value is not None}


def checked_coverage(coverage: Any) -> float:
    """Return the coverage as a float; raise a ParameterError if it is not between 0 and 1."""
    if isinstance(coverage, bool) or not isinstance(coverage, int | float | np.number) or not 0 < coverage < 1:
        raise ParameterError(f"coverage={coverage!r} must be a number between 0 and 1, both excluded, such as 0.9")
    return float(coverage)


def calibrated(
    ensemble: Ensemble, outputs: Outputs, rows: GivenRows, coverage: Any, by: Any, client: Any, n_threads: int | None,
    training: TrainingLoss | None,
) -> Calibration:  # fmt: skip
    """Return the margins for rows of a table of any kind; `Booster.calibrate` documents the parameters and errors.

    training : as of `margins`.
    """
    outputs.check_intervals()
    coverage, column = checked_coverage(coverage), _column_of(ensemble, rows.data, by)
    if not is_source(rows.data):
        flat = FlatEnsemble(ensemble)
        by = None if column is None or column.is_feature else column.feature.name
        data = rereadable_rows(rows.data, ensemble, *rows.roles.values(), by)
        scored = _scores(outputs, flat, ensemble.features, column, data, rows.roles, available_threads(n_threads))
        return margins(merged_here([scored]), coverage, column, training)
    import dask

    workers = {} if n_threads is None else {"num_workers": available_threads(n_threads)}
    with client_for(rows.data, client), dask.config.set(workers):  # the former reports a lost scheduler
        parts = _kept_scores(ensemble, outputs, rows, column, client)
        return margins(partial(_merged_by_dask, parts, client), coverage, column, training)


def calibrated_by_predictions(y: np.ndarray, base: IntervalBase, weight: np.ndarray | None, coverage: Any) -> Calibration:
    """Return the margins for rows of positive weight in this process, by their targets (float64[n]) and predictions."""
    scored = RowScores(base.scores(y), weight)
    return margins(merged_here([scored]), checked_coverage(coverage))


def calibrated_by_scores(
    outputs: Outputs, y: np.ndarray, raw: np.ndarray, weight: np.ndarray | None, coverage: Any, training: TrainingLoss | None
) -> Calibration:
    """Return the margins for rows of positive weight in this process, by their raw scores (float64[n, n_outputs])."""
    return margins(merged_here([_scored(outputs, y, raw, weight)]), checked_coverage(coverage), training=training)


def margins(
    merged: Merged, coverage: float, column: LevelColumn | None = None, training: TrainingLoss | None = None
) -> Calibration:
    """Return the margins of scored rows; warn if they are the rows of `training`.

    Raises
    ------
    DataError
        If there are too few rows, or scores are not finite.
    """
    sizes: ScoreSizes = merged(_sizes, ScoreSizes.merge)
    if not sizes.n_rows:
        raise DataError("calibrate: the data have no rows")
    if not sizes.is_finite:
        raise DataError("calibrate: the model's predictions are not finite for all rows")
    if training is not None and training.is_of(sizes):
        warn(TRAINED_ON)
    unit = rank_unit(sizes.max_weight, sizes.n_rows) if sizes.is_weighted else 1.0
    ranks = Ranks(exact_level(coverage), unit, sizes.n_rows)
    count = partial(merged, _digits, np.add, ranks.unit)
    (margin,) = find_quantiles(partial(count, None), _none_follows, ranks.of_all, 1)
    if column is None:
        return Calibration(coverage, sizes.n_rows, float(margin))
    by = column.feature.name
    if len(sizes.levels) > MOST_LEVELS:
        raise ParameterError(
            f"by={by!r} has more than {MOST_LEVELS:,} values, each of which needs rows of its own: bin it, or leave it out"
        )
    levels = tuple(sorted(sizes.levels, key=sort_key))
    level_scores = find_quantiles(partial(count, levels), _none_follows, ranks.of_each, len(levels) + 1)[:-1]
    is_known = ranks.is_reached[:-1]
    if not is_known.all():
        few = [repr(level) for level, known in zip(levels, is_known, strict=True) if not known]
        names = ", ".join(few[:5]) + (", …" if len(few) > 5 else "")
        warn(
            f"by={by!r}: {len(few)} of {len(levels)} values have fewer than the {ranks.fewest} rows that coverage={coverage} "
            f"needs, and get the margin of all rows: {names}"
        )
    kept = [
        (level, float(level_margin)) for level, level_margin, known in zip(levels, level_scores, is_known, strict=True) if known
    ]
    return Calibration(
        coverage,
        sizes.n_rows,
        float(margin),
        by,
        tuple(level for level, _ in kept),
        tuple(level_margin for _, level_margin in kept),
    )


class Ranks:
    """The ranks of margins among scores, for `find_quantiles`.

    unit : factor of the weights.
    """

    def __init__(self, coverage: Fraction, unit: float, n_rows: int) -> None:
        self.coverage, self.unit, self.n_rows = coverage, unit, n_rows
        self.fewest = math.ceil(coverage / (1 - coverage))
        self.is_reached = np.empty(0, bool)
        self._new_row = Fraction(1)  # the weight of a new row, in the unit

    def of_all(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rank of the margin of all rows, in weight; weights : int64[1]."""
        total, n = int(weights[0]), self.n_rows
        counts_rows = total >= (1 - Fraction(1, 2**20)) * n * Fraction(self.unit)
        self._new_row = Fraction(self.unit) if counts_rows else Fraction(total, n)
        ranks = self.of_each(weights)
        if not self.is_reached[0]:
            have = f"{n}" if total == n * self.unit or not counts_rows else f"a total weight of {number(total / self.unit)}"
            raise DataError(
                f"coverage={float(self.coverage)} needs at least {self.fewest} rows to calibrate with, the data have {have}"
            )
        return ranks

    def of_each(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the ranks of the margins of groups, 0 for those with too few rows; weights : int64[n_groups]."""
        needed = [math.ceil(self.coverage * (weight + self._new_row)) for weight in weights.tolist()]
        self.is_reached = np.array([rank <= weight for rank, weight in zip(needed, weights.tolist(), strict=True)])
        ranks = [rank if reached else 0 for rank, reached in zip(needed, self.is_reached, strict=True)]
        return np.array(ranks, np.int64), np.zeros(len(weights), bool)


def _none_follows(keys: np.ndarray) -> np.ndarray:
    raise AssertionError("a margin is the score of a row, not the middle of two")


def _sizes(rows: RowScores) -> ScoreSizes:
    used = np.empty(0, np.int64) if rows.code is None else np.unique(rows.code[rows.code >= 0])
    return ScoreSizes(
        len(rows.score),
        1.0 if rows.weight is None else float(rows.weight.max(initial=0.0)),
        rows.weight is not None,
        bool(np.isfinite(rows.score).all()),
        _limited(frozenset(rows.levels[code] for code in used.tolist())),
        float(len(rows.score)) if rows.weight is None else float(rows.weight.sum()),
        rows.loss,
    )


def _digits(rows: RowScores, unit: float, levels: tuple[Level, ...] | None, prefix: np.ndarray, shift: np.uint64) -> np.ndarray:
    """Return the weights of scores by group and next byte of their rank keys, see `exact`.

    levels : of the groups; rows with other values are in one more group. None: all rows are one group.
    """
    n, group = len(rows.score), or_empty(None, "uint8")
    if levels is not None:
        assert rows.code is not None
        position = {level: number for number, level in enumerate(levels)}
        lookup = np.array([*(position.get(level, len(levels)) for level in rows.levels), len(levels)])
        group = lookup[rows.code].astype(np.uint8 if len(levels) < 256 else np.int32)
    counts = np.zeros((1 if levels is None else len(levels) + 1, 256), np.int64)
    weight = np.ones(n) if rows.weight is None and unit != 1.0 else or_empty(rows.weight, "float64")
    score, scores, column = rows.score.reshape(1, -1), np.zeros((1, n)), np.zeros(1, np.int64)
    residuals = Residuals(score, scores, column, weight, group, False, or_empty(None, "int64"), 0, n)
    count_digits(residuals, prefix, shift, unit, counts)
    return counts


# Scores of rows.


def _column_of(ensemble: Ensemble, data: Any, by: Any) -> LevelColumn | None:
    """Return the column `by`; None without one."""
    if by is None:
        return None
    name = by if isinstance(by, str) else column_named(by, data)
    if name is None:
        raise InputTypeError(f"by={by!r:.60} must be the name of a column: predict_interval reads it from its rows")
    column = LevelColumn.of(ensemble.features, name)
    if not column.is_feature and not ensemble.named:
        raise ParameterError(f"by={name!r} is no feature of the model, and arrays have no other columns")
    return column


def _scores(
    outputs: Outputs, flat: FlatEnsemble, features: tuple[Feature, ...], column: LevelColumn | None, data: Any,
    roles: dict[str, Any], n_threads: int,
) -> RowScores:  # fmt: skip
    """Return the scores of a table in memory with rows. roles : as of `open_table`, by name."""
    blocks, values = [], []
    with open_table(data, like=features, **roles) as table:
        y, weight = encode_like(table, Target(outputs.loss, None, None)), table.weight
        for block in row_matrices(table, None):
            blocks.append(flat.raw_scores(block, n_threads=n_threads))
            if column is not None and column.is_feature:
                values.append(block[:, column.position])
        raw = np.concatenate(blocks)
        if table.offset is not None:
            raw[:, outputs.offset_outputs] += table.offset[:, None]
    code, levels = (None, ()) if column is None else _codes(column, values, data)
    return _with_weight(_scored(outputs, y, raw, weight, code, levels))


def _scored(
    outputs: Outputs, y: np.ndarray, raw: np.ndarray, weight: np.ndarray | None, code: np.ndarray | None = None,
    levels: tuple[Level, ...] = (),
) -> RowScores:  # fmt: skip
    """Return the scores of rows, and their loss, by their raw scores (float64[n, n_outputs])."""
    with np.errstate(all="ignore"):  # of scores that are not finite, which `margins` refuses
        losses = outputs.loss.value(y, raw.T)
        loss = float(losses.sum() if weight is None else losses @ weight)
    return RowScores(outputs.interval_of(raw).scores(y), weight, code, levels, loss)


def _with_weight(rows: RowScores) -> RowScores:
    """Return the rows of positive weight."""
    if rows.weight is None or rows.weight.all():
        return rows
    is_weighted = rows.weight > 0
    return rows._replace(
        score=rows.score[is_weighted],
        weight=rows.weight[is_weighted],
        code=None if rows.code is None else rows.code[is_weighted],
    )


def _codes(column: LevelColumn, values: Sequence[np.ndarray], data: Any) -> tuple[np.ndarray, tuple[Level, ...]]:
    """Return the codes of the column `by`, -1 for missing values, and the levels that they stand for.

    values : of a feature, its parts.
    """
    if not column.is_feature:
        name = column.feature.name
        like = (Feature(name, ()),)
        with open_table(data, like=like, extend_categories=True, require_target=False) as table:
            return _codes_of(table), table.features[0].categories or ()
    feature_values = np.concatenate(values)
    is_missing = ~np.isfinite(feature_values)
    if column.feature.categories is not None:
        return np.where(is_missing, -1, feature_values).astype(np.int64), column.feature.categories
    levels, codes = np.unique(feature_values[~is_missing].astype(np.float64), return_inverse=True)
    codes_of_rows = np.full(len(feature_values), -1, np.int64)
    codes_of_rows[~is_missing] = codes
    return codes_of_rows, tuple((levels + 0.0).tolist())


def _codes_of(table: Table) -> np.ndarray:
    parts = []
    for i in range(len(table.lengths)):
        column = table.chunk(i).columns[0]
        assert isinstance(column, CategoryColumn)
        parts.append(column.codes.astype(np.int64))
    return np.concatenate(parts)


def merged_here(parts: Sequence[RowScores]) -> Merged:
    """Return the function that merges results of rows in this process."""

    def merged(function: Callable[..., Any], merge: Callable[[Any, Any], Any], *arguments: Any) -> Any:
        return reduce(merge, [function(part, *arguments) for part in parts])

    return merged


# Partitions.


def _kept_scores(ensemble: Ensemble, outputs: Outputs, rows: GivenRows, column: LevelColumn | None, client: Any) -> list[Any]:
    """Return the scores of each partition, delayed, which Dask keeps as long as the list exists."""
    import dask

    from dboost.config import without_graph_warning
    from dboost.data.tables import dask_collections

    named = {role: column_named(value, rows.data) for role, value in rows.roles.items()}
    for role, value in rows.roles.items():
        if named[role] is None and not is_dask(value):
            raise InputTypeError(f"{role} must be the name of a column, or a Dask collection of the same partitions")
    by = () if column is None or column.is_feature else (column.feature.name,)
    pieces, _ = lazy_pieces(rows.data, ensemble, *(name for name in named.values() if name is not None), *by)
    roles: list[dict[str, Any]] = [{role: name for role, name in named.items() if name is not None} for _ in pieces]
    for role, value in rows.roles.items():
        if named[role] is None:
            parts = list(np.ravel(dask_collections.delayed(value)))
            if len(parts) != len(pieces):
                raise DataError(f"{role} has {len(parts)} partitions, the data have {len(pieces)}")
            for piece_roles, part in zip(roles, parts, strict=True):
                piece_roles[role] = part
    task = partial(_scores_of_partition, outputs, FlatEnsemble(ensemble), ensemble.features, column)
    shared = dask.delayed(task, pure=False, traverse=False)
    with without_graph_warning():
        tasks = [
            dask.delayed(call)(shared, piece, piece_roles, i)
            for i, (piece, piece_roles) in enumerate(zip(pieces, roles, strict=True))
        ]
        return list(dask.persist(*tasks, scheduler=client))


def _scores_of_partition(
    outputs: Outputs, flat: FlatEnsemble, features: tuple[Feature, ...], column: LevelColumn | None, data: Any,
    roles: dict[str, Any], part: int,
) -> RowScores:  # fmt: skip
    if not as_frame(data).n_rows:
        return RowScores(np.empty(0), None, None if column is None else np.empty(0, np.int64), loss=0.0)
    try:
        return _scores(outputs, flat, features, column, data, roles, 1)
    except DBoostError as error:
        raise type(error)(f"partition {part}: {error}") from None


def _merged_by_dask(
    parts: Sequence[Any], client: Any, function: Callable[..., Any], merge: Callable[[Any, Any], Any], *arguments: Any
) -> Any:
    """Return merged results of delayed parts: they are merged by tasks, a few at a time."""
    import dask

    shared = dask.delayed(arguments, pure=False, traverse=False)
    pending = [dask.delayed(_apply, pure=False)(function, part, shared) for part in parts]
    while len(pending) > 1:
        groups = [pending[first : first + _MERGED_AT_ONCE] for first in range(0, len(pending), _MERGED_AT_ONCE)]
        pending = [dask.delayed(_reduced, pure=False)(merge, group) for group in groups]
    return dask.compute(pending[0], scheduler=client)[0]


def _apply(function: Callable[..., Any], rows: RowScores, arguments: tuple[Any, ...]) -> Any:
    return function(rows, *arguments)


def _reduced(merge: Callable[[Any, Any], Any], results: list[Any]) -> Any:
    return reduce(merge, results)
