"""Numba kernels: arrays in, arrays out.

Every kernel is compiled on first use and kept in Numba's cache (`NUMBA_CACHE_DIR` is respected). None uses `parallel=True`
(Numba's default threading layer aborts the process when two threads enter it at once) and none `fastmath` where it could
change a result, so every processor computes the same bits. Threads are ordinary Python threads that call kernels which
release the lock.

*Compilation* is what a new user waits for first, so it is kept short. Passes that kernels do not need are left out
(`pipeline`). Kernels that only other kernels call are `internal`: they have no code that converts Python's arguments, which
is the larger part of a small kernel (calling one from Python ends the process), and no machine code of their own
(`internal_code`). Records of arrays are looped over rather than assigned by slices. Kernels take related arguments as records
(`NamedTuple`), large ones by their address (`records`). At most three values are assigned at a time, as Numba makes tuples of
more. Types are inferred again until none changes, so a variable that changes in a loop starts with its final type: ``I(-1)``,
since -1 is of another type than int64. Slices are `simd.span`, whose bounds are not tested, where they are known to be inside.

*No kernel makes an array or returns one*; callers pass scratch and results. So references to arrays are not counted
(`_nrt=False`), which saves a tenth of the time on small tables, and a cached kernel loads without Numba's runtime and the
registries of its compiler, which take 45 MiB and 0.4 s of every process.

*Optional arrays.* An array that a kernel may do without is empty when it is absent (`or_empty`). As None it would be of another
type, and each combination of types is compiled by itself: with None, the kernels of one fit were compiled anew for the next one
with weights. Only what makes a kernel much larger may be None (`pipeline`).

*Cache.* A cached kernel contains its callees, but Numba looks only at the file that the kernel itself is in. So a digest of
all files with kernels is in the name of every cached kernel: a change in any of them makes all be compiled again. The digest
covers content and not dates, which change when files are packed into an image.

*Versions of Numba.* Kernels compile and run with every supported version. With the version that `cache_files` was written
for, processes that compile at the same time do not disturb each other, a cached kernel loads without what Numba needs only
for compiling, a callee is compiled in its callers only, a damaged file of the cache is replaced, and a `NUMBA_CACHE_DIR` that
can be read but not written, as in a container image, is used: kernels that are not in it are compiled and not kept. With other
versions Numba's own cache is used, which has no checksums and whose private parts differ: remove its folder if files in it are
damaged.

*Without compilation.* With `NUMBA_DISABLE_JIT=1` kernels run as Python on NumPy's numbers: the same model, some thousand
times slower, for debuggers and coverage.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.core import event
from numba.extending import intrinsic

from dboost.kernels.pipeline import KernelCompiler

#: Whether kernels run as Python, as `NUMBA_DISABLE_JIT=1` asks for.
INTERPRETED = bool(getattr(numba.config, "DISABLE_JIT", 0))

#: Whether this is the version of Numba whose private parts `cache_files` and `internal_code` use.
KNOWN_NUMBA = numba.version_info.short == (0, 68)

_PACKAGE = Path(__file__).parent.parent
#: The packages that define kernels.
_WITH_KERNELS = ("kernels", "losses", "trees")


def _stamp() -> str:
    """Return a digest of all files that hold kernels."""
    digest = hashlib.sha256()
    for folder in _WITH_KERNELS:
        for file in sorted((_PACKAGE / folder).glob("*.py")):
            content = file.read_bytes()
            digest.update(f"{folder}/{file.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


_STAMP = _stamp()


class _Notice(event.Listener):
    """Print once per process that kernels are being compiled, which takes the first seconds of a new user, and if they are
    not kept, why."""

    def __init__(self) -> None:
        self._is_printed = self._says_kept = False

    def on_start(self, event: Any) -> None:
        kernel = (event.data or {}).get("dispatcher")
        if not self._is_printed and getattr(getattr(kernel, "py_func", None), "__module__", "").startswith("dboost."):
            self._is_printed = True
            why = cache_refusal(kernel)
            self._says_kept = why is None
            note = "kept in Numba's cache for the next time" if why is None else f"not kept for the next time: {why}"
            print(f"compiling kernels ({note}) …", file=sys.stderr, flush=True)

    def on_end(self, event: Any) -> None:
        """Print nothing."""

    def not_kept(self, error: OSError) -> None:
        """Print that a kernel could not be kept, if the opposite was printed."""
        if self._says_kept:
            self._says_kept = False
            print(f"compiled kernels are not kept for the next time: {error}", file=sys.stderr, flush=True)


def cache_refusal(kernel: Any) -> str | None:
    """Return why what is compiled for a kernel is not kept for later processes; None if it is."""
    if INTERPRETED:
        return "NUMBA_DISABLE_JIT is set"
    folder = getattr(getattr(kernel, "_cache", None), "cache_path", None)
    if folder is None:
        return "no folder of the cache can be written; set NUMBA_CACHE_DIR to one that can"
    import tempfile

    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return f"{folder} cannot be written ({error.strerror}); set NUMBA_CACHE_DIR to a folder that can"


_NOTICE = _Notice()
event.register("numba:compile", _NOTICE)


def _internal_compiler() -> type[KernelCompiler]:
    """Return what compiles kernels that only kernels call."""
    if not KNOWN_NUMBA:
        return KernelCompiler
    from dboost.kernels.internal_code import InternalCompiler

    return InternalCompiler


def _decorator(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    compiler = _internal_compiler() if "no_cpython_wrapper" in options else KernelCompiler
    options |= {"nogil": True, "_nrt": False, "no_cfunc_wrapper": True, "pipeline_class": compiler}

    def decorate(function: Callable[..., Any]) -> Any:
        if INTERPRETED:
            return _interpreted(function)
        if KNOWN_NUMBA:
            dispatcher: Any = numba.njit(**options)(function)
            with suppress(RuntimeError):  # no folder can hold a cache: compile in every process
                dispatcher._cache = _cache_of(function)
            return dispatcher
        # The name of a function is part of the names of its cache files, which makes them those of this code only.
        function.__qualname__ += f"_{_STAMP[:16]}"
        try:
            return numba.njit(cache=True, **options)(function)
        except RuntimeError:
            return numba.njit(**options)(function)

    return decorate


def _cache_of(function: Callable[..., Any]) -> Any:
    from dboost.kernels.cache_files import KernelCache

    return KernelCache(function, _STAMP, _NOTICE.not_kept)


def _interpreted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel as Python on the numbers of compiled code: 64-bit integers that wrap, no floating-point errors."""

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
    if isinstance(argument, tuple):
        values = map(_as_compiled, argument)
        return type(argument)(*values) if hasattr(argument, "_fields") else tuple(values)
    return argument


