"""From the user's target column to a loss, its classes, and float64 values.

The target determines the loss (with ``loss="auto"``) and the classes. `choose_target` derives both from all rows of a table. On
a cluster no process has all rows, so the decision has two steps. `scan_target` collects the distinct values of a range of rows,
at most `MAX_CLASSES` of them, and `merge_target_scans` merges two scans. `merge_target_scans_to_target` derives the loss and
the classes from the scans, by the rules of `choose_target`. Sessions then encode their rows (`encode_like`, `encode_chunk`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dboost.data import Table
from dboost.data.chunk import CategoryColumn, CategoryIndex, Column
from dboost.data.row_metadata import levels_dtype, result_dtype
from dboost.errors import DataError, ParameterError
from dboost.losses import LogLoss, Loss, SoftmaxLogLoss, by_name
from dboost.model.ensemble import Ensemble
from dboost.params import OF_ONE_LOSS, Parameters
from dboost.schema import Level


@dataclass(frozen=True, eq=False)
class Target:
    """The loss, the target as float64 (0, 1, 2, … for classes), and the classes."""

    loss: Loss
    values: np.ndarray
    classes: tuple[Level, ...] | None
    classes_dtype: str | None


def read_target(
    table: Table, parameters: Parameters, model: Ensemble | None = None, classes: tuple[Level, ...] | None = None
) -> Target:
    """Choose the loss and encode the target for it, as `choose_target` does; raise DataError for values that the loss rejects.

    model : the model that is continued; its classes apply, and the data may lack some of them.
    classes : all classes, if they are known before the data are read.
    """
    if model is not None:
        target = target_of(model, parameters)
        return replace(target, values=continued(lambda: encode_like(table, target)))
    if classes is not None:
        target = target_for(classes, parameters)
        return replace(target, values=encode_like(table, target))
    target = choose_target(table, parameters)
    check_range(target.loss, target.values, table.row_name)
    return target


def choose_target(table: Table, parameters: Parameters) -> Target:
    """Choose the loss ("auto": by the target's kind) and encode the target for it.

    Rows of weight zero are ignored: a class that occurs in no other row is dropped.

    Raises
    ------
    DataError
        If there is one class only, if there are more than two for a binary loss, or if the target has text or categories and
        the loss needs numbers.
    """
    column = _counted(table)
    loss_name = parameters.loss_name
    if loss_name == "auto":
        is_class = isinstance(column, CategoryColumn) or table.target_is_bool or _is_zero_one(column)
        loss_name = "log_loss" if is_class else "squared_error"
    loss = loss_for(parameters, loss_name)
    if not loss.is_classification:
        if isinstance(column, CategoryColumn):
            raise DataError(f"loss {loss_name!r} wants a numeric target, but the target holds categories or text")
        if not np.isfinite(column).all():
            row = int(np.flatnonzero(~np.isfinite(column))[0])
            raise DataError(f"the target holds an infinite value ({table.row_name(row)})")
        return Target(loss, column, None, None)
    codes, classes, dtype = _classes(table, column)
    present = np.bincount(codes, minlength=len(classes)) > 0
    if not present.all():
        classes = tuple(level for level, occurs in zip(classes, present, strict=True) if occurs)
        codes = (np.cumsum(present) - 1)[codes]
    if len(classes) < 2:
        raise DataError(f"the target has one class only ({classes[0]!r}); a classifier needs at least two classes")
    loss = loss_for(parameters, loss_name, len(classes))
    return Target(loss, codes.astype(np.float64), classes, dtype)


def target_of(model: Ensemble, parameters: Parameters) -> Target:
    """Return loss and classes of a model that is continued, without rows."""
    n_classes = 2 if model.classes is None else len(model.classes)
    return Target(loss_for(parameters, parameters.loss_name, n_classes), np.empty(0), model.classes, model.classes_dtype)


def target_for(classes: tuple[Level, ...], parameters: Parameters) -> Target:
    """Return loss and classes if all classes are known before the data are read, without rows."""
    if len(classes) < 2:
        raise ParameterError(f"classes={list(classes)!r}: a classifier needs at least two classes")
    loss = loss_for(parameters, parameters.loss_name, len(classes))
    return Target(loss, np.empty(0), classes, "object" if isinstance(classes[0], str) else str(np.array(classes).dtype))


def continued(work: Callable[[], Any]) -> Any:
    """Return ``work()``; prefix the message of a DataError with the fact that the data continue a model."""
    try:
        return work()
    except DataError as error:
        raise DataError(f"the data do not continue the model: {error}") from error


def loss_for(parameters: Parameters, name: str, n_classes: int = 2) -> Loss:
    """Return the loss of that name, with its own parameters.

    Raises
    ------
    DataError
        If the loss supports fewer classes.
    ParameterError
        If a parameter does not apply to the loss.
    """
    is_custom = not isinstance(parameters.loss, str)
    loss = (
        parameters.loss
        if is_custom
        else by_name(name, n_classes, **{option: getattr(parameters, option) for option in OF_ONE_LOSS})
    )
    if loss.n_outputs == 1 and n_classes > 2:
        raise DataError(f"loss={name!r} is for two classes, but the target has {n_classes}; log_loss takes any number")
    if parameters.influence_trimming is not None and not isinstance(loss, LogLoss | SoftmaxLogLoss):
        raise ParameterError(f"influence_trimming is for loss='log_loss', not for loss={loss.name!r}")
    return loss


def check_range(loss: Loss, values: np.ndarray, row_name: Callable[[int], str]) -> None:
    """Raise DataError, with the name of the first row, if targets (float64[n]) are outside the range of the loss."""
    wrong = values < 0 if loss.target_range == "non-negative" else values <= 0 if loss.target_range else None
    if wrong is not None and wrong.any():
        row = int(np.argmax(wrong))
        wanted = "non-negative y and sum(y) > 0" if loss.target_range == "non-negative" else "strictly positive y"
        raise DataError(f"loss={loss.name!r} requires {wanted}: the target is {values[row]:g} in {row_name(row)}")


def encode_like(table: Table, target: Target) -> np.ndarray:
    """Return the target of a table, encoded like the training target: float64[n_rows]."""
    column = _counted(table)
    if target.classes is None:
        if not isinstance(column, np.ndarray):
            raise DataError("the target holds categories or text, the training target numbers")
        check_range(target.loss, column, table.row_name)
        return column
    codes, classes, _ = _classes(table, column)
    known = {level: code for code, level in enumerate(target.classes)}
    present = np.bincount(codes, minlength=len(classes)) > 0
    unknown = [level for level, occurs in zip(classes, present, strict=True) if occurs and level not in known]
    if unknown:
        raise unknown_class(unknown[0])
    return np.array([known.get(level, -1) for level in classes], np.float64)[codes]


def encode_chunk(table: Table, k: int, target: Target) -> np.ndarray:
    """Return the same for chunk k only: float64[n]; zeros if it has no rows of positive weight."""
    column, weight, _ = table.roles(k)
    if not table.lengths[k] or (weight is not None and not (weight > 0).any()):
        return np.zeros(table.lengths[k])
    first = sum(table.lengths[:k])
    chunk = _OneChunk(column, weight, table.target_dtype, table.target_is_bool, lambda row: table.row_name(first + row))
    return encode_like(chunk, target)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class _OneChunk:
    """The target of a chunk, with the attributes of `Table` that `encode_like` uses."""

    target: Column | None
    weight: np.ndarray | None
    target_dtype: str | None
    target_is_bool: bool
    row_name: Callable[[int], str]


def unknown_class(level: Level) -> DataError:
    """Return the error for a class that the training target does not have."""
    return DataError(f"the target holds a class that the training target has not: {level!r}")


def _counted(table: Table) -> Column:
    """Return the target; rows of weight zero get the value of a row of positive weight, so that they have no influence."""
    column, weight = table.target, table.weight
    assert column is not None
    if weight is None or weight.all():
        return column
    counts, one = weight > 0, int(np.argmax(weight > 0))
    if isinstance(column, CategoryColumn):
        return CategoryColumn(np.where(counts, column.codes, column.codes[one]), column.categories)
    return np.where(counts, column, column[one])


def _is_zero_one(values: np.ndarray) -> bool:
    return bool(((values == 0) | (values == 1)).all()) and values.min() != values.max()


def _classes(table: Table, column: Column) -> tuple[np.ndarray, tuple[Level, ...], str]:
    """Return class codes (int64), the classes in ascending order, and their dtype."""
    dtype = str(table.target_dtype)
    if isinstance(column, CategoryColumn):
        return column.codes.astype(np.int64), column.categories, dtype
    values, codes = np.unique(column, return_inverse=True)
    if table.target_is_bool:
        return codes, tuple(bool(v) for v in values), "bool"
    if not np.issubdtype(np.dtype(dtype), np.integer) and not (values == np.rint(values)).all():
        raise DataError("Unknown label type: continuous. A classifier wants classes, but the target holds fractions")
    if np.issubdtype(np.dtype(dtype), np.integer):
        return codes, tuple(int(v) for v in values), dtype
    return codes, tuple(float(v) for v in values), dtype


#: Maximal number of classes; a target with more distinct values is no classification target.
MAX_CLASSES = 4096


@dataclass(frozen=True, eq=False)
class TargetScan:
    """The distinct target values of some rows of positive weight, from which loss and classes are chosen."""

    categories: tuple[Level, ...] | None  # for text or categories: those that occur; else None
    distinct: np.ndarray  # float64[...], for numbers: the distinct ones, or `MAX_CLASSES` of them if there are `too_many`
    too_many: bool  # whether there are more than `MAX_CLASSES` distinct numbers
    dtype: str
    is_bool: bool


def scan_target(target: Column | None, weight: np.ndarray | None, dtype: str, is_bool: bool) -> TargetScan | None:
    """Return the scan of some rows; None if none of them has a positive weight."""
    if target is None:
        return None
    if isinstance(target, CategoryColumn):
        codes = target.codes if weight is None else target.codes[weight > 0]
        occurs = np.bincount(codes[codes >= 0], minlength=len(target.categories)) > 0
        levels = tuple(level for level, there in zip(target.categories, occurs, strict=True) if there)
        return TargetScan(levels, np.empty(0), False, dtype, is_bool)
    values = target if weight is None else target[weight > 0]
    if not len(values):
        return None
    some = np.unique(values[: 4 * MAX_CLASSES])
    distinct = some if len(some) > MAX_CLASSES else np.unique(values)
    return TargetScan(None, distinct[:MAX_CLASSES], len(distinct) > MAX_CLASSES, dtype, is_bool)


def merge_target_scans(a: TargetScan, b: TargetScan) -> TargetScan:
    """Return the scan of the rows of both."""
    if a.categories is not None or b.categories is not None:
        index = CategoryIndex("target")
        for one in (a, b):
            index.translate(one.categories or ())
        return TargetScan(index.finish()[0], np.empty(0), False, levels_dtype(index.finish()[0]), False)
    distinct = np.unique(np.concatenate((a.distinct, b.distinct)))
    too_many = a.too_many or b.too_many or len(distinct) > MAX_CLASSES
    return TargetScan(None, distinct[:MAX_CLASSES], too_many, result_dtype((a.dtype, b.dtype)), a.is_bool and b.is_bool)


@dataclass(frozen=True, eq=False)
class _Distinct:
    """A target with every distinct value once, with the attributes of `Table` that `choose_target` uses."""

    target: Column
    target_dtype: str
    target_is_bool: bool
    weight: None = None

    def row_name(self, row: int) -> str:
        return "some row"


def merge_target_scans_to_target(scans: Sequence[TargetScan], parameters: Parameters) -> Target:
    """Return the loss and the classes of all scanned rows, without rows.

    Raises
    ------
    DataError
        As `choose_target`, or if there are too many classes.
    """
    loss_name = parameters.loss_name
    if any(target.categories is not None for target in scans):
        distinct = _levels(scans)
    else:
        dtype = result_dtype(target.dtype for target in scans)
        values = np.unique(np.concatenate([target.distinct for target in scans]))
        distinct = _Distinct(values, dtype, all(target.is_bool for target in scans))
        classification = loss_name != "auto" and loss_for(parameters, loss_name).is_classification
        if classification and (any(target.too_many for target in scans) or len(values) > MAX_CLASSES):
            fractions = not (values == np.rint(values)).all()
            what = "Unknown label type: continuous. A classifier wants classes, but the target holds fractions"
            raise DataError(what if fractions else f"the target has more than {MAX_CLASSES} classes")
    target = choose_target(distinct, parameters)  # type: ignore[arg-type]
    return Target(target.loss, np.empty(0), target.classes, target.classes_dtype)


def _levels(scans: Sequence[TargetScan]) -> _Distinct:
    index = CategoryIndex("target")
    for target in scans:
        index.translate(target.categories if target.categories is not None else ())
    levels: tuple[Level, ...] = index.finish()[0]
    return _Distinct(CategoryColumn(np.arange(len(levels), dtype=np.int32), levels), levels_dtype(levels), False)
