"""The limits of the machine for one thread: the rates at which numbers can be added to buckets and bytes can be copied.

*Additions.* Building a histogram is a chain of ``bucket[code] += value`` over all values of the table. The fastest case of this
loop, which is measured here, has sequential codes and buckets that stay in the L1 cache. No algorithm that reads every value
once can be faster on this core.

*Bytes.* All other kernels stream arrays. The limit of a pass over the rows is the speed of copying an array of that size;
reading and writing both count, so a pass takes at least (bytes read + bytes written) ÷ this speed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba import njit


@dataclass(frozen=True)
class Limits:
    """Additions and bytes per second."""

    additions: float
    bytes: float


def measure(n_rows: int, repeats: int = 5) -> Limits:
    """Measure the limits for passes over this many rows (a record of a row has eight bytes)."""
    words = np.random.default_rng(0).integers(0, 255, 1 << 14).astype(np.uint8).view(np.uint64)
    buckets = np.zeros(4 * 264, np.int64)
    times = 160
    _scatter(words, buckets, 1)
    additions = words.nbytes * times / _best(lambda: _scatter(words, buckets, times), repeats)
    source, target = np.ones(n_rows, np.int64), np.zeros(n_rows, np.int64)
    passes = max(1, 4_000_000 // n_rows)

    def copy() -> None:
        for _ in range(passes):
            np.copyto(target, source)

    copy()
    return Limits(additions, 2 * source.nbytes * passes / _best(copy, repeats))


def _best(work: Callable[[], object], repeats: int) -> float:
    """Return the processor seconds of the fastest of some runs: the limit is the possible, not the usual speed."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds)


@njit(nogil=True, error_model="numpy")
def _scatter(words, buckets, times):
    """Add to four columns, with codes extracted by fours from 64-bit words, as in `kernels.histograms`, but without rows."""
    byte, column, half = np.uint64(255), np.uint64(264), np.uint64(32)
    for _ in range(times):
        for i in range(words.size):
            word = words[i]
            for _ in range(2):
                buckets[word & byte] += 1
                buckets[((word >> np.uint64(8)) & byte) + column] += 1
                buckets[((word >> np.uint64(16)) & byte) + column * np.uint64(2)] += 1
                buckets[((word >> np.uint64(24)) & byte) + column * np.uint64(3)] += 1
                word >>= half
