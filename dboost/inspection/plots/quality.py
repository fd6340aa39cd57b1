"""How good predictions are: calibration and lift of probabilities, residuals of numbers.

Where rows have weights, shares are of weight, groups are of about equal weight, and a group counts for as many rows as would
say as much with equal weights: the square of the sum of the weights over the sum of their squares (Kish, 1965).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dboost.inspection.plots import canvas
from dboost.inspection.plots.canvas import BLUE, FAINT, GREY, VERMILION


def draw_calibration(
    truth: np.ndarray, probability: np.ndarray, weight: np.ndarray | None, label: str, n_bins: int, ax: Any
) -> Any:
    """How often it happened, against how probable it was said to be, in groups of equally many rows.

    truth : bool[n]; probability : float64[n]; weight : float64[n] or None; label : what it is the probability of.
    """
    weight = np.ones(len(truth)) if weight is None else weight
    order = np.argsort(probability, kind="stable")
    order = order[weight[order] > 0]
    groups = _groups(order, weight, n_bins)
    said = np.array([np.average(probability[group], weights=weight[group]) for group in groups])
    happened = np.array([np.average(truth[group], weights=weight[group]) for group in groups])
    size = np.array([weight[group].sum() ** 2 / (weight[group] ** 2).sum() for group in groups])
    with canvas.style():
        ax = canvas.axes_for(ax, height=3.6)
        ax.plot([0, 1], [0, 1], color=GREY, linewidth=0.9, linestyle=(0, (3, 2)))
        low, high = _wilson(happened, size)
        ax.vlines(said, low, high, color=BLUE, linewidth=1.0, alpha=0.6)
        ax.plot(said, happened, "o-", color=BLUE, markersize=4.5)
        ax.set(
            xlabel=f"predicted probability of {canvas.short(label)}",
            ylabel="share of rows",
            xlim=(-0.02, 1.02),
            ylim=(-0.02, 1.02),
        )
        ax.set_title(f"Calibration ({len(groups)} groups, lines: 95 % intervals)")
        ax.grid()
    return ax


def _groups(order: np.ndarray, weight: np.ndarray, n: int) -> list[np.ndarray]:
    """Rows in order, in n groups of about equal weight (without weights the sizes differ by one at most)."""
    if weight.min(initial=1.0) == weight.max(initial=1.0):
        groups = np.array_split(order, min(n, len(order)) or 1)
    else:
        reached = np.cumsum(weight[order])
        groups = np.split(order, np.searchsorted(reached, reached[-1] * np.arange(1, n) / n))
    return [group for group in groups if len(group)]


def _wilson(share: np.ndarray, n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's interval of a share of n rows."""
    z = 1.96
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    return centre - half, centre + half


def draw_lift(truth: np.ndarray, probability: np.ndarray, weight: np.ndarray | None, label: str, ax: Any) -> Any:
    """Share of what is looked for that is found, against the share of rows looked at, the most probable first.

    Parameters as of `draw_calibration`.
    """
    weight = np.ones(len(truth)) if weight is None else weight
    order = np.argsort(-probability, kind="stable")
    found = np.concatenate([[0.0], np.cumsum((truth * weight)[order])])
    looked = np.concatenate([[0.0], np.cumsum(weight[order])])
    rate = float(found[-1] / looked[-1]) if looked[-1] else 1.0
    looked, share = looked / (looked[-1] or 1.0), found / (found[-1] or 1.0)
    with canvas.style():
        ax = canvas.axes_for(ax, height=3.6)
        ax.plot([0, 1], [0, 1], color=GREY, linewidth=0.9, linestyle=(0, (3, 2)))
        ax.plot([0, rate, 1], [0, 1, 1], color=FAINT, linewidth=1.2)
        keep = np.unique(np.round(np.linspace(0, len(looked) - 1, 400)).astype(np.int64))
        ax.plot(looked[keep], share[keep], color=BLUE)
        tenth = float(np.interp(0.1, looked, share))
        ax.plot(0.1, tenth, "o", color=VERMILION, markersize=5, zorder=4)
        said = f"the first tenth of the rows\nholds {tenth:.0%} of them: lift {tenth / 0.1:.1f}"
        canvas.note(ax, said, (0.1, tenth), (10, -5), va="top", fontsize=8.5, color=VERMILION, bbox=canvas.box(ax))
        ax.set(
            xlabel="share of rows, most probable first",
            ylabel=f"share of {canvas.short(label)} found",
            xlim=(0, 1),
            ylim=(0, 1.02),
        )
        ax.set_title("Lift (grey: perfect order; dashes: none)")
        ax.grid()
    return ax


def _fog() -> Any:
    """Grey that is denser where there are more rows; it can be seen on white and on black."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgb

    return LinearSegmentedColormap.from_list("fog", [(*to_rgb(GREY), 0.06), (*to_rgb(GREY), 0.9)])


def draw_residuals(truth: np.ndarray, prediction: np.ndarray, label: str, ax: Any) -> Any:
    """Target minus prediction over the prediction: rows as a density, and quartiles in groups of equally many rows."""
    residual = truth - prediction
    with canvas.style():
        ax = canvas.axes_for(ax, height=3.4)
        if len(truth) > 3000:
            ax.hexbin(prediction, residual, gridsize=45, bins="log", cmap=_fog(), linewidths=0, rasterized=True)
        else:
            ax.plot(prediction, residual, "o", color=GREY, markersize=2, alpha=0.4, markeredgewidth=0, rasterized=True)
        ax.axhline(0, color=GREY, linewidth=0.9)
        order = np.argsort(prediction, kind="stable")
        groups = [group for group in np.array_split(order, min(20, max(1, len(order) // 10))) if len(group)]
        at = [prediction[group].mean() for group in groups]
        low, middle, high = np.array([np.quantile(residual[group], (0.25, 0.5, 0.75)) for group in groups]).T
        ax.fill_between(at, low, high, color=BLUE, alpha=0.22, linewidth=0, label="middle half")
        ax.plot(at, middle, color=BLUE, label="median")
        ax.set(xlabel=f"prediction of {canvas.short(label)}", ylabel="target − prediction")
        ax.set_title("Residuals")
        ax.grid(axis="y")
        ax.legend(loc="best")
    return ax
