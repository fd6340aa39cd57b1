"""Output files and folders that are either whole or not there.

What is written gets a name of its own beside the final one and is renamed when it is complete, so a run that fails or
is stopped leaves what was there before. Whether the place can be written at all is asked before the work starts, not
after an hour of training. Local paths and URLs (through fsspec) are treated alike; only that a folder in an object store
appears file by file, in the order of names, since there are no folders to rename there.
"""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from dboost._storage_errors import is_failure, missing_bucket, reason, shown
from dboost.errors import DBoostError, ParameterError


def check(path: str, option: str) -> None:
    """Raise a `ParameterError` when `path` cannot be written: wrong kind, a folder in use, no folder to put it in."""
    with _usable(option, path):
        files, name = fsspec.url_to_fs(path)
        _check_place(files, name, path, option)


def _check_place(files: Any, name: str, path: str, option: str) -> None:
    bucket = missing_bucket(files, name)
    if bucket is not None:
        raise ParameterError(f"{option} {shown(path)}: there is no bucket {bucket}")
    if path.endswith("/"):
        if files.isfile(name):
            raise ParameterError(f"{option} {path} is to be a folder, but there is a file of that name")
        if files.isdir(name) and files.ls(name, detail=False):
            raise ParameterError(f"{option} {path}: the folder exists and is not empty")
    elif files.isdir(name):
        raise ParameterError(f"{option} {path} is a folder: name a file, or end in / to get a file per partition")
    folder = posixpath.dirname(name)
    if isinstance(files, LocalFileSystem) and not files.isdir(folder):
        raise ParameterError(f"{option} {path}: there is no folder {folder}")


@contextmanager
def _usable(option: str, path: str) -> Iterator[None]:
    """What a store says becomes a sentence that names the option."""
    try:
        yield
    except DBoostError:
        raise
    except Exception as error:
        if not is_failure(error):
            raise
        raise ParameterError(f"{option} {shown(path)} cannot be used: {reason(error)}") from error


@contextmanager
def whole(path: str) -> Iterator[Any]:
    """A binary file to write to; it takes the place of `path` when the block ends well, and is removed otherwise."""
    files, name, draft = _draft(path)
    try:
        with files.open(draft, "wb") as file:
            yield file
        files.mv(draft, name)
    finally:
        if files.exists(draft):
            files.rm(draft)


@contextmanager
def whole_folder(path: str) -> Iterator[Callable[[str], Any]]:
    """A function from names to binary files in a new folder, which appears as `path` when the block ends well."""
    files, name, draft = _draft(path)
    files.makedirs(draft)
    try:
        yield lambda file: files.open(posixpath.join(draft, file), "wb")
        if isinstance(files, LocalFileSystem):
            if files.isdir(name):
                files.rmdir(name)
            files.mv(draft, name, recursive=True)
        else:  # a store has no folders to rename: object by object, each of them whole
            for file in sorted(files.find(draft)):
                files.mv(file, name + file.removeprefix(draft))
    finally:
        if files.exists(draft):
            files.rm(draft, recursive=True)


def _draft(path: str) -> tuple[Any, str, str]:
    """File system, final name, and a name beside it that no other run uses."""
    files, name = fsspec.url_to_fs(path)
    name = name.rstrip("/")
    folder, base = posixpath.split(name)
    return files, name, posixpath.join(folder, f".{base}.{uuid.uuid4().hex[:8]}.part")
