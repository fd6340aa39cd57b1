"""`Calibration`: by how much predictions are widened to intervals; a part of the model, see `inspection.calibration`.

The interval of a row is [low - Q u, high + Q u], where low and high are the predicted number, or the predictions of the lowest
and the highest quantile of a model of several. The unit u is 1, of a model of normal distributions the scale of the row. Q is
the margin: of the row's value of the column `by` if that has one, else of all rows.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from dboost.model.outputs import IntervalBase
from dboost.schema import Feature, Level

#: Names of the columns of intervals.
COLUMNS = ("lower", "upper")


@dataclass(frozen=True)
class Calibration:
    """Margins of the intervals of a model."""

    coverage: float  # the share of new rows whose target is in their interval, at least
    rows: int  # number of rows that the margins were computed from
    margin: float  # of all rows
    by: str | None = None  # column whose values have margins of their own
    levels: tuple[Level, ...] = ()  # these values, sorted
    margins: tuple[float, ...] = ()  # of these values

    def to_dict(self) -> dict[str, Any]:
        """Return the record in the model file: JSON types."""
        record = asdict(self)
        return record if self.by is not None else {name: record[name] for name in ("coverage", "rows", "margin")}

    def bounds(self, base: IntervalBase, group: np.ndarray | None) -> np.ndarray:
        """Return the intervals of rows: float64[n, 2]. Bounds that would cross, by a negative margin, are both their middle.

        group : int64[n], position in `levels`, -1 for other values; None without `by`.
        """
        margin = (self.margin if group is None else np.array([*self.margins, self.margin])[group]) * base.unit
        lower, upper = base.low - margin, base.high + margin
        crossed = lower > upper
        if crossed.any():
            middle = lower[crossed] + (upper[crossed] - lower[crossed]) / 2.0
            lower[crossed] = upper[crossed] = middle
        return np.column_stack([lower, upper])


class LevelColumn(NamedTuple):
    """Where the values of the column `by` are in a matrix of features."""

    position: int  # number of the column, that behind the features if the model does not have it
    feature: Feature
    is_feature: bool

    @classmethod
    def of(cls, features: tuple[Feature, ...], by: str, levels: tuple[Level, ...] = ()) -> LevelColumn:
        """Return the column of a model; levels : of a column that is no feature."""
        for position, feature in enumerate(features):
            if feature.name == by:
                return cls(position, feature, True)
        return cls(len(features), Feature(by, levels), False)

    def groups(self, values: np.ndarray, levels: tuple[Level, ...]) -> np.ndarray:
        """Return the position of each value in `levels`, -1 for other and missing ones: int64[n].

        values : float[n], the column of the matrix: numbers, or codes of categories.
        """
        known, missing = self.feature.categories, np.isnan(values)
        if known is None:
            numbers = np.array([*levels, np.inf], np.float64)
            positions = np.searchsorted(numbers, values)
            return np.where(
                ~missing & (numbers[np.minimum(positions, len(levels))] == values) & (positions < len(levels)), positions, -1
            )
        position = {level: number for number, level in enumerate(levels)}
        lookup = np.array([*(position.get(level, -1) for level in known), -1], np.int64)
        return lookup[np.where(missing, len(known), values).astype(np.int64)]
