"""`dboost train --only-new`: every file is trained on once, whenever the process is killed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dboost
from dboost.cli import ledger, main
from dboost.data.paths import find_files
from dboost.storage import atomic_write

COMMAND = ("train", "data", "--target", "y", "--output", "model.json", "--only-new", "--quiet")


class Killed(BaseException):
    """Stands for a kill of the process: nothing runs after it."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    return tmp_path


def arrive(*numbers: int) -> None:
    for number in numbers:
        rng = np.random.default_rng(number)
        frame = pd.DataFrame(rng.normal(size=(60 + number, 2)), columns=["a", "b"])
        frame["y"] = frame["a"] * number
        frame.to_parquet(f"data/part-{number}.parquet", index=False)


@pytest.fixture
def learned(here: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A fit that writes its input into the model; a model of one file stands for training on all its files."""
    calls: list[list[str]] = []
    real = dboost.fit

    def fit(data: list[str], target: str, *, start_from: str | None = None, **options: Any) -> dboost.Booster:
        names = [Path(url).name for url in data]
        calls.append(names)
        if options.get("checkpoint"):
            Path(options["checkpoint"]).mkdir(parents=True, exist_ok=True)
        old = [] if start_from is None else list(dboost.load(start_from).ensemble.sources)
        ensemble = real(pd.read_parquet(data[0]), target, max_iter=1, progress=False).ensemble
        source = ensemble.sources[0] | {"label": " ".join(names)}
        return dboost.Booster(replace(ensemble, sources=(*old, source)))

    monkeypatch.setattr(dboost, "fit", fit)
    return calls


def content() -> list[str]:
    return [source["label"] for source in dboost.load("model.json").ensemble.sources]


def test_first_all_then_what_is_new_then_nothing(learned: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    arrive(1, 2)
    assert main(COMMAND) == 0
    arrive(3, 10)
    assert main(COMMAND) == 0
    assert content() == ["part-1.parquet part-2.parquet", "part-3.parquet part-10.parquet"]
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main(COMMAND) == 0
    assert capsys.readouterr().out == "nothing new at data: model.json has learned from all that is there\n"
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before
    assert len(learned) == 2
    # A file that was trained on may be removed.
    Path("data/part-1.parquet").unlink()
    assert main(COMMAND) == 0
    assert len(learned) == 2


@pytest.mark.slow
def test_killed_at_any_write_each_file_is_learned_once(learned: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    def killed_at(nth: int, before: bool) -> bool:
        """Run the command, killed before or after its nth write; return whether there were as many writes."""
        n_written = 0

        def write(path: Any, data: bytes) -> None:
            nonlocal n_written
            n_written += 1
            if n_written == nth and before:
                raise Killed
            atomic_write.write_whole(path, data)
            if n_written == nth:
                raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(ledger, "write_whole", write)
            patch.setattr(dboost.Booster, "save", lambda self, path: write(path, dboost.model.model_file.dumps(self.ensemble)))
            try:
                assert main((*COMMAND, "--checkpoint", "kept")) == 0
            except Killed:
                return True
        return False

    moments = [(nth, before) for nth in range(1, 5) for before in (True, False)]
    expected: list[str] = []
    for i, (nth, before) in enumerate([*moments, *moments]):
        arrive(2 * i)
        assert killed_at(nth, before), "a batch takes four writes"
        arrive(2 * i + 1)  # between two runs
        for _ in range(3):
            assert main((*COMMAND, "--checkpoint", "kept")) == 0
        found = content()
        assert sorted(" ".join(found).split()) == sorted(f"part-{n}.parquet" for n in range(2 * i + 2))
        assert found[: len(expected)] == expected
        expected = found
        assert not list(Path("kept").iterdir())
    assert not killed_at(1, True)


def test_a_batch_that_was_begun_stays_as_it_is(learned: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    arrive(1)
    with monkeypatch.context() as patch:
        patch.setattr(dboost.Booster, "save", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            main(COMMAND)
    arrive(2)
    assert main(COMMAND) == 0
    assert content() == ["part-1.parquet"]
    assert main(COMMAND) == 0
    assert content() == ["part-1.parquet", "part-2.parquet"]


@pytest.mark.usefixtures("learned")
class TestRefused:
    @staticmethod
    def said(capsys: pytest.CaptureFixture[str], *command: str) -> str:
        capsys.readouterr()
        before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
        assert main(command or COMMAND) == 2
        assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before
        (line,) = capsys.readouterr().err.splitlines()
        return line

    def test_no_file_at_all(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.said(capsys) == "dboost: there is no file at data"

    def test_a_model_that_was_begun_otherwise(self, capsys: pytest.CaptureFixture[str]) -> None:
        arrive(1)
        assert main(COMMAND) == 0
        Path("model.json.ledger.json").unlink()
        assert "model.json exists, but not model.json.ledger.json" in self.said(capsys)

    def test_a_model_that_was_replaced_or_lost(self, capsys: pytest.CaptureFixture[str]) -> None:
        arrive(1)
        assert main(COMMAND) == 0
        old = Path("model.json").read_bytes()
        arrive(2)
        assert main(COMMAND) == 0
        Path("model.json").write_bytes(old)
        assert "model.json is not the model that model.json.ledger.json tells of" in self.said(capsys)
        Path("model.json").unlink()
        assert "the model is gone" in self.said(capsys)

    def test_rows_that_changed_under_their_name(self, capsys: pytest.CaptureFixture[str]) -> None:
        arrive(1)
        assert main(COMMAND) == 0
        pd.DataFrame({"a": [1.0], "b": [2.0], "y": [3.0]}).to_parquet("data/part-1.parquet")
        assert "part-1.parquet has" in self.said(capsys)

    def test_a_file_of_an_interrupted_batch_that_is_gone(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        arrive(1, 2)
        with monkeypatch.context() as patch:
            patch.setattr(ledger.Ledger, "record_model", lambda *_: (_ for _ in ()).throw(Killed()))
            with pytest.raises(Killed):
                main(COMMAND)
        Path("data/part-2.parquet").unlink()
        assert "part-2.parquet is gone, and model.json is being trained on it" in self.said(capsys)

    def test_other_data_and_other_places(self, capsys: pytest.CaptureFixture[str]) -> None:
        arrive(1)
        assert main(COMMAND) == 0
        Path("data").rename("moved")
        assert "has learned from" in self.said(capsys, "train", "moved", *COMMAND[2:])
        assert "cannot be combined with --start-from" in self.said(capsys, *COMMAND, "--start-from", "model.json")

    @pytest.mark.parametrize("text", ["{", "{}", "[]", '{"format": "dboost ledger", "version": 2}', "\xff"])
    def test_a_damaged_ledger(self, capsys: pytest.CaptureFixture[str], text: str) -> None:
        arrive(1)
        Path("model.json.ledger.json").write_text(text, encoding="latin-1")
        assert "model.json.ledger.json is damaged" in self.said(capsys)

    def test_a_ledger_with_sizes_of_another_kind(self, capsys: pytest.CaptureFixture[str]) -> None:
        arrive(1)
        assert main(COMMAND) == 0
        content = json.loads(Path("model.json.ledger.json").read_text())
        content["settled"][0]["files"] = ["part-1.parquet"]
        Path("model.json.ledger.json").write_text(json.dumps(content))
        assert "is damaged" in self.said(capsys)


def test_names_do_not_depend_on_how_the_folder_is_spelled(here: Path) -> None:
    arrive(1, 2)
    spelled = ("data", "data/", "data/*.parquet", "data/part-[12].parquet", f"file://{here}/data")
    found = [find_files(path) for path in spelled]
    assert {tuple(one.sizes) for one in found} == {("part-1.parquet", "part-2.parquet")}
    assert len({one.root for one in found}) == 1
    assert found[0].sizes["part-1.parquet"] == Path("data/part-1.parquet").stat().st_size
    one = find_files("data/part-1.parquet")
    assert (one.root, list(one.urls)) == (found[0].root, ["part-1.parquet"])
    assert not find_files("nowhere").urls


def test_columns_in_the_names_of_folders(here: Path) -> None:
    from dboost.data.paths import open_path

    for day in (1, 2):
        (here / f"data/day={day}").mkdir()
        pd.DataFrame({"a": [day]}).to_parquet(here / f"data/day={day}/rows.parquet")
    found = find_files("data")
    assert list(found.sizes) == ["day=1/rows.parquet", "day=2/rows.parquet"]
    frame = open_path(list(found.urls.values())[1:]).compute()
    assert list(frame.columns) == ["a", "day"] and frame["day"].astype(str).tolist() == ["2"]


def test_the_model_is_the_one_of_fits_by_hand(here: Path) -> None:
    arrive(1, 2)
    few = ("--set", "max_iter=3")
    assert main((*COMMAND, *few)) == 0
    arrive(3)
    assert main((*COMMAND, *few)) == 0
    first = dboost.fit(["data/part-1.parquet", "data/part-2.parquet"], "y", max_iter=3, progress=False)
    second = dboost.fit("data/part-3.parquet", "y", start_from=first, max_iter=3, progress=False)
    assert dboost.load("model.json").sha256 == second.sha256
