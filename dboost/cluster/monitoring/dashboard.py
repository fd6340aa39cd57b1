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
from dboost.display import as_read, counted, number

if TYPE_CHECKING:
    from jinja2 import Template

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
        number=number,
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
    latest: float
    points: str  # of the polyline
    low: float  # the smallest and the largest value, at the bottom and at the top
    high: float
    last: int  # iteration at the right end


def _panels(fit: FitStatus) -> list[Panel]:
    """Return a picture of each loss and metric by iteration; all have the same axis of iterations."""
    curves, loss = fit.curves, fit.facts.get("loss", "")
    last = max((curve.latest[0] for curve in curves.values()), default=1)
    panels = []
    for name, curve in curves.items():
        points = [(x, as_read(name, y, loss)[1]) for x, y in curve.all() if math.isfinite(y)]
        heights = [y for _, y in points]
        low, high = min(heights, default=0.0), max(heights, default=0.0)
        span, width = (high - low) or 1.0, _WIDTH - _LEFT
        line = " ".join(f"{_LEFT + width * x / last:.1f},{5 + (_HEIGHT - 10) * (high - y) / span:.1f}" for x, y in points)
        panels.append(Panel(*as_read(name, curve.latest[1], loss), line, low, high, last))
    return panels
