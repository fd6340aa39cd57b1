"""Prediction on data of any kind: the result has the kind of the input.

`predict_through` applies a function to the feature blocks of a table (`data.kinds.predictor`), if wanted with the offset of
each row, which is given by values or by the name of a column beside the features. A column works for every kind of table,
values only for tables in memory and streams. Predictions for Dask collections and files are lazy, see
`data.tables.dask_collections`; streams are predicted batch by batch, see `data.output.predict_stream`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dboost.data.kinds.named_columns import column_named
from dboost.data.kinds.partition import role_column
from dboost.data.kinds.predictor import Predictor, feature_block
from dboost.data.kinds.table_kinds import as_frame, is_path, is_source, is_stream, names_of_table, predictions_like
from dboost.data.output.predict_stream import predict_stream, stream_to_predict
from dboost.data.sources import Stream
from dboost.data.sources.row_filter import RowFilter
from dboost.display import counted
from dboost.errors import DataError, InputTypeError, warn
from dboost.schema import Feature


def predict_through(
    data: Any,
    function: Callable[..., np.ndarray],
    *,
    features: tuple[Feature, ...],
    named: bool,
    names: Sequence[Any] | None = None,
    dtype: npt.DTypeLike = np.float64,
    offset: Any = None,
) -> Any:
    """Apply a function of feature blocks to a table of any kind.

    Parameters
    ----------
    data : any table that `open_table` takes
    function : callable
        Takes a block as made by `feature_block`, and with an offset also ``offset=``, those of its rows (float64[n]); returns
        an array of shape (n,) or (n, k). It is not called for empty Dask partitions.
    features : tuple of Feature
    named : bool
        Whether the model was trained on named columns.
    names : sequence, optional
        Names of the k columns of the result. For Dask: required if the result has columns.
    dtype : dtype
        Type of the result of each Dask partition, default float64.
    offset : str or array, optional
        The name of a column, or one finite number for each row of a table in memory or of a stream.

    Returns
    -------
    ndarray
        For arrays and lists.
    pandas Series or DataFrame
        With the index of the frame. Other dataframes give a Series or DataFrame of their library, Arrow an Array or Table.
    lazy dask Array
        For Dask arrays, with the same row chunks.
    lazy dask Series or DataFrame
        For Dask frames and paths, with the index and divisions of the frame.
    RecordBatchReader
        For a RecordBatchReader; other streams give what the library gives that reads them.

    Raises
    ------
    DataError
        If a column is missing or cannot be read. For Dask, missing columns are reported at once. If offsets are not finite, or
        their number is not that of the rows.
    InputTypeError
        If values of offsets are given for a Dask collection or a path, or a column name for an array.
    """
    at_end: Callable[[], None] | None = None
    name = None if offset is None else _checked_name(data, offset, features, named)
    if name is not None:
        function, features = partial(_split, function, name), (*features, Feature(name))
    elif offset is not None:
        with_offsets = _OffsetsInOrder(function, data, offset)
        function, at_end = with_offsets, with_offsets.check_end
    predictor = Predictor(function, features, named, None if names is None else tuple(names), np.dtype(dtype))
    if is_source(data):
        from dboost.data.tables.dask_collections import predict_lazily

        return predict_lazily(data, predictor)
    if isinstance(data, Stream) or is_stream(data):
        return predict_stream(data if isinstance(data, Stream) else stream_to_predict(data), predictor, at_end)
    return predictions_like(predictor.values(data), data, predictor.names)


def filtered(data: Any, predicate: Any, features: Sequence[Feature] | None = None) -> Any:
    """Return the rows of a table of any kind that satisfy a predicate (see `row_filter`): of Dask collections, paths and stored
    tables as a lazy Dask frame, of streams as a `Stream`, of others as a frame in memory.

    features : of a model, as of `data.sources.paths.open_path`.
    """
    row_filter = RowFilter(predicate)
    if is_source(data):
        from dboost.data.sources import paths
        from dboost.data.tables import dask_collections

        if is_path(data):
            return paths.open_path(data, features, row_filter=row_filter)
        return dask_collections.filtered(data, row_filter)
    return stream_to_predict(data, row_filter) if is_stream(data) else row_filter.rows_of(data)


def offset_of_rows(data: Any, offset: Any, of_model: str | bool | None) -> Any:
    """Return the offset that rows have: what the caller gives (False: none), else the column that the model was trained with,
    if the rows have it; None without. If they do not have it, or it has no name, warn.

    of_model : `Ensemble.offset`.
    """
    if offset is False:
        return None
    if offset is not None or of_model is None or data is None:
        return offset
    if isinstance(of_model, str) and of_model in names_of_rows(data):
        return of_model
    warn_of_missing_offset(of_model)
    return None


def warn_of_missing_offset(of_model: str | bool) -> None:
    """Warn that rows do not have the offset that the model was trained with."""
    reason = "an offset, and these rows have none"
    if isinstance(of_model, str):
        reason = f"offset={of_model!r}, a column that these rows do not have"
    warn(
        f"the model was trained with {reason}, so their raw scores start at 0: "
        "give offset=…, or offset=False for this result without a warning"
    )


def names_of_rows(data: Any) -> Collection[str]:
    """Return the names of a table's columns; nothing for arrays."""
    names = names_of_table(data)
    if names is not None:
        return names
    if isinstance(data, Stream):
        return data.names
    if is_path(data):
        from dboost.data.sources.paths import open_source

        return open_source(data).names
    if not is_stream(data):
        return ()
    names = getattr(getattr(data, "schema", None), "names", None)
    return stream_to_predict(data).names if names is None else names


