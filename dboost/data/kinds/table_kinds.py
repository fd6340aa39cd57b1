"""What kind of table an object is: the table of kinds, and the messages for objects that are none.

`KINDS` has a row for each kind of table that dboost reads: how its rows are read, its columns and their names, and how
predictions of its library are made. A new kind is a row; a dataframe that narwhals knows needs none. Files, streams and Dask
collections are opened in `data.sources` and `data.tables.dask_collections`. No library is imported to recognize an object.
`as_frame` inspects a table in memory once and returns a `Frame`; it copies and converts nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from dboost._lazy_import import is_a, nw, pa, pd
from dboost.data.columns.chunk import BinnedPartition
from dboost.data.columns.labels import Names, listed
from dboost.data.columns.sparse import is_sparse_matrix
from dboost.data.kinds.frame import (
    Frame,
    bad_shape,
    frame_of_array,
    frame_of_arrow,
    frame_of_codes,
    frame_of_narwhals,
    frame_of_pandas,
    frame_of_sparse,
)
from dboost.data.kinds.predictions_like import predictions_like_arrow, predictions_like_narwhals, predictions_like_pandas
from dboost.errors import DataError, InputTypeError

#: How rows are read: "array" and "dataframe" are in memory, "series" is one column; "lazy" is a dataframe that is not computed
#: yet, other than a Dask collection, "stream" is any other object that gives its rows batch by batch; "files" is a path, or an
#: object that stands for files.
Form = Literal["array", "dataframe", "series", "lazy", "stream", "files", "dask"]


class TableKind(NamedTuple):
    """A kind of table."""

    form: Form
    #: Whether an object is of this kind, and of no kind before it.
    includes: Callable[[Any], bool]
    #: Returns a table in memory as a `Frame`.
    frame: Callable[[Any], Frame] | None = None
    #: Returns the names of the columns; None if they are not known before rows are read.
    names: Callable[[Any], Names | None] | None = None
    #: Returns predictions as an object of the library, given the values, the table, and the names of the columns of the
    #: result; None returns an array.
    predictions: Callable[[np.ndarray, Any, tuple[Any, ...] | None], Any] | None = None


def is_dask(data: Any) -> bool:
    """Return whether `data` is a Dask collection, without importing Dask."""
    return hasattr(type(data), "__dask_graph__")


def is_stored_table(data: Any) -> bool:
    """Return whether `data` is an object that stands for files: a `deltalake.DeltaTable`, a table or scan of pyiceberg, files
    that were added to one of these, or a dataset of pyarrow or one of its fragments. Imports none of these libraries."""
    if isinstance(data, np.ndarray):
        return False
    if is_a(data, "pyarrow.dataset", "FileSystemDataset", "FileFragment"):
        return True
    if is_a(data, "dboost.data.sources.added_files", "AddedFiles"):
        return True
    return is_a(data, "deltalake", "DeltaTable") or is_a(data, "pyiceberg.table", "Table", "DataScan")


def is_path(data: Any) -> bool:
    """Return whether `data.sources.paths.open_path` opens the data: a path, a URL, a list of them, or a stored table."""
    if isinstance(data, (list, tuple)):
        return bool(data) and all(isinstance(item, (str, os.PathLike)) for item in data)
    return isinstance(data, (str, os.PathLike)) or is_stored_table(data)


def _names_of_pandas(data: Any) -> Names:
    return Names(data.columns, data.index.names)


def _names_of_dask(data: Any) -> Names | None:
    meta: Any = getattr(data, "_meta", None)
    return _names_of_pandas(meta) if is_a(meta, "pandas", "DataFrame") else None


def _view(data: Any) -> Any:
    """Return an object as narwhals sees it; the object itself if it does not know it."""
    if isinstance(data, (list, tuple, range, type)):
        return None
    return nw.from_native(data, pass_through=True, allow_series=True)


def _names_of_narwhals(data: Any) -> Names:
    return Names(nw.from_native(data).collect_schema().names())


KINDS = (
    TableKind("array", lambda data: isinstance(data, BinnedPartition), frame_of_codes),
    TableKind("array", lambda data: isinstance(data, np.ndarray) and data.dtype.names is None, frame_of_array),
    TableKind("array", lambda data: isinstance(data, np.ndarray)),  # of records
    TableKind(
        "dataframe",
        lambda data: is_a(data, "pandas", "DataFrame"),
        frame_of_pandas,
        _names_of_pandas,
        predictions_like_pandas,
    ),
    TableKind("series", lambda data: is_a(data, "pandas", "Series", "Index")),
    TableKind("files", is_path),
    TableKind("dask", is_dask, names=_names_of_dask),
    TableKind("array", is_sparse_matrix, frame_of_sparse),
    TableKind(
        "dataframe",
        lambda data: is_a(data, "pyarrow", "Table"),
        frame_of_arrow,
        lambda data: Names(data.schema.names),
        predictions_like_arrow,
    ),
    TableKind("stream", lambda data: is_a(data, "pyarrow", "RecordBatch"), frame_of_arrow),
    TableKind("stream", lambda data: is_a(data, "pyarrow.dataset", "Scanner", "Dataset", "Fragment")),
    TableKind("series", lambda data: is_a(data, "pyarrow", "Array", "ChunkedArray")),
    TableKind(
        "dataframe",
        lambda data: isinstance(_view(data), nw.DataFrame),
        frame_of_narwhals,
        _names_of_narwhals,
        predictions_like_narwhals,
    ),
    TableKind("series", lambda data: isinstance(_view(data), nw.Series)),
    TableKind("lazy", lambda data: isinstance(_view(data), nw.LazyFrame), names=_names_of_narwhals),
    TableKind("stream", lambda data: hasattr(data, "__arrow_c_stream__") and not isinstance(data, type)),
)


def table_kind(data: Any) -> TableKind | None:
    """Return the kind of an object; None for lists of rows, other objects with ``__array__``, and what is no table."""
    return next((kind for kind in KINDS if kind.includes(data)), None)


def form_of(data: Any) -> Form | None:
    """Return how the rows of an object are read; None as of `table_kind`."""
    kind = table_kind(data)
    return None if kind is None else kind.form


def is_source(data: Any) -> bool:
    """Return whether rows are still to be read from `data`, a Dask collection or a path: by a cluster if there is one."""
    return is_dask(data) or is_path(data)


def is_stream(data: Any) -> bool:
    """Return whether `data.sources.sources.stream_of` reads the data: lazy frames other than those of Dask, and Arrow
    streams."""
    return form_of(data) in ("lazy", "stream")


def in_parts(data: Any) -> bool:
    """Return whether the rows of `data` are read part by part: by Dask's tasks (`is_source`), or as a stream."""
    return form_of(data) in ("files", "dask", "lazy", "stream")


