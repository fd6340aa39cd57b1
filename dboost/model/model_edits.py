"""Models derived from a model: with more levels, fewer iterations, or without the trees of one source.

New data may have levels of a categorical feature that the model does not have. They are appended to the feature's levels, so
no code changes its meaning. Old trees treat new levels as missing: their codes are added to the side of missing values. A
widened model gives every row the same score as before.

A model is a sum of trees, so trees can be removed. Later trees were fitted to the residuals of earlier ones: without its last
trees a model equals an earlier state of itself, without trees in the middle it equals none.
"""

from __future__ import annotations

import math
import operator
from dataclasses import replace
from typing import Any

import numpy as np

from dboost.errors import ParameterError
from dboost.model.ensemble import Ensemble, Tree
from dboost.schema import Feature


def widen(model: Ensemble, features: tuple[Feature, ...]) -> Ensemble:
    """Return the same model for features with more levels.

    Parameters
    ----------
    model : Ensemble
    features : tuple of Feature
        The model's features, categorical ones with levels appended.
    """
    added: dict[int, np.ndarray] = {}
    for j, (old, new) in enumerate(zip(model.features, features, strict=True)):
        if old.categories is None or new.categories is None or len(new.categories) == len(old.categories):
            continue
        added[j] = np.arange(len(old.categories), len(new.categories), dtype=np.int32)
    if not added:
        return model
    return replace(model, features=features, trees=tuple(_widened(tree, added) for tree in model.trees))


def _widened(tree: Tree, added: dict[int, np.ndarray]) -> Tree:
    categories = tuple(
        codes if codes is None or not missing_left or feature not in added else np.concatenate([codes, added[feature]])
        for codes, feature, missing_left in zip(tree.categories, tree.feature.tolist(), tree.missing_left, strict=True)
    )
    return replace(tree, categories=categories)


def truncate(model: Ensemble, n_iterations: int) -> Ensemble:
    """Return the model as it was after its first iterations; `Booster.truncate` documents it.

    Raises
    ------
    ParameterError
        For a number of iterations that the model does not have.
    """
    try:
        n = operator.index(n_iterations)
    except TypeError:
        raise ParameterError(f"n_iterations={n_iterations!r} must be an integer") from None
    if not 0 <= n <= model.n_iterations:
        raise ParameterError(f"n_iterations={n}: the model has {model.n_iterations} iterations")
    sources = tuple(
        source if source["last_iteration"] <= n else without_scores(source) | {"last_iteration": n}
        for source in model.sources
        if source["first_iteration"] <= n
    )
    return replace(
        model,
        trees=model.trees[: n * model.n_outputs],
        sources=sources,
        metrics={name: values[:n] for name, values in model.metrics.items()},
        best_iteration=model.best_iteration if model.best_iteration == n else None,
    )


def without_scores(source: dict[str, Any]) -> dict[str, Any]:
    """Return a source's record without the summary of scores, which belongs to the unedited model."""
    return source | {"summary": source["summary"] | {"scores": []}} if "summary" in source else source


def drop_source(model: Ensemble, which: int | str) -> Ensemble:
    """Return the model without the trees of one source; `Booster.drop_source` documents it.

    Parameters
    ----------
    model : Ensemble
    which : int or str
        Number of the source (negative: from the end), or its label.

    Raises
    ------
    ParameterError
        For a source that does not exist, a label that is not unique, or the only source.
    """
    number = number_of(model, which)
    if len(model.sources) == 1:
        raise ParameterError("the only source of a model cannot be dropped")
    gone = model.sources[number]
    first, last = gone["first_iteration"] - 1, gone["last_iteration"]
    k, n = model.n_outputs, model.n_iterations
    later = [
        without_scores(source) | {name: source[name] - last + first for name in ("first_iteration", "last_iteration")}
        for source in model.sources[number + 1 :]
    ]
    # Metrics that were measured with the dropped trees are not valid.
    unknown = (math.nan,) * (n - last)
    sources = (*model.sources[:number], *later)
    return replace(
        model,
        trees=model.trees[: first * k] + model.trees[last * k :],
        sources=sources,
        parameters=sources[0]["parameters"],
        metrics={name: values[:first] + unknown for name, values in model.metrics.items()},
        best_iteration=None,
    )


def number_of(model: Ensemble, which: int | str) -> int:
    """Return the number of a source by its number (negative: from the end) or label; ParameterError if there is none."""
    labels = [source["label"] for source in model.sources]
    if isinstance(which, str):
        if labels.count(which) != 1:
            raise ParameterError(f"{labels.count(which)} sources of the model are called {which!r}; they are {labels}")
        return labels.index(which)
    try:
        number = operator.index(which)
    except TypeError:
        raise ParameterError(f"a source is a number or a label, not {which!r}") from None
    if not -len(labels) <= number < len(labels):
        raise ParameterError(f"there is no source {number}: the model has {len(labels)}")
    return number % len(labels)
