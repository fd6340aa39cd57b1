"""Tables of every kind with the same rows give the same `Table`, whatever their partitions."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import dask.array as da
import dask.dataframe as dd
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from dboost.data import ReadOptions, open_table
from dboost.data.kinds import table_kinds
from dboost.schema import Feature
from tests.helpers.table_forms import content

N = 23


def rows() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    words = rng.choice(["pear", "apple", "", "fig"], N).astype(object)
    words[[2, 11]] = None
    return pd.DataFrame(
        {
            "whole": rng.integers(-5, 5, N),
            "small": rng.integers(0, 100, N).astype(np.uint8),
            "single": rng.normal(size=N).astype(np.float32),
            "gaps": np.where(rng.random(N) < 0.3, np.nan, rng.normal(size=N)),
            "flag": rng.random(N) < 0.5,
            "word": words,
            "kind": pd.Categorical(rng.choice(["b", "a", "c"], N), categories=["c", "never", "b", "a"]),
            "y": rng.normal(size=N),
            "w": rng.random(N),
        }
    )


FEATURES = (
    *(Feature(name) for name in ("whole", "small", "single", "gaps", "flag")),
    Feature("word", ("", "apple", "fig", "pear")),
    Feature("kind", ("a", "b", "c")),
)


def cut(frame: pd.DataFrame, at: list[int]) -> dd.DataFrame:
    """Return a lazy frame with partition borders at these rows; equal borders make empty partitions."""
    borders = [0, *sorted(at), len(frame)]
    pieces = [frame.iloc[a:b] for a, b in pairwise(borders)]
    return dd.from_map(lambda piece: piece, pieces, meta=frame.iloc[:0])


def expected() -> pd.DataFrame:
    frame = rows().rename(columns={"y": "<target>", "w": "<weight>"})
    for name in ("word", "kind"):
        values = frame[name].astype(object)
        frame[name] = pd.Series([None if pd.isna(v) else v for v in values], dtype=object)
    return frame.astype({name: float for name in frame.columns if name not in ("word", "kind")})


@given(st.lists(st.integers(0, N), max_size=8), st.sampled_from([0, 700, 10**9]), st.booleans())
def test_cuts_change_nothing(at: list[int], retain_bytes: int, separate: bool) -> None:
    frame = rows()
    if separate:
        data = cut(frame.drop(columns=["y", "w"]), at)
        target, weight = cut(frame[["y"]], at), frame["w"].to_numpy()
        table = open_table(data, target, sample_weight=weight, options=ReadOptions(retain_bytes=retain_bytes, n_threads=2))
    else:
        table = open_table(cut(frame, at), "y", sample_weight="w", options=ReadOptions(retain_bytes=retain_bytes, n_threads=2))
    with table:
        assert table.features == FEATURES
        assert table.n_chunks == len(at) + 1
        pd.testing.assert_frame_equal(content(table), expected(), check_dtype=False)


@given(st.lists(st.integers(0, N), max_size=6), st.lists(st.integers(0, N), max_size=3), st.integers(1, 3))
def test_cuts_of_arrays_change_nothing(at: list[int], target_at: list[int], width: int) -> None:
    matrix = np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32)
    target = np.arange(N)
    chunks = tuple(np.diff([0, *sorted(at), N]).tolist())
    lazy = da.from_array(matrix, chunks=(chunks, width))
    lazy_target = da.from_array(target, chunks=(tuple(np.diff([0, *sorted(target_at), N]).tolist()),))
    for y in (target, lazy_target, lazy_target[:, None], target[:, None].tolist()):
        table = open_table(lazy, y)
        assert not table.named
        assert table.features == (Feature("f0"), Feature("f1"), Feature("f2"))
        assert table.lengths == chunks
        np.testing.assert_array_equal(np.concatenate([table.chunk(i).roles.target for i in range(table.n_chunks)]), target)
        joined = [c.matrix for c in map(table.chunk, range(table.n_chunks)) if c.n_rows]
        np.testing.assert_array_equal(np.concatenate(joined), matrix)


def test_levels_of_differing_dictionaries_unite() -> None:
    parts = [
        pd.DataFrame({"c": pd.Categorical(["z", "b"], categories=["z", "b"])}),
        pd.DataFrame({"c": pd.Categorical([None, None], categories=[])}),
        pd.DataFrame({"c": pd.Series(["a", "z"], dtype="string[pyarrow]")}),
        pd.DataFrame({"c": np.array([None, None])}),
        pd.DataFrame({"c": [np.nan, np.nan]}),
    ]
    table = open_table(dd.from_map(lambda i: parts[i], range(5), meta=parts[0].iloc[:0]), np.arange(10))
    assert table.features == (Feature("c", ("a", "b", "z")),)
    codes = np.concatenate([table.chunk(i).columns[0].codes for i in range(5)])
    np.testing.assert_array_equal(codes, [2, 1, -1, -1, 0, 2, -1, -1, -1, -1])


def test_silent_partitions_agree_with_numbers() -> None:
    parts = [pd.DataFrame({"c": np.array([None])}), pd.DataFrame({"c": pd.Categorical([None])}), pd.DataFrame({"c": [2]})]
    table = open_table(dd.from_map(lambda i: parts[i], range(3), meta=parts[2].iloc[:0]), np.arange(3))
    assert table.features == (Feature("c"),)
    np.testing.assert_array_equal(np.concatenate([table.chunk(i).columns[0] for i in range(3)]), [np.nan, np.nan, 2])


def test_meta_is_not_believed() -> None:
    meta = pd.DataFrame({"c": np.array([], np.float64), "y": np.array([], np.int64)})
    part = pd.DataFrame({"c": ["u", "v"], "y": ["no", "yes"]})
    table = open_table(dd.from_map(lambda i: part, range(2), meta=meta), "y")
    assert table.features == (Feature("c", ("u", "v")),)
    assert table.target.categories == ("no", "yes")


def test_like_a_model() -> None:
    like = (Feature("c", ("b", "a")), Feature("n"), Feature("k", (3, 1)))
    frame = pd.DataFrame({"n": [1, 2, 3], "other": 0, "c": ["a", "new", None], "k": [1.0, -1, 3]})
    for data in (frame, pl.from_pandas(frame), cut(frame, [1, 1])):
        table = open_table(data, like=like, require_target=False)
        assert table.features == like
        assert table.target is None
        got = content(table)
        assert got["c"].tolist() == ["a", None, None]
        assert got["n"].tolist() == [1, 2, 3]
        assert got["k"].tolist() == [1, None, 3]
    with open_table(frame.assign(y=[1, 0, 1]), "y", like=like) as table:
        np.testing.assert_array_equal(table.target, [1, 0, 1])


def test_like_a_model_of_arrays() -> None:
    like = (Feature("f0"), Feature("f1", (1, 2)))
    frame = pd.DataFrame({"u": [0.5, 1.5], "v": [2, 7], "y": [0, 1]})
    for data, target in ((frame, "y"), (frame[["u", "v"]].to_numpy(), [0, 1]), (cut(frame, [1]), "y")):
        table = open_table(data, target, like=like)
        assert content(table)["f1"].tolist() == [2, None]
        assert content(table)["f0"].tolist() == [0.5, 1.5]


FRAME = rows()[["small", "y"]]
#: An object of each kind: its form, whether it is a table in memory, and whether its columns have names that are known.
FORMS: dict[str, tuple[Any, str | None, bool, bool]] = {
    "array": (FRAME.to_numpy(), "array", True, False),
    "records": (FRAME.to_records(index=False).view(np.ndarray), "array", False, False),
    "sparse": (scipy.sparse.csr_matrix(FRAME.to_numpy()), "array", True, False),
    "pandas": (FRAME, "dataframe", True, True),
    "pandas column": (FRAME["y"], "series", False, False),
    "polars": (pl.from_pandas(FRAME), "dataframe", True, True),
    "polars column": (pl.Series([1.0]), "series", False, False),
    "polars query": (pl.from_pandas(FRAME).lazy(), "lazy", False, True),
    "duckdb": (duckdb.sql("select 1 as a"), "lazy", False, True),
    "arrow": (pa.Table.from_pandas(FRAME), "dataframe", True, True),
    "arrow column": (pa.array([1.0]), "series", False, False),
    "batch": (pa.RecordBatch.from_pandas(FRAME), "stream", True, False),
    "reader": (pa.Table.from_pandas(FRAME).to_reader(), "stream", False, False),
    "scanner": (pa.dataset.dataset(pa.Table.from_pandas(FRAME)).scanner(), "stream", False, False),
    "dask": (dd.from_pandas(FRAME, npartitions=2), "dask", False, True),
    "dask array": (da.ones((4, 2)), "dask", False, False),
    "path": ("rows.parquet", "files", False, False),
    "paths": (["a.csv", "b.csv"], "files", False, False),
    "rows": ([[1, 2], [3, 4]], None, False, False),
    "type": (pd.DataFrame, None, False, False),
    "nothing": (None, None, False, False),
}


@pytest.mark.parametrize("kind", FORMS)
def test_an_object_is_of_one_kind(kind: str) -> None:
    data, form, in_memory, has_names = FORMS[kind]
    assert table_kinds.form_of(data) == form
    assert table_kinds.is_stream(data) == (form in ("lazy", "stream"))
    assert table_kinds.is_source(data) == (form in ("files", "dask"))
    found = table_kinds.table_kind(data)
    assert (found is not None and found.frame is not None) == in_memory
    assert (table_kinds.names_of_table(data) is not None) == has_names
