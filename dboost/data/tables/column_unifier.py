"""The kind and the categories of a column over all partitions.

Two partitions are consistent in a column if both contain numbers or both contain categories; otherwise the reader raises an
error at once. A column without any value is consistent with both, because its dtype is arbitrary (an empty text column of a CSV
block is read as floats).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from dboost.data.columns.chunk import CategoryIndex
from dboost.data.columns.column import CategoryColumn, Column, apply
from dboost.data.columns.sparse import SparseColumn
from dboost.errors import ColumnKindsError, DataError
from dboost.schema import Feature, Level, kinds_of


class ColumnUnifier:
    """The kind and the categories of one column over all partitions."""

    def __init__(
        self, name: str, known: tuple[Level, ...] | None = None, extend_categories: bool = False, is_target: bool = False
    ) -> None:
        self._name, self._is_target = name, is_target
        #: Whether the column is categorical, and a partition that determines it; None while all values are missing.
        self.seen: tuple[bool, int] | None = None
        #: The first partition with categories of each kind.
        self.category_kinds: dict[str, int] = {}
        self._known, self._extends = known, extend_categories
        self._lock = threading.Lock()

    @cached_property
    def categories(self) -> CategoryIndex:
        return CategoryIndex(self._name, self._known, extend_categories=self._extends, is_target=self._is_target)

    @property
    def is_categorical(self) -> bool:
        """Whether categories are used: those of a model, or of a partition."""
        has_any = self._known is not None or (self.seen is not None and self.seen[0])
        return has_any and bool(self.categories.used())

    def add(self, column: Column, i: int) -> np.ndarray:
        """Return numbers unchanged, categories as provisional codes. Thread-safe."""
        categorical = isinstance(column, CategoryColumn)
        empty = not column.categories if isinstance(column, CategoryColumn) else _all_missing(column)
        with self._lock:
            if not empty:
                self.seen = self.seen or (categorical, i)
                if self.seen[0] != categorical:
                    raise disagree(self._name, self.seen, (categorical, i))
            if not isinstance(column, CategoryColumn):
                return column
            codes = self.categories.translate(column.categories)
            for kind in kinds_of(column.categories):
                self.category_kinds[kind] = min(i, self.category_kinds.get(kind, i))
        return apply(codes, column.codes)


def disagree(name: str, first: tuple[bool, int], second: tuple[bool, int]) -> DataError:
    """Return the error for a column that is categorical in one partition only.

    first, second : (whether it is categorical, partition number).
    """
    (_, numbers), (_, text) = sorted((first, second))
    if numbers == text:
        return ColumnKindsError(f"column {name!r} holds numbers in some rows of partition {numbers}, but text in others")
    return ColumnKindsError(f"column {name!r} holds numbers in partition {numbers}, but text or categories in partition {text}")


def mixes_kinds(features: Sequence[Feature]) -> bool:
    """Return whether a feature has categories that are text and others that are not."""
    return any(len({isinstance(level, str) for level in feature.categories}) == 2 for feature in features if feature.categories)


def _all_missing(values: np.ndarray | SparseColumn) -> bool:
    if isinstance(values, SparseColumn):
        return values.is_all_missing
    if not len(values):
        return True
    return values.dtype.kind == "f" and bool(np.isnan(values[0])) and bool(np.isnan(values).all())
