"""One worker's partitions of a fit until they become shards: batches that are read, tables that are asked about.

The methods without underscore are what the reducer may call by name (see `holder.py`).

Partitions that one worker has read: first as a batch whose levels are provisional, then as a table like any other.

What a worker sees of a table is only its own partitions. So a batch is *surveyed*: levels, kinds of columns, numbers of rows
and whatever is to be complained about go to the client, which unites the surveys and says what the features are; then the
batch becomes a `Table` in the final codes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from dboost.data import Table
from dboost.data.binning import sample_rows
from dboost.data.categories import CategoryIndex
from dboost.data.chunk import CategoryColumn, Chunk, Column
from dboost.data.read_plan import ReadPlan
from dboost.data.reader import Reader, SpooledChunk
from dboost.data.row_metadata import DataIssue, MetadataRows, RowMetadata, RowMetadataSpool
from dboost.schema import Feature, Level
from dboost.session.batch_rows import BatchRows
from dboost.session.memory_budget import Budget
from dboost.session.memory_trim import TrimCounter
from dboost.session.protocol import MissingPartitions
from dboost.session.reference_sample import reference_rows, values_in
from dboost.session.row_selection import HELD_OUT, WATCHED, DigitRequest, NumberedRows, RowAssignment
from dboost.session.target import TargetScan, merge_target_scans, scan_target
from dboost.session.warm_start import WarmStart
from dboost.shards.encode import distinct_of, kept_rows, sampled
from dboost.storage.spool import Spool

#: Chunks beyond this total wait in files until they are encoded.
RETAIN_BYTES = 256 * 2**20

#: Of each partition the number of its first row among all rows of positive weight, and how many such rows it has.
Numbered = dict[int, tuple[int, int]]


class PartitionLoader:
    """Batches by name, as they are loaded, surveyed, settled and asked about.

    spare : what the worker may take if nobody says.
    """

    def __init__(self, n_threads: int, spare: Budget | None = None) -> None:
        self._guard = threading.Lock()
        self._one_at_a_time = threading.Lock()
        self._spare = spare
        self._tally = TrimCounter()
        self._n_threads = n_threads
        self._batches: dict[str, PartitionBatch] = {}
        self._rows: dict[str, BatchRows] = {}
        self._chosen: dict[tuple[str, str], tuple[np.ndarray, np.ndarray | None]] = {}
        self._supervised: set[str] = set()

    def take(
        self,
        batch: str,
        i: int,
        plan: ReadPlan,
        bundle: tuple[Any, Any, Any, Any],
        budget: Budget | None = None,
        whole: bool = False,
    ) -> int:
        """Read partition `i` into a batch (called by loading tasks, several at a time).

        whole : whether target, weight or offset will come for all rows at once (`attach`).
        """
        found = self._batch(batch, plan, budget, whole)
        # Dask's threads hold a partition each; where memory is limited there are to be no copies of more than one.
        with self._one_at_a_time if budget is not None else nullcontext():
            n_rows = found.take(i, bundle)
        self._tally.add(found.n_bytes(i))
        return n_rows

    def take_slice(
        self, batch: str, i: int, plan: ReadPlan, chunk: Chunk, number: int, budget: Budget | None, whole: bool
    ) -> None:
        """Take in a slice of partition `i` as another worker has read it; they come in order."""
        self._batch(batch, plan, budget, whole).take_slice(i, chunk, number)

    def give(self, batch: str, i: int, number: int) -> tuple[Chunk, bool]:
        """A slice of partition `i` of a batch, for another worker, and whether there are more."""
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
                self._batches[name] = PartitionBatch(plan, *within, spool_roles=budget is not None and not whole)
            return self._batches[name]

    def attach(self, batch: str, role: str, values: dict[int, Any]) -> None:
        """Take in target, weight or offset of a batch's partitions, where the user gave them for all rows at once."""
        self._known(batch).attach(role, values)

    def survey(self, batch: str, numbers: Sequence[int]) -> PartitionStats:
        """What the partitions of a batch are made of; those not listed were loaded elsewhere as well, and are forgotten."""
        return self._known(batch).survey(numbers)

    def set_features(self, batch: str, features: Any, named: bool) -> None:
        """Turn a batch into a table."""
        self._rows[batch] = BatchRows(self._known(batch).table(features, named), self._n_threads)

    def encode_target(self, batch: str, target: Any) -> None:
        """Work out the target of a table's rows."""
        self._table_rows(batch).encode(target)

    def class_counts(self, batch: str, numbered: Numbered, n_classes: int | None) -> np.ndarray:
        """How many of a table's rows of positive weight are of each class; see `NumberedRows.class_counts`."""
        return self._numbered(batch, numbered, n_classes).class_counts()

    def digit_counts(self, batch: str, numbered: Numbered, n_classes: int | None, digits: DigitRequest) -> np.ndarray:
        """How often the values of a digit of the rows' hashes occur; see `DigitRequest.count`."""
        return self._numbered(batch, numbered, n_classes).digit_counts(digits)

    def assign_rows(self, batch: str, numbered: Numbered, n_classes: int | None, assignment: RowAssignment) -> None:
        """Give a table's rows their weights to train with, and note which are held out."""
        if batch in self._supervised:  # asked again
            return
        for name, chosen in zip((HELD_OUT, WATCHED), self._numbered(batch, numbered, n_classes).apply(assignment), strict=True):
            if chosen is not None:
                self._chosen[batch, name] = chosen
        self._supervised.add(batch)

    def trained_rows(self, batch: str) -> tuple[dict[int, int], dict[str, tuple[int, float]], bool]:
        """Rows of each partition to train on; number and largest weight of chosen rows by set; whether all weights are 1."""
        rows = self._table_rows(batch)
        chosen = {}
        for (of_batch, name), (positions, weights) in self._chosen.items():
            if of_batch == batch:
                max_weight = float(len(positions) > 0) if weights is None else float(weights.max(initial=0.0))
                chosen[name] = len(positions), max_weight
        n_kept = {i: rows.kept_of(k) for k, i in enumerate(rows.table.numbers)}
        return n_kept, chosen, all(is_unit(rows.table, k) for k, n in enumerate(rows.table.lengths) if n)

    def rows_of(self, batch: str) -> BatchRows:
        """The rows of a batch before they are shards."""
        return self._table_rows(batch)

    def take_chosen(self, batch: str, name: str) -> tuple[BatchRows, tuple[np.ndarray, np.ndarray | None]]:
        """The rows of a batch, and which of them were chosen for a set (positions and weights)."""
        return self._table_rows(batch), self._chosen.pop((batch, name))

    def _numbered(self, batch: str, numbered: Numbered, n_classes: int | None) -> NumberedRows:
        rows = self._table_rows(batch)
        starts, n_kept = zip(*(numbered[i] for i in rows.table.numbers), strict=True)
        return NumberedRows(rows.table, rows.target_of, starts, n_kept, n_classes)

    def compute_start_scores(self, batch: str, warm_start: WarmStart) -> None:
        """Work out the scores that a model of other data gives a table's rows of positive weight."""
        self._table_rows(batch).begin(warm_start)

    def map_rows(self, batch: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Any]:
        """``function(y, weight, offset, *arguments)`` of a table's rows of positive weight, part by part.

        Where a model is continued its scores take the place of the offsets.
        """
        return [function(*part, *arguments) for part in self._table_rows(batch).parts()]

    def distinct(self, batch: str) -> list[np.ndarray]:
        """The distinct values of the numeric columns, in rows of positive weight: float64[...] each."""
        table = self._gathered(batch).table
        kept = kept_rows(table.weight)
        return distinct_of(table, np.arange(table.n_rows) if kept is None else kept)

    def sample(
        self, batch: str, starts: dict[int, int], n_rows: int, seed: int, columns: tuple[int, int]
    ) -> dict[int, tuple[list[np.ndarray], np.ndarray | None]]:
        """The sampled rows of each partition: some of the numeric columns (first, last), and weights (or None).

        starts : {partition: id of its first row among all rows of positive weight}
        """
        table = self._table_rows(batch).table
        numeric = [j for j, feature in enumerate(table.features) if not feature.is_categorical][slice(*columns)]
        drawn = _drawn(table, starts, partial(sample_rows, n_rows, seed))
        weights: dict[int, np.ndarray | None] = {}
        for k, i in enumerate(table.numbers):
            weight = table.roles(k)[1] if table.lengths[k] else None
            weights[i] = None if weight is None else weight[drawn[i]]
        found = sampled(table, _all(table, drawn), numeric, self._n_threads)
        return {table.numbers[k]: (part, weights[table.numbers[k]]) for k, part in found}

    def portray(self, batch: str, starts: dict[int, int], n_rows: int, seed: int) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Values and targets of the rows of a portrait, by partition; starts, n_rows and seed as in `sample`."""
        rows = self._table_rows(batch)
        table = rows.table
        drawn = _drawn(table, starts, partial(reference_rows, n_rows, len(table.features), seed))
        return {
            table.numbers[k]: (part, rows.target_of(k)[drawn[table.numbers[k]]])
            for k, part in values_in(table, _all(table, drawn))
        }

    def _gathered(self, batch: str) -> BatchRows:
        """A batch's rows, all that belongs to them but the columns in memory: for those who look at all rows at once."""
        rows = self._table_rows(batch)
        rows.gather()
        return rows


