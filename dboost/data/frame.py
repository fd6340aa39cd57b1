"""Any table in memory, seen as named columns.

`as_frame` looks at a table once and returns a `Frame`: names, number of rows and a way to fetch a column as its own
library holds it. Nothing is copied or converted here; `columns.py` does that, column by column.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dboost._lazy_import import is_a, pa
from dboost.errors import DataError, InputTypeError


@dataclass(frozen=True, eq=False)
class Frame:
    """A table in memory.

    Attributes
    ----------
    names : tuple of str
        f0, f1, … when the table is an array.
    named : bool
    n_rows : int
    column : callable
        Takes a position, returns a one-dimensional ndarray, pandas Series, Arrow array or polars Series.
    matrix : ndarray (n_rows, n_columns) or None
        The table itself, when it is an array.
    """

    names: tuple[str, ...]
    named: bool
    n_rows: int
    column: Callable[[int], Any]
    matrix: np.ndarray | None = None

    def rows(self, first: int, last: int) -> Frame:
        """Rows first…last-1; nothing is copied."""
        matrix = None if self.matrix is None else self.matrix[first:last]
        return Frame(self.names, self.named, last - first, lambda j: some_values(self.column(j), first, last), matrix)


def some_values(values: Any, first: int, last: int) -> Any:
    """Some values of a column of any library; nothing is copied."""
    if hasattr(values, "iloc"):
        return values.iloc[first:last]
    return values.slice(first, last - first) if hasattr(values, "slice") else values[first:last]


def is_lazy(data: Any) -> bool:
    """Whether `data` is a Dask collection; asked without importing Dask, which takes half a second."""
    return hasattr(type(data), "__dask_graph__")


def is_path(data: Any) -> bool:
    """Whether `data` is a path, a URL, or a list of them."""
    if isinstance(data, (list, tuple)):
        return bool(data) and all(isinstance(item, (str, os.PathLike)) for item in data)
    return isinstance(data, (str, os.PathLike))


def library(data: Any) -> str:
    """Name of the top-level package that defines the type of `data`."""
    return type(data).__module__.partition(".")[0]


def names_of(labels: Any) -> tuple[str, ...]:
    """Column labels as text; labels that are the same as text are an error."""
    names = tuple(map(str, labels))
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"column {twice[0]!r} occurs more than once: feature names must be unique")
    return names


def array_names(n_columns: int) -> tuple[str, ...]:
    return tuple(f"f{j}" for j in range(n_columns))


def as_frame(data: Any) -> Frame:
    """See a pandas or polars frame, Arrow table, array or nested list as a `Frame`.

    Raises
    ------
    InputTypeError
        For what is no table: sparse matrices, scalars, foreign objects.
    DataError
        For arrays that are not two-dimensional, and for repeated names.
    """
    kind = library(data)
    if is_a(data, "pandas", "DataFrame"):
        return Frame(names_of(data.columns), True, len(data), lambda j: data.iloc[:, j])
    if kind == "polars" and hasattr(data, "collect"):
        data = data.collect()
    if kind == "polars" and hasattr(data, "to_series"):
        return Frame(names_of(data.columns), True, data.height, data.to_series)
    if is_a(data, "pyarrow", "Table", "RecordBatch"):
        return Frame(names_of(data.schema.names), True, data.num_rows, data.column)
    if kind == "scipy" or hasattr(data, "tocsr"):
        raise InputTypeError("sparse data are not supported: pass X.toarray(), or the columns that matter")
    if is_a(data, "pandas", "Series") or (kind == "polars" and hasattr(data, "to_frame")):
        raise one_dimensional((len(data),))
    if not isinstance(data, np.ndarray) and hasattr(data, "__arrow_c_stream__"):
        return as_frame(pa.table(data))
    matrix = as_matrix(data)
    return Frame(array_names(matrix.shape[1]), False, len(matrix), lambda j: matrix[:, j], matrix)


def as_matrix(data: Any) -> np.ndarray:
    """A two-dimensional array from an array, a list of rows, or anything with ``__array__``."""
    if not isinstance(data, (np.ndarray, list, tuple)) and not hasattr(data, "__array__"):
        raise InputTypeError(
            f"cannot read a table from {type(data).__name__}: pass a Dask, pandas, polars or Arrow table, "
            "an array, or the path of a Parquet or CSV file"
        )
    try:
        matrix = data if is_a(data, "numpy.ma", "MaskedArray") else np.asarray(data)
    except ValueError as error:
        raise DataError(f"the rows are not all of the same length: {error}") from None
    if matrix.ndim != 2:
        raise one_dimensional(matrix.shape)
    if not matrix.shape[1]:
        raise DataError(f"there are 0 feature(s) (shape={matrix.shape}) while a minimum of 1 is required.")
    return matrix


def one_dimensional(shape: object) -> DataError:
    """The error for an array that is not rows × columns."""
    return DataError(
        f"a table has rows and columns, but this array has shape {shape}. Reshape your data: "
        "array.reshape(-1, 1) makes it one column, array.reshape(1, -1) one row"
    )


def is_plain(matrix: np.ndarray) -> bool:
    """Whether an array is one that kernels read as it is: float32 or float64 of this machine, row after row, nothing masked."""
    return (
        not is_a(matrix, "numpy.ma", "MaskedArray")
        and matrix.dtype in (np.float32, np.float64)
        and matrix.dtype.isnative
        and matrix.flags.c_contiguous
    )
