"""The command line: ``dboost train | predict | inspect | demo | warmup``.

Each command is a module with a function `run(arguments)` that either finishes or raises. What the shell sees is
decided here, once: exit status 0 when the command did what it was asked, 2 when the arguments or the data cannot be
used, 1 when the run failed for another reason, 130 after ^C, 143 when the system asks the process to end (as it does before
a node is taken away); and on stderr one sentence instead of a traceback, which ``--debug`` shows.
"""

from __future__ import annotations

import io
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dboost._storage_errors import is_of_store, is_passing, reason, shown
from dboost.cli.arguments import parse
from dboost.errors import DataError, DriftWarning, InputTypeError, ModelFileError, ParameterError

DONE, FAILED, UNUSABLE, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143

#: Mistakes in what the user gave, as opposed to a run that went wrong.
MISTAKES = (DataError, ParameterError, InputTypeError, ModelFileError, FileNotFoundError, PermissionError)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the return value is the exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments after the program's name; default: those of the process.
    """
    arguments = parse(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal that cannot show a name shows its escape, as stderr does
        sys.stdout.reconfigure(errors="backslashreplace")
    with _termination() as terminated:
        return _run(arguments, terminated)


@contextmanager
def _termination() -> Iterator[list[int]]:
    """While this is open, SIGTERM ends the work as ^C does; the list is then no longer empty.

    The first process of a container would not hear of it otherwise, since for that one the system has no default.
    """
    heard: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # only there may signals be handled
        yield heard
        return

    def stop(number: int, frame: object) -> None:
        heard.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield heard
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Our own warnings as one line, without the place in the code."""
    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, DriftWarning):
                print(f"dboost: {message}", file=sys.stderr)
            else:
                others(message, category, *where, **more)

        warnings.showwarning = show
        yield


def _run(arguments: Any, terminated: list[int]) -> int:
    try:
        with _plain_warnings():
            arguments.run(arguments)
    except KeyboardInterrupt as stop:
        return _say(arguments, str(stop) or "interrupted", TERMINATED if terminated else INTERRUPTED)
    except MISTAKES as error:
        # A store that does not answer is nobody's mistake, and worth another try.
        return _say(arguments, _sentence(error), FAILED if is_passing(error) else UNUSABLE)
    except BrokenPipeError:  # the reader of our output has seen enough, as in `dboost inspect … | head`
        sys.stderr.close()
        return DONE
    except Exception as error:
        return _say(arguments, _sentence(error), FAILED)
    return DONE


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    if is_of_store(error):
        return reason(error)
    text = " ".join(shown(error).split())
    known = type(error).__module__.startswith("dboost")
    if known and text:
        return text
    return f"{type(error).__name__}: {text}".removesuffix(": ") + " (--debug shows where)"


def _say(arguments: object, text: str, status: int) -> int:
    if getattr(arguments, "debug", False) and status not in (INTERRUPTED, TERMINATED):
        traceback.print_exc()
    print(f"dboost: {text}", file=sys.stderr)
    return status
