"""Fits of a process on the same prepared data set at the same time have one copy of the bin codes."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dboost
from dboost.prepared import prepared_codes
from dboost.rows.block_file import BlockFile

N_ROWS, N_COLUMNS = 30_000, 60
OPTIONS: dict[str, Any] = {"max_iter": 3, "max_leaf_nodes": 7, "progress": False, "n_threads": 1}
#: Bytes of the codes by columns and in tiles.
CODES = N_ROWS * (N_COLUMNS + 64)


@pytest.fixture(scope="module")
def data() -> Any:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, N_COLUMNS)).astype(np.float32)
    with dboost.prepare(X, X[:, 0] + X[:, 1] * X[:, 2], progress=False) as found:
        yield found


def test_a_fit_during_another_one_takes_no_memory_for_codes(data: dboost.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def bytes_of(n: int) -> tuple[int, str]:
        """Return the memory that a fit has added after its last iteration, and the digest of its model."""
        before = tracemalloc.get_traced_memory()[0]
        added = [0]

        def measure(_: Any) -> None:
            added[0] = tracemalloc.get_traced_memory()[0] - before

        digest = dboost.fit(data, callbacks=[measure], **OPTIONS | {"max_leaf_nodes": n}).sha256
        return added[0], digest

    read: list[int] = []
    of_file = BlockFile.read

    def counted(self: BlockFile, *arguments: Any, **options: Any) -> int:
        n_bytes = of_file(self, *arguments, **options)
        if self.path.name == "codes":
            read.append(n_bytes)
        return n_bytes

    found: list[tuple[int, str]] = []

    def fit_others(_: Any) -> None:
        if not found:
            found.extend(map(bytes_of, (5, 9)))

    dboost.fit(data, **OPTIONS)  # loads what is imported late
    tracemalloc.start()
    try:
        alone = [*map(bytes_of, (5, 9))]
        monkeypatch.setattr(BlockFile, "read", counted)
        dboost.fit(data, callbacks=[fit_others], **OPTIONS)
    finally:
        tracemalloc.stop()
    assert [digest for _, digest in found] == [digest for _, digest in alone]
    assert sum(read) < 1.1 * N_ROWS * 64  # once
    assert all(one < most - 0.9 * CODES for (one, _), (most, _) in zip(found, alone, strict=True))
    gc.collect()
    assert not prepared_codes._in_use


def test_fits_in_threads_share_codes(data: dboost.Dataset) -> None:
    options = [{"learning_rate": rate, "subsample": share} for rate, share in ((0.1, 1.0), (0.5, 0.5))]
    expected = [dboost.fit(data, **OPTIONS, **some).sha256 for some in options]
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(lambda some: dboost.fit(data, **OPTIONS, **some).sha256, options)]
    assert found == expected


def test_a_folder_that_is_replaced_during_a_fit_has_codes_of_its_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    tables = [(X, X[:, 0] + X[:, 1]) for X in rng.normal(size=(2, 400, 3))]
    expected = []
    for table in tables:
        with dboost.prepare(*table, progress=False) as alone:
            expected.append(dboost.fit(alone, **OPTIONS).sha256)
    dboost.prepare(*tables[0], tmp_path / "rows", progress=False)
    found: list[str] = []

    def replace_folder(_: Any) -> None:
        if not found:
            dboost.prepare(*tables[1], tmp_path / "rows", progress=False)
            found.append(dboost.fit(tmp_path / "rows", **OPTIONS).sha256)

    found.append(dboost.fit(tmp_path / "rows", callbacks=[replace_folder], **OPTIONS).sha256)
    assert found == expected[::-1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot fork here")
def test_a_process_forked_while_codes_are_read_reads_its_own(tmp_path: Path) -> None:
    """No other folder waits for this one, either."""
    X = np.random.default_rng(2).normal(size=(400, 3))
    for name in ("a", "b"):
        dboost.prepare(X, X[:, 0] + (name == "b"), tmp_path / name, progress=False)
    script = f"""
        import os, signal, threading, warnings
        import dboost
        from dboost.prepared import prepared_codes

        warnings.simplefilter("ignore")
        def fit(name):
            return dboost.fit({str(tmp_path)!r} + "/" + name, max_iter=1, progress=False, n_threads=1).sha256
        expected = fit("a"), fit("b")
        read, reading, may_end = prepared_codes._read, threading.Event(), threading.Event()
        def slow(*arguments):
            if threading.current_thread() is thread:
                reading.set()
                assert may_end.wait(60)
            return read(*arguments)
        prepared_codes._read = slow
        thread = threading.Thread(target=fit, args=("a",))
        thread.start()
        assert reading.wait(60)
        assert fit("b") == expected[1]
        child = os.fork()
        if not child:
            signal.alarm(60)
            os._exit(fit("a") != expected[0])
        assert os.waitpid(child, 0)[1] == 0
        may_end.set()
        thread.join()
        assert not len(prepared_codes._reading)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
