"""Freed memory is returned to the system."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import dask
import numpy as np
import psutil
import pytest

from dboost.errors import ParameterError
from dboost.session import memory
from dboost.session.memory import TrimCounter, keep_freed_memory, trim_memory


def test_what_was_freed_is_given_back() -> None:
    if memory._trim() is None:
        pytest.skip("this C library cannot be asked")
    process = psutil.Process()
    # Too small to be mapped individually, and every hundredth is kept: the library can return nothing from the end of the heap.
    arrays = [np.ones(12_000) for _ in range(1000)]
    kept = arrays[::100]
    full = process.memory_info().rss
    del arrays
    trim_memory()
    assert full - process.memory_info().rss > 60 * 2**20
    assert len(kept) == 10


def test_only_when_enough_has_been_read(monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[None] = []
    monkeypatch.setattr(memory, "trim_memory", lambda: times.append(None))
    tally = TrimCounter()
    for expected in (0, 0, 0, 1, 1, 1, 1, 2):
        tally.add(16 * 2**20)
        assert len(times) == expected


def test_another_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_trim", lambda: None)
    trim_memory()


class Library:
    """A C library that records the settings of its allocator."""

    def __init__(self) -> None:
        self.options: list[tuple[int, int]] = []

    def mallopt(self, option: int, value: int) -> None:
        self.options.append((option, value))


@pytest.mark.parametrize(
    ("given", "times"), [({}, 0), ({"dboost.keep-freed-memory": False}, 0), ({"dboost.keep-freed-memory": True}, 2)]
)
def test_the_allocator_is_changed_only_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, bool], times: int
) -> None:
    library = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    with dask.config.set(given):
        keep_freed_memory()
    assert len(library.options) == times


def test_the_allocator_takes_what_it_is_told() -> None:
    if memory._trim() is None:
        pytest.skip("this C library cannot be asked")
    code = "import ctypes; from dboost.session import memory as g; m = ctypes.CDLL(None).mallopt; "
    code += "print(m(g._M_TRIM_THRESHOLD, g._KEPT), m(g._M_MMAP_THRESHOLD, g._LARGE))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "1 1\n"


@pytest.mark.parametrize("given", ["yes", 1, None])
def test_what_is_neither_true_nor_false(given: object) -> None:
    with (
        dask.config.set({"dboost.keep-freed-memory": given}),
        pytest.raises(ParameterError, match=r"^dboost\.keep-freed-memory="),
    ):
        keep_freed_memory()
