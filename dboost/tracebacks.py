"""The traceback of an error that leaves dboost: it ends at the user's own line.

The error of a misspelt column is raised a dozen calls below `dboost.fit`. Its sentence names the column, the rows or the file;
the calls between tell a user nothing, and in a notebook they fill the screen. So the public functions cut the traceback of a
`DBoostError` (`short_traceback`, and `short_tracebacks` for the methods of a class). The errors that caused it stay, without
their frames in dboost and in libraries. Frames of the user's own code stay from the first one on: where a loss or a callback
fails, they are what it shows. Errors of scikit-learn's checks of estimators are cut, too. Other errors are bugs, of dboost or
of a library, and keep all frames.

The environment variable ``DBOOST_DEBUG=1`` keeps all frames of all errors, and so does ``--debug`` of the commands
(`whole_tracebacks`).
"""

from __future__ import annotations

import inspect
import os
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property, wraps
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from dboost.errors import DBoostError, FitInterrupted

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

#: Folders whose code is not the user's: dboost, the installed libraries and Python's own.
_LIBRARIES = tuple(
    f"{folder}{os.sep}"
    for folder in (Path(__file__).parent, *map(sysconfig.get_path, ("purelib", "platlib", "stdlib", "platstdlib")))
)
#: Special methods that users call by an operator or by the name of the class.
_SPECIAL = {"__init__", "__call__", "__getitem__", "__enter__", "__iter__"}
_is_whole: ContextVar[bool] = ContextVar("_is_whole", default=False)


@contextmanager
def whole_tracebacks() -> Iterator[None]:
    """Keep all frames of errors, in this thread."""
    token = _is_whole.set(True)
    try:
        yield
    finally:
        _is_whole.reset(token)


def short_traceback(function: F) -> F:
    """Decorate a function, a generator function or a coroutine function: no frame of dboost is left in its errors."""
    call: Callable[..., Any]
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def call(*args: Any, **keywords: Any) -> Any:
            try:
                return await function(*args, **keywords)
            except (Exception, FitInterrupted) as error:
                _cut(error)
                raise

    elif inspect.isgeneratorfunction(inspect.unwrap(function)):

        @wraps(function)
        def call(*args: Any, **keywords: Any) -> Iterator[Any]:
            try:
                yield from function(*args, **keywords)
            except (Exception, FitInterrupted) as error:
                _cut(error)
                raise

    else:

        @wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            try:
                return function(*args, **keywords)
            except (Exception, FitInterrupted) as error:
                _cut(error)
                raise

    return call  # type: ignore[return-value]


def short_tracebacks(cls: C) -> C:
    """Decorate a class: as `short_traceback`, all public methods and properties."""
    for name, member in [*vars(cls).items()]:
        if name.startswith("_") and name not in _SPECIAL:
            continue
        if inspect.isfunction(member):
            setattr(cls, name, short_traceback(member))
        elif isinstance(member, classmethod | staticmethod):
            setattr(cls, name, type(member)(short_traceback(member.__func__)))
        elif isinstance(member, property) and member.fget is not None:
            setattr(cls, name, property(short_traceback(member.fget), member.fset, member.fdel, member.__doc__))
        elif isinstance(member, cached_property):
            member.func = short_traceback(member.func)
    return cls


def _cut(error: BaseException) -> None:
    """Remove the frames of dboost and of libraries from an error and its causes; those of a bug stay. `raise` follows."""
    if _is_whole.get() or os.environ.get("DBOOST_DEBUG", "0") not in ("", "0"):
        return
    users = _of_user(error)
    if users is not None or isinstance(error, DBoostError | FitInterrupted) or _is_of_sklearn(error):
        error.__traceback__ = users
    cause, seen = _cause_of(error), {id(error)}
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if any(_is_of_dboost(frame) for frame in _frames(cause.__traceback__)):  # others were there before the call
            cause.__traceback__ = _of_user(cause)
        cause = _cause_of(cause)


def _is_of_sklearn(error: BaseException) -> bool:
    """Return whether scikit-learn has raised an error, in its checks of estimators and of their arguments."""
    *_, last = _frames(error.__traceback__)
    return str(last.tb_frame.f_globals.get("__name__")).startswith("sklearn.")


def _of_user(error: BaseException) -> TracebackType | None:
    """Return the traceback of an error from the first frame of the user's code on."""
    return next((frame for frame in _frames(error.__traceback__) if _is_of_user(frame)), None)


def _cause_of(error: BaseException) -> BaseException | None:
    """Return the error that Python prints before another one."""
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _frames(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _is_of_dboost(frame: TracebackType) -> bool:
    return _file_of(frame).startswith(_LIBRARIES[0])


def _is_of_user(frame: TracebackType) -> bool:
    return not _file_of(frame).startswith((*_LIBRARIES, "<frozen"))


def _file_of(frame: TracebackType) -> str:
    """Return the file of a frame; of generated code, such as the constructors of dataclasses, that of its module."""
    return frame.tb_frame.f_globals.get("__file__") or frame.tb_frame.f_code.co_filename
