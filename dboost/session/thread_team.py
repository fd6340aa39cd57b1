"""A team of threads that run one kernel together and stop together.

Small work runs in the calling thread. Larger work runs in a pool, even with one thread, while the caller waits in Python. So
Ctrl+C is handled promptly: it sets the abort flag, and the threads return at their next barrier.

The caller waits in intervals of `LOOK_UP_SECONDS`. The operating system may deliver a signal to any thread of the process, and
Python runs the handler only when the main thread executes bytecode; a wait without a timeout might never return.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from dboost.kernels.thread_barrier import ABORT, CONTROL_SIZE

LOOK_UP_SECONDS = 0.2


class Team:
    """A team of `n_threads` threads; use it as a context manager or call `close`.

    Parameters
    ----------
    n_threads : int
    in_caller : bool
        Run in the calling thread (only with one thread), which saves two thread switches per call.
    """

    def __init__(self, n_threads: int, *, in_caller: bool = False) -> None:
        self.n_threads = n_threads
        self.control = np.zeros(CONTROL_SIZE, np.int64)
        self._first_error: BaseException | None = None
        self._pool = None if in_caller and n_threads == 1 else ThreadPoolExecutor(n_threads, "dboost")

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        """Return ``[work(0), work(1), …]``, each computed in its own thread at the same time.

        If one call fails, the others abort with errors of their own; the first error is raised.
        """
        if self._pool is None:
            return [work(0)]
        futures = []
        self._first_error = None
        try:
            for thread in range(self.n_threads):
                futures.append(self._pool.submit(self._guarded, work, thread))
            while wait(futures, LOOK_UP_SECONDS).not_done:
                pass
            if self._first_error is not None:
                raise self._first_error
            return [future.result() for future in futures]
        except BaseException:
            self.control[ABORT] = 1
            for future in futures:
                future.exception()
            raise

    def _guarded(self, work: Callable[[int], Any], thread: int) -> Any:
        try:
            return work(thread)
        except BaseException as error:
            self._first_error = self._first_error or error  # before the flag that aborts the other threads
            self.control[ABORT] = 1
            raise

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
