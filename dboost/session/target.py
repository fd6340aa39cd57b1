"""From the user's target column to a loss, its classes, and float64 values.

The target determines the loss (with ``loss="auto"``) and the classes. On a cluster no process has all rows, so the decision has
two steps. `scan_target` collects the distinct values of a range of rows, at most `MAX_CLASSES` of them, and
`merge_target_scans` merges two scans. `choose_target` derives the loss and the classes from the scans. Sessions then encode
their rows (`encode_like`, `encode_chunk`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from dboost.data import RowRoles, Table
from dboost.data.columns.chunk import CategoryIndex, too_many_classes
from dboost.data.columns.column import CategoryColumn, Column
from dboost.data.columns.labels import listed, may_name_columns
from dboost.data.columns.roles import n_columns_of
from dboost.data.kinds.table_kinds import names_of_table
from dboost.data.tables.row_metadata import EXACT, RowPlace, levels_dtype, result_dtype
from dboost.display import number
from dboost.errors import DataError, ParameterError, warn
from dboost.losses import BaseLoss, Loss, PerOutput, as_loss, auto_loss, by_name
from dboost.model.ensemble import Ensemble
from dboost.params import Parameters
from dboost.schema import MAX_CLASSES, MAX_LEVELS, Level

_log = logging.getLogger("dboost")


@dataclass(frozen=True, eq=False)
class EncodedRoles(RowRoles):
    """The roles of some rows of positive weight, with encoded targets."""

    #: Raw scores by a model of other data that is continued: float64[n_outputs, n]. They include the offset.
    start_scores: np.ndarray | None = None

    @classmethod
    def with_scores(cls, roles: RowRoles, start_scores: np.ndarray | None) -> EncodedRoles:
        """Return roles, whose targets are encoded, with start scores."""
        return cls(roles.target, roles.weight, roles.offset, roles.group, start_scores)


@dataclass(frozen=True, eq=False)
class Target:
    """The loss and the classes. Encoded targets are float64, for classes 0, 1, 2, …"""

    loss: BaseLoss
    classes: tuple[Level, ...] | None
    classes_dtype: str | None

    @property
    def n_classes(self) -> int | None:
        """Number of classes; None for numbers."""
        return None if self.classes is None else len(self.classes)

    @property
    def is_classification(self) -> bool:
        """Whether the target holds classes, or every one of several targets labels."""
        parts = self.loss.parts
        return self.classes is not None or (len(parts) > 0 and all(part.targets.are_classes for part in parts))

    @property
    def columns(self) -> tuple[str, ...]:
        """What the columns of the target are."""
        return self.loss.targets.columns

    def zeros(self, n: int) -> np.ndarray:
        """Return targets of rows that do not count: float64[n], or [n_columns, n]."""
        return np.zeros(n if len(self.columns) == 1 else (len(self.columns), n))

    def location(self, y: np.ndarray) -> np.ndarray:
        """Return one number for each encoded target: float64[n]; see `Targets.location`."""
        return self.loss.targets.locations(y)


def _holds(dtype: str, classes: tuple[Level, ...]) -> bool:
    """Return whether an array of a dtype has the same values as the classes."""
    try:
        return bool(np.array(classes, np.dtype(dtype)).tolist() == list(classes))
    except OverflowError:
        return False


def target_of(model: Ensemble, parameters: Parameters) -> Target:
    """Return loss and classes of a model that is continued."""
    if len(model.loss.get("targets", model.loss.get("outputs", ()))) > 1:
        return Target(loss_of_targets(parameters, model.loss["outputs"]), None, None)
    loss = loss_for(parameters, parameters.loss_name, max(2, model.n_outputs))
    return Target(loss, model.classes, model.classes_dtype)


def target_for(classes: tuple[Level, ...], parameters: Parameters) -> Target:
    """Return loss and classes if all classes are known before the data are read."""
    if len(classes) < 2:
        raise ParameterError(f"classes={list(classes)!r}: a classifier needs at least two classes")
    if any(isinstance(level, float) and abs(level) >= EXACT for level in classes):
        raise ParameterError(f"classes={list(classes)!r:.200}: {_INEXACT}")
    if len(classes) > MAX_CLASSES:
        raise ParameterError(f"classes has {len(classes):,} classes, but at most {MAX_CLASSES:,} are possible")
    loss = loss_for(parameters, parameters.loss_name, len(classes))
    return Target(loss, classes, "object" if isinstance(classes[0], str) else str(np.array(classes).dtype))


def continued(work: Callable[[], Any]) -> Any:
    """Return ``work()``; prefix the message of a DataError with the fact that the data continue a model."""
    try:
        return work()
    except DataError as error:
        raise DataError(f"the data do not continue the model: {error}") from error


def loss_for(parameters: Parameters, name: str, n_classes: int = 2) -> BaseLoss:
    """Return the loss of that name, with its own parameters.

    Raises
    ------
    DataError
        If the loss supports fewer classes.
    ParameterError
        If a parameter does not apply to the loss.
    """
    if isinstance(parameters.loss, tuple):
        raise ParameterError(f"loss is a list of {len(parameters.loss)} losses, but the target has one column: give one loss")
    return _checked(parameters, _made(parameters, name, n_classes))


def _made(parameters: Parameters, loss: str | Loss, n_classes: int = 2) -> BaseLoss:
    """Return the loss of a name, or the user's."""
    custom = parameters.loss if isinstance(loss, str) else loss
    if isinstance(custom, Loss):
        return as_loss(custom).for_classes(n_classes)
    return by_name(str(loss), n_classes, **vars(parameters))


