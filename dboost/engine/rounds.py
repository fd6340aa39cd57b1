"""The engine for several shards: drives the grower's generator, one round at a time, and merges the shards' answers.

In one process it serves to prove that a model does not depend on how rows are divided; a cluster's engine does the same
with shards on other machines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from dboost.growth.grower import Question, Reply, grow_tree
from dboost.growth.proposal import in_cells
from dboost.growth.search import Searcher
from dboost.growth.task import Extremes, GrownTree, TreeTask
from dboost.shard.advance import Scratch, advance_rows
from dboost.shard.rounds import Rounds
from dboost.shard.shard import Shard


class ShardedEngine:
    """Trains on several shards in memory.

    Parameters
    ----------
    shards : sequence of Shard
    loss_terms : NamedTuple
    n_planes : int
    coarse : float
        Unit of the exact loss sums.
    width : int
        Leaves opened per round.
    """

    def __init__(self, shards: Sequence[Shard], loss_terms: tuple, *, n_planes: int, coarse: float, width: int = 8) -> None:
        self._rounds = [Rounds(shard, n_planes) for shard in shards]
        self._terms = loss_terms
        self._coarse = coarse
        self._width = width
        self._scratch = Scratch()
        self._searcher: Searcher | None = None
        self.n_questions = 0

    @property
    def n_rows(self) -> int:
        return sum(rounds.shard.n_rows for rounds in self._rounds)

    def advance(self, values: np.ndarray, terms: tuple | None = None) -> Extremes:
        self._terms = self._terms if terms is None else terms
        shards = [rounds.shard for rounds in self._rounds]
        parts = [advance_rows(s, self._terms, values, self._coarse, self._scratch, 0, s.n_rows) for s in shards]
        return reduce(Extremes.merge, parts)

    def ask(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """One answer for each shard."""
        return [function(rounds.shard, 0, rounds.shard.n_rows, *arguments) for rounds in self._rounds]

    def grow(self, task: TreeTask) -> GrownTree:
        for rounds in self._rounds:
            rounds.begin(task)
        shard = self._rounds[0].shard
        layout = shard.bin_layout
        grower, searcher = grow_tree(task, layout, self.n_rows, self._width), Searcher(task, layout, after=self._searcher)
        self._searcher = searcher
        question: Question = next(grower)
        while True:
            self.n_questions += 1
            answer = reduce(lambda a, b: a.merge(b), (rounds.answer(question) for rounds in self._rounds))
            found = searcher.look(question.openings, answer.planes)
            try:
                question = grower.send(Reply(found, answer.n_rows, answer.leaf_sums))
            except StopIteration as end:
                in_cells(end.value, task.cells, shard.keeps_cells)
                return end.value

    def report(self) -> dict[str, float]:
        """Nothing: all seconds are work."""
        return {}

    def close(self) -> None:
        """Nothing to let go of."""
