"""Growth of trees on rows in files: each request of the grower is one pass over the blocks.

A tree grows in passes (`kernels.streaming`), in which rows are routed to the children of the last splits and added to the
histograms of the small children. The grower splits many nodes per round here, since a pass over the files costs more than
histograms of nodes that are dropped later.

Checksums of codes are verified once per tree, in the last pass that reads them: data that were damaged or altered when an
earlier pass read them still are then, and the tree is not finished. The last pass is not always known in advance: any pass with
fewer pairs than the one before may be the last. Only wide columns are verified in every pass, because a code that is too large
would be added outside the histogram; each of the 256 codes of a byte has a bucket.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dboost.kernels import or_empty
from dboost.kernels.histograms import TILE_COLUMNS, BinLayout
from dboost.kernels.streaming import BlockRows, PairSums, finish_leaves, finish_pairs, route, sum_pairs
from dboost.shards.shard import Shard
from dboost.shards.shard_blocks import ShardBlocks
from dboost.shards.shard_spec import ShardSpec
from dboost.storage.block_file import FieldRef
from dboost.trees.grower import RoundHistograms, RoundRequest
from dboost.trees.tree_task import TreeTask


class StreamedGrower:
    """Blocks of files and the state of the trees that grow on them; `shard_grower.ShardGrower` has the same methods.

    Parameters
    ----------
    rows : ShardBlocks
    """

    def __init__(self, rows: ShardBlocks) -> None:
        self.rows = rows
        self.sums = _HistogramBuffers(rows.spec)
        self.records = np.empty((2, rows.store.block_rows), np.uint64)  # scratch
        self._trees: dict[int, _Tree] = {}  # growing trees, by output

    def begin(self, tasks: Sequence[TreeTask]) -> None:
        """Begin trees of different outputs: all rows belong to their roots."""
        self._trees = {task.output: _Tree(self, task) for task in tasks}

    def sum_histograms(self, output: int, request: RoundRequest) -> RoundHistograms:
        """Return the rows' histograms and row counts for a request to one tree, in one pass over the blocks.

        They are valid until the next request.
        """
        return self._trees[output].sum_histograms(request)

    def close(self) -> None:
        """Release the buffers."""
        self.sums.close()
        self._trees = {}


class _HistogramBuffers:
    """Buffers for the histograms of the pairs of one round; they are reused."""

    def __init__(self, spec: ShardSpec) -> None:
        self._layout, self._n_channels = spec.layout, spec.n_channels
        self._packed, self._histograms = np.empty((0, 0), np.int64), np.empty((0, 0, 0))

    def take(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return packed buckets, which are 0, and histograms, which are uninitialised, for n pairs. Both are valid until the
        next call."""
        if n > len(self._packed):
            self.close()
            self._packed = np.zeros((n, int(self._layout.start[-1])), np.int64)
            self._histograms = np.zeros((n, self._n_channels, int(self._layout.offset[-1])))
        else:
            self._packed[:n] = 0
        return self._packed[:n], self._histograms[:n]

    def close(self) -> None:
        """Release the memory."""
        self._packed, self._histograms = np.empty((0, 0), np.int64), np.empty((0, 0, 0))


