"""A shard that answers questions: one round of a tree at a time, for trees that grow over several shards.

Between rounds the shard remembers which records belong to which node. A split streams a node's records from one buffer to
the other, as everywhere; a node's records stay where they are until its children are split, so a split that was made for
nothing needs no undoing.
"""

from __future__ import annotations

import numpy as np

from dboost.growth.grower import Answer, Question
from dboost.growth.task import TreeTask
from dboost.kernels import kernel
from dboost.kernels.histograms import Layout, add_records, flush
from dboost.kernels.rows import add_leaves, label_rows, quantise, split_records
from dboost.shard.shard import Shard


class Rounds:
    """The state of one tree on one shard.

    Parameters
    ----------
    shard : Shard
    n_planes : int
    """

    def __init__(self, shard: Shard, n_planes: int) -> None:
        self.shard = shard
        self.n_planes = n_planes
        self._records = np.empty((2, shard.n_rows), np.uint64)
        self._packed = np.zeros(int(shard.layout.start[-1]), np.int64)
        self._scratch = np.zeros(int(shard.layout.n_bins.max()) + 1, np.int64)
        self._place: dict[int, tuple[int, int, int]] = {}  # node -> (buffer, begin, end)

    def begin(self, task: TreeTask) -> None:
        """Quantise gradients and Hessians: all rows belong to node 0."""
        self._task = task
        gradient, hessian, _ = self.shard.for_tree(task.output)
        _quantise(gradient, hessian, task.scales, self._records[0])
        self._place = {0: (0, 0, self.shard.n_rows)}

    def answer(self, question: Question) -> Answer:
        """This shard's part of the answer."""
        layout = self.shard.layout
        counts = np.zeros((len(question.splits), 2), np.int64)
        for k, split in enumerate(question.splits):
            side, begin, end = self._place[split.node]
            codes = self.shard.codes.of(split.feature)
            middle = begin + _split(codes, split.goes_left, self._records[side, begin:end], self._records[1 - side, begin:end])
            self._place[split.left] = (1 - side, begin, middle)
            self._place[split.right] = (1 - side, middle, end)
            counts[k] = middle - begin, end - middle
        planes = np.zeros((len(question.openings), self.n_planes, int(layout.offset[-1])))
        wide = self.shard.codes.wide if len(self.shard.codes.wide) else None
        for k, opening in enumerate(question.openings):
            side, begin, end = self._place[opening.small]
            _add_up(
                self.shard.tiles, wide, self._records[side, begin:end], self.shard.times, layout, self._task.packing,
                self._packed, planes[k], self._scratch,
            )  # fmt: skip
        sums = None if question.leaves is None else self._settle(question.leaves)
        return Answer(planes, counts, sums)

    def _settle(self, leaves: dict[int, int]) -> np.ndarray:
        gradient, hessian, leaf = self.shard.for_tree(self._task.output)
        for node, label in leaves.items():
            side, begin, end = self._place[node]
            _label(self._records[side, begin:end], leaf, label)
        sums = np.zeros((max(leaves.values()) + 1, 2))
        _sum_leaves(leaf, gradient, hessian, self.shard.times, self._task.scales, sums)
        return sums


@kernel
def _quantise(gradient, hessian, scales, records):
    quantise(gradient, hessian, scales[0], scales[1], 0, gradient.size, records)


@kernel
def _split(codes, goes_left, source, target):
    return split_records(codes, goes_left, source, target)


@kernel
def _add_up(tiles, wide_codes, records, times, layout: Layout, packing, packed, planes, scratch):
    """Sum records into planes (float64[n_planes, n_buckets])."""
    for k in range(packed.size):
        packed[k] = 0
    n_columns = layout.first.size - 1
    _, flushed = add_records(
        tiles, wide_codes, records, times, layout, packing, np.int64(0), np.int64(n_columns), packed, planes,
        np.int64(0), np.int64(0), scratch,
    )  # fmt: skip
    flush(layout, packing, np.int64(0), np.int64(n_columns), np.int64(0), packed, planes, flushed == 0, scratch)


@kernel
def _label(records, leaf, label):
    label_rows(records, leaf, label)


@kernel
def _sum_leaves(leaf, gradient, hessian, times, scales, sums):
    add_leaves(leaf, gradient, hessian, times, 0, leaf.size, scales[2], scales[3], sums)
