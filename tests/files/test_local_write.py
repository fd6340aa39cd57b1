"""Files and folders that exist already, and special files: what stays of them, and where a rename is impossible."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, chdir, contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dboost
from dboost.cli import main, output_paths
from dboost.files.atomic_write import read_whole, try_writing, write_whole
from dboost.files.local_folder import DRAFT
from dboost.files.local_write import replacing
from tests.helpers.clusters import ROOT

IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
USER, OTHER, GROUP = 61001, 61002, 61003
as_root = pytest.mark.skipif(not IS_ROOT, reason="only root can take the place of other users")


def through_whole(path: str, data: bytes) -> None:
    with output_paths.whole(path) as file:
        file.write(data)


WRITERS: dict[str, Callable[[str, bytes], None]] = {"bytes": write_whole, "pieces": through_whole}


@pytest.fixture(params=WRITERS)
def write(request: pytest.FixtureRequest) -> Callable[[str, bytes], None]:
    return WRITERS[request.param]


def as_user(call: Callable[[], None]) -> str:
    """Call a function as another user in a child process; return its error, or nothing."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        said = b""
        try:
            os.setgroups([])
            os.setresgid(USER, USER, USER)
            os.setresuid(USER, USER, USER)
            call()
        except BaseException as error:
            said = repr(error).encode()
        os.write(writer, said)
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        said = file.read()
    os.waitpid(child, 0)
    return said.decode()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users can reach; pytest's own are private."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o666, 0o755, 0o444, 0o2660])
@pytest.mark.parametrize("owner", [None, pytest.param((USER, GROUP), marks=as_root)])
def test_mode_owner_and_group_stay(
    write: Callable[[str, bytes], None], mode: int, owner: tuple[int, int] | None, tmp_path: Path
) -> None:
    path = tmp_path / "model.json"
    path.write_bytes(b"old")
    if owner is not None:
        os.chown(path, *owner)
    path.chmod(mode)
    before = path.stat()
    (tmp_path / "link").symlink_to("model.json")
    write(str(tmp_path / "link"), b"new")
    after = path.stat()
    assert path.read_bytes() == b"new" and (tmp_path / "link").is_symlink()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert after.st_ino != before.st_ino, "by a rename"
    assert {*os.listdir(tmp_path)} == {"model.json", "link"}


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002, 0o000])
def test_a_new_file_has_the_mode_that_open_gives(write: Callable[[str, bytes], None], umask: int, tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to("target")
    before = os.umask(umask)
    try:
        write(str(tmp_path / "new"), b"")
        write(str(tmp_path / "dangling"), b"")
    finally:
        os.umask(before)
    assert (
        stat.S_IMODE((tmp_path / "new").stat().st_mode) == stat.S_IMODE((tmp_path / "target").stat().st_mode) == 0o666 & ~umask
    )


def test_a_private_file_is_private_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / ("名" * 80 + ".json")
    path.write_bytes(b"old")
    for mode in (0o600, 0o664):
        path.chmod(mode)
        with replacing(str(path)):
            modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in os.listdir(tmp_path)}
        assert modes.pop(path.name) == mode and [*modes.values()] == [0o600]
    with pytest.raises(ZeroDivisionError), replacing(str(path)) as file:
        file.write(b"half")
        _ = 1 / 0
    assert path.read_bytes() == b"" and os.listdir(tmp_path) == [path.name]


@contextmanager
def reader_of(pipe: Path) -> Iterator[list[bytes]]:
    received: list[bytes] = []
    thread = threading.Thread(target=lambda: received.append(pipe.read_bytes()))
    thread.start()
    yield received
    thread.join(60)


def test_special_files_stay_what_they_are(write: Callable[[str, bytes], None], tmp_path: Path) -> None:
    (tmp_path / "null").symlink_to("/dev/null")
    for name in ("/dev/null", f"{tmp_path}/null"):
        try_writing(name)
        write(name, b"new")
        assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        try_writing(str(tmp_path / name))
        with reader_of(tmp_path / "pipe") as received:
            write(str(tmp_path / name), b"new" * 100_000)
        assert received == [b"new" * 100_000] and (tmp_path / "pipe").is_fifo()
    with pytest.raises(dboost.DBoostError, match="free some space"):
        write("/dev/full", b"new")
    assert not [name for name in os.listdir("/dev") if name.startswith((".null", ".full", ".std"))]


