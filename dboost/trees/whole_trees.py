"""Whole trees on one shard in memory: a team of threads, one compiled call per tree."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dboost.kernels import or_empty
from dboost.kernels.histograms import TILE_COLUMNS, Histograms, Levels, PackedSums
from dboost.kernels.rows import STRIPE, add_sizes
from dboost.kernels.split_search import SplitSearch
from dboost.kernels.splits import SPLIT_SIZE, SearchScratch, new_search_scratch
from dboost.kernels.threads import Team
from dboost.rows.bin_proposal import new_proposal_buffers
from dboost.rows.shard import Shard
from dboost.trees.apply_trees import assign_leaves
from dboost.trees.fit_trees import GrownTree
from dboost.trees.grower_rows import GrowerRows
from dboost.trees.split_finder import FeaturePaths, new_feature_paths
from dboost.trees.steady_roots import SteadyRoots, set_root
from dboost.trees.tree_task import ANY_ORDER, GrowthPolicy, NodeArrays, TreeTask, new_node_arrays
from dboost.trees.whole_tree_kernel import (
    ROUTES_EXCLUDED,
    STATE_SIZE,
    Growth,
    TeamBuffers,
    ThreadScratch,
    TreeRows,
    WholeTreeTask,
    grow_whole_tree,
)
from dboost.tuning import tuning

#: With ANY_ORDER the number of open leaves is at most the logarithm of the sum of the Hessians.
_SLOTS_ANY_ORDER = 64
#: Of more rows the sums never fit in packed histograms, unless nearly all gradients are tiny.
_MOST_ROWS_PACKED = 1 << 20


class WholeTrees:
    """Grows whole trees on rows in memory.

    Rows that are excluded from a tree are assigned to its leaves in the next pass over all rows (`TrainingRows.unrouted`).

    Parameters
    ----------
    rows : TrainingRows
        All rows of the fit.
    shard : Shard
        `TrainingRows.shard`.
    """

    def __init__(self, rows: GrowerRows, shard: Shard) -> None:
        self._rows, self.shard, self.team, self._shared = rows, shard, rows.shares.team, rows.shared
        self._by_unit = (self.shard.tree_layout.n_tiled + TILE_COLUMNS - 1) // TILE_COLUMNS >= 2 * self.team.n_threads
        self._buffers: _Buffers | None = None
        self._steady: SteadyRoots | None = None
        self._sums_fit = True  # whether the sums over all rows fit in packed histograms, as far as is known

    def _steady_root(self, task: TreeTask) -> np.ndarray | None:
        """Return the root histogram of a tree if it follows from that of the tree before in less time, else None."""
        shard, spec = self.shard, self.shard.spec
        if not spec.steady_gradients or spec.width > 1 or shard.segments is not None:
            return None
        n_cells = shard.n_rows * (len(shard.tree_layout.first) - 1)
        has_all_rows = task.sample is None and not task.least_influence and task.bin_merge is None
        if n_cells < tuning().steady_values or not has_all_rows:
            return None
        if self._steady is None:
            self._steady = SteadyRoots(shard, self.team)
        return self._steady.root(task)

    def grow_tree(self, task: TreeTask) -> GrownTree:
        """Grow a tree."""
        self._rows.route_excluded()
        root = self._steady_root(task)

        def make() -> _Buffers:
            return _Buffers.of(self.shard, task.policy, self.team, self._by_unit)

        if self._shared is not None:
            shape = task.policy, task.limits.count_channel, self.shard.spec.n_channels, self.team.n_threads, self._by_unit
            with self._shared.buffers(shape, make) as lent:
                return self._grow(task, lent, root)
        if self._buffers is None:
            self._buffers = make()
        return self._grow(task, self._buffers, root)

    def _grow(self, task: TreeTask, buffers: _Buffers, root: np.ndarray | None) -> GrownTree:
        team, shard, layout = self.team, self.shard, self.shard.tree_layout
        if buffers.shared.control is not team.control:  # the buffers were another team's
            buffers.shared = buffers.shared._replace(control=team.control)
        shared = buffers.shared
        histograms = self._histograms_for(task, buffers)
        if root is not None:
            set_root(histograms, root, layout)
        rows, n = self._tree_rows(task, buffers)
        shared.starts[:] = _starts(n, team.n_threads)
        team.control[:] = 0
        self._rows.merge_bins([task])
        if task.constraints is not None and buffers.paths[0] is None:
            buffers.paths = [new_feature_paths(task.constraints, 2 * task.policy.max_leaves - 1) for _ in range(team.n_threads)]
        packing = task.packing
        if histograms.packed is not None and task.limits.count_channel != 2:
            packing = packing._replace(rows=n + 1)  # buckets without counts hold the sums of all rows
        fused_task = WholeTreeTask(packing, task.policy, task.scales, task.allowed, task.constraints, root is not None)

        def work(thread: int) -> int:
            proposal = None if task.node_bins is None else new_proposal_buffers(task.node_bins)
            search = SplitSearch(task.limits, task.direction, proposal, buffers.search[thread])
            growth = Growth(
                thread, rows, layout, fused_task, shared, buffers.scratch[thread], buffers.nodes[thread],
                buffers.paths[thread], search, histograms,
            )  # fmt: skip
            return grow_whole_tree(growth)

        n_nodes = team.run(work)[0]
        n_leaves = (n_nodes + 1) // 2
        counts, is_categorical = shared.n_rows[:n_nodes].copy(), layout.is_categorical
        sums = sum(scratch.leaf_sums[:n_leaves] for scratch in buffers.scratch) / task.scales[2:]
        tree = GrownTree.of(task, buffers.nodes[0], counts, shared.leaf_of, sums, shared.left_codes, is_categorical)
        if rows.marks.size and not buffers.scratch[0].state[ROUTES_EXCLUDED]:
            self._rows.unrouted.append((assign_leaves(shard.tree_codes, layout, tree), rows.leaf))
            if task.bin_merge is not None:
                self._rows.route_excluded()  # while the bins are those of this tree
        tree.use_fine_bins(task.bin_merge, shard.spec.is_identity_bin_map)
        return tree

    def _tree_rows(self, task: TreeTask, buffers: _Buffers) -> tuple[TreeRows, int]:
        """Return the rows of a tree, and the number of rows whose gradients are quantized."""
        shard, chosen, marks = self.shard, None, self.shard.tree_marks(*task.row_subset)
        gradient, hessian, leaf = shard.split_arrays(task.output)
        if marks is None and shard.segments is not None:
            # The second buffer of records is free until the root is split, after the rows have been read.
            chosen = shard.segments.positions(buffers.shared.records[1].view(np.int64))
        codes, hessian = shard.tree_codes, or_empty(hessian, "float32")
        rows = TreeRows(
            shard.histogram_rows, codes.narrow, codes.row_of, gradient, hessian, or_empty(chosen, "int64"),
            or_empty(marks, "uint8"), leaf,
        )  # fmt: skip
        return rows, shard.n_rows if chosen is None else len(chosen)

    def _stays_packed(self, task: TreeTask) -> bool:
        """Return whether histograms may stay packed. Trees after one for which they may not do not try."""
        n_rows = self.shard.n_trained
        if task.can_stay_packed(n_rows):
            return True
        if not self._sums_fit or n_rows > _MOST_ROWS_PACKED or not task.has_plain_gain:
            return False
        gradient, hessian, _ = self.shard.split_arrays(task.output)
        repeat_count, sizes = or_empty(self.shard.repeat_count, "uint8"), np.zeros(3, np.int64)
        for first, last in self.shard.ranges():
            part = slice(first, last)
            add_sizes(gradient[part], or_empty(hessian, "float32")[part], repeat_count[part], task.scales, sizes)
        self._sums_fit = task.can_stay_packed_by(sizes)
        return self._sums_fit

    def _histograms_for(self, task: TreeTask, buffers: _Buffers) -> Histograms:
        """Return buffers for the histograms of open leaves."""
        # Threads that divide rows have slots of their own, into which they flush.
        n_slots = buffers.n_slots + (0 if self._by_unit else self.team.n_threads)
        layout = self.shard.tree_layout
        n_buckets = int(layout.offset[-1])
        if self._stays_packed(task):
            if buffers.packed is None:
                counts = np.zeros((n_slots, n_buckets) if task.limits.count_channel == 2 else (0, 0), np.int64)
                levels = None
                if layout.is_categorical.any():
                    codes, n_features = np.zeros((n_slots, n_buckets), np.int32), len(layout.n_bins)
                    levels = Levels(codes, np.zeros((n_slots, n_features), np.int64), np.zeros(1, np.int64))
                buffers.packed = PackedSums(np.zeros((n_slots, n_buckets), np.int64), counts, levels)
            return Histograms(None, buffers.packed)
        if buffers.pool is None:
            buffers.pool = np.zeros((n_slots, self.shard.spec.n_channels, n_buckets))
        return Histograms(buffers.pool, None)


@dataclass(eq=False)
class _Buffers:
    """Buffers of a team for trees of one growth policy."""

    shared: TeamBuffers
    scratch: list[ThreadScratch]  # by thread
    nodes: list[NodeArrays]  # by thread
    search: list[SearchScratch]  # by thread
    n_slots: int  # most leaves that are open at the same time
    paths: list[FeaturePaths | None]  # by thread
    pool: np.ndarray | None = None  # histograms of open leaves
    packed: PackedSums | None = None  # or these, see `TreeTask.can_stay_packed`

    @classmethod
    def of(cls, shard: Shard, policy: GrowthPolicy, team: Team, by_unit: bool) -> _Buffers:
        n_threads = team.n_threads
        n_slots = min(policy.max_leaves, _SLOTS_ANY_ORDER) if policy.order == ANY_ORDER else policy.max_leaves
        return cls(
            shared=_team_buffers(shard, policy, team, by_unit),
            scratch=[_thread_scratch(shard, policy, n_threads, n_slots) for _ in range(n_threads)],
            nodes=[new_node_arrays(policy.max_leaves) for _ in range(n_threads)],
            search=[new_search_scratch(int(shard.tree_layout.n_bins.max()) + 1) for _ in range(n_threads)],
            n_slots=n_slots,
            paths=[None] * n_threads,
        )


def _team_buffers(shard: Shard, policy: GrowthPolicy, team: Team, by_unit: bool) -> TeamBuffers:
    layout, n, p = shard.tree_layout, shard.n_rows, team.n_threads
    n_nodes = 2 * policy.max_leaves - 1
    units = [*range(0, layout.n_tiled, TILE_COLUMNS), *range(layout.n_tiled, len(layout.first))]
    words = int(np.diff(layout.start[units]).max()) if by_unit else int(layout.start[-1])
    categorical = bool(layout.is_categorical.any())
    return TeamBuffers(
        control=team.control,
        by_unit=by_unit,
        records=np.empty((2, n), np.uint64),
        starts=_starts(n, p).copy(),
        packed=np.zeros((p, words), np.int64),
        flushed=np.zeros(p, np.int64),
        counts=np.zeros((2, p), np.int64),
        best=np.zeros((p, 2, SPLIT_SIZE)),
        left_codes=np.zeros((n_nodes, int(layout.n_bins.max()) + 1 if categorical else 1), np.uint8),
        n_rows=np.zeros(n_nodes, np.int64),
        leaf_of=np.zeros(n_nodes, np.int64),
        units=np.array(units, np.int64),
    )


@lru_cache(maxsize=16)  # trees of all rows have the same
def _starts(n: int, p: int) -> np.ndarray:
    """Return the start of each thread's records of n rows; each of p threads owns every p-th stripe. Not to be written to."""
    owned = [sum(min(STRIPE, n - s) for s in range(t * STRIPE, n, p * STRIPE)) for t in range(p)]
    return np.concatenate(([0], np.cumsum(owned))).astype(np.int64)


def _thread_scratch(shard: Shard, policy: GrowthPolicy, n_threads: int, n_slots: int) -> ThreadScratch:
    n_nodes = 2 * policy.max_leaves - 1
    n_codes = int(shard.tree_layout.n_bins.max()) + 1
    return ThreadScratch(
        slot=np.zeros(n_nodes, np.int64),
        free=np.zeros(n_slots, np.int64),
        begin=np.zeros((n_nodes, n_threads), np.int64),
        end=np.zeros((n_nodes, n_threads), np.int64),
        side=np.zeros(n_nodes, np.int64),
        excluded=np.zeros((n_nodes, 2), np.int64),
        goes_left=np.zeros(n_codes, np.uint8),
        leaf_sums=np.zeros((policy.max_leaves, 2)),
        stack=np.zeros(policy.max_leaves + 1, np.int64),
        total=np.zeros(3),
        state=np.zeros(STATE_SIZE, np.int64),
    )
