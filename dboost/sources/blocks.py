"""A table in memory as one matrix of floats, the form in which trees are walked by rows.

Categorical columns appear as the codes of the model's levels, NaN where missing or unknown. The matrix is float32
when every value of the source is exact in it (half and single floats, small integers, codes), else float64; an array
that is such a matrix already is returned as it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dboost.errors import DBoostError
from dboost.late import is_a
from dboost.schema import Feature
from dboost.sources.chunk import CategoryColumn, Column
from dboost.sources.columns import rule_for
from dboost.sources.frame import as_frame, is_plain
from dboost.sources.levels import Dictionary
from dboost.sources.partition import read_partition
from dboost.sources.plan import Plan, columns_like

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
        rules = tuple(map(rule_for, features))
        chunk = read_partition(frame, Plan(rules, columns, known=features))
    except DBoostError as error:
        raise type(error)(f"{what}: {error}") from None
    if chunk.matrix is not None:
        return chunk.matrix
    return _fill(chunk.n_rows, [_numbers(c, feature) for c, feature in zip(chunk.columns, features, strict=True)])


def _numbers(column: Column, feature: Feature) -> np.ndarray:
    """A column as numbers, categories as float32 codes."""
    if not isinstance(column, CategoryColumn):
        return column
    codes = Dictionary(feature.name, feature.levels).translate(column.levels).astype(np.float32)
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
