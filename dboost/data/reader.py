"""Collection of the chunks of a table while its partitions are read.

Partitions arrive in any order from several threads. Of each the reader keeps its arrays (in the spool), its target, weight and
offset, and its new categories. A column with numbers in one partition and categories in another raises an error at once.
"""

from __future__ import annotations

import threading
import zlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dboost.data.categories import CategoryIndex, apply, without_unused
from dboost.data.chunk import CategoryColumn, Chunk, Column
from dboost.data.partition import ROLES, fingerprint, read_partition, read_slices, role_column
from dboost.data.read_plan import ReadPlan
from dboost.data.row_metadata import (
    DataIssue,
    MetadataRows,
    RowMetadata,
    RowMetadataSpool,
    check_offset,
    check_target,
    check_weight,
    join_floats,
    join_target,
    label,
)
from dboost.errors import DataError, DBoostError
from dboost.schema import Feature, Level
from dboost.storage.spool import Spool


@dataclass(frozen=True, eq=False)
class ChunkSlice:
    """How some rows of a partition are stored in the spool."""

    n_rows: int
    #: Whether the columns are stored as one matrix.
    is_matrix: bool
    #: For each feature, whether its array contains provisional codes.
    is_code: tuple[bool, ...]
    #: Checksum of the values as they were read, if the reader computes it (see `partition.fingerprint`), otherwise 0.
    fingerprint: int = 0


@dataclass(frozen=True, eq=False)
class SpooledChunk:
    """A partition in the spool: one slice, or several if the partition exceeds the memory for one."""

    slices: tuple[ChunkSlice, ...]

    @property
    def n_rows(self) -> int:
        return sum(part.n_rows for part in self.slices)

    @property
    def fingerprint(self) -> int:
        """Checksum of all slices. Reading the partition again with the same limit gives the same slices."""
        if len(self.slices) == 1:
            return self.slices[0].fingerprint
        return zlib.crc32(repr([part.fingerprint for part in self.slices]).encode())


class ColumnUnifier:
    """The kind and the categories of one column over all partitions."""

    def __init__(self, name: str, known: tuple[Level, ...] | None = None, extend_categories: bool = False) -> None:
        self._name = name
        #: Whether the column is categorical, and a partition that determines it; None while all values are missing.
        self.seen: tuple[bool, int] | None = None
        self.categories = CategoryIndex(name, known, extend_categories=extend_categories)
        self._lock = threading.Lock()

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
        return apply(codes, column.codes)


def disagree(name: str, one: tuple[bool, int], other: tuple[bool, int]) -> DataError:
    """Return the error for a column that is categorical in one partition only. one, other : (categorical, partition number)."""
    (_, numbers), (_, text) = sorted((one, other))
    return DataError(f"column {name!r} holds numbers in partition {numbers}, but text or categories in partition {text}")


def _with_own_categories(codes: np.ndarray, unifier: ColumnUnifier) -> CategoryColumn:
    """Return provisional codes as a column with only the categories that occur in it."""
    return without_unused(CategoryColumn(codes, unifier.categories.categories()))


def _all_missing(values: np.ndarray) -> bool:
    if not len(values):
        return True
    return values.dtype.kind == "f" and bool(np.isnan(values[0])) and bool(np.isnan(values).all())


