"""Model files, in JSON and in a compact form: checked by a digest, and equal for equal models.

A file has one feature, parameter, metric or tree per line::

    {
     "format": "dboost",
     "version": 1,
     "sha256": "<digest of all that follows this line>",
     "loss": {"name": "log_loss"},
     …
     "features": [
      {"name": "age"},
      {"name": "town", "levels": ["Gent", "Liège"]}
     ],
     …
     "trees": [
      {"feature": [0, -1, -1], "threshold": [30.5, null, null], …},
      …
     ]
    }

The line of ``sha256`` follows one with the name of the target's column, ``"target": {"name": "y", "sha256": "…"}``, if the fit
was given a name. It has a digest of its own, so that the model has the same one however its target was given.

Numbers have the digits that reproduce their bits; NaN is null, infinities are strings ("Infinity", "-Infinity"). A file does
not depend on the time, the machine or the number of threads, so its digest identifies the model.

Nodes are stored in depth-first order: a split is followed by its left subtree, then by its right one. So the list of features
(-1 in leaves) determines the shape of the tree, and there are no child indices that could be wrong.

Reading checks everything: the first lines literally and the rest by the digest, so that flipped bits and lost ends are
detected; then types, lengths and indices. A file may be well-formed, match its digest and still be invalid, if another program
wrote it, and a wrong index would make the prediction kernels read out of bounds. So `parse_ensemble` checks every value, and
`InvalidModel` names the invalid one. Every error is a `ModelFileError` that names the file. Nothing in a file is executed.

**The compact form** has the content of the JSON form, with the trees as compressed arrays::

    dboost arrays, version 1
    {"name": "y", "sha256": "…"}                                    of the target's column, if it has a name
    <digest of all that follows this line>
    <zlib: length of the header (8 bytes), header, arrays>

The header is the JSON of everything but the trees, with their number. The arrays follow in the order of `ARRAYS`,
little-endian, for the nodes of all trees. Each array has the first bytes of all numbers first, then the second ones and so on,
because the high bytes of neighbours are similar and compress well. Lengths follow from the preceding content, so no sizes can
contradict each other; missing or surplus bytes are an error. The result is checked like that of JSON.

A file of either form may be compressed by gzip, without a name or a time, so that equal models have equal files.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
import re
import zlib
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from itertools import chain
from typing import Any

import numpy as np

from dboost.data.columns.chunk import sort_key
from dboost.errors import DBoostError, ModelFileError, shown
from dboost.files.atomic_write import read_whole, write_whole
from dboost.files.filesystem import without_query
from dboost.files.json_shape import OTHERS, PLAIN, Shape, ShapeError, Within, check_shape, parse_json
from dboost.files.path_text import path_text
from dboost.model.ensemble import Ensemble, Tree
from dboost.model.margins import Calibration
from dboost.schema import MAX_LEVELS, Feature, Level

#: Dtypes of classes. NumPy's parser of dtype names also evaluates Python literals and accepts other dtypes.
_CLASS_TYPES = re.compile(r"bool|object|u?int(8|16|32|64)|float(16|32|64|96|128)|[<>]([iu][248]|f(2|4|8|12|16))")

_NO_TREE = "its nodes do not make one tree"
_ARRAYS = ("feature", "threshold", "missing_left", "left", "right", "gain", "cover", "count", "value")
_WORDS = {None: math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class InvalidModel(ValueError):
    """The content is not a valid model; the message names the invalid value."""


def parse_ensemble(content: Any, n_trees: int | None = None) -> Ensemble:
    """Return the ensemble in the parsed content of its file.

    n_trees : number of trees of the model, if the content lacks them; default: of those in it.

    Raises
    ------
    InvalidModel
        Naming the invalid value.
    """
    defaults = {"width": 1, "averages": False, "calibration": None}
    names = [name for name in Ensemble.__dataclass_fields__ if name != "target_name"]
    entries = _mapping(defaults | _mapping(content, "the content"), "the content", names)
    _check_texts({name: value for name, value in entries.items() if name not in ("edges", "trees")})
    features, edges = parse_columns(entries["features"], entries["edges"])
    _check(type(entries["named"]) is bool, "named is neither true nor false")
    baseline = _floats(entries["baseline"], "baseline")
    _check(len(baseline) > 0 and bool(np.isfinite(baseline).all()), "baseline is not a list of finite numbers")
    classes = entries["classes"]
    if classes is not None:
        classes = parse_levels(classes, "classes")
        _check(len(classes) > 1, "there is but one class")
        _check(len(baseline) == (1 if len(classes) == 2 else len(classes)), "classes and baseline do not fit")
    loss = _loss(entries["loss"], len(baseline), classes is not None)
    width = entries["width"]
    _check(type(width) is int and width in (1, len(baseline)), "width is neither 1 nor the number of outputs")
    _check(type(entries["averages"]) is bool, "averages is neither true nor false")
    trees = []
    for number, tree in enumerate(_sequence(entries["trees"], "trees")):
        try:
            trees.append(_tree(tree, features, width))
        except InvalidModel as error:
            raise InvalidModel(f"tree {number}: {error}") from None
    check_trees(trees, features, width)
    n_trees, trees_per_iteration = len(trees) if n_trees is None else n_trees, len(baseline) // width
    _check(n_trees % trees_per_iteration == 0, f"{n_trees} trees do not make whole iterations of {trees_per_iteration}")
    n_iterations, best = n_trees // trees_per_iteration, entries["best_iteration"]
    _check(
        best is None or (type(best) is int and 0 <= best <= n_iterations), "best_iteration is not a number of its iterations"
    )
    _shape(entries["parameters"], _PARAMETERS, "parameters")
    _check_sources(_sequence(entries["sources"], "sources"), len(features), len(baseline), n_iterations)
    return Ensemble(
        features=features,
        named=entries["named"],
        loss=loss,
        classes=classes,
        classes_dtype=_dtype(entries["classes_dtype"], classes),
        baseline=baseline,
        trees=tuple(trees),
        edges=edges,
        parameters=entries["parameters"],
        sources=tuple(entries["sources"]),
        metrics=_metrics(entries["metrics"]),
        best_iteration=best,
        width=width,
        calibration=_calibration(entries["calibration"], classes is not None),
        averages=entries["averages"],
    )


def parse_columns(features: Any, edges: Any) -> tuple[tuple[Feature, ...], tuple[np.ndarray | None, ...]]:
    """Return features, and the split points of each, in the parsed content of a file.

    Raises
    ------
    InvalidModel
        Naming the invalid value.
    """
    named = [_feature(feature, i) for i, feature in enumerate(_sequence(features, "features"))]
    features = tuple([Feature(name, levels) for name, levels in named])
    _check(len({feature.name for feature in features}) == len(features), "two features have the same name")
    return features, _edges(edges, features)


def parse_levels(value: Any, subject: str) -> tuple[Level, ...]:
    """Return categories in the parsed content of a file. subject : their name in messages.

    Raises
    ------
    InvalidModel
        Naming the invalid value.
    """
    levels = _sequence(value, subject)
    _check({*map(type, levels)} <= {bool, int, float, str}, f"{subject}: a level is of no known type")
    # True, 1 and 1.0 are equal in Python but are three levels.
    _check(len({*zip(map(type, levels), levels, strict=True)}) == len(levels), f"{subject}: a level is there twice")
    _check(len(levels) <= MAX_LEVELS, f"{subject}: more than {MAX_LEVELS} levels")
    return tuple(levels)


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


def check_trees(trees: Sequence[Tree], features: tuple[Feature, ...], width: int = 1) -> None:
    """Check that trees are valid, vectorized over all trees: trees of a fit, and those that were read from a file.

    width : number of values per leaf, default 1.

    Raises
    ------
    InvalidModel
        Naming the first invalid tree.
    """
    if not trees:
        return
    sizes = np.array([tree.n_nodes for tree in trees])
    leaf_shape = () if width == 1 else (width,)
    _check(all(tree.value.shape[1:] == leaf_shape for tree in trees), f"a tree has not {width} values per leaf")
    joined = {name: np.concatenate([getattr(tree, name) for tree in trees]) for name in _ARRAYS}
    categories = [*chain.from_iterable(tree.categories for tree in trees)]
    has_set = np.array([codes is not None for codes in categories])
    number = np.repeat(np.arange(len(trees)), sizes)

    def refuse(wrong: np.ndarray, problem: str) -> None:
        _check(not wrong.any(), f"tree {number[np.argmax(wrong)] if len(wrong) else 0}: {problem}")

    _check(all(len(values) == len(number) for values in (*joined.values(), has_set)), "arrays of a tree differ in length")
    feature = joined["feature"]
    refuse((feature < -1) | (feature >= len(features)), f"feature is not within -1 to {len(features) - 1}")
    left, right = depth_first_children(feature, sizes)
    refuse((left != joined["left"]) | (right != joined["right"]), "its nodes are not in depth-first order")
    is_split = feature >= 0
    is_set = is_split & np.array([*(f.is_categorical for f in features), False])[feature]
    refuse(np.isnan(joined["threshold"]) != (~is_split | is_set), "thresholds and features do not fit")
    refuse(has_set != is_set, "categories and features do not fit")
    refuse(joined["missing_left"] & ~is_split, "a leaf sends missing values left")
    refuse(joined["count"] < 0, "count is negative")
    refuse(
        ~np.isfinite(joined["value"].reshape(len(number), width)).all(axis=1)
        | ~(joined["cover"] >= 0)
        | np.isnan(joined["gain"]),
        "a value is not finite, a cover is negative, or a gain or cover is no number",
    )
    sets = [codes for codes in categories if codes is not None]
    if sets:
        node = np.repeat(np.flatnonzero(is_set), [len(codes) for codes in sets])
        codes = np.concatenate(sets)
        n_levels = np.array([len(f.categories or ()) for f in features])[feature[node]]
        wrong = (codes < 0) | (codes >= n_levels)
        wrong[1:] |= (node[1:] == node[:-1]) & (codes[1:] <= codes[:-1])
        if wrong.any():
            tree = number[node[np.argmax(wrong)]]
            first = node[np.argmax(wrong)] - sizes[:tree].sum()
            raise InvalidModel(f"tree {tree}: categories of node {first} are no ascending levels")


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise InvalidModel(otherwise)


def _check_texts(content: dict[str, Any]) -> None:
    """Check that UTF-8 can encode all names, levels and other texts."""
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        near = error.object[max(0, error.start - 20) : error.start + 20]
        raise InvalidModel(f"a text has half of a surrogate pair, which is no character: {near!r}") from None


def _mapping(value: Any, subject: str, keys: Any = None) -> dict[str, Any]:
    _check(isinstance(value, dict), f"{subject} is not a mapping")
    if keys is not None:
        _check(set(value) == set(keys), f"{subject} has other entries than {', '.join(keys)}")
    return value


def _sequence(value: Any, subject: str) -> list[Any]:
    _check(isinstance(value, list), f"{subject} is not a list")
    return value


def _floats(value: Any, subject: str, length: int | None = None) -> np.ndarray:
    if isinstance(value, np.ndarray):  # from the compact form
        _check(length is None or len(value) == length, f"{subject} has {len(value)} entries instead of {length}")
        return value.astype(np.float64)
    numbers = []
    for number in _sequence(value, subject):
        if type(number) is not float:
            _check(number is None or (type(number) is str and number in _WORDS), f"{subject} holds {number!r}")
            number = _WORDS[number]
        numbers.append(number)
    _check(length is None or len(numbers) == length, f"{subject} has {len(numbers)} entries instead of {length}")
    return np.array(numbers, np.float64)


def _integers(value: Any, subject: str, low: int, high: int, dtype: type, length: int | None = None) -> np.ndarray:
    """Integers from `low` to `high`, both included."""
    if isinstance(value, np.ndarray):
        _check(not len(value) or bool(value.min() >= low and value.max() <= high), f"{subject} is not within {low} to {high}")
        _check(length is None or len(value) == length, f"{subject} has {len(value)} entries instead of {length}")
        return value.astype(dtype)
    for number in _sequence(value, subject):
        _check(type(number) is int and low <= number <= high, f"{subject} holds {number!r}")
    _check(length is None or len(value) == length, f"{subject} has {len(value)} entries instead of {length}")
    return np.array(value, dtype)


def _feature(value: Any, number: int) -> tuple[str, tuple[Level, ...] | None]:
    """Return name and levels of a feature."""
    feature = _mapping(value, f"feature {number}")
    _check(set(feature) in ({"name"}, {"name", "levels"}), f"feature {number} has other entries than name and levels")
    name = feature["name"]
    _check(type(name) is str, f"the name of feature {number} is not a string")
    return name, parse_levels(feature["levels"], f"feature {name!r}") if "levels" in feature else None


def _edges(value: Any, features: tuple[Feature, ...]) -> tuple[np.ndarray | None, ...]:
    edges = _sequence(value, "edges")
    _check(len(edges) in (0, len(features)), f"there are edges for {len(edges)} of {len(features)} features")
    parsed: list[np.ndarray | None] = []
    for feature, feature_edges in zip(features, edges, strict=bool(edges)):
        _check((feature_edges is None) == feature.is_categorical, f"the edges and kind of {feature.name!r} do not fit")
        parsed.append(None if feature_edges is None else _floats(feature_edges, f"edges of {feature.name!r}"))
        if (numbers := parsed[-1]) is not None:
            ascend = (numbers[1:] > numbers[:-1]).all() and not np.isnan(numbers[:1]).any()
            _check(bool(ascend), f"edges of {feature.name!r} do not ascend")
    return tuple(parsed)


#: The record of the losses of several outputs, see `losses.per_output`.
_LOSSES: Shape = {
    "name": str,
    "losses": [{OTHERS: PLAIN}],
    "outputs": [str],
    "targets?": [str],
    "columns?": [Within(0)],
}


def _losses(value: dict[str, Any], n_outputs: int) -> dict[str, Any]:
    """The record of the losses of several outputs."""
    _shape(value, _LOSSES, "loss")
    losses, names, targets = value["losses"], value["outputs"], value.get("targets", value["outputs"])
    columns = value.get("columns", list(range(n_outputs)))
    for kind, output_values in (("losses", losses), ("names", names), ("columns", columns)):
        _check(len(output_values) == n_outputs, f"there are {len(output_values)} {kind} for {n_outputs} outputs")
    _check(len(set(names)) == n_outputs, "two outputs have one name")
    _check(set(columns) == set(range(len(targets))), "the columns of the outputs are not those of the targets")
    for loss in losses:
        _check("losses" not in loss and loss.get("n_classes", 2) == 2, "the loss of an output has several outputs")
        _loss(loss, 1, None)
    return value


def _loss(value: Any, n_outputs: int, has_classes: bool | None) -> dict[str, Any]:
    """The record of a loss; the parameters of built-in losses are checked. has_classes : None if that is not known."""
    from dboost import losses  # imports compiled kernels, which writing a model does not need

    loss = _mapping(value, "loss")
    _check(type(loss.get("name")) is str and loss["name"] != "", "the loss has no name")
    if "losses" in loss:
        _check(not has_classes, "there are classes, but several losses")
        return _losses(loss, n_outputs)
    _shape(loss, _PARAMETERS, "loss")
    if all(known.name != loss["name"] for known in losses.BUILT_IN):
        return loss
    n_built_in = next(len(known.leaves) for known in losses.BUILT_IN if known.name == loss["name"])
    _check(n_outputs in (1, n_built_in) or has_classes is not False, "there are several outputs but no classes")
    for name, option in loss.items():
        is_number = type(option) in (int, float) and abs(option) < math.inf
        _check(name == "name" or option is None or is_number, f"the loss's {name} is not a number")
    if n_built_in > 1:
        _check(n_outputs == n_built_in, f"the loss {loss['name']!r} has {n_built_in} outputs, the model has {n_outputs}")
        _check((loss.get("scale") or 0) > 0, "the loss's scale is not positive")
    n_classes = loss.get("n_classes", 2)
    _check(n_classes == max(n_outputs, 2), f"the loss is one of {n_classes} classes, the model has {n_outputs} outputs")
    try:
        made = losses.from_dict(loss)
    except (TypeError, ValueError) as error:
        raise InvalidModel(f"the loss {loss['name']!r} cannot be created from its parameters: {error}") from None
    _check(has_classes in (None, made.targets.are_classes), f"the loss {made.name!r} and the classes do not fit")
    return loss


#: Margins of intervals, see `Calibration`.
_CALIBRATION: Shape = {
    "coverage": float,
    "rows": Within(1),
    "margin": float,
    "by?": str,
    "levels?": [PLAIN],
    "margins?": [float],
}


def _calibration(value: Any, has_classes: bool) -> Calibration | None:
    if value is None:
        return None
    _shape(value, _CALIBRATION, "calibration")
    _check(not has_classes, "there are margins of intervals, but the model predicts classes")
    _check(0 < value["coverage"] < 1, "calibration: coverage is not between 0 and 1")
    _check(len({name in value for name in ("by", "levels", "margins")}) == 1, "calibration: levels and margins do not fit")
    levels = parse_levels(value.get("levels", []), "calibration: levels")
    margins = tuple(value.get("margins", ()))
    _check(len(margins) == len(levels), "calibration: levels and margins do not fit")
    _check(all(map(math.isfinite, (value["margin"], *margins))), "calibration: a margin is not finite")
    _check(list(levels) == sorted(levels, key=sort_key), "calibration: levels are not sorted")
    return Calibration(value["coverage"], value["rows"], value["margin"], value.get("by"), levels, margins)


#: Parameters of any version, so that files of older and newer ones can be read.
_PARAMETERS: Shape = {OTHERS: PLAIN}
#: See `Ensemble.search`.
_SEARCH: Shape = {
    "iterations": Within(1), "learning_rate": (float, None), "rows": (Within(0), None), "train_loss": (float, None)
}  # fmt: skip
#: The record of a fit.
_SOURCE: Shape = {
    "label": (str, None),
    "rows": (Within(0), None),
    "first_iteration": Within(1),
    "last_iteration": Within(0),
    "parameters?": _PARAMETERS,
    "data_digest?": (str, None),
    "offset?": (str, bool),
    "unexplained_loss?": (float, None),
    "steps?": _PARAMETERS,
    "learning_rates?": [float],  # of the iterations, if they differ
    "search?": _SEARCH,
    "bag?": int,  # number of fits that are averaged
    "refreshed?": [{OTHERS: PLAIN}],
    "summary?": {OTHERS: PLAIN},  # see `Summary`
    OTHERS: PLAIN,
}


def _check_sources(sources: list[Any], n_features: int, n_outputs: int, n_iterations: int) -> None:
    from dboost.model.data_summary import Summary  # imports compiled kernels, as losses do

    last = 0
    for number, source in enumerate(sources):
        label = f"source {number}"
        _shape(source, _SOURCE, label)
        first, before, last = source["first_iteration"], last, source["last_iteration"]
        _check(before < first <= last + 1 and last <= n_iterations, f"the iterations of {label}, {first} to {last}, do not fit")
        _check(source.get("offset") is not False, f"the offset of {label} is neither a name nor true")
        rates = source.get("learning_rates")
        if rates is not None:
            _check(len(rates) == last + 1 - first, f"{label} has {len(rates)} learning rates for {last + 1 - first} iterations")
            _check(all(0 < rate < math.inf for rate in rates), f"a learning rate of {label} is not positive and finite")
        if "summary" in source:
            try:
                Summary.from_dict(source["summary"], n_features, n_outputs)
            except DBoostError as error:
                raise InvalidModel(f"{label}: {error}") from None


def _metrics(value: Any) -> dict[str, tuple[float, ...]]:
    metrics = {name: tuple(_floats(values, f"metric {name!r}").tolist()) for name, values in _mapping(value, "metrics").items()}
    _check(len({len(values) for values in metrics.values()}) < 2, "the metrics are of different numbers of iterations")
    return metrics


def _shape(value: Any, shape: Shape, subject: str) -> None:
    try:
        check_shape(value, shape, subject)
    except ShapeError as error:
        raise InvalidModel(str(error)) from None


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
    _check(value == "object" or len(set(held or ())) == len(held or ()), f"as {value}, a class is there twice")
    return value


def _tree(value: Any, features: tuple[Feature, ...], width: int) -> Tree:
    """Return the tree, of the right types, lengths and shape; `check_trees` checks its values."""
    stored = ("feature", "threshold", "categories", "missing_left", "gain", "cover", "count", "value")
    entries = _mapping(value, "it", stored)
    feature = _integers(entries["feature"], "feature", -1, len(features) - 1, np.int32)
    n = len(feature)
    left, right = depth_first_children(feature, [n])
    nodes_of_sets = [node for node, f in enumerate(feature.tolist()) if f >= 0 and features[f].is_categorical]
    sets = _mapping(entries["categories"], "categories", [str(node) for node in nodes_of_sets])
    categories: list[np.ndarray | None] = [None] * n
    for node in nodes_of_sets:
        last = len(features[feature[node]].categories or ()) - 1
        categories[node] = _integers(sets[str(node)], f"categories of node {node}", 0, last, np.int32)
    return Tree(
        feature=feature,
        threshold=_floats(entries["threshold"], "threshold", n),
        categories=tuple(categories),
        missing_left=_integers(entries["missing_left"], "missing_left", 0, 1, np.bool_, n),
        left=left,
        right=right,
        gain=_floats(entries["gain"], "gain", n),
        cover=_floats(entries["cover"], "cover", n),
        count=_integers(entries["count"], "count", 0, np.iinfo(np.int64).max, np.int64, n),
        value=_floats(entries["value"], "value", n * width).reshape(n if width == 1 else (n, width)),
    )


#: Highest version of the format; files of a higher one are refused. Version 2 has trees with several values per leaf, version 3
#: margins of intervals and forests, whose trees are averaged; models without these are written in the version below.
VERSION = 3

_MAGIC = b"dboost arrays, version "
#: The lines before the digest, that of the target if there is one, and that of the digest, in JSON and in the compact form.
_TARGET = rb'\{"name": (".*"), "sha256": "([0-9a-f]{64})"\}'
_JSON_LINES = (
    re.compile(rb'\{\n "format": "dboost",\n "version": ([1-9][0-9]{0,8}),\n'),
    re.compile(rb' "target": ' + _TARGET + rb",\n"),
    re.compile(rb' "sha256": "([0-9a-f]{64})",\n'),
)
_COMPACT_LINES = (
    re.compile(_MAGIC + rb"([1-9][0-9]{0,8})\n"),
    re.compile(_TARGET + rb"\n"),
    re.compile(rb"([0-9a-f]{64})\n"),
)


def dumps(ensemble: Ensemble) -> bytes:
    """Return the bytes of the model's file in JSON.

    Raises
    ------
    ModelFileError
        If a parameter has no JSON type.
    """
    content = _content(ensemble)
    target = _target(ensemble)
    head = b'{\n "format": "dboost",\n "version": %d,\n' % _version(ensemble) + (
        b' "target": %b,\n' % target if target else b""
    )
    return head + b' "sha256": "%b",\n' % _sha256(content).encode() + content


def digest(ensemble: Ensemble) -> str:
    """Return the SHA-256 of the model's content in hexadecimal, equal to the one in its file."""
    return _sha256(_content(ensemble))


