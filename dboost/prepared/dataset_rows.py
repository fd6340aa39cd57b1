"""The rows of a data set that stays in memory, for one fit: in this process, or on the workers of a cluster.

The rows are binned already (`data.columns.chunk`), so the fit proposes no bins, and the reference sample is that of the data
set, which was drawn when the raw values were read (`training.binned_data`). Everything else is as for any table.

**Files** of a data set that the workers of a cluster have written, in a folder that they share or in an object store::

    dataset.json                  features, split points, settings, and the checksum of every other file; written last
    part-<version>-00000.parquet  bin codes (columns b0, b1, …) and roles of a partition
    sample-<version>.parquet      values and targets of the reference sample
    lease.json                    the lease of the run that writes (`files.lease`)

A new version has files of other names, so a reader finds the old data set or the new one; the files of the old one, and those
of killed runs, are removed at the end. A file is read as a whole and compared with its checksum, and then with what the
description promises (`prepared.dataset_checks`).
"""

from __future__ import annotations

import io
import json
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from dboost._lazy_import import pa
from dboost.data import CategoryColumn, Chunk, Column, ReadOptions, Table
from dboost.data.columns.binning import Binning
from dboost.data.columns.chunk import BinnedPartition, CategoryIndex, DecodedColumns
from dboost.data.columns.column import apply
from dboost.data.columns.roles import ROLES, RowRoles, joined, length_of, n_columns_of
from dboost.data.tables.open_table import open_binned
from dboost.errors import DataError, DBoostError, shown
from dboost.files.atomic_write import FileMissingError, names_in, read_whole, remove, write_whole
from dboost.files.filesystem import filesystem_of, has_query
from dboost.files.lease import Lease
from dboost.files.path_text import path_text
from dboost.model.ensemble import Ensemble, FlatEnsemble
from dboost.params import Parameters
from dboost.prepared.dataset_checks import (
    PartPromise,
    binning_content,
    check_sample_rows,
    content_text,
    count,
    decode_part,
    decoded,
    digest_of,
    parse_binning,
    parse_description,
    parse_settings,
    refuse,
    roles_problem,
    sample_problem,
    target_names,
)
from dboost.rows.block_file import StorageError
from dboost.session.local_sessions import LocalSessions
from dboost.session.row_samples import TEST, FoldRows
from dboost.session.warm_start import matrix_of
from dboost.training.binned_data import DatasetDescription, check_thresholds
from dboost.training.fit import train
from dboost.training.fit_result import FitResult
from dboost.training.leaf_refit import refit_leaves
from dboost.training.plan import FitRequest


@dataclass(frozen=True, eq=False)
class LocalRows:
    """The rows of a data set in this process; implements `training.folds.BinnedRows`."""

    data: DatasetDescription
    lengths: Sequence[int]  # number of rows of each partition
    #: Returns the partitions one after the other: those in memory, or those read from files.
    partitions: Callable[[], Iterable[BinnedPartition]]
    #: Returns how a fit may use memory for partitions that are read, given its request. Default: they are in memory.
    options: Callable[[FitRequest], ReadOptions] | None = None
    table: Table | None = None  # of these rows, for all fits; default: each fit opens its own

    @property
    def n_rows(self) -> int:
        return sum(self.lengths)

    def fit(self, request: FitRequest) -> FitResult:
        return train(replace(request, binned=self.data), self._sessions(request))

    def refit(self, model: Ensemble, **options: Any) -> Ensemble:
        check_thresholds(model, self.data.binning, "refit_leaves")
        sessions = self._sessions(FitRequest(Parameters(), options["n_threads"]))
        return refit_leaves(model, sessions, binned=self.data, **options)

    def _sessions(self, request: FitRequest) -> LocalSessions:
        if (table := self.table) is not None:
            return LocalSessions(lambda: table, request.n_threads, is_shared=True)
        options = None if self.options is None else self.options(request)

        def opened() -> Table:
            return open_binned(self.partitions(), self.data.binning, self.data.named, options)

        return LocalSessions(opened, request.n_threads)

    def targets(self) -> Column:
        if self.table is not None and self.table.target is not None and self.table.target_dtype == "float64":
            return self.table.target
        return joined_targets([partition.roles.target for partition in self.partitions()])

    def groups(self) -> np.ndarray | None:
        return joined_role(partition.roles.group for partition in self.partitions())

    def weights(self) -> np.ndarray | None:
        return joined_role(partition.roles.weight for partition in self.partitions())

    def scores(self, model: Ensemble) -> np.ndarray:
        check_thresholds(model, self.data.binning, "calibrate")
        return scores_of_all(self.held_out_scores, model, self.n_rows)

    def held_out_scores(self, models: Sequence[Ensemble], folds: Sequence[FoldRows]) -> list[tuple[np.ndarray, np.ndarray]]:
        parts, first = [], 0
        for partition in self.partitions():
            uses = [fold.uses[first : first + partition.n_rows] for fold in folds]
            parts.append((first, scores_of_partition(partition, self.data.binning, models, uses)))
            first += partition.n_rows
        return joined_scores(parts)


