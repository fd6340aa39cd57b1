"""CSV files as a source.

The files are divided into blocks of whole lines here and not by Dask, which determines the dtypes by a sample of the first file
and fails if a later block differs. A column is text if it contains anything but numbers and truth values, and numeric
otherwise, so the features do not depend on the blocks. Columns that are text in the sample are read as text in every block,
also if a block contains only digits. If a block contains text in a column that has numbers in another block, all files are read
again: once to find the columns that are text in any block (`text_columns`), and then with these as text. As in Dask, a line
break inside quotes must not fall on a block boundary.
"""

from __future__ import annotations

import csv
import io
import re
import zipfile
from collections.abc import Collection, Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from fsspec.core import OpenFile
from fsspec.utils import infer_compression, read_block

from dboost._lazy_import import pa, pd
from dboost.data.sources import Parts
from dboost.data.sources.files import DataFile, unchanged
from dboost.errors import DataError, shown
from dboost.files.filesystem import filesystem_of
from dboost.tuning import tuning

#: Bytes that are read at once from a CSV file to find out how its lines end.
_PIECE_BYTES = 2**16
#: Names in an archive that are ignored, as in folders: they begin with "." or "_".
_HIDDEN = re.compile(r"(^|/)[._]")


class CsvBlock(NamedTuple):
    """The rows whose lines begin in ``[start, start + length)`` of a file."""

    file: DataFile
    start: int
    #: None: up to the end of the file.
    length: int | None

    @property
    def n_bytes(self) -> int | None:
        """Bytes in the file; None if unknown."""
        size = self.file.size
        return None if size is None else size if self.length is None else max(min(self.length, size - self.start), 0)


def read_csv(files: list[DataFile], as_text: Container[str], most_bytes: int | None, columns: Collection[str] | None) -> Parts:
    """Return the rows of CSV files.

    Parameters
    ----------
    files : list of DataFile
    as_text : container of str
        Columns to read as text.
    most_bytes : int or None
        As in `paths.open_path`.
    columns : collection of str or None
        Those that are used, None for all; others may occur more than once.
    """
    with unchanged(files[0]):
        with _opened(files[0]) as stream:
            names = next(csv.reader(io.StringIO(_header(stream).decode("utf-8-sig").strip("\r\n"), newline="")), [])
        repeated = [name for k, name in enumerate(names) if name and name in names[:k]]
        wrong = [name for name in repeated if columns is None or name in columns]
        if wrong:  # pandas would rename them
            raise DataError(f"{shown(files[0].url)} has several columns named {wrong[0]!r}")
        with _opened(files[0]) as stream:
            sample = _parse(stream, [], n_rows=tuning().csv_sample_rows)
    sample = sample[[name for name in sample if name not in repeated and (not repeated or name in names)]]
    text = [name for name in sample if name in as_text or _is_text(sample[name])]
    sample = sample.astype(dict.fromkeys(text, "str"))
    return Parts(sample.iloc[:0], _blocks(files, most_bytes), partial(read_csv_block, text=text), "read-csv")


def _blocks(files: Sequence[DataFile], most_bytes: int | None) -> list[CsvBlock]:
    """Return the blocks of files. most_bytes : as in `paths.open_path`."""
    limits = tuning()
    n_bytes = limits.csv_block_bytes
    if most_bytes is not None:
        n_bytes = min(n_bytes, max(most_bytes, limits.least_csv_block_bytes))
    return [block for file in files for block in _blocks_of(file, n_bytes)]


def text_columns(files: Sequence[DataFile], most_bytes: int | None, n_threads: int | None) -> set[str]:
    """Return the columns that contain text in any block of the files, all of which are read."""
    with ThreadPoolExecutor(n_threads) as threads:
        return set[str]().union(*threads.map(_text_columns, _blocks(files, most_bytes)))


def _text_columns(block: CsvBlock) -> set[str]:
    """Return the columns of a block that contain text."""
    frame = read_csv_block(block, text=[])
    return {name for name in frame if _is_text(frame[name])}


def _is_text(column: pd.Series) -> bool:
    return bool(pd.api.types.infer_dtype(column, skipna=True) == "string")


def _blocks_of(file: DataFile, block_bytes: int) -> list[CsvBlock]:
    """Return the blocks of a file: one if it is compressed or has no line feeds in the first one."""
    if not file.ending.endswith(".csv"):
        return [CsvBlock(file, 0, None)]
    size = file.size or 0
    if size > block_bytes:
        fs, name = filesystem_of(file.url)
        with fs.open(name, "rb") as stream:
            if not any(b"\n" in stream.read(_PIECE_BYTES) for _ in range(0, block_bytes, _PIECE_BYTES)):
                return [CsvBlock(file, 0, None)]
    return [CsvBlock(file, start, block_bytes) for start in range(0, max(size, 1), block_bytes)]


