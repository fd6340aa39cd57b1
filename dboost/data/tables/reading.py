"""What is read of a table: decided once, before any row is read.

A `GivenTable` is a table with its roles, as a call gave it. `plan_reading` opens it as far as the names of its columns, and
returns a `Reading`: where the rows are, which columns are read, and which roles arrive apart from them. Two functions execute a
reading: `data.tables.read_table.read_table` in this process, `cluster.partitions.read_tasks` by workers. Both go through
`read_consistently`, which reads CSV files again with columns as text if these have text in some blocks only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import numpy as np

from dboost.data.columns.read_plan import ReadPlan, make_read_plan, used_columns
from dboost.data.columns.roles import ROLES
from dboost.data.kinds.frame import Frame
from dboost.data.kinds.named_columns import with_named_targets
from dboost.data.kinds.table_kinds import as_frame, is_dask, is_path, is_source, is_stream
from dboost.data.tables.reader import LimitCheck, mixes_kinds
from dboost.data.tables.table import Table
from dboost.errors import ColumnKindsError, DataError, InputTypeError, ParameterError
from dboost.schema import Feature

if TYPE_CHECKING:
    from dboost.data.sources import Parts
    from dboost.data.sources.row_filter import RowFilter


@dataclass(frozen=True, eq=False)
class GivenTable:
    """A table with its roles, as a call gave it, before it is read."""

    data: Any
    #: As the user gave them, by the names of `ROLES`; None for those that the rows do not have.
    roles: Mapping[str, Any]
    features: Any = None
    categorical_features: Any = "from_dtype"
    row_filter: RowFilter | None = None
    #: Of an evaluation set; empty for other tables.
    name: str = ""

    def __post_init__(self) -> None:
        unknown = self.roles.keys() - ROLES.keys()
        if unknown:
            raise TypeError(f"unexpected keyword argument {min(unknown)!r}")
        target = self.roles.get("target")
        if not isinstance(self.data, np.ndarray):  # whose columns have no names
            target = with_named_targets(target, self.data)
        object.__setattr__(self, "roles", {**self.roles, "target": target})
        shape = _shape_of(target)
        if isinstance(self.data, str) and len(shape) == 2 and shape[1] > 1:
            raise InputTypeError(
                f"the data come first and the target second: (data, target); the target is a table, data={self.data!r}"
            )
        if len(shape) == 2 and _has_one_dimension(self.data):
            raise DataError(
                "the table comes first and the target second: here the first has one dimension, and the second has the shape "
                f"{shape}, so they look exchanged"
            )
        if hasattr(self.features, "__next__"):  # an iterator
            object.__setattr__(self, "features", list(self.features))

    @property
    def is_source(self) -> bool:
        """Whether rows are still to be read, by a cluster if there is one."""
        return is_source(self.data)


def _has_one_dimension(data: Any) -> bool:
    """Return whether data are a vector, of any library, or a list of numbers."""
    if isinstance(data, list):
        return bool(data) and not np.iterable(data[0])
    return len(_shape_of(data)) == 1


def _shape_of(values: Any) -> tuple[Any, ...]:
    shape = getattr(values, "shape", None)  # of a task of Dask another task
    return shape if isinstance(shape, tuple) else ()


ReadAs = Literal["memory", "stream", "files", "dask"]


class _Opened(NamedTuple):
    """A table, opened as far as the names of its columns."""

    rows: Any  # see `Reading`
    read_as: ReadAs
    names: tuple[str, ...]
    named: bool  # whether the data have column names
    frame: Frame | None = None


@dataclass(frozen=True, eq=False)
class Reading:
    """What is read of a table."""

    #: A table in memory, a `Stream`, the `Parts` of files, or a Dask collection.
    rows: Any
    read_as: ReadAs
    plan: ReadPlan
    #: Whether the data have column names.
    named: bool
    #: Roles that are not columns of the table, by name.
    separate: Mapping[str, Any]
    #: Of a table in memory.
    frame: Frame | None = None
    row_filter: RowFilter | None = None
    #: Returns the rows of CSV files with all columns as text that have text in any block, and None for other files; its keyword
    #: ``n_threads`` is the number of threads that inspect them.
    open_with_text: Callable[..., Parts | None] | None = None

    def with_text(self, n_threads: int | None) -> Reading | None:
        """Return how files are read with columns as text that have text in any block; None if there are no such columns."""
        rows = None if self.open_with_text is None else self.open_with_text(n_threads=n_threads)
        return None if rows is None else replace(self, rows=rows)


def plan_reading(
    table: GivenTable,
    *,
    like: tuple[Feature, ...] | None = None,
    extend_categories: bool = False,
    require_target: bool = True,
    most_bytes: int | None = None,
    limit: LimitCheck | None = None,
    client: Any = None,
) -> Reading:
    """Return what is read of a table.

    Parameters
    ----------
    like, extend_categories, require_target
        As of `data.tables.read_table.open_table`.
    most_bytes : int, optional
        Target size of a partition of files or of a stream.
    limit : LimitCheck, optional
        Refuses tables with too many features.
    client : distributed.Client, optional
        Computes columns of Dask collections that may number the rows. Default: this process.

    Raises
    ------
    DataError
        If there are no files, or a column or the target is missing.
    ParameterError
        If `features` or `categorical_features` do not match the table.
    InputTypeError
        If the type of the data is not supported.
    """
    if require_target and table.roles["target"] is None:
        raise DataError("training requires y to be passed, but the target y is None")
    roles = {role: table.roles[role] for role in ROLES if table.roles.get(role) is not None}
    used = used_columns(table.features, like, roles) if is_path(table.data) else None
    opened = _opened(table, like, used, most_bytes)
    plan = make_read_plan(
        opened.names,
        opened.named,
        roles=roles,
        features=table.features,
        categorical_features=table.categorical_features,
        like=like,
        extend_categories=extend_categories,
        column=partial(_parts_of_column, opened, client),
    )
    if limit is not None:
        limit.check_width(len(plan.specs))
    separate = {role: values for role, values in roles.items() if role not in plan.roles}
    rows = opened.rows if table.row_filter is None else _filtered(opened, table.row_filter, plan, separate)
    with_text = None
    if opened.read_as == "files":
        from dboost.data.sources.paths import open_with_text

        with_text = partial(open_with_text, table.data, like, most_bytes, columns=used, row_filter=table.row_filter)
    return Reading(rows, opened.read_as, plan, opened.named, separate, opened.frame, table.row_filter, with_text)


def _filtered(opened: _Opened, row_filter: RowFilter, plan: ReadPlan, separate: Collection[str]) -> Any:
    """Return rows without those that a filter leaves out; only Dask collections still have them."""
    for role in separate:
        raise ParameterError(f"{role} must be the name of a column with filter, which selects rows of the data only")
    if opened.read_as != "dask":
        return opened.rows
    from dboost.data.tables import dask_collections

    return dask_collections.filtered(opened.rows, row_filter, plan.needed)


def _parts_of_column(opened: _Opened, client: Any, name: str) -> Iterator[Any]:
    """Yield the parts of a column from the beginning; batches of a stream that is read once are not consumed."""
    tables: Iterable[Any] = [opened.rows]
    if opened.read_as == "stream":
        tables = opened.rows.first_batches([name])
    elif opened.read_as == "files":
        tables = opened.rows.partitions([name])
    elif opened.read_as == "dask":
        tables = _partitions_of(opened.rows, name, client)
    for table in tables:
        frame = as_frame(table)
        yield frame.column(frame.names.index(name))


def _partitions_of(collection: Any, name: str, client: Any) -> Iterator[Any]:
    from dboost.data.tables import dask_collections

    selected = dask_collections.select(collection, (name,))
    for number in range(selected.npartitions):
        partition = selected.partitions[number]
        yield dask_collections.compute(partition) if client is None else partition.compute(scheduler=client.get)


def _opened(
    table: GivenTable, like: tuple[Feature, ...] | None, used: Collection[str] | None, most_bytes: int | None
) -> _Opened:
    """Open a table. used : names of the columns of files that are read, None for all; the others as of `plan_reading`."""
    data, row_filter = table.data, table.row_filter
    if is_path(data):
        from dboost.data.sources.paths import open_source

        parts = open_source(data, like, most_bytes, used, row_filter)
        return _Opened(parts, "files", parts.names, True)
    if is_dask(data):
        from dboost.data.tables import dask_collections

        return _Opened(data, "dask", *dask_collections.layout(data))
    if is_stream(data):
        from dboost.data.sources import stream_of

        stream = stream_of(data, most_bytes, row_filter)
        return _Opened(stream, "stream", stream.names, True)
    if row_filter is not None:
        data = row_filter.rows_of(data)
    frame = as_frame(data)
    return _Opened(data, "memory", frame.names, frame.named, frame)


#: What reading returns: the table, or on a cluster its features.
Rows = TypeVar("Rows", Table, tuple[Feature, ...])


def read_consistently(reading: Reading, read: Callable[[Reading], Rows], n_threads: int | None = None) -> Rows:
    """Read a table; read CSV files once more if a column holds numbers in some blocks and text in others, then as text.

    Parameters
    ----------
    reading : Reading
    read : callable
        Reads the rows; what it has read before is replaced.
    n_threads : int, optional
        Threads that inspect all blocks for text.

    Raises
    ------
    ColumnKindsError
        If partitions of other data differ in the kind of a column.
    """
    try:
        rows = read(reading)
        if reading.plan.known is not None or not mixes_kinds(rows.features if isinstance(rows, Table) else rows):
            return rows
        again = reading.with_text(n_threads)
        if again is None:
            return rows
        if isinstance(rows, Table):
            rows.close()
    except ColumnKindsError:
        again = reading.with_text(n_threads)
        if again is None:
            raise
    return read(again)
