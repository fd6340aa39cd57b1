"""Parquet and CSV files as a lazy Dask frame.

Parquet is read by Dask. CSV is cut into blocks of whole lines here, because Dask fixes every column's type by a
sample of the first file and fails where a later block looks different; dboost judges types by the data, over all
blocks. Text columns of the sample are read as text everywhere, so that a block that happens to hold only digits
changes nothing. (As in Dask, a line break inside quotes must not fall on a border between blocks.)
"""

from __future__ import annotations

import io
import os
import posixpath
import re
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import dask.dataframe as dd
import fsspec
from dask.utils import natural_sort_key
from fsspec.utils import read_block

from dboost._lazy_import import pa, pd
from dboost._storage_errors import is_failure, reason, shown
from dboost.errors import DataError, DBoostError
from dboost.schema import TEXT, Feature

#: Bytes of text per partition.
BLOCK_BYTES = 32 * 2**20
#: The same at least where memory is limited: partitions that are larger than their share are cut into slices anyway.
LEAST_BLOCK_BYTES = 2**20
#: A row group may be so many times as large as what may be in memory of a partition's columns: as large as the whole limit.
_LARGEST = 4
#: Rows of the first file that decide which columns are text.
SAMPLE_ROWS = 1000

#: What makes a path a glob.
_MAGIC = re.compile(r"[*?\[]")
_PARQUET = (".parquet", ".parq", ".pq")
_CSV = (".csv", ".csv.gz", ".csv.bz2", ".csv.xz", ".csv.zip", ".csv.zst")


def open_path(path: Any, like: Sequence[Feature] | None = None, most_bytes: int | None = None) -> dd.DataFrame:
    """A lazy frame of the rows of a file, folder, glob, URL, or list of files, in the order of their names.

    Parameters
    ----------
    path : path, URL, or list of them
    like : sequence of Feature, optional
        Features of a model; CSV columns that were text to it are read as text, also where they hold nothing but digits.
    most_bytes : int, optional
        How large a partition is to be: row groups of Parquet files are not joined beyond that, and blocks of CSV files are not
        longer (but for `LEAST_BLOCK_BYTES`).

    Raises
    ------
    DataError
        Naming the path, when nothing is there or it is neither Parquet nor CSV, or a row group that is too large to be read.
    """
    paths = [os.fspath(item) for item in path] if isinstance(path, (list, tuple)) else [os.fspath(path)]
    with reading(path):
        found = [file for item in paths for file in _files(item)]
        if not found:
            raise DataError(f"there is no file at {_shown(path)}")
        parquet = [file for file in found if file.lower().endswith(_PARQUET)]
        text = [file for file in found if file.lower().endswith(_CSV)]
        if parquet and text:
            raise DataError(f"{_shown(path)} holds both Parquet and CSV files: name one kind")
        if parquet:
            if most_bytes is not None:
                _check_row_groups(parquet, _LARGEST * most_bytes)
            return _read_parquet(paths, parquet, most_bytes)
        if text:
            as_text = {one.name for one in like or () if one.legal_kinds == (TEXT,)}
            block_bytes = BLOCK_BYTES if most_bytes is None else min(BLOCK_BYTES, max(most_bytes, LEAST_BLOCK_BYTES))
            return _read_csv(text, as_text, block_bytes)
    raise DataError(f"{_shown(path)} is neither Parquet nor CSV: its name must end in .parquet, .csv or .csv.gz")


@dataclass(frozen=True)
class DataFiles:
    """The files that a path stands for, by names that stay when the folder is spelled in another way.

    Attributes
    ----------
    root : str
        URL of the folder that the names begin in.
    urls : dict of str to str
        Full URLs by name, in the order in which the rows are read.
    sizes : dict of str to int
        Bytes by name.
    """

    root: str
    urls: dict[str, str]
    sizes: dict[str, int]


def find_files(path: Any) -> DataFiles:
    """What files there are now; none is no error.

    Parameters
    ----------
    path : file, folder, glob or URL

    Raises
    ------
    DataError
        When the place cannot be looked at.
    """
    with reading(path):
        fs, place = fsspec.url_to_fs(path)
        fs.invalidate_cache()
        urls = _files(os.fspath(path))
        root = place if fs.isdir(place) or not urls else posixpath.dirname(place)
        while _MAGIC.search(root):
            root = posixpath.dirname(root)
        places = [fs._strip_protocol(url) for url in urls]
        names = [posixpath.relpath(place, root) for place in places]
        sizes = [fs.info(place)["size"] for place in places]
        return DataFiles(fs.unstrip_protocol(root), dict(zip(names, urls, strict=True)), dict(zip(names, sizes, strict=True)))


