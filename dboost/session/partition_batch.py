"""The partitions of one session before their categories have final codes.

A session sees only its own partitions, so loading has two steps. First, tasks read partitions into a `PartitionBatch`, in which
categories have provisional codes. `scan_partitions` returns its `PartitionStats`: categories, kinds of columns, numbers of rows
and data errors. The client merges the statistics of all sessions and defines the features. Second, `table` returns a `Table`
with the final codes. Functions of these rows (`table_rows`) compute all other statistics.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from dboost.data import Table
from dboost.data.columns.chunk import CategoryIndex, Chunk
from dboost.data.columns.column import CategoryColumn, without_unused
from dboost.data.columns.read_plan import ReadPlan
from dboost.data.columns.roles import RowRoles
from dboost.data.tables.reader import Reader, StoredSlices, fingerprint_of, rows_in
from dboost.data.tables.row_metadata import DataIssue, MetadataRows, RowMetadata, RowMetadataSpool
from dboost.files.spool import Spool
from dboost.schema import Feature, Level
from dboost.session.memory import Budget, TrimCounter
from dboost.session.target import TargetScan, merge_target_scans, scan_target

#: Bytes of chunks that stay in memory until they are encoded; further chunks are spooled to files.
RETAIN_BYTES = 256 * 2**20


class MissingPartitions(Exception):
    """Raised when a call names a batch, or partitions of a batch, that this session does not have."""


@dataclass(frozen=True, eq=False)
class PartitionStats:
    """Statistics of the partitions of one batch in one session."""

    lengths: dict[int, int]  # {partition: number of rows}
    n_kept: dict[int, int]  # {partition: number of rows of positive weight}
    n_bytes: dict[int, int]  # {partition: bytes of its columns}
    #: Per feature: whether it is categorical, and the partition from which this follows; None if all values are missing.
    kinds: tuple[tuple[bool, int] | None, ...]
    categories: tuple[tuple[Level, ...], ...]  # per feature: its categories
    target: TargetScan | None  # None without rows of positive weight
    issues: tuple[DataIssue, ...]
    max_weight: float  # largest weight
    unit_weights: bool  # whether all weights are 1 (or 0)
    fingerprints: dict[int, int]  # {partition: fingerprint}, see `data.columns.fingerprint`
    category_kinds: tuple[dict[str, int], ...]  # per feature: {kind: first partition with categories of the kind}
    spare: Budget | None = None  # memory that the session has for rows; None without a limit


class PartitionBatch:
    """Partitions that are read one by one, from several threads.

    Parameters
    ----------
    plan : ReadPlan
    retain_bytes : int
        Bytes of columns that may stay in memory; the rest is spooled to files.
    most_bytes : int, optional
        Largest size of a slice: partitions with larger columns are divided into slices.
    spool_roles : bool
        Store the roles in files.
    limit : Budget, optional
        Refuses the partitions if it is too small for them.
    turn : Lock, optional
        Of the thread that may copy a partition: each of Dask's threads has one in memory, and with a memory limit the copies of
        all would be too much.
    """

    def __init__(
        self,
        plan: ReadPlan,
        retain_bytes: int,
        most_bytes: int | None = None,
        *,
        spool_roles: bool = False,
        limit: Budget | None = None,
        turn: threading.Lock | None = None,
    ) -> None:
        self._plan = plan
        self._spool = Spool(retain_bytes, most_bytes)
        self._metadata_spool = RowMetadataSpool() if spool_roles else None
        self._reader = Reader(plan, self._spool, self._metadata_spool, fingerprints=True, limit=limit)
        self._stored: dict[int, StoredSlices] = {}
        self._lock, self._turn = threading.Lock(), turn or nullcontext()
        #: Of the thread that may decode a row group which is larger than its share: the decoders of several would be too much.
        self.decoding = threading.Lock()
        self._trim_counter = TrimCounter()
        self._scanned: _Scanned | None = None

    def read(self, i: int, bundle: tuple[Any, dict[str, Any]], is_persisted: bool = False) -> int:
        """Read partition `i`, and return its number of rows; called by loading tasks, several at a time.

        bundle : the partition, and roles that are not columns of it, by name.
        is_persisted : whether the partition stays in the worker's memory anyway.
        """
        with self._turn:
            with self._lock:
                known = self._stored.get(i)
            if known is None:  # Dask may run a task twice
                known = self._reader.read_partition(i, *bundle, is_persisted)
                with self._lock:
                    self._stored[i] = known
                self._trim_counter.add(self._spool.n_bytes(i))
            return rows_in(known)

    def add_slice(self, i: int, chunk: Chunk, number: int) -> None:
        """Add a slice of partition `i` that another worker has read. Slices must be added in order."""
        piece = self._reader.add_slice(i, chunk, number)
        with self._lock:
            self._stored[i] = (*(self._stored[i] if number else ()), piece)

    def give(self, i: int, number: int) -> tuple[Chunk, bool]:
        """Return a slice of partition `i` as it was read, and whether there are more."""
        self._check([i])
        slices = self._stored[i]
        chunk = self._reader.chunk(i, slices[number], number)
        if not number and self._scanned is not None and self._metadata_spool is None:  # the reader has joined the roles
            chunk = replace(chunk, roles=self._scanned.roles_of(i))
        return chunk, number + 1 < len(slices)

    def attach(self, role: str, values: dict[int, Any]) -> None:
        """Store a role of the partitions, if the user passed one array for all rows."""
        for i, array in values.items():
            self._reader.attach(role, i, array)

    def scan_partitions(self, partition_ids: Sequence[int]) -> PartitionStats:
        """Return statistics of the listed partitions, and drop the others."""
        if self._scanned is not None:  # repeated call
            return self._scanned.stats
        self._check(partition_ids)
        self._reader.keep_only(set(partition_ids))
        self._spool.keep_only(set(partition_ids))
        partition_ids = tuple(sorted(partition_ids))
        rows = MetadataRows(tuple(rows_in(self._stored[i]) for i in partition_ids), True, partition_ids)
        metadata = self._reader.finish_roles({}, rows)
        self._reader.drop_unweighted_categories({i: self._stored[i] for i in partition_ids}, metadata.roles.weight)
        stats = [_stats_of(metadata, n, roles) for n, roles in self._partitions(rows, metadata.roles)]
        targets = [scan for *_, scan in stats if scan is not None]
        survey = PartitionStats(
            lengths=dict(zip(partition_ids, rows.lengths, strict=True)),
            n_kept=dict(zip(partition_ids, (n for n, *_ in stats), strict=True)),
            n_bytes={i: self._spool.n_bytes(i) for i in partition_ids},
            kinds=self._reader.kinds(),
            categories=self._reader.used_categories(),
            category_kinds=self._reader.category_kinds(),
            target=reduce(merge_target_scans, targets) if targets else None,
            issues=metadata.issues,
            max_weight=max((max_weight for _, max_weight, *_ in stats), default=1.0),
            unit_weights=all(is_unit for *_, is_unit, _ in stats),
            fingerprints={i: fingerprint_of(self._stored[i]) for i in partition_ids},
        )
        self._scanned = _Scanned(partition_ids, rows, metadata, survey)
        return survey

    def _check(self, partition_ids: Sequence[int]) -> None:
        with self._lock:
            missing = [i for i in partition_ids if i not in self._stored]
        if missing:
            raise MissingPartitions(", ".join(map(str, missing)))

    def _partitions(self, rows: MetadataRows, roles: RowRoles) -> Iterator[tuple[int, RowRoles]]:
        """Yield the number of rows and the roles of each partition. roles : of all rows, if they are in memory."""
        first = 0
        for i, n in zip(rows.partition_ids or (), rows.lengths, strict=True):
            if self._metadata_spool is not None:
                yield n, self._metadata_spool.get(i) if n else RowRoles()
            else:
                yield n, roles.rows(slice(first, first + n))
            first += n

    def table(self, features: tuple[Feature, ...], named: bool) -> Table:
        """Return the listed partitions as a table, with categories encoded by the numbering in `features`."""
        if self._scanned is None:
            raise MissingPartitions("partitions that have not been scanned")
        partition_ids, rows, metadata, _ = self._scanned
        translations: list[np.ndarray | None] = []
        for feature, categories in zip(features, self._reader.categories(), strict=True):
            # With a closed plan the reader has used the final codes already.
            final = feature.categories is not None and not self._plan.closed
            translations.append(CategoryIndex(feature.name, feature.categories).translate(categories) if final else None)
        pieces = [self._stored[i] for i in partition_ids]
        spools = self._spool, pieces, translations, self._metadata_spool
        return Table(features, named, rows, metadata, *spools, self._plan.binning)

    def close(self) -> None:
        self._spool.close()
        if self._metadata_spool is not None:
            self._metadata_spool.close()


class Loading:
    """The batches of a session that are read. Loading tasks and moves of partitions use it, several at a time.

    spare : memory that the session may use; None without a limit.
    """

    def __init__(self, spare: Budget | None) -> None:
        self._spare = spare
        self._batches: dict[str, PartitionBatch] = {}  # until their rows are encoded
        self._lock, self._turn = threading.Lock(), threading.Lock()

    @property
    def names(self) -> list[str]:
        """Names of the batches."""
        return list(self._batches)

    def open(self, name: str, plan: ReadPlan, budget: Budget | None, whole: bool, n_threads: int) -> PartitionBatch:
        """Return a batch for partitions that are read; make it at the first call.

        whole : whether the user passed a role as one array for all rows; n_threads : of the session.
        """
        with self._lock:
            if name not in self._batches:
                retained = RETAIN_BYTES if self._spare is None else min(RETAIN_BYTES, self._spare.retained)
                if budget is None:
                    self._batches[name] = PartitionBatch(plan, retained)
                else:
                    self._batches[name] = PartitionBatch(
                        plan, budget.retained, budget.chunk,
                        spool_roles=not whole, limit=budget.on_threads(n_threads), turn=self._turn,
                    )  # fmt: skip
            return self._batches[name]

    def batch(self, name: str) -> PartitionBatch:
        """Return a batch whose partitions have been read; raise MissingPartitions without such a batch."""
        opened = self._batches.get(name)
        if opened is None:
            raise MissingPartitions(name)
        return opened

    def close(self, name: str) -> None:
        """Release a batch, if it is there."""
        if name in self._batches:
            self._batches.pop(name).close()


class _Scanned(NamedTuple):
    """The listed partitions of a batch."""

    partition_ids: tuple[int, ...]
    rows: MetadataRows
    metadata: RowMetadata  # of all rows
    stats: PartitionStats

    def roles_of(self, i: int) -> RowRoles:
        """Return the roles of a partition as they were read, if they are in memory."""
        k = self.partition_ids.index(i)
        first = sum(self.rows.lengths[:k])
        roles = self.metadata.roles.rows(slice(first, first + self.rows.lengths[k]))
        target = roles.target
        if isinstance(target, CategoryColumn):
            return replace(roles, target=without_unused(target))
        return roles if target is None else replace(roles, target=target.astype(self.metadata.target_dtype))


def _stats_of(metadata: RowMetadata, n: int, roles: RowRoles) -> tuple[int, float, bool, TargetScan | None]:
    """Return rows of positive weight, largest weight, whether all weights are 1 (or 0), and the target scan of a partition."""
    if not n:
        return 0, 0.0, True, None
    weight = roles.weight
    scan = scan_target(roles.target, weight, str(metadata.target_dtype), metadata.target_is_bool)
    if weight is None:
        return n, 1.0, True, scan
    return int((weight > 0).sum()), float(weight.max()), bool(((weight == 1.0) | (weight == 0.0)).all()), scan
