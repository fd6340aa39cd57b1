"""Columns of sparse tables: the values that differ from a common one, and their rows.

A sparse matrix of scipy, and a `Sparse` column of pandas, become `SparseColumn` objects. They are columns of numbers like
arrays, but only what is selected becomes dense: ``column[rows]`` is an array. So rows are binned column by column, and
predicted block by block. A matrix is converted by columns (CSC) once for each partition.

An absent entry of a matrix is zero, as in scikit-learn and LightGBM, and in a column of pandas its `fill_value`. NaN is a
missing value; entries that occur twice are added up, as by `toarray`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dboost.errors import DataError


@dataclass(frozen=True, eq=False)
class SparseColumn:
    """A column of numbers with `values` in some `rows` (ascending) and `fill` in the others."""

    rows: np.ndarray
    values: np.ndarray
    n_rows: int
    fill: Any

    def __len__(self) -> int:
        return self.n_rows

    @property
    def dtype(self) -> np.dtype:
        """Of `values` and `fill`."""
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self.values.nbytes

    @property
    def is_all_missing(self) -> bool:
        """Whether there is no value but NaN."""
        if self.dtype.kind != "f":
            return not self.n_rows
        return (len(self.rows) == self.n_rows or bool(np.isnan(self.fill))) and bool(np.isnan(self.values).all())

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return the values of a range of rows, or of ascending rows, as an array."""
        return self.some(rows).to_array()

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.to_array().astype(dtype, copy=False)

    def to_array(self) -> np.ndarray:
        """Return all values."""
        dense = np.full(self.n_rows, self.fill, self.dtype)
        dense[self.rows] = self.values
        return dense

    def some(self, rows: slice | np.ndarray) -> SparseColumn:
        """Return a range of rows, or ascending rows."""
        if isinstance(rows, slice):
            first, last, step = rows.indices(self.n_rows)
            if step == 1:
                low, high = np.searchsorted(self.rows, (first, last))
                return SparseColumn(self.rows[low:high] - first, self.values[low:high], max(last - first, 0), self.fill)
            rows = np.arange(first, last, step)
        if rows.dtype == bool:
            rows = np.flatnonzero(rows)
        if not len(self.rows):
            return SparseColumn(self.rows, self.values, len(rows), self.fill)
        at = np.minimum(np.searchsorted(self.rows, rows), len(self.rows) - 1)
        positions = np.flatnonzero(self.rows[at] == rows)
        return SparseColumn(positions, self.values[at[positions]], len(rows), self.fill)

    def as_numbers(self) -> SparseColumn:
        """Return truth values as 0 and 1, other columns unchanged."""
        if self.dtype != bool:
            return self
        return SparseColumn(self.rows, self.values.view(np.uint8), self.n_rows, np.uint8(self.fill))


def joined_sparse(parts: Sequence[SparseColumn]) -> SparseColumn:
    """Concatenate parts of a column with the same `fill`."""
    starts = np.cumsum([0, *(part.n_rows for part in parts)])
    rows = [part.rows + start for part, start in zip(parts, starts, strict=False)]
    return SparseColumn(np.concatenate(rows), np.concatenate([part.values for part in parts]), int(starts[-1]), parts[0].fill)


def has_sparse(columns: Sequence[Any]) -> bool:
    """Return whether columns of a chunk are sparse; those of other sequences than tuples never are."""
    return isinstance(columns, tuple) and any(isinstance(column, SparseColumn) for column in columns)


def is_sparse_matrix(data: Any) -> bool:
    """Return whether an object is a sparse matrix or array of scipy, without importing scipy."""
    return hasattr(data, "tocsc") and hasattr(data, "nnz") and len(getattr(data, "shape", ())) == 2


def memory_of_machine() -> int:
    """Return the bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else sys.maxsize


def check_codes(n_rows: int, n_features: int) -> None:
    """Raise a DataError if the bin codes of a sparse matrix, a byte a value, do not fit in the memory of this machine."""
    size, most = n_rows * n_features, memory_of_machine()
    if size > most:
        raise DataError(
            f"the codes of {n_rows:,} rows × {n_features:,} sparse columns take {size / 2**30:,.1f} GiB, a byte a value, "
            f"and this machine has {most / 2**30:,.1f} GiB: give memory_limit, which streams them from files, or fewer "
            "columns, such as a column of categories in place of its dummies"
        )


def columns_of_matrix(matrix: Any) -> list[SparseColumn]:
    """Return the columns of a sparse matrix of any format; the matrix is not changed."""
    by_columns = matrix.tocsc()
    if not by_columns.has_canonical_format:
        # Rows in order, and entries of equal position in the order of `toarray`: sorting is not stable, converting is.
        by_columns = matrix.tocsr().tocsc() if matrix.format != "csc" else by_columns.tocsr().tocsc()
        by_columns.sum_duplicates()
    rows, values, ends = by_columns.indices, by_columns.data, by_columns.indptr
    fill, n_rows = values.dtype.type(0), matrix.shape[0]
    return [
        SparseColumn(rows[first:last], values[first:last], n_rows, fill)
        for first, last in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
    ]


def column_of_pandas(array: Any) -> SparseColumn:
    """Return a `pandas.arrays.SparseArray` of numbers or truth values."""
    values = np.asarray(array.sp_values)
    rows = np.asarray(array.sp_index.to_int_index().indices)
    return SparseColumn(rows, values, len(array), values.dtype.type(array.fill_value))


def packed(columns: Sequence[Any]) -> tuple[list[np.ndarray], tuple[Any, ...]]:
    """Return columns as few arrays, to be stored, and what `unpacked` needs.

    columns : arrays and SparseColumns of the same rows. Values of several types become those of a common one.
    """
    sparse = [column for column in columns if isinstance(column, SparseColumn)]
    ends = np.cumsum([0, *(len(column.rows) for column in sparse)])
    values, rows = np.concatenate([column.values for column in sparse]), np.concatenate([column.rows for column in sparse])
    fills = tuple(column.fill if isinstance(column, SparseColumn) else None for column in columns)
    dense = [column for column in columns if not isinstance(column, SparseColumn)]
    return [rows, values, ends, *dense], fills


def unpacked(arrays: Sequence[Any], fills: tuple[Any, ...], n_rows: int) -> tuple[Any, ...]:
    """Return columns from what `packed` returned."""
    rows, values, ends, *dense = arrays
    bounds, rest = iter(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)), iter(dense)
    columns: list[Any] = []
    for fill in fills:
        if fill is None:
            columns.append(next(rest))
            continue
        first, last = next(bounds)
        columns.append(SparseColumn(rows[first:last], values[first:last], n_rows, values.dtype.type(fill)))
    return tuple(columns)
