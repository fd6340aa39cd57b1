"""The compact form of a model file: the content of the JSON form, with the trees as compressed arrays.

::

    dboost arrays, version 1
    <digest of all that follows this line>
    <zlib: length of the header (8 bytes), header, arrays>

The header is the JSON of everything but the trees, with their number. The arrays follow in the order of `ARRAYS`,
little-endian, for the nodes of all trees. Each array has the first bytes of all numbers first, then the second ones and so on,
because the high bytes of neighbours are similar and compress well. Lengths follow from the preceding content, so no sizes can
contradict each other; missing or surplus bytes are an error. `dboost.model.parsing` checks the result like that of JSON.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dboost.model.ensemble import Tree
from dboost.model.parsing import InvalidModel

SUFFIX = ".dboost"
#: Limits of decompression: bytes, and for larger files bytes per byte of the file. Trees compress to a quarter or more; content
#: that compresses to less than a sixteenth is written without compression.
_SMALL, _RATIO = 4 << 20, 16
_MAGIC = b"dboost arrays, version "
_FIRST_LINES = re.compile(_MAGIC + rb"([1-9][0-9]{0,8})\n([0-9a-f]{64})\n")

#: Name, dtype, and nodes with an entry: all, splits, or numeric splits.
ARRAYS: tuple[tuple[str, str, str], ...] = (
    ("feature", "<i4", "all"),
    ("missing_left", "|u1", "splits"),
    ("threshold", "<f8", "numeric"),
    ("gain", "<f8", "all"),
    ("cover", "<f8", "all"),
    ("count", "<i8", "all"),
    ("value", "<f8", "all"),
)


def is_compact(data: bytes) -> bool:
    """Return whether a file starts like one of the compact form."""
    return data.startswith(_MAGIC)


def version_of(data: bytes) -> int | None:
    """Return the format version of a file; None if its first lines cannot be read."""
    found = _FIRST_LINES.match(data)
    return int(found[1]) if found else None


def pack(header: dict[str, Any], trees: Sequence[Tree], is_categorical: np.ndarray, version: int) -> bytes:
    """Return the bytes of a file.

    Parameters
    ----------
    header : dict of JSON types
        Everything but the trees.
    trees : sequence of Tree
    is_categorical : bool[n_features]
    version : int
    """
    text = json.dumps(header | {"trees": len(trees)}, separators=(",", ":"), allow_nan=False).encode()
    parts = [len(text).to_bytes(8, "little"), text, _bytes(np.array([tree.n_nodes for tree in trees], "<i4"))]
    feature = _joined(trees, "feature", np.dtype("<i4"))
    of = _kinds(feature, is_categorical)
    for name, dtype, nodes in ARRAYS:
        parts.append(_bytes(_joined(trees, name, np.dtype(dtype))[of[nodes]]))
    sets = [codes for tree in trees for codes in tree.categories if codes is not None]
    parts.append(_bytes(np.array([len(codes) for codes in sets], "<i4")))
    parts.append(_bytes(np.concatenate([np.empty(0, "<u2"), *sets]).astype("<u2")))
    joined = b"".join(parts)
    content = zlib.compress(joined, 6)
    if len(joined) > _allowed(len(content)):
        content = zlib.compress(joined, 0)
    return _MAGIC + f"{version}\n{hashlib.sha256(content).hexdigest()}\n".encode() + content


def unpack(data: bytes, is_categorical: Callable[[Any], np.ndarray]) -> dict[str, Any]:
    """Return the content of the JSON form, with arrays for the lists in trees.

    is_categorical : function from the header to bool[n_features].

    Raises
    ------
    InvalidModel
        If the content is damaged, cut short or inconsistent.
    """
    first = _FIRST_LINES.match(data)
    if first is None:
        raise InvalidModel("its first lines are damaged")
    content = memoryview(data)[first.end() :]
    if hashlib.sha256(content).hexdigest() != first[2].decode():
        raise InvalidModel("it is damaged, cut short or was edited: its content does not match its checksum")
    reader = _Reader(_decompressed(content))
    header = json.loads(reader.take(int.from_bytes(reader.take(8), "little")))
    if not isinstance(header, dict) or type(header.get("trees")) is not int or not 0 <= header["trees"] <= len(data) * 1032:
        raise InvalidModel("its header has no number of trees")
    sizes = reader.array("<i4", header["trees"])
    if (sizes < 1).any():
        raise InvalidModel("a tree has no nodes")
    feature = reader.array("<i4", int(sizes.sum(dtype=np.int64)))
    categorical = is_categorical(header)
    if len(feature) and not (feature.min() >= -1 and feature.max() < len(categorical)):
        raise InvalidModel("a split is about a feature that there is not")
    of = _kinds(feature, categorical)
    columns: dict[str, np.ndarray] = {"feature": feature}
    for name, dtype, nodes in ARRAYS[1:]:
        stored = reader.array(dtype, int(of[nodes].sum()))
        columns[name] = stored
        if nodes != "all":
            columns[name] = np.full(len(feature), np.nan if name == "threshold" else 0, stored.dtype)
            columns[name][of[nodes]] = stored
    lengths = reader.array("<i4", int(of["categorical"].sum()))
    if (lengths < 0).any():
        raise InvalidModel("a set of categories has a negative length")
    codes = np.split(reader.array("<u2", int(lengths.sum(dtype=np.int64))), np.cumsum(lengths)[:-1]) if len(lengths) else []
    reader.end()
    return header | {"trees": _trees(sizes, columns, of["categorical"], codes)}


def _allowed(n_compressed: int) -> int:
    """Largest number of bytes that compressed content may decompress to."""
    return max(_SMALL, _RATIO * n_compressed)


def _decompressed(content: memoryview) -> bytes:
    """Decompress the content up to a limit: a few kilobytes could fill the memory otherwise."""
    allowed, stream = _allowed(len(content)), zlib.decompressobj()
    try:
        data = stream.decompress(content, allowed + 1)
    except zlib.error as error:
        raise InvalidModel(f"its content cannot be decompressed ({error})") from error
    if len(data) > allowed:
        raise InvalidModel(
            f"its {len(content):,} bytes of content decompress to more than {allowed:,} bytes, which is no model"
        )
    if not stream.eof:
        raise InvalidModel("its content cannot be decompressed (it ends too early)")
    if stream.unused_data:
        raise InvalidModel("there is more in it than its compressed content")
    return data


def _trees(
    sizes: np.ndarray, columns: dict[str, np.ndarray], is_set: np.ndarray, codes: list[np.ndarray]
) -> list[dict[str, Any]]:
    trees, first_set, first = [], 0, 0
    for size in sizes.tolist():
        nodes = slice(first, first + size)
        at = np.flatnonzero(is_set[nodes])
        sets = {str(node): codes[first_set + i] for i, node in enumerate(at)}
        trees.append({name: column[nodes] for name, column in columns.items()} | {"categories": sets})
        first_set, first = first_set + len(at), first + size
    return trees


def _kinds(feature: np.ndarray, is_categorical: np.ndarray) -> dict[str, np.ndarray]:
    split = feature >= 0
    categorical = np.zeros(len(feature), bool)
    categorical[split] = is_categorical[feature[split]]
    return {"all": np.ones(len(feature), bool), "splits": split, "numeric": split & ~categorical, "categorical": categorical}


def _joined(trees: Sequence[Tree], name: str, dtype: np.dtype) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *(getattr(tree, name) for tree in trees)]).astype(dtype)


def _bytes(numbers: np.ndarray) -> bytes:
    """The first bytes of all numbers, then the second ones, …"""
    return np.ascontiguousarray(numbers).view(np.uint8).reshape(len(numbers), numbers.itemsize).T.tobytes()


class _Reader:
    """Reads content from the start to the end."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, length: int) -> bytes:
        if not 0 <= length <= len(self._data) - self._at:
            raise InvalidModel("it ends too early")
        self._at += length
        return self._data[self._at - length : self._at]

    def array(self, dtype: str, length: int) -> np.ndarray:
        size = np.dtype(dtype).itemsize
        data = np.frombuffer(self.take(length * size), np.uint8).reshape(size, length)
        return np.ascontiguousarray(data.T).reshape(-1).view(dtype)

    def end(self) -> None:
        if self._at != len(self._data):
            raise InvalidModel("there is more in it than its header says")
