"""The keywords of `dboost.prepare` that shaped a data set: a fit may repeat them, but not change them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dboost.data.columns.labels import Names, text_of
from dboost.data.columns.roles import ROLES
from dboost.errors import ParameterError


def check_same(settings: dict[str, Any], where: str, stated: dict[str, Any]) -> None:
    """Check that given parameters equal those with which data were prepared.

    settings, stated : values by name; where : name of the data set, for messages.

    Raises
    ------
    ParameterError
        Naming the parameter that differs.
    """
    for name, value in stated.items():
        known, given_value = settings.get(name), describe(value)
        if str(given_value).startswith("<") or (isinstance(given_value, list) and str(known).startswith("<")):
            raise ParameterError(f"{where} holds prepared data with a {name} of their own: leave yours out")
        if given_value != known and text_of(value) != known:
            state = f"was prepared with {name}={known!r}" if known is not None else f"was prepared without {name}"
            raise ParameterError(f"{name}={given_value!r} does not fit the data: {where} {state}")


def named_roles(settings: dict[str, Any]) -> dict[str, str | list[str]]:
    """Return the names of the columns of roles, without those that were given as values."""
    names = {role: settings.get(role) for role in ROLES}
    roles = {role: name for role, name in names.items() if name is not None and not str(name).startswith("<")}
    return {role: [*map(str, name)] if isinstance(name, list) else str(name) for role, name in roles.items()}


def roles_of_fits(settings: dict[str, Any]) -> dict[str, str | list[str]]:
    """Return `named_roles`, with the names of several targets that were given as a table of their own."""
    names = settings.get("target_names")
    return named_roles(settings) | ({} if names is None else {"target": names})


def describe(value: Any) -> Any:
    """Convert a parameter to JSON types: names and numbers unchanged, other objects as the name of their type."""
    value = value.item() if isinstance(value, np.bool_ | np.number | np.str_) else value
    if isinstance(value, float) and not math.isfinite(value):  # a label; JSON has no such numbers
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if Names(()).is_label(value):
        return text_of(value)
    return f"<{type(value).__name__}>"
