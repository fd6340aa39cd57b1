"""An engine for several shards in this process: drives the grower's generator round by round and merges the shards' histograms.

It proves that a model does not depend on how rows are divided; the engine of a cluster does the same with shards on workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

import numpy as np

from dboost.shards.shard import Shard
from dboost.shards.shard_grower import ShardGrower
from dboost.shards.statistics import Statistic
from dboost.trees.bin_proposal import in_fine_bins
from dboost.trees.grower import RoundResult, grow_tree
from dboost.trees.split_finder import SplitFinder
from dboost.trees.tree_task import GradientStats, GrownTree, TreeTask


class ShardedEngine:
    """Trains on several shards in memory.

    Parameters
    ----------
    shards : sequence of Shard
    loss_terms : NamedTuple
    width : int
        Leaves split per round.
    """

    def __init__(self, shards: Sequence[Shard], loss_terms: tuple, *, width: int = 8) -> None:
        self._growers = [ShardGrower(shard) for shard in shards]
        self._terms = loss_terms
        self._width = width
        self._split_finder: SplitFinder | None = None
        self.n_requests = 0

    @property
    def n_rows(self) -> int:
        return sum(shard_grower.shard.n_rows for shard_grower in self._growers)

    def advance(self, values: np.ndarray, terms: tuple | None = None) -> GradientStats:
        self._terms = self._terms if terms is None else terms
        return reduce(GradientStats.merge, [shard_grower.advance_rows(self._terms, values) for shard_grower in self._growers])

    def map_shards(self, statistic: Statistic, *arguments: Any) -> list[Any]:
        """Return the result of each shard."""
        return [result for shard_grower in self._growers for result in shard_grower.map_ranges(statistic, *arguments)]

    def grow(self, tasks: Sequence[TreeTask]) -> Iterator[GrownTree]:
        return map(self._grow, tasks)

    def _grow(self, task: TreeTask) -> GrownTree:
        for shard_grower in self._growers:
            shard_grower.begin([task])
        shard = self._growers[0].shard
        layout = shard.bin_layout
        grower = grow_tree(task, layout, self.n_rows, self._width)
        split_finder = SplitFinder(task, layout, after=self._split_finder, n_rows=self.n_rows)
        self._split_finder = split_finder
        request, pairs = next(grower)
        while True:
            self.n_requests += 1
            merged = reduce(
                lambda a, b: a.merge(b), (shard_grower.sum_histograms(task.output, request) for shard_grower in self._growers)
            )
            found = split_finder.find_best_splits(pairs, merged.histograms)
            try:
                request, pairs = grower.send(RoundResult(found, merged.n_rows, merged.leaf_sums))
            except StopIteration as end:
                in_fine_bins(end.value, task.bin_merge, shard.is_identity_bin_map)
                return end.value

    def report(self) -> dict[str, float]:
        """Return nothing: no time is spent waiting."""
        return {}

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
