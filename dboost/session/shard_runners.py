"""Shard runners: rows of a session with their state between calls, for trees that are grown in rounds.

A `ShardRunner` has one thread's share of the blocks of a row store: rows in memory, which are one block, or in files if they
exceed the memory limit of the fit. Everything is done block by block; only the growth of trees depends on where the rows are.
In memory, records of the rows move from node to node (`ShardGrower`), and a session that has all rows of a fit grows whole
trees with a team of threads (`WholeTreeGrower`); in files, each round is a pass over the blocks (`StreamedGrower`). Files are
in the worker's local directory and are removed together with the last runner that uses them.

A runner that is built after training has started replays the trees so far. A runner can drop the rows of partitions that
another session has now. Both give the same sums as an uninterrupted fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dboost.losses.projection import ProjectedTerms
from dboost.session.batch_rows import StartingRows
from dboost.session.calls import BuildSpec, ReplayState
from dboost.session.memory import Budget, blocks_that_stay, nodes_per_pass, tree_bytes, trees_per_pass
from dboost.session.thread_team import Team
from dboost.session.whole_tree_grower import WholeTreeGrower
from dboost.shards.apply_trees import add_iterations, leaves_of
from dboost.shards.shard import Shard
from dboost.shards.shard_blocks import ShardBlocks
from dboost.shards.shard_grower import ShardGrower
from dboost.shards.shard_spec import ShardSpec
from dboost.shards.statistics import Statistic
from dboost.shards.streamed_grower import StreamedGrower
from dboost.shards.tree_means import SUMS, ValuesOf, add_values, rows_out_of_bag, values_of_leaves, values_of_trees
from dboost.storage.row_store import RowStore
from dboost.trees.grower import RoundHistograms, RoundRequest
from dboost.trees.tree_task import GradientStats, GrownTree, Sample, TreeTask


class PassWidth(NamedTuple):
    """What memory allows in one pass over files."""

    n_leaves: int  # that may be opened in each tree
    n_trees: int  # that may grow


GivenLeaves = Callable[[np.ndarray, int], np.ndarray]


class ShardRunner:
    """Rows with their state between calls.

    Parameters
    ----------
    rows : ShardBlocks
        Of one batch.
    batch : str
    spec : BuildSpec
    past : ReplayState or None
        What has been trained before; None if the state of the rows includes it.
    team : Team, optional
        Threads that share the work on rows in memory, and grow whole trees if these are all rows of the fit.
    given_leaves : callable, optional
        Returns the leaves of rows in the trees of an iteration of `BuildSpec.given`, given their values: int32[n_trees, n].

    Attributes
    ----------
    applied : int
        Number of the last `advance`, -1 before the first.
    stats : GradientStats or None
        Statistics of the gradients after the last `advance`.
    """

    def __init__(
        self,
        rows: ShardBlocks,
        batch: str,
        spec: BuildSpec,
        past: ReplayState | None,
        team: Team | None = None,
        given_leaves: GivenLeaves | None = None,
    ) -> None:
        self.rows, self.batch, self.applied = rows, batch, -1
        self.stats: GradientStats | None = None
        self._spec, self._team, self._given_leaves = spec, team, given_leaves
        self._n_added = spec.warm_start.n_before  # iterations of a forest in the sums of the rows
        self._whole = None if team is None else WholeTreeGrower(rows.shard, team, rows.shared)
        if past is not None:
            self._replay(past)

    @property
    def n_rows(self) -> int:
        return self.rows.n_rows

    @property
    def has_team(self) -> bool:
        return self._team is not None

    @cached_property
    def grower(self) -> ShardGrower | StreamedGrower:
        """Grows trees in rounds."""
        return StreamedGrower(self.rows) if self.rows.in_files else ShardGrower(self.rows.shard)

    def _replay(self, past: ReplayState) -> None:
        for iteration, values in enumerate(past.given_values):
            self.assign_leaves(iteration)
            self.advance_rows(past.terms, values)
        if self._spec.shard.averages:
            self._replay_forest(past)
        # The scores of a bite already include the iterations before the visit.
        missed = past.iterations if past.visit is None else past.iterations[past.visit.n_kept :]
        missed = () if self._spec.shard.averages else missed
        if missed or past.pending:
            for shard in self.rows.walk(["tiles", "raw", "leaf"], ["raw", "leaf"]):
                for of in shard.ranges():
                    add_iterations(shard.codes, shard.layout, missed, shard.raw, *of)
                for tree in past.pending:
                    shard.leaf[tree.output] = leaves_of(shard.codes, shard.layout, tree.grown)
        if past.applied >= 0:
            # Recompute the gradients after the last complete iteration; leaf values of zero change no score.
            terms = past.terms
            if isinstance(terms, ProjectedTerms):
                terms = terms._replace(keeps_gradients=False)
            self.advance_rows(terms, np.zeros((self.rows.spec.n_outputs, self.rows.spec.max_leaves)))
            self.applied = past.applied
        if past.given_iteration >= 0:
            self.assign_leaves(past.given_iteration)

    def assign_leaves(self, iteration: int) -> None:
        """Assign each row to its leaf in each tree of an iteration of `BuildSpec.given`."""
        assert self._given_leaves is not None
        for shard in self.rows.walk(["values"], ["leaf"]):
            shard.leaf[:] = self._given_leaves(shard.fields["values"], iteration)

    def advance_rows(self, terms: tuple, values: np.ndarray) -> None:
        """Add leaf values to the scores, recompute the gradients, and store their statistics.

        The scores of a forest stay those at the start, and so do the gradients: values are added to the sums of
        `shards.tree_means` instead.
        """
        if self._spec.shard.averages:
            direction = terms if isinstance(terms, ProjectedTerms) else None
            if self.applied >= 0 and not (direction is not None and direction.keeps_gradients):
                self._add_to_means(values)
            if self.stats is not None and direction is None:
                return
            values = np.zeros_like(values)
        self.stats = (self._whole or self.rows).advance_rows(terms, values)

    def _add_to_means(self, values: np.ndarray) -> None:
        """Add the leaf values of a forest's last trees to the sums of the rows that they did not draw."""
        self._route_excluded()
        self._n_added += 1
        sample = self._spec.sample_of(self._n_added)
        drawn_by = ["draw_id"] if self._spec.shard.grouped else []
        for shard in self.rows.walk([*SUMS, "leaf", *drawn_by], SUMS):
            self._add_values(shard, sample, values_of_leaves(shard, values))

    def _replay_forest(self, past: ReplayState) -> None:
        """Add the trees of a forest so far to the sums of the rows that they did not draw."""
        first, earlier = self._spec.earlier_iterations()
        iterations = [*earlier, *past.iterations]
        self._n_added += len(past.iterations)
        drawn_by = ["draw_id"] if self._spec.shard.grouped else []
        if iterations:
            for shard in self.rows.walk([*SUMS, "tiles", *drawn_by], SUMS):
                for iteration, trees in enumerate(iterations, first):
                    self._add_values(shard, self._spec.sample_of(iteration), values_of_trees(shard, trees))

    def _add_values(self, shard: Shard, sample: Sample | None, values_of: ValuesOf) -> None:
        is_out, team = rows_out_of_bag(shard, sample), self._team

        def work(thread: int) -> None:
            for of in shard.ranges(thread, 1 if team is None else team.n_threads):
                add_values(shard, is_out, values_of, *of)

        if team is None:
            work(0)
        else:
            team.run(work)

    def map_ranges(self, statistic: Statistic, *arguments: Any) -> list[Any]:
        """Return the statistic of ranges that together are all rows."""
        return (self._whole or self.rows).map_ranges(statistic, *arguments)

    def grow_trees(self, tasks: Sequence[TreeTask]) -> Iterator[GrownTree] | None:
        """Grow whole trees, each when it is requested; it is valid until the next one. None without a team."""
        return None if self._whole is None else self._whole.grow_trees(tasks)

    def begin(self, tasks: Sequence[TreeTask]) -> None:
        """Begin trees that grow in rounds; earlier trees are dropped."""
        self._route_excluded()
        self.grower.begin(tasks)

    def begin_round(self, requests: Mapping[int, RoundRequest]) -> None:
        """Announce the requests of a round by output, so that a pass over files serves several of them."""
        if isinstance(self.grower, StreamedGrower):
            self.grower.begin_round(requests)

    def sum_histograms(self, output: int, request: RoundRequest) -> RoundHistograms:
        """Return the histograms and row counts of a round of one tree, valid until the next round."""
        return self.grower.sum_histograms(output, request)

    def _route_excluded(self) -> None:
        """Assign all rows to the leaves of the last trees, also those that were excluded from growing."""
        if self._whole is not None:
            self._whole.route_excluded()

    def keep_only(self, numbers: Sequence[int]) -> list[ShardRunner]:
        """Return the runner without the rows of other partitions; nothing if no rows remain.

        A new runner has no `GradientStats`: they describe the old rows, and the next `advance` recomputes them. Rows that a
        team of several threads has trained on are divided among as many runners: another session has some of the rows now, and
        in rounds each runner has one thread.
        """
        self._route_excluded()
        n = 1 if self._team is None else self._team.n_threads
        stays = partial(self._spec.are_of, partitions=numbers)
        parts = []
        for k in range(n):
            rows = self.rows.subset(stays if n == 1 else partial(_share, stays, k, n))
            if rows is self.rows:
                return [self]
            if rows is not None:
                parts.append(rows)
        self._release()
        found = []
        for rows in parts:
            runner = ShardRunner(rows, self.batch, self._spec, None, self._team if n == 1 else None, self._given_leaves)
            runner.applied, runner._n_added = self.applied, self._n_added
            found.append(runner)
        return found

    def _release(self) -> None:
        """Release buffers; others may use the files, and the team."""
        if "grower" in vars(self):
            self.grower.close()
        self._whole = None
        self.rows.close()

    def close(self) -> None:
        """Release memory and files."""
        self._release()
        self.rows.store.close()


