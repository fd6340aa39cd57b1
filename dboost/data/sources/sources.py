"""Rows that are still to be read, in two forms.

Both have the names of their columns, and yield their partitions in a fixed order, of which only the wanted columns are read:

* `Parts`: rows that every process can read part by part, such as files, groups of their rows, fragments of a dataset. The parts
  are small records that are sent to the process that reads them; how Dask tokenizes a part is its fingerprint. `lazy` returns
  them as a Dask frame, for clusters, threads and lazy predictions.
* `Stream`: rows that only this process can read, one after the other, perhaps only once: a `pyarrow.RecordBatchReader`, another
  object with ``__arrow_c_stream__``, a lazy frame of polars (by its streaming engine), DuckDB, ibis, or another library that
  narwhals knows. Batches are joined or requested so that a partition has about the target size.

**Order.** The rows are in the order of the source: batches as they arrive; polars and DuckDB keep the order of the rows that
they read, unless the query states another one. The order of files is described where they are listed: in `files` and
`table_versions`. The same rows in the same order give the same model, whatever the source and its partitions.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from dboost._lazy_import import is_a, nw, pa, pd
from dboost.data.columns.chunk import slice_rows
from dboost.data.columns.labels import Names
from dboost.data.kinds.table_kinds import form_of
from dboost.data.sources.row_filter import RowFilter
from dboost.tuning import tuning

if TYPE_CHECKING:
    import dask.dataframe as dd

_MIB = 2**20
#: Rows of a batch of `Stream.first_batches`, where the source lets us choose it.
_FIRST_ROWS = 1000


@dataclass(frozen=True, eq=False)
class Parts:
    """Rows that every process can read part by part."""

    #: The columns and their types: a frame without rows.
    meta: pd.DataFrame
    #: What `read` takes, in the order of the rows.
    parts: Sequence[Any]
    #: Returns the rows of a part; its keyword ``columns`` are the names of those to read.
    read: Callable[..., pd.DataFrame]
    #: What Dask calls the tasks that read a part.
    label: str
    #: Reads all given parts in order, faster than one by one if neighbours have something in common; None if they do not.
    read_in_order: Callable[..., Iterator[pd.DataFrame]] | None = None

    @property
    def names(self) -> Names:
        return Names(self.meta.columns, self.meta.index.names)

    @property
    def sizes(self) -> dict[int, int] | None:
        """Bytes of each part in its file, as far as its columns are used, by number; None if they are unknown."""
        n_bytes = {k: n for k, part in enumerate(self.parts) if (n := getattr(part, "n_bytes", None)) is not None}
        return n_bytes if len(n_bytes) == len(self.parts) else None

    def partitions(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield the partitions in order, as frames with these columns."""
        if self.read_in_order is not None:
            return self.read_in_order(self.parts, columns=list(columns))
        return (self.read(part, columns=list(columns)) for part in self.parts)

    def only(self, numbers: Sequence[int]) -> Parts:
        """Return some of the parts."""
        return replace(self, parts=[self.parts[i] for i in numbers])

    def runs(self, numbers: Sequence[int]) -> list[list[int]]:
        """Return the numbers of parts in runs: neighbours that are read faster one after the other are in one run."""
        runs: list[list[int]] = []
        before: Any = None
        for i in numbers:
            shared = None if self.read_in_order is None else getattr(self.parts[i], "shared", None)
            if shared is not None and shared == before and runs[-1][-1] == i - 1:
                runs[-1].append(i)
            else:
                runs.append([i])
            before = shared
        return runs

    def filtered(self, row_filter: RowFilter) -> Parts:
        """Return the rows that satisfy a predicate."""
        used = row_filter.columns(self.names)
        read = partial(_kept_of_part, read=self.read, row_filter=row_filter, used=used, names=list(self.meta.columns))
        in_order = self.read_in_order
        if in_order is not None:
            in_order = partial(_kept_of_parts, read=in_order, row_filter=row_filter, used=used)
        return replace(self, read=read, read_in_order=in_order)

    def lazy(self) -> dd.DataFrame:
        """Return the rows as a lazy frame with one partition for each part."""
        import dask
        import dask.dataframe as dd

        from dboost.config import building

        if not self.parts:  # a filter keeps none
            return dd.from_pandas(self.meta, npartitions=1)
        # Dask would convert all columns of text, and therefore read them all: it selects columns after that.
        with building, dask.config.set({"dataframe.convert-string": False}):
            return dd.from_map(self.read, self.parts, meta=self.meta, label=self.label, enforce_metadata=False)


