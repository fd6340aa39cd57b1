"""Incremental training: a fit starts from a model, and the model records which trees came from which data."""

from __future__ import annotations

import pickle
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client

import dboost
from dboost import DataError, InputTypeError, ParameterError
from tests.helpers.fits import FEATURES, TARGETS, mixed_frame, saved

pytestmark = pytest.mark.filterwarnings("ignore::dboost.DriftWarning")
OLD = mixed_frame(600, seed=0)
NEW = mixed_frame(400, seed=1)
#: A category that was not in the training data, and numbers outside the range of the training data.
STRANGE = NEW.assign(town=NEW["town"].replace("Gent", "Arlon"), x=NEW["x"] * 100, age=NEW["age"] + 1000)


def first(target: str = "late", **options: Any) -> dboost.Booster:
    return dboost.fit(OLD, target, features=FEATURES, max_iter=8, **options)


def raw(booster: dboost.Booster, frame: pd.DataFrame = NEW) -> np.ndarray:
    return np.asarray(booster.predict(frame, raw_score=True))


@pytest.mark.parametrize("target", TARGETS)
def test_new_trees_begin_where_the_model_ended(target: str) -> None:
    old = first(target, source_name="winter")
    new = dboost.fit(STRANGE, target, start_from=old, max_iter=5, source_name="spring", continue_steps="full")
    assert new.n_iter_ == 13
    assert [(s["label"], s["rows"], s["first_iteration"], s["last_iteration"]) for s in new.sources] == [
        ("winter", 600, 1, 8),
        ("spring", 400, 9, 13),
    ]
    assert new.history["iteration"].tolist() == list(range(1, 14))
    assert raw(new.truncate(8), STRANGE).tobytes() == raw(old, STRANGE).tobytes()
    assert (np.diff(new.history["train_loss"].iloc[8:]) < 0).all()
    if target == "y":
        loss = 0.5 * ((raw(new, STRANGE) - STRANGE["y"]) ** 2).mean()
        np.testing.assert_allclose(new.history["train_loss"].iloc[-1], loss, rtol=1e-9)
    assert raw(new, STRANGE).tobytes() != raw(old, STRANGE).tobytes()


def test_new_levels_are_appended_and_old_trees_take_them_for_missing() -> None:
    old = first("y")
    new = dboost.fit(STRANGE, "y", start_from=old, max_iter=5, min_samples_leaf=5)
    levels = {feature.name: feature.categories for feature in new.features}
    assert levels["town"] == (*dict((f.name, f.categories) for f in old.features)["town"], "Arlon")
    rows = NEW.iloc[:50].assign(town="Arlon")
    assert raw(new.truncate(8), rows).tobytes() == raw(old, rows.assign(town=None)).tobytes()
    assert raw(new, rows).tobytes() != raw(new, rows.assign(town=None)).tobytes(), "the new trees know it"


@pytest.mark.fast_cells(2)
@pytest.mark.parametrize("loss", ["absolute_error", "huber", "quantile", "poisson", "exponential"])
def test_losses_go_on(loss: str) -> None:
    target = "late" if loss == "exponential" else "y"
    frames = [frame.assign(y=frame["y"].abs()) for frame in (OLD, NEW)]
    options: dict[str, Any] = {"quantile": 0.8} if loss == "quantile" else {}
    old = dboost.fit(frames[0], target, features=FEATURES, max_iter=8, loss=loss, **options)
    new = dboost.fit(frames[1], target, start_from=old, max_iter=5)
    assert new.loss.name == loss
    assert new.ensemble.loss == old.ensemble.loss | ({"delta": new.ensemble.loss["delta"]} if loss == "huber" else {})
    assert new.history["train_loss"].iloc[-1] < new.history["train_loss"].iloc[0]


def test_bins_may_be_kept() -> None:
    old = first("y")
    kept = dboost.fit(STRANGE, "y", start_from=old, max_iter=5, continue_bins="kept", continue_steps="full")
    fresh = dboost.fit(STRANGE, "y", start_from=old, max_iter=5, continue_steps="full")

    def cuts(booster: dboost.Booster) -> set[float]:
        frame = booster.to_frame()
        return set(frame.loc[(frame["iteration"] > 8) & (frame["feature"] == "x"), "threshold"].dropna())

    x = next(edges for feature, edges in zip(old.features, old.ensemble.edges, strict=True) if feature.name == "x")
    assert x is not None
    assert cuts(kept) and cuts(kept) <= set(x.tolist())
    assert max(cuts(fresh), key=abs) not in x, "values far outside the old bins are cut too"


