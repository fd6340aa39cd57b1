"""A chunk: the raw columns of one partition as plain arrays, and common codes of a column's categories for all chunks.

Tables of every kind are converted to chunks. A numeric column is a one-dimensional float or integer array, with NaN for missing
values. A categorical column is an int32 array of codes, -1 for missing values, into its own categories (`levels`).

Each chunk has its own codes, in any order; `data/tables/reader.py` makes them consistent. A `CategoryIndex` assigns a
*provisional* code to each category when it first arrives, so that a chunk can be stored as integers at once. After the last
chunk the categories are sorted (booleans, then numbers, then text), and a permutation maps provisional to final codes. Final
codes do not depend on the order of the chunks.

An index that starts from the categories of a model is either closed, and unknown categories are missing, or new categories are
numbered after those of the model, sorted among themselves.

**Binned rows.** The partitions of a data set that stays in memory are bin codes: a `BinnedPartition` holds the code of every
value, and the roles as they were given. It is read like any other partition (`data.kinds.table_kinds.as_frame` knows
it), with a plan that names the binning: the stored arrays are the codes, and `Table` yields them as `DecodedColumns`. Encoding
copies the codes. Code that needs values, such as the scores by an earlier model, gets values that lie in the bins
(`DecodedColumns`); trees whose thresholds are edges of these bins route them like the originals.

**Memory layout.** Numba compiles a kernel once more for arrays that are read-only or not aligned, and cannot read foreign byte
orders; NumPy copies a whole array that is not contiguous for some calls. Arrays that Dask has received, slices of Arrow
buffers, memory maps and the user's views are any of these. So kernels get `plain` arrays only. The numbers of a matrix stay as
they are, however large it is: rows are made plain block by block, when they are encoded or predicted, in the processor's cache.
A single column is made `native` when it is read. Arrays that are fine already are never copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from dboost._lazy_import import is_a
from dboost.data.columns.binning import Binning
from dboost.data.columns.column import CategoryColumn, Column
from dboost.data.columns.roles import NO_ROLES, RowRoles
from dboost.errors import DataError
from dboost.schema import MAX_CLASSES, MAX_LEVELS, Level

#: Bytes of a matrix that are made plain at a time, and the multiple of rows.
_BLOCK_BYTES, _BLOCK_ROWS = 1 << 18, 256


def float_dtype(dtype: np.dtype) -> np.dtype:
    """Return float32 if it represents every value of a numeric dtype exactly, otherwise float64."""
    return np.dtype(np.float32 if np.can_cast(dtype, np.float32) else np.float64)


def plain(values: np.ndarray) -> np.ndarray:
    """Return numbers as kernels read them: floats (`float_dtype`) in native byte order, C-contiguous, aligned and writable; a
    copy if needed."""
    dtype = float_dtype(values.dtype)
    if values.dtype == dtype and values.flags.carray:
        return values
    filled = np.empty(values.shape, dtype)
    for rows in row_blocks(values, 0, len(values)):
        filled[rows] = values[rows]
    return filled


def plain_blocks(
    values: np.ndarray, first: int, last: int, rows: np.ndarray | None = None, dtype: np.dtype | None = None
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield consecutive ranges of rows first…last-1 and these rows, `plain`; an array is valid until the next one.

    rows : the numbers of the rows, default 0, 1, …: then the ranges are positions among these; dtype : default `float_dtype`.
    """
    buffer: np.ndarray | None = None
    dtype = float_dtype(values.dtype) if dtype is None else dtype
    for piece in row_blocks(values, first, last):
        block = values[piece if rows is None else rows[piece]]
        if block.dtype != dtype or not block.flags.carray:
            if buffer is None:  # one for all blocks: on Dask's workers the C library returns freed memory to the system at once
                buffer = np.empty(block.shape, dtype)
            buffer[: len(block)] = block
            block = buffer[: len(block)]
        yield piece, block


