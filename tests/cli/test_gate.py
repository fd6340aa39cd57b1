"""``dboost train --gate``: the new model replaces the old one only if it is not worse on held-out rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dboost
from dboost.cli import DONE, HELD_BACK, UNUSABLE, main


def rows(seed: int, n: int = 600, *, noise: float = 0.1) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"a": rng.normal(size=n), "b": rng.normal(size=n), "w": rng.uniform(0.5, 2.0, n)})
    frame["y"] = np.sin(2 * frame["a"]) + noise * rng.normal(size=n)
    frame["label"] = (frame["y"] > 0).astype(int)
    return frame


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("days").mkdir()
    rows(1).to_parquet("days/1.parquet")
    rows(2).to_parquet("held-out.parquet")
    return tmp_path


def train(target: str, max_iter: int, *options: str, data: str = "days/1.parquet", output: str = "model.json") -> int:
    drop = [word for name in ("y", "label", "w") if name != target for word in ("--drop", name)]
    words = ["train", data, "--target", target, "--set", f"max_iter={max_iter}", "--output", output, *drop]
    return main([*words, "--eval", "held-out.parquet", *options])


# Target, iterations of the old and of the new model, the option, and what becomes of the new model.
GATES = [
    ("y", 30, 1, "rmse", "held back"),
    ("y", 30, 1, "rmse:0.001", "held back"),
    ("y", 30, 1, "rmse:10", "saved"),
    ("y", 1, 30, "rmse", "saved"),
    ("y", 1, 30, "squared_error:0", "saved"),
    ("y", 30, 30, "rmse:0", "saved"),
    ("y", 30, 1, "r2_score:0.01", "held back"),
    ("label", 30, 1, "auc", "held back"),
    ("label", 30, 1, "auc:0.9", "saved"),
    ("label", 30, 1, "log_loss:1e-3", "held back"),
    ("label", 1, 30, "accuracy:0.0", "saved"),
]


@pytest.mark.parametrize(("target", "old", "new", "gate", "becomes"), GATES)
def test_a_worse_model_does_not_replace_the_old_one(
    target: str, old: int, new: int, gate: str, becomes: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(target, old, "--gate", gate) == DONE, "there is no model yet"
    assert "no model before" in capsys.readouterr().out
    before = Path("model.json").read_bytes()
    status = train(target, new, "--gate", gate)
    said, metric = capsys.readouterr(), gate.partition(":")[0]
    if becomes == "saved":
        assert status == DONE and f"gate: {metric} " in said.out and ", was " in said.out
        assert dboost.load("model.json").n_iter_ == new
    else:
        assert status == HELD_BACK and not said.out
        assert f"held back: its {metric} on the 600 rows of held-out.parquet is " in said.err
        assert "model.json is unchanged" in said.err and Path("model.json").read_bytes() == before
    assert {path.name for path in folder.iterdir()} == {"days", "held-out.parquet", "model.json"}


def test_the_files_of_a_model_that_is_held_back_stay_new(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The next run trains on them together with those that have arrived since."""

    def night(*options: str) -> int:
        return train("y", 10, "--only-new", "--checkpoint", "progress", "--quiet", *options, data="days")

    def learned() -> list[str]:
        ledger = json.loads(Path("model.json.ledger.json").read_text())
        assert ledger["pending"] is None
        return [name for batch in ledger["settled"] for name in batch["files"]]

    assert night("--gate", "rmse") == DONE
    first = Path("model.json").read_bytes()
    wrong = rows(3)
    wrong.assign(y=-5 * wrong["y"]).to_parquet("days/2.parquet")
    for _ in range(2):
        assert night("--gate", "rmse:0.01") == HELD_BACK
        assert "the next run trains on its files again" in capsys.readouterr().err
        assert Path("model.json").read_bytes() == first and learned() == ["1.parquet"]
        assert not any(Path("progress").glob("*/*"))
    rows(4, 20_000).to_parquet("days/3.parquet")
    assert night("--gate", "rmse:0.5") == DONE
    assert learned() == ["1.parquet", "2.parquet", "3.parquet"] and dboost.load("model.json").n_iter_ == 20


def test_held_out_rows_have_the_roles_of_the_training_rows(folder: Path) -> None:
    """Weights, and offsets, at which both models begin."""
    options = ["--set", "sample_weight=w", "--set", "offset=o", "--drop", "label"]
    for name in ("days/1.parquet", "held-out.parquet"):
        frame = pd.read_parquet(name)
        frame.assign(o=frame["a"]).to_parquet(name)
    words = ["train", "days/1.parquet", "--target", "y", "--eval", "held-out.parquet", "--output", "model.json", "--quiet"]
    assert main([*words, *options, "--set", "max_iter=20"]) == DONE
    assert main([*words, *options, "--set", "max_iter=20", "--gate", "rmse"]) == DONE
    assert main([*words, *options, "--set", "max_iter=2", "--gate", "rmse"]) == HELD_BACK


MISTAKES = [
    (["--gate", "rmse"], {"eval": None}, "--gate needs --eval"),
    (["--gate", "rmse:-1"], {}, "--gate rmse:-1: give a metric and how much worse the new model may be"),
    (["--gate", "rmse:much"], {}, "--gate rmse:much: give a metric"),
    (["--gate", ":0.1"], {}, "--gate :0.1: give a metric"),
    (["--gate", "rsme"], {}, "--gate: eval_metric 'rsme' does not go with loss 'squared_error'"),
    (["--gate", "r2_score"], {"eval": "constant.parquet"}, "--gate: r2_score is not defined on the rows of constant.parquet"),
    (["--gate", "rmse"], {"eval": "narrow.parquet"}, "evaluation set 'narrow.parquet': the data have no column 'a'"),
]


@pytest.mark.parametrize(("options", "changes", "message"), MISTAKES)
def test_mistakes_end_the_command_before_the_training(
    options: list[str], changes: dict[str, str | None], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("y", 2, "--quiet") == DONE
    before = Path("model.json").read_bytes()
    rows(2).assign(y=1.0).to_parquet("constant.parquet")
    rows(2).drop(columns="a").to_parquet("narrow.parquet")
    evaluated = changes.get("eval", "held-out.parquet")
    words = ["train", "days/1.parquet", "--target", "y", "--output", "model.json", "--drop", "label", "--drop", "w"]
    assert main([*words, *([] if evaluated is None else ["--eval", evaluated]), *options]) == UNUSABLE
    said = capsys.readouterr()
    assert message in said.err and "iteration" not in said.err and Path("model.json").read_bytes() == before