def test_descriptors(write: Callable[[str, bytes], None], tmp_path: Path) -> None:
    reader, writer = os.pipe()
    write(f"/dev/fd/{writer}", b"new")
    write(f"/proc/self/fd/{writer}", b"new")
    assert os.read(reader, 100) == b"newnew"
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(log, b"old ")
    (tmp_path / "link").symlink_to(f"/dev/fd/{log}")
    write(str(tmp_path / "link"), b"new")
    assert (tmp_path / "log").read_bytes() == b"old new"
    with pytest.raises((dboost.DBoostError, OSError), match="Bad file descriptor"):
        write(f"/dev/fd/{reader}", b"new")
    os.close(reader), os.close(writer), os.close(log)
    assert sorted(os.listdir(tmp_path)) == ["link", "log"]


def test_commands_with_special_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = pd.DataFrame({"a": np.arange(60.0) % 7, "y": np.arange(60.0) % 7})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    common = (str(tmp_path / "rows.csv"), "--target", "y", "--set", "max_iter=1")
    assert main(("train", *common, "--output", "/dev/null", "--history", "/dev/null")) == 0
    model = str(tmp_path / "model.json")
    with open(model, "w") as file:
        command = [sys.executable, "-m", "dboost", "train", *common, "--output", "/dev/stdout"]
        subprocess.run(command, stdout=file, stderr=subprocess.DEVNULL, cwd=ROOT, check=True)
    assert json.loads(Path(model).read_text())["format"] == "dboost"
    os.mkfifo(tmp_path / "pipe.parquet")
    with reader_of(tmp_path / "pipe.parquet") as received:
        assert main(("predict", model, common[0], "--output", str(tmp_path / "pipe.parquet"))) == 0
    (tmp_path / "p.parquet").write_bytes(received[0])
    assert len(pd.read_parquet(tmp_path / "p.parquet")) == len(rows)
    os.mkfifo(tmp_path / "model")
    thread = threading.Thread(target=lambda: (tmp_path / "model").write_bytes(Path(model).read_bytes()))
    thread.start()
    assert dboost.load(tmp_path / "model").sha256 == dboost.load(model).sha256
    thread.join(60)
    assert main(("predict", model, common[0], "--output", "/dev/null")) == 0
    assert main(("inspect", model, "--html", "/dev/null")) == 0
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def _in_place(path: Path, write: Callable[[str, bytes], None], data: bytes, run: Callable[[Callable[[], None]], str]) -> None:
    before = path.stat()
    assert run(lambda: try_writing(path)) == run(lambda: write(str(path), data)) == ""
    after = path.stat()
    assert path.read_bytes() == data
    assert (after.st_ino, after.st_mode, after.st_uid) == (before.st_ino, before.st_mode, before.st_uid)


@as_root
def test_mounted_files(write: Callable[[str, bytes], None], tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"old")
    (tmp_path / "model.json").write_bytes(b"")
    if subprocess.run(["mount", "--bind", tmp_path / "outside", tmp_path / "model.json"], capture_output=True).returncode:
        pytest.skip("files cannot be mounted here")
    try:
        for data in (b"longer than before", b"short"):
            _in_place(tmp_path / "model.json", write, data, lambda call: str(call() or ""))
        assert (tmp_path / "outside").read_bytes() == b"short"
    finally:
        subprocess.run(["umount", tmp_path / "model.json"], check=True)
    assert sorted(os.listdir(tmp_path)) == ["model.json", "outside"]


@as_root
@pytest.mark.parametrize(
    ("folder_mode", "owner", "mode"),
    [(0o555, USER, 0o600), (0o555, OTHER, 0o666), (0o1777, OTHER, 0o666), (0o777, OTHER, 0o666)],
    ids=["write-protected folder", "of another user there", "of another user in a sticky folder", "of another user"],
)
def test_where_a_rename_is_impossible_or_wrong(
    write: Callable[[str, bytes], None], folder: Path, folder_mode: int, owner: int, mode: int
) -> None:
    path = folder / "inside" / "model.json"
    path.parent.mkdir()
    path.write_bytes(b"old")
    os.chown(path, owner, owner)
    path.chmod(mode)
    path.parent.chmod(folder_mode)
    for data in (b"longer than before", b""):
        _in_place(path, write, data, as_user)
    assert os.listdir(path.parent) == ["model.json"]


@as_root
@pytest.mark.parametrize(
    ("folder_mode", "owner", "mode", "why"),
    [
        (0o555, OTHER, 0o644, "Permission denied"),
        (0o1777, OTHER, 0o644, "Permission denied"),
        (0o555, None, 0, "Permission denied"),
    ],
)
def test_what_open_cannot_write(
    write: Callable[[str, bytes], None], folder: Path, folder_mode: int, owner: int | None, mode: int, why: str
) -> None:
    path = folder / "inside" / "model.json"
    path.parent.mkdir()
    if owner is not None:
        path.write_bytes(b"old")
        os.chown(path, owner, owner)
        path.chmod(mode)
    path.parent.chmod(folder_mode)
    assert why in as_user(lambda: write(str(path), b"new"))
    assert os.listdir(path.parent) == (["model.json"] if owner else []) and (owner is None or path.read_bytes() == b"old")


