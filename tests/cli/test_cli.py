"""The command line: arguments, errors, exit status and files."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dboost
from dboost.cli import arguments as settings
from dboost.cli import main, output_paths
from dboost.cli.option_names import in_options
from dboost.display import numbers
from dboost.errors import ParameterError
from tests.helpers.clusters import ROOT

KNOWN = ["learning_rate", "max_iter", "max_leaf_nodes", "loss", "features"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-1", -1),
        ("1e-3", 0.001),
        (".5", 0.5),
        ("inf", float("inf")),
        ("true", True),
        ("False", False),
        ("none", None),
        ("NULL", None),
        ("huber", "huber"),
        ("a b", "a b"),
        ('"3"', "3"),
        ("'quoted'", "quoted"),
        ("[1, 0, -1]", [1, 0, -1]),
        ("[age, income]", ["age", "income"]),
        ("[]", []),
        ('[["a", "b"], ["c"]]', [["a", "b"], ["c"]]),
        ('{"age": 1}', {"age": 1}),
        ("{age = 1}", {"age": 1}),
        ("2GiB", "2GiB"),
        ("2011-01-31", "2011-01-31"),
        ("1\nother = 2", "1\nother = 2"),
    ],
)
def test_literals(text: str, value: Any) -> None:
    read = settings.literal(text)
    assert read == value
    assert type(read) is type(value)


@given(st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans(), st.lists(st.integers(), max_size=5)))
def test_what_python_writes_is_read_back(value: Any) -> None:
    assert settings.literal(str(value)) == value


@given(st.text())
def test_any_text_is_some_value(text: str) -> None:
    settings.literal(text)


def test_set_overrides_the_file_and_the_last_wins(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text('max_iter = 5\nloss = "huber"\n')
    found = settings.gather(str(file), ["max_iter=7", "max_iter = 9", "features=[a,b]"], KNOWN)
    assert settings.gather(None, ["features=[a,max_iter=3]"], KNOWN) == {"features": ["a", "max_iter=3"]}
    assert found == {"max_iter": 9, "loss": "huber", "features": ["a", "b"]}


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        ("max_leafs=3", "unknown parameter 'max_leafs' in --set; did you mean max_leaf_nodes?"),
        ("zzz=3", "unknown parameter 'zzz' in --set; there are: learning_rate, max_iter"),
        ("eval_set=x", "use --eval"),
        ("target=x", "use --target"),
        ("max_iter", "--set takes key=value, not 'max_iter'"),
        ("max_iter=", "--set takes key=value"),
        ("=3", "--set takes key=value"),
        ("max_iter=5, eta=0.2", "write --set max_iter=5 --set eta=0.2"),
    ],
)
def test_what_cannot_be_set(assignment: str, complaint: str) -> None:
    with pytest.raises(ParameterError) as error:
        settings.gather(None, [assignment], KNOWN)
    assert complaint in str(error.value)


@pytest.mark.parametrize(
    ("command", "message", "shown"),
    [
        ("predict m x --output p", "trained with offset='e': give offset=…, or offset=False to say so", "give --offset COL"),
        ("predict m x --output p", "it was called: give loss='huber', or call load(path, loss=…)", None),
        ("train x", "it has classes: give loss='log_loss' to say so", "give --set loss=log_loss to say so"),
        (
            "train x",
            "memory_limit of 1 MiB is too small: give an eval_set",
            "--memory-limit of 1 MiB is too small: give --eval DATA",
        ),
        (
            "cv x",
            "leave it out, with features=[…], or give an eval_set",
            "leave it out, with --set features=[…], or give an eval_set",
        ),
        ("cv x", "max_iter=0 must be at least 1", None),
        ("inspect m", "give memory_limit, or Metric(f, greater_is_better=True)", None),
    ],
)
def test_messages_name_options_of_the_command(command: str, message: str, shown: str | None) -> None:
    arguments = settings.parse(command.split())
    settable = settings.settable_by(arguments.command)
    assert in_options(message, arguments.options, () if settable is None else settable[0]).endswith(shown or message)


def test_a_parameter_file_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="cannot read the parameter file"):
        settings.gather(str(tmp_path / "none.toml"), [], KNOWN)
    bad = tmp_path / "bad.toml"
    bad.write_text("max_iter 5")
    with pytest.raises(ParameterError, match=r"bad\.toml is not valid TOML"):
        settings.gather(str(bad), [], KNOWN)
    bad.write_text("max_itr = 5")
    with pytest.raises(ParameterError, match=r"'max_itr' in .*bad\.toml; did you mean max_iter"):
        settings.gather(str(bad), [], KNOWN)


def test_an_output_never_replaces_what_is_read_or_another_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = pd.DataFrame({"x": np.arange(60.0), "y": np.arange(60) % 2})
    (tmp_path / "folder").mkdir()
    data, part, model = tmp_path / "in.csv", tmp_path / "folder" / "a.parquet", tmp_path / "m.json"
    table.to_csv(data, index=False)
    table.to_parquet(part)
    (tmp_path / "link.json").symlink_to(data)
    dboost.fit(table, "y", max_iter=1).save(model)
    before = {path: path.read_bytes() for path in (data, part, model)}
    few, folds = ["--target", "y", "--set", "max_iter=1"], ["--folds", "2"]
    for command, culprit in {
        ("train", data, *few, "--output", data): "DATA",
        ("train", data, *few, "--output", tmp_path / "link.json"): "DATA",
        ("train", part, *few, "--eval", data, "--output", f"file://{data}"): "--eval",
        ("train", data, *few, "--output", tmp_path / "n.json", "--history", tmp_path / "folder/../n.json"): "--output",
        ("predict", model, tmp_path / "folder", "--output", part): "DATA",
        ("predict", model, data, "--output", model.with_suffix(".parquet")): "",
        ("inspect", model, "--html", model): "MODEL",
        ("inspect", model, "--data", part, "--target", "y", "--html", part): "--data",
        ("cv", data, *few, *folds, "--output", data): "DATA",
        ("cv", data, *few, *folds, "--output", tmp_path / "s.csv", "--predictions", tmp_path / "s.csv"): "--output",
    }.items():
        code = main([str(part) for part in command])
        printed = capsys.readouterr().err
        assert (code, f"is also that of {culprit}, which it would replace" in printed) == ((2, True) if culprit else (0, False))
        assert {path: path.read_bytes() for path in before} == before, command
    # A model is continued in place.
    dboost.fit(table, "y", max_iter=1).save(model)
    assert main(["train", str(data), *few, "--start-from", str(model), "--output", str(model), "--quiet"]) == 0
    assert dboost.load(model).n_iter_ == 2


def test_outputs_are_checked_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "empty").mkdir()
    for wrong, complaint in [
        ("nowhere/out", "there is no folder"),
        ("full", "is a folder"),
        ("full/", "not empty"),
        ("file/", "there is a file of that name"),
    ]:
        with pytest.raises(ParameterError, match=f"--output .*{complaint}"):
            output_paths.check(f"{tmp_path}/{wrong}", "--output")
    for right in ("file", "new", "new/", "empty/"):
        output_paths.check(f"{tmp_path}/{right}", "--output")


WITHOUT_PERMISSION = """
import sys
import dboost
from dboost.cli import main
def fail(*_, **__):
    raise AssertionError("the work has begun")
