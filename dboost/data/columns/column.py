"""A column of one chunk: numbers as an array, or categories as codes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dboost.schema import Level


@dataclass(frozen=True, eq=False)
class CategoryColumn:
    """A categorical column of one chunk with values ``categories[codes[i]]``, missing where the code is -1."""

    codes: np.ndarray
    categories: tuple[Level, ...]

    def __len__(self) -> int:
        return len(self.codes)


Column = np.ndarray | CategoryColumn


def apply(table: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Return ``table[codes]`` as int32, a copy, with -1 (missing) for -1."""
    if np.array_equal(table, np.arange(len(table))):  # as of the first partition, most often
        return codes.astype(np.int32)
    return np.append(table, -1).astype(np.int32)[codes]


def without_unused(column: CategoryColumn) -> CategoryColumn:
    """Return a column with only the categories that occur in it."""
    used = np.bincount(column.codes[column.codes >= 0], minlength=len(column.categories)) > 0
    categories = tuple(category for category, occurs in zip(column.categories, used, strict=True) if occurs)
    return CategoryColumn(apply(np.cumsum(used) - 1, column.codes), categories)
