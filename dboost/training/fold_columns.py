"""Columns of a table that keywords of a cross-validation name: their values divide the rows, and they are no features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Number
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dboost.data.columns.labels import Names
from dboost.data.columns.times import plain_times, ranks_in_time
from dboost.data.kinds.table_kinds import as_frame, is_dask, is_path, is_stream, names_of_table
from dboost.data.output.predict_io import filtered
from dboost.data.sources import stream_of
from dboost.data.sources.paths import open_path
from dboost.data.sources.row_filter import RowFilter
from dboost.data.sources.stored_stream import columns_used, rereadable
from dboost.data.tables.dask_collections import select
from dboost.errors import DataError, InputTypeError, ParameterError
from dboost.training.fold_rows import FoldDivision, computed

#: Keywords of `FoldDivision` that may name a column.
COLUMNS = ("folds", "groups", "time")


class DataOptions(NamedTuple):
    """Keywords of `cv` that say how the data are read."""

    sample_weight: Any
    offset: Any
    group: Any
    features: Sequence[str] | None
    categorical_features: Any
    filter: Any
    client: Any
    memory_limit: int | str | None
    n_threads: int | None

    @property
    def shaping(self) -> dict[str, Any]:
        """Those that belong to a data set: for one that is given they have been decided."""
        names = ("sample_weight", "offset", "group", "features", "categorical_features", "filter", "client")
        return {name: getattr(self, name) for name in names}


def with_values(
    data: Any, target: Any, division: FoldDivision, options: DataOptions
) -> tuple[Any, FoldDivision, Sequence[str] | None]:
    """Return the division with values in place of names of columns and with the rows that have a positive weight, and the
    features: without these columns.

    The data are returned, too: columns are read before the other ones, so a stream that may be read once only is stored.
    """
    known = names_of_table(data) or Names(())
    columns = {name: getattr(division, name) for name in COLUMNS}
    named = {
        name: value
        for name, value in columns.items()
        if known.is_label(value) and not (name == "folds" and isinstance(value, Number))
    }
    weight = options.sample_weight
    is_unknown = bool(known) and known.is_label(weight) and known.find(weight) is None  # an error of the fit
    if not named and (weight is None or is_unknown):
        return data, division, options.features
    used = (target, weight, options.offset, options.group, *named.values())
    row_filter = None if options.filter is None else RowFilter(options.filter)
    if is_stream(data) and not known:
        data = rereadable(data, partial(columns_used, options.features, used, row_filter), "cv")
    keywords = ", ".join(f"{name}={column!r}" for name, column in named.items())
    names: Names | None
    if is_stream(data):
        table, names = data, stream_of(data).names
    elif options.filter is not None:
        table = filtered(data, options.filter)
        names = names_of_table(table)
    else:
        table = open_path(data, columns=()) if is_path(data) else data  # the fit checks the columns
        names = names_of_table(table)
    if names is None and named:
        raise InputTypeError(f"{keywords} names a column, but the data have no columns: give one value per row")
    names = names or Names(())
    columns_by_keyword = _columns_named(named, names)
    if names.is_label(weight):
        column = names.find(weight)
        names.check_once([] if column is None else [column])
        weight = None if column is None else _values_of(table, column, row_filter)
    # Weights that are no numbers are an error of the fit.
    is_kept = None if weight is None else _are_positive(computed(weight))
    if is_kept is not None and (is_kept.all() or not is_kept.any()):
        is_kept = None
    values: dict[str, Any] = {}
    for keyword, column in columns_by_keyword.items():
        plain = plain_times if keyword == "time" else np.asarray
        values[keyword] = _ranks(_values_of(table, column, row_filter, plain), is_kept, keyword, named[keyword])
    taken = {names.find(column) for column in used if names.is_label(column)}
    features = [name for name in names if name not in taken] if named and options.features is None else options.features
    return data, division._replace(**values, is_kept=is_kept), features


def _columns_named(labels: Mapping[str, Any], names: Names) -> dict[str, str]:
    """Return the names of the columns that keywords name; raise an error if there is none, or several."""
    columns: dict[str, str] = {}
    for keyword, label in labels.items():
        column = names.find(label)
        if column is None:
            raise ParameterError(f"the data have no column {label!r}, which was given as {keyword}{names.hint(label)}")
        columns[keyword] = column
    names.check_once(columns.values())
    return columns


def _ranks(values: np.ndarray, is_kept: np.ndarray | None, keyword: str, label: Any) -> np.ndarray:
    """Return the values of a keyword as ranks, those of the same value alike: int64[n]; 0 in rows that are not kept.

    label : of their column, for messages.
    """
    rows = slice(None) if is_kept is None or len(is_kept) != len(values) else is_kept
    if pd.isna(values[rows]).any():
        raise DataError(f"column {label!r}, which was given as {keyword}, has missing values: fill them, or remove the rows")
    ranks = np.zeros(len(values), np.int64)
    if keyword == "time":
        ranks[rows] = ranks_in_time(values[rows], keyword, label)
    else:
        ranks[rows] = np.unique(values[rows], return_inverse=True)[1]
    return ranks


def _are_positive(weights: Any) -> np.ndarray | None:
    """Return whether each weight is above 0; None if they are no list of numbers, which is an error of the fit."""
    try:
        return pd.to_numeric(np.asarray(weights).reshape(-1), errors="coerce") > 0
    except (TypeError, ValueError):
        return None


def _values_of(
    table: Any, name: str, row_filter: RowFilter | None, plain: Callable[[Any], np.ndarray] = np.asarray
) -> np.ndarray:
    """Return a column of a table as an array. row_filter : of a stream; plain : makes an array of a column in memory."""
    if is_stream(table):
        batches = stream_of(table, row_filter=row_filter).partitions([name])
        return np.concatenate([np.asarray(_column_of(batch, name)) for batch in batches])
    return plain(_column_of(computed(select(table, (name,)) if is_dask(table) else table), name))


def _column_of(table: Any, name: str) -> Any:
    frame = as_frame(table)
    return frame.column(frame.names.index(name))
