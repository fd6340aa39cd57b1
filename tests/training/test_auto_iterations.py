"""``max_iter="auto"``: held-out rows decide on the number of iterations. Equality at all places: `test_conformance`.

Workers that are lost in either fit: `test_faults`.
"""

from __future__ import annotations

from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dboost
from dboost import DBoostClassifier, DBoostRegressor
from dboost.cli.arguments import parse
from dboost.model.ensemble import rates_of
from dboost.rows.row_sample import MEMBERS, derive_seed
from dboost.training.auto_iterations import RATE

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


#: What ``max_iter="auto"`` stands for: of the search, of the fit of all rows, and of one fit.
SEARCH: dict[str, Any] = {"learning_rate": 0.2, "early_stopping_rounds": 25, "validation_fraction": 0.2}
WHOLE: dict[str, Any] = {"learning_rate": RATE, "subsample": 0.8}
ONE_FIT: dict[str, Any] = {"learning_rate": 0.05, "early_stopping_rounds": 50, "validation_fraction": 0.1}


def searched(frame: pd.DataFrame, target: str = "y", **options: Any) -> dboost.Booster:
    """Fit with held-out rows on bins of all rows."""
    group = {"group": options.pop("group")} if "group" in options else {}
    with dboost.prepare(frame, target, features=list("abcd"), **group) as data:
        return dboost.fit(data, **QUIET | {"max_iter": 2000, "subsample": 0.8} | SEARCH | options)


@pytest.mark.parametrize(
    ("target", "options", "of_search", "ratio"),
    [
        ("y", {}, {}, 0.2 / RATE / 0.8),
        ("kind", {}, {}, 0.2 / RATE / 0.8),
        ("y", {"learning_rate": 0.1}, {}, 0.2 / 0.1 / 0.8),
        ("y", {"learning_rate": 0.3, "early_stopping_rounds": 3}, {"learning_rate": 0.3, "early_stopping_rounds": 3}, 1 / 0.8),
        ("y", {"validation_fraction": 0.5}, {"validation_fraction": 0.5}, 0.2 / RATE / 0.5),
        ("y", {"validation_fraction": 500}, {"validation_fraction": 500}, 0.2 / RATE * 1.5),
        ("y", {"subsample": 0.6, "random_state": 3}, {"subsample": 0.6, "random_state": 3}, 0.2 / RATE / 0.8),
        ("y", {"early_stopping": dboost.EarlyStopping(4, metric="mae"), "eval_metric": ["mae"]}, None, 0.2 / RATE / 0.8),
        ("y", {"group": "who"}, {"group": "who"}, 0.2 / RATE / 0.8),
    ],
)  # fmt: skip
def test_a_search_at_a_high_rate_finds_the_iterations_of_a_fit_of_all_rows(
    frame: pd.DataFrame, target: str, options: dict[str, Any], of_search: dict[str, Any] | None, ratio: float
) -> None:
    booster = fit(frame, target, max_iter="auto", **options)
    if of_search is None:
        of_search = {**options, "early_stopping_rounds": None}
    search = searched(frame, target, **of_search)
    n = search.n_iter_
    assert booster.best_iteration == n
    assert booster.n_iter_ == round(n * ratio)
    drop = ["seconds"]
    pd.testing.assert_frame_equal(booster.history.drop(columns=drop), search.history.drop(columns=drop))
    kept = {name: value for name, value in options.items() if name in ("learning_rate", "subsample", "random_state", "group")}
    plain = fit(frame, target, max_iter=booster.n_iter_, **WHOLE | kept)
    pd.testing.assert_frame_equal(booster.to_frame(), plain.to_frame())
    np.testing.assert_array_equal(booster.predict(frame), plain.predict(frame))
    rate = of_search.get("learning_rate", 0.2)
    record = {"iterations": n, "learning_rate": rate, "rows": search.sources[0]["rows"]}
    assert booster.sources[0] == plain.sources[0] | {"search": record | {"train_loss": plain.history["train_loss"].iloc[-1]}}


def test_it_says_what_happened(frame: pd.DataFrame, automatic: dboost.Booster) -> None:
    scores = automatic.history["validation_squared_error"]
    best = int(scores.argmin()) + 1
    assert automatic.best_iteration == best < len(scores) == best + 25
    said = (
        f"early stopping: validation_rmse was best in iteration {best} of {best + 25} at learning rate 0.2 with 300 of 1,500 "
        f"rows held out; then {automatic.n_iter_} iterations at {RATE} with all rows"
    )
    assert automatic.history.attrs["ended_by"] == said
    assert said in repr(automatic)
    assert list(automatic.timings) == ["load", "bin", "search", "train"]


