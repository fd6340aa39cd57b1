"""Predictions for a table in memory: the table as one matrix, and a function of it.

`feature_block` turns a table into one matrix of floats, which trees are evaluated on. Categorical columns become the codes of
the model's categories, NaN where missing or unknown. The matrix is float32 if that represents every value of the source exactly
(half and single floats, small integers, codes), otherwise float64; an array of such floats is returned without a copy, whatever
its memory order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dboost._lazy_import import is_a, pd
from dboost.data.columns.chunk import CategoryIndex, is_numeric, plain
from dboost.data.columns.column import CategoryColumn, Column
from dboost.data.columns.conversion import column_spec
from dboost.data.columns.read_plan import ReadPlan, columns_like
from dboost.data.columns.sparse import SparseColumn, is_sparse_matrix
from dboost.data.kinds.frame import Frame
from dboost.data.kinds.partition import read_slices
from dboost.data.kinds.table_kinds import as_frame
from dboost.errors import DBoostError
from dboost.schema import Feature
from dboost.tuning import tuning


@dataclass(frozen=True, eq=False)
class Predictor:
    """A function of feature blocks, and what its results look like."""

    function: Callable[[np.ndarray], np.ndarray]
    features: tuple[Feature, ...]
    #: Whether the model was trained on named columns.
    named: bool
    #: Names of the columns of the result; None if it has one dimension.
    names: tuple[Any, ...] | None
    dtype: np.dtype

    def values(self, data: Any) -> np.ndarray:
        """Apply the function to a table in memory: as a whole, or block by block if it is sparse."""
        return np.asarray(by_blocks(lambda block, _: self.function(block), data, self.features, self.named))

    def promised(self, data: Any) -> np.ndarray:
        """Apply the function to a partition; the result has the declared dtype and shape also if there are no rows."""
        return self.values(data).astype(self.dtype, copy=False) if data.shape[0] else self.of_no_rows

    @property
    def of_no_rows(self) -> np.ndarray:
        """The result for no rows."""
        return np.empty(0 if self.names is None else (0, len(self.names)), self.dtype)


def is_sparse(data: Any) -> bool:
    """Return whether a table in memory has sparse columns."""
    if is_a(data, "pandas", "DataFrame"):
        return any(isinstance(dtype, pd.SparseDtype) for dtype in data.dtypes)
    return is_sparse_matrix(data)


class FeatureBlocks:
    """The feature blocks of a table in memory: one of all its rows, or of a sparse table some of at most 8 MiB.

    Iterating yields pairs (rows, block), where rows is a slice. It may be repeated: what is kept between is the block of all
    rows, or the sparse columns.

    Parameters
    ----------
    data, features, named, subject
        As of `feature_block`.
    """

    def __init__(self, data: Any, features: tuple[Feature, ...], named: bool, *, subject: str = "predict") -> None:
        self._features, self._named, self._subject = features, named, subject
        self.are_of_sparse = is_sparse(data)
        self._table: Any = as_frame(data) if self.are_of_sparse else feature_block(data, features, named, subject=subject)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._table.n_rows if self.are_of_sparse else len(self._table)

    def __iter__(self) -> Iterator[tuple[slice, np.ndarray]]:
        if not self.are_of_sparse:
            yield slice(0, len(self)), self._table
            return
        n = max(tuning().dense_block_bytes // (8 * max(len(self._features), 1)), 1)
        for first in range(0, max(len(self), 1), n):
            last = min(first + n, len(self))
            rows = self._table.rows(first, last)
            yield slice(first, last), feature_block(rows, self._features, self._named, subject=self._subject)


def by_blocks(function: Callable[[np.ndarray, slice], Any], data: Any, features: tuple[Feature, ...], named: bool) -> Any:
    """Return ``function(block, rows)`` of the `FeatureBlocks` of a table in memory, joined."""
    results = [function(block, rows) for rows, block in FeatureBlocks(data, features, named)]
    return results[0] if len(results) == 1 else np.concatenate(results)


_FLOATS = ({np.dtype(np.float32)}, {np.dtype(np.float64)})
#: Rows are copied into a block in batches of this many bytes, which fit the cache.
_BATCH_BYTES = 256 * 1024
#: Minimum rows of a batch: for fewer, Python's loop over the columns takes longer than copying.
_BATCH_ROWS = 256


def feature_block(data: Any, features: tuple[Feature, ...], named: bool, *, subject: str = "predict") -> np.ndarray:
    """Return the features of a table in memory as a matrix.

    Parameters
    ----------
    data : dataframe of any library, pyarrow Table, array (n, F), or list of rows
        Frames are read by column name if `named` (other columns are ignored), otherwise by position; arrays by position.
    features : tuple of Feature
    named : bool
        Whether the model was trained on named columns.
    subject : str
        The operation, for messages; default "predict".

    Returns
    -------
    ndarray (n, F) of float32 or float64
        In native byte order, but otherwise in any memory order, possibly read-only or not aligned: see
        `data.columns.chunk.plain`.

    Raises
    ------
    DataError
        If a column is missing or cannot be read, or the number of columns is wrong.
    """
    frame = data if isinstance(data, Frame) else as_frame(data)
    try:
        columns = columns_like(frame.names, frame.named, features, named)
        if not any(feature.is_categorical for feature in features):  # fast paths: a loop over thousands of columns is slow
            if frame.matrix is not None and frame.matrix.dtype in (np.float32, np.float64) and is_numeric(frame.matrix):
                return frame.matrix
            if is_a(data, "pandas", "DataFrame") and columns == frame.names and set(data.dtypes) in _FLOATS:
                return data.to_numpy()
        specs = tuple(map(column_spec, features))
        (chunk,) = read_slices(frame, ReadPlan(specs, columns, known=features))
    except DBoostError as error:
        raise type(error)(f"{subject}: {error}") from None
    if chunk.matrix is not None:
        return plain(chunk.matrix)
    return _fill(chunk.n_rows, [_float_columns(c, feature) for c, feature in zip(chunk.columns, features, strict=True)])


def _float_columns(column: Column, feature: Feature) -> np.ndarray:
    """Return a column as numbers, categories as float32 codes."""
    if isinstance(column, SparseColumn):
        return column.to_array()
    if not isinstance(column, CategoryColumn):
        return column
    codes = CategoryIndex(feature.name, feature.categories).translate(column.categories).astype(np.float32)
    codes[codes < 0] = np.nan
    return np.append(codes, np.float32(np.nan))[column.codes]


def _fill(n_rows: int, columns: list[np.ndarray]) -> np.ndarray:
    dtype = np.result_type(np.float32, *(column.dtype for column in columns))
    block = np.empty((n_rows, len(columns)), dtype)
    batch = max(_BATCH_ROWS, _BATCH_BYTES // (len(columns) * dtype.itemsize))
    for start in range(0, n_rows, batch):
        rows = slice(start, start + batch)
        for j, column in enumerate(columns):
            block[rows, j] = column[rows]
    return block
