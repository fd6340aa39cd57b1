"""From what the user says about features to what trees obey: directions and groups, by feature number."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from dboost.errors import ParameterError
from dboost.losses import Loss
from dboost.params import Parameters
from dboost.schema import Feature


def directions_of(parameters: Parameters, features: Sequence[Feature], loss: Loss) -> np.ndarray | None:
    """`monotonic_cst` as int8[n_features]; None when nothing is constrained.

    Raises
    ------
    ParameterError
        For unknown names, a wrong number of values, values other than -1, 0, 1, categorical features, and several classes.
    """
    given = parameters.monotonic_cst
    if given is None:
        return None
    names = [feature.name for feature in features]
    if isinstance(given, dict):
        unknown = [name for name in given if name not in names]
        if unknown:
            raise ParameterError(f"monotonic_cst names {unknown[0]!r}, which is no feature")
        values = [given.get(name, 0) for name in names]
    else:
        values = list(given)
        if len(values) != len(names):
            raise ParameterError(f"monotonic_cst has {len(values)} values, but there are {len(names)} features")
    for name, value, feature in zip(names, values, features, strict=True):
        if value not in (-1, 0, 1):
            raise ParameterError(f"monotonic_cst of {name!r} is {value!r}: it must be -1, 0 or 1")
        if value and feature.is_categorical:
            raise ParameterError(f"monotonic_cst of {name!r}: categorical features have no order to be monotonic in")
    if not any(values):
        return None
    if loss.n_outputs > 1:
        raise ParameterError("monotonic_cst is not supported for several classes: their probabilities cannot all rise")
    return np.array(values, np.int8)


def groups_of(parameters: Parameters, features: Sequence[Feature]) -> list[list[int]] | None:
    """`interaction_cst` as lists of feature numbers, those that were not listed in a group of their own; None for no limits.

    Raises
    ------
    ParameterError
        For unknown names and numbers.
    """
    given = parameters.interaction_cst
    if given is None:
        return None
    everything = range(len(features))
    if given == "no_interactions":
        return [[feature] for feature in everything]
    if given == "pairwise":
        return [list(pair) for pair in combinations(everything, 2)] or [[0]]
    names = {feature.name: number for number, feature in enumerate(features)}
    groups = [[_number(item, names) for item in group] for group in given]
    rest = sorted(set(everything) - {feature for group in groups for feature in group})
    return groups + ([rest] if rest else [])


def _number(item: Any, names: dict[str, int]) -> int:
    if isinstance(item, str) and item in names:
        return names[item]
    if isinstance(item, int) and 0 <= item < len(names):
        return item
    raise ParameterError(f"interaction_cst holds {item!r}, which is no feature (of {len(names)})")
