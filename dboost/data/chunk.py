"""A chunk: the raw columns of one partition, as plain arrays.

Tables of every kind are converted to chunks. A numeric column is a one-dimensional float or integer array, with NaN for missing
values. A categorical column is an int32 array of codes, -1 for missing values, into its own categories (`categories`), which
may differ between partitions; `table.py` makes them consistent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dboost.schema import Level


@dataclass(frozen=True, eq=False)
class CategoryColumn:
    """A categorical column of one chunk with values ``categories[codes[i]]``, missing where the code is -1."""

    codes: np.ndarray
    categories: tuple[Level, ...]


Column = np.ndarray | CategoryColumn


@dataclass(frozen=True, eq=False)
class Chunk:
    """The raw values of consecutive rows."""

    n_rows: int
    #: One for each feature, in the order of the table's features.
    columns: tuple[Column, ...]
    target: Column | None = None
    #: float64[n_rows] or None.
    weight: np.ndarray | None = None
    #: float64[n_rows] or None.
    offset: np.ndarray | None = None
    #: Shape (n_rows, n_features) if all columns are views of one numeric matrix, which is faster to process by rows.
    matrix: np.ndarray | None = None