def _checked(parameters: Parameters, loss: BaseLoss) -> BaseLoss:
    if parameters.influence_trimming is not None and not loss.can_trim:
        raise ParameterError(f"influence_trimming is for loss='log_loss', not for loss={loss.name!r}")
    return loss


def loss_of_targets(parameters: Parameters, names: Sequence[str], auto: str = "squared_error") -> BaseLoss:
    """Return the loss of several targets.

    names : of the targets; auto : the loss that "auto" stands for.

    Raises
    ------
    ParameterError
        If the losses are not as many as the targets, or one of them is not for single numbers.
    """
    loss = parameters.loss
    each = list(loss) if isinstance(loss, tuple) else [auto if loss == "auto" else loss] * len(names)
    if len(each) != len(names):
        raise ParameterError(f"loss is a list of {len(each)} losses, but the target has {len(names)} columns")
    return _checked(parameters, PerOutput([_made(parameters, name) for name in each], names))


def check_range(loss: BaseLoss, values: np.ndarray, place: Callable[[int], RowPlace | str]) -> None:
    """Raise DataError, with the place of the first row, if targets (float64[n] or [n_columns, n]) are invalid for the loss."""
    wrong = loss.targets.invalid_rows(values)
    if wrong is not None and wrong.any():
        row = int(np.argmax(wrong))
        where = place(row)
        raise DataError(f"{loss.targets.refusal(loss.name, values[..., row])} in {where}").at(where)


def encode_like(table: Table, target: Target) -> np.ndarray:
    """Return the target of a table, encoded like the training target: float64[n_rows]."""
    return _encode(table, table.all_roles, target, table.place)


def encode_chunk(table: Table, k: int, target: Target) -> np.ndarray:
    """Return the target of chunk k, encoded like the training target: float64[n]; zeros without rows of positive weight."""
    roles = table.roles(k)
    if not table.lengths[k] or (roles.weight is not None and not (roles.weight > 0).any()):
        return target.zeros(table.lengths[k])
    first = sum(table.lengths[:k])
    return _encode(table, roles, target, lambda row: table.place(first + row))


