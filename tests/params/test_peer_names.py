"""Names of XGBoost, LightGBM, CatBoost and scikit-learn: every one is accepted, or an error that says what to use."""

from __future__ import annotations

import importlib
import inspect
import itertools
import re
from collections.abc import Callable, Iterable
from copy import copy
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import ensemble
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import dboost
from dboost import DBoostClassifier, DBoostRegressor, ParameterError
from dboost.params.peer_names import ALIASES, HINTS, PREDICTION_ALIASES, SHOWN_ALIASES, explanation
from tests.helpers.peer_parameters import OF_CATBOOST, OF_LIGHTGBM, OF_XGBOOST

RNG = np.random.default_rng(0)
X = pd.DataFrame({"a": RNG.normal(size=300), "b": RNG.normal(size=300)})
Y = X["a"] * X["b"] + RNG.normal(size=300) / 10
SMALL: dict[str, Any] = {"max_iter": 3, "max_leaf_nodes": 6, "n_threads": 1}


def names_in(*functions: Callable[..., Any]) -> set[str]:
    return {name for one in functions for name in inspect.signature(one).parameters} - {"self", "kwargs", "X", "y"}


def of_xgboost(method: str) -> set[str]:
    xgboost = pytest.importorskip("xgboost")
    importlib.import_module("xgboost.dask")
    if method == "constructor":
        return set(xgboost.XGBClassifier().get_params()) | {
            "num_boost_round",
            "eta",
            "seed",
            "nthread",
            "gpu_id",
            "lambda",
            "alpha",
        }
    if method == "fit":
        return names_in(xgboost.XGBClassifier.fit, xgboost.XGBRegressor.fit, xgboost.XGBRanker.fit)
    if method == "train":
        return names_in(xgboost.train, xgboost.cv, xgboost.dask.train) - {"dtrain"}
    predictors = xgboost.XGBClassifier.predict, xgboost.XGBClassifier.predict_proba, xgboost.Booster.inplace_predict
    return names_in(*predictors, xgboost.Booster.predict) | {"ntree_limit"}


def of_lightgbm(method: str) -> set[str]:
    lightgbm = pytest.importorskip("lightgbm")
    from lightgbm.basic import _ConfigAliases

    if method == "constructor":
        of_files = ("output_", "input_", "pred", "data", "start_iteration_predict", "num_iteration_predict")
        groups = _ConfigAliases._get_all_param_aliases().items()
        of_training = {alias for name, aliases in groups if not name.startswith(of_files) for alias in aliases}
        return of_training | names_in(lightgbm.LGBMClassifier.__init__)
    if method == "fit":
        return names_in(lightgbm.LGBMClassifier.fit, lightgbm.LGBMRegressor.fit, lightgbm.LGBMRanker.fit)
    if method == "train":
        return names_in(lightgbm.train, lightgbm.cv) - {"train_set"}
    return names_in(lightgbm.LGBMClassifier.predict, lightgbm.Booster.predict)


def of_scikit_learn(method: str) -> set[str]:
    classes = ensemble.HistGradientBoostingClassifier, ensemble.GradientBoostingClassifier, ensemble.GradientBoostingRegressor
    if method == "constructor":
        return names_in(*(one.__init__ for one in classes))
    if method == "fit":
        return names_in(*(one.fit for one in classes))
    return set()


#: By method, the names of the table, and of the installed version.
PEERS: dict[str, Callable[[str], set[str]]] = {
    "XGBoost 3.4": lambda method: set(OF_XGBOOST[method].split()),
    "LightGBM 4.7": lambda method: set(OF_LIGHTGBM[method].split()),
    "CatBoost": lambda method: set(OF_CATBOOST[method].split()),
    "XGBoost": of_xgboost,
    "LightGBM": of_lightgbm,
    "scikit-learn": of_scikit_learn,
}
METHODS = ("constructor", "fit", "train", "predict")
#: Names of dboost that every sentence may point to, beside those of keywords.
OURS = re.compile(
    r"did you mean|leave it out|constructor|importance|shap_values|apply\(X\)|raw_score|predict_proba|iteration_range|"
    r"refit_leaves|class_weight|client|dboost\.\w+|history|progress|always|boosters|transform|save of the model|"
    r"divided evenly|missing|metrics|eval_set|call predict|to fit|survival"
)


