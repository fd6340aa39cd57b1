"""The rows of a batch in one session, from the final codes of their categories until they are encoded.

Without a memory limit the roles and the start scores are in memory, and `TableRows.ranges` yields one range. With a limit, the
roles are in files like the columns (`data.tables.row_metadata`). Arrays that are computed from them are stored in files as
well, one partition at a time: the encoded target, and the start scores, which are the raw scores by a model of other data.
`gather` loads everything into memory, for functions that need all rows together.

`TableRows.starting` has the rows for code that encodes them piece by piece and writes them to files (`starting_rows`).

**Functions of a batch.** What a fit learns from rows before they are encoded is a function of `TableRows`, in the module of
its subject (`row_assignment`, `reference_sample`), or a method of `TableRows`. `Backend.ask` and `Backend.change` call it in
every session. A function is pickled by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dboost.data import Table
from dboost.data.columns.binning import ColumnSamples, sample_rows
from dboost.data.columns.roles import kept_rows
from dboost.files.spool import Spool
from dboost.model.ensemble import FlatEnsemble
from dboost.rows.encode import distinct_of, encode_table, sampled
from dboost.rows.row_groups import block_sizes, ends_of, ends_of_parts, next_ends
from dboost.rows.row_store import InFiles, RowStore
from dboost.rows.shard import RowIds, columns_among, compacted, tiles_of
from dboost.rows.shard_spec import code_fields, rows_that_fit
from dboost.rows.shared_codes import SharedCodes, shared_codes
from dboost.session.encoded_rows import EncodedRows, EncodedStore, joined_rows, rows_in_memory
from dboost.session.fit_records import BuildSpec, RowIdRanges
from dboost.session.partition_batch import PartitionBatch
from dboost.session.row_samples import TRAIN, ChosenRows, FoldRows
from dboost.session.starting_rows import StartingRows
from dboost.session.target import EncodedRoles, Target, encode_chunk, encode_like
from dboost.session.warm_start import WarmStart, add_block, add_trees, chunk_matrices, first_scores, starting_scores
from dboost.trees.apply_trees import ConsecutiveCodes

Result = TypeVar("Result")


class RowCounts(NamedTuple):
    """How many rows of a batch are trained on, and how many are chosen for evaluation sets."""

    n_kept: dict[int, int]  # their number by partition
    chosen: dict[str, tuple[int, float]]  # number and largest weight of the chosen rows, by evaluation set
    unit_weights: bool  # whether all weights are 1 (or 0)


class ComputedValues:
    """Values that are computed of the rows of a table: in memory all together, or chunk by chunk in files.

    Attributes
    ----------
    together : array
        The values, if they are in memory.
    """

    def __init__(self, together: np.ndarray) -> None:
        self.together = together
        self._spool: Spool | None = None

    @classmethod
    def in_files(cls, values_of_chunks: Iterable[tuple[int, np.ndarray]]) -> ComputedValues:
        """Write values to files, which come by the numbers of the chunks."""
        values, spool = cls(np.empty(0)), Spool(0)
        try:
            for k, values_of_chunk in values_of_chunks:
                spool.put(k, [values_of_chunk])
        except BaseException:
            spool.close()
            raise
        values._spool = spool
        return values

    def of(self, k: int, n_rows_of: Callable[[int], int]) -> np.ndarray:
        """Return those of chunk k. n_rows_of : returns the number of rows of a chunk that have values."""
        if self._spool is not None:
            return self._spool.get(k)[0]
        first = sum(map(n_rows_of, range(k)))
        return self.together[..., first : first + n_rows_of(k)]

    def gather(self, chunks: Sequence[int]) -> None:
        """Load all values into memory. chunks : numbers of those that have values."""
        if self._spool is not None:
            if chunks:
                self.together = np.concatenate([self._spool.get(k)[0] for k in chunks], axis=-1)
            self._remove_files()

    def close(self) -> None:
        """Release the values, and remove the files."""
        self.together = np.empty(0)
        self._remove_files()

    def _remove_files(self) -> None:
        if self._spool is not None:
            self._spool.close()
            self._spool = None


class TableRows:
    """The rows of a batch in one session.

    Parameters
    ----------
    table : Table
    n_threads : int
    origin : PartitionBatch or Table, or None
        What the table was made of, and is closed with it; None if it belongs to the caller.
    n_growing : int, optional
        Trees of the folds that share codes which grow at the same time, if the fit's `BuildSpec` has no number.

    Attributes
    ----------
    chosen : dict, or None
        The rows of each evaluation set that is chosen from the table, by its name; None before `row_assignment.assign_rows`.
    fold : FoldRows, or None
        The fold that the rows are trained on for, if it belongs to a group of folds.
    id_ranges : RowIdRanges
        The global ids of the rows of all sessions. They are given again once rows have been held out.
    """

    id_ranges: RowIdRanges

    def __init__(
        self, table: Table, n_threads: int, origin: PartitionBatch | Table | None, n_growing: int | None = None
    ) -> None:
        self.table, self.n_threads, self._n_growing, self._origin = table, n_threads, n_growing, origin
        self.chosen: dict[str, ChosenRows] | None = None
        self.fold: FoldRows | None = None
        self._shared: SharedCodes | None = None  # until the rows are built
        #: Encoded targets of all rows: float64[n_rows], or [n_columns, n_rows].
        self._targets = ComputedValues(np.empty(0))
        #: Raw scores of the rows of positive weight by a model of other data, if there is one: float64[n_outputs, n_kept].
        self._start_scores = ComputedValues(np.empty((0, 0)))
        self._has_start_scores = False

    @property
    def n_kept(self) -> int:
        """Number of rows of positive weight."""
        return sum(map(self.table.n_kept, range(self.table.n_chunks)))

    @property
    def owned(self) -> dict[int, int]:
        """Number of rows of positive weight of each partition with such rows."""
        return {number: n for k, number in enumerate(self.table.partition_ids) if (n := self.table.n_kept(k))}

    def draw_ids(self, number: int, start: int) -> np.ndarray:
        """Return what samples of the rows of a partition are drawn by, see `Table.draw_ids`."""
        return self.table.draw_ids(self.table.partition_ids.index(number), start)

    @property
    def starting(self) -> StartingRows:
        """The rows of positive weight."""
        return StartingRows(self.table, self.target_of, scores_of=self.start_scores_of if self._has_start_scores else None)

    def in_memory(self, spec: BuildSpec) -> EncodedStore | None:
        """Return the rows of positive weight in memory; None if there are none.

        Raw values are released before the arrays of the state are allocated.
        """
        self.gather()
        fold = self._fold_that_shares
        if fold is not None:
            return self._rows_of_fold(spec, fold)
        rows = list(self.encoded(spec, 1))
        return joined_rows(rows, spec, self.n_threads) if rows else None

    def encoded(self, spec: BuildSpec, n_ranges: int, room: int = 0) -> Iterator[EncodedRows]:
        """Yield the rows of positive weight in memory, as at most `n_ranges` ranges of about the same number of rows.

        Raw values are released before the last one is yielded. room : number of rows that the codes of each range have room
        for; default only its own.
        """
        self.gather()
        table, y, weight = self.table, self._targets.together, self.table.weight
        kept = kept_rows(weight)
        n_kept, ids = table.n_rows if kept is None else len(kept), self.ids()
        borders = [n_kept * k // n_ranges for k in range(n_ranges + 1)]
        if spec.shard_spec.keeps_groups and (keys := self._draw_id_of(spec, slice(0, n_kept))) is not None:
            borders = next_ends(ends_of(keys), np.array(borders)).tolist()
        for first, last in pairwise(borders):
            kept_range, n = slice(first, last), last - first
            if not n:
                continue
            positions = None
            if n < table.n_rows:
                positions = np.arange(kept_range.start, kept_range.stop) if kept is None else kept[kept_range]
            codes = encode_table(table, spec.binning, spec.shard_spec.layout, positions, self.n_threads, room)
            raw = None
            if self._has_start_scores or table.offset is not None or spec.warm_start.model is not None:
                raw = self._raw_scores(spec, positions, kept_range)
            if last == n_kept:
                self.close_values()
            target = spec.in_unit(y if positions is None else y[..., positions])
            target = compacted(target) if spec.shard_spec.compacts_target else target
            fields = {"target": target, "narrow": codes.narrow, "wide": codes.wide}
            if raw is not None:
                fields["raw"] = spec.in_unit(raw)
            if spec.shard_spec.weighted:
                fields["weight"] = np.ones(n) if weight is None else weight if positions is None else weight[positions]
            if (draw_id := self._draw_id_of(spec, kept_range)) is not None:
                fields["draw_id"] = draw_id
            yield EncodedRows(fields, np.array(ids.runs(kept_range.start, kept_range.stop), np.int64))

    def _rows_of_fold(self, spec: BuildSpec, fold: FoldRows) -> EncodedStore | None:
        """Return the rows that a fold trains on, whose codes are shared with the other folds of its group."""
        parts, is_trained = fold.parts, fold.uses == TRAIN
        if not is_trained.any():
            self.close_values()
            return None
        shared = self._shared_codes(spec, fold)
        of_parts = np.bincount(parts[is_trained], minlength=int(parts.max()) + 1) > 0
        segments = shared.segments(of_parts, self.ids())
        fields = {}
        with shared.building:  # one fold after the other, since this takes memory for a moment
            for name, values in segments.in_order(self._fields_of_fold(spec, is_trained)):
                fields[name] = shared.values(name, values, of_parts) if name in ("target", "weight") else values
                del values
        self._shared = None
        self.close_values()
        return rows_in_memory(fields | shared.fields, spec.shard_spec, segments=segments, shared=shared)

    def _fields_of_fold(self, spec: BuildSpec, is_trained: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        """Yield everything but codes of the rows of the table, by name; what a fold does not train on is undefined.

        Each is released before the next one. is_trained : whether the fold trains on each row, bool[n_rows]; these are all
        rows of positive weight.
        """
        table, n_rows, n_outputs = self.table, len(is_trained), len(spec.baseline)
        target = spec.in_unit(self._targets.together)
        self._targets.close()
        yield "target", compacted(target) if spec.shard_spec.compacts_target else target
        del target
        if spec.shard_spec.weighted:
            yield "weight", np.ones(n_rows) if table.weight is None else table.weight
        if spec.shard_spec.has_draw_ids and table.all_roles.group is not None:
            yield "draw_id", table.all_roles.group
        raw = np.broadcast_to(spec.in_unit(spec.baseline[:, None]), (n_outputs, n_rows))
        if self._has_start_scores or table.offset is not None or spec.warm_start.model is not None:
            kept = np.flatnonzero(is_trained)
            raw = raw.copy()
            raw[:, kept] = spec.in_unit(self._raw_scores(spec, kept, slice(0, len(kept))))
        yield "raw", raw

    @property
    def _fold_that_shares(self) -> FoldRows | None:
        """The fold, if it shares codes with others."""
        fold = self.fold
        is_shared = fold is not None and self.table.is_binned and self.n_kept == int(np.count_nonzero(fold.uses == TRAIN))
        return fold if is_shared else None

    def _shared_codes(self, spec: BuildSpec, fold: FoldRows) -> SharedCodes:
        """Return the codes of the rows, also those that are not trained on, which the folds of the group share."""
        table, parts = self.table, fold.parts

        def make() -> SharedCodes:
            codes = encode_table(table, spec.binning, spec.shard_spec.layout, None, self.n_threads)
            n_growing = spec.n_growing or self._n_growing or self.n_threads
            return SharedCodes(codes, parts, spec.shard_spec, n_growing, self.n_threads)

        if self._shared is None:
            self._shared = shared_codes((fold.codes_id, tuple(table.partition_ids)), make)
        return self._shared

    def codes_held_out(self, spec: BuildSpec, positions: np.ndarray) -> ConsecutiveCodes | None:
        """Return the codes of rows that a fold holds out (positions in the table) among those that the folds share.

        None if none are shared, or if the rows are not consecutive among them.
        """
        fold = self._fold_that_shares
        if fold is None:
            return None
        shared = self._shared_codes(spec, fold)
        first = shared.first_of(positions)
        return None if first is None else ConsecutiveCodes(columns_among(shared.fields, spec.shard_spec.layout), first)

    def set_row_ids(self, id_ranges: RowIdRanges) -> None:
        """Set the global ids of the rows. Idempotent."""
        self.id_ranges = id_ranges

    def ids(self) -> RowIds:
        """Return the global ids of the rows of positive weight."""
        runs: list[tuple[int, int]] = []
        for number, n in self.owned.items():
            start = self.id_ranges.start(number)
            if runs and sum(runs[-1]) == start:
                start, n = runs[-1][0], runs.pop()[1] + n
            runs.append((start, n))
        return RowIds(np.array(runs, np.int64).reshape(-1, 2))

    def _raw_scores(self, spec: BuildSpec, positions: np.ndarray | None, kept_range: slice) -> np.ndarray:
        """Return the first raw scores of rows; `kept_range` is their range among the table's rows of positive weight."""
        warm_start = spec.warm_start
        if not self._has_start_scores:
            loss = spec.target.loss
            return starting_scores(spec.baseline, loss.link.offset_outputs, warm_start, self.table, positions, self.n_threads)
        raw = self._start_scores.together[..., kept_range].copy()
        add_trees(raw, warm_start, self.table, positions, self.n_threads, (warm_start.n_earlier, warm_start.n_before))
        return raw

    def write(self, spec: BuildSpec, root: Path | None) -> tuple[RowStore, RowIds]:
        """Write the rows of positive weight to files, and return the store and their global ids.

        root : parent of the folder; default: the one of `PrivateDirectory`.
        """
        n_rows, layout = self.n_kept, spec.shard_spec.layout
        block_rows = rows_that_fit(code_fields(layout), n_rows)
        place = InFiles(block_rows, root)
        if spec.shard_spec.keeps_groups:
            table = self.table
            sizes = block_sizes(ends_of_parts(table.draw_ids(k, 0) for k in range(table.n_chunks)), block_rows)
            place = InFiles(max(sizes), root, sizes)
        store = RowStore(spec.shard_spec.field_groups(in_memory=False), [n_rows], place)
        try:
            for fields in self.starting.trained(spec, self.n_threads, block_rows):
                fields["tiles"] = tiles_of(columns_among(fields, layout), layout)
                fields |= spec.shard_spec.constant_state(fields.get("weight"), fields["raw"].shape)
                store.append(fields["raw"].shape[1], fields)
            store.check_filled()
        except BaseException:
            store.close()
            raise
        return store, self.ids()

    def encode_targets(self, target: Target) -> None:
        """Encode the targets for the loss. Idempotent."""
        table = self.table
        if not table.keeps_roles_apart:
            counts = table.n_rows > 0 and (table.weight is None or bool((table.weight > 0).any()))
            self._targets = ComputedValues(encode_like(table, target) if counts else target.zeros(table.n_rows))
            return
        self._targets.close()
        filled = [k for k, length in enumerate(table.lengths) if length]
        self._targets = ComputedValues.in_files((k, encode_chunk(table, k, target)) for k in filled)

    def compute_start_scores(self, warm_start: WarmStart) -> None:
        """Compute the start scores of the rows of positive weight, by a model of other data. Idempotent."""
        model = warm_start.model
        if self._has_start_scores or model is None:
            return
        table, iterations = self.table, (0, warm_start.n_earlier)
        baseline, offset_outputs = model.baseline, model.outputs.offset_outputs
        self._has_start_scores = True
        if not table.keeps_roles_apart:
            kept = kept_rows(table.weight)
            scores = starting_scores(baseline, offset_outputs, warm_start, table, kept, self.n_threads, iterations)
            self._start_scores = ComputedValues(scores)
            return
        flat = FlatEnsemble(model) if warm_start.n_earlier else None

        def scores_of(k: int) -> np.ndarray:
            roles = table.roles(k)
            kept = kept_rows(roles.weight)
            offset = roles.offset if roles.offset is None or kept is None else roles.offset[kept]
            scores = first_scores(baseline, offset_outputs, offset, table.n_kept(k))
            if flat is not None:
                at = 0
                for matrix in chunk_matrices(table, k, kept):
                    add_block(scores[:, at : at + len(matrix)], flat, matrix, iterations, self.n_threads)
                    at += len(matrix)
            return scores

        self._start_scores = ComputedValues.in_files((k, scores_of(k)) for k in self._chunks_with_rows)

    def ranges(self) -> Iterator[EncodedRoles]:
        """Yield the roles of ranges that together are the rows of positive weight."""
        table = self.table
        if not table.keeps_roles_apart and kept_rows(table.weight) is None:
            if table.n_rows:
                roles = replace(table.all_roles, target=self._targets.together)
                yield EncodedRoles.with_scores(roles, self._start_scores.together if self._has_start_scores else None)
            return
        for k in self._chunks_with_rows:
            yield self.range_of(k)

    @property
    def _chunks_with_rows(self) -> list[int]:
        """Numbers of the chunks that have rows of positive weight."""
        return [k for k in range(self.table.n_chunks) if self.table.n_kept(k)]

    def map_rows(self, function: Callable[..., Result], arguments: tuple[Any, ...]) -> list[Result]:
        """Return ``function(roles, *arguments)`` of each of the `ranges`."""
        return [function(roles, *arguments) for roles in self.ranges()]

    def row_counts(self) -> RowCounts:
        """Return how many rows are trained on."""
        n_kept, unit_weights, chosen = {}, True, {}
        for name, (positions, weights) in (self.chosen or {}).items():
            max_weight = float(len(positions) > 0) if weights is None else float(weights.max(initial=0.0))
            chosen[name] = len(positions), max_weight
        for k, (i, length) in enumerate(zip(self.table.partition_ids, self.table.lengths, strict=True)):
            weight = self.table.roles(k).weight if length else None
            n_kept[i] = length if weight is None else int(np.count_nonzero(weight > 0))
            unit_weights = unit_weights and (weight is None or bool(((weight == 1.0) | (weight == 0.0)).all()))
        return RowCounts(n_kept, chosen, unit_weights)

    def distinct_columns(self) -> list[np.ndarray]:
        """Return the distinct values of each numeric column in rows of positive weight, as float64[...]."""
        self.gather()
        kept = kept_rows(self.table.weight)
        return distinct_of(self.table, np.arange(self.table.n_rows) if kept is None else kept)

    def proposal_sample(self, seed: int, columns: tuple[int, int]) -> ColumnSamples:
        """Return a range (first, last) of the numeric columns of the sampled rows."""
        table = self.table
        numeric = [j for j, feature in enumerate(table.features) if not feature.is_categorical][slice(*columns)]
        drawn, weights = self.drawn(partial(sample_rows, self.id_ranges.n_rows, seed))
        values_of_chunks = sampled(table, self.positions(drawn), numeric, self.n_threads)
        return {table.partition_ids[k]: (values, weights[k]) for k, values in values_of_chunks}

    def drawn(self, draw: Callable[[int, int], np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray | None]]:
        """Return the drawn rows of each chunk, and their weights.

        ``draw(first, last)`` returns the drawn ids of a range of global ids.
        """
        drawn: list[np.ndarray] = []
        weights: list[np.ndarray | None] = []
        for k, (i, length) in enumerate(zip(self.table.partition_ids, self.table.lengths, strict=True)):
            weight = self.table.roles(k).weight if length else None
            kept = kept_rows(weight)
            start = self.id_ranges.start(i)
            rows = draw(start, start + (length if kept is None else len(kept))) - start
            drawn.append(rows if kept is None else kept[rows])
            weights.append(None if weight is None else weight[drawn[k]])
        return drawn, weights

    def positions(self, drawn: Sequence[np.ndarray]) -> np.ndarray:
        """Return the positions of drawn rows in the table."""
        starts = np.cumsum((0, *self.table.lengths[:-1]))
        return np.concatenate([np.empty(0, np.int64), *map(np.add, starts, drawn)])

    def target_of(self, k: int) -> np.ndarray:
        """Return the encoded targets of all rows of chunk k."""
        return self._targets.of(k, self.table.lengths.__getitem__)

    def range_of(self, k: int) -> EncodedRoles:
        """Return the roles of the rows of positive weight of chunk k, which must have some; see `ranges`."""
        roles = replace(self.table.roles(k), target=self.target_of(k))
        kept = kept_rows(roles.weight)
        roles = roles if kept is None else roles.rows(kept)
        return EncodedRoles.with_scores(roles, self.start_scores_of(k) if self._has_start_scores else None)

    def start_scores_of(self, k: int) -> np.ndarray:
        """Return the start scores of the rows of positive weight of chunk k: float64[n_outputs, n]."""
        return self._start_scores.of(k, self.table.n_kept)

    def _draw_id_of(self, spec: BuildSpec, kept_range: slice) -> np.ndarray | None:
        """Return the keys of the groups of a range of the rows of positive weight, in memory; None if no group is drawn."""
        group = self.table.all_roles.group
        if not spec.shard_spec.has_draw_ids or group is None:
            return None
        kept = kept_rows(self.table.weight)
        return group[kept_range] if kept is None else group[kept[kept_range]]

    def gather(self) -> None:
        """Load everything but the columns into memory."""
        if self.table.keeps_roles_apart:
            self._start_scores.gather(self._chunks_with_rows)
            self._targets.gather([k for k, length in enumerate(self.table.lengths) if length])
            self.table.gather_roles()

    def drop_target(self) -> None:
        """Release the target as it was read, once it is encoded."""
        self.table.drop_target()
        if isinstance(self._origin, Table):
            self._origin.drop_target()

    def close_values(self) -> None:
        """Release the raw values, once they are encoded; the roles that are in memory stay."""
        if self._origin is not None:
            self._origin.close()
            self._origin = None

    def close(self) -> None:
        """Release the raw values, and remove the files."""
        self.close_values()
        self._shared = None
        self._targets.close()
        self._start_scores.close()
