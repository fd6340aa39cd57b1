"""Chunks that do not fit the memory allowance wait in files.

A `Spool` keeps lists of arrays, by a number and the number of a slice: in memory as long as they fit in `retain_bytes`, in one
file each beyond. Files lie
in a private directory named ``dboost-<pid>-<random>`` in Dask's ``temporary-directory`` (else the system's). It is
made when the first file needs it and goes with the spool: on `close`, on garbage collection, at the end of the
process. What a killed process left behind is removed by the next one that asks. Only the lock on a directory's ``owner``
file decides whether it is stale: the system drops it when the process ends, while process numbers mean something else in
another container and come again in the next one. Where files cannot be locked, directories have another name and stay.

Two processes agree by the lock alone. A directory is removed under its lock, and who has made one looks, once the lock is
his, whether it is still there.

Files are read and written, never mapped: mapped pages would count as memory of the process. They hold the arrays' bytes and
nothing else: NumPy's own format begins with a line that Python's parser reads, and in some versions of Python that fails at
times when several threads do so at once.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
import tempfile
import threading
import weakref
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from dboost.errors import DBoostError

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows: nothing is ever taken for stale
    fcntl = None

#: Views are kept as they are when they keep alive at most so many times their own size.
_MOST = 1.5
_NAME = re.compile(r"dboost-\d+-.+")
#: The private directories of this process.
_OWN: set[Path] = set()


def temporary_root() -> Path:
    """Where temporary files of this process belong: Dask's ``temporary-directory``, else the system's.

    A process that has not imported Dask has no use for it here: then only the environment is asked.
    """
    dask = sys.modules.get("dask")
    wish = dask.config.get("temporary-directory", None) if dask else os.environ.get("DASK_TEMPORARY_DIRECTORY")
    return Path(wish or tempfile.gettempdir())


def remove_stale(root: Path | None = None) -> None:
    """Remove the private directories of processes that are no more; never fails."""
    root = root or temporary_root()
    try:
        with os.scandir(root) as entries:
            found = [
                Path(entry.path)
                for entry in entries
                if _NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False) and _is_ours(entry)
            ]
    except OSError:
        return
    for folder in found:
        if folder in _OWN:  # with some network file systems a process can take its own locks again
            continue
        with suppress(OSError):
            try:
                owner = open(folder / "owner", "r+b")  # noqa: SIM115  (network file systems lock only what may be written)
            except FileNotFoundError:
                folder.rmdir()  # it is about to get one, or about to go: in both cases there is nothing else in it
                continue
            with owner:
                if _lock(owner, wait=False) and _is_at(owner, folder):
                    _remove_files(folder)


def _is_ours(entry: os.DirEntry[str]) -> bool:
    """Whether a directory belongs to this user: nobody else's names are followed."""
    return not hasattr(os, "geteuid") or entry.stat(follow_symlinks=False).st_uid == os.geteuid()


def _lock(file: IO[bytes], *, wait: bool = True) -> bool:
    """Take the lock of a file; False when another process has it (without `wait`), or when files cannot be locked here."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_at(owner: IO[bytes], folder: Path) -> bool:
    """Whether an open file is still the owner file of a directory."""
    try:
        return os.path.samestat(os.fstat(owner.fileno()), os.lstat(folder / "owner"))
    except OSError:
        return False


def _remove_files(folder: Path) -> None:
    """Remove a directory whose lock is held; the owner file goes last, so that what cannot be removed now is tried again."""
    with suppress(OSError):
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name != "owner":
                os.unlink(entry.path)
    shutil.rmtree(folder, ignore_errors=True)


class PrivateDirectory:
    """A directory that lives as long as this object, and at most as long as the process.

    Parameters
    ----------
    root : Path, optional
        Where it is made; default: `temporary_root`.

    Raises
    ------
    DBoostError
        Naming the directory, when it cannot be made.
    """

    def __init__(self, root: Path | None = None) -> None:
        root = temporary_root() if root is None else root
        try:
            root.mkdir(parents=True, exist_ok=True)
            self.path, owner = _made(root)
        except OSError as error:
            raise DBoostError(f"cannot write temporary files in {root}: {error}") from error
        _OWN.add(self.path)
        self._remove = weakref.finalize(self, _remove, self.path, owner, os.getpid())

    def close(self) -> None:
        """Remove the directory and all in it; again is harmless."""
        self._remove()


def _made(root: Path) -> tuple[Path, IO[bytes]]:
    """A new directory and its owner file, locked."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=f"dboost-{os.getpid()}-", dir=root))
        try:
            owner: IO[bytes] = open(path / "owner", "xb")  # noqa: SIM115  (its lock is held until the directory goes)
        except FileNotFoundError:  # it was taken for what a killed process left
            continue
        if not _lock(owner):
            unlocked = path.with_name(path.name.replace("dboost-", "dboost-unlocked-", 1))
            if fcntl is not None:
                path = path.rename(unlocked)  # where this process cannot lock it, another one might
            return path, owner
        if _is_at(owner, path):
            return path, owner
        owner.close()


def _remove(path: Path, owner: IO[bytes], pid: int) -> None:
    _OWN.discard(path)
    if fcntl is None:
        owner.close()  # Windows does not remove what is open
    if os.getpid() == pid:  # a forked child inherits this object, not the right to remove
        _remove_files(path)
    owner.close()


