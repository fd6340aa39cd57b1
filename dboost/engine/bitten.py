"""The engine for arcbites in this process: an engine of one shard, and another one for every visit.

It holds the resting bites, and builds the shard and the buffers of the one that is visited. Those of the last visit are let
go of first, so that memory for one bite is all that is ever needed beside the bites at rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dboost.engine.in_process import InProcessEngine, choose_threads, is_small
from dboost.engine.team import Team
from dboost.growth.frontier import Rule
from dboost.growth.task import Extremes, GrownTree, TreeTask
from dboost.shard.bites import Bite, Build, joined
from dboost.shard.catch_up import ValuedTree


class BittenEngine:
    """Trains on one bite at a time. `turn_to` comes before everything else.

    Parameters
    ----------
    bites : sequence of Bite
        Or their parts, where several make a bite; n_together : how many at most.
    build : Build
    loss_terms, rule, n_planes, coarse, n_threads
        As in `InProcessEngine`.
    bytes_read : callable, optional
        How many bytes of the bites have been read from files so far.
    release : callable, optional
        Called in the end, to let go of what the bites are in.
    """

    def __init__(
        self,
        bites: Sequence[Bite],
        build: Build,
        loss_terms: tuple,
        *,
        rule: Rule,
        n_planes: int,
        coarse: float,
        n_threads: int,
        n_together: int = 1,
        bytes_read: Callable[[], int] = int,
        release: Callable[[], object] | None = None,
    ) -> None:
        self._bites = bites
        self._build = build
        self._bytes_read, self._reported, self._release = bytes_read, 0, release
        self._terms = loss_terms
        self._rule, self._n_planes, self._coarse = rule, n_planes, coarse
        largest, n_features = n_together * max(bite.n_rows for bite in bites), len(build.bin_layout.n_bins)
        self.team = Team(choose_threads(largest, n_features, n_threads), in_caller=is_small(largest, n_features))
        self._engine: InProcessEngine | None = None

    @property
    def n_rows(self) -> int:
        return sum(bite.n_rows for bite in self._bites)

    def turn_to(self, bite: Sequence[int], iterations: Sequence[Sequence[ValuedTree]]) -> None:
        """Train on the rows of this bite from now on, beginning with the scores of a model of these iterations."""
        self._engine = None
        parts = [self._bites[part].caught_up(self._build.layout, iterations, self._spread) for part in bite]
        rows = joined(parts)
        del parts
        shard = rows.shard(self._build, self._spread)
        self._engine = InProcessEngine(
            shard, self._terms, rule=self._rule, n_planes=self._n_planes, coarse=self._coarse, team=self.team
        )

    def _spread(self, work: Callable[[int, int], None], n: int) -> None:
        p = self.team.n_threads
        self.team.run(lambda thread: work(n * thread // p, n * (thread + 1) // p))

    @property
    def _current(self) -> InProcessEngine:
        assert self._engine is not None
        return self._engine

    def advance(self, values: np.ndarray, terms: tuple | None = None) -> Extremes:
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
