"""CV+: prediction intervals from the models of a cross-validation (Barber, Candès, Ramdas and Tibshirani 2021).

Each of the n rows is held out by one fold k(i), whose model gives its score E_i, the distance between target and prediction.
The interval of a new row has the bounds

    ⌊(n + 1) α⌋-th smallest of  f_k(i)(x) - E_i,    ⌈(n + 1) (1 - α)⌉-th smallest of  f_k(i)(x) + E_i

with α = 1 - coverage: the score of every row is added to what the model predicts that has not been trained on it. If the rows
are exchangeable, the target of the new row is inside with a probability of at least 1 - 2 α - √(2 / n) (Theorem 4 and Corollary
1), whatever the learner does; in practice it is about 1 - α.

For quantiles f is the lowest and the highest one and scores are those of `calibration`; for normal distributions the score is
in units of the scale of the row, and is multiplied by that of the new row.

With the models' scores sorted once, a bound is a selection among K sorted sequences (`kernels.order_statistics`), which takes
about K² log² n steps for a row and no memory for the n sums. Weights count as in `calibration`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dboost.errors import DataError, ParameterError
from dboost.exact import exact_level, rank_unit
from dboost.inspection.calibration import Ranks, checked_coverage
from dboost.kernels.order_statistics import select_sums
from dboost.model.outputs import IntervalBase


@dataclass(frozen=True, eq=False)
class CrossScores:
    """The scores of all rows by the models that have not been trained on them, fold by fold."""

    score: np.ndarray  # float64[n], ascending within each fold
    weight: np.ndarray | None  # float64[n]; None for 1
    starts: np.ndarray  # int64[n_folds + 1], where folds begin

    @classmethod
    def of(cls, held_out: Sequence[tuple[np.ndarray, np.ndarray]], weights: np.ndarray | None) -> CrossScores:
        """Return the scores of folds.

        held_out : for each fold the positions of its rows, and their scores; weights : float64[n_rows], None for 1.
        """
        parts, row_order = [], []
        for positions, scores in held_out:
            order = np.argsort(scores, kind="stable")
            parts.append(scores[order])
            row_order.append(positions[order])
        starts = np.cumsum([0, *map(len, parts)])
        return cls(np.concatenate(parts), None if weights is None else weights[np.concatenate(row_order)], starts)

    def selection(self, coverage: Any) -> Selection:
        """Return what selects the bounds of intervals.

        Raises
        ------
        DataError
            If there are fewer rows than the coverage needs, or scores are not finite.
        """
        coverage, n = checked_coverage(coverage), len(self.score)
        if not np.isfinite(self.score).all():
            raise DataError("predict_interval: the held-out predictions of the folds are not finite for all rows")
        weights, unit = np.ones(n, np.int64), 1.0
        if self.weight is not None:
            unit = rank_unit(float(self.weight.max(initial=0.0)), n)
            weights = np.maximum(np.rint(self.weight * unit).astype(np.int64), 1)
        before = np.concatenate(([0], np.cumsum(weights)))
        ranks, _ = Ranks(exact_level(coverage), unit, n).of_all(before[-1:])
        return Selection(self.score, self.starts, before, int(ranks[0]))


@dataclass(frozen=True, eq=False)
class Selection:
    """Sorted scores, and the rank of the bounds among the sums with them."""

    score: np.ndarray
    starts: np.ndarray
    weight_before: np.ndarray  # int64[n + 1]
    rank: int

    def bounds(self, bases: Sequence[IntervalBase]) -> np.ndarray:
        """Return the intervals of rows: float64[n_rows, 2]. bases : of the model of each fold.

        Bounds that would cross, of quantiles that cover too many rows, are both their middle.
        """
        shape = len(bases), len(bases[0].low)
        unit = np.empty(shape)
        for k, base in enumerate(bases):
            unit[k] = base.unit
        # The lower bound has the same rank among the sums with the other sign.
        lower = -self._selected(np.stack([-base.low for base in bases]), unit)
        upper = self._selected(np.stack([base.high for base in bases]), unit)
        crossed = lower > upper
        if crossed.any():
            lower[crossed] = upper[crossed] = lower[crossed] + (upper[crossed] - lower[crossed]) / 2.0
        return np.column_stack([lower, upper])

    def _selected(self, base: np.ndarray, unit: np.ndarray) -> np.ndarray:
        selected, windows = np.empty(base.shape[1]), np.empty((3, len(base)), np.int64)
        select_sums(base, unit, self.score, self.starts, self.weight_before, self.rank, windows, selected)
        return selected


def check_partition(held_out: Sequence[np.ndarray], n_rows: int) -> None:
    """Raise a ParameterError if not every row is held out by exactly one fold. held_out : positions of each fold's rows."""
    times = np.bincount(np.concatenate(held_out), minlength=n_rows)
    if (times != 1).any():
        kind = (
            "some rows of this result are held out by several folds" if times.max() > 1 else "this result holds out some only"
        )
        raise ParameterError(f"predict_interval needs folds that hold out every row once, but {kind}: give a number of folds")
