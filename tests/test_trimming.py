"""Influence trimming: which rows sit out, that they really do, and that it does no harm."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dboost.kernels.ranks import count_influence
from dboost.statistics.quantiles import rank_unit
from dboost.statistics.trimming import find_cut


def kept(influence: np.ndarray, share: float, times: np.ndarray | None = None, cuts: tuple[int, ...] = ()) -> np.ndarray:
    """Whether each row stays."""
    bits = influence.astype(np.float32).view(np.int32)
    unit = rank_unit(float(influence.max()), 10 * len(influence))
    borders = [0, *sorted(min(c, len(bits)) for c in cuts), len(bits)]

    def count(prefix: int, shift: int) -> np.ndarray:
        sums = np.zeros(256, np.int64)
        for first, last in pairwise(borders):
            count_influence(bits, times, first, last, prefix, shift, unit, sums)
        return sums

    return bits >= find_cut(count, Fraction(repr(share)))


@given(
    n=st.integers(1, 200), seed=st.integers(0, 2**32), share=st.sampled_from([0.01, 0.1, 0.5]),
    distinct=st.sampled_from([1, 3, 10**6]), cuts=st.lists(st.integers(0, 200), max_size=3),
)  # fmt: skip
def test_the_least_influential_rows_go(n: int, seed: int, share: float, distinct: int, cuts: list[int]) -> None:
    """The naive twin sorts and adds up."""
    rng = np.random.default_rng(seed)
    influence = (rng.integers(1, distinct + 1, n) / distinct * 10.0 ** rng.integers(-3, 1, n)).astype(np.float32).astype(float)
    levels, at = np.unique(influence, return_inverse=True)
    reached = np.cumsum(levels * np.bincount(at))
    near = np.isclose(reached, share * influence.sum(), rtol=1e-9)
    found = kept(influence, share, cuts=tuple(cuts))
    if not near.any():
        assert np.array_equal(found, (reached > share * influence.sum())[at])
    assert found[np.argmax(influence)]
    assert np.array_equal(found, kept(influence, share))


def test_equal_rows_stay_together() -> None:
    assert kept(np.full(50, 0.2), 0.3).all()


def test_whole_weights_repeat_rows() -> None:
    rng = np.random.default_rng(0)
    influence, times = rng.exponential(size=80), rng.integers(1, 4, 80).astype(np.uint8)
    assert np.array_equal(np.repeat(kept(influence, 0.2, times), times), kept(np.repeat(influence, times), 0.2))
