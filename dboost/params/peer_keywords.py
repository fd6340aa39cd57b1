"""Decorators of public functions and classes, which accept keywords by the names of other libraries.

`peer_names` has the tables; a function gets the part that applies to it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, TypeVar

from dboost.params.peer_names import (
    ALIASES,
    HINTS,
    INTERVAL_HINTS,
    MODEL_ALIASES,
    MODEL_HINTS,
    PREDICTION_ALIASES,
    PREDICTION_HINTS,
    TREE_HINTS,
    with_our_names,
)

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


def accepts_peer_names(
    function: F | None = None,
    *,
    aliases: Mapping[str, str] = ALIASES,
    hints: Mapping[str, str] = HINTS,
    belongs: Callable[[str], str | None] = lambda _: None,
) -> Any:
    """Decorate a function: it accepts names of other libraries for the keywords in its signature; see `with_our_names`."""
    if function is None:
        return partial(accepts_peer_names, aliases=aliases, hints=hints, belongs=belongs)
    parameters = inspect.signature(function).parameters
    rest = {name for name, parameter in parameters.items() if parameter.kind is parameter.VAR_KEYWORD}
    names = tuple(name for name in parameters if name not in rest)
    known = frozenset(names)

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        if not known.issuperset(keywords):
            by_position, handed_on = dict(zip(names, args, strict=False)), {}
            if rest:  # to a function that knows more names
                handed_on = {name: keywords.pop(name) for name in [*keywords] if known.isdisjoint((name, aliases.get(name)))}
            keywords = with_our_names(keywords | by_position, known, aliases=aliases, hints=hints, belongs=belongs)
            keywords = {name: value for name, value in keywords.items() if name not in by_position} | handed_on
        return function(*args, **keywords)

    return call


def serves_peer_names(cls: C) -> C:
    """Decorate a class of models: its public methods accept names of other libraries, see `accepts_peer_names`. Methods that
    are decorated themselves keep their tables."""
    for name, member in [*vars(cls).items()]:
        if inspect.isfunction(member) and not name.startswith("_") and not hasattr(member, "__wrapped__"):
            setattr(cls, name, accepts_peer_names(member, aliases=MODEL_ALIASES, hints=MODEL_HINTS))
    return cls


#: Decorates the methods that predict.
accepts_names_of_predictions = partial(accepts_peer_names, aliases=PREDICTION_ALIASES, hints=PREDICTION_HINTS)
#: Decorates the methods that interpret the trees, whose results have no offset.
accepts_names_of_trees = partial(accepts_peer_names, aliases=PREDICTION_ALIASES, hints=TREE_HINTS)
#: Decorates the methods that predict intervals.
accepts_names_of_intervals = partial(accepts_peer_names, aliases=PREDICTION_ALIASES, hints=INTERVAL_HINTS)
