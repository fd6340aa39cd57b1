"""Model files: JSON that a person can read, a checksum that a machine can check.

A file is one JSON object. The head comes first, a key to a line; then the trees, a tree to a line, each node array under its
own name (see `tree.py`). Numbers are written with as many digits as bring the same number back; NaN and infinities, which
JSON has not, are the strings "nan", "inf" and "-inf". `sha256` is the digest of everything before it: any flipped byte
and any missing end is noticed before a single number is believed, and reading executes nothing.

The content is a function of the model alone: no dates, hosts, threads or seconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec
import numpy as np

from dboost.errors import DBoostError, ModelFileError
from dboost.model.ensemble import Ensemble
from dboost.model.tree import Tree
from dboost.schema import Feature

FORMAT = "dboost"
#: Versions of the format that this code reads; the last is the one it writes.
VERSIONS = (1,)

_ARRAYS = {
    "feature": np.int32, "threshold": np.float64, "missing_left": np.bool_, "left": np.int32, "right": np.int32,
    "gain": np.float64, "cover": np.float64, "count": np.int64, "value": np.float64,
}  # fmt: skip
_SEAL = ',\n"sha256": "'
_END = '"\n}\n'


def dumps(ensemble: Ensemble) -> bytes:
    """The file's content."""
    body = _body(ensemble)
    return (body + _SEAL + hashlib.sha256(body.encode()).hexdigest() + _END).encode()


def digest(ensemble: Ensemble) -> str:
    """SHA-256 of what was learned, as it stands in the model's file."""
    return hashlib.sha256(_body(ensemble).encode()).hexdigest()


def loads(content: bytes, name: str = "model") -> Ensemble:
    """The ensemble from a file's content.

    Raises
    ------
    ModelFileError
        With `name`: not a model, damaged, cut short, or of a newer format.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise ModelFileError(f"{name} is not a dboost model, or it is damaged: it is no text") from None
    body, seal, rest = text.rpartition(_SEAL)
    whole = bool(seal) and len(rest) == 64 + len(_END) and rest.endswith(_END)
    head = _head(text)
    if head is not None and head not in VERSIONS:
        raise ModelFileError(
            f"{name} has format version {head}; this dboost reads version {VERSIONS[-1]} at most: install a newer one"
        )
    if head is None:
        raise ModelFileError(f"{name} is not a dboost model, or it is damaged at its beginning")
    if not whole:
        raise ModelFileError(f"{name} is cut short or damaged: its end is missing")
    if hashlib.sha256(body.encode()).hexdigest() != rest[:64]:
        raise ModelFileError(f"{name} is damaged: its checksum does not fit its content")
    try:
        return _ensemble(json.loads(body + "\n}"))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise ModelFileError(f"{name} is not a valid dboost model: {error}") from error


def save(ensemble: Ensemble, path: str | os.PathLike[str]) -> None:
    """Write a model to a file or URL, whole or not at all."""
    write(path, dumps(ensemble))


def load(path: str | os.PathLike[str]) -> Ensemble:
    """Read a model from a file or URL."""
    name = os.fspath(path)
    try:
        with fsspec.open(name, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        raise ModelFileError(f"there is no model file {name}") from None
    except OSError as error:
        raise ModelFileError(f"model file {name} cannot be read: {error}") from error
    return loads(content, name)


def write(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file or object, whole or not at all.

    A local file is written beside its place, flushed to the disk, and then renamed; what was there before stays until
    that moment. An object in a store is put in one piece.
    """
    name = os.fspath(path)
    file_system, inner = fsspec.core.url_to_fs(name)
    try:
        if "file" not in file_system.protocol and "local" not in file_system.protocol:
            file_system.pipe_file(inner, content)
            return
        _write_local(Path(inner), content)
    except OSError as error:
        raise DBoostError(f"{name} cannot be written: {error}") from error


