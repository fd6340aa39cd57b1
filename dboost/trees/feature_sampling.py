"""Features that a node may split by: interaction constraints and feature sampling.

*Groups.* Interaction constraints are groups of features: a node may split by the features of those groups that contain all
features above it. At the root all groups are active; below a split on f, those active groups that contain f.

*Samples.* With feature sampling a node may split by a random share of these features. The sample is decided by a hash of the
tree's seed and the node's path, i.e. the left and right turns from the root, so it does not depend on when or where the node is
searched. Features are taken one after the other with probability m / r, where m features are still wanted of the r that are
left (selection sampling).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dboost.kernels import internal, kernel
from dboost.kernels.rows import splitmix
from dboost.trees.tree_task import FeatureConstraints

U = np.uint64


class FeaturePaths(NamedTuple):
    """Path hash and active groups of each node of a growing tree."""

    path_hash: np.ndarray  # uint64[n_nodes]: hash of the path from the root
    active: np.ndarray  # uint8[n_nodes, n_groups]: groups that contain all features above
    open: np.ndarray  # uint8[2, n_features]: features that the two newest nodes may split by


def feature_constraints_of(
    share: float, groups: Sequence[Sequence[int]] | None, n_features: int, seed: int = 0
) -> FeatureConstraints | None:
    """Return the constraints of a tree's features; None when every node may split by all of them."""
    if share >= 1.0 and groups is None:
        return None
    members = [np.array(sorted(set(group)), np.int64) for group in groups or ()]
    group_of = np.repeat(np.arange(len(members)), [len(m) for m in members])
    flat = np.concatenate(members) if members else np.empty(0, np.int64)
    by_feature = np.argsort(flat, kind="stable")
    return FeatureConstraints(
        share=float(share),
        seed=np.array([seed], np.uint64),
        first_member=np.concatenate(([0], np.cumsum([len(m) for m in members]))).astype(np.int64),
        members=flat,
        first_group=np.searchsorted(flat[by_feature], np.arange(n_features + 1)).astype(np.int64),
        groups=group_of[by_feature].astype(np.int64),
    )


def new_feature_paths(constraints: FeatureConstraints, n_nodes: int) -> FeaturePaths:
    n_groups, n_features = len(constraints.first_member) - 1, len(constraints.first_group) - 1
    return FeaturePaths(np.zeros(n_nodes, U), np.zeros((n_nodes, n_groups), np.uint8), np.zeros((2, n_features), np.uint8))


@internal
def init_path(constraints, paths):
    """Initialise the root: an empty path, all groups active."""
    paths.path_hash[0] = constraints.seed[0]
    for group in range(paths.active.shape[1]):
        paths.active[0, group] = 1


@internal
def extend_path(constraints, paths, node, feature, child, side):
    """Extend the path to a child (side 0: left, 1: right) of a node that is split by a feature."""
    paths.path_hash[child] = splitmix(paths.path_hash[node] + U(0x9E3779B97F4A7C15) * U(1 + side))
    for group in range(paths.active.shape[1]):
        paths.active[child, group] = 0
    for k in range(constraints.first_group[feature], constraints.first_group[feature + 1]):
        group = constraints.groups[k]
        paths.active[child, group] = paths.active[node, group]


@internal
def mark_allowed_features(constraints, allowed, paths, node, which):
    """Mark in ``paths.open[which]`` the features that a node may split by. allowed : uint8[n_features], those of the tree."""
    n_features, n_groups = allowed.size, paths.active.shape[1]
    for feature in range(n_features):
        paths.open[which, feature] = allowed[feature] if n_groups == 0 else 0
    for group in range(n_groups):
        if paths.active[node, group] != 0:
            for k in range(constraints.first_member[group], constraints.first_member[group + 1]):
                paths.open[which, constraints.members[k]] = allowed[constraints.members[k]]
    if constraints.share >= 1.0:
        return
    left = 0
    for feature in range(n_features):
        left += 1 if paths.open[which, feature] != 0 else 0
    wanted = int(np.ceil(constraints.share * left))
    for feature in range(n_features):
        if paths.open[which, feature] == 0:
            continue
        hashed = splitmix(paths.path_hash[node] + U(feature + 1) * U(0xD1B54A32D192ED03))
        if np.float64(hashed >> U(11)) * 2.0**-53 * left < wanted:
            wanted -= 1
        else:
            paths.open[which, feature] = 0
        left -= 1


# For the round-based grower, whose nodes have no fixed number: node 0 is the parent, 1 and 2 are its children.


@kernel
def mark_root(constraints, allowed, paths):
    init_path(constraints, paths)
    mark_allowed_features(constraints, allowed, paths, 0, 0)


@kernel
def mark_children(constraints, allowed, paths, feature):
    for side in range(2):
        extend_path(constraints, paths, 0, feature, 1 + side, side)
        mark_allowed_features(constraints, allowed, paths, 1 + side, side)
