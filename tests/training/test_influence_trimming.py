"""Influence trimming: the right rows are left out, and accuracy does not suffer."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dboost
from dboost.exact import find_cut
from dboost.kernels import or_empty, quantile_keys
from dboost.kernels.quantile_keys import FIRST_SHIFT, LANES, N_DIGITS, count_influence
from tests.helpers.compiled import compiled

add_influence = compiled(quantile_keys.add_influence)


def kept(influence: np.ndarray, share: float, times: np.ndarray | None = None, cuts: tuple[int, ...] = ()) -> np.ndarray:
    """Return whether each row is kept."""
    bits = influence.astype(np.float32).view(np.int32)
    borders = [0, *sorted(min(c, len(bits)) for c in cuts), len(bits)]

    counts = or_empty(times, "uint8")

    def count(prefix: int, shift: int, width: int) -> np.ndarray:
        sums = np.zeros(N_DIGITS, np.int64)
        for first, last in pairwise(borders):
            count_influence(bits, counts, first, last, prefix, shift, width, sums)
        return sums

    return bits >= find_cut(count(0, FIRST_SHIFT, 11), count, Fraction(repr(share)))


@given(
    n=st.integers(1, 200), seed=st.integers(0, 2**32), share=st.sampled_from([0.01, 0.1, 0.5]),
    distinct=st.sampled_from([1, 3, 10**6]), cuts=st.lists(st.integers(0, 200), max_size=3),
)  # fmt: skip
def test_the_least_influential_rows_go(n: int, seed: int, share: float, distinct: int, cuts: list[int]) -> None:
    """The naive counterpart sorts and adds up."""
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


@given(n=st.integers(1, 100), seed=st.integers(0, 2**32), weighed=st.booleans(), cut=st.integers(0, 100))
def test_a_pass_adds_up_what_counting_does(n: int, seed: int, weighed: bool, cut: int) -> None:
    rng = np.random.default_rng(seed)
    bits = (rng.integers(1, 9, n) / 32).astype(np.float32).view(np.int32) + rng.integers(0, 2**20, n, dtype=np.int32)
    times = or_empty(rng.integers(1, 4, n).astype(np.uint8) if weighed else None, "uint8")
    sums, counted = np.zeros((LANES, N_DIGITS), np.int64), np.zeros(N_DIGITS, np.int64)
    for first, last in ((0, min(cut, n)), (min(cut, n), n)):
        add_influence(bits[first:last], times, first, sums)
    count_influence(bits, times, 0, n, 0, FIRST_SHIFT, 11, counted)
    assert np.array_equal(sums.sum(axis=0), counted)


rng = np.random.default_rng(0)
N = 4000
X = np.round(rng.normal(size=(N, 4)), 2)
SIGNAL = 3 * np.sin(2 * X[:, 0]) + 2 * X[:, 1]
TWO = (SIGNAL + rng.logistic(size=N) > 0).astype(int)
THREE = np.digitize(SIGNAL + rng.logistic(size=N), [-1.0, 1.5])


def fit(y: np.ndarray, **settings: Any) -> dboost.Booster:
    return dboost.fit(X, y, loss="log_loss", **{"max_iter": 30, "learning_rate": 0.3, "max_leaf_nodes": 8, **settings})


@pytest.mark.fast_cells(2)
@pytest.mark.parametrize("criterion", ["newton", "gradient"])
@pytest.mark.parametrize("y", [TWO, THREE], ids=["two", "three"])
def test_trimmed_rows_shape_neither_tree_nor_leaves(y: np.ndarray, criterion: str) -> None:
    """The naive rule: second derivatives at the scores before a tree decide which rows are kept; leaves are sums over those."""
    booster = fit(y, influence_trimming=0.2, criterion=criterion, l2_regularization=0.5, max_iter=12)
    k_all = booster.ensemble.n_outputs
    baseline = booster.ensemble.baseline if k_all > 1 else booster.ensemble.baseline[0]
    before = [np.broadcast_to(baseline, (N, k_all) if k_all > 1 else N), *booster.staged_predict(X, raw_score=True)]
    leaves, loss = booster.apply(X), booster.loss
    for iteration in (1, 6, 12):
        raw = np.array(before[iteration - 1])
        gradient, hessian = (of(y.astype(float), np.atleast_2d(raw.T)).T for of in (loss.gradient, loss.hessian))
        counts = []
        for k in range(k_all):
            order = np.argsort(hessian[:, k], kind="stable")
            reached = np.cumsum(hessian[order, k])
            level = hessian[order[np.searchsorted(reached, 0.2 * reached[-1], side="right")], k]
            stays = hessian[:, k] >= level * (1 - 1e-6)
            counts.append(stays.sum())
            number = (iteration - 1) * k_all + k
            tree = booster.ensemble.trees[number]
            values = tree.value[tree.feature < 0]
            for leaf, value in enumerate(values):
                rows = stays & (leaves[:, number] == leaf)
                step = -0.3 * loss.leaves[0].step_factor * gradient[rows, k].sum() / (hessian[rows, k].sum() + 0.5)
                assert value == pytest.approx(step, rel=1e-3, abs=1e-6)
            assert tree.count[0] == pytest.approx(counts[-1], abs=2)
        kept_rows = booster.history["rows_kept"].iloc[iteration - 1]
        assert kept_rows == pytest.approx(np.mean(counts), abs=2)
        if iteration > 1:
            assert kept_rows < 0.8 * N


@pytest.mark.parametrize("y", [TWO, THREE], ids=["two", "three"])
def test_scores_of_trimmed_rows_are_updated_all_the_same(y: np.ndarray) -> None:
    booster = fit(y, influence_trimming=0.3, eval_set=(X, y))
    raw = booster.predict(X, raw_score=True)
    assert booster.history["train_loss"].iloc[-1] == pytest.approx(
        booster.loss.value(y.astype(float), np.atleast_2d(raw.T)).mean(), rel=1e-6
    )
    assert booster.history["eval_log_loss"].iloc[-1] == pytest.approx(booster.history["train_loss"].iloc[-1], rel=1e-6)


@pytest.mark.parametrize("loss", ["squared_error", "exponential"])
def test_other_losses_are_refused(loss: str) -> None:
    with pytest.raises(dboost.ParameterError, match="influence_trimming is for loss='log_loss', not for"):
        dboost.fit(X, TWO, influence_trimming=0.1, loss=loss)
