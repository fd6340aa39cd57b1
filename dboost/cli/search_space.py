"""Values of ``dboost tune --set``: ranges, lists of choices, and values that stay the same in all trials.

``LOW..HIGH`` is a range, of integers if both ends are integers; ``log:LOW..HIGH`` is one whose logarithm is searched evenly;
``A,B,C`` are choices. Everything else, also in brackets or quotes, is a value as in the other commands.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from dboost.cli.arguments import key_and_value, literal
from dboost.errors import ParameterError

#: A choice: what Optuna can store.
Choice = bool | int | float | str | None


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, which are both integers or both floats."""

    low: int | float
    high: int | float
    log: bool = False


def divide(assignments: Iterable[str]) -> tuple[list[str], dict[str, Range | list[Choice]]]:
    """Return the assignments of single values, and what is searched; the last of equal keys wins.

    Raises
    ------
    ParameterError
        Naming the assignment.
    """
    last = {key_and_value(assignment)[0]: assignment for assignment in assignments}
    fixed: list[str] = []
    searched: dict[str, Range | list[Choice]] = {}
    for key, assignment in last.items():
        try:
            found = parse(key_and_value(assignment)[1])
        except ValueError as error:
            raise ParameterError(f"--set {assignment}: {error}") from None
        if found is None:
            fixed.append(assignment)
        else:
            searched[key] = found
    return fixed, searched


def parse(text: str) -> Range | list[Choice] | None:
    """Return a range or a list of choices; None for a single value.

    Raises
    ------
    ValueError
        For a range or a list that cannot be searched.

    Examples
    --------
    >>> parse("8..128"), parse("log:0.01..1"), parse("best_first,depth_wise"), parse("0.1")
    (Range(low=8, high=128, log=False), Range(low=0.01, high=1.0, log=True), ['best_first', 'depth_wise'], None)
    """
    text = text.strip()
    if text[:1] in ("[", "{", '"', "'"):
        return None
    log, _, rest = text.rpartition("log:")
    if ".." in rest or text.startswith("log:"):
        if log:
            raise ValueError("a range is LOW..HIGH or log:LOW..HIGH")
        return _range(rest, text.startswith("log:"))
    if "," not in text:
        return None
    choices = [literal(item) for item in text.split(",") if item.strip()]
    if len(choices) < 2 or len(choices) != len(text.split(",")):
        raise ValueError("a list of choices is A,B or longer, without empty places")
    for i, choice in enumerate(choices):
        if not isinstance(choice, bool | int | float | str | None):
            raise ValueError(f"a choice is a number or a word, not {choice!r}")
        if choice in choices[:i]:
            raise ValueError(f"{choice!r} is there twice")
    return choices


def _range(text: str, log: bool) -> Range:
    ends = re.fullmatch(r"(.+?)\.\.(.+)", text)
    numbers = [literal(end) for end in ends.groups()] if ends else []
    if not numbers or not all(_is_number(number) for number in numbers):
        raise ValueError("a range is LOW..HIGH or log:LOW..HIGH, with two numbers")
    low, high = numbers
    if not low < high:
        raise ValueError(f"{low} is not below {high}")
    if log and low <= 0:
        raise ValueError(f"{low} has no logarithm: the range must begin above 0")
    if isinstance(low, int) and isinstance(high, int):
        return Range(low, high, log)
    return Range(float(low), float(high), log)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
