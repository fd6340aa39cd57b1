"""Folds of a data set, and fits on all of them at the same time.

The rows are binned once, by split points that all rows propose; a fold is one byte per row (`session.row_samples.FoldRows`).
So the fit of a fold differs from a fit on the same rows of the data set in nothing: it gives the same trees to the last bit.
Folds that are in memory in one process share the bin codes of all rows (`rows.shared_codes`), and one table with the roles.

Each fold is fitted in a thread of its own. After every iteration all folds wait for each other (`FoldScores`), because early
stopping, callbacks, the time limit and the progress display use the means of their scores. If there are more folds than
`Tuning.folds_at_once` and nothing but the display uses the means, they do not wait, so many of them are fitted at the same
time, and the display counts folds. Folds of a data set on a cluster are on different workers (`cluster.partitions.rebalance`),
or grow their trees on all workers: while the messages of one fold travel, the workers compute for another.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dboost._lazy_import import pd
from dboost.data import CategoryColumn, Column
from dboost.data.columns.times import plain_times, ranks_in_time
from dboost.errors import DataError, DBoostError, FitInterrupted, InputTypeError, ParameterError, warn
from dboost.losses import BaseLoss
from dboost.metrics.named import find_metrics
from dboost.model.ensemble import Ensemble
from dboost.rows.row_sample import derive_seed, hash_rows
from dboost.session.row_samples import TEST, TRAIN, UNUSED, FoldRows, sharing_codes
from dboost.session.target import Target
from dboost.session.warm_start import COLD_START
from dboost.training.callbacks import Callback, Iteration
from dboost.training.fit import FitResult
from dboost.training.progress import Progress
from dboost.training.request import FitRequest, Fold
from dboost.tuning import tuning

_NO_THREAD = "can't start new thread"
#: Purpose of the hashes that assign rows to folds, see `rows.row_sample.derive_seed`.
_FOLDS = 7
#: Classes that are named in warnings.
_MOST_CLASSES = 3


# Folds.


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
        divided = _ordered(int(folds), ranks_in_time(_per_row(plain_times(_computed(time)), is_kept, "time"), "time"))
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
    column = np.asarray(_computed(values))
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


def _computed(values: Any) -> Any:
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


# Fits.


def folds_at_once(n_folds: int, needs_means: bool) -> int:
    """Return how many folds are fitted at the same time. needs_means : whether something depends on means while they are."""
    return n_folds if needs_means else min(n_folds, tuning().folds_at_once)


class FoldScores:
    """The scores of all folds, iteration by iteration, and their means. Every fold waits until all have finished an iteration.

    Parameters
    ----------
    n_folds : int
    callbacks : sequence of callable
        Called with the means after every iteration; True stops all folds.
    progress : Progress
    n_iterations : int
    until : float
        Time (`time.perf_counter`) after which no iteration begins.
    at_once : int
        Number of folds that are fitted at the same time. If it is lower than their number, folds do not wait for each other,
        callbacks are not called, and `until` has no effect.
    past : sequence of sequence of dict
        For each fold the records of the iterations of the model that is continued.
    """

    def __init__(
        self,
        n_folds: int,
        callbacks: Sequence[Callback],
        progress: Progress,
        n_iterations: int,
        until: float = math.inf,
        past: Sequence[Sequence[Mapping[str, Any]]] = (),
        at_once: int | None = None,
    ) -> None:
        self.at_once = n_folds if at_once is None else at_once
        self.is_together, self._is_aborted = self.at_once >= n_folds, False
        self._finished: list[Mapping[str, Any]] = []  # the last records of folds that do not wait
        self._n_folds, self._lock = n_folds, threading.Lock()
        self._callbacks, self.n_iterations, self._until = callbacks, n_iterations, until
        self.progress = progress
        progress.begin(*((n_iterations, "iteration") if self.is_together else (n_folds, "fold")))
        self._scored = threading.Barrier(n_folds, self._combine)
        self._decided = threading.Barrier(n_folds, self._decide)
        self._records: list[Mapping[str, Any]] = [{}] * n_folds
        self._past = [_means_of(records) for records in zip(*past, strict=True)]
        self._means: dict[str, Any] = self._past[-1] if self._past else {"iteration": 0}
        self._stops, self._rate = False, math.nan
        self._undefined: set[str] = set()
        self._last = time.perf_counter()

    def mean(self, fold: int, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the means of an iteration's record over the folds, once all folds have finished the iteration."""
        if not self.is_together:
            self.check()
            return record
        if record["iteration"] <= len(self._past):
            return self._past[record["iteration"] - 1]
        if record["iteration"] != self._means["iteration"]:
            self._records[fold] = record
            self._scored.wait()
        return self._means

    def ends(self, fold: int, iteration: Iteration) -> bool:
        """Whether all folds end with this iteration, as a callback or the time limit decides.

        All folds get the learning rate that a callback sets.
        """
        self.mean(fold, iteration.record)
        if not self.is_together:
            return False
        self._rate = iteration.learning_rate  # the same in all folds
        self._decided.wait()
        iteration.learning_rate = self._rate
        return self._stops

    def finish(self, result: FitResult) -> None:
        """Show the means of the folds that have been fitted; called by each fold, has no effect if folds wait."""
        if self.is_together or not result.history:
            return
        with self._lock:
            self._finished.append(result.history[-1])
            self._show(_means_of(self._finished) | {"iteration": len(self._finished)}, time.perf_counter())

    @property
    def n_done(self) -> int:
        """Number of iterations that all folds have finished."""
        return self._means["iteration"]

    @property
    def done(self) -> str:
        """What has been finished, for messages."""
        if self.is_together:
            return f"{self.n_done} of {self.n_iterations} iterations"
        return f"{len(self._finished)} of {self._n_folds} folds"

    def _combine(self) -> None:
        """Compute the means; runs in the thread of one fold while the others wait."""
        means = self._means = _means_of(self._records)
        now = time.perf_counter()
        if means["iteration"]:  # before the first one, a metric may be undefined because predictions are constant
            self._warn_of_undefined()
        self._stops = now + self._show(means, now) > self._until

    def _show(self, means: dict[str, Any], now: float) -> float:
        """Display means; return the seconds since the last ones."""
        seconds, self._last = now - self._last, now
        self.progress.show(means, _scores_in(means), seconds)
        return seconds

    def warn_at_end(self, results: Sequence[FitResult]) -> None:
        """Warn of undefined means if the folds did not wait for each other, and of folds whose trees have no split."""
        if not self.is_together:
            for records in zip(*(result.history for result in results), strict=True):
                self._records, self._means = list(records), _means_of(records)
                self._warn_of_undefined()
        reasons = {str(number): result.no_split for number, result in enumerate(results) if result.no_split is not None}
        if reasons:
            warn(f"folds {', '.join(reasons)}: {next(iter(reasons.values()))}")

    def _warn_of_undefined(self) -> None:
        """Warn of the scores whose mean is not defined, once for each."""
        for name in _scores_in(self._means):
            if not math.isfinite(self._means[name]) and name not in self._undefined:
                self._undefined.add(name)
                folds = [str(fold) for fold, record in enumerate(self._records) if not math.isfinite(record[name])]
                warn(
                    f"metric {name!r} is nan or infinite in iteration {self.n_done} in folds {', '.join(folds)}, and with them "
                    "its mean, by which neither early stopping nor the best iteration can be decided: give another metric, or "
                    "folds for which it is defined (with rows of every class, say)"
                )

    def _decide(self) -> None:
        """Call the callbacks; runs in the thread of one fold while the others wait."""
        iteration = Iteration(self.n_done, self.n_iterations, self._means, _no_model, self._rate)
        for callback in self._callbacks:
            self._stops = bool(callback(iteration)) or self._stops
        self._rate = iteration.learning_rate

    def check(self) -> None:
        """Raise an error if the folds were aborted."""
        if self._is_aborted:
            raise threading.BrokenBarrierError

    def abort(self) -> None:
        """Have all folds fail at their next iteration, and those that have not begun at their beginning."""
        self._is_aborted = True
        self._scored.abort()
        self._decided.abort()


