"""A chunk: the raw columns of one partition as plain arrays, and common codes of a column's categories for all chunks.

Tables of every kind are converted to chunks. A numeric column is a one-dimensional float or integer array, with NaN for missing
values. A categorical column is an int32 array of codes, -1 for missing values, into its own categories (`levels`).

Each chunk has its own codes, in any order; `table.py` makes them consistent. A `CategoryIndex` assigns a *provisional* code to
each category when it first arrives, so that a chunk can be stored as integers at once. After the last chunk the categories are
sorted (booleans, then numbers, then text), and a permutation maps provisional to final codes. Final codes do not depend on the
order of the chunks.

An index that starts from the categories of a model is either closed, and unknown categories are missing, or new categories are
numbered after those of the model, sorted among themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dboost.errors import DataError
from dboost.schema import MAX_LEVELS, Level


@dataclass(frozen=True, eq=False)
class CategoryColumn:
    """A categorical column of one chunk with values ``categories[codes[i]]``, missing where the code is -1."""

    codes: np.ndarray
    categories: tuple[Level, ...]

    def __len__(self) -> int:
        return len(self.codes)


Column = np.ndarray | CategoryColumn


@dataclass(frozen=True, eq=False)
class Chunk:
    """The raw values of consecutive rows."""

    n_rows: int
    #: One for each feature, in the order of the table's features.
    columns: Sequence[Column]
    target: Column | None = None
    #: float64[n_rows] or None.
    weight: np.ndarray | None = None
    #: float64[n_rows] or None.
    offset: np.ndarray | None = None
    #: Shape (n_rows, n_features) if all columns are views of one numeric matrix, which is faster to process by rows.
    matrix: np.ndarray | None = None


def sort_key(level: Level) -> tuple[int, Level]:
    """Return a key that orders categories by type, then value; True differs from 1, but 1 equals 1.0."""
    if isinstance(level, bool):
        return 0, level
    return (2 if isinstance(level, str) else 1), level


def too_many(name: str) -> DataError:
    """Return the error for a column with more than `MAX_LEVELS` categories."""
    return DataError(
        f"column {name!r} has more than {MAX_LEVELS:,} levels, too many for a categorical feature: "
        "group the rare ones, or leave the column out"
    )


def apply(table: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Return ``table[codes]`` as int32, with -1 (missing) for -1."""
    return np.append(table, -1).astype(np.int32)[codes]


def without_unused(column: CategoryColumn) -> CategoryColumn:
    """Return a column with only the categories that occur in it."""
    used = np.bincount(column.codes[column.codes >= 0], minlength=len(column.categories)) > 0
    categories = tuple(category for category, occurs in zip(column.categories, used, strict=True) if occurs)
    return CategoryColumn(apply(np.cumsum(used) - 1, column.codes), categories)


class CategoryIndex:
    """The categories of one column and their codes.

    Parameters
    ----------
    name : str
        Name of the column, for messages.
    known : tuple, optional
        Categories of an existing model, in the order of their codes.
    extend_categories : bool
        Whether unknown categories are added to the known ones; default False.
    """

    def __init__(self, name: str, known: tuple[Level, ...] | None = None, *, extend_categories: bool = False) -> None:
        self._name = name
        self._closed = known is not None and not extend_categories
        # Known categories are compared by equality, so that a flag that was read as 1 finds the category True.
        self._known: dict[Level, int] = {category: code for code, category in enumerate(known or ())}
        self._codes: dict[tuple[int, Level], int] = {}
        self._dropped: set[int] = set()

    def __len__(self) -> int:
        return len(self._known) + len(self._codes)

    def translate(self, categories: Iterable[Level]) -> np.ndarray:
        """Return the codes (int32) of categories. Unknown ones are added, or have code -1 if the index is closed."""
        known, codes = self._known, self._codes
        if self._closed:
            return np.array([known.get(category, -1) for category in categories], dtype=np.int32)
        n = len(known)
        found = [
            known[category] if category in known else codes.setdefault(sort_key(category), n + len(codes))
            for category in categories
        ]
        if len(self) > MAX_LEVELS:
            raise too_many(self._name)
        return np.array(found, dtype=np.int32)

    def categories(self) -> tuple[Level, ...]:
        """Return the categories in the order of their codes."""
        return (*self._known, *(category for _, category in self._codes))

    def drop(self, codes: Iterable[int]) -> None:
        """Treat these provisional codes as missing values, except those of known categories."""
        self._dropped = {code for code in codes if code >= len(self._known)}

    def used(self) -> tuple[Level, ...]:
        """Return the categories that were not dropped, in the order of their codes."""
        return tuple(category for code, category in enumerate(self.categories()) if code not in self._dropped)

    def finish(self) -> tuple[tuple[Level, ...], np.ndarray]:
        """Return the known categories and the sorted others, and the final code of each provisional one (int32)."""
        known = tuple(self._known)
        new = list(self.used()[len(known) :])
        if any(isinstance(category, bool) for category in new) and any(sort_key(category)[0] == 1 for category in new):
            new = [int(category) if isinstance(category, bool) else category for category in new]
        final = tuple(sorted(set(new), key=sort_key))
        position = {category: code for code, category in enumerate(final, len(known))}
        codes = np.full(len(self), -1, np.int32)
        codes[[code for code in range(len(self)) if code not in self._dropped]] = [
            *range(len(known)),
            *(position[category] for category in new),
        ]
        return known + final, codes