@as_root
def test_a_full_disk_leaves_the_old_content_in_place(write: Callable[[str, bytes], None], folder: Path) -> None:
    path = folder / "inside" / "model.json"
    path.parent.mkdir()
    path.write_bytes(b"old")
    os.chown(path, USER, USER)
    path.parent.chmod(0o555)

    def write_much() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
        write(str(path), b"new" * 1000)

    assert "free some space" in as_user(write_much)
    assert path.read_bytes() == b"old"


def test_reading_leaves_special_files_to_the_system(tmp_path: Path) -> None:
    assert read_whole("/dev/null") == b""
    with pytest.raises(dboost.ModelFileError, match="it is a folder"):
        write_whole(tmp_path, b"")


def fill(path: Path) -> None:
    output_paths.check(f"{path}/", "--output")
    with output_paths.whole_folder(f"{path}/") as create, create("a") as file:
        file.write(b"whole")


def make_table(path: Path) -> None:
    with output_paths.new_local_folder(f"{path}/", "a") as place:
        Path(place).mkdir(exist_ok=True)
        (Path(place) / "a").write_bytes(b"whole")


@contextmanager
def mounted(folder: Path) -> Iterator[Path]:
    if not IS_ROOT or subprocess.run(["mount", "--bind", folder, folder], capture_output=True).returncode:
        pytest.skip("folders cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@contextmanager
def linked(folder: Path) -> Iterator[Path]:
    link = folder.parent / "link"
    link.symlink_to(folder.name)
    yield link
    assert link.is_symlink()
    link.unlink()


@contextmanager
def working(folder: Path) -> Iterator[Path]:
    with chdir(folder):
        yield Path()


@contextmanager
def with_names(folder: Path) -> Iterator[Path]:
    """Of a new file system, and of a killed run."""
    (folder / "lost+found").mkdir()
    (folder / DRAFT).mkdir()
    (folder / DRAFT / "b").write_bytes(b"half")
    yield folder
    (folder / "lost+found").rmdir()
    shutil.rmtree(folder / DRAFT, ignore_errors=True)  # a table is not written to a draft


@contextmanager
def plain(folder: Path) -> Iterator[Path]:
    yield folder


@pytest.mark.parametrize("place", [plain, mounted, linked, working, with_names])
@pytest.mark.parametrize("write_folder", [fill, make_table])
def test_an_empty_folder_is_filled_and_stays_what_it_is(
    write_folder: Callable[[Path], None], place: Callable[[Path], AbstractContextManager[Path]], tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    folder.chmod(0o2770)
    with place(folder) as path:
        write_folder(path)
        assert (path / "a").read_bytes() == b"whole"
    assert os.listdir(folder) == ["a"] and os.listdir(tmp_path) == ["out"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o2770


@as_root
@pytest.mark.parametrize(
    ("folder_mode", "owner", "mode"),
    [(0o555, USER, 0o700), (0o1777, OTHER, 0o777), (0o777, OTHER, 0o777), (0o555, OTHER, 0o755)],
)
@pytest.mark.parametrize("write_folder", [fill, make_table])
def test_a_folder_whose_place_cannot_be_taken(
    write_folder: Callable[[Path], None], folder: Path, folder_mode: int, owner: int, mode: int
) -> None:
    path = folder / "inside" / "out"
    path.mkdir(parents=True)
    path.chmod(mode)
    os.chown(path, owner, owner)
    path.parent.chmod(folder_mode)
    before, error = path.stat(), as_user(lambda: write_folder(path))
    if mode == 0o755:
        assert "Permission denied" in error and os.listdir(path) == []
    else:
        assert error == "" and (path / "a").read_bytes() == b"whole" and os.listdir(path) == ["a"]
    assert (path.stat().st_ino, path.stat().st_mode, path.stat().st_uid) == (before.st_ino, before.st_mode, before.st_uid)
    assert os.listdir(path.parent) == ["out"]


@pytest.mark.parametrize("name", ["file", "pipe", "/dev/null", "/dev/stdout"])
def test_what_is_no_folder_is_no_output_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(dboost.ParameterError, match="is to be a folder, but there is a file of that name"):
        output_paths.check(f"{tmp_path / name}/", "--output")
