"""A team of threads that run one kernel together, on a range of rows each, and stop together.

If calls take a fraction of a second (`QUICK`), the calling thread is one of them, which saves up to a tenth of a millisecond a
call. In longer calls all threads are those of a pool, even if there is only one, while the caller waits in Python. So Ctrl+C is
handled promptly: it sets the abort flag, and the threads return at their next barrier. The caller waits in intervals of
`LOOK_UP_SECONDS`. The operating system may deliver a signal to any thread of the process, and Python runs the handler only when
the main thread executes bytecode; a wait without a timeout might never return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import count
from typing import Any, TypeVar

import numpy as np

from dboost.kernels.simd import ABORT, CONTROL_SIZE
from dboost.tuning import tuning

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Seconds between two looks of the waiting caller for a signal.
LOOK_UP_SECONDS = 0.2


class Team:
    """A team of `n_threads` threads; use it as a context manager or call `close`.

    Parameters
    ----------
    n_threads : int
    in_caller : bool
        The calling thread is one of them: for calls that take a fraction of a second.
    """

    def __init__(self, n_threads: int, *, in_caller: bool = False) -> None:
        self.n_threads = n_threads
        self.control = np.zeros(CONTROL_SIZE, np.int64)
        self._first_error: BaseException | None = None
        self._in_caller = in_caller
        n_others = n_threads - in_caller
        self._pool = ThreadPoolExecutor(n_others, "dboost") if n_others else None

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        """Return ``[work(0), work(1), …]``, each computed in its own thread at the same time.

        If one call fails, the others abort with errors of their own; the first error is raised.
        """
        self.control[ABORT] = 0  # of an earlier call that failed
        if self._pool is None:
            return [work(0)]
        futures = []
        self._first_error = None
        try:
            for thread in range(int(self._in_caller), self.n_threads):
                futures.append(self._pool.submit(self._guarded, work, thread))
            results = [self._guarded(work, 0)] if self._in_caller else []
            while wait(futures, LOOK_UP_SECONDS).not_done:
                pass
            if self._first_error is not None:
                raise self._first_error
            return results + [future.result() for future in futures]
        except BaseException as error:
            first = self._first_error or error
            self.control[ABORT] = 1
            for future in futures:
                future.exception()
            if first is error:
                raise
            raise first from None

    def map(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Return ``[work(item) for item in items]``; each thread takes the next item when it has finished one."""
        results: dict[int, Result] = {}
        numbers = count()

        def some(thread: int) -> None:
            while (k := next(numbers)) < len(items):
                results[k] = work(items[k])

        self.run(some)
        return [results[k] for k in range(len(items))]

    @property
    def is_halted(self) -> bool:
        """Whether a thread has failed, or the user interrupted the running call."""
        return bool(self.control[ABORT])

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


#: Below this many cells a pass over all of them takes less than a tenth of a second.
QUICK = 50_000_000


def is_small(n_rows: int, n_features: int) -> bool:
    """Return whether one thread is faster than two."""
    return n_rows * n_features < tuning().small_cells


def team_for(n_rows: int, n_features: int, n_threads: int) -> Team:
    """Return a team for passes over a table of this size, of at most `n_threads` threads."""
    n_threads = 1 if is_small(n_rows, n_features) else n_threads
    return Team(n_threads, in_caller=n_rows * n_features < QUICK)
