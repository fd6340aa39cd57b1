"""Conversion of one column of any library to a plain column.

NumPy arrays, pandas Series (NumPy, nullable, categorical or Arrow-backed), Arrow arrays, and Series of other libraries (through
Arrow) become either a numeric array or a `CategoryColumn`:

* Integers, floats and booleans keep their type and are not copied if no value is missing; otherwise they become floats with
  NaN. Decimals become float64, half floats float32.
* Text, dictionaries and categoricals become codes of the categories that occur, in no particular order.
* A numeric column that the user declared categorical is coded by its distinct values. Negative values count as missing. Floats
  that are whole numbers become integers, so that 3 and 3.0 are the same category in every library.

Types without an obvious meaning as a number or a category (dates, complex numbers, lists) raise a `DataError` with a hint.
"""

from __future__ import annotations

import decimal
import math
import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np

from dboost._lazy_import import is_a, nw, pa, pd
from dboost.data.categories import apply, too_many
from dboost.data.chunk import CategoryColumn, Column
from dboost.errors import DataError, InputTypeError
from dboost.schema import MAX_LEVELS, NUMBERS, TRUTH_VALUES, Feature, Level, kinds_of


class CellError(DataError, InputTypeError):
    """A column contains objects that are neither numbers nor text."""


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


def column_spec(feature: Feature, *, extend_categories: bool = False) -> ColumnSpec:
    """Return how to read the column of a known feature. extend_categories : whether new categories are added to it."""
    return ColumnSpec(
        feature.name,
        feature.is_categorical,
        known=not (extend_categories and feature.is_categorical),
        kinds=feature.legal_kinds,
    )


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
            numeric = present.astype(np.uint64 if unsigned else np.float64)
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