def instruction(twin: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Decorate as Numba's `intrinsic` does; `twin` is the instruction in Python, for kernels that are not compiled."""

    def decorate(typed: Callable[..., Any]) -> Any:
        return twin if INTERPRETED else intrinsic(typed)

    return decorate


_EMPTY = {dtype: np.empty(0, dtype) for dtype in ("float32", "float64", "int32", "int64", "uint8")}


def or_empty(array: np.ndarray | None, dtype: str) -> np.ndarray:
    """Return an optional array of one axis as kernels take it: an empty one of this type in place of None."""
    return _EMPTY[dtype] if array is None else array


#: For Numba's `overload` of what kernels call: `jit_options`.
OVERLOAD: Any = {"error_model": "numpy", "_nrt": False, "pipeline_class": _internal_compiler()}
#: A kernel that Python calls. `error_model="numpy"` drops the checks for division by zero that keep loops from vectorising.
kernel = _decorator(error_model="numpy")
#: A kernel that only kernels call.
internal = _decorator(error_model="numpy", no_cpython_wrapper=True)
#: The same, pasted into its callers.
inlined = _decorator(error_model="numpy", no_cpython_wrapper=True, forceinline=True)
#: For sums of integers held in float64 only: these are exact in any order, so additions may be reordered.
any_order = _decorator(no_cpython_wrapper=True, fastmath={"reassoc", "nsz"})
