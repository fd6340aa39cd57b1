"""Make kernels that only other kernels call callable from tests.

Such kernels have no Python wrapper: calling one from Python ends the process. `compiled` wraps one in a function that Python
can call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from numba import njit


@cache
def compiled(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls the kernel and returns its result (compiled anew in every process, so never stale)."""

    @njit(error_model="numpy")
    def call(*arguments):  # type: ignore[no-untyped-def]
        return kernel(*arguments)

    return call
