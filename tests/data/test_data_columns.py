"""Columns, declared categories and targets of every type become plain arrays."""

from __future__ import annotations

import decimal
import random
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

import dboost
from dboost.data import Table, open_table
from dboost.schema import Feature

DICTIONARY = pd.ArrowDtype(pa.dictionary(pa.int8(), pa.string()))


def test_whole_arrays_are_not_copied() -> None:
    for dtype in (np.float32, np.float64):
        matrix = np.random.default_rng(0).normal(size=(50, 4)).astype(dtype)
        chunk = open_table(matrix, np.zeros(50)).chunk(0)
        assert chunk.matrix is matrix
        assert all(np.shares_memory(column, matrix) for column in chunk.columns)
    by_columns = np.asfortranarray(matrix)
    assert all(np.shares_memory(column, by_columns) for column in open_table(by_columns, np.zeros(50)).chunk(0).columns)
    frame = pd.DataFrame(matrix)
    views = open_table(frame, np.zeros(50)).chunk(0).columns
    assert all(np.shares_memory(view, frame[j].to_numpy()) for j, view in enumerate(views))
    arrow = pa.table({"a": np.arange(5), "b": np.arange(5.0)})
    for name, view in zip("ab", open_table(arrow, np.zeros(5)).chunk(0).columns, strict=True):
        assert np.shares_memory(view, arrow[name].chunk(0).to_numpy())


def table_of(values: object, categorical_features: object = "from_dtype") -> Table:
    """Return a table with one column of three values."""
    if isinstance(values, pa.Array):
        frame: object = pa.table({"a": values})
    elif isinstance(values, pl.Series):
        frame = pl.DataFrame({"a": values})
    else:
        frame = values[:, None] if isinstance(values, np.ndarray) else pd.DataFrame({"a": values})
    return open_table(frame, [0, 1, 2], categorical_features=categorical_features)


@pytest.mark.fast_cells(8)
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
        (pd.Series([2**63 + 2, None, 5], dtype=object), np.float64, [2.0**63, np.nan, 5]),
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
    table = table_of(values)
    (column,) = table.chunk(0).columns
    assert column.dtype == dtype
    assert table.features[0].categories is None
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
        (pa.DictionaryArray.from_arrays([3, 1, 0], pa.array([1.5, float("nan"), None, 3.5])), (1.5, 3.5), [1, -1, 0]),
        (pd.Series([2**63 + 2, None, 2**60 + 1], dtype=object), (2**60 + 1, 2**63 + 2), [1, -1, 0]),
        (pd.Series([2**60 + 2, None, 2**60 + 1], dtype="Int64"), (2**60 + 1, 2**60 + 2), [1, -1, 0]),
        (pd.Series([2**60 + 2, None, 2**60 + 1], dtype="int64[pyarrow]"), (2**60 + 1, 2**60 + 2), [1, -1, 0]),
        (np.ma.array([2**60 + 2, 7, 2**60 + 1], mask=[0, 1, 0]), (2**60 + 1, 2**60 + 2), [1, -1, 0]),
        (pl.Series(["b", None, "a"], dtype=pl.Enum(["b", "never", "a"])), ("a", "b"), [1, -1, 0]),
        (pl.Series(["b", None, "a"], dtype=pl.Categorical), ("a", "b"), [1, -1, 0]),
    ],
    ids=lambda value: str(getattr(value, "dtype", getattr(value, "type", "")))[:24],
)  # fmt: skip
def test_categories(values: object, levels: tuple, codes: list[int]) -> None:
    table = table_of(values, [0])
    assert table.features[0].categories == levels
    assert [type(level) for level in table.features[0].categories or ()] == [type(level) for level in levels]
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
        assert (table.target.categories, table.target_dtype) == (levels, dtype)
        np.testing.assert_array_equal(table.target.codes, codes)
        got = np.concatenate([table.chunk(i).roles.target.codes for i in range(table.n_chunks)])
        np.testing.assert_array_equal(got, codes)


