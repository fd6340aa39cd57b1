"""Shapley values are those of the definition, and of XGBoost and the shap package where the trees are the same."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dboost
from dboost import Booster
from dboost.errors import DataError, ParameterError
from dboost.model.ensemble import Ensemble, Tree
from dboost.schema import Feature
from tests.helpers.examples import examples
from tests.helpers.fits import FEATURES, TARGETS, cut, mixed_frame
from tests.helpers.forests import random_ensemble, random_rows, random_tree
from tests.helpers.naive import shapley as naive
from tests.helpers.tune import Tune

seeds = st.integers(0, 2**32)


def values_of(ensemble: Ensemble, rows: np.ndarray, **how: Any) -> np.ndarray:
    """Return Shapley values of blocks; always [n, …, n_outputs]."""
    from dboost.inspection.shapley import Shapley

    background = how.get("background")
    found = Shapley(ensemble, background, how.get("interactions", False), how.get("n_threads"))(rows)
    return found if ensemble.n_outputs > 1 else found[..., None]


@given(
    seeds,
    st.sampled_from([1, 2, 5, 12]),
    st.sampled_from([1, 2]),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from([np.float32, np.float64]),
)
@examples(30)
def test_path_dependent_values_by_definition(seed: int, n_leaves: int, n_outputs: int, lean: float, precision: type) -> None:
    ensemble = random_ensemble(seed, 2, n_leaves, n_outputs, lean=lean)
    rows = random_rows(seed + 1, ensemble, 3, precision)
    found, pairs = values_of(ensemble, rows), values_of(ensemble, rows, interactions=True)
    expected_value = np.atleast_1d(Booster(ensemble).expected_value)
    for i, row in enumerate(rows.tolist()):
        for k in range(n_outputs):
            play = naive.path_dependent(ensemble, row, k)
            assert found[i, :, k] == pytest.approx(naive.values(play, 5), abs=1e-10)
            assert pairs[i, :, :, k] == pytest.approx(np.array(naive.interactions(play, 5)), abs=1e-10)
            assert expected_value[k] == pytest.approx(play(frozenset()), abs=1e-10)


@given(seeds, st.sampled_from([1, 2, 5, 12]), st.integers(1, 6))
@examples(20)
def test_interventional_values_by_definition(seed: int, n_leaves: int, n_background: int) -> None:
    ensemble = random_ensemble(seed, 2, n_leaves)
    rows, background = random_rows(seed + 1, ensemble, 2), random_rows(seed + 2, ensemble, n_background)
    found = values_of(ensemble, rows, background=background)
    pairs = values_of(ensemble, rows, background=background, interactions=True)
    for i, row in enumerate(rows.tolist()):
        play = naive.interventional(ensemble, row, 0, background.tolist())
        assert found[i, :, 0] == pytest.approx(naive.values(play, 5), abs=1e-10)
        assert pairs[i, :, :, 0] == pytest.approx(np.array(naive.interactions(play, 5)), abs=1e-10)


def raw_matrix(booster: Booster, X: Any) -> np.ndarray:
    raw = np.asarray(booster.predict(X, raw_score=True))
    return raw if raw.ndim == 2 else raw[:, None]


@pytest.mark.fast_cells(1)
@pytest.mark.parametrize("target", TARGETS)
def test_values_add_up_to_raw_scores(target: str) -> None:
    frame = mixed_frame(400)
    booster = dboost.fit(frame[[*FEATURES, target]], target, max_iter=20)
    raw, rows = raw_matrix(booster, frame), mixed_frame(100, seed=5)
    values = np.asarray(booster.shap_values(frame)).reshape(400, 7, -1)
    assert np.abs(values.sum(axis=1) + booster.expected_value - raw).max() < 1e-9
    pairs = booster.shap_values(frame, interactions=True).reshape(400, 7, 7, -1)
    assert np.abs(pairs.sum(axis=2) - values).max() < 1e-9
    assert np.array_equal(pairs, pairs.swapaxes(1, 2))
    against = np.asarray(booster.shap_values(frame, background=rows)).reshape(400, 7, -1)
    assert np.abs(against.sum(axis=1) + raw_matrix(booster, rows).mean(axis=0) - raw).max() < 1e-9
    # A row compared with itself has zero values.
    alone = np.asarray(booster.shap_values(frame.iloc[:1], background=frame.iloc[:1]))
    assert np.abs(alone).max() < 1e-12


def test_deep_chains_and_many_features() -> None:
    rng = np.random.default_rng(0)
    features = tuple(Feature(f"x{j}") for j in range(120))
    chain = random_tree(rng, features, 300, lean=1.0)
    ensemble = replace(random_ensemble(0, 0), features=features, trees=(chain,), baseline=np.zeros(1))
    rows = random_rows(1, ensemble, 70)
    values = values_of(ensemble, rows)[:, :, 0]
    booster = Booster(ensemble)
    assert np.abs(values.sum(axis=1) + booster.expected_value - booster.predict(rows, raw_score=True)).max() < 1e-9


def test_shares_that_vanish() -> None:
    """No Hessian on one side (it can underflow): the counts decide; no rows either: one half each. Nothing becomes NaN."""
    tree = random_tree(np.random.default_rng(4), tuple(Feature(f"x{j}") for j in range(5)), 12)
    for cover, count in ((0.0, tree.count), (0.0, np.zeros(23, np.int64)), (np.arange(23) % 2.0, tree.count)):
        empty = Tree(**(vars(tree) | {"cover": np.broadcast_to(cover, 23), "count": count}))
        ensemble = replace(random_ensemble(0, 0, with_categories=False), trees=(empty,))
        rows = random_rows(3, ensemble, 100)
        values = values_of(ensemble, rows)[:, :, 0]
        assert np.isfinite(values).all()
        booster = Booster(ensemble)
        frame = pd.DataFrame(rows, columns=[f"x{j}" for j in range(5)])
        raw = booster.predict(frame, raw_score=True).to_numpy()
        assert np.abs(values.sum(axis=1) + booster.expected_value - raw).max() < 1e-9


@pytest.mark.parametrize("n_rows", [0, 1, 63, 65, 500])
def test_neither_threads_nor_neighbours_change_a_bit(n_rows: int, tune: Tune) -> None:
    tune(row_trees_per_thread=10)
    ensemble = random_ensemble(1, n_iterations=4, n_leaves=15, n_outputs=2)
    rows = random_rows(2, ensemble, n_rows)
    for interactions in (False, True):
        whole = values_of(ensemble, rows, n_threads=1, interactions=interactions)
        assert values_of(ensemble, rows, n_threads=3, interactions=interactions).tobytes() == whole.tobytes()
        for row in range(0, n_rows, 61):
            assert values_of(ensemble, rows[row : row + 1], interactions=interactions).tobytes() == whole[row].tobytes()


@pytest.mark.parametrize("target", ["late", "grade"])
def test_the_answer_is_of_the_kind_of_the_data(target: str) -> None:
    frame = mixed_frame(200)
    booster = dboost.fit(frame[[*FEATURES, target]], target, max_iter=3)
    whole = booster.shap_values(frame)
    lazy = booster.shap_values(cut(frame, [50, 50, 120]))
    assert hasattr(lazy, "__dask_graph__")
    with dask.config.set(scheduler="sync"):
        if target == "late":
            assert list(whole.columns) == FEATURES and whole.index.equals(frame.index)
            pd.testing.assert_frame_equal(lazy.compute(), whole)
        else:
            assert isinstance(whole, np.ndarray) and whole.shape == (200, 7, 3)
            assert lazy.ndim == 3 and np.array_equal(lazy.compute(), whole)
        pairs = booster.shap_values(cut(frame, [50, 50, 120]), interactions=True)
        assert np.array_equal(pairs.compute(), booster.shap_values(frame, interactions=True))


def test_dask_arrays_keep_their_chunks() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 3))
    many = dboost.fit(X, np.digitize(X[:, 0], [-0.5, 0.5]), loss="log_loss", max_iter=2, min_samples_leaf=5)
    one = dboost.fit(X, X[:, 0], max_iter=2)
    chunked = da.from_array(X, (40, 2))
    for booster, tail in ((one, (3,)), (many, (3, 3))):
        lazy = booster.shap_values(chunked)
        assert lazy.shape == (90, *tail) and lazy.chunks[0] == (40, 40, 10)
        assert np.array_equal(lazy.compute(), booster.shap_values(X))
    with pytest.raises(DataError):
        one.shap_values(X[:, :2])


@pytest.mark.parametrize(("background", "complaint"), [("x.parquet", "in memory"), (np.empty((0, 3)), "no rows")])
def test_backgrounds_that_are_none(background: Any, complaint: str) -> None:
    X = np.random.default_rng(0).normal(size=(60, 3))
    booster = dboost.fit(X, X[:, 0], max_iter=1)
    with pytest.raises(ParameterError, match=complaint):
        booster.shap_values(X, background=background)
    with pytest.raises(ParameterError, match="in memory"):
        booster.shap_values(X, background=dd.from_pandas(pd.DataFrame(X), npartitions=1))


def xgboost_and_the_same_trees(n_classes: int = 0) -> tuple[Any, Ensemble, np.ndarray]:
    """A model of XGBoost's, its trees converted to an ensemble, and rows with gaps."""
    xgboost = pytest.importorskip("xgboost")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(800, 5)).astype(np.float32)
    y = X[:, 0] * X[:, 1] + np.sin(3 * X[:, 2]) + 0.3 * rng.normal(size=800)
    X[rng.random(X.shape) < 0.1] = np.nan
    settings: dict[str, Any] = {"max_leaves": 15, "max_depth": 0, "grow_policy": "lossguide", "nthread": 1, "base_score": 0.5}
    if n_classes:
        y = np.digitize(y, np.quantile(y, np.arange(1, n_classes) / n_classes))
        settings |= {"objective": "multi:softprob", "num_class": n_classes}
    model = xgboost.train(settings, xgboost.DMatrix(X, y), 8)
    features = tuple(Feature(f"f{j}") for j in range(5))
    table = model.trees_to_dataframe()
    trees = tuple(_tree(nodes) for _, nodes in table.groupby("Tree"))
    k = max(1, n_classes)
    ensemble = replace(
        random_ensemble(0, 0, n_outputs=k), features=features, trees=trees, baseline=np.full(k, 0.5), named=False
    )
    return model, ensemble, X


