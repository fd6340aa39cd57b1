"""Every kind of table with the same rows is the same `Table`, however it is cut."""

from __future__ import annotations

import decimal
from itertools import pairwise

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dboost.schema import Feature
from dboost.sources import open_table
from tests.table_content import content

N = 23
DICTIONARY = pd.ArrowDtype(pa.dictionary(pa.int8(), pa.string()))


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
    """A lazy frame with partition borders where asked; equal borders make empty partitions."""
    borders = [0, *sorted(at), len(frame)]
    pieces = [frame.iloc[a:b] for a, b in pairwise(borders)]
    return dd.from_map(lambda piece: piece, pieces, meta=frame.iloc[:0])


def expected() -> pd.DataFrame:
    frame = rows().rename(columns={"y": "<target>", "w": "<weight>"})
    for name in ("word", "kind"):
        values = frame[name].astype(object)
        frame[name] = pd.Series([None if pd.isna(v) else v for v in values], dtype=object)
    return frame.astype({name: float for name in frame.columns if name not in ("word", "kind")})


KINDS = {
    "pandas": lambda frame: frame,
    "pandas, nullable": lambda frame: frame.convert_dtypes(dtype_backend="numpy_nullable"),
    "pandas, arrow": lambda frame: frame.convert_dtypes(dtype_backend="pyarrow"),
    "pandas, objects": lambda frame: frame.astype(object),
    "polars": pl.from_pandas,
    "polars, lazy": lambda frame: pl.from_pandas(frame).lazy(),
    "polars, categories": lambda frame: pl.from_pandas(frame).with_columns(pl.col("word").cast(pl.Categorical)),
    "arrow": pa.Table.from_pandas,
    "arrow, in pieces": lambda frame: pa.concat_tables(
        [pa.Table.from_pandas(frame[i : i + 5]) for i in range(0, N, 5)]
    ),
    "arrow, views": lambda frame: pa.Table.from_pandas(frame).set_column(
        5, "word", pa.array(frame["word"], pa.string_view())
    ),
    "arrow stream": lambda frame: Stream(pa.Table.from_pandas(frame)),
    "dask": lambda frame: dd.from_pandas(frame, npartitions=4, sort=False),
    "dask, arrow": lambda frame: cut(frame.convert_dtypes(dtype_backend="pyarrow"), [4, 4, 20]),
}


