"""Every mistake in the data raises an error whose one sentence names the column, the row or the partition."""

from __future__ import annotations

import datetime
import re
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse

import dboost
from dboost.data import feature_block, open_table
from dboost.data import open_table as read
from dboost.errors import DataError, DBoostError, InputTypeError, ParameterError
from dboost.schema import Feature

N = 10
X = np.random.default_rng(0).random((N, 3))
Y = np.arange(N)
FRAME = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=Y)


def lazy(frame: pd.DataFrame = FRAME) -> dd.DataFrame:
    return dd.from_pandas(frame, npartitions=3, sort=False)


def parts(*frames: pd.DataFrame) -> dd.DataFrame:
    return dd.from_map(lambda i: frames[i], range(len(frames)), meta=frames[0].iloc[:0])


DATA: list[tuple[Callable[[], Any], str]] = [
    # the table
    (lambda: read(X[:, 0], Y), r"this array has shape \(10,\). Reshape your data"),
    (lambda: read(X[0, 0], Y), r"this array has shape \(\). Reshape your data"),
    (lambda: read(scipy.sparse.coo_array(X[:, 0]), Y), r"this sparse array has shape \(.*,\)"),
    (lambda: read(scipy.sparse.csr_matrix(X)[:, :0], Y), r"there are 0 feature\(s\)"),
    (lambda: read(da.from_array(X[:, 0]), Y), r"shape \(10,\). Reshape your data"),
    (lambda: read([[1, 2], [3]], [0, 1]), "the rows are not all of the same length"),
    (lambda: read(X[:0], Y[:0]), "the data have no rows$"),
    (lambda: read(FRAME[:0], "y"), "the data have no rows$"),
    (lambda: read(parts(FRAME[:0], FRAME[:0]), "y"), "the data have no rows: all 2 partitions are empty"),
    (lambda: read(X[:, :0], Y), r"0 feature\(s\) \(shape=\(10, 0\)\) while a minimum of 1 is required."),
    (lambda: read(pd.concat([FRAME, FRAME[["a"]]], axis=1), "y"), "column 'a' occurs more than once"),
    (lambda: read(FRAME.assign(**{"1": 0}).rename(columns={"a": 1}), "y"), "column '1' occurs more than once"),
    (lambda: read(pa.table([[1], [2]], names=["u", "u"]), [1]), "column 'u' occurs more than once"),
    # choosing columns
    (lambda: read(X, "y"), "target is 'y', but an array has no column names"),
    (lambda: read(da.from_array(X), "y"), "target is 'y', but an array has no column names"),
    (lambda: read(X, 2), "target is 2, but an array has no column names"),
    (lambda: read(X, Y, offset="o"), "offset is 'o', but an array has no column names"),
    (lambda: read(FRAME, "y", like=(Feature("a"), Feature("q"))), "no column 'q', which the model needs"),
    (lambda: read(X, Y, like=(Feature("a"),)), "X has 3 features, but dboost is expecting 1 features as input"),
    # target
    (lambda: read(X), "requires y to be passed, but the target y is None"),
    (lambda: read(X, Y[:-1]), "target has 9 rows, the data have 10"),
    (lambda: read(pa.Table.from_pandas(FRAME).to_reader(), Y[:-1]), "target has 9 rows, the data have 10"),
    (lambda: dboost.fit(scipy.sparse.csr_matrix(X / [1, 0, 1]), Y, **SHORT), r"column 'f1' holds an infinite value \(row 0\)"),
    (lambda: read(lazy(FRAME[["a"]]), Y[:-1]), "target has 9 rows, the data have 10"),
    (lambda: read(X, Y, offset=np.stack([Y, Y], 1)), r"offset has shape \(10, 2\): one value per row"),
    (lambda: read(X, Y, offset=FRAME[["a", "b"]]), "offset has 2 columns, one is needed"),
    (lambda: read(X, [[1], [1, 2]]), "target is not one value per row"),
    (lambda: read(X, [None] * 10), r"target contains NaN .* in 10 rows, first in row 0"),
    (lambda: read(X, ["u", float("nan")] * 5), "target contains NaN"),
    (lambda: read(X, ["u", 1] * 5), "column 'target' mixes text with int"),
    (lambda: read(X, Y * 1j), "Complex data not supported"),
    (lambda: read(lazy(), da.from_array(Y, chunks=2)), "target has 5 partitions, .* 3: they must align; to a Dask frame"),
    (
        lambda: read(lazy()[["a"]].to_dask_array(), dd.from_pandas(FRAME, npartitions=2)["y"].to_dask_array()),
        r"they must align \(Dask joins small files\): persist the frame of both first, or give the frame and the name of",
    ),
    (lambda: read(lazy(), "y", offset=lazy()[["a", "y"]]), "offset has 2 columns, one is needed"),
    (lambda: read(da.from_array(X), da.from_array(Y[:-1])), "target has 9 rows, the data have 10"),
    (lambda: read(da.from_array(X), da.from_array(Y), offset=da.zeros((N, 2))), r"offset has shape \(10, 2\)"),
    (
        lambda: read(parts(FRAME[:4], FRAME[4:]), parts(FRAME[:5][["y"]], FRAME[5:][["y"]])["y"]),
        "partition [01]: target has [56] rows?, the data have [46]",
    ),
    (
        lambda: read(parts(FRAME[:4], FRAME[4:].assign(y="u")), "y"),
        "column 'y' holds numbers in partition 0, but text or categories in partition 1",
    ),
    # weight and offset
    (lambda: read(X, Y, sample_weight=np.ones((N, 2))), r"sample_weight has shape \(10, 2\)"),
    (lambda: read(X, Y, sample_weight=np.ones(3)), "sample_weight has 3 rows, the data have 10"),
    # partitions
    (lambda: read(parts(FRAME, FRAME.drop(columns="b")), "y"), "partition 1: there is no column 'b'"),
    (lambda: read(parts(FRAME, FRAME.drop(columns="b")), "y", features=["b", "a"]), "partition 1: there is no column 'b'"),
    (
        lambda: read(parts(FRAME, FRAME.assign(extra=1)), "y"),
        "partition 1: there is a column 'extra' that other partitions do not have",
    ),
    (lambda: read(parts(FRAME, FRAME.assign(b=pd.Timestamp("2020"))), "y"), "partition 1: column 'b' has type datetime64"),
    (
        lambda: read(parts(FRAME.assign(b=pd.Categorical(["u"] * N)), FRAME), "y"),
        "column 'b' holds numbers in partition 1, but text or categories in partition 0",
    ),
    # categorical_features
    (
        lambda: read(FRAME.assign(a=pd.Categorical(Y)), "y", categorical_features=["b"]),
        "column 'a' holds text or categories, which cannot be made numeric",
    ),
    (
        lambda: read(FRAME.assign(a="u"), "y", like=(Feature("a"),)),
        "column 'a' holds text or categories, which cannot be made numeric: the feature is numeric in the model",
    ),
    (
        lambda: read(np.arange(65_536)[:, None], np.zeros(65_536), categorical_features=[0]),
        "column 'f0' has more than 65,535 categories",
    ),
    (
        lambda: read(da.arange(65_536, chunks=40_000).astype(str)[:, None], np.zeros(65_536)),
        "partition [01]: column 'f0' has more than 65,535 categories",
    ),
    (lambda: read(X / [0, 1, 1], Y, categorical_features=[0]), "column 'f0' is declared categorical but holds infinite"),
    # prediction
    (lambda: feature_block(FRAME, (Feature("q"),), True), "predict: the data have no column 'q', which the model"),
    (lambda: feature_block(X, (Feature("a"),), True, subject="apply"), "apply: X has 3 features, but dboost is expecting 1"),
    (lambda: feature_block(FRAME, (Feature("f0"),), False), "X has 4 features, but dboost is expecting 1"),
    (lambda: feature_block(FRAME.assign(a="u"), (Feature("a"),), True), "predict: column 'a' holds text"),
]

