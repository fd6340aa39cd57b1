"""Engines for tests: one for several shards, which grow trees in rounds, and one for a shard that grows whole trees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from types import SimpleNamespace
from typing import Any

import numpy as np

from dboost.kernels.threads import Team, team_for
from dboost.rows.bin_proposal import merge_into_bins
from dboost.rows.row_store import RowStore
from dboost.rows.shard import RowIds, Shard
from dboost.rows.statistics import Statistic
from dboost.session.encoded_rows import EncodedStore
from dboost.session.training_rows import TrainingRows
from dboost.trees.fit_trees import GrownTree
from dboost.trees.growers import MemoryGrower
from dboost.trees.rounds_in_memory import RoundsInMemory
from dboost.trees.tree_growth import Round, RoundHistograms, RoundRequest
from dboost.trees.tree_rounds import GrowOrder, RoundSumsAndSplits, TreeRounds
from dboost.trees.tree_task import TreeTask


def training_rows(
    encoded: EncodedStore, n_threads: int = 1, n_staying: int = 0, is_kept: Callable[[np.ndarray], np.ndarray] | None = None
) -> TrainingRows:
    """Return rows whose partition 0 has the ids for which `is_kept` is true."""
    build: Any = SimpleNamespace(
        warm_start=SimpleNamespace(n_before=0),
        binning=SimpleNamespace(features=encoded.spec.layout.n_bins),
        id_ranges=SimpleNamespace(are_of=lambda row_ids, partitions: is_kept is not None and is_kept(row_ids)),
    )
    encoded.store.n_staying = n_staying
    return TrainingRows(encoded, "batch", build, None, Team(n_threads))


class ShardedEngine:
    """Grows trees from several shards in memory.

    Parameters
    ----------
    shards : sequence of Shard
    width : int
        Leaves split by the rounds that are under way at the same time.
    in_flight : int
        Most rounds that are under way at the same time.
    """

    def __init__(self, shards: Sequence[Shard], *, width: int = 8, in_flight: int = 1) -> None:
        self._growers = [RoundsInMemory(shard) for shard in shards]
        self._width, self._in_flight = width, in_flight
        self._rounds = TreeRounds()
        self.n_requests = 0

    @property
    def n_rows(self) -> int:
        return sum(grower.shard.n_rows for grower in self._growers)

    def grow(self, tasks: Sequence[TreeTask]) -> Iterator[GrownTree]:
        return map(self.grow_tree, tasks)

    def grow_tree(self, task: TreeTask) -> GrownTree:
        shard = self._growers[0].shard
        order = GrowOrder((task,), shard.tree_layout, shard.spec.is_identity_bin_map, self.n_rows, self._width, self._in_flight)
        return self._rounds.grow(self.begin_round, order)[0]

    def begin_round(self, tasks: Sequence[TreeTask], rounds: Mapping[int, Round]) -> Callable[[], RoundSumsAndSplits]:
        self.n_requests += 1

        def run() -> RoundSumsAndSplits:
            if tasks:
                for grower in self._growers:
                    for task in tasks:
                        if task.bin_merge is not None:
                            merge_into_bins(task.bin_merge, grower.shard, 0, grower.shard.n_rows)
                    grower.begin(tasks, [grower.shard.tree_marks(*task.row_subset) for task in tasks])
            return {output: self._sum(output, request) for output, (request, _) in rounds.items()}, None

        return run

    def _sum(self, output: int, request: RoundRequest) -> RoundHistograms:
        return reduce(RoundHistograms.merge, [grower.sum_histograms(output, request) for grower in self._growers])


class WholeEngine:
    """Grows whole trees from one shard in memory."""

    def __init__(self, shard: Shard, n_threads: int) -> None:
        self.team = team_for(shard.n_rows, len(shard.tree_layout.n_bins), n_threads)
        store = RowStore(
            [
                g._replace(fields=[f for f in g.fields if f.name in shard.fields])
                for g in shard.spec.field_groups(in_memory=True)
            ],
            [shard.n_rows],
            arrays=shard.fields,
        )
        build = SimpleNamespace(warm_start=SimpleNamespace(n_before=0))
        rows = EncodedStore(store, shard.spec, RowIds(np.array([[0, shard.n_rows]])))
        self.rows = TrainingRows(rows, "", build, None, self.team)
        grower = self.rows.grower
        assert isinstance(grower, MemoryGrower)
        self.grower = grower.whole
        self.rows.shard._ids = shard._ids

    def map_shards(self, statistic: Statistic, *arguments: Any) -> list[Any]:
        """Return the result of each thread."""
        return self.rows.statistic(statistic, *arguments)

    def grow(self, tasks: Sequence[TreeTask]) -> Iterator[GrownTree]:
        return map(self.grower.grow_tree, tasks)

    def close(self) -> None:
        self.team.close()
