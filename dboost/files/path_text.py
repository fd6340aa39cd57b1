"""The text of a path that the user gave: the one place where ``~`` becomes the home folder.

fsspec and shells replace it too, but neither pathlib nor a shell in ``--output=~/model.json``. Paths are replaced before they
are compared, stored, sent to workers or shown, so that every process means the same folder.
"""

from __future__ import annotations

import os

from dboost.errors import InputTypeError, WorkingFolderError

#: Name of the description of a data set of `dboost.prepare`.
PREPARED = "dataset.json"


def path_text(path: str | os.PathLike[str]) -> str:
    """Return a path or URL as text, a leading ``~`` or ``~user`` replaced by the home folder, also in ``file://~``.

    Raises
    ------
    InputTypeError
        If it is no path, or empty.
    WorkingFolderError
        If it is relative to a working folder that does not exist any more.
    """
    if not isinstance(path, str | os.PathLike):
        raise InputTypeError(f"a path or URL must be text or a path, not {type(path).__name__}")
    text = os.fspath(path)
    if not text:
        raise InputTypeError("a path or URL is empty")
    for scheme in ("file://", "local://"):
        if text.startswith(f"{scheme}~"):
            return scheme + os.path.expanduser(text.removeprefix(scheme))
    text = os.path.expanduser(text) if text.startswith("~") else text
    if not os.path.isabs(text) and "://" not in text:
        try:
            os.getcwd()
        except FileNotFoundError as error:
            raise WorkingFolderError(
                f"{text} is below the working folder of this process, which was removed: give an absolute path, or go to a "
                "folder that exists (os.chdir)"
            ) from error
    return text
