"""The text of a path that the user gave: the one place where ``~`` becomes the home folder.

fsspec and shells replace it too, but neither pathlib nor a shell in ``--output=~/model.json``. Paths are replaced before they
are compared, stored, sent to workers or shown, so that every process means the same folder.
"""

from __future__ import annotations

import os

from dboost.errors import InputTypeError

#: Name of the file that every folder of `dboost.prepare` has which one process has written.
PREPARED = "binned.json"


def path_text(path: str | os.PathLike[str]) -> str:
    """Return a path or URL as text, a leading ``~`` or ``~user`` replaced by the home folder, also in ``file://~``."""
    if not isinstance(path, str | os.PathLike):
        raise InputTypeError(f"a path or URL must be text or a path, not {type(path).__name__}")
    text = os.fspath(path)
    if not text:
        raise InputTypeError("a path or URL is empty")
    for scheme in ("file://", "local://"):
        if text.startswith(f"{scheme}~"):
            return scheme + os.path.expanduser(text.removeprefix(scheme))
    return os.path.expanduser(text) if text.startswith("~") else text
