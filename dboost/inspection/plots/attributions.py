"""Shapley values: all rows at a glance, one feature in detail, one row step by step."""

from __future__ import annotations

from typing import Any

import numpy as np

from dboost.inspection.plots import canvas
from dboost.inspection.plots.canvas import BLUE, GREY, INK, VERMILION
from dboost.schema import Feature

MAX_POINTS = 2000


def draw_summary(
    values: np.ndarray, block: np.ndarray, features: tuple[Feature, ...], max_features: int, label: str, ax: Any
) -> Any:
    """A dot per row and feature, coloured by the feature's value; the features that move predictions most on top.

    values : float64[n, n_features]; block : the rows' features.
    """
    rows = np.arange(len(values)) if len(values) <= MAX_POINTS else np.arange(MAX_POINTS) * len(values) // MAX_POINTS
    order = np.argsort(-np.abs(values).mean(axis=0), kind="stable")[:max_features]
    with canvas.style():
        ax = canvas.axes_for(ax, height=0.9 + 0.32 * max(3, len(order)))
        mesh = None
        notes = set()
        for place, j in enumerate(order[::-1]):
            x = values[rows, j]
            y = place + _spread(x)
            level, is_number = _ranks(block[rows, j]), features[j].levels is None
            ax.plot(x[np.isnan(level)], y[np.isnan(level)], "o", color=GREY, markersize=2.2, markeredgewidth=0, alpha=0.6)
            seen = ~np.isnan(level)
            if not is_number:
                notes.add("orange: categories")
            if not seen.all():
                notes.add("grey: missing")
            if is_number:
                dots = {"s": 5, "cmap": canvas.dots(), "vmin": 0, "vmax": 1, "linewidths": 0, "rasterized": True}
                mesh = ax.scatter(x[seen], y[seen], c=level[seen], alpha=0.8, **dots)
            else:
                ax.plot(x[seen], y[seen], "o", color=VERMILION, markersize=2.2, markeredgewidth=0, alpha=0.5, rasterized=True)
        ax.axvline(0, color=GREY, linewidth=0.8, zorder=0)
        ax.set_yticks(np.arange(len(order)), [canvas.short(features[j].name) for j in order[::-1]])
        ax.set(xlabel=f"effect on the {canvas.plain(label)}", ylim=(-0.6, max(3, len(order)) - 0.4))
        if notes:
            ax.set_xlabel(f"{ax.get_xlabel()}\n({', '.join(sorted(notes, reverse=True))})")
        ax.set_title("What moved the predictions (Shapley values)")
        canvas.bars(ax)
        if mesh is not None:
            bar = ax.figure.colorbar(mesh, ax=ax, ticks=[0, 1], pad=0.01, aspect=30)
            bar.ax.set_yticklabels(["low", "high"])
            bar.set_label("feature's value", fontsize=8)
            bar.outline.set_visible(False)
    return ax


def _ranks(x: np.ndarray) -> np.ndarray:
    """Ranks from 0 to 1, equal for equal values; NaN where missing."""
    ranks = np.full(len(x), np.nan)
    present = ~np.isnan(x)
    values, inverse, counts = np.unique(x[present], return_inverse=True, return_counts=True)
    below = np.cumsum(counts) - counts
    middle = (below + (counts - 1) / 2) / max(1, present.sum() - 1)
    ranks[present] = middle[inverse] if len(values) > 1 else 0.5
    return ranks


def _spread(x: np.ndarray) -> np.ndarray:
    """Heights that make the density of the points visible: symmetric, without chance."""
    if not len(x) or np.ptp(x) == 0:
        return np.linspace(-0.3, 0.3, len(x)) if len(x) > 1 else np.zeros(len(x))
    cell = np.minimum(((x - x.min()) / np.ptp(x) * 60).astype(np.int64), 59)
    heights, most = np.zeros(len(x)), np.bincount(cell).max()
    for c in np.unique(cell):
        here = np.flatnonzero(cell == c)
        reach = 0.38 * len(here) / most
        step = np.arange(len(here))
        heights[here] = np.where(step % 2 == 0, 1, -1) * reach * (step + 1) / len(here)
    return heights


