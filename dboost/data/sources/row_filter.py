"""Rows that satisfy a predicate: an expression of pyarrow (``pyarrow.compute.field("day") < 9``) or of polars.

Texts and tuples are converted to expressions of pyarrow (`filter_text`).

The predicate names columns, which need not be features. A row is kept if it is true, and left out if it is false or missing.
`RowFilter.kept` evaluates it on a table in memory. `RowFilter.possible` decides before any row is read which parts of files may
have such rows, from the least and the largest value of each column in a row group, and from the columns in the names of
folders; Arrow's own rules for fragments of a dataset draw the conclusions. Extremes of floats are not used, because they say
nothing of NaN. A predicate of polars skips no parts.

Whether a row is kept must not depend on other rows, which may be in another partition. Expressions of pyarrow cannot look at
other rows. Those of polars can (``pl.col("x") > pl.col("x").mean()``) and do not tell: so half of the rows in reverse order,
and some rows alone, are evaluated once more, and the results must be the same.

Arrow compares many types of decimals and of truth values with no number. Files with such columns may be beside others with
integers, so where Arrow refuses the types, these columns are compared as the numbers that dboost reads them as.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from dboost._lazy_import import is_a, nw, pa
from dboost.data.columns.conversion import nearest_floats
from dboost.data.columns.labels import Names
from dboost.errors import DataError, InputTypeError, reason

#: The position of a row, beside the columns.
_POSITION = "dboost position"
#: The error of pyarrow for a column that there is not.
_NO_MATCH = re.compile(r"No match for FieldRef\.Name\((.+?)\) in ")


@dataclass(frozen=True)
class Extremes:
    """What is known of a column in some rows."""

    #: Arrow scalars; None for both if no value is known, because all are missing.
    least: Any
    largest: Any
    #: Whether values may be missing.
    has_missing: bool


@dataclass(frozen=True, eq=False)
class RowFilter:
    """A predicate on rows, as `filter=` gives it."""

    #: An expression; a text or tuples are converted.
    predicate: Any

    def __post_init__(self) -> None:
        if isinstance(self.predicate, str | list | tuple):
            object.__setattr__(self, "predicate", _expression_of(self.predicate))
        elif not (self.is_polars or is_a(self.predicate, "pyarrow.compute", "Expression")):
            raise InputTypeError(
                "filter must be a text, such as 'day < 9', a list of tuples, such as [('day', '<', 9)], or an expression of "
                "pyarrow or polars, such as pyarrow.compute.field('day') < 9 or polars.col('day') < 9, not "
                f"{type(self.predicate).__name__}"
            )

    @property
    def is_polars(self) -> bool:
        """Whether it is an expression of polars."""
        return is_a(self.predicate, "polars", "Expr")

    def __dask_tokenize__(self) -> Any:
        return str(self.predicate)

    def columns(self, names: Sequence[str]) -> list[str]:
        """Return the columns among `names` that the predicate may use; DataError if it uses others."""
        if self.is_polars:
            used = list(dict.fromkeys(self.predicate.meta.root_names()))
            for name in used:
                if name not in names:
                    raise _no_column(name, names)
            return used
        text = str(self.predicate)
        return [name for name in names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)]

    def kept(self, columns: Any, names: Sequence[str] = ()) -> np.ndarray:
        """Return the positions (int64, ascending) of the rows of an Arrow table that satisfy the predicate.

        names : of more columns of the data, for the message about one that there is not.
        """
        decoded = {name: _decoded(columns[name]) for name in columns.column_names}
        table = pa.table(decoded | {_POSITION: np.arange(columns.num_rows)})
        try:
            if self.is_polars:
                import polars

                frame: Any = polars.from_arrow(table)
                positions = frame.filter(self.predicate)[_POSITION].to_numpy()
                if len(frame):
                    self._check_rows(frame, positions)
            else:
                positions = self._filtered(table)
        except DataError:
            raise
        except Exception as error:  # polars has errors of its own
            missing = _NO_MATCH.search(str(error))
            if missing is not None:
                raise _no_column(missing[1], names, has_all=False) from None
            raise DataError(f"filter {self.predicate} cannot be evaluated: {reason(error)}") from error
        return np.sort(positions)

    def _filtered(self, table: Any) -> np.ndarray:
        """Return the positions of the rows of a table that satisfy a predicate of pyarrow."""
        try:
            return table.filter(self.predicate)[_POSITION].to_numpy()
        except pa.ArrowException:
            numbers = {name: _as_numbers(table[name]) for name in table.column_names}
            if all(column.type == table[name].type for name, column in numbers.items()):
                raise
        return pa.table(numbers).filter(self.predicate)[_POSITION].to_numpy()

    def _check_rows(self, frame: Any, kept: np.ndarray) -> None:
        """Raise a DataError if the predicate of polars has another value for a row among fewer rows, in another order."""
        among_all = np.zeros(len(frame), bool)
        among_all[kept] = True
        half, ends = np.arange(len(frame) // 2)[::-1], np.array([0, len(frame) // 2, len(frame) - 1])
        for rows in (half, *ends[:, None]):
            rows_again = frame[rows]
            differs = np.zeros(len(frame), bool)
            differs[rows] = among_all[rows]
            differs[rows_again.filter(self.predicate)[_POSITION].to_numpy()] ^= True
            if differs.any():
                raise DataError(
                    f"filter {self.predicate} looks at other rows than the one that it selects, which may be in another "
                    f"partition: row {np.argmax(differs)} has another result among fewer rows; select such rows before, or "
                    "compute a column of them"
                )

    def rows_of(self, data: Any) -> Any:
        """Return the rows of a dataframe in memory that satisfy the predicate, as a frame of the same library."""
        if is_a(data, "pandas", "DataFrame"):
            names = Names(data.columns, data.index.names)
            used = self.columns(names)
            table = pa.table(
                {name: pa.array(data.iloc[:, names.index(name)], from_pandas=True) for name in used} or _rows(len(data))
            )
            return _native(data).iloc[self.kept(table, names)]
        if is_a(data, "pyarrow", "Table"):
            used = self.columns(data.column_names)
            table = data.select(used) if used else pa.table(_rows(data.num_rows))
            return _without_views(data).take(self.kept(table, data.column_names))
        try:
            frame = nw.from_native(data, eager_only=True)
        except TypeError:
            raise InputTypeError(
                f"filter names columns, and {type(data).__name__} has none: select the rows of an array instead"
            ) from None
        used = self.columns(frame.columns)
        table = frame.select(used).to_arrow() if used else pa.table(_rows(len(frame)))
        return frame[self.kept(table, frame.columns), :].to_native()

    def possible(self, known: Sequence[dict[str, Extremes]], schema: Any) -> np.ndarray:
        """Return which groups of rows may have rows that satisfy the predicate: bool[n]. known : by column, of each group."""
        if self.is_polars or not known:
            return np.ones(len(known), bool)
        try:
            return self._possible(known, schema)
        except pa.ArrowException as error:
            try:
                return self._possible(*_without_converted(known, schema))
            except pa.ArrowException:
                missing = _NO_MATCH.search(str(error))
                if missing is not None:
                    raise _no_column(missing[1], schema.names) from None
                raise DataError(f"filter {self.predicate} does not match the columns of the data: {reason(error)}") from error
        except (TypeError, ValueError) as error:
            raise DataError(f"filter {self.predicate} does not match the columns of the data: {reason(error)}") from error

    def _possible(self, known: Sequence[dict[str, Extremes]], schema: Any) -> np.ndarray:
        from pyarrow import compute, dataset
        from pyarrow.fs import LocalFileSystem

        kind, files = dataset.ParquetFileFormat(), LocalFileSystem()
        groups = []
        for k, of_group in enumerate(known):
            guarantees = [
                guarantee for name, extremes in of_group.items() for guarantee in _guarantees(compute.field(name), extremes)
            ]
            holds = reduce(lambda a, b: a & b, guarantees) if guarantees else compute.scalar(True)
            groups.append(kind.make_fragment(str(k), files, partition_expression=holds))
        all_groups = dataset.FileSystemDataset(groups, schema, kind, files)
        kept = {int(fragment.path) for fragment in all_groups.get_fragments(self.predicate)}
        return np.array([k in kept for k in range(len(known))], bool)


def _no_column(name: str, names: Sequence[str], *, has_all: bool = True) -> DataError:
    """Return the error for a column that there is not. names : of the others; has_all : of all of them, not of some."""
    hint = Names.of(names).hint(name)
    return DataError(f"the data have no column {name!r}, which filter uses{hint if has_all or 'did you mean' in hint else ''}")


def _expression_of(predicate: Any) -> Any:
    """Return the expression of pyarrow for a text or tuples."""
    from dboost.data.sources.filter_text import expression_of_text, expression_of_tuples  # imports pyarrow

    return expression_of_text(predicate) if isinstance(predicate, str) else expression_of_tuples(predicate)


def _rows(n: int) -> dict[str, Any]:
    return {"": pa.nulls(n)}


def _decoded(column: Any) -> Any:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _as_numbers(column: Any) -> Any:
    """Return decimals and truth values as the numbers that dboost reads them as; other columns unchanged."""
    if pa.types.is_decimal(column.type):
        return pa.chunked_array(map(nearest_floats, column.chunks), pa.float64())
    return column.cast(pa.uint8()) if pa.types.is_boolean(column.type) else column


def _is_converted(kind: Any) -> bool:
    """Return whether `_as_numbers` converts columns of a type."""
    return bool(pa.types.is_decimal(kind) or pa.types.is_boolean(kind))


def _without_converted(known: Sequence[dict[str, Extremes]], schema: Any) -> tuple[list[dict[str, Extremes]], Any]:
    """Return extremes and schema for columns that `_as_numbers` has converted, of which nothing is known."""
    converted = {field.name for field in schema if _is_converted(field.type)}
    plain = [
        {
            name: extremes
            for name, extremes in group.items()
            if name not in converted and not (extremes.least is not None and _is_converted(extremes.least.type))
        }
        for group in known
    ]
    return plain, pa.schema([field.with_type(pa.float64()) if field.name in converted else field for field in schema])


def _guarantees(field: Any, extremes: Extremes) -> list[Any]:
    """Return expressions that are true in all rows."""
    if extremes.least is None:
        return [field.is_null()] if extremes.has_missing else []
    bounds = [field >= extremes.least, field <= extremes.largest]
    return [bound | field.is_null() for bound in bounds] if extremes.has_missing else bounds


def _native(frame: Any) -> Any:
    """Return a pandas frame whose columns have the byte order of this machine: pandas selects no rows of others."""
    foreign = [j for j, dtype in enumerate(frame.dtypes) if isinstance(dtype, np.dtype) and not dtype.isnative]
    frame = frame.copy(deep=False) if foreign else frame
    for j in foreign:
        frame.isetitem(j, frame.iloc[:, j].astype(frame.dtypes.iloc[j].newbyteorder("=")))
    return frame


def _without_views(table: Any) -> Any:
    """Return an Arrow table whose text is no views, of which Arrow selects no rows."""
    for j, field in enumerate(table.schema):
        if pa.types.is_string_view(field.type):
            table = table.set_column(j, field.name, table.column(j).cast(pa.large_string()))
    return table