def _encode(table: Table, roles: RowRoles, target: Target, place: Callable[[int], RowPlace]) -> np.ndarray:
    """Encode the target of some rows of a table. place : maps a position in `roles` to the row's place."""
    assert roles.target is not None
    column = _counted(roles.target, roles.weight)
    return encode_column(column, target, place, dtype=str(table.target_dtype), is_bool=table.target_is_bool)


def encode_column(
    column: Column, target: Target, place: Callable[[int], RowPlace | str], *, dtype: str = "float64", is_bool: bool = False
) -> np.ndarray:
    """Return targets, each of which counts, encoded for the loss: float64[n].

    Parameters
    ----------
    column : float64[n], float64[n_columns, n] or CategoryColumn
    target : Target
    place : callable
        Returns the place of a row, or its name for messages, given its position.
    dtype : str, default "float64"
        Of the user's target, for messages.
    is_bool : bool, default False
        Whether the user's target holds truth values.
    """
    # As `choose_target`, which is not asked if a model or classes are given.
    target.loss.targets.check_columns(target.loss.name, n_columns_of(column))
    if target.classes is None:
        if not isinstance(column, np.ndarray):
            raise DataError("the target holds categories or text, the training target numbers")
        check_range(target.loss, column, place)
        return column
    classes: tuple[Level, ...]
    flaws: dict[str, np.ndarray] = {}
    if isinstance(column, CategoryColumn):
        codes, classes = column.codes, column.categories
    else:
        if not any(isinstance(level, str) for level in target.classes):
            encoded = _positions(target.classes, column, place)
            if encoded is not None:
                return encoded
        values, codes = np.unique(column, return_inverse=True)
        classes, flaws = _levels(values, dtype, is_bool)[0], _flaws(values, dtype, is_bool)
    known = {level: code for code, level in enumerate(target.classes)}
    encoded = np.array([known.get(level, -1) for level in classes], np.float64)
    is_wrong = reduce(np.logical_or, flaws.values(), encoded < 0)[codes]
    if not is_wrong.any():
        return encoded[codes]
    row = int(np.argmax(is_wrong))
    message = f"the target holds a class that the training target has not: {classes[codes[row]]!r}"
    raise DataError(next((flaw for flaw, flags in flaws.items() if flags[codes[row]]), message)).at(place(row))


def _positions(classes: tuple[Level, ...], values: np.ndarray, place: Callable[[int], RowPlace | str]) -> np.ndarray | None:
    """Return the position of each value among ascending classes, as float64; None if one of them is not there.

    Raises
    ------
    DataError
        If classes and values are so large that a value may be the float of several classes.
    """
    numbers = np.array(classes, np.float64)
    if max(numbers[-1], -numbers[0]) >= EXACT and (np.abs(values) >= EXACT).any():
        raise DataError(_LARGE).at(place(int(np.argmax(np.abs(values) >= EXACT))))
    positions = np.empty(len(values))
    for first in range(0, len(values), PIECE):
        piece = values[first : first + PIECE]
        at = np.minimum(np.searchsorted(numbers, piece), len(numbers) - 1)
        if (numbers[at] != piece).any():
            return None
        positions[first : first + PIECE] = at
    return positions


def _counted(column: Column, weight: np.ndarray | None) -> Column:
    """Return a target; rows of weight zero get the value of a row of positive weight, so that they have no influence."""
    if weight is None or weight.all():
        return column
    counts, first_counted = weight > 0, int(np.argmax(weight > 0))
    if isinstance(column, CategoryColumn):
        return CategoryColumn(np.where(counts, column.codes, column.codes[first_counted]), column.categories)
    return np.where(counts, column, column[..., first_counted : first_counted + 1])


def _classes(values: np.ndarray, dtype: str, is_bool: bool) -> tuple[tuple[Level, ...], str]:
    """Return the classes of distinct numbers, and their dtype; see `_levels`; a DataError if some are no classes."""
    for flaw, flags in _flaws(values, dtype, is_bool).items():
        if flags.any():
            raise DataError(flaw)
    return _levels(values, dtype, is_bool)


