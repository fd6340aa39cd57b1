"""The cache of compiled kernels: when kernels are compiled again, several processes, folders that cannot be written."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from numba import types
from numba.core.caching import NullCache

from dboost import kernels
from dboost.cli import main, warmup_command
from dboost.kernels.checksum import checksum
from dboost.losses import BUILT_IN

if kernels.KNOWN_NUMBA:
    from dboost.kernels import cache_files
    from dboost.kernels.cache_files import KernelFiles
    from dboost.kernels.internal_code import KIND

known_numba = pytest.mark.skipif(not kernels.KNOWN_NUMBA, reason="other versions of Numba have a cache of their own")

PACKAGE = Path(__file__).parents[2] / "dboost"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a folder with a copy of the package, to which a small kernel is added, and an empty folder for the cache."""
    shutil.copytree(PACKAGE, tmp_path / "code" / "dboost", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "code" / "dboost" / "kernels" / "one.py").write_text(
        "from dboost.kernels import kernel\n\n\n@kernel\ndef twice(x):\n    return 2 * x\n"
    )
    (tmp_path / "cache").mkdir()
    return tmp_path


def use(folder: Path, *before: str, first: str = "") -> tuple[int, bool]:
    """Return what the kernel returns in a new process (which runs some code first), and whether it was compiled there."""
    result, said = printed(folder, *before, first=first)
    return result, "compiling kernels" in said


def printed(folder: Path, *before: str, first: str = "") -> tuple[int, str]:
    """Return the same, and what the process printed about it."""
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": str(folder / "code"), "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    command = [*before, sys.executable, "-c", f"{first}\nfrom dboost.kernels.one import twice; print(twice(21))"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return int(done.stdout), done.stderr


def kept(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in (folder / "cache").rglob("*.nb?")}


@pytest.mark.slow
@known_numba
def test_copies_of_the_code_share_kernels_until_a_file_with_kernels_changes(copy: Path) -> None:
    assert use(copy) == (42, True)
    shutil.copytree(copy / "code", copy / "second" / "code", ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "second" / "cache").symlink_to(copy / "cache")
    for file in (copy / "second").rglob("*.py"):  # as in an image, where times are truncated to seconds
        os.utime(file, (0, 0))
    assert use(copy / "second") == (42, False)
    assert use(copy) == (42, False)
    (copy / "code" / "dboost" / "losses" / "base.py").open("a").write("# changed\n")
    assert use(copy) == (42, True)


#: Run first in a process, makes dboost take Numba for a version that `cache_files` does not support.
OTHER_NUMBA = "import numba; numba.version_info = numba.version_info._replace(short=(0, 69))"


@pytest.mark.slow
def test_other_versions_of_numba_use_numbas_cache(copy: Path) -> None:
    check = OTHER_NUMBA + "\nfrom dboost import kernels; assert not kernels.KNOWN_NUMBA"
    assert use(copy, first=check) == (42, True)
    assert use(copy, first=OTHER_NUMBA) == (42, False)
    assert use(copy) == (42, kernels.KNOWN_NUMBA)  # neither loads what the other has kept
    # Numba itself only looks at the file of the kernel.
    (copy / "code" / "dboost" / "losses" / "base.py").open("a").write("# changed\n")
    assert use(copy, first=OTHER_NUMBA) == (42, True)
    assert use(copy, first=OTHER_NUMBA) == (42, False)


@pytest.mark.long
@pytest.mark.slow
def test_other_versions_of_numba_train_the_same_model(tmp_path: Path) -> None:
    fit = "import numpy as np, dboost; X = np.random.default_rng(0).normal(size=(500, 4)).round(1)\n"
    fit += "print(dboost.fit(X, X[:, 0], sample_weight=abs(X[:, 1]), max_iter=3, n_threads=1).sha256)"
    # The kernels of other versions are kept apart; those of this version are the ones of all tests.
    own = {"NUMBA_CACHE_DIR": str(tmp_path)}
    runs = []
    for first, folder in ((OTHER_NUMBA, own), (OTHER_NUMBA, own), ("", {})):
        command = [sys.executable, "-c", f"{first}\n{fit}"]
        runs.append(subprocess.run(command, env=os.environ | folder, capture_output=True, text=True))
        assert runs[-1].returncode == 0, runs[-1].stderr
    assert ["compiling kernels" in run.stderr for run in runs[:2]] == [True, False]
    assert len({run.stdout for run in runs}) == 1 and len(runs[0].stdout) == 65


PARTS = """
from dboost.kernels import internal, kernel

@internal
def twice(x):
    return 2 * x

@kernel
def four_times(x):
    return twice(twice(x))

@kernel
def eight_times(x):
    return 2 * twice(twice(x))
"""
USED = """
import sys
from dboost.kernels.parts import eight_times, four_times, twice
print(four_times(10), "numba.np.arrayobj" in sys.modules)
print(eight_times(10), sum(twice.stats.cache_hits.values()))
"""


@pytest.mark.slow
@known_numba
def test_cached_kernels_load_without_what_numba_compiles_with_and_new_kernels_use_them(copy: Path) -> None:
    (copy / "code" / "dboost" / "kernels" / "parts.py").write_text(PARTS)

    def said(code: str) -> str:
        environment = os.environ | {"NUMBA_CACHE_DIR": str(copy / "cache"), "PYTHONPATH": str(copy / "code")}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=copy)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert said("from dboost.kernels.parts import four_times; print(four_times(1))") == "4\n"
    assert said(USED) == "40 False\n80 1\n"
    # A callee is linked into its callers: it has no machine code of its own.
    linked_only = {Path(name).name.split(".")[1].split("-")[0]: KIND.encode() in data for name, data in kept(copy).items()}
    assert linked_only == {"twice": True, "four_times": False, "eight_times": False}


