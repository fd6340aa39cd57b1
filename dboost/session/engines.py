"""The engines of this process and the team of threads that they run on.

`FusedEngine` has its rows in memory: one shard, a team of threads, one compiled call per tree.

`StreamedEngine` has its rows in files: one streamed shard per thread, and all threads process a request at the same time. It
runs the generator `trees.grower.grow_tree`, as the reducer of a cluster does, but each request is a pass over the files. So it
opens as many nodes per pass as the memory for their histograms allows. The remaining memory caches blocks.

**Threads.** A `Team` runs one kernel in all its threads, which stop together. If calls take a fraction of a second
(`QUICK`), the calling thread is one of them, which saves up to a tenth of a millisecond a call. In longer calls all threads
are those of a pool, even if there is only one, while the caller waits in Python. So Ctrl+C is handled promptly: it sets the
abort flag, and the threads return at their next barrier. The caller waits in intervals of `LOOK_UP_SECONDS`. The operating
system may deliver a signal to any thread of the process, and Python runs the handler only when the main thread executes
bytecode; a wait without a timeout might never return.

**Shard runners** are a range of a session's rows as one shard, with its state between calls, for trees that are grown in
rounds. `InMemoryRunner` has a shard in memory, a `ShardGrower`, and `StreamedRunner` blocks of files, a `StreamedShard`; both
kinds of shards have the same methods. Rows are streamed if they exceed the memory limit of the fit. The files are in the
worker's local directory and are removed together with the last runner that uses them. A runner that is built after training has
started replays the trees so far. A runner can drop the rows of partitions that another session has now. Both give the same sums
as an uninterrupted fit.

`LeafRefitRows` are the rows of a session during the re-estimation of leaf values (see `training.leaf_refit`): one shard without
features. It assigns the rows to the leaves of an iteration's trees, by their raw values, and computes the statistics that
`LeafEstimator` needs, as from any shard. When the new leaf values are known, `advance` adds them to the scores and recomputes
gradients and Hessians. The state of the rows is determined by the list of these steps. Rows that are loaded later, because a
worker was lost, replay the list.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dboost.kernels import or_empty
from dboost.kernels.histograms import TILE_COLUMNS, PackedSums
from dboost.kernels.rows import STRIPE
from dboost.kernels.simd import ABORT, CONTROL_SIZE
from dboost.kernels.splits import SPLIT_SIZE, new_search_scratch
from dboost.losses import Loss
from dboost.losses.gradient_pass import new_pass_scratch
from dboost.model.ensemble import Ensemble, FlatEnsemble
from dboost.session.partition_loader import BatchRows, starting_pieces
from dboost.session.protocol import BuildSpec, RefitStep, ReplayState
from dboost.shards.block_store import BlockStore, StreamedShard
from dboost.shards.encode import in_ranges, tiles_of
from dboost.shards.shard import (
    Shard,
    add_iterations,
    advance_rows,
    assign_leaves,
    empty_binned_columns,
    leaves_of,
    merge_into_bins,
    runs_of,
)
from dboost.shards.shard_grower import ShardGrower
from dboost.shards.shard_spec import ShardSpec, code_fields, plan_layout, rows_that_fit
from dboost.shards.statistics import Statistic
from dboost.storage.row_store import InFiles
from dboost.trees.bin_proposal import in_fine_bins, new_proposal_buffers
from dboost.trees.fused_grower import (
    EXCLUDED_FRACTION,
    FusedTask,
    LeafHistograms,
    TeamBuffers,
    ThreadScratch,
    TreeRows,
    grow_whole_tree,
)
from dboost.trees.grower import MOST_OPENED, RoundRequest, RoundResult, grow_tree
from dboost.trees.split_finder import FeaturePaths, SplitFinder, new_feature_paths
from dboost.trees.tree_task import ANY_ORDER, GradientStats, GrownTree, GrowthPolicy, TreeTask, new_node_arrays


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


class LeafRefitRows:
    """Rows whose leaf values are re-estimated.

    Parameters
    ----------
    model : Ensemble
    matrices : sequence of float32 or float64 [n, n_features]
        The rows' values in consecutive blocks (see `session.warm_start.row_matrices`).
    y : float64[n_rows]
    weight : float64[n_rows] or None
    raw : float64[n_outputs, n_rows]
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

    def map_ranges(self, iteration: int, statistic: Statistic, *arguments: Any) -> Any:
        """Return a statistic of the rows, assigned to the leaves of an iteration's trees."""
        self._assign_leaves(iteration)
        return statistic.compute(self._shard, 0, len(self._shard.target), *arguments)


