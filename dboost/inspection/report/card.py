"""A model as a notebook shows it: a small card that takes the notebook's own colours."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from dboost.inspection.plots.canvas import cut
from dboost.inspection.report.style import words

if TYPE_CHECKING:
    from dboost.inspection.plot_methods import Drawing

SHOWN = 5


def card(booster: Drawing) -> str:
    """HTML without a style sheet of its own, so that it cannot disturb the notebook."""
    ensemble = booster.ensemble
    kind = "regression" if ensemble.classes is None else f"{len(ensemble.classes)} classes"
    facts = f"{ensemble.n_iterations} iterations, {len(ensemble.features)} features"
    if len(ensemble.sources) > 1:
        facts += f", {len(ensemble.sources)} sources"
    kept = ensemble.best_iteration or ensemble.n_iterations
    metrics = [
        f"{escape(name.replace('_', ' '))} <b>{words(float(values[min(kept, len(values)) - 1]))}</b>"
        for name, values in ensemble.metrics.items()
        if values
    ]
    importance = booster.importance()
    bars = "".join(
        f'<tr><td style="text-align:left;padding:0 8px 0 0">{escape(cut(str(name)))}</td><td style="padding:0;width:140px">'
        f'<div style="background:#0072b2;height:9px;border-radius:2px;width:{value:.0f}%"></div></td></tr>'
        for name, value in importance[importance > 0].head(SHOWN).items()
    )
    return (
        '<div style="border:1px solid #8888;border-radius:8px;padding:10px 14px;display:inline-block;max-width:100%">'
        f"<div><b>dboost model</b>: {escape(str(ensemble.loss['name']).replace('_', ' '))}, {kind}</div>"
        f'<div style="opacity:.75">{facts}</div>'
        f"<div>{' · '.join(metrics)}</div>"
        f'<table style="margin:6px 0 0;border-collapse:collapse;font-size:inherit">{bars}</table></div>'
    )
