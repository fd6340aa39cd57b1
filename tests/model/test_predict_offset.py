"""Predictions with an offset equal those of training with it, for every kind of table."""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pytest

import dboost
from dboost import DBoostClassifier, DBoostRegressor
from dboost.errors import DataError, InputTypeError, ParameterError

rng = np.random.default_rng(0)
N = 800
FRAME = pd.DataFrame(rng.normal(size=(N, 3)), columns=["a", "b", "c"]).assign(
    exposure=rng.uniform(-1.0, 2.0, N), late=rng.random(N) < 0.4
)
FRAME["claims"] = rng.poisson(np.exp(FRAME.a / 2 + FRAME.exposure))
FEATURES = ["a", "b", "c"]
SETTINGS: dict[str, Any] = {"max_iter": 20, "progress": False}


@pytest.fixture(scope="module")
def booster() -> dboost.Booster:
    return dboost.fit(FRAME, "claims", loss="poisson", offset="exposure", features=FEATURES, **SETTINGS)


def test_predictions_are_those_of_training(booster: dboost.Booster) -> None:
    found = booster.predict(FRAME, offset="exposure")
    deviance = booster.loss.value(
        FRAME.claims.to_numpy(float), booster.predict(FRAME, raw_score=True, offset="exposure").to_numpy()[None]
    )
    assert booster.history.train_loss.iloc[-1] == pytest.approx(deviance.mean(), rel=1e-6)
    np.testing.assert_allclose(found, booster.predict(FRAME) * np.exp(FRAME.exposure))
    assert found.mean() == pytest.approx(FRAME.claims.mean(), rel=0.05)


def test_every_kind_of_table(booster: dboost.Booster) -> None:
    expected = booster.predict(FRAME, offset="exposure")
    pd.testing.assert_series_equal(booster.predict(FRAME, offset=FRAME.exposure), expected)
    lazy = booster.predict(dd.from_pandas(FRAME, npartitions=3), offset="exposure")
    pd.testing.assert_series_equal(lazy.compute(), expected)
    other = pl.from_pandas(FRAME)
    assert booster.predict(other, offset="exposure").to_list() == expected.to_list()
    X = FRAME[FEATURES].to_numpy()
    plain = dboost.fit(X, FRAME.claims, loss="poisson", offset=FRAME.exposure.to_numpy(), **SETTINGS)
    np.testing.assert_array_equal(plain.predict(X, offset=FRAME.exposure.tolist()), expected)


def test_probabilities_and_classes() -> None:
    model = dboost.fit(FRAME, "late", offset="exposure", features=FEATURES, **SETTINGS)
    raw = model.predict(FRAME, raw_score=True).to_numpy() + FRAME.exposure.to_numpy()
    found = model.predict_proba(FRAME, offset="exposure")
    np.testing.assert_allclose(found["True"], 1 / (1 + np.exp(-raw)))
    np.testing.assert_array_equal(model.predict(FRAME, offset="exposure"), raw > 0)


def test_estimators_take_offsets(booster: dboost.Booster) -> None:
    X, offset = FRAME[FEATURES], FRAME.exposure
    model = DBoostRegressor(loss="poisson", max_iter=20, early_stopping=False, random_state=0)
    model.fit(X, FRAME.claims, offset=offset)
    np.testing.assert_array_equal(model.predict(X, offset=offset), booster.predict(FRAME, offset="exposure"))
    split = {"X_val": X[:200], "y_val": FRAME.claims[:200], "offset_val": offset[:200]}
    model = DBoostRegressor(loss="poisson", max_iter=20, early_stopping=True, random_state=0).fit(
        X[200:], FRAME.claims[200:], offset=offset[200:], **split
    )
    raw = model.booster_.predict(X[:200], raw_score=True, offset=offset[:200]).to_numpy()
    losses = model.booster_.loss.value(FRAME.claims[:200].to_numpy(float), raw[None])
    assert -model.validation_score_[-1] == pytest.approx(losses.mean(), rel=1e-6)
    classes = DBoostClassifier(max_iter=5, early_stopping=False).fit(X, FRAME.late, offset=offset)
    assert not np.allclose(classes.predict_proba(X, offset=offset), classes.predict_proba(X))


def test_rows_that_an_estimator_holds_out_keep_their_offsets() -> None:
    X = FRAME[FEATURES]
    model = DBoostRegressor(loss="poisson", max_iter=15, early_stopping=True, random_state=1, validation_fraction=0.3)
    model.fit(X, FRAME.claims, offset=FRAME.exposure)
    without = DBoostRegressor(loss="poisson", max_iter=15, early_stopping=True, random_state=1, validation_fraction=0.3)
    without.fit(X, FRAME.claims)
    assert model.validation_score_[-1] > without.validation_score_[-1]


def test_what_is_refused(booster: dboost.Booster) -> None:
    with pytest.raises(DataError, match=r"offset has the shape \(3,\), but there are 800 rows"):
        booster.predict(FRAME, offset=[1.0, 2.0, 3.0])
    with pytest.raises(DataError, match="offset 'exposure' is missing or infinite in 1 rows, first in row 5"):
        booster.predict(FRAME.assign(exposure=FRAME.exposure.where(FRAME.index != 5)), offset="exposure")
    with pytest.raises(DataError, match="nothing"):
        booster.predict(FRAME, offset="nothing")
    with pytest.raises(InputTypeError, match="offset='a' is one of its features"):
        booster.predict(FRAME, offset="a")
    with pytest.raises(InputTypeError, match="offset must be the name of a column"):
        booster.predict(dd.from_pandas(FRAME, npartitions=2), offset=FRAME.exposure)
    X = FRAME[FEATURES].to_numpy()
    plain = dboost.fit(X, FRAME.claims, loss="poisson", max_iter=1, progress=False)
    for data in (X, da.from_array(X)):
        with pytest.raises(InputTypeError, match="no column of arrays"):
            plain.predict(data, offset="exposure")
    with pytest.raises(ParameterError, match="give both or none"):
        DBoostRegressor().fit(X, FRAME.claims, offset=FRAME.exposure, X_val=X, y_val=FRAME.claims)
    with pytest.raises(ParameterError, match="offset_val belongs to"):
        DBoostRegressor().fit(X, FRAME.claims, offset_val=FRAME.exposure)
    with pytest.raises(ParameterError, match="scoring must be 'loss'"):
        DBoostRegressor(scoring="r2").fit(X, FRAME.claims, offset=FRAME.exposure)
