"""``loss="auto"`` tells what it chose, and predictions have a name."""

from __future__ import annotations

import logging
import warnings

import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pytest

import dboost
from dboost import DBoostRegressor

RNG = np.random.default_rng(0)
X = pd.DataFrame(RNG.normal(size=(200, 2)), columns=["a", "b"])


@pytest.mark.parametrize(
    ("y", "told"),
    [
        (RNG.normal(size=200), "loss='auto' is 'squared_error': the target holds numbers"),
        (RNG.integers(0, 2, 200), "loss='auto' is 'log_loss': the target holds 2 classes"),
        (RNG.integers(0, 2, 200) * 1.0, "loss='auto' is 'log_loss': the target holds 2 classes"),
        (RNG.integers(0, 2, 200) > 0, "loss='auto' is 'log_loss': the target holds 2 classes"),
        (RNG.choice(list("abc"), 200), "loss='auto' is 'log_loss': the target holds 3 classes"),
    ],
)
def test_the_choice_is_logged(y: np.ndarray, told: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="dboost"):
        booster = dboost.fit(X, y, max_iter=2, progress=False)
    assert told in caplog.text
    assert booster.loss.name in told and (booster.classes_ is None) == (y.dtype == np.float64 and len(set(y)) > 2)


@pytest.mark.parametrize("n", [2, 3, 50, 51])
@pytest.mark.parametrize("kind", [int, float])
def test_a_few_integers_may_be_classes(n: int, kind: type) -> None:
    y = (np.arange(200) % n + 1).astype(kind)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        dboost.fit(X, y, max_iter=2, progress=False)
    told = [str(one.message) for one in seen if "different integers" in str(one.message)]
    assert len(told) == (kind is int and n in (3, 50))
    for text in told:
        assert f"{n} different integers" in text and "loss='squared_error'" in text and "loss='log_loss'" in text


@pytest.mark.parametrize("values", [(-1, 1), (1, 2), (1.0, 2.0), (0.5, 3.25)])
def test_two_numbers_may_be_classes(values: tuple[float, float]) -> None:
    y = np.array(values)[np.arange(200) % 2]
    with pytest.warns(UserWarning, match=f"two different numbers, {values[0]:g} and {values[1]:g}, which are taken as numbers"):
        booster = dboost.fit(X, y, max_iter=2, progress=False)
    assert booster.loss.name == "squared_error"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dboost.fit(X, y, max_iter=2, progress=False, loss="squared_error")
        DBoostRegressor(max_iter=2).fit(X, y)


@pytest.mark.parametrize("kind", [int, float])
@pytest.mark.parametrize("value", [0, 1])
def test_one_class_is_taken_as_a_number_with_a_warning(value: int, kind: type) -> None:
    y = np.full(200, value, kind)
    with pytest.warns(UserWarning, match=f"the target is {value} in all rows and is taken as a number: .* rows of both"):
        booster = dboost.fit(X, y, max_iter=2, progress=False)
    assert booster.loss.name == "squared_error" and (booster.predict(X) == value).all()
    for fit in (lambda: dboost.fit(X, y, loss="log_loss"), lambda: dboost.DBoostClassifier().fit(X, y)):
        with pytest.raises(
            dboost.DataError, match=f"the target has one class only .{value}.*; a classifier needs at least two"
        ):
            fit()


def test_who_names_a_loss_is_not_warned() -> None:
    y = np.arange(200) % 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dboost.fit(X, y, loss="squared_error", max_iter=2, progress=False)
        dboost.fit(X, 0 * y, loss="squared_error", max_iter=2, progress=False)
        dboost.fit(X, y, loss="log_loss", max_iter=2, progress=False)
        DBoostRegressor(max_iter=2).fit(X, y)


def test_predictions_are_called_so() -> None:
    booster = dboost.fit(X, X["a"] * 2, max_iter=2, progress=False)
    assert booster.predict(X).name == "prediction"
    assert booster.predict(pl.from_pandas(X)).name == "prediction"
    lazy = booster.predict(dd.from_pandas(X, npartitions=2))
    assert lazy.name == lazy.compute().name == "prediction"


def test_the_same_prediction_has_the_same_keys() -> None:
    booster, data = dboost.fit(X, X["a"] * 2, max_iter=2, progress=False), dd.from_pandas(X, npartitions=2)
    one, same = booster.predict(data), booster.predict(data)
    one.compute()
    assert one.__dask_keys__() == same.__dask_keys__() == booster.predict(data).__dask_keys__()
    other = dboost.fit(X, X["b"], max_iter=2, progress=False)
    assert other.predict(data).__dask_keys__() != one.__dask_keys__()
    assert booster.predict(data, iteration_range=(0, 1)).__dask_keys__() != one.__dask_keys__()
    assert booster.predict(data.to_dask_array(lengths=True)).name == booster.predict(data.to_dask_array(lengths=True)).name
