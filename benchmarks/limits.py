"""What the machine can do at best, one thread: how fast numbers can be added to buckets and bytes can be copied.

*Additions.* A histogram is a chain of ``bucket[code] += value`` over all cells. The fastest that such a loop can be is with
codes that come one after the other and buckets that stay in the first cache: that is what is measured. Nothing that looks
at every cell once can be faster on this core.

*Bytes.* Everything else streams arrays. What a copy of an array as large as the rows' own manages is the limit of a pass
over them: reading and writing both counted, so a pass may take (bytes read + bytes written) ÷ this speed.
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
    """The limits for passes over so many rows (a record of a row has eight bytes)."""
    codes = np.random.default_rng(0).integers(0, 255, 1 << 16).astype(np.uint8)
    buckets = np.zeros((4, 264), np.int64)
    times = 40
    _scatter(codes, buckets, 1)
    additions = codes.size * times / _best(lambda: _scatter(codes, buckets, times), repeats)
    source, target = np.ones(n_rows, np.int64), np.zeros(n_rows, np.int64)
    passes = max(1, 4_000_000 // n_rows)

    def copy() -> None:
        for _ in range(passes):
            np.copyto(target, source)

    copy()
    return Limits(additions, 2 * source.nbytes * passes / _best(copy, repeats))


def _best(work: Callable[[], object], repeats: int) -> float:
    """Processor seconds of the fastest of some runs: the limit is what is possible, not what is usual."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds)


@njit(nogil=True, error_model="numpy")
def _scatter(codes, buckets, times):
    """Four columns side by side, as in `kernels.histograms`: additions to one bucket do not wait for each other so often."""
    for _ in range(times):
        for i in range(0, codes.size, 4):
            buckets[0, codes[i]] += 1
            buckets[1, codes[i + 1]] += 1
            buckets[2, codes[i + 2]] += 1
            buckets[3, codes[i + 3]] += 1
