"""Gradient boosting on Dask, for tables that do not fit one machine or one memory.

>>> import dboost
>>> booster = dboost.fit(frame, "target")            # doctest: +SKIP
>>> booster.predict(new_rows)                        # doctest: +SKIP
"""

from dboost.api import fit
from dboost.booster import Booster, load
from dboost.errors import DataError, DBoostError, InputTypeError, ModelFileError, ParameterError
from dboost.training.fit import FitInterrupted
from dboost.training.monitor import Iteration

__version__ = "0.1.0"

__all__ = [
    "Booster",
    "DBoostError",
    "DataError",
    "FitInterrupted",
    "InputTypeError",
    "Iteration",
    "ModelFileError",
    "ParameterError",
    "fit",
    "load",
]
