"""What the tests of an installation need: the README's code, the Pythons of this machine, environments with a wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
#: The Python code of the README.
PYTHON_BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
#: The README's commands.
COMMANDS = re.findall(r"^dboost (?:train|inspect|predict) .*$", README, re.MULTILINE)
#: Workers that import everything for the first time, on a busy machine, may take longer than the default.
PATIENT = {"DASK_DBOOST__PATIENCE": "60s"}
#: The variables that pip needs to reach its index.
_PASSED = ("PIP_", "SSL_", "REQUESTS_")


def environment(home: Path) -> dict[str, str]:
    """Return the variables of a new user, who has an empty home and nothing of this process but the way to pip's index.

    Kernels of the same code, Python and Numba that were compiled on this machine are not compiled again.
    """
    passed = {key: value for key, value in os.environ.items() if key.startswith(_PASSED) or "proxy" in key.lower()}
    kernels = os.environ.get("NUMBA_CACHE_DIR", str(home / "kernels"))
    own = {"HOME": str(home), "PATH": "/usr/bin:/bin", "NUMBA_CACHE_DIR": kernels}
    return {**passed, **own, **PATIENT}


def run(command: Sequence[str | Path], folder: Path, home: Path, minutes: float = 15) -> str:
    """Run a program as a new user and return what it printed; fail with everything that it printed."""
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=environment(home), capture_output=True, text=True, timeout=60 * minutes
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def find_python(version: str) -> Path | None:
    """Return an interpreter of a version ("3.12") that can make environments: of this process, on the PATH or of pyenv."""
    base = Path(sys.base_prefix) / "bin" / f"python{version}"
    on_path = shutil.which(f"python{version}")
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    by_number = sorted(pyenv.glob(f"{version}.*/bin/python"), key=lambda path: path.parts[-3].rpartition(".")[2].rjust(9, "0"))
    check = f"import sys, venv, ensurepip; sys.exit('%d.%d' % sys.version_info[:2] != {version!r})"
    for path in (base, *reversed(by_number), *([Path(on_path)] if on_path else [])):
        # Some names exist and do not start.
        if path.exists() and subprocess.run([path, "-c", check], capture_output=True).returncode == 0:
            return path
    return None


def needs_an_index(tmp_path: Path) -> None:
    """Skip the test where pip cannot download."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(tmp_path), "setuptools"]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("pip cannot download packages here")


def lower_bounds(requirements: Sequence[str]) -> list[str]:
    """Return requirements at their lowest versions: ``numpy>=2.0`` becomes ``numpy==2.0``."""
    assert all(">=" in requirement for requirement in requirements)
    return [requirement.replace(">=", "==") for requirement in requirements]
