"""Predictions as an object of the library of the table that they were computed from."""

from __future__ import annotations

from typing import Any

import numpy as np

from dboost._lazy_import import nw, pa, pd

#: Name of a series of predictions.
NAME = "prediction"


def predictions_like_pandas(values: np.ndarray, data: Any, names: tuple[Any, ...] | None) -> Any:
    """Return a Series or DataFrame with the index of the table."""
    if values.ndim == 1:
        return pd.Series(values, index=data.index, dtype=values.dtype, name=NAME)
    return pd.DataFrame(values, index=data.index, columns=None if names is None else list(names))


def predictions_like_arrow(values: np.ndarray, data: Any, names: tuple[Any, ...] | None) -> Any:
    """Return an array or a table of pyarrow."""
    if values.ndim == 1:
        return pa.array(_plain_values(values))
    # Of the table only the library matters; narwhals refuses names that occur more than once.
    return predictions_like_narwhals(values, data.select([]), names)


def predictions_like_narwhals(values: np.ndarray, data: Any, names: tuple[Any, ...] | None) -> Any:
    """Return a series or a dataframe of any library that narwhals knows."""
    table = nw.from_native(data)
    result: Any
    if values.ndim == 1:
        result = nw.new_series(NAME, _plain_values(values), backend=table.implementation)
    else:
        labels = range(values.shape[1]) if names is None else names
        columns = {str(label): _plain_values(part) for label, part in zip(labels, values.T, strict=True)}
        result = nw.from_dict(columns, backend=table.implementation)
    index = nw.maybe_get_index(table)  # of modin and cuDF
    return (result if index is None else nw.maybe_set_index(result, index=index)).to_native()


def _plain_values(values: np.ndarray) -> Any:
    """Return objects as a list, whose type every library infers."""
    return values.tolist() if values.dtype == object else np.ascontiguousarray(values)
