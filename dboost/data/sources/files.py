"""The files of a path, and the check that they stay the same while they are read.

A path is a file, a folder, a glob, a URL of one of these, or a list of them. Files of a folder or glob are read in natural
order: part-2 before part-10.

**Replaced files.** A table is read in parts, some of them again after a worker was lost. If a file were replaced meanwhile, the
rows would be a mixture of old and new ones. So each file has a *stamp* from the moment when the files were listed: the tag of
an object store, or the times of the last changes of a local file. Whoever reads a part of a file compares size and stamp
afterwards (`unchanged`), and a difference is an error. Workers on other hosts may have copies of the files: there the times
need not be equal, but a file must not have changed after the listing. Parquet files are also compared by their footers, see
`data.sources.parquet`.

**Columns in the names of folders.** ``rows/day=3/part-0.parquet`` has a column `day` if the path is ``rows``: as in pandas and
polars only folders below the path count. For a glob these are the folders from the first wildcard on, for a file there are
none, and for a list those below the folder that all its items have in common.
"""

from __future__ import annotations

import os
import platform
import posixpath
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

from fsspec.implementations.local import LocalFileSystem

from dboost._lazy_import import is_a, pa
from dboost.data.kinds.table_kinds import is_stored_table
from dboost.errors import DataError, DataFileMissingError, DBoostError, MissingExtraError, is_failure, reason, shown
from dboost.files.filesystem import filesystem_of, has_query, without_query
from dboost.files.path_text import PREPARED, path_text

#: Characters of a glob.
MAGIC = re.compile(r"[*?\[]")
#: Folder in that of a Delta table, and end of the names of an Iceberg table's metadata.
DELTA_LOG, ICEBERG = "_delta_log", ".metadata.json"
PARQUET = (".parquet", ".parq", ".pq")
CSV = (".csv", ".csv.gz", ".csv.bz2", ".csv.xz", ".csv.zip", ".csv.zst")
#: How the libraries of object stores call the tag of a content, and the time of the last change.
#: First those that a copy of the same content has too.
_TAGS = ("Content-MD5", "content_md5", "md5Hash", "ETag", "etag", "generation", "VersionId")
_TIMES = ("mtime", "LastModified", "last_modified", "Last-Modified", "modified", "updated", "created")
#: The value of a partition column that is missing, in the names of folders.
_MISSING = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class DataFile:
    """A file, as it was when the files were listed."""

    #: With the query, which may be secret.
    url: str
    #: Bytes; None if unknown.
    size: int | None
    #: Changes with the content, see above; empty if the storage has nothing of the kind.
    stamp: str
    #: Host of a local file; empty for stores.
    host: str = ""
    #: When the files were listed, in nanoseconds since 1970.
    listed: int = field(default=0, compare=False)

    def __repr__(self) -> str:  # logs of Dask have the arguments of a task that failed
        return f"{type(self).__name__}({shown(self.url)!r}, {self.size}, {self.stamp!r})"

    @property
    def ending(self) -> str:
        """The text whose end is the kind of the file, in lower case: the URL up to its query, unless only the query has one."""
        path = without_query(self.url).lower()
        return path if path.endswith(PARQUET + CSV) else self.url.lower()

    @property
    def has_tag(self) -> bool:
        """Whether the stamp follows from the content, or from its version, and not from a clock."""
        return self.stamp.startswith("tag ")

    def __dask_tokenize__(self) -> Any:
        return self.url, self.size, self.stamp


def stat_file(fs: Any, name: str, info: dict[str, Any]) -> DataFile:
    """Return a file by what its file system says of it."""
    url, size, listed = fs.unstrip_protocol(name), info.get("size"), time.time_ns()
    if isinstance(fs, LocalFileSystem):
        status = os.stat(name)
        return DataFile(url, status.st_size, f"time {status.st_mtime_ns} {status.st_ctime_ns}", platform.node(), listed)
    for kind, names in (("tag", _TAGS), ("time", _TIMES)):
        for key in names:
            if info.get(key):
                value = info[key].timestamp() if isinstance(info[key], datetime) else info[key]
                return DataFile(url, size, f"{kind} " + str(value).strip('"'), listed=listed)
    return DataFile(url, size, "", listed=listed)


