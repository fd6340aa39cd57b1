"""Random forests: leaf means of drawn rows, their mean over the trees, out-of-bag predictions, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dboost
from dboost import Booster, DBoostClassifier, DBoostRegressor, ParameterError
from dboost.rows.row_sample import Sample, hash_rows
from tests.helpers.real_data import load

N = 700
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 5))
X[RNG.random((N, 5)) < 0.05] = np.nan
Y = np.nan_to_num(X[:, 0]) + np.sin(2 * np.nan_to_num(X[:, 1])) + 0.3 * RNG.normal(size=N)
CLASSES = np.digitize(Y, [-1.0, 0.0, 1.0])
WEIGHT = RNG.random(N) + 0.2
FOREST: dict[str, Any] = {"boosting": "forest", "max_iter": 8, "random_state": 0, "progress": False, "n_threads": 2}


def drawn(iteration: int, subsample: float = 0.632, seed: int = 0) -> np.ndarray:
    sample = Sample.of(subsample, seed, iteration)
    assert sample is not None
    return hash_rows(sample.seed, np.arange(N)) < np.uint64(sample.threshold)


def naive(booster: Booster, targets: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the predictions of all trees and those out of bag, [n, n_outputs], given which rows are together in leaves.

    A tree's prediction of a row is the weighted mean of the targets (float64[n, n_outputs]) of the drawn rows in its leaf.
    """
    n_outputs = targets.shape[1]
    of_trees = np.zeros((booster.n_iter_, N, n_outputs))
    out = np.zeros((booster.n_iter_, N), bool)
    leaves = booster.apply(X).reshape(N, booster.n_iter_, -1)
    for t in range(booster.n_iter_):
        is_drawn = drawn(t + 1)
        out[t] = ~is_drawn
        for k in range(n_outputs):
            leaf = leaves[:, t, min(k, leaves.shape[2] - 1)]
            for one in np.unique(leaf):
                rows = is_drawn & (leaf == one)
                of_trees[t, leaf == one, k] = (weight[rows] * targets[rows, k]).sum() / weight[rows].sum()
    with np.errstate(invalid="ignore"):
        return of_trees.mean(axis=0), (of_trees * out[:, :, None]).sum(axis=0) / out.sum(axis=0)[:, None]


TARGETS = np.c_[Y, 100.0 * np.cos(3 * np.nan_to_num(X[:, 2])), RNG.normal(size=N)]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_targets", [1, 3])
def test_a_forest_of_numbers_is_the_mean_of_leaf_means(n_targets: int, weighted: bool) -> None:
    weight, targets = WEIGHT if weighted else np.ones(N), TARGETS[:, :n_targets]
    y = targets.squeeze()
    booster = dboost.fit(X, y, sample_weight=weight if weighted else None, **FOREST)
    prediction, out_of_bag = naive(booster, targets, weight)
    np.testing.assert_allclose(booster.predict(X), prediction.squeeze(), rtol=1e-5, atol=1e-4)
    known = np.isfinite(out_of_bag[:, 0])
    assert 0 < known.sum() < N, "some rows are drawn by every tree"
    of_known: dict[str, Any] = {"axis": 0, "weights": weight[known]}
    error = np.average((targets - out_of_bag)[known] ** 2, **of_known)
    spread = np.average((targets[known] - np.average(targets[known], **of_known)) ** 2, **of_known)
    last = booster.history.iloc[-1]
    for k in range(n_targets) if n_targets > 1 else ():
        assert last[f"oob_squared_error of {k}"] == pytest.approx(error[k] / 2, rel=1e-5)
        assert last[f"oob_r2 of {k}"] == pytest.approx(1 - error[k] / spread[k], rel=1e-5)
    assert last["oob_r2"] == pytest.approx(np.mean(1 - error / spread), rel=1e-5)
    assert last["train_loss"] == last["oob_squared_error"] == pytest.approx(error.mean() / 2, rel=1e-5)
    assert booster.history["rows_kept"].tolist() == [int(drawn(t + 1).sum()) for t in range(8)]
    assert {tree.value[0].size for tree in booster.ensemble.trees} == {n_targets}


