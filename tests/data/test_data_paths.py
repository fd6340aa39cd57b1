"""Parquet and CSV files, folders, globs and URLs are tables like any other."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import dask
import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st

import dboost
from dboost.data import ReadOptions, open_table
from dboost.data.sources import paths
from dboost.errors import DataError
from dboost.schema import Feature
from dboost.tuning import tuned
from tests.helpers.examples import examples
from tests.helpers.table_forms import content
from tests.helpers.tune import Tune

N = 40


def rows() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    return pd.DataFrame(
        {
            "a": np.arange(N),
            "b": np.where(rng.random(N) < 0.3, np.nan, rng.random(N)),
            "c": rng.choice(["x", "y", "Zürich"], N),
            "y": rng.integers(0, 2, N),
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four files each of Parquet, CSV and compressed CSV, and other files that must be ignored."""
    for kind in ("parquet", "csv", "gz"):
        (tmp_path / kind).mkdir()
    for i in range(4):
        part = rows().iloc[10 * i : 10 * i + 10]
        part.to_parquet(tmp_path / "parquet" / f"part-{i}.parquet", index=False)
        part.to_csv(tmp_path / "csv" / f"part-{i}.csv", index=False)
        part.to_csv(tmp_path / "gz" / f"part-{i}.csv.gz", index=False)
    (tmp_path / "csv" / "README.txt").write_text("not data")
    (tmp_path / "csv" / ".part-9.csv").write_text("hidden")
    (tmp_path / "parquet" / "_SUCCESS").write_text("")
    return tmp_path


@pytest.mark.fast_cells(3)
@pytest.mark.parametrize(
    "path", ["parquet", "parquet/*.parquet", "parquet/part-[0-3].parquet", "csv", "csv/*.csv", "gz", "gz/*.csv.gz", "csv/"]
)
def test_all_files_in_order(folder: Path, path: str) -> None:
    for data in (str(folder / path) + ("/" if path.endswith("/") else ""), f"file://{folder}/{path}"):
        with open_table(data, "y") as table:
            assert table.features == (Feature("a"), Feature("b"), Feature("c", ("Zürich", "x", "y")))
            assert table.target_dtype == "int64"
            got = content(table)
        for name in "abc":
            np.testing.assert_array_equal(got[name], rows()[name])
        np.testing.assert_array_equal(got["<target>"], rows()["y"])


def _compressed(text: bytes, ending: str) -> bytes:
    if ending == "zip":
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("rows/a.csv", text)
            file.writestr("__MACOSX/._a.csv", "of another system")
        return archive.getvalue()
    if ending == "zst":
        with pa.BufferOutputStream() as stored:
            with pa.CompressedOutputStream(stored, "zstd") as stream:
                stream.write(text)
            return stored.getvalue().to_pybytes()
    return {"gz": gzip, "bz2": bz2, "xz": lzma}[ending].compress(text)


@pytest.mark.parametrize("ending", ["gz", "bz2", "xz", "zip", "zst"])
def test_compressed_files(ending: str, tmp_path: Path) -> None:
    text, file = rows().to_csv(index=False).encode(), tmp_path / f"a.csv.{ending}"
    contents = {"one": _compressed(text, ending)}
    if ending != "zip":  # as tools that write in parallel, or append, make them
        contents["two streams"] = _compressed(text[:70], ending) + _compressed(text[70:], ending)
    for content_of in contents.values():
        file.write_bytes(content_of)
        with open_table(file, "y") as table:
            np.testing.assert_array_equal(content(table)["a"], rows()["a"])
        with open_table(file, "y", features=["b"], options=ReadOptions(most_bytes=2**20)) as table:
            np.testing.assert_array_equal(content(table)["b"], rows()["b"])
    whole, half = contents["one"], len(contents["one"]) // 2
    for damaged in (whole[:half], whole[:half] + b"\xff" * 9 + whole[half + 9 :], text):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=rf"cannot read .*a\.csv\.{ending}"):
            open_table(file, "y")