def local_file(path: str) -> DataFile:
    """Return a file of this machine."""
    fs = LocalFileSystem()
    return stat_file(fs, path, fs.info(path))


def _is_same(file: DataFile, now: DataFile) -> bool:
    if None not in (file.size, now.size) and file.size != now.size:
        return False
    if not file.stamp or file.stamp == now.stamp:
        return True
    return file.host != now.host and int(now.stamp.split()[1]) <= file.listed


def check_unchanged(file: DataFile) -> None:
    """Raise a DataError if a file is not the listed one any more."""
    if file.size is None and not file.stamp:
        return
    fs, name = filesystem_of(file.url)
    fs.invalidate_cache(fs._parent(name))
    if not _is_same(file, stat_file(fs, name, fs.info(name))):
        raise changed(file)


def digest_of(file: DataFile) -> str:
    """Return the SHA-256 of a file's content in hexadecimal; DataError if it cannot be read, or changes meanwhile."""
    digest = sha256()
    fs, name = filesystem_of(file.url)
    with unchanged(file), fs.open(name, "rb") as content:
        while block := content.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def changed(file: DataFile) -> DataError:
    """Return the error for a file that was replaced."""
    return DataError(
        f"{shown(file.url)} was changed or replaced while the data were read, so old and new rows would be mixed: start again "
        "when its content is complete, and write new rows to new files"
    )


@contextmanager
def unchanged(file: DataFile) -> Iterator[None]:
    """Convert errors of reading a file as `reading` does; raise a DataError if it was changed since it was listed."""
    with reading(file.url):
        try:
            yield
        except Exception:
            check_unchanged(file)
            raise
        check_unchanged(file)


class FilesBelow(list[str]):
    """A list of files, with the folder below which names of folders are columns. It is a path like any other list."""

    def __init__(self, files: Iterable[str], root: str) -> None:
        super().__init__(files)
        self.root = root

    def __reduce__(self) -> Any:
        return type(self), (list(self), self.root)


