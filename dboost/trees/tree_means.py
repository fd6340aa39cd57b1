"""The means over the trees of a random forest, by row: out-of-bag predictions of the training rows.

The trees of a forest are grown from the gradients at the start scores, which stay the raw scores of the rows. Beside them a row
has the sum of the values of the trees that did not draw it, and their number (`ShardSpec.averages`): 8 bytes per output and 4
more. Whether a tree drew a row is a hash of tree and row, so rows that another worker reads again know the same trees. If no
tree leaves rows out (``subsample=1``), the sums are over all trees.

The sums are computed row by row, in the order of the trees, and metrics merge exactly; so they do not depend on how the rows
are divided (L. Breiman, "Out-of-bag estimation", 1996).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dboost.losses import BaseLoss
from dboost.metrics.metric import LossMagnitude, ScoredRows
from dboost.metrics.named import find_metrics
from dboost.model.ensemble import averaged
from dboost.rows.row_sample import Sample
from dboost.rows.shard import Shard
from dboost.rows.statistics import Statistic
from dboost.trees.apply_trees import add_grown_tree
from dboost.trees.fit_trees import FitTree

#: The fields that change.
SUMS = ("tree_sum", "n_summed")

#: ``values_of(first, last)`` returns the values of the trees of an iteration for these rows: float64[n_outputs, last - first].
ValuesOf = Callable[[int, int], np.ndarray]


def rows_out_of_bag(shard: Shard, sample: Sample | None) -> np.ndarray | None:
    """Return which rows a tree did not draw: bool[n_rows]; None for all rows, if it drew all."""
    marks = shard.tree_marks(sample)
    return None if marks is None else marks == 0


def add_values(shard: Shard, is_out: np.ndarray | None, values_of: ValuesOf, first: int, last: int) -> None:
    """Add the values of the trees of an iteration to the sums of rows first…last-1. is_out : see `rows_out_of_bag`."""
    rows, values = slice(first, last), values_of(first, last)
    shard.fields["tree_sum"][:, rows] += values if is_out is None else np.where(is_out[rows], values, 0.0)
    shard.fields["n_summed"][rows] += 1 if is_out is None else is_out[rows]


def values_of_leaves(shard: Shard, values: np.ndarray) -> ValuesOf:
    """Return the values of the last trees, given those of their leaves (float64[n_outputs, n_leaves])."""
    leaf = np.broadcast_to(shard.leaf, (len(values), shard.n_rows))  # a tree of all outputs has one row of leaves
    return lambda first, last: np.stack([row[leaves[first:last]] for row, leaves in zip(values, leaf, strict=True)])


def values_of_trees(shard: Shard, trees: Sequence[FitTree]) -> ValuesOf:
    """Return the values of the trees of an iteration, which are applied to the codes of the rows."""

    def values_of(first: int, last: int) -> np.ndarray:
        values = np.zeros((shard.n_outputs, last))
        for tree in trees:
            add_grown_tree(shard.codes, shard.layout, tree, tree.leaf_values, tree.scores_of(values), first, last)
        return values[:, first:]

    return values_of


def _metric_chunks(
    shard: Shard, first: int, last: int, metrics: Sequence[Any], loss: BaseLoss, size: LossMagnitude, unit: float
) -> tuple[int, list[Any]]:
    """Return the number of rows with a prediction among rows first…last-1, and their statistics of metrics.

    metrics : as of `find_metrics`; unit : of targets and raw scores in the shard.
    """
    n_summed = shard.fields["n_summed"][first:last]
    rows = first + np.flatnonzero(n_summed)
    raw = averaged(shard.raw[:, rows], shard.fields["tree_sum"][:, rows], shard.fields["n_summed"][rows])
    weight = None if shard.weight is None else shard.weight[rows]
    scored = ScoredRows(shard.target(rows) * unit, raw * unit, weight, loss, size)
    return len(rows), [metric.chunk(scored) for metric in find_metrics(metrics, loss)]


metric_chunks = Statistic(_metric_chunks)
