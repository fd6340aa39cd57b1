"""Columns on the command line: some are dropped, some are kept beside predictions, and predictions go to standard output."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

import dboost
from dboost.cli import main, predict_command
from dboost.data.sources.filter_text import expression_of_text
from dboost.data.sources.row_filter import RowFilter
from tests.helpers.clusters import ROOT


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


@pytest.mark.parametrize(("column", "option"), [("prediction", ""), ("probability_yes", "--proba")])
def test_a_column_beside_predictions_is_none_of_theirs(
    column: str, option: str, frame: pd.DataFrame, tmp_path: Path, capsys: Any
) -> None:
    dboost.fit(frame[["a", "b", "y"]], "y", max_iter=1, progress=False).save(tmp_path / "model.json")
    frame.assign(**{column: 7.0}).to_parquet(tmp_path / "rows.parquet", index=False)
    predict = ["predict", str(tmp_path / "model.json"), str(tmp_path / "rows.parquet"), "--output"]
    assert main([*predict, str(tmp_path / "p.csv"), *option.split(), "--id", column]) == 2
    assert f"--id: the predictions have a column {column!r}, too" in capsys.readouterr().err
    assert not (tmp_path / "p.csv").exists()
    assert main([*predict, str(tmp_path / "p.csv"), *option.split(), "--id", "name", "--id", "name"]) == 0
    assert next(iter(pd.read_csv(tmp_path / "p.csv"))) == "name"


@pytest.mark.fast_cells(1)
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
    assert not main(["cv", *skipping, "--folds", "2"])
    assert "4 rows without a target were left out" in capsys.readouterr().out


_KILLED = """
import os, sys
from dboost.cli import main, predict_command

def killed(write, tables, path, place):
    next(tables)
    os.makedirs(place)
    open(os.path.join(place, "part-0.parquet"), "wb").write(b"PAR1")
    os._exit(9)

