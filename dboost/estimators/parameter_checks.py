"""Checks of an estimator's arguments before data are read, with the messages of scikit-learn where it has them."""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.exceptions import DataConversionWarning

from dboost.data.frame import is_lazy
from dboost.errors import DataError, ParameterError


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool | np.bool_)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not _is_flag(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not _is_flag(value)


def _is_part(value: Any) -> bool:
    return value >= 1 if _is_count(value) else _is_number(value) and 0 < value < 1


#: The arguments that `dboost.fit` does not have: their check, and the accepted values for the message.
_OWN: dict[str, tuple[Callable[[Any], bool], str]] = {
    "early_stopping": (lambda v: _is_flag(v) or (isinstance(v, str) and v == "auto"), "'auto', True or False"),
    "scoring": (lambda v: v is None or isinstance(v, str) or callable(v), "'loss', None, a scorer's name or a callable"),
    "validation_fraction": (lambda v: v is None or _is_part(v), "a part of the rows below 1, a number of rows, or None"),
    "n_iter_no_change": (lambda v: _is_count(v) and v >= 1, "an integer of at least 1"),
    "tol": (lambda v: _is_number(v) and v >= 0, "a number of at least 0"),
    "warm_start": (_is_flag, "True or False"),
    "verbose": (lambda v: _is_flag(v) or (_is_count(v) and v >= 0), "an integer of at least 0"),
}


def check_settings(estimator: Any) -> None:
    """Check the values of the estimator's own arguments.

    Raises
    ------
    ParameterError
        Naming the argument.
    """
    for name, (is_valid, accepted) in _OWN.items():
        value = getattr(estimator, name)
        if not is_valid(value):
            raise ParameterError(f"{name}={value!r} must be {accepted}")
    if estimator.early_stopping_rounds is not None and estimator.early_stopping is True:
        raise ParameterError(
            "early_stopping_rounds and early_stopping=True are two rules to stop by: give one (the latter waits for "
            "n_iter_no_change iterations)"
        )


def check_pair(early_stopping: Any, X_val: Any, y_val: Any, sample_weight_val: Any) -> None:
    """Raise a ParameterError for half of a validation pair, and for a pair without early stopping."""
    if y_val is None and X_val is not None:
        raise ParameterError("X_val is provided, but y_val was not provided.")
    if X_val is None and y_val is not None:
        raise ParameterError("y_val is provided, but X_val was not provided.")
    if X_val is None and sample_weight_val is not None:
        raise ParameterError("sample_weight_val is provided, but X_val and y_val were not provided.")
    if X_val is not None and not early_stopping:
        raise ParameterError(
            "X_val and y_val are passed to fit while at the same time early_stopping is False. When passing X_val and "
            "y_val to fit, early_stopping should be set to either 'auto' or True."
        )


def check_lengths(X: Any, y: Any, sample_weight: Any) -> None:
    """Raise a DataError if data in memory have different numbers of rows."""
    n, n_targets, n_weights = map(_n_rows, (X, y, sample_weight))
    if n is not None and n_targets is not None and n != n_targets:
        raise DataError(f"Found input variables with inconsistent numbers of samples: {[n, n_targets]}")
    if n is not None and n_weights is not None and n != n_weights:
        raise DataError(f"sample_weight.shape == ({n_weights},), expected ({n},)!")


def _n_rows(data: Any) -> int | None:
    """The number of rows; None for lazy or missing data."""
    if isinstance(data, list | tuple):
        return len(data)
    shape = () if is_lazy(data) else getattr(data, "shape", ())
    return shape[0] if shape else None


def as_targets(y: Any) -> Any:
    """Return targets unchanged, with scikit-learn's warning if they are a table of one column."""
    if len(getattr(y, "shape", ())) == 2 and y.shape[1] == 1:
        warnings.warn(
            "A column-vector y was passed when a 1d array was expected. Please change the shape of y to (n_samples,), for "
            "example using ravel().",
            DataConversionWarning,
            stacklevel=3,
        )
    return y


def outline(X: Any) -> Any:
    """Return a table with the same columns: of a Dask frame its empty meta frame."""
    return X._meta if is_lazy(X) and hasattr(X, "columns") else X
