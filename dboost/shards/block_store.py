"""The rows of one process in files, and a block of them in memory.

Three block files (`storage.block_file`) hold the rows: ``codes`` (tiles of the histogram kernel and wide columns) and ``rows``
(target and weight), which are sealed, and ``state`` (scores, leaves, gradients, Hessians), which changes. Each file starts with
the process's first row; rows are divided among threads by blocks.

A block in memory is a `Shard` like any other, only shorter. Therefore the same functions run on streamed rows, block by block,
as on rows in memory; all results are sums of integers, maxima or minima, which do not depend on how rows are divided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dboost.shards.bin_layout import code_rows
from dboost.shards.encode import codes_of
from dboost.shards.shard import BinnedColumns, Shard, empty_binned_columns
from dboost.shards.shard_spec import ShardSpec
from dboost.storage.block_file import BlockFile, FieldRef


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
