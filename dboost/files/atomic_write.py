"""Atomic file writes: a file is either complete or absent.

See `dboost.files.local_write` for local files, and for those that cannot be written so. Object stores make a complete object
visible in one put.
"""

from __future__ import annotations

import os
import posixpath
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dboost._lazy_import import is_a
from dboost.errors import MissingExtraError, ModelFileError, is_failure, reason, shown
from dboost.files.filesystem import filesystem_of
from dboost.files.local_write import check_replacing, replacing
from dboost.files.path_text import path_text


class FileMissingError(ModelFileError, FileNotFoundError):
    """The file, or its folder, does not exist."""


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file, replacing an older one.

    Parameters
    ----------
    path : path, or URL that fsspec knows
    data : bytes

    Raises
    ------
    ModelFileError
        Naming the file. An older file is unchanged.
    """
    with _place(path, "write") as (filesystem, target):
        if _is_local(filesystem):
            with replacing(target) as file:
                file.write(data)
        else:
            filesystem.pipe_file(target, data)


def create_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a new file. A reader may find a local file before its content.

    In a store without conditional writes, two processes may both create the file at the same time.

    Raises
    ------
    FileExistsError
        If there is such a file.
    ModelFileError
        Naming the file.
    """
    with _place(path, "write") as (filesystem, target):
        if _is_local(filesystem):
            file = open(target, "xb")  # noqa: SIM115  (an existing file is not removed)
            try:
                with file:
                    file.write(data)
            except BaseException:  # a full disk: the next run must not find half of it
                os.unlink(target)
                raise
            return
        filesystem.invalidate_cache()
        if filesystem.exists(target):  # some libraries ignore the mode
            raise FileExistsError(os.fspath(path))
        try:
            filesystem.pipe_file(target, data, mode="create")
        except FileExistsError:
            raise
        except Exception:  # the library does not know the mode, or the store the condition
            filesystem.pipe_file(target, data)


def remove(path: str | os.PathLike[str]) -> None:
    """Remove the file of exactly this name, if it exists.

    Raises
    ------
    ModelFileError
        Naming the file.
    """
    with _place(path, "remove") as (filesystem, target):
        filesystem.invalidate_cache()
        with suppress(FileNotFoundError):
            # Not `rm`, in which "model[1].json" also means "model1.json".
            filesystem.rm_file(target)


def names_in(folder: str | os.PathLike[str]) -> list[str]:
    """Return the names of the files and folders in a folder, sorted; none if it does not exist.

    Raises
    ------
    ModelFileError
        Naming the folder.
    """
    with _place(folder, "list") as (filesystem, target):
        target = target.rstrip("/")
        filesystem.invalidate_cache()
        try:
            split_names = [
                str(name_in_store).rstrip("/").rpartition("/") for name_in_store in filesystem.ls(target, detail=False)
            ]
        except FileNotFoundError:
            return []
        # A store may also list an object of the folder's own name.
        return sorted(name for parent, _, name in split_names if parent.strip("/") == target.strip("/"))


def remove_own(folder: str | os.PathLike[str], pattern: re.Pattern[str]) -> None:
    """Remove the files of a folder whose whole names match a pattern, and the folder if nothing else is in it.

    Raises
    ------
    ModelFileError
        Naming the file or folder.
    """
    base = path_text(folder).rstrip("/")
    names = names_in(folder)
    for name in names:
        if pattern.fullmatch(name):
            remove(f"{base}/{name}")
    if all(pattern.fullmatch(name) for name in names):
        with _place(folder, "remove") as (filesystem, target):
            filesystem.invalidate_cache()
            if _is_local(filesystem) or "/" in target.strip("/"):  # a store would remove a bucket
                with suppress(OSError, NotImplementedError):  # stores have no folders; another run may have written into it
                    filesystem.rmdir(target.rstrip("/"))


def try_writing(path: str | os.PathLike[str]) -> None:
    """Write a small file beside a path and remove it, so that a place without permission is noticed before the work.

    Raises
    ------
    ModelFileError
        Naming the path.
    """
    with _place(path, "write") as (filesystem, target):
        if _is_local(filesystem):
            return check_replacing(target)
        folder, base = posixpath.split(target.rstrip("/"))
        trial = posixpath.join(folder, f".{base[:100]}.{uuid.uuid4().hex[:8]}.part")
        try:
            filesystem.pipe_file(trial, b"dboost tests whether it can write here\n")
        except BaseException:
            with suppress(Exception):  # there may be an empty file on a full disk, or none
                filesystem.rm_file(trial)
            raise
        with suppress(FileNotFoundError):  # another run has removed what looks like the file of a killed one
            filesystem.rm_file(trial)


def read_whole(path: str | os.PathLike[str]) -> bytes:
    """Return all bytes of a file.

    Raises
    ------
    ModelFileError
        Naming the file.
    """
    with _place(path, "read") as (filesystem, target):
        if _is_local(filesystem):  # also a pipe, which has no size
            with open(target, "rb") as file:
                return file.read()
        try:
            content: bytes = filesystem.cat_file(target)
        except FileNotFoundError:
            filesystem.invalidate_cache()  # it may be newer than the cached listing
            content = filesystem.cat_file(target)
    return content


@contextmanager
def _place(path: str | os.PathLike[str], verb: str) -> Iterator[tuple[Any, str]]:
    """Yield the file system of a path, and the path there; turn failures into errors that name the path."""
    name = path_text(path)
    try:
        yield filesystem_of(name)
    except FileExistsError:
        raise
    except Exception as error:
        raise _file_error(verb, name, error) from error


def _is_local(filesystem: Any) -> bool:
    return is_a(filesystem, "fsspec.implementations.local", "LocalFileSystem")


def _file_error(verb: str, name: str, error: Exception) -> Exception:
    """Return the error as one of dboost's; an error that is not about the file is returned as it is."""
    if not is_failure(error):
        return error
    name = shown(name)
    if isinstance(error, FileNotFoundError):
        why = str(error) if str(error).startswith("there is no folder") else "there is no such file"
        if verb == "write" and "://" in name:
            why = "there is no such folder or bucket"
        return FileMissingError(f"cannot {verb} {name}: {why}")
    kind = MissingExtraError if isinstance(error, ImportError) else ModelFileError
    return kind(f"cannot {verb} {name}: {reason(error)}")
