"""Several target columns arrive from every kind of table."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client

import dboost
from dboost import DataError, Dataset, ParameterError
from dboost.data import ReadOptions, Table, open_table
from dboost.data.columns.fingerprint import fingerprint
from dboost.data.columns.labels import Names
from dboost.data.columns.read_plan import make_read_plan
from dboost.data.columns.roles import RowRoles
from dboost.data.kinds.partition import read_slices
from dboost.data.tables.reader import Reader
from dboost.data.tables.row_metadata import RowMetadataSpool
from dboost.files.spool import Spool
from tests.helpers.fits import cut

RNG = np.random.default_rng(0)
N = 60
FRAME = pd.DataFrame(
    {
        "a": RNG.normal(size=N),
        "x": RNG.normal(size=N),
        "b": RNG.integers(0, 9, N),
        "z": RNG.normal(size=N),
        "w": np.arange(N) % 3,
    }
)
TARGETS = FRAME[["b", "a"]].to_numpy(np.float64).T
X = FRAME[["x", "z"]]


def targets_of(table: Table) -> np.ndarray:
    parts = [table.roles(i).target for i, n in enumerate(table.lengths) if n]
    return np.concatenate(parts, axis=-1)  # type: ignore[arg-type]


#: Data, and targets beside them or in a lazy frame.
FORMS: dict[str, tuple[Any, Any]] = {
    "array": (X.to_numpy(), TARGETS.T),
    "frame beside an array": (X.to_numpy(), FRAME[["b", "a"]]),
    "list": (X, TARGETS.T.tolist()),
    "Dask frame": (cut(FRAME, [10, 10, 45]), ["b", "a"]),
    "Dask frame beside it": (cut(X, [10, 45]), cut(FRAME[["b", "a"]], [10, 45])),
    "Dask array": (da.from_array(X.to_numpy(), chunks=(25, 1)), da.from_array(TARGETS.T, chunks=(25, 1))),
    "array beside a Dask frame": (cut(X, [10, 45]), TARGETS.T),
}


@pytest.mark.fast_cells(6)
@pytest.mark.parametrize("options", [ReadOptions(), ReadOptions(1, spool_roles=True, retain_bytes=0)], ids=["memory", "files"])
@pytest.mark.parametrize("form", FORMS)
def test_targets_arrive_from_every_source(form: str, options: ReadOptions) -> None:
    data, target = FORMS[form]
    with open_table(data, target, options=options) as table:
        assert {"a", "b"}.isdisjoint(feature.name for feature in table.features)
        np.testing.assert_array_equal(targets_of(table), TARGETS)
        table.gather_roles()
        np.testing.assert_array_equal(table.all_roles.target, TARGETS)  # type: ignore[arg-type]


#: Data sets with two targets, by where their rows are. Of the workers' partitions one is empty, of another all weights are 0.
DATASETS: dict[str, Callable[[Client, Path], Dataset]] = {
    "temporary": lambda _, __: dboost.prepare(FRAME, ["b", "a"], sample_weight="w"),
    "files": lambda _, folder: dboost.prepare(cut(X, [10, 45]), TARGETS.T, folder / "one", memory_limit="64MiB"),
    "values": lambda client, _: dboost.prepare(cut(X, [10, 10, 45]), TARGETS.T, client=client),
    "published": lambda client, _: published(cut(FRAME, [20]), client),
    "opened files of workers": lambda client, folder: reopened(
        dboost.prepare(cut(FRAME, [10, 10, 12, 13, 45]), ["b", "a"], f"{folder}/many", sample_weight="w", client=client)
    ),
}


def reopened(data: Dataset) -> Dataset:
    assert data.target == ["b", "a"]
    return Dataset(data.path)


def published(frame: Any, client: Client) -> Dataset:
    dboost.prepare(frame, ["b", "a"], client=client, publish="targets")
    return Dataset.published("targets", client)


@pytest.mark.fast_cells(3)
@pytest.mark.parametrize("place", DATASETS)
def test_targets_of_prepared_data(place: str, client: Client, tmp_path: Path) -> None:
    with DATASETS[place](client, tmp_path) as data:
        by_name = place not in ("files", "values")
        assert data.target == (["b", "a"] if by_name else None)
        assert ("b, a" in data._repr_html_()) == by_name
        is_weighted = data.settings["sample_weight"] == "w"
        expected = TARGETS[:, FRAME["w"] > 0] if is_weighted else TARGETS
        assert data.n_rows == expected.shape[1]
        np.testing.assert_array_equal(data._rows(None if data.is_temporary else client).targets(), expected)
        assert dboost.fit(data, max_iter=1).outputs.names == (["b", "a"] if by_name else ["0", "1"])
        if place == "published":
            data.unpublish()


def test_a_list_of_values_is_no_list_of_names() -> None:
    for values in (FRAME["a"].tolist(), [f"class {i % 3}" for i in range(N)], TARGETS.T.tolist()):
        with dboost.prepare(X, values) as data:
            assert (data.target, data.settings["target"]) == (None, "<list>")
            with pytest.raises(ParameterError, match="holds prepared data with a target of their own: leave yours out"):
                dboost.fit(data, values)


@pytest.mark.parametrize("kind", ["pandas", "Dask", "evaluation set", "cv", "prepared", "importance"])
def test_several_columns_may_be_named_by_any_labels(kind: str) -> None:
    """Collections of labels other than lists of text mean what the names mean."""
    plain = dboost.fit(FRAME, ["b", "a"], features=["x", "z"], max_iter=2)
    tuples, whole = FRAME.copy(), FRAME.copy()
    tuples.columns = pd.MultiIndex.from_tuples([("set", name) for name in FRAME])
    whole.columns = pd.RangeIndex(FRAME.shape[1])
    calls: list[tuple[pd.DataFrame, Any, list[Any]]] = [
        (FRAME, pd.Index(["b", "a"]), ["x", "z"]),
        (FRAME, np.array(["b", "a"]), ["x", "z"]),
        (tuples, [("set", "b"), ("set", "a")], [("set", "x"), ("set", "z")]),
        (tuples, tuples.columns[[2, 0]], [("set", "x"), ("set", "z")]),
        (whole, [2, 0], [1, 3]),
        (whole, whole.columns[[2, 0]], [1, 3]),
    ]
    for frame, target, features in calls:
        names = [str(frame.columns[j]) for j in (2, 0)]
        options: dict[str, Any] = {"features": features, "max_iter": 2}
        if kind == "cv":
            result = dboost.cv(frame, target, folds=2, eval_metric=f"rmse of {names[1]}", **options)
            assert f"rmse of {names[1]}" in result.summary["metric"].to_list()
            continue
        if kind == "prepared":
            with dboost.prepare(frame, target, features=features) as data:
                booster = dboost.fit(data, max_iter=2)
        elif kind == "evaluation set":
            booster = dboost.fit(frame, target, eval_set=frame, **options)
            losses = booster.history[[f"eval_squared_error of {name}" for name in names]]
            assert (losses.mean(axis=1) == booster.history["eval_squared_error"]).all()
        else:
            booster = dboost.fit(dd.from_pandas(frame, npartitions=3) if kind == "Dask" else frame, target, **options)
        assert list(booster.predict(frame)) == names
        np.testing.assert_array_equal(booster.predict(frame), plain.predict(FRAME))
        if kind == "importance":
            found = booster.importance("permutation", frame, target)
            assert found.to_list() == plain.importance("permutation", FRAME, ["b", "a"]).to_list()


def test_labels_in_another_order_are_refused() -> None:
    """Whatever the labels are, and wherever several targets are compared with those of a model."""
    tuples, whole = FRAME.copy(), FRAME.copy()
    tuples.columns = pd.MultiIndex.from_tuples([("set", name) for name in FRAME])
    whole.columns = pd.RangeIndex(FRAME.shape[1])
    for frame in (FRAME, tuples, whole):
        target = frame.columns[[2, 0]]
        model = dboost.fit(frame, target, features=list(frame.columns[[1, 3]]), max_iter=1)
        for other in (target[::-1], list(target[::-1])):
            for call in (
                lambda frame=frame, model=model, other=other: model.importance("permutation", frame, other),
                lambda frame=frame, model=model, other=other: model.refit_leaves(frame, other),
                lambda frame=frame, model=model, other=other: dboost.fit(frame, other, start_from=model, max_iter=1),
            ):
                with pytest.raises(DataError, match=r"the columns of the target are .*: give them in this order"):
                    call()


def test_labels_that_may_be_values_are_values() -> None:
    """A list of numbers as long as the table has values, also if all of them are labels; so is an array of numbers."""
    few = pd.DataFrame(np.arange(12.0).reshape(3, 4), columns=[0, 1, 2, 3])
    for values in ([3, 0, 1], np.array([3, 0, 1])):
        assert dboost.fit(few, values, max_iter=1).n_features_in_ == 4
    assert dboost.fit(few, [3, 0], max_iter=1).n_features_in_ == 2
    with pytest.raises(DataError, match="target has 2 rows, the data have 3"):
        dboost.fit(few, np.array([3, 0]), max_iter=1)
    with pytest.raises(DataError, match="target has 2 rows, the data have 3"):
        dboost.fit(few, [3, 9], max_iter=1)


@pytest.mark.parametrize("form", ["names", "values", "partitions"])
def test_an_invalid_value_has_the_name_of_its_column(form: str) -> None:
    frame = FRAME.assign(a=FRAME["a"].where(FRAME.index != 7), b=FRAME["b"].where(FRAME.index < 50))
    data: Any = cut(frame, [10, 45]) if form == "partitions" else X if form == "values" else frame
    target: Any = frame[["b", "a"]] if form == "values" else ["b", "a"]
    found = "target 'a' .* in 1 row, first in row 7"
    if form == "values":
        found = "column 0 of target .* in 10 rows, first in row 50"
    with pytest.raises(DataError, match=found):
        dboost.fit(data, target)
    if form == "values":
        with pytest.raises(DataError, match="target 'a' holds text or categories, but of several columns"):
            dboost.fit(X, FRAME[["b", "a"]].astype({"a": str}))


def test_a_matrix_has_columns() -> None:
    with pytest.warns(PendingDeprecationWarning):
        matrix = np.matrix(TARGETS.T)
    assert dboost.fit(X, matrix, max_iter=1) == dboost.fit(X, TARGETS.T, max_iter=1)
    assert dboost.fit(X, matrix[:, 0], max_iter=1) == dboost.fit(X, TARGETS[0], max_iter=1)


@pytest.mark.parametrize("roles", ["columns", "values"])
def test_targets_of_partitions_that_move_to_another_worker(roles: str) -> None:
    """A reader sends the chunks of a partition, and another one stores them."""
    target = ["b", "a"] if roles == "columns" else None
    plan = make_read_plan(Names(FRAME.columns), True, roles={"sample_weight": "w"} | ({"target": target} if target else {}))
    for spool_roles in (False, True):
        sender, receiver = (Reader(plan, Spool(1 << 20), RowMetadataSpool() if spool_roles else None) for _ in range(2))
        given = {} if target else {"target": TARGETS.T}
        slices = sender.read_partition(0, FRAME, given)
        chunks = [sender.chunk(0, piece, number) for number, piece in enumerate(slices)]
        for number, chunk in enumerate(pickle.loads(pickle.dumps(chunks))):
            receiver.add_slice(0, chunk, number)
        again = receiver.chunk(0, slices[0], 0)
        np.testing.assert_array_equal(again.roles.target, TARGETS)
        np.testing.assert_array_equal(again.roles.rows(np.array([3, 50])).target, TARGETS[:, [3, 50]])
        assert RowRoles.concatenated([again.roles, again.roles]).n_rows == 2 * N


def test_the_checksum_of_a_partition_depends_on_every_target() -> None:
    plan = make_read_plan(Names(FRAME.columns), True, roles={"target": ["b", "a"]})
    changes: list[dict[str, Any]] = [{}, {"a": FRAME["x"]}, {"b": FRAME["w"]}]
    assert len({fingerprint(*read_slices(FRAME.assign(**changed), plan)) for changed in changes}) == 3


def one_target(**options: Any) -> dboost.Booster:
    return dboost.fit(X, FRAME["a"], max_iter=1, max_leaf_nodes=2, **options)


#: Calls that use several targets with a model of one.
CALLS: list[Callable[[], Any]] = [
    lambda: dboost.fit(X, TARGETS.T, start_from=one_target(), max_iter=1),
    lambda: one_target().refit_leaves(X, TARGETS.T),
    lambda: one_target().drift(X, TARGETS.T),
    lambda: one_target().importance("permutation", FRAME, ["b", "a"]),
    lambda: dboost.fit(X, FRAME["a"] > 0, max_iter=1, max_leaf_nodes=2).drift(FRAME, ["b", "a"]),
]


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_a_model_of_one_target_takes_no_others(number: int) -> None:
    with pytest.raises(DataError, match=r"the target has 2 columns, but loss='(squared_error|log_loss)' takes one"):
        CALLS[number]()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (["b", "a", "b"], "target names a column twice: 'b', 'a', 'b'"),
        (pd.DataFrame({"a": FRAME["a"], "t": ["text"] * N}), "target 't' holds text or categories, but of several columns"),
        (
            FRAME[["a", "b"]].mask(FRAME[["w"]].to_numpy() * [[0, 1]] == 2),
            "target contains NaN (a missing value) in 20 rows, first in row 2",
        ),
        (FRAME[["a", "b"]][:5], "target has 5 rows, the data have 60"),
        (np.full((N, 2), 2**53 + 1), "column 0 of target holds integers of 2**53 or more"),
        (np.zeros((N, 2, 2)), "target has shape (60, 2, 2): one value per row is needed"),
        (np.zeros((N, 0)), "target has shape (60, 0): one value per row is needed"),
    ],
)
def test_wrong_targets_are_named(target: Any, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        open_table(FRAME, target)


def test_all_partitions_have_as_many_targets() -> None:
    data = dd.from_map(lambda i: X[30 * i : 30 * i + 30], [0, 1], meta=X[:0])
    blocks = [da.from_delayed(dask.delayed(np.zeros)((30, k)), (30, 2), float) for k in (2, 3)]
    with pytest.raises(DataError, match=r"the target has . columns in partition ., but . in partition ."):
        open_table(data, da.concatenate(blocks))
