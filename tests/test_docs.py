"""The documentation: every Python block runs, page by page; names in the migration tables exist; the build has no warnings."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import dboost
from dboost.params import Parameters

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
#: A comment above a block names a library that the tests' environment may lack.
NEEDS = re.compile(r"^% needs (\w+)\n\n\Z", re.MULTILINE)


def pages() -> list[Path]:
    return sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)


def named(paths: list[Path]) -> list[object]:
    return [pytest.param(path, id=str(path.relative_to(DOCS))) for path in paths]


@pytest.mark.parametrize("page", named([page for page in pages() if BLOCK.search(page.read_text(encoding="utf-8"))]))
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_blocks(page, libraries=set())


@pytest.mark.parametrize(
    ("page", "library"),
    [
        pytest.param(page, library, id=f"{page.relative_to(DOCS)}-{library}")
        for page in pages()
        for library in sorted(set(re.findall(r"^% needs (\w+)$", page.read_text(encoding="utf-8"), re.MULTILINE)))
    ],
)
def test_the_code_that_needs_a_library_runs(page: Path, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed")
    monkeypatch.chdir(tmp_path)
    assert run_blocks(page, libraries={library}) > 0


def run_blocks(page: Path, libraries: set[str]) -> int:
    """Run the blocks of a page that need none but these libraries; return their number."""
    text = page.read_text(encoding="utf-8")
    n_run = 0
    # A module, so that classes defined on the page have one.
    names: dict[str, object] = {"__name__": "__main__"}
    for block in BLOCK.finditer(text):
        needed = NEEDS.search(text[: block.start()])
        if needed is not None and needed[1] not in libraries:
            continue
        lines_above = text[: block.start(1)].count("\n")
        exec(compile("\n" * lines_above + block[1], str(page), "exec"), names)
        n_run += 1
    return n_run


def test_code_is_found_on_the_pages_that_teach() -> None:
    with_code = {str(page.relative_to(DOCS)) for page in pages() if BLOCK.search(page.read_text(encoding="utf-8"))}
    assert {"quickstart.md", "model_format.md", "guide/data.md", "guide/clusters.md", "guide/saving.md"} <= with_code


@pytest.mark.parametrize("page", named(sorted((DOCS / "migration").glob("*_*.md"))))
def test_names_in_migration_tables_exist(page: Path) -> None:
    known = {field.name for field in fields(Parameters)} | set(inspect.signature(dboost.fit).parameters)
    known |= set(dboost.DBoostClassifier().get_params()) | {"eval_set"}
    rows = [line.split("|")[1:-1] for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 20
    unknown = []
    for _, ours, *_ in rows:
        unknown += [name for name in re.findall(r"`(\w+)", ours) if name not in known]
    assert unknown == []


@pytest.mark.parametrize("page", named(sorted((DOCS / "migration").glob("*_*.md"))))
def test_defaults_in_migration_tables_are_true(page: Path) -> None:
    """Third column: it begins with dboost's default, if it names one."""
    estimator = dboost.DBoostClassifier().get_params()
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) != 3 or not re.fullmatch(r"`\w+`", cells[1]):
            continue
        name, stated = cells[1].strip("`"), re.match(r"(\d[\d.e-]*\d|\d|none\b)", cells[2])
        if stated:
            default = getattr(Parameters(), name) if hasattr(Parameters(), name) else estimator[name]
            assert default == (None if stated[0] == "none" else float(stated[0])), line


@pytest.mark.slow
def test_the_documents_build_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("pydata_sphinx_theme")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(DOCS), str(tmp_path / "html")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"PYTHONHASHSEED": "0"})
    assert built.returncode == 0, built.stderr
    for page in (tmp_path / "html").rglob("*.html"):
        assert loads_from_elsewhere(page.read_text(encoding="utf-8")) == [], page


def loads_from_elsewhere(html: str) -> list[str]:
    """Return the URLs that a browser would load from other hosts by itself (not the targets of links)."""
    found = re.findall(r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\bsrc=\"((?:https?:)?//[^\"]+)", html)
    found += re.findall(r"<link\b[^>]*\bhref=\"((?:https?:)?//[^\"]+)", html)
    return found + re.findall(r"@import[^;]*//[^;]+|url\([\"']?(?:https?:)?//[^)]+", html)


def test_what_would_be_loaded_is_seen() -> None:
    assert loads_from_elsewhere('<script src="https://a/b.js"></script><link rel="x" href="//c/d.css">') != []
    assert loads_from_elsewhere('<a href="https://a">a</a><script src="_static/a.js"></script>') == []