def _share(stays: Callable[[np.ndarray], np.ndarray], k: int, n: int, row_ids: np.ndarray) -> np.ndarray:
    """Return which rows belong to the k-th of n equal shares of the rows that stay, or to any if all stay."""
    kept = stays(row_ids)
    if kept.all():
        return kept
    return kept & (np.cumsum(kept) * n // (kept.sum() + 1) == k)


def _divide(
    store: RowStore, spec: ShardSpec, n_bytes: int, n_leaves: int, n_threads: int, *, is_alone: bool
) -> tuple[int, int]:
    """Return how many trees grow in the same passes, and how many blocks of each thread stay in memory.

    Both take memory and save reads: the choice is the one for which a tree reads the fewest bytes in a pass.
    """
    of_tree = tree_bytes(spec, n_leaves, n_threads)
    codes = store.files[0].stride / store.block_rows
    state = 4 * (1 + (not spec.constant_hessian)) + np.dtype(spec.leaf_type).itemsize
    found = []
    for n in range(1, trees_per_pass(spec, n_bytes, n_leaves, n_threads) + 1):
        n_staying = blocks_that_stay(store, spec, n_bytes - (n - 1) * of_tree, n_leaves, n_threads) if is_alone else 0
        streamed = max(store.n_blocks - n_staying * n_threads, 0)
        n_passes = -(-spec.n_trees // n)
        found.append((streamed * (codes * n_passes / spec.n_trees + state), -n, n_staying))
    _, n_trees, n_staying = min(found)
    return -n_trees, n_staying


def streamed_runners(
    rows: StartingRows,
    batch: str,
    spec: BuildSpec,
    past: ReplayState,
    *,
    root: Path | None,
    team: Team,
    limit: Budget,
    is_alone: bool,
) -> tuple[list[ShardRunner], PassWidth]:
    """Write a batch to files; return one runner for each thread of a team, and what a pass over them may do.

    is_alone : whether the session has no other rows; then some blocks may stay in memory.
    """
    n_rows = rows.n_kept
    if not n_rows:
        return [], PassWidth(1, spec.shard.n_trees)
    memory = limit.histograms(spec.shard, n_rows, team.n_threads)
    store, ids = rows.write(spec, root)
    try:
        n_runners = min(team.n_threads, store.n_blocks)
        n_leaves = spec.leaves_per_pass or nodes_per_pass(spec.shard, memory, n_runners)
        n_trees, n_staying = _divide(store, spec.shard, memory - limit.reserve, n_leaves, n_runners, is_alone=is_alone)
        shares = [
            ShardBlocks(
                store, spec.shard, ids, k, n_runners,
                n_staying=n_staying, trees_per_pass=n_trees, halted=lambda: team.is_halted,
            )
            for k in range(n_runners)
        ]  # fmt: skip
        return team.map(lambda share: ShardRunner(share, batch, spec, past), shares), PassWidth(n_leaves, n_trees)
    except BaseException:
        store.close()
        raise
