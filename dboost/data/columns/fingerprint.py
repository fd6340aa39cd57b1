"""A checksum of a chunk, to notice that a source has changed.

A partition that was lost with its worker is read again, and the model is correct only if the source returns the same rows in
the same order. Some sources do not: a query without an order, a sample without a seed, a file that was replaced. Categories
enter the checksum by value, because codes depend on what the worker has read before. The checksum of rows that move to another
worker moves with them: their codes may not distinguish all values of the source.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from dboost.data.columns.chunk import Chunk, native, plain_blocks
from dboost.data.columns.column import CategoryColumn, Column
from dboost.data.columns.roles import ROLES
from dboost.data.columns.sparse import SparseColumn
from dboost.kernels.checksum import checksum

_MASK = 2**64 - 1


def fingerprint(chunk: Chunk) -> int:
    """Return a checksum of features and roles of a chunk: an integer from 0 to 2**64 - 1."""
    columns = chunk.columns if chunk.matrix is None else (chunk.matrix,)
    digest = chunk.n_rows
    for column in (*columns, *(getattr(chunk.roles, role.field) for role in ROLES.values())):
        digest = (digest * 0x100000001B3 ^ _of_column(column)) & _MASK
    return digest


def joined_fingerprint(parts: Sequence[int]) -> int:
    """Return the checksum of a partition, given those of its slices."""
    return parts[0] if len(parts) == 1 else zlib.crc32(repr(list(parts)).encode())


def _of_column(column: Column | None) -> int:
    if column is None:
        return 1
    if isinstance(column, SparseColumn):
        parts = _of_array(column.rows.astype(np.int64)), _of_array(column.values), zlib.crc32(repr(column.fill.item()).encode())
        return joined_fingerprint(parts)
    if isinstance(column, CategoryColumn):
        levels = [zlib.crc32(repr(level).encode()) for level in column.categories]
        return _of_array(np.array([*levels, 2**32], np.uint64)[column.codes])  # the last one for code -1 (missing)
    return _of_array(column)


def _of_array(values: np.ndarray) -> int:
    """Return a checksum of values that depends neither on their byte order, nor on how they lie in memory."""
    combined = 0
    for _, block in plain_blocks(values, 0, len(values), dtype=native(values[:0]).dtype):
        block = block.copy() if block.ctypes.data % 8 else block
        content = block.reshape(-1).view(np.uint8)
        whole = len(content) - len(content) % 8
        digest = int(checksum(content[:whole].view(np.uint64))) ^ zlib.crc32(content[whole:].tobytes())
        combined = (combined * 0x100000001B3 ^ digest) & _MASK
    return combined
