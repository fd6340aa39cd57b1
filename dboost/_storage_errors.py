"""Errors of file systems and object stores as messages, and paths without credentials.

Files are opened through fsspec, so an object store is a URL, and its library reads the credentials from the environment
(``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``, a profile, the role of the machine); dboost has no parameters for credentials, so
that none gets into a log or a model. A URL may contain some: ``https://user:word@host/rows`` or a signed
``?X-Amz-Signature=…``. `shown` removes them, and every message uses it.

The libraries of object stores raise errors that are not an `OSError`; they are recognized by the name of their package, because
importing it would take a second.
"""

from __future__ import annotations

import errno
import os
import re
from typing import Any

#: Packages of object stores: their errors concern the location, not dboost.
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
    """Return whether an error concerns a file or its location, as opposed to a bug."""
    return isinstance(error, OSError | EOFError | ValueError | ImportError) or _package(error) in _PACKAGES


def is_of_store(error: BaseException) -> bool:
    """Return whether a library of an object store raised the error."""
    return _package(error) in _PACKAGES


def is_passing(error: BaseException | None) -> bool:
    """Return whether an error or its cause is temporary: no connection, no response in time, or a busy server."""
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
    """Return why a file cannot be used: a clause without credentials, to follow "cannot read …:"."""
    text = getattr(error, "strerror", None) or str(error)
    # Errors of local files have a message for denied access (strerror).
    known = None if getattr(error, "filename", None) else _REASONS.get(type(error).__name__)
    return known or shown(" ".join(str(text).split())) or type(error).__name__


def shown(path: Any) -> str:
    """Return a path, a URL, or a text with URLs without passwords and signatures."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else str(path)
    return _SIGNED.sub(r"\1", _USER.sub("", text))


def missing_bucket(filesystem: Any, place: str) -> str | None:
    """Return the bucket of a location in an object store if it does not exist, else None.

    Only object stores have a name before the first slash. Credentials may allow writing objects but not reading the bucket;
    then the result is None, and writing may fail.
    """
    bucket, slash, _ = place.partition("/")
    if not (bucket and slash) or ":" in bucket:
        return None
    try:
        filesystem.info(bucket)  # exists() is also False for other failures
    except FileNotFoundError:
        return bucket
    except PermissionError:
        pass
    return None


def _package(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]
