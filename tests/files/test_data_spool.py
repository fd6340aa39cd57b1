"""Chunks above the limit of retained bytes are stored in files, which never outlive their table."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from dboost.cluster.worker.worker_plugin import DBoostWorkerPlugin
from dboost.data import ReadOptions, open_table
from dboost.errors import DBoostError
from dboost.files import spool as spool_module
from dboost.files.spool import Spool, remove_stale

N_PARTS = 5


def part(i: int) -> pd.DataFrame:
    a = np.arange(4) + 4 * i
    return pd.DataFrame({"a": a, "b": a * 0.5, "c": [f"level {v % 7}" for v in a], "y": a % 2})


def frame() -> dd.DataFrame:
    return dd.from_map(part, range(N_PARTS), meta=part(0).iloc[:0])


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """The folder for temporary files of Dask, and so of dboost."""
    folder = tmp_path / "temporary"
    with dask.config.set({"temporary-directory": str(folder)}):
        yield folder


def test_files_begin_where_the_allowance_ends(temporary: Path) -> None:
    matrix = da.from_array(np.zeros((40, 10)), chunks=(10, 10))
    with open_table(matrix, np.zeros(40), options=ReadOptions(retain_bytes=2 * 800 + 1)):
        (folder,) = temporary.glob("dboost-*")
        assert folder.name.startswith(f"dboost-{os.getpid()}-")
        assert folder.stat().st_mode & 0o77 == 0
        assert len(list(folder.glob("chunk-*"))) == 2
    assert list(temporary.iterdir()) == []
    with open_table(matrix, np.zeros(40)):
        assert list(temporary.iterdir()) == []
    with open_table(np.zeros((40, 10)), np.zeros(40), options=ReadOptions(retain_bytes=0)):
        assert list(temporary.iterdir()) == []


def test_files_go_with_the_table(temporary: Path) -> None:
    table = open_table(frame(), "y", options=ReadOptions(retain_bytes=0))
    assert len(list(temporary.iterdir())) == 1
    del table
    gc.collect()
    assert list(temporary.iterdir()) == []
    table = open_table(frame(), "y", options=ReadOptions(retain_bytes=0))
    table.close()
    table.close()
    assert list(temporary.iterdir()) == []
    with pytest.raises(DBoostError, match="the table is closed"):
        table.chunk(0)
    assert table.target is not None


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError, MemoryError])
def test_files_go_when_reading_fails(temporary: Path, error: type[BaseException]) -> None:
    seen = []

    def failing(i: int) -> pd.DataFrame:
        seen.extend(temporary.glob("dboost-*/chunk-*"))
        if seen:
            raise error
        return part(i)

    with pytest.raises(error):
        open_table(
            dd.from_map(failing, range(N_PARTS), meta=part(0).iloc[:0]), "y", options=ReadOptions(retain_bytes=0, n_threads=1)
        )
    assert seen
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_closing_waits_for_threads_that_write(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A removed file takes room on the disk as long as a thread has it open."""
    writing, may_end = threading.Event(), threading.Event()
    write = spool_module._Form.write

    def write_slowly(*args: Any) -> None:
        writing.set()
        assert may_end.wait(60)
        write(*args)

    monkeypatch.setattr(spool_module._Form, "write", write_slowly)
    spool = Spool(0)
    with ThreadPoolExecutor(2) as threads:
        put = threads.submit(spool.put, 0, [np.zeros(9)])
        assert writing.wait(60)
        closed = threads.submit(spool.close)
        with pytest.raises(TimeoutError):
            closed.result(0.2)
        with pytest.raises(DBoostError, match="cancelled"):
            spool.put(1, [np.zeros(9)])
        may_end.set()
        put.result(60)
        closed.result(60)
    assert list(temporary.iterdir()) == []


