"""The status of running and recent fits, and totals of all fits.

The registry in the scheduler's process is computed from the events of Dask's topic "dboost" alone, so that every subscriber of
the topic can do the same:

    event      content                                                      logged by
    began      a fit has started                                            reducer
    reading    number of partitions of a table that have been read          client
    boosting   loss, rows, features; loading has finished                   client
    holding    rows by worker, after each change                            client
    iteration  seconds by phase, losses and metrics                         client
    tree       rounds, seconds and bytes of one tree                        reducer
    lost       a worker that had rows of the fit                            reducer
    ended      outcome                                                      reducer

Every client of the scheduler can log under this topic. An event that is unknown, incomplete or malformed changes nothing: its
fields are checked (`_FIELDS`) before the registry is updated. The last few fits that have ended are kept. The memory of a fit
does not grow with its length, because curves are thinned.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

_log = logging.getLogger("dboost")

#: Number of ended fits that are kept.
_REMEMBERED = 8
#: Maximum points of a curve.
_POINTS = 400
#: Parts of the seconds of an iteration.
PHASES = ("compute", "reduce", "wait")


@dataclass(eq=False)
class Curve:
    """A value by iteration: all points while they are few, then every second, fourth, …; and the latest one."""

    points: list[tuple[int, float]] = field(default_factory=list)
    latest: tuple[int, float] = (0, 0.0)
    _every: int = 1

    def add(self, iteration: int, value: float) -> None:
        self.latest = iteration, value
        while self.points and self.points[-1][0] >= iteration:  # the model was truncated
            self.points.pop()
        if iteration % self._every:
            return
        self.points.append(self.latest)
        if len(self.points) > _POINTS:
            self._every *= 2
            self.points = [point for point in self.points if point[0] % self._every == 0]

    def all(self) -> list[tuple[int, float]]:
        """Return the points to draw, including the latest."""
        return self.points if self.points[-1:] == [self.latest] else [*self.points, self.latest]


@dataclass(eq=False)
class FitStatus:
    """Status of one fit."""

    #: Identifier of the fit.
    fit: str
    #: Unix times of start and end; `ended` is None while the fit runs.
    began: float
    ended: float | None = None
    #: "done", or how the fit ended otherwise.
    outcome: str = ""
    #: ``table``, ``read`` and ``partitions`` of the table that is read.
    reading: dict[str, Any] = field(default_factory=dict)
    #: ``loss``, ``rows`` and ``features``, after loading.
    facts: dict[str, Any] = field(default_factory=dict)
    #: Training rows by worker.
    rows: dict[str, int] = field(default_factory=dict)
    iteration: int = 0
    n_iterations: int = 0
    #: Losses and metrics by name.
    curves: dict[str, Curve] = field(default_factory=dict)
    #: Seconds by phase; "all" for whole iterations.
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    #: Number of iterations whose seconds are known.
    n_timed: int = 0
    #: Training rows, summed over iterations.
    n_processed: int = 0
    #: Number of lost workers.
    n_lost: int = 0

    @property
    def phase(self) -> str:
        """Current phase: "reading", "binning" or "boosting"; the outcome of a fit that has ended."""
        if self.ended is not None:
            return self.outcome
        return "boosting" if self.iteration else "binning" if self.facts else "reading"

    @property
    def rows_per_second(self) -> float:
        return self.n_processed / self.seconds["all"] if self.seconds["all"] else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the status as JSON types."""
        plain = ("fit", "began", "ended", "phase", "reading", "facts", "rows", "iteration", "n_iterations", "rows_per_second")
        return {name: getattr(self, name) for name in plain} | {
            "workers_lost": self.n_lost,
            "seconds": {phase: self.seconds[phase] for phase in (*PHASES, "all")},
            "curves": {name: curve.all() for name, curve in self.curves.items()},
        }


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= int(value) < 1 << 63:
        raise ValueError(f"{value!r:.40} is not a count")
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{value!r:.40} is not a number")
    return float(value)


