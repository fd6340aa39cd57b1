"""Partial dependence equals its definitions by traversal, average, row and group; the same for any partitioning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.inspection import partial_dependence as sklearns

import dboost
from dboost import Booster
from dboost.errors import DataError, InputTypeError, ParameterError
from dboost.inspection.dependence import Traversal
from dboost.model.ensemble import Tree
from dboost.schema import Feature
from tests.helpers.examples import examples
from tests.helpers.fits import FEATURES, TOWNS, cut, mixed_frame
from tests.helpers.forests import random_ensemble, random_rows
from tests.helpers.naive.shapley import expected_when_known
from tests.helpers.real_data import path

FRAME = mixed_frame(40)


@given(st.integers(0, 2**32), st.sampled_from([1, 2, 9]), st.sampled_from([1, 3]), st.sets(st.integers(0, 4), min_size=1))
@examples(40)
def test_traversal_by_definition(seed: int, n_leaves: int, n_outputs: int, targets: set[int]) -> None:
    ensemble = random_ensemble(seed, 2, n_leaves, n_outputs)
    rows = random_rows(seed + 1, ensemble, 4)
    found = Traversal(ensemble)(sorted(targets), rows)
    for i, row in enumerate(rows.tolist()):
        for k in range(n_outputs):
            trees = ensemble.trees[k::n_outputs]
            known = [expected_when_known(tree, row, frozenset(targets), by="count") for tree in trees]
            assert found[i, k] == pytest.approx(ensemble.baseline[k] + sum(known))


@pytest.mark.slow
def test_traversal_agrees_with_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 4))
    y = X[:, 0] * X[:, 1] + np.sin(3 * X[:, 2])
    theirs = HistGradientBoostingRegressor(max_iter=10, early_stopping=False).fit(X, y)
    trees = tuple(_tree(one[0].nodes) for one in theirs._predictors)
    ensemble = replace(
        random_ensemble(0, 0), features=tuple(Feature(f"f{j}") for j in range(4)), trees=trees, edges=(), named=False,
        baseline=np.ravel(theirs._baseline_prediction),
    )  # fmt: skip
    booster = Booster(ensemble)
    assert np.allclose(booster.predict(X), theirs.predict(X))
    for features in ([0], [1, 2]):
        expected = sklearns(theirs, X, features, method="recursion", grid_resolution=7)
        found = booster.partial_dependence(
            features, grid=expected["grid_values"] if len(features) > 1 else expected["grid_values"][0]
        )
        # Their values leave the constant out.
        difference = found["value"].to_numpy() - expected["average"].ravel()
        assert np.allclose(difference, ensemble.baseline[0]) or np.allclose(difference, 0)
        average = sklearns(theirs, X, features, method="brute", grid_resolution=7)["average"].ravel()
        values = booster.partial_dependence(
            X, features, grid=expected["grid_values"] if len(features) > 1 else expected["grid_values"][0]
        )
        assert np.allclose(values["value"], average)


def _tree(nodes: np.ndarray) -> Tree:
    order: list[int] = []
    to_visit = [0]
    while to_visit:
        order.append(to_visit.pop())
        if not nodes[order[-1]]["is_leaf"]:
            to_visit += [int(nodes[order[-1]]["right"]), int(nodes[order[-1]]["left"])]
    place = np.zeros(len(nodes), np.int32)
    place[order] = np.arange(len(order))
    sorted_nodes = nodes[order]
    leaf = sorted_nodes["is_leaf"].astype(bool)
    return Tree(
        feature=np.where(leaf, -1, sorted_nodes["feature_idx"]).astype(np.int32),
        threshold=np.where(leaf, np.nan, sorted_nodes["num_threshold"]),
        categories=(None,) * len(nodes),
        missing_left=sorted_nodes["missing_go_to_left"].astype(bool) & ~leaf,
        left=np.where(leaf, -1, place[sorted_nodes["left"]]).astype(np.int32),
        right=np.where(leaf, -1, place[sorted_nodes["right"]]).astype(np.int32),
        gain=np.where(leaf, 0.0, sorted_nodes["gain"]),
        cover=sorted_nodes["count"].astype(np.float64),
        count=sorted_nodes["count"].astype(np.int64),
        value=sorted_nodes["value"],
    )


def fitted(target: str, n: int = 300, **changed: Any) -> tuple[pd.DataFrame, Booster]:
    frame = mixed_frame(n)
    return frame, dboost.fit(frame[[*FEATURES, target]], target, max_iter=6, min_samples_leaf=10, **changed)


@pytest.mark.fast_cells(3)
@pytest.mark.parametrize("scale", ["raw", "prediction"])
@pytest.mark.parametrize("target", ["y", "late", "grade"])
def test_average_and_individual_by_hand(target: str, scale: str) -> None:
    frame, booster = fitted(target)

    def predict(rows: pd.DataFrame) -> np.ndarray:
        if scale == "raw" or target == "y":
            found = np.asarray(booster.predict(rows, raw_score=True))
        else:
            found = np.asarray(booster.predict_proba(rows))
            found = found[:, 1] if target == "late" else found
        return found.reshape(len(rows), -1)

    one = booster.partial_dependence(frame, "rooms", grid=[1.0, 3.0, np.nan], scale=scale)
    expected = np.array([predict(frame.assign(rooms=v)).mean(axis=0) for v in (1.0, 3.0, np.nan)])
    assert one["value"].to_numpy() == pytest.approx(expected.ravel())
    assert one.columns.tolist() == (["rooms", "class", "value"] if target == "grade" else ["rooms", "value"])
    two = booster.partial_dependence(frame, ["town", "x"], grid={"x": [-1.0, 0.5]}, scale=scale)
    assert two.drop_duplicates(["town", "x"])[["town", "x"]].to_numpy().tolist() == [
        [t, x] for t in sorted(TOWNS) for x in (-1, 0.5)
    ]
    expected = np.array([predict(frame.assign(town=t, x=x)).mean(axis=0) for t in sorted(TOWNS) for x in (-1.0, 0.5)])
    assert two["value"].to_numpy() == pytest.approx(expected.ravel())
    curves = booster.partial_dependence(frame, "x", "individual", grid=[0.0, 1.0], scale=scale, max_rows=7)
    rows = frame.iloc[[i * 300 // 7 for i in range(7)]]
    assert curves["row"].unique().tolist() == rows.index.tolist()
    expected = np.stack([predict(rows.assign(x=v)) for v in (0.0, 1.0)], axis=1)
    assert curves["value"].to_numpy() == pytest.approx(expected.ravel())


def test_conditional_means_by_hand() -> None:
    frame, booster = fitted("y")
    raw = booster.predict(frame, raw_score=True)
    found = booster.partial_dependence(frame, ["town", "rooms"], "conditional", grid={"rooms": [2.0, 4.0, 900.0]})
    nearest = frame["rooms"].map(lambda v: v if v != v else 2.0 if v <= 3 else 4.0)
    for row in found.to_dict("records"):
        here = (frame["town"] == row["town"]) & (nearest == row["rooms"])
        assert row["count"] == here.sum()
        assert np.isnan(row["value"]) if not here.any() else row["value"] == pytest.approx(raw[here].mean())
    missing = booster.partial_dependence(frame, "town", "conditional", grid=["Mons", None])
    assert missing["value"].tolist() == pytest.approx([raw[frame["town"] == "Mons"].mean(), raw[frame["town"].isna()].mean()])


@pytest.mark.parametrize("kind", ["average", "conditional"])
def test_a_row_of_weight_two_is_the_row_twice(kind: str) -> None:
    frame, booster = fitted("grade")
    frame["w"] = np.random.default_rng(1).integers(0, 3, len(frame)).astype(np.float64)
    repeated = frame.loc[frame.index.repeat(frame["w"].astype(int))].reset_index(drop=True)
    how: dict[str, Any] = {"kind": kind, "grid": {"town": ["Gent", "Mons", None], "x": [-1.0, 0.0, 1.5]}}
    expected = booster.partial_dependence(repeated, ["town", "x"], **how)
    found = booster.partial_dependence(frame, ["town", "x"], sample_weight="w", **how)
    assert found["value"].to_numpy() == pytest.approx(expected["value"].to_numpy(), nan_ok=True)
    by_values = booster.partial_dependence(frame, ["town", "x"], sample_weight=frame["w"].to_numpy(), **how)
    lazy = booster.partial_dependence(cut(frame, [7, 7, 150]), ["town", "x"], sample_weight="w", **how)
    for other in (by_values, lazy):
        pd.testing.assert_frame_equal(other, found, check_exact=True)
    # Rows of weight zero do not influence the grid either.
    far = frame.assign(x=np.where(frame["w"] == 0, 1000.0, frame["x"]))
    marked = booster.partial_dependence(far, "x", sample_weight="w")
    assert marked["x"].max() < 10 and np.isin(marked.attrs["deciles"]["x"], far.loc[far["w"] > 0, "x"]).all()


@pytest.mark.parametrize(
    ("weight", "data", "complaint"),
    [
        ("w", None, "no rows"),
        ([1.0], FRAME, r"shape \(1,\)"),
        (-FRAME["w"], FRAME, "negative in"),
        (0 * FRAME["w"], FRAME, "above 0"),
        ("age", FRAME, "is a feature"),
        ("weight", FRAME, "'weight'"),
        (FRAME["w"], cut(FRAME, [9]), "name of a column"),
        ("w", cut(FRAME.assign(w=np.nan), [9]), "sample_weight 'w' is missing"),
    ],
)
def test_weights_that_are_none(weight: Any, data: Any, complaint: str) -> None:
    with pytest.raises((ParameterError, DataError, InputTypeError), match=complaint):
        NUMBERS.partial_dependence(data, "x", sample_weight=weight)
    with pytest.raises(ParameterError, match="each of one row"):
        BOOSTER.partial_dependence(FRAME, "x", "individual", sample_weight="w")


def test_grids_without_data_meet_the_codes() -> None:
    frame, booster = fitted("y")
    rooms = booster.partial_dependence("rooms")["rooms"]
    assert rooms.tolist() == sorted(frame["rooms"].dropna().unique())
    assert booster.partial_dependence("town")["town"].tolist() == sorted(TOWNS)
    x = booster.partial_dependence("x", grid=11)
    assert len(x) == 11 and x["x"].is_monotonic_increasing and frame["x"].between(x["x"].min(), x["x"].max()).mean() > 0.9
    spread = booster.partial_dependence(frame, "x", grid=5)["x"]
    assert len(spread) == 5 and set(spread) <= set(frame["x"])
    # Most rows have the same value: the grid still contains other values.
    heavy = frame.assign(x=np.where(np.arange(len(frame)) % 10 < 8, 0.0, frame["x"]))
    assert len(booster.partial_dependence(heavy, "x", grid=20)["x"]) > 9
    frequent = booster.partial_dependence(frame, "town", grid=2)["town"]
    assert set(frequent) == set(frame["town"].value_counts().index[:2])
    assert booster.partial_dependence(frame, "x").attrs["deciles"]["x"] == pytest.approx(
        np.quantile(frame["x"], np.arange(1, 10) / 10)
    )
    bare = Booster(replace(booster.ensemble, edges=()))
    assert bare.partial_dependence("x")["value"].nunique() > 3


def test_traversal_and_average_agree_where_features_are_independent() -> None:
    rng = np.random.default_rng(0)
    # Every combination once: exactly independent.
    X = np.array(np.meshgrid(*[np.arange(6.0)] * 4)).reshape(4, -1).T
    y = X[:, 0] * X[:, 1] + np.sin(X[:, 2]) + rng.normal(size=len(X)) * 0.1
    booster = dboost.fit(X, y, max_iter=30, max_leaf_nodes=4)
    by_trees, by_rows = booster.partial_dependence(["f0", "f1"]), booster.partial_dependence(X, ["f0", "f1"])
    assert by_trees[["f0", "f1"]].equals(by_rows[["f0", "f1"]])
    assert np.abs(by_trees["value"] - by_rows["value"]).max() < 0.1 * by_rows["value"].std()


def test_centered_curves_and_taken_names() -> None:
    frame, booster = fitted("grade")
    curves = booster.partial_dependence(frame, "x", "individual", grid=4, max_rows=3, centered=True)
    assert curves.groupby(["row", "class"])["value"].mean().abs().max() < 1e-12
    renamed = frame.rename(columns={"x": "value"})
    other = dboost.fit(renamed[["value", "y"]], "y", max_iter=2)
    assert other.partial_dependence("value").columns.tolist() == ["feature value", "value"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"features": "z"}, "no feature 'z'"),
        ({"features": "roms"}, "'rooms'"),
        ({"features": ["x", "age", "size"]}, "3 features"),
        ({"features": ["x", 0]}, "twice"),
        ({"features": []}, "at least one"),
        ({"features": 7}, "between 0 and 6"),
        ({"features": "x", "kind": "both"}, "'both'"),
        ({"features": "x", "kind": "individual"}, "needs rows"),
        ({"features": "x", "scale": "log"}, "'log'"),
        ({"features": "x", "grid": 0}, "one point"),
        ({"features": "x", "grid": []}, "no values"),
        ({"features": "x", "grid": ["a"]}, "no number"),
        ({"features": "town", "grid": ["Paris"]}, "'Paris'"),
        ({"features": "x", "grid": {"age": [1]}}, "'age'"),
        ({"features": ["x", "age"], "grid": [[1]]}, "1 lists"),
        ({"features": "x", "max_rows": 0}, "max_rows"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ParameterError, match=complaint):
        BOOSTER.partial_dependence(**arguments)


def test_columns_of_weights_of_a_model_of_arrays_are_refused() -> None:
    X = np.arange(40.0).reshape(20, 2)
    of_arrays = dboost.fit(X, X[:, 0], max_iter=1, min_samples_leaf=1)
    with pytest.raises(InputTypeError, match="sample_weight='w': arrays have no names of columns"):
        of_arrays.partial_dependence(pd.DataFrame(X, columns=["f0", "f1"]).assign(w=1.0), "f0", sample_weight="w")


def test_data_come_before_features() -> None:
    frame, booster = fitted("y")
    for call in (
        lambda: booster.partial_dependence("x", frame),
        lambda: booster.partial_dependence(["x", "age"], data_of(frame)),
        lambda: booster.additivity(["x"], frame),
        lambda: booster.plot_partial_dependence("x", frame),
        lambda: booster.plot_shap_dependence("x", frame),
    ):
        with pytest.raises(InputTypeError, match=r"\(data, features\)"):
            call()
    with pytest.raises(InputTypeError, match="features are missing"):
        booster.partial_dependence(frame)
    by_name = booster.partial_dependence(features="x", data=frame)
    pd.testing.assert_frame_equal(by_name, booster.partial_dependence(frame, "x"))


def data_of(frame: pd.DataFrame) -> dd.DataFrame:
    return dd.from_pandas(frame, npartitions=2)


NUMBERS = Booster(
    replace(random_ensemble(0, with_categories=False), features=tuple(map(Feature, ["x", "size", "age", "rooms", "y"])))
)
BOOSTER = Booster(replace(random_ensemble(0), features=tuple(Feature(n, ("Mons",) if n == "town" else None) for n in FEATURES)))


def test_data_without_rows_or_columns() -> None:
    frame, booster = fitted("y")
    for empty in (frame.iloc[:0], cut(frame.iloc[:0], [0])):
        with pytest.raises(DataError, match="no rows"):
            booster.partial_dependence(empty, "x")
    with pytest.raises(DataError, match="'age'"):
        booster.partial_dependence(cut(frame.drop(columns="age"), [9]), "x")


@pytest.mark.fast_cells(4)
@pytest.mark.parametrize("later", [0, 3, 30])
@pytest.mark.parametrize("call", ["average", "individual", "additivity", "interaction_strength"])
def test_rows_that_change_between_two_readings_are_named(call: str, later: int) -> None:
    """Chosen rows are read after rows were counted: fewer or more rows of a partition then are an error, not other rows."""
    frame, booster = fitted("y")
    whole, lengths = frame[FEATURES], iter([10, later])

    def second() -> pd.DataFrame:
        return whole[20 : 20 + next(lengths)]

    lazy = dd.from_delayed(
        [dask.delayed(whole[:20]), dask.delayed(second, pure=False)()], meta=whole[:0], verify_meta=False
    )  # fmt: skip
    calls: dict[str, Any] = {
        "additivity": lambda: booster.additivity(lazy, ["x"]),
        "interaction_strength": lambda: booster.interaction_strength(lazy),
    }
    rows_now = rf"partition 1 had 10 rows when rows were counted, and {min(later, len(whole) - 20)} when they were read"
    with dask.config.set(scheduler="synchronous"), pytest.raises(DataError, match=rows_now):
        calls.get(call, lambda: booster.partial_dependence(lazy, "x", call))()


@pytest.mark.real_data
def test_income_against_age_on_the_marketing_table() -> None:
    """§8.2 of the paper: income rises to the fifth age group (45–54) and falls after."""
    table = pd.read_parquet(path("marketing"))
    booster = dboost.fit(table, "Income", loss="squared_error")
    for found in (booster.partial_dependence("Age"), booster.partial_dependence(table, "Age")):
        assert len(found) == 7 and int(found["value"].argmax()) == 4
    six = {"Occupation", "Status", "Marital", "Age", "Edu", "Home_Type"}
    assert set(booster.importance().index[:6]) == six