LOOK_UP_SECONDS = 0.2


class Team:
    """A team of `n_threads` threads; use it as a context manager or call `close`.

    Parameters
    ----------
    n_threads : int
    in_caller : bool
        The calling thread is one of them: for calls that take a fraction of a second.
    """

    def __init__(self, n_threads: int, *, in_caller: bool = False) -> None:
        self.n_threads = n_threads
        self.control = np.zeros(CONTROL_SIZE, np.int64)
        self._first_error: BaseException | None = None
        self._in_caller = in_caller
        n_others = n_threads - in_caller
        self._pool = ThreadPoolExecutor(n_others, "dboost") if n_others else None

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        """Return ``[work(0), work(1), …]``, each computed in its own thread at the same time.

        If one call fails, the others abort with errors of their own; the first error is raised.
        """
        if self._pool is None:
            return [work(0)]
        futures = []
        self._first_error = None
        try:
            for thread in range(int(self._in_caller), self.n_threads):
                futures.append(self._pool.submit(self._guarded, work, thread))
            results = [self._guarded(work, 0)] if self._in_caller else []
            while wait(futures, LOOK_UP_SECONDS).not_done:
                pass
            if self._first_error is not None:
                raise self._first_error
            return results + [future.result() for future in futures]
        except BaseException as error:
            first = self._first_error or error
            self.control[ABORT] = 1
            for future in futures:
                future.exception()
            if first is error:
                raise
            raise first from None

    def _guarded(self, work: Callable[[int], Any], thread: int) -> Any:
        try:
            return work(thread)
        except BaseException as error:
            self._first_error = self._first_error or error  # before the flag that aborts the other threads
            self.control[ABORT] = 1
            raise

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


#: Below this many cells (rows times features) one thread is faster than two.
SMALL = 400_000
#: Below this many cells a pass over all of them takes less than a tenth of a second.
QUICK = 50_000_000
#: With ANY_ORDER the number of open leaves is at most the logarithm of the sum of the Hessians.
_SLOTS_ANY_ORDER = 64


class TeamEngine(ABC):
    """What the engines of this process have in common: a team of threads, and trees that grow one after the other."""

    team: Team
    _terms: tuple

    def advance(self, values: np.ndarray, terms: tuple | None = None) -> GradientStats:
        """Add the last trees' leaf values (float64[n_outputs, n_leaves]) to the scores; recompute gradients and Hessians."""
        self._terms = self._terms if terms is None else terms
        return reduce(GradientStats.merge, [stats for stats in self._advance_rows(values) if stats is not None])

    def map_shards(self, statistic: Statistic, *arguments: Any) -> list[Any]:
        """Return the results of all threads' rows."""
        return [one for results in self._map_rows(statistic, *arguments) for one in results]

    def grow(self, tasks: Sequence[TreeTask]) -> Iterator[GrownTree]:
        """Grow one tree after the other."""
        return map(self._grow, tasks)

    @abstractmethod
    def _advance_rows(self, values: np.ndarray) -> Sequence[GradientStats | None]:
        """Advance the rows of all threads; return their statistics by thread, None without rows."""

    @abstractmethod
    def _map_rows(self, statistic: Statistic, *arguments: Any) -> Sequence[Sequence[Any]]:
        """Compute a statistic of the rows of all threads; return the results by thread."""

    @abstractmethod
    def _grow(self, task: TreeTask) -> GrownTree:
        """Grow a tree."""


