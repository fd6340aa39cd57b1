"""Block files return what was written, and raise an error when they cannot."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dboost.kernels.checksum import checksum
from dboost.rows.block_file import BlockFile, Field, StorageError
from tests.helpers.examples import examples

FIELDS = [Field("tiles", "<u8", (2,), (4,)), Field("wide", "<u2", (3,)), Field("y", "<f8"), Field("raw", "<f8", (3,))]


def contents(file: BlockFile, block: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([seed, block])
    shapes = file.views(file.buffer(), block)
    return {
        name: rng.integers(0, 256, (*a.shape[:-1], a.shape[-1] * a.itemsize), np.uint8).view(a.dtype)
        for name, a in shapes.items()
    }


def fill(file: BlockFile, seed: int = 0) -> None:
    buffer = file.buffer()
    for block in range(file.n_blocks):
        for name, array in contents(file, block, seed).items():
            file.views(buffer, block)[name][...] = array
        file.write(block, buffer)


@examples(30)
@given(n_rows=st.integers(0, 100), block_rows=st.sampled_from([1, 7, 32, 128]), sealed=st.booleans())
def test_blocks_come_back(tmp_path_factory: pytest.TempPathFactory, n_rows: int, block_rows: int, sealed: bool) -> None:
    path = tmp_path_factory.mktemp("store") / "rows"
    file = BlockFile(path, FIELDS, n_rows, sealed=sealed, block_rows=block_rows)
    fill(file)
    assert path.stat().st_size == file.stride * file.n_blocks == file.bytes_written
    buffer = file.buffer()
    for block in reversed(range(file.n_blocks)):
        buffer[:] = 255
        file.read(block, buffer)
        for name, array in contents(file, block).items():
            np.testing.assert_array_equal(file.views(buffer, block)[name].view(np.uint8), array.view(np.uint8))
    assert file.bytes_read == file.stride * file.n_blocks
    file.remove()
    assert not path.exists()


def test_the_layout_is_the_one_that_is_documented(tmp_path: Path) -> None:
    file = BlockFile(tmp_path / "rows", FIELDS, 10, sealed=False, block_rows=4)
    fill(file)
    assert (file.n_blocks, file.stride) == (3, 2 * 4 * 4 * 8 + 64 + 64 + 128)
    block = np.fromfile(file.path, np.uint8)[2 * file.stride :]
    wanted = contents(file, 2)
    np.testing.assert_array_equal(block[: 2 * 2 * 4 * 8].view("<u8").reshape(2, 2, 4), wanted["tiles"])
    np.testing.assert_array_equal(block[384 : 384 + 3 * 2 * 8].view("<f8").reshape(3, 2).view("u8"), wanted["raw"].view("u8"))


def test_single_fields_are_read_and_written(tmp_path: Path) -> None:
    file = BlockFile(tmp_path / "rows", FIELDS, 10, sealed=False, block_rows=4)
    fill(file)
    changed = file.buffer()
    views = file.views(changed, 1)
    views["raw"][...], views["y"][...] = 7.0, 8.0
    file.write(1, changed, [("raw", 1), "y"])
    buffer = file.buffer()
    buffer[:] = 0
    assert file.read(1, buffer, [("raw", 2)]) == 4 * 8
    assert file.read(1, buffer, ["raw", "y"]) == 64 + 128  # whole fields include their padding
    assert not file.views(buffer, 1)["wide"].any()
    before = contents(file, 1)
    np.testing.assert_array_equal(file.views(buffer, 1)["y"], 8.0)
    np.testing.assert_array_equal(file.views(buffer, 1)["raw"][1], 7.0)
    for k in (0, 2):
        np.testing.assert_array_equal(file.views(buffer, 1)["raw"][k].view("u8"), before["raw"][k].view("u8"))


@given(words=st.lists(st.integers(0, 2**64 - 1), max_size=40), at=st.integers(0, 39), flip=st.integers(1, 2**64 - 1))
def test_a_checksum_notices_what_changes(words: list[int], at: int, flip: int) -> None:
    before = np.array(words, np.uint64)
    assert checksum(before) == checksum(before.copy())
    assert checksum(np.append(before, np.uint64(0))) != checksum(before)
    if at < len(words):
        after = before.copy()
        after[at] ^= np.uint64(flip)
        assert checksum(after) != checksum(before)
        swapped = np.roll(before, 1)
        assert (checksum(swapped) == checksum(before)) == bool((swapped == before).all())


def test_damage_is_named(tmp_path: Path) -> None:
    file = BlockFile(tmp_path / "codes", FIELDS, 10, sealed=True, block_rows=4)
    fill(file)
    with open(file.path, "r+b") as raw:
        raw.seek(file.stride + 77)
        byte = raw.read(1)[0]
        raw.seek(file.stride + 77)
        raw.write(bytes([byte ^ 1]))
    buffer = file.buffer()
    file.read(0, buffer)
    with pytest.raises(StorageError, match="codes is damaged: block 1"):
        file.read(1, buffer)
    with open(file.path, "r+b") as raw:
        raw.truncate(2 * file.stride + 5)
    with pytest.raises(StorageError, match="codes is cut short: block 2 of 3"):
        file.read(2, buffer)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot make .*/absent/rows: No such file"):
        BlockFile(tmp_path / "absent" / "rows", FIELDS, 10, sealed=False, block_rows=4)


def test_a_file_that_does_not_fit_leaves_nothing_behind(tmp_path: Path) -> None:
    """A limit of the file size fails at the same point as a full disk: when space is reserved."""
    script = textwrap.dedent(f"""
        import pathlib, resource
        from dboost.rows.block_file import BlockFile, Field, StorageError
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            BlockFile(pathlib.Path({str(tmp_path)!r}) / "rows", [Field("y", "<f8")], 1_000_000, sealed=False, block_rows=65_536)
        except StorageError as error:
            print(error)
    """)
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "there is no room for its 8 MiB" in printed
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_closed_once_by_however_many_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The descriptor may be reused as soon as it is closed, and must not be closed by a second thread."""
    file, close, closed = BlockFile(tmp_path / "rows", FIELDS, 10, sealed=False, block_rows=4), os.close, []

    def meanwhile(descriptor: int) -> None:
        closed.append(descriptor)
        file.close()  # as a second thread would
        close(descriptor)

    monkeypatch.setattr(os, "close", meanwhile)
    file.close()
    file.close()
    assert len(closed) == 1
