"""A table in memory of any library: names, number of rows, and access to a column in its own library's type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dboost.data.columns.sparse import SparseColumn
from dboost.errors import DataError


@dataclass(frozen=True, eq=False)
class Frame:
    """A table in memory."""

    #: Column names; f0, f1, … for an array.
    names: tuple[str, ...]
    #: Whether the table has column names of its own.
    named: bool
    n_rows: int
    #: Maps a position to a one-dimensional ndarray, an Arrow array, a Series of any library, or a SparseColumn.
    column: Callable[[int], Any]
    #: The table itself, shape (n_rows, n_columns), if it is an array.
    matrix: np.ndarray | None = None
    #: Whether it is a sparse matrix.
    is_sparse: bool = False

    def rows(self, first: int, last: int) -> Frame:
        """Return rows first…last-1 without copying."""
        matrix = None if self.matrix is None else self.matrix[first:last]
        return Frame(self.names, self.named, last - first, lambda j: some_values(self.column(j), first, last), matrix)


def some_values(values: Any, first: int, last: int) -> Any:
    """Return values first…last-1 of a column of any library without copying."""
    if hasattr(values, "iloc"):
        return values.iloc[first:last]
    if isinstance(values, SparseColumn):
        return values.some(slice(first, last))
    return values.slice(first, last - first) if hasattr(values, "slice") else values[first:last]


#: Remedies for 1-d arrays.
_RESHAPE = "array.reshape(-1, 1) makes it one column, array.reshape(1, -1) one row"


def bad_shape(what: str, shape: object, remedy: str = _RESHAPE) -> DataError:
    """Return the error for data that do not have rows and columns. what : its kind; remedy : how to make a table of it."""
    if isinstance(shape, tuple) and len(shape) > 2:
        remedy = "array.reshape(len(array), -1) makes one row of each item"
    return DataError(f"a table has rows and columns, but this {what} has shape {shape}. Reshape your data: {remedy}")
