"""What no model shows of a session's rows between calls: rows that are assigned late, work without threads, memory of bites."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dboost
from dboost.kernels.threads import Team
from dboost.params import Parameters
from dboost.rows.row_sample import Sample
from dboost.rows.shard import Shard
from dboost.rows.statistics import Statistic
from dboost.session import session
from dboost.session.arcbite_rows import Bite
from dboost.session.fit_records import ReplayState
from dboost.session.shard_runners import ShardRunner
from dboost.shards.shard_blocks import ShardBlocks, rows_in_memory
from dboost.trees.grower import Round
from dboost.trees.tree_rounds import GrowOrder, RoundSumsAndSplits, TreeRounds
from dboost.trees.tree_task import TreeTask
from tests.helpers.growth import TERMS, Problem
from tests.helpers.tables import make_table, spec_of

N = 200
#: Rows of the first partition.
N_KEPT = 80
TABLE = make_table([9, 40, 200], N, 5, missing=0.1)


def problem(iteration: int) -> Problem:
    """Return trees of half of the rows, others in each iteration."""
    parameters = Parameters(max_leaf_nodes=8, min_samples_leaf=3)
    return Problem(TABLE, parameters, 2, with_hessian=True, sample=Sample.of(0.5, 7, iteration))


def runner(team: Team | None) -> ShardRunner:
    of = problem(1)
    codes, target = TABLE.stored(), np.zeros(N)
    fields = {"narrow": codes.narrow, "wide": codes.wide, "target": target, "raw": np.zeros((1, N))}
    of_rows = spec_of(TABLE.layout, max_leaves=8, n_channels=of.precision.n_channels)
    rows = rows_in_memory(fields, of_rows)
    rows.shard.fill_tiles(0, N)
    rows.shard.gradient[:] = of.gradient
    assert rows.shard.hessian is not None
    rows.shard.hessian[:] = of.hessian
    spec: Any = SimpleNamespace(
        are_of=lambda row_ids, partitions: (row_ids < N_KEPT) == (0 in partitions),
        shard=of_rows,
        warm_start=SimpleNamespace(n_before=0),
    )
    return ShardRunner(rows, "batch", spec, ReplayState(), team)


@pytest.fixture
def team() -> Iterator[Team]:
    with Team(2) as found:
        yield found


def _leaves(shard: Shard, first: int, last: int) -> np.ndarray:
    return shard.leaf[0, first:last].copy()


leaves = Statistic(_leaves)


class Rounds:
    """Grows a tree of one runner in rounds; implements `RoundCalls`."""

    def __init__(self, one: ShardRunner) -> None:
        self._runner = one

    def begin_round(self, tasks: Sequence[TreeTask], rounds: Mapping[int, Round]) -> Callable[[], RoundSumsAndSplits]:
        def run() -> RoundSumsAndSplits:
            if tasks:
                self._runner.begin(tasks)
            return {output: self._runner.sum_histograms(output, request) for output, (request, _) in rounds.items()}, None

        return run


def grow_whole(one: ShardRunner, iteration: int) -> None:
    trees = one.grow_trees([problem(iteration).task])
    assert trees is not None and next(trees).n_leaves > 4


def grow_in_rounds(one: ShardRunner, iteration: int) -> None:
    order = GrowOrder((problem(iteration).task,), TABLE.layout, np.ones(3, bool), N, 4)
    TreeRounds().grow_trees(Rounds(one), order)


def test_rows_outside_the_sample_are_assigned_before_rows_are_dropped(team: Team) -> None:
    one, other = runner(team), runner(team)
    for each in (one, other):
        grow_whole(each, 1)
    expected = np.concatenate(other.map_ranges(leaves))
    before = one.rows.shard.leaf[0].copy()
    assert (before != expected).any(), "they are assigned at once"
    kept = one.keep_only([0])
    assert [some.n_rows for some in kept] == [N_KEPT // 2, N_KEPT - N_KEPT // 2], "each thread of the team has a runner"
    assert np.concatenate([some.rows.shard.leaf[0] for some in kept]).tolist() == expected[:N_KEPT].tolist()


def test_a_tree_in_rounds_after_a_whole_one_is_the_last(team: Team) -> None:
    one, other = runner(team), runner(None)
    grow_whole(one, 1)
    for each in (one, other):
        grow_in_rounds(each, 2)
        each.advance_rows(TERMS, np.arange(8.0)[None])
    assert other.grow_trees([problem(1).task]) is None
    assert len(np.unique(one.rows.shard.raw)) > 4
    assert one.rows.shard.raw.tobytes() == other.rows.shard.raw.tobytes()


def test_a_short_statistic_is_computed_by_the_caller(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    one = runner(team)
    grow_whole(one, 1)
    before = one.rows.shard.leaf.copy()
    monkeypatch.setattr(Team, "run", lambda *_: pytest.fail("threads were started"))
    assert one.map_ranges(Statistic(lambda shard, first, last: last - first, is_short=lambda *_: True)) == [N // 2, N // 2]
    assert (one.rows.shard.leaf == before).all(), "rows were assigned to leaves, although nothing reads them"


@pytest.mark.parametrize("memory_limit", [None, "4MiB"])
def test_the_rows_of_a_visit_are_released_before_the_next_ones_are_read(
    monkeypatch: pytest.MonkeyPatch, memory_limit: str | None
) -> None:
    shards: list[weakref.ref[Shard]] = []
    n_alive: list[int] = []
    build, read = session.shard_of_bite, Bite.current_rows

    def noted(*arguments: Any) -> ShardBlocks:
        rows = build(*arguments)
        shards.append(weakref.ref(rows.shard))
        return rows

    def counted(bite: Bite, *arguments: Any) -> dict[str, np.ndarray]:
        n_alive.append(sum(shard() is not None for shard in shards))
        return read(bite, *arguments)

    monkeypatch.setattr(session, "shard_of_bite", noted)
    monkeypatch.setattr(Bite, "current_rows", counted)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40_000, 6))
    arcbites = dboost.ArcBites(n_bites=3, trees_per_visit=2, visits=2)
    gc.disable()  # a cycle of references would keep the rows until the next collection
    try:
        dboost.fit(X, X[:, 0] + rng.normal(size=len(X)), arcbites=arcbites, memory_limit=memory_limit, progress=False)
    finally:
        gc.enable()
    assert len(shards) == 6
    assert n_alive == [0] * 6
