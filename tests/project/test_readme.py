"""The README's Python code runs unchanged, also when it is pasted line by line into an interactive Python."""

from __future__ import annotations

import code
import sys
from pathlib import Path

import pytest

from tests.helpers.installed import PYTHON_BLOCKS


class Console(code.InteractiveConsole):
    """An interactive interpreter that raises what it would print."""

    def showsyntaxerror(self, *_: object, **__: object) -> None:
        raise

    def showtraceback(self) -> None:
        raise


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert PYTHON_BLOCKS, "the README has no examples"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "displayhook", lambda value: None)
    console = Console()
    for block in PYTHON_BLOCKS:
        for line in f"{block}\n".split("\n"):
            console.push(line)
    assert capsys.readouterr().out.strip(), "the examples print something"
    assert {"again", "on_cluster"} <= console.locals.keys()
