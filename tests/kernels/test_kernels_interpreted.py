"""With NUMBA_DISABLE_JIT=1 kernels are interpreted: the models equal those of compiled kernels, to the last bit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.helpers.option_fits import FITS, train


def train_interpreted(names: Iterable[str], folder: Path) -> None:
    """Call `train` in a process that compiles nothing."""
    code = "import pathlib, sys; from tests.helpers.option_fits import train\n"
    code += "for name in sys.argv[2:]: train(name, pathlib.Path(sys.argv[1]))"
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run([sys.executable, "-c", code, str(folder), *names], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "compiling kernels" not in done.stderr


def compare(name: str, one: Path, other: Path) -> None:
    train(name, one)
    made = sorted(path.name for path in one.iterdir())
    assert made
    for file in made:
        assert (one / file).read_bytes() == (other / file).read_bytes(), file


@pytest.mark.slow
def test_models_are_those_of_compiled_kernels(tmp_path_factory: pytest.TempPathFactory) -> None:
    interpreted = tmp_path_factory.mktemp("interpreted")
    names = ("squared_error", "streamed")
    train_interpreted(names, interpreted)
    for name in names:
        compare(name, tmp_path_factory.mktemp("compiled"), interpreted)


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interpreted")
    train_interpreted(FITS, folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", FITS)
def test_all_models_are_those_of_compiled_kernels(interpreted: Path, tmp_path: Path, name: str) -> None:
    compare(name, tmp_path, interpreted)
