"""Watching a fit: what happened in each iteration, whether to stop, and what the user sees of it."""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dboost.model.ensemble import Ensemble


@dataclass(frozen=True)
class Iteration:
    """What a callback is told after each iteration.

    Attributes
    ----------
    iteration : int
        1 for the first.
    n_iterations : int
        How many were asked for.
    record : dict
        The iteration's row of `Booster.history`.
    model : callable
        Returns the `Ensemble` so far (assembled when called).
    """

    iteration: int
    n_iterations: int
    record: dict[str, Any]
    model: Callable[[], Ensemble]


#: A callback may return True to stop the fit after this iteration.
Callback = Callable[[Iteration], Any]


class EarlyStopping:
    """Remembers the best iteration by one metric, and says when nothing has improved for long enough.

    Only what exceeds `tolerance` is an improvement to wait for; the best iteration is the one with the best value all the
    same, of equals the earliest or, if `keep_latest`, the latest. NaN never improves.
    """

    def __init__(
        self, column: str, rounds: int, *, larger_is_better: bool, tolerance: float = 0.0, keep_latest: bool = False
    ) -> None:
        self.column = column
        self.rounds = rounds
        self.best_iteration = 0
        self._sign = 1.0 if larger_is_better else -1.0
        self._tolerance = tolerance
        self._keep_latest = keep_latest
        self._best = -float("inf")
        self._mark = -float("inf")
        self._marked = 0

    @property
    def rule(self) -> list[Any]:
        """What it goes by."""
        return [self.column, self.rounds, self._sign > 0, self._tolerance, self._keep_latest]

    def waiting(self, rounds: int) -> EarlyStopping:
        """The same rule with another number of iterations to wait."""
        found = copy.copy(self)
        found.rounds = rounds
        return found

    def should_stop(self, iteration: int, record: Mapping[str, Any]) -> bool:
        value = self._sign * record[self.column]
        if value > self._best or self.best_iteration == 0 or (self._keep_latest and value == self._best):
            self.best_iteration = iteration
            self._best = value if value == value else self._best
        if value > self._mark + self._tolerance or self._marked == 0:
            self._marked = iteration
            self._mark = value if value == value else self._mark
        return self.has_waited(iteration)

    def has_waited(self, iteration: int) -> bool:
        """Whether the last improvement is long enough ago."""
        return self._marked > 0 and iteration - self._marked >= self.rounds

    def begin_anew(self, iteration: int) -> None:
        """Wait for improvements from this iteration on; what was the best remains to be beaten."""
        self._marked = iteration

    def resume(self, model: Ensemble) -> None:
        """Look back at the iterations of a model that is continued, if they were watched in the same way."""
        if model.best_iteration is not None:
            for iteration, value in enumerate(model.metrics.get(self.column, ())[: model.n_iterations], 1):
                self.should_stop(iteration, {self.column: value})


class Progress:
    """A bar on a terminal, a line every so many iterations elsewhere.

    Parameters
    ----------
    wanted : bool or None
        None: a bar if stderr is a terminal, else nothing. True: also lines where there is no terminal.
    n_iterations : int
    """

    def __init__(self, wanted: bool | None, n_iterations: int) -> None:
        terminal = sys.stderr.isatty()
        self._bar: Any = None
        self._lines = bool(wanted) and not terminal
        self._every = max(n_iterations // 20, 1)
        self._total = n_iterations
        if terminal and wanted is not False:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as RichProgress

            self._bar = RichProgress(
                TextColumn("boosting"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}", markup=False),
                TimeRemainingColumn(), console=Console(stderr=True),
            )  # fmt: skip
            self._task = self._bar.add_task("", total=n_iterations, note="")
            self._bar.start()
        self._shown = 0.0
        self._worked, self._seconds = 0, 0.0

    def show(self, record: dict[str, Any], scores: Sequence[str]) -> None:
        iteration = record["iteration"]
        self._worked += record["rows_kept"]
        self._seconds += record["seconds"]
        if self._bar is not None:
            now = time.monotonic()
            if now - self._shown > 0.1 or iteration == self._total:
                self._shown = now
                self._bar.update(self._task, completed=iteration, note=self._note(record, scores))
        elif self._lines and (iteration % self._every == 0 or iteration in (1, self._total)):
            print(f"iteration {iteration}/{self._total}: {self._note(record, scores)}", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _note(self, record: dict[str, Any], scores: Sequence[str]) -> str:
        """Scores now, rows a second of all iterations so far, and on a cluster the workers that hold rows."""
        parts = [f"{name} {record[name]:.5g}" for name in scores]
        if self._seconds > 0:
            parts.append(f"{self._worked / self._seconds:,.0f} rows/s")
        if "workers" in record:
            parts.append(f"{record['workers']} workers")
        return ", ".join(parts)
