"""Declared shapes of JSON content: what a file may hold, as one table of its entries, with types and ranges.

A file with a right digest can still hold anything, if another program wrote it. Its reader declares the shape and calls
`check_shape` before it uses an entry. A shape is one of

* a type: a value of exactly this type (True is no int), or, for float, a number: integers, NaN and infinities too;
* None: null;
* `Within`: an integer of a range;
* a pattern: a string that matches it as a whole;
* a list of one shape: a list of such values;
* a tuple of shapes: a value of any of them;
* a mapping of names and shapes: a mapping with these entries. A name that ends in "?" may be missing. `OTHERS` is the name for
  the shape of all entries that are not in the table; without it there may be none;
* `ANY`: any JSON with at most `DEEPEST` levels of lists and mappings, and `PLAIN`, such JSON of finite numbers.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple

#: The name of all entries that a table does not list.
OTHERS = "*"
#: Nested lists and mappings of content that no table describes.
DEEPEST = 20


class Within(NamedTuple):
    """An integer from `low` to `high`, both included; without bounds by default."""

    low: float = -math.inf
    high: float = math.inf

    def __str__(self) -> str:
        ends = [f"at least {self.low}"] * (self.low > -math.inf) + [f"at most {self.high}"] * (self.high < math.inf)
        return " ".join(["an integer", " and ".join(ends)]).strip()


class _Json(NamedTuple):
    is_finite: bool

    def __str__(self) -> str:
        return f"JSON{' of finite numbers' * self.is_finite} with at most {DEEPEST} levels"


ANY, PLAIN = _Json(False), _Json(True)
Shape = Any
_NAMES: dict[Any, str] = {
    str: "text", int: "an integer", float: "a number", bool: "true or false", dict: "a mapping", list: "a list", None: "null",
}  # fmt: skip


def parse_json(text: bytes | str) -> Any:
    """Return the content of a text in JSON; ValueError for any other text, also one with NaN or infinity."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


class ShapeError(ValueError):
    """Content does not have the declared shape; the message names the entry."""


def check_shape(value: Any, shape: Shape, subject: str) -> None:
    """Raise a ShapeError unless a value has a shape. subject : names the value in the message."""
    if isinstance(shape, dict):
        _check_entries(value, shape, subject)
    elif isinstance(shape, list):
        _require(isinstance(value, list), value, shape, subject)
        for i, item in enumerate(value):
            check_shape(item, shape[0], f"{subject}[{i}]")
    elif type(shape) is tuple:
        nested = [
            alternative for alternative in shape if isinstance(alternative, dict | list) and type(alternative) is type(value)
        ]
        if nested:
            return check_shape(value, nested[0], subject)
        _require(any(_is(value, alternative) for alternative in shape), value, shape, subject)
    else:
        _require(_is(value, shape), value, shape, subject)


def _check_entries(value: Any, shape: dict[str, Shape], subject: str) -> None:
    _require(isinstance(value, dict), value, shape, subject)
    others = shape.get(OTHERS)
    known = {name.removesuffix("?"): entry_shape for name, entry_shape in shape.items() if name != OTHERS}
    missing = [name for name in known if name not in value and name in shape]
    if missing:
        raise ShapeError(f"{subject} has no entry {missing[0]!r}")
    for name, item in value.items():
        if name not in known and others is None:
            raise ShapeError(f"{subject} has an unknown entry {name[:40]!r}")
        check_shape(item, known.get(name, others), f"{subject}.{name[:40]}")


def _is(value: Any, shape: Shape) -> bool:
    if isinstance(shape, Within):
        return type(value) is int and shape.low <= value <= shape.high
    if isinstance(shape, re.Pattern):
        return type(value) is str and shape.fullmatch(value) is not None
    if isinstance(shape, _Json):
        return _is_json(value, DEEPEST, shape.is_finite)
    if shape is float:
        return type(value) in (int, float)
    if isinstance(shape, dict | list):
        return False
    return value is None if shape is None else type(value) is shape


def _is_json(value: Any, levels: int, is_finite: bool) -> bool:
    if isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        return levels > 0 and all(_is_json(item, levels - 1, is_finite) for item in items)
    return not (is_finite and isinstance(value, float)) or math.isfinite(value)


def _require(holds: bool, value: Any, shape: Shape, subject: str) -> None:
    if not holds:
        present = f"{value!r:.40}" if value is None or type(value) in (bool, int, float, str) else _NAMES.get(type(value), "?")
        raise ShapeError(f"{subject} is {present}, not {_described(shape)}")


def _described(shape: Shape) -> str:
    if type(shape) is tuple:
        return " or ".join(map(_described, shape))
    if isinstance(shape, re.Pattern):
        return "text of the right form"
    if isinstance(shape, dict | list):
        return _NAMES[type(shape)]
    return _NAMES.get(shape, str(shape)) if isinstance(shape, type | None) else str(shape)
