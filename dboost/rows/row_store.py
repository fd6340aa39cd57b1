"""A row store: named fields over blocks of rows, in memory or in files.

The rows are in one section, or in several (the bites of a session), each of which begins with a block of its own. In memory a
section is one block: contiguous arrays, so kernels that know ranges of rows run on them unchanged. In files
(`rows.block_file`) it has as many blocks as it needs, of which each thread has one in buffers at a time. `RowStore.walk`
yields both in the same form, as arrays and a range of their rows, and what is computed must not depend on how the rows are
divided: then it does not matter where they are. `RowShares` divides them among the threads of a team.

The fields of a `FieldGroup` share a file. A sealed group is written once, when the store is filled, and its blocks have
checksums; other groups change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from math import prod
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

import numpy as np

from dboost.files.spool import PrivateDirectory
from dboost.kernels.threads import Team
from dboost.rows.block_file import BlockFile, Field, FieldRef

#: Bytes of a line of the processor's cache.
_CACHE_LINE = 64


class FieldGroup(NamedTuple):
    """Fields that are in one file, if rows are in files."""

    name: str
    fields: Sequence[Field]
    sealed: bool  # written once


class InFiles(NamedTuple):
    """Rows are in files, in blocks, in a private directory."""

    block_rows: int  # of each block; the last block of a section may have fewer
    root: Path | None  # parent of the private directory; None for the one of `PrivateDirectory`
    #: Rows of each block of a single section, at most `block_rows`, if blocks do not end just anywhere.
    block_sizes: tuple[int, ...] | None = None


class RowRange(NamedTuple):
    """Rows first…last-1 of arrays."""

    fields: dict[str, np.ndarray]
    first: int
    last: int
    start: int  # number of the first one within its section

    @property
    def n_rows(self) -> int:
        return self.last - self.first


def _aligned_zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return zeros aligned to a cache line: the codes of a row in a tile never straddle two lines, which makes gathering a
    third faster."""
    n_bytes = dtype.itemsize * prod(shape)
    memory = np.zeros(n_bytes + _CACHE_LINE, np.uint8)
    skip = -memory.ctypes.data % _CACHE_LINE
    return memory[skip : skip + n_bytes].view(dtype).reshape(shape)


