"""Conversion of one column of any library to a numeric array, or to categories.

NumPy arrays, pandas Series (NumPy, nullable, categorical or Arrow-backed), Arrow arrays, and Series of other libraries (through
Arrow) become either a numeric array or a `CategoryColumn`:

* Integers, floats and booleans keep their type and are not copied if no value is missing; otherwise they become floats with
  NaN. Decimals become the nearest float64, half floats float32, and integers of 128 bits those of 64 bits or float64.
* Sparse columns keep their form (see `data/columns/sparse.py`) unless they are declared categorical.
* Text, dictionaries and categoricals become codes of the categories that occur, in no particular order.
* A numeric column that the user declared categorical is coded by its distinct values. Negative values count as missing. Floats
  that are whole numbers become integers, so that 3 and 3.0 are the same category in every library.

Types without an obvious meaning as a number or a category (dates, complex numbers, lists) raise a `DataError` with a hint.
"""

from __future__ import annotations

import decimal
import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dboost._lazy_import import is_a, nw, pa, pd
from dboost.data.columns.chunk import is_masked, native, too_many, too_many_classes
from dboost.data.columns.column import CategoryColumn, Column, apply
from dboost.data.columns.sparse import SparseColumn, column_of_pandas
from dboost.errors import DataError, InputTypeError
from dboost.schema import MAX_LEVELS, NUMBERS, TRUTH_VALUES, Feature, Level, kinds_of


@dataclass(frozen=True)
class ColumnSpec:
    """How to read a column."""

    name: str
    #: True: numbers are categories too. False: the column must be numeric. None: the type of the column decides.
    categorical: bool | None = None
    #: The categories are those of a model: the column may contain any number of unknown ones, also negative ones.
    known: bool = False
    #: Kinds of values that the column may contain, see `Feature.legal_kinds`; empty if any kind is legal.
    kinds: tuple[str, ...] = ()
    #: One of `ROLES` for a column that is not a feature.
    role: str | None = None


def column_spec(feature: Feature, *, extend_categories: bool = False) -> ColumnSpec:
    """Return how to read the column of a known feature. extend_categories : whether new categories are added to it."""
    return ColumnSpec(
        feature.name,
        feature.is_categorical,
        known=not (extend_categories and feature.is_categorical),
        kinds=feature.legal_kinds,
    )


class CellError(DataError, InputTypeError):
    """A column contains objects that are neither numbers nor text."""


#: Integers of smaller magnitude (2**53 + 1 becomes 2**53), and powers of ten up to this exponent, are floats without rounding.
EXACT, _EXACT_POWER = 2**53, 22


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
    elif isinstance(values, SparseColumn):
        column = _from_sparse(values, spec)
    elif is_a(values, "pandas", "Series", "Index"):
        column = _from_pandas(values, spec)
    else:
        column = _from_arrow(values if is_a(values, "pyarrow", "Array", "ChunkedArray") else _to_arrow(values, spec), spec)
    if spec.kinds:
        check_kind(column, spec)
    if isinstance(column, CategoryColumn):
        if spec.categorical is False:
            if not column.categories:  # all values are missing
                return np.full(len(column.codes), np.nan, np.float32)
            raise _not_numeric(spec, column.categories)
        return column
    return _levels_of_numbers(np.asarray(column), spec) if spec.categorical else column


def _from_sparse(column: SparseColumn, spec: ColumnSpec) -> Any:
    """Return a sparse column of numbers with values that kernels can read; it stands for an array."""
    if column.dtype.kind not in "biuf":
        return _from_numpy(column.to_array(), spec)
    values = native(column.values)
    return SparseColumn(column.rows, values, column.n_rows, values.dtype.type(column.fill))


def _not_numeric(spec: ColumnSpec, levels: Sequence[Level]) -> DataError:
    """Return the error for a column of text or categories that must be numeric. levels : some of its values."""
    from dboost.data.columns.numbers_as_text import hint

    how = hint(spec.name, levels, is_column=spec.name != spec.role)
    if spec.role is not None:
        name = "" if spec.name == spec.role else f" {spec.name!r}"
        return DataError(f"{spec.role}{name} holds text or categories, numbers are needed{how}")
    advice = "the feature is numeric in the model" if spec.known else "declare it in categorical_features, or leave it out"
    return DataError(f"column {spec.name!r} holds text or categories, which cannot be made numeric: {advice}{how}")


