"""Return freed memory to the operating system, or keep it for reuse.

**While data are read**, partitions are allocated and freed, and the C library keeps the freed memory: a worker that had read
112 MiB in eight partitions kept another 112 MiB. Dask measures the size of the process and counts this as memory in use.
`trim_memory` calls glibc's ``malloc_trim``, after every `TRIM_BYTES` bytes read and when the raw values are dropped. A call
takes a few milliseconds.

**While trees grow**, the opposite is better. Every round allocates and frees a few hundred KiB of histograms and messages. If
these were returned to the system each time, their pages would have to be cleared again. ``dboost.keep-freed-memory: true``
(default false) in the Dask configuration of a worker or scheduler, or ``DASK_DBOOST__KEEP_FREED_MEMORY`` in its environment,
keeps up to `_KEPT` bytes of freed memory at the end of a heap. This setting changes the allocator of the whole process
permanently and replaces Dask's ``MALLOC_TRIM_THRESHOLD_``, so it is left to the operator of the cluster.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable

#: Bytes read between two calls of `malloc_trim`.
TRIM_BYTES = 64 * 2**20
#: Bytes of freed memory to keep at the end of a heap, and the size from which a freed array is returned to the system at once.
_KEPT, _LARGE = 64 * 2**20, 4 * 2**20
#: The parameters' numbers in glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


@functools.cache
def _trim() -> Callable[[int], int] | None:
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library
        return None
    return found


def trim_memory() -> None:
    """Return freed memory to the system; do nothing if the C library has no `malloc_trim`."""
    trim = _trim()
    if trim is not None:
        trim(0)


def keep_freed_memory() -> None:
    """Keep the memory that a round frees for the next round, if Dask's configuration enables it.

    Do nothing if the C library has no `mallopt`.

    Raises
    ------
    ParameterError
        If the configured value is neither true nor false.
    """
    from dboost import config  # imports Dask

    if not config.keep_freed_memory():
        return
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        allocation = ctypes.CDLL(None).mallopt
        allocation(_M_TRIM_THRESHOLD, _KEPT)
        allocation(_M_MMAP_THRESHOLD, _LARGE)


class TrimCounter:
    """Call `trim_memory` after every `TRIM_BYTES` bytes read. Thread-safe."""

    def __init__(self) -> None:
        self._n_bytes = 0
        self._lock = threading.Lock()

    def add(self, n_bytes: int) -> None:
        with self._lock:
            self._n_bytes += n_bytes
            due = self._n_bytes >= TRIM_BYTES
            if due:
                self._n_bytes = 0
        if due:
            trim_memory()
