"""Warm starts give the model of an uninterrupted fit, to the last bit."""

from __future__ import annotations

from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from dboost import DBoostClassifier, DBoostRegressor, ParameterError
from dboost.model.model_file import dumps

BOTH = pytest.mark.parametrize("Estimator", [DBoostRegressor, DBoostClassifier])


def data_for(Estimator: Any, n: int = 500) -> tuple[pd.DataFrame, np.ndarray]:
    """Floats of both widths, integers, categories, and missing values."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=n), "b": rng.normal(size=n).astype(np.float32), "c": rng.integers(50, size=n)})
    frame["d"] = pd.Categorical(rng.choice(list("uvwxyz"), n))
    frame.loc[rng.random(n) < 0.1, "a"] = np.nan
    frame.loc[rng.random(n) < 0.1, "d"] = None
    y = frame["b"] + frame["a"].fillna(2) * frame["d"].isin(["u", "x"]) + frame["c"] / 50 + rng.normal(size=n)
    return frame, y.to_numpy() if Estimator is DBoostRegressor else np.digitize(y, [0.0, 1.0])


def in_steps(model: Any, steps: list[int], X: Any, y: Any, weight: Any = None, **more: Any) -> Any:
    model.set_params(warm_start=True)
    for step in steps:
        model.set_params(max_iter=step).fit(X, y, weight, **more)
    return model


def same(one: Any, other: Any) -> None:
    assert dumps(one.booster_.ensemble) == dumps(other.booster_.ensemble)
    np.testing.assert_array_equal(one.train_score_, other.train_score_)
    np.testing.assert_array_equal(one.validation_score_, other.validation_score_)
    timeless = [model.booster_.history.drop(columns="seconds") for model in (one, other)]
    pd.testing.assert_frame_equal(*timeless, check_like=True)


@pytest.mark.fast_cells(4)
@BOTH
@pytest.mark.parametrize("weighted", [False, True])
def test_steps_make_the_model_of_one_go(Estimator: Any, weighted: bool) -> None:
    X, y = data_for(Estimator)
    weight = np.random.default_rng(1).integers(0, 3, size=len(y)).astype(float) if weighted else None
    at_once = Estimator(max_iter=12, random_state=0).fit(X, y, weight)
    same(in_steps(Estimator(random_state=0), [1, 2, 7, 12], X, y, weight), at_once)
    assert len(at_once.booster_.sources) == 1


def test_steps_over_a_matrix_and_over_partitions() -> None:
    X, y = data_for(DBoostRegressor)
    numbers = X.drop(columns="d").to_numpy()
    for data, targets in ((numbers, y), (numbers.astype(np.float32), y), (dd.from_pandas(X, npartitions=4), y)):
        settings: dict[str, Any] = {"random_state": 0, "n_threads": 2}
        same(
            in_steps(DBoostRegressor(**settings), [4, 9], data, targets),
            DBoostRegressor(max_iter=9, **settings).fit(data, targets),
        )


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("scoring", ["loss", None])
@pytest.mark.parametrize("max_iter", [6, 60])
def test_steps_with_early_stopping(Estimator: Any, scoring: str | None, max_iter: int) -> None:
    """Before early stopping, and after it."""
    X, y = data_for(Estimator)
    settings: dict[str, Any] = {"early_stopping": True, "scoring": scoring, "random_state": 1, "n_iter_no_change": 7}
    at_once = Estimator(max_iter=max_iter, **settings).fit(X, y)
    same(in_steps(Estimator(**settings), [3, 5, max_iter], X, y), at_once)
    again = in_steps(Estimator(**settings), [max_iter, max_iter + 1, 400], X, y)
    same(again, Estimator(max_iter=400, **settings).fit(X, y))


@BOTH
def test_steps_with_validation_data(Estimator: Any) -> None:
    X, y = data_for(Estimator)
    settings: dict[str, Any] = {"early_stopping": True, "random_state": 1, "n_iter_no_change": 5}
    more = {"X_val": X[400:], "y_val": y[400:], "eval_set": {"first": (X[:50], y[:50])}}
    at_once = Estimator(max_iter=80, **settings).fit(X[:400], y[:400], **more)
    same(in_steps(Estimator(**settings), [4, 80], X[:400], y[:400], **more), at_once)


@BOTH
def test_new_settings_hold_for_new_trees(Estimator: Any) -> None:
    X, y = data_for(Estimator)
    model = Estimator(max_iter=6, max_leaf_nodes=4, min_samples_leaf=5, random_state=0, warm_start=True).fit(X, y)
    old = model.booster_.ensemble
    model.set_params(max_iter=9, max_leaf_nodes=None, max_depth=4, learning_rate=0.3, max_bins=16, n_threads=1).fit(X, y)
    new = model.booster_.ensemble
    k = old.n_outputs
    assert [tree.n_leaves for tree in new.trees[: 6 * k]] == [tree.n_leaves for tree in old.trees]
    assert max(tree.n_leaves for tree in new.trees[: 6 * k]) == 4
    assert max(tree.n_leaves for tree in new.trees[6 * k :]) > 4
    assert new.parameters == old.parameters
    assert [(s["first_iteration"], s["last_iteration"]) for s in new.sources] == [(1, 6), (7, 9)]
    assert [s["parameters"]["learning_rate"] for s in new.sources] == [0.1, 0.3]
    # The new trees start where the old ones ended: the loss continues from there, and equals that of the model's predictions.
    assert model.train_score_.shape == (10,)
    assert (np.diff(model.train_score_) > 0).all()
    if Estimator is DBoostRegressor:
        np.testing.assert_allclose(model.train_score_[-1], -0.5 * ((model.predict(X) - y) ** 2).mean(), rtol=1e-9)
    # Back to the first settings: a third source, since the second is complete.
    model.set_params(max_iter=10, max_leaf_nodes=4, max_depth=None, learning_rate=0.1, max_bins=255).fit(X, y)
    assert len(model.booster_.sources) == 3


def test_scores_that_nobody_took_are_not_made_up() -> None:
    X, y = data_for(DBoostRegressor)
    model = DBoostRegressor(max_iter=3, random_state=0, warm_start=True).fit(X, y)
    model.set_params(max_iter=6, early_stopping=True, n_iter_no_change=50).fit(X, y)
    np.testing.assert_array_equal(np.isnan(model.validation_score_), [True] * 4 + [False] * (model.n_iter_ - 3))
    assert np.isfinite(model.train_score_).all()
    assert model.n_iter_ > 3


@BOTH
def test_fewer_is_an_error_and_as_many_change_nothing(Estimator: Any) -> None:
    X, y = data_for(Estimator)
    model = Estimator(max_iter=6, random_state=0, warm_start=True).fit(X, y)
    before = model.booster_
    with pytest.raises(ParameterError, match="max_iter=5 must be larger than or equal to n_iter_=6 when warm_start==True"):
        model.set_params(max_iter=5).fit(X, y)
    assert model.set_params(max_iter=6, learning_rate=0.5).fit(X, y).booster_ is before
    same(model.set_params(warm_start=False, max_iter=3).fit(X, y), clone(model).fit(X, y))


@pytest.mark.parametrize("random_state", [None, 3, np.random.RandomState(5)])
def test_the_seed_is_kept(random_state: Any) -> None:
    X, y = data_for(DBoostRegressor)
    model = DBoostRegressor(max_iter=2, early_stopping=True, random_state=random_state, warm_start=True).fit(X, y)
    held = model.validation_score_
    model.set_params(max_iter=4).fit(X, y)
    np.testing.assert_array_equal(model.validation_score_[:3], held)
    assert len(model.booster_.sources) == 1


@BOTH
def test_other_data_are_refused(Estimator: Any) -> None:
    X, y = data_for(Estimator)
    model = Estimator(max_iter=2, random_state=0, warm_start=True).fit(X, y).set_params(max_iter=4)
    with pytest.raises(ValueError, match="4 features, the data have 3"):
        model.fit(X[["a", "b", "c"]], y)
    with pytest.raises(ValueError, match="'d' has other levels"):
        model.fit(X.assign(d=X["d"].cat.rename_categories({"u": "t"})), y)
    with pytest.raises(ValueError, match="column 'z'"):
        model.fit(X.rename(columns={"a": "z"}), y)
    if Estimator is DBoostClassifier:
        with pytest.raises(ValueError, match="classes"):
            model.fit(X, y + 1)
