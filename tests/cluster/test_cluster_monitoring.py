"""Monitoring of fits on a cluster: events, the dashboard page, Prometheus, the progress line."""

from __future__ import annotations

import json
import math
import re
import sys
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import dask
import dask.dataframe as dd
import numpy as np
import pytest
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import dboost
from dboost.cluster.monitoring import prometheus_metrics
from dboost.cluster.monitoring.dashboard import _finite, _panels, page, registry_of
from dboost.cluster.monitoring.fit_registry import _POINTS, _REMEMBERED, Curve, FitRegistry
from dboost.cluster.monitoring.prometheus_metrics import Collector, WorkMeter
from dboost.cluster.worker.worker_plugin import DBoostWorkerPlugin
from tests.helpers.clusters import a_table, threads_cluster, until
from tests.helpers.on_workers import Squares

FRAME = a_table(3000)[["a", "b", "e", "z"]]
OPTIONS: dict[str, Any] = {"max_iter": 6, "max_leaf_nodes": 6, "progress": False}
ITERATION: dict[str, Any] = {
    "n_iterations": 9, "rows": 100, "seconds": 2.0, "compute": 1.0, "reduce": 0.5, "wait": 0.25, "scores": {"train_loss": 0.5},
}  # fmt: skip


def fetch(client: Client, path: str) -> str:
    with urlopen(client.dashboard_link.removesuffix("/status") + path, timeout=120) as answer:
        return str(answer.read().decode())


def worker_totals(dask_worker: Any = None) -> dict[str, float]:
    return dict(dask_worker.plugins["dboost"].meter.totals())


def samples(*sources: WorkMeter | FitRegistry) -> dict[tuple[str, ...], float]:
    """Metrics by name and label values, from the text that Prometheus receives."""
    collector, registry = Collector(), CollectorRegistry()
    collector.sources = sources
    registry.register(collector)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