class FusedEngine(TeamEngine):
    """Train on one shard in memory.

    Parameters
    ----------
    shard : Shard
    loss_terms : NamedTuple
        The loss's record for kernels.
    policy : GrowthPolicy
    n_threads : int
    team : Team, optional
        The caller's team, which is used instead of a new one with `n_threads` threads.
    """

    def __init__(
        self,
        shard: Shard,
        loss_terms: tuple,
        *,
        policy: GrowthPolicy,
        n_threads: int = 1,
        team: Team | None = None,
    ) -> None:
        self.shard = shard
        self._terms = loss_terms
        if team is None:
            team = team_for(shard.n_rows, len(shard.bin_layout.n_bins), n_threads)
        self.team, n_threads = team, team.n_threads
        self._by_unit = (shard.bin_layout.n_tiled + TILE_COLUMNS - 1) // TILE_COLUMNS >= 2 * n_threads
        self._team_buffers = _team_buffers(shard, policy, team, self._by_unit)
        self._n_slots = min(policy.max_leaves, _SLOTS_ANY_ORDER) if policy.order == ANY_ORDER else policy.max_leaves
        self._pool: np.ndarray | None = None
        self._packed: PackedSums | None = None
        self._paths: list[FeaturePaths | None] = [None] * n_threads
        self._thread_scratch = [_thread_scratch(shard, policy, n_threads, self._n_slots) for _ in range(n_threads)]
        self._nodes = [new_node_arrays(policy.max_leaves) for _ in range(n_threads)]
        self._scratch = [new_pass_scratch() for _ in range(n_threads)]
        self._unrouted: list[tuple[Callable[[np.ndarray, int, int], None], np.ndarray]] = []
        self._has_categories = bool(shard.bin_layout.is_categorical.any())

    @property
    def n_rows(self) -> int:
        return self.shard.n_rows

    def _advance_rows(self, values: np.ndarray) -> Sequence[GradientStats]:
        unrouted, self._unrouted = self._unrouted, []

        def work(thread: int) -> GradientStats:
            for find, leaf in unrouted:
                find(leaf, *self._range(thread))
            return advance_rows(
                self.shard, self._terms, values, self.shard.spec.loss_unit, self._scratch[thread], *self._range(thread)
            )

        return self.team.run(work)

    def _map_rows(self, statistic: Statistic, *arguments: Any) -> Sequence[Sequence[Any]]:
        ranges = [self._range(thread) for thread in range(self.team.n_threads)]
        is_short = statistic.is_short
        if is_short is not None and all(is_short(self.shard, *of, *arguments) for of in ranges):
            return [[statistic.compute(self.shard, *of, *arguments)] for of in ranges]
        self.route_excluded()
        return self.team.run(lambda thread: [statistic.compute(self.shard, *ranges[thread], *arguments)])

    def route_excluded(self) -> None:
        """Assign rows that were excluded from a tree to its leaves now, and not in the next pass over all rows."""
        unrouted, self._unrouted = self._unrouted, []

        def work(thread: int) -> None:
            for find, leaf in unrouted:
                find(leaf, *self._range(thread))

        if unrouted:
            self.team.run(work)

    def _range(self, thread: int) -> tuple[int, int]:
        n, p = self.shard.n_rows, self.team.n_threads
        return n * thread // p, n * (thread + 1) // p

    def _grow(self, task: TreeTask) -> GrownTree:
        self.route_excluded()
        team, shard = self.team, self.shard
        histograms = self._histograms_for(task)
        gradient, hessian, leaf = shard.output_arrays(task.output)
        # If rows are excluded by their influence only, this happens while the gradients are quantized.
        influence = shard.influence(task.output) if task.sample is None and task.least_influence > 0 else None
        chosen = shard.sampled_rows(task.sample, task.least_influence, task.output) if influence is None else None
        n = shard.n_rows if chosen is None else len(chosen)
        rows = TreeRows(
            shard.histogram_rows, shard.bins.narrow, shard.bins.row_of, gradient, or_empty(hessian, "float32"),
            or_empty(chosen, "int64"), influence, leaf,
        )  # fmt: skip
        self._team_buffers.starts[:] = _starts(n, team.n_threads)
        team.control[:] = 0
        if task.bin_merge is not None:
            team.run(lambda thread: merge_into_bins(shard, task.bin_merge, *self._range(thread)))
        proposal_buffers = [
            None if task.node_bins is None else new_proposal_buffers(task.node_bins) for _ in range(team.n_threads)
        ]
        if task.constraints is not None and self._paths[0] is None:
            self._paths = [new_feature_paths(task.constraints, 2 * task.policy.max_leaves - 1) for _ in range(team.n_threads)]

        fused_task = FusedTask(
            task.packing, task.limits, task.policy, task.scales, task.allowed, task.least_influence, task.constraints,
            task.direction,
        )  # fmt: skip

        def work(thread: int) -> int:
            return grow_whole_tree(
                thread, rows, shard.bin_layout, fused_task, self._team_buffers, self._thread_scratch[thread],
                self._nodes[thread], self._paths[thread], proposal_buffers[thread], histograms,
            )  # fmt: skip

        n_nodes = team.run(work)[0]
        n_leaves = (n_nodes + 1) // 2
        sums = sum(scratch.leaf_sums[:n_leaves] for scratch in self._thread_scratch) / task.scales[2:]
        grown = GrownTree(
            nodes=self._nodes[0],
            n_nodes=n_nodes,
            n_leaves=n_leaves,
            n_rows=self._team_buffers.n_rows,
            leaf_of=self._team_buffers.leaf_of,
            leaf_sums=sums,
            left_codes=self._team_buffers.left_codes,
        )
        if chosen is not None or (influence is not None and EXCLUDED_FRACTION * (n - int(grown.n_rows[0])) > n):
            self._unrouted.append((assign_leaves(shard.bins, shard.bin_layout, grown), leaf))
            if task.bin_merge is not None:
                self.route_excluded()  # while the bins are those of this tree
        if task.bin_merge is not None:
            in_fine_bins(grown, task.bin_merge, shard.is_identity_bin_map)
        return grown

    def _histograms_for(self, task: TreeTask) -> LeafHistograms:
        """Return buffers for the histograms of open leaves."""
        shape = self._n_slots, int(self.shard.bin_layout.offset[-1])
        if not self._has_categories and task.can_stay_packed(self.shard.n_rows, self._by_unit):
            if self._packed is None:
                counts = np.zeros(shape if task.limits.count_channel == 2 else (0, 0), np.int64)
                self._packed = PackedSums(np.zeros(shape, np.int64), counts)
            return LeafHistograms(None, self._packed)
        if self._pool is None:
            self._pool = np.zeros((shape[0], self._team_buffers.thread_histograms.shape[1], shape[1]))
        return LeafHistograms(self._pool, None)

    def report(self) -> dict[str, float]:
        """Return no statistics."""
        return {}

    def close(self) -> None:
        self.team.close()


