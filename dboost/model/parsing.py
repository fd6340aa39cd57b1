"""Validation: from the JSON content of a model file to an ensemble.

A file may be well-formed, match its digest and still be invalid, if another program wrote it. A wrong index would make the
prediction kernels read out of bounds. So every value is checked here, and `InvalidModel` names the invalid one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from dboost.model.ensemble import Ensemble, Tree
from dboost.schema import MAX_LEVELS, Feature, Level

#: Dtypes of classes. NumPy's parser of dtype names also evaluates Python literals and accepts other dtypes.
_CLASS_TYPES = re.compile(r"bool|object|u?int(8|16|32|64)|float(16|32|64|96|128)|[<>]([iu][248]|f(2|4|8|12|16))")

_NO_TREE = "its nodes do not make one tree"
_ARRAYS = ("feature", "threshold", "missing_left", "left", "right", "gain", "cover", "count", "value")
_WORDS = {None: math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class InvalidModel(ValueError):
    """The content is not a valid model; the message names the invalid value."""


def parse_ensemble(content: Any) -> Ensemble:
    """Return the ensemble in the parsed content of its file.

    Raises
    ------
    InvalidModel
        Naming the invalid value.
    """
    entries = _mapping(content, "the content", Ensemble.__dataclass_fields__)
    features = tuple(_feature(feature, i) for i, feature in enumerate(_sequence(entries["features"], "features")))
    _check(len({feature.name for feature in features}) == len(features), "two features have the same name")
    _check(type(entries["named"]) is bool, "named is neither true nor false")
    baseline = _floats(entries["baseline"], "baseline")
    _check(len(baseline) > 0 and bool(np.isfinite(baseline).all()), "baseline is not a list of finite numbers")
    classes = entries["classes"]
    if classes is not None:
        classes = _levels(classes, "classes")
        _check(len(classes) > 1, "there is but one class")
        _check(len(baseline) == (1 if len(classes) == 2 else len(classes)), "classes and baseline do not fit")
    else:
        _check(len(baseline) == 1, "there are several outputs but no classes")
    trees = tuple(_tree(tree, number, features) for number, tree in enumerate(_sequence(entries["trees"], "trees")))
    _check(len(trees) % len(baseline) == 0, f"{len(trees)} trees do not make whole iterations of {len(baseline)}")
    best = entries["best_iteration"]
    _check(best is None or (type(best) is int and best >= 0), "best_iteration is not a number of iterations")
    loss = _loss(entries["loss"], len(baseline), classes is not None)
    metrics = _mapping(entries["metrics"], "metrics")
    return Ensemble(
        features=features,
        named=entries["named"],
        loss=loss,
        classes=classes,
        classes_dtype=_dtype(entries["classes_dtype"], classes),
        baseline=baseline,
        trees=trees,
        edges=_edges(entries["edges"], features),
        parameters=_mapping(entries["parameters"], "parameters"),
        sources=tuple(map(_source, _sequence(entries["sources"], "sources"))),
        metrics={name: tuple(_floats(values, f"metric {name!r}").tolist()) for name, values in metrics.items()},
        best_iteration=best,
    )


def depth_first_children(feature: np.ndarray, sizes: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the left and right children (int32, -1 in leaves) of nodes, which are numbered from 0 in each tree.

    feature : of the nodes of all trees in depth-first order; -1 in leaves.
    sizes : number of nodes of each tree.

    Raises
    ------
    InvalidModel
        If the nodes of a tree do not form a tree.
    """
    n_nodes = np.asarray(sizes, np.int64)
    _check(bool((n_nodes > 0).all()), _NO_TREE)
    tree, end = np.repeat(np.arange(len(n_nodes)), n_nodes), np.cumsum(n_nodes)
    node = np.arange(len(feature)) - (end - n_nodes)[tree]
    step = np.where(feature < 0, -1, 1)
    # Number of subtrees that are still missing after each node: a split adds one, a leaf removes one; 0 only at the end.
    missing = 1 + np.cumsum(step)
    missing -= np.append(0, missing[end - 1] - 1)[tree]
    is_last = np.zeros(len(feature), bool)
    is_last[end - 1] = True
    _check(not np.where(is_last, missing != 0, missing <= 0).any(), _NO_TREE)
    left, right = np.full(len(feature), -1, np.int32), np.full(len(feature), -1, np.int32)
    split, after_leaf = np.flatnonzero(step > 0), np.flatnonzero((step < 0) & ~is_last) + 1
    left[split] = node[split] + 1
    # Splits and right children match like brackets: among those of one tree and depth of nesting, in their order.
    opened = split[np.lexsort((missing[split], tree[split]))]
    closed = after_leaf[np.lexsort((missing[after_leaf - 1] + 1, tree[after_leaf]))]
    right[opened] = node[closed]
    return left, right


