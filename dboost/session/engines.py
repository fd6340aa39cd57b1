"""The engines of this process.

`FusedEngine` has its rows in memory: one shard, a team of threads, one compiled call per tree.

`StreamedEngine` has its rows in files: one streamed shard per thread, and all threads process a request at the same time. Trees
grow in rounds (`trees.tree_rounds`), each of which is a pass over the files. So a round opens as many nodes as the memory for
their histograms allows. The remaining memory caches blocks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from dboost.kernels import or_empty
from dboost.kernels.histograms import TILE_COLUMNS, PackedSums
from dboost.kernels.rows import STRIPE
from dboost.kernels.simd import ABORT
from dboost.kernels.splits import SPLIT_SIZE, new_search_scratch
from dboost.losses.gradient_pass import new_pass_scratch
from dboost.session.memory import blocks_that_stay, nodes_per_pass
from dboost.session.thread_team import Team, team_for
from dboost.shards.shard import RowIds, Shard, advance_rows, assign_leaves, merge_into_bins
from dboost.shards.shard_blocks import ShardBlocks
from dboost.shards.shard_spec import ShardSpec
from dboost.shards.statistics import Statistic
from dboost.shards.streamed_grower import StreamedGrower
from dboost.storage.row_store import RowStore
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
from dboost.trees.grower import Round, RoundHistograms, RoundRequest
from dboost.trees.split_finder import FeaturePaths, new_feature_paths
from dboost.trees.tree_rounds import GrowOrder, TreeRounds
from dboost.trees.tree_task import ANY_ORDER, GradientStats, GrownTree, GrowthPolicy, TreeTask, new_node_arrays

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


class StreamedEngine(TeamEngine):
    """Train on rows in files.

    Parameters
    ----------
    store : RowStore
        In files, which are removed by `close`.
    spec : ShardSpec
    ids : RowIds
    loss_terms : NamedTuple
    n_threads : int
    histogram_bytes : int
        Memory for the histograms of the nodes that are opened together.
    staying_bytes : int
        Memory for these histograms and for cached blocks.
    """

    def __init__(
        self,
        store: RowStore,
        spec: ShardSpec,
        ids: RowIds,
        loss_terms: tuple,
        *,
        n_threads: int,
        histogram_bytes: int,
        staying_bytes: int = 0,
    ) -> None:
        n_threads = max(min(n_threads, store.n_blocks), 1)
        self._store, self._layout, self._terms = store, spec.layout, loss_terms
        self.team = Team(n_threads)
        self.width = nodes_per_pass(spec, histogram_bytes, n_threads)
        staying = blocks_that_stay(store, spec, staying_bytes, self.width, n_threads)
        self.rows = [
            ShardBlocks(store, spec, ids, thread, n_threads, n_staying=staying, halted=self._halted)
            for thread in range(n_threads)
        ]
        self._growers = [StreamedGrower(rows) for rows in self.rows]
        self._rounds = TreeRounds()
        self._reported = 0

    def _halted(self) -> bool:
        return bool(self.team.control[ABORT])

    @property
    def n_rows(self) -> int:
        return self._store.n_rows

    def _advance_rows(self, values: np.ndarray) -> Sequence[GradientStats | None]:
        return self.team.run(lambda t: self.rows[t].advance_rows(self._terms, values))

    def _map_rows(self, statistic: Statistic, *arguments: Any) -> Sequence[Sequence[Any]]:
        """Return one result per block, or one per thread if results can be merged."""
        return self.team.run(lambda t: self.rows[t].map_ranges(statistic, *arguments))

    def _grow(self, task: TreeTask) -> GrownTree:
        layout = self._layout
        order = GrowOrder((task,), layout, np.ones(len(layout.n_bins), bool), self.n_rows, self.width)
        return self._rounds.grow_trees(self, order)[0]

    def run_round(self, tasks: Sequence[TreeTask], rounds: Mapping[int, Round]) -> tuple[Mapping[int, RoundHistograms], None]:
        """See `RoundCalls`."""
        if tasks:
            for grower in self._growers:
                grower.begin(tasks)
        return {
            output: reduce(RoundHistograms.merge, self._histograms(output, ask)) for output, (ask, _) in rounds.items()
        }, None

    def _histograms(self, output: int, request: RoundRequest) -> Sequence[Any]:
        return self.team.run(lambda t: self._growers[t].sum_histograms(output, request))

    def report(self) -> dict[str, float]:
        """Return the bytes read from files since the last call."""
        before, self._reported = self._reported, sum(rows.bytes_read for rows in self.rows)
        return {"bytes_read": self._reported - before}

    def close(self) -> None:
        self.team.close()
        for grower, rows in zip(self._growers, self.rows, strict=True):
            grower.close()
            rows.close()
        self._store.close()
