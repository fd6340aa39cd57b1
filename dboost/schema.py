"""What a feature is: its name, its kind, and the levels of a categorical one.

The order of `levels` fixes the integer code of each level everywhere (in shards, in trees, in files). Levels are sorted
when a model is first trained and new ones are only ever appended, so codes never change their meaning.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

#: A categorical feature may have this many levels at most: codes are 16-bit, and the last value means "missing".
MAX_LEVELS = 65_535

Level = str | int | float | bool

#: What levels may be, in words.
TEXT, NUMBERS, TRUTH_VALUES = "text", "numbers", "truth values"
_KINDS: dict[type, str] = {str: TEXT, bool: TRUTH_VALUES}


def kinds_of(levels: Iterable[Level]) -> set[str]:
    """What levels are, in words."""
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
        """What a column may hold that is read for this feature, its own kind first; empty where anything is legal.

        Levels 0 and 1 may come as truth values. A numeric feature is not restricted here, nor is one without levels or with
        levels of text and numbers.
        """
        kinds = kinds_of(self.levels or ())
        if len(kinds) != 1:
            return ()
        own = kinds.pop()
        assert self.levels is not None
        return (own, TRUTH_VALUES) if own == NUMBERS and (0 in self.levels or 1 in self.levels) else (own,)
