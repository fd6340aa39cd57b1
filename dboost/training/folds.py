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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from dboost.display import as_read
from dboost.errors import DBoostError, FitInterrupted, warn
from dboost.metrics.named import find_metrics
from dboost.model.ensemble import Ensemble
from dboost.session.row_samples import FoldRows
from dboost.session.target import Target
from dboost.session.warm_start import COLD_START
from dboost.training.callbacks import Callback, Iteration, Record
from dboost.training.fit import FitResult
from dboost.training.progress import Progress
from dboost.training.request import FitRequest, Fold
from dboost.tuning import tuning

_NO_THREAD = "can't start new thread"


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
        *,
        loss: str,
    ) -> None:
        self.at_once = n_folds if at_once is None else at_once
        self.is_together, self._is_aborted = self.at_once >= n_folds, False
        self._finished: list[Mapping[str, Any]] = []  # the last records of folds that do not wait
        self._n_folds, self._lock = n_folds, threading.Lock()
        self._callbacks, self.n_iterations, self._until = callbacks, n_iterations, until
        self.progress, self._loss = progress, loss
        progress.begin(*((n_iterations, "iteration") if self.is_together else (n_folds, "fold")))
        self._scored = threading.Barrier(n_folds, self._combine)
        self._decided = threading.Barrier(n_folds, self._decide)
        self._records: list[Mapping[str, Any]] = [{}] * n_folds
        self._past = [_means_of(records) for records in zip(*past, strict=True)]
        self._means: dict[str, Any] = self._past[-1] if self._past else {"iteration": 0}
        self._stops, self._rate = False, math.nan
        self._greater_is_better: Mapping[str, bool] = {}
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
        self._rate, self._greater_is_better = iteration.learning_rate, iteration.greater_is_better  # the same in all folds
        self._decided.wait()
        iteration.learning_rate = self._rate
        return self._stops

    def finish(self, result: FitResult) -> None:
        """Show the means of the folds that have been fitted; called by each fold, has no effect if folds wait."""
        if self.is_together or not result.history:
            return
        with self._lock:
            self._finished.append(result.history[-1])
            means = _means_of(self._finished) | {"iteration": len(self._finished)}
            self._show(means, self._finished, time.perf_counter())

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
        self._stops = now + self._show(means, self._records, now) > self._until

    def _show(self, means: dict[str, Any], records: Sequence[Mapping[str, Any]], now: float) -> float:
        """Display means over the folds, whose records are given; return the seconds since the last ones."""
        seconds, self._last = now - self._last, now
        scores = [dict(as_read(name, record[name], self._loss) for name in _scores_in(record)) for record in records]
        self.progress.show(means, {name: mean_of([score[name] for score in scores]) for name in scores[0]}, seconds)
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
        means = Record(self._means, self._loss)
        iteration = Iteration(self.n_done, self.n_iterations, means, _no_model, self._rate, self._greater_is_better)
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
