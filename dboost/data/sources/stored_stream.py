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
    """The partitions of a stream, read once, in order. It is a stream itself, which can be read repeatedly.

    Parameters
    ----------
    source : Stream
    columns : sequence of str
        Those that are stored.

    Raises
    ------
    DataError
        If the stream has no rows; if there is no space for it.
    """

    def __init__(self, source: Stream, columns: Sequence[str]) -> None:
        self._waiting: list[Any] = []
        self._folder: PrivateDirectory | None = None
        #: Rows and bytes of each partition.
        self.lengths: list[int] = []
        self.sizes: list[int] = []
        try:
            self._read(source, columns)
        except BaseException:
            if self._folder is not None:  # its traceback would keep the files
                self._folder.close()
            raise
        if not sum(self.lengths):
            raise DataError(f"the data have no rows{source.none_found}")

    def _read(self, source: Stream, columns: Sequence[str]) -> None:
        for partition in source.partitions(columns):
            table = nw.from_native(partition).to_arrow()
            self.lengths.append(table.num_rows)
            self.sizes.append(table.nbytes)
            self._waiting.append(table)
            del partition, table
            if self._folder is not None or sum(self.sizes) > tuning().stream_in_memory_bytes:
                self._store()

    def _store(self) -> None:
        self._folder = PrivateDirectory() if self._folder is None else self._folder
        first = len(self.lengths) - len(self._waiting)
        try:
            for k, table in enumerate(self._waiting, first):
                # In the format of streams each batch may have dictionaries of its own.
                with pa.OSFile(self._path(k), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
                    writer.write_table(table)
        except OSError as error:
            why = "the disk is full" if is_full(error) else reason(error)
            raise DataError(f"the stream cannot be stored in {self._folder.path}: {why}") from error
        self._waiting = []

    def _path(self, number: int) -> str:
        assert self._folder is not None
        return str(self._folder.path / f"partition-{number}.arrow")

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def table(self) -> Any:
        """The rows as a table in memory; None if they are in files."""
        if self._folder is not None:
            return None
        return pa.concat_tables(self._waiting, promote_options="permissive")

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
        stored = StoredStream(source, list(dict.fromkeys(columns(source.names))))
    except DBoostError as error:
        if not subject:
            raise
        raise type(error)(f"{subject}: {error}") from error
    table = stored.table
    return stored if table is None else table
