"""Fits on prepared data sets, also from models and checkpoints, give the models of fits on the original values."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pytest

import dboost
from dboost import DataError, InputTypeError, ParameterError
from dboost.files.lease import BusyError
from dboost.rows.block_file import StorageError
from tests.helpers.fits import FEATURES, mixed_frame, saved

pytestmark = pytest.mark.filterwarnings("ignore::dboost.DriftWarning")
OLD, NEW = mixed_frame(500), mixed_frame(3000, seed=1)
STRANGE = NEW.assign(town=NEW["town"].replace("Gent", "Arlon"), x=NEW["x"] + 1)
#: So small that rows are streamed.
LIMIT = 64 * 10**6


class Killed(BaseException):
    """Stands for a killed process."""


def test_killed_fits_on_prepared_data_resume(tmp_path: Path) -> None:
    target = "grade"
    options: dict[str, Any] = {"max_iter": 12, "subsample": 0.7, "eval_set": {"held": OLD}, "early_stopping_rounds": 5}
    whole = dboost.fit(NEW, target, features=FEATURES, **options)
    dboost.prepare(NEW, target, tmp_path / "data", features=FEATURES)
    keeping: dict[str, Any] = {"checkpoint": tmp_path / "run", "checkpoint_every": 1}
    killed: list[int] = []

    def kill(now: dboost.Iteration) -> None:
        if now.iteration in (2, 3, 6, 9) and now.iteration not in killed:
            killed.append(now.iteration)
            raise Killed

    booster = None
    for how in ({}, {"memory_limit": LIMIT}, {"n_threads": 1}, {"memory_limit": LIMIT}, {}):
        try:
            booster = dboost.fit(tmp_path / "data", target, callbacks=[kill], **options, **keeping, **how)
        except Killed:
            continue
    assert booster is not None and len(killed) == 4
    assert saved(booster) == saved(whole)


def test_continued_fits_on_prepared_data_resume_wherever_the_rows_are(tmp_path: Path) -> None:
    old = dboost.fit(OLD, "grade", features=FEATURES, max_iter=3)
    kept: dict[str, Any] = {"start_from": old, "continue_bins": "kept"}
    common = kept | {"checkpoint": tmp_path / "run", "checkpoint_every": 1}
    dboost.prepare(STRANGE, "grade", tmp_path / "data", **kept)
    dboost.fit(tmp_path / "data", "grade", max_iter=2, **common)
    dboost.fit(STRANGE, "grade", max_iter=4, **common)
    dboost.fit(tmp_path / "data", "grade", max_iter=6, memory_limit=LIMIT, **common)
    booster = dboost.fit(tmp_path / "data", "grade", max_iter=7, **common)
    assert saved(booster) == saved(dboost.fit(STRANGE, "grade", max_iter=7, **kept))


def test_other_data_are_refused(tmp_path: Path) -> None:
    dboost.prepare(NEW, "y", tmp_path / "data", features=FEATURES)
    dboost.fit(tmp_path / "data", "y", max_iter=2, checkpoint=tmp_path / "run")
    dboost.prepare(NEW.assign(x=NEW["x"] * 2), "y", tmp_path / "data", features=FEATURES)
    with pytest.raises(DataError, match="column 'x' holds other values"):
        dboost.fit(tmp_path / "data", "y", max_iter=4, checkpoint=tmp_path / "run")


def test_a_data_set_continues_models_whose_thresholds_are_edges_of_its_bins(tmp_path: Path) -> None:
    old, other = (dboost.fit(frame, "y", features=FEATURES, max_iter=2) for frame in (OLD, mixed_frame(400, seed=7)))
    dboost.prepare(NEW, "y", tmp_path / "plain", features=FEATURES)
    dboost.prepare(NEW, "y", tmp_path / "for old", start_from=old, continue_bins="kept")
    for folder, model in (("plain", old), ("for old", other)):
        with pytest.raises(ParameterError, match=r"start_from: .* no edge of a bin.*fit on the table itself, or give prepare"):
            dboost.fit(tmp_path / folder, "y", start_from=model, max_iter=1)
    for options in ({}, {"continue_bins": "new"}):
        with pytest.raises(ParameterError, match=r"needs continue_bins='kept'.*or fit on the table itself"):
            dboost.prepare(NEW, "y", tmp_path / "more", start_from=old, **options)
    with pytest.raises(ParameterError, match="continue_bins='old' must be"):
        dboost.prepare(NEW, "y", tmp_path / "more", start_from=old, continue_bins="old")
    with pytest.raises(DataError, match="no column 'x'"):
        dboost.prepare(NEW.drop(columns="x"), "y", tmp_path / "more", start_from=old, continue_bins="kept")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["for old", "plain"]


def versions(folder: Path) -> set[str]:
    """Return the versions of the files in the folder of a data set."""
    return {path.name.split("-")[1].partition(".")[0] for path in folder.glob("*-*.parquet")}


@pytest.mark.parametrize("n_th", [1, 2, 4])
@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyboardInterrupt()])
def test_a_failed_replacement_leaves_the_old_data(
    n_th: int, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part, the sample, the lease and the description are written: whichever fails, the old data set is complete."""
    dboost.prepare(OLD, "y", tmp_path / "data", features=FEATURES)
    before = saved(dboost.fit(tmp_path / "data", "y", max_iter=2))
    calls: list[Any] = []

    def replace(source: Any, target: Any) -> None:
        calls.append(target)
        if len(calls) == n_th:
            raise error
        real(source, target)

    real = os.replace
    with monkeypatch.context() as patched:
        patched.setattr("os.replace", replace)
        with pytest.raises(StorageError if isinstance(error, OSError) else KeyboardInterrupt, match=r"data|^$"):
            dboost.prepare(NEW, "y", tmp_path / "data", features=FEATURES)
    assert len(versions(tmp_path / "data")) == 1
    assert sum(1 for _ in (tmp_path / "data").iterdir()) == 3
    assert saved(dboost.fit(tmp_path / "data", "y", max_iter=2)) == before