def draw_waterfall(
    values: np.ndarray, block: np.ndarray, features: tuple[Feature, ...], start: float, max_features: int, label: str, ax: Any
) -> Any:
    """One row: from the expected score to its own, one bar per feature, the largest on top.

    values, block : float64[n_features] of the row.
    """
    order = np.argsort(-np.abs(values), kind="stable")
    shown, rest = order[: max_features - 1], order[max_features - 1 :]
    if len(rest) == 1:
        shown, rest = order, order[:0]
    steps = [(f"{canvas.short(features[j].name, 16)} = {_value(block[j], features[j])}", float(values[j])) for j in shown]
    if len(rest):
        steps.append((f"{len(rest)} others", float(values[rest].sum())))
    with canvas.style():
        ax = canvas.axes_for(ax, height=1.15 + 0.3 * max(3, len(steps)))
        end = start + float(values.sum())
        # From the bottom, where the small steps are, up to the largest, which arrives at the row's score.
        at = start
        for place in range(len(steps) - 1, -1, -1):
            y, move = len(steps) - 1 - place, steps[place][1]
            ax.barh(y, move, left=at, height=0.62, color=BLUE if move >= 0 else VERMILION)
            said = ("+" if move >= 0 else "") + canvas.number(move)
            canvas.note(ax, said, (max(at, at + move), y), (3, 0), color=GREY)
            at += move
            ax.plot([at, at], [y - 0.31, y + 1.31 if place else y + 0.7], color=GREY, linewidth=0.7)
        ax.axvline(start, color=GREY, linewidth=0.8, linestyle=(0, (3, 2)), zorder=0)
        ax.set_yticks(np.arange(len(steps)), [name for name, _ in steps[::-1]])
        ax.set_title(f"From {canvas.number(start)} (expected) to {canvas.number(end)}")
        ax.set(xlabel=canvas.plain(label), ylim=(-0.6, max(3, len(steps)) - 0.2))
        ends = start + np.cumsum([0.0, *(move for _, move in steps[::-1])])
        reach = float(np.ptp(ends)) or 1.0
        ax.set_xlim(ends.min() - 0.05 * reach, ends.max() + 0.22 * reach)
        canvas.bars(ax)
    return ax


def draw_attribution(values: np.ndarray, x: np.ndarray, feature: Feature, label: str, ax: Any) -> Any:
    """One feature's Shapley values over its values; a box-free strip per level of a categorical one."""
    with canvas.style():
        present = ~np.isnan(x)
        if feature.levels is None:
            ax = canvas.axes_for(ax)
            ax.plot(
                x[present], values[present], "o", color=BLUE, markersize=2.4, markeredgewidth=0, alpha=0.45, rasterized=True
            )
            ax.axhline(0, color=GREY, linewidth=0.8, zorder=0)
            if not present.all():
                mean = values[~present].mean()
                ax.axhline(mean, color=INK, linewidth=0.9, linestyle=(0, (1, 2)), label="missing, on average")
                ax.legend(loc="best")
            ax.set(xlabel=canvas.plain(feature.name), ylabel=f"effect on the {canvas.plain(label)}")
            ax.grid(axis="y")
        else:
            codes = np.unique(x[present]).astype(np.int64)[::-1]
            ax = canvas.axes_for(ax, height=0.95 + 0.26 * max(3, len(codes)))
            for place, code in enumerate(codes):
                here = values[x == code]
                ax.plot(
                    here, place + _spread(here), "o", color=BLUE, markersize=2.4, markeredgewidth=0, alpha=0.45, rasterized=True
                )
            ax.axvline(0, color=GREY, linewidth=0.8, zorder=0)
            ax.set_yticks(np.arange(len(codes)), [canvas.short(feature.levels[code]) for code in codes])
            ax.set(xlabel=f"effect on the {canvas.plain(label)}", ylabel=canvas.plain(feature.name))
            canvas.bars(ax)
        ax.set_title(f"Shapley values of {canvas.short(feature.name)}")
    return ax


def _value(x: float, feature: Feature) -> str:
    if np.isnan(x):
        return "missing"
    return canvas.number(float(x)) if feature.levels is None else canvas.short(feature.levels[int(x)], 12)
