"""Workers with Dask's memory monitor: a table larger than their memory is trained without pausing or killing a worker."""

from __future__ import annotations

import os
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

import dboost

ROWS, FEATURES, PARTS = 80_000, 28, 42
WORKER_LIMIT = 600 * 2**20


def part(k: int) -> np.ndarray:
    """Rows of few values, 19 MB in memory; the target is the last column."""
    rows = np.random.default_rng(k).integers(0, 100, (ROWS, FEATURES + 1)).astype(np.float64)
    rows[:, FEATURES] = rows[:, 0] * rows[:, 1] + rows[:, 2] ** 2 > 5000
    return rows


def lazily(n_parts: int) -> tuple[da.Array, da.Array]:
    shape = (ROWS, FEATURES + 1)
    rows = da.concatenate([da.from_delayed(dask.delayed(part)(k), shape, np.float64) for k in range(n_parts)])
    return rows[:, :FEATURES], rows[:, FEATURES]


def peak() -> int:
    """Return the peak of the resident memory of this process, in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from /proc")
def test_workers_under_dasks_limit_are_neither_paused_nor_killed(tmp_path: Path) -> None:
    """A worker's half of the raw rows and what it has loaded exceed its limit: rows are streamed, or in bites."""
    settings = {"loss": "log_loss", "max_iter": 2, "max_leaf_nodes": 15, "progress": False}
    with (
        dask.config.set({"temporary-directory": str(tmp_path)}),
        LocalCluster(
            n_workers=2, threads_per_worker=1, memory_limit=WORKER_LIMIT, dashboard_address=":0", local_directory=tmp_path
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        before = client.run(os.getpid)
        booster = dboost.fit(*lazily(PARTS), client=client, memory_limit="96MiB", **settings)
        assert (booster.history["bytes_read"] > 0).all()
        bites = settings | {"arcbites": dboost.ArcBites(trees_per_visit=1), "max_iter": 3}
        held = lazily(PARTS // 4)
        booster = dboost.fit(*lazily(PARTS), eval_set=held, client=client, memory_limit="96MiB", **bites)
        assert (booster.history["bytes_read"] > 0).all()
        peaks = client.run(peak)
        assert max(peaks.values()) < 0.8 * WORKER_LIMIT, "that is where Dask pauses"
        assert client.run(os.getpid) == before, "no worker was started anew"
        happened = [str(event) for address in before for _, event in client.get_events(address)]
        assert not any("paused" in event for event in happened)
