"""Weights have the same effect for every type and source, and weights too small for exact sums raise an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from distributed import Client

import dboost
from dboost import DataError
from tests.helpers.fits import cut, mixed_frame

FRAME = mixed_frame(900, seed=3).drop(columns="late")
W = FRAME["w"].to_numpy()
# Categories that only rows of weight zero have: in part of one column, and in all such rows of another.
FRAME.loc[np.flatnonzero(W == 0)[::3], "town"] = "Ghost"
FRAME["kind"] = FRAME["kind"].astype(str).where(W > 0, "none")
FEATURES = [name for name in FRAME if name not in ("y", "grade", "w")]
X = FRAME[FEATURES]
#: So small that rows are streamed.
LIMIT = 64 * 10**6


def fit(data: Any, target: Any, weight: Any, **options: Any) -> dboost.Booster:
    return dboost.fit(data, target, sample_weight=weight, **({"max_iter": 4} | options))


@pytest.mark.fast_cells(1)
@pytest.mark.parametrize("target", ["y", "grade"])
def test_weights_as_an_array_and_as_a_column_give_the_same_model(target: str, client: Client, tmp_path: Path) -> None:
    frame = FRAME[[*FEATURES, target, "w"]]
    expected = fit(frame, target, "w")
    assert "Ghost" not in (expected.features[FEATURES.index("town")].categories or ())
    y, lazy, lazy_x = frame[target], cut(frame, [100, 100, 500]), cut(frame.drop(columns="w"), [100, 100, 500])
    for limit in (None, LIMIT):
        for weight in (W, W.tolist(), FRAME["w"], pl.Series(W), W.astype(np.float32)):
            assert fit(X, y, weight, memory_limit=limit) == expected
        assert fit(lazy_x, target, W, memory_limit=limit) == expected
        assert fit(lazy, target, "w", memory_limit=limit) == expected
        assert fit(lazy[FEATURES], lazy[target], lazy["w"], memory_limit=limit) == expected
        for data, weight in ((lazy_x, W), (lazy, "w"), (frame.drop(columns="w"), W), (frame.drop(columns="w"), W.tolist())):
            assert fit(data, target, weight, client=client, memory_limit=limit) == expected
    for number, (data, weight) in enumerate([(lazy, "w"), (lazy_x, W)]):
        folder = tmp_path / str(number)
        dboost.prepare(data, target, folder, sample_weight=weight)
        assert dboost.fit(folder, target, max_iter=4) == expected


@pytest.mark.fast_cells(3)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.float16, np.float32, np.float64, bool, object, "Int64"])
def test_the_type_of_weights_does_not_matter(dtype: Any) -> None:
    whole = (W > 0).astype(int) if dtype is bool else (2 * W).astype(int)
    expected = fit(X, FRAME["y"], whole.astype(np.float64))
    weight = pd.Series(whole).astype(dtype)
    assert fit(X, FRAME["y"], weight) == expected
    assert fit(X, FRAME["y"], weight.to_numpy()) == expected
    assert fit(X.assign(w=weight, y=FRAME["y"]), "y", "w") == expected


@pytest.mark.filterwarnings("ignore::dboost.DriftWarning")
def test_weights_of_later_data_and_of_evaluation_sets_count_alike() -> None:
    old = fit(X, FRAME["y"], None)
    columns = fit(FRAME.drop(columns="grade"), "y", "w", start_from=old, eval_set=[FRAME.drop(columns="grade")])
    values = fit(X, FRAME["y"], W, start_from=old, eval_set=[(X, FRAME["y"], W)])
    assert columns == values
    pd.testing.assert_frame_equal(columns.history.drop(columns="seconds"), values.history.drop(columns="seconds"))


def test_a_column_whose_text_counts_nowhere_has_no_levels() -> None:
    frame = X.assign(y=FRAME["y"], w=W, town=np.where(W == 0, "Ghost", None))
    columns, values = fit(frame, "y", "w"), fit(frame.drop(columns=["y", "w"]), frame["y"], W)
    assert columns == values
    assert np.isfinite(values.predict(frame.assign(town=None))).all()


@pytest.mark.parametrize("weight", [1e-26, 5e-324])
@pytest.mark.parametrize("loss", ["absolute_error", "huber"])
def test_weights_that_are_all_too_small_are_refused(weight: float, loss: str) -> None:
    with pytest.raises(DataError, match=f"sample_weight is {weight:g} at most in all rows.*multiply"):
        fit(X, FRAME["y"], np.where(W > 0, weight, 0.0), loss=loss)


@pytest.mark.parametrize("loss", ["squared_error", "absolute_error", "huber", "poisson"])
def test_tiny_weights_beside_others_are_legal(loss: str) -> None:
    y = FRAME["y"].abs()
    tiny, tinier = (
        fit(X, y, np.where(W > 0, 1.5, least), loss=loss, min_hessian=0, l2_regularization=0) for least in (1e-30, 1e-300)
    )
    assert np.isfinite(tiny.predict(X)).all()
    np.testing.assert_array_equal(tiny.predict(X), tinier.predict(X))
