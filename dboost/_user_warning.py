"""Warnings that name the line of the user's code, not one of dboost.

Those of a command name a line of `dboost.cli`, and those of a thread that dboost has started a line of dboost.
"""

from __future__ import annotations

import os
import sys
import warnings
from types import FrameType

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_COMMANDS = os.path.join(_PACKAGE, "cli", "")
#: scikit-learn's callbacks wrap `fit` of the estimators.
_WRAPPER = os.path.join("sklearn", "callback", "")
_THREAD = os.path.join("concurrent", "futures", "thread.py")


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning at the line that called dboost."""
    frame: FrameType | None = sys._getframe()
    depth = 1
    while frame is not None and _is_ours(frame.f_code.co_filename):
        frame, depth = frame.f_back, depth + 1
    if frame is not None and frame.f_code.co_filename.endswith(_THREAD):
        depth -= 1
    warnings.warn(message, category, stacklevel=depth)


def _is_ours(file: str) -> bool:
    return (file.startswith(_PACKAGE) and not file.startswith(_COMMANDS)) or _WRAPPER in file
