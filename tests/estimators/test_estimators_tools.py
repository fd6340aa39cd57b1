"""The estimators with scikit-learn's tools of selection, search, calibration and routing, its callbacks and `set_output`."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.compose import make_column_transformer
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.feature_selection import RFE, RFECV, SelectFromModel
from sklearn.metrics import get_scorer
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    HalvingRandomSearchCV,
    KFold,
    cross_validate,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dboost import DBoostClassifier, DBoostRegressor

BOTH = pytest.mark.parametrize("Estimator", [DBoostRegressor, DBoostClassifier])


def signal_and_noise(Estimator: Any, n: int = 400) -> tuple[pd.DataFrame, np.ndarray]:
    """Two informative columns, "a" and "c", among five."""
    rng = np.random.default_rng(1)
    X = pd.DataFrame(rng.normal(size=(n, 5)), columns=list("abcde"))
    y = 2 * X["a"] + X["c"] + 0.1 * rng.normal(size=n)
    return X, (y > 0).to_numpy() if Estimator is DBoostClassifier else y.to_numpy()


def small(Estimator: Any, **settings: Any) -> Any:
    return Estimator(**{"max_iter": 10, "max_leaf_nodes": 6, "learning_rate": 0.3, "random_state": 0} | settings)


@BOTH
def test_feature_selection_finds_the_informative_columns(Estimator: Any) -> None:
    X, y = signal_and_noise(Estimator)
    selected = SelectFromModel(small(Estimator), max_features=2, threshold=-np.inf).fit(X, y)
    assert selected.get_feature_names_out().tolist() == ["a", "c"]
    assert SelectFromModel(small(Estimator), threshold="mean").fit(X, y).get_feature_names_out()[0] == "a"
    eliminated = RFE(small(Estimator), n_features_to_select=2).fit(X, y)
    assert eliminated.get_feature_names_out().tolist() == ["a", "c"]
    assert eliminated.score(X, y) > 0.8
    chosen = RFECV(small(Estimator), cv=3, min_features_to_select=2).fit(X, y)
    assert {"a", "c"} <= set(chosen.get_feature_names_out())
    fitted = small(Estimator).fit(X, y)
    assert SelectFromModel(fitted, prefit=True, max_features=1, threshold=-np.inf).fit(X, y).transform(X).shape == (400, 1)


@pytest.mark.slow
def test_cross_validate_in_two_processes() -> None:
    X, y = signal_and_noise(DBoostClassifier)
    scoring = ["accuracy", "neg_log_loss", "roc_auc"]
    options: dict[str, Any] = {"scoring": scoring, "cv": 3, "return_estimator": True, "return_indices": True}
    one = cross_validate(small(DBoostClassifier), X, y, **options)
    two = cross_validate(small(DBoostClassifier, n_jobs=1), X, y, n_jobs=2, **options)
    for name in scoring:
        np.testing.assert_array_equal(one[f"test_{name}"], two[f"test_{name}"])
    train = one["indices"]["train"][0]
    by_hand = small(DBoostClassifier).fit(X.iloc[train], y[train])
    assert one["estimator"][0].booster_ == two["estimator"][0].booster_ == by_hand.booster_


@pytest.mark.slow
@BOTH
def test_halving_searches(Estimator: Any) -> None:
    X, y = signal_and_noise(Estimator)
    grid = {"max_leaf_nodes": [2, 6], "learning_rate": [0.01, 0.3]}
    options: dict[str, Any] = {"cv": 2, "random_state": 0, "min_resources": 100}
    by_rows = HalvingGridSearchCV(small(Estimator), grid, factor=2, **options).fit(X, y)
    assert by_rows.n_iterations_ == 3
    assert by_rows.best_params_["learning_rate"] == 0.3
    options |= {"resource": "max_iter", "max_resources": 9, "min_resources": 3}
    by_trees = HalvingGridSearchCV(small(Estimator), grid, **options).fit(X, y)
    assert by_trees.best_estimator_.n_iter_ == 9
    assert by_trees.n_resources_ == [3, 9]
    drawn = HalvingRandomSearchCV(small(Estimator), grid, n_candidates=3, **options).fit(X, y)
    assert drawn.best_estimator_.max_iter == 9


@BOTH
def test_weights_are_routed_through_pipelines_searches_and_scorers(Estimator: Any) -> None:
    """Rows of weight zero influence neither the fit nor the score, wherever the weights pass through."""
    X, y = signal_and_noise(Estimator)
    weight = np.where(np.arange(400) % 4 == 0, 0.0, 1.0)
    broken = y.copy()
    broken[weight == 0] = ~y[weight == 0] if Estimator is DBoostClassifier else 1e6
    scoring = "accuracy" if Estimator is DBoostClassifier else "r2"
    folds = KFold(2)
    with sklearn.config_context(enable_metadata_routing=True):
        model = small(Estimator).set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        scorer = get_scorer(scoring).set_score_request(sample_weight=True)
        scaler = StandardScaler().set_fit_request(sample_weight=True)
        pipeline = make_pipeline(scaler, model)
        grid = {f"{Estimator.__name__.lower()}__max_leaf_nodes": [2, 6]}
        search = GridSearchCV(pipeline, grid, cv=folds, scoring=scorer).fit(X, broken, sample_weight=weight)
        weighted = cross_validate(pipeline, X, broken, cv=folds, scoring=scorer, params={"sample_weight": weight})
        selector = SelectFromModel(model, max_features=2, threshold=-np.inf).fit(X, broken, sample_weight=weight)
        halving = HalvingGridSearchCV(model, {"max_leaf_nodes": [2, 6]}, cv=folds, scoring=scorer, min_resources=200)
        halving.fit(X, broken, sample_weight=weight)
        assert halving.score(X, broken, sample_weight=weight) > 0.8
        refused = small(Estimator).set_fit_request(sample_weight=False)
        with pytest.raises((TypeError, sklearn.exceptions.UnsetMetadataPassedError), match="sample_weight"):
            make_pipeline(refused).fit(X, y, sample_weight=weight)
    kept = weight > 0
    by_hand = make_pipeline(StandardScaler(), small(Estimator)).fit(X[kept], y[kept])
    scores = "predict" if Estimator is DBoostRegressor else "predict_proba"
    # The scaler's weighted means are rounded differently.
    np.testing.assert_allclose(getattr(search, scores)(X[kept]), getattr(by_hand, scores)(X[kept]), rtol=1e-6)
    train, test = next(folds.split(X))
    train, test = train[kept[train]], test[kept[test]]
    fold = make_pipeline(StandardScaler(), small(Estimator)).fit(X.iloc[train], y[train])
    assert weighted["test_score"][0] == pytest.approx(fold.score(X.iloc[test], y[test]))
    assert selector.get_feature_names_out().tolist() == ["a", "c"]


def test_validation_pairs_and_offsets_are_routed() -> None:
    X, y = signal_and_noise(DBoostRegressor)
    offset = X["b"].to_numpy()
    with sklearn.config_context(enable_metadata_routing=True):
        model = small(DBoostRegressor).set_fit_request(offset=True).set_score_request(offset=True)
        search = GridSearchCV(model, {"max_leaf_nodes": [6]}, cv=2).fit(X, y, offset=offset)
    assert search.best_estimator_.booster_ == small(DBoostRegressor).fit(X, y, offset=offset).booster_
    half = len(X) // 2
    second = small(DBoostRegressor).fit(X[half:], y[half:], offset=offset[half:])
    expected = second.score(X[:half], y[:half], offset=offset[:half])
    assert search.cv_results_["split0_test_score"][0] == pytest.approx(expected)


@pytest.mark.parametrize("output", ["pandas", "polars"])
@BOTH
def test_set_output_changes_no_prediction(Estimator: Any, output: str) -> None:
    """Transformers before an estimator return frames; its predictions stay arrays, and the model stays the same."""
    pytest.importorskip(output)
    X, y = signal_and_noise(Estimator)
    plain = make_pipeline(StandardScaler(), small(Estimator)).fit(X, y)
    with sklearn.config_context(transform_output=output):
        model = make_pipeline(StandardScaler(), small(Estimator)).fit(X, y)
        assert model[-1].feature_names_in_.tolist() == list("abcde")
        predictions = model.predict(X)
        selected = SelectFromModel(small(Estimator), max_features=2, threshold=-np.inf).fit(X, y).transform(X)
        columns = make_column_transformer((StandardScaler(), ["c"]), remainder="passthrough")
        assert make_pipeline(columns, small(Estimator)).fit(X, y).score(X, y) > 0.8
        if Estimator is DBoostClassifier:
            assert type(model.predict_proba(X)) is np.ndarray
    assert type(predictions) is np.ndarray
    np.testing.assert_array_equal(predictions, plain.predict(X))
    assert list(selected.columns) == ["a", "c"]
    assert type(selected).__module__.startswith(output)
    assert not hasattr(model[-1], "set_output")


class Recorder:
    """A callback of scikit-learn that records the hooks, and stops after some iterations."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.stop_after = stop_after

    def setup(self, estimator: Any, context: Any) -> None:
        self.seen.append(("setup", context.task_name))

    def teardown(self, estimator: Any, context: Any) -> None:
        self.seen.append(("teardown", context.task_name))

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
        self.seen.append(("begin", context.task_name, context.task_id))

    def on_fit_task_end(self, estimator: Any, context: Any, *, X: Any, y: Any, metadata: Any, fitted_estimator: Any) -> bool:
        n_iterations = None if fitted_estimator is None else fitted_estimator.n_iter_
        score = None if X is None or fitted_estimator is None else fitted_estimator.score(X, y)
        self.seen.append(("end", context.task_name, context.task_id, n_iterations, metadata, score))
        return context.task_name == "iteration" and context.task_id + 1 == self.stop_after