def _levels(values: np.ndarray, dtype: str, is_bool: bool) -> tuple[tuple[Level, ...], str]:
    """Return distinct numbers (float64, ascending) as levels, and their dtype. dtype, is_bool : of the user's target."""
    kind = bool if is_bool else int if np.issubdtype(np.dtype(dtype), np.integer) else float
    return tuple(map(kind, values.tolist())), "bool" if is_bool else dtype


def _flaws(values: np.ndarray, dtype: str, is_bool: bool) -> dict[str, np.ndarray]:
    """Return why numbers are no classes, and of which that is true: bool[n]. dtype, is_bool : of the user's target."""
    if is_bool or np.issubdtype(np.dtype(dtype), np.integer):
        return {}
    return {_FRACTIONS: values != np.rint(values), _LARGE: np.abs(values) >= EXACT}


_INEXACT = "one float may stand for several integers; convert them to categories of integers, or to text"
_LARGE = f"the target holds classes that are floats of 2**53 or more: {_INEXACT}"
_FRACTIONS = "Unknown label type: continuous. A classifier wants classes, but the target holds fractions"
#: Targets are encoded so many rows at a time: temporary arrays of all rows would be the largest of the fit.
PIECE = 2**18


@dataclass(frozen=True, eq=False)
class TargetScan:
    """The distinct target values of some rows of positive weight, from which loss and classes are chosen."""

    categories: tuple[Level, ...] | None  # for text or categories: those that occur; else None
    distinct: np.ndarray  # float64[...], for numbers: the distinct ones, or `MAX_CLASSES` of them if there are `too_many`
    too_many: bool  # whether there are more than `MAX_CLASSES` distinct numbers or categories
    dtype: str
    is_bool: bool
    #: Several columns are of numbers. Then `distinct` is of all together if they are zeros and ones, else empty.
    n_columns: int = 1


def scan_target(target: Column | None, weight: np.ndarray | None, dtype: str, is_bool: bool) -> TargetScan | None:
    """Return the scan of some rows; None if none of them has a positive weight."""
    if target is None:
        return None
    if isinstance(target, CategoryColumn):
        codes = target.codes if weight is None else target.codes[weight > 0]
        occurs = np.bincount(codes[codes >= 0], minlength=len(target.categories)) > 0
        levels = tuple(level for level, occurs_in_rows in zip(target.categories, occurs, strict=True) if occurs_in_rows)
        return TargetScan(levels, np.empty(0), len(levels) > MAX_CLASSES, dtype, is_bool)
    values = target if weight is None else target[..., weight > 0]
    if not values.size:
        return None
    if values.ndim == 2:
        are_labels = bool(((values == 0.0) | (values == 1.0)).all())
        return TargetScan(None, np.unique(values) if are_labels else np.empty(0), False, dtype, is_bool, len(values))
    distinct = _distinct(values)
    return TargetScan(None, distinct[:MAX_CLASSES], len(distinct) > MAX_CLASSES, dtype, is_bool)


def _distinct(values: np.ndarray) -> np.ndarray:
    """Return the distinct numbers, ascending; only those of the first rows if there are more than `MAX_CLASSES` of them."""
    n_first = 4 * MAX_CLASSES
    known = np.unique(values[:n_first])
    if len(known) > MAX_CLASSES:
        return known
    for first in range(n_first, len(values), PIECE):
        piece = values[first : first + PIECE]
        is_new = known[np.minimum(np.searchsorted(known, piece), len(known) - 1)] != piece
        if is_new.any():
            known = np.union1d(known, piece[is_new])
    return known