KILLED = """
import os, signal, sys
import dboost
from tests.helpers.fits import FEATURES, mixed_frame

real, calls = os.replace, []

def replace(source, target):
    calls.append(target)
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    real(source, target)

os.replace = replace
dboost.prepare(mixed_frame(300, seed=5), "y", sys.argv[1], features=FEATURES)
"""


@pytest.mark.slow
def test_a_process_killed_while_it_replaces_data_leaves_the_old_ones(tmp_path: Path) -> None:
    dboost.prepare(OLD, "y", tmp_path / "data", features=FEATURES)
    before = saved(dboost.fit(tmp_path / "data", "y", max_iter=2))
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "data")], cwd=root, env=environment)
    assert done.returncode == -signal.SIGKILL
    assert saved(dboost.fit(tmp_path / "data", "y", max_iter=2)) == before
    dboost.prepare(NEW, "y", tmp_path / "data", features=FEATURES)
    assert saved(dboost.fit(tmp_path / "data", "y", max_iter=2)) != before
    assert len(versions(tmp_path / "data")) == 1 and sum(1 for _ in (tmp_path / "data").iterdir()) == 3


HELD = """
import os, sys, time
import dboost
from tests.helpers.fits import FEATURES, mixed_frame

real = os.replace

def replace(source, target):
    if "part-" in str(target):  # not the lease
        print("ready", flush=True)
        time.sleep(600)
    real(source, target)

os.replace = replace
dboost.prepare(mixed_frame(300, seed=5), "y", sys.argv[1], features=FEATURES)
"""


@pytest.mark.slow
def test_one_process_at_a_time_prepares_a_folder(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    (tmp_path / "data[1]").mkdir()
    (tmp_path / "data[1]").rmdir()
    dboost.prepare(OLD, "y", tmp_path / "data[1]", features=FEATURES)
    before = saved(dboost.fit(tmp_path / "data[1]", "y", max_iter=2))
    environment = os.environ | {"PYTHONPATH": str(root), "DASK_DBOOST__LEASE": "3s"}
    command = [sys.executable, "-c", HELD, str(tmp_path / "data[1]")]
    first = subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.PIPE)
    try:
        assert first.stdout is not None and first.stdout.readline() == b"ready\n"
        busy = rf"another run \(host .*, process {first.pid}, since .*\) is preparing .*: try again when that run has ended"
        with pytest.raises(BusyError, match=busy):
            dboost.prepare(NEW, "y", tmp_path / "data[1]", features=FEATURES)
        assert saved(dboost.fit(tmp_path / "data[1]", "y", max_iter=2)) == before
    finally:
        first.kill()
        first.communicate()
    began = time.monotonic()
    with dask.config.set({"dboost.lease": "60s"}):
        dboost.prepare(NEW, "y", tmp_path / "data[1]", features=FEATURES)
    assert time.monotonic() - began < 20, "the other process was killed: nothing is waited for"
    assert saved(dboost.fit(tmp_path / "data[1]", "y", max_iter=2)) != before
    assert len(versions(tmp_path / "data[1]")) == 1


AT_ONCE = """
import os, sys, time
import dboost
from dboost.files.lease import BusyError
from tests.helpers.fits import FEATURES, mixed_frame
frame = mixed_frame(500)
dboost.prepare(frame, "y", features=FEATURES).close()
for number in range(6):
    start, folder = time.time() + 0.2, f"{sys.argv[1]}/{number % 3}"
    children = []
    for seed in range(3):
        child = os.fork()
        if child == 0:
            time.sleep(max(0.0, start - time.time()))
            try:
                dboost.prepare(frame, "y", folder, features=FEATURES, max_bins=20 + seed).close()
            except BusyError:
                os._exit(3)
            except BaseException as error:
                print(repr(error), flush=True)
                os._exit(4)
            os._exit(0)
        children.append(child)
    ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert 0 in ended and set(ended) <= {0, 3}, ended
    dboost.fit(folder, "y", max_iter=1, progress=False)
print(sorted(os.listdir(sys.argv[1])))
"""