#: For each fold: positions of the held-out rows in a partition, and their raw scores [n, n_outputs].
FoldScoresOfPartition = list[tuple[np.ndarray, np.ndarray]]


def scores_of_partition(
    partition: BinnedPartition, binning: Binning, models: Sequence[Ensemble], uses: Sequence[np.ndarray]
) -> FoldScoresOfPartition:
    """Return the raw scores of the held-out rows of each fold by the fold's model.

    uses : for each fold the uses of the partition's rows, see `session.row_samples.FoldRows`.
    """
    found = []
    columns = DecodedColumns(partition.codes, binning)
    for model, of_fold in zip(models, uses, strict=True):
        rows = np.flatnonzero(of_fold == TEST)
        raw = FlatEnsemble(model).raw_scores(matrix_of(Chunk(len(rows), columns.rows(rows))), n_threads=1)
        if partition.roles.offset is not None:
            raw[:, model.outputs.offset_outputs] += partition.roles.offset[rows, None]
        found.append((rows, raw))
    return found


def scores_of_all(held_out_scores: Callable[..., list[tuple[np.ndarray, np.ndarray]]], model: Ensemble, n: int) -> np.ndarray:
    """Return the raw scores of n rows, all those of a `BinnedRows`, by its `held_out_scores`."""
    ((_, raw),) = held_out_scores([model], [FoldRows(np.full(n, TEST))])
    return raw