def loads(data: bytes, name: str = "the model file") -> Ensemble:
    """Return the model in the bytes of a file of either form, which gzip may have compressed; `name` is its name in messages.

    Raises
    ------
    ModelFileError
        If the content is not a valid model.
    """
    if data.startswith(_GZIP_MAGIC):
        try:
            data = _decompressed(data, _GZIP_WINDOW, _GZIP_RATIO)
        except InvalidModel as error:
            raise ModelFileError(f"{name} is damaged or cut short: {error}") from error
    is_compact = data.startswith(_MAGIC)
    version_pattern, target_pattern, digest_pattern = _COMPACT_LINES if is_compact else _JSON_LINES
    first_lines = version_pattern.match(data)
    if first_lines is None:
        other = "xgboost" if b'"learner"' in data[:4096] else "lightgbm" if data.startswith(b"tree\nversion=") else None
        how = "" if other is None else f": dboost.from_{other}(path) converts models of that library"
        raise ModelFileError(f"{name} is not a dboost model, or its first lines are damaged{how}")
    if (version := int(first_lines[1])) > VERSION:
        raise ModelFileError(
            f"{name} has format version {version}, written by a newer dboost; this one reads versions up to {VERSION}"
        )
    target_line = target_pattern.match(data, first_lines.end())
    if target_line is not None and _sha256(target_line[1]) != target_line[2].decode():
        raise ModelFileError(f"{name} is damaged or was edited: the name of its target does not match its checksum")
    digest_line = digest_pattern.match(data, (target_line or first_lines).end())
    if digest_line is None:
        raise ModelFileError(f"{name} is damaged or cut short: the line with its checksum cannot be read")
    content = data[digest_line.end() :]
    if _sha256(content) != digest_line[1].decode():
        raise ModelFileError(f"{name} is damaged, cut short or was edited: its content does not match its checksum")
    try:
        model = parse_ensemble(_unpack(content) if is_compact else parse_json(b"{" + content))
        _check(version == _version(model), f"it is a model of version {_version(model)}, written as version {version}")
        return model if target_line is None else replace(model, target_name=_parsed_target(target_line[1]))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{name} does not hold a valid model: {error}") from error