predict_command._written = killed
main(sys.argv[1:])
"""


def test_a_killed_run_does_not_keep_a_delta_table_from_being_made(
    table: str, frame: pd.DataFrame, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltalake = pytest.importorskip("deltalake")
    monkeypatch.chdir(tmp_path)
    dboost.fit(frame[["a", "b", "y"]], "y", max_iter=3, progress=False).save("model.json")
    predict = ["predict", "model.json", table, "--output", "scores", "--delta"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", _KILLED, *predict], env=environment).returncode == 9
    assert not Path("scores").exists()
    assert main(predict) == 0
    assert deltalake.DeltaTable("scores").to_pyarrow_table().num_rows == len(frame)
    write = predict_command._written

    def second(*arguments: Any) -> int:
        assert main([*predict[:4], "race", "--delta"]) == 0  # another run makes the table meanwhile
        return write(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(predict_command, "_written", lambda *given: (patched.undo(), second(*given))[1])
        assert main([*predict[:4], "race", "--delta"]) == 1
    assert "another run has made race meanwhile: try again" in capsys.readouterr().err
    assert deltalake.DeltaTable("race").to_pyarrow_table().num_rows == len(frame)
    assert {path.name for path in Path().glob(".race*")} == set()


def test_predictions_are_appended_to_a_delta_table(
    table: str, frame: pd.DataFrame, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltalake = pytest.importorskip("deltalake")
    monkeypatch.chdir(tmp_path)
    booster = dboost.fit(frame[["a", "b", "leak", "y"]], "y", max_iter=3, progress=False)
    booster.save("model.json")
    predict = ["predict", "model.json", table, "--output", "scores", "--delta", "--id", "name"]
    for night, options in enumerate([["--filter", "who < 20"], ["--filter", "who >= 20"]]):
        assert not main([*predict, *options])
        assert deltalake.DeltaTable("scores").version() == night
    assert "240 predictions in scores" in capsys.readouterr().out
    found = deltalake.DeltaTable("scores").to_pandas()
    expected = frame[["name"]].assign(prediction=np.asarray(booster.predict(frame)))
    pd.testing.assert_frame_equal(
        found.sort_values("name", ignore_index=True), expected.sort_values("name", ignore_index=True), check_dtype=False
    )
    Path("rows").mkdir()  # the second file is damaged: nothing is appended
    content = Path(table).read_bytes()
    Path("rows/part-0.parquet").write_bytes(content)
    start = pyarrow.parquet.read_metadata(table).row_group(0).column(0).data_page_offset
    Path("rows/part-1.parquet").write_bytes(content[:start] + b"x" * 200 + content[start + 200 :])
    assert main([*predict[:2], "rows", *predict[3:]]) == 2
    assert "rows, partition 1: " in capsys.readouterr().err
    assert deltalake.DeltaTable("scores").version() == 1
    assert main([*predict, "--proba"]) == 2
    assert "cannot append to the Delta table scores: " in capsys.readouterr().err
    Path("plain").mkdir()
    Path("plain/rows.parquet").write_bytes(b"")
    Path("file").write_bytes(b"")
    for output, message in (
        ("plain", "there is no Delta table, but files"),
        ("file", "there is no Delta table, but a file"),
        ("-", "name its folder by --output"),
    ):
        assert main([*predict[:4], output, *predict[5:]]) == 2
        assert message in capsys.readouterr().err
    assert main(["predict", "model.json", "scores", "--output", "scores/", "--delta"]) == 2
    assert "--output scores/ is also DATA" in capsys.readouterr().err


def test_rows_are_filtered(frame: pd.DataFrame, tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    given = frame.assign(y=frame["y"].mask(frame["who"] % 10 == 0))
    given.to_parquet("rows.parquet", row_group_size=50)
    kept = given[(given["who"] >= 20) & (given["name"] != "row 99")]
    kept.to_parquet("kept.parquet")
    chosen = ["--filter", "who >= 20 and name != 'row 99'"]
    options = ["--target", "y", "--drop", "leak", "--drop", "name", "--skip-missing-target", *SET[:4]]
    assert not main(["train", "rows.parquet", *options, *chosen, "--output", "a.json"])
    assert f"{kept['y'].isna().sum()} rows without a target were left out" in capsys.readouterr().out
    assert not main(["train", "kept.parquet", *options, "--output", "b.json"])
    assert Path("a.json").read_bytes() == Path("b.json").read_bytes()
    assert not main(["prepare", "rows.parquet", *options[:-4], *chosen, "--output", "prepared"])
    assert dboost.Dataset("prepared").n_rows == kept["y"].notna().sum()
    assert not main(["cv", "rows.parquet", *options, *chosen, "--folds", "2", "--predictions", "cv.csv"])
    assert len(pd.read_csv("cv.csv")) == kept["y"].notna().sum()
    assert not main(["predict", "a.json", "rows.parquet", *chosen, "--id", "name", "--output", "p.csv"])
    assert pd.read_csv("p.csv")["name"].tolist() == kept["name"].tolist()
    capsys.readouterr()
    for data, text, message in (
        ("rows.parquet", "who > 3 or a > 1", "a text has no 'or'"),
        ("prepared", "who > 3", "--filter: prepared holds prepared data"),
        ("rows.parquet", "whom > 3", "no column 'whom', which filter uses; did you mean 'who'?"),
        ("rows.parquet", "who > 3000", "the data have no rows for which filter (who > 3000) is true"),
    ):
        assert main(["train", data, "--target", "y", "--output", "c.json", "--filter", text]) == 2
        assert message in capsys.readouterr().err
    assert main(["train", "rows.parquet", "--target", "y", "--output", "c.json", "--set", "filter=a"]) == 2
    assert "'filter' cannot be set in --set: use --filter" in capsys.readouterr().err


KINDS = pa.table(
    {
        "a": [1, 2, None],
        "d": pa.array([date(2026, 1, 1), date(2026, 2, 1), None]),
        "t": pa.array([datetime(2026, 1, 1), datetime(2026, 2, 1), None], pa.timestamp("us", "UTC")),
        "s": ["Ulm", "it's", None],
        "b": [True, False, None],
        "x y": [1.5, -2.5e3, None],
    }
)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a>1", [1]),
        ("a == 2.0", [1]),
        ("a <> 2", [0]),
        ("d >= 2026-01-15", [1]),
        ("t >= 2026-01-15T10:00:00+02:00 AND a<3", [1]),
        ("s = 'it''s'", [1]),
        ("s in ('Ulm', 'Bonn')", [0]),
        ("b == true", [0]),
        ('"x y" < -2.4e3', [1]),
        ("a is null", [2]),
        ("a is not null and s != 'Ulm'", [1]),
        ("a in (2, 3)", [1]),
    ],
)
def test_what_a_filter_means(text: str, kept: list[int]) -> None:
    assert RowFilter(expression_of_text(text)).kept(KINDS).tolist() == kept


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a comparison begins with a column"),
        ("3 < a", "a comparison begins with a column, not with '3'"),
        ("a", "after the column a there is no comparison"),
        ("a == ", "a value is missing at the end"),
        ("a > 1 and", "a comparison begins with a column"),
        ("a > 1 b > 2", "there is 'b' after a comparison"),
        ("s == Ulm", "Ulm is no value; text is in single quotes: 'Ulm'"),
        ('s == "Ulm"', "text is in single quotes: 'Ulm'"),
        ("a in 3", "after 'in' there is no list"),
        ("a in (3", "a list has commas and ends in ')'"),
        ("a in (3, 'x')", "the values of a list are of one kind"),
        ("d > 2026-13-01", "2026-13-01: month must be"),
        ("a is missing", "after the column a there is no comparison"),
        ("__import__('os').remove('x')", "after the column __import__ there is no comparison"),
        ("a > 1; drop", "'; drop' cannot be read"),
        ("a == 99999999999999999999", "99999999999999999999 is no whole number of 64 bits"),
        ("a in (1, -9223372036854775809)", "-9223372036854775809 is no whole number"),
    ],
)
def test_filters_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(dboost.ParameterError, match=re.escape(message)):
        expression_of_text(text)


def test_targets_of_arrow_have_two_kinds_of_missing_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    y = pa.array([1.0, None, 3.0, float("nan")] * 30)
    pa.parquet.write_table(pa.table({"a": np.arange(120.0), "y": y}), tmp_path / "rows.parquet")
    options = ["--target", "y", "--skip-missing-target", "--output", str(tmp_path / "model.json"), *SET[:4]]
    assert not main(["train", str(tmp_path / "rows.parquet"), *options])
    assert capsys.readouterr().out.startswith("60 rows without a target were left out\n")
    assert dboost.load(tmp_path / "model.json").sources[0]["rows"] == 60
