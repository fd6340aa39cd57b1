"""Training rows: the rows of a batch of a session, with their state between calls.

`TrainingRows` has the fields of `ShardSpec.field_groups` in a row store: in memory, or in files if they exceed the memory limit
of the fit. The threads of a team divide the work (`rows.row_store.RowShares`). All results are sums of integers, maxima or
minima, so they depend neither on where the rows are nor on the number of threads.

Trees grow by a *grower*, which is chosen by name (`trees.growers`).

Rows that are built after training has started replay the trees so far. Rows can drop those of partitions that another session
has now. Both give the same sums as an uninterrupted fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial, reduce
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dboost.errors import DBoostError
from dboost.kernels.threads import Team, team_for
from dboost.losses.gradient_pass import new_pass_scratch
from dboost.losses.gradient_stats import GradientStats
from dboost.losses.terms import LossTerms
from dboost.rows.bin_proposal import merge_into_bins
from dboost.rows.block_file import FieldRef
from dboost.rows.row_sample import Sample
from dboost.rows.row_store import RowShares, RowStore
from dboost.rows.shard import RowIds, Shard, runs_of
from dboost.rows.shard_spec import ShardSpec
from dboost.rows.statistics import Statistic
from dboost.session.encoded_rows import EncodedStore
from dboost.session.fit_records import BuildSpec, ReplayState
from dboost.session.memory import Budget, blocks_that_stay, most_trees_per_pass, nodes_per_pass, tree_bytes
from dboost.trees.apply_trees import add_trees, assign_leaves
from dboost.trees.growers import Grower, new_grower
from dboost.trees.tree_means import SUMS, ValuesOf, add_values, rows_out_of_bag, values_of_leaves, values_of_trees
from dboost.trees.tree_task import TreeTask


class PassWidth(NamedTuple):
    """What memory allows in one pass over files."""

    leaves_per_pass: int  # that may be opened in each tree
    trees_per_pass: int  # that may grow


#: Returns the leaves of rows in the trees of an iteration of `BuildSpec.refit_model`, given their values: int32[n_trees, n].
RefitLeaves = Callable[[np.ndarray, int], np.ndarray]


def no_leaves(values: np.ndarray, iteration: int) -> np.ndarray:
    """Stand for the leaves of rows whose trees are grown."""
    raise DBoostError("the trees of this fit are not given")


class TrainingRows:
    """The rows of a batch, with their state between calls.

    Parameters
    ----------
    rows : EncodedStore
    batch : str
    spec : BuildSpec
    past : ReplayState or None
        What has been trained before; None if the state of the rows includes it.
    team : Team
        Threads that share the work; closed with the rows if these are in memory.
    refit_leaves : RefitLeaves
        Default: the trees are not given.
    trees_per_pass : int
        Trees that grow in the same passes over files.

    Attributes
    ----------
    shard : Shard or None
        The rows, if they are in memory; None if they are in files.
    applied : int
        Number of the last `advance`, -1 before the first.
    stats : GradientStats or None
        Statistics of the gradients after the last `advance`.
    """

    def __init__(
        self,
        rows: EncodedStore,
        batch: str,
        spec: BuildSpec,
        past: ReplayState | None,
        team: Team,
        refit_leaves: RefitLeaves = no_leaves,
        trees_per_pass: int = 1,
    ) -> None:
        self.store, self.shard_spec, self._ids, segments, self.shared = rows
        self.batch, self.applied, self.spec, self._refit_leaves = batch, -1, spec, refit_leaves
        self.stats: GradientStats | None = None
        self.unrouted: list[tuple[Callable[[np.ndarray, int, int], None], np.ndarray]] = []
        self._n_added = spec.warm_start.n_before  # iterations of a forest in the sums of the rows
        self.trees_per_pass, self.n_rows, self.shares = trees_per_pass, self.store.n_rows, RowShares(self.store, team)
        self.shard: Shard | None = None
        if self.store.place is None:
            self.shard = Shard(self.store.load(), self.shard_spec, self._ids, segments=segments)
            self.n_rows = self.shard.n_trained
        self._scratch = [new_pass_scratch() for _ in range(self.shares.n)]
        self._has_categories = bool(self.shard_spec.layout.is_categorical.any())
        if past is not None:
            self._replay(past)

    @property
    def bytes_read(self) -> int:
        return self.store.bytes_read

    def ranges(
        self, k: int, reads: Sequence[FieldRef] = (), writes: Sequence[FieldRef] = (), *, verify: bool = True
    ) -> Iterator[tuple[Shard, int, int]]:
        """Yield the k-th share of the rows as ranges: a shard, the first row in it, and the last row + 1.

        reads, writes : fields of rows in files, see `RowStore.walk`; verify : the codes in them.
        """
        if self.shard is not None:
            for first, last in self.shard.ranges(k, self.shares.n):
                yield self.shard, first, last
            return
        for block in self.shares.walk(k, reads, writes, unverified=() if verify else ("codes",)):
            yield Shard(block.fields, self.shard_spec, self._ids, block.start), 0, block.n_rows

    def each(
        self, work: Callable[[Shard, int, int], Any], reads: Sequence[FieldRef] = (), writes: Sequence[FieldRef] = ()
    ) -> list[Any]:
        """Return ``work(shard, first, last)`` of `ranges` that together are all rows, computed by the threads."""
        return self.shares.map(work, lambda k: self.ranges(k, reads, writes))

    def advance(self, number: int, values: np.ndarray, terms: LossTerms) -> GradientStats:
        """Add leaf values to the scores and recompute the gradients, unless a call of this number has; return the statistics.

        The scores of a forest stay those at the start, and so do the gradients: values are added to the sums of
        `trees.tree_means` instead.
        """
        is_repeated, averages = number <= self.applied, self.shard_spec.averages
        if is_repeated and self.stats is not None:
            return self.stats
        if averages and not is_repeated:
            if self.applied >= 0 and not terms.keeps_gradients:
                self._add_to_means(values)
            if self.stats is not None and not terms.has_direction:
                self.applied = number
                return self.stats
        if averages or is_repeated:
            values = np.zeros_like(values)
        unrouted, self.unrouted = self.unrouted, []
        reads, writes = self.shard_spec.advance_fields(terms)

        def work(k: int) -> GradientStats:
            passes = []
            for shard, first, last in self.ranges(k, reads, writes):
                for find, leaf in unrouted:
                    find(leaf, first, last)
                stats = terms.advance(shard.gradient_pass(values, terms, self._scratch[k], first, last))
                passes.append(stats._replace(noise=shard.noise(first, last)) if self._has_categories else stats)
            return reduce(GradientStats.merge, passes)

        self.stats = reduce(GradientStats.merge, self.shares.run(work))
        self.applied = max(self.applied, number)
        return self.stats

    def statistic(self, statistic: Statistic, *arguments: Any) -> list[Any]:
        """Return the statistic of ranges of rows."""
        self.route_excluded()
        reads = [*(["tiles"] if statistic.reads_codes else []), "target", *self._state_names]
        results = self.each(lambda *rows: statistic.compute(*rows, *arguments), reads)
        return results if statistic.merge is None or not results else [reduce(statistic.merge, results)]

    @property
    def _state_names(self) -> list[str]:
        return [field.name for group in self.store.groups if not group.sealed for field in group.fields]

    def route_excluded(self) -> None:
        """Assign rows that were excluded from a tree to its leaves now, and not in the next pass over all rows."""
        unrouted, self.unrouted = self.unrouted, []

        def work(_: Shard, first: int, last: int) -> None:
            for find, leaf in unrouted:
                find(leaf, first, last)

        if unrouted:
            self.each(work)

    # Growing trees.

    @cached_property
    def grower(self) -> Grower:
        """Grows trees of the rows."""
        return new_grower(self)

    def merge_bins(self, tasks: Sequence[TreeTask]) -> None:
        """Write the codes of the bins of a tree that has its own."""
        for task in tasks:
            if task.bin_merge is not None:
                self.each(partial(merge_into_bins, task.bin_merge))

    # Replay, and rows that go.

    def _replay(self, past: ReplayState) -> None:
        if self.shard_spec.averages:
            self._replay_forest(past)
        missed = () if self.shard_spec.averages else [*chain.from_iterable(past.iterations)]
        if missed or past.pending:

            def work(shard: Shard, first: int, last: int) -> None:
                add_trees(shard.codes, shard.layout, missed, shard.raw, first, last)
                for tree in past.pending:
                    assign_leaves(shard.codes, shard.layout, tree)(shard.leaf[tree.output], first, last)

            self.each(work, ["tiles", "raw", "leaf"], ["raw", "leaf"])
        if past.advanced is not None:
            number, terms = past.advanced
            for iteration, values in enumerate(past.refit_values):
                self.assign_leaves(iteration)
                self.advance(iteration, values, terms)
            # Recompute the gradients after the last complete iteration; leaf values of zero change no score.
            no_values = np.zeros((self.shard_spec.n_outputs, self.shard_spec.max_leaves))
            self.advance(number, no_values, replace(terms, keeps_gradients=False))
        if past.refit_iteration >= 0:
            self.assign_leaves(past.refit_iteration)

    def assign_leaves(self, iteration: int) -> None:
        """Assign each row to its leaf in each tree of an iteration of `BuildSpec.refit_model`."""
        leaves_of = self._refit_leaves

        def work(shard: Shard, first: int, last: int) -> None:
            shard.leaf[:, first:last] = leaves_of(shard.fields["values"][first:last], iteration)

        self.each(work)

    def _add_to_means(self, values: np.ndarray) -> None:
        """Add the leaf values of a forest's last trees to the sums of the rows that they did not draw."""
        self.route_excluded()
        self._n_added += 1
        sample = self.spec.sample_of(self._n_added)
        self._add_values([(sample, lambda shard: values_of_leaves(shard, values))], ["leaf"])

    def _replay_forest(self, past: ReplayState) -> None:
        """Add the trees of a forest so far to the sums of the rows that they did not draw."""
        first, earlier = self.spec.earlier_iterations()
        iterations = [*earlier, *past.iterations]
        self._n_added += len(past.iterations)
        trees = [
            (self.spec.sample_of(iteration), partial(values_of_trees, trees=of_iteration))
            for iteration, of_iteration in enumerate(iterations, first)
        ]
        if trees:
            self._add_values(trees, ["tiles"])

    def _add_values(self, trees: Sequence[tuple[Sample | None, Callable[[Shard], ValuesOf]]], reads: Sequence[str]) -> None:
        known: dict[int, list[Any]] = {}  # of rows in memory, by iteration

        def work(shard: Shard, first: int, last: int) -> None:
            for is_out, values_of in known.get(id(shard)) or of_trees(shard):
                add_values(shard, is_out, values_of, first, last)

        def of_trees(shard: Shard) -> list[Any]:
            return [(rows_out_of_bag(shard, sample), values_of(shard)) for sample, values_of in trees]

        if self.shard is not None:
            known[id(self.shard)] = of_trees(self.shard)
        drawn_by = ["draw_id"] if self.shard_spec.has_draw_ids else []
        self.each(work, [*SUMS, *reads, *drawn_by], SUMS)

    def row_ids(self) -> np.ndarray:
        """Return the global ids of all rows that are trained on: int64[n_rows]."""
        if self.shard is not None:
            return np.concatenate([self.shard.row_ids(*rows) for rows in self.shard.ranges()])
        return self._ids.of(0, self.n_rows)

    def keep_only(self, partition_ids: Sequence[int]) -> TrainingRows | None:
        """Return the rows without those of other partitions, in their current state; None if none remain.

        They have no `GradientStats`: these describe the old rows, and the next `advance` recomputes them.
        """
        self.route_excluded()
        row_ids = self.row_ids()
        kept = self.spec.id_ranges.are_of(row_ids, partition_ids)
        n = int(np.count_nonzero(kept))
        if n == self.n_rows:
            return self
        remaining, left, n_staying = None, None, self.store.n_staying
        if n and self.shard is not None and self.shard.segments is not None:
            left = self._apart(self.shard.segments.positions()[kept], row_ids[kept])
        elif n:
            ids = self._ids if "row_ids" in self.store.names else RowIds(runs_of(row_ids[kept]))
            del row_ids
            left = EncodedStore(self.shares.subset(kept), self.shard_spec, ids)
        if left is not None:
            team = self.shares.team if self.shard is None else self._new_team(n)
            left.store.n_staying = n_staying  # as many blocks as before fit in memory
            remaining = TrainingRows(left, self.batch, self.spec, None, team, self._refit_leaves, self.trees_per_pass)
            remaining.applied, remaining._n_added = self.applied, self._n_added
        self.close()
        return remaining

    def _apart(self, rows: np.ndarray, row_ids: np.ndarray) -> EncodedStore:
        """Return some of the rows of a shard that shares codes (int64[n], with their global ids), without the others."""
        by_id = np.argsort(row_ids)
        store = RowStore(self.store.groups, [len(rows)])
        store.append(len(rows), self.store.load(), rows[by_id])
        return EncodedStore(store, self.shard_spec, RowIds(runs_of(row_ids[by_id])))

    def _new_team(self, n_rows: int) -> Team:
        return team_for(n_rows, max(len(self.spec.binning.features), 1), self.shares.team.n_threads)

    def close(self) -> None:
        """Release memory and files."""
        if "grower" in vars(self):
            vars(self).pop("grower").close()
        if self.shard is not None:
            self.shares.team.close()
        self.shard, self.shared = None, None
        self.store.close()


