"""Errors and warnings of dboost.

Every error derives from `DBoostError`, and from Python's corresponding class: an invalid value is also a `ValueError`, a wrong
type also a `TypeError`. So code that was written for scikit-learn catches them. Messages name the column, rows, partition,
worker or file. Warnings name the line of the user's code that called dboost (`warn`); those of a command name a line of
`dboost.cli`, and those of a thread that dboost has started a line of dboost.

**Object stores.** Files are opened by fsspec, so a store is a URL, and its library reads credentials from the environment
(``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``, a profile, the role of the machine). dboost has no parameters for credentials, so
that none appear in a log or a model. A URL may contain some, such as ``https://user:password@host/rows`` or a signed
``?X-Amz-Signature=…``; `shown` removes them, and every message passes its paths through it.

The libraries of stores raise errors that are not `OSError`. They are recognized by their package, since importing it takes
about 1 s.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import warnings
from types import FrameType
from typing import Any, Self


class DBoostError(Exception):
    """Base class of all errors of dboost."""

    #: Partition and row that an error is about. Of the errors of several processes that of the first row is raised.
    position: tuple[int, int] | None = None

    def at(self, row: object) -> Self:
        """Note the row that the error is about, and return the error. row : a `RowPlace`; without effect for a text."""
        self.position = tuple(row[:2]) if isinstance(row, tuple) else None
        return self


class DataError(DBoostError, ValueError):
    """The data are invalid; the message names the column, and the partition or rows."""


class ColumnKindsError(DataError):
    """A column holds numbers in some partitions, and text or categories in others."""


class DataFileMissingError(DataError, FileNotFoundError):
    """There is no file or folder at the path of the data."""


class WorkingFolderError(DBoostError, FileNotFoundError):
    """A path is relative, and the working folder of the process was removed."""


class ParameterError(DBoostError, ValueError):
    """A parameter has an invalid or unsupported value."""


class InputTypeError(DBoostError, TypeError):
    """An argument has an unsupported type."""


class ModelFileError(DBoostError, ValueError):
    """A model file is damaged, truncated, or has an unknown format."""


class MissingExtraError(DBoostError, ImportError):
    """An optional library is not installed; the message names the extra that installs it."""


class DriftWarning(UserWarning):
    """Incremental training uses data that differ from the data that the model was trained on."""


class FitInterrupted(KeyboardInterrupt):
    """A fit was interrupted by ^C. `ensemble` is the model of the finished iterations, `iterations` their number."""

    def __init__(self, message: str, ensemble: Any, iterations: int) -> None:
        super().__init__(message)
        self.ensemble = ensemble
        self.iterations = iterations


#: Packages of stores; their errors concern the storage, not dboost.
_PACKAGES = {"botocore", "aiobotocore", "boto3", "s3fs", "aiohttp", "gcsfs", "google", "adlfs", "azure", "requests"}
#: Modules of decompression, whose own errors mean that a file is damaged.
_DECOMPRESSION = {"zipfile", "zlib", "_lzma"}
_REASONS = {
    "NoCredentialsError": "there are no credentials in the environment (such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)",
    "PartialCredentialsError": "the credentials in the environment are not complete",
    "NoAuthHandlerFound": "there are no credentials in the environment",
    "PermissionError": "access is denied; the credentials in the environment do not open it",
}
#: The extra that installs the library of a store.
_EXTRAS = {"s3fs": "s3", "gcsfs": "gcs"}
_PASSING = {
    "EndpointConnectionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "ConnectionClosedError",
    "HTTPClientError",
    "ClientConnectorError",
    "ServerDisconnectedError",
    "ServerTimeoutError",
}
_USER = re.compile(r"(?<=://)[^/@\s]*@")
_SIGNED = re.compile(r"(\bhttps?://[^?\s\"']*)\?[^\s\"']*")


def is_failure(error: BaseException) -> bool:
    """Return whether an error means that a file or its storage cannot be used, as opposed to a bug in the program."""
    known = isinstance(error, OSError | EOFError | ValueError | ImportError)
    return known or _package(error) in _PACKAGES or _package(error) in _DECOMPRESSION


def is_out_of_descriptors(error: BaseException | None) -> bool:
    """Return whether an error, or one that has caused it, means that the process or the machine has too many open files."""
    if error is None:
        return False
    exhausted = isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
    return exhausted or is_out_of_descriptors(error.__cause__ or error.__context__)


def out_of_descriptors(process: str, task: str) -> DBoostError:
    """Return the error to raise then. process : has too many open files; task : it could not do."""
    return DBoostError(f"{process} has too many open files and connections to {task}: {_MORE_DESCRIPTORS}")


_MORE_DESCRIPTORS = "raise its limit of open files (RLIMIT_NOFILE), such as by `ulimit -n 65536` in the shell that starts it"


def is_of_store(error: BaseException) -> bool:
    """Return whether the library of a store raised the error."""
    return _package(error) in _PACKAGES


#: The disk or a quota is used up, or a file would be larger than the process may write.
_FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


def is_full(error: BaseException | None) -> bool:
    """Return whether an error or its cause means that there is no room for a file."""
    return error is not None and (_says_full(error) or is_full(error.__cause__))


def _says_full(error: BaseException) -> bool:
    """Return whether an error means that there is no room; libraries in Rust have the number of the system in the text."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _FULL
    number = re.search(r"\(os error (\d+)\)", str(error))
    return getattr(error, "sqlite_errorname", "") == "SQLITE_FULL" or (number is not None and int(number[1]) in _FULL)


