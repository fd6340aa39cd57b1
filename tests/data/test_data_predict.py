"""Predictions have the kind of the input table, and feature blocks contain the values of the table."""

from __future__ import annotations

import collections
import pickle
import threading
from itertools import pairwise
from typing import ClassVar

import cloudpickle
import dask
import dask.array as da
import dask.dataframe as dd
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dboost import Booster
from dboost.data import feature_block, predict_through
from dboost.errors import DataError
from dboost.model import model_file
from dboost.schema import Feature
from tests.helpers.examples import examples
from tests.helpers.forests import random_ensemble

N = 12
FEATURES = (Feature("b"), Feature("c", ("y", "x")), Feature("a"))
FRAME = pd.DataFrame(
    {"a": np.arange(N), "extra": "not looked at", "b": np.linspace(-1, 1, N), "c": ["x", "y", None, "new"] * 3},
    index=pd.Index(np.arange(N) * 3, name="row"),
)
BLOCK = np.column_stack([FRAME["b"], [1, 0, np.nan, np.nan] * 3, FRAME["a"]])


def one(block: np.ndarray) -> np.ndarray:
    return np.nan_to_num(block) @ np.arange(1.0, block.shape[1] + 1)


def two(block: np.ndarray) -> np.ndarray:
    return np.stack([one(block), -one(block)], axis=1)


def words(block: np.ndarray) -> np.ndarray:
    return np.array(["low", "high"], dtype=object)[(one(block) > 5).astype(int)]


class Shape:
    """Checks each block; a callable object like a bound method of a model."""

    def __call__(self, block: np.ndarray) -> np.ndarray:
        assert block.flags.c_contiguous
        assert len(block) > 0
        return one(block)


@pytest.mark.parametrize(
    ("columns", "dtype"),
    [
        ([np.float32, np.float32], np.float32),
        ([np.float16, np.float32], np.float32),
        ([np.int16, bool], np.float32),
        ([np.uint16, "Int8"], np.float32),
        (["category", np.float32], np.float32),
        (["boolean", "Float32"], np.float32),
        ([np.int32, np.float32], np.float64),
        ([np.float64, np.float32], np.float64),
        (["Int64", np.float32], np.float64),
    ],
    ids=str,
)
def test_blocks_are_as_narrow_as_exactness_allows(columns: list, dtype: type) -> None:
    frame = pd.DataFrame({str(j): pd.Series([1, 0, 1]).astype(kind) for j, kind in enumerate(columns)})
    features = tuple(Feature(str(j), (0, 1) if kind == "category" else None) for j, kind in enumerate(columns))
    block = feature_block(frame, features, True)
    assert block.dtype == dtype
    np.testing.assert_array_equal(block, [[1, 1], [0, 0], [1, 1]])


@given(st.integers(1, 400), st.integers(1, 60), st.booleans(), st.sampled_from([np.float32, np.float64]))
def test_blocks_of_any_size(n_rows: int, n_columns: int, by_columns: bool, dtype: type) -> None:
    matrix = np.arange(n_rows * n_columns, dtype=dtype).reshape(n_rows, n_columns)
    features = tuple(Feature(f"f{j}") for j in range(n_columns))
    data = np.asfortranarray(matrix) if by_columns else pd.DataFrame(matrix)
    block = feature_block(data, features, False)
    assert block.dtype == dtype
    np.testing.assert_array_equal(block, matrix)


def test_arrays_pass_through() -> None:
    features = (Feature("f0"), Feature("f1"))
    for dtype in (np.float32, np.float64):
        matrix = np.zeros((5, 2), dtype)
        assert feature_block(matrix, features, False) is matrix
        assert feature_block(matrix, (Feature("u"), Feature("v")), True) is matrix
    np.testing.assert_array_equal(feature_block([[1, 2], [3, 4]], features, False), [[1, 2], [3, 4]])


def test_categorical_arrays() -> None:
    matrix = np.array([[3.0, 1.5], [-1, 2], [7, np.nan], [0, 1.5]])
    block = feature_block(matrix, (Feature("f0", (0, 3)), Feature("f1", (1.5, 2))), False)
    assert block.dtype == np.float32
    np.testing.assert_array_equal(block, [[1, 0], [np.nan, 1], [np.nan, np.nan], [0, 0]])
    np.testing.assert_array_equal(matrix[0], [3, 1.5])
    text = np.array([["u"], ["w"]])
    np.testing.assert_array_equal(feature_block(text, (Feature("f0", ("t", "u")),), False), [[1], [np.nan]])


def test_a_frame_given_to_a_model_of_arrays_is_read_by_position() -> None:
    features = (Feature("f0"), Feature("f1"))
    frame = pd.DataFrame({"v": [1.0], "u": [2.0]})
    np.testing.assert_array_equal(feature_block(frame, features, False), [[1, 2]])
    lazy = predict_through(dd.from_pandas(frame, npartitions=1), one, features=features, named=False)
    assert lazy.compute().tolist() == [5]
    with pytest.raises(DataError, match="X has 3 features"):
        predict_through(frame.assign(w=0), one, features=features, named=False)


