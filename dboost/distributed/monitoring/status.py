"""What the scheduler's process knows of fits, for those who watch: the page (`page.py`) and Prometheus (`meters.py`).

All of it follows from the events of the topic "dboost", one after the other. The reducer logs what it does, the client tells
what only the client knows:

    began      a fit                                                        reducer
    reading    partitions of a table that have been read                    client
    boosting   loss, rows, features: loading is over                        client
    holding    rows by worker, whenever that changes                        client
    iteration  its seconds by phase, losses and metrics                     client
    tree       rounds, seconds and bytes of one tree                        reducer
    lost       a worker that held rows                                      reducer
    ended      and how                                                      reducer

So whoever subscribes to the topic knows as much. Anybody can log under a topic of Dask's: an event that is none of these, or
lacks something, changes nothing, because what it says is read and checked before the board is written to. Fits that have ended
are kept for a while, a few of them; a fit of any length takes up the same memory, because its curves are thinned as they grow.
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

#: Fits that have ended and can still be looked at.
_REMEMBERED = 8
#: Points of a curve, at most.
_POINTS = 400
#: Where an iteration's seconds go.
PHASES = ("compute", "reduce", "wait")


@dataclass(eq=False)
class Curve:
    """A value by iteration: all points while they are few, then every second, fourth, …; and always the latest."""

    points: list[tuple[int, float]] = field(default_factory=list)
    latest: tuple[int, float] = (0, 0.0)
    _every: int = 1

    def add(self, iteration: int, value: float) -> None:
        self.latest = iteration, value
        while self.points and self.points[-1][0] >= iteration:  # the model was cut back
            self.points.pop()
        if iteration % self._every:
            return
        self.points.append(self.latest)
        if len(self.points) > _POINTS:
            self._every *= 2
            self.points = [point for point in self.points if point[0] % self._every == 0]

    def all(self) -> list[tuple[int, float]]:
        """The points to draw, the latest among them."""
        return self.points if self.points[-1:] == [self.latest] else [*self.points, self.latest]


@dataclass(eq=False)
class FitStatus:
    """One fit.

    Attributes
    ----------
    began, ended : float
        Unix time; `ended` is None while it is under way.
    outcome : str
        "done", or what happened instead.
    reading : dict
        ``table``, ``read`` and ``partitions``, of the table that is read.
    facts : dict
        ``loss``, ``rows`` and ``features``, once loading is over.
    rows : {worker: rows that it trains on}
    seconds : {phase: seconds}
        With "all" for whole iterations.
    worked : int
        Rows times trees.
    """

    fit: str
    began: float
    ended: float | None = None
    outcome: str = ""
    reading: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    iteration: int = 0
    n_iterations: int = 0
    curves: dict[str, Curve] = field(default_factory=dict)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    worked: int = 0
    n_lost: int = 0

    @property
    def phase(self) -> str:
        """What it is doing, in a word."""
        if self.ended is not None:
            return self.outcome
        return "boosting" if self.iteration else "binning" if self.facts else "reading"

    @property
    def rows_per_second(self) -> float:
        return self.worked / self.seconds["all"] if self.seconds["all"] else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Everything, as JSON can have it."""
        plain = ("fit", "began", "ended", "phase", "reading", "facts", "rows", "iteration", "n_iterations", "rows_per_second")
        curves = {name: curve.all() for name, curve in self.curves.items()}
        return {name: getattr(self, name) for name in plain} | {
            "workers_lost": self.n_lost,
            "seconds": {phase: self.seconds[phase] for phase in (*PHASES, "all")},
            "curves": curves,
        }