@contextmanager
def reading(path: Any) -> Iterator[None]:
    """Errors of the libraries that read files become a DataError that names the path; None changes nothing."""
    try:
        yield
    except DBoostError:
        raise
    except Exception as error:
        if path is None or not (is_failure(error) or isinstance(error, RuntimeError | pa.ArrowException)):
            raise
        raise DataError(f"cannot read {_shown(path)}: {reason(error)}") from error


def _shown(path: Any) -> str:
    return ", ".join(map(shown, path)) if isinstance(path, (list, tuple)) else shown(path)


def _files(path: str) -> list[str]:
    """Full URLs of the data files that a path, folder or glob stands for; part-2 comes before part-10."""
    fs, root = fsspec.url_to_fs(path)
    if fs.exists(root) and not fs.isdir(root):
        return [fs.unstrip_protocol(root)]
    in_folder = fs.isdir(root)
    names = fs.find(root) if in_folder else fs.glob(root)
    kept = [name for name in names if name.lower().endswith(_PARQUET + _CSV)]
    shown = [name for name in kept if not _hidden(name[len(root) :] if in_folder else name.rpartition("/")[2])]
    return [fs.unstrip_protocol(name) for name in sorted(shown, key=natural_sort_key)]


def _hidden(name: str) -> bool:
    return any(part.startswith(("_", ".")) for part in name.split("/"))


def _read_parquet(paths: list[str], files: list[str], most_bytes: int | None) -> dd.DataFrame:
    fs, root = fsspec.url_to_fs(paths[0])
    how: dict[str, Any] = {} if most_bytes is None else {"split_row_groups": "adaptive", "blocksize": most_bytes}
    if len(paths) == 1 and fs.isdir(root):
        return dd.read_parquet(paths[0], **how)  # as a whole, so that Dask sees columns in the names of folders
    if files == sorted(files, key=natural_sort_key):
        return dd.read_parquet(files, **how)
    return dd.concat([dd.read_parquet(file, **how) for file in files])  # Dask would sort them


def _check_row_groups(files: list[str], most: int) -> None:
    """Raise a DataError when a row group is larger than `most` bytes: it can only be read as a whole."""
    from pyarrow import parquet as pq

    for file in files:
        with reading(file), fsspec.open(file, "rb") as stream:
            groups = pq.read_metadata(stream)
        for k in range(groups.num_row_groups):
            size = groups.row_group(k).total_byte_size
            if size > most:
                raise DataError(
                    f"row group {k} of {_shown(file)} has {size / 2**20:.1f} MiB, which is more than memory_limit allows "
                    f"({most / 2**20:.1f} MiB): write the file in smaller row groups, or raise the limit"
                )


def _read_csv(files: list[str], as_text: Container[str], block_bytes: int) -> dd.DataFrame:
    with reading(files[0]), fsspec.open(files[0], "rb", compression="infer") as stream:
        sample = _parse(stream, [], n_rows=SAMPLE_ROWS)
    text = [name for name in sample if name in as_text or pd.api.types.infer_dtype(sample[name], skipna=True) == "string"]
    sample = sample.astype(dict.fromkeys(text, "str"))
    blocks = [(file, start, length) for file in files for start, length in _cut(file, block_bytes)]
    return dd.from_map(
        read_csv_block,
        [block[0] for block in blocks],
        [block[1] for block in blocks],
        [block[2] for block in blocks],
        text=text,
        meta=sample.iloc[:0],
        label="read-csv",
        enforce_metadata=False,
    )


def _cut(file: str, block_bytes: int) -> list[tuple[int, int | None]]:
    """Start and length of each block of a file; a compressed one is a single block."""
    if not file.lower().endswith(".csv"):
        return [(0, None)]
    fs, name = fsspec.url_to_fs(file)
    size = fs.size(name)
    return [(start, block_bytes) for start in range(0, max(size or 0, 1), block_bytes)]


def read_csv_block(
    file: str, start: int, length: int | None, *, text: list[str], columns: list[str] | None = None
) -> pd.DataFrame:
    """The lines that begin in ``[start, start + length)`` of a file, under the file's own header."""
    with reading(file), fsspec.open(file, "rb", compression="infer") as stream:
        header = stream.readline() if start else b""
        block = read_block(stream, start, length, delimiter=b"\n")
        return _parse(io.BytesIO(header + block), text, columns)


def _parse(stream: Any, text: list[str], columns: list[str] | None = None, n_rows: int | None = None) -> pd.DataFrame:
    types = {name: "str" for name in text if columns is None or name in columns}
    frame = pd.read_csv(stream, dtype=types, usecols=columns, nrows=n_rows)
    return frame if columns is None else frame[columns]