def check_trees(trees: Sequence[Tree], features: tuple[Feature, ...]) -> None:
    """Make the checks of `parse_ensemble` on trees in memory, vectorized over all trees.

    Raises
    ------
    InvalidModel
        Naming the first invalid tree.
    """
    if not trees:
        return
    sizes = np.array([tree.n_nodes for tree in trees])
    of = {name: np.concatenate([getattr(tree, name) for tree in trees]) for name in _ARRAYS}
    has_set = np.array([codes is not None for tree in trees for codes in tree.categories])
    number = np.repeat(np.arange(len(trees)), sizes)

    def refuse(wrong: np.ndarray, what: str) -> None:
        _check(not wrong.any(), f"tree {number[np.argmax(wrong)] if len(wrong) else 0}: {what}")

    _check(all(len(values) == len(number) for values in (*of.values(), has_set)), "arrays of a tree differ in length")
    feature = of["feature"]
    refuse((feature < -1) | (feature >= len(features)), f"feature is not within -1 to {len(features) - 1}")
    left, right = depth_first_children(feature, sizes)
    refuse((left != of["left"]) | (right != of["right"]), "its nodes are not in depth-first order")
    is_split = feature >= 0
    is_set = is_split & np.array([*(f.is_categorical for f in features), False])[feature]
    refuse(np.isnan(of["threshold"]) != (~is_split | is_set), "thresholds and features do not fit")
    refuse(has_set != is_set, "categories and features do not fit")
    refuse(of["missing_left"] & ~is_split, "a leaf sends missing values left")
    refuse(of["count"] < 0, "count is negative")
    sets = [codes for tree in trees for codes in tree.categories if codes is not None]
    if sets:
        node = np.repeat(np.flatnonzero(is_set), [len(codes) for codes in sets])
        codes = np.concatenate(sets)
        n_levels = np.array([len(f.categories or ()) for f in features])[feature[node]]
        wrong = (codes < 0) | (codes >= n_levels)
        wrong[1:] |= (node[1:] == node[:-1]) & (codes[1:] <= codes[:-1])
        refuse(np.isin(np.arange(len(number)), node[wrong]), "categories of a node are no ascending levels")


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise InvalidModel(otherwise)


def _mapping(value: Any, what: str, keys: Any = None) -> dict[str, Any]:
    _check(isinstance(value, dict), f"{what} is not a mapping")
    if keys is not None:
        _check(set(value) == set(keys), f"{what} has other entries than {', '.join(keys)}")
    return value


def _sequence(value: Any, what: str) -> list[Any]:
    _check(isinstance(value, list), f"{what} is not a list")
    return value


def _floats(value: Any, what: str, length: int | None = None) -> np.ndarray:
    if isinstance(value, np.ndarray):  # from the compact form
        _check(length is None or len(value) == length, f"{what} has {len(value)} entries instead of {length}")
        return value.astype(np.float64)
    numbers = []
    for number in _sequence(value, what):
        if type(number) is not float:
            _check(number is None or (type(number) is str and number in _WORDS), f"{what} holds {number!r}")
            number = _WORDS[number]
        numbers.append(number)
    _check(length is None or len(numbers) == length, f"{what} has {len(numbers)} entries instead of {length}")
    return np.array(numbers, np.float64)


def _integers(value: Any, what: str, low: int, high: int, dtype: type, length: int | None = None) -> np.ndarray:
    """Integers from `low` to `high`, both included."""
    if isinstance(value, np.ndarray):
        _check(not len(value) or bool(value.min() >= low and value.max() <= high), f"{what} is not within {low} to {high}")
        _check(length is None or len(value) == length, f"{what} has {len(value)} entries instead of {length}")
        return value.astype(dtype)
    for number in _sequence(value, what):
        _check(type(number) is int and low <= number <= high, f"{what} holds {number!r}")
    _check(length is None or len(value) == length, f"{what} has {len(value)} entries instead of {length}")
    return np.array(value, dtype)


def _levels(value: Any, what: str) -> tuple[Level, ...]:
    levels = _sequence(value, what)
    _check(all(type(level) in (bool, int, float, str) for level in levels), f"{what}: a level is of no known type")
    # True, 1 and 1.0 are equal in Python but are three levels.
    _check(len({(type(level), level) for level in levels}) == len(levels), f"{what}: a level is there twice")
    _check(len(levels) <= MAX_LEVELS, f"{what}: more than {MAX_LEVELS} levels")
    return tuple(levels)


def _feature(value: Any, number: int) -> Feature:
    feature = _mapping(value, f"feature {number}")
    _check(set(feature) in ({"name"}, {"name", "levels"}), f"feature {number} has other entries than name and levels")
    name = feature["name"]
    _check(type(name) is str, f"the name of feature {number} is not a string")
    return Feature(name, _levels(feature["levels"], f"feature {name!r}") if "levels" in feature else None)


