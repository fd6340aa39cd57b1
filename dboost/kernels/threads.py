"""How many threads a call may use, and a team of threads that run one kernel together, on a range of rows each.

The number is that of the processors that this process may use (`usable_processors`: affinity, and the quotas of its
container), and no more than the environment allows (`available_threads`, `thread_limits`). `joblib.cpu_count` and
`dask.system.cpu_count` see the quota of one control group only; systemd, Slurm and Kubernetes also set it on a group above that
of the process.

The threads of a team stop together. If calls take a fraction of a second (`QUICK`), the calling thread is one of them, which
saves up to a tenth of a millisecond a call. In longer calls all threads are those of a pool, even if there is only one, while
the caller waits in Python. So Ctrl+C is handled promptly: it sets the abort flag, and the threads return at their next barrier.
The caller waits in intervals of `LOOK_UP_SECONDS`. The operating system may deliver a signal to any thread of the process, and
Python runs the handler only when the main thread executes bytecode; a wait without a timeout might never return.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import numpy as np

from dboost.errors import ParameterError
from dboost.kernels.simd import ABORT, CONTROL_SIZE
from dboost.thread_limits import INITIAL_LIMITS, THREAD_LIMITS
from dboost.tuning import tuning

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Seconds between two looks of the waiting caller for a signal.
LOOK_UP_SECONDS = 0.2


def available_threads(
    wanted: Any, name: str = "n_threads", *, root: str = "/", environment: Mapping[str, str] = INITIAL_LIMITS
) -> int:
    """Return a number of threads by joblib's rules.

    Parameters
    ----------
    wanted : int or None
        At least 1: this number. None or -1: all processors of this process, but no more than `THREAD_LIMITS` allow; -2: one
        less, and so on.
    name : str, default "n_threads"
        Of the parameter, for messages.
    root : str, default "/"
        As in `usable_processors`.
    environment : mapping of str to str
        With the `THREAD_LIMITS` that are set. Default: those that were set when dboost was imported.

    Raises
    ------
    ParameterError
        For anything else.
    """
    if wanted is not None and (isinstance(wanted, bool) or not isinstance(wanted, int | np.integer) or wanted == 0):
        raise ParameterError(f"{name}={wanted!r} must be an integer other than 0, or None")
    if wanted is not None and wanted > 0:
        return int(wanted)
    most = min([len(usable_processors(root)), *_limits(environment)])
    return most if wanted is None else max(most + 1 + int(wanted), 1)


def _limits(environment: Mapping[str, str]) -> list[int]:
    """Return the limits that are set. "4,2" of OMP_NUM_THREADS is a limit for each level of nested teams."""
    numbers = (re.match(r"\s*\+?(\d+)\s*(,|$)", environment.get(name, ""), re.ASCII) for name in THREAD_LIMITS)
    return [int(number[1]) for number in numbers if number is not None and int(number[1]) > 0]


def usable_processors(root: str = "/") -> tuple[int, ...]:
    """Return the processors that this process may use at the same time: those of its affinity, or as many as its quota permits.

    root : folder with the files of the system, ``proc`` and ``sys``. A fraction of a processor counts as one. A quota is read
    once in a process.
    """
    affinity = sorted(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))
    return tuple(affinity[: _quota_of_process(root)])


@cache  # to read the files takes up to 2 ms
def _quota_of_process(root: str) -> int | None:
    """Return the most processors that the control groups of this process allow; None without a limit."""
    quotas = [quota for folder in _control_groups(Path(root)) if (quota := _quota(folder)) is not None]
    return math.ceil(min(quotas)) if quotas else None


def _control_groups(root: Path) -> Iterator[Path]:
    """Yield the folders of the control groups that may limit the processors of this process, with all their parents.

    Paths of groups are relative to the group that is mounted: in a container that of the host that is its outermost.
    """
    with suppress(OSError, ValueError, LookupError):
        groups = {}
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "" or "cpu" in controllers.split(","):
                groups["cgroup" if controllers else "cgroup2"] = PurePosixPath(path)
        for line in (root / "proc/self/mountinfo").read_text().splitlines():
            mount, filesystem = (half.split() for half in line.split(" - ", 1))
            kind, options = filesystem[0], filesystem[2].split(",")
            if kind in groups and (kind == "cgroup2" or "cpu" in options):
                top, group, mounted = root / mount[4].lstrip("/"), groups[kind], PurePosixPath(mount[3])
                is_inside = group.is_relative_to(mounted) and ".." not in group.parts
                path_inside = group.relative_to(mounted) if is_inside else PurePosixPath()
                yield from (top / folder for folder in (path_inside, *path_inside.parents))


def _quota(folder: Path) -> float | None:
    """Return the processors that a control group may use: of version 2, else of version 1; None without a limit."""
    with suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else _ratio(quota, period)
    with suppress(OSError, ValueError):
        return _ratio((folder / "cpu.cfs_quota_us").read_text(), (folder / "cpu.cfs_period_us").read_text())
    return None


def _ratio(quota: str, period: str) -> float | None:
    return int(quota) / int(period) if int(quota) > 0 and int(period) > 0 else None


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

        def take_items(thread: int) -> None:
            while (k := next(numbers)) < len(items):
                results[k] = work(items[k])

        self.run(take_items)
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
