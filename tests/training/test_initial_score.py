"""The initial score is the same to the last bit for any partitioning of the rows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dboost.losses import BaseLoss, LogLoss, SoftmaxLogLoss, SquaredError
from dboost.rows.shard import Shard
from dboost.rows.statistics import Statistic
from dboost.session.target import EncodedRoles
from dboost.training.target_stats import Ask, TargetStats, target_stats
from tests.helpers.sharded_engine import ShardedEngine, WholeEngine
from tests.helpers.tables import make_table, shard_of, spec_of
from tests.helpers.tune import Tune

LOSSES = [SquaredError(), LogLoss(), SoftmaxLogLoss(4)]


def targets(loss: BaseLoss, n: int, rng: np.random.Generator) -> np.ndarray:
    if loss.targets.are_classes:
        k = max(loss.n_outputs, 2)
        return np.concatenate([np.arange(k), rng.integers(k, size=n)])[:n].astype(float)
    return rng.normal(size=n) * 100 + 7


def in_parts(y: np.ndarray, weight: np.ndarray | None, borders: list[int]) -> Ask:
    """Return an `Ask` over several parts of the rows, some of which may be empty."""
    pieces = [slice(*pair) for pair in pairwise([0, *sorted(min(b, len(y)) for b in borders), len(y)])]
    return lambda function, *arguments: [
        function(EncodedRoles(y[piece], None if weight is None else weight[piece]), *arguments) for piece in pieces
    ]


def same(a: TargetStats, b: TargetStats) -> bool:
    return a.baseline.tobytes() == b.baseline.tobytes() and all(
        getattr(a, name) == getattr(b, name) for name in ("total_weight", "magnitude", "spread", "loss_unit")
    )


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.name}-{loss.n_outputs}")
@given(seed=st.integers(0, 2**32), borders=st.lists(st.integers(0, 60), max_size=5), weighted=st.booleans())
def test_the_start_does_not_depend_on_the_division(loss: BaseLoss, seed: int, borders: list[int], weighted: bool) -> None:
    rng = np.random.default_rng(seed)
    y = targets(loss, 60, rng)
    weight = rng.exponential(size=60) + 1e-3 if weighted else None
    whole = target_stats(loss, in_parts(y, weight, []))
    assert same(target_stats(loss, in_parts(y, weight, borders)), whole)
    assert whole.total_weight == pytest.approx(60 if weight is None else weight.sum(), rel=1e-14)


def test_a_mean_and_shares() -> None:
    rng = np.random.default_rng(0)
    y, weight = rng.normal(size=1000) * 1e6, rng.exponential(size=1000)
    start = target_stats(SquaredError(), in_parts(y, weight, [10, 400]))
    assert start.baseline[0] == pytest.approx(np.average(y, weights=weight), rel=1e-13)
    assert start.spread == np.abs(y - start.baseline[0]).max()
    classes = targets(SoftmaxLogLoss(4), 1000, rng)
    start = target_stats(SoftmaxLogLoss(4), in_parts(classes, weight, [10, 400]))
    assert np.exp(start.baseline) == pytest.approx(np.bincount(classes.astype(int), weight) / weight.sum(), rel=1e-13)


def seen(shard: Shard, first: int, last: int, factor: int) -> tuple[int, int]:
    """Return a result that the test can verify: the number of rows, and a sum over targets."""
    return last - first, factor * int(shard.target(slice(first, last)).sum())


def test_an_engine_asks_every_row_once(tune: Tune) -> None:
    tune(small_cells=0)
    table = make_table([5, 9], 101)
    y = np.arange(101.0)

    def shard(rows: slice) -> Shard:
        codes = table.stored().part(rows)
        return shard_of(
            codes, spec_of(table.layout, constant_hessian=True, n_channels=2), y[rows], None, np.zeros((1, len(y[rows])))
        )

    terms = SquaredError().pass_terms()
    alone = WholeEngine(shard(slice(None)), terms, n_threads=3)
    cut = ShardedEngine([shard(slice(0, 40)), shard(slice(40, 101))], terms)
    for engine, n_results in ((alone, 3), (cut, 2)):
        results = engine.map_shards(Statistic(seen), 2)
        assert len(results) == n_results
        assert [sum(of) for of in zip(*results, strict=True)] == [101, 101 * 100]
        engine.close()
