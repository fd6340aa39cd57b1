"""The file system of a path or URL: the one place that decides what the text of a path means.

* **A URL** begins with a protocol: ``s3://…``, ``https://…``. Everything else is a file of this machine, whatever its name
  contains. fsspec alone would read ``a::b`` as a chain, and ``data:x`` and ``file:x`` as URLs.
* **A chain** is ``simplecache::s3://bucket/rows.csv`` or ``zip://rows.csv::/tmp/rows.zip``: each link before the last one names
  a file system that works on another one, and the last link is a URL, or a path after an URL such as ``zip://``.
  What exists on this machine under the whole text is a file.
* **The query of an HTTP URL** belongs to the name of the file, and is sent as it is written, because it may be a signature.
  It may be secret, so messages, and whatever is stored, contain the URL without it (`dboost.errors.shown`). Endings such as
  ``.csv`` are looked for before it.
"""

from __future__ import annotations

import os
import re
from typing import Any

from dboost._lazy_import import fsspec
from dboost.files.path_text import path_text

#: File systems of fsspec that work on another one.
_OVER_ANOTHER = {
    "async_wrapper", "asyncwrapper", "blockcache", "cached", "dask", "dir", "filecache", "libarchive", "reference",
    "simplecache", "tar", "zip",
}  # fmt: skip
_PROTOCOL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_OF_THIS_MACHINE = re.compile(r"(file|local):(//|(?=/))")
_HTTP = re.compile(r"(?:^|::)(https?)://")
_INLINE = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(;[\w-]+(=[\w.+-]+)?)*,")


def filesystem_of(path: str | os.PathLike[str]) -> tuple[Any, str]:
    """Return the file system of fsspec that has a path or URL, and its name there: absolute, for a file of this machine.

    Raises
    ------
    ValueError
        If the protocol of a URL is unknown.
    ImportError
        If the library of a store is not installed.
    """
    text = path_text(path)
    if _is_chain(text):
        return fsspec.url_to_fs(text, **_as_written(text))
    protocol = _PROTOCOL.match(text)
    if _INLINE.match(text) and not os.path.lexists(text):
        return fsspec.url_to_fs(text)
    if protocol is None or _OF_THIS_MACHINE.match(text):
        return _local(_OF_THIS_MACHINE.sub("", text, count=1) if not os.path.lexists(text) else text)
    if "::" not in text:
        return fsspec.url_to_fs(text, **_as_written(text))
    kind = fsspec.get_filesystem_class(protocol[1])  # fsspec would look for a chain
    options = kind._get_kwargs_from_urls(text) | _as_written(text).get(protocol[1], {})
    return fsspec.filesystem(protocol[1], **options), kind._strip_protocol(text)


def without_query(url: str) -> str:
    """Return a path or URL without the query of an HTTP URL."""
    return url.partition("?")[0] if has_query(url) else url


def has_query(url: str) -> bool:
    """Return whether a path or URL is an HTTP URL with a query."""
    return "?" in url and _HTTP.search(url.partition("?")[0]) is not None


def _is_chain(text: str) -> bool:
    *over, last = text.split("::")
    if not over or os.path.lexists(text):
        return False
    names = [_PROTOCOL.match(link) for link in over]
    if any((link if name is None else name[1]) not in _OVER_ANOTHER for link, name in zip(over, names, strict=True)):
        return False
    return _PROTOCOL.match(last) is not None or names[-1] is not None or last in fsspec.available_protocols()


def _as_written(text: str) -> dict[str, dict[str, Any]]:
    """Return the options of the HTTP file system, by protocol, by which it sends a query as it is written."""
    is_encoded = has_query(text) and text.isascii() and text.isprintable() and " " not in text
    return {name: {"encoded": True} for name in _HTTP.findall(text.partition("?")[0])} if is_encoded else {}


def _local(name: str) -> tuple[Any, str]:
    files = fsspec.filesystem("file")
    if not os.path.isabs(name):  # fsspec takes a beginning like "file:" for a protocol
        name = os.path.join(os.getcwd(), "" if name == "." else name.removeprefix("./"))
    return files, files._strip_protocol(name)