#: What leaves one fit, beside "start_from".
ALONE: dict[str, dict[str, Any]] = {
    "refit=False": {"refit": False},
    "eval_set": {"eval_set": "frame"},
    "checkpoint": {"checkpoint": "run"},
    "time_limit": {"time_limit": "1h"},
    "arcbites": {"arcbites": dboost.ArcBites(2, 3, 2)},
    "a schedule": {"learning_rate": [0.3] * 40},
    "a function": {"learning_rate": lambda k: 0.3 / (k + 1)},
}


@pytest.mark.parametrize("name", ALONE)
def test_one_fit_where_a_search_would_be_in_the_way(frame: pd.DataFrame, tmp_path: Any, name: str) -> None:
    options = {"early_stopping_rounds": 6} | ALONE[name]
    if "eval_set" in options:
        options["eval_set"] = frame[:300]
    folders = iter((tmp_path / "first", tmp_path / "second"))

    def given() -> dict[str, Any]:
        return options | ({"checkpoint": next(folders)} if "checkpoint" in options else {})

    booster = fit(frame, max_iter="auto", **given())
    parts = {"max_iter": 2000, "subsample": 0.8} | ONE_FIT | given()
    if isinstance(options.get("learning_rate"), list):
        parts["max_iter"] = 40
    if "eval_set" in options:
        parts["validation_fraction"] = None
    assert booster.sha256 == fit(frame, **parts | {"refit": False}).sha256
    assert booster.n_iter_ == booster.best_iteration
    assert booster.ensemble.search is None


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


def test_refit_trains_as_many_iterations_on_all_rows(frame: pd.DataFrame) -> None:
    how: dict[str, Any] = {"max_iter": 300, "learning_rate": 0.3, "early_stopping_rounds": 5, "validation_fraction": 0.2}
    booster, search = fit(frame, **how, refit=True), searched(frame, **how, subsample=1.0)
    n = search.n_iter_
    assert booster.n_iter_ == booster.best_iteration == n < 300
    assert booster.sources[0]["rows"] == N
    plain = fit(frame, max_iter=n, learning_rate=0.3)
    np.testing.assert_array_equal(booster.predict(frame), plain.predict(frame))
    one, other = (model.history.drop(columns="seconds") for model in (booster, search))
    pd.testing.assert_frame_equal(one, other)
    assert booster.history.attrs["ended_by"].endswith(f"then {n} iterations at 0.3 with all rows")


def test_callbacks_see_both_fits(frame: pd.DataFrame) -> None:
    seen: list[tuple[int, int, float]] = []

    def watch(now: dboost.Iteration) -> bool:
        seen.append((now.iteration, now.n_iterations, now.record["validation_squared_error"]))
        return False

    booster = fit(frame, max_iter="auto", early_stopping_rounds=3, callbacks=[watch])
    n_search = len(booster.history)
    assert [iteration for iteration, *_ in seen] == [*range(1, n_search + 1), *range(1, booster.n_iter_ + 1)]
    assert [score for *_, score in seen[:n_search]] == booster.history["validation_squared_error"].tolist()
    assert np.isnan([score for *_, score in seen[n_search:]]).all()
    assert {n for _, n, _ in seen[n_search:]} == {booster.n_iter_}
    assert booster == fit(frame, max_iter="auto", early_stopping_rounds=3)


@pytest.mark.parametrize("part", ["search", "all rows"])
def test_a_callback_may_end_either_fit(frame: pd.DataFrame, part: str) -> None:
    def stop(now: dboost.Iteration) -> bool:
        return now.iteration == 7 and np.isnan(now.record["validation_squared_error"]) == (part == "all rows")

    booster = fit(frame, max_iter="auto", early_stopping_rounds=3, callbacks=[stop])
    said = booster.history.attrs["ended_by"]
    if part == "search":
        assert len(booster.history) == 7
        assert booster.n_iter_ == round(booster.best_iteration * 0.2 / RATE / 0.8)
        assert said.startswith("a callback at learning rate 0.2")
    else:
        assert booster.n_iter_ == 7
        assert said.endswith(f"then 7 iterations at {RATE} with all rows, ended by a callback")