fit, dboost.fit, dboost.load = dboost.fit, fail, fail
path = sys.argv[1] + "/out"
train = ["train", "x.csv", "--target", "y", "--output"]
predict = ["predict", "m.json", "x.csv", "--output"]
prepare = ["prepare", "x.csv", "--target", "y", "--output", path]
for command in ([*train, path], [*predict, path], [*predict, path + "/"], ["inspect", "m.json", "--html", path], prepare):
    assert main(command) == 2
try:
    fit([[1.0], [2.0]], [1.0, 2.0], checkpoint=sys.argv[1], callbacks=fail)
except dboost.errors.ModelFileError as error:
    print(error, file=sys.stderr)
"""


@pytest.mark.slow
def test_a_folder_without_permission_is_noticed_before_the_work(tmp_path: Path) -> None:
    folder, seal = tmp_path / "foreign", []
    folder.mkdir()
    if os.geteuid() == 0:  # which may write everywhere
        assert shutil.which("setpriv"), "run this as another user"
        seal = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
        os.chown(folder, 65534, 65534)
    folder.chmod(0o555)
    done = subprocess.run(
        [*seal, sys.executable, "-c", WITHOUT_PERMISSION, str(folder)], capture_output=True, text=True, cwd=ROOT, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if not line.startswith("compiling")] == [
        f"dboost: --output: cannot write {folder}/out: Permission denied",
        f"dboost: --output: cannot write {folder}/out: Permission denied",
        f"dboost: --output: cannot write {folder}/out/: Permission denied",
        f"dboost: --html: cannot write {folder}/out: Permission denied",
        f"dboost: --output: cannot write {folder}/out: Permission denied",
        f"cannot keep a checkpoint in {folder}: cannot write {folder}/state.json: Permission denied",
    ]


def test_trying_an_output_leaves_nothing_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_bytes(b"before")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "elsewhere" / "model.json")
    before = (tmp_path / "model.json").stat().st_mtime_ns
    for name in ("model.json", "link.json", "new.json", "folder/"):
        output_paths.check(f"{tmp_path}/{name}", "--output")
    assert (tmp_path / "model.json").stat().st_mtime_ns == before
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["elsewhere", "link.json", "model.json"]


def status_of(*arguments: str) -> int:
    """Return the exit status of a command, whether argparse or `main` determines it."""
    try:
        return main(list(map(str, arguments)))
    except SystemExit as exit:
        return int(exit.code or 0)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "required: COMMAND"),
        (("fly",), "there is no command fly; there are train, predict"),
        (("tune", "x.csv"), "studies of Optuna call dboost.cv in Python"),
        (("train", "x.csv"), "--target is missing: x.csv is no folder that dboost prepare has written"),
        (("train", "x.csv", "--target", "y", "--colour", "red"), "unknown option --colour"),
        (("train", "x.csv", "--target", "y", "--workers", "0"), "invalid whole number above 0 value: '0'"),
        (("train", "x.csv", "--target", "y", "--workers", "2", "--scheduler", "tcp://a:1"), "not allowed with"),
        (("predict", "m.json", "x.csv"), "required: --output"),
    ],
)
def test_arguments_that_make_no_sense(arguments: tuple[str, ...], complaint: str, capsys: Any) -> None:
    assert status_of(*arguments) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert said.startswith("dboost: ")
    assert said.count("\n") == 1


def test_a_checkout_that_is_not_installed_runs_commands(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    monkeypatch.setattr(importlib.metadata, "version", missing)
    for arguments in (["--version"], ["warmup", "--help"]):
        with pytest.raises(SystemExit, match="0"):
            main(arguments)
    assert f"dboost {dboost.__version__}\n" in capsys.readouterr().out


def test_help_and_version(capsys: Any) -> None:
    assert status_of("--help") == 0
    assert "train" in capsys.readouterr().out
    assert status_of("train", "--help") == 0
    assert "--memory-limit" in capsys.readouterr().out
    assert status_of("--version") == 0
    assert capsys.readouterr().out.startswith("dboost 0.")


# Complete runs.


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.standard_normal((600, 3)), columns=["a", "b", "c"])
    frame["shop"] = rng.choice(["north", "south", "west"], len(frame))
    frame["price"] = frame["a"] + (frame["shop"] == "west") + 0.1 * rng.standard_normal(len(frame))
    frame["grade"] = np.where(frame["price"] > 0.5, "high", "low")
    return frame


@pytest.fixture
def here(tmp_path: Path, table: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the table as one Parquet file, one CSV file, and a folder of three Parquet files."""
    monkeypatch.chdir(tmp_path)
    table.to_parquet("rows.parquet", index=False)
    table.to_csv("rows.csv", index=False)
    Path("parts").mkdir()
    for i in range(3):
        table.iloc[i * 200 : i * 200 + 200].to_parquet(f"parts/{i}.parquet", index=False)
    return tmp_path


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