def merge_target_scans(a: TargetScan, b: TargetScan) -> TargetScan:
    """Return the scan of the rows of both."""
    if a.categories is not None or b.categories is not None:
        both = a.categories or (), b.categories or ()
        if a.too_many or b.too_many:  # they are counted only, for the message
            return TargetScan(tuple(dict.fromkeys((*both[0], *both[1])))[:MAX_LEVELS], np.empty(0), True, "object", False)
        index = CategoryIndex("target", is_target=True)
        for levels in both:
            index.translate(levels)
        levels, _ = index.finish()
        return TargetScan(levels, np.empty(0), len(levels) > MAX_CLASSES, levels_dtype(levels), False)
    distinct = np.unique(np.concatenate((a.distinct, b.distinct)))
    if a.n_columns > 1 and not (len(a.distinct) and len(b.distinct)):
        distinct = np.empty(0)
    too_many = a.too_many or b.too_many or len(distinct) > MAX_CLASSES
    dtype, is_bool = result_dtype((a.dtype, b.dtype)), a.is_bool and b.is_bool
    return TargetScan(None, distinct[:MAX_CLASSES], too_many, dtype, is_bool, a.n_columns)


def scan_targets(table: Table) -> list[TargetScan]:
    """Return the merged scan of the target of all chunks; an empty list without rows of positive weight."""
    scans: list[TargetScan] = []
    for i, length in enumerate(table.lengths):
        if length:
            roles = table.roles(i)
            scan = scan_target(roles.target, roles.weight, str(table.target_dtype), table.target_is_bool)
            if scan is not None:
                scans = [reduce(merge_target_scans, (*scans, scan))]
    return scans


#: Numbers of distinct integers that are as likely classes as they are numbers; two distinct numbers of any kind are, too.
_LIKE_CLASSES = range(3, 51)


def _tell_choice(
    loss: BaseLoss, classes: tuple[Level, ...] | None, values: np.ndarray, dtype: str, name: str, of_classes: str
) -> None:
    """Log which loss "auto" stands for, and warn if the target may be meant otherwise. of_classes : the loss for classes."""
    n = len(values) if classes is None else len(classes)
    kind = f"{n} classes" if loss.targets.are_classes else "numbers"
    _log.info("loss='auto' is %r: the target holds %s", loss.name, kind)
    if classes is not None:
        from dboost.data.columns.numbers_as_text import hint

        how = hint(name, classes, is_column=name != "target")
        if how:
            warn(f"the target holds text and is taken as {n} classes: give loss={of_classes!r} to say so{how}")
        return
    if loss.targets.are_classes:
        return
    is_integer = np.issubdtype(np.dtype(dtype), np.integer)
    if n == 2 or (n in _LIKE_CLASSES and is_integer):
        choice = f"the target holds {n} different integers, which are taken as numbers"
        if n == 2:
            two = " and ".join(map(number, values))
            choice = f"the target holds two different numbers, {two}, which are taken as numbers"
        warn(f"{choice}: give loss='squared_error' to say so, or loss={of_classes!r} if they are classes")
    elif values.tolist() in ([0.0], [1.0]):
        warn(
            f"the target is {number(values[0])} in all rows and is taken as a number: give loss='squared_error' to say so; if "
            "0 and 1 are classes, rows of both are needed"
        )


def check_number_of_classes(scan: TargetScan, name: str) -> None:
    """Raise a DataError if the values cannot be classes because there are too many. name : of the target's column."""
    if not scan.too_many:
        return
    if scan.categories is not None:
        n = len(scan.categories)
        raise too_many_classes(name, f"{n:,}" if n < MAX_LEVELS else f"{n:,} or more", scan.categories)
    if (scan.distinct == np.rint(scan.distinct)).all():
        raise too_many_classes(name, f"more than {MAX_CLASSES:,}", None)
    raise DataError(_FRACTIONS)


def name_of_target(target: Any) -> str:
    """Return the name of the target's column for messages; "target" if the values were given separately."""
    return str(target) if isinstance(target, (str, int)) else "target"


def names_of_targets(target: Any, n_columns: int) -> list[str]:
    """Return the names of several target columns: those of their columns in a table, else their numbers from 0."""
    return _known_names(target, n_columns) or list(map(str, range(n_columns)))


