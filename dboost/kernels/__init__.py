"""Numba kernels: arrays in, arrays out.

Every kernel is compiled on first use and kept in Numba's cache (`NUMBA_CACHE_DIR` is respected). None uses `parallel=True`
(Numba's default threading layer aborts the process when two threads enter it at once) and none `fastmath` where it could
change a result, so every processor computes the same bits. Threads are ordinary Python threads that call kernels which
release the lock.

Compilation is what a newcomer waits for first, so it is kept short: kernels are compiled by a compiler of our own (`pipeline`);
those that only other kernels call are `internal`, which spares the code that converts Python's arguments (the larger part of
a small kernel; calling one from Python crashes); records of arrays are looped over rather than assigned by slices; and
references to arrays are not counted (`_nrt=False`) where nobody needs it, which costs a tenth of the time on small tables
besides. Kernels that count none are taken from the cache without what Numba loads and prepares before it compiles anything.

A cached kernel contains its callees, but Numba only looks at the date of the file that the kernel itself is in. So the
stamp of every kernel here covers all files that hold kernels: none outlives a change in any of them. It is a digest of what
is in the files; their dates change when they are packed into an image.

With `NUMBA_DISABLE_JIT=1` kernels run as the Python that they are written in, with the numbers that compiled code has: the same
model, some thousand times slower, for whoever wants to step through one with a debugger.

In an image the cache is part of the file system that nobody may write to. Numba would turn away from a folder like that,
even if everything needed is in it. Here a `NUMBA_CACHE_DIR` that can be read but not written is *sealed*: kernels are taken
from it, and those that are not there are compiled and not kept.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, wraps
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.core import event
from numba.extending import intrinsic

#: Whether kernels run as Python, as `NUMBA_DISABLE_JIT=1` asks for.
INTERPRETED = bool(getattr(numba.config, "DISABLE_JIT", 0))


#: The version of Numba of which private parts are changed here and in `pipeline.py`.
_KNOWN_VERSION = (0, 68)


def _inside() -> Any:
    """The module of our compiler; None when Numba is another version than the known one, or lacks a name that is changed.

    Everything that touches a private part of Numba depends on this. Without it kernels are compiled and kept in Numba's
    ordinary way, which takes longer.
    """
    if INTERPRETED or numba.version_info.short != _KNOWN_VERSION:
        return None
    try:
        pipeline: Any = importlib.import_module("dboost.kernels.pipeline")
        pipeline.check_names()
    except (AttributeError, ImportError):
        return None
    return pipeline


_INSIDE = _inside()
_KNOWN_INSIDE = _INSIDE is not None
_PIPELINE: dict[str, Any] = {"pipeline_class": _INSIDE.KernelCompiler} if _KNOWN_INSIDE else {}

_PACKAGE = Path(__file__).parent.parent
_WITH_KERNELS = ("kernels", "losses", "growth", "engine", "shard")


def _stamp() -> str:
    """Digest of all files that hold kernels."""
    digest = hashlib.sha256()
    for folder in _WITH_KERNELS:
        for file in sorted((_PACKAGE / folder).glob("*.py")):
            content = file.read_bytes()
            digest.update(f"{folder}/{file.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _is_sealed(folder: str) -> bool:
    """Whether a folder of kernels can be read but not written."""
    if not os.path.isdir(folder):
        return False
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return True
    return False


@cache
def _linear_algebra_later() -> None:
    """Leave SciPy's linear algebra alone until a kernel calls it.

    When Numba makes ready for its first kernel it imports `scipy.linalg`, only to know whether it is there: a quarter of a
    second and 20 MiB in every process that trains. Here Numba gets that answer from the list of installed modules. Each of
    its linear algebra functions imports what it needs when it is compiled, as it always did.
    """
    if not _KNOWN_INSIDE:
        return
    linalg: Any = importlib.import_module("numba.np.linalg")
    if "numba.np.arraymath" in sys.modules or importlib.util.find_spec("scipy") is None:
        return
    ensure_blas = getattr(linalg, "ensure_blas", None)
    if ensure_blas is None:
        return
    linalg.ensure_blas = lambda: None
    try:
        arraymath: Any = importlib.import_module("numba.np.arraymath")
    finally:
        linalg.ensure_blas = ensure_blas
    arraymath.ensure_blas = ensure_blas


_STAMP = _stamp()
_SEALED = _is_sealed(os.environ.get("NUMBA_CACHE_DIR", ""))


class _Notice(event.Listener):
    """Says once per process that kernels are being compiled, which takes a newcomer's first seconds."""

    def __init__(self) -> None:
        self._said = False

    def on_start(self, event: Any) -> None:
        function = getattr((event.data or {}).get("dispatcher"), "py_func", None)
        if not self._said and getattr(function, "__module__", "").startswith("dboost."):
            self._said = True
            print("compiling kernels (kept in Numba's cache for the next time) …", file=sys.stderr, flush=True)

    def on_end(self, event: Any) -> None:
        """Nothing to say."""


