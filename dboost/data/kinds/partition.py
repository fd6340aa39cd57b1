"""From a partition to a chunk: its columns by name, the columns that are read, and their conversion.

`read_partition` is a pure function of a plan and a table in memory: the same code reads the user's array, a Dask partition in
a thread, and one on a worker. The chunk has its own categories; the reader in `data/tables/table.py` makes those of all
partitions consistent. NumPy arrays, pandas Series (NumPy, nullable, categorical or Arrow-backed), Arrow arrays, and Series of
other libraries (through Arrow) become either a numeric array or a `CategoryColumn`:

* Integers, floats and booleans keep their type and are not copied if no value is missing; otherwise they become floats with
  NaN. Decimals become the nearest float64, half floats float32, and integers of 128 bits those of 64 bits or float64.
* Sparse columns keep their form (see `data/columns/sparse.py`) unless they are declared categorical.
* Text, dictionaries and categoricals become codes of the categories that occur, in no particular order.
* A numeric column that the user declared categorical is coded by its distinct values. Negative values count as missing. Floats
  that are whole numbers become integers, so that 3 and 3.0 are the same category in every library.

Types without an obvious meaning as a number or a category (dates, complex numbers, lists) raise a `DataError` with a hint.

`fingerprint` is a checksum of a chunk. A partition that was lost with its worker is read again, and the model is correct only
if the source returns the same rows in the same order. Some sources do not: a query without an order, a sample without a seed,
a file that was replaced. Categories enter the checksum by value, because codes depend on what the worker has read before. The
checksum of rows that move to another worker moves with them: their codes may not distinguish all values of the source.

**Frames.** `as_frame` inspects a table once and returns a `Frame`: names, number of rows and access to a column in its own
library's type. It copies and converts nothing. NumPy arrays, pandas and pyarrow are recognized here, dataframes of every other
library by narwhals.

**Columns that are read.** A `ReadPlan` is made from the names of the columns, the user's `features` and `categorical_features`,
and the features of an existing model, before any row is read. It is plain data, and the same for every partition, in this
process or on a worker.
"""

from __future__ import annotations

import decimal
import math
import numbers
import os
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from dboost._lazy_import import is_a, nw, pa, pd
from dboost.data.columns.binning import Binning
from dboost.data.columns.chunk import (
    BinnedPartition,
    Chunk,
    MatrixColumns,
    native,
    plain,
    row_blocks,
    too_many,
    too_many_classes,
)
from dboost.data.columns.column import CategoryColumn, Column, apply, without_unused
from dboost.data.columns.labels import Names, items_of_labels, listed, may_name_columns, names_of_table, text_of
from dboost.data.columns.roles import ROLES, RowRoles, keys_of
from dboost.data.columns.sparse import SparseColumn, column_of_pandas, columns_of_matrix, is_sparse_matrix
from dboost.errors import DataError, InputTypeError, ParameterError, warn
from dboost.kernels.checksum import checksum
from dboost.schema import MAX_LEVELS, NUMBERS, TRUTH_VALUES, Feature, Level, kinds_of


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


def array_names(n_columns: int) -> tuple[str, ...]:
    """Return the feature names of an array: f0, f1, …"""
    return tuple(f"f{j}" for j in range(n_columns))


def as_frame(data: Any) -> Frame:
    """Return a dataframe of any library, an array or a nested list as a `Frame`.

    Raises
    ------
    InputTypeError
        If `data` is not a table: scalars, other objects; or a stream, which is read by `data.sources.sources.stream_of` only.
    DataError
        If an array is not two-dimensional, or a column name repeats.
    """
    if isinstance(data, BinnedPartition):
        return Frame(array_names(len(data.codes)), False, data.n_rows, data.codes.__getitem__)
    if isinstance(data, np.ndarray) and data.dtype.names is None:
        return _frame_of_array(data)
    if is_a(data, "pandas", "DataFrame"):
        return Frame(Names(data.columns, data.index.names), True, len(data), lambda j: data.iloc[:, j])
    if is_sparse_matrix(data):
        return _frame_of_sparse(data)
    if is_a(data, "pyarrow", "Table", "RecordBatch"):
        return Frame(Names(data.schema.names), True, data.num_rows, data.column)
    if kind_of(data) == "dataframe":
        table = nw.from_native(data)
        labels = table.columns
        return Frame(Names(labels), True, len(table), lambda j: table.get_column(labels[j]).to_native())
    if is_stream(data):
        raise InputTypeError(
            f"this needs a table in memory, and a {type(data).__name__} is a stream, which is read batch by batch: pass "
            f"{_collecting(data)}"
        )
    refusal = no_table(data)
    if refusal is not None:
        raise refusal
    return _frame_of_array(data)


def _collecting(data: Any) -> str:
    """Return the call that reads a stream into a table, for messages."""
    for name in ("to_arrow_table", "collect", "read_all", "to_table"):  # `to_table` of DuckDB makes a table of the database
        if hasattr(data, name):
            return f"data.{name}()"
    return "pyarrow.table(data)"


def _frame_of_array(data: Any) -> Frame:
    matrix = as_matrix(data)
    return Frame(array_names(matrix.shape[1]), False, len(matrix), lambda j: matrix[:, j], matrix)


def _frame_of_sparse(matrix: Any) -> Frame:
    if not matrix.shape[1]:
        raise DataError(f"there are 0 feature(s) (shape={matrix.shape}) while a minimum of 1 is required.")
    columns = cache(lambda: columns_of_matrix(matrix))  # converted when a column is read
    return Frame(array_names(matrix.shape[1]), False, matrix.shape[0], lambda j: columns()[j], is_sparse=True)


def is_masked(values: Any) -> bool:
    """Return whether `values` is a masked array of NumPy."""
    return type(values) is not np.ndarray and is_a(values, "numpy.ma", "MaskedArray")


def as_matrix(data: Any) -> np.ndarray:
    """Return a two-dimensional array from an array, a list of rows, or an object with ``__array__``."""
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


#: Remedies for 1-d arrays.
_RESHAPE = "array.reshape(-1, 1) makes it one column, array.reshape(1, -1) one row"


