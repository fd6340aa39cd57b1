"""Fits of a process on the same prepared data set at the same time have one copy of the bin codes."""

from __future__ import annotations

import gc
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dboost
from dboost.storage.block_file import BlockFile
from dboost.training import prepared_codes

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