class Stream:
    """A table of a library that dboost does not know, which speaks Arrow."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, schema: object = None) -> object:
        return self.table.__arrow_c_stream__(schema)


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_are_one(kind: str) -> None:
    with open_table(KINDS[kind](rows()), "y", sample_weight="w") as table:
        assert table.features == FEATURES
        assert table.named
        assert table.n_rows == sum(table.lengths) == N
        assert (table.target_dtype, table.target_is_bool, table.offset) == ("float64", False, None)
        pd.testing.assert_frame_equal(content(table), expected(), check_dtype=False)


@given(st.lists(st.integers(0, N), max_size=8), st.sampled_from([0, 700, 10**9]), st.booleans())
def test_cuts_change_nothing(at: list[int], retain_bytes: int, separate: bool) -> None:
    frame = rows()
    if separate:
        data = cut(frame.drop(columns=["y", "w"]), at)
        target, weight = cut(frame[["y"]], at), frame["w"].to_numpy()
        table = open_table(data, target, sample_weight=weight, retain_bytes=retain_bytes, n_threads=2)
    else:
        table = open_table(cut(frame, at), "y", sample_weight="w", retain_bytes=retain_bytes, n_threads=2)
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
        np.testing.assert_array_equal(np.concatenate([table.chunk(i).target for i in range(table.n_chunks)]), target)
        joined = [c.matrix for c in map(table.chunk, range(table.n_chunks)) if c.n_rows]
        np.testing.assert_array_equal(np.concatenate(joined), matrix)


def test_whole_arrays_are_not_copied() -> None:
    for dtype in (np.float32, np.float64):
        matrix = np.random.default_rng(0).normal(size=(50, 4)).astype(dtype)
        chunk = open_table(matrix, np.zeros(50)).chunk(0)
        assert chunk.matrix is matrix
        assert all(np.shares_memory(column, matrix) for column in chunk.columns)
    columns_first = open_table(np.asfortranarray(matrix), np.zeros(50)).chunk(0)
    assert columns_first.matrix is None  # walking it by rows would be slow
    frame = pd.DataFrame(matrix)
    views = open_table(frame, np.zeros(50)).chunk(0).columns
    assert all(np.shares_memory(view, frame[j].to_numpy()) for j, view in enumerate(views))
    arrow = pa.table({"a": np.arange(5), "b": np.arange(5.0)})
    for name, view in zip("ab", open_table(arrow, np.zeros(5)).chunk(0).columns, strict=True):
        assert np.shares_memory(view, arrow[name].chunk(0).to_numpy())


@pytest.mark.parametrize(
    ("values", "dtype", "want"),
    [
        (pd.Series([1, None, 3], dtype="Int8"), np.float32, [1, np.nan, 3]),
        (pd.Series([1, None, 3], dtype="Int64"), np.float64, [1, np.nan, 3]),
        (pd.Series([1, 2, 3], dtype="Int64"), np.int64, [1, 2, 3]),
        (pd.Series([1.5, None, 3], dtype="Float32"), np.float32, [1.5, np.nan, 3]),
        (pd.Series([True, None, False], dtype="boolean"), np.float32, [1, np.nan, 0]),
        (pd.Series([True, None, False], dtype="bool[pyarrow]"), np.float32, [1, np.nan, 0]),
        (pd.Series([1, None, 3], dtype="int64[pyarrow]"), np.float64, [1, np.nan, 3]),
        (pd.Series([2**62, 1, 3], dtype="int64[pyarrow]"), np.int64, [2**62, 1, 3]),
        (pd.Series([decimal.Decimal("1.5"), None, decimal.Decimal(3)]), np.float64, [1.5, np.nan, 3]),
        (pd.Series(pa.array([decimal.Decimal("1.5"), None, 3])).astype(object), np.float64, [1.5, np.nan, 3]),
        (pd.Series([1, None, 2.5], dtype=object), np.float64, [1, np.nan, 2.5]),
        (pd.Series([1, 2, 3], dtype=object), np.int64, [1, 2, 3]),
        (pd.Series([10**30, 2, None], dtype=object), np.float64, [1e30, 2, np.nan]),
        (pd.Series([True, None, False], dtype=object), np.float32, [1, np.nan, 0]),
        (pd.Series([True, 2, 0.5], dtype=object), np.float64, [1, 2, 0.5]),
        (pd.Series([None, pd.NA, np.nan], dtype=object), np.float32, [np.nan] * 3),
        (pd.Series([0, 0, 2.5], dtype=pd.SparseDtype("float64")), np.float64, [0, 0, 2.5]),
        (pd.Series(np.array([1, 2, 3], ">i4")), np.int32, [1, 2, 3]),
        (pd.Series(np.array([1, 2, 3], np.longdouble)), np.float64, [1, 2, 3]),
        (pd.Series([True, False, True]), np.uint8, [1, 0, 1]),
        (np.array([1, 2, 3], np.float16), np.float32, [1, 2, 3]),
        (np.ma.array([1, 2, 3], mask=[0, 1, 0]), np.float64, [1, np.nan, 3]),
        (pa.array([1, None, 3], pa.int16()), np.float32, [1, np.nan, 3]),
        (pa.array([1.5, 2, None], pa.float16()), np.float32, [1.5, 2, np.nan]),
        (pa.array([decimal.Decimal("1.5"), None, 3]), np.float64, [1.5, np.nan, 3]),
        (pa.nulls(3), np.float32, [np.nan] * 3),
        (pl.Series([1, None, 3], dtype=pl.UInt16), np.float32, [1, np.nan, 3]),
        (pl.Series([1.5, None, float("nan")], dtype=pl.Float32), np.float32, [1.5, np.nan, np.nan]),
        (pl.Series(["1.50", None, "3.00"]).cast(pl.Decimal(10, 2)), np.float64, [1.5, np.nan, 3]),
    ],
    ids=lambda value: str(getattr(value, "dtype", getattr(value, "type", "")))[:24],
)
def test_numbers(values: object, dtype: type, want: list[float]) -> None:
    if isinstance(values, pa.Array):
        frame: object = pa.table({"a": values})
    elif isinstance(values, pl.Series):
        frame = pl.DataFrame({"a": values})
    elif isinstance(values, np.ndarray):
        frame = values[:, None]
    else:
        frame = pd.DataFrame({"a": values})
    table = open_table(frame, [0, 1, 2])
    (column,) = table.chunk(0).columns
    assert column.dtype == dtype
    assert table.features[0].levels is None
    np.testing.assert_array_equal(column, np.array(want, dtype))


@pytest.mark.parametrize(
    ("values", "levels", "codes"),
    [
        (pd.Series(["b", None, "a"], dtype=object), ("a", "b"), [1, -1, 0]),
        (pd.Series(["b", None, "a"], dtype="str"), ("a", "b"), [1, -1, 0]),
        (pd.Series(["b", None, "a"], dtype=pd.StringDtype("python")), ("a", "b"), [1, -1, 0]),
        (pd.Series(["b", None, "a"], dtype="string[pyarrow]"), ("a", "b"), [1, -1, 0]),
        (pd.Series(["b", None, "a"], dtype=pd.ArrowDtype(pa.large_string())), ("a", "b"), [1, -1, 0]),
        (pd.Series(["b", None, "a"], dtype=DICTIONARY), ("a", "b"), [1, -1, 0]),
        (pd.Series(pd.Categorical([10, None, 9])), (9, 10), [1, -1, 0]),
        (pd.Series(pd.Categorical([2.5, None, 2.0])), (2, 2.5), [1, -1, 0]),
        (pd.Series(pd.Categorical([True, None, False])), (False, True), [1, -1, 0]),
        (pd.Series(pd.Categorical([-1, None, -2])), (-2, -1), [1, -1, 0]),
        (pd.Series(pd.Categorical(["x", 3, True])), (1, 3, "x"), [2, 1, 0]),
        (np.array(["b", "", "a"]), ("", "a", "b"), [2, 0, 1]),
        (pa.DictionaryArray.from_arrays([1, 0, 2], ["a", None, "b", "unused"]), ("a", "b"), [-1, 0, 1]),
        (pa.DictionaryArray.from_arrays(pa.array([1, None, 2], pa.uint8()), pa.array([7, 5, 4])), (4, 5), [1, -1, 0]),
        (pl.Series(["b", None, "a"], dtype=pl.Enum(["b", "never", "a"])), ("a", "b"), [1, -1, 0]),
        (pl.Series(["b", None, "a"], dtype=pl.Categorical), ("a", "b"), [1, -1, 0]),
    ],
    ids=lambda value: str(getattr(value, "dtype", getattr(value, "type", "")))[:24],
)  # fmt: skip
def test_categories(values: object, levels: tuple, codes: list[int]) -> None:
    if isinstance(values, pa.Array):
        frame: object = pa.table({"a": values})
    elif isinstance(values, pl.Series):
        frame = pl.DataFrame({"a": values})
    elif isinstance(values, np.ndarray):
        frame = values[:, None]
    else:
        frame = pd.DataFrame({"a": values})
    table = open_table(frame, [0, 1, 2])
    assert table.features[0].levels == levels
    assert [type(level) for level in table.features[0].levels or ()] == [type(level) for level in levels]
    np.testing.assert_array_equal(table.chunk(0).columns[0].codes, codes)


def test_declared_categories_are_distinct_values() -> None:
    matrix = np.array([[3.0, 1.5, 1], [-1, np.nan, 2], [0, 1.0, 3], [np.nan, 1.5, 4]])
    table = open_table(matrix, np.zeros(4), categorical_features=[True, True, False])
    assert table.features == (Feature("f0", (0, 3)), Feature("f1", (1, 1.5)), Feature("f2"))
    assert table.chunk(0).matrix is None
    first, second, third = table.chunk(0).columns
    np.testing.assert_array_equal(first.codes, [1, -1, 0, -1])
    np.testing.assert_array_equal(second.codes, [1, -1, 0, 1])
    np.testing.assert_array_equal(third, [1, 2, 3, 4])


@pytest.mark.parametrize("spec", [[False, True], [1], ["b"], np.array(["b"]), pd.Index(["b"]), np.array([1], np.uint8)])
def test_ways_to_declare(spec: object) -> None:
    frame = pd.DataFrame({"a": [1, 2], "b": [4, 3], "y": [0.0, 1.0]})
    assert open_table(frame, "y", categorical_features=spec).features == (Feature("a"), Feature("b", (3, 4)))


def test_nothing_declared() -> None:
    for spec in (None, [], ()):
        assert open_table(np.eye(2), [0, 1], categorical_features=spec).features == (Feature("f0"), Feature("f1"))


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
    parts = [
        pd.DataFrame({"c": np.array([None])}),
        pd.DataFrame({"c": pd.Categorical([None])}),
        pd.DataFrame({"c": [2]}),
    ]
    table = open_table(dd.from_map(lambda i: parts[i], range(3), meta=parts[2].iloc[:0]), np.arange(3))
    assert table.features == (Feature("c"),)
    np.testing.assert_array_equal(np.concatenate([table.chunk(i).columns[0] for i in range(3)]), [np.nan, np.nan, 2])


def test_meta_is_not_believed() -> None:
    meta = pd.DataFrame({"c": np.array([], np.float64), "y": np.array([], np.int64)})
    part = pd.DataFrame({"c": ["u", "v"], "y": ["no", "yes"]})
    table = open_table(dd.from_map(lambda i: part, range(2), meta=meta), "y")
    assert table.features == (Feature("c", ("u", "v")),)
    assert table.target.levels == ("no", "yes")


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


def test_features_are_taken_in_order() -> None:
    frame = rows()
    for data in (frame, cut(frame, [5]), pa.Table.from_pandas(frame)):
        table = open_table(data, "y", features=["flag", "whole"], sample_weight="w")
        assert [feature.name for feature in table.features] == ["flag", "whole"]
        pd.testing.assert_frame_equal(
            content(table)[["flag", "whole"]], expected()[["flag", "whole"]], check_dtype=False
        )


def test_integer_labels_become_text() -> None:
    frame = pd.DataFrame({0: [1, 2], 1: [3, 4], 2: [5, 6]})
    for data in (frame, cut(frame, [1])):
        table = open_table(data, 2, features=[1, 0])
        assert [feature.name for feature in table.features] == ["1", "0"]
        np.testing.assert_array_equal(table.target, [5, 6])


@pytest.mark.parametrize(
    ("target", "values", "dtype", "is_bool"),
    [
        (np.array([1, 0, 2], np.int32), [1, 0, 2], "int32", False),
        ([1.5, 2, 3], [1.5, 2, 3], "float64", False),
        (np.array([1, 2, 3], np.float32), [1, 2, 3], "float32", False),
        ([True, False, True], [1, 0, 1], "bool", True),
        (pd.Series([True, False, True], dtype="boolean"), [1, 0, 1], "bool", True),
        (pd.array([3, 1, 2], dtype="Int64"), [3, 1, 2], "int64", False),
        (pd.DataFrame({"y": [3, 1, 2]}), [3, 1, 2], "int64", False),
        (pl.Series([3, 1, 2]), [3, 1, 2], "int64", False),
        (pl.DataFrame({"y": [3, 1, 2]}), [3, 1, 2], "int64", False),
        (pa.array([3.0, 1, 2]), [3, 1, 2], "float64", False),
        (np.array([[3], [1], [2]]), [3, 1, 2], "int64", False),
        (np.array([3, 1, 2], dtype=object), [3, 1, 2], "int64", False),
        (da.from_array(np.array([3, 1, 2]), chunks=2), [3, 1, 2], "int64", False),
        (range(3), [0, 1, 2], "int64", False),
    ],
    ids=str,
)
def test_numeric_targets(target: object, values: list[float], dtype: str, is_bool: bool) -> None:
    for data in (np.eye(3), da.from_array(np.eye(3), chunks=2)):
        table = open_table(data, target)
        assert table.target.dtype == np.float64
        np.testing.assert_array_equal(table.target, values)
        assert (table.target_dtype, table.target_is_bool) == (dtype, is_bool)


@pytest.mark.parametrize(
    ("target", "levels", "codes", "dtype"),
    [
        (["no", "yes", "no"], ("no", "yes"), [0, 1, 0], "object"),
        (np.array(["no", "yes", "no"]), ("no", "yes"), [0, 1, 0], "object"),
        (pd.Series(["b", "a", "b"], dtype="category"), ("a", "b"), [1, 0, 1], "object"),
        (pd.Series([2, 1, 2], dtype="category"), (1, 2), [1, 0, 1], "int64"),
        (pd.Series([True, False, True], dtype="category"), (False, True), [1, 0, 1], "bool"),
        (pl.Series(["b", "a", "b"]), ("a", "b"), [1, 0, 1], "object"),
    ],
    ids=str,
)
def test_categorical_targets(target: object, levels: tuple, codes: list[int], dtype: str) -> None:
    lazy = da.from_array(np.eye(3), chunks=((2, 0, 1), 3))
    lazies = [dd.from_pandas(target, npartitions=2, sort=False)] if isinstance(target, pd.Series) else []
    for data, y in ((np.eye(3), target), (lazy, target), *((da.from_array(np.eye(3), chunks=2), z) for z in lazies)):
        table = open_table(data, y)
        assert (table.target.levels, table.target_dtype) == (levels, dtype)
        np.testing.assert_array_equal(table.target.codes, codes)
        got = np.concatenate([table.chunk(i).target.codes for i in range(table.n_chunks)])
        np.testing.assert_array_equal(got, codes)


def test_a_foreign_array() -> None:
    class NotAnArray:
        def __init__(self, values: np.ndarray) -> None:
            self.values = values

        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            return self.values

    table = open_table(NotAnArray(np.eye(3)), NotAnArray(np.arange(3)), sample_weight=NotAnArray(np.ones(3)))
    np.testing.assert_array_equal(table.chunk(0).matrix, np.eye(3))


def test_lists_are_read_as_numpy_would() -> None:
    table = open_table([[1, 2], [3, 4]], [0, 1])
    np.testing.assert_array_equal(table.chunk(0).columns, [[1, 3], [2, 4]])
    assert open_table([["a", 1], ["b", 2]], [0, 1]).features == (Feature("f0", ("a", "b")), Feature("f1", ("1", "2")))
    mixed = np.array([["a", 1], ["b", None]], dtype=object)
    assert open_table(mixed, [0, 1]).features == (Feature("f0", ("a", "b")), Feature("f1"))
