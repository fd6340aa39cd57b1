"""The estimators with scikit-learn's tools: its estimator checks, pipelines, searches, ensembles, metadata routing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.ensemble import BaggingRegressor, HistGradientBoostingClassifier, HistGradientBoostingRegressor, StackingClassifier
from sklearn.inspection import partial_dependence, permutation_importance
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import get_scorer
from sklearn.model_selection import GridSearchCV, cross_val_predict, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from threadpoolctl import threadpool_limits

from dboost import DBoostClassifier, DBoostRegressor

BOTH = pytest.mark.parametrize("Estimator", [DBoostRegressor, DBoostClassifier])


@parametrize_with_checks(
    [
        DBoostRegressor(),
        DBoostClassifier(),
        DBoostRegressor(max_iter=5, min_samples_leaf=1, early_stopping=False),
        DBoostClassifier(max_iter=5, min_samples_leaf=1, early_stopping=False),
    ]
)
def test_scikit_learns_own_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    """No check is expected to fail."""
    check(estimator)


def cities(n: int = 600) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=n), "y": rng.normal(size=n), "kind": rng.choice(["sea", "hill", "lake"], n)})
    frame.loc[rng.random(n) < 0.1, "x"] = np.nan
    return frame, (frame["x"].fillna(1) + frame["kind"].eq("sea") + 0.3 * rng.normal(size=n) > 0.5).to_numpy()


@BOTH
def test_pipelines_and_searches(Estimator: Any) -> None:
    frame, y = cities()
    columns = make_column_transformer((StandardScaler(), ["x", "y"]), remainder="passthrough").set_output(transform="pandas")
    pipeline = make_pipeline(columns, Estimator(max_iter=10, random_state=0))
    search = GridSearchCV(pipeline, {f"{Estimator.__name__.lower()}__max_leaf_nodes": [2, 8]}, cv=3).fit(frame, y)
    assert search.best_score_ > (0.5 if Estimator is DBoostRegressor else 0.85)
    assert search.best_estimator_[-1].feature_names_in_[-1] == "remainder__kind"
    assert search.best_estimator_[-1].is_categorical_.tolist() == [False, False, True]


@BOTH
def test_the_learning_is_that_of_hist_gradient_boosting(Estimator: Any) -> None:
    """With the same limits, and a learning rate that offsets dboost's factor (K - 1) / K, the test error is as small."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(4000, 5))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=4000)
    settings: dict[str, Any] = {"max_iter": 40, "l2_regularization": 0.1, "random_state": 0}
    if Estimator is DBoostRegressor:
        ours, theirs = Estimator(**settings), HistGradientBoostingRegressor(**settings)
        scorer = get_scorer("neg_mean_absolute_error")
    else:
        y = np.digitize(y, [-1.0, 0.0, 1.0])
        ours = Estimator(learning_rate=0.1 * 4 / 3, min_hessian=1e-3, **settings)
        theirs = HistGradientBoostingClassifier(learning_rate=0.1, **settings)
        scorer = get_scorer("neg_log_loss")
    with threadpool_limits(1):
        mine, other = (scorer(model.fit(X[:1500], y[:1500]), X[1500:], y[1500:]) for model in (ours, theirs))
    assert mine > 1.03 * other  # the scores are negative


def test_as_many_rows_of_each_class_are_held_out_as_by_hist_gradient_boosting() -> None:
    """The validation scores before the first tree agree, and the later ones, of other rows, nearly do."""
    frame, y = cities(3000)
    X = frame[["x", "y"]].to_numpy()
    settings: dict[str, Any] = {"early_stopping": True, "max_iter": 5, "l2_regularization": 0, "random_state": 8}
    ours = DBoostClassifier(min_hessian=1e-3, **settings).fit(X, y)
    with threadpool_limits(1):
        theirs = HistGradientBoostingClassifier(**settings).fit(X, y)
    for name in ("train_score_", "validation_score_"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        np.testing.assert_allclose(mine[0], other[0], rtol=1e-6)
        np.testing.assert_allclose(mine, other, rtol=0.05)


@BOTH
def test_predictions_are_what_other_tools_expect(Estimator: Any) -> None:
    frame, y = cities()
    model = Estimator(max_iter=5)
    assert cross_val_predict(model, frame, y, cv=3).shape == (600,)
    model.fit(frame, y)
    assert permutation_importance(model, frame, y, n_repeats=2, random_state=0).importances_mean[0] > 0.02
    numbers = frame[["x", "y"]].fillna(0)
    curve = partial_dependence(Estimator(max_iter=5).fit(numbers, y), numbers, ["x"])["average"][0]
    assert curve[-1] > curve[0]


def test_ensembles_of_estimators() -> None:
    frame, y = cities()
    X = frame.drop(columns="kind").fillna(0)
    stack = StackingClassifier([("trees", DBoostClassifier(max_iter=5))], LogisticRegression(), cv=3).fit(X, y)
    assert stack.score(X, y) > 0.8
    calibrated = CalibratedClassifierCV(DBoostClassifier(max_iter=5), cv=3).fit(frame, y)
    assert calibrated.predict_proba(frame).shape == (600, 2)
    bag = BaggingRegressor(DBoostRegressor(max_iter=5), n_estimators=2, random_state=0).fit(X, y)
    assert bag.score(X, y) > 0.3


def test_weights_are_routed() -> None:
    frame, y = cities()
    weight = np.where(np.arange(600) % 2, 0.0, 1.0)
    with sklearn.config_context(enable_metadata_routing=True):
        model = DBoostClassifier(max_iter=5, random_state=0).set_fit_request(sample_weight=True)
        model.set_score_request(sample_weight=True)
        search = GridSearchCV(model, {"max_iter": [3]}, cv=2).fit(frame, y, sample_weight=weight)
        pipeline = make_pipeline(model).fit(frame, y, sample_weight=weight)
    by_hand = DBoostClassifier(max_iter=3, random_state=0).fit(frame, y, weight)
    np.testing.assert_array_equal(search.best_estimator_.predict_proba(frame), by_hand.predict_proba(frame))
    by_hand.set_params(max_iter=5).fit(frame, y, weight)
    np.testing.assert_array_equal(pipeline.predict_proba(frame), by_hand.predict_proba(frame))


def test_validation_data_pass_through_a_pipeline() -> None:
    frame, y = cities()
    X = frame[["x", "y"]].to_numpy()
    X, X_val, y, y_val = train_test_split(X, y, random_state=0)
    with sklearn.config_context(enable_metadata_routing=True):
        model = DBoostClassifier(early_stopping=True, random_state=0).set_fit_request(X_val=True, y_val=True)
        pipeline = make_pipeline(StandardScaler(), model, transform_input=["X_val"]).fit(X, y, X_val=X_val, y_val=y_val)
    scaler = StandardScaler().fit(X)
    by_hand = DBoostClassifier(early_stopping=True, random_state=0).fit(
        scaler.transform(X), y, X_val=scaler.transform(X_val), y_val=y_val
    )
    assert pipeline[-1].booster_.sha256 == by_hand.booster_.sha256


def test_scorers_judge_predictions_of_the_right_class() -> None:
    frame, y = cities()
    names = np.where(y, "yes", "no")
    model = DBoostClassifier(max_iter=10).fit(frame, names)
    assert get_scorer("roc_auc")(model, frame, names) > 0.95
    assert get_scorer("neg_log_loss")(model, frame, names) > -0.5
    assert get_scorer("accuracy")(model, frame, names) == model.score(frame, names)
