"""From one column of any library to one plain column.

NumPy arrays, pandas Series (NumPy, nullable, categorical or Arrow-backed), Arrow arrays and polars Series (through
Arrow) become either a numeric array or a `CategoryColumn`:

* integers, floats and booleans stay what they are, without a copy where nothing is missing; otherwise they become
  floats with NaN. Decimals become float64, half floats float32. Truth values stay booleans here: whoever asks
  decides.
* text, dictionaries and categoricals become codes with the levels that really occur, in no particular order.
* a numeric column that the user declared categorical is coded by its distinct values; negative ones count as missing,
  and floats that are whole numbers become integers, so that 3 and 3.0 are the same level wherever they come from.

What has no obvious meaning as a number or a category (dates, complex numbers, lists) is refused with a hint.
"""

from __future__ import annotations

import decimal
import math
import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np

from dboost._lazy_import import is_a, pa, pd
from dboost.data.categories import apply, too_many
from dboost.data.chunk import CategoryColumn, Column
from dboost.errors import DataError, InputTypeError
from dboost.schema import MAX_LEVELS, NUMBERS, TRUTH_VALUES, Feature, Level, kinds_of


class CellError(DataError, InputTypeError):
    """A cell holds an object that is neither a number nor text."""


@dataclass(frozen=True)
class ColumnSpec:
    """How a column is to be read.

    Attributes
    ----------
    name : str
    categorical : bool or None
        True: numbers too are levels. False: must be numeric. None: the column's own type decides.
    known : bool
        The levels are those of a model, so that any number of unknown ones may come, negative ones too.
    kinds : tuple of str
        What the column may hold, see `Feature.legal_kinds`: unknown levels are legal, another kind of them is a mistake.
    """

    name: str
    categorical: bool | None = None
    known: bool = False
    kinds: tuple[str, ...] = ()


def column_spec(feature: Feature, *, extend_categories: bool = False) -> ColumnSpec:
    """How the column of a feature that is known already is to be read; grows : whether new levels are added to it."""
    return ColumnSpec(
        feature.name,
        feature.is_categorical,
        known=not (extend_categories and feature.is_categorical),
        kinds=feature.legal_kinds,
    )


def to_column(values: Any, rule: ColumnSpec) -> Column:
    """Turn one column into a numeric (or boolean) array, or a `CategoryColumn`.

    Parameters
    ----------
    values : one-dimensional ndarray, pandas Series or Index, pyarrow array, or polars Series
    rule : Rule

    Raises
    ------
    DataError
        Naming the column, when it cannot be read that way.
    """
    if type(values).__module__.partition(".")[0] == "polars":
        values = _polars_to_arrow(values, rule)
    if is_a(values, "pyarrow", "Array", "ChunkedArray"):
        column = _from_arrow(values, rule)
    elif is_a(values, "pandas", "Series", "Index"):
        column = _from_pandas(values, rule)
    else:
        column = _from_numpy(values, rule)
    if rule.kinds:
        _check_kind(column, rule)
    if isinstance(column, CategoryColumn):
        if rule.categorical is False:
            if not column.levels:  # nothing but missing values: numbers as well as anything
                return np.full(len(column.codes), np.nan, np.float32)
            hint = "the model knows it as numeric" if rule.known else "declare it in categorical_features, or leave it out"
            raise DataError(f"column {rule.name!r} holds text or categories, which cannot be made numeric: {hint}")
        return column
    return _levels_of_numbers(column, rule) if rule.categorical else column


def _check_kind(column: Column, rule: ColumnSpec) -> None:
    """Refuse a column of another kind than in training: all its values would count as unknown levels, that is as missing."""
    if isinstance(column, CategoryColumn):
        given, values = kinds_of(column.levels), np.array([level for level in column.levels if not isinstance(level, str)])
    else:
        given, values = {TRUTH_VALUES if column.dtype == bool else NUMBERS}, column
    wrong = given - set(rule.kinds)
    if not wrong:
        return
    if wrong == {NUMBERS}:
        present = values[~np.isnan(values)]
        # Truth values among missing ones are often stored as 0 and 1.
        if not len(present) or (rule.kinds[0] == TRUTH_VALUES and ((present == 0) | (present == 1)).all()):
            return
    if len(column.codes if isinstance(column, CategoryColumn) else column):
        raise DataError(f"column {rule.name!r} holds {min(wrong)}, but it held {rule.kinds[0]} in training")


def _polars_to_arrow(values: Any, rule: ColumnSpec) -> Any:
    try:
        return values.to_arrow()
    except Exception as error:  # polars has no Arrow form for columns of Python objects, and says so by several types
        raise CellError(f"column {rule.name!r} holds {values.dtype}; a number or text is needed") from error


