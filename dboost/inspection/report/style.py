"""How the page looks: its style sheet, and pictures that belong to it.

Matplotlib's SVG goes into the page as it is, but its inks become the page's variables, so that one drawing serves light and
dark readers, and its ids get a prefix, so that drawings do not borrow each other's definitions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from io import StringIO
from itertools import count
from typing import Any

import numpy as np

from dboost._lazy_import import pd
from dboost.inspection.plots import canvas

STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1b1f24; --grey: #6b7280; --faint: #dde1e6; --panel: #f6f7f9;
  --blue: #0072b2; --vermilion: #d55e00; --green: #009e73; --purple: #b8568f; --orange: #b87b00; --sky: #2b8fcb; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171b; --ink: #e7eaee; --grey: #99a1ad; --faint: #343a43; --panel: #1c2026;
    --blue: #4aa8e0; --vermilion: #ff8a3d; --green: #2fcb9d; --purple: #dd95bd; --orange: #f0b53a; --sky: #85ccf5; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0.5rem 0 0.25rem; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 0.4rem; padding-top: 0.8rem; border-top: 1px solid var(--faint); }
p { max-width: 44rem; margin: 0.4rem 0; }
.note { color: var(--grey); font-size: 0.875rem; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: 0.6rem;
  margin: 1.2rem 0; padding: 0; }
.facts div { background: var(--panel); border-radius: 0.5rem; padding: 0.6rem 0.8rem; min-width: 0; }
.facts dt { color: var(--grey); font-size: 0.8rem; }
.facts dd { margin: 0; font-weight: 600; overflow-wrap: anywhere; }
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 27rem), 1fr)); gap: 1.2rem;
  margin: 1rem 0; }
figure { margin: 0; min-width: 0; }
figure.wide { grid-column: 1 / -1; overflow-x: auto; }
figure svg { display: block; width: 100%; height: auto; }
.wide svg { min-width: 40rem; }
.table { overflow-x: auto; margin: 0.8rem 0; }
table { border-collapse: collapse; font-size: 0.875rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 0.25rem 0.9rem 0.25rem 0; border-bottom: 1px solid var(--faint); white-space: nowrap; }
td.number, th.number { text-align: right; }
th { color: var(--grey); font-weight: 500; }
summary { cursor: pointer; margin: 0.8rem 0; color: var(--blue); }
summary:focus-visible { outline: 2px solid var(--blue); outline-offset: 2px; }
code { font-size: 0.85em; overflow-wrap: anywhere; }
@media print { :root { color-scheme: light; } details > * { display: block; } }
"""

_VARIABLES = {
    canvas.INK: "--ink", canvas.GREY: "--grey", canvas.FAINT: "--faint", "#ffffff": "--paper", canvas.BLUE: "--blue",
    canvas.VERMILION: "--vermilion", canvas.GREEN: "--green", canvas.PURPLE: "--purple", canvas.ORANGE: "--orange",
    canvas.SKY: "--sky",
}  # fmt: skip

_numbers = count()


def picture(drawn: Any, *, wide: bool = False) -> str:
    """A figure element with a drawing in it.

    drawn : axes, or an array of them; what they show is read from their titles. wide : over all columns of the page, and
    scrolled on a narrow screen; so are panels that stand three in a row.
    """
    axes = np.ravel(drawn)
    wide = wide or axes[0].get_subplotspec().get_gridspec().ncols > 2
    name = canvas.spoken("; ".join(dict.fromkeys(ax.get_title(loc="left") for ax in axes)))
    opening = '<figure class="wide">' if wide else "<figure>"
    return f"{opening}{inline(axes[0].figure, name)}</figure>"


def inline(figure: Any, name: str) -> str:
    """A matplotlib figure as an SVG element in the page's colours."""
    file = StringIO()
    with canvas.style():
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = file.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    # Images are named after their content, so two that are alike would share a name that nobody asks for.
    svg = re.sub(r'(<image [^>]*?) id="[^"]*"', r"\1", svg)
    prefix = f"d{next(_numbers)}-"
    svg = re.sub(r"<[^>]*>", lambda tag: _adopted(tag[0], prefix), svg)  # what is between tags are the user's names
    head, rest = svg.split(">", 1)
    head = re.sub(r' (width|height)="[^"]*"', "", head)
    return f'{head} role="img" aria-label="{escape(name, quote=True)}">{rest.strip()}'


def _adopted(tag: str, prefix: str) -> str:
    """A tag with the page's colours, its ids and references prefixed."""
    for colour, variable in _VARIABLES.items():
        tag = tag.replace(f": {colour}", f": var({variable})")
    tag = re.sub(r'\bid="', f'id="{prefix}', tag)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}", tag)


def table(frame: pd.DataFrame) -> str:
    """A table; numbers to the right, with four digits."""
    numeric = [pd.api.types.is_numeric_dtype(frame[column]) for column in frame.columns]
    mark = [' class="number"' if is_number else "" for is_number in numeric]
    head = "".join(f"<th{c}>{escape(str(name))}</th>" for c, name in zip(mark, frame.columns, strict=True))
    rows = "".join(
        "<tr>" + "".join(f"<td{c}>{escape(words(value))}</td>" for c, value in zip(mark, row, strict=True)) + "</tr>"
        for row in frame.itertuples(index=False)
    )
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def facts(items: Sequence[tuple[str, Any]]) -> str:
    """Names with values, side by side."""
    inner = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(words(value))}</dd></div>" for name, value in items)
    return f'<dl class="facts">{inner}</dl>'


def words(value: Any) -> str:
    """A value for the eye."""
    if value is None or (isinstance(value, float) and value != value):
        return "–"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return f"{int(value):,}".replace("-", "−")
    if isinstance(value, float | np.floating):
        return canvas.number(float(value))
    return str(value)


def megabytes(n: float) -> str:
    return f"{n / 1e9:.3g} GB" if n >= 1e9 else f"{n / 1e6:.3g} MB"
