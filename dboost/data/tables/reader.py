"""The partitions of a table as chunks in a spool, with columns that are consistent.

Partitions arrive in any order from several threads. The thread that computes a partition has the `Reader` convert it to a
chunk, translate its categories to provisional codes of the whole table (see `data/columns/chunk.py`), and put its arrays into a
spool, in memory or in a file (see `files.spool`). After the last partition it is known whether each column is categorical, what
the sorted categories are, and the target of all rows.

Two partitions are consistent in a column if both contain numbers or both contain categories; otherwise the reader raises an
error at once. A column without any value is consistent with both, because its dtype is arbitrary (an empty text column of a CSV
block is read as floats).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from dboost.data.columns.chunk import CategoryIndex, Chunk, MatrixColumns, slice_rows
from dboost.data.columns.column import CategoryColumn, Column, apply, without_unused
from dboost.data.columns.fingerprint import fingerprint, joined_fingerprint
from dboost.data.columns.read_plan import ReadPlan
from dboost.data.columns.roles import ROLES, RowRoles
from dboost.data.columns.sparse import SparseColumn, has_sparse, packed, unpacked
from dboost.data.kinds.partition import read_slices, role_column
from dboost.data.tables.row_metadata import (
    DataIssue,
    MetadataRows,
    RowMetadata,
    RowMetadataSpool,
    check_exact,
    issues_of,
    join_parts,
    join_target,
)
from dboost.errors import ColumnKindsError, DataError, DBoostError
from dboost.files.spool import Spool
from dboost.schema import TEXT, Feature, Level, kinds_of


@dataclass(frozen=True, eq=False)
class StoredSlice:
    """How some rows of a partition are stored in the spool."""

    n_rows: int
    #: Whether the columns are stored as one matrix.
    is_matrix: bool
    #: For each feature, whether its array contains provisional codes.
    is_code: tuple[bool, ...]
    #: Of sparse columns, see `data.columns.sparse.packed`.
    fills: tuple[Any, ...] = ()
    #: Checksum of the values as they were read (see `data.columns.fingerprint`) if the reader computes it, otherwise 0.
    fingerprint: int = 0

    def packed(self, columns: list[Any]) -> tuple[list[np.ndarray], StoredSlice]:
        """Return the arrays of the slice as they are stored."""
        if not has_sparse(tuple(columns)):
            return columns, self
        arrays, fills = packed(columns)
        return arrays, replace(self, fills=fills)

    def unpacked(self, arrays: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        """Return the columns of the slice, or its matrix, as it was before it was stored."""
        return unpacked(arrays, self.fills, self.n_rows) if self.fills else arrays


#: A partition in the spool: one slice, or several if the partition exceeds the memory for one.
StoredSlices = tuple[StoredSlice, ...]


def rows_in(slices: StoredSlices) -> int:
    """Return the number of rows of a partition."""
    return sum(piece.n_rows for piece in slices)


def fingerprint_of(slices: StoredSlices) -> int:
    """Return the checksum of a partition. Reading it again with the same limit gives the same slices."""
    return joined_fingerprint([piece.fingerprint for piece in slices])


class LimitCheck(Protocol):
    """The check of a memory limit, see `dboost.session.memory`: its methods raise a ParameterError if it is too small."""

    def check_width(self, n_features: int) -> None:
        """Check the number of features, before rows are read."""

    def check_rows(self, n_values: np.ndarray, n_rows: int) -> None:
        """Check the numbers of values of the features (int64[n_features]) in the first slice of rows."""


class ColumnUnifier:
    """The kind and the categories of one column over all partitions."""

    def __init__(
        self, name: str, known: tuple[Level, ...] | None = None, extend_categories: bool = False, is_target: bool = False
    ) -> None:
        self._name, self._is_target = name, is_target
        #: Whether the column is categorical, and a partition that determines it; None while all values are missing.
        self.seen: tuple[bool, int] | None = None
        #: The first partition with categories of each kind.
        self.category_kinds: dict[str, int] = {}
        self._known, self._extends = known, extend_categories
        self._lock = threading.Lock()

    @cached_property
    def categories(self) -> CategoryIndex:
        return CategoryIndex(self._name, self._known, extend_categories=self._extends, is_target=self._is_target)

    @property
    def is_categorical(self) -> bool:
        """Whether categories are used: those of a model, or of a partition."""
        has_any = self._known is not None or (self.seen is not None and self.seen[0])
        return has_any and self.categories.has_used

    def add(self, column: Column, i: int) -> np.ndarray:
        """Return numbers unchanged, categories as provisional codes. Thread-safe."""
        categorical = isinstance(column, CategoryColumn)
        empty = not column.categories if isinstance(column, CategoryColumn) else _all_missing(column)
        with self._lock:
            if not empty:
                self.seen = self.seen or (categorical, i)
                if self.seen[0] != categorical:
                    raise disagree(self._name, self.seen, (categorical, i))
            if not isinstance(column, CategoryColumn):
                return column
            codes = self.categories.translate(column.categories)
            for kind in kinds_of(column.categories):
                self.category_kinds[kind] = min(i, self.category_kinds.get(kind, i))
        return apply(codes, column.codes)


def disagree(name: str, first: tuple[bool, int], second: tuple[bool, int]) -> DataError:
    """Return the error for a column that is categorical in one partition only.

    first, second : (whether it is categorical, partition number).
    """
    (_, numbers), (_, text) = sorted((first, second))
    if numbers == text:
        return ColumnKindsError(f"column {name!r} holds numbers in some rows of partition {numbers}, but text in others")
    return ColumnKindsError(f"column {name!r} holds numbers in partition {numbers}, but text or categories in partition {text}")


def mixes_kinds(features: Sequence[Feature]) -> bool:
    """Return whether a feature has categories that are text and others that are not."""
    return any(TEXT in kinds and len(kinds) > 1 for kinds in (kinds_of(feature.categories or ()) for feature in features))


def _all_missing(values: np.ndarray | SparseColumn) -> bool:
    if isinstance(values, SparseColumn):
        return values.is_all_missing
    if not len(values):
        return True
    return values.dtype.kind == "f" and bool(np.isnan(values[0])) and bool(np.isnan(values).all())


#: Rows of the first slice of which a memory limit is checked.
_CHECKED_ROWS = 4096


def _n_values(column: np.ndarray) -> int:
    """Return how many different values a column of numbers, or of codes of categories, has; at least 1."""
    is_missing = np.isnan(column) if column.dtype.kind == "f" else column < 0 if column.dtype.kind == "i" else None
    return max(len(np.unique(column if is_missing is None else column[~is_missing])), 1)


class Reader:
    """Stores partitions, and determines features and metadata of the table after the last one.

    Parameters
    ----------
    roles : RowMetadataSpool, optional
        Where the roles of partitions are kept. Default: in memory.
    fingerprints : bool
        Whether to compute checksums, for partitions that may have to be read again; default False.
    limit : LimitCheck, optional
        Checks the first slice.
    in_partitions : bool
        Whether partitions are the user's, so that messages name them; default True.
    """

    def __init__(
        self,
        plan: ReadPlan,
        spool: Spool,
        roles: RowMetadataSpool | None = None,
        *,
        fingerprints: bool = False,
        limit: LimitCheck | None = None,
        in_partitions: bool = True,
    ) -> None:
        self._plan, self._limit, self._in_partitions = plan, limit, in_partitions
        self._fingerprints = fingerprints
        self.spool = spool
        self.metadata_spool = roles
        known = plan.known or (None,) * len(plan.specs)
        self._features = [
            ColumnUnifier(spec.name, None if feature is None else feature.categories, plan.extend_categories)
            for spec, feature in zip(plan.specs, known, strict=True)
        ]
        self._target = ColumnUnifier(str(plan.roles.get("target", "target")), is_target=True)
        self._parts: dict[str, dict[int, Column]] = {role: {} for role in ROLES}
        self._weights_attached = False
        self._lock = threading.Lock()
        #: Number of target columns, and a partition that has them; None before the first partition with rows.
        self._target_columns: tuple[int, int] | None = None

    def read_partition(self, i: int, data: Any, vectors: Mapping[str, Any], is_persisted: bool = False) -> StoredSlices:
        """Read a partition. Thread-safe.

        vectors : roles that are not columns of it, by name; is_persisted : whether the partition stays in memory anyway. Views
        of it then need no allowance of the spool.
        """
        slices = read_slices(data, self._plan, vectors, self._most_rows)
        stored: list[StoredSlice] = []
        while True:
            try:
                chunk = next(slices, None)
                if chunk is None:
                    return tuple(stored)
                arrays, piece = self._translate(i, chunk, private=True)
            except ColumnKindsError:  # it names the partitions
                raise
            except DBoostError as error:
                if not self._in_partitions:
                    raise
                raise type(error)(f"partition {i}: {error}") from None
            del chunk
            self._check_limit(arrays, piece)
            arrays, piece = piece.packed(arrays)
            if is_persisted and isinstance(data, np.ndarray) and all(np.may_share_memory(array, data) for array in arrays):
                self.spool.hold(i, arrays, len(stored))
            else:
                self.spool.put(i, arrays, len(stored))
            del arrays
            stored.append(piece)

    def _check_limit(self, arrays: list[np.ndarray], piece: StoredSlice) -> None:
        if self._limit is not None and piece.n_rows:
            limit, self._limit = self._limit, None
            columns = arrays[0].T if piece.is_matrix else arrays
            limit.check_rows(np.array([_n_values(column[:_CHECKED_ROWS]) for column in columns], np.int64), piece.n_rows)

    @property
    def _most_rows(self) -> int | None:
        return None if self.spool.most_bytes is None else slice_rows(self.spool.most_bytes, len(self._features))

    def add_slice(self, i: int, chunk: Chunk, number: int) -> StoredSlice:
        """Store a slice of a partition that another reader has read, see `chunk`. Slices arrive in order. Thread-safe."""
        if chunk.matrix is not None:
            chunk = replace(chunk, columns=MatrixColumns(chunk.matrix))
        arrays, piece = self._translate(i, chunk, private=True)
        arrays, piece = piece.packed(arrays)
        if number == 0:
            self.spool.drop(i)  # of an interrupted attempt
        self.spool.put(i, arrays, number)
        return piece

    def chunk(self, i: int, piece: StoredSlice, number: int) -> Chunk:
        """Return a slice of a partition as it was read, with its own categories, to be sent to another worker.

        A matrix is not accompanied by columns. The first slice contains the roles of the whole partition.
        """
        arrays = piece.unpacked(self.spool.get(i, number))
        columns: tuple[Column, ...] = (
            ()
            if piece.is_matrix
            else tuple(
                _with_own_categories(array, unifier) if is_code else array
                for array, unifier, is_code in zip(arrays, self._features, piece.is_code, strict=True)
            )
        )
        matrix = arrays[0] if piece.is_matrix else None
        if number:
            return Chunk(piece.n_rows, columns, matrix=matrix, fingerprint=piece.fingerprint)
        spool = self.metadata_spool
        roles = {role: self._parts[role].get(i) if spool is None else spool.raw(role, i) for role in ROLES}
        target = roles["target"]
        if isinstance(target, CategoryColumn):
            roles["target"] = _with_own_categories(target.codes, self._target)
        return Chunk(piece.n_rows, columns, RowRoles.of(roles), matrix, piece.fingerprint)

    def read_whole(self, data: Any) -> StoredSlices:
        """Read a table in memory without unnecessary copies."""
        (chunk,) = read_slices(data, self._plan)
        arrays, piece = self._translate(0, chunk, private=False)
        self.spool.hold(0, arrays)
        return (piece,)

    def _translate(self, i: int, chunk: Chunk, private: bool) -> tuple[list[np.ndarray], StoredSlice]:
        checksum = chunk.fingerprint
        if checksum is None:
            checksum = fingerprint(chunk) if self._fingerprints else 0
        columns = chunk.columns if chunk.matrix is None else chunk.matrix.T  # these are not converted
        arrays = [unifier.add(column, i) for unifier, column in zip(self._features, columns, strict=True)]
        if chunk.matrix is not None:
            arrays = [chunk.matrix]
        for role, column in chunk.roles.by_name().items() if chunk.n_rows else ():
            if role == "target":
                column = self._code_target(column, i)
            if private and self.metadata_spool is not None:
                self.metadata_spool.put(role, i, column)
                continue
            # A view would keep the partition alive.
            copied = private and isinstance(column, np.ndarray) and column.base is not None
            self._parts[role][i] = column.copy() if copied and isinstance(column, np.ndarray) else column
        is_code = tuple(isinstance(column, CategoryColumn) for column in columns)
        return arrays, StoredSlice(chunk.n_rows, chunk.matrix is not None, is_code, fingerprint=checksum)

    def _code_target(self, column: Column, i: int) -> Column:
        if isinstance(column, np.ndarray) and column.ndim == 2:
            self._check_columns(len(column), i)
            return column
        self._check_columns(1, i)
        array = self._target.add(column, i)
        return CategoryColumn(array, ()) if isinstance(column, CategoryColumn) else array

    def _check_columns(self, n_columns: int, i: int) -> None:
        """Raise a DataError if another partition has another number of target columns."""
        with self._lock:
            self._target_columns = self._target_columns or (n_columns, i)
        n_others, first_partition = self._target_columns
        if n_others != n_columns:
            raise DataError(
                f"the target has {n_columns} columns in partition {i}, but {n_others} in partition {first_partition}"
            )

    def keep_only(self, partition_ids: set[int]) -> None:
        """Drop the roles of other partitions."""
        for parts in self._parts.values():
            for i in set(parts) - partition_ids:
                del parts[i]
        if self.metadata_spool is not None:
            self.metadata_spool.keep_only(partition_ids)

    def kinds(self) -> tuple[tuple[bool, int] | None, ...]:
        """Return for each feature whether it is categorical, and a partition that determines it; None if all are missing."""
        return tuple(unifier.seen for unifier in self._features)

    def category_kinds(self) -> tuple[dict[str, int], ...]:
        """Return for each feature the first partition with categories of each kind."""
        return tuple(unifier.category_kinds for unifier in self._features)

    def categories(self) -> tuple[tuple[Level, ...], ...]:
        """Return the categories of each feature in the order of their provisional codes."""
        return tuple(unifier.categories.categories() for unifier in self._features)

    def used_categories(self) -> tuple[tuple[Level, ...], ...]:
        """Return the categories of each feature that occur in rows of positive weight, in the order of `categories`."""
        return tuple(unifier.categories.used() for unifier in self._features)

    def drop_unweighted_categories(self, partitions: Mapping[int, StoredSlices], weight: np.ndarray | None) -> None:
        """Drop categories that only occur in rows of weight zero, as `read_slices` does if it gets the weights.

        partitions : by number, in order; weight : of all their rows.
        """
        if not self._weights_attached or weight is None or weight.all() or self._plan.closed:
            return
        used = [np.zeros(len(unifier.categories), bool) for unifier in self._features]
        first = 0
        for i, slices in partitions.items():
            for number, piece in enumerate(slices):
                counts = weight[first : first + piece.n_rows] > 0
                first += piece.n_rows
                if not any(piece.is_code):
                    continue
                arrays = piece.unpacked(self.spool.get(i, number))
                for array, is_code, is_used in zip(arrays, piece.is_code, used, strict=True):
                    if is_code:
                        is_used[array[counts & (array >= 0)]] = True
        for unifier, is_used in zip(self._features, used, strict=True):
            unifier.categories.drop(np.flatnonzero(~is_used).tolist())

    def finish_features(self) -> tuple[tuple[Feature, ...], list[np.ndarray | None]]:
        """Return the features, and for each the map from provisional to final codes (None: they are equal)."""
        if self._plan.known is not None and self._plan.closed:
            return self._plan.known, [None] * len(self._plan.known)
        specs = self._plan.specs
        finished = [
            unifier.categories.finish() if spec.categorical or unifier.is_categorical else (None, None)
            for spec, unifier in zip(specs, self._features, strict=True)
        ]
        features = [Feature(spec.name, categories) for spec, (categories, _) in zip(specs, finished, strict=True)]
        is_same = [codes is None or np.array_equal(codes, np.arange(len(codes))) for _, codes in finished]
        translations = [None if same else codes for same, (_, codes) in zip(is_same, finished, strict=True)]
        return tuple(features), translations

    def attach(self, role: str, i: int, values: Any, n_rows: int | None = None) -> None:
        """Store a role that did not arrive with partition `i`."""
        column = role_column(values, role, None, n_rows)
        self._parts[role][i] = self._code_target(column, i) if role == "target" else column
        if role == "sample_weight":
            self._weights_attached = True

    @property
    def _target_categories(self) -> CategoryIndex | None:
        return self._target.categories if self._target.is_categorical else None

    def finish_roles(self, whole: Mapping[str, Any], rows: MetadataRows) -> RowMetadata:
        """Return the roles of all rows, unless they are in files, and their issues.

        whole : by role, values of all rows that did not arrive with the partitions.
        """
        if self.metadata_spool is not None:
            return self._roles_in_files(self.metadata_spool, rows)
        for role, values in whole.items():
            self.attach(role, 0, values, rows.n_rows)
        plan, dtype, is_bool = self._plan, None, False
        issues: list[DataIssue] = []
        columns: dict[str, Column] = {}
        for role, parts in self._parts.items():
            if not parts:
                continue
            label, inexact = plan.label(role), list[DataIssue]()
            if ROLES[role].kind == "any":
                for i in sorted(parts):
                    inexact += check_exact(parts[i], role, label, rows.of_partition(i) if len(parts) > 1 else rows)
            if role == "target":
                columns[role], dtype, is_bool = join_target(parts, self._target_categories)
            else:
                columns[role] = join_parts(parts)
            issues += issues_of(role, columns[role], label, rows, plan.labels(role)) + inexact
        roles = RowRoles.of(columns)
        max_weight = 1.0 if roles.weight is None or not len(roles.weight) else float(roles.weight.max())
        return RowMetadata(roles, dtype, is_bool, tuple(issues), max_weight)

    def _roles_in_files(self, spool: RowMetadataSpool, rows: MetadataRows) -> RowMetadata:
        spool.finish(self._target_categories)
        issues, max_weight = spool.check(self._plan, rows)
        return RowMetadata(RowRoles(), spool.target_dtype, spool.target_is_bool, tuple(issues), max_weight)


def _with_own_categories(codes: np.ndarray, unifier: ColumnUnifier) -> CategoryColumn:
    """Return provisional codes as a column with only the categories that occur in it."""
    return without_unused(CategoryColumn(codes, unifier.categories.categories()))