class _Tree:
    """A growing tree: the slot of each node."""

    def __init__(self, grower: StreamedGrower, task: TreeTask) -> None:
        self._grower, self._task = grower, task
        self._slot_of = {0: 0}
        self._n_last_nodes, self._is_verified = 0, False  # of the last pass that read codes
        self._scratch = np.zeros(int(grower.rows.spec.layout.n_bins.max()) + 1, np.int64)

    def sum_histograms(self, request: RoundRequest) -> RoundHistograms:
        grower, task, spec = self._grower, self._task, self._grower.rows.spec
        layout = spec.layout
        is_first, splits = request.is_first, request.splits.tolist()
        tables = _SplitTables(layout, splits, request.goes_left, self._slot_of, spec.leaf_type)
        n_slots, n_nodes = len(self._slot_of), len(request.nodes)
        position_of = np.full(n_slots, -1, np.int64)
        for k, node in enumerate(request.nodes.tolist()):
            position_of[self._slot_of[node]] = k
        counts = np.zeros(n_slots, np.int64)
        packed, histograms = grower.sums.take(n_nodes)
        pairs = PairSums(
            position_of, packed, histograms, np.zeros(n_nodes, np.int64), np.zeros(n_nodes, np.int64),
            np.empty((3, n_slots), np.uint64),
        )  # fmt: skip
        number_of = np.zeros(n_slots, spec.leaf_type)
        sums = None
        if request.leaves is not None:
            sums = np.zeros((int(request.leaves[:, 1].max()) + 1, 2))
            for node, number in request.leaves.tolist():
                number_of[self._slot_of[node]] = number

        names = ["gradient", *([] if spec.constant_hessian else ["hessian"])]
        fields: list[FieldRef] = [self._of_output(name) if spec.width == 1 else f"split_{name}" for name in names]
        if spec.weights_as_hessian and task.least_influence:
            fields.append(self._of_output("loss_hessian"))
        if spec.has_repeat_count:
            fields.append("repeat_count")
        if spec.grouped and task.sample is not None:
            fields.append("draw_id")
        leaf = [self._of_output("leaf")]
        has_wide = layout.n_tiled < len(layout.first) - 1
        reads_codes = bool(splits or n_nodes) or not self._is_verified
        self._is_verified = has_wide or sums is not None or n_nodes < self._n_last_nodes
        self._n_last_nodes = n_nodes
        reads = [*(["tiles"] if reads_codes else []), *fields, *([] if is_first else leaf)]
        writes = leaf if is_first or splits or sums is not None else []
        for block in grower.rows.walk(reads, writes, verify=self._is_verified):
            gradient, hessian, slots = block.split_arrays(task.output)
            rows = block.sampled_rows(*task.row_subset)
            n = block.n_rows if rows is None else len(rows)
            if is_first:
                slots[:] = 0
            if splits:
                tables.apply(block, slots)
            hessian, rows = or_empty(hessian, "float32"), or_empty(rows, "int64")
            of_block = BlockRows(block.histogram_rows, slots, gradient, hessian, rows, n)
            if splits or n_nodes:
                sum_pairs(of_block, task.scales, layout, task.packing, pairs, counts, grower.records, self._scratch)
            if sums is not None:
                finish_leaves(of_block, task.scales, number_of, sums)
        finish_pairs(layout, task.packing, pairs, self._scratch)
        if is_first:
            return RoundHistograms(histograms, np.array([[counts[0], 0]]), sums)
        n_rows = [(counts[self._slot_of[left]], counts[self._slot_of[right]]) for _, _, left, right in splits]
        return RoundHistograms(histograms, np.array(n_rows, np.int64).reshape(-1, 2), sums)

    def _of_output(self, name: str) -> FieldRef:
        return name, self._task.output


class _SplitTables:
    """The splits of one request, as tables indexed by a row's slot and code; assigns the new slots."""

    def __init__(
        self, layout: BinLayout, splits: list[list[int]], goes_left: np.ndarray, slot_of: dict[int, int], leaf_type: str
    ) -> None:
        column_of = np.empty(len(layout.n_bins), np.int64)
        for column in range(len(layout.first) - 1):
            column_of[layout.features[layout.first[column] : layout.first[column + 1]]] = column
        before, n_slots = len(slot_of), len(slot_of) + len(splits)
        n_codes = 256
        for _, feature, _, _ in splits:
            if column_of[feature] >= layout.n_tiled:
                n_codes = max(n_codes, int(layout.n_bins[feature]) + 1)
        self._next_slot = np.repeat(np.arange(n_slots, dtype=leaf_type)[:, None], n_codes, axis=1)
        self._tile, self._column = np.zeros(n_slots, np.int64), np.zeros(n_slots, np.int64)
        for k, (node, feature, left, right) in enumerate(splits):
            slot = slot_of.pop(node)
            slot_of[left], slot_of[right] = slot, before + k
            column = int(column_of[feature])
            codes = np.arange(n_codes)
            if column < layout.n_tiled:
                self._tile[slot], self._column[slot] = divmod(column, TILE_COLUMNS)
                codes = codes // layout.stride[feature] % (layout.n_bins[feature] + 1)
            else:
                self._tile[slot], self._column[slot] = -1, column - layout.n_tiled
                codes = np.minimum(codes, layout.n_bins[feature])
            self._next_slot[slot] = np.where(goes_left[k, codes], slot, before + k)

    def apply(self, block: Shard, slots: np.ndarray) -> None:
        route(block.tiles.view(np.uint8), block.wide_bins, slots, self._tile, self._column, self._next_slot)
