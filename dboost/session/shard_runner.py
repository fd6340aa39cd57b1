"""Shard runners: a range of a session's rows as one shard, with its state between calls.

`InMemoryRunner` has a shard in memory, a `ShardGrower`, and `StreamedRunner` blocks of files, a `StreamedShard`; both kinds of
shards have the same methods. Rows are streamed if they exceed the memory limit of the fit. The files are in the worker's local
directory and are removed together with the last runner that uses them. A runner that is built after training has started
replays the trees so far. A runner can drop the rows of partitions that another session has now. Both give the same sums as an
uninterrupted fit.

`LeafRefitRows` are the rows of a session during the re-estimation of leaf values (see `training.leaf_refit`): one shard without
features. It assigns the rows to the leaves of an iteration's trees, by their raw values, and computes the statistics that
`LeafEstimator` needs, as from any shard. When the new leaf values are known, `advance` adds them to the scores and recomputes
gradients and Hessians. The state of the rows is determined by the list of these steps. Rows that are loaded later, because a
worker was lost, replay the list.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dboost.losses import Loss
from dboost.losses.gradient_pass import new_pass_scratch
from dboost.model.ensemble import Ensemble
from dboost.model.forest import FlatEnsemble
from dboost.session.batch_rows import BatchRows, starting_pieces
from dboost.session.engines import FusedEngine, blocks_that_stay
from dboost.session.protocol import BuildSpec, RefitStep, ReplayState
from dboost.shards.apply_trees import add_grown_tree, leaves_of
from dboost.shards.block_store import BlockStore, BlockWriter, StreamedShard
from dboost.shards.encode import in_ranges, tiles_of
from dboost.shards.shard import Shard, advance_rows, empty_binned_columns, runs_of
from dboost.shards.shard_grower import ShardGrower
from dboost.shards.shard_spec import ShardSpec, code_fields, plan_layout, rows_that_fit
from dboost.storage.block_file import BlockFile
from dboost.storage.spool import PrivateDirectory
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
    def keep(self, numbers: Sequence[int]) -> ShardRunner | None:
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

    def keep(self, numbers: Sequence[int]) -> InMemoryRunner | None:
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
    files : ShardFiles
        Several runners may use the same files.
    first, last : int
        Range of blocks, without `last`.
    batch, applied : as of `ShardRunner`
    n_staying : int
        Number of blocks that are resident in memory.
    """

    shard: StreamedShard

    def __init__(self, files: ShardFiles, first: int, last: int, batch: str, applied: int, n_staying: int) -> None:
        super().__init__(StreamedShard(files.blocks, first, last, n_staying=n_staying), batch, applied)
        self._files, self._bounds, self._n_staying = files, (first, last), n_staying

    def unload(self) -> None:
        """Release the memory of resident blocks, for rows that are added to the session."""
        self.shard.unload()
        self._n_staying = 0

    def keep(self, numbers: Sequence[int]) -> StreamedRunner | None:
        blocks = self._files.blocks
        first = self._bounds[0] * blocks.state.block_rows
        owned = self._files.owned_of(first, first + self.n_rows)
        kept = [(number, n) for number, n in owned if number in numbers]
        if kept == owned:
            return self
        if not kept:
            return None
        is_kept = np.repeat([number in numbers for number, _ in owned], [n for _, n in owned])
        row_ids = np.concatenate([np.arange(a, a + n) for k in range(*self._bounds) for a, n in blocks.ranges_of(k)])
        ranges = runs_of(row_ids[is_kept])
        del row_ids
        files = ShardFiles.new(self._files.folder.path.parent, blocks.spec, kept, ranges, blocks.state.block_rows)
        writer = BlockWriter(files.blocks.files)
        names = [field.name for file in blocks.files for field in file.fields]
        axes = {field.name: len(field.before) for file in blocks.files for field in file.fields}
        at = 0
        for block in self.shard.walk(codes=True, rows=True, reads=[field.name for field in blocks.state.fields]):
            rows = np.flatnonzero(is_kept[at : at + block.n_rows])
            at += block.n_rows
            views = {name: block.codes.wide if name == "wide" else getattr(block, name) for name in names}
            writer.append(len(rows), {name: np.take(view, rows, axis=axes[name]) for name, view in views.items()})
        writer.finish()
        return StreamedRunner(files, 0, files.blocks.n_blocks, self.batch, self.applied, self._n_staying)

    def close(self) -> None:
        super().close()
        self._files.close()


