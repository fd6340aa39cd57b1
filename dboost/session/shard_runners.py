"""Shard runners: rows of a session with their state between calls, for trees that are grown in rounds.

A `ShardRunner` has one thread's share of the blocks of a row store: rows in memory, which are one block, or in files if they
exceed the memory limit of the fit. Everything is done block by block; only the growth of trees depends on where the rows are.
In memory, records of the rows move from node to node (`ShardGrower`), and a session that has all rows of a fit grows whole
trees; in files, each round is a pass over the blocks (`StreamedGrower`). Files are in the worker's local directory and are
removed together with the last runner that uses them.

A runner that is built after training has started replays the trees so far. A runner can drop the rows of partitions that
another session has now. Both give the same sums as an uninterrupted fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dboost.session.batch_rows import BatchRows, starting_pieces
from dboost.session.engines import FusedEngine
from dboost.session.memory import blocks_that_stay
from dboost.session.protocol import BuildSpec, ReplayState
from dboost.shards.shard import RowIds, add_iterations, leaves_of, tiles_of
from dboost.shards.shard_blocks import ShardBlocks
from dboost.shards.shard_grower import ShardGrower
from dboost.shards.shard_spec import code_fields, rows_that_fit
from dboost.shards.statistics import Statistic
from dboost.shards.streamed_grower import StreamedGrower
from dboost.storage.row_store import InFiles, RowStore
from dboost.trees.tree_task import GradientStats, GrownTree, TreeTask


class ShardRunner:
    """Rows with their state between calls.

    Parameters
    ----------
    rows : ShardBlocks
        Of one batch.
    batch : str
    spec : BuildSpec
    n_threads : int
        Threads that grow whole trees.
    past : ReplayState
        What has been trained before.

    Attributes
    ----------
    grower : ShardGrower or StreamedGrower
        Grows trees in rounds.
    applied : int
        Number of the last `advance`, -1 before the first.
    stats : GradientStats or None
        Statistics of the gradients after the last `advance`.
    """

    def __init__(self, rows: ShardBlocks, batch: str, spec: BuildSpec, n_threads: int, past: ReplayState) -> None:
        self.rows, self.batch, self.applied = rows, batch, -1
        self.stats: GradientStats | None = None
        self._spec, self._n_threads = spec, n_threads
        self.grower = StreamedGrower(rows) if rows.in_files else ShardGrower(rows.shard)
        self._engine: FusedEngine | None = None  # grows whole trees
        self._replay(past)

    @property
    def n_rows(self) -> int:
        return self.rows.n_rows

    def _replay(self, past: ReplayState) -> None:
        # The scores of a bite already include the iterations before the visit.
        missed = past.iterations if past.visit is None else past.iterations[past.visit.n_kept :]
        if missed or past.pending:
            for shard in self.rows.walk(["tiles", "raw", "leaf"], ["raw", "leaf"]):
                add_iterations(shard.codes, shard.layout, missed, shard.raw, 0, shard.n_rows)
                for tree in past.pending:
                    shard.leaf[tree.output] = leaves_of(shard.codes, shard.layout, tree.grown)
        if past.applied >= 0:
            # Recompute the gradients after the last complete iteration; leaf values of zero change no score.
            self.advance_rows(past.terms, np.zeros((self.rows.spec.n_outputs, self.rows.spec.max_leaves)))
            self.applied = past.applied

    def advance_rows(self, terms: tuple, values: np.ndarray) -> None:
        """Add leaf values to the scores, recompute the gradients, and store their statistics."""
        if self._engine is None:
            self.stats = self.rows.advance_rows(terms, values)
        else:
            self.stats = self._engine.advance(values, terms)

    def map_ranges(self, statistic: Statistic, *arguments: Any) -> list[Any]:
        """Return the statistic of ranges that together are all rows."""
        return self.rows.map_ranges(statistic, *arguments)

    def grow_trees(self, tasks: Sequence[TreeTask]) -> list[GrownTree] | None:
        """Grow whole trees on rows in memory, if they are all rows of the fit; return None for rows in files."""
        if self.rows.in_files:
            return None
        if self._engine is None:
            terms = self._spec.target.loss.terms()
            self._engine = FusedEngine(self.rows.shard, terms, policy=tasks[0].policy, n_threads=self._n_threads)
        trees = [grown.copy() for grown in self._engine.grow(tasks)]
        self._engine.route_excluded()
        return trees

    def keep_only(self, numbers: Sequence[int]) -> ShardRunner | None:
        """Return a runner without the rows of other partitions; None if no rows remain.

        A new runner has no `GradientStats`: they describe the old rows, and the next `advance` recomputes them.
        """
        rows = self.rows.subset(partial(self._spec.are_of, partitions=numbers))
        if rows is self.rows:
            return self
        self._release()
        if rows is None:
            return None
        found = ShardRunner(rows, self.batch, self._spec, self._n_threads, ReplayState())
        found.applied = self.applied
        return found

    def _release(self) -> None:
        """Release threads and buffers; others may use the files."""
        if self._engine is not None:
            self._engine.close()
        self.grower.close()
        self.rows.close()

    def close(self) -> None:
        """Release threads, memory and files."""
        self._release()
        self.rows.store.close()


def write_rows(rows: BatchRows, spec: BuildSpec, *, root: Path | None, n_threads: int) -> tuple[RowStore, RowIds]:
    """Write the rows of positive weight of a batch to files, with their first raw scores."""
    owned = rows.owned
    n_rows, layout = sum(owned.values()), spec.shard.layout
    ids = RowIds(np.array([(spec.starts[number], n) for number, n in owned.items()], np.int64).reshape(-1, 2))
    block_rows = rows_that_fit(code_fields(layout), n_rows)
    store = RowStore(spec.shard.groups(in_memory=False), [n_rows], InFiles(block_rows, root))
    try:
        for piece in starting_pieces(rows, spec, n_threads, block_rows):
            fields = piece.fields | {"tiles": tiles_of(piece.codes, layout), "wide": piece.codes.wide}
            fields |= spec.shard.constant_state(fields.get("weight"), fields["raw"].shape)
            store.append(piece.codes.n_rows, fields)
        store.check_filled()
    except BaseException:
        store.close()
        raise
    return store, ids


def streamed_runners(
    rows: BatchRows, batch: str, spec: BuildSpec, past: ReplayState, *, root: Path | None, n_threads: int, staying_bytes: int
) -> list[ShardRunner]:
    """Write a batch to files, and return one runner per thread.

    staying_bytes : memory for the histograms of a pass and for resident blocks.
    """
    if not rows.n_kept:
        return []
    store, ids = write_rows(rows, spec, root=root, n_threads=n_threads)
    try:
        n_runners = min(n_threads, store.n_blocks)
        n_staying = blocks_that_stay(store, spec.shard, staying_bytes, spec.shard.max_leaves, n_runners)
        shares = (ShardBlocks(store, spec.shard, ids, k, n_runners, n_staying=n_staying) for k in range(n_runners))
        return [ShardRunner(share, batch, spec, n_threads, past) for share in shares]
    except BaseException:
        store.close()
        raise
