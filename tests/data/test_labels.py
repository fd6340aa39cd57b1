"""Labels of columns that are not text, and columns that occur more than once."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

import dboost
from dboost import DBoostRegressor
from dboost.data.columns.labels import Names
from dboost.errors import DataError, ParameterError

N = 200


class Plain(enum.Enum):
    A, B, C, D, Y = range(5)


class Text(str, enum.Enum):  # noqa: UP042 - its members are equal to text, but str() writes something else
    A, B, C, D, Y = "abcdy"


def values() -> np.ndarray:
    """Four features, the third of which is positive and the fourth a code, and the target."""
    rng = np.random.default_rng(0)
    found = rng.normal(size=(N, 5))
    found[:, 2] = np.abs(found[:, 2])
    found[:, 3] = rng.integers(0, 4, N)
    found[:, 4] = found[:, 0] * found[:, 1] + (found[:, 3] == 2) + rng.normal(size=N) / 4
    return found


#: Labels of the five columns, and what the user calls them if it is something else.
LABELS: dict[str, Any] = {
    "tuples": pd.MultiIndex.from_tuples([("a", 1), ("a", 2), ("b", 1), ("b", 2), ("t", "t")]),
    "times": pd.date_range("2024-01-01", periods=5),
    "floats": [0.5, 1.5, 2.5, 3.5, 4.5],
    "integers": np.array([10, 20, 30, 40, 50]),
    "none": pd.Index(["a", None, "b", "c", "y"], dtype=object),
    "nan": pd.Index(["a", np.nan, "b", "c", "y"], dtype=object),
    "target nan": pd.Index(["a", "d", "b", "c", np.nan], dtype=object),
    "enumeration": list(Plain),
    "text": list("abcdy"),
    "mixed": pd.Index(["a", 1, ("p", "q"), pd.Timestamp("2024"), "y"], dtype=object),
    "periods": pd.period_range("2024-01", periods=5, freq="M"),
    "intervals": pd.interval_range(0, 5),
    "truth values": pd.Index([True, False, "b", "c", "y"], dtype=object),
    "dates": [datetime.date(2024, 1, day) for day in range(1, 6)],
}
CALLED = {
    "tuples": [("a", np.int64(1)), ("a", 2), ("b", 1), ("b", np.float64(2)), ("t", np.str_("t"))],
    "times": [np.datetime64("2024-01-01"), *pd.date_range("2024-01-02", periods=4).to_pydatetime()],
    "floats": [np.float32(0.5), 1.5, np.float64(2.5), 3.5, 4.5],
    "integers": [10, 20, 30, np.int8(40), 50],
    "text": list(Text),
    "periods": [str(one) for one in LABELS["periods"]],
}
KINDS: list[Callable[[list[Any]], Any]] = [
    list,
    tuple,
    set,
    frozenset,
    lambda labels: dict.fromkeys(labels).keys(),
    lambda labels: pd.Index(labels, dtype=object, tupleize_cols=False),
]
SHORT: dict[str, Any] = {"max_iter": 2, "progress": False}


def trees(booster: Any) -> list[Any]:
    """What must be the same whatever the columns are called."""
    return [
        [tree.feature.tolist(), np.nan_to_num(tree.threshold).tolist(), tree.value.tolist()] for tree in booster.ensemble.trees
    ]


@pytest.mark.fast_cells(5)
@pytest.mark.parametrize(
    ("kind", "library"), [*((kind, "pandas") for kind in LABELS), ("tuples", "dask"), ("none", "dask"), ("mixed", "dask")]
)
def test_columns_may_be_named_by_any_label(kind: str, library: str) -> None:
    plain = pd.DataFrame(values(), columns=list("abcdy"))
    frame: Any = pd.DataFrame(values(), columns=LABELS[kind])
    a, b, c, d, y = CALLED.get(kind, list(frame.columns))
    text = list(map(str, frame.columns))
    data = frame if library == "pandas" else dd.from_pandas(frame, npartitions=3)
    expected = dboost.fit(plain, "y", sample_weight="c", categorical_features=["d"], eval_set=plain, **SHORT)
    found = dboost.fit(data, y, sample_weight=c, categorical_features=[d], eval_set=data, **SHORT)
    assert trees(found) == trees(expected)
    assert found.feature_names_in_.tolist() == [text[0], text[1], text[3]]
    assert list(found.history["eval_squared_error"]) == list(expected.history["eval_squared_error"])
    np.testing.assert_array_equal(np.asarray(found.predict(data)), expected.predict(plain))
    assert trees(dboost.fit(data, text[4], sample_weight=text[2], categorical_features=[text[3]], **SHORT)) == trees(expected)
    constraints: dict[str, Any] = {"monotonic_cst": {"a": 1, "b": -1}, "interaction_cst": [{"a", "c"}, ["b"]]}
    expected = dboost.fit(plain, "y", features=["b", "a", "c"], offset="d", **constraints, **SHORT)
    positions = {10: 1, 20: 0, 30: 2}  # numbers in interaction_cst are positions
    of_groups = [positions.get(one, one) for one in (a, b, c)]
    constraints = {"monotonic_cst": {a: 1, b: -1}, "interaction_cst": [{of_groups[0], of_groups[2]}, [of_groups[1]]]}
    found = dboost.fit(data, y, features=[b, a, c], offset=d, **constraints, **SHORT)
    assert trees(found) == trees(expected)
    np.testing.assert_array_equal(np.asarray(found.predict(data, offset=d)), expected.predict(plain, offset="d"))
    prepared = dboost.prepare(data, y, features=[b, a, c], offset=d)
    assert trees(dboost.fit(prepared, y, eval_set=data, **constraints, **SHORT)) == trees(expected)


def test_labels_come_in_any_collection() -> None:
    frame = pd.DataFrame(values(), columns=LABELS["tuples"])
    a, b, c, d, y = frame.columns
    expected = dboost.fit(frame, y, features=[a, b, d], categorical_features=[d], **SHORT)
    more = [lambda labels: pd.MultiIndex.from_tuples(labels), lambda labels: np.array(labels, object), pd.Series]
    for as_kind in (*KINDS, *more):
        assert dboost.fit(frame, y, features=as_kind([a, b, d]), categorical_features=as_kind([d]), **SHORT) == expected
    for groups in (d, frame[d]):
        found = dboost.cv(frame, y, features=[a, b, c], groups=groups, folds=2, max_iter=2)
        assert [one.feature_names_in_.tolist() for one in found.boosters] == [["('a', 1)", "('a', 2)", "('b', 1)"]] * 2


@pytest.mark.fast_cells(2)
@pytest.mark.parametrize("kind", ["tuples", "times", "floats", "integers", "nan", "text"])
def test_interpretation_and_estimators_take_any_label(kind: str) -> None:
    plain, frame = (pd.DataFrame(values(), columns=labels) for labels in (list("abcdy"), LABELS[kind]))
    a, _, c, d, y = CALLED.get(kind, list(frame.columns))
    expected = dboost.fit(plain, "y", sample_weight="c", **SHORT)
    found = dboost.fit(frame, y, sample_weight=c, **SHORT)
    if kind != "integers":  # which are positions here
        of_label = found.partial_dependence(frame, [a], sample_weight=c)["value"]
        assert of_label.tolist() == expected.partial_dependence(plain, "a", sample_weight="c")["value"].tolist()
    assert found.importance("permutation", frame, y).tolist() == expected.importance("permutation", plain, "y").tolist()
    assert len(found.drift(frame, y)) == len(expected.drift(plain, "y"))
    assert trees(found.refit_leaves(frame, y)) == trees(expected.refit_leaves(plain, "y"))
    if len({isinstance(label, str) for label in frame.columns}) == 1:  # scikit-learn refuses text beside other labels
        settings: dict[str, Any] = {"max_iter": 3, "early_stopping": False}
        X, target = frame.iloc[:, :4], frame.iloc[:, 4]
        model = DBoostRegressor(**settings, monotonic_cst={a: 1}, features={d, a}).fit(X, target)
        same = DBoostRegressor(**settings, monotonic_cst={"a": 1}, features=["a", "d"]).fit(
            plain[["a", "b", "c", "d"]], plain["y"]
        )
        assert trees(model.booster_) == trees(same.booster_)
        assert model.feature_names_in_.tolist() == [str(frame.columns[0]), str(frame.columns[3])]
        np.testing.assert_array_equal(model.predict(X), same.predict(plain))
        with pytest.raises(TypeError, match="need X and y themselves"):
            DBoostRegressor().fit(frame, y)


def test_labels_that_are_no_columns_are_named() -> None:
    frame = pd.DataFrame(values(), columns=LABELS["tuples"])
    for wrong in (("a", 3), "a", 7, pd.Timestamp("2024"), 1.5, Plain.A):
        with pytest.raises(DataError, match=r"no column .*, which was given as target; "):
            dboost.fit(frame, wrong, **SHORT)
        with pytest.raises(DataError, match=r"no column .*, which was given as offset; "):
            dboost.fit(frame, ("t", "t"), offset=wrong, **SHORT)
        with pytest.raises(DataError, match=r"no column .*, which features asks for; "):
            dboost.fit(frame, ("t", "t"), features=[("a", 1), wrong], **SHORT)
        with pytest.raises(ParameterError, match="monotonic_cst contains 1 unexpected"):
            dboost.fit(frame, ("t", "t"), monotonic_cst={wrong: 1}, **SHORT)
    for wrong in ("a", pd.Timestamp("2024"), ("a", 3), Plain.A):
        with pytest.raises(ParameterError, match="not a valid feature name"):
            dboost.fit(frame, ("t", "t"), categorical_features=[wrong], **SHORT)
        with pytest.raises(ParameterError, match="Interaction constraints"):
            dboost.fit(frame, ("t", "t"), interaction_cst=[{wrong}], **SHORT)
        with pytest.raises(ParameterError, match="feature"):
            dboost.fit(frame, ("t", "t"), **SHORT).partial_dependence(wrong)
    for wrong in (2.5, pd.Timestamp("2024"), Plain.A):
        with pytest.raises(TypeError, match="target must be a column name or one value per row, not"):
            dboost.fit(values()[:, :4], wrong, **SHORT)


def test_a_tuple_of_values_is_no_label() -> None:
    frame = pd.DataFrame(values()[:, :4], columns=list("abcd"))
    target = values()[:, 4]
    assert dboost.fit(frame, tuple(target), **SHORT) == dboost.fit(frame, target, **SHORT)
    assert dboost.fit(frame, tuple(target), sample_weight=tuple(frame["c"]), **SHORT).n_iter_ == 2
    with pytest.raises(DataError, match="target has 2 rows, the data have 200"):
        dboost.fit(frame, (1.0, 2.0), **SHORT)


@pytest.mark.parametrize("library", ["pandas", "dask", "parquet"])
def test_a_column_that_is_the_index_has_a_hint(library: str, tmp_path: Path) -> None:
    frame: Any = pd.DataFrame(values(), columns=list("abcdy")).set_index("y")
    if library == "dask":
        frame = dd.from_pandas(frame.sort_index(), npartitions=2)
    elif library == "parquet":
        frame.to_parquet(tmp_path / "rows.parquet")
        frame = tmp_path / "rows.parquet"
    hint = r"'y' is the index of the table: make it a column with reset_index\(\)"
    for roles in ({"target": "y"}, {"target": "a", "sample_weight": "y"}, {"target": "a", "features": ["b", "y"]}):
        with pytest.raises(DataError, match=hint):
            dboost.fit(frame, **roles, **SHORT)
    model = dboost.fit(pd.DataFrame(values(), columns=list("abcdy")), "a", **SHORT)
    with pytest.raises(DataError, match=hint):
        model.predict(frame)


def repeated_columns(library: str, folder: Path) -> Any:
    """A table with the columns a, b, c, c and y."""
    table = pa.table(list(values().T), names=list("abccy"))
    frame = table.to_pandas()
    if library == "dask":
        return dd.from_pandas(frame, npartitions=3)
    if library == "parquet":
        pq.write_table(table, folder / "rows.parquet")
    if library == "csv":
        frame.to_csv(folder / "rows.csv", index=False)
    return {"pandas": frame, "arrow": table}.get(library, folder / f"rows.{library}")


@pytest.mark.fast_cells(2)
@pytest.mark.parametrize("library", ["pandas", "arrow", "dask", "parquet", "csv"])
def test_columns_that_are_not_used_may_occur_more_than_once(library: str, tmp_path: Path) -> None:
    plain, data = pd.DataFrame(values()[:, [0, 1, 4]], columns=list("aby")), repeated_columns(library, tmp_path)
    expected = dboost.fit(plain, "y", **SHORT)
    assert dboost.fit(data, "y", features=iter(["a", "b"]), **SHORT) == expected
    assert dboost.fit(dboost.prepare(data, "y", features=["a", "b"]), **SHORT) == expected
    assert dboost.fit(plain, "y", eval_set=data, **SHORT).n_iter_ == 2
    np.testing.assert_array_equal(np.asarray(expected.predict(data)), expected.predict(plain))
    np.testing.assert_array_equal(np.asarray(expected.apply(data)), expected.apply(plain))
    for used in ({"features": ["a", "c"]}, {"features": ["a"], "sample_weight": "c"}, {}):
        with pytest.raises(DataError, match=r"'c' occurs more than once|several columns named 'c'"):
            dboost.fit(data, "y", **used, **SHORT)
    with pytest.raises(DataError, match=r"'c' occurs more than once|several columns named 'c'"):
        dboost.fit(plain.rename(columns={"a": "c"}), "y", **SHORT).predict(data)
    if library in ("pandas", "arrow", "dask"):
        settings: dict[str, Any] = {"max_iter": 3, "early_stopping": False}
        model = DBoostRegressor(**settings).fit(plain[["a", "b"]], plain["y"])
        np.testing.assert_array_equal(np.asarray(model.predict(data)), model.predict(plain[["a", "b"]]))


def test_names_that_pandas_gives_to_repeated_columns_are_no_others(tmp_path: Path) -> None:
    table = pd.DataFrame(values(), columns=["a", "c", "c", "c.1", "y"])
    table.to_csv(tmp_path / "rows.csv", index=False)
    used = pd.read_csv(tmp_path / "rows.csv", header=0, names=["a", "p", "q", "c.1", "y"])[["a", "c.1", "y"]]
    expected = dboost.fit(used, "y", **SHORT)
    assert dboost.fit(tmp_path / "rows.csv", "y", features=["a", "c.1"], **SHORT) == expected
    np.testing.assert_array_equal(expected.predict(tmp_path / "rows.csv").compute(), expected.predict(used))


def test_equal_labels_come_before_equal_text() -> None:
    names = Names(["1", 1, 2.0, True, None, np.nan, ("a", 1), pd.NaT])
    labels = ("1", 1.0, 2, np.float32(2), True, None, float("nan"), ("a", np.int8(1)), pd.NaT)
    assert [names.find(label) for label in labels] == [
        "1", "1", "2.0", "2.0", "True", "None", "nan", "('a', 1)", "NaT",
    ]  # fmt: skip
    assert names.repeated == {"1"} and names.find("2.0") == "2.0" and names.find(False) is None and names.find([1]) is None
    assert [names.is_label(one) for one in ("x", 3, True, ("a", 1), pd.NaT, pl.Series([1]), [1], (1, 2, 3), None, False)] == [
        True, True, True, True, True, False, False, False, False, False,
    ]  # fmt: skip
