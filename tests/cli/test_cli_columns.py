"""Columns on the command line: some are dropped, some are kept beside predictions, and predictions go to standard output."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

import dboost
from dboost.cli import main


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(rng.normal(size=(300, 3)), columns=["a", "b", "leak"])
    frame["y"] = np.where(frame["leak"] > 0, "yes", "no")
    frame["who"] = np.arange(300) // 3
    frame["name"] = [f"row {i}" for i in range(300)]
    return frame


@pytest.fixture
def table(frame: pd.DataFrame, tmp_path: Path) -> str:
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=100)
    return str(tmp_path / "rows.parquet")


SET = ["--set", "max_iter=3", "--set", "max_leaf_nodes=4", "--quiet"]


def test_columns_that_are_dropped_are_no_features(table: str, frame: pd.DataFrame, tmp_path: Path) -> None:
    path = str(tmp_path / "model.json")
    dropped = ["--drop", "leak", "--drop", "name", "--group", "who", "--set", "subsample=0.5"]
    assert not main(["train", table, "--target", "y", *dropped, "--output", path, *SET])
    expected = dboost.fit(
        frame[["a", "b", "y", "who"]], "y", group="who", subsample=0.5, max_iter=3, max_leaf_nodes=4, progress=False
    )
    assert dboost.load(path).sha256 == expected.sha256


@pytest.mark.parametrize("command", ["cv", "prepare"])
def test_other_commands_drop_columns_too(command: str, table: str, tmp_path: Path) -> None:
    options = SET if command == "cv" else ["--output", str(tmp_path / "prepared")]
    assert not main([command, table, "--target", "y", "--drop", "leak", "--drop", "name", *options])
    if command == "prepare":
        assert [feature.name for feature in dboost.Dataset(tmp_path / "prepared").features] == ["a", "b", "who"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--drop", "leek"], "has no column 'leek'; did you mean 'leak'?"),
        (["--drop", "leak", "--set", "features=[a,b]"], "--drop and features are two ways to choose columns"),
        (["--output", "-"], "--output -: only predictions are written to standard output"),
    ],
)
def test_what_makes_no_sense(
    options: list[str], message: str, table: str, capsys: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", table, "--target", "y", *options, *SET]) == 2
    assert message in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["rows.parquet"]


@pytest.mark.parametrize("proba", [False, True])
def test_columns_are_written_beside_predictions(
    proba: bool, table: str, frame: pd.DataFrame, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    booster = dboost.fit(frame[["a", "b", "leak", "y"]], "y", max_iter=3, progress=False)
    booster.save(tmp_path / "model.json")
    options = ["--id", "name", "--id", "who", *(["--proba"] if proba else [])]
    expected = frame[["name", "who"]]
    if proba:
        expected = expected.join(booster.predict_proba(frame).add_prefix("probability_"))
    else:
        expected = expected.assign(prediction=np.asarray(booster.predict(frame)))
    for output in (tmp_path / "p.parquet", tmp_path / "p.csv"):
        assert not main(["predict", str(tmp_path / "model.json"), table, "--output", str(output), *options])
        read = pd.read_parquet(output) if output.suffix == ".parquet" else pd.read_csv(output)
        pd.testing.assert_frame_equal(read, expected, check_dtype=False)
    capsysbinary.readouterr()
    assert not main(["predict", str(tmp_path / "model.json"), table, "--output", "-", *options])
    printed = capsysbinary.readouterr()
    pd.testing.assert_frame_equal(pd.read_csv(io.BytesIO(printed.out)), expected, check_dtype=False)
    assert b"300 predictions on standard output" in printed.err


def test_a_column_beside_predictions_must_exist(table: str, frame: pd.DataFrame, tmp_path: Path, capsys: Any) -> None:
    dboost.fit(frame[["a", "b", "y"]], "y", max_iter=1, progress=False).save(tmp_path / "model.json")
    assert main(["predict", str(tmp_path / "model.json"), table, "--output", str(tmp_path / "p.csv"), "--id", "nam"]) == 2
    assert "--id: " in (said := capsys.readouterr().err) and "has no column 'nam'; did you mean 'name'?" in said
    assert not (tmp_path / "p.csv").exists()


@pytest.mark.parametrize("ending", [".parquet", ".csv"])
def test_rows_without_a_target_are_left_out_if_asked(
    ending: str, frame: pd.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    missing = np.zeros(300, bool)
    missing[[3, 100, 101, 299]] = True
    for name, rows in (("rows", frame.assign(y=frame["y"].mask(missing))), ("kept", frame[~missing])):
        rows.to_parquet(name + ending, row_group_size=90) if ending == ".parquet" else rows.to_csv(name + ending, index=False)
    options = ["--target", "y", "--drop", "leak", *SET[:4]]
    skipping = ["rows" + ending, *options, "--skip-missing-target"]
    assert main(["train", "rows" + ending, *options]) == 2
    assert "; --skip-missing-target leaves these rows out" in capsys.readouterr().err
    assert not main(["train", *skipping, "--output", "skipped.json", "--eval", "rows" + ending])
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == [
        "4 rows without a target were left out",
        "4 rows of the evaluation set without a target were left out",
    ]
    assert not main(["train", "kept" + ending, *options, "--output", "kept.json", "--eval", "kept" + ending])
    assert "left out" not in capsys.readouterr().out
    assert Path("skipped.json").read_bytes() == Path("kept.json").read_bytes()
    assert not main(["prepare", *[one for one in skipping if one not in SET[:4]], "--output", "prepared"])
    assert capsys.readouterr().out.splitlines()[0] == "4 rows without a target were left out"
    assert dboost.Dataset("prepared").n_rows == 296
    assert main(["train", "prepared", "--skip-missing-target", *SET, "--output", "p.json"]) == 2
    assert "--skip-missing-target: prepared holds prepared data" in capsys.readouterr().err
    for command in (["cv"], ["tune", "--trials", "1", "--output", "study.db", "--set", "learning_rate=0.1..0.2"]):
        assert not main([command[0], *skipping, *command[1:], "--folds", "2"])
        assert "4 rows without a target were left out" in capsys.readouterr().out


def test_targets_of_arrow_have_two_kinds_of_missing_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    y = pa.array([1.0, None, 3.0, float("nan")] * 30)
    pa.parquet.write_table(pa.table({"a": np.arange(120.0), "y": y}), tmp_path / "rows.parquet")
    options = ["--target", "y", "--skip-missing-target", "--output", str(tmp_path / "model.json"), *SET[:4]]
    assert not main(["train", str(tmp_path / "rows.parquet"), *options])
    assert capsys.readouterr().out.startswith("60 rows without a target were left out\n")
    assert dboost.load(tmp_path / "model.json").sources[0]["rows"] == 60
