"""Folds of a cross-validation: how rows are divided into those that a fold trains on and those that it holds out.

A fold is one byte per row (`session.row_samples.FoldRows`). A number of folds deals the rows out by hashes of their positions,
each class evenly, groups as a whole, or in the order of time; pairs, one value per row and splitters of scikit-learn say
themselves which rows they mean. Positions and values count the rows of the table, also those of weight 0, which no fold has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from numbers import Number
from typing import Any, NamedTuple

import numpy as np

from dboost._lazy_import import pd
from dboost.data import CategoryColumn, Column
from dboost.data.columns.times import plain_times, ranks_in_time
from dboost.errors import DataError, InputTypeError, ParameterError, warn
from dboost.losses import BaseLoss
from dboost.rows.row_sample import derive_seed, hash_rows
from dboost.session.row_samples import TEST, TRAIN, UNUSED, FoldRows, sharing_codes
from dboost.session.target import Target

#: Purpose of the hashes that assign rows to folds, see `rows.row_sample.derive_seed`.
_FOLDS = 7
#: Classes that are named in warnings.
_MOST_CLASSES = 3
#: Folds without a number.
_DEFAULT_FOLDS = 5


class FoldDivision(NamedTuple):
    """Keywords of `cv` that divide the rows."""

    folds: Any
    groups: Any
    time: Any
    repeats: int
    #: The folds of the result that is continued; they are used unless others are given.
    known: Sequence[FoldRows] = ()
    #: bool[n_rows] of a table with rows of weight 0: whether a row has a positive weight. Values and pairs count all rows.
    is_kept: np.ndarray | None = None

    @property
    def least(self) -> int:
        """The number of folds, as far as it is known before the data are read."""
        if self.known:
            return len(self.known)
        if self.folds is not None and (not isinstance(self.folds, int) or isinstance(self.folds, bool)):
            return 1
        n_folds = _DEFAULT_FOLDS if self.folds is None else self.folds
        return max(n_folds * self.repeats, 1) if isinstance(self.repeats, int) else 1

    @property
    def can_keep_groups(self) -> bool:
        """Whether the folds are those of a number or of a splitter, which keep groups together."""
        is_number = self.folds is None or (isinstance(self.folds, Number) and not isinstance(self.folds, bool))
        return self.time is None and (is_number or hasattr(self.folds, "split"))

    def divide(self, n_rows: int, targets: Column, target: Target, seed: int, keys: np.ndarray | None = None) -> list[FoldRows]:
        """Return the folds that can be fitted; raise a ParameterError or a DataError if they are not those of `known`.

        keys : of the groups of the rows, which folds keep together if they can.
        """
        known = self.known
        if known and len(known[0].uses) != n_rows:
            raise DataError(f"start_from is a result of {len(known[0].uses)} rows of positive weight, the data have {n_rows}")
        if known and self.folds is None and self.groups is None and self.time is None and self.repeats == 1:
            return list(known)
        if keys is not None and self.is_kept is not None:
            kept_keys, keys = keys, np.zeros(len(self.is_kept), keys.dtype)
            keys[self.is_kept] = kept_keys
        folds = split_rows(
            _DEFAULT_FOLDS if self.folds is None else self.folds, n_rows, lambda: targets,
            groups=keys if self.groups is None and self.can_keep_groups else self.groups, time=self.time,
            repeats=self.repeats, is_classification=target.classes is not None, seed=seed, is_kept=self.is_kept,
        )  # fmt: skip
        folds = usable_folds(folds, targets, target.loss)
        if target.classes is not None:
            warn_of_classes(folds, targets)
        same = [np.array_equal(fold.uses, known_fold.uses) for fold, known_fold in zip(folds, known, strict=False)]
        if known and not (len(folds) == len(known) and all(same)):
            raise ParameterError("start_from is a result of other folds: leave folds, groups, time and repeats out")
        return folds


def split_rows(
    folds: Any,
    n_rows: int,
    targets: Callable[[], Column],
    *,
    groups: Any = None,
    time: Any = None,
    repeats: int = 1,
    is_classification: bool,
    seed: int,
    is_kept: np.ndarray | None = None,
) -> list[FoldRows]:
    """Return the folds of a cross-validation.

    Parameters
    ----------
    folds : int, iterable of (train, test), one value per row, or splitter of scikit-learn
    n_rows : int
        Number of rows to divide.
    targets : callable
        Returns the targets of all rows.
    groups : one value per row, optional
        For splitters; with a number of folds, rows of a group are in the same fold.
    time : one value per row, optional
        With a number of folds: the rows are ordered by it and divided into one part more than there are folds. A fold trains on
        all parts before the one that it holds out. Rows of equal time are in the same part.
    repeats : int
        Number of times that a number of folds divides the rows, each time differently. Default 1.
    is_classification : bool
        Whether a number of folds divides each class evenly.
    seed : int
        Of the assignment of rows to a number of folds.
    is_kept : bool[...], optional
        For each row of the table whether it is one of the n_rows, if not all are: pairs, and values per row, count the rows of
        the table.

    Raises
    ------
    ParameterError, InputTypeError
        If the folds do not match the rows, or a fold has no row to train on or to hold out.
    DataError
        If folds, groups or times of rows are missing.
    """
    is_kept = np.ones(n_rows, bool) if is_kept is None else is_kept
    row_groups = None if groups is None else _per_row(groups, is_kept, "groups")
    is_number = isinstance(folds, int | np.integer) and not isinstance(folds, bool)
    _check_options(folds, time, repeats, is_number=is_number, has_groups=groups is not None)
    if is_number and time is not None:
        divided = _ordered(int(folds), ranks_in_time(_per_row(plain_times(computed(time)), is_kept, "time"), "time"))
    elif is_number:
        divided = []
        for repeat in range(repeats):
            repeat_seed = derive_seed(seed, _FOLDS, repeat) if repeat else derive_seed(seed, _FOLDS)
            if row_groups is not None:
                numbers = _grouped(int(folds), row_groups, repeat_seed, is_first=repeat == 0)
            else:
                numbers = _numbered(int(folds), n_rows, targets, is_classification, repeat_seed)
            divided += [_of_test(numbers == fold) for fold in range(int(folds))]
    elif hasattr(folds, "split") and not isinstance(folds, type):
        y = _plain(targets())
        divided = [_of_pair(pair, np.ones(n_rows, bool)) for pair in folds.split(np.zeros((n_rows, 1)), y, row_groups)]
    elif _is_column(folds):
        if groups is not None:
            raise ParameterError("groups do not go together with the fold of each row: leave one of them out")
        values = _per_row(folds, is_kept, "folds")
        divided = [_of_test(values == value) for value in np.unique(values)]
        if len(divided) < 2:
            raise ParameterError("folds: all rows are in the same fold; at least two are needed")
    elif isinstance(folds, Iterable) and not isinstance(folds, str):
        if groups is not None:
            raise ParameterError("groups do not go together with pairs (train, test): leave one of them out")
        divided = [_of_pair(pair, is_kept) for pair in folds]
    else:
        raise InputTypeError(
            f"folds={folds!r:.60} must be a number, pairs (train, test), the fold of each row, or a splitter of scikit-learn"
        )
    _check_not_empty(divided)
    return sharing_codes(divided)


def _check_options(folds: Any, time: Any, repeats: Any, *, is_number: bool, has_groups: bool) -> None:
    """Raise a ParameterError for options that do not go together. is_number : whether `folds` is a number."""
    if isinstance(repeats, bool) or not isinstance(repeats, int | np.integer) or repeats < 1:
        raise ParameterError(f"repeats={repeats!r} must be a number of at least 1")
    for name, is_given in (("time", time is not None), ("repeats", repeats > 1)):
        if is_given and not is_number:
            raise ParameterError(f"{name} needs a number of folds, not {type(folds).__name__}: leave it out")
    if time is not None and has_groups:
        raise ParameterError("groups do not go together with time: leave one of them out")
    if time is not None and repeats > 1:
        raise ParameterError("repeats do not go together with time, which divides the rows in one way only")


def _check_not_empty(folds: Sequence[FoldRows]) -> None:
    """Raise a ParameterError if there is no fold, or one that trains on no row or holds none out."""
    if not folds:
        raise ParameterError("folds: there is no fold")
    for number, fold in enumerate(folds):
        for use, purpose in ((TRAIN, "train on"), (TEST, "hold out")):
            if not (fold.uses == use).any():
                raise ParameterError(f"folds: fold {number} has no row to {purpose}")


def _numbered(
    n_folds: int,
    n_rows: int,
    targets: Callable[[], Column],
    is_classification: bool,
    seed: int,
) -> np.ndarray:
    """Return the fold of each row: each class is shuffled by hashes and dealt out evenly."""
    _check_number(n_folds, n_rows)
    order = np.argsort(hash_rows(seed, np.arange(n_rows)), kind="stable")
    if is_classification:
        target = targets()
        codes = target.codes if isinstance(target, CategoryColumn) else np.unique(target, return_inverse=True)[1]
        counts = np.bincount(codes)
        if counts.max() < n_folds:
            raise ParameterError(f"folds={n_folds} is more than the rows of any class: the largest has {counts.max()}")
        order = order[np.argsort(codes[order], kind="stable")]
    numbers = np.empty(n_rows, np.int64)
    numbers[order] = np.arange(n_rows) % n_folds
    return numbers


def warn_of_classes(folds: Sequence[FoldRows], targets: Column) -> None:
    """Warn of classes of which a fold trains on no row, or with fewer rows than folds, of which one holds out none.

    Names the first three of them.
    """
    if isinstance(targets, CategoryColumn):
        names, codes = list(targets.categories), targets.codes
    else:
        if targets.ndim > 1:  # several labels
            return
        levels, codes = np.unique(targets, return_inverse=True)
        names = levels.tolist()
    n_classes = len(names)
    trained, held_out = (
        np.array([np.bincount(codes[fold.uses == use], minlength=n_classes) for fold in folds]) for use in (TRAIN, TEST)
    )
    n_rows = np.bincount(codes, minlength=n_classes)
    is_untrained, is_unscored = (trained == 0).any(axis=0), (n_rows < len(folds)) & (held_out == 0).any(axis=0)
    for code in np.flatnonzero((n_rows > 0) & (is_untrained | is_unscored))[:_MOST_CLASSES].tolist():
        lacks = []
        for counts, verb in ((trained, "train"), (held_out, "hold out")):
            numbers = np.flatnonzero(counts[:, code] == 0).tolist()
            if numbers:
                verb = verb if len(numbers) > 1 else "trains" if verb == "train" else "holds out"
                lacks.append(f"{_folds(numbers)} {verb}{' on' * verb.startswith('train')} none")
        rows = f"{n_rows[code]} row{'s' if n_rows[code] > 1 else ''}"
        warn(f"class {names[code]!r} has {rows}: {' and '.join(lacks)}; give fewer folds, or leave the class out")


def usable_folds(folds: list[FoldRows], targets: Column, loss: BaseLoss) -> list[FoldRows]:
    """Return the folds whose training rows have targets that the loss can begin with; warn of the others.

    Raises
    ------
    DataError
        If there is none.
    """
    losses = loss.parts or (loss,)
    columns = [column for column, part in enumerate(losses) if part.targets.valid == "non-negative"]
    if not columns or isinstance(targets, CategoryColumn):
        return folds
    is_positive = np.atleast_2d(targets)[columns] > 0
    left_out = [number for number, fold in enumerate(folds) if not is_positive[:, fold.uses == TRAIN].any(axis=1).all()]
    if not left_out:
        return folds
    reason = f"all targets of the rows to train on are 0, and loss={losses[columns[0]].name!r} needs a positive one"
    if len(left_out) == len(folds):
        raise DataError(f"in every fold {reason}")
    rest = "; the others are numbered from 0 in their order" if left_out[0] < len(folds) - len(left_out) else ""
    verb = "are" if len(left_out) > 1 else "is"
    warn(f"{_folds(left_out)} of {len(folds)} {verb} left out: {reason}; give fewer or other folds{rest}")
    return [fold for number, fold in enumerate(folds) if number not in set(left_out)]


def _folds(numbers: Sequence[int]) -> str:
    return f"fold{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def _ordered(n_folds: int, time: np.ndarray) -> list[FoldRows]:
    """Return folds that hold out one part of the time after the other, and train on all parts before."""
    if n_folds < 1:
        raise ParameterError(f"folds={n_folds} must be at least 1 with time")
    _, row_times, counts = np.unique(time, return_inverse=True, return_counts=True)
    first = np.cumsum(counts) - counts  # position of the first row of each time
    part = (first * (n_folds + 1) // len(time))[row_times]
    is_held = [part == number for number in range(1, n_folds + 1)]
    if not (part == 0).any() or not all(rows.any() for rows in is_held):
        values = f"the {len(counts)} distinct values of time"
        raise ParameterError(f"folds={n_folds} is too many for {values}: a fold has no row to hold out or to train on")
    return [FoldRows(np.where(held, TEST, np.where(part < number, TRAIN, UNUSED))) for number, held in enumerate(is_held, 1)]


def _grouped(n_folds: int, groups: np.ndarray, seed: int, *, is_first: bool) -> np.ndarray:
    """Return the fold of each row, all rows of a group in the same one: each group to the fold with the fewest rows so far.

    At first the largest groups come first. Repetitions take groups of at least half the size of the largest first, then those
    of at least a quarter, and so on, each time in another order: so the folds differ also if all groups differ in size.
    """
    _check_number(n_folds, len(groups))
    _, group_of_row, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    if len(sizes) < n_folds:
        raise ParameterError(f"folds={n_folds} is more than the {len(sizes)} groups")
    n_rows = np.zeros(n_folds, np.int64)
    fold_of_group = np.empty(len(sizes), np.int64)
    order = -sizes if is_first else np.floor(np.log2(sizes.max() / sizes))
    for group in np.lexsort((hash_rows(seed, np.arange(len(sizes))), order)).tolist():
        fold_of_group[group] = fold = int(np.argmin(n_rows))
        n_rows[fold] += sizes[group]
    return fold_of_group[group_of_row]


def _check_number(n_folds: int, n_rows: int) -> None:
    if not 2 <= n_folds <= n_rows:
        raise ParameterError(f"folds={n_folds} must be at least 2 and at most the number of rows, {n_rows}")


def _is_column(folds: Any) -> bool:
    """Whether folds are one value per row."""
    if hasattr(folds, "ndim"):
        if folds.ndim != 1 or hasattr(folds, "compute") or getattr(folds, "dtype", np.dtype(object)).kind != "O":
            return bool(folds.ndim == 1)
        return len(folds) > 0 and not isinstance(next(iter(folds)), list | tuple | np.ndarray)
    return isinstance(folds, list | tuple) and bool(folds) and not isinstance(folds[0], list | tuple | np.ndarray)


def _per_row(values: Any, is_kept: np.ndarray, name: str) -> np.ndarray:
    """Return the values of the kept rows as an array, without missing values; `values` has one for each row of the table."""
    column = np.asarray(computed(values))
    if column.shape != is_kept.shape:
        raise ParameterError(
            f"{name} has shape {column.shape}, but the data have {len(is_kept)} {_rows(is_kept)}: give one value for each"
        )
    is_missing = pd.isna(column) & is_kept
    if is_missing.any():
        raise DataError(
            f"{name} has missing values in {np.count_nonzero(is_missing)} of {len(is_kept)} {_rows(is_kept)}, first in row "
            f"{np.argmax(is_missing)}: fill them, or remove the rows"
        )
    return column[is_kept]


def computed(values: Any) -> Any:
    """Return the values of a Dask collection; others unchanged."""
    return values.compute() if hasattr(values, "compute") else values


def _rows(is_kept: np.ndarray) -> str:
    return "rows of positive weight" if is_kept.all() else "rows"


def _of_test(is_test: np.ndarray) -> FoldRows:
    return FoldRows(np.where(is_test, TEST, TRAIN))


def _of_pair(pair: Any, is_kept: np.ndarray) -> FoldRows:
    """Return a fold of the kept rows from positions or masks of the rows of the table to train on and to hold out."""
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise InputTypeError(f"folds: {pair!r:.60} is no pair (train, test)")
    n_rows = len(is_kept)
    uses = np.zeros(n_rows, np.uint8)
    for rows, use in zip(pair, (TRAIN, TEST), strict=True):
        at = np.asarray(rows)
        if at.dtype == bool:
            at = np.flatnonzero(_per_row(at, np.ones(n_rows, bool), "a mask of folds"))
        if at.dtype.kind not in "iu" and len(at):
            raise InputTypeError(f"folds: rows are given by their positions or by a mask, not by {at.dtype}")
        if len(at) and (at.min() < 0 or at.max() >= n_rows):
            raise ParameterError(f"folds: row {at.max() if at.min() >= 0 else at.min()} is not among the {n_rows} rows")
        at = at.astype(np.int64)
        if use == TEST and (uses[at] == TRAIN).any():
            raise ParameterError(f"folds: row {int(at[np.argmax(uses[at] == TRAIN)])} is both trained on and held out")
        uses[at] = use
    return FoldRows(uses[is_kept])


def _plain(column: Column) -> np.ndarray:
    """Return targets as scikit-learn has them: an array [n], or [n, n_targets]."""
    if isinstance(column, CategoryColumn):
        return np.array(column.categories, object)[column.codes]
    return column.T
