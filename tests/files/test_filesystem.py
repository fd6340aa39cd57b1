"""What the text of a path means, and signed URLs of a server that permits GET only."""

from __future__ import annotations

import gzip
import http.server
import io
import json
import os
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dboost
from dboost.cli import main
from dboost.files.filesystem import filesystem_of, has_query, without_query

ROWS = pd.DataFrame({"a": np.arange(60.0) % 7, "y": np.arange(60.0) % 7 * 2.0})

#: Names of files of this machine that fsspec alone reads as chains or URLs.
COLONS = [
    "a::b", "test_fit.py::test_one", "std::vector<int>", "a:b", "::a", "a::", "data:x", "data:2024,a", "file:x", "local:x",
    "zip::x", "file::x", "simplecache::x", "http::s3", "s3:x", "C:x", "~none:x", "a?b::c[1]",
]  # fmt: skip


def test_colons_in_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    booster = dboost.fit(ROWS, "y", max_iter=1, progress=False)
    for name in COLONS:
        path = f"{tmp_path}/{name}.csv"
        for form in (f"{name}.csv", f"./{name}.csv", path, f"file://{path}"):
            assert filesystem_of(form)[1] == path
        with open(path, "w") as file:
            ROWS.to_csv(file, index=False)
        assert dboost.fit(f"{name}.csv", "y", max_iter=1, progress=False).sha256 == booster.sha256, name
        assert booster.predict([f"{name}.csv"]).compute().size == len(ROWS)
        booster.save(name)
        assert os.path.isfile(tmp_path / name) and dboost.load(name).sha256 == booster.sha256


def test_chains_are_chains_unless_the_name_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile("rows.zip", "w") as archive:
        archive.writestr("rows.csv", "a,y\n1,2\n")
    for text, protocol, name in [
        ("memory://lake/a::b.csv", "memory", "lake/a::b.csv"),
        ("simplecache::memory://lake/rows.csv", "simplecache", "/lake/rows.csv"),
        (f"zip://rows.csv::file://{tmp_path}/rows.zip", "zip", "rows.csv"),
        (f"zip://rows.csv::{tmp_path}/rows.zip", "zip", "rows.csv"),
        ("data:text/csv;base64,YSx5Cg==", "data", "text/csv;base64,YSx5Cg=="),
        ("file:" + str(tmp_path / "x"), "file", str(tmp_path / "x")),
    ]:
        files, found = filesystem_of(text)
        assert found == name and protocol in np.atleast_1d(files.protocol), text
    (tmp_path / "zip::tar").write_text("")
    assert filesystem_of("zip::tar")[1] == f"{tmp_path}/zip::tar"
    with pytest.raises(ValueError, match="Protocol not known: s4"):
        filesystem_of("s4://bucket/x")


def test_queries() -> None:
    for url, without in {
        "https://host/a.csv?X=1/2&y": "https://host/a.csv", "simplecache::http://h/a?b": "simplecache::http://h/a",
        "folder/a?.csv": None, "s3://lake/a?.csv": None, "https://host/a.csv": None, "a?http://b": None,
    }.items():  # fmt: skip
        assert (without_query(url), has_query(url)) == (url if without is None else without, without is not None)


def _parquet(rows: pd.DataFrame) -> bytes:
    file = io.BytesIO()
    rows.to_parquet(file)
    return file.getvalue()


def _csv(rows: pd.DataFrame) -> bytes:
    return rows.to_csv(index=False).encode()


QUERY = "?X-Amz-Credential=AKIA%2F20260101%2Fus&X-Amz-Signature=SECRET%2Bab%3D&response-content-type=text/csv"
LATER = "?sv=2026&sig=SECRET%2F2"


