"""Collects the chunks of a table while its partitions are read.

Partitions arrive in any order, from several threads. Each is reduced at once to what is kept of it: its arrays (in
the spool), its pieces of target, weight and offset, and whatever it adds to the levels of the columns. A column that
holds numbers in one partition and categories in another stops the reading then and there.
"""

from __future__ import annotations

import threading
import zlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dboost.data.categories import CategoryIndex, apply
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
    """What the columns of some rows of a partition look like in the spool.

    Attributes
    ----------
    n_rows : int
    is_matrix : bool
        The arrays are one, a matrix of all columns.
    is_code : tuple of bool
        Per feature, whether its array holds provisional codes.
    fingerprint : int
        Of its values as they were read, where the reader was asked for it (see `data.partition`); else 0.
    """

    n_rows: int
    is_matrix: bool
    is_code: tuple[bool, ...]
    fingerprint: int = 0


@dataclass(frozen=True, eq=False)
class SpooledChunk:
    """A partition in the spool: one slice of it, or several where it is larger than what may be in memory of one."""

    slices: tuple[ChunkSlice, ...]

    @property
    def n_rows(self) -> int:
        return sum(part.n_rows for part in self.slices)

    @property
    def fingerprint(self) -> int:
        """Of all slices: they are the same where the partition is read again within the same limit."""
        if len(self.slices) == 1:
            return self.slices[0].fingerprint
        return zlib.crc32(repr([part.fingerprint for part in self.slices]).encode())


class ColumnUnifier:
    """One column over all partitions: do they agree what it is, and which levels are there?"""

    def __init__(self, name: str, known: tuple[Level, ...] | None = None, extend_categories: bool = False) -> None:
        self._name = name
        self.seen: tuple[bool, int] | None = None
        self._lock = threading.Lock()
        self.dictionary = CategoryIndex(name, known, extend_categories=extend_categories)

    def add(self, column: Column, i: int) -> np.ndarray:
        """Numbers as they are, categories as provisional codes. Thread-safe."""
        categorical = isinstance(column, CategoryColumn)
        silent = not column.levels if isinstance(column, CategoryColumn) else _all_missing(column)
        with self._lock:
            if not silent:
                self.seen = self.seen or (categorical, i)
                if self.seen[0] != categorical:
                    raise disagree(self._name, self.seen, (categorical, i))
            if not isinstance(column, CategoryColumn):
                return column
            codes = self.dictionary.translate(column.levels)
        return apply(codes, column.codes)


def disagree(name: str, one: tuple[bool, int], other: tuple[bool, int]) -> DataError:
    """The error for a column that is categorical in one partition and numeric in another; each as (categorical, number)."""
    (_, numbers), (_, text) = sorted((one, other))
    return DataError(f"column {name!r} holds numbers in partition {numbers}, but text or categories in partition {text}")


def _own_levels(codes: np.ndarray, union: ColumnUnifier) -> CategoryColumn:
    """Provisional codes of all partitions as a column that has the levels which occur in it, and no others."""
    levels = union.dictionary.levels()
    used = np.bincount(codes[codes >= 0], minlength=len(levels)) > 0
    own = tuple(level for level, occurs in zip(levels, used, strict=True) if occurs)
    return CategoryColumn(apply(np.cumsum(used) - 1, codes), own)


def _all_missing(values: np.ndarray) -> bool:
    if not len(values):
        return True
    return values.dtype.kind == "f" and bool(np.isnan(values[0])) and bool(np.isnan(values).all())


