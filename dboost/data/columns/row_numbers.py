"""Columns that number the rows: the index of a frame that was written to a file. They are no features."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from dboost.errors import warn

#: What such columns are called: by pandas for CSV, by Arrow, by polars.
INDEX_NAMES = frozenset(("Unnamed: 0", "__index_level_0__", ""))
#: Number of rows that decide, whatever their partitions.
_MOST_ROWS = 1000


def without_index(names: tuple[str, ...], column: Callable[[str], Iterable[Any]]) -> tuple[str, ...]:
    """Return the names of columns without those that number the rows; warn if there are some.

    column : returns the parts of a column, in order, which are read as far as needed.
    """
    indices = [name for name in names if name in INDEX_NAMES and _numbers_rows(_first_values(column(name)))]
    if not indices:
        return names
    warn(
        f"column {indices[0]!r} numbers the rows and is taken for the index of a frame that was written to a file, and is no "
        "feature: drop it, or name it in features=[…] if it is one"
    )
    return tuple(name for name in names if name not in indices)


def _first_values(parts: Iterable[Any]) -> list[Any]:
    values: list[Any] = []
    for part in parts:
        values += np.asarray(part[: _MOST_ROWS - len(values)]).tolist()
        if len(values) >= _MOST_ROWS:
            break
    return values


def _numbers_rows(values: list[Any]) -> bool:
    """Return whether values are different integers, or count from the same number in each file, or are different names."""
    if all(isinstance(value, str) for value in values):
        return len(set(values)) == len(values)
    if not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return False
    follows = (later == value + 1 or later == values[0] for value, later in pairwise(values))
    return len(set(values)) == len(values) or (len(values) > 1 and values[1] == values[0] + 1 and all(follows))
