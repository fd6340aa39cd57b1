"""Predictions in the kind of the data: NumPy in, NumPy out; pandas in, pandas out; Dask in, lazy Dask out.

For Dask, the function to apply (a method of a model that may be many megabytes) is one key of the graph, on which the
partitions' tasks depend; it is not repeated in every task. Only the columns that the model needs are asked of the
source.

Predictions that start from an offset, as training did: by the name of a column that lies beside the features, or by values.

A named column travels with the rows, so that works for every kind of table; the values themselves only for tables in memory.

A table in memory as one matrix of floats, the form in which trees are walked by rows.

Categorical columns appear as the codes of the model's levels, NaN where missing or unknown. The matrix is float32
when every value of the source is exact in it (half and single floats, small integers, codes), else float64; an array
that is such a matrix already is returned as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dboost._lazy_import import is_a, pa, pd
from dboost.data.categories import CategoryIndex
from dboost.data.chunk import CategoryColumn, Column
from dboost.data.columns import column_spec
from dboost.data.frame import as_frame, is_lazy, is_path, is_plain, library
from dboost.data.partition import read_partition
from dboost.data.read_plan import ReadPlan, columns_like
from dboost.errors import DataError, DBoostError, InputTypeError
from dboost.schema import Feature


@dataclass(frozen=True, eq=False)
class Predictor:
    """Everything that a partition's task needs besides the partition."""

    function: Callable[[np.ndarray], np.ndarray]
    features: tuple[Feature, ...]
    named: bool
    names: tuple[Any, ...] | None
    dtype: np.dtype

    def values(self, data: Any) -> np.ndarray:
        return np.asarray(self.function(feature_block(data, self.features, self.named)))

    def promised(self, data: Any) -> np.ndarray:
        """The values in the promised type and shape; a partition without rows is not worth a call."""
        if len(data):
            return self.values(data).astype(self.dtype, copy=False)
        return np.empty(0 if self.names is None else (0, len(self.names)), self.dtype)


def predict_through(
    data: Any,
    function: Callable[[np.ndarray], np.ndarray],
    *,
    features: tuple[Feature, ...],
    named: bool,
    names: Sequence[Any] | None = None,
    dtype: npt.DTypeLike = np.float64,
) -> Any:
    """Apply a function of feature blocks to a table of any kind.

    Parameters
    ----------
    data : any table that `open_table` takes
    function : callable
        Takes a block as made by `feature_block`; returns (n,) or (n, k). Blocks of Dask partitions are never empty.
    features : tuple of Feature
    named : bool
        Whether the model was trained on named columns.
    names : sequence, optional
        Names of the k columns of the answer. For Dask their presence says that the answer has columns at all.
    dtype : dtype
        Type of the answer. Dask needs to know it beforehand, and partitions are cast to it.

    Returns
    -------
    ndarray
        For arrays and lists.
    pandas Series or DataFrame
        With the frame's index. For polars, its Series or DataFrame; for Arrow, an Array or Table.
    lazy dask Array
        For Dask arrays; with the same row chunks.
    lazy dask Series or DataFrame
        For Dask frames, with their index and divisions; for paths, with those that reading them gives.

    Raises
    ------
    DataError
        Naming the column that is missing or unreadable. For Dask, missing columns are found at once.
    """
    predictor = Predictor(function, features, named, None if names is None else tuple(names), np.dtype(dtype))
    if is_path(data) or is_lazy(data):
        from dboost.data.predict_lazily import predict_lazily

        return predict_lazily(data, predictor)
    return like_input(predictor.values(data), data, predictor.names)


def like_input(values: np.ndarray, data: Any, names: tuple[Any, ...] | None) -> Any:
    """Dress an array as the kind of table that it was computed from."""
    if values.dtype.kind == "U":
        values = values.astype(object)
    kind = library(data)
    if is_a(data, "pandas", "DataFrame"):
        if values.ndim == 1:
            return pd.Series(values, index=data.index, dtype=values.dtype)
        return pd.DataFrame(values, index=data.index, columns=None if names is None else list(names))
    if kind != "polars" and not is_a(data, "pyarrow", "Table", "RecordBatch"):
        return values
    parts = [values] if values.ndim == 1 else list(values.T)
    labels = [str(j) for j in range(len(parts))] if names is None else list(map(str, names))
    if kind == "polars":
        polars = sys.modules["polars"]
        if values.ndim == 1:
            return polars.Series("", _plain_values(values))
        return polars.DataFrame([polars.Series(name, _plain_values(part)) for name, part in zip(labels, parts, strict=True)])
    if values.ndim == 1:
        return pa.array(_plain_values(values))
    return pa.table(dict(zip(labels, map(_plain_values, parts), strict=True)))


def _plain_values(values: np.ndarray) -> Any:
    """Objects as a list, so that polars and Arrow see what they are."""
    return values.tolist() if values.dtype == object else np.ascontiguousarray(values)


