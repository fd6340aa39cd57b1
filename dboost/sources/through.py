"""Predictions in the kind of the data: NumPy in, NumPy out; pandas in, pandas out; Dask in, lazy Dask out.

For Dask, the function to apply (a method of a model that may be many megabytes) is one key of the graph, on which the
partitions' tasks depend; it is not repeated in every task. Only the columns that the model needs are asked of the
source.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dboost.late import is_a, pa, pd
from dboost.schema import Feature
from dboost.sources.blocks import feature_block
from dboost.sources.frame import is_lazy, is_path, library


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
        from dboost.sources.lazy_through import predict_lazily

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
            return polars.Series("", _plain(values))
        return polars.DataFrame([polars.Series(name, _plain(part)) for name, part in zip(labels, parts, strict=True)])
    if values.ndim == 1:
        return pa.array(_plain(values))
    return pa.table(dict(zip(labels, map(_plain, parts), strict=True)))


def _plain(values: np.ndarray) -> Any:
    """Objects as a list, so that polars and Arrow see what they are."""
    return values.tolist() if values.dtype == object else np.ascontiguousarray(values)