def read_csv_block(block: CsvBlock, *, text: list[str], columns: list[str] | None = None) -> pd.DataFrame:
    """Return the rows of a block, with the columns of the header of its file."""
    file, start, length = block
    with unchanged(file), _opened(file) as stream:
        header = _header(stream) if start else b""
        lines = stream.read() if length is None else read_block(stream, start, length, delimiter=b"\n")
        content = io.BytesIO(header + lines)
        _check_first_row(content)
        try:
            frame = _parse(content, text)
        except pd.errors.ParserError as error:
            if length is None or file.size is None or length >= file.size or "EOF inside string" not in str(error):
                raise
            raise DataError(
                f"cannot read {shown(file.url)}: a line break in quotes falls on the boundary of two blocks of {length:,} "
                "bytes, or quotes are not closed: write the file as Parquet, or compress it, so that it is read as one block"
            ) from error
        return frame if columns is None else frame[columns]


def _check_first_row(content: io.BytesIO) -> None:
    """Raise an error if the first row has more fields than the header: pandas would take the first fields for an index.

    It checks the other rows itself.
    """
    start = (_header(content) + _header(content)).decode("utf-8-sig", errors="replace")
    content.seek(0)
    with suppress(csv.Error):  # a field of more than 128 KiB
        first = list(islice(filter(None, csv.reader(io.StringIO(start, newline=""))), 2))
        if len(first) == 2 and len(first[1]) > len(first[0]):
            raise pd.errors.ParserError("there are rows with more fields than the header (a comma at the end of each row?)")


@contextmanager
def _opened(file: DataFile) -> Iterator[Any]:
    """Open a file; the content of a compressed one is decompressed as it is read."""
    fs, name = filesystem_of(file.url)
    compression = None if file.ending.endswith((".zip", ".zst")) else infer_compression(file.ending)
    with OpenFile(fs, name, compression=compression) as stored:
        if file.ending.endswith(".zip"):
            with zipfile.ZipFile(stored) as archive:
                inside = [member for member in archive.namelist() if not (member.endswith("/") or _HIDDEN.search(member))]
                if len(inside) != 1:
                    raise DataError(
                        f"{shown(file.url)} holds {len(inside)} files{': ' if inside else ''}{', '.join(inside[:3])}, but a "
                        "compressed CSV file must hold one: unpack it, and give the folder"
                    )
                with archive.open(inside[0]) as stream:
                    yield stream
        elif file.ending.endswith(".zst"):  # fsspec reads the first of several frames only
            with pa.CompressedInputStream(stored, "zstd") as raw, io.BufferedReader(raw) as stream:
                yield stream
        else:
            yield stored


def _header(stream: Any) -> bytes:
    """Return the lines up to the end of the header; a name in quotes may contain line feeds."""
    header = b""
    for line in stream:
        header += line
        if header.strip() and header.count(b'"') % 2 == 0:
            break
    return header


def _parse(stream: Any, text: list[str], n_rows: int | None = None) -> pd.DataFrame:
    # With low_memory, pandas determines the type of a column by pieces, which need not agree. With `usecols`, it does not count
    # the fields of a row.
    frame = pd.read_csv(stream, dtype=dict.fromkeys(text, "str"), nrows=n_rows, low_memory=False)
    types = set(text)
    for name in frame:
        if name in types or pd.api.types.is_numeric_dtype(frame[name].dtype):
            continue
        numbers = _as_numbers(frame[name])
        if numbers is not None:
            frame[name] = numbers
    return frame


#: Truth values as pandas reads them, with their numbers.
_TRUTH_VALUES = {word: number for number, words in enumerate(("False FALSE false", "True TRUE true")) for word in words.split()}


def _as_numbers(column: pd.Series) -> pd.Series | None:
    """Return a column as float64 if it has only numbers and truth values; else None.

    Pandas reads truth values beside numbers as text, and beside missing values as objects; in blocks of their own they are
    numbers. It reads integers beyond 64 bits as objects.
    """
    if pd.api.types.infer_dtype(column, skipna=True) in ("boolean", "integer"):  # integers beyond 64 bits are objects
        return column.astype(np.float64)
    if not _is_text(column):
        return None
    distinct = column.dropna().unique().tolist()
    words = [word for word in distinct if word not in _TRUTH_VALUES]
    if any(pd.to_numeric(pd.Series(sample, dtype=object), errors="coerce").isna().any() for sample in (words[:100], words)):
        return None
    values: dict[Any, float] = dict(_TRUTH_VALUES)
    if words:  # read as in other blocks, to the last bit
        read = pd.read_csv(io.StringIO("\n".join(words)), header=None, low_memory=False)[0]
        values |= dict(zip(words, pd.to_numeric(read).astype(np.float64), strict=True))
    return column.map(values).astype(np.float64)
