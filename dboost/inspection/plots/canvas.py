"""The common style of all plots: colors, axes, and texts in labels.

There is no frame, only the axis lines that carry numbers; a faint grid on the value axis; titles on the left. Colors are those
of Okabe and Ito, which color-blind readers can distinguish, and never the only difference: lines also differ in dashes, bars
in length, points in position. Surfaces use cividis, which has uniform lightness.

Plots are drawn on the axes that the caller passes. Otherwise a figure is created: with pyplot if that is imported, so that a
notebook or window shows it, else without, so that no global list holds it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

from dboost import display
from dboost.errors import MissingExtraError
from dboost.model.ensemble import Ensemble

INK, GREY, FAINT = "#1b1f24", "#6b7280", "#d5d9df"
FAINT_ON_BLACK = "#3a404a"
#: Of dots without a value, on white as on black.
DOTS = "#9299a5"
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

#: Largest number of levels of a categorical feature that are lines of a plot.
MAX_LEVELS = 40

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
        _format_ticks(ax)
    return grid


def _format_ticks(ax: Any) -> None:
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(_ticks()())


@cache
def _ticks() -> Any:
    """Return a class of matplotlib's formatters that writes all ticks of an axis alike."""
    from matplotlib.ticker import Formatter

    class Ticks(Formatter):
        def __call__(self, x: float, pos: Any = None) -> str:
            return ticks([x])[0]

        def format_ticks(self, values: Any) -> list[str]:
            axis: Any = self.axis
            low, high = sorted(axis.get_view_interval())  # there is a tick beyond each of them, without a label
            return ticks(values, [value for value in values if low <= value <= high])

    return Ticks


def ticks(values: Sequence[float], shown: Sequence[float] = ()) -> list[str]:
    """Return the labels of ticks: the same decimals, as few as distinguish them, and separators if one of the shown has one."""
    values = [float(value) for value in values]
    largest = float(max(map(abs, shown or values), default=0.0))
    factor, unit = _unit(largest)
    scaled = [value / factor for value in values]
    step = min((b - a for a, b in pairwise(sorted(set(scaled)))), default=largest / factor)
    decimals = next((n for n in range(12) if all(abs(x - round(x, n)) <= 1e-3 * step for x in scaled)), 12)
    comma = "," if largest / factor >= 10_000 else ""
    return [f"{x:z{comma}.{decimals}f}{unit}".replace("-", "−") if x else "0" for x in scaled]


def colorbar(mesh: Any, ax: Any, **how: Any) -> Any:
    """Add a color bar without a frame, whose numbers are those of axes."""
    bar = ax.figure.colorbar(mesh, ax=ax, format=_ticks()(), **how)
    bar.outline.set_visible(False)
    return bar


def axes_for(ax: Any, *, height: float = 3.1, width: float = WIDTH) -> Any:
    """Return the caller's axes, or new ones."""
    if ax is None:
        return new_axes(height=height, width=width)[0, 0]
    _format_ticks(ax)
    _take_colors(ax)
    return ax