def attempts(method: str, name: str) -> Iterable[Callable[[], Any]]:
    """Calls with a name whose value nothing accepts."""
    given = {name: object()}
    if method == "constructor":
        yield lambda: DBoostClassifier(**given)
        yield lambda: DBoostRegressor().set_params(**given)
    if method == "fit":
        yield lambda: DBoostRegressor(**SMALL).fit(X, Y, **given)
    if method in ("constructor", "train"):
        yield lambda: dboost.fit(X, Y, **{**SMALL, **given})
    if method == "train":
        yield lambda: dboost.cv(X, Y, **{**SMALL, **given})
    if method == "predict":
        booster = dboost.fit(X, Y, **SMALL)
        yield lambda: booster.predict(X, **given)
        yield lambda: DBoostRegressor(**SMALL).fit(X, Y).predict(X, **given)


@pytest.mark.fast_cells(8)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("peer", PEERS)
def test_every_name_of_another_library_is_known(peer: str, method: str, recwarn: pytest.WarningsRecorder) -> None:
    names = sorted(PEERS[peer](method))
    known = {*inspect.signature(dboost.cv).parameters, *inspect.signature(DBoostClassifier).parameters}
    bad = []
    for name in names:
        for attempt in attempts(method, name):
            try:
                attempt()
            except dboost.DBoostError as error:
                sentence = str(error).partition(f"unknown parameter {name!r}")[2]
                if sentence or "unknown parameter" in str(error):
                    points = OURS.search(sentence) or known & set(re.findall(r"\w+", sentence))
                    bad += [] if points else [f"{name}: {error}"]
            except Exception as error:  # the value of an accepted name
                bad += [f"{name}: {error}"] if "keyword" in str(error) else []
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("name", ["missing", "foo", "n_split", "verbos"])
def test_hints_are_not_far_fetched(name: str) -> None:
    assert "min_hessian" not in explanation(name, {"min_hessian", "min_split_gain", "min_gain"})
    assert "min_split_gain" not in explanation(name, {"min_hessian", "min_split_gain", "min_gain"})


EQUAL: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"n_estimators": 4}, {"max_iter": 4}),
    ({"num_boost_round": np.int64(4)}, {"max_iter": 4}),
    ({"eta": 0.3, "num_leaves": 4}, {"learning_rate": 0.3, "max_leaf_nodes": 4}),
    ({"reg_lambda": 3, "reg_alpha": 0.1}, {"l2_regularization": 3, "l1_regularization": 0.1}),
    ({"min_child_samples": 9, "min_child_weight": 2.0}, {"min_samples_leaf": 9, "min_hessian": 2.0}),
    ({"max_bin": 17, "bagging_fraction": 0.5}, {"max_bins": 17, "subsample": 0.5}),
    ({"colsample_bynode": 0.5}, {"max_features": 0.5}),
    ({"objective": "absolute_error"}, {"loss": "absolute_error"}),
    ({"objective": "quantile", "quantile": 0.5}, {"loss": "quantile", "quantile": 0.5}),
    ({"loss_function": "squared_error"}, {"loss": "squared_error"}),
    ({"seed": 5, "subsample": 0.5}, {"random_state": 5, "subsample": 0.5}),
    ({"monotone_constraints": {"a": 1}}, {"monotonic_cst": {"a": 1}}),
    ({"interaction_constraints": [["a"], ["b"]]}, {"interaction_cst": [["a"], ["b"]]}),
    ({"grow_policy": "depthwise"}, {"growth": "depth_wise"}),
    ({"grow_policy": "lossguide"}, {"growth": "best_first"}),
    ({"objective": "reg:squarederror"}, {}),
    ({"objective": "MAE"}, {"loss": "absolute_error"}),
    ({"max_leaves": 0, "categorical_feature": "auto"}, {"max_leaf_nodes": None}),
    ({"leaf_estimation": "constant"}, {"step": "constant"}),
    ({"gamma": None, "scale_pos_weight": None, "n_estimators": None}, {}),
]