def _write_local(path: Path, content: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _head(text: str) -> int | None:
    """The format version, or None when the text does not begin like a model."""
    start = f'{{\n"format": "{FORMAT}",\n"version": '
    if not text.startswith(start):
        return None
    digits = text[len(start) :].split(",", 1)[0].split("\n", 1)[0].strip()
    return int(digits) if digits.isdigit() and len(digits) < 10 else None


def _body(ensemble: Ensemble) -> str:
    features = [
        {"name": f.name, "kind": "numeric" if f.levels is None else "categorical"}
        | ({} if f.levels is None else {"levels": list(f.levels)})
        for f in ensemble.features
    ]
    head = {
        "format": FORMAT,
        "version": VERSIONS[-1],
        "loss": ensemble.loss,
        "classes": None if ensemble.classes is None else list(ensemble.classes),
        "classes_dtype": ensemble.classes_dtype,
        "baseline": _numbers(ensemble.baseline),
        "best_iteration": ensemble.best_iteration,
        "named": ensemble.named,
        "parameters": ensemble.parameters,
        "sources": list(ensemble.sources),
        "metrics": {name: _numbers(values) for name, values in ensemble.metrics.items()},
    }
    lines = [f"{_text(key)}: {_text(value)}" for key, value in head.items()]
    lines.append('"features": [\n' + ",\n".join(map(_text, features)) + "\n]")
    lines.append('"edges": [\n' + ",\n".join(_text(None if e is None else _numbers(e)) for e in ensemble.edges) + "\n]")
    lines.append('"trees": [\n' + ",\n".join(_text(_tree_dict(tree)) for tree in ensemble.trees) + "\n]")
    return "{\n" + ",\n".join(lines)


def _text(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _tree_dict(tree: Tree) -> dict[str, Any]:
    arrays = {name: _numbers(getattr(tree, name)) for name in _ARRAYS}
    sets = {str(node): codes.tolist() for node, codes in enumerate(tree.categories) if codes is not None}
    return arrays | {"categories": sets}


def _numbers(values: np.ndarray | Sequence[float]) -> list[Any]:
    """JSON numbers; what JSON cannot say becomes a string (NaN in leaves is the rule, so it is kept short: null)."""
    array = np.asarray(values)
    if array.dtype.kind != "f":
        return [int(v) for v in array] if array.dtype.kind in "iu" else [int(bool(v)) for v in array]
    if np.isfinite(array).all():
        return array.tolist()
    special = {np.inf: "inf", -np.inf: "-inf"}
    return [v if np.isfinite(v) else None if v != v else special[v] for v in array.tolist()]


def _floats(values: Any) -> np.ndarray:
    special = {None: np.nan, "inf": np.inf, "-inf": -np.inf}
    for v in values:
        if isinstance(v, bool) or not isinstance(v, int | float | str | None):
            raise ValueError(f"{v!r} is not a number")
    return np.array([special[v] if v is None or isinstance(v, str) else float(v) for v in values], np.float64)


def _integers(values: Any, dtype: Any) -> np.ndarray:
    for v in values:
        if isinstance(v, bool) or not isinstance(v, int):
            raise ValueError(f"{v!r} is not an integer")
    return np.array(values, np.int64).astype(dtype)


def _ensemble(stored: dict[str, Any]) -> Ensemble:
    features = tuple(
        Feature(f["name"], tuple(f["levels"]) if f["kind"] == "categorical" else None) for f in stored["features"]
    )
    baseline = _floats(stored["baseline"])
    trees = tuple(_tree(tree, features) for tree in stored["trees"])
    if len(baseline) < 1 or len(trees) % len(baseline):
        raise ValueError("the number of trees does not fit the number of outputs")
    edges = tuple(None if e is None else _floats(e) for e in stored["edges"])
    if len(edges) != len(features):
        raise ValueError("there must be one list of edges per feature")
    classes = stored["classes"]
    return Ensemble(
        features=features,
        named=bool(stored["named"]),
        loss=stored["loss"],
        classes=None if classes is None else tuple(classes),
        classes_dtype=stored["classes_dtype"],
        baseline=baseline,
        trees=trees,
        edges=edges,
        parameters=stored["parameters"],
        sources=tuple(stored["sources"]),
        metrics={name: tuple(_floats(values).tolist()) for name, values in stored["metrics"].items()},
        best_iteration=stored["best_iteration"],
    )


def _tree(stored: dict[str, Any], features: tuple[Feature, ...]) -> Tree:
    arrays: dict[str, np.ndarray] = {}
    for name, dtype in _ARRAYS.items():
        is_float = np.dtype(dtype).kind == "f"
        arrays[name] = _floats(stored[name]) if is_float else _integers(stored[name], dtype)
    n = len(arrays["feature"])
    if n < 1 or any(len(array) != n for array in arrays.values()):
        raise ValueError("the node arrays of a tree differ in length")
    categories: list[np.ndarray | None] = [None] * n
    for node, codes in stored["categories"].items():
        categories[int(node)] = _integers(codes, np.int32)
    tree = Tree(**arrays, categories=tuple(categories))
    _check(tree, features)
    return tree


def _check(tree: Tree, features: tuple[Feature, ...]) -> None:
    """Refuse trees that would lead a prediction astray or out of bounds."""
    nodes = np.arange(tree.n_nodes)
    is_split = tree.feature >= 0
    if (tree.feature >= len(features)).any():
        raise ValueError("a tree splits on a feature that does not exist")
    # In depth-first order the left child follows its parent and the right one comes after the left's whole subtree.
    if (tree.left[is_split] != nodes[is_split] + 1).any():
        raise ValueError("the nodes of a tree are not in depth-first order")
    right = tree.right[is_split]
    if (right <= nodes[is_split] + 1).any() or (right >= tree.n_nodes).any():
        raise ValueError("a tree has a child out of bounds")
    children = np.concatenate((tree.left[is_split], right))
    if len(np.unique(children)) != tree.n_nodes - 1 or len(children) != tree.n_nodes - 1:
        raise ValueError("the nodes of a tree do not form a tree")
    if not np.isfinite(tree.value).all():
        raise ValueError("a leaf value is not finite")
    for node in np.flatnonzero(is_split):
        levels, codes = features[tree.feature[node]].levels, tree.categories[node]
        if (levels is None) != (codes is None):
            raise ValueError("a split does not fit the kind of its feature")
        if codes is None:
            if np.isnan(tree.threshold[node]):
                raise ValueError("a numeric split has no threshold")
        elif len(codes) and (codes.min() < 0 or codes.max() >= len(levels or ())):
            raise ValueError("a split names a level that does not exist")
