"""Row sampling: the sampled rows depend on seed, iteration and row number only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import dboost
from dboost.params import Parameters
from dboost.rows.row_sample import Sample
from tests.helpers.fits import FEATURES, TARGETS, mixed_frame, saved
from tests.helpers.growth import Problem, assert_equal
from tests.helpers.tables import make_table
from tests.helpers.tune import Tune

FRAME = mixed_frame()
SETTINGS: dict[str, Any] = {"features": FEATURES, "max_iter": 6, "max_leaf_nodes": 8, "min_samples_leaf": 5}


@pytest.fixture(autouse=True)
def several_threads_for_small_tables(tune: Tune) -> None:
    tune(small_cells=0)


def test_many_rows() -> None:
    """Several stripes for each thread, and flushes in between."""
    table = make_table([20, 255, 4], 150_000, missing=0.3)
    problem = Problem(table, Parameters(max_leaf_nodes=12), 0, with_hessian=True, sample=Sample.of(0.7, 1, 1))
    expected, leaf = problem.whole(1)
    assert expected.count[0] == pytest.approx(105_000, rel=0.02)
    for tree, found in (problem.whole(3), problem.by_rounds([1, 70_000], 8)[:2]):
        assert_equal(tree, expected)
        assert np.array_equal(found, leaf)


def test_samples_differ_between_iterations_and_seeds_and_are_fair() -> None:
    table = make_table([5], 20_000)
    shard = table.shard(np.zeros(20_000), None)
    drawn = [shard.sampled_rows(Sample.of(0.3, seed, iteration)) for seed in (0, 1) for iteration in (1, 2, 3)]
    for a in range(len(drawn)):
        rows = drawn[a]
        assert rows is not None
        assert (np.diff(rows) > 0).all()
        assert abs(len(rows) - 6000) < 5 * np.sqrt(20_000 * 0.3 * 0.7)
        for b in range(a):
            both = len(np.intersect1d(rows, drawn[b]))
            assert abs(both - 1800) < 5 * np.sqrt(20_000 * 0.09 * 0.91)
    assert shard.sampled_rows(Sample.of(1.0, 0, 1)) is None


@pytest.mark.parametrize("target", TARGETS)
def test_rows_of_weight_zero_are_not_counted(target: str) -> None:
    strange = mixed_frame(80, seed=9).assign(w=0.0)
    counted = FRAME[FRAME["w"] > 0]
    both = pd.concat([strange[:40], counted, strange[40:]], ignore_index=True)
    options = SETTINGS | {"subsample": 0.5, "sample_weight": "w"}
    assert saved(dboost.fit(both, target, **options)) == saved(dboost.fit(counted, target, **options))


@pytest.mark.parametrize("loss", ["huber", "absolute_error", "poisson", "poisson by gradients", "line search"])
def test_leaves_are_worth_what_the_sampled_rows_say(loss: str) -> None:
    """The naive counterpart: rows sampled by the same hash, leaf by leaf, for every kind of step."""
    rng = np.random.default_rng(8)
    n, alpha = 2000, 0.8
    X = rng.normal(size=(n, 3))
    y = np.exp(X[:, 0] / 2) * rng.gamma(2.0, size=n)
    options: dict[str, Any] = {"loss": loss}
    if loss == "huber":
        options["huber_alpha"] = alpha
    if loss == "poisson by gradients":
        options = {"loss": "poisson", "criterion": "gradient"}
    if loss == "line search":
        options = {"loss": "poisson", "criterion": "gradient", "step": "line_search"}
    booster = dboost.fit(
        X, y, max_iter=3, max_leaf_nodes=4, subsample=0.4, learning_rate=0.5, l2_regularization=0.0, min_samples_leaf=5,
        progress=False, **options,
    )  # fmt: skip
    stages = [np.full(n, booster.ensemble.baseline[0]), *booster.staged_predict(X, raw_score=True)]
    leaves, shard = booster.apply(X), make_table([5], n).shard(np.zeros(n), None)
    for iteration in (1, 2, 3):
        raw, tree = stages[iteration - 1], booster.ensemble.trees[iteration - 1]
        values = tree.value[tree.feature < 0]
        rows = shard.sampled_rows(Sample.of(0.4, 0, iteration))
        delta = np.quantile(np.abs(y - raw), alpha, method="averaged_inverted_cdf")  # of all rows
        expected = []
        for leaf in range(len(values)):
            here = rows[leaves[rows, iteration - 1] == leaf]
            residual = (y - raw)[here]
            if loss == "huber":
                middle = np.median(residual)
                expected.append(middle + np.clip(residual - middle, -delta, delta).mean())
            elif loss == "absolute_error":
                expected.append(np.median(residual))
            elif loss == "line search":
                expected.append((y - np.exp(raw))[here].mean())
            else:
                expected.append((y - np.exp(raw))[here].sum() / np.exp(raw[here]).sum())
        if loss == "line search":  # one multiplier for all leaves, at which the sampled rows' slope is 0
            direction = np.array(expected)[leaves[rows, iteration - 1]]
            rho = values[0] / (0.5 * expected[0])
            slope = ((np.exp(raw[rows] + rho * direction) - y[rows]) * direction).sum()
            assert abs(slope) < 1e-4 * (np.abs(y[rows] * direction)).sum()
            expected = [rho * one for one in expected]
        np.testing.assert_allclose(values, 0.5 * np.array(expected), rtol=2e-3 if loss == "huber" else 1e-4)
