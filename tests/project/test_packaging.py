"""The package's metadata, extras and archives."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

import dboost
from dboost.errors import _EXTRAS
from tests.helpers.installed import ROOT, needs_an_index

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def texts() -> Iterator[tuple[Path, str]]:
    for folder in ("dboost", "docs", "deploy"):
        for path in sorted((ROOT / folder).rglob("*")):
            is_made = any(part.startswith((".", "_build", "_generated")) for part in path.relative_to(ROOT).parts)
            if path.suffix in (".py", ".md", ".yaml", "") and path.is_file() and not is_made:
                yield path, path.read_text(encoding="utf-8")
    yield ROOT / "README.md", (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_extra_that_is_named_exists() -> None:
    extras = set(PROJECT["optional-dependencies"])
    named = {
        (path, extra)
        for path, text in texts()
        for extras_of_one in re.findall(r"(?:dboost|(?<![*\w])\.)\[([a-z0-9,]+)\]", text)
        for extra in extras_of_one.split(",")
    }
    assert len(named) > 5
    assert [(str(path), extra) for path, extra in named if extra not in extras] == []
    assert set(_EXTRAS.values()) <= extras
    assert {"plots", "export", "s3", "gcs", "docs", "dev"} <= extras


def test_the_page_about_installation_lists_every_extra() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert [extra for extra in PROJECT["optional-dependencies"] if f"| `[{extra}]` |" not in page] == []


def test_the_page_about_installation_states_the_bounds_and_the_pins() -> None:
    """The table has a line for every dependency, with the lower bound and the version of requirements/run.txt."""
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    pins = dict(line.split("==") for line in (ROOT / "requirements" / "run.txt").read_text().splitlines() if "==" in line)
    for requirement in PROJECT["dependencies"]:
        name, bound = re.fullmatch(r"([a-z0-9-]+)(?:\[\w+\])?>=([\d.]+)", requirement).groups()
        assert f"| {name} | {bound} | {pins[name]} |" in page, requirement


def test_every_pin_can_be_installed_with_the_first_release_of_the_oldest_python() -> None:
    """Distributions keep an early patch release, so a pin that needs a later one breaks `make test` there."""
    files = [(ROOT / "requirements" / name).read_text() for name in ("run.txt", "dev.txt")]
    pins = [line.partition("==")[0] for text in files for line in text.splitlines() if "==" in line]
    oldest = PROJECT["requires-python"].removeprefix(">=") + ".0"
    needs: dict[str, str] = {}
    for pin in pins:
        with suppress(PackageNotFoundError):  # of another platform
            needs[pin] = metadata(pin.partition("[")[0].strip()).get("Requires-Python") or ""
    assert len(needs) > 100
    assert {pin: need for pin, need in needs.items() if not SpecifierSet(need).contains(oldest)} == {}


def test_the_tested_versions_of_python_agree() -> None:
    classifiers = [found[1] for line in PROJECT["classifiers"] if (found := re.search(r":: (3\.\d+)$", line))]
    assert PROJECT["requires-python"] == f">={classifiers[0]}"
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| Python (3\.\d+) \| tested", page, re.MULTILINE) == classifiers


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == dboost.__version__
    assert (citation["title"], citation["license"]) == (PROJECT["name"], PROJECT["license"])
    assert citation["cff-version"] == "1.2.0" and citation["authors"] and citation["message"]


def files_of_the_package() -> dict[str, bytes]:
    found = {}
    for path in (ROOT / "dboost").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".nbi", ".nbc"):
            found[path.relative_to(ROOT).as_posix()] = path.read_bytes()
    return found


@pytest.mark.long
@pytest.mark.slow
def test_the_archives_contain_the_package_and_nothing_else(tmp_path: Path) -> None:
    """The wheel is built from the source distribution, so this also shows that the latter is sufficient."""
    needs_an_index(tmp_path)
    source = tmp_path / "source"
    source.mkdir()
    no_caches = shutil.ignore_patterns("__pycache__", "_build", "_generated")
    for path in ROOT.iterdir():
        if path.name in ("dboost", "tests", "docs", "examples", "deploy", "requirements"):
            shutil.copytree(path, source / path.name, ignore=no_caches)
        elif path.is_file():
            shutil.copy(path, source)
    # What lies beside the code in a checkout that is in use.
    cache = source / "dboost" / "kernels" / "__pycache__"
    cache.mkdir()
    (cache / "splits.compiled-1.py311.nbc").write_bytes(b"machine code")
    (source / "dboost" / "kernels" / "splits.py.orig").write_text("left by an editor")
    built = subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(tmp_path / "dist"), str(source)], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stdout + built.stderr
    expected = files_of_the_package()
    assert {"dboost/py.typed", "dboost/dboost.yaml", "dboost/model/model.schema.json"} < set(expected)
    assert sum(name.endswith((".jinja", ".css")) for name in expected) >= 4
    name = f"dboost-{dboost.__version__}"
    with zipfile.ZipFile(tmp_path / "dist" / f"{name}-py3-none-any.whl") as wheel:
        content = {path: wheel.read(path) for path in wheel.namelist() if not path.startswith(f"{name}.dist-info/")}
        assert f"{name}.dist-info/licenses/LICENSE" in wheel.namelist()
        metadata = wheel.read(f"{name}.dist-info/METADATA").decode()
    assert content == expected
    assert f"\nVersion: {dboost.__version__}\n" in metadata and "\nLicense-Expression: BSD-3-Clause\n" in metadata
    with tarfile.open(tmp_path / "dist" / f"{name}.tar.gz") as archive:
        members = {path.name.partition("/")[2] for path in archive.getmembers() if path.isfile()}
    others = {"LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}
    assert {path for path in members if not path.startswith("dboost.egg-info/")} == set(expected) | others