def _from_numpy(values: np.ndarray | CategoryColumn, rule: ColumnSpec) -> Column:
    if not isinstance(values, CategoryColumn) and is_a(values, "numpy.ma", "MaskedArray"):
        values = _masked(np.ma.getdata(values), np.ma.getmaskarray(values), rule)
    if isinstance(values, CategoryColumn):
        return values
    kind = values.dtype.kind
    if kind == "O":
        return _from_objects(values, rule)
    if kind in "UT":
        return _from_text(values, rule)
    if kind not in "biuf":
        raise _refusal(rule, str(values.dtype), {"M": "date", "m": "duration", "c": "complex"}.get(kind))
    if kind == "f" and values.dtype.itemsize not in (4, 8):
        return values.astype(np.float32 if values.dtype.itemsize == 2 else np.float64)
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


def _masked(values: np.ndarray, mask: np.ndarray, rule: ColumnSpec) -> np.ndarray | CategoryColumn:
    """Numbers with NaN where masked, float32 where that holds every value; integers that are levels as exact categories."""
    if values.dtype.kind not in "biuf":
        values = values.astype(object)
        values[mask] = None
        return values
    if not mask.any():
        return values
    if rule.categorical and values.dtype.kind in "iu":  # floats would not tell those beyond 2**53 apart
        return _levels_of_numbers(values, rule, mask)
    filled = values.astype(np.result_type(values.dtype, np.float32) if values.dtype != bool else np.float32)
    filled[mask] = np.nan
    return filled


def _from_objects(values: np.ndarray, rule: ColumnSpec) -> Column:
    missing = np.asarray(pd.isna(values))
    present = values[~missing] if missing.any() else values
    types = set(map(type, present))
    if not types:
        return np.full(len(values), np.nan, dtype=np.float32)
    if all(issubclass(t, str) for t in types):
        return _from_text(values, rule)
    if any(issubclass(t, str) for t in types):
        raise DataError(f"column {rule.name!r} mixes text with {_names(types)}: make it one or the other")
    if any(issubclass(t, (complex, np.complexfloating)) for t in types):
        raise _refusal(rule, "complex", "complex")
    if any(hasattr(t, "isoformat") or t is np.datetime64 for t in types):
        raise _refusal(rule, _names(types), "date")
    if not all(issubclass(t, (numbers.Real, np.bool_, decimal.Decimal)) for t in types):
        raise CellError(f"column {rule.name!r} holds {_names(types)}: an argument must be a string or a real number")
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
    return _masked(full, missing, rule)


def _names(types: set[type]) -> str:
    return ", ".join(sorted(t.__name__ for t in types if not issubclass(t, str)))


def _from_text(values: np.ndarray, rule: ColumnSpec) -> CategoryColumn:
    codes, levels = pd.factorize(values, use_na_sentinel=True)
    return _category(codes, list(map(str, levels)), rule)


def _from_pandas(values: pd.Series | pd.Index, rule: ColumnSpec) -> Column:
    dtype = values.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        categories = values.array.categories
        return _category(values.array.codes, categories, rule)
    if isinstance(dtype, pd.ArrowDtype) or (isinstance(dtype, pd.StringDtype) and dtype.storage == "pyarrow"):
        return _from_arrow(pa.chunked_array(_pieces(values.array.__arrow_array__())), rule)
    if isinstance(dtype, pd.StringDtype):
        return _from_text(values.to_numpy(dtype=object), rule)
    if isinstance(dtype, pd.SparseDtype):
        return _from_numpy(np.asarray(values.array.to_dense()), rule)
    if isinstance(dtype, np.dtype):
        return _from_numpy(values.to_numpy(), rule)
    if hasattr(dtype, "numpy_dtype") and dtype.kind in "biuf":
        mask = np.asarray(values.isna())
        plain = values.to_numpy(dtype=dtype.numpy_dtype, na_value=dtype.type(0))
        return _from_numpy(_masked(plain, mask, rule), rule)
    raise _refusal(rule, str(dtype), "date" if dtype.kind in "Mm" or isinstance(dtype, pd.PeriodDtype) else None)


