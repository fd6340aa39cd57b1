"""The command line: ``dboost train | predict | inspect | demo | warmup``.

Each command is a module with a function `run(arguments)` that either finishes or raises. What the shell sees is
decided here, once: exit status 0 when the command did what it was asked, 2 when the arguments or the data cannot be
used, 1 when the run failed for another reason, 130 after ^C; and on stderr one sentence instead of a traceback, which
``--debug`` shows.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence

from dboost.cli.arguments import parse
from dboost.errors import DataError, InputTypeError, ModelFileError, ParameterError
from dboost.remote import is_of_store, reason, shown

DONE, FAILED, UNUSABLE, INTERRUPTED = 0, 1, 2, 130

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
    try:
        arguments.run(arguments)
    except KeyboardInterrupt as stop:
        return _say(arguments, str(stop) or "interrupted", INTERRUPTED)
    except MISTAKES as error:
        return _say(arguments, _sentence(error), UNUSABLE)
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
    if getattr(arguments, "debug", False) and status != INTERRUPTED:
        traceback.print_exc()
    print(f"dboost: {text}", file=sys.stderr)
    return status
