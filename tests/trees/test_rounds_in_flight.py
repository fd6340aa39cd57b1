"""Rounds in flight: trees do not depend on how many rounds are under way at the same time, or on what arrives first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dboost.params import Parameters
from dboost.trees.rounds_in_memory import RoundsInMemory
from dboost.trees.tree_growth import Round, RoundHistograms
from dboost.trees.tree_rounds import GrowOrder, RoundSumsAndSplits, TreeRounds
from dboost.trees.tree_task import TreeTask
from tests.helpers.examples import examples
from tests.helpers.growth import Problem, assert_equal
from tests.helpers.tables import make_table

TABLE = make_table([20, 7, 40], 600, 5)
N_TREES = 5


def problem(seed: int, **parameters: int) -> Problem:
    return Problem(TABLE, Parameters(**{"max_leaf_nodes": 12, "min_samples_leaf": 3} | parameters), seed, with_hessian=True)


class QueueingShards:
    """Shards that answer requests in turn, each in its own time; see `tree_rounds.BeginRound`.

    Parameters
    ----------
    problems : sequence of Problem
        Of the trees, by output.
    cuts : list of int
        Where the rows are cut into shards.
    rng : numpy.random.Generator
        Draws how many of the requests that are under way a shard has answered when a result is awaited.
    """

    def __init__(self, problems: Sequence[Problem], cuts: list[int], rng: np.random.Generator) -> None:
        self._rng = rng
        self._problems = problems
        self._growers = [[RoundsInMemory(shard) for shard in one.shards(cuts)] for one in problems]
        n_shards = len(cuts) + 1
        self._queues: list[list[tuple[int, bool, Mapping[int, Round]]]] = [[] for _ in range(n_shards)]
        self._answers: list[dict[int, dict[int, RoundHistograms]]] = [{} for _ in range(n_shards)]
        self._n_begun = self._n_ended = 0
        self.under_way: list[int] = []  # rounds, whenever one begins
        self.n_nodes = 0

    def begin_round(self, tasks: Sequence[TreeTask], rounds: Mapping[int, Round]) -> Callable[[], RoundSumsAndSplits]:
        number, self._n_begun = self._n_begun, self._n_begun + 1
        self.under_way.append(self._n_begun - self._n_ended)
        self.n_nodes += sum(len(request.nodes) for request, _ in rounds.values())
        for queue in self._queues:
            queue.append((number, bool(tasks), rounds))
        for shard in self._rng.permutation(len(self._queues)):
            for _ in range(self._rng.integers(0, 3)):
                self._answer(shard)

        def end() -> RoundSumsAndSplits:
            assert number == self._n_ended, "rounds end in the order in which they began"
            self._n_ended += 1
            order = self._rng.permutation(len(self._queues))
            for shard in order:
                while number not in self._answers[shard]:
                    self._answer(shard)
            answers = [self._answers[shard].pop(number) for shard in order]
            return {output: reduce(RoundHistograms.merge, [answer[output] for answer in answers]) for output in rounds}, None

        return end

    def _answer(self, shard: int) -> None:
        """Let a shard answer the next request of its queue, if there is one."""
        if not self._queues[shard]:
            return
        number, is_first, rounds = self._queues[shard].pop(0)
        if is_first:
            for growers, one in zip(self._growers, self._problems, strict=True):
                growers[shard].begin([one.task], [growers[shard].shard.tree_marks(*one.task.row_subset)])
        # Copies, as those that are sent: the next request reuses the memory.
        found = {output: self._growers[output][shard].sum_histograms(0, request) for output, (request, _) in rounds.items()}
        self._answers[shard][number] = {k: replace(one, histograms=one.histograms.copy()) for k, one in found.items()}


def grow(problems: Sequence[Problem], calls: QueueingShards, width: int, in_flight: int) -> list[bytes]:
    tasks = tuple(replace(one.task, output=k) for k, one in enumerate(problems))
    order = GrowOrder(tasks, TABLE.layout, np.ones(3, bool), TABLE.n_rows, width, in_flight)
    trees = TreeRounds().grow(calls.begin_round, order)
    for one, grown in zip(problems, trees, strict=True):
        assert_equal(one.finished(grown), one.whole(1)[0])
    return [grown.leaf_sums.tobytes() for grown in trees]


@given(
    seeds=st.lists(st.integers(0, 2**32), min_size=1, max_size=N_TREES),
    cuts=st.lists(st.integers(0, TABLE.n_rows), max_size=3),
    width=st.integers(1, 12),
    in_flight=st.integers(1, 3),
    max_leaf_nodes=st.sampled_from([2, 5, 12, 31]),
    arrivals=st.integers(0, 2**32),
)
@examples(60)
def test_trees_do_not_depend_on_the_rounds_under_way(
    seeds: list[int], cuts: list[int], width: int, in_flight: int, max_leaf_nodes: int, arrivals: int
) -> None:
    """One tree and several, over random shards whose answers arrive in any order."""
    problems = [problem(seed, max_leaf_nodes=max_leaf_nodes) for seed in seeds]
    calls = QueueingShards(problems, cuts, np.random.default_rng(arrivals))
    found = grow(problems, calls, width, in_flight)
    assert max(calls.under_way) <= in_flight
    alone = QueueingShards(problems, [], np.random.default_rng(0))
    assert grow(problems, alone, width, 1) == found
    assert set(alone.under_way) == {1}


@pytest.mark.parametrize("n_trees", [1, 4])
def test_two_rounds_are_under_way_most_of_the_time(n_trees: int) -> None:
    """With one tree by speculation, which costs hardly any histograms; with several because they are independent."""
    problems = [problem(seed, max_leaf_nodes=31) for seed in range(n_trees)]
    one, two = (QueueingShards(problems, [300], np.random.default_rng(0)) for _ in range(2))
    grow(problems, one, 6, 1)
    grow(problems, two, 6, 2)
    assert set(one.under_way) == {1} and max(two.under_way) == 2
    assert sum(n == 2 for n in two.under_way) > 0.6 * len(two.under_way)
    if n_trees > 1:
        assert two.n_nodes == one.n_nodes, "independent trees need no speculation"
    assert two.n_nodes <= 1.1 * one.n_nodes
