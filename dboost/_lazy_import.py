"""Modules that are imported at the first access to one of their attributes.

Importing pandas and pyarrow takes longer than training on ten thousand rows, and a fit on NumPy arrays needs neither. `pd`,
`pa`, `nw` and `fsspec` stand for the modules. `is_a` tests for a class of a library without importing it: before the library is
imported, no instance of its classes can exist.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any


def is_a(value: Any, library: str, *classes: str) -> bool:
    """Return whether a value is an instance of one of the named classes of a library."""
    module = sys.modules.get(library)
    return module is not None and isinstance(value, tuple(getattr(module, name, ()) for name in classes))


class _LazyModule:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


def late(package: str, names: str) -> list[Any]:
    """Return lazily imported modules of a package. names : separated by spaces."""
    return [_LazyModule(f"{package}.{name}") for name in names.split()]


if TYPE_CHECKING:
    import fsspec
    import narwhals.stable.v2 as nw
    import pandas as pd
    import pyarrow as pa
else:
    fsspec, pd, pa = _LazyModule("fsspec"), _LazyModule("pandas"), _LazyModule("pyarrow")
    nw = _LazyModule("narwhals.stable.v2")

__all__ = ["fsspec", "is_a", "late", "nw", "pa", "pd"]
