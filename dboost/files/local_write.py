"""Write a file of this machine: by a rename where that is possible, in place where it is not.

**By a rename.** The content is written to a draft in the same folder, forced to the disk, and renamed in one step. So readers
see the old file or the new one, also after a power failure, and an error leaves nothing behind. The new file has the mode, the
access control list, the owner and the group of the old one, and its draft can be read by its owner only. A file that did not
exist has the mode that `open` gives. Symbolic links are followed. Other hard links of the old file keep the old content.

**In place**, as `open` writes, where a rename is impossible or would be wrong:

* A device or a named pipe is no file that could be replaced. The content is passed on as it is written.
* ``/dev/stdout``, ``/dev/fd/3`` mean an open descriptor. The content is written where the descriptor is, so a shell may append.
* A mounted file (``docker -v model.json:/app/model.json``), a file in a folder without write permission, a file of another user
  whose owner could not be kept, such as one in a folder with the sticky bit. The content is complete before the first byte
  of the file is overwritten, and the disk has room for it; but readers may see a mixture for a moment, and so they may
  after a power failure.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

from dboost.errors import is_full

_DESCRIPTOR = re.compile(r"/proc/([0-9]+)/(?:task/[0-9]+/)?fd/([0-9]+)")
#: Links that are followed until a path counts as a loop, as in Linux.
_MOST_LINKS = 40
#: The folder may not be changed: it is write-protected, read-only, or the name is a mount point.
_UNCHANGEABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EXDEV}
#: Bytes of a content that are held in memory where there can be no draft.
_MOST_HELD = 64 * 2**20


@contextmanager
def replacing(name: str) -> Iterator[IO[bytes]]:
    """Open a binary file that becomes the content of a file at the end of the block; an exception discards it.

    An exception cannot take back what a device, a named pipe or a descriptor has received.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    descriptor = descriptor_of(name)
    if descriptor is not None:
        if sys.stdout is not None and descriptor == 1:
            sys.stdout.flush()  # what was printed before comes first
        with open(os.dup(descriptor), "wb") as file:
            yield file
        return
    target = os.path.realpath(name)
    old = _status(target)
    if old is not None and not stat.S_ISREG(old.st_mode):
        with open(_open_existing(target), "wb") as file:
            yield file
        return
    draft = _create_draft(target, old)
    if draft is None:
        with tempfile.SpooledTemporaryFile(_MOST_HELD) as held:
            yield held
            _overwrite(target, held)
        return
    try:
        with open(draft, "r+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if not _has_taken_its_place(draft, target, old, file):
                _overwrite(target, file)
    finally:
        with suppress(FileNotFoundError):  # it has been renamed
            os.unlink(draft)
    _sync_folder(os.path.dirname(target))


def check_replacing(name: str) -> None:
    """Check that `replacing` can write a file, without a change of it: with a small draft, where there can be one.

    A folder is checked with a draft in it.

    Raises
    ------
    OSError
        If it cannot.
    """
    descriptor = descriptor_of(name)
    if descriptor is not None:
        os.fstat(descriptor)
        return
    target = os.path.realpath(name)
    if os.path.isdir(target):
        target = os.path.join(target, "dboost")
    old = _status(target)
    if old is not None and not stat.S_ISREG(old.st_mode):
        if not os.access(target, os.W_OK):  # opening it would wait for the reader of a pipe
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return
    draft = _create_draft(target, old, f"{uuid.uuid4().hex[:8]}.part")
    if draft is None:
        os.close(_open_existing(target))
        return
    try:
        with open(draft, "wb") as file:
            file.write(b"dboost tests whether it can write here\n")
    finally:
        with suppress(FileNotFoundError):  # another run has removed what looks like the file of a killed one
            os.unlink(draft)


def is_special(name: str) -> bool:
    """Return whether a name is that of a device, a named pipe or a descriptor, which several outputs may share."""
    if descriptor_of(name) is not None:
        return True
    try:
        mode = os.stat(name).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def descriptor_of(name: str) -> int | None:
    """Return the descriptor of this process that a name such as /dev/stdout means; None for names of files."""
    for _ in range(_MOST_LINKS):
        path = os.path.join(os.path.realpath(os.path.dirname(name) or os.curdir), os.path.basename(name))
        match = _DESCRIPTOR.fullmatch(path)
        if match is not None and int(match[1]) == os.getpid():
            return int(match[2])
        if not os.path.islink(path):
            return None
        name = os.path.join(os.path.dirname(path), os.readlink(path))
    return None


def _status(target: str) -> os.stat_result | None:
    """Return the status of a file; None if it does not exist, but could."""
    try:
        status = os.stat(target)
    except FileNotFoundError:
        folder = os.path.dirname(target)
        if not os.path.isdir(folder):
            raise FileNotFoundError(f"there is no folder {folder}") from None
        return None
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError("it is a folder")
    return status


def _create_draft(target: str, old: os.stat_result | None, ending: str = "") -> str | None:
    """Create an empty file beside a file, and return its path; None if the folder lacks the permission and the file exists."""
    folder, base = os.path.split(target)
    short = os.fsencode(base)[:100].decode("utf-8", "ignore")
    draft = os.path.join(folder, f".{short}.{ending or uuid.uuid4().hex}")
    try:
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if old is None else 0o600))
    except OSError as error:
        if old is None or error.errno not in _UNCHANGEABLE:
            raise
        return None
    return draft


