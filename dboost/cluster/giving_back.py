"""Memory that was freed goes back to the system.

Partitions come and go while data are read, and the C library keeps what they leave behind: a worker that has read 112 MiB in
eight partitions was seen to keep as much again. To Dask, which watches the size of the process, that is memory in use. So the
library is asked to let go of it, every so many bytes read and when the raw values are gone. That takes a few milliseconds.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable

#: Bytes read between two times.
_EVERY = 64 * 2**20


@functools.cache
def _trim() -> Callable[[int], int] | None:
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library
        return None
    return found


def give_back() -> None:
    """Ask the C library to return what it has free; nothing where it knows no such thing."""
    trim = _trim()
    if trim is not None:
        trim(0)


class Tally:
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
            give_back()