def row_blocks(values: np.ndarray, first: int, last: int) -> Iterator[slice]:
    """Yield consecutive ranges of rows first…last-1 of an array that stay in the processor's cache."""
    row_bytes = max(values[:1].size * values.itemsize, 1)
    n = max(_BLOCK_BYTES // row_bytes // _BLOCK_ROWS, 1) * _BLOCK_ROWS
    for start in range(first, last, n):
        yield slice(start, min(start + n, last))


def native(values: np.ndarray) -> np.ndarray:
    """Return numbers aligned and in native byte order, half floats as float32, long ones as float64; a copy if needed."""
    if values.dtype.kind == "f" and values.dtype.itemsize not in (4, 8):
        return values.astype(float_dtype(values.dtype))
    if values.dtype.isnative and values.flags.aligned:
        return values
    return values.astype(values.dtype.newbyteorder("="))


@dataclass(frozen=True, eq=False)
class Chunk:
    """The raw values of consecutive rows."""

    n_rows: int
    #: One for each feature, in the order of the table's features.
    columns: Sequence[Column]
    roles: RowRoles = NO_ROLES
    #: Shape (n_rows, n_features) if all columns are those of one matrix of numbers, which is faster to process by rows. It has
    #: any numeric type, byte order, alignment and memory order: `plain` makes blocks of its rows readable for kernels.
    matrix: np.ndarray | None = None
    #: Checksum of the rows as their source gave them (`data.columns.fingerprint`), if another worker has read them; its codes
    #: may have lost what distinguishes them: categories that a model does not know are missing, True and 1 are one category.
    fingerprint: int | None = None


def sort_key(level: Level) -> tuple[int, Level]:
    """Return a key that orders categories by type, then value; True differs from 1, but 1 equals 1.0."""
    if isinstance(level, bool):
        return 0, level
    return (2 if isinstance(level, str) else 1), level


def too_many(name: str, levels: Sequence[Level]) -> DataError:
    """Return the error for a column with more than `MAX_LEVELS` categories. levels : some of them."""
    from dboost.data.columns.numbers_as_text import hint

    return DataError(
        f"column {name!r} has more than {MAX_LEVELS:,} categories, too many for a categorical feature: "
        f"group the rare ones, or leave the column out{hint(name, levels)}"
    )


def too_many_classes(name: str, count: str, levels: Sequence[Level] | None) -> DataError:
    """Return the error for a target with more than `MAX_CLASSES` classes.

    name : of its column, or "target"; count : of different values; levels : some of them, None if they are numbers.
    """
    from dboost.data.columns.numbers_as_text import hint

    amounts = "give loss='squared_error'" if levels is None else "convert the column to numbers"
    how = hint(name, (levels or ())[:MAX_LEVELS], is_column=name != "target")  # a match of each level is held
    return DataError(
        f"{'target' if name == 'target' else f'target {name!r}'} has {count} different values, too many for classes "
        f"(at most {MAX_CLASSES:,}): choose another target if they are identifiers, group the rare ones if they are classes, "
        f"or {amounts} if they are amounts{how}"
    )


class CategoryIndex:
    """The categories of one column and their codes.

    Parameters
    ----------
    name : str
        Name of the column, for messages.
    known : tuple, optional
        Categories of an existing model, in the order of their codes.
    extend_categories : bool
        Whether unknown categories are added to the known ones; default False.
    is_target : bool
        Whether the column is the target, and its categories are classes; default False.
    """

    def __init__(
        self,
        name: str,
        known: tuple[Level, ...] | None = None,
        *,
        extend_categories: bool = False,
        is_target: bool = False,
    ) -> None:
        self._name, self._is_target = name, is_target
        self._closed = known is not None and not extend_categories
        # Known categories are compared by equality, so that a flag that was read as 1 finds the category True.
        self._known: dict[Level, int] = {category: code for code, category in enumerate(known or ())}
        self._codes: dict[tuple[int, Level], int] = {}
        self._dropped: set[int] = set()

    def __len__(self) -> int:
        return len(self._known) + len(self._codes)

    def translate(self, categories: Iterable[Level]) -> np.ndarray:
        """Return the codes (int32) of categories. Unknown ones are added, or have code -1 if the index is closed."""
        known, codes = self._known, self._codes
        if self._closed:
            return np.array([known.get(category, -1) for category in categories], dtype=np.int32)
        n = len(known)
        all_codes = [
            known[category] if category in known else codes.setdefault(sort_key(category), n + len(codes))
            for category in categories
        ]
        if len(self) > MAX_LEVELS:
            known_levels = self.categories()
            if self._is_target:
                raise too_many_classes(self._name, f"more than {MAX_LEVELS:,}", known_levels)
            raise too_many(self._name, known_levels)
        return np.array(all_codes, dtype=np.int32)

    def categories(self) -> tuple[Level, ...]:
        """Return the categories in the order of their codes."""
        return (*self._known, *(category for _, category in self._codes))

    def drop(self, codes: Iterable[int]) -> None:
        """Treat these provisional codes as missing values, except those of known categories."""
        self._dropped = {code for code in codes if code >= len(self._known)}

    def used(self) -> tuple[Level, ...]:
        """Return the categories that were not dropped, in the order of their codes."""
        return tuple(category for code, category in enumerate(self.categories()) if code not in self._dropped)

    @property
    def has_used(self) -> bool:
        """Whether there are categories that were not dropped."""
        return len(self) > len(self._dropped)

    def finish(self) -> tuple[tuple[Level, ...], np.ndarray]:
        """Return the known categories and the sorted others, and the final code of each provisional one (int32)."""
        known = tuple(self._known)
        new = [key for code, key in enumerate(self._codes, len(known)) if code not in self._dropped]
        if {0, 1} <= {rank for rank, _ in new}:
            new = [sort_key(int(category)) if rank == 0 else (rank, category) for rank, category in new]
        final = sorted(dict.fromkeys(new))
        position = {key: code for code, key in enumerate(final, len(known))}
        codes = np.full(len(self), -1, np.int32)
        codes[[code for code in range(len(self)) if code not in self._dropped]] = [
            *range(len(known)),
            *map(position.__getitem__, new),
        ]
        return (*known, *(category for _, category in final)), codes


@dataclass(frozen=True, eq=False)
class BinnedPartition:
    """Consecutive rows of a data set."""

    codes: tuple[np.ndarray, ...]  # for each feature uint8 or uint16 [n_rows]; missing values have the code after the last bin
    roles: RowRoles  # with a target; weights are positive
    #: Raw values (float64[n, n_features]) and targets of those rows that are in the data set's reference sample.
    sample: tuple[np.ndarray, Column] | None = None

    @property
    def n_rows(self) -> int:
        return len(self.codes[0])

    @property
    def n_bytes(self) -> int:
        return sum(array.nbytes for array in self.codes) + self.roles.nbytes

    @property
    def given_roles(self) -> dict[str, Any]:
        """The roles by name, as a user gives them: several columns as an array [n, n_columns]."""
        roles = self.roles.by_name()
        return {name: column if isinstance(column, CategoryColumn) else column.T for name, column in roles.items()}

    def __sizeof__(self) -> int:  # Dask counts the memory of its data by it
        return 64 + self.n_bytes


class MatrixColumns(Sequence[Column]):
    """The columns of a matrix of numbers, `native` when they are asked for."""

    def __init__(self, matrix: np.ndarray) -> None:
        self._matrix = matrix

    def __len__(self) -> int:
        return self._matrix.shape[1]

    @overload
    def __getitem__(self, j: int) -> Column: ...
    @overload
    def __getitem__(self, j: slice) -> tuple[Column, ...]: ...
    def __getitem__(self, j: int | slice) -> Column | tuple[Column, ...]:
        if isinstance(j, slice):
            return tuple(map(native, self._matrix.T[j]))
        return native(self._matrix[:, j])

    def __iter__(self) -> Iterator[Column]:
        return map(native, self._matrix.T)


class DecodedColumns(Sequence[Column]):
    """The columns of some rows, decoded one by one when they are asked for.

    A numeric value is the upper edge of its bin, in the last bin the next float above the last edge.

    Parameters
    ----------
    codes : sequence of uint8 or uint16 arrays [n_rows]
        One for each feature.
    binning : Binning
    """

    def __init__(self, codes: Sequence[np.ndarray], binning: Binning) -> None:
        self.codes, self.binning = tuple(codes), binning

    def rows(self, rows: slice | np.ndarray) -> DecodedColumns:
        """Return some of the rows."""
        return DecodedColumns([codes[rows] for codes in self.codes], self.binning)

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, j: int) -> Column: ...
    @overload
    def __getitem__(self, j: slice) -> tuple[Column, ...]: ...
    def __getitem__(self, j: int | slice) -> Column | tuple[Column, ...]:
        if isinstance(j, slice):
            return tuple(map(self._column, range(*j.indices(len(self)))))
        return self._column(j)

    def __iter__(self) -> Iterator[Column]:
        return map(self._column, range(len(self)))

    def _column(self, j: int) -> Column:
        codes, edges, categories = self.codes[j], self.binning.edges[j], self.binning.features[j].categories
        if categories is not None:
            narrow = codes.astype(np.int32)
            return CategoryColumn(np.where(narrow == len(categories), np.int32(-1), narrow), categories)
        assert edges is not None
        last = np.nextafter(edges[-1], np.inf) if len(edges) else 0.0
        return np.concatenate((edges, (last, np.nan)))[codes]


