"""On real tables, exported models predict what dboost's do, and imported models what they did before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dboost
from tests.helpers.foreign import by_onnx, by_treelite, by_xgboost
from tests.helpers.real_data import RealTable, load, path

pytestmark = pytest.mark.real_data


def table_of(name: str) -> RealTable:
    if name != "covtype":
        return load(name)
    table = pd.read_parquet(path(name))
    return RealTable(name, table.drop(columns="Cover_Type"), table["Cover_Type"].astype(np.int64), True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adult", "california", "covtype"])
def test_every_format_agrees(name: str, tmp_path: Path) -> None:
    train, test = table_of(name).take(np.arange(20_000)).split(0)
    loss = "log_loss" if train.is_classification else "squared_error"
    booster = dboost.fit(train.X, train.y, loss=loss, max_iter=30)
    if train.is_classification:
        expected = np.asarray(booster.predict_proba(test.X))
    else:
        expected = np.asarray(booster.predict(test.X))
    of_second = expected[:, 1] if expected.ndim == 2 and expected.shape[1] == 2 else expected
    matrix = np.asarray(booster.to_matrix(test.X))
    np.testing.assert_allclose(by_onnx(booster, matrix, tmp_path)[-1], expected, rtol=2e-6, atol=1e-7)
    np.testing.assert_allclose(by_treelite(booster, matrix).reshape(of_second.shape), of_second, rtol=1e-12, atol=1e-7)
    np.testing.assert_allclose(by_xgboost(booster, matrix, tmp_path), of_second, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adult", "california", "covtype"])
def test_imports_agree(name: str) -> None:
    xgboost, lightgbm = pytest.importorskip("xgboost"), pytest.importorskip("lightgbm")
    train, test = table_of(name).take(np.arange(20_000)).split(0)
    n_classes = int(train.y.max()) + 1 if train.is_classification else 0
    objective = {} if not n_classes else {"objective": "binary:logistic" if n_classes == 2 else "multi:softprob"}
    settings = {"nthread": 1, "verbosity": 0, **objective, **({"num_class": n_classes} if n_classes > 2 else {})}
    theirs = xgboost.train(settings, xgboost.DMatrix(train.X, train.y, enable_categorical=True), 20)
    expected = theirs.predict(xgboost.DMatrix(test.X, enable_categorical=True))
    ours = dboost.from_xgboost(theirs)
    found = np.asarray(ours.predict_proba(test.X) if n_classes else ours.predict(test.X))
    np.testing.assert_allclose(found[:, 1] if n_classes == 2 else found, expected, rtol=1e-4, atol=2e-6)

    objective = {} if not n_classes else {"objective": "binary" if n_classes == 2 else "multiclass"}
    settings = {"num_threads": 1, "verbose": -1, **objective, **({"num_class": n_classes} if n_classes > 2 else {})}
    theirs = lightgbm.train(settings, lightgbm.Dataset(train.X, train.y), 20)
    ours = dboost.from_lightgbm(theirs)
    found = np.asarray(ours.predict_proba(test.X) if n_classes else ours.predict(test.X))
    np.testing.assert_allclose(found[:, 1] if n_classes == 2 else found, theirs.predict(test.X), rtol=1e-9)
