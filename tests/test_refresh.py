"""Leaf values estimated anew: the splits stay, the values are those of the new rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dboost
from dboost import DataError, ParameterError
from tests.fits import FEATURES, TARGETS, mixed_frame, saved

OLD, NEW = mixed_frame(600), mixed_frame(500, seed=1)


def first(target: str, **options: Any) -> dboost.Booster:
    frame = OLD.assign(y=OLD["y"].abs()) if options.get("loss") == "poisson" else OLD
    return dboost.fit(frame, target, features=FEATURES, **{"max_iter": 8} | options)


@pytest.mark.parametrize(
    ("target", "options"),
    [
        *((target, {}) for target in TARGETS),
        ("y", {"loss": "absolute_error"}),
        ("y", {"loss": "huber"}),
        ("y", {"loss": "quantile", "quantile": 0.8}),
        ("y", {"loss": "poisson"}),
        ("late", {"criterion": "gradient", "l2_regularization": 0.0}),
        ("y", {"sample_weight": "w"}),
    ],
)
def test_the_own_data_give_the_own_values(target: str, options: dict[str, Any]) -> None:
    old = first(target, **options)
    frame = OLD.assign(y=OLD["y"].abs()) if options.get("loss") == "poisson" else OLD
    again = old.refit_leaves(frame, target, sample_weight=options.get("sample_weight"))
    for before, after in zip(old.ensemble.trees, again.ensemble.trees, strict=True):
        leaf = before.feature < 0
        np.testing.assert_allclose(after.value[leaf], before.value[leaf], rtol=1e-5, atol=1e-7)


def test_values_are_those_of_the_new_rows() -> None:
    old = first("y", l2_regularization=2.0)
    new = old.refit_leaves(NEW, "y", source_name="spring")
    score = np.full(len(NEW), old.ensemble.baseline[0])
    y, leaves = NEW["y"].to_numpy(), np.asarray(old.apply(NEW))
    for tree, before, of_rows in zip(new.ensemble.trees, old.ensemble.trees, leaves.T, strict=True):
        values = tree.value[tree.feature < 0]
        for leaf, value in enumerate(values):
            rows = of_rows == leaf
            kept = before.value[before.feature < 0][leaf]
            expected = 0.1 * (y - score)[rows].sum() / (rows.sum() + 2.0) if rows.any() else kept
            np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-9)
        score += values[of_rows]
        assert np.array_equal(tree.feature, before.feature) and np.array_equal(tree.threshold, before.threshold, equal_nan=True)
    np.testing.assert_allclose(new.predict(NEW), score, rtol=1e-12)
    (source,) = new.sources
    assert source["refreshed"] == [{"label": "spring", "rows": 500, "decay": 0.0}]
    assert len(new.history) == 0
    assert saved(dboost.fit(NEW, "y", start_from=old, refit_leaves=True, source_name="spring")) == saved(new)
    assert saved(old.refit_leaves(NEW, "y", source_name="spring", n_threads=1)) == saved(new)


def test_decay_keeps_some_of_the_old() -> None:
    old = first("y", max_iter=1)
    new, half = old.refit_leaves(NEW, "y"), old.refit_leaves(NEW, "y", decay=0.5)
    leaf = old.ensemble.trees[0].feature < 0
    values = [booster.ensemble.trees[0].value[leaf] for booster in (old, new, half)]
    np.testing.assert_allclose(values[2], (values[0] + values[1]) / 2, rtol=1e-12)


def test_a_continued_model_is_refreshed_with_its_own_parameters() -> None:
    old = dboost.fit(NEW, "late", start_from=first("late"), max_iter=3)
    turned = NEW.assign(late=1 - NEW["late"])
    new = old.refit_leaves(turned, "late")

    def log_loss(booster: dboost.Booster) -> float:
        p = np.asarray(booster.predict_proba(turned))[np.arange(len(turned)), turned["late"]]
        return float(-np.log(p).mean())

    assert log_loss(new) < 0.69 < log_loss(old)
    assert len(new.sources) == 2 and all("refreshed" in source for source in new.sources)
    only = old.refit_leaves(NEW[NEW["late"] == 1], "late")
    assert np.isfinite(np.asarray(only.predict(NEW, raw_score=True))).all(), "one class is legal"


@pytest.mark.parametrize(
    ("kind", "message", "options"),
    [
        (ParameterError, "needs start_from", {"start_from": None}),
        (ParameterError, "max_iter has nothing to do with refit_leaves", {"max_iter": 3}),
        (ParameterError, "eval_set has nothing to do", {"eval_set": NEW}),
        (DataError, "no column 'x'", {"data": NEW.drop(columns="x")}),
        (DataError, "a class that the training target has not: 2", {"data": NEW.assign(late=NEW["late"] * 2)}),
    ],
)
def test_what_cannot_be(kind: type[Exception], message: str, options: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"data": NEW, "start_from": first("late", max_iter=1), "refit_leaves": True} | options
    with pytest.raises(kind, match=message):
        dboost.fit(asked.pop("data"), "late", **asked)


def test_models_that_cannot_be_refreshed() -> None:
    with pytest.raises(ParameterError, match="monotonic_cst"):
        first("y", monotonic_cst={"x": 1}).refit_leaves(NEW, "y")
    with pytest.raises(ParameterError, match="step='constant'"):
        first("y", step="constant").refit_leaves(NEW, "y")
    with pytest.raises(ParameterError, match=r"decay=1\.5"):
        first("y", max_iter=1).refit_leaves(NEW, "y", decay=1.5)
    with pytest.raises(ParameterError, match="no trees"):
        first("y").truncate(0).refit_leaves(NEW, "y")
    with pytest.raises(ParameterError, match="not for estimators"):
        dboost.DBoostRegressor(refit_leaves=True).fit(NEW[["x"]], NEW["y"])