class Reader:
    """Stores partitions, and determines features and metadata of the table after the last one.

    Parameters
    ----------
    roles : RowMetadataSpool, optional
        Where target, weight and offset of partitions are kept. Default: in memory.
    fingerprints : bool
        Whether to compute checksums, for partitions that may have to be read again; default False.
    """

    def __init__(
        self, plan: ReadPlan, spool: Spool, roles: RowMetadataSpool | None = None, *, fingerprints: bool = False
    ) -> None:
        self._plan = plan
        self._fingerprints = fingerprints
        self._spool = spool
        self._metadata_spool = roles
        known = plan.known or (None,) * len(plan.specs)
        self._features = [
            ColumnUnifier(spec.name, None if feature is None else feature.categories, plan.extend_categories)
            for spec, feature in zip(plan.specs, known, strict=True)
        ]
        self._target = ColumnUnifier(plan.target or "target")
        self._parts: dict[str, dict[int, Column]] = {role: {} for role in ROLES}
        self._weights_attached = False

    def take_partition(self, i: int, data: tuple[Any, Any, Any, Any]) -> SpooledChunk:
        """Read a partition, data = (partition, target, weight, offset). Thread-safe."""
        slices = read_slices(data[0], self._plan, data[1:], self._most_rows)
        found: list[ChunkSlice] = []
        while True:
            try:
                chunk = next(slices, None)
                if chunk is None:
                    return SpooledChunk(tuple(found))
                arrays, one = self._translate(i, chunk, private=True)
            except DBoostError as error:
                raise type(error)(f"partition {i}: {error}") from None
            del chunk
            self._spool.put(i, arrays, len(found))
            del arrays
            found.append(one)

    @property
    def _most_rows(self) -> int | None:
        """Rows of a slice; a column takes at most 8 bytes a row."""
        most = self._spool.most_bytes
        return None if most is None else max(most // (8 * max(len(self._features), 1)), 1)

    def take_slice(self, i: int, chunk: Chunk, number: int) -> ChunkSlice:
        """Store a slice of a partition that another reader has read, see `chunk`. Slices arrive in order. Thread-safe."""
        if chunk.matrix is not None:
            chunk = replace(chunk, columns=tuple(chunk.matrix.T))
        arrays, one = self._translate(i, chunk, private=True)
        if number == 0:
            self._spool.drop(i)  # of an interrupted attempt
        self._spool.put(i, arrays, number)
        return one

    def chunk(self, i: int, piece: ChunkSlice, number: int) -> Chunk:
        """Return a slice of a partition as it was read, with its own categories, to be sent to another worker.

        A matrix is not accompanied by columns. The first slice contains target, weight and offset of the whole partition.
        """
        arrays = self._spool.get(i, number)
        columns: tuple[Column, ...] = (
            ()
            if piece.is_matrix
            else tuple(
                _with_own_categories(array, unifier) if is_code else array
                for array, unifier, is_code in zip(arrays, self._features, piece.is_code, strict=True)
            )
        )
        if number:
            return Chunk(piece.n_rows, columns, matrix=arrays[0] if piece.is_matrix else None)
        spool = self._metadata_spool
        target, weight, offset = (self._parts[role].get(i) if spool is None else spool.raw(role, i) for role in ROLES)
        if isinstance(target, CategoryColumn):
            target = _with_own_categories(target.codes, self._target)
        assert not isinstance(weight, CategoryColumn) and not isinstance(offset, CategoryColumn)
        return Chunk(piece.n_rows, columns, target, weight, offset, arrays[0] if piece.is_matrix else None)

    def take_whole(self, data: Any) -> SpooledChunk:
        """Read a table in memory without unnecessary copies."""
        arrays, one = self._translate(0, read_partition(data, self._plan), private=False)
        self._spool.hold(0, arrays)
        return SpooledChunk((one,))

    def _translate(self, i: int, chunk: Chunk, private: bool) -> tuple[list[np.ndarray], ChunkSlice]:
        found = fingerprint(chunk) if self._fingerprints else 0
        arrays = [unifier.add(column, i) for unifier, column in zip(self._features, chunk.columns, strict=True)]
        if chunk.matrix is not None:
            arrays = [chunk.matrix]
        for role, column in zip(ROLES, (chunk.target, chunk.weight, chunk.offset), strict=True):
            if column is None or not chunk.n_rows:
                continue
            if role == "target":
                column = self._code_target(column, i)
            if private and self._metadata_spool is not None:
                self._metadata_spool.put(role, i, column)
                continue
            # A view would keep the partition alive.
            copied = private and isinstance(column, np.ndarray) and column.base is not None
            self._parts[role][i] = column.copy() if copied and isinstance(column, np.ndarray) else column
        is_code = tuple(isinstance(column, CategoryColumn) for column in chunk.columns)
        return arrays, ChunkSlice(chunk.n_rows, chunk.matrix is not None, is_code, found)

    def _code_target(self, column: Column, i: int) -> Column:
        array = self._target.add(column, i)
        return CategoryColumn(array, ()) if isinstance(column, CategoryColumn) else array

    def keep(self, numbers: set[int]) -> None:
        """Drop target, weight and offset of partitions with other numbers."""
        for parts in self._parts.values():
            for i in set(parts) - numbers:
                del parts[i]
        if self._metadata_spool is not None:
            self._metadata_spool.keep(numbers)

    def kinds(self) -> tuple[tuple[bool, int] | None, ...]:
        """Return for each feature whether it is categorical, and a partition that determines it; None if all are missing."""
        return tuple(unifier.seen for unifier in self._features)

    def categories(self) -> tuple[tuple[Level, ...], ...]:
        """Return the categories of each feature in the order of their provisional codes."""
        return tuple(unifier.categories.categories() for unifier in self._features)

    def used_categories(self) -> tuple[tuple[Level, ...], ...]:
        """Return the same without categories that only occur in rows of weight zero."""
        return tuple(unifier.categories.used() for unifier in self._features)

    def drop_unweighted_categories(self, pieces: dict[int, SpooledChunk], weight: np.ndarray | None) -> None:
        """Drop categories that only occur in rows of weight zero, as `read_partition` does if it gets the weights.

        pieces : by partition, in order; weight : of all their rows.
        """
        if not self._weights_attached or weight is None or weight.all() or self._plan.closed:
            return
        used = [np.zeros(len(unifier.categories), bool) for unifier in self._features]
        first = 0
        for i, piece in pieces.items():
            for number, one in enumerate(piece.slices):
                counts = weight[first : first + one.n_rows] > 0
                first += one.n_rows
                if not any(one.is_code):
                    continue
                for array, is_code, of_feature in zip(self._spool.get(i, number), one.is_code, used, strict=True):
                    if is_code:
                        of_feature[array[counts & (array >= 0)]] = True
        for unifier, of_feature in zip(self._features, used, strict=True):
            unifier.categories.drop(np.flatnonzero(~of_feature).tolist())

    def finish_features(self) -> tuple[tuple[Feature, ...], list[np.ndarray | None]]:
        """Return the features, and for each the map from provisional to final codes (None: they are equal)."""
        if self._plan.known is not None and self._plan.closed:
            return self._plan.known, [None] * len(self._plan.known)
        features: list[Feature] = []
        translations: list[np.ndarray | None] = []
        for spec, unifier in zip(self._plan.specs, self._features, strict=True):
            if not (spec.categorical or unifier.categories.used()):
                features.append(Feature(spec.name))
                translations.append(None)
                continue
            categories, final = unifier.categories.finish()
            features.append(Feature(spec.name, categories))
            translations.append(None if np.array_equal(final, np.arange(len(final))) else final)
        return tuple(features), translations

    def attach(self, role: str, i: int, values: Any, n_rows: int | None = None) -> None:
        """Store target, weight or offset that did not arrive with partition `i`."""
        column = role_column(values, role, None, n_rows)
        self._parts[role][i] = self._code_target(column, i) if role == "target" else column
        self._weights_attached = self._weights_attached or role == "sample_weight"

    def finish_spooled(self, rows: MetadataRows) -> tuple[list[DataIssue], float]:
        """Return the issues of target, weight and offset in files, and the largest weight."""
        assert self._metadata_spool is not None
        self._metadata_spool.finish(self._target.categories)
        return self._metadata_spool.check(self._plan, rows)

    def finish_roles(self, whole: dict[str, Any], rows: MetadataRows) -> RowMetadata:
        """Return target, weight and offset of all rows, and their issues.

        whole : by role, values of all rows that did not arrive with the partitions.
        """
        plan, parts = self._plan, self._parts
        for role, values in whole.items():
            self.attach(role, 0, values, rows.n_rows)
        target, dtype, is_bool = None, None, False
        issues: list[DataIssue] = []
        if parts["target"]:
            target, dtype, is_bool = join_target(parts["target"], self._target.categories)
            issues += check_target(target, dtype, label("target", plan.target), rows)
        weight = join_floats(parts["sample_weight"]) if parts["sample_weight"] else None
        if weight is not None:
            issues += check_weight(weight, label("sample_weight", plan.weight), rows)
        offset = join_floats(parts["offset"]) if parts["offset"] else None
        if offset is not None:
            issues += check_offset(offset, label("offset", plan.offset), rows)
        return RowMetadata(target, dtype, is_bool, weight, offset, tuple(issues))
