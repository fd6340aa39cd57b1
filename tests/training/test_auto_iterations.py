"""``max_iter="auto"``: held-out rows decide on the number of iterations. Equality at all places: `test_conformance`."""

from __future__ import annotations

from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dboost
from dboost import DBoostClassifier, DBoostRegressor
from dboost.cli.arguments import parse

N = 1500
QUIET: dict[str, Any] = {"max_leaf_nodes": 8, "progress": False, "n_threads": 2}


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(rng.normal(size=(N, 4)), columns=list("abcd"))
    frame["y"] = frame["a"] * frame["b"] + np.sin(2 * frame["c"]) + rng.normal(size=N) * 0.5
    frame["kind"] = np.array(["no", "yes"], object)[(frame["y"] > 1.2).astype(int)]
    frame["who"] = np.arange(N) // 15
    return frame


def fit(frame: pd.DataFrame, target: str = "y", **options: Any) -> dboost.Booster:
    chosen = {} if "start_from" in options else {"features": list("abcd")}
    return dboost.fit(frame, target, **QUIET | chosen | options)


@pytest.fixture(scope="module")
def automatic(frame: pd.DataFrame) -> dboost.Booster:
    return fit(frame, max_iter="auto")


def test_auto_is_what_its_parts_are(frame: pd.DataFrame, automatic: dboost.Booster) -> None:
    parts = {"max_iter": 2000, "learning_rate": 0.05, "early_stopping_rounds": 50, "validation_fraction": 0.1}
    assert fit(frame, **parts).sha256 == automatic.sha256
    other = fit(frame, max_iter="auto", learning_rate=0.3, early_stopping_rounds=3, validation_fraction=0.2)
    parts |= {"learning_rate": 0.3, "early_stopping_rounds": 3, "validation_fraction": 0.2}
    assert other.sha256 == fit(frame, **parts).sha256
    assert other.sha256 != automatic.sha256


def test_it_stops_where_the_held_out_rows_do_best_and_says_so(automatic: dboost.Booster) -> None:
    scores = automatic.history["validation_squared_error"]
    best = int(scores.argmin()) + 1
    assert automatic.best_iteration == automatic.n_iter_ == best < len(scores) == best + 50
    said = f"early stopping: validation_rmse was best in iteration {best} of {best + 50}"
    assert automatic.history.attrs["ended_by"] == said
    assert said in repr(automatic)


def test_a_tenth_of_the_rows_is_held_out_and_not_trained_on(frame: pd.DataFrame, automatic: dboost.Booster) -> None:
    assert automatic.sources[0]["rows"] == N - N // 10
    # A model of the others that learns by heart does better on them.
    deep = fit(frame, max_iter=300, learning_rate=0.5, min_samples_leaf=1, validation_fraction=0.1)
    last = deep.history.iloc[-1]
    assert last["validation_squared_error"] > 5 * last["train_loss"]


def test_each_class_is_held_out_in_proportion_and_a_single_row_is_trained_on(frame: pd.DataFrame) -> None:
    target = frame["kind"].where(frame.index != 7, "rare")
    booster = fit(frame.assign(kind=target), "kind", max_iter=5, validation_fraction=0.2)
    counts = target.value_counts()
    assert booster.sources[0]["rows"] == N - round(counts["yes"] * 0.2) - round(counts["no"] * 0.2)
    assert list(booster.classes_) == ["no", "rare", "yes"]


def test_whole_groups_are_held_out(frame: pd.DataFrame) -> None:
    booster = fit(frame, max_iter=3, validation_fraction=0.3, group="who")
    n = booster.sources[0]["rows"]
    assert n % 15 == 0
    assert 0.5 * N < n < 0.9 * N


def test_an_evaluation_set_takes_the_place_of_held_out_rows(frame: pd.DataFrame) -> None:
    booster = fit(frame[:1000], max_iter="auto", eval_set=frame[1000:])
    assert booster.sources[0]["rows"] == 1000
    assert "eval_rmse was best" in booster.history.attrs["ended_by"]
    both = fit(frame[:1000], max_iter="auto", eval_set=frame[1000:], validation_fraction=0.1)
    assert {"eval_squared_error", "validation_squared_error"} <= set(both.history)
    assert "validation_rmse was best" in both.history.attrs["ended_by"]
    chosen = dboost.EarlyStopping(5, eval_set="eval")
    other = fit(frame[:1000], max_iter="auto", eval_set=frame[1000:], validation_fraction=0.1, early_stopping=chosen)
    assert "eval_rmse was best" in other.history.attrs["ended_by"]


