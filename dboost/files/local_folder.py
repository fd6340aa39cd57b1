"""Fill a new or an empty folder of this machine: by a rename where that is possible, in place where it is not.

**By a rename.** The files are written to a draft folder beside it, which takes its name in one step. It has the mode, the
access control list, the owner and the group of the empty folder that was there.

**In place**, where a rename is impossible or would be wrong: a mount point (a volume of a container), a folder in a folder
without write permission, a folder of another user whose owner could not be kept, the working folder. The draft is a hidden
folder in it, and its files get their names one after the other. So readers may see some of them for a moment, and a run that
is killed in this moment leaves these.
"""

from __future__ import annotations

import errno
import os
import uuid
from contextlib import suppress

from dboost.files.local_write import take_attributes

#: The draft, and the lease of its run, in a folder that is filled in place.
DRAFT, LEASE = ".dboost-draft", ".dboost-lease.json"
#: Names in a folder that counts as empty: those above, left by a killed run, and what a new ext4 file system has.
NO_CONTENT = frozenset({DRAFT, LEASE, "lost+found"})


def is_replaceable(target: str) -> bool:
    """Return whether a new folder can take the place of a name that is free, or of an empty folder.

    Only the attempt can tell: an empty folder is replaced by an empty one that is equal.
    """
    if not os.path.exists(target):
        return True
    with suppress(OSError):  # it has been removed
        if os.path.samefile(target, os.curdir):
            return False
    folder, base = os.path.split(target)
    trial = os.path.join(folder, f".{base}.{uuid.uuid4().hex[:8]}.part")
    try:
        os.mkdir(trial, 0o700)
        replace_folder(trial, target)
    except OSError:
        with suppress(OSError):
            os.rmdir(trial)
        return False
    return True


def replace_folder(draft: str, target: str) -> None:
    """Rename a folder to a name that is free, or that of an empty folder, whose attributes it gets.

    Raises
    ------
    OSError
        If that is impossible; the folder has its old name.
    """
    if os.path.exists(target) and not take_attributes(draft, target, os.stat(target)):
        raise PermissionError(errno.EPERM, "its owner cannot be kept", target)
    os.rename(draft, target)
