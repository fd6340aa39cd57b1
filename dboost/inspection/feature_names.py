"""Features as users say them: by name or by position."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import numpy as np

from dboost.errors import ParameterError
from dboost.model.ensemble import Ensemble


def positions(ensemble: Ensemble, wanted: Any, *, at_most: int | None = None) -> list[int]:
    """Positions of some features, given as one name or position, or as a sequence of them.

    Raises
    ------
    ParameterError
        Naming the feature that the model does not have or that is given twice, or how many may be given.
    """
    items: Sequence[Any] = [wanted] if isinstance(wanted, str | int | np.integer) else list(wanted)
    found = [_position(ensemble, item) for item in items]
    if not found:
        raise ParameterError("name at least one feature")
    if at_most is not None and len(found) > at_most:
        raise ParameterError(f"{len(found)} features were given, at most {at_most} are possible")
    twice = [item for i, item in enumerate(items) if found[i] in found[:i]]
    if twice:
        raise ParameterError(f"feature {twice[0]!r} is given twice")
    return found


def _position(ensemble: Ensemble, item: Any) -> int:
    names = [feature.name for feature in ensemble.features]
    if isinstance(item, str):
        if item in names:
            return names.index(item)
        near = difflib.get_close_matches(item, names, n=3)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise ParameterError(f"the model has no feature {item!r}{hint}")
    if isinstance(item, int | np.integer) and not isinstance(item, bool) and 0 <= item < len(names):
        return int(item)
    raise ParameterError(f"feature {item!r} is neither a name nor a position between 0 and {len(names) - 1}")


def class_names(ensemble: Ensemble) -> list[Any]:
    """What the outputs are called: the classes, or of two classes the second one; [None] for regression."""
    if ensemble.classes is None:
        return [None] * ensemble.n_outputs
    return list(ensemble.classes) if ensemble.n_outputs > 1 else [ensemble.classes[-1]]