def test_pandas_in_pandas_out() -> None:
    got = predict_through(FRAME, one, features=FEATURES, named=True)
    pd.testing.assert_series_equal(got, pd.Series(one(BLOCK), FRAME.index, name="prediction"))
    both = predict_through(FRAME, two, features=FEATURES, named=True, names=["p", "q"])
    pd.testing.assert_frame_equal(both, pd.DataFrame(two(BLOCK), FRAME.index, ["p", "q"]))
    assert predict_through(FRAME, words, features=FEATURES, named=True).tolist() == words(BLOCK).tolist()
    assert list(predict_through(FRAME, two, features=FEATURES, named=True).columns) == [0, 1]


def test_polars_in_polars_out() -> None:
    for frame in (pl.from_pandas(FRAME), pl.from_pandas(FRAME).lazy()):
        got = predict_through(frame, one, features=FEATURES, named=True)
        assert isinstance(got, pl.Series)
        np.testing.assert_array_equal(got.to_numpy(), one(BLOCK))
        both = predict_through(frame, two, features=FEATURES, named=True, names=["p", "q"])
        assert both.columns == ["p", "q"]
        np.testing.assert_array_equal(both.to_numpy(), two(BLOCK))
        text = predict_through(frame, words, features=FEATURES, named=True)
        assert text.dtype == pl.String
        assert text.to_list() == words(BLOCK).tolist()


def test_arrow_in_arrow_out() -> None:
    table = pa.Table.from_pandas(FRAME)
    for data in (table, pa.RecordBatch.from_pandas(FRAME), duckdb.from_arrow(table)):
        got = predict_through(data, one, features=FEATURES, named=True)
        assert isinstance(got, pa.Array)
        np.testing.assert_array_equal(got.to_numpy(), one(BLOCK))
    both = predict_through(table, two, features=FEATURES, named=True, names=["p", "q"])
    assert both.schema == pa.schema({"p": pa.float64(), "q": pa.float64()})
    np.testing.assert_array_equal(both["q"], two(BLOCK)[:, 1])
    assert predict_through(table, words, features=FEATURES, named=True).type == pa.string()


def test_arrays_and_lists_in_arrays_out() -> None:
    features = tuple(Feature(f"f{j}") for j in range(3))
    matrix = np.arange(12.0).reshape(4, 3)
    for data in (matrix, matrix.tolist()):
        got = predict_through(data, one, features=features, named=False)
        assert type(got) is np.ndarray
        np.testing.assert_array_equal(got, one(matrix))
        np.testing.assert_array_equal(predict_through(data, two, features=features, named=False, names="pq"), two(matrix))
    assert predict_through(matrix[:0], two, features=features, named=False).shape == (0, 2)
    assert predict_through(FRAME[:0], one, features=FEATURES, named=True).shape == (0,)


@examples(30)
@given(st.lists(st.integers(0, N), max_size=6), st.integers(1, 3))
def test_dask_arrays(at: list[int], width: int) -> None:
    features = tuple(Feature(f"f{j}") for j in range(3))
    matrix = np.arange(3.0 * N).reshape(N, 3)
    chunks = tuple(np.diff([0, *sorted(at), N]).tolist())
    lazy = da.from_array(matrix, chunks=(chunks, width))
    with dask.config.set(scheduler="synchronous"):
        got = predict_through(lazy, Shape(), features=features, named=False)
        assert (got.chunks, got.dtype) == ((chunks,), np.float64)
        np.testing.assert_array_equal(got.compute(), one(matrix))
        both = predict_through(lazy, two, features=features, named=False, names=["p", "q"], dtype=np.float32)
        assert (both.chunks, both.dtype) == ((chunks, (2,)), np.float32)
        assert all(block.compute().dtype == np.float32 for block in both.blocks)
        np.testing.assert_array_equal(both.compute(), two(matrix))


def test_dask_arrays_of_unknown_length() -> None:
    matrix = da.from_array(np.arange(30.0).reshape(10, 3), chunks=4)
    some = matrix[matrix[:, 0] > 5]
    got = predict_through(some, one, features=tuple(Feature(f"f{j}") for j in range(3)), named=False)
    assert np.isnan(got.shape[0])
    np.testing.assert_array_equal(got.compute(), one(np.arange(30.0).reshape(10, 3)[2:]))


