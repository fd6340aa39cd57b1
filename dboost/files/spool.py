"""A spool: lists of arrays in memory, or in temporary files when they do not fit the memory allowance.

A `Spool` stores lists of arrays, by a number and the number of a slice: in memory as long as they fit in `retain_bytes`, beyond
that in one file each. Files are in a private directory named ``dboost-<pid>-<random>`` in Dask's ``temporary-directory`` (else
the system's). It is made when the first file needs it and removed with the spool: on `close`, on garbage collection, or at the
end of the process. The directories of killed processes are removed by `remove_stale`. Only the lock on a directory's ``owner``
file decides whether it is stale: the system releases it when the process ends, while process numbers mean something else in
another container and are reused. Where files cannot be locked, directories have another name and are never removed as stale.

The lock is the only coordination between processes. A directory is removed under its lock, and its creator checks, after taking
the lock, whether it still exists.

Files are read and written, never mapped: mapped pages would count as memory of the process. They hold the arrays' bytes and
nothing else: NumPy's own format begins with a line that Python's parser reads, and in some versions of Python that sometimes
fails when several threads do so at once.
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
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from dboost.errors import DBoostError, reason
from dboost.files.path_text import path_text

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows: no directory counts as stale
    fcntl = None

#: Views are stored without a copy when they keep alive at most this many times their own size.
_MAX_VIEW_RATIO = 1.5
_NAME = re.compile(r"dboost-\d+-.+")
#: The private directories of this process.
_DIRECTORIES: set[Path] = set()


def temporary_root() -> Path:
    """Return the directory of temporary files of this process: Dask's ``temporary-directory``, else the system's.

    A process that has not imported Dask does not import it for this: then only the environment variable is read.
    """
    dask = sys.modules.get("dask")
    configured = dask.config.get("temporary-directory", None) if dask else os.environ.get("DASK_TEMPORARY_DIRECTORY")
    return Path(path_text(configured) if configured else tempfile.gettempdir())


def remove_stale(root: Path | None = None) -> None:
    """Remove the private directories of processes that have ended; never fails."""
    root = root or temporary_root()
    try:
        with os.scandir(root) as entries:
            folders = [
                Path(entry.path)
                for entry in entries
                if entry.name.startswith("dboost-")
                and _NAME.fullmatch(entry.name)
                and entry.is_dir(follow_symlinks=False)
                and _is_ours(entry)
            ]
    except OSError:
        return
    for folder in folders:
        if folder in _DIRECTORIES:  # with some network file systems a process can take its own locks again
            continue
        with suppress(OSError):
            try:
                owner = open(folder / "owner", "r+b")  # noqa: SIM115  (network file systems lock only what may be written)
            except FileNotFoundError:
                folder.rmdir()  # it is being made or removed: in both cases it is empty
                continue
            with owner:
                if _lock(owner, wait=False) and _is_at(owner, folder):
                    _remove_files(folder)


def _is_ours(entry: os.DirEntry[str]) -> bool:
    """Return whether a directory belongs to this user: directories of other users are ignored."""
    return not hasattr(os, "geteuid") or entry.stat(follow_symlinks=False).st_uid == os.geteuid()


def _lock(file: IO[bytes], *, wait: bool = True) -> bool:
    """Take the lock of a file; False when another process has it (without `wait`), or when files cannot be locked."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_at(owner: IO[bytes], folder: Path) -> bool:
    """Return whether an open file is still the owner file of a directory."""
    try:
        return os.path.samestat(os.fstat(owner.fileno()), os.lstat(folder / "owner"))
    except OSError:
        return False


def _remove_files(folder: Path) -> None:
    """Remove a directory whose lock is held; the owner file is removed last, so that an incomplete removal is repeated
    later."""
    with suppress(OSError):
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name != "owner":
                os.unlink(entry.path)
    shutil.rmtree(folder, ignore_errors=True)


