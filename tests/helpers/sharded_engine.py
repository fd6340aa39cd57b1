"""An engine for several shards in this process, which grow trees in rounds.

It proves that a model does not depend on how rows are divided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from dboost.losses.gradient_pass import new_pass_scratch
from dboost.shards.shard import Shard, advance_rows
from dboost.shards.shard_grower import ShardGrower
from dboost.shards.statistics import Statistic
from dboost.trees.grower import Round, RoundHistograms, RoundRequest
from dboost.trees.tree_rounds import GrowOrder, TreeRounds
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
        self._rounds = TreeRounds()
        self.n_requests = 0

    @property
    def n_rows(self) -> int:
        return sum(shard_grower.shard.n_rows for shard_grower in self._growers)

    def advance(self, values: np.ndarray, terms: tuple | None = None) -> GradientStats:
        self._terms = self._terms if terms is None else terms
        return reduce(GradientStats.merge, [self._advance(grower.shard, values) for grower in self._growers])

    def _advance(self, shard: Shard, values: np.ndarray) -> GradientStats:
        return advance_rows(shard, self._terms, values, shard.spec.loss_unit, new_pass_scratch(), 0, shard.n_rows)

    def map_shards(self, statistic: Statistic, *arguments: Any) -> list[Any]:
        """Return the result of each shard."""
        return [statistic.compute(grower.shard, 0, grower.shard.n_rows, *arguments) for grower in self._growers]

    def grow(self, tasks: Sequence[TreeTask]) -> Iterator[GrownTree]:
        return map(self._grow, tasks)

    def _grow(self, task: TreeTask) -> GrownTree:
        shard = self._growers[0].shard
        order = GrowOrder((task,), shard.bin_layout, shard.is_identity_bin_map, self.n_rows, self._width)
        return self._rounds.grow_trees(self, order)[0]

    def run_round(self, tasks: Sequence[TreeTask], rounds: Mapping[int, Round]) -> tuple[Mapping[int, RoundHistograms], None]:
        self.n_requests += 1
        if tasks:
            for shard_grower in self._growers:
                shard_grower.begin(tasks)
        return {output: self._sum(output, request) for output, (request, _) in rounds.items()}, None

    def _sum(self, output: int, request: RoundRequest) -> RoundHistograms:
        return reduce(RoundHistograms.merge, [grower.sum_histograms(output, request) for grower in self._growers])

    def report(self) -> dict[str, float]:
        """Return nothing: no time is spent waiting."""
        return {}

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
