"""The frames that Python prints of an error."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path

import dboost

PACKAGE = Path(dboost.__file__).parent


def shown_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return all frames of an error and of the errors that are printed before it."""
    return [frame for link in _links(traceback.TracebackException.from_exception(error)) for frame in link.stack]


def frames_of_dboost(error: BaseException) -> list[traceback.FrameSummary]:
    return [frame for frame in shown_frames(error) if Path(frame.filename).is_relative_to(PACKAGE)]


def _links(error: traceback.TracebackException | None) -> Iterator[traceback.TracebackException]:
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
