"""Rows as chunks with consistent columns.

The roles stay in memory, or in files; the columns of a `Table` are read back chunk by chunk.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from dboost.data.columns.binning import Binning
from dboost.data.columns.chunk import Chunk, DecodedColumns, MatrixColumns, matrix_of
from dboost.data.columns.column import CategoryColumn, Column, apply
from dboost.data.columns.roles import NO_ROLES, RowRoles, joined, kept_rows
from dboost.data.tables.reader import StoredSlice, StoredSlices
from dboost.data.tables.row_metadata import MetadataRows, RowMetadata, RowMetadataSpool, RowPlace
from dboost.files.spool import Spool
from dboost.schema import Feature


class Table:
    """Rows as chunks with common categories, as returned by `open_table`."""

    def __init__(
        self,
        features: tuple[Feature, ...],
        named: bool,
        rows: MetadataRows,
        metadata: RowMetadata,
        spool: Spool,
        stored: list[StoredSlices],
        translations: list[np.ndarray | None],
        metadata_spool: RowMetadataSpool | None = None,
        binning: Binning | None = None,
    ) -> None:
        self.features = features
        #: The stored columns are codes of these bins; None: they are values.
        self._binning = binning
        #: Whether the data have column names; the features of arrays are called f0, f1, ….
        self.named = named
        #: Rows of each chunk, 0 for empty partitions.
        self.lengths = rows.lengths
        self.n_chunks = len(rows.lengths)
        self.n_rows = sum(rows.lengths)
        #: Partition number of each chunk.
        self.partition_ids = tuple(range(self.n_chunks)) if rows.partition_ids is None else rows.partition_ids
        #: Roles of all rows, None each if they are in files: the target as codes of sorted categories for text and categories,
        #: otherwise float64[n_rows].
        self.all_roles = metadata.roles
        #: NumPy dtype of the user's target; "object" for text.
        self.target_dtype = metadata.target_dtype
        self.target_is_bool = metadata.target_is_bool
        self._rows = rows
        self._metadata_spool = metadata_spool
        #: Whether the roles are in files.
        self.keeps_roles_apart = metadata_spool is not None
        self._spool = spool
        self._stored = stored
        self._translations = translations
        self._starts = (0, *accumulate(rows.lengths))
        #: See `Reader.category_kinds`; empty if another process has read the rows.
        self.category_kinds: Sequence[Mapping[str, int]] = ()

    @property
    def target(self) -> Column | None:
        """The target of all rows, see `all_roles`."""
        return self.all_roles.target

    @property
    def weight(self) -> np.ndarray | None:
        """The weights of all rows, see `all_roles`."""
        return self.all_roles.weight

    @property
    def offset(self) -> np.ndarray | None:
        """The offsets of all rows, see `all_roles`."""
        return self.all_roles.offset

    @property
    def is_binned(self) -> bool:
        """Whether the columns are bin codes, which are decoded when values are asked for."""
        return self._binning is not None

    @property
    def role_names(self) -> tuple[str, ...]:
        """Names of the roles that the rows have."""
        first = next((i for i, length in enumerate(self.lengths) if length), None)
        return () if first is None else tuple(self.roles(first).by_name())

    def n_kept(self, i: int) -> int:
        """Return the number of rows of positive weight of chunk `i`."""
        weight = self.roles(i).weight if self.lengths[i] else None
        return self.lengths[i] if weight is None else int(np.count_nonzero(weight > 0))

    def draw_ids(self, i: int, start: int) -> np.ndarray:
        """Return the numbers by which samples of rows are drawn: int64[n], of the rows of positive weight of partition `i`.

        These are the keys of the groups, if there are any, so that samples take whole groups; otherwise the rows' global ids.
        start : global id of the first of these rows.
        """
        roles = self.roles(i) if self.lengths[i] else NO_ROLES
        kept = kept_rows(roles.weight)
        if roles.group is not None:
            return roles.group if kept is None else roles.group[kept]
        return start + np.arange(self.lengths[i] if kept is None else len(kept))

    def drop_target(self) -> None:
        """Release the target, which has been encoded."""
        self.all_roles = replace(self.all_roles, target=None)

    def chunk(self, i: int) -> Chunk:
        """Return the rows of partition `i`, with codes of ``features[j].categories``, without metadata that are kept in files.

        Raises
        ------
        DBoostError
            If the table is closed, or its temporary file was removed.
        """
        parts = [part for _, _, part in self.slices(i)]
        whole = parts[0] if len(parts) == 1 else Chunk(self.lengths[i], _joined_columns([part.columns for part in parts]))
        roles = RowRoles() if self._metadata_spool is not None else self.roles(i)
        return Chunk(whole.n_rows, whole.columns, roles, whole.matrix)

    def codes(self, i: int) -> tuple[np.ndarray, ...]:
        """Return the codes of the features of partition `i`: uint8 or uint16 [n] each. Requires columns that are codes."""
        assert self._binning is not None
        if not self.lengths[i]:  # columns without values have no type
            return (np.empty(0, np.uint8),) * len(self.features)
        (part,) = self._stored[i]
        return part.unpacked(self._spool.get(self.partition_ids[i]))

    def slices(
        self, i: int, rows: np.ndarray | None = None, columns: Sequence[int] | None = None
    ) -> Iterator[tuple[int, np.ndarray | None, Chunk]]:
        """Iterate over the stored slices of partition `i`, without roles; one is in memory at a time.

        Yields the position of the slice in the partition, the selected rows relative to the slice (None for all), and the
        slice. rows : ascending positions in the partition; slices without any of them are not read. columns : numbers of the
        features that are used, the others are undefined; default all.
        """
        first = 0
        for k, part in enumerate(self._stored[i]):
            positions = None
            if rows is not None:
                low, high = np.searchsorted(rows, (first, first + part.n_rows))
                positions = rows[low:high] - first
            if positions is None or len(positions):
                yield first, positions, self._slice(i, k, part, columns)
            first += part.n_rows

    def _slice(self, i: int, k: int, part: StoredSlice, columns: Sequence[int] | None) -> Chunk:
        is_code = part.is_code
        # A matrix is one array, and sparse columns are several each.
        wanted = None if part.is_matrix or part.fills else columns
        arrays = part.unpacked(self._spool.get(self.partition_ids[i], k, wanted))
        if self._binning is not None:
            return Chunk(part.n_rows, DecodedColumns(arrays, self._binning))
        stored: Sequence[Any] = MatrixColumns(arrays[0]) if part.is_matrix else arrays
        if part.is_matrix and not any(feature.is_categorical for feature in self.features):
            return Chunk(part.n_rows, stored, matrix=arrays[0])
        return Chunk(part.n_rows, tuple(map(_final, self.features, stored, is_code, self._translations)))

    def roles(self, i: int) -> RowRoles:
        """Return the roles of partition `i`."""
        if self._metadata_spool is not None:
            return self._metadata_spool.get(self.partition_ids[i])
        return self.all_roles.rows(slice(self._starts[i], self._starts[i + 1]))

    def as_given(self, roles: RowRoles) -> RowRoles:
        """Return roles of some rows with a numeric target in the type of the user's values."""
        target = roles.target
        if target is None or isinstance(target, CategoryColumn):
            return roles
        return replace(roles, target=target.astype(self.target_dtype, copy=False))

    def given_roles(self, i: int) -> RowRoles:
        """Return the roles of partition `i`, see `as_given`."""
        return self.as_given(self.roles(i))

    def gather_roles(self) -> None:
        """Load the roles of all rows into memory if they are in files."""
        if self._metadata_spool is None:
            return
        self.keeps_roles_apart = False
        filled = [self.partition_ids[i] for i, length in enumerate(self.lengths) if length]
        self.all_roles = RowRoles.concatenated([self._metadata_spool.get(number) for number in filled])
        self._metadata_spool.close()
        self._metadata_spool = None

    def reweigh(self, weights: Callable[[int], np.ndarray]) -> None:
        """Replace the weights of all rows. weights : maps the position of a chunk to float64[n]."""
        filled = [i for i, length in enumerate(self.lengths) if length]
        if self._metadata_spool is None:
            weight = np.empty(self.n_rows)
            for i in filled:
                weight[self._starts[i] : self._starts[i + 1]] = weights(i)
            self.all_roles = replace(self.all_roles, weight=weight)
            return
        for i in filled:
            self._metadata_spool.put("sample_weight", self.partition_ids[i], weights(i))

    def weighing(self, weight: np.ndarray | None) -> Table:
        """Return a table of these rows with other weights, valid while this table is open. Requires metadata in memory.

        weight : float64[n_rows].
        """
        assert self._metadata_spool is None
        weighed = copy.copy(self)
        weighed.all_roles = replace(self.all_roles, weight=weight)
        return weighed

    @property
    def in_partitions(self) -> bool:
        """Whether the chunks are partitions of the user's data."""
        return self._rows.in_partitions

    def partition_name(self, i: int) -> str:
        """Return the origin of chunk `i`, for messages."""
        return (
            f"partition {self.partition_ids[i]}"
            if self.in_partitions
            else f"rows {self._starts[i]} to {self._starts[i + 1] - 1}"
        )

    def place(self, row: int) -> RowPlace:
        """Return the place of a row in the user's data."""
        return self._rows.place(row)

    def close(self) -> None:
        """Remove temporary files. Chunks cannot be read after that; roles in memory remain."""
        self._spool.close()
        if self._metadata_spool is not None:
            self._metadata_spool.close()

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def values_in(table: Table, rows: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the number of each chunk that has some of the rows (int64, ascending), and their values."""
    start = 0
    for i, length in enumerate(table.lengths):
        low, high = np.searchsorted(rows, (start, start + length))
        if low < high:
            blocks = [
                matrix_of(chunk, positions, np.float64)
                for _, positions, chunk in table.slices(i, rows[low:high] - start)
                if positions is not None
            ]
            yield i, np.concatenate(blocks)
        start += length


def _joined_columns(parts: list[Sequence[Column]]) -> Sequence[Column]:
    """Concatenate the columns of slices."""
    if isinstance(parts[0], DecodedColumns):
        codes = [part.codes for part in parts if isinstance(part, DecodedColumns)]
        return DecodedColumns([np.concatenate(pieces) for pieces in zip(*codes, strict=True)], parts[0].binning)
    return tuple(joined(pieces) for pieces in zip(*parts, strict=True))


def _final(feature: Feature, array: np.ndarray, is_code: bool, translation: np.ndarray | None) -> Column:
    """Return a stored array as a column of the feature's kind; if the kinds differ, the array has missing values only."""
    if feature.categories is None:
        return np.full(len(array), np.nan, np.float32) if is_code else array
    if not is_code:
        return CategoryColumn(np.full(len(array), -1, np.int32), feature.categories)
    return CategoryColumn(array if translation is None else apply(translation, array), feature.categories)
