"""Data, models and everything else in an object store, with credentials from the environment only."""

from __future__ import annotations

import errno
import logging
import pickle
import sys
from collections.abc import Iterator
from functools import wraps
from pathlib import Path

import cloudpickle
import dask
import fsspec
import numpy as np
import pandas as pd
import pytest

import dboost
from dboost import errors
from dboost.cli import main, output_paths
from dboost.data.sources.paths import open_path
from dboost.errors import DataError, ModelFileError
from dboost.files import atomic_write
from dboost.files.lease import BusyError, Lease
from dboost.training.checkpoint import remove_checkpoint
from tests.helpers.clusters import a_table, threads_cluster
from tests.helpers.object_store import KEY_ID, SECRET, served

ROWS = a_table(600)[["a", "b", "e", "y"]]
FEW = ("--set", "max_iter=3", "--set", "max_leaf_nodes=5")
TRAIN = ("train", "s3://lake/rows", "--target", "y", *FEW)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[fsspec.AbstractFileSystem]:
    with served(tmp_path_factory.mktemp("nowhere")):
        for i in range(3):
            ROWS.iloc[200 * i : 200 * i + 200].to_parquet(f"s3://lake/rows/part-{i}.parquet", index=False)
        yield fsspec.filesystem("s3")


def names(store: fsspec.AbstractFileSystem) -> list[str]:
    store.invalidate_cache()
    return [name for name in store.find("lake") if not name.startswith("lake/rows/")]


@pytest.fixture
def empty(store: fsspec.AbstractFileSystem) -> Iterator[fsspec.AbstractFileSystem]:
    yield store
    for name in names(store):
        store.rm_file(name)