def _iteration_number(value: Any) -> int:
    if _count(value) < 1:
        raise ValueError("iterations are counted from 1")
    return int(value)


def _seconds(value: Any) -> float:
    seconds = _number(value)
    if not math.isfinite(seconds):  # slightly negative if the clocks of two machines differ
        raise ValueError(f"{value!r:.40} is not a time")
    return seconds


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is not text")
    value.encode()  # a lone surrogate cannot be encoded in the page
    return value


def _by_name(check: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
    """Return the check of a mapping with values of one kind."""
    return lambda value: {_text(name): check(item) for name, item in dict(value).items()}


#: The fields of an event by its action, with their checks, which raise an error or return the value.
_FIELDS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "began": {},
    "reading": {"table": _text, "read": _count, "partitions": _count},
    "boosting": {"loss": _text, "rows": _count, "features": _count},
    "holding": {"rows": _by_name(_count)},
    "iteration": {
        "iteration": _iteration_number, "n_iterations": _count, "rows": _count, "seconds": _seconds,
        **dict.fromkeys(PHASES, _seconds), "scores": _by_name(_number),
    },
    "tree": {"n_rounds": _count, "n_bytes": _count},
    "lost": {"worker": _text},
    "ended": {"outcome": _text},
}  # fmt: skip


class FitRegistry:
    """Running fits, the last few that ended, and totals of all fits."""

    def __init__(self) -> None:
        #: Fits by identifier, in the order of their start.
        self.fits: dict[str, FitStatus] = {}
        #: "trees", "rounds", "bytes", "lost", seconds by phase, and "ended <outcome>" of all fits.
        self.totals: defaultdict[str, float] = defaultdict(float)
        #: Actions whose malformed events have been logged.
        self._warned: set[str] = set()

    @property
    def under_way(self) -> list[FitStatus]:
        return [fit for fit in self.fits.values() if fit.ended is None]

    def see(self, event: Any, now: float) -> None:
        """Update the registry by an event. Events of unknown fits and malformed events are ignored."""
        if not isinstance(event, dict):
            return
        action, name = event.get("action"), event.get("fit")
        if not isinstance(action, str) or action not in _FIELDS or not isinstance(name, str):
            return
        try:
            if action == "began":
                self.fits.setdefault(_text(name), FitStatus(name, now))
            elif name in self.fits:
                values = {field: check(event[field]) for field, check in _FIELDS[action].items()}
                self._update(self.fits[name], action, values, now)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            if action not in self._warned:  # once for each action: one may follow every iteration
                self._warned.add(action)
                _log.warning("an event %r of the topic 'dboost' makes no sense and is ignored: %r", action, error)

    def _update(self, fit: FitStatus, action: str, values: dict[str, Any], now: float) -> None:
        match action:
            case "reading":
                fit.reading = values
            case "boosting":
                fit.facts = values
            case "holding":
                fit.rows = values["rows"]
            case "iteration":
                fit.iteration, fit.n_iterations = values["iteration"], values["n_iterations"]
                fit.n_processed += values["rows"]
                fit.seconds["all"] += values["seconds"]
                fit.n_timed += 1
                for phase in PHASES:
                    fit.seconds[phase] += values[phase]
                    self.totals[phase] += values[phase]
                for name, score in values["scores"].items():
                    fit.curves.setdefault(name, Curve()).add(fit.iteration, score)
            case "tree":
                self.totals["trees"] += 1
                self.totals["rounds"] += values["n_rounds"]
                self.totals["bytes"] += values["n_bytes"]
            case "lost":
                fit.n_lost += 1
                self.totals["lost"] += 1
                fit.rows.pop(values["worker"], None)
            case "ended" if fit.ended is None:
                fit.ended, fit.outcome = now, values["outcome"]
                self.totals[f"ended {fit.outcome}"] += 1
                ended = [status.fit for status in self.fits.values() if status.ended is not None]
                for name in ended[:-_REMEMBERED]:
                    del self.fits[name]
