"""Files that are there whole or not at all.

A local file is written under another name in the same folder, forced to the disk, and then given its name in one
step; so whoever looks sees the old file or the new one, also after a power cut, and an error leaves nothing behind.
Object stores make a complete object appear in one put.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from dboost._lazy_import import fsspec, is_a
from dboost._storage_errors import is_failure, reason, shown
from dboost.errors import ModelFileError


class FileMissingError(ModelFileError, FileNotFoundError):
    """The file, or the folder that it should go to, does not exist."""


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file, over an older one if there is one.

    Parameters
    ----------
    path : path, or URL that fsspec knows
    data : bytes

    Raises
    ------
    ModelFileError
        Naming the file. What was there before is untouched.
    """
    name = os.fspath(path)
    try:
        filesystem, place = fsspec.url_to_fs(name)
        if is_a(filesystem, "fsspec.implementations.local", "LocalFileSystem"):
            _replace(Path(place), data)
        else:
            filesystem.pipe_file(place, data)
    except Exception as error:
        raise _refusal("write", name, error) from error


def read_whole(path: str | os.PathLike[str]) -> bytes:
    """All bytes of a file.

    Raises
    ------
    ModelFileError
        Naming the file.
    """
    name = os.fspath(path)
    try:
        filesystem, place = fsspec.url_to_fs(name)
        try:
            return filesystem.cat_file(place)
        except FileNotFoundError:
            filesystem.invalidate_cache()  # it may have come since the folder was last looked at
            return filesystem.cat_file(place)
    except Exception as error:
        raise _refusal("read", name, error) from error


def _replace(target: Path, data: bytes) -> None:
    # A link stays a link: the file that it leads to is replaced.
    target = target.resolve()
    if target.is_dir():
        raise IsADirectoryError("it is a folder")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {target.parent}")
    draft = target.with_name(f".{target.name[:100]}.{uuid.uuid4().hex}")
    try:
        with open(draft, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """Force the new name to the disk, where the system can."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def _refusal(verb: str, name: str, error: Exception) -> Exception:
    """The error in our words; one that is not about the file is itself."""
    if not is_failure(error):
        return error
    name = shown(name)
    if isinstance(error, FileNotFoundError):
        why = str(error) if str(error).startswith("there is no folder") else "there is no such file"
        if verb == "write" and "://" in name:
            why = "there is no such place"
        return FileMissingError(f"cannot {verb} {name}: {why}")
    return ModelFileError(f"cannot {verb} {name}: {reason(error)}")