def _known_names(target: Any, n_columns: int) -> list[str]:
    """Return the names of several target columns, none if they have no names."""
    names = list(target if may_name_columns(target) else names_of_table(target) or ())
    return list(map(str, names)) if len(names) == n_columns else []


def check_order_of_targets(target: Any, loss: BaseLoss) -> None:
    """Raise a DataError if a target column has the name of a column of the loss, but another place.

    target : names of columns (see `with_named_targets`), or a table. Columns of other names are those at their places.
    """
    wanted = list(loss.targets.columns)
    names = _known_names(target, len(wanted)) if len(wanted) > 1 else []
    if any(name in wanted and name != model_name for name, model_name in zip(names, wanted, strict=False)):
        raise DataError(
            f"the columns of the target are {listed(names)}, but the model has {listed(wanted)}: give them in this order"
        )


def check_categories(scans: Sequence[TargetScan], name: str) -> TargetScan:
    """Return the scan of all rows; raise a DataError if text or categories are too many, whatever the loss will be."""
    scan = reduce(merge_target_scans, scans)
    if scan.categories is not None:
        check_number_of_classes(scan, name)
    return scan


def _is_for_each(loss: Any) -> bool:
    """Whether a value of the parameter `loss` means a loss for each of several target columns."""
    return not isinstance(loss, Loss) or (loss.n_outputs == 1 and len(loss.targets.columns) == 1)


def choose_target(scans: Sequence[TargetScan], parameters: Parameters, named_target: Any = None) -> Target:
    """Choose the loss ("auto": by the target's kind) and the classes from the scans of all rows of positive weight.

    named_target : the target as the user gave it: a name, several, or values.

    Raises
    ------
    DataError
        If there is one class only or too many, if there are more than two for a binary loss, or if the target has text or
        categories and the loss needs numbers.
    """
    scan = reduce(merge_target_scans, scans)
    classes, values, dtype = scan.categories, scan.distinct, scan.dtype
    if classes is not None:  # the dtype of the target may be that of categories in rows of weight zero
        dtype = levels_dtype(classes)
    is_auto, loss_name, name = parameters.loss_name == "auto", parameters.loss_name, name_of_target(named_target)
    if is_auto:
        loss_name = auto_loss(
            classes is not None or scan.is_bool or values.tolist() == [0.0, 1.0], of_forest=parameters.is_forest
        )
    if scan.n_columns > 1 and _is_for_each(parameters.loss):
        names = names_of_targets(named_target, scan.n_columns)
        if is_auto:
            kind = "numbers" if loss_name == "squared_error" else "zeros and ones"
            _log.info("loss='auto' is %r for each of %d targets, which hold %s", loss_name, len(names), kind)
        return Target(loss_of_targets(parameters, names, loss_name), None, None)
    loss = loss_for(parameters, loss_name)
    loss.targets.check_columns(loss.name, scan.n_columns)
    if is_auto:
        _tell_choice(loss, classes, values, dtype, name, auto_loss(True, of_forest=parameters.is_forest))
    if not loss.targets.are_classes:
        if classes is not None:
            from dboost.data.columns.numbers_as_text import hint

            how = hint(name, classes, is_column=name != "target")
            raise DataError(f"loss {loss_name!r} needs a numeric target, but the target holds categories or text{how}")
        return Target(loss, None, None)
    check_number_of_classes(scan, name)
    if classes is None:
        classes, dtype = _classes(values, dtype, scan.is_bool)
    if len(classes) < 2:
        raise DataError(f"the target has one class only ({classes[0]!r}); a classifier needs at least two classes")
    if not _holds(dtype, classes):
        raise DataError(
            f"no type of NumPy holds all classes of the target as numbers, such as {classes[0]!r} and {classes[-1]!r}: "
            "convert them to text"
        )
    if len(classes) > 2:
        loss = loss_for(parameters, loss_name, len(classes))
    return Target(loss, classes, dtype)