TRAIN = ("train", "rows.parquet", "--target", "price", "--set", "features=[a,b,c,shop]")


def test_arcbites_by_option_and_in_detail(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = {"features": ["a", "b", "c", "shop"], "max_iter": 5, "eval_set": "parts/1.parquet"}
    for options, written in [
        (["--arcbites"], True),
        (["--set", "arcbites={n_bites=3, trees_per_visit=1}"], dboost.ArcBites(3, 1)),
        (["--arcbites", "--set", 'arcbites={"n_bites": 3, "order": "cyclic"}'], dboost.ArcBites(3, order="cyclic")),
    ]:
        assert status_of(*TRAIN, "--eval", "parts/1.parquet", "--set", "max_iter=5", "--overwrite", *options) == 0
        assert dboost.load("model.json").sha256 == dboost.fit("rows.parquet", "price", arcbites=written, **common).sha256
        assert "bite" not in capsys.readouterr().out, "no score"


def test_train_saves_what_fit_would(here: Path, table: pd.DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(here)
    settings = ["--set", "max_iter=9", "--set", "max_iter=4", "--set", "learning_rate=0.3"]
    assert status_of(*TRAIN, *settings, "--output", "by-command.json", "--history", "history.csv") == 0
    shown = capsys.readouterr()
    assert "4 iterations" in shown.out
    assert "train_rmse" in shown.out
    assert files(here) - before == {"by-command.json", "history.csv"}
    booster = dboost.fit("rows.parquet", "price", features=["a", "b", "c", "shop"], max_iter=4, learning_rate=0.3)
    booster.save("by-fit.json")
    assert Path("by-command.json").read_bytes() == Path("by-fit.json").read_bytes()
    history = pd.read_csv("history.csv")
    assert list(history["iteration"]) == [1, 2, 3, 4]
    assert list(history["train_loss"]) == list(booster.history["train_loss"])


def test_an_existing_model_is_replaced_only_on_request(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ("--quiet", "--set", "max_iter=2")
    assert status_of(*TRAIN, *few) == 0
    assert capsys.readouterr().out == "", "quiet"
    first = Path("model.json").read_bytes()
    before = files(here)
    for more in ((), ("--start-from", "old.json"), ("--checkpoint", "kept")):
        assert status_of(*TRAIN, *few, "--set", "learning_rate=0.5", *more) == 2
        said = "dboost: model.json exists: name another file with --output, or replace this one with --overwrite\n"
        assert capsys.readouterr().err == said
        assert Path("model.json").read_bytes() == first
        assert files(here) == before
    assert status_of(*TRAIN, *few, "--set", "learning_rate=0.5", "--overwrite") == 0
    second = Path("model.json").read_bytes()
    assert second != first
    assert status_of(*TRAIN, *few, "--output", "model.json") == 0
    assert Path("model.json").read_bytes() == first
    for continued in (("--start-from", "./model.json"), ("--set", "start_from=model.json")):
        n_iter = dboost.load("model.json").n_iter_
        assert status_of(*TRAIN[:4], *few, *continued) == 0
        assert dboost.load("model.json").n_iter_ == n_iter + 2
    assert status_of(*TRAIN, "--only-new", "--overwrite") == 2
    assert "--only-new" in capsys.readouterr().err


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "1>&- 2>&-"])
def test_streams_that_are_closed(here: Path, closed: str) -> None:
    program = f"{shlex.quote(sys.executable)} -m dboost train rows.parquet --target"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}

    def status(arguments: str) -> int:
        return subprocess.run(f"{program} {arguments} {closed}", shell=True, env=environment).returncode

    assert status("nothing --output no.json") == 2
    assert status("price --set max_iter=2 --output m.json") == 0
    assert dboost.load("m.json").n_iter_ == 2


