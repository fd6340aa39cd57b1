"""Messages of the functions that commands call, with the options of the command in place of Python's keywords.

A message states what is wrong and then says what to give: "the column is text: give loss='log_loss' to say so". Users of a
command have options instead: ``--set loss=log_loss``. Keywords that have an option of their own are also replaced in statements
if their name is no English word (``memory_limit``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

#: Options that are not called as the keyword.
_OF_KEYWORD = {"eval_set": "--eval", "client": "--scheduler", "time": "--time-column"}
#: Where the advice of a message begins.
_ADVICE = re.compile(r"\b(?:give|leave|pass)\b")
_ASSIGNMENT = re.compile(r"\b([a-z]\w*)=('[^']*'|\"[^\"]*\"|\[[^\]]*\]|…|[\w.]+)")
_NAME = re.compile(r"\b(?:an? )?([a-z]+(?:_[a-z]+)+)\b(=?)")
#: A second way of an advice that no command has.
_ALTERNATIVE = re.compile(r",? or ([a-z]\w*)=(?:True|False|None)\b[^;,]*")
#: Calls in Python stay as they are.
_CALL = re.compile(r"(\w\([^()]*\))")


def in_options(text: str, options: Mapping[str, str | None], settable: Collection[str]) -> str:
    """Return a message about keywords as one about the options of a command.

    options : the options of the command with what their value is called, None without a value; settable : keywords that
    ``--set`` takes.
    """

    def option_of(keyword: str) -> str | None:
        option = _OF_KEYWORD.get(keyword, f"--{keyword.replace('_', '-')}")
        return option if options.get(option) is not None else None

    def without_alternative(match: re.Match[str]) -> str:
        return match[0] if option_of(match[1]) is None else ""

    def assigned(match: re.Match[str]) -> str:
        keyword, value = match[1], match[2].strip("'\"")
        option = option_of(keyword)
        if option is not None:
            return f"{option} {options[option] if value == '…' else value}"
        return f"--set {keyword}={value}" if keyword in settable else match[0]

    def named(match: re.Match[str]) -> str:
        option = option_of(match[1])
        return match[0] if option is None else f"{option} " if match[2] else option

    def to_give(match: re.Match[str]) -> str:
        option = option_of(match[1])
        return match[0] if option is None else f"{option} {options[option]}"

    def replaced(part: str, is_advice: bool) -> str:
        if not is_advice:
            return _NAME.sub(named, part)
        return _NAME.sub(to_give, _ASSIGNMENT.sub(assigned, _ALTERNATIVE.sub(without_alternative, part)))

    advice = _ADVICE.search(text)
    begin = len(text) if advice is None else advice.start()
    parts = [(part, k > 0) for k, half in enumerate((text[:begin], text[begin:])) for part in _CALL.split(half)]
    return "".join(part if _CALL.fullmatch(part) else replaced(part, is_advice) for part, is_advice in parts)
