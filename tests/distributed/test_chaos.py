"""Random fits on clusters of processes that are killed, stopped, paused and restarted; see `tests.chaos`."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.chaos.fits import Spec, checkpoint_of, draw, fit, write_table
from tests.chaos.run import ROUND, Run, keep_going
from tests.helpers.clusters import ROOT


def test_what_happens_follows_from_the_seed(tmp_path: Path) -> None:
    one, same, other = (Run(seed, tmp_path) for seed in (5, 5, 6))
    jobs = range(3 * ROUND)
    assert [one.plan(job) for job in jobs] == [same.plan(job) for job in jobs]
    assert [one.plan(job) for job in jobs] != [other.plan(job) for job in jobs]


@pytest.mark.slow
def test_a_minute_of_chaos(tmp_path: Path) -> None:
    """The seed differs every time; the output contains it and the command that reproduces a failure."""
    summary = keep_going(int(time.time()), minutes=1, folder=tmp_path)
    assert not summary.violations, str(summary)
    assert summary.jobs > 0 and summary.fits["identical"] > 0 and summary.faults.total() > 0


@pytest.mark.slow
def test_a_wrong_model_would_be_noticed(tmp_path: Path) -> None:
    """A violation is reported with the command that reproduces it."""
    with Run(1, tmp_path, calm=True) as run:
        for spec in run.specs(0):
            run.expect(spec, "something else")
        run.job(0)
        (violation,) = run.summary.violations
    assert violation.kind == "different model"
    assert "--seed 1 --only 0" in violation.report.read_text()


@pytest.mark.slow
def test_nothing_outlives_an_interrupted_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.chaos", "--seed", "2", "--minutes", "5", "--folder", str(tmp_path)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert process.stdout is not None
    for line in process.stdout:
        if "job 0" in line:
            break
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 5
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode != 0
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive


@pytest.mark.slow
def test_fits_of_all_kinds_are_drawn(tmp_path: Path) -> None:
    specs = [draw(random.Random(k)) for k in range(200)]
    assert {spec.form for spec in specs} == {"from_map", "array", "parquet", "path", "persisted", "memory"}
    assert {spec.base for spec in specs} == {None, "continued", "refitted"}
    assert {spec.evaluation for spec in specs} == {None, "lazy", "path", "memory"}
    for name in ("weight", "offset", "apart", "checkpoint", "validation_fraction"):
        assert {bool(getattr(spec, name)) for spec in specs} == {True, False}
    assert any("arcbites" in spec.options for spec in specs) and any("memory_limit" in spec.options for spec in specs)


def test_a_fit_of_files_is_what_it_says(tmp_path: Path) -> None:
    spec = Spec(800, 5, 3, 0, options={"max_iter": 3, "progress": False}, evaluation="memory", weight=True)
    write_table(spec, tmp_path)
    once = fit(spec, tmp_path)
    assert once == fit(spec, tmp_path)
    assert once != fit(Spec(800, 5, 3, 1, options={"max_iter": 3, "progress": False}), _written(tmp_path))
    assert not checkpoint_of(spec, tmp_path).exists()


def _written(folder: Path) -> Path:
    write_table(Spec(800, 5, 3, 1), folder)
    return folder
