"""The rows of one process in files, a block of them in memory, and a shard that streams blocks.

**Files.** Three block files (`storage.block_file`) hold the rows: ``codes`` (tiles of the histogram kernel and wide columns)
and ``rows`` (target and weight), which are sealed, and ``state`` (scores, leaves, gradients, Hessians), which changes. Each
file starts with the process's first row; rows are divided among threads by blocks.

A block in memory is a `Shard` like any other, only shorter. Therefore the same functions run on streamed rows, block by block,
as on rows in memory; all results are sums of integers, maxima or minima, which do not depend on how rows are divided.

**Streaming.** A `StreamedShard` is some blocks of a `BlockStore`, processed one after the other by one thread. There are two
buffers. While the thread processes the block in one of them, a reader thread fills the other, so that disk and kernels are busy
at the same time. Results are written back to the file before the buffer is reused.

If memory allows, some blocks are *resident*: each has a buffer of its own, is read once and never written. They come first in
every pass, while the disk reads the first of the others.

A tree grows in passes (`kernels.streaming`): each request of the grower is one pass over all blocks, in which rows are routed
to the children of the last splits and added to the histograms of the small children. The grower splits many nodes per round
here, since a pass over the files costs more than histograms of nodes that are dropped later.

Checksums of codes are verified once per tree, in the last pass that reads them: data that were damaged or altered when an
earlier pass read them still are then, and the tree is not finished. The last pass is not always known in advance: any pass with
fewer pairs than the one before may be the last. Only wide columns are verified in every pass, because a code that is too large
would be added outside the histogram; each of the 256 codes of a byte has a bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np

from dboost.kernels import or_empty
from dboost.kernels.histograms import TILE_COLUMNS, BinLayout
from dboost.kernels.streaming import BlockRows, PairSums, finish_leaves, finish_pairs, route, sum_pairs
from dboost.losses.gradient_pass import new_pass_scratch
from dboost.shards.encode import codes_of
from dboost.shards.shard import BinnedColumns, Shard, advance_rows, empty_binned_columns
from dboost.shards.shard_spec import ShardSpec, code_rows
from dboost.shards.statistics import Statistic
from dboost.storage.block_file import BlockFile, FieldRef
from dboost.storage.row_store import FieldGroup, InFiles, RowStore
from dboost.trees.grower import RoundHistograms, RoundRequest
from dboost.trees.tree_task import GradientStats, TreeTask


class BlockStore(RowStore):
    """The training rows of one process in files.

    Parameters
    ----------
    spec : ShardSpec
    owned : sequence of (int, int)
        Partition and number of rows of each run of consecutive rows of one partition.
    ranges : int64[n_ranges, 2]
        As of `Shard`.
    place : InFiles
    codes : BlockFile, optional
        Existing bin codes.
    """

    def __init__(
        self,
        spec: ShardSpec,
        owned: Sequence[tuple[int, int]],
        ranges: np.ndarray,
        place: InFiles,
        codes: BlockFile | None = None,
    ) -> None:
        groups = [
            FieldGroup("codes", spec.code_fields(), sealed=True),
            FieldGroup("rows", spec.row_fields(), sealed=True),
            FieldGroup("state", spec.state_fields(), sealed=False),
        ]
        super().__init__(groups, [sum(n for _, n in owned)], place, None if codes is None else {"codes": codes})
        self.spec, self.block_rows, self.n_blocks = spec, place.block_rows, self.files[0].n_blocks
        self.state_names = [field.name for field in spec.state_fields()]
        self._owned, self._ranges = owned, ranges
        self._ends = np.cumsum(ranges[:, 1])

    def rows_of(self, block: int) -> int:
        """Return the number of rows of a block."""
        return self.files[0].rows_of(block)

    def ranges_of(self, block: int) -> list[tuple[int, int]]:
        """Return the global row ids of a block, as runs (first, length)."""
        first = block * self.block_rows
        last = first + self.rows_of(block)
        found = []
        for k in range(int(np.searchsorted(self._ends, first, "right")), len(self._ends)):
            begin = int(self._ends[k] - self._ranges[k, 1])
            if begin >= last:
                break
            low, high = max(first, begin), min(last, int(self._ends[k]))
            found.append((int(self._ranges[k, 0]) + low - begin, high - low))
        return found

    def owned_of(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the partitions of rows first…last-1, and the number of these rows in each."""
        found, at = [], 0
        for number, n in self._owned:
            low, high = max(first, at), min(last, at + n)
            if low < high:
                found.append((number, high - low))
            at += n
        return found


