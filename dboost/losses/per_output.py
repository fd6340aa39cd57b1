"""Losses of independent outputs: one for each of several targets, or several of one target.

`PerOutput` is the mean of the losses of its outputs. Each output has a loss, a name, and the target column that it is of. So
two targets are two outputs with a column each, and two levels of a quantile are two outputs of one column. Each output has its
own trees, gradients, initial score and leaf values, as if it were trained alone.

The record for kernels consists of those of the outputs: one output after the other is advanced by the function that is compiled
for its loss (`PerOutputTerms`), so that no further function is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dboost.display import number
from dboost.errors import ParameterError
from dboost.losses.base import AllRows, BaseLoss, Link, PartOfRows, RowStatistic, Start, Targets, target_column
from dboost.losses.gradient_stats import GradientStats
from dboost.losses.terms import GradientPass, LossTerms


@dataclass(frozen=True)
class PerOutputTerms(LossTerms):
    """The terms of all outputs, and the target column of each."""

    parts: tuple[LossTerms, ...]
    columns: tuple[int, ...]

    def advance(self, gradient_pass: GradientPass) -> GradientStats:
        columns = enumerate(zip(self.parts, self.columns, strict=True))
        return GradientStats.of_outputs([part.advance(gradient_pass.of_output(k, column)) for k, (part, column) in columns])


def _of_output(rows: PartOfRows, output: int, column: int, part: Callable[..., Any], *arguments: Any) -> Any:
    return part(rows.of_output(output, column), *arguments)


def _merged(rows: AllRows, output: int, column: int, part: Callable[..., Any], merge: Callable[..., Any], *rest: Any) -> Any:
    """Return `AllRows.merged` for the rows of one output."""
    return rows.merged(_of_output, merge, output, column, part, *rest)


@dataclass(frozen=True)
class StatisticsOfOutputs(RowStatistic):
    """The statistics of the losses of all outputs, None for those without one."""

    parts: tuple[BaseLoss, ...]
    columns: tuple[int, ...]

    def of(self, rows: AllRows, before: Sequence[Any] | None = None) -> tuple[Any, ...]:
        statistics: list[Any] = []
        for output, (part, column) in enumerate(zip(self.parts, self.columns, strict=True)):
            if part.statistic is None:
                statistics.append(None)
                continue
            alone = AllRows(partial(_merged, rows, output, column), rows.n_rows, rows.max_weight)
            statistics.append(part.statistic.of(alone, None if before is None else before[output]))
        return tuple(statistics)


class PerOutput(BaseLoss):
    """The mean of one loss for each output.

    Parameters
    ----------
    parts : sequence of BaseLoss
        Losses of one output and one target column.
    output_names : sequence of str
    target_columns : sequence of str, optional
        Names of the target's columns. Default: those of the outputs, each of which is of its own column.
    columns : sequence of int, optional
        The target column of each output.
    """

    def __init__(
        self,
        parts: Sequence[BaseLoss],
        output_names: Sequence[str],
        target_columns: Sequence[str] | None = None,
        columns: Sequence[int] | None = None,
    ) -> None:
        self.parts, self.output_names = tuple(parts), tuple(output_names)
        self.target_columns = tuple(target_columns or output_names)
        self.columns = tuple(range(len(self.parts)) if columns is None else columns)
        for part in self.parts:
            if part.n_outputs > 1 or len(part.targets.columns) > 1 or part.targets.groups:
                reason = "depends on groups of rows" if part.targets.groups else "has several outputs or target columns"
                raise ParameterError(
                    f"loss={part.name!r} {reason}, so it cannot be the loss of one of several targets: fit a model for each "
                    "target"
                )
        names = {part.name for part in self.parts}
        self.name = names.pop() if len(names) == 1 else "per_output"  # type: ignore[misc]
        self.options = tuple(dict.fromkeys(name for part in self.parts for name in part.options))  # type: ignore[misc]
        self.leaves = tuple(part.leaves[0] for part in self.parts)
        self.exact_hessian = all(part.exact_hessian for part in self.parts)
        self.can_trim = all(part.can_trim for part in self.parts)
        if any(part.statistic is not None for part in self.parts):
            self.statistic = StatisticsOfOutputs(self.parts, self.columns)

    @property
    def targets(self) -> Targets:  # type: ignore[override]
        return Targets(
            columns=self.target_columns, of_outputs=self.columns, invalid=self._invalid, reason=self._reason, location=_location
        )

    @property
    def start(self) -> Start:  # type: ignore[override]
        return Start(scales=all(part.start.scales for part in self.parts))

    @property
    def link(self) -> Link:  # type: ignore[override]
        return Link(
            to_raw=self._to_raw,
            to_prediction=self._to_prediction,
            output_names=self.output_names,
            are_probabilities=any(part.link.are_probabilities for part in self.parts),
        )

    def with_parts(self, parts: Sequence[BaseLoss]) -> PerOutput:
        return PerOutput(parts, self.output_names, self.target_columns, self.columns)

    def _alone(self, output: int, y: np.ndarray, raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return target and raw score of one output: float64[n], and [1, n]."""
        return target_column(y, self.columns[output]), raw[output : output + 1]

    def pass_terms(self, statistic: Any = None) -> PerOutputTerms:
        statistics = [None] * len(self.parts) if statistic is None else statistic
        parts = (part.pass_terms(of_part) for part, of_part in zip(self.parts, statistics, strict=True))
        return PerOutputTerms(tuple(parts), self.columns)

    def with_statistic(self, statistic: Any) -> BaseLoss:
        if statistic is None:
            return self
        return self.with_parts([part.with_statistic(of_part) for part, of_part in zip(self.parts, statistic, strict=True)])

    def statistic_of(self, output: int, statistic: Any) -> Any:
        return None if statistic is None else statistic[output]

    def in_unit(self, unit: float) -> BaseLoss:
        return self if unit == 1.0 else self.with_parts([part.in_unit(unit) for part in self.parts])

    def is_stored_as(self, stored: dict[str, Any]) -> bool:
        losses, parameters = stored.get("losses"), self.to_dict()
        if not isinstance(losses, list) or len(losses) != len(self.parts):
            return False
        same = all(part.is_stored_as(of_part) for part, of_part in zip(self.parts, losses, strict=True))
        return same and {**stored, "losses": None} == {**parameters, "losses": None}

    def as_parameter(self) -> Any:
        parameters = [part.as_parameter() for part in self.parts]
        first = parameters[0]
        return first if all(parameter is first or parameter == first for parameter in parameters) else parameters

    def _flaws(self, y: np.ndarray) -> list[np.ndarray]:
        """Return which targets are invalid for each output: bool[n]."""
        flaws = []
        for part, column in zip(self.parts, self.columns, strict=True):
            of_part = target_column(y, column)
            wrong = ~np.isfinite(of_part)
            if part.targets.are_classes:
                wrong |= (of_part != 0) & (of_part != 1)
            outside = part.targets.invalid_rows(of_part)
            flaws.append(wrong if outside is None else wrong | outside)
        return flaws

    def _invalid(self, y: np.ndarray) -> np.ndarray:
        return np.any(self._flaws(y), axis=0)

    def _reason(self, y: np.ndarray) -> str:
        output = next(k for k, flaw in enumerate(self._flaws(y[..., None])) if flaw.any())
        part, value = self.parts[output], y if y.ndim == 0 else y[self.columns[output]]
        rule = part.targets.rule
        if not np.isfinite(value):
            rule = "finite targets"
        elif part.targets.are_classes:
            rule = "zeros and ones (or truth values) in each of several targets"
        name = self.target_columns[self.columns[output]]
        return f"loss={part.name!r} requires {rule}: target {name!r} is {number(value)}"

    def to_dict(self) -> dict[str, Any]:
        stored = {
            "name": self.name, "losses": [part.to_dict() for part in self.parts], "outputs": list(self.output_names)
        }  # fmt: skip
        if self.columns == tuple(range(self.n_outputs)) and self.target_columns == self.output_names:
            return stored
        return stored | {"targets": list(self.target_columns), "columns": list(self.columns)}

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return np.mean([part.value(*self._alone(k, y, raw)) for k, part in enumerate(self.parts)], axis=0)

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return np.concatenate([part.gradient(*self._alone(k, y, raw)) for k, part in enumerate(self.parts)])

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return np.concatenate([part.hessian(*self._alone(k, y, raw)) for k, part in enumerate(self.parts)])

    def slopes(self, output: int, y: np.ndarray, raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.parts[output].slopes(0, *self._alone(output, y, raw))

    def _to_raw(self, prediction: np.ndarray) -> np.ndarray:
        return np.concatenate([part.link.to_raw(prediction[k : k + 1]) for k, part in enumerate(self.parts)])

    def _to_prediction(self, raw: np.ndarray) -> np.ndarray:
        return np.concatenate([part.link.to_prediction(raw[k : k + 1]) for k, part in enumerate(self.parts)])


def _location(y: np.ndarray) -> np.ndarray:
    return y if y.ndim == 1 else y.mean(axis=0)