class Reader:
    """Turns partitions into pieces, and at the end says what the table is made of.

    fingerprints : whether pieces are to have one, because partitions may have to be read again.
    """

    def __init__(
        self, plan: ReadPlan, spool: Spool, roles: RowMetadataSpool | None = None, *, fingerprints: bool = False
    ) -> None:
        self._plan = plan
        self._fingerprints = fingerprints
        self._spool = spool
        self._role_spool = roles
        known = plan.known or (None,) * len(plan.rules)
        self._features = [
            ColumnUnifier(rule.name, None if feature is None else feature.levels, plan.extend_categories)
            for rule, feature in zip(plan.rules, known, strict=True)
        ]
        self._target = ColumnUnifier(plan.target or "target")
        self._parts: dict[str, dict[int, Column]] = {role: {} for role in ROLES}
        self._weighed_late = False

    def take_partition(self, i: int, data: tuple[Any, Any, Any, Any]) -> SpooledChunk:
        """Read a partition that nobody else holds: partition, target, weight, offset. Thread-safe."""
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
        """Rows of a slice: no column takes more than eight bytes a row."""
        most = self._spool.most_bytes
        return None if most is None else max(most // (8 * max(len(self._features), 1)), 1)

    def take_slice(self, i: int, chunk: Chunk, number: int) -> ChunkSlice:
        """Take in a slice of a partition that another reader has read, see `chunk`; they come in order. Thread-safe."""
        if chunk.matrix is not None:
            chunk = replace(chunk, columns=tuple(chunk.matrix.T))
        arrays, one = self._translate(i, chunk, private=True)
        if number == 0:
            self._spool.drop(i)  # what is there of an attempt that was broken off
        self._spool.put(i, arrays, number)
        return one

    def chunk(self, i: int, piece: ChunkSlice, number: int) -> Chunk:
        """A slice of a partition as it was read, with levels of its own, to be sent elsewhere; of a matrix no columns beside.

        Target, weight and offset of the whole partition are in the first.
        """
        arrays = self._spool.get(i, number)
        columns: tuple[Column, ...] = (
            ()
            if piece.is_matrix
            else tuple(
                _own_levels(array, union) if is_code else array
                for array, union, is_code in zip(arrays, self._features, piece.is_code, strict=True)
            )
        )
        if number:
            return Chunk(piece.n_rows, columns, matrix=arrays[0] if piece.is_matrix else None)
        apart = self._role_spool
        target, weight, offset = (self._parts[role].get(i) if apart is None else apart.raw(role, i) for role in ROLES)
        if isinstance(target, CategoryColumn):
            target = _own_levels(target.codes, self._target)
        assert not isinstance(weight, CategoryColumn) and not isinstance(offset, CategoryColumn)
        return Chunk(piece.n_rows, columns, target, weight, offset, arrays[0] if piece.is_matrix else None)

    def take_whole(self, data: Any) -> SpooledChunk:
        """Read a table that the user holds in memory; nothing is copied that need not be."""
        arrays, one = self._translate(0, read_partition(data, self._plan), private=False)
        self._spool.hold(0, arrays)
        return SpooledChunk((one,))

    def _translate(self, i: int, chunk: Chunk, private: bool) -> tuple[list[np.ndarray], ChunkSlice]:
        found = fingerprint(chunk) if self._fingerprints else 0
        arrays = [union.add(column, i) for union, column in zip(self._features, chunk.columns, strict=True)]
        if chunk.matrix is not None:
            arrays = [chunk.matrix]
        for role, column in zip(ROLES, (chunk.target, chunk.weight, chunk.offset), strict=True):
            if column is None or not chunk.n_rows:
                continue
            if role == "target":
                column = self._code_target(column, i)
            if private and self._role_spool is not None:
                self._role_spool.put(role, i, column)
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
        """Forget what partitions with other numbers said of target, weight and offset."""
        for parts in self._parts.values():
            for i in set(parts) - numbers:
                del parts[i]
        if self._role_spool is not None:
            self._role_spool.keep(numbers)

    def kinds(self) -> tuple[tuple[bool, int] | None, ...]:
        """Per feature whether it is categorical, and the partition that says so; None where all values are missing."""
        return tuple(union.seen for union in self._features)

    def levels(self) -> tuple[tuple[Level, ...], ...]:
        """The levels met, per feature in the order of their provisional codes."""
        return tuple(union.dictionary.levels() for union in self._features)

    def counted_levels(self) -> tuple[tuple[Level, ...], ...]:
        """The same without those that only rows of weight zero have."""
        return tuple(union.dictionary.counted() for union in self._features)

    def silence_levels(self, pieces: dict[int, SpooledChunk], weight: np.ndarray | None) -> None:
        """Forget the levels that only rows of weight zero have, as `read_partition` does where it knows the weights.

        pieces : by partition, in order; weight : of all their rows.
        """
        if not self._weighed_late or weight is None or weight.all() or self._plan.closed:
            return
        used = [np.zeros(len(union.dictionary), bool) for union in self._features]
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
        for union, of_feature in zip(self._features, used, strict=True):
            union.dictionary.silence(np.flatnonzero(~of_feature).tolist())

    def finish_features(self) -> tuple[tuple[Feature, ...], list[np.ndarray | None]]:
        """The features, and per feature how provisional codes become final ones (None: they are final)."""
        if self._plan.known is not None and self._plan.closed:
            return self._plan.known, [None] * len(self._plan.known)
        features: list[Feature] = []
        translations: list[np.ndarray | None] = []
        for rule, union in zip(self._plan.rules, self._features, strict=True):
            if not (rule.categorical or union.dictionary.counted()):
                features.append(Feature(rule.name))
                translations.append(None)
                continue
            levels, final = union.dictionary.finish()
            features.append(Feature(rule.name, levels))
            translations.append(None if np.array_equal(final, np.arange(len(final))) else final)
        return tuple(features), translations

    def attach(self, role: str, i: int, values: Any, n_rows: int | None = None) -> None:
        """Take in target, weight or offset where they did not come with partition `i`."""
        column = role_column(values, role, None, n_rows)
        self._parts[role][i] = self._code_target(column, i) if role == "target" else column
        self._weighed_late = self._weighed_late or role == "sample_weight"

    def finish_spooled(self, rows: MetadataRows) -> tuple[list[DataIssue], float]:
        """What there is to complain about in target, weight and offset where they wait in files, and the largest weight."""
        assert self._role_spool is not None
        self._role_spool.finish(self._target.dictionary)
        return self._role_spool.check(self._plan, rows)

    def finish_roles(self, whole: dict[str, Any], rows: MetadataRows) -> RowMetadata:
        """Target, weight and offset of all rows, with what is to be complained about.

        Parameters
        ----------
        whole : dict
            By role, the values of all rows where they did not come with the partitions.
        rows : Rows
        """
        plan, parts = self._plan, self._parts
        for role, values in whole.items():
            self.attach(role, 0, values, rows.n_rows)
        target, dtype, is_bool = None, None, False
        complaints: list[DataIssue] = []
        if parts["target"]:
            target, dtype, is_bool = join_target(parts["target"], self._target.dictionary)
            complaints += check_target(target, dtype, label("target", plan.target), rows)
        weight = join_floats(parts["sample_weight"]) if parts["sample_weight"] else None
        if weight is not None:
            complaints += check_weight(weight, label("sample_weight", plan.weight), rows)
        offset = join_floats(parts["offset"]) if parts["offset"] else None
        if offset is not None:
            complaints += check_offset(offset, label("offset", plan.offset), rows)
        return RowMetadata(target, dtype, is_bool, weight, offset, tuple(complaints))