def test_evaluation_rows_stop_the_training(here: Path, table: pd.DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--eval", "rows.csv", "--set", "max_iter=300", "--set", "early_stopping_rounds=5"]
    # Evaluation rows whose target depends on the features in another way: soon the loss no longer improves.
    table.assign(price=table["price"].sample(frac=1, random_state=0).to_numpy()).to_csv("rows.csv", index=False)
    assert status_of(*TRAIN, *arguments) == 0
    said = capsys.readouterr().out
    booster = dboost.load("model.json")
    assert booster.best_iteration == booster.n_iter_ < 295
    assert f"{booster.n_iter_} iterations (the best of {booster.n_iter_ + 5})" in said


def test_predicting_classes_into_a_folder(here: Path, table: pd.DataFrame) -> None:
    settings = ["--target", "grade", "--set", "features=[a, shop]", "--set", "max_iter=3"]
    assert status_of("train", "parts", *settings) == 0
    booster = dboost.load("model.json")
    assert status_of("predict", "model.json", "parts", "--output", "out/") == 0
    assert sorted(path.name for path in Path("out").iterdir()) == [f"part-{i:05d}.parquet" for i in range(3)]
    assert list(pd.read_parquet("out")["prediction"]) == list(booster.predict(table))


def test_intervals_are_written(here: Path, table: pd.DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    booster = dboost.fit(table[["a", "shop"]], table["price"], max_iter=3)
    booster.save("model.json")
    assert status_of("predict", "model.json", "parts", "--output", "out.parquet", "--interval") == 2
    assert "--interval needs a model that Booster.calibrate has given margins" in capsys.readouterr().err
    booster = booster.calibrate(table, "price", by="shop")
    booster.save("model.json")
    assert status_of("predict", "model.json", "parts", "--output", "out.parquet", "--interval", "--id", "shop") == 0
    found = pd.read_parquet("out.parquet")
    assert list(found.columns) == ["shop", "lower", "upper"]
    np.testing.assert_array_equal(found[["lower", "upper"]], booster.predict_interval(table))
    assert status_of("predict", "model.json", "parts", "--output", "out.parquet", "--interval", "--proba") == 2
    assert "model of classes" in capsys.readouterr().err


@pytest.mark.fast_cells(1)
@pytest.mark.parametrize("kind", ["text", "bool", "numbers"])
def test_partitions_without_rows_have_the_type_of_the_predictions(here: Path, table: pd.DataFrame, kind: str) -> None:
    target = {"text": table["grade"], "bool": table["grade"] == "low", "numbers": table["price"]}[kind]
    booster = dboost.fit(table[["a", "shop"]], target, max_iter=1)
    booster.save("model.json")
    for name, at in {"first": [0, 300, 300], "all": [0, 0]}.items():
        Path(name).mkdir()
        ends = np.cumsum([0, *at])
        for k in range(len(at)):
            table[ends[k] : ends[k + 1]].to_parquet(f"{name}/part-{k}.parquet")
        for proba in ([], ["--proba"]) if kind == "text" else ([],):
            for output in ("out.parquet", "out.csv", f"{name}-{len(proba)}/"):
                assert status_of("predict", "model.json", name, "--output", output, *proba) == 0
            found = pq.read_table("out.parquet")
            types = {str(pq.read_schema(file).types) for file in Path(f"{name}-{len(proba)}").iterdir()}
            assert types == {str(found.schema.types)}
            expected = (booster.predict_proba if proba else booster.predict)(table[: sum(at)])
            np.testing.assert_array_equal(found.to_pandas().to_numpy().ravel(), np.asarray(expected).ravel())
            assert len(pd.read_csv("out.csv")) == sum(at)


def test_inspect_shows_what_was_learned(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(*TRAIN, "--set", "max_iter=3", "--set", "learning_rate=0.25") == 0
    capsys.readouterr()
    assert status_of("inspect", "model.json") == 0
    said = capsys.readouterr().out
    for expected in ("squared_error", "learning_rate", "0.25", "shop", "categorical, 3 levels", "train_rmse", "600"):
        assert expected in said


def test_inspect_shows_a_line_for_each_parameter(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert status_of(*TRAIN, "--set", "max_iter=3", "--set", "interaction_cst=[['a','b','shop'],['b','c','shop']]") == 0
    capsys.readouterr()
    assert status_of("inspect", "model.json") == 0
    said = capsys.readouterr().out
    lines = said.splitlines()
    set_here = lines.index("Parameters that differ from the default")
    defaults = lines.index("Parameters with their default")
    kept = dboost.load("model.json").ensemble.parameters
    shown = {name: ast.literal_eval(value) for name, _, value in (line.strip().partition(" = ") for line in lines) if value}
    assert {name: shown[name] for name in kept} == kept
    changed = {line.split(" = ")[0].strip() for line in lines[set_here + 1 : defaults]}
    assert changed == {"max_iter", "interaction_cst", "loss"}
    assert "null" not in said


def test_inspect_as_json(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(*TRAIN, "--set", "max_iter=3") == 0
    booster = dboost.load("model.json")

    def printed(*options: str) -> Any:
        capsys.readouterr()
        assert status_of("inspect", "model.json", "--json", *options) == 0
        return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)

    model = printed()
    assert model["parameters"] == booster.ensemble.parameters
    assert model["metrics"] == {name: list(values) for name, values in booster.ensemble.metrics.items()}
    assert model["sources"][0]["rows"] == 600
    assert {one["name"]: one["splits"] for one in model["features"]}.keys() == set(booster.feature_names_in_)
    assert sum(one["splits"] for one in model["features"]) == sum(tree.n_leaves - 1 for tree in booster.ensemble.trees)
    assert model["features"][3]["levels"] == ["north", "south", "west"]
    several = printed("--importance", "--dependence", "a", "--drift", "rows.parquet")
    assert list(several) == ["importance", "dependence", "drift"]
    assert [one["feature"] for one in several["importance"]] == list(booster.importance().index)
    expected = booster.partial_dependence("a", grid=20)
    assert [one["value"] for one in several["dependence"]] == list(expected["value"])
    assert len(several["drift"]) == 5


def test_inspect_shows_what_matters_and_how(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(*TRAIN, "--set", "max_iter=3") == 0
    booster = dboost.load("model.json")
    first = booster.importance().index[0]
    capsys.readouterr()
    assert status_of("inspect", "model.json", "--importance", "--dependence", first) == 0
    said = capsys.readouterr().out
    assert "100.0" in said and f"Dependence on {first}" in said and "learning_rate" not in said
    assert numbers(booster.partial_dependence(first, grid=20)["value"])[0] in said
    assert status_of("inspect", "model.json", "--dependence", "a,shop", "--data", "rows.parquet") == 0
    assert "Dependence on a and shop" in capsys.readouterr().out
    assert status_of("inspect", "model.json", "--dependence", "shop", "--data", "rows.parquet", "--weight", "a") == 2
    assert "sample_weight='a' is a feature" in capsys.readouterr().err
    assert status_of("inspect", "model.json", "--dependence", "a,sho") == 2
    assert "'shop'" in capsys.readouterr().err


def test_inspect_tells_drift(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(*TRAIN, "--set", "max_iter=3") == 0
    capsys.readouterr()
    assert status_of("inspect", "model.json", "--drift", "rows.parquet", "--target", "price") == 0
    said = capsys.readouterr().out
    assert "Drift of 600 rows from the 600" in said and "target" in said and "strong" not in said
    assert status_of("inspect", "model.json", "--drift", "nowhere.parquet") == 2


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00", b"a,b\n1,2\n", b"iteration,train_loss\n1,much\n", b'iteration,"\n1,2,3\n']
)
def test_a_history_beside_the_model_that_is_none(content: bytes, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(*TRAIN, "--output", "m.json", "--set", "max_iter=2") == 0
    Path("m.json.history.csv").write_bytes(content)
    capsys.readouterr()
    assert status_of("inspect", "m.json") == 2
    assert "m.json.history.csv is not a history of a model" in capsys.readouterr().err


def test_inspect_writes_a_report(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert status_of(*TRAIN, "--set", "max_iter=3", "--history", "model.json.history.csv") == 0
    capsys.readouterr()
    assert status_of("inspect", "model.json", "--html", "report.html", "--data", "rows.parquet", "--target", "price") == 0
    assert "report.html" in capsys.readouterr().out
    page = Path("report.html").read_text()
    assert (
        "Residuals" in page
        and "look like the training rows" in page
        and "seconds in iterations" in page
        and page.endswith("</html>\n")
    )
    before = files(here)
    assert status_of("inspect", "model.json", "--html", "report.html", "--data", "nowhere.parquet") == 2
    for column, options in {
        "sample_weight='a'": ("--target", "price", "--weight", "a"),
        "target='shop'": ("--target", "shop"),
    }.items():
        capsys.readouterr()
        assert status_of("inspect", "model.json", "--html", "report.html", "--data", "rows.parquet", *options) == 2
        assert f"{column} is a feature of the model" in capsys.readouterr().err
    assert files(here) == before


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("train", "nowhere.parquet", "--target", "price"), "nowhere.parquet"),
        (("train", "parts/*.csv", "--target", "price"), "parts/*.csv"),
        ((*TRAIN, "--eval", "nowhere.csv"), "nowhere.csv"),
        ((*TRAIN, "--params", "nowhere.toml"), "nowhere.toml"),
        ((*TRAIN, "--output", "nowhere/model.json"), "there is no folder"),
        ((*TRAIN, "--history", "nowhere/h.csv"), "there is no folder"),
        ((*TRAIN, "--start-from", "old.json"), "cannot read old.json"),
        ((*TRAIN, "--checkpoint", "rows.csv"), "cannot keep a checkpoint in rows.csv"),
        ((*TRAIN, "--memory-limit", "2 elephants"), "--memory-limit '2 elephants'"),
        (("predict", "nowhere.json", "rows.parquet", "--output", "o.parquet"), "nowhere.json"),
        (("predict", "rows.csv", "rows.parquet", "--output", "o.parquet"), "rows.csv"),
        (("inspect", "nowhere.json"), "nowhere.json"),
        (("inspect", "nowhere.json", "--html", "report.html"), "nowhere.json"),
        (("inspect", "nowhere.json", "--html", "nowhere/report.html"), "there is no folder"),
        (("inspect", "nowhere.json", "--data", "rows.parquet"), "--data"),
        (("inspect", "nowhere.json", "--json", "--html", "report.html"), "--json"),
        (("inspect", "nowhere.json", "--dependence", "a", "--weight", "b"), "--weight"),
        (("inspect", "nowhere.json", "--html", "report.html", "--target", "price"), "--target"),
    ],
)
def test_what_cannot_be_used_leaves_nothing_behind(
    here: Path, arguments: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(here)
    assert status_of(*arguments) == 2
    shown = capsys.readouterr()
    said = [line for line in shown.err.splitlines() if not line.startswith("compiling")]
    assert len(said) == 1
    assert said[0].startswith("dboost: ")
    assert complaint in said[0]
    assert shown.out == ""
    assert files(here) == before


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (TRAIN, "--eval"),
        (TRAIN, "--target"),
        (TRAIN, "--start-from/--init-model"),
        (TRAIN, "--workers"),
        (("predict", "model.json", "rows.csv"), "--output"),
        (("inspect", "model.json"), "--data"),
        (("prepare", "rows.csv", "--target", "price", "--output", "kept"), "--memory-limit"),
        (("cv", "rows.csv", "--target", "price"), "--folds"),
        (("demo",), "--output"),
    ],
)
def test_an_option_with_one_value_is_given_once(
    here: Path, command: tuple[str, ...], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(here)
    names = option.split("/")
    with pytest.raises(SystemExit) as stopped:  # 5 is the default of --folds: a value like any other
        main([*command, names[0], "5", f"{names[-1]}=3"])
    assert stopped.value.code == 2 and files(here) == before
    assert f"dboost: {option} takes one value, but is given more than once (see dboost" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train ''", "train a.csv --output ''", "predict '' a.csv", "cv a.csv --params ''"])
def test_an_empty_path_is_called_so(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(shlex.split(command))
    assert stopped.value.code == 2 and "a path or URL is empty (see dboost" in capsys.readouterr().err


def test_predicting_needs_the_columns_of_the_model(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(*TRAIN, "--quiet", "--set", "max_iter=2") == 0
    pd.DataFrame({"a": [1.0], "b": [2.0], "shop": ["west"]}).to_csv("narrow.csv", index=False)
    before = files(here)
    assert status_of("predict", "model.json", "narrow.csv", "--output", "out.parquet") == 2
    assert "'c'" in capsys.readouterr().err
    assert status_of("predict", "model.json", "rows.csv", "--output", "out.parquet", "--proba") == 2
    assert "predicts numbers" in capsys.readouterr().err
    assert status_of("predict", "rows.csv", "model.json", "--output", "out.parquet") == 2
    assert "the rows second: write dboost predict model.json rows.csv" in capsys.readouterr().err
    assert files(here) == before


def test_a_late_error_leaves_no_half_written_predictions(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(*TRAIN, "--quiet", "--set", "max_iter=2") == 0
    content = Path("parts/2.parquet").read_bytes()
    Path("parts/2.parquet").write_bytes(content[:10] + b"x" * 300 + content[310:])  # pages, not the metadata at the end
    before = files(here)
    for output in ("out.parquet", "out/"):
        assert status_of("predict", "model.json", "parts", "--output", output) == 2
        assert capsys.readouterr().err.startswith("dboost: parts, partition 2: ")
    assert files(here) == before


def test_a_run_that_fails(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("out of\nluck")

    monkeypatch.setattr(dboost.Booster, "save", fail)
    assert status_of(*TRAIN, "--quiet", "--set", "max_iter=1") == 1
    assert capsys.readouterr().err == "dboost: RuntimeError: out of luck (--debug shows where)\n"
    assert status_of(*TRAIN, "--quiet", "--set", "max_iter=1", "--debug") == 1
    assert "Traceback" in capsys.readouterr().err
    assert not (here / "model.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupting_says_how_far_it_came(here: Path, number: int, status: int) -> None:
    command = [sys.executable, "-m", "dboost", *TRAIN, "--set", "max_iter=1000000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        while first.startswith(("compiling", "reading", "binning")):
            first = process.stderr.readline()
        process.send_signal(number)
        try:
            rest = process.communicate(timeout=60)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert first.startswith("iteration 1/1000000: train_rmse")
    assert re.search(r"^dboost: interrupted after \d+ of 1000000 iterations; nothing was saved$", rest, re.MULTILINE)
    assert "Traceback" not in rest
    assert process.returncode == status
    assert not (here / "model.json").exists()


@pytest.mark.slow
def test_the_demo_shows_and_leaves_its_results(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("demo", "--output", "shown") == 0
    said = capsys.readouterr().out
    predictions = pd.read_parquet("shown/predictions.parquet")
    assert (predictions["diagnosis"] == predictions["prediction"]).mean() > 0.9
    assert Path("shown/demo.png").stat().st_size > 10_000
    model = Path("shown/model.json").read_bytes()
    command = next(line for line in said.splitlines() if "dboost train shown/train.parquet" in line)
    subprocess.run(command.split(), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert Path("shown/model.json").read_bytes() == model


def test_a_checkpoint_is_resumed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN, "--set", "max_iter=5", "--output", "old.json", "--checkpoint", "kept"]) == 0
    assert main([*TRAIN, "--set", "max_iter=8", "--output", "longer.json", "--checkpoint", "kept"]) == 0
    assert main([*TRAIN, "--set", "max_iter=8", "--output", "at_once.json"]) == 0
    assert Path("longer.json").read_bytes() == Path("at_once.json").read_bytes()
    capsys.readouterr()
    assert main([*TRAIN, "--set", "learning_rate=0.5", "--checkpoint", "kept"]) == 2
    assert "learning_rate was 0.1 then and is 0.5 now" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "n_paths"),
    [
        ("train ~/a --target=y --eval=~/b --output=~/c --history=~/d --start-from=~/e --moved-from=~/f --checkpoint=~/g", 7),
        ("train ~/a --params=~/b", 2),
        ("predict ~/a ~/b --output=~/c/", 3),
        ("inspect ~/a --drift=~/b --html=~/c --data=~/d", 4),
        ("prepare ~/a --target=y --output=~/b", 2),
        ("cv ~/a --output=~/b --predictions=~/c", 3),
        ("demo --output=~/a", 1),
    ],
)
def test_every_argument_that_is_a_path_may_begin_with_a_tilde(command: str, n_paths: int, monkeypatch: Any) -> None:
    monkeypatch.setenv("HOME", "/home/one")
    found = [value for value in vars(settings.parse(command.split())).values() if isinstance(value, str)]
    assert sum(value.startswith("/home/one/") for value in found) == n_paths
    assert not any("~" in value for value in found)
