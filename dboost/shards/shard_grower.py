"""A shard in memory that grows trees one round at a time, for trees that grow over several shards.

Between rounds the shard stores which records belong to which node. A split streams a node's records from one buffer to the
other; a node's records stay where they are until its children are split, so a speculative split that is dropped needs no undo.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dboost.kernels import kernel
from dboost.kernels.histograms import BinLayout, add_records, flush
from dboost.kernels.rows import add_leaves, label_rows, quantise, split_records
from dboost.shards.shard import Scratch, Shard, advance_rows
from dboost.shards.statistics import merge_into_bins
from dboost.trees.grower import RoundHistograms, RoundRequest, Split
from dboost.trees.tree_task import GradientStats, TreeTask


class ShardGrower:
    """A shard and the state of one tree on it; `block_store.StreamedShard` has the same methods.

    Parameters
    ----------
    shard : Shard
    """

    bytes_read = 0  # from files

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self._block = Scratch()
        self.n_channels = shard.spec.n_channels
        self._records = np.empty((2, shard.n_rows), np.uint64)
        self._packed = np.zeros(int(shard.bin_layout.start[-1]), np.int64)
        self._scratch = np.zeros(int(shard.bin_layout.n_bins.max()) + 1, np.int64)
        self._histograms = np.empty(0)
        self._range_of: dict[int, tuple[int, int, int]] = {}  # node -> (record buffer, begin, end)
        self._excluded: dict[int, tuple[int, int, int]] = {}  # the same for the rows that do not take part
        self._sampled: np.ndarray | None = None

    @property
    def n_rows(self) -> int:
        return self.shard.n_rows

    def advance(self, terms: tuple, values: np.ndarray) -> GradientStats:
        """Do the work of `shards.shard.advance_rows` for all rows."""
        shard = self.shard
        return advance_rows(shard, terms, values, shard.spec.loss_unit, self._block, 0, shard.n_rows)

    def map_shards(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return ``[function(shard, 0, n_rows, *arguments)]``."""
        return [function(self.shard, 0, self.n_rows, *arguments)]

    def close(self) -> None:
        """Do nothing; the shard has no files."""

    def begin(self, task: TreeTask) -> None:
        """Quantise gradients and Hessians: all rows that take part belong to node 0."""
        self._task = task
        if task.bin_merge is not None:
            merge_into_bins(self.shard, task.bin_merge, 0, self.shard.n_rows)
        gradient, hessian, _ = self.shard.output_arrays(task.output)
        self._sampled = self.shard.sampled_rows(*task.row_subset)
        n = self.shard.n_rows if self._sampled is None else len(self._sampled)
        _quantise(gradient, hessian, self._sampled, n, task.scales, self._records[0])
        self._range_of, self._excluded = {0: (0, 0, n)}, {}
        if n < self.shard.n_rows:
            # The other rows do not take part but need their leaf in the end: their records are split along with the rest,
            # behind them in the same buffers.
            assert self._sampled is not None
            self._records[0, n:] = np.delete(np.arange(self.shard.n_rows, dtype=np.uint64), self._sampled)
            self._excluded = {0: (0, n, self.shard.n_rows)}

    def sum_histograms(self, request: RoundRequest) -> RoundHistograms:
        """Apply a request to this shard: return its histograms and row counts."""
        layout = self.shard.bin_layout
        counts = np.zeros((len(request.splits), 2), np.int64)
        if request.pairs and request.pairs[0].parent < 0:
            counts = np.array([[self._range_of[0][2], 0]])  # the number of rows
        for k, split in enumerate(request.splits):
            counts[k] = self._split(self._range_of, split)
            if self._excluded:
                self._split(self._excluded, split)
        histograms = self._zeros(len(request.pairs), int(layout.offset[-1]))
        wide = self.shard.bins.wide if len(self.shard.bins.wide) else None
        for k, pair in enumerate(request.pairs):
            side, begin, end = self._range_of[pair.small]
            _add_up(
                self.shard.tiles, wide, self._records[side, begin:end], self.shard.repeat_count, layout, self._task.packing,
                self._packed, histograms[k], self._scratch,
            )  # fmt: skip
        sums = None if request.leaves is None else self._finish_leaves(request.leaves)
        return RoundHistograms(histograms, counts, sums)

    def _zeros(self, n_pairs: int, n_buckets: int) -> np.ndarray:
        """Return zeros for the histograms of a round: float64[n_pairs, n_channels, n_buckets], valid until the next round.

        The buffer is kept, because new memory for every round would cost more page faults than the work on few rows.
        """
        size = n_pairs * self.n_channels * n_buckets
        if size > self._histograms.size:
            self._histograms = np.empty(max(size, 2 * self._histograms.size))
        histograms = self._histograms[:size]
        histograms[:] = 0.0
        return histograms.reshape(n_pairs, self.n_channels, n_buckets)

    def _split(self, ranges: dict[int, tuple[int, int, int]], split: Split) -> tuple[int, int]:
        """Move a node's records to its children; return how many went left and right."""
        side, begin, end = ranges[split.node]
        codes = self.shard.bins.of(split.feature)
        middle = begin + _split(codes, split.goes_left, self._records[side, begin:end], self._records[1 - side, begin:end])
        ranges[split.left] = (1 - side, begin, middle)
        ranges[split.right] = (1 - side, middle, end)
        return middle - begin, end - middle

    def _finish_leaves(self, leaves: dict[int, int]) -> np.ndarray:
        gradient, hessian, leaf = self.shard.output_arrays(self._task.output)
        for node, label in leaves.items():
            for ranges in (self._range_of, self._excluded) if self._excluded else (self._range_of,):
                side, begin, end = ranges[node]
                _label(self._records[side, begin:end], leaf, label)
        sums = np.zeros((max(leaves.values()) + 1, 2))
        n = self.shard.n_rows if self._sampled is None else len(self._sampled)
        _sum_leaves(leaf, gradient, hessian, self.shard.repeat_count, self._sampled, n, self._task.scales, sums)
        return sums


@kernel
def _quantise(gradient, hessian, rows, n, scales, records):
    quantise(gradient, hessian, rows, scales[0], scales[1], 0, n, records)


@kernel
def _split(codes, goes_left, source, target):
    return split_records(codes, goes_left, source, target)


@kernel
def _add_up(tiles, wide_codes, records, repeat_count, layout: BinLayout, packing, packed, histogram, scratch):
    """Sum records into a histogram (float64[n_channels, n_buckets])."""
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
