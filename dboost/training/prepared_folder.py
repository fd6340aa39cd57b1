"""Atomic writing and opening of the folder of a prepared data set (`training.prepared_dataset`), and its file ``binned.json``.

A new folder is written under a temporary name beside its final path, synced to disk and renamed. An existing folder is replaced
only if it is a prepared data set. Not every system can exchange two folders atomically, so the old one is first renamed to a
backup name; if the process is killed between the two renames, readers open the backup. ``binned.json`` has a digest and
contains a checksum for every block of the other files; both are verified when reading.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dboost.data.binning import Binning
from dboost.errors import DataError, DBoostError, ParameterError
from dboost.schema import Feature
from dboost.session.reference_sample import ReferenceSample
from dboost.session.target import TargetScan
from dboost.shards.block_store import BlockWriter
from dboost.storage.block_file import BlockFile, Field, StorageError
from dboost.training.prepared_dataset import PreparedDataset

VERSION = 1
_NAME = "binned.json"


def is_prepared(path: Any) -> bool:
    """Whether a folder contains a prepared data set, which may be damaged."""
    return isinstance(path, str | os.PathLike) and (_readable_folder(Path(path)) / _NAME).is_file()


def _backup_of(folder: Path) -> Path:
    """Return the path of a folder's backup while it is being replaced."""
    return folder.with_name(f".{folder.name}-replaced")


def _readable_folder(folder: Path) -> Path:
    """Return the folder, or its backup if the process that replaced it was killed between the two renames."""
    return folder if os.path.exists(folder) or not os.path.isfile(_backup_of(folder) / _NAME) else _backup_of(folder)


def write_folder(path: str | os.PathLike[str], write: Callable[[Path], PreparedDataset]) -> None:
    """Create a folder with the files that `write` writes, atomically.

    Raises
    ------
    DataError
        When the path exists and is no prepared data set.
    StorageError
        When the folder cannot be written.
    """
    final = Path(path)
    if final.exists() and not is_prepared(final):
        raise DataError(f"{final} is there already and holds no prepared data: choose another path, or remove it")
    try:
        new = Path(tempfile.mkdtemp(prefix=f".{final.name}-", dir=final.parent))
    except OSError as error:
        raise StorageError(f"cannot write {final}: {error.strerror}") from error
    try:
        data = write(new)
        reference = _write_reference(new, data.reference)
        for file in (data.codes, data.rows, reference):
            file.sync()
        reference.close()
        data.close()
        content = _content(data, reference)
        head = f'{{\n "format": "dboost-binned",\n "version": {VERSION},\n "sha256": "{_digest(content)}",\n "content": '
        with open(new / _NAME, "w", encoding="utf-8", errors="backslashreplace") as description:
            description.write(head + content + "}\n")
            description.flush()
            os.fsync(description.fileno())
        _put_in_place(new, final)
    except OSError as error:
        shutil.rmtree(new, ignore_errors=True)
        if isinstance(error, DBoostError):  # of the data, too
            raise
        raise StorageError(f"cannot write {final}: {error.strerror}") from error
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _put_in_place(new: Path, final: Path) -> None:
    """Rename the new folder to its final name; restore the previous folder if that fails."""
    backup = _backup_of(final)
    if final.exists():
        shutil.rmtree(backup, ignore_errors=True)  # left by a process that was killed before it removed the backup
        os.rename(final, backup)
    try:
        os.rename(new, final)
    except BaseException:
        if not final.exists() and backup.exists():
            os.rename(backup, final)
        raise
    shutil.rmtree(backup, ignore_errors=True)


def open_folder(path: str | os.PathLike[str]) -> PreparedDataset:
    """Open a folder written by `write_folder`.

    Raises
    ------
    StorageError
        When it is damaged, or was written by a newer version or on a machine with another byte order.
    """
    folder = _readable_folder(Path(path))
    name = folder / _NAME
    try:
        stored = json.loads(name.read_text(encoding="utf-8"))
        if stored["version"] > VERSION:
            raise StorageError(f"{name} has format version {stored['version']}, this dboost reads versions up to {VERSION}")
        content = stored["content"]
        if _digest(_text(content)) != stored["sha256"]:
            raise StorageError(f"{name} is damaged: its content does not match its checksum")
        return _opened(folder, content)
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{name} is damaged or no description of prepared data: {error}") from error


def check_same_model(data: PreparedDataset, given_value: Any) -> None:
    """Check that a fit continues the model for which the data were prepared. given_value : its digest, or None.

    Raises
    ------
    ParameterError
        If it does not.
    """
    folder = data.codes.path.parent
    prepared_with = data.settings.get("start_from")
    if prepared_with is not None and given_value is None:
        raise ParameterError(
            f"{folder} was prepared to go on from a model (sha256 {prepared_with[:12]}…): give it as start_from"
        )
    if prepared_with != given_value:
        how = "to begin anew" if prepared_with is None else f"to go on from another model (sha256 {prepared_with[:12]}…)"
        raise ParameterError(
            f"{folder} was prepared {how}: bins cannot tell what scores the rows have under a model, so prepare the data with "
            "start_from=…"
        )


