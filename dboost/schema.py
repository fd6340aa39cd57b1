"""What a feature is: its name, its kind, and the levels of a categorical one.

The order of `levels` fixes the integer code of each level everywhere (in shards, in trees, in files). Levels are sorted
when a model is first trained and new ones are only ever appended, so codes never change their meaning.
"""

from __future__ import annotations

from dataclasses import dataclass

#: A categorical feature may have this many levels at most: codes are 16-bit, and the last value means "missing".
MAX_LEVELS = 65_535

Level = str | int | float | bool


@dataclass(frozen=True)
class Feature:
    """Name and kind of one column; `levels` is None for a numeric one."""

    name: str
    levels: tuple[Level, ...] | None = None

    @property
    def is_categorical(self) -> bool:
        return self.levels is not None
