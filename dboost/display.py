"""How people read numbers: in the terminal, in reports and plots, on the dashboard, and in warnings.

Numbers have a few significant digits and no exponent, unless they are tiny or huge: 53,032 and 0.00012, not 5.303e+04. A single
number may be a year or a code: its digits are grouped by commas from 10,000 on (`number`). Estimates that are read beside each
other have the same decimals, and commas from 1000 on (`numbers`).
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

V = TypeVar("V", bound=Any)

#: Exponents of ten outside of which numbers are written with one.
_LEAST, _MOST = -5, 15


def number(value: Any, digits: int = 6) -> str:
    """Return a number with so many significant digits; all digits of its whole part.

    Examples
    --------
    >>> [number(x) for x in (53031.8, 2011.0, 0.93938, 0.5, 1.5e-7, float("nan"))]
    ['53,031.8', '2011', '0.93938', '0.5', '1.5e-7', 'nan']
    """
    value = float(value)
    if not math.isfinite(value) or value == 0:
        return str(value) if value else "0"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    if _LEAST <= int(exponent) < _MOST:
        return fixed(value, max(digits - 1 - int(exponent), 0), trim=True)
    return f"{_trimmed(mantissa)}e{int(exponent)}"


def fixed(value: float, decimals: int, *, trim: bool = False) -> str:
    """Return a number with so many decimals. trim : without zeros at their end."""
    text = f"{value:z.{decimals}f}" if abs(value) < 10_000 else f"{value:z,.{decimals}f}"
    return _trimmed(text) if trim else text


def numbers(values: Iterable[Any], digits: int = 3) -> list[str]:
    """Return estimates that are read beside each other, such as those of a column or a plot, with the same decimals.

    The largest has so many significant digits. There is one decimal more if the smallest would be zero otherwise, and as many
    as show the range of the numbers with one digit less. Tiny and huge numbers share an exponent.

    Examples
    --------
    >>> numbers([24568.2, -1033.25]), numbers([0.0245312, 9.359e-6]), numbers([931.42, 931.17]), numbers([2e-7, -1.25e-9])
    (['24,568', '-1,033'], ['0.02453', '0.00001'], ['931.42', '931.17'], ['2.00e-7', '-0.01e-7'])
    """
    values = [float(value) for value in values]
    known = [value for value in values if math.isfinite(value) and value]
    if not known:
        return [number(value) for value in values]
    sizes = [abs(value) for value in known]
    largest = _exponent(max(sizes), digits)
    shared = 0 if _LEAST < largest < _MOST else largest
    decimals = max(digits - 1 - largest + shared, 0)
    if not all(value.is_integer() for value in known):
        extent = max(known) - min(known)
        decimals = max(decimals, min(-_exponent(min(sizes), 1) + shared, decimals + 1))
        if extent:
            decimals = max(decimals, min(digits - 2 - _exponent(extent, 1) + shared, 15))
    texts = [f"{value / 10.0**shared:z,.{decimals}f}" for value in known]
    spare = min((len(text) - len(_trimmed(text)) for text in texts), default=0)
    shown = iter(text[: len(text) - spare] + (f"e{shared}" if shared else "") for text in texts)
    return [next(shown) if math.isfinite(value) and value else number(value) for value in values]


def _exponent(value: float, digits: int) -> int:
    """Return the exponent of ten of a positive number that is rounded to so many digits."""
    return int(f"{value:.{digits - 1}e}".partition("e")[2])


#: What a loss is called in the history, and the loss that is shown by its root.
_TRAIN_LOSS, _SQUARES = "train_loss", "squared_error"


def as_read(column: str, values: V, loss: str) -> tuple[str, V]:
    """Return a metric, or a column of the history, as people read it: its name and values.

    The loss squared_error is half the mean squared error. People read the root of the mean squared error, which is in the unit
    of the target.

    values : a number or an array; loss : the name of the model's loss, the only one that has the metric of its name.

    Examples
    --------
    >>> as_read("eval_squared_error", 2.0, "squared_error"), as_read("train_loss", 2.0, "poisson")
    (('eval_rmse', 2.0), ('train_loss', 2.0))
    """
    if not is_half_square(column, loss):
        return column, values
    name, of, output = column.partition(" of ")
    name = "train_" if name == _TRAIN_LOSS else name.removesuffix(_SQUARES)
    return f"{name}rmse{of}{output}", (2.0 * values) ** 0.5


def is_half_square(column: str, loss: str) -> bool:
    """Return whether a metric or column is half the mean squared error."""
    name = column.partition(" of ")[0]
    return loss == _SQUARES and (name == _TRAIN_LOSS or (name.endswith(_SQUARES) and not name.endswith(f"mean_{_SQUARES}")))


def with_spread(mean: float, spread: float) -> str:
    """Return a mean of at least five digits and its standard deviation of two: "53,032 ± 780", "0.93938 ± 0.012"."""
    if not (math.isfinite(mean) and math.isfinite(spread)) or spread == 0:
        return f"{number(mean)} ± {number(spread)}"
    exponent = int(f"{spread:.1e}".partition("e")[2])
    if not _LEAST <= exponent < _MOST or abs(mean) >= 10.0**_MOST:
        return f"{number(mean)} ± {number(spread, 2)}"
    decimals = max(1 - exponent, 0)
    mean_decimals = max(decimals, 4 - int(f"{mean:.4e}".partition("e")[2])) if mean else decimals
    return f"{fixed(mean, mean_decimals)} ± {fixed(round(spread, 1 - exponent), decimals)}"


def counted(n: int, noun: str) -> str:
    """Return a number and its noun, in the plural unless it is 1 or the noun is a unit: "1 worker", "20,000 rows", "3 MiB"."""
    return f"{n:,} {noun}" if n == 1 or noun == "MiB" else f"{n:,} {noun}s"


def duration(seconds: float) -> str:
    """Return a time in two units at most: "0.4 s", "12 s", "3 min 05 s", "2 h 10 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60:02d} min"


def cut(text: str, length: int = 24, head: int | None = None) -> str:
    """Shorten a text in its middle: names that differ at their ends stay different. head : length before the cut."""
    if len(text) <= length:
        return text
    head = length // 2 if head is None else head
    return f"{text[:head]}…{text[len(text) - (length - 1 - head) :]}"


def html_card(title: str, facts: Sequence[tuple[str, str]]) -> str:
    """Return what a notebook shows of an object: a table of facts, with the notebook's own colors."""
    cell = "text-align: left; padding: 0 12px 0 0; vertical-align: top"
    rows = "".join(
        f'<tr><td style="{cell}; opacity: .75">{html.escape(name)}</td><td style="{cell}">{html.escape(value)}</td></tr>'
        for name, value in facts
    )
    box = "border: 1px solid #8888; border-radius: 8px; padding: 10px 14px; display: inline-block; max-width: 100%"
    table = f'<table style="margin: 6px 0 0; border-collapse: collapse; font-size: inherit">{rows}</table>'
    return f'<div style="{box}"><b>{html.escape(title)}</b>{table}</div>'


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text