def test_files_go_on_interrupt(temporary: Path) -> None:
    """A real SIGINT reaches the main thread, while the reading threads complete their partitions."""
    script = """
        import os, signal, sys, time
        import dask, dask.dataframe as dd, numpy as np, pandas as pd
        from dboost.data import ReadOptions, open_table
        dask.config.set({"temporary-directory": sys.argv[1]})
        def part(i):
            if i == 4:  # only one: a second ^C would interrupt the cleaning up
                assert any(name.startswith("dboost-") for name in os.listdir(sys.argv[1]))
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.2)
            return pd.DataFrame({"a": np.arange(10.0), "y": 0.0})
        os.makedirs(sys.argv[1])
        frame = dd.from_map(part, range(8), meta=pd.DataFrame({"a": [0.0], "y": [0.0]})[:0])
        try:
            open_table(frame, "y", options=ReadOptions(n_threads=2, retain_bytes=0))
        except KeyboardInterrupt:
            print(os.listdir(sys.argv[1]))
            time.sleep(0.3)
            print(os.listdir(sys.argv[1]))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script), temporary], capture_output=True, text=True)
    assert done.stdout == "[]\n[]\n", done.stderr


#: Program that holds files in a folder until it is killed, or until its input ends.
HOLDER = """
    import os, sys
    import dask, dask.array as da, numpy as np
    from dboost.files import spool
    if len(sys.argv) > 2:
        os.getpid = lambda: int(sys.argv[2])
    dask.config.set({"temporary-directory": sys.argv[1]})
    kept = spool.Spool(0)
    kept.put(0, [np.zeros(10)])
    print(kept.directory.name, flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(folder: Path, *pid: int) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Start a process that holds temporary files; yield it and their folder."""
    command = [sys.executable, "-c", textwrap.dedent(HOLDER), str(folder), *map(str, pid)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, folder / process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("pid", [[], [1], [os.getpid()]], ids=["its own", "1", "that of a living process"])
def test_what_a_killed_process_left_is_removed(temporary: Path, pid: list[int]) -> None:
    """Whatever its process number: in containers all processes have the same few numbers."""
    other = temporary / "dboost-notapid-1"
    other.mkdir(parents=True)
    with holder(temporary, *pid) as (process, left):
        assert not pid or left.name.startswith(f"dboost-{pid[0]}-")
        open_table(np.eye(2), [0, 1])
        assert sorted(path.name for path in left.iterdir()) == ["chunk-0", "owner"]
        process.kill()
        process.wait()
        assert left.exists()
    open_table(np.eye(2), [0, 1])
    assert list(temporary.iterdir()) == [other]


def test_half_of_a_directory_is_removed(temporary: Path) -> None:
    """As a process leaves it that was killed while it created or removed a directory."""
    for name, files in {"dboost-1-empty": [], "dboost-2-owned": ["owner"]}.items():
        (temporary / name).mkdir(parents=True)
        for file in files:
            (temporary / name / file).write_text("")
    remove_stale()
    assert list(temporary.iterdir()) == []


def test_links_are_not_followed(temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("")
    temporary.mkdir()
    (temporary / "dboost-1-link").symlink_to(tmp_path / "elsewhere")
    remove_stale()
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["file"]


@pytest.mark.slow
def test_several_processes_remove_and_make_at_once(temporary: Path) -> None:
    """No directory is removed while it is used, all stale ones are removed, and no process fails."""
    script = """
        import sys
        from pathlib import Path
        import numpy as np
        from dboost.files.spool import PrivateDirectory, Spool, remove_stale, temporary_root
        sys.stdin.readline()
        for _ in range(300):
            own = PrivateDirectory()
            (own.path / "file").write_text("here")
            remove_stale()
            assert (own.path / "file").read_text() == "here"
            own.close()
            assert not own.path.exists()
    """
    temporary.mkdir()
    for i in range(200):
        (temporary / f"dboost-{i + 1}-left").mkdir()
        if i % 2:
            (temporary / f"dboost-{i + 1}-left" / "chunk-0").write_text("")
            (temporary / f"dboost-{i + 1}-left" / "owner").write_text("")
    environment = os.environ | {"DASK_TEMPORARY_DIRECTORY": str(temporary)}
    command = [sys.executable, "-c", textwrap.dedent(script)]
    processes = [
        subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    assert list(temporary.iterdir()) == []


def test_where_files_cannot_be_locked_nothing_is_removed(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as patch:
        patch.setattr("fcntl.flock", unsupported)
        spool = Spool(0)
        spool.put(0, [np.arange(3.0)])
        assert spool.directory is not None
        left = temporary / "dboost-1-left"
        left.mkdir()
        (left / "owner").write_text("")
        remove_stale()
        assert left.exists()
    remove_stale()  # another process may be able to lock files in the same folder
    assert not left.exists()
    assert spool.get(0)[0].tolist() == [0.0, 1.0, 2.0]
    spool.close()
    assert list(temporary.iterdir()) == []


def test_workers_remove_what_was_left_where_they_work(temporary: Path, tmp_path: Path) -> None:
    for folder in (temporary, tmp_path / "worker"):
        (folder / "dboost-1-left").mkdir(parents=True)
        (folder / "dboost-1-left" / "owner").write_text("")
    worker = SimpleNamespace(
        handlers={},
        local_directory=str(tmp_path / "worker"),
        state=SimpleNamespace(nthreads=1),
        memory_manager=SimpleNamespace(memory_limit=None),
    )

    async def use() -> None:
        plugin = DBoostWorkerPlugin()
        plugin.setup(worker)
        try:
            plugin.worker_session("fit")
        finally:
            await plugin.teardown(worker)

    asyncio.run(use())
    assert [*temporary.iterdir(), *(tmp_path / "worker").iterdir()] == []


def test_a_forked_child_does_not_remove_the_files(temporary: Path) -> None:
    table = open_table(frame(), "y", options=ReadOptions(retain_bytes=0))
    pid = os.fork()
    if not pid:
        table.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert len(list(temporary.glob("dboost-*/chunk-*"))) == N_PARTS
    table.close()


def test_no_place_for_temporary_files(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with dask.config.set({"temporary-directory": str(blocked)}), pytest.raises(DBoostError, match=r"temporary files in .*file"):
        open_table(frame(), "y", options=ReadOptions(retain_bytes=0))


def test_a_truncated_file_is_an_error(temporary: Path) -> None:
    table = open_table(frame(), "y", options=ReadOptions(retain_bytes=0))
    (folder,) = temporary.iterdir()
    os.truncate(folder / "chunk-1", (folder / "chunk-1").stat().st_size - 1)
    with pytest.raises(DBoostError, match=r"cannot read the temporary file .*chunk-1: it ends after \d+ of \d+ values"):
        table.chunk(1)
    table.close()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4),
        np.asfortranarray(np.arange(12, dtype=np.int16).reshape(3, 4)),
        np.arange(24, dtype=">f4").reshape(2, 3, 4)[:, ::2, 1:],
        np.arange(10, dtype=np.uint8)[::-3],
        np.empty((0, 5), np.float32),
        np.array(["one", "three"]),
        np.array([True, False]),
        np.array(["2020-01-01", "NaT"], "datetime64[D]"),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_arrays_come_back_from_files_as_they_were(temporary: Path, array: np.ndarray) -> None:
    spool = Spool(0)
    spool.put(0, [array, np.arange(3), array])
    for found, expected in zip(spool.get(0), [array, np.arange(3), array], strict=True):
        assert found.dtype == expected.dtype and found.shape == expected.shape
        np.testing.assert_array_equal(found, expected)
        assert found.flags.c_contiguous or array.flags.f_contiguous
    spool.close()


def test_files_are_read_without_pythons_parser(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's parser sometimes fails (SystemError: AST constructor recursion depth mismatch) when several threads use it."""
    spool = Spool(0)
    spool.put(0, [np.arange(5)])

    def parse(*_: object, **__: object) -> None:
        raise SystemError("the parser was asked")

    monkeypatch.setattr("ast.parse", parse)
    assert spool.get(0)[0].tolist() == [0, 1, 2, 3, 4]
    spool.close()


def test_views_are_copied_only_where_that_saves_memory() -> None:
    block = np.arange(12.0).reshape(4, 3)
    foreign = np.frombuffer(bytes(80), np.float64)
    cases = [
        ([block[:, 0], block[:, 1], block[:, 2]], True),
        ([block[:, 0], block[:, 2]], True),  # two thirds
        ([block[:, 0]], False),
        ([block[:, 0], np.ones(4)], False),  # a whole array beside a small view
        ([foreign[:9]], True),
        ([foreign[:3]], False),
    ]
    for arrays, shared in cases:
        spool = Spool(1 << 20)
        spool.put(0, arrays)
        kept = spool.get(0)
        assert np.shares_memory(kept[0], arrays[0]) == shared
        assert all(np.array_equal(a, b) for a, b in zip(kept, arrays, strict=True))
        spool.close()
