"""Export to XGBoost's JSON format, for `xgboost.Booster(model_file=...)` (the schema of XGBoost 2, which later versions read).

XGBoost differs in four ways:

* **Left means "less than"**, in float32: ``x < s``. So s is the float32 after the one nearest to our threshold.
* **A set of categories goes right**, and a category in no set goes left, independent of the direction of missing values. Here,
  unknown levels follow missing values. So a categorical split with missing values on the right is mirrored, with its children
  exchanged; then the set contains the levels on the side without missing values, and both libraries agree on all others.
* **Siblings are neighbours**: the right child has the number after the left one's, so nodes are renumbered.
* **The base score** is a prediction in float32, from which XGBoost computes the raw score. It is set to the prediction of raw
  score 0, and the baseline is added to the leaves of the first iteration, so that nothing is rounded twice.

Trees of several outputs are those of XGBoost's ``multi_strategy="multi_output_tree"`` (3.2 and later), whose leaves are
numbered: the right child of a leaf is its number among the rows of ``leaf_weights``. With categorical splits, which such trees
of XGBoost do not have in all versions, the file has a tree for each output.

XGBoost (3.1 and later) reads frames directly: the file contains the levels, and XGBoost replaces a frame's categories by their
positions in this list. XGBoost does not change matrices, so a level's position must be its number in `to_matrix`: for levels
that are their own numbers, the list is 0, 1, …, up to the largest level. XGBoost refuses frames with a categorical column whose
levels the file cannot contain; matrices of `to_matrix` always work.

Leaf values and their sums are float32 in XGBoost. An exponential loss (p = sigmoid(2 F)) becomes binary:logistic with doubled
leaf values. The Huber loss becomes reg:squarederror with the same predictions: its δ changes between iterations, which no
objective of XGBoost supports. So do expectiles, since XGBoost has reg:expectileerror from version 3.3 on only. Several
quantiles become reg:quantileerror with a list: XGBoost does not sort the predictions of a row, as a Booster does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from dboost.interop.export import away_from_missing, nearest_float32, numbers_of_levels, response_of, with_baseline
from dboost.losses import BaseLoss, Quantiles
from dboost.model.ensemble import Ensemble, Tree
from dboost.schema import MAX_LEVELS, Feature

_SQUARED: dict[str, Any] = {"name": "reg:squarederror", "reg_loss_param": {"scale_pos_weight": "1"}}
#: The prediction for the raw score 0.
_NEUTRAL = {"identity": "0E0", "exp": "1E0", "sigmoid": "5E-1", "softmax": "0E0"}
_NO_PARENT = 2_147_483_647
#: What XGBoost writes as the split condition of leaves of several values.
_SMALLEST = np.finfo(np.float32).smallest_subnormal
_INT64 = 15


def dumps(ensemble: Ensemble, loss: BaseLoss) -> bytes:
    """Return the bytes of an XGBoost model file in JSON.

    Raises
    ------
    ParameterError
        If the loss has a link that XGBoost does not have.
    """
    response, factor = response_of(loss, ensemble.n_outputs, "XGBoost")
    ensemble = ensemble.summed()
    if not ensemble.trees or any(codes is not None for tree in ensemble.trees for codes in tree.categories):
        ensemble = ensemble.expanded()
    features, n_outputs = ensemble.features, ensemble.n_outputs
    levels = loss.levels if isinstance(loss, Quantiles) else ()
    trees = [_tree(i, tree, value * factor, features) for i, (tree, value) in enumerate(with_baseline(ensemble))]
    names = [feature.name for feature in features] if ensemble.named else []
    if any(set(name) & set("[]<") for name in names):
        names = []  # XGBoost refuses such names; without names it accepts matrices
    model = {
        "learner": {
            "attributes": {},
            "feature_names": names,
            "feature_types": ["c" if feature.is_categorical else "float" for feature in features],
            "gradient_booster": {
                "model": {
                    "cats": _categories(features),
                    "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(trees))},
                    "iteration_indptr": list(range(0, len(trees) + 1, n_outputs // ensemble.width)),
                    "tree_info": [ensemble.outputs_of(i).start for i in range(len(trees))],
                    "trees": trees,
                },
                "name": "gbtree",
            },
            "learner_model_param": {
                "base_score": _NEUTRAL[response],
                "boost_from_average": "1",
                "num_class": str(n_outputs if response == "softmax" else 0),
                "num_feature": str(len(features)),
                "num_target": str(1 if response == "softmax" else n_outputs),
            },
            "objective": _quantiles(levels) if levels else _objective(response, ensemble),
        },
        "version": [2, 1, 0],
    }
    return json.dumps(model, ensure_ascii=True).encode()


def _quantiles(levels: Sequence[float]) -> dict[str, Any]:
    return {"name": "reg:quantileerror", "quantile_loss_param": {"quantile_alpha": json.dumps(levels)}}


def _objective(response: str, ensemble: Ensemble) -> dict[str, Any]:
    stored = ensemble.loss.get("losses", [ensemble.loss])[0]  # of the first target, if there are several
    if response == "softmax":
        return {"name": "multi:softprob", "softmax_multiclass_param": {"num_class": str(ensemble.n_outputs)}}
    if response == "sigmoid":
        return {"name": "binary:logistic", "reg_loss_param": {"scale_pos_weight": "1"}}
    if response == "exp":
        power = str(stored.get("tweedie_power", 1.5))
        return {
            "gamma": {"name": "reg:gamma", "reg_loss_param": {"scale_pos_weight": "1"}},
            "tweedie": {"name": "reg:tweedie", "tweedie_regression_param": {"tweedie_variance_power": power}},
        }.get(stored["name"], {"name": "count:poisson", "poisson_regression_param": {"max_delta_step": "0.7"}})
    others: dict[str, dict[str, Any]] = {
        "absolute_error": {"name": "reg:absoluteerror"},
        "quantile": _quantiles([stored.get("quantile", 0.5)]),
    }
    return others.get(ensemble.loss["name"], _SQUARED)


def _categories(features: tuple[Feature, ...]) -> dict[str, Any]:
    """The levels of all features: text in Arrow's layout, whole numbers as 64-bit integers."""
    encoded: list[dict[str, Any]] = []
    ends, in_order = [0], list[int]()
    for feature in features:
        levels = _positions(feature)
        if levels and isinstance(levels[0], int):
            encoded.append({"type": _INT64, "values": levels})
        else:
            text = [str(level).encode() for level in levels]
            offsets = np.cumsum([0, *map(len, text)]).tolist() if text else []
            encoded.append({"offsets": offsets, "values": np.frombuffer(b"".join(text), np.int8).tolist()})
        ends.append(ends[-1] + len(levels))
        in_order += sorted(range(len(levels)), key=levels.__getitem__)
    return {"enc": encoded, "feature_segments": ends, "sorted_idx": in_order}


