"""Names that users of other libraries guess: each works, or ends in an error with a call that works."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import re
import shlex
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import dboost
from dboost import Booster, DBoostClassifier, DBoostRegressor
from dboost.cli.arguments import ELSEWHERE, gather, keywords, parse
from dboost.params import Parameters
from dboost.params.peer_names import ALIASES, ATTRIBUTES, COMMANDS, MODULE
from tests.helpers.shown_frames import frames_of_dboost

RNG = np.random.default_rng(0)
X = pd.DataFrame({"a": RNG.normal(size=200), "b": RNG.normal(size=200)})
Y = X["a"] + X["b"]
SMALL: dict[str, Any] = {"max_iter": 2, "n_threads": 1}

OF_PACKAGE = """
    train fit cv load load_model save_model Booster DMatrix Pool Dataset XGBClassifier LGBMRegressor CatBoostClassifier
    XGBRanker tune autolog drift dask Metric Loss metrics losses plot_importance plot_metric plot_tree plot_shap plot_roc
    explain report early_stopping EarlyStopping callback TrainingCallback LearningRateScheduler log_evaluation
    PruningCallback set_config show_versions plan predict shap_values importance feature_importance to_onnx calibrate
    prepare continue_on partial_fit from_xgboost from_lightgbm xgboost DBoostClassifer Boster GridSearchCV cross_validate
    checkpoint read_parquet
"""
OF_MODELS = """
    plot_history plot_metric plot_loss plot_learning_curve plot_importance plot_feature_importance plot_shap plot_beeswarm
    plot_force plot_waterfall plot_roc plot_roc_curve plot_confusion_matrix plot_pdp plot_dependence plot_partial_dependence
    plot_tree plot_trees plot_residuals plot_calibration plot_drift plot plot_partial_dependance plot_split explain to_dot
    to_graphviz trees_to_dataframe to_df dump_model get_dump export save save_model to_json load_model shap_values get_score
    get_fscore feature_importance feature_importances_ feature_importance_ permutation_importance importances history
    evals_result best_iteration best_score num_trees get_booster feature_names num_feature set_param update refit cv tune
    metrics auc tree export_xgboost
    report summary describe drift data_drift predict_leaf apply predict_raw predict_margin staged_predict truncate shrink
    sources sha256 expected_value to_onnx to_matrix get_params parameters interactions score copy objective_
