"""What a target is, found out part by part: which loss is meant, and which classes there are, without all rows in one place.

A part says which values it has met (`survey_target`), up to a number that no one takes for classes; the parts' answers together
decide (`unite_targets`) as `training.target.choose_target` does of all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dboost.errors import DataError
from dboost.params import Parameters
from dboost.schema import Level
from dboost.sources.chunk import CategoryColumn, Column
from dboost.sources.levels import Dictionary
from dboost.sources.roles import levels_dtype, result_dtype
from dboost.training.target import Target, choose_target, loss_for

#: A target of more distinct values than this is no class.
MAX_CLASSES = 4096


@dataclass(frozen=True, eq=False)
class TargetSurvey:
    """A target's values, as far as the choice of the loss and of the classes wants to know them.

    Attributes
    ----------
    levels : tuple of levels or None
        Those that occur in rows of positive weight, where the target is text or categories.
    distinct : float64[...]
        Otherwise the distinct numbers in these rows, or some of them if there are `too_many`.
    too_many : bool
    dtype : str
    is_bool : bool
    """

    levels: tuple[Level, ...] | None
    distinct: np.ndarray
    too_many: bool
    dtype: str
    is_bool: bool


def survey_target(target: Column | None, weight: np.ndarray | None, dtype: str, is_bool: bool) -> TargetSurvey | None:
    """What some rows say; None where none of them has a positive weight."""
    if target is None:
        return None
    if isinstance(target, CategoryColumn):
        codes = target.codes if weight is None else target.codes[weight > 0]
        occurs = np.bincount(codes[codes >= 0], minlength=len(target.levels)) > 0
        levels = tuple(level for level, there in zip(target.levels, occurs, strict=True) if there)
        return TargetSurvey(levels, np.empty(0), False, dtype, is_bool)
    values = target if weight is None else target[weight > 0]
    if not len(values):
        return None
    some = np.unique(values[: 4 * MAX_CLASSES])
    distinct = some if len(some) > MAX_CLASSES else np.unique(values)
    return TargetSurvey(None, distinct[:MAX_CLASSES], len(distinct) > MAX_CLASSES, dtype, is_bool)


def merge_surveys(a: TargetSurvey, b: TargetSurvey) -> TargetSurvey:
    """What the rows of both say."""
    if a.levels is not None or b.levels is not None:
        dictionary = Dictionary("target")
        for one in (a, b):
            dictionary.translate(one.levels or ())
        return TargetSurvey(dictionary.finish()[0], np.empty(0), False, levels_dtype(dictionary.finish()[0]), False)
    distinct = np.unique(np.concatenate((a.distinct, b.distinct)))
    too_many = a.too_many or b.too_many or len(distinct) > MAX_CLASSES
    return TargetSurvey(None, distinct[:MAX_CLASSES], too_many, result_dtype((a.dtype, b.dtype)), a.is_bool and b.is_bool)


@dataclass(frozen=True, eq=False)
class _Distinct:
    """What `choose_target` looks at, with every value once (or some of them, where they are too many to be classes)."""

    target: Column
    target_dtype: str
    target_is_bool: bool
    weight: None = None

    def row_name(self, row: int) -> str:
        return "some row"


def unite_targets(told: Sequence[TargetSurvey], parameters: Parameters) -> Target:
    """The loss, and the classes of all parts; holds no rows.

    Raises
    ------
    DataError
        As `choose_target`, or when there are too many classes.
    """
    loss_name = parameters.loss_name
    if any(target.levels is not None for target in told):
        distinct = _levels(told)
    else:
        dtype = result_dtype(target.dtype for target in told)
        values = np.unique(np.concatenate([target.distinct for target in told]))
        distinct = _Distinct(values, dtype, all(target.is_bool for target in told))
        classification = loss_name != "auto" and loss_for(parameters, loss_name).is_classification
        if classification and (any(target.too_many for target in told) or len(values) > MAX_CLASSES):
            fractions = not (values == np.rint(values)).all()
            what = "Unknown label type: continuous. A classifier wants classes, but the target holds fractions"
            raise DataError(what if fractions else f"the target has more than {MAX_CLASSES} classes")
    target = choose_target(distinct, parameters)  # type: ignore[arg-type]
    return Target(target.loss, np.empty(0), target.classes, target.classes_dtype)


def _levels(told: Sequence[TargetSurvey]) -> _Distinct:
    dictionary = Dictionary("target")
    for target in told:
        dictionary.translate(target.levels if target.levels is not None else ())
    levels: tuple[Level, ...] = dictionary.finish()[0]
    return _Distinct(CategoryColumn(np.arange(len(levels), dtype=np.int32), levels), levels_dtype(levels), False)
