"""The trees of a model, from those that were grown.

A fit has a list of `GrownTree`. A `Tree` has depth-first numbering, thresholds instead of bins, and sums and
values of inner nodes, which follow from those of the leaves. `finished_trees` makes the trees of a model together: the nodes of
many trees are one array, and a pass over one level of all of them takes as long as a few nodes in Python. A step that needs the
children goes from the lowest level up, one that needs the parent from the roots down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from dboost.data.columns.binning import Binning
from dboost.losses import BaseLoss
from dboost.model.ensemble import Tree
from dboost.params import Parameters
from dboost.trees.fit_trees import GrownTree, TreeNodes
from dboost.trees.tree_task import (
    StepLimits,
    follow_sums,
    leaf_values,
    newton_steps,
    thresholded,
)

#: Trees are finished together until they have this many nodes.
_NODES_TOGETHER = 1 << 16
#: Codes of categorical splits that are unpacked together: a set may have thousands.
_CODES_TOGETHER = 1 << 20


def finished_trees(trees: Sequence[GrownTree], binning: Binning, parameters: Parameters, loss: BaseLoss) -> list[Tree]:
    """Return the trees of a model; those of one fit, which have all one value per leaf or all several."""
    finished, together, n_nodes = [], [], 0
    for tree in trees:
        together.append(tree)
        n_nodes += tree.n_nodes
        if n_nodes >= _NODES_TOGETHER:
            finished += _Nodes(together).finished(binning, parameters, loss)
            together, n_nodes = [], 0
    return finished + (_Nodes(together).finished(binning, parameters, loss) if together else [])


class _Nodes:
    """The nodes of some trees, one tree after the other, in growth order; the leaves likewise."""

    def __init__(self, trees: Sequence[GrownTree]) -> None:
        self.trees, self.sizes = trees, [tree.n_nodes for tree in trees]
        self.start: np.ndarray = np.cumsum([0, *self.sizes])
        first_node = np.repeat(self.start[:-1], self.sizes)
        table = TreeNodes(*np.concatenate([tree.node_fields for tree in trees], axis=1))
        self.feature, self.split_bin, self.missing_left = table.feature, table.split_bin, table.missing_left
        child = table.child
        self.is_split = child >= 0
        self.child = np.where(self.is_split, child + first_node, -1)
        first_leaf = np.cumsum([0, *(tree.n_leaves for tree in trees)])[:-1]
        self.leaf_of = table.leaf_of + np.repeat(first_leaf, self.sizes)
        #: The splits of each level, from the roots down.
        self.splits: list[np.ndarray] = []
        level = self.start[:-1]
        while (splits := level[self.is_split[level]]).size:
            self.splits.append(splits)
            left = self.child[splits]
            level = np.concatenate([left, left + 1])
        # A left child follows its parent, a right child the nodes below the left one.
        n_below = np.ones(len(child), np.int64)
        for splits in reversed(self.splits):
            left = self.child[splits]
            n_below[splits] += n_below[left] + n_below[left + 1]
        self.position = np.zeros(len(child), np.int64)  # in the tree, depth-first
        for splits in self.splits:
            left = self.child[splits]
            self.position[left] = self.position[splits] + 1
            self.position[left + 1] = self.position[left] + n_below[left]
        self.order = np.empty(len(child), np.int64)  # depth-first: the node at each position
        self.order[self.position + first_node] = np.arange(len(child))

    def _for_nodes(self, numbers: Sequence[float]) -> np.ndarray:
        """Return a number of each tree for all of its nodes."""
        return np.repeat(numbers, self.sizes)

    def finished(self, binning: Binning, parameters: Parameters, loss: BaseLoss) -> list[Tree]:
        """Return the trees."""
        order, is_split = self.order, self.is_split
        right = np.where(is_split, self.position[np.where(is_split, self.child + 1, 0)], -1)
        cover, value, gained = self._sums_and_values(parameters, loss)
        columns = {
            "feature": np.where(is_split, self.feature, -1).astype(np.int32),
            "threshold": self._thresholds(binning),
            "missing_left": is_split & (self.missing_left != 0),
            "left": np.where(is_split, self.position[self.child], -1).astype(np.int32),
            "right": right.astype(np.int32),
            "gain": np.where(is_split, gained - parameters.leaf_penalty, 0.0),
            "cover": cover,
            "count": np.concatenate([tree.count for tree in self.trees]),
            "value": value,
        }
        # Copies: a part of the trees must not keep the arrays of all.
        by_tree: dict[str, list[Any]] = {"categories": self._categories(binning)}
        for name, values in columns.items():
            ordered = values[order]
            by_tree[name] = [ordered[part].copy() for part in self._parts]
        return [*map(Tree, *(by_tree[column.name] for column in fields(Tree)))]

    def _thresholds(self, binning: Binning) -> np.ndarray:
        """Return the upper edges of the last bins that go left; after the last one a split separates missing values only."""
        threshold = np.full(len(self.feature), math.nan)
        nodes = np.flatnonzero(self.is_split)
        nodes = nodes[~binning.is_categorical[self.feature[nodes]]]
        used, row = np.unique(self.feature[nodes], return_inverse=True)
        edges = [np.append(edges, math.inf) for edges in map(binning.edges.__getitem__, used.tolist()) if edges is not None]
        if edges:
            last = np.cumsum([len(row_of_edges) for row_of_edges in edges]) - 1
            first = np.append(0, last[:-1] + 1)
            threshold[nodes] = np.concatenate(edges)[np.minimum(first[row] + self.split_bin[nodes], last[row])]
        return threshold

    def _categories(self, binning: Binning) -> list[tuple[np.ndarray | None, ...]]:
        """Return the categories that go left, in depth-first order, of each tree."""
        of_nodes: list[np.ndarray | None] = [None] * len(self.child)
        n_sets, n_codes = [len(tree.sets.nodes) for tree in self.trees], self.trees[0].sets.n_codes
        first_node = np.repeat(self.start[:-1], n_sets)
        nodes = first_node + np.concatenate([tree.sets.nodes for tree in self.trees])
        places = (first_node + self.position[nodes]).tolist()
        bits, n_levels = np.concatenate([tree.sets.bits for tree in self.trees]), binning.n_bins[self.feature[nodes]]
        n_together = max(_CODES_TOGETHER // n_codes, 1)
        for first in range(0, len(nodes), n_together):
            together = slice(first, first + n_together)
            rows, codes = np.unpackbits(bits[together], axis=1, count=n_codes).nonzero()
            is_level = codes < n_levels[together][rows]
            levels = codes[is_level].astype(np.int32)
            ends = np.bincount(rows[is_level], minlength=len(bits[together])).cumsum().tolist()
            for place, begin, end in zip(places[together], [0, *ends], ends, strict=False):
                of_nodes[place] = levels[begin:end].copy()
        return [tuple(of_nodes[part]) for part in self._parts]

    @cached_property
    def _parts(self) -> list[slice]:
        """The nodes of each tree."""
        return [*map(slice, self.start[:-1].tolist(), self.start[1:].tolist())]

    def _sums_and_values(self, parameters: Parameters, loss: BaseLoss) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the cover, values and gains of all nodes: float64[n_nodes], values of several outputs [n_nodes, n_outputs]."""
        if self.trees[0].leaf_sums.ndim == 3:
            return self._of_outputs(parameters, loss)
        sums = self._node_sums(np.concatenate([tree.leaf_sums for tree in self.trees]))
        values, follow = np.empty(len(sums)), np.empty(len(sums), bool)
        kinds = self._for_nodes([self._kinds[tree.learning_rate, tree.output] for tree in self.trees])
        for (rate, output), kind in self._kinds.items():
            nodes = slice(None) if len(self._kinds) == 1 else np.flatnonzero(kinds == kind)
            at_rate, leaves = _at_rate(parameters, rate), loss.leaves[output]
            values[nodes] = leaf_values(sums[nodes][None], at_rate, StepLimits.of([leaves]))[0]
            follow[nodes] = follow_sums(at_rate, leaves)
        self._set_values(values, np.concatenate([tree.leaf_values for tree in self.trees]), follow)
        gain = np.concatenate([tree.gain for tree in self.trees])
        return sums[:, 1], values, -gain * self._for_nodes([tree.gain_unit for tree in self.trees])

    @cached_property
    def _kinds(self) -> dict[tuple[float, int], int]:
        """A number for each learning rate and output."""
        kinds: dict[tuple[float, int], int] = {}
        for tree in self.trees:
            kinds.setdefault((tree.learning_rate, tree.output), len(kinds))
        return kinds

    def _node_sums(self, leaf_sums: np.ndarray) -> np.ndarray:
        """Return the sums of all nodes. leaf_sums : float64[n_leaves, …]."""
        sums = np.empty((len(self.child), *leaf_sums.shape[1:]))
        is_leaf = ~self.is_split
        sums[is_leaf] = leaf_sums[self.leaf_of[is_leaf]]
        for splits in reversed(self.splits):
            left = self.child[splits]
            sums[splits] = sums[left] + sums[left + 1]
        return sums

    def _of_outputs(self, parameters: Parameters, loss: BaseLoss) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return `_sums_and_values` of trees of several outputs.

        The cover is the mean over the outputs, the gain their sum: what the split gains with the values of its leaves, not
        along the direction that the tree was grown by.
        """
        leaf_sums = np.concatenate([tree.leaf_sums.swapaxes(0, 1) for tree in self.trees])
        sums = np.ascontiguousarray(self._node_sums(leaf_sums).swapaxes(0, 1))
        splits = np.flatnonzero(self.is_split)
        left = self.child[splits]
        limits, values = StepLimits.of(loss.leaves), np.empty(sums.shape[:2])
        rates = self._for_nodes([tree.learning_rate for tree in self.trees])
        for rate in {tree.learning_rate for tree in self.trees}:
            nodes = np.flatnonzero(rates == rate)
            values[:, nodes] = leaf_values(sums.take(nodes, axis=1), _at_rate(parameters, rate), limits)
        scores = -0.5 * newton_steps(sums, parameters, np.ones(len(sums))) * thresholded(sums, parameters)[..., 0]
        cover, gained = np.zeros(sums.shape[1]), np.zeros(sums.shape[1])
        for output_sums, score in zip(sums, scores, strict=True):
            cover += output_sums[:, 1]
            gained[splits] += score[left] + score[left + 1] - score[splits]
        values = np.ascontiguousarray(values.T)
        follow = np.array([follow_sums(parameters, leaves) for leaves in loss.leaves])
        values_of_leaves = np.concatenate([tree.leaf_values.T for tree in self.trees])
        self._set_values(values, values_of_leaves, np.broadcast_to(follow, values.shape))
        return cover / len(sums), values, gained

    def _set_values(self, values: np.ndarray, of_leaves: np.ndarray, follow: np.ndarray) -> None:
        """Replace values of nodes by their sums (float64[n_nodes, …]): those of leaves by `of_leaves`, those of inner nodes
        by the means over their rows, unless the values of the leaves `follow` from the sums (bool[n_nodes, …])."""
        is_leaf = ~self.is_split
        values[is_leaf] = of_leaves[self.leaf_of[is_leaf]]
        if follow.all():
            return
        n_rows = np.concatenate([tree.count for tree in self.trees]).reshape(-1, *[1] * (values.ndim - 1))
        for splits in reversed(self.splits):
            left = self.child[splits]
            n_left, n_right = n_rows[left], n_rows[left + 1]
            # No BLAS: its bits vary.
            mean = (values[left] * n_left + values[left + 1] * n_right) / (n_left + n_right)
            values[splits] = np.where(follow[splits], values[splits], mean)


def _at_rate(parameters: Parameters, rate: float) -> Parameters:
    return parameters if parameters.learning_rate == rate else replace(parameters, learning_rate=rate)