def test_held_out_rows_are_evaluated_without_early_stopping_too(frame: pd.DataFrame) -> None:
    booster = fit(frame, max_iter=12, validation_fraction=100, eval_metric=["mae", "r2"])
    assert booster.n_iter_ == 12
    assert booster.best_iteration is None
    assert {"validation_mae", "validation_r2"} <= set(booster.history)
    assert booster.sources[0]["rows"] == N - 100
    assert booster.history.attrs["ended_by"] == "max_iter"


def test_refit_trains_as_many_iterations_on_all_rows(frame: pd.DataFrame, automatic: dboost.Booster) -> None:
    booster = fit(frame, max_iter="auto", refit=True)
    n = automatic.n_iter_
    assert booster.n_iter_ == booster.best_iteration == n
    assert booster.sources[0]["rows"] == N
    plain = fit(frame, max_iter=n, learning_rate=0.05)
    np.testing.assert_array_equal(booster.predict(frame), plain.predict(frame))
    one, other = (model.history.drop(columns="seconds") for model in (booster, automatic))
    pd.testing.assert_frame_equal(one, other)
    assert booster.history.attrs == automatic.history.attrs


def test_refit_of_a_continued_model_adds_as_many_iterations_as_were_kept(frame: pd.DataFrame) -> None:
    first = fit(frame[:700], max_iter=10)
    held = fit(frame[700:], start_from=first, max_iter="auto", early_stopping_rounds=5)
    booster = fit(frame[700:], start_from=first, max_iter="auto", early_stopping_rounds=5, refit=True)
    assert booster.n_iter_ == held.n_iter_ > 10
    assert booster.sources[-1]["rows"] == N - 700


TINY: dict[str, tuple[list[Any], str]] = {
    "one row": ([0.5], "1 of 1 row: none would be left to train on; give the number of iterations"),
    "two classes": ([0, 1], r"class has one row, which is trained on \(2 rows\): give the number of iterations"),
    "text": (["a", "b", "c", "d"], r"class has one row, which is trained on \(4 rows\)"),
    "ten classes": ([f"class {k}" for k in range(10)], r"class has one row, which is trained on \(10 rows\)"),
}


@pytest.mark.parametrize("kind", TINY)
@pytest.mark.parametrize(
    "options",
    [{"max_iter": "auto"}, {"max_iter": "auto", "refit": True}, {"validation_fraction": 0.2, "early_stopping_rounds": 2}],
)
def test_a_table_without_rows_to_hold_out(kind: str, options: dict[str, Any]) -> None:
    targets, message = TINY[kind]
    rows = pd.DataFrame({"x": np.arange(float(len(targets))), "y": targets})
    asked = "max_iter='auto'" if "max_iter" in options else "validation_fraction=0.2"
    for data in (rows, dd.from_pandas(rows, npartitions=2), dboost.prepare(rows, "y")):
        with pytest.raises(dboost.errors.ParameterError, match=f"^{asked} .*{message}"):
            dboost.fit(data, "y", progress=False, **options)


