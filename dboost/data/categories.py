"""One numbering of a column's levels for all chunks.

Each chunk numbers the levels that it happens to meet, in any order. A `CategoryIndex` gives every level a *provisional*
code when it first arrives, so that a chunk can be stored as plain integers at once and its own list of levels
forgotten. When the last chunk has arrived the levels are sorted (truth values, then numbers, then text), and one
permutation turns provisional codes into final ones. The final codes do not depend on the order in which the chunks
came.

A dictionary that starts from a model's levels is closed, a level that the model does not know being missing; or it grows, and
new levels are numbered after the model's, sorted among themselves.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dboost.errors import DataError
from dboost.schema import MAX_LEVELS, Level


def sort_key(level: Level) -> tuple[int, Level]:
    """Orders levels by type, then value; tells True from 1 while 1 equals 1.0."""
    if isinstance(level, bool):
        return 0, level
    return (2 if isinstance(level, str) else 1), level


def too_many(name: str) -> DataError:
    """The error for a column with more than `MAX_LEVELS` levels."""
    return DataError(
        f"column {name!r} has more than {MAX_LEVELS:,} levels, too many for a categorical feature: "
        "group the rare ones, or leave the column out"
    )


def apply(table: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """``table[codes]`` as int32, where a code of -1 (missing) stays -1."""
    return np.append(table, -1).astype(np.int32)[codes]


class CategoryIndex:
    """The levels of one column and their codes.

    Parameters
    ----------
    name : str
        For messages.
    known : tuple of levels, optional
        Levels of an existing model, in the order of their codes.
    extend_categories : bool
        Whether others are added to the known ones.
    """

    def __init__(self, name: str, known: tuple[Level, ...] | None = None, *, extend_categories: bool = False) -> None:
        self._name = name
        self._closed = known is not None and not extend_categories
        # Known levels are asked for by plain equality, so that a flag read as 1 still finds the level True.
        self._known: dict[Level, int] = {level: code for code, level in enumerate(known or ())}
        self._codes: dict[tuple[int, Level], int] = {}
        self._silent: set[int] = set()

    def __len__(self) -> int:
        return len(self._known) + len(self._codes)

    def translate(self, levels: Iterable[Level]) -> np.ndarray:
        """Codes (int32) of levels, which are added unless the dictionary is closed (then -1)."""
        known, codes = self._known, self._codes
        if self._closed:
            return np.array([known.get(level, -1) for level in levels], dtype=np.int32)
        n = len(known)
        found = [known[level] if level in known else codes.setdefault(sort_key(level), n + len(codes)) for level in levels]
        if len(self) > MAX_LEVELS:
            raise too_many(self._name)
        return np.array(found, dtype=np.int32)

    def levels(self) -> tuple[Level, ...]:
        """The levels in the order of their codes."""
        return (*self._known, *(level for _, level in self._codes))

    def silence(self, codes: Iterable[int]) -> None:
        """Take these provisional codes for missing values: only rows of weight zero have them. Known levels stay."""
        self._silent = {code for code in codes if code >= len(self._known)}

    def counted(self) -> tuple[Level, ...]:
        """The levels in the order of their codes, without those that were silenced."""
        return tuple(level for code, level in enumerate(self.levels()) if code not in self._silent)

    def finish(self) -> tuple[tuple[Level, ...], np.ndarray]:
        """The known levels and, sorted, the others; for each provisional code the final one (int32)."""
        known = tuple(self._known)
        levels = list(self.counted()[len(known) :])
        if any(isinstance(level, bool) for level in levels) and any(sort_key(level)[0] == 1 for level in levels):
            levels = [int(level) if isinstance(level, bool) else level for level in levels]
        final = tuple(sorted(set(levels), key=sort_key))
        position = {level: code for code, level in enumerate(final, len(known))}
        codes = np.full(len(self), -1, np.int32)
        codes[[code for code in range(len(self)) if code not in self._silent]] = [
            *range(len(known)),
            *(position[level] for level in levels),
        ]
        return known + final, codes