def _tree(nodes: pd.DataFrame) -> Tree:
    """XGBoost sends a value left if it is below the threshold; dboost if it is at most the threshold."""
    row_of = {row["ID"]: row for row in nodes.to_dict("records")}
    order: list[dict[str, Any]] = []
    to_visit = [nodes["ID"].iloc[0]]
    while to_visit:
        row = row_of[to_visit.pop()]
        order.append(row)
        if row["Feature"] != "Leaf":
            to_visit += [row["No"], row["Yes"]]
    place = {row["ID"]: i for i, row in enumerate(order)}
    is_leaf = np.array([row["Feature"] == "Leaf" for row in order])
    below = np.nextafter(np.array([row["Split"] for row in order], np.float32), np.float32(-np.inf)).astype(np.float64)
    return Tree(
        feature=np.array([-1 if row["Feature"] == "Leaf" else int(row["Feature"][1:]) for row in order], np.int32),
        threshold=below,
        categories=(None,) * len(order),
        missing_left=np.array([not leaf and row["Missing"] == row["Yes"] for row, leaf in zip(order, is_leaf, strict=True)]),
        left=np.array([place.get(row["Yes"], -1) for row in order], np.int32),
        right=np.array([place.get(row["No"], -1) for row in order], np.int32),
        gain=np.where(is_leaf, 0.0, [row["Gain"] for row in order]),
        cover=np.array([row["Cover"] for row in order], np.float64),
        count=np.ones(len(order), np.int64),
        value=np.where(is_leaf, [row["Gain"] for row in order], 0.0),
    )