@dataclass(frozen=True, eq=False)
class _Form:
    """What an array is whose bytes are in a file."""

    dtype: np.dtype
    shape: tuple[int, ...]
    by_columns: bool

    @classmethod
    def of(cls, array: np.ndarray) -> _Form:
        return cls(array.dtype, array.shape, array.flags.f_contiguous and not array.flags.c_contiguous)

    def write(self, file: IO[bytes], array: np.ndarray) -> None:
        (array.T if self.by_columns else array).tofile(file)

    def read(self, file: IO[bytes]) -> np.ndarray:
        count = math.prod(self.shape)
        found = np.fromfile(file, self.dtype, count)
        if len(found) != count:
            raise OSError(f"it ends after {len(found)} of {count} values")
        return found.reshape(self.shape[::-1]).T if self.by_columns else found.reshape(self.shape)


@dataclass(frozen=True, eq=False)
class _Kept:
    arrays: tuple[np.ndarray, ...] | None
    forms: tuple[_Form, ...]  # of those in a file
    n_bytes: int


class Spool:
    """Keeps lists of arrays by number and slice, in memory or in files. Safe to use from several threads.

    Parameters
    ----------
    retain_bytes : int
        How much may stay in memory, in total.
    most_bytes : int, optional
        Lists that are larger are refused.
    """

    def __init__(self, retain_bytes: int, most_bytes: int | None = None) -> None:
        self._allowance = retain_bytes
        self.most_bytes = most_bytes
        self._kept: dict[tuple[int, int], _Kept] = {}
        self._directory: PrivateDirectory | None = None
        self._lock = threading.Lock()
        self._closed = False

    @property
    def directory(self) -> Path | None:
        """The private directory, once there is one."""
        return None if self._directory is None else self._directory.path

    def put(self, number: int, arrays: list[np.ndarray], part: int = 0) -> None:
        """Keep arrays under a number. Those kept in memory are copied if they are views of something much larger."""
        size = sum(array.nbytes for array in arrays)
        if self.most_bytes is not None and size > self.most_bytes:
            raise DBoostError(
                f"a row of partition {number} has {size} bytes of columns, but memory_limit leaves {self.most_bytes} for it: "
                f"make the limit {math.ceil(size / self.most_bytes)} times as large"
            )
        with self._lock:
            fits = size <= self._allowance
            if fits:
                self._allowance -= size
        if fits:
            views = _are_most_of(arrays)
            own = tuple(array if views or array.base is None else array.copy(order="K") for array in arrays)
            self._kept[number, part] = _Kept(own, (), size)
            return
        forms = tuple(map(_Form.of, arrays))
        try:
            with self._new_file(number, part) as file:
                for form, array in zip(forms, arrays, strict=True):
                    form.write(file, array)
        except OSError as error:
            raise DBoostError(f"cannot write temporary files in {self.directory}: {error}") from error
        self._kept[number, part] = _Kept(None, forms, size)

    def drop(self, number: int) -> None:
        """Forget what is kept under a number, if anything is."""
        if (number, 0) in self._kept:
            self.keep([other for other, _ in self._kept if other != number])

    def hold(self, number: int, arrays: list[np.ndarray]) -> None:
        """Keep arrays as they are, whatever their size: for data that the user holds in memory anyway."""
        self._kept[number, 0] = _Kept(tuple(arrays), (), sum(array.nbytes for array in arrays))

    def n_bytes(self, number: int) -> int:
        """How large the arrays kept under a number are."""
        n_bytes, part = 0, 0
        while (kept := self._kept.get((number, part))) is not None:
            n_bytes, part = n_bytes + kept.n_bytes, part + 1
        return n_bytes

    def get(self, number: int, part: int = 0) -> tuple[np.ndarray, ...]:
        """The arrays kept under a number."""
        if self._closed:
            raise DBoostError("the table is closed: its chunks are gone")
        kept = self._kept[number, part]
        if kept.arrays is not None:
            return kept.arrays
        path = self._path(number, part)
        try:
            with open(path, "rb") as file:
                return tuple(form.read(file) for form in kept.forms)
        except OSError as error:
            raise DBoostError(f"cannot read the temporary file {path}: {error}") from error

    def keep(self, numbers: Collection[int]) -> None:
        """Forget what is kept under other numbers."""
        with self._lock:
            for key in [key for key in self._kept if key[0] not in numbers]:
                gone = self._kept.pop(key)
                if gone.arrays is None:
                    self._path(*key).unlink(missing_ok=True)
                else:
                    self._allowance += gone.n_bytes

    def close(self) -> None:
        """Forget everything and remove the files."""
        with self._lock:
            self._closed = True
            self._kept.clear()
            if self._directory is not None:
                self._directory.close()

    def _new_file(self, number: int, part: int) -> IO[bytes]:
        with self._lock:  # a thread that outlives a cancelled run must not put a file into the directory being removed
            if self._closed:
                raise DBoostError("reading was cancelled")
            if self._directory is None:
                self._directory = PrivateDirectory()
            return open(self._path(number, part), "xb")

    def _path(self, number: int, part: int) -> Path:
        assert self._directory is not None
        return self._directory.path / (f"chunk-{number}-{part}" if part else f"chunk-{number}")


def _are_most_of(arrays: Sequence[np.ndarray]) -> bool:
    """Whether views make up most of what they keep alive: a copy would only double it."""
    alive: dict[int, int] = {}
    for array in arrays:
        root: Any = array
        while isinstance(root, np.ndarray) and root.base is not None:
            root = root.base
        try:
            alive[id(root)] = root.nbytes if isinstance(root, np.ndarray) else memoryview(root).nbytes
        except TypeError:  # nobody knows how much there is behind it
            return False
    return sum(alive.values()) <= _MOST * sum(array.nbytes for array in arrays)
