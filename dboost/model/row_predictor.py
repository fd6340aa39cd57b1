"""Predictions of single rows with little overhead, for services.

`Booster.predict` converts a table of any kind, which takes longer for one row than the trees do. A `RowPredictor` is prepared
once: the layout of the trees, and for each categorical feature a dictionary from level to code. A call with a NumPy row of
numbers is one call of a kernel and the loss's inverse link. A mapping or sequence is converted here if all of its values have
the types of the features; everything unusual (other types, other numbers of columns) goes through `predict`, which converts it
or raises an error. So results and errors are those of `predict`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from dboost._lazy_import import pd
from dboost.data.output.predict_io import warn_of_missing_offset
from dboost.errors import DataError, InputTypeError
from dboost.kernels.predict import predict_rows
from dboost.model.ensemble import Ensemble, Range, averaged, traversal_forest
from dboost.schema import NUMBERS, TEXT, TRUTH_VALUES, Feature, Level
from dboost.tracebacks import short_tracebacks

#: Types of values that have the kind of the levels of a feature; NumPy's other integers and floats are numbers, too.
_TYPES: dict[str, frozenset[type]] = {
    NUMBERS: frozenset({int, float, np.float64, np.float32, np.int64, np.int32}),
    TEXT: frozenset({str, np.str_}),
    TRUTH_VALUES: frozenset({bool, np.bool_}),
}
_NAN = float("nan")


@short_tracebacks
class RowPredictor:
    """Predicts one row, or few rows, with little overhead; `Booster.predictor` makes one and documents it.

    It has no state that a call changes, so several threads may use it at once.

    Parameters
    ----------
    ensemble : Ensemble
    iterations : (first, last)
    finish : callable
        Makes predictions [n] or [n, n_classes] of raw scores (float64[n, n_outputs]).
    predict : callable
        ``predict(X, offset)``: the same predictions of a table of any kind.
    origin : (function, arguments)
        The call that makes this predictor again, for pickles.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        iterations: Range,
        finish: Callable[[np.ndarray], np.ndarray],
        predict: Callable[[Any, Any], Any],
        origin: tuple[Callable[..., RowPredictor], tuple[Any, ...]],
    ) -> None:
        self._forest = traversal_forest(ensemble.trees, ensemble.features)
        self._trees = ensemble.trees_in(iterations)
        self._baseline = np.asarray(ensemble.baseline, np.float64)[None]
        #: Number of iterations whose values are averaged; None if they are added up.
        self._n_averaged = iterations[1] - iterations[0] if ensemble.averages else None
        self._start = self._baseline if self._n_averaged is None else np.zeros_like(self._baseline)
        self._finish, self._predict, self._origin = finish, predict, origin
        self._width, self._offset_outputs = len(ensemble.features), ensemble.outputs.offset_outputs
        self._offset_of_model = ensemble.offset
        self._names = [feature.name for feature in ensemble.features]
        #: Of each feature the codes of its levels (None: it is numeric), and the types of values that need no conversion.
        self._codes = [_codes_of(feature.categories) for feature in ensemble.features]
        self._types = [_types_of(feature) for feature in ensemble.features]
        self._takes_arrays = not any(feature.is_categorical for feature in ensemble.features)

    def __call__(self, row: Any, *, offset: Any = None) -> Any:
        """Predict; see `Booster.predictor`."""
        if offset is None and self._offset_of_model is not None:
            offset = _remembered(row, self._offset_of_model)
        has_none = offset is False
        offset = None if offset is None or has_none else _numbers(offset)
        if self._takes_arrays and type(row) is np.ndarray and row.dtype.kind in "fiub":
            matrix: np.ndarray | None = np.ascontiguousarray(row, np.float64)
            if not row.flags.behaved:  # read-only or unaligned: another type for Numba, which would compile
                matrix = np.array(row, np.float64, order="C")
        else:
            matrix = self._encoded(row)
        if matrix is None or not 1 <= matrix.ndim <= 2 or matrix.shape[-1] != self._width:
            return self._by_predict(row, False if has_none else offset)
        is_row = matrix.ndim == 1
        if is_row:
            matrix = matrix.reshape(1, -1)
            scores = self._start.copy()
        else:
            scores = self._start.repeat(len(matrix), axis=0)
        predict_rows(self._forest, matrix, self._trees, scores)
        if self._n_averaged is not None:
            scores = averaged(self._baseline, scores, self._n_averaged)
        if offset is not None:
            scores[:, self._offset_outputs] += _checked(offset, len(matrix))[:, None]
        values = self._finish(scores)
        if values.dtype.kind == "U":
            values = values.astype(object)
        return values[0] if is_row else values

    def __reduce__(self) -> tuple[Callable[..., RowPredictor], tuple[Any, ...]]:
        return self._origin

    def _encoded(self, row: Any) -> np.ndarray | None:
        """Return the codes and numbers of one row; None if it is not one row of values of the usual types."""
        if isinstance(row, Mapping):
            try:
                return self._coded([row[name] for name in self._names])
            except KeyError:
                return None
        if isinstance(row, list | tuple):
            return self._coded(row)
        return self._coded(row.tolist()) if type(row) is np.ndarray and row.ndim == 1 else None

    def _coded(self, values: Iterable[Any]) -> np.ndarray | None:
        codes: list[float] = []
        try:
            for value, level_codes, types in zip(values, self._codes, self._types, strict=True):
                kind = type(value)
                if kind in types and level_codes is not None:
                    if kind is int:
                        float(value)  # raises for those that `predict` refuses
                    codes.append(level_codes.get(value, _NAN))
                elif kind in types:
                    codes.append(float(value))
                elif value is None or (kind is float and value != value):
                    codes.append(_NAN)
                else:
                    return None
        except (ValueError, OverflowError):  # another number of values; an integer beyond the range of floats
            return None
        return np.array(codes)

    def _by_predict(self, row: Any, offset: Any) -> Any:
        """Predict one row or a table by `Booster.predict`."""
        table, is_row = row, True
        if isinstance(row, Mapping):
            table = pd.DataFrame([dict(row)])
        elif isinstance(row, list | tuple | np.ndarray):
            is_row = np.ndim(row) == 1 if isinstance(row, np.ndarray) else not any(map(_is_row, row))
            if is_row and isinstance(row, np.ma.MaskedArray):
                table = row[None]
            elif is_row:
                table = np.empty((1, len(row)), object)
                table[0] = row
        else:
            raise InputTypeError(
                f"a predictor takes one row (a NumPy array, mapping or sequence) or a few (an array of two dimensions), not "
                f"{type(row).__name__}: Booster.predict takes tables"
            )
        values = np.asarray(self._predict(table, offset))
        return values[0] if is_row else values


