"""Filters that are texts, as of ``--filter``, or tuples, as of pandas, as expressions of pyarrow.

A text is one comparison or several, joined by ``and``:

    COLUMN == VALUE        also !=, <, <=, >, >=; = is ==
    COLUMN in (VALUE, VALUE)
    COLUMN is null         also is not null

COLUMN is a name of letters, digits, ``_``, ``.`` and ``-``, or any name in double quotes. VALUE is a number, ``true``,
``false``, text in single quotes (two of them are one in the text), or a date (``2026-01-31``) or time
(``2026-01-31T12:00:00``, for columns with a time zone ``2026-01-31T12:00:00Z``). Nothing of the text is executed.

Tuples are those of ``pandas.read_parquet(filters=…)``: ``(column, operator, value)``, a list of these, all of which must hold,
or a list of such lists, one of which must hold. For other conditions there are expressions of pyarrow and polars.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, datetime
from functools import reduce
from operator import and_, eq, ge, gt, le, lt, ne
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from dboost.errors import ParameterError, reason

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>'(?:[^']|'')*')
      | (?P<column>"(?:[^"]|"")*")
      | (?P<time>\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)?)?(?![\w.-]))
      | (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
      | (?P<operator>==|!=|<=|>=|<>|[=<>(),])
      | (?P<word>[^\W\d][\w.-]*)
    )""",
    re.VERBOSE,
)
_COMPARISONS = {"==": eq, "=": eq, "!=": ne, "<>": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
_FORM = "it is COLUMN == VALUE, COLUMN in (VALUE, …) or COLUMN is null, joined by 'and'"


class _Token(NamedTuple):
    kind: str
    text: str


def expression_of_text(text: str) -> Any:
    """Return an expression of pyarrow.

    Raises
    ------
    ParameterError
        Naming what cannot be read.

    Examples
    --------
    >>> str(expression_of_text("age >= 18 and town == 'Ulm'"))
    '((age >= 18) and (town == "Ulm"))'
    """
    tokens = _tokens(text)
    comparisons = [_comparison(tokens, text)]
    for token in tokens:
        if token.text.lower() == "or":
            raise _error(text, "a text has no 'or': in Python, filter= also takes expressions of pyarrow and polars")
        if token.text.lower() != "and":
            raise _error(text, f"there is {token.text!r} after a comparison; {_FORM}")
        comparisons.append(_comparison(tokens, text))
    return reduce(and_, comparisons)


def expression_of_tuples(filters: Any) -> Any:
    """Return an expression of pyarrow.

    Raises
    ------
    ParameterError
        For other lists than those of tuples.

    Examples
    --------
    >>> str(expression_of_tuples([("age", ">=", 18), ("town", "in", ["Ulm", "Bonn"])]))
    '((age >= 18) and is_in(town, {value_set=string:["Ulm", "Bonn"], null_matching_behavior=MATCH}))'
    """
    from pyarrow.parquet import filters_to_expression

    try:
        return filters_to_expression([filters] if _is_comparison(filters) else filters)
    except (TypeError, ValueError, pa.ArrowException) as error:
        form = "[('age', '>=', 18), ('town', 'in', ['Ulm', 'Bonn'])]"
        raise ParameterError(f"filter {filters!r:.80}: {reason(error)}; it is a list of tuples, such as {form}") from error


def _is_comparison(filters: Any) -> bool:
    return isinstance(filters, tuple) and len(filters) == 3 and isinstance(filters[0], str)


def _tokens(text: str) -> Iterator[_Token]:
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise _error(text, f"{text[position:].strip()[:20]!r} cannot be read; {_FORM}")
        position = match.end()
        yield _Token(str(match.lastgroup), match[str(match.lastgroup)])


def _comparison(tokens: Iterator[_Token], text: str) -> Any:
    column = next(tokens, None)
    if column is None or column.kind not in ("word", "column"):
        hint = "" if column is None else f", not with {column.text!r}"
        raise _error(text, f"a comparison begins with a column{hint}; {_FORM}")
    field = pc.field(column.text if column.kind == "word" else column.text[1:-1].replace('""', '"'))
    operator = _text_of(next(tokens, None)).lower()
    if operator in _COMPARISONS:
        return _COMPARISONS[operator](field, _value(next(tokens, None), text))
    if operator == "in":
        return field.isin(_values(tokens, text))
    if operator == "is":
        words = [_text_of(next(tokens, None)).lower()]
        if words == ["not"]:
            words.append(_text_of(next(tokens, None)).lower())
        if words[-1] == "null":
            return field.is_null() if len(words) == 1 else field.is_valid()
    raise _error(text, f"after the column {column.text} there is no comparison; {_FORM}")


def _values(tokens: Iterator[_Token], text: str) -> pa.Array:
    if _text_of(next(tokens, None)) != "(":
        raise _error(text, f"after 'in' there is no list in parentheses; {_FORM}")
    values, separator = [], ","
    while separator == ",":
        values.append(_value(next(tokens, None), text).as_py())
        separator = _text_of(next(tokens, None))
    if separator != ")":
        raise _error(text, f"a list has commas and ends in ')'; {_FORM}")
    try:
        return pa.array(values)
    except pa.ArrowException:
        raise _error(text, "the values of a list are of one kind") from None


def _value(token: _Token | None, text: str) -> Any:
    """Return a value as an Arrow scalar."""
    if token is None:
        raise _error(text, f"a value is missing at the end; {_FORM}")
    if token.kind == "text":
        return pa.scalar(token.text[1:-1].replace("''", "'"))
    if token.kind == "number":
        if not re.fullmatch(r"[+-]?\d+", token.text):
            return pa.scalar(float(token.text))
        value = int(token.text)
        if not -(2**63) <= value < 2**64:
            raise _error(text, f"{token.text} is no whole number of 64 bits; with a decimal point it is a float")
        return pa.scalar(value, pa.int64() if value < 2**63 else pa.uint64())
    try:
        if token.kind == "time":
            is_date = len(token.text) == len("2026-01-31")
            return pa.scalar(date.fromisoformat(token.text) if is_date else datetime.fromisoformat(token.text))
    except ValueError as error:
        raise _error(text, f"{token.text}: {error}") from None
    if token.text.lower() in ("true", "false"):
        return pa.scalar(token.text.lower() == "true")
    quoted = token.text.strip('"')
    hint = f"text is in single quotes: '{quoted}'" if token.kind in ("word", "column") else _FORM
    raise _error(text, f"{token.text} is no value; {hint}")


def _text_of(token: _Token | None) -> str:
    return "" if token is None or token.kind in ("text", "column") else token.text


def _error(text: str, problem: str) -> ParameterError:
    return ParameterError(f"filter {text!r}: {problem}")
