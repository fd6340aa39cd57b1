"""The trees of a fit, the only list of them.

Sessions add the trees that they grow, and the loop completes them by their leaf values. The scores of the training rows contain
the first `n_applied` trees; the others are *pending*: rows are assigned to their leaves, and the next `advance` adds the
values. Rows that are read again after a loss replay the list, evaluation sets add the trees that they lack, and checkpoint and
model are made from it.

A tree has three forms: `trees.tree_task.NodeArrays` while it grows, `FitTree` in training, and `model.ensemble.Tree` in the
model (`trees.finished_trees`). The loop has a `GrownTree`, i.e. a `FitTree` and what only the model needs.

With arcbites the model is cut back after a visit, to a *mark*: a number of trees at which evaluation sets save their scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dboost.data.columns.binning import Binning
from dboost.kernels import kernel
from dboost.model.ensemble import Tree
from dboost.rows.bin_proposal import BinMerge
from dboost.trees.tree_task import NodeArrays, TreeTask

#: The leaf values of a tree that are not computed yet.
_PENDING = np.empty(0)


class TreeNodes(NamedTuple):
    """The nodes of a tree in the order of growth, as kernels route rows by them: int32[n_nodes] each."""

    feature: np.ndarray  # split feature, -1 in a leaf
    split_bin: np.ndarray  # last bin that goes left
    missing_left: np.ndarray
    child: np.ndarray  # left child (the right one follows), -1 in a leaf
    depth: np.ndarray
    leaf_of: np.ndarray  # number of the leaf from left to right; meaningless in splits


class CategorySets(NamedTuple):
    """The categories that go left at the categorical splits of a tree, as bits: a tree may have thousands at many nodes."""

    nodes: np.ndarray  # int32[n_sets], ascending
    bits: np.ndarray  # uint8[n_sets, n_bytes]
    n_codes: int

    def left_codes(self, n_nodes: int) -> np.ndarray:
        """Return the sets of all nodes, empty ones for other splits and leaves: uint8[n_nodes, n_codes]."""
        left_codes = np.zeros((n_nodes, self.n_codes), np.uint8)
        if len(self.nodes):
            left_codes[self.nodes] = self.goes_left()
        return left_codes

    def goes_left(self) -> np.ndarray:
        """Return the sets of `nodes`: uint8[n_sets, n_codes]."""
        return np.unpackbits(self.bits, axis=1, count=self.n_codes)


@dataclass(eq=False)
class FitTree:
    """A tree of a fit, as rows need it: in bin codes. It owns its arrays."""

    node_fields: np.ndarray  # int32[6, n_nodes], the fields of `TreeNodes`
    n_leaves: int
    sets: CategorySets
    output: int  # the first one
    #: float64[n_leaves], of a tree of several outputs float64[width, n_leaves]; empty until they are computed.
    leaf_values: np.ndarray

    @classmethod
    def of_model(cls, tree: Tree, binning: Binning, leaf_values: np.ndarray, output: int) -> FitTree | None:
        """Return a tree of a model among the bins of its features; None if it has thresholds that are no edges."""
        n, n_bins = tree.n_nodes, binning.n_bins
        node_fields, sets = np.full((6, n), -1, np.int32), {}
        node_fields[1:3] = node_fields[4:] = 0
        leaves: np.ndarray = np.cumsum(tree.feature < 0) - 1
        pending, n_placed = [(0, 0)], 1  # a node and its place; children are placed side by side
        while pending:
            node, at = pending.pop()
            feature = int(tree.feature[node])
            if feature < 0:
                node_fields[5, at] = leaves[node]
                continue
            edges, codes, split_bin = binning.edges[feature], tree.categories[node], 0
            if codes is not None:
                sets[at] = codes
            elif edges is not None:
                threshold = float(tree.threshold[node])
                split_bin = int(np.searchsorted(edges, threshold))
                if threshold < math.inf and (split_bin == len(edges) or edges[split_bin] != threshold):
                    return None
            node_fields[:4, at] = feature, split_bin, tree.missing_left[node], n_placed
            node_fields[4, n_placed : n_placed + 2] = node_fields[4, at] + 1
            pending += [(int(tree.left[node]), n_placed), (int(tree.right[node]), n_placed + 1)]
            n_placed += 2
        goes_left = np.zeros((len(sets), int(n_bins.max()) + 1), np.uint8)
        places = sorted(sets)
        for row, at in zip(goes_left, places, strict=True):
            row[sets[at]] = 1
        bits = np.packbits(goes_left, axis=1)
        sets_of_tree = CategorySets(np.array(places, np.int32), bits, goes_left.shape[1])
        return cls(node_fields, tree.n_leaves, sets_of_tree, output, leaf_values)

    @property
    def nodes(self) -> TreeNodes:
        """The nodes: views of `node_fields`."""
        return TreeNodes(*self.node_fields)

    @property
    def n_nodes(self) -> int:
        return self.node_fields.shape[1]

    @property
    def left_codes(self) -> np.ndarray:
        """The bin codes that go left at categorical splits: uint8[n_nodes, n_codes]."""
        return self.sets.left_codes(self.n_nodes)

    @property
    def is_pending(self) -> bool:
        """Whether the leaf values are not computed yet."""
        return self.leaf_values.size == 0

    def scores_of(self, raw: np.ndarray) -> np.ndarray:
        """Return the scores that the leaf values are added to, in the shape of these. raw : float64[n_outputs, n_rows]."""
        values, output = self.leaf_values, self.output
        return raw[output] if values.ndim == 1 else raw[output : output + len(values)]


@dataclass(eq=False)
class GrownTree(FitTree):
    """A tree that this fit has grown, with what only leaf values and the model need of it."""

    gain: np.ndarray  # float64[n_nodes]
    count: np.ndarray  # int64[n_nodes]: rows
    #: Exact sums of gradients and Hessians by leaf, in the loss's units: float64[n_leaves, 2], of the derivatives along a
    #: direction if the tree has several outputs; from `complete` on those of all outputs, float64[n_outputs, n_leaves, 2].
    leaf_sums: np.ndarray
    gain_unit: float  # factor from a score of quantised sums to units of the loss
    bounds: np.ndarray | None  # float64[n_leaves, 2]: of the values of a constrained tree; None for others
    learning_rate: float = 0.0

    @classmethod
    def of(
        cls,
        task: TreeTask,
        nodes: NodeArrays,
        count: np.ndarray,
        leaf_of: np.ndarray,
        leaf_sums: np.ndarray,
        left_codes: np.ndarray,
        is_categorical: np.ndarray,
    ) -> GrownTree:
        """Copy a tree from the buffers of a grower, which may be longer than `count`.

        count : int64[n_nodes], not copied; leaf_of : int64[>= n_nodes]; leaf_sums : float64[n_leaves, 2], not copied;
        left_codes : uint8[>= n_nodes, n_codes]; is_categorical : uint8[n_features].
        """
        n, n_leaves, n_codes, bounds = len(count), len(leaf_sums), left_codes.shape[1], None
        node_fields, numbers = np.empty((6, n), np.int32), np.empty(n_leaves, np.int32)
        bits = np.empty((n_leaves, -(-n_codes // 8)), np.uint8)
        n_sets = _copy_tree(nodes.feature.base, leaf_of, left_codes, is_categorical, node_fields, numbers, bits)
        sets = CategorySets(numbers[:n_sets].copy(), bits[:n_sets].copy(), n_codes)
        if task.direction is not None:
            leaves = np.flatnonzero(nodes.child[:n] < 0)
            bounds = np.empty((n_leaves, 2))
            bounds[leaf_of[leaves]] = nodes.total[leaves, 3:]
        gain = nodes.gain[:n].copy()
        return cls(node_fields, n_leaves, sets, task.output, _PENDING, gain, count, leaf_sums, task.gain_unit, bounds)

    def complete(self, leaf_values: np.ndarray, learning_rate: float, sums: np.ndarray | None = None) -> None:
        """Set what leaves add to the scores. sums : of all outputs, default those that the tree was grown by."""
        self.leaf_values, self.learning_rate = leaf_values, learning_rate
        self.leaf_sums = self.leaf_sums if sums is None else sums

    def for_sessions(self) -> FitTree:
        """Return what rows need of the tree."""
        return FitTree(self.node_fields, self.n_leaves, self.sets, self.output, self.leaf_values)

    @property
    def n_rows(self) -> int:
        """Number of rows that the tree was grown from."""
        return int(self.count[0])

    def use_fine_bins(self, bin_merge: BinMerge | None, keeps_fine: np.ndarray) -> None:
        """Convert the splits from bins of the tree to fine bins. keeps_fine : bool[n_features], whether these are the same."""
        if bin_merge is None:
            return
        nodes = self.nodes
        for node in np.flatnonzero(nodes.child >= 0):
            feature = nodes.feature[node]
            if not keeps_fine[feature]:
                # A split after the last bin separates the missing values, and so does one after the last fine bin.
                row = bin_merge.last[feature]
                nodes.split_bin[node] = row[min(nodes.split_bin[node], len(row) - 1)]

    def within_bounds(self, values: np.ndarray, unit: float) -> np.ndarray:
        """Return leaf values clipped to the bounds of the tree, which are in units of `unit`."""
        return values if self.bounds is None else np.clip(values, self.bounds[:, 0] * unit, self.bounds[:, 1] * unit)


@kernel
def _copy_tree(integers, leaf_of, left_codes, is_categorical, node_fields, numbers, bits):
    """Copy the nodes of a tree in one call; return the number of its categorical splits.

    integers : int64[5, >= n_nodes], of `NodeArrays`; leaf_of, left_codes, is_categorical : as in `GrownTree.of`; node_fields :
    int32[6, n_nodes], receives the fields of `TreeNodes`; numbers, bits : int32[n_leaves] and uint8[n_leaves, n_bytes], receive
    those of `CategorySets`.
    """
    n_sets, n_codes = 0, left_codes.shape[1]
    for node in range(node_fields.shape[1]):
        for field in range(5):
            node_fields[field, node] = integers[field, node]
        node_fields[5, node] = leaf_of[node]
        if integers[3, node] >= 0 and is_categorical[integers[0, node]] != 0:
            numbers[n_sets] = node
            for k in range(bits.shape[1]):
                byte = 0
                for code in range(8 * k, 8 * k + 8):  # the first is the highest bit
                    byte = 2 * byte + (1 if code < n_codes and left_codes[node, code] != 0 else 0)
                bits[n_sets, k] = byte
            n_sets += 1
    return n_sets


class TreesSoFar:
    """The trees of a fit, without those of the model that it continues.

    Parameters
    ----------
    n_per_iteration : int

    Attributes
    ----------
    trees : list of GrownTree
    n_applied : int
        Number of trees whose values are in the scores of the training rows.
    mark : int
        Number of trees to which the model was cut back last, or may be cut back next; -1 for never.
    n_cuts : int
        How often the model has been cut back.
    """

    def __init__(self, n_per_iteration: int) -> None:
        self.trees: list[GrownTree] = []
        self.n_applied, self.mark, self.n_cuts = 0, -1, 0
        self._k = n_per_iteration

    def __len__(self) -> int:
        return len(self.trees)

    def add(self, tree: GrownTree) -> GrownTree:
        """Add a tree, which is pending; return it."""
        self.trees.append(tree)
        return tree

    @property
    def pending(self) -> list[GrownTree]:
        """The trees of the current iteration, whose values are not added to the scores of the training rows yet."""
        return self.trees[self.n_applied :]

    def apply(self) -> None:
        """Note that the values of all trees have been added."""
        self.n_applied = len(self.trees)

    @property
    def n_iterations(self) -> int:
        """Number of iterations whose trees are applied."""
        return self.n_applied // self._k

    def iterations(self, first: int = 0) -> list[tuple[FitTree, ...]]:
        """Return the applied trees by iteration, from number `first` on, as sessions receive them."""
        trees = [tree.for_sessions() for tree in self.trees[first * self._k : self.n_applied]]
        return [tuple(trees[i : i + self._k]) for i in range(0, len(trees), self._k)]

    def since(self, first: int) -> list[FitTree]:
        """Return the trees from number `first` on, as sessions receive them."""
        return [tree.for_sessions() for tree in self.trees[first:]]

    def of_iterations(self, first: int, last: int) -> list[GrownTree]:
        """Return the trees of iterations first + 1, …, last."""
        return self.trees[first * self._k : last * self._k]

    @property
    def n_valued(self) -> int:
        """Number of iterations whose trees have leaf values."""
        return sum(not tree.is_pending for tree in self.trees) // self._k

    def drop(self, n_trees: int) -> None:
        """Drop the trees after the first `n_trees`, which have changed no score."""
        del self.trees[n_trees:]
        self.n_applied = min(self.n_applied, n_trees)

    def set_mark(self) -> None:
        """Let the model be cut back to the present trees later."""
        self.mark = len(self.trees)

    def cut_back(self, n_iterations: int) -> None:
        """Drop the trees after an iteration at whose end the mark was set."""
        assert self.mark == n_iterations * self._k, "every cut goes back to a mark"
        self.drop(self.mark)
        self.n_cuts += 1
