"""The cache of compiled kernels: one file for each kernel, signature and state of the code.

Numba's own cache has an index for each function, which maps signatures to numbered files. It reads, changes and writes the
index without a lock, and before it writes the file that the index names. Workers of a cluster that compile for the first
time at the same time then give one number to two signatures, and one worker runs the machine code of the other. After a
change of the code, a process that reads the new index before the new file exists runs old code under the new name. Here the
name of a file is a digest of everything that its content depends on: there is no index, and a file is complete or absent. So
a `NUMBA_CACHE_DIR` also serves several copies of one state of the code: environments, checkouts, hosts with a common folder.

A file begins with a digest of the rest. A file that is damaged, cut short or empty is not loaded, since its machine code could
do anything: the kernel is compiled and the file replaced. The digest protects against damage, not against forgery.

This module uses private parts of Numba. `dboost.kernels` imports it only with the version of Numba that it was written for.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, UserProvidedCacheLocator
from numba.core.compiler import CompileResult

from dboost.kernels.internal_code import KIND, InternalLibrary

#: Seconds for which the files of other states of the code are kept: another checkout or branch may use them.
OTHERS_KEPT = 24 * 3600
_DIGEST_BYTES = 16


class KernelFiles(IndexDataCacheFile):
    """The cache files of one kernel.

    Parameters
    ----------
    folder : str
    base : str
        How the names of the kernel's files begin.
    stamp : str
        Digest of the code.
    """

    def __init__(self, folder: str, base: str, stamp: str) -> None:
        super().__init__(folder, base, stamp)
        self._folder, self._base, self._prefix = Path(folder), base, f"{base}-{stamp[:12]}-"

    def flush(self) -> None:
        """Remove the kernel's files."""
        _remove(self._folder.glob(f"{self._base}-*.nbc"))

    def save(self, key: Any, data: Any) -> None:
        """Write what was compiled for a signature, and remove the old files of other states of the code."""
        self._save_data(self.name_of(key), data)
        others = (file for file in self._folder.glob(f"{self._base}-*.nbc") if not file.name.startswith(self._prefix))
        _remove(file for file in others if _age(file) > OTHERS_KEPT)

    def load(self, key: Any) -> Any:
        """Return what was compiled for a signature; None if there is no file, or one that is damaged."""
        try:
            data = Path(self._data_path(self.name_of(key))).read_bytes()
        except OSError:
            return None
        content = memoryview(data)[_DIGEST_BYTES:]
        if data[:_DIGEST_BYTES] != _digest(content):
            return None
        try:
            return pickle.loads(content)
        except Exception:  # written by other code, with a digest of its own: whatever is wrong, the kernel is compiled
            return None

    def _dump(self, obj: Any) -> bytes:
        content: bytes = super()._dump(obj)
        return _digest(content) + content

    def name_of(self, key: Any) -> str:
        """Return the name of a file. key : as Numba makes it: the signature, then properties of machine and function."""
        signature, *others = key
        content = [*map(_describe, signature), repr(others), self._version, self._source_stamp]
        return f"{self._prefix}{hashlib.sha256(repr(content).encode()).hexdigest()[:24]}.nbc"


def _digest(content: bytes | memoryview) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()


def _age(file: Path) -> float:
    """Return the seconds since a file was written; 0 if it does not exist."""
    with suppress(OSError):
        return time.time() - file.stat().st_mtime
    return 0.0


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        with suppress(OSError):
            file.unlink()


def _describe(kind: Any) -> str:
    """Return a type as text. The text of a named tuple includes its class, as two classes may have the same name."""
    record = getattr(kind, "instance_class", None)
    return f"{kind!r} {getattr(record, '__module__', '')} {getattr(record, '__qualname__', '')}"


class KernelFolder(UserProvidedCacheLocator):
    """`NUMBA_CACHE_DIR`, also where it can be read but not written, as in a container image. Numba itself skips it then.

    The folder of a kernel is named after its package, not after the path of the code as in Numba, so that copies share it."""

    def get_cache_path(self) -> str:
        settings: Any = numba.config
        return os.path.join(settings.CACHE_DIR, "dboost", os.path.basename(os.path.dirname(self._py_file)))

    def ensure_cache_path(self) -> None:
        try:
            super().ensure_cache_path()
        except OSError:
            settings: Any = numba.config
            if not os.path.isdir(settings.CACHE_DIR):
                raise


class _KernelResults(CompileResultCacheImpl):
    _locator_classes = [KernelFolder, *CompileResultCacheImpl._locator_classes]  # noqa: RUF012

    def rebuild(self, target_context: Any, payload: Any) -> Any:
        """Return what was compiled for a signature, from what `reduce` has made of it."""
        (name, kind, code), descriptor, environment, signature, *_ = payload
        if kind != KIND:
            return super().rebuild(target_context, payload)
        library = InternalLibrary.load(target_context.codegen(), name, code)
        result = dict.fromkeys(CompileResult._fields) | {
            "target_context": target_context,
            "typing_context": target_context.typing_context,
            "library": library,
            "environment": environment,
            "entry_point": target_context.get_executable(library, descriptor, environment),
            "fndesc": descriptor,
            "signature": signature,
            "objectmode": False,
            "lifted": (),
            "reload_init": (),
            "referenced_envs": (),
        }
        return CompileResult(**result)


class KernelCache(FunctionCache):
    """The cache of one kernel, for the `_cache` of its dispatcher.

    Parameters
    ----------
    function : callable
    stamp : str
        Digest of the code.
    not_kept : callable
        Called with the error if the compiled kernel cannot be written.

    Raises
    ------
    RuntimeError
        When there is no folder for the cache.
    """

    _impl_class = _KernelResults

    def __init__(self, function: Callable[..., Any], stamp: str, not_kept: Callable[[OSError], None]) -> None:
        super().__init__(function)
        self._cache_file = KernelFiles(self._cache_path, self._impl.filename_base, stamp)
        self._not_kept = not_kept

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled kernel, or None. Numba prepares for compilation first, which takes a third of a second and
        45 MiB; here it does so only before it compiles, since no kernel counts references to arrays."""
        data = self._cache_file.load(self._index_key(sig, target_context.codegen()))
        data = data if isinstance(data, tuple) else None
        if data is not None:
            return self._impl.rebuild(target_context, data)
        _import_without_linear_algebra()
        target_context.refresh()
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write the compiled kernel where the folder can be written."""
        try:
            super().save_overload(sig, data)
        except OSError as error:
            self._not_kept(error)


@cache
def _import_without_linear_algebra() -> None:
    """Import what Numba compiles arrays with, but not `scipy.linalg`.

    Numba imports `scipy.linalg` only to check that it is there, which costs a quarter of a second and 20 MiB in every process
    that trains. This function gives Numba that answer from the list of installed modules. Numba's linear algebra functions
    still import what they need when they are compiled.
    """
    linalg: Any = importlib.import_module("numba.np.linalg")
    if "numba.np.arraymath" in sys.modules or importlib.util.find_spec("scipy") is None:
        return
    check = linalg.ensure_blas
    linalg.ensure_blas = lambda: None
    try:
        arraymath: Any = importlib.import_module("numba.np.arraymath")
    finally:
        linalg.ensure_blas = check
    arraymath.ensure_blas = check
