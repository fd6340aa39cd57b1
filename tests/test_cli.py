"""The command line: what it understands, what it refuses, and what it leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dboost.cli import main, outputs, settings
from dboost.errors import ParameterError

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
    assert found == {"max_iter": 9, "loss": "huber", "features": ["a", "b"]}


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        ("max_leaves=3", "unknown parameter 'max_leaves' in --set; did you mean 'max_leaf_nodes'?"),
        ("zzz=3", "unknown parameter 'zzz' in --set; there are: learning_rate, max_iter"),
        ("eval_set=x", "use --eval"),
        ("target=x", "use --target"),
        ("max_iter", "--set takes key=value, not 'max_iter'"),
        ("max_iter=", "--set takes key=value"),
        ("=3", "--set takes key=value"),
    ],
)
def test_what_cannot_be_set(assignment: str, complaint: str) -> None:
    with pytest.raises(ParameterError) as error:
        settings.gather(None, [assignment], KNOWN)
    assert complaint in str(error.value)


def test_a_parameter_file_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="cannot read the parameter file"):
        settings.gather(str(tmp_path / "none.toml"), [], KNOWN)
    bad = tmp_path / "bad.toml"
    bad.write_text("max_iter 5")
    with pytest.raises(ParameterError, match=r"bad\.toml is not valid TOML"):
        settings.gather(str(bad), [], KNOWN)
    bad.write_text("max_itr = 5")
    with pytest.raises(ParameterError, match=r"'max_itr' in .*bad\.toml; did you mean 'max_iter'"):
        settings.gather(str(bad), [], KNOWN)


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"before")
    with pytest.raises(RuntimeError), outputs.whole(str(path)) as file:
        file.write(b"half")
        raise RuntimeError
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]
    with outputs.whole(str(path)) as file:
        file.write(b"after")
    assert path.read_bytes() == b"after"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with pytest.raises(RuntimeError), outputs.whole_folder(f"{path}/") as create:
        with create("a") as file:
            file.write(b"half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    path.mkdir()
    with outputs.whole_folder(f"{path}/") as create, create("a") as file:
        file.write(b"whole")
    assert (path / "a").read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [path]


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
            outputs.check(f"{tmp_path}/{wrong}", "--output")
    for right in ("file", "new", "new/", "empty/"):
        outputs.check(f"{tmp_path}/{right}", "--output")


def status_of(*arguments: str) -> int:
    """The exit status of a command, whether argparse or `main` decides it."""
    try:
        return main(list(map(str, arguments)))
    except SystemExit as exit:
        return int(exit.code or 0)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "required: COMMAND"),
        (("fly",), "invalid choice: 'fly'"),
        (("train", "x.csv"), "required: --target"),
        (("train", "x.csv", "--target", "y", "--colour", "red"), "unrecognized arguments: --colour"),
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


def test_help_and_version(capsys: Any) -> None:
    assert status_of("--help") == 0
    assert "train" in capsys.readouterr().out
    assert status_of("train", "--help") == 0
    assert "--memory-limit" in capsys.readouterr().out
    assert status_of("--version") == 0
    assert capsys.readouterr().out.startswith("dboost 0.")