#: What is no table, and the call that makes one.
NO_TABLES: list[tuple[Callable[[], Any], str]] = [
    (lambda: [FRAME, FRAME], r"a list of 2 × DataFrame: pass pandas\.concat\(frames\)"),
    (lambda: (FRAME, FRAME, FRAME), r"a tuple of 3 × DataFrame: pass pandas\.concat"),
    (lambda: [pl.from_pandas(FRAME)] * 2, r"pass polars\.concat"),
    (lambda: [pa.Table.from_pandas(FRAME)] * 2, r"pass pyarrow\.concat_tables"),
    (lambda: pa.Table.from_pandas(FRAME).to_batches(), r"pass pyarrow\.Table\.from_batches"),
    (lambda: lazy().to_delayed(), r"a list of 3 × Delayed: pass dask\.dataframe\.from_delayed\(parts\)"),
    (lambda: lazy().to_delayed()[0], r"a Dask Delayed: .* dask\.dataframe\.from_delayed"),
    (lambda: [lazy(), lazy()], r"pass dask\.dataframe\.concat"),
    (lambda: [da.from_array(X)] * 2, r"pass dask\.array\.concatenate"),
    (lambda: db.from_sequence([{"a": 1}]), r"a Dask Bag: .* data\.to_dataframe\(\)"),
    (lambda: FRAME["a"], r"this Series has shape \(10,\)\. Reshape your data: data\.to_frame\(\)"),
    (lambda: pl.Series([1.0, 2.0]), r"this Series .* data\.to_frame\(\)"),
    (lambda: FRAME.index, r"this RangeIndex .* data\.to_frame\(\)"),
    (lambda: lazy()["a"], r"this Dask Series .* data\.to_frame\(\)"),
    (lambda: pa.array([1.0, 2.0]), r"this DoubleArray .* pyarrow\.table"),
    (lambda: FRAME.to_records(index=False), r"records with the fields 'a', 'b', .*: pass pandas\.DataFrame\(array\)"),
    (lambda: np.zeros(N, [("a", float)]), r"records with the fields 'a': pass pandas\.DataFrame"),
    (lambda: FRAME.to_dict("list"), r"dict: pass pandas\.DataFrame\(data\)"),
    (lambda: FRAME.to_dict("records"), r"a list of 10 × dict: pass pandas\.DataFrame\(rows\)"),
    (lambda: (row for row in X), r"generator: it can be read only once: pass list\(rows\)"),
    (lambda: zip(X, Y, strict=True), "zip: it can be read only once"),
    (lambda: [X, X], r"a list of 2 × ndarray: pass numpy\.concatenate"),
    (lambda: np.zeros((N, 3, 2)), r"shape \(10, 3, 2\)\. .* array\.reshape\(len\(array\), -1\)"),
    (lambda: da.zeros((N, 3, 2)), r"shape \(10, 3, 2\)\. .* array\.reshape\(len\(array\), -1\)"),
    (lambda: FRAME.groupby("a"), "DataFrameGroupBy: pass the frame that was grouped"),
    (lambda: lazy().groupby("a"), "GroupBy: pass the frame that was grouped"),
    (lambda: FRAME.rolling(3), "Rolling: pass the frame that was grouped"),
    (lambda: sys.__stdin__, "TextIOWrapper: pass the path of the file"),
    (lambda: (FRAME, FRAME["y"]), "a tuple of a table and its targets: pass them as two arguments"),
    (lambda: (X, Y), "a tuple of a table and its targets: pass them as two arguments"),
    (lambda: ["a.csv", 3], "its items must all be paths"),
    (lambda: pd.DataFrame, "the class DataFrame"),
    (lambda: {1, 2}, "cannot read a table from set: pass a Dask, pandas, polars or Arrow table"),
]