def check(ensemble: Ensemble, n_known: int | None = None) -> None:
    """Check that `loads` would accept a model, without serializing its trees, split points and summaries.

    Summaries are finite numbers in JSON types by construction (`dboost.model.data_summary`), and `loads` checks no more.

    n_known : number of leading trees that were checked before, like all else but records of sources and metrics; default:
    nothing was.

    Raises
    ------
    ModelFileError
        Naming the invalid part.
    """
    sources = tuple({name: value for name, value in source.items() if name != "summary"} for source in ensemble.sources)
    features = ensemble.features if n_known is None else ()
    content = _plain_entries(replace(ensemble, trees=(), edges=(), features=features, sources=sources))
    try:
        if n_known is None:
            parse_ensemble(content | {"edges": list(ensemble.edges)}, len(ensemble.trees))
        else:
            _check_texts(content)
            _check_sources(content["sources"], len(ensemble.features), ensemble.n_outputs, ensemble.n_iterations)
            _metrics(content["metrics"])
    except InvalidModel as error:
        raise ModelFileError(f"the model cannot be stored: {error}") from error
    _check_trees(replace(ensemble, trees=ensemble.trees[n_known:]))


def dumps_compact(ensemble: Ensemble) -> bytes:
    """Return the bytes of the model's file in the compact form."""
    _check_trees(ensemble)
    trees, header = ensemble.trees, _plain_entries(replace(ensemble, trees=()))
    text = json.dumps(header | {"trees": len(trees)}, separators=(",", ":"), allow_nan=False).encode()
    parts = [len(text).to_bytes(8, "little"), text, _bytes(np.array([tree.n_nodes for tree in trees], "<i4"))]
    nodes_of = _kinds(_joined(trees, "feature", np.dtype("<i4")), [feature.is_categorical for feature in ensemble.features])
    for name, dtype, kind in ARRAYS:
        parts.append(_bytes(_joined(trees, name, np.dtype(dtype))[nodes_of[kind]].ravel()))
    sets = [codes for tree in trees for codes in tree.categories if codes is not None]
    parts.append(_bytes(np.array([len(codes) for codes in sets], "<i4")))
    parts.append(_bytes(np.concatenate([np.empty(0, "<u2"), *sets]).astype("<u2")))
    joined = b"".join(parts)
    content = zlib.compress(joined, 6)
    if len(joined) > _allowed(len(content)):
        content = zlib.compress(joined, 0)
    target = _target(ensemble)
    head = _MAGIC + b"%d\n" % _version(ensemble) + (b"%b\n" % target if target else b"")
    return head + f"{_sha256(content)}\n".encode() + content


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the JSON form."""
    return json.loads(files(__package__).joinpath("model.schema.json").read_text(encoding="utf-8"))


def save(ensemble: Ensemble, path: str | os.PathLike[str]) -> None:
    """Write the model's file atomically; an existing file is replaced.

    Parameters
    ----------
    ensemble : Ensemble
    path : path, or URL that fsspec knows
        A name that ends in ".dboost" selects the compact form, and a further ".gz" compression by gzip.

    Raises
    ------
    ModelFileError
        Naming the file that cannot be written.
    """
    name = without_query(path_text(path))
    data = dumps_compact(ensemble) if name.removesuffix(_GZIP_SUFFIX).endswith(SUFFIX) else dumps(ensemble)
    write_whole(path, _gzipped(data) if name.endswith(_GZIP_SUFFIX) else data)


def load(path: str | os.PathLike[str]) -> Ensemble:
    """Read a model from its file.

    Raises
    ------
    ModelFileError
        Naming the file: it does not exist, is damaged, or was written by a newer dboost.
    """
    return loads(read_whole(path), shown(path))


def _version(ensemble: Ensemble) -> int:
    """Return the lowest version of the format that has all parts of a model."""
    if ensemble.calibration is not None or ensemble.averages:
        return 3
    return 1 if ensemble.width == 1 else 2


def _target(ensemble: Ensemble) -> bytes:
    """Return the name of the target with its digest, as JSON; nothing if it has no name."""
    if ensemble.target_name is None:
        return b""
    name = _line(ensemble.target_name).encode("utf-8", "backslashreplace")
    return b'{"name": %b, "sha256": "%b"}' % (name, _sha256(name).encode())


def _parsed_target(text: bytes) -> str:
    """Return the name of the target in its JSON."""
    try:
        return str(parse_json(text))  # it is in quotes
    except ValueError as error:
        raise InvalidModel(f"the name of the target: {error}") from error


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _content(ensemble: Ensemble) -> bytes:
    """The lines after the digest."""
    _check_trees(ensemble)
    text = ",\n".join(f' "{key}": {_lines(value, key)}' for key, value in _entries(ensemble).items()) + "\n}\n"
    # Half of a surrogate pair, which UTF-8 cannot encode, becomes an escape like "\udcff", which is valid JSON.
    return text.encode("utf-8", "backslashreplace")


def _entries(ensemble: Ensemble) -> dict[str, Any]:
    """The entries after the digest, as JSON types and NumPy scalars."""
    return {
        "loss": _sorted(ensemble.loss),
        "classes": ensemble.classes,
        "classes_dtype": ensemble.classes_dtype,
        "baseline": _numbers(ensemble.baseline),
        **({} if ensemble.width == 1 else {"width": ensemble.width}),
        **({"averages": True} if ensemble.averages else {}),
        "best_iteration": ensemble.best_iteration,
        **({} if ensemble.calibration is None else {"calibration": _sorted(ensemble.calibration.to_dict())}),
        "named": ensemble.named,
        "features": [
            {"name": f.name} if f.categories is None else {"name": f.name, "levels": f.categories} for f in ensemble.features
        ],
        "parameters": _sorted(ensemble.parameters),
        "sources": _sorted(ensemble.sources),
        "metrics": {key: _numbers(values) for key, values in ensemble.metrics.items()},
        "edges": [None if edges is None else _numbers(edges) for edges in ensemble.edges],
        "trees": map(_tree_content, ensemble.trees),  # one at a time
    }


def _plain_entries(ensemble: Ensemble) -> dict[str, Any]:
    """The entries of an ensemble without trees as a reader of its file gets them."""
    return json.loads(_line(_entries(ensemble) | {"trees": []}))


#: Entries with a line for each item.
_LONG = ("features", "parameters", "sources", "metrics", "edges", "trees")


def _lines(value: Any, key: str) -> str:
    """Return an entry as JSON."""
    if key not in _LONG:
        return _line(value)
    ends = "{}" if isinstance(value, dict) else "[]"
    items = [f"{_line(k)}: {_line(v)}" for k, v in value.items()] if isinstance(value, dict) else map(_line, value)
    joined = ",\n  ".join(items)
    return f"{ends[0]}\n  {joined}\n {ends[1]}" if joined else ends


def _line(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)
    except (TypeError, ValueError) as error:
        raise ModelFileError(f"the model cannot be stored: {error}") from error


def _plain(value: Any) -> Any:
    """Convert NumPy scalars to JSON types."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} is not a number, string, list or mapping")