class RowStore:
    """A fixed number of rows with named fields. Threads may use it at the same time if they use different rows.

    Parameters
    ----------
    groups : sequence of FieldGroup
    sizes : sequence of int
        Number of rows of each section.
    place : InFiles, optional
        Default: in memory.
    arrays : dict, optional
        For a single section in memory: arrays of fields, by name, that hold all rows already. The store takes them over without
        a copy and is filled; the other fields are 0.

    Attributes
    ----------
    files : list of BlockFile
        Of the groups; empty in memory.
    block_rows : int
        Rows of a block of the files, at most; all rows in memory.
    """

    def __init__(
        self,
        groups: Sequence[FieldGroup],
        sizes: Sequence[int],
        place: InFiles | None = None,
        arrays: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self.groups, self.sizes, self.place = tuple(groups), tuple(sizes), place
        self.n_rows = sum(self.sizes)
        self.block_rows = self.n_rows if place is None else place.block_rows
        self._fields = {field.name: field for group in groups for field in group.fields}
        self._names = [{field.name for field in group.fields} for group in groups]
        self._refs: dict[tuple[FieldRef, ...], list[list[FieldRef]]] = {}
        self._filled = [0] * len(self.sizes)
        #: Of a section in files: number of blocks of each thread's share that stay in memory once they are read; they are not
        #: written, see `unload`.
        self.n_staying = 0
        self._resident: dict[int, BlockBuffers] = {}
        self._spare: list[BlockBuffers] = []
        self._arrays: list[dict[str, np.ndarray]] = []
        self.files: list[BlockFile] = []
        if place is None:
            taken = {} if arrays is None else arrays
            self._arrays = [self._new_arrays(n, taken) for n in self.sizes]
            if arrays is not None:
                self._filled = list(self.sizes)
            return
        assert arrays is None, "arrays are taken over into memory only"
        self._starts: np.ndarray | None = None  # of blocks of given sizes
        n_blocks = [-(-n // place.block_rows) for n in self.sizes]
        if place.block_sizes is not None:
            assert (sum(place.block_sizes),) == self.sizes, "the blocks have all rows of a single section"
            n_blocks, self._starts = [len(place.block_sizes)], np.cumsum((0, *place.block_sizes))
        self._first_block = [0, *accumulate(n_blocks)]
        # A single section has a last block as short as its rows.
        n_rows = self.n_rows if len(self.sizes) == 1 else self._first_block[-1] * place.block_rows
        self._open: dict[int, list[np.ndarray]] = {}  # the block of each section that is filled
        self._folder = PrivateDirectory(place.root)
        try:
            for name, fields, sealed in self.groups:
                path = self._folder.path / name
                self.files.append(
                    BlockFile(path, fields, n_rows, sealed=sealed, block_rows=place.block_rows, block_sizes=place.block_sizes)
                )
        except BaseException:
            self.close()
            raise

    @property
    def names(self) -> list[str]:
        """Names of all fields."""
        return list(self._fields)

    def _new_arrays(self, n: int, taken: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return arrays for n rows of each field: those taken over, and new ones, which are 0."""
        arrays = {}
        for name, field in self._fields.items():
            shape = *field.before, n, *field.after
            arrays[name] = taken[name] if name in taken else _aligned_zeros(shape, np.dtype(field.dtype))
            assert (arrays[name].shape, arrays[name].dtype) == (shape, field.dtype), f"an array of {name} has another form"
        return arrays

    @property
    def n_blocks(self) -> int:
        """Number of blocks of the files."""
        return self._first_block[-1]

    def rows_of(self, block: int) -> int:
        """Return the number of rows of a block of the files; the last block of one of several sections may have fewer."""
        return self.files[0].rows_of(block)

    def _block_with(self, row: int) -> tuple[int, int]:
        """Return the block of a section of the files that has a row, and the position of the row in it."""
        if self._starts is None:
            return divmod(row, self.block_rows)
        block = int(np.searchsorted(self._starts, row, "right")) - 1
        return block, row - int(self._starts[block])

    def _start_and_size(self, block: int, section: int) -> tuple[int, int]:
        """Return the first row of a block of a section of the files, and its number of rows."""
        if self._starts is None:
            start = block * self.block_rows
            return start, min(self.block_rows, self.sizes[section] - start)
        return int(self._starts[block]), self.rows_of(block)

    @property
    def bytes_read(self) -> int:
        """Bytes read from files so far."""
        return sum(file.bytes_read for file in self.files)

    def append(self, n: int, fields: Mapping[str, np.ndarray], rows: np.ndarray | None = None, section: int = 0) -> None:
        """Append n rows to a section: those of arrays of n rows, or these rows (int64[n]) of longer arrays.

        A field without values is 0; values of fields that the store does not have are dropped.
        """
        assert self._filled[section] + n <= self.sizes[section], "more rows than were promised"
        done = 0
        while done < n:
            views, first, free = self._views_to_fill(section)
            n_copied = min(n - done, free)
            source = slice(done, done + n_copied) if rows is None else rows[done : done + n_copied]
            for name, view in views.items():
                if name in fields:
                    view[self._at(name, slice(first, first + n_copied))] = fields[name][self._at(name, source)]
            done += n_copied
            self._filled[section] += n_copied
            if self.place is not None and n_copied == free:
                self._write_filled(section)

    def _at(self, name: str, rows: slice | np.ndarray) -> tuple[slice | np.ndarray, ...]:
        """Return the index of some rows in an array of a field."""
        return (*(slice(None),) * len(self._fields[name].before), rows)

    def _views_to_fill(self, section: int) -> tuple[dict[str, np.ndarray], int, int]:
        """Return the arrays into which rows are appended, the first free row, and the number of free rows."""
        filled = self._filled[section]
        if self.place is None:
            return self._arrays[section], filled, self.sizes[section] - filled
        if section not in self._open:
            self._open[section] = self.buffers()
        block, first = self._block_with(filled)
        views: dict[str, np.ndarray] = {}
        for file, buffer in zip(self.files, self._open[section], strict=True):
            if not first:
                buffer[:] = 0
            views |= file.views(buffer, self._first_block[section] + block)
        return views, first, self._start_and_size(block, section)[1] - first

    def _write_filled(self, section: int) -> None:
        """Write the block to which rows were appended last, which is full or the last one."""
        block = self._first_block[section] + self._block_with(self._filled[section] - 1)[0]
        for file, buffer in zip(self.files, self._open[section], strict=True):
            file.write(block, buffer)
        if self._filled[section] == self.sizes[section]:
            del self._open[section]

    def check_filled(self, section: int = 0) -> None:
        """Assert that all rows of a section have arrived."""
        assert self._filled[section] == self.sizes[section], "fewer rows than were promised"

    def buffers(self) -> list[np.ndarray]:
        """Return buffers for one block of files."""
        return [file.buffer() for file in self.files]

    def read(
        self, block: int, buffers: Sequence[np.ndarray], reads: Sequence[FieldRef], unverified: Collection[str] = ()
    ) -> int:
        """Read fields of a block of the files into its buffers, sealed groups as a whole; return the number of bytes.

        unverified : names of groups whose checksum is not compared, see `BlockFile.read`.
        """
        n_bytes = 0
        for group, file, buffer, refs in zip(self.groups, self.files, buffers, self._by_group(reads), strict=True):
            if refs:
                n_bytes += file.read(block, buffer, None if group.sealed else refs, verify=group.name not in unverified)
        return n_bytes

    def write(self, block: int, buffers: Sequence[np.ndarray], writes: Sequence[FieldRef]) -> None:
        """Write fields of a block, which are not sealed, to the files."""
        for file, buffer, refs in zip(self.files, buffers, self._by_group(writes), strict=True):
            if refs:
                file.write(block, buffer, refs)

    def _by_group(self, refs: Sequence[FieldRef]) -> list[list[FieldRef]]:
        """Return the fields of each group, which are looked up for every block."""
        refs_of_groups = self._refs.get(key := tuple(refs))
        if refs_of_groups is None:
            refs_of_groups = [
                [ref for ref in refs if (ref if isinstance(ref, str) else ref[0]) in names] for names in self._names
            ]
            self._refs[key] = refs_of_groups
        return refs_of_groups

    def views(self, buffers: Sequence[np.ndarray], block: int) -> dict[str, np.ndarray]:
        """Return the fields of a block of the files as views of its buffers; those that were not read are uninitialised."""
        views: dict[str, np.ndarray] = {}
        for file, buffer in zip(self.files, buffers, strict=True):
            views |= file.views(buffer, block)
        return views

    def walk(
        self,
        reads: Sequence[FieldRef],
        writes: Sequence[FieldRef] = (),
        *,
        section: int = 0,
        thread: int = 0,
        n_threads: int = 1,
        unverified: Collection[str] = (),
    ) -> Iterator[RowRange]:
        """Yield one thread's share of the rows of a section, block by block, with at least the fields in `reads` and `writes`.

        A block is valid until the next one. The fields in `writes`, which are not sealed, may be changed; those that are not
        read must be. While a block of files is processed, a thread reads the next one. unverified : see `read`.
        """
        self.check_filled(section)
        if self.place is None:
            n = self.sizes[section]
            first, last = n * thread // n_threads, n * (thread + 1) // n_threads
            yield RowRange(self._arrays[section], first, last, first)
            return
        first_block = self._first_block[section]
        n_blocks = self._first_block[section + 1] - first_block
        share = range(n_blocks * thread // n_threads, n_blocks * (thread + 1) // n_threads)
        n_staying = min(self.n_staying, len(share))
        for k in share[:n_staying]:
            resident = self._resident.get(k)
            if resident is None:
                resident = self._resident[k] = BlockBuffers(self)
                self.read(first_block + k, resident.arrays, self.names)
            start, n = self._start_and_size(k, section)
            yield RowRange(resident.views(first_block + k), 0, n, start)
        streamed = share[n_staying:]
        buffers = [self._spare.pop() if self._spare else BlockBuffers(self) for _ in streamed[:2]]
        reader = _Reader(self, [first_block + k for k in streamed], buffers, reads, unverified)
        try:
            for k in streamed:
                buffers_read = reader.next()
                start, n = self._start_and_size(k, section)
                yield RowRange(buffers_read.views(first_block + k), 0, n, start)
                if writes:
                    self.write(first_block + k, buffers_read.arrays, writes)
                reader.reuse(buffers_read)
        finally:
            reader.close()
            self._spare += buffers

    def unload(self) -> None:
        """Write the changed fields of the blocks that stay in memory, and stream them from now on. Of a single section."""
        names = [field.name for group in self.groups if not group.sealed for field in group.fields]
        for k, resident in self._resident.items():
            self.write(k, resident.arrays, names)
        self._resident, self.n_staying = {}, 0

    def load(self, section: int = 0) -> dict[str, np.ndarray]:
        """Return all rows of a section: the arrays themselves if they are in memory, else new ones."""
        if self.place is None:
            return self._arrays[section]
        arrays = self._new_arrays(self.sizes[section], {})
        for fields, _, n, start in self.walk(list(self._fields), section=section):
            for name, array in arrays.items():
                array[self._at(name, slice(start, start + n))] = fields[name][self._at(name, slice(0, n))]
        return arrays

    def save(self, name: str, values: np.ndarray, section: int = 0) -> None:
        """Set the values of a field that is not sealed, for all rows of a section."""
        if self.place is None and values is self._arrays[section][name]:
            return  # `load` has returned the array itself, and it was changed in place
        for block in self.walk([], [name], section=section):
            block_rows, store_rows = slice(block.first, block.last), slice(block.start, block.start + block.n_rows)
            block.fields[name][self._at(name, block_rows)] = values[self._at(name, store_rows)]

    def subset(
        self, sizes: Sequence[int], stays: Callable[[RowRange], np.ndarray], thread: int = 0, n_threads: int = 1
    ) -> RowStore:
        """Return a new store at the same place with some of the rows, or of a thread's share of them, in their current state.

        sizes : number of these rows in each section; stays : returns which of some rows they are (bool[n]). Blocks of given
        sizes keep their borders.
        """
        blocks, place = partial(self.walk, self.names, thread=thread, n_threads=n_threads), self.place
        if place is not None and place.block_sizes is not None:
            n_stay = [int(np.count_nonzero(stays(block))) for block in blocks()]
            place = place._replace(block_sizes=tuple(n for n in n_stay if n))
        part = RowStore(self.groups, sizes, place)
        try:
            for section in range(len(sizes)):
                for block in blocks(section=section):
                    rows = block.first + np.flatnonzero(stays(block))
                    part.append(len(rows), block.fields, rows, section)
        except BaseException:
            part.close()
            raise
        return part

    def close(self) -> None:
        """Release the memory, close the files and remove the private directory; may be called repeatedly."""
        self._arrays, self._resident, self._spare = [], {}, []
        for file in self.files:
            file.close()
        if self.place is not None:
            self._folder.close()


class Halted(Exception):
    """Another thread failed, or the user interrupted the fit."""


class RowShares:
    """The rows of a single section of a store, in a share for each thread of a team.

    Attributes
    ----------
    store : RowStore
    team : Team
    n : int
        Number of shares: as many as threads, or as blocks if there are fewer of these.
    """

    def __init__(self, store: RowStore, team: Team) -> None:
        self.store, self.team = store, team
        self.n = team.n_threads if store.place is None else min(team.n_threads, store.n_blocks)
        #: Returns ``[work(0), work(1), …]`` of all shares, computed by the threads.
        self.run = team.run if self.n == team.n_threads else partial(_run_fewer, team, self.n)

    def map(self, work: Callable[..., Any], ranges: Callable[[int], Iterable[tuple[Any, ...]]]) -> list[Any]:
        """Return ``work(*rows)`` of the ranges of all shares, computed by the threads. ranges : returns those of a share."""
        results = self.run(lambda k: [work(*rows) for rows in ranges(k)])
        return [result for of_share in results for result in of_share]

    def walk(
        self, k: int, reads: Sequence[FieldRef], writes: Sequence[FieldRef] = (), unverified: Collection[str] = ()
    ) -> Iterator[RowRange]:
        """Yield the k-th share, see `RowStore.walk`."""
        for rows in self.store.walk(reads, writes, thread=k, n_threads=self.n, unverified=unverified):
            if self.team.is_halted:
                raise Halted
            yield rows

    def subset(self, stays: np.ndarray) -> RowStore:
        """Return a new store at the same place with some of the rows (bool[n_rows]), in their current state."""
        self.store.unload()
        return self.store.subset([int(np.count_nonzero(stays))], lambda rows: stays[rows.start : rows.start + rows.n_rows])


def _run_fewer(team: Team, n: int, work: Callable[[int], Any]) -> list[Any]:
    """Return ``[work(0), …, work(n - 1)]``, of fewer shares than threads."""
    return team.map(work, range(n))


class BlockBuffers:
    """Buffers for one block of files."""

    def __init__(self, store: RowStore) -> None:
        self._store, self.arrays = store, store.buffers()
        self._views: tuple[int, dict[str, np.ndarray]] = (-1, {})

    def views(self, block: int) -> dict[str, np.ndarray]:
        """Return the fields of the block that was read last."""
        n = self._store.rows_of(block)
        if n != self._views[0]:  # blocks of equal length have the same views
            self._views = n, self._store.views(self.arrays, block)
        return self._views[1]


class _Reader:
    """A thread that reads blocks into buffers, in advance."""

    def __init__(
        self,
        store: RowStore,
        blocks: Sequence[int],
        buffers: Sequence[BlockBuffers],
        reads: Sequence[FieldRef],
        unverified: Collection[str],
    ) -> None:
        self._empty: SimpleQueue[BlockBuffers | None] = SimpleQueue()
        self._full: SimpleQueue[BlockBuffers | BaseException] = SimpleQueue()
        for buffer in buffers:
            self.reuse(buffer)

        def read() -> None:
            try:
                for block in blocks:
                    free = self._empty.get()
                    if free is None:
                        return
                    store.read(block, free.arrays, reads, unverified)
                    self._full.put(free)
            except BaseException as error:
                self._full.put(error)

        self._thread = Thread(target=read, name="dboost-read", daemon=True)
        if blocks:
            self._thread.start()

    def next(self) -> BlockBuffers:
        """Return the buffers with the next block."""
        read_block = self._full.get()
        if isinstance(read_block, BaseException):
            raise read_block
        return read_block

    def reuse(self, buffers: BlockBuffers) -> None:
        """Hand back buffers whose block has been processed."""
        self._empty.put(buffers)

    def close(self) -> None:
        # The thread has ended, waits for a buffer, or has one or two more blocks to read.
        self._empty.put(None)
        if self._thread.ident is not None:
            self._thread.join()