@pytest.mark.fast_cells(10)
@pytest.mark.parametrize(("make", "message"), NO_TABLES, ids=[message[:40] for _, message in NO_TABLES])
def test_what_is_no_table_is_named_with_the_call_that_makes_one(make: Callable[[], Any], message: str) -> None:
    for read_it in (
        lambda data: read(data, Y),
        lambda data: model().predict(data),
        lambda data: dboost.fit(X, Y, eval_set=[(data, Y)], **SHORT),
        lambda data: dboost.DBoostRegressor().fit(data, Y),
        lambda data: dboost.prepare(data, "y"),
    ):
        with pytest.raises((DataError, InputTypeError), match=message):
            read_it(make())


#: Parameters of a fit that warns of nothing.
SHORT: dict[str, Any] = {"max_iter": 1, "loss": "squared_error", "min_samples_leaf": 1, "min_hessian": 0.0}


@cache
def model() -> dboost.Booster:
    return dboost.fit(FRAME, "y", **SHORT)


PARAMETERS: list[tuple[Callable[[], Any], str]] = [
    (lambda: read(X, Y, features=["f0"]), "features needs column names"),
    (lambda: read(FRAME, "y", like=(Feature("a"),), features=["a", "b"]), "features cannot be .*it was not trained on 'b'"),
    (lambda: read(FRAME, "y", like=(Feature("a"), Feature("b")), features=["a"]), "it was also trained on 'b': leave"),
    (lambda: read(X, Y, categorical_features="dtype"), "categorical_features is 'dtype'"),
    (lambda: read(X, Y, categorical_features=[True]), r"boolean mask must have shape \(n_features,\)"),
    (lambda: read(X, Y, categorical_features=[0, -1]), r"must be in \[0, n_features - 1\], that is \[0, 2\]"),
    (lambda: read(X, Y, categorical_features=[3]), r"must be in \[0, n_features - 1\]"),
    (lambda: read(X, Y, categorical_features=["f0"]), "fitted on data without feature names"),
    (lambda: read(FRAME, "y", categorical_features=["y"]), "item value 'y' which is not a valid feature"),
    (lambda: read(X, Y, categorical_features=[b"u", b"v"]), "array-like of bool, int or str, got: bytes8"),
    (lambda: read(X, Y, categorical_features=[0.5]), "array-like of bool, int or str, got: float64"),
    (
        lambda: read(X, Y, categorical_features=np.array([b"u", 1.3], dtype=object)),
        "array-like of bool, int or str, got: bytes, float",
    ),
    (lambda: read(X, Y, categorical_features=[[0], [1]]), r"categorical_features has shape \(2, 1\)"),
]

