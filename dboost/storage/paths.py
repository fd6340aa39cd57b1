"""The text of a path that the user gave: the one place where ``~`` becomes the home folder.

fsspec and shells replace it too, but neither pathlib nor a shell in ``--output=~/model.json``. Paths are replaced before they
are compared, stored, sent to workers or shown, so that every process means the same folder.
"""

from __future__ import annotations

import os


def path_text(path: str | os.PathLike[str]) -> str:
    """Return a path or URL as text, a leading ``~`` or ``~user`` replaced by the home folder, also in ``file://~``."""
    text = os.fspath(path)
    for scheme in ("file://", "local://"):
        if text.startswith(f"{scheme}~"):
            return scheme + os.path.expanduser(text.removeprefix(scheme))
    return os.path.expanduser(text) if text.startswith("~") else text
