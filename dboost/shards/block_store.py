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

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
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
from dboost.trees.grower import RoundHistograms, RoundRequest
from dboost.trees.tree_task import GradientStats, TreeTask


class BlockStore:
    """The block files of one process.

    Parameters
    ----------
    spec : ShardSpec
    codes, rows, state : BlockFile
    ranges : int64[n_ranges, 2] or None
        As of `Shard`.
    """

    def __init__(
        self, spec: ShardSpec, codes: BlockFile, rows: BlockFile, state: BlockFile, ranges: np.ndarray | None = None
    ) -> None:
        self.spec, self.codes, self.rows, self.state = spec, codes, rows, state
        self.n_rows, self.n_blocks = state.n_rows, state.n_blocks
        self._ranges = np.array([[0, self.n_rows]], np.int64) if ranges is None else np.asarray(ranges, np.int64)
        self._ends = np.cumsum(self._ranges[:, 1])
        self._row_of = code_rows(spec.layout)

    @classmethod
    def around(cls, folder: Path, name: str, spec: ShardSpec, codes: BlockFile, ranges: np.ndarray | None = None) -> BlockStore:
        """Make new files of rows and state in an existing folder, for existing codes; a `BlockWriter` fills them."""
        made: dict[str, BlockFile] = {}
        kinds = (("rows", spec.row_fields(), True), ("state", spec.state_fields(), False))
        try:
            for kind, fields, sealed in kinds:
                path = folder / f"{name}{kind}"
                made[kind] = BlockFile(path, fields, codes.n_rows, sealed=sealed, block_rows=codes.block_rows)
        except BaseException:
            for file in made.values():
                file.remove()
            raise
        return cls(spec, codes, made["rows"], made["state"], ranges)

    @property
    def files(self) -> tuple[BlockFile, BlockFile, BlockFile]:
        return self.codes, self.rows, self.state

    def ranges_of(self, block: int) -> list[tuple[int, int]]:
        """Return the global row ids of a block, as runs (first, length)."""
        first = block * self.state.block_rows
        last = first + self.state.rows_of(block)
        found = []
        for k in range(int(np.searchsorted(self._ends, first, "right")), len(self._ends)):
            begin = int(self._ends[k] - self._ranges[k, 1])
            if begin >= last:
                break
            low, high = max(first, begin), min(last, int(self._ends[k]))
            found.append((int(self._ranges[k, 0]) + low - begin, high - low))
        return found

    def close(self) -> None:
        """Close the files."""
        for file in self.files:
            file.close()

    def remove(self) -> None:
        """Remove the files."""
        for file in self.files:
            file.remove()


class BlockBuffer:
    """Buffers for one block.

    Attributes
    ----------
    is_resident : bool
        Whether they hold all of a resident block: then the content of its files is out of date.
    """

    def __init__(self, blocks: BlockStore) -> None:
        self._blocks, self.is_resident = blocks, False
        self.codes, self.rows, self.state = blocks.codes.buffer(), blocks.rows.buffer(), blocks.state.buffer()
        self._shard: BlockShard | None = None

    def fill(self, block: int, *, codes: bool, rows: bool, state: Sequence[FieldRef], verify: bool = True) -> int:
        """Read the wanted parts of a block; return the number of bytes. verify : see `BlockFile.read`, of the codes."""
        n_bytes = 0
        if codes:
            n_bytes += self._blocks.codes.read(block, self.codes, verify=verify)
        if rows:
            n_bytes += self._blocks.rows.read(block, self.rows)
        if state:
            n_bytes += self._blocks.state.read(block, self.state, state)
        return n_bytes

    def load(self, block: int) -> int:
        """Read all of a resident block; return the number of bytes, 0 if it is loaded already."""
        if self.is_resident:
            return 0
        everything = [field.name for field in self._blocks.state.fields]
        n_bytes = self.fill(block, codes=True, rows=True, state=everything)
        self.is_resident = True
        return n_bytes

    def shard(self, block: int) -> BlockShard:
        """Return the block as a shard, valid until the buffer is reused; fields that were not read are uninitialised."""
        if self._shard is None or self._shard.n_rows != self._blocks.state.rows_of(block):
            self._shard = BlockShard(self._blocks, self, block)
        self._shard.set_block(block)
        return self._shard


class BlockShard(Shard):
    """A block of rows in its buffer. One-byte codes are in tiles only."""

    def __init__(self, blocks: BlockStore, buffer: BlockBuffer, block: int) -> None:
        spec, n = blocks.spec, blocks.state.rows_of(block)
        codes, rows = blocks.codes.views(buffer.codes, block), blocks.rows.views(buffer.rows, block)
        state = blocks.state.views(buffer.state, block)
        wide = codes.get("wide", np.empty((0, n), np.uint16))
        self.codes = BinnedColumns(np.empty((0, n), np.uint8), wide, blocks._row_of)
        self.spec, self.layout = spec, spec.layout
        self.bins, self.bin_layout = self.codes, self.layout
        self.tiles = codes["tiles"]
        self.target, self.weight = rows["target"], rows.get("weight")
        self.repeat_count, self.raw, self.leaf = state.get("repeat_count"), state["raw"], state["leaf"]
        self.gradient, self.hessian, self.loss_hessian = state["gradient"], state.get("hessian"), state.get("loss_hessian")
        self.draw_id = state.get("draw_id")
        self.n_rows, self._blocks, self._block = n, blocks, block

    def set_block(self, block: int) -> None:
        """Set the number of the block; blocks of equal length use the same views."""
        self._block = block

    def columns(self) -> BinnedColumns:
        """Compute the codes of all features by columns from tiles, for a block whose codes have been read."""
        codes = empty_binned_columns(self.layout, self.n_rows)
        codes_of(self.tiles, self.codes.wide if len(self.codes.wide) else None, self.layout, codes)
        return codes

    @property
    def _ranges(self) -> list[tuple[int, int]]:  # type: ignore[override]
        """Computed only when row ids are needed."""
        return self._blocks.ranges_of(self._block)


