"""A shard that answers questions: one round of a tree at a time, for trees that grow over several shards.

Between rounds the shard remembers which records belong to which node. A split streams a node's records from one buffer to
the other, as everywhere; a node's records stay where they are until its children are split, so a split that was made for
nothing needs no undoing.
"""

from __future__ import annotations

import numpy as np

from dboost.kernels import kernel
from dboost.kernels.histograms import BinLayout, add_records, flush
from dboost.kernels.rows import add_leaves, label_rows, quantise, split_records
from dboost.shards.shard import Shard
from dboost.shards.statistics import merge_into_bins
from dboost.trees.grower import RoundHistograms, RoundRequest, Split
from dboost.trees.tree_task import TreeTask


class ShardGrower:
    """The state of one tree on one shard.

    Parameters
    ----------
    shard : Shard
    """

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.n_channels = shard.spec.n_channels
        self._records = np.empty((2, shard.n_rows), np.uint64)
        self._packed = np.zeros(int(shard.bin_layout.start[-1]), np.int64)
        self._scratch = np.zeros(int(shard.bin_layout.n_bins.max()) + 1, np.int64)
        self._range_of: dict[int, tuple[int, int, int]] = {}  # node -> (buffer, begin, end)
        self._excluded: dict[int, tuple[int, int, int]] = {}  # the same of the rows that do not take part
        self._chosen: np.ndarray | None = None

    def begin(self, task: TreeTask) -> None:
        """Quantise gradients and Hessians: all rows that take part belong to node 0."""
        self._task = task
        if task.bin_merge is not None:
            merge_into_bins(self.shard, task.bin_merge, 0, self.shard.n_rows)
        gradient, hessian, _ = self.shard.output_arrays(task.output)
        self._chosen = self.shard.sampled_rows(*task.row_subset)
        n = self.shard.n_rows if self._chosen is None else len(self._chosen)
        _quantise(gradient, hessian, self._chosen, n, task.scales, self._records[0])
        self._range_of, self._excluded = {0: (0, 0, n)}, {}
        if n < self.shard.n_rows:
            # The other rows take no part, but must know their leaf in the end: their records are split along with the rest,
            # behind them in the same buffers.
            assert self._chosen is not None
            self._records[0, n:] = np.delete(np.arange(self.shard.n_rows, dtype=np.uint64), self._chosen)
            self._excluded = {0: (0, n, self.shard.n_rows)}

    def sum_histograms(self, question: RoundRequest) -> RoundHistograms:
        """This shard's part of the answer."""
        layout = self.shard.bin_layout
        counts = np.zeros((len(question.splits), 2), np.int64)
        if question.pairs and question.pairs[0].parent < 0:
            counts = np.array([[self._range_of[0][2], 0]])  # how many rows there are
        for k, split in enumerate(question.splits):
            counts[k] = self._split(self._range_of, split)
            if self._excluded:
                self._split(self._excluded, split)
        histograms = np.zeros((len(question.pairs), self.n_channels, int(layout.offset[-1])))
        wide = self.shard.bins.wide if len(self.shard.bins.wide) else None
        for k, pair in enumerate(question.pairs):
            side, begin, end = self._range_of[pair.small]
            _add_up(
                self.shard.tiles, wide, self._records[side, begin:end], self.shard.repeat_count, layout, self._task.packing,
                self._packed, histograms[k], self._scratch,
            )  # fmt: skip
        sums = None if question.leaves is None else self._settle(question.leaves)
        return RoundHistograms(histograms, counts, sums)

    def _split(self, place: dict[int, tuple[int, int, int]], split: Split) -> tuple[int, int]:
        """Send a node's records to its children; returns how many went left and right."""
        side, begin, end = place[split.node]
        codes = self.shard.bins.of(split.feature)
        middle = begin + _split(codes, split.goes_left, self._records[side, begin:end], self._records[1 - side, begin:end])
        place[split.left] = (1 - side, begin, middle)
        place[split.right] = (1 - side, middle, end)
        return middle - begin, end - middle

    def _settle(self, leaves: dict[int, int]) -> np.ndarray:
        gradient, hessian, leaf = self.shard.output_arrays(self._task.output)
        for node, label in leaves.items():
            for place in (self._range_of, self._excluded) if self._excluded else (self._range_of,):
                side, begin, end = place[node]
                _label(self._records[side, begin:end], leaf, label)
        sums = np.zeros((max(leaves.values()) + 1, 2))
        n = self.shard.n_rows if self._chosen is None else len(self._chosen)
        _sum_leaves(leaf, gradient, hessian, self.shard.repeat_count, self._chosen, n, self._task.scales, sums)
        return sums


@kernel
def _quantise(gradient, hessian, rows, n, scales, records):
    quantise(gradient, hessian, rows, scales[0], scales[1], 0, n, records)


@kernel
def _split(codes, goes_left, source, target):
    return split_records(codes, goes_left, source, target)


@kernel
def _add_up(tiles, wide_codes, records, repeat_count, layout: BinLayout, packing, packed, histogram, scratch):
    """Sum records into planes (float64[n_planes, n_buckets])."""
    for k in range(packed.size):
        packed[k] = 0
    n_columns = layout.first.size - 1
    _, flushed = add_records(
        tiles, wide_codes, records, repeat_count, layout, packing, np.int64(0), np.int64(n_columns), packed, histogram,
        np.int64(0), np.int64(0), scratch,
    )  # fmt: skip
    flush(layout, packing, np.int64(0), np.int64(n_columns), np.int64(0), packed, histogram, flushed == 0, scratch)


@kernel
def _label(records, leaf, label):
    label_rows(records, leaf, label)


@kernel
def _sum_leaves(leaf, gradient, hessian, repeat_count, rows, n, scales, sums):
    add_leaves(leaf, gradient, hessian, repeat_count, rows, 0, n, scales[2], scales[3], sums)
