"""Conversion of a partition to a chunk, column by column.

`read_partition` is a pure function of a plan and a table in memory: the same code reads the user's array, a Dask partition in
a thread, and one on a worker. The chunk has its own categories; the reader in `table.py` makes those of all partitions
consistent. NumPy arrays, pandas Series (NumPy, nullable, categorical or Arrow-backed), Arrow arrays, and Series of other
libraries (through Arrow) become either a numeric array or a `CategoryColumn`:

* Integers, floats and booleans keep their type and are not copied if no value is missing; otherwise they become floats with
  NaN. Decimals become float64, half floats float32.
* Text, dictionaries and categoricals become codes of the categories that occur, in no particular order.
* A numeric column that the user declared categorical is coded by its distinct values. Negative values count as missing. Floats
  that are whole numbers become integers, so that 3 and 3.0 are the same category in every library.

Types without an obvious meaning as a number or a category (dates, complex numbers, lists) raise a `DataError` with a hint.

`fingerprint` is a checksum of a chunk. A partition that was lost with its worker is read again, and the model is correct only
if the source returns the same rows in the same order. Some sources do not: a query without an order, a sample without a seed,
a file that was replaced. Categories enter the checksum by value, because codes depend on what the worker has read before.
"""

from __future__ import annotations

import decimal
import math
import numbers
import zlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from dboost._lazy_import import is_a, nw, pa, pd
from dboost.data.chunk import CategoryColumn, Chunk, Column, apply, too_many, without_unused
from dboost.data.frame import Frame, as_frame, collected, is_plain, kind_of
from dboost.data.read_plan import ColumnSpec, ReadPlan
from dboost.errors import DataError, InputTypeError
from dboost.kernels.checksum import checksum
from dboost.schema import MAX_LEVELS, NUMBERS, TRUTH_VALUES, Level, kinds_of


class CellError(DataError, InputTypeError):
    """A column contains objects that are neither numbers nor text."""


def to_column(values: Any, spec: ColumnSpec) -> Column:
    """Return one column as a numeric or boolean array, or as a `CategoryColumn`.

    Parameters
    ----------
    values : one-dimensional ndarray, pandas Index, pyarrow array, or Series of any library

    Raises
    ------
    DataError
        If the column cannot be read as specified. The message names the column.
    """
    if isinstance(values, (np.ndarray, CategoryColumn)):
        column = _from_numpy(values, spec)
    elif is_a(values, "pandas", "Series", "Index"):
        column = _from_pandas(values, spec)
    else:
        column = _from_arrow(values if is_a(values, "pyarrow", "Array", "ChunkedArray") else _to_arrow(values, spec), spec)
    if spec.kinds:
        _check_kind(column, spec)
    if isinstance(column, CategoryColumn):
        if spec.categorical is False:
            if not column.categories:  # all values are missing
                return np.full(len(column.codes), np.nan, np.float32)
            advice = "declare it in categorical_features, or leave it out"
            hint = "the feature is numeric in the model" if spec.known else advice
            raise DataError(f"column {spec.name!r} holds text or categories, which cannot be made numeric: {hint}")
        return column
    return _levels_of_numbers(column, spec) if spec.categorical else column


def _check_kind(column: Column, spec: ColumnSpec) -> None:
    """Raise a DataError if the kind of values differs from training: they would all count as unknown, that is as missing."""
    if isinstance(column, CategoryColumn):
        given, values = (
            kinds_of(column.categories),
            np.array([level for level in column.categories if not isinstance(level, str)]),
        )
    else:
        given, values = {TRUTH_VALUES if column.dtype == bool else NUMBERS}, column
    wrong = given - set(spec.kinds)
    if not wrong:
        return
    if wrong == {NUMBERS}:
        present = values[~np.isnan(values)]
        # Truth values among missing ones are often stored as 0 and 1.
        if not len(present) or (spec.kinds[0] == TRUTH_VALUES and ((present == 0) | (present == 1)).all()):
            return
    if len(column.codes if isinstance(column, CategoryColumn) else column):
        raise DataError(f"column {spec.name!r} holds {min(wrong)}, but it held {spec.kinds[0]} in training")


def _to_arrow(values: Any, spec: ColumnSpec) -> Any:
    try:
        return nw.from_native(values, series_only=True).to_arrow()
    except Exception as error:  # polars raises several types of errors for columns of Python objects
        raise CellError(f"column {spec.name!r} holds {values.dtype}; a number or text is needed") from error


def _from_numpy(values: np.ndarray | CategoryColumn, spec: ColumnSpec) -> Column:
    if not isinstance(values, CategoryColumn) and is_a(values, "numpy.ma", "MaskedArray"):
        values = _masked(np.ma.getdata(values), np.ma.getmaskarray(values), spec)
    if isinstance(values, CategoryColumn):
        return values
    kind = values.dtype.kind
    if kind == "O":
        return _from_objects(values, spec)
    if kind in "UT":
        return _from_text(values, spec)
    if kind not in "biuf":
        raise _refusal(spec, str(values.dtype), {"M": "date", "m": "duration", "c": "complex"}.get(kind))
    if kind == "f" and values.dtype.itemsize not in (4, 8):
        return values.astype(np.float32 if values.dtype.itemsize == 2 else np.float64)
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