@pytest.mark.slow
@known_numba
def test_what_is_printed_about_keeping_kernels_is_true(copy: Path) -> None:
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
    result, said = printed(copy, first=full)
    assert result == 42 and said.count("compiled kernels are not kept for the next time: [Errno 27] File too large") == 1
    assert not kept(copy)
    assert printed(copy) == (42, "compiling kernels (kept in Numba's cache for the next time) …\n") and kept(copy)


@pytest.mark.parametrize("why", ["NUMBA_DISABLE_JIT is set", "no folder of the cache can be written"])
def test_warmup_refuses_to_compile_what_is_not_kept(
    why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if why.startswith("NUMBA"):
        monkeypatch.setattr(kernels, "INTERPRETED", True)
    else:
        monkeypatch.setattr(checksum, "_cache", NullCache())
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main(["warmup"]))
    assert ended.value.code == 1
    assert f"compiled kernels are not kept for later processes: {why}" in capsys.readouterr().err


@pytest.mark.slow
def test_warmup_trains_with_every_loss() -> None:
    """The tests of the image run the command with some of the losses."""
    losses, targets = warmup_command.losses(), warmup_command.targets()
    assert {loss.name for loss in BUILT_IN} == {*losses, "squared_error", "log_loss"}
    table = warmup_command.tables()["columns of numbers"]
    warmup_command._use(table, targets["three classes"], None, multi_strategy="multi_output_tree")
    for loss, (target, options) in losses.items():
        warmup_command._use(table, target, None, loss=loss, **options)


@pytest.mark.slow
@known_numba
def test_a_folder_that_cannot_be_written_is_read(copy: Path) -> None:
    assert use(copy) == (42, True)
    before = kept(copy)
    seal: tuple[str, ...] = ()
    folders = [copy / "cache", *(path for path in (copy / "cache").rglob("*") if path.is_dir())]
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root may write everywhere, and there is no setpriv to give that up")
        seal = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
        for path in folders:
            os.chown(path, 65532, 65532)
    for path in folders:
        path.chmod(0o555)
    try:
        assert subprocess.run([*seal, "touch", str(folders[-1] / "new")], capture_output=True).returncode != 0
        assert use(copy, *seal) == (42, False)
        # Kernels that are not in it are compiled, and the folder stays unchanged.
        (copy / "code" / "dboost" / "losses" / "base.py").open("a").write("# changed\n")
        result, said = printed(copy, *seal)
        assert result == 42 and "compiling kernels (not kept for the next time: " in said
        assert "cannot be written (Permission denied); set NUMBA_CACHE_DIR to a folder that can) …" in said
        assert kept(copy) == before
        # Nor can the folder of the code or of the user be written.
        code = [path for path in (copy / "code").rglob("*") if path.is_dir()]
        for path in code:
            os.chown(path, *((65532, 65532) if seal else (-1, -1)))
            path.chmod(0o555)
        sealed = str(copy / "cache" / "user")
        nowhere = f"import os; os.environ.update(NUMBA_CACHE_DIR='', HOME={sealed!r}, XDG_CACHE_HOME={sealed!r})"
        result, said = printed(copy, *seal, first=nowhere)
        assert result == 42 and "not kept for the next time: no folder of the cache can be written; set NUMBA_CACHE_DIR" in said
        for path in code:
            path.chmod(0o755)
    finally:
        for path in folders:
            path.chmod(0o755)