@pytest.mark.fast_cells(6)
@pytest.mark.parametrize(("theirs", "ours"), EQUAL, ids=lambda one: "_".join(one))
def test_an_alias_makes_the_same_model(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    def without(names: Iterable[str]) -> dict[str, Any]:
        taken = {ALIASES.get(name, name) for name in names}
        given = {name: value for name, value in SMALL.items() if name not in taken}
        return {"random_state": 0} | given if "seed" not in names else given

    expected = dboost.fit(X, Y, **SMALL | ours).sha256
    small = SMALL | {"random_state": 0} if None in theirs.values() else without(theirs)
    assert dboost.fit(X, Y, **small, **theirs).sha256 == expected
    model = DBoostRegressor(**small, **theirs)
    assert clone(model).get_params() == model.get_params()
    aliases = {name for name in theirs if name in ALIASES and name not in ours}
    assert aliases & model.get_params().keys() - {"n_jobs"} == aliases & SHOWN_ALIASES.keys()
    assert {name: model.get_params()[name] for name in theirs if name in SHOWN_ALIASES}.items() <= theirs.items()
    assert model.fit(X, Y).booster_.sha256 == expected
    assert DBoostRegressor(**SMALL, random_state=0).set_params(**theirs).fit(X, Y).booster_.sha256 == expected


def test_keywords_of_other_functions_are_named_with_these() -> None:
    unknown: list[tuple[Callable[..., Any], str, str]] = [
        (DBoostRegressor, "data", "give the rows to fit"),
        (DBoostRegressor().set_params, "dtrain", "give the rows to fit"),
        (DBoostRegressor, "label", "give the target to fit"),
        (DBoostRegressor, "eval_set", "it is an argument of fit"),
        (DBoostRegressor, "weight", "sample_weight is an argument of fit"),
        (DBoostRegressor, "group", "dboost.fit and dboost.prepare take groups"),
        (dboost.fit, "folds", "it is an argument of dboost.cv"),
        (dboost.fit, "nfold", "folds is an argument of dboost.cv"),
        (dboost.fit, "publish", "it is an argument of dboost.prepare"),
        (dboost.fit, "pred_name", "it is about predictions: call predict"),
        (dboost.prepare, "eta", "it is an argument of dboost.fit"),
        (dboost.prepare, "learning_rate", "it is an argument of dboost.fit"),
        (dboost.cv, "checkpoint", "it is an argument of dboost.fit"),
    ]
    for function, name, sentence in unknown:
        rows = () if function in (DBoostRegressor,) or name == "dtrain" else (X, Y)
        with pytest.raises(ParameterError, match=f"^unknown parameter '{name}': {re.escape(sentence)}"):
            function(*rows, **{name: 1})


def test_a_hint_names_nothing_unknown() -> None:
    """A similar name of another library is no hint where dboost's own keyword is unknown, too."""
    assert explanation("fold", {"max_iter"}) == ""
    assert explanation("n_foldz", {"folds"}) == "; did you mean n_folds?"


def test_intervals_are_those_of_all_iterations() -> None:
    """Names for a part of the iterations have no advice that `predict_interval` refuses."""
    result = dboost.cv(X, Y, folds=2, max_iter=2, progress=False)
    estimator = DBoostRegressor(max_iter=2).fit(X, Y).calibrate(X, Y)
    for predicts in (result, estimator, estimator.booster_):
        for name in ("num_iteration", "iteration_range", "pred_early_stop"):
            with pytest.raises(ParameterError, match=f"unknown parameter '{name}': margins are those of all iterations"):
                predicts.predict_interval(X, **{name: 1})
        with pytest.raises(ParameterError, match="unknown parameter 'base_margin': give offset"):
            predicts.predict_interval(X, base_margin=[1.0])


def test_aliases_name_keywords_and_hints_do_not() -> None:
    ours = {*inspect.signature(dboost.cv).parameters, *inspect.signature(dboost.fit).parameters}
    assert set(ALIASES.values()) <= ours
    assert not set(ALIASES) & set(HINTS)
    assert set(PREDICTION_ALIASES.values()) <= set(inspect.signature(dboost.Booster.predict).parameters)


def test_contradictions() -> None:
    for call in (
        lambda **given: dboost.fit(X, Y, **given),
        lambda **given: DBoostRegressor(**given),
        lambda **given: DBoostRegressor().set_params(**given),
        lambda **given: dboost.cv(X, Y, **given),
    ):
        with pytest.raises(ParameterError, match="n_estimators=3 and max_iter=4 are the same parameter: give one of them"):
            call(n_estimators=3, max_iter=4)
    for theirs, ours in (("grow_policy", "growth"), ("leaf_estimation", "step")):
        given = {"grow_policy": "depth_wise", "leaf_estimation": "constant"}[theirs]
        other = {"growth": "depth_wise", "step": "line_search"}[ours]
        with pytest.raises(ParameterError, match=f"^{theirs}=.* and {ours}=.* are the same parameter"):
            dboost.fit(X, Y, **{theirs: given, ours: other})
    with pytest.raises(ParameterError, match=r"y=.* and target=.* are the same parameter"):
        dboost.fit(X, Y, y=Y)
    with pytest.raises(ParameterError, match="unknown parameter 'max_itr'; did you mean max_iter"):
        DBoostRegressor().set_params(max_itr=3)


def test_names_in_searches_and_pipelines() -> None:
    pipeline = make_pipeline(StandardScaler(), DBoostRegressor(**SMALL, random_state=0))
    search = GridSearchCV(pipeline, {"dboostregressor__num_leaves": [2, 5]}, cv=2).fit(X, Y)
    assert search.best_params_ == {"dboostregressor__num_leaves": 5}
    assert search.best_estimator_[-1].max_leaf_nodes == 5


def test_the_target_by_another_name() -> None:
    expected = dboost.fit(X, Y, **SMALL).sha256
    assert dboost.fit(X, y=Y, **SMALL).sha256 == dboost.fit(X=X, label=Y, weight=None, **SMALL).sha256 == expected


def test_arguments_of_the_constructor_in_fit() -> None:
    for name in ("early_stopping_rounds", "callbacks", "eval_metric", "verbose", "init_model", "xgb_model"):
        with pytest.raises(ParameterError, match=f"unknown parameter '{name}': it is an argument of the constructor"):
            DBoostRegressor().fit(X, Y, **{name: 3})


@pytest.mark.parametrize("n_threads", [-1, np.int64(-1), -2, None, 1])
def test_numbers_of_threads_are_those_of_joblib(n_threads: Any) -> None:
    options = SMALL | {"n_threads": n_threads}
    booster = dboost.fit(X, Y, **options)
    assert booster.sha256 == dboost.fit(X, Y, **SMALL).sha256
    np.testing.assert_array_equal(booster.predict(X, n_threads=n_threads), booster.predict(X))
    with pytest.raises(ParameterError, match="n_threads=0 must be an integer other than 0"):
        booster.predict(X, n_threads=0)


def test_random_state_may_be_drawn() -> None:
    options = SMALL | {"subsample": 0.5}

    def fit(random_state: Any) -> str:
        return dboost.fit(X, Y, random_state=random_state, **options).sha256

    assert fit(None) != fit(None)
    assert fit(np.random.RandomState(1)) == fit(np.random.RandomState(1)) != fit(np.random.RandomState(2))
    assert fit(np.random.default_rng(1)) == fit(np.random.default_rng(1))
    np.random.seed(3)  # noqa: NPY002
    first = fit(None)
    np.random.seed(3)  # noqa: NPY002
    assert fit(None) == first
    result = dboost.cv(X, Y, random_state=None, folds=2, **options)
    assert len({booster.sources[0]["parameters"]["random_state"] for booster in result.boosters}) == 1


@pytest.fixture(scope="module")
def classifier() -> DBoostClassifier:
    sets = {"first": (X, Y > 0), "second_set": (X[:100], Y[:100] > 0)}
    options: dict[str, Any] = {
        "max_iter": 60,
        "max_leaf_nodes": 6,
        "early_stopping_rounds": 3,
        "eval_metric": ["auc", "logloss"],
    }
    return DBoostClassifier(**options, learning_rate=1.0).fit(X, Y > 0, eval_set=sets)


def test_attributes_of_the_estimators(classifier: DBoostClassifier) -> None:
    booster = classifier.get_booster()
    assert booster is classifier.booster_
    assert classifier.best_iteration_ == booster.best_iteration == classifier.n_iter_
    results = classifier.evals_result_
    assert {name: set(of) for name, of in results.items()} == {
        "first": {"auc", "logloss", "log_loss"}, "second_set": {"auc", "logloss", "log_loss"}, "train": {"loss"}
    }  # fmt: skip
    assert results["second_set"]["auc"] == booster.history["second_set_auc"].tolist()
    assert len(results["first"]["auc"]) == classifier.n_iter_ + 3
    assert classifier.best_score_["second_set"]["logloss"] == min(results["second_set"]["logloss"])
    np.testing.assert_array_equal(classifier.apply(X), booster.apply(X))
    np.testing.assert_array_equal(classifier.apply(X, iteration_range=(0, 1)), booster.apply(X, iteration_range=(0, 1)))
    np.testing.assert_array_equal(classifier.predict_log_proba(X), np.log(classifier.predict_proba(X)))
    np.testing.assert_array_equal(classifier.feature_importances_, booster.feature_importances_)
    assert booster.feature_importances_.sum() == pytest.approx(1)
    for name in ("feature_importances_", "best_score_", "evals_result_", "best_iteration_"):
        with pytest.raises(NotFittedError):
            getattr(DBoostClassifier(), name)


def test_a_model_in_a_file(classifier: DBoostClassifier, tmp_path: Any) -> None:
    classifier.save_model(tmp_path / "model.json")
    loaded = DBoostClassifier().load_model(tmp_path / "model.json")
    np.testing.assert_array_equal(loaded.predict_proba(X), classifier.predict_proba(X))
    assert loaded.feature_names_in_.tolist() == ["a", "b"]
    assert loaded.evals_result_.keys() >= {"first", "train"}
    with pytest.raises(ParameterError, match="the model is one for classes: load it into a DBoostClassifier"):
        DBoostRegressor().load_model(tmp_path / "model.json")
    with pytest.raises(NotFittedError):
        DBoostClassifier().save_model(tmp_path / "no.json")


def test_slices_of_a_model() -> None:
    booster = dboost.fit(X, Y, **SMALL)
    assert booster[:2].sha256 == booster.truncate(2).sha256
    assert booster[:-1].n_iter_ == 2
    assert booster[:].sha256 == booster.sha256
    with pytest.raises(ParameterError, match="iteration_range"):
        booster[1:]
    with pytest.raises(TypeError, match="booster\\[:50\\]"):
        booster[1]  # type: ignore[index]
    with pytest.raises(TypeError):
        list(booster)  # type: ignore[call-overload]


@pytest.mark.parametrize("table", [OF_XGBOOST, OF_LIGHTGBM], ids=["XGBoost", "LightGBM"])
def test_every_attribute_of_another_library_is_known(table: dict[str, str], classifier: DBoostClassifier) -> None:
    for model, names in ((classifier, table["attributes"]), (classifier.booster_, table["attributes of a Booster"])):
        for name in names.split():
            try:
                getattr(model, name)
            except AttributeError as error:
                assert re.search(r"has no attribute '\w+': (see|call|the model|models)", str(error)), error


def test_attributes_that_say_what_to_use(classifier: DBoostClassifier) -> None:
    booster: Any = classifier.booster_
    with pytest.raises(AttributeError, match=r"'Booster' object has no attribute 'trees_to_dataframe': call to_frame"):
        booster.trees_to_dataframe()
    with pytest.raises(AttributeError, match=r"call save\(path\)"):
        booster.save_model("model.json")
    with pytest.raises(AttributeError, match=r"no attribute 'something'$"):
        booster.something  # noqa: B018
    estimator: Any = classifier
    with pytest.raises(AttributeError, match="no attribute 'evals_result': see"):
        estimator.evals_result()
    assert not hasattr(estimator, "get_fscore")


def test_names_in_predictions() -> None:
    booster: Any = dboost.fit(X, Y, **SMALL)
    np.testing.assert_array_equal(booster.predict(X, output_margin=True), booster.predict(X, raw_score=True))
    np.testing.assert_array_equal(booster.predict(data=X, pred_leaf=None), booster.predict(X))
    for name, sentence in {"pred_leaf": "apply", "pred_contrib": "shap_values", "ntree_limit": "iteration_range"}.items():
        for model in (booster, DBoostRegressor(**SMALL).fit(X, Y)):
            with pytest.raises(ParameterError, match=f"unknown parameter '{name}': .*{sentence}"):
                model.predict(X, **{name: True})


# Every public method of a model.


def calls_of(model: Any) -> dict[str, Callable[..., Any]]:
    """The public methods of a model by name."""
    names = (name for name in dir(type(model)) if not name.startswith(("_", "set_")) or name == "set_params")
    return {name: method for name in names if inspect.isroutine(method := getattr(model, name, None))}


#: Names that no method has, by which users of other libraries call some of them.
STRANGE = [
    "weight",
    "label",
    "nthread",
    "n_jobs",
    "decay_rate",
    "fname",
    "importance_type",
    "num_iteration",
    "init_score",
    "foo",
]
#: Methods of scikit-learn without a table.
OF_SCIKIT_LEARN = {"get_metadata_routing", "get_params", "set_callbacks"}
MODELS: dict[str, Callable[[], Any]] = {
    "Booster": lambda: dboost.fit(X, Y, **SMALL),
    "regressor": lambda: DBoostRegressor(**SMALL).fit(X, Y),
    "classifier": lambda: DBoostClassifier(**SMALL).fit(X, Y > 0),
}


@pytest.mark.parametrize("kind", MODELS)
def test_no_method_of_a_model_has_a_bare_error_for_a_name(kind: str) -> None:
    calls = calls_of(MODELS[kind]())
    for method, name in itertools.product(calls.keys() - OF_SCIKIT_LEARN, STRANGE):
        call = calls[method]
        required = [one for one in inspect.signature(call).parameters.values() if one.default is one.empty]
        values = {one.name: X for one in required if one.kind is not one.VAR_KEYWORD}
        try:
            result = call(**values, **{name: object()})
            list(result) if inspect.isgenerator(result) else result
        except TypeError as error:
            assert "keyword" not in str(error), f"{method}({name}): {error}"
        except Exception:
            continue


WEIGHT = np.arange(300) % 3 + 0.5
ALL_ROWS: dict[str, Any] = {"label": Y, "weight": WEIGHT}
OUR_ROWS: dict[str, Any] = {"target": Y, "sample_weight": WEIGHT}
OF_ESTIMATORS: dict[str, Any] = {"y": Y, "sample_weight": WEIGHT}
NOTHING = dict.fromkeys(("reference", "init_score", "group", "dataset_params", "free_raw_data"))
SAME: list[tuple[Callable[[dboost.Booster, dict[str, Any]], Any], dict[str, Any], dict[str, Any]]] = [
    (lambda b, o: b.refit_leaves(**o), ALL_ROWS | {"X": X, "decay_rate": 0.5}, OUR_ROWS | {"data": X, "decay": 0.5}),
    (lambda b, o: b.refit_leaves(X, Y, **o), NOTHING | {"n_jobs": 1}, {"n_threads": 1}),
    (lambda b, o: copy(b).calibrate(X, **o), ALL_ROWS | {"num_threads": 1}, OUR_ROWS | {"n_threads": 1}),
    (
        lambda b, o: b.importance(data=X, target=Y, **o),
        {"importance_type": "permutation", "weight": WEIGHT, "seed": 3},
        {"kind": "permutation", "sample_weight": WEIGHT, "random_state": 3},
    ),
    (
        lambda b, o: len(b.plot_importance(**o).patches),
        {"importance_type": "gain", "max_num_features": 1},
        {"kind": "gain", "max_features": 1},
    ),
    (lambda b, o: DBoostRegressor(**SMALL, random_state=0).fit(X, **o).booster_, ALL_ROWS, OF_ESTIMATORS),
    (
        lambda b, o: DBoostRegressor(**SMALL, random_state=0).fit(X, Y).refit_leaves(X, **o).booster_,
        ALL_ROWS | {"decay_rate": 0.1},
        OF_ESTIMATORS | {"decay": 0.1},
    ),
]


@pytest.mark.parametrize(("call", "theirs", "ours"), SAME)
def test_names_in_methods_of_models(call: Any, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    booster = dboost.fit(X, Y, **SMALL)
    found, expected = call(booster, theirs), call(booster, ours)
    assert found.equals(expected) if isinstance(found, pd.Series) else found == expected


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda b: b.save("m.json", num_iteration=3), "call truncate"),
        (lambda b: b.save("m.json", importance_type="gain"), r"call importance\(kind\)"),
        (lambda b: b.refit_leaves(X, Y, init_score=Y), "give offset"),
        (lambda b: b.refit_leaves(X, Y, foo=1), "'foo'"),
        (lambda b: b.plot_tree(figsize=(3, 3)), "draw on ax"),
        (lambda b: b.importance("gain", iteration=3), "call truncate"),
        (lambda b: b.plot_importance("gain", wieght=3), "'wieght'; did you mean"),
        (lambda b: dboost.fit(X, Y, refit_decay_rate=0.5), "call refit_leaves"),
    ],
)
def test_sentences_of_methods_of_models(call: Any, sentence: str) -> None:
    with pytest.raises(ParameterError, match=f"unknown parameter.* {sentence}"):
        call(dboost.fit(X, Y, **SMALL))


