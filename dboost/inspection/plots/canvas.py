"""One style for all pictures.

Ink is spent on what was measured. There is no frame, only the axis lines that carry numbers; a faint grid on the axis that
values are read from; titles to the left, above what they are about. Colours are Okabe and Ito's, which colour-blind people
can tell apart, and never the only difference: lines also differ in dashes, bars in length, points in place. Surfaces use
cividis, which is even in lightness.

Pictures are drawn on the axes that the caller passes. Otherwise a figure is made: by pyplot where that is in use, so that a
notebook or window shows it, else one of its own that no global list keeps alive.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from dboost.errors import DBoostError

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

#: Width of a picture in inches: narrow enough for a phone, and two stand side by side on a desk.
WIDTH = 5.0


def style() -> Any:
    """A context in which matplotlib draws in the style.

    Raises
    ------
    DBoostError
        When matplotlib is not installed, saying how to install it.
    """
    try:
        import matplotlib
    except ImportError:
        raise DBoostError("pictures need matplotlib: pip install 'dboost[plots]'") from None
    return matplotlib.rc_context(STYLE)


_aside = ContextVar("_aside", default=False)


@contextmanager
def aside() -> Iterator[None]:
    """A context in which figures are nobody's but the caller's: no window or notebook shows them, no list keeps them."""
    token = _aside.set(True)
    try:
        yield
    finally:
        _aside.reset(token)


def new_axes(n_rows: int = 1, n_columns: int = 1, *, width: float = WIDTH, height: float = 3.1, **how: Any) -> Any:
    """A grid of axes [n_rows, n_columns] on a figure of its own; call it in `style()`."""
    if not _aside.get() and ("IPython" in sys.modules or "matplotlib.pyplot" in sys.modules):
        import matplotlib.pyplot

        figure = matplotlib.pyplot.figure(figsize=(width, height), layout="constrained")
    else:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width, height), layout="constrained")
    return figure.subplots(n_rows, n_columns, squeeze=False, **how)


def axes_for(ax: Any, *, height: float = 3.1, width: float = WIDTH) -> Any:
    """The caller's axes, or new ones."""
    return new_axes(height=height, width=width)[0, 0] if ax is None else ax


def bars(ax: Any) -> None:
    """For horizontal bars with names: no ticks or line beside the names, the grid on the value axis."""
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.grid(axis="x")


def dots() -> Any:
    """The middle of `SURFACE`, for dots: its ends could hardly be seen on black or on white."""
    import matplotlib
    from matplotlib.colors import ListedColormap

    return ListedColormap(matplotlib.colormaps[SURFACE]([0.25 + 0.65 * i / 255 for i in range(256)]), "dots")


def note(ax: Any, text: str, at: tuple[float, float], offset: tuple[float, float], **how: Any) -> None:
    """A small text beside a place, offset in points."""
    how = {"fontsize": 8, "va": "center", "textcoords": "offset points"} | how
    ax.annotate(text, at, offset, **how)


def box(ax: Any) -> dict[str, Any]:
    """What keeps a text legible on top of lines."""
    return {"boxstyle": "square,pad=0.12", "facecolor": ax.get_facecolor(), "edgecolor": "none", "alpha": 0.85}


def legend_beside(ax: Any, title: str) -> None:
    """A legend to the right of the axes, where it hides nothing."""
    ax.legend(title=title, loc="center left", bbox_to_anchor=(1.0, 0.5), title_fontsize=8.5, borderaxespad=0.4)


def colour(i: int) -> dict[str, Any]:
    """Colour and dashes of the i-th line."""
    return {"color": CYCLE[i % len(CYCLE)], "linestyle": DASHES[i // len(CYCLE) % len(DASHES)]}


def short(text: Any, length: int = 24) -> str:
    """A name that fits beside a bar, for a picture."""
    return plain(cut("missing" if text is None else str(text), length))


def cut(text: str, length: int = 24) -> str:
    """The beginning of a text that is too long."""
    return text if len(text) <= length else text[: length - 1] + "…"


def plain(text: str) -> str:
    """A text of the user's for a picture: matplotlib would set what is between two dollar signs as a formula."""
    return text.replace("$", r"\$")


def spoken(text: str) -> str:
    """A text of a picture as it is read."""
    return text.replace(r"\$", "$")


def key(text: str) -> str:
    """A text for a legend, from which matplotlib leaves out those that begin with an underscore."""
    return f"\u200b{text}" if text.startswith("_") else text


def number(value: float) -> str:
    """A number for the eye: four digits, a real minus sign."""
    return f"{value:.4g}".replace("-", "−")