def slice_rows(most_bytes: int, n_features: int) -> int:
    """Return the rows of a slice of at most so many bytes; a column takes at most 8 bytes a row."""
    return max(most_bytes // (8 * max(n_features, 1)), 1)


def matrix_of(chunk: Chunk, rows: slice | np.ndarray = slice(None), dtype: npt.DTypeLike | None = None) -> np.ndarray:
    """Return a chunk, or rows of it, as a matrix: numbers unchanged, categories as codes, missing values as NaN.

    dtype : of the matrix; default: a numeric type that represents all values.
    """
    if chunk.matrix is not None:
        return chunk.matrix[rows] if dtype is None else chunk.matrix[rows].astype(dtype)
    columns = chunk.columns
    if dtype is None:
        columns = list(columns)  # decoded once
        dtype = np.result_type(np.float32, *(column.dtype for column in columns if not isinstance(column, CategoryColumn)))
    n_rows = len(range(chunk.n_rows)[rows]) if isinstance(rows, slice) else len(rows)
    matrix = np.empty((n_rows, len(columns)), dtype)
    for j, column in enumerate(columns):
        if isinstance(column, CategoryColumn):
            codes = column.codes[rows]
            matrix[:, j] = codes
            matrix[codes < 0, j] = np.nan
        else:
            matrix[:, j] = column[rows]
    return matrix


def is_masked(values: Any) -> bool:
    """Return whether `values` is a masked array of NumPy."""
    return type(values) is not np.ndarray and is_a(values, "numpy.ma", "MaskedArray")


def is_numeric(matrix: np.ndarray) -> bool:
    """Return whether an array holds numbers, of any type and in any memory order, and is not masked."""
    return matrix.dtype.kind in "biuf" and not is_masked(matrix)
