"""Without the system calls that only Linux has, models are the same, from rows in memory and in files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.option_fits import train

#: Names are removed after other libraries have been imported, which need some of them.
HIDE = """
import ctypes, errno, os, sys
from pathlib import Path
import dask.dataframe, distributed, numba, numpy, pandas, pyarrow.parquet, pytest
import numba.extending
names, module = sys.argv[1].split(), sys.argv[2]
for name in names:
    if hasattr(os, name):
        delattr(os, name)
def library(*_):
    raise TypeError("no name")
if module:
    sys.modules[module] = None
    del errno.EDQUOT
    ctypes.CDLL = library
import dboost, dboost.cluster.worker.worker_plugin, dboost.cluster.scheduler.reducer
from dboost.session.memory import keep_freed_memory, trim_memory
dask.config.set({"dboost.keep-freed-memory": True})
trim_memory()
keep_freed_memory()
from tests.helpers.option_fits import train
for name in ("squared_error", "streamed"):
    train(name, Path(sys.argv[3]))
"""
MACOS = (
    "sched_getaffinity sched_yield posix_fallocate posix_fadvise sendfile memfd_create getrandom copy_file_range preadv pwritev"
)
WINDOWS = f"{MACOS} pread pwrite geteuid getuid fchmod chown getpgid killpg"


@pytest.mark.slow
@pytest.mark.parametrize(("names", "module"), [pytest.param(MACOS, "", id="mac"), pytest.param(WINDOWS, "fcntl", id="windows")])
def test_fits_need_none_of_what_other_systems_lack(tmp_path: Path, names: str, module: str) -> None:
    for folder in ("here", "there", "temporary"):
        (tmp_path / folder).mkdir()
    environment = os.environ | {"DASK_TEMPORARY_DIRECTORY": str(tmp_path / "temporary")}
    command = [sys.executable, "-c", HIDE, names, module, str(tmp_path / "there")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in ("squared_error", "streamed"):
        train(name, tmp_path / "here")
    for path in (tmp_path / "here").iterdir():
        assert path.read_bytes() == (tmp_path / "there" / path.name).read_bytes(), path.name
    assert list((tmp_path / "temporary").iterdir()) == []
