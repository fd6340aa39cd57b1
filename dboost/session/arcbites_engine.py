"""The engine for arcbites in this process: an engine of one shard, and another one for every visit.

It holds the resting bites, and builds the shard and the buffers of the one that is visited. Those of the last visit are let
go of first, so that memory for one bite is all that is ever needed beside the bites at rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dboost.session.fused_engine import FusedEngine, choose_threads, is_small
from dboost.session.thread_team import Team
from dboost.shards.apply_trees import TreeDelta
from dboost.shards.arcbite_rows import Bite, BiteBuild, joined_bites
from dboost.trees.nodes import GrowthPolicy
from dboost.trees.tree_task import GradientStats, GrownTree, TreeTask


class ArcbitesEngine:
    """Trains on one bite at a time. `visit` comes before everything else.

    Parameters
    ----------
    bites : sequence of Bite
        Or their parts, where several make a bite; n_together : how many at most.
    build : Build
    loss_terms, rule, n_planes, coarse, n_threads
        As in `FusedEngine`.
    bytes_read : callable, optional
        How many bytes of the bites have been read from files so far.
    release : callable, optional
        Called in the end, to let go of what the bites are in.
    """

    def __init__(
        self,
        bites: Sequence[Bite],
        build: BiteBuild,
        loss_terms: tuple,
        *,
        rule: GrowthPolicy,
        n_channels: int,
        loss_unit: float,
        n_threads: int,
        n_together: int = 1,
        bytes_read: Callable[[], int] = int,
        release: Callable[[], object] | None = None,
    ) -> None:
        self._bites = bites
        self._build = build
        self._bytes_read, self._reported, self._release = bytes_read, 0, release
        self._terms = loss_terms
        self._rule, self._n_planes, self._loss_unit = rule, n_channels, loss_unit
        largest, n_features = n_together * max(bite.n_rows for bite in bites), len(build.bin_layout.n_bins)
        self.team = Team(choose_threads(largest, n_features, n_threads), in_caller=is_small(largest, n_features))
        self._engine: FusedEngine | None = None

    @property
    def n_rows(self) -> int:
        return sum(bite.n_rows for bite in self._bites)

    def visit(self, bite: Sequence[int], iterations: Sequence[Sequence[TreeDelta]]) -> None:
        """Train on the rows of this bite from now on, beginning with the scores of a model of these iterations."""
        self._engine = None
        parts = [self._bites[part].with_current_scores(self._build.layout, iterations, self._spread) for part in bite]
        rows = joined_bites(parts)
        del parts
        shard = rows.shard(self._build, self._spread)
        self._engine = FusedEngine(
            shard, self._terms, rule=self._rule, n_channels=self._n_planes, loss_unit=self._loss_unit, team=self.team
        )

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
        before, self._reported = self._reported, self._bytes_read()
        return {"bytes_read": self._reported - before}

    def close(self) -> None:
        self.team.close()
        self._engine = None
        if self._release is not None:
            self._release()
