"""The partitions of one session before they become shards.

A session sees only its own partitions, so loading has two steps. First, tasks read partitions into a `PartitionBatch`, in which
categories have provisional codes. `scan_partitions` returns its `PartitionStats`: categories, kinds of columns, numbers of rows
and data errors. The client merges the statistics of all sessions and defines the features. Second, `set_features` converts the
batch to a `Table` with the final codes. The other methods of `PartitionLoader` compute statistics of this table.

The methods without an underscore are called by name from other processes (see `session.protocol.SESSION_METHODS`), except
`take`, `take_slice` and `give`, which loading tasks call.

**Roles and start scores** of a batch are its `BatchRows`. Without a memory limit these arrays are in memory, and
`BatchRows.ranges` yields one range. With a limit, the roles are in files like the columns (`data.row_metadata`). Arrays that
are computed from them are stored in files as well, one partition at a time: the encoded target, and the start scores, which are
the raw scores by a model of other data. `gather` loads everything into memory, for functions that need all rows together.

`starting_pieces` yields encoded rows with their first raw scores, piece by piece, for code that writes them to files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from dboost.data import Table
from dboost.data.binning import sample_rows
from dboost.data.chunk import CategoryIndex, Chunk
from dboost.data.partition import ReadPlan
from dboost.data.roles import RowRoles
from dboost.data.row_metadata import MetadataRows, RowMetadata, RowMetadataSpool
from dboost.data.table import Reader, SpooledChunk, kept_rows, values_in
from dboost.model.ensemble import FlatEnsemble
from dboost.schema import Feature
from dboost.session.memory import Budget, TrimCounter
from dboost.session.protocol import BuildSpec, MissingPartitions, Numbered, PartitionStats
from dboost.session.reference_sample import reference_rows
from dboost.session.row_samples import HELD_OUT, WATCHED, DigitRequest, NumberedRows, RowAssignment
from dboost.session.target import Target, TargetScan, encode_chunk, encode_like, merge_target_scans, scan_target
from dboost.session.warm_start import WarmStart, add_block, matrix_of, starting_scores
from dboost.shards.encode import distinct_of, encoded_pieces, sampled
from dboost.shards.shard import BinnedColumns
from dboost.storage.spool import Spool


class BatchRows:
    """The rows of a batch in one session.

    Parameters
    ----------
    table : Table
    n_threads : int

    Attributes
    ----------
    y : float64[n_rows]
        Encoded targets of all rows; empty if they are in files.
    start_scores : float64[n_outputs, n_kept], or None
        Raw scores of the rows of positive weight by a model of other data; None without such a model or if they are in files.
    """

    def __init__(self, table: Table, n_threads: int) -> None:
        self.table, self._n_threads = table, n_threads
        self.y = np.empty(0)
        self.start_scores: np.ndarray | None = None
        if table.keeps_roles_apart:
            self._targets, self._scores = Spool(0), Spool(0)
        self._has_start_scores = False

    @property
    def n_kept(self) -> int:
        """Number of rows of positive weight."""
        return sum(self.kept_of(k) for k in range(self.table.n_chunks))

    def kept_of(self, k: int) -> int:
        """Return the number of rows of positive weight of chunk k."""
        weight = self.table.roles(k).weight if self.table.lengths[k] else None
        return self.table.lengths[k] if weight is None else int(np.count_nonzero(weight > 0))

    @property
    def owned(self) -> dict[int, int]:
        """Number of rows of positive weight of each partition with such rows."""
        return {number: n for k, number in enumerate(self.table.numbers) if (n := self.kept_of(k))}

    def draw_ids(self, number: int, start: int) -> np.ndarray:
        """See `StartingRows`."""
        return self.table.draw_ids(self.table.numbers.index(number), start)

    def pieces(self, spec: BuildSpec, n_threads: int, piece_rows: int) -> Iterator[StartingPiece]:
        """See `StartingRows`."""
        return starting_pieces(self, spec, n_threads, piece_rows)

    def encode(self, target: Target) -> None:
        """Encode the target for the loss."""
        table = self.table
        if not table.keeps_roles_apart:
            counts = table.n_rows > 0 and (table.weight is None or bool((table.weight > 0).any()))
            self.y = encode_like(table, target) if counts else np.zeros(table.n_rows)
            return
        self._targets.close()
        self._targets = Spool(0)
        for k, length in enumerate(table.lengths):
            if length:
                self._targets.put(k, [encode_chunk(table, k, target)])

    def compute_start_scores(self, warm_start: WarmStart) -> None:
        """Compute the start scores of the rows of positive weight, by a model of other data. Idempotent."""
        if self._has_start_scores:
            return
        table, iterations = self.table, (0, warm_start.n_earlier)
        self._has_start_scores = True
        if not table.keeps_roles_apart:
            kept = kept_rows(table.weight)
            self.start_scores = starting_scores(warm_start.baseline, warm_start, table, kept, self._n_threads, iterations)
            return
        flat = None if warm_start.model is None else FlatEnsemble(warm_start.model)
        for k in range(table.n_chunks):
            n = self.kept_of(k)
            if n:
                roles = table.roles(k)
                kept, offset = kept_rows(roles.weight), roles.offset
                some = slice(None) if kept is None else kept
                scores = np.repeat(warm_start.baseline[:, None], n, axis=1)
                if offset is not None:
                    scores += offset[some]
                if flat is not None and warm_start.n_earlier:
                    at = 0
                    for _, positions, chunk in table.slices(k, kept):
                        matrix = matrix_of(chunk) if positions is None else matrix_of(chunk)[positions]
                        here = scores[:, at : at + len(matrix)].copy()
                        add_block(here, flat, matrix, iterations, self._n_threads)
                        scores[:, at : at + len(matrix)] = here
                        at += len(matrix)
                self._scores.put(k, [scores])

    def ranges(self) -> Iterator[RowRoles]:
        """Yield the roles of ranges that together are the rows of positive weight: encoded targets, and start scores for
        offsets if there are any."""
        table = self.table
        if not table.keeps_roles_apart:
            kept = kept_rows(table.weight)
            roles = replace(table.all_roles, target=self.y)
            roles = roles if kept is None else roles.rows(kept)
            if roles.n_rows:
                yield roles if self.start_scores is None else replace(roles, offset=self.start_scores)
            return
        for k in range(table.n_chunks):
            if self.kept_of(k):
                yield self.range_of(k)

    def target_of(self, k: int) -> np.ndarray:
        """Return the encoded targets of all rows of chunk k."""
        if self.table.keeps_roles_apart:
            return self._targets.get(k)[0]
        first = sum(self.table.lengths[:k])
        return self.y[first : first + self.table.lengths[k]]

    def range_of(self, k: int) -> RowRoles:
        """Return the roles of the rows of positive weight of chunk k, which must have some; see `ranges`."""
        given = self.table.roles(k)
        kept = kept_rows(given.weight)
        roles = replace(given, target=self.target_of(k))
        roles = roles if kept is None else roles.rows(kept)
        if not self._has_start_scores:
            return roles
        if self.table.keeps_roles_apart:
            return replace(roles, offset=self._scores.get(k)[0])
        assert self.start_scores is not None
        first, all_weights = sum(self.table.lengths[:k]), self.table.weight
        before = first if all_weights is None else int(np.count_nonzero(all_weights[:first] > 0))
        return replace(roles, offset=self.start_scores[..., before : before + roles.n_rows])

    @property
    def has_start_scores(self) -> bool:
        """Whether start scores replace the offsets."""
        return self._has_start_scores

    def draw_id_of(self, spec: BuildSpec, kept_range: slice) -> np.ndarray | None:
        """Return the keys of the groups of a range of the rows of positive weight, in memory; None if no group is drawn."""
        group = self.table.all_roles.group
        if not spec.shard.grouped or group is None:
            return None
        kept = kept_rows(self.table.weight)
        return group[kept_range] if kept is None else group[kept[kept_range]]

    def gather(self) -> None:
        """Load everything but the columns into memory."""
        table = self.table
        if not table.keeps_roles_apart:
            return
        filled = [k for k, length in enumerate(table.lengths) if length]
        some = [k for k in filled if self.kept_of(k)]
        if self._has_start_scores and some:
            self.start_scores = np.concatenate([self._scores.get(k)[0] for k in some], axis=-1)
        self.y = np.concatenate([np.empty(0), *(self._targets.get(k)[0] for k in filled)])
        table.gather_roles()
        self._targets.close()
        self._scores.close()

    def close(self) -> None:
        """Remove the files. The caller closes the table."""
        if self.table.keeps_roles_apart:
            self._targets.close()
            self._scores.close()


class StartingRows(Protocol):
    """Rows that can be read piece by piece: encoded, with their first raw scores."""

    @property
    def owned(self) -> dict[int, int]:
        """Number of rows of positive weight of each partition with such rows."""

    def draw_ids(self, number: int, start: int) -> np.ndarray:
        """Return what samples of the rows of a partition are drawn by, see `Table.draw_ids`."""

    def pieces(self, spec: BuildSpec, n_threads: int, piece_rows: int) -> Iterator[StartingPiece]:
        """Yield the rows of positive weight in pieces of about `piece_rows` rows."""


def global_row_ids(table: Table, starts: dict[int, int]) -> np.ndarray:
    """Return the global ids of a table's rows of positive weight: int64[n_kept]."""
    kept = kept_rows(table.weight)
    borders = np.cumsum((0, *table.lengths))
    if kept is not None:
        borders = np.searchsorted(kept, borders)
    row_ids = [starts[i] + np.arange(b - a) for i, (a, b) in zip(table.numbers, pairwise(borders.tolist()), strict=True)]
    return np.concatenate(row_ids) if row_ids else np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class StartingPiece:
    """Consecutive rows of positive weight of one partition."""

    first: int  # global id of the first row
    codes: BinnedColumns  # valid until the next piece
    fields: dict[str, np.ndarray]  # target, weight and draw_id (if the fit has them), and first raw scores, by name


