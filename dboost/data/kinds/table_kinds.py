"""What kind of table an object is."""

from __future__ import annotations

import os
from typing import Any, Literal

import numpy as np

from dboost._lazy_import import is_a, nw, pa, pd


def is_lazy(data: Any) -> bool:
    """Return whether `data` is a Dask collection, without importing Dask."""
    return hasattr(type(data), "__dask_graph__")


def is_path(data: Any) -> bool:
    """Return whether `data.sources.paths.open_path` opens the data: a path, a URL, a list of them, or a stored table."""
    if isinstance(data, (list, tuple)):
        return bool(data) and all(isinstance(item, (str, os.PathLike)) for item in data)
    return isinstance(data, (str, os.PathLike)) or is_stored_table(data)


def is_source(data: Any) -> bool:
    """Return whether rows are still to be read from `data`, a Dask collection or a path: by a cluster if there is one."""
    return is_lazy(data) or is_path(data)


def is_stream(data: Any) -> bool:
    """Return whether `data.sources.sources.stream_of` reads the data: lazy frames other than those of Dask, and Arrow
    streams."""
    if isinstance(data, np.ndarray) or is_lazy(data):
        return False
    if is_a(data, "pyarrow.dataset", "FileSystemDataset", "FileFragment"):
        return False
    return is_a(data, "pyarrow.dataset", "Scanner", "Dataset", "Fragment") or kind_of(data) in ("lazy", "stream")


def in_parts(data: Any) -> bool:
    """Return whether the rows of `data` are read part by part: by Dask's tasks (`is_source`), or as a stream."""
    return is_source(data) or is_stream(data)


def is_stored_table(data: Any) -> bool:
    """Return whether `data` is an object that stands for files: a `deltalake.DeltaTable`, a table or scan of pyiceberg, files
    that were added to one of these, or a dataset of pyarrow or one of its fragments. Imports none of these libraries."""
    if isinstance(data, np.ndarray):
        return False
    if is_a(data, "pyarrow.dataset", "FileSystemDataset", "FileFragment"):
        return True
    if is_a(data, "dboost.data.sources.table_versions", "AddedFiles"):
        return True
    return is_a(data, "deltalake", "DeltaTable") or is_a(data, "pyiceberg.table", "Table", "DataScan")


def library(data: Any) -> str:
    """Return the name of the top-level package that defines the type of `data`."""
    return type(data).__module__.partition(".")[0]


def kind_of(data: Any) -> Literal["dataframe", "series", "lazy", "stream"] | None:
    """Return what `data` is in the terms of dataframe libraries; None for arrays and anything else.

    "lazy" is a dataframe that is not computed yet, other than a Dask collection; "stream" is any other object that exports an
    Arrow stream. An Arrow array and a pandas Index are a "series".
    """
    if isinstance(data, (np.ndarray, list, tuple, range, type)):
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
    """Return the values of a role in memory: compute lazy frames (polars, DuckDB, …), read Arrow streams into pyarrow Tables.

    Rows are never collected: `as_frame`, which all functions of tables in memory call, refuses streams.
    """
    if isinstance(data, np.ndarray):
        return data
    if is_a(data, "pandas.api.extensions", "ExtensionArray"):  # such as `frame["c"].values` of categories
        return pd.Series(data)
    if is_a(data, "pyarrow.dataset", "Scanner", "Dataset", "Fragment"):
        return data.to_table()
    kind = kind_of(data)
    if kind == "lazy":
        return nw.from_native(data).collect().to_native()
    return pa.table(data) if kind == "stream" else data
