"""The barrier at which the threads of a team meet.

All threads run the same kernel (each on its own stripes of rows, then on its own features) and wait for each other at barriers.
A waiting thread spins for a few microseconds, then yields the processor between tests. A thread that fails sets the abort flag,
so that no other thread waits for ever.

``control[0]`` counts arrivals, ``control[8]`` is the abort flag (a cache line apart).
"""

from __future__ import annotations

import numpy as np

from dboost.kernels import internal
from dboost.kernels.simd import atomic_add, atomic_load, yield_processor

#: Length of the int64 control array.
CONTROL_SIZE = 16
ABORT = 8


@internal
def barrier(control, n_threads, epoch):
    """Wait for the other threads. Return the next epoch, or -1 when the team was aborted."""
    if n_threads == 1:
        return epoch if atomic_load(control, ABORT) == 0 else np.int64(-1)
    epoch += n_threads
    atomic_add(control, 0, np.int64(1))
    looks = 0
    while atomic_load(control, 0) < epoch:
        if atomic_load(control, ABORT) != 0:
            return np.int64(-1)
        looks += 1
        if looks > 2000:
            yield_processor()
    return epoch