@pytest.mark.slow
def test_a_model_from_a_store_is_the_model_from_a_folder(
    empty: fsspec.AbstractFileSystem, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main((*TRAIN, "--output", "s3://lake/model.json", "--history", "s3://lake/model.json.history.csv")) == 0
    local = dboost.fit(ROWS, "y", max_iter=3, max_leaf_nodes=5, progress=False)
    local.save(tmp_path / "model.json")
    assert empty.cat_file("lake/model.json") == (tmp_path / "model.json").read_bytes()
    booster = dboost.load("s3://lake/model.json")
    expected = booster.predict(ROWS).to_numpy()

    assert main(("predict", "s3://lake/model.json", "s3://lake/rows", "--output", "s3://lake/one.parquet")) == 0
    np.testing.assert_array_equal(pd.read_parquet("s3://lake/one.parquet")["prediction"], expected)
    assert main(("predict", "s3://lake/model.json", "s3://lake/rows", "--output", "s3://lake/many/")) == 0
    np.testing.assert_array_equal(pd.read_parquet("s3://lake/many/")["prediction"], expected)
    assert main(("inspect", "s3://lake/model.json", "--html", "s3://lake/report.html")) == 0
    assert "seconds in iterations" in empty.cat_file("lake/report.html").decode()
    assert names(empty) == [
        f"lake/{name}"
        for name in (
            "many/part-00000.parquet", "many/part-00001.parquet", "many/part-00002.parquet",
            "model.json", "model.json.history.csv", "one.parquet", "report.html",
        )
    ]  # fmt: skip


def test_on_a_cluster_and_nothing_secret_anywhere(
    empty: fsspec.AbstractFileSystem, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    alone = dboost.fit("s3://lake/rows", "y", max_iter=3, progress=False)
    with caplog.at_level(logging.INFO, "distributed"), threads_cluster(2, 1) as client:
        booster = dboost.fit("s3://lake/rows", "y", eval_set="s3://lake/rows", max_iter=3, client=client, progress=True)
        events = str(client.get_events())
        tasks = pickle.dumps(cloudpickle.dumps(open_path("s3://lake/rows").optimize().__dask_graph__()))
    assert booster.predict(ROWS).equals(alone.predict(ROWS))
    booster.save("s3://lake/model.json")
    shown = capfd.readouterr()
    for text in (shown.out, shown.err, caplog.text, events, empty.cat_file("lake/model.json").decode()):
        assert SECRET not in text and KEY_ID not in text
    assert SECRET.encode() not in tasks and KEY_ID.encode() not in tasks


def test_checkpoints(empty: fsspec.AbstractFileSystem) -> None:
    options = {"max_iter": 6, "max_leaf_nodes": 5, "checkpoint": "s3://lake/kept", "checkpoint_every": 1, "progress": False}
    whole = dboost.fit("s3://lake/rows", "y", **options | {"checkpoint": None})

    def stop(now: dboost.Iteration) -> None:
        if now.iteration == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dboost.fit("s3://lake/rows", "y", callbacks=stop, **options)
    kept = names(empty)
    assert kept and all(name.startswith("lake/kept/") for name in kept)
    assert all(SECRET.encode() not in empty.cat_file(name) for name in kept)
    seen: list[int] = []
    resumed = dboost.fit("s3://lake/rows", "y", callbacks=lambda now: seen.append(now.iteration), **options)
    assert resumed.sha256 == whole.sha256
    assert min(seen) > 1


@pytest.mark.fast_cells(3)
@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ((*TRAIN, "--output", "s3://nolake/model.json"), "--output s3://nolake/model.json: there is no bucket nolake"),
        ((*TRAIN, "--output", "s3://lake/rows/"), "--output s3://lake/rows/: the folder exists and is not empty"),
        ((*TRAIN, "--output", "s3://lake/rows"), "--output s3://lake/rows is a folder"),
        (("train", "s3://nolake/rows", "--target", "y", "--output", "s3://lake/m.json"), "no file at s3://nolake/rows"),
        (("train", "s3://lake/row", "--target", "y", "--output", "s3://lake/m.json"), "there is no file at s3://lake/row"),
        (("inspect", "s3://lake/m.json"), "cannot read s3://lake/m.json: there is no such file"),
        (("inspect", "s3://nolake/m.json"), "cannot read s3://nolake/m.json: there is no such file"),
        (("predict", "s3://lake/rows/part-0.parquet", "s3://lake/rows", "--output", "s3://lake/p"), "not a dboost model"),
    ],
)
def test_what_is_not_there(
    store: fsspec.AbstractFileSystem, command: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 2
    shown = capsys.readouterr()
    (line,) = shown.err.splitlines()
    assert complaint in line
    assert names(store) == []


def test_a_bucket_that_is_not_there_is_noticed_at_save(store: fsspec.AbstractFileSystem) -> None:
    booster = dboost.fit(ROWS, "y", max_iter=1, progress=False)
    with pytest.raises(ModelFileError, match=r"^cannot write s3://nolake/model\.json: there is no such folder or bucket$"):
        booster.save("s3://nolake/model.json")


def test_no_credentials(
    store: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    type(store).clear_instance_cache()
    try:
        for command in (
            (*TRAIN, "--output", "s3://lake/m.json"),
            (*TRAIN, "--output", "m.json"),
            ("inspect", "s3://lake/m.json"),
        ):
            assert main(command) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert "s3://lake" in line and "there are no credentials in the environment" in line
    finally:
        type(store).clear_instance_cache()


def test_a_store_that_does_not_answer_is_worth_another_try(
    store: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(type(store), "retries", 1)
    type(store).clear_instance_cache()
    try:
        for command in (("inspect", "s3://lake/m.json"), (*TRAIN, "--output", str(tmp_path / "m.json"))):
            assert main(command) == 1, "2 would tell a job not to try again"
            (line,) = capsys.readouterr().err.splitlines()
            assert line.startswith("dboost: cannot read s3://lake/")
    finally:
        type(store).clear_instance_cache()


def test_what_may_pass() -> None:
    inner = TimeoutError("slow")
    outer = DataError("cannot read")
    outer.__cause__ = inner
    assert errors.is_passing(outer) and errors.is_passing(OSError(errno.EBUSY, "Slow down"))
    assert not errors.is_passing(FileNotFoundError("gone")) and not errors.is_passing(PermissionError("no"))


def test_access_denied_is_said_of_the_place(store: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("Forbidden")

    monkeypatch.setattr(type(store), "cat_file", refuse)
    monkeypatch.setattr(type(store), "exists", refuse)
    monkeypatch.setattr(type(store), "info", refuse)
    type(store).clear_instance_cache()  # fsspec sets methods of an instance when it is made
    with pytest.raises(ModelFileError, match=r"cannot read s3://lake/model\.json: access is denied"):
        dboost.load("s3://lake/model.json")
    with pytest.raises(DataError, match="cannot read s3://lake/rows: access is denied"):
        dboost.fit("s3://lake/rows", "y")
    # A user who may not list the bucket may still be allowed to write into it.
    assert errors.missing_bucket(store, "lake/model.json") is None


@pytest.mark.parametrize("denied", ["pipe_file", "rm_file"])
def test_a_place_that_cannot_be_written_is_noticed_before_the_work(
    store: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], denied: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("Forbidden")

    monkeypatch.setattr(dboost, "fit", wraps(dboost.fit)(lambda *_, **__: pytest.fail("it was trained")))
    with monkeypatch.context() as patch:
        patch.setattr(type(store), denied, refuse)
        type(store).clear_instance_cache()  # fsspec sets methods of an instance when it is made
        assert main((*TRAIN, "--output", "s3://lake/model.json")) == 2
    type(store).clear_instance_cache()
    said = capsys.readouterr().err
    assert said.startswith("dboost: --output: cannot write s3://lake/model.json: access is denied; ") and said.count("\n") == 1
    for name in names(store):
        store.rm_file(name)


def test_addresses_are_shown_without_what_is_secret() -> None:
    for address, shown in {
        "s3://lake/rows": "s3://lake/rows",
        "https://me:word@host/rows.csv": "https://host/rows.csv",
        "https://host/rows.csv?X-Amz-Signature=word&X-Amz-Date=1": "https://host/rows.csv",
        "could not open https://me:word@host/a?sig=word: refused": "could not open https://host/a refused",
        "folder/a?b.csv": "folder/a?b.csv",
        "user@example/rows": "user@example/rows",
    }.items():
        assert errors.shown(address) == shown
    with pytest.raises(DataError) as error:
        open_path("ftp://me:word@127.0.0.1:1/rows.csv")
    assert "word" not in str(error.value)


def test_a_file_that_has_come_since_the_folder_was_looked_at(empty: fsspec.AbstractFileSystem) -> None:
    empty.ls("lake")  # held by this process
    other = type(empty)(skip_instance_cache=True)
    booster = dboost.fit(ROWS, "y", max_iter=1, progress=False)
    other.pipe_file("lake/late.json", dboost.model.model_file.dumps(booster.ensemble))
    assert dboost.load("s3://lake/late.json").sha256 == booster.sha256


@pytest.mark.parametrize(("scheme", "library", "extra"), [("s3", "s3fs", "s3"), ("gs", "gcsfs", "gcs")])
def test_a_store_without_its_library_names_the_extra(
    scheme: str, library: str, extra: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, scheme, raising=False)
    with pytest.raises(dboost.DBoostError, match=rf"not installed.*dboost\[{extra}\]"):
        dboost.fit(f"{scheme}://bucket/rows/", "y", max_iter=1)
    with pytest.raises(dboost.DBoostError, match=rf"not installed.*dboost\[{extra}\]"):
        dboost.load(f"{scheme}://bucket/model.json")


#: Names that are patterns in some functions of fsspec, with names that they match.
PATTERNS = [("model[1]", "model1"), ("a*", "ab"), ("a?", "ab"), ("[!x]", "y"), ("**", "z")]


@pytest.fixture(params=["s3", "memory", "folder"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "s3":
        request.getfixturevalue("empty")
    roots = {"s3": "s3://lake", "memory": "memory://lake", "folder": str(tmp_path)}
    yield roots[request.param]
    if request.param == "memory":
        fsspec.filesystem("memory").rm("/lake", recursive=True)


def every_file(root: str) -> list[str]:
    files, name = fsspec.url_to_fs(root)
    files.invalidate_cache()
    return sorted(one[len(name) :].lstrip("/") for one in files.find(name) if "lake/rows/" not in one)


@pytest.mark.fast_cells(3)
@pytest.mark.parametrize(("name", "neighbour"), PATTERNS)
def test_names_that_look_like_patterns_are_names(root: str, name: str, neighbour: str) -> None:
    """Leases, checkpoints, data sets, predictions: nothing of a neighbour is touched, and nothing of their own stays."""
    theirs = [f"{neighbour}.json.lease.json", f"{neighbour}/state.json", f"{neighbour}/part-0.parquet", f"{name}2/state.json"]
    for path in theirs:
        files, target = fsspec.url_to_fs(f"{root}/{path}")
        files.makedirs(files._parent(target), exist_ok=True)
        files.pipe_file(target, b"theirs")
    with Lease(f"{root}/{name}.json.lease.json", "is training", 60.0):
        assert f"{name}.json.lease.json" in every_file(root)
    assert every_file(root) == sorted(theirs)
    options = {"max_iter": 2, "max_leaf_nodes": 3, "checkpoint_every": 1, "progress": False}
    for _ in range(2):
        dboost.fit(ROWS, "y", checkpoint=f"{root}/{name}", **options)
    own = [f"{name}/{file}" for file in ("state.json", "trees-000001-000001.json", "trees-000002-000002.json")]
    assert every_file(root) == sorted([*theirs, *own])
    remove_checkpoint(f"{root}/{name}")
    assert every_file(root) == sorted(theirs)
    with output_paths.whole(f"{root}/{name}.csv") as file:
        file.write(b"x")
    with pytest.raises(ZeroDivisionError), output_paths.whole(f"{root}/{name}.csv") as file:
        _ = 1 / 0
    with output_paths.whole_folder(f"{root}/{name}/") as create, create("part-00000.parquet") as file:
        file.write(b"x")
    with pytest.raises(dboost.ParameterError, match="not empty"), output_paths.whole_folder(f"{root}/{name}/"):
        pass
    assert every_file(root) == sorted([*theirs, f"{name}.csv", f"{name}/part-00000.parquet"])
    assert atomic_write.read_whole(f"{root}/{name}.csv") == b"x"


@pytest.mark.fast_cells(1)
def test_a_data_set_removes_its_own_files_only(root: str) -> None:
    folder = f"{root}/rows[1]"
    mine = ["part-0.parquet", "part-of-mine.parquet", "sample-1.parquet", "notes.txt"]
    with threads_cluster(1, 1) as client:
        for _ in range(2):
            dboost.prepare(ROWS, "y", folder, client=client).close()
            for name in mine:
                atomic_write.write_whole(f"{folder}/{name}", b"mine")
        left = f"{folder}/part-0123456789ab-00000.parquet"  # of a killed run
        atomic_write.write_whole(left, b"half")
        dboost.prepare(ROWS, "y", folder, client=client).close()
        names = [name.rpartition("/")[2] for name in every_file(root)]
        assert set(mine) < set(names) and len(names) == len(mine) + 3, names
        for name in mine:
            atomic_write.remove(f"{folder}/{name}")
        atomic_write.remove(f"{folder}/dataset.json")
        dboost.prepare(ROWS, "y", folder, client=client).close()  # a killed run has left its parts
        atomic_write.write_whole(f"{root}/other/{mine[0]}" if "://" in root else f"{root}/{mine[0]}", b"mine")
        with pytest.raises(DataError, match="is there already and holds no prepared data"):
            dboost.prepare(ROWS, "y", f"{root}/other" if "://" in root else root, client=client)


def test_a_store_may_list_the_folder_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    store = fsspec.filesystem("memory")
    store.pipe({"/listed/b": b"", "/listed/a/c": b""})
    names = ["/listed/", *store.ls("/listed", detail=False)]
    monkeypatch.setattr(type(store), "ls", lambda self, path, detail=True: names)
    assert atomic_write.names_in("memory://listed") == atomic_write.names_in("memory://listed/") == ["a", "b"]
    monkeypatch.undo()
    store.rm("/listed", recursive=True)
    assert atomic_write.names_in("memory://listed") == []


def test_two_runs_write_no_folder_of_predictions_together(root: str) -> None:
    with dask.config.set({"dboost.lease": "1s"}), output_paths.whole_folder(f"{root}/many/") as create:
        with create("part-00000.parquet") as file:
            file.write(b"first")
        with (
            pytest.raises(BusyError, match=r"another run .* is writing .*many/: try again"),
            output_paths.whole_folder(f"{root}/many/"),
        ):
            pytest.fail("it was not refused")
    assert every_file(root) == ["many/part-00000.parquet"]
