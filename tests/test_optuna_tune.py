"""`dboost.integrations.optuna.tune`: trials, pruning, studies that continue, and what stays on a cluster."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dboost
from dboost import cross_validation
from dboost.training.callbacks import OBSERVERS
from tests.helpers.clusters import held_fits, scheduler_plugin, threads_cluster

optuna = pytest.importorskip("optuna", reason="optuna is not installed (dboost[optuna])")
optuna.logging.set_verbosity(optuna.logging.WARNING)

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution  # noqa: E402

from dboost.integrations import optuna as integration  # noqa: E402
from dboost.integrations.optuna import PruningCallback, tune  # noqa: E402

RNG = np.random.default_rng(0)
N = 600
FEATURES = ["a", "b", "c", "kind"]


def a_frame() -> pd.DataFrame:
    frame = pd.DataFrame(RNG.normal(size=(N, 3)), columns=list("abc"))
    frame["kind"] = RNG.choice(["one", "two", "three"], N)
    frame["z"] = (frame["a"] * frame["b"] + (frame["kind"] == "one") + 0.5 * RNG.normal(size=N) > 0.3).astype(np.int64)
    frame["w"] = RNG.integers(1, 3, N)
    return frame


FRAME = a_frame()
SPACE = {"learning_rate": FloatDistribution(0.05, 0.5, log=True), "max_leaf_nodes": IntDistribution(2, 8)}
OPTIONS: dict[str, Any] = {"target": "z", "features": FEATURES, "folds": 2, "max_iter": 20, "metric": "auc"}
CV: dict[str, Any] = {"features": FEATURES, "folds": 2, "max_iter": 20, "progress": False}


class After(optuna.pruners.BasePruner):
    """Prunes every trial but the first after some iterations."""

    def __init__(self, n: int) -> None:
        self.n = n

    def prune(self, study: Any, trial: Any) -> bool:
        return trial.number > 0 and trial.last_step >= self.n


def outcome(study: optuna.Study) -> list[tuple[Any, ...]]:
    """Return what the trials that count have in common with those of an undisturbed study."""
    counted = [trial for trial in study.trials if trial.state.name in ("COMPLETE", "PRUNED")]
    return [(trial.params, trial.value, trial.state.name, trial.intermediate_values) for trial in counted]


def states(study: optuna.Study) -> list[str]:
    return [trial.state.name for trial in study.trials]


def fold_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(("dboost-fold", "dboost-trial"))]


def test_the_pruning_callback_sees_the_means_of_the_folds() -> None:
    study = optuna.create_study(direction="maximize", pruner=After(4))
    options = CV | {"folds": 3, "eval_metric": ["log_loss", "auc"], "max_iter": 6}
    result = dboost.cv(FRAME, "z", callbacks=[PruningCallback(study.ask(), "validation_auc")], **options)
    means = result.summary[result.summary["metric"] == "auc"].set_index("iteration")["mean"]
    assert study.trials[0].intermediate_values == means.to_dict()
    with pytest.raises(optuna.TrialPruned, match="pruned after iteration 4"):
        dboost.cv(FRAME, "z", callbacks=[PruningCallback(study.ask(), "auc")], **options)
    assert study.trials[1].intermediate_values == means[:4].to_dict()
    assert not fold_threads()
    third = study.ask()
    dboost.cv(FRAME, "z", callbacks=[PruningCallback(third, "train_loss", every=3)], **options | {"max_iter": 3})
    assert list(study.trials[2].intermediate_values) == [3]
    with pytest.raises(dboost.ParameterError, match="every=0 must be a number of iterations"):
        PruningCallback(third, "auc", every=0)


def test_a_study_is_reproducible_and_reads_the_rows_once(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[dboost.Dataset] = []
    reads: list[int] = []
    original: Callable[..., dboost.Dataset] = cross_validation.prepare

    def prepare(*given: Any, **more: Any) -> dboost.Dataset:
        data = original(*given, **more)
        read = data._read
        monkeypatch.setattr(data, "_read", lambda: (reads.append(1), read())[1])
        prepared.append(data)
        return data

    monkeypatch.setattr(cross_validation, "prepare", prepare)
    seen: list[int] = []
    options = OPTIONS | {"trials": 14}
    study = tune(FRAME, SPACE, callbacks=[lambda study, trial: seen.append(trial.number)], **options)
    assert len(prepared) == len(reads) == 1 and seen == list(range(14))
    assert set(states(study)) == {"COMPLETE", "PRUNED"}, "the median prunes some"
    assert outcome(tune(FRAME, SPACE, **options)) == outcome(study)
    other = tune(FRAME, SPACE, random_state=1, **options | {"trials": 1})
    assert other.trials[0].params != study.trials[0].params
    best = study.best_trial
    assert best.value == max(trial.value for trial in study.trials if trial.state.name == "COMPLETE")
    result = dboost.cv(FRAME, "z", eval_metric="auc", **CV, **best.params)
    assert (result.best_score, result.best_iteration) == (best.value, best.user_attrs["best_iteration"])
    at = result.summary.query("iteration == @result.best_iteration and metric == 'auc'")
    assert best.user_attrs["std"] == at["std"].item()


def test_the_folder_of_a_data_set_is_taken_by_its_path(tmp_path: Path) -> None:
    folder, options = tmp_path / "prepared", {"folds": 2, "max_iter": 3, "metric": "auc", "trials": 2}
    dboost.prepare(FRAME, "z", features=FEATURES, path=folder)
    studies = [tune(data, SPACE, **options) for data in (folder, str(folder), dboost.Dataset(folder))]
    assert outcome(studies[0]) == outcome(studies[1]) == outcome(studies[2])


def test_several_trials_at_once_and_the_direction_of_the_loss() -> None:
    most: list[int] = []

    class Observer(optuna.pruners.NopPruner):
        def prune(self, study: Any, trial: Any) -> bool:
            most.append(states(study).count("RUNNING"))
            return False

    study = tune(FRAME, SPACE, at_once=3, trials=6, pruner=Observer(), **OPTIONS | {"metric": None})
    assert study.direction == optuna.study.StudyDirection.MINIMIZE
    assert max(most) == 3
    for trial in study.trials:
        assert dboost.cv(FRAME, "z", **CV, **trial.params).best_score == trial.value


def test_early_stopping_folds_and_columns_are_those_of_cv() -> None:
    numbers = np.arange(N) % 3
    options = {"features": FEATURES, "sample_weight": "w", "max_iter": 100, "learning_rate": 0.5}
    stopping = dboost.EarlyStopping(3, min_delta=0.001)
    given = options | {"early_stopping": stopping, "folds": "part", "callbacks": []}
    space = {"grow_policy": CategoricalDistribution(["lossguide", "depthwise"])}
    study = tune(FRAME.assign(part=numbers), space, target="z", trials=2, metric="log_loss", **given)
    for trial in study.trials:
        shaped = options | {"early_stopping": stopping, "folds": numbers, "progress": False}
        result = dboost.cv(FRAME, "z", eval_metric="log_loss", **shaped, **trial.params)
        assert (result.best_score, result.best_iteration) == (trial.value, trial.user_attrs["best_iteration"])
        assert len(trial.intermediate_values) == result.best_iteration + 3 < 100


def test_a_callback_and_the_time_end_a_study() -> None:
    study = tune(FRAME, SPACE, trials=50, callbacks=[lambda study, trial: trial.number == 2], **OPTIONS)
    assert len(study.trials) == 3
    study = tune(FRAME, SPACE, trials=2, time_limit="1500ms", **OPTIONS | {"max_iter": 10**6})
    assert states(study) == ["FAIL"]
    assert not fold_threads()


def test_interrupted_trials_are_repeated_and_the_study_is_that_of_no_interruption(tmp_path: Path) -> None:
    options = OPTIONS | {"trials": 8, "storage": tmp_path / "study"}
    expected = tune(FRAME, SPACE, **options | {"storage": None})

    class Fails(optuna.pruners.MedianPruner):
        def prune(self, study: Any, trial: Any) -> bool:
            if trial.number == 3 and trial.last_step == 10:
                raise OSError("the network has gone")
            return super().prune(study, trial)

    with pytest.raises(OSError, match="network"):
        tune(FRAME, SPACE, pruner=Fails(n_startup_trials=5, n_warmup_steps=4), **options)
    with open(tmp_path / "study", "ab") as file:
        file.write(b'{"op_code":5,"worker')  # an entry that was not finished
    study = tune(FRAME, SPACE, **options)
    assert states(study).count("FAIL") == 1 and study.trials[3].state.name == "FAIL"
    assert study.trials[4].user_attrs["repeats"] == 3 and study.trials[4].params == study.trials[3].params
    assert outcome(study) == outcome(expected)
    assert len(tune(FRAME, SPACE, **options).trials) == 9, "nothing is left to do"


def test_a_trial_that_was_killed_while_its_parameters_were_chosen(tmp_path: Path) -> None:
    """The sampler would draw other values for the rest if some were given."""
    options = OPTIONS | {"trials": 3, "storage": tmp_path / "study"}
    expected = tune(FRAME, SPACE, **options | {"storage": None})
    tune(FRAME, SPACE, **options | {"trials": 1})
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "study"))
    opened = optuna.load_study(study_name="dboost", storage=optuna.storages.JournalStorage(backend))
    opened.ask().suggest_float("learning_rate", 0.05, 0.5, log=True)
    study = tune(FRAME, SPACE, **options)
    assert states(study) == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]
    assert outcome(study) == outcome(expected)


def test_a_trial_that_cannot_work_is_not_tried_again(tmp_path: Path) -> None:
    space = {"max_leaf_nodes": CategoricalDistribution([4, 1])}
    # With this seed the first trial works; if it fails nothing is stored of it.
    options = OPTIONS | {"storage": tmp_path / "study", "trials": 6, "random_state": 2}
    n_errors = 0
    for _ in range(7):
        try:
            study = tune(FRAME, space, **options)
            break
        except dboost.ParameterError as error:
            assert "max_leaf_nodes=1" in str(error)
            n_errors += 1
    assert 0 < n_errors == states(study).count("FAIL") and states(study).count("COMPLETE") > 0
    assert len(study.trials) == 6


def test_settings_that_cannot_work_may_be_changed(tmp_path: Path) -> None:
    options = OPTIONS | {"storage": tmp_path / "study", "trials": 1}
    with pytest.raises(dboost.ParameterError, match="split_proposal"):
        tune(FRAME, SPACE, split_proposal="node", **options)
    assert tune(FRAME, SPACE, **options).best_value > 0.5


def test_a_study_is_for_one_process_and_for_the_same_settings(tmp_path: Path) -> None:
    options = OPTIONS | {"trials": 1, "storage": tmp_path / "study"}

    def nested(study: Any, trial: Any) -> None:
        with pytest.raises(dboost.ParameterError, match="another process works on the study"):
            tune(FRAME, SPACE, **options)

    tune(FRAME, SPACE, callbacks=[nested], **options)
    for change, name in (
        ({"max_iter": 21}, "max_iter"),
        ({"metric": "roc_auc"}, "metric"),
        ({"folds": 3}, "folds"),
        ({"features": ["a"]}, "data"),
        ({"target": 1 - FRAME["z"], "features": FEATURES}, "data"),
        ({"monotonic_cst": {"a": 1}}, "monotonic_cst"),
        ({"early_stopping_rounds": 3}, "early_stopping_rounds"),
    ):
        with pytest.raises(dboost.ParameterError, match=rf"a study with other settings \(.*{name}"):
            tune(FRAME, SPACE, **options | change)
    with pytest.raises(dboost.ParameterError, match=r"a study with other settings \(learning_rate\)"):
        tune(FRAME, SPACE | {"learning_rate": FloatDistribution(0.1, 0.2)}, **options)
    tune(FRAME, SPACE, **options)


def test_files_that_are_no_studies(tmp_path: Path) -> None:
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "other"))
    made = optuna.create_study(study_name="dboost", storage=optuna.storages.JournalStorage(backend), direction="maximize")
    made.add_trial(optuna.create_trial(value=1.0))
    with pytest.raises(dboost.ParameterError, match="tune has not made"):
        tune(FRAME, SPACE, **OPTIONS, storage=tmp_path / "other")
    (tmp_path / "text").write_text("keep this")
    with pytest.raises(dboost.ParameterError, match="text exists and is no study"):
        tune(FRAME, SPACE, **OPTIONS, storage=tmp_path / "text")
    assert (tmp_path / "text").read_text() == "keep this"
    with pytest.raises(dboost.ParameterError, match="cannot be written: No such file"):
        tune(FRAME, SPACE, **OPTIONS, storage=tmp_path / "nowhere" / "study")


def test_other_storages(tmp_path: Path) -> None:
    for storage in (f"sqlite:///{tmp_path}/study.db", optuna.storages.InMemoryStorage()):
        tune(FRAME, SPACE, trials=1, storage=storage, **OPTIONS)
        assert len(tune(FRAME, SPACE, trials=2, storage=storage, **OPTIONS).trials) == 2


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"space": {}}, dboost.InputTypeError, "space must be distributions"),
        ({"space": {"max_iter": (1, 2)}}, dboost.InputTypeError, "'max_iter' must have a distribution"),
        ({"space": {"max_bins": IntDistribution(2, 9)}}, dboost.ParameterError, "max_bins cannot be searched"),
        ({"space": {"leaves": IntDistribution(2, 9)}}, dboost.ParameterError, "there is no parameter 'leaves'"),
        ({"space": {"max_iter": IntDistribution(2, 9)}}, dboost.ParameterError, "max_iter is given twice"),
        ({"trials": 0}, dboost.ParameterError, "trials=0 must be"),
        ({"at_once": 1.5}, dboost.ParameterError, "at_once=1.5 must be"),
        ({"storage": 3}, dboost.InputTypeError, "storage must be a path"),
        ({"metric": ["auc", "log_loss"]}, dboost.ParameterError, "must be one metric"),
        ({"eval_metric": "auc"}, dboost.ParameterError, "eval_metric"),
        ({"target": ...}, dboost.InputTypeError, "the target is missing"),
        ({"arcbites": True}, dboost.ParameterError, "arcbites"),
        ({"halving": 1}, dboost.ParameterError, "halving=1 must be a number, at least 2"),
        ({"halving": 2.5}, dboost.ParameterError, "halving=2.5 must be a number, at least 2"),
        ({"min_iterations": 3}, dboost.ParameterError, "min_iterations=3 needs halving"),
        ({"halving": 3, "min_iterations": 7}, dboost.ParameterError, "min_iterations=7 needs a max_iter of at least 21"),
        ({"halving": 3, "min_iterations": 0}, dboost.ParameterError, "min_iterations=0 must be"),
        ({"halving": 3, "max_iter": "x"}, dboost.ParameterError, "max_iter"),
        ({"halving": 3, "pruner": optuna.pruners.NopPruner()}, dboost.ParameterError, "halving and pruner both end trials"),
    ],
)
def test_what_tune_does_not_take(change: dict[str, Any], error: type[Exception], message: str) -> None:
    options = {"space": SPACE, "trials": 1} | OPTIONS | change
    with pytest.raises(error, match=message):
        tune(FRAME, **options)


def test_rows_in_files_are_trained_on_by_the_cluster_that_is_given(tmp_path: Path) -> None:
    held: list[int] = []
    with threads_cluster(2, 1) as client:

        class Look(optuna.pruners.NopPruner):
            def prune(self, study: Any, trial: Any) -> bool:
                held.append(max(client.run(held_fits).values()))
                return False

        dboost.prepare(FRAME, "z", tmp_path / "rows", features=FEATURES, client=client).close()
        given = {"trials": 1, "folds": 2, "max_iter": 4, "metric": "auc", "pruner": Look()}
        there = tune(dboost.Dataset(tmp_path / "rows"), SPACE, client=client, **given)
        assert held == [2] * 4
        assert outcome(tune(dboost.Dataset(tmp_path / "rows"), SPACE, **given)) == outcome(there)
        assert held == [2] * 4 + [0] * 4


HALVING: dict[str, Any] = OPTIONS | {"max_iter": 18, "halving": 3}


@contextmanager
def counted() -> Iterator[list[int]]:
    """Count the iterations that are grown, of all folds."""

    class Counter:
        def __call__(self, iteration: Any) -> None:
            n.append(iteration.iteration)

        def end(self, result: Any) -> None:
            pass

    n: list[int] = []
    observer = Counter()

    def make(_: Any) -> Counter:
        return observer

    OBSERVERS.append(make)
    try:
        yield n
    finally:
        OBSERVERS.remove(make)


def stages(trial: Any) -> list[tuple[int, float]]:
    return list(trial.intermediate_values.items())


def test_the_best_trials_of_a_stage_are_continued() -> None:
    ended: list[int] = []
    alive: list[weakref.ref[Any]] = []
    original = integration.cross_validate

    def watched(*given: Any, **more: Any) -> Any:
        result = original(*given, **more)
        alive.extend(weakref.ref(state.model) for state in result.states)
        return result

    def look(study: Any, trial: Any) -> None:
        ended.append(trial.number)

    with pytest.MonkeyPatch.context() as patch, counted() as n_grown:
        patch.setattr(integration, "cross_validate", watched)
        study = tune(FRAME, SPACE, trials=20, callbacks=[look], **HALVING)
    gc.collect()
    assert not [one for one in alive if one() is not None], "the models of all trials are released"
    # Two brackets of nine trials: 9 × 2 iterations, 3 × 4 and 1 × 12 more; and one of two trials. Each has two folds.
    assert len(n_grown) == 2 * (2 * (9 * 2 + 3 * 4 + 12) + (2 * 2 + 4 + 12)) < 20 * 18 * 2 / 3
    assert sorted(ended) == list(range(20))
    for first, size in ((0, 9), (9, 9), (18, 2)):
        rivals = study.trials[first : first + size]
        for step, n_kept in ((2, size // 3), (6, size // 9), (18, 0)):
            found = {trial.number: trial.intermediate_values[step] for trial in rivals}
            best = sorted(found, key=lambda number: -found[number])[: max(n_kept, 1)]
            if step < 18:
                assert all(trial.state.name == "PRUNED" for trial in rivals if trial.number not in best)
            assert all(len(trial.intermediate_values) > (2, 6, 18).index(step) for trial in rivals)
            rivals = [trial for trial in rivals if trial.number in best]
        assert [trial.state.name for trial in rivals] == ["COMPLETE"]
    for trial in study.trials:
        for n_iterations, value in stages(trial):
            explicit = dboost.cv(FRAME, "z", eval_metric="auc", **CV | trial.params | {"max_iter": n_iterations})
            assert explicit.best_score == value, "the score is that of a fit with all iterations"
        if trial.state.name == "COMPLETE":
            assert (trial.value, trial.user_attrs["best_iteration"]) == (explicit.best_score, explicit.best_iteration)
    best = study.best_trial
    assert best.state.name == "COMPLETE" and dboost.fit(FRAME, "z", features=FEATURES, **best.params).n_iter_ == 100
    several = tune(FRAME, SPACE, trials=20, at_once=3, **HALVING)
    assert outcome(several) == outcome(study), "decisions wait for all trials of a stage"


def test_early_stopping_ends_trials_between_stages() -> None:
    options = HALVING | {"learning_rate": 0.9, "early_stopping_rounds": 2, "metric": "log_loss", "max_iter": 27}
    space = {"max_leaf_nodes": IntDistribution(2, 30)}
    study = tune(FRAME, space, trials=9, **options)
    n_stopped = 0
    for trial in study.trials:
        given = {"learning_rate": 0.9, "early_stopping_rounds": 2, "eval_metric": "log_loss"}
        explicit = dboost.cv(FRAME, "z", **CV | given | trial.params | {"max_iter": 27})
        if trial.state.name == "COMPLETE":
            assert (explicit.best_score, explicit.best_iteration) == (trial.value, trial.user_attrs["best_iteration"])
            n_stopped += explicit.n_iterations < 27
        else:
            assert explicit.n_iterations > trial.last_step
    assert n_stopped > 1


@pytest.mark.parametrize("n_before", [0, 1, 4, 9, 10, 12])
def test_a_halved_study_that_is_interrupted_makes_the_same_decisions(tmp_path: Path, n_before: int) -> None:
    options = HALVING | {"trials": 12}
    with counted() as n_undisturbed:
        expected = tune(FRAME, SPACE, **options)
    original = integration.cross_validate
    n_calls: list[int] = []

    def fails(*given: Any, **more: Any) -> Any:
        n_calls.append(1)
        if len(n_calls) > n_before:
            raise OSError("the network has gone")
        return original(*given, **more)

    with counted() as n_disturbed:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(integration, "cross_validate", fails)
            with pytest.raises(OSError, match="network"):
                tune(FRAME, SPACE, storage=tmp_path / "study", **options)
        assert not fold_threads()
        study = tune(FRAME, SPACE, storage=tmp_path / "study", **options)
    by_params = {str(trial.params): (trial.value, trial.state.name, stages(trial)) for trial in expected.trials}
    found = {str(one.params): (one.value, one.state.name, stages(one)) for one in study.trials if one.state.name != "FAIL"}
    assert found == by_params and study.best_params == expected.best_params
    # Only the trials that go on lost their models: at most three of the second and one of the last stage.
    assert len(n_disturbed) <= len(n_undisturbed) + 2 * (3 * 2 + 6)
    assert "RUNNING" not in states(study)
    n_trials = len(study.trials)
    assert len(tune(FRAME, SPACE, storage=tmp_path / "study", **options).trials) == n_trials, "nothing is left to do"
    with pytest.raises(dboost.ParameterError, match=r"a study with other settings \(halving\)"):
        tune(FRAME, SPACE, storage=tmp_path / "study", **options | {"halving": 2})


def test_the_time_and_a_callback_end_a_halved_study(tmp_path: Path) -> None:
    study = tune(FRAME, SPACE, trials=50, callbacks=[lambda study, trial: True], **HALVING)
    assert len(study.trials) == 9, "the bracket is finished"
    options = HALVING | {"max_iter": 9 * 10**5, "trials": 5, "storage": tmp_path / "study"}
    assert set(states(tune(FRAME, SPACE, time_limit="1s", **options))) == {"FAIL"}
    assert not fold_threads()


def test_a_trial_of_a_bracket_that_cannot_work(tmp_path: Path) -> None:
    space = {"max_leaf_nodes": CategoricalDistribution([3, 4, 5, 6, 7, 8, 1])}
    options = HALVING | {"storage": tmp_path / "study", "trials": 9, "random_state": 1}
    n_errors = 0
    for _ in range(10):
        try:
            study = tune(FRAME, space, **options)
            break
        except dboost.ParameterError as error:
            assert "max_leaf_nodes=1" in str(error)
            n_errors += 1
    failed = [trial for trial in study.trials if "error" in trial.user_attrs]
    assert n_errors > 0 and len(failed) == n_errors and all(trial.params["max_leaf_nodes"] == 1 for trial in failed)
    assert states(study).count("COMPLETE") == 1 and states(study).count("PRUNED") == 8 - n_errors


def test_pruned_trials_leave_nothing_on_a_cluster() -> None:
    here = tune(FRAME, SPACE, trials=4, pruner=After(3), **OPTIONS)
    with threads_cluster(2, 2) as client:
        lazy = dd.from_pandas(FRAME, npartitions=4)
        left: list[set[int]] = []

        def look(study: Any, trial: Any) -> None:
            left.append(set(client.run(held_fits).values()))

        study = tune(lazy, SPACE, trials=4, at_once=1, pruner=After(3), client=client, callbacks=[look], **OPTIONS)
        assert states(study) == ["COMPLETE", "PRUNED", "PRUNED", "PRUNED"]
        assert left == [{0}] * 4
        assert outcome(study) == outcome(here)
        halved = tune(lazy, SPACE, trials=9, client=client, callbacks=[look], **HALVING)
        assert left[4:] == [{0}] * 9 and outcome(halved) == outcome(tune(FRAME, SPACE, trials=9, **HALVING))
        several = tune(lazy, SPACE, trials=6, pruner=After(3), client=client, **OPTIONS)
        assert states(several).count("PRUNED") == 5
        assert set(client.run(held_fits).values()) == {0}
        assert client.run_on_scheduler(scheduler_plugin)["fits"] == 0
        with dboost.prepare(lazy, "z", features=FEATURES, client=client) as data:
            given = {name: value for name, value in OPTIONS.items() if name not in ("target", "features")}
            again = tune(data, SPACE, trials=4, at_once=1, pruner=After(3), **given)
            assert outcome(again) == outcome(here)