def _sorted(value: Any) -> Any:
    """Mappings with sorted keys at all levels: their order has no meaning, so the digest must not depend on it."""
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list | tuple) else value


def _numbers(values: Any) -> list[float | str | None]:
    return [
        value if math.isfinite(value) else None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        for value in np.asarray(values, np.float64).tolist()
    ]


def _check_trees(ensemble: Ensemble) -> None:
    try:
        check_trees(ensemble.trees, ensemble.features, ensemble.width)
    except InvalidModel as error:
        raise ModelFileError(f"the model cannot be stored: {error}") from error


def _tree_content(tree: Tree) -> dict[str, Any]:
    return {
        "feature": tree.feature.tolist(),
        "threshold": _numbers(tree.threshold),
        "categories": {str(node): codes.tolist() for node, codes in enumerate(tree.categories) if codes is not None},
        "missing_left": tree.missing_left.astype(int).tolist(),
        "gain": _numbers(tree.gain),
        "cover": _numbers(tree.cover),
        "count": tree.count.tolist(),
        "value": _numbers(tree.value.ravel()),
    }


SUFFIX = ".dboost"
#: Limits of decompression: bytes, and for larger files bytes per byte of the file. Trees compress to a quarter or more; content
#: that compresses to less than a sixteenth is written without compression.
_SMALL, _RATIO = 4 << 20, 16
#: Of gzip: the end of names, the first bytes, the format's number in zlib, and the limit of decompression; JSON has many spaces
#: and equal numbers.
_GZIP_SUFFIX, _GZIP_MAGIC, _GZIP_WINDOW, _GZIP_RATIO = ".gz", b"\x1f\x8b", 31, 100
#: Name, dtype, and nodes with an entry: all, splits, or numeric splits.
ARRAYS: tuple[tuple[str, str, str], ...] = (
    ("feature", "<i4", "all"),
    ("missing_left", "|u1", "splits"),
    ("threshold", "<f8", "numeric"),
    ("gain", "<f8", "all"),
    ("cover", "<f8", "all"),
    ("count", "<i8", "all"),
    ("value", "<f8", "all"),
)