def is_passing(error: BaseException | None) -> bool:
    """Return whether an error or its cause may be temporary: the storage did not respond, was overloaded, or is full."""
    if error is None:
        return False
    busy = isinstance(error, OSError) and error.errno in (
        errno.EBUSY,
        errno.ECONNREFUSED,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
    )
    silent = isinstance(error, ConnectionError | TimeoutError) or (is_of_store(error) and type(error).__name__ in _PASSING)
    return busy or silent or is_full(error) or is_passing(error.__cause__)


def reason(error: BaseException) -> str:
    """Return why a file cannot be used: a clause without secrets, to follow "cannot read …:"."""
    text = getattr(error, "strerror", None) or str(error)
    # For local files strerror describes denied access.
    known = None if getattr(error, "filename", None) else _REASONS.get(type(error).__name__)
    if isinstance(error, ImportError):
        library = next((library for library in _EXTRAS if library in str(text)), None)
        known = None
        if library is not None:
            known = f"{library} is not installed; it comes with the extra: pip install 'dboost[{_EXTRAS[library]}]'"
    if known is None and is_out_of_descriptors(error):
        known = f"the process has too many open files and connections: {_MORE_DESCRIPTORS}"
    why = known or shown(" ".join(str(text).split())) or type(error).__name__
    return f"{why}: {MORE_ROOM}" if _says_full(error) else why


#: What to do when there is no room for a file.
MORE_ROOM = "free some space, or write to another disk, and try again"


def shown(path: Any) -> str:
    """Return a path or URL, or a text that contains some, without passwords and signatures."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else str(path)
    return _SIGNED.sub(r"\1", _USER.sub("", text))


def missing_bucket(filesystem: Any, path: str) -> str | None:
    """Return the bucket of a path in a store if it does not exist.

    Only a store has a name before the first slash. If the credentials allow writing objects but not inspecting the bucket,
    return None: writing will then succeed or fail.
    """
    bucket, slash, _ = path.partition("/")
    if not (bucket and slash) or ":" in bucket:
        return None
    try:
        filesystem.info(bucket)  # exists() returns False for any failure
    except FileNotFoundError:
        return bucket
    except PermissionError:
        pass
    return None


def _package(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]


_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_COMMANDS = os.path.join(_PACKAGE, "cli", "")
#: scikit-learn's callbacks wrap `fit` of the estimators.
_WRAPPER = os.path.join("sklearn", "callback", "")
#: Between the generator of a context manager and the function that enters it.
_CONTEXTS = contextlib.__file__
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
    return (file.startswith(_PACKAGE) and not file.startswith(_COMMANDS)) or _WRAPPER in file or file == _CONTEXTS