@pytest.mark.parametrize("n_classes", [0, 3])
def test_the_same_as_xgboosts_on_its_trees(n_classes: int) -> None:
    xgboost = pytest.importorskip("xgboost")
    model, ensemble, X = xgboost_and_the_same_trees(n_classes)
    rows = xgboost.DMatrix(X[:200])
    theirs = model.predict(rows, pred_contribs=True).reshape(200, -1, 6)
    ours = values_of(ensemble, X[:200])
    assert np.abs(ours - theirs[:, :, :5].swapaxes(1, 2)).max() < 2e-5  # the others are float32
    assert np.abs(np.atleast_1d(Booster(ensemble).expected_value) - theirs[0, :, 5]).max() < 2e-5
    pairs = model.predict(rows, pred_interactions=True).reshape(200, -1, 6, 6)
    assert np.abs(values_of(ensemble, X[:200], interactions=True) - np.moveaxis(pairs[:, :, :5, :5], 1, -1)).max() < 2e-5


def test_the_same_as_the_shap_packages_on_xgboosts_trees() -> None:
    shap = pytest.importorskip("shap", reason="the shap package is not installed")
    model, ensemble, X = xgboost_and_the_same_trees()
    X = X[~np.isnan(X).any(axis=1)]  # the package's interventional values treat missing background values as numbers
    found = shap.TreeExplainer(model, data=X[100:150], feature_perturbation="interventional").shap_values(X[:100])
    assert np.abs(values_of(ensemble, X[:100], background=X[100:150])[:, :, 0] - found).max() < 2e-5
    found = shap.TreeExplainer(model, feature_perturbation="tree_path_dependent").shap_values(X[:100])
    assert np.abs(values_of(ensemble, X[:100])[:, :, 0] - found).max() < 2e-5


