"""Exported models predict the same: links, classes, missing values, categories, every threshold."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dboost
from dboost import Booster, losses
from dboost.booster import booster_with
from dboost.errors import DBoostError, ParameterError
from dboost.interop.export import nearest_float32, numbers_of_levels
from dboost.schema import Feature
from tests.helpers.examples import examples
from tests.helpers.fits import FEATURES, mixed_frame
from tests.helpers.foreign import by_onnx, by_treelite, by_xgboost
from tests.helpers.forests import random_ensemble, random_rows

#: Sums of that many float32 may have an error of that fraction of their terms.
ROUNDING = 2e-6
LOSSES: dict[str, dict[str, Any]] = {
    "squared_error": {"target": "y"},
    "absolute_error": {"target": "y"},
    "quantile": {"target": "y", "quantile": 0.8},
    "huber": {"target": "y"},
    "expectile": {"target": "y", "expectile": 0.8},
    "poisson": {"target": "age"},
    "gamma": {"target": "age"},
    "tweedie": {"target": "age", "tweedie_power": 1.3},
    "log_loss": {"target": "late"},
    "exponential": {"target": "late"},
    "softmax": {"target": "grade", "loss": "log_loss"},
}


@pytest.fixture(scope="module")
def models() -> Callable[[str], Booster]:
    made: dict[str, Booster] = {}
    frame = mixed_frame(500)

    def model(name: str) -> Booster:
        if name not in made:
            how = {"loss": name} | LOSSES[name]
            columns = sorted({*FEATURES, how["target"]})
            made[name] = dboost.fit(frame[columns], max_iter=8, max_leaf_nodes=12, min_samples_leaf=5, **how)
        return made[name]

    return model


def answers(booster: Booster, X: Any) -> np.ndarray:
    """Return what others predict: predictions, or the probability of the second class, or of all."""
    if booster.classes_ is None:
        return np.asarray(booster.predict(X))
    probabilities = np.asarray(booster.predict_proba(X))
    return probabilities[:, 1] if probabilities.shape[1] == 2 else probabilities


@pytest.mark.fast_cells(4)
@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_with_its_link(name: str, models: Callable[[str], Booster], tmp_path: Path) -> None:
    booster, test = models(name), mixed_frame(300, seed=1)
    matrix, expected = np.asarray(booster.to_matrix(test)), answers(booster, test)
    assert np.isnan(matrix).any()
    np.testing.assert_allclose(by_xgboost(booster, matrix, tmp_path), expected, rtol=1e-5, atol=1e-6)
    of_float64 = 1e-6 if name == "softmax" else 1e-13  # treelite computes the softmax in float32
    np.testing.assert_allclose(by_treelite(booster, matrix).reshape(expected.shape), expected, rtol=of_float64)
    raw = np.asarray(booster.predict(test, raw_score=True))
    np.testing.assert_allclose(by_treelite(booster, matrix, pred_margin=True).reshape(raw.shape), raw, rtol=1e-13, atol=1e-14)
    outputs = by_onnx(booster, matrix, tmp_path)
    assert outputs[-1].dtype == np.float32
    if booster.classes_ is None:
        np.testing.assert_allclose(outputs[-1], expected, rtol=1e-6)
        assert len(outputs) == 1
    else:
        np.testing.assert_allclose(outputs[-1], booster.predict_proba(test), rtol=1e-5, atol=1e-7)
        assert (outputs[0] == np.asarray(booster.predict(test))).all()


@given(
    st.integers(0, 2**32),
    st.sampled_from([1, 2, 9, 40]),
    st.sampled_from([1, 3]),
    st.booleans(),
    st.sampled_from([0.0, 0.5, 1.0]),
)
@examples(15)
def test_any_forest_and_any_float32_row(
    tmp_path_factory: pytest.TempPathFactory, seed: int, n_leaves: int, n_outputs: int, with_categories: bool, lean: float
) -> None:
    """Thresholds of float32 precision: every decision is the same, also at the thresholds and next to them."""
    folder = tmp_path_factory.mktemp("exports")
    ensemble = random_ensemble(seed, 3, n_leaves, n_outputs, with_categories, lean)
    trees = tuple(replace(tree, threshold=nearest_float32(tree.threshold).astype(np.float64)) for tree in ensemble.trees)
    booster = Booster(replace(ensemble, trees=trees, features=tuple(map(wholly, ensemble.features))))
    codes = random_rows(seed, booster.ensemble, 200, np.float32)
    codes[np.isinf(codes)] = np.float32(3e38)
    raw = booster._flat.raw_scores(codes)
    matrix = codes.astype(np.float64)
    for j, feature in enumerate(booster.features):
        if feature.is_categorical:
            known = ~np.isnan(codes[:, j])
            matrix[known, j] = numbers_of_levels(feature)[codes[known, j].astype(int)]
    np.testing.assert_allclose(by_treelite(booster, matrix, pred_margin=True), raw, rtol=1e-14, atol=1e-14)
    margin = by_xgboost(booster, matrix, folder, output_margin=True).reshape(raw.shape)
    np.testing.assert_allclose(margin, raw, rtol=ROUNDING, atol=20 * ROUNDING)
    last = by_onnx(booster, matrix, folder)[-1]
    if n_outputs == 1:
        np.testing.assert_allclose(last, raw[:, 0], rtol=1e-6, atol=1e-7)
    else:
        np.testing.assert_allclose(last, booster.outputs.probabilities(raw), rtol=1e-5, atol=1e-7)


def wholly(feature: Feature) -> Feature:
    """Levels that are whole numbers with gaps, instead of all whole numbers."""
    return Feature(feature.name, tuple(range(7, 307, 3))) if feature.categories == tuple(range(100)) else feature


@pytest.mark.parametrize("n_levels", [2, 3000])
def test_levels_that_were_never_seen_go_with_missing_values(n_levels: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    # The target alternates between categories: a set of many ranges.
    X = np.column_stack([rng.normal(size=12_000), rng.integers(n_levels, size=12_000)])
    X[rng.random(len(X)) < 0.05, 1] = np.nan
    y = np.where(np.isnan(X[:, 1]), 3.0, X[:, 1] % 2) + X[:, 0]
    settings = {"max_category_group": 3000, "min_category_hessian": 0.0, "categorical_smoothing": 0.1, "max_iter": 3}
    booster = dboost.fit(X, y, categorical_features=[1], min_samples_leaf=1, **settings)
    assert booster.to_frame()["categories"].dropna().map(len).max() >= n_levels // 4
    rows = X[:500].copy()
    rows[::5, 1] = n_levels + 1
    rows[1::5, 1] = -1
    matrix, expected = rows.copy(), booster.predict(rows)
    assert np.isnan(booster.to_matrix(rows)[::5, 1]).all() and np.array_equal(booster.to_matrix(X), X, equal_nan=True)
    np.testing.assert_allclose(by_treelite(booster, matrix)[:, 0], expected, rtol=1e-14)
    np.testing.assert_allclose(by_xgboost(booster, matrix, tmp_path), expected, rtol=ROUNDING, atol=ROUNDING)
    np.testing.assert_allclose(by_onnx(booster, matrix, tmp_path)[0], expected, rtol=1e-6)


def test_xgboost_reads_frames_as_they_are(tmp_path: Path) -> None:
    xgboost = pytest.importorskip("xgboost", "3.1")
    train, test = (mixed_frame(300, seed=seed).replace({"town": {"Liège": "Luik"}}) for seed in (0, 1))
    booster = dboost.fit(train[[*FEATURES, "y"]], "y", max_iter=5)
    booster.to_xgboost_json(tmp_path / "model.json")
    model = xgboost.Booster(model_file=tmp_path / "model.json")
    test["kind"] = test["kind"].cat.remove_unused_categories()  # XGBoost rejects categories unknown to the model
    for step in (1, -1):  # whatever codes the frame itself has for its categories
        frame = test.assign(town=pd.Categorical(test["town"], sorted(test["town"].dropna().unique())[::step]))[
            model.feature_names
        ]
        found = model.predict(xgboost.DMatrix(frame, enable_categorical=True))
        np.testing.assert_allclose(found, booster.predict(test), rtol=1e-5, atol=1e-6)


LEVELS: dict[str, tuple[list[Any], bool]] = {
    "gap": ([5, 6, 7, 8, 11], True),
    "from 0": ([0, 1, 2, 3, 4], True),
    "negative": ([-3, -2, 0, 1, 2], True),
    "not exact in float32": ([3, 4, 5, 2**24 + 1, 2**40], True),
    "text": (["a", "b", "c", "d", "e"], True),
    "long list": ([0, 1, 2, 3, 70_000], False),
    "beyond ASCII": (["a", "b", "c", "d", "é"], False),
}


@pytest.mark.fast_cells(6)
@pytest.mark.parametrize(("name", "named"), [*((name, True) for name in LEVELS), ("gap", False), ("beyond ASCII", False)])
@pytest.mark.parametrize("with_text", [False, True])
def test_xgboost_reads_or_rejects_the_categories_of_frames(name: str, with_text: bool, named: bool, tmp_path: Path) -> None:
    """Whatever the order of a frame's categories; `to_matrix` always works."""
    xgboost = pytest.importorskip("xgboost", "3.1")
    levels, is_read = LEVELS[name]
    rng = np.random.default_rng(0)
    codes = rng.integers(5, size=500)
    frame = pd.DataFrame({"c": pd.Categorical.from_codes(codes, levels), "x": rng.normal(size=500)})
    if with_text:
        frame["town"] = pd.Categorical(rng.choice(["Aalst", "Gent"], 500))
    y = codes % 2 * 3 + frame["x"]
    data = frame if named else frame.to_numpy(dtype=object)
    categorical = "from_dtype" if named else [0, 2][: 1 + with_text]
    booster = dboost.fit(data, y, max_iter=5, categorical_features=categorical)
    expected = booster.predict(data)
    found = by_xgboost(booster, np.asarray(booster.to_matrix(data)), tmp_path)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    model = xgboost.Booster(model_file=tmp_path / "model.xgb.json")
    for order in (levels, levels[::-1], levels[2:] + levels[:2]):
        rows = frame.assign(c=frame["c"].cat.reorder_categories(order))
        if is_read:
            np.testing.assert_allclose(
                model.predict(xgboost.DMatrix(rows, enable_categorical=True)), expected, rtol=1e-5, atol=1e-6
            )
        else:
            # XGBoost fails to decode text beyond ASCII while it writes its message.
            with pytest.raises(ValueError, match=r"doesn't match|not in the training set|codec can't decode"):
                model.predict(xgboost.DMatrix(rows, enable_categorical=True))
    if is_read and isinstance(levels[0], int) and max(levels) < 2**31:
        rows = frame.assign(c=frame["c"].cat.rename_categories(frame["c"].cat.categories.astype(np.int32)))
        with pytest.raises(xgboost.core.XGBoostError, match="doesn't match"):
            model.predict(xgboost.DMatrix(rows, enable_categorical=True))