def _unpack(content: bytes) -> dict[str, Any]:
    """Return the content of the JSON form, with arrays for the lists in trees.

    Raises
    ------
    InvalidModel
        If the lengths of the content do not fit; `parse_ensemble` checks the rest.
    """
    reader = _Reader(_decompressed(content))
    header = _mapping(parse_json(reader.take(int.from_bytes(reader.take(8), "little"))), "its header")
    n_trees = header.get("trees")
    # A stream of zlib is at most 1,032 times shorter than its content.
    if type(n_trees) is not int or not 0 <= n_trees <= len(content) * 1032:
        raise InvalidModel("its header has no number of trees")
    features = _sequence(header.get("features"), "features")
    sizes = reader.array("<i4", n_trees)
    _check(bool((sizes > 0).all()), _NO_TREE)
    feature = reader.array("<i4", int(sizes.sum(dtype=np.int64)))
    known = not len(feature) or bool(feature.min() >= -1 and feature.max() < len(features))
    _check(known, "a split is about a feature that there is not")
    nodes_of = _kinds(feature, [isinstance(feature_record, dict) and "levels" in feature_record for feature_record in features])
    columns: dict[str, np.ndarray] = {"feature": feature}
    width = header.get("width", 1)
    _check(type(width) is int and 1 <= width <= MAX_LEVELS, "width is not a number of values per leaf")
    for name, dtype, kind in ARRAYS[1:]:
        stored = reader.array(dtype, int(nodes_of[kind].sum()) * (width if name == "value" else 1))
        columns[name] = stored
        if kind != "all":
            columns[name] = np.full(len(feature), np.nan if name == "threshold" else 0, stored.dtype)
            columns[name][nodes_of[kind]] = stored
    lengths = reader.array("<i4", int(nodes_of["categorical"].sum()))
    _check(bool((lengths >= 0).all()), "a set of categories has a negative length")
    codes = np.split(reader.array("<u2", int(lengths.sum(dtype=np.int64))), np.cumsum(lengths)[:-1]) if len(lengths) else []
    reader.end()
    return header | {"trees": _trees(sizes, columns, nodes_of["categorical"], codes, width)}


