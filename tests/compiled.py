"""Kernels that only other kernels call, made callable from tests.

Such kernels have no Python wrapper: calling one from Python ends the process. `compiled` puts a function around one that
Python can call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from numba import njit


@cache
def compiled(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls the kernel and returns what it returns (a new one in every process, so never a stale one)."""

    @njit(error_model="numpy")
    def call(*arguments):  # type: ignore[no-untyped-def]
        return kernel(*arguments)

    return call
