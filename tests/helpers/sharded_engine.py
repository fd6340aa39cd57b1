"""Engines for tests: one for several shards, which grow trees in rounds, and one for a shard that grows whole trees.

They prove that a model does not depend on how rows are divided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from types import SimpleNamespace
from typing import Any

import numpy as np

from dboost.kernels.threads import Team, team_for
from dboost.losses.gradient_pass import new_pass_scratch
from dboost.losses.gradient_stats import GradientStats
from dboost.losses.terms import LossTerms
from dboost.rows.bin_proposal import merge_into_bins
from dboost.rows.row_store import RowStore
from dboost.rows.shard import RowIds, Shard
from dboost.rows.statistics import Statistic
from dboost.session.encoded_rows import EncodedStore
from dboost.session.growers import MemoryGrower
from dboost.session.training_rows import TrainingRows
from dboost.trees.fit_trees import GrownTree
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
    """Trains on several shards in memory.

    Parameters
    ----------
    shards : sequence of Shard
    loss_terms : LossTerms
    width : int
        Leaves split by the rounds that are under way at the same time.
    in_flight : int
        Most rounds that are under way at the same time.
    """

    def __init__(self, shards: Sequence[Shard], loss_terms: LossTerms, *, width: int = 8, in_flight: int = 1) -> None:
        self._growers = [RoundsInMemory(shard) for shard in shards]
        self._terms = loss_terms
        self._width, self._in_flight = width, in_flight
        self._rounds = TreeRounds()
        self.n_requests = 0

    @property
    def n_rows(self) -> int:
        return sum(grower.shard.n_rows for grower in self._growers)

    def advance(self, values: np.ndarray, terms: LossTerms | None = None) -> GradientStats:
        self._terms = self._terms if terms is None else terms
        return reduce(GradientStats.merge, [self._advance(grower.shard, values) for grower in self._growers])

    def _advance(self, shard: Shard, values: np.ndarray) -> GradientStats:
        rows = shard.gradient_pass(values, self._terms, new_pass_scratch(), 0, shard.n_rows)
        return shard.with_noise(self._terms.advance(rows), 0, shard.n_rows)

    def map_shards(self, statistic: Statistic, *arguments: Any) -> list[Any]:
        """Return the result of each shard."""
        return [statistic.compute(grower.shard, 0, grower.shard.n_rows, *arguments) for grower in self._growers]

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
                    grower.begin(tasks, [grower.shard.grown_rows(*task.row_subset) for task in tasks])
            return {output: self._sum(output, request) for output, (request, _) in rounds.items()}, None

        return run

    def _sum(self, output: int, request: RoundRequest) -> RoundHistograms:
        return reduce(RoundHistograms.merge, [grower.sum_histograms(output, request) for grower in self._growers])

    def report(self) -> dict[str, float]:
        """Return nothing: no time is spent waiting."""
        return {}

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class WholeEngine:
    """Trains on one shard in memory, which grows whole trees.

    Parameters
    ----------
    shard : Shard
    loss_terms : LossTerms
    n_threads : int, default 1
    """

    def __init__(self, shard: Shard, loss_terms: LossTerms, *, n_threads: int = 1) -> None:
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
        self.rows, self._terms, self._n = TrainingRows(rows, "", build, None, self.team), loss_terms, 0
        grower = self.rows.grower
        assert isinstance(grower, MemoryGrower)
        self.grower = grower.whole
        self.rows.shard._ids = shard._ids

    def advance(self, values: np.ndarray) -> GradientStats:
        self._n += 1
        return self.rows.advance(self._n, values, self._terms)

    def map_shards(self, statistic: Statistic, *arguments: Any) -> list[Any]:
        """Return the result of each thread."""
        return self.rows.statistic(statistic, *arguments)

    def grow(self, tasks: Sequence[TreeTask]) -> Iterator[GrownTree]:
        return map(self.grower.grow_tree, tasks)

    def close(self) -> None:
        self.team.close()
