"""With NUMBA_DISABLE_JIT=1 kernels are interpreted: the models equal those of compiled kernels, to the last bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.option_fits import FITS, train

#: Trains all fits in a process that compiles nothing.
INTERPRETED = """
import pathlib, sys
from tests.helpers.option_fits import FITS, train
for name in FITS:
    train(name, pathlib.Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_models_are_those_of_compiled_kernels(tmp_path: Path) -> None:
    interpreted, compiled = tmp_path / "interpreted", tmp_path / "compiled"
    for folder in (interpreted, compiled):
        folder.mkdir()
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    command = [sys.executable, "-c", INTERPRETED, str(interpreted)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "compiling kernels" not in done.stderr
    for name in FITS:
        train(name, compiled)
    made = {path.name: path.read_bytes() for path in compiled.iterdir()}
    assert len(made) > 2 * len(FITS)
    assert [name for name, content in made.items() if (interpreted / name).read_bytes() != content] == []
