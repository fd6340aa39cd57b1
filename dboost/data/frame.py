"""Tables in memory as named columns.

`as_frame` inspects a table once and returns a `Frame`: names, number of rows and access to a column in its own library's type.
Nothing is copied or converted here; `partition.py` does that, column by column. NumPy arrays, pandas and pyarrow are recognized
here, dataframes of every other library by narwhals.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dboost._lazy_import import is_a, nw, pa
from dboost.data.binned_partition import BinnedPartition
from dboost.errors import DataError, InputTypeError


@dataclass(frozen=True, eq=False)
class Frame:
    """A table in memory."""

    #: Column names; f0, f1, … for an array.
    names: tuple[str, ...]
    #: Whether the table has column names of its own.
    named: bool
    n_rows: int
    #: Maps a position to a one-dimensional ndarray, an Arrow array, or a Series of any library.
    column: Callable[[int], Any]
    #: The table itself, shape (n_rows, n_columns), if it is an array.
    matrix: np.ndarray | None = None

    def rows(self, first: int, last: int) -> Frame:
        """Return rows first…last-1 without copying."""
        matrix = None if self.matrix is None else self.matrix[first:last]
        return Frame(self.names, self.named, last - first, lambda j: some_values(self.column(j), first, last), matrix)


def some_values(values: Any, first: int, last: int) -> Any:
    """Return values first…last-1 of a column of any library without copying."""
    if hasattr(values, "iloc"):
        return values.iloc[first:last]
    return values.slice(first, last - first) if hasattr(values, "slice") else values[first:last]


def is_lazy(data: Any) -> bool:
    """Return whether `data` is a Dask collection, without importing Dask."""
    return hasattr(type(data), "__dask_graph__")


def is_path(data: Any) -> bool:
    """Return whether `paths.open_path` opens the data: a path, a URL, a list of them, or a Delta or Iceberg table."""
    if isinstance(data, (list, tuple)):
        return bool(data) and all(isinstance(item, (str, os.PathLike)) for item in data)
    return isinstance(data, (str, os.PathLike)) or is_table_format(data)


def is_table_format(data: Any) -> bool:
    """Return whether `data` is a `deltalake.DeltaTable`, or a table or scan of pyiceberg, without importing these."""
    return is_a(data, "deltalake", "DeltaTable") or is_a(data, "pyiceberg.table", "Table", "DataScan")


def library(data: Any) -> str:
    """Return the name of the top-level package that defines the type of `data`."""
    return type(data).__module__.partition(".")[0]


def kind_of(data: Any) -> Literal["dataframe", "series", "lazy", "stream"] | None:
    """Return what `data` is in the terms of dataframe libraries; None for arrays and anything else.

    "lazy" is a dataframe that is not computed yet, other than a Dask collection; "stream" is any other object that exports an
    Arrow stream. An Arrow array and a pandas Index are a "series".
    """
    if isinstance(data, (np.ndarray, list, tuple, range)):
        return None
    if is_a(data, "pandas", "DataFrame") or is_a(data, "pyarrow", "Table"):
        return "dataframe"
    if is_a(data, "pandas", "Series", "Index") or is_a(data, "pyarrow", "Array", "ChunkedArray"):
        return "series"
    view = nw.from_native(data, pass_through=True, allow_series=True)
    if isinstance(view, nw.DataFrame):
        return "dataframe"
    if isinstance(view, nw.Series):
        return "series"
    if isinstance(view, nw.LazyFrame):
        return "lazy"
    return "stream" if hasattr(data, "__arrow_c_stream__") else None


def collected(data: Any) -> Any:
    """Return `data` in memory: compute lazy dataframes (polars, DuckDB, …), read Arrow streams into pyarrow Tables."""
    kind = kind_of(data)
    if kind == "lazy":
        return nw.from_native(data).collect().to_native()
    return pa.table(data) if kind == "stream" else data


def names_of(labels: Any) -> tuple[str, ...]:
    """Return column labels as text; raise a DataError if two labels are equal as text."""
    names = tuple(map(str, labels))
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"column {twice[0]!r} occurs more than once: feature names must be unique")
    return names


def array_names(n_columns: int) -> tuple[str, ...]:
    """Return the feature names of an array: f0, f1, …"""
    return tuple(f"f{j}" for j in range(n_columns))


def as_frame(data: Any) -> Frame:
    """Return a dataframe of any library, an array or a nested list as a `Frame`.

    Raises
    ------
    InputTypeError
        If `data` is not a table: sparse matrices, scalars, other objects.
    DataError
        If an array is not two-dimensional, or a column name repeats.
    """
    if isinstance(data, BinnedPartition):
        return Frame(array_names(len(data.codes)), False, data.n_rows, data.codes.__getitem__)
    if is_a(data, "pandas", "DataFrame"):
        return Frame(names_of(data.columns), True, len(data), lambda j: data.iloc[:, j])
    data = collected(data)
    if is_a(data, "pyarrow", "Table"):
        return Frame(names_of(data.schema.names), True, data.num_rows, data.column)
    kind = kind_of(data)
    if kind == "dataframe":
        table = nw.from_native(data)
        labels = table.columns
        return Frame(names_of(labels), True, len(table), lambda j: table.get_column(labels[j]).to_native())
    if library(data) == "scipy" or hasattr(data, "tocsr"):
        raise InputTypeError("sparse data are not supported: pass X.toarray(), or the columns that matter")
    if kind == "series":
        raise one_dimensional((len(data),))
    matrix = as_matrix(data)
    return Frame(array_names(matrix.shape[1]), False, len(matrix), lambda j: matrix[:, j], matrix)


def as_matrix(data: Any) -> np.ndarray:
    """Return a two-dimensional array from an array, a list of rows, or an object with ``__array__``."""
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
    """Return the error for data that do not have rows and columns."""
    return DataError(
        f"a table has rows and columns, but this array has shape {shape}. Reshape your data: "
        "array.reshape(-1, 1) makes it one column, array.reshape(1, -1) one row"
    )


def is_plain(matrix: np.ndarray) -> bool:
    """Return whether kernels can read an array as it is: float32 or float64, native byte order, C-contiguous, not masked."""
    return (
        not is_a(matrix, "numpy.ma", "MaskedArray")
        and matrix.dtype in (np.float32, np.float64)
        and matrix.dtype.isnative
        and matrix.flags.c_contiguous
    )