def test_observers_see_one_fit(frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Observer:
        def __init__(self, plan: Any) -> None:
            calls.append("begun")

        def __call__(self, now: dboost.Iteration) -> None:
            calls.append(now.iteration)

        def end(self, result: Any) -> None:
            calls.append(None if result is None else result.ensemble.n_iterations)

    monkeypatch.setattr("dboost.training.fit.OBSERVERS", [Observer])
    booster = fit(frame, max_iter="auto", early_stopping_rounds=3)
    assert calls == ["begun", *booster.history["iteration"], booster.n_iter_]
    calls.clear()

    def fail(now: dboost.Iteration) -> None:
        if np.isnan(now.record["validation_squared_error"]):
            raise KeyError("in the fit of all rows")

    with pytest.raises(KeyError):
        fit(frame, max_iter="auto", early_stopping_rounds=3, callbacks=[fail])
    assert calls[-1] is None


def test_models_that_derive_from_a_searched_one(frame: pd.DataFrame, automatic: dboost.Booster, tmp_path: Any) -> None:
    automatic.save(tmp_path / "model.json")
    loaded = dboost.load(tmp_path / "model.json")
    assert loaded == automatic
    columns = ["iteration", "train_loss", "validation_squared_error"]
    pd.testing.assert_frame_equal(loaded.history[columns], automatic.history[columns])
    assert loaded.truncate(loaded.n_iter_) == automatic
    shorter = automatic.truncate(20)
    plain = fit(frame, max_iter=20, **WHOLE)
    np.testing.assert_array_equal(shorter.predict(frame), plain.predict(frame))
    assert shorter.ensemble.search is None and shorter.best_iteration is None and not len(shorter.history)
    later = fit(frame[:500], start_from=automatic, max_iter=3)
    assert later.n_iter_ == automatic.n_iter_ + 3
    assert later.history["iteration"].tolist() == [automatic.n_iter_ + k for k in (1, 2, 3)]
    assert dboost.load(later.save(tmp_path / "later.json") or tmp_path / "later.json").history["train_loss"].count() == 3
    assert automatic.refit_leaves(frame, "y").ensemble.search is None
    with pytest.warns(UserWarning, match="the rows that the model was trained on"):
        loaded.calibrate(frame, "y")
    hidden = fit(frame, max_iter="auto", early_stopping_rounds=3, keep_summary=False)
    assert hidden.ensemble.search is not None and hidden.ensemble.search["rows"] is None


@pytest.mark.parametrize("proposal", ["exact", "tree", "node"])
def test_both_fits_have_the_bins_of_every_proposal(frame: pd.DataFrame, proposal: str) -> None:
    how: dict[str, Any] = {"split_proposal": proposal} | ({} if proposal == "exact" else {"max_bins": 20})
    booster = fit(frame, max_iter="auto", early_stopping_rounds=3, **how)
    plain = fit(frame, max_iter=booster.n_iter_, **WHOLE | how)
    np.testing.assert_array_equal(booster.predict(frame), plain.predict(frame))


def test_the_rows_are_read_once(frame: pd.DataFrame) -> None:
    batches = iter(pa.Table.from_pandas(frame).to_batches(max_chunksize=400))
    stream = pa.RecordBatchReader.from_batches(pa.Table.from_pandas(frame).schema, batches)
    assert fit(stream, max_iter="auto", early_stopping_rounds=3) == fit(frame, max_iter="auto", early_stopping_rounds=3)


def test_progress_shows_two_fits_as_one(frame: pd.DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    booster = fit(frame, max_iter="auto", early_stopping_rounds=3, progress=True)
    shown = capsys.readouterr().err.splitlines()
    searching = [line for line in shown if line.startswith("search, iteration ")]
    assert searching == shown[: len(searching)] and len(searching) == 1 + len(booster.history) // 25
    assert (
        shown[len(searching)]
        == f"the search has kept {booster.best_iteration} iterations: training {booster.n_iter_} with all rows"
    )
    assert shown[-1].startswith(f"iteration {booster.n_iter_}/{booster.n_iter_}: train_rmse")


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
        *(
            ({"max_iter": "auto", "learning_rate": rate}, f"learning_rate={rate!r} must be")
            for rate in (0, 0.0, -0.1, float("nan"), float("inf"), True)
        ),
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
        *(({"max_iter": "auto", "bag": bag}, f"bag={bag!r} must be a number of fits") for bag in (0, -1, True, 1.5, None)),
        ({"bag": 2}, "bag=2 averages fits of all rows, after a search"),
        ({"bag": 2, "max_iter": "auto", "refit": False}, "bag=2 averages fits of all rows, after a search"),
        ({"bag": 2, "max_iter": "auto", "subsample": 1}, "bag=2 would average equal fits"),
        ({"bag": 2, "boosting": "forest"}, "a forest averages its trees already"),
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
        ({"max_iter": "auto", "bag": 2, "warm_start": True}, "bag=2 averages fits of all rows, after a search"),
        ({"early_stopping": False, "refit": True}, "refit=True needs early stopping"),
    ],
)
def test_estimators_refuse_what_makes_no_sense(frame: pd.DataFrame, options: dict[str, Any], message: str) -> None:
    with pytest.raises(dboost.errors.ParameterError, match=message):
        DBoostRegressor(**options).fit(frame[list("abcd")], frame["y"])


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("y", {}),
        ("kind", {"keep_summary": False}),
        ("y", {"refit": True, "max_iter": 12, "validation_fraction": 0.3, "early_stopping_rounds": 3, "max_features": 0.5}),
        ("y", {"loss": "normal"}),
    ],
)
def test_a_bag_is_one_model_with_the_mean_of_the_raw_scores_of_its_fits(
    frame: pd.DataFrame, target: str, options: dict[str, Any], tmp_path: Any
) -> None:
    how = {"max_iter": "auto", "early_stopping_rounds": 3} | options
    bag, single = fit(frame, target, bag=3, **how), fit(frame, target, **how)
    pd.testing.assert_frame_equal(bag.history.drop(columns="seconds"), single.history.drop(columns="seconds"))
    m, of_all = single.n_iter_, single.sources[0]["parameters"]
    assert bag.n_iter_ == 3 * m
    names = "learning_rate", "subsample", "max_features"
    learning = {name: of_all[name] for name in names} | {"loss": of_all["loss"]}
    seeds = [0] + [derive_seed(0, MEMBERS, number) >> 1 for number in (1, 2)]
    members = [fit(frame, target, max_iter=m, random_state=seed, **learning) for seed in seeds]

    def raw(booster: dboost.Booster) -> np.ndarray:
        return np.asarray(booster.predict(frame, raw_score=True))

    assert np.ptp([raw(member) for member in members], axis=0).max() > 0.01
    np.testing.assert_allclose(raw(bag), np.mean([raw(member) for member in members], axis=0), atol=1e-12)
    start = np.mean([raw(member.truncate(m // 2)) for member in members], axis=0)
    np.testing.assert_allclose(raw(bag.truncate(m // 2 * 3)), start, atol=1e-12)
    bag.save(tmp_path / "bag.json")
    assert dboost.load(tmp_path / "bag.json") == bag
    source = bag.sources[0]
    assert source["bag"] == 3
    assert source["parameters"]["random_state"] == 0
    assert "the mean of 3 fits" in bag.history.attrs["ended_by"]
    if bag.ensemble.sources[0].get("summary"):
        assert bag.drift(frame)["psi"].max() < 0.02  # the scores of the summary are those of the bag
    else:
        assert options == {"keep_summary": False}


def test_the_rate_of_a_bag_follows_its_fits(frame: pd.DataFrame) -> None:
    """A fit that continues it, and a leaf refit, treat it as boosted with a third of the rate."""
    bag = fit(frame, max_iter="auto", early_stopping_rounds=3, bag=3)
    assert rates_of(bag.ensemble.sources[0]) == [RATE / 3] * bag.n_iter_
    continued = fit(frame, start_from=bag, max_iter=2, learning_rate=RATE)
    assert [source.get("bag") for source in continued.sources] == [3, None]
    loss = {
        name: float(np.mean((b.predict(frame) - frame["y"]) ** 2))
        for name, b in (("bag", bag), ("new", bag.refit_leaves(frame, "y")))
    }
    assert abs(loss["new"] - loss["bag"]) < 0.1 * loss["bag"]
    with pytest.raises(dboost.errors.ParameterError, match="bag=2 does not go together with a model to continue"):
        fit(frame, start_from=bag, max_iter="auto", bag=2)


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
    assert booster.n_iter_ == round(booster.best_iteration * 0.2 / RATE / 0.8)
    expected = (
        f"{booster.n_iter_} iterations on all rows, after a search that was best in iteration {booster.best_iteration} of "
    )
    assert expected in capsys.readouterr().out


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
    bag = (DBoostRegressor if target == "y" else DBoostClassifier)(bag=2, **options).fit(X, y).booster_
    pd.testing.assert_frame_equal(bag.to_frame(), dboost.fit(X, y, bag=2, progress=False, **options).to_frame())
