"""Make kernels that only other kernels call callable from tests.

Such kernels have no Python wrapper: calling one from Python ends the process. `compiled` wraps one in a function that Python
can call; `kept` compiles a function of a test once for all runs.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit

from dboost import kernels


@cache
def compiled(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls the kernel and returns its result (compiled anew in every process, so never stale)."""

    @njit(error_model="numpy")
    def call(*arguments):  # type: ignore[no-untyped-def]
        return kernel(*arguments)

    return call


def kept(function: Callable[..., Any]) -> Any:
    """Decorate a function that calls kernels: what is compiled is kept until a kernel or the file of the function changes."""
    dispatcher = kernels.kernel(function)
    if kernels.KNOWN_NUMBA and not kernels.INTERPRETED:
        from dboost.kernels.cache_files import KernelCache

        content = Path(inspect.getfile(function)).read_bytes()
        stamp = hashlib.sha256(kernels._STAMP.encode() + content).hexdigest()
        dispatcher._cache = KernelCache(function, stamp, kernels._NOTICE.not_kept)
    return dispatcher