def _positions(feature: Feature) -> list[Any]:
    """The levels of a feature, all text or all integers, each at the position of its number in `to_matrix`.

    Levels that the file cannot contain are replaced by one empty text. Without any levels, XGBoost would take the codes of a
    frame for those of the model; with this one it refuses the frame.
    """
    levels, numbers = list(feature.categories or ()), numbers_of_levels(feature)
    if not levels:
        return []
    if all(isinstance(level, str) for level in levels):
        # XGBoost counts the characters of a frame's text but reads bytes.
        return levels if all(str(level).isascii() for level in levels) else [""]
    if numbers.tolist() == levels:
        return list(range(int(numbers.max()) + 1)) if numbers.max() < MAX_LEVELS else [""]
    if all(type(level) is int and abs(level) < 2**63 for level in levels):
        return levels
    return [""]


def _tree(number: int, tree: Tree | None, value: np.ndarray, features: tuple[Feature, ...]) -> dict[str, Any]:
    if tree is None:
        leaf, zero = np.full(1, -1, np.int32), np.zeros(1)
        tree = Tree(leaf, np.full(1, np.nan), (None,), zero.astype(bool), leaf, leaf, zero, zero, zero.astype(np.int64), zero)
    n = tree.n_nodes
    left, right = tree.left.copy(), tree.right.copy()
    default_left = tree.missing_left.copy()
    with np.errstate(over="ignore"):
        condition = np.nextafter(nearest_float32(tree.threshold), np.float32(np.inf))
    sets: dict[int, np.ndarray] = {}
    for node in range(n):
        feature = features[tree.feature[node]]
        if tree.feature[node] < 0 or not feature.is_categorical:
            continue
        if not default_left[node]:
            left[node], right[node], default_left[node] = right[node], left[node], True
        members = away_from_missing(tree, node, feature)
        # A split with an empty set sends all rows one way, like the test x < infinity.
        condition[node] = 0.0 if len(members) else np.inf
        if len(members):
            sets[node] = members
    width = value.shape[1] if value.ndim > 1 else 1
    condition = np.where(tree.feature < 0, _SMALLEST if width > 1 else value.astype(np.float32), condition)
    order, parents = _with_siblings_together(left, right)
    new_number = np.empty(n, np.int64)
    new_number[order] = np.arange(n)
    in_order = {new: sets[node] for new, node in enumerate(order) if node in sets}
    sizes = [len(members) for members in in_order.values()]
    right_children = np.where(right < 0, -1, new_number[right])[order]
    leaf_weights = {}
    if width > 1:
        is_leaf = (tree.feature < 0)[order]
        right_children[is_leaf] = np.arange(is_leaf.sum())
        leaf_weights["leaf_weights"] = _floats(value[order][is_leaf].ravel())
    return {
        "base_weights": _floats(value[order].ravel()),
        "categories": [int(number) for members in in_order.values() for number in members],
        "categories_nodes": list(in_order),
        "categories_segments": (np.cumsum(sizes) - sizes).astype(int).tolist(),
        "categories_sizes": sizes,
        "default_left": default_left[order].astype(int).tolist(),
        "id": number,
        "left_children": np.where(left < 0, -1, new_number[left])[order].tolist(),
        "loss_changes": _floats(tree.gain[order]),
        "parents": parents,
        "right_children": right_children.tolist(),
        "split_conditions": _floats(condition[order]),
        "split_indices": np.maximum(tree.feature, 0)[order].tolist(),
        "split_type": [int(node in in_order) for node in range(n)],
        "sum_hessian": _floats(tree.cover[order] * width),
        **leaf_weights,
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(len(features)),
            "num_nodes": str(n),
            "size_leaf_vector": str(width),
        },
    }


def _with_siblings_together(left: np.ndarray, right: np.ndarray) -> tuple[list[int], list[int]]:
    """The nodes level by level, and the number of each node's parent in that order."""
    order, parents = [0], [_NO_PARENT]
    for number, node in enumerate(order):  # the loop appends to `order`
        if left[node] >= 0:
            order += (int(left[node]), int(right[node]))
            parents += (number, number)
    return order, parents


def _floats(values: np.ndarray) -> list[float]:
    """Numbers with the shortest decimal form of their float32."""
    return [float(str(value)) for value in np.asarray(values, np.float64).astype(np.float32)]
