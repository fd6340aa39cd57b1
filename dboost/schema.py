"""`Feature`: name and kind of a column, with the levels of a categorical one.

The position of a level in `levels` is its integer code everywhere: in shards, trees and files. Levels are sorted in the first
fit, and later fits append new ones, so codes never change their meaning.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

#: Largest number of levels of a feature: codes have 16 bits, and the last value means "missing".
MAX_LEVELS = 65_535

Level = str | int | float | bool

#: Kinds of levels, for messages.
TEXT, NUMBERS, TRUTH_VALUES = "text", "numbers", "truth values"
_KINDS: dict[type, str] = {str: TEXT, bool: TRUTH_VALUES}


def kinds_of(levels: Iterable[Level]) -> set[str]:
    """Return the kinds of levels."""
    return {_KINDS.get(kind, NUMBERS) for kind in set(map(type, levels))}


@dataclass(frozen=True)
class Feature:
    """Name and kind of one column; `levels` is None for a numeric one."""

    name: str
    levels: tuple[Level, ...] | None = None

    @property
    def is_categorical(self) -> bool:
        return self.levels is not None

    @property
    def legal_kinds(self) -> tuple[str, ...]:
        """Kinds of values that a column for this feature may have, the feature's own first; empty without a restriction.

        Truth values are accepted for the levels 0 and 1. Numeric features, features without levels and features with levels
        of text and numbers are not restricted here.
        """
        kinds = kinds_of(self.levels or ())
        if len(kinds) != 1:
            return ()
        own = kinds.pop()
        assert self.levels is not None
        return (own, TRUTH_VALUES) if own == NUMBERS and (0 in self.levels or 1 in self.levels) else (own,)
