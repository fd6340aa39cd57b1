"""The engine for arcbites in this process: a fused engine for the bite of each visit.

The bites are stored in a `session.arcbite_store.BiteStore`. A visit first drops the shard and the buffers of the previous visit
and then builds those of its own bite. So the engine needs memory for the store and for one bite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dboost.session.arcbite_store import BiteStore
from dboost.session.fused_engine import FusedEngine, choose_threads, is_small
from dboost.session.thread_team import Team
from dboost.shards.apply_trees import TreeDelta
from dboost.shards.arcbite_rows import joined_bites
from dboost.shards.shard_spec import ShardSpec
from dboost.trees.nodes import GrowthPolicy
from dboost.trees.tree_task import GradientStats, GrownTree, TreeTask


class ArcbitesEngine:
    """Train on one bite at a time. `visit` must be called before any other method.

    Parameters
    ----------
    store : BiteStore
        The rows of all bites, or of their parts if several form a bite (`ArcBites.parts`); closed with the engine.
    n_bites, n_together : int
        Number of bites (or parts) in the store, and how many of them a visit trains on together.
    spec : ShardSpec
    loss_terms, policy, n_threads
        As in `FusedEngine`.
    """

    def __init__(
        self,
        store: BiteStore,
        spec: ShardSpec,
        loss_terms: tuple,
        *,
        policy: GrowthPolicy,
        n_bites: int,
        n_together: int,
        n_threads: int,
    ) -> None:
        self._store, self._spec, self._terms, self._policy = store, spec, loss_terms, policy
        self._reported = 0
        sizes = [sum(record.n_rows for record in store.of(bite)) for bite in range(n_bites)]
        largest, n_features = n_together * max(sizes), len(spec.bin_layout.n_bins)
        self.team = Team(choose_threads(largest, n_features, n_threads), in_caller=is_small(largest, n_features))
        self._engine: FusedEngine | None = None

    @property
    def n_rows(self) -> int:
        return self._store.n_rows

    def visit(self, bite: Sequence[int], iterations: Sequence[Sequence[TreeDelta]]) -> None:
        """Switch to the rows of a bite, with scores that include these iterations."""
        self._engine = None
        stored = [record for part in bite for record in self._store.of(part)]
        current = [record.with_current_scores(self._spec.layout, iterations, self._spread) for record in stored]
        joined = joined_bites(current)
        del current
        shard = joined.shard(self._spec, self._spread)
        self._engine = FusedEngine(shard, self._terms, policy=self._policy, team=self.team)

    def _spread(self, work: Callable[[int, int], None], n: int) -> None:
        p = self.team.n_threads
        self.team.run(lambda thread: work(n * thread // p, n * (thread + 1) // p))

    @property
    def _current(self) -> FusedEngine:
        assert self._engine is not None
        return self._engine

    def advance(self, values: np.ndarray, terms: tuple | None = None) -> GradientStats:
        return self._current.advance(values, terms)

    def map_shards(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        return self._current.map_shards(function, *arguments)

    def grow(self, task: TreeTask) -> GrownTree:
        return self._current.grow(task)

    def report(self) -> dict[str, float]:
        """Return the bytes read from files since the last call."""
        before, self._reported = self._reported, self._store.bytes_read
        return {"bytes_read": self._reported - before}

    def close(self) -> None:
        self.team.close()
        self._engine = None
        self._store.close()
