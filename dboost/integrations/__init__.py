"""Integrations with other libraries, each in a module of its own: `mlflow` and `optuna`.

A module is imported at the first access. It raises a `dboost.MissingExtraError` if its library is not installed.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["mlflow", "optuna"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return importlib.import_module(f"dboost.integrations.{name}")
    module = "mlflow" if name == "autolog" else "optuna" if "Pruning" in name else None
    hint = (
        "" if module is None else f": see dboost.integrations.{module}.{'autolog' if name == 'autolog' else 'PruningCallback'}"
    )
    raise AttributeError(f"module 'dboost.integrations' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted(__all__)