def joined_scores(parts: Sequence[tuple[int, FoldScoresOfPartition]]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Join the scores of partitions. parts : position of each partition's first row, and its scores."""
    return [
        (
            np.concatenate([first + scores[k][0] for first, scores in parts]),
            np.concatenate([scores[k][1] for _, scores in parts]),
        )
        for k in range(len(parts[0][1]))
    ]


def joined_targets(parts: Sequence[Column | None]) -> Column:
    """Join the targets of partitions, which may have different categories, sorted."""
    filled = [part for part in parts if part is not None and length_of(part)]
    if not any(isinstance(part, CategoryColumn) for part in filled):
        return joined(filled)
    index = CategoryIndex("target", is_target=True)
    codes = [apply(index.translate(part.categories), part.codes) for part in filled if isinstance(part, CategoryColumn)]
    categories, final = index.finish()
    return CategoryColumn(apply(final, np.concatenate(codes)), categories)


def joined_role(parts: Iterable[np.ndarray | None]) -> np.ndarray | None:
    """Join a role of partitions; None if the rows do not have it, which the first partition tells."""
    found = []
    for part in parts:
        if part is None:
            return None
        found.append(part)
    return np.concatenate(found)


#: The newest version; data sets with one target column have version 1, which older versions of dboost read.
NAME, VERSION = "dataset.json", 2
_LEASE = "lease.json"
_FILES = rf"((part-[0-9a-f]{{12}}-\d{{5,}}|sample-[0-9a-f]{{12}})\.parquet|{re.escape(NAME)}|{re.escape(_LEASE)})"
#: Names of the files of a data set, and of their drafts.
_OWN = re.compile(rf"{_FILES}|\.{_FILES}\.[0-9a-f]{{32}}")


@dataclass(frozen=True, eq=False)
class StoredDataset:
    """A data set in files."""

    root: str
    data: DatasetDescription
    settings: dict[str, Any]  # parameters of `dboost.prepare`, by name
    files: tuple[tuple[str, str], ...]  # name and checksum of the file of each partition
    lengths: tuple[int, ...]  # rows of positive weight of each partition
    filled: tuple[str, ...]  # the roles that the rows have
    n_bytes: int

    @property
    def promise(self) -> PartPromise:
        """What all parts have in common."""
        binning, target = self.data.binning, self.data.sample_target
        of_target = isinstance(target, CategoryColumn), n_columns_of(target)
        return PartPromise(tuple(one.name for one in binning.features), binning.n_bins, self.filled, *of_target)

    def partitions(self) -> Iterator[BinnedPartition]:
        """Read the partitions one by one."""
        promise = self.promise
        return (read_part(self.root, *file, n, promise) for file, n in zip(self.files, self.lengths, strict=True))


def new_version() -> str:
    """Return the part of the names of files that differs between versions."""
    return uuid.uuid4().hex[:12]


def write_part(root: str, version: str, partition: BinnedPartition, i: int) -> tuple[str, str, int]:
    """Write partition `i`; return the name, the checksum and the size of its file."""
    columns: dict[str, Any] = {f"b{j}": codes for j, codes in enumerate(partition.codes)}
    roles = partition.roles.by_name()
    target = roles.pop("target")
    return _write(root, _part(version, i), columns | {ROLES[role].field: values for role, values in roles.items()}, target)


def _part(version: str, i: int) -> str:
    """Return the name of the file of a partition."""
    return f"part-{version}-{i:05}.parquet"


def read_part(root: str, name: str, checksum: str, n_rows: int, promise: PartPromise) -> BinnedPartition:
    """Read a partition of n_rows rows.

    Raises
    ------
    StorageError
        If the file is missing or damaged, or its content is not what the description promises.
    """
    content = _read(root, name, checksum)
    try:
        return BinnedPartition(*decode_part(content, n_rows, promise))
    except ValueError as error:
        raise StorageError(f"{shown(root)}/{name} is damaged: {error}; prepare the data set again") from error


def lease_of(root: str) -> Lease:
    """Return the lease of a folder or URL that will have a data set; make the folder.

    Raises
    ------
    DataError
        If the folder has other files and no data set.
    """
    if not is_stored(root) and not all(_OWN.fullmatch(name) for name in names_in(root)):
        raise DataError(f"{shown(root)} is there already and holds no data set: choose another path, or remove it")
    filesystem, folder = filesystem_of(root)
    filesystem.makedirs(folder, exist_ok=True)
    return Lease(f"{root.rstrip('/')}/{_LEASE}", f"is preparing {shown(root)}")


def remove_version(root: str, version: str) -> None:
    """Remove the files of a version that could not be completed: on a full disk they take the room of the next try."""
    with suppress(DBoostError):  # the next run removes them
        names = names_in(root)
        if NAME in names and version in read_whole(f"{root}/{NAME}").decode("utf-8", "replace"):
            return
        for name in names:
            if _OWN.fullmatch(name) and version in name:
                remove(f"{root}/{name}")


def write_description(
    root: str,
    version: str,
    data: DatasetDescription,
    settings: dict[str, Any],
    parts: Sequence[tuple[str, str, int]],
    lengths: Sequence[int],
    filled: Sequence[str],
    lease: Lease,
) -> StoredDataset:
    """Complete a data set whose partitions have been written; remove the files of an older one.

    Raises
    ------
    BusyError
        If another run has taken over the lease.
    StorageError
        If this process cannot read the partitions, because the workers have another file system.
    """
    files = [(name, checksum) for name, checksum, _ in parts]
    _read(root, *files[0])
    values = {f"v{j}": np.ascontiguousarray(data.sample[:, j]) for j in range(data.sample.shape[1])}
    sample = _write(root, f"sample-{version}.parquet", values, data.sample_target)
    content = binning_content(data.binning, data.named) | {
        "n_bytes": sum(size for *_, size in parts),
        "settings": settings,
        "files": files,
        "lengths": list(lengths),
        "filled": [role in filled for role in ROLES][: max(3, *(k + 1 for k, role in enumerate(ROLES) if role in filled))],
        "sample": sample[:2],
    }
    n_targets = n_columns_of(data.sample_target)
    content |= {} if n_targets == 1 else {"n_targets": n_targets}
    checksum = digest_of(content_text(content))
    head = {"format": "dboost-dataset", "version": 1 if n_targets == 1 else VERSION, "sha256": checksum, "content": content}
    lease.renew()
    write_whole(f"{root}/{NAME}", content_text(head))
    lease.renew()
    kept = {*(name for name, _ in files), sample[0], NAME, _LEASE}
    for found in names_in(root):
        if _OWN.fullmatch(found) and found not in kept:
            remove(f"{root}/{found}")
    return read_description(root)


def is_stored(path: Any) -> bool:
    """Whether a folder or URL has a data set of this kind."""
    if not isinstance(path, str | os.PathLike) or has_query(path_text(path)):
        return False
    filesystem, name = filesystem_of(f"{path_text(path)}/{NAME}")
    return bool(filesystem.exists(name))


def read_description(root: str) -> StoredDataset:
    """Read what a data set consists of.

    Raises
    ------
    StorageError
        If it is damaged, or was written by a newer version.
    """
    name = f"{root}/{NAME}"
    return parse_description(read_whole(name), shown(name), VERSION, partial(_stored, root))


def _stored(root: str, content: dict[str, Any]) -> StoredDataset:
    binning, settings = parse_binning(content), parse_settings(content["settings"])
    lengths = tuple(count(n, "the number of rows of a part") for n in content["lengths"])
    n_rows = count(sum(lengths), "the number of rows", 1)
    filled = content["filled"]
    wrong = not 3 <= len(filled) <= len(ROLES) or any(type(one) is not bool for one in filled) or not filled[0]
    refuse(wrong, f"filled is not 3 to {len(ROLES)} truth values")
    files = [(name, checksum) for name, checksum in content["files"]]
    refuse(len(files) != len(lengths), f"there are {len(files)} parts for {len(lengths)} numbers of rows")
    (sample, checksum) = content["sample"]
    of_sample = re.fullmatch(r"sample-([0-9a-f]{12})\.parquet", sample)
    refuse(of_sample is None, f"{sample[:80]!r} is not the name of a sample")
    assert of_sample is not None
    for i, (name, _) in enumerate(files):
        refuse(name != _part(of_sample[1], i), f"part {i} has the name {name[:80]!r}")
    types = {f"v{j}": "double" for j in range(len(binning.features))}
    n_targets = count(content["n_targets"], "n_targets", 2) if "n_targets" in content else 1
    encoded = _read(root, sample, checksum)
    try:
        columns, target = decoded(encoded, None, types, None, n_targets)
        values = np.column_stack(list(columns.values()))
        check_sample_rows(len(values), n_rows, len(binning.features))
        problem = sample_problem(values, binning) or roles_problem(RowRoles(target))
        refuse(problem is not None, problem or "")
    except ValueError as error:
        raise StorageError(f"{shown(root)}/{sample} is damaged: {error}; prepare the data set again") from error
    return StoredDataset(
        root,
        DatasetDescription(binning, content["named"], values, target, shown(root)),
        settings,
        tuple(files),
        lengths,
        tuple(role for role, there in zip(ROLES, filled, strict=False) if there),
        count(content["n_bytes"], "n_bytes"),
    )


def _write(root: str, name: str, columns: dict[str, Any], target: Column) -> tuple[str, str, int]:
    """Write columns and targets as a Parquet file; categories of targets are in the metadata of the file."""
    import pyarrow.parquet as pq

    targets = [target.codes] if isinstance(target, CategoryColumn) else np.atleast_2d(target)
    table = pa.table(columns | dict(zip(target_names(len(targets)), targets, strict=True)))
    if isinstance(target, CategoryColumn):
        table = table.replace_schema_metadata({"categories": json.dumps(target.categories)})
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    content = buffer.getvalue()
    write_whole(f"{root}/{name}", content)
    return name, digest_of(content), len(content)


def _read(root: str, name: str, checksum: str) -> bytes:
    """Return the content of a file, which has the checksum."""
    if "://" not in root and os.path.exists(f"{root}/{name}") and not os.path.isfile(f"{root}/{name}"):
        raise StorageError(f"{root}/{name} is no file")  # a named pipe would be waited for
    try:
        content = read_whole(f"{root}/{name}")
    except FileMissingError as error:
        raise StorageError(f"{shown(root)} is damaged: the file {name} is missing") from error
    if digest_of(content) != checksum:
        raise StorageError(f"{shown(root)}/{name} is damaged: its content does not match its checksum")
    return content
