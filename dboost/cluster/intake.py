"""One worker's partitions of a fit until they become shards: batches that are read, tables that are asked about.

The methods without underscore are what the reducer may call by name (see `holder.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from dboost.binning import sample_rows
from dboost.cluster.batch import Batch, Survey
from dboost.cluster.giving_back import Tally, give_back
from dboost.cluster.messages import MissingPartitions
from dboost.cluster.rows import BatchRows
from dboost.shard.loading import distinct_of, kept_rows, sampled
from dboost.sources import Table
from dboost.sources.chunk import Chunk
from dboost.sources.plan import Plan
from dboost.training.budget import Budget
from dboost.training.origin import Origin
from dboost.training.portrait import portrayed_rows, values_in
from dboost.training.row_selection import Assignment, Digits, NumberedRows
from dboost.training.supervision import HELD_OUT

#: Chunks beyond this total wait in files until they are encoded.
RETAIN_BYTES = 256 * 2**20

#: Of each partition the number of its first row among all rows of positive weight, and how many such rows it has.
Numbered = dict[int, tuple[int, int]]


class Intake:
    """Batches by name, as they are loaded, surveyed, settled and asked about.

    spare : what the worker may take if nobody says.
    """

    def __init__(self, n_threads: int, spare: Budget | None = None) -> None:
        self._guard = threading.Lock()
        self._one_at_a_time = threading.Lock()
        self._spare = spare
        self._tally = Tally()
        self._n_threads = n_threads
        self._batches: dict[str, Batch] = {}
        self._rows: dict[str, BatchRows] = {}
        self._chosen: dict[tuple[str, str], tuple[np.ndarray, np.ndarray | None]] = {}
        self._supervised: set[str] = set()

    def take(
        self,
        batch: str,
        i: int,
        plan: Plan,
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

    def take_slice(self, batch: str, i: int, plan: Plan, chunk: Chunk, number: int, budget: Budget | None, whole: bool) -> None:
        """Take in a slice of partition `i` as another worker has read it; they come in order."""
        self._batch(batch, plan, budget, whole).take_slice(i, chunk, number)

    def give(self, batch: str, i: int, number: int) -> tuple[Chunk, bool]:
        """A slice of partition `i` of a batch, for another worker, and whether there are more."""
        return self._known(batch).give(i, number)

    def _known(self, batch: str) -> Batch:
        found = self._batches.get(batch)
        if found is None:
            raise MissingPartitions(batch)
        return found

    def _table_rows(self, batch: str) -> BatchRows:
        found = self._rows.get(batch)
        if found is None:
            raise MissingPartitions(batch)
        return found

    def _batch(self, name: str, plan: Plan, budget: Budget | None, whole: bool) -> Batch:
        with self._guard:
            if name not in self._batches:
                retained = RETAIN_BYTES if self._spare is None else min(RETAIN_BYTES, self._spare.retained)
                within = (retained, None) if budget is None else (budget.retained, budget.chunk)
                self._batches[name] = Batch(plan, *within, spool_roles=budget is not None and not whole)
            return self._batches[name]

    def attach(self, batch: str, role: str, values: dict[int, Any]) -> None:
        """Take in target, weight or offset of a batch's partitions, where the user gave them for all rows at once."""
        self._known(batch).attach(role, values)

    def survey(self, batch: str, numbers: Sequence[int]) -> Survey:
        """What the partitions of a batch are made of; those not listed were loaded elsewhere as well, and are forgotten."""
        give_back()  # what reading has left behind
        return self._known(batch).survey(numbers)

    def settle(self, batch: str, features: Any, named: bool) -> None:
        """Turn a batch into a table."""
        self._rows[batch] = BatchRows(self._known(batch).table(features, named), self._n_threads)

    def encode_target(self, batch: str, target: Any) -> None:
        """Work out the target of a table's rows."""
        self._table_rows(batch).encode(target)

    def class_counts(self, batch: str, numbered: Numbered, n_classes: int | None) -> np.ndarray:
        """How many of a table's rows of positive weight are of each class; see `NumberedRows.class_counts`."""
        return self._numbered(batch, numbered, n_classes).class_counts()

    def digit_counts(self, batch: str, numbered: Numbered, n_classes: int | None, digits: Digits) -> np.ndarray:
        """How often the values of a digit of the rows' hashes occur; see `Digits.count`."""
        return self._numbered(batch, numbered, n_classes).digit_counts(digits)

    def supervise(self, batch: str, numbered: Numbered, n_classes: int | None, assignment: Assignment) -> None:
        """Give a table's rows their weights to train with, and note which are held out."""
        if batch in self._supervised:  # asked again
            return
        held_out, _ = self._numbered(batch, numbered, n_classes).apply(assignment)
        if held_out is not None:
            self._chosen[batch, HELD_OUT] = held_out
        self._supervised.add(batch)

    def trained_rows(self, batch: str) -> tuple[dict[int, int], float, bool]:
        """How many rows of each partition are trained on, the largest weight held out, and whether they train with weight 1."""
        rows = self._table_rows(batch)
        held_out, weights = self._chosen.get((batch, HELD_OUT), (np.empty(0, np.int64), None))
        heaviest = float(len(held_out) > 0) if weights is None else float(weights.max(initial=0.0))
        n_kept = {i: rows.kept_of(k) for k, i in enumerate(rows.table.numbers)}
        return n_kept, heaviest, all(_is_unit(rows.table, k) for k, n in enumerate(rows.table.lengths) if n)

    def _numbered(self, batch: str, numbered: Numbered, n_classes: int | None) -> NumberedRows:
        rows = self._table_rows(batch)
        starts, n_kept = zip(*(numbered[i] for i in rows.table.numbers), strict=True)
        return NumberedRows(rows.table, rows.target_of, starts, n_kept, n_classes)

    def begin(self, batch: str, origin: Origin) -> None:
        """Work out the scores that a model of other data gives a table's rows of positive weight."""
        self._table_rows(batch).begin(origin)

    def ask_rows(self, batch: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Any]:
        """``function(y, weight, offset, *arguments)`` of a table's rows of positive weight, part by part.

        Where a model is continued its scores take the place of the offsets.
        """
        return [function(*part, *arguments) for part in self._table_rows(batch).parts()]

    def distinct(self, batch: str) -> list[np.ndarray]:
        """The distinct values of the numeric columns, in rows of positive weight: float64[...] each."""
        table = self._gathered(batch).table
        kept = kept_rows(table.weight)
        return distinct_of(table, np.arange(table.n_rows) if kept is None else kept)

    def sample(self, batch: str, starts: dict[int, int], n_rows: int, seed: int) -> dict[int, tuple[list[np.ndarray], Any]]:
        """The sampled rows of each partition: numeric columns, and weights (or None).

        starts : {partition: number of its first row among all rows of positive weight}
        """
        table = self._table_rows(batch).table
        drawn = _drawn(table, starts, partial(sample_rows, n_rows, seed))
        weights: dict[int, np.ndarray | None] = {}
        for k, i in enumerate(table.numbers):
            weight = table.roles(k)[1] if table.lengths[k] else None
            weights[i] = None if weight is None else weight[drawn[i]]
        return {table.numbers[k]: (part, weights[table.numbers[k]]) for k, part in sampled(table, _all(table, drawn))}

    def portray(self, batch: str, starts: dict[int, int], n_rows: int, seed: int) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Values and targets of the rows of a portrait, by partition; starts, n_rows and seed as in `sample`."""
        rows = self._table_rows(batch)
        table = rows.table
        drawn = _drawn(table, starts, partial(portrayed_rows, n_rows, len(table.features), seed))
        return {
            table.numbers[k]: (part, rows.target_of(k)[drawn[table.numbers[k]]])
            for k, part in values_in(table, _all(table, drawn))
        }

    def _gathered(self, batch: str) -> BatchRows:
        """A batch's rows, all that belongs to them but the columns in memory: for those who look at all rows at once."""
        rows = self._table_rows(batch)
        rows.gather()
        return rows


def _is_unit(table: Table, k: int) -> bool:
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