def _scores_in(record: Mapping[str, Any]) -> list[str]:
    return [name for name in record if name == "train_loss" or name.startswith("validation_")]


def _means_of(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the means of the scores in the folds' records of an iteration, the longest of times, and the sum of rows."""
    means: dict[str, Any] = {}
    for name, value in records[0].items():
        values = [record[name] for record in records]
        is_score = isinstance(value, float) and name != "seconds"
        means[name] = mean_of(values) if is_score else max(values) if name != "rows_kept" else sum(values)
    return means


def mean_of(values: Sequence[float]) -> float:
    """Return the mean, correctly rounded: it does not depend on the order of the folds."""
    if not all(map(math.isfinite, values)):
        return math.nan
    return math.fsum(values) / len(values)


def _no_model() -> Ensemble:
    raise DBoostError("callbacks of a cross-validation have no model: there is one for each fold")


@dataclass(frozen=True, eq=False)
class FoldState:
    """What continues the fit of a fold."""

    rows: FoldRows
    model: Ensemble  # with all iterations, also those after the best one
    history: tuple[dict[str, Any], ...]


def fit_folds(
    fit: Callable[[FitRequest], FitResult],
    folds: Sequence[FoldRows],
    request_of: Callable[..., FitRequest],
    scores: FoldScores,
    n_threads: int,
    earlier: Sequence[FoldState] = (),
) -> list[FitResult]:
    """Fit a model on each fold, `FoldScores.at_once` of them at the same time.

    Parameters
    ----------
    fit : callable
        Trains on the rows; called from several threads at the same time.
    folds : sequence of FoldRows
    request_of : callable
        Returns the request of one fit, given ``fold``, ``n_threads``, ``callbacks`` and ``warm_start``.
    scores : FoldScores
        Receives the scores; its progress display is closed at the end.
    n_threads : int
        Threads of this process for all folds together.
    earlier : sequence of FoldState
        The models of the folds that are continued. Default: none.

    Raises
    ------
    FitInterrupted
        On ^C.
    DBoostError
        If the system does not start a thread for each of them.
    """
    at_once = scores.at_once
    turns = threading.BoundedSemaphore(n_threads)  # rows take more memory until they are encoded

    @contextmanager
    def loading() -> Iterator[None]:
        with turns:
            scores.check()
            yield

    def run(number: int) -> FitResult:
        try:
            scores.check()
            past: tuple[dict[str, Any], ...] = ()
            warm_start = COLD_START
            if earlier:  # the iterations so far belong to this fit, so it is the same as one fit with all iterations
                past, warm_start = earlier[number].history, COLD_START.resumed(earlier[number].model)
            threads = max(n_threads // at_once, 1)
            fold = Fold(folds[number], partial(scores.mean, number), past, max(n_threads // threads, 1), loading())
            callbacks = (partial(scores.ends, number),)
            result = fit(request_of(fold=fold, n_threads=threads, callbacks=callbacks, warm_start=warm_start))
            scores.finish(result)
            return result
        except BaseException:
            scores.abort()
            raise

    futures = _in_threads(run, len(folds), scores)
    _raise_first([error for error in (future.exception() for future in futures) if error is not None], at_once)
    results = [future.result() for future in futures]
    scores.warn_at_end(results)
    return results


def _in_threads(run: Callable[[int], FitResult], n_folds: int, scores: FoldScores) -> list[Future[FitResult]]:
    """Call a function with the number of each fold in threads, and wait for all of them; ^C aborts the folds."""
    futures: list[Future[FitResult]] = []
    with ThreadPoolExecutor(scores.at_once, "dboost-fold") as pool:
        try:
            futures += [pool.submit(run, number) for number in range(n_folds)]
            while wait(futures, 0.2).not_done:
                pass
        except KeyboardInterrupt as stopped:
            scores.abort()
            wait(futures)
            raise FitInterrupted(f"cross-validation was interrupted after {scores.done}", None, 0) from stopped
        except RuntimeError as error:  # there are no more threads, so the others would wait for ever
            scores.abort()
            raise _too_many(n_folds) from error
        finally:
            scores.progress.close()
    return futures


def _raise_first(errors: Sequence[BaseException], at_once: int) -> None:
    """Raise the first error of a fold, unless there is none; those of folds that were aborted are its consequence."""
    causes = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
    for error in causes or errors:
        raise (_too_many(at_once) if _NO_THREAD in str(error) else error) from error.__cause__


def _too_many(n_folds: int) -> DBoostError:
    return DBoostError(
        f"{n_folds} folds are fitted at the same time, and the system starts no more threads for them: use fewer folds, or "
        "raise the limit of threads (`ulimit -u`, or that of the container); without early stopping, callbacks and time_limit "
        f"{tuning().folds_at_once} folds are fitted at the same time"
    )


@dataclass(frozen=True)
class MetricName:
    """A column of scores."""

    column: str  # of the history of a fit
    name: str
    greater_is_better: bool = False  # of the last metric, which selects the best iteration


def metric_names(eval_metric: Any, target: Target) -> list[MetricName]:
    """Return the metrics of the held-out rows. The last one selects the best iteration, so its direction must be known."""
    *others, last = find_metrics(eval_metric, target.loss)
    return [MetricName(f"validation_{metric.name}", metric.name) for metric in others] + [
        MetricName(f"validation_{last.name}", last.name, last.larger_is_better)
    ]
