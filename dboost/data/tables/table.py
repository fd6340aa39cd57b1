"""Training data of any kind as chunks with consistent columns.

`open_table` reads every partition once. Partitions arrive in any order from several threads. The thread that computes a
partition has the `Reader` convert it to a chunk, translate its categories to provisional codes of the whole table (see
`data/columns/chunk.py`), and put its arrays into a spool, in memory or in a file (see `files.spool`). After the last partition
it is known whether each column is categorical, what the sorted categories are, and the target of all rows. The roles stay in
memory; the columns of a `Table` are read back chunk by chunk.

Two partitions are consistent in a column if both contain numbers or both contain categories; otherwise the reader raises an
error at once. A column without any value is consistent with both, because its dtype is arbitrary (an empty text column of a CSV
block is read as floats).
"""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dboost.data.columns.binning import Binning
from dboost.data.columns.chunk import (
    BinnedPartition,
    CategoryIndex,
    Chunk,
    DecodedColumns,
    MatrixColumns,
)
from dboost.data.columns.column import CategoryColumn, Column, apply, without_unused
from dboost.data.columns.labels import with_named_targets
from dboost.data.columns.roles import NO_ROLES, ROLES, RowRoles, joined
from dboost.data.columns.sparse import SparseColumn, check_codes, has_sparse, packed, unpacked
from dboost.data.kinds.partition import (
    ReadPlan,
    as_frame,
    binned_plan,
    check_columns,
    fingerprint,
    is_lazy,
    is_path,
    is_source,
    is_stream,
    joined_fingerprint,
    make_read_plan,
    read_partition,
    read_slices,
    role_column,
    slice_rows,
    used_columns,
)
from dboost.data.tables.row_metadata import (
    OF_POSITIVE_WEIGHT,
    DataIssue,
    MetadataRows,
    RowMetadata,
    RowMetadataSpool,
    RowPlace,
    check_exact,
    check_max_weight,
    issues_of,
    join_parts,
    join_target,
    raise_for_issues,
)
from dboost.errors import ColumnKindsError, DataError, DBoostError, InputTypeError, ParameterError, warn
from dboost.files.spool import Spool, remove_stale
from dboost.schema import TEXT, Feature, Level, kinds_of

if TYPE_CHECKING:
    from dboost.data.sources import Parts, Source, Stream
    from dboost.data.sources.row_filter import RowFilter


@dataclass(frozen=True, eq=False)
class ChunkSlice:
    """How some rows of a partition are stored in the spool."""

    n_rows: int
    #: Whether the columns are stored as one matrix.
    is_matrix: bool
    #: For each feature, whether its array contains provisional codes.
    is_code: tuple[bool, ...]
    #: Of sparse columns, see `data.columns.sparse.packed`.
    fills: tuple[Any, ...] = ()
    #: Checksum of the values as they were read, if the reader computes it (see `data.kinds.partition.fingerprint`), otherwise
    #: 0.
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
        return joined_fingerprint([part.fingerprint for part in self.slices])


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
        return has_any and bool(self.categories.used())

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


def disagree(name: str, one: tuple[bool, int], other: tuple[bool, int]) -> DataError:
    """Return the error for a column that is categorical in one partition only. one, other : (categorical, partition number)."""
    (_, numbers), (_, text) = sorted((one, other))
    if numbers == text:
        return ColumnKindsError(f"column {name!r} holds numbers in some rows of partition {numbers}, but text in others")
    return ColumnKindsError(f"column {name!r} holds numbers in partition {numbers}, but text or categories in partition {text}")


def mixes_kinds(features: Sequence[Feature]) -> bool:
    """Return whether a feature has categories that are text and others that are not."""
    return any(len({isinstance(level, str) for level in one.categories}) == 2 for one in features if one.categories)


def _with_own_categories(codes: np.ndarray, unifier: ColumnUnifier) -> CategoryColumn:
    """Return provisional codes as a column with only the categories that occur in it."""
    return without_unused(CategoryColumn(codes, unifier.categories.categories()))


