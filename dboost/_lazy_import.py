"""Imports at the first access: pandas, pyarrow, fsspec and optional parts of dboost.

Importing pandas and pyarrow takes longer than training on 10,000 rows, and training on NumPy arrays needs neither. `pd`, `pa`
and `fsspec` here behave like the modules and import them at the first access. `is_a` tests for a class without an import: if
the library has not been imported, no instance exists.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any


def is_a(value: Any, library: str, *classes: str) -> bool:
    """Return whether a value is an instance of one of the library's classes."""
    module = sys.modules.get(library)
    return module is not None and isinstance(value, tuple(getattr(module, name, ()) for name in classes))


class _Late:
    def __init__(self, library: str) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._library), name)


def late(package: str, names: str) -> list[Any]:
    """Return modules of a package that are imported at the first access.

    names : names of the modules, separated by spaces.
    """
    return [_Late(f"{package}.{name}") for name in names.split()]


if TYPE_CHECKING:
    import fsspec
    import pandas as pd
    import pyarrow as pa
else:
    fsspec, pd, pa = _Late("fsspec"), _Late("pandas"), _Late("pyarrow")

__all__ = ["fsspec", "is_a", "late", "pa", "pd"]