def _edges(value: Any, features: tuple[Feature, ...]) -> tuple[np.ndarray | None, ...]:
    edges = _sequence(value, "edges")
    _check(len(edges) in (0, len(features)), f"there are edges for {len(edges)} of {len(features)} features")
    parsed: list[np.ndarray | None] = []
    for feature, of_feature in zip(features, edges, strict=bool(edges)):
        _check((of_feature is None) == feature.is_categorical, f"the edges and kind of {feature.name!r} do not fit")
        parsed.append(None if of_feature is None else _floats(of_feature, f"edges of {feature.name!r}"))
        _check(parsed[-1] is None or bool((np.diff(parsed[-1]) > 0).all()), f"edges of {feature.name!r} do not ascend")
    return tuple(parsed)


def _loss(value: Any, n_outputs: int, has_classes: bool) -> dict[str, Any]:
    """The record of a loss; the parameters of built-in losses are checked."""
    from dboost import losses  # imports compiled kernels, which writing a model does not need

    loss = _mapping(value, "loss")
    _check(type(loss.get("name")) is str, "the loss has no name")
    if all(known.name != loss["name"] for known in losses.BUILT_IN):
        return loss
    for name, option in loss.items():
        is_number = type(option) in (int, float) and abs(option) < math.inf
        _check(name == "name" or option is None or is_number, f"the loss's {name} is not a number")
    n_classes = loss.get("n_classes", 2)
    _check(n_classes == max(n_outputs, 2), f"the loss is one of {n_classes} classes, the model has {n_outputs} outputs")
    try:
        made = losses.from_dict(loss)
    except (TypeError, ValueError) as error:
        raise InvalidModel(f"the loss {loss['name']!r} cannot be created from its parameters: {error}") from None
    _check(made.is_classification == has_classes, f"the loss {made.name!r} and the classes do not fit")
    return loss


def _source(value: Any) -> dict[str, Any]:
    source = _mapping(value, "a source")
    for name in ("first_iteration", "last_iteration"):
        _check(name not in source or type(source[name]) is int, f"{name} of a source is not an integer")
    _check(type(source.get("rows")) in (int, type(None)), "rows of a source is not an integer")
    _check(type(source.get("label")) in (str, type(None)), "the label of a source is not a string")
    for name in ("parameters", "summary"):
        _mapping(source.get(name, {}), f"{name} of a source")
    return source


def _dtype(value: Any, classes: tuple[Level, ...] | None) -> str | None:
    """The dtype of the classes, which must be able to represent them."""
    _check(value is None or type(value) is str, "classes_dtype is not a string")
    if value is None:
        _check(classes is None, "there are classes but no classes_dtype")
        return None
    _check(_CLASS_TYPES.fullmatch(value) is not None, f"classes_dtype {value[:40]!r} is no type of classes")
    try:
        with np.errstate(over="ignore"):
            held = np.array(() if classes is None else classes, np.dtype(value)).tolist()
    except (TypeError, ValueError, OverflowError):
        held = None
    _check(held == list(classes or ()), f"classes_dtype {value!r} cannot hold the classes")
    return value


def _tree(value: Any, number: int, features: tuple[Feature, ...]) -> Tree:
    try:
        return _nodes(value, features)
    except InvalidModel as error:
        raise InvalidModel(f"tree {number}: {error}") from None


def _nodes(value: Any, features: tuple[Feature, ...]) -> Tree:
    stored = ("feature", "threshold", "categories", "missing_left", "gain", "cover", "count", "value")
    entries = _mapping(value, "it", stored)
    feature = _integers(entries["feature"], "feature", -1, len(features) - 1, np.int32)
    n = len(feature)
    left, right = depth_first_children(feature, [n])
    is_set = np.array([f >= 0 and features[f].is_categorical for f in feature.tolist()])
    threshold = _floats(entries["threshold"], "threshold", n)
    _check(bool((np.isnan(threshold) == ((feature < 0) | is_set)).all()), "thresholds and features do not fit")
    sets = _mapping(entries["categories"], "categories", [str(node) for node in np.flatnonzero(is_set)])
    categories: list[np.ndarray | None] = [None] * n
    for node, codes in sets.items():
        last = len(features[feature[int(node)]].categories or ()) - 1
        categories[int(node)] = _integers(codes, f"categories of node {node}", 0, last, np.int32)
        _check(bool((np.diff(codes) > 0).all()), f"categories of node {node} do not ascend")
    missing_left = _integers(entries["missing_left"], "missing_left", 0, 1, np.bool_, n)
    _check(not missing_left[feature < 0].any(), "a leaf sends missing values left")
    return Tree(
        feature=feature,
        threshold=threshold,
        categories=tuple(categories),
        missing_left=missing_left,
        left=left,
        right=right,
        gain=_floats(entries["gain"], "gain", n),
        cover=_floats(entries["cover"], "cover", n),
        count=_integers(entries["count"], "count", 0, np.iinfo(np.int64).max, np.int64, n),
        value=_floats(entries["value"], "value", n),
    )
