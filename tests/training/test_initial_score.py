"""The initial score is the same to the last bit for any partitioning of the rows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dboost.losses import BaseLoss, LogLoss, SoftmaxLogLoss, SquaredError
from dboost.session.target import EncodedRoles
from dboost.training.target_stats import Ask, TargetStats, target_stats

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
