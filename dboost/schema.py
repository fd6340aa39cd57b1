"""Features: name, kind, and the categories of a categorical one.

The position of a category in `Feature.categories` is its integer code in shards, trees and files. Categories are sorted when a
model is first trained, and new ones are only appended, so that codes never change their meaning.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

#: Maximum number of categories of a feature: codes have 16 bits, and the last value means "missing".
MAX_LEVELS = 65_535

#: Maximum number of classes. An iteration grows a tree for each, and every row has a score of each; a target with more
#: different values holds identifiers, amounts or free text.
MAX_CLASSES = 4096

Level = str | int | float | bool

#: Kinds of categories, as they appear in messages.
TEXT, NUMBERS, TRUTH_VALUES = "text", "numbers", "truth values"
_KINDS: dict[type, str] = {str: TEXT, bool: TRUTH_VALUES}


def kinds_of(categories: Iterable[Level]) -> set[str]:
    """Return the kinds of categories."""
    return {_KINDS.get(kind, NUMBERS) for kind in set(map(type, categories))}


@dataclass(frozen=True)
class Feature:
    """Name and kind of one column."""

    name: str
    #: Categories in the order of their codes; None for a numeric feature.
    categories: tuple[Level, ...] | None = None
    is_categorical: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_categorical", self.categories is not None)

    @property
    def legal_kinds(self) -> tuple[str, ...]:
        """Kinds of values that a column of this feature may contain, the feature's own kind first; empty if any is legal.

        Categories 0 and 1 may be read as booleans. Numeric features are not restricted, nor are features without categories or
        with both text and numbers.
        """
        categories = self.categories or ()
        kinds = kinds_of(categories)
        if len(kinds) != 1:
            return ()
        kind = kinds.pop()
        return (kind, TRUTH_VALUES) if kind == NUMBERS and (0 in categories or 1 in categories) else (kind,)