def starting_pieces(rows: BatchRows, spec: BuildSpec, n_threads: int, piece_rows: int) -> Iterator[StartingPiece]:
    """Yield the rows of positive weight in pieces of at most `piece_rows` rows."""
    table, warm_start = rows.table, spec.warm_start
    flat = None if warm_start.model is None else FlatEnsemble(warm_start.model)
    seen = (warm_start.n_earlier if rows.has_start_scores else 0, warm_start.n_before)
    chunk, at = -1, 0
    for piece in encoded_pieces(table, spec.binning, spec.shard.layout, n_threads, piece_rows):
        n = piece.codes.n_rows
        if piece.number != chunk:
            chunk, at = piece.number, 0
            roles = rows.range_of(chunk)
        here = slice(at, at + n)
        if rows.has_start_scores:
            assert roles.offset is not None
            raw = roles.offset[:, here].copy()
        else:
            raw = np.repeat(spec.baseline[:, None], n, axis=1)
            raw += 0.0 if roles.offset is None else roles.offset[here]
        if flat is not None:
            add_block(raw, flat, matrix_of(piece.chunk), seen, n_threads)
        fields = {"target": spec.in_unit(roles.numbers[here]), "raw": spec.in_unit(raw)}
        if spec.shard.weighted:
            fields["weight"] = np.ones(n) if roles.weight is None else roles.weight[here]
        if spec.shard.grouped:
            assert roles.group is not None
            fields["draw_id"] = roles.group[here]
        yield StartingPiece(spec.starts[table.numbers[chunk]] + at, piece.codes, fields)
        at += n


