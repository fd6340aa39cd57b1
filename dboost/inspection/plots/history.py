"""How training went: each metric over the iterations, the best one marked."""

from __future__ import annotations

from typing import Any

import numpy as np

from dboost._lazy_import import pd
from dboost.errors import DBoostError, ParameterError
from dboost.inspection.plots import canvas
from dboost.inspection.plots.canvas import GREY
from dboost.losses.base import Loss
from dboost.metrics.metric import find_metrics


def draw_history(history: pd.DataFrame, loss: Loss, best: int | None, ax: Any) -> Any:
    """One panel per metric, with a line for the training rows and for each evaluation set.

    history : ``iteration``, and metrics as ``<set>_<metric>``.

    Returns
    -------
    The axes, or an array of them when there are several metrics.
    """
    panels: dict[str, list[tuple[str, str]]] = {}
    for column in history.columns:
        if column != "iteration":
            rows, metric = set_and_metric(column, loss)
            panels.setdefault(metric, []).append((rows, column))
    if not panels or not len(history):
        raise DBoostError("there is no history to draw: the model has no recorded iterations")
    if ax is not None and len(panels) > 1:
        raise ParameterError(f"the history has {len(panels)} metrics and makes axes of its own, so leave ax out")
    with canvas.style():
        grid = canvas.new_axes(len(panels), height=0.5 + 2.5 * len(panels), sharex=True)[:, 0] if ax is None else np.array([ax])
        for axes, (metric, lines) in zip(grid, panels.items(), strict=True):
            for rows, column in lines:
                i = 0 if rows == "training" else 1 + sum(other != "training" for other, c in lines if c < column)
                axes.plot(
                    history["iteration"], history[column], label=canvas.key(canvas.plain(f"{rows} rows")), **canvas.colour(i)
                )
            axes.set_ylabel(canvas.plain(metric.replace("_", " ")))
            axes.grid(axis="y")
            axes.margins(x=0.01)
            if best is not None:
                axes.axvline(best, color=GREY, linewidth=0.9, linestyle=(0, (3, 2)))
                to_right = best < 0.6 * history["iteration"].max()
                side, align = (4, "left") if to_right else (-4, "right")
                where = {"xycoords": ("data", "axes fraction"), "ha": align, "color": GREY}
                canvas.note(axes, f"best: {best}", (best, 0.5), (side, 0), bbox=canvas.box(axes), **where)
            axes.legend(loc="best")
        grid[-1].set_xlabel("iteration")
        grid[0].set_title("Training")
    return grid[0] if len(grid) == 1 else grid


def set_and_metric(column: str, loss: Loss) -> tuple[str, str]:
    """Which rows and which metric a column of the history is about."""
    if column == "train_loss":
        return "training", loss.name
    words = column.split("_")
    for i in range(1, len(words)):
        name = "_".join(words[i:])
        try:
            find_metrics(name, loss)
        except ParameterError:
            continue
        rows = "_".join(words[:i])
        return {"eval": "held-out"}.get(rows, rows), name
    return "held-out", column
