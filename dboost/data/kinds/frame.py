"""A table in memory of any library: names, number of rows, and access to a column in its own library's type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from dboost._lazy_import import nw
from dboost.data.columns.chunk import BinnedPartition, is_masked
from dboost.data.columns.labels import Names, array_names
from dboost.data.columns.sparse import SparseColumn, columns_of_matrix
from dboost.errors import DataError, InputTypeError


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


def bad_shape(kind: str, shape: object, remedy: str = _RESHAPE) -> DataError:
    """Return the error for data that do not have rows and columns. kind : its kind; remedy : how to make a table of it."""
    if isinstance(shape, tuple) and len(shape) > 2:
        remedy = "array.reshape(len(array), -1) makes one row of each item"
    return DataError(f"a table has rows and columns, but this {kind} has shape {shape}. Reshape your data: {remedy}")


def frame_of_array(data: Any) -> Frame:
    """Return an array, a list of rows, or an object with ``__array__``."""
    matrix = as_matrix(data)
    return Frame(array_names(matrix.shape[1]), False, len(matrix), lambda j: matrix[:, j], matrix)


def as_matrix(data: Any) -> np.ndarray:
    """Return the two-dimensional array."""
    if not isinstance(data, (np.ndarray, list, tuple)) and not hasattr(data, "__array__"):
        raise InputTypeError(
            f"cannot read a table from {type(data).__name__}: pass a Dask, pandas, polars or Arrow table, "
            "an array, or the path of a Parquet or CSV file"
        )
    try:
        matrix = data if is_masked(data) else np.asarray(data)
        if matrix.dtype.kind == "U" and not isinstance(data, np.ndarray):
            matrix = np.array(data, object)  # NumPy makes text of numbers beside text
    except ValueError as error:
        raise DataError(f"the rows are not all of the same length: {error}") from None
    if matrix.ndim != 2:
        raise bad_shape("array", matrix.shape)
    if not matrix.shape[1]:
        raise DataError(f"there are 0 feature(s) (shape={matrix.shape}) while a minimum of 1 is required.")
    return matrix


def frame_of_sparse(matrix: Any) -> Frame:
    """Return a sparse matrix."""
    if not matrix.shape[1]:
        raise DataError(f"there are 0 feature(s) (shape={matrix.shape}) while a minimum of 1 is required.")
    columns = cache(lambda: columns_of_matrix(matrix))  # converted when a column is read
    return Frame(array_names(matrix.shape[1]), False, matrix.shape[0], lambda j: columns()[j], is_sparse=True)


def frame_of_codes(data: BinnedPartition) -> Frame:
    """Return the bin codes of a partition of a data set."""
    return Frame(array_names(len(data.codes)), False, data.n_rows, data.codes.__getitem__)


def frame_of_pandas(data: Any) -> Frame:
    """Return a DataFrame of pandas."""
    columns = cache(lambda: [column for _, column in data.items()])  # iloc takes seven times as long
    return Frame(Names(data.columns.tolist(), data.index.names), True, len(data), lambda j: columns()[j])


def frame_of_arrow(data: Any) -> Frame:
    """Return a Table or RecordBatch of pyarrow."""
    return Frame(Names(data.schema.names), True, data.num_rows, data.column)


def frame_of_narwhals(data: Any) -> Frame:
    """Return a dataframe of any library that narwhals knows."""
    table = nw.from_native(data)
    labels = table.columns
    return Frame(Names(labels), True, len(table), lambda j: table.get_column(labels[j]).to_native())
