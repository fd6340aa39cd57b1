"""Numba kernels: arrays in, arrays out.

Every kernel is compiled on first use and kept in Numba's cache (`NUMBA_CACHE_DIR` is respected). None uses `parallel=True`
(Numba's default threading layer aborts the process when two threads enter it at once) and none `fastmath` on results, so
every processor computes the same bits. Threads are ordinary Python threads that call kernels which release the lock.
"""

from numba import njit

#: How all kernels are compiled. `error_model="numpy"` drops the checks for division by zero that keep loops from vectorising.
kernel = njit(nogil=True, cache=True, error_model="numpy")
#: The same, pasted into the caller.
inlined = njit(nogil=True, cache=True, error_model="numpy", inline="always")
