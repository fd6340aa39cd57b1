"""Monitoring: the status of running and recent fits, a page in Dask's dashboard, and metrics for Prometheus.

**Status.** The registry in the scheduler's process is computed from the events of Dask's topic "dboost" alone, so that every
subscriber of the topic can do the same:

    event      content                                                      logged by
    began      a fit has started                                            reducer
    reading    number of partitions of a table that have been read          client
    boosting   loss, rows, features; loading has finished                   client
    holding    rows by worker, after each change                            client
    iteration  seconds by phase, losses and metrics                         client
    tree       rounds, seconds and bytes of one tree                        reducer
    lost       a worker that had rows of the fit                            reducer
    ended      outcome                                                      reducer

Every client of the scheduler can log under this topic. An event that is unknown, incomplete or malformed changes nothing: it is
checked completely before the registry is updated. The last few fits that have ended are kept. The memory of a fit does not grow
with its length, because curves are thinned.

**The page** ``/dboost`` of Dask's dashboard shows running fits and the last few that ended. It is there from the first fit on,
or with ``--preload dboost.cluster.scheduler.reducer`` from the start of the scheduler. It is one HTML document with inline
pictures. It loads nothing from other hosts and does not need bokeh, because the scheduler's HTTP server always runs. It
refreshes every 2 s. Dask's own pages, which need bokeh, link to it. ``/dboost.json`` returns the same data. Both also exist
below a prefix of the dashboard's addresses.

**Metrics for Prometheus** are on the ``/metrics`` pages of Dask's scheduler and workers. These pages show everything that is
registered with `prometheus_client`; if it is not installed, there are no pages and `publish` does nothing. One collector per
process sums over the workers and schedulers of that process. It is registered with the first of them and removed with the last.

Seconds of a worker are divided into phases: *compute* is work on its own rows, *reduce* merging and searching histograms of
other workers, *wait* the time between two requests of a fit that has finished loading.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple

from tornado.web import RequestHandler

from dboost.cluster.transport.feature_exchange import FeatureOwner
from dboost.display import counted, metric_name, number
from dboost.session.session import Session

if TYPE_CHECKING:
    from jinja2 import Template

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
        curves = {name: curve.all() for name, curve in self.curves.items()}
        return {name: getattr(self, name) for name in plain} | {
            "workers_lost": self.n_lost,
            "seconds": {phase: self.seconds[phase] for phase in (*PHASES, "all")},
            "curves": curves,
        }


class FitRegistry:
    """Running fits, the last few that ended, and totals of all fits."""

    def __init__(self) -> None:
        #: Fits by identifier, in the order of their start.
        self.fits: dict[str, FitStatus] = {}
        #: "trees", "rounds", "bytes", "lost", seconds by phase, and "ended <outcome>" of all fits.
        self.totals: defaultdict[str, float] = defaultdict(float)
        #: Actions whose malformed events have been logged.
        self._warned: set[str] = set()
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
        """Update the registry by an event. Events of unknown fits and malformed events are ignored."""
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
            if action not in self._warned:  # once for each action: one may follow every iteration
                self._warned.add(action)
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
        fit.n_processed += rows
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
        ended = [fit.fit for fit in self.fits.values() if fit.ended is not None]
        for name in ended[:-_REMEMBERED]:
            del self.fits[name]


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= int(value) < 1 << 63:
        raise ValueError(f"{value!r:.40} is not a count")
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{value!r:.40} is not a number")
    return float(value)


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


#: Size of the picture of a curve, and where its axis begins, right of the values.
_WIDTH, _HEIGHT, _LEFT = 310, 110, 90
_COLORS = ("#3b6fb6", "#c4622d", "#3f8f5b", "#8a5aa8", "#b0892f", "#5f7d8c")
_PHASE_COLORS = dict(zip(PHASES, _COLORS, strict=False)) | {"other": "#8888"}


def registry_of(scheduler: Any) -> FitRegistry:
    """Return the registry of a scheduler. The first call makes it, and adds the page to the scheduler's HTTP server."""
    extensions = getattr(scheduler, "extensions", {})
    if "dboost" not in extensions:
        registry = extensions["dboost"] = FitRegistry()
        application = getattr(scheduler, "http_application", None)  # of tornado, or None if there is no server
        if application is not None:
            routes = [(rf"(?:/.*)?/dboost{ending}", handler, {"registry": registry}) for ending, handler in _HANDLERS.items()]
            application.add_handlers(".*$", routes)
            _link_from_pages_of_dask(scheduler)
    found: FitRegistry = extensions["dboost"]
    return found