def defaults_of_none(*functions: Callable[..., Any]) -> set[str]:
    return {name for one in functions for name, of in inspect.signature(one).parameters.items() if of.default is None}


def test_none_is_no_value_where_it_is_a_default_of_another_library() -> None:
    xgboost, lightgbm = pytest.importorskip("xgboost"), pytest.importorskip("lightgbm")
    models = xgboost.XGBModel.__init__, lightgbm.LGBMModel.__init__, ensemble.GradientBoostingClassifier.__init__
    of_models = defaults_of_none(*models)
    expected = dboost.fit(X, Y, **SMALL)
    nones = dict.fromkeys(of_models - {"max_leaf_nodes", "n_iter_no_change", "random_state"})
    assert (
        dboost.fit(X, Y, **SMALL, **nones, **dict.fromkeys(defaults_of_none(xgboost.train, lightgbm.train) - {*nones}))
        == expected
    )
    dboost.cv(X, Y, **SMALL, **nones, **dict.fromkeys(defaults_of_none(xgboost.cv, lightgbm.cv) - {*nones}))
    model = DBoostRegressor(**SMALL, **nones)
    assert clone(model).set_params(n_iter_no_change=None, random_state=0).fit(
        X, Y, **dict.fromkeys(defaults_of_none(xgboost.XGBModel.fit, lightgbm.LGBMModel.fit))
    ).booster_ == dboost.fit(X, Y, **SMALL, loss="squared_error", random_state=0)
    predicts = xgboost.Booster.predict, xgboost.XGBModel.predict, lightgbm.Booster.predict, lightgbm.LGBMModel.predict
    for predictor in (expected, model.fit(X, Y)):
        predictor.predict(X, **dict.fromkeys(defaults_of_none(*predicts)))


def test_early_stopping_by_no_number_of_iterations() -> None:
    """As in `GradientBoostingRegressor`, whose default is None."""
    many = np.random.default_rng(0).normal(size=(10_001, 1))
    options: dict[str, Any] = {"max_iter": 40, "learning_rate": 1.0}
    assert DBoostRegressor(**options, n_iter_no_change=None).fit(many, many[:, 0]).do_early_stopping_ is False
    assert DBoostRegressor(**options).fit(many, many[:, 0]).do_early_stopping_ is True
