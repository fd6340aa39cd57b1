"""Box plots of errors by contender, as in the paper's figures; matplotlib is imported only in functions that draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from examples.friedman_2001.experiments import EXPERIMENTS


def _axes(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def boxes(name: str, errors: pd.DataFrame, folder: Path) -> str:
    """Draw one experiment and return the file name of the plot."""
    figure, axes = _axes(4.5, 3.0)
    axes.boxplot([errors[column] for column in errors], tick_labels=list(errors.columns), widths=0.5)
    axes.set_ylabel(EXPERIMENTS[name].unit, fontsize=8)
    axes.set_title(EXPERIMENTS[name].title, fontsize=9)
    return _save(figure, folder, name)


def dependence(curves: dict[str, pd.DataFrame], folder: Path) -> str:
    """Draw partial dependence for the demographic data, one panel per feature, and return the file name of the plot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (feature, curve) in zip(figure.subplots(2, -(-len(curves) // 2)).flat, curves.items(), strict=False):
        curve = curve[curve[feature].notna()]
        if curve[feature].dtype.kind in "if":
            axes.plot(curve[feature], curve["value"], marker=".")
        else:
            axes.barh(curve[feature].astype(str), curve["value"] - curve["value"].mean())
        axes.set_title(feature, fontsize=8)
        axes.tick_params(labelsize=6)
    return _save(figure, folder, "marketing")


def _save(figure: Any, folder: Path, name: str) -> str:
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    return f"{name}.svg"