#: Bytes of chunks that stay in memory until they are encoded; further chunks are spooled to files.
RETAIN_BYTES = 256 * 2**20


class PartitionLoader:
    """Batches by name: read partitions, report their statistics, convert them to tables, and compute statistics of the tables.

    spare : memory budget for fits without a `memory_limit`.
    """

    def __init__(self, n_threads: int, spare: Budget | None = None) -> None:
        self._guard = threading.Lock()
        self._one_at_a_time = threading.Lock()
        self._spare = spare
        self._n_threads = n_threads
        self._batches: dict[str, PartitionBatch] = {}
        self._rows: dict[str, BatchRows] = {}
        self._chosen: dict[tuple[str, str], tuple[np.ndarray, np.ndarray | None]] = {}
        self._assigned: set[str] = set()

    def take(
        self,
        batch: str,
        i: int,
        plan: ReadPlan,
        bundle: tuple[Any, dict[str, Any]],
        budget: Budget | None = None,
        whole: bool = False,
        is_persisted: bool = False,
    ) -> int:
        """Read partition `i` into a batch (called by loading tasks, several at a time).

        bundle : the partition, and roles that are not columns of it, by name.
        whole : whether the user passed a role as one array for all rows (see `attach`).
        is_persisted : whether the partition stays in the worker's memory anyway.
        """
        found = self._batch(batch, plan, budget, whole)
        # Each of Dask's threads has a partition in memory. With a limit, at most one of them may be copied at a time.
        with self._one_at_a_time if budget is not None else nullcontext():
            return found.take(i, bundle, is_persisted)

    def take_slice(
        self, batch: str, i: int, plan: ReadPlan, chunk: Chunk, number: int, budget: Budget | None, whole: bool
    ) -> None:
        """Add a slice of partition `i` that another worker has read. Slices must be added in order."""
        self._batch(batch, plan, budget, whole).take_slice(i, chunk, number)

    def give(self, batch: str, i: int, number: int) -> tuple[Chunk, bool]:
        """Return a slice of partition `i` of a batch, for another worker, and whether there are more."""
        return self._known(batch).give(i, number)

    def _known(self, batch: str) -> PartitionBatch:
        found = self._batches.get(batch)
        if found is None:
            raise MissingPartitions(batch)
        return found

    def _table_rows(self, batch: str) -> BatchRows:
        found = self._rows.get(batch)
        if found is None:
            raise MissingPartitions(batch)
        return found

    def _batch(self, name: str, plan: ReadPlan, budget: Budget | None, whole: bool) -> PartitionBatch:
        with self._guard:
            if name not in self._batches:
                retained = RETAIN_BYTES if self._spare is None else min(RETAIN_BYTES, self._spare.retained)
                within = (retained, None) if budget is None else (budget.retained, budget.chunk)
                limit = None if budget is None else budget.on_threads(self._n_threads)
                self._batches[name] = PartitionBatch(plan, *within, spool_roles=budget is not None and not whole, limit=limit)
            return self._batches[name]

    def attach(self, batch: str, role: str, values: dict[int, Any]) -> None:
        """Store a role of a batch's partitions, if the user passed one array for all rows."""
        self._known(batch).attach(role, values)

    def scan_partitions(self, batch: str, numbers: Sequence[int]) -> PartitionStats:
        """Return statistics of the listed partitions of a batch, and drop the others, which another session has loaded, too."""
        return self._known(batch).scan_partitions(numbers)

    def set_features(self, batch: str, features: Any, named: bool) -> None:
        """Convert a batch to a table with these features."""
        self._rows[batch] = BatchRows(self._known(batch).table(features, named), self._n_threads)

    def encode_target(self, batch: str, target: Any) -> None:
        """Encode the target of a table's rows for the loss."""
        self._table_rows(batch).encode(target)

    def class_counts(self, batch: str, numbered: Numbered, n_classes: int | None) -> np.ndarray:
        """Return the number of a table's rows of positive weight in each class; see `NumberedRows.class_counts`."""
        return self._numbered(batch, numbered, n_classes).class_counts()

    def digit_counts(self, batch: str, numbered: Numbered, n_classes: int | None, digits: DigitRequest) -> np.ndarray:
        """Return the counts of the values of a digit of the rows' hashes; see `DigitRequest.count`."""
        return self._numbered(batch, numbered, n_classes).digit_counts(digits)

    def assign_rows(self, batch: str, numbered: Numbered, n_classes: int | None, assignment: RowAssignment) -> None:
        """Set the training weights of a table's rows, and store which rows are for validation or in the training sample."""
        if batch in self._assigned:  # repeated call
            return
        for name, chosen in zip((HELD_OUT, WATCHED), self._numbered(batch, numbered, n_classes).apply(assignment), strict=True):
            if chosen is not None:
                self._chosen[batch, name] = chosen
        self._assigned.add(batch)

    def trained_rows(self, batch: str) -> tuple[dict[int, int], dict[str, tuple[int, float]], bool]:
        """Return training rows by partition, number and largest weight of chosen rows by set, and whether all weights are 1."""
        rows = self._table_rows(batch)
        chosen = {}
        for (of_batch, name), (positions, weights) in self._chosen.items():
            if of_batch == batch:
                max_weight = float(len(positions) > 0) if weights is None else float(weights.max(initial=0.0))
                chosen[name] = len(positions), max_weight
        n_kept, unit_weights = {}, True
        for k, (i, length) in enumerate(zip(rows.table.numbers, rows.table.lengths, strict=True)):
            weight = rows.table.roles(k).weight if length else None
            n_kept[i] = length if weight is None else int(np.count_nonzero(weight > 0))
            unit_weights = unit_weights and (weight is None or bool(((weight == 1.0) | (weight == 0.0)).all()))
        return n_kept, chosen, unit_weights

    def take_chosen(self, batch: str, name: str) -> tuple[BatchRows, tuple[np.ndarray, np.ndarray | None]]:
        """Return the rows of a batch, and positions and weights of those that were chosen for a set."""
        return self._table_rows(batch), self._chosen.pop((batch, name))

    def _numbered(self, batch: str, numbered: Numbered, n_classes: int | None) -> NumberedRows:
        rows = self._table_rows(batch)
        starts, n_kept = zip(*(numbered[i] for i in rows.table.numbers), strict=True)
        return NumberedRows(rows.table, rows.target_of, starts, n_kept, n_classes)

    def compute_start_scores(self, batch: str, warm_start: WarmStart) -> None:
        """Compute the start scores of a table's rows of positive weight, by a model of other data."""
        self._table_rows(batch).compute_start_scores(warm_start)

    def map_rows(self, batch: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Any]:
        """Return ``function(roles, *arguments)`` of each range of a table's rows of positive weight.

        The start scores replace the offsets if the fit continues a model of other data.
        """
        return [function(roles, *arguments) for roles in self._table_rows(batch).ranges()]

    def distinct(self, batch: str) -> list[np.ndarray]:
        """Return the distinct values of each numeric column in rows of positive weight, as float64[...]."""
        table = self._gathered(batch).table
        kept = kept_rows(table.weight)
        return distinct_of(table, np.arange(table.n_rows) if kept is None else kept)

    def sample(
        self, batch: str, starts: dict[int, int], n_rows: int, seed: int, columns: tuple[int, int]
    ) -> dict[int, tuple[list[np.ndarray], np.ndarray | None]]:
        """Return the sampled rows of each partition: a range (first, last) of the numeric columns, and weights or None.

        starts : {partition: global id of its first row of positive weight}
        """
        table = self._table_rows(batch).table
        numeric = [j for j, feature in enumerate(table.features) if not feature.is_categorical][slice(*columns)]
        drawn, weights = _drawn(table, starts, partial(sample_rows, n_rows, seed))
        found = sampled(table, _all(table, drawn), numeric, self._n_threads)
        return {table.numbers[k]: (values, weights[k]) for k, values in found}

    def reference_rows(
        self, batch: str, starts: dict[int, int], n_rows: int, seed: int
    ) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Return values and targets of the rows of the reference sample, by partition; arguments as in `sample`."""
        rows = self._table_rows(batch)
        table = rows.table
        drawn, _ = _drawn(table, starts, partial(reference_rows, n_rows, len(table.features), seed))
        found = values_in(table, _all(table, drawn))
        return {table.numbers[k]: (values, rows.target_of(k)[drawn[k]]) for k, values in found}

    def _gathered(self, batch: str) -> BatchRows:
        """Return a batch's rows with roles and start scores in memory; columns may stay in files."""
        rows = self._table_rows(batch)
        rows.gather()
        return rows