@pytest.mark.parametrize("n_classes", [2, 4])
def test_a_forest_of_classes_is_the_mean_of_their_shares(n_classes: int) -> None:
    y = CLASSES if n_classes == 4 else CLASSES >= 2
    booster = dboost.fit(X, y, loss="half_brier_score", **FOREST)
    indicators = (y[:, None] == np.unique(y)).astype(np.float64)
    if n_classes == 2:
        indicators = indicators[:, 1:]
    prediction, out_of_bag = naive(booster, indicators, np.ones(N))
    found = booster.predict_proba(X)
    np.testing.assert_allclose(found[:, 1:] if n_classes == 2 else found, prediction, atol=1e-5)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    assert found.min() >= 0.0
    known = np.isfinite(out_of_bag[:, 0])
    guess = out_of_bag[:, 0] > 0.5 if n_classes == 2 else out_of_bag.argmax(axis=1)
    last = booster.history.iloc[-1]
    assert last["oob_accuracy"] == pytest.approx((guess == y)[known].mean(), abs=8 / N), "up to ties"
    brier = ((out_of_bag - indicators)[known] ** 2).sum(axis=1).mean() / 2
    assert last["oob_half_brier_score"] == pytest.approx(brier, rel=1e-5)
    assert booster.predict(X).tolist() == np.unique(y)[found.argmax(axis=1)].tolist()


def test_the_first_tree_is_the_one_that_boosting_grows_from_the_same_rows() -> None:
    how: dict[str, Any] = {
        "max_leaf_nodes": None,
        "min_samples_leaf": 3,
        "subsample": 0.632,
        "max_features": 0.6,
        "max_iter": 1,
    }
    how |= {"min_hessian": 0.0, "l2_regularization": 0.0, "progress": False}
    boosted = dboost.fit(X, Y, learning_rate=1.0, **how)
    forest = dboost.fit(X, Y, boosting="forest", **how)
    pd.testing.assert_frame_equal(forest.to_frame(), boosted.to_frame(), check_exact=True)
    np.testing.assert_array_equal(forest.predict(X), boosted.predict(X))


def test_parts_of_a_forest_are_forests() -> None:
    test = X[:100]
    booster = dboost.fit(X, CLASSES, loss="half_brier_score", eval_set=(test, CLASSES[:100]), **FOREST)
    short = dboost.fit(X, CLASSES, loss="half_brier_score", **FOREST | {"max_iter": 3})
    np.testing.assert_array_equal(booster.truncate(3).predict_proba(test), short.predict_proba(test))
    no_tree = booster.predict_proba(test, iteration_range=(0, 0))
    np.testing.assert_allclose(no_tree, np.tile(np.bincount(CLASSES) / N, (100, 1)), atol=1e-6)
    of_test = ((booster.predict_proba(test) - (CLASSES[:100, None] == np.arange(4))) ** 2).sum(axis=1).mean() / 2
    assert booster.history["eval_half_brier_score"].iloc[-1] == pytest.approx(of_test)


def test_interpretation_and_exports_see_a_sum(tmp_path: Path) -> None:
    booster = dboost.fit(X, Y, **FOREST)
    sums = booster.shap_values(X[:20]).sum(axis=1)
    np.testing.assert_allclose(sums + booster.expected_value, booster.predict(X[:20]), atol=1e-9)
    assert booster.importance("gain").index[0] in ("f0", "f1")
    summed = booster.ensemble.summed()
    raw = np.array([[tree.value[0] for tree in summed.trees]]).sum()
    assert abs(raw) < 1.0, "values at the roots are divided by the number of trees"
    file = tmp_path / "forest.json"
    booster.to_xgboost_json(file)
    xgboost = pytest.importorskip("xgboost")
    theirs = xgboost.Booster(model_file=file).predict(xgboost.DMatrix(X[:50]), validate_features=False)
    np.testing.assert_allclose(theirs, booster.predict(X[:50]), rtol=1e-4, atol=1e-4)