def _allowed(n_compressed: int, ratio: int = _RATIO) -> int:
    """Largest number of bytes that compressed content may decompress to."""
    return max(_SMALL, ratio * n_compressed)


def _gzipped(data: bytes) -> bytes:
    """Compress a file by gzip, so that `_decompressed` accepts it."""
    compressed = gzip.compress(data, 6, mtime=0)
    return gzip.compress(data, 0, mtime=0) if len(data) > _allowed(len(compressed), _GZIP_RATIO) else compressed


def _decompressed(content: bytes, window: int = zlib.MAX_WBITS, ratio: int = _RATIO) -> bytes:
    """Decompress the content up to a limit: a few kilobytes could fill the memory otherwise.

    window : as zlib calls its formats.
    """
    allowed, stream = _allowed(len(content), ratio), zlib.decompressobj(window)
    try:
        data = stream.decompress(content, allowed + 1)
    except zlib.error as error:
        raise InvalidModel(f"its content cannot be decompressed ({error})") from error
    if len(data) > allowed:
        raise InvalidModel(
            f"its {len(content):,} bytes of content decompress to more than {allowed:,} bytes, which is no model"
        )
    if not stream.eof:
        raise InvalidModel("its content cannot be decompressed (it ends too early)")
    if stream.unused_data:
        raise InvalidModel("there is more in it than its compressed content")
    return data


