"""A full disk: every writer names the file and what to do, leaves no draft, and the command ends with the status of a retry."""

from __future__ import annotations

import gc
import os
import re
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dboost
from dboost.cli import DONE, FAILED, main
from dboost.data import ReadOptions, open_table
from dboost.files.lease import Lease
from dboost.files.spool import PrivateDirectory
from dboost.prepared import dataset_files
from dboost.rows.block_file import BlockFile, Field
from tests.helpers.clusters import threads_cluster
from tests.helpers.fits import mixed_frame
from tests.helpers.places import rows_in_files

ROOT = Path(__file__).parents[2]
SIZE = 256 * 1024
PAGE = 4096


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path_factory.mktemp("disk")
    options = ["-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    if sys.platform != "linux" or os.geteuid() or subprocess.run(["mount", *options], capture_output=True).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield folder
    gc.collect()  # SQLite closes the file of a study that could not be made when its connection is collected
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files on another disk: rows, and a model."""
    folder = tmp_path_factory.mktemp("files")
    frame = mixed_frame(3000)[["x", "size", "age", "town", "y"]]
    frame.to_parquet(folder / "rows.parquet")
    dboost.fit(frame, "y", max_iter=3, progress=False).save(folder / "model.json")
    return {"rows": str(folder / "rows.parquet"), "model": str(folder / "model.json")}


def fill(folder: Path, free_pages: int) -> None:
    """Use the disk up but for some pages."""
    with open(folder / "other", "wb") as file:
        file.write(bytes(SIZE - free_pages * PAGE))


def left_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.name != "other")


def clear(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


#: Files that a run keeps for the next one: the folder of a checkpoint with whole files, and what `--only-new` has read.
KEPT = re.compile(r"run|run/(state\.json|trees-\d+-\d+\.json)|model\.json\.ledger\.json")
ROWS = mixed_frame(3000)[["x", "size", "age", "town", "y"]]


def fitted() -> dboost.Booster:
    return dboost.fit(ROWS[["x", "age", "y"]], "y", max_iter=20, progress=False)


def write_lease(folder: Path) -> None:
    with Lease(f"{folder}/lease.json", "is writing"):
        pass


def spool(folder: Path) -> None:
    with dask.config.set({"temporary-directory": str(folder)}):
        open_table(da.zeros((40_000, 2), chunks=20_000), np.zeros(40_000), options=ReadOptions(retain_bytes=0))


def fit_in_files(folder: Path) -> None:
    with rows_in_files(), dask.config.set({"temporary-directory": str(folder)}):
        dboost.fit(ROWS, "y", max_iter=2, memory_limit="64MiB", progress=False)


def write_part(folder: Path) -> None:
    from dboost.data import RowRoles
    from dboost.data.columns.chunk import BinnedPartition

    codes = np.random.default_rng(0).integers(0, 255, 300_000).astype(np.uint8)
    dataset_files.write_part(str(folder), "0" * 12, BinnedPartition((codes,), RowRoles(np.arange(300_000.0))), 0)


WRITERS: dict[str, Callable[[Path], Any]] = {
    "model": lambda folder: fitted().save(folder / "model.json"),
    "compact model": lambda folder: fitted().save(folder / "model.dboost"),
    "export": lambda folder: fitted().to_xgboost_json(folder / "xgboost.json"),
    "checkpoint": lambda folder: dboost.fit(
        ROWS, "y", max_iter=60, checkpoint=folder / "run", checkpoint_every=1, progress=False
    ),
    "prepared": lambda folder: dboost.prepare(ROWS, "y", folder / "data"),
    "part": write_part,
    "lease": write_lease,
    "spool": spool,
    "block file": lambda folder: BlockFile(folder / "rows", [Field("y", "<f8")], 100_000, sealed=False, block_rows=100_000),
    "rows of a fit": fit_in_files,
    "directory": lambda folder: PrivateDirectory(folder).close(),
}


@pytest.mark.fast_cells(10)
@pytest.mark.parametrize("free_pages", [0, 1, 3])
@pytest.mark.parametrize("writer", WRITERS)
def test_writers_leave_nothing_and_name_the_remedy(small: Path, writer: str, free_pages: int) -> None:
    fill(small, free_pages)
    try:
        WRITERS[writer](small)
    except dboost.DBoostError as error:
        assert str(small) in str(error) and "free some space" in str(error), error
        assert [name for name in left_in(small) if not KEPT.fullmatch(name)] == []
    else:
        assert writer in ("directory", "lease") and (free_pages or writer == "directory")
    finally:
        clear(small)


#: Arguments of commands, whose model, rows and folders on another disk are in braces.
COMMANDS: dict[str, str] = {
    "train": "train {rows} --target y --set max_iter=40 --output {disk}/model.json",
    "train, history": "train {rows} --target y --set max_iter=2 --output {away}/model.json --history {disk}/history.csv",
    "train, checkpoint": "train {rows} --target y --set max_iter=60 --checkpoint {disk}/run --output {away}/model.json",
    "train, ledger": "train {rows} --target y --set max_iter=40 --only-new --output {disk}/model.json",
    "predict": "predict {model} {rows} --output {disk}/p.parquet",
    "predict, CSV": "predict {model} {rows} --output {disk}/p.csv",
    "predict, folder": "predict {model} {rows} --output {disk}/p/",
    "predict, Delta": "predict {model} {rows} --output {disk}/table --delta",
    "prepare": "prepare {rows} --target y --output {disk}/data",
    "report": "inspect {model} --html {disk}/report.html",
    "cv": "cv {rows} --target y --folds 2 --set max_iter=2 --predictions {disk}/held.parquet --output {away}/scores.csv",
}


@pytest.mark.fast_cells(6)
@pytest.mark.parametrize("free_pages", [0, 2])
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_can_be_repeated(
    small: Path, tmp_path: Path, files: dict[str, str], capsys: pytest.CaptureFixture[str], command: str, free_pages: int
) -> None:
    fill(small, free_pages)
    try:
        status = main([part.format(disk=small, away=tmp_path, **files) for part in COMMANDS[command].split()])
        told = capsys.readouterr().err
        if free_pages and command in ("train, history", "predict", "cv"):  # small files find room
            assert status == DONE
            return
        assert status == FAILED, (status, told)
        assert str(small) in told and "free some space" in told
        assert [name for name in left_in(small) if not KEPT.fullmatch(name)] == [], told
    finally:
        clear(small)


def run(script: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, cwd=ROOT, env=os.environ | environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_kernels_are_compiled_where_their_cache_is_full(small: Path) -> None:
    fill(small, 1)
    try:
        script = """
            import numpy as np
            from dboost.kernels.checksum import checksum
            print(checksum(np.arange(20, dtype=np.uint64)) > 0)
        """
        assert run(script, NUMBA_CACHE_DIR=str(small)) == "True\n"
        assert [path for path in small.rglob("*") if path.is_file() and path.name != "other"] == []
    finally:
        clear(small)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no limit of the size of files")
def test_a_limit_of_the_size_of_files_is_like_a_full_disk(files: dict[str, str], tmp_path: Path) -> None:
    script = f"""
        import resource
        from dboost.cli import main
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        print(main(["predict", {files["model"]!r}, {files["rows"]!r}, "--output", "{tmp_path}/p.parquet"]))
    """
    assert run(script) == f"{FAILED}\n"
    assert list(tmp_path.iterdir()) == []


def test_parts_that_workers_could_write_are_removed(small: Path) -> None:
    """The second part does not fit: the first one must not take the room of the next try."""
    fill(small, 12)
    rows = pd.DataFrame({"x": np.random.default_rng(0).normal(size=30_000)}).assign(y=lambda frame: frame["x"] ** 2)
    lazy = dd.from_map(lambda first: rows.iloc[:1000] if first else rows.iloc[1000:], [True, False], meta=rows.iloc[:0])
    try:
        with threads_cluster(1, 1) as client:
            with pytest.raises(dboost.DBoostError, match="free some space"):
                dboost.prepare(lazy, "y", small / "data", client=client)
            assert left_in(small) == []
            (small / "other").unlink()
            rows = rows.iloc[:5000]
            with dboost.prepare(rows, "y", small / "data", client=client) as data:
                assert data.n_rows == 5000
    finally:
        clear(small)


def test_a_lease_that_could_not_be_written_keeps_no_run_waiting(small: Path) -> None:
    fill(small, 0)
    try:
        with pytest.raises(dboost.ModelFileError, match="free some space"), Lease(f"{small}/lease.json", "is writing"):
            pass
        (small / "other").unlink()
        began = time.monotonic()
        with Lease(f"{small}/lease.json", "is writing"):
            assert time.monotonic() - began < 30
        assert left_in(small) == []
    finally:
        clear(small)
