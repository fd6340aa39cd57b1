"""pandas, pyarrow, fsspec and some rooms of ours, imported when something of theirs is first used.

Importing the first two takes longer than training on ten thousand rows, and who trains on NumPy arrays needs none of them:
`pd`, `pa` and `fsspec` here look like the modules, and import them at the first access. Whether an object is one of theirs
can be told without an import, since as long as nobody has imported the library there are no such objects.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any


def is_a(value: Any, library: str, *classes: str) -> bool:
    """Whether a value is an instance of one of the library's classes."""
    module = sys.modules.get(library)
    return module is not None and isinstance(value, tuple(getattr(module, name, ()) for name in classes))


class _Late:
    def __init__(self, library: str) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._library), name)


def late(package: str, names: str) -> list[Any]:
    """Modules of a package, imported at the first access.

    names : separated by spaces.
    """
    return [_Late(f"{package}.{name}") for name in names.split()]


if TYPE_CHECKING:
    import fsspec
    import pandas as pd
    import pyarrow as pa
else:
    fsspec, pd, pa = _Late("fsspec"), _Late("pandas"), _Late("pyarrow")

__all__ = ["fsspec", "is_a", "late", "pa", "pd"]
