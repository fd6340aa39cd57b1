"""Evaluation sets as a call names them, before anything is read.

An evaluation set is a `GivenTable`, as the training data are, with a name. So all tables of a fit have the same roles, checks
and messages, whether this process or workers read them.

**Roles.** A set that is a table of its own has the columns of the training table. A set (X, y, weight, offset) has the target
and the weights of the tuple. Its offset, if the tuple has none, and its other roles are columns of X; a frame X need not have
those other roles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dboost.data.columns.labels import may_name_columns
from dboost.data.columns.roles import ROLES
from dboost.data.kinds.named_columns import column_named
from dboost.data.kinds.table_kinds import is_path, names_of_table
from dboost.data.tables.reading import GivenTable
from dboost.errors import DataError, DBoostError, InputTypeError, ParameterError

#: The roles that an evaluation set may have beside X, in the order of the tuple.
_OF_TUPLE = ("target", "sample_weight", "offset")


@contextmanager
def named_in_messages(name: str) -> Iterator[None]:
    """Return a context whose errors name an evaluation set."""
    try:
        yield
    except (DataError, InputTypeError) as error:
        raise type(error)(f"evaluation set {name!r}: {error}") from error
    except Exception as error:
        if not isinstance(error, DBoostError):  # of the user's code
            error.add_note(f"of evaluation set {name!r}")
        raise


def named_sets(eval_set: Any) -> dict[str, Any]:
    """Return the evaluation sets by name, each a table, or a tuple (X, y, weight, offset) or the beginning of one.

    eval_set : one of these, a dict of them by name, or a list of them.
    """
    if eval_set is None:
        return {}
    if isinstance(eval_set, dict):
        sets = {str(name): given_set for name, given_set in eval_set.items()}
        if len(sets) < len(eval_set):
            raise ParameterError(f"names of evaluation sets must differ as text: {', '.join(map(repr, eval_set))}")
    elif isinstance(eval_set, list) and all(isinstance(given_set, tuple) or _has_columns(given_set) for given_set in eval_set):
        sets = {"eval" if len(eval_set) == 1 else f"eval_{i}": given_set for i, given_set in enumerate(eval_set)}
    else:
        sets = {"eval": eval_set}
    for name, given_set in sets.items():
        if isinstance(given_set, tuple) and len(given_set) not in (2, 3, 4):
            raise InputTypeError(
                f"evaluation set {name!r} must be (X, y), (X, y, weight) or (X, y, weight, offset), not {len(given_set)} things"
            )
    return sets


def eval_tables(eval_set: Any, training: Mapping[str, Any]) -> tuple[GivenTable, ...]:
    """Return the evaluation sets.

    Parameters
    ----------
    eval_set : as of `dboost.fit`
    training : mapping
        Roles of the training table as the user gave them; names of columns also apply to the sets.

    Raises
    ------
    ParameterError
        If a set has no target, or no offset although the training data have one.
    InputTypeError
        If a set is a tuple of another length, or its target is a table and its data are text.
    """
    return tuple(_eval_table(name, given_set, training) for name, given_set in named_sets(eval_set).items())


def _eval_table(name: str, eval_set: Any, training: Mapping[str, Any]) -> GivenTable:
    data, *values = eval_set if isinstance(eval_set, tuple) else (eval_set,)
    roles = {role: value for role, value in zip(_OF_TUPLE, values, strict=False) if value is not None}
    roles |= _columns_of(data, training, roles)
    if "target" not in roles:
        raise ParameterError(
            f"evaluation set {name!r} is a table without a target: give (X, y), or name the target column in fit"
        )
    if training.get("offset") is not None and "offset" not in roles:
        raise ParameterError(
            f"evaluation set {name!r} has no offsets, but the training data have: give (X, y, weight, offset), with "
            "None for no weight, or name a column of both in fit"
        )
    with named_in_messages(name):
        return GivenTable(data, roles, name=name)


def _columns_of(data: Any, training: Mapping[str, Any], roles: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that are roles of a set beside the given ones, by role; reading the set fails without them."""
    is_whole = "target" not in roles
    if not (is_whole or is_path(data) or _has_columns(data)):
        return {}
    columns = {role: _column(training.get(role), data) for role in ROLES if role not in roles}
    present = {role: column for role, column in columns.items() if column is not None}
    if is_whole:
        return present
    names = names_of_table(data)
    present = {role: column for role, column in present.items() if role == "offset" or names is None or column in names}
    present.pop("sample_weight", None)
    return present


def _column(value: Any, data: Any) -> Any:
    """Return the name of the column, or the names of the columns, that are a role of the training data; None for values."""
    if not may_name_columns(value):
        return column_named(value, data)
    names = names_of_table(data)
    return value if names is None or all(name in names for name in value) else None


def _has_columns(data: Any) -> bool:
    """Return whether an object has named columns; a list of such objects is no table itself."""
    return any(hasattr(type(data), name) for name in ("columns", "column_names", "__arrow_c_stream__"))