callbacks = (
    pytest.importorskip("sklearn.callback", reason="scikit-learn before 1.9 has no callbacks")
    if (tuple(map(int, sklearn.__version__.split(".")[:2])) >= (1, 9))
    else None
)
NEEDS_CALLBACKS = pytest.mark.skipif(callbacks is None, reason="scikit-learn before 1.9 has no callbacks")


@NEEDS_CALLBACKS
@BOTH
def test_callbacks_of_scikit_learn_see_every_iteration(Estimator: Any) -> None:
    X, y = signal_and_noise(Estimator)
    recorder = Recorder()
    model = small(Estimator, max_iter=3).set_callbacks(recorder).fit(X, y, np.ones(400))
    assert model.booster_ == small(Estimator, max_iter=3).fit(X, y).booster_
    hooks = [seen[:3] for seen in recorder.seen]
    iterations = [(hook, "iteration", i) for i in range(3) for hook in ("begin", "end")]
    assert hooks == [("setup", "fit"), ("begin", "fit", 0), *iterations, ("end", "fit", 0), ("teardown", "fit")]
    ends = [seen[3:] for seen in recorder.seen if seen[0] == "end"]
    assert [end[0] for end in ends] == [1, 2, 3, 3]
    assert all(end[1].keys() == {"sample_weight"} for end in ends)
    for n, (_, _, score) in enumerate(ends[:3], 1):
        assert score == small(Estimator, max_iter=n).fit(X, y).score(X, y)


