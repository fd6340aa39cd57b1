"""Leaf refit: the splits stay, the leaf values are estimated from the new rows."""

from __future__ import annotations

import itertools
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.dataframe
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from sklearn.exceptions import NotFittedError

import dboost
from dboost import DataError, InputTypeError, ParameterError
from dboost.cli import main
from dboost.cluster.partitions.joined_workers import JoinedWorkers
from tests.helpers.clusters import held_rows, threads_cluster
from tests.helpers.fits import FEATURES, cut, mixed_frame, saved

OLD, NEW = mixed_frame(600), mixed_frame(500, seed=1)


def first(target: str, **options: Any) -> dboost.Booster:
    frame = OLD.assign(y=OLD["y"].abs()) if options.get("loss") == "poisson" else OLD
    return dboost.fit(frame, target, features=FEATURES, **{"max_iter": 8} | options)


RATES = [0.5, 0.25, 0.1, 0.3, 0.05, 0.4]


def halve(now: dboost.Iteration) -> None:
    now.learning_rate /= 2


def continued(path: Path, **options: Any) -> dboost.Booster:
    return first("y", max_iter=3, start_from=first("y", max_iter=3, learning_rate=RATES), **{"learning_rate": RATES} | options)


def resumed(path: Path) -> dboost.Booster:
    options: dict[str, Any] = {"learning_rate": RATES, "max_iter": 6, "checkpoint": str(path / "c"), "checkpoint_every": 1}
    first("y", callbacks=[lambda now: now.iteration == 2], **options)
    return first("y", **options)


def warm_started(path: Path, *rates: Any) -> dboost.Booster:
    model = dboost.DBoostRegressor(max_iter=2, early_stopping=False, warm_start=True, random_state=0)
    for n, rate in zip((2, 4, 6), rates, strict=True):
        model.set_params(max_iter=n, learning_rate=rate).fit(OLD[FEATURES], OLD["y"])
    return model.booster_


def stopped(path: Path) -> dboost.Booster:
    held_out = NEW.assign(y=-NEW["y"])
    return first(
        "y", learning_rate=RATES[::-1], max_iter=6, eval_set=(held_out[FEATURES], held_out["y"]), early_stopping_rounds=3
    )


def from_folds(path: Path) -> dboost.Booster:
    part = np.zeros(2 * len(OLD), np.int64)
    part[len(OLD) :] = 1  # the second fold has learned from OLD
    twice = pd.concat([OLD, OLD], ignore_index=True)
    return dboost.cv(twice, "y", features=FEATURES, folds=part, learning_rate=RATES, max_iter=6).boosters[1]


OF_TREES: dict[str, Callable[[Path], dboost.Booster]] = {
    "list": lambda path: first("y", learning_rate=RATES, max_iter=6),
    "function": lambda path: first("y", learning_rate=lambda k: 0.5 / (1 + k)),
    "callback": lambda path: first("y", learning_rate=0.5, callbacks=[halve]),
    "two classes": lambda path: first("late", criterion="gradient", l2_regularization=0.0),
    "three classes": lambda path: first("grade", learning_rate=RATES, max_iter=6),
    "weights": lambda path: first("y", sample_weight="w"),
    "poisson": lambda path: first("y", loss="poisson"),
    "huber": lambda path: first("y", loss="huber"),
    "quantile": lambda path: first("y", loss="quantile", quantile=0.8),
    "median": lambda path: first("y", learning_rate=RATES, max_iter=6, loss="absolute_error"),
    "one tree for all outputs": lambda path: first(
        "grade", learning_rate=RATES, max_iter=6, multi_strategy="multi_output_tree"
    ),
    "truncated": lambda path: first("y", learning_rate=RATES, max_iter=6)[:4],
    "continued": lambda path: continued(path).drop_source(1),
    "early stopping": stopped,
    "resumed": resumed,
    "warm start": lambda path: warm_started(path, RATES, RATES, RATES),
    "warm start with other rates": lambda path: warm_started(path, 0.1, RATES, 0.3),
    "folds": from_folds,
}