def bad_shape(what: str, shape: object, remedy: str = _RESHAPE) -> DataError:
    """Return the error for data that do not have rows and columns. what : its kind; remedy : how to make a table of it."""
    if isinstance(shape, tuple) and len(shape) > 2:
        remedy = "array.reshape(len(array), -1) makes one row of each item"
    return DataError(f"a table has rows and columns, but this {what} has shape {shape}. Reshape your data: {remedy}")


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
    kind = kind_of(data)
    if kind == "series":
        how = 'pyarrow.table({"x": array})' if is_a(data, "pyarrow", "Array", "ChunkedArray") else "data.to_frame()"
        row = ", frame.iloc[[i]] selects one row as a table" if hasattr(data, "iloc") else ""
        return bad_shape(type(data).__name__, (len(data),), f"{how} makes it a table of one column{row}")
    if kind is not None:
        return None
    what, remedy = type(data).__name__, None
    if isinstance(data, list | tuple):
        what, remedy = _in_list(data)
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
    return None if remedy is None else InputTypeError(f"cannot read a table from {what}: {remedy}")


def _in_list(data: Sequence[Any]) -> tuple[str, str | None]:
    """Return what a list or tuple holds, and how to make a table of that; None if it may have rows."""
    first = data[0] if data else None
    what = f"a {type(data).__name__} of {len(data)} × {type(first).__name__}"
    if hasattr(first, "__dask_graph__") or is_a(first, "distributed", "Future"):
        joined = {"DataFrame": "dask.dataframe.concat(parts)", "Array": "dask.array.concatenate(parts)"}
        return what, f"pass {joined.get(type(first).__name__, 'dask.dataframe.from_delayed(parts)')}"
    is_pair = isinstance(data, tuple) and len(data) in (2, 3, 4) and len(getattr(first, "shape", ())) == 2
    if is_pair and len(getattr(data[1], "shape", ())) == 1:
        return "a tuple of a table and its targets", "pass them as two arguments"
    if isinstance(first, Mapping):
        return what, "pass pandas.DataFrame(rows)"
    if is_a(first, "pyarrow", "RecordBatch"):
        return what, "pass pyarrow.Table.from_batches(batches)"
    if not isinstance(first, np.ndarray) and kind_of(first) in ("dataframe", "lazy"):
        join = {"polars": "polars.concat(frames)", "pyarrow": "pyarrow.concat_tables(tables)"}
        return (
            what,
            f"pass {join.get(library(first), 'pandas.concat(frames)')}, or a Dask DataFrame of them (dask.dataframe.from_map)",
        )
    if len(getattr(first, "shape", ())) == 2:
        return what, "pass numpy.concatenate(arrays)"
    if isinstance(first, os.PathLike | str):
        return what, "its items must all be paths"
    return what, None


def is_numeric(matrix: np.ndarray) -> bool:
    """Return whether an array holds numbers, of any type and in any memory order, and is not masked."""
    return matrix.dtype.kind in "biuf" and not is_masked(matrix)


@dataclass(frozen=True)
class ColumnSpec:
    """How to read a column."""

    name: str
    #: True: numbers are categories too. False: the column must be numeric. None: the type of the column decides.
    categorical: bool | None = None
    #: The categories are those of a model: the column may contain any number of unknown ones, also negative ones.
    known: bool = False
    #: Kinds of values that the column may contain, see `Feature.legal_kinds`; empty if any kind is legal.
    kinds: tuple[str, ...] = ()
    #: One of `ROLES` for a column that is not a feature.
    role: str | None = None


def column_spec(feature: Feature, *, extend_categories: bool = False) -> ColumnSpec:
    """Return how to read the column of a known feature. extend_categories : whether new categories are added to it."""
    return ColumnSpec(
        feature.name,
        feature.is_categorical,
        known=not (extend_categories and feature.is_categorical),
        kinds=feature.legal_kinds,
    )


@dataclass(frozen=True)
class ReadPlan:
    """How to read a partition."""

    #: One for each feature.
    specs: tuple[ColumnSpec, ...]
    #: The column of each feature: a name in frames, a position in arrays.
    columns: tuple[str, ...] | tuple[int, ...]
    #: Features of a model whose categories are used.
    known: tuple[Feature, ...] | None = None
    #: Columns of the table by role (`Role.has_several`: a tuple of two or more); roles that are given separately, or not at
    #: all, are missing.
    roles: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    #: All column names if every other column is a feature; then a partition must not have further columns.
    all_names: tuple[str, ...] | None = None
    #: Whether unknown categories are added to those of the model; otherwise they are missing values.
    extend_categories: bool = False
    #: The partitions are `BinnedPartition` objects: their columns are codes of these bins.
    binning: Binning | None = None

    @property
    def closed(self) -> bool:
        """Whether no category can be added."""
        return self.known is not None and not self.extend_categories

    @property
    def named(self) -> bool:
        return not self.columns or isinstance(self.columns[0], str)

    @property
    def needed(self) -> tuple[str, ...]:
        """Names of all columns that are read, each once."""
        return tuple(dict.fromkeys([*map(str, self.columns), *columns_of_roles(self.roles)]))

    def labels(self, role: str) -> list[str]:
        """Return the names of the columns of a role that has several; of others none."""
        names = self.roles.get(role, role)
        return [] if isinstance(names, str) else [f"{role} {name!r}" for name in names]

    def label(self, role: str) -> str:
        """Return the name of a role for messages."""
        names = self.roles.get(role, role)
        return role if names == role else f"{role} {repr(names) if isinstance(names, str) else listed(names)}"


def columns_of_roles(roles: Mapping[str, str | tuple[str, ...]]) -> list[str]:
    """Return the names of all columns that are roles."""
    return [name for names in roles.values() for name in ([names] if isinstance(names, str) else names)]


def binned_plan(binning: Binning) -> ReadPlan:
    """Return how to read partitions that hold codes of these bins."""
    specs = tuple(ColumnSpec(feature.name, categorical=False) for feature in binning.features)
    return ReadPlan(specs, tuple(range(len(specs))), binning.features, binning=binning)