@NEEDS_CALLBACKS
def test_a_callback_of_scikit_learn_stops_the_fit() -> None:
    X, y = signal_and_noise(DBoostRegressor)
    recorder = Recorder(stop_after=2)
    model = small(DBoostRegressor).set_callbacks(recorder).fit(X, y)
    assert model.n_iter_ == 2
    assert [seen[2] for seen in recorder.seen if seen[:2] == ("begin", "iteration")] == [0, 1]
    # Warm start: only the new iterations are tasks.
    recorder = Recorder()
    model.set_callbacks(recorder).set_params(warm_start=True, max_iter=4).fit(X, y)
    assert [seen[3] for seen in recorder.seen if seen[:2] == ("end", "iteration")] == [3, 4]
    # A fit that fails tears the callbacks down.
    recorder = Recorder()
    with pytest.raises(ValueError, match="max_leaf_nodes"):
        small(DBoostRegressor, max_leaf_nodes=1).set_callbacks(recorder).fit(X, y)
    assert recorder.seen[-1] == ("teardown", "fit")
    assert small(DBoostRegressor).set_callbacks(Recorder()).set_callbacks().fit(X, y).n_iter_ == 10


@NEEDS_CALLBACKS
def test_early_stopping_ends_the_task_that_was_not_trained() -> None:
    X, y = signal_and_noise(DBoostRegressor)
    recorder = Recorder()
    model = small(DBoostRegressor, max_iter=300, learning_rate=0.5, early_stopping=True, n_iter_no_change=2)
    model.set_callbacks(recorder).fit(X, y)
    begun = [seen[2] for seen in recorder.seen if seen[:2] == ("begin", "iteration")]
    ends = [seen for seen in recorder.seen if seen[:2] == ("end", "iteration")]
    assert len(begun) == len(ends) == len(model.booster_.history) + 1 < 300
    assert ends[-1][3] is None
    assert [seen[3] for seen in ends[:3]] == [1, 2, 3]


@NEEDS_CALLBACKS
def test_scikit_learns_own_callbacks_in_pipelines_and_searches(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = signal_and_noise(DBoostClassifier)
    monitor = callbacks.ScoringMonitor(scoring="neg_log_loss")
    model = small(DBoostClassifier, max_iter=5).set_callbacks(monitor)
    pipeline = make_pipeline(StandardScaler(), model).fit(X, y)
    log = monitor.get_logs().data_as_pandas
    scores = log[log["task_name"] == "iteration"]["neg_log_loss"].to_numpy()
    np.testing.assert_allclose(-scores, pipeline[-1].booster_.history["train_loss"], rtol=1e-6)
    search = GridSearchCV(small(DBoostClassifier, max_iter=3), {"max_leaf_nodes": [2, 4]}, cv=2)
    search.set_callbacks(callbacks.ProgressBar(max_propagation_depth=1)).fit(X, y)
    assert search.best_estimator_.n_iter_ == 3
    assert "DBoostClassifier" in capsys.readouterr().out
    assert not hasattr(search.best_estimator_, "_parent_callback_ctx")
    assert pickle.loads(pickle.dumps(search.best_estimator_)).predict(X).shape == (400,)


@pytest.mark.slow
def test_estimators_work_without_scikit_learns_callbacks() -> None:
    """scikit-learn before 1.9 has no module `callback`."""
    code = """
import sys
sys.modules["sklearn.callback"] = None
import dboost.estimators.sklearn_callbacks as hooks
estimator = type("Estimator", (hooks.CallbackSupportMixin,), {"fit": hooks.with_callbacks(lambda self: 3)})()
made = hooks.FitHooks(estimator, None, None, None, 5)
made.close()
print(estimator.fit(), made.is_needed, hasattr(estimator, "set_callbacks"))
"""
    # scikit-learn itself imports the module: hide it from dboost only.
    code = code.replace("import sys\n", "import sys, sklearn.base\n", 1)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["3", "False", "False"], done.stderr
