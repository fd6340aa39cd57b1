"""One numbering of a column's levels for all chunks.

Each chunk numbers the levels that it happens to meet, in any order. A `Dictionary` gives every level a *provisional*
code when it first arrives, so that a chunk can be stored as plain integers at once and its own list of levels
forgotten. When the last chunk has arrived the levels are sorted (truth values, then numbers, then text), and one
permutation turns provisional codes into final ones. The final codes do not depend on the order in which the chunks
came.

A dictionary that starts from a model's levels is closed: a level that the model does not know is missing.
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


class Dictionary:
    """The levels of one column and their codes.

    Parameters
    ----------
    name : str
        For messages.
    known : tuple of levels, optional
        Levels of an existing model, in the order of their codes. No others are added then.
    """

    def __init__(self, name: str, known: tuple[Level, ...] | None = None) -> None:
        self._name = name
        self._closed = known is not None
        # A closed dictionary is asked by plain equality, so that a flag read as 1 still finds the level True.
        self._codes: dict = {} if known is None else {level: code for code, level in enumerate(known)}

    def __len__(self) -> int:
        return len(self._codes)

    def translate(self, levels: Iterable[Level]) -> np.ndarray:
        """Codes (int32) of levels, which are added unless the dictionary is closed (then -1)."""
        if self._closed:
            return np.array([self._codes.get(level, -1) for level in levels], dtype=np.int32)
        codes = self._codes
        found = [codes.setdefault(sort_key(level), len(codes)) for level in levels]
        if len(codes) > MAX_LEVELS:
            raise too_many(self._name)
        return np.array(found, dtype=np.int32)

    def levels(self) -> tuple[Level, ...]:
        """The levels in the order of their codes."""
        return tuple(self._codes) if self._closed else tuple(level for _, level in self._codes)

    def finish(self) -> tuple[tuple[Level, ...], np.ndarray]:
        """The sorted levels, and for each provisional code the final one (int32)."""
        if self._closed:
            return tuple(self._codes), np.arange(len(self._codes), dtype=np.int32)
        levels = [level for _, level in self._codes]
        if any(isinstance(level, bool) for level in levels) and any(sort_key(level)[0] == 1 for level in levels):
            levels = [int(level) if isinstance(level, bool) else level for level in levels]
        final = tuple(sorted(set(levels), key=sort_key))
        position = {level: code for code, level in enumerate(final)}
        return final, np.array([position[level] for level in levels], dtype=np.int32)
