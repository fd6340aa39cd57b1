"""A number that tells whether a partition that is read again is what it was.

A partition that was lost with its worker is read once more, and the model is right only if it gives the same rows in the same
order. Not every source does: a query without an order, a sample without a seed, files that somebody replaces. So all values are
put through a checksum when they are read; equal values give equal numbers, and other values hardly ever do. Categories count by
their levels, not by their codes, which depend on what a worker has read before.
"""

from __future__ import annotations

import zlib

import numpy as np

from dboost.kernels.checksum import checksum
from dboost.sources.chunk import CategoryColumn, Chunk, Column

_MASK = 2**64 - 1


def fingerprint(chunk: Chunk) -> int:
    """Of the features, target, weight and offset of a chunk: an integer from 0 to 2**64 - 1."""
    columns = chunk.columns if chunk.matrix is None else (chunk.matrix,)
    found = chunk.n_rows
    for column in (*columns, chunk.target, chunk.weight, chunk.offset):
        found = (found * 0x100000001B3 ^ _of_column(column)) & _MASK
    return found


def _of_column(column: Column | None) -> int:
    if column is None:
        return 1
    if isinstance(column, CategoryColumn):
        levels = [zlib.crc32(repr(level).encode()) for level in column.levels]
        return _of_array(np.array([*levels, 2**32], np.uint64)[column.codes])  # the last one for the code -1, missing
    return _of_array(column)


def _of_array(values: np.ndarray) -> int:
    content = np.ascontiguousarray(values).view(np.uint8).ravel()
    whole = len(content) - len(content) % 8
    words = content[:whole].view(np.uint64) if content.ctypes.data % 8 == 0 else content[:whole].copy().view(np.uint64)
    return int(checksum(words)) ^ zlib.crc32(content[whole:].tobytes())
