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

So whoever subscribes to the topic knows as much. Fits that have ended are kept for a while, a few of them; a fit of any length
takes up the same memory, because its curves are thinned as they grow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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
class FitNews:
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


class Board:
    """All fits under way, the last few that ended, and totals of all there ever were.

    Attributes
    ----------
    fits : {fit: FitNews}
        In the order in which they began.
    totals : {name: number}
        "trees", "rounds", "bytes", "lost", seconds by phase, and "ended <outcome>".
    """

    def __init__(self) -> None:
        self.fits: dict[str, FitNews] = {}
        self.totals: defaultdict[str, float] = defaultdict(float)
        self._actions: dict[Any, Callable[[FitNews, dict[str, Any], float], None]] = {
            "reading": self._reading,
            "boosting": self._boosting,
            "holding": self._holding,
            "iteration": self._iteration,
            "tree": self._tree,
            "lost": self._lost,
            "ended": self._ended,
        }

    def see(self, event: Any, now: float) -> None:
        """Take in an event. Anybody may log something under our topic: what does not speak of a known fit is nothing to us."""
        if not isinstance(event, dict):
            return
        action, name = event.get("action"), event.get("fit")
        if action == "began" and name is not None:
            self.fits.setdefault(name, FitNews(name, now))
        fit = self.fits.get(name) if isinstance(name, str) else None
        if fit is not None and action in self._actions:
            self._actions[action](fit, event, now)

    @property
    def under_way(self) -> list[FitNews]:
        return [fit for fit in self.fits.values() if fit.ended is None]

    def _reading(self, fit: FitNews, event: dict[str, Any], now: float) -> None:
        fit.reading = {name: event[name] for name in ("table", "read", "partitions")}

    def _boosting(self, fit: FitNews, event: dict[str, Any], now: float) -> None:
        fit.facts = {name: event[name] for name in ("loss", "rows", "features")}

    def _holding(self, fit: FitNews, event: dict[str, Any], now: float) -> None:
        fit.rows = dict(event["rows"])

    def _iteration(self, fit: FitNews, event: dict[str, Any], now: float) -> None:
        fit.iteration, fit.n_iterations = event["iteration"], event["n_iterations"]
        fit.worked += event["rows"]
        fit.seconds["all"] += event["seconds"]
        for phase in PHASES:
            fit.seconds[phase] += event[phase]
            self.totals[phase] += event[phase]
        for name, value in event["scores"].items():
            fit.curves.setdefault(name, Curve()).add(fit.iteration, value)

    def _tree(self, fit: FitNews, event: dict[str, Any], now: float) -> None:
        self.totals["trees"] += 1
        self.totals["rounds"] += event["n_rounds"]
        self.totals["bytes"] += event["n_bytes"]

    def _lost(self, fit: FitNews, event: dict[str, Any], now: float) -> None:
        fit.n_lost += 1
        self.totals["lost"] += 1
        fit.rows.pop(event["worker"], None)

    def _ended(self, fit: FitNews, event: dict[str, Any], now: float) -> None:
        if fit.ended is not None:
            return
        fit.ended, fit.outcome = now, event["outcome"]
        self.totals[f"ended {fit.outcome}"] += 1
        ended = [one.fit for one in self.fits.values() if one.ended is not None]
        for name in ended[:-_REMEMBERED]:
            del self.fits[name]
