"""Metrics for Prometheus on the ``/metrics`` pages of Dask's scheduler and workers.

Dask's pages show everything that is registered with `prometheus_client`; if it is not installed, there are no pages and
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

from dboost.distributed.status import PHASES, FitRegistry, FitStatus

#: Methods that belong to boosting rounds; all others belong to loading.
_ROUNDS = {"update_scores", "round_histograms", "histogram_slices", "search_slices", "shard_statistics", "evaluate"}


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
        phase = "reduce" if method == "search_slices" else "compute" if method in _ROUNDS else "load"
        with self._lock:
            self._totals[phase] += now - began
            last = self._last.get(fit)
            if last is not None:
                self._totals["wait"] += max(began - last, 0.0)
            if method in _ROUNDS:
                self._last[fit] = now
            self._totals["iterations"] += method == "update_scores"
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
                _collector.sources = tuple(other for other in _collector.sources if other is not source)
                if not _collector.sources:
                    _change_registry("unregister")

    return withdraw


def _change_registry(action: str) -> None:
    try:
        from prometheus_client import REGISTRY
    except ImportError:
        return
    getattr(REGISTRY, action)(_collector)
