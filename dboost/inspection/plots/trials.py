"""The plot of a search: the score of each trial, and the best so far."""

from __future__ import annotations

from typing import Any

import numpy as np

from dboost._lazy_import import pd
from dboost.inspection.plots import canvas
from dboost.inspection.plots.canvas import BLUE, GREY, VERMILION


def plot_trials(trials: pd.DataFrame, metric: str, greater_is_better: bool, ax: Any = None) -> Any:
    """Draw the scores of trials over their numbers.

    Parameters
    ----------
    trials : DataFrame
        Columns number, value, and is_pruned: whether the value is the last one before the trial was pruned.
    metric : str
        Name of the score.
    greater_is_better : bool
    ax : matplotlib.axes.Axes, optional

    Returns
    -------
    matplotlib.axes.Axes
        Its vertical range is that of the trials that were not pruned.
    """
    finished, pruned = trials[~trials["is_pruned"]], trials[trials["is_pruned"]]
    with canvas.style():
        ax = canvas.axes_for(ax)
        if len(finished):
            best = finished["value"].cummax() if greater_is_better else finished["value"].cummin()
            ax.step(finished["number"], best, where="post", color=VERMILION, label="best so far")
            number = best.index[int(np.argmax(best == best.iloc[-1]))]
            value = finished.loc[number, "value"]
            canvas.note(ax, canvas.number(value), (finished.loc[number, "number"], value), (3, 4), color=VERMILION)
        dots = {"linestyle": "none", "markersize": 4.5}
        ax.plot(finished["number"], finished["value"], marker="o", color=BLUE, label="trial", **dots)
        if len(finished):
            ax.set_ylim(ax.get_ylim())
        if len(pruned):
            ax.plot(pruned["number"], pruned["value"], marker="x", color=GREY, label="pruned", **dots)
        ax.set_xlabel("trial")
        ax.set_ylabel(canvas.plain(metric.replace("_", " ")))
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.grid(axis="y")
        ax.legend()
    return ax