def make_read_plan(
    names: tuple[str, ...],
    named: bool,
    *,
    roles: dict[str, Any],
    features: Sequence[Any] | None = None,
    categorical_features: Any = "from_dtype",
    like: tuple[Feature, ...] | None = None,
    extend_categories: bool = False,
) -> ReadPlan:
    """Return how to read a table with columns `names`.

    Parameters
    ----------
    roles : dict
        Roles as the user gave them, by name. Text (or a column label) names a column; other values are given separately and
        are ignored here.
    features, categorical_features, like, extend_categories
        As in `open_table`.

    Raises
    ------
    DataError
        If a column is missing, no feature is left, or a role other than a key names a feature of `like`.
    ParameterError
        If `features` or `categorical_features` do not match the table.
    """
    own = Names.of(names) if named else None
    named_roles = {role: _role(role, value, own) for role, value in roles.items()}
    given = {role: name for role, name in named_roles.items() if name is not None}
    taken = set(columns_of_roles(given))
    if like is not None:  # as in training, where `features` may name the column of a key
        keys = set(columns_of_roles({role: names for role, names in given.items() if ROLES[role].kind == "key"}))
        taken -= keys.intersection(feature.name for feature in like)
    free = tuple(name for name in names if name not in taken)
    columns: tuple[str, ...] | tuple[int, ...]
    if like is not None:
        if features is not None:
            asked, learned = set(chosen_features(features, own)), {feature.name for feature in like}
            if asked != learned:
                which = listed(sorted(asked - learned) or sorted(learned - asked))
                why = f"it was not trained on {which}" if asked - learned else f"it was also trained on {which}"
                raise ParameterError(f"features cannot be chosen again: the model keeps its own, and {why}: leave features out")
        if named:
            _check_roles(given, like)
        columns = columns_like(names, named, like, without=taken)
        of_spec = tuple(map(str, columns)) if named else tuple(feature.name for feature in like)
        _check_kinds(categorical_features, of_spec if own is None else own.only(of_spec), named, like)
        specs = tuple(column_spec(feature, extend_categories=extend_categories) for feature in like)
    else:
        targets = columns_of_roles({"target": given.get("target", ())})
        chosen = _without_index(free) if features is None else chosen_features(features, own, targets)
        if not chosen:
            raise DataError("no features are left: every column of the data is target, weight or offset")
        columns = chosen if named else tuple(range(len(chosen)))
        declared = declared_categorical(categorical_features, chosen if own is None else own.only(chosen), named)
        specs = tuple(ColumnSpec(name, flag) for name, flag in zip(chosen, declared, strict=True))
    if own is not None:
        own.check_once([*map(str, columns), *taken])
    return ReadPlan(
        specs,
        columns,
        like,
        given,
        all_names=tuple(names) if named and features is None and like is None else None,
        extend_categories=extend_categories,
    )


#: What columns are called that hold the index of a frame which was written to a file: by pandas for CSV, by Arrow, by polars.
_INDEX_NAMES = ("Unnamed: 0", "__index_level_0__", "")


