"""The commands `prepare`, `cv` and `tune`."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyarrow import csv
from sklearn.model_selection import TimeSeriesSplit

import dboost
from dboost import cross_validation
from dboost.cli import main
from dboost.cli.arguments import literal
from dboost.display import with_spread
from tests.helpers.clusters import ROOT, Processes, held_fits, scheduler_plugin, until

optuna = pytest.importorskip("optuna", reason="optuna is not installed (dboost[optuna])")
from dboost.cli import tune_command  # noqa: E402
from dboost.cli.tune_command import as_set  # noqa: E402

RNG = np.random.default_rng(0)
N = 600


def a_frame() -> pd.DataFrame:
    frame = pd.DataFrame(RNG.normal(size=(N, 3)), columns=list("abc"))
    frame["kind"] = RNG.choice(["one", "two", "three"], N)
    frame["w"] = RNG.integers(0, 3, N).astype(np.float64)
    score = frame["a"] * frame["b"] + (frame["kind"] == "one") + 0.5 * RNG.normal(size=N)
    frame["y"], frame["z"] = score, (score > 0.3).astype(np.int64)
    return frame


FRAME = a_frame()
FEATURES = ["a", "b", "c", "kind"]
NAMED = "features=[a, b, c, kind]"
SMALL = ["--set", "max_leaf_nodes=8", "--set", NAMED]


def with_defaults(arguments: tuple[str, ...], defaults: dict[str, str]) -> list[str]:
    """Return the arguments with options that they lack: an option with a value may be given once."""
    return [*arguments, *(f"{option}={value}" for option, value in defaults.items() if option not in arguments)]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with the file rows.parquet, which is the current one."""
    monkeypatch.chdir(tmp_path)
    FRAME.to_parquet("rows.parquet")
    return tmp_path


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the message of a command with invalid arguments."""
    capsys.readouterr()
    assert main(arguments) == 2
    return capsys.readouterr().err


# prepare


def test_a_model_of_prepared_rows_is_that_of_the_table(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    roles = ["--set", NAMED, "--set", "sample_weight=w"]
    assert main(["prepare", "rows.parquet", "--target", "z", "--output", "prepared", *roles, "--memory-limit", "1GiB"]) == 0
    assert capsys.readouterr().out == f"{(FRAME['w'] > 0).sum()} rows and 4 features, prepared in prepared\n"
    options = ["--set", "max_iter=5", "--set", "max_leaf_nodes=8", "--quiet", "--output"]
    assert main(["train", "prepared", *options, "one.json"]) == 0
    assert main(["train", "prepared", "--target", "z", *options, "other.json"]) == 0
    assert main(["train", "rows.parquet", "--target", "z", *roles, *options, "table.json"]) == 0
    assert Path("one.json").read_bytes() == Path("other.json").read_bytes() == Path("table.json").read_bytes()


def test_options_shape_the_prepared_rows(here: Path) -> None:
    Path("options.toml").write_text('sample_weight = "w"\nmax_bins = 9\n')
    assert main(["prepare", "rows.parquet", "--target", "y", "--output", "p", "--params", "options.toml", "--set", NAMED]) == 0
    data = dboost.Dataset("p")
    assert (data.target, data.max_bins, list(data.feature_names_in_)) == ("y", 9, FEATURES)
    assert data.settings["sample_weight"] == "w"
    assert main(["prepare", "rows.parquet", "--target", "z", "--output", "p"]) == 0
    assert dboost.Dataset("p").target == "z", "prepared data are replaced"


def test_what_does_not_fit_prepared_rows(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with dboost.prepare(FRAME, "z", "prepared"):
        pass
    assert "--target y is not that of the prepared data in prepared, which is z" in complaint(
        capsys, "train", "prepared", "--target", "y"
    )
    assert "--target is missing: rows.parquet is no folder" in complaint(capsys, "train", "rows.parquet")
    assert "--workers: prepared holds prepared data" in complaint(capsys, "train", "prepared", "--workers", "2")
    assert "--only-new looks for new files of a table" in complaint(capsys, "train", "prepared", "--only-new")
    prepare = ["prepare", "rows.parquet", "--target", "z", "--output"]
    assert "rows.parquet is there already and holds no prepared data" in complaint(capsys, *prepare, "rows.parquet")
    assert "unknown parameter 'max_binz' in --set; did you mean max_bins" in complaint(
        capsys, *prepare, "p", "--set", "max_binz=3"
    )
    assert "'publish' cannot be set in --set: it keeps data on a cluster" in complaint(
        capsys, *prepare, "p", "--set", "publish=x"
    )
    assert not Path("p").exists()


# cv


def test_cv_prints_and_writes_what_the_function_returns(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--set", "max_iter=60", "--set", "learning_rate=0.5", "--set", "early_stopping_rounds=3", *SMALL]
    command = ["cv", "rows.parquet", "--target", "z", "--folds", "3", "--set", "eval_metric=[auc, log_loss]", *options]
    assert main([*command, "--output", "scores.parquet", "--predictions", "p.parquet"]) == 0
    said = capsys.readouterr()
    expected = dboost.cv(
        FRAME,
        "z",
        folds=3,
        features=FEATURES,
        eval_metric=["auc", "log_loss"],
        max_leaf_nodes=8,
        max_iter=60,
        learning_rate=0.5,
        early_stopping_rounds=3,
        progress=False,
    )
    last = expected.scores["iteration"].max()
    assert f"3 folds, {last} iterations; the best mean log_loss is in {expected.best_iteration}" in said.out
    for name in ("auc", "log_loss", "train_loss"):
        (line,) = (line for line in said.out.splitlines() if f" {name} " in line and "│" in line)
        _, metric, iteration, mean, each, _ = (cell.strip() for cell in line.split("│"))
        at = expected.scores.query("iteration == @expected.best_iteration and metric == @name")["value"]
        assert (metric, iteration) == (name, str(expected.best_iteration))
        assert [float(value) for value in each.split()] == pytest.approx(at.tolist(), rel=1e-4)
        assert mean == with_spread(at.mean(), at.std(ddof=0))
        assert float(mean.split(" ± ")[1]) == pytest.approx(at.std(ddof=0), rel=0.1)
    assert "iteration 1/60: validation_auc" in said.err, "the means are shown while it runs"
    pd.testing.assert_frame_equal(pd.read_parquet("scores.parquet"), expected.scores)
    predictions = pd.read_parquet("p.parquet")
    assert list(predictions.columns) == ["probability_0", "probability_1"]
    np.testing.assert_array_equal(predictions.to_numpy(), expected.predictions)
    assert main([*command, "--output", "scores.json", "--quiet"]) == 0
    quiet = capsys.readouterr()
    std = expected.scores.query("iteration == @expected.best_iteration and metric == 'log_loss'")["value"].std(ddof=0)
    best = f"log_loss {with_spread(expected.best_score, std)} in iteration {expected.best_iteration}\n"
    assert (quiet.out, quiet.err) == (best, "")
    stored = json.loads(Path("scores.json").read_text())
    assert (stored["metric"], stored["best_iteration"], stored["best_score"]) == (
        "log_loss",
        expected.best_iteration,
        expected.best_score,
    )
    pd.testing.assert_frame_equal(pd.DataFrame(stored["scores"]), expected.scores)
    pd.testing.assert_frame_equal(pd.DataFrame(stored["summary"]), expected.summary)


def test_cv_of_prepared_rows(here: Path) -> None:
    with dboost.prepare(FRAME, "y", "prepared", features=FEATURES, sample_weight="w") as data:
        expected = dboost.cv(data, max_iter=4, progress=False)
    command = ["cv", "prepared", "--set", "max_iter=4", "--quiet", "--output", "scores.csv", "--predictions", "p.csv"]
    assert main(command) == 0
    pd.testing.assert_frame_equal(csv.read_csv("scores.csv").to_pandas(), expected.scores, check_exact=True)
    found = csv.read_csv("p.csv")["prediction"].to_numpy()
    assert len(found) == (FRAME["w"] > 0).sum()
    np.testing.assert_array_equal(found, expected.predictions)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--folds", "1"), "folds=1 must be at least 2"),
        (("--set", "folds=3"), "'folds' cannot be set in --set: use --folds"),
        (("--set", "groups=a"), "'groups' cannot be set in --set: use --groups"),
        (("--set", "init_model=m.json"), "'init_model' cannot be set in --set: results of dboost.cv can only be continued in"),
        (("--folds", "column:q"), "the data have no column 'q', which was given as folds"),
        (("--folds", "column:kind", "--groups", "a"), "--groups needs a number of folds, not --folds column:kind"),
        (("--folds", "ordered:3", "--repeats", "2"), "--repeats needs a number of folds, not --folds ordered:3"),
        (("--folds", "ordered:1"), "--folds ordered:1: at least two folds are needed"),
        (("--groups", "kind"), "folds=5 is more than the 3 groups"),
        (("--set", "eval_set=a"), "unknown parameter 'eval_set' in --set"),
        (("--set", "max_leaf_node=3"), "did you mean max_leaf_nodes"),
        (("--output", "scores.txt"), "--output scores.txt: the name must end in .csv or .parquet or .json"),
        (("--predictions", "p.json"), "--predictions p.json: the name must end in .csv or .parquet"),
        (("--output", "nowhere/s.csv"), "there is no folder"),
        (("--target", "q"), "the data have no column 'q'"),
    ],
)
def test_what_cv_cannot_use(here: Path, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(capsys, "cv", "rows.parquet", *with_defaults(arguments, {"--target": "z"}))
    assert message in said and said.count("\n") == 1
    assert [path.name for path in here.iterdir()] == ["rows.parquet"]


@pytest.mark.fast_cells(2)
@pytest.mark.parametrize(
    ("options", "keywords"),
    [
        (["--folds", "column:kind"], {"folds": "kind"}),
        (["--folds", "ordered:3"], {"folds": TimeSeriesSplit(3)}),
        (["--folds", "2", "--groups", "kind"], {"folds": 2, "groups": "kind"}),
        (["--folds", "3", "--time-column", "c"], {"folds": 3, "time": "c"}),
        (["--folds", "2", "--repeats", "2"], {"folds": 2, "repeats": 2}),
    ],
)
def test_folds_of_every_kind(here: Path, options: list[str], keywords: dict[str, Any]) -> None:
    command = ["cv", "rows.parquet", "--target", "y", "--set", "max_iter=3", "--output", "scores.parquet", "--quiet"]
    assert main([*command, *options]) == 0
    expected = dboost.cv(FRAME, "y", max_iter=3, progress=False, **keywords)
    pd.testing.assert_frame_equal(pd.read_parquet("scores.parquet"), expected.scores, check_exact=True)


@pytest.mark.parametrize(("given", "status"), [("0", 2), ("x", 2), ("column:", 2), ("rows:3", 2), ("ordered:x", 2)])
def test_folds_that_cannot_be_read(here: Path, given: str, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["cv", "rows.parquet", "--target", "y", "--folds", given])
    assert stopped.value.code == status
    assert f"argument --folds: '{given}' is not N, column:NAME or ordered:N" in capsys.readouterr().err


def test_warnings_are_one_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    days = [f"2024-01-{number % 28 + 1:02d}" for number in range(N)]
    FRAME.assign(day=days).to_parquet("days.parquet")
    assert main(["cv", "days.parquet", "--target", "y", "--folds", "2", "--set", "max_iter=2", "--quiet"]) == 0
    assert re.fullmatch(r"dboost: column 'day' holds text and is categorical: .*\n", capsys.readouterr().err)


def test_prepared_rows_have_no_other_columns(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with dboost.prepare(FRAME, "y", "prepared"):
        pass
    for option, value in (("--folds", "column:kind"), ("--groups", "kind"), ("--time-column", "kind")):
        said = complaint(capsys, "cv", "prepared", option, value)
        assert f"{option}: prepared holds prepared data, without the column 'kind': give the table" in said


@pytest.mark.slow
def test_cv_on_a_cluster(here: Path) -> None:
    command = ["cv", "rows.parquet", "--target", "z", "--folds", "2", "--set", "max_iter=3", *SMALL, "--quiet"]
    assert main([*command, "--output", "here.csv"]) == 0
    with Processes(2) as processes:
        assert main([*command, "--output", "there.csv", "--scheduler", processes.address]) == 0
    assert Path("here.csv").read_bytes() == Path("there.csv").read_bytes()


# tune


INTS, FLOATS, CHOICES = (
    optuna.distributions.IntDistribution,
    optuna.distributions.FloatDistribution,
    optuna.distributions.CategoricalDistribution,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8..128", INTS(8, 128)),
        ("-1..1", INTS(-1, 1)),
        ("0.5..2", FLOATS(0.5, 2.0)),
        ("1e-3..1", FLOATS(0.001, 1.0)),
        ("log:0.01..0.3", FLOATS(0.01, 0.3, log=True)),
        ("log: 1 .. 64", INTS(1, 64, log=True)),
        ("best_first,depth_wise", CHOICES(["best_first", "depth_wise"])),
        ("0.5, 1, none", CHOICES([0.5, 1, None])),
        ("true,false", CHOICES([True, False])),
        ("0.1", None),
        ("huber", None),
        ("[a, b]", None),
        ('"a,b"', None),
        ("{a = 1, b = -1}", None),
    ],
)
def test_values_that_are_searched(text: str, expected: Any) -> None:
    assert tune_command.distribution(text) == expected


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("learning_rate=0.3..0.1", "--set learning_rate=0.3..0.1: 0.3 is not below 0.1"),
        ("learning_rate=log:0..1", "--set learning_rate=log:0..1: a range with log: begins above 0, not at 0"),
        ("learning_rate=log:0..1", "--set learning_rate=log:0..1: "),
        ("max_iter=10..", "--set max_iter=10..: a range is LOW..HIGH or log:LOW..HIGH, with two numbers"),
        ("max_iter=a..b", "--set max_iter=a..b: a range is"),
        ("max_iter=log:10", "--set max_iter=log:10: a range is"),
        ("max_iter=true..3", "--set max_iter=true..3: a range is"),
        ("growth=best_first,,depth_wise", "--set growth=best_first,,depth_wise: a list of choices is"),
        ("growth=a,b,a", "--set growth=a,b,a: a list of choices is"),
        ("max_leaf_node=3..9", "unknown parameter 'max_leaf_node' in --set; did you mean max_leaf_nodes"),
        ("max_bins=3..9", "'max_bins' cannot be set in --set: the data are binned once"),
        ("eval_metric=auc", "'eval_metric' cannot be set in --set: use --metric"),
        ("max_iter", "--set takes key=value"),
        ("grow_policy=lossguide,depthwise", "growth is given twice"),
    ],
)
def test_the_assignment_that_cannot_be_searched_is_named(
    here: Path, assignment: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["tune", "rows.parquet", "--target", "z", "--output", "study", "--set", "growth=best_first"]
    said = complaint(capsys, *command, "--set", assignment)
    assert message in said and said.count("\n") == 1
    assert not Path("study").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing is searched: give a range, for example --set learning_rate=log:0.01..0.3"),
        (("--set", "max_iter=2..3", "--output", "nowhere/study"), "there is no folder nowhere"),
        (("--set", "max_iter=2..3", "--output", "nowhere/"), "there is no folder nowhere/"),
        (("--set", "max_iter=2..3", "--output", "s3://bucket/study"), "a study is kept in a local file"),
        (("--set", "max_iter=2..3", "--output", "rows.parquet"), "--output rows.parquet is also that of DATA"),
        (("--set", "max_iter=2..3", "--metric", "r2"), "eval_metric 'r2' does not go with loss 'log_loss'"),
        (("--set", "max_iter=2..3", "--time-limit", "soon"), "time_limit='soon' must be a positive number"),
        (("--set", "max_iter=2..3", "--target", "q"), "the data have no column 'q'"),
        (("--set", "loss=log_loss,exponential"), "the loss is searched, so it cannot be the metric"),
        (("--set", "max_leaf_nodes=2..3", "--set", "learning_rate=-1"), "learning_rate"),
    ],
)
def test_what_tune_cannot_use(here: Path, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = Path("rows.parquet").read_bytes()
    said = complaint(capsys, "tune", "rows.parquet", *with_defaults(arguments, {"--target": "z", "--output": "study"}))
    assert message in said and said.splitlines()[-1].count(message) == 1
    assert Path("rows.parquet").read_bytes() == before
    assert not Path("study").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--plot", "p.svg"), "--plot is gone: open the study of --output with optuna.visualization"),
        (("--halving", "3"), "--halving is gone: use --pruner halving"),
        (("--min-iterations", "3"), "--min-iterations is gone: use --pruner halving"),
        (("--at-once=3",), "--at-once is gone: its trials run one after another"),
        (("--pruner", "best"), "argument --pruner: invalid choice: 'best'"),
    ],
)
def test_options_of_earlier_versions(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["tune", "rows.parquet", "--target", "z", "--output", "study", "--set", "max_iter=2..3", *arguments])
    assert stopped.value.code == 2 and message in capsys.readouterr().err


TUNE = ["tune", "rows.parquet", "--target", "z", "--folds", "2", "--metric", "auc", "--set", NAMED, "--set", "max_iter=20"]
TUNE += ["--set", "learning_rate=log:0.05..0.5", "--set", "max_leaf_nodes=2..8", "--set", "growth=best_first,depth_wise"]


def study_in(path: str) -> optuna.Study:
    return optuna.load_study(study_name="dboost", storage=f"sqlite:///{path}")


def n_begun(path: str) -> int:
    """Return the number of trials that another process has begun."""
    try:
        return len(study_in(path).trials)
    except Exception:  # it makes the file just now
        return 0


def test_tune_prints_the_best_trials_and_a_command_that_trains(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [*TUNE, "--set", "early_stopping_rounds=5", "--output", "study", "--trials", "8"]
    assert main([*command, "--time-limit", "1h"]) == 0
    said = capsys.readouterr()
    study = study_in("study")
    best = study.best_trial
    assert len(study.trials) == 8 and study.direction == optuna.study.StudyDirection.MAXIMIZE
    assert len(said.err.splitlines()) == 8
    assert f"best auc {best.value:.6g} of trial {best.number}" in said.err.splitlines()[-1]
    counts, train = said.out.splitlines()
    assert counts == f"8 trials, best auc {best.value:.6g} of trial {best.number}; the study is in study"

    # The printed command trains with the parameters and the number of iterations that gave the best score.
    assert main([*shlex.split(train)[1:], "--output", "model.json", "--quiet"]) == 0
    fixed: dict[str, Any] = {"features": FEATURES, "max_iter": best.user_attrs["best_iteration"], "progress": False}
    assert dboost.load("model.json") == dboost.fit(FRAME, "z", **fixed, **best.params)
    again = dboost.cv(
        FRAME, "z", folds=2, eval_metric="auc", early_stopping_rounds=5, **fixed | {"max_iter": 20}, **best.params
    )
    assert (again.best_score, again.best_iteration) == (best.value, best.user_attrs["best_iteration"])

    assert main([*command[:-1], "9", "--quiet"]) == 0, "the study continues"
    said = capsys.readouterr()
    assert said.err == "" and said.out.startswith("dboost train ") and said.out.count("\n") == 1
    assert len(study_in("study").trials) == 9
    assert "study has a study with other settings (learning_rate)" in complaint(
        capsys, *command, "--set", "learning_rate=0.1..0.2"
    )


def test_tune_on_prepared_rows_into_a_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with dboost.prepare(FRAME, "y", "prepared", features=FEATURES):
        pass
    Path("studies").mkdir()
    Path("fixed.toml").write_text("max_iter = 3\nlearning_rate = 0.2\n")
    command = ["tune", "prepared", "--folds", "2", "--trials", "2", "--output", "studies", "--params", "fixed.toml"]
    assert main([*command, "--set", "learning_rate=0.1,0.3", "--set", "max_leaf_nodes=8"]) == 0
    assert Path("studies/study.db").is_file()
    train = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch("dboost train prepared --set max_iter=3 --set max_leaf_nodes=8 --set learning_rate=0.[13]", train)
    assert main([*shlex.split(train)[1:], "--quiet"]) == 0


def test_the_printed_command_leaves_out_the_columns_that_divide_the_rows(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["tune", "rows.parquet", "--target", "z", "--folds", "2", "--groups", "kind", "--trials", "2", "--output", "s"]
    assert main([*command, "--set", "max_leaf_nodes=4..8", "--set", "max_iter=3", "--quiet"]) == 0
    train = shlex.split(capsys.readouterr().out)
    assert 'features=["a", "b", "c", "w", "y"]' in train
    assert main([*train[1:], "--output", "model.json", "--quiet"]) == 0
    best = study_in("s").best_trial
    found = dboost.cv(FRAME, "z", folds=2, groups="kind", max_iter=3, progress=False, **best.params)
    assert found.best_score == best.value


@pytest.mark.slow
@pytest.mark.parametrize(("pruner", "steps"), [("halving", {2, 6, 18, 20}), ("hyperband", {2, 6, 18, 20}), ("none", {20})])
def test_pruners_of_optuna(here: Path, pruner: str, steps: set[int], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TUNE, "--output", "study", "--trials", "9", "--pruner", pruner]) == 0
    trials = study_in("study").trials
    assert {trial.last_step for trial in trials} <= steps
    pruned = [trial for trial in trials if trial.state.name == "PRUNED"]
    assert bool(pruned) == (pruner != "none")
    said = capsys.readouterr().err
    for trial in pruned:
        assert f"trial {trial.number}: pruned after iteration {trial.last_step}; best auc" in said
    assert "a study with other settings (--pruner)" in complaint(capsys, *TUNE, "--output", "study", "--trials", "9")


def test_the_rows_are_read_once_for_all_trials(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    prepare = cross_validation.prepare

    def counted(*given: Any, **options: Any) -> dboost.Dataset:
        calls.append(given)
        return prepare(*given, **options)

    monkeypatch.setattr(cross_validation, "prepare", counted)
    assert main([*TUNE, "--output", "study", "--trials", "3", "--quiet"]) == 0
    assert len(calls) == 1


def test_parameters_that_cannot_work_end_their_trial_only(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "tune",
        "rows.parquet",
        "--target",
        "y",
        "--folds",
        "2",
        "--metric",
        "mae",
        "--set",
        NAMED,
        "--set",
        "max_iter=3",
    ]
    assert main([*command, "--set", "loss=squared_error,poisson", "--trials", "6", "--output", "study"]) == 0
    failed = [trial for trial in study_in("study").trials if trial.params["loss"] == "poisson"]
    assert failed and all("poisson" in trial.user_attrs["error"] for trial in failed)
    assert f"trial {failed[0].number}: {failed[0].user_attrs['error']}" in capsys.readouterr().err
    assert "poisson" in complaint(capsys, *command, "--set", "loss=poisson,gamma", "--trials", "2", "--output", "other")


@pytest.mark.parametrize("content", [b"no study", b"SQLite format 3\0" + bytes(90)])
def test_a_file_that_is_no_study(here: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    Path("study").write_bytes(content)
    said = complaint(capsys, *TUNE, "--output", "study")
    assert "--output study cannot be opened as a study: " in said and said.count("\n") == 1
    assert Path("study").read_bytes() == content


def test_no_time_for_a_trial(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [*TUNE, "--set", "max_iter=1000000", "--output", "study"]
    assert "no trial has ended: give a longer --time-limit" in complaint(capsys, *command, "--time-limit", "1s")


def test_values_are_printed_as_set_reads_them() -> None:
    for value in (0.1, 1e-7, 3, True, None, "huber", "3", "none", "a b", ["a", "b"], {"a": 1}, [["a"], ["b"]]):
        found = literal(as_set(value))
        assert found == value and type(found) is type(value)


@pytest.mark.slow
def test_missing_optuna_is_an_error_that_names_the_extra(here: Path) -> None:
    code = "import sys; sys.modules['optuna'] = None; from dboost.cli import main; sys.exit(main(sys.argv[1:]))"
    command = ["tune", "rows.parquet", "--target", "z", "--output", "study", "--set", "max_iter=2..3"]
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 1 and "pip install 'dboost[optuna]'" in done.stderr and done.stderr.count("\n") == 1


ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


def start(*command: str) -> subprocess.Popen[str]:
    """Start a command in a process of its own."""
    whole = [sys.executable, "-m", "dboost", *command]
    return subprocess.Popen(whole, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def outcome(study: optuna.Study) -> list[tuple[Any, ...]]:
    """Return what the trials that count have in common with those of an undisturbed study."""
    counted = [trial for trial in study.trials if trial.state.name in ("COMPLETE", "PRUNED")]
    return [(trial.params, trial.value, trial.state.name, trial.intermediate_values) for trial in counted]


@pytest.mark.slow
def test_a_killed_study_ends_with_the_parameters_of_an_undisturbed_one(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--trials", "6", "--quiet", "--set", "max_iter=60", "--output"]
    assert main([*TUNE, *options, "undisturbed"]) == 0
    expected = capsys.readouterr().out
    process = start(*TUNE, *options, "study")
    until(lambda: n_begun("study") > 2)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert main([*TUNE, *options, "study"]) == 0
    assert capsys.readouterr().out == expected
    study = study_in("study")
    assert outcome(study) == outcome(study_in("undisturbed")) and len(outcome(study)) == 6
    assert [trial.state.name for trial in study.trials].count("RUNNING") <= 1


@pytest.mark.slow
def test_a_search_on_a_cluster_survives_a_worker_and_its_client(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--trials", "6", "--quiet", "--set", "max_iter=15", "--output"]
    assert main([*TUNE, *options, "here"]) == 0
    expected = capsys.readouterr().out
    with Processes(3) as processes:
        command = [*TUNE, *options, "there", "--scheduler", processes.address]
        process = start(*command)
        until(lambda: n_begun("there") >= 2)
        os.kill(processes.any_pid(), signal.SIGKILL)
        until(lambda: n_begun("there") >= 4)
        process.kill()
        process.communicate()
        processes.ensure_workers(3)
        process = start(*command)
        found, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        assert found == expected.replace("\n", f" --scheduler {processes.address}\n")
        assert outcome(study_in("there")) == outcome(study_in("here"))
        processes.wait_for(lambda: set(processes.client.run(held_fits).values()) == {0})
        assert processes.client.run_on_scheduler(scheduler_plugin)["fits"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_study_says_how_far_it_came(here: Path, number: int, status: int) -> None:
    process = start(*TUNE, "--set", "max_iter=300", "--output", "study", "--trials", "100")
    until(lambda: n_begun("study") >= 3)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status
    assert re.search(r"dboost: the study was interrupted after \d+ of 100 trials; the same command continues it", errors)
    assert not any(trial.state.name == "RUNNING" for trial in study_in("study").trials)