@pytest.mark.parametrize("target", ["late", "grade"])
def test_some_classes_may_be_missing(target: str) -> None:
    old = first(target)
    one = NEW[NEW[target] == NEW[target].iloc[0]]
    new = dboost.fit(one, target, start_from=old, max_iter=30)
    assert new.classes_.tolist() == old.classes_.tolist()
    moved = np.abs(raw(new) - raw(old)).max()
    assert 0 < moved < 1, "a chunk of one class says how frequent it is now, and no more"
    assert new.sources[1]["unexplained_loss"] is None, "a constant would predict all of it"


def test_early_stopping_may_find_that_nothing_helps() -> None:
    old = dboost.fit(OLD, "y", features=FEATURES, max_iter=60)
    noise = NEW.assign(y=np.random.default_rng(0).normal(size=len(NEW)) * 20)
    new = dboost.fit(noise, "y", start_from=old, eval_set={"old": OLD}, early_stopping_rounds=3, continue_steps="full")
    assert (new.n_iter_, new.best_iteration) == (60, 60)
    assert new.sources[1]["first_iteration"] == 61 and new.sources[1]["last_iteration"] == 60
    assert len(new.history) == 63
    assert raw(new).tobytes() == raw(old).tobytes()


def test_steps_are_damped_by_what_the_model_knows() -> None:
    old = dboost.fit(OLD, "y", features=FEATURES, max_iter=100)
    good = dboost.fit(OLD, "y", start_from=old, max_iter=1).sources[1]
    turned = dboost.fit(OLD.assign(y=-5 * OLD["y"]), "y", start_from=old, max_iter=1).sources[1]
    assert good["steps"] == {"learning_rate": 0.1 * 0.1, "l2_regularization": 30.0}
    assert good["unexplained_loss"] < 0.3
    assert turned["steps"]["learning_rate"] == 0.1
    variance = np.var(-5 * OLD["y"])
    residual = ((-5 * OLD["y"] - raw(old, OLD)) ** 2).mean()
    np.testing.assert_allclose(turned["unexplained_loss"], residual / variance, rtol=1e-9)
    full = dboost.fit(NEW, "y", start_from=old, max_iter=1, continue_steps="full", learning_rate=0.3).sources[1]
    assert full["steps"] == {"learning_rate": 0.3, "l2_regularization": 1.0}


def test_damped_steps_on_many_more_rows_are_a_warning() -> None:
    few, many = OLD[:100], OLD[100:]
    assert len(many) >= 200
    old = dboost.fit(few, "y", features=FEATURES, max_iter=10)
    message = f"the {len(many):,} new rows are more than the 100 that the model has learned from: continue_steps='full'"
    with pytest.warns(UserWarning, match=re.escape(message)):
        dboost.fit(many, "y", start_from=old, max_iter=1)
    cases: list[tuple[Any, dict[str, Any]]] = [(many[:199], {}), (many, {"continue_steps": "full"})]
    for rows, options in cases:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*new rows are more than")
            dboost.fit(rows, "y", start_from=old, max_iter=1, **options)


