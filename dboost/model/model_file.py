"""Model files, in JSON and in a compact form: checked by a digest, and equal for equal models.

A file has one feature, parameter, metric or tree per line::

    {
     "format": "dboost",
     "version": 1,
     "sha256": "<digest of all that follows this line>",
     "loss": {"name": "log_loss"},
     …
     "features": [
      {"name": "age"},
      {"name": "town", "levels": ["Gent", "Liège"]}
     ],
     …
     "trees": [
      {"feature": [0, -1, -1], "threshold": [30.5, null, null], …},
      …
     ]
    }

Numbers have the digits that reproduce their bits; NaN is null, infinities are strings ("Infinity", "-Infinity"). A file does
not depend on the time, the machine or the number of threads, so its digest identifies the model.

Nodes are stored in depth-first order: a split is followed by its left subtree, then by its right one. So the list of features
(-1 in leaves) determines the shape of the tree, and there are no child indices that could be wrong.

Reading checks everything: the first lines literally and the rest by the digest, so that flipped bits and lost ends are
detected; then types, lengths and indices (`dboost.model.parsing`). Every error is a `ModelFileError` that names the file.
Nothing in a file is executed.

**The compact form** has the content of the JSON form, with the trees as compressed arrays::

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
import math
import os
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any

import numpy as np

from dboost.errors import ModelFileError
from dboost.model.ensemble import Ensemble, Tree
from dboost.model.parsing import InvalidModel, check_trees, parse_ensemble
from dboost.storage.atomic_write import read_whole, write_whole

#: Version of the format; files of a higher one are refused.
VERSION = 1

_FIRST_LINES = re.compile(rb'\{\n "format": "dboost",\n "version": ([1-9][0-9]{0,8}),\n')
_DIGEST_LINE = re.compile(rb' "sha256": "([0-9a-f]{64})",\n')


def dumps(ensemble: Ensemble) -> bytes:
    """Return the bytes of the model's file in JSON.

    Raises
    ------
    ModelFileError
        If a parameter has no JSON type.
    """
    content = _content(ensemble)
    head = f'{{\n "format": "dboost",\n "version": {VERSION},\n "sha256": "{_sha256(content)}",\n'
    return head.encode() + content


def digest(ensemble: Ensemble) -> str:
    """Return the SHA-256 of the model's content in hexadecimal, equal to the one in its file."""
    return _sha256(_content(ensemble))


def loads(data: bytes, name: str = "the model file") -> Ensemble:
    """Return the model in the bytes of a file of either form; `name` is its name in messages.

    Raises
    ------
    ModelFileError
        If the content is not a valid model.
    """
    if is_compact(data):
        return _loads_compact(data, name)
    first_lines = _FIRST_LINES.match(data)
    if first_lines is None:
        raise ModelFileError(f"{name} is not a dboost model, or its first lines are damaged")
    _check_version(int(first_lines[1]), name)
    digest_line = _DIGEST_LINE.match(data, first_lines.end())
    if digest_line is None:
        raise ModelFileError(f"{name} is damaged or cut short: the line with its checksum cannot be read")
    content = data[digest_line.end() :]
    if _sha256(content) != digest_line[1].decode():
        raise ModelFileError(f"{name} is damaged, cut short or was edited: its content does not match its checksum")
    try:
        return parse_ensemble(json.loads(b"{" + content, parse_constant=_refuse_constant))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{name} does not hold a valid model: {error}") from error


def check(ensemble: Ensemble, n_known: int = 0) -> None:
    """Check that `loads` would accept a model, without serializing its trees, split points and summaries.

    Summaries are finite numbers in JSON types by construction (`dboost.model.data_summary`), and `loads` checks no more.

    n_known : number of leading trees that were checked before.

    Raises
    ------
    ModelFileError
        Naming the invalid part.
    """
    sources = tuple({name: value for name, value in source.items() if name != "summary"} for source in ensemble.sources)
    content = json.loads(b"{" + _content(replace(ensemble, trees=(), edges=(), sources=sources)))
    try:
        parse_ensemble(content | {"edges": list(ensemble.edges)})
    except InvalidModel as error:
        raise ModelFileError(f"the model cannot be stored: {error}") from error
    _check_trees(replace(ensemble, trees=ensemble.trees[n_known:]))


def dumps_compact(ensemble: Ensemble) -> bytes:
    """Return the bytes of the model's file in the compact form."""
    _check_trees(ensemble)
    header = json.loads(b"{" + _content(replace(ensemble, trees=())))
    is_categorical = np.array([feature.is_categorical for feature in ensemble.features], bool)
    return pack(header, ensemble.trees, is_categorical, VERSION)


def _loads_compact(data: bytes, name: str) -> Ensemble:
    version = version_of(data)
    if version is None:
        raise ModelFileError(f"{name} is not a dboost model, or its first lines are damaged")
    _check_version(version, name)
    try:
        return parse_ensemble(unpack(data, _is_categorical))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{name} does not hold a valid model: {error}") from error