TYPES: list[tuple[Callable[[], Any], str]] = [
    (lambda: read(None, Y), "cannot read a table from NoneType"),
    (lambda: read(X, 3.5), "target must be a column name or one value per row, not float"),
    (lambda: read(X, scipy.sparse.csr_matrix(Y[:, None])), "target"),
    (lambda: read(lazy(), dask.delayed(Y)), "target cannot be a Dask Delayed"),
]

MISTAKES = [
    *((DataError, *mistake) for mistake in DATA),
    *((ParameterError, *mistake) for mistake in PARAMETERS),
    *((InputTypeError, *mistake) for mistake in TYPES),
]


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize(("kind", "mistake", "message"), MISTAKES, ids=[message[:60] for _, _, message in MISTAKES])
def test_mistakes(kind: type[Exception], mistake: Callable[[], Any], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        mistake()
    assert isinstance(caught.value, DBoostError)
    assert isinstance(caught.value, (ValueError, TypeError))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pd.date_range("2020", periods=2), r"'c' has type datetime64.*: derive numbers.* df\['c'\].dt.month"),
        (pd.date_range("2020", periods=2, tz="UTC"), r"'c' has type datetime64.*dt.month"),
        (pd.period_range("2020", periods=2, freq="D"), r"'c' has type period.*dt.month"),
        (pd.to_timedelta([1, 2], unit="s"), r"'c' has type timedelta64.*: use its length in seconds"),
        (pa.array([datetime.date(2020, 1, 1)] * 2), r"'c' has type date32.*dt.month"),
        (pa.array([datetime.datetime(2020, 1, 1)] * 2), r"'c' has type timestamp.*dt.month"),
        (pl.Series([datetime.date(2020, 1, 1)] * 2), r"'c' has type date32.*dt.month"),
        (pl.Series([datetime.timedelta(1)] * 2), r"'c' has type duration.*in seconds"),
        (np.array([datetime.date(2020, 1, 1)] * 2, dtype=object), r"'c' has type date, .*dt.month"),
        (np.array([1j, 2]), "'c' has type complex128.*Complex data not supported"),
        (np.array([1j, None]), "'c' has type complex.*Complex data not supported"),
        (np.array([b"u", b"v"], dtype="S1"), r"'c' (has type \|S1|holds bytes)"),
        (pa.array([b"u", b"v"]), "'c' has type binary"),
        (pa.array([[1], [2]]), "'c' has type list"),
        (pl.Series([[1], [2]]), "'c' has type large_list"),
        (pl.Series([object(), object()], dtype=pl.Object), "'c' has type fixed_size_binary"),
        (np.array([{"foo": "bar"}, 1.0], dtype=object), "'c' holds dict, float: an argument must be a string"),
        (np.array(["u", 1.5], dtype=object), "'c' mixes text with float"),
        (pd.cut([1, 2], 2), "'c' has categories of type Interval"),
        (pd.Categorical(pd.date_range("2020", periods=2)), "'c' has categories of type Timestamp"),
    ],
    ids=lambda value: str(getattr(value, "dtype", getattr(value, "type", "")))[:24],
)  # fmt: skip
def test_columns_that_are_no_features(values: Any, message: str) -> None:
    if isinstance(values, pa.Array):
        data: Any = pa.table({"c": values})
    elif isinstance(values, pl.Series):
        data = pl.DataFrame({"c": values})
    else:
        data = pd.DataFrame({"c": pd.Series(values, dtype=getattr(values, "dtype", None))})
    with pytest.raises(DataError, match=message) as caught:
        open_table(data, [0, 1])
    assert "column 'c'" in str(caught.value)
    with pytest.raises(DataError, match=message):
        feature_block(data, (Feature("c"),), True)


