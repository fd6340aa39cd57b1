"""The command line: ``dboost train | predict | inspect | prepare | cv | plan | demo | warmup``.

Each command is a module ``<name>_command`` with a function `run(arguments)` that either finishes or raises. `main` converts
errors: exit status 0 for success, 2 for invalid arguments or data, 3 for a new model that ``--gate`` held back, 1 for other
failures, 130 after ^C, 143 after SIGTERM (which a node sends before it is removed); and one sentence on stderr instead of a
traceback, which ``--debug`` shows.
"""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from dboost.cli.arguments import parse, settable_by
from dboost.cli.option_names import in_options
from dboost.errors import (
    DataError,
    DriftWarning,
    InputTypeError,
    ModelFileError,
    ParameterError,
    WorkingFolderError,
    is_of_store,
    is_passing,
    reason,
    shown,
)
from dboost.tracebacks import whole_tracebacks

#: Warnings that come from files in this folder are those of dboost.
_PACKAGE = Path(__file__).parent.parent

DONE, FAILED, UNUSABLE, HELD_BACK, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 130, 143

#: Errors in the user's input, as opposed to failures of the run.
MISTAKES = (DataError, ParameterError, InputTypeError, ModelFileError, FileNotFoundError, PermissionError)


class HeldBackError(Exception):
    """The new model is worse than the old one, which keeps its file."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments after the program's name. Default: those of the process.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the program that starts the command, such as `dboost … 2>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    try:
        arguments = parse(argv)
    except WorkingFolderError as error:  # of a relative path
        return _report(None, str(error), UNUSABLE)
    if isinstance(sys.stdout, io.TextIOWrapper):  # characters that the terminal cannot show are escaped, as on stderr
        sys.stdout.reconfigure(errors="backslashreplace")
    with _termination() as terminated:
        return _run(arguments, terminated)


@contextmanager
def _termination() -> Iterator[list[int]]:
    """Convert SIGTERM to a KeyboardInterrupt; the yielded list is not empty after a signal.

    The first process of a container would ignore SIGTERM otherwise, since the kernel has no default action for it.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # signals can be handled there only
        yield received
        return

    def stop(number: int, frame: object) -> None:
        received.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _plain_warnings(arguments: Any) -> Iterator[None]:
    """Print warnings of dboost as one line, without the position in the code."""
    with warnings.catch_warnings():
        show_others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], filename: str, *where: Any, **more: Any) -> None:
            if issubclass(category, DriftWarning) or Path(filename).is_relative_to(_PACKAGE):
                print(f"dboost: {_in_options(str(message), arguments)}", file=sys.stderr)
            else:
                show_others(message, category, filename, *where, **more)

        warnings.showwarning = show
        yield


@contextmanager
def _log_shown(is_verbose: bool) -> Iterator[None]:
    """Print the log `dboost` on stderr, also what is no warning."""
    log, last_resort = logging.getLogger("dboost"), logging.lastResort
    before = log.level
    if is_verbose and last_resort is not None:
        log.setLevel(logging.INFO)
        last_resort.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(before)
        if last_resort is not None:
            last_resort.setLevel(logging.WARNING)


def _run(arguments: Any, terminated: list[int]) -> int:
    try:
        frames = whole_tracebacks() if getattr(arguments, "debug", False) else nullcontext()
        with _plain_warnings(arguments), _log_shown(getattr(arguments, "verbose", False)), frames:
            arguments.run(arguments)
    except KeyboardInterrupt as stop:
        return _report(arguments, str(stop) or "interrupted", TERMINATED if terminated else INTERRUPTED)
    except MISTAKES as error:
        # An object store that does not respond is not an error of the user: a retry may succeed.
        from dboost.data.columns.roles import MISSING  # importing it takes time that --help does not need

        sentence = _in_options(_sentence(error), arguments)
        if sentence.startswith("target ") and MISSING in sentence and getattr(arguments, "skip_missing_target", None) is False:
            sentence += "; --skip-missing-target leaves these rows out"
        return _report(arguments, sentence, FAILED if is_passing(error) else UNUSABLE)
    except HeldBackError as error:
        return _report(arguments, str(error), HELD_BACK)
    except BrokenPipeError:  # the reader of the output has closed it, as in `dboost inspect … | head`
        sys.stderr.close()
        return DONE
    except Exception as error:
        return _report(arguments, _sentence(error), FAILED)
    return DONE


def _in_options(text: str, arguments: Any) -> str:
    """Return a message with the options of the command in place of keywords."""
    if not hasattr(arguments, "command"):  # of a test
        return text
    settable = settable_by(arguments.command)
    return in_options(text, arguments.options, () if settable is None else settable[0])


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


def _report(arguments: object, text: str, status: int) -> int:
    if getattr(arguments, "debug", False) and status not in (INTERRUPTED, TERMINATED):
        traceback.print_exc()
    print(f"dboost: {text}", file=sys.stderr)
    return status
