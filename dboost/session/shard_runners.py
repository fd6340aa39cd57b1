"""Shard runners: a range of a session's rows as one shard, with its state between calls, for trees that are grown in rounds.

`InMemoryRunner` has a shard in memory, a `ShardGrower`, and `StreamedRunner` blocks of files, a `StreamedShard`; both kinds of
shards have the same methods. Rows are streamed if they exceed the memory limit of the fit. The files are in the worker's local
directory and are removed together with the last runner that uses them. A runner that is built after training has started
replays the trees so far. A runner can drop the rows of partitions that another session has now. Both give the same sums as an
uninterrupted fit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from dboost.session.batch_rows import BatchRows, starting_pieces
from dboost.session.engines import FusedEngine
from dboost.session.memory import blocks_that_stay
from dboost.session.protocol import BuildSpec, ReplayState
from dboost.shards.block_store import BlockStore, StreamedShard
from dboost.shards.encode import in_ranges, tiles_of
from dboost.shards.shard import (
    Shard,
    add_iterations,
    leaves_of,
    runs_of,
)
from dboost.shards.shard_grower import ShardGrower
from dboost.shards.shard_spec import code_fields, rows_that_fit
from dboost.storage.row_store import InFiles
from dboost.trees.tree_task import GradientStats, GrownTree, TreeTask


class ShardRunner(ABC):
    """A shard with its state between calls.

    Parameters
    ----------
    shard : ShardGrower or StreamedShard
    batch : str
    applied : int
        Number of the last `advance`, -1 before the first.
    """

    def __init__(self, shard: ShardGrower | StreamedShard, batch: str, applied: int = -1) -> None:
        self.shard, self.batch, self.applied = shard, batch, applied
        self.stats: GradientStats | None = None

    @property
    def n_rows(self) -> int:
        return self.shard.n_rows

    def advance_rows(self, terms: tuple, values: np.ndarray) -> None:
        """Add leaf values to the scores, recompute the gradients, and store their statistics."""
        self.stats = self.shard.advance_rows(terms, values)

    @abstractmethod
    def keep_only(self, numbers: Sequence[int]) -> ShardRunner | None:
        """Return a runner without the rows of other partitions; None if no rows remain."""

    def close(self) -> None:
        """Release memory and files."""
        self.shard.close()


class InMemoryRunner(ShardRunner):
    """A shard in memory, with rows of one batch."""

    shard: ShardGrower

    def __init__(self, shard: Shard, batch: str, spec: BuildSpec, n_threads: int, applied: int = -1) -> None:
        super().__init__(ShardGrower(shard), batch, applied)
        self._spec, self._n_threads = spec, n_threads
        self._engine: FusedEngine | None = None  # grows whole trees

    def grow_trees(self, tasks: Sequence[TreeTask]) -> list[GrownTree]:
        """Grow whole trees on the rows, if they are all rows of the fit."""
        if self._engine is None:
            terms = self._spec.target.loss.terms()
            self._engine = FusedEngine(self.shard.shard, terms, policy=tasks[0].policy, n_threads=self._n_threads)
        trees = [grown.copy() for grown in self._engine.grow(tasks)]
        self._engine.route_excluded()
        return trees

    def advance_rows(self, terms: tuple, values: np.ndarray) -> None:
        if self._engine is None:
            super().advance_rows(terms, values)
        else:
            self.stats = self._engine.advance(values, terms)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        super().close()

    def keep_only(self, numbers: Sequence[int]) -> InMemoryRunner | None:
        kept = self._spec.are_of(self.shard.shard.row_ids(0, self.n_rows), numbers)
        if kept.all():
            return self
        if not kept.any():
            return None
        shard = self.shard.shard.some_rows(np.flatnonzero(kept))
        in_ranges(shard.fill_tiles, shard.n_rows, self._n_threads)
        self.close()
        # The new runner has no `GradientStats`: they describe the old row set, and the next `advance` recomputes them.
        return InMemoryRunner(shard, self.batch, self._spec, self._n_threads, self.applied)


class StreamedRunner(ShardRunner):
    """A range of the blocks of a batch's files.

    Parameters
    ----------
    blocks : BlockStore
        Several runners may use the same files.
    first, last : int
        Range of blocks, without `last`.
    batch, applied : as of `ShardRunner`
    n_staying : int
        Number of blocks that are resident in memory.
    """

    shard: StreamedShard

    def __init__(self, blocks: BlockStore, first: int, last: int, batch: str, applied: int, n_staying: int) -> None:
        super().__init__(StreamedShard(blocks, first, last, n_staying=n_staying), batch, applied)
        self._blocks, self._bounds, self._n_staying = blocks, (first, last), n_staying

    def unload(self) -> None:
        """Release the memory of resident blocks, for rows that are added to the session."""
        self.shard.unload()
        self._n_staying = 0

    def keep_only(self, numbers: Sequence[int]) -> StreamedRunner | None:
        blocks = self._blocks
        first = self._bounds[0] * blocks.block_rows
        owned = blocks.owned_of(first, first + self.n_rows)
        kept = [(number, n) for number, n in owned if number in numbers]
        if kept == owned:
            return self
        if not kept:
            return None
        is_kept = np.repeat([number in numbers for number, _ in owned], [n for _, n in owned])
        row_ids = np.concatenate([np.arange(a, a + n) for k in range(*self._bounds) for a, n in blocks.ranges_of(k)])
        ranges = runs_of(row_ids[is_kept])
        del row_ids
        assert blocks.place is not None
        some, at = BlockStore(blocks.spec, kept, ranges, blocks.place), 0
        for block in self.shard.walk(blocks.names):
            rows = np.flatnonzero(is_kept[at : at + block.n_rows])
            at += block.n_rows
            some.append(len(rows), block.fields, rows)
        some.check_filled()
        return StreamedRunner(some, 0, some.n_blocks, self.batch, self.applied, self._n_staying)

    def close(self) -> None:
        super().close()
        self._blocks.close()


def write_blocks(
    rows: BatchRows, spec: BuildSpec, past: ReplayState, *, root: Path | None, n_threads: int
) -> BlockStore | None:
    """Write the rows of positive weight of a batch, with scores that include the trees so far; return None without rows."""
    layout, table = spec.shard.layout, rows.table
    owned = [(number, n) for k, number in enumerate(table.numbers) if (n := rows.kept_of(k))]
    ranges = np.array([(spec.starts[number], n) for number, n in owned], np.int64).reshape(-1, 2)
    n_rows = sum(n for _, n in owned)
    if not n_rows:
        return None
    block_rows = rows_that_fit(code_fields(layout), n_rows)
    blocks = BlockStore(spec.shard, owned, ranges, InFiles(block_rows, root))
    try:
        for piece in starting_pieces(rows, spec, n_threads, block_rows):
            n, raw = piece.codes.n_rows, piece.fields["raw"]
            fields = piece.fields | {"tiles": tiles_of(piece.codes, layout), "wide": piece.codes.wide}
            fields |= spec.shard.constant_state(fields.get("weight"), raw.shape)
            add_iterations(piece.codes, layout, past.iterations, raw, 0, n)
            if past.pending:
                leaf = np.zeros(raw.shape, spec.shard.leaf_type)
                for tree in past.pending:
                    leaf[tree.output] = leaves_of(piece.codes, layout, tree.grown)
                fields["leaf"] = leaf
            blocks.append(n, fields)
        blocks.check_filled()
    except BaseException:
        blocks.close()
        raise
    return blocks


def streamed_runners(
    rows: BatchRows, batch: str, spec: BuildSpec, past: ReplayState, *, root: Path | None, n_threads: int, staying_bytes: int
) -> list[StreamedRunner]:
    """Write a batch to files, and return one runner per thread.

    staying_bytes : memory for the histograms of a pass and for resident blocks.
    """
    blocks = write_blocks(rows, spec, past, root=root, n_threads=n_threads)
    if blocks is None:
        return []
    try:
        n_blocks = blocks.n_blocks
        n_runners = min(n_threads, n_blocks)
        n_staying = blocks_that_stay(blocks, staying_bytes, spec.shard.max_leaves, n_runners)
        bounds = [n_blocks * k // n_runners for k in range(n_runners + 1)]
        runners = [StreamedRunner(blocks, first, last, batch, past.applied, n_staying) for first, last in pairwise(bounds)]
        if past.applied >= 0:
            # Recompute the gradients after the last complete iteration; leaf values of zero change no score.
            zeros = np.zeros((spec.shard.n_outputs, spec.shard.max_leaves))
            for runner in runners:
                runner.advance_rows(past.terms, zeros)
        return runners
    except BaseException:
        blocks.close()
        raise