def check_kind(column: Column, spec: ColumnSpec) -> None:
    """Raise a DataError if the kind of values differs from training: they would all count as unknown, that is as missing."""
    if isinstance(column, CategoryColumn):
        kinds, values = (
            kinds_of(column.categories),
            np.array([level for level in column.categories if not isinstance(level, str)]),
        )
    else:
        kinds, values = {TRUTH_VALUES if column.dtype == bool else NUMBERS}, column
    wrong = kinds - set(spec.kinds)
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
    series = nw.from_native(values, series_only=True)
    try:
        if series.dtype in (nw.Int128, nw.UInt128):  # Arrow has no such type
            low, high = series.min(), series.max()
            signed = low is None or (low >= -(2**63) and high < 2**63)
            unsigned = not signed and low >= 0 and high < 2**64
            series = series.cast(nw.Int64 if signed else nw.UInt64 if unsigned else nw.Float64)
        return series.to_arrow()
    except Exception as error:  # polars raises several types of errors for columns of Python objects
        raise CellError(f"column {spec.name!r} holds {values.dtype}; a number or text is needed") from error


def _from_numpy(values: np.ndarray | CategoryColumn, spec: ColumnSpec) -> Column:
    if not isinstance(values, CategoryColumn) and is_masked(values):
        data = np.ma.getdata(values)
        values = _masked(native(data) if data.dtype.kind in "biuf" else data, np.ma.getmaskarray(values), spec)
    if isinstance(values, CategoryColumn):
        return values
    kind = values.dtype.kind
    if kind == "O":
        return _from_objects(values, spec)
    if kind in "UT":
        return _from_text(values, spec)
    if kind not in "biuf":
        raise _refusal(spec, str(values.dtype), {"M": "date", "m": "duration", "c": "complex"}.get(kind))
    return native(values)


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


#: Types of Python's objects that are numbers.
_NUMBERS = (numbers.Real, np.bool_, decimal.Decimal)


def holds_other_than_text(column: pd.Series) -> bool:
    """Return whether a column has the dtype object, and a value that is neither missing nor text."""
    return column.dtype == object and not all(issubclass(t, str) for t in set(map(type, column[~_is_missing(column)])))


def _is_missing(values: Any) -> np.ndarray:
    """Return which objects are missing values: bool[n]."""
    try:
        return np.asarray(pd.isna(values))
    except decimal.InvalidOperation:  # Decimal("sNaN") cannot be compared
        return np.array(
            [(isinstance(value, decimal.Decimal) and value.is_nan()) or bool(pd.isna(value)) for value in values], bool
        )


def _from_objects(values: np.ndarray, spec: ColumnSpec) -> Column:
    missing = _is_missing(values)
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
    if not all(issubclass(t, _NUMBERS) for t in types):
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


#: Rows of text whose different values are counted before the others are read: a column of identifiers is refused at once.
_FIRST_ROWS = 2**18


def _from_text(values: np.ndarray, spec: ColumnSpec) -> CategoryColumn:
    if len(values) > _FIRST_ROWS and not spec.known:
        _check_levels(pd.unique(values[:_FIRST_ROWS]).tolist(), spec)
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
        is_number = isinstance(dtype.subtype, np.dtype) and dtype.subtype.kind in "biuf"
        return _from_sparse(column_of_pandas(values.array), spec) if is_number else _from_numpy(np.asarray(values), spec)
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
        if len(array) > _FIRST_ROWS and not spec.known:
            _check_levels(array.slice(0, _FIRST_ROWS).unique().to_pylist(), spec)
        return _from_arrow_dictionary(array.dictionary_encode(), spec)
    if pa.types.is_decimal(kind):
        array, kind = pa.chunked_array(map(nearest_floats, _pieces(array)), pa.float64()), pa.float64()
    if pa.types.is_boolean(kind) and missing:
        array, kind = array.cast(pa.uint8()), pa.uint8()
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        noun = "duration" if pa.types.is_duration(kind) else "date" if pa.types.is_temporal(kind) else None
        raise _refusal(spec, str(kind), noun)
    pieces = _pieces(array)
    if missing:
        plain = np.concatenate([piece.fill_null(0).to_numpy(zero_copy_only=False) for piece in pieces])
        mask = np.concatenate([piece.is_null().to_numpy(zero_copy_only=False) for piece in pieces])
        return _from_numpy(_masked(plain, mask, spec), spec)
    if len(pieces) == 1:
        return _from_numpy(pieces[0].to_numpy(zero_copy_only=pa.types.is_primitive(kind) and kind != pa.bool_()), spec)
    return _from_numpy(np.asarray(array.to_numpy()), spec)