class ReadCount:
    """Counts the partitions that have been read, in MiB if their sizes are known; for several threads.

    show : receives what has been read, of how much, and the unit; None shows nothing. sizes : by number of the partition;
    n_before : how many of them have been read before, if their sizes are unknown.
    """

    def __init__(
        self,
        show: Callable[[int, int, str], None] | None,
        n_partitions: int,
        sizes: Mapping[int, int] | None = None,
        n_before: int = 0,
    ) -> None:
        total = 0 if sizes is None else sum(sizes.values())
        self._show, self._lock = show, threading.Lock()
        self._sizes = sizes if total >= _MIB else None
        self._done, self._total, self._scale, self._unit = n_before, n_partitions, 1, "partition"
        if self._sizes is not None:
            self._done, self._total, self._scale, self._unit = 0, total, _MIB, "MiB"

    def add(self, *numbers: int) -> None:
        """Count partitions."""
        if self._show is None:
            return
        with self._lock:
            self._done += len(numbers) if self._sizes is None else sum(self._sizes[number] for number in numbers)
            self._show(-(-self._done // self._scale), -(-self._total // self._scale), self._unit)


def _kept_of_part(
    part: Any,
    *,
    read: Callable[..., pd.DataFrame],
    row_filter: RowFilter,
    used: list[str],
    names: list[str],
    columns: list[str] | None = None,
) -> pd.DataFrame:
    """Return the rows of a part that satisfy a predicate. used : its columns; columns : those to read, default `names`."""
    wanted = names if columns is None else columns
    return row_filter.rows_of(read(part, columns=list(dict.fromkeys([*wanted, *used]))))[wanted]


def _kept_of_parts(
    parts: Sequence[Any],
    *,
    read: Callable[..., Iterator[pd.DataFrame]],
    row_filter: RowFilter,
    used: list[str],
    columns: list[str],
) -> Iterator[pd.DataFrame]:
    """Yield `_kept_of_part` of parts that are read in order."""
    for frame in read(parts, columns=list(dict.fromkeys([*columns, *used]))):
        yield row_filter.rows_of(frame)[columns]
        del frame


@dataclass(frozen=True, eq=False)
class Stream:
    """Rows that only this process can read, one after the other."""

    names: Names
    #: What is read.
    data: Any
    #: What to say if there are no rows; empty if there is nothing to say.
    hint: str
    #: Returns batches of these columns, of about this number of rows where the source lets us choose it.
    read: Callable[[Sequence[str], int], Iterable[Any]]
    most_bytes: int | None = None
    row_filter: RowFilter | None = None
    #: Returns the first batches without consuming them, of rows that can be read only once; None if they can be read again.
    look: Callable[[], Iterable[Any]] | None = None

    def first_batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield batches with at least these columns from the beginning, also of rows that a filter leaves out."""
        yield from self.read(columns, _FIRST_ROWS) if self.look is None else self.look()

    @property
    def none_found(self) -> str:
        """What to say if there are no rows: which, or why."""
        return self.hint if self.row_filter is None else f" for which filter {self.row_filter.predicate} is true"

    def without_rows(self) -> Any:
        """Return a table of the library that the partitions are of, without rows."""
        return self.data.head(0).collect() if is_a(self.data, "polars", "LazyFrame") else pa.table({})

    def partitions(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield the partitions in order, as tables in memory with at least these columns."""
        if self.row_filter is None:
            yield from self._partitions(columns)
            return
        for partition in self._partitions(list(dict.fromkeys([*columns, *self.row_filter.columns(self.names)]))):
            yield self.row_filter.rows_of(partition)

    def _partitions(self, columns: Sequence[str]) -> Iterator[Any]:
        n_bytes = tuning().partition_bytes if self.most_bytes is None else self.most_bytes
        n_rows = slice_rows(n_bytes, len(columns))
        waiting: list[Any] = []
        for batch in self.read(columns, n_rows):
            if not is_a(batch, "pyarrow", "RecordBatch"):
                yield batch
                continue
            for piece in _divided(batch, n_bytes):
                waiting.append(piece)
                if sum(piece_waiting.nbytes for piece_waiting in waiting) >= n_bytes:
                    yield pa.Table.from_batches(waiting)
                    waiting = []
                    if self.most_bytes is not None:
                        pa.default_memory_pool().release_unused()  # what decoding has freed
            del batch
        if waiting:
            yield pa.Table.from_batches(waiting)
            waiting = []
        if self.most_bytes is not None:
            pa.default_memory_pool().release_unused()


def stream_of(data: Any, most_bytes: int | None = None, row_filter: RowFilter | None = None) -> Stream:
    """Return rows for which `is_stream` holds as a source.

    most_bytes : target size of a partition; default 128 MiB. row_filter : leaves out rows; a query of polars leaves them out
    itself if the predicate is of polars.
    """
    if form_of(data) == "lazy":
        if row_filter is not None and row_filter.is_polars and is_a(data, "polars", "LazyFrame"):
            row_filter.columns(data.collect_schema().names())
            data, row_filter = data.filter(row_filter.predicate), None
        lazy = nw.from_native(data)
        labels = lazy.collect_schema().names()

        def batches(columns: Sequence[str], n_rows: int) -> Iterable[Any]:
            return _batches_of_lazy(lazy.select(list(columns)) if len(columns) < len(labels) else lazy, n_rows)

        return Stream(Names(labels), data, "", batches, most_bytes, row_filter)
    if is_a(data, "pyarrow.dataset", "Dataset", "Fragment"):

        def scanned(columns: Sequence[str], n_rows: int) -> Iterable[Any]:
            scanner = data.scanner(columns=list(columns), batch_size=n_rows, batch_readahead=1, fragment_readahead=1)
            return scanner.to_batches()

        schema = data.schema if is_a(data, "pyarrow.dataset", "Dataset") else data.physical_schema
        return Stream(Names(schema.names), data, "", scanned, most_bytes, row_filter)
    is_scanner = is_a(data, "pyarrow.dataset", "Scanner")
    reader = data.to_reader() if is_scanner else pa.RecordBatchReader.from_stream(data)
    hint = (
        ""
        if reader is not data and not is_a(data, "pyarrow", "RecordBatchReader")
        else (": a RecordBatchReader can be read only once, and this one may have been read before")
    )
    waiting: deque[Any] = deque()  # batches that were looked at

    def first_batches() -> Iterator[Any]:
        yield from tuple(waiting)
        for batch in reader:
            waiting.append(batch)
            yield batch

    def batches_once(columns: Sequence[str], _: int) -> Iterator[Any]:
        return _selected(chain(_emptied(waiting), reader), columns)

    return Stream(Names(reader.schema.names), data, hint, batches_once, most_bytes, row_filter, first_batches)


def _emptied(waiting: deque[Any]) -> Iterator[Any]:
    while waiting:
        yield waiting.popleft()


def _divided(batch: Any, n_bytes: int) -> Iterator[Any]:
    """Yield a batch of Arrow in pieces of about a size; none if it has no rows."""
    n_pieces = min(max(batch.nbytes // n_bytes, 1), batch.num_rows)
    for k in range(n_pieces):
        first, last = batch.num_rows * k // n_pieces, batch.num_rows * (k + 1) // n_pieces
        yield batch.slice(first, last - first)


def _selected(reader: Iterable[Any], columns: Sequence[str]) -> Iterator[Any]:
    """Yield the batches of a reader, with copies of some columns: a column of a batch from a file, or of another library, keeps
    the memory of the whole batch."""
    for batch in reader:
        if len(columns) < batch.num_columns:
            batch = batch.select(list(columns))
            batch = pa.RecordBatch.from_arrays(list(map(_copied, batch.columns)), schema=batch.schema)
        yield batch


def _copied(column: Any) -> Any:
    """Return an Arrow array that shares no memory with another one."""
    if pa.types.is_dictionary(column.type):
        parts = map(_copied, (column.indices, column.dictionary))
        return pa.DictionaryArray.from_arrays(*parts, ordered=column.type.ordered)
    return pa.concat_arrays([column, column.slice(0, 0)])


def _batches_of_lazy(lazy: Any, n_rows: int) -> Iterable[Any]:
    """Return the rows of a lazy frame in order, as frames or batches; as one frame if the library has no batches."""
    native = lazy.to_native()
    if hasattr(native, "collect_batches"):  # polars
        return native.collect_batches(chunk_size=n_rows, maintain_order=True, lazy=True)
    for name in ("to_arrow_reader", "fetch_record_batch"):  # DuckDB
        if hasattr(native, name):
            return getattr(native, name)(n_rows)
    if hasattr(native, "to_pyarrow_batches"):  # ibis
        return native.to_pyarrow_batches(chunk_size=n_rows)
    return [lazy.collect().to_native()]