def test_the_history_has_the_iterations_of_all_fits(tmp_path: Path) -> None:
    old = dboost.fit(OLD, "y", features=FEATURES, learning_rate=0.9, eval_set={"test": NEW}, early_stopping_rounds=1)
    assert len(old.history) > old.n_iter_, "early stopping has dropped iterations"
    kept = old.history.iloc[: old.n_iter_]
    old.save(tmp_path / "old.json")
    of_metrics = ["iteration", "test_squared_error", "train_loss", "test_rmse", "train_rmse"]
    digests = set()
    for base in (old, pickle.loads(pickle.dumps(old)), tmp_path / "old.json"):
        new = dboost.fit(NEW, "y", start_from=base, max_iter=3)
        digests.add(new.sha256)
        assert new.history["iteration"].tolist() == list(range(1, old.n_iter_ + 4))
        first, rest = new.history.iloc[: old.n_iter_], new.history.iloc[old.n_iter_ :]
        recorded = of_metrics if isinstance(base, Path) else list(kept.columns)
        pd.testing.assert_frame_equal(first[recorded], kept[recorded], check_dtype=False)
        assert first.drop(columns=recorded).isna().to_numpy().all()
        assert (rest["rows_kept"] == len(NEW)).all() and (rest["seconds"] > 0).all()
        assert rest["test_squared_error"].isna().all()
        np.testing.assert_array_equal(new.history["train_loss"], new.ensemble.metrics["train_loss"])
        third = dboost.fit(OLD, "y", start_from=new, max_iter=2)
        assert third.history["iteration"].tolist() == list(range(1, old.n_iter_ + 6))
    assert len(digests) == 1, "the history is no part of the model"
    imported = dboost.Booster(replace(old.ensemble, metrics={}, best_iteration=None))
    assert dboost.fit(NEW, "y", start_from=imported, max_iter=2).history["iteration"].tolist() == [
        old.n_iter_ + 1,
        old.n_iter_ + 2,
    ]


def test_truncate_gives_the_model_of_then() -> None:
    old = first(source_name="a")
    new = dboost.fit(NEW, "late", start_from=old, max_iter=5, source_name="b")
    then = new.truncate(8)
    assert len(then.sources) == 1 and then.sources[0]["label"] == "a"
    assert list(then.history["iteration"]) == list(range(1, 9))
    assert new.truncate(10).sources[1]["last_iteration"] == 10
    baseline = new.truncate(0)
    assert baseline.n_iter_ == 0 and [source["label"] for source in baseline.sources] == ["a"]
    assert dboost.fit(NEW, "late", start_from=new.truncate(8), max_iter=5, source_name="b") == new
    continued = dboost.fit(NEW, "late", start_from=baseline, max_iter=5)
    assert continued.n_iter_ == 5 and len(continued.sources) == 1
    for wrong in (14, -1, 1.5):
        with pytest.raises(ParameterError, match="n_iterations="):
            new.truncate(wrong)  # type: ignore[arg-type]


def test_a_source_may_be_dropped() -> None:
    old = first(source_name="a")
    middle = dboost.fit(NEW, "late", start_from=old, max_iter=5, source_name="b")
    new = dboost.fit(OLD, "late", start_from=middle, max_iter=3, source_name="c")
    without = new.drop_source("b")
    assert [(s["label"], s["first_iteration"], s["last_iteration"]) for s in without.sources] == [("a", 1, 8), ("c", 9, 11)]
    raws = [raw(booster) for booster in (old, middle, new)]
    np.testing.assert_allclose(raw(without), raws[0] + raws[2] - raws[1], atol=1e-12)
    assert np.isnan(without.history["train_loss"].iloc[8:]).all() and len(without.history) == 11
    assert new.drop_source(-1).n_iter_ == 13
    assert new.drop_source(0).ensemble.parameters["max_iter"] == 5
    assert saved(dboost.Booster(without.ensemble)) == saved(without)
    for wrong, message in (("d", "0 sources"), (3, "no source 3"), (1.5, "a number or a label")):
        with pytest.raises(ParameterError, match=message):
            new.drop_source(wrong)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="only source"):
        old.drop_source(0)


def test_features_may_be_given_again() -> None:
    names = list(first().feature_names_in_)
    expected = dboost.fit(NEW, "late", start_from=first(), max_iter=2)
    for given in (names, names[::-1], set(names)):
        assert dboost.fit(NEW, "late", start_from=first(), max_iter=2, features=given) == expected


