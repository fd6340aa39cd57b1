"""Output files and folders that are either whole or not there.

What is written gets a name of its own beside the final one and is renamed when it is complete, so a run that fails or
is stopped leaves what was there before. Whether the place can be written at all is asked before the work starts, not
after an hour of training. Local paths and URLs (through fsspec) are treated alike.
"""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from dboost.errors import ParameterError


def check(path: str, option: str) -> None:
    """Raise a `ParameterError` when `path` cannot be written: wrong kind, a folder in use, no folder to put it in."""
    files, name = fsspec.url_to_fs(path)
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
        if files.isdir(name):
            files.rmdir(name)
        files.mv(draft, name, recursive=True)
    finally:
        if files.exists(draft):
            files.rm(draft, recursive=True)


def _draft(path: str) -> tuple[Any, str, str]:
    """File system, final name, and a name beside it that no other run uses."""
    files, name = fsspec.url_to_fs(path)
    name = name.rstrip("/")
    folder, base = posixpath.split(name)
    return files, name, posixpath.join(folder, f".{base}.{uuid.uuid4().hex[:8]}.part")
