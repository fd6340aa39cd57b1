"""The estimators compared with `dboost.fit`: the same models, scikit-learn's attributes, tables of every kind."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.exceptions import DataConversionWarning, NotFittedError

import dboost
from dboost import DBoostClassifier, DBoostRegressor
from tests.helpers.table_forms import STREAMS, new_file

BOTH = pytest.mark.parametrize("Estimator", [DBoostRegressor, DBoostClassifier])


def shop(n: int = 400, seed: int = 0) -> tuple[pd.DataFrame, pd.Series, pd.Series]:
    """A frame with text and missing values, a number to predict, and one of three classes."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"price": rng.normal(size=n), "size": rng.normal(size=n).astype(np.float32)})
    frame["town"] = rng.choice(["Aalst", "Brugge", "Gent", "Leuven"], n)
    frame.loc[rng.random(n) < 0.1, "price"] = np.nan
    number = frame["size"] * 2 + frame["town"].eq("Gent") + frame["price"].fillna(1)
    classes = pd.cut(number, [-np.inf, 0, 1.5, np.inf], labels=["low", "middle", "top"]).astype(str)
    return frame, number.rename("sold"), classes.rename("class")


def test_the_kind_of_task_is_the_estimators() -> None:
    """Targets of 0 and 1 are numbers for a regressor, integers are classes for a classifier."""
    X = np.arange(100.0)[:, None]
    assert DBoostRegressor(max_iter=2).fit(X, X[:, 0] > 50).booster_.loss.name == "squared_error"
    assert DBoostClassifier(max_iter=2).fit(X, X[:, 0] // 25).booster_.ensemble.n_outputs == 4
    with pytest.raises(dboost.ParameterError, match="DBoostClassifier"):
        DBoostRegressor(loss="log_loss").fit(X, X[:, 0])
    with pytest.raises(dboost.ParameterError, match="log_loss"):
        DBoostClassifier(loss="squared_error").fit(X, X[:, 0] > 3)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("monotonic_cst", [2]), ("interaction_cst", "some"), ("memory_limit", "2 elephants"), ("quantile", 0.5),
        ("arcbites", "yes"),
        ("start_from", "nowhere.json"), ("checkpoint_every", 0), ("continue_bins", "old"), ("checkpoint", 3),
        ("source_name", 1),
        ("early_stopping", "yes"), ("early_stopping", None), ("scoring", 3), ("tol", -1.0), ("n_iter_no_change", 0),
        ("validation_fraction", 1.0), ("validation_fraction", 0), ("validation_fraction", True), ("warm_start", "no"),
        ("verbose", "loud"), ("random_state", "seed"), ("categorical_features", ["b"]), ("features", ["a"]),
    ],
)  # fmt: skip
def test_nothing_is_ignored(argument: str, value: Any) -> None:
    X, y = np.arange(40.0)[:, None], np.arange(40.0)
    with pytest.raises(ValueError, match=r".+"):
        DBoostRegressor(**{argument: value}).fit(X, y)


@BOTH
def test_answers_about_data_in_memory_are_arrays(Estimator: Any) -> None:
    frame, number, classes = shop()
    model = Estimator(max_iter=5).fit(frame, number if Estimator is DBoostRegressor else classes)
    expected = model.predict(frame)
    assert type(expected) is np.ndarray
    for other in (pl.from_pandas(frame), pa.Table.from_pandas(frame), frame.set_index(frame.index + 7)):
        answer = model.predict(other)
        assert type(answer) is np.ndarray
        np.testing.assert_array_equal(answer, expected)
    if Estimator is DBoostClassifier:
        proba, raw = model.predict_proba(frame), model.decision_function(frame)
        assert type(proba) is type(raw) is np.ndarray
        assert proba.shape == raw.shape == (400, 3)
        np.testing.assert_array_equal(model.classes_[raw.argmax(axis=1)], expected)
        np.testing.assert_array_equal(proba, model.booster_.predict_proba(frame).to_numpy())


@BOTH
def test_stages_lead_to_the_prediction(Estimator: Any) -> None:
    frame, number, classes = shop()
    model = Estimator(max_iter=4)
    with pytest.raises(NotFittedError):
        next(model.staged_predict(frame))
    model.fit(frame, number if Estimator is DBoostRegressor else classes)
    methods = ["predict"] if Estimator is DBoostRegressor else ["predict", "predict_proba", "decision_function"]
    for method in methods:
        stages = list(getattr(model, f"staged_{method}")(frame))
        assert len(stages) == 4
        for k, stage in enumerate(stages, 1):
            np.testing.assert_array_equal(stage, getattr(model, method)(frame, iteration_range=(0, k)))
        np.testing.assert_array_equal(stages[-1], getattr(model, method)(frame))


