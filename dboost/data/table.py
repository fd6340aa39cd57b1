"""A table: everything the user hands in, as chunks that agree with each other.

`open_table` reads every partition once. A partition becomes a chunk in the thread that computed it; its levels are
translated to provisional codes of the whole table at once (see `levels.py`), and its arrays are kept in memory or in
a file (see `spool.py`). When the last one is done, the table knows what no single partition could: whether a column
is categorical, the sorted levels, the target of all rows. Target, weight and offset stay in memory, the columns come
back chunk by chunk.

Two partitions agree about a column when both hold numbers or both hold categories; one that holds nothing but missing
values agrees with both, because its type says little (an all-empty text column of a CSV block is read as floats).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from dboost.data.categories import apply
from dboost.data.chunk import CategoryColumn, Chunk, Column
from dboost.data.frame import as_frame, is_lazy, is_path
from dboost.data.partition import ROLES, check_columns
from dboost.data.read_plan import ReadPlan, make_read_plan
from dboost.data.reader import ChunkSlice, Reader, SpooledChunk
from dboost.data.row_metadata import MetadataRows, RowMetadata, RowMetadataSpool, check_max_weight, label, raise_for_issues
from dboost.errors import DataError
from dboost.schema import Feature
from dboost.storage.spool import Spool, remove_stale


def open_table(
    data: Any,
    target: Any = None,
    *,
    sample_weight: Any = None,
    offset: Any = None,
    features: Sequence[str] | None = None,
    categorical_features: Any = "from_dtype",
    like: tuple[Feature, ...] | None = None,
    extend_categories: bool = False,
    n_threads: int | None = None,
    retain_bytes: int = 64 * 2**20,
    most_bytes: int | None = None,
    spool_roles: bool = False,
    require_target: bool = True,
) -> Table:
    """Read a table of any kind, once.

    Parameters
    ----------
    data : dask DataFrame or Array, pandas or polars frame, pyarrow Table, array (n, F), list of rows, or path
        A path is a file, folder, glob or URL of Parquet or CSV, or a list of files.
    target, sample_weight, offset : str, or one value per row
        A column of `data`, which is then no feature; or an array, Series or list, also (n, 1). For a Dask collection
        also a Dask collection whose partitions align with it.
    features : sequence of str, optional
        The columns to use, in that order. Default: all that are left.
    categorical_features : "from_dtype", None, mask, indices or names
        Which columns are categories; by default those whose type says so (text, categoricals, dictionaries).
    like : tuple of Feature, optional
        Features of an existing model or table. Columns are picked by name (for arrays by position), levels get their
        codes, unknown levels are missing.
    extend_categories : bool
        With `like`: unknown levels are not missing but appended to the model's.
    n_threads : int, optional
        Threads that compute Dask partitions. Default: Dask's.
    retain_bytes : int
        Chunks of Dask collections beyond this total are kept in temporary files.
    most_bytes : int, optional
        Partitions of Dask collections whose columns may be larger are taken in slices that are not.
    spool_roles : bool
        Keep target, weight and offset that come with the partitions of Dask collections in files too. `roles` gives them
        back chunk by chunk; the table's attributes for all rows are None.
    require_target : bool
        False allows tables without a target.

    Returns
    -------
    Table

    Raises
    ------
    DataError
        Naming column and partition or rows: missing columns, bad targets or weights, unreadable types, no rows.
    ParameterError
        When `features` or `categorical_features` do not fit the table.
    InputTypeError
        When `data` or `target` is of no known kind.
    """
    if target is None and require_target:
        raise DataError("training requires y to be passed, but the target y is None")
    remove_stale()
    warm_start = data if is_path(data) else None
    if warm_start is not None:
        from dboost.data.paths import open_path

        data = open_path(warm_start, like, most_bytes)
    in_partitions = is_lazy(data)
    if in_partitions:
        from dboost.data import dask_collections as lazy

        names, named = lazy.layout(data)
    else:
        frame = as_frame(data)
        names, named = frame.names, frame.named
    given = dict(zip(ROLES, (target, sample_weight, offset), strict=True))
    plan = make_read_plan(
        names,
        named,
        roles=given,
        features=features,
        categorical_features=categorical_features,
        like=like,
        extend_categories=extend_categories,
    )
    separate = separate_roles(plan, given)
    spool = Spool(retain_bytes, most_bytes)
    apart = (
        RowMetadataSpool() if spool_roles and in_partitions and not any(not is_lazy(one) for one in separate.values()) else None
    )
    try:
        reader = Reader(plan, spool, apart)
        if in_partitions:
            aligned = {role: separate.pop(role) for role in ROLES if is_lazy(separate.get(role))}
            from dboost.data.paths import reading

            with reading(warm_start):
                pieces = _read_partitions(data, aligned, plan, reader, n_threads)
        else:
            separate = {role: _compute(v) if is_lazy(v) else v for role, v in separate.items()}
            pieces = [reader.take_whole(frame)]
        rows = MetadataRows(tuple(piece.n_rows for piece in pieces), in_partitions)
        if not rows.n_rows:
            where = f": all {len(pieces)} partitions are empty" if in_partitions else ""
            raise DataError(f"the data have no rows{where}")
        if apart is not None:
            complaints, max_weight = reader.finish_spooled(rows)
            raise_for_issues(complaints)
            check_max_weight(max_weight, label("sample_weight", plan.weight))
            none = RowMetadata(None, apart.target_dtype, apart.target_is_bool, None, None)
            features_, translations = reader.finish_features()
            return Table(features_, named, rows, none, spool, pieces, translations, apart)
        roles = reader.finish_roles(separate, rows)
        raise_for_issues(roles.complaints)
        if roles.weight is not None:
            check_max_weight(float(roles.weight.max()), label("sample_weight", plan.weight))
        reader.silence_levels(dict(enumerate(pieces)), roles.weight)
        features_, translations = reader.finish_features()
        return Table(features_, named, rows, roles, spool, pieces, translations)
    except BaseException:
        spool.close()
        if apart is not None:
            apart.close()
        raise


def separate_roles(plan: ReadPlan, given: dict[str, Any]) -> dict[str, Any]:
    """Target, weight and offset where they are given beside the table, by role."""
    in_table = dict(zip(ROLES, (plan.target, plan.weight, plan.offset), strict=True))
    return {role: value for role, value in given.items() if value is not None and in_table[role] is None}


def _compute(collection: Any) -> Any:
    from dboost.data import dask_collections as lazy

    return lazy.compute(collection)


def _read_partitions(
    data: Any, aligned: dict[str, Any], plan: ReadPlan, reader: Reader, n_threads: int | None
) -> list[SpooledChunk]:
    """Read a Dask collection, and those of target, weight and offset that are Dask collections too."""
    from dboost.data import dask_collections as lazy

    vectors = (aligned.get("target"), aligned.get("sample_weight"), aligned.get("offset"))
    if not plan.named:
        return lazy.consume(lazy.whole_rows(data), vectors, reader.take_partition, n_threads)
    if plan.all_names is not None:
        return lazy.consume(data, vectors, reader.take_partition, n_threads)
    try:
        return lazy.consume(lazy.select(data, plan.needed), vectors, reader.take_partition, n_threads)
    except KeyError:
        # Dask's own selection of columns failed, and does not say where: look again, this time for the culprit only.
        lazy.consume(data, (None, None, None), lambda i, pieces: check_columns(i, pieces[0], plan), n_threads)
        raise


class Table:
    """Rows as chunks, with levels that agree. Made by `open_table`.

    Attributes
    ----------
    features : tuple of Feature
    named : bool
        False when the data came as an array; the features are then called f0, f1, ….
    lengths : tuple of int
        Rows of each chunk (0 for empty partitions).
    target : float64[n_rows], CategoryColumn or None
        Text and categories as codes of sorted levels, everything else as floats.
    target_dtype : str or None
        NumPy dtype of the user's target; "object" for text.
    target_is_bool : bool
    weight, offset : float64[n_rows] or None
    """

    def __init__(
        self,
        features: tuple[Feature, ...],
        named: bool,
        rows: MetadataRows,
        roles: RowMetadata,
        spool: Spool,
        pieces: list[SpooledChunk],
        translations: list[np.ndarray | None],
        apart: RowMetadataSpool | None = None,
    ) -> None:
        self.features = features
        self.named = named
        self.lengths = rows.lengths
        self.target = roles.target
        self.target_dtype = roles.target_dtype
        self.target_is_bool = roles.target_is_bool
        self.weight = roles.weight
        self.offset = roles.offset
        self._rows = rows
        self._apart = apart
        self._spool = spool
        self._pieces = pieces
        self._translations = translations
        self._starts = (0, *accumulate(rows.lengths))

    @property
    def n_rows(self) -> int:
        return self._starts[-1]

    @property
    def keeps_roles_apart(self) -> bool:
        """Whether target, weight and offset are in files."""
        return self._apart is not None

    @property
    def n_chunks(self) -> int:
        return len(self.lengths)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Which partition each chunk was."""
        return tuple(range(self.n_chunks)) if self._rows.numbers is None else self._rows.numbers

    def chunk(self, i: int) -> Chunk:
        """The rows of partition `i`; codes are those of ``features[j].levels``. RowMetadata that are kept in files are not with
        it.

        Raises
        ------
        DBoostError
            When the table is closed, or its temporary file is gone.
        """
        parts = [part for _, _, part in self.slices(i)]
        whole = parts[0] if len(parts) == 1 else Chunk(self.lengths[i], tuple(map(_joined, *(p.columns for p in parts))))
        roles = (None, None, None) if self._apart is not None else self.roles(i)
        return Chunk(whole.n_rows, whole.columns, *roles, whole.matrix)

    def slices(self, i: int, rows: np.ndarray | None = None) -> Iterator[tuple[int, np.ndarray | None, Chunk]]:
        """Partition `i` in the slices that it is kept in, one after the other in memory; without target, weight and offset.

        Yields the first row of the slice, which of its rows are among `rows` (ascending, counted in the partition and in
        the slice; None for all) and the slice. Slices that have none of them are not read.
        """
        first = 0
        for k, part in enumerate(self._pieces[i].slices):
            some = None
            if rows is not None:
                low, high = np.searchsorted(rows, (first, first + part.n_rows))
                some = rows[low:high] - first
            if some is None or len(some):
                yield first, some, self._slice(i, k, part)
            first += part.n_rows

    def _slice(self, i: int, k: int, part: ChunkSlice) -> Chunk:
        is_code = part.is_code
        arrays = self._spool.get(self.numbers[i], k)
        matrix = arrays[0] if part.is_matrix else None
        if matrix is not None:
            arrays = tuple(matrix.T)
        columns = tuple(map(_final, self.features, arrays, is_code, self._translations))
        if any(feature.is_categorical for feature in self.features):
            matrix = None
        return Chunk(part.n_rows, columns, matrix=matrix)

    def roles(self, i: int) -> tuple[Column | None, np.ndarray | None, np.ndarray | None]:
        """Target, weight and offset of partition `i`."""
        if self._apart is not None:
            return self._apart.get(self.numbers[i])
        rows = slice(self._starts[i], self._starts[i + 1])
        target: Column | None = self.target
        if isinstance(target, CategoryColumn):
            target = CategoryColumn(target.codes[rows], target.levels)
        elif target is not None:
            target = target[rows]
        weight = None if self.weight is None else self.weight[rows]
        offset = None if self.offset is None else self.offset[rows]
        return target, weight, offset

    def gather_roles(self) -> None:
        """Bring target, weight and offset of all rows into memory, where they were in files."""
        if self._apart is None:
            return
        filled = [i for i, length in enumerate(self.lengths) if length]
        if not filled:
            self._apart = None
            return
        targets, weights, offsets = zip(*(self._apart.get(self.numbers[i]) for i in filled), strict=True)
        if isinstance(targets[0], CategoryColumn):
            self.target = CategoryColumn(np.concatenate([target.codes for target in targets]), targets[0].levels)
        else:
            self.target = None if targets[0] is None else np.concatenate(targets)
        self.weight = None if weights[0] is None else np.concatenate(weights)
        self.offset = None if offsets[0] is None else np.concatenate(offsets)
        self._apart.close()
        self._apart = None

    def reweigh(self, weights: Callable[[int], np.ndarray]) -> None:
        """Give all rows other weights. weights : tells those of a chunk by its number, float64[n]."""
        filled = [i for i, length in enumerate(self.lengths) if length]
        if self._apart is None:
            self.weight = np.concatenate([np.empty(0), *map(weights, filled)])
            return
        for i in filled:
            self._apart.put("sample_weight", self.numbers[i], weights(i))

    def weighing(self, weight: np.ndarray | None) -> Table:
        """The same rows with other weights, while this table is open and its roles are in memory. weight : float64[n_rows]."""
        assert self._apart is None
        found = copy.copy(self)
        found.weight = weight
        return found

    def partition_name(self, i: int) -> str:
        """Where chunk `i` came from, for messages."""
        return (
            f"partition {self.numbers[i]}"
            if self._rows.in_partitions
            else f"rows {self._starts[i]} to {self._starts[i + 1] - 1}"
        )

    def row_name(self, row: int) -> str:
        """Where a row of the table is, for messages."""
        return self._rows.name(row)

    def close(self) -> None:
        """Remove temporary files. Chunks cannot be read any more; target, weight and offset in memory stay."""
        self._spool.close()
        if self._apart is not None:
            self._apart.close()

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _joined(*parts: Column) -> Column:
    """A column from its slices."""
    first = parts[0]
    if isinstance(first, CategoryColumn):
        return CategoryColumn(np.concatenate([part.codes for part in parts if isinstance(part, CategoryColumn)]), first.levels)
    return np.concatenate([part for part in parts if not isinstance(part, CategoryColumn)])


def _final(feature: Feature, array: np.ndarray, is_code: bool, translation: np.ndarray | None) -> Column:
    """A stored array as the column it turned out to be; where the kinds differ, it held missing values only."""
    if feature.levels is None:
        return np.full(len(array), np.nan, np.float32) if is_code else array
    if not is_code:
        return CategoryColumn(np.full(len(array), -1, np.int32), feature.levels)
    return CategoryColumn(array if translation is None else apply(translation, array), feature.levels)
