"""Parameters that name columns of a table: roles, targets, constraints; see `data.columns.labels`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dboost._lazy_import import is_a
from dboost.data.columns.labels import Names, may_name_columns, text_of
from dboost.data.kinds.table_kinds import names_of_table


def column_named(value: Any, data: Any) -> str | None:
    """Return the name of the column that a label means, or None if the value is no label, but values; see `Names`.

    A label that the data do not have is returned as text: reading the data raises an error then.
    """
    value = _only_name(value, data)
    names = names_of_table(data) or Names(())
    if not names.is_label(value):
        return None
    return names.find(value) or text_of(value)


def _only_name(value: Any, data: Any) -> Any:
    """Return the name of the column if a value is a list, an array or an Index of one name, else the value as it is."""
    has_items = isinstance(value, list | np.ndarray) or is_a(value, "pandas", "Index")
    if not has_items or isinstance(data, np.ndarray) or getattr(value, "ndim", 1) != 1 or len(value) != 1:
        return value
    if not isinstance(value[0], str):
        return value
    names = names_of_table(data)
    return value[0] if names is None or names.find(value[0]) is not None else value


def columns_named(value: Any, data: Any, *, is_read_later: bool) -> str | list[str] | None:
    """Return the name of the column that a role means, the names if it means several, or None for values.

    is_read_later : whether the names of the columns are in files or a stream; texts that all differ are names then.
    """
    name = column_named(value, data)
    if name is not None or not may_name_columns(value):
        return name
    names = names_of_table(data)
    if names is None and is_read_later:
        return list(value) if len(set(value)) == len(value) else None
    return list(value) if names is not None and all(names.find(label) == label for label in value) else None


def with_named_targets(target: Any, data: Any) -> Any:
    """Return the names of the columns if a target is a collection of labels, the name if of one, else the target as it is.

    A list, an Index or an array of texts are labels if the table has a column for each. Labels that are neither text nor
    tuples are values if there is one for each row. Columns of files are not known yet: texts that all differ may be names.
    """
    target = _only_name(target, data)
    is_index, is_array = is_a(target, "pandas", "Index"), isinstance(target, np.ndarray) and target.dtype.kind in "UOT"
    if not (isinstance(target, list) or is_index or (is_array and target.ndim == 1)) or isinstance(data, np.ndarray):
        return target
    names = names_of_table(data)
    if may_name_columns(target) or len(target) < 2 or (names is not None and len(target) > len(names)):
        return target
    labels = target if isinstance(target, list) else target.tolist()
    are_texts = all(isinstance(label, str) for label in labels)
    if names is None:
        return labels if are_texts and len(set(labels)) == len(labels) else target
    are_long = are_texts or all(isinstance(label, str | tuple) for label in labels)
    if not are_long and hasattr(type(data), "__len__") and not hasattr(data, "dask") and len(data) == len(labels):
        return target
    names_of_targets = [names.find(label) for label in labels]
    return target if None in names_of_targets else names_of_targets


def copied_column(data: Any, values: Any) -> str | None:
    """Return the name of the column of a pandas or polars frame that a Series, or a column of another frame, is a copy of: it
    has the same name and values. None without such a column.
    """
    if is_a(data, "polars", "DataFrame"):
        series = [values] if is_a(values, "polars", "Series") else values if is_a(values, "polars", "DataFrame") else []
        return next((each.name for each in series if each.name in data.columns and data[each.name].equals(each)), None)
    if not is_a(data, "pandas", "DataFrame"):
        return None
    series = [values] if is_a(values, "pandas", "Series") else []
    if is_a(values, "pandas", "DataFrame"):
        series = [values.iloc[:, k] for k in range(values.shape[1])]
    for each in series:
        if each.name is not None and sum(data.columns == each.name) == 1 and data[each.name].equals(each):
            return text_of(each.name)
    return None


def with_named_constraints(parameters: dict[str, Any], data: Any) -> dict[str, Any]:
    """Return parameters of learning with the names of columns in `monotonic_cst` and `interaction_cst`.

    Labels that the data do not have stay; numbers in `interaction_cst` are positions.
    """
    constraints = dict(parameters)
    monotonic, groups = constraints.get("monotonic_cst"), constraints.get("interaction_cst")
    if not isinstance(monotonic, Mapping) and not isinstance(groups, Iterable):
        return constraints
    names = Names(data.feature_names_in_) if hasattr(data, "feature_names_in_") else names_of_table(data)
    if names is None:
        return constraints
    if isinstance(monotonic, Mapping):
        constraints["monotonic_cst"] = {_named(label, names): value for label, value in monotonic.items()}
    if isinstance(groups, Iterable) and not isinstance(groups, str):
        constraints["interaction_cst"] = [_named_group(group, names) for group in groups]
    return constraints


def _named(label: Any, names: Names) -> Any:
    name = names.find(label)
    return label if name is None else name


def _named_group(group: Any, names: Names) -> Any:
    if isinstance(group, str) or not isinstance(group, Iterable):
        return group
    items = [
        item if isinstance(item, int | np.integer) and not isinstance(item, bool) else _named(item, names) for item in group
    ]
    return set(items) if isinstance(group, set | frozenset) else items
