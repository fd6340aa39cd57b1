"""A row store: named fields over rows, in memory or in files.

In memory a field is one contiguous array of all rows, so kernels that know ranges of rows run on it unchanged. In files
(`storage.block_file`) the rows are divided into blocks, of which each thread has one in buffers at a time. `RowStore.walk`
yields both in the same form, as arrays and a range of their rows, and what it computes must not depend on how the rows are
divided: then it does not matter where they are.

The fields of a `FieldGroup` share a file. A sealed group is written once, when the store is filled, and its blocks have
checksums; other groups change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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


class RowStore:
    """A fixed number of rows with named fields. Threads may use it at the same time if they use different rows.

    Parameters
    ----------
    groups : sequence of FieldGroup
    n_rows : int
    place : InFiles, optional
        Default: in memory.

    Attributes
    ----------
    arrays : dict
        In memory: all rows of each field. Empty for rows in files.
    """

    def __init__(self, groups: Sequence[FieldGroup], n_rows: int, place: InFiles | None = None) -> None:
        self.groups, self.n_rows, self.place = tuple(groups), n_rows, place
        self._fields = {field.name: field for group in groups for field in group.fields}
        self.arrays: dict[str, np.ndarray] = {}
        self._files: list[BlockFile] = []
        self._n_filled = 0
        if place is None:
            self.arrays = {name: np.zeros((*of.before, n_rows, *of.after), of.dtype) for name, of in self._fields.items()}
            return
        self._folder = PrivateDirectory(place.root)
        try:
            for name, fields, sealed in self.groups:
                path = self._folder.path / name
                self._files.append(BlockFile(path, fields, n_rows, sealed=sealed, block_rows=place.block_rows))
            self._open = [file.buffer() for file in self._files]  # of the block that is filled
            self._clear()
        except BaseException:
            self.close()
            raise

    @property
    def n_blocks(self) -> int:
        """Number of blocks; 1 in memory."""
        return self._files[0].n_blocks if self._files else 1

    @property
    def nbytes(self) -> int:
        """Bytes of the rows in memory, 0 for rows in files."""
        return sum(array.nbytes for array in self.arrays.values())

    @property
    def bytes_read(self) -> int:
        """Bytes read from files so far."""
        return sum(file.bytes_read for file in self._files)

    def append(self, n: int, fields: Mapping[str, np.ndarray], rows: np.ndarray | None = None) -> None:
        """Append n rows: those of arrays of n rows, or these rows (int64[n]) of longer arrays.

        A field without values is 0; values of fields that the store does not have are dropped.
        """
        assert self._n_filled + n <= self.n_rows, "more rows than were promised"
        done = 0
        while done < n:
            views, (first, last) = self._views_to_fill()
            n_copied = min(n - done, last - first)
            some = slice(done, done + n_copied) if rows is None else rows[done : done + n_copied]
            for name, view in views.items():
                if name in fields:
                    view[self._at(name, slice(first, first + n_copied))] = fields[name][self._at(name, some)]
            done += n_copied
            self._n_filled += n_copied
            if self._files and first + n_copied == last:
                for file, buffer in zip(self._files, self._open, strict=True):
                    file.write((self._n_filled - 1) // file.block_rows, buffer)
                self._clear()

    def _at(self, name: str, rows: slice | np.ndarray) -> tuple[slice | np.ndarray, ...]:
        """Return the index of some rows in an array of a field."""
        return (*(slice(None),) * len(self._fields[name].before), rows)

    def _views_to_fill(self) -> tuple[dict[str, np.ndarray], tuple[int, int]]:
        """Return the arrays into which rows are appended, and the range of their free rows."""
        if not self._files:
            return self.arrays, (self._n_filled, self.n_rows)
        block, first = divmod(self._n_filled, self._files[0].block_rows)
        return self._views(self._open, block), (first, self._files[0].rows_of(block))

    def _clear(self) -> None:
        if self._n_filled == self.n_rows:
            self._open = []
        for buffer in self._open:
            buffer[:] = 0

    def _views(self, buffers: Sequence[np.ndarray], block: int) -> dict[str, np.ndarray]:
        views: dict[str, np.ndarray] = {}
        for file, buffer in zip(self._files, buffers, strict=True):
            views |= file.views(buffer, block)
        return views

    def walk(
        self, reads: Sequence[str], writes: Sequence[str] = (), *, thread: int = 0, n_threads: int = 1
    ) -> Iterator[RowRange]:
        """Yield one thread's share of the rows, block by block, with at least the fields in `reads` and `writes`.

        A block is valid until the next one. The fields in `writes`, which are not sealed, may be changed; those that are not
        read must be.
        """
        assert self._n_filled == self.n_rows, "fewer rows than were promised"
        if not self._files:
            yield RowRange(self.arrays, self.n_rows * thread // n_threads, self.n_rows * (thread + 1) // n_threads)
            return
        some: list[tuple[BlockFile, list[str] | None, list[str]]] = []
        for file, group in zip(self._files, self.groups, strict=True):
            names = {field.name for field in group.fields}
            read, written = [name for name in reads if name in names], [name for name in writes if name in names]
            if read or written:
                some.append((file, None if group.sealed else read, written))
        buffers = [file.buffer() for file, _, _ in some]
        for block in range(self.n_blocks * thread // n_threads, self.n_blocks * (thread + 1) // n_threads):
            views: dict[str, np.ndarray] = {}
            for (file, refs, _), buffer in zip(some, buffers, strict=True):
                file.read(block, buffer, refs)
                views |= file.views(buffer, block)
            yield RowRange(views, 0, file.rows_of(block))
            for (file, _, written), buffer in zip(some, buffers, strict=True):
                if written:
                    file.write(block, buffer, written)

    def subset(self, stays: np.ndarray) -> RowStore:
        """Return a new store at the same place with some of the rows (bool[n_rows]), in their current state."""
        found = RowStore(self.groups, int(stays.sum()), self.place)
        at = 0
        try:
            for fields, first, last in self.walk(list(self._fields)):
                rows = first + np.flatnonzero(stays[at : at + last - first])
                found.append(len(rows), fields, rows)
                at += last - first
        except BaseException:
            found.close()
            raise
        return found

    def close(self) -> None:
        """Release the memory, and remove the files; may be called repeatedly."""
        self.arrays = {}
        for file in self._files:
            file.close()
        if self.place is not None:
            self._folder.close()
