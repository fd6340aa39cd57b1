"""Conversion of a partition to a chunk.

`read_partition` is a pure function of a plan and a table in memory: the same code reads the user's array, a Dask partition in
a thread, and one on a worker. The chunk has its own categories; `reader.py` makes those of all partitions consistent.

`fingerprint` is a checksum of a chunk. A partition that was lost with its worker is read again, and the model is correct only
if the source returns the same rows in the same order. Some sources do not: a query without an order, a sample without a seed,
a file that was replaced. Categories enter the checksum by value, because codes depend on what the worker has read before.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from dboost.data.categories import without_unused
from dboost.data.chunk import CategoryColumn, Chunk, Column
from dboost.data.columns import ColumnSpec, to_column
from dboost.data.frame import Frame, as_frame, collected, is_plain, kind_of
from dboost.data.read_plan import ReadPlan
from dboost.errors import DataError, InputTypeError
from dboost.kernels.checksum import checksum

#: The three columns that are not features, by the names of the parameters.
ROLES = ("target", "sample_weight", "offset")


def read_partition(data: Any, plan: ReadPlan, vectors: tuple[Any, Any, Any] = (None, None, None)) -> Chunk:
    """Read the columns of a plan from a table in memory.

    Parameters
    ----------
    data : Frame, or anything that `as_frame` accepts
    plan : ReadPlan
    vectors : tuple
        Target, weight and offset of these rows if they are not columns of the table.

    Returns
    -------
    Chunk
        With its own categories; ``weight`` and ``offset`` as float64, the target in its own dtype. Columns are views of
        `data` if their types allow it.

    Raises
    ------
    DataError
        If a column is missing, superfluous or cannot be read.
    """
    (chunk,) = read_slices(data, plan, vectors)
    return chunk


def read_slices(
    data: Any, plan: ReadPlan, vectors: tuple[Any, Any, Any] = (None, None, None), most_rows: int | None = None
) -> Iterator[Chunk]:
    """Read the same in equal slices of at most `most_rows` rows, one at a time.

    The first slice contains target, weight and offset of all rows.
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
            columns = tuple(_weighted(column, weight[first:last] == 0) for column in columns)
        yield Chunk(last - first, columns, *((target, weight, offset) if first == 0 else (None, None, None)), matrix)


def _weighted(column: Column, is_zero: np.ndarray) -> Column:
    """Return a column with only the categories of rows of positive weight."""
    if not isinstance(column, CategoryColumn):
        return column
    return without_unused(CategoryColumn(np.where(is_zero, -1, column.codes), column.categories))


def _features(frame: Frame, plan: ReadPlan, position: dict[str, int]) -> tuple[tuple[Column, ...], np.ndarray | None]:
    if not frame.n_rows:  # an empty partition often has arbitrary dtypes, or no columns
        return tuple(np.empty(0, np.float32) for _ in plan.columns), None
    if not plan.named and len(frame.names) != len(plan.columns):
        raise DataError(f"there are {len(frame.names)} columns, where others have {len(plan.columns)}")
    positions = [_find(position, key) if isinstance(key, str) else key for key in plan.columns]
    matrix = frame.matrix
    plain = (
        matrix is not None
        and is_plain(matrix)
        and positions == list(range(matrix.shape[1]))
        and not any(spec.categorical for spec in plan.specs)
    )
    columns = []
    for j, spec in zip(positions, plan.specs, strict=True):
        column = to_column(frame.column(j), spec)
        if isinstance(column, np.ndarray) and column.dtype == bool:
            column = column.view(np.uint8)
        columns.append(column)
    return tuple(columns), matrix if plain else None


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


def role_column(values: Any, role: str, name: str | None, n_rows: int | None) -> Column:
    """Read a target, weight or offset: one value per row.

    Parameters
    ----------
    values : array, Series, Arrow array or list, also of shape (n, 1), or a dataframe of one column
    role : {"target", "sample_weight", "offset"}
    name : str or None
        The name of the column, for messages.
    n_rows : int or None
        Expected length.
    """
    values = one_column(values, role)
    if n_rows is not None and len(values) != n_rows:
        raise DataError(f"{role} has {len(values)} rows, the data have {n_rows}")
    column = to_column(values, ColumnSpec(role if name is None else name))
    if role == "target":
        return column
    if isinstance(column, CategoryColumn):
        raise DataError(f"{role} holds text or categories, numbers are needed")
    return column.astype(np.float64, copy=False)


def one_column(values: Any, role: str) -> Any:
    """Return the single column of a target, weight or offset of any kind."""
    values = collected(values)
    kind = kind_of(values)
    if kind == "series":
        return values
    if kind == "dataframe":
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
        array = np.array(values, dtype=object)  # NumPy converts None and NaN among the values to text
    if array.ndim == 2 and array.shape[1] == 1:
        return array[:, 0]
    if array.ndim != 1:
        raise DataError(f"{role} has shape {array.shape}: one value per row is needed")
    return array


_MASK = 2**64 - 1


def fingerprint(chunk: Chunk) -> int:
    """Return a checksum of features, target, weight and offset of a chunk: an integer from 0 to 2**64 - 1."""
    columns = chunk.columns if chunk.matrix is None else (chunk.matrix,)
    found = chunk.n_rows
    for column in (*columns, chunk.target, chunk.weight, chunk.offset):
        found = (found * 0x100000001B3 ^ _of_column(column)) & _MASK
    return found


def _of_column(column: Column | None) -> int:
    if column is None:
        return 1
    if isinstance(column, CategoryColumn):
        levels = [zlib.crc32(repr(level).encode()) for level in column.categories]
        return _of_array(np.array([*levels, 2**32], np.uint64)[column.codes])  # the last one for code -1 (missing)
    return _of_array(column)


def _of_array(values: np.ndarray) -> int:
    content = np.ascontiguousarray(values).view(np.uint8).ravel()
    whole = len(content) - len(content) % 8
    words = content[:whole].view(np.uint64) if content.ctypes.data % 8 == 0 else content[:whole].copy().view(np.uint64)
    return int(checksum(words)) ^ zlib.crc32(content[whole:].tobytes())