def test_a_fit_under_way_is_seen(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    seen: dict[str, Any] = {}

    def look(now: dboost.Iteration) -> None:
        if now.iteration == 5:
            until(lambda: json.loads(fetch(client, "/dboost.json"))["fits"][-1]["iteration"] >= 4)
            seen["page"], seen["fit"] = fetch(client, "/dboost"), json.loads(fetch(client, "/dboost.json"))["fits"][-1]
            seen["workers"] = client.run(worker_totals)

    lazy = dd.from_pandas(FRAME, npartitions=6)
    options = OPTIONS | {"progress": True}
    booster = dboost.fit(lazy, "z", client=client, eval_set={"<held>": lazy}, callbacks=look, **options)

    fit, history = seen["fit"], booster.history
    assert fit["phase"] == "boosting" and fit["ended"] is None and fit["n_iterations"] == 6
    assert fit["facts"] == {"loss": "log_loss", "rows": 3000, "features": 3}
    assert sum(fit["rows"].values()) == 3000 and set(fit["rows"]) <= set(seen["workers"])
    for name in ("train_loss", "<held>_log_loss"):
        assert [tuple(point) for point in fit["curves"][name]] == list(zip(range(1, 5), history[name][:4], strict=True))
    assert fit["seconds"]["all"] == pytest.approx(history["seconds"][:4].sum())
    assert fit["rows_per_second"] == pytest.approx(4 * 3000 / fit["seconds"]["all"])
    assert "3,000 rows × 3 features" in seen["page"] and seen["page"].count("<polyline") == 2
    assert "&lt;held&gt;" in seen["page"] and "<held>" not in seen["page"] and " s left" in seen["page"]
    assert (history["workers"] == len(fit["rows"])).all()
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("iteration 6/6: <held>_log_loss ") and "rows/s" in line
    assert line.endswith(f", {len(fit['rows'])} workers")

    totals = seen["workers"].values()
    assert sum(worker["rows"] for worker in totals) == 3000
    assert {worker["iterations"] for worker in totals if worker["rows"]} == {6}, "the 0th too"
    assert all(worker["compute"] > 0 for worker in totals if worker["rows"])
    after = client.run(worker_totals).values()
    assert all(worker["rows"] == worker["fits"] == 0 for worker in after)
    until(lambda: json.loads(fetch(client, "/dboost.json"))["fits"][-1]["phase"] == "done")
    assert "0 under way" in fetch(client, "/dboost/")


def test_a_fit_that_fails_says_so(client: Client) -> None:
    def stop(now: dboost.Iteration) -> None:
        raise KeyboardInterrupt

    lazy = dd.from_pandas(FRAME, npartitions=2)
    with pytest.raises(ZeroDivisionError):
        dboost.fit(lazy, "z", client=client, callbacks=lambda now: 1 // 0, **OPTIONS)
    until(lambda: json.loads(fetch(client, "/dboost.json"))["fits"][-1]["phase"] == "failed")
    with pytest.raises(KeyboardInterrupt):
        dboost.fit(lazy, "z", client=client, callbacks=stop, **OPTIONS)
    until(lambda: json.loads(fetch(client, "/dboost.json"))["fits"][-1]["phase"] == "interrupted")


def has_listener(dask_scheduler: Any = None) -> bool:
    """Return whether the scheduler knows of a client that listens to the events of fits."""
    return bool(dask_scheduler._broker._topics["dboost"].subscribers)


def test_events_say_what_the_page_shows(client: Client) -> None:
    heard: list[Any] = []
    client.subscribe_topic("dboost", lambda event: heard.append(event[1]))
    until(lambda: client.run_on_scheduler(has_listener))  # it is a message of its own, which the first event may overtake
    try:
        dboost.fit(dd.from_pandas(FRAME, npartitions=3), "z", client=client, **OPTIONS)
        # The client's own events and the reducer's arrive by different connections: the last iteration may come after the end.
        until(lambda: {"ended"} | set(range(1, 7)) <= {event.get("iteration", event.get("action")) for event in heard})
    finally:
        client.unsubscribe_topic("dboost")
    board = FitRegistry()
    for event in heard:
        board.see(event, 0.0)
    (fit,) = board.fits.values()
    assert fit.outcome == "done" and fit.iteration == 6 and board.totals["trees"] == 6
    assert fit.reading == {"table": "training data", "read": 3, "partitions": 3}


def test_a_custom_loss_is_reported_by_its_name(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    lazy = dd.from_pandas(FRAME.assign(z=FRAME["a"].fillna(0)), npartitions=3)
    dboost.fit(lazy, "z", client=client, loss=Squares(), **OPTIONS)
    until(lambda: json.loads(fetch(client, "/dboost.json"))["fits"][-1]["phase"] == "done")
    assert json.loads(fetch(client, "/dboost.json"))["fits"][-1]["facts"]["loss"] == "my_squares"
    assert "makes no sense" not in caplog.text


def test_on_the_pages_of_prometheus(client: Client) -> None:
    text: list[str] = []
    look = lambda now: text.append(fetch(client, "/metrics"))  # noqa: E731
    dboost.fit(dd.from_pandas(FRAME, npartitions=3), "z", client=client, callbacks=look, **OPTIONS)
    assert "\ndboost_fits 1.0\n" in text[-1] and "\ndboost_worker_rows 3000.0\n" in text[-1]
    assert 'dboost_seconds_total{phase="compute"}' in text[-1]
    assert text[-1].count("# TYPE dboost_worker_rows gauge") == 1, "two workers share this process"
    assert "\ndboost_worker_rows 0.0\n" in fetch(client, "/metrics")


def test_metrics_of_a_process_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = WorkMeter(), WorkMeter()
    monkeypatch.setattr(prometheus_metrics, "time", SimpleNamespace(perf_counter=lambda: 100.0))
    one.note("fit", "build", 95.0, 10, 1, 70)
    other.note("fit", "advance_to", 98.0, 20, 2, 30)
    other.note("fit", "search_slices", 99.0, 0, 0, 30)
    other.received(5)
    both = samples(one, other)
    assert both[("dboost_worker_rows",)] == 100 and both[("dboost_worker_received_bytes_total",)] == 35
    seconds = [both["dboost_worker_seconds_total", phase] for phase in ("load", "compute", "reduce", "wait")]
    assert seconds == pytest.approx([5, 2, 1, 0])
    one.forget("fit")
    assert samples(one)[("dboost_worker_rows",)] == 0


def test_the_board_forgets() -> None:
    board = FitRegistry()
    for event in (None, "text", {"action": "began"}, {"action": "tree", "fit": "unknown"}, {"action": "__init__", "fit": []}):
        board.see(event, 0.0)
    assert not board.fits and not board.totals
    for k in range(3 * _REMEMBERED):
        board.see({"action": "began", "fit": str(k)}, k)
        board.see({"action": "reading", "fit": str(k), "table": "<b>", "read": 1, "partitions": 2}, k)
        assert "&lt;b&gt;: 1 of 2 partitions read" in page(board, 5.0)
        board.see({"action": "boosting", "fit": str(k), "loss": "huber", "rows": 5, "features": 2}, k)
        board.see({"action": "holding", "fit": str(k), "rows": {"w": 3, "v": 2}}, k)
        board.see({"action": "iteration", "fit": str(k), "iteration": 1} | ITERATION, k)
        board.see({"action": "tree", "fit": str(k), "n_rounds": 2, "n_bytes": 100}, k)
        board.see({"action": "lost", "fit": str(k), "worker": "v"}, k)
        assert board.fits[str(k)].rows == {"w": 3} and "1 lost" in page(board, 5.0)
        for outcome in ("done", "client left"):
            board.see({"action": "ended", "fit": str(k), "outcome": outcome}, k)
    assert list(board.fits) == [str(k) for k in range(2 * _REMEMBERED, 3 * _REMEMBERED)]
    found = samples(board)
    assert found["dboost_fits_ended_total", "done"] == 3 * _REMEMBERED
    assert found["dboost_seconds_total", "reduce"] == 1.5 * _REMEMBERED
    of_trees = [found[(f"dboost_{name}_total",)] for name in ("trees", "rounds", "received_bytes")]
    assert of_trees == [n * 3 * _REMEMBERED for n in (1, 2, 100)]
    assert found[("dboost_workers_lost_total",)] == 3 * _REMEMBERED and found[("dboost_fits",)] == 0


#: One event of each kind, as dboost logs them.
EVENTS: list[dict[str, Any]] = [
    {"action": "began"},
    {"action": "reading", "table": "training data", "read": 1, "partitions": 2},
    {"action": "boosting", "loss": "huber", "rows": 5, "features": 2},
    {"action": "holding", "rows": {"w": 3, "v": 2}},
    {"action": "iteration", "iteration": 1} | ITERATION,
    {"action": "tree", "n_rounds": 2, "n_bytes": 100},
    {"action": "lost", "worker": "v"},
    {"action": "ended", "outcome": "done"},
]
#: The metrics of a fit after these events except for the last.
METRICS = {
    ("dboost_fits",): 1, ("dboost_rows",): 3, ("dboost_iteration", "f"): 1, ("dboost_score", "f", "train_loss"): 0.5,
    ("dboost_trees_total",): 1, ("dboost_rounds_total",): 2, ("dboost_received_bytes_total",): 100,
    ("dboost_workers_lost_total",): 1, ("dboost_seconds_total", "compute"): 1, ("dboost_seconds_total", "reduce"): 0.5,
    ("dboost_seconds_total", "wait"): 0.25,
}  # fmt: skip
ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(-1, 3), st.floats(), st.text(max_size=3), st.binary(max_size=2),
    st.sampled_from([10**400, -(10**400), 2**63, 1e308, "\udcff", "<b>", np.int64(3), np.float64(2.0)]),
    st.lists(st.integers(0, 2), max_size=2),
    st.dictionaries(st.one_of(st.text(max_size=2), st.integers()), st.floats(), max_size=2),
)  # fmt: skip


def test_metrics_of_a_fit_under_way() -> None:
    board = FitRegistry()
    for event in EVENTS[:-1]:
        board.see(event | {"fit": "f"}, 0.0)
    assert samples(board) == METRICS


@pytest.mark.parametrize(
    ("columns", "panels"),
    [
        (["eval_log_loss", "eval_roc_auc"], {"log_loss": ["eval"], "roc_auc": ["eval"]}),
        (["a_b_rmse", "a_b_mae", "a_c_rmse", "a_c_mae"], {"rmse": ["a_b", "a_c"], "mae": ["a_b", "a_c"]}),
        (["late_mae", "held_out_mae"], {"mae": ["late", "held_out"]}),
        (["a_mae", "b_rmse"], {"mae": ["a"], "rmse": ["b"]}),
        (["mae"], {"mae": [""]}),
    ],
)
def test_pictures_of_metrics_have_a_line_for_each_evaluation_set(columns: list[str], panels: dict[str, list[str]]) -> None:
    board = FitRegistry()
    for event in EVENTS[:-1]:
        if event["action"] == "iteration":
            event = event | {"scores": dict.fromkeys(columns, 0.5)}
        board.see(event | {"fit": "f"}, 0.0)
    drawn = {panel.name: [line.rows for line in panel.lines] for panel in _panels(board.fits["f"])}
    assert drawn == panels


def shown(board: FitRegistry) -> None:
    """Return everything that is rendered from a registry of fits."""
    page(board, 5.0).encode()
    json.dumps([_finite(fit.as_dict()) for fit in board.fits.values()], allow_nan=False).encode()
    for (name, *_), value in samples(board).items():
        assert math.isfinite(value) or name == "dboost_score"


@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.text("fit", max_size=1), st.booleans(), st.text(max_size=3), ANYTHING)))
def test_no_event_spoils_the_page(events: list[Any]) -> None:
    board = FitRegistry()
    for event, fit, changes, name, value in events:
        board.see(event | {"fit": fit}, 1.0)
        fields = sorted(set(event) | {"fit"})
        changed = event | {"fit": fit} | {fields[len(name) % len(fields)]: value}
        board.see(changed if changes else {**event, "fit": fit, name: value}, 2.0)
        board.see({key: event[key] for key in fields[1:] if key in event} | {"fit": fit}, 3.0)
        board.see(value, 4.0)
        shown(board)