def test_attributes() -> None:
    frame, number, _ = shop()
    model = DBoostRegressor(max_iter=3).fit(frame, number)
    assert list(model.feature_names_in_) == list(frame.columns)
    assert model.n_features_in_ == 3
    np.testing.assert_array_equal(model.is_categorical_, [False, False, True])
    assert model.do_early_stopping_ is False
    assert model.train_score_.shape == (4,)
    assert (np.diff(model.train_score_) > 0).all()
    np.testing.assert_allclose(model.train_score_[0], -0.5 * number.var(ddof=0))
    np.testing.assert_allclose(model.train_score_[-1], -0.5 * ((model.predict(frame) - number) ** 2).mean())
    assert model.validation_score_.size == 0
    model.fit(frame[["price", "size"]].to_numpy(), number)
    assert not hasattr(model, "feature_names_in_")
    assert model.is_categorical_ is None


def test_names_of_features(tmp_path: Path) -> None:
    frame, number, _ = shop()
    model = DBoostRegressor(max_iter=3).fit(frame, number)
    expected = model.predict(frame)
    frames = [pd.DataFrame, pa.Table.from_pandas, pl.from_pandas, lambda of: dd.from_pandas(of, npartitions=2)]
    for as_kind in (*frames, *(lambda of, make=make: make(of, new_file(tmp_path, "")) for make in STREAMS.values())):
        more = frame.assign(more=1)[["more", "price", "size", "town"]]
        np.testing.assert_array_equal(model.predict(as_kind(more)), expected)  # further columns are ignored
        for other in (["town", "size", "price"], ["more", "town", "size", "price"]):
            with pytest.raises(ValueError, match="same order"):
                model.predict(as_kind(frame.assign(more=1)[other]))
        for fewer in (["price", "size"], ["price", "size", "more"]):
            with pytest.raises(ValueError, match=r"now missing:\n- town"):
                model.predict(as_kind(frame.assign(more=1)[fewer]))
    tuples = frame.set_axis(pd.MultiIndex.from_tuples([("a", 1), ("a", 2), ("b", 1)]), axis=1)
    model.fit(tuples, number)
    assert not hasattr(model, "feature_names_in_")  # as in scikit-learn, whose names are text
    more = pd.concat([tuples, tuples.iloc[:, :1].set_axis(pd.MultiIndex.from_tuples([("c", 1)]), axis=1)], axis=1)
    np.testing.assert_array_equal(model.predict(more), expected)
    with pytest.raises(ValueError, match="same order"):
        model.predict(more.iloc[:, ::-1])
    with pytest.raises(TypeError, match="string names"):
        DBoostRegressor().fit(frame.rename(columns={"size": 2}), number)
    chosen = DBoostRegressor(max_iter=3, features=["size", "town"]).fit(frame, number)
    assert list(chosen.feature_names_in_) == ["size", "town"]
    for columns in (["size", "town"], ["town", "size"], ["town", "price", "size"]):  # selected by name
        np.testing.assert_array_equal(chosen.predict(frame), chosen.predict(frame[columns]))


def test_a_column_of_targets_is_taken_with_a_warning() -> None:
    frame, number, _ = shop()
    expected = DBoostRegressor(max_iter=3).fit(frame, number).predict(frame)
    for column in (number.to_numpy()[:, None], number.to_frame()):
        with pytest.warns(DataConversionWarning, match="column-vector") as caught:
            model = DBoostRegressor(max_iter=3).fit(frame, column)
        assert caught[0].filename == __file__
        np.testing.assert_array_equal(model.predict(frame), expected)


