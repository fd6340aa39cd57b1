"""`dboost train --only-new` and `dboost.continue_on` over versions of Delta and Iceberg tables: every row is learned once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from distributed import Client

import dboost
from dboost.cli import main
from dboost.data.sources.table_versions import adapter_of, added_since
from tests.helpers.clusters import ROOT
from tests.helpers.object_store import served

deltalake = pytest.importorskip("deltalake")


def rows(night: int, n: int = 200) -> pd.DataFrame:
    rng = np.random.default_rng(night)
    frame = pd.DataFrame({"night": np.full(n, night), "a": rng.normal(size=n), "b": rng.normal(size=n)})
    frame["y"] = frame["a"] * (1 + frame["b"]) + night
    return frame


class DeltaTable:
    def __init__(self, folder: Path) -> None:
        self.data = str(folder / "lake" / "rows")

    def append(self, frame: pd.DataFrame) -> None:
        deltalake.write_deltalake(self.data, frame, mode="append")

    def delete(self, condition: str) -> None:
        deltalake.DeltaTable(self.data).delete(condition)

    @property
    def table(self) -> Any:
        return deltalake.DeltaTable(self.data)


class IcebergTable:
    def __init__(self, folder: Path) -> None:
        sql = pytest.importorskip("pyiceberg.catalog.sql")
        (folder / "lake").mkdir()
        catalog = sql.SqlCatalog("here", uri=f"sqlite:///{folder}/lake/catalog.db", warehouse=f"file://{folder}/lake")
        catalog.create_namespace("lake")
        self.table = catalog.create_table("lake.rows", pa.Table.from_pandas(rows(0), preserve_index=False).schema)

    def append(self, frame: pd.DataFrame) -> None:
        self.table.append(pa.Table.from_pandas(frame, preserve_index=False))

    def delete(self, condition: str) -> None:
        self.table.delete(condition)

    @property
    def data(self) -> str:
        return str(self.table.metadata_location)


@pytest.fixture(params=[DeltaTable, IcebergTable])
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    return request.param(tmp_path)


def train(data: str, *options: str, max_iter: int = 3) -> int:
    settings = ("--set", f"max_iter={max_iter}", "--set", "max_leaf_nodes=4", "--quiet")
    return main(("train", data, "--target", "y", "--output", "model.json", "--only-new", *settings, *options))


def learned() -> list[int]:
    """Return the number of rows of each fit that is in the model."""
    return [source["rows"] for source in dboost.load("model.json").sources]


@pytest.mark.fast_cells(1)
def test_nights_over_a_table(lake: Any, capsys: pytest.CaptureFixture[str]) -> None:
    lake.append(rows(1))
    lake.append(rows(2, 50))
    assert train(lake.data) == 0 and learned() == [250]
    model = Path("model.json").read_bytes()
    assert train(lake.data) == 0 and Path("model.json").read_bytes() == model
    assert "nothing new at " in capsys.readouterr().out
    lake.append(rows(3, 70))
    lake.append(rows(4, 80))
    assert train(lake.data) == 0 and learned() == [250, 150]
    # The same rows as frames give the same bits.
    options: dict[str, Any] = {"max_iter": 3, "max_leaf_nodes": 4, "progress": False}
    first = dboost.fit(pd.concat([rows(1), rows(2, 50)]), "y", **options)
    second = dboost.fit(pd.concat([rows(3, 70), rows(4, 80)]), "y", start_from=first, **options)
    assert dboost.load("model.json").sha256 == second.sha256
    lake.append(rows(5, 90))
    lake.delete("night = 3")
    before = Path("model.json").read_bytes()
    assert train(lake.data) == 2
    error = capsys.readouterr().err
    assert "were deleted or changed since" in error and "--retrain-if-changed trains a new model on all rows" in error
    assert Path("model.json").read_bytes() == before
    assert train(lake.data, "--retrain-if-changed") == 0 and learned() == [250 + 80 + 90]
    lake.append(rows(6, 30))
    assert train(lake.data) == 0 and learned() == [420, 30]
    ledger = json.loads(Path("model.json.ledger.json").read_text())
    assert [batch["begins_anew"] for batch in ledger["settled"]] == [True, False]
    assert ledger["settled"][-1]["version"] == adapter_of(lake.table).version


@pytest.mark.fast_cells(1)
def test_rows_that_were_deleted_before_they_were_learned(lake: Any) -> None:
    lake.append(rows(1))
    assert train(lake.data) == 0
    lake.append(rows(2, 50))
    lake.append(rows(3, 60))
    lake.delete("night = 2 and a > 0")
    kept = int((rows(2, 50)["a"] <= 0).sum())
    assert train(lake.data) == 0 and learned() == [200, 60 + kept]


def test_rewritten_files_of_a_delta_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lake = DeltaTable(tmp_path)
    lake.append(rows(1))
    assert train(lake.data) == 0
    lake.append(rows(2, 50))
    lake.table.optimize.compact()
    assert len(lake.table.file_uris()) == 1
    lake.append(rows(3, 60))
    assert train(lake.data) == 0 and learned() == [200, 110]
    lake.append(rows(4, 70))
    lake.table.optimize.compact()
    lake.table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert train(lake.data) == 2
    assert train(lake.data, "--retrain-if-changed") == 0 and learned() == [200 + 50 + 60 + 70]


def test_an_update_and_a_log_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lake = DeltaTable(tmp_path)
    lake.append(rows(1))
    assert train(lake.data) == 0
    lake.table.update(updates={"y": "0.0"}, predicate="a > 1")
    assert train(lake.data) == 2
    assert "version 1 of " in (error := capsys.readouterr().err) and "(UPDATE) removes part-" in error
    lake.table.create_checkpoint()
    lake.append(rows(2))
    next(Path(lake.data, "_delta_log").glob("*1.json")).unlink()
    assert train(lake.data) == 2
    assert "the log of version 1 of " in capsys.readouterr().err


def test_another_table_and_files(lake: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake.append(rows(1))
    assert train(lake.data) == 0
    deltalake.write_deltalake(str(tmp_path / "other"), rows(2))
    assert train(str(tmp_path / "other")) == 2
    assert "has learned from" in capsys.readouterr().err
    (tmp_path / "plain").mkdir()
    rows(3).to_parquet(tmp_path / "plain" / "part-0.parquet")
    assert train(str(tmp_path / "plain")) == 2
    moved = ("--moved-from", lake.data if lake.data[-5:] != ".json" else lake.table.location())
    assert train(str(tmp_path / "other"), *moved) == 2
    assert "has learned from another table" in capsys.readouterr().err
    assert main(("train", lake.data, "--target", "y", "--output", "new.json", "--retrain-if-changed")) == 2
    assert "--retrain-if-changed needs --only-new" in capsys.readouterr().err


def test_a_table_that_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lake = DeltaTable(tmp_path)
    lake.append(rows(1))
    assert train(lake.data) == 0
    old = lake.data
    Path(old).rename(tmp_path / "moved")
    lake.data = str(tmp_path / "moved")
    lake.append(rows(2, 50))
    assert train(lake.data) == 2
    assert train(lake.data, "--moved-from", old) == 0 and learned() == [200, 50]


def test_continue_on_versions(lake: Any) -> None:
    options: dict[str, Any] = {"max_iter": 2, "max_leaf_nodes": 4, "progress": False}
    lake.append(rows(1))
    (model,) = dboost.continue_on(lake.table, "y", **options)
    assert list(dboost.continue_on(lake.table, "y", start_from=model, **options)) == []
    lake.append(rows(2, 50))
    lake.append(rows(3, 60))
    model.save("model.json")
    (model,) = dboost.continue_on(lake.data, "y", start_from="model.json", **options)
    assert [source["rows"] for source in model.sources] == [200, 110]
    assert model.sources[-1]["label"].startswith(("Delta table ", "Iceberg table "))
    lake.delete("night = 2")
    with pytest.raises(dboost.DataError, match="were deleted or changed since"):
        next(dboost.continue_on(lake.table, "y", start_from=model, **options))
    elsewhere = dboost.fit(rows(1), "y", **options)
    with pytest.raises(dboost.ParameterError, match=r"no source that names a version of .*source_name='(Delta|Iceberg) table "):
        next(dboost.continue_on(lake.table, "y", start_from=elsewhere, **options))
    with pytest.raises(dboost.ParameterError, match="source_name is the version"):
        next(dboost.continue_on(lake.table, "y", source_name="mine", **options))
    with pytest.raises(dboost.InputTypeError, match=r"model\.json is none: give a list"):
        next(dboost.continue_on("model.json", "y", **options))


def test_a_night_on_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: Client) -> None:
    monkeypatch.chdir(tmp_path)
    lake = DeltaTable(tmp_path)
    lake.append(rows(1))
    lake.append(rows(2, 50))
    expected = dboost.fit(rows(2, 50), "y", max_iter=3, progress=False)
    added = added_since(lake.table, 0)
    assert dboost.fit(added, "y", max_iter=3, client=client, progress=False).sha256 == expected.sha256


@pytest.mark.slow
def test_nights_with_a_killed_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three nights over a table in a store, the second of which is killed by SIGKILL while rows arrive, and a deletion."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("DASK_DBOOST__LEASE", "3s")  # of the killed process
    options: dict[str, Any] = {"max_iter": 300, "max_leaf_nodes": 4, "progress": False}
    with served(tmp_path), dask.config.set({"dboost.lease": "3s"}):
        lake = DeltaTable(tmp_path)
        lake.data = "s3://lake/some rows"
        night = ("train", lake.data, "--target", "y", "--output", "model.json", "--only-new", "--checkpoint", "kept", "--quiet")
        night += ("--set", "checkpoint_every=10", "--set", "max_leaf_nodes=4", "--set", "max_iter=300")
        lake.append(rows(1, 5000))
        assert main(night) == 0
        lake.append(rows(2, 6000))
        killed = subprocess.Popen([sys.executable, "-m", "dboost", *night], env=os.environ | {"PYTHONPATH": str(ROOT)})
        deadline = time.monotonic() + 300
        while not list(Path("kept").rglob("state.json")):
            assert killed.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert learned() == [5000]
        lake.append(rows(3, 7000))
        assert main(night) == 0
        first = dboost.fit(rows(1, 5000), "y", **options)
        second = dboost.fit(rows(2, 6000), "y", start_from=first, **options)
        assert dboost.load("model.json").sha256 == second.sha256, "the night was repeated with its own rows"
        assert main(night) == 0 and learned() == [5000, 6000, 7000]
        lake.delete("night = 2 and a > 1")
        assert main(night) == 2
        assert main((*night, "--retrain-if-changed")) == 0 and learned() == [18_000 - int((rows(2, 6000)["a"] > 1).sum())]
