"""What becomes of a model when time goes on: new levels, fewer trees, trees of some data taken out.

A categorical feature may meet levels later that its model has never seen. They are appended to the feature's levels, so no
code changes its meaning; but a tree that knew nothing of them must go on treating them as it did, as missing. So in the old
trees the new codes join whichever side missing values go to. A widened model gives every row the score that it gave before.

Trees are sums, so some may be left out. The last ones of a model were fitted to what the first ones left over: cutting off
the end gives a model that existed once, taking out the middle gives one that never did.
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
    """The same model for features that have more levels.

    Parameters
    ----------
    model : Ensemble
    features : tuple of Feature
        The model's own, categorical ones with levels appended.
    """
    added: dict[int, np.ndarray] = {}
    for j, (old, new) in enumerate(zip(model.features, features, strict=True)):
        if old.levels is None or new.levels is None or len(new.levels) == len(old.levels):
            continue
        added[j] = np.arange(len(old.levels), len(new.levels), dtype=np.int32)
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
    """The model as it was after its first iterations.

    Raises
    ------
    ParameterError
        When it never had so many.
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
    """A source's record whose summary tells nothing of scores, because the model that gave them is no more."""
    return source | {"summary": source["summary"] | {"scores": []}} if "summary" in source else source


def drop_source(model: Ensemble, which: int | str) -> Ensemble:
    """The model without the trees that one source's data gave it.

    Parameters
    ----------
    model : Ensemble
    which : int or str
        Number of the source (negative: from the end), or its label.

    Raises
    ------
    ParameterError
        When there is no such source, several of that label, or no other one.
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
    # What was measured with the trees that are gone is true no longer.
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
    """The number of a source that is named by its number (negative: from the end) or label; ParameterError if there is none."""
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