def _take_colors(ax: Any) -> None:
    """Write all texts in the color that the caller's axes have, which may be dark; `style` restores the settings."""
    import matplotlib
    from matplotlib.colors import to_rgb

    settings: Any = matplotlib.rcParams
    for name in ("text.color", "axes.titlecolor", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"):
        settings[name] = ink(ax)
    grid = FAINT_ON_BLACK if sum(to_rgb(ink(ax))) > 1.5 else FAINT
    ax.tick_params(grid_color=grid, grid_linewidth=STYLE["grid.linewidth"])
    ax.set_axisbelow(True)


def ink(ax: Any) -> Any:
    """Return the color of texts and of the darkest lines of axes."""
    return ax.xaxis.label.get_color()


def bars(ax: Any) -> None:
    """Style the axes of horizontal bars: no ticks or line beside the names, a grid on the value axis."""
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.grid(axis="x")


#: From low to high values: blue to vermilion by way of purple, all equally light (56 in CIELAB), on white as on black.
LOW_TO_HIGH = ("#098dd2", "#6f7ce0", "#a870c9", "#cf62a0", "#df5c6c", "#da632b")


def two_colors() -> Any:
    """Return the color map of `LOW_TO_HIGH`, for dots."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("low_to_high", LOW_TO_HIGH)


def text_width(text: str, size: float, weight: str = "normal") -> float:
    """Return the width of a text in points; a text of a user may be escaped or not."""
    return _text_width(unescaped(text), weight) * size


@lru_cache(maxsize=4096)
def _text_width(text: str, weight: str) -> float:
    """Return the width of a text in multiples of the font size."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family=STYLE["font.sans-serif"], size=1.0, weight=weight)
    return float(text_to_path.get_text_width_height_descent(text, font, False)[0])


def fitting(text: str, width: float, size: float, weight: str = "normal") -> str:
    """Return a text of a user for a plot, cut in its middle to a width in points."""
    length = len(text)
    while length > 3 and text_width(display.cut(text, length), size, weight) > width:
        length -= 1
    return plain(display.cut(text, length))


def x_label(ax: Any, text: str, share: float = 0.6) -> None:
    """Write the label of the horizontal axis, in more lines if it would reach beyond the axes of a new figure.

    share : of the figure's width that names and a color bar leave to the axes.
    """
    room = 72.0 * share * ax.figure.get_figwidth()
    ax.set_xlabel("\n".join(wrapped(line, room, STYLE["axes.labelsize"]) for line in text.split("\n")))


def y_label(ax: Any, text: str) -> None:
    """Write the label of the vertical axis, in more lines if it would reach beyond the axes of a new figure."""
    ax.set_ylabel(wrapped(text, 48.0 * ax.figure.get_figheight(), STYLE["axes.labelsize"]))


def title(ax: Any, text: str) -> None:
    """Write a title above the axes, in more than one line if it would reach beyond the figure. The axes have their names."""
    font = STYLE["axes.titlesize"], STYLE["axes.titleweight"]
    figure = ax.figure
    room = 36.0 * figure.get_figwidth()  # names take less than half of the width
    if text_width(text, *font) > room:
        figure.draw_without_rendering()  # lays the axes out
        room = (figure.bbox.x1 - ax.get_window_extent().x0) * 72 / figure.dpi - 8
    ax.set_title(wrapped(text, room, *font))


def wrapped(text: str, width: float, size: float, weight: str = "normal") -> str:
    """Return a text for a plot in lines of a width in points."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".lstrip()
        if lines[-1] and text_width(longer, size, weight) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return "\n".join(lines)


def note(ax: Any, text: str, at: tuple[float, float], offset: tuple[float, float], **how: Any) -> None:
    """Write a small text beside a position, offset in points."""
    how = {"fontsize": 8, "va": "center", "textcoords": "offset points"} | how
    ax.annotate(text, at, offset, **how)


def box(ax: Any) -> dict[str, Any]:
    """Return the style of a box that keeps a text legible on top of lines."""
    return {"boxstyle": "square,pad=0.12", "facecolor": ax.get_facecolor(), "edgecolor": "none", "alpha": 0.85}


def legend_beside(ax: Any, title: str) -> None:
    """Add a legend to the right of the axes, where it covers no data."""
    ax.locator_params(axis="x", nbins=3)  # the axes are narrower
    ax.legend(title=title, loc="center left", bbox_to_anchor=(1.0, 0.5), title_fontsize=8.5, borderaxespad=0.4)


def shades() -> Any:
    """Return a color map of blue with increasing opacity, on which text is legible on white and on black."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgb

    return LinearSegmentedColormap.from_list("shades", [(*to_rgb(BLUE), 0.03), (*to_rgb(BLUE), 0.55)])


def colour(i: int) -> dict[str, Any]:
    """Return color and dashes of the i-th line."""
    return {"color": CYCLE[i % len(CYCLE)], "linestyle": DASHES[i // len(CYCLE) % len(DASHES)]}


def short(text: Any, length: int = 24) -> str:
    """Return a name for a plot, cut to a length that fits beside a bar."""
    return plain(display.cut("missing" if text is None else str(text), length))


def distinct(texts: Iterable[Any]) -> list[str]:
    """Return names of one axis for a plot, cut as by `short`, or at another place if some would look the same."""
    names = ["missing" if text is None else str(text) for text in texts]
    ways = [[display.cut(name, head=head) for name in names] for head in (12, 16, 20, 8, 4, 23)]
    return list(map(plain, max(ways, key=lambda cut: len(set(cut)))))


def plain(text: str) -> str:
    """Escape a user's text for a plot: matplotlib would typeset text between two dollar signs as a formula."""
    return text.replace("$", r"\$")


def unescaped(text: str) -> str:
    """Undo `plain`."""
    return text.replace(r"\$", "$")


def key(text: str) -> str:
    """Return a text for a legend: matplotlib omits texts that begin with an underscore."""
    return f"\u200b{text}" if text.startswith("_") else text


def numbers(values: Sequence[float], *, sign: bool = False) -> list[str]:
    """Return estimates that are in one plot: three significant digits, millions as M. sign : of positive ones too."""
    texts, unit = in_unit(values)
    return [
        f"{'+' if sign and value > 0 else ''}{text}{unit if value else ''}" for value, text in zip(values, texts, strict=True)
    ]


def in_unit(values: Sequence[float]) -> tuple[list[str], str]:
    """Return estimates that are in one plot as by `numbers`, but without their unit, and the unit."""
    factor, unit = _unit(max((abs(value) for value in values if math.isfinite(value)), default=0.0))
    texts = display.numbers([value / factor for value in values])
    return [text.replace("-", "−") for text in texts], unit


def value(x: float) -> str:
    """Return a value of a feature: up to six digits, which distinguish years and amounts; tiny and huge ones have three."""
    factor, unit = _unit(abs(x))
    if unit:
        return f"{display.number(x / factor, 3)}{unit}".replace("-", "−")
    whole = len(f"{abs(x):.0f}") if math.isfinite(x) else 1
    return display.number(x, min(max(4, whole + 1), 6)).replace("-", "−")


#: Units of large numbers, and where they begin: shorter numbers are written with all digits.
_LARGE = ((1e12, 1e12, "T"), (1e9, 1e9, "B"), (1e7, 1e6, "M"))


def _unit(largest: float) -> tuple[float, str]:
    """Return the unit of numbers whose largest is this: its factor and how it is written, "" for numbers without one."""
    if 1e15 <= largest < math.inf or 0.0 < largest < 1e-4:
        exponent = int(f"{largest:e}".partition("e")[2])
        return 10.0**exponent, "×10" + str(exponent).translate(_SUPERSCRIPT)
    return next(((factor, unit) for least, factor, unit in _LARGE if least <= largest < math.inf), (1.0, ""))


_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def score_label(ensemble: Ensemble, scale: str = "raw", centered: bool = False) -> str:
    """Return the label of an axis that shows raw scores or predictions.

    scale : "raw" or "prediction".
    """
    label = display.cut(ensemble.outputs.label(scale), 44)
    return f"{label}, centered" if centered else label