def offsets_of(data: Any, offset: Any, features: Sequence[Feature], named: bool) -> np.ndarray | None:
    """Return the offsets of a table in memory, float64[n]; None without. Parameters and errors as of `predict_through`."""
    if offset is None:
        return None
    name = _checked_name(data, offset, features, named)
    if name is None:
        return _OffsetsInOrder(lambda block: block, data, offset).values
    return _finite(feature_block(data, (Feature(name),), True)[:, 0].astype(np.float64), f"offset {name!r}")


def _checked_name(data: Any, offset: Any, features: Sequence[Feature], named: bool) -> str | None:
    """Return the name of the column of offsets; None for values."""
    name = column_named(offset, data)
    if name is not None and (not named or name in {feature.name for feature in features}):
        why = "is one of its features" if named else "is no column of arrays, which the model was trained on"
        raise InputTypeError(f"offset={offset!r} {why}: give one number for each row")
    return name


class _OffsetsInOrder:
    """A function of the feature blocks of a stream or table, which arrive in order, with the offsets of all rows."""

    def __init__(self, function: Callable[..., np.ndarray], data: Any, offset: Any) -> None:
        if is_source(data):
            raise InputTypeError("offset must be the name of a column when predicting from a Dask collection or a path")
        values = role_column(offset, "offset", None, None)
        assert isinstance(values, np.ndarray)
        if not isinstance(data, Stream) and not is_stream(data) and values.shape != (n_rows := as_frame(data).n_rows,):
            raise DataError(f"offset has the shape {values.shape}, but there are {n_rows} rows")
        self._function, self.values, self._first = function, _finite(values, "offset"), 0

    def __call__(self, block: np.ndarray) -> np.ndarray:
        offsets = self.values[self._first : self._first + len(block)]
        self._first += len(block)
        if len(offsets) < len(block):
            raise DataError(f"offset has the shape {self.values.shape}, but there are at least {self._first} rows")
        return self._function(block, offset=offsets)

    def check_end(self) -> None:
        """Raise a DataError if offsets are left."""
        if self._first < len(self.values):
            raise DataError(f"offset has the shape {self.values.shape}, but there are {self._first} rows")


def _split(function: Callable[..., np.ndarray], name: str, block: np.ndarray) -> np.ndarray:
    values = _finite(block[:, -1].astype(np.float64), f"offset {name!r}")
    return function(np.ascontiguousarray(block[:, :-1]), offset=values)


def _finite(values: np.ndarray, subject: str) -> np.ndarray:
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise DataError(f"{subject} is missing or infinite in {counted(len(wrong), 'row')}, first in row {wrong[0]}")
    return values
