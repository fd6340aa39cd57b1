"""What is written is read as it was, or the file is named in one sentence: `STORES` × `MUTATIONS`.

Forgeries, whose digests are right, are in the tests of the formats.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import dask
import pytest

import dboost
from dboost.cli import main
from dboost.errors import DBoostError
from tests.helpers.fits import NUMERIC, mixed_frame
from tests.helpers.places import rows_in_files
from tests.suite.covering import cells, combinations

FRAME = mixed_frame(300)[[*NUMERIC, "y"]]
OPTIONS: dict[str, Any] = {"max_iter": 4, "max_leaf_nodes": 5, "progress": False}
Change = Callable[[], None]


def _model(name: str) -> Callable[[Path, Change], Any]:
    def run(folder: Path, change: Change) -> str:
        dboost.fit(FRAME, "y", **OPTIONS).save(folder / name)
        change()
        return dboost.load(folder / name).sha256

    return run


def _checkpoint(folder: Path, change: Change) -> str:
    keeping = OPTIONS | {"checkpoint": folder, "checkpoint_every": 2}
    dboost.fit(FRAME, "y", **keeping)
    change()
    return dboost.fit(FRAME, "y", **keeping | {"max_iter": 6}).sha256


def _data_set(folder: Path, change: Change) -> str:
    dboost.prepare(FRAME, "y", folder / "data").close()
    change()
    return dboost.fit(folder / "data", "y", **OPTIONS).sha256


def _fit(folder: Path, change: Change, **more: Any) -> str:
    def callback(now: dboost.Iteration) -> None:
        if now.iteration == 2:
            change()

    with rows_in_files(64), dask.config.set({"temporary-directory": str(folder)}):
        return dboost.fit(FRAME, "y", memory_limit="64MiB", callbacks=[callback], **OPTIONS, **more).sha256


def _ledger(folder: Path, change: Change) -> int:
    command = ["train", str(folder / "rows"), "--target", "y", "--output", str(folder / "model.json"), "--only-new", "--quiet"]
    printed = io.StringIO()
    (folder / "rows").mkdir()
    for number in range(2):
        FRAME[100 * number :][:100].to_parquet(folder / "rows" / f"{number}.parquet")
        with contextlib.redirect_stderr(printed):
            status = main([*command, "--set", "max_iter=2"])
        if status:
            raise DBoostError(printed.getvalue().strip())
        change() if not number else None
    return dboost.load(folder / "model.json").n_iter_


class Store(NamedTuple):
    #: Write, change what is written, and read it again.
    run: Callable[[Path, Change], Any]
    file: str
    #: The text with the number of the version, in a store that has one.
    version: bytes = b""


STORES: dict[str, Store] = {
    "a model": Store(_model("model.json"), "model.json", b'"version": 1'),
    "a compact model": Store(_model("model.dboost"), "model.dboost", b"version 1"),
    "the state of a checkpoint": Store(_checkpoint, "state.json", b'"version": 2'),
    "trees of a checkpoint": Store(_checkpoint, "trees-000001-*"),
    "the description of a data set": Store(_data_set, "data/dataset.json", b'"version": 3'),
    "a part of a data set": Store(_data_set, "data/part-*"),
    "the sample of a data set": Store(_data_set, "data/sample-*"),
    "codes": Store(_fit, "dboost-*/codes"),
    "rows": Store(_fit, "dboost-*/rows"),
    "scores": Store(_fit, "dboost-*/state"),
    "bites": Store(lambda *given: _fit(*given, arcbites=dboost.ArcBites(2, 1, visits=2)), "dboost-*/bites"),
    "a ledger": Store(_ledger, "model.json.ledger.json", b'"version": 3'),
}
MUTATIONS: dict[str, Callable[[bytes, Store], bytes]] = {
    "none": lambda data, _: data,
    "empty": lambda data, _: b"",
    "half": lambda data, _: data[: len(data) // 2],
    "a byte less": lambda data, _: data[:-1],
    "a byte more": lambda data, _: data + b"x",
    "a bit": lambda data, _: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 4]) + data[len(data) // 2 + 1 :],
    "the first bit": lambda data, _: bytes([data[0] ^ 1]) + data[1:],
    "zeros": lambda data, _: data[: len(data) // 3] + bytes(len(data) // 3) + data[2 * (len(data) // 3) :],
    "a newer version": lambda data, store: data.replace(store.version, store.version[:-1] + b"99", 1),
}
#: What is not written to be read by others: scores are read back by the fit that wrote them, and have no checksums.
UNSEALED = ("scores",)
SQUARE = [
    (store, mutation)
    for store in STORES
    for mutation in MUTATIONS
    if (STORES[store].version if mutation == "a newer version" else mutation == "empty" or store not in UNSEALED)
]


@pytest.mark.parametrize(("store", "mutation"), cells(SQUARE, fast=combinations((0,), (1,)), slow=combinations((0, 1))))
def test_what_is_written_is_read_or_named(tmp_path: Path, store: str, mutation: str) -> None:
    stored, names = STORES[store], list[str]()

    def change() -> None:
        path = sorted(folder.glob(stored.file))[0]
        names.append(path.name)
        path.write_bytes(MUTATIONS[mutation](path.read_bytes(), stored))

    folder = tmp_path / "expected"
    folder.mkdir()
    expected = stored.run(folder, lambda: None)
    folder = tmp_path / "changed"
    folder.mkdir()
    try:
        found = stored.run(folder, change)
    except DBoostError as error:
        assert names and names[0] in str(error) and "\n" not in str(error) and mutation != "none"
        assert mutation != "a newer version" or re.search(r"version (is )?99", str(error))
    else:
        assert found == expected and mutation not in ("empty", "half", "zeros", "a newer version")