@pytest.mark.parametrize(
    ("case", "form"), [*zip(OF_TREES, itertools.cycle(["model", "model.json", "model.dboost", "pickle"]), strict=False)]
)
def test_the_own_data_give_the_own_values(tmp_path: Path, case: str, form: str) -> None:
    """Each tree keeps its learning rate."""
    old = OF_TREES[case](tmp_path)
    if form.startswith("model."):
        old.save(tmp_path / form)
        old = dboost.load(tmp_path / form)
    old = pickle.loads(pickle.dumps(old)) if form == "pickle" else old
    target = "y" if old.classes_ is None else "grade" if len(old.classes_) == 3 else "late"
    rows = OLD.assign(y=OLD["y"].abs()) if case == "poisson" else OLD
    again = old.refit_leaves(rows, target, sample_weight="w" if case == "weights" else None)
    for before, after in zip(old.ensemble.trees, again.ensemble.trees, strict=True):
        leaf = before.feature < 0
        np.testing.assert_allclose(after.value[leaf], before.value[leaf], rtol=1e-5, atol=1e-7)


def test_rates_of_a_model_that_is_continued() -> None:
    """Those of its own trees and of the new ones, damped or not."""
    for steps in ("damped", "full"):
        both = continued(Path(), continue_steps=steps)
        factor = both.sources[1]["steps"]["learning_rate"] / RATES[0]
        assert [source["learning_rates"] for source in both.sources] == [RATES[:3], [rate * factor for rate in RATES[:3]]]
        assert "learning_rates" not in first("y", learning_rate=[0.1] * 8).sources[0]


def test_infinite_features_are_refused_in_columns_without_splits(client: Client) -> None:
    """The model's summary of the rows could not be stored. Rows of weight zero may hold anything."""
    old, weight = first("y", max_iter=1, max_leaf_nodes=2), (np.arange(len(NEW)) != 420) * 1.0
    for name in ("x", "rooms"):
        frame = NEW.assign(**{name: NEW[name].mask(weight == 0, np.inf)})
        with pytest.raises(DataError, match=rf"^column '{name}' holds an infinite value \(row 170 of partition 1\)$"):
            old.refit_leaves(dask.dataframe.from_pandas(frame, npartitions=2), "y", client=client)
        found, expected = (old.refit_leaves(rows, "y", sample_weight=weight) for rows in (frame, NEW))
        assert saved(found) == saved(expected)


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
    ("kind", "message", "data", "target"),
    [
        (DataError, "no column 'x'", NEW.drop(columns="x"), "late"),
        (DataError, "a class that the training target has not: 2", NEW.assign(late=NEW["late"] * 2), "late"),
        (InputTypeError, "the target is missing", NEW, None),
    ],
)
def test_what_cannot_be(kind: type[Exception], message: str, data: Any, target: Any) -> None:
    with pytest.raises(kind, match=message):
        first("late", max_iter=1).refit_leaves(data, target)


def test_the_keyword_of_earlier_versions_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    message = "unknown parameter 'refit_leaves'.*: call refit_leaves of the model or of the estimator"
    old = first("late", max_iter=1)
    calls: list[Callable[[], Any]] = [
        lambda: dboost.fit(NEW, "late", start_from=old, refit_leaves=True),
        lambda: dboost.cv(NEW, "late", refit_leaves=True),
        lambda: dboost.DBoostClassifier(start_from=old, refit_leaves=True),
        lambda: dboost.DBoostClassifier().set_params(refit_leaves=True),
    ]
    for call in calls:
        with pytest.raises(ParameterError, match=message):
            call()
    assert main(["train", "rows.parquet", "--target", "late", "--set", "refit_leaves=true"]) == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize("kept", [False, True])
def test_a_data_set_of_this_process(tmp_path: Path, kept: bool) -> None:
    path = tmp_path / "data" if kept else None
    with dboost.prepare(NEW, "late", path, features=FEATURES, sample_weight="w") as data:
        old = dboost.fit(data, max_iter=4)
        again = old.refit_leaves(data, source_name="again", decay=0.25)
        np.testing.assert_array_equal(
            again.predict(NEW), old.refit_leaves(NEW, "late", sample_weight="w", decay=0.25).predict(NEW)
        )
        assert again.sources[0]["refreshed"] == [{"label": "again", "rows": data.n_rows, "decay": 0.25}]
        with pytest.raises(ParameterError, match="target='y' does not fit"):
            old.refit_leaves(data, "y")
        with pytest.raises(ParameterError, match="sample_weight='x' does not fit"):
            old.refit_leaves(data, sample_weight="x")
        if kept:
            of_folder = old.refit_leaves(path, "late", source_name="again", decay=0.25)
            assert of_folder.sha256 == again.sha256
        with pytest.raises(
            ParameterError, match=r"^refit_leaves: the model splits .* no edge of a bin.*: give the table itself$"
        ):
            first("late").refit_leaves(data)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("loss", ["squared_error", "absolute_error", "huber", "poisson"])