@pytest.mark.parametrize("counts", [(2, 1), (1, 2), (1, 1, 1, 1, 1, 1, 2), (1, 1, 3, 1)])
def test_a_row_is_held_out_where_a_class_has_two(counts: tuple[int, ...]) -> None:
    targets = np.repeat([f"class {code}" for code in range(len(counts))], counts)
    rows = pd.DataFrame({"x": np.arange(float(len(targets))), "y": targets})
    booster = dboost.fit(rows, "y", max_iter="auto", min_samples_leaf=1, progress=False)
    assert "validation_log_loss" in booster.history


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_iter": "automatic"}, "max_iter='automatic' must be an integer"),
        ({"validation_fraction": 1.5}, "validation_fraction=1.5 must be a part of the rows below 1, or a number of rows"),
        ({"validation_fraction": 0}, "validation_fraction=0 must be"),
        ({"validation_fraction": True}, "validation_fraction=True must be"),
        ({"validation_fraction": N}, f"holds out {N} of {N} rows: none would be left"),
        ({"refit": True}, "refit=True needs early stopping"),
        ({"refit": 1}, "refit=1 must be True or False"),
        ({"refit": True, "max_iter": "auto", "time_limit": 5}, "does not go together with time_limit"),
        ({"refit": True, "max_iter": "auto", "checkpoint": "never made"}, "does not go together with checkpoint"),
        ({"refit": True, "max_iter": "auto", "arcbites": True}, "does not go together with arcbites"),
        ({"max_iter": "auto", "early_stopping": dboost.EarlyStopping(3), "early_stopping_rounds": 2}, "two rules to stop by"),
    ],
)
def test_what_makes_no_sense_is_refused(
    frame: pd.DataFrame, options: dict[str, Any], message: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(dboost.errors.ParameterError, match=message):
        fit(frame, **options)


def test_a_checkpoint_of_other_held_out_rows_is_refused(frame: pd.DataFrame, tmp_path: Any) -> None:
    keeping: dict[str, Any] = {"checkpoint": tmp_path / "run", "checkpoint_every": 1, "max_iter": 3}
    fit(frame, validation_fraction=0.1, **keeping)
    with pytest.raises(dboost.errors.ParameterError, match=r"validation_fraction was 0\.1 then and is 0\.2 now"):
        fit(frame, validation_fraction=0.2, **keeping)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_iter": "auto", "early_stopping": False}, "stops early: leave early_stopping=False out"),
        ({"max_iter": "auto", "validation_fraction": None}, "needs validation rows"),
        ({"max_iter": "auto", "refit": True, "warm_start": True}, "does not go together with warm_start"),
        ({"early_stopping": False, "refit": True}, "refit=True needs early stopping"),
    ],
)
def test_estimators_refuse_what_makes_no_sense(frame: pd.DataFrame, options: dict[str, Any], message: str) -> None:
    with pytest.raises(dboost.errors.ParameterError, match=message):
        DBoostRegressor(**options).fit(frame[list("abcd")], frame["y"])


def test_folds_of_a_cross_validation_stop_together(frame: pd.DataFrame) -> None:
    result = dboost.cv(frame, "y", features=list("abcd"), folds=3, max_iter="auto", early_stopping_rounds=4, **QUIET)
    assert result.scores["iteration"].max() == result.best_iteration + 4
    assert result.boosters[0].ensemble.parameters["learning_rate"] == 0.05


def test_the_command_line_knows_auto(frame: pd.DataFrame, tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    frame[[*"abcd", "y"]].to_csv(tmp_path / "rows.csv", index=False)
    given = ["max_iter=auto", "early_stopping_rounds=3", "max_leaf_nodes=8"]
    keys = [word for one in given for word in ("--set", one)]
    arguments = parse(["train", str(tmp_path / "rows.csv"), "--target", "y", *keys, "--output", str(tmp_path / "model.json")])
    arguments.run(arguments)
    booster = dboost.load(tmp_path / "model.json")
    assert booster.best_iteration == booster.n_iter_ > 3
    assert "(the best of " in capsys.readouterr().out


@pytest.mark.parametrize("target", ["y", "kind", "rare"])
def test_an_estimator_holds_out_the_rows_of_a_fit_and_stops_where_it_stops(frame: pd.DataFrame, target: str) -> None:
    X, y = frame[list("abcd")], frame.assign(rare=frame["kind"].where(frame.index != 7, "rare"))[target]
    options: dict[str, Any] = {"random_state": 5, "max_leaf_nodes": 8, "max_iter": "auto", "n_threads": 2}
    if target == "y":
        y = y * 1e-5  # losses below the estimator's default of `tol`
    model = (DBoostRegressor if target == "y" else DBoostClassifier)(**options).fit(X, y).booster_
    booster = dboost.fit(X, y, progress=False, **options)
    assert booster.n_iter_ > 60
    pd.testing.assert_frame_equal(model.to_frame(), booster.to_frame())
    column = "validation_squared_error" if target == "y" else "validation_log_loss"
    assert model.history[column].tolist() == booster.history[column].tolist()
    refitted = [one.set_params(refit=True).fit(X, y).booster_ for one in [DBoostRegressor(**options)] if target == "y"]
    assert all(one == dboost.fit(X, y, refit=True, progress=False, **options) for one in refitted)
