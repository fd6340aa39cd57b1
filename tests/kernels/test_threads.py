"""Threads that run one kernel together wait for each other, and when one fails, all end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numba import njit

from dboost.kernels.simd import ABORT, CONTROL_SIZE, barrier
from dboost.kernels.threads import Team


@njit(nogil=True)
def in_phases(thread, n_threads, control, seen, n_phases):
    """Each thread writes its phase; after the barrier all must have written it. Return how often one had not."""
    epoch, late = np.int64(0), 0
    for phase in range(n_phases):
        seen[thread] = phase
        epoch = barrier(control, n_threads, epoch)
        if epoch < 0:
            return -1
        for other in range(n_threads):
            late += seen[other] < phase
        epoch = barrier(control, n_threads, epoch)
        if epoch < 0:
            return -1
    return late


@njit(nogil=True)
def wait_for_ever(control, n_threads):
    """Wait at a barrier that one thread never reaches; return -1 once aborted."""
    return barrier(control, n_threads, np.int64(0))


@njit(nogil=True)
def turn_for_ever(control):
    """Pass barriers alone until aborted."""
    epoch = np.int64(0)
    while epoch >= 0:
        epoch = barrier(control, 1, epoch)
    return epoch


@pytest.mark.parametrize("in_caller", [False, True])
@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_nobody_passes_before_all_have_come(n_threads: int, in_caller: bool) -> None:
    seen = np.full(n_threads, -1)
    with Team(n_threads, in_caller=in_caller) as team:
        for _ in range(3):  # the control array is used again and again
            team.control[:] = 0
            assert team.run(lambda t: in_phases(t, n_threads, team.control, seen, 300)) == [0] * n_threads


@pytest.mark.parametrize("in_caller", [False, True])
@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_failing_thread_ends_all(failing: int, in_caller: bool) -> None:
    with Team(3, in_caller=in_caller) as team:

        def work(thread: int) -> Any:
            if thread == failing:
                raise ZeroDivisionError("in one thread")
            ended.append(wait_for_ever(team.control, 3))

        ended: list[int] = []
        with pytest.raises(ZeroDivisionError, match="in one thread"):
            team.run(work)
        assert ended == [-1, -1]
        # The team can be used for the next run.
        team.control[:] = 0
        assert team.run(lambda thread: thread) == [0, 1, 2]


@pytest.mark.parametrize("in_caller", [False, True])
@pytest.mark.parametrize("failing", [0, 1, 2])
def test_what_is_raised_is_the_first_error(failing: int, in_caller: bool) -> None:
    """Not the error of a thread that leaves because another one failed, even if it comes first in the list."""
    with Team(3, in_caller=in_caller) as team:

        def work(thread: int) -> None:
            if thread == failing:
                raise ZeroDivisionError("the cause")
            wait_for_ever(team.control, 3)
            raise InterruptedError("another thread failed")

        with pytest.raises(ZeroDivisionError, match="the cause"):
            team.run(work)


@pytest.fixture
def listening() -> Iterator[None]:
    """Install Python's own handler of SIGINT, which a library may have replaced."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize("heard_by", ["main", "other"])
@pytest.mark.parametrize("n_threads", [1, 2])
def test_control_c_ends_all_at_their_next_barrier(n_threads: int, heard_by: str) -> None:
    """Also when the system delivers the signal to a thread that is not the main one."""
    work = (lambda t: turn_for_ever(team.control)) if n_threads == 1 else (lambda t: wait_for_ever(team.control, 3))
    with Team(n_threads) as team:
        turn_for_ever(np.ones(CONTROL_SIZE, np.int64))  # compile
        wait_for_ever(np.ones(CONTROL_SIZE, np.int64), 3)

        def interrupt() -> None:
            listener = threading.main_thread() if heard_by == "main" else threading.current_thread()
            signal.pthread_kill(listener.ident or 0, signal.SIGINT)

        threading.Timer(0.2, interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            team.run(work)  # endless, if the abort is not noticed
        assert team.control[ABORT] == 1


def test_small_work_runs_in_the_calling_thread() -> None:
    with Team(1, in_caller=True) as team:
        assert team.run(lambda thread: threading.get_ident()) == [threading.get_ident()]
    with Team(2, in_caller=True) as team:
        first, second = team.run(lambda thread: threading.get_ident())
        assert first == threading.get_ident() != second
    with Team(2) as team:
        assert threading.get_ident() not in team.run(lambda thread: threading.get_ident())
