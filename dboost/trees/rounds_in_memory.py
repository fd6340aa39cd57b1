"""A shard in memory that grows trees one round at a time, for trees that grow over several shards.

Between rounds the shard stores which records belong to which node. A split streams a node's records from one buffer to the
other; a node's records stay where they are until its children are split, so a speculative split that is dropped needs no undo.

Several trees may grow at the same time, one for each output: the trees of an iteration, whose rounds are shared. Each has
records of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dboost.kernels import kernel, or_empty
from dboost.kernels.histograms import Histograms, add_records, flush, rows_in_32_bits
from dboost.kernels.rows import STRIPE, add_leaf, label_rows, quantise, quantise_marked, split_records
from dboost.rows.shard import Shard
from dboost.trees.tree_growth import RoundHistograms, RoundRequest
from dboost.trees.tree_task import TreeTask

#: Bytes that a growing tree needs for each row: two records, and a mark if rows are sampled.
BYTES_PER_ROW = 17


class RoundsInMemory:
    """A share of a shard's rows and the state of the trees that grow on it; in files: `rounds_in_files.RoundsInFiles`.

    Parameters
    ----------
    shard : Shard
    k, n : int
        Number of the share, and of shares.
    """

    def __init__(self, shard: Shard, k: int = 0, n: int = 1) -> None:
        self.shard, self._share = shard, (k, n)
        self._n_rows = sum(last - first for first, last in shard.ranges(k, n))
        self.n_channels = shard.spec.n_channels
        self._packed = np.zeros(int(shard.tree_layout.start[-1]), np.int64)
        self._scratch = np.zeros(int(shard.tree_layout.n_bins.max()) + 1, np.int64)
        #: Buffers for the histograms of nodes: as float64, and as int32 by output. They are kept, because new memory for every
        #: round would cost more page faults than the work on few rows. (`flush` multiplies old sums by 0, so they begin as 0.)
        shape = self.n_channels, int(shard.tree_layout.offset[-1])
        self._wide = np.zeros((1, *shape))
        self._narrow: dict[int, np.ndarray] = {}
        self._records: list[np.ndarray] = []
        self.trees: dict[int, GrowingTree] = {}

    def begin(self, tasks: Sequence[TreeTask], marks: Sequence[np.ndarray | None]) -> None:
        """Begin trees of different outputs: all rows that take part belong to their roots. Earlier trees are dropped.

        marks : of the rows of the whole shard for each tree, see `Shard.tree_marks`.
        """
        while len(self._records) < len(tasks):
            self._records.append(np.empty((2, self._n_rows), np.uint64))
        self.trees = {
            task.output: GrowingTree(self.shard, task, self._records[k], marks[k], *self._share) for k, task in enumerate(tasks)
        }

    def sum_histograms(self, output: int, request: RoundRequest) -> RoundHistograms:
        """Apply a request to one tree: return its histograms, valid until the next request, and row counts.

        Histograms of int32 are valid until the next request to the same tree.
        """
        tree = self.trees[output]
        counts = np.array([[tree.n_sampled, 0]]) if request.is_first else tree.split(request)
        histograms = self._add_up(output, request.nodes)
        if request.ends_tree:
            return RoundHistograms(histograms, counts, tree.finish_leaves(request.leaves))
        return RoundHistograms(histograms, counts)

    def close(self) -> None:
        """Release the buffers."""
        self._records, self.trees, self._narrow = [], {}, {}

    def _add_up(self, output: int, nodes: np.ndarray) -> np.ndarray:
        """Return the histograms of nodes: int32[n_nodes, n_channels, n_buckets] if all sums are sure to fit, else float64."""
        tree, shard = self.trees[output], self.shard
        packing, n_rows = tree.task.packing, tree.ranges[nodes, 2] - tree.ranges[nodes, 1]
        is_narrow = bool((n_rows <= rows_in_32_bits(packing)).all())
        n_wide, n_narrow = (1, len(nodes)) if is_narrow else (len(nodes), 0)
        if n_wide > len(self._wide):
            self._wide = np.zeros((n_wide, *self._wide.shape[1:]))
        if n_narrow > len(self._narrow.get(output, ())):
            self._narrow[output] = np.empty((2 * n_narrow, *self._wide.shape[1:]), np.int32)
        narrow = self._narrow.get(output, np.empty((0, *self._wide.shape[1:]), np.int32))[:n_narrow]
        if len(nodes):
            _add_up(
                shard.histogram_rows, tree.records, tree.ranges, nodes, shard.tree_layout, packing, self._packed,
                Histograms(self._wide, None), narrow, self._scratch,
            )  # fmt: skip
        return narrow if is_narrow else self._wide[: len(nodes)]


class GrowingTree:
    """Which records belong to which node of a tree.

    Parameters
    ----------
    shard : Shard
    task : TreeTask
        Gradients and Hessians are quantised by its scales.
    records : uint64[2, n_rows]
        Receives the records.
    marks : uint8[n] or None
        Of the rows of the whole shard, see `Shard.tree_marks`.
    k, n : int
        Number of the share, and of shares.
    """

    def __init__(self, shard: Shard, task: TreeTask, records: np.ndarray, marks: np.ndarray | None, k: int, n: int) -> None:
        self.task, self.records = task, records
        self._shard = shard
        gradient, hessian, _ = shard.split_arrays(task.output)
        n_all = records.shape[1]
        front, back = 0, n_all - 1
        for rows in shard.ranges(k, n):
            front, back = _quantise(
                gradient, or_empty(hessian, "float32"), or_empty(marks, "uint8"), rows, task.scales, (front, back), records
            )  # fmt: skip
        self.n_sampled = front
        #: Record buffer, begin and end of each node; the same for the rows that do not take part.
        self.ranges = np.zeros((2 * task.policy.max_leaves, 3), np.int64)
        self.ranges[0] = 0, 0, front
        self._excluded: np.ndarray | None = None
        if front < n_all:
            # The other rows do not take part but need their leaf in the end: their records are split along with the rest,
            # behind them in the same buffers.
            self._excluded = self.ranges.copy()
            self._excluded[0] = 0, front, n_all

    def split(self, request: RoundRequest) -> np.ndarray:
        """Move the records of split nodes to their children; return how many went left and right: int64[n_splits, 2]."""
        counts = np.zeros((len(request.splits), 2), np.int64)
        if not len(counts):
            return counts
        n_numbers = int(request.splits[:, 2:].max()) + 1
        self.ranges = _with_room(self.ranges, n_numbers)
        codes = self._shard.tree_codes
        _split(codes.narrow, codes.wide, codes.row_of, self.records, self.ranges, request.splits, request.goes_left, counts)
        if self._excluded is not None:
            self._excluded = _with_room(self._excluded, n_numbers)
            _split(
                codes.narrow, codes.wide, codes.row_of, self.records, self._excluded, request.splits, request.goes_left,
                np.empty_like(counts),
            )  # fmt: skip
        return counts

    def finish_leaves(self, leaves: np.ndarray) -> np.ndarray:
        """Number the leaves of all rows; return exact sums of gradients and Hessians by leaf."""
        shard = self._shard
        gradient, hessian, leaf = shard.split_arrays(self.task.output)
        for ranges in (self.ranges,) if self._excluded is None else (self.ranges, self._excluded):
            _label(self.records, ranges, leaves, leaf)
        sums = np.zeros((int(leaves[:, 1].max()) + 1, 2))
        _sum_leaves(
            self.records, self.ranges, leaves, gradient, or_empty(hessian, "float32"), or_empty(shard.repeat_count, "uint8"),
            self.task.scales, sums,
        )  # fmt: skip
        return sums


def _with_room(ranges: np.ndarray, n_numbers: int) -> np.ndarray:
    """Return the ranges of nodes with room for `n_numbers` of them."""
    if n_numbers <= len(ranges):
        return ranges
    larger = np.zeros((max(n_numbers, 2 * len(ranges)), 3), np.int64)
    larger[: len(ranges)] = ranges
    return larger


@kernel
def _quantise(gradient, hessian, marks, rows, scales, ends, records):
    """Write the records of rows rows[0]…rows[1]-1 that take part, from position ends[0] upwards, and the numbers of the others
    from position ends[1] downwards. Return the new ends. marks : empty if all do, see `Shard.tree_marks`.
    """
    first_row, last_row = rows
    front, back = ends
    if marks.size == 0:
        quantise(gradient, hessian, records[0, :0], scales, first_row, last_row, records[0, front:])
        return front + last_row - first_row, back
    for first in range(first_row, last_row, STRIPE):
        last = first + STRIPE if first + STRIPE < last_row else last_row
        spare = records[1, : last - first]
        front, back = quantise_marked(gradient, hessian, marks, scales, first, last, (front, back), records[0], spare)
    return front, back


@kernel
def _split(narrow, wide, row_of, records, ranges, splits, goes_left, counts):
    """Apply splits (see `RoundRequest`) to the records of their nodes."""
    for k in range(len(splits)):
        node, row = splits[k, 0], row_of[splits[k, 1]]
        side, begin, end = ranges[node]
        source, target = records[side, begin:end], records[1 - side, begin:end]
        if row >= 0:
            n_left = split_records(narrow[row], goes_left[k], source, target)
        else:
            n_left = split_records(wide[-1 - row], goes_left[k], source, target)
        middle = begin + n_left
        left, right = splits[k, 2], splits[k, 3]
        ranges[left, 0], ranges[left, 1], ranges[left, 2] = 1 - side, begin, middle
        ranges[right, 0], ranges[right, 1], ranges[right, 2] = 1 - side, middle, end
        counts[k, 0], counts[k, 1] = n_left, end - middle


@kernel
def _add_up(rows, records, ranges, nodes, layout, packing, packed, wide, narrow, scratch):
    """Sum the records of nodes into their histograms. rows : HistogramRows.

    wide : Histograms by channel, which receives them; narrow : int32[n_nodes, n_channels, n_buckets] receives them instead if
    it is not empty. Then only the first slot of `wide` is used, for all nodes, so it stays in the cache.
    """
    columns = np.int64(0), np.int64(layout.first.size - 1)
    is_narrow = narrow.shape[0] > 0
    for k in range(len(nodes)):
        side, begin, end = ranges[nodes[k]]
        for word in range(packed.size):
            packed[word] = 0
        slot, nothing = np.int64(0 if is_narrow else k), (np.int64(0), np.int64(0))
        _, flushed = add_records(rows, records[side, begin:end], layout, packing, columns, packed, wide, slot, nothing, scratch)
        flush(layout, packing, columns, np.int64(0), packed, wide, slot, flushed == 0, scratch)
        if is_narrow:
            for channel in range(wide.by_channel.shape[1]):
                sums, sent = wide.by_channel[slot, channel], narrow[k, channel]
                for b in range(sums.size):
                    sent[b] = np.int32(sums[b])


@kernel
def _label(records, ranges, leaves, leaf):
    """Set the number of the leaf of every record of the listed nodes."""
    for k in range(len(leaves)):
        side, begin, end = ranges[leaves[k, 0]]
        label_rows(records[side, begin:end], leaf, leaves[k, 1])


@kernel
def _sum_leaves(records, ranges, leaves, gradient, hessian, repeat_count, scales, sums):
    """Add up exact sums of gradients and Hessians over the records of the listed nodes."""
    for k in range(len(leaves)):
        side, begin, end = ranges[leaves[k, 0]]
        add_leaf(records[side, begin:end], gradient, hessian, repeat_count, scales[2], scales[3], sums, leaves[k, 1])