def is_small(n_rows: int, n_features: int) -> bool:
    return n_rows * n_features < SMALL


def team_for(n_rows: int, n_features: int, n_threads: int) -> Team:
    """Return a team for passes over a table of this size, of at most `n_threads` threads."""
    n_threads = 1 if is_small(n_rows, n_features) else n_threads
    return Team(n_threads, in_caller=n_rows * n_features < QUICK)


def _team_buffers(shard: Shard, policy: GrowthPolicy, team: Team, by_unit: bool) -> TeamBuffers:
    layout, n, p = shard.bin_layout, shard.n_rows, team.n_threads
    n_buckets = int(layout.offset[-1])
    n_nodes = 2 * policy.max_leaves - 1
    units = [*range(0, layout.n_tiled, TILE_COLUMNS), *range(layout.n_tiled, len(layout.first))]
    words = int(np.diff(layout.start[units]).max()) if by_unit else int(layout.start[-1])
    categorical = bool(layout.is_categorical.any())
    return TeamBuffers(
        control=team.control,
        by_unit=by_unit,
        records=np.empty((2, n), np.uint64),
        starts=_starts(n, p),
        packed=np.zeros((p, words), np.int64),
        thread_histograms=np.zeros((p, shard.spec.n_channels, 1 if by_unit else n_buckets)),
        flushed=np.zeros(p, np.int64),
        counts=np.zeros((2, p), np.int64),
        found=np.zeros((p, 2, SPLIT_SIZE)),
        left_codes=np.zeros((n_nodes, int(layout.n_bins.max()) + 1 if categorical else 1), np.uint8),
        n_rows=np.zeros(n_nodes, np.int64),
        leaf_of=np.zeros(n_nodes, np.int64),
        units=np.array(units, np.int64),
    )


def _starts(n: int, p: int) -> np.ndarray:
    """Return the start of each thread's records of n rows; each of p threads owns every p-th stripe."""
    owned = [sum(min(STRIPE, n - s) for s in range(t * STRIPE, n, p * STRIPE)) for t in range(p)]
    return np.concatenate(([0], np.cumsum(owned))).astype(np.int64)


def _thread_scratch(shard: Shard, policy: GrowthPolicy, n_threads: int, n_slots: int) -> ThreadScratch:
    n_nodes = 2 * policy.max_leaves - 1
    n_codes = int(shard.bin_layout.n_bins.max()) + 1
    return ThreadScratch(
        slot=np.zeros(n_nodes, np.int64),
        free=np.zeros(n_slots, np.int64),
        begin=np.zeros((n_nodes, n_threads), np.int64),
        end=np.zeros((n_nodes, n_threads), np.int64),
        side=np.zeros(n_nodes, np.int64),
        excluded=np.zeros((n_nodes, 2), np.int64),
        search=new_search_scratch(n_codes),
        goes_left=np.zeros(n_codes, np.uint8),
        leaf_sums=np.zeros((policy.max_leaves, 2)),
        stack=np.zeros(policy.max_leaves + 1, np.int64),
        best=np.zeros(SPLIT_SIZE),
        total=np.zeros(3),
    )


#: Files smaller than this (bytes) are not cached here: the page cache of the operating system has them.
WORTH_KEEPING = 32 * 2**20