def test_a_foreign_array() -> None:
    class NotAnArray:
        def __init__(self, values: np.ndarray) -> None:
            self.values = values

        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            return self.values

    table = open_table(NotAnArray(np.eye(3)), NotAnArray(np.arange(3)), sample_weight=NotAnArray(np.ones(3)))
    np.testing.assert_array_equal(table.chunk(0).matrix, np.eye(3))


def test_lists_keep_numbers_beside_text() -> None:
    table = open_table([[1, 2], [3, 4]], [0, 1])
    np.testing.assert_array_equal(table.chunk(0).columns, [[1, 3], [2, 4]])
    assert open_table([["a", 1], ["b", 2]], [0, 1]).features == (Feature("f0", ("a", "b")), Feature("f1"))
    mixed = np.array([["a", 1], ["b", None]], dtype=object)
    assert open_table(mixed, [0, 1]).features == (Feature("f0", ("a", "b")), Feature("f1"))


@pytest.mark.fast_cells(5)
@pytest.mark.parametrize(("make", "digits"), [(pa.decimal32, 9), (pa.decimal64, 18), (pa.decimal128, 38), (pa.decimal256, 76)])
@pytest.mark.parametrize("share", [-0.05, 0.0, 0.2, 0.5, 1.0])
def test_decimals_are_the_nearest_floats(make: Any, digits: int, share: float) -> None:
    rng = random.Random(digits)
    scale = int(share * digits)
    values: list[Any] = []
    with decimal.localcontext(prec=100):
        for k in range(600):
            n_digits = rng.randint(1, digits + min(scale, 0))
            sign = rng.choice((-1, 1))
            values.append(None if k % 9 == 4 else decimal.Decimal(sign * rng.randrange(10**n_digits)).scaleb(-scale))
    array = pa.array(values, make(digits, scale))
    want = np.array([np.nan if value is None else float(value) for value in values])
    pieces = pa.chunked_array([array.slice(0, 200), array.slice(200, 0), array.slice(200)])
    empty = pa.array([decimal.Decimal(0)], array.type).filter(pa.array([False]))
    pieces = pa.chunked_array([empty, *pieces.chunks, empty])
    for some, expected in ((array, want), (pieces, want), (array.slice(7, 301), want[7:308])):
        for table in (pa.table({"x": some}), pd.DataFrame({"x": pd.Series(some, dtype=pd.ArrowDtype(array.type))})):
            column = open_table(table, np.arange(len(expected))).chunk(0).columns[0]
            np.testing.assert_array_equal(column, expected)
            assert isinstance(column, np.ndarray) and column.dtype == np.float64


def test_decimals_among_objects_are_numbers() -> None:
    values = [
        decimal.Decimal("0.3"),
        None,
        1.5,
        decimal.Decimal("NaN"),
        decimal.Decimal("sNaN"),
        2,
        Fraction(1, 4),
        np.int64(7),
    ]
    want = [0.3, np.nan, 1.5, np.nan, np.nan, 2.0, 0.25, 7.0]
    column = open_table(pd.DataFrame({"x": pd.Series(values, dtype=object)}), np.arange(8)).chunk(0).columns[0]
    np.testing.assert_array_equal(column, want)


@pytest.mark.parametrize("kind", [pl.Int128, pl.UInt128])
def test_integers_of_128_bits(kind: Any) -> None:
    for values, dtype in (([1, 2**40, 3], np.int64), ([1, 2**63, 3], np.uint64), ([1, 2**90 + 1, 3], np.float64)):
        column = open_table(pl.DataFrame({"x": pl.Series(values, dtype=kind)}), [0, 1, 2]).chunk(0).columns[0]
        assert isinstance(column, np.ndarray) and column.dtype == dtype
        np.testing.assert_array_equal(column, np.array(values, dtype))
    gap = open_table(pl.DataFrame({"x": pl.Series([1, None, 3], dtype=kind)}), pl.Series([1, 5, 6], dtype=kind))
    np.testing.assert_array_equal(gap.chunk(0).columns[0], [1.0, np.nan, 3.0])
    assert (gap.target_dtype, gap.target.tolist()) == ("int64", [1.0, 5.0, 6.0])  # type: ignore[union-attr]


