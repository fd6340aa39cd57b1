"""Rows in files: what a shard holds, when memory cannot.

A *block file* keeps fields of consecutive rows, blocks of `block_rows` rows one behind the other:

    block 0                                   block 1
    | tiles … | wide … |                      | tiles … | wide … |       …
    ^ 0       ^ the same place in each block  ^ stride

Within a block each field is one array, ``[before…, rows, after…]`` in C order and the machine's byte order, at a multiple
of 64 bytes. All blocks have the same stride; the last one, which may hold fewer rows, is as long as the others and ends
in zeros. So the place of everything follows from the list of fields and the number of rows, and a file is read with a few
lines of NumPy.

Blocks of a *sealed* file never change once they are written. Each has a checksum, which is verified before anything that was
made of the block is used: a flipped bit, a file cut short or one that was exchanged is an error that names file and block,
never a wrong model. Who reads a block several times may leave it to the last (see `shards.streamed_shard`). Other files hold
what changes with every tree; their fields can be read and written one by one.

Files are read with `preadv` into buffers that are used again, never mapped: mapped pages count as memory of the process,
and Dask pauses and kills workers by that. The space of a file is reserved when it is made, so a full disk is noticed at
once and not in the middle of training.
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

from dboost.errors import DBoostError
from dboost.kernels.checksum import checksum

#: Rows of a block: enough that Python's part in handling it does not matter, few enough that its codes stay in cache.
BLOCK_ROWS = 65_536
_ALIGNMENT = 64


class StorageError(DBoostError, OSError):
    """A file of rows cannot be written or read, or does not hold what was written: the message names it."""


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
    """A buffer (uint8, not initialised) that begins on a cache line."""
    memory = np.empty(n_bytes + _ALIGNMENT, np.uint8)
    skip = -memory.ctypes.data % _ALIGNMENT
    return memory[skip : skip + n_bytes]


#: Windows would change line ends.
_BINARY: int = getattr(os, "O_BINARY", 0)
#: Where a file can only be read at its own position, which all threads share, one at a time.
_POSITION = threading.Lock()


def _read_at(file: int, part: Any, at: int) -> int:
    """Read into a part of a buffer (uint8); returns the number of bytes. Not all systems have the calls for it."""
    if hasattr(os, "preadv"):
        return os.preadv(file, [part], at)
    if hasattr(os, "pread"):
        found = os.pread(file, len(part), at)
    else:
        with _POSITION:
            os.lseek(file, at, os.SEEK_SET)
            found = os.read(file, len(part))
    part[: len(found)] = np.frombuffer(found, np.uint8)
    return len(found)


def _write_at(file: int, part: Any, at: int) -> int:
    """The same for writing."""
    if hasattr(os, "pwritev"):
        return os.pwritev(file, [part], at)
    if hasattr(os, "pwrite"):
        return os.pwrite(file, part, at)
    with _POSITION:
        os.lseek(file, at, os.SEEK_SET)
        return os.write(file, part)


class BlockFile:
    """A file of blocks. Safe to use from several threads, as long as no two work on one block.

    Parameters
    ----------
    path : Path
    fields : sequence of Field
    n_rows : int
    block_rows : int
    checksums : uint64[n_blocks], optional
        Of a sealed file that is there already.
    sealed : bool
        Blocks are written once, whole, and have checksums.

    Attributes
    ----------
    n_blocks, stride : int
        How many blocks, and bytes from one to the next.
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
        block_rows: int = BLOCK_ROWS,
        checksums: np.ndarray | None = None,
    ) -> None:
        self.path, self.fields, self.n_rows, self.block_rows = path, tuple(fields), n_rows, block_rows
        self.n_blocks = -(-n_rows // block_rows)
        self._place: dict[str, tuple[Field, int]] = {}
        at = 0
        for field in self.fields:
            self._place[field.name] = field, at
            at += _padded(field.n_bytes(block_rows))
        self.stride = at
        self._known_spans: dict[tuple[int, tuple[FieldRef, ...]], list[tuple[int, int]]] = {}
        self.bytes_read = self.bytes_written = 0
        self.checksums = checksums if checksums is not None or not sealed else np.zeros(self.n_blocks, np.uint64)
        is_new = checksums is None
        try:
            self._file = os.open(path, (os.O_RDWR | os.O_CREAT | os.O_EXCL if is_new else os.O_RDONLY) | _BINARY, 0o600)
        except OSError as error:
            raise self._failed("make" if is_new else "open", error) from error
        if is_new:
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
                return  # a file system that cannot reserve space: then the disk is found full when it is
            self.remove()
            raise self._failed("make", error) from error

    def rows_of(self, block: int) -> int:
        """Rows of a block."""
        return min(self.block_rows, self.n_rows - block * self.block_rows)

    def buffer(self) -> np.ndarray:
        """Room for a block: uint8[stride]."""
        return aligned(self.stride)

    def views(self, buffer: np.ndarray, block: int) -> dict[str, np.ndarray]:
        """The fields of a block in a buffer."""
        rows, found = self.rows_of(block), {}
        for name, (field, at) in self._place.items():
            part = buffer[at : at + field.n_bytes(rows)].view(field.dtype)
            found[name] = part.reshape(*field.before, rows, *field.after)
        return found

    def write(self, block: int, buffer: np.ndarray, wishes: Sequence[FieldRef] | None = None) -> None:
        """Write a block from its buffer, or some of its fields."""
        if self.checksums is not None:
            assert wishes is None, "blocks of a sealed file are written whole"
            self._clear_rest(buffer, block)
            self.checksums[block] = checksum(buffer.view(np.uint64))
        for first, last in self._spans(block, wishes):
            self._all(_write_at, buffer[first:last], block * self.stride + first, "write", block)
            self.bytes_written += last - first

    def read(self, block: int, buffer: np.ndarray, wishes: Sequence[FieldRef] | None = None, *, verify: bool = True) -> int:
        """Read a block into its buffer, or some of its fields; returns the number of bytes.

        verify : compare a sealed block with its checksum; without that the caller reads it again before the end, verified.

        Raises
        ------
        StorageError
            When the file ends too early or a sealed block is not what was written.
        """
        n_bytes = 0
        for first, last in self._spans(block, wishes):
            self._all(_read_at, buffer[first:last], block * self.stride + first, "read", block)
            n_bytes += last - first
        if self.checksums is not None:
            assert wishes is None, "blocks of a sealed file are read whole"
            if verify and checksum(buffer.view(np.uint64)) != self.checksums[block]:
                raise StorageError(f"{self.path} is damaged: block {block} is not what was written")
        self.bytes_read += n_bytes
        return n_bytes

    def _spans(self, block: int, wishes: Sequence[FieldRef] | None) -> list[tuple[int, int]]:
        """Ranges of bytes within a block, neighbours joined."""
        if wishes is None:
            return [(0, self.stride)]
        rows = self.rows_of(block)
        key = rows, tuple(wishes)
        if key not in self._known_spans:
            self._known_spans[key] = self._joined(rows, wishes)
        return self._known_spans[key]

    def _joined(self, rows: int, wishes: Sequence[FieldRef]) -> list[tuple[int, int]]:
        spans = []
        for wish in wishes:
            field, at = self._place[wish if isinstance(wish, str) else wish[0]]
            n = field.n_bytes(rows)
            if isinstance(wish, str):
                n = _padded(n)  # what follows a whole field belongs to nobody
            else:
                n //= field.before[0]
                at += wish[1] * n
            spans.append((at, at + n))
        joined: list[tuple[int, int]] = []
        for first, last in sorted(spans):
            if joined and first == joined[-1][1]:
                joined[-1] = joined[-1][0], last
            else:
                joined.append((first, last))
        return joined

    def _clear_rest(self, buffer: np.ndarray, block: int) -> None:
        """Zeros where no field has rows, so that a block's bytes are a function of its rows."""
        for field, at in self._place.values():
            buffer[at + field.n_bytes(self.rows_of(block)) : at + _padded(field.n_bytes(self.block_rows))] = 0

    def _all(self, call, part: np.ndarray, at: int, verb: str, block: int) -> None:  # type: ignore[no-untyped-def]
        done = 0
        while done < len(part):
            try:
                moved = call(self._file, part[done:], at + done)
            except OSError as error:
                raise self._failed(verb, error) from error
            if not moved:
                block = os.fstat(self._file).st_size // self.stride  # the first, whichever thread comes upon it
                raise StorageError(f"{self.path} is cut short: block {block} of {self.n_blocks} is missing or not whole")
            done += moved

    def _failed(self, verb: str, error: OSError) -> StorageError:
        if error.errno in (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", None)):
            wanted = f"{self.stride * self.n_blocks / 2**20:.0f} MiB"
            free = f"{shutil.disk_usage(self.path.parent).free / 2**20:.0f} MiB are free"
            return StorageError(f"cannot {verb} {self.path}: there is no room for its {wanted} ({error.strerror}; {free})")
        return StorageError(f"cannot {verb} {self.path}: {error.strerror}")

    def sync(self) -> None:
        """Make sure that everything is on the disk."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise self._failed("write", error) from error

    def close(self) -> None:
        """Close the file, which stays; again is harmless, by another thread at the same time, too."""
        file, self._file = self._file, -1  # before it is closed: its number may belong to another file at once
        if file >= 0:
            os.close(file)

    def remove(self) -> None:
        """Close the file and remove it."""
        self.close()
        self.path.unlink(missing_ok=True)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()
