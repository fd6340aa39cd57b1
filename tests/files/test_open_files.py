"""A process that may open no more files: one sentence names the limit, wherever it is hit in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dboost
from tests.helpers.clusters import a_table, few_descriptors

FRAME = a_table(3000).drop(columns=["t", "z"])
OPTIONS: dict[str, Any] = {"max_iter": 2, "max_leaf_nodes": 5, "progress": False, "n_threads": 1}
#: With more than this number of descriptors left, every call succeeds.
MOST = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables")
    for i in range(3):
        FRAME[1000 * i : 1000 * (i + 1)].to_parquet(path / f"{i}.parquet")
    dboost.prepare(FRAME, "y", path=path / "prepared").close()
    return path


def calls(folder: Path) -> dict[str, Callable[[Path], Any]]:
    """Return what a user calls. Each is given a path that does not exist yet."""
    parquet = [str(folder / f"{i}.parquet") for i in range(3)]
    return {
        "Parquet": lambda _: dboost.fit(parquet, "y", **OPTIONS),
        "temporary files": lambda _: dboost.fit(parquet, "y", memory_limit="3MiB", **OPTIONS),
        "prepare": lambda new: dboost.prepare(FRAME, "y", path=new).close(),
        "prepared": lambda _: dboost.fit(folder / "prepared", max_iter=2, progress=False),
        "checkpoint": lambda new: dboost.fit(FRAME, "y", checkpoint=new, **OPTIONS),
    }


@pytest.mark.fast_cells(2)
@pytest.mark.parametrize("call", calls(Path()))
def test_the_limit_is_named(folder: Path, tmp_path: Path, call: str) -> None:
    works = calls(folder)[call]
    works(tmp_path / "before")  # imports and compiles
    n_failed = 0
    for n_left in range(MOST):
        with few_descriptors(n_left):
            try:
                works(tmp_path / str(n_left))
            except dboost.DBoostError as error:
                assert "too many open files" in str(error) and "RLIMIT_NOFILE" in str(error)
                n_failed += 1
    assert n_failed
    with few_descriptors(MOST + 4):
        works(tmp_path / "after")
