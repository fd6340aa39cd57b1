"""Data sets in files: in a folder, or in an object store.

::

    dataset.json                  features, split points, settings, and the checksum of every other file; written last
    part-<version>-00000.parquet  bin codes (columns b0, b1, …) and roles of a partition
    sample-<version>.parquet      values and targets of the reference sample
    lease.json                    the lease of the run that writes (`files.lease`)

One process writes them (`prepared.prepare`), or the workers of a cluster (`cluster.training.cluster_dataset`). Rows of weight
zero are left out, because they do not affect a model. Numeric targets keep their type, and text its categories, so that a fit
chooses its loss as it would on the table.

A new version has files of other names, so a reader finds the old data set or the new one; the files of the old one, and those
of killed runs, are removed at the end. A file is read as a whole and compared with its checksum, and then with what the
description promises (`prepared.dataset_checks`).

A fit in this process reads the partitions one by one into a table, as it reads those of any source. Within a memory limit the
codes are written to blocks, which are streamed: decoding the parts in every pass would take longer than growing the tree.
"""

from __future__ import annotations

import io
import json
import os
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dboost._lazy_import import pa
from dboost.data import CategoryColumn, Column, ReadOptions, RowRoles, Table
from dboost.data.columns.chunk import BinnedPartition
from dboost.data.columns.roles import ROLES, n_columns_of
from dboost.data.tables.read_table import open_binned
from dboost.errors import DataError, DBoostError, ModelFileError, reason, shown
from dboost.files.atomic_write import FileMissingError, names_in, read_whole, remove, write_whole
from dboost.files.filesystem import filesystem_of, has_query
from dboost.files.lease import Lease
from dboost.files.path_text import PREPARED, path_text
from dboost.model.ensemble import Ensemble
from dboost.prepared.dataset_checks import (
    PartPromise,
    binning_content,
    check_roles,
    check_sample,
    content_text,
    count,
    decode_part,
    decoded,
    digest_of,
    parse_binning,
    parse_description,
    parse_filled,
    parse_settings,
    refuse,
    target_names,
)
from dboost.prepared.dataset_rows import BinnedRows
from dboost.rows.block_file import StorageError
from dboost.session.local_backend import LocalBackend
from dboost.training.binned_data import DatasetDescription, check_thresholds
from dboost.training.fit import FitResult, train
from dboost.training.leaf_refit import refit_leaves
from dboost.training.request import FitRequest

VERSION = 3
_LEASE = "lease.json"
_FILES = rf"((part-[0-9a-f]{{12}}-\d{{5,}}|sample-[0-9a-f]{{12}})\.parquet|{re.escape(PREPARED)}|{re.escape(_LEASE)})"
#: Names of the files of a data set, and of their drafts.
_OWN = re.compile(rf"{_FILES}|\.{_FILES}\.[0-9a-f]{{32}}")


class PartFile(NamedTuple):
    """The file of a partition."""

    name: str
    checksum: str
    n_bytes: int
    n_rows: int


