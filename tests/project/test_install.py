"""A new user: a fresh environment with the wheel, an empty folder, the README's code; the same models on every Python.

By default one other Python than the running one is tried (an environment is downloaded; kernels that were never compiled
for it take minutes). ``make test-pythons`` tries all of them, also with the oldest and the newest versions of the dependencies.
"""

from __future__ import annotations

import faulthandler
import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers import portable_fits
from tests.helpers.installed import COMMANDS, PATIENT, PYTHON_BLOCKS, ROOT, find_python, lower_bounds, needs_an_index, run

RUNNING = f"3.{sys.version_info[1]}"
PINNED = ROOT / "requirements" / "run.txt"


@dataclass(frozen=True)
class Case:
    """A Python, and which versions of the dependencies it has: "pinned" as in requirements/run.txt, "oldest" or "newest"."""

    python: str
    versions: str = "pinned"

    def __str__(self) -> str:
        return f"Python {self.python}, {self.versions} versions"


MATRIX = [*(Case(f"3.{minor}") for minor in (11, 12, 13, 14)), Case("3.11", "oldest"), Case("3.13", "newest")]
#: Without ``make test-pythons``: the first of these that is not the running Python and exists here.
ONE_OTHER = [case for case in (Case("3.13"), Case("3.12"), Case("3.11")) if case.python != RUNNING]


def chosen() -> list[object]:
    cases = [next((case for case in ONE_OTHER if find_python(case.python)), ONE_OTHER[0])]
    if os.environ.get("TEST_PYTHONS") == "all":
        cases = MATRIX
    # Skipped here, because the fixtures take minutes.
    absent = {
        case: pytest.mark.skip(f"there is no Python {case.python} here") for case in cases if not find_python(case.python)
    }
    return [pytest.param(case, marks=absent.get(case, ()), id=str(case)) for case in cases]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    needs_an_index(folder)
    for path in ("dboost", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        if (ROOT / path).is_dir():
            shutil.copytree(ROOT / path, folder / path, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / path, folder)
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder / "dist"), str(folder)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return next((folder / "dist").glob("*.whl"))


@pytest.fixture(scope="module")
def models_here(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The digests of the models that this Python trains, from the checkout."""
    folder = tmp_path_factory.mktemp("here")
    own = {"PYTHONPATH": str(ROOT), **PATIENT}
    command = [sys.executable, portable_fits.__file__]
    done = subprocess.run(command, cwd=folder, env=os.environ | own, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return read_digests(done.stdout)


def read_digests(printed: str) -> dict[str, str]:
    digests = dict(line.split() for line in printed.splitlines())
    assert list(digests) == list(portable_fits.FITS)
    return digests


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("case", chosen())
def test_a_new_user_runs_the_readme(case: Case, wheel: Path, models_here: dict[str, str], tmp_path: Path) -> None:
    faulthandler.cancel_dump_traceback_later()  # every program has a deadline of its own
    interpreter = find_python(case.python)
    assert interpreter is not None
    home, folder = tmp_path / "home", tmp_path / "empty"
    home.mkdir()
    folder.mkdir()
    subprocess.run([interpreter, "-m", "venv", tmp_path / "env"], check=True)
    program = tmp_path / "env" / "bin"
    # Modules are compiled when they are imported: pip would compile all of them.
    options = ["--quiet", "--disable-pip-version-check", "--no-compile"]
    if case.versions == "pinned":
        options += ["--constraint", str(PINNED)]
    if case.versions == "oldest":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        options += lower_bounds(project["dependencies"])
    run([program / "python", "-m", "pip", "install", *options, wheel], folder, home)

    (folder / "use.py").write_text("\n".join(PYTHON_BLOCKS), encoding="utf-8")
    assert run([program / "python", "use.py"], folder, home).strip()
    model = (folder / "model.json").read_bytes()
    assert len(COMMANDS) == 3
    for command in COMMANDS:
        run([program / command.split()[0], *command.split()[1:]], folder, home)
    assert {path.name for path in folder.iterdir()} == {"model.json", "predictions.parquet", "train.parquet", "use.py"}
    assert hashlib.sha256(model).digest() != hashlib.sha256((folder / "model.json").read_bytes()).digest()

    shutil.copy(portable_fits.__file__, folder)
    printed = run([program / "python", "portable_fits.py"], folder, home)
    assert read_digests(printed) == models_here
