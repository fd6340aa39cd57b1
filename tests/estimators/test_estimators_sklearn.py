"""The estimators with scikit-learn's tools: its estimator checks, pipelines, searches, ensembles, metadata routing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import BaggingRegressor, HistGradientBoostingClassifier, HistGradientBoostingRegressor, StackingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.inspection import partial_dependence, permutation_importance
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import get_scorer
from sklearn.model_selection import (
    GridSearchCV,
    TunedThresholdClassifierCV,
    cross_val_predict,
    cross_val_score,
    train_test_split,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler, TargetEncoder
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks
from threadpoolctl import threadpool_limits

from dboost import DBoostClassifier, DBoostRegressor
from tests.helpers.outside_losses import Interval, NormalOfUser

BOTH = pytest.mark.parametrize("Estimator", [DBoostRegressor, DBoostClassifier])


@pytest.mark.fast_cells(64)
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


FEW: dict[str, Any] = {"max_iter": 20, "min_samples_leaf": 1}
NEGATIVE = {"check_regressor_multioutput": "negative targets, although a tag says that the loss takes none"}
TWO_DIMENSIONAL = dict.fromkeys(
    ["check_regressors_train", "check_estimator_sparse_array", "check_estimator_sparse_matrix"],
    "predictions have a column for each quantile",
) | dict.fromkeys(
    ["check_fit_score_takes_y", "check_n_features_in_after_fitting", "check_pipeline_consistency"],
    "there is no R² of several quantiles: score says what to use",
)
BY_HASH = dict.fromkeys(
    ["check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data"],
    "a tree's rows are drawn by their numbers, so repeated rows are other ones",
)
OF_LEAVES = {
    "check_class_weight_classifiers": "trees have leaves with rows of one class only, whatever the weight of the others",
    "check_classifiers_multilabel_output_format_predict_proba": "shares of labels in leaves may be 0 and 1",
}
#: Estimators, and the checks that contradict what they are for.
OF_LOSSES = [
    (DBoostRegressor(loss="normal", **FEW), {}),
    (DBoostRegressor(loss="poisson", **FEW), NEGATIVE),
    (DBoostRegressor(loss="quantile", quantile=0.9, **FEW), {}),
    (DBoostRegressor(loss="quantile", quantile=[0.1, 0.5, 0.9], **FEW), TWO_DIMENSIONAL),
    (DBoostRegressor(loss="huber", multi_strategy="multi_output_tree", **FEW), {}),
    (DBoostRegressor(boosting="forest", max_iter=30), BY_HASH),
    (DBoostClassifier(loss="exponential", **FEW), {}),
    (DBoostClassifier(multi_strategy="multi_output_tree", **FEW), {}),
    (DBoostClassifier(boosting="forest", max_iter=30), BY_HASH | OF_LEAVES),
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("estimator", "exceptions"), OF_LOSSES, ids=lambda one: repr(one) if hasattr(one, "fit") else "")
def test_scikit_learns_checks_of_each_loss(estimator: Any, exceptions: dict[str, str]) -> None:
    found = check_estimator(estimator, on_fail=None, on_skip=None)
    failed = {result["check_name"]: result["exception"] for result in found if result["status"] == "failed"}
    assert failed.keys() == exceptions.keys(), failed


@pytest.mark.parametrize(
    ("options", "several", "one", "positive", "poor"),
    [
        ({}, True, True, False, False),
        ({"loss": "huber"}, True, True, False, False),
        ({"loss": "gamma"}, True, True, True, False),
        ({"loss": "normal"}, False, True, False, False),
        ({"loss": "quantile", "quantile": 0.9}, True, True, False, True),
        ({"loss": "quantile", "quantile": [0.1, 0.9]}, False, True, False, True),
        ({"loss": ["huber", "poisson"]}, True, False, True, False),
        ({"loss": Interval()}, True, False, False, False),
        ({"loss": NormalOfUser()}, False, True, False, False),
        ({"boosting": "forest"}, True, True, False, False),
        ({"loss": "quantile"}, True, True, False, False),  # without a level, which fit refuses
        ({"loss": "squared"}, True, True, False, False),
    ],
)
def test_tags_of_regressors(options: dict[str, Any], several: bool, one: bool, positive: bool, poor: bool) -> None:
    tags = get_tags(DBoostRegressor(**options))
    targets = tags.target_tags
    assert (targets.multi_output, targets.single_output, targets.positive_only) == (several, one, positive)
    assert tags.regressor_tags.poor_score == poor


@pytest.mark.parametrize(
    ("options", "many"),
    [({}, True), ({"loss": "exponential"}, False), ({"boosting": "forest"}, True), ({"loss": "huber"}, True)],
)
def test_tags_of_classifiers(options: dict[str, Any], many: bool) -> None:
    tags = get_tags(DBoostClassifier(**options)).classifier_tags
    assert (tags.multi_class, tags.multi_label) == (many, True)


def cities(n: int = 600) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=n), "y": rng.normal(size=n), "kind": rng.choice(["sea", "hill", "lake"], n)})
    frame.loc[rng.random(n) < 0.1, "x"] = np.nan
    return frame, (frame["x"].fillna(1) + frame["kind"].eq("sea") + 0.3 * rng.normal(size=n) > 0.5).to_numpy()


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


ENCODERS: dict[str, Any] = {
    "one-hot": OneHotEncoder(),
    "one-hot, dense": OneHotEncoder(sparse_output=False, handle_unknown="ignore"),
    "ordinal": OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
    "target": TargetEncoder(cv=3, random_state=0),
}


@pytest.mark.fast_cells(3)
@pytest.mark.filterwarnings("ignore:.*TargetEncoder:FutureWarning")
@pytest.mark.parametrize("output", ["default", "pandas", "polars"])
@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_come_before_estimators(name: str, output: str) -> None:
    """The model is that of the same steps by hand, on frames and on arrays, and predicts single rows."""
    frame, y = cities()
    if output == "polars":
        pytest.importorskip("polars")
    if output != "default" and name == "one-hot":
        pytest.skip("a frame is not sparse: scikit-learn refuses it")
    columns = ColumnTransformer([("kind", clone(ENCODERS[name]), ["kind"]), ("numbers", "passthrough", ["x", "y"])])
    pipeline = make_pipeline(columns.set_output(transform=output), DBoostClassifier(max_iter=10, random_state=0)).fit(frame, y)
    encoded = clone(columns).set_output(transform="default").fit_transform(frame, y)
    by_hand = DBoostClassifier(max_iter=10, random_state=0).fit(encoded, y)
    rows = pipeline[0].transform(frame)
    rows = rows.to_numpy() if hasattr(rows, "to_numpy") else rows
    np.testing.assert_array_equal(pipeline.predict_proba(frame), by_hand.predict_proba(rows))
    np.testing.assert_array_equal(pipeline.predict_proba(frame[:1]), pipeline.predict_proba(frame)[:1])
    assert pipeline.score(frame, y) > 0.85
    assert cross_val_score(pipeline, frame, y, cv=3).mean() > 0.8
    search = GridSearchCV(pipeline, {"dboostclassifier__max_leaf_nodes": [2, 8]}, cv=2).fit(frame, y)
    assert search.best_params_ == {"dboostclassifier__max_leaf_nodes": 8}


@pytest.mark.fast_cells(1)
@pytest.mark.parametrize("method", ["sigmoid", "isotonic", "temperature"])
def test_probabilities_of_pipelines_are_calibrated(method: str) -> None:
    frame, y = cities()
    encoder = ColumnTransformer([("kind", OneHotEncoder(), ["kind"])], remainder="passthrough", sparse_threshold=1.0)
    pipeline = make_pipeline(encoder, DBoostClassifier(max_iter=10, random_state=0))
    calibrated = CalibratedClassifierCV(pipeline, method=method, cv=3).fit(frame, y)
    assert calibrated.score(frame, y) > 0.85
    frozen = CalibratedClassifierCV(FrozenEstimator(pipeline.fit(frame[:400], y[:400])), method=method)
    frozen.fit(frame[400:], y[400:])
    assert np.isfinite(frozen.predict_proba(frame)).all()
    threshold = TunedThresholdClassifierCV(clone(pipeline), cv=3).fit(frame, y)
    assert 0 < threshold.best_threshold_ < 1


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
