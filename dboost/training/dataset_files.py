"""Files of a data set that the workers of a cluster have written, in a folder that they share or in an object store.

    dataset.json                  features, split points, settings, and the checksum of every other file; written last
    part-<version>-00000.parquet  bin codes (columns b0, b1, …), target, weight and offset of a partition
    sample-<version>.parquet      values and targets of the reference sample

A new version has files of other names, so a reader finds the old data set or the new one; the files of the old one are removed
at the end. A file is read as a whole and compared with its checksum.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dboost._lazy_import import fsspec, pa
from dboost._storage_errors import shown
from dboost.data import CategoryColumn, Column
from dboost.data.binned_partition import BinnedPartition
from dboost.data.binning import Binning
from dboost.errors import DataError
from dboost.schema import Feature
from dboost.storage.atomic_write import FileMissingError, read_whole, remove, write_whole
from dboost.storage.block_file import StorageError
from dboost.training.dataset_rows import DatasetDescription

NAME, VERSION = "dataset.json", 1


@dataclass(frozen=True, eq=False)
class StoredDataset:
    """A data set in files."""

    root: str
    data: DatasetDescription
    settings: dict[str, Any]  # parameters of `dboost.prepare`, by name
    files: tuple[tuple[str, str], ...]  # name and checksum of the file of each partition
    lengths: tuple[int, ...]  # rows of positive weight of each partition
    filled: tuple[bool, ...]  # whether there are targets, weights and offsets
    n_bytes: int

    def partitions(self) -> Iterator[BinnedPartition]:
        """Read the partitions one by one."""
        return (read_part(self.root, *file) for file in self.files)


def new_version() -> str:
    """Return the part of the names of files that differs between versions."""
    return uuid.uuid4().hex[:12]


def write_part(root: str, version: str, i: int, partition: BinnedPartition) -> tuple[str, str, int]:
    """Write a partition; return the name, the checksum and the size of its file."""
    columns: dict[str, Any] = {f"b{j}": codes for j, codes in enumerate(partition.codes)}
    roles = {"weight": partition.weight, "offset": partition.offset}
    columns |= {name: values for name, values in roles.items() if values is not None}
    return _write(root, f"part-{version}-{i:05}.parquet", columns, partition.target)


def read_part(root: str, name: str, checksum: str) -> BinnedPartition:
    """Read a partition.

    Raises
    ------
    StorageError
        If the file is missing or damaged.
    """
    columns, target = _read(root, name, checksum)
    weight, offset = columns.pop("weight", None), columns.pop("offset", None)
    return BinnedPartition(tuple(columns[f"b{j}"] for j in range(len(columns))), target, weight, offset)


def check_place(root: str) -> None:
    """Raise a DataError if a data set would be written among other files, before the work starts."""
    filesystem, folder = fsspec.url_to_fs(root)
    if filesystem.exists(folder) and not is_stored(root) and filesystem.ls(folder):
        raise DataError(f"{shown(root)} is there already and holds no data set: choose another path, or remove it")
    filesystem.makedirs(folder, exist_ok=True)


def write_description(
    root: str,
    version: str,
    data: DatasetDescription,
    settings: dict[str, Any],
    parts: Sequence[tuple[str, str, int]],
    lengths: Sequence[int],
    filled: Sequence[bool],
) -> StoredDataset:
    """Complete a data set whose partitions have been written; remove the files of an older one.

    Raises
    ------
    StorageError
        If this process cannot read the partitions, because the workers have another file system.
    """
    files = [(name, checksum) for name, checksum, _ in parts]
    read_part(root, *files[0])
    values = {f"v{j}": np.ascontiguousarray(data.sample[:, j]) for j in range(data.sample.shape[1])}
    sample = _write(root, f"sample-{version}.parquet", values, data.sample_target)
    content = {
        "n_bytes": sum(size for *_, size in parts),
        "named": data.named,
        "features": [{"name": feature.name, "levels": feature.categories} for feature in data.binning.features],
        "edges": [None if edges is None else edges.tolist() for edges in data.binning.edges],
        "settings": settings,
        "files": files,
        "lengths": list(lengths),
        "filled": list(filled),
        "sample": sample[:2],
    }
    text = json.dumps(content, ensure_ascii=False, sort_keys=True)
    head = {"format": "dboost-dataset", "version": VERSION, "sha256": _digest(text.encode()), "content": content}
    write_whole(f"{root}/{NAME}", json.dumps(head, ensure_ascii=False, sort_keys=True).encode())
    _remove_others(root, {*(name for name, _ in files), sample[0], NAME})
    return read_description(root)


def is_stored(path: Any) -> bool:
    """Whether a folder or URL has a data set of this kind."""
    if not isinstance(path, str | os.PathLike):
        return False
    filesystem, name = fsspec.url_to_fs(f"{os.fspath(path)}/{NAME}")
    return bool(filesystem.exists(name))


def read_description(root: str) -> StoredDataset:
    """Read what a data set consists of.

    Raises
    ------
    StorageError
        If it is damaged, or was written by a newer version.
    """
    name = f"{root}/{NAME}"
    try:
        stored = json.loads(read_whole(name))
        if stored["version"] > VERSION:
            raise StorageError(f"{shown(name)} has format version {stored['version']}, this dboost reads up to {VERSION}")
        content = stored["content"]
        if _digest(json.dumps(content, ensure_ascii=False, sort_keys=True).encode()) != stored["sha256"]:
            raise StorageError(f"{shown(name)} is damaged: its content does not match its checksum")
        features = tuple(
            Feature(one["name"], None if one["levels"] is None else tuple(one["levels"])) for one in content["features"]
        )
        edges = tuple(None if one is None else np.array(one, np.float64) for one in content["edges"])
        columns, target = _read(root, *content["sample"])
        values = np.column_stack([columns[f"v{j}"] for j in range(len(features))])
        return StoredDataset(
            root,
            DatasetDescription(Binning(features, edges), content["named"], values, target),
            content["settings"],
            tuple((file, checksum) for file, checksum in content["files"]),
            tuple(content["lengths"]),
            tuple(content["filled"]),
            content["n_bytes"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{shown(name)} is damaged or no description of a data set: {error}") from error


def _write(root: str, name: str, columns: dict[str, Any], target: Column) -> tuple[str, str, int]:
    """Write columns and targets as a Parquet file; categories of targets are in the metadata of the file."""
    import pyarrow.parquet as pq

    table = pa.table(columns | {"target": target.codes if isinstance(target, CategoryColumn) else target})
    if isinstance(target, CategoryColumn):
        table = table.replace_schema_metadata({"categories": json.dumps(target.categories)})
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    content = buffer.getvalue()
    write_whole(f"{root}/{name}", content)
    return name, _digest(content), len(content)


def _read(root: str, name: str, checksum: str) -> tuple[dict[str, np.ndarray], Column]:
    import pyarrow.parquet as pq

    try:
        content = read_whole(f"{root}/{name}")
    except FileMissingError as error:
        raise StorageError(f"{shown(root)} is damaged: the file {name} is missing") from error
    if _digest(content) != checksum:
        raise StorageError(f"{shown(root)}/{name} is damaged: its content does not match its checksum")
    table = pq.read_table(io.BytesIO(content))
    columns = {field.name: table.column(field.name).to_numpy() for field in table.schema}
    target: Column = columns.pop("target")
    categories = (table.schema.metadata or {}).get(b"categories")
    if categories is not None:
        assert isinstance(target, np.ndarray)
        target = CategoryColumn(target, tuple(json.loads(categories)))
    return columns, target


def _remove_others(root: str, kept: set[str]) -> None:
    """Remove the files of older versions."""
    filesystem, folder = fsspec.url_to_fs(root)
    filesystem.invalidate_cache()
    for found in filesystem.ls(folder, detail=False):
        name = str(found).rstrip("/").rpartition("/")[2]
        if name.startswith(("part-", "sample-")) and name.endswith(".parquet") and name not in kept:
            remove(f"{root}/{name}")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
