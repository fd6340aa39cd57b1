"""The order of rows in time, by a column of numbers, dates or text.

Text is ordered as text only where that is the order of time. With "31/12/2023", "Dec 31 2023" or "week 10" folds would train on
rows of the future. So numbers as text are compared as numbers, and dates of ISO 8601 as dates. Other text is an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import numpy as np

from dboost.data.columns.numbers_as_text import find
from dboost.errors import DataError

_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)")
_INTEGER = re.compile(r"[-+]?[0-9]+")
#: Text that begins with the year and has the most significant part first; of equal length it is ordered as text.
_YEAR_FIRST = re.compile(
    r"[12][0-9]{3}(?:([-/. ])(?:0[1-9]|1[0-2])(?:\1(?:0[1-9]|[12][0-9]|3[01])(?:[T ][0-9]{2}(?::[0-9]{2}){0,2})?)?"
    r"|[-/. ]?[QSHWqshw][0-9]{1,2})"
)


def plain_times(values: Any) -> np.ndarray:
    """Return one value per row as an array; those of an ordered categorical of pandas as their positions, NaN for missing."""
    category = getattr(values, "cat", values)
    if not getattr(category, "ordered", False):
        return np.asarray(values)
    codes = np.asarray(category.codes)
    return np.where(codes < 0, np.nan, codes)


def ranks_in_time(times: np.ndarray, name: str, column: str | None = None) -> np.ndarray:
    """Return a number for each row, ordered as its time, equal for equal times: int64[n].

    Parameters
    ----------
    times : array [n]
        Without missing values.
    name : str
        Of the argument, for messages.
    column : str, optional
        Name of the column of a frame that they come from.

    Raises
    ------
    DataError
        For text whose order in time is not certain, and for values that cannot be compared.
    """
    is_text = times.dtype.kind in "USTOa" and all(isinstance(value, str | bytes) for value in times.tolist())
    try:
        levels, ranks = np.unique(_decoded(times) if is_text else times, return_inverse=True)
    except TypeError:
        kinds = ", ".join(sorted({type(value).__name__ for value in times.tolist()}))
        raise DataError(f"{_described(name, column)} holds values of different kinds ({kinds}), which have no order") from None
    if not is_text:
        return ranks
    texts = levels.tolist()
    key = _sort_keys([text.strip() for text in texts])
    if key is None:
        raise DataError(_refusal(texts, name, column))
    rank = {value: position for position, value in enumerate(sorted(set(key)))}
    return np.array([rank[value] for value in key], np.int64)[ranks]


def _decoded(times: np.ndarray) -> np.ndarray:
    return np.array([value.decode(errors="replace") if isinstance(value, bytes) else value for value in times.tolist()], object)


def _sort_keys(texts: Sequence[str]) -> Sequence[Any] | None:
    """Return values that are ordered as the times; None if that is not certain."""
    if all(_INTEGER.fullmatch(text) for text in texts):
        return [int(text) for text in texts]
    if all(_NUMBER.fullmatch(text) for text in texts):
        return [float(text) for text in texts]
    try:
        dates = [datetime.fromisoformat(text) for text in texts]
    except ValueError:
        is_ordered = len({len(text) for text in texts}) == 1 and all(_YEAR_FIRST.fullmatch(text) for text in texts)
        has_one_form = len({re.sub("[0-9]", "0", text) for text in texts}) == 1
        return texts if is_ordered and has_one_form else None
    return dates if len({date.tzinfo is None for date in dates}) == 1 else None


def _described(name: str, column: str | None) -> str:
    return name if column is None else f"column {column!r}, which was given as {name},"


def _refusal(texts: list[str], name: str, column: str | None) -> str:
    values = f"pandas.Series({name})" if column is None else f"frame[{column!r}]"
    likeness = find(texts, least=1)
    if likeness is None:
        order = f"pandas.Categorical({values}, [{texts[0]!r}, …], ordered=True) with the values in their order"
        return (
            f"{_described(name, column)} holds text such as {texts[0]!r}, whose order in time is not known: convert it to "
            f"numbers or dates, or in pandas by {order}"
        )
    return (
        f"{_described(name, column)} holds text, which is not ordered as the time: its values {likeness.description}; convert "
        f"it, in pandas by {likeness.convert(values)}"
    )
