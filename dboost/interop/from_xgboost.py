"""Import of XGBoost models.

**Thresholds.** XGBoost rounds a row to float32 and tests ``x < s``. The equivalent test of a float64 x is ``x <= t``, where t
is the largest float64 that rounds to a float32 below s: half-way between s and the float32 before it, or next to that,
depending on which way the tie is rounded. So float64 rows reach the same leaves.

**Categories.** A set of codes goes right. Models of XGBoost 3.1 and later contain the levels of the codes. For earlier models,
and for matrices, the user gives them, since a code in no set goes left in XGBoost, while here an unknown level is missing.

**Sums.** Leaf values are float32, and are added in float64: predictions agree to the rounding of float32 sums. The base score
is a prediction; the raw score follows by the link, which XGBoost computes in float32. The weights of DART trees are multiplied
into the leaf values.

**Early stopping.** An estimator predicts with the iterations up to its best one, so only these are converted; a file that an
estimator saved is treated like the estimator. A `Booster` predicts with all of its trees.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from dboost.errors import ModelFileError, ParameterError, shown
from dboost.files.atomic_write import read_whole
from dboost.interop.convert_trees import (
    DAMAGES,
    ImportedTree,
    Levels,
    assemble_imported,
    check_codes,
    check_levels,
    check_outputs,
    convert_tree,
    levels_of,
)
from dboost.interop.ubjson import parse_ubjson
from dboost.model.ensemble import Ensemble, Tree
from dboost.schema import Feature

#: Loss and link of each objective. "margin": the base score is a raw score already.
_OBJECTIVES = {
    "reg:squarederror": ("squared_error", "identity"),
    "reg:linear": ("squared_error", "identity"),
    "reg:absoluteerror": ("absolute_error", "identity"),
    "reg:quantileerror": ("quantile", "identity"),
    "reg:pseudohubererror": ("huber", "identity"),
    "reg:expectileerror": ("expectile", "identity"),
    "count:poisson": ("poisson", "exp"),
    "reg:gamma": ("gamma", "exp"),
    "reg:tweedie": ("tweedie", "exp"),
    "binary:logistic": ("log_loss", "sigmoid"),
    "binary:logitraw": ("log_loss", "margin"),
    "multi:softprob": ("log_loss", "softmax"),
    "multi:softmax": ("log_loss", "softmax"),
}


#: Features of a model without names, whose number is declared only: it takes memory before a tree shows that it is wrong.
_MOST_FEATURES = 2**22


def from_xgboost(model: Any, levels: Levels) -> Ensemble:
    """Return the ensemble of an `xgboost.Booster`, an estimator with one, or a model file.

    Raises
    ------
    ParameterError
        Naming what cannot be converted.
    ModelFileError
        If the file cannot be read.
    """
    content, name = _content(model)
    is_estimator = hasattr(model, "get_booster")
    try:
        learner = content["learner"]
        booster = learner["gradient_booster"]
        kind = booster["name"]
        if kind not in ("gbtree", "dart"):
            raise ParameterError(f"{name} is of kind {kind!r}; only trees (gbtree, dart) can be converted")
        forest = booster["gbtree"]["model"] if kind == "dart" else booster["model"]
        weights = booster.get("weight_drop") or forest.get("weight_drop")  # the latter from XGBoost 3.4 on
        weights = np.asarray(weights or np.ones(len(forest["trees"])), np.float32)
        parameters = learner["learner_model_param"]
        loss, options, link = _loss(learner["objective"], name)
        n_levels = np.size(options.get("quantile", 0.0))
        n_targets, n_classes = int(parameters.get("num_target", 1)), int(parameters["num_class"])
        if n_levels > 1 and n_targets != n_levels:
            raise ValueError(f"num_target is {n_targets}, and there are {n_levels} quantiles")
        if (link == "softmax" and n_classes < 2) or min(n_targets, n_classes) > 1:
            raise ValueError(f"num_class is {n_classes} and num_target {n_targets}, which does not fit the objective")
        n_outputs = max(n_targets, n_classes)  # with an objective of one output, XGBoost takes "classes" for targets
        width = _values_per_leaf(forest["trees"], n_outputs, name)
        check_outputs(n_outputs, len(forest["trees"]) * width, name)
        features, named = _features(learner, forest, int(parameters["num_feature"]), levels, name)
        trees = [
            (int(output), _tree(tree, weight, features, link, name))
            for tree, output, weight in zip(forest["trees"], forest["tree_info"], weights, strict=True)
        ][: _n_trees(learner, forest, n_outputs // width, is_estimator)]
        baseline = _baseline(parameters["base_score"], link, n_outputs, name)
        return assemble_imported(
            trees, features, named=named, loss=loss, options=options, baseline=baseline, library="XGBoost", width=width,
            n_targets=1 if link == "softmax" or n_levels > 1 else n_outputs,
        )  # fmt: skip
    except DAMAGES as error:
        if isinstance(error, ParameterError):
            raise
        raise ModelFileError(f"{name} is not a model of XGBoost that can be read: {error!r}") from error


def _content(model: Any) -> tuple[dict[str, Any], str]:
    if not isinstance(model, str | os.PathLike):
        booster = model.get_booster() if hasattr(model, "get_booster") else model
        if not hasattr(booster, "save_raw"):
            raise ParameterError(f"expected a Booster or an estimator of XGBoost, or a file, got {type(model).__name__}")
        return json.loads(bytes(booster.save_raw("json"))), "the model of XGBoost"
    name, data = shown(model), read_whole(model)
    try:
        # A binary file (UBJSON) begins with "{" as well, followed by the type of a length.
        return (json.loads if data[1:2] in b'"} \t\r\n' else parse_ubjson)(data), name
    except (ValueError, RecursionError) as error:
        if data[:1] != b"{":
            raise ModelFileError(f"{name} is no JSON of XGBoost") from error
        raise ModelFileError(f"{name} is neither JSON nor a binary model of XGBoost: {error}") from error


def _loss(objective: dict[str, Any], name: str) -> tuple[str, dict[str, Any], str]:
    kind = objective["name"]
    if kind not in _OBJECTIVES:
        raise ParameterError(f"{name} was trained with objective {kind!r}, for which dboost has no loss")
    loss, link = _OBJECTIVES[kind]
    options: dict[str, Any] = {}
    if loss in ("quantile", "expectile"):
        stored = objective[f"{loss}_loss_param"][f"{loss}_alpha"]
        levels = np.atleast_1d(json.loads(stored.replace("(", "[").replace(")", "]")))
        if len(levels) > 1 and (loss != "quantile" or (np.diff(levels) <= 0).any()):
            raise ParameterError(
                f"{name} predicts {len(levels)} {loss}s, and a Booster several quantiles of ascending levels only: convert "
                "models of one"
            )
        options[loss] = levels.astype(np.float64).tolist() if len(levels) > 1 else float(levels[0])
    elif loss == "tweedie":
        options["tweedie_power"] = float(objective["tweedie_regression_param"]["tweedie_variance_power"])
    elif loss == "huber":
        options["delta"] = float(objective["pseudo_huber_param"]["huber_slope"])
    return loss, options, link


def _values_per_leaf(trees: Sequence[dict[str, Any]], n_outputs: int, name: str) -> int:
    """Return the number of values per leaf: 1, or one for each output."""
    widths = {int(tree["tree_param"].get("size_leaf_vector", 1)) or 1 for tree in trees} or {1}
    if len(widths) > 1 or not widths <= {1, n_outputs}:
        raise ValueError(f"leaves have {sorted(widths)} values, there are {n_outputs} outputs")
    if widths != {1} and any("leaf_weights" not in tree for tree in trees):
        raise ParameterError(
            f"{name} has trees of several outputs without leaf_weights: load it with XGBoost 3.2 or later and save it again"
        )
    return widths.pop()


def _n_trees(learner: dict[str, Any], forest: dict[str, Any], n_trees: int, is_estimator: bool) -> int | None:
    """The number of trees that the model predicts with; None for all. n_trees : of a round without parallel trees."""
    attributes = learner.get("attributes", {})
    # Estimators write the attribute "scikit_learn" to their files.
    if "best_iteration" not in attributes or not (is_estimator or "scikit_learn" in attributes):
        return None
    per_iteration = n_trees * max(1, int(forest["gbtree_model_param"]["num_parallel_tree"]))
    if (best := int(attributes["best_iteration"])) < 0:
        raise ValueError(f"best_iteration is {best}")
    return (best + 1) * per_iteration


def _baseline(stored: str, link: str, n_outputs: int, name: str) -> np.ndarray:
    score = np.atleast_1d(np.asarray(json.loads(stored), np.float32))
    with np.errstate(divide="ignore", invalid="ignore"):
        if link == "exp":
            raw = np.log(score)
        elif link == "sigmoid":
            if not ((score >= 0) & (score <= 1)).all():
                raise ParameterError(f"{name} has the base_score {stored}, which is no probability")
            # XGBoost's bounds and formula; in float32 the result for 1 - 1e-6 differs by 0.06 from that in float64.
            bounded = np.clip(score, np.float32(1e-6), np.float32(1) - np.float32(1e-6))
            raw = 0 - np.log(1 / bounded - 1)
        else:
            raw = score
    if not np.isfinite(raw).all():
        raise ParameterError(f"{name} has the base_score {stored}, whose raw score is not a finite number")
    return np.broadcast_to(raw, (n_outputs,)).astype(np.float64)


def _features(
    learner: dict[str, Any], forest: dict[str, Any], n: int, levels: Levels, name: str
) -> tuple[tuple[Feature, ...], bool]:
    names, types = learner.get("feature_names") or [], learner.get("feature_types") or []
    named = bool(names)
    if (named and len(names) != n) or not 0 <= n <= _MOST_FEATURES:
        raise ValueError(f"num_feature is {n}, and there are {len(names)} names")
    names = names or [f"f{j}" for j in range(n)]
    has_sets = {
        int(tree["split_indices"][node]) for tree in forest["trees"] for node in np.flatnonzero(_flags(tree, "split_type"))
    }
    stored = forest.get("cats", {}).get("enc", [])
    categorical = [j for j in range(n) if (types and types[j] == "c") or j in has_sets]
    check_levels(levels, [names[j] for j in categorical], "XGBoost")
    features = []
    for j in range(n):
        if j not in categorical:
            features.append(Feature(names[j]))
            continue
        known = levels_of(names[j], levels[names[j]]) if names[j] in levels else _levels(stored[j] if stored else {})
        if not known:
            raise ParameterError(
                f"{name} does not say which levels the categorical column {names[j]!r} has: give "
                f"levels={{{names[j]!r}: [...]}} with the levels in the order of their codes, or their number"
            )
        features.append(Feature(names[j], known))
    return tuple(features), named


def _levels(stored: dict[str, Any]) -> tuple[Any, ...]:
    """The levels in a model; empty if it contains none, or not all of their bytes."""
    values = stored.get("values") or []
    if "offsets" not in stored:
        return tuple(values)
    data = np.array(values, np.int8).tobytes()
    ends = stored["offsets"]
    try:
        levels = tuple(data[a:b].decode() for a, b in pairwise(ends))
    except UnicodeDecodeError:
        return ()
    return levels if len(set(levels)) == len(levels) and all(levels) else ()


def _integers(tree: dict[str, Any], entry: str) -> np.ndarray:
    """Return an entry as int64[n]; floats, which binary files may hold as well, are an error in XGBoost, too."""
    values = np.asarray(tree[entry])
    if values.size and values.dtype.kind not in "iu":
        raise ValueError(f"{entry} are no integers")
    return values.astype(np.int64)


def _flags(tree: dict[str, Any], entry: str) -> np.ndarray:
    """Return an entry of zeros and ones as bool[n]; `split_type` may be absent, then bool[0]."""
    values = np.asarray(tree.get(entry, []) if entry == "split_type" else tree[entry])
    if not np.isin(values, (0, 1)).all():
        raise ValueError(f"{entry} holds other numbers than 0 and 1")
    return values.astype(bool)


def _tree(tree: dict[str, Any], weight: np.float32, features: Sequence[Feature], link: str, name: str) -> Tree:
    width = int(tree["tree_param"].get("size_leaf_vector", 1))
    condition = np.asarray(tree["split_conditions"], np.float64).astype(np.float32)
    feature = _integers(tree, "split_indices")
    left = _integers(tree, "left_children")
    cover = np.asarray(tree["sum_hessian"], np.float64)
    sets = {}
    nodes = tree.get("categories_nodes", [])
    if sorted(map(int, nodes)) != np.flatnonzero(_flags(tree, "split_type")).tolist():
        raise ValueError("categories are not those of the nodes whose split_type is categorical")
    categories = _integers(tree, "categories") if nodes else np.empty(0, np.int64)
    segments = zip(nodes, tree.get("categories_segments", []), tree.get("categories_sizes", []), strict=True)
    for node, first, size in segments:
        right = categories[first : first + size]
        if not 0 <= node < len(feature) or first < 0 or len(right) != size:
            raise ValueError(f"the categories of node {node} do not fit the tree")
        node_features = features[feature[node]]
        check_codes(node_features.name, right, len(node_features.categories or ()))
        sets[int(node)] = np.setdiff1d(np.arange(len(node_features.categories or ())), right)
    right, value = _integers(tree, "right_children"), condition.astype(np.float64)
    if width > 1:  # the right child of a leaf is its number
        is_leaf, leaf_weights = left < 0, np.asarray(tree["leaf_weights"], np.float64).astype(np.float32).reshape(-1, width)
        if not ((right[is_leaf] >= 0) & (right[is_leaf] < len(leaf_weights))).all():
            raise ValueError("a leaf is none of the leaf_weights")
        value = np.zeros((len(left), width))
        value[is_leaf] = leaf_weights[right[is_leaf]]
        right[is_leaf] = -1
        cover = cover / width
    threshold = last_below(condition)
    for node in np.flatnonzero((left >= 0) & [features[j].is_categorical for j in feature]):
        if int(node) not in sets:  # a numeric split on the codes of a categorical column
            codes = np.arange(len(features[feature[node]].categories or ()))
            sets[int(node)] = codes[codes <= threshold[node]]
    return convert_tree(
        ImportedTree(
            feature=feature,
            threshold=threshold,
            categories=sets,
            missing_left=_flags(tree, "default_left"),
            left=left,
            right=right,
            gain=np.asarray(tree["loss_changes"], np.float64),
            cover=cover,
            # A sum of Hessians is a number of rows where each Hessian is 1; otherwise the number is unknown.
            count=np.rint(cover).astype(np.int64) if link == "identity" else np.zeros(len(left), np.int64),
            value=value * np.float64(weight),
        ),
        name,
    )


def last_below(bounds: np.ndarray) -> np.ndarray:
    """Return the largest float64 that rounds to a float32 below each bound (float32): float64[n]."""
    with np.errstate(over="ignore", invalid="ignore"):
        below = np.nextafter(bounds, np.float32(-np.inf))
        middle = below.astype(np.float64) / 2 + bounds.astype(np.float64) / 2
        last = np.where(middle.astype(np.float32) < bounds, middle, np.nextafter(middle, -np.inf))
    return np.where(np.isinf(bounds), np.where(bounds > 0, np.finfo(np.float64).max, -np.inf), last)