def scan_targets(table: Table) -> list[TargetScan]:
    """What the target of a table is, chunk by chunk and merged; empty without rows of positive weight."""
    scans: list[TargetScan] = []
    for i, length in enumerate(table.lengths):
        if length:
            target, weight, _ = table.roles(i)
            one = scan_target(target, weight, str(table.target_dtype), table.target_is_bool)
            if one is not None:
                scans = [reduce(merge_target_scans, (*scans, one))]
    return scans


def is_unit(table: Table, k: int) -> bool:
    """Whether all weights of a chunk are 1 (or 0)."""
    weight = table.roles(k)[1]
    return weight is None or bool(((weight == 1.0) | (weight == 0.0)).all())


def _drawn(table: Table, starts: dict[int, int], draw: Callable[[int, int], np.ndarray]) -> dict[int, np.ndarray]:
    """The rows of each partition that are drawn; draw : tells the numbers among first…last-1 of all rows of weight."""
    drawn: dict[int, np.ndarray] = {}
    for k, (i, length) in enumerate(zip(table.numbers, table.lengths, strict=True)):
        kept = kept_rows(table.roles(k)[1] if length else None)
        rows = draw(starts[i], starts[i] + (length if kept is None else len(kept))) - starts[i]
        drawn[i] = rows if kept is None else kept[rows]
    return drawn


