"""From one partition to one chunk.

`read_partition` is a pure function of a plan and a table in memory, whoever holds it: the same code reads the user's
array, a Dask partition in a thread, and one on another machine. The chunk it returns has its own levels; making them
agree between partitions is the business of `table.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from dboost.errors import DataError, InputTypeError
from dboost.late import is_a
from dboost.sources.chunk import CategoryColumn, Chunk, Column
from dboost.sources.columns import Rule, to_column
from dboost.sources.frame import Frame, as_frame, is_plain, library
from dboost.sources.levels import apply
from dboost.sources.plan import Plan

#: Names of the three columns that are not features, as the user knows them.
ROLES = ("target", "sample_weight", "offset")


def read_partition(data: Any, plan: Plan, vectors: tuple[Any, Any, Any] = (None, None, None)) -> Chunk:
    """Read the columns of a plan from a table in memory.

    Parameters
    ----------
    data : Frame, or anything that `as_frame` takes
    plan : Plan
    vectors : tuple
        Target, weight and offset of these rows where they are no columns of the table.

    Returns
    -------
    Chunk
        With levels of its own; ``weight`` and ``offset`` as float64, the target in its own type. Columns are views of
        `data` wherever their types allow.

    Raises
    ------
    DataError
        Naming the column that is missing, superfluous or unreadable.
    """
    (chunk,) = read_slices(data, plan, vectors)
    return chunk


def read_slices(
    data: Any, plan: Plan, vectors: tuple[Any, Any, Any] = (None, None, None), most_rows: int | None = None
) -> Iterator[Chunk]:
    """The same in slices of equally many rows, `most_rows` at most; target, weight and offset of all rows are in the first.

    A slice is read when it is asked for, so that not all have to be in memory.
    """
    frame = data if isinstance(data, Frame) else as_frame(data)
    position = {name: j for j, name in enumerate(frame.names)}
    if frame.n_rows and plan.all_names is not None and frame.names != plan.all_names:
        extra = [name for name in frame.names if name not in set(plan.all_names)]
        if extra:
            raise DataError(f"there is a column {extra[0]!r} that other partitions do not have")
    n_slices = 1 if most_rows is None else max(math.ceil(frame.n_rows / most_rows), 1)
    ends = [frame.n_rows * k // n_slices for k in range(n_slices + 1)]
    roles: list[Column | None] = []
    for role, column, vector in zip(ROLES, (plan.target, plan.weight, plan.offset), vectors, strict=True):
        if column is not None:
            vector = frame.column(_find(position, column)) if frame.n_rows else np.empty(0)
        roles.append(None if vector is None else role_column(vector, role, column, frame.n_rows))
    target, weight, offset = roles
    assert not isinstance(weight, CategoryColumn) and not isinstance(offset, CategoryColumn)
    for first, last in pairwise(ends):
        columns, matrix = _features(frame if n_slices == 1 else frame.rows(first, last), plan, position)
        if weight is not None and (weight[first:last] == 0).any():
            columns = tuple(_without_levels(column, weight[first:last] == 0) for column in columns)
        yield Chunk(last - first, columns, *((target, weight, offset) if first == 0 else (None, None, None)), matrix)


def _without_levels(column: Column, silent: np.ndarray) -> Column:
    """A column with the levels of the other rows only: rows of weight zero say nothing, not even which levels there are."""
    if not isinstance(column, CategoryColumn):
        return column
    codes = np.where(silent, -1, column.codes)
    used = np.bincount(codes[codes >= 0], minlength=len(column.levels)) > 0
    levels = tuple(level for level, occurs in zip(column.levels, used, strict=True) if occurs)
    return CategoryColumn(apply(np.cumsum(used) - 1, codes), levels)


def _features(frame: Frame, plan: Plan, position: dict[str, int]) -> tuple[tuple[Column, ...], np.ndarray | None]:
    if not frame.n_rows:  # an empty partition often has no types worth looking at, or not even columns
        return tuple(np.empty(0, np.float32) for _ in plan.columns), None
    if not plan.named and len(frame.names) != len(plan.columns):
        raise DataError(f"there are {len(frame.names)} columns, where others have {len(plan.columns)}")
    places = [_find(position, key) if isinstance(key, str) else key for key in plan.columns]
    matrix = frame.matrix
    plain = (
        matrix is not None
        and is_plain(matrix)
        and places == list(range(matrix.shape[1]))
        and not any(rule.categorical for rule in plan.rules)
    )
    columns = []
    for place, rule in zip(places, plan.rules, strict=True):
        column = to_column(frame.column(place), rule)
        if isinstance(column, np.ndarray) and column.dtype == bool:
            column = column.view(np.uint8)
        columns.append(column)
    return tuple(columns), matrix if plain else None


def check_columns(i: int, data: Any, plan: Plan) -> None:
    """Raise a DataError when partition `i` has rows but lacks a column of the plan."""
    frame = as_frame(data)
    absent = [name for name in plan.needed if name not in set(frame.names)]
    if frame.n_rows and absent:
        raise DataError(f"partition {i}: there is no column {absent[0]!r}")


def _find(position: dict[str, int], name: str) -> int:
    if name not in position:
        raise DataError(f"there is no column {name!r}")
    return position[name]


def role_column(values: Any, role: str, name: str | None, n_rows: int | None) -> Column:
    """Read a target, weight or offset: one value per row.

    Parameters
    ----------
    values : array, Series, Arrow array or list, also (n, 1), or a frame of one column
    role : {"target", "sample_weight", "offset"}
    name : str or None
        The column's name, for messages.
    n_rows : int or None
        Expected length, if known.
    """
    values = one_column(values, role)
    if n_rows is not None and len(values) != n_rows:
        raise DataError(f"{role} has {len(values)} rows, the data have {n_rows}")
    column = to_column(values, Rule(role if name is None else name))
    if role == "target":
        return column
    if isinstance(column, CategoryColumn):
        raise DataError(f"{role} holds text or categories, numbers are needed")
    return column.astype(np.float64, copy=False)


def one_column(values: Any, role: str) -> Any:
    """The single column of what a user gave as target, weight or offset."""
    kind = library(values)
    if is_a(values, "pandas", "Series", "Index") or is_a(values, "pyarrow", "Array", "ChunkedArray"):
        return values
    if kind == "polars" and hasattr(values, "to_frame"):
        return values
    if is_a(values, "pandas", "DataFrame") or is_a(values, "pyarrow", "Table") or kind == "polars":
        frame = as_frame(values)
        if len(frame.names) != 1:
            raise DataError(f"{role} has {len(frame.names)} columns, one is needed")
        return frame.column(0)
    if not isinstance(values, (np.ndarray, list, tuple, range)) and not hasattr(values, "__array__"):
        raise InputTypeError(f"{role} must be a column name or one value per row, not {type(values).__name__}")
    if hasattr(values, "tocsr"):
        raise InputTypeError(f"{role} is sparse: pass a dense array")
    try:
        array = values if isinstance(values, np.ndarray) else np.asarray(values)
    except ValueError as error:
        raise DataError(f"{role} is not one value per row: {error}") from None
    if array.dtype.kind == "U" and isinstance(values, (list, tuple)):
        array = np.array(values, dtype=object)  # NumPy would have made text of the None or NaN among the values
    if array.ndim == 2 and array.shape[1] == 1:
        return array[:, 0]
    if array.ndim != 1:
        raise DataError(f"{role} has shape {array.shape}: one value per row is needed")
    return array