def test_models_without_trees(tmp_path: Path, models: Callable[[str], Booster]) -> None:
    for name in ("gamma", "log_loss", "softmax"):
        booster = models(name).truncate(0)
        matrix, expected = np.zeros((3, len(booster.features))), answers(booster, mixed_frame(3))
        np.testing.assert_allclose(by_xgboost(booster, matrix, tmp_path), expected, rtol=1e-6)
        np.testing.assert_allclose(by_treelite(booster, matrix).reshape(expected.shape), expected, rtol=1e-6)
        last = by_onnx(booster, matrix, tmp_path)[-1]
        np.testing.assert_allclose(last[:, 1] if name == "log_loss" else last, expected, rtol=1e-6)


@pytest.mark.parametrize("strategy", ["one_output_per_tree", "multi_output_tree"])
def test_several_targets(strategy: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3)).astype(np.float32).astype(np.float64)
    Y = np.column_stack([X[:, 0], X[:, 1] * X[:, 2], 10.0 - X[:, 1]])
    booster = dboost.fit(X, Y, loss="squared_error", multi_strategy=strategy, max_iter=5, max_leaf_nodes=8)
    for exported in (booster, booster.truncate(0)):
        expected = exported.predict(X)
        assert expected.shape == (300, 3)
        np.testing.assert_allclose(by_onnx(exported, X, tmp_path)[0], expected, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(by_treelite(exported, X), expected, rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(by_xgboost(exported, X, tmp_path), expected, rtol=ROUNDING, atol=ROUNDING)


def test_stages_of_xgboost_are_ours(models: Callable[[str], Booster], tmp_path: Path) -> None:
    booster, test = models("softmax"), mixed_frame(100, seed=2)
    found = by_xgboost(booster, np.asarray(booster.to_matrix(test)), tmp_path, iteration_range=(0, 3))
    np.testing.assert_allclose(found, booster.predict_proba(test, iteration_range=(0, 3)), rtol=1e-5)


def test_xgboost_goes_on_from_an_export(tmp_path: Path) -> None:
    xgboost = pytest.importorskip("xgboost")
    frame = mixed_frame(500).replace({"town": {"Liège": "Luik"}})
    booster = dboost.fit(frame[[*FEATURES, "late"]], "late", max_iter=5)
    booster.to_xgboost_json(tmp_path / "model.json")
    model = xgboost.Booster(model_file=tmp_path / "model.json")
    town = pd.Categorical(frame["town"], sorted(frame["town"].dropna().unique()))
    table = frame.assign(town=town, kind=frame["kind"].cat.remove_unused_categories())[model.feature_names]
    rows = xgboost.DMatrix(table, frame["late"], enable_categorical=True)
    before = model.predict(rows)
    more = xgboost.train({"objective": "binary:logistic", "nthread": 1}, rows, 3, xgb_model=model)
    assert more.num_boosted_rounds() == booster.n_iter_ + 3
    loss = [-np.log(np.where(frame["late"] == 1, p, 1 - p)).mean() for p in (before, more.predict(rows))]
    assert loss[1] < loss[0]


def test_the_nearest_float32_and_the_lower_of_two() -> None:
    one, step = 1.0, 2.0**-23
    given = np.array([0.1, one + 0.5 * step, one + 0.6 * step, one + 0.4 * step, 1e300, -1e300, np.inf, -np.inf, np.nan])
    found = nearest_float32(given)
    largest = np.finfo(np.float32).max
    assert found.dtype == np.float32
    expected = np.array([np.float32(0.1), one, one + step, one, largest, -np.inf, np.inf, -np.inf, np.nan], np.float32)
    assert np.array_equal(found, expected, equal_nan=True)


def test_thresholds_that_are_values_of_the_data_stay_exact(tmp_path: Path) -> None:
    """Float64 data with more values than bins: thresholds are values of the data, which float32 cannot represent."""
    rng = np.random.default_rng(3)
    X = np.round(rng.normal(size=(4000, 3)), 2)
    booster = dboost.fit(X, X[:, 0] * X[:, 1] + X[:, 2], max_iter=20, max_bins=64)
    assert (booster.to_frame()["threshold"].dropna() != booster.to_frame()["threshold"].dropna().astype(np.float32)).any()
    np.testing.assert_allclose(by_onnx(booster, X, tmp_path)[0], booster.predict(X), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(by_xgboost(booster, X, tmp_path), booster.predict(X), rtol=ROUNDING, atol=ROUNDING)
    np.testing.assert_allclose(by_treelite(booster, X)[:, 0], booster.predict(X), rtol=1e-13)


def test_values_beyond_the_range_of_float32_are_infinities_in_onnx(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = (rng.choice([-1.0, 1.0], 2000) * 10.0 ** rng.uniform(30, 100, 2000))[:, None]
    y = np.searchsorted([-1e60, -1e35, 1e35, 1e60], X[:, 0]).astype(float)
    booster = dboost.fit(X, y, loss="squared_error", max_iter=5)
    assert np.abs(booster.to_frame()["threshold"].dropna()).max() > 1e40
    with np.errstate(over="ignore"):
        as_read = X.astype(np.float32).astype(np.float64)
    beyond = np.isinf(as_read[:, 0])
    assert beyond.any() and not beyond.all()
    found = by_onnx(booster, as_read, tmp_path)[0]
    np.testing.assert_allclose(found[beyond], booster.predict(as_read[beyond]), rtol=1e-6)
    np.testing.assert_allclose(found[~beyond], booster.predict(X[~beyond]), rtol=1e-6)


@pytest.mark.parametrize("labels", [[False, True], ["no", "yes"], [3, 5], [2.0, 5.0], ["a", "b", "c"]])
def test_labels_of_every_type(labels: list[Any], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2)).astype(np.float32)
    y = np.array(labels)[np.digitize(X[:, 0], np.arange(1, len(labels)) - 1.0)]
    booster = dboost.fit(X, y, loss="log_loss", max_iter=3, min_samples_leaf=5)
    label, probabilities = by_onnx(booster, X, tmp_path)
    assert (label == booster.predict(X)).all() and probabilities.shape == (200, len(labels))


def test_numbers_of_levels() -> None:
    cases = {
        ("b", "c"): [0, 1], (3, 0, 7): [3, 0, 7], (False, True): [0, 1], (-1, 0): [0, 1], (0.5, 1.5): [0, 1],
        (2.0, 5.0): [2, 5], (1, 2**24): [0, 1], (2, "b"): [0, 1],
    }  # fmt: skip
    for levels, numbers in cases.items():
        assert numbers_of_levels(Feature("c", levels)).tolist() == numbers, levels  # type: ignore[arg-type]


def test_to_matrix_of_frames_and_lazy_ones(models: Callable[[str], Booster]) -> None:
    import dask.dataframe as dd

    booster, frame = models("squared_error"), mixed_frame(50, seed=4)
    table = booster.to_matrix(frame)
    assert list(table.columns) == list(booster.feature_names_in_) and (table.index == frame.index).all()
    levels = next(feature.categories for feature in booster.features if feature.name == "town")
    assert levels is not None
    named = pd.Series([None if np.isnan(code) else levels[int(code)] for code in table["town"]], dtype=object)
    assert (named.isna() == frame["town"].isna()).all() and (named.dropna() == frame["town"].dropna()).all()
    lazy = booster.to_matrix(dd.from_pandas(frame, npartitions=3))
    pd.testing.assert_frame_equal(lazy.compute(), table)


class Sphere(losses.Loss):
    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return (y - raw) ** 2 / 2

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return raw - y

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return np.ones_like(raw)


class Cubed(Sphere):
    def link(self, prediction: np.ndarray) -> np.ndarray:
        return np.cbrt(prediction)

    def inverse_link(self, raw: np.ndarray) -> np.ndarray:
        return raw**3


class Nonsense(Sphere):
    response = "sinh"


def test_a_loss_of_ones_own(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(100, 2))
    booster = dboost.fit(X, X[:, 0], loss=Sphere(), max_iter=3)
    np.testing.assert_allclose(by_onnx(booster, X, tmp_path)[0], booster.predict(X), rtol=1e-6)
    for loss, complaint in ((Cubed(), "inverse_link is not the 'identity'"), (Nonsense(), "response 'sinh'")):
        odd = booster_with(booster.ensemble, loss=loss)
        with pytest.raises(ParameterError, match=complaint):
            odd.to_onnx(tmp_path / "x")
        with pytest.raises(ParameterError, match=complaint):
            odd.to_xgboost_json(tmp_path / "x")
        with pytest.raises(ParameterError, match=complaint):
            odd.to_treelite()
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("library", ["onnx", "treelite"])
def test_what_is_not_installed_is_named(
    library: str, models: Callable[[str], Booster], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    booster = models("squared_error")
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(dboost.MissingExtraError, match=rf"{library} is not installed.*dboost\[export\]") as raised:
        booster.to_onnx(tmp_path / "x") if library == "onnx" else booster.to_treelite()
    assert isinstance(raised.value, ImportError) and isinstance(raised.value, DBoostError)