def _link_from_pages_of_dask(scheduler: Any) -> None:
    """Add the page to the navigation of Dask's own pages, if bokeh draws them.

    Dask makes the list of its pages once for each scheduler; there is no other way to extend it.
    """
    variables = getattr(sys.modules.get("distributed.dashboard.scheduler"), "template_variables", None)
    pages = None if variables is None else variables(scheduler).get("pages")
    if isinstance(pages, list) and "dboost" not in pages:
        pages.append("dboost")


class _Handler(RequestHandler):
    def initialize(self, registry: FitRegistry) -> None:
        self._registry = registry


class _Page(_Handler):
    def get(self) -> None:
        self.write(page(self._registry, time.time()))


class _Json(_Handler):
    def get(self) -> None:
        self.write({"fits": [_finite(fit.as_dict()) for fit in self._registry.fits.values()]})


_HANDLERS = {"/?": _Page, r"\.json": _Json}


def _finite(value: Any) -> Any:
    """Replace numbers that JSON cannot represent by None."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # workers have no page

    environment = Environment(loader=PackageLoader("dboost.cluster", ""), autoescape=True, undefined=StrictUndefined)
    return environment.get_template("dashboard.html.jinja")


def page(registry: FitRegistry, now: float) -> str:
    """Return the HTML document. now : Unix time."""
    return _template().render(
        fits=sorted(registry.fits.values(), key=lambda fit: (fit.ended is not None, -fit.began)),
        n_running=len(registry.under_way),
        n_trees=int(registry.totals["trees"]),
        now=now,
        panels=_panels,
        number=number,
        metric_name=metric_name,
        counted=counted,
        seconds_by_phase=_seconds_by_phase,
        colors=_COLORS,
        phase_colors=_PHASE_COLORS,
        width=_WIDTH,
        height=_HEIGHT,
        left=_LEFT,
    )


def _seconds_by_phase(fit: FitStatus) -> dict[str, float]:
    """Return the seconds of all iterations by phase; empty if no time was recorded."""
    seconds = {phase: fit.seconds[phase] for phase in PHASES}
    seconds["other"] = max(fit.seconds["all"] - sum(seconds.values()), 0.0)
    return seconds if fit.seconds["all"] and sum(seconds.values()) > 0 else {}


class Panel(NamedTuple):
    """The picture of one loss or metric."""

    name: str
    points: str  # of the polyline
    low: float  # the smallest and the largest value, at the bottom and at the top
    high: float
    last: int  # iteration at the right end


def _panels(curves: dict[str, Curve]) -> list[Panel]:
    """Return a picture of each loss and metric by iteration; all have the same axis of iterations."""
    last = max((curve.latest[0] for curve in curves.values()), default=1)
    panels = []
    for name, curve in curves.items():
        points = [(x, y) for x, y in curve.all() if math.isfinite(y)]
        heights = [y for _, y in points]
        low, high = min(heights, default=0.0), max(heights, default=0.0)
        span, width = (high - low) or 1.0, _WIDTH - _LEFT
        line = " ".join(f"{_LEFT + width * x / last:.1f},{5 + (_HEIGHT - 10) * (high - y) / span:.1f}" for x, y in points)
        panels.append(Panel(name, line, low, high, last))
    return panels


#: Methods that add up and search histograms of other workers.
_REDUCES = {FeatureOwner.add_slices.__name__, FeatureOwner.search_slices.__name__}
#: Methods that belong to boosting rounds; all others belong to loading.
_ROUNDS = _REDUCES | {
    method.__name__
    for method in (
        Session.advance_to,
        Session.assign_leaves,
        Session.round_histograms,
        FeatureOwner.cut_slices,
        Session.statistics,
        Session.evaluate,
    )
}


class WorkMeter:
    """Sums over all work that one worker has done for fits. Methods are thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: defaultdict[str, float] = defaultdict(float)
        self._rows: dict[str, int] = {}
        self._last: dict[str, float] = {}

    def note(self, fit: str, method: str, began: float, n_received: int, n_sent: int, n_rows: int) -> None:
        """Count a call that ends now. began : by `time.perf_counter`; n_rows : training rows of this fit on this worker."""
        now = time.perf_counter()
        phase = "reduce" if method in _REDUCES else "compute" if method in _ROUNDS else "load"
        with self._lock:
            self._totals[phase] += now - began
            last = self._last.get(fit)
            if last is not None:
                self._totals["wait"] += max(began - last, 0.0)
            if method in _ROUNDS:
                self._last[fit] = now
            self._totals["iterations"] += method == Session.advance_to.__name__
            self._totals["received"] += n_received
            self._totals["sent"] += n_sent
            self._rows[fit] = n_rows

    def received(self, n_bytes: int) -> None:
        """Count bytes that another worker has sent."""
        with self._lock:
            self._totals["received"] += n_bytes

    def forget(self, fit: str) -> None:
        """Remove a fit that has ended from the running fits."""
        with self._lock:
            self._rows.pop(fit, None)
            self._last.pop(fit, None)

    def totals(self) -> dict[str, float]:
        """Return seconds by phase, "iterations", bytes "received" and "sent", and "fits" and "rows" of running fits."""
        with self._lock:
            return self._totals | {"fits": len(self._rows), "rows": sum(self._rows.values())}


