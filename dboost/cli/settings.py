"""Training parameters written on the command line or in a TOML file.

``--set key=value`` reads the value as TOML would (numbers, ``true``, ``"text"``, ``[1, 2]``), with three kindnesses for
people who type: words need no quotes (``--set loss=huber``), also in lists (``--set features=[age,income]``), ``none``
stands for Python's None, and JSON objects are taken as they are. The keys are the keywords of `dboost.fit`; one that
does not exist is an error that says what was probably meant.
"""

from __future__ import annotations

import difflib
import inspect
import json
import tomllib
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import dboost
from dboost.errors import ParameterError
from dboost.params import RESERVED, Parameters

#: Keywords of `dboost.fit` that a command line says in another way, or cannot say.
ELSEWHERE = {
    "data": "it is the first argument",
    "target": "use --target",
    "eval_set": "use --eval",
    "client": "use --scheduler or --workers",
    "progress": "use --quiet",
    "callbacks": "functions can only be given in Python",
}


def literal(text: str) -> Any:
    """The value that a piece of command line stands for.

    >>> literal("0.1"), literal("true"), literal("none"), literal("huber"), literal("[age, 3]")
    (0.1, True, None, 'huber', ['age', 3])
    """
    text = text.strip()
    if text.lower() in ("none", "null"):
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for read in (_toml, json.loads, int, float):
        try:
            return read(text)
        except ValueError:
            continue
    if text.startswith("[") and text.endswith("]"):
        return [literal(item) for item in text[1:-1].split(",") if item.strip()]
    return text


def _toml(text: str) -> Any:
    table = tomllib.loads(f"value = {text}")
    value = table.pop("value")
    if table or not _is_plain(value):
        raise ValueError(text)
    return value


def _is_plain(value: Any) -> bool:
    """False for TOML's dates and times: no parameter is one, so 2011-01-31 is a name."""
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return isinstance(value, str | int | float | bool)


def parameter_names() -> list[str]:
    """The keywords of `dboost.fit` that can be set by name, also those that a later version will support."""
    signature = inspect.signature(dboost.fit).parameters.values()
    own = [parameter.name for parameter in signature if parameter.kind is parameter.KEYWORD_ONLY]
    learning = [field.name for field in fields(Parameters)]
    return [name for name in (*own, *learning, *RESERVED) if name not in ELSEWHERE]


def gather(file: str | None, assignments: Iterable[str], known: list[str]) -> dict[str, Any]:
    """Parameters of a TOML file, overridden by ``key=value`` pairs (the last of equal keys wins).

    Raises
    ------
    ParameterError
        For a file that cannot be read, a pair without ``=``, a key that is not among `known`.
    """
    parameters = _from_file(file) if file is not None else {}
    origin = dict.fromkeys(parameters, f"in {file}")
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        key = key.strip()
        if not (key and equals and value.strip()):
            raise ParameterError(f"--set takes key=value, not {assignment!r}")
        parameters[key] = literal(value)
        origin[key] = "in --set"
    for key in parameters:
        _check(key, origin[key], known)
    return parameters


def _from_file(file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ParameterError(f"cannot read the parameter file {file}: {error.strerror}") from error
    except ValueError as error:  # not TOML, or not text
        raise ParameterError(f"the parameter file {file} is not valid TOML: {error}") from error


def _check(key: str, where: str, known: list[str]) -> None:
    if key in known:
        return
    if key in ELSEWHERE:
        raise ParameterError(f"{key!r} cannot be set {where}: {ELSEWHERE[key]}")
    close = difflib.get_close_matches(key, known, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"there are: {', '.join(known)}"
    raise ParameterError(f"unknown parameter {key!r} {where}; {hint}")