def scan_targets(table: Table) -> list[TargetScan]:
    """Return the merged scan of the target of all chunks; an empty list without rows of positive weight."""
    scans: list[TargetScan] = []
    for i, length in enumerate(table.lengths):
        if length:
            roles = table.roles(i)
            one = scan_target(roles.target, roles.weight, str(table.target_dtype), table.target_is_bool)
            if one is not None:
                scans = [reduce(merge_target_scans, (*scans, one))]
    return scans


def _drawn(
    table: Table, starts: dict[int, int], draw: Callable[[int, int], np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray | None]]:
    """Return the drawn rows of each chunk, and their weights.

    ``draw(first, last)`` returns the drawn ids of a range of global ids.
    """
    drawn: list[np.ndarray] = []
    weights: list[np.ndarray | None] = []
    for k, (i, length) in enumerate(zip(table.numbers, table.lengths, strict=True)):
        weight = table.roles(k).weight if length else None
        kept = kept_rows(weight)
        rows = draw(starts[i], starts[i] + (length if kept is None else len(kept))) - starts[i]
        drawn.append(rows if kept is None else kept[rows])
        weights.append(None if weight is None else weight[drawn[k]])
    return drawn, weights


def _all(table: Table, drawn: list[np.ndarray]) -> np.ndarray:
    """Return the positions of the drawn rows in the table."""
    starts = np.cumsum((0, *table.lengths[:-1]))
    return np.concatenate([np.empty(0, np.int64), *map(np.add, starts, drawn)])


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
    """

    def __init__(
        self,
        plan: ReadPlan,
        retain_bytes: int,
        most_bytes: int | None = None,
        *,
        spool_roles: bool = False,
        limit: Budget | None = None,
    ) -> None:
        self._plan = plan
        self._spool = Spool(retain_bytes, most_bytes)
        self._metadata_spool = RowMetadataSpool() if spool_roles else None
        self._reader = Reader(plan, self._spool, self._metadata_spool, fingerprints=True, limit=limit)
        self._pieces: dict[int, SpooledChunk] = {}
        self._lock = threading.Lock()
        self._trim_counter = TrimCounter()
        self._rows: MetadataRows | None = None
        self._metadata: RowMetadata | None = None
        self._survey: PartitionStats | None = None

    def take(self, i: int, bundle: tuple[Any, dict[str, Any]], is_persisted: bool = False) -> int:
        """Read partition `i` (a table, and roles by name), and return its number of rows."""
        with self._lock:
            known = self._pieces.get(i)
        if known is None:  # Dask may run a task twice
            known = self._reader.take_partition(i, *bundle, is_persisted)
            with self._lock:
                self._pieces[i] = known
            self._trim_counter.add(self._spool.n_bytes(i))
        return known.n_rows

    def take_slice(self, i: int, chunk: Chunk, number: int) -> None:
        """Add a slice of partition `i` that another worker has read. Slices must be added in order."""
        one = self._reader.take_slice(i, chunk, number)
        with self._lock:
            self._pieces[i] = SpooledChunk((*(self._pieces[i].slices if number else ()), one))

    def give(self, i: int, number: int) -> tuple[Chunk, bool]:
        """Return a slice of partition `i`, for another worker, and whether there are more."""
        self._check([i])
        slices = self._pieces[i].slices
        return self._reader.chunk(i, slices[number], number), number + 1 < len(slices)

    def scan_partitions(self, numbers: Sequence[int]) -> PartitionStats:
        """Return statistics of the listed partitions, and drop the others."""
        if self._survey is not None:  # repeated call
            return self._survey
        self._check(numbers)
        self._reader.keep_only(set(numbers))
        self._spool.keep_only(set(numbers))
        numbers = tuple(sorted(numbers))
        self._rows = rows = MetadataRows(tuple(self._pieces[i].n_rows for i in numbers), True, numbers)
        if self._metadata_spool is None:
            metadata = self._reader.finish_roles({}, rows)
        else:
            complaints, _ = self._reader.finish_spooled(rows)
            spool = self._metadata_spool
            metadata = RowMetadata(RowRoles(), spool.target_dtype, spool.target_is_bool, tuple(complaints))
        self._metadata = metadata
        self._reader.drop_unweighted_categories({i: self._pieces[i] for i in numbers}, metadata.roles.weight)
        stats = [_stats_of(metadata, n, roles) for n, roles in self._partitions(rows, metadata.roles)]
        targets = [one for *_, one in stats if one is not None]
        self._survey = PartitionStats(
            lengths=dict(zip(numbers, rows.lengths, strict=True)),
            n_kept=dict(zip(numbers, (n for n, *_ in stats), strict=True)),
            n_bytes={i: self._spool.n_bytes(i) for i in numbers},
            kinds=self._reader.kinds(),
            categories=self._reader.used_categories(),
            target=reduce(merge_target_scans, targets) if targets else None,
            complaints=metadata.issues,
            max_weight=max((max_weight for _, max_weight, *_ in stats), default=1.0),
            unit_weights=all(is_unit for *_, is_unit, _ in stats),
            fingerprints={i: self._pieces[i].fingerprint for i in numbers},
        )
        return self._survey

    def _check(self, numbers: Sequence[int]) -> None:
        with self._lock:
            missing = [i for i in numbers if i not in self._pieces]
        if missing:
            raise MissingPartitions(", ".join(map(str, missing)))

    def _partitions(self, rows: MetadataRows, roles: RowRoles) -> Iterator[tuple[int, RowRoles]]:
        """Yield the number of rows and the roles of each partition. roles : of all rows, if they are in memory."""
        first = 0
        for i, n in zip(rows.numbers or (), rows.lengths, strict=True):
            if self._metadata_spool is not None:
                yield n, self._metadata_spool.get(i) if n else RowRoles()
            else:
                yield n, roles.rows(slice(first, first + n))
            first += n

    def attach(self, role: str, values: dict[int, Any]) -> None:
        """Store a role of the partitions, if the user passed one array for all rows."""
        for i, array in values.items():
            self._reader.attach(role, i, array)

    def table(self, features: tuple[Feature, ...], named: bool) -> Table:
        """Return the listed partitions as a table, with categories encoded by the numbering in `features`."""
        assert self._rows is not None and self._metadata is not None
        translations: list[np.ndarray | None] = []
        for feature, categories in zip(features, self._reader.categories(), strict=True):
            # With a closed plan the reader has used the final codes already.
            final = feature.categories is not None and not self._plan.closed
            translations.append(CategoryIndex(feature.name, feature.categories).translate(categories) if final else None)
        pieces = [self._pieces[i] for i in self._rows.numbers or ()]
        spools = self._spool, pieces, translations, self._metadata_spool
        return Table(features, named, self._rows, self._metadata, *spools, self._plan.binning)

    def close(self) -> None:
        self._spool.close()
        if self._metadata_spool is not None:
            self._metadata_spool.close()


def _stats_of(metadata: RowMetadata, n: int, roles: RowRoles) -> tuple[int, float, bool, TargetScan | None]:
    """Return rows of positive weight, largest weight, whether all weights are 1 (or 0), and the target scan of a partition."""
    if not n:
        return 0, 0.0, True, None
    weight = roles.weight
    scan = scan_target(roles.target, weight, str(metadata.target_dtype), metadata.target_is_bool)
    if weight is None:
        return n, 1.0, True, scan
    return int((weight > 0).sum()), float(weight.max()), bool(((weight == 1.0) | (weight == 0.0)).all()), scan
