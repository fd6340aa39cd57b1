"""Gradient boosting on Dask, for tables larger than the memory of one machine.

>>> import dboost
>>> booster = dboost.fit(frame, "target")            # doctest: +SKIP
>>> booster.predict(new_rows)                        # doctest: +SKIP
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from dboost.errors import (
    DataError,
    DBoostError,
    DriftWarning,
    FitInterrupted,
    InputTypeError,
    MissingExtraError,
    ModelFileError,
    ParameterError,
)
from dboost.thread_limits import INITIAL_LIMITS as INITIAL_LIMITS  # read before a program can start a cluster
from dboost.version import __version__

if TYPE_CHECKING:
    from dboost.api import continue_on, fit, fit_async, prepare
    from dboost.booster import Booster, from_lightgbm, from_xgboost, load
    from dboost.cross_validation import CVResult, cv
    from dboost.dataset import Dataset
    from dboost.estimators import DBoostClassifier, DBoostRegressor
    from dboost.params import ArcBites, EarlyStopping
    from dboost.sizing import Plan, plan
    from dboost.training.callbacks import Iteration


__all__ = [
    "ArcBites",
    "Booster",
    "CVResult",
    "DBoostClassifier",
    "DBoostError",
    "DBoostRegressor",
    "DataError",
    "Dataset",
    "DriftWarning",
    "EarlyStopping",
    "FitInterrupted",
    "InputTypeError",
    "Iteration",
    "MissingExtraError",
    "ModelFileError",
    "ParameterError",
    "Plan",
    "__version__",
    "continue_on",
    "cv",
    "fit",
    "fit_async",
    "from_lightgbm",
    "from_xgboost",
    "load",
    "plan",
    "prepare",
]


#: Names that are imported at their first access, and their modules. Workers and the scheduler do not need estimators:
#: importing scikit-learn takes longer than all the rest.
_LATE = {
    "ArcBites": "params",
    "Booster": "booster",
    "CVResult": "cross_validation",
    "DBoostClassifier": "estimators",
    "DBoostRegressor": "estimators",
    "Dataset": "dataset",
    "EarlyStopping": "params",
    "Iteration": "training.callbacks",
    "Plan": "sizing",
    "continue_on": "api",
    "cv": "cross_validation",
    "fit": "api",
    "fit_async": "api",
    "from_lightgbm": "booster",
    "from_xgboost": "booster",
    "load": "booster",
    "plan": "sizing",
    "prepare": "api",
}
#: Modules with more public names.
_MODULES = ("integrations", "losses", "metrics", "params")


def __getattr__(name: str) -> Any:
    if name in _LATE:
        value = getattr(importlib.import_module(f"dboost.{_LATE[name]}"), name)
    elif not name.startswith("_") and importlib.util.find_spec(f"dboost.{name}") is not None:
        value = importlib.import_module(f"dboost.{name}")
    else:
        if name.startswith("_"):
            raise AttributeError(f"module 'dboost' has no attribute {name!r}", name=name)
        from dboost.booster import Booster
        from dboost.params.peer_names import unknown_in_module

        raise unknown_in_module(name, __all__, dir(Booster))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, *(name for name in globals() if name.startswith("__"))})