@pytest.mark.slow
def test_of_processes_that_prepare_a_folder_at_once_each_succeeds_or_is_refused(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root), "DASK_DBOOST__LEASE": "2s"}
    done = subprocess.run(
        [sys.executable, "-c", AT_ONCE, str(tmp_path)], cwd=root, env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "['0', '1', '2']"


def test_prepare_returns_a_data_set(tmp_path: Path) -> None:
    frame = mixed_frame(500)
    with dboost.prepare(frame, "y") as data:
        assert data.n_rows == 500 and data.target == "y" and "500 rows" in repr(data)
        assert list(data.feature_names_in_) == [column for column in frame if column != "y"]
        folder = data.path
        assert folder.exists()
        for rate in (0.1, 0.3):
            whole = dboost.fit(frame, "y", max_iter=5, learning_rate=rate)
            assert dboost.fit(data, max_iter=5, learning_rate=rate).sha256 == whole.sha256
            assert dboost.fit(data, "y", max_iter=5, learning_rate=rate).sha256 == whole.sha256
        with pytest.raises(ParameterError, match="max_bins"):
            dboost.fit(data, max_bins=9)
        with pytest.raises(TypeError, match="path="):
            pickle.dumps(data)
    assert not folder.exists()
    with pytest.raises(InputTypeError, match="closed"):
        dboost.fit(data)
    data.close()

    kept = dboost.prepare(frame, "y", path=tmp_path / "kept")
    kept.close()
    assert dboost.fit(dboost.Dataset(tmp_path / "kept"), max_iter=5, learning_rate=0.3).sha256 == whole.sha256
    again = pickle.loads(pickle.dumps(dboost.Dataset(tmp_path / "kept")))
    assert again.n_rows == 500 and again.max_bins == 255
    with pytest.raises(InputTypeError, match=r"not a folder that dboost\.prepare has written"):
        dboost.Dataset(tmp_path)


@pytest.mark.slow
def test_a_forgotten_data_set_leaves_no_files() -> None:
    data = dboost.prepare(mixed_frame(100), "y")
    folder = data.path
    del data
    gc.collect()
    assert not folder.exists()


def test_a_missing_target_is_named() -> None:
    with pytest.raises(InputTypeError, match="the target is missing"):
        dboost.fit(mixed_frame(50))
    for call in (lambda: dboost.fit(mixed_frame(50), None), lambda: dboost.prepare(mixed_frame(50), None)):
        with pytest.raises(DataError, match="target y is None"):
            call()


def test_several_targets_have_their_names_whatever_the_kind_of_table(tmp_path: Path) -> None:
    frame = pd.DataFrame(np.random.default_rng(0).gamma(2, size=(60, 3)), columns=["x", "y", "z"])
    table = pa.Table.from_pandas(frame)
    (tmp_path / "rows").mkdir()
    frame.to_parquet(tmp_path / "rows" / "a.parquet", index=False)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    expected = dboost.fit(frame, ["y", "z"], max_iter=2, progress=False)
    for data in (
        frame,
        dd.from_pandas(frame, npartitions=2),
        tmp_path / "rows",
        str(tmp_path / "rows.csv"),
        pa.dataset.dataset(tmp_path / "rows"),
        table.to_reader(),
    ):
        with dboost.prepare(data, ["y", "z"], progress=False) as prepared:
            assert prepared.target == ["y", "z"]
            assert saved(dboost.fit(prepared, max_iter=2, progress=False)) == saved(expected)
    names = ("y", "z")
    for given in (frame[["y", "z"]], table.select(["y", "z"])):
        with dboost.prepare(frame[["x"]], given, progress=False) as prepared:
            assert prepared.target is None
            assert saved(dboost.fit(prepared, max_iter=2, progress=False)) == saved(expected)
            assert dboost.cv(prepared, folds=2, max_iter=2, progress=False).boosters[0].loss.link.output_names == names
        assert dboost.cv(frame[["x"]], given, folds=2, max_iter=2, progress=False).boosters[0].loss.link.output_names == names
    assert dboost.cv(frame, ["y", "z"], folds=2, max_iter=2, progress=False).boosters[0].loss.link.output_names == names
    by_values = dboost.prepare(tmp_path / "rows", frame[["y", "z"]].to_numpy(), features=["x"], progress=False)
    assert by_values.target is None