def _all(table: Table, drawn: dict[int, np.ndarray]) -> np.ndarray:
    """Their numbers in the table."""
    starts = np.cumsum((0, *table.lengths))
    return np.concatenate([np.empty(0, np.int64), *(first + drawn[i] for first, i in zip(starts, table.numbers, strict=False))])


@dataclass(frozen=True, eq=False)
class PartitionStats:
    """What one worker says of one batch.

    Attributes
    ----------
    lengths, n_kept, n_bytes : {partition: number}
        All rows, those of positive weight, and what the partition weighs.
    kinds : tuple of (bool, int) or None
        Per feature whether it is categorical, and the partition that says so; None where all values are missing.
    levels : tuple of tuple of levels
        Per feature.
    target : TargetScan or None
        None when there are no rows of positive weight.
    complaints : tuple of DataIssue
    max_weight : float
        The largest weight.
    unit_weights : bool
        All weights are 1 (or 0).
    fingerprints : {partition: int}
        See `data.partition`.
    """

    lengths: dict[int, int]
    n_kept: dict[int, int]
    n_bytes: dict[int, int]
    kinds: tuple[tuple[bool, int] | None, ...]
    levels: tuple[tuple[Level, ...], ...]
    target: TargetScan | None
    complaints: tuple[DataIssue, ...]
    max_weight: float
    unit_weights: bool
    fingerprints: dict[int, int]