def library(data: Any) -> str:
    """Return the name of the top-level package that defines the type of `data`."""
    return type(data).__module__.partition(".")[0]


def names_of_table(data: Any) -> Names | None:
    """Return the names of the columns of a dataframe of any library, also of a lazy one; None for anything else."""
    kind = table_kind(data)
    return None if kind is None or kind.names is None else kind.names(data)


def predictions_like(values: np.ndarray, data: Any, names: tuple[Any, ...] | None) -> Any:
    """Return predictions in the kind of the table that they were computed from."""
    if values.dtype.kind == "U":
        values = values.astype(object)
    kind = table_kind(data)
    return values if kind is None or kind.predictions is None else kind.predictions(values, data, names)


def collected(data: Any) -> Any:
    """Return the values of a role in memory: compute lazy frames (polars, DuckDB, …), read Arrow streams into pyarrow Tables.

    Rows are never collected: `as_frame`, which all functions of tables in memory call, refuses streams.
    """
    if is_a(data, "pandas.api.extensions", "ExtensionArray"):  # such as `frame["c"].values` of categories
        return pd.Series(data)
    if is_a(data, "pyarrow.dataset", "Scanner", "Dataset", "Fragment"):
        return data.to_table()
    form = form_of(data)
    if form == "lazy" or (form == "dask" and isinstance(_view(data), nw.LazyFrame)):
        return nw.from_native(data).collect().to_native()
    return pa.table(data) if form == "stream" else data


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
        if is_row:
            remedy += "; if these are parameters, pass them by name after the table and the target, as **parameters"
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