def _pieces(array: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return array.chunks if isinstance(array, pa.ChunkedArray) else [array]


def _from_arrow(array: pa.Array | pa.ChunkedArray, rule: ColumnSpec) -> Column:
    kind, missing = array.type, array.null_count
    if pa.types.is_null(kind):
        return np.full(len(array), np.nan, dtype=np.float32)
    if pa.types.is_dictionary(kind):
        return _from_arrow_dictionary(array, rule)
    if pa.types.is_string_view(kind):
        array, kind = array.cast(pa.large_string()), pa.large_string()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _from_arrow_dictionary(array.dictionary_encode(), rule)
    if pa.types.is_decimal(kind):
        array, kind = array.cast(pa.float64()), pa.float64()
    if pa.types.is_boolean(kind) and missing:
        array, kind = array.cast(pa.uint8()), pa.uint8()
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        what = "duration" if pa.types.is_duration(kind) else "date" if pa.types.is_temporal(kind) else None
        raise _refusal(rule, str(kind), what)
    pieces = _pieces(array)
    if missing:
        plain = np.concatenate([piece.fill_null(0).to_numpy(zero_copy_only=False) for piece in pieces])
        mask = np.concatenate([piece.is_null().to_numpy(zero_copy_only=False) for piece in pieces])
        return _from_numpy(_masked(plain, mask, rule), rule)
    if len(pieces) == 1:
        return _from_numpy(pieces[0].to_numpy(zero_copy_only=pa.types.is_primitive(kind) and kind != pa.bool_()), rule)
    return _from_numpy(np.asarray(array.to_numpy()), rule)


def _from_arrow_dictionary(array: pa.Array | pa.ChunkedArray, rule: ColumnSpec) -> CategoryColumn:
    if isinstance(array, pa.ChunkedArray):
        array = array.unify_dictionaries()
    pieces = _pieces(array)
    if not pieces:
        return CategoryColumn(np.empty(0, np.int32), ())
    indices = [piece.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False) for piece in pieces]
    return _category(np.concatenate(indices), pieces[0].dictionary.to_pylist(), rule)


def _levels_of_numbers(values: np.ndarray, rule: ColumnSpec, mask: np.ndarray | None = None) -> CategoryColumn:
    if values.dtype == bool:
        values = values.view(np.uint8)
    if values.dtype.kind == "f" and not rule.known and np.isinf(values).any():
        raise DataError(f"column {rule.name!r} is declared categorical but holds infinite values")
    codes, levels = pd.factorize(values, use_na_sentinel=True)
    if not rule.known and values.dtype.kind != "u":
        codes[values < 0] = -1
    if mask is not None:
        codes[mask] = -1
    return _category(codes, levels, rule)


def _category(codes: np.ndarray, levels: Any, rule: ColumnSpec) -> CategoryColumn:
    """Keep only the levels that occur, as Python values."""
    codes = np.asarray(codes)
    used = np.bincount(codes[codes >= 0], minlength=len(levels)).astype(bool)
    kept = np.flatnonzero(used)
    if len(kept) > MAX_LEVELS and not rule.known:
        raise too_many(rule.name)
    if len(kept) < len(levels):
        levels = [levels[i] for i in kept.tolist()] if isinstance(levels, list) else levels[kept]
    plain = levels if isinstance(levels, list) else levels.tolist()
    fresh = np.where(used, np.cumsum(used) - 1, -1)
    hole = [level is None or level != level for level in plain]  # an Arrow dictionary may hold a null or NaN of its own
    if any(hole):
        rank = np.where(hole, -1, np.cumsum(np.logical_not(hole)) - 1)
        fresh = apply(rank, fresh)
        plain = [level for level, is_hole in zip(plain, hole, strict=True) if not is_hole]
    return CategoryColumn(apply(fresh, codes), tuple(_level(level, rule) for level in plain))


def _level(level: Any, rule: ColumnSpec) -> Level:
    if isinstance(level, str):
        return str(level)
    if isinstance(level, (bool, int)):
        return level
    if isinstance(level, float):
        if math.isinf(level) and not rule.known:
            raise DataError(f"column {rule.name!r} has an infinite category ({level}): make it missing, or a number of its own")
        return int(level) if level.is_integer() else level
    if isinstance(level, decimal.Decimal):
        return _level(float(level), rule)
    raise DataError(
        f"column {rule.name!r} has categories of type {type(level).__name__}; "
        "use text or numbers, for instance by df[c].astype(str).astype('category')"
    )


def _refusal(rule: ColumnSpec, dtype: str, what: str | None) -> DataError:
    if rule.kinds:
        return DataError(f"column {rule.name!r} has type {dtype}, but it held {rule.kinds[0]} in training")
    head = f"column {rule.name!r} has type {dtype}, which is not a feature: "
    if what == "complex":
        return DataError(head + "Complex data not supported; use the real and imaginary parts as two columns")
    if what == "date":
        c = rule.name
        return DataError(
            head + f"derive numbers from it, for instance df[{c!r}].dt.month, "
            f"or the seconds since a start, (df[{c!r}] - start).dt.total_seconds()"
        )
    if what == "duration":
        return DataError(head + f"use its length in seconds, df[{rule.name!r}].dt.total_seconds()")
    return DataError(head + "make it numbers or text, or leave it out")
