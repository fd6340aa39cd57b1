"""What estimators check of the arguments of `fit`, with scikit-learn's messages where it has them, before data are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sklearn.exceptions import DataConversionWarning

from dboost._lazy_import import pd
from dboost.data.columns.labels import Names
from dboost.data.kinds.table_kinds import is_dask, is_path, is_stream, names_of_table, no_table
from dboost.data.tables.eval_tables import named_sets
from dboost.dataset import Dataset
from dboost.errors import DataError, InputTypeError, ParameterError, warn
from dboost.kernels.threads import available_threads
from dboost.session.row_samples import HELD_OUT, WATCHED


def threads_of(n_jobs: Any, n_threads: Any) -> Any:
    """Return the number of threads for `n_jobs`, or for its alias; None for all processors."""
    if n_jobs is None:
        return n_threads
    if n_threads is not None and n_threads != n_jobs:
        raise ParameterError(f"n_jobs={n_jobs!r} and n_threads={n_threads!r} are the same parameter: give one")
    return available_threads(n_jobs, "n_jobs")


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
    """Raise an error if X in memory is no table, or data in memory have different numbers of rows."""
    if isinstance(X, Dataset):
        return
    refusal = None if is_dask(X) else no_table(X)
    if refusal is not None:
        raise refusal
    n, n_targets, n_weights = map(_n_rows, (X, y, sample_weight))
    if n is not None and n_targets is not None and n != n_targets:
        raise DataError(f"Found input variables with inconsistent numbers of samples: {[n, n_targets]}")
    if n is not None and n_weights is not None and n != n_weights:
        raise DataError(f"sample_weight.shape == ({n_weights},), expected ({n},)!")


def _n_rows(data: Any) -> int | None:
    """The number of rows; None for lazy or missing data."""
    if isinstance(data, list | tuple):
        return len(data)
    shape = () if is_dask(data) else getattr(data, "shape", ())
    return shape[0] if shape else None


def as_targets(y: Any) -> Any:
    """Return targets unchanged, with scikit-learn's warning if they are a table of one column."""
    if len(getattr(y, "shape", ())) == 2 and y.shape[1] == 1:
        warn(
            "A column-vector y was passed when a 1d array was expected. Please change the shape of y to (n_samples,), for "
            "example using ravel().",
            DataConversionWarning,
        )
    return y


def outline(X: Any, names: Names | None) -> Any:
    """Return a table with the same columns: of one with names a pandas frame without rows."""
    return X if names is None else pd.DataFrame(columns=list(names.labels))


def has_unknown_names(X: Any) -> bool:
    """Return whether X is a stream whose names of columns are known when it is read."""
    return is_stream(X) and names_of_table(X) is None


def check_warm_start(settings: Mapping[str, Any]) -> None:
    """Raise a ParameterError for settings that a warm start does not go together with."""
    if settings["refit"] and settings["warm_start"]:
        raise ParameterError("refit=True does not go together with warm_start: leave one of them out")
    if settings["warm_start"] and not settings["keep_summary"]:  # a warm start compares the data with those of the model
        raise ParameterError("keep_summary=False does not go together with warm_start: leave one of them out")


def check_roles(X: Any, y: Any, **roles: Any) -> None:
    """Raise an error for roles that belong to a data set; for a path, and for the name of a column of X as y."""
    if isinstance(X, Dataset):
        for name, value in {"y": y, **roles}.items():
            if value is not None:
                raise ParameterError(f"{name} belongs to dboost.prepare: the data set has its own")
    elif is_path(X) or (names_of_table(X) or Names(())).is_label(y):
        raise InputTypeError("estimators need X and y themselves; dboost.fit accepts paths and names of columns")


def evaluation_sets(eval_set: Any, validation: tuple[Any, Any, Any, Any], offset: Any) -> dict[str, Any]:
    """The evaluation sets by name, the validation pair last."""
    X_val, y_val, sample_weight_val, offset_val = validation
    sets = named_sets(eval_set)
    if HELD_OUT in sets or WATCHED in sets:
        raise ParameterError(f"an evaluation set may not be called {HELD_OUT!r} or {WATCHED!r}: these are the estimator's")
    if X_val is not None:
        sets[HELD_OUT] = (X_val, y_val, sample_weight_val, offset_val)
        if (offset is None) != (offset_val is None):
            raise ParameterError("offset and offset_val go together: give both or none")
    elif offset_val is not None:
        raise ParameterError("offset_val belongs to X_val and y_val, which are not given")
    return sets