def test_what_does_not_fit_together_is_said() -> None:
    frame, number, classes = shop()
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        DBoostRegressor().fit(frame, number[1:])
    with pytest.raises(ValueError, match=r"sample_weight.shape == \(3,\), expected \(400,\)"):
        DBoostRegressor().fit(frame, number, [1, 2, 3])
    with pytest.raises(ValueError, match="one class"):
        DBoostClassifier().fit(frame, np.full(400, "only"))
    with pytest.raises(ValueError, match="class_weight of class 'low' is 0"):
        DBoostClassifier(class_weight={"low": 0.0}).fit(frame, classes)
    for wrong, message in (
        ({"low": 1.0, "hihg": 2.0}, "has a weight of 'hihg', which is not one of the classes .*'low'"),
        ({0: 1.0}, "has a weight of 0, which is not one of the classes"),
        ({"low": "much"}, "must hold numbers"),
        ("balance", "must be 'balanced', a dict of weights by class, or None"),
        ([1.0, 2.0], "must be 'balanced', a dict of weights by class, or None"),
    ):
        with pytest.raises(dboost.ParameterError, match=f"class_weight.*{message}"):
            DBoostClassifier(class_weight=wrong).fit(frame, classes)
    with pytest.raises(TypeError, match=r"dboost\.fit"):
        DBoostRegressor().fit(frame, "town")
    for Estimator, target in ((DBoostRegressor, number), (DBoostClassifier, classes)):
        with pytest.raises(dboost.DataError, match="inconsistent numbers of samples"):
            Estimator().fit(scipy.sparse.csr_matrix(np.eye(300)), target)


def test_a_failed_fit_leaves_the_model_as_it_was() -> None:
    frame, number, _ = shop()
    model = DBoostRegressor(max_iter=3).fit(frame, number)
    before = model.booster_
    with pytest.raises(ValueError, match="infin"):
        model.fit(frame.assign(size=np.inf), number)
    assert model.booster_ is before
    model.predict(frame)