class PrivateDirectory:
    """A directory that exists as long as this object, and at most as long as the process.

    Parameters
    ----------
    root : Path, optional
        Parent directory; default: `temporary_root`.

    Raises
    ------
    DBoostError
        Naming the directory, when it cannot be made.
    """

    def __init__(self, root: Path | None = None) -> None:
        root = temporary_root() if root is None else root
        try:
            root.mkdir(parents=True, exist_ok=True)
            self.path, owner = _make_directory(root)
        except OSError as error:
            raise _not_written(root, error) from error
        _DIRECTORIES.add(self.path)
        self._remove = weakref.finalize(self, _remove, self.path, owner, os.getpid())

    def close(self) -> None:
        """Remove the directory and its content; may be called repeatedly."""
        self._remove()


def _not_written(folder: Path | None, error: OSError) -> DBoostError:
    return DBoostError(f"cannot write temporary files in {folder}: {reason(error)}")


def _make_directory(root: Path) -> tuple[Path, IO[bytes]]:
    """Make a directory and its owner file, locked."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=f"dboost-{os.getpid()}-", dir=root))
        try:
            owner: IO[bytes] = open(path / "owner", "xb")  # noqa: SIM115  (its lock is held until the directory is removed)
        except FileNotFoundError:  # another process removed it as stale
            continue
        except OSError:
            with suppress(OSError):
                path.rmdir()
            raise
        if not _lock(owner):
            unlocked = path.with_name(path.name.replace("dboost-", "dboost-unlocked-", 1))
            if fcntl is not None:
                path = path.rename(unlocked)  # another process might be able to lock it
            return path, owner
        if _is_at(owner, path):
            return path, owner
        owner.close()


def _remove(path: Path, owner: IO[bytes], pid: int) -> None:
    _DIRECTORIES.discard(path)
    if fcntl is None:
        owner.close()  # Windows cannot remove open files
    if os.getpid() == pid:  # a forked child inherits this object but must not remove the directory
        _remove_files(path)
    owner.close()


@dataclass(frozen=True, eq=False)
class _Form:
    """Type, shape and memory order of an array whose bytes are in a file."""

    dtype: np.dtype
    shape: tuple[int, ...]
    by_columns: bool

    @classmethod
    def of(cls, array: np.ndarray) -> _Form:
        return cls(array.dtype, array.shape, array.flags.f_contiguous and not array.flags.c_contiguous)

    @property
    def n_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    def write(self, file: IO[bytes], array: np.ndarray) -> None:
        # Not `tofile`, whose error does not tell that the disk is full.
        file.write(np.ascontiguousarray(array.T if self.by_columns else array).reshape(-1).view(np.uint8).data)

    def read(self, file: IO[bytes]) -> np.ndarray:
        count = math.prod(self.shape)
        values = np.fromfile(file, self.dtype, count)
        if len(values) != count:
            raise OSError(f"it ends after {len(values)} of {count} values")
        return values.reshape(self.shape[::-1]).T if self.by_columns else values.reshape(self.shape)


def _read_some(file: IO[bytes], forms: Sequence[_Form], positions: Collection[int]) -> Iterator[np.ndarray]:
    """Yield the arrays of a file at these positions, and empty ones for the others."""
    start = 0
    for j, form in enumerate(forms):
        if j in positions:
            file.seek(start)
            yield form.read(file)
        else:
            yield np.empty(0, form.dtype)
        start += form.n_bytes


@dataclass(frozen=True, eq=False)
class _StoredArrays:
    arrays: tuple[np.ndarray, ...] | None
    forms: tuple[_Form, ...]  # of those in a file
    n_bytes: int
    is_held: bool = False  # in memory whatever the allowance, see `Spool.hold`


class Spool:
    """Stores lists of arrays by number and slice, in memory or in files. Thread-safe.

    Parameters
    ----------
    retain_bytes : int
        Bytes that may stay in memory, in total.
    most_bytes : int, optional
        Lists that are larger raise an error.
    """

    def __init__(self, retain_bytes: int, most_bytes: int | None = None) -> None:
        self._allowance = retain_bytes
        self.most_bytes = most_bytes
        self._stored: dict[tuple[int, int], _StoredArrays] = {}
        self._directory: PrivateDirectory | None = None
        self._lock = threading.Condition()
        self._n_writing = 0
        self._closed = False

    @property
    def directory(self) -> Path | None:
        """The private directory, or None before it is made."""
        return None if self._directory is None else self._directory.path

    def put(self, number: int, arrays: list[np.ndarray], part: int = 0) -> None:
        """Store arrays under a number. Arrays stored in memory are copied if they are views of much larger ones."""
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
            owned = tuple(array if views or array.base is None else array.copy(order="K") for array in arrays)
            self._stored[number, part] = _StoredArrays(owned, (), size)
            return
        forms = tuple(map(_Form.of, arrays))
        try:
            with self._new_file(number, part) as file:
                for form, array in zip(forms, arrays, strict=True):
                    form.write(file, array)
        except OSError as error:
            raise _not_written(self.directory, error) from error
        self._stored[number, part] = _StoredArrays(None, forms, size)

    def drop(self, number: int) -> None:
        """Remove the arrays stored under a number, if any."""
        if (number, 0) in self._stored:
            self.keep_only([stored for stored, _ in self._stored if stored != number])

    def hold(self, number: int, arrays: list[np.ndarray], part: int = 0) -> None:
        """Store arrays in memory whatever their size: for data that the caller holds in memory anyway."""
        self._stored[number, part] = _StoredArrays(tuple(arrays), (), sum(array.nbytes for array in arrays), is_held=True)

    def n_bytes(self, number: int) -> int:
        """Return the size of the arrays stored under a number."""
        n_bytes, part = 0, 0
        while (stored := self._stored.get((number, part))) is not None:
            n_bytes, part = n_bytes + stored.n_bytes, part + 1
        return n_bytes

    def get(self, number: int, part: int = 0, positions: Sequence[int] | None = None) -> tuple[np.ndarray, ...]:
        """Return the arrays stored under a number. positions : positions of those to read; others in a file are empty."""
        if self._closed:
            raise DBoostError("the table is closed: its chunks are gone")
        stored = self._stored[number, part]
        if stored.arrays is not None:
            return stored.arrays
        path = self._path(number, part)
        try:
            with open(path, "rb") as file:
                if positions is None:
                    return tuple(form.read(file) for form in stored.forms)
                return tuple(_read_some(file, stored.forms, set(positions)))
        except OSError as error:
            raise DBoostError(f"cannot read the temporary file {path}: {reason(error)}") from error

    def keep_only(self, numbers: Collection[int]) -> None:
        """Remove the arrays stored under all other numbers."""
        with self._lock:
            for key in [key for key in self._stored if key[0] not in numbers]:
                removed = self._stored.pop(key)
                if removed.arrays is None:
                    self._path(*key).unlink(missing_ok=True)
                elif not removed.is_held:
                    self._allowance += removed.n_bytes

    def close(self) -> None:
        """Remove all arrays and files, when threads that outlive a cancelled run have written what they write now: a removed
        file takes room on the disk until it is closed."""
        with self._lock:
            self._closed = True
            self._lock.wait_for(lambda: not self._n_writing)
            self._stored.clear()
            if self._directory is not None:
                self._directory.close()

    @contextmanager
    def _new_file(self, number: int, part: int) -> Iterator[IO[bytes]]:
        is_counted = False
        try:
            with self._lock:  # a thread that outlives a cancelled run must not write into the directory being removed
                if self._closed:
                    raise DBoostError("reading was cancelled")
                if self._directory is None:
                    self._directory = PrivateDirectory()
                self._n_writing += 1
                is_counted = True
            with open(self._path(number, part), "xb") as file:
                yield file
        finally:
            with self._lock:
                self._n_writing -= is_counted
                self._lock.notify_all()

    def _path(self, number: int, part: int) -> Path:
        assert self._directory is not None
        return self._directory.path / (f"chunk-{number}-{part}" if part else f"chunk-{number}")


def _are_most_of(arrays: Sequence[np.ndarray]) -> bool:
    """Return whether views make up most of the memory that they keep alive: a copy would only double it."""
    alive: dict[int, int] = {}
    for array in arrays:
        root: Any = array
        while isinstance(root, np.ndarray) and root.base is not None:
            root = root.base
        try:
            alive[id(root)] = root.nbytes if isinstance(root, np.ndarray) else memoryview(root).nbytes
        except TypeError:  # the size of the owner is unknown
            return False
    return sum(alive.values()) <= _MAX_VIEW_RATIO * sum(array.nbytes for array in arrays)
