"""A booster returns predictions in the kind of its input, and stays the same model when it is copied, pickled or saved."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from dask.base import tokenize

from dboost import DBoostRegressor, fit, losses
from dboost.booster import Booster, booster_with, load
from dboost.errors import ModelFileError, ParameterError
from dboost.losses.base import BaseLoss, Leaves
from dboost.model import model_file
from dboost.model.ensemble import Ensemble
from tests.helpers.forests import random_ensemble, random_rows
from tests.helpers.naive import trees as naive


class Softmax(BaseLoss):
    """Stands for any loss with K outputs."""

    name = "softmax of the test"
    leaves = (Leaves(),) * 3

    def finish(self, raw: np.ndarray) -> np.ndarray:
        e = np.exp(raw - raw.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)


@pytest.fixture(autouse=True)
def _losses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    known = losses.from_dict
    monkeypatch.setattr(losses, "from_dict", lambda d, given=None: Softmax() if d["name"] == Softmax.name else known(d, given))
    yield


def number_model() -> Booster:
    return Booster(random_ensemble(11, n_iterations=4, n_leaves=8, with_categories=False))


def two_class_model(classes: tuple[Any, ...] = ("no", "yes"), dtype: str = "object") -> Booster:
    ensemble = random_ensemble(12, n_iterations=4, n_leaves=8, with_categories=False)
    return Booster(replace(ensemble, loss={"name": "log_loss"}, classes=classes, classes_dtype=dtype))


def three_class_model() -> Booster:
    ensemble = random_ensemble(13, n_iterations=4, n_leaves=8, n_outputs=3, with_categories=False)
    return Booster(replace(ensemble, loss={"name": Softmax.name}))


MODELS = [number_model, two_class_model, three_class_model]


def finite_rows(booster: Booster, n_rows: int = 50) -> pd.DataFrame:
    rows = random_rows(1, booster.ensemble, n_rows)
    frame = pd.DataFrame(np.where(np.isinf(rows), np.nan, rows), columns=booster.feature_names_in_)
    frame.index = pd.Index(np.arange(n_rows) * 3 + 7, name="row")
    return frame


def expected_raw(booster: Booster, frame: pd.DataFrame, n_iterations: int | None = None) -> np.ndarray:
    raw = np.array(naive.raw_scores(booster.ensemble, frame.to_numpy().tolist(), n_iterations))
    return raw[:, 0] if raw.shape[1] == 1 else raw


@pytest.mark.parametrize("make", MODELS)
def test_raw_scores_of_frames(make: Any) -> None:
    booster = make()
    frame = finite_rows(booster)
    raw = booster.predict(frame, raw_score=True)
    assert isinstance(raw, pd.Series if booster.ensemble.n_outputs == 1 else pd.DataFrame)
    assert raw.index.equals(frame.index)
    assert np.array_equal(raw.to_numpy(), expected_raw(booster, frame))
    if isinstance(raw, pd.DataFrame):
        assert list(raw.columns) == list(map(str, booster.classes_))


def test_numbers() -> None:
    booster = number_model()
    frame = finite_rows(booster)
    predicted = booster.predict(frame)
    assert isinstance(predicted, pd.Series) and predicted.dtype == np.float64
    assert np.array_equal(predicted, expected_raw(booster, frame))
    assert booster.classes_ is None
    for ask in (booster.predict_proba, booster.staged_predict_proba):
        with pytest.raises(ParameterError, match="no probabilities: the model predicts numbers"):
            ask(frame)


@pytest.mark.parametrize(
    ("classes", "dtype"), [(("no", "yes"), "object"), ((False, True), "bool"), ((-1, 7), "int8"), ((0.5, 1.5), "float64")]
)
def test_two_classes_in_the_dtype_of_the_target(classes: tuple[Any, ...], dtype: str) -> None:
    booster = two_class_model(classes, dtype)
    frame = finite_rows(booster)
    assert booster.classes_ is not None
    assert booster.classes_.dtype == dtype and booster.classes_.tolist() == list(classes)
    probabilities = booster.predict_proba(frame)
    assert list(probabilities.columns) == list(classes) and probabilities[classes[1]].ndim == 1
    assert booster.predict_proba(pa.Table.from_pandas(frame)).column_names == list(map(str, classes)), "Arrow's names are text"
    second = 1 / (1 + np.exp(-expected_raw(booster, frame)))
    assert np.allclose(probabilities, np.column_stack([1 - second, second]), atol=0, rtol=1e-12)
    predicted = booster.predict(frame)
    assert predicted.dtype == dtype
    assert predicted.tolist() == [classes[int(p > 0.5)] for p in second]
    assert booster.predict(frame.to_numpy()).dtype == dtype


def test_of_two_classes_equally_likely_the_first_is_predicted() -> None:
    for baseline in (0.0, 1e-20):  # a raw score above 0, but the probabilities are both 0.5
        ensemble = replace(two_class_model().ensemble, baseline=np.array([baseline]), trees=())
        booster = Booster(ensemble)
        assert booster.predict_proba(np.zeros((1, 5))).tolist() == [[0.5, 0.5]]
        assert booster.predict(np.zeros((1, 5))).tolist() == ["no"]


def test_three_classes() -> None:
    booster = three_class_model()
    frame = finite_rows(booster)
    probabilities = booster.predict_proba(frame)
    assert list(probabilities.columns) == ["class 0", "class 1", "class 2"]
    assert np.allclose(probabilities.sum(axis=1), 1)
    best = expected_raw(booster, frame).argmax(axis=1)
    assert booster.predict(frame).tolist() == [f"class {k}" for k in best]


def test_leaves() -> None:
    booster = three_class_model()
    frame = finite_rows(booster)
    leaves = booster.apply(frame)
    expected = [[naive.leaf_number(tree, row) for tree in booster.ensemble.trees] for row in frame.to_numpy().tolist()]
    assert leaves.to_numpy().tolist() == expected
    assert (leaves.dtypes == np.int32).all() and leaves.columns[-1] == "tree_11"
    some = booster.apply(frame, iteration_range=(1, 3))
    assert list(some.columns) == [f"tree_{t}" for t in range(3, 9)]
    assert np.array_equal(some, leaves.to_numpy()[:, 3:9])


def test_iteration_range() -> None:
    booster = number_model()
    frame = finite_rows(booster)
    for n in range(5):
        raw = booster.predict(frame, raw_score=True, iteration_range=(0, n))
        assert np.array_equal(raw, expected_raw(booster, frame, n))
    for wrong in [(0, 5), (-1, 2), (3, 2), (0,), (0, 2.5), 3]:
        with pytest.raises(ParameterError, match="iteration_range"):
            booster.predict(frame, iteration_range=wrong)  # type: ignore[arg-type]


def test_categories_are_read_by_their_level() -> None:
    ensemble = random_ensemble(21, n_iterations=5, n_leaves=12)
    booster = Booster(ensemble)
    codes = random_rows(3, ensemble, 60)
    codes[np.isinf(codes)] = np.nan
    frame = pd.DataFrame(codes, columns=booster.feature_names_in_)
    for name, feature in zip(frame.columns, ensemble.features, strict=True):
        if feature.categories is not None:
            levels = [np.nan if np.isnan(c) else feature.categories[int(c)] for c in frame[name]]
            frame[name] = pd.Series(levels, dtype=object).astype("category")
    expected = np.array(naive.raw_scores(ensemble, codes.tolist()))[:, 0]
    assert np.array_equal(booster.predict(frame), expected)


def test_many_threads_at_a_time() -> None:
    frame = finite_rows(number_model(), 500)
    expected = number_model().predict(frame)
    fresh = number_model()  # no prediction layout exists yet when all threads predict at once
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(fresh.predict, [frame] * 16))
    assert all(answer.equals(expected) for answer in answers)
    assert fresh.predict(frame, n_threads=3).equals(expected)


def test_the_state_for_skops_is_json() -> None:
    """skops stores the state without code: text, numbers, lists and dictionaries."""
    rows = pd.DataFrame({"x": np.arange(200) % 17, "town": ["Ghent", "Lille"] * 100, "y": np.arange(200) % 5 + 0.5})
    options: dict[str, Any] = {"eval_set": rows, "max_iter": 8, "early_stopping_rounds": 1, "progress": False}
    booster = fit(rows, "y", **options)
    for one in (booster, pickle.loads(pickle.dumps(booster))):
        back = Booster.__new__(Booster)
        back.__setstate__(json.loads(json.dumps(one.__getstate__())))
        assert back == booster and back.timings == booster.timings
        pd.testing.assert_frame_equal(back.history, booster.history)
        assert np.array_equal(back.predict(rows), booster.predict(rows))
    state = booster.__getstate__()
    with pytest.raises(ModelFileError, match="the model that skops has read"):
        back.__setstate__(state | {"model": state["model"].replace('"baseline"', '"base"')})


def test_skops() -> None:
    skops = pytest.importorskip("skops.io")
    trusted = ["dboost.booster.Booster", "dboost.estimators.regressor.DBoostRegressor", "dboost.estimators.estimator.Seeds"]
    rows, y = pd.DataFrame({"x": np.arange(200) % 17, "town": ["Ghent", "Lille"] * 100}), np.arange(200) % 5 + 0.5
    estimator = DBoostRegressor(max_iter=4, early_stopping=True).fit(rows, y)
    for model in (estimator, estimator.booster_):
        stored = skops.dumps(model)
        assert set(skops.get_untrusted_types(data=stored)) <= set(trusted)
        back = skops.loads(stored, trusted=trusted)
        assert np.array_equal(back.predict(rows), model.predict(rows))
        assert getattr(back, "booster_", back) == estimator.booster_


def test_pickle_is_small_and_the_same() -> None:
    booster = booster_with(random_ensemble(1, n_iterations=20, n_leaves=31), timings={"train": 1.5})
    rows = random_rows(1, booster.ensemble, 20)
    pickled = pickle.dumps(booster)
    booster.predict(rows)
    assert pickle.dumps(booster) == pickled, "what was laid out for prediction does not travel"
    assert len(pickled) < len(model_file.dumps(booster.ensemble)) + 2_000
    back = pickle.loads(pickled)
    assert back == booster and back is not booster and hash(back) == hash(booster)
    assert back.history.equals(booster.history) and back.timings == {"train": 1.5}
    assert np.array_equal(back.predict(rows), booster.predict(rows))
    assert tokenize(back) == tokenize(booster) != tokenize(number_model())


def test_equal_means_the_same_was_learned() -> None:
    booster = number_model()
    assert booster == number_model() and booster.sha256 == number_model().sha256
    assert booster != two_class_model()
    assert booster != "a booster"
    assert booster_with(booster.ensemble, history=[{"seconds": 1.0}]) == booster


def test_what_it_says_of_itself() -> None:
    booster = two_class_model()
    assert repr(booster) == "<Booster: log_loss, 2 classes, 4 iterations, 5 features>"
    assert repr(number_model()) == "<Booster: squared_error, regression, 4 iterations, 5 features>"
    assert booster.n_iter_ == 4 and booster.n_features_in_ == 5 and booster.best_iteration is None
    assert booster.feature_names_in_.tolist() == ["x0", "x1", "x2", "x3", "x4"]
    assert [feature.name for feature in booster.features] == ["x0", "x1", "x2", "x3", "x4"]
    assert len(booster.sources) == 1 and booster.sources[0]["rows"] == 1000
    assert booster.loss.name == "log_loss"


def test_save_and_load(tmp_path: Path) -> None:
    history = pd.DataFrame({"iteration": [1, 2, 3, 4], "seconds": 0.5, "train_loss": [4.0, 3.0, 2.0, 1.0]})
    booster = booster_with(number_model().ensemble, history=history.to_dict("records"), timings={"train": 2.0})
    path = tmp_path / "model.json"
    booster.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["model.json"]
    back = load(path)
    assert back == booster and back.timings == {}
    assert booster.sha256 in path.read_text()
    expected = {"iteration": [1, 2, 3, 4], "train_loss": list(booster.ensemble.metrics["train_loss"])}
    assert back.history.drop(columns="train_rmse").to_dict("list") == expected
    booster.save(str(path), history=True)
    roots = (2 * history["train_loss"]) ** 0.5
    pd.testing.assert_frame_equal(pd.read_csv(f"{path}.history.csv"), history.assign(train_rmse=roots))
    frame = finite_rows(booster)
    assert back.predict(frame).equals(booster.predict(frame))
    with pytest.raises(ModelFileError, match=r"nothing\.json"):
        load(tmp_path / "nothing.json")


def test_history_of_a_model_without_metrics() -> None:
    booster = Booster(replace(number_model().ensemble, metrics={}))
    assert list(booster.history.columns) == ["iteration"] and booster.history["iteration"].dtype == np.int64
    assert len(booster.history) == 0


def assert_frame_tells_the_trees(ensemble: Ensemble) -> pd.DataFrame:
    frame = Booster(ensemble).to_frame()
    assert " ".join(frame.columns) == (
        "iteration class node depth feature threshold categories missing_left left right gain cover count value"
    )
    assert len(frame) == sum(tree.n_nodes for tree in ensemble.trees)
    place = 0
    for t, tree in enumerate(ensemble.trees):
        depth = {0: 0}
        for node in range(tree.n_nodes):
            row = frame.iloc[place]
            place += 1
            assert row["iteration"] == t // ensemble.n_outputs + 1 and row["node"] == node
            assert row["depth"] == depth[node]
            assert row["left"] == tree.left[node] and row["right"] == tree.right[node]
            assert row["gain"] == tree.gain[node] and row["cover"] == tree.cover[node]
            assert row["count"] == tree.count[node] and row["value"] == tree.value[node]
            assert row["missing_left"] == tree.missing_left[node]
            codes = tree.categories[node]
            if tree.feature[node] < 0:
                assert pd.isna(row["feature"]) and np.isnan(row["threshold"]) and row["categories"] is None
                continue
            feature = ensemble.features[tree.feature[node]]
            assert row["feature"] == feature.name
            depth[int(tree.left[node])] = depth[int(tree.right[node])] = depth[node] + 1
            if codes is None:
                assert row["threshold"] == tree.threshold[node] and row["categories"] is None
            else:
                assert feature.categories is not None and np.isnan(row["threshold"])
                assert row["categories"] == tuple(feature.categories[code] for code in codes)
    return frame


def test_trees_as_a_frame() -> None:
    frame = assert_frame_tells_the_trees(random_ensemble(31, n_iterations=3, n_leaves=9))
    assert frame["class"].isna().all()
    frame = assert_frame_tells_the_trees(random_ensemble(32, n_iterations=2, n_leaves=5, n_outputs=3))
    assert frame.groupby(["iteration", "class"]).ngroups == 6
    splits = frame[frame["feature"].notna()]
    assert (splits.groupby("feature")["gain"].sum() > 0).all()
    assert len(assert_frame_tells_the_trees(random_ensemble(33, n_iterations=0))) == 0
