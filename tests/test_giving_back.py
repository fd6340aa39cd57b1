"""Memory that was freed goes back to the system."""

from __future__ import annotations

import numpy as np
import psutil
import pytest

from dboost.cluster import giving_back
from dboost.cluster.giving_back import Tally, give_back


def test_what_was_freed_is_given_back() -> None:
    if giving_back._trim() is None:
        pytest.skip("this C library cannot be asked")
    process = psutil.Process()
    # Too small to be mapped one by one, and every hundredth stays: the library can return nothing from the end.
    arrays = [np.ones(12_000) for _ in range(1000)]
    kept = arrays[::100]
    full = process.memory_info().rss
    del arrays
    give_back()
    assert full - process.memory_info().rss > 60 * 2**20
    assert len(kept) == 10


def test_only_when_enough_has_been_read(monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[None] = []
    monkeypatch.setattr(giving_back, "give_back", lambda: times.append(None))
    tally = Tally()
    for expected in (0, 0, 0, 1, 1, 1, 1, 2):
        tally.add(16 * 2**20)
        assert len(times) == expected


def test_another_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(giving_back, "_trim", lambda: None)
    give_back()