event.register("numba:compile", _Notice())


@contextmanager
def _unwritten() -> Iterator[None]:
    """Numba chooses a folder for its cache without trying whether it can be written."""
    locator: Any = _INSIDE.caching._CacheLocator
    tries = locator.ensure_cache_path
    locator.ensure_cache_path = _keep_nothing
    try:
        yield
    finally:
        locator.ensure_cache_path = tries


def _keep_nothing(*_: Any) -> None:
    """In the place of what would write into a cache."""


def _decorator(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    compile_: Any = numba.njit
    options |= {"nogil": True, "no_cfunc_wrapper": True} | _PIPELINE

    def decorate(function: Callable[..., Any]) -> Any:
        if INTERPRETED:
            return _interpreted(function)
        if not _KNOWN_INSIDE:
            # The name of a function is in the names of its files: with the stamp in it they are those of this code only.
            function.__qualname__ += f"_{_STAMP[:16]}"
        try:
            with _unwritten() if _SEALED and _KNOWN_INSIDE else nullcontext():
                dispatcher = compile_(cache=True, **options)(function)
        except RuntimeError:
            # Nowhere to keep a cache (a read-only file system, no NUMBA_CACHE_DIR): compile in every process.
            return compile_(**options)(function)
        if _KNOWN_INSIDE:
            _change_cache(dispatcher._cache, options)
        return dispatcher

    return decorate


def _change_cache(kept: Any, options: dict[str, Any]) -> None:
    """Give a kernel's cache files of its own, and have it load without what Numba needs for compiling only."""
    kept._cache_file = _INSIDE.KernelFiles(kept._cache_path, kept._impl.filename_base, _STAMP)
    if options.get("no_cpython_wrapper"):
        kept._impl.__class__ = _INSIDE.PartCache  # the same but for how it reads
    load = kept.load_overload

    def load_overload(signature: Any, context: Any) -> Any:
        found = None
        if options.get("_nrt") is False:
            # Numba would make ready for compiling first (a third of a second), and for counting references.
            with kept._guard_against_spurious_io_errors():
                found = kept._load_overload(signature, context)
        if found is None:
            _linear_algebra_later()
            found = load(signature, context)
        return found

    kept.load_overload = load_overload
    if _SEALED:
        kept.save_overload = _keep_nothing


def _interpreted(function: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel as Python, with the numbers of compiled code: integers of 64 bits that wrap, no errors of floats."""

    @wraps(function)
    def run(*arguments: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*map(_as_compiled, arguments))

    return run


def _as_compiled(argument: Any) -> Any:
    if type(argument) is int:
        return np.int64(argument) if argument < 2**63 else np.uint64(argument)
    if type(argument) is float:
        return np.float64(argument)
    if isinstance(argument, np.ndarray) and argument.dtype.names:
        return argument.view(np.recarray)  # kernels read fields as attributes
    return argument


def instruction(twin: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Numba's `intrinsic`; `twin` does the same in Python, where kernels are not compiled."""

    def decorate(typed: Callable[..., Any]) -> Any:
        return twin if INTERPRETED else intrinsic(typed)

    return decorate


#: For Numba's `overload` of what kernels call: `jit_options`.
OVERLOAD: Any = {"error_model": "numpy", "_nrt": False} | _PIPELINE
#: A kernel that Python calls. `error_model="numpy"` drops the checks for division by zero that keep loops from vectorising.
kernel = _decorator(error_model="numpy")
#: The same for one that neither makes nor hands out arrays (nor do the functions that it calls).
uncounted = _decorator(error_model="numpy", _nrt=False)
#: A kernel that only kernels call; neither does it make or return arrays.
internal = _decorator(error_model="numpy", _nrt=False, no_cpython_wrapper=True)
#: The same, pasted into its callers.
inlined = _decorator(error_model="numpy", _nrt=False, no_cpython_wrapper=True, forceinline=True)
#: For sums of integers held in float64 only: these are exact in any order, so additions may be reordered.
any_order = _decorator(_nrt=False, no_cpython_wrapper=True, fastmath={"reassoc", "nsz"})
