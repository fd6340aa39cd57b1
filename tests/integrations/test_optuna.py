"""Pruning of Optuna's trials, in this process and on a cluster, where nothing of a pruned fit stays."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from sklearn.metrics import roc_auc_score

import dboost
from dboost.metrics import Metric

optuna = pytest.importorskip("optuna", reason="optuna is not installed (dboost[optuna])")
optuna.logging.set_verbosity(optuna.logging.WARNING)

from dboost.integrations.optuna import PruningCallback  # noqa: E402

FRAME = pd.DataFrame(np.random.default_rng(0).normal(size=(900, 3)), columns=list("abc"))
FRAME["y"] = (FRAME["a"] * FRAME["b"] + 0.5 * FRAME["c"] > 0).astype(int)
TRAIN, TEST = FRAME[:600], FRAME[600:]
OPTIONS: dict[str, Any] = {"max_iter": 12, "max_leaf_nodes": 8, "loss": "log_loss", "eval_set": TEST, "progress": False}


class After(optuna.pruners.BasePruner):
    """Prunes every trial but the first after some iterations."""

    def __init__(self, n: int) -> None:
        self.n = n

    def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
        return trial.number > 0 and trial.last_step >= self.n


def test_every_iteration_is_reported_and_pruned_trials_end() -> None:
    study = optuna.create_study(pruner=After(4))
    boosters = []

    def objective(trial: optuna.Trial) -> float:
        rate = trial.suggest_float("learning_rate", 0.05, 0.3)
        callback = PruningCallback(trial, "eval_log_loss")
        boosters.append(dboost.fit(TRAIN, "y", learning_rate=rate, callbacks=[callback], **OPTIONS))
        return boosters[-1].history["eval_log_loss"].iloc[-1]

    study.optimize(objective, n_trials=3)
    finished, *pruned = study.trials
    assert finished.intermediate_values == dict(enumerate(boosters[0].history["eval_log_loss"], 1))
    assert len(boosters) == 1
    for trial in pruned:
        assert trial.state == optuna.trial.TrialState.PRUNED
        assert list(trial.intermediate_values) == [1, 2, 3, 4]
    assert study.best_trial == finished


def test_a_real_pruner_prunes_the_worse_trials_and_an_estimator_takes_the_callback() -> None:
    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=3))

    def objective(trial: optuna.Trial) -> float:
        rate = trial.suggest_categorical("learning_rate", [0.3, 1e-6])
        callback = PruningCallback(trial, "roc_auc")  # of the evaluation set without a name
        model = dboost.DBoostClassifier(learning_rate=rate, max_iter=12, eval_metric="roc_auc", callbacks=[callback])
        model.fit(TRAIN[["a", "b", "c"]], TRAIN["y"], eval_set=(TEST[["a", "b", "c"]], TEST["y"]))
        return model.booster_.history["eval_roc_auc"].iloc[-1]

    study.enqueue_trial({"learning_rate": 0.3})
    study.enqueue_trial({"learning_rate": 1e-6})
    study.optimize(objective, n_trials=2)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "PRUNED"]
    assert study.trials[1].last_step == 3


def test_a_pruned_fit_on_a_cluster(client: Client) -> None:
    study = optuna.create_study(pruner=After(2))
    lazy = dd.from_pandas(TRAIN, npartitions=4)

    def objective(trial: optuna.Trial) -> float:
        callback = PruningCallback(trial, "eval_log_loss")
        booster = dboost.fit(lazy, "y", client=client, callbacks=[callback], **OPTIONS)
        return booster.history["eval_log_loss"].iloc[-1]

    study.optimize(objective, n_trials=3)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "PRUNED", "PRUNED"]
    here = dboost.fit(TRAIN, "y", **OPTIONS)
    assert list(study.trials[0].intermediate_values.values()) == here.history["eval_log_loss"].tolist()
    assert dboost.fit(lazy, "y", client=client, **OPTIONS) == here


def test_mistakes_are_named() -> None:
    trial = optuna.create_study().ask()
    with pytest.raises(
        dboost.ParameterError, match=r"no metric 'auc': give one of the columns .*'eval_log_loss', 'train_loss'"
    ):
        dboost.fit(TRAIN, "y", callbacks=[PruningCallback(trial, "auc")], **OPTIONS)
    with pytest.raises(dboost.InputTypeError, match="trial must be a trial of optuna, not str"):
        PruningCallback("eval_log_loss", trial)
    with pytest.raises(dboost.InputTypeError, match="metric must be the name of a metric, not list"):
        PruningCallback(trial, ["eval_log_loss"])  # type: ignore[arg-type]
    trial = optuna.create_study(directions=["minimize", "maximize"]).ask()
    with pytest.raises(NotImplementedError, match="multi-objective"):  # by Optuna: no pruner is for several directions
        dboost.fit(TRAIN, "y", callbacks=[PruningCallback(trial, "eval_log_loss")], **OPTIONS)


def gain(y: np.ndarray, prediction: np.ndarray) -> float:
    return float(((prediction > 0.5) * (2 * y - 1)).sum())


Fit = Callable[[PruningCallback], Any]


def watching(eval_metric: Any = None, **options: Any) -> Fit:
    """Return a fit with a metric of an evaluation set."""
    return lambda callback: dboost.fit(TRAIN, "y", **OPTIONS | options, eval_metric=eval_metric, callbacks=[callback])


def with_scorer(callback: PruningCallback) -> Any:
    model = dboost.DBoostClassifier(scoring="roc_auc", max_iter=3, early_stopping=True, callbacks=[callback])
    return model.fit(TRAIN.drop(columns="y"), TRAIN["y"])


def of_folds(eval_metric: Any) -> Fit:
    options = {"folds": 2, "max_iter": 2, "progress": False}
    return lambda callback: dboost.cv(TRAIN, "y", **options, eval_metric=eval_metric, callbacks=[callback])


@pytest.mark.parametrize(
    ("metric", "right", "fit"),
    [
        *((f"eval_{name}", "maximize", watching(name)) for name in ("auc", "accuracy", "ndcg@5")),
        ("eval_logloss", "minimize", watching("logloss")),
        ("brier_score", "minimize", watching("brier_score")),
        ("roc_auc", "maximize", watching("roc_auc")),
        ("train_loss", "minimize", watching()),
        ("eval_gain", "maximize", watching(Metric(gain, greater_is_better=True))),
        ("gain", "minimize", watching(Metric(gain, greater_is_better=False))),
        ("eval_my_roc_auc", "minimize", watching(Metric("my_roc_auc", gain, greater_is_better=False))),
        ("eval_roc_auc_score", "maximize", watching(roc_auc_score)),
        ("eval_gain", None, watching(gain)),  # the direction is not known
        ("oob_accuracy", "maximize", watching(boosting="forest", loss="half_brier_score")),
        ("validation_score", "maximize", with_scorer),
        ("accuracy", "maximize", of_folds("accuracy")),
        ("gain", "maximize", of_folds(Metric(gain, greater_is_better=True))),
    ],
)
def test_a_study_of_the_other_direction_is_refused(metric: str, right: str | None, fit: Fit) -> None:
    """Its pruner would end the best trials."""
    for direction in ("minimize", "maximize"):
        expected: Any = nullcontext()
        if right not in (None, direction):
            expected = pytest.raises(dboost.ParameterError, match=f"better when it is .*with direction='{right}'")
        with expected:
            fit(PruningCallback(optuna.create_study(direction=direction).ask(), metric))


@pytest.mark.parametrize("metric", ["rmse", "eval_rmse"])
def test_squared_errors_are_reported_as_the_history_shows_them(metric: str) -> None:
    trial = optuna.create_study().ask()
    options = {"eval_set": FRAME, "loss": "squared_error", "max_iter": 3, "progress": False}
    booster = dboost.fit(FRAME, "y", callbacks=[PruningCallback(trial, metric)], **options)
    values = trial.study.trials[0].intermediate_values
    np.testing.assert_allclose([*values.values()], booster.history["eval_rmse"])
    with pytest.raises(dboost.ParameterError, match="give one of the columns 'eval_rmse', 'eval_squared_error', 'train_loss'"):
        dboost.fit(FRAME, "y", callbacks=[PruningCallback(trial, "eval-rmse")], **options)


def test_the_pruning_callback_sees_the_means_of_the_folds() -> None:
    study = optuna.create_study(pruner=After(4))
    options = {"folds": 2, "max_iter": 12, "loss": "log_loss", "progress": False}
    found = dboost.cv(FRAME, "y", callbacks=[PruningCallback(study.ask(), "log_loss", every=3)], **options)
    of_metric = found.summary[found.summary["metric"] == "log_loss"].set_index("iteration")["mean"]
    assert study.trials[0].intermediate_values == {number: of_metric[number] for number in (3, 6, 9, 12)}
    with pytest.raises(optuna.TrialPruned, match="pruned after iteration 4"):
        dboost.cv(FRAME, "y", callbacks=[PruningCallback(study.ask(), "log_loss")], **options)


@pytest.mark.fast_cells(1)
@pytest.mark.parametrize("name", ["optuna", "mlflow"])
def test_a_missing_library_is_an_error_that_names_the_extra(name: str) -> None:
    code = f"""
import sys
sys.modules[{name!r}] = None
import dboost
try:
    dboost.integrations.{name}
except dboost.MissingExtraError as error:
    print(error)
try:
    import dboost.integrations.{name}
except ImportError as error:
    print(type(error).__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    message = f"{name} is not installed; it comes with the extra: pip install 'dboost[{name}]'"
    assert done.stdout.splitlines() == [message, "MissingExtraError"]


@pytest.mark.slow
def test_importing_dboost_and_its_integrations_imports_no_other_library() -> None:
    code = (
        "import sys, dboost, dboost.integrations; dboost.fit; dboost.DBoostRegressor;"
        "print({'mlflow', 'optuna', 'shap'} & set(sys.modules), dir(dboost.integrations)[-2:])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set() ['mlflow', 'optuna']"
