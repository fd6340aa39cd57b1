"""Tables in memory as a `Frame`, and the messages for objects that are none.

`as_frame` inspects a table once and returns a `Frame`. It copies and converts nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dboost._lazy_import import is_a
from dboost.data.columns.labels import listed
from dboost.data.columns.sparse import is_sparse_matrix
from dboost.data.kinds.frame import Frame, bad_shape, frame_of_array
from dboost.data.kinds.table_kinds import form_of, is_stream, library, table_kind
from dboost.errors import DataError, InputTypeError


def as_frame(data: Any) -> Frame:
    """Return a dataframe of any library, an array or a nested list as a `Frame`.

    Raises
    ------
    InputTypeError
        If `data` is not a table: scalars, other objects; or a stream, which is read by `data.sources.sources.stream_of` only.
    DataError
        If an array is not two-dimensional, or a column name repeats.
    """
    kind = table_kind(data)
    if kind is not None and kind.frame is not None:
        return kind.frame(data)
    if is_stream(data):
        raise InputTypeError(
            f"this needs a table in memory, and a {type(data).__name__} is a stream, which is read batch by batch: pass "
            f"{_collecting(data)}"
        )
    refusal = no_table(data)
    if refusal is not None:
        raise refusal
    return frame_of_array(data)


def _collecting(data: Any) -> str:
    """Return the call that reads a stream into a table, for messages."""
    for name in ("to_arrow_table", "collect", "read_all", "to_table"):  # `to_table` of DuckDB makes a table of the database
        if hasattr(data, name):
            return f"data.{name}()"
    return "pyarrow.table(data)"


def no_table(data: Any) -> DataError | InputTypeError | None:
    """Return the error for data in memory that are no table, with the call that makes one; None for tables and other arrays."""
    if is_sparse_matrix(data):
        return None
    if library(data) == "scipy" or hasattr(data, "tocsr"):
        return bad_shape("sparse array", data.shape)
    if library(data) == "sparse":
        return InputTypeError(f"cannot read a table from {type(data).__name__} of the library sparse: pass array.tocsr()")
    if isinstance(data, np.ndarray):
        if data.dtype.names is None:
            return None
        return DataError(f"this array has records with the fields {listed(data.dtype.names)}: pass pandas.DataFrame(array)")
    if isinstance(data, type):
        return InputTypeError(f"cannot read a table from the class {data.__name__}: pass an object")
    form = form_of(data)
    if form == "series":
        how = 'pyarrow.table({"x": array})' if is_a(data, "pyarrow", "Array", "ChunkedArray") else "data.to_frame()"
        row = ", frame.iloc[[i]] selects one row as a table" if hasattr(data, "iloc") else ""
        return bad_shape(type(data).__name__, (len(data),), f"{how} makes it a table of one column{row}")
    if form not in (None, "files", "dask"):
        return None
    noun, remedy = type(data).__name__, None
    if isinstance(data, list | tuple):
        noun, remedy = _in_list(data)
    elif isinstance(data, Mapping):
        is_row = not any(np.iterable(value) and not isinstance(value, str | bytes) for value in data.values())
        remedy = f"pass pandas.DataFrame({'[data]' if is_row else 'data'})"
    elif hasattr(data, "obj") and hasattr(data, "agg"):  # groups, windows
        remedy = "pass the frame that was grouped, or one that .agg(…) or .transform(…) returns"
    elif hasattr(data, "read") and hasattr(data, "name"):
        remedy = "pass the path of the file"
    elif hasattr(data, "__next__"):
        remedy = "it can be read only once: pass list(rows), or train on one table after the other with dboost.continue_on"
    elif hasattr(data, "to_dataframe") or hasattr(data, "to_pandas"):
        remedy = f"pass data.{'to_dataframe' if hasattr(data, 'to_dataframe') else 'to_pandas'}()"
    elif is_a(data, "distributed", "Future"):
        remedy = "pass dask.dataframe.from_delayed([future])"
    return None if remedy is None else InputTypeError(f"cannot read a table from {noun}: {remedy}")


def _in_list(data: Sequence[Any]) -> tuple[str, str | None]:
    """Return what a list or tuple holds, and how to make a table of that; None if it may have rows."""
    first = data[0] if data else None
    noun = f"a {type(data).__name__} of {len(data)} × {type(first).__name__}"
    if hasattr(first, "__dask_graph__") or is_a(first, "distributed", "Future"):
        joined = {"DataFrame": "dask.dataframe.concat(parts)", "Array": "dask.array.concatenate(parts)"}
        return noun, f"pass {joined.get(type(first).__name__, 'dask.dataframe.from_delayed(parts)')}"
    is_pair = isinstance(data, tuple) and len(data) in (2, 3, 4) and len(getattr(first, "shape", ())) == 2
    if is_pair and len(getattr(data[1], "shape", ())) == 1:
        return "a tuple of a table and its targets", "pass them as two arguments"
    if isinstance(first, Mapping):
        return noun, "pass pandas.DataFrame(rows)"
    if is_a(first, "pyarrow", "RecordBatch"):
        return noun, "pass pyarrow.Table.from_batches(batches)"
    if not isinstance(first, np.ndarray) and form_of(first) in ("dataframe", "lazy"):
        join = {"polars": "polars.concat(frames)", "pyarrow": "pyarrow.concat_tables(tables)"}
        return (
            noun,
            f"pass {join.get(library(first), 'pandas.concat(frames)')}, or a Dask DataFrame of them (dask.dataframe.from_map)",
        )
    if len(getattr(first, "shape", ())) == 2:
        return noun, "pass numpy.concatenate(arrays)"
    if isinstance(first, os.PathLike | str):
        return noun, "its items must all be paths"
    return noun, None