SAVE = """
import sys, time
from pathlib import Path
from numba import types
from dboost.kernels.cache_files import KernelFiles
folder, number, start = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
for attempt in range(40):
    files = KernelFiles(folder, f"kernel-{attempt}", "stamp")
    while time.time() < start + attempt * 0.02:
        pass
    files.save(((types.Array(types.float64, number, "C"),), "machine", "function"), number)
"""


@pytest.mark.slow
@known_numba
def test_processes_that_keep_kernels_at_the_same_time_keep_all_of_them(tmp_path: Path) -> None:
    """Workers of a cluster compile at the same time; with an index that each of them writes, entries get lost or mixed up."""
    start = time.time() + 3.0
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    numbers = range(1, 5)
    processes = [
        subprocess.Popen([sys.executable, "-c", SAVE, str(tmp_path), str(number), str(start)], env=environment)
        for number in numbers
    ]
    assert [process.wait(120) for process in processes] == [0] * len(processes)
    for attempt in range(40):
        files = KernelFiles(str(tmp_path), f"kernel-{attempt}", "stamp")
        for number in numbers:
            assert files.load(((types.Array(types.float64, number, "C"),), "machine", "function")) == number


@known_numba
def test_kernels_of_earlier_code_are_not_found(tmp_path: Path) -> None:
    key = (types.float64,), "machine", "function"
    old, new = (KernelFiles(str(tmp_path), "kernel", stamp) for stamp in ("old", "new"))
    old.save(key, "old")
    assert new.load(key) is None
    new.save(key, "new")
    # Another checkout or branch may use those of the last day.
    assert new.load(key) == "new" and old.load(key) == "old"
    (file,) = tmp_path.glob("kernel-old-*")
    os.utime(file, (time.time() - 25 * 3600,) * 2)
    new.save(key, "new")
    assert new.load(key) == "new" and old.load(key) is None
    assert len(list(tmp_path.iterdir())) == 1


@known_numba
def test_named_tuples_are_told_apart_by_their_classes() -> None:
    """Losses pass records to kernels; the records of two losses may have the same name and the same fields."""
    first, second = (types.NamedTuple((types.float64,), NamedTuple("Terms", [("scale", float)])) for _ in range(2))
    second.instance_class.__module__ = "elsewhere"
    files = KernelFiles("folder", "kernel", "stamp")
    assert files.name_of(((first,), "machine", "function")) != files.name_of(((second,), "machine", "function"))


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "one byte": lambda data: data[:1],
    "half": lambda data: data[: len(data) // 2],
    "last byte": lambda data: data[:-1],
    "a byte more": lambda data: data + b"x",
    "first bit": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "middle bit": lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 16]) + data[len(data) // 2 + 1 :],
    "zeros": lambda data: bytes(len(data)),
    "without the digest": lambda data: data[16:],
    "no pickle": lambda data: cache_files._digest(b"none") + b"none",
    "a class that is missing": lambda data: cache_files._digest(MISSING) + MISSING,
}
MISSING = b"cnowhere\nNothing\n."


@known_numba
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_not_loaded_and_is_replaced(tmp_path: Path, damage: str) -> None:
    key = (types.float64,), "machine", "function"
    files = KernelFiles(str(tmp_path), "kernel", "stamp")
    files.save(key, ("compiled", b"code" * 1000))
    assert files.load(key) == ("compiled", b"code" * 1000)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(DAMAGES[damage](whole))
    assert files.load(key) is None
    files.save(key, ("compiled", b"code" * 1000))
    assert file.read_bytes() == whole


@pytest.mark.slow
@known_numba
def test_what_is_no_file_of_the_cache_is_compiled_again(copy: Path) -> None:
    assert use(copy) == (42, True)
    for file in (copy / "cache").rglob("*.nbc"):
        file.write_bytes(cache_files._digest(pickle.dumps(1)) + pickle.dumps(1))
    assert use(copy) == (42, True)
    assert use(copy) == (42, False)
    for file in (copy / "cache").rglob("*.nbc"):
        file.unlink()
        file.mkdir()
    assert use(copy) == (42, True)
