"""Import of LightGBM models from the text format of LightGBM.

Splits have the same form: ``x <= t`` in float64 goes left, a set of categories goes left, and all other categories, unknown and
missing ones go right. A missing number follows the split's default direction ("NaN"), or counts as 0 (columns without missing
values in training), whose direction follows from t. If zeros count as missing (``zero_as_missing``), a split can be converted
only if both have the same direction.

An early-stopped model is converted up to its best iteration, with which LightGBM predicts.

Leaf values include the learning rate, DART's weights and the average of the target, so predictions agree to the rounding of
float64.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
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
from dboost.model.ensemble import Ensemble, Tree
from dboost.schema import Feature

_OBJECTIVES = {
    "regression": "squared_error",
    "regression_l1": "absolute_error",
    "quantile": "quantile",
    "huber": "huber",
    "poisson": "poisson",
    "gamma": "gamma",
    "tweedie": "tweedie",
    "binary": "log_loss",
    "multiclass": "log_loss",
}
_ZERO, _NAN = 1, 2


def from_lightgbm(model: Any, levels: Levels) -> Ensemble:
    """Return the ensemble of a `lightgbm.Booster`, an estimator with one, or a model file.

    Raises
    ------
    ParameterError
        Naming what cannot be converted.
    ModelFileError
        If the file cannot be read.
    """
    text, name = _text(model)
    if not text.startswith("tree\n") or "\nend of trees" not in text:
        raise ModelFileError(f"{name} is not a model of LightGBM, or it is cut short")
    try:
        return _parse(text, levels, name)
    except DAMAGES as error:
        if isinstance(error, ParameterError):
            raise
        raise ModelFileError(f"{name} is not a model of LightGBM that can be read: {error!r}") from error


def _text(model: Any) -> tuple[str, str]:
    if isinstance(model, str | os.PathLike):
        name = shown(model)
        try:
            return read_whole(model).decode(), name
        except UnicodeDecodeError as error:
            raise ModelFileError(f"{name} is no text, as models of LightGBM are") from error
    booster = getattr(model, "booster_", model)
    if not hasattr(booster, "model_to_string"):
        raise ParameterError(f"expected a Booster or an estimator of LightGBM, or a file, got {type(model).__name__}")
    return booster.model_to_string(), "the model of LightGBM"


def _parse(text: str, levels: Levels, name: str) -> Ensemble:
    head, *blocks = text[: text.index("\nend of trees")].split("\nTree=")
    entries = _entries(head, "the head")
    rest = text[text.index("\nend of trees") :]
    n_outputs = int(entries["num_tree_per_iteration"])
    check_outputs(n_outputs, len(blocks), name)
    loss, options, factor = _loss(entries, rest, name)
    if int(entries["num_class"]) != n_outputs or (entries["objective"].split(" ")[0] == "multiclass") != (n_outputs > 1):
        raise ValueError(f"it has {n_outputs} trees per iteration, which do not fit its classes and its objective")
    names = entries["feature_names"].split(" ")
    if int(entries["max_feature_idx"]) + 1 != len(names):
        raise ValueError(f"max_feature_idx is {entries['max_feature_idx']}, and there are {len(names)} names")
    named = names != [f"Column_{j}" for j in range(len(names))]
    parsed = [_entries(block, f"tree {number}") for number, block in enumerate(blocks)]
    if [block.partition("\n")[0] for block in blocks] != [str(number) for number in range(len(blocks))]:
        raise ValueError("its trees are not numbered one after another")
    features, literal_columns = _features(
        names if named else [f"f{j}" for j in range(len(names))], entries, rest, levels, parsed, name
    )
    if "average_output" in entries:  # random forests
        factor /= max(1, len(blocks) // n_outputs)
    trees = [(i % n_outputs, _tree(tree, features, literal_columns, factor, name)) for i, tree in enumerate(parsed)]
    baseline = np.zeros(n_outputs)
    return assemble_imported(trees, features, named=named, loss=loss, options=options, baseline=baseline, library="LightGBM")


def _entries(block: str, subject: str) -> dict[str, str]:
    """The values of the lines ``key=value`` after the first line of a block."""
    lines = block.rstrip("\n").splitlines()[1:]
    entries = {key: value for key, _, value in (line.partition("=") for line in lines)}
    if len(entries) < len(lines) or "" in entries:  # LightGBM reads no further than to an empty line
        raise ValueError(f"{subject} has a line twice, or an empty one")
    return entries


def _loss(entries: dict[str, str], rest: str, name: str) -> tuple[str, dict[str, Any], float]:
    """The name of the loss, its options, and the factor of raw scores."""
    kind, *settings = entries.get("objective", "none").split(" ")
    if kind not in _OBJECTIVES or "sqrt" in settings:
        objective = " ".join([kind, *settings])
        raise ParameterError(f"{name} was trained with objective {objective!r}, for which dboost has no loss")
    training_names = dict(
        line[1:-1].split(": ", 1) for line in rest.splitlines() if line.startswith("[") and ": " in line and line.endswith("]")
    )
    loss = _OBJECTIVES[kind]
    options: dict[str, Any] = {}
    if loss == "quantile":
        options["quantile"] = float(training_names["alpha"])
    elif loss == "huber":
        options["delta"] = float(training_names["alpha"])
    elif loss == "tweedie":
        options["tweedie_power"] = float(training_names["tweedie_variance_power"])
    sigmoid = [float(setting[8:]) for setting in settings if setting.startswith("sigmoid:")]
    return loss, options, sigmoid[0] if sigmoid else 1.0


def _features(
    names: list[str], entries: dict[str, str], rest: str, levels: Levels, trees: Sequence[dict[str, str]], name: str
) -> tuple[tuple[Feature, ...], set[int]]:
    """The features, and the columns whose category numbers are levels instead of positions."""
    infos = entries["feature_infos"].split(" ")
    codes: dict[int, set[int]] = {
        j: {int(code) for code in info.split(":")} for j, info in enumerate(infos) if info != "none" and info[0] not in "[@"
    }
    for tree in trees:
        for column, split_levels in _sets(tree).values():
            codes.setdefault(column, set()).update(split_levels.tolist())
    check_levels(levels, [names[j] for j in codes], "LightGBM")
    stored = [line[len("pandas_categorical:") :] for line in rest.splitlines() if line.startswith("pandas_categorical:")]
    frame_levels = json.loads(stored[-1]) if stored else None
    unnamed = [j for j in sorted(codes) if names[j] not in levels]
    if frame_levels and len(frame_levels) != len(unnamed):
        raise ParameterError(
            f"{name} has {len(unnamed)} categorical columns ({', '.join(names[j] for j in unnamed)}) "
            f"but levels of {len(frame_levels)}: give levels={{name: [...]}}, in the order of their codes, or their number, "
            "for those that were no pandas categories"
        )
    features, literal_columns = [], set[int]()
    for j, column_name in enumerate(names):
        if j not in codes:
            features.append(Feature(column_name))
        elif column_name in levels:
            features.append(Feature(column_name, levels_of(column_name, levels[column_name])))
        elif frame_levels:
            features.append(Feature(column_name, levels_of(column_name, frame_levels[unnamed.index(j)])))
        else:
            features.append(Feature(column_name, tuple(sorted(code for code in codes[j] if code >= 0))))
            literal_columns.add(j)
    return tuple(features), literal_columns


def _numbers(tree: dict[str, str], key: str, dtype: type) -> np.ndarray:
    return np.array(tree[key].split(), dtype) if tree.get(key) else np.empty(0, dtype)


def _sets(tree: dict[str, str]) -> dict[int, tuple[int, np.ndarray]]:
    """Column and categories that go left, by categorical split."""
    is_set, n_sets = _numbers(tree, "decision_type", np.int64) & 1, int(tree.get("num_cat", 0))
    if n_sets == 0 and not is_set.any():
        return {}
    if n_sets < 1 or n_sets + 1 != len(_numbers(tree, "cat_boundaries", np.int64)):
        raise ValueError(f"num_cat is {n_sets}, which does not fit the splits")
    columns, set_number = _numbers(tree, "split_feature", np.int64), _numbers(tree, "threshold", np.float64)
    ends, words = _numbers(tree, "cat_boundaries", np.int64), _numbers(tree, "cat_threshold", np.uint32)
    sets = {}
    for split in map(int, np.flatnonzero(is_set)):
        number = int(set_number[split])
        if not 0 <= number < len(ends) - 1 or not 0 <= ends[number] <= ends[number + 1] <= len(words):
            raise ValueError(f"the categories of split {split} do not fit the tree")
        first, last = ends[number], ends[number + 1]
        bits = np.unpackbits(words[first:last].astype("<u4").view(np.uint8), bitorder="little")
        sets[split] = int(columns[split]), np.flatnonzero(bits)
    return sets


def _tree(tree: dict[str, str], features: tuple[Feature, ...], literal_columns: set[int], factor: float, name: str) -> Tree:
    if tree.get("is_linear", "0") != "0":
        raise ParameterError(f"{name} has linear models in its leaves; leaves of dboost are constants")
    n_leaves = int(tree["num_leaves"])
    if n_leaves < 1 or n_leaves != len(_numbers(tree, "leaf_value", np.float64)):
        raise ValueError(f"num_leaves is {n_leaves}, but leaf_value has another length")
    n_splits = n_leaves - 1
    left, right = _numbers(tree, "left_child", np.int64)[:n_splits], _numbers(tree, "right_child", np.int64)[:n_splits]
    leaves = np.full(n_leaves, -1)
    # LightGBM numbers leaf l as -(l + 1); here leaves follow the splits.
    left, right = (np.append(np.where(child < 0, n_splits - child - 1, child), leaves) for child in (left, right))
    decision = _numbers(tree, "decision_type", np.int64)[:n_splits]
    threshold = _numbers(tree, "threshold", np.float64)[:n_splits]
    column = _numbers(tree, "split_feature", np.int64)[:n_splits]
    default_left, kind = (decision & 2) > 0, (decision >> 2) & 3
    zero_left = threshold >= 0.0
    is_number = (decision & 1) == 0
    if (is_number & (kind == _ZERO) & (zero_left != default_left)).any():
        raise ParameterError(f"{name} counts zeros as missing (zero_as_missing), which dboost does not")
    missing_left = np.where(kind == _NAN, default_left, zero_left) & is_number
    sets = {}
    for split, (_, codes) in _sets(tree).items():
        feature = features[column[split]]
        if int(column[split]) in literal_columns:
            codes = np.searchsorted(np.array(feature.categories), codes)
        check_codes(feature.name, codes, len(feature.categories or ()))
        sets[split] = codes
    value = np.append(np.zeros(n_splits), _numbers(tree, "leaf_value", np.float64) * factor)
    zeros, ones = np.zeros(n_leaves), np.zeros(n_leaves, np.int64)
    weight = _numbers(tree, "leaf_weight", np.float64)
    count = _numbers(tree, "leaf_count", np.int64)
    return convert_tree(
        ImportedTree(
            feature=np.append(column, ones - 1),
            threshold=np.append(threshold, zeros),
            categories=sets,
            missing_left=np.append(missing_left, zeros.astype(bool)),
            left=left,
            right=right,
            gain=np.append(_numbers(tree, "split_gain", np.float64)[:n_splits], zeros),
            cover=np.append(_numbers(tree, "internal_weight", np.float64)[:n_splits], weight if len(weight) else zeros),
            count=np.append(_numbers(tree, "internal_count", np.int64)[:n_splits], count if len(count) else ones),
            value=value,
        ),
        name,
    )
