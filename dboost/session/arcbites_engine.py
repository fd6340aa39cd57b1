"""The engine for arcbites in this process: a fused engine for the bite of each visit.

The bites between visits are in a `session.arcbite_store.BiteStore`. A visit builds the shard and the buffers of one bite, after
those of the visit before were dropped: beside the store there is never memory for more than one bite.
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
    """Trains on one bite at a time. `visit` comes before everything else.

    Parameters
    ----------
    store : BiteStore
        The rows of all bites, or of their parts where several form a bite; closed with the engine.
    n_bites, n_together : int
        Number of bites in the store, and how many of them are trained on together.
    spec : ShardSpec
    loss_terms, rule, n_threads
        As in `FusedEngine`.
    """

    def __init__(
        self,
        store: BiteStore,
        spec: ShardSpec,
        loss_terms: tuple,
        *,
        rule: GrowthPolicy,
        n_bites: int,
        n_together: int,
        n_threads: int,
    ) -> None:
        self._store, self._spec, self._terms, self._rule = store, spec, loss_terms, rule
        self._reported = 0
        sizes = [sum(part.n_rows for part in store.of(bite)) for bite in range(n_bites)]
        largest, n_features = n_together * max(sizes), len(spec.bin_layout.n_bins)
        self.team = Team(choose_threads(largest, n_features, n_threads), in_caller=is_small(largest, n_features))
        self._engine: FusedEngine | None = None

    @property
    def n_rows(self) -> int:
        return self._store.n_rows

    def visit(self, bite: Sequence[int], iterations: Sequence[Sequence[TreeDelta]]) -> None:
        """Train on the rows of this bite from now on, with the scores of a model of these iterations."""
        self._engine = None
        rows = [rows for part in bite for rows in self._store.of(part)]
        parts = [part.with_current_scores(self._spec.layout, iterations, self._spread) for part in rows]
        joined = joined_bites(parts)
        del parts
        shard = joined.shard(self._spec, self._spread)
        self._engine = FusedEngine(shard, self._terms, rule=self._rule, team=self.team)

    def _spread(self, work: Callable[[int, int], None], n: int) -> None:
        p = self.team.n_threads
        self.team.run(lambda thread: work(n * thread // p, n * (thread + 1) // p))

    @property
    def _current(self) -> FusedEngine:
        assert self._engine is not None
        return self._engine

    def advance(self, values: np.ndarray, terms: tuple | None = None) -> GradientStats:
        return self._current.advance(values, terms)

    def ask(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        return self._current.ask(function, *arguments)

    def grow(self, task: TreeTask) -> GrownTree:
        return self._current.grow(task)

    def report(self) -> dict[str, float]:
        """Bytes read from files."""
        before, self._reported = self._reported, self._store.bytes_read
        return {"bytes_read": self._reported - before}

    def close(self) -> None:
        self.team.close()
        self._engine = None
        self._store.close()
