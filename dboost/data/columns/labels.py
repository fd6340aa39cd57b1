"""Labels of columns: the one place where what the user calls a column becomes the name of one of the table's columns.

Models name features by text: a table's labels as `str` writes them. The labels themselves may be anything that can be hashed
(tuples of a pandas MultiIndex, dates, numbers, None, members of an enumeration), and the user may give either. `Names.find`
first looks for an equal label, then for the same text. Truth values equal no numbers here, and NaN equals NaN.

A parameter may be a label or values, one for each row: `Names.is_label` decides. Text and other single values are labels. A
tuple is a label if it is one of the table's, or as long as those of the table; otherwise it has values.

A table may have several columns of the same name as long as none of them is used (`Names.check_once`).
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from datetime import date, time, timedelta
from enum import Enum
from functools import cached_property
from numbers import Number
from typing import Any

import numpy as np

from dboost._lazy_import import is_a, pd
from dboost.errors import DataError, InputTypeError

#: Parameters of learning that name columns.
CONSTRAINTS = {"monotonic_cst", "interaction_cst"}
#: Types of single values. A value of another type is only a label if the table has it.
_SINGLE = (str, bytes, Number, date, time, timedelta, Enum, np.generic)


class Names(tuple[str, ...]):
    """Names of the columns of a table: its labels as text.

    Parameters
    ----------
    labels : iterable
        The table's own labels.
    index : iterable
        Names of the levels of its index, for hints; default none.
    """

    labels: tuple[Any, ...]
    index_names: tuple[Any, ...]

    def __new__(cls, labels: Iterable[Any], index: Iterable[Any] = ()) -> Names:
        labels = tuple(labels)
        made = super().__new__(cls, map(str, labels))
        made.labels, made.index_names = labels, tuple(name for name in index if name is not None)
        return made

    def __reduce__(self) -> Any:
        return tuple, (tuple(self),)  # plans of workers need the text only

    @classmethod
    def of(cls, names: Iterable[str]) -> Names:
        """Return names, which are their own labels unless they have others."""
        return names if isinstance(names, cls) else cls(names)

    @cached_property
    def _by_label(self) -> dict[Any, tuple[Any, str]]:
        return {label: (label, name) for label, name in zip(self.labels, self, strict=True)}

    @cached_property
    def _texts(self) -> frozenset[str]:
        return frozenset(self)

    @cached_property
    def repeated(self) -> frozenset[str]:
        """Names of several columns."""
        if len(self._texts) == len(self):
            return frozenset()
        return frozenset(name for name, count in Counter(self).items() if count > 1)

    def find(self, label: Any) -> str | None:
        """Return the name of the column that a label or its text means; None if there is none."""
        if not isinstance(label, Hashable):
            return None
        try:
            known, name = self._by_label.get(label, (None, None))
        except TypeError:  # a tuple of something that cannot be hashed
            return None
        if name is not None and _equals(known, label):
            return name
        if not isinstance(label, str):  # equal labels may have different hashes
            for known, name in zip(self.labels, self, strict=True):
                if _equals(known, label):
                    return name
        text = text_of(label)
        return text if text in self._texts else None

    def only(self, names: Iterable[str]) -> Names:
        """Return some of the names, in this order, with their labels."""
        label = dict(zip(self, self.labels, strict=True))
        return Names(label.get(name, name) for name in names)

    def is_label(self, value: Any) -> bool:
        """Return whether a parameter that is a label or values is a label, though perhaps not of this table."""
        if value is None or isinstance(value, bool | np.bool_):
            return isinstance(value, bool | np.bool_) and any(known is bool(value) for known in self.labels)
        if isinstance(value, tuple):
            lengths = {len(known) if isinstance(known, tuple) else None for known in self.labels}
            return lengths == {len(value)} or self.find(value) is not None
        single = isinstance(value, _SINGLE) or is_a(value, "pandas", "Interval", "Period")
        return single or (_is_one(value) and self.find(value) is not None)

    def check_once(self, used: Iterable[str]) -> None:
        """Raise a DataError if several columns have a name that is used."""
        wrong = [name for name in used if name in self.repeated] if self.repeated else []
        if wrong:
            raise DataError(f"column {wrong[0]!r} occurs more than once: feature names must be unique")

    def _is_index(self, label: Any) -> bool:
        return any(_equals(index_name, label) or str(index_name) == label for index_name in self.index_names)

    def index_hint(self, label: Any) -> str:
        """Return a hint at a label that is the table's index, to be appended to a message; empty for others."""
        return f"; {label!r} is the index of the table: make it a column with reset_index()" if self._is_index(label) else ""

    def hint(self, label: Any) -> str:
        """Return a hint at a label that is no column, to be appended to a message."""
        if self._is_index(label):
            return self.index_hint(label)
        name, lower = str(label), {column.strip().lower(): column for column in self}
        near = difflib.get_close_matches(name.strip().lower(), lower, n=2)
        if near:
            return f"; did you mean {' or '.join(repr(lower[column]) for column in near)}?"
        return f"; the columns are {listed([_shortened(column) for column in self[:5]])}{', …' if len(self) > 5 else ''}"


def text_of(label: Any) -> str:
    """Return the text of a label; numbers and dates of NumPy are written like those of Python and pandas."""
    return str(_plain(label))


def _plain(label: Any) -> Any:
    if isinstance(label, np.datetime64):
        return pd.Timestamp(label)
    if isinstance(label, np.generic):
        return label.item()
    return tuple(map(_plain, label)) if type(label) is tuple else label


def _equals(column_label: Any, label: Any) -> bool:
    if column_label is label:
        return True
    if isinstance(column_label, bool | np.bool_) != isinstance(label, bool | np.bool_):
        return False
    try:
        return bool(column_label == label) or (
            type(column_label) is type(label) and column_label != column_label and label != label
        )
    except (TypeError, ValueError):  # pandas.NA, and arrays
        return False


def _is_one(value: Any) -> bool:
    """Return whether an object can be a label and is no column, collection or table."""
    return isinstance(value, Hashable) and not any(
        hasattr(value, name) for name in ("__array__", "__dask_graph__", "__arrow_c_stream__", "__arrow_c_array__", "columns")
    )


def listed(names: Sequence[str]) -> str:
    """Return names for a message, at most five of them."""
    shown = ", ".join(map(repr, names[:5]))
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def _shortened(name: str) -> str:
    return name if len(name) <= 30 else f"{name[:29]}…"


def items_of_labels(labels: Any) -> list[Any]:
    """Return labels that the user gave in a list, set, Index, array or mapping as a list; rows of an array are tuples.

    InputTypeError for anything else.
    """
    if isinstance(labels, str) or not isinstance(labels, Iterable) or is_a(labels, "polars", "Expr"):
        raise InputTypeError(f"features must be a list of names of columns, not {labels!r:.60}")
    return [tuple(item.tolist()) if isinstance(item, np.ndarray) else item for item in labels]


def may_name_columns(value: Any) -> bool:
    """Return whether a role may be the names of several columns: it is a list of two or more texts."""
    return isinstance(value, list) and len(value) > 1 and all(isinstance(item, str) for item in value)


def array_names(n_columns: int) -> tuple[str, ...]:
    """Return the feature names of an array: f0, f1, …"""
    return tuple(f"f{j}" for j in range(n_columns))
