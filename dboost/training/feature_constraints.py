"""Monotonic and interaction constraints, by the numbers of the features."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from dboost.data.columns.labels import Names
from dboost.errors import ParameterError
from dboost.losses import BaseLoss
from dboost.schema import Feature


def monotonic_directions(constraints: Any, features: Sequence[Feature], loss: BaseLoss) -> np.ndarray | None:
    """Return `monotonic_cst` as int8[n_features]; None if it constrains no feature.

    Raises
    ------
    ParameterError
        For unknown names, a wrong number of values, values other than -1, 0, 1, categorical features, and more than two
        classes.
    """
    names = [feature.name for feature in features]
    if isinstance(constraints, dict):
        unknown = sorted(str(name) for name in constraints if name not in names)
        if unknown:
            shown = unknown[:5] + ["..."] * (len(unknown) > 5)
            near = Names.of(names).hint(unknown[0]).removeprefix("; ")
            raise ParameterError(
                f"monotonic_cst contains {len(unknown)} unexpected feature names: {shown}. {near[:1].upper()}{near[1:]}"
            )
        values = [constraints.get(name, 0) for name in names]
    else:
        values = list(constraints)
        if len(values) != len(names):
            raise ParameterError(
                f"monotonic_cst has shape ({len(values)},) but the input data have {len(names)} features: give one value each"
            )
    for name, value, feature in zip(names, values, features, strict=True):
        if value not in (-1, 0, 1):
            if isinstance(constraints, dict):
                raise ParameterError(f"monotonic_cst[{name!r}] must be either -1, 0 or 1. Got {value!r}.")
            raise ParameterError(f"monotonic_cst must be an array-like of -1, 0 or 1. Observed values: {values}.")
        if value and feature.is_categorical:
            raise ParameterError(f"Categorical features cannot have monotonic constraints: remove that of {name!r}")
    if not any(values):
        return None
    if not any(leaves.is_monotonic for leaves in loss.leaves):
        raise ParameterError(
            "monotonic constraints are not supported for multiclass classification: the probabilities cannot all rise"
        )
    return np.array(values, np.int8)


def interaction_groups(constraints: Any, features: Sequence[Feature]) -> list[list[int]]:
    """Return `interaction_cst` as lists of feature numbers, unlisted features in one more group.

    Raises
    ------
    ParameterError
        For unknown names and numbers.
    """
    everything = range(len(features))
    if constraints == "no_interactions":
        return [[feature] for feature in everything]
    if constraints == "pairwise":
        return [list(pair) for pair in combinations(everything, 2)] or [[0]]
    names = {feature.name: number for number, feature in enumerate(features)}
    groups = [[_number(item, names) for item in group] for group in constraints]
    rest = sorted(set(everything) - {feature for group in groups for feature in group})
    return groups + ([rest] if rest else [])


def _number(item: Any, names: dict[str, int]) -> int:
    if isinstance(item, int) and not isinstance(item, bool):
        if 0 <= item < len(names):
            return item
    elif str(item) in names:
        return names[str(item)]
    raise ParameterError(
        f"Interaction constraints must consist of integer indices in [0, n_features - 1] = [0, {len(names) - 1}], specifying "
        f"the position of features, or of their names; interaction_cst contains {item!r}"
    )
