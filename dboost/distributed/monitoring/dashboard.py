"""The page ``/dboost`` of Dask's dashboard: the fits under way, and the last few that ended, as the board knows them.

It is one piece of HTML with its pictures in it: nothing is loaded from elsewhere, and Dask's own plots (and bokeh, which draws
them) need not be there, because the scheduler listens for HTTP in any case. The page asks for itself anew every two seconds.
The same as JSON is at ``/dboost.json``. A prefix of the dashboard's addresses comes before these, too.
"""

from __future__ import annotations

import html
import math
import time
from collections.abc import Sequence
from typing import Any

from tornado.web import RequestHandler

from dboost.distributed.monitoring.status import PHASES, Curve, FitRegistry, FitStatus

_WIDTH, _HEIGHT = 560, 150
_COLOURS = ("#3b6fb6", "#c4622d", "#3f8f5b", "#8a5aa8", "#b0892f", "#5f7d8c")
_PHASE_COLOURS = dict(zip(PHASES, _COLOURS, strict=False)) | {"other": "#8888"}

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.45 system-ui, sans-serif; }
body { max-width: 62rem; margin: 1.5rem auto; padding: 0 1rem; }
section { border-top: 1px solid #8886; padding: .6rem 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin: .3rem 0; } h2 small { font-weight: normal; opacity: .7; }
.bar { background: #8883; height: .5rem; border-radius: .25rem; overflow: hidden; display: flex; max-width: 560px; }
.bar i { display: block; height: 100%; }
svg { max-width: 100%; height: auto; display: block; } svg text { font: 11px system-ui, sans-serif; fill: currentColor; }
table { border-collapse: collapse; } td, th { text-align: left; padding: .1rem 1.2rem .1rem 0; font-weight: normal; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
.long { max-height: 12rem; overflow: auto; }
.key { display: inline-block; width: .7em; height: .7em; border-radius: 2px; margin: 0 .35em 0 .9em; }
.key:first-child { margin-left: 0; }
"""

_RENEW = """
setInterval(async () => {
  try {
    const page = new DOMParser().parseFromString(await (await fetch(location.href)).text(), "text/html");
    document.querySelector("main").replaceWith(page.querySelector("main"));
  } catch (error) { /* the scheduler is busy, or gone */ }
}, 2000);
"""


def show(board: FitRegistry, application: Any) -> None:
    """Add the page to a scheduler's HTTP server. application : tornado's, or None where there is no server."""
    if application is not None:
        routes = [(rf"(?:/.*)?/dboost{ending}", handler, {"board": board}) for ending, handler in _HANDLERS.items()]
        application.add_handlers(".*$", routes)


class _Handler(RequestHandler):
    def initialize(self, board: FitRegistry) -> None:
        self._board = board


class _Page(_Handler):
    def get(self) -> None:
        self.write(page(self._board, time.time()))


class _Json(_Handler):
    def get(self) -> None:
        self.write({"fits": [_finite(fit.as_dict()) for fit in self._board.fits.values()]})


_HANDLERS = {"/?": _Page, r"\.json": _Json}


def _finite(value: Any) -> Any:
    """Without numbers that JSON does not have."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def page(board: FitRegistry, now: float) -> str:
    """The whole page. now : Unix time."""
    fits = sorted(board.fits.values(), key=lambda fit: (fit.ended is not None, -fit.began))
    trees = int(board.totals["trees"])
    sections = "".join(_section(fit, now) for fit in fits) or "<p>No fit has been begun on this cluster yet.</p>"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>dboost</title><style>{_STYLE}</style>'
        f"<h1>dboost</h1><main><p>{len(board.under_way)} under way, {trees:,} trees grown on this cluster</p>"
        f"{sections}</main><script>{_RENEW}</script></html>"
    )


def _section(fit: FitStatus, now: float) -> str:
    facts = fit.facts
    title = f"{facts['loss']}, {facts['rows']:,} rows × {facts['features']:,} features" if facts else "loading"
    seconds = (now if fit.ended is None else fit.ended) - fit.began
    parts = [f"<h2>{_text(title)} <small>{_text(fit.phase)}, {seconds:.0f} s, fit {_text(fit.fit[:8])}</small></h2>"]
    if fit.iteration:
        rate = f"{fit.rows_per_second:,.0f} rows/s"
        parts.append(f"<p>iteration {fit.iteration:,} of {fit.n_iterations:,}, {rate}, {len(fit.rows)} workers{_lost(fit)}</p>")
        parts.append(_bar([(fit.iteration / max(fit.n_iterations, 1), _COLOURS[0])]))
        parts += [_curves(fit.curves), _phases(fit)]
    elif fit.reading and not facts:
        read, all_ = fit.reading["read"], fit.reading["partitions"]
        parts.append(f"<p>{_text(fit.reading['table'])}: {read:,} of {all_:,} partitions read{_lost(fit)}</p>")
        parts.append(_bar([(read / max(all_, 1), _COLOURS[0])]))
    if fit.rows and fit.ended is None:
        parts.append(_workers(fit.rows))
    return f"<section>{''.join(parts)}</section>"


def _lost(fit: FitStatus) -> str:
    return f", {fit.n_lost} lost" if fit.n_lost else ""


def _bar(shares: Sequence[tuple[float, str]]) -> str:
    inner = "".join(f'<i style="width:{100 * share:.1f}%;background:{colour}"></i>' for share, colour in shares)
    return f'<div class="bar">{inner}</div>'


def _key(colour: str, text: str) -> str:
    return f'<span class="key" style="background:{colour}"></span>{_text(text)}'


def _phases(fit: FitStatus) -> str:
    """Where the seconds of the iterations went."""
    all_ = fit.seconds["all"]
    parts = {phase: fit.seconds[phase] for phase in PHASES}
    parts["other"] = max(all_ - sum(parts.values()), 0.0)
    if not all_:
        return ""
    keys = "".join(_key(_PHASE_COLOURS[name], f"{name} {seconds:.1f} s") for name, seconds in parts.items())
    bar = _bar([(seconds / max(sum(parts.values()), 1e-9), _PHASE_COLOURS[name]) for name, seconds in parts.items()])
    return f"<p>{keys}</p>{bar}"


def _curves(curves: dict[str, Curve]) -> str:
    """Losses and metrics by iteration, each on a scale of its own, with its latest value."""
    drawn, keys = [], []
    last = max((curve.latest[0] for curve in curves.values()), default=1)
    for k, (name, curve) in enumerate(curves.items()):
        colour = _COLOURS[k % len(_COLOURS)]
        keys.append(_key(colour, f"{name} {curve.latest[1]:.6g}"))
        points = [(x, y) for x, y in curve.all() if math.isfinite(y)]
        if not points:
            continue
        heights = [y for _, y in points]
        low, high = min(heights), max(heights)
        span = (high - low) or 1.0
        places = " ".join(f"{_WIDTH * x / last:.1f},{5 + (_HEIGHT - 10) * (high - y) / span:.1f}" for x, y in points)
        drawn.append(f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    frame = f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#8886"/>'
    picture = (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img" aria-label="losses">{frame}{"".join(drawn)}</svg>'
    )
    return f"<p>{''.join(keys)}</p>{picture}"


def _workers(rows: dict[str, int]) -> str:
    whole = max(sum(rows.values()), 1)
    lines = "".join(
        f'<tr><td>{_text(worker)}</td><td class="n">{n:,}</td><td class="n">{100 * n / whole:.0f} %</td></tr>'
        for worker, n in sorted(rows.items())
    )
    return f'<p>rows by worker</p><div class="long"><table>{lines}</table></div>'


def _text(what: Any) -> str:
    return html.escape(str(what))
