"""SIGINT (^C): a fit ends at once, reports its progress, keeps its trees, and prints nothing else."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

import dboost
from dboost.session.training_rows import TrainingRows
from dboost.trees.whole_trees import WholeTrees
from tests.helpers.fits import FEATURES, TARGETS, mixed_frame

ROOT = Path(__file__).parents[2]

TRAIN = """
import sys
import numpy as np, dboost
rng = np.random.default_rng(0)
X = rng.normal(size=({n_rows}, 20)).astype(np.float32)
y = X[:, 0] + rng.normal(size=len(X))
def tell(iteration):
    if iteration.iteration == 3:
        print("three", flush=True)
def train():
    dboost.fit(X, y, max_iter=1_000_000, progress=True, n_threads={n_threads}, callbacks=[tell])
"""

CAUGHT = """
try:
    train()
except dboost.FitInterrupted as stopped:
    booster = dboost.Booster(stopped.ensemble)
    assert np.isfinite(booster.predict(X[:5])).all()
    assert booster.n_iter_ == stopped.iterations >= 3
    assert len(booster.history) == stopped.iterations
    booster.save(sys.argv[1])
    assert dboost.load(sys.argv[1]) == booster
    print(f"{stopped}; usable", flush=True)
"""

LOAD = """
import time, dask.dataframe as dd, numpy as np, pandas as pd, dboost
read = []
def part(i):
    read.append(i)
    if len(read) == 3:
        print("three", flush=True)
    time.sleep(0.3)
    return pd.DataFrame({"x": np.random.default_rng(i).normal(size=1000), "y": 1.0 * np.arange(1000)})
frame = dd.from_map(part, range(400), meta=part(0))
try:
    dboost.fit(frame, "y")
finally:
    print(len(read))
"""


def interrupted(program: str, *arguments: str) -> tuple[int, float, str, str]:
    """Run a program, send SIGINT once it has printed "three".

    Returns its exit status, the processor time that it used afterwards in seconds (elapsed time depends on other processes),
    and its output.
    """
    before = processor_seconds()
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line == "three\n", f"{line}{process.stderr.read() if process.stderr else ''}"
        time.sleep(0.1)
        until_then = sum(psutil.Process(process.pid).cpu_times()[:2])
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
        return process.returncode, processor_seconds() - before - until_then, out, err
    finally:
        process.kill()


def processor_seconds() -> float:
    """Return the processor time of all processes that were waited for so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def assert_one_clean_end(err: str) -> None:
    """Assert that the output is Python's report of the one exception, with nothing from threads or at exit."""
    for noise in ("Exception ignored", "Exception in thread", "Fatal", "leaked", "Segmentation"):
        assert noise not in err
    assert err.count("FitInterrupted:") == 1
    assert err.strip().splitlines()[-1].startswith("dboost.errors.FitInterrupted: interrupted")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_rows", "n_threads"),
    [(200_000, 2), (200_000, 1), (3_000, 1)],
    ids=["two threads", "one thread", "small data in the calling thread"],
)
def test_training_ends_at_once(n_rows: int, n_threads: int) -> None:
    program = TRAIN.format(n_rows=n_rows, n_threads=n_threads) + "train()"
    status, seconds, _, err = interrupted(program)
    assert seconds < 60, "a million iterations take hours"
    assert status in (1, 130, -signal.SIGINT)
    assert_one_clean_end(err)
    assert "FitInterrupted: interrupted after " in err
    assert " of 1000000 iterations" in err


@pytest.mark.slow
def test_what_was_learned_is_usable(tmp_path: Path) -> None:
    program = TRAIN.format(n_rows=100_000, n_threads=2) + CAUGHT
    status, seconds, out, err = interrupted(program, str(tmp_path / "model.json"))
    assert (status, out.splitlines()[-1].split(";")[-1]) == (0, " usable"), err
    assert seconds < 60, "saving and loading included"
    assert "Traceback" not in err


@pytest.mark.slow
def test_reading_ends_at_once() -> None:
    status, _, out, err = interrupted(LOAD)
    assert int(out) < 200, "reading all 400 parts takes a minute, which a busy machine does not make shorter"
    assert status in (1, 130, -signal.SIGINT)
    assert_one_clean_end(err)
    assert "interrupted while reading the data, before the first iteration" in err


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("call", ["advance", "grow_tree"], ids=["advance", "grow"])
def test_an_iteration_that_was_not_finished_leaves_nothing(target: str, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever SIGINT arrives, the model contains whole iterations only: those that the message and the metrics count."""
    frame, calls = mixed_frame(300), 0
    whole = dboost.fit(frame, target, features=FEATURES, max_iter=8)
    of = TrainingRows if call == "advance" else WholeTrees
    method = getattr(of, call)

    def sometimes(self: object, *arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 12 if call == "grow_tree" and target == "grade" else calls == 5:
            raise KeyboardInterrupt
        return method(self, *arguments)

    monkeypatch.setattr(of, call, sometimes)
    with pytest.raises(dboost.FitInterrupted, match=r"interrupted after [34] of 8 iterations") as caught:
        dboost.fit(frame, target, features=FEATURES, max_iter=8)
    stopped = caught.value
    assert stopped.iterations == (4 if call == "grow_tree" and target != "grade" else 3)
    booster = dboost.Booster(stopped.ensemble)
    assert booster.n_iter_ == len(booster.history) == stopped.iterations
    found = np.asarray(booster.predict(frame, raw_score=True))
    expected = np.asarray(whole.predict(frame, raw_score=True, iteration_range=(0, stopped.iterations)))
    assert found.tobytes() == expected.tobytes()


def test_before_the_first_iteration_there_is_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: WholeTrees, *arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(WholeTrees, "grow_tree", never)
    with pytest.raises(dboost.FitInterrupted, match="interrupted after 0 of 100 iterations") as caught:
        dboost.fit(mixed_frame(50), "y", features=FEATURES)
    assert caught.value.ensemble is None
    assert isinstance(caught.value, KeyboardInterrupt)