def _divide(
    store: RowStore, spec: ShardSpec, n_bytes: int, n_leaves: int, n_threads: int, *, is_alone: bool
) -> tuple[int, int]:
    """Return how many trees grow in the same passes, and how many blocks of each thread stay in memory.

    Both take memory and save reads: the choice is the one for which a tree reads the fewest bytes in a pass.
    """
    of_tree = tree_bytes(spec, n_leaves, n_threads)
    codes = store.files[0].stride / store.block_rows
    state = 4 * (1 + (not spec.constant_hessian)) + np.dtype(spec.leaf_type).itemsize
    choices = []
    for n in range(1, most_trees_per_pass(spec, n_bytes, n_leaves, n_threads) + 1):
        n_staying = blocks_that_stay(store, spec, n_bytes - (n - 1) * of_tree, n_leaves, n_threads) if is_alone else 0
        streamed = max(store.n_blocks - n_staying * n_threads, 0)
        n_passes = -(-spec.trees_per_iteration // n)
        choices.append((streamed * (codes * n_passes / spec.trees_per_iteration + state), -n, n_staying))
    _, minus_trees, n_staying = min(choices)
    return -minus_trees, n_staying


def streamed_rows(
    rows: Any, batch: str, spec: BuildSpec, past: ReplayState, *, root: Path | None, team: Team, limit: Budget, is_alone: bool
) -> tuple[TrainingRows | None, PassWidth]:
    """Write a batch to files; return its rows, and what a pass over them may do.

    is_alone : whether the session has no other rows; then some blocks may stay in memory.
    """
    n_rows = rows.n_kept
    if not n_rows:
        return None, PassWidth(1, spec.shard_spec.trees_per_iteration)
    memory = limit.histograms(spec.shard_spec, n_rows, team.n_threads)
    store, ids = rows.write(spec, root)
    try:
        n_shares = min(team.n_threads, store.n_blocks)
        n_leaves = spec.leaves_per_pass or nodes_per_pass(spec.shard_spec, memory, n_shares)
        n_trees, n_staying = _divide(store, spec.shard_spec, memory - limit.reserve, n_leaves, n_shares, is_alone=is_alone)
        store.n_staying, encoded = n_staying, EncodedStore(store, spec.shard_spec, ids)
        return TrainingRows(encoded, batch, spec, past, team, trees_per_pass=n_trees), PassWidth(n_leaves, n_trees)
    except BaseException:
        store.close()
        raise