@pytest.mark.parametrize(("names", "n"), [(["a.csv", "b.csv"], 2), (["a/"], 0)])
def test_archives_of_several_files(names: list[str], n: int, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.csv.zip", "w") as file:
        for name in names:
            file.writestr(name, rows().to_csv(index=False) if name.endswith("v") else "")
    with pytest.raises(DataError, match=rf"a\.csv\.zip holds {n} files.*must hold one"):
        open_table(tmp_path / "a.csv.zip", "y")


@pytest.mark.parametrize("path", ["a", "a/*/*.parquet", "a/**/*.parquet", "a/*"])
def test_links_to_folders(path: str, tmp_path: Path) -> None:
    for folder in ("a/1", "b/deep"):
        (tmp_path / folder).mkdir(parents=True)
    rows()[:20].to_parquet(tmp_path / "a/1/part.parquet", index=False)
    rows()[20:].to_parquet(tmp_path / "b/part.parquet", index=False)
    rows()[:5].to_parquet(tmp_path / "b/deep/part.parquet", index=False)
    (tmp_path / "a/2.parquet").symlink_to(tmp_path / "b")
    expected = rows() if path == "a/*/*.parquet" else rows()[20:] if path == "a/*" else pd.concat([rows(), rows()[:5]])
    expected = expected if path != "a/*" else pd.concat([expected, rows()[:5]])
    for data in (tmp_path / path, [str(tmp_path / path)]):
        found = content(open_table(data, "y"))["a"]
        assert sorted(found) == sorted(expected["a"])
    assert len(content(open_table(tmp_path / "a/2.parquet", "y"))["a"]) == 25
    if path == "a/*":  # which does not look into the folders of other names
        return
    for target in ("a", "a/1", "."):
        (tmp_path / "a/1/link").symlink_to(tmp_path / target)
        with pytest.raises(DataError, match=r"contains itself, by the link .*a/1/link"):
            open_table(tmp_path / "a", "y")
        (tmp_path / "a/1/link").unlink()
    (tmp_path / "b/back").symlink_to(tmp_path / "a")  # by two links
    with pytest.raises(DataError, match=r"contains itself, by the link .*back"):
        open_table(tmp_path / "a", "y")


def test_hidden_and_unfinished_files_are_not_read(tmp_path: Path) -> None:
    for path in ("a", "sub/c", "_temporary/0/a", ".staging/a", ".d", "_e"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        rows().to_parquet(tmp_path / f"{path}.parquet", index=False)
        rows().drop(columns="c").to_csv(tmp_path / f"{path}.csv", index=False)
    rows().to_parquet(tmp_path / "F.PARQUET", index=False)
    (tmp_path / "_metadata").write_bytes(b"of some of the files, in an older version")
    for kind in ("parquet", "csv"):
        for glob, n_files in {"**/*": 2, "*": 1, "_*/**/*": 1}.items():
            assert len(content(open_table(f"{tmp_path}/{glob}.{kind}", "y"))["a"]) == n_files * N
    for data in (tmp_path, f"{tmp_path}/", [tmp_path]):
        with pytest.raises(DataError, match="both Parquet and CSV"):
            open_table(data, "y")
    for path in tmp_path.rglob("*.csv"):
        path.unlink()
    for data in (tmp_path, f"{tmp_path}/", [tmp_path]):
        assert len(content(open_table(data, "y"))["a"]) == 3 * N
    assert len(content(open_table(tmp_path / "_temporary", "y"))["a"]) == N, "asked for by name"


@pytest.mark.parametrize("text", ["one\ntwo", "one\n1,2,3,4", 'a ""quoted""\n"'])
def test_line_breaks_in_quotes_on_the_boundary_of_blocks(text: str, tmp_path: Path, tune: Tune) -> None:
    file = tmp_path / "a.csv"
    frame = rows().assign(c=text)
    frame.to_csv(file, index=False)
    whole = content(open_table(file, "y", features=["a", "b"]))
    n_refused = 0
    for block_bytes in range(100, 160, 3):  # no rows are lost or changed: they are all read, or there is an error
        tune(csv_block_bytes=block_bytes)
        try:
            found = content(open_table(file, "y", features=["a", "b"]))
        except DataError as error:
            n_refused += 1
            assert re.search(r"a line break in quotes falls on the boundary|more fields|contains NaN", str(error))
            continue
        for name in ("a", "b", "<target>"):
            np.testing.assert_array_equal(found[name], whole[name])
    assert n_refused


def test_rows_with_more_fields_than_the_header(tmp_path: Path, tune: Tune) -> None:
    header, *lines = rows().to_csv(index=False).splitlines()
    file = tmp_path / "a.csv"
    file.write_text("\n".join([header, *(f"{line}," for line in lines)]))
    with pytest.raises(DataError, match=r"a\.csv: .*more fields than the header \(a comma at the end"):
        open_table(file, "y")
    for block_bytes in (2**20, 200):
        tune(csv_block_bytes=block_bytes)
        for k in (0, 1, 30):
            file.write_text("\n".join([header, *lines[:k], f"{lines[k]},7", *lines[k + 1 :]]))
            for features in (None, ["a"]):
                with pytest.raises(DataError, match=r"a\.csv: .*fields"):
                    open_table(file, "y", features=features)


def test_headers_of_several_lines(tmp_path: Path, tune: Tune) -> None:
    tune(csv_block_bytes=200)
    body = rows().to_csv(index=False)
    for start, name in (("\n\n", "a"), ("\ufeff", "a"), ("", '"first\nname"')):
        (tmp_path / "a.csv").write_text(start + body.replace("a,b,c,y", f"{name},b,c,y"), encoding="utf-8")
        got = content(open_table(tmp_path / "a.csv", "y"))
        np.testing.assert_array_equal(got[name.strip('"')], rows()["a"])
        np.testing.assert_array_equal(got["<target>"], rows()["y"])


def test_headers_that_repeat_a_name(tmp_path: Path) -> None:
    for header in ("a,b,a,y", '"a",b,a,y', "\ufeffa,b,a,y\r"):
        (tmp_path / "a.csv").write_text(f"{header}\n1,2,3,4\n5,6,7,8\n", encoding="utf-8")
        with pytest.raises(DataError, match=r"a\.csv has several columns named 'a'"):
            open_table(tmp_path / "a.csv", "y")


def test_integers_of_any_size_are_numbers(tmp_path: Path, tune: Tune) -> None:
    big = np.where(np.arange(N) < N // 2, "99999999999999999999999", np.arange(N).astype(str))
    for values in (
        big,
        big[::-1],
        np.where(np.arange(N) == 35, "-9223372036854775809", big),
        np.where(np.arange(N) < 3, "", big),
    ):
        rows().assign(a=values).to_csv(tmp_path / "a.csv", index=False)
        expected = pd.to_numeric(pd.Series(values), errors="coerce").astype(float)
        for block_bytes in (2**20, 200):
            tune(csv_block_bytes=block_bytes)
            np.testing.assert_array_equal(content(open_table(tmp_path / "a.csv", "y"))["a"], expected)


def test_parquet_files_with_other_columns(tmp_path: Path, client: Client) -> None:
    whole, part, last = rows()[["a", "b", "y"]], rows()[["a", "y"]], rows().iloc[:0]
    booster = dboost.fit(whole, "y", max_iter=1)
    few = dboost.fit(part, "y", max_iter=1)
    for first, second in ((whole, part), (part, whole)):
        for k, one in enumerate((first, second, last)):
            one.to_parquet(tmp_path / f"part-{k}.parquet")
        message = r"part-[01]\.parquet has no column 'b', which .*part-[01]\.parquet has"
        for on_workers in ({}, {"client": client}):
            with pytest.raises(DataError, match=message):
                dboost.fit(tmp_path, "y", max_iter=1, **on_workers)
        with pytest.raises(DataError, match="has no column 'b'"):
            booster.predict(tmp_path).compute()
        assert dboost.fit(tmp_path, "y", features=["a"], max_iter=1).features == few.features
        assert len(few.predict(tmp_path).compute()) == 2 * N
    # A file with other kinds of values in a column, also as a dictionary.
    for kind in (str, "category"):
        whole.to_parquet(tmp_path / "part-1.parquet")
        whole.assign(a=rows()["c"].astype(kind)).to_parquet(tmp_path / "part-0.parquet")
        with pytest.raises(DataError, match=r"column 'a' holds text in .*part-0\.parquet, but not in .*part-1\.parquet"):
            dboost.fit(tmp_path, "y", max_iter=1)
        assert len(dboost.fit(tmp_path, "y", features=["b"], max_iter=1).predict(tmp_path).compute()) == 2 * N


def test_globs_of_folders_that_are_named_like_files(folder: Path) -> None:
    for k, kind in enumerate(("parquet", "csv")):
        (folder / kind).rename(folder / f"{k}.{kind}")
        shutil.copytree(folder / f"{k}.{kind}", folder / f"again.{kind}")
        assert len(content(open_table(f"{folder}/*.{kind}", "y"))["a"]) == 2 * N
        assert len(content(open_table(f"{folder}/again.*", "y"))["a"]) == N
        shutil.rmtree(folder / f"again.{kind}")


def test_names_that_look_like_globs(tmp_path: Path) -> None:
    names = ("a[1]", "a1", "b*", "b", "bc", "d?", "de", "e]", "f[", "[g]", "h[!x]")
    for k, name in enumerate(names):
        rows().assign(a=k).to_parquet(tmp_path / f"{name}.parquet")
        rows().assign(a=k).to_csv(tmp_path / f"{name}.csv", index=False)
    for kind in ("parquet", "csv"):
        for k, name in enumerate(names):
            assert content(open_table(tmp_path / f"{name}.{kind}", "y"))["a"].tolist() == [k] * N
        for some in ([4, 0, 2], [0, 1, 2]):
            found = content(open_table([tmp_path / f"{names[k]}.{kind}" for k in some], "y"))["a"]
            assert found.tolist() == np.repeat(some, N).tolist()
    for path in tmp_path.glob("*.csv"):
        path.unlink()
    assert sorted(set(content(open_table(tmp_path, "y"))["a"])) == list(range(len(names)))


def test_files_of_carriage_returns_are_read_whole(tmp_path: Path, tune: Tune) -> None:
    tune(csv_block_bytes=200)
    for end in ("\r", "\n", "\r\n"):
        (tmp_path / "a.csv").write_bytes(rows().to_csv(index=False).replace("\n", end).encode())
        got = content(open_table(tmp_path / "a.csv", "y"))
        for name in "abc":
            np.testing.assert_array_equal(got[name], rows()[name])


@pytest.mark.parametrize(
    "names",
    [["part1", "part2", "part10"], ["1²2", "1²3"], ["²", "³"], ["a①1", "a①2"], ["x٢", "x٣", "x١٠"], ["a²/1", "a²/10"]],
)
def test_numbered_files_are_in_the_order_of_their_numbers(names: list[str], tmp_path: Path) -> None:
    for i, name in enumerate(names):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pd.DataFrame({"a": [float(i)], "y": [0]}).to_parquet(tmp_path / f"{name}.parquet")
    for path in (tmp_path, f"{tmp_path}/**/*.parquet"):
        assert content(open_table(path, "y"))["a"].tolist() == [*range(len(names))]


def test_object_stores_come_through_fsspec(folder: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(folder / "csv"), "/bucket/csv", recursive=True)
    memory.put(str(folder / "parquet"), "/bucket/parquet", recursive=True)
    try:
        for path in ("memory://bucket/csv/*.csv", "memory://bucket/csv", "memory://bucket/parquet/*.parquet"):
            assert content(open_table(path, "y"))["a"].tolist() == list(range(N))
    finally:
        memory.rm("/bucket", recursive=True)


def test_csv_types_are_judged_by_all_blocks(tmp_path: Path, tune: Tune) -> None:
    """In the first block the columns are integers, text and empty. Later blocks contain floats, digits as text, and words."""
    lines = ["n,code,late,y"] + ["1,a7,,0"] * 20 + ["2.5,007,,1"] * 20 + [",,word,0"] * 20
    (tmp_path / "a.csv").write_text("\n".join(lines))
    tune(csv_block_bytes=40, csv_sample_rows=5)
    table = open_table(tmp_path / "a.csv", "y")
    assert table.features == (Feature("n"), Feature("code", ("007", "a7")), Feature("late", ("word",)))
    got = content(table)
    np.testing.assert_array_equal(got["n"], [1] * 20 + [2.5] * 20 + [np.nan] * 20)
    assert got["late"].tolist() == [None] * 40 + ["word"] * 20
    assert table.target_dtype == "int64"


def test_csv_files_with_columns_in_another_order(tmp_path: Path, tune: Tune) -> None:
    frame = rows()
    frame[:20].to_csv(tmp_path / "0.csv", index=False)
    frame[20:][["y", "c", "b", "a"]].to_csv(tmp_path / "1.csv", index=False)
    tune(csv_block_bytes=50)
    got = content(open_table(tmp_path, "y"))
    assert got["a"].tolist() == list(range(N))
    np.testing.assert_array_equal(got["b"], frame["b"])


def test_files_with_differing_columns(folder: Path) -> None:
    rows().drop(columns="b").to_csv(folder / "csv" / "part-9.csv", index=False)
    with pytest.raises(DataError, match="partition 4: there is no column 'b'"):
        open_table(folder / "csv", "y")
    with pytest.raises(DataError, match="'b'"):
        open_table(folder / "csv", "y", features=["b"])
    (folder / "csv" / "part-9.csv").unlink()
    rows().assign(z=1).to_csv(folder / "csv" / "part-9.csv", index=False)
    with pytest.raises(DataError, match="partition 4: there is a column 'z' that other partitions do not have"):
        open_table(folder / "csv", "y")
    assert open_table(folder / "csv", "y", features=["a"]).n_rows == 2 * N


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nothing.csv", "there is no file at .*nothing.csv"),
        ("nothing/*.parquet", r"there is no file at .*nothing/\*.parquet"),
        ("csv/README.txt", "README.txt is neither Parquet nor CSV"),
        ("", "holds both Parquet and CSV files"),
        ("empty.csv", "cannot read .*empty.csv: No columns"),
        ("bad.csv", "cannot read .*bad.csv: Error tokenizing data"),
        ("bad.csv.gz", "cannot read .*bad.csv.gz"),
        ("bad.parquet", "cannot read .*bad.parquet"),
        ("cut.parquet", "cannot read .*cut.parquet"),
    ],
)
def test_errors_name_the_file(folder: Path, path: str, message: str) -> None:
    if path.startswith(("bad", "empty", "cut")):
        text = {"e": b"", "b": b"a,y\n1,2\n1,2,3,4\n", "c": (folder / "parquet/part-0.parquet").read_bytes()[:-100]}
        (folder / path).write_bytes(text[path[0]])
    with pytest.raises(DataError, match=message):
        open_table(str(folder / path), "y")


CELLS = {
    "number": ["1", "2.5", "-3", "1e3", "007"],
    "text": ["a7", "word", "1_000", "12-04"],
    "missing": ["", "NA"],
    "truth": ["True", "false", "TRUE"],
}


@st.composite
def csv_columns(draw: st.DrawFn) -> list[list[str]]:
    """Columns of 30 cells; some mix text with numbers, anywhere."""
    columns = []
    for _ in range(draw(st.integers(1, 3))):
        usual = draw(st.sampled_from(sorted(CELLS)))
        cells = [CELLS[usual][k % len(CELLS[usual])] for k in range(30)]
        for row in draw(st.sets(st.integers(0, 29), max_size=3)):
            cells[row] = draw(st.sampled_from([cell for kind in CELLS.values() for cell in kind]))
        columns.append(cells)
    return columns


@pytest.mark.slow
@examples(100, deadline=None)
@given(csv_columns(), st.lists(st.integers(8, 400), min_size=1, max_size=3), st.integers(1, 30))
def test_kinds_of_csv_columns_do_not_depend_on_the_blocks(columns: list[list[str]], sizes: list[int], sample: int) -> None:
    names = [f"c{j}" for j in range(len(columns))]
    lines = [",".join([*names, "y"])] + [",".join([*cells, str(i % 2)]) for i, cells in enumerate(zip(*columns, strict=True))]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a.csv").write_text("\n".join(lines))
        for k, size in enumerate([10**6, *sizes]):
            sizes_of_blocks = tuned(csv_block_bytes=size, csv_sample_rows=1000 if k == 0 else sample)
            with sizes_of_blocks, open_table(Path(folder, "a.csv"), "y") as table:
                found.append((table.features, {name: list(values) for name, values in content(table).items()}))
    for feature, cells in zip(found[0][0], columns, strict=True):
        assert feature.is_categorical == any(cell in CELLS["text"] for cell in cells)
    for features, values in found[1:]:
        assert features == found[0][0]
        for name, expected in found[0][1].items():
            pd.testing.assert_series_equal(pd.Series(values[name]), pd.Series(expected), check_dtype=False)


def mixed_csv(path: Path, n: int = 300) -> None:
    """Write a table whose first rows are numbers; text follows in a feature, in the target and in a declared category."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.random(n), "late": np.arange(n) % 7, "kind": np.arange(n) % 3, "y": np.arange(n) % 2})
    frame = frame.astype({"late": str, "kind": str, "y": str})
    frame.loc[200:210, "late"] = "unknown"
    frame.loc[250:280, "y"] = "maybe"
    frame.loc[220:, "kind"] = "other"
    frame.to_csv(path, index=False)


@pytest.mark.fast_cells(1)
@pytest.mark.parametrize("declared", ["from_dtype", ["kind"]])
def test_late_text_gives_the_same_model_for_every_division(tmp_path: Path, tune: Tune, declared: Any, client: Client) -> None:
    mixed_csv(tmp_path / "a.csv")
    options = {"max_iter": 3, "min_samples_leaf": 5, "categorical_features": declared}
    tune(csv_sample_rows=20)
    if declared != "from_dtype":
        options["features"] = ["x", "kind"]
    whole = dboost.fit(tmp_path / "a.csv", "y", **options)
    assert whole.classes_.tolist() == ["0", "1", "maybe"]
    tune(csv_block_bytes=900)
    assert dboost.fit(tmp_path / "a.csv", "y", **options) == whole
    tune(least_csv_block_bytes=500)
    assert dboost.fit(tmp_path / "a.csv", "y", memory_limit="200MiB", **options) == whole
    assert dboost.fit(tmp_path / "a.csv", "y", client=client, **options) == whole


def test_a_missing_path_is_also_a_file_not_found_error(folder: Path) -> None:
    frame = rows()
    booster = dboost.fit(frame[["a", "y"]], "y", max_iter=1)
    for path in (folder / "nothing.parquet", folder / "nothing", folder / "nothing*.csv"):
        for use in (
            lambda path=path: dboost.fit(path, "y"),
            lambda path=path: dboost.prepare(path, "y"),
            lambda path=path: dboost.fit(frame, "y", eval_set=path),
            lambda path=path: dboost.fit([folder / "csv/part-0.csv", path], "y"),
            lambda path=path: booster.predict(path),
            lambda path=path: dboost.load(path),
            lambda path=path: dboost.Dataset(path),
        ):
            with pytest.raises(FileNotFoundError, match=re.escape(path.name)) as error:
                use()
            assert isinstance(error.value, dboost.DBoostError | ValueError)


def test_a_folder_without_data_files_is_not_a_missing_one(folder: Path) -> None:
    (folder / "other").mkdir()
    for names in ((), ("_SUCCESS", "notes.txt")):
        for name in names:
            (folder / "other" / name).write_text("")
        for use in (lambda: dboost.fit(folder / "other", "y"), lambda: dboost.fit([folder / "csv", folder / "other"], "y")):
            with pytest.raises(DataError, match=r"the folder .*other has no data files") as error:
                use()
            assert not isinstance(error.value, FileNotFoundError)


def in_folders(root: Path, *folders: str, **columns: Any) -> Path:
    """Write a Parquet file with ten rows into each folder."""
    for k, folder in enumerate(folders):
        (root / folder).mkdir(parents=True, exist_ok=True)
        some = rows().iloc[10 * (k % 4) : 10 * (k % 4) + 10]
        some.assign(**columns).to_parquet(root / folder / "part-0.parquet", index=False)
    return root


def in_names(path: Any, *names: str, like: Any = None) -> list[dict[str, Any]]:
    """Return the values of the columns in the names of folders, one for each file."""
    frame = paths.open_path(path, like)
    assert list(frame.columns) == ["a", "b", "c", "y", *names]
    first = frame.map_partitions(lambda part: part.iloc[:1]).compute()
    return [{name: None if pd.isna(row[name]) else row[name] for name in names} for _, row in first.iterrows()]


def test_only_folders_below_the_path_have_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = in_folders(tmp_path / "date=2024-05-01" / "a [1]", "day=1/site=x", "day=2/site=y")
    days = [{"day": 1, "site": "x"}, {"day": 2, "site": "y"}]
    monkeypatch.chdir(base)
    (tmp_path / "link").symlink_to(base)
    for path in (
        base, f"{base}/", f"file://{base}", ".", "../a [1]", base / "day=1" / "..", tmp_path / "link", "day=*/*/*.parquet",
        "day=[12]/site=*/part-0.parquet", "*/*/*.parquet", ["day=1", "day=2"], [f"day={k + 1}/site={'xy'[k]}" for k in (0, 1)],
        [f"day={k + 1}/site={'xy'[k]}/part-0.parquet" for k in (0, 1)],
    ):  # fmt: skip
        assert in_names(path, "day", "site") == days, path
    assert in_names(base / "day=1", "site") == [{"site": "x"}]
    assert in_names("day=2/*/part-0.parquet", "site") == [{"site": "y"}]
    for path in (base / "day=1/site=x", base / "day=1/site=x/part-0.parquet", "day=1/site=x/*.parquet", ["day=1/site=x"]):
        assert in_names(path) == [{}]
    assert in_names(tmp_path, "date", "day", "site")[0] == {"date": "2024-05-01"} | days[0]


@pytest.mark.fast_cells(3)
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", "2", "__HIVE_DEFAULT_PARTITION__"], [1, 2, None]),
        (["01", "02", "10"], [1, 2, 10]),
        (["1", "10", "x"], ["1", "10", "x"]),
        (["2024-05-01", "2024-05-02"], ["2024-05-01", "2024-05-02"]),
        (["5", "3000000000"], ["5", "3000000000"]),
        (["0.5", "1"], ["0.5", "1"]),
        (["Z%C3%BCrich%2FS", "a b", "x=y"], ["Zürich/S", "a b", "x=y"]),
        (["__HIVE_DEFAULT_PARTITION__"], [None]),
    ],
)
def test_values_in_the_names_of_folders(tmp_path: Path, values: list[str], expected: list[Any]) -> None:
    in_folders(tmp_path, *(f"k={value}" for value in values))
    assert [one["k"] for one in in_names(tmp_path, "k")] == expected
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path), "/b/above=1/t", recursive=True)
    try:
        assert [one["k"] for one in in_names("memory://b/above=1/t", "k")] == expected
    finally:
        memory.rm("/b", recursive=True)


def test_columns_of_folders_and_files_with_the_same_name(tmp_path: Path) -> None:
    """The folder decides, as in polars and Spark; a file that is in no such folder keeps its own column, or has none."""
    in_folders(tmp_path / "t", "c=1", "c=2")
    assert in_values(tmp_path / "t", "c") == [1] * 10 + [2] * 10
    in_folders(tmp_path / "dates", "day=1", "day=2", day=pd.Timestamp("2024-05-01"))
    assert in_values(tmp_path / "dates", "day") == [1] * 10 + [2] * 10
    in_folders(tmp_path / "deep", "day=1", ".")
    assert sorted(in_values(tmp_path / "deep", "day"), key=str) == [1] * 10 + [None] * 10


def in_values(path: Path, name: str) -> list[Any]:
    return [None if pd.isna(one) else one for one in paths.open_path(path)[name].compute()]


def test_models_of_folders(tmp_path: Path) -> None:
    """The columns of other folders have the kinds of the model."""
    in_folders(tmp_path / "text", *(f"k={value}" for value in ("x", "2", "3", "__HIVE_DEFAULT_PARTITION__")))
    in_folders(tmp_path / "text again", "k=2")
    options: dict[str, Any] = {"max_iter": 3, "min_samples_leaf": 3, "features": ["a", "k"], "progress": False}
    booster = dboost.fit(tmp_path / "text", "y", **options)
    assert booster.ensemble.features[1] == Feature("k", ("2", "3", "x"))
    again = paths.open_path(tmp_path / "text again", booster.ensemble.features)
    assert again["k"].compute().tolist() == ["2"] * 10
    assert len(booster.predict(tmp_path / "text again").compute()) == 10
    with pytest.raises(DataError, match="the data have no column 'k'"):
        booster.predict(tmp_path / "text" / "k=2")
    numbers = dboost.fit(rows().assign(k=np.arange(N) % 5), "y", **options)
    assert len(numbers.predict(tmp_path / "text again").compute()) == 10, "a numeric feature"


def test_files_of_a_list_may_have_types_that_mean_the_same(tmp_path: Path) -> None:
    values = np.array(["x", "y", "z"])[np.arange(N) % 3]
    kinds = {
        "ordered": pa.DictionaryArray.from_arrays(np.arange(N, dtype=np.int32) % 3, ["x", "y", "z"], ordered=True),
        "plain": pa.array(values).dictionary_encode(),
        "text": pa.array(values),
        "large": pa.array(values, pa.large_string()),
        "view": pa.array(values, pa.string_view()),
        "missing": pa.nulls(N),
    }
    numbers = {"ordered": pa.int8(), "plain": pa.int64(), "text": pa.float32(), "large": pa.float64(), "view": pa.uint16()}
    y = np.arange(N) % 2
    for name, column in kinds.items():
        number = pa.array(np.arange(N)).cast(numbers.get(name, pa.int32()))
        pq.write_table(pa.table({"c": column, "n": number, "y": y}), tmp_path / f"{name}.parquet")
    for order in (kinds, list(kinds)[::-1], ["text", "ordered"], ["plain", "large"], ["view", "text"], ["plain", "ordered"]):
        files = [tmp_path / f"{name}.parquet" for name in order]
        frame = pd.concat([pd.read_parquet(file).astype({"c": object}) for file in files], ignore_index=True)
        options: dict[str, Any] = {"max_iter": 2, "min_samples_leaf": 3, "progress": False}
        found = dboost.fit(files, "y", **options)
        assert found == dboost.fit(frame, "y", **options)
        np.testing.assert_array_equal(found.predict(files).compute(), found.predict(frame))


def test_predictions_have_the_index_of_the_files(tmp_path: Path) -> None:
    frame = rows().drop(columns="c")
    booster = dboost.fit(frame, "y", max_iter=1)
    for index in (frame.index[::-1], pd.Index(frame["a"] * 3, name="id"), pd.RangeIndex(5, 45), pd.Index(list("ab") * 20)):
        frame.set_axis(index).to_parquet(tmp_path / "a.parquet")
        found = booster.predict(tmp_path / "a.parquet").compute()
        assert (found.index.tolist(), found.index.name) == (index.tolist(), index.name)
        assert list(paths.open_path(tmp_path / "a.parquet").columns) == ["a", "b", "y"]


def replaced(file: Path, how: str) -> None:
    """Replace a file by one with other values: also of the same size, and with the same time of the last change."""
    before, stat = file.read_bytes(), file.stat()
    if file.suffix == ".csv":
        content_ = before.replace(b"\n2", b"\n9") if how != "longer" else before + before.splitlines(keepends=True)[-1]
    else:
        frame = pd.read_parquet(file)
        frame["b"] = frame["b"].to_numpy()[::-1]
        frame.to_parquet(file.with_name("draft"), index=False)
        content_ = file.with_name("draft").read_bytes()
        file.with_name("draft").unlink()
    if how == "renamed":
        file.with_name("draft").write_bytes(content_)
        file.with_name("draft").rename(file)
    else:
        file.write_bytes(content_)
    if how == "same time":
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert file.read_bytes() != before


@pytest.mark.fast_cells(4)
@pytest.mark.parametrize("how", ["in place", "longer", "renamed", "same time", "removed"])
@pytest.mark.parametrize("kind", ["csv", "gz", "parquet"])
def test_files_replaced_after_they_were_listed(folder: Path, kind: str, how: str) -> None:
    booster = dboost.fit(rows()[["a", "b", "y"]], "y", max_iter=1)
    lazy, frame = booster.predict(folder / kind), paths.open_path(folder / kind)
    file = sorted((folder / kind).glob("part-2*"))[0]
    if how == "removed":
        file.unlink()
    elif kind == "gz":
        file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes()).replace(b"\n2", b"\n3")))
    else:
        replaced(file, how)
    lazy.partitions[0].compute()
    message = "part-2.*No such file" if how == "removed" else "part-2.* was changed or replaced while the data were read"
    with pytest.raises(DataError, match=message):
        lazy.partitions[2].compute()
    with pytest.raises(DataError, match=message):
        dboost.fit(frame, "y", features=["a", "b"], max_iter=1)
    if how != "removed":
        assert len(booster.predict(folder / kind).compute()) >= N, "a new call reads the new files"


def test_files_replaced_in_a_store_or_on_another_host(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(folder / "csv"), "/bucket/csv", recursive=True)
    try:
        frame = paths.open_path("memory://bucket/csv")
        frame.compute()
        memory.pipe("/bucket/csv/part-1.csv", memory.cat("/bucket/csv/part-1.csv").replace(b"\n1", b"\n9"))
        with pytest.raises(DataError, match=r"part-1\.csv was changed or replaced"):
            frame.compute()
    finally:
        memory.rm("/bucket", recursive=True)
    # Workers on other hosts may have copies with other times, but the files must not be newer than the listing.
    frame = paths.open_path(folder / "csv")
    monkeypatch.setattr("platform.node", lambda: "another")
    os.utime(folder / "csv" / "part-1.csv", ns=(10**9, 10**9))
    assert len(frame.compute()) == N
    (folder / "csv" / "part-1.csv").touch()
    with pytest.raises(DataError, match=r"part-1\.csv was changed or replaced"):
        frame.compute()


def test_the_home_folder_may_be_written_as_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: Client) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    for folder in (home, elsewhere, home / "temporary"):
        folder.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(elsewhere)
    rows().to_csv(home / "rows.csv", index=False)
    short: dict[str, Any] = {"max_iter": 2, "min_samples_leaf": 2, "progress": False}
    of_file = dboost.fit("~/rows.csv", "y", **short, checkpoint="~/checkpoint")
    assert dboost.fit([Path("~/rows.csv")], "y", **short) == of_file == dboost.fit("file://~/rows.csv", "y", **short)
    of_file.save("~/model.json")
    assert dboost.load(Path("~/model.json")) == of_file
    of_file.to_xgboost_json("~/of_xgboost.json")
    assert dboost.from_xgboost("~/of_xgboost.json", levels={"c": ["x", "y", "Zürich"]}).n_iter_ == 2
    with dask.config.set({"temporary-directory": "~/temporary"}), dboost.prepare(rows(), "y") as temporary:
        assert temporary.path.is_relative_to(home / "temporary")
    for path in ("~/prepared", Path("~/prepared")):
        data = dboost.prepare(rows(), "y", path)
        assert data.path == home / "prepared"
        assert dboost.Dataset(path).n_rows == N
        assert dboost.fit(path, **short).n_iter_ == dboost.fit(data, **short).n_iter_ == 2
        assert len(dboost.cv(path, **short, folds=2).boosters) == 2
    stored = dboost.prepare(rows(), "y", "~/stored", client=client)
    assert stored.path == home / "stored"
    assert dboost.Dataset("~/stored").n_rows == N
    assert {one.name for one in home.iterdir()} >= {"checkpoint", "model.json", "prepared", "stored"}
    assert not list(elsewhere.iterdir())


#: Calls with a relative path in a process whose working folder was removed.
IN_A_REMOVED_FOLDER = """
import os, sys, tempfile
import numpy as np, pandas as pd
import dboost
from dboost.cli import main
from dboost.errors import WorkingFolderError
frame = pd.DataFrame({"x": np.arange(40.0), "y": np.arange(40.0)})
home = tempfile.mkdtemp(dir=sys.argv[1])
os.chdir(home)
os.rmdir(home)
model = dboost.fit(frame, "y", max_iter=1, progress=False)
model.save(sys.argv[1] + "/model.json")
for call in (
    lambda: dboost.fit("rows.parquet", "y"),
    lambda: dboost.fit(frame, "y", eval_set="rows.parquet"),
    lambda: dboost.fit(frame, "y", checkpoint="kept"),
    lambda: dboost.prepare(frame, "y", "prepared"),
    lambda: dboost.load("model.json"),
    lambda: model.save("model.json"),
    lambda: model.report("report.html"),
    lambda: model.predict("rows.parquet"),
):
    try:
        call()
    except WorkingFolderError as error:
        print(error)
for command in (
    ["train", sys.argv[1] + "/rows.parquet", "--target", "y"],
    ["train", sys.argv[1] + "/rows.parquet", "--target", "y", "--output", "model.json"],
    ["prepare", "rows.parquet", "--target", "y", "--output", sys.argv[1] + "/prepared"],
    ["predict", "model.json", "rows.parquet", "--output", "out.csv"],
    ["predict", sys.argv[1] + "/model.json", sys.argv[1] + "/rows.parquet", "--output", sys.argv[1] + "/out.csv"],
):
    print(main(command))
"""


def test_a_working_folder_that_was_removed_is_named(tmp_path: Path) -> None:
    pd.DataFrame({"x": np.arange(40.0), "y": np.arange(40.0)}).to_parquet(tmp_path / "rows.parquet")
    done = subprocess.run(
        [sys.executable, "-c", IN_A_REMOVED_FOLDER, str(tmp_path)],
        capture_output=True, text=True, timeout=300, env=os.environ | {"PYTHONPATH": str(Path(dboost.__file__).parents[1])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    told = " is below the working folder of this process, which was removed: give an absolute path"
    assert all(told in line for line in lines[:8]), done.stdout
    assert lines[8:] == ["2", "2", "2", "2", f"40 predictions in {tmp_path}/out.csv", "0"]
    assert done.stderr.count(told) == 4
