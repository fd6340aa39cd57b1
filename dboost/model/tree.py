"""One regression tree as arrays.

Nodes are numbered in depth-first order, the left child directly after its parent (so the left child of node i is i + 1
whenever i is split). The numbering is a function of the tree's shape alone, not of the order in which its leaves were
opened, and the leaves read from left to right are 0, 1, 2, ….

A split sends a row left

* on a numeric feature, when ``value <= threshold``;
* on a categorical feature, when the row's level is one of `categories`;
* when the value is missing (or a level never seen), when `missing_left`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Tree:
    """A fitted tree.

    Attributes
    ----------
    feature : int32[n_nodes]
        Index of the feature that the node splits on, -1 in a leaf.
    threshold : float64[n_nodes]
        Numeric splits: the largest value that goes left. NaN in leaves and categorical splits.
    categories : tuple of (int32[...] or None)
        Categorical splits: sorted codes of the levels that go left (indices into the feature's `levels`); else None.
    missing_left : bool[n_nodes]
        Where missing values and unseen levels go. False in leaves.
    left, right : int32[n_nodes]
        Children, -1 in leaves.
    gain : float64[n_nodes]
        Loss reduction by the split (0 in leaves), in the units of the loss summed over rows.
    cover : float64[n_nodes]
        Sum of the rows' Hessians (sum of weights when the Hessian is constant).
    count : int64[n_nodes]
        Number of training rows (of positive weight).
    value : float64[n_nodes]
        What a row ending here adds to the raw score, learning rate included. Internal nodes hold what they would add as leaves.
    """

    feature: np.ndarray
    threshold: np.ndarray
    categories: tuple[np.ndarray | None, ...]
    missing_left: np.ndarray
    left: np.ndarray
    right: np.ndarray
    gain: np.ndarray
    cover: np.ndarray
    count: np.ndarray
    value: np.ndarray

    @property
    def n_nodes(self) -> int:
        return len(self.feature)

    @property
    def n_leaves(self) -> int:
        return int((self.feature < 0).sum())

    @property
    def depth(self) -> int:
        """Number of splits on the longest path (0 for a single leaf)."""
        level = np.zeros(self.n_nodes, np.int32)
        for node in np.flatnonzero(self.feature >= 0):
            level[self.left[node]] = level[self.right[node]] = level[node] + 1
        return int(level.max())
