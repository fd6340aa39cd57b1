"""The content of a `Table` as one pandas frame, in which tests compare tables of different kinds and partitions."""

from __future__ import annotations

import numpy as np
import pandas as pd

from dboost.data import CategoryColumn, Column, Table


def plain(column: Column) -> np.ndarray:
    """Return the values of a column: floats, or objects (None where missing) for categories."""
    if not isinstance(column, CategoryColumn):
        return column.astype(np.float64)
    assert column.codes.dtype == np.int32
    assert column.codes.size == 0 or (column.codes.min() >= -1 and column.codes.max() < len(column.categories))
    return np.array([*column.categories, None], dtype=object)[column.codes]


def content(table: Table) -> pd.DataFrame:
    """Return all features, target, weight and offset, chunk by chunk, in order."""
    parts = []
    for i in range(table.n_chunks):
        chunk = table.chunk(i)
        assert chunk.n_rows == table.lengths[i]
        values = {}
        for feature, column in zip(table.features, chunk.columns, strict=True):
            assert isinstance(column, CategoryColumn) == feature.is_categorical
            assert not isinstance(column, CategoryColumn) or column.categories == feature.categories
            values[feature.name] = plain(column)
        roles = chunk.roles
        extra = {"<target>": roles.target, "<weight>": roles.weight, "<offset>": roles.offset}
        values |= {name: plain(column) for name, column in extra.items() if column is not None}
        assert all(len(column) == chunk.n_rows for column in values.values())
        # Series of objects, because pandas would guess another type for text
        parts.append(pd.DataFrame({name: pd.Series(column, dtype=column.dtype) for name, column in values.items()}))
    filled = [part for part in parts if len(part)]
    return pd.concat(filled, ignore_index=True)
