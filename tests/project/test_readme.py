"""The README: its Python code runs, also pasted line by line into an interactive Python, and its links lead somewhere."""

from __future__ import annotations

import code
import re
import sys
from pathlib import Path

import pytest

from tests.helpers.installed import PYTHON_BLOCKS, README, ROOT


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


def test_links_of_the_readme_lead_to_files_and_headings() -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", README)
    assert len(links) > 20
    links += re.findall(r'\b(?:src|srcset)="([^"]+)"', README)
    for path, _, anchor in (link.partition("#") for link in links):
        assert (ROOT / path).is_file(), path
        headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
        assert not anchor or anchor in [heading.lower().replace(" ", "-") for heading in headings], f"{path}#{anchor}"
