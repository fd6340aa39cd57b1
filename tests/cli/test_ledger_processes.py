"""Two runs of `dboost train --only-new` for one model, as processes, in a folder and in a store: killed, frozen, at once."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import numpy as np
import pandas as pd
import pytest

import dboost
from tests.helpers.clusters import ROOT
from tests.helpers.object_store import served

pytestmark = pytest.mark.slow

#: Iterations of the first fit, of one that does not end by itself, and of the command for later files.
FIRST, ENDLESS, NIGHTLY = 500, 10**6, 3


@functools.cache
def rows() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    found = pd.DataFrame(rng.normal(size=(20_000, 4)), columns=list("abcd"))
    found["y"] = found["a"] * found["b"] + rng.normal(size=len(found))
    return found


@functools.cache
def expected() -> str | None:
    return dboost.fit(rows(), "y", max_iter=FIRST, max_leaf_nodes=4, progress=False).sha256


class Runs:
    """Commands for one model. root : folder or URL of a store."""

    def __init__(self, root: str, folder: Path) -> None:
        self.root, self._folder = root, folder
        self._processes: list[subprocess.Popen[bytes]] = []
        files, name = fsspec.url_to_fs(f"{root}/rows")
        files.makedirs(name, exist_ok=True)
        rows().to_parquet(f"{root}/rows/part-0.parquet", index=False)

    def start(self, max_iter: int = FIRST) -> subprocess.Popen[bytes]:
        command = [
            *(sys.executable, "-m", "dboost", "train", f"{self.root}/rows", "--target", "y", "--output", self.model),
            *("--only-new", "--checkpoint", f"{self.root}/kept", "--set", "checkpoint_every=10"),
            *("--set", "max_leaf_nodes=4", "--set", f"max_iter={max_iter}"),
        ]
        log = self._log(len(self._processes))
        with log.open("wb") as file:
            environment = os.environ | {"DASK_DBOOST__LEASE": "3s"}
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT)
        self._processes.append(process)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> tuple[int, str]:
        """Return exit status and output of a run, after its end."""
        process.wait(timeout=300)
        return process.returncode, self.said(process)

    def said(self, process: subprocess.Popen[bytes]) -> str:
        return self._log(self._processes.index(process)).read_text()

    def _log(self, number: int) -> Path:
        return self._folder / f"run-{number}.log"

    @property
    def model(self) -> str:
        return f"{self.root}/model.json"

    def until(self, condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + 300
        while not condition():
            assert process.poll() is None and time.monotonic() < deadline, self.said(process)
            time.sleep(0.02)

    def has_checkpoint(self) -> bool:
        return any(name.endswith("/state.json") for name in self.names())

    def names(self) -> list[str]:
        """Files of the model, by names relative to the root."""
        files, root = fsspec.url_to_fs(self.root)
        files.invalidate_cache()
        return sorted(name[len(root) + 1 :] for name in files.find(root) if "/rows/" not in name)

    def check(self, leftover: str = "-") -> None:
        """Assert that the model is that of an undisturbed first fit, and that nothing else is left.

        leftover : folder that may have files.
        """
        assert dboost.load(self.model).sha256 == expected()
        names = [name for name in self.names() if not name.startswith(leftover)]
        assert names == ["model.json", "model.json.ledger.json"]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


#: Leases in both are tested in `test_lease.py`; here two runs at once use both, and other moments one of them.
@pytest.fixture(params=["folder", "store"])
def runs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runs]:
    logs = tmp_path / "logs"
    logs.mkdir()
    if request.param == "folder":
        (tmp_path / "lake").mkdir()
        runs = Runs(str(tmp_path / "lake"), logs)
        try:
            yield runs
        finally:
            runs.close()
        return
    with served(tmp_path):
        runs = Runs("s3://lake", logs)
        try:
            yield runs
        finally:
            runs.close()


@pytest.mark.parametrize("runs", ["store"], indirect=True)
def test_the_nightly_run_during_the_first_fit(runs: Runs) -> None:
    first = runs.start(ENDLESS)
    runs.until(runs.has_checkpoint, first)
    status, said = runs.end(runs.start(NIGHTLY))
    assert status == 1, said
    assert "another run (host " in said and said.rstrip().endswith("try again when that run has ended")
    assert first.poll() is None and runs.has_checkpoint()
    first.send_signal(signal.SIGTERM)
    status, said = runs.end(first)
    assert status == 143 and "the checkpoint in" in said, "it was not disturbed"
    assert "model.json" not in runs.names()


@pytest.mark.parametrize("runs", ["folder"], indirect=True)
def test_the_nightly_run_after_the_first_fit_was_killed_for_good(runs: Runs) -> None:
    first = runs.start()
    runs.until(runs.has_checkpoint, first)
    first.send_signal(signal.SIGKILL)
    first.wait()
    status, said = runs.end(runs.start(NIGHTLY))
    assert status == 2, said
    assert f"is being trained on 1 file with max_iter={FIRST}, not {NIGHTLY}: finish that by the same command as before" in said
    status, said = runs.end(runs.start())
    assert status == 0 and "iteration 1/" not in said, said
    runs.check()


def test_two_equal_runs_at_once(runs: Runs) -> None:
    processes = [runs.start() for _ in range(3)]
    ended = [runs.end(process) for process in processes]
    done = [said for status, said in ended if status == 0]
    assert sum(f"{FIRST} iterations" in said for said in done) == 1, ended
    assert all(f"{FIRST} iterations" in said or "nothing new" in said for said in done)
    assert {status for status, _ in ended} <= {0, 1}
    runs.check()


@pytest.mark.parametrize("runs", ["store"], indirect=True)
def test_a_frozen_run_is_replaced_and_gives_up_when_it_wakes(runs: Runs) -> None:
    frozen = runs.start()
    runs.until(runs.has_checkpoint, frozen)
    frozen.send_signal(signal.SIGSTOP)
    status, said = runs.end(runs.start())
    assert status == 0 and f"{FIRST} iterations" in said and "iteration 1/" not in said, said
    frozen.send_signal(signal.SIGCONT)
    status, said = runs.end(frozen)
    assert status == 1 and "another run" in said
    runs.check(leftover="kept/")  # it may have been frozen while it wrote its checkpoint


@pytest.mark.parametrize("runs", ["folder"], indirect=True)
def test_a_terminated_run_gives_up_its_lease_at_once(runs: Runs) -> None:
    first = runs.start()
    runs.until(runs.has_checkpoint, first)
    first.send_signal(signal.SIGTERM)
    assert runs.end(first)[0] == 143
    assert "model.json.lease.json" not in runs.names()
    status, said = runs.end(runs.start())
    assert status == 0 and "waiting" not in said
    runs.check()