@dataclass(frozen=True)
class DataFiles:
    """The files of a path, by names relative to a folder, which do not depend on how the path is written."""

    #: URL of the folder.
    root: str
    #: By name, in the order in which the rows are read.
    files: dict[str, DataFile]

    @cached_property
    def urls(self) -> dict[str, str]:
        """Full URLs by name."""
        return {name: file.url for name, file in self.files.items()}

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Bytes by name."""
        return {name: file.size or 0 for name, file in self.files.items()}


class _FollowingLinks(LocalFileSystem):
    """The local file system, where a link to a folder is a folder: fsspec would leave out the files in it."""

    def ls(self, path: str, detail: bool = False, **options: Any) -> list[Any]:
        entries = super().ls(path, detail=True, **options)
        for info in entries:
            name = info["name"]
            if info["islink"] and os.path.isdir(name):
                info["type"], folder = "directory", os.path.realpath(name)
                if f"{os.path.realpath(os.path.dirname(name))}/".startswith(f"{folder.rstrip('/')}/") or any(
                    os.path.realpath(above) == folder for above in PurePosixPath(name).parents
                ):
                    raise DataError(f"the folder {shown(folder)} contains itself, by the link {shown(name)}: remove the link")
        return entries if detail else [info["name"] for info in entries]


def find_files(path: Any) -> DataFiles:
    """Return the existing files of a path; finding none is not an error.

    Parameters
    ----------
    path : file, folder, glob or URL

    Raises
    ------
    DataError
        If the path cannot be listed.
    """
    path = path_text(path)
    with reading(path):
        fs, name = filesystem_of(path)
        if has_query(path):
            return _signed_file(fs, name)
        fs = _FollowingLinks() if isinstance(fs, LocalFileSystem) else fs
        fs.invalidate_cache()
        if fs.exists(name) and not fs.isdir(name):
            root, entries = posixpath.dirname(name), {name: fs.info(name)}
        elif fs.isdir(name):
            root, entries = name.rstrip("/") or "/", fs.find(name, detail=True)
            if f"{root.rstrip('/')}/{PREPARED}" in entries:
                raise DataError(
                    f"{shown(path)} is a data set of dboost.prepare, which has the bins of its rows: give the table"
                )
            _check_plain(path, entries)
            entries = _without_hidden(root, len(root.rstrip("/").split("/")), entries)
        elif not MAGIC.search(name):
            root, entries = name, {}
        else:
            root, n_fixed = _fixed(fs, name)
            literal = MAGIC.sub(r"[\g<0>]", root.rstrip("/"))
            glob = "/".join([literal, *name.split("/")[n_fixed:]]) if n_fixed else name
            entries = _without_hidden(name, n_fixed, _matches(fs, glob))
        files = {posixpath.relpath(file, root): stat_file(fs, file, entries[file]) for file in sorted(entries, key=natural_key)}
        return DataFiles(fs.unstrip_protocol(root), files)


def _signed_file(fs: Any, url: str) -> DataFiles:
    """Return the one file of an HTTP URL with a query. Its name and root lack the query, which may be secret."""
    root, name = posixpath.split(without_query(url))
    refused = None
    try:
        files = {name: stat_file(fs, url, fs.info(url))}
    except FileNotFoundError as error:  # fsspec raises it for every status
        files, refused = {}, error.__cause__
    if getattr(refused, "status", 404) != 404:
        raise refused or FileNotFoundError(url)
    return DataFiles(root, files)


def existing_files(path: Any) -> tuple[str, list[DataFile]]:
    """Return the files of a path or a list of paths, and the folder below which names of folders are columns.

    Raises
    ------
    DataError
        If there is no file at one of the paths.
    """
    located = []
    for item in items_of(path):
        of_item = find_files(item)
        if not of_item.files:
            raise no_files_error(item)
        located.append(of_item)
    roots = {item_files.root for item_files in located}
    root = path.root if isinstance(path, FilesBelow) else roots.pop() if len(roots) == 1 else _common(roots)
    return root, [file for item_files in located for file in item_files.files.values()]


def _common(urls: set[str]) -> str:
    parts = [url.split("/") for url in urls]
    n_equal = next((k for k, level in enumerate(zip(*parts, strict=False)) if len(set(level)) > 1), min(map(len, parts)))
    return "/".join(parts[0][:n_equal])


def folder_columns(root: str, files: Sequence[DataFile]) -> list[dict[str, str | None]]:
    """Return for each file the columns in the names of its folders below `root`, as text; None for a missing value."""
    columns = []
    for file in files:
        inside = without_query(file.url).removeprefix(root.rstrip("/") + "/") if root else ""
        pairs = [folder.partition("=") for folder in inside.split("/")[:-1]]
        columns.append(
            {unquote(key): None if value == _MISSING else unquote(value) for key, equals, value in pairs if key and equals}
        )
    return columns


def items_of(path: Any) -> list[str]:
    """Return the paths of a list, or the only one."""
    return [path_text(item) for item in path] if isinstance(path, (list, tuple)) else [path_text(path)]


def natural_key(name: str) -> list[int | str]:
    """Return the key that orders names as people do: part-2 before part-10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


@contextmanager
def reading(path: Any) -> Iterator[None]:
    """Convert errors of the libraries that read files to a DataError that names the path; None converts nothing."""
    try:
        yield
    except DBoostError:
        raise
    except Exception as error:
        if path is None or not (is_failure(error) or isinstance(error, RuntimeError | pa.ArrowException)):
            raise
        kinds = ((ImportError, MissingExtraError), (FileNotFoundError, DataFileMissingError))
        kind = next((ours for theirs, ours in kinds if isinstance(error, theirs)), DataError)
        raise kind(f"cannot read {shown_path(path)}: {reason(error)}") from error


