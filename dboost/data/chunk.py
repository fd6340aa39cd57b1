"""A chunk: the raw columns of one partition, as plain arrays.

Whatever the user's table is made of (pandas, Arrow, polars, numpy, Dask partitions of any of them), the rest of dboost
sees chunks only. A numeric column is a one-dimensional float or integer array, missing values as NaN; a categorical one
is an int32 array of codes, -1 where missing, into the chunk's own local `levels`. Dictionaries of different partitions
may differ; `table.py` unites them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dboost.schema import Level


@dataclass(frozen=True, eq=False)
class CategoryColumn:
    """A categorical column of one chunk: ``levels[codes[i]]``, missing where the code is -1."""

    codes: np.ndarray
    levels: tuple[Level, ...]


Column = np.ndarray | CategoryColumn


@dataclass(frozen=True, eq=False)
class Chunk:
    """The raw values of consecutive rows.

    Attributes
    ----------
    n_rows : int
    columns : tuple of Column
        One per feature, in the order of the table's features.
    target : Column or None
    weight, offset : float64[n_rows] or None
    matrix : ndarray (n_rows, n_features) or None
        Set when all columns are views of one numeric matrix, which is faster to walk by rows.
    """

    n_rows: int
    columns: tuple[Column, ...]
    target: Column | None = None
    weight: np.ndarray | None = None
    offset: np.ndarray | None = None
    matrix: np.ndarray | None = None