def test_leaves_that_no_row_reaches_keep_their_values(loss: str) -> None:
    old = first("y", loss=loss, max_iter=2, min_samples_leaf=1)
    new = old.refit_leaves(NEW.assign(y=NEW["y"].abs())[:5], "y")
    before, after = (np.concatenate([tree.value[tree.feature < 0] for tree in b.ensemble.trees]) for b in (old, new))
    kept = np.count_nonzero(before == after)
    assert np.isfinite(after).all() and 0 < kept < len(before)


def test_models_that_cannot_be_refreshed() -> None:
    with pytest.raises(ParameterError, match="monotonic_cst"):
        first("y", monotonic_cst={"x": 1}).refit_leaves(NEW, "y")
    with pytest.raises(ParameterError, match="step='constant'"):
        first("y", step="constant").refit_leaves(NEW, "y")
    with pytest.raises(ParameterError, match=r"decay=1\.5"):
        first("y", max_iter=1).refit_leaves(NEW, "y", decay=1.5)
    with pytest.raises(ParameterError, match="no trees"):
        first("y").truncate(0).refit_leaves(NEW, "y")


def test_a_worker_that_joins_receives_rows() -> None:
    old = first("grade", max_iter=4)
    expected = saved(old.refit_leaves(NEW, "grade", sample_weight="w"))
    update, held = JoinedWorkers.update, list[list[int]]()
    with threads_cluster(1, 1) as client, dask.config.set({"dboost.single-worker-values": 0}):

        def reading_at_once(joined: JoinedWorkers) -> None:
            if not held:
                client.cluster.scale(2)
                client.wait_for_workers(2)
            update(joined)
            if joined._reader is not None:
                joined._reader.join()
            held.append(sorted(client.run(held_rows).values()))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(JoinedWorkers, "update", reading_at_once)
            lazy = cut(NEW, [100, 200, 300, 400])
            assert saved(old.refit_leaves(lazy, "grade", sample_weight="w", client=client)) == expected
    n_rows = np.count_nonzero(NEW["w"] > 0)
    assert held[0] == [0, n_rows] and sum(held[-1]) == n_rows and min(held[-1]) > 0


def test_the_summary_is_that_of_the_new_rows() -> None:
    old = first("y")
    new = old.refit_leaves(NEW.assign(x=NEW["x"] + 5), "y")
    assert new.drift(NEW).set_index("name").loc["x", "drift"] == "strong"
    assert (new.drift(NEW.assign(x=NEW["x"] + 5))["psi"] == 0).all()


def test_estimators_estimate_anew_too(client: Client) -> None:
    X, y = NEW[["x", "age"]], NEW["late"]
    model = dboost.DBoostClassifier(max_iter=4, source_name="spring").fit(OLD[["x", "age"]], OLD["late"])
    weight, old = NEW["w"].to_numpy(), model.booster_
    expected = old.refit_leaves(X, y, sample_weight=weight, source_name="spring", decay=0.5)
    assert model.refit_leaves(X, y, weight, decay=0.5) is model
    assert saved(model.booster_) == saved(expected) and model.n_iter_ == 4 and not len(model.train_score_)
    assert (model.predict(X) == expected.predict(X)).all() and list(model.feature_names_in_) == ["x", "age"]
    lazy = cut(NEW, [100])
    there = dboost.DBoostClassifier(max_iter=4, client=client).fit(OLD[["x", "age"]], OLD["late"])
    expected = there.booster_.refit_leaves(X, y, source_name="autumn")
    there.refit_leaves(lazy[["x", "age"]], lazy["late"], source_name="autumn")
    assert saved(there.booster_) == saved(expected)


def test_what_estimators_cannot_do_then() -> None:
    with pytest.raises(NotFittedError):
        dboost.DBoostRegressor().refit_leaves(NEW[["x"]], NEW["y"])
    model = dboost.DBoostRegressor(max_iter=1).fit(OLD[["x"]], OLD["y"])
    for X, y, message in (
        (NEW[["x", "y"]], "y", "estimators need X and y themselves"),
        ("rows.parquet", NEW["y"], "estimators need X and y themselves"),
        (NEW[["x"]], NEW["y"][:7], "inconsistent numbers of samples"),
        (NEW[["age"]], NEW["y"], "feature names"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            model.refit_leaves(X, y)
    with pytest.raises(ParameterError, match="decay=2 must be"):
        model.refit_leaves(NEW[["x"]], NEW["y"], decay=2)