def _masked(values: np.ndarray, mask: np.ndarray, spec: ColumnSpec) -> np.ndarray | CategoryColumn:
    """Return numbers with NaN where masked, float32 if that represents every value; integer categories as exact codes."""
    if values.dtype.kind not in "biuf":
        values = values.astype(object)
        values[mask] = None
        return values
    if not mask.any():
        return values
    if spec.categorical and values.dtype.kind in "iu":  # floats cannot represent all integers beyond 2**53
        return _levels_of_numbers(values, spec, mask)
    filled = values.astype(np.result_type(values.dtype, np.float32) if values.dtype != bool else np.float32)
    filled[mask] = np.nan
    return filled


def _from_objects(values: np.ndarray, spec: ColumnSpec) -> Column:
    missing = np.asarray(pd.isna(values))
    present = values[~missing] if missing.any() else values
    types = set(map(type, present))
    if not types:
        return np.full(len(values), np.nan, dtype=np.float32)
    if all(issubclass(t, str) for t in types):
        return _from_text(values, spec)
    if any(issubclass(t, str) for t in types):
        raise DataError(f"column {spec.name!r} mixes text with {_names(types)}: make it one or the other")
    if any(issubclass(t, (complex, np.complexfloating)) for t in types):
        raise _refusal(spec, "complex", "complex")
    if any(hasattr(t, "isoformat") or t is np.datetime64 for t in types):
        raise _refusal(spec, _names(types), "date")
    if not all(issubclass(t, (numbers.Real, np.bool_, decimal.Decimal)) for t in types):
        raise CellError(f"column {spec.name!r} holds {_names(types)}: an argument must be a string or a real number")
    if all(issubclass(t, (bool, np.bool_)) for t in types):
        numeric = present.astype(bool)
    else:
        whole = all(issubclass(t, (numbers.Integral, np.bool_)) for t in types)
        try:
            numeric = present.astype(np.int64 if whole else np.float64)
        except OverflowError:
            unsigned = whole and present.min() >= 0 and present.max() < 2**64
            try:
                numeric = present.astype(np.uint64 if unsigned else np.float64)
            except OverflowError:
                raise DataError(f"column {spec.name!r} holds an integer that is too large for a float") from None
    if not missing.any():
        return numeric
    full = np.zeros(len(values), dtype=numeric.dtype)
    full[~missing] = numeric
    return _masked(full, missing, spec)


def _names(types: set[type]) -> str:
    return ", ".join(sorted(t.__name__ for t in types if not issubclass(t, str)))


def _from_text(values: np.ndarray, spec: ColumnSpec) -> CategoryColumn:
    codes, levels = pd.factorize(values, use_na_sentinel=True)
    return _category(codes, list(map(str, levels)), spec)


def _from_pandas(values: pd.Series | pd.Index, spec: ColumnSpec) -> Column:
    dtype = values.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        categories = values.array.categories
        return _category(values.array.codes, categories, spec)
    if isinstance(dtype, pd.ArrowDtype) or (isinstance(dtype, pd.StringDtype) and dtype.storage == "pyarrow"):
        return _from_arrow(pa.chunked_array(_pieces(values.array.__arrow_array__())), spec)
    if isinstance(dtype, pd.StringDtype):
        return _from_text(values.to_numpy(dtype=object), spec)
    if isinstance(dtype, pd.SparseDtype):
        return _from_numpy(np.asarray(values.array.to_dense()), spec)
    if isinstance(dtype, np.dtype):
        return _from_numpy(values.to_numpy(), spec)
    if hasattr(dtype, "numpy_dtype") and dtype.kind in "biuf":
        mask = np.asarray(values.isna())
        plain = values.to_numpy(dtype=dtype.numpy_dtype, na_value=dtype.type(0))
        return _from_numpy(_masked(plain, mask, spec), spec)
    raise _refusal(spec, str(dtype), "date" if dtype.kind in "Mm" or isinstance(dtype, pd.PeriodDtype) else None)


