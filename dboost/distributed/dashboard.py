"""The page ``/dboost`` of Dask's dashboard: running fits and the last few that ended, as recorded by the `FitRegistry`.

The page is one HTML document with inline pictures. It loads nothing from other hosts and does not need bokeh, because the
scheduler's HTTP server always runs. It refreshes every 2 s. ``/dboost.json`` returns the same data. Both also exist below a
prefix of the dashboard's addresses.
"""

from __future__ import annotations

import math
import time
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from tornado.web import RequestHandler

from dboost.distributed.status import PHASES, Curve, FitRegistry, FitStatus

_WIDTH, _HEIGHT = 560, 150
_COLORS = ("#3b6fb6", "#c4622d", "#3f8f5b", "#8a5aa8", "#b0892f", "#5f7d8c")
_PHASE_COLORS = dict(zip(PHASES, _COLORS, strict=False)) | {"other": "#8888"}


def show(registry: FitRegistry, application: Any) -> None:
    """Add the page to a scheduler's HTTP server. application : of tornado, or None if there is no server."""
    if application is not None:
        routes = [(rf"(?:/.*)?/dboost{ending}", handler, {"registry": registry}) for ending, handler in _HANDLERS.items()]
        application.add_handlers(".*$", routes)


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
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@cache
def _template() -> Template:
    environment = Environment(loader=PackageLoader("dboost.distributed", ""), autoescape=True, undefined=StrictUndefined)
    return environment.get_template("dashboard.html.jinja")


def page(registry: FitRegistry, now: float) -> str:
    """Return the HTML document. now : Unix time."""
    return _template().render(
        fits=sorted(registry.fits.values(), key=lambda fit: (fit.ended is not None, -fit.began)),
        n_running=len(registry.under_way),
        n_trees=int(registry.totals["trees"]),
        now=now,
        polylines=_polylines,
        seconds_by_phase=_seconds_by_phase,
        colors=_COLORS,
        phase_colors=_PHASE_COLORS,
        width=_WIDTH,
        height=_HEIGHT,
    )


def _seconds_by_phase(fit: FitStatus) -> dict[str, float]:
    """Return the seconds of all iterations by phase; empty if no time was recorded."""
    seconds = {phase: fit.seconds[phase] for phase in PHASES}
    seconds["other"] = max(fit.seconds["all"] - sum(seconds.values()), 0.0)
    return seconds if fit.seconds["all"] and sum(seconds.values()) > 0 else {}


def _polylines(curves: dict[str, Curve]) -> list[str]:
    """Return the points of each loss and metric by iteration, each scaled to the height of the picture."""
    last = max((curve.latest[0] for curve in curves.values()), default=1)
    lines = []
    for curve in curves.values():
        points = [(x, y) for x, y in curve.all() if math.isfinite(y)]
        heights = [y for _, y in points]
        high = max(heights, default=0.0)
        span = (high - min(heights, default=0.0)) or 1.0
        lines.append(" ".join(f"{_WIDTH * x / last:.1f},{5 + (_HEIGHT - 10) * (high - y) / span:.1f}" for x, y in points))
    return lines