class _GetOnly(http.server.BaseHTTPRequestHandler):
    """Gives a file for its exact URL, with ranges; any other URL or method is forbidden."""

    protocol_version = "HTTP/1.1"
    files: dict[str, bytes]

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, status: int, content: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        try:
            self.wfile.write(content)
        except OSError:  # only the headers were wanted
            self.close_connection = True

    def do_GET(self) -> None:
        content = self.files.get(self.path)
        if content is None:
            self._answer(403, b"")
        elif "Range" in self.headers:
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            piece = content[int(first) : int(last) + 1]
            self._answer(206, piece, Content_Range=f"bytes {first}-{int(first) + len(piece) - 1}/{len(content)}")
        else:
            self._answer(200, content, ETag='"1"')

    def do_HEAD(self) -> None:
        self._answer(403, b"")


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    kinds = {"rows.parquet": _parquet, "rows.csv": _csv, "rows.csv.gz": lambda rows: gzip.compress(_csv(rows))}
    model = dboost.fit(ROWS, "y", max_iter=1, progress=False)
    files = {f"/lake/{name}{query}": kind(ROWS) for name, kind in kinds.items() for query in (QUERY, LATER)}
    files |= {f"/lake/model.json{QUERY}": dboost.model.model_file.dumps(model.ensemble)}
    files |= {f"/lake/model.dboost{QUERY}": dboost.model.model_file.dumps_compact(model.ensemble)}
    files |= {
        "/export?name=rows.csv": _csv(ROWS),
        f"/lake/damaged.csv{QUERY}": b"a,y\n1,2,3,4\n",
        f"/lake/x.json{QUERY}": b"{}",
    }
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_GetOnly,), {"files": files}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("name", [f"lake/rows.{end}{QUERY}" for end in ("parquet", "csv", "csv.gz")] + ["export?name=rows.csv"])
def test_a_query_belongs_to_the_name(store: str, name: str) -> None:
    url = f"{store}/{name}"
    expected = dboost.fit(ROWS, "y", max_iter=2, eval_set=ROWS, progress=False)
    for data in (url, [url]):
        assert dboost.fit(data, "y", max_iter=2, eval_set=url, progress=False).sha256 == expected.sha256
        np.testing.assert_array_equal(expected.predict(data).compute(), expected.predict(ROWS))
    twice = dboost.fit([url, url], "y", max_iter=2, progress=False)
    assert twice.feature_names_in_.tolist() == ["a"], "no columns of folders in the query"


def test_models_of_signed_urls(store: str) -> None:
    first, second = (dboost.load(f"{store}/lake/model.{end}{QUERY}") for end in ("json", "dboost"))
    assert first.sha256 == second.sha256


def test_commands_and_nothing_secret_anywhere(store: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def url(name: str, query: str = QUERY) -> str:
        return f"{store}/lake/{name}{query}"

    def train(name: str, query: str = QUERY) -> int:
        common = ("--output", str(tmp_path / name), "--checkpoint", str(tmp_path / "states"), "--set", "max_iter=2")
        return main(("train", url("rows.csv", query), "--target", "y", "--eval", url("rows.parquet", query), *common))

    assert train("model.json") == 0
    only_new = ("train", "--only-new", "--target", "y", "--output", str(tmp_path / "new.json"), "--set", "max_iter=2")
    for query in (QUERY, LATER):  # signed again: neither new rows nor other settings
        assert main((*only_new, url("rows.csv", query), "--eval", url("rows.parquet", query))) == 0
    ledger = json.loads((tmp_path / "new.json.ledger.json").read_text())
    assert [[*batch["files"]] for batch in ledger["settled"]] == [["rows.csv"]]
    assert main(("predict", url("model.json"), url("rows.csv"), "--output", str(tmp_path / "p.csv"))) == 0
    for wrong in (
        ("train", url("damaged.csv"), "--target", "y"), ("train", url("none.csv"), "--target", "y"),
        ("train", url("rows.csv"), "--target", "none"), ("predict", url("x.json"), url("rows.csv"), "--output", "-"),
        ("predict", url("model.json"), url("rows.csv"), "--output", "-", "--id", "none"), ("inspect", url("none.json")),
    ):  # fmt: skip
        assert main((*wrong, *(("--output", str(tmp_path / "m.json")) if wrong[0] == "train" else ()))) == 2
    for name in ("damaged.csv", "none.csv"):
        with pytest.raises(dboost.DBoostError, match=f"lake/{name}: ") as caught:
            dboost.fit(url(name), "y", max_iter=1, progress=False)
        assert "SECRET" not in str(caught.value)
    said = capfd.readouterr()
    assert "SECRET" not in said.out + said.err
    assert [file for file in tmp_path.rglob("*") if file.is_file() and b"SECRET" in file.read_bytes()] == []
