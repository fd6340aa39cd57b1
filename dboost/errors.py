"""Errors and warnings.

Every error that dboost raises on purpose derives from `DBoostError`, and an invalid value also from `ValueError`, a wrong type
also from `TypeError`, so that code written for scikit-learn catches them. Messages name the column, rows, partition, worker or
file.
"""

from __future__ import annotations

from typing import Any


class DBoostError(Exception):
    """Base of all errors raised by dboost on purpose."""


class DataError(DBoostError, ValueError):
    """The data are invalid; the message names the column and the partition or rows."""


class ParameterError(DBoostError, ValueError):
    """A parameter has an invalid or unsupported value."""


class InputTypeError(DBoostError, TypeError):
    """An argument has an unsupported type."""


class ModelFileError(DBoostError, ValueError):
    """A model file is missing, damaged, cut short, or of a newer format."""


class DriftWarning(UserWarning):
    """A model is continued with data that have drifted from its training data."""


class FitInterrupted(KeyboardInterrupt):
    """^C during a fit. `ensemble` is the model of the completed iterations, `iterations` their number."""

    def __init__(self, message: str, ensemble: Any, iterations: int) -> None:
        super().__init__(message)
        self.ensemble = ensemble
        self.iterations = iterations
