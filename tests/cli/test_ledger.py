"""`dboost train --only-new`: every file is trained on once, whenever the process is killed."""

from __future__ import annotations

import functools
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dboost
from dboost.cli import ledger, main, new_rows
from dboost.data.sources.files import FilesBelow, find_files
from dboost.files import atomic_write
from dboost.files.lease import BusyError

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
        frame.to_parquet(f"data/part-{number}.parquet", index=False, compression=None)


@pytest.fixture
def learned(here: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A fit that writes its input into the model; a model of one file stands for training on all its files."""
    calls: list[list[str]] = []
    real = dboost.fit

    @functools.wraps(real)  # the command reads its keywords
    def fit(data: list[str], target: str, *, start_from: str | None = None, **options: Any) -> dboost.Booster:
        names = [Path(url).name for url in data]
        calls.append(names)
        if options.get("checkpoint"):
            Path(options["checkpoint"]).mkdir(parents=True, exist_ok=True)
        old = None if start_from is None else dboost.load(start_from).ensemble
        earlier, trees = ([], ()) if old is None else (list(old.sources), old.trees)
        number = len(earlier) + 1
        ensemble = real(pd.read_parquet(data[0]), target, max_iter=1, progress=False).ensemble
        source = ensemble.sources[0] | {"label": " ".join(names), "first_iteration": number, "last_iteration": number}
        return dboost.Booster(replace(ensemble, sources=(*earlier, source), trees=(*trees, *ensemble.trees)))

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


@pytest.mark.parametrize("choice", [["--drop", "c", "--drop", "day"], ["--set", "features=[a,b]"]])
def test_the_same_command_with_chosen_columns(here: Path, choice: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    command = [*COMMAND, *choice, "--set", "max_iter=2"]
    model = None
    for number in (1, 2, 3):
        arrive(number)
        path = Path(f"data/part-{number}.parquet")
        frame = pd.read_parquet(path).assign(c=1.0, day=number)
        if number == 2:  # a column that the model has not
            frame["d"] = 2.0
        frame.to_parquet(path, index=False)
        assert main(command) == 0, capsys.readouterr().err
        options = {"features": ["a", "b"]} if model is None else {"start_from": model}
        model = dboost.fit(frame, "y", max_iter=2, **options)
        assert dboost.load("model.json").sha256 == model.sha256
    arrive(4)
    frame = pd.read_parquet("data/part-4.parquet").assign(c=1.0, day=4)
    frame.to_parquet("data/part-4.parquet", index=False)
    capsys.readouterr()
    assert main([*COMMAND, "--drop", "b", "--set", "max_iter=2"]) == 2
    assert "--drop: model.json was trained on 'b', and a model keeps its features" in capsys.readouterr().err
    assert dboost.load("model.json").sha256 == model.sha256


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
    for i, (nth, before) in enumerate([*moments, moments[0], moments[-1]]):
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


def read_ledger() -> dict[str, Any]:
    return json.loads(Path("model.json.ledger.json").read_text())


def change_ledger(**changes: Any) -> None:
    Path("model.json.ledger.json").write_text(json.dumps(read_ledger() | changes))


#: What happens to the files of a model, and the error of the next run.
SPOILT: dict[str, tuple[Callable[[], Any], str]] = {
    "ledger": (lambda: Path("model.json.ledger.json").unlink(), "model.json exists, but not model.json.ledger.json"),
    "model": (lambda: Path("model.json").unlink(), "the model is gone"),
    "another model": (
        lambda: dboost.load("model.json").truncate(0).save("model.json"),
        "model.json is not the model that model.json.ledger.json records",
    ),
    "rows": (
        lambda: pd.DataFrame({"a": [1.0], "b": [2.0], "y": [3.0]}).to_parquet("data/part-1.parquet"), "part-1.parquet has"
    ),
    "no text": (lambda: Path("model.json.ledger.json").write_bytes(b"\xff"), "model.json.ledger.json is damaged"),
    "no JSON": (lambda: Path("model.json.ledger.json").write_text("[" * 100_000), "model.json.ledger.json is damaged"),
    "a list": (lambda: Path("model.json.ledger.json").write_text("[]"), "model.json.ledger.json is damaged"),
    "nothing in it": (lambda: Path("model.json.ledger.json").write_text("{}"), "model.json.ledger.json is damaged"),
    "no batches": (
        lambda: Path("model.json.ledger.json").write_text('{"format": "dboost ledger", "version": 2}'), "is damaged"
    ),
    "no sizes": (lambda: change_ledger(settled=[read_ledger()["settled"][0] | {"files": ["part-1.parquet"]}]), "is damaged"),
}  # fmt: skip


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
        assert self.said(capsys).startswith("dboost: the folder data has no data files")
        Path("data").rmdir()
        assert self.said(capsys) == "dboost: there is no file at data"

    @pytest.mark.parametrize("case", SPOILT)
    def test_what_was_spoilt_since_the_last_run(self, case: str, capsys: pytest.CaptureFixture[str]) -> None:
        spoil, sentence = SPOILT[case]
        arrive(1, 2)
        assert main(COMMAND) == 0
        spoil()
        assert sentence in self.said(capsys)

    @pytest.mark.parametrize(
        ("spoil", "sentence"),
        [
            (lambda: exchange("data/part-2.parquet"), "has another content than when the training of model.json on it began"),
            (lambda: Path("data/part-2.parquet").unlink(), "is gone, and model.json is being trained on it"),
        ],
    )
    def test_a_file_of_an_interrupted_batch_that_was_spoilt(
        self, spoil: Callable[[], None], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        arrive(1, 2)
        TestSettingsOfABatch.killed(monkeypatch)
        spoil()
        assert f"part-2.parquet {sentence}" in self.said(capsys)
        assert main((*COMMAND, "--discard-batch")) == 0
        (batch,) = read_ledger()["settled"]
        assert set(batch["files"]) == {path.name for path in Path("data").iterdir()}

    @pytest.mark.parametrize("keeps_times", [False, True])
    def test_rows_that_changed_without_a_change_of_size(self, keeps_times: bool, capsys: pytest.CaptureFixture[str]) -> None:
        arrive(1, 2)
        assert main(COMMAND) == 0
        exchange("data/part-1.parquet", keeps_times=keeps_times)
        arrive(3)
        assert "part-1.parquet has another content than when model.json learned from it" in self.said(capsys)
        exchange("data/part-1.parquet")  # the first content is back
        assert main(COMMAND) == 0
        assert read_ledger()["settled"][1]["files"].keys() == {"part-3.parquet"}

    def test_a_file_that_is_replaced_during_the_training(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        arrive(1, 2)
        real = dboost.fit

        @functools.wraps(real)
        def fit(*arguments: Any, **options: Any) -> dboost.Booster:
            exchange("data/part-2.parquet")  # before the fit lists the files
            return real(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(dboost, "fit", fit)
            assert main(COMMAND) == 2
        assert "part-2.parquet was replaced while model.json was trained on it" in capsys.readouterr().err
        assert not Path("model.json").exists() and not Path("model.json.ledger.json").exists()
        assert main(COMMAND) == 0

    def test_other_data_and_other_places(self, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
        arrive(1)
        assert main(COMMAND) == 0
        other = ["train", "data", "--target", "y", "--output", "other.json", "--only-new"]
        told = self.said(capsys, *other, "--moved-from", "old")
        assert "/old: no model has learned from it, since there is no other.json.ledger.json: leave it out" in told
        Path("data").rename("moved")
        moved = ("train", "moved", *COMMAND[2:])
        told = self.said(capsys, *moved)
        assert "has learned from" in told
        remedy = told.split(": if its files have moved there, add ")[1].split()
        assert remedy == ["--moved-from", f"file://{here}/data"]
        assert "not file:" in self.said(capsys, *moved, "--moved-from", "elsewhere")
        assert "needs --only-new" in self.said(capsys, *(one for one in moved if one != "--only-new"), *remedy)
        before = json.loads(Path("model.json.ledger.json").read_text())
        for old in (remedy, ["--moved-from", "data"], []):  # may be given again, and is not needed again
            assert main((*moved, *old)) == 0
            assert json.loads(Path("model.json.ledger.json").read_text()) == before | {"data": f"file://{here}/moved"}
        frame = pd.read_parquet("moved/part-1.parquet")
        Path("moved").rename("again")
        pd.concat([frame, frame]).to_parquet("again/part-1.parquet")
        kept = Path("model.json.ledger.json").read_bytes()
        assert "part-1.parquet has" in self.said(capsys, "train", "again", *COMMAND[2:], "--moved-from", "moved")
        assert Path("model.json.ledger.json").read_bytes() == kept
        Path("again").rename("data")
        assert "--moved-from" in self.said(capsys)
        assert "--start-from names another: old.json" in self.said(capsys, *COMMAND, "--start-from", "old.json")


def exchange(name: str, *, keeps_times: bool = False) -> None:
    """Reverse the rows of the only row group of a file; called twice, the content is the first one."""
    path, times = Path(name), os.stat(name)
    frame = pd.read_parquet(path)
    frame[::-1].to_parquet(path, index=False, compression=None)
    if path.stat().st_size != times.st_size:
        raise AssertionError("the size has changed")
    if keeps_times:
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_touched_and_copied_files_are_not_new(
    learned: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arrive(1, 2)
    assert main(COMMAND) == 0
    first = read_ledger()["settled"][0]
    assert set(first["stamps"]) == set(first["digests"]) == {"part-1.parquet", "part-2.parquet"}
    os.utime("data/part-1.parquet", ns=(1, 1))
    Path("data/part-2.parquet").chmod(0o600)
    shutil.copy("data/part-1.parquet", "copy")
    Path("copy").replace("data/part-1.parquet")
    assert main(COMMAND) == 0
    assert "nothing new" in capsys.readouterr().out and len(learned) == 1
    second = read_ledger()["settled"][0]
    assert second["digests"] == first["digests"] and second["stamps"] != first["stamps"]
    read: list[str] = []
    monkeypatch.setattr(new_rows, "digest_of", lambda file: read.append(file.url))
    assert main(COMMAND) == 0 and not read, "the present stamps are recorded"


def test_a_ledger_with_names_and_sizes_only_is_completed(learned: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    arrive(1, 2)
    assert main(COMMAND) == 0
    content = read_ledger()
    for name in ("stamps", "digests"):
        del content["settled"][0][name]
    Path("model.json.ledger.json").write_text(json.dumps(content))
    Path("data/part-2.parquet").unlink()
    assert main(COMMAND) == 0 and len(learned) == 1
    assert set(read_ledger()["settled"][0]["digests"]) == {"part-1.parquet"}
    exchange("data/part-1.parquet")
    assert main(COMMAND) == 2
    assert "part-1.parquet has another content" in capsys.readouterr().err


def test_tags_of_a_store_decide_without_reading(
    learned: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arrive(1, 2)
    tags = {"part-1.parquet": "tag a", "part-2.parquet": "tag b", "part-3.parquet": "tag c"}

    def tagged(path: Any) -> Any:
        found = find_files(path)
        return replace(found, files={name: replace(file, stamp=tags[name]) for name, file in found.files.items()})

    with monkeypatch.context() as patch:
        patch.setattr(new_rows, "find_files", tagged)
        patch.setattr(new_rows, "digest_of", lambda file: pytest.fail("a file is read"))
        assert main(COMMAND) == 0
        arrive(3)
        assert main(COMMAND) == 0
        tags["part-2.parquet"] = "tag d"
        assert main(COMMAND) == 2
        assert "part-2.parquet has another content" in capsys.readouterr().err
        Path("data").rename("moved")  # copies may have other tags
        moved = ("train", "moved", *COMMAND[2:])
        assert main((*moved, "--moved-from", "data")) == 0
        assert main(moved) == 0
    assert main(moved) == 0, "from a store to a folder"
    assert len(learned) == 2 and set(read_ledger()["settled"][0]["digests"]) == {"part-1.parquet", "part-2.parquet"}


class TestSettingsOfABatch:
    """A batch is finished with the settings with which it was begun, whatever became of the run."""

    @staticmethod
    def killed(monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(ledger.Ledger, "record_model", lambda *_: (_ for _ in ()).throw(Killed()))
            with pytest.raises(Killed):
                main((*COMMAND, *options))

    def test_another_number_of_iterations_is_refused_by_name(
        self, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        arrive(1, 2)
        self.killed(monkeypatch, "--set", "max_iter=4")
        assert main((*COMMAND, "--set", "max_iter=2")) == 2
        assert capsys.readouterr().err == (
            "dboost: model.json is being trained on 2 files with max_iter=4, not 2: finish that by the same command as before, "
            "or start again with --discard-batch\n"
        )
        assert not Path("model.json").exists()
        assert main((*COMMAND, "--set", "max_iter=4")) == 0
        assert dboost.load("model.json").n_iter_ == 4
        # The next batch may have others.
        arrive(3)
        assert main((*COMMAND, "--set", "max_iter=2")) == 0
        assert dboost.load("model.json").n_iter_ == 6

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (("--target", "b"), "target='y', not 'b'"),
            (("--set", "learning_rate=0.3"), "learning_rate=0.2, not 0.3"),
            (("--set", "max_depth=3"), "max_depth=None, not 3"),
            (("--set", "max_leaf_nodes=none"), "max_leaf_nodes=31, not None"),
            (("--set", "features=[a]"), "features=['a', 'b'], not ['a']"),
            (("--eval", "data"), "--eval None, not 'data'"),
            (("--set", "grow_policy=depth_wise"), "growth='best_first', not 'depth_wise'"),
        ],
    )
    def test_every_setting_of_the_model_is_compared(
        self,
        learned: list[list[str]],
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        options: tuple[str, ...],
        said: str,
    ) -> None:
        arrive(1)
        self.killed(monkeypatch, "--set", "learning_rate=0.2", "--set", "features=[a,b]")
        command = (*COMMAND[:2], *COMMAND[4:]) if options[0] == "--target" else COMMAND
        assert main((*command, "--set", "learning_rate=0.2", "--set", "features=[a,b]", *options)) == 2
        assert f"trained on 1 file with {said}: finish" in capsys.readouterr().err

    @pytest.mark.parametrize("n_settled", [0, 1])
    def test_a_batch_is_discarded_with_its_checkpoint(
        self, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], n_settled: int
    ) -> None:
        kept = ("--checkpoint", "kept")
        if n_settled:
            arrive(1)
            assert main((*COMMAND, "--set", "max_iter=3", *kept)) == 0
        arrive(2)
        self.killed(monkeypatch, "--set", "max_iter=4", "--set", "checkpoint_every=1", *kept)
        (folder,) = Path("kept").iterdir()
        assert main((*COMMAND, "--set", "max_iter=2", *kept)) == 2
        assert main((*COMMAND[:4], "--set", "max_iter=2", "--discard-batch", *kept, "--output", "new.json")) == 2
        assert "needs --only-new" in capsys.readouterr().err
        assert folder.exists()
        for _ in range(2):  # without an unfinished batch there is nothing to discard
            assert main((*COMMAND, "--set", "max_iter=2", "--discard-batch", *kept)) == 0
            assert not folder.exists()
            assert dboost.load("model.json").n_iter_ == 3 * n_settled + 2

    def test_what_does_not_change_the_model_is_not_compared(
        self, learned: list[list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        arrive(1)
        self.killed(monkeypatch, "--set", "grow_policy=depth_wise", "--checkpoint", "kept")
        others = ("growth=depth_wise", "max_iter=100", "n_threads=1", "memory_limit=1GiB", "checkpoint_every=3")
        assert main((*COMMAND, *(word for other in others for word in ("--set", other)), "--checkpoint", "elsewhere")) == 0


class TestSlips:
    """What was wrong in a first command does not stay in the ledger."""

    @pytest.mark.parametrize("checkpoint", [(), ("--checkpoint", "kept")])
    def test_data_without_the_target(self, here: Path, checkpoint: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
        Path("other").mkdir()
        pd.DataFrame({"a": [1.0]}).to_parquet("other/rows.parquet")
        assert main(("train", "other", *COMMAND[2:], *checkpoint)) == 2
        assert "no column 'y'" in capsys.readouterr().err
        assert [path for path in Path().rglob("*") if path.is_file()] == [Path("other/rows.parquet")]
        arrive(1)
        assert main((*COMMAND, "--set", "max_iter=2", *checkpoint)) == 0

    def test_a_wrong_parameter_for_the_next_batch(self, here: Path) -> None:
        arrive(1)
        assert main((*COMMAND, "--set", "max_iter=2")) == 0
        before = Path("model.json.ledger.json").read_bytes()
        arrive(2)
        assert main((*COMMAND, "--set", "max_iter=-2")) == 2
        assert Path("model.json.ledger.json").read_bytes() == before
        assert main((*COMMAND, "--set", "max_iter=2")) == 0

    def test_a_killed_run_on_another_folder(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        arrive(1)
        Path("data").rename("wrong")
        with monkeypatch.context() as patch:
            patch.setattr(dboost, "fit", lambda *_, **__: (_ for _ in ()).throw(Killed()))
            with pytest.raises(Killed):
                main(("train", "wrong", *COMMAND[2:]))
        assert Path("model.json.ledger.json").exists()
        Path("data").mkdir()
        arrive(2)
        assert main((*COMMAND, "--set", "max_iter=2")) == 0
        assert list(json.loads(Path("model.json.ledger.json").read_text())["settled"][0]["files"]) == ["part-2.parquet"]

    def test_an_error_after_a_checkpoint_keeps_the_batch(
        self, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        arrive(1)
        options = ("--set", "max_iter=4", "--set", "checkpoint_every=1", "--checkpoint", "kept")
        TestSettingsOfABatch.killed(monkeypatch, *options)
        with monkeypatch.context() as patch:
            patch.setattr(dboost, "fit", lambda *_, **__: (_ for _ in ()).throw(dboost.errors.DataError("bad rows")))
            assert main((*COMMAND, *options)) == 2
        assert json.loads(Path("model.json.ledger.json").read_text())["pending"]["settings"]["max_iter"] == 4
        assert list(Path("kept").rglob("state.json"))
        assert main((*COMMAND, *options)) == 0


class TestContinueOnly:
    """--start-from with the model at --output: the first fit is left to another command."""

    def test_without_a_model(self, learned: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
        arrive(1)
        assert main((*COMMAND, "--start-from", "model.json")) == 2
        assert "there is no model at model.json yet" in capsys.readouterr().err
        assert not Path("model.json.ledger.json").exists()
        assert main(COMMAND) == 0
        arrive(2)
        assert main((*COMMAND, "--start-from", "model.json")) == 0
        assert content() == ["part-1.parquet", "part-2.parquet"]

    def test_the_first_fit_that_was_killed_is_not_finished(
        self, learned: list[list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        arrive(1)
        TestSettingsOfABatch.killed(monkeypatch)
        before = Path("model.json.ledger.json").read_bytes()
        assert main((*COMMAND, "--set", "start_from=model.json")) == 2
        assert Path("model.json.ledger.json").read_bytes() == before


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
    from dboost.data.sources.paths import open_path

    for day in (1, 2):
        (here / f"data/day={day}").mkdir()
        pd.DataFrame({"a": [day]}).to_parquet(here / f"data/day={day}/rows.parquet")
    found = find_files("data")
    assert list(found.sizes) == ["day=1/rows.parquet", "day=2/rows.parquet"]
    frame = open_path(FilesBelow(list(found.urls.values())[1:], found.root)).compute()
    assert list(frame.columns) == ["a", "day"] and frame["day"].astype(str).tolist() == ["2"]


def test_a_run_that_has_lost_its_lease_removes_no_checkpoint(here: Path) -> None:
    """It is the checkpoint of the run that has taken over, which trains on the same batch."""
    arrive(1)
    asked = ledger.model_settings("y", {})
    for ends in ("commit", "discard", "withdraw"):
        with pytest.raises(BusyError, match="another run"), ledger.open_ledger("model.json", "data", asked, "kept") as run:
            batch = run.next_batch()
            assert batch is not None
            folder = Path(run.checkpoint(batch))
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "trees-000001-000001.json").write_text("of the other run")
            record = json.loads(Path("model.json.lease.json").read_bytes())
            Path("model.json.lease.json").write_text(json.dumps(record | {"run": "of another", "process": 1, "started": "1"}))
            getattr(run, ends)()
        assert (folder / "trees-000001-000001.json").exists()
        assert Path("model.json.ledger.json").exists()
