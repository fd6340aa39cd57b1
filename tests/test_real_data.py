"""On real tables, test rows are predicted as well as by LightGBM at equal settings.

31 leaves, 100 trees, learning rate 0.1, 20 rows a leaf, λ = 1, categories as categories. The loss itself is compared: log loss,
or the root of the mean squared error.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import log_loss, root_mean_squared_error

import dboost
from tests.helpers.real_data import RealTable, load, path

TABLES = pytest.mark.parametrize("name", ["adult", "california", "hflights"])
pytestmark = pytest.mark.real_data


def official(table: RealTable) -> tuple[RealTable, RealTable]:
    """The official training and test sets of adult."""
    is_train = (pd.read_parquet(path("adult"), columns=["fold"])["fold"] == "train").to_numpy()
    return table.take(np.flatnonzero(is_train)), table.take(np.flatnonzero(~is_train))


def ours(train: RealTable, X: pd.DataFrame, **changed: Any) -> np.ndarray:
    loss = "log_loss" if train.is_classification else "squared_error"
    booster = dboost.fit(train.X, train.y, loss=loss, **changed)
    return np.asarray(booster.predict_proba(X))[:, 1] if train.is_classification else np.asarray(booster.predict(X))


def lightgbms(train: RealTable, X: pd.DataFrame) -> np.ndarray:
    lightgbm = pytest.importorskip("lightgbm")
    settings = {
        "objective": "binary" if train.is_classification else "l2", "num_leaves": 31, "learning_rate": 0.1,
        "min_data_in_leaf": 20, "min_sum_hessian_in_leaf": 1.0, "lambda_l2": 1.0, "verbose": -1, "num_threads": 1,
    }  # fmt: skip
    return lightgbm.train(settings, lightgbm.Dataset(train.X, train.y), 100).predict(X)


def score(test: RealTable, predictions: np.ndarray) -> float:
    measure = log_loss if test.is_classification else root_mean_squared_error
    return float(measure(test.y, predictions))


@pytest.mark.slow
@TABLES
def test_as_good_as_lightgbm_on_five_splits(name: str) -> None:
    """Pairs of the same split: the mean difference is within three standard errors of zero, or dboost is better."""
    table, pairs, constants = load(name), [], []
    table = table.take(np.random.default_rng(0).permutation(len(table.y))[:60_000])
    for seed in range(5):
        train, test = table.split(seed)
        constants.append(score(test, np.full(len(test.y), train.y.mean())))
        pairs.append((score(test, ours(train, test.X)), score(test, lightgbms(train, test.X))))
    found, theirs = np.array(pairs).T
    difference = found - theirs
    print(f"{name}: {difference.mean():+.3g} ± {difference.std(ddof=1):.2g} of {theirs.mean():.5g}")
    assert difference.mean() < 3 * difference.std(ddof=1) / 5**0.5
    assert (found < 1.02 * theirs).all()
    # And far better than the mean.
    assert (found < 0.92 * np.array(constants)).all()


@TABLES
def test_partitions_and_threads_do_not_matter(name: str) -> None:
    import dask.dataframe as dd

    frame = load(name).frame.iloc[:20_000]
    settings = {"max_iter": 10, "loss": "auto"}
    models = [
        dboost.fit(frame, "target", n_threads=1, **settings),
        dboost.fit(frame, "target", n_threads=2, **settings),
        dboost.fit(dd.from_pandas(frame, npartitions=7, sort=False), "target", n_threads=2, **settings),
    ]
    assert len({model.sha256 for model in models}) == 1


def test_early_stopping_on_adult() -> None:
    train, test = official(load("adult"))
    inner, held_out = train.split(0)
    booster = dboost.fit(
        inner.X, inner.y, eval_set=(held_out.X, held_out.y), eval_metric=["accuracy", "roc_auc", "log_loss"],
        max_iter=1000, early_stopping_rounds=20,
    )  # fmt: skip
    assert 50 < booster.n_iter_ < 500
    assert log_loss(test.y, np.asarray(booster.predict_proba(test.X))[:, 1]) < 0.28
