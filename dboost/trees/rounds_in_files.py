"""Growth of trees on rows in files: the requests of a round are one pass over the blocks.

A tree grows in passes (`kernels.streaming`), in which rows are routed to the children of the last splits and added to the
histograms of the small children. The grower splits many nodes per round here, since a pass over the files costs more than
histograms of nodes that are dropped later. The trees of one iteration, one for each output, share passes: the codes of a block
are read once for all of them.

Checksums of codes are verified at least once per tree, in the last pass that reads them: data that were damaged or altered when
an earlier pass read them still are then, and the tree is not finished. The last pass is not always known in advance: any pass
with fewer pairs than the one before may be the last. Only wide columns are verified in every pass, because a code that is too
large would be added outside the histogram; each of the 256 codes of a byte has a bucket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dboost.kernels import or_empty
from dboost.kernels.histograms import TILE_COLUMNS, BinLayout, Histograms
from dboost.kernels.streaming import BlockRows, PairSums, finish_leaves, finish_pairs, route, sum_pairs
from dboost.rows.block_file import FieldRef
from dboost.rows.shard import Shard
from dboost.rows.shard_spec import ShardSpec
from dboost.trees.grower_rows import GrowerRows
from dboost.trees.tree_growth import RoundHistograms, RoundRequest
from dboost.trees.tree_task import TreeTask


class RoundsInFiles:
    """Blocks of files and the state of the trees that grow on them; in memory: `rounds_in_memory.RoundsInMemory`.

    Parameters
    ----------
    rows : TrainingRows
    k : int
        Number of the share of the blocks.
    """

    def __init__(self, rows: GrowerRows, k: int) -> None:
        self.rows, self._k = rows, k
        self.records = np.empty((2, rows.store.block_rows), np.uint64)  # scratch
        self._buffers = [_HistogramBuffers(rows.shard_spec) for _ in range(rows.trees_per_pass)]
        self._trees: dict[int, _Tree] = {}  # growing trees, by output
        self._requests: dict[int, RoundRequest] = {}  # of the current round, to trees that have not been answered
        self._answers: dict[int, RoundHistograms] = {}  # of the last pass
        self._n_last_nodes, self._is_verified = 0, False  # of the last pass that read codes

    def begin(self, tasks: Sequence[TreeTask]) -> None:
        """Begin trees of different outputs: all rows belong to their roots."""
        self._trees = {task.output: _Tree(self, task) for task in tasks}
        self._requests, self._answers = {}, {}
        self._n_last_nodes, self._is_verified = 0, False

    def begin_round(self, requests: Mapping[int, RoundRequest]) -> None:
        """Announce the requests of a round by output, so that a pass serves several of them."""
        self._requests, self._answers = dict(requests), {}

    def sum_histograms(self, output: int, request: RoundRequest) -> RoundHistograms:
        """Return the rows' histograms and row counts for a request to one tree.

        A pass over the blocks also serves the next requests that were announced, as many as there are buffers. So the result is
        valid until the request after these.
        """
        if output not in self._answers:
            self._requests.pop(output, None)
            together = {output: request}
            for joining_output in list(self._requests)[: len(self._buffers) - 1]:
                together[joining_output] = self._requests.pop(joining_output)
            self._answers = self._sum(together)
        return self._answers.pop(output)

    def _sum(self, requests: Mapping[int, RoundRequest]) -> dict[int, RoundHistograms]:
        """Return the histograms for requests to some trees, in one pass over the blocks."""
        layout = self.rows.shard_spec.layout
        passes = {
            output: self._trees[output].begin_pass(request, buffers)
            for (output, request), buffers in zip(requests.items(), self._buffers, strict=False)
        }
        n_nodes = sum(len(request.nodes) for request in requests.values())
        has_wide = layout.n_tiled < len(layout.first) - 1
        reads_codes = any(tree_pass.uses_codes for tree_pass in passes.values()) or not self._is_verified
        is_last = any(request.ends_tree for request in requests.values())
        self._is_verified = has_wide or is_last or n_nodes < self._n_last_nodes
        self._n_last_nodes = n_nodes
        fields = dict.fromkeys(field for tree_pass in passes.values() for field in tree_pass.reads)
        writes = [field for tree_pass in passes.values() for field in tree_pass.writes]
        reads = [*(["tiles"] if reads_codes else []), *fields]
        for block, *_ in self.rows.ranges(self._k, reads, writes, verify=self._is_verified):
            for tree_pass in passes.values():
                tree_pass.add(block)
        return {output: tree_pass.finish() for output, tree_pass in passes.items()}

    def close(self) -> None:
        """Release the buffers."""
        for buffers in self._buffers:
            buffers.close()
        self._trees, self._requests, self._answers = {}, {}, {}


class _HistogramBuffers:
    """Buffers for the histograms of the pairs of one round; they are reused."""

    def __init__(self, spec: ShardSpec) -> None:
        self._layout, self._n_channels = spec.layout, spec.n_channels
        self._packed, self._histograms = np.empty((0, 0), np.int64), np.empty((0, 0, 0))

    def for_pairs(self, n: int) -> tuple[np.ndarray, np.ndarray]:
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

    def __init__(self, rounds: RoundsInFiles, task: TreeTask) -> None:
        self.rounds, self.task = rounds, task
        self.slot_of = {0: 0}
        self.scratch = np.zeros(int(rounds.rows.shard_spec.layout.n_bins.max()) + 1, np.int64)

    def begin_pass(self, request: RoundRequest, buffers: _HistogramBuffers) -> _TreePass:
        """Assign slots to the new nodes of a request; return what is done with each block."""
        return _TreePass(self, request, buffers)


class _TreePass:
    """One pass over the blocks for a request to one tree.

    Attributes
    ----------
    uses_codes : bool
    reads, writes : list of FieldRef
        Fields of the blocks, beside codes.
    """

    def __init__(self, tree: _Tree, request: RoundRequest, buffers: _HistogramBuffers) -> None:
        self._tree, self._request = tree, request
        spec, n_nodes = tree.rounds.rows.shard_spec, len(request.nodes)
        self._layout = layout = spec.layout
        self._splits = splits = request.splits.tolist()
        self._tables = _SplitTables(layout, splits, request.goes_left, tree.slot_of, spec.leaf_type)
        n_slots = len(tree.slot_of)
        position_of = np.full(n_slots, -1, np.int64)
        for k, node in enumerate(request.nodes.tolist()):
            position_of[tree.slot_of[node]] = k
        self._counts = np.zeros(n_slots, np.int64)
        packed, self._histograms = buffers.for_pairs(n_nodes)
        self._pairs = PairSums(
            position_of, packed, Histograms(self._histograms, None), np.zeros(n_nodes, np.int64),
            np.zeros(n_nodes, np.int64), np.empty((3, n_slots), np.uint64),
        )  # fmt: skip
        self._number_of = np.zeros(n_slots, spec.leaf_type)
        self._sums = np.zeros((int(request.leaves[:, 1].max(initial=-1)) + 1, 2))
        for node, number in request.leaves.tolist():
            self._number_of[tree.slot_of[node]] = number
        self.uses_codes = bool(splits or n_nodes)
        leaf = self._of_output("leaf")
        self.reads = [*self._gradient_fields(spec), *([] if request.is_first else [leaf])]
        self.writes = [leaf] if request.is_first or splits or request.ends_tree else []

    def _of_output(self, name: str) -> FieldRef:
        return name, self._tree.task.output

    def _gradient_fields(self, spec: ShardSpec) -> list[FieldRef]:
        """Return the fields from which histograms are added up, beside codes."""
        task = self._tree.task
        names = ["gradient", *([] if spec.constant_hessian else ["hessian"])]
        fields: list[FieldRef] = [self._of_output(name) if spec.width == 1 else f"split_{name}" for name in names]
        if spec.weights_as_hessian and task.least_influence:
            fields.append(self._of_output("loss_hessian"))
        if spec.has_repeat_count:
            fields.append("repeat_count")
        if spec.has_draw_ids and task.sample is not None:
            fields.append("draw_id")
        return fields

    def add(self, block: Shard) -> None:
        """Route the rows of a block, and add them to the histograms or to the sums of the leaves."""
        tree, task = self._tree, self._tree.task
        gradient, hessian, slots = block.split_arrays(task.output)
        rows = block.sampled_rows(*task.row_subset)
        n = block.n_rows if rows is None else len(rows)
        if self._request.is_first:
            slots[:] = 0
        if self._splits:
            self._tables.apply(block, slots)
        hessian, rows = or_empty(hessian, "float32"), or_empty(rows, "int64")
        summed = BlockRows(block.histogram_rows, slots, gradient, hessian, rows, n)
        if self.uses_codes:
            sum_pairs(
                summed,
                task.scales,
                self._layout,
                task.packing,
                self._pairs,
                self._counts,
                tree.rounds.records,
                tree.scratch,
            )
        if self._request.ends_tree:
            finish_leaves(summed, task.scales, self._number_of, self._sums)

    def finish(self) -> RoundHistograms:
        """Return the sums of all blocks."""
        tree, counts = self._tree, self._counts
        finish_pairs(self._layout, tree.task.packing, self._pairs, tree.scratch)
        n_rows = [(counts[tree.slot_of[left]], counts[tree.slot_of[right]]) for _, _, left, right in self._splits]
        if self._request.is_first:
            n_rows = [(counts[0], np.int64(0))]
        return RoundHistograms(self._histograms, np.array(n_rows, np.int64).reshape(-1, 2), self._sums)


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
        route(block.tiles.view(np.uint8), block.wide_tree_codes, slots, self._tile, self._column, self._next_slot)