class Collector:
    """Collects the metrics of this process when Prometheus asks for them."""

    def __init__(self) -> None:
        self.sources: tuple[WorkMeter | FitRegistry, ...] = ()

    def describe(self) -> list[Any]:
        """Return nothing; without this method registering would collect."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield the metric families of `prometheus_client`."""
        meters = [source for source in self.sources if isinstance(source, WorkMeter)]
        registries = [source for source in self.sources if isinstance(source, FitRegistry)]
        if meters:
            yield from _worker_metrics(_summed(meter.totals() for meter in meters))
        if registries:
            running = [fit for registry in registries for fit in registry.under_way]
            yield from _scheduler_metrics(_summed(registry.totals for registry in registries), running)


def _summed(parts: Iterable[dict[str, float]]) -> defaultdict[str, float]:
    total: defaultdict[str, float] = defaultdict(float)
    for part in parts:
        for name, value in part.items():
            total[name] += value
    return total


def _worker_metrics(total: defaultdict[str, float]) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    yield GaugeMetricFamily("dboost_worker_fits", "Running fits", total["fits"])
    yield GaugeMetricFamily("dboost_worker_rows", "Training rows of running fits", total["rows"])
    yield CounterMetricFamily("dboost_worker_iterations", "Boosting iterations", total["iterations"])
    seconds = CounterMetricFamily("dboost_worker_seconds", "Seconds of work on fits and between requests", labels=["phase"])
    for phase in ("load", *PHASES):
        seconds.add_metric([phase], total[phase])
    yield seconds
    yield CounterMetricFamily("dboost_worker_received_bytes", "Bytes of requests and histogram slices", total["received"])
    yield CounterMetricFamily("dboost_worker_sent_bytes", "Bytes of replies", total["sent"])


def _scheduler_metrics(total: defaultdict[str, float], running: list[FitStatus]) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    yield GaugeMetricFamily("dboost_fits", "Running fits", len(running))
    yield GaugeMetricFamily("dboost_rows", "Training rows of running fits", sum(sum(fit.rows.values()) for fit in running))
    yield CounterMetricFamily("dboost_trees", "Trees grown", total["trees"])
    yield CounterMetricFamily("dboost_rounds", "Requests to all workers of a fit while growing trees", total["rounds"])
    yield CounterMetricFamily("dboost_received_bytes", "Bytes of the replies to these requests", total["bytes"])
    yield CounterMetricFamily("dboost_workers_lost", "Lost workers that had rows of a fit", total["lost"])
    seconds = CounterMetricFamily(
        "dboost_seconds",
        "Seconds of iterations: slowest worker, merging and split search, messages and waiting",
        labels=["phase"],
    )
    for phase in PHASES:
        seconds.add_metric([phase], total[phase])
    yield seconds
    ended = CounterMetricFamily("dboost_fits_ended", "Fits that have ended", labels=["outcome"])
    for name in sorted(name for name in total if name.startswith("ended ")):
        ended.add_metric([name.removeprefix("ended ")], total[name])
    yield ended
    iterations = GaugeMetricFamily("dboost_iteration", "Latest iteration of a running fit", labels=["fit"])
    scores = GaugeMetricFamily("dboost_score", "Latest loss or metric of a running fit", labels=["fit", "name"])
    for fit in running:
        iterations.add_metric([fit.fit], fit.iteration)
        for name, curve in fit.curves.items():
            scores.add_metric([fit.fit, name], curve.latest[1])
    yield iterations
    yield scores


_collector = Collector()
_lock = threading.Lock()


def publish(source: WorkMeter | FitRegistry) -> Callable[[], None]:
    """Add a source to the metrics of this process. Returns a function that removes it."""
    with _lock:
        _collector.sources += (source,)
        if len(_collector.sources) == 1:
            _change_registry("register")

    def withdraw() -> None:
        with _lock:
            if source in _collector.sources:
                _collector.sources = tuple(known for known in _collector.sources if known is not source)
                if not _collector.sources:
                    _change_registry("unregister")

    return withdraw


def _change_registry(action: str) -> None:
    try:
        from prometheus_client import REGISTRY
    except ImportError:
        return
    getattr(REGISTRY, action)(_collector)
