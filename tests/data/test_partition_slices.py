"""Partitions too large for a memory limit are read in slices; the model stays the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dboost
from dboost.data import ReadOptions, open_table
from dboost.data.sources.paths import open_path, open_source
from tests.helpers.fits import FEATURES, NUMERIC, cut, mixed_frame, saved
from tests.helpers.tune import Tune

SHARE = 4096
COMMON: dict[str, Any] = {"max_iter": 3, "max_leaf_nodes": 6, "min_samples_leaf": 3, "progress": False}


@pytest.fixture
def sliced(tune: Tune) -> None:
    """The columns of a partition may take 4 KiB, and rows go to files."""
    tune(chunk_bytes=SHARE, resident_rows=0, block_rows=64)


def weighted_frame(n: int = 700) -> pd.DataFrame:
    """With two categories that only rows of weight zero have; more such rows in succession than a slice holds."""
    frame = mixed_frame(n)
    frame.loc[:5, ["town", "w"]] = ["Nowhere", 0.0]
    frame.loc[200:420, "w"] = 0.0
    return frame


@pytest.mark.fast_cells(3)
@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("grade", {"sample_weight": "w", "subsample": 0.7}),
        ("y", {"offset": "x", "features": [name for name in FEATURES if name != "x"]}),
    ],
)
@pytest.mark.parametrize("in_memory", [False, True], ids=["in files", "in memory"])
def test_the_model_does_not_change(sliced: None, tune: Tune, in_memory: bool, target: str, options: dict[str, Any]) -> None:
    if in_memory:
        tune(resident_rows=700)
    frame, settings = weighted_frame(), {"features": FEATURES} | COMMON | options
    whole = dboost.fit(frame, target, eval_set=frame, **settings)
    lazy = cut(frame, [0, 10])
    found = dboost.fit(lazy, target, eval_set=lazy, memory_limit="64MiB", **settings)
    assert saved(found) == saved(whole)
    assert (found.history["bytes_read"].iloc[-1] == 0) == in_memory
    for a, b in zip(found.history.filter(like="eval").to_numpy(), whole.history.filter(like="eval").to_numpy(), strict=True):
        assert np.array_equal(a, b)


def test_a_table_gives_back_its_rows(sliced: None) -> None:
    """Slices have at most the allowed size, together they are the partition, and slices without a wanted row are not read."""
    frame = mixed_frame(500)
    with (
        open_table(cut(frame, [5]), "y", features=FEATURES) as whole,
        open_table(cut(frame, [5]), "y", features=FEATURES, options=ReadOptions(most_bytes=SHARE)) as table,
    ):
        assert table.lengths == (5, 495)
        parts = list(table.slices(1))
        assert len(parts) == 7 and [first for first, *_ in parts] == [495 * k // 7 for k in range(7)]
        for one in (table, whole):
            assert one.chunk(1).n_rows == 495
        for ours, theirs in zip(table.chunk(1).columns, whole.chunk(1).columns, strict=True):
            ours, theirs = (getattr(column, "codes", column) for column in (ours, theirs))
            assert np.array_equal(ours, theirs, equal_nan=True)
        assert all(sum(getattr(column, "codes", column).nbytes for column in part.columns) <= SHARE for *_, part in parts)
        rows = np.array([3, 70, 71, 494])
        assert [(first, some.tolist()) for first, some, _ in table.slices(1, rows) if some is not None] == [
            (0, [3]), (70, [0, 1]), (424, [70]),
        ]  # fmt: skip
        assert str(table.place(5 + 494)) == "row 494 of partition 1"


def test_bad_rows_have_their_own_names(sliced: None) -> None:
    frame = mixed_frame(500)
    frame.loc[460, "x"] = np.inf
    with pytest.raises(dboost.DataError, match=r"column 'x' holds an infinite value \(row 450 of partition 1\)"):
        dboost.fit(cut(frame, [10]), "y", features=NUMERIC, memory_limit="64MiB", **COMMON)
    frame["town"] = frame["town"].astype(object)
    frame.loc[250:, "town"] = 3.0
    frame.loc[:249, "town"] = "Gent"  # a slice ends here
    frame["x"] = 0.0
    complaint = "^column 'town' holds numbers in some rows of partition 0, but text in others"
    with dask.config.set({"dataframe.convert-string": False}), pytest.raises(dboost.DataError, match=complaint):
        dboost.fit(cut(frame, []), "y", features=["age", "town"], memory_limit="64MiB", **COMMON)


def test_a_row_that_is_larger_than_its_share(sliced: None) -> None:
    X, y = np.zeros((20, SHARE // 8 + 1)), np.arange(20.0)
    with pytest.raises(dboost.DBoostError, match="row of partition 0 has 4104 bytes of columns, but memory_limit leaves 4096"):
        dboost.fit(da.from_array(X, chunks=(20, -1)), da.from_array(y), memory_limit="64MiB", **COMMON)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_files_are_read_in_parts(sliced: None, tmp_path: Path, tune: Tune, kind: str) -> None:
    """As many partitions as the limit requires, in the order of the rows, whether a path is a file or a folder."""
    tune(least_csv_block_bytes=1000)
    frame = mixed_frame(800)[[*NUMERIC, "town", "y"]]
    (tmp_path / "rows").mkdir()
    for k, part in enumerate((frame[:500], frame[500:])):
        place = tmp_path / "rows" / f"part-{k}.{kind}"
        if kind == "csv":
            part.to_csv(place, index=False)
        else:
            part.to_parquet(place, row_group_size=50, index=False)
    for path in (tmp_path / "rows", [str(tmp_path / "rows" / f"part-{k}.{kind}") for k in range(2)]):
        assert open_path(path).npartitions == 2
        lazy = open_source(path, most_bytes=SHARE).lazy()
        assert lazy.npartitions >= 8
        pd.testing.assert_frame_equal(lazy.compute().reset_index(drop=True), open_path(path).compute().reset_index(drop=True))


@pytest.mark.fast_cells(1)
@pytest.mark.parametrize("version", ["plain", "dictionary", "compressed", "pages"])
def test_a_row_group_that_is_larger_than_the_limit(sliced: None, tmp_path: Path, version: str) -> None:
    """It is read by ranges of rows: the rows, types and missing values are those of the whole, also of columns in folders."""
    frame = mixed_frame(2000)
    frame["few"] = np.arange(2000) // 500  # a dictionary of few values: its pages are much smaller than the rows
    frame["lists"] = [[k] for k in range(2000)]
    table = pa.Table.from_pandas(frame, preserve_index=False)
    options: dict[str, Any] = {
        "plain": {"use_dictionary": False},
        "dictionary": {"row_group_size": 1500},
        "compressed": {"compression": "zstd"},
        "pages": {"data_page_size": 512, "data_page_version": "2.0"},
    }[version]
    (tmp_path / "rows" / "day=3").mkdir(parents=True)
    pq.write_table(table, tmp_path / "rows" / "day=3" / "a.parquet", **options)
    names = [*NUMERIC, "town", "few", "day"]
    lazy = open_source(tmp_path / "rows", most_bytes=SHARE, columns=[*names, "y"]).lazy()
    assert lazy.npartitions > 20
    found, whole = (one[[*names, "y"]].compute() for one in (lazy, open_path(tmp_path / "rows")))
    for name in names:
        assert found[name].tolist() == whole[name].tolist()
    expected = dboost.fit(tmp_path / "rows", "y", features=names, **COMMON)
    assert saved(dboost.fit(tmp_path / "rows", "y", features=names, memory_limit="64MiB", **COMMON)) == saved(expected)
