"""The common style of all plots: colors, axes, and texts in labels.

There is no frame, only the axis lines that carry numbers; a faint grid on the value axis; titles on the left. Colors are those
of Okabe and Ito, which color-blind readers can distinguish, and never the only difference: lines also differ in dashes, bars
in length, points in position. Surfaces use cividis, which has uniform lightness.

Plots are drawn on the axes that the caller passes. Otherwise a figure is created: with pyplot if that is imported, so that a
notebook or window shows it, else without, so that no global list holds it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from dboost import display
from dboost.errors import MissingExtraError
from dboost.model.ensemble import Ensemble

INK, GREY, FAINT = "#1b1f24", "#6b7280", "#d5d9df"
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"
CYCLE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
DASHES: tuple[Any, ...] = ("solid", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
SURFACE = "cividis"

STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 9,
    "axes.labelsize": 9,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.8,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "text.color": INK,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.7,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.facecolor": "white",
    "figure.constrained_layout.h_pad": 0.09,
    "figure.constrained_layout.w_pad": 0.08,
    "savefig.dpi": 150,
    "svg.fonttype": "none",
    "svg.hashsalt": "dboost",
}

#: Width of a plot in inches: fits a phone, and two fit side by side on a desktop screen.
WIDTH = 5.0


def style() -> Any:
    """Return a context in which matplotlib uses the style.

    A backend changes settings when it is loaded: that of notebooks turns the interactive mode on. So it is loaded before the
    context, which restores all settings at its end; otherwise a notebook would show no figure afterwards.

    Raises
    ------
    DBoostError
        If matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise MissingExtraError("plots need matplotlib: pip install 'dboost[plots]'") from None
    if _uses_pyplot():
        _load_backend()
    return matplotlib.rc_context(STYLE)


@cache
def _load_backend() -> None:
    import matplotlib.pyplot

    if not matplotlib.pyplot.get_fignums():  # otherwise it is loaded
        matplotlib.pyplot.switch_backend(matplotlib.pyplot.get_backend())


_detached = ContextVar("_detached", default=False)


@contextmanager
def detached() -> Iterator[None]:
    """A context in which figures are created without pyplot: no window or notebook shows them."""
    token = _detached.set(True)
    try:
        yield
    finally:
        _detached.reset(token)


def _uses_pyplot() -> bool:
    return not _detached.get() and ("IPython" in sys.modules or "matplotlib.pyplot" in sys.modules)


def new_axes(n_rows: int = 1, n_columns: int = 1, *, width: float = WIDTH, height: float = 3.1, **how: Any) -> Any:
    """Return a grid of axes [n_rows, n_columns] on a new figure; to be called within `style()`."""
    if _uses_pyplot():
        import matplotlib.pyplot

        figure = matplotlib.pyplot.figure(figsize=(width, height), layout="constrained")
    else:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(n_rows, n_columns, squeeze=False, **how)
    for ax in grid.ravel():
        ax.locator_params(axis="x", nbins=5)  # numbers of six digits fit beside each other
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter(_tick)
    return grid


def _tick(value: float, _: Any = None) -> str:
    return number(value, 6)


def axes_for(ax: Any, *, height: float = 3.1, width: float = WIDTH) -> Any:
    """Return the caller's axes, or new ones."""
    return new_axes(height=height, width=width)[0, 0] if ax is None else ax


def bars(ax: Any) -> None:
    """Style the axes of horizontal bars: no ticks or line beside the names, a grid on the value axis."""
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.grid(axis="x")


def dots() -> Any:
    """Return the middle of the color map `SURFACE`, for dots: its ends are hardly visible on black or white."""
    import matplotlib
    from matplotlib.colors import ListedColormap

    return ListedColormap(matplotlib.colormaps[SURFACE]([0.25 + 0.65 * i / 255 for i in range(256)]), "dots")


def note(ax: Any, text: str, at: tuple[float, float], offset: tuple[float, float], **how: Any) -> None:
    """Write a small text beside a position, offset in points."""
    how = {"fontsize": 8, "va": "center", "textcoords": "offset points"} | how
    ax.annotate(text, at, offset, **how)


def box(ax: Any) -> dict[str, Any]:
    """Return the style of a box that keeps a text legible on top of lines."""
    return {"boxstyle": "square,pad=0.12", "facecolor": ax.get_facecolor(), "edgecolor": "none", "alpha": 0.85}


def legend_beside(ax: Any, title: str) -> None:
    """Add a legend to the right of the axes, where it covers no data."""
    ax.legend(title=title, loc="center left", bbox_to_anchor=(1.0, 0.5), title_fontsize=8.5, borderaxespad=0.4)


def colour(i: int) -> dict[str, Any]:
    """Return color and dashes of the i-th line."""
    return {"color": CYCLE[i % len(CYCLE)], "linestyle": DASHES[i // len(CYCLE) % len(DASHES)]}


def short(text: Any, length: int = 24) -> str:
    """Return a name for a plot, cut to a length that fits beside a bar."""
    return plain(display.cut("missing" if text is None else str(text), length))


def plain(text: str) -> str:
    """Escape a user's text for a plot: matplotlib would typeset text between two dollar signs as a formula."""
    return text.replace("$", r"\$")


def unescaped(text: str) -> str:
    """Undo `plain`."""
    return text.replace(r"\$", "$")


def key(text: str) -> str:
    """Return a text for a legend: matplotlib omits texts that begin with an underscore."""
    return f"\u200b{text}" if text.startswith("_") else text


def number(value: float, digits: int = 4) -> str:
    """Format a number with so many digits and a typographic minus sign."""
    return display.number(value, digits).replace("-", "−")


def score_label(ensemble: Ensemble, scale: str = "raw", centered: bool = False) -> str:
    """Return the label of an axis that shows raw scores or predictions.

    scale : "raw" or "prediction".
    """
    label = ensemble.outputs.label(scale)
    return f"{label}, centered" if centered else label
