"""Whole trees on one shard in memory: a team of threads, one compiled call per tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from dboost.kernels import or_empty
from dboost.kernels.histograms import (
    PAIR,
    ROOT_BUCKETS,
    ROOT_ROWS,
    TILE_COLUMNS,
    BinLayout,
    Histograms,
    PackedSums,
    add_changes,
    add_roots,
    new_change_scratch,
)
from dboost.kernels.rows import STRIPE, add_sizes
from dboost.kernels.simd import VECTOR
from dboost.kernels.split_search import SplitSearch
from dboost.kernels.splits import SPLIT_SIZE, SearchScratch, new_search_scratch
from dboost.kernels.threads import Team
from dboost.rows.shard import Shard
from dboost.trees.apply_trees import assign_leaves
from dboost.trees.bin_proposal import in_fine_bins, new_proposal_buffers
from dboost.trees.fit_trees import GrownTree
from dboost.trees.fused_grower import (
    EXCLUDED_FRACTION,
    FusedTask,
    TeamBuffers,
    ThreadScratch,
    TreeRows,
    grow_whole_tree,
)
from dboost.trees.split_finder import FeaturePaths, new_feature_paths
from dboost.trees.tree_task import ANY_ORDER, GrowthPolicy, NodeArrays, TreeTask, new_node_arrays
from dboost.tuning import tuning

#: With ANY_ORDER the number of open leaves is at most the logarithm of the sum of the Hessians.
_SLOTS_ANY_ORDER = 64
#: Of more rows the sums never fit in packed histograms, unless nearly all gradients are tiny.
_MOST_ROWS_PACKED = 1 << 20


class WholeTreeGrower:
    """Grows whole trees on rows in memory.

    Rows that are excluded from a tree are assigned to its leaves in the next pass over all rows (`TrainingRows.unrouted`).

    Parameters
    ----------
    rows : TrainingRows
        Those of all sessions.
    """

    def __init__(self, rows: Any) -> None:
        self._rows, self.shard, self.team, self._shared = rows, rows.shard, rows.team, rows.shared
        self._by_unit = (self.shard.bin_layout.n_tiled + TILE_COLUMNS - 1) // TILE_COLUMNS >= 2 * self.team.n_threads
        self._has_categories = bool(self.shard.bin_layout.is_categorical.any())
        self._buffers: _Buffers | None = None
        self._steady: dict[int, _SteadyRoot] = {}
        self._sums_fit = True  # whether the sums over all rows fit in packed histograms, as far as is known

    def _ranges(self, thread: int) -> list[tuple[int, int]]:
        return self.shard.ranges(thread, self.team.n_threads)

    def grow_trees(self, tasks: Sequence[TreeTask]) -> Iterator[GrownTree]:
        """Grow the trees of an iteration, each when it is requested."""
        for first in range(0, len(tasks), VECTOR):
            some = tasks[first : first + VECTOR]
            roots = self._roots(some) if self._have_roots_together(some) else [None] * len(some)
            yield from map(self.grow_tree, some, roots)

    def _have_roots_together(self, tasks: Sequence[TreeTask]) -> bool:
        """Return whether the root histograms of trees are added up together: of all rows and feature by feature, in the time of
        two or three trees. So it does not pay if many features share columns. In wide tables it would need much memory.
        """
        shard, layout = self.shard, self.shard.bin_layout
        n_columns = len(layout.first) - 1
        return (
            len(tasks) > 2
            and tasks[-1].output - tasks[0].output == len(tasks) - 1
            and shard.repeat_count is None
            and not self._by_unit
            and layout.n_tiled == n_columns >= 0.8 * len(layout.n_bins)
            and shard.n_rows >= tuning().joint_root_rows
            and all(map(self._has_all_rows, tasks))
            and not any(map(self._is_steady, tasks))
        )

    def _has_all_rows(self, task: TreeTask) -> bool:
        """Return whether all rows of the shard take part in a tree, with the bins that all trees have."""
        is_whole = task.sample is None and not task.least_influence and task.bin_merge is None
        return is_whole and self.shard.segments is None

    def _is_steady(self, task: TreeTask) -> bool:
        """Return whether the root histogram of a tree follows from that of the tree before in less time."""
        spec, n_cells = self.shard.spec, self.shard.n_rows * (len(self.shard.bin_layout.first) - 1)
        return spec.steady_gradients and spec.width == 1 and n_cells >= tuning().steady_values and self._has_all_rows(task)

    def _roots(self, tasks: Sequence[TreeTask]) -> list[np.ndarray]:
        """Return the root histograms of trees of consecutive outputs: float64[n_channels, n_buckets] of each."""
        shard, outputs = self.shard, slice(tasks[0].output, tasks[-1].output + 1)
        hessian = np.empty((len(tasks), 0), np.float32) if shard.hessian is None else shard.hessian[outputs]
        scales, n_features = np.array([task.scales[:2] for task in tasks]), len(shard.bin_layout.n_bins)

        def work(thread: int) -> np.ndarray:
            words = np.zeros(ROOT_ROWS * VECTOR, np.int64)
            found = np.zeros((2, n_features * ROOT_BUCKETS * VECTOR))
            for first, last in self._ranges(thread):
                for begin in range(first, last, PAIR.rows):  # the sums of more rows may need more than half a word
                    sums = np.zeros(found.shape[1], np.int64)
                    part = begin, min(begin + PAIR.rows, last)
                    add_roots(shard.gradient[outputs], hessian, scales, shard.bins, *part, words, sums)
                    found += sums >> 32, sums & 0xFFFFFFFF
            return found

        sums = sum(self.team.run(work)).reshape(2, -1, VECTOR)[:, self._root_buckets]
        roots = [sums[:, :, k] for k in range(len(tasks))]
        return roots if shard.spec.n_channels == 2 else [np.concatenate((root, self._root_counts[None])) for root in roots]

    @cached_property
    def _root_buckets(self) -> np.ndarray:
        """Where the buckets of histograms are among those of `add_roots`: int64[n_buckets]."""
        n_codes = (self.shard.bin_layout.n_bins + 1).tolist()
        return np.concatenate([feature * ROOT_BUCKETS + np.arange(n) for feature, n in enumerate(n_codes)])

    @cached_property
    def _root_counts(self) -> np.ndarray:
        """The numbers of rows by bucket, if all rows take part: float64[n_buckets]."""
        columns, n_codes = self.shard.bins.columns(), (self.shard.bin_layout.n_bins + 1).tolist()
        return np.concatenate([np.bincount(of, minlength=n) for of, n in zip(columns, n_codes, strict=True)]).astype(np.float64)

    def _steady_root(self, task: TreeTask) -> np.ndarray:
        """Return the root histogram of a tree, float64[n_channels, n_buckets]: that of the tree before and its changes."""
        shard, layout = self.shard, self.shard.bin_layout
        gradient, hessian, _ = shard.output_arrays(task.output)
        # Without one that is half changed, should this be interrupted.
        before = self._steady.pop(task.output, None)
        is_first = before is None or before.hessian_scale != task.scales[1]
        if before is None or is_first:
            none = np.zeros((shard.spec.n_channels, int(layout.offset[-1])))
            before = _SteadyRoot(none, np.zeros(shard.n_rows, np.int16), float(task.scales[1]))
        sums, known = before.sums, before.known
        added = layout, task.packing if is_first else task.packing._replace(one=0)

        def work(thread: int) -> np.ndarray:
            scratch, changes, rows = new_change_scratch(layout), np.zeros_like(sums), shard.histogram_rows
            of_rows, into = or_empty(hessian, "float32"), Histograms(changes[None], None)
            for of in self._ranges(thread):
                add_changes(rows, gradient, of_rows, task.scales, known, is_first, of, added, scratch, into)
            return changes

        for changes in self.team.run(work):
            sums += changes
        self._steady[task.output] = before
        return sums

    def grow_tree(self, task: TreeTask, root: np.ndarray | None = None) -> GrownTree:
        """Grow a tree. root : its root histogram, if that is known (`_roots`)."""
        self._rows.route_excluded()
        if root is None and self._is_steady(task):
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
        team, shard = self.team, self.shard
        buffers.of_team = buffers.of_team._replace(control=team.control)
        histograms = self._histograms_for(task, buffers)
        if root is not None:
            _set_root(histograms, root, shard.bin_layout)
        gradient, hessian, leaf = shard.split_arrays(task.output)
        # If rows are excluded by their influence only, this happens while the gradients are quantized.
        by_influence = task.sample is None and task.least_influence > 0 and shard.segments is None
        influence = shard.influence(task.output) if by_influence else None
        chosen = None
        if influence is None:
            chosen = shard.grown_rows(task.sample, task.least_influence, task.output, into=buffers.rows)
        n = shard.n_rows if chosen is None else len(chosen)
        rows = TreeRows(
            shard.histogram_rows, shard.bins.narrow, shard.bins.row_of, gradient, or_empty(hessian, "float32"),
            or_empty(chosen, "int64"), influence, leaf,
        )  # fmt: skip
        buffers.of_team.starts[:] = _starts(n, team.n_threads)
        team.control[:] = 0
        self._rows.merge_bins([task])
        if task.constraints is not None and buffers.paths[0] is None:
            buffers.paths = [new_feature_paths(task.constraints, 2 * task.policy.max_leaves - 1) for _ in range(team.n_threads)]

        packing = task.packing
        if histograms.packed is not None and task.limits.count_channel != 2:
            packing = packing._replace(rows=n + 1)  # buckets without counts hold the sums of all rows
        fused_task = FusedTask(
            packing, task.policy, task.scales, task.allowed, task.least_influence, task.constraints, root is not None
        )

        def work(thread: int) -> int:
            proposal = None if task.node_bins is None else new_proposal_buffers(task.node_bins)
            search = SplitSearch(task.limits, task.direction, proposal, buffers.search[thread])
            return grow_whole_tree(
                thread, rows, shard.bin_layout, fused_task, buffers.of_team, buffers.of_threads[thread],
                buffers.nodes[thread], buffers.paths[thread], search, histograms,
            )  # fmt: skip

        n_nodes = team.run(work)[0]
        n_leaves = (n_nodes + 1) // 2
        sums = sum(scratch.leaf_sums[:n_leaves] for scratch in buffers.of_threads) / task.scales[2:]
        shared, layout = buffers.of_team, shard.bin_layout
        tree = GrownTree.of(
            task,
            buffers.nodes[0],
            shared.n_rows[:n_nodes].copy(),
            shared.leaf_of,
            sums,
            shared.left_codes,
            layout.is_categorical,
        )
        if n < shard.n_trained or (influence is not None and EXCLUDED_FRACTION * (n - tree.n_rows) > n):
            self._rows.unrouted.append((assign_leaves(shard.bins, layout, tree), leaf))
            if task.bin_merge is not None:
                self._rows.route_excluded()  # while the bins are those of this tree
        if task.bin_merge is not None:
            in_fine_bins(tree, task.bin_merge, shard.is_identity_bin_map)
        return tree

    def _stays_packed(self, task: TreeTask) -> bool:
        """Return whether histograms of numeric features may stay packed. Trees after one for which they may not do not try."""
        n_rows = self.shard.n_trained
        if task.can_stay_packed(n_rows):
            return True
        if not self._sums_fit or n_rows > _MOST_ROWS_PACKED or not task.has_plain_gain:
            return False
        gradient, hessian, _ = self.shard.split_arrays(task.output)
        repeat_count, sizes = or_empty(self.shard.repeat_count, "uint8"), np.zeros(3, np.int64)
        for some in (slice(*of) for of in self.shard.ranges()):
            add_sizes(gradient[some], or_empty(hessian, "float32")[some], repeat_count[some], task.scales, sizes)
        self._sums_fit = task.can_stay_packed_by(sizes)
        return self._sums_fit

    def _histograms_for(self, task: TreeTask, buffers: _Buffers) -> Histograms:
        """Return buffers for the histograms of open leaves."""
        # Threads that divide rows have slots of their own, into which they flush.
        n_slots = buffers.n_slots + (0 if self._by_unit else self.team.n_threads)
        n_buckets = int(self.shard.bin_layout.offset[-1])
        if not self._has_categories and self._stays_packed(task):
            if buffers.packed is None:
                counts = np.zeros((n_slots, n_buckets) if task.limits.count_channel == 2 else (0, 0), np.int64)
                buffers.packed = PackedSums(np.zeros((n_slots, n_buckets), np.int64), counts)
            return Histograms(None, buffers.packed)
        if buffers.pool is None:
            buffers.pool = np.zeros((n_slots, self.shard.spec.n_channels, n_buckets))
        return Histograms(buffers.pool, None)


@dataclass(eq=False)
class _SteadyRoot:
    """The root histogram of the last tree of an output."""

    sums: np.ndarray  # float64[n_channels, n_buckets]
    known: np.ndarray  # int16[n_rows]: the quantised gradients in it
    hessian_scale: float  # of the Hessians in it


def _set_root(histograms: Histograms, root: np.ndarray, layout: BinLayout) -> None:
    """Write a root histogram (float64[n_channels, n_buckets]) into the first slot, which the root has."""
    if histograms.by_channel is not None:
        histograms.by_channel[0] = root
    if histograms.packed is not None:
        gradient, hessian = root[:2].astype(np.int64)
        histograms.packed.sums[0] = _prefix_sums((gradient << 32) + hessian, layout)
        if histograms.packed.counts.size:
            histograms.packed.counts[0] = _prefix_sums(root[2].astype(np.int64), layout)


def _prefix_sums(buckets: np.ndarray, layout: BinLayout) -> np.ndarray:
    """Return the sums of the buckets of each feature up to each of them: int64[n_buckets]."""
    sums, first = buckets.cumsum(), layout.offset[:-1]
    return sums - np.repeat(sums[first] - buckets[first], np.diff(layout.offset))


@dataclass(eq=False)
class _Buffers:
    """Buffers of a team for trees of one growth policy."""

    of_team: TeamBuffers
    of_threads: list[ThreadScratch]
    nodes: list[NodeArrays]  # by thread
    search: list[SearchScratch]  # by thread
    n_slots: int  # most leaves that are open at the same time
    paths: list[FeaturePaths | None]  # by thread
    rows: np.ndarray  # int64[n_rows], for the rows that a fold trains on; empty without folds
    pool: np.ndarray | None = None  # histograms of open leaves
    packed: PackedSums | None = None  # or these, see `TreeTask.can_stay_packed`

    @classmethod
    def of(cls, shard: Shard, policy: GrowthPolicy, team: Team, by_unit: bool) -> _Buffers:
        n_threads = team.n_threads
        n_slots = min(policy.max_leaves, _SLOTS_ANY_ORDER) if policy.order == ANY_ORDER else policy.max_leaves
        return cls(
            of_team=_team_buffers(shard, policy, team, by_unit),
            of_threads=[_thread_scratch(shard, policy, n_threads, n_slots) for _ in range(n_threads)],
            nodes=[new_node_arrays(policy.max_leaves) for _ in range(n_threads)],
            search=[new_search_scratch(int(shard.bin_layout.n_bins.max()) + 1) for _ in range(n_threads)],
            n_slots=n_slots,
            paths=[None] * n_threads,
            rows=np.empty(0 if shard.segments is None else shard.n_rows, np.int64),
        )


def _team_buffers(shard: Shard, policy: GrowthPolicy, team: Team, by_unit: bool) -> TeamBuffers:
    layout, n, p = shard.bin_layout, shard.n_rows, team.n_threads
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
    n_codes = int(shard.bin_layout.n_bins.max()) + 1
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
    )
