"""Plots as SVG elements of the page.

Colors in matplotlib's SVG become variables of the page's style sheet, so that one drawing serves light and dark color schemes.
Ids get a prefix, so that drawings on one page do not use each other's definitions.
"""

from __future__ import annotations

import re
from html import escape
from io import StringIO
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from dboost.inspection.plots import canvas

#: Colors of the plots and the variables of the page's style sheet that replace them.
_VARIABLES = {
    canvas.INK: "--ink", canvas.GREY: "--grey", canvas.FAINT: "--faint", "#ffffff": "--paper", canvas.BLUE: "--blue",
    canvas.VERMILION: "--vermilion", canvas.GREEN: "--green", canvas.PURPLE: "--purple", canvas.ORANGE: "--orange",
    canvas.SKY: "--sky",
}  # fmt: skip

#: Numbers of the drawings, for the prefixes of their ids.
_numbers = count()


class Figure(NamedTuple):
    """An SVG element, and whether it spans all columns of the page."""

    svg: str
    is_wide: bool


def embed(drawn: Any, *, wide: bool = False) -> Figure:
    """Convert a plot to an SVG element in the page's colors.

    Parameters
    ----------
    drawn : axes, or an array of them
        Their titles become the element's label for screen readers.
    wide : bool, default False
        Let the figure span all columns of the page, as figures with three columns of panels do.
    """
    axes = np.ravel(drawn)
    wide = wide or axes[0].get_subplotspec().get_gridspec().ncols > 2
    label = canvas.unescaped("; ".join(dict.fromkeys(ax.get_title(loc="left") for ax in axes)))
    file = StringIO()
    with canvas.style():
        axes[0].figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = file.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    # Ids of images are digests of their content: equal images would have equal ids, which nothing refers to.
    svg = re.sub(r'(<image [^>]*?) id="[^"]*"', r"\1", svg)
    prefix = f"d{next(_numbers)}-"
    svg = re.sub(r"<[^>]*>", lambda tag: _adapted(tag[0], prefix), svg)  # text between tags stays as it is
    head, rest = svg.split(">", 1)
    head = re.sub(r' (width|height)="[^"]*"', "", head)
    return Figure(f'{head} role="img" aria-label="{escape(label)}">{rest.strip()}', wide)


def _adapted(tag: str, prefix: str) -> str:
    """A tag with the page's color variables, its ids and references prefixed."""
    for color, variable in _VARIABLES.items():
        tag = tag.replace(f": {color}", f": var({variable})")
    tag = re.sub(r'\bid="', f'id="{prefix}', tag)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}", tag)