class BlockShard(Shard):
    """Buffers for one block of rows, as a shard. One-byte codes are in tiles only.

    Attributes
    ----------
    buffers : list of uint8[...]
    fields : dict
        Their views.
    is_resident : bool
        Whether they hold all of a resident block: then the content of its files is out of date.
    """

    def __init__(self, blocks: BlockStore) -> None:
        self._blocks, self.buffers, self.is_resident = blocks, blocks.buffers(), False
        self.spec, self.layout, self.bin_layout = blocks.spec, blocks.spec.layout, blocks.spec.layout
        self._row_of = code_rows(self.layout)
        self.n_rows = -1

    def load(self, block: int) -> int:
        """Read all of a resident block; return the number of bytes, 0 if it is loaded already."""
        if self.is_resident:
            return 0
        n_bytes = self._blocks.read(block, self.buffers, self._blocks.names)
        self.is_resident = True
        return n_bytes

    def set_block(self, block: int) -> BlockShard:
        """Return the shard as this block, valid until the buffers are reused; fields that were not read are uninitialised."""
        self._block = block
        n = self._blocks.rows_of(block)
        if n != self.n_rows:  # blocks of equal length use the same views
            self.n_rows = n
            self.fields = fields = self._blocks.views(self.buffers, block)
            wide = fields.get("wide", np.empty((0, n), np.uint16))
            self.codes = self.bins = BinnedColumns(np.empty((0, n), np.uint8), wide, self._row_of)
            self.tiles, self.target, self.weight = fields["tiles"], fields["target"], fields.get("weight")
            self.repeat_count, self.raw, self.leaf = fields.get("repeat_count"), fields["raw"], fields["leaf"]
            self.gradient, self.hessian = fields["gradient"], fields.get("hessian")
            self.loss_hessian, self.draw_id = fields.get("loss_hessian"), fields.get("draw_id")
            for of_views in ("histogram_rows", "gradient_rows"):
                vars(self).pop(of_views, None)
        return self

    def columns(self) -> BinnedColumns:
        """Compute the codes of all features by columns from tiles, for a block whose codes have been read."""
        codes = empty_binned_columns(self.layout, self.n_rows)
        codes_of(self.tiles, self.codes.wide if len(self.codes.wide) else None, self.layout, codes)
        return codes

    @property
    def _ranges(self) -> list[tuple[int, int]]:  # type: ignore[override]
        """Computed only when row ids are needed."""
        return self._blocks.ranges_of(self._block)


class Halted(Exception):
    """Another thread failed, or the user interrupted the fit."""