MISTAKES: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (DataError, "no column 'x', 'age'", {"data": NEW.drop(columns=["x", "age"])}),
    (DataError, "a class that the training target has not: 7", {"data": NEW.assign(late=NEW["late"] * 7)}),
    (DataError, "'x' holds text or categories, .* the feature is numeric in the model", {"data": NEW.assign(x="a")}),
    (DataError, "was trained with loss 'log_loss'.*, not loss 'exponential'", {"loss": "exponential"}),
    (ParameterError, "features cannot be chosen again", {"features": ["x"]}),
    (ParameterError, "'x' is categorical, but in the model it is numeric", {"categorical_features": ["x", "town", "kind"]}),
    (ParameterError, "continue_bins='old'", {"continue_bins": "old"}),
    (ParameterError, "continue_steps='half'", {"continue_steps": "half"}),
    (ParameterError, "source_name=3", {"source_name": 3}),
    (InputTypeError, "start_from must be a Booster, .* not int", {"start_from": 3}),
    (dboost.ModelFileError, "nowhere.json", {"start_from": "nowhere.json"}),
]


@pytest.mark.fast_cells(5)
@pytest.mark.parametrize(("kind", "message", "options"), MISTAKES, ids=[message for _, message, _ in MISTAKES])
def test_what_cannot_go_on_is_named(client: Client, kind: type[Exception], message: str, options: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"data": NEW, "start_from": first(), "max_iter": 2} | options
    data = asked.pop("data")
    with pytest.raises(kind, match=message):
        dboost.fit(data, "late", **asked)
    with pytest.raises(kind, match=message):
        dboost.fit(dd.from_pandas(data, npartitions=2), "late", client=client, **asked)


def test_the_history_of_a_loaded_model_has_the_metrics_in_the_same_order(tmp_path: Path) -> None:
    old = first(eval_set={"last": OLD, "first": NEW}, eval_metric=["auc", "log_loss"])
    new = dboost.fit(NEW, "late", start_from=old, max_iter=3, eval_set=OLD, learning_rate=lambda iteration: 0.1)
    for booster in (old, new):
        booster.save(tmp_path / "model.json")
        loaded = dboost.load(tmp_path / "model.json")
        metrics = [name for name in booster.history if name in booster.ensemble.metrics]
        columns = ["iteration", *metrics, *(name for name in booster.history if name.endswith("_rmse"))]
        pd.testing.assert_frame_equal(loaded.history, booster.history[columns], check_exact=True)
        assert metrics == [*booster.ensemble.metrics]
    roots = [name for name in columns if name.endswith("_rmse")]
    again = dboost.fit(NEW, "late", start_from=tmp_path / "model.json", max_iter=1)
    assert list(again.history) == ["iteration", "seconds", "rows_kept", "bytes_read", *again.ensemble.metrics, *roots]


@pytest.mark.parametrize(("name", "value"), [("continue_bins", "kept"), ("continue_steps", "full")])
def test_how_to_continue_needs_a_model(name: str, value: str, tmp_path: Path) -> None:
    message = f"{name}='{value}' needs start_from, the model to continue"
    with pytest.raises(ParameterError, match=message):
        dboost.fit(NEW, "late", max_iter=1, **{name: value})
    if name == "continue_bins":
        with pytest.raises(ParameterError, match=message):
            dboost.prepare(NEW, "late", tmp_path / "prepared", continue_bins=value)
        assert not (tmp_path / "prepared").exists()
    default = {"continue_bins": "new", "continue_steps": "damped"}
    plain = dboost.fit(NEW, "late", max_iter=1)
    assert dboost.fit(NEW, "late", max_iter=1, **default) == plain, "defaults are no demand"
    # Estimators and `partial_fit` store the parameter for calls that start from a model.
    (X, y), later = ((frame[["x", "age"]], frame["late"]) for frame in (OLD, NEW))
    model = dboost.DBoostClassifier(max_iter=2, random_state=0, **{name: value}).partial_fit(X, y).partial_fit(*later)
    first, continued = dboost.continue_on([(X, y), later], max_iter=2, **{name: value})
    assert first == dboost.fit(X, y, max_iter=2)
    assert continued == dboost.fit(*later, max_iter=2, start_from=first, **{name: value})
    assert continued == model.booster_ != dboost.fit(*later, max_iter=2, start_from=first)
    warm = dboost.DBoostClassifier(max_iter=1, warm_start=True, random_state=0, **{name: value}).fit(X, y)
    assert warm.set_params(max_iter=2).fit(X, y).booster_ == first
    with pytest.raises(ParameterError, match=f"{name}='no' must be"):
        next(dboost.continue_on([(X, y), later], **{name: "no"}))
