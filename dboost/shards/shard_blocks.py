"""The training rows of one thread: blocks of a row store, which are walked one after the other, in memory or in files.

Each block is a `Shard`. In memory a store has a single block, which is always there. In files (`storage.block_file`) there are
as many as needed, in three files: ``codes`` (tiles of the histogram kernel and wide columns) and ``rows`` (target and weight),
which are sealed, and ``state`` (scores, leaves, gradients, Hessians), which changes. All results are sums of integers, maxima
or minima, which do not depend on how rows are divided into blocks.

**Streaming.** There are two buffers for blocks of files. While the thread processes the block in one of them, a reader thread
fills the other, so that disk and kernels are busy at the same time. Results are written back to the file before the buffer is
reused.

If memory allows, some blocks are *resident*: each has a buffer of its own, is read once and never written. They come first in
every pass, while the disk reads the first of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, reduce
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np

from dboost.losses.gradient_pass import PassScratch, new_pass_scratch
from dboost.shards.shard import Near, RowIds, RowSegments, Shard, advance_rows, runs_of, spec_in_memory
from dboost.shards.shard_spec import ShardSpec
from dboost.shards.shared_codes import SharedCodes
from dboost.shards.statistics import Statistic
from dboost.storage.block_file import Field, FieldRef
from dboost.storage.row_store import FieldGroup, RowStore
from dboost.trees.tree_task import GradientStats


class Halted(Exception):
    """Another thread failed, or the user interrupted the fit."""


class ShardBlocks:
    """One thread's share of the blocks of a store.

    Parameters
    ----------
    store : RowStore
        With the groups of `ShardSpec.groups`, and a single section. Several threads may share it; it belongs to the caller.
    spec : ShardSpec
    ids : RowIds, optional
        Of all rows of the store; default: as of `Shard`.
    thread, n_threads : int
        Number of the share, and of shares, see `RowStore.walk`. A store in memory has one share.
    n_staying : int, default 0
        Number of blocks of files that are resident in memory.
    trees_per_pass : int, default 1
        Largest number of trees, of different outputs, for which there are histograms in memory during a pass over files.
    halted : callable
        Called between blocks of files; returns whether to stop.
    segments : RowSegments, optional
        See `Shard`; of rows in memory.
    shared : SharedCodes, optional
        The codes of the rows, if other fits use them, too; the attribute is None after `close`.

    Attributes
    ----------
    n_rows : int
        Number of rows that are trained on.
    bytes_read : int
        From files, so far.
    has_tiles : bool
        Whether the tiles of rows in memory are filled.
    """

    has_tiles = False

    def __init__(
        self,
        store: RowStore,
        spec: ShardSpec,
        ids: RowIds | None = None,
        thread: int = 0,
        n_threads: int = 1,
        *,
        n_staying: int = 0,
        trees_per_pass: int = 1,
        halted: Callable[[], bool] = lambda: False,
        segments: RowSegments | None = None,
        shared: SharedCodes | None = None,
    ) -> None:
        self.store, self.spec, self._halted, self._n_staying = store, spec, halted, n_staying
        self.shared, self.trees_per_pass = shared, trees_per_pass
        self._ids = RowIds(np.array([[0, store.n_rows]])) if ids is None else ids
        self._share = thread, n_threads
        self.bytes_read = 0
        self._whole: Shard | None = None
        self._resident: list[_BlockBuffers] = []
        self._buffers: tuple[_BlockBuffers, ...] = ()
        if store.place is None:
            assert n_threads == 1, "rows in memory are one block"
            self._whole = Shard(store.load(), spec, self._ids, segments=segments)
            self._whole.near = Near(spec.n_outputs)
            self._blocks, self.first, self.n_rows = range(1), 0, self._whole.n_trained
        else:
            self._blocks = range(store.n_blocks * thread // n_threads, store.n_blocks * (thread + 1) // n_threads)
            self.first = self._blocks.start * store.block_rows
            self.n_rows = min(self._blocks.stop * store.block_rows, store.n_rows) - self.first
            self._resident = [_BlockBuffers(self) for _ in self._blocks[:n_staying]]
            self._buffers = _BlockBuffers(self), _BlockBuffers(self)

    @property
    def in_files(self) -> bool:
        return self.store.place is not None

    @property
    def shard(self) -> Shard:
        """The rows, if they are in memory."""
        assert self._whole is not None
        return self._whole

    def shard_of(self, fields: Mapping[str, np.ndarray], block: int) -> Shard:
        """Return a block of the files whose fields are in a buffer."""
        return Shard(fields, self.spec, self._ids, block * self.store.block_rows)

    def row_ids(self) -> np.ndarray:
        """Return the global ids of all rows that are trained on: int64[n_rows]."""
        if self._whole is not None:
            return np.concatenate([self._whole.row_ids(*of) for of in self._whole.ranges()])
        return self._ids.of(self.first, self.first + self.n_rows)

    def walk(self, reads: Sequence[FieldRef], writes: Sequence[FieldRef] = (), *, verify: bool = True) -> Iterator[Shard]:
        """Yield the blocks one after the other, with the fields in `reads`; write the fields in `writes` after each.

        A block of a file is valid until the next one; its fields that were not read are uninitialised.

        verify : see `BlockFile.read`, of the codes.
        """
        if self._whole is not None:
            yield self._whole
            return
        resident, streamed = self._blocks[: len(self._resident)], self._blocks[len(self._resident) :]
        reader = _Reader(self.store, streamed, self._buffers, reads, () if verify else ("codes",))
        try:
            for block, buffers in zip(resident, self._resident, strict=True):
                self._check_halted()
                self.bytes_read += buffers.load(block)
                yield buffers.shard(block)
            for block in streamed:
                self._check_halted()
                buffers, n_bytes = reader.next()
                self.bytes_read += n_bytes
                yield buffers.shard(block)
                if writes:
                    self.store.write(block, buffers.arrays, writes)
                reader.reuse(buffers)
        finally:
            reader.close()

    def _check_halted(self) -> None:
        if self._halted():
            raise Halted

    @cached_property
    def _scratch(self) -> PassScratch:
        return new_pass_scratch()

    def advance_rows(self, terms: tuple, values: np.ndarray) -> GradientStats | None:
        """Advance the rows of all blocks (see `shards.shard.advance_rows`); None without blocks."""
        spec = self.spec
        reads, writes = ["target", "raw", "leaf"], ["raw", "gradient"]
        of_outputs = "loss_hessian" if spec.weights_as_hessian else "hessian"
        has_hessian = spec.weights_as_hessian or not spec.constant_hessian
        if has_hessian:
            writes.append(of_outputs)
        if spec.width > 1:
            split = ["split_gradient", *(["split_hessian"] if has_hessian and not spec.weights_as_hessian else [])]
            if getattr(terms, "keeps_gradients", False):
                reads, writes = ["target", "gradient", *([of_outputs] if has_hessian else [])], []
            writes += split
        if spec.has_repeat_count:
            reads.append("repeat_count")
        found: GradientStats | None = None
        for shard in self.walk(reads, writes):
            for first, last in shard.ranges():
                stats = advance_rows(shard, terms, values, spec.loss_unit, self._scratch, first, last)
                found = stats if found is None else found.merge(stats)
        return found

    def map_ranges(self, statistic: Statistic, *arguments: Any) -> list[Any]:
        """Return the statistic of every block, or of all blocks as a list of one item if results can be merged."""
        blocks = self.walk([*(["tiles"] if statistic.reads_codes else []), "target", *self._state_names])
        results = (statistic.compute(shard, *of, *arguments) for shard in blocks for of in shard.ranges())
        return list(results) if statistic.merge is None or not self.n_rows else [reduce(statistic.merge, results)]

    @property
    def _state_names(self) -> list[str]:
        return [field.name for group in self.store.groups if not group.sealed for field in group.fields]

    def subset(self, stays: Callable[[np.ndarray], np.ndarray]) -> ShardBlocks | None:
        """Return some of the rows, in their current state, in a store of their own; None without rows, self with all rows.

        stays : maps global ids (int64[n]) to whether their rows are kept (bool[n]).
        """
        row_ids = self.row_ids()
        kept = stays(row_ids)
        n = int(np.count_nonzero(kept))
        if n in (0, self.n_rows):
            return self if n else None
        if self._whole is not None and self._whole.segments is not None:
            return self._apart(self._whole.segments.positions()[kept], row_ids[kept])
        ids = None if "row_ids" in self.store.names else RowIds(runs_of(row_ids[kept]))
        del row_ids
        n_staying = self._n_staying
        self.unload()
        store = self.store.subset(
            [n], lambda some: kept[some.start - self.first : some.start - self.first + some.n_rows], *self._share
        )
        return ShardBlocks(store, self.spec, ids, n_staying=n_staying, trees_per_pass=self.trees_per_pass, halted=self._halted)

    def _apart(self, rows: np.ndarray, row_ids: np.ndarray) -> ShardBlocks:
        """Return some of the rows of a shard that shares codes (int64[n], with their global ids), without the others."""
        by_id = np.argsort(row_ids)
        store = RowStore(self.store.groups, [len(rows)])
        store.append(len(rows), self.store.load(), rows[by_id])
        return ShardBlocks(store, self.spec, RowIds(runs_of(row_ids[by_id])))

    def unload(self) -> None:
        """Write resident blocks of files to them, and stream them from now on."""
        for buffers, block in zip(self._resident, self._blocks, strict=False):
            if buffers.is_loaded:
                self.store.write(block, buffers.arrays, self._state_names)
        self._resident, self._n_staying = [], 0

    def close(self) -> None:
        """Release rows in memory and buffers; files belong to the caller."""
        self._whole, self._buffers, self._resident, self.shared = None, (), [], None


class _BlockBuffers:
    """Buffers for one block of files.

    Attributes
    ----------
    is_loaded : bool
        Whether they hold all of a resident block: then the content of its files is out of date.
    """

    def __init__(self, rows: ShardBlocks) -> None:
        self._rows, self.arrays, self.is_loaded = rows, rows.store.buffers(), False
        self._fields: tuple[int, dict[str, np.ndarray]] = (-1, {})

    def load(self, block: int) -> int:
        """Read all of a resident block; return the number of bytes, 0 if it is loaded already."""
        if self.is_loaded:
            return 0
        store = self._rows.store
        n_bytes = store.read(block, self.arrays, store.names)
        self.is_loaded = True
        return n_bytes

    def shard(self, block: int) -> Shard:
        """Return the block that was read last."""
        store = self._rows.store
        n = store.rows_of(block)
        if n != self._fields[0]:  # blocks of equal length have the same views
            self._fields = n, store.views(self.arrays, block)
        return self._rows.shard_of(self._fields[1], block)


class _Reader:
    """A thread that reads blocks into buffers, in advance."""

    def __init__(
        self,
        store: RowStore,
        blocks: Sequence[int],
        buffers: Sequence[_BlockBuffers],
        reads: Sequence[FieldRef],
        unverified: Sequence[str],
    ) -> None:
        self._empty: SimpleQueue[_BlockBuffers | None] = SimpleQueue()
        self._full: SimpleQueue[tuple[_BlockBuffers, int] | BaseException] = SimpleQueue()
        for one in buffers:
            self.reuse(one)

        def read() -> None:
            try:
                for block in blocks:
                    free = self._empty.get()
                    if free is None:
                        return
                    self._full.put((free, store.read(block, free.arrays, reads, unverified)))
            except BaseException as error:
                self._full.put(error)

        self._thread = Thread(target=read, name="dboost-read", daemon=True)
        if blocks:
            self._thread.start()

    def next(self) -> tuple[_BlockBuffers, int]:
        """Return the buffers with the next block, and the number of bytes that were read."""
        found = self._full.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def reuse(self, buffers: _BlockBuffers) -> None:
        """Hand back buffers whose block has been processed."""
        self._empty.put(buffers)

    def close(self) -> None:
        # The thread has ended, waits for a buffer, or has one or two more blocks to read.
        self._empty.put(None)
        if self._thread.ident is not None:
            self._thread.join()


def compacted(target: np.ndarray) -> np.ndarray:
    """Return targets as uint8 or float32 if that is exact, signs of zeros included."""
    if target.dtype != np.float64:
        return target
    for dtype in (np.uint8, np.float32):
        with np.errstate(all="ignore"):
            smaller = target.astype(dtype)
        if (smaller.astype(np.float64).view(np.int64) == target.view(np.int64)).all():
            return smaller
    return target


def rows_in_memory(
    fields: Mapping[str, np.ndarray],
    spec: ShardSpec,
    ids: RowIds | None = None,
    segments: RowSegments | None = None,
    shared: SharedCodes | None = None,
) -> ShardBlocks:
    """Return rows in memory, in a store that takes over their arrays; tiles that are not given must still be filled, see
    `Shard.fill_tiles`.

    fields : by name, see `ShardSpec.start_groups`, and tiles; scattered rows have "row_ids", too; segments, shared : see
    `ShardBlocks`.
    """
    spec = spec_in_memory(fields, spec)
    if spec.compacts_target:
        target = compacted(fields["target"])
        fields, spec = {**fields, "target": target}, replace(spec, target_type=target.dtype.str)
    groups = spec.groups(in_memory=True)
    if "row_ids" in fields:
        groups.append(FieldGroup("ids", [Field("row_ids", "<i8")], sealed=True))
    store = RowStore(groups, [fields["raw"].shape[1]], arrays=fields)
    rows = ShardBlocks(store, spec, ids, segments=segments, shared=shared)
    rows.has_tiles = "tiles" in fields
    for name, values in spec.constant_state(fields.get("weight"), fields["raw"].shape).items():
        rows.shard.fields[name][...] = values
    if spec.has_tree_bins:
        for feature in np.flatnonzero(rows.shard.is_identity_bin_map).tolist():
            rows.shard.bins.of(feature)[:] = rows.shard.codes.of(feature)
    return rows