@examples(20)
@given(st.lists(st.integers(0, N), max_size=6))
def test_dask_frames(at: list[int]) -> None:
    borders = [0, *sorted(at), N]
    pieces = [FRAME.iloc[a:b] for a, b in pairwise(borders)]
    lazy = dd.from_map(lambda piece: piece, pieces, meta=FRAME.iloc[:0])
    with dask.config.set(scheduler="synchronous"):
        got = predict_through(lazy, Shape(), features=FEATURES, named=True)
        assert isinstance(got, dd.Series)
        pd.testing.assert_series_equal(got.compute(), pd.Series(one(BLOCK), FRAME.index, name="prediction"))
        both = predict_through(lazy, two, features=FEATURES, named=True, names=["p", "q"], dtype=np.float32)
        assert isinstance(both, dd.DataFrame)
        pd.testing.assert_frame_equal(both.compute(), pd.DataFrame(two(BLOCK).astype(np.float32), FRAME.index, ["p", "q"]))
        text = predict_through(lazy, words, features=FEATURES, named=True, dtype=object)
        assert text.dtype == object
        assert text.compute().tolist() == words(BLOCK).tolist()
        for result in (got, both, text):
            for computed in dask.compute(*result.to_delayed()):
                assert type(computed) is type(result._meta)
                assert computed.index.name == "row"
                found, promised = (x.dtypes if x.ndim == 2 else pd.Series([x.dtype]) for x in (computed, result._meta))
                assert found.tolist() == promised.tolist()


def test_dask_frames_keep_their_divisions() -> None:
    lazy = dd.from_pandas(FRAME, npartitions=3)
    for names, function in ((None, one), (["p", "q"], two)):
        got = predict_through(lazy, function, features=FEATURES, named=True, names=names)
        assert got.divisions == lazy.divisions
        assert got.known_divisions
    joined = lazy.assign(prediction=predict_through(lazy, one, features=FEATURES, named=True)).compute()
    np.testing.assert_array_equal(joined["prediction"], one(BLOCK))


class Heavy:
    """A model that counts how often it is pickled."""

    pickles: ClassVar[collections.Counter[str]] = collections.Counter()

    def predict(self, block: np.ndarray) -> np.ndarray:
        return one(block)

    def __dask_tokenize__(self) -> str:
        return "heavy"  # as the outputs of a model, which have its digest

    def __reduce__(self) -> tuple:
        self.pickles["times"] += 1
        return Heavy, ()


@pytest.mark.parametrize("names", [None, ["p"]])
def test_the_model_is_in_the_graph_once(names: list[str] | None) -> None:
    matrix = da.zeros((100, 3), chunks=(5, 3))
    numbered = tuple(Feature(f"f{j}") for j in range(3))
    frame = dd.from_pandas(FRAME, npartitions=6)
    for data, features, named in ((matrix, numbered, False), (frame, FEATURES, True)):
        Heavy.pickles.clear()
        lazy = predict_through(data, Heavy().predict, features=features, named=named, names=names)
        graph = (lazy.optimize() if named else lazy).__dask_graph__()
        assert len(graph) > 6
        assert sum(b"Heavy" in cloudpickle.dumps(task) for task in graph.values()) == 1
        pickle.loads(cloudpickle.dumps(graph))  # as a scheduler does
        assert Heavy.pickles["times"] == 1


def test_a_large_model_is_packed() -> None:
    """Dask warns of graphs of more than 10 MB."""
    booster = Booster(random_ensemble(0, n_iterations=1500, n_leaves=63))
    assert len(model_file.dumps(booster.ensemble)) > 13 * 2**20
    frame = dd.from_pandas(
        pd.DataFrame({f"x{j}": [1.0, 2.0] for j in (0, 2, 4)} | {"x1": ["a", "b"], "x3": ["a", "b"]}), npartitions=2
    )
    assert len(cloudpickle.dumps(booster.predict(frame).__dask_graph__())) < 8 * 2**20


def test_what_cannot_be_pickled_predicts_in_this_process() -> None:
    lock = threading.Lock()

    def locked(block: np.ndarray) -> np.ndarray:
        with lock:
            return one(block)

    lazy = predict_through(dd.from_pandas(FRAME, npartitions=2), locked, features=FEATURES, named=True)
    np.testing.assert_array_equal(lazy.compute(scheduler="threads"), one(BLOCK))


def test_nothing_is_computed_before_it_is_asked() -> None:
    calls = []

    def part(i: int) -> pd.DataFrame:
        calls.append(i)
        return FRAME.iloc[i : i + 1]

    lazy = dd.from_map(part, range(3), meta=FRAME.iloc[:0])
    got = predict_through(lazy, one, features=FEATURES, named=True)
    assert calls == []
    assert len(got.compute()) == 3
    with pytest.raises(DataError, match="the data have no column 'a', which the model needs"):
        predict_through(lazy[["b", "c"]], one, features=FEATURES, named=True)
    with pytest.raises(DataError, match="X has 2 features, but dboost is expecting 3"):
        predict_through(da.zeros((4, 2)), one, features=FEATURES, named=True)
    with pytest.raises(DataError, match="Reshape your data"):
        predict_through(lazy["a"], one, features=FEATURES, named=True)
