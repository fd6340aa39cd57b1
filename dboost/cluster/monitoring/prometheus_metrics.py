"""Metrics for Prometheus, on the ``/metrics`` pages of Dask's scheduler and workers.

These pages show everything that is registered with `prometheus_client`; if it is not installed, there are no pages and
`publish` does nothing. One collector per process sums over the workers and schedulers of that process. It is registered with
the first of them and removed with the last.

Seconds of a worker are divided into phases: *compute* is work on its own rows, *reduce* merging and searching histograms of
other workers, *wait* the time between two requests of a fit that has finished loading.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dboost.cluster.monitoring.fit_registry import PHASES, FitRegistry, FitStatus
from dboost.cluster.transport.feature_exchange import FeatureOwner
from dboost.session.session import Session

Totals = defaultdict[str, float]
#: Methods that add up and search histograms of other workers.
_REDUCES = {FeatureOwner.add_slices.__name__, FeatureOwner.search_slices.__name__}
#: Methods that belong to boosting rounds; all others belong to loading.
_ROUNDS = _REDUCES | {FeatureOwner.cut_slices.__name__, Session.round_histograms.__name__, Session.advance_to.__name__}
_ROUNDS |= {Session.assign_leaves.__name__, Session.statistics.__name__, Session.evaluate.__name__}


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


def _summed(parts: Iterable[dict[str, float]]) -> Totals:
    total: Totals = defaultdict(float)
    for part in parts:
        for name, value in part.items():
            total[name] += value
    return total


def _family(kind: str, name: str, text: str, values: float | dict[Any, float], *labels: str) -> Any:
    """Return a metric: a "counter" or a "gauge". values : one number, or numbers by the values of the labels."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    family = (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(name, text, labels=labels)
    for key, value in values.items() if isinstance(values, dict) else [((), values)]:
        family.add_metric(key if isinstance(key, tuple) else (key,), value)
    return family


def _worker_metrics(total: Totals) -> Iterator[Any]:
    seconds = {phase: total[phase] for phase in ("load", *PHASES)}
    yield _family("gauge", "dboost_worker_fits", "Running fits", total["fits"])
    yield _family("gauge", "dboost_worker_rows", "Training rows of running fits", total["rows"])
    yield _family("counter", "dboost_worker_iterations", "Boosting iterations", total["iterations"])
    yield _family("counter", "dboost_worker_seconds", "Seconds of work on fits and between requests", seconds, "phase")
    yield _family("counter", "dboost_worker_received_bytes", "Bytes of requests and histogram slices", total["received"])
    yield _family("counter", "dboost_worker_sent_bytes", "Bytes of replies", total["sent"])


def _scheduler_metrics(total: Totals, running: list[FitStatus]) -> Iterator[Any]:
    seconds_text = "Seconds of iterations: slowest worker, merging and split search, messages and waiting"
    outcomes = {name.removeprefix("ended "): total[name] for name in sorted(total) if name.startswith("ended ")}
    iterations: dict[Any, float] = {fit.fit: fit.iteration for fit in running}
    scores = {(fit.fit, name): curve.latest[1] for fit in running for name, curve in fit.curves.items()}
    n_rows = sum(sum(fit.rows.values()) for fit in running)
    yield _family("gauge", "dboost_fits", "Running fits", len(running))
    yield _family("gauge", "dboost_rows", "Training rows of running fits", n_rows)
    yield _family("counter", "dboost_trees", "Trees grown", total["trees"])
    yield _family("counter", "dboost_rounds", "Requests to all workers of a fit while growing trees", total["rounds"])
    yield _family("counter", "dboost_received_bytes", "Bytes of the replies to these requests", total["bytes"])
    yield _family("counter", "dboost_workers_lost", "Lost workers that had rows of a fit", total["lost"])
    yield _family("counter", "dboost_seconds", seconds_text, {phase: total[phase] for phase in PHASES}, "phase")
    yield _family("counter", "dboost_fits_ended", "Fits that have ended", outcomes, "outcome")
    yield _family("gauge", "dboost_iteration", "Latest iteration of a running fit", iterations, "fit")
    yield _family("gauge", "dboost_score", "Latest loss or metric of a running fit", scores, "fit", "name")


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
