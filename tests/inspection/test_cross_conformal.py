"""CV+: intervals from the models of all folds are the order statistics of their definition."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dboost
from dboost import DataError, ParameterError
from dboost.inspection.cross_conformal import CrossScores
from dboost.model.outputs import IntervalBase

RNG = np.random.default_rng(3)
N = 803
X = pd.DataFrame(RNG.normal(size=(N, 3)), columns=list("uvz"))
Y = (X["u"] + np.exp(X["v"] / 2) * RNG.normal(size=N)).to_numpy()
NEW = pd.DataFrame(RNG.normal(size=(200, 3)), columns=list("uvz"))
FEW: dict[str, Any] = {"max_iter": 10, "max_leaf_nodes": 6, "progress": False, "n_threads": 1}


def naive(result: dboost.CVResult, coverage: Fraction, new: pd.DataFrame = NEW) -> np.ndarray:
    """All sums of all rows, sorted."""
    sums: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for booster, (positions, _) in zip(result.boosters, result.held_out, strict=True):
        scores, base = (np.asarray(booster.predict(rows)).reshape(len(rows), -1) for rows in (X.iloc[positions], new))
        unit = np.ones((len(new), 1))
        residuals = np.maximum(scores[:, 0] - Y[positions], Y[positions] - scores[:, -1])
        if booster.loss.name == "normal":
            residuals = residuals / booster.predict_distribution(X.iloc[positions])["scale"].to_numpy()
            unit = booster.predict_distribution(new)[["scale"]].to_numpy()
        sums[0].append(base[:, :1] - unit * residuals)
        sums[1].append(base[:, -1:] + unit * residuals)
    below, above = (np.sort(np.concatenate(parts, axis=1), axis=1) for parts in sums)
    low, high = math.floor((N + 1) * (1 - coverage)), math.ceil((N + 1) * coverage)
    return np.column_stack([below[:, low - 1], above[:, high - 1]])


@pytest.mark.parametrize(
    "options", [{}, {"loss": "normal"}, {"loss": "quantile", "quantile": [0.1, 0.9]}], ids=["number", "normal", "quantiles"]
)
def test_bounds_are_order_statistics_of_all_sums(options: dict[str, Any]) -> None:
    result = dboost.cv(X, Y, folds=4, **FEW | options)
    for coverage in ("0.9", "0.55"):
        found = result.predict_interval(NEW, float(coverage))
        assert list(found) == ["lower", "upper"] and found.index.equals(NEW.index)
        assert np.array_equal(found, naive(result, Fraction(coverage)))
    lazy = result.predict_interval(dd.from_pandas(NEW, npartitions=3), 0.55)
    pd.testing.assert_frame_equal(lazy.compute(), found)


@given(
    n=st.integers(10, 60), n_folds=st.integers(1, 12), seed=st.integers(0, 2**32), tied=st.booleans(), weighted=st.booleans()
)
def test_the_selection_equals_sorting(n: int, n_folds: int, seed: int, tied: bool, weighted: bool) -> None:
    rng = np.random.default_rng(seed)
    fold, scores, unit = rng.integers(n_folds, size=n), rng.normal(size=n), rng.random((n_folds, 5)) + 0.1
    base = rng.normal(size=(n_folds, 5))
    if tied:
        scores, base, unit = np.round(scores), np.round(base), np.ones_like(unit)
    weight = rng.integers(1, 4, n).astype(np.float64) if weighted else None
    held_out = [(np.flatnonzero(fold == k), scores[fold == k]) for k in range(n_folds)]
    found = (
        CrossScores.of(held_out, weight)
        .selection(0.5)
        .bounds([IntervalBase(low, low + 0.5, of_fold) for low, of_fold in zip(base, unit, strict=True)])
    )
    times = np.ones(n, int) if weight is None else weight.astype(int)
    rank = math.ceil((times.sum() + 1) / 2)
    for row in range(5):
        moves = unit[fold, row] * scores
        above = np.sort(np.repeat(base[fold, row] + 0.5 + moves, times))[rank - 1]
        below = np.sort(np.repeat(base[fold, row] - moves, times))[::-1][rank - 1]
        assert found[row].tolist() == ([below, above] if below <= above else [below + (above - below) / 2] * 2)


def test_weights_that_count_rows_are_rows() -> None:
    weight = RNG.integers(1, 4, N).astype(np.float64)
    result = dboost.cv(X, Y, folds=3, sample_weight=weight, **FEW)
    found = result.predict_interval(NEW.iloc[:3], 0.9).to_numpy()
    above = [
        np.concatenate(
            [b.predict(NEW.iloc[:3]).to_numpy()[:, None] + np.repeat(np.abs(Y[at] - raw[:, 0]), weight[at].astype(int))]
        )
        for b, (at, raw) in zip(result.boosters, result.held_out, strict=True)
    ]
    sums = np.sort(np.concatenate(above, axis=1), axis=1)
    assert np.array_equal(found[:, 1], sums[:, math.ceil(Fraction(9, 10) * (int(weight.sum()) + 1)) - 1])


@pytest.mark.parametrize("repeats", [1, 2])
def test_a_normal_model_is_calibrated_in_units_of_held_out_scales(repeats: int) -> None:
    result = dboost.cv(X, Y, folds=3, loss="normal", repeats=repeats, **FEW)
    booster = result.calibrate(dboost.fit(X, Y, loss="normal", **FEW), 0.8)
    means = np.zeros((N, 2))
    for model, (at, _) in zip(result.boosters, result.held_out, strict=True):
        means[at] += model.predict_distribution(X.iloc[at]).to_numpy() / repeats
    scores = np.sort(np.abs(Y - means[:, 0]) / means[:, 1])
    assert booster.calibration is not None
    assert booster.calibration.margin == pytest.approx(scores[math.ceil(Fraction(8, 10) * (N + 1)) - 1], rel=1e-12)
    loc, scale = booster.predict_distribution(NEW).to_numpy().T
    upper = booster.predict_interval(NEW)["upper"]
    np.testing.assert_allclose(upper, loc + booster.calibration.margin * scale, rtol=1e-12)


def test_what_is_refused() -> None:
    with pytest.raises(ParameterError, match="there are no intervals: the model predicts classes"):
        dboost.cv(X, Y > 0, folds=3, **FEW).predict_interval(NEW)
    with pytest.raises(ParameterError, match="some rows of this result are held out by several folds"):
        dboost.cv(X, Y, folds=3, repeats=2, **FEW).predict_interval(NEW)
    half = np.arange(N) < 400
    result = dboost.cv(X, Y, folds=[(~half, half)], **FEW)
    with pytest.raises(ParameterError, match="this result holds out some only: give a number of folds"):
        result.predict_interval(NEW)
    few = dboost.cv(X[:18], Y[:18], folds=3, **FEW)
    with pytest.raises(DataError, match=r"coverage=0\.95 needs at least 19 rows to calibrate with, the data have 18"):
        few.predict_interval(NEW, 0.95)
    with pytest.raises(ParameterError, match="must be a number between 0 and 1"):
        few.predict_interval(NEW, 1.0)
