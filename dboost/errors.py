"""Errors and warnings of dboost.

Every error derives from `DBoostError`, and from Python's corresponding class: an invalid value is also a `ValueError`, a wrong
type also a `TypeError`. So code that was written for scikit-learn catches them. Messages name the column, rows, partition,
worker or file.
"""

from __future__ import annotations

from typing import Any


class DBoostError(Exception):
    """Base class of all errors of dboost."""


class DataError(DBoostError, ValueError):
    """The data are invalid; the message names the column, and the partition or rows."""


class ColumnKindsError(DataError):
    """A column holds numbers in some partitions, and text or categories in others."""


class DataFileMissingError(DataError, FileNotFoundError):
    """There is no file or folder at the path of the data."""


class ParameterError(DBoostError, ValueError):
    """A parameter has an invalid or unsupported value."""


class InputTypeError(DBoostError, TypeError):
    """An argument has an unsupported type."""


class ModelFileError(DBoostError, ValueError):
    """A model file is damaged, truncated, or has an unknown format."""


class MissingExtraError(DBoostError, ImportError):
    """An optional library is not installed; the message names the extra that installs it."""


class DriftWarning(UserWarning):
    """Incremental training uses data that differ from the data that the model was trained on."""


class FitInterrupted(KeyboardInterrupt):
    """A fit was interrupted by ^C. `ensemble` is the model of the finished iterations, `iterations` their number."""

    def __init__(self, message: str, ensemble: Any, iterations: int) -> None:
        super().__init__(message)
        self.ensemble = ensemble
        self.iterations = iterations