class FromOffset(Protocol):
    """A function of feature blocks and of the rows' offsets (float64[n])."""

    def __call__(self, block: np.ndarray, *, offset: np.ndarray | None = None) -> np.ndarray: ...


def predict_from(
    data: Any,
    offset: Any,
    function: FromOffset,
    *,
    features: tuple[Feature, ...],
    named: bool,
    names: Sequence[Any] | None = None,
    dtype: npt.DTypeLike = np.float64,
) -> Any:
    """As `predict_through`, with the rows' offsets.

    offset : a column's name, or one finite number for each row of a table in memory.

    Raises
    ------
    InputTypeError
        For values beside a Dask collection or a path, and for a name beside an array.
    DataError
        For offsets that are not finite, or not one for each row.
    """
    about: dict[str, Any] = {"features": features, "named": named, "names": names, "dtype": dtype}
    if isinstance(offset, str):
        if not named or offset in {feature.name for feature in features}:
            why = "is one of its features" if named else "is no column of arrays, which the model was trained on"
            raise InputTypeError(f"offset={offset!r} {why}: give one number for each row")
        split: Callable[[np.ndarray], np.ndarray] = partial(_split, function, offset)
        return predict_through(data, split, **about | {"features": (*features, Feature(offset))})
    if is_lazy(data) or is_path(data):
        raise InputTypeError("offset must be the name of a column when predicting from a Dask collection or a path")
    block = feature_block(data, features, named)
    values = np.asarray(offset, np.float64)
    if values.shape != (len(block),):
        raise DataError(f"offset has the shape {values.shape}, but there are {len(block)} rows")
    return like_input(
        np.asarray(function(block, offset=_finite(values, "offset"))), data, None if names is None else tuple(names)
    )


def _split(function: FromOffset, name: str, block: np.ndarray) -> np.ndarray:
    values = _finite(block[:, -1].astype(np.float64), f"offset {name!r}")
    return function(np.ascontiguousarray(block[:, :-1]), offset=values)


def _finite(values: np.ndarray, what: str) -> np.ndarray:
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise DataError(f"{what} is missing or infinite in {len(wrong)} rows, first in row {wrong[0]}")
    return values


_FLOATS = ({np.dtype(np.float32)}, {np.dtype(np.float64)})
#: Bytes of the stretch of rows that is filled column by column before the next one: it should stay in the cache …
_STRETCH_BYTES = 256 * 1024
#: … unless it were so short that Python's loop over the columns took longer than the copying.
_STRETCH_ROWS = 256


def feature_block(data: Any, features: tuple[Feature, ...], named: bool, *, what: str = "predict") -> np.ndarray:
    """The features of a table in memory as a C-contiguous matrix.

    Parameters
    ----------
    data : pandas or polars frame, pyarrow Table, array (n, F), or list of rows
        Frames are read by column name if `named` (other columns are ignored), else by position; arrays by position.
    features : tuple of Feature
    named : bool
        Whether the model was trained on named columns.
    what : str
        What is being done, for messages.

    Returns
    -------
    ndarray (n, F) of float32 or float64

    Raises
    ------
    DataError
        Naming the column that is missing or unreadable, or the number of columns that was expected.
    """
    frame = as_frame(data)
    try:
        columns = columns_like(frame.names, frame.named, features, named)
        if not any(feature.is_categorical for feature in features):  # going through thousands of columns takes long
            if frame.matrix is not None and is_plain(frame.matrix):
                return frame.matrix
            if is_a(data, "pandas", "DataFrame") and columns == frame.names and set(data.dtypes) in _FLOATS:
                return np.ascontiguousarray(data.to_numpy())
        rules = tuple(map(column_spec, features))
        chunk = read_partition(frame, ReadPlan(rules, columns, known=features))
    except DBoostError as error:
        raise type(error)(f"{what}: {error}") from None
    if chunk.matrix is not None:
        return chunk.matrix
    return _fill(chunk.n_rows, [_float_columns(c, feature) for c, feature in zip(chunk.columns, features, strict=True)])


def _float_columns(column: Column, feature: Feature) -> np.ndarray:
    """A column as numbers, categories as float32 codes."""
    if not isinstance(column, CategoryColumn):
        return column
    codes = CategoryIndex(feature.name, feature.levels).translate(column.levels).astype(np.float32)
    codes[codes < 0] = np.nan
    return np.append(codes, np.float32(np.nan))[column.codes]


def _fill(n_rows: int, columns: list[np.ndarray]) -> np.ndarray:
    dtype = np.result_type(np.float32, *(column.dtype for column in columns))
    block = np.empty((n_rows, len(columns)), dtype)
    stretch = max(_STRETCH_ROWS, _STRETCH_BYTES // (len(columns) * dtype.itemsize))
    for start in range(0, n_rows, stretch):
        rows = slice(start, start + stretch)
        for j, column in enumerate(columns):
            block[rows, j] = column[rows]
    return block