def test_a_forest_that_is_halted_is_the_mean_of_its_trees() -> None:
    halted = dboost.fit(X, Y, callbacks=lambda now: now.iteration == 5, **FOREST)
    np.testing.assert_array_equal(halted.predict(X), dboost.fit(X, Y, **FOREST | {"max_iter": 5}).predict(X))


def test_early_stopping_by_out_of_bag_predictions() -> None:
    noise = np.random.default_rng(1).normal(size=N)
    booster = dboost.fit(X, noise, eval_metric="rmse", early_stopping_rounds=3, **FOREST | {"max_iter": 200})
    assert booster.n_iter_ < len(booster.history) < 200
    assert booster.best_iteration == booster.n_iter_ == int(booster.history["oob_rmse"].argmin()) + 1


def test_a_warm_start_continues_the_out_of_bag_predictions() -> None:
    model = DBoostRegressor(**FOREST | {"max_iter": 3}, warm_start=True).fit(X, Y)
    model.set_params(max_iter=8).fit(X, Y)
    whole = DBoostRegressor(**FOREST).fit(X, Y)
    assert model.booster_.ensemble.metrics == whole.booster_.ensemble.metrics
    np.testing.assert_array_equal(model.predict(X), whole.predict(X))
    with pytest.raises(ParameterError, match="grown with other bins"):
        model.set_params(max_iter=9, max_bins=10).fit(X, Y)


def test_more_trees_from_other_rows_join_the_mean() -> None:
    first = dboost.fit(X, Y, **FOREST)
    both = dboost.fit(X[:300], Y[:300] + 10.0, start_from=first, **{k: v for k, v in FOREST.items() if k != "boosting"})
    assert both.n_iter_ == 16
    later = both.predict(X, iteration_range=(8, 16))
    assert later.mean() == pytest.approx(Y.mean() + 10.0, abs=0.5)
    np.testing.assert_allclose(both.predict(X), (first.predict(X) + later) / 2)
    assert both.history["oob_r2"].iloc[-1] > 0, "of the new rows, by the new trees"
    with pytest.raises(ParameterError, match="the model to continue is a forest: give boosting='forest'"):
        dboost.fit(X, Y, start_from=first, boosting="gbdt")
    with pytest.raises(ParameterError, match="the model to continue is a boosted model: give boosting='gbdt'"):
        dboost.fit(X, Y, start_from=dboost.fit(X, Y, max_iter=1, progress=False), boosting="forest")


def test_offsets_are_subtracted_from_numbers() -> None:
    shifted = dboost.fit(X, Y + 5 * WEIGHT, offset=5 * WEIGHT, **FOREST)
    plain = dboost.fit(X, Y, **FOREST)
    np.testing.assert_allclose(shifted.predict(X), plain.predict(X), atol=1e-4)
    assert shifted.history["oob_squared_error"].iloc[-1] == pytest.approx(plain.history["oob_squared_error"].iloc[-1], rel=1e-3)
    with pytest.raises(ParameterError, match="those of a forest of classes are probabilities"):
        dboost.fit(X, CLASSES, loss="half_brier_score", offset=WEIGHT, **FOREST)


def test_estimators_have_the_score_of_scikit_learn() -> None:
    numbers = DBoostRegressor(**FOREST).fit(X, Y)
    assert numbers.oob_score_ == numbers.booster_.history["oob_r2"].iloc[-1] > 0.5
    classes = DBoostClassifier(**FOREST).fit(X, CLASSES)
    assert classes.oob_score_ == classes.booster_.history["oob_accuracy"].iloc[-1] > 0.5
    assert classes.booster_.ensemble.parameters["max_features"] == 0.4, "two of five"
    assert not hasattr(DBoostRegressor(max_iter=1, progress=False).fit(X, Y), "oob_score_")
    assert not hasattr(dboost.DBoostRegressor(**FOREST, subsample=0.5, eval_metric="mae").fit(X, Y), "oob_score_")


