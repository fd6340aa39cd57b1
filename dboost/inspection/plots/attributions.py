"""Plots of Shapley values: a summary of all rows, one feature in detail, one row step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dboost.data.kinds.table_kinds import is_stream
from dboost.errors import ParameterError
from dboost.inspection.plots import canvas
from dboost.inspection.plots.canvas import BLUE, GREY, INK, VERMILION
from dboost.inspection.row_functions import row_of, sample
from dboost.inspection.shapley import Shapley, expected_value
from dboost.model.ensemble import Ensemble, FlatEnsemble
from dboost.params import Integer
from dboost.schema import Feature, Level

#: Largest number of rows in a plot.
MAX_POINTS = 2000
_ALL_ROWS = int(np.iinfo(np.int64).max)


def _attributions(ensemble: Ensemble, block: np.ndarray, output: Any, background: Any) -> tuple[np.ndarray, str]:
    """Shapley values of a block for one output, and the name of their unit."""
    k = ensemble.outputs.number_of(output)
    if is_stream(background):
        raise ParameterError("the background must be a table in memory: compute a sample of some hundred rows")
    rows = None if background is None else sample(background, ensemble, _ALL_ROWS)[1].block
    values = Shapley(ensemble, rows, False, None)(block)
    class_text = f" of {ensemble.outputs.names[k]}" if ensemble.n_outputs > 1 else ""
    return values if values.ndim == 2 else values[:, :, k], canvas.score_label(ensemble) + class_text


def plot_summary(ensemble: Ensemble, X: Any, output: Any, background: Any, max_features: int, ax: Any) -> Any:
    """Draw one dot per row and feature, colored by the feature's value; features with the largest effect on top."""
    block = sample(X, ensemble, MAX_POINTS)[1].block
    values, label = _attributions(ensemble, block, output, background)
    max_features = Integer(1).checked("max_features", max_features)
    features = ensemble.features
    order = np.argsort(-np.abs(values).mean(axis=0), kind="stable")[:max_features]
    with canvas.style():
        ax = canvas.axes_for(ax, height=0.9 + 0.32 * max(3, len(order)))
        mesh = None
        notes = set()
        for line, j in enumerate(order[::-1]):
            x = values[:, j]
            y = line + _spread(x)
            rank, categories = _ranks(block[:, j]), features[j].categories
            ax.plot(x[np.isnan(rank)], y[np.isnan(rank)], "o", color=GREY, markersize=2.2, markeredgewidth=0, alpha=0.6)
            present = ~np.isnan(rank)
            if not present.all():
                notes.add("grey: missing")
            if categories is None:
                dots = {"s": 5, "cmap": canvas.dots(), "vmin": 0, "vmax": 1, "linewidths": 0, "rasterized": True}
                mesh = ax.scatter(x[present], y[present], c=rank[present], alpha=0.8, **dots)
            else:
                _categories(ax, x, y, block[:, j], categories, (line, 0.13 * float(np.ptp(values[:, order]))))
        ax.axvline(0, color=GREY, linewidth=0.8, zorder=0)
        ax.set_yticks(np.arange(len(order)), [canvas.short(features[j].name) for j in order[::-1]])
        ax.set(xlabel=f"Shapley value: effect on the {canvas.plain(label)}", ylim=(-0.6, max(3, len(order)) - 0.4))
        if notes:
            ax.set_xlabel(f"{ax.get_xlabel()}\n({', '.join(sorted(notes, reverse=True))})")
        ax.set_title("What moved the predictions")
        canvas.bars(ax)
        if mesh is not None:
            bar = ax.figure.colorbar(mesh, ax=ax, ticks=[0, 1], pad=0.01, aspect=30)
            bar.ax.set_yticklabels(["low", "high"])
            bar.set_label("feature's value", fontsize=8)
            bar.outline.set_visible(False)
    return ax


def _categories(
    ax: Any, x: np.ndarray, y: np.ndarray, codes: np.ndarray, categories: Sequence[Level], place: tuple[int, float]
) -> None:
    """Draw the dots of a categorical feature: a color for each of the most frequent categories, with names where they fit.

    place : number of the line, and the width of a name.
    """
    levels, counts = np.unique(codes[~np.isnan(codes)].astype(np.int64), return_counts=True)
    frequent = levels[np.argsort(-counts, kind="stable")][: len(canvas.CYCLE)]
    dots = {"markersize": 2.2, "markeredgewidth": 0, "alpha": 0.6, "rasterized": True}
    rest = ~np.isnan(codes) & ~np.isin(codes, frequent)
    ax.plot(x[rest], y[rest], "o", color=GREY, **dots)
    named: list[float] = []
    for i, code in enumerate(frequent):
        is_level = codes == code
        ax.plot(x[is_level], y[is_level], "o", color=canvas.CYCLE[i], **dots)
        middle = float(x[is_level].mean())
        if all(abs(middle - label) > place[1] for label in named):
            named.append(middle)
            style = {"color": canvas.CYCLE[i], "ha": "center", "va": "bottom", "fontsize": 6.5}
            canvas.note(ax, canvas.short(categories[code], 9), (middle, place[0] + 0.3), (0, 0), **style)


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
    """Vertical offsets that show the density of the points, without randomness."""
    if not len(x) or np.ptp(x) == 0:
        return np.linspace(-0.3, 0.3, len(x)) if len(x) > 1 else np.zeros(len(x))
    column = np.minimum(((x - x.min()) / np.ptp(x) * 60).astype(np.int64), 59)
    heights, most = np.zeros(len(x)), np.bincount(column).max()
    for c in np.unique(column):
        rows = np.flatnonzero(column == c)
        reach = 0.38 * len(rows) / most
        step = np.arange(len(rows))
        heights[rows] = np.where(step % 2 == 0, 1, -1) * reach * (step + 1) / len(rows)
    return heights