class ShardFiles:
    """The files of a batch's rows, in a private directory that is removed with the last runner that uses it.

    owned : partition and number of rows of each run of consecutive rows of one partition.
    """

    def __init__(self, folder: PrivateDirectory, blocks: BlockStore, owned: list[tuple[int, int]]) -> None:
        self.folder, self.blocks, self._owned = folder, blocks, owned

    @classmethod
    def new(cls, root: Path, spec: ShardSpec, owned: list[tuple[int, int]], ranges: np.ndarray, block_rows: int) -> ShardFiles:
        """Create empty files in a new directory below `root`."""
        n_rows = sum(n for _, n in owned)
        folder = PrivateDirectory(root)
        try:
            fields = code_fields(spec.layout)
            codes = BlockFile(folder.path / "codes", fields, n_rows, sealed=True, block_rows=block_rows)
            return cls(folder, BlockStore.around(folder.path, "", spec, codes, ranges), owned)
        except BaseException:
            folder.close()
            raise

    def owned_of(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the partitions of rows first…last-1, and the number of these rows in each."""
        found, at = [], 0
        for number, n in self._owned:
            low, high = max(first, at), min(last, at + n)
            if low < high:
                found.append((number, high - low))
            at += n
        return found

    def close(self) -> None:
        self.blocks.close()
        self.folder.close()


def write_shard_files(rows: BatchRows, spec: BuildSpec, past: ReplayState, *, root: Path, n_threads: int) -> ShardFiles | None:
    """Write the rows of positive weight of a batch, with scores that include the trees so far; return None without rows."""
    layout, table = spec.layout, rows.table
    owned = [(number, n) for k, number in enumerate(table.numbers) if (n := rows.kept_of(k))]
    ranges = np.array([(spec.starts[number], n) for number, n in owned], np.int64).reshape(-1, 2)
    n_rows = sum(n for _, n in owned)
    if not n_rows:
        return None
    block_rows = rows_that_fit(code_fields(layout), n_rows)
    files = ShardFiles.new(root, spec.shard, owned, ranges, block_rows)
    try:
        writer = BlockWriter(files.blocks.files)
        for piece in starting_pieces(rows, spec, n_threads, block_rows):
            n, raw = piece.codes.n_rows, piece.fields["raw"]
            fields = piece.fields | {"tiles": tiles_of(piece.codes, layout)}
            fields |= spec.shard.constant_state(fields.get("weight"), raw.shape)
            if len(piece.codes.wide):
                fields["wide"] = piece.codes.wide
            for trees in past.iterations:
                for tree in trees:
                    scores = raw if raw.ndim == 1 else raw[tree.output]
                    add_grown_tree(piece.codes, layout, tree.grown, tree.values, scores, 0, n)
            if past.pending:
                leaf = np.zeros(raw.shape, spec.shard.leaf_type)
                for tree in past.pending:
                    (leaf if raw.ndim == 1 else leaf[tree.output])[:] = leaves_of(piece.codes, layout, tree.grown)
                fields["leaf"] = leaf
            writer.append(n, fields)
        writer.finish()
    except BaseException:
        files.close()
        raise
    return files


def streamed_runners(
    rows: BatchRows, batch: str, spec: BuildSpec, past: ReplayState, *, root: Path, n_threads: int, staying_bytes: int
) -> list[StreamedRunner]:
    """Write a batch to files, and return one runner per thread.

    staying_bytes : memory for the histograms of a pass and for resident blocks.
    """
    files = write_shard_files(rows, spec, past, root=root, n_threads=n_threads)
    if files is None:
        return []
    try:
        n_blocks = files.blocks.n_blocks
        n_runners = min(n_threads, n_blocks)
        n_staying = blocks_that_stay(files.blocks, staying_bytes, spec.shard.max_leaves, n_runners)
        bounds = [n_blocks * k // n_runners for k in range(n_runners + 1)]
        runners = [StreamedRunner(files, first, last, batch, past.applied, n_staying) for first, last in pairwise(bounds)]
        if past.applied >= 0:
            # Recompute the gradients after the last complete iteration; leaf values of zero change no score.
            zeros = np.zeros((spec.shard.n_outputs, spec.shard.max_leaves))
            for runner in runners:
                runner.advance_rows(past.terms, zeros)
        return runners
    except BaseException:
        files.close()
        raise


class LeafRefitRows:
    """Rows whose leaf values are re-estimated.

    Parameters
    ----------
    model : Ensemble
    matrices : sequence of float32 or float64 [n, n_features]
        The rows' values in consecutive blocks (see `session.warm_start.row_matrices`).
    y : float64[n_rows]
    weight : float64[n_rows] or None
    raw : float64[n_rows] or float64[n_outputs, n_rows]
        Scores before the first tree; updated in place.
    loss : Loss
    loss_unit : float
        Unit of exact loss sums.
    n_threads : int
    """

    def __init__(
        self,
        model: Ensemble,
        matrices: Sequence[np.ndarray],
        y: np.ndarray,
        weight: np.ndarray | None,
        raw: np.ndarray,
        loss: Loss,
        loss_unit: float,
        n_threads: int,
    ) -> None:
        layout = plan_layout(np.ones(1, np.int64), np.zeros(1, bool))
        spec = ShardSpec(
            layout=layout,
            bin_layout=layout,
            n_outputs=model.n_outputs,
            weighted=weight is not None,
            integer_weights=False,
            constant_hessian=loss.constant_hessian and weight is None,
            weights_as_hessian=False,
            max_leaves=max(tree.n_leaves for tree in model.trees),
            n_channels=2,
            loss_unit=loss_unit,
        )
        self._shard = Shard(
            empty_binned_columns(layout, len(y)),
            spec,
            y,
            weight,
            raw,
        )
        self._flat, self._matrices, self._n_threads = FlatEnsemble(model), matrices, n_threads
        self._loss_unit, self._scratch = loss_unit, new_pass_scratch()
        self._n_outputs, self._iteration = model.n_outputs, -1
        self._n_advanced = 0
        self._stats: GradientStats | None = None

    @property
    def n_rows(self) -> int:
        return len(self._shard.target)

    def _assign_leaves(self, iteration: int) -> None:
        """Assign each row to its leaf in each tree of an iteration; do nothing for iteration -1."""
        if iteration == self._iteration or iteration < 0:
            return
        at, which = 0, (iteration, iteration + 1)
        for matrix in self._matrices:
            leaves = self._flat.leaves(matrix, which, self._n_threads)
            for output in range(self._n_outputs):
                self._shard.output_arrays(output)[2][at : at + len(matrix)] = leaves[:, output]
            at += len(matrix)
        self._iteration = iteration

    def take_step(self, number: int, step: RefitStep) -> GradientStats:
        """Apply step `number` unless it has been applied; return the gradient statistics after it."""
        if number == self._n_advanced:
            self._assign_leaves(step.iteration)
            n = len(self._shard.target)
            self._stats = advance_rows(self._shard, step.terms, step.values, self._loss_unit, self._scratch, 0, n)
            self._n_advanced += 1
        assert number == self._n_advanced - 1 and self._stats is not None
        return self._stats

    def map_ranges(self, iteration: int, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return ``function(shard, first, last, *arguments)`` of the rows, assigned to the leaves of an iteration's trees."""
        self._assign_leaves(iteration)
        return function(self._shard, 0, len(self._shard.target), *arguments)
