"""The trees as a table with one row per node."""

from __future__ import annotations

import numpy as np

from dboost._lazy_import import pd
from dboost.model.ensemble import Ensemble, Tree


def to_frame(ensemble: Ensemble) -> pd.DataFrame:
    """Return all nodes of all trees, tree by tree, in depth-first order.

    Parameters
    ----------
    ensemble : Ensemble

    Returns
    -------
    DataFrame with the columns

        - iteration : int, from 1, as in the history
        - class : class of the tree's output; missing with one tree per iteration
        - node : int, from 0 within each tree
        - depth : int, 0 at the root
        - feature : name of the feature of the split; missing in leaves
        - threshold : float, numeric splits: the largest value that goes left
        - categories : tuple, categorical splits: the levels that go left
        - missing_left : bool, whether missing values and unknown levels go left
        - left, right : int, the children's `node`; -1 in leaves
        - gain : float, reduction of the loss by the split
        - cover : float, sum of the rows' Hessians
        - count : int, number of training rows
        - value : float, term of the raw score of rows in this leaf
    """
    trees = ensemble.trees
    sizes = np.array([tree.n_nodes for tree in trees], np.int64)
    tree_of_node = np.repeat(np.arange(len(trees)), sizes)
    classes = np.array([None] * ensemble.n_outputs, object)
    if ensemble.n_outputs > 1 and ensemble.classes is not None:
        classes[:] = ensemble.classes
    names = np.array([*(feature.name for feature in ensemble.features), None], object)
    levels = [feature.categories for feature in ensemble.features]

    def joined(name: str, dtype: type) -> np.ndarray:
        return np.concatenate([np.empty(0, dtype), *(getattr(tree, name) for tree in trees)])

    categories = [
        None if codes is None else tuple((levels[feature] or ())[code] for code in codes)
        for tree in trees
        for feature, codes in zip(tree.feature.tolist(), tree.categories, strict=True)
    ]
    return pd.DataFrame(
        {
            "iteration": tree_of_node // ensemble.n_outputs + 1,
            "class": classes[tree_of_node % ensemble.n_outputs],
            "node": np.concatenate([np.empty(0, np.int64), *map(np.arange, sizes)]),
            "depth": np.concatenate([np.empty(0, np.int64), *map(_depths, trees)]),
            "feature": names[joined("feature", np.int64)].tolist(),
            "threshold": joined("threshold", np.float64),
            "categories": pd.Series(categories, dtype=object),
            "missing_left": joined("missing_left", np.bool_),
            "left": joined("left", np.int64),
            "right": joined("right", np.int64),
            "gain": joined("gain", np.float64),
            "cover": joined("cover", np.float64),
            "count": joined("count", np.int64),
            "value": joined("value", np.float64),
        }
    )


def _depths(tree: Tree) -> np.ndarray:
    depths = np.zeros(tree.n_nodes, np.int64)
    for node in np.flatnonzero(tree.feature >= 0):
        depths[[tree.left[node], tree.right[node]]] = depths[node] + 1
    return depths