def test_signs_of_decision_functions_are_the_classes() -> None:
    labels = np.column_stack([Y > 0, Y > 1]).astype(int)
    for y, probabilities in (
        (Y > 0, lambda model: model.predict_proba(X)[:, 1]),
        (labels, lambda model: model.predict_proba(X)),
    ):
        model = DBoostClassifier(**FOREST).fit(X, y)
        decided = model.decision_function(X)
        np.testing.assert_array_equal(decided > 0, model.predict(X))
        np.testing.assert_allclose(decided, probabilities(model) - 0.5, atol=1e-12)
        *_, last = model.staged_decision_function(X)
        np.testing.assert_array_equal(last, decided)
    of_classes = DBoostClassifier(**FOREST).fit(X, CLASSES)
    np.testing.assert_array_equal(of_classes.decision_function(X), of_classes.booster_.predict(X, raw_score=True))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"learning_rate": 0.1}, "learning_rate=0.1 is for boosting"),
        ({"learning_rate": lambda k: 1.0}, "learning_rate is for boosting"),
        ({"max_iter": "auto"}, "max_iter='auto' is for boosting"),
        ({"arcbites": True}, "a forest does not take arcbites"),
        ({"loss": "log_loss"}, "loss='log_loss' is for boosting: a forest averages means"),
        ({"loss": "absolute_error"}, "loss='absolute_error' is for boosting"),
        ({"multi_strategy": "one_output_per_tree"}, "a forest has one tree for all classes"),
        ({"step": "constant"}, "step='constant' is for boosting"),
        ({"criterion": "gradient"}, "criterion='gradient' is for boosting"),
        ({"influence_trimming": 0.1}, "influence_trimming=0.1 is for boosting"),
        ({"max_features": "log2"}, "max_features='log2' must be a share of the features"),
        ({"boosting": "gbdt", "loss": "half_brier_score"}, "loss='half_brier_score' is for boosting='forest'"),
        ({"eval_set": {"oob": (X, Y)}, "eval_metric": "r2", "subsample": 0.9}, None),
    ],
)
def test_what_has_no_meaning_is_refused(given: dict[str, Any], message: str | None) -> None:
    with pytest.raises(ParameterError, match=message):
        dboost.fit(X, Y, **FOREST | given)


def test_a_forest_of_labels_is_the_mean_of_their_shares() -> None:
    labels = TARGETS > [0.0, 50.0, 1.0]
    booster = dboost.fit(X, labels, **FOREST)
    assert booster.loss.name == "half_brier_score"
    prediction, out_of_bag = naive(booster, labels.astype(np.float64), np.ones(N))
    found = booster.predict_proba(X)
    np.testing.assert_allclose(found, prediction, atol=1e-5)
    assert found.min() >= 0.0
    assert found.max() <= 1.0
    np.testing.assert_array_equal(booster.predict(X), (found > 0.5).astype(int))
    known, last = np.isfinite(out_of_bag[:, 0]), booster.history.iloc[-1]
    right = ((out_of_bag > 0.5) == labels)[known].mean(axis=0)
    assert last["oob_accuracy"] == pytest.approx(right.mean(), abs=8 / N), "up to ties"
    assert last["oob_accuracy of 2"] == pytest.approx(right[2], abs=8 / N)
    brier = ((out_of_bag - labels)[known] ** 2).mean() / 2
    assert last["train_loss"] == last["oob_half_brier_score"] == pytest.approx(brier, rel=1e-5)
    with pytest.raises(ParameterError, match="those of a forest of classes are probabilities"):
        dboost.fit(X, labels, offset=WEIGHT, **FOREST)


def test_targets_of_numbers_and_labels_share_a_forest() -> None:
    both = np.c_[Y, Y > 0]
    booster = dboost.fit(X, both, loss=["squared_error", "half_brier_score"], **FOREST)
    prediction, _ = naive(booster, both, np.ones(N))
    found = booster.predict(X)
    np.testing.assert_allclose(found[:, 0], prediction[:, 0], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found[:, 1], prediction[:, 1] > 0.5)
    assert {"oob_per_output", "oob_per_output of 1"} < set(booster.history.columns), "no score is one of both"
    with pytest.raises(ParameterError, match="loss='squared_error, log_loss' is for boosting"):
        dboost.fit(X, both, loss=["squared_error", "log_loss"], **FOREST)
    with pytest.raises(ParameterError, match="loss='half_brier_score' is for boosting='forest'"):
        dboost.fit(X, both, loss=["squared_error", "half_brier_score"])


