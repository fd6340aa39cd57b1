"""Block files: the rows of a shard on disk, for data that do not fit in memory.

A *block file* stores fields of consecutive rows, one block of `block_rows` rows after the other:

    block 0                                   block 1
    | tiles … | wide … |                      | tiles … | wide … |       …
    ^ 0       ^ the same offset in each block ^ stride

Within a block each field is one array, ``[before…, rows, after…]`` in C order and the machine's byte order, at a multiple of 64
bytes. All blocks have the same stride; the last one, which may hold fewer rows, is as long as the others and ends in zeros. So
all offsets follow from the list of fields and the number of rows, and a file can be read with a few lines of NumPy.

Blocks of a *sealed* file never change after they are written. Each has a checksum, which is verified before any result of the
block is used: a flipped bit, a truncated or an exchanged file is an error that names file and block, never a wrong model. A
caller that reads a block several times may verify only the last time (see `trees.rounds_in_files`). Other files hold what
changes with every tree; their fields can be read and written one by one.

Files are read with `preadv` into buffers that are reused, never mapped: mapped pages count as memory of the process, and Dask
pauses and kills workers because of them. The space of a file is reserved when it is made, so a full disk is an error at once
and not in the middle of training.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from dboost.errors import MORE_ROOM, DBoostError, is_full, reason
from dboost.kernels.checksum import checksum

_ALIGNMENT = 64


class StorageError(DBoostError, OSError):
    """A block file cannot be written or read, or is damaged: the message names it."""


@dataclass(frozen=True)
class Field:
    """One array per block: ``dtype[*before, rows, *after]``."""

    name: str
    dtype: str
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def n_bytes(self, rows: int) -> int:
        return np.dtype(self.dtype).itemsize * prod(self.before) * rows * prod(self.after)


#: A field's name, or one of the arrays along its first axis.
FieldRef = str | tuple[str, int]


def _padded(n_bytes: int) -> int:
    return -(-n_bytes // _ALIGNMENT) * _ALIGNMENT


def aligned(n_bytes: int) -> np.ndarray:
    """Return an uninitialised buffer (uint8) that begins on a cache line."""
    memory = np.empty(n_bytes + _ALIGNMENT, np.uint8)
    skip = -memory.ctypes.data % _ALIGNMENT
    return memory[skip : skip + n_bytes]


#: Windows would translate line ends.
_BINARY: int = getattr(os, "O_BINARY", 0)
#: On systems without positional reads, all threads share the file position: one at a time.
_POSITION = threading.Lock()


def _read_at(file: int, piece: Any, at: int) -> int:
    """Read into a part of a buffer (uint8); return the number of bytes. Not all systems have `preadv`."""
    if hasattr(os, "preadv"):
        return os.preadv(file, [piece], at)
    with _POSITION:
        os.lseek(file, at, os.SEEK_SET)
        content = os.read(file, len(piece))
    piece[: len(content)] = np.frombuffer(content, np.uint8)
    return len(content)


def _write_at(file: int, piece: Any, at: int) -> int:
    """Write a part of a buffer; return the number of bytes."""
    if hasattr(os, "pwrite"):
        return os.pwrite(file, piece, at)
    with _POSITION:
        os.lseek(file, at, os.SEEK_SET)
        return os.write(file, piece)


class BlockFile:
    """A file of blocks. Thread-safe as long as no two threads use the same block.

    Parameters
    ----------
    path : Path
    fields : sequence of Field
    n_rows : int
    sealed : bool
        Blocks are written once, whole, and have checksums.
    block_rows : int
        Rows of each block; the last one may have fewer.
    block_sizes : sequence of int, optional
        Rows of each block, at most `block_rows`, if they differ.

    Attributes
    ----------
    n_blocks, stride : int
        Number of blocks, and bytes from one to the next.
    bytes_read, bytes_written : int
        So far.
    """

    def __init__(
        self,
        path: Path,
        fields: Sequence[Field],
        n_rows: int,
        *,
        sealed: bool,
        block_rows: int,
        block_sizes: Sequence[int] | None = None,
    ) -> None:
        self.path, self.fields, self.n_rows, self.block_rows = path, tuple(fields), n_rows, block_rows
        self.n_blocks = -(-n_rows // block_rows) if block_sizes is None else len(block_sizes)
        self._sizes = block_sizes
        self._layout: dict[str, tuple[Field, int]] = {}
        at = 0
        for field in self.fields:
            self._layout[field.name] = field, at
            at += _padded(field.n_bytes(block_rows))
        self.stride = at
        self._known_spans: dict[tuple[int, tuple[FieldRef, ...]], list[tuple[int, int]]] = {}
        self.bytes_read = self.bytes_written = 0
        self.checksums = np.zeros(self.n_blocks, np.uint64) if sealed else None
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _BINARY, 0o600)
        except OSError as error:
            raise self._failed("make", error) from error
        self._reserve()

    def _reserve(self) -> None:
        size = self.stride * self.n_blocks
        try:
            if size:
                os.ftruncate(self._file, size)
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(self._file, 0, size)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                return  # a file system that cannot reserve space: then a full disk is an error of the write
            self.remove()
            raise self._failed("make", error) from error

    def rows_of(self, block: int) -> int:
        """Return the number of rows of a block."""
        if self._sizes is not None:
            return self._sizes[block]
        return min(self.block_rows, self.n_rows - block * self.block_rows)

    def buffer(self) -> np.ndarray:
        """Return a buffer for one block: uint8[stride]."""
        return aligned(self.stride)

    def views(self, buffer: np.ndarray, block: int) -> dict[str, np.ndarray]:
        """Return the fields of a block as views of a buffer."""
        rows, arrays = self.rows_of(block), {}
        for name, (field, at) in self._layout.items():
            piece = buffer[at : at + field.n_bytes(rows)].view(field.dtype)
            arrays[name] = piece.reshape(*field.before, rows, *field.after)
        return arrays

    def write(self, block: int, buffer: np.ndarray, refs: Sequence[FieldRef] | None = None) -> None:
        """Write a block, or some of its fields, from its buffer."""
        if self.checksums is not None:
            assert refs is None, "blocks of a sealed file are written whole"
            self._clear_rest(buffer, block)
            self.checksums[block] = checksum(buffer.view(np.uint64))
        for first, last in self._spans(block, refs):
            self._transfer(_write_at, buffer[first:last], block * self.stride + first, "write", block)
            self.bytes_written += last - first

    def read(self, block: int, buffer: np.ndarray, refs: Sequence[FieldRef] | None = None, *, verify: bool = True) -> int:
        """Read a block, or some of its fields, into its buffer; return the number of bytes.

        verify : compare a sealed block with its checksum; without it the caller must read it again later, verified.

        Raises
        ------
        StorageError
            When the file ends too early or a sealed block is damaged.
        """
        n_bytes = 0
        for first, last in self._spans(block, refs):
            self._transfer(_read_at, buffer[first:last], block * self.stride + first, "read", block)
            n_bytes += last - first
        if self.checksums is not None:
            assert refs is None, "blocks of a sealed file are read whole"
            if verify and checksum(buffer.view(np.uint64)) != self.checksums[block]:
                raise StorageError(f"{self.path} is damaged: block {block} is not what was written")
        self.bytes_read += n_bytes
        return n_bytes

    def _spans(self, block: int, refs: Sequence[FieldRef] | None) -> list[tuple[int, int]]:
        """Return byte ranges within a block, adjacent ones joined."""
        if refs is None:
            return [(0, self.stride)]
        rows = self.rows_of(block)
        key = rows, tuple(refs)
        if key not in self._known_spans:
            self._known_spans[key] = self._joined(rows, refs)
        return self._known_spans[key]

    def _joined(self, rows: int, refs: Sequence[FieldRef]) -> list[tuple[int, int]]:
        spans = []
        for ref in refs:
            field, at = self._layout[ref if isinstance(ref, str) else ref[0]]
            n = field.n_bytes(rows)
            if isinstance(ref, str):
                n = _padded(n)  # includes the padding behind a whole field
            else:
                n //= field.before[0]
                at += ref[1] * n
            spans.append((at, at + n))
        joined: list[tuple[int, int]] = []
        for first, last in sorted(spans):
            if joined and first == joined[-1][1]:
                joined[-1] = joined[-1][0], last
            else:
                joined.append((first, last))
        return joined

    def _clear_rest(self, buffer: np.ndarray, block: int) -> None:
        """Zero the bytes outside the fields' rows, so that a block's bytes are a function of its rows."""
        for field, at in self._layout.values():
            buffer[at + field.n_bytes(self.rows_of(block)) : at + _padded(field.n_bytes(self.block_rows))] = 0

    def _transfer(self, call, piece: np.ndarray, at: int, verb: str, block: int) -> None:  # type: ignore[no-untyped-def]
        done = 0
        while done < len(piece):
            try:
                moved = call(self._file, piece[done:], at + done)
            except OSError as error:
                raise self._failed(verb, error) from error
            if not moved:
                block = os.fstat(self._file).st_size // self.stride  # the first missing block, whichever thread finds it
                raise StorageError(f"{self.path} is cut short: block {block} of {self.n_blocks} is missing or not whole")
            done += moved

    def _failed(self, verb: str, error: OSError) -> StorageError:
        if is_full(error):
            wanted = f"{self.stride * self.n_blocks / 2**20:.0f} MiB"
            free = f"{shutil.disk_usage(self.path.parent).free / 2**20:.0f} MiB are free"
            why = f"there is no room for its {wanted} ({error.strerror}; {free})"
            return StorageError(f"cannot {verb} {self.path}: {why}: {MORE_ROOM}")
        return StorageError(f"cannot {verb} {self.path}: {reason(error)}")

    def close(self) -> None:
        """Close the file, which is kept; may be called repeatedly, and by several threads at the same time."""
        file, self._file = self._file, -1  # before the close: the descriptor may be reused at once
        if file >= 0:
            os.close(file)

    def remove(self) -> None:
        """Close the file and remove it."""
        self.close()
        self.path.unlink(missing_ok=True)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()
