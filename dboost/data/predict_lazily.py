"""Lazy predictions for Dask collections and files.

The model, which may take many megabytes, is one key of the graph that the tasks of all partitions depend on. Only the columns
that the model needs are read.
"""

from __future__ import annotations

import uuid
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd

from dboost.data import dask_collections as lazy
from dboost.data.frame import is_path
from dboost.data.paths import open_path
from dboost.data.predict_io import Predictor, like_input
from dboost.data.read_plan import columns_like


def predict_lazily(data: Any, predictor: Predictor) -> Any:
    """Return a lazy collection of predictions with the partitions of `data`, a Dask frame or array, or a path."""
    if is_path(data):
        data = open_path(data, predictor.features)
    columns = columns_like(*lazy.layout(data), predictor.features, predictor.named)
    task = dask.delayed(predictor, name=f"dboost-model-{uuid.uuid4().hex}", traverse=False)
    if isinstance(data, da.Array):
        return _through_array(lazy.whole_rows(data), task, predictor)
    if predictor.named:
        data = lazy.select(data, tuple(map(str, columns)))
    index = data._meta.index
    meta: Any
    if predictor.names is None:
        meta = pd.Series(np.empty(0, predictor.dtype), index=index[:0], dtype=predictor.dtype)
    else:
        meta = pd.DataFrame(np.empty((0, len(predictor.names)), predictor.dtype), index[:0], list(predictor.names))
    return dd.map_partitions(_predict_frame, data, task, meta=meta, enforce_metadata=False)


def _through_array(data: da.Array, task: Any, predictor: Predictor) -> da.Array:
    if predictor.names is None:
        shape: dict[str, Any] = {"drop_axis": 1}
        meta = np.empty(0, predictor.dtype)
    else:
        shape = {"chunks": (data.chunks[0], (len(predictor.names),))}
        meta = np.empty((0, 0), predictor.dtype)
    return da.map_blocks(_predict_block, data, predictor=task, dtype=predictor.dtype, meta=meta, **shape)


def _predict_block(block: Any, predictor: Predictor) -> np.ndarray:
    return predictor.promised(block)


def _predict_frame(frame: pd.DataFrame, predictor: Predictor) -> Any:
    return like_input(predictor.promised(frame), frame, predictor.names)
