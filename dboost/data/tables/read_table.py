"""Read a table of any kind in this process, once.

`read_table` reads a table as a call gave it; `open_table` is the same with the parts of such a table as keywords.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from dboost.data.columns.binning import Binning
from dboost.data.columns.chunk import BinnedPartition
from dboost.data.columns.read_plan import ReadPlan, binned_plan
from dboost.data.columns.roles import ROLES
from dboost.data.columns.sparse import check_codes
from dboost.data.kinds.partition import check_columns
from dboost.data.kinds.table_kinds import is_dask, is_path
from dboost.data.tables.reader import LimitCheck, Reader, StoredSlices, rows_in
from dboost.data.tables.reading import GivenTable, Reading, plan_reading, read_consistently
from dboost.data.tables.row_metadata import (
    OF_POSITIVE_WEIGHT,
    MetadataRows,
    RowMetadataSpool,
    check_max_weight,
    raise_for_issues,
)
from dboost.data.tables.table import Table
from dboost.errors import DataError, DBoostError
from dboost.files.spool import Spool, remove_stale
from dboost.schema import Feature

if TYPE_CHECKING:
    from dboost.data.sources.row_filter import RowFilter


@dataclass(frozen=True)
class ReadOptions:
    """How `read_table` uses threads and memory; only the first applies to data other than Dask collections and paths."""

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


def read_table(table: GivenTable, options: ReadOptions = _DEFAULTS, **model: Any) -> Table:
    """Read a table in this process.

    model : keywords of `open_table` for the features of an existing model: ``like``, ``extend_categories``; and
    ``require_target``.
    """
    remove_stale()
    with _naming(table.data) if is_path(table.data) else nullcontext():
        reading = plan_reading(table, **model, most_bytes=options.most_bytes, limit=options.limit)
        rows = read_consistently(reading, partial(_read_rows, options), options.n_threads)
        if reading.plan.known is None and any(feature.is_categorical for feature in rows.features):
            from dboost.data.columns.numbers_as_text import warn_of_text

            warn_of_text(rows.features, rows.named, rows.category_kinds)
        return rows


def _naming(path: Any) -> AbstractContextManager[None]:
    """Return a context whose errors name the path."""
    from dboost.data.sources.files import reading

    return reading(path)


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
    table = GivenTable(data, {"target": target, **roles}, features, categorical_features, row_filter)
    return read_table(table, options, like=like, extend_categories=extend_categories, require_target=require_target)


def _read_rows(options: ReadOptions, reading: Reading) -> Table:
    """Read the rows once."""
    plan, separate, read_as = reading.plan, dict(reading.separate), reading.read_as
    has_lazy_roles = any(map(is_dask, separate.values()))
    if read_as == "files" and (options.most_bytes is None or has_lazy_roles):
        by_dask = True  # in several threads, or with the roles of the same partition
    else:
        by_dask = read_as == "dask"
    frame, in_partitions = reading.frame, read_as in ("files", "dask")
    if options.limit is None and frame is not None and frame.is_sparse:
        check_codes(frame.n_rows, len(plan.specs))
    spool = Spool(options.retain_bytes, options.most_bytes)
    arrive_in_parts = all(map(is_dask, separate.values())) if by_dask else not separate
    metadata_spool = RowMetadataSpool() if options.spool_roles and arrive_in_parts and frame is None else None
    try:
        reader = Reader(plan, spool, metadata_spool, limit=options.limit, in_partitions=in_partitions)
        if by_dask:
            aligned = {role: separate.pop(role) for role in ROLES if is_dask(separate.get(role))}
            pieces = _read_by_dask(reading, aligned, reader, options)
        else:
            if has_lazy_roles:
                separate = {role: _compute(values) if is_dask(values) else values for role, values in separate.items()}
            pieces = [reader.read_whole(frame)] if frame is not None else _read_in_order(reading, reader, options.count)
        rows = MetadataRows(tuple(map(rows_in, pieces)), in_partitions)
        if not rows.n_rows:
            where = f": all {len(pieces)} partitions are empty" if in_partitions else getattr(reading.rows, "hint", "")
            if reading.row_filter is not None:
                where = f" for which filter {reading.row_filter.predicate} is true"
            raise DataError(f"the data have no rows{where}")
        return _finished(reader, plan, rows, pieces, named=reading.named, separate=separate)
    except BaseException:
        spool.close()
        if metadata_spool is not None:
            metadata_spool.close()
        raise


def _finished(
    reader: Reader,
    plan: ReadPlan,
    rows: MetadataRows,
    partitions: list[StoredSlices],
    *,
    named: bool,
    separate: dict[str, Any] | None = None,
) -> Table:
    """Check the roles when all partitions are read, and return the table. separate : see `Reader.finish_roles`."""
    metadata = reader.finish_roles(separate or {}, rows)
    raise_for_issues(metadata.issues)
    check_max_weight(metadata.max_weight, plan.label("sample_weight"))
    metadata_spool = reader.metadata_spool
    if metadata_spool is None:
        reader.drop_unweighted_categories(dict(enumerate(partitions)), metadata.roles.weight)
    features, translations = reader.finish_features()
    table = Table(features, named, rows, metadata, reader.spool, partitions, translations, metadata_spool, plan.binning)
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
        pieces, suffix = [], ""
        for i, partition in enumerate(partitions):
            pieces.append(reader.read_partition(i, partition, partition.given_roles))
            suffix = suffix if partition.roles.weight is None else OF_POSITIVE_WEIGHT
        # Their partitions are not those of the user's table.
        rows = MetadataRows(tuple(map(rows_in, pieces)), False, suffix=suffix)
        return _finished(reader, plan, rows, pieces, named=named)
    except BaseException:
        spool.close()
        if metadata_spool is not None:
            metadata_spool.close()
        raise


def _compute(collection: Any) -> Any:
    from dboost.data.tables import dask_collections

    return dask_collections.compute(collection)


def _read_by_dask(reading: Reading, aligned: dict[str, Any], reader: Reader, options: ReadOptions) -> list[StoredSlices]:
    """Read a Dask collection or files in the threads of Dask. aligned : Dask collections of roles, by name."""
    from dboost.data.sources import ReadCount
    from dboost.data.tables import dask_collections

    data, sizes = (reading.rows.lazy(), reading.rows.sizes) if reading.read_as == "files" else (reading.rows, None)
    count = ReadCount(options.count, dask_collections.count_partitions(data), sizes)

    def take(i: int, partition: Any, roles: dict[str, Any]) -> StoredSlices:
        piece = reader.read_partition(i, partition, roles)
        count.add(i)
        return piece

    plan, n_threads = reading.plan, options.n_threads
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


def _read_in_order(reading: Reading, reader: Reader, show: Callable[[int, int, str], None] | None) -> list[StoredSlices]:
    """Read the partitions of files or of a stream one after the other. show : see `ReadOptions.count`."""
    from dboost.data.sources import ReadCount

    source, plan, is_files = reading.rows, reading.plan, reading.read_as == "files"
    pieces: list[StoredSlices] = []
    count = ReadCount(show, len(source.parts), source.sizes) if is_files else None
    partitions = source.partitions(plan.needed)
    try:
        for partition in partitions:
            pieces.append(reader.read_partition(len(pieces), partition, {}))
            del partition  # before the next one is read
            if count is not None:
                count.add(len(pieces) - 1)
    except KeyError:
        # The error of pandas does not name the partition.
        if is_files:
            check_columns(len(pieces), source.read(source.parts[len(pieces)]), plan)
        raise
    except Exception as error:
        if is_files and not isinstance(error, DBoostError):
            error.add_note(f"while partition {len(pieces)} was read")
        raise
    return pieces
