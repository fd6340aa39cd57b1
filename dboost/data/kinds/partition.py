"""From a partition to a chunk: the columns and roles of a plan, read from a table in memory.

`read_slices` is a pure function of a plan and a table in memory: the same code reads the user's array, a Dask partition in
a thread, and one on a worker. The chunk has its own categories; the reader in `data/tables/reader.py` makes those of all
partitions consistent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np

from dboost.data.columns.chunk import Chunk, MatrixColumns, is_numeric, plain
from dboost.data.columns.column import CategoryColumn, Column, without_unused
from dboost.data.columns.conversion import EXACT, ColumnSpec, check_kind, to_column
from dboost.data.columns.labels import Names
from dboost.data.columns.read_plan import ReadPlan, columns_of_roles
from dboost.data.columns.roles import ROLES, RowRoles, keys_of
from dboost.data.columns.sparse import SparseColumn
from dboost.data.kinds.frame import Frame
from dboost.data.kinds.table_kinds import as_frame, collected, form_of, names_of_table
from dboost.errors import DataError, InputTypeError


def read_slices(
    data: Any, plan: ReadPlan, vectors: Mapping[str, Any] = MappingProxyType({}), most_rows: int | None = None
) -> Iterator[Chunk]:
    """Read the columns of a plan from a table in memory, in equal slices, one at a time.

    Parameters
    ----------
    data : Frame, or anything that `as_frame` accepts
    plan : ReadPlan
    vectors : mapping
        Roles of these rows that are not columns of the table, by name.
    most_rows : int, optional
        Largest number of rows of a slice. Default: all rows are one slice.

    Yields
    ------
    Chunk
        With its own categories; the first slice contains the roles of all rows. Columns are views of `data` if their types
        allow it.

    Raises
    ------
    DataError
        If a column is missing, superfluous or cannot be read.
    """
    frame = data if isinstance(data, Frame) else as_frame(data)
    position = _positions(frame, plan)
    if frame.n_rows and plan.all_names is not None and frame.names != plan.all_names:
        extra = [name for name in frame.names if name not in set(plan.all_names)]
        if extra:
            raise DataError(f"there is a column {extra[0]!r} that other partitions do not have")
    n_slices = 1 if most_rows is None else max(math.ceil(frame.n_rows / most_rows), 1)
    ends = [frame.n_rows * k // n_slices for k in range(n_slices + 1)]
    values_of_roles = dict(vectors)
    for role, names in plan.roles.items():
        role_columns = [
            frame.column(_find(position, column)) if frame.n_rows else np.empty(0) for column in columns_of_roles({role: names})
        ]
        values_of_roles[role] = role_columns[0] if isinstance(names, str) else RoleColumns(role_columns)
    roles = RowRoles.of(
        {
            role: role_column(values_of_roles[role], role, plan.roles.get(role), frame.n_rows)
            for role in ROLES
            if role in values_of_roles
        }
    )
    weight = roles.weight
    for first, last in pairwise(ends):
        columns, matrix = _features(frame if n_slices == 1 else frame.rows(first, last), plan, position)
        if matrix is None and weight is not None and (weight[first:last] == 0).any():
            columns = tuple(_weighted(column, weight[first:last] == 0) for column in columns)
        if matrix is not None and most_rows is not None and matrix.itemsize > 8:  # a slice has at most 8 bytes a value
            matrix = plain(matrix)
            columns = MatrixColumns(matrix)
        yield Chunk(last - first, columns, roles if first == 0 else RowRoles(), matrix)


def _weighted(column: Column, is_zero: np.ndarray) -> Column:
    """Return a column with only the categories of rows of positive weight."""
    if not isinstance(column, CategoryColumn):
        return column
    return without_unused(CategoryColumn(np.where(is_zero, -1, column.codes), column.categories))


def _features(frame: Frame, plan: ReadPlan, position: dict[str, int]) -> tuple[Sequence[Column], np.ndarray | None]:
    if not frame.n_rows:  # an empty partition often has arbitrary dtypes, or no columns
        return tuple(np.empty(0, np.float32) for _ in plan.columns), None
    if not plan.named and len(frame.names) != len(plan.columns):
        raise DataError(f"there are {len(frame.names)} columns, where others have {len(plan.columns)}")
    positions = [_find(position, key) if isinstance(key, str) else key for key in plan.columns]
    matrix = frame.matrix
    if (
        matrix is not None
        and is_numeric(matrix)
        and positions == list(range(matrix.shape[1]))
        and not any(spec.categorical for spec in plan.specs)
    ):
        for j, spec in enumerate(plan.specs):
            if spec.kinds:
                check_kind(matrix[:, j], spec)
        matrix = matrix.view(np.uint8) if matrix.dtype == bool else matrix
        return MatrixColumns(matrix), matrix
    columns: list[Any] = []
    for j, spec in zip(positions, plan.specs, strict=True):
        column = to_column(frame.column(j), spec)
        if isinstance(column, np.ndarray) and column.dtype == bool:
            column = column.view(np.uint8)
        columns.append(column.as_numbers() if isinstance(column, SparseColumn) else column)
    return tuple(columns), None


def _positions(frame: Frame, plan: ReadPlan) -> dict[str, int]:
    """Return the position of each column by name; raise a DataError if a column of the plan occurs more than once."""
    if plan.named and isinstance(frame.names, Names):
        frame.names.check_once(plan.needed)
    return {name: j for j, name in enumerate(frame.names)}


def check_columns(i: int, data: Any, plan: ReadPlan) -> None:
    """Raise a DataError if partition `i` has rows but lacks a column of the plan."""
    frame = as_frame(data)
    absent = [name for name in plan.needed if name not in set(frame.names)]
    if frame.n_rows and absent:
        raise DataError(f"partition {i}: there is no column {absent[0]!r}")


def _find(position: dict[str, int], name: str) -> int:
    if name not in position:
        raise DataError(f"there is no column {name!r}")
    return position[name]


class RoleColumns(list[Any]):
    """The columns of a role that has several."""


def role_column(values: Any, role: str, name: str | tuple[str, ...] | None, n_rows: int | None) -> Column:
    """Read a role: one value per row, or float64[n_columns, n] of a role that has several columns.

    Parameters
    ----------
    values : array, Series, Arrow array or list, also of shape (n, 1) or (n, n_columns), a dataframe, or RoleColumns
    role : str
        One of `ROLES`.
    name : str, tuple of str, or None
        The name of the column, or of each, for messages.
    n_rows : int or None
        Expected length.
    """
    columns = _columns_of(values, role)
    own_names = names_of_table(values) if name is None and len(columns) > 1 else None
    names = name if isinstance(name, tuple) else own_names or (name,) * len(columns)
    converted = [
        _one_column(values_of_column, role, name_of_column, n_rows)
        for values_of_column, name_of_column in zip(columns, names, strict=True)
    ]
    if len(converted) == 1:
        return converted[0]
    for number, (column, name) in enumerate(zip(converted, names, strict=True)):
        label = f"column {number} of {role}" if name is None else f"{role} {name!r}"
        if isinstance(column, CategoryColumn):
            raise DataError(f"{label} holds text or categories, but of several columns each must hold numbers")
        if column.dtype.kind in "iu" and len(column) and max(int(column.max()), -int(column.min())) >= EXACT:
            raise DataError(f"{label} holds integers of 2**53 or more, which floats cannot represent exactly")
    return np.stack([np.asarray(column, np.float64) for column in converted])


def _one_column(values: Any, role: str, name: str | None, n_rows: int | None) -> Column:
    if n_rows is not None and len(values) != n_rows:
        is_text = hasattr(values, "__iter__") and all(isinstance(value, str) for value in values)
        hint = "; if these are names of columns, give one, or a list of several that the data have" if is_text else ""
        raise DataError(f"{role} has {len(values)} rows, the data have {n_rows}{hint}")
    dtype, is_key = ROLES[role].dtype, ROLES[role].kind == "key"
    # Keys may have any number of categories.
    spec = ColumnSpec(role if name is None else name, False if dtype is not None and not is_key else None, is_key, role=role)
    column = to_column(values, spec)
    if isinstance(column, SparseColumn):
        column = np.asarray(column)
    if is_key:
        return keys_of(column, role if name in (None, role) else f"{role} {name!r}")
    if isinstance(column, CategoryColumn):
        return column
    # Kernels read the arrays of a fit without further copies.
    return np.require(column, dtype, ["C", "A", "W"])


def _columns_of(values: Any, role: str) -> list[Any]:
    """Return the columns of a role of any kind: one, unless the role may have several."""
    if isinstance(values, RoleColumns):
        return values
    if isinstance(values, CategoryColumn):
        return [values]
    values, has_several = collected(values), ROLES[role].has_several
    form = form_of(values)
    if form == "series":
        return [values]
    if form == "dataframe":
        frame = as_frame(values)
        if not frame.names or (len(frame.names) > 1 and not has_several):
            raise DataError(f"{role} has {len(frame.names)} columns, one is needed")
        return [frame.column(j) for j in range(len(frame.names))]
    if not isinstance(values, (np.ndarray, list, tuple, range)) and not hasattr(values, "__array__"):
        raise InputTypeError(f"{role} must be a column name or one value per row, not {type(values).__name__}")
    if hasattr(values, "tocsr"):
        raise InputTypeError(f"{role} is sparse: pass a dense array")
    try:
        array = values if isinstance(values, np.ndarray) and not isinstance(values, np.matrix) else np.asarray(values)
    except ValueError as error:
        raise DataError(f"{role} is not one value per row: {error}") from None
    if array.dtype.kind == "U" and isinstance(values, (list, tuple)):
        array = np.array(values, dtype=object)  # NumPy converts None and NaN among the values to text
    if array.ndim == 2 and (array.shape[1] == 1 or (has_several and array.shape[1])):
        return list(array.T)
    if array.ndim != 1:
        raise DataError(f"{role} has shape {array.shape}: one value per row is needed")
    return [array]
