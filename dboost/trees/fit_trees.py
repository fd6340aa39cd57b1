"""The trees of a fit, the only list of them.

Sessions add the trees that they grow, and the loop completes them by their leaf values. The scores of the training rows contain
the first `n_applied` trees; the others are *pending*: rows are assigned to their leaves, and the next `advance` adds the
values. Rows that are read again after a loss replay the list, evaluation sets add the trees that they lack, and checkpoint and
model are made from it.

With arcbites the model is cut back after a visit, to a *mark*: a number of trees at which evaluation sets save their scores.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dboost.trees.tree_task import GrownTree, TreeRoutes, TreeTask


class ModelPart(NamedTuple):
    """What only the model needs of a tree."""

    gain: np.ndarray  # float64[n_nodes]
    n_rows: np.ndarray  # int64[n_nodes]
    #: Exact sums of gradients and Hessians by leaf: float64[n_leaves, 2], of several outputs float64[n_outputs, n_leaves, 2].
    sums: np.ndarray
    gain_unit: float  # factor from a score of quantised sums to units of the loss
    learning_rate: float = 0.0
    bounds: np.ndarray | None = None  # float64[n_leaves, 2]: of the values of a constrained tree; None for others


@dataclass(eq=False)
class FitTree:
    """A tree of a fit. It owns its arrays."""

    routes: TreeRoutes
    values: np.ndarray | None  # float64[n_leaves], of a tree of several outputs float64[width, n_leaves]; None until computed
    output: int  # the first one
    of_model: ModelPart | None = None  # None in sessions

    @classmethod
    def of(cls, grown: GrownTree, task: TreeTask, is_categorical: np.ndarray) -> FitTree:
        """Copy what is needed of a tree in the buffers of a grower. is_categorical : uint8[n_features]."""
        n, nodes, bounds = grown.n_nodes, grown.nodes, None
        if task.direction is not None:
            leaves = np.flatnonzero(nodes.child[:n] < 0)
            bounds = np.empty((grown.n_leaves, 2))
            bounds[grown.leaf_of[leaves]] = nodes.total[leaves, 3:]
        part = ModelPart(nodes.gain[:n].copy(), grown.n_rows[:n].copy(), grown.leaf_sums, task.gain_unit, bounds=bounds)
        return cls(TreeRoutes.of(grown, is_categorical), None, task.output, part)

    def complete(self, values: np.ndarray, learning_rate: float, sums: np.ndarray | None = None) -> None:
        """Set what leaves add to the scores. sums : of all outputs, default those that the tree was grown by."""
        self.values, part = values, self.model_part
        self.of_model = part._replace(learning_rate=learning_rate, sums=part.sums if sums is None else sums)

    def for_sessions(self) -> FitTree:
        """Return what rows need of the tree, without what only the model needs."""
        return replace(self, of_model=None)

    @property
    def model_part(self) -> ModelPart:
        assert self.of_model is not None, "a tree in a session"
        return self.of_model

    @property
    def leaf_values(self) -> np.ndarray:
        assert self.values is not None, "a tree whose values are not computed yet"
        return self.values

    @property
    def n_nodes(self) -> int:
        return self.routes.nodes.shape[1]

    @property
    def n_leaves(self) -> int:
        return self.routes.n_leaves

    @property
    def n_rows(self) -> int:
        """Number of rows that the tree was grown from."""
        return int(self.model_part.n_rows[0])

    @property
    def leaf_sums(self) -> np.ndarray:
        return self.model_part.sums

    @property
    def grown(self) -> GrownTree:
        """The tree as kernels route rows by it."""
        return self.routes.restore()

    def within_bounds(self, values: np.ndarray, unit: float) -> np.ndarray:
        """Return leaf values clipped to the bounds of the tree, which are in units of `unit`."""
        bounds = self.model_part.bounds
        return values if bounds is None else np.clip(values, bounds[:, 0] * unit, bounds[:, 1] * unit)

    def scores_of(self, raw: np.ndarray) -> np.ndarray:
        """Return the scores that the values are added to. raw : float64[n_outputs, n_rows]."""
        return scores_of(raw, self.leaf_values, self.output)


def scores_of(raw: np.ndarray, values: np.ndarray, output: int) -> np.ndarray:
    """Return the raw scores of a tree's outputs in the shape of its leaf values, see `FitTree`."""
    return raw[output] if values.ndim == 1 else raw[output : output + len(values)]


class TreesSoFar:
    """The trees of a fit, without those of the model that it continues.

    Parameters
    ----------
    n_per_iteration : int
    is_categorical : uint8[n_features]

    Attributes
    ----------
    trees : list of FitTree
    n_applied : int
        Number of trees whose values are in the scores of the training rows.
    mark : int
        Number of trees to which the model was cut back last, or may be cut back next; -1 for never.
    n_cuts : int
        How often the model has been cut back.
    """

    def __init__(self, n_per_iteration: int, is_categorical: np.ndarray) -> None:
        self.trees: list[FitTree] = []
        self.n_applied, self.mark, self.n_cuts = 0, -1, 0
        self._k, self._is_categorical = n_per_iteration, is_categorical

    def __len__(self) -> int:
        return len(self.trees)

    def add(self, task: TreeTask, grown: GrownTree) -> FitTree:
        """Add a tree, without leaf values."""
        tree = FitTree.of(grown, task, self._is_categorical)
        self.trees.append(tree)
        return tree

    @property
    def pending(self) -> list[FitTree]:
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

    def of_iterations(self, first: int, last: int) -> list[FitTree]:
        """Return the trees of iterations first + 1, …, last."""
        return self.trees[first * self._k : last * self._k]

    @property
    def n_valued(self) -> int:
        """Number of iterations whose trees have leaf values."""
        return sum(tree.values is not None for tree in self.trees) // self._k

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