def _is_categorical(header: Any) -> np.ndarray:
    features = header.get("features")
    if not isinstance(features, list):
        raise InvalidModel("its header has no features")
    return np.array([isinstance(feature, dict) and "levels" in feature for feature in features], bool)


def _check_version(version: int, name: str) -> None:
    if version > VERSION:
        raise ModelFileError(
            f"{name} has format version {version}, written by a newer dboost; this one reads versions up to {VERSION}"
        )


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the JSON form."""
    return json.loads(files(__package__).joinpath("model.schema.json").read_text(encoding="utf-8"))


def save(ensemble: Ensemble, path: str | os.PathLike[str]) -> None:
    """Write the model's file atomically; an existing file is replaced.

    Parameters
    ----------
    ensemble : Ensemble
    path : path, or URL that fsspec knows
        A name that ends in ".dboost" selects the compact form.

    Raises
    ------
    ModelFileError
        Naming the file that cannot be written.
    """
    is_compact = os.fspath(path).endswith(SUFFIX)
    write_whole(path, dumps_compact(ensemble) if is_compact else dumps(ensemble))


def load(path: str | os.PathLike[str]) -> Ensemble:
    """Read a model from its file.

    Raises
    ------
    ModelFileError
        Naming the file: it does not exist, is damaged, or was written by a newer dboost.
    """
    return loads(read_whole(path), os.fspath(path))


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _refuse_constant(constant: str) -> None:
    raise InvalidModel(f"{constant} is not JSON")


def _content(ensemble: Ensemble) -> bytes:
    """The lines after the digest."""
    _check_trees(ensemble)
    entries = {
        "loss": _line(_sorted(ensemble.loss)),
        "classes": _line(ensemble.classes),
        "classes_dtype": _line(ensemble.classes_dtype),
        "baseline": _line(_floats(ensemble.baseline)),
        "best_iteration": _line(ensemble.best_iteration),
        "named": _line(ensemble.named),
        "features": _list(
            _line({"name": f.name} if f.categories is None else {"name": f.name, "levels": f.categories})
            for f in ensemble.features
        ),
        "parameters": _dict((key, _line(value)) for key, value in _sorted(ensemble.parameters).items()),
        "sources": _list(_line(_sorted(source)) for source in ensemble.sources),
        "metrics": _dict((key, _line(_floats(values))) for key, values in ensemble.metrics.items()),
        "edges": _list(_line(None if edges is None else _floats(edges)) for edges in ensemble.edges),
        "trees": _list(_line(_tree(tree)) for tree in ensemble.trees),
    }
    text = ",\n".join(f' "{key}": {value}' for key, value in entries.items()) + "\n}\n"
    # Half of a surrogate pair, which UTF-8 cannot encode, becomes an escape like "\udcff", which is valid JSON.
    return text.encode("utf-8", "backslashreplace")


def _list(lines: Iterable[str]) -> str:
    joined = ",\n  ".join(lines)
    return f"[\n  {joined}\n ]" if joined else "[]"


def _dict(items: Iterable[tuple[str, str]]) -> str:
    joined = ",\n  ".join(f"{_line(key)}: {value}" for key, value in items)
    return f"{{\n  {joined}\n }}" if joined else "{}"


def _line(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)
    except (TypeError, ValueError) as error:
        raise ModelFileError(f"the model cannot be stored: {error}") from error


def _plain(value: Any) -> Any:
    """Convert NumPy scalars to JSON types."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} is not a number, string, list or mapping")


def _sorted(value: Any) -> Any:
    """Mappings with sorted keys at all levels: their order has no meaning, so the digest must not depend on it."""
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list | tuple) else value


def _floats(values: Any) -> list[float | str | None]:
    return [
        value if math.isfinite(value) else None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        for value in np.asarray(values, np.float64).tolist()
    ]


def _check_trees(ensemble: Ensemble) -> None:
    try:
        check_trees(ensemble.trees, ensemble.features)
    except InvalidModel as error:
        raise ModelFileError(f"the model cannot be stored: {error}") from error


def _tree(tree: Tree) -> dict[str, Any]:
    return {
        "feature": tree.feature.tolist(),
        "threshold": _floats(tree.threshold),
        "categories": {str(node): codes.tolist() for node, codes in enumerate(tree.categories) if codes is not None},
        "missing_left": tree.missing_left.astype(int).tolist(),
        "gain": _floats(tree.gain),
        "cover": _floats(tree.cover),
        "count": tree.count.tolist(),
        "value": _floats(tree.value),
    }


SUFFIX = ".dboost"
#: Limits of decompression: bytes, and for larger files bytes per byte of the file. Trees compress to a quarter or more; content
#: that compresses to less than a sixteenth is written without compression.
_SMALL, _RATIO = 4 << 20, 16
_MAGIC = b"dboost arrays, version "
_COMPACT_FIRST_LINES = re.compile(_MAGIC + rb"([1-9][0-9]{0,8})\n([0-9a-f]{64})\n")

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
    found = _COMPACT_FIRST_LINES.match(data)
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
    first = _COMPACT_FIRST_LINES.match(data)
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