@dataclass(frozen=True, eq=False)
class StoredDataset(BinnedRows):
    """A data set in files; its methods read them in this process."""

    root: str
    data: DatasetDescription
    settings: dict[str, Any]
    parts: tuple[PartFile, ...]
    filled: tuple[str, ...]
    by_workers: bool  # whether workers have written the files, so that all of them can read them
    table: Table | None = None  # the rows, if several fits share them

    @property
    def lengths(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(part.n_rows for part in self.parts)

    @property
    def n_bytes(self) -> int:
        """Size of the parts."""
        return sum(part.n_bytes for part in self.parts)

    @property
    def promise(self) -> PartPromise:
        """What all parts have in common."""
        binning, target = self.data.binning, self.data.sample_target
        names = tuple(feature.name for feature in binning.features)
        return PartPromise(names, binning.n_bins, self.filled, isinstance(target, CategoryColumn), n_columns_of(target))

    def partitions(self) -> Iterator[BinnedPartition]:
        """Yield the partitions one after the other."""
        table = self.table
        if table is None:
            promise = self.promise
            return (read_part(self.root, part, promise) for part in self.parts)
        return (BinnedPartition(table.codes(i), table.given_roles(i)) for i in range(table.n_chunks))

    def targets(self) -> Column:
        table = self.table
        if table is None or table.keeps_roles_apart:
            return super().targets()
        return table.as_given(table.all_roles).given_target

    def map(self, function: Callable[..., Any], arguments: Sequence[Any] | None = None) -> list[Any]:
        if arguments is None:
            return [function(partition) for partition in self.partitions()]
        return [function(partition, argument) for partition, argument in zip(self.partitions(), arguments, strict=True)]

    def fit(self, request: FitRequest) -> FitResult:
        if self.table is not None:
            return fit_in_memory(self.table, self.data, request)
        options = None if request.budget is None else request.read_options
        return train(replace(request, binned=self.data), self._backend(request.n_threads, options))

    def refit(self, model: Ensemble, **options: Any) -> Ensemble:
        check_thresholds(model, self.data.binning, "refit_leaves")
        return refit_leaves(model, self._backend(options["n_threads"]), binned=self.data, **options)

    def _backend(self, n_threads: int, options: ReadOptions | None = None) -> LocalBackend:
        """Return the session of a fit. options : default: the codes stay in memory until they are encoded."""
        return LocalBackend(partial(self._open, options), n_threads)

    def _open(self, options: ReadOptions | None) -> Table:
        return open_binned(self.partitions(), self.data.binning, self.data.named, options)

    @contextmanager
    def for_folds(self) -> Iterator[StoredDataset]:
        """Yield the rows in a table that all fits read: roles in memory, codes in temporary files."""
        with self._open(ReadOptions(retain_bytes=0)) as table:
            pa.default_memory_pool().release_unused()  # what decoding the parts took
            yield replace(self, table=table)


def fit_in_memory(table: Table, data: DatasetDescription, request: FitRequest) -> FitResult:
    """Train on rows that are read; other fits may use the table, too."""
    return train(replace(request, binned=data), LocalBackend(lambda: table, request.n_threads, is_shared=True))


# Reading.


def is_prepared(path: Any) -> bool:
    """Whether a folder has a prepared data set, which may be damaged."""
    return isinstance(path, str | os.PathLike) and os.path.isfile(f"{path_text(path)}/{PREPARED}")


def is_stored(root: str) -> bool:
    """Whether a folder or URL has a prepared data set."""
    if has_query(root):
        return False
    filesystem, name = filesystem_of(f"{root}/{PREPARED}")
    return bool(filesystem.exists(name)) or is_prepared(root)


def read_dataset(root: str) -> StoredDataset:
    """Read what a data set consists of.

    Raises
    ------
    StorageError
        If it is damaged, or was written by another version.
    """
    name = f"{root}/{PREPARED}"
    try:
        content = read_whole(name)
    except ModelFileError as error:
        raise StorageError(str(error)) from error
    return parse_description(content, shown(name), VERSION, partial(_parsed, root))


def _parsed(root: str, content: dict[str, Any]) -> StoredDataset:
    """Return the data set of a description."""
    binning, settings = parse_binning(content), parse_settings(content["settings"])
    sample, checksum = content["sample"]
    version = sample.removeprefix("sample-").removesuffix(".parquet")
    is_name = re.fullmatch("[0-9a-f]{12}", version) is not None and sample == f"sample-{version}.parquet"
    refuse(not is_name, f"{sample[:80]!r} is not the name of a sample")
    parts = []
    for i, (name, part_checksum, n_bytes, n_rows) in enumerate(content["parts"]):
        refuse(name != _part_name(version, i), f"part {i} has the name {name[:80]!r}")
        sizes = count(n_bytes, "the size of a part"), count(n_rows, "the number of rows of a part")
        parts.append(PartFile(name, part_checksum, *sizes))
    n_rows = count(sum(part.n_rows for part in parts), "the number of rows", 1)
    refuse(type(content["by_workers"]) is not bool, "by_workers is neither true nor false")
    types = {f"v{j}": "double" for j in range(len(binning.features))}
    n_targets = count(content["n_targets"], "n_targets", 1)
    encoded = _read(root, sample, checksum)
    try:
        columns, target = decoded(encoded, None, types, None, n_targets)
        values = np.column_stack(list(columns.values()))
        check_sample(values, binning, n_rows)
        check_roles(RowRoles(target))
    except ValueError as error:
        raise StorageError(f"{shown(root)}/{sample} is damaged: {error}; prepare the data set again") from error
    data = DatasetDescription(binning, content["named"], values, target, shown(root))
    return StoredDataset(root, data, settings, tuple(parts), parse_filled(content["filled"]), content["by_workers"])


def read_part(root: str, part: PartFile, promise: PartPromise) -> BinnedPartition:
    """Read a partition.

    Raises
    ------
    StorageError
        If the file is missing or damaged, or its content is not what the description promises.
    """
    content = _read(root, part.name, part.checksum)
    try:
        return BinnedPartition(*decode_part(content, part.n_rows, promise))
    except ValueError as error:
        raise StorageError(f"{shown(root)}/{part.name} is damaged: {error}; prepare the data set again") from error


def _read(root: str, name: str, checksum: str) -> bytes:
    """Return the content of a file, which has the checksum."""
    path = f"{root}/{name}"
    if "://" not in root and os.path.exists(path) and not os.path.isfile(path):
        raise StorageError(f"{path} is no file")  # a named pipe would be waited for
    try:
        content = read_whole(path)
    except FileMissingError as error:
        raise StorageError(
            f"{shown(root)} is damaged, or was replaced since it was opened: the file {name} is missing"
        ) from error
    except ModelFileError as error:
        raise StorageError(str(error)) from error
    if digest_of(content) != checksum:
        raise StorageError(f"{shown(root)}/{name} is damaged: its content does not match its checksum")
    return content


# Writing.


@contextmanager
def preparing(root: str, *, by_workers: bool) -> Iterator[Lease]:
    """Hold the lease of a folder or URL that will have a data set; make the folder, and remove it if nothing was written.

    by_workers : whether workers write the files, maybe those of another user; a folder that this process writes is its user's.

    Raises
    ------
    DataError
        If the folder has other files and no data set.
    BusyError
        If another run writes the folder.
    StorageError
        If the folder cannot be written.
    """
    filesystem, folder = filesystem_of(root)
    is_file = "://" not in root and os.path.isfile(root)
    if is_file or not (PREPARED in (names := names_in(root)) or all(map(_OWN.fullmatch, names))):
        raise DataError(f"{shown(root)} is there already and holds no prepared data: choose another path, or remove it")
    is_new = "://" not in root and not os.path.exists(root)
    try:
        if is_new and not by_workers:
            with suppress(FileExistsError):  # another run has made it at the same moment; the lease decides
                os.mkdir(root, 0o700)
        filesystem.makedirs(folder, exist_ok=True)
        with Lease(f"{root.rstrip('/')}/{_LEASE}", f"is preparing {shown(root)}") as lease:
            yield lease
    except ModelFileError as error:
        raise StorageError(f"cannot write {shown(root)}: {reason(error.__cause__ or error)}") from error
    except OSError as error:
        if isinstance(error, DBoostError):
            raise
        raise StorageError(f"cannot write {shown(root)}: {reason(error)}") from error
    finally:
        if is_new:
            with suppress(OSError):
                os.rmdir(root)  # only if it is empty


def new_version() -> str:
    """Return the part of the names of files that differs between versions."""
    return uuid.uuid4().hex[:12]


def _part_name(version: str, i: int) -> str:
    """Return the name of the file of a partition."""
    return f"part-{version}-{i:05}.parquet"


def write_part(root: str, version: str, partition: BinnedPartition, i: int) -> PartFile:
    """Write partition `i`."""
    columns: dict[str, Any] = {f"b{j}": codes for j, codes in enumerate(partition.codes)}
    roles = partition.roles.by_name()
    target = roles.pop("target")
    columns |= {ROLES[role].field: values for role, values in roles.items()}
    name = _part_name(version, i)
    return PartFile(name, *_write(root, name, columns, target), partition.n_rows)


def _write(root: str, name: str, columns: dict[str, Any], target: Column) -> tuple[str, int]:
    """Write columns and targets as a Parquet file; return its checksum and size.

    Categories of targets are in the metadata of the file.
    """
    import pyarrow.parquet as pq

    targets = [target.codes] if isinstance(target, CategoryColumn) else np.atleast_2d(target)
    targets = [values.astype(np.float64) if values.dtype.itemsize > 8 else values for values in targets]  # long double
    table = pa.table(columns | dict(zip(target_names(len(targets)), targets, strict=True)))
    if isinstance(target, CategoryColumn):
        table = table.replace_schema_metadata({"categories": json.dumps(target.categories)})
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    content = buffer.getvalue()
    write_whole(f"{root}/{name}", content)
    return digest_of(content), len(content)


def complete(stored: StoredDataset, version: str, lease: Lease) -> StoredDataset:
    """Complete a data set whose parts have been written, and remove the files of an older one.

    Raises
    ------
    BusyError
        If another run has taken over the lease.
    StorageError
        If this process cannot read the parts, because the workers have another file system.
    """
    root, data = stored.root, stored.data
    _read(root, stored.parts[0].name, stored.parts[0].checksum)
    sample = f"sample-{version}.parquet"
    values = {f"v{j}": np.ascontiguousarray(data.sample[:, j]) for j in range(data.sample.shape[1])}
    checksum, _ = _write(root, sample, values, data.sample_target)
    content = binning_content(data.binning, data.named) | {
        "settings": stored.settings,
        "parts": [list(part) for part in stored.parts],
        "filled": list(stored.filled),
        "sample": [sample, checksum],
        "n_targets": n_columns_of(data.sample_target),
        "by_workers": stored.by_workers,
    }
    head = {"format": "dboost-dataset", "version": VERSION, "sha256": digest_of(content_text(content)), "content": content}
    lease.renew()
    write_whole(f"{root}/{PREPARED}", content_text(head))
    lease.renew()
    kept = {*(part.name for part in stored.parts), sample, PREPARED, _LEASE}
    for name in names_in(root):
        if _OWN.fullmatch(name) and name not in kept:
            remove(f"{root}/{name}")
    return read_dataset(root)


def remove_version(root: str, version: str) -> None:
    """Remove the files of a version that could not be completed: on a full disk they take the room of the next try."""
    with suppress(DBoostError):  # the next run removes them
        names = names_in(root)
        if PREPARED in names and version in read_whole(f"{root}/{PREPARED}").decode("utf-8", "replace"):
            return
        for name in names:
            if _OWN.fullmatch(name) and version in name:
                remove(f"{root}/{name}")
