"""Gradient boosting on Dask, for tables that do not fit one machine or one memory.

>>> import dboost
>>> booster = dboost.fit(frame, "target")            # doctest: +SKIP
>>> booster.predict(new_rows)                        # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dboost.adopt import from_lightgbm, from_xgboost, load
from dboost.api import fit
from dboost.arcbites import ArcBites
from dboost.booster import Booster
from dboost.errors import (
    DataError,
    DBoostError,
    DriftWarning,
    FitInterrupted,
    InputTypeError,
    ModelFileError,
    ParameterError,
)
from dboost.preparing import prepare
from dboost.stream import continue_on
from dboost.training.monitor import Iteration
from dboost.version import __version__

if TYPE_CHECKING:
    from dboost.estimators import DBoostClassifier, DBoostRegressor


__all__ = [
    "ArcBites",
    "Booster",
    "DBoostClassifier",
    "DBoostError",
    "DBoostRegressor",
    "DataError",
    "DriftWarning",
    "FitInterrupted",
    "InputTypeError",
    "Iteration",
    "ModelFileError",
    "ParameterError",
    "__version__",
    "continue_on",
    "fit",
    "from_lightgbm",
    "from_xgboost",
    "load",
    "prepare",
]


def __getattr__(name: str) -> Any:
    # Importing scikit-learn takes longer than all the rest: it waits until somebody wants an estimator.
    if name in ("DBoostClassifier", "DBoostRegressor"):
        from dboost import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module 'dboost' has no attribute {name!r}")
