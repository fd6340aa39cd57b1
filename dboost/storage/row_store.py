"""A row store: named fields over blocks of rows, in memory or in files.

The rows are in one section, or in several (the bites of a session), each of which begins with a block of its own. In memory a
section is one block: contiguous arrays, so kernels that know ranges of rows run on them unchanged. In files
(`storage.block_file`) it has as many blocks as it needs, of which each thread has one in buffers at a time. `RowStore.walk`
yields both in the same form, as arrays and a range of their rows, and what is computed must not depend on how the rows are
divided: then it does not matter where they are.

The fields of a `FieldGroup` share a file. A sealed group is written once, when the store is filled, and its blocks have
checksums; other groups change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dboost.storage.block_file import BlockFile, Field
from dboost.storage.spool import PrivateDirectory


class FieldGroup(NamedTuple):
    """Fields that are in one file, if rows are in files."""

    name: str
    fields: Sequence[Field]
    sealed: bool  # written once


class InFiles(NamedTuple):
    """Rows are in files, in blocks, in a private directory."""

    block_rows: int
    root: Path | None  # parent of the directory; None for the one of `PrivateDirectory`


class RowRange(NamedTuple):
    """Rows first…last-1 of arrays."""

    fields: dict[str, np.ndarray]
    first: int
    last: int
    start: int  # number of the first one within its section

    @property
    def n_rows(self) -> int:
        return self.last - self.first


class RowStore:
    """A fixed number of rows with named fields. Threads may use it at the same time if they use different rows.

    Parameters
    ----------
    groups : sequence of FieldGroup
    sizes : sequence of int
        Number of rows of each section.
    place : InFiles, optional
        Default: in memory.
    """

    def __init__(self, groups: Sequence[FieldGroup], sizes: Sequence[int], place: InFiles | None = None) -> None:
        self.groups, self.sizes, self.place = tuple(groups), tuple(sizes), place
        self.n_rows = sum(self.sizes)
        self._fields = {field.name: field for group in groups for field in group.fields}
        self._filled = [0] * len(self.sizes)
        self._arrays: list[dict[str, np.ndarray]] = []
        self._files: list[BlockFile] = []
        if place is None:
            self._arrays = [self._new_arrays(n) for n in self.sizes]
            return
        self._first_block = [0, *accumulate(-(-n // place.block_rows) for n in self.sizes)]
        # A single section has a last block as short as its rows.
        n_rows = self.n_rows if len(self.sizes) == 1 else self._first_block[-1] * place.block_rows
        self._open: dict[int, list[np.ndarray]] = {}  # the block of each section that is filled
        self._folder = PrivateDirectory(place.root)
        try:
            for name, fields, sealed in self.groups:
                path = self._folder.path / name
                self._files.append(BlockFile(path, fields, n_rows, sealed=sealed, block_rows=place.block_rows))
        except BaseException:
            self.close()
            raise

    def _new_arrays(self, n: int, make: Callable[..., np.ndarray] = np.zeros) -> dict[str, np.ndarray]:
        return {name: make((*of.before, n, *of.after), of.dtype) for name, of in self._fields.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of the rows in memory, 0 for rows in files."""
        return sum(array.nbytes for arrays in self._arrays for array in arrays.values())

    @property
    def bytes_read(self) -> int:
        """Bytes read from files so far."""
        return sum(file.bytes_read for file in self._files)

    def append(self, n: int, fields: Mapping[str, np.ndarray], rows: np.ndarray | None = None, section: int = 0) -> None:
        """Append n rows to a section: those of arrays of n rows, or these rows (int64[n]) of longer arrays.

        A field without values is 0; values of fields that the store does not have are dropped.
        """
        assert self._filled[section] + n <= self.sizes[section], "more rows than were promised"
        done = 0
        while done < n:
            views, first, free = self._views_to_fill(section)
            n_copied = min(n - done, free)
            some = slice(done, done + n_copied) if rows is None else rows[done : done + n_copied]
            for name, view in views.items():
                if name in fields:
                    view[self._at(name, slice(first, first + n_copied))] = fields[name][self._at(name, some)]
            done += n_copied
            self._filled[section] += n_copied
            if self._files and n_copied == free:
                self._write_filled(section)

    def _at(self, name: str, rows: slice | np.ndarray) -> tuple[slice | np.ndarray, ...]:
        """Return the index of some rows in an array of a field."""
        return (*(slice(None),) * len(self._fields[name].before), rows)

    def _views_to_fill(self, section: int) -> tuple[dict[str, np.ndarray], int, int]:
        """Return the arrays into which rows are appended, the first free row, and the number of free rows."""
        filled, size = self._filled[section], self.sizes[section]
        if self.place is None:
            return self._arrays[section], filled, size - filled
        if section not in self._open:
            self._open[section] = [file.buffer() for file in self._files]
        block_rows = self.place.block_rows
        block, first = divmod(filled, block_rows)
        if not first:
            for buffer in self._open[section]:
                buffer[:] = 0
        return self._views(self._files, self._open[section], section, block), first, min(block_rows - first, size - filled)

    def _write_filled(self, section: int) -> None:
        """Write the block to which rows were appended last, which is full or the last one."""
        assert self.place is not None
        block = self._first_block[section] + (self._filled[section] - 1) // self.place.block_rows
        for file, buffer in zip(self._files, self._open[section], strict=True):
            file.write(block, buffer)
        if self._filled[section] == self.sizes[section]:
            del self._open[section]

    def _views(
        self, files: Sequence[BlockFile], buffers: Sequence[np.ndarray], section: int, block: int
    ) -> dict[str, np.ndarray]:
        """Return the fields of a block of a section."""
        views: dict[str, np.ndarray] = {}
        for file, buffer in zip(files, buffers, strict=True):
            views |= file.views(buffer, self._first_block[section] + block)
        return views

    def walk(
        self, reads: Sequence[str], writes: Sequence[str] = (), *, section: int = 0, thread: int = 0, n_threads: int = 1
    ) -> Iterator[RowRange]:
        """Yield one thread's share of the rows of a section, block by block, with at least the fields in `reads` and `writes`.

        A block is valid until the next one. The fields in `writes`, which are not sealed, may be changed; those that are not
        read must be.
        """
        n = self.sizes[section]
        assert self._filled[section] == n, "fewer rows than were promised"
        if self.place is None:
            first, last = n * thread // n_threads, n * (thread + 1) // n_threads
            yield RowRange(self._arrays[section], first, last, first)
            return
        files, refs = [], []
        for file, group in zip(self._files, self.groups, strict=True):
            names = {field.name for field in group.fields}
            read, written = [name for name in reads if name in names], [name for name in writes if name in names]
            if read or written:
                files.append(file)
                refs.append((None if group.sealed else read, written))
        buffers = [file.buffer() for file in files]
        block_rows, first_block = self.place.block_rows, self._first_block[section]
        n_blocks = self._first_block[section + 1] - first_block
        for block in range(n_blocks * thread // n_threads, n_blocks * (thread + 1) // n_threads):
            for file, buffer, (read_refs, _) in zip(files, buffers, refs, strict=True):
                file.read(first_block + block, buffer, read_refs)
            start = block * block_rows
            yield RowRange(self._views(files, buffers, section, block), 0, min(block_rows, n - start), start)
            for file, buffer, (_, written) in zip(files, buffers, refs, strict=True):
                if written:
                    file.write(first_block + block, buffer, written)

    def load(self, section: int = 0) -> dict[str, np.ndarray]:
        """Return all rows of a section: the arrays themselves if they are in memory, else new ones."""
        if self.place is None:
            return self._arrays[section]
        arrays = self._new_arrays(self.sizes[section], np.empty)
        for fields, _, n, start in self.walk(list(self._fields), section=section):
            for name, array in arrays.items():
                array[self._at(name, slice(start, start + n))] = fields[name][self._at(name, slice(0, n))]
        return arrays

    def save(self, name: str, values: np.ndarray, section: int = 0) -> None:
        """Set the values of a field that is not sealed, for all rows of a section."""
        for some in self.walk([], [name], section=section):
            here, there = slice(some.first, some.last), slice(some.start, some.start + some.n_rows)
            some.fields[name][self._at(name, here)] = values[self._at(name, there)]

    def subset(self, sizes: Sequence[int], stays: Callable[[RowRange], np.ndarray]) -> RowStore:
        """Return a new store at the same place with some of the rows, in their current state.

        sizes : number of these rows in each section; stays : returns which of some rows they are (bool[n]).
        """
        found = RowStore(self.groups, sizes, self.place)
        try:
            for section in range(len(sizes)):
                for some in self.walk(list(self._fields), section=section):
                    rows = some.first + np.flatnonzero(stays(some))
                    found.append(len(rows), some.fields, rows, section)
        except BaseException:
            found.close()
            raise
        return found

    def close(self) -> None:
        """Release the memory, and remove the files; may be called repeatedly."""
        self._arrays = []
        for file in self._files:
            file.close()
        if self.place is not None:
            self._folder.close()