class StreamedEngine(TeamEngine):
    """Train on rows in files.

    Parameters
    ----------
    blocks : BlockStore
        Its files are removed by `close`.
    loss_terms : NamedTuple
    n_threads : int
    histogram_bytes : int
        Memory for the histograms of the nodes that are opened together.
    staying_bytes : int
        Memory for these histograms and for cached blocks.
    """

    def __init__(
        self,
        blocks: BlockStore,
        loss_terms: tuple,
        *,
        n_threads: int,
        histogram_bytes: int,
        staying_bytes: int = 0,
    ) -> None:
        n_threads = max(min(n_threads, blocks.n_blocks), 1)
        self._blocks, self._terms = blocks, loss_terms
        self.team = Team(n_threads)
        n = blocks.n_blocks
        self.width = nodes_per_pass(blocks, histogram_bytes, n_threads)
        staying = blocks_that_stay(blocks, staying_bytes, self.width, n_threads)
        self.shards = [
            StreamedShard(blocks, n * t // n_threads, n * (t + 1) // n_threads, n_staying=staying, halted=self._halted)
            for t in range(n_threads)
        ]
        self._split_finder: SplitFinder | None = None
        self._reported = 0

    def _halted(self) -> bool:
        return bool(self.team.control[ABORT])

    @property
    def n_rows(self) -> int:
        return self._blocks.n_rows

    def _advance_rows(self, values: np.ndarray) -> Sequence[GradientStats | None]:
        return self.team.run(lambda t: self.shards[t].advance_rows(self._terms, values))

    def _map_rows(self, statistic: Statistic, *arguments: Any) -> Sequence[Sequence[Any]]:
        """Return one result per block, or one per thread if results can be merged."""
        return self.team.run(lambda t: self.shards[t].map_ranges(statistic, *arguments))

    def _grow(self, task: TreeTask) -> GrownTree:
        for shard in self.shards:
            shard.begin([task])
        layout = self._blocks.spec.layout
        grower = grow_tree(task, layout, self.n_rows, self.width)
        split_finder = SplitFinder(task, layout, after=self._split_finder)
        self._split_finder = split_finder
        request, pairs = next(grower)
        while True:
            merged = reduce(lambda a, b: a.merge(b), self._histograms(task.output, request))
            found = split_finder.find_best_splits(pairs, merged.histograms)
            try:
                request, pairs = grower.send(RoundResult(found, merged.n_rows, merged.leaf_sums))
            except StopIteration as end:
                return end.value

    def _histograms(self, output: int, request: RoundRequest) -> Sequence[Any]:
        return self.team.run(lambda t: self.shards[t].sum_histograms(output, request))

    def report(self) -> dict[str, float]:
        """Return the bytes read from files since the last call."""
        before, self._reported = self._reported, sum(shard.bytes_read for shard in self.shards)
        return {"bytes_read": self._reported - before}

    def close(self) -> None:
        self.team.close()
        for shard in self.shards:
            shard.close()
        self._blocks.close()


def nodes_per_pass(blocks: BlockStore, n_bytes: int, n_threads: int) -> int:
    """Return how many nodes may be opened in one pass, with `n_bytes` of memory for histograms.

    Each thread has packed buckets and a histogram for each of them, and the summed histograms of leaves are kept.
    """
    layout, spec = blocks.spec.layout, blocks.spec
    histogram_bytes = 8 * spec.n_channels * int(layout.offset[-1])
    kept = histogram_bytes * spec.max_leaves  # a lower bound: speculation keeps more histograms
    each = n_threads * (histogram_bytes + 8 * int(layout.start[-1])) + histogram_bytes
    return int(min(max((n_bytes - kept) // each, 1), max(spec.max_leaves, 1)))


def blocks_that_stay(blocks: BlockStore, n_bytes: int, width: int, n_threads: int) -> int:
    """Return how many blocks of each thread may stay in memory, in addition to the histograms of `width` nodes."""
    layout, spec = blocks.spec.layout, blocks.spec
    if sum(file.stride * file.n_blocks for file in blocks.files) < WORTH_KEEPING:
        return 0
    histogram_bytes = 8 * spec.n_channels * int(layout.offset[-1])
    # `kept`: summed histograms of all opened nodes, twice while the buffer grows. `each`: a node in one pass, threads and sum.
    kept = 2 * histogram_bytes * spec.max_leaves * (MOST_OPENED if spec.speculates else 1)
    each = n_threads * (histogram_bytes + 8 * int(layout.start[-1])) + 2 * histogram_bytes
    spare = n_bytes - kept - width * each
    return max(spare, 0) // (n_threads * sum(file.stride for file in blocks.files))
