"""Rows of a stream in temporary files, so that they can be read more than once.

`rereadable` is for functions that read their data twice, such as explanations: a stream may be read once only.

On a cluster workers cannot read a stream, and a partition is read again after a worker was lost. The client sends the workers
some partitions at a time: neither the client nor the scheduler has more than `Tuning.wave_bytes` of them in memory.

A stream of at most `Tuning.stream_in_memory_bytes` is a table in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from dboost._lazy_import import nw, pa
from dboost.data.columns.labels import Names, may_name_columns
from dboost.data.kinds.table_kinds import is_stream
from dboost.data.sources import Stream, stream_of
from dboost.data.sources.row_filter import RowFilter
from dboost.errors import DataError, DBoostError, is_full, reason
from dboost.files.spool import PrivateDirectory
from dboost.tuning import tuning


class StoredStream:
    """The partitions of a stream in files, in order. It is a stream itself, which can be read repeatedly."""

    def __init__(self) -> None:
        self._folder = PrivateDirectory()
        #: Rows and bytes of each partition.
        self.lengths: list[int] = []
        self.sizes: list[int] = []

    def append(self, table: Any) -> None:
        """Store a partition; raise a DataError if there is no space for it."""
        try:
            # In the format of streams each batch may have dictionaries of its own.
            with pa.OSFile(self._path(len(self)), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
                writer.write_table(table)
        except OSError as error:
            why = "the disk is full" if is_full(error) else reason(error)
            raise DataError(f"the stream cannot be stored in {self._folder.path}: {why}") from error
        self.lengths.append(table.num_rows)
        self.sizes.append(table.nbytes)

    def close(self) -> None:
        """Remove the files."""
        self._folder.close()

    def _path(self, number: int) -> str:
        return str(self._folder.path / f"partition-{number}.arrow")

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, number: int) -> Any:
        """Return a partition as a table."""
        with pa.OSFile(self._path(number)) as file:
            return pa.ipc.open_stream(file).read_all()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return the rows as a stream of Arrow."""
        first = self[0].schema
        batches = (batch for k in range(len(self)) for batch in self[k].cast(first).to_batches())
        return pa.RecordBatchReader.from_batches(first, batches).__arrow_c_stream__(requested_schema)

    def waves(self, numbers: Sequence[int]) -> Iterator[list[int]]:
        """Yield the numbers of partitions that are sent at the same time."""
        wave: list[int] = []
        for number in numbers:
            if wave and sum(self.sizes[partition] for partition in [*wave, number]) > tuning().wave_bytes:
                yield wave
                wave = []
            wave.append(number)
        if wave:
            yield wave


def stored(source: Stream, columns: Sequence[str]) -> Any:
    """Read a stream; return some columns of its rows: few rows as a table of Arrow, others as a `StoredStream`.

    Raises
    ------
    DataError
        If the stream has no rows; if there is no space for it.
    """
    in_memory: list[Any] = []
    in_files: StoredStream | None = None
    try:
        for partition in source.partitions(columns):
            table = nw.from_native(partition).to_arrow()
            if in_files is None:
                in_memory.append(table)
                if sum(rows.nbytes for rows in in_memory) > tuning().stream_in_memory_bytes:
                    in_files = StoredStream()
                    while in_memory:
                        in_files.append(in_memory.pop(0))
            else:
                in_files.append(table)
            del partition, table
    except BaseException:
        if in_files is not None:  # its traceback would keep the files
            in_files.close()
        raise
    lengths = [table.num_rows for table in in_memory] if in_files is None else in_files.lengths
    if not sum(lengths):
        raise DataError(f"the data have no rows{source.none_found}")
    return pa.concat_tables(in_memory, promote_options="permissive") if in_files is None else in_files


def columns_used(
    features: Sequence[str] | None, roles: Iterable[Any], row_filter: RowFilter | None, names: Names
) -> Sequence[str]:
    """Return the columns of a stream that a fit reads. roles : names of columns, or values."""
    named = (label for role in roles for label in (role if may_name_columns(role) else [role]) if names.is_label(label))
    wanted = set(names if features is None else features).union(named)
    if row_filter is not None:
        wanted.update(row_filter.columns(names))
    if not wanted <= set(names):  # an error of the fit, which says what there is
        return names
    names.check_once(wanted)
    return [name for name in names if name in wanted]


def rereadable(data: Any, columns: Callable[[Names], Sequence[str]], subject: str = "") -> Any:
    """Return data that can be read more than once: of a stream its rows with some columns, other data unchanged.

    columns : returns the columns that are used, given all; subject : is done with them, for messages; empty for a fit.

    Raises
    ------
    DataError
        If a stream has no rows; if there is no space for it.
    """
    if not (isinstance(data, Stream) or is_stream(data)):
        return data
    source = data if isinstance(data, Stream) else stream_of(data, tuning().stored_partition_bytes)
    try:
        return stored(source, list(dict.fromkeys(columns(source.names))))
    except DBoostError as error:
        if not subject:
            raise
        raise type(error)(f"{subject}: {error}") from error