def _codes_of(levels: Iterable[Level] | None) -> dict[Level, float] | None:
    return None if levels is None else {level: float(code) for code, level in enumerate(levels)}


def _types_of(feature: Feature) -> frozenset[type]:
    if not feature.is_categorical:
        return _TYPES[NUMBERS]
    kinds = feature.legal_kinds  # none for levels of several kinds: `predict` converts the values
    return _TYPES[kinds[0]] if kinds else frozenset()


def _is_row(value: Any) -> bool:
    return isinstance(value, list | tuple | np.ndarray)


def _remembered(row: Any, of_model: str | bool) -> Any:
    """Return the offset in a row by the name that the model was trained with; False, with a warning, if it is not there."""
    if isinstance(of_model, str) and isinstance(row, Mapping) and of_model in row:
        return row[of_model]
    warn_of_missing_offset(of_model)
    return False


def _numbers(offset: Any) -> np.ndarray:
    """Return offsets as float64[n]."""
    try:
        return np.asarray(offset, np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise InputTypeError(f"offset={offset!r:.60} must be a number, or one for each row") from None


def _checked(offset: np.ndarray, n_rows: int) -> np.ndarray:
    """Return the offsets; raise a DataError if they are not finite, or not one for each row."""
    if len(offset) != n_rows:
        raise DataError(f"offset has {len(offset)} values, but there are {n_rows} rows")
    if not np.isfinite(offset).all():
        raise DataError("offset is missing or infinite")
    return offset
