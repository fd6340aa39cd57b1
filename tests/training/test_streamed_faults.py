"""Failures of files in the middle of a fit: real faults, which raise an error and leave no files behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

import dboost
from dboost.session.session import Session
from tests.helpers.tune import Tune

ROOT = Path(__file__).parents[2]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(3000, 5)).astype(np.float32)
Y = X[:, 0] * X[:, 1]

#: Start of a program that streams every fit, to a folder of its own.
CHILD = """
    import resource, signal, sys, dask, numpy as np
    import dboost
    from dboost.tuning import tuned
    held = tuned(resident_rows=0, block_rows=1024)  # its end would change the record back
    held.__enter__()
    dask.config.set({"temporary-directory": sys.argv[1]})
    X = np.random.default_rng(0).normal(size=(40_000, 5)).astype(np.float32)
    Y = X[:, 0] * X[:, 1]
"""


def child(code: str, folder: Path) -> subprocess.Popen[str]:
    """Start a process that runs the code after START."""
    whole = textwrap.dedent(CHILD) + textwrap.dedent(code)
    return subprocess.Popen(
        [sys.executable, "-c", whole, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


@pytest.fixture
def folder(tmp_path: Path, tune: Tune) -> Iterator[Path]:
    tune(resident_rows=0, block_rows=1024)
    place = tmp_path / "temporary"
    place.mkdir()
    with dask.config.set({"temporary-directory": str(place)}):
        yield place


def fit(**options: Any) -> dboost.Booster:
    return dboost.fit(X, Y, **{"max_iter": 3, "memory_limit": "64MiB", "progress": False} | options)


def at(iteration: int, action: Callable[[], Any]) -> Callable[[dboost.Iteration], None]:
    def callback(now: dboost.Iteration) -> None:
        if now.iteration == iteration:
            action()

    return callback


def the(folder: Path, name: str) -> Path:
    """Return a file of the running fit."""
    (found,) = folder.glob(f"dboost-*/{name}")
    return found


def flip(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(5000)
        byte = file.read(1)[0]
        file.seek(5000)
        file.write(bytes([byte ^ 16]))


@pytest.mark.parametrize("growth", [{"max_leaf_nodes": 8}, {"max_leaf_nodes": None, "max_depth": 2}])
@pytest.mark.parametrize("after", [1, 2])
def test_codes_that_change_under_the_last_tree(
    folder: Path, monkeypatch: pytest.MonkeyPatch, growth: dict[str, Any], after: int
) -> None:
    """Between two passes over the files; checksums are verified when the codes are read for the last time."""
    n_asked, answers = [0], Session.sum_histograms

    def altered(session: Session, output: int, question: Any) -> Any:
        if n_asked[0] == after:
            flip(the(folder, "codes"))
        n_asked[0] += 1
        return answers(session, output, question)

    monkeypatch.setattr(Session, "sum_histograms", altered)
    with pytest.raises(dboost.DBoostError, match="codes is damaged: block 0 is not what was written"):
        fit(max_iter=1, **growth)
    assert n_asked[0] > after + (after == 1)


def test_a_folder_that_cannot_be_made(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with (
        dask.config.set({"temporary-directory": str(tmp_path / "file" / "below")}),
        pytest.raises(dboost.DBoostError, match=r"cannot write temporary files in .*file/below"),
    ):
        fit()


def test_a_callback_or_an_evaluation_set_that_fails(folder: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        fit(callbacks=at(2, lambda: 1 / 0))
    with pytest.raises(dboost.DataError, match="evaluation set 'eval'"):
        fit(eval_set=(X[:, :4], Y))


UNDER_WAY = """
    def said(now):
        print(now.iteration, flush=True)

    try:
        dboost.fit(X, Y, memory_limit="64MiB", max_iter=100_000, progress=False, callbacks=[said])
    except dboost.FitInterrupted as stopped:
        print("interrupted", stopped.iterations > 0, flush=True)
"""


@pytest.mark.slow
def test_an_interrupt_removes_the_files(tmp_path: Path) -> None:
    process = child(UNDER_WAY, tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    assert list(tmp_path.glob("dboost-*/codes"))
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=120)
    assert "interrupted True" in out, errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_files_of_a_killed_fit_go_with_the_next(tmp_path: Path) -> None:
    process = child(UNDER_WAY, tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    process.kill()
    process.communicate()
    (left,) = tmp_path.iterdir()
    assert (left / "codes").stat().st_size > 0
    deadline = time.monotonic() + 60
    with dask.config.set({"temporary-directory": str(tmp_path)}):
        while left.exists() and time.monotonic() < deadline:  # the system may take a moment to release a lock
            dboost.fit(X[:50], Y[:50], max_iter=1)
    assert list(tmp_path.iterdir()) == []


PEAK = """
    import pathlib, dask.array as da

    def fit(n_parts, limit):
        def part(block_id):
            table = np.random.default_rng(block_id[0]).normal(size=(25_000, 20)).astype(np.float32)
            return table
        X = da.map_blocks(part, chunks=((25_000,) * n_parts, (20,)), dtype=np.float32, meta=np.empty((0, 0), np.float32))
        y = X[:, 0] * X[:, 1]
        return dboost.fit(X, y, max_iter=2, memory_limit=limit, progress=False, max_leaf_nodes=15)

    def of_process(key):
        lines = pathlib.Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(key)).split()[1]) / 1024

    limit = 24 * 2**20
    fit(2, limit)  # what is loaded once
    for n_parts in (16, 64):
        pathlib.Path("/proc/self/clear_refs").write_text("5")
        before = of_process("VmRSS")
        assert fit(n_parts, limit).history["bytes_read"].min() > 25_000 * n_parts * 20
        print(of_process("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the system does not tell the peak of a while")
def test_the_peak_does_not_grow_with_the_data(tmp_path: Path) -> None:
    """32 and 128 MB of values with a limit of 24 MiB: both stay below it, plus a reserve of the allocator."""
    process = child(PEAK, tmp_path)
    out, errors = process.communicate(timeout=900)
    assert not process.returncode, errors
    small, large = map(float, out.split())
    assert small < 24 + 24 and large < 24 + 24, out
    assert large - small < 12, out
