"""What can go wrong, in words for the user.

Every error that dboost raises on purpose derives from `DBoostError` and, where Python already has a name for the kind of
mistake, from that too: a bad value is also a `ValueError`, a wrong type also a `TypeError`. So code written for
scikit-learn keeps catching what it caught. Messages name the column, row range, partition, worker or file at fault.
"""

from __future__ import annotations

from typing import Any


class DBoostError(Exception):
    """Base of all errors raised by dboost on purpose."""


class DataError(DBoostError, ValueError):
    """The data cannot be used as they are: the message names the column and the partition or rows."""


class ParameterError(DBoostError, ValueError):
    """A parameter has a value that makes no sense, or that is not supported."""


class InputTypeError(DBoostError, TypeError):
    """An argument is of a kind that dboost does not take."""


class ModelFileError(DBoostError, ValueError):
    """A model file is damaged, cut short, or of a format that this version does not know."""


class DriftWarning(UserWarning):
    """A model goes on with data that look different from those that it has learned from."""


class FitInterrupted(KeyboardInterrupt):
    """^C during a fit. `ensemble` is the model as far as it came, `iterations` how many iterations that is."""

    def __init__(self, message: str, ensemble: Any, iterations: int) -> None:
        super().__init__(message)
        self.ensemble = ensemble
        self.iterations = iterations