def shown_path(path: Any) -> str:
    """Return a path, a list of paths or a table with versions for messages."""
    if is_stored_table(path):
        return table_name(path)
    return ", ".join(map(shown, path)) if isinstance(path, (list, tuple)) else shown(path)


def table_name(data: Any) -> str:
    """Return the name of a table or scan, for messages."""
    if is_a(data, "dboost.data.sources.added_files", "AddedFiles"):
        return table_name(data.table)
    if is_a(data, "deltalake", "DeltaTable"):
        return shown(data.table_uri)
    if is_a(data, "pyarrow.dataset", "Dataset"):
        files = data.files
        return f"the dataset of {len(files)} files" + (f", the first {shown(files[0])}" if files else "")
    if is_a(data, "pyarrow.dataset", "Fragment"):
        return shown(data.path)
    identifier = data.name() if hasattr(data, "name") else data.table_identifier
    return "the Iceberg table " + (".".join(identifier) if identifier else data.table_metadata.location)


def no_files_error(path: str) -> DataError:
    """Return the error of a path, folder, glob or URL without data files: whether nothing is there, or nothing to read."""
    fs, root = filesystem_of(path)
    if has_query(path) or not fs.isdir(root):
        return DataFileMissingError(f"there is no file at {shown(path)}")
    return DataError(
        f"the folder {shown(path)} has no data files: their names end in .parquet, .csv or .csv.gz, and do not begin with "
        f"'.' or '_'"
    )


def _without_hidden(path: str, n_fixed: int, information: dict[str, Any]) -> dict[str, Any]:
    """Return the data files of a folder or glob. n_fixed : leading parts of the names, which may begin with "." or "_".

    Parts from there on are hidden if they do, unless the glob asks for such names.
    """
    asked = tuple(part[0] for part in path.split("/")[n_fixed:] if part.startswith(("_", ".")))
    return {
        name: info
        for name, info in information.items()
        if name.lower().endswith(PARQUET + CSV)
        and not any(part.startswith(("_", ".")) and not part.startswith(asked) for part in name.split("/")[n_fixed:])
    }


def _fixed(fs: Any, glob: str) -> tuple[str, int]:
    """Return the folder of a glob before its wildcards, and how many parts of the name that is.

    A folder whose name looks like a pattern is itself, as a file is.
    """
    parts = glob.split("/")
    n_fixed = 0
    while n_fixed < len(parts) - 1:
        if MAGIC.search(parts[n_fixed]) and not fs.isdir("/".join(parts[: n_fixed + 1])):
            break
        n_fixed += 1
    return "/".join(parts[:n_fixed]) or "/", n_fixed


def _matches(fs: Any, glob: str) -> dict[str, Any]:
    """Return the files that match a glob, and those in folders that match it and are named like a file, as Dask writes them."""
    matched = fs.glob(glob, detail=True)
    files = {name: info for name, info in matched.items() if info["type"] != "directory"}
    for name, info in matched.items():
        if info["type"] == "directory" and name.lower().endswith(PARQUET + CSV):
            files |= fs.find(name, detail=True)
    return files


def _check_plain(folder: str, names: Iterable[str]) -> None:
    """Raise a DataError if the files of a folder belong to a table format: some of them may have deleted rows."""
    for name in names:
        if f"/{DELTA_LOG}/" in name:
            table, kind = name.partition(f"/{DELTA_LOG}/")[0], "Delta"
            way = "name its folder alone as the data"
        elif name.endswith(ICEBERG) and "/metadata/" in name:
            table, kind = name.rpartition("/metadata/")[0], "Iceberg"
            way = "load it with pyiceberg and pass the table, or name its current .metadata.json"
        else:
            continue
        raise DataError(
            f"{shown(folder)} has the files of the {kind} table {shown(table)}, also those of older versions: {way}"
        )