class StreamedShard:
    """Blocks first…last-1 of a block store.

    Parameters
    ----------
    blocks : BlockStore
    first, last : int
        Default: all blocks.
    n_staying : int, default 0
        Number of blocks that are resident in memory.
    halted : callable
        Called between blocks; returns whether to stop.
    """

    def __init__(
        self,
        blocks: BlockStore,
        first: int = 0,
        last: int | None = None,
        *,
        n_staying: int = 0,
        halted: Callable[[], bool] = lambda: False,
    ) -> None:
        self.blocks, self._halted = blocks, halted
        all_blocks = range(first, blocks.n_blocks if last is None else last)
        self._resident_blocks, self._blocks = all_blocks[:n_staying], all_blocks[n_staying:]
        self._resident = [BlockShard(blocks) for _ in self._resident_blocks]
        self.n_rows = sum(blocks.rows_of(block) for block in all_blocks)
        self.layout = blocks.spec.layout
        self.bytes_read = 0
        self._buffers = (BlockShard(blocks), BlockShard(blocks))
        self._scratch = new_pass_scratch()
        self._sums = _HistogramBuffers(blocks.spec)
        self._trees: dict[int, _Tree] = {}  # growing trees, by output
        self._records = np.empty((2, blocks.block_rows), np.uint64)  # scratch

    def walk(self, reads: Sequence[FieldRef], writes: Sequence[FieldRef] = (), *, verify: bool = True) -> Iterator[BlockShard]:
        """Yield the blocks one after the other, with the fields in `reads`; write the fields in `writes` after each.

        verify : see `BlockFile.read`, of the codes.
        """
        empty: SimpleQueue[BlockShard | None] = SimpleQueue()
        full: SimpleQueue[tuple[BlockShard, int] | BaseException] = SimpleQueue()
        unverified = () if verify else ("codes",)

        def read() -> None:
            try:
                for block in self._blocks:
                    shard = empty.get()
                    if shard is None:
                        return
                    full.put((shard, self.blocks.read(block, shard.buffers, reads, unverified)))
            except BaseException as error:
                full.put(error)

        reader = Thread(target=read, name="dboost-read", daemon=True)
        for shard in self._buffers:
            empty.put(shard)
        reader.start()
        try:
            for resident, block in zip(self._resident, self._resident_blocks, strict=True):
                if self._halted():
                    raise Halted
                self.bytes_read += resident.load(block)
                yield resident.set_block(block)
            for block in self._blocks:
                if self._halted():
                    raise Halted
                found = full.get()
                if isinstance(found, BaseException):
                    raise found
                shard, n_bytes = found
                self.bytes_read += n_bytes
                yield shard.set_block(block)
                if writes:
                    self.blocks.write(block, shard.buffers, writes)
                empty.put(shard)
        finally:
            # The reader has ended, waits for a buffer, or has one or two more blocks to read.
            empty.put(None)
            reader.join()

    def advance_rows(self, terms: tuple, values: np.ndarray) -> GradientStats | None:
        """Advance the rows of all blocks (see `shards.shard.advance_rows`); None without blocks."""
        spec = self.blocks.spec
        writes = ["raw", "gradient"]
        if spec.weights_as_hessian or not spec.constant_hessian:
            writes.append("loss_hessian" if spec.weights_as_hessian else "hessian")
        found: GradientStats | None = None
        for shard in self.walk(["target", "raw", "leaf"], writes):
            stats = advance_rows(shard, terms, values, spec.loss_unit, self._scratch, 0, shard.n_rows)
            found = stats if found is None else found.merge(stats)
        return found

    def map_ranges(self, statistic: Statistic, *arguments: Any) -> list[Any]:
        """Return the statistic of every block, or of all blocks as a list of one item if results can be merged."""
        blocks = self.walk([*(["tiles"] if statistic.reads_codes else []), "target", *self.blocks.state_names])
        results = (statistic.compute(shard, 0, shard.n_rows, *arguments) for shard in blocks)
        return list(results) if statistic.merge is None or not self.n_rows else [reduce(statistic.merge, results)]

    def begin(self, tasks: Sequence[TreeTask]) -> None:
        """Begin trees of different outputs: all rows belong to their roots."""
        self._trees = {task.output: _Tree(self, task) for task in tasks}

    def sum_histograms(self, output: int, request: RoundRequest) -> RoundHistograms:
        """Return this shard's histograms and row counts for a request to one tree, in one pass over the blocks.

        They are valid until the next request.
        """
        return self._trees[output].sum_histograms(request)

    def unload(self) -> None:
        """Write resident blocks to the files, and stream them from now on."""
        for shard, block in zip(self._resident, self._resident_blocks, strict=True):
            if shard.is_resident:
                self.blocks.write(block, shard.buffers, self.blocks.state_names)
        self._blocks = range(self._resident_blocks.start, self._blocks.stop)
        self._resident, self._resident_blocks = [], self._blocks[:0]

    def close(self) -> None:
        """Release the buffers; the files belong to the caller."""
        self._buffers, self._resident = (), []  # type: ignore[assignment]
        self._sums.close()
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

    def __init__(self, shard: StreamedShard, task: TreeTask) -> None:
        self._shard, self._task = shard, task
        self._slot_of = {0: 0}
        self._n_last_nodes, self._is_verified = 0, False  # of the last pass that read codes
        self._scratch = np.zeros(int(shard.layout.n_bins.max()) + 1, np.int64)

    def sum_histograms(self, request: RoundRequest) -> RoundHistograms:
        shard, task, spec = self._shard, self._task, self._shard.blocks.spec
        layout = spec.layout
        is_first, splits = request.is_first, request.splits.tolist()
        tables = _SplitTables(layout, splits, request.goes_left, self._slot_of, spec.leaf_type)
        n_slots, n_nodes = len(self._slot_of), len(request.nodes)
        position_of = np.full(n_slots, -1, np.int64)
        for k, node in enumerate(request.nodes.tolist()):
            position_of[self._slot_of[node]] = k
        counts = np.zeros(n_slots, np.int64)
        packed, histograms = shard._sums.take(n_nodes)
        pairs = PairSums(position_of, packed, histograms, np.zeros(n_nodes, np.int64), np.zeros(n_nodes, np.int64))
        number_of = np.zeros(n_slots, spec.leaf_type)
        sums = None
        if request.leaves is not None:
            sums = np.zeros((int(request.leaves[:, 1].max()) + 1, 2))
            for node, number in request.leaves.tolist():
                number_of[self._slot_of[node]] = number

        names = ["gradient", *([] if spec.constant_hessian else ["hessian"])]
        if spec.weights_as_hessian and task.least_influence:
            names.append("loss_hessian")
        fields = [self._of_output(name) for name in names] + (["repeat_count"] if spec.has_repeat_count else [])
        if spec.grouped and task.sample is not None:
            fields.append("draw_id")
        leaf = [self._of_output("leaf")]
        has_wide = layout.n_tiled < len(layout.first) - 1
        reads_codes = bool(splits or n_nodes) or not self._is_verified
        self._is_verified = has_wide or sums is not None or n_nodes < self._n_last_nodes
        self._n_last_nodes = n_nodes
        reads = [*(["tiles"] if reads_codes else []), *fields, *([] if is_first else leaf)]
        writes = leaf if is_first or splits or sums is not None else []
        for block in shard.walk(reads, writes, verify=self._is_verified):
            gradient, hessian, slots = block.output_arrays(task.output)
            rows = block.sampled_rows(*task.row_subset)
            n = block.n_rows if rows is None else len(rows)
            if is_first:
                slots[:] = 0
            if splits:
                tables.apply(block, slots)
            hessian, rows = or_empty(hessian, "float32"), or_empty(rows, "int64")
            of_block = BlockRows(block.histogram_rows, slots, gradient, hessian, rows, n)
            if splits or n_nodes:
                sum_pairs(of_block, task.scales, layout, task.packing, pairs, counts, shard._records, self._scratch)
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

    def apply(self, block: BlockShard, slots: np.ndarray) -> None:
        route(block.tiles.view(np.uint8), block.codes.wide, slots, self._tile, self._column, self._next_slot)
