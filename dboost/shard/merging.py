"""How a question's answers are put together, told with the function that answers it.

Some answers are arrays, one for each part of the rows; where the parts are many, those of one place are merged before anybody
else sees them. Questions that say nothing have small answers, which are handed on as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Question = TypeVar("Question", bound=Callable[..., Any])


def merged_by(merge: Callable[[Any, Any], Any]) -> Callable[[Question], Question]:
    """A decorator that notes how two answers become one: exactly, and in any order."""

    def note(function: Question) -> Question:
        function.merge = merge  # type: ignore[attr-defined]
        return function

    return note