@pytest.mark.slow
@pytest.mark.parametrize("target", ["y", "kind"])
def test_explanations_are_those_of_the_shap_package(target: str) -> None:
    """`shap.Explanation` contains the same values, and shap's plots draw it."""
    shap = pytest.importorskip("shap", reason="the shap package is not installed")
    plt = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
    plt.switch_backend("Agg")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=300), "b": rng.normal(size=300), "town": rng.choice(["Gent", "Bern"], 300)})
    frame.loc[::7, "town"] = None
    frame["y"] = frame["a"] + frame["town"].eq("Gent")
    frame["kind"] = np.digitize(frame["y"], [0.0, 1.0])
    loss = "log_loss" if target == "kind" else "squared_error"
    booster = dboost.fit(frame, target, features=["a", "b", "town"], loss=loss, max_iter=5, progress=False)
    rows = frame.head(40)
    for background in (None, frame.tail(60)):
        found = booster.shap_values(rows, background=background, as_explanation=True)
        assert isinstance(found, shap.Explanation)
        np.testing.assert_array_equal(found.values, np.asarray(booster.shap_values(rows, background=background)))
        raw = np.asarray(booster.predict(rows, raw_score=True))
        np.testing.assert_allclose(found.values.sum(axis=1) + found.base_values, raw, atol=1e-9)
    assert found.feature_names == ["a", "b", "town"]
    assert found.display_data[:3, 2].tolist() == [None, *rows["town"][1:3]]
    np.testing.assert_array_equal(found.data[:, 0], rows["a"])
    one = found if target == "y" else found[..., 1]
    shap.plots.beeswarm(one, show=False)
    shap.plots.waterfall(one[1], show=False)
    assert "town" in "".join(label.get_text() for label in plt.gca().get_yticklabels())
    plt.close("all")
    pairs = booster.shap_values(rows, interactions=True, as_explanation=True)
    assert pairs.values.shape[:3] == (40, 3, 3)


def test_explanations_need_rows_in_memory_and_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.random.default_rng(0).normal(size=(100, 2))
    booster = dboost.fit(X, X[:, 0], max_iter=2, progress=False)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "shap", None)
        with pytest.raises(dboost.MissingExtraError, match=r"shap.Explanation needs the library shap: pip install shap"):
            booster.shap_values(X, as_explanation=True)
    pytest.importorskip("shap", reason="the shap package is not installed")
    assert booster.shap_values(X, as_explanation=True).display_data is None
    with pytest.raises(dboost.ParameterError, match="as_explanation=True needs rows in memory"):
        booster.shap_values(da.from_array(X, chunks=50), as_explanation=True)