def test_columns_left_out_may_be_anything() -> None:
    frame = FRAME.assign(when=pd.Timestamp("2020"), cell=[{}] * N)
    for data in (frame, lazy(frame)):
        assert open_table(data, "y", features=["a"]).features == (Feature("a"),)
        assert open_table(data, "y", like=(Feature("b"),)).features == (Feature("b"),)


def test_one_empty_partition_is_fine_whatever_it_looks_like() -> None:
    for empty in (FRAME[:0], FRAME[:0].astype(object), pd.DataFrame(), FRAME[:0].assign(more=0)):
        table = open_table(parts(FRAME[:4], empty, FRAME[4:]), "y", sample_weight="a")
        assert table.lengths == (4, 0, 6)
        assert table.chunk(1).n_rows == 0
        assert table.target_dtype == "int64"


def test_several_columns_for_one_role_are_named() -> None:
    frame = pd.DataFrame({"x": np.arange(6.0), "a": np.arange(6.0), "b": np.arange(6.0)})
    message = "sample_weight names 2 columns, 'a', 'b', but a model has one: make one column of them"
    for data in (frame, dd.from_pandas(frame, npartitions=2)):
        with pytest.raises(DataError, match=re.escape(message)):
            read(data, "x", sample_weight=["a", "b"])
    labels = ["a", "b", "a", "b", "a", "b"]  # one for each row
    assert read(frame, labels).target_dtype == "object"


@pytest.mark.parametrize("role", ["target", "group"])
@pytest.mark.parametrize("is_named", [False, True])
def test_dates_of_a_role_have_its_name_and_a_remedy_that_is_of_use(role: str, is_named: bool) -> None:
    dates = pd.Series(pd.date_range("2020", periods=N))
    values = {"target": Y, "group": np.zeros(N)} | {role: "when" if is_named else dates}
    frame = FRAME[["a"]].assign(when=dates) if is_named else FRAME[["a"]]
    kind = {"target": "class", "group": "group"}[role]
    name, column = (f"{role} 'when'", r"df\['when'\]") if is_named else (role, role)
    with pytest.raises(
        DataError, match=rf"^{name} has type datetime64.*: {column}.astype\(str\) makes a {kind} of each date; or"
    ):
        open_table(frame, values["target"], group=values["group"], features=["a"])
    frame, values[role] = (
        (frame.assign(when=dates.astype("category")), "when") if is_named else (frame, dates.astype("category"))
    )
    with pytest.raises(DataError, match=rf"^{name} has categories of type Timestamp; .* by {column}.astype\(str\)"):
        open_table(frame, values["target"], group=values["group"], features=["a"])
