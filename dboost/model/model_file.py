"""Model files in JSON: readable, checked by a digest, and equal for equal models; also reads and writes the compact form.

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
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable
from dataclasses import replace
from importlib.resources import files
from typing import Any

import numpy as np

from dboost.errors import ModelFileError
from dboost.model import compact_file
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
    if compact_file.is_compact(data):
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
    return compact_file.pack(header, ensemble.trees, is_categorical, VERSION)


def _loads_compact(data: bytes, name: str) -> Ensemble:
    version = compact_file.version_of(data)
    if version is None:
        raise ModelFileError(f"{name} is not a dboost model, or its first lines are damaged")
    _check_version(version, name)
    try:
        return parse_ensemble(compact_file.unpack(data, _is_categorical))
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
    is_compact = os.fspath(path).endswith(compact_file.SUFFIX)
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
