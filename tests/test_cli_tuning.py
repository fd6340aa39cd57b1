"""The commands `prepare`, `cv` and `tune`, and `dboost.integrations.optuna.tune`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pyarrow import csv

import dboost
from dboost.cli import main
from tests.helpers.clusters import Processes

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
    assert "unknown parameter 'max_bin' in --set; did you mean 'max_bins'" in complaint(
        capsys, *prepare, "p", "--set", "max_bin=3"
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
        assert float(mean.split(" ± ")[0]) == pytest.approx(at.mean(), rel=1e-4)
        assert float(mean.split(" ± ")[1]) == pytest.approx(at.std(ddof=0), rel=0.1)
    assert "iteration 1/60: validation_auc" in said.err, "the means are shown while it runs"
    pd.testing.assert_frame_equal(pd.read_parquet("scores.parquet"), expected.scores)
    predictions = pd.read_parquet("p.parquet")
    assert list(predictions.columns) == ["probability_0", "probability_1"]
    np.testing.assert_array_equal(predictions.to_numpy(), expected.predictions)
    assert main([*command, "--output", "scores.json", "--quiet"]) == 0
    quiet = capsys.readouterr()
    assert (quiet.out, quiet.err) == ("", "")
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
        (("--set", "groups=a"), "'groups' cannot be set in --set: values per row can only be given in Python"),
        (("--set", "eval_set=a"), "unknown parameter 'eval_set' in --set"),
        (("--set", "max_leaves=3"), "did you mean 'max_leaf_nodes'?"),
        (("--output", "scores.txt"), "--output scores.txt: the name must end in .csv or .parquet or .json"),
        (("--predictions", "p.json"), "--predictions p.json: the name must end in .csv or .parquet"),
        (("--output", "nowhere/s.csv"), "there is no folder"),
        (("--target", "q"), "the data have no column 'q'"),
    ],
)
def test_what_cv_cannot_use(here: Path, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(capsys, "cv", "rows.parquet", "--target", "z", *arguments)
    assert message in said and said.count("\n") == 1
    assert [path.name for path in here.iterdir()] == ["rows.parquet"]


@pytest.mark.slow
def test_cv_on_a_cluster(here: Path) -> None:
    command = ["cv", "rows.parquet", "--target", "z", "--folds", "2", "--set", "max_iter=3", *SMALL, "--quiet"]
    assert main([*command, "--output", "here.csv"]) == 0
    with Processes(2) as processes:
        assert main([*command, "--output", "there.csv", "--scheduler", processes.address]) == 0
    assert Path("here.csv").read_bytes() == Path("there.csv").read_bytes()