@pytest.mark.parametrize("described", [True, False])
def test_columns_of_an_index_in_parquet_files_are_no_features(described: bool, tmp_path: Path) -> None:
    index = pd.MultiIndex.from_product([range(4), range(5)])
    written = pa.Table.from_pandas(pd.DataFrame({"a": np.arange(20.0), "y": np.arange(20.0)}, index))
    assert written.column_names == ["a", "y", "__index_level_0__", "__index_level_1__"]
    pq.write_table(written if described else written.replace_schema_metadata(), tmp_path / "rows.parquet")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [feature.name for feature in open_table(tmp_path / "rows.parquet", "y").features] == ["a"]


@pytest.mark.parametrize("name", ["Unnamed: 0", "__index_level_0__", ""])
def test_the_index_of_a_written_frame_is_no_feature_unless_it_is_chosen(name: str) -> None:
    frame = pd.DataFrame({name: np.arange(200), "a": np.arange(200) % 7.0, "y": np.arange(200.0)})
    with pytest.warns(UserWarning, match=f"column '{name}' numbers the rows"):
        booster = dboost.fit(frame, "y", max_iter=2)
    assert booster.feature_names_in_.tolist() == ["a"]
    assert len(booster.predict(frame)) == 200  # as an unused column
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen = dboost.fit(frame, "y", features=[name, "a"], max_iter=2)
        assert chosen.feature_names_in_.tolist() == [name, "a"]


ALIKE = np.arange(200) % 7
#: Values of a column with the name of an index, and whether they number the rows.
NAMELESS: dict[str, tuple[Any, bool]] = {
    "numbers": (np.arange(200), True),
    "from one": (np.arange(1, 201), True),
    "shuffled": (np.random.default_rng(0).permutation(200), True),
    "of several files": (np.arange(200) % 50, True),
    "names": (np.array([f"row {k}" for k in range(200)], object), True),
    "decimals": (np.random.default_rng(0).normal(size=200), False),
    "repeated": (ALIKE * ALIKE, False),
    "text": (np.array(list("abcdefg"), object)[ALIKE], False),
    "missing": (np.where(ALIKE == 3, np.nan, np.arange(200)), False),
    "truth": (ALIKE > 3, False),
}


@pytest.mark.fast_cells(10)
@pytest.mark.parametrize("kind", NAMELESS)
@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
def test_a_column_with_the_name_of_an_index_is_a_feature_unless_it_numbers_the_rows(
    name: str, kind: str, tmp_path: Path
) -> None:
    values, is_index = NAMELESS[kind]
    frame = pd.DataFrame({name: values, "a": np.random.default_rng(1).normal(size=200), "y": np.arange(200.0)})
    frame.to_parquet(tmp_path / "rows.parquet")
    frame.rename(columns={"": "Unnamed: 0"}).to_csv(tmp_path / "rows.csv", index=False)
    arrow = pa.Table.from_pandas(frame)
    reader = pa.RecordBatchReader.from_batches(arrow.schema, arrow.to_batches(30))
    polars = pl.DataFrame({column: frame[column].tolist() for column in frame})
    sources: list[Any] = [frame, polars, arrow, dd.from_pandas(frame, npartitions=3)]
    sources += [polars.lazy(), reader, tmp_path / "rows.parquet", tmp_path / "rows.csv"]
    for data in sources:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            table = open_table(data, "y")
        own = "Unnamed: 0" if str(data).endswith("csv") else name
        assert [feature.name for feature in table.features] == (["a"] if is_index else [own, "a"])
        assert any("numbers the rows" in str(warning.message) for warning in caught) == is_index
        assert table.n_rows == 200


@pytest.mark.parametrize(("kind", "is_index"), [("numbers", True), ("decimals", False)])
def test_workers_and_this_process_see_the_same_index(kind: str, is_index: bool) -> None:
    frame = pd.DataFrame({"": NAMELESS[kind][0], "a": np.random.default_rng(1).normal(size=200), "y": np.arange(200.0)})
    with Client(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as client:
        for data in (dd.from_pandas(frame, npartitions=3), client.persist(dd.from_pandas(frame, npartitions=3)), frame):
            booster = dboost.fit(data, "y", max_iter=2, client=client)
            assert booster.feature_names_in_.tolist() == (["a"] if is_index else ["", "a"])
