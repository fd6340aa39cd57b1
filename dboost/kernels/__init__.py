"""Numba kernels: arrays in, arrays out.

Every kernel is compiled on first use and kept in Numba's cache (`NUMBA_CACHE_DIR` is respected). None uses `parallel=True`
(Numba's default threading layer aborts the process when two threads enter it at once) and none `fastmath` where it could
change a result, so every processor computes the same bits. Threads are ordinary Python threads that call kernels which release the lock.

Compilation is what a newcomer waits for first, so it is kept short: kernels that only other kernels call are `internal`,
which spares the code that converts Python's arguments (the larger part of a small kernel); records of arrays are looped
over rather than assigned by slices.
"""

from numba import njit

#: A kernel that Python calls. `error_model="numpy"` drops the checks for division by zero that keep loops from vectorising.
kernel = njit(nogil=True, cache=True, error_model="numpy", no_cfunc_wrapper=True)
#: A kernel that only kernels call.
internal = njit(nogil=True, cache=True, error_model="numpy", no_cfunc_wrapper=True, no_cpython_wrapper=True)
#: The same, pasted into its callers.
inlined = njit(
    nogil=True, cache=True, error_model="numpy", no_cfunc_wrapper=True, no_cpython_wrapper=True, forceinline=True
)
#: For sums of integers held in float64 only: these are exact in any order, so additions may be reordered.
any_order = njit(
    nogil=True, cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True, fastmath={"reassoc", "nsz"}
)
