"""The page ``/dboost`` of Dask's dashboard: running fits and the last few that ended.

It is there from the first fit on, or with ``--preload dboost.cluster.scheduler.reducer`` from the start of the scheduler. It is
one HTML document with inline pictures. It loads nothing from other hosts and does not need bokeh, because the scheduler's HTTP
server always runs. It refreshes every 2 s. Dask's own pages, which need bokeh, link to it. ``/dboost.json`` returns the same
data. Both also exist below a prefix of the dashboard's addresses.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tornado.web import RequestHandler

from dboost.cluster.monitoring.fit_registry import PHASES, FitRegistry, FitStatus
from dboost.display import as_read, counted, duration, numbers

if TYPE_CHECKING:
    from jinja2 import Template

#: Size of the picture of a curve, and where its axis begins, right of the values.
_WIDTH, _HEIGHT, _LEFT = 310, 110, 90
#: Middle tones of the colors of plots, for light and dark color schemes.
_COLORS = ("#2b87c8", "#d9682a", "#1f9d78", "#b565a7", "#b98a1c", "#5f7d8c")
_PHASE_COLORS = dict(zip(PHASES, _COLORS, strict=False)) | {"other": "#8888"}


def registry_of(scheduler: Any) -> FitRegistry:
    """Return the registry of a scheduler. The first call makes it, and adds the page to the scheduler's HTTP server."""
    extensions = getattr(scheduler, "extensions", {})
    if "dboost" not in extensions:
        registry = extensions["dboost"] = FitRegistry()
        application = getattr(scheduler, "http_application", None)  # of tornado, or None if there is no server
        if application is not None:
            contents = {"/?": page, r"\.json": as_json}
            routes = [
                (rf"(?:/.*)?/dboost{ending}", _Handler, {"content": content, "registry": registry})
                for ending, content in contents.items()
            ]
            application.add_handlers(".*$", routes)
            _link_from_pages_of_dask(scheduler)
    registry = extensions["dboost"]
    return registry


def _link_from_pages_of_dask(scheduler: Any) -> None:
    """Add the page to the navigation of Dask's own pages, if bokeh draws them.

    Dask makes the list of its pages once for each scheduler; there is no other way to extend it.
    """
    variables = getattr(sys.modules.get("distributed.dashboard.scheduler"), "template_variables", None)
    pages = None if variables is None else variables(scheduler).get("pages")
    if isinstance(pages, list) and "dboost" not in pages:
        pages.append("dboost")


class _Handler(RequestHandler):
    def initialize(self, content: Callable[[FitRegistry], Any], registry: FitRegistry) -> None:
        self._content = partial(content, registry)

    def get(self) -> None:
        self.write(self._content())


def as_json(registry: FitRegistry) -> dict[str, Any]:
    """Return the status of all fits as JSON types."""
    return {"fits": [_finite(fit.as_dict()) for fit in registry.fits.values()]}


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

    environment = Environment(loader=PackageLoader("dboost.cluster.monitoring", ""), autoescape=True, undefined=StrictUndefined)
    return environment.get_template("dashboard.html.jinja")


def page(registry: FitRegistry, now: float | None = None) -> str:
    """Return the HTML document. now : Unix time of another moment, for tests."""
    return _template().render(
        fits=sorted(registry.fits.values(), key=lambda fit: (fit.ended is not None, -fit.began)),
        n_running=len(registry.under_way),
        n_trees=int(registry.totals["trees"]),
        now=time.time() if now is None else now,
        panels=_panels,
        left_of=_left,
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


class PanelLine(NamedTuple):
    """A metric of some rows in a picture."""

    rows: str  # "training", or the name of an evaluation set
    latest: str
    points: str  # of the polyline
    color: str  # the same for these rows in all pictures


class Panel(NamedTuple):
    """The picture of one metric, with a line for the training rows and for each evaluation set that has it."""

    name: str
    lines: list[PanelLine]
    low: str  # the smallest and the largest value, at the bottom and at the top
    high: str
    last: int  # iteration at the right end


def _panels(fit: FitStatus) -> list[Panel]:
    """Return a picture of each metric by iteration; all have the same axis of iterations."""
    loss = fit.facts.get("loss", "")
    last = max((curve.latest[0] for curve in fit.curves.values()), default=1)
    by_metric: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for name, curve in fit.curves.items():
        rows, metric = _rows_and_metric(name, fit)
        points = [(x, as_read(name, y, loss)[1]) for x, y in curve.all() if math.isfinite(y)]
        by_metric.setdefault(metric, {})[rows] = points
    names = [*dict.fromkeys(["training", *(rows for curves in by_metric.values() for rows in curves)])]
    panels = []
    for metric, curves in by_metric.items():
        heights = [y for points in curves.values() for _, y in points]
        low, high = min(heights, default=0.0), max(heights, default=0.0)
        latest = numbers([points[-1][1] if points else math.nan for points in curves.values()], 4)
        lines = [
            PanelLine(rows, text, _polyline(points, low, high, last), _COLORS[names.index(rows) % len(_COLORS)])
            for (rows, points), text in zip(curves.items(), latest, strict=True)
        ]
        bottom, top = numbers([low, high])
        panels.append(Panel(metric, lines, bottom, top, last))
    return panels


def _rows_and_metric(column: str, fit: FitStatus) -> tuple[str, str]:
    """Return rows and metric of a column of the history: "training", or an evaluation set, whose name may have any form."""
    loss = fit.facts.get("loss", "")
    name = as_read(column, 0.0, loss)[0]
    if column == "train_loss":
        return "training", (loss or "loss") if name == column else name.removeprefix("train_")
    ending = f"_{loss}"
    sets = [other.removesuffix(ending) for other in fit.curves if loss and other.endswith(ending)]
    for rows in sorted(sets, key=len, reverse=True):
        if name.startswith(f"{rows}_"):
            return rows, name.removeprefix(f"{rows}_")
    columns = [as_read(other, 0.0, loss)[0] for other in fit.curves if other != "train_loss"]
    for rows in _sets(columns):
        if name.startswith(f"{rows}_"):
            return rows, name.removeprefix(f"{rows}_")
    rows, _, metric = name.partition("_")
    return (rows, metric) if metric else ("", name)


def _sets(columns: list[str]) -> list[str]:
    """Return the evaluation sets of which columns ``<set>_<metric>`` are, if each set has all metrics: as many as possible."""
    words, known = columns[0].split("_") if columns else [], set(columns)
    choices = []
    for rows in ("_".join(words[:i]) for i in range(1, len(words))):
        metrics = [column.removeprefix(f"{rows}_") for column in columns if column.startswith(f"{rows}_")]
        sets = [column.removesuffix(f"_{metrics[0]}") for column in columns if column.endswith(f"_{metrics[0]}")]
        if {f"{set_}_{metric}" for set_ in sets for metric in metrics} == known:
            choices.append(sets)
    return max(choices, key=len, default=[])  # the first one, if several have as many: names of metrics have more words


def _polyline(points: list[tuple[int, float]], low: float, high: float, last: int) -> str:
    span, width = (high - low) or 1.0, _WIDTH - _LEFT
    return " ".join(f"{_LEFT + width * x / last:.1f},{5 + (_HEIGHT - 10) * (high - y) / span:.1f}" for x, y in points)


def _left(fit: FitStatus) -> str:
    """Return how long the other iterations take if they are like those before; nothing after the last one."""
    if fit.ended is not None or not fit.n_timed or fit.iteration >= fit.n_iterations:
        return ""
    return f"about {duration(max((fit.n_iterations - fit.iteration) * fit.seconds['all'] / fit.n_timed, 0.0))} left"