def _pieces(array: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return array.chunks if isinstance(array, pa.ChunkedArray) else [array]


def _from_arrow(array: pa.Array | pa.ChunkedArray, spec: ColumnSpec) -> Column:
    kind, missing = array.type, array.null_count
    if pa.types.is_null(kind):
        return np.full(len(array), np.nan, dtype=np.float32)
    if pa.types.is_dictionary(kind):
        return _from_arrow_dictionary(array, spec)
    if pa.types.is_string_view(kind):
        array, kind = array.cast(pa.large_string()), pa.large_string()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _from_arrow_dictionary(array.dictionary_encode(), spec)
    if pa.types.is_decimal(kind):
        array, kind = array.cast(pa.float64()), pa.float64()
    if pa.types.is_boolean(kind) and missing:
        array, kind = array.cast(pa.uint8()), pa.uint8()
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        what = "duration" if pa.types.is_duration(kind) else "date" if pa.types.is_temporal(kind) else None
        raise _refusal(spec, str(kind), what)
    pieces = _pieces(array)
    if missing:
        plain = np.concatenate([piece.fill_null(0).to_numpy(zero_copy_only=False) for piece in pieces])
        mask = np.concatenate([piece.is_null().to_numpy(zero_copy_only=False) for piece in pieces])
        return _from_numpy(_masked(plain, mask, spec), spec)
    if len(pieces) == 1:
        return _from_numpy(pieces[0].to_numpy(zero_copy_only=pa.types.is_primitive(kind) and kind != pa.bool_()), spec)
    return _from_numpy(np.asarray(array.to_numpy()), spec)


def _from_arrow_dictionary(array: pa.Array | pa.ChunkedArray, spec: ColumnSpec) -> CategoryColumn:
    if isinstance(array, pa.ChunkedArray):
        array = array.unify_dictionaries()
    pieces = _pieces(array)
    if not pieces:
        return CategoryColumn(np.empty(0, np.int32), ())
    indices = [piece.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False) for piece in pieces]
    return _category(np.concatenate(indices), pieces[0].dictionary.to_pylist(), spec)


def _levels_of_numbers(values: np.ndarray, spec: ColumnSpec, mask: np.ndarray | None = None) -> CategoryColumn:
    if values.dtype == bool:
        values = values.view(np.uint8)
    if values.dtype.kind == "f" and not spec.known and np.isinf(values).any():
        raise DataError(f"column {spec.name!r} is declared categorical but holds infinite values")
    codes, levels = pd.factorize(values, use_na_sentinel=True)
    if not spec.known and values.dtype.kind != "u":
        codes[values < 0] = -1
    if mask is not None:
        codes[mask] = -1
    return _category(codes, levels, spec)


def _category(codes: np.ndarray, levels: Any, spec: ColumnSpec) -> CategoryColumn:
    """Keep only the categories that occur, as Python values."""
    codes = np.asarray(codes)
    used = np.bincount(codes[codes >= 0], minlength=len(levels)).astype(bool)
    kept = np.flatnonzero(used)
    if len(kept) > MAX_LEVELS and not spec.known:
        raise too_many(spec.name)
    if len(kept) < len(levels):
        levels = [levels[i] for i in kept.tolist()] if isinstance(levels, list) else levels[kept]
    plain = levels if isinstance(levels, list) else levels.tolist()
    fresh = np.where(used, np.cumsum(used) - 1, -1)
    hole = [level is None or level != level for level in plain]  # an Arrow dictionary may contain null or NaN
    if any(hole):
        rank = np.where(hole, -1, np.cumsum(np.logical_not(hole)) - 1)
        fresh = apply(rank, fresh)
        plain = [level for level, is_hole in zip(plain, hole, strict=True) if not is_hole]
    return CategoryColumn(apply(fresh, codes), tuple(_level(level, spec) for level in plain))


def _level(level: Any, spec: ColumnSpec) -> Level:
    if isinstance(level, str):
        return str(level)
    if isinstance(level, (bool, int)):
        return level
    if isinstance(level, float):
        if math.isinf(level) and not spec.known:
            raise DataError(f"column {spec.name!r} has an infinite category ({level}): make it missing, or a number of its own")
        return int(level) if level.is_integer() else level
    if isinstance(level, decimal.Decimal):
        return _level(float(level), spec)
    raise DataError(
        f"column {spec.name!r} has categories of type {type(level).__name__}; "
        "use text or numbers, for instance by df[c].astype(str).astype('category')"
    )


def _refusal(spec: ColumnSpec, dtype: str, what: str | None) -> DataError:
    if spec.kinds:
        return DataError(f"column {spec.name!r} has type {dtype}, but it held {spec.kinds[0]} in training")
    head = f"column {spec.name!r} has type {dtype}, which is not a feature: "
    if what == "complex":
        return DataError(head + "Complex data not supported; use the real and imaginary parts as two columns")
    if what == "date":
        c = spec.name
        return DataError(
            head + f"derive numbers from it, for instance df[{c!r}].dt.month, "
            f"or the seconds since a start, (df[{c!r}] - start).dt.total_seconds()"
        )
    if what == "duration":
        return DataError(head + f"use its length in seconds, df[{spec.name!r}].dt.total_seconds()")
    return DataError(head + "make it numbers or text, or leave it out")


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
    if isinstance(values, CategoryColumn):
        return values
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
