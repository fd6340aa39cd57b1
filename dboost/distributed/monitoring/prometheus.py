"""MetricSamples for Prometheus, on the pages that Dask's scheduler and workers have for that anyway (``/metrics``).

Dask's pages show whatever is registered with `prometheus_client`, which is optional: where it is not installed there are no
pages, and nothing of this happens. A process registers once, when the first plugin has something to say, and withdraws with the
last. Workers that share a process share a page; their figures are added up.

What a worker says of its time: *compute* is its work on its own rows, *reduce* adding up and searching what other workers sent,
*wait* the time between two questions of a fit that is past loading.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from dboost.distributed.monitoring.status import PHASES, FitRegistry

#: The calls that fits under way are made of; others belong to loading.
_ROUNDS = {"advance", "answer", "answer_in_slices", "search_slices", "ask", "judge"}


class MetricSample(NamedTuple):
    """One number. kind : "counter" (only grows) or "gauge"; labels : (name, value) pairs."""

    name: str
    kind: str
    what: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


MetricSamples = Callable[[], Iterable[MetricSample]]


class WorkMeter:
    """What one worker has done for all fits. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._iterations = 0
        self._n_received, self._n_sent = 0, 0
        self._rows: dict[str, int] = {}
        self._last: dict[str, float] = {}

    def note(self, fit: str, method: str, began: float, n_received: int, n_sent: int, n_rows: int) -> None:
        """A call that ends now. began : by `time.perf_counter`; n_rows : of this fit, that are trained on here."""
        now = time.perf_counter()
        phase = "reduce" if method == "search_slices" else "compute" if method in _ROUNDS else "load"
        with self._lock:
            self._seconds[phase] += now - began
            last = self._last.get(fit)
            if last is not None:
                self._seconds["wait"] += max(began - last, 0.0)
            if method in _ROUNDS:
                self._last[fit] = now
            self._iterations += method == "advance"
            self._n_received += n_received
            self._n_sent += n_sent
            self._rows[fit] = n_rows

    def received(self, n_bytes: int) -> None:
        """Bytes that another worker has sent."""
        with self._lock:
            self._n_received += n_bytes

    def forget(self, fit: str) -> None:
        """A fit has ended."""
        with self._lock:
            self._rows.pop(fit, None)
            self._last.pop(fit, None)

    def figures(self) -> list[MetricSample]:
        """All of it."""
        with self._lock:
            seconds = "Seconds of work on fits, and between two questions of a fit"
            return [
                MetricSample("dboost_worker_fits", "gauge", "Fits under way", len(self._rows)),
                MetricSample("dboost_worker_rows", "gauge", "Rows that are trained on here", sum(self._rows.values())),
                MetricSample("dboost_worker_iterations", "counter", "Boosting iterations taken part in", self._iterations),
                *(
                    MetricSample("dboost_worker_seconds", "counter", seconds, self._seconds[phase], (("phase", phase),))
                    for phase in ("load", *PHASES)
                ),
                MetricSample("dboost_worker_received_bytes", "counter", "Bytes of questions and slices", self._n_received),
                MetricSample("dboost_worker_sent_bytes", "counter", "Bytes of answers", self._n_sent),
            ]


def samples_of_registry(board: FitRegistry) -> list[MetricSample]:
    """What the scheduler's process can tell."""
    totals, under_way = board.totals, board.under_way
    ended = sorted(name.removeprefix("ended ") for name in totals if name.startswith("ended "))
    figures = [
        MetricSample("dboost_fits", "gauge", "Fits under way", len(under_way)),
        MetricSample(
            "dboost_rows", "gauge", "Rows that fits under way train on", sum(sum(fit.rows.values()) for fit in under_way)
        ),
        MetricSample("dboost_trees", "counter", "Trees grown", totals["trees"]),
        MetricSample("dboost_rounds", "counter", "Questions put to all workers of a fit while growing trees", totals["rounds"]),
        MetricSample("dboost_received_bytes", "counter", "Bytes of answers to these questions", totals["bytes"]),
        MetricSample("dboost_workers_lost", "counter", "Workers lost that held rows of a fit", totals["lost"]),
    ]
    what = "Seconds of iterations: the slowest worker's work, merging and deciding, messages and waiting"
    figures += [MetricSample("dboost_seconds", "counter", what, totals[phase], (("phase", phase),)) for phase in PHASES]
    what = "Fits that have ended, by how"
    figures += [
        MetricSample("dboost_fits_ended", "counter", what, totals[f"ended {how}"], (("outcome", how),)) for how in ended
    ]
    for fit in under_way:
        label = ("fit", fit.fit)
        figures.append(
            MetricSample("dboost_iteration", "gauge", "Latest iteration of a fit under way", fit.iteration, (label,))
        )
        figures += [
            MetricSample("dboost_score", "gauge", "Latest loss or metric", curve.latest[1], (label, ("name", name)))
            for name, curve in fit.curves.items()
        ]
    return figures


@dataclass(eq=False)
class _Collector:
    """What is registered: all figures of this process, equal ones added up."""

    sources: list[MetricSamples]

    def describe(self) -> list[Any]:
        """Nothing in advance; without this, registering would collect."""
        return []

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Any] = {}
        for one in added_up(self.sources):
            if one.name not in families:
                family = CounterMetricFamily if one.kind == "counter" else GaugeMetricFamily
                families[one.name] = family(one.name, one.what, labels=[name for name, _ in one.labels])
            families[one.name].add_metric([value for _, value in one.labels], one.value)
        yield from families.values()


def added_up(sources: Iterable[MetricSamples]) -> list[MetricSample]:
    """The figures of several sources, those of the same name and labels added up, in order of first appearance."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], MetricSample] = {}
    for source in sources:
        for one in source():
            before = found.get((one.name, one.labels))
            found[one.name, one.labels] = one if before is None else one._replace(value=before.value + one.value)
    return list(found.values())


_ours = _Collector([])
_guard = threading.Lock()


def publish(figures: MetricSamples) -> Callable[[], None]:
    """Show figures on this process's Prometheus page. Returns a function that ends that."""
    with _guard:
        _ours.sources = [*_ours.sources, figures]
        if len(_ours.sources) == 1:
            _registry("register")

    def end() -> None:
        with _guard:
            if figures in _ours.sources:
                _ours.sources = [source for source in _ours.sources if source is not figures]
                if not _ours.sources:
                    _registry("unregister")

    return end


def _registry(action: str) -> None:
    try:
        from prometheus_client import REGISTRY
    except ImportError:  # Dask has no page either
        return
    getattr(REGISTRY, action)(_ours)