class FitRegistry:
    """All fits under way, the last few that ended, and totals of all there ever were.

    Attributes
    ----------
    fits : {fit: FitNews}
        In the order in which they began.
    totals : {name: number}
        "trees", "rounds", "bytes", "lost", seconds by phase, and "ended <outcome>".
    """

    def __init__(self) -> None:
        self.fits: dict[str, FitStatus] = {}
        self.totals: defaultdict[str, float] = defaultdict(float)
        self._complained: set[str] = set()
        self._actions: dict[Any, Callable[[FitStatus, dict[str, Any], float], None]] = {
            "reading": self._reading,
            "boosting": self._boosting,
            "holding": self._holding,
            "iteration": self._iteration,
            "tree": self._tree,
            "lost": self._lost,
            "ended": self._ended,
        }

    def see(self, event: Any, now: float) -> None:
        """Take in an event. One that does not speak of a known fit, or that makes no sense, is ignored."""
        if not isinstance(event, dict):
            return
        action, name = event.get("action"), event.get("fit")
        if not (isinstance(action, str) and isinstance(name, str)):
            return
        try:
            if action == "began":
                self.fits.setdefault(_text(name), FitStatus(name, now))
            fit = self.fits.get(name)
            if fit is not None and action in self._actions:
                self._actions[action](fit, event, now)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            if action not in self._complained:  # once of each kind: there may be one after every iteration
                self._complained.add(action)
                _log.warning("an event %r of the topic 'dboost' makes no sense and is ignored: %r", action, error)

    @property
    def under_way(self) -> list[FitStatus]:
        return [fit for fit in self.fits.values() if fit.ended is None]

    def _reading(self, fit: FitStatus, event: dict[str, Any], now: float) -> None:
        fit.reading = {"table": _text(event["table"])} | {name: _count(event[name]) for name in ("read", "partitions")}

    def _boosting(self, fit: FitStatus, event: dict[str, Any], now: float) -> None:
        fit.facts = {"loss": _text(event["loss"])} | {name: _count(event[name]) for name in ("rows", "features")}

    def _holding(self, fit: FitStatus, event: dict[str, Any], now: float) -> None:
        fit.rows = {_text(worker): _count(n) for worker, n in dict(event["rows"]).items()}

    def _iteration(self, fit: FitStatus, event: dict[str, Any], now: float) -> None:
        iteration, n_iterations, rows = (_count(event[name]) for name in ("iteration", "n_iterations", "rows"))
        seconds, phases = _seconds(event["seconds"]), {phase: _seconds(event[phase]) for phase in PHASES}
        scores = {_text(name): _number(value) for name, value in dict(event["scores"]).items()}
        if iteration < 1:
            raise ValueError("iterations are counted from 1")
        fit.iteration, fit.n_iterations = iteration, n_iterations
        fit.worked += rows
        fit.seconds["all"] += seconds
        for phase, spent in phases.items():
            fit.seconds[phase] += spent
            self.totals[phase] += spent
        for name, value in scores.items():
            fit.curves.setdefault(name, Curve()).add(iteration, value)

    def _tree(self, fit: FitStatus, event: dict[str, Any], now: float) -> None:
        rounds, n_bytes = _count(event["n_rounds"]), _count(event["n_bytes"])
        self.totals["trees"] += 1
        self.totals["rounds"] += rounds
        self.totals["bytes"] += n_bytes

    def _lost(self, fit: FitStatus, event: dict[str, Any], now: float) -> None:
        worker = _text(event["worker"])
        fit.n_lost += 1
        self.totals["lost"] += 1
        fit.rows.pop(worker, None)

    def _ended(self, fit: FitStatus, event: dict[str, Any], now: float) -> None:
        if fit.ended is not None:
            return
        fit.ended, fit.outcome = now, _text(event["outcome"])
        self.totals[f"ended {fit.outcome}"] += 1
        ended = [one.fit for one in self.fits.values() if one.ended is not None]
        for name in ended[:-_REMEMBERED]:
            del self.fits[name]


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= int(value) < 1 << 63:
        raise ValueError(f"{value!r:.40} is no count")
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{value!r:.40} is no number")
    return float(value)


def _seconds(value: Any) -> float:
    seconds = _number(value)
    if not math.isfinite(seconds):  # below 0 by a little where the clocks of two machines differ
        raise ValueError(f"{value!r:.40} is no time")
    return seconds


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is no text")
    value.encode()  # half of a surrogate pair could not be shown
    return value
