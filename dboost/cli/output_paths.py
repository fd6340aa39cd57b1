"""Output paths of the commands: checked before the work starts, and written in pieces but atomically.

`whole` and `whole_folder` write under a temporary name beside the final one and rename it at the end, so a failed run leaves
the previous output (`dboost.files.local_write` and `dboost.files.local_folder` say for which files and folders that is
impossible). They are for outputs larger than memory; `dboost.files.atomic_write` writes bytes. Local paths and URLs (through
fsspec) behave alike, except that a folder in an object store appears file by file, in the order of names, because object stores
cannot rename folders.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any

from fsspec.implementations.local import LocalFileSystem

from dboost.data.sources.files import find_files
from dboost.errors import DBoostError, ModelFileError, ParameterError, is_failure, is_full, missing_bucket, reason, shown
from dboost.files.atomic_write import try_writing
from dboost.files.filesystem import filesystem_of
from dboost.files.lease import Lease
from dboost.files.local_folder import DRAFT, LEASE, NO_CONTENT, is_replaceable, replace_folder
from dboost.files.local_write import descriptor_of, is_special, replacing
from dboost.rows.block_file import StorageError


def not_existing(path: str, option: str) -> str:
    """Return the default path of an output; a default never replaces a file, unlike a path that the user names.

    Raises
    ------
    ParameterError
        If there is such a file.
    """
    with _usable(option, path):
        files, name = filesystem_of(path)
        if files.exists(name):
            raise ParameterError(f"{path} exists: name another file with {option}, or replace this one with --overwrite")
    return path


def check(path: str, option: str) -> None:
    """Raise a `ParameterError` if `path` cannot be written: wrong kind, a folder with files, a missing folder, no permission.

    A small file is written beside it and removed again.
    """
    if path == "-":
        raise ParameterError(f"{option} -: only predictions are written to standard output; name a file")
    with _usable(option, path):
        files, name = filesystem_of(path)
        _check_target(files, name, path, option)
    check_writable(path, option)


def check_writable(path: str, option: str) -> None:
    """Raise a `ParameterError` if a file beside `path` cannot be written; one is written and removed again."""
    try:
        try_writing(path)
    except ModelFileError as error:
        raise ParameterError(f"{option}: {error}") from error


def check_separate(written: Mapping[str, str | None], read: Mapping[str, str | None]) -> None:
    """Raise a `ParameterError` if two outputs are the same file, or if one is a file that the command reads.

    Both are paths by option or argument; None if it is not given.
    """
    taken: dict[str, str] = {}
    for option, path in read.items():
        if path is not None and not _is_special(path):
            taken |= dict.fromkeys(_files_of(path), option)
    for option, path in written.items():
        if path is None or _is_special(path):
            continue
        (file,) = _same_name([path])
        if file in taken:
            raise ParameterError(
                f"{option} {shown(path)} is also that of {taken[file]}, which it would replace: name another file"
            )
        taken[file] = option


def _is_special(path: str) -> bool:
    files, name = filesystem_of(path)
    return isinstance(files, LocalFileSystem) and is_special(name)


def summary_file(path: str) -> IO[str]:
    """Return where a command prints its summary: on standard error if the output itself is on standard output."""
    files, name = filesystem_of(path)
    is_stdout = isinstance(files, LocalFileSystem) and descriptor_of(name) == 1
    return sys.stderr if is_stdout else sys.stdout


def _files_of(path: str) -> list[str]:
    """Return the files that are read at a path, as far as they can be listed."""
    try:
        return _same_name([path, *find_files(path).urls.values()])
    except DBoostError:  # the command itself will tell
        return []


def _same_name(paths: Sequence[str]) -> list[str]:
    """Return the one name that each file has however its path is written."""
    names = []
    for path in paths:
        files, name = filesystem_of(path)
        names.append(os.path.realpath(name) if isinstance(files, LocalFileSystem) else files.unstrip_protocol(name))
    return names


def _check_target(files: Any, name: str, path: str, option: str) -> None:
    files.invalidate_cache()
    bucket = missing_bucket(files, name)
    if bucket is not None:
        raise ParameterError(f"{option} {shown(path)}: there is no bucket {bucket}")
    if path.endswith("/"):
        is_file = isinstance(files, LocalFileSystem) and is_special(name.rstrip("/"))
        name = _folder_name(files, name)
        if is_file or (not files.isdir(name) and files.exists(name)):
            raise ParameterError(f"{option} {path} is to be a folder, but there is a file of that name")
        if content_of(files, name):
            raise ParameterError(f"{option} {path}: the folder exists and is not empty")
    elif files.isdir(name):
        raise ParameterError(f"{option} {path} is a folder: name a file, or end in / to get a file per partition")
    folder = posixpath.dirname(name)
    if isinstance(files, LocalFileSystem) and not files.isdir(folder):
        raise ParameterError(f"{option} {path}: there is no folder {folder}")


def content_of(files: Any, folder: str) -> list[str]:
    """Return the names in a folder, but for what an empty folder may have; none if there is no folder."""
    if not files.isdir(folder):
        return []
    names = [posixpath.basename(path.rstrip("/")) for path in files.ls(folder, detail=False)]
    return [name for name in names if name not in NO_CONTENT]


@contextmanager
def _usable(option: str, path: str) -> Iterator[None]:
    """Convert errors of the file system to a `ParameterError` that names the option."""
    try:
        yield
    except DBoostError:
        raise
    except Exception as error:
        if not is_failure(error):
            raise
        raise ParameterError(f"{option} {shown(path)} cannot be used: {reason(error)}") from error


@contextmanager
def _room_for(path: str) -> Iterator[None]:
    """Name the output in the error of a full disk."""
    try:
        yield
    except OSError as error:
        if isinstance(error, DBoostError) or not is_full(error):
            raise
        raise StorageError(f"cannot write {shown(path)}: {reason(error)}") from error


@contextmanager
def whole(path: str) -> Iterator[Any]:
    """Open a binary file that replaces `path` at the end of the block; an exception removes it."""
    files, name, draft = _draft(path)
    if isinstance(files, LocalFileSystem):
        with _room_for(path), replacing(name) as file:
            yield file
        return
    with _room_for(path):
        try:
            with files.open(draft, "wb") as file:
                yield file
            _move(files, draft, name)
        finally:
            _remove(files, draft)


@contextmanager
def whole_folder(path: str) -> Iterator[Callable[[str], Any]]:
    """Yield a function that opens a file in a new folder, which becomes `path` at the end of the block.

    path : ends in "/". One run at a time writes it, see `files.lease`.
    """
    files, name, draft = _draft(path, follow=True)
    is_local = isinstance(files, LocalFileSystem)
    has_place = is_local and is_replaceable(name)
    lease_file = f"{name if is_local else path.rstrip('/')}.lease.json"
    if is_local and not has_place:
        draft, lease_file = f"{name}/{DRAFT}", f"{name}/{LEASE}"
    written: list[str] = []

    def create(file: str) -> Any:
        written.append(file)
        return files.open(f"{draft}/{file}", "wb")

    with _room_for(path), Lease(lease_file, f"is writing {shown(path)}") as lease:
        _check_target(files, name, path, "--output")  # another run may have written it meanwhile
        if not has_place and is_local:
            shutil.rmtree(draft, ignore_errors=True)  # of a killed run
        try:
            files.makedirs(draft)
            yield create
            lease.renew()
            if has_place:
                replace_folder(draft, name)
            else:  # move file by file
                for file in sorted(written):
                    lease.check()
                    _move(files, f"{draft}/{file}", f"{name}/{file}")
        finally:
            for file in written:
                _remove(files, f"{draft}/{file}")
            with suppress(OSError, NotImplementedError):  # it has been renamed, or the store has no folders
                files.rmdir(draft)


@contextmanager
def new_local_folder(path: str, entry: str) -> Iterator[str]:
    """Yield the place of a folder that becomes `path` at the end of the block if `path` has no such entry; otherwise `path`.

    An exception removes it. In object stores, which cannot rename folders, and for folders whose place it cannot take, it is
    `path`.
    """
    files, name, draft = _draft(path, follow=True)
    if not isinstance(files, LocalFileSystem) or files.exists(f"{name}/{entry}") or not is_replaceable(name):
        yield path
        return
    try:
        yield draft
        try:
            replace_folder(draft, name)
        except OSError as error:
            if not files.exists(f"{name}/{entry}"):
                raise
            raise StorageError(f"another run has made {shown(path)} meanwhile: try again") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _move(files: Any, source: str, target: str) -> None:
    """Move the file of exactly this name; in `mv` of fsspec "p[1].csv" also means "p1.csv"."""
    if isinstance(files, LocalFileSystem):
        os.replace(source, target)
    else:
        files.cp_file(source, target)
        files.rm_file(source)


def _remove(files: Any, name: str) -> None:
    """Remove the file of exactly this name, if it exists."""
    with suppress(FileNotFoundError):
        files.rm_file(name)


def _draft(path: str, *, follow: bool = False) -> tuple[Any, str, str]:
    """File system, final name, and a unique temporary name beside it; follow : links, as for a folder."""
    files, name = filesystem_of(path)
    name = _folder_name(files, name) if follow else name.rstrip("/")
    folder, base = posixpath.split(name)
    return files, name, posixpath.join(folder, f".{base}.{uuid.uuid4().hex[:8]}.part")


def _folder_name(files: Any, name: str) -> str:
    """Return the name of a folder, which a link of this machine may stand for."""
    name = name.rstrip("/")
    return os.path.realpath(name) if isinstance(files, LocalFileSystem) else name
