"""The commands `prepare`, `cv` and `tune`, and `dboost.integrations.optuna.tune`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dboost
from dboost.cli import main

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