def check_same(settings: dict[str, Any], where: str, given: dict[str, Any]) -> None:
    """Check that given parameters equal those with which data were prepared.

    settings, given : values by name; where : name of the data set, for messages.

    Raises
    ------
    ParameterError
        Naming the parameter that differs.
    """
    for name, value in given.items():
        known, given_value = settings.get(name), describe(value)
        if str(given_value).startswith("<"):
            raise ParameterError(f"{where} holds prepared data with a {name} of their own: leave yours out")
        if given_value != known:
            what = f"was prepared with {name}={known!r}" if known is not None else f"was prepared without {name}"
            raise ParameterError(f"{name}={given_value!r} does not fit the data: {where} {what}")


def named_roles(settings: dict[str, Any]) -> tuple[str | None, str | None, str | None]:
    """Return the names of the columns of target, weight and offset; None for those that were given as values."""
    names = (settings[name] for name in ("target", "sample_weight", "offset"))
    target, weight, offset = (None if name is None or str(name).startswith("<") else str(name) for name in names)
    return target, weight, offset


def describe(value: Any) -> Any:
    """Convert a parameter to JSON types: names and numbers unchanged, other objects as the name of their type."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return [describe(one) for one in value]
    return f"<{type(value).__name__}>"


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode("utf-8", "backslashreplace")).hexdigest()


def _text(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, sort_keys=True)


def _write_reference(folder: Path, reference: ReferenceSample | None) -> BlockFile:
    """Write the reference sample, in one block."""
    assert reference is not None
    n, n_features = reference.values.shape
    fields = [Field("values", "<f8", (), (n_features,)), Field("target", "<f8")]
    file = BlockFile(folder / "portrait", fields, n, sealed=True, block_rows=n)
    writer = BlockWriter([file])
    writer.append(n, vars(reference))
    writer.finish()
    return file


def _read_reference(file: BlockFile) -> ReferenceSample:
    buffer = file.buffer()
    file.read(0, buffer)
    file.close()
    return ReferenceSample(**file.views(buffer, 0))


def _content(data: PreparedDataset, reference: BlockFile) -> str:
    files = {}
    for name, file in (("codes", data.codes), ("rows", data.rows), ("portrait", reference)):
        assert file.checksums is not None
        files[name] = {
            "n_rows": file.n_rows,
            "fields": [[field.name, field.dtype, list(field.before), list(field.after)] for field in file.fields],
            "checksums": [f"{digest:016x}" for digest in file.checksums.tolist()],
        }
    target = data.target
    return _text(
        {
            "byte_order": sys.byteorder,
            "n_rows": data.n_rows,
            "block_rows": data.codes.block_rows,
            "named": data.named,
            "features": [{"name": feature.name, "levels": feature.categories} for feature in data.binning.features],
            "edges": [None if edges is None else edges.tolist() for edges in data.binning.edges],
            "target": {
                "levels": target.categories,
                "distinct": target.distinct.tolist(),
                "too_many": target.too_many,
                "dtype": target.dtype,
                "is_bool": target.is_bool,
            },
            "target_levels": data.categories,
            "settings": data.settings,
            "files": files,
        }
    )


def _opened(folder: Path, content: dict[str, Any]) -> PreparedDataset:
    if content["byte_order"] != sys.byteorder:
        raise StorageError(f"{folder} was written on a machine whose bytes have another order ({content['byte_order']}-endian)")
    features = tuple(Feature(one["name"], _levels(one["levels"])) for one in content["features"])
    edges = tuple(None if one is None else np.array(one, np.float64) for one in content["edges"])
    target = dict(content["target"])
    target |= {"categories": _levels(target.pop("levels")), "distinct": np.array(target["distinct"], np.float64)}
    files = {}
    for name, stored in content["files"].items():
        n_rows = stored.get("n_rows", content["n_rows"])
        files[name] = BlockFile(
            folder / name,
            [Field(field, dtype, tuple(before), tuple(after)) for field, dtype, before, after in stored["fields"]],
            n_rows,
            sealed=True,
            block_rows=n_rows if name == "portrait" else content["block_rows"],
            checksums=np.array([int(digest, 16) for digest in stored["checksums"]], np.uint64),
        )
    return PreparedDataset(
        content["named"],
        Binning(features, edges),
        TargetScan(**target),
        _levels(content["target_levels"]),
        files["codes"],
        files["rows"],
        content["settings"],
        _read_reference(files["portrait"]) if "portrait" in files else None,  # older folders have none
    )


def _levels(stored: Any) -> Any:
    return None if stored is None else tuple(stored)