class BlockWriter:
    """Fills new files, whose blocks have equally many rows, with rows that arrive in chunks of any length.

    Parameters
    ----------
    files : sequence of BlockFile
    """

    def __init__(self, files: Sequence[BlockFile]) -> None:
        self._files = [(file, file.buffer()) for file in files]
        self._axes = {field.name: len(field.before) for file in files for field in file.fields}
        self._block, self._filled = 0, 0
        self._views: dict[str, np.ndarray] = {}
        self._clear()

    def _clear(self) -> None:
        for file, buffer in self._files:
            buffer[:] = 0
            if self._block < file.n_blocks:
                self._views |= file.views(buffer, self._block)

    def append(self, n: int, fields: Mapping[str, np.ndarray]) -> None:
        """Append n rows: the fields' arrays as in the files, but of n rows. Missing fields are 0."""
        done = 0
        while done < n:
            free = self._files[0][0].rows_of(self._block) - self._filled
            n_copied = min(free, n - done)
            for name, values in fields.items():
                axis = (slice(None),) * self._axes[name]
                here, there = slice(done, done + n_copied), slice(self._filled, self._filled + n_copied)
                self._views[name][(*axis, there)] = values[(*axis, here)]
            done += n_copied
            self._filled += n_copied
            if n_copied == free:
                for file, buffer in self._files:
                    file.write(self._block, buffer)
                self._block, self._filled = self._block + 1, 0
                self._clear()

    def finish(self) -> None:
        """Assert that all rows have arrived."""
        assert self._block == self._files[0][0].n_blocks and not self._filled, "fewer rows than were promised"


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
        self._resident = [BlockBuffer(blocks) for _ in self._resident_blocks]
        self.n_rows = sum(blocks.state.rows_of(block) for block in all_blocks)
        self.layout = blocks.spec.layout
        self.bytes_read = 0
        self._buffers = (BlockBuffer(blocks), BlockBuffer(blocks))
        self._scratch = new_pass_scratch()
        self._sums = _HistogramBuffers(blocks.spec)
        self._trees: dict[int, _Tree] = {}  # growing trees, by output
        self._records = np.empty((2, blocks.state.block_rows), np.uint64)  # scratch

    def walk(
        self,
        *,
        codes: bool = False,
        rows: bool = False,
        reads: Sequence[FieldRef] = (),
        writes: Sequence[FieldRef] = (),
        verify: bool = True,
    ) -> Iterator[BlockShard]:
        """Yield the blocks one after the other, with the fields in `reads`; write the fields in `writes` after each."""
        empty: SimpleQueue[BlockBuffer | None] = SimpleQueue()
        full: SimpleQueue[tuple[BlockBuffer, int] | BaseException] = SimpleQueue()

        def read() -> None:
            try:
                for block in self._blocks:
                    buffer = empty.get()
                    if buffer is None:
                        return
                    full.put((buffer, buffer.fill(block, codes=codes, rows=rows, state=reads, verify=verify)))
            except BaseException as error:
                full.put(error)

        reader = Thread(target=read, name="dboost-read", daemon=True)
        for buffer in self._buffers:
            empty.put(buffer)
        reader.start()
        try:
            for resident, block in zip(self._resident, self._resident_blocks, strict=True):
                if self._halted():
                    raise Halted
                self.bytes_read += resident.load(block)
                yield resident.shard(block)
            for block in self._blocks:
                if self._halted():
                    raise Halted
                found = full.get()
                if isinstance(found, BaseException):
                    raise found
                buffer, n_bytes = found
                self.bytes_read += n_bytes
                yield buffer.shard(block)
                if writes:
                    self.blocks.state.write(block, buffer.state, writes)
                empty.put(buffer)
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
        for shard in self.walk(rows=True, reads=("raw", "leaf"), writes=writes):
            stats = advance_rows(shard, terms, values, spec.loss_unit, self._scratch, 0, shard.n_rows)
            found = stats if found is None else found.merge(stats)
        return found

    def map_ranges(self, statistic: Statistic, *arguments: Any) -> list[Any]:
        """Return the statistic of every block, or of all blocks as a list of one item if results can be merged."""
        all_fields = [field.name for field in self.blocks.state.fields]
        blocks = self.walk(codes=statistic.reads_codes, rows=True, reads=all_fields)
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
        everything = [field.name for field in self.blocks.state.fields]
        for buffer, block in zip(self._resident, self._resident_blocks, strict=True):
            if buffer.is_resident:
                self.blocks.state.write(block, buffer.state, everything)
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
        for block in shard.walk(
            codes=reads_codes,
            verify=self._is_verified,
            reads=fields if is_first else [*fields, *leaf],
            writes=leaf if is_first or splits or sums is not None else (),
        ):
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
        return name if self._shard.blocks.spec.n_outputs == 1 else (name, self._task.output)


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