def _packed(columns: list[Any], piece: ChunkSlice) -> tuple[list[np.ndarray], ChunkSlice]:
    """Return the arrays of a slice as they are stored."""
    if not has_sparse(tuple(columns)):
        return columns, piece
    arrays, fills = packed(columns)
    return arrays, replace(piece, fills=fills)


def _unpacked(arrays: tuple[np.ndarray, ...], piece: ChunkSlice) -> tuple[np.ndarray, ...]:
    """Return the columns of a slice, or its matrix, as it was before it was stored."""
    return unpacked(arrays, piece.fills, piece.n_rows) if piece.fills else arrays


def _all_missing(values: np.ndarray | SparseColumn) -> bool:
    if isinstance(values, SparseColumn):
        return values.is_all_missing
    if not len(values):
        return True
    return values.dtype.kind == "f" and bool(np.isnan(values[0])) and bool(np.isnan(values).all())


class LimitCheck(Protocol):
    """The check of a memory limit, see `dboost.session.memory`: its methods raise a ParameterError if it is too small."""

    def check_width(self, n_features: int) -> None:
        """Check the number of features, before rows are read."""

    def check_rows(self, n_values: np.ndarray, n_rows: int) -> None:
        """Check the numbers of values of the features (int64[n_features]) in the first slice of rows."""


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

    def take_partition(self, i: int, data: Any, vectors: Mapping[str, Any], is_persisted: bool = False) -> SpooledChunk:
        """Read a partition. Thread-safe.

        vectors : roles that are not columns of it, by name; is_persisted : whether the partition stays in memory anyway. Views
        of it then need no allowance of the spool.
        """
        slices = read_slices(data, self._plan, vectors, self._most_rows)
        found: list[ChunkSlice] = []
        while True:
            try:
                chunk = next(slices, None)
                if chunk is None:
                    return SpooledChunk(tuple(found))
                arrays, one = self._translate(i, chunk, private=True)
            except ColumnKindsError:  # it names the partitions
                raise
            except DBoostError as error:
                if not self._in_partitions:
                    raise
                raise type(error)(f"partition {i}: {error}") from None
            del chunk
            self._check_limit(arrays, one)
            arrays, one = _packed(arrays, one)
            if is_persisted and isinstance(data, np.ndarray) and all(np.may_share_memory(one, data) for one in arrays):
                self.spool.hold(i, arrays, len(found))
            else:
                self.spool.put(i, arrays, len(found))
            del arrays
            found.append(one)

    def _check_limit(self, arrays: list[np.ndarray], one: ChunkSlice) -> None:
        if self._limit is not None and one.n_rows:
            limit, self._limit = self._limit, None
            columns = arrays[0].T if one.is_matrix else arrays
            limit.check_rows(np.array([_n_values(column[:_CHECKED_ROWS]) for column in columns], np.int64), one.n_rows)

    @property
    def _most_rows(self) -> int | None:
        return slice_rows(self.spool.most_bytes, len(self._features))

    def take_slice(self, i: int, chunk: Chunk, number: int) -> ChunkSlice:
        """Store a slice of a partition that another reader has read, see `chunk`. Slices arrive in order. Thread-safe."""
        if chunk.matrix is not None:
            chunk = replace(chunk, columns=MatrixColumns(chunk.matrix))
        arrays, one = self._translate(i, chunk, private=True)
        arrays, one = _packed(arrays, one)
        if number == 0:
            self.spool.drop(i)  # of an interrupted attempt
        self.spool.put(i, arrays, number)
        return one

    def chunk(self, i: int, piece: ChunkSlice, number: int) -> Chunk:
        """Return a slice of a partition as it was read, with its own categories, to be sent to another worker.

        A matrix is not accompanied by columns. The first slice contains the roles of the whole partition.
        """
        arrays = _unpacked(self.spool.get(i, number), piece)
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

    def take_whole(self, data: Any) -> SpooledChunk:
        """Read a table in memory without unnecessary copies."""
        arrays, one = self._translate(0, read_partition(data, self._plan), private=False)
        self.spool.hold(0, arrays)
        return SpooledChunk((one,))

    def _translate(self, i: int, chunk: Chunk, private: bool) -> tuple[list[np.ndarray], ChunkSlice]:
        found = chunk.fingerprint
        if found is None:
            found = fingerprint(chunk) if self._fingerprints else 0
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
        return arrays, ChunkSlice(chunk.n_rows, chunk.matrix is not None, is_code, fingerprint=found)

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
        n_others, other = self._target_columns
        if n_others != n_columns:
            raise DataError(f"the target has {n_columns} columns in partition {i}, but {n_others} in partition {other}")

    def keep_only(self, numbers: set[int]) -> None:
        """Drop the roles of partitions with other numbers."""
        for parts in self._parts.values():
            for i in set(parts) - numbers:
                del parts[i]
        if self.metadata_spool is not None:
            self.metadata_spool.keep_only(numbers)

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
                arrays = _unpacked(self.spool.get(i, number), one)
                for array, is_code, of_feature in zip(arrays, one.is_code, used, strict=True):
                    if is_code:
                        of_feature[array[counts & (array >= 0)]] = True
        for unifier, of_feature in zip(self._features, used, strict=True):
            unifier.categories.drop(np.flatnonzero(~of_feature).tolist())

    def finish_features(self) -> tuple[tuple[Feature, ...], list[np.ndarray | None]]:
        """Return the features, and for each the map from provisional to final codes (None: they are equal)."""
        if self._plan.known is not None and self._plan.closed:
            return self._plan.known, [None] * len(self._plan.known)
        specs = self._plan.specs
        finished = [
            one.categories.finish() if spec.categorical or one.is_categorical else (None, None)
            for spec, one in zip(specs, self._features, strict=True)
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

    def finish_spooled(self, rows: MetadataRows) -> tuple[list[DataIssue], float]:
        """Return the issues of the roles in files, and the largest weight."""
        assert self.metadata_spool is not None
        self.metadata_spool.finish(self._target_categories)
        return self.metadata_spool.check(self._plan, rows)

    def finish_roles(self, whole: dict[str, Any], rows: MetadataRows) -> RowMetadata:
        """Return the roles of all rows, and their issues.

        whole : by role, values of all rows that did not arrive with the partitions.
        """
        plan, parts = self._plan, self._parts
        for role, values in whole.items():
            self.attach(role, 0, values, rows.n_rows)
        dtype, is_bool = None, False
        issues: list[DataIssue] = []
        found: dict[str, Column] = {}
        for role, of_role in parts.items():
            if not of_role:
                continue
            what, inexact = plan.label(role), list[DataIssue]()
            if ROLES[role].kind == "any":
                own = {i: rows.of_partition(i) if len(of_role) > 1 else rows for i in sorted(of_role)}
                inexact = [issue for i, here in own.items() for issue in check_exact(of_role[i], role, what, here)]
            if role == "target":
                found[role], dtype, is_bool = join_target(of_role, self._target_categories)
            else:
                found[role] = join_parts(of_role)
            issues += issues_of(role, found[role], what, rows, plan.labels(role)) + inexact
        return RowMetadata(RowRoles.of(found), dtype, is_bool, tuple(issues))


@dataclass(frozen=True)
class ReadOptions:
    """How `open_table` uses threads and memory; only the first applies to data other than Dask collections and paths."""

    #: Threads that compute Dask partitions; None for Dask's default.
    n_threads: int | None = None
    #: Chunks beyond this total are kept in temporary files.
    retain_bytes: int = 64 * 2**20
    #: Partitions whose columns may be larger are converted in slices of at most this size.
    most_bytes: int | None = None
    #: Keep the roles of partitions in files too; then `Table.roles` returns them chunk by chunk, and `all_roles` are None.
    spool_roles: bool = False
    #: Refuses tables that a memory limit is too small for.
    limit: LimitCheck | None = None
    #: Receives what has been read, of how much, and the unit.
    count: Callable[[int, int, str], None] | None = None


_DEFAULTS = ReadOptions()


def open_table(
    data: Any,
    target: Any = None,
    *,
    features: Sequence[str] | None = None,
    categorical_features: Any = "from_dtype",
    like: tuple[Feature, ...] | None = None,
    extend_categories: bool = False,
    require_target: bool = True,
    row_filter: RowFilter | None = None,
    options: ReadOptions = _DEFAULTS,
    **roles: Any,
) -> Table:
    """Read a table of any kind, once.

    Parameters
    ----------
    data : dask DataFrame or Array, dataframe of any library, pyarrow Table, array (n, F), list of rows, or path
        A path is a file, folder, glob or URL of Parquet or CSV, or a list of files.
    target, **roles : str, or one value per row
        The target and the other `ROLES`, by name. A column of `data`, which is then not a feature; or an array, Series or list,
        also of shape (n, 1). For a Dask collection also a Dask collection with aligned partitions. Of a role that may have
        several columns also a list of names, or values of shape (n, n_columns).
    features : sequence of str, optional
        The columns to use, in that order. Default: all remaining columns.
    categorical_features : "from_dtype", None, mask, indices or names
        The categorical columns; default "from_dtype": text, categoricals and dictionaries.
    like : tuple of Feature, optional
        Features of an existing model or table. Columns are selected by name (for arrays by position), categories get their
        codes, and unknown categories are missing.
    extend_categories : bool
        With `like`: append unknown categories to the known ones; default False.
    require_target : bool
        Whether a missing target is an error; default True.
    row_filter : RowFilter, optional
        Leaves out rows. The target and the other roles must be columns of `data` then.
    options : ReadOptions
        Threads and memory.

    Returns
    -------
    Table

    Raises
    ------
    DataError
        For missing columns, invalid targets or weights, unreadable types, or no rows. The message names the column, and the
        partition or rows.
    ParameterError
        If `features` or `categorical_features` do not match the table.
    InputTypeError
        If the type of `data` or `target` is not supported.
    """
    given = given_roles(with_named_targets(target, data), roles)
    if target is None and require_target:
        raise DataError("training requires y to be passed, but the target y is None")
    remove_stale()
    if hasattr(features, "__next__"):  # an iterator
        features = list(features or ())
    path = data if is_path(data) else None

    def read(data: Any, source: Parts | Stream | None = None, sizes: Mapping[int, int] | None = None) -> Table:
        is_dask = is_lazy(data)
        in_partitions = is_dask or source is not None
        if is_stream(data):
            from dboost.data.sources import stream_of

            source = stream_of(data, options.most_bytes, row_filter)
        elif row_filter is not None and not in_partitions:
            data = row_filter.rows_of(data)
        if is_dask:
            from dboost.data.tables import dask_collections

            names, named = dask_collections.layout(data)
        elif source is not None:
            names, named = source.names, True
        else:
            frame = as_frame(data)
            names, named = frame.names, frame.named
        plan = make_read_plan(
            names,
            named,
            roles=given,
            features=features,
            categorical_features=categorical_features,
            like=like,
            extend_categories=extend_categories,
        )
        if options.limit is not None:
            options.limit.check_width(len(plan.specs))
        elif not in_partitions and source is None and frame.is_sparse:
            check_codes(frame.n_rows, len(plan.specs))
        separate = separate_roles(plan, given)
        if row_filter is not None:
            check_no_values(separate)
            if is_dask and path is None:
                data = dask_collections.filtered(data, row_filter, plan.needed)
        spool = Spool(options.retain_bytes, options.most_bytes)
        spools_roles = options.spool_roles and (all(map(is_lazy, separate.values())) if is_dask else not separate)
        metadata_spool = RowMetadataSpool() if spools_roles and (is_dask or source is not None) else None
        try:
            reader = Reader(plan, spool, metadata_spool, limit=options.limit, in_partitions=in_partitions)
            if is_dask:
                aligned = {role: separate.pop(role) for role in ROLES if is_lazy(separate.get(role))}
                pieces = _read_partitions(data, aligned, plan, _counting(reader, data, sizes, options), options.n_threads)
            else:
                separate = {role: _compute(v) if is_lazy(v) else v for role, v in separate.items()}
                pieces = [reader.take_whole(frame)] if source is None else _read_in_order(source, plan, reader, options.count)
            rows = MetadataRows(tuple(piece.n_rows for piece in pieces), in_partitions)
            if not rows.n_rows:
                where = f": all {len(pieces)} partitions are empty" if in_partitions else getattr(source, "hint", "")
                where = where if row_filter is None else f" for which filter {row_filter.predicate} is true"
                raise DataError(f"the data have no rows{where}")
            return _finished(reader, plan, rows, pieces, named=named, separate=separate)
        except BaseException:
            spool.close()
            if metadata_spool is not None:
                metadata_spool.close()
            raise

    def read_path() -> Table:
        from dboost.data.sources.files import reading
        from dboost.data.sources.paths import open_source, open_with_text

        how = path, like, options.most_bytes
        used = used_columns(features, like, given)

        def read_parts(source: Parts) -> Table:
            if options.most_bytes is None or any(map(is_lazy, given.values())):
                return read(source.lazy(), sizes=source.sizes)  # in several threads, or with the roles of the same partition
            return read(None, source)

        with reading(path):
            try:
                table = read_parts(open_source(*how, used, row_filter))
            except ColumnKindsError:
                again = open_with_text(*how, options.n_threads, used, row_filter)
                if again is None:
                    raise
                return read_parts(again)
            if like is None and mixes_kinds(table.features):
                again = open_with_text(*how, options.n_threads, used, row_filter)
                if again is not None:
                    table.close()
                    return read_parts(again)
            return table

    table = read(data) if path is None else read_path()
    if like is None:
        warn_of_text(table.features, table.named, table.category_kinds)
    return table


@dataclass(frozen=True, eq=False)
class GivenTable:
    """A table as a call names it, with its roles, before it is read.

    It is read in this process (`open`), or its fields are arguments of the tasks by which workers read it.
    """

    data: Any
    roles: Mapping[str, Any]  # as the user gave them, by the names of `ROLES`
    #: Keywords of `open_table` that choose the features: `features` and `categorical_features`.
    shaping: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        target = with_named_targets(self.roles["target"], self.data)
        object.__setattr__(self, "roles", {**self.roles, "target": target})
        shape: tuple[Any, ...] = getattr(target, "shape", ())
        if isinstance(self.data, str) and len(shape) == 2 and shape[1] > 1:
            raise InputTypeError(
                f"the data come first and the target second: (data, target); the target is a table, data={self.data!r}"
            )

    @property
    def reading(self) -> dict[str, Any]:
        """The keywords of `open_table` that describe the table."""
        return {**self.roles, **self.shaping}

    @property
    def is_source(self) -> bool:
        """Whether rows are still to be read, by a cluster if there is one."""
        return is_source(self.data)

    def open(self, options: ReadOptions, **like: Any) -> Table:
        """Read the table in this process; like : of `open_table`, as is ``extend_categories``."""
        return open_table(self.data, **self.reading, **like, options=options)


def warn_of_text(features: Sequence[Feature], named: bool, category_kinds: Sequence[Mapping[str, int]] = ()) -> None:
    """Warn of features of text that look like numbers or dates, when a table without a model has been read; and of features
    with categories that are numbers and others that are the same numbers as text.

    category_kinds : see `Reader.category_kinds`; empty if the rows are in no partitions.
    """
    if any(feature.is_categorical for feature in features):
        from dboost.data.columns.numbers_as_text import warn_of_numbers_as_text

        warn_of_numbers_as_text(features, named)
    for feature, first in zip(features, category_kinds or ({},) * len(features), strict=True):
        twins = _twins(feature.categories or ())
        if twins is not None:
            (kind,) = kinds_of(twins[:1])
            apart = kind in first and TEXT in first and first[kind] != first[TEXT]
            where = f" ({kind} in partition {first[kind]}, text in partition {first[TEXT]})" if apart else ""
            warn(
                f"column {feature.name!r} has both {kind} and text as categories{where}, and {twins[0]!r} and {twins[1]!r} are "
                f"different ones: make all of them text, or all of them {kind}"
            )


def _twins(categories: Sequence[Level]) -> tuple[Level, str] | None:
    """Return the first category that is a number and has another one with its text, and that text; None without one."""
    text = {level for level in categories if isinstance(level, str)}
    return next(((level, str(level)) for level in categories if not isinstance(level, str) and str(level) in text), None)


def _finished(
    reader: Reader,
    plan: ReadPlan,
    rows: MetadataRows,
    pieces: list[SpooledChunk],
    *,
    named: bool,
    separate: dict[str, Any] | None = None,
) -> Table:
    """Check the roles when all partitions are read, and return the table. separate : see `finish_roles`."""
    metadata_spool = reader.metadata_spool
    if metadata_spool is not None:
        issues, max_weight = reader.finish_spooled(rows)
        found = RowMetadata(RowRoles(), metadata_spool.target_dtype, metadata_spool.target_is_bool, tuple(issues))
    else:
        found = reader.finish_roles(separate or {}, rows)
        max_weight = 1.0 if found.roles.weight is None else float(found.roles.weight.max())
    raise_for_issues(found.issues)
    check_max_weight(max_weight, plan.label("sample_weight"))
    if metadata_spool is None:
        reader.drop_unweighted_categories(dict(enumerate(pieces)), found.roles.weight)
    features, translations = reader.finish_features()
    table = Table(features, named, rows, found, reader.spool, pieces, translations, metadata_spool, plan.binning)
    table.category_kinds = reader.category_kinds()
    return table


def open_binned(
    partitions: Iterable[BinnedPartition], binning: Binning, named: bool, options: ReadOptions | None = None
) -> Table:
    """Return binned partitions as a table.

    named : whether the features' names are the user's; options : memory, by default without a limit: arrays are not copied.
    """
    plan = binned_plan(binning)
    spool = Spool(sys.maxsize) if options is None else Spool(options.retain_bytes, options.most_bytes)
    metadata_spool = RowMetadataSpool() if options is not None and options.spool_roles else None
    try:
        reader = Reader(plan, spool, metadata_spool)
        pieces, those = [], ""
        for i, partition in enumerate(partitions):
            pieces.append(reader.take_partition(i, partition, partition.given_roles))
            those = those if partition.roles.weight is None else OF_POSITIVE_WEIGHT
        # Their partitions are not those of the user's table.
        rows = MetadataRows(tuple(piece.n_rows for piece in pieces), False, those=those)
        return _finished(reader, plan, rows, pieces, named=named)
    except BaseException:
        spool.close()
        if metadata_spool is not None:
            metadata_spool.close()
        raise


def given_roles(target: Any, others: Mapping[str, Any]) -> dict[str, Any]:
    """Return the roles that the user gave, by name, in the order of `ROLES`."""
    given = {"target": target, **others}
    unknown = given.keys() - ROLES.keys()
    if unknown:
        raise TypeError(f"unexpected keyword argument {min(unknown)!r}")
    return {role: given[role] for role in ROLES if given.get(role) is not None}


def check_no_values(separate: Mapping[str, Any]) -> None:
    """Raise a ParameterError if a role is given as values, which cannot be filtered. separate : see `separate_roles`."""
    for role in separate:
        raise ParameterError(f"{role} must be the name of a column with filter, which selects rows of the data only")


def separate_roles(plan: ReadPlan, given: dict[str, Any]) -> dict[str, Any]:
    """Return the roles that are not columns of the table, by name."""
    return {role: value for role, value in given.items() if role not in plan.roles}


def _compute(collection: Any) -> Any:
    from dboost.data.tables import dask_collections

    return dask_collections.compute(collection)


def _counting(
    reader: Reader, data: Any, sizes: Mapping[int, int] | None, options: ReadOptions
) -> Callable[[int, Any, dict[str, Any]], SpooledChunk]:
    """Return the function that takes a partition of a Dask collection, and shows how much has been read."""
    from dboost.data.sources import ReadCount
    from dboost.data.tables import dask_collections

    count = ReadCount(options.count, dask_collections.count_partitions(data), sizes)

    def take(i: int, partition: Any, roles: dict[str, Any]) -> SpooledChunk:
        found = reader.take_partition(i, partition, roles)
        count.add(i)
        return found

    return take


def _read_partitions(
    data: Any,
    aligned: dict[str, Any],
    plan: ReadPlan,
    take: Callable[[int, Any, dict[str, Any]], SpooledChunk],
    n_threads: int | None,
) -> list[SpooledChunk]:
    """Read a Dask collection, with the aligned Dask collections of roles."""
    from dboost.data.tables import dask_collections

    if not plan.named:
        return dask_collections.consume(dask_collections.whole_rows(data), aligned, take, n_threads)
    if plan.all_names is not None:
        return dask_collections.consume(data, aligned, take, n_threads)
    try:
        return dask_collections.consume(dask_collections.select(data, plan.needed), aligned, take, n_threads)
    except KeyError:
        # Dask's error does not name the partition: check the columns of each.
        dask_collections.consume(data, {}, lambda i, partition, _: check_columns(i, partition, plan), n_threads)
        raise


def _read_in_order(
    source: Source, plan: ReadPlan, reader: Reader, show: Callable[[int, int, str], None] | None
) -> list[SpooledChunk]:
    """Read the partitions of a source one after the other. show : see `ReadOptions.count`."""
    from dboost.data.sources import Parts, ReadCount

    pieces: list[SpooledChunk] = []
    count = ReadCount(show, len(source.parts), source.sizes) if isinstance(source, Parts) else None
    partitions = source.partitions(plan.needed)
    try:
        for partition in partitions:
            pieces.append(reader.take_partition(len(pieces), partition, {}))
            del partition  # before the next one is read
            if count is not None:
                count.add(len(pieces) - 1)
    except KeyError:
        # The error of pandas does not name the partition.
        if isinstance(source, Parts):
            check_columns(len(pieces), source.read(source.parts[len(pieces)]), plan)
        raise
    except Exception as error:
        if isinstance(source, Parts) and not isinstance(error, DBoostError):
            error.add_note(f"while partition {len(pieces)} was read")
        raise
    return pieces


class Table:
    """Rows as chunks with common categories, as returned by `open_table`."""

    def __init__(
        self,
        features: tuple[Feature, ...],
        named: bool,
        rows: MetadataRows,
        metadata: RowMetadata,
        spool: Spool,
        pieces: list[SpooledChunk],
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
        self.numbers = tuple(range(self.n_chunks)) if rows.numbers is None else rows.numbers
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
        self._pieces = pieces
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
        (part,) = self._pieces[i].slices
        return _unpacked(self._spool.get(self.numbers[i]), part)

    def slices(
        self, i: int, rows: np.ndarray | None = None, columns: Sequence[int] | None = None
    ) -> Iterator[tuple[int, np.ndarray | None, Chunk]]:
        """Iterate over the stored slices of partition `i`, without roles; one is in memory at a time.

        Yields the position of the slice in the partition, the selected rows relative to the slice (None for all), and the
        slice. rows : ascending positions in the partition; slices without any of them are not read. columns : numbers of the
        features that are used, the others are undefined; default all.
        """
        first = 0
        for k, part in enumerate(self._pieces[i].slices):
            some = None
            if rows is not None:
                low, high = np.searchsorted(rows, (first, first + part.n_rows))
                some = rows[low:high] - first
            if some is None or len(some):
                yield first, some, self._slice(i, k, part, columns)
            first += part.n_rows

    def _slice(self, i: int, k: int, part: ChunkSlice, columns: Sequence[int] | None) -> Chunk:
        is_code = part.is_code
        # A matrix is one array, and sparse columns are several each.
        some = None if part.is_matrix or part.fills else columns
        arrays = _unpacked(self._spool.get(self.numbers[i], k, some), part)
        if self._binning is not None:
            return Chunk(part.n_rows, DecodedColumns(arrays, self._binning))
        stored: Sequence[Any] = MatrixColumns(arrays[0]) if part.is_matrix else arrays
        if part.is_matrix and not any(feature.is_categorical for feature in self.features):
            return Chunk(part.n_rows, stored, matrix=arrays[0])
        return Chunk(part.n_rows, tuple(map(_final, self.features, stored, is_code, self._translations)))

    def roles(self, i: int) -> RowRoles:
        """Return the roles of partition `i`."""
        if self._metadata_spool is not None:
            return self._metadata_spool.get(self.numbers[i])
        return self.all_roles.rows(slice(self._starts[i], self._starts[i + 1]))

    def gather_roles(self) -> None:
        """Load the roles of all rows into memory if they are in files."""
        if self._metadata_spool is None:
            return
        self.keeps_roles_apart = False
        filled = [self.numbers[i] for i, length in enumerate(self.lengths) if length]
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
            self._metadata_spool.put("sample_weight", self.numbers[i], weights(i))

    def weighing(self, weight: np.ndarray | None) -> Table:
        """Return a table of these rows with other weights, valid while this table is open. Requires metadata in memory.

        weight : float64[n_rows].
        """
        assert self._metadata_spool is None
        found = copy.copy(self)
        found.all_roles = replace(self.all_roles, weight=weight)
        return found

    def partition_name(self, i: int) -> str:
        """Return the origin of chunk `i`, for messages."""
        return (
            f"partition {self.numbers[i]}"
            if self._rows.in_partitions
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


def kept_rows(weight: np.ndarray | None) -> np.ndarray | None:
    """Return the numbers of the rows of positive weight (int64), or None when these are all rows."""
    if weight is None or (weight > 0).all():
        return None
    return np.flatnonzero(weight > 0)


def values_of(chunk: Chunk, rows: np.ndarray) -> np.ndarray:
    """Return rows of a chunk as numbers: float64[n, n_features]."""
    if chunk.matrix is not None:
        return chunk.matrix[rows].astype(np.float64)
    values = np.empty((len(rows), len(chunk.columns)))
    for j, column in enumerate(chunk.columns):
        if isinstance(column, CategoryColumn):
            codes = column.codes[rows]
            values[:, j] = np.where(codes < 0, np.nan, codes)
        else:
            values[:, j] = column[rows]
    return values


def values_in(table: Table, rows: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the number of each chunk that has some of the rows (int64, ascending), and their values."""
    start = 0
    for i, length in enumerate(table.lengths):
        low, high = np.searchsorted(rows, (start, start + length))
        if low < high:
            found = [values_of(chunk, some) for _, some, chunk in table.slices(i, rows[low:high] - start) if some is not None]
            yield i, np.concatenate(found)
        start += length


def _joined_columns(parts: list[Sequence[Column]]) -> Sequence[Column]:
    """Concatenate the columns of slices."""
    if isinstance(parts[0], DecodedColumns):
        codes = [part.codes for part in parts if isinstance(part, DecodedColumns)]
        return DecodedColumns([np.concatenate(of_feature) for of_feature in zip(*codes, strict=True)], parts[0].binning)
    return tuple(joined(of_feature) for of_feature in zip(*parts, strict=True))


def _final(feature: Feature, array: np.ndarray, is_code: bool, translation: np.ndarray | None) -> Column:
    """Return a stored array as a column of the feature's kind; if the kinds differ, the array has missing values only."""
    if feature.categories is None:
        return np.full(len(array), np.nan, np.float32) if is_code else array
    if not is_code:
        return CategoryColumn(np.full(len(array), -1, np.int32), feature.categories)
    return CategoryColumn(array if translation is None else apply(translation, array), feature.categories)