class Connection:
    """Like a client: it can be neither copied nor pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("a connection does not travel")


@BOTH
def test_pickles_and_clones(Estimator: Any) -> None:
    frame, number, classes = shop()
    model = Estimator(max_iter=3).fit(frame, number if Estimator is DBoostRegressor else classes)
    model.client = Connection()
    twin = pickle.loads(pickle.dumps(model))
    assert twin.client is None
    assert twin.get_params() == model.get_params() | {"client": None}
    np.testing.assert_array_equal(twin.predict(frame), model.predict(frame))
    assert twin.booster_ == model.booster_
    fresh = clone(model)
    assert fresh.client is model.client
    assert not hasattr(fresh, "booster_")
    assert copy.deepcopy(clone(twin)).get_params() == twin.get_params()


def test_random_states() -> None:
    frame, number, _ = shop()
    seeds = [
        DBoostRegressor(max_iter=1, random_state=state).fit(frame, number).booster_.ensemble.parameters["random_state"]
        for state in (7, np.int64(7), np.random.RandomState(3), np.random.RandomState(3), None, None)
    ]
    assert seeds[0] == seeds[1] == 7
    assert seeds[2] == seeds[3]
    assert seeds[4] != seeds[5]


@BOTH
def test_dask_frames(Estimator: Any) -> None:
    frame, number, classes = shop()
    y = number if Estimator is DBoostRegressor else classes
    settings: dict[str, Any] = {"max_iter": 5, "random_state": 0, "early_stopping": True, "n_iter_no_change": 3}
    X, targets = dd.from_pandas(frame, npartitions=3), dd.from_pandas(y.to_frame(), npartitions=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataConversionWarning)
        model = Estimator(**settings).fit(X, targets)
    assert model.booster_.sha256 == Estimator(**settings).fit(frame, y).booster_.sha256
    assert list(model.feature_names_in_) == list(frame.columns)
    answer = model.predict(X)
    assert isinstance(answer, dd.Series)
    np.testing.assert_array_equal(answer.compute().to_numpy(), model.predict(frame))
    empty = model.predict(dd.from_pandas(frame[:0], npartitions=1))
    assert empty.dtype == empty.compute().dtype == (float if Estimator is DBoostRegressor else object)
    assert len(list(model.staged_predict(X))) == model.n_iter_
    assert len(model.predict(X.loc[[0]]).compute()) == 1
    if Estimator is DBoostClassifier:
        for method in ("predict_proba", "decision_function"):
            frames = getattr(model, method)(X)
            assert isinstance(frames, dd.DataFrame)
            assert list(frames.columns) == ["low", "middle", "top"]
            np.testing.assert_array_equal(frames.compute().to_numpy(), getattr(model, method)(frame))
    assert 0 < model.score(X, targets) <= 1


def test_dask_arrays() -> None:
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(300, 4)), rng.normal(size=300)
    lazy, targets = da.from_array(X, chunks=(100, 2)), da.from_array(y[:, None], chunks=(100, 1))
    with pytest.warns(DataConversionWarning):
        model = DBoostRegressor(max_iter=3, random_state=0).fit(lazy, targets, da.ones(300, chunks=100))
    assert model.booster_.sha256 == DBoostRegressor(max_iter=3, random_state=0).fit(X, y).booster_.sha256
    answer = model.predict(lazy)
    assert isinstance(answer, da.Array)
    assert answer.shape == (300,)
    np.testing.assert_array_equal(answer, model.predict(X))
    with pytest.raises(ValueError, match="expecting 4 features"):
        model.predict(lazy[:, :3])


def test_progress_is_shown_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    frame, number, _ = shop()
    DBoostRegressor(max_iter=2).fit(frame, number)
    assert "iteration" not in capsys.readouterr().err
    DBoostRegressor(max_iter=2, verbose=1).fit(frame, number)
    assert "iteration 2/2" in capsys.readouterr().err
    DBoostRegressor(max_iter=2, verbose=-1).fit(frame, number)  # LightGBM's value for no output
    DBoostRegressor(max_iter=2, verbose=1, progress=False).fit(frame, number)
    assert "iteration" not in capsys.readouterr().err


def test_callbacks_may_stop_the_fit() -> None:
    frame, number, _ = shop()
    model = DBoostRegressor(max_iter=9, callbacks=[lambda iteration: iteration.iteration == 4]).fit(frame, number)
    assert model.n_iter_ == 4


@pytest.mark.parametrize(("given", "message"), [({"n_jobs": 0}, "n_jobs=0"), ({"n_jobs": 2, "n_threads": 1}, "same parameter")])
def test_wrong_numbers_of_jobs_are_refused(given: dict[str, Any], message: str) -> None:
    rows = np.zeros((30, 1)), np.arange(30.0)
    with pytest.raises(ValueError, match=message):
        DBoostRegressor(**given).fit(*rows)
    for n_jobs in (None, 2, -1):
        DBoostRegressor(n_jobs=n_jobs, max_iter=1).fit(*rows)


def test_feature_importances_are_shares_in_the_order_of_the_columns() -> None:
    from sklearn.feature_selection import RFE, SelectFromModel

    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(400, 4)), columns=["d", "a", "c", "b"])
    y = 3 * X["c"] + X["d"]
    model = DBoostRegressor(max_iter=10)
    assert not hasattr(model, "feature_importances_")
    shares = model.fit(X, y).feature_importances_
    assert shares.shape == (4,) and shares.sum() == pytest.approx(1.0) and shares.argmax() == 2
    gain = model.booster_.importance("gain")
    assert shares[0] / shares[2] == pytest.approx(gain["d"] / gain["c"])
    assert SelectFromModel(model, prefit=True).get_support()[2]
    assert RFE(DBoostRegressor(max_iter=5), n_features_to_select=2).fit(X, y).support_.tolist() == [True, False, True, False]
    constant = DBoostRegressor(max_iter=2).fit(X, np.ones(400))
    assert constant.feature_importances_.tolist() == [0.0] * 4


def test_an_arrow_stream_has_the_names_of_its_columns() -> None:
    rng = np.random.default_rng(0)
    table = pa.table({"a": rng.normal(size=300), "b": rng.normal(size=300)})
    y = table["a"].to_numpy() + rng.normal(size=300)
    once = table.to_reader()  # can be read once only
    found = DBoostRegressor(max_iter=3, monotonic_cst={"a": 1}).fit(once, y)
    assert found.booster_.feature_names_in_.tolist() == ["a", "b"]
    assert np.array_equal(
        found.predict(table), DBoostRegressor(max_iter=3, monotonic_cst={"a": 1}).fit(table, y).predict(table)
    )


@pytest.mark.parametrize("kind", ["pandas", "Dask"])
def test_repeated_names_are_an_error_of_ours(kind: str) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 3)), columns=["a", "b", "a"])
    X: Any = frame if kind == "pandas" else dd.from_pandas(frame, npartitions=2)
    with pytest.raises(dboost.DataError, match="column 'a' occurs more than once: feature names must be unique"):
        DBoostRegressor(max_iter=1).fit(X, np.arange(60.0) if kind == "pandas" else X["b"])
    model = DBoostRegressor(max_iter=1, features=["b"]).fit(frame, np.arange(60.0))
    assert model.predict(frame).shape == (60,)
