"""Predictions that start from an offset, as training did: by the name of a column that lies beside the features, or by values.

A named column travels with the rows, so that works for every kind of table; the values themselves only for tables in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dboost.errors import DataError, InputTypeError
from dboost.schema import Feature
from dboost.sources.blocks import feature_block
from dboost.sources.frame import is_lazy, is_path
from dboost.sources.through import like_input, predict_through


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
