"""Warnings that name the line of the user's code, not one of dboost."""

from __future__ import annotations

import os
import sys
import warnings
from types import FrameType

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
#: scikit-learn's callbacks wrap `fit` of the estimators.
_WRAPPER = os.path.join("sklearn", "callback", "")


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning at the line that called dboost."""
    frame: FrameType | None = sys._getframe()
    depth = 0
    while frame is not None and (frame.f_code.co_filename.startswith(_PACKAGE) or _WRAPPER in frame.f_code.co_filename):
        frame, depth = frame.f_back, depth + 1
    warnings.warn(message, category, stacklevel=depth + 1)
