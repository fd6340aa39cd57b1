"""How a question's answers are put together, told with the function that answers it.

Some answers are arrays, one for each part of the rows; where the parts are many, those of one place are merged before anybody
else sees them. Questions that say nothing have small answers, which are handed on as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Question = TypeVar("Question", bound=Callable[..., Any])


def merged_by(
    merge: Callable[[Any, Any], Any], is_short: Callable[..., bool] = lambda *_: False
) -> Callable[[Question], Question]:
    """A decorator that notes how two answers become one: exactly, and in any order.

    is_short : called with a question's arguments, whether answering takes less time than handing it to another thread.
    """

    def note(function: Question) -> Question:
        function.merge = merge  # type: ignore[attr-defined]
        function.is_short = is_short  # type: ignore[attr-defined]
        return function

    return note