def _trees(
    sizes: np.ndarray, columns: dict[str, np.ndarray], is_set: np.ndarray, codes: list[np.ndarray], width: int
) -> list[dict[str, Any]]:
    trees, first_set, first = [], 0, 0
    for size in sizes.tolist():
        nodes = slice(first, first + size)
        at = np.flatnonzero(is_set[nodes])
        sets = {str(node): codes[first_set + i] for i, node in enumerate(at)}
        values = columns["value"][first * width : (first + size) * width]
        trees.append({name: column[nodes] for name, column in columns.items()} | {"categories": sets, "value": values})
        first_set, first = first_set + len(at), first + size
    return trees


def _kinds(feature: np.ndarray, is_categorical: list[bool]) -> dict[str, np.ndarray]:
    """Return which nodes are of each kind. feature : of each node; is_categorical : of each feature."""
    split = feature >= 0
    categorical = split & np.array([*is_categorical, False])[feature]
    return {"all": np.ones(len(feature), bool), "splits": split, "numeric": split & ~categorical, "categorical": categorical}


def _joined(trees: Sequence[Tree], name: str, dtype: np.dtype) -> np.ndarray:
    return np.concatenate([getattr(tree, name) for tree in trees] or [np.empty(0)]).astype(dtype)


def _bytes(numbers: np.ndarray) -> bytes:
    """The first bytes of all numbers, then the second ones, …"""
    return np.ascontiguousarray(numbers).view(np.uint8).reshape(len(numbers), numbers.itemsize).T.tobytes()


class _Reader:
    """Reads content from the start to the end."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, length: int) -> bytes:
        if not 0 <= length <= len(self._data) - self._at:
            raise InvalidModel("it ends too early")
        self._at += length
        return self._data[self._at - length : self._at]

    def array(self, dtype: str, length: int) -> np.ndarray:
        size = np.dtype(dtype).itemsize
        data = np.frombuffer(self.take(length * size), np.uint8).reshape(size, length)
        return np.ascontiguousarray(data.T).reshape(-1).view(dtype)

    def end(self) -> None:
        if self._at != len(self._data):
            raise InvalidModel("there is more in it than its header says")