def _without_index(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of columns without that of an index, which numbers the rows; warn if there is one."""
    found = [name for name in names if name in _INDEX_NAMES]
    if not found:
        return names
    warn(
        f"column {found[0]!r} is taken for the index of a frame that was written to a file, and is no feature: drop it, or "
        "name it in features=[…] if it is one"
    )
    return tuple(name for name in names if name not in _INDEX_NAMES)


def _check_roles(given: Mapping[str, str | tuple[str, ...]], like: tuple[Feature, ...]) -> None:
    """Raise a DataError if the target, the weights or the offsets are a feature of the model; a key may be one."""
    wanted = tuple(feature.name for feature in like)
    if wanted == array_names(len(wanted)):  # the columns may be selected by position
        return
    for role, names in given.items():
        for name in columns_of_roles({role: names}):
            if name in wanted and ROLES[role].kind != "key":
                raise DataError(f"{role}={name!r} is a feature of the model")


def _check_kinds(spec: Any, names: tuple[str, ...], named: bool, like: tuple[Feature, ...]) -> None:
    """Raise a ParameterError if the declaration contradicts the model; all but the default declare every feature."""
    if isinstance(spec, str) and spec == "from_dtype":
        return
    for flag, feature in zip(declared_categorical(spec, names, named), like, strict=True):
        if flag is not None and flag != feature.is_categorical:
            kinds = ("numeric", "categorical")
            raise ParameterError(
                f"categorical_features says that {feature.name!r} is {kinds[flag]}, but in the model it is {kinds[not flag]}"
            )


def used_columns(features: Sequence[Any] | None, like: Sequence[Feature] | None, roles: dict[str, Any]) -> set[str] | None:
    """Return the names of the columns that are read, as far as the user names them; None if all are read.

    Parameters as of `make_read_plan`.
    """
    chosen = features if like is None else [one.name for one in like]
    if chosen is None:
        return None
    named = [one for value in roles.values() for one in (value if may_name_columns(value) else [value])]
    return {text_of(one) for one in (*items_of_labels(chosen), *(one for one in named if Names(()).is_label(one)))}


def columns_like(
    names: tuple[str, ...],
    named: bool,
    like: tuple[Feature, ...],
    model_named: bool | None = None,
    without: Collection[str] = (),
) -> tuple[str, ...] | tuple[int, ...]:
    """Return the columns of a table that are the features of a model.

    Columns of frames are selected by name. Columns of arrays are selected by position, and so are those of frames if the model
    was trained on an array.

    Parameters
    ----------
    names, named
        The columns of the table, and whether the data have column names.
    like : tuple of Feature
    model_named : bool, optional
        Whether the model was trained on named columns. Default: whether its features have other names than f0, f1, ….
    without : collection of str
        Columns that are no features; default none.
    """
    own = Names.of(names) if named else None
    wanted = tuple(feature.name for feature in like)
    present = set(names).difference(without)
    absent = [name for name in wanted if name not in present]
    if model_named is None:
        model_named = not absent or wanted != array_names(len(wanted))
    if named and model_named:
        if absent:
            hint = "" if own is None else own.index_hint(absent[0])
            raise DataError(f"the data have no column {listed(absent)}, which the model needs{hint}")
        if own is not None:
            own.check_once(wanted)
        return wanted
    free = tuple(name for name in names if name not in without)
    if len(free) != len(wanted):
        raise DataError(f"X has {len(free)} features, but dboost is expecting {len(wanted)} features as input")
    if own is not None:
        own.check_once(free)
    return free if named else tuple(range(len(free)))


def declared_categorical(spec: Any, names: tuple[str, ...], named: bool) -> tuple[bool | None, ...]:
    """Return for each feature whether it is categorical (True), numeric (False), or as its dtype determines (None).

    `spec` is ``"from_dtype"``, None, a mask, indices or names, with the meaning and the errors of scikit-learn's
    HistGradientBoosting.
    """
    n = len(names)
    if isinstance(spec, str):
        if spec != "from_dtype":
            raise ParameterError(f"categorical_features is {spec!r}: allowed are 'from_dtype', a mask, indices, names")
        return (None,) * n
    if spec is None:
        return (False,) * n
    if not isinstance(spec, Iterable) or np.ndim(spec if isinstance(spec, np.ndarray) else ()) == 0:
        raise _bad_kind(type(spec).__name__)
    values = items_of_labels(spec)
    if not values:
        return (False,) * n
    if all(isinstance(value, bool | np.bool_) for value in values):
        if len(values) != n:
            raise ParameterError(
                "categorical_features set as a boolean mask must have shape (n_features,): "
                f"{len(values)} values for {n} features"
            )
        return tuple(map(bool, values))
    names = Names.of(names)
    found = [names.find(value) for value in values] if named else []
    if all(isinstance(value, int | np.integer) and not isinstance(value, bool) for value in values):
        if min(values) >= 0 and max(values) < n:
            indices = set(map(int, values))
            return tuple(j in indices for j in range(n))
        if not named or None in found:
            raise ParameterError(
                f"categorical_features set as integer indices must be in [0, n_features - 1], that is [0, {n - 1}]"
            )
    elif not named or None in found:
        if not all(isinstance(value, str) for value in values) and (not named or isinstance(values[0], _NO_LABELS)):
            array = np.asarray(values) if len(set(map(type, values))) == 1 else np.array(values, object)
            if array.ndim != 1 and not isinstance(values[0], tuple):
                raise ParameterError(f"categorical_features has shape {array.shape}: one dimension is needed")
            plain = array.ndim == 1 and array.dtype.kind != "O"
            raise _bad_kind(array.dtype.name if plain else ", ".join(sorted({type(value).__name__ for value in values})))
        if not named:
            raise ParameterError(
                "categorical_features should be passed as an array of integers or as a boolean mask when the model is "
                "fitted on data without feature names."
            )
        wrong = values[found.index(None)]
        raise ParameterError(
            f"categorical_features has an item value {wrong!r} which is not a valid feature name of the training data"
            f"{Names.of(names).hint(wrong)}"
        )
    marked = set(found)
    return tuple(name in marked for name in names)


#: Types of a single item of `categorical_features` that are more likely a mistake than a label that the table lacks.
_NO_LABELS = (float, np.floating, list, dict, np.ndarray)


def _bad_kind(kind: str) -> ParameterError:
    return ParameterError(f"categorical_features must be an array-like of bool, int or str, got: {kind}.")


def _role(role: str, value: Any, names: Names | None) -> str | tuple[str, ...] | None:
    """Return the columns that a role names, or None if its values are given separately. names : as of `chosen_features`."""
    if names is None:
        if not isinstance(value, str | int | np.integer) or isinstance(value, bool):
            return None
        raise DataError(f"{role} is {value!r}, but an array has no column names: pass the values themselves")
    if not names.is_label(value):
        if not may_name_columns(value) or len(value) > len(names) or any(names.find(one) != one for one in value):
            return None
        if not ROLES[role].has_several:
            raise DataError(f"{role} names {len(value)} columns, {listed(value)}, but a model has one: make one column of them")
        if len(set(value)) < len(value):
            raise DataError(f"{role} names a column twice: {listed(value)}")
        return tuple(value)
    name = names.find(value)
    if name is None:
        raise DataError(f"the data have no column {value!r}, which was given as {role}{names.hint(value)}")
    return name


def chosen_features(features: Any, names: Names | None, targets: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of the columns that `features` asks for; those of a set in the order of the table.

    names : of the table; None for an array.
    """
    labels = items_of_labels(features)
    if names is None:
        raise ParameterError("features needs column names: select the columns of the array instead")
    found = {label: names.find(label) for label in labels}
    absent = [label for label, name in found.items() if name is None]
    if absent:
        raise DataError(f"the data have no column {listed(absent)}, which features asks for{names.hint(absent[0])}")
    chosen = tuple(name for name in map(found.get, labels) if name is not None)
    if isinstance(features, set | frozenset):  # which has no order
        chosen = tuple(name for name in names if name in chosen)
    if len(set(chosen)) < len(chosen):
        raise ParameterError("features names a column twice")
    for target in targets:
        if target in chosen:
            raise ParameterError(f"features holds the target, {target!r}")
    return chosen


class CellError(DataError, InputTypeError):
    """A column contains objects that are neither numbers nor text."""


#: Integers of smaller magnitude, and powers of ten up to this exponent, are floats without rounding.
_EXACT, _EXACT_POWER = 2**53, 22


def to_column(values: Any, spec: ColumnSpec) -> Column:
    """Return one column as a numeric or boolean array, or as a `CategoryColumn`.

    Parameters
    ----------
    values : one-dimensional ndarray, pandas Index, pyarrow array, or Series of any library

    Raises
    ------
    DataError
        If the column cannot be read as specified. The message names the column.
    """
    if isinstance(values, (np.ndarray, CategoryColumn)):
        column = _from_numpy(values, spec)
    elif isinstance(values, SparseColumn):
        column = _from_sparse(values, spec)
    elif is_a(values, "pandas", "Series", "Index"):
        column = _from_pandas(values, spec)
    else:
        column = _from_arrow(values if is_a(values, "pyarrow", "Array", "ChunkedArray") else _to_arrow(values, spec), spec)
    if spec.kinds:
        _check_kind(column, spec)
    if isinstance(column, CategoryColumn):
        if spec.categorical is False:
            if not column.categories:  # all values are missing
                return np.full(len(column.codes), np.nan, np.float32)
            raise _not_numeric(spec, column.categories)
        return column
    return _levels_of_numbers(np.asarray(column), spec) if spec.categorical else column


def _from_sparse(column: SparseColumn, spec: ColumnSpec) -> Any:
    """Return a sparse column of numbers with values that kernels can read; it stands for an array."""
    if column.dtype.kind not in "biuf":
        return _from_numpy(column.to_array(), spec)
    values = native(column.values)
    return SparseColumn(column.rows, values, column.n_rows, values.dtype.type(column.fill))


def _not_numeric(spec: ColumnSpec, levels: Sequence[Level]) -> DataError:
    """Return the error for a column of text or categories that must be numeric. levels : some of its values."""
    from dboost.data.columns.numbers_as_text import hint

    how = hint(spec.name, levels, is_column=spec.name != spec.role)
    if spec.role is not None:
        name = "" if spec.name == spec.role else f" {spec.name!r}"
        return DataError(f"{spec.role}{name} holds text or categories, numbers are needed{how}")
    advice = "the feature is numeric in the model" if spec.known else "declare it in categorical_features, or leave it out"
    return DataError(f"column {spec.name!r} holds text or categories, which cannot be made numeric: {advice}{how}")


def _check_kind(column: Column, spec: ColumnSpec) -> None:
    """Raise a DataError if the kind of values differs from training: they would all count as unknown, that is as missing."""
    if isinstance(column, CategoryColumn):
        given, values = (
            kinds_of(column.categories),
            np.array([level for level in column.categories if not isinstance(level, str)]),
        )
    else:
        given, values = {TRUTH_VALUES if column.dtype == bool else NUMBERS}, column
    wrong = given - set(spec.kinds)
    if not wrong:
        return
    if wrong == {NUMBERS}:
        present = values[~np.isnan(values)]
        # Truth values among missing ones are often stored as 0 and 1.
        if not len(present) or (spec.kinds[0] == TRUTH_VALUES and ((present == 0) | (present == 1)).all()):
            return
    if len(column.codes if isinstance(column, CategoryColumn) else column):
        raise DataError(f"column {spec.name!r} holds {min(wrong)}, but it held {spec.kinds[0]} in training")


def _to_arrow(values: Any, spec: ColumnSpec) -> Any:
    series = nw.from_native(values, series_only=True)
    try:
        if series.dtype in (nw.Int128, nw.UInt128):  # Arrow has no such type
            low, high = series.min(), series.max()
            signed = low is None or (low >= -(2**63) and high < 2**63)
            unsigned = not signed and low >= 0 and high < 2**64
            series = series.cast(nw.Int64 if signed else nw.UInt64 if unsigned else nw.Float64)
        return series.to_arrow()
    except Exception as error:  # polars raises several types of errors for columns of Python objects
        raise CellError(f"column {spec.name!r} holds {values.dtype}; a number or text is needed") from error


def _from_numpy(values: np.ndarray | CategoryColumn, spec: ColumnSpec) -> Column:
    if not isinstance(values, CategoryColumn) and is_masked(values):
        data = np.ma.getdata(values)
        values = _masked(native(data) if data.dtype.kind in "biuf" else data, np.ma.getmaskarray(values), spec)
    if isinstance(values, CategoryColumn):
        return values
    kind = values.dtype.kind
    if kind == "O":
        return _from_objects(values, spec)
    if kind in "UT":
        return _from_text(values, spec)
    if kind not in "biuf":
        raise _refusal(spec, str(values.dtype), {"M": "date", "m": "duration", "c": "complex"}.get(kind))
    return native(values)


def _masked(values: np.ndarray, mask: np.ndarray, spec: ColumnSpec) -> np.ndarray | CategoryColumn:
    """Return numbers with NaN where masked, float32 if that represents every value; integer categories as exact codes."""
    if values.dtype.kind not in "biuf":
        values = values.astype(object)
        values[mask] = None
        return values
    if not mask.any():
        return values
    if spec.categorical and values.dtype.kind in "iu":  # floats cannot represent all integers beyond 2**53
        return _levels_of_numbers(values, spec, mask)
    filled = values.astype(np.result_type(values.dtype, np.float32) if values.dtype != bool else np.float32)
    filled[mask] = np.nan
    return filled


#: Types of Python's objects that are numbers.
_NUMBERS = (numbers.Real, np.bool_, decimal.Decimal)


def holds_other_than_text(column: pd.Series) -> bool:
    """Return whether a column has the dtype object, and a value that is neither missing nor text."""
    return column.dtype == object and not all(issubclass(t, str) for t in set(map(type, column[~_is_missing(column)])))


def _is_missing(values: Any) -> np.ndarray:
    """Return which objects are missing values: bool[n]."""
    try:
        return np.asarray(pd.isna(values))
    except decimal.InvalidOperation:  # Decimal("sNaN") cannot be compared
        return np.array([(isinstance(one, decimal.Decimal) and one.is_nan()) or bool(pd.isna(one)) for one in values], bool)


def _from_objects(values: np.ndarray, spec: ColumnSpec) -> Column:
    missing = _is_missing(values)
    present = values[~missing] if missing.any() else values
    types = set(map(type, present))
    if not types:
        return np.full(len(values), np.nan, dtype=np.float32)
    if all(issubclass(t, str) for t in types):
        return _from_text(values, spec)
    if any(issubclass(t, str) for t in types):
        raise DataError(f"column {spec.name!r} mixes text with {_names(types)}: make it one or the other")
    if any(issubclass(t, (complex, np.complexfloating)) for t in types):
        raise _refusal(spec, "complex", "complex")
    if any(hasattr(t, "isoformat") or t is np.datetime64 for t in types):
        raise _refusal(spec, _names(types), "date")
    if not all(issubclass(t, _NUMBERS) for t in types):
        raise CellError(f"column {spec.name!r} holds {_names(types)}: an argument must be a string or a real number")
    if all(issubclass(t, (bool, np.bool_)) for t in types):
        numeric = present.astype(bool)
    else:
        whole = all(issubclass(t, (numbers.Integral, np.bool_)) for t in types)
        try:
            numeric = present.astype(np.int64 if whole else np.float64)
        except OverflowError:
            unsigned = whole and present.min() >= 0 and present.max() < 2**64
            try:
                numeric = present.astype(np.uint64 if unsigned else np.float64)
            except OverflowError:
                raise DataError(f"column {spec.name!r} holds an integer that is too large for a float") from None
    if not missing.any():
        return numeric
    full = np.zeros(len(values), dtype=numeric.dtype)
    full[~missing] = numeric
    return _masked(full, missing, spec)


def _names(types: set[type]) -> str:
    return ", ".join(sorted(t.__name__ for t in types if not issubclass(t, str)))


#: Rows of text whose different values are counted before the others are read: a column of identifiers is refused at once.
_FIRST_ROWS = 2**18


def _from_text(values: np.ndarray, spec: ColumnSpec) -> CategoryColumn:
    if len(values) > _FIRST_ROWS and not spec.known:
        _check_levels(pd.unique(values[:_FIRST_ROWS]).tolist(), spec)
    codes, levels = pd.factorize(values, use_na_sentinel=True)
    return _category(codes, list(map(str, levels)), spec)


def _from_pandas(values: pd.Series | pd.Index, spec: ColumnSpec) -> Column:
    dtype = values.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        categories = values.array.categories
        return _category(values.array.codes, categories, spec)
    if isinstance(dtype, pd.ArrowDtype) or (isinstance(dtype, pd.StringDtype) and dtype.storage == "pyarrow"):
        return _from_arrow(pa.chunked_array(_pieces(values.array.__arrow_array__())), spec)
    if isinstance(dtype, pd.StringDtype):
        return _from_text(values.to_numpy(dtype=object), spec)
    if isinstance(dtype, pd.SparseDtype):
        is_number = isinstance(dtype.subtype, np.dtype) and dtype.subtype.kind in "biuf"
        return _from_sparse(column_of_pandas(values.array), spec) if is_number else _from_numpy(np.asarray(values), spec)
    if isinstance(dtype, np.dtype):
        return _from_numpy(values.to_numpy(), spec)
    if hasattr(dtype, "numpy_dtype") and dtype.kind in "biuf":
        mask = np.asarray(values.isna())
        plain = values.to_numpy(dtype=dtype.numpy_dtype, na_value=dtype.type(0))
        return _from_numpy(_masked(plain, mask, spec), spec)
    raise _refusal(spec, str(dtype), "date" if dtype.kind in "Mm" or isinstance(dtype, pd.PeriodDtype) else None)


def _pieces(array: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return array.chunks if isinstance(array, pa.ChunkedArray) else [array]


def _from_arrow(array: pa.Array | pa.ChunkedArray, spec: ColumnSpec) -> Column:
    kind, missing = array.type, array.null_count
    if pa.types.is_null(kind):
        return np.full(len(array), np.nan, dtype=np.float32)
    if pa.types.is_dictionary(kind):
        return _from_arrow_dictionary(array, spec)
    if pa.types.is_string_view(kind):
        array, kind = array.cast(pa.large_string()), pa.large_string()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        if len(array) > _FIRST_ROWS and not spec.known:
            _check_levels(array.slice(0, _FIRST_ROWS).unique().to_pylist(), spec)
        return _from_arrow_dictionary(array.dictionary_encode(), spec)
    if pa.types.is_decimal(kind):
        array, kind = pa.chunked_array(map(nearest_floats, _pieces(array)), pa.float64()), pa.float64()
    if pa.types.is_boolean(kind) and missing:
        array, kind = array.cast(pa.uint8()), pa.uint8()
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        what = "duration" if pa.types.is_duration(kind) else "date" if pa.types.is_temporal(kind) else None
        raise _refusal(spec, str(kind), what)
    pieces = _pieces(array)
    if missing:
        plain = np.concatenate([piece.fill_null(0).to_numpy(zero_copy_only=False) for piece in pieces])
        mask = np.concatenate([piece.is_null().to_numpy(zero_copy_only=False) for piece in pieces])
        return _from_numpy(_masked(plain, mask, spec), spec)
    if len(pieces) == 1:
        return _from_numpy(pieces[0].to_numpy(zero_copy_only=pa.types.is_primitive(kind) and kind != pa.bool_()), spec)
    return _from_numpy(np.asarray(array.to_numpy()), spec)


def nearest_floats(decimals: pa.Array) -> pa.Array:
    """Return decimals as the nearest float64, like ``float(Decimal(…))``; Arrow's own cast errs by a unit in the last place.

    The quotient of two numbers that floats represent exactly is rounded once. Other decimals are converted as text.
    """
    kind = decimals.type
    word = np.dtype(np.int32 if kind.bit_width == 32 else np.int64)
    n_words = kind.bit_width // 8 // word.itemsize
    buffer = decimals.buffers()[1]
    if buffer is None or abs(kind.scale) > _EXACT_POWER:
        return decimals.cast(pa.string()).cast(pa.float64())
    first, n = decimals.offset, len(decimals)
    words = np.frombuffer(buffer, word, (first + n) * n_words).reshape(first + n, n_words)[first:]
    low = words[:, 0].astype(np.int64)  # the others repeat its sign if the integer has at most 64 bits
    exact = (words[:, 1:] == (low >> 63)[:, None]).all(axis=1) & (low > -_EXACT) & (low < _EXACT)
    power = 10.0 ** abs(kind.scale)
    found = low / power if kind.scale > 0 else low * power
    missing = np.asarray(decimals.is_null()) if decimals.null_count else np.zeros(n, bool)
    others = ~exact & ~missing
    if others.any():
        found[others] = decimals.filter(pa.array(others)).cast(pa.string()).cast(pa.float64()).to_numpy()
    return pa.array(found, mask=missing)


def _from_arrow_dictionary(array: pa.Array | pa.ChunkedArray, spec: ColumnSpec) -> CategoryColumn:
    if isinstance(array, pa.ChunkedArray):
        array = array.unify_dictionaries()
    pieces = _pieces(array)
    if not pieces:
        return CategoryColumn(np.empty(0, np.int32), ())
    indices = [piece.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False) for piece in pieces]
    return _category(np.concatenate(indices), pieces[0].dictionary.to_pylist(), spec)


def _levels_of_numbers(values: np.ndarray, spec: ColumnSpec, mask: np.ndarray | None = None) -> CategoryColumn:
    if values.dtype == bool:
        values = values.view(np.uint8)
    if values.dtype.kind == "f" and not spec.known and np.isinf(values).any():
        raise DataError(f"column {spec.name!r} is declared categorical but holds infinite values")
    codes, levels = pd.factorize(values, use_na_sentinel=True)
    if not spec.known and values.dtype.kind != "u":
        codes[values < 0] = -1
    if mask is not None:
        codes[mask] = -1
    return _category(codes, levels, spec)


def _category(codes: np.ndarray, levels: Any, spec: ColumnSpec) -> CategoryColumn:
    """Keep only the categories that occur, as Python values."""
    codes = np.asarray(codes)
    used = np.bincount(codes[codes >= 0], minlength=len(levels)).astype(bool)
    kept = np.flatnonzero(used)
    if len(kept) > MAX_LEVELS and not spec.known:
        _check_levels([levels[i] for i in kept.tolist()], spec)
    if len(kept) < len(levels):
        levels = [levels[i] for i in kept.tolist()] if isinstance(levels, list) else levels[kept]
    plain = levels if isinstance(levels, list) else levels.tolist()
    fresh = np.where(used, np.cumsum(used) - 1, -1)
    hole = [level is None or level != level for level in plain]  # an Arrow dictionary may contain null or NaN
    if any(hole):
        rank = np.where(hole, -1, np.cumsum(np.logical_not(hole)) - 1)
        fresh = apply(rank, fresh)
        plain = [level for level, is_hole in zip(plain, hole, strict=True) if not is_hole]
    return CategoryColumn(apply(fresh, codes), tuple(_level(level, spec) for level in plain))


def _check_levels(levels: Sequence[Any], spec: ColumnSpec) -> None:
    """Raise a DataError if a column has more categories than codes can distinguish."""
    if len(levels) <= MAX_LEVELS:
        return
    if spec.role == "target":
        raise too_many_classes(spec.name, f"more than {MAX_LEVELS:,}", levels)
    raise _not_numeric(spec, levels) if spec.categorical is False else too_many(spec.name, levels)


def _level(level: Any, spec: ColumnSpec) -> Level:
    if isinstance(level, str):
        return str(level)
    if isinstance(level, (bool, int)):
        return level
    if isinstance(level, float):
        if math.isinf(level) and not spec.known:
            raise DataError(f"column {spec.name!r} has an infinite category ({level}): make it missing, or a number of its own")
        return int(level) if level.is_integer() else level
    if isinstance(level, decimal.Decimal):
        return _level(float(level), spec)
    raise DataError(
        f"{_named(spec)} has categories of type {type(level).__name__}; "
        f"use text or numbers, for instance by {_expression(spec)}.astype(str).astype('category')"
    )


def _named(spec: ColumnSpec) -> str:
    """Return the name of a column for messages: the role of one that is no feature, and its name if it has one."""
    if spec.role is None:
        return f"column {spec.name!r}"
    return spec.role if spec.name == spec.role else f"{spec.role} {spec.name!r}"


def _expression(spec: ColumnSpec) -> str:
    """Return how a user of pandas writes a column."""
    return spec.name if spec.name == spec.role else f"df[{spec.name!r}]"


def _refusal(spec: ColumnSpec, dtype: str, what: str | None) -> DataError:
    if spec.kinds:
        return DataError(f"column {spec.name!r} has type {dtype}, but it held {spec.kinds[0]} in training")
    head = f"{_named(spec)} has type {dtype}, which is neither a number nor a category: "
    column = _expression(spec)
    if what == "complex":
        return DataError(head + "Complex data not supported; use the real and imaginary parts as two columns")
    if what == "date":
        use = f"derive numbers from it, for instance {column}.dt.month, or"
        if spec.role is not None:
            kinds = {"target": "class", "group": "group"}
            use = f"{column}.astype(str) makes a {kinds[spec.role]} of each date; or use" if spec.role in kinds else "use"
        return DataError(head + f"{use} the seconds since a start, ({column} - start).dt.total_seconds()")
    if what == "duration":
        return DataError(head + f"use its length in seconds, {column}.dt.total_seconds()")
    return DataError(head + "make it numbers or text, or leave it out")


def read_partition(data: Any, plan: ReadPlan, vectors: Mapping[str, Any] = MappingProxyType({})) -> Chunk:
    """Read the columns of a plan from a table in memory.

    Parameters
    ----------
    data : Frame, or anything that `as_frame` accepts
    plan : ReadPlan
    vectors : mapping
        Roles of these rows that are not columns of the table, by name.

    Returns
    -------
    Chunk
        With its own categories. Columns are views of `data` if their types allow it.

    Raises
    ------
    DataError
        If a column is missing, superfluous or cannot be read.
    """
    (chunk,) = read_slices(data, plan, vectors)
    return chunk


def read_slices(
    data: Any, plan: ReadPlan, vectors: Mapping[str, Any] = MappingProxyType({}), most_rows: int | None = None
) -> Iterator[Chunk]:
    """Read the columns of a plan (see `read_partition`) in equal slices of at most `most_rows` rows, one at a time.

    The first slice contains the roles of all rows.
    """
    frame = data if isinstance(data, Frame) else as_frame(data)
    position = _positions(frame, plan)
    if frame.n_rows and plan.all_names is not None and frame.names != plan.all_names:
        extra = [name for name in frame.names if name not in set(plan.all_names)]
        if extra:
            raise DataError(f"there is a column {extra[0]!r} that other partitions do not have")
    n_slices = 1 if most_rows is None else max(math.ceil(frame.n_rows / most_rows), 1)
    ends = [frame.n_rows * k // n_slices for k in range(n_slices + 1)]
    given = dict(vectors)
    for role, names in plan.roles.items():
        found = [frame.column(_find(position, one)) if frame.n_rows else np.empty(0) for one in columns_of_roles({role: names})]
        given[role] = found[0] if isinstance(names, str) else RoleColumns(found)
    roles = RowRoles.of(
        {role: role_column(given[role], role, plan.roles.get(role), frame.n_rows) for role in ROLES if role in given}
    )
    weight = roles.weight
    for first, last in pairwise(ends):
        columns, matrix = _features(frame if n_slices == 1 else frame.rows(first, last), plan, position)
        if matrix is None and weight is not None and (weight[first:last] == 0).any():
            columns = tuple(_weighted(column, weight[first:last] == 0) for column in columns)
        if matrix is not None and most_rows is not None and matrix.itemsize > 8:  # a slice has at most 8 bytes a value
            matrix = plain(matrix)
            columns = MatrixColumns(matrix)
        yield Chunk(last - first, columns, roles if first == 0 else RowRoles(), matrix)


def _weighted(column: Column, is_zero: np.ndarray) -> Column:
    """Return a column with only the categories of rows of positive weight."""
    if not isinstance(column, CategoryColumn):
        return column
    return without_unused(CategoryColumn(np.where(is_zero, -1, column.codes), column.categories))


def _features(frame: Frame, plan: ReadPlan, position: dict[str, int]) -> tuple[Sequence[Column], np.ndarray | None]:
    if not frame.n_rows:  # an empty partition often has arbitrary dtypes, or no columns
        return tuple(np.empty(0, np.float32) for _ in plan.columns), None
    if not plan.named and len(frame.names) != len(plan.columns):
        raise DataError(f"there are {len(frame.names)} columns, where others have {len(plan.columns)}")
    positions = [_find(position, key) if isinstance(key, str) else key for key in plan.columns]
    matrix = frame.matrix
    if (
        matrix is not None
        and is_numeric(matrix)
        and positions == list(range(matrix.shape[1]))
        and not any(spec.categorical for spec in plan.specs)
    ):
        for j, spec in enumerate(plan.specs):
            if spec.kinds:
                _check_kind(matrix[:, j], spec)
        matrix = matrix.view(np.uint8) if matrix.dtype == bool else matrix
        return MatrixColumns(matrix), matrix
    columns: list[Any] = []
    for j, spec in zip(positions, plan.specs, strict=True):
        column = to_column(frame.column(j), spec)
        if isinstance(column, np.ndarray) and column.dtype == bool:
            column = column.view(np.uint8)
        columns.append(column.as_numbers() if isinstance(column, SparseColumn) else column)
    return tuple(columns), None


def _positions(frame: Frame, plan: ReadPlan) -> dict[str, int]:
    """Return the position of each column by name; raise a DataError if a column of the plan occurs more than once."""
    if plan.named and isinstance(frame.names, Names):
        frame.names.check_once(plan.needed)
    return {name: j for j, name in enumerate(frame.names)}


def check_columns(i: int, data: Any, plan: ReadPlan) -> None:
    """Raise a DataError if partition `i` has rows but lacks a column of the plan."""
    frame = as_frame(data)
    absent = [name for name in plan.needed if name not in set(frame.names)]
    if frame.n_rows and absent:
        raise DataError(f"partition {i}: there is no column {absent[0]!r}")


def _find(position: dict[str, int], name: str) -> int:
    if name not in position:
        raise DataError(f"there is no column {name!r}")
    return position[name]


class RoleColumns(list[Any]):
    """The columns of a role that has several."""


def role_column(values: Any, role: str, name: str | tuple[str, ...] | None, n_rows: int | None) -> Column:
    """Read a role: one value per row, or float64[n_columns, n] of a role that has several columns.

    Parameters
    ----------
    values : array, Series, Arrow array or list, also of shape (n, 1) or (n, n_columns), a dataframe, or RoleColumns
    role : str
        One of `ROLES`.
    name : str, tuple of str, or None
        The name of the column, or of each, for messages.
    n_rows : int or None
        Expected length.
    """
    columns = _columns_of(values, role)
    own_names = names_of_table(values) if name is None and len(columns) > 1 else None
    names = name if isinstance(name, tuple) else own_names or (name,) * len(columns)
    found = [_one_column(one, role, own, n_rows) for one, own in zip(columns, names, strict=True)]
    if len(found) == 1:
        return found[0]
    for number, (one, own) in enumerate(zip(found, names, strict=True)):
        which = f"column {number} of {role}" if own is None else f"{role} {own!r}"
        if isinstance(one, CategoryColumn):
            raise DataError(f"{which} holds text or categories, but of several columns each must hold numbers")
        if one.dtype.kind in "iu" and len(one) and max(int(one.max()), -int(one.min())) >= _EXACT:
            raise DataError(f"{which} holds integers of 2**53 or more, which floats cannot represent exactly")
    return np.stack([np.asarray(one, np.float64) for one in found])


def _one_column(values: Any, role: str, name: str | None, n_rows: int | None) -> Column:
    if n_rows is not None and len(values) != n_rows:
        is_text = hasattr(values, "__iter__") and all(isinstance(one, str) for one in values)
        hint = "; if these are names of columns, give one, or a list of several that the data have" if is_text else ""
        raise DataError(f"{role} has {len(values)} rows, the data have {n_rows}{hint}")
    dtype, is_key = ROLES[role].dtype, ROLES[role].kind == "key"
    # Keys may have any number of categories.
    spec = ColumnSpec(role if name is None else name, False if dtype is not None and not is_key else None, is_key, role=role)
    column = to_column(values, spec)
    if isinstance(column, SparseColumn):
        column = np.asarray(column)
    if is_key:
        return keys_of(column, role if name in (None, role) else f"{role} {name!r}")
    if isinstance(column, CategoryColumn):
        return column
    # Kernels read the arrays of a fit without further copies.
    return np.require(column, dtype, ["C", "A", "W"])


def _columns_of(values: Any, role: str) -> list[Any]:
    """Return the columns of a role of any kind: one, unless the role may have several."""
    if isinstance(values, RoleColumns):
        return values
    if isinstance(values, CategoryColumn):
        return [values]
    values, has_several = collected(values), ROLES[role].has_several
    kind = kind_of(values)
    if kind == "series":
        return [values]
    if kind == "dataframe":
        frame = as_frame(values)
        if not frame.names or (len(frame.names) > 1 and not has_several):
            raise DataError(f"{role} has {len(frame.names)} columns, one is needed")
        return [frame.column(j) for j in range(len(frame.names))]
    if not isinstance(values, (np.ndarray, list, tuple, range)) and not hasattr(values, "__array__"):
        raise InputTypeError(f"{role} must be a column name or one value per row, not {type(values).__name__}")
    if hasattr(values, "tocsr"):
        raise InputTypeError(f"{role} is sparse: pass a dense array")
    try:
        array = values if isinstance(values, np.ndarray) and not isinstance(values, np.matrix) else np.asarray(values)
    except ValueError as error:
        raise DataError(f"{role} is not one value per row: {error}") from None
    if array.dtype.kind == "U" and isinstance(values, (list, tuple)):
        array = np.array(values, dtype=object)  # NumPy converts None and NaN among the values to text
    if array.ndim == 2 and (array.shape[1] == 1 or (has_several and array.shape[1])):
        return list(array.T)
    if array.ndim != 1:
        raise DataError(f"{role} has shape {array.shape}: one value per row is needed")
    return [array]


_MASK = 2**64 - 1


def fingerprint(chunk: Chunk) -> int:
    """Return a checksum of features and roles of a chunk: an integer from 0 to 2**64 - 1."""
    columns = chunk.columns if chunk.matrix is None else (chunk.matrix,)
    found = chunk.n_rows
    for column in (*columns, *(getattr(chunk.roles, role.field) for role in ROLES.values())):
        found = (found * 0x100000001B3 ^ _of_column(column)) & _MASK
    return found


def joined_fingerprint(parts: Sequence[int]) -> int:
    """Return the checksum of a partition, given those of its slices."""
    return parts[0] if len(parts) == 1 else zlib.crc32(repr(list(parts)).encode())


def slice_rows(most_bytes: int | None, n_features: int) -> int | None:
    """Return the rows of a slice of at most so many bytes; a column takes at most 8 bytes a row. None: there is no limit."""
    return None if most_bytes is None else max(most_bytes // (8 * max(n_features, 1)), 1)


def _of_column(column: Column | None) -> int:
    if column is None:
        return 1
    if isinstance(column, SparseColumn):
        parts = _of_array(column.rows.astype(np.int64)), _of_array(column.values), zlib.crc32(repr(column.fill.item()).encode())
        return joined_fingerprint(parts)
    if isinstance(column, CategoryColumn):
        levels = [zlib.crc32(repr(level).encode()) for level in column.categories]
        return _of_array(np.array([*levels, 2**32], np.uint64)[column.codes])  # the last one for code -1 (missing)
    return _of_array(column)


def _of_array(values: np.ndarray) -> int:
    """Return a checksum of values that depends neither on their byte order, nor on how they lie in memory."""
    found, dtype = 0, native(values[:0]).dtype
    buffer: np.ndarray | None = None
    for rows in row_blocks(values, 0, len(values)):
        block = values[rows]
        if block.dtype != dtype or not block.flags.carray or block.ctypes.data % 8:
            if buffer is None:  # see `plain_blocks`
                buffer = np.empty(block.shape, dtype)
            buffer[: len(block)] = block
            block = buffer[: len(block)]
        content = block.reshape(-1).view(np.uint8)
        whole = len(content) - len(content) % 8
        digest = int(checksum(content[:whole].view(np.uint64))) ^ zlib.crc32(content[whole:].tobytes())
        found = (found * 0x100000001B3 ^ digest) & _MASK
    return found