class PartitionBatch:
    """Partitions that are read one by one, from several threads.

    Parameters
    ----------
    plan : Plan
    retain_bytes : int
        What may stay in memory; the rest waits in files.
    most_bytes : int, optional
        Partitions whose columns may be larger are taken in slices that are not.
    spool_roles : bool
        Keep target, weight and offset in files.
    """

    def __init__(self, plan: ReadPlan, retain_bytes: int, most_bytes: int | None = None, *, spool_roles: bool = False) -> None:
        self._plan = plan
        self._spool = Spool(retain_bytes, most_bytes)
        self._apart = RowMetadataSpool() if spool_roles else None
        self._reader = Reader(plan, self._spool, self._apart, fingerprints=True)
        self._pieces: dict[int, SpooledChunk] = {}
        self._lock = threading.Lock()
        self._rows: MetadataRows | None = None
        self._roles: RowMetadata | None = None
        self._survey: PartitionStats | None = None

    def take(self, i: int, bundle: tuple[Any, Any, Any, Any]) -> int:
        """Read partition `i`: the table, target, weight and offset. Returns its number of rows."""
        with self._lock:
            known = self._pieces.get(i)
        if known is None:  # Dask may run a task twice
            known = self._reader.take_partition(i, bundle)
            with self._lock:
                self._pieces[i] = known
        return known.n_rows

    def take_slice(self, i: int, chunk: Chunk, number: int) -> None:
        """Take in a slice of partition `i` as another worker has read it; they come in order."""
        one = self._reader.take_slice(i, chunk, number)
        with self._lock:
            self._pieces[i] = SpooledChunk((*(self._pieces[i].slices if number else ()), one))

    def n_bytes(self, i: int) -> int:
        """How large the columns of partition `i` are."""
        return self._spool.n_bytes(i)

    def give(self, i: int, number: int) -> tuple[Chunk, bool]:
        """A slice of partition `i`, for another worker, and whether there are more."""
        self._check([i])
        slices = self._pieces[i].slices
        return self._reader.chunk(i, slices[number], number), number + 1 < len(slices)

    def survey(self, numbers: Sequence[int]) -> PartitionStats:
        """What these partitions, which are the ones that count, are made of. The others are forgotten."""
        if self._survey is not None:  # asked again
            return self._survey
        self._check(numbers)
        self._reader.keep(set(numbers))
        self._spool.keep(set(numbers))
        numbers = tuple(sorted(numbers))
        self._rows = rows = MetadataRows(tuple(self._pieces[i].n_rows for i in numbers), True, numbers)
        if self._apart is None:
            roles = self._reader.finish_roles({}, rows)
        else:
            complaints, _ = self._reader.finish_spooled(rows)
            roles = RowMetadata(None, self._apart.target_dtype, self._apart.target_is_bool, None, None, tuple(complaints))
        self._roles = roles
        self._reader.drop_unweighted_categories({i: self._pieces[i] for i in numbers}, roles.weight)
        told = [_tell(roles, *part) for part in self._parts(rows, roles)]
        targets = [one for *_, one in told if one is not None]
        self._survey = PartitionStats(
            lengths=dict(zip(numbers, rows.lengths, strict=True)),
            n_kept=dict(zip(numbers, (n for n, *_ in told), strict=True)),
            n_bytes={i: self._spool.n_bytes(i) for i in numbers},
            kinds=self._reader.kinds(),
            levels=self._reader.used_categories(),
            target=reduce(merge_target_scans, targets) if targets else None,
            complaints=roles.issues,
            max_weight=max((max_weight for _, max_weight, *_ in told), default=1.0),
            unit_weights=all(is_unit for *_, is_unit, _ in told),
            fingerprints={i: self._pieces[i].fingerprint for i in numbers},
        )
        return self._survey

    def _check(self, numbers: Sequence[int]) -> None:
        with self._lock:
            missing = [i for i in numbers if i not in self._pieces]
        if missing:
            raise MissingPartitions(", ".join(map(str, missing)))

    def _parts(self, rows: MetadataRows, roles: RowMetadata) -> Iterator[tuple[int, Column | None, np.ndarray | None]]:
        """Rows, target and weight of each partition."""
        first = 0
        for i, n in zip(rows.numbers or (), rows.lengths, strict=True):
            if self._apart is not None:
                target, weight, _ = self._apart.get(i) if n else (None, None, None)
            else:
                here = slice(first, first + n)
                target = roles.target
                if isinstance(target, CategoryColumn):
                    target = CategoryColumn(target.codes[here], target.levels)
                elif target is not None:
                    target = target[here]
                weight = None if roles.weight is None else roles.weight[here]
            yield n, target, weight
            first += n

    def attach(self, role: str, values: dict[int, Any]) -> None:
        """Take in target, weight or offset of the partitions, where the user gave them for all rows at once."""
        for i, part in values.items():
            self._reader.attach(role, i, part)

    def table(self, features: tuple[Feature, ...], named: bool) -> Table:
        """The surveyed partitions as a table, with levels coded as `features` says."""
        assert self._rows is not None and self._roles is not None
        translations: list[np.ndarray | None] = []
        for feature, levels in zip(features, self._reader.levels(), strict=True):
            # A plan that knows the levels has coded them already.
            final = feature.levels is not None and not self._plan.closed
            translations.append(CategoryIndex(feature.name, feature.levels).translate(levels) if final else None)
        pieces = [self._pieces[i] for i in self._rows.numbers or ()]
        return Table(features, named, self._rows, self._roles, self._spool, pieces, translations, self._apart)

    def close(self) -> None:
        self._spool.close()
        if self._apart is not None:
            self._apart.close()


def _tell(
    roles: RowMetadata, n: int, target: Column | None, weight: np.ndarray | None
) -> tuple[int, float, bool, TargetScan | None]:
    """Of one partition: rows of positive weight, the largest weight, whether all are 1 (or 0), and what its target is."""
    if not n:
        return 0, 0.0, True, None
    survey = scan_target(target, weight, str(roles.target_dtype), roles.target_is_bool)
    if weight is None:
        return n, 1.0, True, survey
    return int((weight > 0).sum()), float(weight.max()), bool(((weight == 1.0) | (weight == 0.0)).all()), survey
