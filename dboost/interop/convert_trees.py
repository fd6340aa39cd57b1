"""Parts that all imports share: trees with nodes in any order as a `Tree`, and trees of all classes as an `Ensemble`.

An imported model predicts the same as the original and can be continued. An imported tree is a list of nodes with the root
first. Nodes of a `Tree` are numbered depth first, and internal nodes have values too: the mean of their leaves, weighted by
cover.

A `Booster` has one output for two classes, other libraries may have a softmax of two outputs. Since softmax of (F0, F1) is the
sigmoid of F1 − F0, the trees of class 0 are negated, and each tree becomes an iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dboost import losses
from dboost.errors import ModelFileError, ParameterError
from dboost.model.ensemble import Ensemble, Tree
from dboost.model.model_file import check
from dboost.schema import MAX_LEVELS, Feature, Level

#: What reading a damaged model may raise.
DAMAGES = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)
#: The user's levels of categorical columns: in the order of their codes, or their number if they are 0, 1, ….
Levels = dict[str, Sequence[Level] | int]


@dataclass(frozen=True, eq=False)
class ImportedTree:
    """The nodes of a tree in any order with the root first; the arrays [n_nodes] have the meaning of those of `Tree`.

    `categories` has the codes that go left, by node, for nodes with a categorical split.
    """

    feature: np.ndarray
    threshold: np.ndarray
    categories: dict[int, np.ndarray]
    missing_left: np.ndarray
    left: np.ndarray
    right: np.ndarray
    gain: np.ndarray
    cover: np.ndarray
    count: np.ndarray
    value: np.ndarray


def convert_tree(tree: ImportedTree, name: str) -> Tree:
    """Return the tree with its nodes in depth-first order.

    name : of the model, for messages.

    Raises
    ------
    ParameterError
        If the nodes do not form a tree.
    """
    n = len(tree.feature)
    node_arrays = (value for name, value in vars(tree).items() if name != "categories")
    if any(len(values) != n for values in node_arrays):
        raise ParameterError(f"{name} is damaged: the arrays of a tree differ in length")
    if any(len(array) and (array.min() < -(2**31) or array.max() >= 2**31) for array in (tree.feature, tree.left, tree.right)):
        raise ParameterError(f"{name} is damaged: a tree has numbers of nodes or features beyond 32 bits")
    order: list[int] = []
    is_reached = np.zeros(n, np.bool_)
    pending = [0]
    while pending:
        node = pending.pop()
        if not 0 <= node < n or is_reached[node]:
            raise ParameterError(f"{name} is damaged: the nodes of a tree do not make a tree")
        is_reached[node] = True
        order.append(node)
        if tree.left[node] >= 0:
            pending += (int(tree.right[node]), int(tree.left[node]))
    new_number = np.full(n, -1, np.int32)
    new_number[order] = np.arange(len(order))
    is_leaf = tree.left[order] < 0
    left = np.where(is_leaf, -1, new_number[tree.left[order]]).astype(np.int32)
    right = np.where(is_leaf, -1, new_number[tree.right[order]]).astype(np.int32)
    cover, value = tree.cover[order].astype(np.float64), tree.value[order].astype(np.float64)
    for node in np.flatnonzero(~is_leaf)[::-1]:
        children = np.array([left[node], right[node]])
        weights = cover[children] if cover[children].sum() > 0 else np.ones(2)
        with np.errstate(all="ignore"):  # what is not finite is refused with the finished model
            value[node] = np.average(value[children], axis=0, weights=weights)
    sets = [tree.categories.get(node) for node in order]
    is_set = np.array([codes is not None for codes in sets])
    return Tree(
        feature=np.where(is_leaf, -1, tree.feature[order]).astype(np.int32),
        threshold=np.where(is_leaf | is_set, np.nan, tree.threshold[order]).astype(np.float64),
        categories=tuple(None if codes is None else np.sort(np.asarray(codes)).astype(np.int32) for codes in sets),
        missing_left=np.where(is_leaf, False, tree.missing_left[order]).astype(np.bool_),
        left=left,
        right=right,
        gain=np.where(is_leaf, 0.0, tree.gain[order]).astype(np.float64),
        cover=cover,
        count=tree.count[order].astype(np.int64),
        value=value,
    )


def assemble_imported(
    trees: Sequence[tuple[int, Tree]],
    features: tuple[Feature, ...],
    *,
    named: bool,
    loss: str,
    options: dict[str, Any],
    baseline: np.ndarray,
    library: str,
    width: int = 1,
    n_targets: int = 1,
) -> Ensemble:
    """Return an ensemble from pairs (output, tree), in the order of the iterations.

    width : number of values per leaf; n_targets : number of outputs if each is of a target of its own.
    """
    n_outputs = len(baseline)
    are_classes = n_targets == 1 and not isinstance(options.get("quantile"), list)
    if width > 1 and n_outputs == 2 and are_classes:
        trees, width = [(1, replace(tree, value=tree.value[:, 1] - tree.value[:, 0])) for _, tree in trees], 1
    if n_outputs == 2 and are_classes:
        trees = [(0 if output in (0, 1) else output, tree if output else _negated(tree)) for output, tree in trees]
        baseline, n_outputs = np.array([baseline[1] - baseline[0]]), 1
    trees_by_output: list[list[Tree]] = [[] for _ in range(n_outputs // width)]
    for output, tree in trees:
        if not 0 <= output < len(trees_by_output):
            raise ParameterError(
                f"the model of {library} is damaged: a tree is of output {output}, there are {len(trees_by_output)}"
            )
        trees_by_output[output].append(tree)
    if len({len(trees_of_class) for trees_of_class in trees_by_output}) > 1:
        raise ParameterError(f"the model of {library} is damaged: its classes have different numbers of trees")
    if n_targets > 1:
        kind: losses.BaseLoss = losses.PerOutput(
            [losses.by_name(loss, 2, **options)] * n_targets, [*map(str, range(n_targets))]
        )
    else:
        kind = losses.by_name(loss, max(2, n_outputs), **options)
    classes = tuple(range(max(2, n_outputs))) if kind.targets.are_classes else None
    n_iterations = len(trees_by_output[0])
    source: dict[str, Any] = {"label": library, "rows": None, "first_iteration": 1, "last_iteration": n_iterations}
    ensemble = Ensemble(
        features=features,
        named=named,
        loss=kind.to_dict(),
        classes=classes,
        classes_dtype=None if classes is None else "int64",
        baseline=baseline.astype(np.float64),
        trees=tuple(tree for iteration in zip(*trees_by_output, strict=True) for tree in iteration),
        sources=(source | {"parameters": {}, "data_digest": None},),
        width=width,
    )
    check(ensemble)  # as of a file of ours: a wrong index would have the kernels read outside their arrays
    return ensemble


def check_outputs(n_outputs: int, n_trees: int, name: str) -> None:
    """Raise a ModelFileError for a number of outputs that the trees cannot be of, before memory is taken for it."""
    if not 1 <= n_outputs <= (n_trees or MAX_LEVELS):
        raise ModelFileError(f"{name} is damaged: it has {n_trees} trees of {n_outputs} outputs")


def levels_of(name: str, levels_or_count: Sequence[Level] | int) -> tuple[Level, ...]:
    """Return the levels that the user gave for a column."""
    levels = tuple(range(levels_or_count)) if isinstance(levels_or_count, int | np.integer) else tuple(levels_or_count)
    if not levels or len(levels) > MAX_LEVELS or len({(type(level), level) for level in levels}) < len(levels):
        raise ParameterError(f"levels of {name!r} must be up to {MAX_LEVELS:,} different values in the order of their codes")
    return tuple(level.item() if isinstance(level, np.generic) else level for level in levels)


def check_codes(name: str, codes: np.ndarray, n_levels: int) -> None:
    """Raise a ParameterError for codes without a level."""
    if len(codes) and (codes.min() < 0 or codes.max() >= n_levels):
        raise ParameterError(f"column {name!r} has {n_levels} levels, but the model knows the code {int(codes.max())}")


def check_levels(levels: Levels, features: Sequence[str], library: str) -> None:
    """Raise a ParameterError for levels of columns that are not categorical in the model."""
    for name in levels:
        if name not in features:
            raise ParameterError(f"levels are given for {name!r}, which the model of {library} has no categorical column for")


def _negated(tree: Tree) -> Tree:
    return replace(tree, value=-tree.value)
