"""Memory that was freed goes back to the system.

Partitions come and go while data are read, and the C library keeps what they leave behind: a worker that has read 112 MiB in
eight partitions was seen to keep as much again. To Dask, which watches the size of the process, that is memory in use. So the
library is asked to let go of it, every so many bytes read and when the raw values are gone. That takes a few milliseconds.

While trees grow it is the other way round. Every round makes and frees a few hundred KiB of histograms and messages; returned
to the system each time, they come back as pages to be cleared. With ``dboost.keep-freed-memory`` (false) in the configuration
of a worker or scheduler (``DASK_DBOOST__KEEP_FREED_MEMORY`` in its environment) what is freed in such amounts stays: as much as
`_KEPT` at the end of a heap. That changes the allocator of the whole process for good, and takes the place of Dask's own
``MALLOC_TRIM_THRESHOLD_``, so it is left to whoever runs the cluster.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable

#: Bytes read between two times.
_EVERY = 64 * 2**20
#: What may lie free at the end of a heap, and the size from which an array is returned to the system as soon as it is freed.
_KEPT, _LARGE = 64 * 2**20, 4 * 2**20
#: Their numbers in glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


@functools.cache
def _trim() -> Callable[[int], int] | None:
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library
        return None
    return found


def trim_memory() -> None:
    """Ask the C library to return what it has free; nothing where it knows no such thing."""
    trim = _trim()
    if trim is not None:
        trim(0)


def keep_freed_memory() -> None:
    """Have the C library keep what a round of a tree frees, for the next round, where Dask's configuration wants that.

    Nothing where the library knows no such thing.

    Raises
    ------
    ParameterError
        When the configuration has something else than true or false.
    """
    from dboost import config  # imports Dask

    if not config.keep_freed_memory():
        return
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        allocation = ctypes.CDLL(None).mallopt
        allocation(_M_TRIM_THRESHOLD, _KEPT)
        allocation(_M_MMAP_THRESHOLD, _LARGE)


class TrimCounter:
    """Gives back whenever enough has been read. May be used from several threads."""

    def __init__(self) -> None:
        self._n_bytes = 0
        self._lock = threading.Lock()

    def add(self, n_bytes: int) -> None:
        with self._lock:
            self._n_bytes += n_bytes
            due = self._n_bytes >= _EVERY
            if due:
                self._n_bytes = 0
        if due:
            trim_memory()