"""
#: What has no call: the answer is all that there is to say.
WITHOUT_CALL = {"copy", "reset", "clone", "to_local"}
CALL = re.compile(r"(?:call|see(?: the frame)?|use|give|mean|to|the loss) ([a-zA-Z]\w*(?:\.\w+)*)|\bbooster_?\.(\w+)")


#: Other objects, what is asked of them, and words of the answer.
OF_RESULTS = [
    (lambda: cross_validated().mean(), "see best_score"),
    (lambda: cross_validated().to_frame(), "see scores"),
    (lambda: dboost.integrations.OptunaPruningCallback, "see dboost.integrations.optuna.PruningCallback"),
    (lambda: models()["Booster"].to_text(), "call to_frame"),
    (lambda: models()["Booster"].classification_report(), "call report"),
    (lambda: cross_validated()["test_score"], "see best_score, and the frames"),
    (lambda: cross_validated().bestscore, "did you mean best_score"),
    (lambda: dboost.fit(X, Y, callbacks=[lambda env: env.evaluation_result_list], **SMALL), "see record"),
    (lambda: dboost.fit(X, Y, callbacks=[dboost.EarlyStopping(3)], **SMALL), "give early_stopping=dboost.EarlyStopping"),
    (lambda: dboost.fit(X, Y, exposure="a"), "give offset"),
    (lambda: dboost.fit(X, Y, resume=True), "give checkpoint"),
    (lambda: dboost.fit(X, Y, cluster="tcp://host:1"), "give client, such as"),
    *(
        (lambda name=name: dboost.fit(X, Y, **{name: 5}), words)
        for name, words in (
            ("epochs", "give max_iter"),
            ("lr", "give learning_rate"),
            ("patience", "give early_stopping=dboost.EarlyStopping"),
            ("test_size", "give validation_fraction"),
            ("model", "give start_from"),
            ("nrows", "give filter, or a part of the rows"),
            ("greater_is_better", "dboost.metrics.Metric, which knows its direction"),
        )
    ),
    (lambda: models()["Booster"].calibrate(X, Y, alpha=0.1), "give coverage, such as"),
    (lambda: models()["classifier"].calibrate(X, Y > 0), "CalibratedClassifierCV calibrates probabilities"),
    (lambda: models()["Booster"].importance("shap"), "Shapley values are those of shap_values"),
    (lambda: cross_validated().plot(), "plot_history\\(\\) of one of the boosters"),
    (lambda: dboost.fit(X, Y, query="a > 1"), "give filter, such as"),
    (lambda: dboost.fit(X.assign(y=Y), "y", filter="aa > 1"), "no column 'aa', which filter uses; did you mean 'a'"),
    (lambda: dboost.fit(X, Y, usecols=["a"]), "give features, the columns to use"),
    (lambda: dboost.fit(X, Y, callbacks=[lambda model, epoch, log: True]), "one argument, a dboost.Iteration"),
    (lambda: dboost.fit(X, Y, objective=lambda y, p: (p - y, 1.0)), "methods value, gradient and hessian"),
    (lambda: dboost.fit(X, Y, eval_set=(X, Y), eval_metric=lambda y, p: ("m", 1.0), **SMALL), "return the number alone"),
    (lambda: dboost.fit(type("Client", (), {"scheduler_info": 0})(), X, Y), "fit\\(data, target, client=client\\)"),
    (lambda: dboost.plan(), "rows is missing: call plan\\(rows\\)"),
    (lambda: models()["Booster"].plot_shap_dependence("a"), "feature is missing: call plot_shap_dependence\\(X, feature\\)"),
    (lambda: models()["regressor"].plot_calibration(X), "target is missing: call plot_calibration\\(data, target\\)"),
    (lambda: models()["Booster"].predict(X, interval=0.9), "and then predict_interval"),
    (lambda: models()["Booster"].save("m.json", compression="gzip"), "end the path with .gz"),
    (lambda: models()["Booster"].plot_tree(iteration=1), "give i, the position of a tree"),
    (lambda: dboost.fit(X, Y, where="a > 1"), "give filter"),
    (lambda: dboost.fit(X, Y, max_memory="1GiB"), "give memory_limit"),
    (lambda: dboost.fit(X, Y, task="classification"), "the target decides"),
    (lambda: models()["Booster"].predict(X, proba=True), "call predict_proba"),
    (lambda: models()["Booster"].predict(X, alpha=3.0), "of a fit: give quantile"),
    (lambda: models()["Booster"].predict_interval(X, alpha=0.1), "calibrate\\(data, target, coverage=0.9\\)"),
    (lambda: models()["Booster"].plot_importance(5), "plot_importance\\(max_features=5\\)"),
    (lambda: models()["Booster"].report(X), "the path of the page comes first"),
    (lambda: models()["Booster"].set_calibration(X), "takes the calibration of another model"),
    (lambda: models()["classifier"].booster_.calibrate(X, Y > 0), "CalibratedClassifierCV"),
    (lambda: models()["classifier"].booster_.predict_interval(X), "there are no intervals: the model predicts classes"),
    (lambda: dboost.fit({"eta": 0.1, "max_depth": 3}, Y), "by name after the table and the target"),
    (lambda: dboost.fit(X, Y, early_stopping=10), "early_stopping_rounds takes a number"),
    (lambda: list(dboost.continue_on(models()["Booster"], X)), "for one: dboost.fit"),
    (lambda: dboost.plan(rows=1000, columns=5, n_estimators=5), "the time grows with iterations"),
    (lambda: models()["regressor"].predict(X[["b", "a"]]), "must be in the same order"),
    (lambda: DBoostRegressor().predict(X), "is not fitted yet"),
    (lambda: Booster.load("m.json"), "type object 'Booster' has no attribute 'load': call dboost.load\\(path\\)"),
    (lambda: Booster.feature_importance, "call importance"),
    (lambda: Booster.from_xgboost("m.json"), "call dboost.from_xgboost"),
    (lambda: DBoostRegressor.load("m.json"), "call dboost.load\\(path\\)"),
    *(
        (lambda make=make: make(), "call dboost.load\\(path\\) or dboost.fit\\(data, target\\)")
        for make in (
            Booster,
            lambda: Booster("m.json"),
            lambda: Booster(model_file="m.json"),
            lambda: Booster({"eta": 0.1}, [X]),
            lambda: Booster(params={"eta": 0.1}),
        )
    ),
    (lambda: models()["regressor"].n_estimators, "it is called max_iter"),
    (lambda: DBoostClassifier().eta, "it is called learning_rate"),
    *(
        (lambda name=name, owner=owner: owner().__setattr__(name, 5), words)
        for owner, name, words in (
            (DBoostRegressor, "n_estimators", "'n_estimators' has no effect as an attribute: set max_iter"),
            (lambda: models()["classifier"], "num_leaves", "set max_leaf_nodes, or call set_params\\(num_leaves=…\\)"),
            (DBoostRegressor, "learning_rte", "did you mean learning_rate"),
            (DBoostClassifier, "scale_pos_weight", "give class_weight"),
            (DBoostRegressor, "weight", "sample_weight is an argument of fit"),
            (type("Subclass", (DBoostRegressor,), {}), "eta", "set learning_rate"),
            (lambda: models()["Booster"], "eta", "models do not change: call dboost.fit\\(data, target, learning_rate=…\\)"),
            (lambda: models()["Booster"], "max_features", "models do not change"),
            (lambda: models()["Booster"], "feature_names", "see feature_names_in_"),
        )
    ),
    (lambda: models()["Booster"].eta, "see sources\\[-1\\]\\['parameters'\\]\\['learning_rate'\\]"),
    (lambda: models()["Booster"].max_depth, "see sources"),
    (lambda: DBoostRegressor(20).fit(X, Y), "loss=20 .*; for a number of iterations give max_iter=20"),
    (lambda: DBoostClassifier(20).fit(X, Y > 0), "for a number of iterations give max_iter=20"),
    (lambda: DBoostClassifier({"eta": 0.1}).fit(X, Y > 0), "give the parameters as keywords"),
    (lambda: DBoostRegressor(20, 0.1), "DBoostRegressor takes loss by position.*give the others by name"),
    (
        lambda: dboost.fit(X, Y, 20),
        "fit takes data and target by position, and 3 arguments were given: give the others by name",
    ),
    (lambda: dboost.fit({"eta": 0.1}, X, Y), "give the parameters as keywords: dboost.fit\\(data, target"),
    (lambda: [*dboost.continue_on([X], Y, models()["Booster"])], "continue_on takes chunks and target .* such as start_from=…"),
    *(
        (exchanged, "the table comes first and the target second: .* they look exchanged")
        for exchanged in (
            lambda: DBoostRegressor().fit(Y, X),
            lambda: DBoostRegressor().fit(Y.to_numpy(), X.to_numpy()),
            lambda: DBoostClassifier().fit(Y > 0, X[["a"]]),
            lambda: DBoostRegressor().fit(Y.tolist(), X),
            lambda: DBoostRegressor().partial_fit(Y, X),
            lambda: dboost.fit(Y, X),
            lambda: dboost.fit(Y, X.to_numpy()),
            lambda: dboost.fit(pl.from_pandas(Y), pl.from_pandas(X)),
            lambda: dboost.cv(Y, X, folds=2),
            lambda: dboost.prepare(Y, X),
            lambda: dboost.fit(X, Y, eval_set=(Y, X)),
            lambda: dboost.fit(da.from_array(Y.to_numpy()), da.from_array(X.to_numpy())),
            lambda: models()["Booster"].refit_leaves(Y, X),
        )
    ),
    (lambda: models()["Booster"].truncate(1, 2), "truncate takes n_iterations by position"),
]


@cache
def cross_validated() -> dboost.CVResult:
    return dboost.cv(X, Y, folds=2, progress=False, **SMALL)


@pytest.mark.parametrize(("call", "words"), OF_RESULTS)
def test_guesses_of_results_and_keywords(call: Callable[[], Any], words: str) -> None:
    """The answer says what to use, and shows no call inside dboost but that for the name of an attribute."""
    with pytest.raises((dboost.DBoostError, AttributeError, ValueError), match=words) as caught:
        call()
    assert len(frames_of_dboost(caught.value)) <= 2


class WithOwnNames(DBoostRegressor):
    """Has attributes that are names of parameters in other libraries."""

    eta = 1
    rounds: int

    def fit(self, X: Any, y: Any = None, *arguments: Any, **keywords: Any) -> Any:
        self.num_leaves = self.rounds = 2
        return super().fit(X, y, *arguments, **keywords)


def test_attributes_that_are_no_parameters_can_be_set() -> None:
    estimator = WithOwnNames(**SMALL).fit(X, Y)
    estimator.eta = estimator.num_leaves = estimator.max_iter = 3
    estimator.feature_names = estimator.threshold_ = estimator.target = "x"  # type: ignore[attr-defined]
    for same in (copy.copy(estimator), pickle.loads(pickle.dumps(estimator)), clone(estimator).set_params(max_iter=3)):
        assert same.max_iter == 3 and same.get_params() == estimator.get_params()
    assert vars(copy.deepcopy(estimator)).keys() == vars(estimator).keys()
    booster = copy.copy(models()["Booster"])
    booster.note = booster.metrics = "x"  # type: ignore[attr-defined]


def test_aliases_of_methods_and_of_a_plan() -> None:
    booster = models()["Booster"]
    assert len(booster.plot_importance(n=1).patches) == len(booster.plot_importance(top_k=1).patches) == 1
    assert booster.plot_tree(tree_idx=1).get_title("left") == booster.plot_tree(1).get_title("left")
    assert dboost.plan(n_rows=1000, n_features=5) == dboost.plan(1000, 5) == dboost.plan(rows=1000, columns=5)


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_the_file_of_another_library_names_the_function_that_reads_it(library: str, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text('{"learner":{"attributes":{}}}' if library == "xgboost" else "tree\nversion=v4\n")
    with pytest.raises(dboost.ModelFileError, match=f"dboost.from_{library}"):
        dboost.load(path)


@cache
def models() -> dict[str, Any]:
    booster = dboost.fit(X, Y, **SMALL)
    return {
        "Booster": booster,
        "regressor": DBoostRegressor(**SMALL).fit(X, Y),
        "classifier": DBoostClassifier(**SMALL).fit(X, Y > 0),
    }


def exists(name: str, owner: Any) -> bool:
    """Return whether a call in an answer is one of the owner, of a model, of the package, or a keyword of a fit."""
    if name.startswith("dboost."):
        package, _, last = name.rpartition(".")
        if package == "dboost.integrations.mlflow":  # need not be installed
            return importlib.util.find_spec(package) is not None and last == "autolog"
        return hasattr(importlib.import_module(package), last)
    owners = (owner,) if owner is not dboost else (models()["Booster"], dboost)
    return any(hasattr(each, name) for each in owners) or name in inspect.signature(dboost.fit).parameters


def problem(owner: Any, name: str) -> str | None:
    """Return what is wrong with the answer to a name."""
    try:
        getattr(owner, name)
    except AttributeError as error:
        sentence = str(error).partition(f"no attribute {name!r}")[2]
        calls = [first or second for first, second in CALL.findall(sentence)]
        calls = [call for call in calls if call not in ("the", "the model", "dboost", "a", "of")]
        if name in WITHOUT_CALL and sentence:
            return None
        if owner is not dboost:
            owner = models()["classifier"] if "of a classifier" in sentence else owner
            owner = models()["regressor"] if "of an estimator" in sentence and "(booster_" not in sentence else owner
            owner = models()["Booster"] if re.search(r"\(booster_|booster_\.", sentence) else owner
        return None if calls and all(exists(call, owner) for call in calls) else str(error)
    return None


def test_guessed_names_of_the_package() -> None:
    assert len({*OF_PACKAGE.split(), *OF_MODELS.split()}) > 120
    assert [wrong for name in {*OF_PACKAGE.split(), *MODULE} if (wrong := problem(dboost, name))] == []


@pytest.mark.parametrize("kind", ["Booster", "regressor", "classifier"])
def test_guessed_names_of_models(kind: str) -> None:
    names = {*OF_MODELS.split(), *(ATTRIBUTES if kind == "Booster" else ())}
    assert [wrong for name in names if (wrong := problem(models()[kind], name))] == []


@pytest.mark.parametrize("kind", ["regressor", "classifier"])
def test_estimators_answer_for_all_that_the_booster_can_do(kind: str) -> None:
    estimator = models()[kind]
    names = [name for name in dir(Booster) if not name.startswith("_") and name != "classes_"]
    assert [wrong for name in names if (wrong := problem(estimator, name))] == []
    for name in names:
        if "plot" in name or name in ("report", "drift", "importance", "to_onnx"):
            assert getattr(type(estimator), name).__doc__ == getattr(Booster, name).__doc__
            assert inspect.signature(getattr(estimator, name)) == inspect.signature(getattr(estimator.booster_, name))
    assert estimator.history.equals(estimator.booster_.history)
    assert estimator.to_frame().equals(estimator.booster_.to_frame())
    np.testing.assert_array_equal(estimator.shap_values(X), estimator.booster_.shap_values(X))
    assert len(estimator.plot_importance(max_num_features=1).patches) == 1
    assert len(estimator.plot_history().lines) == len(estimator.booster_.plot_history().lines)
    unfitted = type(estimator)()
    for name in ("history", "sha256", "best_iteration", "expected_value"):
        with pytest.raises(NotFittedError):
            getattr(unfitted, name)
    for name in ("shap_values", "plot_tree", "report", "to_onnx"):
        with pytest.raises(NotFittedError):
            getattr(unfitted, name)("x")
    assert not hasattr(DBoostRegressor(), "predict_proba") and not hasattr(DBoostClassifier(), "predict_interval")


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as end:
        parse(words)
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line.partition(" (see dboost")[0]


def test_guessed_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert {"report", "drift", "export", "fit", "evaluate", "tune"} <= COMMANDS.keys()
    for name in COMMANDS:
        words = shlex.split(answer(capsys, name, "x.csv").partition("write: ")[2].partition("; studies")[0])
        if words[0] == "dboost" and words[1].startswith("--"):
            with pytest.raises(SystemExit, match="0"):
                parse(words[1:])
        elif words[0] == "dboost":
            assert parse(words[1:]).run
        else:
            functions, methods = re.findall(r"dboost\.(\w+)\(", words[-1]), re.findall(r"\)\.(\w+)\(", words[-1])
            assert functions and all(hasattr(dboost, function) for function in functions)
            assert all(hasattr(Booster, method) for method in methods)
    capsys.readouterr()
    assert "did you mean dboost train?" in answer(capsys, "trian", "x.csv")


PARAMETERS = sorted({*(field.name for field in fields(Parameters)), "eval_metric", "n_threads", "sample_weight"})


@pytest.mark.parametrize("command", ["train", "cv"])
def test_parameters_of_learning_as_options(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    known = keywords(dboost.fit, ELSEWHERE)
    aliases = [alias for alias, name in ALIASES.items() if name in PARAMETERS]
    for name in (*PARAMETERS, *aliases):
        if name == "arcbites":  # it is an option
            continue
        for words in ((f"--{name.replace('_', '-')}", "3"), (f"--{name}=3",), (f"{name}=3",)):
            option, value = shlex.split(answer(capsys, command, "x.csv", "--target", "y", *words).partition(": write ")[2])
            assert option == "--set" and gather(None, [value], known) == {ALIASES.get(name, name): 3}
    line = answer(capsys, command, "x.csv", "--target", "y", "--max-iter", "50", "--eta=0.1")
    assert line == "dboost: --max-iter, --eta: parameters are given by --set: write --set max_iter=50 --set learning_rate=0.1"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("train x.csv --label y", "--label: use --target"),
        ("train --data x.csv --target y", "--data: DATA has no option before it: write dboost train DATA"),
        ("train x.csv --target y --out m.json", "--out: use --output"),
        ("train x.csv --target y --test t.csv", "--test: use --eval"),
        ("train x.csv --target y --verbosity 2", "--verbosity: use --verbose"),
        ("train x.csv --target y --features a,b", "write --set 'features=[a,b]'"),
        ("train x.csv --target y --objective reg:squarederror", "write --set loss=squared_error"),
        ("train x.csv --target y --gamma 2", "give leaf_penalty"),
        ("train x.csv --target y --ouput m.json", "did you mean --output?"),
        ("train x.csv --target y --max-itr 3", "did you mean --set max_iter?"),
        ("predict m.json x.csv --out p.csv", "--out: use --output"),
        ("predict --model m.json x.csv --output p.csv", "MODEL has no option before it: write dboost predict MODEL DATA"),
        ("predict m.json x.csv --output p.csv --max-iter 3", "it is a parameter of dboost train"),
        ("prepare x.csv --target y --output f --learning-rate 1", "it is a parameter of dboost train"),
        ("inspect m.json --report r.html", "--report: use --html"),
        ("train x.csv income", "unrecognized arguments: income; write --target income"),
        ("cv x.csv --target y --nfold 3", "--nfold: use --folds"),
        ("inspect m.json --tree 0", "dboost.load('MODEL').plot_tree(0)"),
        ("inspect m.json --plot", "write dboost inspect MODEL --html"),
        ("inspect m.json --params", "--params: write dboost inspect MODEL"),
        ("inspect m.json rows.csv", "write --html report.html --data rows.csv, or --drift rows.csv"),
        ("cv x.csv --target y --eval t.csv", "--eval: it is an option of dboost train"),
        ("plan x.csv --set max_iter=9", "--set: the fit is that of the defaults"),
        ("plan x.csv --max-iter 9", "the time grows with iterations"),
        ("plan x.csv --memory-limit 1GiB", "--memory-limit: use --worker-memory"),
        ("plan --rows 10 --columns 5", "dboost.plan(1_000_000, 50)"),
        ("plan 10 5", "unrecognized arguments: 5; write python -c"),
        ("train x.csv --target y --set max_iter=5 eta=0.2", "eta=0.2: repeat --set: write --set learning_rate=0.2"),
        ("train --set max_iter=5 eta=0.2 x.csv --target y", "eta=0.2: repeat --set"),
        ("train x.csv --target y --set max_iter 5", "--set takes KEY=VALUE: write --set max_iter=5"),
        ("train x.csv --target y --early-stopping 10", "write --set early_stopping_rounds=10"),
        ("prepare --set max_bins 5 x.csv --target y --output f", "write --set max_bins=5"),
        ("cv x.csv --target y eta=0.2", "dboost: eta=0.2: parameters are given by --set: write --set learning_rate=0.2"),
    ],
)
def test_guessed_options(words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sentence in answer(capsys, *words.split())


def test_options_of_other_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """Each option that some command has is answered by all others."""
    commands = dict.fromkeys(("train", "predict", "inspect", "prepare", "cv", "plan"), "")
    for command in commands:
        with pytest.raises(SystemExit):
            parse([command, "--help"])
        commands[command] = capsys.readouterr().out
    options = {option for text in commands.values() for option in re.findall(r"--[a-z][a-z-]+", text)} - {"--help", "--version"}
    assert len(options) > 35
    for command, text in commands.items():
        for option in options:
            if option not in text:
                line = answer(capsys, command, "x", option, "value")
                assert line.startswith(f"dboost: unknown option {option}: ") or "parameters are given by --set" in line