def nearest_floats(decimals: pa.Array) -> pa.Array:
    """Return decimals as the nearest float64, like ``float(Decimal(…))``; Arrow's own cast errs by a unit in the last place.

    The quotient of two numbers that floats represent exactly is rounded once. Other decimals are converted as text.
    """
    kind = decimals.type
    word = np.dtype(np.int32 if kind.bit_width == 32 else np.int64)
    n_words = kind.bit_width // 8 // word.itemsize
    buffer = decimals.buffers()[1]
    if buffer is None or abs(kind.scale) > _EXACT_POWER:
        return decimals.cast(pa.string()).cast(pa.float64())
    first, n = decimals.offset, len(decimals)
    words = np.frombuffer(buffer, word, (first + n) * n_words).reshape(first + n, n_words)[first:]
    low = words[:, 0].astype(np.int64)  # the others repeat its sign if the integer has at most 64 bits
    exact = (words[:, 1:] == (low >> 63)[:, None]).all(axis=1) & (low > -EXACT) & (low < EXACT)
    power = 10.0 ** abs(kind.scale)
    floats = low / power if kind.scale > 0 else low * power
    missing = np.asarray(decimals.is_null()) if decimals.null_count else np.zeros(n, bool)
    others = ~exact & ~missing
    if others.any():
        floats[others] = decimals.filter(pa.array(others)).cast(pa.string()).cast(pa.float64()).to_numpy()
    return pa.array(floats, mask=missing)


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
    used = np.bincount(np.add(codes, 1, dtype=np.intp), minlength=len(levels) + 1)[1:].astype(bool)
    kept = np.flatnonzero(used)
    plain = levels if isinstance(levels, list) else np.asarray(levels, dtype=object).tolist()  # an index is slow
    present = [plain[i] for i in kept.tolist()]
    if not spec.known:
        _check_levels(present, spec)
    if not {*map(type, present)} <= {str, bool, int}:
        missing = [level is None or level != level for level in present]  # an Arrow dictionary may contain null or NaN
        used[kept[missing]] = False
        present = [_level(level, spec) for level, is_missing in zip(present, missing, strict=True) if not is_missing]
    fresh = np.where(used, np.cumsum(used) - 1, -1)
    return CategoryColumn(apply(fresh, codes), tuple(present))


def _check_levels(levels: Sequence[Any], spec: ColumnSpec) -> None:
    """Raise a DataError if a column has more categories than codes can distinguish."""
    if len(levels) <= MAX_LEVELS:
        return
    if spec.role == "target":
        raise too_many_classes(spec.name, f"more than {MAX_LEVELS:,}", levels)
    raise _not_numeric(spec, levels) if spec.categorical is False else too_many(spec.name, levels)


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
        f"{_named(spec)} has categories of type {type(level).__name__}; "
        f"use text or numbers, for instance by {_expression(spec)}.astype(str).astype('category')"
    )


def _named(spec: ColumnSpec) -> str:
    """Return the name of a column for messages: the role of one that is no feature, and its name if it has one."""
    if spec.role is None:
        return f"column {spec.name!r}"
    return spec.role if spec.name == spec.role else f"{spec.role} {spec.name!r}"


def _expression(spec: ColumnSpec) -> str:
    """Return how a user of pandas writes a column."""
    return spec.name if spec.name == spec.role else f"df[{spec.name!r}]"


def _refusal(spec: ColumnSpec, dtype: str, kind: str | None) -> DataError:
    if spec.kinds:
        return DataError(f"column {spec.name!r} has type {dtype}, but it held {spec.kinds[0]} in training")
    head = f"{_named(spec)} has type {dtype}, which is neither a number nor a category: "
    column = _expression(spec)
    if kind == "complex":
        return DataError(head + "Complex data not supported; use the real and imaginary parts as two columns")
    if kind == "date":
        use = f"derive numbers from it, for instance {column}.dt.month, or"
        if spec.role is not None:
            kinds = {"target": "class", "group": "group"}
            use = f"{column}.astype(str) makes a {kinds[spec.role]} of each date; or use" if spec.role in kinds else "use"
        return DataError(head + f"{use} the seconds since a start, ({column} - start).dt.total_seconds()")
    if kind == "duration":
        return DataError(head + f"use its length in seconds, {column}.dt.total_seconds()")
    return DataError(head + "make it numbers or text, or leave it out")
