"""Object stores and other far places: what goes wrong there, in our words, and what of an address may be shown.

Files are reached through fsspec, so a store is a URL like any other, and the credentials come from the environment as the
store's own library reads it (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``, a profile, the role of the machine); dboost takes
none as parameters, so that none can end in a log or a model. A URL may still hold some: ``https://user:word@host/rows`` or a
signed ``?X-Amz-Signature=…``. `shown` leaves those out, and every message names places by it.

The libraries of the stores raise errors of their own that are no `OSError`; they are told by the package that they come from,
since importing it to name them would cost a second.
"""

from __future__ import annotations

import errno
import os
import re
from typing import Any

#: Packages that talk to stores; what they raise is about the place, not about dboost.
_PACKAGES = {"botocore", "aiobotocore", "boto3", "s3fs", "aiohttp", "gcsfs", "google", "adlfs", "azure", "requests"}
_REASONS = {
    "NoCredentialsError": "there are no credentials in the environment (such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)",
    "PartialCredentialsError": "the credentials in the environment are not complete",
    "NoAuthHandlerFound": "there are no credentials in the environment",
    "PermissionError": "access is denied; the credentials in the environment do not open it",
}
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
    """Whether an error says that a file or its place cannot be used, as opposed to a mistake in the program."""
    return isinstance(error, OSError | EOFError | ValueError | ImportError) or _package(error) in _PACKAGES


def is_of_store(error: BaseException) -> bool:
    """Whether it was raised by a library that talks to stores."""
    return _package(error) in _PACKAGES


def is_passing(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, may be gone the next time: a place that did not answer, or had no time."""
    if error is None:
        return False
    busy = isinstance(error, OSError) and error.errno in (
        errno.EBUSY,
        errno.ECONNREFUSED,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
    )
    silent = isinstance(error, ConnectionError | TimeoutError) or (is_of_store(error) and type(error).__name__ in _PASSING)
    return busy or silent or is_passing(error.__cause__)


def reason(error: BaseException) -> str:
    """Why a file cannot be used: one clause without secrets, for behind "cannot read …:"."""
    text = getattr(error, "strerror", None) or str(error)
    # Local files have their own words (strerror) for denied access.
    known = None if getattr(error, "filename", None) else _REASONS.get(type(error).__name__)
    return known or shown(" ".join(str(text).split())) or type(error).__name__


def shown(path: Any) -> str:
    """A path or URL, or a text with some in it, as it may be printed: without passwords and signatures."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else str(path)
    return _SIGNED.sub(r"\1", _USER.sub("", text))


def missing_bucket(filesystem: Any, place: str) -> str | None:
    """The bucket of a place in a store, when it is known not to exist.

    Only a store has a name before the first slash. Whoever may write objects need not be allowed to look at the bucket: then
    nothing is known, and writing will tell.
    """
    bucket, slash, _ = place.partition("/")
    if not (bucket and slash) or ":" in bucket:
        return None
    try:
        filesystem.info(bucket)  # exists() would take any failure for a no
    except FileNotFoundError:
        return bucket
    except PermissionError:
        pass
    return None


def _package(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]