def test_forests_of_several_targets_of_estimators_and_exports(tmp_path: Path) -> None:
    numbers = DBoostRegressor(**FOREST).fit(X, TARGETS)
    assert numbers.oob_score_ == numbers.booster_.history["oob_r2"].iloc[-1]
    labels = DBoostClassifier(**FOREST).fit(X, TARGETS > 0)
    assert labels.oob_score_ == labels.booster_.history["oob_accuracy"].iloc[-1]
    assert labels.booster_.ensemble.parameters["max_features"] == 0.4, "two of five, as for classes"
    more = dboost.fit(X, TARGETS, start_from=numbers.booster_, max_iter=4, progress=False)
    assert more.n_iter_ == 12
    xgboost = pytest.importorskip("xgboost")
    numbers.booster_.to_xgboost_json(tmp_path / "forest.json")
    theirs = xgboost.Booster(model_file=tmp_path / "forest.json").predict(xgboost.DMatrix(X[:50]), validate_features=False)
    np.testing.assert_allclose(theirs, numbers.predict(X[:50]), rtol=1e-4, atol=1e-3)


def test_leaf_values_of_a_forest_are_not_estimated_again() -> None:
    with pytest.raises(ParameterError, match="leaf values of a forest are means"):
        dboost.fit(X, Y, **FOREST).refit_leaves(X, Y)


def test_shares_of_features() -> None:
    for n_features, share in ((1, 1.0), (5, 0.4), (9, 1 / 3), (14, 3 / 14)):
        rows = np.random.default_rng(2).normal(size=(60, n_features))
        booster = dboost.fit(rows, rows[:, 0], max_features="sqrt", max_iter=1, progress=False)
        assert booster.ensemble.parameters["max_features"] == pytest.approx(share)
        assert np.ceil(booster.ensemble.parameters["max_features"] * n_features) == round(share * n_features)


@pytest.mark.slow
@pytest.mark.real_data
@pytest.mark.parametrize("name", ["california", "adult", "hflights", "elec2", "covtype"])
def test_forests_are_as_good_as_those_of_scikit_learn(name: str) -> None:
    """Within two standard errors of the difference, on 6,000 rows of each table."""
    from benchmarks.forests import compared

    ours, theirs = compared(load(name), n_train=6000, n_test=6000, n_trees=50)
    difference = ours.losses - theirs.losses  # of each row: squared error, or 1 for a wrong class
    error = difference.std() / np.sqrt(len(difference))
    assert difference.mean() <= 2 * error, (ours.losses.mean(), theirs.losses.mean(), error)


@pytest.mark.slow
@pytest.mark.real_data
def test_forests_of_several_targets_are_as_good_as_those_of_scikit_learn() -> None:
    """Within two standard errors of the difference: value, age and rooms of California's houses from the other columns."""
    from sklearn.ensemble import RandomForestRegressor

    table = load("california")
    columns = ["longitude", "latitude", "total_bedrooms", "population", "median_income"]
    targets = np.c_[table.y, table.X["housing_median_age"], table.X["total_rooms"] / table.X["households"]]
    targets /= targets.std(axis=0)
    order = np.random.default_rng(0).permutation(len(targets))
    train, test, data = order[:6000], order[6000:12000], table.X[columns].to_numpy(np.float64)
    ours = dboost.fit(data[train], targets[train], boosting="forest", max_iter=50, progress=False)
    theirs = RandomForestRegressor(50, max_features=0.5, random_state=0).fit(data[train], targets[train])
    losses = [((model.predict(data[test]) - targets[test]) ** 2).mean(axis=1) for model in (ours, theirs)]
    difference = losses[0] - losses[1]
    error = difference.std() / np.sqrt(len(difference))
    assert difference.mean() <= 2 * error, (losses[0].mean(), losses[1].mean(), error)