@pytest.mark.parametrize("event", EVENTS[1:], ids=lambda event: event["action"])
def test_events_that_make_no_sense_change_nothing(event: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    board = FitRegistry()
    for known in EVENTS[:5]:
        board.see(known | {"fit": "f"}, 1.0)
    before = json.dumps([fit.as_dict() for fit in board.fits.values()]), dict(board.totals)
    for field in set(event) - {"action"}:
        for value in (None, [1], {"w": "x"}, b"1", -(10**400)):
            board.see(event | {"fit": "f", field: value}, 2.0)
        board.see({name: value for name, value in event.items() if name != field} | {"fit": "f"}, 2.0)
    assert (json.dumps([fit.as_dict() for fit in board.fits.values()]), dict(board.totals)) == before
    assert caplog.text.count("makes no sense and is ignored") == 1, "once of each kind"


def test_malformed_events_do_not_end_the_page(client: Client) -> None:
    name = "of another client <b>"
    dboost.fit(dd.from_pandas(FRAME, npartitions=3), "z", client=client, **OPTIONS)  # the page exists from then on
    client.log_event("dboost", {"action": "began", "fit": name})
    for event in (
        "text", ["began"], {"action": "began"}, {"action": "began", "fit": 3}, {"action": "reading", "fit": name},
        {"action": "boosting", "fit": name, "loss": None, "rows": "many", "features": None},
        {"action": "holding", "fit": name, "rows": [1, 2]}, {"action": "holding", "fit": name, "rows": {"w": "all"}},
        {"action": "iteration", "fit": name, "iteration": "last"} | ITERATION,
        {"action": "iteration", "fit": name, "iteration": 1} | ITERATION | {"scores": {"a": "b"}},
        {"action": "reading", "fit": name, "table": "t", "read": "a", "partitions": {}},
    ):  # fmt: skip
        client.log_event("dboost", event)
    client.log_event("dboost", {"action": "ended", "fit": name, "outcome": "gone"})
    until(lambda: any(fit["phase"] == "gone" for fit in json.loads(fetch(client, "/dboost.json"))["fits"]))
    assert "loading <small>gone" in fetch(client, "/dboost")
    dboost.fit(dd.from_pandas(FRAME, npartitions=3), "z", client=client, **OPTIONS)
    until(lambda: json.loads(fetch(client, "/dboost.json"))["fits"][-1]["phase"] == "done")
    assert "3,000 rows × 3 features" in fetch(client, "/dboost")


def test_a_curve_stays_short() -> None:
    curve = Curve()
    for iteration in range(1, 10 * _POINTS):
        curve.add(iteration, 1 / iteration)
        assert curve.all()[-1] == (iteration, 1 / iteration) and len(curve.all()) <= _POINTS + 1
    steps = {b[0] - a[0] for a, b in zip(curve.points, curve.points[1:], strict=False)}
    assert len(steps) == 1 and curve.points[0][0] in steps, "evenly spaced"
    curve.add(100, 5.0)  # truncated
    assert curve.all()[-1] == (100, 5.0) and all(x < 100 for x, _ in curve.all()[:-1])


def test_messages_do_not_grow_with_the_rows(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers send only sums while trees grow: rows stay where they were loaded."""
    sizes: list[int] = []
    answer = DBoostWorkerPlugin.answer

    def weighed(*arguments: Any) -> tuple[int, bytes, list[memoryview]]:
        status, content, buffers = answer(*arguments)
        sizes.append(len(content) + sum(buffer.nbytes for buffer in buffers))
        return status, content, buffers

    def bytes_of(n_rows: int) -> int:
        lazy = dd.from_pandas(a_table(n_rows)[["a", "b", "z"]], npartitions=4)
        options = OPTIONS | {"max_bins": 16}
        dboost.fit(lazy, "z", client=client, callbacks=lambda now: sizes.clear() if now.iteration == 1 else None, **options)
        return sum(sizes)

    monkeypatch.setattr(DBoostWorkerPlugin, "answer", weighed)
    few, many = bytes_of(2_000), bytes_of(40_000)
    assert 1_000 < few < 2 * many and many < 2 * few
    assert many < 80_000  # less than two bytes a row in five iterations; in each of them a row has two numbers and a class


def test_curves_of_a_metric_share_a_picture_with_labelled_axes() -> None:
    registry = FitRegistry()
    registry.see({"action": "began", "fit": "f"}, 0.0)
    for k in range(1, 6):
        scores = {"train_loss": 0.9 / k, "eval_squared_error": 50_000.0 * k}
        phases = {"compute": 0.1, "reduce": 0.1, "wait": 0.1}
        progress = {"iteration": k, "n_iterations": 9, "rows": 100, "seconds": 1.0}
        registry.see({"action": "iteration", "fit": "f", **progress, "scores": scores, **phases}, float(k))
    html = page(registry, 9.0)
    assert html.count("<svg") == html.count("<polyline") == 2 and "e+" not in html
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", html)
    assert texts == ["0.90", "0.18", "iteration 1", "5", "250,000", "50,000", "iteration 1", "5"]
    assert "eval <b>250,000</b>" in html and "about 4.0 s left" in html
    registry.see({"action": "boosting", "fit": "f", "loss": "squared_error", "rows": 100, "features": 2}, 6.0)
    html = page(registry, 9.0)
    assert html.count("<svg") == 1 and html.count("<polyline") == 2, "one picture of the RMSE"
    assert "training <b>0.6</b>" in html and "eval <b>707.1</b>" in html
    registry.see({"action": "ended", "fit": "f", "outcome": "done"}, 7.0)
    assert "s left" not in page(registry, 9.0)


def test_the_page_is_there_before_the_first_fit() -> None:
    with (
        dask.config.set({"distributed.scheduler.preload": ["dboost.cluster.scheduler.reducer"]}),
        threads_cluster(1, 1) as client,
    ):
        assert "No fit yet" in fetch(client, "/dboost")
        dboost.fit(dd.from_pandas(FRAME, npartitions=2), "z", client=client, **OPTIONS)
        assert len(json.loads(fetch(client, "/dboost.json"))["fits"]) == 1


def test_pages_of_dask_link_to_it() -> None:
    pytest.importorskip("bokeh", reason="Dask's own pages need bokeh")
    with threads_cluster(1, 1) as client:
        assert 'href="dboost"' not in fetch(client, "/status")
        for _ in range(2):
            dboost.fit(dd.from_pandas(FRAME, npartitions=2), "z", client=client, **OPTIONS)
        assert fetch(client, "/status").count('href="dboost"') == 1


def test_without_pages_of_dask_nothing_is_linked(monkeypatch: pytest.MonkeyPatch) -> None:
    def scheduler() -> Any:
        return SimpleNamespace(extensions={}, http_application=SimpleNamespace(add_handlers=lambda *_: None))

    name = "distributed.dashboard.scheduler"
    pages = ["status"]
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(template_variables=lambda _: {"pages": pages}))
    registry_of(scheduler())
    registry_of(scheduler())
    assert pages == ["status", "dboost"]
    for other in (SimpleNamespace(), SimpleNamespace(template_variables=lambda _: {})):  # other versions of Dask
        monkeypatch.setitem(sys.modules, name, other)
        assert registry_of(scheduler()).fits == {}