def plot_waterfall(ensemble: Ensemble, X: Any, row: int, output: Any, background: Any, max_features: int, ax: Any) -> Any:
    """Draw one bar per feature from the expected score to the score of a row, the largest on top."""
    (x,) = row_of(X, ensemble, row)
    attributions, label = _attributions(ensemble, x[None], output, background)
    values, features = attributions[0], ensemble.features
    k = ensemble.outputs.number_of(output)
    if background is None:
        start = float(expected_value(ensemble)[k])
    else:  # the values of a row add up to its score minus the start
        start = float(FlatEnsemble(ensemble).raw_scores(x[None])[0, k] - values.sum())
    max_features = Integer(1).checked("max_features", max_features)
    order = np.argsort(-np.abs(values), kind="stable")
    shown, rest = order[: max_features - 1], order[max_features - 1 :]
    if len(rest) == 1:
        shown, rest = order, order[:0]
    steps = [(f"{canvas.short(features[j].name, 24)} = {_value(x[j], features[j])}", float(values[j])) for j in shown]
    if len(rest):
        steps.append((f"{len(rest)} others", float(values[rest].sum())))
    with canvas.style():
        ax = canvas.axes_for(ax, height=1.15 + 0.3 * max(3, len(steps)), width=6.2)
        end = start + float(values.sum())
        # From the smallest steps at the bottom to the largest, which ends at the row's score.
        at = start
        texts = canvas.numbers([move for _, move in steps], sign=True)
        for i in range(len(steps) - 1, -1, -1):
            y, move = len(steps) - 1 - i, steps[i][1]
            ax.barh(y, move, left=at, height=0.62, color=BLUE if move >= 0 else VERMILION)
            canvas.note(ax, texts[i], (max(at, at + move), y), (4, 0), color=GREY, bbox=canvas.box(ax))
            at += move
            ax.plot([at, at], [y - 0.31, y + 1.31 if i else y + 0.7], color=GREY, linewidth=0.7)
        ax.axvline(start, color=GREY, linewidth=0.8, linestyle=(0, (3, 2)), zorder=0)
        ax.set_yticks(np.arange(len(steps)), [name for name, _ in steps[::-1]])
        ax.set_title("From {} to {}".format(*canvas.numbers([start, end])))
        ax.set(xlabel=f"{canvas.plain(label)} (dashes: expected)", ylim=(-0.6, max(3, len(steps)) - 0.2))
        ends = start + np.cumsum([0.0, *(move for _, move in steps[::-1])])
        reach = float(np.ptp(ends)) or 1.0
        ax.set_xlim(ends.min() - 0.05 * reach, ends.max() + 0.22 * reach)
        canvas.bars(ax)
    return ax


def plot_dependence(ensemble: Ensemble, X: Any, feature: Any, output: Any, background: Any, ax: Any) -> Any:
    """Draw one feature's Shapley values over its values; one strip of dots per level of a categorical feature,
    the largest effect on top."""
    (j,) = ensemble.feature_positions(feature, at_most=1)
    block = sample(X, ensemble, MAX_POINTS)[1].block
    attributions, label = _attributions(ensemble, block, output, background)
    values, x, feature = attributions[:, j], block[:, j], ensemble.features[j]
    with canvas.style():
        present = ~np.isnan(x)
        if feature.categories is None:
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
            codes = np.unique(x[present]).astype(np.int64)
            codes = codes[np.argsort([values[x == code].mean() for code in codes], kind="stable")]
            ax = canvas.axes_for(ax, height=0.95 + 0.26 * max(3, len(codes)))
            for line, code in enumerate(codes):
                level_values = values[x == code]
                ax.plot(
                    level_values,
                    line + _spread(level_values),
                    "o",
                    color=BLUE,
                    markersize=2.4,
                    markeredgewidth=0,
                    alpha=0.45,
                    rasterized=True,
                )
            ax.axvline(0, color=GREY, linewidth=0.8, zorder=0)
            ax.set_yticks(np.arange(len(codes)), [canvas.short(feature.categories[code]) for code in codes])
            ax.set(xlabel=f"effect on the {canvas.plain(label)}", ylabel=canvas.plain(feature.name))
            canvas.bars(ax)
        ax.set_title(f"Shapley values of {canvas.short(feature.name)}")
    return ax


def _value(x: float, feature: Feature) -> str:
    if np.isnan(x):
        return "missing"
    return canvas.value(float(x)) if feature.categories is None else canvas.short(feature.categories[int(x)], 24)