def _has_taken_its_place(draft: str, target: str, old: os.stat_result | None, file: IO[bytes]) -> bool:
    """Rename a draft with the attributes of the old file to its name; return False if that is impossible."""
    if old is not None and not take_attributes(file.fileno(), target, old):
        return False
    try:
        os.replace(draft, target)
    except OSError as error:
        if old is None or error.errno not in _UNCHANGEABLE:
            raise
        return False
    return True


def take_attributes(new: int | str, target: str, old: os.stat_result) -> bool:
    """Give a file (by its descriptor) or a folder (by its path) the owner, group, mode and access control list of another.

    Returns
    -------
    bool
        False if this process may not.
    """
    now = os.stat(new)
    if hasattr(os, "chown") and (now.st_uid, now.st_gid) != (old.st_uid, old.st_gid):
        try:
            os.chown(new, old.st_uid, old.st_gid)
        except OSError:
            return False
    if hasattr(os, "listxattr"):
        with suppress(OSError):  # the file system has none
            for attribute in os.listxattr(target):
                with suppress(OSError):  # some only the system may set
                    os.setxattr(new, attribute, os.getxattr(target, attribute))
    if os.chmod in os.supports_fd or isinstance(new, str):
        os.chmod(new, stat.S_IMODE(old.st_mode))
    return True


def _open_existing(target: str) -> int:
    # Without O_CREAT, which Linux may refuse for files of other users in folders with the sticky bit.
    return os.open(target, os.O_WRONLY | getattr(os, "O_BINARY", 0))


def _overwrite(target: str, content: IO[Any]) -> None:
    """Write a complete content into an existing file."""
    size = content.seek(0, os.SEEK_END)
    content.seek(0)
    with open(_open_existing(target), "wb") as file:
        _reserve(file.fileno(), size)
        shutil.copyfileobj(content, file, 2**20)
        file.truncate(size)
        file.flush()
        os.fsync(file.fileno())


def _reserve(descriptor: int, size: int) -> None:
    """Raise the error of a full disk while a file has its old content."""
    before = os.fstat(descriptor).st_size
    if size == 0 or not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if is_full(error):
            os.ftruncate(descriptor, before)
            raise
        # The file system cannot reserve.


def _sync_folder(folder: str) -> None:
    """Force the new name to the disk, where the system supports it."""
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
