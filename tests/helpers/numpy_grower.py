"""A grower in plain NumPy, for rows in memory: the node of each row is a number in an array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from dboost.rows.shard import Shard
from dboost.trees.grower_rows import GrowerRows
from dboost.trees.growers import GROWERS, Grower
from dboost.trees.tree_growth import RoundHistograms, RoundRequest
from dboost.trees.tree_task import TreeTask

NAME = "numpy"


def register() -> None:
    """Let fits of this process name the grower; also called on workers."""
    GROWERS[NAME] = NumpyGrower


def n_grown() -> int:
    """Return the number of trees that were begun in this process."""
    return NumpyGrower.n_begun


class NumpyGrower(Grower):
    """Grows trees in rounds."""

    n_begun: ClassVar[int] = 0

    def __init__(self, rows: GrowerRows) -> None:
        self.rows = rows

    def begin(self, tasks: Sequence[TreeTask]) -> None:
        assert self.rows.shard is not None
        self.rows.route_excluded()
        self.rows.merge_bins(tasks)
        self.trees = {task.output: _Tree(self.rows.shard, task) for task in tasks}
        NumpyGrower.n_begun += len(tasks)

    def sum_histograms(self, output: int, request: RoundRequest) -> RoundHistograms:
        tree = self.trees[output]
        counts = tree.split(request)
        histograms = np.array([tree.histogram(node) for node in request.nodes.tolist()])
        sums = tree.finish(request.leaves) if request.ends_tree else np.empty((0, 2))
        return RoundHistograms(histograms.reshape(-1, *tree.shape), counts, sums)


class _Tree:
    """A growing tree."""

    def __init__(self, shard: Shard, task: TreeTask) -> None:
        self.shard, self.task = shard, task
        self.node = np.zeros(shard.n_rows, np.int64)
        chosen = shard.sampled_rows(*task.row_subset)
        self.rows = np.concatenate([np.arange(*rows) for rows in shard.ranges()]) if chosen is None else chosen
        self.gradient, self.hessian, self.leaf = shard.split_arrays(task.output)
        self.repeats = np.ones(shard.n_rows) if shard.repeat_count is None else shard.repeat_count.astype(np.float64)
        self.shape = shard.spec.n_channels, int(shard.tree_layout.offset[-1])
        scale_g, scale_h = task.scales[:2].astype(np.float32)
        g = np.rint(self.gradient * scale_g)
        h = np.ones(shard.n_rows) if self.hessian is None else np.maximum(np.rint(self.hessian * scale_h), 1)
        self.added = self.repeats * g, self.repeats * h, np.ones(shard.n_rows)  # by channel

    def split(self, request: RoundRequest) -> np.ndarray:
        """Move the rows of split nodes to the children; return how many of those that take part went left and right."""
        counts = []
        for (node, feature, left, right), goes_left in zip(request.splits.tolist(), request.goes_left, strict=True):
            rows = np.flatnonzero(self.node == node)
            self.node[rows] = np.where(goes_left[self.shard.tree_codes.of(feature)[rows]], left, right)
            counts.append([np.count_nonzero(self.node[self.rows] == child) for child in (left, right)])
        return np.array([[len(self.rows), 0]] if request.is_first else counts, np.int64).reshape(-1, 2)

    def histogram(self, node: int) -> np.ndarray:
        """Return the sums of a node's rows: float64[n_channels, n_buckets]."""
        rows, layout = self.rows[self.node[self.rows] == node], self.shard.tree_layout
        sums = np.zeros(self.shape)
        for feature, codes in enumerate(self.shard.tree_codes.columns()):
            buckets = slice(layout.offset[feature], layout.offset[feature + 1])
            n = buckets.stop - buckets.start
            for channel in range(len(sums)):
                sums[channel, buckets] = np.bincount(codes[rows], self.added[channel][rows], minlength=n)
        return sums

    def finish(self, leaves: np.ndarray) -> np.ndarray:
        """Number the leaves of all rows; return the exact sums of those that take part."""
        for node, leaf in leaves.tolist():
            self.leaf[self.node == node] = leaf
        gradient_unit, hessian_unit = self.task.scales[2:]
        g = np.rint(self.gradient.astype(np.float64) * gradient_unit)
        h = np.full(len(g), hessian_unit) if self.hessian is None else np.rint(self.hessian.astype(np.float64) * hessian_unit)
        leaf_of = self.leaf[self.rows]
        return np.stack([np.bincount(leaf_of, (self.repeats * values)[self.rows]) for values in (g, h)], axis=1)
